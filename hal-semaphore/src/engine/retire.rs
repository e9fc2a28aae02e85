// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Retirement: from a device's report to the end of an operation, in queue order and after its dependencies.
//!
//! An operation that waited natively for another queue may be reported before its dependency. It does not
//! retire before it, or a host thread could see the effect before the cause. Its queue is *gated*: completion
//! arrived before a dependency retired, and retirement pauses until the dependency's timeline moves, which is
//! no more than a report away.
//!
//! Retirement also decides whether an operation failed: by its own report, or because a dependency failed (its
//! inputs were never made, whatever the device reports). Operations end one after the other, so that later ones
//! see an earlier failure, and a bounded number at a time, so that waiters go on before the next ones end.

use super::Shared;
use super::effects::Publication;
use super::flight::InFlight;
use super::op::{OpState, SignalRecord, WaitRecord, WaitState};
use super::outbox::Delivery;
use super::queue::QueueGuard;
use super::timeline_state::{Target, WaitStatus};
use super::wait_lists::ListOwner;
use crate::backend::Backend;
use crate::error::CompletionError;
use crate::failure::Failure;
use crate::ids::{Point, QueueId};
use crate::mutation::{Mutation, is_mutated};
use crate::slab::Key;
use crate::sync::{Ordering, fence};
use crate::timeline::Timeline;
use smallvec::SmallVec;

/// How many operations retire under one hold of the lock at most.
const RETIRE_BATCH: usize = 64;

impl<B: Backend> Shared<B> {
    /// Records a report that comes from inside `submit`; the submitting thread retires what has ended when the
    /// backend returns. `None` if a full queue has to be woken, or if another thread has the queue's lock.
    pub(super) fn record_inside_submit(
        &self,
        id: QueueId,
        epoch: u64,
        failure: &mut Option<Failure>,
    ) -> Option<Result<(), CompletionError>> {
        let mut state = self.queue(id.index).try_lock()?;
        if !state.flight.is_being_submitted(epoch) || self.device.counts_reports() {
            return None;
        }
        Some(state.flight.record_report(id, epoch, failure.take()))
    }
}

