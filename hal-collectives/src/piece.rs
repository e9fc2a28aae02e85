// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Pieces: the parts that a large operation is divided into.
//!
//! A *piece* is an operation of the same kind on some of the elements; if the memory has a part for each rank, on
//! the same elements of each part. The division depends on the operation and its group only, so all ranks divide it
//! in the same way, whatever their memory. A rank whose memory the host cannot map then needs host memory for a few
//! pieces only, and copies one while others are under way; and a rank's partial results do not grow with the
//! operation.
//!
//! Pieces use different bytes. They may be done in any order and at the same time, even if an operation works in
//! place.

use crate::Result;
use crate::communicator::{Buffers, Done, Job, OperationEntry, PieceEntry};
use crate::jobs::run;
use crate::operation::{Kind, Operation};
use hal_backend::HostRange;
use hal_semaphore::{Code, Failure};
use std::time::Duration;

/// The default size of a piece: the most bytes of a rank's memory that it sends or receives, [up to four times](WIDER)
/// as many if that has a part for each rank, or one element of each part if that is more.
pub const PIECE: u64 = 4 << 20;

/// What one rank sends to another is as much less than a piece as there are parts, and small messages are slow: so such
/// a piece is as many times larger, at most.
pub const WIDER: u64 = 4;

/// The number of pieces of an operation that a rank has under way while it copies others.
pub const WINDOW: u64 = 3;

/// The settings that all ranks of a group agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long an operation waits for ranks that do not come, a century at most.
    pub timeout: Duration,
    /// The [size of a piece](PIECE), the same for all ranks.
    pub piece: u64,
    /// Which operations ranks in different processes compare, the same for all ranks.
    pub check: Check,
}

/// The operations of a group that ranks in different processes compare before any byte moves. Within a process all
/// are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Check {
    /// None.
    Off,
    /// The first one of each shape: kind, type, count and root.
    #[default]
    First,
    /// All.
    On,
}

/// The longest timeout, which every clock can add to the present time.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl Terms {
    /// The same, with a timeout that can be added to the present time.
    #[must_use]
    pub fn bounded(self) -> Self {
        Self { timeout: self.timeout.min(CENTURY), ..self }
    }
}

impl From<Duration> for Terms {
    fn from(timeout: Duration) -> Self {
        Self { timeout, piece: PIECE, check: Check::default() }
    }
}

/// Some of the elements of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its number, from 0.
    pub number: u32,
    /// The operation on its elements.
    pub operation: Operation,
    /// The first element in each part, and the length of the parts.
    first: u64,
    stride: u64,
}

/// The division of an operation among a number of ranks.
#[derive(Clone, Copy, Debug)]
pub struct Pieces {
    operation: Operation,
    ranks: u64,
    /// The elements of a part, and those of a part that one piece has.
    part: u64,
    each: u64,
}

impl Pieces {
    /// Divides an operation of `ranks` ranks into pieces of [that size](PIECE).
    pub fn new(operation: Operation, ranks: u32, most: u64) -> Self {
        let ranks = u64::from(ranks.max(1));
        let (parts, part) = match operation.kind {
            Kind::AllToAll => (ranks, operation.count / ranks),
            Kind::AllGather | Kind::ReduceScatter(_) => (ranks, operation.count),
            _ => (1, operation.count),
        };
        let column = operation.element.size().saturating_mul(parts.div_ceil(WIDER));
        // At most as many pieces as a number can name.
        let each = (most / column).max(1).max(part.div_ceil(u64::from(u32::MAX)));
        Self { operation, ranks, part, each }
    }

    /// The number of pieces, at least one.
    #[expect(clippy::cast_possible_truncation, reason = "each is large enough that 32 bits count them")]
    pub fn count(self) -> u32 {
        (self.part.div_ceil(self.each) as u32).max(1)
    }

    /// The piece with this number.
    pub fn get(self, number: u32) -> Piece {
        let first = u64::from(number) * self.each;
        let elements = self.part.saturating_sub(first).min(self.each);
        let size = self.operation.element.size();
        let count = if self.operation.kind == Kind::AllToAll { elements * self.ranks } else { elements };
        let operation = Operation { count, ..self.operation };
        Piece { number, operation, first: first * size, stride: self.part * size }
    }
}

