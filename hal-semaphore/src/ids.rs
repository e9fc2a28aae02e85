// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Identifiers of queues, operations and timelines, shared by the engine, its users and its backends.

use crate::slab::Key;
use std::fmt;

/// The largest value a timeline can reach: IREE's own limit, 2³¹ − 2. Anything above reads as a failure there.
pub const MAX_VALUE: u64 = (1 << 31) - 2;

/// One queue of one device, as programs see it; the backend maps it to hardware.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId {
    pub(crate) index: u32,
    pub(crate) device: u16,
    pub(crate) ordinal: u16,
}

impl QueueId {
    /// Its number among all queues of the engine, in the order of the devices.
    pub fn index(self) -> usize {
        self.index as usize
    }

    /// The number of its device.
    pub fn device(self) -> usize {
        usize::from(self.device)
    }

    /// Its number on that device, which is also its bit in an [`Affinity`].
    pub fn ordinal(self) -> usize {
        usize::from(self.ordinal)
    }
}

impl fmt::Debug for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {} queue {}", self.device, self.ordinal)
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

/// Names one submitted operation until it has ended, and nothing afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    pub(crate) engine: u32,
    pub(crate) queue: u32,
    pub(crate) key: Key,
}

/// Names one timeline to the engine that it was registered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimelineKey {
    pub(crate) engine: u32,
    pub(crate) number: u64,
}

/// The queues of a device that an operation may run on, one bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Affinity(pub u64);

impl Affinity {
    /// Any queue the device has.
    pub const ANY: Affinity = Affinity(u64::MAX);

    /// Only the queue with this number. A number past 63 selects nothing and is refused at submission.
    pub fn queue(ordinal: usize) -> Affinity {
        Affinity(u32::try_from(ordinal).ok().and_then(|bit| 1u64.checked_shl(bit)).unwrap_or(0))
    }
}
