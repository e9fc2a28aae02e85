// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The engine's record of one timeline, which alone decides its value, its failure and its waits.
//!
//! # One step at a time
//!
//! A timeline moves only under the lock of its state: by a signal of the host, by a retired operation, by a
//! failure. The order of these steps decides every question about it (rule S1): a registered wait whose value
//! came before the failure is fulfilled; a wait that comes after the failure fails, reached or not. `word`
//! repeats the state for readers without the lock: the value, and a bit for the failure.
//!
//! # The lock
//!
//! The module [`engine`](super) has the locking protocol. Under this lock only
//! [`Timeline::show`](crate::timeline::Timeline::show) is called, which must be a store. A step releases at
//! most [`RELEASE_BATCH`] waits under one hold of the lock, so that the hold is bounded however many wait; the
//! thread's [`DeferredWork`] continues.
//!
//! # Listeners
//!
//! When a queue has submitted work, it notifies the timelines that the work signals, so that waiting operations
//! of other queues can leave the wait to their device. Most timelines have no waiting queue. `listeners` counts
//! the waits of queues, so that the producing queue need not take the lock to find out. A thread that registers
//! a wait raises the count and then reads how far the producer is; the producer moves on and then reads the
//! count. Each has a sequentially consistent fence between its store and its load, so one of the two sees the
//! other.

use super::deferred_work::{DeferredWork, Release};
use super::wait_lists::{ListOwner, WaitLists};
use crate::error::SignalError;
use crate::failure::{Code, Failure, Origin};
use crate::ids::MAX_VALUE;
use crate::mutation::{Mutation, is_mutated};
use crate::native_event::EventIndex;
use crate::slab::Key;
use crate::stall::TimelineName;
use crate::sync::{AtomicU64, Guard, Mutex, Ordering, fence};
use smallvec::SmallVec;
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

const FAILED: u64 = 1 << 63;

/// How many waits are released under one hold of the lock at most.
pub(super) const RELEASE_BATCH: usize = 64;

/// How many promises a search for a dependency looks at, at most.
pub(super) const SCAN: usize = 16;

/// From this capacity on, the memory of the promises is worth releasing.
const LARGE: usize = 1024;

/// The receiver of a released timepoint.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// One wait of a blocked operation. `has_others`: the operation has other waits. Once the wait is satisfied by
    /// order, only a failure matters to it.
    Op { queue: u32, key: Key, wait: u32, has_others: bool },
    /// A wait that is satisfied by order, of an operation that is not submitted yet: only a failure matters to
    /// it.
    OpFailure { queue: u32, key: Key },
    /// A gated queue: its oldest operation completed on the device before a dependency retired.
    Gate(u32),
    /// A queue whose device was full and may have capacity now: the device says so (`asked`), or something has
    /// ended.
    FullQueue { queue: u32, asked: bool },
}

/// A wait that a promise of the same queue satisfies by order.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrderedWait {
    pub(super) op: Key,
    pub(super) wait: u32,
    /// The number of the wait's entry in the host's list, where it waits for a failure from now on.
    pub(super) failure_entry: Option<u32>,
}

/// Waits that a queued operation satisfies by order.
pub(super) type OrderedWaits = SmallVec<[OrderedWait; 4]>;

/// The announcement that work in some queue will signal a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    pub(super) value: u64,
    pub(super) queue: u32,
    pub(super) epoch: u64,
    /// The epoch that another queue waits for natively in order to wait for this signal; zero if there is none.
    pub(super) native_epoch: u64,
    /// The event that was recorded at that epoch.
    pub(super) event: Option<EventIndex>,
}

impl Promise {
    /// The order of promises.
    fn rank(&self) -> (u64, u32, u64) {
        (self.value, self.queue, self.epoch)
    }
}

/// The part of a timeline's state that its lock protects.
#[derive(Default)]
pub(crate) struct TimelineInner {
    failure: Option<Failure>,
    /// Timepoints, by their [`ListOwner`]: a waiting queue, or the host.
    lists: WaitLists,
    /// Promises of work that is queued or submitted, by value, queue and epoch.
    promises: VecDeque<Promise>,
    /// The subscription to the foreign timeline, if this is the state of one.
    subscription: Option<Box<dyn Any + Send>>,
    /// The engine's list of large timelines has this one.
    large: bool,
}

