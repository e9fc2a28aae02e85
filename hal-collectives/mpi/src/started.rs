// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A piece of an operation that a rank has started, and its end.

use crate::calls::Calls;
use crate::group::Group;
use crate::library::Call;
use crate::notice::Place;
use hal_backend::TimeLimit;
use hal_collectives::{Done, Operation, Participants, Result, notify};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Instant;

/// A piece whose callback is due, with its outcome.
pub(crate) struct DueCallback(pub(crate) Box<Started>, pub(crate) Result);

impl DueCallback {
    fn call(self) {
        let Self(started, outcome) = self;
        let Started { group, calls, done, .. } = *started;
        if let Some(finish) = calls.finish.as_ref().filter(|_| outcome.is_ok()) {
            finish.run();
        }
        // Memory is released, which may write it back, before the callback, which may release the group and rely on
        // that being the last reference.
        calls.release(&group.engine.spares);
        drop(group);
        notify(done, outcome);
    }
}

/// Operations that have ended, to be reported without the lock.
#[derive(Default)]
pub(crate) struct Ended {
    pub(crate) due: SmallVec<[DueCallback; 1]>,
    /// Calls that have outlived their operations.
    pub(crate) released: Vec<Call>,
}

impl Ended {
    pub(crate) fn is_empty(&self) -> bool {
        self.due.is_empty() && self.released.is_empty()
    }

    /// True if more than one callback is due.
    pub(crate) fn are_several(&self) -> bool {
        self.due.len() > 1
    }

    /// All that are due but the first one.
    pub(crate) fn take_rest(&mut self) -> impl Iterator<Item = DueCallback> {
        self.due.drain(1..)
    }

    pub(crate) fn extend(&mut self, due: Option<DueCallback>) {
        self.due.extend(due);
    }

    /// Calls each back, whatever another callback does.
    pub(crate) fn call_back(&mut self) {
        self.released.clear();
        self.due.drain(..).for_each(DueCallback::call);
    }
}

/// A piece of an operation that a rank has started.
pub(crate) struct Started {
    pub(crate) group: Arc<Group>,
    pub(crate) operation: Operation,
    pub(crate) places: SmallVec<[Place; 2]>,
    pub(crate) piece: (u32, bool),
    /// In the order of the places.
    pub(crate) calls: Calls,
    pub(crate) done: Done,
    /// When it started, and how long it waits.
    pub(crate) at: Instant,
    pub(crate) limit: TimeLimit,
    /// It is overdue, and another rank was asked who has not come.
    pub(crate) is_overdue: bool,
    /// The piece of another operation that it waited for when its time was over.
    pub(crate) behind: Option<(u64, u32)>,
}

impl Started {
    pub(crate) fn new(
        group: Arc<Group>,
        (operation, places): (Operation, SmallVec<[Place; 2]>),
        piece: (u32, bool),
        calls: Calls,
        done: Done,
    ) -> Box<Self> {
        let (at, is_overdue) = (Instant::now(), false);
        let limit = TimeLimit::new(group.terms.timeout, at);
        Box::new(Self { group, operation, places, piece, calls, done, at, limit, is_overdue, behind: None })
    }

    /// The ranks of the job that it receives from, and others that it meets.
    pub(crate) fn peers(&self) -> impl Iterator<Item = u32> {
        let everyone = self.places.iter().any(|place| place.line.0 == Participants::Everyone);
        let members = if everyone { self.group.members.as_slice() } else { &[] };
        let pairs = self.places.iter().filter_map(|place| match place.line.0 {
            Participants::Everyone => None,
            Participants::Pair { from, to } => Some([from, to]),
        });
        members.iter().copied().chain(pairs.flatten().map(|rank| self.group.member(rank)))
    }

    /// True if MPI has begun its call at a place.
    pub(crate) fn has_begun(&self, place: Place) -> bool {
        self.places.iter().zip(&self.calls.all).any(|(at, call)| *at == place && !call.waits())
    }

    /// True if all of its calls were seen to have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.calls.all.iter().all(Call::is_over)
    }
}
