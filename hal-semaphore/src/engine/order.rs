//! Taking operations in, classifying their waits, and giving them their place in a queue.

use super::state::{
    Ahead, Core, Effect, HOST, Lane, NOBODY, Op, OpState, Publication, SPARE, SignalRecord, Target,
    WaitRecord,
};
use super::stop::shutdown_failure;
use super::{Action, Placement, WaitCounts};
use crate::backend::{Backend, Ended, Transition, WaitClass};
use crate::error::SubmitError;
use crate::failure::Failure;
use crate::ids::{Affinity, MAX_VALUE, Point, Ticket};
use crate::native_event::EventIndex;
use crate::sabotage::{Defect, sabotaged};
use crate::slab::Key;
use crate::timeline::{Points, Timeline, iter};
use smallvec::SmallVec;

/// How a wait that is not reached can do without the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cover {
    pub(super) queue: u32,
    pub(super) class: WaitClass,
    /// What to wait for natively; nothing to do where the class is free.
    pub(super) epoch: u64,
    pub(super) event: Option<EventIndex>,
}

impl<B: Backend> Core<B> {
    /// The slot of one of this engine's timelines; nothing for a foreign one.
    pub(super) fn own_slot(&self, timeline: &B::Timeline) -> Option<Key> {
        timeline.key().filter(|key| key.engine == self.engine).map(|key| key.key)
    }

    /// Checks what the values alone do not tell. Changes nothing.
    pub(super) fn check<W, S>(
        &self,
        device: usize,
        affinity: Affinity,
        waits: &W,
        signals: &S,
    ) -> Result<(), SubmitError>
    where
        W: Points<B::Timeline> + ?Sized,
        S: Points<B::Timeline> + ?Sized,
    {
        if self.closing {
            return Err(SubmitError::ShutDown);
        }
        let Some(spec) = self.devices.get(device) else {
            return Err(SubmitError::UnknownDevice { device, devices: self.devices.len() });
        };
        let known = if spec.queues == 64 { u64::MAX } else { (1u64 << spec.queues) - 1 };
        if affinity.0 == 0 {
            return Err(SubmitError::NoQueue { device, known });
        }
        if affinity != Affinity::ANY && affinity.0 & !known != 0 {
            return Err(SubmitError::UnknownQueue { device, mask: affinity.0, known });
        }
        for (timeline, value) in iter(waits) {
            if value > MAX_VALUE {
                return Err(SubmitError::ValueTooLarge { value });
            }
            self.known_value(timeline)?;
        }
        for (timeline, value) in iter(signals) {
            if value > MAX_VALUE {
                return Err(SubmitError::ValueTooLarge { value });
            }
            let current = timeline.value().max(self.known_value(timeline)?);
            if value <= current && timeline.failure().is_none() {
                return Err(SubmitError::SignalNotAbove { value, current });
            }
        }
        Ok(())
    }

    /// The value that the engine has seen a timeline reach, if it is one of its own.
    fn known_value(&self, timeline: &B::Timeline) -> Result<u64, SubmitError> {
        match self.own_slot(timeline) {
            None => Ok(0),
            Some(key) => match self.slots.get(key) {
                Some(slot) if slot.owned => Ok(slot.value),
                _ => Err(SubmitError::DroppedTimeline),
            },
        }
    }

    /// The value that a timeline has reached, as far as anyone knows. The timeline runs ahead of its slot when the
    /// host signals, and behind it until a retired operation's signal is published.
    fn value_of(&self, timeline: &B::Timeline) -> u64 {
        let seen = timeline.value();
        match self.own_slot(timeline).and_then(|key| self.slots.get(key)) {
            Some(slot) => seen.max(slot.value),
            None => seen,
        }
    }

    /// Whether a wait is over: reached, or failed. A value that was reached before the failure counts as reached.
    pub(super) fn state_of(&self, timeline: &B::Timeline, value: u64) -> Option<Result<(), Failure>> {
        if sabotaged(Defect::RegisterDoesNotLook) {
            return None;
        }
        if timeline.value() >= value || self.value_of(timeline) >= value {
            return Some(Ok(()));
        }
        let recorded = self.own_slot(timeline).and_then(|key| self.slots.get(key)?.failure.clone());
        let failure = recorded.or_else(|| timeline.failure())?;
        Some(if self.value_of(timeline) >= value { Ok(()) } else { Err(failure) })
    }

