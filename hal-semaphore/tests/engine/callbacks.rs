// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Callbacks: the thread that runs them, and what a slow one may delay (rules S8, S13).
//!
//! A program may hold a lock while it submits and take the same lock in a callback. So a callback never runs on
//! a thread that is inside `submit`, whatever made it due. A callback may take long, or wait for the host: only
//! its dependants wait with it.

use crate::fake::Fake;
use crate::rig::{Devices, Job, LIMIT, Moment, TestEngine, broken, device, eventually, gone, within};
use hal_semaphore::backend::{Completion, DeferredCallbacks, DeviceSpec, NativeWaits, Submitted};
use hal_semaphore::*;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

/// Subscribes a callback that takes the program's lock, holds that lock while `submit` makes the callback due,
/// and expects the callback afterwards.
fn lock_held_across(submit: impl FnOnce(&TestEngine, &Semaphore) + Send + 'static) {
    within(LIMIT, move || {
        let rig = TestEngine::new(1, NativeWaits::None);
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
        rig.always(Moment::SubmitEnds(0), Devices::run_until_idle);
        rig.job(0, &[], &[(x, 1)], 1);
    });
}

/// A thread waits for something, and does meanwhile what others would do (S8).
#[test]
fn lock_held_by_a_thread_that_waits_is_free_for_callbacks_of_what_it_completes() {
    lock_held_across(|rig, x| {
        let other = rig.semaphore();
        rig.barrier(0, &[(&other, 1)], &[(x, 1)]);
        let guard = WithoutCallbacks::begin();
        other.signal(1).unwrap();
        drop(guard);
        assert!(!WithoutCallbacks::is_active());
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

/// The job's wait has failed: the job fails inside `submit` (S8).
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
        rig.once(Moment::SubmitBegins(0), |devices| devices.lose(&gone()));
        rig.job(0, &[], &[(x, 1)], 1);
    });
}

/// The operation signals a semaphore of another engine, whose callbacks are the program's as well (S8, S9).
#[test]
fn lock_held_for_a_foreign_signal_is_free_for_its_callback() {
    lock_held_across(|_, x| {
        let other = TestEngine::new(1, NativeWaits::None);
        other.barrier(0, &[], &[(x, 1)]);
    });
}

/// The thread that submits also completes work of another one, whose callback becomes due on it (S8).
#[test]
fn lock_held_for_a_submission_is_free_for_callbacks_of_other_work() {
    lock_held_across(|rig, x| {
        rig.job(0, &[], &[(x, 1)], 1);
        rig.once(Moment::SubmitEnds(0), Devices::run_until_idle);
        let y = rig.semaphore();
        rig.job(0, &[], &[(&y, 1)], 2);
    });
}

