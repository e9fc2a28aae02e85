//! Callbacks: on whose thread they run, and what a slow one may delay (rules S8, S13).
//!
//! A program may hold a lock of its own while it submits and take the same lock in a callback. So a callback never runs
//! on a thread that is inside `submit`, whatever made it due. And a callback may take its time, or wait for the host:
//! only what depends on it waits with it.
#![cfg(not(any(loom, shuttle)))]
#![expect(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

#[path = "common/rig.rs"]
mod rig;

use hal_semaphore::backend::NativeWaits;
use hal_semaphore::*;
use rig::{Devices, Job, LIMIT, Moment, Rig, broken, device, eventually, gone, within};
use std::sync::{Arc, Mutex, mpsc};

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