    /// Chooses a queue of the device: the one whose order already covers a wait, else the one with the least to do.
    fn choose<W: Points<B::Timeline> + ?Sized>(&self, device: usize, affinity: Affinity, waits: &W) -> u32 {
        let Some(spec) = self.devices.get(device) else { return 0 };
        let allowed = |queue: u32| affinity.0 & (1u64 << (queue - spec.first_queue)) != 0;
        let candidates = (spec.first_queue..spec.first_queue + spec.queues).filter(|&queue| allowed(queue));
        if affinity.0.is_power_of_two() || spec.queues == 1 {
            return candidates.into_iter().next().unwrap_or(spec.first_queue);
        }
        for (timeline, value) in iter(waits) {
            let Some(slot) = self.own_slot(timeline).and_then(|key| self.slots.get(key)) else { continue };
            if slot.value >= value {
                continue;
            }
            let covering = slot
                .signals
                .iter()
                .find(|(queue, signals)| {
                    candidates.clone().any(|candidate| candidate == *queue)
                        && signals.back().is_some_and(|&(last, _)| last >= value)
                })
                .map(|(queue, _)| *queue);
            if let Some(queue) = covering {
                return queue;
            }
        }
        candidates.min_by_key(|&queue| self.queue_ref(queue).load).unwrap_or(spec.first_queue)
    }

    /// Takes an operation in. Everything was checked: this cannot fail.
    pub(super) fn admit<W, S>(
        &mut self,
        device: usize,
        affinity: Affinity,
        waits: &W,
        signals: &S,
        action: Action<B::Work>,
    ) -> Placement
    where
        W: Points<B::Timeline> + ?Sized,
        S: Points<B::Timeline> + ?Sized,
    {
        let queue = self.choose(device, affinity, waits);
        let (lane, work) = match action {
            Action::Queue(work) => (Lane::Queue, Some(work)),
            Action::Host(work) => (Lane::Host, Some(work)),
            Action::Ahead(work) => (Lane::Ahead, Some(work)),
            Action::Edge(work) => (Lane::Edge, Some(work)),
            Action::Barrier => (Lane::Barrier, None),
        };
        let spare = if signals.len() > 1 { self.spare.signals.pop() } else { None };
        let mut signal_records = spare.map_or_else(SmallVec::new, SmallVec::from_vec);
        for (timeline, value) in iter(signals) {
            let slot = self.own_slot(timeline);
            if let Some(slot) = slot {
                self.use_slot(slot);
            }
            signal_records.push(SignalRecord { timeline: timeline.clone(), value, slot });
        }
        let spare = if waits.len() > 2 { self.spare.waits.pop() } else { None };
        let mut wait_records: SmallVec<[WaitRecord; 2]> =
            spare.map_or_else(SmallVec::new, SmallVec::from_vec);
        let key = self.ops.next_key();
        self.queue(queue).load += 1;
        self.stats.submitted += 1;

        let mut counts = WaitCounts::default();
        let mut doom = self.devices.get(device).and_then(|device| device.lost.clone());
        let mut held = 0;
        let list = if lane == Lane::Host { HOST } else { queue };
        for (timeline, value) in iter(waits) {
            let class = match self.state_of(timeline, value) {
                Some(Ok(())) => WaitClass::Reached,
                Some(Err(failure)) => {
                    doom.get_or_insert(failure);
                    continue;
                }
                None => {
                    let slot = match self.own_slot(timeline) {
                        Some(slot) => slot,
                        None => {
                            let slot = self.new_slot(false, 0);
                            self.effects.then(Effect::Watch(timeline.clone(), value, slot));
                            slot
                        }
                    };
                    self.use_slot(slot);
                    let cover = match lane {
                        Lane::Host => None,
                        _ => self.coverage(slot, value, queue, u64::MAX),
                    };
                    // What the queue's own order takes care of needs no second look: it stays so, whatever happens.
                    let own = cover.is_some_and(|cover| matches!(cover.class, WaitClass::SameQueue { .. }));
                    let via = if own { queue } else { NOBODY };
                    wait_records.push(WaitRecord { slot, value, via, event: None });
                    match cover {
                        Some(cover) => cover.class,
                        None => {
                            held += 1;
                            self.park(slot, list, value, Target::Op(key));
                            WaitClass::Held
                        }
                    }
                }
            };
            counts.count(class);
            if B::OBSERVES {
                let timeline = timeline.key().filter(|key| key.engine == self.engine);
                self.effects.then(Effect::Observe(Transition::Wait {
                    ticket: Ticket(key),
                    timeline,
                    value,
                    class,
                }));
            }
        }
        self.stats.reached += u64::from(counts.reached);
        self.stats.held += u64::from(held);
        if held > 0 && doom.is_none() && usize::try_from(held).is_ok_and(|held| held < wait_records.len()) {
            // The covered waits of an operation that stays held matter to it only if their timeline fails.
            for record in &wait_records {
                if self.coverage(record.slot, record.value, queue, u64::MAX).is_some() {
                    self.park(record.slot, HOST, record.value, Target::Covered(key));
                }
            }
        }
        if held == 0 || doom.is_some() {
            self.runnable.push_back(key);
        }
        self.ops.insert(Op {
            state: OpState::Held,
            lane,
            queue,
            remaining: held,
            epoch: 0,
            event: None,
            doom,
            waits: wait_records,
            signals: signal_records,
            work,
        });
        Placement { ticket: Ticket(key), queue: self.queue_ref(queue).id, waits: counts }
    }

