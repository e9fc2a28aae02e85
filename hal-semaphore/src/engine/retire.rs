//! From a device's report to the end of an operation: in queue order, after everything it waited for.
//!
//! An operation that waited natively for another queue may be reported before the one it waited for. It does not
//! retire before it: else a host thread could see the effect before the cause. A queue whose oldest operation is in
//! that position is *gated* on the timeline in question, which the other queue's retirement, no more than a report
//! away, opens.
//!
//! Whether an operation failed is settled here, too: its own report, or else the failure of something it waited for
//! without the host (its inputs were never made, whatever its device thinks). What has ended is ended here one after the
//! other, so that everything behind a failure sees what it did; where the backend finishes what its device has ended, a
//! batch goes to it without the lock, and ends with the first failure for the same reason.

use super::Shared;
use super::state::{Core, HOST, NOBODY, Retiring, Target};
use crate::backend::Backend;
use crate::error::CompletionError;
use crate::failure::Failure;
use crate::ids::{Point, QueueId};
use crate::ring::take_first;
use crate::sabotage::{Defect, sabotaged};
use crate::slab::Key;
use crate::sync::Guard;

/// How many operations retire in one turn.
const TURN: usize = 256;

impl<B: Backend> Shared<B> {
    /// Retires what has ended on the next queue where something may have.
    pub(super) fn retire_step<'a>(&'a self, mut core: Guard<'a, Core<B>>) -> Guard<'a, Core<B>> {
        let Some(index) = core.dirty.pop_front() else { return core };
        let queue = core.queue(index);
        queue.in_dirty = false;
        if queue.retiring {
            return core;
        }
        if !B::FINISHES {
            core.retire(index);
            return core;
        }
        queue.retiring = true;
        let mut collected = std::mem::take(&mut queue.collected);
        loop {
            if core.device_of(index).lost.is_some() {
                core.sweep(index);
                break;
            }
            core.collect(index, &mut collected);
            if collected.is_empty() {
                break;
            }
            drop(core);
            let panicked = self.finish(&mut collected);
            core = self.core.lock();
            if let Some(failure) = panicked {
                core.stats.panics += 1;
                let device = core.queue_ref(index).id.device();
                core.lose(device, failure);
            }
            core.apply(index, &mut collected);
        }
        let queue = core.queue(index);
        queue.collected = collected;
        queue.retiring = false;
        core
    }

    fn finish(&self, collected: &mut [Retiring<B::Work>]) -> Option<Failure> {
        let mut panicked = None;
        for retiring in collected.iter_mut().filter(|retiring| retiring.native) {
            let outcome = retiring.failure.as_ref().map_or(Ok(()), Err);
            let result =
                self.foreign(|| self.backend.finish(retiring.point, retiring.work.as_mut(), outcome));
            if let Err(failure) = result {
                retiring.failure.get_or_insert(failure.clone());
                panicked = Some(failure);
            }
        }
        panicked
    }
}

impl<B: Backend> Core<B> {
    /// A backend's report. See [`Completer`](crate::backend::Completer).
    pub(super) fn report(
        &mut self,
        id: QueueId,
        epoch: u64,
        failure: Option<Failure>,
    ) -> Result<(), CompletionError> {
        let index = id.index;
        if self.queues.get(id.index()).is_none_or(|queue| queue.id != id) {
            return Err(CompletionError::UnknownQueue { index: id.index(), queues: self.queues.len() });
        }
        let queue = self.queue(index);
        if epoch > queue.shown {
            return Err(CompletionError::NotSubmitted { queue: id, epoch, submitted: queue.shown });
        }
        if let Some(failure) = failure {
            let at = queue.in_flight.partition_point(|entry| entry.epoch < epoch);
            if let Some(entry) = queue.in_flight.get_mut(at).filter(|entry| entry.epoch == epoch) {
                entry.failure.get_or_insert(failure);
            }
        }
        queue.completed = queue.completed.max(epoch);
        self.device_of(index).reports += 1;
        self.mark_dirty(index);
        Ok(())
    }

