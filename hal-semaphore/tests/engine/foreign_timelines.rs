// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Timelines that are not the engine's own semaphores: those of another driver, and those with a copy of their
//! value in a layout of another library (rules S1, S8, S9).
//!
//! The engine keeps the state of a timeline that is registered with it, and [shows](Timeline::show) each step
//! to the copy. About any other timeline it knows what [`Timeline::subscribe`] reports, and delivers the
//! signals of operations by [`Timeline::deliver`], which never happens on a thread that is inside `submit`.

use crate::fake::Fake;
use crate::fake_timeline::{FakeTimeline, TimelineCall};
use crate::rig::{LIMIT, broken, device, eventually, within};
use hal_semaphore::backend::{DeferredCallbacks, NativeWaits};
use hal_semaphore::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

type Bare = Fake<FakeTimeline, u64>;

struct Setup {
    engine: Engine<Bare>,
}

impl Setup {
    fn new() -> Self {
        let device = Bare::new(device(1, NativeWaits::None));
        let in_a_thread =
            |_: &Bare, callbacks: DeferredCallbacks| drop(std::thread::spawn(|| callbacks.run()));
        Self { engine: device.on_defer(in_a_thread).start() }
    }

    fn that_keeps_deferred() -> Self {
        Self { engine: Bare::new(device(1, NativeWaits::None)).keeps_deferred().start() }
    }

    /// A timeline of the engine, with a copy of its value and with waiters of its own.
    fn mirrored(&self) -> FakeTimeline {
        FakeTimeline::with_waiters(&self.engine)
    }

    fn submit(&self, waits: &[(FakeTimeline, u64)], signals: &[(FakeTimeline, u64)], action: Action<u64>) {
        self.engine.submit(Affinity::ANY, waits, signals, action).unwrap();
    }

    fn complete(&self, epoch: u64) {
        let queue = self.engine.queue(0).unwrap();
        self.engine.backend().complete(queue, epoch);
    }

    fn run_deferred(&self) -> usize {
        self.engine.backend().run_deferred()
    }
}

/// One signal releases a chain of barriers, each of which signals the wait of the next. The timeline is shown
/// each step, and many steps are published as one: its waiters are not woken for each link (S7).
#[test]
fn steps_of_a_released_chain_are_published_together() {
    const LINKS: u64 = 256;
    let setup = Setup::new();
    let chain = setup.mirrored();
    for link in 1..=LINKS {
        setup.submit(&[(chain.clone(), link)], &[(chain.clone(), link + 1)], Action::Barrier);
    }
    chain.signal(1).unwrap();
    assert_eq!((chain.value(), chain.shown.lock().unwrap().len() as u64), (LINKS + 1, LINKS + 1));
    let recorded = chain.recorded.lock().unwrap().len();
    assert!(recorded <= 16, "{LINKS} steps were published {recorded} times");
    assert!(matches!(chain.notified.lock().unwrap().last(), Some(Ok(last)) if *last == LINKS + 1));
}

/// Two timelines of other drivers are both unknown to the engine, which is no reason to take them for one (S9).
#[test]
fn signals_of_two_foreign_timelines_are_both_delivered() {
    let setup = Setup::new();
    let [a, b] = std::array::from_fn(|_| FakeTimeline::foreign());
    setup.submit(&[], &[(a.clone(), 1), (b.clone(), 1)], Action::Barrier);
    for at in [a, b] {
        eventually("the signal is delivered", || at.delivered.lock().unwrap().len() == 1);
        assert!(matches!(at.delivered.lock().unwrap()[..], [Ok(1)]));
    }
}

/// The driver of a foreign timeline panics in `subscribe`. The operation that waits for it would never be
/// released, so it fails instead (S3, S9).
#[test]
fn wait_for_a_timeline_without_subscription_fails() {
    let setup = Setup::new();
    let bad = FakeTimeline::foreign();
    bad.panic_at(TimelineCall::Subscribe);
    let y = setup.mirrored();
    setup.submit(&[(bad, 1)], &[(y.clone(), 1)], Action::Queue(1));
    eventually("the operation has failed", || y.failure().is_some());
    eventually("its work is reclaimed", || setup.engine.backend().reclaimed() == 1);
    assert_eq!((setup.engine.counts().operations, setup.engine.counts().panics), (0, 1));
    assert!(setup.engine.lost().is_none(), "the device has nothing to do with it");
}