    /// How a wait of work on `queue` for a value that is not reached can do without the host; nothing if it cannot.
    /// The work's own place there is `before`: nothing orders it behind itself, or what follows it.
    ///
    /// Of each producing queue the earliest signal that is enough counts, never a later one: waiting for more than
    /// was asked for would serialise what need not be.
    pub(super) fn coverage(&self, slot: Key, value: u64, queue: u32, before: u64) -> Option<Cover> {
        let slot = self.slots.get(slot)?;
        if slot.failure.is_some() {
            return None;
        }
        let waiting = self.queue_ref(queue);
        let mut best: Option<Cover> = None;
        for (producer, signals) in &slot.signals {
            // Mostly it is the last one that is waited for.
            let at = match signals.len().checked_sub(2).and_then(|at| signals.get(at)) {
                Some(&(before_last, _)) if before_last < value => {
                    signals.len() - usize::from(signals.back().is_some_and(|&(last, _)| last >= value))
                }
                _ => signals.partition_point(|&(signalled, _)| signalled < value),
            };
            let Some(&(_, epoch)) = signals.get(at) else { continue };
            let source = self.queue_ref(*producer);
            if *producer == queue {
                if epoch >= before {
                    continue;
                }
                let class = WaitClass::SameQueue { producer: source.point(epoch) };
                return Some(Cover { queue, class, epoch, event: None });
            }
            let accepted = epoch <= source.issued || sabotaged(Defect::WaitsForUnissued);
            if !accepted || !waiting.reach.get(*producer as usize).copied().unwrap_or(false) {
                continue;
            }
            let Some(entry) = source.in_flight_at(epoch) else { continue };
            let point = source.point(entry.cover);
            let class = if waiting.known.get(*producer as usize).is_some_and(|&known| known >= entry.cover) {
                WaitClass::Dominated { producer: point }
            } else if entry.event.is_none() && self.needs_events(source.id.device()) {
                continue;
            } else if source.id.device == waiting.id.device {
                WaitClass::Native { producer: point }
            } else {
                WaitClass::Peer { producer: point }
            };
            let cover = Cover { queue: *producer, class, epoch: entry.cover, event: entry.event };
            if matches!(class, WaitClass::Dominated { .. }) || best.is_none() {
                best = Some(cover);
            }
        }
        best
    }