/// A callback submits from a thread that is no longer inside any `submit`: that is an ordinary submission, and its own
/// callbacks come, too (S8).
#[test]
fn callback_that_submits_gets_its_own_callback() {
    within(LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
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

/// During one slow callback an unrelated operation is submitted, completes and is signalled (S13).
#[test]
fn slow_callback_delays_no_unrelated_operation() {
    within(LIMIT + LIMIT, || {
        let rig = TestEngine::new(2, NativeWaits::None);
        let [slow, x, y] = rig.semaphores();
        let release = block_in_callback(&slow);
        rig.job(1, &[], &[(&x, 1)], 1);
        rig.run_until_idle();
        rig.barrier(0, &[(&x, 1)], &[(&y, 1)]);
        eventually("unrelated signals are out", || y.query().unwrap() == 1);
        x.wait(1, &SystemClock::new(), Some(LIMIT)).unwrap();
        eventually("unrelated work is reclaimed", || rig.reclaimed() == [1]);
        drop(release);
    });
}

/// During one slow callback another timeline's callback runs (S13).
#[test]
fn slow_callback_delays_no_callback_of_another_timeline() {
    within(LIMIT + LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
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
        let rig = TestEngine::new(1, NativeWaits::None);
        let ([a, b], clock) = (rig.semaphores(), Arc::new(VirtualClock::new()));
        let (sender, receiver) = mpsc::channel();
        let _subscription = a.subscribe(1, {
            let (b, clock) = (b.clone(), clock.clone());
            move |_| {
                let waited = b.wait(1, &*clock, None);
                sender.send(waited.is_ok()).unwrap();
            }
        });
        std::thread::scope(|scope| {
            scope.spawn(|| a.signal(1).unwrap());
            eventually("the callback waits", || clock.sleepers() == 1);
            b.signal(1).unwrap();
        });
        assert!(receiver.recv().unwrap());
    });
}

/// A signal releases a barrier whose signal has a callback. The callback waits for a thread that waits for the first
/// signal, and for a callback of the first signal: both have their turn before it (S8).
#[test]
fn callback_that_waits_for_the_waiters_of_the_signal_that_led_to_it_ends() {
    within(4 * LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let ([x, y], clock) = (rig.semaphores(), VirtualClock::new());
        let ((woken, is_woken), (sender, receiver)) = (mpsc::channel(), mpsc::channel());
        rig.barrier(0, &[(&x, 1)], &[(&y, 1)]);
        let called = woken.clone();
        let _of_x = x.subscribe(1, move |_| called.send("called").unwrap());
        let _of_y = y.subscribe(1, move |_| {
            let both = [(); 2].map(|()| is_woken.recv_timeout(LIMIT).ok());
            sender.send(both.iter().all(Option::is_some)).unwrap();
        });
        std::thread::scope(|scope| {
            let (x, clock) = (&x, &clock);
            scope.spawn(move || {
                x.wait(1, clock, None).unwrap();
                // The other end is gone if the callback has given up.
                let _ = woken.send("woken");
            });
            eventually("the thread waits", || clock.sleepers() == 1);
            x.signal(1).unwrap();
        });
        assert!(receiver.recv().unwrap());
    });
}

/// A callback that panics ends itself and nothing else: what became due with it still comes (S3, S8).
#[test]
fn callback_that_panics_affects_nothing_else() {
    within(LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let [x, y] = rig.semaphores();
        let (sender, receiver) = mpsc::channel();
        let _bad = x.subscribe(1, |_| panic!("the program's callback panics"));
        let _good = x.subscribe(1, move |state| sender.send(state.unwrap()).unwrap());
        rig.job(0, &[], &[(&x, 1)], 1);
        rig.job(0, &[(&x, 1)], &[(&y, 1)], 2);
        rig.run_until_idle();
        assert_eq!(receiver.recv().unwrap(), 1);
        eventually("the next job has ended", || y.query().unwrap() == 1);
        eventually("the panic has been counted", || rig.engine.counts().panics == 1);
        assert!(rig.engine.lost().is_none());
        assert_eq!(rig.reclaimed(), [1, 2]);
    });
}