/// A foreign wait has one subscription, which releases it and is dropped then (S9).
#[test]
fn foreign_wait_is_released_by_its_subscriber() {
    for (state, ends_well) in [(Ok(3), true), (Ok(2), false), (Err(broken("the other driver's")), false)] {
        let setup = Setup::new();
        let (x, y) = (FakeTimeline::foreign(), setup.mirrored());
        setup.submit(&[(x.clone(), 3)], &[(y.clone(), 1)], Action::Barrier);
        eventually("the timeline has a subscriber", || x.subscribers.lock().unwrap().len() == 1);
        let (value, subscriber) = x.subscribers.lock().unwrap()[0].clone();
        assert_eq!((value, y.value()), (3, 0));
        subscriber.notify(state.clone());
        eventually("the operation is notified", || {
            y.value() == 1 || y.failure().is_some() || matches!(state, Ok(2))
        });
        assert_eq!(y.value() == 1, ends_well);
        if matches!(state, Ok(2)) {
            subscriber.notify(Err(broken("after a value that is not enough")));
        }
        eventually("the subscription is dropped", || x.unsubscribed.load(Ordering::SeqCst) == 1);
        // Late, twice, and after the wait: harmless.
        subscriber.notify(Ok(4));
        subscriber.notify(Err(broken("late")));
        assert_eq!(setup.engine.counts().operations, 0);
    }
}

/// The copy is shown the steps in order, with a failure at the value that had been reached, and before the work
/// is reclaimed (S1, S5).
#[test]
fn steps_of_a_mirrored_timeline_are_shown_in_order() {
    let setup = Setup::new();
    let x = setup.mirrored();
    for value in 1..=3 {
        setup.submit(&[], &[(x.clone(), 10 * value)], Action::Queue(value));
    }
    assert!(x.shown.lock().unwrap().is_empty(), "nothing has completed");
    setup.complete(1);
    assert_eq!(x.value(), 10);
    x.signal(15).unwrap();
    setup.complete(2);
    let cause = broken("the program gives up");
    assert!(x.fail(&cause));
    assert!(!x.fail(&broken("too late")));
    setup.complete(3);
    let shown = x.shown.lock().unwrap();
    let last = shown.last().copied();
    let moves: Vec<u64> = shown.iter().filter_map(|step| step.ok()).collect();
    assert_eq!((moves, last), (vec![10, 15, 20], Some(Err(20))));
    let (failed_at, failure) = x.failed_at.get().unwrap();
    assert!(*failed_at == 20 && failure.same_root(&cause));
    assert!(x.registered().query().unwrap_err().same_root(&cause));
    assert_eq!((x.registered().value(), setup.engine.backend().reclaimed()), (20, 3));
}

/// Waiters that only the timeline knows are notified after the step is shown, when the timeline knows its point
/// (S1).
#[test]
fn waiters_of_a_mirrored_timeline_are_notified_of_the_point() {
    let setup = Setup::new();
    let x = setup.mirrored();
    setup.submit(&[], &[(x.clone(), 1)], Action::Queue(1));
    assert!(x.notified.lock().unwrap().is_empty());
    setup.complete(1);
    eventually("the waiters are notified", || !x.notified.lock().unwrap().is_empty());
    let queue = setup.engine.queue(0).unwrap();
    let recorded = x.recorded.lock().unwrap().clone();
    assert!(
        matches!(&recorded[..], [(Ok(1), Some(point))] if *point == Point { queue, epoch: 1 }),
        "{recorded:?}"
    );
    let notified = x.notified.lock().unwrap().clone();
    assert!(matches!(notified[..], [Ok(1)]), "{notified:?}");
}

