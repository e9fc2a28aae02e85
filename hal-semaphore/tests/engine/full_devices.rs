// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Devices with little capacity: nothing is lost, nothing spins, and a full queue delays only its dependants
//! (rules S4, S13).

use crate::callbacks::deep_inside;
use crate::rig::{Devices, LIMIT, Moment, TestEngine, broken, device, within};
use hal_semaphore::backend::{NativeWaits, Submitted};
use hal_semaphore::{Code, CompletionError};

/// The queues of a device share its capacity. It answers "full" to one of them, and before the engine has
/// applied the answer a job of the other one ends: the report must count, or the queue waits although there is
/// capacity (S13).
#[test]
fn report_during_a_full_answer_is_not_forgotten() {
    let rig = Devices::new(device(2, NativeWaits::None)).device_capacity(2).start();
    let [a, b, c] = rig.semaphores();
    rig.job(1, &[], &[(&a, 1)], 1);
    rig.job(1, &[], &[(&b, 1)], 2);
    rig.once(Moment::SubmitEnds(0), |devices| {
        assert!(devices.step(1) && devices.report(1));
    });
    rig.job(0, &[], &[(&c, 1)], 3);
    assert_eq!(a.query().unwrap(), 1);
    assert_eq!(rig.queued(0), 1, "there is capacity, and the queue does not try again");
    rig.run_until_idle();
    assert_eq!(c.query().unwrap(), 1);
}

/// The same for a device that calls `unblock` (S13).
#[test]
fn unblock_during_a_full_answer_is_not_forgotten() {
    let rig = Devices::new(device(2, NativeWaits::None)).device_capacity(2).start();
    let [a, c] = rig.semaphores();
    rig.job(1, &[], &[(&a, 1)], 1);
    // Before a device has ever been full nothing of the kind is counted, and afterwards all of it is.
    for round in 1..=2 {
        rig.once(Moment::SubmitBegins(0), |devices| devices.completer().unblock().unwrap());
        rig.answer_next(0, Submitted::full(0));
        rig.job(0, &[], &[(&c, round)], 1 + round);
        assert_eq!(rig.queued(0), 1, "round {round}: the device has called unblock");
        assert!(rig.step(0) && rig.report(0));
    }
}

/// The capacity that a queue waits for appears inside the very `submit` that finds none: the queue's own
/// earlier job ends there (S13).
#[test]
fn report_of_the_queues_own_job_during_a_full_answer_is_not_forgotten() {
    let rig = Devices::new(device(1, NativeWaits::None)).queue_capacity(1).start();
    let [x, y] = rig.semaphores();
    rig.job(0, &[], &[(&x, 1)], 1);
    rig.once(Moment::SubmitEnds(0), |devices| {
        assert!(devices.step(0) && devices.report(0));
    });
    rig.job(0, &[], &[(&y, 1)], 2);
    rig.run_until_idle();
    assert_eq!((x.query().unwrap(), y.query().unwrap()), (1, 1));
}

/// A job is reported before its producer: it does not end yet, and its place on the device is free. The queue
/// that needs the place does not wait for the producer's report (S13).
#[test]
fn report_of_a_gated_job_frees_capacity() {
    let rig = Devices::new(device(3, NativeWaits::Epochs)).device_capacity(2).start();
    let [x, y, z] = rig.semaphores();
    rig.job(0, &[], &[(&x, 1)], 1);
    rig.job(1, &[(&x, 1)], &[(&y, 1)], 2);
    rig.job(2, &[], &[(&z, 1)], 3);
    assert_eq!(rig.queued(2), 0, "the two others have all the capacity");
    assert!(rig.step(0) && rig.step(1) && rig.report(1));
    assert_eq!(y.query().unwrap(), 0, "its producer has not been reported");
    assert_eq!(rig.queued(2), 1, "there is capacity, and the queue does not try again");
}

