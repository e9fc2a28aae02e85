// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Foreign code that calls back into the engine from everywhere that the engine calls it (rules S8, S10): each call of
//! a program, inside each call of a backend, of a timeline's driver and of a callback.

use crate::fake::Fake;
use crate::fake_timeline::{FakeTimeline, TimelineCall};
use crate::rig::{LIMIT, Moment, TestEngine, broken, device, eventually, gone, within};
use hal_semaphore::backend::{Completer, Completion, DeferredCallbacks, DeviceSpec, NativeWaits, Submitted};
use hal_semaphore::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// Where foreign code is called.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Submit,
    Run,
    TryEarly,
    CallsBack,
    Reclaim,
    Defer,
    Poll,
    Abort,
    Callback,
    Own(TimelineCall),
    Foreign(TimelineCall),
}

const PLACES: [Place; 17] = [
    Place::Submit,
    Place::Run,
    Place::TryEarly,
    Place::CallsBack,
    Place::Reclaim,
    Place::Defer,
    Place::Poll,
    Place::Abort,
    Place::Callback,
    Place::Own(TimelineCall::RecordStep),
    Place::Own(TimelineCall::Notify),
    Place::Own(TimelineCall::Drop),
    Place::Foreign(TimelineCall::Value),
    Place::Foreign(TimelineCall::Subscribe),
    Place::Foreign(TimelineCall::Unsubscribe),
    Place::Foreign(TimelineCall::Deliver),
    Place::Foreign(TimelineCall::Drop),
];

/// What it does there.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Does {
    Submits,
    SubmitsJobs,
    SignalsAndFails,
    DropsTimelines,
    Polls,
    CountsAndTrims,
    ShutsDown,
    Loses,
}

const DOES: [Does; 8] = [
    Does::Submits,
    Does::SubmitsJobs,
    Does::SignalsAndFails,
    Does::DropsTimelines,
    Does::Polls,
    Does::CountsAndTrims,
    Does::ShutsDown,
    Does::Loses,
];

type Reentered = Engine<Fake<FakeTimeline, u64>>;

/// An engine whose device may call it, once at one place.
struct Reentry {
    does: Does,
    engine: Mutex<Option<Reentered>>,
    completer: Mutex<Option<Completer>>,
    has_called: AtomicBool,
}

impl Reentry {
    fn engine(&self) -> Reentered {
        self.engine.lock().unwrap().clone().unwrap()
    }

    fn call(&self) {
        if self.has_called.swap(true, Ordering::SeqCst) {
            return;
        }
        let engine = self.engine();
        let own = || FakeTimeline::own(&engine);
        let submit = |waits: &[(FakeTimeline, u64)], signals: &[(FakeTimeline, u64)], action| {
            // Refused if the engine is shut down.
            drop(engine.submit(Affinity::ANY, waits, signals, action));
        };
        match self.does {
            Does::Submits => {
                let [x, y, z] = [own(), own(), own()];
                submit(&[], &[(x.clone(), 1)], Action::Barrier);
                submit(&[(x, 1)], &[(y.clone(), 1)], Action::Host(70));
                submit(&[(y, 1), (z, 1)], &[(FakeTimeline::foreign(), 1)], Action::Cleanup(71));
            }
            Does::SubmitsJobs => {
                let [x, y] = [own(), own()];
                submit(&[], &[(x.clone(), 1)], Action::Queue(72));
                submit(&[(x, 1)], &[(y.clone(), 1)], Action::Queue(73));
                submit(&[(y, 1)], &[], Action::Early(74));
            }
            Does::SignalsAndFails => {
                let [x, y] = [own(), own()];
                submit(&[(x.clone(), 2)], &[], Action::Barrier);
                submit(&[(y.clone(), 2)], &[], Action::Queue(75));
                drop((x.signal(2), y.fail(&broken("given up"))));
            }
            Does::DropsTimelines => {
                let x = own();
                submit(&[(x, 2)], &[(own(), 1)], Action::Cleanup(76));
            }
            Does::Polls => (0..3).for_each(|_| engine.poll()),
            Does::CountsAndTrims => {
                engine.trim();
                assert!(engine.counts().operations < 100 && engine.queue(0).is_some());
            }
            Does::ShutsDown => {
                let clock = SystemClock::new();
                drop(engine.shut_down(&clock, Duration::from_millis(1), Duration::from_millis(20)));
            }
            Does::Loses => drop(self.completer.lock().unwrap().as_ref().unwrap().lose(gone())),
        }
    }
}

