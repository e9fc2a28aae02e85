// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The timepoints of a timeline: one list for each queue that waits for it, and one for the host.
//!
//! Most timelines have one or two lists. A device has 64 queues at most, so a search through all lists is short; it
//! reads one number of each (rule S7).

use super::timeline_state::{OrderedWait, OrderedWaits, Target};
use crate::wait_list::WaitList;
use smallvec::SmallVec;

/// How many empty lists are kept for the next waits; more of them would slow the search.
const KEPT: usize = 2;

/// From this capacity on, the memory of a list is worth releasing.
const LARGE: usize = 1024;

/// The owner of a list: a queue, or the host, whose waits only the value releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListOwner(u32);

impl ListOwner {
    /// No queue has this number: there are at most 64.
    pub(crate) const HOST: Self = Self(u32::MAX);

    #[inline]
    pub(crate) fn queue(number: u32) -> Self {
        let queue = Self(number);
        debug_assert_ne!(queue, Self::HOST, "no queue has the host's number");
        queue
    }

    #[inline]
    pub(super) fn is_queue(self) -> bool {
        self != Self::HOST
    }

    fn as_queue(self) -> Option<u32> {
        self.is_queue().then_some(self.0)
    }
}

/// See the [module documentation](self).
///
/// # Invariants
///
/// - Each queue has at most one list, and so has the host.
/// - `empty` counts the empty lists, and `queue_waits` the waits in the lists of queues.
/// - No two waits ever have the same number, in whatever list they were: a waiter that gives up may name a wait
///   that is gone.
#[derive(Default)]
pub(super) struct WaitLists {
    lists: SmallVec<[(ListOwner, WaitList<Target>); 1]>,
    /// The number of empty lists.
    empty: usize,
    /// Waits in the lists of queues.
    queue_waits: u64,
    /// The number of the last wait.
    order: u32,
    /// One of the lists has grown past [`LARGE`].
    large: bool,
}

impl WaitLists {
    /// Waits that a promise may satisfy by order.
    pub(super) fn queue_waits(&self) -> u64 {
        self.queue_waits
    }

    pub(super) fn are_empty(&self) -> bool {
        self.empty == self.lists.len()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lists.len()
    }

    /// True if [`pop`](WaitLists::pop) would take something.
    #[inline]
    pub(super) fn releases(&self, reached: u64) -> bool {
        self.lists.iter().any(|(_, list)| list.releases(reached))
    }

    #[inline]
    fn place(&self, owner: ListOwner) -> Option<usize> {
        self.lists.iter().position(|&(other, _)| other == owner)
    }

    fn add(&mut self, owner: ListOwner) -> usize {
        if self.empty > 0
            && let Some(place) = self.lists.iter().position(|(_, list)| list.is_empty())
            && let Some((former, _)) = self.lists.get_mut(place)
        {
            // An empty list is free for any owner.
            *former = owner;
            return place;
        }
        let place = self.lists.len();
        self.lists.push((owner, WaitList::new()));
        self.empty += 1;
        place
    }

    /// Adds a wait, and returns its number.
    pub(super) fn push(&mut self, owner: ListOwner, value: u64, target: Target) -> u32 {
        let place = self.place(owner).unwrap_or_else(|| self.add(owner));
        #[expect(clippy::indexing_slicing, reason = "places are those of the lists that there are")]
        let (_, list) = &mut self.lists[place];
        self.empty -= usize::from(list.is_empty());
        self.queue_waits += u64::from(owner.is_queue());
        self.order = self.order.wrapping_add(1);
        list.push(self.order, value, target);
        self.large |= list.capacity() > LARGE;
        self.order
    }

    /// Updates the counts after a list has lost a wait.
    fn has_lost_one(&mut self, place: usize) {
        #[expect(clippy::indexing_slicing, reason = "places are those of the lists that there are")]
        let (owner, list) = &self.lists[place];
        self.empty += usize::from(list.is_empty());
        self.queue_waits -= u64::from(owner.is_queue());
    }

    /// Takes the next wait of any list whose value is at most `reached`.
    pub(super) fn pop(&mut self, reached: u64) -> Option<(u64, Target)> {
        let place = self.lists.iter().position(|(_, list)| list.releases(reached))?;
        self.pop_at(place, reached)
    }

    fn pop_at(&mut self, place: usize, reached: u64) -> Option<(u64, Target)> {
        let popped = self.lists.get_mut(place)?.1.pop(reached)?;
        self.has_lost_one(place);
        Some(popped)
    }