impl<B: Backend> QueueGuard<'_, B> {
    /// Takes a backend's report; see [`Completer`](crate::backend::Completer).
    pub(super) fn report(&mut self, epoch: u64, failure: Option<Failure>) -> Result<(), CompletionError> {
        self.state.flight.record_report(self.queue.id, epoch, failure)?;
        if self.device.counts_reports() {
            let reports = self.queue.reports.load(Ordering::Relaxed);
            self.queue.reports.store(reports + 1, Ordering::Release);
            // This thread sees a full queue, or that queue sees the report.
            fence(Ordering::SeqCst);
            self.wake_full_queues();
        }
        Ok(())
    }

    /// Counts operations that the backend is handed.
    pub(super) fn take_credits(&mut self, count: usize) {
        self.state.window.take(count);
        self.queue.taken.store(self.state.window.taken() as u64, Ordering::Release);
    }

    /// Counts operations that came back or have ended.
    pub(super) fn return_credits(&mut self, count: usize) {
        self.state.window.give(count);
        self.queue.taken.store(self.state.window.taken() as u64, Ordering::Release);
    }

    /// Something of the device has ended: its full queues try again.
    fn wake_full_queues(&mut self) {
        self.device.wake_full(false, self.deferred);
    }

    /// Retires operations, a bounded number.
    pub(super) fn retire(&mut self) {
        let mut left = RETIRE_BATCH;
        let mut gave = false;
        while left > 0 && self.state.is_due() {
            if !self.retire_first() {
                break;
            }
            gave = true;
            left -= 1;
        }
        if self.needs_sweep() {
            // This includes queues that wait for capacity of this device.
            self.sweep(left);
        }
        if gave {
            // A full queue registers before it checks whether the device has anything left.
            if self.device.counts_reports() && !is_mutated(Mutation::CreditsHaveNoFence) {
                fence(Ordering::SeqCst);
            }
            self.wake_full_queues();
        }
    }

    /// Retires the oldest operation in flight; if a dependency has not ended, the queue is gated. Returns
    /// whether one retired.
    fn retire_first(&mut self) -> bool {
        let Some(entry) = self.state.flight.oldest() else { unreachable!("`is_due` has just seen it") };
        let (key, epoch) = (entry.op, entry.epoch);
        let mut failure = entry.failure.clone();
        let state = &mut *self.state;
        for record in &state.ops.live(key).waits {
            match record.timeline.status(record.value) {
                WaitStatus::Reached => {}
                WaitStatus::Failed(cause) => {
                    failure.get_or_insert(cause);
                }
                WaitStatus::Open if failure.is_some() || record.producer() == Some(self.index) => {}
                WaitStatus::Open if is_mutated(Mutation::RetireOutOfOrder) => {}
                WaitStatus::Open => {
                    state.flight.set_gated(gate(record, self.index));
                    // If the dependency has ended since, the loop tries again.
                    return false;
                }
            }
        }
        let Some(entry) = state.flight.take_oldest() else { unreachable!("it is there, as was just seen") };
        self.release_credit(&entry);
        self.end(key, failure, Some(self.queue.point(epoch)));
        true
    }

    fn release_credit(&mut self, entry: &InFlight) {
        if entry.on_device {
            self.return_credits(1);
        }
    }

    /// True if a lost device will not report something in flight. Operations that it was not given end with
    /// those that have not started.
    #[inline(always)]
    pub(super) fn needs_sweep(&self) -> bool {
        self.state.ending.is_lost() && self.state.flight.has_unreported()
    }

    /// Ends operations that a lost device has not reported, a bounded number.
    fn sweep(&mut self, most: usize) {
        let Some(lost) = self.state.ending.lost().cloned() else { return };
        for _ in 0..most {
            let Some(entry) = self.state.flight.take_unreported() else { break };
            self.release_credit(&entry);
            let failure = entry.failure.unwrap_or_else(|| lost.clone());
            self.end(entry.op, Some(failure), Some(self.queue.point(entry.epoch)));
        }
    }

    /// Ends an operation; nothing else does, whatever the reason.
    ///
    /// Its signals are made here, in order, for all readers. Its waiters are deferred, notifications become
    /// effects, and its work is reclaimed after them.
    pub(super) fn end(&mut self, key: Key, failure: Option<Failure>, point: Option<Point>) {
        let mut op = self.state.ops.take_live(key);
        if is_mutated(Mutation::EventReleasedFirst) {
            self.release_event(self.index, op.event.take());
        }
        self.release_waits(&op.waits);
        op.waits.clear();
        let delivers = self.make_signals(&mut op.signals, failure.as_ref(), point);
        // While a promise of the operation exists, a waiter may retain its event.
        self.release_event(self.index, op.event);
        match op.state {
            OpState::Running => self.state.host.end_run(),
            OpState::Queued => self.state.count_queued_ended(),
            OpState::Pending | OpState::Submitted => {}
        }
        let load = self.queue.load.load(Ordering::Relaxed);
        self.queue.load.store(load.saturating_sub(1), Ordering::Relaxed);
        self.state.host.effects().traces().ended(op.trace, failure.as_ref());
        self.state.host.effects().end(point, &mut op.work, failure, delivers);
        if op.waits.spilled() || op.signals.spilled() {
            self.state.spare.keep(op.waits, op.signals);
        }
    }

    /// Releases what the waits of an ended operation still have. States of foreign timelines are dropped
    /// without the lock.
    pub(super) fn release_waits(&mut self, waits: &[WaitRecord]) {
        for record in waits {
            self.release_wait(record);
            if record.timeline.is_foreign() {
                self.state.host.effects().drop_state(record.timeline.clone());
            }
        }
    }

    /// Releases what a wait of an ended operation still has.
    fn release_wait(&self, record: &WaitRecord) {
        if let Some(dependency) = record.dependency()
            && !is_mutated(Mutation::EventNotHeld)
        {
            self.release_event(dependency.queue, dependency.event);
        }
        let (reached, failed) = record.timeline.snapshot();
        if failed || reached >= record.value {
            return;
        }
        match record.state {
            WaitState::InQueueList(number) => {
                record.timeline.remove_timepoint(ListOwner::queue(self.index), record.value, number)
            }
            WaitState::InHostList(number) => {
                record.timeline.remove_timepoint(ListOwner::HOST, record.value, number)
            }
            WaitState::Dependency(_) | WaitState::Reached => {}
        }
        if let Some(number) = record.failure_entry {
            record.timeline.remove_timepoint(ListOwner::HOST, record.value, number);
        }
    }

    /// Resets a dequeued operation to pending; false if it already left.
    pub(super) fn dequeue(&mut self, key: Key) -> bool {
        match self.op(key).filter(|op| op.state == OpState::Queued) {
            Some(op) => op.state = OpState::Pending,
            None => {
                self.state.order.forget_ended();
                return false;
            }
        }
        true
    }

    /// Makes all signals of an operation in order, or fails them. Returns whether foreign timelines have
    /// deliveries.
    pub(super) fn make_signals(
        &mut self,
        signals: &mut SmallVec<[SignalRecord<B::Timeline>; 1]>,
        failure: Option<&Failure>,
        by: Option<Point>,
    ) -> bool {
        let shared = self.shared;
        let is_own = |signal: &SignalRecord<B::Timeline>| shared.own_state(&signal.timeline).is_some();
        if signals.len() > 1 {
            if !signals.iter().all(is_own) && !is_mutated(Mutation::DeliveriesAreLate) {
                // A thread that sees a timeline of this engine move may go on to signal a foreign one: its
                // delivery has to be behind this one.
                signals.sort_by_key(is_own);
            }
            // Popping from the end is cheaper than draining.
            signals.reverse();
        }
        let mut delivers = false;
        while let Some(signal) = signals.pop() {
            delivers |= self.make_signal(signal, failure, by);
        }
        delivers
    }

    fn make_signal(
        &mut self,
        signal: SignalRecord<B::Timeline>,
        failure: Option<&Failure>,
        by: Option<Point>,
    ) -> bool {
        let SignalRecord { timeline, value } = signal;
        let outcome = failure.map_or(Ok(value), |failure| Err(failure.clone()));
        let Some(timeline_state) = self.shared.own_state(&timeline) else {
            self.post_delivery(timeline, outcome);
            return true;
        };
        let state = match outcome {
            Ok(value) => match self.shared.reach(timeline_state, &timeline, value, self.deferred) {
                // It had failed. The handle may be the last: it is dropped behind the publication, without the lock.
                Ok(false) => timeline_state.query(),
                reached => reached.map(|_| value),
            },
            Err(failure) => {
                self.shared.fail(timeline_state, &timeline, &failure, self.deferred);
                Err(failure)
            }
        };
        self.state.host.effects().publish(Publication { timeline, state, by });
        false
    }

    /// Posts a delivery for a foreign timeline.
    fn post_delivery(&mut self, timeline: B::Timeline, state: Result<u64, Failure>) {
        let identity = self.shared.foreign(|| timeline.identity()).unwrap_or_default();
        let undelivered = self.state.host.effects().deliver(identity);
        self.shared.outbox.post(identity, Delivery { timeline, state, undelivered });
    }
}

