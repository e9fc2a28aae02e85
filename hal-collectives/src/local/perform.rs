// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Moves and reduces the bytes of an operation, once all ranks have entered it.
//!
//! Every kind does to some bytes of each part what it does to all of them, so a large piece is [spread](crate::spread) over threads by
//! the places of bytes. Each element is folded by one thread, in the order that is the same for all.

use super::meeting::Arrival;
use crate::operation::{Kind, Line, Side};
use crate::spread::spread;
use crate::{Element, Parts, Reduction, Result, reduce};
use hal_backend::HostRange;
use hal_semaphore::Failure;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

/// How many bytes of a part one thread moves at a time. Every element's size divides it. What is smaller costs less than to have another
/// thread help.
const GRAIN: u64 = 128 << 10;

/// The memory of all ranks for one operation, in the order of the ranks; of a transfer the sender's and the receiver's.
struct Everyone(Vec<Arrival>);

/// Does what all have come for, on the thread of one of them, whose side is `own`. Returns them, alone in having their memory, and whether a thread has panicked.
pub(super) fn perform(line: Line, arrivals: Vec<Arrival>, own: Side) -> (Vec<Arrival>, Result) {
    #[expect(clippy::cast_possible_truncation, reason = "ranks have numbers of 32 bits")]
    let ranks = if line == Line::Everyone { arrivals.len() as u32 } else { 2 };
    let everyone = Everyone(arrivals);
    let length = everyone.first().piece.part(ranks);
    if length <= GRAIN {
        let outcome = everyone.try_to_perform(line, &(0..length));
        return (everyone.0, outcome);
    }
    let grains = u32::try_from(length.div_ceil(GRAIN)).unwrap_or(u32::MAX);
    let grain = length.div_ceil(u64::from(grains)).next_multiple_of(GRAIN);
    // A rank's share is the same in each operation, whichever comes last: what it wrote the last time is near its processor.
    let first = u64::from(grains) * u64::from(own) / u64::from(ranks);
    let first = u32::try_from(first).unwrap_or_default();
    let (everyone, failed) =
        spread((everyone, OnceLock::new()), grains, first, move |(everyone, failed), number| {
            let from = u64::from(number) * grain;
            if let Err(failure) = everyone.try_to_perform(line, &(from..length.min(from + grain))) {
                let _ = failed.set(failure);
            }
        });
    (everyone.0, failed.into_inner().map_or(Ok(()), Err))
}

/// Some bytes of a part.
#[expect(clippy::expect_used, reason = "what a part lacks would silently not be moved")]
fn cut(part: &HostRange, span: &Range<u64>) -> HostRange {
    let some = part.slice(span.start, span.end - span.start);
    some.expect("all parts are as long as the operation says")
}

/// Copies some bytes of one onto the other, which is as long.
fn copy(source: &HostRange, target: &HostRange, span: &Range<u64>) {
    let fits = cut(target, span).copy_from(&cut(source, span));
    debug_assert!(fits, "both are as long as the operation says");
}

/// What one rank sends another.
fn transfer(sender: &Arrival, receiver: &Arrival, span: &Range<u64>) {
    if let (Some(source), Some(target)) = (&sender.memory.send, &receiver.memory.recv) {
        copy(&source.whole(), &target.whole(), span);
    }
}

impl Everyone {
    /// The first to be there, and what is done.
    #[expect(clippy::indexing_slicing, reason = "a group has a rank, and a transfer two ends")]
    fn first(&self) -> &Arrival {
        &self.0[0]
    }

    /// Does some bytes of each part. A panic is of concern to all ranks, and they are told; the thread goes on.
    fn try_to_perform(&self, line: Line, span: &Range<u64>) -> Result {
        let performed = catch_unwind(AssertUnwindSafe(|| self.perform(line, span)));
        performed.map_err(|payload| Failure::panicked("the thread that moves its bytes", payload))
    }

    /// Does some bytes of each part.
    #[expect(clippy::indexing_slicing, reason = "a root is one of the ranks, as each of them has checked")]
    fn perform(&self, line: Line, span: &Range<u64>) {
        if let Line::Pair { .. } = line {
            match self.0.as_slice() {
                [sender, receiver] => transfer(sender, receiver, span),
                _ => debug_assert!(false, "a pair has two ends"),
            }
            return;
        }
        let operation = self.first().piece.operation;
        match operation.kind {
            Kind::AllGather => {
                self.for_each_pair(|from, _, source, target| copy(&source.whole(), &target.of(from), span));
            }
            Kind::AllToAll => {
                self.for_each_pair(|from, to, source, target| copy(&source.of(to), &target.of(from), span));
            }
            Kind::Broadcast { root } => {
                for other in &self.0 {
                    transfer(&self.0[root as usize], other, span);
                }
            }
            Kind::AllReduce(reduction) | Kind::Reduce { reduction, .. } => {
                let targets: Vec<_> =
                    self.0.iter().filter_map(|rank| Some(rank.memory.recv.as_ref()?.whole())).collect();
                self.reduce((operation.element, reduction), 0, &targets, span);
            }
            Kind::ReduceScatter(reduction) => {
                for (rank, arrival) in (0..).zip(&self.0) {
                    let target = arrival.memory.recv.as_ref().map(Parts::whole);
                    self.reduce((operation.element, reduction), rank, target.as_slice(), span);
                }
            }
            Kind::Send { .. } | Kind::Recv { .. } | Kind::SendRecv { .. } => {
                debug_assert!(false, "two ranks do that by themselves");
            }
        }
    }

    /// Does something with what each rank sends and where each gets it.
    fn for_each_pair(&self, mut each: impl FnMut(u32, u32, &Parts, &Parts)) {
        for (from, sender) in (0..).zip(&self.0) {
            for (to, receiver) in (0..).zip(&self.0) {
                if let (Some(source), Some(target)) = (&sender.memory.send, &receiver.memory.recv) {
                    each(from, to, source, target);
                }
            }
        }
    }

    /// Reduces some bytes of a part of what all ranks send, and puts the result into each target.
    fn reduce(&self, how: (Element, Reduction), part: u32, targets: &[HostRange], span: &Range<u64>) {
        let sources: Vec<HostRange> =
            self.0.iter().filter_map(|arrival| Some(arrival.memory.send.as_ref()?.of(part))).collect();
        reduce(how.0, how.1, &sources, (span.start, span.end - span.start), &mut |at, bytes| {
            for target in targets {
                let fits = target.write(span.start + at, bytes);
                debug_assert!(fits, "a target is as long as the operation says");
            }
        });
    }
}
