// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! One execution of a command buffer with collectives, for as long as any part of it uses the program's memory.
//!
//! The parts of a step run side by side: device commands, collectives, and copies for them. If one fails, the
//! program's signals must fail, and a program that sees this may reuse its memory at once. So the signals fail only
//! when no part is running: each [part](ExecutionPart) keeps the execution, and the operation that has the
//! program's signals [ends](ExecutionEnd) with the last part. Collectives whose other ranks do not come are ended
//! too, so this takes no longer than their groups need to cancel their transfers.

use crate::sync::semaphore::{IreeTimeline, OwnedList};
use hal_semaphore::backend::HostTask;
use hal_semaphore::{Failure, WithoutCallbacks};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// A running or future part of an execution. It delays the report of the execution's failure.
#[derive(Clone, Default)]
pub(crate) struct ExecutionPart(Arc<Execution>);

/// The operation that has the program's signals.
pub(crate) struct ExecutionEnd(Weak<Execution>);

#[derive(Default)]
struct Execution(Mutex<ExecutionState>);

#[derive(Default)]
struct ExecutionState {
    failed: Option<Failure>,
    /// The task that has the program's signals, and fails them.
    task: Option<HostTask>,
    /// Signalled with the end of the last part, whether it failed or not.
    over: Option<IreeTimeline>,
}

impl ExecutionPart {
    pub(crate) fn ending(&self) -> ExecutionEnd {
        ExecutionEnd(Arc::downgrade(&self.0))
    }

    /// True if both belong to the same execution.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Sets a timeline that reaches 1 when no part is left.
    pub(crate) fn signal_at_end(&self, over: IreeTimeline) {
        self.0.0.lock().over = Some(over);
    }

    /// The failure that prevents further parts, if there is one.
    pub(crate) fn failed(&self) -> Option<Failure> {
        self.0.0.lock().failed.clone()
    }

    /// Records a failure: the task ends with the last part.
    pub(crate) fn fail(&self, why: &Failure, task: HostTask) {
        let mut state = self.0.0.lock();
        state.failed = Some(why.clone());
        state.task = Some(task);
    }
}

impl ExecutionEnd {
    /// A new part, unless none is left.
    pub(crate) fn part(&self) -> Option<ExecutionPart> {
        self.0.upgrade().map(ExecutionPart)
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        let ExecutionState { task, over, .. } = self.0.get_mut();
        // The thread may be inside a call of the program, which may hold a lock that a callback takes.
        let _quiet = WithoutCallbacks::begin();
        if let Some(over) = over.take() {
            let mut signals = OwnedList::default();
            signals.push(over, 1);
            signals.signal_or_fail(Ok(()));
        }
        if let Some(task) = task.take() {
            // The operation already has its failure.
            task.finish(Ok(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::collectives::running::RunningCollectives;
    use hal_semaphore::testing::{Job, SoftBackend, device};
    use hal_semaphore::{Action, Affinity, Code, Engine, Semaphore};
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn last_part_of_an_execution_that_has_failed_calls_no_program_back_on_its_thread() {
        let engine = Engine::new(SoftBackend::new(device(1))).unwrap();
        let [step, end] = [0; 2].map(|value| Semaphore::new(&engine, value).unwrap());
        let (waits, signals) = ([(step.clone(), 1)], [(end.clone(), 1)]);
        engine.submit(Affinity::ANY, &waits, &signals, Action::Cleanup(Job::new(1))).unwrap();
        let called = Arc::new(AtomicBool::new(false));
        let calls = called.clone();
        let _subscription = end.subscribe(1, move |_| calls.store(true, Ordering::Relaxed));
        let why = Failure::new(Code::Aborted, "a collective failed");
        step.fail(why.clone());
        let (task, _) = engine.backend().take_host().pop().unwrap();
        let first = ExecutionPart::default();
        let last = first.clone();
        first.fail(&why, task);
        drop(first);
        assert_eq!(end.query().unwrap(), 0, "a part is left");
        drop(last);
        assert!(end.query().unwrap_err().same_root(&why));
        assert!(!called.load(Ordering::Relaxed), "its thread may hold what the callback takes");
        engine.backend().call_back();
        assert!(called.load(Ordering::Relaxed));
    }

    #[test]
    fn execution_without_any_part_left_fails_at_once() {
        let engine = Engine::new(SoftBackend::new(device(1))).unwrap();
        let [step, end] = [0; 2].map(|value| Semaphore::new(&engine, value).unwrap());
        let (waits, signals) = ([(step.clone(), 1)], [(end.clone(), 1)]);
        engine.submit(Affinity::ANY, &waits, &signals, Action::Cleanup(Job::new(1))).unwrap();
        let why = Failure::new(Code::Aborted, "a collective failed");
        step.fail(why.clone());
        let (task, _) = engine.backend().take_host().pop().unwrap();
        let ending = ExecutionPart::default().ending();
        RunningCollectives::default().end_execution(&ending, &why, task);
        assert!(end.query().unwrap_err().same_root(&why));
    }
}
