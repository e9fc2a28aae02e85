// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Splitting a group. Each rank calls it for itself and goes on; the new groups are known when all ranks have
//! called.

use super::group::Group;
use super::member::Member;
use super::rendezvous::Wait;
use crate::{PendingGroup, Result};
use hal_semaphore::Failure;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What a rank has called with: its color and its key, how long it waits, and where to put its new group.
struct Call {
    color: Option<u32>,
    key: i32,
    timeout: Duration,
    pending: PendingGroup,
}

/// The calls of ranks so far.
pub(super) struct Split {
    calls: BTreeMap<u32, Call>,
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
        for call in self.calls.into_values() {
            call.pending.set(Err(failure.clone()));
        }
    }

    /// Forms the groups, once all ranks have called.
    fn resolve(self, group: &Group, number: u64) {
        let mut colors: BTreeMap<u32, Vec<(u32, Call)>> = BTreeMap::new();
        for (rank, call) in self.calls {
            if let Some(color) = call.color {
                colors.entry(color).or_default().push((rank, call));
            }
        }
        for (color, mut members) in colors {
            members.sort_by_key(|(rank, call)| (call.key, *rank));
            let name = format!("{} split {number} color {color}", group.name());
            #[expect(clippy::cast_possible_truncation, reason = "ranks are 32-bit numbers")]
            let count = members.len() as u32;
            let part = Group::new(name, count, group.terms());
            for (rank, (_, call)) in (0..).zip(members) {
                // No one else knows the new group, so no one else claims that rank.
                let member = Member::claim(&part, rank, rank as usize, call.timeout);
                call.pending.set(member.map(|member| Arc::new(member) as _));
            }
        }
    }
}

/// The call of one rank. Returns its new group.
pub(super) fn call(
    group: &Arc<Group>,
    rank: u32,
    (color, key): (Option<u32>, i32),
    timeout: Duration,
) -> Result<PendingGroup> {
    let pending = PendingGroup::new(timeout);
    let (mut state, number) = group.next_split(rank)?;
    let wait = Wait::begin(timeout);
    let split = state.splits.entry(number).or_insert_with(|| Split {
        calls: BTreeMap::new(),
        wait,
        _group: group.clone(),
    });
    split.wait = split.wait.sooner(wait);
    split.calls.insert(rank, Call { color, key, timeout, pending: pending.clone() });
    if split.calls.len() < group.count() as usize {
        group.keep_time(&mut state, wait);
        return Ok(pending);
    }
    let split = state.splits.remove(&number);
    drop(state);
    if let Some(split) = split {
        split.resolve(group, number);
    }
    Ok(pending)
}
