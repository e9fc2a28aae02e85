// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Who has not come to an operation in time, and how that is said.

use crate::group::Group;
use crate::notice::{Generation, Place};
use hal_semaphore::{Code, Failure};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the ranks of a group have to answer whether they have come to an operation.
const TIME: Duration = Duration::from_millis(150);

/// The ranks of a group are asked who has not come to an operation in which one of them waits.
struct RollCall {
    group: Arc<Group>,
    place: Place,
    waits: u32,
    came: BTreeSet<u32>,
    answered: BTreeSet<u32>,
    until: Instant,
}

/// At most one for each group.
#[derive(Default)]
pub(super) struct RollCalls(Vec<RollCall>);

impl RollCalls {
    /// True if a rank is to be told who has not come.
    pub(super) fn are_open(&self) -> bool {
        !self.0.is_empty()
    }

    /// Begins one, unless the group has one. True if its ranks are to be asked.
    pub(super) fn begin(&mut self, group: &Arc<Group>, place: Place, waits: u32) -> bool {
        let is_new = !self.0.iter().any(|call| call.group.id == group.id);
        if is_new {
            let (came, answered) = (BTreeSet::new(), BTreeSet::new());
            let until = Instant::now() + TIME;
            self.0.push(RollCall { group: group.clone(), place, waits, came, answered, until });
        }
        is_new
    }

    /// A rank has answered.
    pub(super) fn answer(&mut self, of: Generation, rank: u32, has_come: bool) {
        if let Some(call) = self.0.iter_mut().find(|call| call.group.id == of) {
            call.answered.insert(rank);
            call.came.extend(has_come.then_some(rank));
        }
    }

    /// The groups whose ranks have all answered, or had their time, with their failures.
    pub(super) fn take_over(&mut self, now: Instant) -> Vec<(Arc<Group>, Failure)> {
        let is_over =
            |call: &mut RollCall| call.answered.len() == call.group.members.len() || now >= call.until;
        let over = self.0.extract_if(.., is_over).map(|RollCall { group, place, waits, came, .. }| {
            let missing = (0..group.count()).filter(|rank| !came.contains(rank));
            let failure = too_late(&group, place, waits, missing);
            (group, failure)
        });
        over.collect()
    }
}

fn names(ranks: impl Iterator<Item = u32>) -> String {
    ranks.take(8).map(|rank| rank.to_string()).collect::<Vec<_>>().join(", ")
}

/// The failure of a group whose communicator was not made in its time.
pub(super) fn not_made(group: &Group) -> Failure {
    let message = format!(
        "the group {:?} was not made within {:?} (collective_timeout): rank {} waits for it, and a process of another \
         rank is gone or does not go on",
        group.name, group.terms.timeout, group.rank
    );
    Failure::new(Code::DeadlineExceeded, message)
}

/// The failure of an operation while MPI takes no call, so that no rank can be asked.
pub(super) fn blocked(group: &Group, place: Place) -> Failure {
    let message = format!(
        "{place} of the group {:?}: rank {} waits in it; MPI makes a communicator, to which another process does not \
         come, and takes no other call meanwhile, for want of MPI_THREAD_MULTIPLE; waited {:?} (collective_timeout)",
        group.name, group.rank, group.terms.timeout
    );
    Failure::new(Code::DeadlineExceeded, message)
}

/// The failure of an operation of a group that has no communicator.
pub(super) fn not_joined(group: &Group, place: Place) -> Failure {
    let message = format!(
        "{place} of the group {:?}: rank {} waits in it; another rank has not come to make the group within {:?} \
         (collective_timeout)",
        group.name, group.rank, group.terms.timeout
    );
    Failure::new(Code::DeadlineExceeded, message)
}

/// The failure of a group that only `present` of its `count` ranks have joined.
pub(super) fn not_all_joined(place: Place, waits: u32, present: &[u32], count: u32) -> Failure {
    let missing = (0..count).filter(|rank| !present.contains(rank));
    let message = format!(
        "{place}: rank {waits} waits in it; of {count} ranks {} have joined the group, and rank {} has not come in \
         time (collective_timeout)",
        present.len(),
        names(missing)
    );
    Failure::new(Code::DeadlineExceeded, message)
}

/// The failure of an operation behind one that its own rank holds up.
pub(super) fn held_up(group: &Group, place: Place) -> Failure {
    let message = format!(
        "{place} of the group {:?}: rank {} has not begun an operation that it entered before, and operations of a \
         group begin in their order; waited {:?} (collective_timeout)",
        group.name, group.rank, group.terms.timeout
    );
    Failure::new(Code::DeadlineExceeded, message)
}

/// The failure of an operation that ranks have not come to in time.
pub(super) fn too_late(
    group: &Group,
    place: Place,
    waits: u32,
    missing: impl Iterator<Item = u32>,
) -> Failure {
    let names = names(missing);
    let whom = if names.is_empty() {
        "MPI has not ended it".to_owned()
    } else {
        format!("rank {names} has not come")
    };
    let message = format!(
        "{place} of the group {:?}: rank {waits} waits in it; {whom} within {:?} (collective_timeout)",
        group.name, group.terms.timeout
    );
    Failure::new(Code::DeadlineExceeded, message)
}
