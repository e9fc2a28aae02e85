//! Handing ordered work to the backend: batches, native waits, events, and what a submission may answer.
//!
//! One thread at a time issues for a queue (`Queue::issuing`), without the lock while the backend works. The
//! entries of a batch are in flight before the backend sees them, so that a completion from inside `submit` finds
//! them; they cannot retire before the submission has returned (`Queue::issued`).
//!
//! A submission may stop short. What was not accepted goes back to the head of the queue, in order, as if it had
//! never left: the native waits it was given are forgotten, the events it held are let go.

use super::Shared;
use super::room::BATCH;
use super::state::{Core, Effect, InFlight, Lane, NOBODY, OpState, Scratch};
use crate::backend::{Backend, Batch, Item, NativeWait, NativeWaits, Stop, Submitted, Transition, WaitClass};
use crate::failure::{Code, Failure, Origin};
use crate::ids::Ticket;
use crate::ring::take_first;
use crate::sabotage::{Defect, sabotaged};
use crate::slab::Key;
use crate::sync::Guard;

/// How many operations, barriers that ride along included, one turn takes off a queue.
const TURN: usize = 256;

/// How many of these the device has something to do with.
fn native<B: Backend>(items: &[Item<B>]) -> usize {
    items.iter().filter(|item| !item.rides).count()
}

impl<B: Backend> Shared<B> {
    /// Issues one batch of the next queue that has something to issue.
    pub(super) fn issue_step<'a>(&'a self, mut core: Guard<'a, Core<B>>) -> Guard<'a, Core<B>> {
        let Some(index) = core.issuable.pop_front() else { return core };
        let queue = core.queue(index);
        queue.in_issuable = false;
        if queue.issuing || queue.room.is_full() || queue.ready.is_empty() {
            return core;
        }
        queue.issuing = true;
        let id = queue.id;
        core.issuers += 1;

        core = self.provide_events(core, index);
        let mut scratch = std::mem::take(&mut core.queue(index).scratch);
        if core.device_of(index).lost.is_none() {
            core.fill(index, &mut scratch);
        }
        let reports = core.device_of(index).reports;
        let mut answer = Submitted::all();
        if !scratch.items.is_empty() {
            core.stats.batches += 1;
            core.take_room(index, native(&scratch.items));
            let shown = scratch.items.last().map_or(0, |item| item.epoch);
            core.queue(index).shown = shown;
            drop(core);
            let mut batch = Batch { items: &mut scratch.items, waits: &scratch.waits };
            let result = self.foreign(|| self.backend.submit(id, &mut batch));
            core = self.core.lock();
            answer = result.unwrap_or_else(|failure| {
                core.stats.panics += 1;
                Submitted::lost(failure)
            });
        }
        if scratch.items.is_empty() {
            core.announce(index);
        } else {
            core.settle(index, &mut scratch, answer, reports);
        }
        core.issuers -= 1;
        let lost = core.device_of(index).lost.is_some();
        let queue = core.queue(index);
        queue.scratch = scratch;
        queue.issuing = false;
        let (more, due) = (!queue.ready.is_empty(), queue.is_due());
        if more {
            core.mark_issuable(index);
        }
        if due || lost {
            core.mark_dirty(index);
        }
        core
    }

    /// Makes sure that the next batch finds its events, if its device can make them.
    fn provide_events<'a>(&'a self, mut core: Guard<'a, Core<B>>, index: u32) -> Guard<'a, Core<B>> {
        let queue = core.queue(index);
        if !queue.watched {
            return core;
        }
        let wanted = queue.ready.len().min(BATCH);
        let id = queue.id.device();
        let device = core.device_of(index);
        if device.native_waits != NativeWaits::Events || device.events_exhausted {
            return core;
        }
        for _ in device.events.idle()..wanted {
            drop(core);
            let event = self.foreign(|| self.backend.create_event(id));
            core = self.core.lock();
            match event {
                Ok(Ok(event)) => core.device_of(index).events.add(event),
                Ok(Err(_)) | Err(_) => {
                    core.device_of(index).events_exhausted = true;
                    break;
                }
            }
        }
        core
    }
}