    /// Takes the next wait of one queue whose value is at most `reached`.
    pub(super) fn pop_of(&mut self, queue: u32, reached: u64) -> Option<(u64, Target)> {
        self.pop_at(self.place(ListOwner::queue(queue))?, reached)
    }

    /// Takes waits of one queue whose value is at most `reached`, `most` at most: queued work of the queue
    /// satisfies them by order. A wait of an operation with other waits moves to the host's list, because it
    /// may still fail. Returns whether there are more.
    pub(super) fn take_ordered(
        &mut self,
        queue: u32,
        reached: u64,
        most: usize,
        ordered: &mut OrderedWaits,
    ) -> bool {
        let owner = ListOwner::queue(queue);
        let Some(place) = self.place(owner) else { return false };
        let mut left = most;
        // An emptied list may have become the host's.
        let is_left =
            |&&(now, ref list): &&(ListOwner, WaitList<Target>)| now == owner && list.releases(reached);
        while let Some((_, list)) = self.lists.get(place).filter(is_left) {
            if left == 0 {
                return true;
            }
            left -= 1;
            if let Some((failure_entry, &Target::Op { key: op, wait, has_others: true, .. })) = list.sole() {
                let failure_entry = Some(self.give_to_host(place, failure_entry));
                ordered.push(OrderedWait { op, wait, failure_entry });
                return false;
            }
            let Some((value, target)) = self.pop_at(place, reached) else { return false };
            let Target::Op { key: op, wait, has_others, .. } = target else { continue };
            let failure_entry = has_others.then(|| self.push(ListOwner::HOST, value, target));
            ordered.push(OrderedWait { op, wait, failure_entry });
        }
        false
    }

    /// Moves the only wait in a list, which has this number, to the host. Returns its number there.
    fn give_to_host(&mut self, place: usize, order: u32) -> u32 {
        if self.place(ListOwner::HOST).is_none()
            && let Some((owner, _)) = self.lists.get_mut(place)
        {
            // The host has no list: it gets this one.
            *owner = ListOwner::HOST;
            self.queue_waits -= 1;
            return order;
        }
        let popped = self.pop_at(place, u64::MAX);
        let (value, target) = popped.unwrap_or_else(|| unreachable!("it is there, as was just seen"));
        self.push(ListOwner::HOST, value, target)
    }

    /// True if that queue has a wait whose value is at most `reached`.
    #[cfg(test)]
    fn release_of(&self, queue: u32, reached: u64) -> bool {
        self.place(ListOwner::queue(queue))
            .and_then(|place| self.lists.get(place))
            .is_some_and(|(_, list)| list.releases(reached))
    }

    /// The queues that have waits whose value is at most `reached`.
    pub(super) fn queues(&self, reached: u64) -> SmallVec<[u32; 8]> {
        let released = self.lists.iter().filter(|(_, list)| list.releases(reached));
        released.filter_map(|&(owner, _)| owner.as_queue()).collect()
    }

    /// Removes a wait by its number, if it is still here.
    pub(super) fn remove(&mut self, owner: ListOwner, value: u64, order: u32) -> Option<Target> {
        let place = self.place(owner)?;
        let removed = self.lists.get_mut(place)?.1.remove(value, order)?;
        self.has_lost_one(place);
        Some(removed)
    }

    /// Removes empty lists once they are the larger part.
    // A limit of speed: either side of it is as good.
    #[cfg_attr(mutants, mutants::skip)]
    pub(super) fn prune(&mut self) {
        if self.empty <= KEPT + (self.lists.len() - self.empty) {
            return;
        }
        let mut kept = 0;
        self.lists.retain(|(_, list)| {
            kept += usize::from(list.is_empty());
            !list.is_empty() || kept <= KEPT
        });
        self.empty = self.empty.min(KEPT);
    }

    /// Removes all lists, which are empty, except for the memory of the first.
    pub(super) fn keep_first(&mut self) {
        debug_assert!(self.are_empty(), "a wait is left");
        self.lists.truncate(1);
        self.empty = self.lists.len();
    }

    /// True if a list has become large since the last [`trim`](WaitLists::trim).
    pub(super) fn are_large(&self) -> bool {
        self.large
    }

