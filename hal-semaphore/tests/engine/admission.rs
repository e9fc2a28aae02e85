// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Admission: refused requests, the classes of waits, and failures that reach an operation while it is queued
//! (rules S2, S3, S6, S10, S13).

use crate::rig::{Devices, Job, LIMIT, Moment, TestEngine, broken, device, gone, within};
use hal_semaphore::backend::NativeWaits;
use hal_semaphore::*;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// An operation may wait for the largest value that there is, and signal it. One more is refused (S1).
#[test]
fn largest_value_can_be_waited_for_and_signalled_and_no_larger_one() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let [x, y] = rig.semaphores();
    let submit = |wait, signal| {
        let (waits, signals) = ([(x.clone(), wait)], [(y.clone(), signal)]);
        rig.engine.submit(Affinity::ANY, &waits, &signals, Action::Barrier).map_err(|refused| refused.error)
    };
    for (wait, signal) in [(MAX_VALUE + 1, 1), (1, MAX_VALUE + 1)] {
        let refused = submit(wait, signal).unwrap_err();
        assert!(matches!(refused, SubmitError::ValueTooLarge { value } if value > MAX_VALUE), "{refused}");
    }
    submit(MAX_VALUE, MAX_VALUE).unwrap();
    x.signal(MAX_VALUE).unwrap();
    assert_eq!(y.query().unwrap(), MAX_VALUE);
}

/// A signal of another engine's timeline has to be above its value, too. A failed timeline may be named: the
/// signal is dropped (S1, S9).
#[test]
fn signal_of_a_foreign_timeline_is_above_it_unless_it_has_failed() {
    let (rig, other) = (TestEngine::new(1, NativeWaits::None), TestEngine::new(1, NativeWaits::None));
    let far = other.semaphore();
    far.signal(5).unwrap();
    let nothing: [(Semaphore, u64); 0] = [];
    let submit =
        || rig.engine.submit(Affinity::ANY, &nothing, &[(far.clone(), 5)], Action::Queue(Job::new(1)));
    let refused = submit().unwrap_err().error;
    assert!(matches!(refused, SubmitError::SignalNotAbove { value: 5, current: 5 }), "{refused}");
    far.fail(broken("given up"));
    submit().unwrap();
    rig.run_until_idle();
    assert_eq!(rig.ran(), [1]);
}

/// A refusal gives the action back as it was, so that it can be submitted again (S10).
#[test]
fn refused_action_is_returned_with_its_kind_and_work() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let nothing: [(Semaphore, u64); 0] = [];
    let actions: [fn(Job) -> Action<Job>; 5] =
        [Action::Queue, Action::Host, Action::Early, Action::Marker, Action::Cleanup];
    for (action, id) in actions.into_iter().zip(1..) {
        let submitted = action(Job::new(id));
        let was = std::mem::discriminant(&submitted);
        let refused = rig.engine.submit(Affinity(0), &nothing, &nothing, submitted).unwrap_err();
        assert_eq!(std::mem::discriminant(&refused.action), was, "job {id}: {:?}", refused.action);
        let (Action::Queue(job)
        | Action::Host(job)
        | Action::Early(job)
        | Action::Marker(job)
        | Action::Cleanup(job)) = refused.action
        else {
            panic!("job {id} is not reclaimed");
        };
        assert_eq!(job.id, id);
    }
    let refused = rig.engine.submit(Affinity(0), &nothing, &nothing, Action::Barrier).unwrap_err();
    assert!(matches!(refused.action, Action::Barrier), "{:?}", refused.action);
}

/// Of several timelines that have failed the first in the list of waits is the cause (S2).
#[test]
fn operation_fails_with_the_first_of_its_waits_that_have_failed() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let [open, x, y] = rig.semaphores();
    x.fail(broken("x has failed"));
    y.fail(broken("y has failed"));
    for (waits, cause) in [([&open, &x, &y], "x has failed"), ([&y, &open, &x], "y has failed")] {
        let z = rig.semaphore();
        let waits = waits.map(|timeline| (timeline.clone(), 1));
        rig.engine.submit(Affinity::ANY, &waits, &[(z.clone(), 1)], Action::Barrier).unwrap();
        assert_eq!(z.query().unwrap_err().message(), cause);
    }
}

/// An engine that is shut down says so, whatever else is wrong with a request (S10).
#[test]
fn request_to_an_engine_that_is_shut_down_is_refused_for_that() {
    let rig = TestEngine::new(1, NativeWaits::None);
    rig.engine.shut_down(&SystemClock::new(), Duration::ZERO, Duration::ZERO).unwrap();
    let nothing: [(Semaphore, u64); 0] = [];
    let refused = rig.engine.submit(Affinity(0), &nothing, &nothing, Action::Barrier).unwrap_err();
    assert!(matches!(refused.error, SubmitError::ShutDown), "{}", refused.error);
}

