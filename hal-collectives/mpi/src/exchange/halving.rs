// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Reductions: ranks exchange in pairs, and each pair is the two sides of a node of the [tree](Tree).
//!
//! Where a leaf of the tree is two ranks, the second hands everything to the first, its *leader*, and gets
//! its result from there. The leaders are a power of two. In the step of distance d, a leader exchanges with
//! the one whose leaf differs in that bit: neighbours first, so that what goes between machines is small.

use super::{DIVIDED, ExchangeStep, Plan, Schedule, Scratch, part, steps};
use hal_backend::HostRange;
use hal_collectives::{Folding, Parts, Reduction, Result, Tree};
use std::ops::Range;

/// What a rank is in a leaf.
#[derive(Clone, Copy)]
enum Role {
    /// It takes part for its leaf, and for the other rank of it if there is one.
    Leader {
        leaf: u32,
        follower: Option<u32>,
    },
    Follower {
        leader: u32,
    },
}

fn role(tree: Tree, rank: u32) -> Role {
    let leaf = tree.leaf_of(rank);
    let ranks = tree.ranks_of(leaf);
    if ranks.start == rank {
        Role::Leader { leaf, follower: (ranks.len() == 2).then_some(ranks.start + 1) }
    } else {
        Role::Follower { leader: ranks.start }
    }
}

/// Combines what came from another rank with what is here, in the order of the ranks.
fn meet(folding: Folding, came: &HostRange, is_lower: bool, own: &HostRange, target: &HostRange) {
    let (left, right) = if is_lower { (came, own) } else { (own, came) };
    folding.combine(left, right, target);
}

/// Elements that are reduced in shares, one for each leader.
struct Shares {
    tree: Tree,
    folding: Folding,
    /// Where the n-th share begins, and where the last one ends, in partial results.
    bounds: Vec<u64>,
    /// What this rank begins with, and where its results so far are; the same memory from the first step on.
    source: HostRange,
    results: HostRange,
}

impl Shares {
    /// The share that a leaf ends with: the bits of its number in reverse, as the first step decides about
    /// the largest part.
    fn of_leaf(tree: Tree, leaf: u32) -> usize {
        let bits = tree.leaves().ilog2();
        (if bits == 0 { 0 } else { leaf.reverse_bits() >> (32 - bits) }) as usize
    }

    fn span(&self, shares: &Range<usize>) -> Range<u64> {
        let bound = |at: usize| self.bounds.get(at).copied().unwrap_or_default() * self.folding.width();
        bound(shares.start)..bound(shares.end)
    }

    fn cut(&self, of: &HostRange, shares: &Range<usize>) -> HostRange {
        let span = self.span(shares);
        part(of, span.start, span.end - span.start)
    }

    /// A follower's elements are folded into its leader's.
    fn take_in(&mut self, follower: u32) -> ExchangeStep {
        let all = 0..self.bounds.len() - 1;
        let step = self.exchange(follower, false, None, &all);
        self.source = self.results.clone();
        step
    }

    /// Sends some shares, receives others and folds them.
    fn exchange(
        &self,
        peer: u32,
        is_lower: bool,
        give: Option<&Range<usize>>,
        keep: &Range<usize>,
    ) -> ExchangeStep {
        let mut step = ExchangeStep::default();
        if let Some(give) = give {
            step.send(peer, Some(self.cut(&self.source, give)));
        }
        let (folding, own, target) =
            (self.folding, self.cut(&self.source, keep), self.cut(&self.results, keep));
        step.receive_and_fold(peer, own.length(), move |at, came| {
            let length = came.length();
            meet(folding, came, is_lower, &part(&own, at, length), &part(&target, at, length));
        });
        step
    }

    /// Halves, quarters and so on, until each leader has one share of the reduction of all.
    fn reduce(&mut self, leaf: u32, schedule: &mut Vec<ExchangeStep>) {
        let mut shares = 0..self.tree.leaves() as usize;
        for bit in 0..self.tree.leaves().ilog2() {
            let peer = leaf ^ (1 << bit);
            let (keep, give) = halves(&shares, leaf >> bit & 1 == 0);
            schedule.push(self.exchange(self.tree.leader_of(peer), peer < leaf, Some(&give), &keep));
            self.source = self.results.clone();
            shares = keep;
        }
    }

