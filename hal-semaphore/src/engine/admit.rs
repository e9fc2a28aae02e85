// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Taking operations in, classifying their waits, and giving them their place in a queue.
//!
//! # What a wait costs
//!
//! Each wait that is not reached falls into the cheapest class that is correct (rule S6). [`Turn::any_coverage`] looks at
//! them in this order: the queue's own work ([`Turn::own_coverage`]), then that of others ([`Turn::coverage`]).
//!
//! | class | when | what it costs |
//! |---|---|---|
//! | same queue | an earlier operation of the queue will signal enough | nothing: queues are in order |
//! | dominated | the queue waits natively already for that signal, or for a later one of the same queue | nothing |
//! | native, peer | work that another queue's device has accepted will signal enough | one native wait |
//! | held | otherwise | an entry in a list; the host wakes |
//!
//! Of the signals of a class that are enough the one of the smallest value counts. Waiting for a later one would be correct
//! and would serialise what need not be. In the queue itself it is no matter which counts, since the operation comes behind
//! all of them: of several that signal one value any may be named. What covers a wait is written down with it and stays
//! valid: the point was accepted by its device, and its event is held for the wait.

use super::agenda::{Agenda, Cover, Entry};
use super::flow_window::BATCH;
use super::lists::Owner;
use super::queue::{ActionKind, Early, Op, OpState, Queue, SPARE, SignalRecord, Turn, Via, WaitRecord};
use super::slot::{Covered, Promise, Slot, SlotState, Standing, Target};
use super::{Action, Placement, Refused, Shared, WaitCounts};
use crate::backend::{Backend, Item, Transition, WaitClass};
use crate::error::SubmitError;
use crate::failure::Failure;
use crate::ids::{Affinity, MAX_VALUE, QueueId, Ticket};
use crate::mutation::{Mutation, is_mutated};
use crate::slab::Key;
use crate::sync::Ordering;
use crate::timeline::{Timeline, TimelineValues, iter};
use smallvec::SmallVec;
use std::sync::Arc;

