// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Operations that have failed while MPI may use their memory.

use super::GRACE;
use crate::library::{Call, Library};
use crate::notice::Generation;
use crate::started::{DueCallback, Ended, Started};
use hal_semaphore::Failure;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::time::Instant;

/// Operations of a group that has failed, which are reported together when all of their calls have ended: they may be
/// pieces of one, each with a callback of its own.
struct Ending {
    due: Vec<DueCallback>,
    open: Vec<Call>,
    until: Instant,
}

/// See the [module documentation](self).
#[derive(Default)]
pub(super) struct Endings {
    groups: BTreeMap<Generation, Ending>,
    /// Calls that are waited for no longer.
    kept: Vec<Call>,
}

impl Endings {
    /// True if no operation is to be reported.
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// True if MPI may use memory of operations that were reported.
    pub(super) fn keeps_any(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Adds an operation that has failed.
    pub(super) fn add(&mut self, mut started: Box<Started>, failure: &Failure) {
        let new = || Ending { due: Vec::new(), open: Vec::new(), until: Instant::now() + GRACE };
        let ending = self.groups.entry(started.group.id).or_insert_with(new);
        let (open, others) = std::mem::take(&mut started.calls.all).into_iter().partition(Call::is_open);
        started.calls.all = others;
        ending.open.extend::<SmallVec<[Call; 1]>>(open);
        ending.due.push(DueCallback(started, Err(failure.clone())));
    }

    /// Reports the operations whose calls have ended, or had their time. Without a library none is tested.
    pub(super) fn report(&mut self, library: Option<&Library>, now: Instant, ended: &mut Ended) {
        if self.groups.is_empty() {
            return;
        }
        let kept = &mut self.kept;
        self.groups.retain(|_, ending| {
            take_ended(&mut ending.open, library, ended);
            let is_over = ending.open.is_empty() || now >= ending.until;
            if is_over {
                kept.append(&mut ending.open);
                ended.due.extend(ending.due.drain(..));
            }
            !is_over
        });
    }

    /// Releases the memory of kept calls that have ended.
    pub(super) fn release(&mut self, library: &Library, ended: &mut Ended) {
        take_ended(&mut self.kept, Some(library), ended);
    }
}

fn take_ended(calls: &mut Vec<Call>, library: Option<&Library>, ended: &mut Ended) {
    if let Some(library) = library.filter(|_| !calls.is_empty()) {
        let has_ended = |call: &mut Call| library.has_ended(call).unwrap_or(false);
        ended.released.extend(calls.extract_if(.., has_ended));
    }
}
