// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A slot: the engine's record of one timeline, which alone decides its value, its failure and its waits.
//!
//! # One step at a time
//!
//! A timeline moves under the lock of its slot and nowhere else: a host signal, a retired operation, a failure. The order
//! of those steps decides every question about it (rule S1): a wait that was registered and whose value came before
//! the failure is fulfilled, a wait that comes after the failure fails, reached or not. `word` repeats the state for
//! readers that take no lock: the value, and a bit that says that the timeline has failed.
//!
//! # Locks
//!
//! The lock of a slot is taken while the lock of a queue is held, never the other way round, and never together with that
//! of another slot. Under it only [`Timeline::show`](crate::timeline::Timeline::show) is called, which must be a store.
//! What a step releases is put on the [`DeferredWork`] of the thread that took it, at most [`RELEASE_BATCH`] at a time, so
//! that the lock is held for a bounded time however many wait.
//!
//! # Listeners
//!
//! A queue that has handed work to its device tells the timelines that the work signals, so that operations of other queues
//! that wait for it can leave the wait to their device. Most timelines have no such queue. `listeners` counts
//! them, so that the producing queue need not take the lock to find out: a thread that registers raises the count and then
//! looks how far the queue is; the queue moves on and then looks at the count. One of the two sees the other, because
//! a sequentially consistent fence stands between the store and the load of each.

use super::deferred_work::{DeferredWork, PromiseUpdate, Release};
use super::host_wait::{CallbackRecord, HostWait};
use super::wait_lists::{ListOwner, WaitLists};
use crate::error::SignalError;
use crate::failure::{Code, Failure, Origin};
use crate::ids::{MAX_VALUE, TimelineKey};
use crate::mutation::{Mutation, is_mutated};
use crate::native_event::EventIndex;
use crate::slab::Key;
use crate::sync::{AtomicU64, Guard, Mutex, Ordering, fence};
use smallvec::SmallVec;
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

const FAILED: u64 = 1 << 63;

/// How many waits one hold of a slot's lock releases at most.
pub(super) const RELEASE_BATCH: usize = 64;

/// How many signals a look for one that covers a wait goes through at most.
pub(super) const SCAN: usize = 16;

/// From this capacity on the memory of the promises is worth giving back.
const LARGE: usize = 1024;

/// What a timepoint releases.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// One wait of a held operation, which is `wide` where it has others. Once it is covered only a failure matters to it.
    Op { queue: u32, key: Key, wait: u32, wide: bool },
    /// A covered wait of an operation that its device does not have yet: only a failure matters to it.
    OpFailure { queue: u32, key: Key },
    /// A queue whose oldest operation has ended on its device before what it waited for has retired here.
    Gate(u32),
    /// A queue whose device was full and may have room again, because the device says so (`asked`) or something has ended.
    FullQueue { queue: u32, asked: bool },
    /// One timeline of a host wait.
    Wait(Arc<HostWait>, u32),
    /// A callback.
    Callback(Arc<CallbackRecord>),
}

/// A wait that a promise covers in its own queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrderedWait {
    pub(super) op: Key,
    pub(super) wait: u32,
    /// The number under which the host's list of the slot has it from now on, where only a failure matters.
    pub(super) failure_entry: Option<u32>,
}

/// A signal that work in some queue will make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    pub(super) value: u64,
    pub(super) queue: u32,
    pub(super) epoch: u64,
    /// The epoch that another queue waits for natively in order to wait for this signal; zero where there is none.
    pub(super) native_epoch: u64,
    /// The event that was recorded there.
    pub(super) event: Option<EventIndex>,
}

impl Promise {
    /// What promises are sorted by.
    fn rank(&self) -> (u64, u32, u64) {
        (self.value, self.queue, self.epoch)
    }
}

/// What the lock of a slot protects.
#[derive(Default)]
pub(crate) struct TimelineInner {
    failure: Option<Failure>,
    /// Timepoints, by their [`ListOwner`]: a waiting queue, or the host.
    lists: WaitLists,
    /// Signals that work with a place in its queue will make, by value, queue and epoch.
    promises: VecDeque<Promise>,
    /// What watches a foreign timeline on behalf of this slot.
    subscription: Option<Box<dyn Any + Send>>,
    /// The engine knows that this slot has memory to give back.
    large: bool,
}

