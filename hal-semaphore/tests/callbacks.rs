//! Callbacks: on whose thread they run, and what a slow one may delay (rules S8, S13).
//!
//! A program may hold a lock of its own while it submits and take the same lock in a callback. So a callback never runs
//! on a thread that is inside `submit`, whatever made it due. And a callback may take its time, or wait for the host:
//! only what depends on it waits with it.
#![cfg(not(any(loom, shuttle)))]
#![expect(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

#[path = "common/rig.rs"]
mod rig;

use hal_semaphore::backend::{
    Backend, Batch, Completer, Completion, Deferred, DeviceSpec, NativeWaits, Submitted,
};
use hal_semaphore::*;
use rig::{Devices, Job, LIMIT, Moment, Rig, broken, device, eventually, gone, within};
use std::cell::RefCell;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

/// Subscribes with a callback that takes the program's lock, holds that lock while `submit` makes the callback due, and
/// expects the callback afterwards.
fn lock_held_across(submit: impl FnOnce(&Rig, &Semaphore) + Send + 'static) {
    within(LIMIT, move || {
        let rig = Rig::new(1, NativeWaits::None);
        let x = rig.semaphore();
        let calls = Arc::new(Mutex::new(0));
        let _subscription = x.subscribe(1, {
            let calls = calls.clone();
            move |_| *calls.lock().unwrap() += 1
        });
        let held = calls.lock().unwrap();
        submit(&rig, &x);
        drop(held);
        eventually("the callback has run", || *calls.lock().unwrap() == 1);
    });
}

/// The barrier's waits are reached: it ends inside `submit` (S8).
#[test]
fn lock_held_for_a_barrier_that_ends_at_once_is_free_for_its_callback() {
    lock_held_across(|rig, x| {
        rig.barrier(0, &[], &[(x, 1)]);
    });
}

/// The device runs and reports the job before its `submit` returns (S8).
#[test]
fn lock_held_for_a_job_that_completes_at_once_is_free_for_its_callback() {
    lock_held_across(|rig, x| {
        rig.always(Moment::SubmitEnds(0), Devices::settle);
        rig.job(0, &[], &[(x, 1)], 1);
    });
}

/// The device cannot take the job, which fails inside `submit` (S8).
#[test]
fn lock_held_for_a_job_that_is_refused_is_free_for_its_callback() {
    lock_held_across(|rig, x| {
        let job = Job::new(1).refused(&broken("no such kernel"));
        rig.submit(0, &[], &[(x, 1)], Action::Queue(job));
    });
}

/// What the job waits for has failed: the job fails inside `submit` (S8).
#[test]
fn lock_held_for_a_job_whose_wait_has_failed_is_free_for_its_callback() {
    lock_held_across(|rig, x| {
        let failed = rig.semaphore();
        failed.fail(broken("given up"));
        rig.job(0, &[(&failed, 1)], &[(x, 1)], 1);
    });
}

/// The device is found lost by the very submission (S8).
#[test]
fn lock_held_for_a_job_whose_device_is_lost_is_free_for_its_callback() {
    lock_held_across(|rig, x| {
        rig.once(Moment::SubmitBegins(0), |devices| devices.lose(0, &gone()));
        rig.job(0, &[], &[(x, 1)], 1);
    });
}

/// The operation signals a semaphore of another engine, whose callbacks are the program's as well (S8, S9).
#[test]
fn lock_held_for_a_foreign_signal_is_free_for_its_callback() {
    lock_held_across(|_, x| {
        let other = Rig::new(1, NativeWaits::None);
        other.barrier(0, &[], &[(x, 1)]);
    });
}

/// The thread that submits also completes work of somebody else, whose callback becomes due on it (S8).
#[test]
fn lock_held_for_a_submission_is_free_for_callbacks_of_other_work() {
    lock_held_across(|rig, x| {
        rig.job(0, &[], &[(x, 1)], 1);
        rig.once(Moment::SubmitEnds(0), Devices::settle);
        let y = rig.semaphore();
        rig.job(0, &[], &[(&y, 1)], 2);
    });
}