/// A program that comes to each place, of which one calls the engine.
#[expect(
    clippy::too_many_lines,
    reason = "one program, and the hooks of its device, in the order of its steps"
)]
fn reenter(place: Place, does: Does) {
    let reentry = Arc::new(Reentry {
        does,
        engine: Mutex::default(),
        completer: Mutex::default(),
        has_called: AtomicBool::new(false),
    });
    let at = |here: Place| {
        let reentry = reentry.clone();
        move || {
            if place == here {
                reentry.call();
            }
        }
    };
    let spec = DeviceSpec { completion: Completion::Poll, ..device(2, NativeWaits::Epochs) };
    let ended = Arc::new(AtomicUsize::new(0));
    let (submits, runs, tries, asks) =
        (at(Place::Submit), at(Place::Run), at(Place::TryEarly), at(Place::CallsBack));
    let (reclaims, defers, polls, aborts) =
        (at(Place::Reclaim), at(Place::Defer), at(Place::Poll), at(Place::Abort));
    let counted = ended.clone();
    let engine = Fake::new(spec)
        .on_submit(move |fake, queue, batch| {
            fake.accept(queue, batch);
            submits();
            Submitted::all()
        })
        .on_run(move |_, task, _| {
            runs();
            task.finish(Ok(()));
        })
        .on_early(move |_| {
            tries();
            Ok(false)
        })
        .calls_back(move |_| {
            asks();
            true
        })
        .on_reclaim(move |_, ended| {
            reclaims();
            drop(ended);
            counted.fetch_add(1, Ordering::SeqCst);
        })
        .on_defer(move |_, callbacks: DeferredCallbacks| {
            defers();
            callbacks.run_elsewhere();
        })
        .on_poll(move |fake| {
            polls();
            fake.complete_all();
        })
        .on_abort(move |fake| {
            aborts();
            fake.complete_all();
        })
        .start();
    *reentry.completer.lock().unwrap() = Some(engine.backend().completer().clone());
    *reentry.engine.lock().unwrap() = Some(engine.clone());
    let called = Arc::new(AtomicUsize::new(0));
    let (a, f) = (FakeTimeline::with_waiters(&engine), FakeTimeline::foreign());
    let other = TestEngine::new(1, NativeWaits::None);
    for (timeline, here) in [(&a, Place::Own as fn(_) -> _), (&f, Place::Foreign as fn(_) -> _)] {
        use TimelineCall::{Deliver, Drop, Notify, RecordStep, Subscribe, Unsubscribe, Value};
        for call in [RecordStep, Notify, Drop, Value, Subscribe, Unsubscribe, Deliver] {
            if here(call) == place {
                timeline.at(call, at(place));
            }
        }
    }
    let submit = |waits: &[(&FakeTimeline, u64)], signals: &[(&FakeTimeline, u64)], action| {
        let owned = |values: &[(&FakeTimeline, u64)]| -> Vec<(FakeTimeline, u64)> {
            values.iter().map(|&(timeline, value)| (timeline.handle(), value)).collect()
        };
        drop(engine.submit(Affinity::ANY, &owned(waits), &owned(signals), action));
    };
    // A program's own callback, by way of another engine.
    let x = other.semaphore();
    let (calls, counts) = (at(Place::Callback), called.clone());
    let _subscription = x.subscribe(1, move |_| {
        counts.fetch_add(1, Ordering::SeqCst);
        calls();
    });
    submit(&[], &[(&a, 1)], Action::Early(1));
    submit(&[(&a, 1), (&f, 1)], &[(&a, 2), (&f, 2)], Action::Queue(2));
    submit(&[(&a, 1)], &[(&f, 3)], Action::Marker(3));
    for (_, subscriber) in std::mem::take(&mut *f.subscribers.lock().unwrap()) {
        subscriber.notify(Ok(1));
    }
    submit(&[(&a, 2)], &[], Action::Early(6));
    x.signal(1).unwrap();
    let never = FakeTimeline::own(&engine);
    submit(&[(&never, 1)], &[(&FakeTimeline::own(&engine), 1)], Action::Cleanup(4));
    never.fail(&broken("given up"));
    engine.poll();
    submit(&[], &[], Action::Queue(5));
    let (clock, limit) = (SystemClock::new(), LIMIT / 2);
    let is_aborted = place == Place::Abort;
    let grace = if is_aborted { Duration::ZERO } else { limit };
    if is_aborted {
        // Without a poll that ends it.
        *engine.backend().accepted.lock().unwrap() = Vec::new();
    }
    let ends = engine.shut_down(&clock, grace, if is_aborted { Duration::from_millis(50) } else { limit });
    let what = format!("{does:?} at {place:?}");
    assert!(reentry.has_called.load(Ordering::SeqCst), "{what}: nothing comes there");
    let is_rough = matches!(does, Does::Loses | Does::ShutsDown) || is_aborted;
    assert!(ends.is_ok() || is_rough, "{what}: {ends:?}, {:?}", engine.counts());
    if !is_rough {
        assert_eq!(engine.counts().operations, 0, "{what}");
        eventually(&format!("{what}: the work is reclaimed"), || ended.load(Ordering::SeqCst) >= 3);
        assert_eq!(engine.counts().panics, 0, "{what}");
    }
    assert_eq!(called.load(Ordering::SeqCst), 1, "{what}");
    drop(reentry.engine.lock().unwrap().take());
}

