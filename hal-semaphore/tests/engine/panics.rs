// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Foreign code that panics, at each place where the engine calls or drops it (rules S3, S5, S8, S10).
//!
//! A panic delays nothing else: operations end once, their work is reclaimed, no count is lost
//! that a shutdown waits for, and no lock stays taken.

use crate::fake::Fake;
use crate::fake_timeline::{FakeTimeline, TimelineCall};
use crate::rig::{self, LIMIT, device, eventually, within};
use hal_semaphore::backend::{Completion, DeviceSpec, NativeWaits};
use hal_semaphore::timeline::TimelineValues;
use hal_semaphore::*;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

/// Work that panics when `calls_back` sees it, or when it is dropped.
struct PanickingWork {
    id: u64,
    asked: bool,
    dropped: bool,
}

impl Drop for PanickingWork {
    fn drop(&mut self) {
        assert!(!self.dropped || std::thread::panicking(), "work panics when it is dropped");
    }
}

/// The work that was reclaimed, and on which thread.
type Reclaimed = Arc<Mutex<Vec<(u64, ThreadId)>>>;

#[derive(Clone)]
struct PanicSetup(Engine<Fake<FakeTimeline, PanickingWork>>, Reclaimed);

impl PanicSetup {
    fn new() -> Self {
        let reclaimed = Reclaimed::default();
        let into = reclaimed.clone();
        let engine = Fake::new(device(1, NativeWaits::None))
            .calls_back(|work: &mut Option<PanickingWork>| {
                assert!(work.as_ref().is_none_or(|work| !work.asked), "the backend panics in calls_back");
                false
            })
            .on_reclaim(move |_, ended| {
                if let Some(work) = ended.work {
                    into.lock().unwrap().push((work.id, thread::current().id()));
                }
            })
            .start();
        Self(engine, reclaimed)
    }

    fn own(&self) -> FakeTimeline {
        FakeTimeline::own(&self.0)
    }

    fn submit(
        &self,
        waits: &[(&FakeTimeline, u64)],
        signals: &[(&FakeTimeline, u64)],
        action: Action<PanickingWork>,
    ) {
        let owned = |points: &[(&FakeTimeline, u64)]| -> Vec<_> {
            points.iter().map(|(timeline, value)| (timeline.handle(), *value)).collect()
        };
        self.0.submit(Affinity::ANY, &owned(waits), &owned(signals), action).unwrap();
    }

    fn job(&self, waits: &[(&FakeTimeline, u64)], signals: &[(&FakeTimeline, u64)], id: u64) {
        self.submit(waits, signals, Action::Queue(PanickingWork { id, asked: false, dropped: false }));
    }

    /// Reports everything up to an epoch, on a thread of the device.
    fn report(&self, epoch: u64) {
        self.0.backend().complete(self.0.queue(0).unwrap(), epoch);
    }

    /// Fails the test unless everything has ended and nothing is counted that has.
    fn finish(&self, what: &str) {
        let begin = std::time::Instant::now();
        let clock = SystemClock::new();
        let ended = self.0.shut_down(&clock, LIMIT / 5, LIMIT / 5);
        assert!(ended.is_ok() && begin.elapsed() < LIMIT / 5, "{what}: {ended:?}");
        assert_eq!(self.0.counts().operations, 0, "{what}");
    }

    fn reclaimed(&self) -> Vec<u64> {
        let mut reclaimed: Vec<u64> = self.1.lock().unwrap().iter().map(|&(id, _)| id).collect();
        reclaimed.sort_unstable();
        reclaimed
    }
}

/// For each recorded step, true if it was a value.
fn recorded(timeline: &FakeTimeline) -> Vec<bool> {
    timeline.recorded.lock().unwrap().iter().map(|(state, _)| state.is_ok()).collect()
}

fn has_ended(timeline: &FakeTimeline) -> bool {
    timeline.registered().query().is_err() || timeline.value() > 0
}