    /// The same way back: each leader's share, of elements, goes to all, or only to one leader.
    fn gather(
        &self,
        leaf: u32,
        to: Option<u32>,
        elements: &HostRange,
        size: u64,
        schedule: &mut Vec<ExchangeStep>,
    ) {
        let own = Self::of_leaf(self.tree, leaf);
        let mut shares = own..own + 1;
        let cut = |shares: &Range<usize>| {
            let bound = |at: usize| self.bounds.get(at).copied().unwrap_or_default() * size;
            part(elements, bound(shares.start), bound(shares.end) - bound(shares.start))
        };
        for bit in (0..self.tree.leaves().ilog2()).rev() {
            let peer = self.tree.leader_of(leaf ^ (1 << bit));
            let is_first = leaf >> bit & 1 == 0;
            let other = if is_first {
                shares.end..shares.end + shares.len()
            } else {
                shares.start - shares.len()..shares.start
            };
            // On the side of the leader that gets everything, the other side's is received; there, that was all.
            let here = to.is_none_or(|to| to >> bit & 1 == leaf >> bit & 1);
            let mut step = ExchangeStep::default();
            if to.is_none() || !here {
                step.send(peer, Some(cut(&shares)));
            }
            if here {
                step.receive(peer, Some(cut(&other)));
            }
            schedule.push(step);
            if !here {
                return;
            }
            shares = shares.start.min(other.start)..shares.end.max(other.end);
        }
    }
}

/// The first or the second half, and the other.
fn halves(shares: &Range<usize>, is_first: bool) -> (Range<usize>, Range<usize>) {
    let middle = shares.start + shares.len() / 2;
    let (first, second) = (shares.start..middle, middle..shares.end);
    if is_first { (first, second) } else { (second, first) }
}

/// A step that only sends.
fn send(to: u32, range: &HostRange) -> ExchangeStep {
    let mut step = ExchangeStep::default();
    step.send(to, Some(range.clone()));
    step
}

/// A step that only receives.
fn receive(from: u32, range: &HostRange) -> ExchangeStep {
    let mut step = ExchangeStep::default();
    step.receive(from, Some(range.clone()));
    step
}

impl Plan {
    fn folding(&self, reduction: Reduction) -> Folding {
        Folding::new(self.operation.element, reduction)
    }

    /// Elements of this rank as partial results, in memory that may be the elements'.
    fn opened(&self, folding: Folding, elements: &HostRange, scratch: &mut Scratch) -> Result<HostRange> {
        if folding.is_plain() {
            return Ok(elements.clone());
        }
        let opened = scratch.take(elements.length() / self.operation.element.size() * folding.width())?;
        folding.open(elements, &opened);
        Ok(opened)
    }

    /// The elements of all ranks, in a share for each leader.
    fn shares(
        &self,
        folding: Folding,
        send: &HostRange,
        results: Option<&HostRange>,
        scratch: &mut Scratch,
    ) -> Result<Shares> {
        let tree = Tree::new(self.ranks);
        let (count, leaves) = (u128::from(self.operation.count), u128::from(tree.leaves()));
        let bound = |share: u32| u64::try_from(count * u128::from(share) / leaves).unwrap_or(u64::MAX);
        let source = self.opened(folding, send, scratch)?;
        let results = match results {
            Some(results) if folding.is_plain() => results.clone(),
            _ => scratch.take(source.length())?,
        };
        let bounds = (0..=tree.leaves()).map(bound).collect();
        Ok(Shares { tree, folding, bounds, source, results })
    }

    /// Every rank gets the reduction.
    pub(super) fn all_reduce(
        &self,
        reduction: Reduction,
        send: &HostRange,
        recv: &HostRange,
        scratch: &mut Scratch,
    ) -> Result<Schedule> {
        let folding = self.folding(reduction);
        if self.ranks == 1 {
            return self.alone(folding, send, recv, scratch);
        }
        if self.bytes() < DIVIDED {
            return self.all_reduce_whole(folding, send, recv, scratch);
        }
        let size = self.operation.element.size();
        let mut schedule = Vec::new();
        match role(Tree::new(self.ranks), self.rank) {
            Role::Follower { leader } => {
                schedule.push(self::send(leader, &self.opened(folding, send, scratch)?));
                schedule.push(receive(leader, recv));
            }
            Role::Leader { leaf, follower } => {
                let mut shares = self.shares(folding, send, Some(recv), scratch)?;
                if let Some(follower) = follower {
                    schedule.push(shares.take_in(follower));
                }
                shares.reduce(leaf, &mut schedule);
                self.close_share(&shares, leaf, recv, &mut schedule);
                shares.gather(leaf, None, recv, size, &mut schedule);
                schedule.extend(follower.map(|follower| self::send(follower, recv)));
            }
        }
        Ok(steps(schedule))
    }

