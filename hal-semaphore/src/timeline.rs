// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The trait that makes a semaphore usable by the engine, and the registration of one with an engine.
//!
//! The truth about a timeline that is registered with an engine (its value, its failure and the order in which they
//! changed) is kept by the engine, behind its [`Registration`]. [`Semaphore`](crate::Semaphore) is nothing but that. A C
//! ABI has a layout of its own, with the value, the failure and the host's waiters inside it; it adapts it by
//! implementing [`Timeline`], repeats there what the engine [shows](Timeline::show) it, and wakes its own waiters when the
//! engine [says so](Timeline::notify). A program that moves such a timeline from the host does so through its
//! registration.
//!
//! **Own and foreign.** A timeline that is registered with an engine is that engine's own: waits for it are kept in
//! the engine's ordered lists and can be covered by native events. Every other timeline (another engine's, another
//! driver's) is foreign: it is never assumed to be anything but this trait, and its waits go through
//! [`subscribe`](Timeline::subscribe), a callback (rule S9).

use crate::engine::{CallbackRecord, EngineCall, Target, TimelineState};
use crate::engine_events::EngineEvents;
use crate::error::SignalError;
use crate::failure::Failure;
use crate::ids::{MAX_VALUE, Point, TimelineKey};
use std::fmt;
use std::sync::{Arc, Weak};

/// A handle on one timeline. Clones are handles on the same one, and are made under a lock of the engine: cloning must be
/// no more than counting.
pub trait Timeline: Clone + Send + Sync + 'static {
    /// The handle that [`subscribe`](Timeline::subscribe) returns; dropping it ends the watch. `()` where nothing is ever foreign.
    type Subscription: Send + 'static;

    /// The timeline's registration with an engine, if it has one.
    fn registration(&self) -> Option<&Registration>;

    /// The name by which that engine knows it.
    fn key(&self) -> Option<TimelineKey> {
        self.registration().map(Registration::key)
    }

    /// A number that it shares with no other timeline while a handle on it is left, such as its address. An engine
    /// tells foreign timelines apart by it, under a lock: this must be a read.
    fn identity(&self) -> usize;

    /// The value it has reached.
    fn value(&self) -> u64;

    /// The failure, if the timeline has failed.
    fn failure(&self) -> Option<Failure>;

    /// Repeats a step wherever else the timeline can be read: the engine has moved it to a value, or has failed it at one. It is
    /// one of the engine's own. Called in the order of the steps and under a lock of the engine: this must be a store, not a lock.
    ///
    /// Returns the failure that the timeline has had there already, if it was failed there first and has not
    /// told the engine yet: then that is what it failed with, and a value that comes after it is not reached.
    fn show(&self, state: Result<u64, (u64, &Failure)>) -> Option<Failure> {
        let _ = state;
        None
    }

    /// The failure that this timeline, one of the engine's own, has had elsewhere, if the engine may not have been told
    /// yet: an operation that comes now and waits for the timeline comes after it. Asked under a lock: this must be a
    /// read.
    fn failed_before(&self) -> Option<Failure> {
        None
    }

    /// Takes down what led up to a step that the timeline was shown: an operation that has ended, at `by` if it ran on a queue.
    /// Returns whether the timeline has waiters of its own, which the engine does not know: these are [woken](Timeline::notify)
    /// then. A thread that comes later looks at what was shown. Called without a lock held, also on a thread that is submitting something: this
    /// calls no program back. Several threads may be at it at once, not always in the order of the steps.
    fn record_step(&self, state: Result<u64, &Failure>, by: Option<Point>) -> bool {
        let _ = (state, by);
        false
    }

    /// Wakes the timeline's own waiters whose value is reached, or all with a failure, after such a step and after everything that
    /// the same step has set free in the engine. Only called where there [were waiters](Timeline::record_step), without a lock
    /// held and never on a thread that is submitting something. Several threads may be at it at once, not always in the order of the
    /// steps.
    fn notify(&self, state: Result<u64, &Failure>) {
        let _ = state;
    }

    /// Signals or fails a timeline of another owner than the calling engine, with whatever that takes there. A signal that
    /// the timeline refuses (it is there already, or has failed) is dropped. Called without a lock held, never on a
    /// thread that is submitting something, and for each timeline by one thread at a time, in the order in which the
    /// engine's operations have ended. So a program that another driver calls back from in here holds up the next step of
    /// this timeline, and waits for ever if that is what it waits for. Where the timeline belongs to another engine of this
    /// crate, only its value or failure changes in here. What that releases is done later by the same thread, when it no
    /// longer attends this timeline's letters, because a callback may wait for the next of them.
    fn deliver(&self, state: Result<u64, &Failure>);

    /// Calls `subscriber` once, on any thread and possibly before this returns, when `value` is reached or the timeline
    /// has failed. Only called on foreign timelines, without a lock held.
    fn subscribe(&self, value: u64, subscriber: Subscriber) -> Self::Subscription;
}