/// The bytes of a piece in a rank's memory: one range for each rank, or only one.
#[derive(Clone, Debug)]
pub struct Parts {
    memory: HostRange,
    first: u64,
    stride: u64,
    length: u64,
}

impl Parts {
    /// The range of a rank, or the only one.
    #[expect(clippy::expect_used, reason = "other memory in its place would be another rank's")]
    pub fn of(&self, rank: u32) -> HostRange {
        let part = self.memory.slice(self.first + u64::from(rank) * self.stride, self.length);
        part.expect("memory is as long as its operation says")
    }

    /// The only range.
    pub fn whole(&self) -> HostRange {
        self.of(0)
    }

    /// The ranges of so many ranks, with the bytes between them, and nothing else.
    #[expect(clippy::expect_used, reason = "other memory in its place would be another rank's")]
    pub fn into_all(self, ranks: u32) -> HostRange {
        let length = self.stride * u64::from(ranks.max(1) - 1) + self.length;
        self.memory.into_slice(self.first, length).expect("memory is as long as its operation says")
    }

    /// Where the range of a rank begins.
    pub fn address(&self, rank: u32) -> u64 {
        self.memory.address() as u64 + self.first + u64::from(rank) * self.stride
    }

    /// The bytes from the beginning of one range to that of the next, unless they are adjacent.
    pub fn stride(&self) -> Option<u64> {
        (self.stride != self.length).then_some(self.stride)
    }
}

/// The memory of a piece.
#[derive(Clone)]
pub enum Memory {
    /// The memory of the whole operation, of which the piece uses its elements.
    Whole(HostRange),
    /// The memory of the piece alone: its ranges, one after the other.
    Alone(HostRange),
}

impl Piece {
    /// The bytes of each part that it has.
    pub fn part(&self, ranks: u32) -> u64 {
        let bytes = self.operation.count * self.operation.element.size();
        if self.operation.kind == Kind::AllToAll { bytes / u64::from(ranks.max(1)) } else { bytes }
    }

    /// The offset of its bytes of a rank's part, or of the only one, in the memory of the whole operation.
    pub fn offset_of(&self, rank: u32) -> u64 {
        self.first + u64::from(rank) * self.stride
    }

    /// The ranges that a rank uses, each as long as the piece needs it, and absent if it needs none. Refused if they
    /// are not there.
    pub fn cut(&self, buffers: Buffers<Memory>, (rank, ranks): (u32, u32)) -> Result<Buffers<Parts>> {
        let places = self.operation.places(rank, ranks);
        let length = self.part(ranks);
        let cut = |memory: Option<Memory>, bytes: Option<u64>, does: &str| {
            let Some(bytes) = bytes.filter(|&bytes| bytes > 0) else { return Ok(None) };
            let last = (bytes / length.max(1)).max(1) - 1;
            let parts = memory.map(|memory| match memory {
                Memory::Whole(memory) => Parts { memory, first: self.first, stride: self.stride, length },
                Memory::Alone(memory) => Parts { memory, first: 0, stride: length, length },
            });
            parts
                .filter(|parts| {
                    let end = parts.first + last * parts.stride + length;
                    end <= parts.memory.length()
                })
                .map(Some)
                .ok_or_else(|| {
                    let message =
                        format!("{} {does} {bytes} bytes, but has no memory for them", self.operation);
                    Failure::new(Code::OutOfRange, message)
                })
        };
        Ok(Buffers {
            send: cut(buffers.send, places.send, "sends")?,
            recv: cut(buffers.recv, places.recv, "receives")?,
        })
    }
}

