// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The order of a queue's operations until they are in flight: runnable ones, and queued ones by epoch.

use crate::ring::take_first;
use crate::slab::Key;
use std::collections::VecDeque;

/// Fewer ended operations than this among the queued ones are not worth removing.
const SWEEP_AT: usize = 32;

/// See the [module documentation](self).
///
/// # Invariants
///
/// Epochs of `queued` ascend, up to `last_epoch`, and are larger than those in flight. Keys may name operations that
/// have ended, or whose cleanup runs; `queued_ended` counts those in `queued`.
#[derive(Default)]
pub(super) struct Order {
    /// Operations without a blocked wait, and those that are to end.
    runnable: VecDeque<Key>,
    queued: VecDeque<Key>,
    queued_ended: usize,
    /// The last epoch given out.
    last_epoch: u64,
}

impl Order {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.runnable.is_empty() && self.queued.is_empty()
    }

    #[inline]
    pub(super) fn has_runnable(&self) -> bool {
        !self.runnable.is_empty()
    }

    /// The operation has no blocked wait left, or is to end.
    #[inline]
    pub(super) fn push_runnable(&mut self, key: Key) {
        self.runnable.push_back(key);
    }

    #[inline]
    pub(super) fn take_runnable(&mut self) -> Option<Key> {
        take_first(&mut self.runnable)
    }

    /// The next epoch of the queue.
    #[inline]
    pub(super) fn next_epoch(&mut self) -> u64 {
        self.last_epoch += 1;
        self.last_epoch
    }

    #[inline]
    pub(super) fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    /// How many are queued, including those that have ended.
    #[inline]
    pub(super) fn queued_len(&self) -> usize {
        self.queued.len()
    }

    /// The first queued operations.
    pub(super) fn first_queued(&self, most: usize) -> impl Iterator<Item = Key> {
        self.queued.iter().take(most).copied()
    }

    /// The operation has the next epoch.
    #[inline]
    pub(super) fn push_queued(&mut self, key: Key) {
        self.queued.push_back(key);
    }

    /// Returns an operation that was in flight to the head.
    pub(super) fn push_first_queued(&mut self, key: Key) {
        self.queued.push_front(key);
    }

    /// Takes the first queued operation. The caller says if it [had ended](Order::forget_ended).
    #[inline]
    pub(super) fn take_queued(&mut self) -> Option<Key> {
        take_first(&mut self.queued)
    }

    /// An operation that was taken off the queued ones had ended.
    pub(super) fn forget_ended(&mut self) {
        self.queued_ended = self.queued_ended.saturating_sub(1);
    }

    /// Counts a queued operation that has ended, or whose cleanup runs. Removes all of them if they are many and
    /// the larger part.
    pub(super) fn count_ended(&mut self, is_queued: impl Fn(Key) -> bool) {
        self.queued_ended += 1;
        if self.queued_ended >= SWEEP_AT && self.queued_ended * 2 > self.queued.len() {
            self.queued_ended = 0;
            self.queued.retain(|&key| is_queued(key));
        }
    }

    pub(super) fn trim(&mut self) {
        self.runnable.shrink_to_fit();
        self.queued.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets `ends` of `queued` operations end. Returns how many are listed then, and how many of these count as
    /// ended.
    fn queued_after(queued: usize, ends: usize) -> (usize, usize) {
        let (mut order, mut keys) = (Order::default(), crate::slab::Slab::new());
        (0..queued).for_each(|_| order.push_queued(keys.insert(())));
        (0..ends).for_each(|_| order.count_ended(|_| false));
        (order.queued_len(), order.queued_ended)
    }

    #[test]
    fn queued_list_is_swept_when_many_have_ended_and_they_are_the_larger_part() {
        for (queued, ends, left) in
            [(10, 9, (10, 9)), (10, 32, (0, 0)), (1000, 500, (1000, 500)), (1000, 501, (0, 0))]
        {
            assert_eq!(queued_after(queued, ends), left, "{ends} of {queued} end");
        }
    }
}
