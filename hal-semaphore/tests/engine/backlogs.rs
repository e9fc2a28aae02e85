// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! One operation behind many others in the same queue.
//!
//! A queue routes a bounded number of operations at a time and submits batches in between. So an operation that
//! the device refused may be behind hundreds of others before it ends, and its neighbours must know of the
//! refusal by then (rules S3, S5, S6).

use crate::rig::{ALL_NATIVE_WAITS, Devices, Job, LIMIT, Moment, TestEngine, broken, device, within};
use hal_semaphore::backend::{NativeWaits, Submitted};
use hal_semaphore::timeline::TimelineValues;
use hal_semaphore::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How many values the burst has, and how many operations are released by each.
const BURST: (u64, u64) = (8, 60);

/// The capacity of queue 0.
const ROOM: usize = 4;

/// The number of the job that is refused; the one behind it in the queue waits for it.
const REFUSED: u64 = 5;

/// The first jobs fill queue 0. Behind them are one that signals x, and one that waits for x and signals y.
/// When the first are reported, hundreds of others become runnable on the queue at once, and the device refuses
/// the one that signals x.
struct Backlog {
    rig: TestEngine,
    x: Semaphore,
    y: Semaphore,
}

impl Backlog {
    fn new(native_waits: NativeWaits, refusal: &Failure) -> Self {
        let rig = Devices::new(device(3, native_waits)).queue_capacity(ROOM).start();
        let [released, x, y] = rig.semaphores();
        for id in 1..REFUSED {
            rig.job(0, &[], &[], id);
        }
        rig.job(0, &[], &[(&x, 1)], REFUSED);
        rig.job(0, &[(&x, 1)], &[(&y, 1)], REFUSED + 1);
        let (values, each) = BURST;
        for value in 1..=values {
            for number in 0..each {
                rig.job(0, &[(&released, value)], &[], 1000 * value + number);
            }
        }
        rig.once(Moment::Reclaim(REFUSED - 1), {
            let (rig, refusal) = (rig.clone(), refusal.clone());
            move |devices| {
                devices.answer_next(0, Submitted::failed(0, refusal));
                release_at_once(&rig, &released, values);
            }
        });
        Self { rig, x, y }
    }

    /// Runs `step_in` at the begin of each batch for queue 0 that comes some batches after the refusal and
    /// before its publication. Returns how often that was.
    fn go(&self, step_in: impl Fn(&Devices) + Send + Sync + 'static) -> usize {
        let times = Arc::new(AtomicUsize::new(0));
        self.rig.always(Moment::SubmitBegins(0), {
            let (x, times) = (self.x.clone(), times.clone());
            let earlier = self.rig.batches(0).len();
            move |devices| {
                if devices.batches(0).len() > earlier + 2 && x.query().is_ok() {
                    times.fetch_add(1, Ordering::SeqCst);
                    step_in(devices);
                }
            }
        });
        while self.rig.step(0) {}
        let queue = self.rig.engine.queue(0).unwrap();
        self.rig.completer().complete(queue, REFUSED - 1).unwrap();
        while self.rig.report(0) {}
        self.rig.run_until_idle();
        times.load(Ordering::SeqCst)
    }
}

/// Raises a timeline in steps of one within one call of the engine: each step releases what waits for it.
fn release_at_once(rig: &TestEngine, released: &Semaphore, values: u64) {
    let gate = rig.semaphore();
    for value in 1..=values {
        rig.barrier(2, &[(&gate, 1)], &[(released, value)]);
    }
    gate.signal(1).unwrap();
}

/// An operation that waits for the refused job in the same queue goes to the device with the next batch and is
/// reported at once. Its input was never made: it fails with the cause of the refused job (S3).
#[test]
fn consumer_behind_a_refused_producer_and_a_backlog_fails_with_it() {
    for native_waits in ALL_NATIVE_WAITS {
        within(4 * LIMIT, move || {
            let cause = broken("no such kernel");
            let backlog = Backlog::new(native_waits, &cause);
            let queue = backlog.rig.engine.queue(0).unwrap();
            let times = backlog.go(move |devices| {
                devices.step(0);
                devices.completer().complete(queue, REFUSED + 1).unwrap();
            });
            assert!(times <= 1, "the report finds no waiter to notify");
            assert!(backlog.x.query().unwrap_err().same_root(&cause), "{native_waits:?}");
            let consumer = backlog.y.query();
            assert!(
                consumer.as_ref().is_err_and(|failure| failure.same_root(&cause)),
                "{native_waits:?}: the consumer ended with {consumer:?}"
            );
        });
    }
}

/// A job of another queue waits for the refused one's signal while the refusal is in the backlog. No native
/// wait names the refused job: the device never had it, and its event belongs to another job by now (S6).
#[test]
fn native_wait_never_names_a_refused_job_in_a_backlog() {
    for native_waits in [NativeWaits::Epochs, NativeWaits::Events] {
        within(4 * LIMIT, move || {
            let backlog = Backlog::new(native_waits, &broken("no such kernel"));
            let (rig, x, z) = (backlog.rig.clone(), backlog.x.clone(), backlog.rig.semaphore());
            backlog.go(move |_| {
                rig.job(1, &[(&x, 1)], &[(&z, 1)], 9);
            });
            let refused = Point { queue: backlog.rig.engine.queue(0).unwrap(), epoch: REFUSED };
            let waits = backlog.rig.native_waits();
            assert!(waits.iter().all(|(point, _)| *point != refused), "{native_waits:?}: {waits:?}");
            backlog.rig.assert_idle();
        });
    }
}

