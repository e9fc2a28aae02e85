//! Timepoints of one timeline in the order a signal releases them.
//!
//! Waits mostly arrive in growing order of value (a chain waits for 1, 2, 3, …), so the list is a sorted run, where
//! such a wait is appended in O(1), beside a heap for the ones that arrive out of order, O(log n). Taking what a
//! signal releases costs as much as what it releases; nothing else is looked at (rule S7). Among equal values the
//! older one comes first: an entry of the run is always older than an equal one of the heap, because the heap only
//! takes a value smaller than the run's last.
//!
//! Most timelines have one waiter at a time, and many never have another. The only entry of a list is kept in the list
//! itself, so that such a timeline needs no memory of its own for it.

use crate::ring::take_first;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

#[derive(Debug)]
struct Late<T> {
    value: u64,
    order: u64,
    target: T,
}

impl<T> Late<T> {
    fn rank(&self) -> Reverse<(u64, u64)> {
        Reverse((self.value, self.order))
    }
}

impl<T> PartialEq for Late<T> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl<T> Eq for Late<T> {}

impl<T> PartialOrd for Late<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Late<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// Targets ordered by the value they wait for, then by age.
#[derive(Debug)]
pub(crate) struct WaitList<T> {
    /// The only entry; while it is here the run and the heap are empty.
    alone: Option<(u64, T)>,
    run: VecDeque<(u64, T)>,
    late: BinaryHeap<Late<T>>,
    order: u64,
    /// The smallest value in here: most looks at a list end with it.
    next: u64,
}

impl<T> WaitList<T> {
    pub(crate) fn new() -> Self {
        Self { alone: None, run: VecDeque::new(), late: BinaryHeap::new(), order: 0, next: u64::MAX }
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.alone.is_some()) + self.run.len() + self.late.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.alone.is_none() && self.run.is_empty() && self.late.is_empty()
    }

    /// Whether [`pop`](WaitList::pop) would take something.
    pub(crate) fn releases(&self, reached: u64) -> bool {
        self.next <= reached && !self.is_empty()
    }

    pub(crate) fn push(&mut self, value: u64, target: T) {
        if self.is_empty() {
            self.next = value;
            self.alone = Some((value, target));
            return;
        }
        self.run.extend(self.alone.take());
        self.next = self.next.min(value);
        match self.run.back() {
            Some(&(last, _)) if value < last => {
                self.order += 1;
                self.late.push(Late { value, order: self.order, target });
            }
            _ => self.run.push_back((value, target)),
        }
    }

    /// Takes the next target whose value is at most `reached`.
    pub(crate) fn pop(&mut self, reached: u64) -> Option<(u64, T)> {
        if self.next > reached {
            return None;
        }
        if self.alone.is_some() {
            self.next = u64::MAX;
            return self.alone.take();
        }
        let run = self.run.front().map(|&(value, _)| value);
        let late = self.late.peek().map(|late| late.value);
        let taken = match (run, late) {
            (Some(run), late) if late.is_none_or(|late| run <= late) => take_first(&mut self.run),
            _ => self.late.pop().map(|late| (late.value, late.target)),
        };
        self.look();
        taken
    }

    fn look(&mut self) {
        let alone = self.alone.as_ref().map_or(u64::MAX, |&(value, _)| value);
        let run = self.run.front().map_or(u64::MAX, |&(value, _)| value);
        let late = self.late.peek().map_or(u64::MAX, |late| late.value);
        self.next = alone.min(run).min(late);
    }

    /// Keeps only the targets for which `keep` holds, in their order.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.alone = self.alone.take().filter(|(_, target)| keep(target));
        self.run.retain(|(_, target)| keep(target));
        self.late.retain(|late| keep(&late.target));
        self.look();
    }

    /// Empties the list; its memory stays for the next user.
    pub(crate) fn clear(&mut self) {
        self.alone = None;
        self.run.clear();
        self.late.clear();
        self.next = u64::MAX;
    }

    pub(crate) fn trim(&mut self) {
        self.run.shrink_to_fit();
        self.late.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against the obvious model: a vector, stably sorted by value.
        #[test]
        fn releases_what_a_stable_sort_would(steps in prop::collection::vec((0u64..20, 0u8..4), 1..200)) {
            let mut list = WaitList::new();
            let mut model: Vec<(u64, usize)> = Vec::new();
            let mut floor = 0;
            for (id, (value, kind)) in steps.into_iter().enumerate() {
                if kind == 0 {
                    floor = floor.max(value);
                    let mut released = Vec::new();
                    while let Some(entry) = list.pop(floor) { released.push(entry); }
                    model.sort_by_key(|&(value, _)| value);
                    let rest = model.split_off(model.partition_point(|&(value, _)| value <= floor));
                    prop_assert_eq!(released, std::mem::replace(&mut model, rest));
                } else if value > floor {
                    list.push(value, id);
                    model.push((value, id));
                }
                prop_assert_eq!(list.len(), model.len());
            }
        }
    }

    #[test]
    fn retain_keeps_order() {
        let mut list = WaitList::new();
        for (id, value) in [5, 9, 3, 3, 7, 11].into_iter().enumerate() {
            list.push(value, id);
        }
        list.retain(|&id| id != 3);
        let order: Vec<usize> = std::iter::from_fn(|| list.pop(100).map(|(_, id)| id)).collect();
        assert_eq!(order, [2, 0, 4, 1, 5]);
    }
}
