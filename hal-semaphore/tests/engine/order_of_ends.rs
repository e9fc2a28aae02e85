// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Every kind of action, every way to end: results are visible, then the signals are out, then the work is
//! reclaimed, once (rule S5).
//!
//! There is no hook between the device's report and the signals: no backend has anything to finish there, since
//! a report means that results are visible already (`backend.rs`). So nothing here tests one that panics,
//! blocks or is skipped.

use crate::rig::{self, Job, LIMIT, Moment, TestEngine, broken, gone, within};
use hal_semaphore::backend::NativeWaits;
use hal_semaphore::*;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CaseKind {
    Queue,
    Host,
    /// May be done early, and is.
    Early,
    /// May be done early, and cannot: runs on the host when its waits are reached.
    Declined,
    Marker,
    Barrier,
}

use CaseKind::{Barrier, Declined, Early, Host, Marker, Queue};

const KINDS: [CaseKind; 6] = [Queue, Host, Early, Declined, Marker, Barrier];

impl CaseKind {
    fn action(self, job: Job) -> Action<Job> {
        match self {
            Queue => Action::Queue(job),
            Host => Action::Host(job),
            Early => Action::Early(job.early()),
            Declined => Action::Early(job),
            Marker => Action::Marker(job),
            Barrier => Action::Barrier,
        }
    }
}

/// The job of the operation under test. Its producer, where there is one, has job 1.
const OWN: u64 = 2;

/// An operation of one kind that waits for `input` and signals `outputs`.
struct Case {
    kind: CaseKind,
    rig: TestEngine,
    input: Semaphore,
    outputs: [Semaphore; 2],
    /// The values of the outputs when the work was reclaimed.
    at_reclaim: Arc<Mutex<Vec<Result<u64, Failure>>>>,
}

impl Case {
    /// An operation that waits for something without a promise.
    fn blocked(kind: CaseKind, job: Job) -> Self {
        Self::new(kind, TestEngine::new(1, NativeWaits::Epochs), job)
    }

    /// An operation that waits for `producer`, which the device has been given.
    fn under_way(kind: CaseKind, job: Job, producer: Job) -> Self {
        let rig = TestEngine::new(1, NativeWaits::Epochs);
        let input = rig.semaphore();
        rig.submit(0, &[], &[(&input, 1)], Action::Queue(producer));
        Self::with_input(kind, rig, input, job)
    }

    fn new(kind: CaseKind, rig: TestEngine, job: Job) -> Self {
        let input = rig.semaphore();
        Self::with_input(kind, rig, input, job)
    }

    fn with_input(kind: CaseKind, rig: TestEngine, input: Semaphore, job: Job) -> Self {
        let outputs = rig.semaphores();
        let at_reclaim = Arc::default();
        rig.always(Moment::Reclaim(OWN), {
            let (seen, outputs): (Arc<Mutex<Vec<_>>>, [Semaphore; 2]) =
                (Arc::clone(&at_reclaim), outputs.clone());
            move |_| seen.lock().unwrap().extend(outputs.each_ref().map(Semaphore::query))
        });
        let signals = [(&outputs[0], 1), (&outputs[1], 1)];
        rig.submit(0, &[(&input, 1)], &signals, kind.action(job));
        Self { kind, rig, input, outputs, at_reclaim }
    }

    /// The operation has not ended: no signal is out, and its work is not reclaimed.
    fn assert_open(&self) {
        for output in &self.outputs {
            assert_eq!(output.query().unwrap(), 0, "{:?}: signalled too early", self.kind);
        }
        assert!(!self.rig.reclaimed().contains(&OWN), "{:?}: is reclaimed too early", self.kind);
    }

    /// The operation has ended like this, everywhere; its work was reclaimed once, after its signals.
    fn assert_ended(&self, expected: Result<(), &Failure>) {
        let as_expected = |seen: &Result<u64, Failure>| match (seen, expected) {
            (Ok(value), Ok(())) => *value == 1,
            (Err(failure), Err(cause)) => failure.same_root(cause),
            _ => false,
        };
        for output in &self.outputs {
            let seen = output.query();
            assert!(as_expected(&seen), "{:?} signalled {seen:?} instead of {expected:?}", self.kind);
        }
        self.assert_returned(as_expected);
    }

