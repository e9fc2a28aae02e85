// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The trait that makes a semaphore usable by the engine, and its registration with an engine.
//!
//! The engine keeps the state of a registered timeline (its value, its failure and the order in which they
//! changed) behind its [`Registration`]. The host's waiters are the timeline's own: it wakes them when the engine
//! [notifies](Timeline::notify) it, as [`Semaphore`](crate::Semaphore) does. A semaphore of a C ABI has a layout of
//! its own, with the value, the failure and the waiters. It implements [`Timeline`], and repeats there what the
//! engine [shows](Timeline::show) it. A program that moves such a timeline from the host does so through
//! its registration.
//!
//! **Own and foreign.** A timeline that is registered with an engine is that engine's own: its waits are in the
//! engine's ordered lists, and native waits can satisfy them. Every other timeline (another engine's, another
//! driver's) is foreign: the engine assumes nothing but this trait, and waits for it through
//! [`subscribe`](Timeline::subscribe), a callback (rule S9).

use crate::engine::{EngineCall, TimelineState, has_left_work};
use crate::engine_events::EngineEvents;
use crate::error::SignalError;
use crate::failure::Failure;
use crate::ids::{MAX_VALUE, Point};
use crate::stall::TimelineName;
use std::fmt;
use std::sync::{Arc, Weak};

/// A callback of a program, for a value that its timeline has reached, or the failure.
pub type Callback = Box<dyn FnOnce(Result<u64, Failure>) + Send>;

/// Callbacks that are due, each with its argument.
pub type DueCallbacks = Vec<(Callback, Result<u64, Failure>)>;

/// A handle on one timeline. Clones are handles on the same timeline. They are made under a lock of the engine:
/// cloning must only count.
pub trait Timeline: Clone + Send + Sync + 'static {
    /// The handle that [`subscribe`](Timeline::subscribe) returns; dropping it ends the subscription. `()` if
    /// the timeline is never foreign.
    type Subscription: Send + 'static;

    /// The timeline's registration with an engine, if it has one.
    fn registration(&self) -> Option<&Registration>;

    /// A number that no other timeline has while a handle on this one exists, such as its address. The engine
    /// distinguishes foreign timelines by it, under a lock: this must be a read.
    fn identity(&self) -> usize;

    /// The value.
    fn value(&self) -> u64;

    /// The failure, if the timeline has failed.
    fn failure(&self) -> Option<Failure>;

    /// Repeats a step of one of the engine's own timelines, a value or a failure at a value, wherever else the
    /// timeline is read. Called in the order of the steps and under a lock of the engine: this must be a store,
    /// not a lock.
    ///
    /// Returns the failure with which the timeline was failed there before, if the engine does not know of it
    /// yet. Then the timeline has failed with that, and a later value is not reached.
    fn show(&self, state: Result<u64, (u64, &Failure)>) -> Option<Failure> {
        let _ = state;
        None
    }

    /// The failure of one of the engine's own timelines, if it has failed elsewhere and the engine may not know
    /// of it yet: an operation that comes now and waits for the timeline comes after the failure. Called under
    /// a lock: this must be a read.
    fn failed_before(&self) -> Option<Failure> {
        None
    }

    /// Records the origin of a shown step: an operation that has ended, at `by` if it ran on a queue. Returns
    /// whether the timeline has waiters of its own, which the engine [notifies](Timeline::notify) then; later
    /// waiters see the shown step. Called without a lock, possibly on a thread that submits: this must not call
    /// the program. Several threads may call it at once, in any order of the steps.
    fn record_step(&self, state: Result<u64, &Failure>, by: Option<Point>) -> bool {
        let _ = (state, by);
        false
    }

    /// Wakes the timeline's own waiters whose value is reached, or all of them with a failure, after everything
    /// that the step has released in the engine. Called only if there [were waiters](Timeline::record_step),
    /// without a lock, and never on a thread that submits. Several threads may call it at once, in any order of
    /// the steps.
    fn notify(&self, state: Result<u64, &Failure>) {
        let _ = state;
    }

    /// Signals or fails a timeline that is foreign to the calling engine. A signal that the timeline refuses
    /// (it is there already, or has failed) is dropped. Called without a lock, never on a thread that submits,
    /// and for each timeline by one thread at a time, in the order in which the engine's operations have ended.
    /// A program that another driver calls from in here delays the next delivery to this timeline, and waits
    /// forever if it waits for that. A timeline of another engine of this crate only moves in here. Its effects
    /// run later on the same thread, when it is not delivering to this timeline, because a callback may wait
    /// for the next delivery.
    fn deliver(&self, state: Result<u64, &Failure>);

    /// Calls `subscriber` once, on any thread and possibly before this returns, when `value` is reached or the
    /// timeline has failed. Called for foreign timelines only, without a lock.
    fn subscribe(&self, value: u64, subscriber: Subscriber) -> Self::Subscription;

    /// The value of the foreign timeline of a subscription, if it is known, for a
    /// [snapshot](crate::Engine::snapshot). Called under a lock: this must be a read.
    fn subscribed_value(subscription: &Self::Subscription) -> Option<u64> {
        let _ = subscription;
        None
    }
}