    pub(super) fn needs_events(&self, device: usize) -> bool {
        self.devices
            .get(device)
            .is_some_and(|device| device.native_waits == crate::backend::NativeWaits::Events)
    }

    /// Sends an operation on its way: it is doomed, or nothing holds it any more.
    pub(super) fn route(&mut self, key: Key) {
        let Some(op) = self.op(key) else { return };
        if let Some(failure) = op.doom.clone() {
            self.end(key, Some(failure), None, None);
            return;
        }
        if op.state != OpState::Held {
            return;
        }
        let lane = op.lane;
        match lane {
            Lane::Queue | Lane::Edge => self.order(key),
            Lane::Ahead if !self.is_reached(key) => {
                if let Some(work) = self.begin(key) {
                    self.effects.ahead.push(Ahead { op: key, work, done: Ok(false) });
                }
            }
            Lane::Host | Lane::Ahead => {
                if let Some(work) = self.begin(key) {
                    self.effects.then(Effect::Run(key, work));
                }
            }
            Lane::Barrier if self.is_reached(key) => {
                self.stats.host_barriers += 1;
                self.end(key, None, None, None);
            }
            Lane::Barrier => self.order(key),
        }
    }

    /// The host is at an operation from now on.
    fn begin(&mut self, key: Key) -> Option<B::Work> {
        let op = self.op(key)?;
        op.state = OpState::Running;
        let work = op.work.take();
        self.running += usize::from(work.is_some());
        work
    }

    /// The backend was asked to do an operation before its waits are reached, and said whether it has.
    pub(super) fn end_ahead(&mut self, Ahead { op: key, work, done }: Ahead<B>) {
        let closing = self.closing;
        let Some(op) = self.op(key) else { return };
        op.work = Some(work);
        let queue = op.queue;
        let lost = self.device_of(queue).lost.clone();
        let done = match (done, lost) {
            (Ok(done), None) => done,
            (Err(failure), _) | (Ok(_), Some(failure)) => return self.end(key, Some(failure), None, None),
        };
        self.running -= 1;
        let mut held = 0;
        let mut doom = closing.then(shutdown_failure);
        if !done {
            let waits = self.ops.get(key).map_or_else(SmallVec::new, |op| op.waits.clone());
            for WaitRecord { slot: at, value, .. } in waits {
                let looks = !sabotaged(Defect::AheadDoesNotLook);
                let Some(slot) = self.slots.get(at).filter(|slot| slot.value < value || !looks) else {
                    continue;
                };
                if let Some(failure) = &slot.failure {
                    doom.get_or_insert(failure.clone());
                } else {
                    held += 1;
                    self.park(at, HOST, value, Target::Op(key));
                }
            }
        }
        let Some(op) = self.op(key) else { return };
        op.state = OpState::Held;
        op.lane = if done { Lane::Barrier } else { Lane::Host };
        op.remaining = held;
        match doom {
            Some(failure) => {
                self.doom(key, &failure);
            }
            None if held == 0 => self.runnable.push_back(key),
            None => {}
        }
    }

    fn is_reached(&self, key: Key) -> bool {
        self.ops.get(key).is_some_and(|op| {
            op.waits.iter().all(|wait| self.slots.get(wait.slot).is_some_and(|slot| slot.value >= wait.value))
        })
    }