/// A callback submits from a thread that is no longer inside any `submit`: that is an ordinary submission, and its own
/// callbacks come, too (S8).
#[test]
fn callback_that_submits_gets_its_own_callback() {
    within(LIMIT, || {
        let rig = Rig::new(1, NativeWaits::None);
        let [x, y] = rig.semaphores();
        let (sender, receiver) = mpsc::channel();
        let _outer = x.subscribe(1, {
            let (rig, y) = (rig.clone(), y.clone());
            move |_| {
                rig.barrier(0, &[], &[(&y, 1)]);
            }
        });
        let _inner = y.subscribe(1, move |state| sender.send(state.unwrap()).unwrap());
        rig.barrier(0, &[], &[(&x, 1)]);
        assert_eq!(receiver.recv().unwrap(), 1);
    });
}

/// Signals `slow`, whose callback blocks until the returned sender is dropped, on a thread of its own.
fn block_in_callback(slow: &Semaphore) -> mpsc::Sender<()> {
    let (begun, begins) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let subscription = slow.subscribe(1, move |_| {
        begun.send(()).unwrap();
        // An error means that the test is over, which is as good.
        let _ = released.recv();
    });
    let slow = slow.clone();
    std::thread::spawn(move || {
        slow.signal(1).unwrap();
        drop(subscription);
    });
    begins.recv().unwrap();
    release
}

/// While one callback takes its time an unrelated operation is submitted, completes and is signalled (S13).
#[test]
fn slow_callback_delays_no_unrelated_operation() {
    within(LIMIT + LIMIT, || {
        let rig = Devices::new(vec![device(1, NativeWaits::None), device(1, NativeWaits::None)]).start();
        let [slow, x, y] = rig.semaphores();
        let release = block_in_callback(&slow);
        rig.job(1, &[], &[(&x, 1)], 1);
        rig.settle();
        rig.barrier(0, &[(&x, 1)], &[(&y, 1)]);
        eventually("unrelated signals are out", || y.query().unwrap() == 1);
        rig.engine.wait(WaitMode::All, &[(x, 1)], &SystemClock::new(), Some(LIMIT)).unwrap();
        eventually("unrelated work has come back", || rig.reclaimed() == [1]);
        drop(release);
    });
}

/// While one callback takes its time another timeline's callback runs (S13).
#[test]
fn slow_callback_delays_no_callback_of_another_timeline() {
    within(LIMIT + LIMIT, || {
        let rig = Rig::new(1, NativeWaits::None);
        let [slow, x] = rig.semaphores();
        let release = block_in_callback(&slow);
        let (sender, receiver) = mpsc::channel();
        let _subscription = x.subscribe(1, move |state| sender.send(state.unwrap()).unwrap());
        x.signal(1).unwrap();
        assert_eq!(receiver.recv_timeout(LIMIT), Ok(1));
        drop(release);
    });
}

/// A callback waits for a value that the host signals a moment later. The signal must get through although the callback
/// has not returned (S8, S13).
#[test]
fn callback_that_waits_for_the_host_ends() {
    within(LIMIT, || {
        let rig = Rig::new(1, NativeWaits::None);
        let [a, b] = rig.semaphores();
        let (sender, receiver) = mpsc::channel();
        let _subscription = a.subscribe(1, {
            let (engine, b) = (rig.engine.clone(), b.clone());
            move |_| {
                let waited = engine.wait(WaitMode::All, &[(b, 1)], &SystemClock::new(), None);
                sender.send(waited.is_ok()).unwrap();
            }
        });
        std::thread::scope(|scope| {
            scope.spawn(|| a.signal(1).unwrap());
            eventually("the callback waits", || rig.engine.occupancy().host_waits == 1);
            b.signal(1).unwrap();
        });
        assert!(receiver.recv().unwrap());
    });
}

/// A callback that panics ends itself and nothing else: what became due with it still comes (S3, S8).
#[test]
fn callback_that_panics_takes_nothing_with_it() {
    within(LIMIT, || {
        let rig = Rig::new(1, NativeWaits::None);
        let [x, y] = rig.semaphores();
        let (sender, receiver) = mpsc::channel();
        let _bad = x.subscribe(1, |_| panic!("the program's callback panics"));
        let _good = x.subscribe(1, move |state| sender.send(state.unwrap()).unwrap());
        rig.job(0, &[], &[(&x, 1)], 1);
        rig.job(0, &[(&x, 1)], &[(&y, 1)], 2);
        rig.settle();
        assert_eq!(receiver.recv().unwrap(), 1);
        eventually("the next job has ended", || y.query().unwrap() == 1);
        eventually("the panic has been counted", || rig.engine.stats().panics == 1);
        assert!(rig.engine.lost(0).is_none());
        assert_eq!(rig.reclaimed(), [1, 2]);
    });
}

