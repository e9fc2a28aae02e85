//! Registering and releasing timepoints: what a signal, a native event or a failure sets free.
//!
//! Releasing never runs anything and never recurses: it counts down, and puts what has become runnable on a list
//! that [`pump`](super::Shared) works off. A chain of a million operations therefore drains on one small stack.

use super::state::{Core, HOST, HostOutcome, OpState, SPARE, Slot, Target};
use crate::backend::Backend;
use crate::failure::Failure;
use crate::sabotage::{Defect, sabotaged};
use crate::slab::Key;

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
        self.collect_slot(key);
    }

    pub(super) fn collect_slot(&mut self, key: Key) {
        if self.slots.get(key).is_none_or(|slot| slot.owned || slot.users > 0) {
            return;
        }
        let Some(mut slot) = self.slots.remove(key) else { return };
        self.effects.unwatches.extend(slot.watch.take());
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
        // Targets only count down and queue up, so nothing can join the lists while they are walked.
        let lists = slot.lists.len();
        for position in 0..lists {
            while let Some((_, target)) = self.slots.get_mut(key).and_then(|slot| slot.pop(position, value)) {
                self.release_reached(target, value);
            }
        }
        self.collect_slot(key);
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

    /// A queue's signal of `value` is under way where `list` can rely on it: releases what it covers there.
    pub(super) fn cover(&mut self, key: Key, list: u32, value: u64) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        if slot.failure.is_some() {
            return;
        }
        let Some(position) = slot.lists.iter().position(|(queue, _)| *queue == list) else { return };
        while let Some((wanted, target)) = self.slots.get_mut(key).and_then(|slot| slot.pop(position, value))
        {
            let Target::Op(op) = target else { continue };
            self.count_down(op);
            if self.ops.get(op).is_some_and(|op| op.remaining > 0)
                && let Some(slot) = self.slots.get_mut(key)
            {
                slot.push(HOST, wanted, Target::Covered(op));
            }
        }
    }

    /// The lists of the slot that some queue has waits in.
    pub(super) fn waiting_queue(&self, key: Key, position: usize) -> Option<u32> {
        let (queue, _) = self.slots.get(key)?.lists.get(position)?;
        Some(*queue)
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
            while let Some((_, target)) =
                self.slots.get_mut(key).and_then(|slot| slot.pop(position, u64::MAX))
            {
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
            self.effects.callbacks.push((record.callback, state));
            self.drop_user(record.slot);
        }
    }

    pub(super) fn host_reached(&mut self, key: Key, index: usize) {
        let Some(wait) = self.host_waits.get_mut(key) else { return };
        wait.remaining = wait.remaining.saturating_sub(1);
        if wait.outcome.is_none() && (wait.any || wait.remaining == 0) {
            wait.outcome = Some(HostOutcome::Reached(index));
            self.effects.wakes.push(wait.pending.clone());
        }
    }

    pub(super) fn host_failed(&mut self, key: Key, index: usize, failure: &Failure) {
        let Some(wait) = self.host_waits.get_mut(key) else { return };
        if wait.outcome.is_none() {
            wait.outcome = Some(HostOutcome::Failed(index, failure.clone()));
            self.effects.wakes.push(wait.pending.clone());
        }
    }
}