/// Waits that work with a place in their queue covers.
pub(super) type CoveredWaits = SmallVec<[Covered; 4]>;

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

    /// The action again. Only a barrier has no work.
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
    /// The slot of one of this engine's timelines; nothing for a foreign one.
    pub(super) fn own<'a>(&self, timeline: &'a B::Timeline) -> Option<&'a Arc<Slot>> {
        timeline
            .registration()
            .map(|registration| registration.slot())
            .filter(|slot| slot.key().engine == self.id)
    }

    /// Checks a request before anything changes. Returns whether it waits for timelines that are not this engine's.
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
            waits_for_foreign |= self.own(timeline).is_none();
        }
        for (timeline, value) in iter(signals) {
            if value > MAX_VALUE {
                return Err(SubmitError::ValueTooLarge { value });
            }
            let (current, failed) = match self.own(timeline) {
                Some(slot) => slot.look(),
                None => (timeline.value(), timeline.failure().is_some()),
            };
            if value <= current && !failed {
                return Err(SubmitError::SignalNotAbove { value, current });
            }
        }
        Ok(waits_for_foreign)
    }

    /// Chooses a queue of the device: the one whose order already covers a wait, else the one with the least to do.
    fn choose<W: TimelineValues<B::Timeline> + ?Sized>(
        &self,
        device: usize,
        affinity: Affinity,
        waits: &W,
    ) -> u32 {
        let Some(spec) = self.devices.get(device) else { return 0 };
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
            let may_cover = |slot: &&Arc<Slot>| slot.value() < value && slot.may_be_promised(value);
            let Some(slot) = self.own(timeline).filter(may_cover) else { continue };
            let state = slot.lock();
            let covering =
                state.promises_for(value).map(|promise| promise.queue).find(|&queue| allowed(queue));
            if let Some(queue) = covering {
                return queue;
            }
        }
        (spec.first_queue..spec.first_queue + spec.queues)
            .filter(|&queue| allowed(queue))
            .min_by_key(|&queue| self.queue(queue).load.load(Ordering::Relaxed))
            .unwrap_or(spec.first_queue)
    }

    /// The caller makes the item where it stays while it is handed over: an action is as large as its work, and is not
    /// moved from one place to the next.
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
        let mut item = Item::of(work);
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
        item: &mut Item<B>,
    ) -> Result<Admitted, SubmitError>
    where
        W: TimelineValues<B::Timeline> + ?Sized,
        S: TimelineValues<B::Timeline> + ?Sized,
    {
        let waits_for_foreign = self.check(device, affinity, waits, signals)?;
        let index = self.choose(device, affinity, waits);
        let standings;
        let foreign: &[Standing] = if waits_for_foreign {
            standings = self.foreign_standings(waits);
            &standings
        } else {
            &[]
        };
        let mut entry = Entry::submitting(self);
        let nested = entry.is_nested();
        let mut turn = Turn::begin(self, index, entry.agenda());
        if turn.state.closing {
            if !is_mutated(Mutation::RefusalLeavesQueue) {
                turn.finish(nested);
            }
            return Err(SubmitError::ShutDown);
        }
        let (admitted, straight) = turn.admit(waits, signals, kind, item, foreign, !nested);
        if straight {
            turn.hand_over(item).work_on(1);
        } else {
            turn.finish(nested);
        }
        entry.end();
        Ok(admitted)
    }

    /// How waits for other drivers' timelines stand, in their order. Asking is foreign code, and done without a lock; a
    /// driver that panics has failed.
    #[cold]
    fn foreign_standings<W: TimelineValues<B::Timeline> + ?Sized>(&self, waits: &W) -> Vec<Standing> {
        let mut standings = Vec::new();
        for (timeline, value) in iter(waits) {
            if self.own(timeline).is_none() {
                standings.push(self.foreign_standing(timeline, value));
            }
        }
        standings
    }

    pub(super) fn foreign_standing(&self, timeline: &B::Timeline, value: u64) -> Standing {
        let asked = self.foreign_counted(|| match timeline.failure() {
            Some(failure) => Standing::Failed(failure),
            None if timeline.value() >= value => Standing::Reached,
            None => Standing::Open,
        });
        asked.unwrap_or_else(Standing::Failed)
    }

    /// Work with a place in its queue will make each of these signals: from here on whatever follows it there is ordered after
    /// them. Adds the waits of the queue that this covers.
    #[inline(always)]
    pub(super) fn promise_each(
        &self,
        signals: &[SignalRecord<B::Timeline>],
        promise: Promise,
        covered: &mut CoveredWaits,
        agenda: &mut Agenda,
    ) {
        for signal in signals {
            let Some(slot) = self.own(&signal.timeline) else { continue };
            if slot.promise(Promise { value: signal.value, ..promise }, covered, agenda) {
                self.remember_large(slot);
            }
        }
    }

    /// Whether one queue can wait natively for work of another.
    pub(super) fn reaches(&self, waiting: &Queue<B>, producer: &Queue<B>) -> bool {
        self.device(waiting).reaches(waiting.id.device(), producer.id.device())
    }
}

/// What a [`Placement`] is made of, by those who want one.
struct Admitted {
    key: Key,
    /// The queue that was chosen.
    queue: QueueId,
    waits: WaitCounts,
}

/// An operation that is being made in its place. It goes from there if foreign code panics before it is finished: then it was
/// never submitted.
struct Unfinished<'t, 'a, B: Backend> {
    turn: &'t mut Turn<'a, B>,
    key: Key,
}

impl<B: Backend> Drop for Unfinished<'_, '_, B> {
    fn drop(&mut self) {
        self.turn.unmake(self.key);
    }
}