/// A slow callback waits for the same value as a job, and was registered first. The job does not depend on the
/// callback (S13).
#[test]
fn slow_callback_delays_no_job_that_waits_for_the_same_value() {
    within(4 * LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
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
fn callback_that_waits_for_operations_its_signal_releases_ends() {
    within(4 * LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        rig.always(Moment::SubmitEnds(0), Devices::run_until_idle);
        let [x, y] = rig.semaphores();
        let (sender, receiver) = mpsc::channel();
        let _subscription = x.subscribe(1, {
            let y = y.clone();
            move |_| {
                let until = Some(LIMIT);
                sender.send(y.wait(1, &SystemClock::new(), until)).unwrap();
            }
        });
        rig.job(0, &[(&x, 1)], &[(&y, 1)], 1);
        x.signal(1).unwrap();
        let waited = receiver.recv().unwrap();
        assert!(waited.is_ok(), "{waited:?}");
    });
}

type Polled = Fake<Semaphore, ()>;

/// A polled device, what it does with deferred callbacks, and whether its work ends inside `submit`.
fn polled(at_once: bool, defer: fn(DeferredCallbacks)) -> Engine<Polled> {
    let spec = DeviceSpec { completion: Completion::Poll, ..device(1, NativeWaits::None) };
    Polled::new(spec)
        .on_submit(move |fake, queue, batch| {
            fake.accept(queue, batch);
            if at_once {
                fake.complete_all();
            }
            Submitted::all()
        })
        .on_defer(move |_, callbacks| defer(callbacks))
        .start()
}

/// Submits a job, holds the program's lock, which a callback wants, while `step` runs, and expects the callback
/// afterwards.
fn lock_held_while(engine: Engine<Polled>, step: impl FnOnce(&Engine<Polled>, &Semaphore) + Send + 'static) {
    within(2 * LIMIT, move || {
        let x = Semaphore::new(&engine, 0).unwrap();
        let calls = Arc::new(Mutex::new(0));
        let _subscription = x.subscribe(1, {
            let calls = calls.clone();
            move |_| *calls.lock().unwrap() += 1
        });
        let held = calls.lock().unwrap();
        engine.submit(Affinity::ANY, &[], &[(x.clone(), 1)], Action::Queue(())).unwrap();
        step(&engine, &x);
        drop(held);
        eventually("the callback has run", || *calls.lock().unwrap() == 1);
    });
}

/// The backend panics when callbacks are deferred to it, or drops them. They run all the same, and not on the
/// thread that is inside `submit` (S8).
#[test]
fn lock_held_for_a_submission_is_free_for_callbacks_that_the_backend_drops() {
    for defer in [drop::<DeferredCallbacks> as fn(DeferredCallbacks), |_| panic!("the backend panics")] {
        lock_held_while(polled(true, defer), |_, _| {});
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

/// An exiting thread submits, from the destructor of a thread-local value, while the program's lock is held
/// (S8).
#[test]
fn lock_held_for_a_submission_of_a_thread_that_ends_is_free_for_its_callback() {
    lock_held_across(|rig, x| {
        let (rig, x) = (rig.clone(), x.clone());
        let submits = OnDrop(Some(move || {
            rig.barrier(0, &[], &[(&x, 1)]);
        }));
        // The thread exits while the lock of its program is still held by the one that joins it.
        let thread = std::thread::spawn(move || {
            LAST_WORDS.with(|words| *words.borrow_mut() = Some(Box::new(submits)));
            // The engine's own values of the thread come later and go first.
            TestEngine::new(1, NativeWaits::None).semaphore().signal(1).unwrap();
        });
        thread.join().unwrap();
    });
}

/// `call_back` runs its closure at once, or soon on another thread if this one must not (S8).
#[test]
fn callback_runs_at_once_unless_its_thread_must_not() {
    let here = std::thread::current().id();
    let (sender, receiver) = mpsc::channel();
    let call_back = || {
        let sender = sender.clone();
        WithoutCallbacks::call_back(move || sender.send(std::thread::current().id()).unwrap());
    };
    call_back();
    assert_eq!(receiver.try_recv(), Ok(here));
    let guard = WithoutCallbacks::begin();
    assert!(WithoutCallbacks::is_active());
    call_back();
    assert_ne!(receiver.recv_timeout(LIMIT).unwrap(), here);
    drop(guard);
    assert!(!WithoutCallbacks::is_active());
}

/// Each callback signals the timeline of the next one, thousands of times, on a small stack: calls into the engine from
/// inside of each other are worked off by the ones around them (S7).
#[test]
fn chain_of_callbacks_that_signal_needs_a_small_stack() {
    let chain = || {
        let rig = TestEngine::new(1, NativeWaits::None);
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

/// Runs `inside` in a callback of a callback and so on, at the depth at which calls still run their own work,
/// on this thread.
pub(crate) fn deep_inside(rig: &TestEngine, inside: impl FnOnce() + Send + 'static) {
    inside_callbacks(rig, 8, inside);
}

/// Runs `inside` in so many callbacks, each inside the one before.
fn inside_callbacks(rig: &TestEngine, depth: usize, inside: impl FnOnce() + Send + 'static) {
    let timelines: Vec<Semaphore> = (0..depth).map(|_| rig.semaphore()).collect();
    let mut inside: Box<dyn FnOnce() + Send> = Box::new(inside);
    let mut subscriptions = Vec::new();
    for timeline in timelines.iter().rev() {
        subscriptions.push(timeline.subscribe(1, move |_| inside()));
        let timeline = timeline.clone();
        inside = Box::new(move || timeline.signal(1).unwrap());
    }
    inside();
}

/// A callback deep inside others visits a queue while another thread submits there, and does not return. The
/// other thread leaves it no work (S13).
#[test]
fn callback_deep_inside_others_is_left_no_work_of_a_queue() {
    const ROUNDS: u64 = 3_000;
    within(4 * LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        rig.always(Moment::SubmitEnds(0), Devices::run_until_idle);
        let x = rig.semaphore();
        let round = Arc::new(AtomicU64::new(0));
        let callback = std::thread::spawn({
            let (rig, round) = (rig.clone(), round.clone());
            move || {
                deep_inside(&rig.clone(), move || {
                    let mut seen = 0;
                    while seen < ROUNDS {
                        while round.load(Ordering::SeqCst) == seen {
                            std::hint::spin_loop();
                        }
                        seen = round.load(Ordering::SeqCst);
                        (0..20).for_each(|_| rig.barrier(0, &[], &[]));
                    }
                });
            }
        });
        let mut left = None;
        for value in 1..=ROUNDS {
            round.store(value, Ordering::SeqCst);
            rig.job(0, &[], &[(&x, value)], value);
            let begin = std::time::Instant::now();
            while x.query().unwrap() < value && left.is_none() {
                if begin.elapsed() > LIMIT / 10 {
                    left = Some(value);
                }
            }
        }
        callback.join().unwrap();
        assert_eq!(left, None, "the job has run and is not ended before the callback returns");
    });
}

/// A callback deep inside others submits, and queries again and again whether that has ended, without sleeping.
/// Calls at that depth leave their work to the calls around them; a thread that waits runs it before (S2).
#[test]
fn callback_deep_inside_others_that_polls_for_its_own_operation_sees_it_end() {
    within(4 * LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let x = rig.semaphore();
        let (sender, receiver) = mpsc::channel();
        deep_inside(&rig.clone(), move || {
            rig.barrier(0, &[], &[(&x, 1)]);
            let looks = || {
                let until = Some(Duration::ZERO);
                x.wait(1, &SystemClock::new(), until)
            };
            sender.send((0..10).map(|_| looks()).find(Result::is_ok)).unwrap();
        });
        let waited = receiver.recv().unwrap();
        assert!(waited.is_some(), "it has not ended before the callback returns");
    });
}

/// A callback deep inside others signals, which is left to the calls around it; then it takes the program's
/// lock and waits. The wait runs the work that was left, but no callbacks, which may want the lock (S8).
#[test]
fn lock_held_by_a_callback_deep_inside_others_that_waits_is_free_for_what_it_has_signalled() {
    within(LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let [x, y] = rig.semaphores();
        let calls = Arc::new(Mutex::new(0));
        let _subscription = x.subscribe(1, {
            let calls = calls.clone();
            move |_| *calls.lock().unwrap() += 1
        });
        deep_inside(&rig.clone(), {
            let calls = calls.clone();
            move || {
                x.signal(1).unwrap();
                let held = calls.lock().unwrap();
                let until = Some(Duration::ZERO);
                y.wait(1, &SystemClock::new(), until).unwrap_err();
                drop(held);
            }
        });
        eventually("the callback has run", || *calls.lock().unwrap() == 1);
    });
}

/// A callback deep inside others submits an operation that waits for another engine, and trims the engine
/// before the calls around it have run the deferred work of that operation. It is done all the same (S9).
#[test]
fn operation_from_deep_inside_callbacks_ends_though_the_engine_is_trimmed() {
    let (rig, other) = (TestEngine::new(1, NativeWaits::None), TestEngine::new(1, NativeWaits::None));
    let (x, y) = (other.semaphore(), rig.semaphore());
    deep_inside(&rig.clone(), {
        let (rig, x, y) = (rig.clone(), x.clone(), y.clone());
        move || {
            rig.barrier(0, &[(&x, 1)], &[(&y, 1)]);
            rig.engine.trim();
        }
    });
    x.signal(1).unwrap();
    assert_eq!(y.query().unwrap(), 1);
}

/// `call_back` runs at once on a thread that may call the program, and on another one as long as this one must
/// not. `is_active` says so, also on an exiting thread (S8).
#[test]
fn thread_that_must_not_call_back_defers_to_another_one() {
    let (sender, receiver) = mpsc::channel();
    let call_back = || {
        let sender = sender.clone();
        WithoutCallbacks::call_back(move || sender.send(std::thread::current().id()).unwrap());
    };
    let this = std::thread::current().id();
    assert!(!WithoutCallbacks::is_active());
    call_back();
    assert_eq!(receiver.try_recv(), Ok(this));
    let guard = WithoutCallbacks::begin();
    assert!(WithoutCallbacks::is_active());
    call_back();
    assert_ne!(receiver.recv_timeout(LIMIT).unwrap(), this);
    drop(guard);
    assert!(!WithoutCallbacks::is_active());

    let (sender, receiver) = mpsc::channel();
    let asks = OnDrop(Some(move || sender.send(WithoutCallbacks::is_active()).unwrap()));
    let thread = std::thread::spawn(move || {
        LAST_WORDS.with(|words| *words.borrow_mut() = Some(Box::new(asks)));
        // The engine's own values of the thread come later and go first.
        TestEngine::new(1, NativeWaits::None).semaphore().signal(1).unwrap();
    });
    thread.join().unwrap();
    assert_eq!(receiver.recv(), Ok(true));
}

/// How many threads this crate keeps for callbacks now.
#[cfg(target_os = "linux")]
fn callback_threads() -> usize {
    let names = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(names)
        .filter(|name| name.trim_end() == "hal-callbacks")
        .count()
}

/// A program holds its lock while it submits, two thousand times. Each operation ends at once and has a
/// callback that wants the lock. Waiting callbacks do not hold a thread each (S4).
#[test]
#[cfg(target_os = "linux")]
fn callbacks_that_wait_for_the_submitting_thread_do_not_hold_a_thread_each() {
    const OPERATIONS: usize = 2_000;
    within(4 * LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let calls = Arc::new(Mutex::new(0));
        let timelines: Vec<Semaphore> = (0..OPERATIONS).map(|_| rig.semaphore()).collect();
        let subscribe = |timeline: &Semaphore| {
            let calls = calls.clone();
            timeline.subscribe(1, move |_| *calls.lock().unwrap() += 1)
        };
        let _subscriptions: Vec<_> = timelines.iter().map(subscribe).collect();
        let held = calls.lock().unwrap();
        for timeline in &timelines {
            rig.barrier(0, &[], &[(timeline, 1)]);
        }
        // With time one more thread is busy, and each time it takes longer until the next one is.
        std::thread::sleep(std::time::Duration::from_millis(600));
        let threads = callback_threads();
        drop(held);
        eventually("the callbacks have run", || *calls.lock().unwrap() == OPERATIONS);
        assert!(threads < 100, "{threads} threads");
    });
}

/// Of some callbacks that become due inside `submit` each waits until the one behind it has been called.
/// All of them end, however many threads there are (S13).
#[test]
fn callbacks_that_wait_for_those_behind_them_all_end() {
    const CALLBACKS: usize = 20;
    within(4 * LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let timelines: Vec<Semaphore> = (0..CALLBACKS).map(|_| rig.semaphore()).collect();
        let (first, mut before) = mpsc::channel();
        let mut subscriptions = Vec::new();
        for timeline in timelines.iter().rev() {
            let (called, behind) = mpsc::channel();
            let behind = std::mem::replace(&mut before, behind);
            let last = subscriptions.is_empty();
            subscriptions.push(timeline.subscribe(1, move |_| {
                if !last {
                    behind.recv().unwrap();
                }
                called.send(()).unwrap();
            }));
        }
        for timeline in &timelines {
            rig.barrier(0, &[], &[(timeline, 1)]);
        }
        before.recv().unwrap();
        drop(first);
    });
}