    /// After the last step so far, the share of a leader becomes elements.
    fn close_share(&self, shares: &Shares, leaf: u32, elements: &HostRange, schedule: &mut [ExchangeStep]) {
        let (own, size) = (Shares::of_leaf(shares.tree, leaf), self.operation.element.size());
        let partials = shares.cut(&shares.results, &(own..own + 1));
        let begin = shares.bounds.get(own).copied().unwrap_or_default();
        let count = partials.length() / shares.folding.width();
        let (folding, ranks) = (shares.folding, self.ranks);
        let target = part(elements, begin * size, count * size);
        if folding.is_closed() && std::ptr::eq(target.address(), partials.address()) {
            return;
        }
        if let Some(last) = schedule.last_mut() {
            last.after = Some(Box::new(move || folding.close(&partials, ranks, &target)));
        }
    }

    /// A group of one.
    fn alone(
        &self,
        folding: Folding,
        send: &HostRange,
        recv: &HostRange,
        scratch: &mut Scratch,
    ) -> Result<Schedule> {
        folding.close(&self.opened(folding, send, scratch)?, 1, recv);
        Ok(steps(Vec::new()))
    }

    /// Each leader exchanges everything in each step.
    fn all_reduce_whole(
        &self,
        folding: Folding,
        send: &HostRange,
        recv: &HostRange,
        scratch: &mut Scratch,
    ) -> Result<Schedule> {
        let tree = Tree::new(self.ranks);
        let own = scratch.take(send.length() / self.operation.element.size() * folding.width())?;
        folding.open(send, &own);
        let mut schedule = Vec::with_capacity(tree.leaves().ilog2() as usize + 2);
        match role(tree, self.rank) {
            Role::Follower { leader } => {
                schedule.push(self::send(leader, &own));
                schedule.push(receive(leader, recv));
            }
            Role::Leader { leaf, follower } => {
                if let Some(follower) = follower {
                    schedule.push(self.fold_in(folding, follower, &own, scratch)?);
                }
                for bit in 0..tree.leaves().ilog2() {
                    let peer = leaf ^ (1 << bit);
                    let mut step = self.fold_in(folding, tree.leader_of(peer), &own, scratch)?;
                    step.send(tree.leader_of(peer), Some(own.clone()));
                    schedule.push(step);
                }
                let (ranks, target) = (self.ranks, recv.clone());
                if let Some(last) = schedule.last_mut() {
                    let fold = last.after.take();
                    last.after = Some(Box::new(move || {
                        fold.into_iter().for_each(|fold| fold());
                        folding.close(&own, ranks, &target);
                    }));
                }
                schedule.extend(follower.map(|follower| self::send(follower, recv)));
            }
        }
        Ok(steps(schedule))
    }

    /// Receives another rank's partial results and folds them into those of this one, when what is sent has gone.
    fn fold_in(
        &self,
        folding: Folding,
        peer: u32,
        own: &HostRange,
        scratch: &mut Scratch,
    ) -> Result<ExchangeStep> {
        let came = scratch.take(own.length())?;
        let step = receive(peer, &came);
        let (own, is_lower) = (own.clone(), peer < self.rank);
        Ok(step.after(move || meet(folding, &came, is_lower, &own, &own)))
    }

    /// The root gets the reduction.
    pub(super) fn reduce(
        &self,
        reduction: Reduction,
        root: u32,
        send: &HostRange,
        recv: Option<&HostRange>,
        scratch: &mut Scratch,
    ) -> Result<Schedule> {
        let folding = self.folding(reduction);
        if let (1, Some(recv)) = (self.ranks, recv) {
            return self.alone(folding, send, recv, scratch);
        }
        if self.bytes() < DIVIDED * 4 {
            return self.reduce_whole(folding, root, send, recv, scratch);
        }
        let tree = Tree::new(self.ranks);
        let elements = match recv {
            Some(recv) => recv.clone(),
            None => scratch.take(self.bytes())?,
        };
        let size = self.operation.element.size();
        let to = tree.leaf_of(root);
        let mut schedule = Vec::new();
        match role(tree, self.rank) {
            Role::Follower { leader } => {
                schedule.push(self::send(leader, &self.opened(folding, send, scratch)?));
                if self.rank == root {
                    schedule.push(receive(leader, &elements));
                }
            }
            Role::Leader { leaf, follower } => {
                let mut shares = self.shares(folding, send, Some(&elements), scratch)?;
                if let Some(follower) = follower {
                    schedule.push(shares.take_in(follower));
                }
                shares.reduce(leaf, &mut schedule);
                self.close_share(&shares, leaf, &elements, &mut schedule);
                shares.gather(leaf, Some(to), &elements, size, &mut schedule);
                if leaf == to && follower == Some(root) {
                    schedule.push(self::send(root, &elements));
                }
            }
        }
        Ok(steps(schedule))
    }