/// See the [module documentation](self).
pub(crate) struct TimelineState {
    word: AtomicU64,
    /// How many waits a signal under way might cover.
    listeners: AtomicU64,
    /// The largest value that was ever promised, for those without the lock, who may see an older one. It orders nothing.
    promised: std::sync::atomic::AtomicU64,
    key: TimelineKey,
    /// It stands in for a foreign timeline.
    foreign: bool,
    state: Mutex<TimelineInner>,
}

impl fmt::Debug for TimelineState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("key", &self.key).field("look", &self.snapshot()).finish_non_exhaustive()
    }
}

/// Whether a wait is over.
#[derive(Clone, Debug)]
pub(crate) enum WaitStatus {
    Open,
    Reached,
    Failed(Failure),
}

impl TimelineState {
    pub(crate) fn new(key: TimelineKey, foreign: bool, value: u64) -> Self {
        Self {
            word: AtomicU64::new(value),
            listeners: AtomicU64::new(0),
            promised: std::sync::atomic::AtomicU64::new(0),
            key,
            foreign,
            state: Mutex::new(TimelineInner::default()),
        }
    }

    /// Makes a slot without other owners ready for another timeline; the memory of its lists stays.
    pub(crate) fn reset(&mut self, key: TimelineKey, value: u64) {
        self.word = AtomicU64::new(value);
        *self.promised.get_mut() = 0;
        self.key = key;
        let mut state = self.state.lock();
        // A waiter, or an operation that was to signal it, would own it as well.
        debug_assert!(state.lists.are_empty() && state.promises.is_empty(), "it has other owners");
        state.failure = None;
        state.lists.keep_first();
    }

    #[inline]
    pub(crate) fn key(&self) -> TimelineKey {
        self.key
    }

    #[inline]
    pub(crate) fn is_foreign(&self) -> bool {
        self.foreign
    }

    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, TimelineInner> {
        self.state.lock()
    }

    /// The value reached, whether it has failed or not.
    #[inline]
    pub(crate) fn value(&self) -> u64 {
        self.word.load(Ordering::Acquire) & !FAILED
    }

    /// The value reached, or what the timeline failed with.
    pub(crate) fn query(&self) -> Result<u64, Failure> {
        let word = self.word.load(Ordering::Acquire);
        if word & FAILED == 0 { Ok(word) } else { Err(self.recorded()) }
    }

    /// The value reached, and whether the timeline has failed, at one moment.
    #[inline]
    pub(super) fn snapshot(&self) -> (u64, bool) {
        let word = self.word.load(Ordering::Acquire);
        (word & !FAILED, word & FAILED != 0)
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.word.load(Ordering::Acquire) & FAILED != 0
    }

