// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Foreign code that panics, at each place where the engine calls or drops it (rules S3, S5, S8, S10).
//!
//! Whatever panics, nothing else is delayed: operations end once, their work is reclaimed, no count is lost
//! that a shutdown waits for, and no lock stays taken.

use crate::fake::Fake;
use crate::rig::{self, LIMIT, device, eventually, within};
use hal_semaphore::backend::{Completion, DeviceSpec, NativeWaits};
use hal_semaphore::timeline::{Registration, Subscriber, TimelineValues};
use hal_semaphore::*;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

/// The calls of a timeline's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spot {
    Clone,
    Drop,
    Identity,
    FailedBefore,
    Show,
    RecordStep,
    Notify,
    Deliver,
    Subscribe,
    EndOfSubscription,
}

/// A timeline whose driver panics.
struct MeanTimeline {
    /// Nothing where it belongs to another driver.
    registration: Option<Registration>,
    panics_at: Arc<Mutex<Vec<Spot>>>,
    delivered: Mutex<Vec<bool>>,
    recorded: Mutex<Vec<bool>>,
    notified_by: Mutex<Vec<ThreadId>>,
    subscribers: Mutex<Vec<Subscriber>>,
    /// The call that panics once somebody subscribes; the value has been reached by then.
    panics_when_subscribed: Mutex<Option<Spot>>,
}

/// A handle on a timeline whose driver panics.
struct Mean(Arc<MeanTimeline>);

/// Panics once if it is to. Not on a thread that panics already, which would end the process.
fn come(panics_at: &Mutex<Vec<Spot>>, spot: Spot) {
    if std::thread::panicking() {
        return;
    }
    let mut spots = panics_at.lock().unwrap();
    if let Some(at) = spots.iter().position(|&at| at == spot) {
        spots.remove(at);
        drop(spots);
        panic!("the driver of a timeline panics at {spot:?}");
    }
}

impl Clone for Mean {
    fn clone(&self) -> Self {
        come(&self.0.panics_at, Spot::Clone);
        Self(self.0.clone())
    }
}

impl Drop for Mean {
    fn drop(&mut self) {
        come(&self.0.panics_at, Spot::Drop);
    }
}

struct FakeSubscription(Arc<Mutex<Vec<Spot>>>);

impl Drop for FakeSubscription {
    fn drop(&mut self) {
        come(&self.0, Spot::EndOfSubscription);
    }
}

impl Timeline for Mean {
    type Subscription = FakeSubscription;

    fn registration(&self) -> Option<&Registration> {
        self.0.registration.as_ref()
    }

    fn identity(&self) -> usize {
        come(&self.0.panics_at, Spot::Identity);
        Arc::as_ptr(&self.0).addr()
    }

    fn value(&self) -> u64 {
        self.registration().map_or(0, Registration::value)
    }

    fn failure(&self) -> Option<Failure> {
        self.registration()?.query().err()
    }

    fn show(&self, _state: Result<u64, (u64, &Failure)>) -> Option<Failure> {
        come(&self.0.panics_at, Spot::Show);
        None
    }

    fn failed_before(&self) -> Option<Failure> {
        come(&self.0.panics_at, Spot::FailedBefore);
        None
    }

    fn record_step(&self, state: Result<u64, &Failure>, _by: Option<Point>) -> bool {
        come(&self.0.panics_at, Spot::RecordStep);
        self.0.recorded.lock().unwrap().push(state.is_ok());
        self.0.panics_at.lock().unwrap().contains(&Spot::Notify)
    }

    fn notify(&self, _state: Result<u64, &Failure>) {
        come(&self.0.panics_at, Spot::Notify);
        self.0.notified_by.lock().unwrap().push(thread::current().id());
    }

    fn deliver(&self, state: Result<u64, &Failure>) {
        come(&self.0.panics_at, Spot::Deliver);
        self.0.delivered.lock().unwrap().push(state.is_ok());
    }

    fn subscribe(&self, _value: u64, subscriber: Subscriber) -> FakeSubscription {
        come(&self.0.panics_at, Spot::Subscribe);
        if let Some(spot) = self.0.panics_when_subscribed.lock().unwrap().take() {
            subscriber.notify(Ok(1));
            self.0.panics_at.lock().unwrap().push(spot);
        }
        self.0.subscribers.lock().unwrap().push(subscriber);
        FakeSubscription(self.0.panics_at.clone())
    }
}

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
struct PanicSetup(Engine<Fake<Mean, PanickingWork>>, Reclaimed);