/// A callback thread sleeps until a callback is due. Then it is woken at once, and not by its own timeout a
/// second later.
#[test]
fn callback_that_becomes_due_wakes_the_watching_thread() {
    const ROUNDS: usize = 9;
    let rig = TestEngine::new(1, NativeWaits::None);
    let mut delays: Vec<_> = (0..ROUNDS)
        .map(|_| {
            let x = rig.semaphore();
            let (sender, called) = mpsc::channel();
            let _subscription = x.subscribe(1, move |_| {
                // The test may have given up.
                let _ = sender.send(());
            });
            std::thread::sleep(Duration::from_millis(30));
            let begin = std::time::Instant::now();
            rig.barrier(0, &[], &[(&x, 1)]);
            called.recv_timeout(LIMIT).unwrap();
            begin.elapsed()
        })
        .collect();
    delays.sort_unstable();
    assert!(delays[ROUNDS / 2] < Duration::from_millis(300), "{delays:?}");
}

/// Set in the process that cannot start a thread.
const NO_THREADS: &str = "HAL_TEST_NO_THREADS";

/// No thread can be started for callbacks. None may run inside `submit` (S8), so there is no engine.
#[test]
fn engine_without_a_thread_for_callbacks_is_refused() {
    let name = "callbacks::engine_without_a_thread_for_callbacks_is_refused";
    if std::env::var_os(NO_THREADS).is_none() {
        // No thread can have such a stack.
        let ended = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--test-threads=1", "--nocapture"])
            .env(NO_THREADS, "1")
            .env("RUST_MIN_STACK", (1_usize << 62).to_string())
            .output()
            .unwrap();
        let ran = String::from_utf8_lossy(&ended.stdout).contains("1 passed");
        assert!(ended.status.success() && ran, "{ended:?}");
        return;
    }
    assert!(std::thread::Builder::new().spawn(|| {}).is_err(), "the test is about a lack of threads");
    let refused = Engine::new(hal_semaphore::testing::SoftBackend::new(device(1, NativeWaits::None)))
        .map(drop)
        .unwrap_err();
    assert!(refused.to_string().contains("ulimit -u"), "{refused}");
}

