// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Moving the bytes, when everybody is there.

use super::meeting::Arrival;
use crate::operation::Kind;
use crate::{Buffers, Element, Reduction, reduce};
use hal_backend::HostRange;

/// Everybody's memory for one operation, in the order of the ranks.
pub(super) struct Everyone<'a>(pub(super) &'a [Arrival]);

/// Copies all of one onto the other, which is as long.
fn copy(source: &HostRange, target: &HostRange) {
    let fits = target.copy_from(source);
    debug_assert!(fits, "both are as long as the operation says");
}

/// What one rank sends another.
pub(super) fn transfer(sender: &Buffers, receiver: &Buffers) {
    if let (Some(source), Some(target)) = (&sender.send, &receiver.recv) {
        copy(source, target);
    }
}

impl Everyone<'_> {
    pub(super) fn perform(&self) {
        let Some(operation) = self.0.first().map(|first| first.operation) else { return };
        let bytes = operation.count * operation.element.size();
        match operation.kind {
            Kind::AllGather => self.for_each_pair(|from, to, source, target| {
                let _ = to;
                self.part(source, target, (0, from * bytes, bytes));
            }),
            Kind::AllToAll => {
                let part = bytes / self.0.len().max(1) as u64;
                self.for_each_pair(|from, to, source, target| {
                    self.part(source, target, (to * part, from * part, part));
                });
            }
            Kind::Broadcast { root } => {
                let Some(root) = self.0.get(root as usize) else { return };
                for other in self.0 {
                    transfer(&root.buffers, &other.buffers);
                }
            }
            Kind::AllReduce(reduction) | Kind::Reduce { reduction, .. } => {
                let targets: Vec<_> = self.0.iter().filter_map(|rank| rank.buffers.recv.as_ref()).collect();
                self.reduce((operation.element, reduction), (0, bytes), &targets);
            }
            Kind::ReduceScatter(reduction) => {
                for (rank, arrival) in (0_u64..).zip(self.0) {
                    let targets: Vec<_> = arrival.buffers.recv.iter().collect();
                    self.reduce((operation.element, reduction), (rank * bytes, bytes), &targets);
                }
            }
            Kind::Send { .. } | Kind::Recv { .. } | Kind::SendRecv { .. } => {
                debug_assert!(false, "two ranks do that by themselves");
            }
        }
    }

    /// Does something with what each rank sends and where each gets it.
    fn for_each_pair(&self, mut each: impl FnMut(u64, u64, &HostRange, &HostRange)) {
        for (from, sender) in (0..).zip(self.0) {
            for (to, receiver) in (0..).zip(self.0) {
                if let (Some(source), Some(target)) = (&sender.buffers.send, &receiver.buffers.recv) {
                    each(from, to, source, target);
                }
            }
        }
    }

    fn part(&self, source: &HostRange, target: &HostRange, (from, to, bytes): (u64, u64, u64)) {
        if let (Some(source), Some(target)) = (source.slice(from, bytes), target.slice(to, bytes)) {
            copy(&source, &target);
        }
    }

    /// Reduces some bytes of what everybody sends, and puts the result at the beginning of each target.
    fn reduce(&self, how: (Element, Reduction), span: (u64, u64), targets: &[&HostRange]) {
        let sources: Vec<HostRange> =
            self.0.iter().filter_map(|arrival| arrival.buffers.send.clone()).collect();
        reduce(how.0, how.1, &sources, span, &mut |at, bytes| {
            for target in targets {
                let fits = target.write(at, bytes);
                debug_assert!(fits, "a target is as long as the operation says");
            }
        });
    }
}