/// An operation that a rank has entered, as a group's implementation has it. Clones are the same operation.
pub trait GroupOperation: Clone + Send + Sync + 'static {
    /// The operation as the rank requested it.
    fn operation(&self) -> Operation;
    /// The rank and the number of ranks.
    fn place(&self) -> (u32, u32);
    /// The [size of a piece](PIECE).
    fn piece_size(&self) -> u64;
    /// Starts a piece with its memory, or with a failure that ends the group.
    fn start(&self, piece: Piece, memory: Result<Buffers<Parts>>, done: Done) -> Option<Job>;
    /// Ends the group, as this rank cannot take part.
    fn fail(&self, why: &Failure);

    /// The division of the operation.
    fn pieces(&self) -> Pieces {
        Pieces::new(self.operation(), self.place().1, self.piece_size())
    }
}

/// Gives the operation up when dropped, unless it was started or given up.
struct GiveUpGuard<S: GroupOperation>(Option<S>);

impl<S: GroupOperation> GiveUpGuard<S> {
    fn give_up(mut self, why: &Failure) {
        if let Some(entered) = self.0.take() {
            entered.fail(why);
        }
    }
}

impl<S: GroupOperation> Drop for GiveUpGuard<S> {
    fn drop(&mut self) {
        if let Some(entered) = self.0.take() {
            entered.fail(&Failure::new(Code::Cancelled, "it was cancelled"));
        }
    }
}

/// An operation that a rank has entered, as a group gives it to a driver.
pub struct Entered<S: GroupOperation>(GiveUpGuard<S>);

impl<S: GroupOperation> Entered<S> {
    /// The operation with all of its pieces.
    pub fn new(entered: S) -> Self {
        Self(GiveUpGuard(Some(entered)))
    }
}

impl<S: GroupOperation> OperationEntry for Entered<S> {
    fn start(mut self: Box<Self>, buffers: Buffers, done: Done) -> Option<Job> {
        let entered = self.0.0.take()?;
        let pieces = entered.pieces();
        let buffers = match buffers.cut(&entered.operation(), entered.place()) {
            Ok(buffers) => buffers,
            Err(failure) => return entered.start(pieces.get(0), Err(failure), done),
        };
        let memory = Buffers { send: buffers.send.map(Memory::Whole), recv: buffers.recv.map(Memory::Whole) };
        if pieces.count() == 1 {
            let (piece, place) = (pieces.get(0), entered.place());
            return entered.start(piece, piece.cut(memory, place), done);
        }
        PieceSequence { entered, pieces, next: 0, memory, done }.start_next()
    }

    fn give_up(self: Box<Self>, why: &Failure) {
        self.0.give_up(why);
    }

    fn divide(mut self: Box<Self>) -> Vec<Box<dyn PieceEntry>> {
        let Some(entered) = self.0.0.take() else { return Vec::new() };
        let pieces = entered.pieces();
        let piece = |number| -> Box<dyn PieceEntry> {
            Box::new(EnteredPiece { piece: pieces.get(number), entered: GiveUpGuard(Some(entered.clone())) })
        };
        (0..pieces.count()).map(piece).collect()
    }

    fn pieces(&self) -> Option<Pieces> {
        self.0.0.as_ref().map(GroupOperation::pieces)
    }
}

struct EnteredPiece<S: GroupOperation> {
    piece: Piece,
    entered: GiveUpGuard<S>,
}

impl<S: GroupOperation> PieceEntry for EnteredPiece<S> {
    fn piece(&self) -> Piece {
        self.piece
    }

    fn start(mut self: Box<Self>, memory: Buffers<Memory>, done: Done) -> Option<Job> {
        let entered = self.entered.0.take()?;
        let memory = self.piece.cut(memory, entered.place());
        entered.start(self.piece, memory, done)
    }

    fn give_up(self: Box<Self>, why: &Failure) {
        self.entered.give_up(why);
    }
}

/// An operation whose memory is ready as a whole: the end of each piece starts the next one. Several at once are in
/// each other's way where ranks share processors, and gain nothing elsewhere.
struct PieceSequence<S: GroupOperation> {
    entered: S,
    pieces: Pieces,
    next: u32,
    memory: Buffers<Memory>,
    done: Done,
}

