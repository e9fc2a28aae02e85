// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Splitting a group. Each rank calls it for itself and goes on; the new groups are known when all ranks have
//! called.

use super::group::Group;
use super::member::Member;
use super::rendezvous::Wait;
use crate::{Communicator, Operation, OperationEntry, Result};
use hal_semaphore::{Code, Failure};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The calls of ranks so far: the color and the key of each, and where to put its new group.
pub(super) struct Split {
    calls: BTreeMap<u32, (Option<u32>, i32, Arc<PendingGroup>)>,
    /// The wait that ends first, among the ranks that have called.
    pub(super) wait: Wait,
    /// Keeps the group for ranks that have not called, even if all others have released it.
    _group: Arc<Group>,
}

impl Split {
    pub(super) fn has(&self, rank: u32) -> bool {
        self.calls.contains_key(&rank)
    }

    pub(super) fn fail(self, failure: &Failure) {
        for (_, _, pending) in self.calls.into_values() {
            pending.set(Err(failure.clone()));
        }
    }

    /// Forms the groups, once all ranks have called.
    fn resolve(self, group: &Group, number: u64) {
        let mut colors: BTreeMap<u32, Vec<(i32, u32, Arc<PendingGroup>)>> = BTreeMap::new();
        for (rank, (color, key, pending)) in self.calls {
            if let Some(color) = color {
                colors.entry(color).or_default().push((key, rank, pending));
            }
        }
        for (color, mut members) in colors {
            members.sort_by_key(|&(key, rank, _)| (key, rank));
            let name = format!("{} split {number} color {color}", group.name());
            #[expect(clippy::cast_possible_truncation, reason = "ranks are 32-bit numbers")]
            let count = members.len() as u32;
            let part = Group::new(name, count, group.terms());
            for (rank, (_, _, pending)) in (0..).zip(members) {
                // No one else knows the new group, so no one else claims that rank.
                pending.set(Member::claim(&part, rank, rank as usize, pending.timeout));
            }
        }
    }
}

/// The call of one rank.
pub(super) fn call(
    group: &Arc<Group>,
    rank: u32,
    (color, key): (Option<u32>, i32),
    pending: &Arc<PendingGroup>,
) -> Result {
    let (mut state, number) = group.next_split(rank)?;
    let wait = Wait::begin(pending.timeout);
    let split = state.splits.entry(number).or_insert_with(|| Split {
        calls: BTreeMap::new(),
        wait,
        _group: group.clone(),
    });
    split.wait = split.wait.sooner(wait);
    split.calls.insert(rank, (color, key, pending.clone()));
    if split.calls.len() < group.count() as usize {
        group.keep_time(&mut state, wait);
        return Ok(());
    }
    let split = state.splits.remove(&number);
    drop(state);
    if let Some(split) = split {
        split.resolve(group, number);
    }
    Ok(())
}

/// A rank's handle on a group that is still being agreed on.
pub(super) struct PendingGroup {
    outcome: Mutex<Option<Result<Arc<Member>>>>,
    known: Condvar,
    /// How long the rank waits for the others.
    timeout: Duration,
}

impl PendingGroup {
    pub(super) fn new(timeout: Duration) -> Arc<Self> {
        Arc::new(Self { outcome: Mutex::default(), known: Condvar::new(), timeout })
    }

    fn set(&self, outcome: Result<Member>) {
        *self.outcome.lock() = Some(outcome.map(Arc::new));
        self.known.notify_all();
    }

    fn member(&self) -> Result<Arc<Member>> {
        let mut outcome = self.outcome.lock();
        // The timekeeper ends the wait; twice the timeout allows for a late wake-up.
        let end = Instant::now() + self.timeout * 2 + Duration::from_secs(1);
        while outcome.is_none() {
            if self.known.wait_until(&mut outcome, end).timed_out() {
                let message = "the group is not formed yet: not every rank has called the split";
                return Err(Failure::new(Code::DeadlineExceeded, message));
            }
        }
        match &*outcome {
            Some(outcome) => outcome.clone(),
            None => Err(Failure::new(Code::Internal, "a split ended without an outcome")),
        }
    }
}

impl Communicator for Arc<PendingGroup> {
    fn place(&self) -> Result<(u32, u32)> {
        self.member()?.place()
    }

    fn enter(&self, operation: Operation) -> Result<Box<dyn OperationEntry>> {
        self.member()?.enter(operation)
    }

    fn end(&self, why: &Failure) {
        let known = self.outcome.lock().clone();
        if let Some(Ok(member)) = known {
            member.end(why);
        }
    }

    fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>> {
        self.member()?.split(color, key)
    }
}
