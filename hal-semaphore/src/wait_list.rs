// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! One list of timepoints of a timeline, in the order in which a signal releases them.
//!
//! Most waits arrive in ascending order of value (a chain waits for 1, 2, 3, …), so the list is a sorted run,
//! where such a wait is appended in O(1), and a tree for the few that arrive far out of order. A signal costs
//! as much as it releases and looks at nothing else (rule S7). Among equal values the older wait comes first.
//!
//! Every entry has a number from the owner of the list, larger than earlier ones. A waiter that gives up
//! removes its entry by that number, without a search. The entry leaves a gap in the run; gaps are closed when
//! they are the larger part.
//!
//! Most timelines have one waiter at a time, and many never have another. The only entry of a list is kept in
//! the list itself, so that such a timeline allocates nothing for it.

use std::collections::{BTreeMap, VecDeque};

/// An entry is inserted into the run if its position is at most this far from an end.
const NEAR: usize = 32;

/// Fewer gaps than this are not worth closing.
const CLOSE_AT: usize = 32;

#[derive(Debug)]
struct WaitEntry<T> {
    value: u32,
    order: u32,
    /// `None` if the waiter has given up.
    target: Option<T>,
}

impl<T> WaitEntry<T> {
    fn rank(&self) -> (u32, u32) {
        (self.value, self.order)
    }
}

/// Targets ordered by the value they wait for, then by age.
///
/// # Invariants
///
/// - The run is sorted by value and number; `gaps` of its entries have no target.
/// - While there is an entry `alone`, the run and the tree are empty.
/// - `next` is the smallest value of an entry with a target, and `u64::MAX` if there is none.
#[derive(Debug)]
pub(crate) struct WaitList<T> {
    /// The only entry; while it is here the run and the tree are empty.
    alone: Option<WaitEntry<T>>,
    run: VecDeque<WaitEntry<T>>,
    late: BTreeMap<(u32, u32), T>,
    gaps: usize,
    /// The smallest value in the list: most checks read nothing else.
    next: u64,
}