/// Of consecutive values of one timeline its waiters are notified of the last only, and of no other timeline's
/// (S1).
#[test]
fn waiters_of_a_mirrored_timeline_are_notified_once_of_values_in_a_row() {
    let setup = Setup::new();
    let [x, y] = std::array::from_fn(|_| setup.mirrored());
    // The second of y's is there already when its operation ends.
    for (timeline, value) in [(&x, 1), (&x, 2), (&y, 2), (&y, 1), (&x, 3), (&x, 4), (&x, 5)] {
        setup.submit(&[], &[(timeline.clone(), value)], Action::Queue(1));
    }
    let queue = setup.engine.queue(0).unwrap();
    setup.engine.backend().completer().fail(queue, 7, broken("parity")).unwrap();
    eventually("the failure is notified", || x.notified.lock().unwrap().iter().any(Result::is_err));
    let recorded = |at: &FakeTimeline| -> Vec<_> {
        let recorded = at.recorded.lock().unwrap();
        recorded.iter().map(|(state, by)| (state.clone().ok(), by.map(|point| point.epoch))).collect()
    };
    assert_eq!(recorded(&x), [(Some(2), Some(2)), (Some(4), Some(6)), (None, Some(7))]);
    assert_eq!(recorded(&y), [(Some(2), Some(3))]);
    let notified = |at: &FakeTimeline| -> Vec<_> {
        at.notified.lock().unwrap().iter().map(|state| state.clone().ok()).collect()
    };
    assert_eq!((notified(&x), notified(&y)), (vec![Some(2), Some(4), None], vec![Some(2)]));
    let shown = y.shown.lock().unwrap().clone();
    assert_eq!(shown, [Ok(2)], "what is there already is no step");
}

/// A timeline without waits records its step at once, on the thread where the operation ends: no other thread
/// is involved (S8).
#[test]
fn timeline_without_waiters_records_the_end_of_its_operation() {
    let setup = Setup::that_keeps_deferred();
    let [x, y] = std::array::from_fn(|_| FakeTimeline::own(&setup.engine));
    setup.submit(&[], &[(x.clone(), 1)], Action::Barrier);
    setup.submit(&[], &[(x.clone(), 2), (y.clone(), 1)], Action::Barrier);
    assert_eq!(setup.run_deferred(), 0);
    let recorded = |at: &FakeTimeline| -> Vec<_> {
        at.recorded.lock().unwrap().iter().map(|(state, _)| state.clone().ok()).collect()
    };
    assert_eq!((recorded(&x), recorded(&y)), (vec![Some(1), Some(2)], vec![Some(1)]));
    assert!(x.notified.lock().unwrap().is_empty() && y.notified.lock().unwrap().is_empty());
}

/// Callbacks that are deferred to the backend run in the order in which they became due, whichever the backend
/// runs first (S8).
#[test]
fn callbacks_deferred_to_the_backend_run_in_order() {
    let setup = Setup::that_keeps_deferred();
    let order = Arc::new(Mutex::new(Vec::new()));
    let timelines: Vec<_> = (0..3).map(|_| FakeTimeline::own(&setup.engine)).collect();
    for (number, timeline) in timelines.iter().enumerate() {
        let order = order.clone();
        timeline.at(TimelineCall::Notify, move || order.lock().unwrap().push(number));
    }
    for timeline in &timelines {
        setup.submit(&[], &[(timeline.clone(), 1)], Action::Barrier);
    }
    assert_eq!(setup.run_deferred(), 3);
    assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
}

/// A timeline says that it has failed as soon as it has, and not before.
#[test]
fn registration_says_whether_its_timeline_has_failed() {
    let setup = Setup::new();
    let x = setup.mirrored();
    x.signal(1).unwrap();
    assert!(!x.registered().has_failed());
    x.fail(&broken("given up"));
    assert!(x.registered().has_failed());
}

/// Of a host step and the engine's own, made at the same time by two threads, the copy and the truth agree in the end:
/// there is one order of steps (S1).
#[test]
fn mirror_and_truth_agree_after_a_race() {
    within(4 * LIMIT, || {
        let begin = Instant::now();
        // A busy machine has fewer rounds, and more ways in which they go.
        for round in (0..2000).take_while(|_| begin.elapsed() < LIMIT / 12) {
            let setup = Setup::new();
            let x = setup.mirrored();
            setup.submit(&[], &[(x.clone(), 2)], Action::Queue(1));
            std::thread::scope(|scope| {
                scope.spawn(|| setup.complete(1));
                match round % 2 {
                    0 => drop(x.fail(&broken("given up"))),
                    // Refused if the device was first.
                    _ => drop(x.signal(1)),
                }
            });
            let truth = (x.registered().value(), x.registered().query().is_err());
            assert_eq!((x.value(), x.failure().is_some()), truth);
            let shown = x.shown.lock().unwrap();
            assert!(shown.iter().filter_map(|step| step.as_ref().ok()).is_sorted(), "{shown:?}");
            assert_eq!(shown.iter().filter(|step| step.is_err()).count(), usize::from(truth.1));
            assert_eq!(setup.engine.counts().panics, 0, "steps are recorded as they were shown");
        }
    });
}

