// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Timelines whose driver has locks, mistakes and habits of its own (rules S1, S8, S9, S13).

use crate::fake::Fake;
use crate::fake_timeline::{FakeTimeline, TimelineCall};
use crate::rig::{LIMIT, broken, device, eventually, within};
use hal_semaphore::backend::NativeWaits;
use hal_semaphore::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

#[derive(Clone)]
struct Setup(Engine<Fake<FakeTimeline, ()>>);

impl Setup {
    fn new() -> Self {
        Self::with_queues(1)
    }

    fn with_queues(queues: usize) -> Self {
        Self(Fake::new(device(queues, NativeWaits::None)).keeps_deferred().start())
    }

    fn own(&self) -> FakeTimeline {
        FakeTimeline::own(&self.0)
    }

    fn submit(&self, waits: &[(&FakeTimeline, u64)], signals: &[(&FakeTimeline, u64)], action: Action<()>) {
        let owned = |points: &[(&FakeTimeline, u64)]| -> Vec<_> {
            points.iter().map(|(timeline, value)| ((*timeline).clone(), *value)).collect()
        };
        self.0.submit(Affinity::ANY, &owned(waits), &owned(signals), action).unwrap();
    }

    fn report_on(&self, queue: usize, epoch: u64) {
        let queue = self.0.queue(queue).unwrap();
        self.0.backend().complete(queue, epoch);
    }

    fn run_deferred(&self) {
        self.0.backend().run_deferred();
    }

    fn report(&self, epoch: u64, failure: Option<Failure>) {
        let (queue, completer) = (self.0.queue(0).unwrap(), self.0.backend().completer());
        match failure {
            None => completer.complete(queue, epoch).unwrap(),
            Some(failure) => completer.fail(queue, epoch, failure).unwrap(),
        }
    }
}

/// One thread submits and reads the other driver's value, which takes that driver's lock. Another thread holds
/// that lock and notifies the engine of a step. Neither waits for the other: the engine reads without a lock of
/// its own (S8, S9).
#[test]
fn foreign_driver_is_asked_for_a_value_without_a_lock_held() {
    within(LIMIT, || {
        let setup = Setup::new();
        let (x, y) = (FakeTimeline::foreign(), setup.own());
        setup.submit(&[(&x, 1)], &[(&y, 1)], Action::Barrier);
        x.at(TimelineCall::Value, {
            let x = x.0.clone();
            move || {
                let (sender, locked) = mpsc::channel();
                std::thread::spawn(move || x.raise(1, || sender.send(()).unwrap()));
                locked.recv().unwrap();
            }
        });
        setup.submit(&[(&x, 1)], &[(&y, 2)], Action::Barrier);
        eventually("both have ended", || y.value() == 2);
    });
}

/// The engine is shut down while a submission reads the other driver's value. The late submission is refused:
/// nothing would end it any more (S10).
#[test]
fn submission_during_which_the_engine_is_shut_down_is_refused() {
    let setup = Setup::new();
    let (x, y) = (FakeTimeline::foreign(), setup.own());
    x.at(TimelineCall::Value, {
        let engine = setup.0.clone();
        move || engine.shut_down(&VirtualClock::new(), Duration::ZERO, Duration::ZERO).unwrap()
    });
    let refused = setup.0.submit(Affinity::ANY, &[(x, 1)], &[(y.clone(), 1)], Action::Queue(()));
    assert!(matches!(refused, Err(Refused { error: SubmitError::ShutDown, action: Action::Queue(()) })));
    assert_eq!(y.registered().query().unwrap(), 0, "a submission that is refused has changed nothing");
    assert_eq!(setup.0.counts().operations, 0);
}