impl<B: Backend> Core<B> {
    /// Takes ordered operations off the queue into a batch and into flight.
    fn fill(&mut self, index: u32, scratch: &mut Scratch<B>) {
        let most = self.queue(index).room.batch();
        if most == 0 {
            // Something of the queue's own has yet to end, and makes room.
            self.device_of(index).any_full = true;
            return;
        }
        for _ in 0..TURN {
            if scratch.items.len() == most {
                break;
            }
            let Some(key) = take_first(&mut self.queue(index).ready) else { break };
            if self.ops.get(key).is_none_or(|op| op.state != OpState::Ordered) {
                continue;
            }
            let first_wait = scratch.waits.len();
            let mut all_reached = true;
            if let Err(failure) = self.resolve(index, key, scratch, &mut all_reached) {
                self.release_events(key);
                scratch.waits.truncate(first_wait);
                self.end(key, Some(failure), None, None);
                continue;
            }
            let waits = first_wait..scratch.waits.len();
            let Some(op) = self.ops.get_mut(key) else { continue };
            let (epoch, lane) = (op.epoch, op.lane);
            if lane == Lane::Barrier && waits.is_empty() {
                if all_reached {
                    self.stats.host_barriers += 1;
                    self.end(key, None, None, None);
                } else {
                    self.ride_along(index, key, epoch);
                }
                continue;
            }
            // What was done ahead has its work only to be reclaimed.
            let work = if lane == Lane::Barrier { None } else { op.work.take() };
            if lane == Lane::Edge && waits.is_empty() {
                scratch.items.push(Item { op: key, epoch, work, event: None, waits, rides: true });
                self.ride_along(index, key, epoch);
                continue;
            }
            let mut event = None;
            if self.queue_ref(index).watched {
                let device = self.device_of(index);
                // Once a device runs out of events its queues do without for good. Then, of a queue's signals under
                // way, those without an event all follow those with one, and whatever was covered stays covered.
                if device.native_waits == NativeWaits::Events
                    && !device.events_exhausted
                    && let Some((number, handle)) = device.events.acquire()
                {
                    event = Some((number, handle.clone()));
                }
            }
            let number = event.as_ref().map(|(number, _)| *number);
            let Some(op) = self.op(key) else { continue };
            op.state = OpState::Issued;
            op.event = number;
            let event = event.map(|(_, handle)| handle);
            scratch.items.push(Item { op: key, epoch, work, event, waits, rides: false });
            self.queue(index).in_flight.push_back(InFlight {
                op: key,
                epoch,
                native: true,
                cover: epoch,
                event: number,
                failure: None,
            });
        }
    }

    /// A barrier or an edge that waits for nothing but earlier work of its queue needs no work of its own: it ends with
    /// the work before it, and whoever wants to wait for it natively waits for that.
    fn ride_along(&mut self, index: u32, key: Key, epoch: u64) {
        let queue = self.queue(index);
        let (cover, event) = match queue.in_flight.back() {
            Some(before) => (before.cover, before.event),
            None => (queue.retired, None),
        };
        if let Some(event) = event {
            self.device_of(index).events.retain(event);
        }
        if let Some(op) = self.op(key) {
            op.state = OpState::Issued;
            op.event = event;
        }
        self.queue(index).in_flight.push_back(InFlight {
            op: key,
            epoch,
            native: false,
            cover,
            event,
            failure: None,
        });
    }