/// See the [module documentation](self).
pub(crate) struct TimelineState {
    word: AtomicU64,
    /// How many waits of queues a promise might satisfy.
    listeners: AtomicU64,
    /// The largest promised value, for readers without the lock, who may see an older one. It orders nothing.
    promised: std::sync::atomic::AtomicU64,
    name: TimelineName,
    /// It is the state of a foreign timeline.
    foreign: bool,
    state: Mutex<TimelineInner>,
}

impl fmt::Debug for TimelineState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimelineState")
            .field("name", &self.name)
            .field("state", &self.snapshot())
            .finish_non_exhaustive()
    }
}

/// The status of a wait.
#[derive(Clone, Debug)]
pub(crate) enum WaitStatus {
    Open,
    Reached,
    Failed(Failure),
}

impl TimelineState {
    pub(crate) fn new(name: TimelineName, foreign: bool, value: u64) -> Self {
        Self {
            word: AtomicU64::new(value),
            listeners: AtomicU64::new(0),
            promised: std::sync::atomic::AtomicU64::new(0),
            name,
            foreign,
            state: Mutex::new(TimelineInner::default()),
        }
    }

    /// Makes a state without other owners ready for another timeline. The memory of its lists stays.
    pub(crate) fn reset(&mut self, name: TimelineName, value: u64) {
        self.word = AtomicU64::new(value);
        *self.promised.get_mut() = 0;
        self.name = name;
        let mut state = self.state.lock();
        // A waiter, or an operation that signals the timeline, would be an owner.
        debug_assert!(state.lists.are_empty() && state.promises.is_empty(), "it has other owners");
        state.failure = None;
        state.lists.keep_first();
    }

    #[inline]
    pub(crate) fn name(&self) -> TimelineName {
        self.name
    }

    #[inline]
    pub(crate) fn is_foreign(&self) -> bool {
        self.foreign
    }

    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, TimelineInner> {
        self.state.lock()
    }

    /// The value, whether the timeline has failed or not.
    #[inline]
    pub(crate) fn value(&self) -> u64 {
        self.word.load(Ordering::Acquire) & !FAILED
    }

    /// The value, or the failure.
    pub(crate) fn query(&self) -> Result<u64, Failure> {
        let word = self.word.load(Ordering::Acquire);
        if word & FAILED == 0 { Ok(word) } else { Err(self.recorded()) }
    }

    /// The value and whether the timeline has failed, at one moment.
    #[inline]
    pub(super) fn snapshot(&self) -> (u64, bool) {
        let word = self.word.load(Ordering::Acquire);
        (word & !FAILED, word & FAILED != 0)
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.word.load(Ordering::Acquire) & FAILED != 0
    }