/// Callbacks and foreign deliveries that become due inside `submit` go to the backend, which runs them where it likes.
/// The value is there at once; until the backend runs them nothing else has happened (S8).
#[test]
fn callback_that_becomes_due_inside_submit_runs_on_the_backends_thread() {
    let setup = Setup::that_keeps_deferred();
    let (x, y) = (setup.mirrored(), FakeTimeline::foreign());
    let called = Arc::new(AtomicUsize::new(0));
    x.at(TimelineCall::Notify, {
        let called = called.clone();
        move || _ = called.fetch_add(1, Ordering::SeqCst)
    });
    setup.submit(&[], &[(x.clone(), 1), (y.clone(), 1)], Action::Barrier);
    assert_eq!(x.value(), 1);
    assert_eq!(called.load(Ordering::SeqCst), 0);
    assert!(y.delivered.lock().unwrap().is_empty());
    assert!(setup.run_deferred() > 0);
    assert_eq!(called.load(Ordering::SeqCst), 1);
    assert!(matches!(y.delivered.lock().unwrap()[..], [Ok(1)]));
    assert_eq!(setup.run_deferred(), 0);
}

/// A backend drops the deferred callbacks. That ends nothing else: the operation has ended, and the engine
/// takes more work (S8, S10).
#[test]
fn dropped_deferred_callbacks_still_run() {
    within(LIMIT, || {
        let setup = Setup::that_keeps_deferred();
        let x = setup.mirrored();
        x.at(TimelineCall::Notify, || ());
        setup.submit(&[], &[(x.clone(), 1)], Action::Barrier);
        setup.engine.backend().deferred.lock().unwrap().clear();
        setup.submit(&[(x.clone(), 1)], &[(x.clone(), 2)], Action::Barrier);
        assert_eq!((x.value(), setup.engine.counts().operations), (2, 0));
    });
}

/// An operation signals some values of one timeline, and another driver's timeline in between. The delivery for
/// the other driver is posted before the engine's own timeline moves, through which others may see the end; the
/// engine's own steps keep their order (S1, S9).
#[test]
fn signals_of_an_operation_are_made_in_order_behind_posted_deliveries() {
    let setup = Setup::new();
    let (x, y) = (setup.mirrored(), FakeTimeline::foreign());
    // The engine asks for the identity when it posts the delivery.
    let value_when_posted = Arc::new(OnceLock::new());
    y.at(TimelineCall::Identity, {
        let (x, value_when_posted) = (x.clone(), value_when_posted.clone());
        move || value_when_posted.set(x.registered().value()).unwrap()
    });
    let signals = [(x.clone(), 1), (x.clone(), 2), (y.clone(), 1), (x.clone(), 3)];
    setup.submit(&[], &signals, Action::Queue(1));
    setup.complete(1);
    assert_eq!((x.shown.lock().unwrap().as_slice(), x.value()), (&[Ok(1), Ok(2), Ok(3)][..], 3));
    assert_eq!(value_when_posted.get(), Some(&0));
    eventually("it is delivered", || y.delivered.lock().unwrap().len() == 1);
    setup.submit(&[], &[(x.clone(), 4), (x.clone(), 5)], Action::Queue(2));
    setup.complete(2);
    assert_eq!(x.shown.lock().unwrap()[3..], [Ok(4), Ok(5)]);
}

/// A signal below the value of another driver's timeline is refused like one of the engine's own. A failed
/// timeline takes any signal, which is dropped (S9).
#[test]
fn signal_of_a_foreign_timeline_that_is_past_it_is_refused() {
    let setup = Setup::new();
    let x = FakeTimeline::foreign_at(5);
    let refused = setup.engine.submit(Affinity::ANY, &[], &[(x.clone(), 5)], Action::Barrier);
    let not_above = SubmitError::SignalNotAbove { value: 5, current: 5 };
    assert!(matches!(refused, Err(Refused { error, .. }) if error == not_above));
    setup.submit(&[], &[(x, 6)], Action::Barrier);
    let failed = FakeTimeline::foreign();
    failed.failed_at.set((0, broken("the other driver's"))).unwrap();
    setup.submit(&[], &[(failed, 0)], Action::Barrier);
}
