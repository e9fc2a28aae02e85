// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Admission: the engine records an operation, classifies its waits and gives it its epoch in a queue.
//!
//! [`QueueGuard::classify_wait`] has the table of wait classes. A wait records the dependency that satisfies
//! it, which stays valid: its epoch was accepted by the device, and its event is retained for the wait.

use super::deferred_work::{DeferredWork, Dependency, EngineCall};
use super::flow_window::MAX_BATCH;
use super::queue::{
    ActionKind, EarlyRun, Op, OpState, Queue, QueueGuard, SPARE, SignalRecord, WaitRecord, WaitState,
};
use super::timeline_state::{OrderedWait, Promise, Target, TimelineInner, TimelineState, WaitStatus};
use super::wait_lists::ListOwner;
use super::{Action, Placement, Refused, Shared, WaitCounts};
use crate::backend::{Backend, BatchItem, Transition, WaitClass};
use crate::error::SubmitError;
use crate::failure::Failure;
use crate::ids::{Affinity, MAX_VALUE, QueueId, Ticket};
use crate::mutation::{Mutation, is_mutated};
use crate::slab::Key;
use crate::sync::Ordering;
use crate::timeline::{Timeline, TimelineValues, iter};
use smallvec::SmallVec;
use std::sync::Arc;

/// Waits that a queued operation satisfies by order.
pub(super) type OrderedWaits = SmallVec<[OrderedWait; 4]>;

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
            .map(|registration| registration.timeline_state())
            .filter(|timeline_state| timeline_state.key().engine == self.id)
    }

    /// Validates a request before anything changes. Returns whether it waits for foreign timelines.
    #[inline(always)]
    fn check<W, S>(
        &self,
        device: usize,
        affinity: Affinity,
        waits: &W,
        signals: &S,
    ) -> Result<bool, SubmitError>
    where
        W: TimelineValues<B::Timeline> + ?Sized,
        S: TimelineValues<B::Timeline> + ?Sized,
    {
        if self.is_closing() {
            return Err(SubmitError::ShutDown);
        }
        let Some(spec) = self.devices.get(device) else {
            return Err(SubmitError::UnknownDevice { device, devices: self.devices.len() });
        };
        // There are 1 to 64.
        let known = u64::MAX >> (64 - spec.queues);
        if affinity.0 == 0 {
            return Err(SubmitError::NoQueue { device, known });
        }
        if affinity != Affinity::ANY && affinity.0 & !known != 0 {
            return Err(SubmitError::UnknownQueue { device, mask: affinity.0, known });
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

    /// Chooses a queue of the device: one whose order satisfies a wait, or else the one with the fewest
    /// operations.
    fn choose_queue<W: TimelineValues<B::Timeline> + ?Sized>(
        &self,
        device: usize,
        affinity: Affinity,
        waits: &W,
    ) -> u32 {
        let spec = self.known_device(device);
        let allowed = |queue: u32| {
            queue
                .checked_sub(spec.first_queue)
                .is_some_and(|bit| bit < spec.queues && affinity.0 & (1 << bit) != 0)
        };
        if spec.queues == 1 {
            return spec.first_queue;
        }
        if affinity.0.is_power_of_two() {
            return spec.first_queue + affinity.0.trailing_zeros();
        }
        for (timeline, value) in iter(waits) {
            let may_be_promised = |timeline_state: &&Arc<TimelineState>| {
                timeline_state.value() < value && timeline_state.may_be_promised(value)
            };
            let Some(timeline_state) = self.own_state(timeline).filter(may_be_promised) else { continue };
            let state = timeline_state.lock();
            let ordered_queue =
                state.promises_for(value).map(|promise| promise.queue).find(|&queue| allowed(queue));
            if let Some(queue) = ordered_queue {
                return queue;
            }
        }
        (spec.first_queue..spec.first_queue + spec.queues)
            .filter(|&queue| allowed(queue))
            .min_by_key(|&queue| self.queue(queue).load.load(Ordering::Relaxed))
            .unwrap_or(spec.first_queue)
    }

    /// Makes the batch item here, where it stays while the backend has it: an action is as large as its work,
    /// and is moved only once.
    #[inline(always)]
    pub(super) fn submit<W, S>(
        &self,
        device: usize,
        affinity: Affinity,
        waits: &W,
        signals: &S,
        action: Action<B::Work>,
    ) -> Result<Placement, Refused<B::Work>>
    where
        W: TimelineValues<B::Timeline> + ?Sized,
        S: TimelineValues<B::Timeline> + ?Sized,
    {
        let (kind, work) = action.into_parts();
        let mut item = BatchItem::of(work);
        match self.submit_item(device, affinity, waits, signals, kind, &mut item) {
            Ok(Admitted { key, queue, waits }) => {
                let ticket = Ticket { engine: self.id, queue: queue.index, key };
                Ok(Placement { ticket, queue, waits })
            }
            Err(error) => Err(Refused { error, action: Action::from_parts(kind, item.work.take()) }),
        }
    }

    fn submit_item<W, S>(
        &self,
        device: usize,
        affinity: Affinity,
        waits: &W,
        signals: &S,
        kind: ActionKind,
        item: &mut BatchItem<B>,
    ) -> Result<Admitted, SubmitError>
    where
        W: TimelineValues<B::Timeline> + ?Sized,
        S: TimelineValues<B::Timeline> + ?Sized,
    {
        let waits_for_foreign = self.check(device, affinity, waits, signals)?;
        let index = self.choose_queue(device, affinity, waits);
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
        if guard.state.closing {
            if !is_mutated(Mutation::RefusalLeavesQueue) {
                guard.finish(nested);
            }
            return Err(SubmitError::ShutDown);
        }
        let (admitted, fast_path) = guard.admit(waits, signals, kind, item, foreign, !nested);
        if fast_path {
            guard.hand_over(item).run_after(1);
        } else {
            guard.finish(nested);
        }
        call.end();
        Ok(admitted)
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
        let asked = self.foreign_counted(|| match timeline.failure() {
            Some(failure) => WaitStatus::Failed(failure),
            None if timeline.value() >= value => WaitStatus::Reached,
            None => WaitStatus::Open,
        });
        asked.unwrap_or_else(WaitStatus::Failed)
    }

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

    /// Whether one queue can wait natively for work of another.
    pub(super) fn reaches(&self, waiting: &Queue<B>, producer: &Queue<B>) -> bool {
        self.device(waiting).reaches(waiting.id.device(), producer.id.device())
    }
}

/// The parts of a [`Placement`].
struct Admitted {
    key: Key,
    /// The chosen queue.
    queue: QueueId,
    waits: WaitCounts,
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
        if !self.state.effects.is_empty() {
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
    ) -> (Admitted, bool)
    where
        W: TimelineValues<B::Timeline> + ?Sized,
        S: TimelineValues<B::Timeline> + ?Sized,
    {
        let is_clear = may_take_fast_path && kind == ActionKind::Queue && self.is_clear();
        let key = self.state.ops.next_key();
        // The operation is made in place.
        let lost = self.device.lost();
        self.state.ops.insert_with(key, move || Op::new(kind, lost));
        let admission = AdmissionGuard { guard: self, key };
        admission.guard.record_signals(key, signals);
        let counts = admission.guard.record_waits(key, kind, waits, foreign);
        std::mem::forget(admission);
        self.state.stats.submitted += 1;
        let load = self.queue.load.load(Ordering::Relaxed);
        self.queue.load.store(load + 1, Ordering::Relaxed);
        let admitted = Admitted { key, queue: self.queue.id, waits: counts };
        let op = self.state.ops.live_mut(key);
        if is_clear && op.failure.is_none() && op.waits_for_nothing_but(self.index) {
            self.enqueue_in_flight(key, item);
            return (admitted, true);
        }
        op.work = item.work.take();
        op.remaining = counts.blocked;
        let is_blocked = counts.blocked > 0 && op.failure.is_none();
        let partly_ordered = usize::try_from(counts.blocked).is_ok_and(|blocked| blocked < op.waits.len());
        if is_blocked && partly_ordered {
            // Only a failure of their timeline matters to the ordered waits of a blocked operation.
            self.listen_for_failures(key, |_| true);
        }
        if !is_blocked {
            self.state.runnable.push_back(key);
        }
        (admitted, false)
    }

    /// Records the signals of an operation that is being admitted as `key`.
    #[inline(always)]
    fn record_signals<S: TimelineValues<B::Timeline> + ?Sized>(&mut self, key: Key, signals: &S) {
        let state = &mut *self.state;
        let op = state.ops.live_mut(key);
        if signals.len() > 1
            && let Some(spare) = state.spare.signals.pop()
        {
            op.signals = SmallVec::from_vec(spare);
        }
        for (timeline, value) in iter(signals) {
            op.signals.push(SignalRecord { timeline: timeline.clone(), value });
        }
    }

    /// Classifies each wait of the operation, and registers those that are not reached. A failed one fails the
    /// operation.
    #[inline(always)]
    fn record_waits<W: TimelineValues<B::Timeline> + ?Sized>(
        &mut self,
        key: Key,
        kind: ActionKind,
        waits: &W,
        foreign: &[WaitStatus],
    ) -> WaitCounts {
        let mut counts = WaitCounts::default();
        let mut foreign = foreign.iter();
        let wide = waits.len() > 1;
        if wide && let Some(spare) = self.state.spare.waits.pop() {
            self.live(key).waits = SmallVec::from_vec(spare);
        }
        for (timeline, value) in iter(waits) {
            let classified = match self.shared.own_state(timeline) {
                Some(timeline_state) => match self.shared.foreign_counted(|| timeline.failed_before()) {
                    Ok(Some(failure)) | Err(failure) => Err(failure),
                    Ok(None) => self.classify_wait(timeline_state, value, kind, key, wide),
                },
                None => match foreign.next() {
                    Some(WaitStatus::Reached) => Ok(WaitClass::Reached),
                    Some(WaitStatus::Failed(failure)) => Err(failure.clone()),
                    Some(WaitStatus::Open) | None => self.subscribe(timeline, value, key),
                },
            };
            let class = match classified {
                Ok(class) => class,
                Err(failure) => {
                    self.live(key).failure.get_or_insert(failure);
                    continue;
                }
            };
            counts.count(class);
            if B::OBSERVES {
                let ticket = self.ticket(key);
                let timeline = self.shared.own_state(timeline).map(|timeline_state| timeline_state.key());
                self.state.effects.transitions.push(Transition::Wait { ticket, timeline, value, class });
            }
        }
        self.state.stats.reached += u64::from(counts.reached);
        self.state.stats.blocked += u64::from(counts.blocked);
        counts
    }

    /// Keeps the empty lists of an operation with several waits or signals for the next one.
    // Memory alone: a spare more or less.
    #[cfg_attr(mutants, mutants::skip)]
    pub(super) fn keep_spare(
        &mut self,
        waits: SmallVec<[WaitRecord; 1]>,
        signals: SmallVec<[SignalRecord<B::Timeline>; 1]>,
    ) {
        debug_assert!(waits.is_empty() && signals.is_empty(), "the operation has ended");
        let spare = &mut self.state.spare;
        if waits.spilled() && spare.waits.len() < SPARE {
            spare.waits.push(waits.into_vec());
        }
        if signals.spilled() && spare.signals.len() < SPARE {
            spare.signals.push(signals.into_vec());
        }
    }

    /// Classifies a wait for one of this engine's timelines, and registers it unless it is reached. Returns the
    /// failure of a failed timeline.
    ///
    /// The cheapest class that is correct wins (rule S6):
    ///
    /// | class | when | what waits |
    /// |---|---|---|
    /// | 0 reached | the timeline is at the value | nothing |
    /// | 1 same queue | an operation that is queued in this queue will signal enough | nothing: queue order |
    /// | 2 dominated | this queue already waits natively for a submitted signal that is enough | nothing: queue order |
    /// | 2 native, peer | submitted work of another queue (of a peer) will signal enough | the device |
    /// | 3 blocked | otherwise, and always for host operations | the host |
    ///
    /// Of several promises of one class that are enough, the smallest value wins: to wait for a later one would
    /// serialise independent work. In class 1 any of them will do, since the operation comes behind all of
    /// them.
    #[inline]
    fn classify_wait(
        &mut self,
        timeline_state: &Arc<TimelineState>,
        value: u64,
        kind: ActionKind,
        key: Key,
        wide: bool,
    ) -> Result<WaitClass, Failure> {
        // Class 0, without the lock.
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
            // Class 0.
            if timeline_state.value() >= value {
                return Ok(WaitClass::Reached);
            }
        }
        // Classes 1 and 2.
        let for_host = kind == ActionKind::Host;
        if !for_host
            && state.has_promises()
            && let Some((class, dependency)) = self.find_dependency(timeline_state, &state, value)
        {
            drop(state);
            self.live(key).wait_for(timeline_state.clone(), value, WaitState::Dependency(dependency));
            return Ok(class);
        }
        // Class 3.
        let wait = self.live(key).next_wait();
        let target = Target::Op { queue: self.index, key, wait, wide };
        let wait_state = if for_host {
            WaitState::InHostList(timeline_state.park(&mut state, ListOwner::HOST, value, target))
        } else {
            WaitState::InQueueList(timeline_state.park(
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

    /// Classes 1 and 2. A queue that finds nothing stays counted as a listener of the timeline, and is notified
    /// of the next promise. It is counted before it searches: either it sees a promise that is made meanwhile,
    /// or the thread that makes the promise sees the listener.
    fn find_dependency(
        &self,
        timeline_state: &TimelineState,
        state: &TimelineInner,
        value: u64,
    ) -> Option<(WaitClass, Dependency)> {
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

    /// Class 3 for a foreign timeline.
    #[cold]
    fn subscribe(&mut self, timeline: &B::Timeline, value: u64, key: Key) -> Result<WaitClass, Failure> {
        let timeline = self.shared.foreign_counted(|| timeline.clone())?;
        let timeline_state = self.shared.stand_in();
        let wait = self.live(key).next_wait();
        let target = Target::Op { queue: self.index, key, wait, wide: false };
        let number = timeline_state.park(&mut timeline_state.lock(), ListOwner::HOST, value, target);
        self.state.effects.subscriptions.push((timeline, value, timeline_state.clone()));
        self.live(key).wait_for(timeline_state, value, WaitState::InHostList(number));
        Ok(WaitClass::Blocked)
    }

    /// Class 1. The queue's own work moves on only under the lock that this thread holds.
    fn same_queue_dependency(
        &self,
        timeline_state: &TimelineInner,
        value: u64,
    ) -> Option<(WaitClass, Dependency)> {
        let is_own = |promise: &&Promise| promise.queue == self.index;
        // Fast path: usually the last promise is the one.
        let exact = timeline_state.last_promise().filter(|promise| promise.value == value).filter(is_own);
        let promise = exact.or_else(|| timeline_state.promises_for(value).find(is_own))?;
        let class = WaitClass::SameQueue { producer: self.queue.point(promise.epoch) };
        Some((class, Dependency { queue: self.index, epoch: promise.epoch, event: None }))
    }

    /// Class 2. The event of the dependency is retained for the caller.
    fn native_dependency(
        &self,
        timeline_state: &TimelineInner,
        value: u64,
    ) -> Option<(WaitClass, Dependency)> {
        let mut best: Option<(WaitClass, Dependency)> = None;
        for promise in timeline_state.promises_for(value) {
            let source = self.shared.queue(promise.queue);
            if matches!(best, Some((WaitClass::Dominated { .. }, _))) {
                break;
            }
            let accepted = promise.epoch <= source.submitted.load(Ordering::Acquire)
                || is_mutated(Mutation::WaitsForUnsubmitted);
            if promise.native_epoch == 0 || !accepted || !self.shared.reaches(self.queue, source) {
                continue;
            }
            let producer = source.point(promise.native_epoch);
            let class = if self.state.frontier.get(promise.queue) >= promise.native_epoch {
                WaitClass::Dominated { producer }
            } else if best.is_some() {
                continue;
            } else if producer.queue.device == self.queue.id.device {
                WaitClass::Native { producer }
            } else {
                WaitClass::Peer { producer }
            };
            best = Some((
                class,
                Dependency { queue: promise.queue, epoch: promise.native_epoch, event: promise.event },
            ));
        }
        let (class, mut dependency) = best?;
        if matches!(class, WaitClass::Dominated { .. }) {
            dependency.event = None;
        }
        if let Some(event) = dependency.event
            && !is_mutated(Mutation::EventNotHeld)
        {
            // The promise exists, so the operation that records the event still retains it.
            self.shared.queue(dependency.queue).events.lock().retain(event);
        }
        Some((class, dependency))
    }

    /// Makes the operation fail when a timeline fails on which a wait with such a producer depends.
    pub(super) fn listen_for_failures(&mut self, key: Key, which: impl Fn(u32) -> bool) {
        let count = self.state.ops.get(key).map_or(0, |op| op.waits.len());
        for number in 0..count {
            // The call may end the operation.
            let record = self.state.ops.get(key).and_then(|op| op.waits.get(number));
            if record.and_then(WaitRecord::producer).is_some_and(&which) {
                self.listen_for_failure(key, number);
            }
        }
    }

    /// For one wait.
    fn listen_for_failure(&mut self, key: Key, number: usize) {
        let index = self.index;
        let Some(record) = self.op(key).and_then(|op| op.waits.get_mut(number)) else { return };
        if record.failure_entry.is_some() {
            return;
        }
        let mut timeline_state = record.timeline.lock();
        if record.timeline.value() >= record.value {
            return;
        }
        let failure = timeline_state.failure().cloned();
        if failure.is_none() {
            let target = Target::OpFailure { queue: index, key };
            record.failure_entry =
                Some(record.timeline.park(&mut timeline_state, ListOwner::HOST, record.value, target));
        }
        let large = timeline_state.becomes_large().then(|| record.timeline.clone());
        drop(timeline_state);
        if let Some(large) = large {
            self.shared.remember_large(&large);
        }
        if let Some(failure) = failure {
            self.fail_unstarted(key, &failure);
        }
    }

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
                    self.state.effects.early.push(EarlyRun { op: key, work, done: Ok(false) });
                }
            }
            ActionKind::Host | ActionKind::Early => {
                if let Some(work) = self.start_on_host(key) {
                    self.state.effects.runs.push((key, work, None));
                }
            }
            ActionKind::Barrier if self.is_reached(key) => {
                self.state.stats.host_barriers += 1;
                self.end(key, None, None);
            }
            ActionKind::Barrier => self.enqueue(key),
        }
    }

    /// Ends a failed operation. If it has a cleanup, the host runs that first and ends it then.
    fn end_or_clean_up(&mut self, key: Key, failure: Failure) {
        let all_end = self.state.closing || self.state.lost.is_some();
        let op = self.live(key);
        if op.is_cleaning_up() {
            return;
        }
        if !op.cleans_up(all_end) {
            return self.end(key, Some(failure), None);
        }
        let had_place = op.state == OpState::Queued;
        if let Some(work) = self.start_on_host(key) {
            self.state.effects.runs.push((key, work, Some(failure)));
        }
        if had_place {
            self.state.count_queued_ended();
        }
    }

    /// Marks an operation as running on the host. Returns its work.
    fn start_on_host(&mut self, key: Key) -> Option<B::Work> {
        let op = self.live(key);
        op.state = OpState::Running;
        let work = op.work.take();
        self.state.running += 1;
        work
    }

    fn is_reached(&self, key: Key) -> bool {
        self.state.ops.live(key).waits.iter().all(|wait| wait.timeline.value() >= wait.value)
    }

    /// Takes the backend's answer about an early action.
    pub(super) fn finish_early(&mut self, EarlyRun { op: key, work, done }: EarlyRun<B>) {
        let index = self.index;
        let (closing, lost) = (self.state.closing, self.state.lost.clone());
        // Nothing else ends an operation that runs on the host.
        let op = self.live(key);
        op.work = Some(work);
        let done = match (done, lost) {
            (Ok(done), None) => done,
            (Err(failure), _) | (Ok(_), Some(failure)) => return self.end(key, Some(failure), None),
        };
        let mut blocked = 0;
        let mut failure = closing.then(super::stop::shutdown_failure);
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
            let target = Target::Op { queue: index, key, wait: number, wide: false };
            record.state = WaitState::InHostList(record.timeline.park(
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
        self.state.running -= 1;
        for (producer, event) in events {
            self.shared.queue(producer).events.lock().release(event);
        }
        if is_runnable {
            self.state.runnable.push_back(key);
        }
    }

    /// Gives an operation its epoch in its queue.
    fn enqueue(&mut self, key: Key) {
        let epoch = self.next_epoch();
        let op = self.state.ops.live_mut(key);
        op.epoch = epoch;
        op.state = OpState::Queued;
        let native_epoch = super::submit::expected_native_epoch(self.queue, self.device, op.kind, epoch);
        let promise = Promise { value: 0, queue: self.index, epoch, native_epoch, event: None };
        let mut ordered = OrderedWaits::new();
        self.shared.promise_each(&op.signals, promise, &mut ordered, self.deferred);
        self.state.queued.push_back(key);
        self.note_queued(key, epoch, &ordered);
        if self.state.window.is_full() || self.state.queued.len() > MAX_BATCH {
            self.listen_for_failures_of_other_queues(key);
        }
    }

    /// The next epoch of the queue.
    #[inline]
    pub(super) fn next_epoch(&mut self) -> u64 {
        self.state.last_epoch += 1;
        self.state.last_epoch
    }

    /// An operation is queued, which satisfies these waits of others.
    #[inline]
    pub(super) fn note_queued(&mut self, key: Key, epoch: u64, ordered: &OrderedWaits) {
        if B::OBSERVES {
            let ticket = self.ticket(key);
            let point = self.queue.point(epoch);
            self.state.effects.transitions.push(Transition::Queued { ticket, point });
        }
        for &OrderedWait { op, wait, failure_entry } in ordered {
            self.satisfy(op, wait, Dependency { queue: self.index, epoch, event: None }, failure_entry);
        }
    }

    /// The operation stays queued for a while: failures of waits for other queues must reach it.
    pub(super) fn listen_for_failures_of_other_queues(&mut self, key: Key) {
        let own = self.index;
        self.listen_for_failures(key, |producer| producer != own);
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
                state.runnable.push_back(key);
            }
            if failure_entry.is_none() && op.remaining > 0 {
                self.listen_for_failure(key, number as usize);
            }
        } else {
            self.release_event(dependency.queue, dependency.event);
        }
    }

    pub(super) fn release_event(&self, queue: u32, event: Option<crate::native_event::EventIndex>) {
        if let Some(event) = event {
            self.shared.queue(queue).events.lock().release(event);
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
                state.runnable.push_back(key);
            }
        }
    }

    /// Makes an operation end with this failure, unless it is submitted or runs on the host.
    pub(super) fn fail_unstarted(&mut self, key: Key, failure: &Failure) {
        let Some(op) = self.op(key) else { return };
        let started = !matches!(op.state, OpState::Pending | OpState::Queued);
        if started && !is_mutated(Mutation::CancelIgnoresState) {
            return;
        }
        if op.failure.is_none() {
            op.failure = Some(failure.clone());
            self.state.runnable.push_back(key);
        }
    }
}
