// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Moving the bytes, when everybody is there.

use super::meeting::Arrival;
use crate::operation::Kind;
use crate::{Element, Parts, Portions, Reduction, reduce};
use hal_backend::HostRange;

/// Everybody's memory for one operation, in the order of the ranks.
pub(super) struct Everyone<'a>(pub(super) &'a [Arrival]);

/// Copies all of one onto the other, which is as long.
fn copy(source: &HostRange, target: &HostRange) {
    let fits = target.copy_from(source);
    debug_assert!(fits, "both are as long as the operation says");
}

/// What one rank sends another.
pub(super) fn transfer(sender: &Portions, receiver: &Portions) {
    if let (Some(source), Some(target)) = (&sender.send, &receiver.recv) {
        copy(&source.whole(), &target.whole());
    }
}

impl Everyone<'_> {
    pub(super) fn perform(&self) {
        let Some(operation) = self.0.first().map(|first| first.piece.operation) else { return };
        match operation.kind {
            Kind::AllGather => {
                self.for_each_pair(|from, _, source, target| copy(&source.whole(), &target.of(from)));
            }
            Kind::AllToAll => {
                self.for_each_pair(|from, to, source, target| copy(&source.of(to), &target.of(from)));
            }
            Kind::Broadcast { root } => {
                let Some(root) = self.0.get(root as usize) else { return };
                for other in self.0 {
                    transfer(&root.memory, &other.memory);
                }
            }
            Kind::AllReduce(reduction) | Kind::Reduce { reduction, .. } => {
                let targets: Vec<_> =
                    self.0.iter().filter_map(|rank| Some(rank.memory.recv.as_ref()?.whole())).collect();
                self.reduce((operation.element, reduction), 0, &targets);
            }
            Kind::ReduceScatter(reduction) => {
                for (rank, arrival) in (0..).zip(self.0) {
                    let target = arrival.memory.recv.as_ref().map(Parts::whole);
                    self.reduce((operation.element, reduction), rank, target.as_slice());
                }
            }
            Kind::Send { .. } | Kind::Recv { .. } | Kind::SendRecv { .. } => {
                debug_assert!(false, "two ranks do that by themselves");
            }
        }
    }

    /// Does something with what each rank sends and where each gets it.
    fn for_each_pair(&self, mut each: impl FnMut(u32, u32, &Parts, &Parts)) {
        for (from, sender) in (0..).zip(self.0) {
            for (to, receiver) in (0..).zip(self.0) {
                if let (Some(source), Some(target)) = (&sender.memory.send, &receiver.memory.recv) {
                    each(from, to, source, target);
                }
            }
        }
    }

    /// Reduces a part of what everybody sends, and puts the result into each target.
    fn reduce(&self, how: (Element, Reduction), part: u32, targets: &[HostRange]) {
        let sources: Vec<HostRange> =
            self.0.iter().filter_map(|arrival| Some(arrival.memory.send.as_ref()?.of(part))).collect();
        let Some(length) = sources.first().map(HostRange::length) else { return };
        reduce(how.0, how.1, &sources, (0, length), &mut |at, bytes| {
            for target in targets {
                let fits = target.write(at, bytes);
                debug_assert!(fits, "a target is as long as the operation says");
            }
        });
    }
}