impl<T> WaitList<T> {
    pub(crate) fn new() -> Self {
        Self { alone: None, run: VecDeque::new(), late: BTreeMap::new(), gaps: 0, next: u64::MAX }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.alone.is_some()) + self.run.len() - self.gaps + self.late.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.next == u64::MAX
    }

    /// How many entries fit into the list's memory.
    pub(crate) fn capacity(&self) -> usize {
        self.run.capacity()
    }

    /// True if [`pop`](WaitList::pop) would take something.
    pub(crate) fn releases(&self, reached: u64) -> bool {
        self.next <= reached && !self.is_empty()
    }

    /// The number and the target of an entry that was never beside another.
    #[inline]
    pub(crate) fn sole(&self) -> Option<(u32, &T)> {
        let entry = self.alone.as_ref()?;
        Some((entry.order, entry.target.as_ref()?))
    }

    /// Adds an entry with a number of its own. Values are at most [`MAX_VALUE`](crate::MAX_VALUE).
    pub(crate) fn push(&mut self, order: u32, value: u64, target: T) {
        let wanted = u32::try_from(value).unwrap_or(u32::MAX);
        let entry = WaitEntry { value: wanted, order, target: Some(target) };
        if self.is_empty() {
            self.next = value;
            self.alone = Some(entry);
            return;
        }
        if let Some(alone) = self.alone.take() {
            self.run.push_back(alone);
        }
        self.next = self.next.min(value);
        match self.run.back() {
            Some(last) if entry.rank() < last.rank() => {
                let at = self.run.partition_point(|other| other.rank() < entry.rank());
                if at.min(self.run.len() - at) <= NEAR {
                    self.run.insert(at, entry);
                } else if let Some(target) = entry.target {
                    self.late.insert((wanted, order), target);
                }
            }
            _ => self.run.push_back(entry),
        }
    }

    /// Takes the next target whose value is at most `reached`.
    pub(crate) fn pop(&mut self, reached: u64) -> Option<(u64, T)> {
        if !self.releases(reached) {
            return None;
        }
        if let Some(alone) = self.alone.take() {
            self.next = u64::MAX;
            return Some((u64::from(alone.value), alone.target?));
        }
        if self.gaps == 0 && self.late.is_empty() {
            // Fast path: the entry behind it is next.
            let first = crate::ring::take_first(&mut self.run)?;
            self.next = self.run.front().map_or(u64::MAX, |entry| u64::from(entry.value));
            return Some((u64::from(first.value), first.target?));
        }
        self.pop_of_both()
    }

    /// With gaps, or entries in the tree.
    #[inline(never)]
    fn pop_of_both(&mut self) -> Option<(u64, T)> {
        let run = self.run.front().map(WaitEntry::rank);
        let late = self.late.first_key_value().map(|(&rank, _)| rank);
        let taken = match (run, late) {
            (Some(run), late) if late.is_none_or(|late| run < late) => {
                crate::ring::take_first(&mut self.run).and_then(|entry| Some((entry.value, entry.target?)))
            }
            _ => self.late.pop_first().map(|((value, _), target)| (value, target)),
        };
        self.find_next();
        taken.map(|(value, target)| (u64::from(value), target))
    }

    /// Finds the smallest value again, behind gaps at the front of the run.
    fn find_next(&mut self) {
        while self.gaps > 0 && self.run.front().is_some_and(|entry| entry.target.is_none()) {
            crate::ring::take_first(&mut self.run);
            self.gaps -= 1;
        }
        let alone = self.alone.as_ref().map(|entry| entry.value);
        let run = self.run.front().map(|entry| entry.value);
        let late = self.late.first_key_value().map(|(&(value, _), _)| value);
        let next = [alone, run, late].into_iter().flatten().min();
        self.next = next.map_or(u64::MAX, u64::from);
    }

    /// Removes the entry with this value and number, if it is still here.
    pub(crate) fn remove(&mut self, value: u64, order: u32) -> Option<T> {
        let rank = (u32::try_from(value).unwrap_or(u32::MAX), order);
        let target = if self.alone.as_ref().is_some_and(|alone| alone.rank() == rank) {
            self.alone.take().and_then(|alone| alone.target)
        } else if let Ok(at) = self.run.binary_search_by_key(&rank, WaitEntry::rank) {
            let target = self.run.get_mut(at).and_then(|entry| entry.target.take());
            self.gaps += usize::from(target.is_some());
            target
        } else {
            self.late.remove(&rank)
        };
        if self.gaps >= CLOSE_AT && self.gaps * 2 > self.run.len() {
            self.run.retain(|entry| entry.target.is_some());
            self.gaps = 0;
        }
        self.find_next();
        target
    }

    pub(crate) fn trim(&mut self) {
        self.run.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compared with a simple model: a vector, stably sorted by value.
        #[test]
        fn releases_what_a_stable_sort_would(steps in prop::collection::vec((0u64..200, 0u8..6), 1..400)) {
            let mut list = WaitList::new();
            let mut model: Vec<(u64, u32, usize)> = Vec::new();
            let mut floor = 0;
            for ((value, kind), order) in steps.into_iter().zip(1u32..) {
                let id = order as usize;
                if kind == 0 {
                    floor = floor.max(value);
                    let mut released = Vec::new();
                    while let Some(entry) = list.pop(floor) { released.push(entry); }
                    model.sort_by_key(|&(value, ..)| value);
                    let wait_until_idle = model.split_off(model.partition_point(|&(value, ..)| value <= floor));
                    let gone = std::mem::replace(&mut model, wait_until_idle);
                    prop_assert_eq!(released, gone.into_iter().map(|(value, _, id)| (value, id)).collect::<Vec<_>>());
                } else if kind == 1 && !model.is_empty() {
                    let (value, order, id) = model.remove(id % model.len());
                    prop_assert_eq!(list.remove(value, order), Some(id));
                    prop_assert_eq!(list.remove(value, order), None);
                } else if value > floor {
                    list.push(order, value, id);
                    model.push((value, order, id));
                }
                prop_assert_eq!(list.len(), model.len());
                prop_assert_eq!(list.is_empty(), model.is_empty());
            }
        }
    }

    #[test]
    fn only_entry_needs_no_memory_of_the_lists() {
        let mut list = WaitList::new();
        for order in 1..100 {
            let value = u64::from(order);
            list.push(order, value, ());
            assert_eq!((list.pop(value), list.capacity()), (Some((value, ())), 0));
        }
    }

    #[test]
    fn entry_is_inserted_near_an_end_of_the_run_and_goes_to_the_tree_elsewhere() {
        let mut list = WaitList::new();
        for order in 1..=1000 {
            list.push(order, 10 * u64::from(order), ());
        }
        for (order, (value, late)) in (1001..).zip([(9995, 0), (5, 0), (5005, 1), (9905, 1), (4995, 2)]) {
            list.push(order, value, ());
            assert_eq!(list.late.len(), late, "{value}");
        }
    }

    #[test]
    fn gaps_of_a_run_stay_until_they_are_many_and_the_larger_part() {
        for (entries, removed, left) in [(10, 9, 10), (1000, 500, 1000), (1000, 501, 499)] {
            let mut list = WaitList::new();
            (0..entries).for_each(|order| list.push(order, 1, ()));
            for order in (0..entries).rev().take(removed) {
                assert_eq!(list.remove(1, order), Some(()));
            }
            assert_eq!(list.run.len(), left, "{removed} of {entries} are removed");
        }
    }

    #[test]
    fn removed_entries_do_not_accumulate() {
        let mut list = WaitList::new();
        list.push(0, 1, 0);
        for order in 1..10_000 {
            list.push(order, 1, order);
            assert_eq!(list.remove(1, order), Some(order));
        }
        assert_eq!(list.len(), 1);
        assert!(list.run.len() <= 2 * CLOSE_AT, "{} entries", list.run.len());
    }
}