/// Some timelines with a value each: the waits of an operation, or its signals.
///
/// A slice of pairs is the natural form in Rust; a pair of slices is the form of a C ABI. The engine reads it
/// more than once, also under a lock, and relies on reading the same each time.
pub trait TimelineValues<T> {
    /// How many there are.
    fn len(&self) -> usize;

    /// The one at `index`, which is below [`len`](TimelineValues::len).
    fn get(&self, index: usize) -> Option<(&T, u64)>;

    /// True if there are none.
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

/// The registration of a timeline with its engine, which keeps the timeline's state. Dropping it means that no
/// handle is left to signal the timeline: its waits fail as abandoned.
pub struct Registration {
    engine: Arc<dyn EngineEvents>,
    timeline_state: Arc<TimelineState>,
}

impl Registration {
    pub(crate) fn new(engine: Arc<dyn EngineEvents>, timeline_state: Arc<TimelineState>) -> Self {
        Self { engine, timeline_state }
    }

    /// True if it is a registration with that engine.
    #[inline]
    pub(crate) fn is_with<E: EngineEvents>(&self, engine: &E) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.engine), engine)
    }

    #[inline]
    pub(crate) fn timeline_state(&self) -> &Arc<TimelineState> {
        &self.timeline_state
    }

    /// The timeline's name in this process.
    #[inline]
    pub fn name(&self) -> TimelineName {
        self.timeline_state().name()
    }

    /// The value, or the failure.
    pub fn query(&self) -> Result<u64, Failure> {
        self.timeline_state().query()
    }

    /// The value, whether the timeline has failed or not.
    #[inline]
    pub fn value(&self) -> u64 {
        self.timeline_state().value()
    }

    /// True if the timeline has failed.
    pub fn has_failed(&self) -> bool {
        self.timeline_state().has_failed()
    }

    /// Raises the timeline from the host to `value`, which must be above the present one, and releases its
    /// waits.
    ///
    /// `show` runs in the same step: under a lock, so it must be a store. `stepped` runs after the step, without a
    /// lock, and before everything that follows from the step; the callbacks that it returns run before other
    /// timelines' callbacks, on a thread that may call the program.
    pub fn signal(
        &self,
        value: u64,
        show: impl FnOnce(),
        stepped: impl FnOnce() -> DueCallbacks,
    ) -> Result<(), SignalError> {
        let mut call = EngineCall::new(&*self.engine);
        self.timeline_state().signal(value, show, call.deferred())?;
        self.engine.call_back(stepped(), call.deferred());
        Ok(())
    }

    /// Fails the timeline for good, and its waits. Only the first failure counts; returns whether this was it.
    ///
    /// `show` gets the value that was reached, and `stepped` runs whether this was the first failure or not; see
    /// [`signal`](Registration::signal).
    pub fn fail(
        &self,
        failure: &Failure,
        show: impl FnOnce(u64),
        stepped: impl FnOnce() -> DueCallbacks,
    ) -> bool {
        let mut call = EngineCall::new(&*self.engine);
        let show = |reached| {
            show(reached);
            None
        };
        let is_first = self.timeline_state().fail(failure, show, call.deferred());
        self.engine.call_back(stepped(), call.deferred());
        is_first
    }

    /// The value that queued work will bring the timeline to, unless something fails; `None` if no queued work
    /// signals it.
    pub fn promised(&self) -> Option<u64> {
        self.timeline_state().promised()
    }

    /// Runs callbacks of the program: now, or soon on another thread if this one must not. A shutdown of the engine
    /// waits for them.
    pub fn call_back(&self, callbacks: DueCallbacks) {
        if !callbacks.is_empty() {
            self.engine.call_back(callbacks, EngineCall::new(&*self.engine).deferred());
        }
    }

    /// Runs what calls inside callbacks on this thread have left to the calls around them. A thread that waits for the
    /// timeline in a way of its own does this first, as it may wait for that. It runs no callbacks.
    #[inline]
    pub fn run_deferred(&self) {
        if has_left_work() {
            EngineCall::submitting(&*self.engine).flush();
        }
    }

    /// As [`query`](Registration::query), behind each step that another thread has begun.
    pub(crate) fn settled(&self) -> Result<u64, Failure> {
        self.timeline_state().settled()
    }

    /// The failure of waits that nothing can end any more.
    pub(crate) fn abandoned(&self) -> Failure {
        self.timeline_state().abandoned()
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

/// Notifies an engine about one foreign timeline. To do so late, twice or after the wait has ended is harmless.
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
            Ok(value) => _ = timeline_state.reach(value.min(MAX_VALUE), || None, call.deferred()),
            Err(failure) => drop(timeline_state.fail(&failure, |_| None, call.deferred())),
        }
    }
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber").finish_non_exhaustive()
    }
}
