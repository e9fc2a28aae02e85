// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The class of a wait: reached, satisfied by order, or blocked on the host.
//!
//! [`QueueGuard::classify_wait`] has the table. A wait records the dependency that satisfies it, which stays
//! valid: its epoch was accepted by the device, and its event is retained for the wait.

use super::deferred_work::Dependency;
use super::op::{ActionKind, WaitState};
use super::queue::QueueGuard;
use super::timeline_state::{Promise, Target, TimelineInner, TimelineState};
use super::wait_lists::ListOwner;
use crate::backend::Backend;
use crate::failure::Failure;
use crate::mutation::{Mutation, is_mutated};
use crate::slab::Key;
use crate::stall::TimelineName;
use crate::sync::Ordering;
use std::sync::Arc;

/// The class of a wait when its operation is submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitClass {
    /// The value is reached. Nothing waits.
    Reached,
    /// Queue order or a native wait satisfies it; the operation has recorded the dependency.
    Ordered,
    /// The operation is blocked on the host: no work that it could wait for promises the value yet.
    Blocked,
}

impl<B: Backend> QueueGuard<'_, B> {
    /// Classifies a wait for one of this engine's timelines, and registers it unless it is reached. Returns the
    /// failure of a failed timeline.
    ///
    /// The cheapest class that is correct wins (rule S6):
    ///
    /// | class | when | what waits |
    /// |---|---|---|
    /// | reached | the timeline is at the value | nothing |
    /// | same queue | an operation that is queued in this queue will signal enough | nothing: queue order |
    /// | dominated | this queue already waits natively for a submitted signal that is enough | nothing: queue order |
    /// | native | submitted work of another queue will signal enough | the device |
    /// | blocked | otherwise, and always for host operations | the host |
    ///
    /// Of several promises of other queues that are enough, the smallest value wins: to wait for a later one would
    /// serialise independent work. Of the same queue any will do, since the operation comes behind all of them.
    #[inline]
    pub(super) fn classify_wait(
        &mut self,
        timeline_state: &Arc<TimelineState>,
        value: u64,
        kind: ActionKind,
        key: Key,
        has_others: bool,
    ) -> Result<WaitClass, Failure> {
        // Reached, without the lock.
        if !is_mutated(Mutation::RegisterDoesNotCheck) {
            match timeline_state.snapshot() {
                (reached, false) if reached >= value => return Ok(WaitClass::Reached),
                _ => {}
            }
        }
        let mut state = timeline_state.lock();
        if !is_mutated(Mutation::RegisterDoesNotCheck) {
            if let Some(failure) = state.failure() {
                return Err(failure.clone());
            }
            // Reached.
            if timeline_state.value() >= value {
                return Ok(WaitClass::Reached);
            }
        }
        // Same queue, dominated, native.
        let for_host = kind == ActionKind::Host;
        if !for_host
            && state.has_promises()
            && let Some(dependency) = self.find_dependency(timeline_state, &state, value)
        {
            drop(state);
            self.live(key).wait_for(timeline_state.clone(), value, WaitState::Dependency(dependency));
            return Ok(WaitClass::Ordered);
        }
        // Blocked.
        let wait = self.live(key).next_wait();
        let target = Target::Op { queue: self.index, key, wait, has_others };
        let wait_state = if for_host {
            WaitState::InHostList(timeline_state.add_timepoint(&mut state, ListOwner::HOST, value, target))
        } else {
            WaitState::InQueueList(timeline_state.add_timepoint(
                &mut state,
                ListOwner::queue(self.index),
                value,
                target,
            ))
        };
        if state.becomes_large() {
            self.shared.remember_large(timeline_state);
        }
        drop(state);
        self.live(key).wait_for(timeline_state.clone(), value, wait_state);
        Ok(WaitClass::Blocked)
    }

    /// A dependency that satisfies a wait without the host. A queue that finds none stays counted as a
    /// listener of the timeline, and is notified of the next promise. It is counted before it searches:
    /// either it sees a promise that is made meanwhile, or the thread that makes the promise sees the
    /// listener.
    fn find_dependency(
        &self,
        timeline_state: &TimelineState,
        state: &TimelineInner,
        value: u64,
    ) -> Option<Dependency> {
        self.same_queue_dependency(state, value).or_else(|| {
            if !is_mutated(Mutation::ListenerChecksFirst) {
                timeline_state.listen(state);
            }
            let native_dependency = self.native_dependency(state, value);
            if native_dependency.is_some() {
                timeline_state.count_listeners(state);
            }
            native_dependency
        })
    }

    /// The queue's own work moves on only under the lock that this thread holds.
    fn same_queue_dependency(&self, timeline_state: &TimelineInner, value: u64) -> Option<Dependency> {
        let is_own = |promise: &&Promise| promise.queue == self.index;
        // Fast path: usually the last promise is the one.
        let last = timeline_state.last_promise().filter(|promise| promise.value >= value).filter(is_own);
        let promise = last.or_else(|| timeline_state.promises_for(value).find(is_own))?;
        Some(Dependency { queue: self.index, epoch: promise.epoch, event: None })
    }

    /// A submitted signal of another queue: one that this queue waits for already, if there is one. The event of the
    /// dependency is retained for the caller.
    fn native_dependency(&self, timeline_state: &TimelineInner, value: u64) -> Option<Dependency> {
        let is_awaitable = |promise: &&Promise| {
            let submitted = self.shared.queue(promise.queue).submitted.load(Ordering::Acquire);
            let accepted = promise.epoch <= submitted || is_mutated(Mutation::WaitsForUnsubmitted);
            promise.native_epoch != 0 && accepted && self.device.awaitable
        };
        let mut best: Option<Dependency> = None;
        for promise in timeline_state.promises_for(value).filter(is_awaitable) {
            let (queue, epoch) = (promise.queue, promise.native_epoch);
            if self.state.frontier.get(queue) >= epoch {
                return Some(Dependency { queue, epoch, event: None });
            }
            best.get_or_insert(Dependency { queue, epoch, event: promise.event });
        }
        if let Some(Dependency { queue, event: Some(event), .. }) = best
            && !is_mutated(Mutation::EventNotHeld)
        {
            // The promise exists, so the operation that records the event still retains it.
            self.shared.queue(queue).events.lock().retain(event);
        }
        best
    }

    /// Blocks the operation for a foreign timeline.
    #[cold]
    pub(super) fn subscribe(
        &mut self,
        timeline: &B::Timeline,
        value: u64,
        key: Key,
    ) -> Result<WaitClass, Failure> {
        let (timeline, name) = self.shared.foreign(|| (timeline.clone(), TimelineName::of(timeline)))?;
        let timeline_state = self.shared.new_foreign_state(name);
        let wait = self.live(key).next_wait();
        let target = Target::Op { queue: self.index, key, wait, has_others: false };
        let number = timeline_state.add_timepoint(&mut timeline_state.lock(), ListOwner::HOST, value, target);
        self.state.host.effects().subscribe(timeline, value, timeline_state.clone());
        self.live(key).wait_for(timeline_state, value, WaitState::InHostList(number));
        Ok(WaitClass::Blocked)
    }
}
