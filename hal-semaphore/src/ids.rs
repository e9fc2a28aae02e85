// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Identifiers of queues and operations, shared by the engine, its users and its backends.

use std::fmt;

/// The largest value a timeline can reach, 2³¹ − 2. An interface whose semaphores have 64 bits for the value or a
/// failure can use what is above for failures.
pub const MAX_VALUE: u64 = (1 << 31) - 2;

/// One queue of an engine's device, as programs see it; the backend maps it to hardware.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId {
    pub(crate) index: u32,
}

impl QueueId {
    /// Its number, which is also its bit in an [`Affinity`].
    pub fn index(self) -> usize {
        self.index as usize
    }
}

impl fmt::Debug for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue {}", self.index)
    }
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A position in a queue: the operation that was queued there as number `epoch`. Epochs start at 1 and only
/// grow; a queue that has retired epoch `e` has retired every epoch before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Point {
    /// The queue.
    pub queue: QueueId,
    /// The number in its order.
    pub epoch: u64,
}

/// The queues that an operation may run on, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Affinity(pub u64);

impl Affinity {
    /// Any queue of the device.
    pub const ANY: Affinity = Affinity(u64::MAX);

    /// Only the queue with this number. A number past 63 selects nothing and is refused at submission.
    pub fn queue(ordinal: usize) -> Affinity {
        Affinity(u32::try_from(ordinal).ok().and_then(|bit| 1u64.checked_shl(bit)).unwrap_or(0))
    }
}