/// Work that runs something of the program's when it is reclaimed.
type Release = Option<Box<dyn FnOnce() + Send>>;

/// A device whose work ends when the test says so.
fn releasing() -> Fake<Semaphore, Release> {
    Fake::new(device(2, NativeWaits::None))
        .calls_back(|work: &mut Option<Release>| matches!(work, Some(Some(_))))
        .on_reclaim(|_, ended| {
            if let Some(release) = ended.work.flatten() {
                release();
            }
        })
}

/// A job ends while it is submitted. The backend takes of its work what calls nobody. With the rest another thread is
/// called; with nothing left, the end is reported at once (S8).
#[test]
fn work_of_which_the_backend_takes_all_needs_no_other_thread() {
    for takes_all in [true, false] {
        let reclaimed = Arc::new(Mutex::new(Vec::new()));
        let into = reclaimed.clone();
        let engine = Fake::<Semaphore, u64>::new(device(1, NativeWaits::None))
            .on_submit(|fake, queue, batch| {
                let accepted = fake.accept(queue, batch);
                fake.complete_all();
                accepted
            })
            .calls_back(move |work| work.take_if(|work| takes_all || std::mem::take(work) == 0).is_none())
            .on_reclaim(move |_, ended| into.lock().unwrap().push((ended.point.is_some(), ended.work)))
            .keeps_deferred()
            .start();
        engine.submit(Affinity::ANY, &[], &[], Action::Queue(7)).unwrap();
        assert_eq!(engine.backend().run_deferred(), usize::from(!takes_all));
        assert_eq!(*reclaimed.lock().unwrap(), [(true, (!takes_all).then_some(0))]);
    }
}