    fn assert_returned(&self, as_expected: impl Fn(&Result<u64, Failure>) -> bool) {
        let returned: Vec<_> = self
            .rig
            .returned()
            .into_iter()
            .filter(|(id, _)| *id == OWN)
            .map(|(_, outcome)| outcome)
            .collect();
        let items = usize::from(self.kind != Barrier);
        assert_eq!(returned.len(), items, "{:?}: is reclaimed once if there is work", self.kind);
        for outcome in returned {
            assert!(as_expected(&outcome.clone().map(|()| 1)), "{:?} is reclaimed as {outcome:?}", self.kind);
        }
        let seen = self.at_reclaim.lock().unwrap();
        assert_eq!(seen.len(), 2 * items);
        assert!(seen.iter().all(as_expected), "{:?}: at its return the signals were {seen:?}", self.kind);
        self.rig.assert_idle();
    }
}

/// The device's work is visible only when it is reported, the host's when it returns: until then nothing is signalled.
#[test]
fn successful_action_signals_before_it_is_reclaimed() {
    for kind in KINDS {
        let case = Case::under_way(kind, Job::new(OWN), Job::new(1));
        case.assert_open();
        assert!(case.rig.step(0), "the producer has run and is not reported");
        case.rig.step(0);
        case.assert_open();
        assert!(case.rig.report(0));
        match kind {
            Early | Marker | Barrier => {}
            Queue => {
                case.assert_open();
                assert!(case.rig.report(0));
            }
            Host | Declined => {
                case.assert_open();
                let (task, job) = case.rig.take_host().pop().unwrap();
                assert_eq!(job.id, OWN);
                task.finish(Ok(()));
            }
        }
        if matches!(kind, Host | Declined) {
            // A host action takes its work with it: the backend was given it by value.
            assert!(case.outputs.iter().all(|output| output.query().is_ok_and(|value| value == 1)));
            assert!(case.rig.reclaimed() == [1]);
            continue;
        }
        case.assert_ended(Ok(()));
    }
}

/// The backend owns the work of a host action from [`run`](hal_semaphore::Backend::run) on. It is not reclaimed
/// as well, whether the action succeeds, fails, or its task is dropped.
#[test]
fn started_host_action_is_not_reclaimed() {
    for kind in [Host, Declined] {
        for end in ["well", "badly", "dropped"] {
            let case = Case::under_way(kind, Job::new(OWN), Job::new(1));
            case.rig.run_until_idle();
            let (task, job) = case.rig.take_host().pop().unwrap();
            assert_eq!(job.id, OWN);
            case.assert_open();
            match end {
                "well" => task.finish(Ok(())),
                "badly" => task.finish(Err(broken("the host's own"))),
                _ => drop(task),
            }
            for output in &case.outputs {
                assert_eq!(output.query().is_ok(), end == "well", "{kind:?} that ends {end}");
            }
            assert_eq!(case.rig.reclaimed(), [1]);
            case.rig.assert_idle();
        }
    }
}

/// The operation itself fails: on the device, when its device refuses it, or when it is done early.
#[test]
fn failed_action_signals_its_failure_before_it_is_reclaimed() {
    for kind in [Queue, Early, Declined, Marker] {
        let own = broken("the operation's own");
        let jobs = match kind {
            Queue => vec![Job::new(OWN).fails(&own), Job::new(OWN).refused(&own)],
            _ => vec![Job::new(OWN).refused(&own)],
        };
        for job in jobs {
            let case = Case::under_way(kind, job, Job::new(1));
            case.rig.run_until_idle();
            case.assert_ended(Err(&own));
            assert_eq!(case.input.query().unwrap(), 1, "{kind:?}: its producer has nothing to do with it");
        }
    }
}

/// The wait of a blocked operation fails.
#[test]
fn blocked_action_whose_wait_fails_signals_that_before_it_is_reclaimed() {
    for kind in KINDS {
        let case = Case::blocked(kind, Job::new(OWN));
        case.assert_open();
        let cause = broken("the program gives up");
        case.input.fail(cause.clone());
        case.assert_ended(Err(&cause));
    }
}

/// The producer fails, which the device does not know: it runs what comes after it all the same.
#[test]
fn action_whose_producer_fails_signals_that_before_it_is_reclaimed() {
    for kind in KINDS {
        let cause = broken("the producer's");
        let case = Case::under_way(kind, Job::new(OWN), Job::new(1).fails(&cause));
        case.rig.step(0);
        case.rig.step(0);
        case.assert_open();
        case.rig.run_until_idle();
        case.assert_ended(Err(&cause));
    }
}

