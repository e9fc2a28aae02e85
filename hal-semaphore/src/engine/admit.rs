// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Admission: the engine checks a request, chooses a queue ([`queue_choice`](super::queue_choice)), and records the
//! operation with its waits ([`wait_class`](super::wait_class)) and signals.

use super::deferred_work::EngineCall;
use super::op::{ActionKind, Op, SignalRecord};
use super::queue::QueueGuard;
use super::timeline_state::{TimelineState, WaitStatus};
use super::wait_class::WaitClass;
use super::{Action, Refused, Shared};
use crate::backend::{Backend, BatchItem};
use crate::error::SubmitError;
use crate::ids::{Affinity, MAX_VALUE};
use crate::mutation::{Mutation, is_mutated};
use crate::slab::Key;
use crate::sync::Ordering;
use crate::timeline::{Timeline, TimelineValues, iter};
use crate::trace::Trace;
use std::sync::Arc;

impl<W> Action<W> {
    #[inline(always)]
    fn into_parts(self) -> (ActionKind, Option<W>) {
        match self {
            Self::Queue(work) => (ActionKind::Queue, Some(work)),
            Self::Host(work) => (ActionKind::Host, Some(work)),
            Self::Early(work) => (ActionKind::Early, Some(work)),
            Self::Marker(work) => (ActionKind::Marker, Some(work)),
            Self::Cleanup(work) => (ActionKind::Barrier, Some(work)),
            Self::Barrier => (ActionKind::Barrier, None),
        }
    }

    /// The inverse of `into_parts`. Only a barrier has no work.
    fn from_parts(kind: ActionKind, work: Option<W>) -> Self {
        let Some(work) = work else { return Self::Barrier };
        match kind {
            ActionKind::Queue => Self::Queue(work),
            ActionKind::Host => Self::Host(work),
            ActionKind::Early => Self::Early(work),
            ActionKind::Marker => Self::Marker(work),
            ActionKind::Barrier => Self::Cleanup(work),
        }
    }
}

