// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The groups that an engine knows, by their numbers, which are the same in all processes.
//!
//! The end of a group looks at the table too, so no group is let go of under its lock.

use crate::group::{Generation, Group, State};
use crate::wire::{Asked, Meeting};
use hal_semaphore::{Code, Failure};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

/// This process's record of the groups with one number.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) group: Weak<Group>,
    /// The generation that is joined next, or was, and how far it is: a rank that lets go of a group and joins it again goes on
    /// counting, as other ranks may not have let go of it.
    pub(crate) generation: u32,
    pub(crate) state: Arc<Mutex<State>>,
    /// Why the one before failed.
    pub(crate) failure: Option<Failure>,
}

/// A part that was let go of.
struct Gone {
    number: u64,
    failure: Option<Failure>,
}

/// The addressee of a letter: a group that this process is in, may come to be in, or was in.
pub(crate) enum Addressee {
    /// A group that this process is in.
    Member(Arc<Group>),
    /// One that it may come to be in.
    Later,
    /// One that has failed, for this reason.
    Failed(Failure),
    /// A part that this process was in and that is not joined again.
    Gone,
}

/// How many parts that were let go of are remembered: what is on its way to one comes soon.
const REMEMBERED: usize = 256;

/// Of how many groups that this process was never in, or let go of long ago, it is remembered what others have said. A process may be so many groups behind the others.
const STRANGERS: usize = 4096;

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Groups {
    known: Mutex<BTreeMap<u64, Known>>,
    /// Parts that were let go of, the last ones. Other ranks may still say that they are there, or that they have failed, and are told of a failure
    /// that they have not heard of.
    gone: Mutex<VecDeque<Gone>>,
    /// Groups that others have spoken of before this process was in them, in that order.
    strangers: Mutex<VecDeque<u64>>,
}

impl Groups {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Known>> {
        self.known.lock()
    }

    /// Forgets a part, which is never joined again.
    pub(crate) fn forget(&self, number: u64) {
        let mut groups = self.lock();
        let Some(Known { failure, .. }) = groups.remove(&number) else { return };
        let mut gone = self.gone.lock();
        if gone.len() == REMEMBERED {
            gone.pop_front();
        }
        gone.push_back(Gone { number, failure });
    }

    /// Whether this process is in any group.
    pub(crate) fn any(&self) -> bool {
        self.lock().values().any(|known| known.group.strong_count() > 0)
    }

    /// Who letters of a group are for.
    pub(crate) fn addressee(&self, id: Generation) -> Addressee {
        let groups = self.lock();
        let Some(known) = groups.get(&id.number) else {
            return match self.gone.lock().iter().find(|gone| gone.number == id.number) {
                Some(Gone { failure: Some(failure), .. }) => Addressee::Failed(failure.clone()),
                Some(_) => Addressee::Gone,
                None => Addressee::Later,
            };
        };
        let (group, generation, failure) = (known.group.upgrade(), known.generation, known.failure.clone());
        drop(groups);
        match group.filter(|group| group.id == id) {
            Some(group) => Addressee::Member(group),
            None if id.generation >= generation => Addressee::Later,
            None => failure.map_or(Addressee::Later, Addressee::Failed),
        }
    }

    /// Others speak of a group. If there are too many that this process was not in, the one that they spoke of first is forgotten, which this returns.
    fn meet(&self, number: u64) -> Option<u64> {
        let mut groups = self.lock();
        if groups.contains_key(&number) {
            return None;
        }
        groups.insert(number, Known::default());
        let mut strangers = self.strangers.lock();
        strangers.push_back(number);
        if strangers.len() <= STRANGERS {
            return None;
        }
        let first = strangers.pop_front()?;
        let is_stranger = groups.get(&first).is_some_and(|known| known.group.ptr_eq(&Weak::new()));
        is_stranger.then(|| groups.remove(&first)).map(|_| first)
    }

    /// Another rank is in an operation of a group that this one may come to be in. If that has begun anew, the generation before
    /// has failed: the group that this process is in, if it is. And the group that is forgotten for it.
    pub(crate) fn hear_early(
        &self,
        meeting: Meeting,
        peer: u32,
        theirs: Option<Asked>,
    ) -> (Option<(Arc<Group>, Failure)>, Option<u64>) {
        let (id, mut failed) = (meeting.group, None);
        let forgotten = self.meet(id.number);
        let before = id
            .generation
            .checked_sub(1)
            .filter(|_| self.lock().get(&id.number).is_none_or(|known| known.generation < id.generation));
        if let Some(generation) = before {
            let message = format!("the group has failed, and rank {peer} has begun it anew");
            let failure = Failure::new(Code::Aborted, message);
            self.remember_failure(Generation { generation, ..id }, &failure);
            failed = self.lock().get(&id.number).and_then(|known| known.group.upgrade()).zip(Some(failure));
        }
        let state = self.lock().entry(id.number).or_default().state.clone();
        state.lock().hear(meeting, peer, theirs);
        (failed, forgotten)
    }

    /// Records that a group has failed: it is not joined any more. Returns the group that is forgotten for it.
    pub(crate) fn remember_failure(&self, id: Generation, failure: &Failure) -> Option<u64> {
        let forgotten = self.meet(id.number);
        let mut groups = self.lock();
        let known = groups.entry(id.number).or_default();
        if known.generation <= id.generation {
            known.generation = id.generation + 1;
            known.state = Arc::default();
            known.failure = Some(failure.clone());
        }
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_collectives::Line;
    use hal_semaphore::Code;

    #[test]
    fn part_that_was_let_go_of_is_known_by_its_end_until_as_many_others_were() {
        let (groups, failure) = (Groups::default(), Failure::new(Code::DataLoss, "gone"));
        let let_go = |number: u64| {
            groups.lock().entry(number).or_default();
            if number.is_multiple_of(2) {
                groups.remember_failure(Generation { number, generation: 0 }, &failure);
            }
            groups.forget(number);
        };
        let addressee = |number| groups.addressee(Generation { number, generation: 0 });
        let_go(0);
        let_go(1);
        assert!(matches!(addressee(0), Addressee::Failed(why) if why.code() == Code::DataLoss));
        assert!(matches!(addressee(1), Addressee::Gone));
        (2..REMEMBERED as u64 + 1).for_each(let_go);
        assert!(matches!(addressee(0), Addressee::Later));
        assert!(matches!(addressee(1), Addressee::Gone));
        assert_eq!((groups.lock().len(), groups.gone.lock().len()), (0, REMEMBERED));
    }

    #[test]
    fn groups_that_are_only_spoken_of_are_forgotten_in_their_order_when_there_are_too_many() {
        let (groups, failure) = (Groups::default(), Failure::new(Code::DataLoss, "gone"));
        let most = STRANGERS as u64;
        let speak = |number: u64| {
            if number.is_multiple_of(2) {
                return groups.remember_failure(Generation { number, generation: 0 }, &failure);
            }
            let group = Generation { number, generation: 0 };
            let meeting = Meeting { group, line: Line::Everyone, number: 0, piece: 0 };
            groups.hear_early(meeting, 1, None).1
        };
        for number in (0..most).chain(0..most) {
            assert_eq!(speak(number), None);
        }
        assert_eq!([most, most + 1].map(speak), [0, 1].map(Some));
        assert_eq!((groups.lock().len(), groups.strangers.lock().len()), (STRANGERS, STRANGERS));
        let failed =
            |number| matches!(groups.addressee(Generation { number, generation: 0 }), Addressee::Failed(_));
        assert!(!failed(0) && failed(2));
    }
}