    pub(super) fn trim(&mut self) {
        for (_, list) in &mut self.lists {
            list.trim();
        }
        self.large = self.lists.iter().any(|(_, list)| list.capacity() > LARGE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slab::Slab;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// A step, with a number that selects a list or a wait.
    #[derive(Clone, Debug)]
    enum ListStep {
        Push(ListOwner, u64),
        Pop(u64),
        PopOf(u32, u64),
        TakeOrderedOf(u32, u64),
        Remove(usize),
        Prune,
        KeepFirst,
    }

    fn step(queues: u32) -> impl Strategy<Value = ListStep> {
        let owner = move || {
            (0..=queues).prop_map(
                move |queue| if queue == queues { ListOwner::HOST } else { ListOwner::queue(queue) },
            )
        };
        prop_oneof![
            6 => (owner(), 1..60u64).prop_map(|(owner, value)| ListStep::Push(owner, value)),
            2 => (0..60u64).prop_map(ListStep::Pop),
            2 => (0..queues, 0..60u64).prop_map(|(queue, value)| ListStep::PopOf(queue, value)),
            2 => (0..queues, 0..60u64).prop_map(|(queue, value)| ListStep::TakeOrderedOf(queue, value)),
            1 => any::<usize>().prop_map(ListStep::Remove),
            1 => Just(ListStep::Prune),
            1 => prop_oneof![30 => Just(ListStep::Prune), 1 => Just(ListStep::KeepFirst)],
        ]
    }

    fn programs() -> impl Strategy<Value = Vec<ListStep>> {
        prop_oneof![Just(2u32), Just(7), Just(64)]
            .prop_flat_map(|queues| prop::collection::vec(step(queues), 1..400))
    }

    /// The number of a wait, which the target of a test carries.
    fn number(target: &Target) -> u32 {
        match target {
            Target::Op { wait, .. } => *wait,
            _ => u32::MAX,
        }
    }

    proptest! {
        /// Compared with a simple model: each wait under the number that its list gave it.
        #[test]
        fn behave_as_one_list_for_each_queue(steps in programs()) {
            let key = Slab::<()>::new().next_key();
            let mut lists = WaitLists::default();
            let mut model = BTreeMap::<u32, (ListOwner, u64, u32)>::new();
            let mut last = 0;
            for (id, step) in (0u32..).zip(steps) {
                match step {
                    ListStep::Push(owner, value) => {
                        let target = Target::Op { queue: 0, key, wait: id, has_others: id % 2 == 0 };
                        let order = lists.push(owner, value, target);
                        prop_assert!(order > last, "a number is used again");
                        last = order;
                        model.insert(id, (owner, value, order));
                    }
                    ListStep::Pop(reached) => {
                        let popped = lists.pop(reached);
                        let any = model.values().any(|&(_, value, _)| value <= reached);
                        prop_assert_eq!(popped.is_some(), any);
                        if let Some((value, target)) = popped {
                            let (owner, known, _) = model.remove(&number(&target)).expect("it was not popped before");
                            prop_assert_eq!(known, value);
                            prop_assert!(value <= reached);
                            let smaller = model.values().any(|&(other, known, _)| other == owner && known < value);
                            prop_assert!(!smaller, "the smallest of a list comes first");
                        }
                    }
                    ListStep::PopOf(queue, reached) => {
                        let owner = ListOwner::queue(queue);
                        let values = model.values().filter(|&&(other, ..)| other == owner).map(|&(_, value, _)| value);
                        let least = values.min();
                        prop_assert_eq!(lists.release_of(queue, reached), least.is_some_and(|least| least <= reached));
                        let popped = lists.pop_of(queue, reached);
                        let expected = least.filter(|&least| least <= reached);
                        prop_assert_eq!(popped.as_ref().map(|&(value, _)| value), expected);
                        if let Some((_, target)) = popped {
                            prop_assert_eq!(model.remove(&number(&target)).map(|(other, ..)| other), Some(owner));
                        }
                    }
                    ListStep::TakeOrderedOf(queue, reached) => {
                        let owner = ListOwner::queue(queue);
                        let mut ordered = SmallVec::new();
                        let more = lists.take_ordered(queue, reached, 2, &mut ordered);
                        for OrderedWait { wait: id, failure_entry, .. } in &ordered {
                            let known = model.remove(id);
                            prop_assert_eq!(known.map(|(other, ..)| other), Some(owner));
                            let value = known.map_or(u64::MAX, |(_, value, _)| value);
                            prop_assert!(value <= reached);
                            prop_assert_eq!(failure_entry.is_some(), id % 2 == 0, "only a wait with others waits on");
                            if let Some(order) = *failure_entry {
                                model.insert(*id, (ListOwner::HOST, value, order));
                                last = last.max(order);
                            }
                        }
                        let left = model.values().any(|&(other, value, _)| other == owner && value <= reached);
                        prop_assert_eq!(more, left);
                        prop_assert!(ordered.len() == 2 || !left);
                    }
                    ListStep::Remove(which) => {
                        let which = which % model.len().max(1);
                        let Some((&id, &(owner, value, order))) = model.iter().nth(which) else { continue };
                        prop_assert_eq!(lists.remove(owner, value, order).as_ref().map(number), Some(id));
                        prop_assert!(lists.remove(owner, value, order).is_none());
                        model.remove(&id);
                    }
                    ListStep::Prune => lists.prune(),
                    ListStep::KeepFirst => {
                        while let Some((_, target)) = lists.pop(u64::MAX) {
                            prop_assert!(model.remove(&number(&target)).is_some());
                        }
                        lists.keep_first();
                        prop_assert!(lists.lists.len() <= 1, "the others stay");
                    }
                }
                let queue_waits = model.values().filter(|&&(owner, ..)| owner.is_queue()).count();
                prop_assert_eq!(lists.queue_waits(), queue_waits as u64);
                prop_assert_eq!(lists.are_empty(), model.is_empty());
                for reached in [0, 10, 30, 59] {
                    prop_assert_eq!(lists.releases(reached), model.values().any(|&(_, value, _)| value <= reached));
                    let mut queues = lists.queues(reached);
                    queues.sort_unstable();
                    let mut expected: Vec<u32> = model.values()
                        .filter(|&&(_, value, _)| value <= reached)
                        .filter_map(|&(owner, ..)| owner.as_queue()).collect();
                    expected.sort_unstable();
                    expected.dedup();
                    prop_assert_eq!(queues.as_slice(), expected.as_slice());
                }
            }
        }
    }

    #[test]
    fn only_wait_of_a_queue_moves_to_the_host_in_place_if_its_operation_has_others() {
        let key = Slab::<()>::new().next_key();
        let mut lists = WaitLists::default();
        let take = |lists: &mut WaitLists| {
            let mut ordered = SmallVec::new();
            assert!(!lists.take_ordered(7, 1, 1, &mut ordered), "there are no more");
            ordered.iter().map(|ordered| ordered.failure_entry).collect::<Vec<_>>()
        };
        for round in 1..10 {
            let order =
                lists.push(ListOwner::queue(7), 1, Target::Op { queue: 7, key, wait: 0, has_others: true });
            assert_eq!(lists.queue_waits(), 1);
            assert_eq!(take(&mut lists), [Some(order)]);
            assert_eq!((lists.queue_waits(), lists.len()), (0, 1), "round {round}");
            assert!(take(&mut lists).is_empty(), "it is taken once");
            assert!(lists.releases(1) && lists.remove(ListOwner::HOST, 1, order).is_some());
        }
        lists.push(ListOwner::queue(7), 1, Target::Op { queue: 7, key, wait: 0, has_others: false });
        assert_eq!(take(&mut lists), [None]);
        assert!(lists.are_empty(), "there is nothing that a failure would matter to");
    }

    #[test]
    fn wait_that_was_not_always_the_only_one_is_satisfied_once_though_its_list_becomes_the_hosts() {
        let key = Slab::<()>::new().next_key();
        let mut lists = WaitLists::default();
        let [first, _] = [0, 1].map(|wait| {
            lists.push(ListOwner::queue(7), 1, Target::Op { queue: 7, key, wait, has_others: true })
        });
        assert!(lists.remove(ListOwner::queue(7), 1, first).is_some());
        let mut ordered = SmallVec::new();
        assert!(!lists.take_ordered(7, 1, 3, &mut ordered), "there are no more");
        assert_eq!(ordered.iter().map(|ordered| ordered.wait).collect::<Vec<_>>(), [1]);
        assert_eq!((lists.queue_waits(), lists.len()), (0, 1));
    }

    #[test]
    fn lists_are_large_as_long_as_one_of_them_is() {
        let key = Slab::<()>::new().next_key();
        let mut lists = WaitLists::default();
        let push = |lists: &mut WaitLists, queue| {
            lists.push(ListOwner::queue(queue), 1, Target::Op { queue, key, wait: 0, has_others: false })
        };
        push(&mut lists, 0);
        assert!(!lists.are_large());
        for _ in 0..=2 * LARGE {
            push(&mut lists, 1);
        }
        lists.trim();
        assert!(lists.are_large(), "a wait is left in the large one");
        while lists.pop_of(1, 1).is_some() {}
        lists.trim();
        assert!(!lists.are_large());
    }

    #[test]
    fn empty_lists_do_not_accumulate() {
        let key = Slab::<()>::new().next_key();
        let mut lists = WaitLists::default();
        for queue in 0..1_000 {
            lists.push(ListOwner::queue(queue), 1, Target::Op { queue, key, wait: 0, has_others: false });
            assert!(lists.pop(1).is_some());
            lists.prune();
        }
        assert!(lists.lists.len() <= KEPT, "{} lists", lists.lists.len());
    }
}