impl<B: Backend> Shared<B> {
    /// The state of a timeline of this engine; `None` for a foreign one.
    pub(super) fn own_state<'a>(&self, timeline: &'a B::Timeline) -> Option<&'a Arc<TimelineState>> {
        timeline
            .registration()
            .filter(|registration| registration.is_with(self))
            .map(|registration| registration.timeline_state())
    }

    /// Validates a request before anything changes. Returns whether it waits for foreign timelines.
    #[inline(always)]
    fn check<W, S>(&self, affinity: Affinity, waits: &W, signals: &S) -> Result<bool, SubmitError>
    where
        W: TimelineValues<B::Timeline> + ?Sized,
        S: TimelineValues<B::Timeline> + ?Sized,
    {
        if self.is_closing() {
            return Err(SubmitError::ShutDown);
        }
        // There are 1 to 64.
        let known = u64::MAX >> (64 - self.queues.len());
        if affinity.0 == 0 {
            return Err(SubmitError::NoQueue { known });
        }
        if affinity != Affinity::ANY && affinity.0 & !known != 0 {
            return Err(SubmitError::UnknownQueue { mask: affinity.0, known });
        }
        let mut waits_for_foreign = false;
        for (timeline, value) in iter(waits) {
            if value > MAX_VALUE {
                return Err(SubmitError::ValueTooLarge { value });
            }
            waits_for_foreign |= self.own_state(timeline).is_none();
        }
        for (timeline, value) in iter(signals) {
            if value > MAX_VALUE {
                return Err(SubmitError::ValueTooLarge { value });
            }
            let (current, failed) = match self.own_state(timeline) {
                Some(timeline_state) => timeline_state.snapshot(),
                None => (timeline.value(), timeline.failure().is_some()),
            };
            if value <= current && !failed {
                return Err(SubmitError::SignalNotAbove { value, current });
            }
        }
        Ok(waits_for_foreign)
    }

    /// Makes the batch item here, where it stays while the backend has it: an action is as large as its work,
    /// and is moved only once.
    #[inline(always)]
    pub(super) fn submit<W, S>(
        &self,
        affinity: Affinity,
        waits: &W,
        signals: &S,
        action: Action<B::Work>,
    ) -> Result<(), Refused<B::Work>>
    where
        W: TimelineValues<B::Timeline> + ?Sized,
        S: TimelineValues<B::Timeline> + ?Sized,
    {
        let (kind, work) = action.into_parts();
        let mut item = BatchItem::of(work);
        item.trace = Trace::begin(kind.name(), waits, signals);
        let _submission = item.trace.submission();
        self.submit_item(affinity, waits, signals, kind, &mut item).map_err(|error| {
            item.trace.refused(&error);
            Refused { error, action: Action::from_parts(kind, item.work.take()) }
        })
    }

    fn submit_item<W, S>(
        &self,
        affinity: Affinity,
        waits: &W,
        signals: &S,
        kind: ActionKind,
        item: &mut BatchItem<B>,
    ) -> Result<(), SubmitError>
    where
        W: TimelineValues<B::Timeline> + ?Sized,
        S: TimelineValues<B::Timeline> + ?Sized,
    {
        let waits_for_foreign = self.check(affinity, waits, signals)?;
        let index = self.choose_queue(affinity, waits);
        let statuses;
        let foreign: &[WaitStatus] = if waits_for_foreign {
            statuses = self.foreign_statuses(waits);
            &statuses
        } else {
            &[]
        };
        let mut call = EngineCall::submitting(self);
        let nested = call.is_nested();
        let mut guard = QueueGuard::lock(self, index, call.deferred());
        if guard.state.ending.is_closing() {
            if !is_mutated(Mutation::RefusalLeavesQueue) {
                guard.finish(nested);
            }
            return Err(SubmitError::ShutDown);
        }
        let fast_path = guard.admit(waits, signals, kind, item, foreign, !nested);
        if fast_path {
            guard.hand_over(item).run_after(1);
        } else {
            guard.finish(nested);
        }
        call.end();
        Ok(())
    }

    /// The statuses of the waits for foreign timelines, in their order. This calls foreign code, without a
    /// lock; a timeline that panics has failed.
    #[cold]
    fn foreign_statuses<W: TimelineValues<B::Timeline> + ?Sized>(&self, waits: &W) -> Vec<WaitStatus> {
        let mut statuses = Vec::new();
        for (timeline, value) in iter(waits) {
            if self.own_state(timeline).is_none() {
                statuses.push(self.foreign_status(timeline, value));
            }
        }
        statuses
    }

    pub(super) fn foreign_status(&self, timeline: &B::Timeline, value: u64) -> WaitStatus {
        let asked = self.foreign(|| match timeline.failure() {
            Some(failure) => WaitStatus::Failed(failure),
            None if timeline.value() >= value => WaitStatus::Reached,
            None => WaitStatus::Open,
        });
        asked.unwrap_or_else(WaitStatus::Failed)
    }
}

/// An operation that is being admitted. If foreign code panics meanwhile, dropping this rolls the admission
/// back.
struct AdmissionGuard<'t, 'a, B: Backend> {
    guard: &'t mut QueueGuard<'a, B>,
    key: Key,
}

impl<B: Backend> Drop for AdmissionGuard<'_, '_, B> {
    fn drop(&mut self) {
        self.guard.roll_back(self.key);
    }
}

