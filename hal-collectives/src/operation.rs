// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! One rank's request for a collective operation, and the memory that it reads and writes.

use crate::Result;
use crate::element::{Element, Reduction};
use hal_semaphore::{Code, Failure};
use smallvec::{SmallVec, smallvec};
use std::fmt;

/// The kind of an operation, with its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Every rank gets the elements of all ranks, in rank order.
    AllGather,
    /// Every rank gets the reduction of all ranks' elements.
    AllReduce(Reduction),
    /// Every rank gets its part from each rank, in rank order. A rank's parts have one size.
    AllToAll,
    /// Every rank but the root gets the root's elements.
    Broadcast {
        /// The rank that sends.
        root: u32,
    },
    /// The root gets the reduction of all ranks' elements.
    Reduce {
        /// The reduction.
        reduction: Reduction,
        /// The rank that gets it.
        root: u32,
    },
    /// Each rank gets its part of the reduction of all ranks' elements.
    ReduceScatter(Reduction),
    /// One rank gets this rank's elements.
    Send {
        /// The receiving rank.
        to: u32,
    },
    /// This rank gets another rank's elements.
    Recv {
        /// The sending rank.
        from: u32,
    },
    /// Sends and receives; without a sender this rank gets zeros.
    SendRecv {
        /// The rank that gets this rank's elements, if any.
        to: Option<u32>,
        /// The rank whose elements this rank gets, if any.
        from: Option<u32>,
    },
}

/// A collective operation, as one rank requests it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The kind.
    pub kind: Kind,
    /// The type of the elements.
    pub element: Element,
    /// The number of elements: for all-gather those that one rank sends, for reduce-scatter those that one rank
    /// gets, otherwise all that one rank sends or gets.
    pub count: u64,
}

/// The ranks that take part in an operation: all of them, or two in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Participants {
    /// All ranks.
    Everyone,
    /// Two ranks.
    Pair {
        /// The rank that sends.
        from: u32,
        /// The rank that receives.
        to: u32,
    },
}

/// A participant's number: the rank if all ranks take part, otherwise the sender or the receiver.
pub type Side = u32;
/// The side of a pair that sends.
pub const SENDER: Side = 0;
/// The side of a pair that receives.
pub const RECEIVER: Side = 1;

/// The bytes of a rank's memory that an operation uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// The length of the memory that is sent.
    pub send: Option<u64>,
    /// The length of the memory that receives.
    pub recv: Option<u64>,
}

impl Operation {
    /// The lengths of memory that the operation needs of a rank in a group of `ranks`. An operation that
    /// [`check`](Self::check) refuses needs none.
    pub fn places(&self, rank: u32, ranks: u32) -> Places {
        let one = self.count.saturating_mul(self.element.size());
        let all = one.saturating_mul(u64::from(ranks));
        let (send, recv) = match self.kind {
            Kind::AllGather => (Some(one), Some(all)),
            Kind::AllReduce(_) | Kind::AllToAll => (Some(one), Some(one)),
            Kind::Broadcast { root } if root == rank => (Some(one), None),
            Kind::Broadcast { .. } => (None, Some(one)),
            Kind::Reduce { root, .. } => (Some(one), (root == rank).then_some(one)),
            Kind::ReduceScatter(_) => (Some(all), Some(one)),
            Kind::Send { .. } => (Some(one), None),
            Kind::Recv { .. } => (None, Some(one)),
            Kind::SendRecv { to, .. } => (to.map(|_| one), Some(one)),
        };
        Places { send, recv }
    }

    /// Refuses an operation that no group of `ranks` can do.
    pub fn check(&self, ranks: u32) -> Result {
        let outside = |rank: &u32| *rank >= ranks;
        let peers: SmallVec<[u32; 2]> = match self.kind {
            Kind::AllGather | Kind::AllReduce(_) | Kind::AllToAll | Kind::ReduceScatter(_) => smallvec![],
            Kind::Broadcast { root } | Kind::Reduce { root, .. } => smallvec![root],
            Kind::Send { to } => smallvec![to],
            Kind::Recv { from } => smallvec![from],
            Kind::SendRecv { to, from } => to.into_iter().chain(from).collect(),
        };
        if let Some(peer) = peers.into_iter().find(outside) {
            let message =
                format!("{self} names rank {peer}, but the group has {ranks}: 0 to {}", ranks.max(1) - 1);
            return Err(Failure::new(Code::OutOfRange, message));
        }
        let bytes = self.count.checked_mul(self.element.size());
        if bytes.and_then(|bytes| bytes.checked_mul(u64::from(ranks))).is_none() {
            let message = format!("{self} of {ranks} ranks has more bytes than 64 bits can count");
            return Err(Failure::new(Code::OutOfRange, message));
        }
        if self.kind == Kind::AllToAll && !self.count.is_multiple_of(u64::from(ranks.max(1))) {
            let message =
                format!("{self} cannot be divided into a part of one size for each of {ranks} ranks");
            return Err(Failure::new(Code::InvalidArgument, message));
        }
        Ok(())
    }

