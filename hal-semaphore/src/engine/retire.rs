// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Retirement: from a device's report to the end of an operation, in queue order and after everything it waited for.
//!
//! An operation that waited natively for another queue may be reported before the one it waited for. It does not
//! retire before it: else a host thread could see the effect before the cause. A queue whose oldest operation is in
//! that position is *gated* on the timeline in question, which the other queue's retirement, no more than a report
//! away, opens.
//!
//! Whether an operation failed is decided here, too: its own report, or else the failure of something it waited for
//! without the host (its inputs were never made, whatever its device thinks). What has ended is ended here one after the
//! other, so that everything behind a failure sees what it did. It is a bounded number at a time: what they
//! signal is published, and what waits for it goes on, before the next are looked at.

use super::Shared;
use super::outbox::{Delivery, PendingDeliveries};
use super::queue::{
    ActionKind, InFlight, OpState, Publication, QueueGuard, QueueState, SignalRecord, WaitRecord, WaitState,
};
use super::timeline_state::{Target, WaitStatus};
use super::wait_lists::ListOwner;
use crate::backend::{Backend, Transition};
use crate::error::CompletionError;
use crate::failure::Failure;
use crate::ids::{Point, QueueId};
use crate::mutation::{Mutation, is_mutated};
use crate::ring::take_first;
use crate::slab::Key;
use crate::sync::{Ordering, fence};
use crate::timeline::Timeline;
use smallvec::SmallVec;

/// How many operations end in one turn.
const RETIRE_BATCH: usize = 64;

/// Below this many ended ones among the ready they are not worth looking for.
const SWEEP_AT: usize = 32;

impl<B: Backend> QueueState<B> {
    /// Takes a report down.
    fn record_report(
        &mut self,
        id: QueueId,
        epoch: u64,
        failure: Option<Failure>,
    ) -> Result<(), CompletionError> {
        if epoch > self.offered {
            return Err(CompletionError::NotSubmitted { queue: id, epoch, submitted: self.offered });
        }
        if let Some(failure) = failure {
            let at = self.in_flight.partition_point(|entry| entry.epoch < epoch);
            if let Some(entry) = self.in_flight.get_mut(at).filter(|entry| entry.epoch == epoch) {
                entry.failure.get_or_insert(failure);
            }
        }
        self.completed = self.completed.max(epoch);
        Ok(())
    }

    /// An operation that had its place in the queue has ended without being issued, or the host cleans up for it.
    pub(super) fn count_queued_ended(&mut self) {
        self.queued_ended += 1;
        if self.queued_ended >= SWEEP_AT && self.queued_ended * 2 > self.queued.len() {
            self.queued_ended = 0;
            let ops = &self.ops;
            self.queued.retain(|&key| ops.get(key).is_some_and(|op| op.state == OpState::Queued));
        }
    }
}

impl<B: Backend> Shared<B> {
    /// Takes a report from inside `submit` down, for the thread that submits: it looks what has ended
    /// when the backend returns. `None` where a queue that sleeps has to be woken, or where another thread is at the queue.
    pub(super) fn record_inside_submit(
        &self,
        id: QueueId,
        epoch: u64,
        failure: &mut Option<Failure>,
    ) -> Option<Result<(), CompletionError>> {
        let mut state = self.queue(id.index).try_lock()?;
        let submitting = state.submitting && epoch > state.submitted;
        if !submitting || self.device_of(id.index).counts_reports() {
            return None;
        }
        Some(state.record_report(id, epoch, failure.take()))
    }
}

