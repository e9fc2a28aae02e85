// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A timeline's value and its failure change in one step, and all observers agree (rule S1).
//!
//! An engine that keeps a second copy of either, or notifies the timeline later than its dependants, lets two
//! observers disagree: about the first failure, about whether a value came before it, about whether it came at
//! all.

use crate::rig::{self, ALL_NATIVE_WAITS, Job, TestEngine, broken, eventually};
use hal_semaphore::backend::NativeWaits;
use hal_semaphore::timeline::Timeline;
use hal_semaphore::*;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Runs `a` and `b` side by side on the same item, for each item.
fn race<T: Sync>(items: &[T], a: impl Fn(&T) + Sync, b: impl Fn(&T) + Sync) {
    let arrived = AtomicUsize::new(0);
    let each = |run: &(dyn Fn(&T) + Sync)| {
        for (index, item) in items.iter().enumerate() {
            arrived.fetch_add(1, Ordering::SeqCst);
            let mut looks = 0;
            while arrived.load(Ordering::SeqCst) < 2 * (index + 1) {
                // Spinning brings the two together; on a busy machine one of them has to yield to the other.
                looks += 1;
                if looks % 10_000 == 0 { std::thread::yield_now() } else { std::hint::spin_loop() }
            }
            run(item);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| each(&a));
        each(&b);
    });
}

/// Two threads fail a timeline, and one of them gets the answer that it has failed before. That thread must
/// find it failed; `loom.rs` explores the same for every interleaving (S1, S3).
#[test]
fn second_failure_of_a_timeline_finds_it_failed() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let semaphores: Vec<Semaphore> = (0..50_000).map(|_| rig.semaphore()).collect();
    let failure = broken("given up");
    let disagreed = AtomicUsize::new(0);
    let fail = |x: &Semaphore| {
        if !x.fail(failure.clone()) && x.query().is_ok() {
            disagreed.fetch_add(1, Ordering::SeqCst);
        }
    };
    race(&semaphores, fail, fail);
    assert_eq!(disagreed.into_inner(), 0, "times 'failed before' was said of a timeline that had not failed");
}

/// A barrier waits for 1. One thread signals 1, another sees the 1 and then fails the timeline: the value came first,
/// so the barrier's wait is fulfilled (S1).
#[test]
fn wait_for_a_value_seen_before_the_failure_is_fulfilled() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let pairs: Vec<(Semaphore, Semaphore)> = (0..50_000)
        .map(|_| {
            let [x, y] = rig.semaphores();
            rig.barrier(0, &[(&x, 1)], &[(&y, 1)]);
            (x, y)
        })
        .collect();
    let failure = broken("given up");
    race(
        &pairs,
        |(x, _)| x.signal(1).unwrap(),
        |(x, _)| {
            while x.value() == 0 {
                std::hint::spin_loop();
            }
            x.fail(failure.clone());
        },
    );
    let failed = pairs.iter().filter(|(_, y)| y.query().is_err()).count();
    assert_eq!(failed, 0, "waits failed although their value was there before the failure");
}

/// A clock on which something happens before the first sleeper wakes.
struct Meanwhile<F>(Cell<Option<F>>);

impl<F: FnOnce()> Clock for Meanwhile<F> {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, _pending: &Wakeup, _until: Option<Duration>) {
        if let Some(meanwhile) = self.0.take() {
            meanwhile();
        }
    }
}

/// A thread waits on the host, and before it wakes more steps follow. The first one decides its wait (S1, S3).
#[test]
fn host_wait_is_decided_by_the_first_step() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let wait = |mode, meanwhile: &dyn Fn(&Semaphore, &Semaphore)| {
        let [x, y] = rig.semaphores();
        let clock = Meanwhile(Cell::new(Some(|| meanwhile(&x, &y))));
        rig.engine.wait(mode, &[(x.clone(), 1), (y.clone(), 1)], &clock, None)
    };
    let signal = |semaphore: &Semaphore| semaphore.signal(1).unwrap();
    let (first, second) = (broken("the first"), broken("the second"));
    let any = wait(WaitMode::Any, &|x, y| {
        signal(y);
        signal(x);
    });
    assert_eq!(any.unwrap(), 1);
    let all = wait(WaitMode::All, &|x, y| {
        signal(y);
        signal(x);
        assert!(y.fail(first.clone()));
    });
    assert_eq!(all.unwrap(), 0);
    let failed = wait(WaitMode::All, &|x, y| {
        assert!(y.fail(first.clone()) && x.fail(second.clone()));
    });
    assert!(matches!(failed, Err(WaitError::Failed { index: 1, failure }) if failure.same_root(&first)));
}

/// The same for waits of the device or by queue order: the class of a wait makes no difference to its outcome
/// (S1, S6).
#[test]
fn elided_wait_for_a_value_before_the_failure_is_fulfilled() {
    for native_waits in ALL_NATIVE_WAITS {
        for consumer in [0, 1] {
            let rig = TestEngine::new(2, native_waits);
            let [x, y] = rig.semaphores();
            rig.job(0, &[], &[(&x, 1)], 1);
            rig.job(consumer, &[(&x, 1)], &[(&y, 1)], 2);
            assert!(rig.step(0) && rig.report(0));
            x.fail(broken("given up"));
            rig.run_until_idle();
            assert_eq!(y.query().unwrap(), 1, "{native_waits:?}, consumer on queue {consumer}");
        }
    }
}

