// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Routing: a runnable operation goes to its place in its queue, to the host, or to its end.
//!
//! An operation is runnable once none of its waits is blocked. An operation that is queued gets its epoch here, and
//! its signals become promises, which satisfy waits of blocked operations by order.

use super::Shared;
use super::deferred_work::{DeferredWork, Dependency};
use super::flow_window::MAX_BATCH;
use super::op::{ActionKind, OpState, SignalRecord, WaitState};
use super::queue::QueueGuard;
use super::timeline_state::{OrderedWait, OrderedWaits, Promise, Target};
use super::wait_lists::ListOwner;
use crate::backend::Backend;
use crate::failure::Failure;
use crate::mutation::{Mutation, is_mutated};
use crate::slab::Key;
use smallvec::SmallVec;

impl<B: Backend> Shared<B> {
    /// Promises each signal of a queued operation. The waits of its queue that this satisfies are added to
    /// `ordered`.
    #[inline(always)]
    pub(super) fn promise_each(
        &self,
        signals: &[SignalRecord<B::Timeline>],
        promise: Promise,
        ordered: &mut OrderedWaits,
        deferred: &mut DeferredWork,
    ) {
        for signal in signals {
            let Some(timeline_state) = self.own_state(&signal.timeline) else { continue };
            if timeline_state.promise(Promise { value: signal.value, ..promise }, ordered, deferred) {
                self.remember_large(timeline_state);
            }
        }
    }
}

