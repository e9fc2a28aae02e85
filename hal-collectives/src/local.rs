// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Groups within this process: threads or devices whose memory the host can see.
//!
//! A group is a table of rendezvous. Each rank counts its operations, so the n-th operation of one rank meets the
//! n-th of the others; operations between two ranks are counted for each pair and direction. The last rank that
//! starts gets the job of moving the bytes of all ranks, directly from source to target.
//!
//! # Notifications
//!
//! Entering, giving up and dropping never call back: a program may do any of them under a lock. The thread that did
//! the job notifies the ranks of its outcome, and the engine's callback threads notify them of failures. A thread
//! of this module watches the timeouts.

mod group;
mod member;
mod perform;
mod rendezvous;
mod split;
mod timekeeper;

use crate::{Communicator, Result, Terms};
use group::Group;
use hal_semaphore::{Code, Failure};
use member::Member;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

pub use crate::spread::{Helper, spread};

/// True while the bytes of an operation move, so that a thread which has to wait could [help](Helper).
pub fn is_busy() -> bool {
    crate::spread::is_busy()
}

/// All groups, by the keys of their members.
static GROUPS: Mutex<BTreeMap<Vec<u8>, Weak<Group>>> = Mutex::new(BTreeMap::new());

/// The most ranks of a group: each operation has a place for each. No process has as many devices.
pub const RANKS: u32 = 1 << 16;

/// A rank's request to join a group.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The identity of the group: the same bytes for all members.
    pub id: &'a [u8],
    /// The group's name in messages.
    pub name: &'a str,
    /// The rank that joins.
    pub rank: u32,
    /// The number of ranks.
    pub count: u32,
    /// The owner that may act for the rank; another one is refused at the same time.
    pub owner: usize,
    /// The terms that all ranks agree on.
    pub terms: Terms,
}

/// Joins a group of this process, without waiting for the other ranks. The first rank creates the group, and the
/// last one that drops its handle ends it. A failed group is not joined any more: the next rank creates a new one.
pub fn join(request: &Request<'_>) -> Result<Box<dyn Communicator>> {
    let Request { rank, count, name, .. } = *request;
    if rank >= count {
        let message = format!("there is no rank {rank} in a group of {count}; ranks are numbered from 0");
        return Err(Failure::new(Code::InvalidArgument, message));
    }
    if count > RANKS {
        let message = format!(
            "the group {name:?} of {count} ranks is within one process, where a group has at most {RANKS} \
             ranks; start an MPI job for more"
        );
        return Err(Failure::new(Code::InvalidArgument, message));
    }
    let mut groups = GROUPS.lock();
    groups.retain(|_, group| group.strong_count() > 0);
    let known = groups.get(request.id).and_then(Weak::upgrade).filter(|group| !group.has_failed());
    let group = match known {
        Some(group) if group.count() != count => {
            let message = format!(
                "rank {rank} joins the group {name:?} with {count} ranks, but others have joined it with {}",
                group.count()
            );
            return Err(Failure::new(Code::InvalidArgument, message));
        }
        Some(group) if group.terms().piece != request.terms.piece => {
            let message = format!(
                "rank {rank} joins the group {name:?} with pieces of {} bytes, but others have joined it with \
                 {} (collective_piece)",
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
