// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The groups that an engine knows, by their numbers, which are the same in all processes.
//!
//! The end of a group looks at the table too, so no group is let go of under its lock.

use crate::group::{AgreementState, Generation, Group};
use crate::wire::{Asked, Meeting};
use hal_semaphore::{Code, Failure};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

/// This process's record of the groups with one number.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) group: Weak<Group>,
    /// The generation that is joined next, or was, and how far it is: a rank that lets go of a group and
    /// joins it again goes on counting, as other ranks may not have let go of it.
    pub(crate) generation: u32,
    pub(crate) state: Arc<Mutex<AgreementState>>,
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

/// Of how many groups that this process was never in, or let go of long ago, it is remembered what others
/// have said. A process may be so many groups behind the others.
const STRANGERS: usize = 4096;

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Groups {
    known: Mutex<BTreeMap<u64, Known>>,
    /// Parts that were let go of, the last ones. Other ranks may still say that they are there, or that they
    /// have failed, and are told of a failure that they have not heard of.
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
        let failure = groups.remove(&number).and_then(|known| known.failure);
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
        // In a block of its own, behind which the lock is let go of, as the group may end here.
        let (group, generation, failure) = {
            let groups = self.lock();
            let Some(known) = groups.get(&id.number) else {
                return match self.gone.lock().iter().find(|gone| gone.number == id.number) {
                    Some(Gone { failure: Some(failure), .. }) => Addressee::Failed(failure.clone()),
                    Some(_) => Addressee::Gone,
                    None => Addressee::Later,
                };
            };
            (known.group.upgrade(), known.generation, known.failure.clone())
        };
        match group.filter(|group| group.id == id) {
            Some(group) => Addressee::Member(group),
            None if id.generation >= generation => Addressee::Later,
            None => failure.map_or(Addressee::Later, Addressee::Failed),
        }
    }

    /// Others speak of a group, whose record this returns. If there are too many that this process was not
    /// in, the one that they spoke of first is forgotten, which this returns too.
    fn meet<'a>(&self, groups: &'a mut BTreeMap<u64, Known>, number: u64) -> (&'a mut Known, Option<u64>) {
        let mut forgotten = None;
        if !groups.contains_key(&number)
            && let Some(first) = self.first_stranger_but(number)
            && groups.get(&first).is_some_and(|known| known.group.ptr_eq(&Weak::new()))
        {
            groups.remove(&first);
            forgotten = Some(first);
        }
        (groups.entry(number).or_default(), forgotten)
    }

    /// Puts a group behind all others that were spoken of, and takes the first one away if those are too many.
    fn first_stranger_but(&self, number: u64) -> Option<u64> {
        let mut strangers = self.strangers.lock();
        strangers.push_back(number);
        if strangers.len() > STRANGERS { strangers.pop_front() } else { None }
    }

    /// Another rank is in an operation of a group that this one may come to be in. If that has begun anew,
    /// the generation before has failed: the group that this process is in, if it is. And the group that is
    /// forgotten for it.
    pub(crate) fn hear_early(
        &self,
        meeting: Meeting,
        peer: u32,
        theirs: Option<Asked>,
    ) -> (Option<(Arc<Group>, Failure)>, Option<u64>) {
        let (id, mut failed) = (meeting.group, None);
        let mut groups = self.lock();
        let (known, forgotten) = self.meet(&mut groups, id.number);
        if known.generation < id.generation {
            let message = format!("the group has failed, and rank {peer} has begun it anew");
            let failure = Failure::new(Code::Aborted, message);
            known.fail(id.generation - 1, &failure);
            failed = known.group.upgrade().zip(Some(failure));
        }
        known.state.lock().hear(meeting, peer, theirs);
        (failed, forgotten)
    }

    /// Records that a group has failed: it is not joined any more.
    pub(crate) fn remember_failure(&self, id: Generation, failure: &Failure) {
        self.hear_failure(id, failure);
    }

    /// The same of a group that this process may come to be in. Returns the one that it is in, which is a
    /// generation before, and has failed too; and the group that is forgotten for it.
    pub(crate) fn hear_failure(
        &self,
        id: Generation,
        failure: &Failure,
    ) -> (Option<Arc<Group>>, Option<u64>) {
        let mut groups = self.lock();
        let (known, forgotten) = self.meet(&mut groups, id.number);
        known.fail(id.generation, failure);
        (known.group.upgrade(), forgotten)
    }
}

impl Known {
    /// A generation has failed, and all before it.
    fn fail(&mut self, generation: u32, failure: &Failure) {
        if self.generation <= generation {
            self.generation = generation + 1;
            self.state = Arc::default();
            self.failure = Some(failure.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_collectives::Participants;
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
                return groups.hear_failure(Generation { number, generation: 0 }, &failure).1;
            }
            let group = Generation { number, generation: 0 };
            let meeting = Meeting { group, line: Participants::Everyone, number: 0, piece: 0 };
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

    #[test]
    fn group_that_was_joined_and_let_go_of_meanwhile_is_not_forgotten_for_another_one() {
        let groups = Groups::default();
        let speak = |number| {
            let meeting = Meeting {
                group: Generation { number, generation: 0 },
                line: Participants::Everyone,
                number: 0,
                piece: 0,
            };
            groups.hear_early(meeting, 1, None).1
        };
        (0..STRANGERS as u64).for_each(|number| assert_eq!(speak(number), None));
        groups.forget(0);
        assert_eq!([5_000, 5_001].map(speak), [None, Some(1)]);
    }

    #[test]
    fn letters_of_a_generation_that_failed_are_answered_and_those_of_a_later_one_kept() {
        let (groups, failure) = (Groups::default(), Failure::new(Code::DataLoss, "gone"));
        let addressee = |generation| groups.addressee(Generation { number: 7, generation });
        groups.remember_failure(Generation { number: 7, generation: 2 }, &failure);
        for generation in 0..=2 {
            assert!(matches!(addressee(generation), Addressee::Failed(why) if why.code() == Code::DataLoss));
        }
        for generation in 3..=4 {
            assert!(matches!(addressee(generation), Addressee::Later), "generation {generation}");
        }
        // An older failure that is told of late is no news.
        groups
            .remember_failure(Generation { number: 7, generation: 1 }, &Failure::new(Code::Aborted, "late"));
        assert!(matches!(addressee(2), Addressee::Failed(why) if why.code() == Code::DataLoss));
        // A rank in a later one has seen the one before fail.
        let meeting = Meeting {
            group: Generation { number: 7, generation: 5 },
            line: Participants::Everyone,
            number: 0,
            piece: 0,
        };
        assert!(groups.hear_early(meeting, 1, None).0.is_none(), "this process is not in the group");
        assert!(matches!(addressee(4), Addressee::Failed(why) if why.code() == Code::Aborted));
        assert!(matches!(addressee(5), Addressee::Later));
    }
}