/// While the host tries an early action, one of the two timelines that it waits for fails. The operation fails
/// at once, whatever happens to the other (S3).
#[test]
fn failure_of_one_of_two_waits_while_the_host_is_asked_fails_the_operation() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let [x, y, z] = rig.semaphores();
    let cause = broken("given up");
    rig.job(0, &[], &[(&x, 1)], 1);
    rig.job(0, &[], &[(&y, 1)], 2);
    rig.once(Moment::Early(3), {
        let (x, cause) = (x.clone(), cause.clone());
        move |_| assert!(x.fail(cause))
    });
    rig.submit(0, &[(&x, 1), (&y, 1)], &[(&z, 1)], Action::Early(Job::new(3)));
    assert!(z.query().is_err_and(|failure| failure.same_root(&cause)), "{z:?}");
    assert_eq!(rig.reclaimed(), [3]);
    rig.run_until_idle();
    rig.assert_idle();
}

/// Two operations are done early at one go, for one signal under way. They end in the order in which they came (S2).
#[test]
fn operations_that_are_done_early_together_keep_their_order() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let [x, y] = rig.semaphores();
    for value in 1..=5 {
        let early = Action::Early(Job::new(value).early());
        rig.submit(0, &[(&x, 1)], &[(&y, value)], early);
    }
    rig.job(0, &[], &[(&x, 1)], 6);
    assert_eq!(rig.done_early(), [1, 2, 3, 4, 5]);
    rig.run_until_idle();
    assert_eq!(rig.reclaimed(), [6, 1, 2, 3, 4, 5]);
    assert_eq!(y.query().unwrap(), 5);
    rig.assert_idle();
}

/// A device is lost while most of its queue waits for capacity. The operations that it never had are reclaimed
/// in queue order (S2, S3).
#[test]
fn jobs_that_a_lost_device_never_had_are_reclaimed_in_order() {
    let rig = Devices::new(device(1, NativeWaits::None)).queue_capacity(1).start();
    let jobs: Vec<u64> = (1..=9).collect();
    for &id in &jobs {
        rig.job(0, &[], &[], id);
    }
    rig.lose(&gone());
    let came_back: Vec<u64> = rig.reclaimed().into_iter().filter(|&id| id != 1).collect();
    assert_eq!(came_back, jobs[1..]);
    rig.assert_idle();
}

/// An operation is admitted to a queue that is known to be full. A failure of its wait reaches it all the same,
/// before the work that fills the queue ends (S13).
#[test]
fn failure_reaches_an_operation_admitted_to_a_full_queue() {
    let rig = Devices::new(device(2, NativeWaits::Epochs)).queue_capacity(1).start();
    let [x, y] = rig.semaphores();
    let cause = broken("parity");
    rig.failing_job(1, &[], &[(&x, 1)], 1, &cause);
    // The first takes all the capacity.
    for id in 2..=4 {
        rig.job(0, &[], &[], id);
    }
    rig.job(0, &[(&x, 1)], &[(&y, 1)], 5);
    assert!(rig.step(1) && rig.report(1));
    assert!(y.query().is_err_and(|failure| failure.same_root(&cause)), "{y:?}");
    assert_eq!((rig.reclaimed(), rig.queued(0)), (vec![1, 5], 1));
    rig.run_until_idle();
    rig.assert_idle();
}

/// The same for an operation that is admitted to a long queue, while its device takes long over a submission
/// (S13).
#[test]
fn failure_reaches_an_operation_admitted_to_a_long_queue() {
    within(LIMIT, || {
        let rig = TestEngine::new(2, NativeWaits::Epochs);
        let [x, y] = rig.semaphores();
        let outcome = Arc::new(OnceLock::new());
        rig.failing_job(1, &[], &[(&x, 1)], 1, &broken("parity"));
        rig.once(Moment::SubmitBegins(0), {
            let (rig, outcome) = (rig.clone(), outcome.clone());
            move |devices| {
                for id in 3..=100 {
                    rig.job(0, &[], &[], id);
                }
                rig.job(0, &[(&x, 1)], &[(&y, 1)], 101);
                assert!(devices.step(1) && devices.report(1));
                outcome.set(y.query()).unwrap();
            }
        });
        rig.job(0, &[], &[], 2);
        let outcome = outcome.get().unwrap();
        assert!(outcome.as_ref().is_err_and(|failure| failure.message() == "parity"), "{outcome:?}");
        rig.run_until_idle();
        rig.assert_idle();
    });
}
