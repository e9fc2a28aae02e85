// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Backend calls from inside `submit`: completion, failure and loss of the batch that is being submitted (rules
//! S3, S5, S8).
//!
//! The batch is in flight and has no answer yet. Each test acts right after the first, the middle or the last
//! item of a batch of three was accepted, on devices of every kind, with a consumer on another queue that waits
//! for the batch.

use crate::rig::{self, ALL_NATIVE_WAITS, Devices, Job, LIMIT, Moment, TestEngine, broken, gone, within};
use hal_semaphore::backend::{NativeWaits, Submitted};
use hal_semaphore::*;
use std::sync::{Arc, OnceLock};

/// A batch of three jobs for queue 0, each with a signal of its own, and a job on queue 1 that waits for all three.
struct Batch {
    rig: TestEngine,
    gate: Semaphore,
    signals: [Semaphore; 3],
    consumer: Semaphore,
}

/// The jobs of the batch; the consumer is 4.
const JOBS: [u64; 3] = [1, 2, 3];

impl Batch {
    fn new(native_waits: NativeWaits, job: impl Fn(u64) -> Job) -> Self {
        let rig = TestEngine::new(2, native_waits);
        let [gate, consumer] = rig.semaphores();
        let signals: [Semaphore; 3] = rig.semaphores();
        for (id, signal) in JOBS.into_iter().zip(&signals) {
            rig.submit(0, &[(&gate, 1)], &[(signal, 1)], Action::Queue(job(id)));
        }
        let waits: Vec<_> = signals.iter().map(|signal| (signal, 1)).collect();
        rig.job(1, &waits, &[(&consumer, 1)], 4);
        Self { rig, gate, signals, consumer }
    }

    /// Hands the batch to the device.
    fn go(&self) {
        self.gate.signal(1).unwrap();
        assert_eq!(self.rig.batches(0).first(), Some(&3), "the test is about a batch of three");
    }

    /// Runs what is left, and checks that everything has ended once.
    fn finish(&self, case: &str) {
        self.rig.run_until_idle();
        self.rig.assert_idle();
        let mut reclaimed = self.rig.reclaimed();
        reclaimed.sort_unstable();
        assert_eq!(reclaimed, [1, 2, 3, 4], "{case}: each job is reclaimed once");
    }

    /// Each signal: `Ok`, or the failure's message.
    fn outcomes(&self) -> [Result<u64, String>; 3] {
        self.signals.each_ref().map(|signal| signal.query().map_err(|failure| failure.message().to_owned()))
    }
}

fn each_case(check: impl Fn(NativeWaits, usize, &str) + Copy + Send + 'static) {
    for native_waits in ALL_NATIVE_WAITS {
        for position in 0..3 {
            let case = format!("{native_waits:?}, after item {} of 3", position + 1);
            within(LIMIT, move || check(native_waits, position, &case));
        }
    }
}

/// The first items run and are reported while the rest of their batch is still being accepted. They succeed,
/// and so do later ones (S2, S5).
#[test]
fn completion_between_two_items_of_a_batch_counts() {
    each_case(|native_waits, position, case| {
        let batch = Batch::new(native_waits, Job::new);
        batch
            .rig
            .once(Moment::Taken(JOBS[position]), |devices| while devices.step(0) && devices.report(0) {});
        batch.go();
        for signal in &batch.signals[..=position] {
            assert_eq!(signal.query().unwrap(), 1, "{case}: completed inside submit");
        }
        batch.finish(case);
        assert_eq!((batch.outcomes(), batch.consumer.query().unwrap()), ([Ok(1), Ok(1), Ok(1)], 1), "{case}");
        assert_eq!(batch.rig.ran(), [1, 2, 3, 4], "{case}");
    });
}

/// An item is reported as failed before the rest of its batch is accepted: its own signal fails, its
/// neighbours' do not, and the consumer fails with its cause (S3).
#[test]
fn failure_between_two_items_of_a_batch_stays_with_its_item() {
    each_case(|native_waits, position, case| {
        let batch = Batch::new(native_waits, move |id| {
            let job = Job::new(id);
            if id == JOBS[position] { job.fails(&broken("parity")) } else { job }
        });
        batch
            .rig
            .once(Moment::Taken(JOBS[position]), |devices| while devices.step(0) && devices.report(0) {});
        batch.go();
        batch.finish(case);
        let mut expected = [Ok(1), Ok(1), Ok(1)];
        expected[position] = Err("parity".to_owned());
        assert_eq!(batch.outcomes(), expected, "{case}");
        assert_eq!(batch.consumer.query().unwrap_err().message(), "parity", "{case}");
    });
}