    /// The participants that the rank meets, with its side in each. Without any, the operation concerns this rank
    /// only.
    pub fn lines(&self, rank: u32) -> SmallVec<[(Participants, Side); 2]> {
        let sends = |to| (Participants::Pair { from: rank, to }, SENDER);
        let receives = |from| (Participants::Pair { from, to: rank }, RECEIVER);
        match self.kind {
            Kind::AllGather
            | Kind::AllReduce(_)
            | Kind::AllToAll
            | Kind::Broadcast { .. }
            | Kind::Reduce { .. }
            | Kind::ReduceScatter(_) => smallvec![(Participants::Everyone, rank)],
            Kind::Send { to } => smallvec![sends(to)],
            Kind::Recv { from } => smallvec![receives(from)],
            Kind::SendRecv { to, from } => to.map(sends).into_iter().chain(from.map(receives)).collect(),
        }
    }

    /// True if two ranks that meet request the same operation.
    pub fn fits(&self, other: &Operation, line: Participants) -> bool {
        let sizes = (self.element, self.count) == (other.element, other.count);
        sizes && (line != Participants::Everyone || self.kind == other.kind)
    }
}

/// The length of [`Operation::to_bytes`].
pub const ENCODED: usize = 24;

/// The encoding of an absent rank.
const NO_RANK: u32 = u32::MAX;

impl Operation {
    /// Encodes the operation, for ranks in other processes.
    pub fn to_bytes(&self) -> [u8; ENCODED] {
        let (kind, reduction, first, second) = match self.kind {
            Kind::AllGather => (0, None, 0, 0),
            Kind::AllReduce(reduction) => (1, Some(reduction), 0, 0),
            Kind::AllToAll => (2, None, 0, 0),
            Kind::Broadcast { root } => (3, None, root, 0),
            Kind::Reduce { reduction, root } => (4, Some(reduction), root, 0),
            Kind::ReduceScatter(reduction) => (5, Some(reduction), 0, 0),
            Kind::Send { to } => (6, None, to, 0),
            Kind::Recv { from } => (7, None, from, 0),
            Kind::SendRecv { to, from } => (8, None, to.unwrap_or(NO_RANK), from.unwrap_or(NO_RANK)),
        };
        // Both enums are declared in the order of their lists, which `from_bytes` uses.
        let (reduction, element) =
            (reduction.map_or(u8::MAX, |how: Reduction| how as u8), self.element as u8);
        let ([a, b, c, d], [e, f, g, h]) = (u32::to_le_bytes(first), u32::to_le_bytes(second));
        let [i, j, k, l, m, n, o, p] = self.count.to_le_bytes();
        [kind, reduction, element, 0, a, b, c, d, e, f, g, h, 0, 0, 0, 0, i, j, k, l, m, n, o, p]
    }

    /// Decodes an operation; `None` if the bytes are not one.
    pub fn from_bytes(bytes: &[u8; ENCODED]) -> Option<Self> {
        let [kind, reduction, element, _, a, b, c, d, e, f, g, h, _, _, _, _, count @ ..] = *bytes;
        let (first, second) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        let reduction = || Reduction::ALL.get(usize::from(reduction)).copied();
        let peer = |rank: u32| (rank != NO_RANK).then_some(rank);
        let kind = match kind {
            0 => Kind::AllGather,
            1 => Kind::AllReduce(reduction()?),
            2 => Kind::AllToAll,
            3 => Kind::Broadcast { root: first },
            4 => Kind::Reduce { reduction: reduction()?, root: first },
            5 => Kind::ReduceScatter(reduction()?),
            6 => Kind::Send { to: first },
            7 => Kind::Recv { from: first },
            8 => Kind::SendRecv { to: peer(first), from: peer(second) },
            _ => return None,
        };
        let element = *Element::ALL.get(usize::from(element))?;
        Some(Self { kind, element, count: u64::from_le_bytes(count) })
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::AllGather => f.write_str("all-gather")?,
            Kind::AllReduce(reduction) => write!(f, "all-reduce ({reduction})")?,
            Kind::AllToAll => f.write_str("all-to-all")?,
            Kind::Broadcast { root } => write!(f, "broadcast from rank {root}")?,
            Kind::Reduce { reduction, root } => write!(f, "reduce ({reduction}) to rank {root}")?,
            Kind::ReduceScatter(reduction) => write!(f, "reduce-scatter ({reduction})")?,
            Kind::Send { to } => write!(f, "send to rank {to}")?,
            Kind::Recv { from } => write!(f, "recv from rank {from}")?,
            Kind::SendRecv { to, from } => {
                let name =
                    |rank: Option<u32>| rank.map_or("no rank".to_owned(), |rank| format!("rank {rank}"));
                write!(f, "send to {} and recv from {}", name(to), name(from))?;
            }
        }
        write!(f, " of {} {}", self.count, self.element)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_survive_as_bytes() {
        let mut kinds = vec![
            Kind::AllGather,
            Kind::AllToAll,
            Kind::Broadcast { root: 3 },
            Kind::Send { to: 70_000 },
            Kind::Recv { from: 0 },
            Kind::SendRecv { to: None, from: Some(1) },
            Kind::SendRecv { to: Some(2), from: None },
        ];
        for reduction in Reduction::ALL {
            kinds.extend([Kind::AllReduce(reduction), Kind::ReduceScatter(reduction)]);
            kinds.push(Kind::Reduce { reduction, root: 9 });
        }
        for (kind, element) in kinds.into_iter().flat_map(|kind| Element::ALL.map(|element| (kind, element)))
        {
            let operation = Operation { kind, element, count: u64::MAX - 7 };
            assert_eq!(Operation::from_bytes(&operation.to_bytes()), Some(operation));
        }
        assert_eq!(Operation::from_bytes(&[9; ENCODED]), None);
    }
}