/// A timeline's driver panics in `show`, `record_step`, `notify` or when its handle is dropped, on a thread
/// that completes a job. The timeline has its value, or fails; later work continues (S3, S5, S10).
#[test]
fn timeline_that_panics_while_a_job_ends_delays_nothing() {
    for call in [TimelineCall::Show, TimelineCall::RecordStep, TimelineCall::Notify, TimelineCall::Drop] {
        within(LIMIT, move || {
            let setup = PanicSetup::new();
            let [before, bad, behind, next] = std::array::from_fn(|_| setup.own());
            setup.job(&[], &[(&before, 1), (&bad, 1), (&behind, 1)], 1);
            setup.job(&[(&behind, 1)], &[(&next, 1)], 2);
            bad.panic_at(call);
            let reported = catch_unwind(AssertUnwindSafe(|| setup.report(1)));
            assert!(reported.is_ok(), "{call:?}: the device has nothing to do with it");
            setup.report(2);
            for (name, timeline) in [("before", &before), ("bad", &bad), ("behind", &behind), ("next", &next)]
            {
                eventually(&format!("{call:?}: {name} has ended"), || has_ended(timeline));
            }
            assert_eq!((behind.value(), next.value()), (1, 1), "{call:?}: what did not panic is fulfilled");
            assert_eq!(bad.value(), u64::from(call != TimelineCall::Show), "{call:?}");
            if call == TimelineCall::Show {
                assert_eq!(recorded(&bad), [false], "it records that it has failed");
            }
            if call == TimelineCall::RecordStep {
                // It may have waiters: they are notified, in case.
                eventually("its waiters are notified", || bad.notified_by.lock().unwrap().len() == 1);
            }
            eventually("both are reclaimed", || setup.reclaimed() == [1, 2]);
            assert_eq!(setup.0.counts().panics, 1, "{call:?}");
            setup.finish(&format!("{call:?}"));
        });
    }
}

/// A handle panics when it is dropped because a later value of its timeline is enough. The later value is
/// recorded (S5, S10).
#[test]
fn handle_that_panics_beside_a_later_value_delays_nothing() {
    within(LIMIT, || {
        let setup = PanicSetup::new();
        let [bad, behind] = std::array::from_fn(|_| setup.own());
        for value in 1..=3 {
            setup.job(&[], &[(&bad, value)], value);
        }
        setup.job(&[], &[(&behind, 1)], 4);
        bad.panic_at(TimelineCall::Drop);
        let reported = catch_unwind(AssertUnwindSafe(|| setup.report(4)));
        assert!(reported.is_ok(), "the device has nothing to do with it");
        eventually("all are reclaimed", || setup.reclaimed() == [1, 2, 3, 4]);
        assert_eq!((bad.value(), behind.value(), setup.0.counts().panics), (3, 1, 1));
        assert_eq!(recorded(&bad), [true]);
        setup.finish("a handle");
    });
}

/// The state of a device whose driver panics in `poll` is unknown: it is lost with its work (S3, S10).
#[test]
fn device_that_panics_in_poll_is_lost() {
    let polled = DeviceSpec { completion: Completion::Poll, ..device(1, NativeWaits::None) };
    let engine = Fake::new(polled).on_poll(|_| panic!("the driver panics in poll")).start();
    let x = Semaphore::new(&engine, 0).unwrap();
    engine.poll();
    assert!(engine.lost().is_none(), "an idle device is not polled");
    engine.submit(Affinity::ANY, &[], &[(x.clone(), 1)], Action::Queue(())).unwrap();
    engine.poll();
    let cause = engine.lost().unwrap();
    assert!(x.query().unwrap_err().same_root(&cause));
    assert_eq!(engine.counts().panics, 1);
}

/// The same inside `submit`, where calls of the program are left to another thread (S8, S10).
#[test]
fn timeline_that_panics_inside_submit_delays_nothing() {
    for call in [TimelineCall::Show, TimelineCall::RecordStep, TimelineCall::Notify, TimelineCall::Drop] {
        within(LIMIT, move || {
            let setup = PanicSetup::new();
            let [bad, behind] = std::array::from_fn(|_| setup.own());
            let signals = [(bad.handle(), 1), (behind.handle(), 1)];
            bad.panic_at(call);
            let submitted = catch_unwind(AssertUnwindSafe(|| {
                setup.0.submit(Affinity::ANY, &[], &signals, Action::Barrier).unwrap();
            }));
            assert!(submitted.is_ok(), "{call:?}: the submission has nothing to do with it");
            std::mem::forget(signals);
            for timeline in [&bad, &behind] {
                eventually(&format!("{call:?}: it has ended"), || has_ended(timeline));
            }
            eventually(&format!("{call:?} has panicked"), || setup.0.counts().panics == 1);
            setup.finish(&format!("{call:?}"));
        });
    }
}

