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

use super::admit::CoveredWaits;
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
        let mut covered = CoveredWaits::new();
        self.shared.promise_each(&op.signals, promise, &mut covered, self.agenda);
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
        let (key, epoch) = (item.op, item.epoch);
        let reports = self.device.reports(self.shared.queues());
        let last_native = std::mem::replace(&mut self.state.last_native, epoch);
        self.state.issuing = true;
        self.state.shown = epoch;
        self.state.stats.batches += 1;
        self.take_credits(1);
        let transitions = B::OBSERVES.then(|| std::mem::take(&mut self.state.effects.transitions));
        let id = self.queue.id;
        let refusal;
        (self, refusal) = self.without(|shared, _| {
            if let Some(transitions) = transitions {
                shared.observe_each(transitions);
            }
            let mut batch = Batch { items: std::slice::from_mut(item), waits: &[] };
            let answer = shared.foreign_counted(|| shared.backend.submit(id, &mut batch));
            answer.unwrap_or_else(Submitted::lost).unless_all_of(1)
        });
        if refusal.is_none() && self.state.lost.is_none() {
            if item.work.is_some() {
                self.live(key).work = item.work.take();
            }
            self.state.window.accepted();
            if self.move_issued(epoch) {
                self.announce(key, self.promise(epoch));
            }
        } else {
            let item = std::mem::replace(item, Item::of(None));
            let answer = refusal.unwrap_or_else(Submitted::all);
            self = self.take_answer_of_one(item, answer, reports, last_native);
        }
        self.state.issuing = false;
        self
    }

    /// Takes in what the backend answered to a batch of this one, which it has not simply taken.
    #[cold]
    fn take_answer_of_one(
        mut self,
        item: Item<B>,
        answer: Submitted,
        reports: Option<u64>,
        last_native: u64,
    ) -> Self {
        let mut scratch = self.state.scratch.take().unwrap_or_default();
        scratch.items.push(item);
        self = self.take_answer(&mut scratch, answer, reports, last_native);
        self.state.scratch = Some(scratch);
        self
    }
}