impl PanicSetup {
    fn new() -> Self {
        let reclaimed = Reclaimed::default();
        let into = reclaimed.clone();
        let engine = Fake::new(vec![device(1, NativeWaits::None)])
            .calls_back(|work: &PanickingWork| {
                assert!(!work.asked, "the backend panics in calls_back");
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

    fn timeline(&self, registration: Option<Registration>) -> Mean {
        Mean(Arc::new(MeanTimeline {
            registration,
            panics_at: Arc::default(),
            delivered: Mutex::default(),
            recorded: Mutex::default(),
            notified_by: Mutex::default(),
            subscribers: Mutex::default(),
            panics_when_subscribed: Mutex::default(),
        }))
    }

    fn own(&self) -> Mean {
        self.timeline(Some(self.0.register(0)))
    }

    fn other(&self) -> Mean {
        self.timeline(None)
    }

    fn submit(&self, waits: &[(&Mean, u64)], signals: &[(&Mean, u64)], action: Action<PanickingWork>) {
        let owned = |points: &[(&Mean, u64)]| -> Vec<_> {
            points.iter().map(|(timeline, value)| (Mean(timeline.0.clone()), *value)).collect()
        };
        self.0.submit(0, Affinity::ANY, &owned(waits), &owned(signals), action).unwrap();
    }

    fn job(&self, waits: &[(&Mean, u64)], signals: &[(&Mean, u64)], id: u64) {
        self.submit(waits, signals, Action::Queue(PanickingWork { id, asked: false, dropped: false }));
    }

    /// Reports everything up to an epoch, on a thread of the device.
    fn report(&self, epoch: u64) {
        self.0.backend().complete(self.0.queue(0, 0).unwrap(), epoch);
    }

    /// Fails the test unless everything has ended and nothing is counted that has.
    fn finish(&self, what: &str) {
        let begin = std::time::Instant::now();
        let clock = SystemClock::new();
        let ended = self.0.shut_down(&clock, LIMIT / 5, LIMIT / 5);
        assert!(ended.is_ok() && begin.elapsed() < LIMIT / 5, "{what}: {ended:?}");
        assert_eq!(self.0.occupancy().operations, 0, "{what}");
    }

    fn reclaimed(&self) -> Vec<u64> {
        let mut reclaimed: Vec<u64> = self.1.lock().unwrap().iter().map(|&(id, _)| id).collect();
        reclaimed.sort_unstable();
        reclaimed
    }
}

fn arm(timeline: &Mean, spots: &[Spot]) {
    timeline.0.panics_at.lock().unwrap().extend(spots);
}

fn has_ended(timeline: &Mean) -> bool {
    timeline.value() > 0 || timeline.failure().is_some()
}

/// A timeline's driver panics in `show`, `record_step`, `notify` or when its handle is dropped, on a thread
/// that completes a job. The timeline has its value, or fails; later work continues (S3, S5, S10).
#[test]
fn timeline_that_panics_while_a_job_ends_delays_nothing() {
    for spot in [Spot::Show, Spot::RecordStep, Spot::Notify, Spot::Drop] {
        within(LIMIT, move || {
            let setup = PanicSetup::new();
            let [before, bad, behind, next] = std::array::from_fn(|_| setup.own());
            setup.job(&[], &[(&before, 1), (&bad, 1), (&behind, 1)], 1);
            setup.job(&[(&behind, 1)], &[(&next, 1)], 2);
            arm(&bad, &[spot]);
            let told = catch_unwind(AssertUnwindSafe(|| setup.report(1)));
            assert!(told.is_ok(), "{spot:?}: the device has nothing to do with it");
            setup.report(2);
            for (name, timeline) in [("before", &before), ("bad", &bad), ("behind", &behind), ("next", &next)]
            {
                eventually(&format!("{spot:?}: {name} has ended"), || has_ended(timeline));
            }
            assert_eq!((behind.value(), next.value()), (1, 1), "{spot:?}: what did not panic is fulfilled");
            assert_eq!(bad.value(), u64::from(spot != Spot::Show), "{spot:?}");
            if spot == Spot::Show {
                assert_eq!(*bad.0.recorded.lock().unwrap(), [false], "it records that it has failed");
            }
            if spot == Spot::RecordStep {
                // Whether it has waiters is unknown: they are notified, in case.
                eventually("its waiters are notified", || bad.0.notified_by.lock().unwrap().len() == 1);
            }
            eventually("both are reclaimed", || setup.reclaimed() == [1, 2]);
            assert_eq!(setup.0.stats().panics, 1, "{spot:?}");
            setup.finish(&format!("{spot:?}"));
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
        arm(&bad, &[Spot::Drop]);
        let told = catch_unwind(AssertUnwindSafe(|| setup.report(4)));
        assert!(told.is_ok(), "the device has nothing to do with it");
        eventually("all are reclaimed", || setup.reclaimed() == [1, 2, 3, 4]);
        assert_eq!((bad.value(), behind.value(), setup.0.stats().panics), (3, 1, 1));
        assert_eq!(*bad.0.recorded.lock().unwrap(), [true]);
        setup.finish("a handle");
    });
}

/// The state of a device whose driver panics in `poll` is unknown: it is lost with its work (S3, S10).
#[test]
fn device_that_panics_in_poll_is_lost() {
    let polled = DeviceSpec { completion: Completion::Poll, ..device(1, NativeWaits::None) };
    let engine = Fake::new(vec![polled]).on_poll(|_, _| panic!("the driver panics in poll")).start();
    let x = Semaphore::new(&engine, 0).unwrap();
    engine.poll();
    assert!(engine.lost(0).is_none(), "an idle device is not polled");
    engine.submit(0, Affinity::ANY, &[], &[(x.clone(), 1)], Action::Queue(())).unwrap();
    engine.poll();
    let cause = engine.lost(0).unwrap();
    assert!(x.query().unwrap_err().same_root(&cause));
    assert_eq!(engine.stats().panics, 1);
}

/// The same inside `submit`, where calls of the program are left to another thread (S8, S10).
#[test]
fn timeline_that_panics_inside_submit_delays_nothing() {
    for spot in [Spot::Show, Spot::RecordStep, Spot::Notify, Spot::Drop] {
        within(LIMIT, move || {
            let setup = PanicSetup::new();
            let [bad, behind] = std::array::from_fn(|_| setup.own());
            let signals = [(Mean(bad.0.clone()), 1), (Mean(behind.0.clone()), 1)];
            arm(&bad, &[spot]);
            let submitted = catch_unwind(AssertUnwindSafe(|| {
                setup.0.submit(0, Affinity::ANY, &[], &signals, Action::Barrier).unwrap();
            }));
            assert!(submitted.is_ok(), "{spot:?}: the submission has nothing to do with it");
            std::mem::forget(signals);
            for timeline in [&bad, &behind] {
                eventually(&format!("{spot:?}: it has ended"), || has_ended(timeline));
            }
            eventually(&format!("{spot:?} has panicked"), || setup.0.stats().panics == 1);
            setup.finish(&format!("{spot:?}"));
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
    arm(&bad, &[Spot::Show]);
    x.registration().unwrap().fail(&cause);
    for timeline in [&bad, &behind] {
        assert!(timeline.failure().unwrap().same_root(&cause));
    }
    setup.finish("a failure");
}

/// Another driver panics in `deliver`, or when its subscription is dropped; two of them at once, too (S9, S10).
#[test]
fn other_driver_that_panics_delays_nothing() {
    for spot in [Spot::Identity, Spot::Deliver, Spot::Drop, Spot::EndOfSubscription] {
        within(LIMIT, move || {
            let setup = PanicSetup::new();
            let (bad, other_bad, good, x, next) =
                (setup.other(), setup.other(), setup.other(), setup.own(), setup.own());
            setup.job(&[(&bad, 1), (&other_bad, 1)], &[(&x, 1)], 1);
            setup.job(&[(&x, 1)], &[(&next, 1), (&bad, 2), (&other_bad, 2), (&good, 1)], 2);
            arm(&bad, &[spot]);
            arm(&other_bad, &[spot]);
            for timeline in [&bad, &other_bad] {
                let subscribers = std::mem::take(&mut *timeline.0.subscribers.lock().unwrap());
                subscribers.into_iter().for_each(|subscriber| subscriber.notify(Ok(1)));
            }
            setup.report(1);
            setup.report(2);
            eventually(&format!("{spot:?}: the signals are out"), || next.value() == 1);
            eventually("the good one gets its delivery", || {
                good.0.delivered.lock().unwrap().as_slice() == [true]
            });
            eventually("both are reclaimed", || setup.reclaimed() == [1, 2]);
            eventually(&format!("{spot:?} has panicked twice"), || setup.0.stats().panics == 2);
            setup.finish(&format!("{spot:?}"));
        });
    }
}

/// Another driver's timeline is reached during `subscribe`, and its driver panics when the handle is dropped,
/// or the subscription that is no longer needed. The submission is not affected (S9, S10).
#[test]
fn other_driver_that_panics_after_its_subscription_delays_nothing() {
    for spot in [Spot::Drop, Spot::EndOfSubscription] {
        within(LIMIT, move || {
            let setup = PanicSetup::new();
            let (bad, x) = (setup.other(), setup.own());
            *bad.0.panics_when_subscribed.lock().unwrap() = Some(spot);
            let (waits, signals) = ([(Mean(bad.0.clone()), 1)], [(Mean(x.0.clone()), 1)]);
            let submit = || setup.0.submit(0, Affinity::ANY, &waits, &signals, Action::Barrier).unwrap();
            assert!(catch_unwind(AssertUnwindSafe(submit)).is_ok(), "{spot:?}");
            assert_eq!((x.value(), setup.0.stats().panics), (1, 1), "{spot:?}");
            assert!(bad.0.panics_at.lock().unwrap().is_empty(), "{spot:?}");
            setup.finish(&format!("{spot:?}"));
        });
    }
}

/// A timeline's driver panics inside `submit`, in `clone` or in `failed_before`. Either the submission has not
/// happened, or the operation fails. Its waits do not affect the next one (S1, S10).
#[test]
fn submission_whose_timeline_panics_leaves_nothing_behind() {
    for (spot, foreign) in [(Spot::Clone, false), (Spot::Clone, true), (Spot::FailedBefore, false)] {
        within(LIMIT, move || {
            let setup = PanicSetup::new();
            let [a, b, x, y] = std::array::from_fn(|_| setup.own());
            let bad = if foreign { setup.other() } else { setup.own() };
            let waits = [(Mean(a.0.clone()), 1), (Mean(bad.0.clone()), 1)];
            let signals = [(Mean(y.0.clone()), 1), (Mean(bad.0.clone()), 2)];
            let signals = if foreign { &signals[..1] } else { &signals[..] };
            arm(&bad, &[spot]);
            let submit = || setup.0.submit(0, Affinity::ANY, &waits, signals, Action::Barrier);
            let happened = catch_unwind(AssertUnwindSafe(submit)).is_ok();
            if happened {
                assert_eq!(y.failure().unwrap().code(), Code::Internal);
                assert_eq!(setup.0.stats().panics, 1);
            }
            assert_eq!(setup.0.occupancy().operations, 0, "{spot:?}: nothing is left of it");
            assert_eq!(setup.0.stats().submitted, u64::from(happened), "{spot:?}");
            setup.job(&[(&b, 1)], &[(&x, 1)], 2);
            a.registration().unwrap().signal(1).unwrap();
            assert_eq!(setup.0.occupancy().in_flight, 0, "{spot:?}: what it waits for is not signalled");
            b.registration().unwrap().signal(1).unwrap();
            setup.report(1);
            eventually(&format!("{spot:?}: the job has ended"), || x.value() == 1);
            assert_eq!(y.value(), 0, "{spot:?}");
            setup.finish(&format!("{spot:?}"));
            assert_eq!(y.failure().is_some(), happened, "{spot:?}: what has not happened fails nothing");
        });
    }
}

/// A program's list of timelines and values, which panics at one read more than it was told.
struct Brittle<'a, T> {
    values: &'a [(T, u64)],
    looks: &'a Cell<usize>,
}

impl<T: Timeline> TimelineValues<T> for Brittle<'_, T> {
    fn len(&self) -> usize {
        self.values.len()
    }

    fn get(&self, index: usize) -> Option<(&T, u64)> {
        let left = self.looks.get().checked_sub(1);
        self.looks.set(left.expect("the program's list panics"));
        self.values.get(index).map(|(timeline, value)| (timeline, *value))
    }
}

/// Submits a barrier whose lists panic after this many reads. Returns whether it was accepted.
fn submits<B: Backend>(
    engine: &Engine<B>,
    affinity: Affinity,
    waits: &[(B::Timeline, u64)],
    signals: &[(B::Timeline, u64)],
    looks: usize,
) -> bool {
    let looks = &Cell::new(looks);
    let (waits, signals) = (Brittle { values: waits, looks }, Brittle { values: signals, looks });
    let submit = || engine.submit(0, affinity, &waits, &signals, Action::Barrier);
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
            let bad = if elsewhere { setup.other() } else { setup.own() };
            let signals = [&x, &y].map(|timeline| (Mean(timeline.0.clone()), 1));
            let mut refused = 0;
            let submits = |looks: usize, passing: &Mean| {
                let waits = [passing, &a, &bad, &b].map(|timeline| (Mean(timeline.0.clone()), 1));
                submits(&setup.0, Affinity::ANY, &waits, &signals, looks)
            };
            let mut passing = setup.own();
            while !submits(refused, &passing) {
                let left = (setup.0.occupancy().operations, setup.0.stats().submitted);
                assert_eq!(left, (0, 0), "{refused} looks");
                let handles = [Arc::strong_count(&bad.0), Arc::strong_count(&bad.0.panics_at)];
                assert_eq!(handles, [1, 1], "{refused} looks: the engine has, or watches, the timeline");
                // The state of a dropped timeline is reused for the next, if nothing waits for it any more.
                passing = setup.own();
                refused += 1;
            }
            assert!(refused > 10, "only {refused} looks were taken");
            for timeline in [&a, &b, &bad, &passing] {
                match timeline.registration() {
                    Some(registration) => registration.signal(1).unwrap(),
                    None => {
                        let subscribers = std::mem::take(&mut *timeline.0.subscribers.lock().unwrap());
                        subscribers.into_iter().for_each(|subscriber| subscriber.notify(Ok(1)));
                    }
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
    let rig = rig::Rig::new(2, NativeWaits::Events);
    let [x, y, z] = rig.semaphores();
    rig.job(0, &[], &[(&x, 1)], 1);
    let (waits, signals) = ([(x, 1), (y.clone(), 1)], [(z.clone(), 1)]);
    let mut refused = 0;
    while !submits(&rig.engine, Affinity::queue(1), &waits, &signals, refused) {
        refused += 1;
    }
    assert!(rig.engine.occupancy().events > 0, "a wait is left to the device");
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
    let registration = x.registration().unwrap();
    let signals = || registration.signal_and(1, || panic!("the program panics"));
    assert!(catch_unwind(AssertUnwindSafe(signals)).is_err());
    let fails = || registration.fail_and(&rig::broken("given up"), |_| panic!("the program panics"));
    assert!(catch_unwind(AssertUnwindSafe(fails)).is_err());
    assert_eq!(registration.query().unwrap(), 0);
    registration.signal(1).unwrap();
    assert_eq!(x.value(), 1);
    setup.finish("a step");
}

/// The backend panics in `calls_back`, and the work when it is dropped (S5).
#[test]
fn work_that_panics_delays_nothing() {
    for (asked, dropped) in [(true, false), (false, true)] {
        within(LIMIT, move || {
            let setup = PanicSetup::new();
            let [never, x, y] = std::array::from_fn(|_| setup.own());
            never.registration().unwrap().fail(&rig::broken("given up"));
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
        arm(&x, &[Spot::RecordStep]);
        setup.submit(&[], &[(&x, 1)], Action::Barrier);
        never.registration().unwrap().fail(&rig::broken("given up"));
        let work = PanickingWork { id: 1, asked: true, dropped: false };
        setup.submit(&[(&never, 1)], &[], Action::Queue(work));
        let notified_by = || x.0.notified_by.lock().unwrap().first().copied();
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
        let setup = PanicSetup::new();
        let [x, y] = std::array::from_fn(|_| setup.own());
        let called = Arc::new(AtomicU64::new(0));
        let subscribe = |value| {
            let (bomb, called) = (Bomb, called.clone());
            x.registration().unwrap().subscribe(value, move |_| {
                called.fetch_add(1, Ordering::SeqCst);
                drop(bomb);
            })
        };
        let (first, second) = (subscribe(1), subscribe(2));
        let given_up = catch_unwind(AssertUnwindSafe(|| drop(second)));
        assert!(given_up.is_err(), "it goes where the subscription goes");
        setup.job(&[], &[(&x, 1)], 1);
        setup.job(&[(&x, 1)], &[(&y, 1)], 2);
        setup.report(2);
        drop(first);
        assert_eq!((x.value(), y.value(), called.load(Ordering::SeqCst)), (1, 1, 1));
        assert_eq!(setup.0.occupancy().callbacks, 0);
        setup.finish("callbacks");
    });
}