    /// The failure of a failed timeline.
    #[cold]
    fn recorded(&self) -> Failure {
        #[expect(
            clippy::expect_used,
            reason = "the bit is set under the lock that the failure is recorded under"
        )]
        self.state.lock().failure.clone().expect("a failed timeline has its failure recorded")
    }

    /// The status of a wait that is registered: a value that came before the failure counts as reached.
    #[inline]
    pub(super) fn status(&self, value: u64) -> WaitStatus {
        let word = self.word.load(Ordering::Acquire);
        if word & !FAILED >= value {
            WaitStatus::Reached
        } else if word & FAILED != 0 {
            WaitStatus::Failed(self.recorded())
        } else {
            WaitStatus::Open
        }
    }

    /// Raises the timeline from the host. `show` runs in the same step.
    pub(crate) fn signal(
        self: &Arc<Self>,
        value: u64,
        show: impl FnOnce(),
        deferred: &mut DeferredWork,
    ) -> Result<(), SignalError> {
        if value > MAX_VALUE {
            return Err(SignalError::ValueTooLarge { value });
        }
        let mut state = self.state.lock();
        if let Some(failure) = &state.failure {
            return Err(SignalError::Failed { value, failure: failure.clone() });
        }
        let current = self.value();
        if value <= current {
            return Err(SignalError::NotAbove { value, current });
        }
        show();
        self.raise(&mut state, value, deferred);
        Ok(())
    }

    /// Raises the timeline for an operation that has ended, unless the value is reached or the timeline has
    /// failed. `show` runs in the same step; if it returns a failure, the timeline fails. Returns false if it had
    /// failed before.
    pub(crate) fn reach(
        self: &Arc<Self>,
        value: u64,
        show: impl FnOnce() -> Option<Failure>,
        deferred: &mut DeferredWork,
    ) -> bool {
        let mut state = self.state.lock();
        if state.failure.is_some() {
            return false;
        }
        if value > self.value() {
            match show() {
                Some(failure) => self.fail_at(&mut state, self.value(), failure, deferred),
                None => self.raise(&mut state, value, deferred),
            }
        }
        true
    }

    #[inline]
    fn raise(self: &Arc<Self>, state: &mut TimelineInner, value: u64, deferred: &mut DeferredWork) {
        self.word.store(value, Ordering::Release);
        let is_made = |promise: &Promise| promise.value <= value;
        if state.promises.front().is_some_and(is_made) {
            crate::ring::take_first(&mut state.promises);
            if state.promises.front().is_some_and(is_made) {
                // This moves the front only, however many there are.
                let made = state.promises.partition_point(is_made);
                state.promises.drain(..made);
            }
        }
        self.release(state, deferred);
    }

    /// Fails the timeline for good; only the first failure counts. `show` runs in the same step, with the value
    /// that was reached, and may return an earlier failure. Returns whether this is the first failure that the
    /// engine knows.
    pub(crate) fn fail(
        self: &Arc<Self>,
        failure: &Failure,
        show: impl FnOnce(u64) -> Option<Failure>,
        deferred: &mut DeferredWork,
    ) -> bool {
        let before = if is_mutated(Mutation::FailureForgetsValue) { self.value() } else { 0 };
        let mut state = self.state.lock();
        if state.failure.is_some() {
            return false;
        }
        let value = if is_mutated(Mutation::FailureForgetsValue) { before } else { self.value() };
        let earlier = show(value);
        self.fail_at(&mut state, value, earlier.unwrap_or_else(|| failure.clone()), deferred);
        true
    }

    fn fail_at(
        self: &Arc<Self>,
        state: &mut TimelineInner,
        value: u64,
        failure: Failure,
        deferred: &mut DeferredWork,
    ) {
        state.failure = Some(failure);
        self.word.store(value | FAILED, Ordering::Release);
        state.promises.clear();
        self.release(state, deferred);
    }

    /// Continues to release waits; see [`RELEASE_BATCH`].
    pub(super) fn drain(self: &Arc<Self>, deferred: &mut DeferredWork) {
        let mut state = self.state.lock();
        self.release(&mut state, deferred);
    }

    /// Releases waits by the state of the timeline, and defers the rest if there is more.
    #[inline]
    fn release(self: &Arc<Self>, state: &mut TimelineInner, deferred: &mut DeferredWork) {
        let reached = self.value();
        let limit = if state.failure.is_some() { u64::MAX } else { reached };
        if state.lists.releases(limit) {
            self.release_some(state, reached, limit, deferred);
        }
    }

    /// Releases at most [`RELEASE_BATCH`] waits.
    #[inline(never)]
    fn release_some(
        self: &Arc<Self>,
        state: &mut TimelineInner,
        reached: u64,
        limit: u64,
        deferred: &mut DeferredWork,
    ) {
        let mut left = RELEASE_BATCH;
        while left > 0
            && let Some((value, target)) = state.lists.pop(limit)
        {
            left -= 1;
            let release = match &state.failure {
                Some(failure) if value > reached => Release::Failed(failure.clone()),
                _ => Release::Reached,
            };
            deferred.released.push_back((target, release));
        }
        if left == 0 && state.lists.releases(limit) {
            deferred.drains.push_back(self.clone());
        }
        self.prune(state);
    }

    /// Adds a timepoint of an open wait. Returns the number for [`remove_timepoint`](TimelineState::remove_timepoint).
    pub(super) fn add_timepoint(
        &self,
        state: &mut TimelineInner,
        owner: ListOwner,
        value: u64,
        target: Target,
    ) -> u32 {
        debug_assert!(state.failure.is_none(), "a failed timeline is not waited for");
        let order = state.lists.push(owner, value, target);
        if owner.is_queue() {
            self.count_listeners(state);
        }
        order
    }

    /// Removes a timepoint whose owner no longer waits. It may have been released already.
    pub(crate) fn remove_timepoint(&self, owner: ListOwner, value: u64, order: u32) {
        let mut state = self.state.lock();
        state.lists.remove(owner, value, order);
        self.count_listeners(&state);
    }

    /// Counts a waiter that is about to search for a dependency, so that queues that submit work from now on
    /// notify the timeline. The caller calls [`count_listeners`](TimelineState::count_listeners) at the end, at
    /// the latest.
    pub(super) fn listen(&self, state: &TimelineInner) {
        self.listeners.store(state.lists.queue_waits() + 1, Ordering::Relaxed);
        if !is_mutated(Mutation::ListenerHasNoFence) {
            fence(Ordering::SeqCst);
        }
    }

    pub(super) fn count_listeners(&self, state: &TimelineInner) {
        self.listeners.store(state.lists.queue_waits(), Ordering::Relaxed);
    }

    /// True if a submitted promise may satisfy a wait. The caller has moved its queue's `submitted` and passed
    /// a sequentially consistent fence.
    #[inline]
    pub(super) fn has_listeners(&self) -> bool {
        self.listeners.load(Ordering::Relaxed) > 0
    }

    /// Removes empty lists if there are many.
    // A limit of speed: either side of it is as good.
    #[cfg_attr(mutants, mutants::skip)]
    pub(super) fn prune(&self, state: &mut TimelineInner) {
        state.lists.prune();
        self.count_listeners(state);
    }

    /// True if there may be promises that are enough for `value`, which is not reached. It reads without the
    /// lock: the answer may be out of date.
    #[inline]
    pub(super) fn may_be_promised(&self, value: u64) -> bool {
        self.promised.load(std::sync::atomic::Ordering::Relaxed) >= value
    }

    /// Adds a promise of queued work. The waits of the queue itself that it satisfies are added to `ordered`;
    /// if there are more, the thread's deferred work continues. Returns whether the timeline [has become
    /// large](TimelineInner::becomes_large).
    #[inline(always)]
    pub(super) fn promise(
        self: &Arc<Self>,
        promise: Promise,
        ordered: &mut OrderedWaits,
        deferred: &mut DeferredWork,
    ) -> bool {
        let mut state = self.state.lock();
        if state.failure.is_some() || promise.value <= self.value() {
            return false;
        }
        if state.promises.back().is_none_or(|last| last.value < promise.value || last.rank() < promise.rank())
        {
            // An empty ring stays at its front. No larger value was promised before: it would stand behind this
            // one, or is reached.
            self.promised.store(promise.value, std::sync::atomic::Ordering::Relaxed);
            state.promises.push_back(promise);
        } else if !state.insert_promise(promise) {
            return false;
        }
        let large = state.becomes_large();
        if state.lists.queue_waits() == 0 {
            return large;
        }
        let before = ordered.len();
        let more = state.lists.take_ordered(promise.queue, promise.value, RELEASE_BATCH, ordered);
        if more {
            deferred.promises_due.push_back((self.clone(), promise));
        }
        if ordered.len() > before {
            self.prune(&mut state);
        }
        large
    }

    /// Records how another queue can wait natively for a promise.
    pub(super) fn amend(&self, promise: Promise) {
        let mut state = self.state.lock();
        if let Some(known) = find(&mut state.promises, promise.value, promise.queue, promise.epoch) {
            *known = promise;
        }
    }

    /// Fails the waits of a timeline that nothing can signal any more.
    pub(crate) fn abandon(self: &Arc<Self>, deferred: &mut DeferredWork) {
        // Without a handle no waiter can come, and a failed timeline has none.
        let waited_for = !self.state.lock().lists.are_empty();
        if waited_for {
            self.fail(&self.abandoned(), |_| None, deferred);
        }
    }

    /// The value, or the failure, read under the lock.
    pub(crate) fn settled(&self) -> Result<u64, Failure> {
        let state = self.state.lock();
        state.failure.clone().map_or_else(|| Ok(self.value()), Err)
    }

    /// The failure of waits that nothing can end any more.
    pub(crate) fn abandoned(&self) -> Failure {
        let value = self.value();
        Failure::with_origin(
            Code::Aborted,
            Origin::Abandoned,
            format!("the timeline was dropped at {value}: what was waited for can no longer be signalled"),
        )
    }

    pub(crate) fn set_subscription(&self, subscription: Box<dyn Any + Send>) -> Option<Box<dyn Any + Send>> {
        self.state.lock().subscription.replace(subscription)
    }

    /// The lock, if it is free.
    pub(super) fn try_lock(&self) -> Option<Guard<'_, TimelineInner>> {
        self.state.try_lock()
    }

    /// The value that the promises will bring the timeline to.
    pub(crate) fn promised(&self) -> Option<u64> {
        // With the lock: a caller that has seen a shown step also sees the promises of that step.
        self.state.lock().promises.back().map(|promise| promise.value)
    }

    /// Releases memory that a burst has left behind. Returns whether there is more, which the present waits
    /// need.
    // A limit of memory: either side of it is as good.
    #[cfg_attr(mutants, mutants::skip)]
    pub(super) fn trim(&self) -> bool {
        let mut state = self.state.lock();
        state.lists.trim();
        state.promises.shrink_to_fit();
        state.large = false;
        state.becomes_large()
    }
}

