// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Which communicator a process makes when.
//!
//! `MPI_Comm_create_group` blocks until all ranks of the group have called it, and a process makes one communicator at
//! a time. Therefore
//!
//! - a communicator is made when all of its ranks wait for it: rank 0 of the job counts those of a group of the whole
//!   job; all ranks of a part come out of one split;
//! - its ranks are reserved for it one after the other, in ascending order in the job, so that no two processes wait
//!   for each other. A *turn* goes from each to the next. The last one tells all to make it, or not to, if the group
//!   has failed by then. So does one whose turn it is for a part that it never comes to, as its split has failed.
//!
//! A process that is reserved remains so until it is told that, and the communicator is made, and does not leave MPI
//! before. That depends on nothing but on the other processes' being alive. When the time of a group is over, its ranks
//! wait for it no longer, and may leave a little later.

use crate::group::Group;
use crate::notice::{Generation, Notice};
use hal_backend::TimeLimit;
use hal_collectives::Terms;
use hal_semaphore::{Code, Failure};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

/// A communicator that is made.
#[derive(Clone)]
pub(crate) enum Creation {
    Base,
    Group(Arc<Group>),
}

/// A group whose communicator this process waits for, for some time.
struct Wanted {
    group: Arc<Group>,
    limit: TimeLimit,
    is_given_up: bool,
}

/// Who has asked for the communicator of a group of the whole job, as rank 0 knows it.
struct Asked {
    count: u32,
    by: BTreeMap<u32, Terms>,
}

/// Notices for ranks of the job.
pub(crate) type Notices = Vec<(u32, Generation, Notice)>;

/// See the [module documentation](self).
pub(crate) struct Creations {
    rank: u32,
    wanted: BTreeMap<Generation, Wanted>,
    /// Rank 0's.
    asked: BTreeMap<Generation, Asked>,
    /// The turns of this process that have come, and the group that it is reserved for.
    turns: VecDeque<Generation>,
    /// The parts that this process never waits for, each with the group that was split, and why.
    never_wanted: BTreeMap<Generation, (Arc<Group>, Failure)>,
    reserved: Option<Generation>,
    /// The last rank of it is this one, which has yet to tell the others.
    is_last: bool,
    /// Communicators to be made.
    ready: VecDeque<Creation>,
    is_making: bool,
    /// Whether the base was made, or cannot be, and how long it is waited for.
    has_base: bool,
    base_limit: Option<TimeLimit>,
    #[cfg(test)]
    pub(crate) count: usize,
}

impl Creations {
    pub(crate) fn new(rank: u32) -> Self {
        Self {
            rank,
            wanted: BTreeMap::new(),
            asked: BTreeMap::new(),
            turns: VecDeque::new(),
            never_wanted: BTreeMap::new(),
            reserved: None,
            is_last: false,
            ready: VecDeque::from([Creation::Base]),
            is_making: false,
            has_base: false,
            base_limit: None,
            #[cfg(test)]
            count: 0,
        }
    }

    /// True if this process is reserved for a group, or a thread makes a communicator.
    pub(crate) fn is_reserved(&self) -> bool {
        self.is_making || self.reserved.is_some()
    }

    /// True if a thread makes a communicator.
    pub(crate) fn is_making(&self) -> bool {
        self.is_making
    }

    /// True if this process waits for a communicator that may still be made, or others do with it.
    pub(crate) fn are_pending(&self) -> bool {
        self.base_limit.is_some()
            || self.are_wanted() && self.wanted.values().any(|wanted| !wanted.is_given_up)
    }

    /// True if this process waits for the base or for communicators of groups, in time or not.
    pub(crate) fn are_open(&self) -> bool {
        self.base_limit.is_some() || self.are_wanted()
    }

    fn are_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// The base is waited for, if it is not made yet.
    pub(crate) fn want_base(&mut self, limit: TimeLimit) {
        if !self.has_base && self.base_limit.is_none_or(|other| other.end() < limit.end()) {
            self.base_limit = Some(limit);
        }
    }

    /// This process waits for the communicator of a group.
    pub(crate) fn want(&mut self, group: &Arc<Group>, limit: TimeLimit) -> Notices {
        if self.wanted.contains_key(&group.id) {
            return Notices::new();
        }
        let wanted = Wanted { group: group.clone(), limit, is_given_up: false };
        self.wanted.insert(group.id, wanted);
        if !group.is_part {
            let (from, count, terms) = (self.rank, group.count(), group.terms);
            return vec![(0, group.id, Notice::Want { from, count, terms })];
        }
        if group.first_in_job() == self.rank {
            self.turns.push_back(group.id);
        }
        self.reserve()
    }

    /// Rank 0: a rank waits for the communicator of a group.
    pub(crate) fn ask(&mut self, of: Generation, count: u32, from: u32, terms: Terms) -> Notices {
        let asked = self.asked.entry(of).or_insert_with(|| Asked { count, by: BTreeMap::new() });
        asked.by.insert(from, terms);
        if asked.by.len() < asked.count as usize {
            return Notices::new();
        }
        let Some(Asked { by, .. }) = self.asked.remove(&of) else { return Notices::new() };
        if let Some(failure) = unlike(&by) {
            return by.into_keys().map(|rank| (rank, of, Notice::Failed(failure.clone()))).collect();
        }
        self.turn(of)
    }

    /// Rank 0: those that have asked for the communicator of a group, which some have not, and their number.
    pub(crate) fn asked(&self, of: Generation) -> Option<(Vec<u32>, u32)> {
        self.asked.get(&of).map(|asked| (asked.by.keys().copied().collect(), asked.count))
    }

