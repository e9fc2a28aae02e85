// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A rank's handle on a group within this process.

use super::group::Group;
use super::rendezvous::{Arrival, OperationSlot};
use super::timekeeper;
use crate::operation::{Kind, Side};
use crate::{
    Buffers, Communicator, Done, EndCountdown, Entered, GroupOperation, Job, Operation, OperationEntry,
    Parts, Piece, Result,
};
use hal_semaphore::Failure;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

/// One rank of a group.
pub(super) struct Member {
    group: Arc<Group>,
    rank: u32,
    /// How long it waits for the others.
    timeout: Duration,
}

impl Member {
    /// Acts for a rank, unless another owner does.
    pub(super) fn claim(group: &Arc<Group>, rank: u32, owner: usize, timeout: Duration) -> Result<Self> {
        group.claim(rank, owner)?;
        Ok(Self { group: group.clone(), rank, timeout })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.group.release(self.rank);
    }
}

impl Communicator for Member {
    fn place(&self) -> Result<(u32, u32)> {
        Ok((self.rank, self.group.count()))
    }

    fn enter(&self, operation: Operation) -> Result<Box<dyn OperationEntry>> {
        operation.check(self.group.count())?;
        let (rank, timeout) = (self.rank, self.timeout);
        let mut slots = SmallVec::new();
        for (participants, side) in operation.lines(rank) {
            slots.push((self.group.enter((participants, side), (rank, operation))?, side));
        }
        Ok(Box::new(Entered::new(EnteredSides {
            group: self.group.clone(),
            rank,
            operation,
            slots,
            timeout,
        })))
    }

    fn end(&self, why: &Failure) {
        let (rank, name) = (self.rank, self.group.name());
        let message = format!("rank {rank} of the group {name:?} has gone: {}", why.message());
        self.group.fail(&Failure::new(why.code(), message));
    }

    fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>> {
        let pending = super::split::call(&self.group, self.rank, (color, key), self.timeout)?;
        Ok(color.map(|_| Box::new(pending) as Box<dyn Communicator>))
    }
}

/// A rank's sides of an operation that it has entered.
#[derive(Clone)]
struct EnteredSides {
    group: Arc<Group>,
    rank: u32,
    operation: Operation,
    slots: SmallVec<[(OperationSlot, Side); 2]>,
    timeout: Duration,
}

impl EnteredSides {
    /// Ends the group, and returns the failure that all ranks get.
    fn end(&self, failure: &Failure) -> Failure {
        let message = format!(
            "rank {} of the group {:?} could not take part in {}: {}",
            self.rank,
            self.group.name(),
            self.operation,
            failure.message()
        );
        let failure = Failure::new(failure.code(), message);
        self.group.fail(&failure);
        failure
    }
}

impl GroupOperation for EnteredSides {
    fn operation(&self) -> Operation {
        self.operation
    }

    fn place(&self) -> (u32, u32) {
        (self.rank, self.group.count())
    }

    fn piece_size(&self) -> u64 {
        self.group.terms().piece
    }

    fn start(&self, piece: Piece, memory: Result<Buffers<Parts>>, done: Done) -> Option<Job> {
        let alone = matches!(self.operation.kind, Kind::SendRecv { from: None, .. });
        let parts = self.slots.len() + usize::from(alone);
        let part = EndCountdown::new(parts, done);
        let memory = match memory {
            Ok(memory) => memory,
            Err(failure) => {
                let failure = self.end(&failure);
                timekeeper::notify(std::iter::repeat_n(part, parts), &failure);
                return None;
            }
        };
        let mut jobs: SmallVec<[Job; 2]> = SmallVec::new();
        let arrival = Arrival { group: self.group.clone(), operation: self.operation, memory, part };
        // The last one is no clone: counts of references are shared with other ranks' processors.
        let mut arrivals = std::iter::repeat_n(arrival, parts);
        for (&place, arrival) in self.slots.iter().zip(&mut arrivals) {
            jobs.extend(self.group.arrive(place, piece, arrival, self.timeout));
        }
        jobs.extend(arrivals.next().map(|alone| -> Job {
            Box::new(move || {
                if let Some(recv) = &alone.memory.recv {
                    let filled = recv.whole().fill(&[0]);
                    debug_assert!(filled, "one byte divides everything");
                }
                alone.end(Ok(()));
            })
        }));
        match jobs.len() {
            0 => None,
            1 => jobs.pop(),
            _ => Some(Box::new(move || jobs.into_iter().for_each(|job| job()))),
        }
    }

    fn fail(&self, why: &Failure) {
        self.end(why);
    }
}
