// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What a queue knows of other queues: the epochs that it waits for natively, and since when.

use smallvec::SmallVec;
use std::collections::VecDeque;

/// The latest epochs of some queues.
#[derive(Clone, Debug, Default)]
pub(super) struct Frontier(SmallVec<[(u32, u64); 4]>);

impl Frontier {
    pub(super) fn get(&self, queue: u32) -> u64 {
        self.0
            .binary_search_by_key(&queue, |&(queue, _)| queue)
            .ok()
            .and_then(|at| self.0.get(at))
            .map_or(0, |&(_, epoch)| epoch)
    }

    /// Returns whether the epoch was news.
    pub(super) fn raise(&mut self, queue: u32, epoch: u64) -> bool {
        match self.0.binary_search_by_key(&queue, |&(queue, _)| queue) {
            Ok(at) => match self.0.get_mut(at) {
                Some((_, known)) if *known < epoch => *known = epoch,
                _ => return false,
            },
            Err(at) => self.0.insert(at, (queue, epoch)),
        }
        true
    }
}

/// The epochs at which a queue's frontier grew: a queue that waits for a later epoch of it inherits that.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<(u64, u32, u64)>);

/// How many of them are remembered. Forgetting one costs a needless native wait and no more.
pub(super) const HISTORY_LENGTH: usize = 16;

impl History {
    /// From epoch `at` on, the queue has waited for `epoch` of `queue`.
    pub(super) fn add(&mut self, at: u64, queue: u32, epoch: u64) {
        if self.0.len() >= HISTORY_LENGTH {
            self.0.pop_front();
        }
        self.0.push_back((at, queue, epoch));
    }

    pub(super) fn until(&self, at: u64) -> impl Iterator<Item = (u32, u64)> {
        self.0.iter().filter(move |&&(since, ..)| since <= at).map(|&(_, queue, epoch)| (queue, epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frontier_has_the_latest_epoch_of_each_queue() {
        let mut known = Frontier::default();
        for (queue, epoch, is_news) in
            [(7, 5, true), (7, 3, false), (7, 5, false), (2, 1, true), (7, 6, true)]
        {
            assert_eq!(known.raise(queue, epoch), is_news, "{queue}@{epoch}");
        }
        assert_eq!([2, 7, 8].map(|queue| known.get(queue)), [1, 6, 0]);
    }

    #[test]
    fn history_has_the_latest_steps_up_to_an_epoch() {
        let mut history = History::default();
        let steps = HISTORY_LENGTH as u64 + 3;
        (1..=steps).for_each(|at| history.add(at, 7, 10 * at));
        let until = |at| history.until(at).collect::<Vec<_>>();
        assert_eq!(until(steps), (4..=steps).map(|at| (7, 10 * at)).collect::<Vec<_>>());
        assert_eq!(until(5), [(7, 40), (7, 50)]);
        assert!(until(3).is_empty());
    }
}