/// A job has ended, and its slow reclaim calls the program. The job's signal is out, and an operation that
/// waits for it, on its queue or on another one, does not wait for the program (S13).
#[test]
fn slow_reclaim_delays_no_operation_that_waits_for_the_same_value() {
    within(8 * LIMIT, || [0, 1].map(slow_release_beside_an_operation_on));
}

fn slow_release_beside_an_operation_on(other: usize) {
    let engine = releasing().start();
    let [x, y] = std::array::from_fn(|_| Semaphore::new(&engine, 0).unwrap());
    let (release, released) = mpsc::channel::<()>();
    let slow: Box<dyn FnOnce() + Send> = Box::new(move || {
        // An error means that the test is over, which is as good.
        let _ = released.recv();
    });
    let submit = |queue, waits: &[(Semaphore, u64)], signal: &Semaphore, action| {
        engine.submit(Affinity::queue(queue), waits, &[(signal.clone(), 1)], action).unwrap();
    };
    submit(0, &[], &x, Action::Queue(Some(slow)));
    submit(other, &[(x.clone(), 1)], &y, Action::Host(None));
    std::thread::scope(|scope| {
        let (queue, backend) = (engine.queue(0).unwrap(), engine.backend());
        scope.spawn(move || backend.complete(queue, 1));
        let begin = std::time::Instant::now();
        while y.query().unwrap() == 0 && begin.elapsed() < LIMIT {
            std::thread::yield_now();
        }
        let reached = y.query().unwrap();
        drop(release);
        assert_eq!(reached, 1, "the host operation on queue {other} stays behind the program");
    });
}