    /// It is this process's turn to reserve itself for a group.
    pub(crate) fn turn(&mut self, of: Generation) -> Notices {
        self.turns.push_back(of);
        self.reserve()
    }

    /// This process never waits for the communicator of a part, as its split of that group has failed.
    pub(crate) fn never_want(&mut self, part: Generation, of: Arc<Group>, why: Failure) -> Notices {
        self.never_wanted.insert(part, (of, why));
        self.reserve()
    }

    /// Takes the first turn that has come, if this process is free and has come to that group. A group that it never
    /// comes to is not made: those before it are reserved, and no turn goes to those behind it.
    fn reserve(&mut self) -> Notices {
        let never = |of: &Generation| self.never_wanted.contains_key(of);
        if let Some(of) = self.turns.iter().position(never).and_then(|at| self.turns.remove(at))
            && let Some((group, why)) = self.never_wanted.remove(&of)
        {
            let notices = [Notice::Failed(why), Notice::Make { is_made: false }];
            let to_all = |&rank| notices.clone().map(|notice| (rank, of, notice));
            return group.members.iter().flat_map(to_all).collect();
        }
        if self.reserved.is_some() {
            return Notices::new();
        }
        let Some(at) = self.turns.iter().position(|of| self.wanted.contains_key(of)) else {
            return Notices::new();
        };
        let Some(of) = self.turns.remove(at) else { return Notices::new() };
        self.reserved = Some(of);
        let Some(Wanted { group, .. }) = self.wanted.get(&of) else { return Notices::new() };
        let next = group.next_in_job(self.rank);
        self.is_last = next.is_none();
        next.map(|next| (next, of, Notice::Turn)).into_iter().collect()
    }

    /// Tells the ranks of a group to make its communicator, or not to, if all are reserved. For when all notices are
    /// read that have come.
    pub(crate) fn decide(&mut self) -> Notices {
        if !std::mem::take(&mut self.is_last) {
            return Notices::new();
        }
        let wanted = self.reserved.and_then(|of| self.wanted.get(&of));
        let Some(Wanted { group, .. }) = wanted else { return Notices::new() };
        let is_made = group.failure().is_none();
        group.members.iter().map(|&rank| (rank, group.id, Notice::Make { is_made })).collect()
    }

    /// All ranks of a group are reserved for it: it is made, or not.
    pub(crate) fn make(&mut self, of: Generation, is_made: bool) -> Notices {
        if is_made {
            if let Some(Wanted { group, .. }) = self.wanted.get(&of) {
                self.ready.push_back(Creation::Group(group.clone()));
            }
            return Notices::new();
        }
        self.wanted.remove(&of);
        self.reserved.take_if(|reserved| *reserved == of);
        self.reserve()
    }

    /// The next communicator for a thread to make.
    pub(crate) fn next(&mut self) -> Option<Creation> {
        let next = if self.is_making { None } else { self.ready.pop_front() };
        self.is_making |= next.is_some();
        next
    }

    /// A communicator was made, or not.
    pub(crate) fn made(&mut self, creation: &Creation) -> Notices {
        self.is_making = false;
        #[cfg(test)]
        {
            self.count += 1;
        }
        match creation {
            Creation::Base => (self.has_base, self.base_limit) = (true, None),
            Creation::Group(group) => {
                self.wanted.remove(&group.id);
                self.reserved = None;
            }
        }
        self.reserve()
    }

    /// All groups that this process waits for.
    pub(crate) fn all(&self) -> Vec<Arc<Group>> {
        self.wanted.values().map(|wanted| wanted.group.clone()).collect()
    }

    /// A group has failed, and is waited for for so long only. Returns the ranks that have asked this one for its
    /// communicator.
    pub(crate) fn failed(&mut self, of: Generation, limit: TimeLimit) -> impl Iterator<Item = u32> + use<> {
        if let Some(wanted) = self.wanted.get_mut(&of).filter(|wanted| limit.end() < wanted.limit.end()) {
            wanted.limit = limit;
        }
        self.asked.remove(&of).into_iter().flat_map(|asked| asked.by.into_keys())
    }

    /// The groups whose time is over by now, but for those with an operation that waits: it has a limit of its own, and
    /// says who has not come.
    pub(crate) fn give_up(&mut self, now: Instant, waits: impl Fn(&Arc<Group>) -> bool) -> Vec<Arc<Group>> {
        self.base_limit.take_if(|limit| limit.look(now).is_zero());
        let give_up = |wanted: &mut Wanted| {
            let is_late = wanted.limit.look(now).is_zero() && !waits(&wanted.group);
            (is_late && !std::mem::replace(&mut wanted.is_given_up, is_late)).then(|| wanted.group.clone())
        };
        self.wanted.values_mut().filter_map(give_up).collect()
    }
}

/// The failure of a group whose ranks have different terms.
fn unlike(by: &BTreeMap<u32, Terms>) -> Option<Failure> {
    let (first, own) = by.first_key_value()?;
    let (rank, terms) = by.iter().find(|(_, terms)| (terms.piece, terms.check) != (own.piece, own.check))?;
    let (what, values) = if terms.piece == own.piece {
        ("collective_check", [format!("{:?}", own.check), format!("{:?}", terms.check)])
    } else {
        ("collective_piece", [own.piece.to_string(), terms.piece.to_string()])
    };
    let [theirs, other] = values.map(|value| value.to_lowercase());
    let message = format!(
        "the ranks of a group do not have the same terms: rank {first} of the job has {what}={theirs}, rank {rank} has \
         {what}={other}; give every rank the same {what}"
    );
    Some(Failure::new(Code::InvalidArgument, message))
}