/// A failure is shown to a timeline whose driver panics. It has failed all the same, with that failure (S3).
#[test]
fn timeline_that_panics_when_it_is_shown_a_failure_has_failed_with_it() {
    let setup = PanicSetup::new();
    let [x, bad, behind] = std::array::from_fn(|_| setup.own());
    let cause = rig::broken("given up");
    setup.job(&[(&x, 1)], &[(&bad, 1), (&behind, 1)], 1);
    bad.panic_at(TimelineCall::Show);
    x.fail(&cause);
    for timeline in [&bad, &behind] {
        assert!(timeline.registered().query().unwrap_err().same_root(&cause));
    }
    setup.finish("a failure");
}

/// Another driver panics in `deliver`, or when its subscription is dropped; two of them at once, too (S9, S10).
#[test]
fn other_driver_that_panics_delays_nothing() {
    for call in [TimelineCall::Identity, TimelineCall::Deliver, TimelineCall::Drop, TimelineCall::Unsubscribe]
    {
        within(LIMIT, move || {
            let setup = PanicSetup::new();
            let (bad, other_bad, good, x, next) = (
                FakeTimeline::foreign(),
                FakeTimeline::foreign(),
                FakeTimeline::foreign(),
                setup.own(),
                setup.own(),
            );
            setup.job(&[(&bad, 1), (&other_bad, 1)], &[(&x, 1)], 1);
            setup.job(&[(&x, 1)], &[(&next, 1), (&bad, 2), (&other_bad, 2), (&good, 1)], 2);
            bad.panic_at(call);
            other_bad.panic_at(call);
            for timeline in [&bad, &other_bad] {
                let subscribers = std::mem::take(&mut *timeline.subscribers.lock().unwrap());
                subscribers.into_iter().for_each(|(_, subscriber)| subscriber.notify(Ok(1)));
            }
            setup.report(1);
            setup.report(2);
            eventually(&format!("{call:?}: the signals are out"), || next.value() == 1);
            eventually("the good one gets its delivery", || {
                matches!(good.delivered.lock().unwrap()[..], [Ok(1)])
            });
            eventually("both are reclaimed", || setup.reclaimed() == [1, 2]);
            eventually(&format!("{call:?} has panicked twice"), || setup.0.counts().panics == 2);
            setup.finish(&format!("{call:?}"));
        });
    }
}

/// Another driver's timeline is reached during `subscribe`, and its driver panics when the handle is dropped,
/// or the subscription that is no longer needed. The submission is not affected (S9, S10).
#[test]
fn other_driver_that_panics_after_its_subscription_delays_nothing() {
    for call in [TimelineCall::Drop, TimelineCall::Unsubscribe] {
        within(LIMIT, move || {
            let setup = PanicSetup::new();
            let (bad, x) = (FakeTimeline::foreign(), setup.own());
            bad.at(TimelineCall::Subscribe, {
                let bad = bad.0.clone();
                move || {
                    let (_, subscriber) = bad.subscribers.lock().unwrap().pop().unwrap();
                    subscriber.notify(Ok(1));
                    bad.panic_at(call);
                }
            });
            let (waits, signals) = ([(bad.handle(), 1)], [(x.handle(), 1)]);
            let submit = || setup.0.submit(Affinity::ANY, &waits, &signals, Action::Barrier).unwrap();
            assert!(catch_unwind(AssertUnwindSafe(submit)).is_ok(), "{call:?}");
            assert_eq!((x.value(), setup.0.counts().panics), (1, 1), "{call:?}");
            assert!(!bad.has_hook(call), "{call:?}");
            setup.finish(&format!("{call:?}"));
        });
    }
}