/// A callback that takes its time waits for the same value as a job, and was there first. The job does not depend on the
/// callback (S13).
#[test]
fn slow_callback_delays_no_job_that_waits_for_the_same_value() {
    within(4 * LIMIT, || {
        let rig = Rig::new(1, NativeWaits::None);
        let [slow, x] = rig.semaphores();
        let (release, released) = mpsc::channel::<()>();
        let _subscription = slow.subscribe(1, move |_| {
            // An error means that the test is over, which is as good.
            let _ = released.recv();
        });
        rig.job(0, &[(&slow, 1)], &[(&x, 1)], 1);
        std::thread::scope(|scope| {
            scope.spawn(|| slow.signal(1).unwrap());
            eventually("the value is reached", || slow.query().unwrap() == 1);
            let begin = std::time::Instant::now();
            while rig.queued(0) == 0 && begin.elapsed() < LIMIT {
                std::thread::yield_now();
            }
            let queued = rig.queued(0);
            drop(release);
            assert_eq!(queued, 1, "the job stays behind the callback");
        });
    });
}

/// A callback waits on the host for a job that was released by the same signal as the callback itself. Nothing but that
/// signal is missing, so the wait ends (S8, S13).
#[test]
fn callback_that_waits_for_what_its_own_signal_releases_ends() {
    within(4 * LIMIT, || {
        let rig = Rig::new(1, NativeWaits::None);
        rig.always(Moment::SubmitEnds(0), Devices::settle);
        let [x, y] = rig.semaphores();
        let (sender, receiver) = mpsc::channel();
        let _subscription = x.subscribe(1, {
            let (engine, y) = (rig.engine.clone(), y.clone());
            move |_| {
                let until = Some(LIMIT);
                sender.send(engine.wait(WaitMode::All, &[(y, 1)], &SystemClock::new(), until)).unwrap();
            }
        });
        rig.job(0, &[(&x, 1)], &[(&y, 1)], 1);
        x.signal(1).unwrap();
        let waited = receiver.recv().unwrap();
        assert!(waited.is_ok(), "{waited:?}");
    });
}

/// A device that has to be asked, and what it does with callbacks that are left to it.
struct Asked {
    completer: OnceLock<Completer>,
    latest: Mutex<Option<(QueueId, u64)>>,
    defer: fn(Deferred),
    at_once: bool,
}

impl Asked {
    fn engine(at_once: bool, defer: fn(Deferred)) -> Engine<Self> {
        let asked = Asked { completer: OnceLock::new(), latest: Mutex::default(), defer, at_once };
        Engine::new(asked).unwrap()
    }
}

impl Backend for Asked {
    type Timeline = Semaphore;
    type Work = ();
    type Event = ();

    fn devices(&self) -> Vec<DeviceSpec> {
        vec![DeviceSpec { completion: Completion::Poll, ..device(1, NativeWaits::None) }]
    }

    fn start(&self, completer: Completer) {
        let _ = self.completer.set(completer);
    }

    fn submit(&self, queue: QueueId, batch: &mut Batch<'_, Self>) -> Submitted {
        *self.latest.lock().unwrap() = batch.iter().last().map(|piece| (queue, piece.epoch));
        if self.at_once {
            self.poll(0);
        }
        Submitted::all()
    }

    fn poll(&self, _device: usize) {
        let latest = self.latest.lock().unwrap().take();
        if let Some((queue, epoch)) = latest {
            self.completer.get().unwrap().complete(queue, epoch).unwrap();
        }
    }

    fn defer(&self, callbacks: Deferred) {
        (self.defer)(callbacks);
    }
}

