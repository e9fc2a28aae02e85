// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What a driver sees of a group: a rank's end of it, and the operations that it is in.

use crate::Result;
use crate::operation::Operation;
use hal_backend::HostRange;
use hal_semaphore::Failure;

/// One rank's end of a group. Dropped by the rank that does not need it any more, which ends nothing that was entered.
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
    /// What is sent.
    pub send: Option<HostRange>,
    /// Where it is received.
    pub recv: Option<HostRange>,
}

/// Is told how an operation went for one rank, once. The memory is not touched any more then.
pub type Done = Box<dyn FnOnce(Result) + Send>;

/// What is to be done now, by a thread that may take its time.
pub type Job = Box<dyn FnOnce() + Send>;

/// A rank's place in an operation. Dropped without having been started or given up, it was given up.
pub trait Entry: Send {
    /// The rank's part may begin: its memory is ready. Does not wait. What has to be done for the group is done by who gets
    /// the job, if there is one.
    fn start(self: Box<Self>, buffers: Buffers, done: Done) -> Option<Job>;

    /// The rank cannot take part, for this reason, and nobody else waits for it.
    fn give_up(self: Box<Self>, why: &Failure);
}