/// A timeline's driver panics inside `submit`, in `clone` or in `failed_before`. Either the submission has not
/// happened, or the operation fails. Its waits do not affect the next one (S1, S10).
#[test]
fn submission_whose_timeline_panics_leaves_nothing_behind() {
    for (call, foreign) in
        [(TimelineCall::Clone, false), (TimelineCall::Clone, true), (TimelineCall::FailedBefore, false)]
    {
        within(LIMIT, move || {
            let setup = PanicSetup::new();
            let [a, b, x, y] = std::array::from_fn(|_| setup.own());
            let bad = if foreign { FakeTimeline::foreign() } else { setup.own() };
            let waits = [(a.handle(), 1), (bad.handle(), 1)];
            let signals = [(y.handle(), 1), (bad.handle(), 2)];
            let signals = if foreign { &signals[..1] } else { &signals[..] };
            bad.panic_at(call);
            let submit = || setup.0.submit(Affinity::ANY, &waits, signals, Action::Barrier);
            let happened = catch_unwind(AssertUnwindSafe(submit)).is_ok();
            if happened {
                assert_eq!(y.failure().unwrap().code(), Code::Internal);
                assert_eq!(setup.0.counts().panics, 1);
            }
            assert_eq!(setup.0.counts().operations, 0, "{call:?}: nothing is left of it");
            setup.job(&[(&b, 1)], &[(&x, 1)], 2);
            a.signal(1).unwrap();
            assert_eq!(setup.0.counts().in_flight, 0, "{call:?}: what it waits for is not signalled");
            b.signal(1).unwrap();
            setup.report(1);
            eventually(&format!("{call:?}: the job has ended"), || x.value() == 1);
            assert_eq!(y.value(), 0, "{call:?}");
            setup.finish(&format!("{call:?}"));
            assert_eq!(y.failure().is_some(), happened, "{call:?}: what has not happened fails nothing");
        });
    }
}

/// A program's list of timelines and values, which panics at one read more than it allows.
struct Brittle<'a, T> {
    values: &'a [(T, u64)],
    reads: &'a Cell<usize>,
}

impl<T: Timeline> TimelineValues<T> for Brittle<'_, T> {
    fn len(&self) -> usize {
        self.values.len()
    }

    fn get(&self, index: usize) -> Option<(&T, u64)> {
        let left = self.reads.get().checked_sub(1);
        self.reads.set(left.expect("the program's list panics"));
        self.values.get(index).map(|(timeline, value)| (timeline, *value))
    }
}

/// Submits a barrier whose lists panic after this many reads. Returns whether it was accepted.
fn submits<B: Backend>(
    engine: &Engine<B>,
    affinity: Affinity,
    waits: &[(B::Timeline, u64)],
    signals: &[(B::Timeline, u64)],
    reads: usize,
) -> bool {
    let reads = &Cell::new(reads);
    let (waits, signals) = (Brittle { values: waits, reads }, Brittle { values: signals, reads });
    let submit = || engine.submit(affinity, &waits, &signals, Action::Barrier);
    catch_unwind(AssertUnwindSafe(submit)).is_ok_and(|submitted| submitted.is_ok())
}

/// A program's lists panic, at each read of a submission. Until the submission succeeds nothing of it is left:
/// its waits are gone, and its signals are neither made nor failed (S1, S5, S10).
#[test]
fn submission_whose_lists_panic_at_any_read_leaves_nothing_behind() {
    within(LIMIT, || {
        for elsewhere in [false, true] {
            let setup = PanicSetup::new();
            let [a, b, x, y] = std::array::from_fn(|_| setup.own());
            let bad = if elsewhere { FakeTimeline::foreign() } else { setup.own() };
            let signals = [&x, &y].map(|timeline| (timeline.handle(), 1));
            let mut refused = 0;
            let submits = |reads: usize, passing: &FakeTimeline| {
                let waits = [passing, &a, &bad, &b].map(|timeline| (timeline.handle(), 1));
                submits(&setup.0, Affinity::ANY, &waits, &signals, reads)
            };
            let mut passing = setup.own();
            while !submits(refused, &passing) {
                assert_eq!(setup.0.counts().operations, 0, "{refused} reads");
                let handles = Arc::strong_count(&bad.0);
                assert_eq!(
                    handles, 1,
                    "{refused} reads: the engine has a handle on the timeline, or subscribes"
                );
                // The state of a dropped timeline is reused for the next, if nothing waits for it any more.
                passing = setup.own();
                refused += 1;
            }
            assert!(refused > 10, "only {refused} reads were made");
            for timeline in [&a, &b, &bad, &passing] {
                match Timeline::registration(timeline) {
                    Some(_) => timeline.signal(1).unwrap(),
                    None => timeline.raise(1, || ()),
                }
            }
            eventually("the one that was submitted has ended", || (x.value(), y.value()) == (1, 1));
            setup.finish("lists");
            assert!(x.failure().is_none() && y.failure().is_none());
        }
    });
}