/// A thread is inside a slow reclaim. Another one submits to the same queue and does all of the queue's work:
/// nothing is left to the first one (S13).
#[test]
fn thread_inside_reclaim_is_left_no_work() {
    within(LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let [x, y] = rig.semaphores();
        rig.job(0, &[], &[], 1);
        for id in 0..60 {
            rig.job(0, &[(&x, 1)], &[], 100 + id);
            rig.job(0, &[(&y, 1)], &[], 200 + id);
        }
        let (begins, begun) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        rig.once(Moment::Reclaim(1), move |_| {
            begins.send(()).unwrap();
            let _ = released.recv();
        });
        let reports = std::thread::spawn({
            let rig = rig.clone();
            move || assert!(rig.step(0) && rig.report(0))
        });
        begun.recv().unwrap();
        rig.barrier(0, &[], &[(&x, 1), (&y, 1)]);
        let queued = rig.queued(0);
        drop(release);
        reports.join().unwrap();
        assert_eq!(queued, 120, "the rest waits for the reclaim");
    });
}

/// A list of signals that stops the thread which reads it for the second time: the engine reads it once to
/// check it, and then under the lock of the queue.
struct Keeps<'a> {
    signal: (Semaphore, u64),
    reads: AtomicUsize,
    meanwhile: &'a (dyn Fn() + Sync),
}

impl TimelineValues<Semaphore> for Keeps<'_> {
    fn len(&self) -> usize {
        1
    }

    fn get(&self, _index: usize) -> Option<(&Semaphore, u64)> {
        if self.reads.fetch_add(1, Ordering::SeqCst) == 1 {
            (self.meanwhile)();
        }
        Some((&self.signal.0, self.signal.1))
    }
}

/// One thread had to wait for the lock of a queue, and has done its work. Later threads do all of theirs: they
/// leave nothing to a thread that is no longer there (S13).
#[test]
fn thread_that_has_waited_for_a_queue_is_left_no_work_later() {
    within(LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let [x, y, z] = rig.semaphores();
        rig.job(0, &[], &[], 1);
        assert!(rig.step(0));
        std::thread::scope(|scope| {
            let meanwhile = || {
                let (sender, begun) = mpsc::channel();
                let rig = &rig;
                scope.spawn(move || {
                    sender.send(()).unwrap();
                    assert!(rig.report(0));
                });
                begun.recv().unwrap();
                // Until it waits for the lock. Should it need longer it has not waited, and there is less to see.
                std::thread::sleep(Duration::from_millis(20));
            };
            let signals = Keeps { signal: (z.clone(), 1), reads: AtomicUsize::new(0), meanwhile: &meanwhile };
            rig.engine.submit(Affinity::ANY, &[], &signals, Action::Barrier).unwrap();
        });
        for id in 0..60 {
            rig.job(0, &[(&x, 1)], &[], 100 + id);
            rig.job(0, &[(&y, 1)], &[], 200 + id);
        }
        rig.barrier(0, &[], &[(&x, 1), (&y, 1)]);
        assert_eq!(rig.queued(0), 120, "a thread that submits has left something");
        for value in 2..=401 {
            rig.job(0, &[], &[(&z, value)], 300 + value);
        }
        while rig.step(0) {}
        rig.completer().complete(rig.engine.queue(0).unwrap(), 521).unwrap();
        assert_eq!(z.query().unwrap(), 401, "a thread that reports has left something");
    });
}

/// The report of a job releases more operations than one round of their queue takes. A job that is submitted in
/// between, during `try_early` of one of them, does not overtake the released ones (S13).
#[test]
fn submission_during_a_backlog_is_queued_behind_it() {
    let rig = TestEngine::new(2, NativeWaits::None);
    let [first, second, third, x] = rig.semaphores();
    let gates = [&first, &second, &third];
    rig.job(0, &[], &[(&x, 1)], 1);
    rig.submit(0, &[(&x, 1), (&first, 1)], &[], Action::Early(Job::new(2).early()));
    for id in 3..3 + 3 * 60 {
        rig.job(0, &[(gates[(id % 3) as usize], 1)], &[], id);
    }
    rig.job(1, &[], &gates.map(|gate| (gate, 1)), 1000);
    assert!(rig.step(1));
    rig.forget();
    let inside = rig.clone();
    rig.once(Moment::Early(2), move |_| {
        inside.job(0, &[], &[], 2000);
    });
    assert!(rig.report(1));
    rig.run_until_idle();
    assert_eq!((rig.done_early(), rig.ran().len(), rig.ran().last()), (vec![2], 182, Some(&2000)));
}