/// Two jobs have ended, so that the device has capacity for the next one. That one goes to the device before
/// the first two are reclaimed, since that calls the program (S13).
#[test]
fn slow_reclaims_delay_no_job_that_waits_for_capacity() {
    let (is_full, taken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let engine = releasing()
        .on_submit({
            let (is_full, taken) = (is_full.clone(), taken.clone());
            move |_, _, batch| {
                if is_full.load(Ordering::SeqCst) {
                    return Submitted::full(0);
                }
                taken.fetch_add(batch.len(), Ordering::SeqCst);
                Submitted::all()
            }
        })
        .start();
    let submit = |work| {
        engine.submit(Affinity::queue(0), &[], &[], Action::Queue(work)).unwrap();
    };
    let seen = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..2 {
        let (taken, seen) = (taken.clone(), seen.clone());
        submit(Some(Box::new(move || seen.lock().unwrap().push(taken.load(Ordering::SeqCst)))));
    }
    is_full.store(true, Ordering::SeqCst);
    submit(None);
    is_full.store(false, Ordering::SeqCst);
    assert_eq!(taken.load(Ordering::SeqCst), 2, "the third job does not fit");
    engine.backend().complete(engine.queue(0).unwrap(), 2);
    assert_eq!(*seen.lock().unwrap(), [3, 3], "jobs that the device had when the program was called back");
}

/// A program shuts down while it holds a lock that due callbacks want. The shutdown returns unfinished at its
/// limit, and does not wait for them any longer (S10).
#[test]
fn lock_held_for_a_shutdown_does_not_keep_it_past_its_limit() {
    within(LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let (begun, calls) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(0)));
        let timelines: [Semaphore; 20] = rig.semaphores();
        let subscriptions = timelines.each_ref().map(|timeline| {
            let (begun, calls) = (begun.clone(), calls.clone());
            timeline.subscribe(1, move |_| {
                begun.fetch_add(1, Ordering::SeqCst);
                *calls.lock().unwrap() += 1;
            })
        });
        let held = calls.lock().unwrap();
        for timeline in &timelines {
            rig.barrier(0, &[], &[(timeline, 1)]);
        }
        eventually("a callback has begun", || begun.load(Ordering::SeqCst) > 0);
        let limit = Duration::from_millis(20);
        assert!(rig.engine.shut_down(&SystemClock::new(), limit, limit).is_err());
        drop(held);
        eventually("the callbacks have run", || *calls.lock().unwrap() == timelines.len());
        drop(subscriptions);
    });
}

/// A callback deep inside others submits a job, and polls the device until it has ended. The report is not left
/// to calls around the callback, which return only after it (S2).
#[test]
fn callback_deep_inside_others_that_polls_the_device_sees_its_job_end() {
    within(4 * LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let engine = polled(false, DeferredCallbacks::run_elsewhere);
        let (sender, receiver) = mpsc::channel();
        deep_inside(&rig, move || {
            let x = Semaphore::new(&engine, 0).unwrap();
            engine.submit(Affinity::ANY, &[], &[(x.clone(), 1)], Action::Queue(())).unwrap();
            let asks = |_| {
                engine.poll();
                x.query().unwrap() == 1
            };
            sender.send((0..10).any(asks)).unwrap();
        });
        assert!(receiver.recv().unwrap(), "it has not ended before the callback returns");
    });
}

/// Forty jobs end, each of which signals another engine's timeline. The effects of the first sixteen deliveries
/// there come before the next one, which another thread makes: a callback sees sixteen, neither fewer nor more
/// (S13).
#[test]
fn callback_on_a_foreign_signal_runs_after_sixteen_deliveries() {
    let rig = Devices::new(device(1, NativeWaits::None)).keeps_deferred().start();
    let far = TestEngine::new(1, NativeWaits::None).semaphore();
    for value in 1..=40 {
        rig.job(0, &[], &[(&far, value)], value);
    }
    while rig.step(0) {}
    let seen = Arc::new(OnceLock::new());
    let _subscription = far.subscribe(1, {
        let (far, seen) = (far.clone(), seen.clone());
        move |_| seen.set(far.query().unwrap()).unwrap()
    });
    rig.completer().complete(rig.engine.queue(0).unwrap(), 40).unwrap();
    assert_eq!(seen.get(), Some(&16));
    while far.query().unwrap() < 40 {
        let before = far.query().unwrap();
        rig.drop_deferred();
        assert!(far.query().unwrap() > before, "no thread is left to make the rest of the signals");
    }
}