/// The device is lost before the operation has started, or while the device has it.
#[test]
fn action_of_a_lost_device_signals_that_before_it_is_reclaimed() {
    for kind in KINDS {
        for case in [Case::blocked(kind, Job::new(OWN)), Case::under_way(kind, Job::new(OWN), Job::new(1))] {
            case.assert_open();
            let cause = gone();
            case.rig.lose(&cause);
            case.assert_ended(Err(&cause));
        }
    }
}

/// The device was lost before the operation was submitted.
#[test]
fn action_for_a_lost_device_signals_that_before_it_is_reclaimed() {
    for kind in KINDS {
        let rig = TestEngine::new(1, NativeWaits::Epochs);
        let cause = gone();
        rig.lose(&cause);
        Case::new(kind, rig, Job::new(OWN)).assert_ended(Err(&cause));
    }
}

/// The last handle on the timeline that a blocked operation waits for is dropped: nothing can signal it.
#[test]
fn action_whose_wait_is_abandoned_signals_that_before_it_is_reclaimed() {
    for kind in KINDS {
        let mut case = Case::blocked(kind, Job::new(OWN));
        let other = case.rig.semaphore();
        drop(std::mem::replace(&mut case.input, other));
        let cause = case.outputs[0].query().unwrap_err();
        assert_eq!(cause.origin(), Origin::Abandoned);
        case.assert_ended(Err(&cause));
    }
}

/// A shutdown runs out of time. The signals fail at once; the work on the device is reclaimed when it is
/// reported, and not before.
#[test]
fn action_at_a_forced_shutdown_signals_that_before_it_is_reclaimed() {
    for kind in KINDS {
        within(LIMIT, move || {
            let case = Case::under_way(kind, Job::new(OWN), Job::new(1));
            let clock = VirtualClock::new();
            case.rig.engine.shut_down(&clock, Duration::ZERO, Duration::ZERO).unwrap_err();
            let cause = case.outputs[0].query().unwrap_err();
            assert_eq!(cause.origin(), Origin::Shutdown, "{kind:?}");
            if kind == Queue {
                assert!(case.rig.reclaimed().is_empty(), "the device may still write to it");
            }
            case.rig.run_until_idle_with_host();
            for output in &case.outputs {
                assert!(output.query().unwrap_err().same_root(&cause), "{kind:?}");
            }
            // Submitted work ends by its report, or at once; its signals were out before that.
            let mut reclaimed = case.rig.reclaimed();
            reclaimed.sort_unstable();
            assert_eq!(reclaimed, if kind == Barrier { vec![1] } else { vec![1, OWN] }, "{kind:?}");
            let seen = case.at_reclaim.lock().unwrap();
            assert!(seen.iter().all(|state| state.is_err()), "{kind:?}: {seen:?}");
            case.rig.assert_idle();
        });
    }
}

/// The backend panics while it takes the operation: its device is lost.
#[test]
fn action_whose_backend_panics_signals_that_before_it_is_reclaimed() {
    for kind in [Queue, Marker] {
        let rig = TestEngine::new(1, NativeWaits::Epochs);
        rig.once(Moment::Taken(OWN), |_| panic!("the driver panics"));
        let case = Case::new(kind, rig, Job::new(OWN));
        // A marker goes to the backend behind earlier work of its queue.
        case.rig.job(0, &[], &[(&case.input, 1)], 1);
        let cause = case.rig.engine.lost().unwrap();
        case.assert_ended(Err(&cause));
    }
}

/// The device completes the operation before its `submit` returns: even then the work is reclaimed once, after
/// the signals.
#[test]
fn action_that_completes_inside_submit_signals_before_it_is_reclaimed() {
    for kind in [Queue, Marker, Barrier] {
        let rig = TestEngine::new(1, NativeWaits::Epochs);
        rig.always(Moment::SubmitEnds(0), rig::Devices::run_until_idle);
        let case = Case::new(kind, rig, Job::new(OWN));
        case.rig.job(0, &[], &[(&case.input, 1)], 1);
        case.assert_ended(Ok(()));
    }
}