    /// Settles what each wait of an operation costs, now that it goes to its device.
    fn resolve(
        &mut self,
        index: u32,
        key: Key,
        scratch: &mut Scratch<B>,
        all_reached: &mut bool,
    ) -> Result<(), Failure> {
        let first_wait = scratch.waits.len();
        let (count, epoch) = self.ops.get(key).map_or((0, 0), |op| (op.waits.len(), op.epoch));
        for position in 0..count {
            let Some(wait) = self.ops.get(key).and_then(|op| op.waits.get(position)).copied() else { break };
            let Some(slot) = self.slots.get(wait.slot) else { continue };
            if slot.value >= wait.value {
                self.observe_wait(key, wait.slot, wait.value, WaitClass::Reached);
                continue;
            }
            if let Some(failure) = slot.failure.clone() {
                return Err(failure);
            }
            if wait.via == index {
                *all_reached = false;
                self.stats.same_queue += 1;
                if B::OBSERVES
                    && let Some(cover) = self.coverage(wait.slot, wait.value, index, epoch)
                {
                    debug_assert_eq!(cover.queue, index, "a wait lost its place in the queue's order");
                    self.observe_wait(key, wait.slot, wait.value, cover.class);
                }
                continue;
            }
            let Some(cover) = self.coverage(wait.slot, wait.value, index, epoch) else {
                debug_assert!(false, "an ordered operation has a wait that nothing covers");
                return Err(Failure::new(
                    Code::Internal,
                    "an ordered operation has a wait that nothing covers",
                ));
            };
            *all_reached = false;
            let mut event = None;
            match cover.class {
                WaitClass::Native { .. } | WaitClass::Peer { .. } => {
                    if self.add_native_wait(cover, scratch, first_wait) {
                        event = cover.event;
                    }
                }
                WaitClass::SameQueue { .. } => self.stats.same_queue += 1,
                _ => self.stats.dominated += 1,
            }
            if sabotaged(Defect::EventNotHeld) {
                event = None;
            }
            if let Some(event) = event {
                self.device_of(cover.queue).events.retain(event);
            }
            if let Some(record) = self.op(key).and_then(|op| op.waits.get_mut(position)) {
                record.via = cover.queue;
                record.event = event;
            }
            self.observe_wait(key, wait.slot, wait.value, cover.class);
        }
        Ok(())
    }

    /// Adds a native wait to the batch, unless the batch waits for that point or a later one already. Says whether
    /// the operation now depends on the event itself.
    fn add_native_wait(
        &mut self,
        cover: super::order::Cover,
        scratch: &mut Scratch<B>,
        first_wait: usize,
    ) -> bool {
        let source = self.queue_ref(cover.queue);
        let point = source.point(cover.epoch);
        let device = source.id.device();
        let latest = scratch.waits.iter().rev().find(|wait| wait.point.queue == point.queue);
        if latest.is_some_and(|latest| latest.point.epoch >= point.epoch) {
            self.stats.dominated += 1;
            return false;
        }
        match cover.class {
            WaitClass::Peer { .. } => self.stats.peer += 1,
            _ => self.stats.native += 1,
        }
        let event = cover.event.and_then(|event| self.devices.get(device)?.events.get(event).cloned());
        let wait = NativeWait { point, event };
        let own = scratch.waits.get_mut(first_wait..).unwrap_or(&mut []);
        match own.iter_mut().find(|earlier| earlier.point.queue == point.queue) {
            Some(earlier) => *earlier = wait,
            None => scratch.waits.push(wait),
        }
        true
    }

    fn observe_wait(&mut self, key: Key, slot: Key, value: u64, class: WaitClass) {
        if B::OBSERVES {
            let owned = self.slots.get(slot).is_some_and(|slot| !slot.foreign);
            let timeline = owned.then_some(crate::ids::TimelineKey { engine: self.engine, key: slot });
            self.effects.then(Effect::Observe(Transition::Wait {
                ticket: Ticket(key),
                timeline,
                value,
                class,
            }));
        }
    }

    /// Lets go of the events that an operation was to wait for and record.
    fn release_events(&mut self, key: Key) {
        let Some(op) = self.ops.get_mut(key) else { return };
        let own = op.event.take();
        let queue = op.queue;
        let count = op.waits.len();
        if let Some(event) = own {
            self.device_of(queue).events.release(event);
        }
        for position in 0..count {
            let Some(wait) = self.ops.get_mut(key).and_then(|op| op.waits.get_mut(position)) else { break };
            let via = std::mem::replace(&mut wait.via, NOBODY);
            if let Some(event) = wait.event.take() {
                self.device_of(via).events.release(event);
            }
        }
    }

