// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The interface of a group to a driver: a rank's handle on it, and the operations that it enters.

use crate::Result;
use crate::operation::{Kind, Operation};
use crate::piece::{Piece, PieceBuffers, Pieces};
use hal_backend::HostRange;
use hal_semaphore::{Code, Failure};

/// One rank's handle on a group. Dropped by the rank that does not need it any more, which ends nothing that was entered.
pub trait Communicator: Send + Sync {
    /// The rank and how many there are. May wait where that is still being agreed on, as long as the group has patience.
    fn place(&self) -> Result<(u32, u32)>;

    /// Takes the rank's next place among the operations of the group. Ranks that share operations enter them in the same
    /// order. Does not wait.
    ///
    /// An operation that does not fit what others have asked for at that place is refused, and so is everything after it.
    fn enter(&self, operation: Operation) -> Result<Box<dyn Entry>>;

    /// Refuses what [`enter`](Self::enter) would refuse without having heard of the others, and takes no place.
    fn check(&self, operation: &Operation) -> Result {
        operation.check(self.place()?.1)
    }

    /// The rank goes, for this reason, and what the group has in progress ends. Does not wait.
    fn end(&self, why: &Failure);

    /// A group of those that name the same color, in the order of their keys, or of their ranks where the keys are the same.
    /// Every rank calls it, also one that names none and is in no group afterwards. Does not wait.
    fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>>;
}

/// The memory of a rank for one operation, as long as the operation's [`places`](Operation::places) say or longer.
#[derive(Clone, Default)]
pub struct Buffers {
    /// The memory that is sent.
    pub send: Option<HostRange>,
    /// Where it is received.
    pub recv: Option<HostRange>,
}

impl Buffers {
    /// The bytes that an operation of a rank of so many uses. Refused if they are not there, or if it would read what it
    /// writes.
    pub fn cut(&self, operation: &Operation, (rank, ranks): (u32, u32)) -> Result<Self> {
        let places = operation.places(rank, ranks);
        let cut = |range: &Option<HostRange>, bytes: Option<u64>, does: &str| {
            let Some(bytes) = bytes.filter(|&bytes| bytes > 0) else { return Ok(None) };
            range.as_ref().and_then(|range| range.slice(0, bytes)).map(Some).ok_or_else(|| {
                let length = range.as_ref().map_or(0, HostRange::length);
                let message = format!("{operation} {does} {bytes} bytes, and has memory for {length}");
                Failure::new(Code::OutOfRange, message)
            })
        };
        let send = cut(&self.send, places.send, "sends")?;
        let recv = cut(&self.recv, places.recv, "receives")?;
        check_overlap(operation, rank, send.as_ref(), recv.as_ref())?;
        Ok(Self { send, recv })
    }
}

/// Refuses memory that is sent and written, but for the places where each kind can work.
fn check_overlap(
    operation: &Operation,
    rank: u32,
    send: Option<&HostRange>,
    recv: Option<&HostRange>,
) -> Result {
    let (Some(send), Some(recv)) = (send, recv) else { return Ok(()) };
    let [sent, got] = [send, recv].map(|range| (range.address() as u64, range.length()));
    operation.check_places(rank, sent, got)
}

impl Operation {
    /// Refuses memory of a rank that is sent and received into, each where it begins and how long it is, but for the places where
    /// the kind can work.
    pub fn check_places(&self, rank: u32, (sent, from): (u64, u64), (got, to): (u64, u64)) -> Result {
        if sent >= got + to || got >= sent + from {
            return Ok(());
        }
        let own = self.count * self.element.size() * u64::from(rank);
        let in_place = match self.kind {
            Kind::AllGather => sent == got + own,
            Kind::ReduceScatter(_) => got == sent + own,
            Kind::AllReduce(_) | Kind::Reduce { .. } => sent == got,
            _ => false,
        };
        if in_place {
            return Ok(());
        }
        let message = format!(
            "{self} of rank {rank} sends from memory that it receives into, and not in a place where that can be done"
        );
        Err(Failure::new(Code::InvalidArgument, message))
    }
}

/// A callback that gets the outcome of an operation for one rank, once. The memory is not touched any more then.
pub type Done = Box<dyn FnOnce(Result) + Send>;

/// Work that is ready, for a thread that may take its time.
pub type Job = Box<dyn FnOnce() + Send>;

/// A rank's place in an operation. Dropped without having been started or given up, it was given up.
pub trait Entry: Send {
    /// The rank's part may begin: its memory is ready. Does not wait. What has to be done for the group is done by the thread that gets
    /// the job, if there is one.
    fn start(self: Box<Self>, buffers: Buffers, done: Done) -> Option<Job>;

    /// The rank cannot take part, for this reason, and no other rank waits for it.
    fn give_up(self: Box<Self>, why: &Failure);

    /// How it is divided; nothing where it was started or given up.
    fn pieces(&self) -> Option<Pieces>;

    /// Each piece by itself, for memory that is not ready as a whole. They are started in their order, or a few at a time, each when
    /// one before it has ended. What one rank divides others may start as a whole.
    fn divide(self: Box<Self>) -> Vec<Box<dyn PieceEntry>>;
}

/// A rank's place in a piece of an operation. Dropped without having been started or given up, it was given up, and the operation
/// with it.
pub trait PieceEntry: Send {
    /// Which piece.
    fn piece(&self) -> Piece;

    /// The memory of the piece is ready. As [`Entry::start`] for the piece.
    fn start(self: Box<Self>, memory: PieceBuffers, done: Done) -> Option<Job>;

    /// As [`Entry::give_up`].
    fn give_up(self: Box<Self>, why: &Failure);
}
