// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A rank's end of a group of this process.

use super::group::Group;
use super::meeting::{Arrival, Part, Parts, Slot};
use super::split::Pending;
use super::watch;
use crate::operation::{Kind, Side};
use crate::{Buffers, Communicator, Done, Entry, Job, Operation, Result};
use hal_semaphore::{Code, Failure};
use smallvec::SmallVec;
use std::sync::Arc;

/// One rank of a group.
pub(super) struct Member {
    group: Arc<Group>,
    rank: u32,
}

impl Member {
    /// Speaks for a rank, unless somebody else does.
    pub(super) fn claim(group: &Arc<Group>, rank: u32, owner: usize) -> Result<Self> {
        group.claim(rank, owner)?;
        Ok(Self { group: group.clone(), rank })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.group.give_back(self.rank);
    }
}

impl Communicator for Member {
    fn place(&self) -> Result<(u32, u32)> {
        Ok((self.rank, self.group.count()))
    }

    fn enter(&self, operation: Operation) -> Result<Box<dyn Entry>> {
        operation.check(self.group.count())?;
        let rank = self.rank;
        let mut entered =
            Entered { group: self.group.clone(), rank, operation, slots: SmallVec::new(), ended: false };
        for (line, side) in operation.lines(rank) {
            match self.group.enter((line, side), (rank, operation)) {
                Ok(slot) => entered.slots.push((slot, side)),
                Err(failure) => {
                    // The group has failed, and there is nothing to give up.
                    entered.ended = true;
                    return Err(failure);
                }
            }
        }
        Ok(Box::new(entered))
    }

    fn end(&self, why: &Failure) {
        let (rank, name) = (self.rank, self.group.name());
        let message = format!("rank {rank} of the group {name:?} has gone: {}", why.message());
        self.group.fail(&Failure::new(why.code(), message));
    }

    fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>> {
        let pending = Pending::new();
        super::split::call(&self.group, self.rank, (color, key), &pending)?;
        Ok(color.map(|_| Box::new(pending) as Box<dyn Communicator>))
    }
}

/// A rank's places in an operation.
struct Entered {
    group: Arc<Group>,
    rank: u32,
    operation: Operation,
    slots: SmallVec<[(Slot, Side); 2]>,
    /// Started or given up.
    ended: bool,
}

impl Entered {
    /// Ends the group; what everybody is told then.
    fn fail(&self, failure: &Failure) -> Failure {
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

impl Entry for Entered {
    fn start(mut self: Box<Self>, buffers: Buffers, done: Done) -> Option<Job> {
        self.ended = true;
        let alone = matches!(self.operation.kind, Kind::SendRecv { from: None, .. });
        let part: Part = Parts::new(self.slots.len() + usize::from(alone), done);
        let buffers = match buffers.cut(&self.operation, (self.rank, self.group.count())) {
            Ok(buffers) => buffers,
            Err(failure) => {
                let failure = self.fail(&failure);
                let parts = std::iter::repeat_n(part, self.slots.len() + usize::from(alone));
                watch::tell(parts.collect(), &failure);
                return None;
            }
        };
        let mut jobs: SmallVec<[Job; 2]> = SmallVec::new();
        let arrival = Arrival { group: self.group.clone(), operation: self.operation, buffers, part };
        for (slot, side) in &self.slots {
            jobs.extend(self.group.arrive(*slot, *side, arrival.clone()));
        }
        if alone {
            jobs.push(Box::new(move || {
                if let Some(recv) = &arrival.buffers.recv {
                    let filled = recv.fill(&[0]);
                    debug_assert!(filled, "one byte divides everything");
                }
                arrival.part.end(Ok(()));
            }));
        }
        match jobs.len() {
            0 => None,
            _ => Some(Box::new(move || jobs.into_iter().for_each(|job| job()))),
        }
    }

    fn give_up(mut self: Box<Self>, why: &Failure) {
        self.ended = true;
        self.fail(why);
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if !self.ended {
            self.fail(&Failure::new(Code::Cancelled, "it was cancelled"));
        }
    }
}