/// The other driver panics when its value is read. Whatever happens to that submission, its waits do not affect
/// the next one (S1, S9).
#[test]
fn foreign_driver_that_panics_in_value_leaves_no_wait_behind() {
    let setup = Setup::new();
    let [x, y, z] = std::array::from_fn(|_| setup.own());
    let bad = FakeTimeline::foreign();
    bad.at(TimelineCall::Value, || panic!("the other driver panics"));
    let _ = catch_unwind(AssertUnwindSafe(|| setup.submit(&[(&x, 1), (&bad, 1)], &[], Action::Barrier)));
    setup.submit(&[(&z, 1)], &[(&y, 1)], Action::Barrier);
    x.signal(1).unwrap();
    assert_eq!(y.value(), 0, "what it waits for is not signalled");
}

/// Operations that succeed and, after them in the same queue, one that fails signal the same foreign timeline.
/// The deliveries have that order, or a waiter there for the first would see it fail (S1, S9).
#[test]
fn foreign_timeline_gets_a_success_before_the_failure_behind_it() {
    let setup = Setup::new();
    let x = FakeTimeline::foreign();
    setup.submit(&[], &[(&x, 1)], Action::Barrier);
    setup.submit(&[], &[(&x, 2)], Action::Barrier);
    setup.submit(&[], &[(&x, 3)], Action::Queue(()));
    setup.report(1, Some(broken("parity")));
    setup.run_deferred();
    let delivered = x.delivered.lock().unwrap();
    assert!(matches!(&delivered[..], [Ok(1), Ok(2), Err(_)]), "{delivered:?}");
}

/// A barrier signals a slow driver's timeline and a second driver's; a job behind it fails and signals the
/// second one's, while the first driver has not returned. The second gets its deliveries in order, and at once
/// (S1, S9, S13).
#[test]
fn slow_driver_neither_delays_another_one_nor_changes_its_order() {
    within(LIMIT, || {
        let setup = Setup::new();
        let (z, x) = (FakeTimeline::foreign(), FakeTimeline::foreign());
        let (release, released) = mpsc::channel::<()>();
        let (sender, begun) = mpsc::channel();
        z.at(TimelineCall::Deliver, move || {
            sender.send(()).unwrap();
            let _ = released.recv();
        });
        setup.submit(&[], &[(&z, 1), (&x, 1)], Action::Barrier);
        setup.submit(&[], &[(&x, 2)], Action::Queue(()));
        std::thread::scope(|scope| {
            scope.spawn(|| setup.run_deferred());
            begun.recv().unwrap();
            setup.report(1, Some(broken("parity")));
            let delivered = x.delivered.lock().unwrap().clone();
            drop(release);
            assert!(matches!(&delivered[..], [Ok(1), Err(_)]), "{delivered:?}");
        });
        assert!(matches!(&z.delivered.lock().unwrap()[..], [Ok(1)]));
    });
}

/// Four threads report the ends of jobs on four queues. Each job signals a timeline of another driver that is
/// its queue's alone and one that two queues share. Each timeline gets every signal, its own queue's in order,
/// and a job is reclaimed after both deliveries (S5, S9).
#[test]
fn many_threads_deliver_to_other_drivers_in_order() {
    const QUEUES: usize = 4;
    const JOBS: usize = 200;
    within(4 * LIMIT, || {
        let setup = Setup::with_queues(QUEUES);
        let own: Vec<_> = (0..QUEUES).map(|_| FakeTimeline::foreign()).collect();
        let shared: Vec<_> = (0..QUEUES / 2).map(|_| FakeTimeline::foreign()).collect();
        std::thread::scope(|scope| {
            for queue in 0..QUEUES {
                let (own, shared, setup) = (&own[queue], &shared[queue / 2], &setup);
                scope.spawn(move || {
                    for job in 1..=JOBS {
                        // Each job has a value of its own on the shared timeline.
                        let (value, named) = (job as u64, (job * QUEUES + queue) as u64);
                        let signals = [(shared.clone(), named), (own.clone(), value)];
                        let affinity = Affinity::queue(queue);
                        setup.0.submit(affinity, &[], &signals, Action::Queue(())).unwrap();
                        setup.report_on(queue, value);
                    }
                });
            }
        });
        setup.run_deferred();
        for at in &own {
            let delivered: Vec<u64> = at.delivered.lock().unwrap().iter().flatten().copied().collect();
            assert_eq!(delivered, Vec::from_iter(1..=JOBS as u64));
        }
        for (number, at) in shared.iter().enumerate() {
            let delivered: Vec<u64> = at.delivered.lock().unwrap().iter().flatten().copied().collect();
            for queue in [2 * number, 2 * number + 1] {
                let of_queue = delivered.iter().filter(|&&named| named % QUEUES as u64 == queue as u64);
                assert!(of_queue.is_sorted(), "queue {queue}: {delivered:?}");
            }
            assert_eq!(delivered.len(), 2 * JOBS);
        }
        assert_eq!(setup.0.backend().reclaimed(), QUEUES * JOBS);
    });
}