/// A queue has only a barrier on its device, which waits for another queue's report, and the shared capacity is
/// taken. The barrier could seem to end at any moment, but trying again and again does not help: `submit`
/// returns (S4, S7).
#[test]
fn submit_returns_from_a_full_device_behind_a_gated_barrier() {
    within(LIMIT, || {
        let rig = Devices::new(device(3, NativeWaits::Events)).device_capacity(2).start();
        let [y, z, x, long] = rig.semaphores();
        rig.job(1, &[], &[(&y, 1), (&z, 1)], 1);
        rig.job(0, &[(&y, 1)], &[], 2);
        assert!(rig.step(1) && rig.step(0));
        y.fail(broken("the program gives y up"));
        rig.report(0);
        // Job 1 has run and is not reported: the barrier waits for that.
        rig.barrier(0, &[(&z, 1)], &[(&x, 1)]);
        rig.job(2, &[], &[(&long, 1)], 3);
        rig.job(2, &[], &[(&long, 2)], 4);
        rig.job(0, &[], &[(&x, 2)], 5);
        rig.run_until_idle();
        assert_eq!((x.query().unwrap(), long.query().unwrap()), (2, 2));
        rig.assert_idle();
    });
}

/// The same for a thread that reports: its report releases an operation for a full device, and the thread must
/// return to its own device (S7, S13).
#[test]
fn report_returns_from_a_full_device_behind_a_gated_barrier() {
    within(LIMIT, || {
        let rig = Devices::new(device(3, NativeWaits::Epochs)).device_capacity(2).start();
        let other = TestEngine::new(1, NativeWaits::None);
        let ([y, z, x, long], elsewhere) = (rig.semaphores(), other.semaphore());
        rig.job(1, &[], &[(&y, 1), (&z, 1)], 1);
        rig.job(0, &[(&y, 1)], &[], 2);
        assert!(rig.step(1) && rig.step(0));
        y.signal(1).unwrap();
        rig.report(0);
        rig.barrier(0, &[(&z, 1)], &[(&x, 1)]);
        rig.job(0, &[(&elsewhere, 1)], &[(&x, 2)], 3);
        other.job(0, &[], &[(&elsewhere, 1)], 4);
        rig.job(2, &[], &[(&long, 1)], 5);
        rig.job(2, &[], &[(&long, 2)], 6);
        // The other engine releases job 3, for which there is no capacity.
        assert!(other.step(0) && other.report(0));
        assert_eq!(rig.queued(0), 0);
        rig.run_until_idle();
        assert_eq!((x.query().unwrap(), long.query().unwrap()), (2, 2));
        rig.assert_idle();
    });
}

/// A queued operation of a full queue has not started. If its wait fails, it fails at once, without the long
/// job that fills the queue (S13).
#[test]
fn failure_reaches_an_operation_behind_a_full_queue() {
    let rig = Devices::new(device(2, NativeWaits::Events)).queue_capacity(1).start();
    let [x, y, long] = rig.semaphores();
    let cause = broken("parity");
    rig.job(0, &[], &[(&long, 1)], 1);
    rig.failing_job(1, &[], &[(&x, 1)], 2, &cause);
    rig.job(0, &[(&x, 1)], &[(&y, 1)], 3);
    assert!(rig.step(1) && rig.report(1));
    assert!(x.query().is_err());
    assert!(y.query().is_err_and(|failure| failure.same_root(&cause)), "y: {y:?}");
    assert_eq!(rig.reclaimed(), [2, 3]);
    rig.run_until_idle();
    assert_eq!((long.query().unwrap(), rig.ran()), (1, vec![2, 1]));
}

/// The same for an operation that is admitted when the queue is full already, and for each of very many that
/// were admitted during the submission (S13).
#[test]
fn failure_reaches_every_operation_behind_a_full_queue() {
    let rig = Devices::new(device(2, NativeWaits::Epochs)).queue_capacity(1).start();
    let x = rig.semaphore();
    rig.failing_job(1, &[], &[(&x, 1)], 1, &broken("parity"));
    rig.job(0, &[], &[], 2);
    rig.once(Moment::SubmitBegins(0), {
        let (rig, x) = (rig.clone(), x.clone());
        move |_| {
            for id in 10..210 {
                rig.job(0, &[(&x, 1)], &[], id);
            }
        }
    });
    rig.job(0, &[(&x, 1)], &[], 3);
    rig.job(0, &[(&x, 1)], &[], 4);
    assert!(rig.step(1) && rig.report(1));
    assert_eq!(rig.reclaimed().len(), 203, "each but job 2 has ended");
    rig.run_until_idle();
    assert_eq!(rig.ran(), [1, 2]);
    rig.assert_idle();
}