    /// Gives an operation the next place in its queue. From here on whatever follows it there is ordered after it.
    fn order(&mut self, key: Key) {
        let Some(op) = self.ops.get_mut(key) else { return };
        let index = op.queue;
        #[expect(
            clippy::indexing_slicing,
            reason = "queue numbers come from the engine itself and queues never go away"
        )]
        let queue = &mut self.queues[index as usize];
        queue.ordered += 1;
        let epoch = queue.ordered;
        op.epoch = epoch;
        op.state = OpState::Ordered;
        queue.ready.push_back(key);
        let point = queue.point(epoch);
        let signals = op.signals.len();
        for position in 0..signals {
            let Some((slot_key, value)) = self.signal(key, position) else { continue };
            if self.put_under_way(slot_key, index, value, epoch) {
                self.cover_own(slot_key, index, value);
            }
        }
        if B::OBSERVES {
            self.effects.then(Effect::Observe(Transition::Ordered { ticket: Ticket(key), point }));
        }
        self.mark_issuable(index);
    }

    /// The own timeline that an operation signals, and the value.
    pub(super) fn signal(&self, key: Key, position: usize) -> Option<(Key, u64)> {
        let signal = self.ops.get(key)?.signals.get(position)?;
        Some((signal.slot?, signal.value))
    }

    /// Ends an operation: the one place where it happens, whatever the reason.
    ///
    /// Its signals take effect here for everything that the engine holds, and are queued for publication; its work is
    /// queued for reclaiming behind them.
    pub(super) fn end(
        &mut self,
        key: Key,
        failure: Option<Failure>,
        point: Option<Point>,
        work: Option<B::Work>,
    ) {
        let Some(mut op) = self.ops.remove(key) else { return };
        let early = matches!(op.state, OpState::Held | OpState::Ordered);
        for wait in &op.waits {
            if let Some(event) = wait.event {
                self.device_of(wait.via).events.release(event);
            }
            if early && failure.is_some() {
                self.leave_stale(wait.slot);
            }
            self.drop_user(wait.slot);
        }
        if let Some(event) = op.event {
            self.device_of(op.queue).events.release(event);
        }
        // Mostly there is one.
        let only = if op.signals.len() == 1 { op.signals.pop() } else { None };
        if let Some(signal) = only {
            self.take_effect(signal, failure.as_ref(), point, op.queue, op.epoch);
        }
        for signal in op.signals.drain(..) {
            self.take_effect(signal, failure.as_ref(), point, op.queue, op.epoch);
        }
        if op.state == OpState::Running {
            self.running -= 1;
        }
        self.queue(op.queue).load -= 1;
        match failure {
            None => self.stats.succeeded += 1,
            Some(_) => self.stats.failed += 1,
        }
        if B::OBSERVES {
            let outcome = failure.clone().map_or(Ok(()), Err);
            self.effects.then(Effect::Observe(Transition::Ended { ticket: Ticket(key), point, outcome }));
        }
        let work = work.or(op.work.take());
        if work.is_some() || point.is_some() {
            self.effects.reclaims.push(Ended { point, work, outcome: failure.map_or(Ok(()), Err) });
        }
        self.keep_spare(&mut op);
    }

    /// What an operation at `epoch` of `queue`, if it got there, signals as it ends: for everything that the engine holds
    /// at once, and for the world soon.
    fn take_effect(
        &mut self,
        signal: SignalRecord<B::Timeline>,
        failure: Option<&Failure>,
        point: Option<Point>,
        queue: u32,
        epoch: u64,
    ) {
        let SignalRecord { timeline, value, slot } = signal;
        let state = match failure {
            None => Ok(value),
            Some(failure) => Err(failure.clone()),
        };
        if let Some(slot_key) = slot {
            if epoch > 0 {
                // What this reaches, no earlier signal of the queue is needed for any more; and a failed
                // timeline needs none.
                let reached = if failure.is_none() { value } else { u64::MAX };
                self.drop_under_way(slot_key, queue, reached);
            }
            match &state {
                Ok(value) => self.reach(slot_key, *value),
                Err(failure) => self.fail_slot(slot_key, failure),
            }
            self.drop_user(slot_key);
        }
        self.effects.publications.push(Publication { timeline, state, by: point, foreign: slot.is_none() });
    }

    /// Keeps the memory of a wide operation for the next one.
    fn keep_spare(&mut self, op: &mut Op<B>) {
        if op.waits.spilled() && self.spare.waits.len() < SPARE {
            let mut spare = std::mem::take(&mut op.waits).into_vec();
            spare.clear();
            self.spare.waits.push(spare);
        }
        if op.signals.spilled() && self.spare.signals.len() < SPARE {
            let mut spare = std::mem::take(&mut op.signals).into_vec();
            spare.clear();
            self.spare.signals.push(spare);
        }
    }
}