impl<B: Backend> QueueGuard<'_, B> {
    /// A backend's report. See [`Completer`](crate::backend::Completer).
    pub(super) fn report(&mut self, epoch: u64, failure: Option<Failure>) -> Result<(), CompletionError> {
        self.state.record_report(self.queue.id, epoch, failure)?;
        if self.device.counts_reports() {
            let reports = self.queue.reports.load(Ordering::Relaxed);
            self.queue.reports.store(reports + 1, Ordering::Release);
            // Either this sees who sleeps, or who lies down sees the report.
            fence(Ordering::SeqCst);
            self.wake_full_queues();
        }
        Ok(())
    }

    /// The backend is handed so much of the queue.
    pub(super) fn take_credits(&mut self, count: usize) {
        self.state.window.take(count);
        self.queue.taken.store(self.state.window.taken() as u64, Ordering::Release);
    }

    /// So much of the queue came back, or has ended.
    pub(super) fn return_credits(&mut self, count: usize) {
        self.state.window.give(count);
        self.queue.taken.store(self.state.window.taken() as u64, Ordering::Release);
    }

    /// Something of the device has ended: its full queues may have room again.
    fn wake_full_queues(&mut self) {
        self.device.wake_full(false, self.deferred);
    }

    /// Ends what has ended on the queue, a bounded number.
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
            // Queues that wait for room of this device are swept, too.
            self.sweep(left);
        }
        if gave {
            // A queue that waits for room is on the list before it checks whether any will be given.
            if self.device.counts_reports() && !is_mutated(Mutation::CreditsHaveNoFence) {
                fence(Ordering::SeqCst);
            }
            self.wake_full_queues();
        }
    }

    /// Ends the oldest operation in flight, if what it waited for has ended; else the queue is gated.
    fn retire_first(&mut self) -> bool {
        let Some(entry) = self.state.in_flight.front() else { return false };
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
                    state.gated = gate(record, self.index);
                    // Where it ended just now the operation is looked at again.
                    return false;
                }
            }
        }
        let Some(entry) = take_first(&mut state.in_flight) else {
            unreachable!("it is there, as was just seen")
        };
        self.release_credit(&entry);
        self.end(key, failure, Some(self.queue.point(epoch)));
        self.queue.retired.store(epoch, Ordering::Release);
        true
    }

    fn release_credit(&mut self, entry: &InFlight) {
        if entry.on_device {
            self.return_credits(1);
        }
    }

    /// Whether a lost device has left something here that it will not report. What it was not given ends with all that has not
    /// begun.
    #[inline(always)]
    pub(super) fn needs_sweep(&self) -> bool {
        let state = &self.state;
        state.lost.is_some()
            && (!state.submitting || is_mutated(Mutation::SweepsWhileSubmitting))
            && state.in_flight.back().is_some_and(|entry| !is_reported(entry, state.completed))
    }

    /// Ends what a lost device has not reported, a bounded number.
    fn sweep(&mut self, most: usize) {
        let Some(lost) = self.state.lost.clone() else { return };
        for _ in 0..most {
            let completed = self.state.completed;
            // What it had reported retires as ever, when what it waited for has; the rest is behind that.
            let entry = match self.state.in_flight.front() {
                Some(first) if !is_reported(first, completed) => take_first(&mut self.state.in_flight),
                Some(_) if self.state.in_flight.back().is_some_and(|last| !is_reported(last, completed)) => {
                    self.state.in_flight.pop_back()
                }
                _ => None,
            };
            let Some(entry) = entry else { break };
            self.release_credit(&entry);
            let failure = entry.failure.unwrap_or_else(|| lost.clone());
            self.end(entry.op, Some(failure), Some(self.queue.point(entry.epoch)));
        }
    }

    /// Ends an operation: the one place where it happens, whatever the reason.
    ///
    /// Its signals are made here, in order, for all readers; waiters are put on the agenda, those that have to be
    /// told otherwise on the list of effects; its work is reclaimed behind them.
    pub(super) fn end(&mut self, key: Key, failure: Option<Failure>, point: Option<Point>) {
        let mut op = self.state.ops.take_live(key);
        if is_mutated(Mutation::EventReleasedFirst) {
            self.release_event(self.index, op.event.take());
        }
        self.release_waits(&op.waits);
        op.waits.clear();
        let delivers = self.make_signals(&mut op.signals, failure.as_ref(), point);
        // As long as a promise of the operation is there a waiter may take a share in its event.
        self.release_event(self.index, op.event);
        match op.state {
            OpState::Running => self.state.running -= 1,
            OpState::Queued => self.state.count_queued_ended(),
            OpState::Pending | OpState::Submitted => {}
        }
        let load = self.queue.load.load(Ordering::Relaxed);
        self.queue.load.store(load.saturating_sub(1), Ordering::Relaxed);
        match failure {
            None => self.state.stats.succeeded += 1,
            Some(_) => self.state.stats.failed += 1,
        }
        if B::OBSERVES {
            let ticket = self.ticket(key);
            let outcome = failure.clone().map_or(Ok(()), Err);
            self.state.effects.transitions.push(Transition::Ended { ticket, point, outcome });
        }
        let effects = &mut *self.state.effects;
        if op.work.is_some() || delivers || failure.is_some() || !effects.extend_last(point) {
            effects.push_ended(point, op.work.take(), failure, delivers);
        }
        if op.waits.spilled() || op.signals.spilled() {
            self.keep_spare(op.waits, op.signals);
        }
    }

    /// Gives up what the waits of an operation that is gone still hold. Slots that may end a watch go without the lock.
    pub(super) fn release_waits(&mut self, waits: &[WaitRecord]) {
        for record in waits {
            self.release_wait(record);
            if record.timeline.is_foreign() {
                self.state.effects.garbage.push(record.timeline.clone());
            }
        }
    }

    /// Gives up what a wait of an ended operation still holds.
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
                record.timeline.unpark(ListOwner::queue(self.index), record.value, number)
            }
            WaitState::InHostList(number) => record.timeline.unpark(ListOwner::HOST, record.value, number),
            WaitState::Dependency(_) | WaitState::Reached => {}
        }
        if let Some(number) = record.failure_entry {
            record.timeline.unpark(ListOwner::HOST, record.value, number);
        }
    }

    /// What was taken off the ready ones is like one that has no place in the queue yet. False where it has left its place before.
    pub(super) fn dequeue(&mut self, key: Key) -> bool {
        match self.op(key).filter(|op| op.state == OpState::Queued) {
            Some(op) => op.state = OpState::Pending,
            None => {
                self.state.queued_ended = self.state.queued_ended.saturating_sub(1);
                return false;
            }
        }
        true
    }

    /// Makes all signals of an operation, in their order, or fails them. Returns whether another driver is to be told of
    /// any.
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
                // A thread that sees a timeline of the engine move may go on to signal another driver's: after this, there too.
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
            Ok(value) => self.shared.reach(timeline_state, &timeline, value, self.deferred).map(|()| value),
            Err(failure) => {
                self.shared.fail(timeline_state, &timeline, &failure, self.deferred);
                Err(failure)
            }
        };
        self.state.effects.publications.push(Publication { timeline, state, by });
        false
    }

    /// Leaves word for a timeline of another driver.
    fn post_delivery(&mut self, timeline: B::Timeline, state: Result<u64, Failure>) {
        let effects = &mut *self.state.effects;
        let identity = self.shared.foreign_counted(|| timeline.identity()).unwrap_or_default();
        if !effects.foreign_timelines.contains(&identity) {
            effects.foreign_timelines.push(identity);
        }
        let pending_deliveries =
            effects.pending_deliveries.get_or_insert_with(PendingDeliveries::new).clone();
        self.shared.outbox.post(identity, Delivery { timeline, state, pending_deliveries });
    }

    /// Whether an operation was done before its waits were reached, or is one of the device's or the host's: then it can no
    /// longer be cancelled.
    pub(super) fn has_started(&self, key: Key) -> bool {
        self.state.ops.get(key).is_some_and(|op| {
            matches!(op.state, OpState::Submitted | OpState::Running)
                || (op.done && op.kind == ActionKind::Barrier)
        })
    }
}