/// A wait that comes after the failure fails, even for a value that was reached before, and it does so for every way
/// to wait (S1; IREE's contract).
#[test]
fn wait_after_the_failure_fails_though_its_value_was_reached() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let x = rig.semaphore();
    x.signal(1).unwrap();
    let cause = broken("given up");
    x.fail(cause.clone());
    for (kind, action) in [
        ("queue", Action::Queue(Job::new(1))),
        ("host", Action::Host(Job::new(2))),
        ("early", Action::Early(Job::new(3).early())),
        ("marker", Action::Marker(Job::new(4))),
        ("barrier", Action::Barrier),
    ] {
        let y = rig.semaphore();
        rig.submit(0, &[(&x, 1)], &[(&y, 1)], action);
        rig.run_until_idle_with_host();
        assert!(y.query().is_err_and(|failure| failure.same_root(&cause)), "{kind} action");
    }
    let wait = rig.engine.wait(WaitMode::All, &[(x.clone(), 1)], &SystemClock::new(), None);
    assert!(matches!(wait, Err(WaitError::Failed { index: 0, .. })), "{wait:?}");
    let (sender, receiver) = mpsc::channel();
    let _subscription = x.subscribe(1, move |state| sender.send(state).unwrap());
    assert!(receiver.recv_timeout(rig::LIMIT).unwrap().is_err(), "a callback");
}

/// A timeline is failed by the host at the moment when its own operation fails, too. Whichever came first, what waits
/// for the timeline fails with the failure that the timeline shows (S1, S3).
#[test]
fn dependants_fail_with_the_failure_that_their_timeline_shows() {
    let (here, there) = (TestEngine::new(1, NativeWaits::None), TestEngine::new(1, NativeWaits::None));
    let ([x, y], foreign) = (here.semaphores(), there.semaphore());
    // The callback runs while the signals of job 1 are on their way: the first of them has been delivered.
    let _subscription = foreign.subscribe(1, {
        let x = x.clone();
        move |_| {
            x.fail(broken("the host's failure"));
        }
    });
    here.job(0, &[(&x, 1)], &[(&y, 1)], 2);
    here.failing_job(0, &[], &[(&foreign, 1), (&x, 1)], 1, &broken("the device's failure"));
    here.run_until_idle();
    eventually("the dependant has failed", || y.query().is_err());
    let (shown, inherited) = (x.query().unwrap_err(), y.query().unwrap_err());
    assert!(inherited.same_root(&shown), "the timeline shows '{shown}', its dependant '{inherited}'");
}

/// The host fails a timeline while the signal that would move it is on its way. If the signal loses, nothing that
/// waited for it may end well: an effect whose cause never comes (S1).
#[test]
fn dependant_never_succeeds_on_a_timeline_that_never_reaches_its_value() {
    let (here, there) = (TestEngine::new(1, NativeWaits::None), TestEngine::new(1, NativeWaits::None));
    let ([x, y], foreign) = (here.semaphores(), there.semaphore());
    let _subscription = foreign.subscribe(1, {
        let x = x.clone();
        move |_| {
            x.fail(broken("given up"));
        }
    });
    here.barrier(0, &[(&x, 1)], &[(&y, 1)]);
    here.job(0, &[], &[(&foreign, 1), (&x, 1)], 1);
    here.run_until_idle();
    eventually("the foreign callback has run", || x.query().is_err());
    eventually("the barrier has ended", || here.engine.counts().operations == 0);
    assert_eq!(y.query().is_ok(), x.value() >= 1, "x: {x:?}, y: {y:?}");
}

/// A thread waits for a value that another thread signals at once. A slow callback of some other timeline must
/// not turn that into a passed deadline (S1, S13).
#[test]
fn wait_for_a_reached_value_returns_while_another_callback_runs() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let [slow, x] = rig.semaphores();
    let (begun, begins) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let _subscription = slow.subscribe(1, move |_| {
        begun.send(()).unwrap();
        // An error means that the test is over, which is as good.
        let _ = released.recv();
    });
    std::thread::scope(|scope| {
        let release = release;
        let (engine, awaited) = (&rig.engine, x.clone());
        let waiter = scope.spawn(move || {
            let until = Some(Duration::from_secs(1));
            engine.wait(WaitMode::All, &[(awaited, 1)], &SystemClock::new(), until)
        });
        while rig.engine.counts().host_waits == 0 {
            std::thread::yield_now();
        }
        scope.spawn(|| slow.signal(1).unwrap());
        begins.recv().unwrap();
        x.signal(1).unwrap();
        let waited = waiter.join().unwrap();
        drop(release);
        assert!(waited.is_ok(), "x is {:?}, the wait says {waited:?}", x.query());
    });
}

/// A wait for any of two timelines succeeds if one has its value, though the other has failed (S1).
#[test]
fn wait_for_any_prefers_a_reached_timeline_to_a_failed_one() {
    let rig = TestEngine::new(1, NativeWaits::None);
    let [x, y] = rig.semaphores();
    y.signal(1).unwrap();
    x.fail(broken("given up"));
    let points = [(x, 1), (y, 1)];
    let waited = rig.engine.wait(WaitMode::Any, &points, &SystemClock::new(), None);
    assert!(matches!(waited, Ok(1)), "{waited:?}");
}