    /// What a failed timeline failed with.
    #[cold]
    fn recorded(&self) -> Failure {
        #[expect(
            clippy::expect_used,
            reason = "the bit is set under the lock that the failure is recorded under"
        )]
        self.state.lock().failure.clone().expect("a failed timeline has its failure recorded")
    }

    /// How a wait for `value` stands that was registered before: a value that came before the failure counts.
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

    /// Raises the timeline for an operation that has ended. A value that is reached, or a failure, stays as it is. `show`
    /// runs in the same step, and says if it knows of a failure: then the timeline fails.
    pub(crate) fn reach(
        self: &Arc<Self>,
        value: u64,
        show: impl FnOnce() -> Option<Failure>,
        deferred: &mut DeferredWork,
    ) {
        let mut state = self.state.lock();
        if state.failure.is_some() || value <= self.value() {
            return;
        }
        match show() {
            Some(failure) => self.fail_at(&mut state, self.value(), failure, deferred),
            None => self.raise(&mut state, value, deferred),
        }
    }

    #[inline]
    fn raise(self: &Arc<Self>, state: &mut TimelineInner, value: u64, deferred: &mut DeferredWork) {
        self.word.store(value, Ordering::Release);
        let is_made = |promise: &Promise| promise.value <= value;
        if state.promises.front().is_some_and(is_made) {
            crate::ring::take_first(&mut state.promises);
            if state.promises.front().is_some_and(is_made) {
                // However many there are, this only moves the front.
                let made = state.promises.partition_point(is_made);
                state.promises.drain(..made);
            }
        }
        self.release(state, deferred);
    }

    /// Fails the timeline for good; only the first failure counts. `show` runs in the same step, with the value
    /// that was reached, and says if it knows of an earlier one. Returns whether this was the first that the engine knows.
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

    /// Goes on releasing what waits; see [`RELEASE_BATCH`].
    pub(super) fn drain(self: &Arc<Self>, deferred: &mut DeferredWork) {
        let mut state = self.state.lock();
        self.release(&mut state, deferred);
    }

    /// Puts what the state of the timeline sets free on the agenda, and the slot itself if there is more.
    #[inline]
    fn release(self: &Arc<Self>, state: &mut TimelineInner, deferred: &mut DeferredWork) {
        let reached = self.value();
        let limit = if state.failure.is_some() { u64::MAX } else { reached };
        if state.lists.releases(limit) {
            self.release_some(state, reached, limit, deferred);
        }
    }

    /// The same where something is set free, at most [`RELEASE_BATCH`] of it.
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
            deferred.may_call_back |= matches!(target, Target::Callback(_));
            let release = match &state.failure {
                Some(failure) if value > reached => Release::Failed(failure.clone()),
                _ => Release::Reached(reached),
            };
            deferred.released.push_back((target, release));
        }
        if left == 0 && state.lists.releases(limit) {
            deferred.may_call_back = true;
            deferred.drains.push_back(self.clone());
        }
        self.prune(state);
    }

    /// Adds a timepoint of a wait that is open. Returns the number by which [`unpark`](TimelineState::unpark) takes it out again.
    pub(super) fn park(
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

    /// Takes a timepoint out whose owner no longer waits. It may have been released already.
    pub(crate) fn unpark(&self, owner: ListOwner, value: u64, order: u32) {
        let mut state = self.state.lock();
        let removed = state.lists.remove(owner, value, order);
        self.count_listeners(&state);
        drop(state);
        // What the target holds goes without the lock.
        drop(removed);
    }

    /// Counts a waiter that is about to look for a signal that covers its wait, so that queues which hand such a signal
    /// to their device from now on come by. Ends with [`count_listeners`](TimelineState::count_listeners) at the latest.
    pub(super) fn listen(&self, state: &TimelineInner) {
        self.listeners.store(state.lists.queue_waits() + 1, Ordering::Relaxed);
        if !is_mutated(Mutation::ListenerHasNoFence) {
            fence(Ordering::SeqCst);
        }
    }

    pub(super) fn count_listeners(&self, state: &TimelineInner) {
        self.listeners.store(state.lists.queue_waits(), Ordering::Relaxed);
    }

    /// Whether a signal that is with its device now may cover a wait. The caller has moved on and then passed a
    /// sequentially consistent fence.
    #[inline]
    pub(super) fn has_listeners(&self) -> bool {
        self.listeners.load(Ordering::Relaxed) > 0
    }

    /// Puts lists that are empty away if there are many.
    pub(super) fn prune(&self, state: &mut TimelineInner) {
        state.lists.prune();
        self.count_listeners(state);
    }

    /// Whether there may be promises that are enough for `value`, which is not reached: a look without the lock, for those to whom an
    /// answer of a moment ago will do.
    #[inline]
    pub(super) fn may_be_promised(&self, value: u64) -> bool {
        self.promised.load(std::sync::atomic::Ordering::Relaxed) >= value
    }

    /// Work with a place in a queue will signal `promise`. Releases what that covers in the queue itself, and says
    /// through the agenda if there is more of it. Returns whether the slot [has become large](TimelineInner::becomes_large).
    #[inline(always)]
    pub(super) fn promise(
        self: &Arc<Self>,
        promise: Promise,
        ordered: &mut SmallVec<[OrderedWait; 4]>,
        deferred: &mut DeferredWork,
    ) -> bool {
        let mut state = self.state.lock();
        if state.failure.is_some() || promise.value <= self.value() {
            return false;
        }
        if state.promises.back().is_none_or(|last| last.value < promise.value || last.rank() < promise.rank())
        {
            // A ring that is empty stays at its front. No larger value was promised before: it would stand behind this one, or is
            // reached.
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
            deferred.promises_due.push_back(PromiseUpdate { timeline_state: self.clone(), promise });
        }
        if ordered.len() > before {
            self.prune(&mut state);
        }
        large
    }

    /// How another queue can wait for a promise is known now.
    pub(super) fn amend(&self, promise: Promise) {
        let mut state = self.state.lock();
        if let Some(known) = find(&mut state.promises, promise.value, promise.queue, promise.epoch) {
            *known = promise;
        }
    }

    /// Registers a wait of the host, which nothing but the value releases; or says that it is over. Says also whether the
    /// slot [has become large](TimelineInner::becomes_large).
    pub(crate) fn wait_for(&self, value: u64, target: Target) -> Result<(u32, bool), Result<u64, Failure>> {
        let mut state = self.state.lock();
        let reached = self.value();
        match &state.failure {
            _ if is_mutated(Mutation::RegisterDoesNotCheck) => {}
            Some(failure) => return Err(Err(failure.clone())),
            None if reached >= value => return Err(Ok(reached)),
            None => {}
        }
        let order = self.park(&mut state, ListOwner::HOST, value, target);
        Ok((order, state.becomes_large()))
    }

    /// The timeline cannot be signalled any more.
    pub(crate) fn abandon(self: &Arc<Self>, deferred: &mut DeferredWork) {
        // Without a handle no waiter can come any more, and one that has failed has none left.
        let waited_for = !self.state.lock().lists.are_empty();
        if waited_for {
            let value = self.value();
            let failure = Failure::with_origin(
                Code::Aborted,
                Origin::Abandoned,
                format!(
                    "the timeline was dropped at {value}: what was waited for can no longer be signalled"
                ),
            );
            self.fail(&failure, |_| None, deferred);
        }
    }

    pub(crate) fn set_subscription(&self, subscription: Box<dyn Any + Send>) -> Option<Box<dyn Any + Send>> {
        self.state.lock().subscription.replace(subscription)
    }

    /// The value that the promises will bring the timeline to.
    pub(crate) fn promised(&self) -> Option<u64> {
        // With the lock: a step that is shown already is made when this returns, and those who have seen the one read the other then.
        self.state.lock().promises.back().map(|promise| promise.value)
    }

    /// Gives back memory that a burst has left behind. Returns whether there is more, which those who wait now need.
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
    // Mostly it was made just now.
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

    pub(super) fn has_promises(&self) -> bool {
        !self.promises.is_empty()
    }

    /// The promise of the largest value.
    #[inline]
    pub(super) fn last_promise(&self) -> Option<&Promise> {
        self.promises.back()
    }

    /// Whether the last promise is enough for `value`, and the only one.
    fn only_last_is_enough(&self, value: u64) -> bool {
        let mut from_last = self.promises.iter().rev().map(|promise| promise.value >= value);
        from_last.next() == Some(true) && from_last.next() != Some(true)
    }

    /// The promises that are enough for `value`, the smallest first, and no more than a look goes through.
    pub(super) fn promises_for(&self, value: u64) -> impl Iterator<Item = &Promise> {
        let first = if self.only_last_is_enough(value) {
            self.promises.len() - 1
        } else {
            self.promises.partition_point(|promise| promise.value < value)
        };
        self.promises.range(first..).take(SCAN)
    }

    /// Puts a promise in its place among the others, unless it is there.
    fn insert_promise(&mut self, promise: Promise) -> bool {
        let rank = promise.rank();
        let at = self.promises.partition_point(|other| other.rank() <= rank);
        if at.checked_sub(1).and_then(|before| self.promises.get(before)).is_some_and(|it| it.rank() == rank)
        {
            // An operation that names a signal twice makes it once. A promise is found again by its rank.
            return false;
        }
        self.promises.insert(at, promise);
        true
    }

    pub(super) fn find(&mut self, value: u64, queue: u32, epoch: u64) -> Option<Promise> {
        find(&mut self.promises, value, queue, epoch).copied()
    }

    /// The queues whose waits `value` may cover.
    pub(super) fn waiting(&self, value: u64) -> SmallVec<[u32; 8]> {
        self.lists.queues(value)
    }

    pub(super) fn pop(&mut self, queue: u32, value: u64) -> Option<(u64, Target)> {
        self.lists.pop_of(queue, value)
    }

    /// Whether the slot has become large and is not on the list of large ones yet.
    pub(super) fn becomes_large(&mut self) -> bool {
        let large = self.promises.capacity() > LARGE || self.lists.are_large();
        large && !std::mem::replace(&mut self.large, true)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
