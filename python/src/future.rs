// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The Python class `Future`: calls that are under way.

use crate::convert;
use crate::error::Error;
use crate::runtime::{self, Program, StartedCall, Value};
use parking_lot::{Condvar, Mutex};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The results of a call, which may not be ready yet.
///
/// `result()` waits for them, and so does `await` in a coroutine. As an argument of another call a future stands
/// for its result: if both functions take fences, the device goes from one to the other without the host.
#[pyclass(frozen, module = "iree_hal")]
pub(crate) struct Future {
    work: RunningCall,
    program: Arc<Program>,
}

/// How a call runs.
#[derive(Clone)]
pub(crate) enum RunningCall {
    /// On the device: the function takes fences.
    Begun(Arc<StartedCall>),
    /// On a thread, which waits for the device.
    Threaded(Arc<ThreadedCall>),
}

/// The outcome of a call on a thread.
#[derive(Default)]
pub(crate) struct ThreadedCall {
    outcome: Mutex<Option<runtime::Result<Vec<Value>>>>,
    changed: Condvar,
}

impl ThreadedCall {
    /// Runs a call on its own thread.
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
            .map_err(|error| {
                Error::new_err(format!("the thread that waits could not be started: {error}"))
            })?;
        Ok(pending)
    }

    fn wait(&self, timeout: Option<Duration>) -> runtime::Result<Vec<Value>> {
        let end = timeout.map(|timeout| Instant::now() + timeout);
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

impl RunningCall {
    /// The results, once they are ready.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> runtime::Result<Vec<Value>> {
        match self {
            RunningCall::Begun(started) => {
                started.wait(timeout)?;
                Ok(started.results.clone())
            }
            RunningCall::Threaded(pending) => pending.wait(timeout),
        }
    }

    fn is_done(&self) -> bool {
        match self {
            RunningCall::Begun(started) => started.is_done(),
            RunningCall::Threaded(pending) => pending.outcome.lock().is_some(),
        }
    }
}

/// The only result of a future that is passed as an argument.
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
    pub(crate) fn new(work: RunningCall, program: Arc<Program>) -> Self {
        Self { work, program }
    }

    pub(crate) fn work(&self) -> &RunningCall {
        &self.work
    }
}

#[pymethods]
impl Future {
    /// Waits for the results, for at most `timeout` seconds, and returns them as the call would.
    #[pyo3(signature = (timeout=None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let timeout = timeout.map(parse_timeout).transpose()?.flatten();
        runtime::check_not_forked()?;
        let values = py.detach(|| self.work.wait(timeout))?;
        convert::results(py, &values, &self.program)
    }

    /// True if the call has ended, whether or not it succeeded.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        runtime::check_not_forked()?;
        Ok(py.detach(|| self.work.is_done()))
    }

    /// Waits without blocking the event loop.
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

/// More seconds than any wait takes, which clocks can still add.
const FOR_EVER: f64 = 1e9;

/// The time to wait; `None` for infinite seconds.
fn parse_timeout(seconds: f64) -> PyResult<Option<Duration>> {
    if seconds.is_nan() {
        return Err(PyValueError::new_err("the timeout is not a number"));
    }
    Ok((seconds < FOR_EVER).then(|| Duration::from_secs_f64(seconds.max(0.0))))
}