fn find(promises: &mut VecDeque<Promise>, value: u64, queue: u32, epoch: u64) -> Option<&mut Promise> {
    let rank = (value, queue, epoch);
    // Fast path: usually it was just added.
    let is_last = promises.back().is_some_and(|last| last.rank() == rank);
    let at = if is_last {
        promises.len() - 1
    } else {
        promises.binary_search_by_key(&rank, Promise::rank).ok()?
    };
    promises.get_mut(at)
}

impl TimelineInner {
    pub(super) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// The subscription to the foreign timeline, once there is one.
    pub(super) fn subscription(&self) -> Option<&(dyn Any + Send)> {
        self.subscription.as_deref()
    }

    pub(super) fn has_promises(&self) -> bool {
        !self.promises.is_empty()
    }

    /// The promise of the largest value.
    #[inline]
    pub(super) fn last_promise(&self) -> Option<&Promise> {
        self.promises.back()
    }

    /// True if the last promise, and no other, is enough for `value`.
    fn only_last_is_enough(&self, value: u64) -> bool {
        let mut from_last = self.promises.iter().rev().map(|promise| promise.value >= value);
        from_last.next() == Some(true) && from_last.next() != Some(true)
    }

    /// The promises that are enough for `value`, the smallest first, at most [`SCAN`].
    pub(super) fn promises_for(&self, value: u64) -> impl Iterator<Item = &Promise> {
        let first = if self.only_last_is_enough(value) {
            self.promises.len() - 1
        } else {
            self.promises.partition_point(|promise| promise.value < value)
        };
        self.promises.range(first..).take(SCAN)
    }