/// The same where the device would wait: the event of that wait is not retained.
#[test]
fn submission_whose_lists_panic_holds_no_event() {
    let rig = rig::TestEngine::new(2, NativeWaits::Events);
    let [x, y, z] = rig.semaphores();
    rig.job(0, &[], &[(&x, 1)], 1);
    let (waits, signals) = ([(x, 1), (y.clone(), 1)], [(z.clone(), 1)]);
    let mut refused = 0;
    while !submits(&rig.engine, Affinity::queue(1), &waits, &signals, refused) {
        refused += 1;
    }
    assert!(rig.engine.counts().events > 0, "a wait is left to the device");
    y.signal(1).unwrap();
    rig.run_until_idle();
    assert_eq!(z.query().unwrap(), 1);
    rig.assert_idle();
}

/// A program's own step panics where it is shown. Nothing has happened, and the timeline can be moved (S1).
#[test]
fn host_step_that_panics_has_not_happened() {
    let setup = PanicSetup::new();
    let x = setup.own();
    let registration = x.registered();
    let signals = || registration.signal(1, || panic!("the program panics"), Vec::new);
    assert!(catch_unwind(AssertUnwindSafe(signals)).is_err());
    let fails = || registration.fail(&rig::broken("given up"), |_| panic!("the program panics"), Vec::new);
    assert!(catch_unwind(AssertUnwindSafe(fails)).is_err());
    assert_eq!(registration.query().unwrap(), 0);
    registration.signal(1, || {}, Vec::new).unwrap();
    assert_eq!(registration.value(), 1);
    setup.finish("a step");
}

/// The backend panics in `calls_back`, and the work when it is dropped (S5).
#[test]
fn work_that_panics_delays_nothing() {
    for (asked, dropped) in [(true, false), (false, true)] {
        within(LIMIT, move || {
            let setup = PanicSetup::new();
            let [never, x, y] = std::array::from_fn(|_| setup.own());
            never.fail(&rig::broken("given up"));
            setup.submit(&[(&never, 1)], &[(&x, 1)], Action::Queue(PanickingWork { id: 1, asked, dropped }));
            setup.job(&[(&never, 1)], &[(&y, 1)], 2);
            for timeline in [&x, &y] {
                eventually("it has failed", || timeline.failure().is_some());
            }
            eventually("both are reclaimed", || setup.reclaimed() == [1, 2]);
            setup.finish("work");
        });
    }
}

/// A driver panics in `record_step` and a backend in `calls_back`. For all that is known they may call the
/// program, so they are not notified on the submitting thread, which may hold a lock of the program's (S8).
#[test]
fn timeline_that_panics_in_record_step_is_notified_on_another_thread() {
    within(LIMIT, || {
        let setup = PanicSetup::new();
        let [never, x] = std::array::from_fn(|_| setup.own());
        x.panic_at(TimelineCall::RecordStep);
        setup.submit(&[], &[(&x, 1)], Action::Barrier);
        never.fail(&rig::broken("given up"));
        let work = PanickingWork { id: 1, asked: true, dropped: false };
        setup.submit(&[(&never, 1)], &[], Action::Queue(work));
        let notified_by = || x.notified_by.lock().unwrap().first().copied();
        let reclaimed_by = || setup.1.lock().unwrap().first().map(|&(_, thread)| thread);
        eventually("it is notified and reclaimed", || notified_by().is_some() && reclaimed_by().is_some());
        for thread in [notified_by(), reclaimed_by()] {
            assert_ne!(thread, Some(thread::current().id()));
        }
    });
}

/// A callback's captured state panics when it is dropped, called or not (S8).
#[test]
fn callback_that_panics_when_dropped_delays_nothing() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(std::thread::panicking(), "what a callback holds panics when it goes");
        }
    }
    within(LIMIT, || {
        let rig = rig::TestEngine::new(1, NativeWaits::None);
        let [x, y] = rig.semaphores();
        let called = Arc::new(AtomicU64::new(0));
        let subscribe = |value| {
            let (bomb, called) = (Bomb, called.clone());
            x.subscribe(value, move |_| {
                called.fetch_add(1, Ordering::SeqCst);
                drop(bomb);
            })
        };
        let (first, second) = (subscribe(1), subscribe(2));
        let given_up = catch_unwind(AssertUnwindSafe(|| drop(second)));
        assert!(given_up.is_err(), "it goes where the subscription goes");
        rig.job(0, &[], &[(&x, 1)], 1);
        rig.job(0, &[(&x, 1)], &[(&y, 1)], 2);
        rig.run_until_idle();
        drop(first);
        assert_eq!((x.query().unwrap(), y.query().unwrap(), called.load(Ordering::SeqCst)), (1, 1, 1));
        assert_eq!(rig.engine.counts().panics, 1);
        rig.assert_idle();
    });
}