/// Submits a job, holds the program's lock, which a callback wants, while `step` runs, and expects the callback afterwards.
fn lock_held_while(engine: Engine<Asked>, step: impl FnOnce(&Engine<Asked>, &Semaphore) + Send + 'static) {
    within(2 * LIMIT, move || {
        let x = Semaphore::new(&engine, 0).unwrap();
        let calls = Arc::new(Mutex::new(0));
        let _subscription = x.subscribe(1, {
            let calls = calls.clone();
            move |_| *calls.lock().unwrap() += 1
        });
        let held = calls.lock().unwrap();
        engine.submit(0, Affinity::ANY, &[], &[(x.clone(), 1)], Action::Queue(())).unwrap();
        step(&engine, &x);
        drop(held);
        eventually("the callback has run", || *calls.lock().unwrap() == 1);
    });
}

/// A thread that waits calls nobody back, whether its deadline is to come or has passed: the wait asks a polled device, and
/// what has ended there has a callback (S8).
#[test]
fn lock_held_for_a_wait_whose_deadline_has_passed_is_free_for_callbacks() {
    for until in [Duration::from_secs(5), Duration::ZERO] {
        lock_held_while(Asked::engine(false, Deferred::run_elsewhere), move |engine, x| {
            let clock = SystemClock::new();
            engine.wait(WaitMode::All, &[(x.clone(), 1)], &clock, Some(until)).unwrap();
        });
    }
}

/// The backend panics when callbacks are left to it, or drops them. They run all the same, and not on the thread that is
/// inside `submit` (S8).
#[test]
fn lock_held_for_a_submission_is_free_for_callbacks_that_the_backend_drops() {
    for defer in [drop::<Deferred> as fn(Deferred), |_| panic!("the backend panics")] {
        lock_held_while(Asked::engine(true, defer), |_, _| {});
    }
}

thread_local! {
    static LAST_WORDS: RefCell<Option<Box<dyn std::any::Any>>> = const { RefCell::new(None) };
}

/// Runs something when it is dropped.
struct OnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run();
        }
    }
}

/// A thread submits while it ends, from the destructor of a value of its own, and holds the program's lock (S8).
#[test]
fn lock_held_for_a_submission_of_a_thread_that_ends_is_free_for_its_callback() {
    lock_held_across(|rig, x| {
        let (rig, x) = (rig.clone(), x.clone());
        let submits = OnDrop(Some(move || {
            rig.barrier(0, &[], &[(&x, 1)]);
        }));
        // The thread ends with the lock of its program still held by the one that waits for it.
        let thread = std::thread::spawn(move || {
            LAST_WORDS.with(|words| *words.borrow_mut() = Some(Box::new(submits)));
            // The engine's own values of the thread come later and go first.
            Rig::new(1, NativeWaits::None).semaphore().signal(1).unwrap();
        });
        thread.join().unwrap();
    });
}

/// Each callback signals the timeline of the next one, thousands of times, on a small stack: calls into the engine from
/// inside of each other are worked off by the ones around them (S7).
#[test]
fn chain_of_callbacks_that_signal_needs_a_small_stack() {
    let chain = || {
        let rig = Rig::new(1, NativeWaits::None);
        let timelines: Vec<Semaphore> = (0..5_000).map(|_| rig.semaphore()).collect();
        let subscriptions: Vec<_> = timelines
            .windows(2)
            .map(|pair| {
                let next = pair[1].clone();
                pair[0].subscribe(1, move |_| next.signal(1).unwrap())
            })
            .collect();
        timelines[0].signal(1).unwrap();
        assert_eq!(timelines.last().unwrap().query().unwrap(), 1);
        drop(subscriptions);
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(chain).unwrap().join().unwrap();
}

/// The same for a device that reports the next job when the work of the one before it comes back (S7).
#[test]
fn chain_of_reports_from_reclaimed_work_needs_a_small_stack() {
    let chain = || {
        let rig = Rig::new(1, NativeWaits::None);
        let jobs = 1_000;
        for id in 1..=jobs {
            rig.always(Moment::Reclaim(id), |devices| {
                devices.step(0);
                devices.report(0);
            });
            rig.job(0, &[], &[], id);
        }
        assert!(rig.step(0) && rig.report(0));
        assert_eq!(rig.reclaimed().len(), 1_000);
        rig.assert_idle();
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(chain).unwrap().join().unwrap();
}
