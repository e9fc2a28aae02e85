// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! One execution of a command buffer with collectives, as long as any part of it uses the program's memory.
//!
//! A step has several parts that go on side by side: commands of the device, collectives, and copies for them. Where one of them fails the program's signals are
//! to fail, and a program that sees this may use its memory for something else at once. So they fail when no part is under way any
//! more: each [part](Part) of an execution keeps it, and the operation that has the program's signals [ends](Ending) when the last one has
//! gone. Collectives that others do not come to are ended with it, so that this takes no longer than their groups need to cancel what is
//! on its way.

use crate::sync::semaphore::{IreeTimeline, OwnedList};
use hal_semaphore::backend::HostTask;
use hal_semaphore::{Failure, WithoutCallbacks};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

/// Something that an execution has begun, or will begin. It keeps the program from being told that the execution has failed.
#[derive(Clone, Default)]
pub(crate) struct Part(Arc<Execution>);

/// The operation that has the program's signals.
pub(crate) struct Ending(Weak<Execution>);

#[derive(Default)]
struct Execution(Mutex<State>);

#[derive(Default)]
struct State {
    failed: Option<Failure>,
    /// The task that has the program's signals, and fails them.
    task: Option<HostTask>,
    /// Is signalled with the end of the last part, for what waits for all of them however they end.
    over: Option<IreeTimeline>,
}

impl Part {
    pub(crate) fn ending(&self) -> Ending {
        Ending(Arc::downgrade(&self.0))
    }

    /// Whether both are of the same execution.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The timeline is at 1 when no part is left.
    pub(crate) fn tells(&self, over: IreeTimeline) {
        self.0.0.lock().over = Some(over);
    }

    /// Why no part of it begins any more, if none does.
    pub(crate) fn failed(&self) -> Option<Failure> {
        self.0.0.lock().failed.clone()
    }

    /// It has failed: what has its signals ends with the last part.
    pub(crate) fn fail(&self, why: &Failure, task: HostTask) {
        let mut state = self.0.0.lock();
        state.failed = Some(why.clone());
        state.task = Some(task);
    }
}

impl Ending {
    /// A part of the execution, unless none is left.
    pub(crate) fn part(&self) -> Option<Part> {
        self.0.upgrade().map(Part)
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        let State { task, over, .. } = self.0.get_mut();
        // The thread may be inside of a call of the program's, which holds what a callback takes.
        let _quiet = WithoutCallbacks::begin();
        if let Some(over) = over.take() {
            let mut signals = OwnedList::default();
            signals.push(over, 1);
            signals.signal_or_fail(Ok(()));
        }
        if let Some(task) = task.take() {
            // Its operation has its failure.
            task.finish(Ok(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::collective::Waiting;
    use hal_semaphore::testing::{Job, SoftBackend, device};
    use hal_semaphore::{Action, Affinity, Code, Engine, Semaphore};
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn last_part_of_an_execution_that_has_failed_calls_no_program_back_on_its_thread() {
        let engine = Engine::new(SoftBackend::new(vec![device(1)])).unwrap();
        let [step, end] = [0; 2].map(|value| Semaphore::new(&engine, value).unwrap());
        let (waits, signals) = ([(step.clone(), 1)], [(end.clone(), 1)]);
        engine.submit(0, Affinity::ANY, &waits, &signals, Action::Cleanup(Job::new(1))).unwrap();
        let called = Arc::new(AtomicBool::new(false));
        let calls = called.clone();
        let _subscription = end.subscribe(1, move |_| calls.store(true, Ordering::Relaxed));
        let why = Failure::new(Code::Aborted, "a collective failed");
        step.fail(why.clone());
        let (task, _) = engine.backend().take_host().pop().unwrap();
        let first = Part::default();
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
        let engine = Engine::new(SoftBackend::new(vec![device(1)])).unwrap();
        let [step, end] = [0; 2].map(|value| Semaphore::new(&engine, value).unwrap());
        let (waits, signals) = ([(step.clone(), 1)], [(end.clone(), 1)]);
        engine.submit(0, Affinity::ANY, &waits, &signals, Action::Cleanup(Job::new(1))).unwrap();
        let why = Failure::new(Code::Aborted, "a collective failed");
        step.fail(why.clone());
        let (task, _) = engine.backend().take_host().pop().unwrap();
        let ending = Part::default().ending();
        Waiting::default().end_execution(&ending, &why, task);
        assert!(end.query().unwrap_err().same_root(&why));
    }
}