/// A queue with work of its own on a full device is about to be notified of that when a job of another queue ends. It
/// tries again at once (S13).
#[test]
fn report_during_a_full_answer_counts_for_a_queue_with_work_on_the_device() {
    let rig = Devices::new(device(2, NativeWaits::None)).device_capacity(2).start();
    // Before a device has ever been full reports are not counted, and afterwards they are.
    for round in 1..=2 {
        rig.job(0, &[], &[], 10 * round);
        rig.job(1, &[], &[], 10 * round + 1);
        rig.once(Moment::SubmitEnds(0), |devices| {
            assert!(devices.step(1) && devices.report(1));
        });
        rig.job(0, &[], &[], 10 * round + 2);
        assert_eq!(rig.queued(0), 2, "round {round}: there is capacity, and the queue does not try again");
        rig.run_until_idle();
    }
}

/// Two jobs return from an idle device that is full all the same. The first is more than it can take, and
/// fails; it takes the second (S13).
#[test]
fn first_of_the_jobs_that_an_empty_device_cannot_take_fails() {
    let rig = Devices::new(device(1, NativeWaits::None)).start();
    let [gate, x, y] = rig.semaphores();
    rig.job(0, &[(&gate, 1)], &[(&x, 1)], 1);
    rig.job(0, &[(&gate, 1)], &[(&y, 1)], 2);
    (0..2).for_each(|_| rig.answer_next(0, Submitted::full(0)));
    gate.signal(1).unwrap();
    rig.run_until_idle();
    assert!(x.query().is_err_and(|failure| failure.code() == Code::ResourceExhausted), "x: {x:?}");
    assert_eq!((y.query().unwrap(), rig.ran()), (1, vec![2]));
    rig.assert_idle();
}

/// Many jobs are behind a full queue. However many there are, one submission carries at most 64 of them (S13).
#[test]
fn submission_behind_a_full_queue_carries_a_bounded_number_of_jobs() {
    let rig = Devices::new(device(1, NativeWaits::None)).queue_capacity(16).start();
    for id in 1..=400 {
        rig.job(0, &[], &[], id);
    }
    rig.run_until_idle();
    assert_eq!(rig.ran().len(), 400);
    let batches = rig.batches(0);
    assert!(batches.iter().all(|&jobs| jobs <= 64), "{batches:?}");
}

/// Queues that share their device's capacity make progress however small it is, and everything keeps its order
/// (S2, S13).
#[test]
fn queues_that_share_little_capacity_all_finish() {
    for capacity in 1..=3 {
        within(LIMIT, move || {
            let rig = Devices::new(device(3, NativeWaits::Events)).device_capacity(capacity).start();
            let [x, y, z] = rig.semaphores();
            for value in 1..=20 {
                rig.job(0, &[(&z, value - 1)], &[(&x, value)], value);
                rig.job(1, &[(&x, value)], &[(&y, value)], 100 + value);
                rig.job(2, &[(&y, value)], &[(&z, value)], 200 + value);
            }
            rig.run_until_idle();
            assert_eq!(z.query().unwrap(), 20, "with capacity for {capacity}");
            rig.assert_idle();
        });
    }
}

/// A device has no capacity at all. Each job fails with that, and none is left behind the first (S13).
#[test]
fn device_without_any_capacity_fails_each_job() {
    let rig = Devices::new(device(1, NativeWaits::None)).queue_capacity(0).start();
    for id in 1..=3 {
        let x = rig.semaphore();
        rig.job(0, &[], &[(&x, 1)], id);
        assert!(x.query().is_err_and(|failure| failure.code() == Code::ResourceExhausted), "job {id}: {x:?}");
    }
    rig.assert_idle();
}