/// Registers the queue to be told when a wait of its oldest operation is over, unless it is over now. Returns whether the
/// queue stays closed until then.
fn gate(record: &WaitRecord, queue: u32) -> bool {
    let mut timeline_state = record.timeline.lock();
    if record.timeline.value() >= record.value || timeline_state.failure().is_some() {
        return false;
    }
    record.timeline.park(&mut timeline_state, ListOwner::HOST, record.value, Target::Gate(queue));
    true
}

/// Whether the device has said that it is done with it, or with something that came after it.
fn is_reported(entry: &InFlight, completed: u64) -> bool {
    entry.epoch <= completed
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::engine::deferred_work::DeferredWork;
    use crate::engine::timeline_state::TimelineState;
    use crate::failure::Code;
    use crate::ids::TimelineKey;
    use crate::testing::SoftBackend;
    use std::sync::Arc;

    /// Of so many operations that are ready so many end. How many are on the list then, and how many of these count as ended.
    fn queued_after(queued: usize, ends: usize) -> (usize, usize) {
        let mut state = QueueState::<SoftBackend>::new();
        let mut keys = crate::slab::Slab::new();
        state.queued = (0..queued).map(|_| keys.insert(())).collect();
        (0..ends).for_each(|_| state.count_queued_ended());
        (state.queued.len(), state.queued_ended)
    }

    #[test]
    fn ready_list_is_swept_when_many_have_ended_and_they_are_the_larger_part() {
        for (queued, ends, left) in
            [(10, 9, (10, 9)), (10, 32, (0, 0)), (1000, 500, (1000, 500)), (1000, 501, (0, 0))]
        {
            assert_eq!(queued_after(queued, ends), left, "{ends} of {queued} end");
        }
    }

    /// Between the look at a wait and the lock of its timeline another thread may have moved it.
    #[test]
    fn queue_is_gated_only_by_a_wait_that_is_still_open() {
        fn failure() -> Option<Failure> {
            Some(Failure::new(Code::Aborted, "given up"))
        }
        let gated_by = |step: fn(&Arc<TimelineState>, &mut DeferredWork)| {
            let timeline_state = Arc::new(TimelineState::new(TimelineKey { engine: 1, number: 1 }, false, 0));
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
            gated_by(|timeline_state, deferred| timeline_state.reach(1, || None, deferred)),
            (true, 1)
        );
        assert_eq!(
            gated_by(|timeline_state, deferred| timeline_state.reach(2, || None, deferred)),
            (false, 0)
        );
        assert_eq!(
            gated_by(|timeline_state, deferred| timeline_state.reach(2, failure, deferred)),
            (false, 0)
        );
    }
}
