// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Calls that are under way.

use crate::convert;
use crate::error::Error;
use crate::runtime::{self, Program, Started, Value};
use parking_lot::{Condvar, Mutex};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The results of a call, which may not be there yet.
///
/// `result()` waits for them, `await` does in a coroutine. As an argument of another call a future stands for its result: where
/// both functions take fences the device goes from one to the other without the host.
#[pyclass(frozen, module = "iree_hal")]
pub(crate) struct Future {
    work: Work,
    program: Arc<Program>,
}

/// How a call is under way.
#[derive(Clone)]
pub(crate) enum Work {
    /// On the device: the function takes fences.
    Begun(Arc<Started>),
    /// On a thread, which waits for the device.
    Threaded(Arc<Pending>),
}

/// What a thread will have found.
#[derive(Default)]
pub(crate) struct Pending {
    outcome: Mutex<Option<runtime::Result<Vec<Value>>>>,
    changed: Condvar,
}

impl Pending {
    /// Runs a call on a thread of its own.
    pub(crate) fn run(
        call: impl FnOnce() -> runtime::Result<Vec<Value>> + Send + 'static,
    ) -> PyResult<Arc<Self>> {
        let pending = Arc::new(Self::default());
        let kept = pending.clone();
        std::thread::Builder::new()
            .name("iree_hal".into())
            .spawn(move || {
                let outcome = call();
                *kept.outcome.lock() = Some(outcome);
                kept.changed.notify_all();
            })
            .map_err(|error| Error::new_err(format!("there is no thread to wait on: {error}")))?;
        Ok(pending)
    }

    fn wait(&self, patience: Option<Duration>) -> runtime::Result<Vec<Value>> {
        let end = patience.map(|patience| Instant::now() + patience);
        let mut outcome = self.outcome.lock();
        loop {
            if let Some(outcome) = outcome.as_ref() {
                return outcome.clone();
            }
            match end {
                Some(end) if self.changed.wait_until(&mut outcome, end).timed_out() => {
                    return Err(runtime::Error::not_ended());
                }
                Some(_) => {}
                None => self.changed.wait(&mut outcome),
            }
        }
    }
}

impl Work {
    /// The results, once they have their bytes.
    pub(crate) fn wait(&self, patience: Option<Duration>) -> runtime::Result<Vec<Value>> {
        match self {
            Work::Begun(started) => {
                started.wait(patience)?;
                Ok(started.results.clone())
            }
            Work::Threaded(pending) => pending.wait(patience),
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Work::Begun(started) => started.is_done(),
            Work::Threaded(pending) => pending.outcome.lock().is_some(),
        }
    }
}

/// The one result that a future stands for as an argument.
pub(crate) fn single(values: &[Value]) -> runtime::Result<Value> {
    match values {
        [value] => Ok(value.clone()),
        _ => Err(runtime::Error::new(
            "INVALID_ARGUMENT",
            format!(
                "a future with {} results cannot stand for one argument: pass its result()",
                values.len()
            ),
        )),
    }
}

impl Future {
    pub(crate) fn new(work: Work, program: Arc<Program>) -> Self {
        Self { work, program }
    }

    pub(crate) fn work(&self) -> &Work {
        &self.work
    }
}

#[pymethods]
impl Future {
    /// Waits for the results, for at most `timeout` seconds, and returns them as the call would have.
    #[pyo3(signature = (timeout=None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let patience = timeout.map(patience).transpose()?.flatten();
        runtime::check_not_forked()?;
        let values = py.detach(|| self.work.wait(patience))?;
        convert::results(py, &values, &self.program)
    }

    /// Whether the call has ended, well or not.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        runtime::check_not_forked()?;
        Ok(py.detach(|| self.work.is_done()))
    }

    /// Waits without keeping the event loop from other work.
    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let event_loop = slf.py().import("asyncio")?.call_method0("get_running_loop")?;
        let waiting =
            event_loop.call_method1("run_in_executor", (slf.py().None(), slf.getattr("result")?))?;
        waiting.call_method0("__await__")
    }

    fn __repr__(&self) -> &'static str {
        if runtime::is_forked() {
            return "<iree_hal.Future of another process>";
        }
        if self.work.is_done() { "<iree_hal.Future done>" } else { "<iree_hal.Future under way>" }
    }
}

/// No wait takes so many seconds, and clocks can still add them.
const FOR_EVER: f64 = 1e9;

/// How long to wait; without an end for as long as there is.
fn patience(seconds: f64) -> PyResult<Option<Duration>> {
    if seconds.is_nan() {
        return Err(PyValueError::new_err("the time to wait is not a number"));
    }
    Ok((seconds < FOR_EVER).then(|| Duration::from_secs_f64(seconds.max(0.0))))
}