/// Reclaim submits the next job, which ends inside `submit`, and so on. Such calls are not nested without end
/// (S7).
#[test]
fn chain_of_submissions_from_reclaimed_work_is_not_nested_without_end() {
    const JOBS: u64 = 100;
    let rig = TestEngine::new(1, NativeWaits::None);
    rig.always(Moment::SubmitEnds(0), Devices::run_until_idle);
    let (depth, deepest) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    for id in 1..JOBS {
        let (rig_inside, depth, deepest) = (rig.clone(), depth.clone(), deepest.clone());
        rig.once(Moment::Reclaim(id), move |_| {
            deepest.fetch_max(depth.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
            rig_inside.job(0, &[], &[], id + 1);
            depth.fetch_sub(1, Ordering::SeqCst);
        });
    }
    rig.job(0, &[], &[], 1);
    assert_eq!(rig.reclaimed().len() as u64, JOBS);
    let deepest = deepest.load(Ordering::SeqCst);
    assert!(deepest <= 16, "{deepest} calls inside each other");
}

/// The same for a device that reports the next job from the reclaim of the one before it (S7).
#[test]
fn chain_of_reports_from_reclaimed_work_needs_a_small_stack() {
    let chain = || {
        let rig = TestEngine::new(1, NativeWaits::None);
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

/// The same for a program that submits the next job from the reclaim of the one before it, on a device that
/// ends each inside `submit` (S7).
#[test]
fn chain_of_submissions_from_reclaimed_work_needs_a_small_stack() {
    let chain = || {
        let rig = TestEngine::new(1, NativeWaits::None);
        rig.always(Moment::SubmitEnds(0), Devices::run_until_idle);
        let jobs = 1_000;
        for id in 1..jobs {
            let next = rig.clone();
            rig.once(Moment::Reclaim(id), move |_| {
                next.job(0, &[], &[], id + 1);
            });
        }
        rig.job(0, &[], &[], 1);
        assert_eq!(rig.reclaimed().len(), 1_000);
        rig.assert_idle();
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(chain).unwrap().join().unwrap();
}

/// A callback deep inside others reports a job and then waits for it, on a device that reports by itself. The
/// report is left to the calls around it, which wait for the callback, so it is run before the thread sleeps
/// (S2, S13).
#[test]
fn callback_deep_inside_others_that_waits_for_what_it_reported_ends() {
    within(LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let x = rig.semaphore();
        rig.job(0, &[], &[(&x, 1)], 1);
        let (sender, receiver) = mpsc::channel();
        deep_inside(&rig.clone(), move || {
            assert!(rig.step(0) && rig.report(0));
            let clock = SystemClock::new();
            let until = Some(clock.now() + LIMIT / 5);
            sender.send(x.wait(1, &clock, until)).unwrap();
        });
        receiver.recv().unwrap().unwrap();
    });
}

/// A callback deep inside others reports a job, which is left to calls around it, and waits for it with a lock
/// of its program held. A waiting thread runs that work, but not the callback of the job, which wants the lock
/// (S8).
#[test]
fn lock_held_deep_inside_callbacks_by_a_thread_that_waits_is_free_for_other_callbacks() {
    within(LIMIT, || {
        let rig = TestEngine::new(1, NativeWaits::None);
        let x = rig.semaphore();
        rig.job(0, &[], &[(&x, 1)], 1);
        let lock = Arc::new(Mutex::new(()));
        let (sender, receiver) = mpsc::channel();
        let _subscription = x.subscribe(1, {
            let lock = lock.clone();
            move |_| {
                drop(lock.lock().unwrap());
                sender.send(()).unwrap();
            }
        });
        deep_inside(&rig.clone(), move || {
            assert!(rig.step(0) && rig.report(0));
            let held = lock.lock().unwrap();
            x.wait(1, &SystemClock::new(), None).unwrap();
            drop(held);
        });
        receiver.recv().unwrap();
    });
}