/// Some timelines and a value for each: what an operation waits for, or what it signals.
///
/// A slice of pairs is the natural form in Rust; a pair of slices is the form a C ABI has at hand. The engine reads it
/// more than once, also under a lock, and relies on reading the same each time.
pub trait TimelineValues<T> {
    /// How many there are.
    fn len(&self) -> usize;

    /// The one with this number, which is below [`len`](TimelineValues::len).
    fn get(&self, index: usize) -> Option<(&T, u64)>;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> TimelineValues<T> for [(T, u64)] {
    fn len(&self) -> usize {
        <[(T, u64)]>::len(self)
    }

    fn get(&self, index: usize) -> Option<(&T, u64)> {
        <[(T, u64)]>::get(self, index).map(|(timeline, value)| (timeline, *value))
    }
}

impl<T, const N: usize> TimelineValues<T> for [(T, u64); N] {
    fn len(&self) -> usize {
        N
    }

    fn get(&self, index: usize) -> Option<(&T, u64)> {
        TimelineValues::get(self.as_slice(), index)
    }
}

impl<T> TimelineValues<T> for Vec<(T, u64)> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn get(&self, index: usize) -> Option<(&T, u64)> {
        TimelineValues::get(self.as_slice(), index)
    }
}

impl<T> TimelineValues<T> for (&[T], &[u64]) {
    fn len(&self) -> usize {
        self.0.len().min(self.1.len())
    }

    fn get(&self, index: usize) -> Option<(&T, u64)> {
        Some((self.0.get(index)?, *self.1.get(index)?))
    }
}