    /// Inserts a promise in order, unless it is there.
    fn insert_promise(&mut self, promise: Promise) -> bool {
        let rank = promise.rank();
        let at = self.promises.partition_point(|other| other.rank() <= rank);
        if at.checked_sub(1).and_then(|before| self.promises.get(before)).is_some_and(|it| it.rank() == rank)
        {
            // An operation that names a signal twice promises it once. `find` finds a promise by its rank.
            return false;
        }
        self.promises.insert(at, promise);
        true
    }

    pub(super) fn find(&mut self, value: u64, queue: u32, epoch: u64) -> Option<Promise> {
        find(&mut self.promises, value, queue, epoch).copied()
    }

    /// The queues with waits that `value` may satisfy.
    pub(super) fn waiting(&self, value: u64) -> SmallVec<[u32; 8]> {
        self.lists.queues(value)
    }

    pub(super) fn pop(&mut self, queue: u32, value: u64) -> Option<(u64, Target)> {
        self.lists.pop_of(queue, value)
    }

    /// True if the timeline has become large and is not in the engine's list yet.
    // A limit of memory: either side of it is as good.
    #[cfg_attr(mutants, mutants::skip)]
    pub(super) fn becomes_large(&mut self) -> bool {
        let large = self.promises.capacity() > LARGE || self.lists.are_large();
        large && !std::mem::replace(&mut self.large, true)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