    /// Takes in what the backend answered.
    fn settle(&mut self, index: u32, scratch: &mut Scratch<B>, answer: Submitted, reports: u64) {
        let Submitted { accepted, stop } = answer;
        let accepted = accepted.min(scratch.items.len());
        let lost = self.device_of(index).lost.clone();
        for (position, item) in scratch.items.iter_mut().enumerate() {
            if item.work.is_some()
                && let Some(op) = self.op(item.op)
            {
                op.work = item.work.take();
            }
            if position < accepted {
                for wait in scratch.waits.get(item.waits.clone()).unwrap_or(&[]) {
                    let producer = wait.point.queue.index();
                    if let Some(known) = self.queue(index).known.get_mut(producer) {
                        *known = (*known).max(wait.point.epoch);
                    }
                }
            }
        }
        let refused = scratch.items.get(accepted).map(|item| item.epoch);
        let refusals = native(scratch.items.get(accepted..).unwrap_or(&[]));
        scratch.items.clear();
        scratch.waits.clear();

        if lost.is_some() {
            // Whatever it took, the next look at this queue sweeps it out.
            return;
        }
        if let Some(refused) = refused {
            self.give_room(index, refusals);
            let queue = self.queue(index);
            queue.shown = queue.shown.min(refused - 1);
            let fails = matches!(stop, Some(Stop::Failed(_)));
            let key = self.take_back(index, refused, fails);
            match stop {
                Some(Stop::Failed(failure)) => {
                    if let Some(key) = key {
                        self.doom(key, &failure);
                    }
                }
                Some(Stop::Lost(failure)) => {
                    self.announce(index);
                    self.lose(self.queue_ref(index).id.device(), failure);
                    return;
                }
                Some(Stop::Full) | None => self.wait_for_room(index, reports),
            }
        } else if let Some(Stop::Lost(failure)) = stop {
            self.lose(self.queue_ref(index).id.device(), failure);
            return;
        } else {
            self.queue(index).room.accepted();
        }
        self.announce(index);
    }

    /// Puts everything from `refused` on back at the head of the queue; the first one stays out if it failed.
    fn take_back(&mut self, index: u32, refused: u64, fails: bool) -> Option<Key> {
        while self.queue(index).in_flight.back().is_some_and(|entry| entry.epoch >= refused) {
            let Some(entry) = self.queue(index).in_flight.pop_back() else { break };
            self.release_events(entry.op);
            if let Some(op) = self.op(entry.op) {
                op.state = OpState::Ordered;
            }
            if entry.epoch == refused && fails {
                return Some(entry.op);
            }
            self.queue(index).ready.push_front(entry.op);
        }
        None
    }

    /// The device has no room. Something of it that ends makes room; if nothing can end any more, the next piece of
    /// work is what it cannot take.
    fn wait_for_room(&mut self, index: u32, reports: u64) {
        let device = self.device_of(index);
        if device.outstanding > 0 {
            device.any_full = true;
            self.queue(index).room.refused();
            return;
        }
        if device.reports != reports {
            // What took the room has ended meanwhile.
            return;
        }
        let id = self.queue_ref(index).id;
        if let Some(key) = self.queue(index).ready.pop_front() {
            let failure = Failure::with_origin(
                Code::ResourceExhausted,
                Origin::Operation,
                format!("{id} has no room for the operation although nothing is in flight on its device"),
            );
            self.doom(key, &failure);
        }
    }

    /// What was accepted can be waited for natively now: tells the queues that can.
    fn announce(&mut self, index: u32) {
        let queue = self.queue(index);
        let before = queue.issued;
        let Some(last) = queue.in_flight.back().map(|entry| entry.epoch) else { return };
        if last <= before {
            return;
        }
        queue.issued = last;
        let watched = queue.watched;
        let length = queue.in_flight.len();
        let fresh = queue.in_flight.iter().rev().take_while(|entry| entry.epoch > before).count();
        let first = length - fresh;
        if !watched && !B::OBSERVES {
            return;
        }
        let needs_events = self.needs_events(self.queue_ref(index).id.device());
        for position in first..length {
            let Some(entry) = self.queue_ref(index).in_flight.get(position) else { break };
            let (key, epoch, recorded) = (entry.op, entry.epoch, entry.event.is_some());
            if B::OBSERVES {
                let point = self.queue_ref(index).point(epoch);
                self.effects.then(Effect::Observe(Transition::Issued { ticket: Ticket(key), point }));
            }
            // Where the event is missing only the host can tell.
            if !watched || (needs_events && !recorded) {
                continue;
            }
            let signals = self.ops.get(key).map_or(0, |op| op.signals.len());
            for signal in 0..signals {
                if let Some((slot, value)) = self.signal(key, signal) {
                    self.cover_others(slot, index, value);
                }
            }
        }
    }
}