/// The device is lost while it accepts a batch. The whole batch fails with that one cause, and is reclaimed
/// (S3, S5).
#[test]
fn loss_between_two_items_of_a_batch_fails_the_batch() {
    each_case(|native_waits, position, case| {
        let batch = Batch::new(native_waits, Job::new);
        batch.rig.once(Moment::Taken(JOBS[position]), |devices| devices.lose(&broken("bus error")));
        batch.go();
        batch.finish(case);
        let cause = batch.rig.engine.lost().unwrap();
        assert_eq!(cause.message(), "bus error", "{case}: the first cause is the cause");
        for signal in batch.signals.iter().chain([&batch.consumer]) {
            assert!(signal.query().unwrap_err().same_root(&cause), "{case}");
        }
        assert!(batch.rig.ran().is_empty(), "{case}");
    });
}

/// Items that were reported as completed inside `submit` have completed, though their device is lost before
/// `submit` returns. The rest fails (S3, S5).
#[test]
fn loss_after_completion_inside_submit_spares_what_was_reported() {
    each_case(|native_waits, position, case| {
        let batch = Batch::new(native_waits, Job::new);
        batch.rig.once(Moment::Taken(JOBS[position]), |devices| {
            while devices.step(0) && devices.report(0) {}
            devices.lose(&broken("bus error"));
        });
        batch.go();
        batch.finish(case);
        for (index, outcome) in batch.outcomes().into_iter().enumerate() {
            let expected = if index <= position { Ok(1) } else { Err("bus error".to_owned()) };
            assert_eq!(outcome, expected, "{case}: item {}", index + 1);
        }
        assert_eq!(batch.consumer.query().unwrap_err().message(), "bus error", "{case}");
    });
}

/// The device refuses an item: it fails, and those before and after it run in order (S3).
#[test]
fn refused_item_of_a_batch_fails_alone() {
    each_case(|native_waits, position, case| {
        let batch = Batch::new(native_waits, move |id| {
            let job = Job::new(id);
            if id == JOBS[position] { job.refused(&broken("no such kernel")) } else { job }
        });
        batch.go();
        batch.finish(case);
        let mut expected = [Ok(1), Ok(1), Ok(1)];
        expected[position] = Err("no such kernel".to_owned());
        assert_eq!(batch.outcomes(), expected, "{case}");
        assert_eq!(batch.rig.ran().len(), 2, "{case}");
    });
}

/// The first items complete inside `submit`, and then the device is full. Nothing is lost and nothing runs
/// twice (S5, S13).
#[test]
fn full_answer_after_completion_inside_submit_loses_nothing() {
    for native_waits in ALL_NATIVE_WAITS {
        for capacity in 1..=3 {
            within(LIMIT, move || {
                let rig = Devices::new(rig::device(2, native_waits)).queue_capacity(capacity).start();
                let [gate, x, y] = rig.semaphores();
                for id in 1..=9 {
                    rig.job(0, &[(&gate, 1)], &[(&x, id)], id);
                }
                rig.job(1, &[(&x, 9)], &[(&y, 1)], 10);
                rig.always(Moment::SubmitEnds(0), |devices| while devices.step(0) && devices.report(0) {});
                gate.signal(1).unwrap();
                rig.run_until_idle();
                assert_eq!((x.query().unwrap(), y.query().unwrap()), (9, 1), "capacity for {capacity}");
                assert_eq!(rig.ran(), (1..=10).collect::<Vec<_>>(), "capacity for {capacity}");
                rig.assert_idle();
            });
        }
    }
}

/// Nothing of a batch was taken and the device answers that it is lost: everything fails with that cause (S3).
#[test]
fn lost_answer_fails_the_whole_batch() {
    for native_waits in ALL_NATIVE_WAITS {
        within(LIMIT, move || {
            let batch = Batch::new(native_waits, Job::new);
            let cause = gone();
            batch.rig.answer_next(0, Submitted::lost(cause.clone()));
            batch.go();
            batch.finish("lost");
            for signal in batch.signals.iter().chain([&batch.consumer]) {
                assert!(signal.query().unwrap_err().same_root(&cause), "{native_waits:?}");
            }
        });
    }
}

/// Reports may overtake each other on their way to the engine. A later one that says less takes nothing back (S5).
#[test]
fn stale_report_inside_submit_changes_nothing() {
    within(LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let [x, y] = rig.semaphores();
        for value in 1..=3 {
            rig.job(0, &[], &[(&x, value)], value);
        }
        let queue = rig.engine.queue(0).unwrap();
        rig.once(Moment::SubmitEnds(0), move |devices| {
            devices.completer().complete(queue, 4).unwrap();
            devices.completer().complete(queue, 2).unwrap();
        });
        rig.job(0, &[], &[(&y, 1)], 4);
        assert_eq!((x.query().unwrap(), y.query().unwrap()), (3, 1));
        rig.assert_idle();
    });
}

