// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Moves and reduces the bytes of an operation, once all ranks have entered it.
//!
//! Every kind treats each range of its parts alike, so a large piece is [spread](crate::spread) over threads by
//! byte ranges. One thread folds each element, in the order that is the same for all.

use super::rendezvous::Arrival;
use crate::operation::{Kind, Operation, Participants, Side};
use crate::spread::spread;
use crate::{Element, Parts, Piece, Reduction, Result, reduce};
use hal_backend::HostRange;
use hal_semaphore::Failure;
use smallvec::SmallVec;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

/// The bytes of a part that one thread moves at a time: each rank's share of the part, within these limits, rounded up
/// to a multiple of the least, and so of every element's size. A smaller grain costs less than the help of another
/// thread.
const LEAST_GRAIN: u64 = 32 << 10;
const LARGEST_GRAIN: u64 = 128 << 10;

/// The memory of all ranks for one operation, in rank order; for a transfer that of the sender and of the receiver.
struct AllRanks(Vec<Arrival>);

/// Performs a piece of all ranks, on the thread of the rank with the side `own`. Returns the ranks, whose
/// memory no other thread uses any more, and the outcome, which is a failure if a thread panicked.
pub(super) fn perform(
    participants: Participants,
    piece: Piece,
    arrivals: Vec<Arrival>,
    own: Side,
) -> (Vec<Arrival>, Result) {
    #[expect(clippy::cast_possible_truncation, reason = "ranks are 32-bit numbers")]
    let ranks = if participants == Participants::Everyone { arrivals.len() as u32 } else { 2 };
    let all = AllRanks(arrivals);
    let (operation, length) = (piece.operation, piece.part(ranks));
    let share = length.div_ceil(u64::from(ranks)).clamp(LEAST_GRAIN, LARGEST_GRAIN);
    let share = share.next_multiple_of(LEAST_GRAIN);
    let grains = u32::try_from(length.div_ceil(share)).unwrap_or(u32::MAX);
    if grains <= 1 {
        let outcome = all.try_to_perform(participants, operation, &(0..length));
        return (all.0, outcome);
    }
    let grain = length.div_ceil(u64::from(grains)).next_multiple_of(LEAST_GRAIN);
    // A rank's share is the same in each operation, whichever rank comes last: what it wrote the last time is near
    // its processor.
    let first = u64::from(grains) * u64::from(own) / u64::from(ranks);
    let first = u32::try_from(first).unwrap_or_default();
    let (all, failed) = spread((all, OnceLock::new()), grains, first, move |(all, failed), number| {
        let from = u64::from(number) * grain;
        if let Err(failure) = all.try_to_perform(participants, operation, &(from..length.min(from + grain))) {
            let _ = failed.set(failure);
        }
    });
    (all.0, failed.into_inner().map_or(Ok(()), Err))
}

/// A range of a part.
#[expect(clippy::expect_used, reason = "a skipped range would silently corrupt the result")]
fn cut(part: &HostRange, span: &Range<u64>) -> HostRange {
    let some = part.slice(span.start, span.end - span.start);
    some.expect("all parts are as long as the operation says")
}

/// Copies a range of one part onto another of the same length.
fn copy(source: &HostRange, target: &HostRange, span: &Range<u64>) {
    let fits = cut(target, span).copy_from(&cut(source, span));
    debug_assert!(fits, "both are as long as the operation says");
}

/// Copies from one rank to another.
fn transfer(sender: &Arrival, receiver: &Arrival, span: &Range<u64>) {
    if let (Some(source), Some(target)) = (&sender.memory.send, &receiver.memory.recv) {
        copy(&source.whole(), &target.whole(), span);
    }
}

impl AllRanks {
    /// Performs a range of each part. A panic becomes a failure for all ranks; the thread goes on.
    fn try_to_perform(&self, participants: Participants, operation: Operation, span: &Range<u64>) -> Result {
        let performed = catch_unwind(AssertUnwindSafe(|| self.perform(participants, operation, span)));
        performed.map_err(|payload| Failure::panicked("the thread that moves its bytes", payload))
    }

    /// Performs a range of each part.
    #[expect(clippy::indexing_slicing, reason = "a root is one of the ranks, as each of them has checked")]
    fn perform(&self, participants: Participants, operation: Operation, span: &Range<u64>) {
        if let Participants::Pair { .. } = participants {
            match self.0.as_slice() {
                [sender, receiver] => transfer(sender, receiver, span),
                _ => debug_assert!(false, "a pair has two ends"),
            }
            return;
        }
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
                let targets: SmallVec<[_; 4]> =
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

    /// Calls `each` with every pair of a sender and a receiver, and their memory.
    fn for_each_pair(&self, mut each: impl FnMut(u32, u32, &Parts, &Parts)) {
        for (from, sender) in (0..).zip(&self.0) {
            for (to, receiver) in (0..).zip(&self.0) {
                if let (Some(source), Some(target)) = (&sender.memory.send, &receiver.memory.recv) {
                    each(from, to, source, target);
                }
            }
        }
    }

    /// Reduces a range of a part over all ranks, and writes the result into each target.
    fn reduce(&self, how: (Element, Reduction), part: u32, targets: &[HostRange], span: &Range<u64>) {
        let sources: SmallVec<[HostRange; 4]> =
            self.0.iter().filter_map(|arrival| Some(arrival.memory.send.as_ref()?.of(part))).collect();
        reduce(how.0, how.1, &sources, (span.start, span.end - span.start), &mut |at, bytes| {
            for target in targets {
                let fits = target.write(span.start + at, bytes);
                debug_assert!(fits, "a target is as long as the operation says");
            }
        });
    }
}