impl<B: Backend> QueueGuard<'_, B> {
    /// Sends a runnable operation on: to its end, to its queue or to the host.
    pub(super) fn route(&mut self, key: Key) {
        let Some(op) = self.op(key) else { return };
        if let Some(failure) = op.failure.clone() {
            self.end_or_clean_up(key, failure);
            return;
        }
        debug_assert!(op.state == OpState::Pending && op.remaining == 0, "it is routed once");
        let kind = op.kind;
        match kind {
            ActionKind::Queue | ActionKind::Marker => self.enqueue(key),
            ActionKind::Early if !self.is_reached(key) => {
                if let Some(work) = self.start_on_host(key) {
                    self.state.host.effects().try_early(key, work);
                }
            }
            ActionKind::Host | ActionKind::Early => {
                if let Some(work) = self.start_on_host(key) {
                    self.state.host.effects().run(key, work, None);
                }
            }
            ActionKind::Barrier if self.is_reached(key) => {
                self.end(key, None, None);
            }
            ActionKind::Barrier => self.enqueue(key),
        }
    }

    /// Marks an operation as running on the host. Returns its work.
    pub(super) fn start_on_host(&mut self, key: Key) -> Option<B::Work> {
        let shared = self.shared;
        let state = &mut *self.state;
        let op = state.ops.live_mut(key);
        op.state = OpState::Running;
        state.host.effects().traces().on_host(&op.trace);
        let work = op.work.take();
        if let Some(work) = &work {
            op.work_kind = shared.foreign(|| shared.backend.kind(work)).unwrap_or(0);
        }
        self.state.host.begin_run();
        work
    }

    fn is_reached(&self, key: Key) -> bool {
        self.state.ops.live(key).waits.iter().all(|wait| wait.timeline.value() >= wait.value)
    }

    /// Takes the backend's answer about an early action.
    pub(super) fn finish_early(&mut self, key: Key, work: B::Work, done: Result<bool, Failure>) {
        let index = self.index;
        let (closing, lost) = (self.state.ending.is_closing(), self.state.ending.lost().cloned());
        // Nothing else ends an operation that runs on the host.
        let op = self.live(key);
        op.work = Some(work);
        let done = match (done, lost) {
            (Ok(done), None) => done,
            (Err(failure), _) | (Ok(_), Some(failure)) => return self.end(key, Some(failure), None),
        };
        let mut blocked = 0;
        let mut failure = closing.then(super::shutdown::shutdown_failure);
        let mut events: SmallVec<[_; 2]> = SmallVec::new();
        for (record, number) in op.waits.iter_mut().zip(0u32..) {
            if done {
                break;
            }
            let mut state = record.timeline.lock();
            let checks = !is_mutated(Mutation::EarlyDoesNotCheck);
            if checks && record.timeline.value() >= record.value {
                continue;
            }
            if let Some(cause) = state.failure() {
                failure.get_or_insert(cause.clone());
                continue;
            }
            events.extend(
                record.dependency().and_then(|dependency| Some((dependency.queue, dependency.event?))),
            );
            blocked += 1;
            let target = Target::Op { queue: index, key, wait: number, has_others: false };
            record.state = WaitState::InHostList(record.timeline.add_timepoint(
                &mut state,
                ListOwner::HOST,
                record.value,
                target,
            ));
        }
        op.state = OpState::Pending;
        op.done = done;
        op.kind = if done { ActionKind::Barrier } else { ActionKind::Host };
        op.remaining = blocked;
        op.failure = failure;
        let is_runnable = blocked == 0 || op.failure.is_some();
        self.state.host.end_run();
        for (producer, event) in events {
            self.shared.queue(producer).events.lock().release(event);
        }
        if is_runnable {
            self.state.order.push_runnable(key);
        }
    }

    /// Gives an operation its epoch in its queue.
    fn enqueue(&mut self, key: Key) {
        let epoch = self.state.order.next_epoch();
        let op = self.state.ops.live_mut(key);
        op.epoch = epoch;
        op.state = OpState::Queued;
        let native_epoch = super::submit::expected_native_epoch(self.device, op.kind, epoch);
        let promise = Promise { value: 0, queue: self.index, epoch, native_epoch, event: None };
        let mut ordered = OrderedWaits::new();
        self.shared.promise_each(&op.signals, promise, &mut ordered, self.deferred);
        self.state.order.push_queued(key);
        self.note_queued(epoch, &ordered);
        if self.state.window.is_full() || self.state.order.queued_len() > MAX_BATCH {
            self.listen_for_failures_of_other_queues(key);
        }
    }

    /// An operation is queued under this epoch, which satisfies these waits of others.
    #[inline]
    pub(super) fn note_queued(&mut self, epoch: u64, ordered: &OrderedWaits) {
        for &OrderedWait { op, wait, failure_entry } in ordered {
            self.satisfy(op, wait, Dependency { queue: self.index, epoch, event: None }, failure_entry);
        }
    }

    /// A wait of a blocked operation is satisfied by order. `failure_entry`: it is in the host's list already,
    /// for failures.
    pub(super) fn satisfy(
        &mut self,
        key: Key,
        number: u32,
        dependency: Dependency,
        failure_entry: Option<u32>,
    ) {
        let state = &mut *self.state;
        if let Some(op) = state.ops.get_mut(key)
            && let record = op.wait_mut(number)
            && matches!(record.state, WaitState::InQueueList(_))
        {
            record.state = WaitState::Dependency(dependency);
            record.failure_entry = failure_entry;
            if op.count_down() {
                state.order.push_runnable(key);
            }
            if failure_entry.is_none() && op.remaining > 0 {
                self.listen_for_failure(key, number as usize);
            }
        } else {
            self.release_event(dependency.queue, dependency.event);
        }
    }

    /// A wait of an operation is reached.
    pub(super) fn reach(&mut self, key: Key, number: u32) {
        let state = &mut *self.state;
        let Some(op) = state.ops.get_mut(key) else { return };
        let record = op.wait_mut(number);
        if matches!(record.state, WaitState::InQueueList(_) | WaitState::InHostList(_)) {
            record.state = WaitState::Reached;
            if op.count_down() {
                state.order.push_runnable(key);
            }
        }
    }

    pub(super) fn release_event(&self, queue: u32, event: Option<crate::native_event::EventIndex>) {
        if let Some(event) = event {
            self.shared.queue(queue).events.lock().release(event);
        }
    }
}