impl<B: Backend> QueueGuard<'_, B> {
    /// Removes the operation, its registered waits and its handles on timelines.
    #[cold]
    fn roll_back(&mut self, key: Key) {
        let op = self.state.ops.take_live(key);
        self.release_waits(&op.waits);
        if self.state.host.has_effects() {
            // The call performs them as it ends.
            self.deferred.visit_queue(self.index);
        }
    }

    /// Admits an operation of a valid request. Returns whether it is in flight, by the fast path.
    fn admit<W, S>(
        &mut self,
        waits: &W,
        signals: &S,
        kind: ActionKind,
        item: &mut BatchItem<B>,
        foreign: &[WaitStatus],
        may_take_fast_path: bool,
    ) -> bool
    where
        W: TimelineValues<B::Timeline> + ?Sized,
        S: TimelineValues<B::Timeline> + ?Sized,
    {
        let is_clear = may_take_fast_path && kind == ActionKind::Queue && self.is_clear();
        let key = self.state.ops.next_key();
        // The operation is made in place.
        let (lost, trace) = (self.device.lost(), item.trace.clone());
        self.state.ops.insert_with(key, move || Op::new(kind, lost, trace));
        let admission = AdmissionGuard { guard: self, key };
        admission.guard.record_signals(key, signals);
        let blocked = admission.guard.record_waits(key, kind, waits, foreign);
        std::mem::forget(admission);
        let load = self.queue.load.load(Ordering::Relaxed);
        self.queue.load.store(load + 1, Ordering::Relaxed);
        let op = self.state.ops.live_mut(key);
        if is_clear && op.failure.is_none() && op.waits_for_nothing_but(self.index) {
            self.enqueue_in_flight(key, item);
            return true;
        }
        op.work = item.work.take();
        op.remaining = blocked;
        let is_blocked = blocked > 0 && op.failure.is_none();
        let partly_ordered = usize::try_from(blocked).is_ok_and(|blocked| blocked < op.waits.len());
        if is_blocked && partly_ordered {
            // Only a failure of their timeline matters to the ordered waits of a blocked operation.
            self.listen_for_failures(key, |_| true);
        }
        if !is_blocked {
            self.state.order.push_runnable(key);
        }
        false
    }

    /// Records the signals of an operation that is being admitted as `key`.
    #[inline(always)]
    fn record_signals<S: TimelineValues<B::Timeline> + ?Sized>(&mut self, key: Key, signals: &S) {
        let state = &mut *self.state;
        let op = state.ops.live_mut(key);
        if signals.len() > 1 {
            op.signals = state.spare.signals();
        }
        for (timeline, value) in iter(signals) {
            op.signals.push(SignalRecord { timeline: timeline.clone(), value });
        }
    }

    /// Classifies each wait of the operation, and registers those that are not reached. A failed one fails the
    /// operation. Returns how many are blocked.
    #[inline(always)]
    fn record_waits<W: TimelineValues<B::Timeline> + ?Sized>(
        &mut self,
        key: Key,
        kind: ActionKind,
        waits: &W,
        foreign: &[WaitStatus],
    ) -> u32 {
        let (mut reached, mut blocked) = (0, 0);
        let mut foreign = foreign.iter();
        let has_others = waits.len() > 1;
        if has_others {
            let state = &mut *self.state;
            state.ops.live_mut(key).waits = state.spare.waits();
        }
        for (timeline, value) in iter(waits) {
            let classified = match self.shared.own_state(timeline) {
                Some(timeline_state) => match self.shared.foreign(|| timeline.failed_before()) {
                    Ok(Some(failure)) | Err(failure) => Err(failure),
                    Ok(None) => self.classify_wait(timeline_state, value, kind, key, has_others),
                },
                None => match foreign.next() {
                    Some(WaitStatus::Reached) => Ok(WaitClass::Reached),
                    Some(WaitStatus::Failed(failure)) => Err(failure.clone()),
                    Some(WaitStatus::Open) | None => self.subscribe(timeline, value, key),
                },
            };
            match classified {
                Ok(WaitClass::Reached) => reached += 1,
                Ok(WaitClass::Ordered) => {}
                Ok(WaitClass::Blocked) => blocked += 1,
                Err(failure) => {
                    self.live(key).failure.get_or_insert(failure);
                }
            }
        }
        self.state.waits.reached += reached;
        self.state.waits.blocked += u64::from(blocked);
        blocked
    }
}
