// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Groups within this process: threads or devices whose memory the host can see.
//!
//! A group is a table of *meetings*. Each rank counts its operations, so the n-th one of a rank meets the
//! n-th ones of the others; what goes between two ranks is counted for each pair and direction apart. The rank that starts
//! last gets the job of moving the bytes of all ranks, straight from where they are to where they belong.
//!
//! # Who tells whom
//!
//! Entering, giving up and dropping never call back: a program may do any of it under a lock. How an operation went
//! is told by the thread that did the job, and that it failed by the threads that the engine keeps for callbacks. A thread of this module
//! keeps the time.

mod group;
mod meeting;
mod member;
mod perform;
mod split;
mod watch;

use crate::{Communicator, Result, Terms};
use group::Group;
use hal_semaphore::{Code, Failure};
use member::Member;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

pub use crate::spread::{Helper, spread};

/// Whether the bytes of an operation are on their way, so that a thread which has to wait could [help](Helper).
pub fn is_busy() -> bool {
    crate::spread::is_busy()
}

/// The groups that there are, by what their members call them.
static GROUPS: Mutex<BTreeMap<Vec<u8>, Weak<Group>>> = Mutex::new(BTreeMap::new());

/// How many ranks a group has at most: each operation has a place for each of them. A process has not as many devices.
pub const RANKS: u32 = 1 << 16;

/// A rank's request to join a group.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The identity of the group: the same bytes for all of its members.
    pub id: &'a [u8],
    /// The group's name in messages.
    pub name: &'a str,
    /// Which rank this is.
    pub rank: u32,
    /// How many there are.
    pub count: u32,
    /// The one speaker for the rank; a second one is refused meanwhile.
    pub owner: usize,
    /// The terms that all ranks agree on.
    pub terms: Terms,
}

/// Joins a group of this process, which begins with the first one that does and ends with the last one that lets go of it.
/// Does not wait for the others. A group that has failed is not joined any more: a rank that comes then begins a new one.
pub fn join(request: &Request<'_>) -> Result<Box<dyn Communicator>> {
    let Request { rank, count, name, .. } = *request;
    if rank >= count {
        let message = format!("there is no rank {rank} in a group of {count}; ranks are numbered from 0");
        return Err(Failure::new(Code::InvalidArgument, message));
    }
    if count > RANKS {
        let message = format!(
            "the group {name:?} of {count} ranks is within one process, where a group has {RANKS} ranks at most; more ranks are those of a \
             job of MPI"
        );
        return Err(Failure::new(Code::InvalidArgument, message));
    }
    let mut groups = GROUPS.lock();
    groups.retain(|_, group| group.strong_count() > 0);
    let known = groups.get(request.id).and_then(Weak::upgrade).filter(|group| !group.has_failed());
    let group = match known {
        Some(group) if group.count() != count => {
            let message = format!(
                "rank {rank} asks for the group {name:?} with {count} ranks, and others have joined it with {}",
                group.count()
            );
            return Err(Failure::new(Code::InvalidArgument, message));
        }
        Some(group) if group.terms().piece != request.terms.piece => {
            let message = format!(
                "rank {rank} asks for the group {name:?} with pieces of {} bytes, and others have joined it with {} \
                 (collective_piece)",
                request.terms.piece,
                group.terms().piece
            );
            return Err(Failure::new(Code::InvalidArgument, message));
        }
        Some(group) => group,
        None => {
            let group = Group::new(name.to_owned(), count, request.terms);
            groups.insert(request.id.to_vec(), Arc::downgrade(&group));
            group
        }
    };
    Ok(Box::new(Member::claim(&group, rank, request.owner, request.terms.bounded().timeout)?))
}