impl<S: GroupOperation> PieceSequence<S> {
    fn start_next(mut self) -> Option<Job> {
        let (entered, piece) = (self.entered.clone(), self.pieces.get(self.next));
        self.next += 1;
        let memory = piece.cut(self.memory.clone(), entered.place());
        entered.start(piece, memory, Box::new(move |outcome| self.ended(outcome)))
    }

    fn ended(self, outcome: Result) {
        if outcome.is_ok() && self.next < self.pieces.count() {
            if let Some(job) = self.start_next() {
                run(job);
            }
            return;
        }
        // Before any rank is notified.
        self.memory.release();
        (self.done)(outcome);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Element, Reduction};

    #[test]
    fn pieces_have_each_element_once_and_are_not_larger_than_they_may_be() {
        let kinds = [
            Kind::AllGather,
            Kind::AllReduce(Reduction::Sum),
            Kind::AllToAll,
            Kind::Broadcast { root: 0 },
            Kind::Reduce { reduction: Reduction::Sum, root: 0 },
            Kind::ReduceScatter(Reduction::Sum),
            Kind::SendRecv { to: Some(0), from: None },
        ];
        for (kind, ranks) in kinds.into_iter().flat_map(|kind| [1, 2, 3, 8].map(|ranks| (kind, ranks))) {
            for (part, most) in [(0, 64), (1, 1), (1000, 7), (1000, 64), (1000, 1 << 20), (999, 999)] {
                let count = if kind == Kind::AllToAll { part * u64::from(ranks) } else { part };
                let operation = Operation { kind, element: Element::U16, count };
                let pieces = Pieces::new(operation, ranks, most);
                let has_parts = matches!(kind, Kind::AllGather | Kind::AllToAll | Kind::ReduceScatter(_));
                let most = if has_parts { most * WIDER.min(ranks.into()) } else { most };
                let mut at = 0;
                for number in 0..pieces.count() {
                    let piece = pieces.get(number);
                    assert_eq!((piece.number, piece.offset_of(0)), (number, at));
                    assert_eq!(piece.offset_of(1) - piece.offset_of(0), 2 * part);
                    let places = piece.operation.places(0, ranks);
                    let bytes = places.send.max(places.recv).unwrap_or_default();
                    assert!(bytes <= most.max(2 * u64::from(ranks)), "{operation} in {most}");
                    // Only the last piece may have room for another element of each part.
                    let is_last = number + 1 == pieces.count();
                    assert!(
                        is_last || bytes + 2 * (bytes / piece.part(ranks)) > most,
                        "{operation} in {most}"
                    );
                    assert!(piece.operation.check(ranks).is_ok());
                    at += piece.part(ranks);
                }
                assert_eq!(at, 2 * part, "{operation} in {most}");
            }
        }
    }

    #[test]
    fn there_are_not_more_pieces_than_numbers() {
        let operation = Operation { kind: Kind::Broadcast { root: 0 }, element: Element::U8, count: 1 << 40 };
        let pieces = Pieces::new(operation, 2, 1);
        let last = pieces.get(pieces.count() - 1);
        assert_eq!(last.offset_of(0) + last.part(2), 1 << 40);
    }

    #[test]
    fn memory_that_is_too_short_for_the_last_part_of_a_piece_is_refused() {
        const RANKS: u32 = 3;
        let operation = Operation { kind: Kind::AllGather, element: Element::U8, count: 100 };
        let pieces = Pieces::new(operation, RANKS, 60);
        let memory = |length| HostRange::allocate(length, 64).unwrap_or_else(|failure| panic!("{failure}"));
        for piece in [0, pieces.count() - 1].map(|number| pieces.get(number)) {
            let part = piece.part(RANKS);
            let send = Some(Memory::Alone(memory(part)));
            let fits = |recv| piece.cut(Buffers { send: send.clone(), recv: Some(recv) }, (0, RANKS)).is_ok();
            let (whole, alone) = (piece.offset_of(RANKS - 1) + part, part * u64::from(RANKS));
            assert!(fits(Memory::Whole(memory(whole))) && !fits(Memory::Whole(memory(whole - 1))));
            assert!(fits(Memory::Alone(memory(alone))) && !fits(Memory::Alone(memory(alone - 1))));
        }
    }
}