/// Nothing waits for a lock that the thread has, and everything ends.
#[test]
fn foreign_code_calls_the_engine_from_everywhere() {
    for place in PLACES {
        for does in DOES {
            println!("{does:?} at {place:?}");
            within(2 * LIMIT, move || reenter(place, does));
        }
    }
}

/// Two engines signal each other, link after link (S7, S9).
#[test]
fn chain_between_two_engines_needs_a_small_stack() {
    const LINKS: u64 = 10_000;
    let chain = || {
        let (one, other) = (TestEngine::new(1, NativeWaits::None), TestEngine::new(1, NativeWaits::None));
        let (x, y) = (one.semaphore(), other.semaphore());
        for link in 1..=LINKS {
            one.barrier(0, &[(&y, link)], &[(&x, link)]);
            other.barrier(0, &[(&x, link)], &[(&y, link + 1)]);
        }
        y.signal(1).unwrap();
        eventually("the chain ends", || y.query().unwrap() == LINKS + 1);
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(chain).unwrap().join().unwrap();
}

/// The last handle of each engine is dropped by a callback of the one before (S7, S10).
#[test]
fn chain_of_engines_that_end_in_callbacks_needs_a_small_stack() {
    const ENGINES: usize = 3_000;
    let chain = || {
        let ended = Arc::new(AtomicUsize::new(0));
        let mut last: Option<(TestEngine, Semaphore)> = None;
        let mut kept = Vec::new();
        for _ in 0..ENGINES {
            let rig = TestEngine::new(1, NativeWaits::None);
            let [never, x] = rig.semaphores();
            rig.barrier(0, &[(&never, 1)], &[(&x, 1)]);
            let (next, ended) = (last.take(), ended.clone());
            kept.push(x.subscribe(1, move |_| {
                ended.fetch_add(1, Ordering::SeqCst);
                drop(next);
            }));
            last = Some((rig, never));
        }
        drop(last);
        eventually("all have ended", || ended.load(Ordering::SeqCst) == ENGINES);
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(chain).unwrap().join().unwrap();
}

/// The last handle is dropped inside what a report leads to.
#[test]
fn last_handle_that_goes_inside_foreign_code_ends_the_engine() {
    for moment in [Moment::Reclaim(1), Moment::SubmitEnds(0)] {
        within(LIMIT, move || {
            let rig = TestEngine::new(1, NativeWaits::None);
            let [x, y, never] = rig.semaphores();
            let (sender, called) = mpsc::channel();
            let _subscription = y.subscribe(1, move |state| sender.send(state.is_err()).unwrap());
            let last = Mutex::new(Some(rig.clone()));
            rig.once(moment, move |_| drop(last.lock().unwrap().take()));
            rig.barrier(0, &[(&never, 1)], &[(&y, 1)]);
            rig.job(0, &[], &[(&x, 1)], 1);
            let completer = rig.completer().clone();
            rig.step(0);
            let queue = rig.engine.queue(0).unwrap();
            drop(rig);
            drop(completer.complete(queue, 1));
            assert!(called.recv_timeout(LIMIT / 2).unwrap());
        });
    }
}

/// An operation ends whose timeline has failed before, and has the last handle on it. The handle is dropped without a
/// lock (S8).
#[test]
fn last_handle_on_a_failed_timeline_is_dropped_without_a_lock() {
    within(LIMIT, || {
        let engine = Fake::<FakeTimeline, u64>::new(device(1, NativeWaits::None)).start();
        let x = FakeTimeline::own(&engine);
        engine.submit(Affinity::ANY, &[], &[(x.handle(), 1)], Action::Queue(1)).unwrap();
        assert!(x.fail(&broken("given up")));
        let (sender, counted) = mpsc::channel();
        let counts = engine.clone();
        x.at(TimelineCall::Drop, move || sender.send(counts.counts().operations).unwrap());
        engine.backend().complete_all();
        assert_eq!(counted.try_recv(), Ok(0));
    });
}