/// A job returned from a full device. A report of it is a mistake of the backend, and is refused: the job has
/// yet to run (S5).
#[test]
fn report_of_a_returned_job_is_refused() {
    let rig = Devices::new(device(1, NativeWaits::None)).queue_capacity(1).start();
    let x = rig.semaphore();
    rig.job(0, &[], &[], 1);
    rig.job(0, &[], &[(&x, 1)], 2);
    let queue = rig.engine.queue(0).expect("the queue exists");
    let mistake = CompletionError::NotSubmitted { queue, epoch: 2, submitted: 1 };
    assert_eq!(rig.completer().complete(queue, 2), Err(mistake));
    assert!(rig.step(0) && rig.report(0));
    assert_eq!(x.query().unwrap(), 0, "job 2 has not run");
    rig.run_until_idle();
    assert_eq!((x.query().unwrap(), rig.ran()), (1, vec![1, 2]));
}

/// A device with capacity for sixteen jobs ends one after the other. The queue does not offer more after each
/// end, most of which would return: once the device has been full, it is tried again when a fair part of its
/// jobs has ended (S13).
#[test]
fn full_device_is_not_tried_again_for_each_job_that_ends() {
    let rig = Devices::new(device(1, NativeWaits::None)).queue_capacity(16).start();
    let x = rig.semaphore();
    let jobs = 400;
    for value in 1..=jobs {
        rig.job(0, &[], &[(&x, value)], value);
    }
    while rig.step(0) {
        assert!(rig.report(0));
    }
    assert_eq!(x.query().unwrap(), jobs);
    let offered: usize = rig.batches(0).iter().sum();
    assert!(offered <= 400 + 400 / 3, "{offered} were offered: {:?}", rig.batches(0));
}

/// A device with capacity for one job gets more. Jobs that are submitted one by one, and accepted at once, show
/// how much: a later burst is handed over together, without trying the capacity step by step (S13).
#[test]
fn jobs_taken_one_by_one_show_the_capacity() {
    let rig = Devices::new(device(1, NativeWaits::None)).start();
    let gate = rig.semaphore();
    rig.job(0, &[], &[], 1);
    // The first time the engine tries once more.
    rig.answer_next(0, Submitted::full(0));
    rig.answer_next(0, Submitted::full(0));
    rig.job(0, &[], &[], 2);
    assert_eq!(rig.queued(0), 1, "the device has been full");
    rig.run_until_idle();
    for id in 10..50 {
        rig.job(0, &[], &[], id);
    }
    assert_eq!(rig.queued(0), 40);
    for id in 50..82 {
        rig.job(0, &[(&gate, 1)], &[], id);
    }
    rig.run_until_idle();
    let before = rig.batches(0).len();
    gate.signal(1).unwrap();
    assert_eq!(rig.batches(0).get(before..), Some(&[32][..]));
}

/// A job is submitted deep inside other calls, so that its full queue takes it when those return. Its wait has
/// failed by then: it fails at once, and does not wait for capacity (S3).
#[test]
fn pending_job_of_a_full_queue_whose_wait_fails_fails_at_once() {
    let rig = Devices::new(device(2, NativeWaits::Epochs)).queue_capacity(1).start();
    let [x, y] = rig.semaphores();
    rig.job(1, &[], &[(&x, 1)], 1);
    rig.job(0, &[], &[], 2);
    rig.job(0, &[], &[], 3);
    let cause = broken("given up");
    deep_inside(&rig, {
        let (rig, x, y, cause) = (rig.clone(), x.clone(), y.clone(), cause.clone());
        move || {
            rig.job(0, &[(&x, 1)], &[(&y, 1)], 4);
            x.fail(cause);
        }
    });
    assert!(y.query().unwrap_err().same_root(&cause), "{y:?}");
    rig.run_until_idle();
    assert!(!rig.ran().contains(&4), "{:?}", rig.ran());
    rig.assert_idle();
}