impl<B: Backend> Turn<'_, B> {
    /// Takes out an operation that is not finished, and what it has registered so far. Its handles on timelines go.
    #[cold]
    fn unmake(&mut self, key: Key) {
        let op = self.state.ops.take_live(key);
        self.let_go_of_all(&op.waits);
        if !self.state.effects.is_empty() {
            // The call that panics does this as it ends.
            self.agenda.visit(self.index);
        }
    }

    /// Takes an operation in. Everything was checked: this cannot fail.
    fn admit<W, S>(
        &mut self,
        waits: &W,
        signals: &S,
        kind: ActionKind,
        item: &mut Item<B>,
        foreign: &[Standing],
        may_go_straight: bool,
    ) -> (Admitted, bool)
    where
        W: TimelineValues<B::Timeline> + ?Sized,
        S: TimelineValues<B::Timeline> + ?Sized,
    {
        let is_clear = may_go_straight && kind == ActionKind::Queue && self.is_clear();
        let key = self.state.ops.next_key();
        // It is made where it stays.
        let lost = self.device.lost();
        self.state.ops.insert_with(key, move || Op::new(kind, lost));
        let unfinished = Unfinished { turn: self, key };
        unfinished.turn.record_signals(key, signals);
        let counts = unfinished.turn.record_waits(key, kind, waits, foreign);
        std::mem::forget(unfinished);
        self.state.stats.submitted += 1;
        let load = self.queue.load.load(Ordering::Relaxed);
        self.queue.load.store(load + 1, Ordering::Relaxed);
        let admitted = Admitted { key, queue: self.queue.id, waits: counts };
        let op = self.state.ops.live_mut(key);
        if is_clear && op.failure.is_none() && op.waits_for_nothing_but(self.index) {
            self.put_in_flight(key, item);
            return (admitted, true);
        }
        op.work = item.work.take();
        op.remaining = counts.held;
        let is_held = counts.held > 0 && op.failure.is_none();
        let partly_covered = usize::try_from(counts.held).is_ok_and(|held| held < op.waits.len());
        if is_held && partly_covered {
            // The covered waits of an operation that stays held matter to it only if their timeline fails.
            self.listen_for_failures(key, |_| true);
        }
        if !is_held {
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

    /// Classifies each wait of an operation that is being admitted as `key`, and registers those that are not reached.
    /// One that has failed fails the operation.
    #[inline(always)]
    fn record_waits<W: TimelineValues<B::Timeline> + ?Sized>(
        &mut self,
        key: Key,
        kind: ActionKind,
        waits: &W,
        foreign: &[Standing],
    ) -> WaitCounts {
        let mut counts = WaitCounts::default();
        let mut foreign = foreign.iter();
        let wide = waits.len() > 1;
        if wide && let Some(spare) = self.state.spare.waits.pop() {
            self.live(key).waits = SmallVec::from_vec(spare);
        }
        for (timeline, value) in iter(waits) {
            let classified = match self.shared.own(timeline) {
                Some(slot) => match self.shared.foreign_counted(|| timeline.failed_before()) {
                    Ok(Some(failure)) | Err(failure) => Err(failure),
                    Ok(None) => self.classify(slot, value, kind, key, wide),
                },
                None => match foreign.next() {
                    Some(Standing::Reached) => Ok(WaitClass::Reached),
                    Some(Standing::Failed(failure)) => Err(failure.clone()),
                    Some(Standing::Open) | None => self.watch(timeline, value, key),
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
                let timeline = self.shared.own(timeline).map(|slot| slot.key());
                self.state.effects.transitions.push(Transition::Wait { ticket, timeline, value, class });
            }
        }
        self.state.stats.reached += u64::from(counts.reached);
        self.state.stats.held += u64::from(counts.held);
        counts
    }

    /// Keeps the memory of a wide operation, whose lists are empty by now, for the next one.
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

    /// Decides what a wait for one of this engine's timelines costs the operation `key`, and registers it there unless it is
    /// reached; or says what the timeline has failed with.
    #[inline]
    fn classify(
        &mut self,
        slot: &Arc<Slot>,
        value: u64,
        kind: ActionKind,
        key: Key,
        wide: bool,
    ) -> Result<WaitClass, Failure> {
        if !is_mutated(Mutation::RegisterDoesNotLook) {
            match slot.look() {
                (reached, false) if reached >= value => return Ok(WaitClass::Reached),
                _ => {}
            }
        }
        let mut state = slot.lock();
        if !is_mutated(Mutation::RegisterDoesNotLook) {
            if let Some(failure) = state.failure() {
                return Err(failure.clone());
            }
            if slot.value() >= value {
                return Ok(WaitClass::Reached);
            }
        }
        let for_host = kind == ActionKind::Host;
        if !for_host
            && state.has_promises()
            && let Some((class, cover)) = self.any_coverage(slot, &state, value)
        {
            drop(state);
            self.live(key).wait_for(slot.clone(), value, Via::Cover(cover));
            return Ok(class);
        }
        let wait = self.live(key).next_wait();
        let target = Target::Op { queue: self.index, key, wait, wide };
        let via = if for_host {
            Via::Host(slot.park(&mut state, Owner::HOST, value, target))
        } else {
            Via::Coverable(slot.park(&mut state, Owner::queue(self.index), value, target))
        };
        if state.becomes_large() {
            self.shared.remember_large(slot);
        }
        drop(state);
        self.live(key).wait_for(slot.clone(), value, via);
        Ok(WaitClass::Held)
    }

    /// What covers a wait, in the queue itself or in another one. A queue that finds nothing stays counted as a listener of the
    /// slot, and the next promise is told to it. It is counted before it looks: either it sees a promise that is made
    /// meanwhile, or the thread that makes it sees the listener.
    fn any_coverage(&self, slot: &Slot, state: &SlotState, value: u64) -> Option<(WaitClass, Cover)> {
        self.own_coverage(state, value).or_else(|| {
            if !is_mutated(Mutation::ListenerLooksFirst) {
                slot.listen(state);
            }
            let coverage = self.coverage(state, value);
            if coverage.is_some() {
                slot.count_listeners(state);
            }
            coverage
        })
    }

    /// Registers a wait of the operation `key` for a foreign timeline.
    #[cold]
    fn watch(&mut self, timeline: &B::Timeline, value: u64, key: Key) -> Result<WaitClass, Failure> {
        let timeline = self.shared.foreign_counted(|| timeline.clone())?;
        let slot = self.shared.stand_in();
        let wait = self.live(key).next_wait();
        let target = Target::Op { queue: self.index, key, wait, wide: false };
        let order = slot.park(&mut slot.lock(), Owner::HOST, value, target);
        self.state.effects.watches.push((timeline, value, slot.clone()));
        self.live(key).wait_for(slot, value, Via::Host(order));
        Ok(WaitClass::Held)
    }

    /// What covers a wait of this queue in the queue itself. Work of the queue moves on under the lock that is held here.
    fn own_coverage(&self, slot: &SlotState, value: u64) -> Option<(WaitClass, Cover)> {
        let is_own = |promise: &&Promise| promise.queue == self.index;
        // Mostly it is the last one that is waited for.
        let exact = slot.last_promise().filter(|promise| promise.value == value).filter(is_own);
        let promise = exact.or_else(|| slot.promises_for(value).find(is_own))?;
        let class = WaitClass::SameQueue { producer: self.queue.point(promise.epoch) };
        Some((class, Cover { queue: self.index, epoch: promise.epoch, event: None }))
    }

    /// What covers a wait of this queue in another one, for a value that is not reached; see the module's table. An event
    /// that is part of it is held for the caller.
    fn coverage(&self, slot: &SlotState, value: u64) -> Option<(WaitClass, Cover)> {
        let mut best: Option<(WaitClass, Cover)> = None;
        for promise in slot.promises_for(value) {
            let source = self.shared.queue(promise.queue);
            if matches!(best, Some((WaitClass::Dominated { .. }, _))) {
                break;
            }
            let accepted = promise.epoch <= source.issued.load(Ordering::Acquire)
                || is_mutated(Mutation::WaitsForUnissued);
            if promise.cover == 0 || !accepted || !self.shared.reaches(self.queue, source) {
                continue;
            }
            let producer = source.point(promise.cover);
            let class = if self.state.known.get(promise.queue) >= promise.cover {
                WaitClass::Dominated { producer }
            } else if best.is_some() {
                continue;
            } else if producer.queue.device == self.queue.id.device {
                WaitClass::Native { producer }
            } else {
                WaitClass::Peer { producer }
            };
            best = Some((class, Cover { queue: promise.queue, epoch: promise.cover, event: promise.event }));
        }
        let (class, mut cover) = best?;
        if matches!(class, WaitClass::Dominated { .. }) {
            cover.event = None;
        }
        if let Some(event) = cover.event
            && !is_mutated(Mutation::EventNotHeld)
        {
            // The promise is still there, so the operation that records the event still holds it.
            self.shared.queue(cover.queue).events.lock().retain(event);
        }
        Some((class, cover))
    }

    /// From now on the operation hears of it when a timeline fails on which a covered wait of it depends.
    pub(super) fn listen_for_failures(&mut self, key: Key, which: impl Fn(u32) -> bool) {
        let count = self.state.ops.get(key).map_or(0, |op| op.waits.len());
        for number in 0..count {
            // To listen may end the operation.
            let record = self.state.ops.get(key).and_then(|op| op.waits.get(number));
            if record.and_then(WaitRecord::producer).is_some_and(&which) {
                self.listen_for_failure(key, number);
            }
        }
    }

    /// The same for one wait.
    fn listen_for_failure(&mut self, key: Key, number: usize) {
        let index = self.index;
        let Some(record) = self.op(key).and_then(|op| op.waits.get_mut(number)) else { return };
        if record.failure_order.is_some() {
            return;
        }
        let mut slot = record.slot.lock();
        if record.slot.value() >= record.value {
            return;
        }
        let failure = slot.failure().cloned();
        if failure.is_none() {
            let target = Target::Covered { queue: index, key };
            record.failure_order = Some(record.slot.park(&mut slot, Owner::HOST, record.value, target));
        }
        let large = slot.becomes_large().then(|| record.slot.clone());
        drop(slot);
        if let Some(large) = large {
            self.shared.remember_large(&large);
        }
        if let Some(failure) = failure {
            self.fail_unbegun(key, &failure);
        }
    }

    /// Sends an operation on its way: it is to end, or nothing holds it any more.
    pub(super) fn route(&mut self, key: Key) {
        let Some(op) = self.op(key) else { return };
        if let Some(failure) = op.failure.clone() {
            self.end_or_clean_up(key, failure);
            return;
        }
        debug_assert!(op.state == OpState::Unplaced && op.remaining == 0, "it is routed once");
        let kind = op.kind;
        match kind {
            ActionKind::Queue | ActionKind::Marker => self.order(key),
            ActionKind::Early if !self.is_reached(key) => {
                if let Some(work) = self.start_on_host(key) {
                    self.state.effects.early.push(Early { op: key, work, done: Ok(false) });
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
            ActionKind::Barrier => self.order(key),
        }
    }

    /// Ends an operation that has failed, or has the host clean up for it first, which ends it then.
    fn end_or_clean_up(&mut self, key: Key, failure: Failure) {
        let all_end = self.state.closing || self.state.lost.is_some();
        let op = self.live(key);
        if op.is_cleaning_up() {
            return;
        }
        if !op.cleans_up(all_end) {
            return self.end(key, Some(failure), None);
        }
        let had_place = op.state == OpState::Ordered;
        if let Some(work) = self.start_on_host(key) {
            self.state.effects.runs.push((key, work, Some(failure)));
        }
        if had_place {
            self.state.leave_gap();
        }
    }

    /// The host is at an operation from now on.
    fn start_on_host(&mut self, key: Key) -> Option<B::Work> {
        let op = self.live(key);
        op.state = OpState::Running;
        let work = op.work.take();
        self.state.running += 1;
        work
    }

    fn is_reached(&self, key: Key) -> bool {
        self.state.ops.live(key).waits.iter().all(|wait| wait.slot.value() >= wait.value)
    }

    /// The backend was asked to do an operation before its waits are reached, and said whether it has.
    pub(super) fn end_early(&mut self, Early { op: key, work, done }: Early<B>) {
        let index = self.index;
        let (closing, lost) = (self.state.closing, self.state.lost.clone());
        let Some(op) = self.op(key) else { return };
        op.work = Some(work);
        let done = match (done, lost) {
            (Ok(done), None) => done,
            (Err(failure), _) | (Ok(_), Some(failure)) => return self.end(key, Some(failure), None),
        };
        let mut held = 0;
        let mut failure = closing.then(super::stop::shutdown_failure);
        let mut events: SmallVec<[_; 2]> = SmallVec::new();
        for (record, number) in op.waits.iter_mut().zip(0u32..) {
            if done {
                break;
            }
            let mut state = record.slot.lock();
            let looks = !is_mutated(Mutation::EarlyDoesNotLook);
            if looks && record.slot.value() >= record.value {
                continue;
            }
            if let Some(cause) = state.failure() {
                failure.get_or_insert(cause.clone());
                continue;
            }
            events.extend(record.cover().and_then(|cover| Some((cover.queue, cover.event?))));
            held += 1;
            let target = Target::Op { queue: index, key, wait: number, wide: false };
            record.via = Via::Host(record.slot.park(&mut state, Owner::HOST, record.value, target));
        }
        op.state = OpState::Unplaced;
        op.done = done;
        op.kind = if done { ActionKind::Barrier } else { ActionKind::Host };
        op.remaining = held;
        op.failure = failure;
        let ready = held == 0 || op.failure.is_some();
        self.state.running -= 1;
        for (producer, event) in events {
            self.shared.queue(producer).events.lock().release(event);
        }
        if ready {
            self.state.runnable.push_back(key);
        }
    }

    /// Gives an operation the next place in its queue.
    fn order(&mut self, key: Key) {
        let epoch = self.next_place();
        let op = self.state.ops.live_mut(key);
        op.epoch = epoch;
        op.state = OpState::Ordered;
        let cover = super::issue::foreseen_cover(self.queue, self.device, op.kind, epoch);
        let promise = Promise { value: 0, queue: self.index, epoch, cover, event: None };
        let mut covered = CoveredWaits::new();
        self.shared.promise_each(&op.signals, promise, &mut covered, self.agenda);
        self.state.ready.push_back(key);
        self.has_place(key, epoch, &covered);
        if self.state.window.is_full() || self.state.ready.len() > BATCH {
            self.listen_for_failures_elsewhere(key);
        }
    }

    /// The next place in the queue.
    #[inline]
    pub(super) fn next_place(&mut self) -> u64 {
        self.state.ordered += 1;
        self.state.ordered
    }

    /// An operation has its place in its queue, which covers these waits of others.
    #[inline]
    pub(super) fn has_place(&mut self, key: Key, epoch: u64, covered: &CoveredWaits) {
        if B::OBSERVES {
            let ticket = self.ticket(key);
            let point = self.queue.point(epoch);
            self.state.effects.transitions.push(Transition::Ordered { ticket, point });
        }
        for &Covered { op, wait, failure_order } in covered {
            self.cover(op, wait, Cover { queue: self.index, epoch, event: None }, failure_order);
        }
    }

    /// The operation stays in the queue for a while: it hears of it when what it waits for in another queue fails.
    pub(super) fn listen_for_failures_elsewhere(&mut self, key: Key) {
        let own = self.index;
        self.listen_for_failures(key, |producer| producer != own);
    }

    /// A wait of a held operation is covered now. It may have a number already by which the operation hears of a failure.
    pub(super) fn cover(&mut self, key: Key, number: u32, cover: Cover, failure_order: Option<u32>) {
        let state = &mut *self.state;
        if let Some(op) = state.ops.get_mut(key)
            && let Some(record) = op.waits.get_mut(number as usize)
            && matches!(record.via, Via::Coverable(_))
        {
            record.via = Via::Cover(cover);
            record.failure_order = failure_order;
            if op.count_down() {
                state.runnable.push_back(key);
            }
            if failure_order.is_none() && op.remaining > 0 {
                self.listen_for_failure(key, number as usize);
            }
        } else {
            self.release_event(cover.queue, cover.event);
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
        let Some(record) = op.waits.get_mut(number as usize) else { return };
        if matches!(record.via, Via::Coverable(_) | Via::Host(_)) {
            record.via = Via::Reached;
            if op.count_down() {
                state.runnable.push_back(key);
            }
        }
    }

    /// The operation is to end with this failure, unless its device or the host has it already.
    pub(super) fn fail_unbegun(&mut self, key: Key, failure: &Failure) {
        let Some(op) = self.op(key) else { return };
        let begun = !matches!(op.state, OpState::Unplaced | OpState::Ordered);
        if begun && !is_mutated(Mutation::CancelIgnoresState) {
            return;
        }
        if op.failure.is_none() {
            op.failure = Some(failure.clone());
            self.state.runnable.push_back(key);
        }
    }
}