/// Registers the queue with an open wait of its oldest operation. Returns false if the wait is over now.
fn gate(record: &WaitRecord, queue: u32) -> bool {
    let mut timeline_state = record.timeline.lock();
    if record.timeline.value() >= record.value || timeline_state.failure().is_some() {
        return false;
    }
    record.timeline.add_timepoint(&mut timeline_state, ListOwner::HOST, record.value, Target::Gate(queue));
    true
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::engine::deferred_work::DeferredWork;
    use crate::engine::timeline_state::TimelineState;
    use crate::failure::Code;
    use crate::stall::TimelineName;
    use std::sync::Arc;

    /// Another thread may move the timeline before its lock is taken.
    #[test]
    fn queue_is_gated_only_by_a_wait_that_is_still_open() {
        fn failure() -> Option<Failure> {
            Some(Failure::new(Code::Aborted, "given up"))
        }
        let gated_by = |step: fn(&Arc<TimelineState>, &mut DeferredWork)| {
            let name = TimelineName::Numbered { engine: 1, number: 1 };
            let timeline_state = Arc::new(TimelineState::new(name, false, 0));
            step(&timeline_state, &mut DeferredWork::default());
            let record = WaitRecord {
                timeline: timeline_state.clone(),
                value: 2,
                state: WaitState::Reached,
                failure_entry: None,
            };
            let gated = gate(&record, 0);
            let mut deferred = DeferredWork::default();
            timeline_state.reach(3, || None, &mut deferred);
            (gated, deferred.released.len())
        };
        assert_eq!(gated_by(|_, _| ()), (true, 1));
        assert_eq!(
            gated_by(|timeline_state, deferred| _ = timeline_state.reach(1, || None, deferred)),
            (true, 1)
        );
        assert_eq!(
            gated_by(|timeline_state, deferred| _ = timeline_state.reach(2, || None, deferred)),
            (false, 0)
        );
        assert_eq!(
            gated_by(|timeline_state, deferred| _ = timeline_state.reach(2, failure, deferred)),
            (false, 0)
        );
    }
}