    /// Along the tree: each block of ranks is represented by the root if it is in it, and otherwise by its first rank.
    fn reduce_whole(
        &self,
        folding: Folding,
        root: u32,
        send: &HostRange,
        recv: Option<&HostRange>,
        scratch: &mut Scratch,
    ) -> Result<Schedule> {
        let tree = Tree::new(self.ranks);
        let own = scratch.take(send.length() / self.operation.element.size() * folding.width())?;
        folding.open(send, &own);
        let (leaf, root_leaf) = (tree.leaf_of(self.rank), tree.leaf_of(root));
        let speaker = |leaf: u32| if leaf == root_leaf { root } else { tree.leader_of(leaf) };
        let mut schedule = Vec::new();
        for rank in tree.ranks_of(leaf).filter(|&rank| rank != self.rank) {
            if self.rank != speaker(leaf) {
                return Ok(steps(vec![self::send(rank, &own)]));
            }
            schedule.push(self.fold_in(folding, rank, &own, scratch)?);
        }
        for bit in 0..tree.leaves().ilog2() {
            // The first leaf of a block of this size, or the root's if that is in it.
            let block = |leaf: u32| {
                let begin = leaf >> bit << bit;
                if root_leaf >> bit == leaf >> bit { root_leaf } else { begin }
            };
            let (here, there) = (block(leaf), block(leaf ^ (1 << bit)));
            debug_assert_eq!(here, leaf, "only who represents a block goes on");
            let wins = root_leaf >> bit == leaf >> bit
                || (root_leaf >> bit != (leaf ^ (1 << bit)) >> bit && leaf >> bit & 1 == 0);
            if !wins {
                schedule.push(self::send(speaker(there), &own));
                return Ok(steps(schedule));
            }
            schedule.push(self.fold_in(folding, speaker(there), &own, scratch)?);
        }
        if let Some(recv) = recv.cloned() {
            let ranks = self.ranks;
            schedule.push(ExchangeStep::default().after(move || folding.close(&own, ranks, &recv)));
        }
        Ok(steps(schedule))
    }

    /// Each rank gets its part of the reduction. Parts are put in the order in which they are halved.
    pub(super) fn reduce_scatter(
        &self,
        reduction: Reduction,
        send: &Parts,
        recv: &HostRange,
        scratch: &mut Scratch,
    ) -> Result<Schedule> {
        let folding = self.folding(reduction);
        if self.ranks == 1 {
            return self.alone(folding, &send.whole(), recv, scratch);
        }
        let tree = Tree::new(self.ranks);
        let mut bounds = vec![0];
        let (count, width, bytes) = (self.operation.count, folding.width(), self.bytes());
        let packed = scratch.take(count * width * u64::from(self.ranks))?;
        let mut at = 0;
        for share in 0..tree.leaves() {
            // Reversing bits is its own inverse.
            let leaf = u32::try_from(Shares::of_leaf(tree, share)).unwrap_or_default();
            for rank in tree.ranks_of(leaf) {
                folding.open(&send.of(rank), &part(&packed, at * width, count * width));
                at += count;
            }
            bounds.push(at);
        }
        let mut schedule = Vec::new();
        match role(tree, self.rank) {
            Role::Follower { leader } => {
                schedule.push(self::send(leader, &packed));
                schedule.push(receive(leader, recv));
            }
            Role::Leader { leaf, follower } => {
                let mut shares = Shares { tree, folding, bounds, source: packed.clone(), results: packed };
                if let Some(follower) = follower {
                    schedule.push(shares.take_in(follower));
                }
                shares.reduce(leaf, &mut schedule);
                let own = Shares::of_leaf(tree, leaf);
                let share = shares.cut(&shares.results, &(own..own + 1));
                let theirs = match follower {
                    Some(_) => Some((part(&share, count * width, count * width), scratch.take(bytes)?)),
                    None => None,
                };
                let (ranks, recv, mine) = (self.ranks, recv.clone(), part(&share, 0, count * width));
                let closing = theirs.clone();
                schedule.push(ExchangeStep::default().after(move || {
                    folding.close(&mine, ranks, &recv);
                    if let Some((partials, elements)) = closing {
                        folding.close(&partials, ranks, &elements);
                    }
                }));
                schedule
                    .extend(follower.zip(theirs).map(|(rank, (_, elements))| self::send(rank, &elements)));
            }
        }
        Ok(steps(schedule))
    }
}
