// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The order in which the elements of several ranks are folded.

use std::ops::Range;

/// A balanced tree over the ranks in order. It depends on their number only.
///
/// Its leaves are a power of two. If the ranks are not, the first leaves are pairs of ranks. Neighbouring leaves
/// are folded, then neighbouring pairs of leaves, and so on: of four ranks `(0 1) (2 3)`, of three `(0 1) 2`, of
/// six `((0 1) (2 3)) (4 5)`. So the rounding error of a sum grows with the logarithm of the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    ranks: u32,
    leaves: u32,
}

impl Tree {
    /// The tree of `ranks` ranks, at least one.
    pub(crate) fn new(ranks: u32) -> Self {
        Self { ranks: ranks.max(1), leaves: 1 << ranks.max(1).ilog2() }
    }

    /// The number of leaves: the largest power of two that is at most the number of ranks.
    pub(crate) fn leaves(self) -> u32 {
        self.leaves
    }

    /// The number of steps from a leaf to the root.
    pub(crate) fn height(self) -> usize {
        self.leaves.ilog2() as usize
    }

    /// The number of leaves that are pairs of ranks: the first ones.
    fn pairs(self) -> u32 {
        self.ranks - self.leaves
    }

    /// The ranks of a leaf: one, or two.
    pub(crate) fn ranks_of(self, leaf: u32) -> Range<u32> {
        if leaf < self.pairs() {
            2 * leaf..2 * leaf + 2
        } else {
            leaf + self.pairs()..leaf + self.pairs() + 1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_hold_each_rank_once_and_in_order() {
        for ranks in 1..70 {
            let tree = Tree::new(ranks);
            assert!(tree.leaves().is_power_of_two() && tree.leaves() <= ranks && ranks < 2 * tree.leaves());
            let all: Vec<u32> = (0..tree.leaves()).flat_map(|leaf| tree.ranks_of(leaf)).collect();
            assert_eq!(all, (0..ranks).collect::<Vec<u32>>());
        }
    }
}