    /// The backend is handed so much of a queue.
    pub(super) fn take_room(&mut self, index: u32, count: usize) {
        self.queue(index).room.take(count);
        self.device_of(index).outstanding += count;
    }

    /// So much of a queue came back, or has ended.
    pub(super) fn give_room(&mut self, index: u32, count: usize) {
        self.queue(index).room.give(count);
        self.device_of(index).outstanding -= count;
    }

    /// The queues of the device may have room again: something has ended, or the device says so (`asked`).
    pub(super) fn make_room(&mut self, device: usize, asked: bool) {
        let Some(spec) = self.devices.get_mut(device) else { return };
        if !std::mem::take(&mut spec.any_full) {
            return;
        }
        for index in spec.first_queue..spec.first_queue + spec.queues {
            if self.queue(index).room.resume(asked) {
                self.mark_issuable(index);
            } else if self.queue(index).room.is_full() {
                self.device_of(index).any_full = true;
            }
        }
    }

    /// Ends what has ended on a queue.
    fn retire(&mut self, index: u32) {
        if self.device_of(index).lost.is_some() {
            self.sweep(index);
            return;
        }
        while let Some(ended) = self.ended(index, 0) {
            self.leave_queue(index, ended.point, ended.native);
            self.end(ended.op, ended.failure, Some(ended.point), None);
        }
        self.make_room(self.queue_ref(index).id.device(), false);
    }

    /// The operation in flight with number `at` of the queue, if it has ended and so has whatever it waited for.
    fn ended(&mut self, index: u32, at: usize) -> Option<RetiringOp> {
        let queue = self.queue_ref(index);
        if queue.gated {
            return None;
        }
        let entry = queue.in_flight.get(at)?;
        if entry.epoch > queue.issued || !entry.has_ended(queue.completed) {
            return None;
        }
        let (key, point, native) = (entry.op, queue.point(entry.epoch), entry.native);
        let mut failure = entry.failure.clone();
        let count = self.ops.get(key).map_or(0, |op| op.waits.len());
        for position in 0..count {
            let Some(wait) = self.ops.get(key).and_then(|op| op.waits.get(position)).copied() else {
                break;
            };
            if wait.via == NOBODY {
                continue;
            }
            let Some(slot) = self.slots.get(wait.slot) else { continue };
            if slot.value >= wait.value {
                continue;
            }
            if let Some(cause) = &slot.failure {
                failure.get_or_insert_with(|| cause.clone());
            } else if wait.via != index && !sabotaged(Defect::RetireOutOfOrder) {
                self.park(wait.slot, HOST, wait.value, Target::Gate(index));
                self.queue(index).gated = true;
                return None;
            }
        }
        Some(RetiringOp { op: key, point, native, failure })
    }

    /// The oldest operation in flight is on its way out of its queue.
    fn leave_queue(&mut self, index: u32, point: Point, native: bool) {
        let queue = self.queue(index);
        take_first(&mut queue.in_flight);
        queue.retired = point.epoch;
        if native {
            self.give_room(index, 1);
        }
    }

    /// Takes off the queue's head what has ended, up to and including the first that failed.
    fn collect(&mut self, index: u32, collected: &mut Vec<Retiring<B::Work>>) {
        while collected.len() < TURN {
            let Some(RetiringOp { op, point, native, failure }) = self.ended(index, collected.len()) else {
                return;
            };
            let work = self.op(op).and_then(|op| op.work.take());
            let last = failure.is_some();
            collected.push(Retiring { op, point, native, work, failure });
            if last {
                return;
            }
        }
    }

    /// Ends what was collected.
    fn apply(&mut self, index: u32, collected: &mut Vec<Retiring<B::Work>>) {
        for Retiring { op, point, native, work, failure } in collected.drain(..) {
            self.leave_queue(index, point, native);
            self.end(op, failure, Some(point), work);
        }
        self.make_room(self.queue_ref(index).id.device(), false);
    }
}

/// An operation that can be ended, and how.
struct RetiringOp {
    op: Key,
    point: Point,
    native: bool,
    failure: Option<Failure>,
}
