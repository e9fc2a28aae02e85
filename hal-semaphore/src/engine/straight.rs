// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The straight way, a fast path: an operation that can go to its device at once is issued without the queue's lists.
//!
//! An operation goes from list to list: it is put on `runnable` to be routed, on `ready` to be issued, and each station looks
//! again at what the one before has found. Where the queue has nothing else to do, and every wait is reached or left to the
//! order of the queue, the thread that brings the operation would put it on each list and take it off at once. It makes the
//! same steps one after the other instead, without the lists: admitted, ordered and in flight under one hold of the lock,
//! which it lets go of to hand the operation over.
//!
//! Whether an operation goes this way is decided before it has a place ([`Turn::is_clear`], [`Op::waits_for_nothing_but`]). Once it is in flight nothing
//! is special about it: what its device does not take goes back to the head of `ready`, as it would from any batch, and what it
//! sets free is worked off by [`Turn::work`].

#[cfg(doc)]
use super::queue::Op;
use super::queue::{InFlight, OpState, Turn};
use super::slot::Promise;
use crate::backend::{Backend, Batch, Item, Submitted, Transition, WaitClass};
use crate::slab::Key;

impl<B: Backend> Turn<'_, B> {
    /// Whether an operation that comes now is the only thing that there is to do for the queue.
    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        let state = &self.state;
        state.runnable.is_empty()
            && state.ready.is_empty()
            && !state.issuing
            && !state.window.is_full()
            && self.may_begin()
            && state.effects.is_empty()
            && !self.records_events()
    }

    /// Gives an operation its place in its queue and in flight.
    #[inline(always)]
    pub(super) fn put_in_flight(&mut self, key: Key, item: &mut Item<B>) {
        let epoch = self.next_place();
        let promise = self.promise(epoch);
        let state = &mut *self.state;
        let op = state.ops.live_mut(key);
        (op.state, op.epoch) = (OpState::Issued, epoch);
        state.stats.same_queue += op.waits.len() as u64;
        let covered = self.shared.promise_each(&op.signals, promise, self.agenda);
        self.has_place(key, epoch, &covered);
        if B::OBSERVES {
            self.tell_of_own_waits(key);
        }
        let entry = InFlight { op: key, epoch, on_device: true, cover: epoch, event: None, failure: None };
        self.state.in_flight.push_back(entry);
        (item.op, item.epoch) = (key, epoch);
    }

    /// What the signals of the operation at `epoch` promise: it is waited for by its own place.
    fn promise(&self, epoch: u64) -> Promise {
        Promise { value: 0, queue: self.index, epoch, cover: epoch, event: None }
    }

    /// Tells what the waits of an operation, which are left to queue order, are when it goes to its device.
    fn tell_of_own_waits(&mut self, key: Key) {
        let ticket = self.ticket(key);
        let state = &mut *self.state;
        let waits = &state.ops.live(key).waits;
        let covers = waits.iter().filter_map(|wait| Some((wait, wait.cover()?)));
        state.effects.transitions.extend(covers.map(|(wait, cover)| {
            let class = WaitClass::SameQueue { producer: self.queue.point(cover.epoch) };
            Transition::Wait { ticket, timeline: Some(wait.slot.key()), value: wait.value, class }
        }));
    }

    /// Hands the one operation that was [put in flight](Turn::put_in_flight) to its device.
    #[inline(always)]
    pub(super) fn hand_over(mut self, item: &mut Item<B>) -> Self {
        let reports = self.device.reports(self.shared.queues());
        let last_native = std::mem::replace(&mut self.state.last_native, item.epoch);
        self.state.issuing = true;
        self.state.shown = item.epoch;
        self.state.stats.batches += 1;
        self.take_credits(1);
        let transitions = B::OBSERVES.then(|| std::mem::take(&mut self.state.effects.transitions));
        let id = self.queue.id;
        let answer;
        (self, answer) = self.without(|shared, _| {
            if let Some(transitions) = transitions {
                shared.observe_each(transitions);
            }
            let mut batch = Batch { items: std::slice::from_mut(item), waits: &[] };
            shared.foreign_counted(|| shared.backend.submit(id, &mut batch)).unwrap_or_else(Submitted::lost)
        });
        if answer.stop.is_none() && answer.accepted > 0 && self.state.lost.is_none() {
            if item.work.is_some() {
                self.live(item.op).work = item.work.take();
            }
            self.state.window.accepted();
            if self.move_issued(item.epoch) {
                self.announce(item.op, self.promise(item.epoch));
            }
        } else {
            let mut scratch = self.state.scratch.take().unwrap_or_default();
            scratch.items.push(std::mem::replace(item, Item::of(None)));
            self = self.take_answer(&mut scratch, answer, reports, last_native);
            self.state.scratch = Some(scratch);
        }
        self.state.issuing = false;
        self
    }
}
