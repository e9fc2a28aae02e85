// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The timepoints of a timeline: a list for each queue that waits for it, and one for the host.
//!
//! Most timelines have one list or two, and looking through them is the cheapest there is. A timeline that hundreds of
//! queues wait for gets an index: where the list of a queue is, and a tree in which each node has the smallest value of
//! those below it, so that a signal finds what it releases without a look at any other list (rule S7).

use super::slot::{HOST, Target};
use crate::wait_list::WaitList;
use smallvec::SmallVec;
use std::collections::HashMap;

/// From more lists than this on an index is cheaper than a look at each.
const MANY: usize = 8;

/// How many empty lists are kept for the next waits; more of them would only be in the way.
const KEPT: usize = 2;

/// From this capacity on the memory of a list is worth giving back.
const LARGE: usize = 1024;

/// See the [module documentation](self).
///
/// # Invariants
///
/// - Each queue has at most one list, and so has the host.
/// - `empty` is how many lists hold nothing, `coverable` how many waits are in lists of queues.
/// - The index, where there is one, has the place and the smallest value of each list.
#[derive(Default)]
pub(super) struct Lists {
    lists: SmallVec<[(u32, WaitList<Target>); 1]>,
    /// How many of them are empty.
    empty: usize,
    /// Waits in the lists of queues.
    coverable: u64,
    /// One of the lists has grown past [`LARGE`].
    large: bool,
    index: Option<Box<Index>>,
}

/// Finds one list among many.
struct Index {
    places: HashMap<u32, usize>,
    /// The smallest value of each list, from the middle on, and before that the smaller of each two, down to number one.
    tree: Vec<u64>,
}

impl Index {
    fn new(lists: &[(u32, WaitList<Target>)]) -> Box<Self> {
        let leaves = (lists.len() + 1).next_power_of_two();
        let mut tree = vec![u64::MAX; 2 * leaves];
        for (leaf, (_, list)) in tree.iter_mut().skip(leaves).zip(lists) {
            *leaf = list.next();
        }
        let places = lists.iter().enumerate().map(|(place, &(queue, _))| (queue, place)).collect();
        let mut index = Box::new(Self { places, tree });
        for node in (1..leaves).rev() {
            index.choose(node);
        }
        index
    }

    fn leaves(&self) -> usize {
        self.tree.len() / 2
    }

    fn least(&self, node: usize) -> u64 {
        self.tree.get(node).copied().unwrap_or(u64::MAX)
    }

    /// Finds the smallest value below a node again. Returns whether it is another.
    fn choose(&mut self, node: usize) -> bool {
        let least = self.least(2 * node).min(self.least(2 * node + 1));
        self.put(node, least)
    }

    fn put(&mut self, node: usize, least: u64) -> bool {
        self.tree.get_mut(node).is_some_and(|old| std::mem::replace(old, least) != least)
    }

    fn set(&mut self, place: usize, next: u64) {
        let mut node = self.leaves() + place;
        let mut changes = self.put(node, next);
        while changes && node > 1 {
            node /= 2;
            changes = self.choose(node);
        }
    }

    /// A list with the smallest value of all.
    fn first(&self) -> usize {
        let mut node = 1;
        while node < self.leaves() {
            node *= 2;
            node += usize::from(self.least(node + 1) < self.least(node));
        }
        node - self.leaves()
    }

    /// Calls `found` with each list that `value` releases something of, below this node.
    fn each(&self, value: u64, node: usize, found: &mut impl FnMut(usize)) {
        if self.least(node) > value {
            return;
        }
        if node >= self.leaves() {
            return found(node - self.leaves());
        }
        self.each(value, 2 * node, found);
        self.each(value, 2 * node + 1, found);
    }
}

impl Lists {
    /// Waits of queues, which a signal under way may cover.
    pub(super) fn coverable(&self) -> u64 {
        self.coverable
    }

    pub(super) fn are_empty(&self) -> bool {
        self.empty == self.lists.len()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lists.len()
    }

    /// Whether [`pop`](Lists::pop) would take something.
    #[inline]
    pub(super) fn release(&self, reached: u64) -> bool {
        match &self.index {
            Some(index) => index.least(1) <= reached && !self.are_empty(),
            None => self.lists.iter().any(|(_, list)| list.releases(reached)),
        }
    }

    #[inline]
    fn place(&self, queue: u32) -> Option<usize> {
        match &self.index {
            Some(index) => index.places.get(&queue).copied(),
            None => self.lists.iter().position(|&(other, _)| other == queue),
        }
    }

