//! Registering and releasing timepoints: what a signal, a native event or a failure sets free.
//!
//! Releasing never runs anything and never recurses: it counts down, and puts what has become runnable on a list
//! that [`pump`](super::Shared) works off. A chain of a million operations therefore drains on one small stack.

use super::state::{Core, Effect, HOST, HostOutcome, KEPT, OpState, SPARE, Slot, Target};
use crate::backend::Backend;
use crate::failure::Failure;
use crate::ring::take_first;
use crate::sabotage::{Defect, sabotaged};
use crate::slab::Key;
use crate::wait_list::WaitList;

/// Below this many stale entries a list is not worth sweeping.
const SWEEP_AT: usize = 32;

impl<B: Backend> Core<B> {
    pub(super) fn new_slot(&mut self, owned: bool, value: u64) -> Key {
        let mut slot = self.spare.slots.pop().unwrap_or_else(Slot::new);
        slot.owned = owned;
        slot.foreign = !owned;
        slot.value = value;
        self.slots.insert(slot)
    }

    pub(super) fn use_slot(&mut self, key: Key) {
        if let Some(slot) = self.slots.get_mut(key) {
            slot.users += 1;
        }
    }

    /// One user less; the slot goes when nobody is left.
    pub(super) fn drop_user(&mut self, key: Key) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        slot.users = slot.users.saturating_sub(1);
        if slot.users == 0 && !slot.owned {
            self.collect_slot(key);
        }
    }

    pub(super) fn collect_slot(&mut self, key: Key) {
        if self.slots.get(key).is_none_or(|slot| slot.owned || slot.users > 0) {
            return;
        }
        let Some(mut slot) = self.slots.remove(key) else { return };
        if let Some(watch) = slot.watch.take() {
            self.effects.then(Effect::Unwatch(watch));
        }
        if self.spare.slots.len() < SPARE {
            slot.reset();
            self.spare.slots.push(slot);
        }
    }

    /// A user of the slot went before its timepoint was released: the entry it leaves behind is swept out with
    /// others, once they are the larger part.
    pub(super) fn leave_stale(&mut self, key: Key) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        slot.stale += 1;
        let entries: usize = slot.lists.iter().map(|(_, list)| list.len()).sum();
        if slot.stale < SWEEP_AT || slot.stale * 2 < entries {
            return;
        }
        slot.stale = 0;
        let mut lists = std::mem::take(&mut slot.lists);
        for (_, list) in &mut lists {
            list.retain(|target| match *target {
                Target::Op(op) | Target::Covered(op) => self.ops.contains(op),
                Target::Wait { wait, .. } => self.host_waits.contains(wait),
                Target::Callback(callback) => self.callbacks.contains(callback),
                Target::Gate(_) => true,
            });
        }
        if let Some(slot) = self.slots.get_mut(key) {
            slot.lists = lists;
        }
    }

    /// The host or a retired operation has brought the timeline to `value`.
    pub(super) fn reach(&mut self, key: Key, value: u64) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        if slot.failure.is_some() || value <= slot.value {
            return;
        }
        slot.value = value;
        if !slot.releases(value, |_| true) {
            return;
        }
        let mut position = 0;
        let mut lists = slot.lists.len();
        while position < lists {
            while let Some((_, target)) = self.take(key, position, value) {
                self.release_reached(target, value);
            }
            position += usize::from(!self.prune(key, position));
            lists = self.slots.get(key).map_or(0, |slot| slot.lists.len());
        }
    }

    /// Adds a timepoint.
    pub(super) fn park(&mut self, key: Key, list: u32, value: u64, target: Target) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        match slot.lists.iter_mut().find(|(queue, _)| *queue == list) {
            Some((_, list)) => list.push(value, target),
            None => {
                let mut fresh = self.spare.lists.pop().unwrap_or_else(WaitList::new);
                fresh.push(value, target);
                slot.lists.push((list, fresh));
            }
        }
    }

    /// Takes the next target of list number `position` that `reached` releases.
    fn take(&mut self, key: Key, position: usize, reached: u64) -> Option<(u64, Target)> {
        self.slots.get_mut(key)?.lists.get_mut(position)?.1.pop(reached)
    }

    /// Puts list number `position` away if it is empty and there are many. Another list may take its number; says
    /// whether one may have.
    fn prune(&mut self, key: Key, position: usize) -> bool {
        let Some(slot) = self.slots.get_mut(key) else { return false };
        if slot.lists.len() <= KEPT || !slot.lists.get(position).is_some_and(|(_, list)| list.is_empty()) {
            return false;
        }
        let (_, list) = slot.lists.swap_remove(position);
        if self.spare.lists.len() < SPARE {
            self.spare.lists.push(list);
        }
        true
    }

    fn release_reached(&mut self, target: Target, value: u64) {
        match target {
            Target::Op(op) => self.count_down(op),
            Target::Covered(_) => {}
            Target::Gate(queue) => self.open_gate(queue),
            Target::Wait { wait, index } => self.host_reached(wait, index as usize),
            Target::Callback(callback) => self.call_back(callback, Ok(value)),
        }
    }

    /// One wait less; after the last the operation can go.
    fn count_down(&mut self, key: Key) {
        let Some(op) = self.op(key) else { return };
        op.remaining = op.remaining.saturating_sub(1);
        if op.remaining == 0 && op.doom.is_none() {
            self.runnable.push_back(key);
        }
    }

    /// A signal of `value` by `queue` is under way: releases what it covers in the queue itself.
    pub(super) fn cover_own(&mut self, key: Key, queue: u32, value: u64) {
        let Some(slot) = self.slots.get(key) else { return };
        if let Some(position) = slot.lists.iter().position(|(waiting, _)| *waiting == queue) {
            self.cover(key, position, value);
        }
    }

    /// A signal of `value` by `queue` is with its device: releases what it covers in the queues that can wait for it.
    pub(super) fn cover_others(&mut self, key: Key, queue: u32, value: u64) {
        let others = |waiting| waiting != HOST && waiting != queue;
        if self.slots.get(key).is_none_or(|slot| !slot.releases(value, others)) {
            return;
        }
        let mut position = 0;
        while let Some(&(waiting, _)) = self.slots.get(key).and_then(|slot| slot.lists.get(position)) {
            let reaches = others(waiting)
                && self.queue_ref(waiting).reach.get(queue as usize).copied().unwrap_or(false);
            let moved = reaches && self.cover(key, position, value);
            position += usize::from(!moved);
        }
    }

    /// Releases from list number `position` what waits for at most `value`. Says whether another list has taken the
    /// number.
    fn cover(&mut self, key: Key, position: usize, value: u64) -> bool {
        if self.slots.get(key).is_none_or(|slot| slot.failure.is_some()) {
            return false;
        }
        while let Some((wanted, target)) = self.take(key, position, value) {
            let Target::Op(op) = target else { continue };
            self.count_down(op);
            if self.ops.get(op).is_some_and(|op| op.remaining > 0) {
                self.park(key, HOST, wanted, Target::Covered(op));
            }
        }
        self.prune(key, position)
    }

    /// A signal of `value` has its place in `queue`, at `epoch`. Says whether the queue has waits that it covers.
    pub(super) fn put_under_way(&mut self, key: Key, queue: u32, value: u64, epoch: u64) -> bool {
        let Some(slot) = self.slots.get_mut(key) else { return false };
        let signals = match slot.signals.iter_mut().position(|(producer, _)| *producer == queue) {
            Some(position) => slot.signals.get_mut(position),
            None => {
                slot.signals.push((queue, self.spare.under_way.pop().unwrap_or_default()));
                slot.signals.last_mut()
            }
        };
        if let Some((_, signals)) = signals
            && signals.back().is_none_or(|&(last, _)| last < value)
        {
            signals.push_back((value, epoch));
        }
        slot.releases(value, |waiting| waiting == queue)
    }

    /// Nobody needs a signal of `queue` for at most `value` any more.
    pub(super) fn drop_under_way(&mut self, key: Key, queue: u32, value: u64) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        let Some(position) = slot.signals.iter().position(|(producer, _)| *producer == queue) else { return };
        let Some((_, signals)) = slot.signals.get_mut(position) else { return };
        while signals.front().is_some_and(|&(front, _)| front <= value) {
            take_first(signals);
        }
        if signals.is_empty() && slot.signals.len() > KEPT {
            let (_, signals) = slot.signals.swap_remove(position);
            if self.spare.under_way.len() < SPARE {
                self.spare.under_way.push(signals);
            }
        }
    }

    /// The timeline has failed: everything that still waits for it fails with it.
    pub(super) fn fail_slot(&mut self, key: Key, failure: &Failure) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        if slot.failure.is_some() {
            return;
        }
        slot.failure = Some(failure.clone());
        let lists = slot.lists.len();
        for position in 0..lists {
            while let Some((_, target)) = self.take(key, position, u64::MAX) {
                match target {
                    Target::Op(op) | Target::Covered(op) => {
                        self.doom(op, failure);
                    }
                    Target::Gate(queue) => self.open_gate(queue),
                    Target::Wait { wait, index } => self.host_failed(wait, index as usize, failure),
                    Target::Callback(callback) => self.call_back(callback, Err(failure.clone())),
                }
            }
        }
        self.collect_slot(key);
    }

    /// The operation is to end with this failure, unless its device or the host has it already. Says whether.
    pub(super) fn doom(&mut self, key: Key, failure: &Failure) -> bool {
        let Some(op) = self.op(key) else { return false };
        let begun = !matches!(op.state, OpState::Held | OpState::Ordered);
        if begun && !sabotaged(Defect::CancelIgnoresState) {
            return false;
        }
        if op.doom.is_none() {
            op.doom = Some(failure.clone());
            self.runnable.push_back(key);
        }
        true
    }

    fn open_gate(&mut self, queue: u32) {
        self.queue(queue).gated = false;
        self.mark_dirty(queue);
    }

    fn call_back(&mut self, key: Key, state: Result<u64, Failure>) {
        if let Some(record) = self.callbacks.remove(key) {
            self.effects.then(Effect::Call(record.callback, state));
            self.drop_user(record.slot);
        }
    }

    pub(super) fn host_reached(&mut self, key: Key, index: usize) {
        let Some(wait) = self.host_waits.get_mut(key) else { return };
        wait.remaining = wait.remaining.saturating_sub(1);
        if wait.outcome.is_none() && (wait.any || wait.remaining == 0) {
            wait.outcome = Some(HostOutcome::Reached(index));
            self.effects.then(Effect::Wake(wait.pending.clone()));
        }
    }

    pub(super) fn host_failed(&mut self, key: Key, index: usize, failure: &Failure) {
        let Some(wait) = self.host_waits.get_mut(key) else { return };
        if wait.outcome.is_none() {
            wait.outcome = Some(HostOutcome::Failed(index, failure.clone()));
            self.effects.then(Effect::Wake(wait.pending.clone()));
        }
    }
}
