// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Operations that have failed while transfers of theirs were under way.
//!
//! A rank that is told that its operation has failed may use the memory again at once, for something else. So
//! it is told when no transfer reads or writes that memory any more: receives are cancelled, and those that
//! have met their message already, as well as sends, get [`GRACE`] to end. A send counts too: the rank that
//! receives it may be through with the operation before it hears of the failure, and would have got what the
//! sender wrote there afterwards.
//!
//! A transfer may never end, where its other end is gone. When its time is over the rank is told all the
//! same, as no rank hangs because of a peer, and the memory of the transfer is *kept*: it is not let go of
//! before MPI says that it is done with it, and never if that never happens. What a late message writes then
//! it writes into memory that has no other user.
//!
//! # What is sent of memory that the program has changed
//!
//! The program may change what is sent when it has been told, and a rank that stood still until then (its
//! process was stopped, say) would receive that. It does not take it for good: the notice of the failure was
//! on its way to it for as long as [`GRACE`] before the memory was changed, and an operation goes on with
//! messages that have come, or ends well, only when all letters are read that have come until then
//! ([`Active::is_landed`](crate::active::Active)). So what it got is sent no further either. That takes no
//! letter more where nothing fails. It counts on MPI to have a letter ready that was sent so long before a
//! message's bytes were read. Where the process stood still that is not so: MPI has room for some letters
//! alone, and the sender's has the others, which come when there is room again. So operations wait there
//! until no letter has come for a while ([`Mail::looks_after`](crate::mail::Mail::looks_after)).
//!
//! A message that is not wanted any more, as its letter came to an operation that has failed or does not fit,
//! is received all the same, into memory that is discarded ([how](crate::unclaimed)), and one that was
//! announced and is not sent any more is sent empty ([how](crate::announced)).

use crate::active::InFlight;
use crate::group::Generation;
use crate::library::Library;
use crate::progress::DueCallback;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a failure waits for transfers to end: less than a device that is released waits for its operations.
pub(crate) const GRACE: Duration = Duration::from_millis(250);

/// The owner of transfers that are no operation's.
pub(crate) const UNOWNED: u64 = u64::MAX;

/// Operations of a group that have failed, whose ranks are told together when all of their transfers have
/// ended: they may be pieces of one, each with a callback of its own.
struct FailedOperations {
    told: Vec<DueCallback>,
    transfers: usize,
    until: Instant,
}

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Endings {
    groups: BTreeMap<Generation, FailedOperations>,
    /// The groups of operations that have transfers under way.
    operations: BTreeMap<u64, Generation>,
    /// Transfers whose ranks could not wait for them.
    kept: Vec<InFlight>,
}

impl Endings {
    /// Whether there is anyone to tell, in time.
    pub(crate) fn waits(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Whether there is memory that MPI may use though its operation is over.
    pub(crate) fn keeps(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Transfers whose ranks could not wait for them.
    pub(crate) fn kept(&mut self) -> &mut [InFlight] {
        &mut self.kept
    }

    /// An operation of a group has failed that has so many transfers under way.
    pub(crate) fn add(&mut self, group: Generation, operation: u64, told: DueCallback, transfers: usize) {
        let until = Instant::now() + GRACE;
        let ending = self.groups.entry(group).or_insert_with(|| FailedOperations {
            told: Vec::new(),
            transfers: 0,
            until,
        });
        ending.told.push(told);
        ending.transfers += transfers;
        if transfers > 0 {
            self.operations.insert(operation, group);
        }
    }

    /// The callbacks of a group that has failed, unless transfers are left.
    pub(crate) fn over(&mut self, group: Generation) -> Vec<DueCallback> {
        if self.groups.get(&group).is_none_or(|ending| ending.transfers > 0) {
            return Vec::new();
        }
        self.operations.retain(|_, of| *of != group);
        self.groups.remove(&group).map(|ending| ending.told).unwrap_or_default()
    }

    /// MPI may use the memory of a transfer, and does not say whether it has ended.
    pub(crate) fn keep(&mut self, flight: InFlight) {
        self.kept.push(flight);
    }

    /// A transfer of an operation has ended: returns the callbacks that are due if it was the last one of its group.
    pub(crate) fn landed(&mut self, operation: u64) -> Vec<DueCallback> {
        let Some(&group) = self.operations.get(&operation) else { return Vec::new() };
        if let Some(ending) = self.groups.get_mut(&group) {
            ending.transfers -= 1;
        }
        self.over(group)
    }

    /// Those whose time is over are to be told, and their transfers are kept.
    pub(crate) fn overdue(&mut self, in_flight: &mut Vec<InFlight>) -> Vec<DueCallback> {
        let mut overdue = Vec::new();
        if self.groups.is_empty() {
            return overdue;
        }
        let now = Instant::now();
        while let Some((&group, _)) = self.groups.iter().find(|(_, ending)| ending.until <= now) {
            let is_of = |flight: &mut InFlight| self.operations.get(&flight.owner) == Some(&group);
            self.kept.extend(in_flight.extract_if(.., is_of));
            if let Some(ending) = self.groups.get_mut(&group) {
                ending.transfers = 0;
            }
            overdue.extend(self.over(group));
        }
        overdue
    }

    /// Transfers that have ended after all.
    pub(crate) fn let_go(&mut self, library: &Library) -> Vec<InFlight> {
        let has_ended = |flight: &mut InFlight| library.has_ended(&mut flight.request).unwrap_or(false);
        self.kept.extract_if(.., has_ended).collect()
    }

    /// All that is kept, for the thread that finalises MPI.
    pub(crate) fn take_kept(&mut self) -> Vec<InFlight> {
        std::mem::take(&mut self.kept)
    }
}