    fn add(&mut self, queue: u32) -> usize {
        let place = self.lists.len();
        self.lists.push((queue, WaitList::new()));
        self.empty += 1;
        match &mut self.index {
            Some(index) if place < index.leaves() => {
                index.places.insert(queue, place);
            }
            Some(index) => *index = Index::new(&self.lists),
            None if place >= MANY => self.index = Some(Index::new(&self.lists)),
            None => {}
        }
        place
    }

    /// Adds a wait; returns its number in its list.
    pub(super) fn push(&mut self, queue: u32, value: u64, target: Target) -> u32 {
        let place = self.place(queue).unwrap_or_else(|| self.add(queue));
        #[expect(clippy::indexing_slicing, reason = "places are those of the lists that there are")]
        let (_, list) = &mut self.lists[place];
        self.empty -= usize::from(list.is_empty());
        self.coverable += u64::from(queue != HOST);
        let order = list.push(value, target);
        self.large |= list.capacity() > LARGE;
        if let Some(index) = &mut self.index {
            index.set(place, list.next());
        }
        order
    }

    /// A list has one wait less.
    fn has_lost_one(&mut self, place: usize) {
        #[expect(clippy::indexing_slicing, reason = "places are those of the lists that there are")]
        let (queue, list) = &self.lists[place];
        self.empty += usize::from(list.is_empty());
        self.coverable -= u64::from(*queue != HOST);
        if let Some(index) = &mut self.index {
            index.set(place, list.next());
        }
    }

    /// Takes the next wait of any list whose value is at most `reached`.
    pub(super) fn pop(&mut self, reached: u64) -> Option<(u64, Target)> {
        let place = match &self.index {
            Some(index) => index.first(),
            None => self.lists.iter().position(|(_, list)| list.releases(reached))?,
        };
        self.pop_at(place, reached)
    }

    fn pop_at(&mut self, place: usize, reached: u64) -> Option<(u64, Target)> {
        let popped = self.lists.get_mut(place)?.1.pop(reached)?;
        self.has_lost_one(place);
        Some(popped)
    }

    /// Takes the next wait of one queue whose value is at most `reached`.
    pub(super) fn pop_of(&mut self, queue: u32, reached: u64) -> Option<(u64, Target)> {
        self.pop_at(self.place(queue)?, reached)
    }

    /// Whether there is a wait of that queue whose value is at most `reached`.
    #[inline]
    pub(super) fn release_of(&self, queue: u32, reached: u64) -> bool {
        self.place(queue)
            .and_then(|place| self.lists.get(place))
            .is_some_and(|(_, list)| list.releases(reached))
    }

    /// The queues that have waits whose value is at most `reached`.
    pub(super) fn queues(&self, reached: u64) -> SmallVec<[u32; 8]> {
        let mut queues = SmallVec::new();
        match &self.index {
            Some(index) => index.each(reached, 1, &mut |place| {
                queues.extend(self.lists.get(place).map(|&(queue, _)| queue));
            }),
            None => queues.extend(
                self.lists.iter().filter(|(_, list)| list.releases(reached)).map(|&(queue, _)| queue),
            ),
        }
        queues.retain(|queue| *queue != HOST);
        queues
    }

    /// Takes a wait out by its number, if it is still here.
    pub(super) fn remove(&mut self, queue: u32, value: u64, order: u32) -> Option<Target> {
        let place = self.place(queue)?;
        let removed = self.lists.get_mut(place)?.1.remove(value, order)?;
        self.has_lost_one(place);
        Some(removed)
    }

