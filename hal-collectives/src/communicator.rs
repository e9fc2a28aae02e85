// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The interface of a group to a driver: a rank's handle on it, and the operations that it enters.

use crate::Result;
use crate::operation::{Kind, Operation};
use crate::piece::{Memory, Piece, Pieces};
use crate::release;
use hal_backend::HostRange;
use hal_semaphore::{Code, Failure};

/// One rank's handle on a group. Dropping it ends no operation that was entered.
pub trait Communicator: Send + Sync {
    /// The rank and the number of ranks. May wait for the other ranks while they agree, up to the group's timeout.
    fn place(&self) -> Result<(u32, u32)>;

    /// Enters the rank's next operation of the group, without waiting. Ranks that share operations enter them in
    /// the same order.
    ///
    /// An operation that does not match what others entered at that place is refused, and so is everything after
    /// it.
    fn enter(&self, operation: Operation) -> Result<Box<dyn OperationEntry>>;

    /// Refuses what [`enter`](Self::enter) would refuse whatever other ranks do, without entering anything.
    fn check(&self, operation: &Operation) -> Result {
        operation.check(self.place()?.1)
    }

    /// Ends this rank for a reason, and thereby everything that the group has in progress. Does not wait.
    fn end(&self, why: &Failure);

    /// Splits the group: ranks with the same color form a group, ordered by key, and by rank if keys are equal.
    /// Every rank calls it; a rank without a color is in no group afterwards. Does not wait.
    fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>>;
}

/// The memory of a rank for one operation, at least as long as the operation's [`places`](Operation::places); or its
/// [memory](crate::Memory) for a piece, or its [parts](crate::Parts) of a piece.
#[derive(Clone)]
pub struct Buffers<T = HostRange> {
    /// The memory that is sent.
    pub send: Option<T>,
    /// The memory that receives.
    pub recv: Option<T>,
}

impl<T> Default for Buffers<T> {
    fn default() -> Self {
        Self { send: None, recv: None }
    }
}

impl<T> Buffers<T> {
    /// Releases the memory, which may write it back.
    pub(crate) fn release(self) {
        release(self.send);
        release(self.recv);
    }
}

impl Buffers {
    /// The ranges that an operation of this rank uses. Refused if they are not there, or if the operation would
    /// read what it writes.
    pub fn cut(self, operation: &Operation, (rank, ranks): (u32, u32)) -> Result<Self> {
        let places = operation.places(rank, ranks);
        let cut = |range: Option<HostRange>, bytes: Option<u64>, does: &str| {
            let Some(bytes) = bytes.filter(|&bytes| bytes > 0) else { return Ok(None) };
            let length = range.as_ref().map_or(0, HostRange::length);
            range.and_then(|range| range.into_slice(0, bytes)).map(Some).ok_or_else(|| {
                let message = format!("{operation} {does} {bytes} bytes, but has memory for {length}");
                Failure::new(Code::OutOfRange, message)
            })
        };
        let send = cut(self.send, places.send, "sends")?;
        let recv = cut(self.recv, places.recv, "receives")?;
        check_overlap(operation, rank, send.as_ref(), recv.as_ref())?;
        Ok(Self { send, recv })
    }
}

/// Refuses overlapping send and receive memory, except where the kind can work in place.
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
    /// Refuses overlapping ranges of a rank, each given by its begin and length, except where the kind can work in
    /// place.
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
            "{self} of rank {rank} receives into memory that it sends from, at an offset where this kind cannot \
             work in place"
        );
        Err(Failure::new(Code::InvalidArgument, message))
    }
}

/// A callback that gets the outcome of an operation for one rank, once, after the last access to the memory.
pub type Done = Box<dyn FnOnce(Result) + Send>;

/// Work that is ready, for a thread that may take its time.
pub type Job = Box<dyn FnOnce() + Send>;

/// An operation that a rank has entered. Dropping it without starting it gives it up.
pub trait OperationEntry: Send {
    /// Starts the rank's part, whose memory is ready. Does not wait. If there is a job, its thread does the group's
    /// work.
    fn start(self: Box<Self>, buffers: Buffers, done: Done) -> Option<Job>;

    /// Withdraws the rank for a reason, so that no other rank waits for it.
    fn give_up(self: Box<Self>, why: &Failure);

    /// The operation's pieces; `None` once it was started or given up.
    fn pieces(&self) -> Option<Pieces>;

    /// Divides the operation into pieces, for memory that is not ready as a whole. They are started in order, or a
    /// few at a time, each after an earlier one has ended. Other ranks may start the same operation as a whole.
    fn divide(self: Box<Self>) -> Vec<Box<dyn PieceEntry>>;
}

/// A piece of an operation that a rank has entered. Dropping it without starting it gives the whole operation up.
pub trait PieceEntry: Send {
    /// The piece.
    fn piece(&self) -> Piece;

    /// Starts the piece, whose memory is ready. As [`OperationEntry::start`].
    fn start(self: Box<Self>, memory: Buffers<Memory>, done: Done) -> Option<Job>;

    /// As [`OperationEntry::give_up`].
    fn give_up(self: Box<Self>, why: &Failure);
}