/// A job is reclaimed after the delivery to the other driver, even if another thread makes that (S5).
#[test]
fn work_is_reclaimed_when_its_last_delivery_is_made() {
    within(LIMIT, || {
        let setup = Setup::new();
        let z = FakeTimeline::foreign();
        let (release, released) = mpsc::channel::<()>();
        let (sender, begun) = mpsc::channel();
        z.at(TimelineCall::Deliver, move || {
            sender.send(()).unwrap();
            let _ = released.recv();
        });
        let reclaimed = || setup.0.backend().reclaimed();
        for value in 1..=2 {
            setup.submit(&[], &[(&z, value)], Action::Queue(()));
        }
        std::thread::scope(|scope| {
            scope.spawn(|| setup.report(1, None));
            begun.recv().unwrap();
            // The driver is inside the first delivery: the second waits for its return, and nothing is
            // reclaimed before.
            setup.report(2, None);
            assert_eq!((reclaimed(), z.delivered.lock().unwrap().len()), (0, 0));
            drop(release);
        });
        assert_eq!((reclaimed(), z.delivered.lock().unwrap().len()), (2, 2));
    });
}

/// A timeline's own waiter is slow when it is notified of a job's end. Operations that the same end has
/// released do not wait for it (S13).
#[test]
fn slow_waiter_delays_no_operation_that_waits_for_the_same_value() {
    within(4 * LIMIT, || {
        let setup = Setup::new();
        let (x, y) = (setup.own(), setup.own());
        let (release, released) = mpsc::channel::<()>();
        let (sender, begun) = mpsc::channel();
        x.at(TimelineCall::Notify, move || {
            sender.send(()).unwrap();
            let _ = released.recv();
        });
        setup.submit(&[], &[(&x, 1)], Action::Queue(()));
        setup.submit(&[(&x, 1)], &[(&y, 1)], Action::Host(()));
        std::thread::scope(|scope| {
            scope.spawn(|| setup.report(1, None));
            begun.recv().unwrap();
            let begin = std::time::Instant::now();
            while y.value() == 0 && begin.elapsed() < LIMIT {
                std::thread::yield_now();
            }
            let reached = y.value();
            drop(release);
            assert_eq!(reached, 1, "the host operation stays behind the waiter");
        });
    });
}

/// Two jobs end together, of which only the first signals another driver's timeline. The second is reclaimed
/// without regard to that driver (S9, S13).
#[test]
fn work_without_a_foreign_signal_does_not_wait_for_deliveries() {
    let setup = Setup::new();
    let (x, y) = (FakeTimeline::foreign(), setup.own());
    let reclaimed_at_delivery = Arc::new(OnceLock::new());
    x.at(TimelineCall::Deliver, {
        let (engine, reclaimed_at_delivery) = (setup.0.clone(), reclaimed_at_delivery.clone());
        move || reclaimed_at_delivery.set(engine.backend().reclaimed()).unwrap()
    });
    setup.submit(&[], &[(&x, 1)], Action::Queue(()));
    setup.submit(&[], &[(&y, 1)], Action::Queue(()));
    setup.report(2, None);
    assert_eq!((reclaimed_at_delivery.get(), setup.0.backend().reclaimed()), (Some(&1), 2));
}