pub(crate) fn iter<'a, T, P: TimelineValues<T> + ?Sized>(
    values: &'a P,
) -> impl Iterator<Item = (&'a T, u64)> + 'a
where
    T: 'a,
{
    (0..values.len()).filter_map(|index| values.get(index))
}

/// A timeline's place in its engine, and the truth about it. Dropping it tells the engine that no handle is left to
/// signal the timeline any more: what still waits for it fails as abandoned.
pub struct Registration {
    engine: Arc<dyn EngineEvents>,
    timeline_state: Arc<TimelineState>,
}

impl Registration {
    pub(crate) fn new(engine: Arc<dyn EngineEvents>, timeline_state: Arc<TimelineState>) -> Self {
        Self { engine, timeline_state }
    }

    #[inline]
    pub(crate) fn timeline_state(&self) -> &Arc<TimelineState> {
        &self.timeline_state
    }

    /// The engine's name for the timeline.
    #[inline]
    pub fn key(&self) -> TimelineKey {
        self.timeline_state().key()
    }

    /// The value reached, or what the timeline failed with.
    pub fn query(&self) -> Result<u64, Failure> {
        self.timeline_state().query()
    }

    /// The value reached, whether the timeline has failed or not.
    #[inline]
    pub fn value(&self) -> u64 {
        self.timeline_state().value()
    }

    /// Whether the timeline has failed.
    pub fn has_failed(&self) -> bool {
        self.timeline_state().has_failed()
    }

    /// Raises the timeline from the host to `value`, which must be above where it is, and releases what waits for it.
    pub fn signal(&self, value: u64) -> Result<(), SignalError> {
        self.signal_and(value, || {})
    }

    /// As [`signal`](Registration::signal), and does `show` in the same step: under a lock, so it must be a store.
    pub fn signal_and(&self, value: u64, show: impl FnOnce()) -> Result<(), SignalError> {
        let mut call = EngineCall::new(&*self.engine);
        self.timeline_state().signal(value, show, call.deferred())
    }

    /// Fails the timeline for good, and what waits for it. Only the first failure counts; returns whether this was it.
    pub fn fail(&self, failure: &Failure) -> bool {
        self.fail_and(failure, |_| {})
    }

    /// As [`fail`](Registration::fail), and does `show` in the same step, with the value that was reached: under a lock, so
    /// it must be a store.
    pub fn fail_and(&self, failure: &Failure, show: impl FnOnce(u64)) -> bool {
        let mut call = EngineCall::new(&*self.engine);
        let show = |reached| {
            show(reached);
            None
        };
        self.timeline_state().fail(failure, show, call.deferred())
    }

    /// The value that work which has its place in a queue will bring the timeline to, unless something fails; nothing if
    /// no such work signals it.
    pub fn promised(&self) -> Option<u64> {
        self.timeline_state().promised()
    }

    /// Calls `callback` once when the timeline reaches `value` or fails: before this returns if it has already, or else on
    /// a thread that completes, signals or fails something, without a lock held, and never inside a submission (see
    /// [`Backend::defer`](crate::Backend::defer)). On a timeline that has failed, it is told the failure even if the value
    /// was reached. It may still be called after the subscription was dropped if it was on its way.
    pub fn subscribe(
        &self,
        value: u64,
        callback: impl FnOnce(Result<u64, Failure>) + Send + 'static,
    ) -> Subscription {
        let timeline_state = self.timeline_state();
        let record = Arc::new(CallbackRecord::new(Box::new(callback)));
        self.engine.count_callback(true);
        match timeline_state.wait_for(value, Target::Callback(record.clone())) {
            Ok((order, large)) => {
                if large {
                    self.engine.remember_large(timeline_state);
                }
                let parked = Parked { timeline_state: timeline_state.clone(), value, order, record };
                Subscription { engine: Arc::downgrade(&self.engine), parked: Some(parked) }
            }
            Err(state) => {
                self.engine.count_callback(false);
                if let Some(callback) = record.take() {
                    callback(state);
                }
                Subscription { engine: Arc::downgrade(&self.engine), parked: None }
            }
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut call = EngineCall::new(&*self.engine);
        self.timeline_state.abandon(call.deferred());
        drop(call);
        self.engine.retire_timeline(&self.timeline_state);
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("state", &self.query()).finish_non_exhaustive()
    }
}

/// A callback timepoint; dropping it takes the callback back, unless it is on its way already.
pub struct Subscription {
    engine: Weak<dyn EngineEvents>,
    parked: Option<Parked>,
}

struct Parked {
    timeline_state: Arc<TimelineState>,
    value: u64,
    order: u32,
    record: Arc<CallbackRecord>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("parked", &self.parked.is_some()).finish_non_exhaustive()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let Some(parked) = self.parked.take() else { return };
        let callback = parked.record.take();
        if callback.is_some() {
            if let Some(engine) = self.engine.upgrade() {
                engine.count_callback(false);
            }
            parked.timeline_state.unpark(crate::engine::ListOwner::HOST, parked.value, parked.order);
        }
    }
}

/// Tells an engine about one foreign timeline. Telling it late, twice or after the wait has ended is harmless.
#[derive(Clone)]
pub struct Subscriber {
    engine: Weak<dyn EngineEvents>,
    timeline_state: Weak<TimelineState>,
}

impl Subscriber {
    pub(crate) fn new(engine: Weak<dyn EngineEvents>, timeline_state: &Arc<TimelineState>) -> Self {
        Self { engine, timeline_state: Arc::downgrade(timeline_state) }
    }

    /// The foreign timeline has reached this value, or has failed.
    pub fn notify(&self, state: Result<u64, Failure>) {
        let (Some(engine), Some(timeline_state)) = (self.engine.upgrade(), self.timeline_state.upgrade())
        else {
            return;
        };
        let mut call = EngineCall::new(&*engine);
        match state {
            // No wait is for more than the largest value, whatever the other driver counts.
            Ok(value) => timeline_state.reach(value.min(MAX_VALUE), || None, call.deferred()),
            Err(failure) => drop(timeline_state.fail(&failure, |_| None, call.deferred())),
        }
    }
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").finish_non_exhaustive()
    }
}
