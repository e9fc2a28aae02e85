// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The fast path: an operation whose queue is idle is submitted without the queue's lists.
//!
//! Usually an operation is put on `runnable` to be routed, then on `queued` to be submitted, and each step
//! checks again what the one before found. If the queue has nothing else to do and every wait is reached or
//! satisfied by queue order, the submitting thread takes the same steps without the lists: it admits the
//! operation, queues it and puts it in flight under one hold of the lock, and then releases the lock to hand it
//! over.
//!
//! [`QueueGuard::is_clear`] and [`Op::waits_for_nothing_but`] decide before the operation has its epoch. Once
//! it is in flight, it is like any other: a full device sends it back to the head of `queued`, and
//! [`QueueGuard::run`] does what follows.

use super::flight::InFlight;
#[cfg(doc)]
use super::op::Op;
use super::op::OpState;
use super::queue::QueueGuard;
use super::timeline_state::Promise;
use crate::backend::{Backend, BatchItem, Submitted};
use crate::slab::Key;

impl<B: Backend> QueueGuard<'_, B> {
    /// True if a new operation would be the only work of the queue.
    #[inline]
    pub(super) fn is_clear(&self) -> bool {
        let state = &self.state;
        state.order.is_empty()
            && !state.flight.is_submitting()
            && !state.window.is_full()
            && state.ending.may_start()
            && !state.host.has_effects()
            && !self.device.records_events()
    }

    /// Gives an operation its epoch and puts it in flight.
    #[inline(always)]
    pub(super) fn enqueue_in_flight(&mut self, key: Key, item: &mut BatchItem<B>) {
        let epoch = self.give_epoch(key, OpState::Submitted);
        let state = &mut *self.state;
        state.waits.same_queue += state.ops.live(key).waits.len() as u64;
        state.flight.push(InFlight::native(key, epoch));
        (item.op, item.epoch) = (key, epoch);
    }

    /// Hands the operation that was [put in flight](QueueGuard::enqueue_in_flight) to its device.
    #[inline(always)]
    pub(super) fn hand_over(mut self, item: &mut BatchItem<B>) -> Self {
        let (key, epoch) = (item.op, item.epoch);
        let reports = self.shared.reports();
        self.state.flight.begin_submission();
        let refusal;
        (self, refusal) = self.offer(std::slice::from_mut(item), &[]);
        if refusal.is_none() && !self.state.ending.is_lost() {
            if item.work.is_some() {
                self.live(key).work = item.work.take();
            }
            self.state.window.accepted();
            if self.advance_submitted(epoch) {
                let promise =
                    Promise { value: 0, queue: self.index, epoch, native_epoch: epoch, event: None };
                self.notify_listeners(key, promise);
            }
        } else {
            let item = std::mem::replace(item, BatchItem::of(None));
            self = self.take_answer_of_one(item, refusal.unwrap_or_else(Submitted::all), reports);
        }
        self.state.flight.end_submission();
        self
    }

    /// Applies an answer other than "all accepted".
    #[cold]
    fn take_answer_of_one(mut self, item: BatchItem<B>, answer: Submitted, reports: Option<u64>) -> Self {
        let mut scratch = self.state.scratch.take().unwrap_or_default();
        scratch.items.push(item);
        self = self.take_answer(&mut scratch, answer, reports);
        self.state.scratch = Some(scratch);
        self
    }
}