    /// Puts lists that are empty away once they are the larger part.
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
        self.index = (self.lists.len() > MANY).then(|| Index::new(&self.lists));
    }

    /// Puts the lists away, which are empty; the memory of the first stays for the next user.
    pub(super) fn keep_first(&mut self) {
        debug_assert!(self.are_empty(), "a wait is left");
        self.index = None;
        self.lists.truncate(1);
        self.empty = self.lists.len();
    }

    /// Whether a list has become large since the last [`trim`](Lists::trim).
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

    /// A step, with a number that says which list or wait it is about.
    #[derive(Clone, Debug)]
    enum Step {
        Push(u32, u64),
        Pop(u64),
        PopOf(u32, u64),
        Remove(usize),
        Prune,
        KeepFirst,
    }

    fn step(queues: u32) -> impl Strategy<Value = Step> {
        let queue = move || (0..=queues).prop_map(move |queue| if queue == queues { HOST } else { queue });
        prop_oneof![
            6 => (queue(), 1..60u64).prop_map(|(queue, value)| Step::Push(queue, value)),
            2 => (0..60u64).prop_map(Step::Pop),
            2 => (queue(), 0..60u64).prop_map(|(queue, value)| Step::PopOf(queue, value)),
            1 => any::<usize>().prop_map(Step::Remove),
            1 => Just(Step::Prune),
            1 => prop_oneof![30 => Just(Step::Prune), 1 => Just(Step::KeepFirst)],
        ]
    }

    fn programs() -> impl Strategy<Value = Vec<Step>> {
        prop_oneof![Just(2u32), Just(7), Just(9), Just(100)]
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
        /// Against the obvious model: each wait under the number that its list gave it.
        #[test]
        fn behave_as_one_list_for_each_queue(steps in programs()) {
            let key = Slab::<()>::new().next_key();
            let mut lists = Lists::default();
            let mut model = BTreeMap::<u32, (u32, u64, u32)>::new();
            for (id, step) in (0u32..).zip(steps) {
                match step {
                    Step::Push(queue, value) => {
                        let order = lists.push(queue, value, Target::Op { queue, key, wait: id });
                        model.insert(id, (queue, value, order));
                    }
                    Step::Pop(reached) => {
                        let popped = lists.pop(reached);
                        let any = model.values().any(|&(_, value, _)| value <= reached);
                        prop_assert_eq!(popped.is_some(), any);
                        if let Some((value, target)) = popped {
                            let (queue, known, _) = model.remove(&number(&target)).expect("it was not popped before");
                            prop_assert_eq!(known, value);
                            prop_assert!(value <= reached);
                            let smaller = model.values().any(|&(other, known, _)| other == queue && known < value);
                            prop_assert!(!smaller, "the smallest of a list comes first");
                        }
                    }
                    Step::PopOf(queue, reached) => {
                        let least = model.values().filter(|&&(other, ..)| other == queue).map(|&(_, value, _)| value).min();
                        prop_assert_eq!(lists.release_of(queue, reached), least.is_some_and(|least| least <= reached));
                        let popped = lists.pop_of(queue, reached);
                        prop_assert_eq!(popped.as_ref().map(|&(value, _)| value), least.filter(|&least| least <= reached));
                        if let Some((_, target)) = popped {
                            prop_assert_eq!(model.remove(&number(&target)).map(|(queue, ..)| queue), Some(queue));
                        }
                    }
                    Step::Remove(which) => {
                        let Some((&id, &(queue, value, order))) = model.iter().nth(which % model.len().max(1)) else { continue };
                        prop_assert_eq!(lists.remove(queue, value, order).as_ref().map(number), Some(id));
                        prop_assert!(lists.remove(queue, value, order).is_none());
                        model.remove(&id);
                    }
                    Step::Prune => lists.prune(),
                    Step::KeepFirst => {
                        while let Some((_, target)) = lists.pop(u64::MAX) {
                            prop_assert!(model.remove(&number(&target)).is_some());
                        }
                        lists.keep_first();
                        prop_assert!(lists.lists.len() <= 1 && lists.index.is_none(), "the others stay");
                    }
                }
                let coverable = model.values().filter(|&&(queue, ..)| queue != HOST).count();
                prop_assert_eq!(lists.coverable(), coverable as u64);
                prop_assert_eq!(lists.are_empty(), model.is_empty());
                for reached in [0, 10, 30, 59] {
                    prop_assert_eq!(lists.release(reached), model.values().any(|&(_, value, _)| value <= reached));
                    let mut queues = lists.queues(reached);
                    queues.sort_unstable();
                    let mut expected: Vec<u32> = model.values()
                        .filter(|&&(queue, value, _)| queue != HOST && value <= reached)
                        .map(|&(queue, ..)| queue).collect();
                    expected.sort_unstable();
                    expected.dedup();
                    prop_assert_eq!(queues.as_slice(), expected.as_slice());
                }
            }
        }
    }

    #[test]
    fn only_many_lists_have_an_index() {
        let key = Slab::<()>::new().next_key();
        let mut lists = Lists::default();
        for queue in 0..100 {
            lists.push(queue, 1, Target::Op { queue, key, wait: 0 });
            assert_eq!(lists.index.is_some(), lists.lists.len() > MANY, "{} lists", lists.lists.len());
        }
        while lists.pop(1).is_some() {
            lists.prune();
            assert_eq!(lists.index.is_some(), lists.lists.len() > MANY, "{} lists", lists.lists.len());
        }
    }

    #[test]
    fn lists_are_large_as_long_as_one_of_them_is() {
        let key = Slab::<()>::new().next_key();
        let mut lists = Lists::default();
        let push = |lists: &mut Lists, queue| lists.push(queue, 1, Target::Op { queue, key, wait: 0 });
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
        let mut lists = Lists::default();
        for queue in 0..1_000 {
            lists.push(queue, 1, Target::Op { queue, key, wait: 0 });
            assert!(lists.pop(1).is_some());
            lists.prune();
        }
        assert!(lists.lists.len() <= KEPT, "{} lists", lists.lists.len());
        assert!(lists.index.is_none());
    }
}