/// The backend submits to the queue whose submission it is inside of. That work is next, after the batch (S2, S8).
#[test]
fn submission_from_inside_submit_is_next_in_its_queue() {
    for native_waits in ALL_NATIVE_WAITS {
        within(LIMIT, move || {
            let rig = TestEngine::new(2, native_waits);
            let [x, y] = rig.semaphores();
            rig.once(Moment::Taken(1), {
                let (rig, x, y) = (rig.clone(), x.clone(), y.clone());
                move |_| {
                    rig.job(0, &[(&x, 1)], &[(&x, 2)], 2);
                    rig.job(1, &[(&x, 1)], &[(&y, 1)], 3);
                }
            });
            rig.job(0, &[], &[(&x, 1)], 1);
            rig.run_until_idle();
            assert_eq!((x.query().unwrap(), y.query().unwrap()), (2, 1), "{native_waits:?}");
            rig.assert_idle();
        });
    }
}

/// The state of a backend that panics is unknown, so its device is lost, also if it only made an event (S3,
/// S8).
#[test]
fn panic_while_an_event_is_made_loses_the_device() {
    within(LIMIT, || {
        let rig = TestEngine::new(2, NativeWaits::Events);
        let x = rig.semaphore();
        rig.once(Moment::EventCreation, |_| panic!("the driver panics"));
        rig.job(0, &[], &[(&x, 1)], 1);
        let cause = rig.engine.lost().expect("the device is lost");
        assert_eq!((cause.code(), rig.engine.counts().panics), (Code::Internal, 1));
        assert!(x.query().unwrap_err().same_root(&cause));
        rig.assert_idle();
    });
}

/// Items are reported as completed inside `submit`, which then answers that the device is lost: like a reported
/// loss, and completed work has completed (S3, S5).
#[test]
fn lost_answer_after_completion_inside_submit_spares_what_was_reported() {
    each_case(|native_waits, position, case| {
        let batch = Batch::new(native_waits, Job::new);
        batch
            .rig
            .once(Moment::Taken(JOBS[position]), |devices| while devices.step(0) && devices.report(0) {});
        batch.rig.answer_last(0, Submitted::lost(broken("bus error")));
        batch.go();
        batch.finish(case);
        for (index, outcome) in batch.outcomes().into_iter().enumerate() {
            let expected = if index <= position { Ok(1) } else { Err("bus error".to_owned()) };
            assert_eq!(outcome, expected, "{case}: item {}", index + 1);
        }
    });
}

/// The device reports a whole batch and then answers that it is lost. The reported work has succeeded, and the
/// device is lost all the same (S3).
#[test]
fn loss_behind_a_reported_batch_is_recorded() {
    for native_waits in ALL_NATIVE_WAITS {
        let batch = Batch::new(native_waits, Job::new);
        batch.rig.once(Moment::SubmitEnds(0), |devices| while devices.step(0) && devices.report(0) {});
        batch.rig.answer_last(0, Submitted::lost(gone()));
        batch.go();
        assert_eq!(batch.outcomes(), [Ok(1), Ok(1), Ok(1)], "{native_waits:?}");
        assert!(batch.rig.engine.lost().is_some(), "{native_waits:?}");
    }
}

/// While the device accepts a job, an earlier one is reported. That one ends at once, however long the device
/// takes (S13).
#[test]
fn report_of_an_earlier_job_inside_submit_ends_it_at_once() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let [x, y] = rig.semaphores();
    rig.job(0, &[], &[(&x, 1)], 1);
    let seen = Arc::new(OnceLock::new());
    rig.once(Moment::Taken(2), {
        let (x, seen) = (x.clone(), seen.clone());
        move |devices| {
            assert!(devices.step(0) && devices.report(0));
            seen.set(x.query().unwrap()).unwrap();
        }
    });
    rig.job(0, &[], &[(&y, 1)], 2);
    assert_eq!(seen.get(), Some(&1));
    rig.run_until_idle();
    assert_eq!(y.query().unwrap(), 1);
}

/// While the device accepts a job, it is lost and then reports the job before. That one succeeds; the other is
/// still with the device, and is reclaimed only after `submit` has returned (S5).
#[test]
fn job_on_its_way_to_a_lost_device_is_reclaimed_after_submit() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let [x, y] = rig.semaphores();
    rig.job(0, &[], &[(&x, 1)], 1);
    let queue = rig.engine.queue(0).unwrap();
    let seen = Arc::new(OnceLock::new());
    rig.once(Moment::Taken(2), {
        let seen = seen.clone();
        move |devices| {
            devices.completer().lose(gone()).unwrap();
            devices.completer().complete(queue, 1).unwrap();
            seen.set(devices.reclaimed()).unwrap();
        }
    });
    rig.job(0, &[], &[(&y, 1)], 2);
    assert_eq!((seen.get(), rig.reclaimed()), (Some(&vec![1]), vec![1, 2]));
    assert_eq!((x.query().unwrap(), y.query().unwrap_err().code()), (1, Code::Unavailable));
}
