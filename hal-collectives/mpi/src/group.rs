// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A rank's handle on a group between processes, and the operations that it has entered.

use crate::engine::{Command, Engine, engine};
use crate::progress::Started;
use crate::wire::{Asked, Meeting};
use hal_backend::HostRange;
use hal_collectives::{
    Buffers, Communicator, Done, Element, Entered, GroupOperation, Job, Kind, Operation, OperationEntry,
    Participants, Piece, Pieces, Portions, RECEIVER, Result, Side, Terms,
};
use hal_semaphore::{Code, Failure};
use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many operations of a line are remembered, for ranks that come to them later.
const REMEMBERED: u64 = 256;

/// A group, of which one generation after the other may fail: every one is begun when the one before has failed, and
/// letters say which one they belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Generation {
    pub(crate) number: u64,
    pub(crate) generation: u32,
}

/// Ranks of the job that talk to each other.
pub(crate) struct Group {
    pub(crate) engine: Arc<Engine>,
    pub(crate) id: Generation,
    pub(crate) name: String,
    /// The rank of each in the job.
    pub(crate) members: Vec<u32>,
    pub(crate) rank: u32,
    pub(crate) terms: Terms,
    /// A part of a split group, which cannot be joined again when it is gone.
    is_part: bool,
    state: Arc<Mutex<AgreementState>>,
    speaker: Mutex<Speaker>,
}

/// Who speaks for this rank, and how often: one at a time, as the operations of two would be taken for those of one.
#[derive(Default)]
struct Speaker {
    owner: usize,
    members: usize,
}

/// When a group has failed, as seen by who says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    Now,
    /// The other ranks are told already.
    Before,
}

/// An operation of a line, from this rank's end of it: which end that is goes without saying for a line of all ranks.
type OperationPlace = (Participants, bool, u64);

/// What other ranks ask for.
type PeerRequests = SmallVec<[(u32, Asked); 1]>;

fn place(line: Participants, side: Side, number: u64) -> OperationPlace {
    (line, line != Participants::Everyone && side == RECEIVER, number)
}

#[derive(Default)]
pub(crate) struct AgreementState {
    failed: Option<Failure>,
    /// How many operations each side of each line has entered.
    entered: BTreeMap<(Participants, Side), u64>,
    /// What this rank has asked for, and what others have that it has not come to: the first of those that
    /// fit each other.
    asked: BTreeMap<OperationPlace, Asked>,
    peer_requests: BTreeMap<OperationPlace, PeerRequests>,
    splits: u32,
}

/// Which operation of a line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct OperationSlot {
    pub(crate) line: Participants,
    pub(crate) side: Side,
    pub(crate) number: u64,
}

impl fmt::Display for OperationSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Participants::Everyone => write!(f, "operation {}", self.number),
            Participants::Pair { from, to } => {
                write!(f, "transfer {} from rank {from} to rank {to}", self.number)
            }
        }
    }
}

/// A number for some bytes, the same in each process.
fn hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let add = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
    bytes.into_iter().fold(0xCBF2_9CE4_8422_2325, add)
}

/// Whether two ranks that meet in a line mean the same.
fn fits(one: Asked, other: Asked, line: Participants) -> bool {
    one.operation.fits(&other.operation, line) && one.pieces == other.pieces
}

/// The whole job as a group, of which `owner` is this process's rank.
pub(crate) fn join(owner: usize, id: &[u8], name: &str, terms: Terms) -> Result<Box<dyn Communicator>> {
    Ok(Box::new(Member::claim(whole_job(engine()?, id, name, terms), owner)?))
}

/// The same by an engine that nothing else speaks for.
#[cfg(any(test, feature = "loopback"))]
pub(crate) fn join_of(engine: Arc<Engine>, id: &[u8], name: &str, terms: Terms) -> Box<dyn Communicator> {
    let member = Member::claim(whole_job(engine, id, name, terms), ALONE);
    #[expect(clippy::expect_used, reason = "a test that has two speakers for a rank is wrong")]
    Box::new(member.expect("one speaker for each rank"))
}

/// The speaker for a rank that only one can speak for.
const ALONE: usize = 0;

fn whole_job(engine: Arc<Engine>, id: &[u8], name: &str, terms: Terms) -> Arc<Group> {
    let members = (0..engine.size).collect();
    let rank = engine.rank;
    let number = hash(id.iter().copied());
    Group::get(engine, number, name.to_owned(), (members, rank), terms, false)
}

impl AgreementState {
    /// Remembers what another rank asks for, until this one does.
    pub(crate) fn hear(&mut self, meeting: Meeting, peer: u32, theirs: Option<Asked>) {
        let Some(theirs) = theirs else { return };
        let peer_requests =
            self.peer_requests.entry(place(meeting.line, RECEIVER, meeting.number)).or_default();
        if !peer_requests.iter().any(|(_, known)| fits(*known, theirs, meeting.line)) {
            peer_requests.push((peer, theirs));
        }
    }
}

impl Group {
    /// The group with a number, or a new one. One that has failed is begun anew, unless it is a part.
    fn get(
        engine: Arc<Engine>,
        number: u64,
        name: String,
        (members, rank): (Vec<u32>, u32),
        terms: Terms,
        is_part: bool,
    ) -> Arc<Self> {
        // The end of a group looks at the table too, so that none ends under its lock: this is dropped behind the lock.
        let joined;
        let group = {
            let mut groups = engine.groups.lock();
            let known = groups.entry(number).or_default();
            joined = known.group.upgrade();
            if let Some(group) = joined.as_ref().filter(|group| group.id.generation == known.generation) {
                return group.clone();
            }
            // A part is not begun anew: others were in the one that has failed.
            let failed = known.failure.clone().filter(|_| is_part);
            let (generation, state) = match failed {
                Some(failure) => (
                    0,
                    Arc::new(Mutex::new(AgreementState {
                        failed: Some(failure),
                        ..AgreementState::default()
                    })),
                ),
                None => (known.generation, known.state.clone()),
            };
            let id = Generation { number, generation };
            let terms = terms.bounded();
            let (engine, speaker) = (engine.clone(), Mutex::default());
            let group = Arc::new(Self { engine, id, name, members, rank, terms, is_part, state, speaker });
            known.group = Arc::downgrade(&group);
            group
        };
        group.engine.send(Command::Listen);
        group
    }

    /// The rank in the job of a rank of the group.
    #[expect(
        clippy::indexing_slicing,
        reason = "a message for a rank that the group has not would go to a stranger"
    )]
    pub(crate) fn member(&self, rank: u32) -> u32 {
        self.members[rank as usize]
    }

    /// The ranks of the job that are told when it fails, and tell others: those that are a power of two away.
    pub(crate) fn neighbours(&self) -> impl Iterator<Item = u32> {
        let count = self.count();
        (0..32).map(|bit| 1_u32 << bit).take_while(move |&distance| distance < count).flat_map(
            move |distance| {
                let (up, down) = (
                    u64::from(self.rank) + u64::from(distance),
                    u64::from(self.rank) + u64::from(count - distance),
                );
                #[expect(clippy::cast_possible_truncation, reason = "less than their count")]
                [up, down].map(|rank| self.member((rank % u64::from(count)) as u32))
            },
        )
    }

    #[expect(clippy::cast_possible_truncation, reason = "ranks have numbers of 32 bits")]
    pub(crate) fn count(&self) -> u32 {
        self.members.len() as u32
    }

    /// What a rank of this group asks for with an operation.
    fn ask(&self, operation: Operation) -> Asked {
        Asked { operation, pieces: Pieces::new(operation, self.count(), self.terms.piece).count() }
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        self.state.lock().failed.clone()
    }

    /// Remembers the first failure.
    pub(crate) fn set_failed(&self, failure: &Failure) -> Failed {
        self.engine.groups.remember_failure(self.id, failure);
        let mut state = self.state.lock();
        if state.failed.is_some() {
            return Failed::Before;
        }
        state.failed = Some(failure.clone());
        Failed::Now
    }

    /// Takes the next place of one side of a line, and compares the operation with what others have asked for there.
    fn enter(&self, (line, side): (Participants, Side), own: Asked) -> Result<OperationSlot> {
        let mut state = self.state.lock();
        if let Some(failure) = &state.failed {
            return Err(failure.clone());
        }
        let entered = state.entered.entry((line, side)).or_default();
        let number = *entered;
        *entered += 1;
        let slot = OperationSlot { line, side, number };
        state.asked.insert(place(line, side, number), own);
        if let Some(old) = number.checked_sub(REMEMBERED) {
            state.asked.remove(&place(line, side, old));
        }
        let peer_requests = state.peer_requests.remove(&place(line, side, number)).unwrap_or_default();
        match peer_requests.into_iter().find(|&(_, theirs)| !fits(own, theirs, line)) {
            Some((peer, theirs)) => Err(self.mismatch(slot, (self.rank, own), (peer, Some(theirs)))),
            None => Ok(slot),
        }
    }

    /// Another rank is in an operation: compares it with what this one asks for there, or else with what was
    /// heard first.
    pub(crate) fn hear(&self, meeting: Meeting, peer: u32, theirs: Option<Asked>) -> Result {
        let Meeting { line, number, .. } = meeting;
        let side = if line == Participants::Everyone { self.rank } else { RECEIVER };
        let mut state = self.state.lock();
        if let Some(failure) = &state.failed {
            return Err(failure.clone());
        }
        let own = state.asked.get(&place(line, side, number)).map(|&own| (self.rank, own));
        let known = own.or_else(|| state.peer_requests.get(&place(line, side, number))?.first().copied());
        match (known, theirs) {
            (Some((_, known)), Some(theirs)) if fits(known, theirs, line) => Ok(()),
            (Some(known), theirs) => {
                Err(self.mismatch(OperationSlot { line, side, number }, known, (peer, theirs)))
            }
            (None, theirs) => {
                let is_over = state.entered.get(&(line, side)).is_some_and(|&entered| number < entered);
                if !is_over {
                    state.hear(meeting, peer, theirs);
                }
                Ok(())
            }
        }
    }

    fn mismatch(
        &self,
        slot: OperationSlot,
        (rank, own): (u32, Asked),
        (peer, theirs): (u32, Option<Asked>),
    ) -> Failure {
        let operation = own.operation;
        if let Some(theirs) = theirs.filter(|theirs| operation.fits(&theirs.operation, slot.line)) {
            let message = format!(
                "{slot} of the group {:?} is not divided in the same way by all: rank {rank} has {} pieces of \
                 {operation}, rank {peer} has {}; give every rank the same collective_piece",
                self.name, own.pieces, theirs.pieces
            );
            return Failure::new(Code::InvalidArgument, message);
        }
        let theirs = theirs.map_or("something unknown".to_owned(), |theirs| theirs.operation.to_string());
        let message = format!(
            "{slot} of the group {:?} is not the same for all: rank {rank} asks for {operation}, rank {peer} for \
             {theirs}; every rank has to ask for the same operations in the same order",
            self.name
        );
        Failure::new(Code::InvalidArgument, message)
    }

    /// The group has failed: a rank that joins it from now on begins it anew. What is under way is ended by
    /// the thread that tells of it.
    fn fail(self: &Arc<Self>, failure: &Failure) {
        let failed = self.set_failed(failure);
        self.engine.send(Command::Fail { group: self.clone(), failed });
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.is_part {
            self.engine.groups.forget(self.id.number);
        }
        self.engine.wait_until_idle();
    }
}

/// One rank of a group.
struct Member(Arc<Group>);

impl Member {
    /// Speaks for this rank, unless another owner does.
    fn claim(group: Arc<Group>, owner: usize) -> Result<Self> {
        let mut speaker = group.speaker.lock();
        if speaker.members > 0 && speaker.owner != owner {
            let message = format!(
                "rank {} of the group {:?} is another device of this process already; in a job each process is \
                 one rank of a group, with one device",
                group.rank, group.name
            );
            return Err(Failure::new(Code::AlreadyExists, message));
        }
        *speaker = Speaker { owner, members: speaker.members + 1 };
        drop(speaker);
        Ok(Self(group))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.0.speaker.lock().members -= 1;
    }
}

impl Communicator for Member {
    fn place(&self) -> Result<(u32, u32)> {
        Ok((self.0.rank, self.0.count()))
    }

    fn enter(&self, operation: Operation) -> Result<Box<dyn OperationEntry>> {
        operation.check(self.0.count())?;
        let lines = operation.lines(self.0.rank);
        let asked = self.0.ask(operation);
        let slots = lines.into_iter().map(|line| self.0.enter(line, asked)).collect::<Result<_>>();
        // What does not fit ends the group for all.
        let slots = slots.inspect_err(|failure| self.0.fail(failure))?;
        Ok(Box::new(Entered::new(Places { group: self.0.clone(), asked, slots })))
    }

    fn end(&self, why: &Failure) {
        let (rank, name) = (self.0.rank, &self.0.name);
        let message = format!("rank {rank} of the group {name:?} has gone: {}", why.message());
        self.0.fail(&Failure::new(why.code(), message));
    }

    fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>> {
        let split = {
            let mut state = self.0.state.lock();
            state.splits += 1;
            state.splits
        };
        let pending = Arc::new(Pending {
            outcome: Mutex::new(None),
            given_up: Mutex::new(None),
            known: Condvar::new(),
            timeout: self.0.terms.timeout,
        });
        let all = HostRange::allocate(u64::from(self.0.count()) * CALL, 64)?;
        let own = HostRange::allocate(CALL, 64)?;
        let written =
            own.write(0, &color.map_or(-1, i64::from).to_le_bytes()) & own.write(8, &key.to_le_bytes());
        debug_assert!(written, "a call has room for both");
        let operation = Operation { kind: Kind::AllGather, element: Element::U8, count: CALL };
        let (group, told) = (self.0.clone(), pending.clone());
        let buffers = Buffers { send: Some(own), recv: Some(all.clone()) };
        self.enter(operation)?.start(
            buffers,
            Box::new(move |outcome| {
                let part = outcome.and_then(|()| Member::claim(part_of(&group, split, color, &all), ALONE));
                *told.outcome.lock() = Some(part.map(Arc::new));
                told.known.notify_all();
                told.pass_on();
            }),
        );
        Ok(color.map(|_| Box::new(PendingMember(pending)) as Box<dyn Communicator>))
    }
}

/// How many bytes a rank says when it splits: its color and its key.
const CALL: u64 = 12;

/// The part of a group with a color, when all ranks have said theirs.
#[expect(clippy::expect_used, reason = "a rank that takes another one's place would answer for it")]
fn part_of(group: &Arc<Group>, split: u32, color: Option<u32>, all: &HostRange) -> Arc<Group> {
    let color = color.map_or(-1, i64::from);
    let mut members = Vec::new();
    for (rank, &member) in (0..).zip(&group.members) {
        let (mut theirs, mut key) = ([0; 8], [0; 4]);
        let at = u64::from(rank) * CALL;
        let read = all.read(at, &mut theirs) & all.read(at + 8, &mut key);
        debug_assert!(read, "there is a call of each rank");
        if i64::from_le_bytes(theirs) == color {
            members.push((i32::from_le_bytes(key), rank, member));
        }
    }
    members.sort_unstable();
    let own = (0..).zip(&members).find(|&(_, &(_, rank, _))| rank == group.rank);
    let (rank, _) = own.expect("the ranks of a color have this one among them");
    let name = format!("{} split {split} color {color}", group.name);
    let Generation { number, generation } = group.id;
    let words = number.to_le_bytes().into_iter().chain(color.to_le_bytes());
    let words = words.chain([generation, split].map(u32::to_le_bytes).into_iter().flatten());
    let members = members.into_iter().map(|(_, _, member)| member).collect();
    Group::get(group.engine.clone(), hash(words), name, (members, rank), group.terms, true)
}

/// A rank's end of a group that is being agreed on.
struct Pending {
    outcome: Mutex<Option<Result<Arc<Member>>>>,
    known: Condvar,
    /// Why the rank has given it up, until the group knows.
    given_up: Mutex<Option<Failure>>,
    timeout: Duration,
}

impl Pending {
    /// Ends the group if the rank has given it up and it is there: for both to call, behind what they have done.
    fn pass_on(&self) {
        let known = self.outcome.lock().clone();
        if let Some(Ok(member)) = known
            && let Some(why) = self.given_up.lock().take()
        {
            member.end(&why);
        }
    }

    fn member(&self) -> Result<Arc<Member>> {
        let mut outcome = self.outcome.lock();
        // The thread that keeps the time ends it; twice as long is for one that was not woken in time.
        let end = Instant::now() + self.timeout * 2 + Duration::from_secs(1);
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone();
            }
            if self.known.wait_until(&mut outcome, end).timed_out() {
                let message = "not every rank has split the group that this one is a part of";
                return Err(Failure::new(Code::DeadlineExceeded, message));
            }
        }
    }
}

/// The same, for the rank.
struct PendingMember(Arc<Pending>);

impl Communicator for PendingMember {
    fn place(&self) -> Result<(u32, u32)> {
        self.0.member()?.place()
    }

    fn enter(&self, operation: Operation) -> Result<Box<dyn OperationEntry>> {
        self.0.member()?.enter(operation)
    }

    fn end(&self, why: &Failure) {
        self.0.given_up.lock().get_or_insert_with(|| why.clone());
        self.0.pass_on();
    }

    fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>> {
        self.0.member()?.split(color, key)
    }
}

/// A rank's places in an operation.
#[derive(Clone)]
struct Places {
    group: Arc<Group>,
    asked: Asked,
    slots: SmallVec<[OperationSlot; 2]>,
}

impl Places {
    /// Ends the group, and returns the failure that all ranks are told.
    fn end(&self, why: &Failure) -> Failure {
        let message = format!(
            "rank {} of the group {:?} could not take part in {}: {}",
            self.group.rank,
            self.group.name,
            self.asked.operation,
            why.message()
        );
        let failure = Failure::new(why.code(), message);
        self.group.fail(&failure);
        failure
    }
}

impl GroupOperation for Places {
    fn operation(&self) -> Operation {
        self.asked.operation
    }

    fn place(&self) -> (u32, u32) {
        (self.group.rank, self.group.count())
    }

    fn piece_size(&self) -> u64 {
        self.group.terms.piece
    }

    fn start(&self, piece: Piece, memory: Result<Portions>, done: Done) -> Option<Job> {
        let memory = memory.map_err(|failure| self.end(&failure));
        let (group, slots) = (self.group.clone(), self.slots.clone());
        let started = Started { group, asked: self.asked, piece, slots, memory, done };
        self.group.engine.send(Command::Start(Box::new(started)));
        None
    }

    fn fail(&self, why: &Failure) {
        self.end(why);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]
mod tests {
    use super::*;
    use crate::loopback::job;

    /// The group of a job of so many ranks, as one of them has it.
    fn group(rank: u32, ranks: u32) -> Arc<Group> {
        let engine = job(ranks).swap_remove(rank as usize).0;
        let members = ((0..ranks).collect(), rank);
        Group::get(engine, 7, "seven".to_owned(), members, Duration::from_secs(30).into(), false)
    }

    fn asked(group: &Group, count: u64) -> Asked {
        group.ask(Operation { kind: Kind::AllGather, element: Element::U8, count })
    }

    /// Another rank is in an operation of all.
    fn peer_requests(group: &Group, number: u64, asks: Option<Asked>) -> Result {
        let meeting = Meeting { group: group.id, line: Participants::Everyone, number, piece: 0 };
        group.hear(meeting, 1, asks)
    }

    #[test]
    fn neighbours_are_the_ranks_a_power_of_two_away() {
        for (rank, ranks, neighbours) in [
            (0, 1, &[][..]),
            (1, 2, &[0, 0]),
            (1, 3, &[2, 0, 0, 2]),
            (0, 4, &[1, 3, 2, 2]),
            (3, 5, &[4, 2, 0, 1, 2, 4]),
            (3, 6, &[4, 2, 5, 1, 1, 5]),
        ] {
            assert!(group(rank, ranks).neighbours().eq(neighbours.iter().copied()), "rank {rank} of {ranks}");
        }
    }

    #[test]
    fn what_was_asked_for_is_remembered_for_ranks_that_are_so_many_operations_behind() {
        let group = group(0, 2);
        let (own, other) = (asked(&group, 5), asked(&group, 6));
        for number in 0..REMEMBERED + 50 {
            assert_eq!(group.enter((Participants::Everyone, 0), own).unwrap().number, number);
        }
        assert_eq!(group.state.lock().asked.len() as u64, REMEMBERED);
        for number in [50, REMEMBERED + 49] {
            assert!(peer_requests(&group, number, Some(own)).is_ok());
            assert!(
                peer_requests(&group, number, Some(other)).is_err()
                    && peer_requests(&group, number, None).is_err()
            );
        }
        // What is over is not kept for an operation that is to come.
        assert!(peer_requests(&group, 49, Some(other)).is_ok());
        assert!(group.state.lock().peer_requests.is_empty());
    }

    /// However often they say it.
    #[test]
    fn what_others_ask_for_in_a_group_that_is_not_joined_is_kept_once() {
        let (group, mut state) = (group(0, 4), AgreementState::default());
        let meeting = Meeting { group: group.id, line: Participants::Everyone, number: 0, piece: 0 };
        for (peer, count) in [(1, 5), (2, 5), (3, 6), (1, 5), (3, 6)] {
            state.hear(meeting, peer, Some(asked(&group, count)));
        }
        let peer_requests = state.peer_requests.values().flatten().map(|(peer, _)| *peer);
        assert!(peer_requests.eq([1, 3]));
    }

    #[test]
    fn what_was_heard_is_kept_until_this_rank_asks_and_no_longer() {
        let group = group(0, 4);
        let (own, other) = (asked(&group, 5), asked(&group, 6));
        let kept = || group.state.lock().peer_requests.values().map(SmallVec::len).sum::<usize>();
        for _ in 0..3 {
            assert!(peer_requests(&group, 0, Some(own)).is_ok());
        }
        // Of what is the same, once.
        assert_eq!(kept(), 1);
        assert!(peer_requests(&group, 0, Some(other)).is_err());
        assert!(group.enter((Participants::Everyone, 0), own).is_ok());
        assert_eq!(kept(), 0);
        assert!(peer_requests(&group, 1, Some(other)).is_ok());
        let failure = group.enter((Participants::Everyone, 0), own).err().unwrap();
        assert_eq!(failure.code(), Code::InvalidArgument);
    }

    #[test]
    fn transfer_of_another_rank_is_compared_with_what_the_receiver_asks_for() {
        let group = group(2, 4);
        let (own, other) = (asked(&group, 5), asked(&group, 6));
        let line = Participants::Pair { from: 1, to: 2 };
        let hear = |number, asks| group.hear(Meeting { group: group.id, line, number, piece: 0 }, 1, asks);
        for _ in 0..=REMEMBERED {
            assert!(group.enter((line, RECEIVER), own).is_ok());
        }
        assert!(hear(1, Some(own)).is_ok() && hear(1, Some(other)).is_err());
        // What is over is not kept, and what is to come is.
        assert!(hear(0, Some(other)).is_ok());
        assert!(group.state.lock().peer_requests.is_empty());
        assert!(hear(REMEMBERED + 1, Some(other)).is_ok());
        assert!(group.enter((line, RECEIVER), own).is_err());
    }

    #[test]
    fn ranks_that_do_not_fit_are_told_in_what() {
        let group = group(0, 2);
        let (own, other) = (asked(&group, 5), asked(&group, 6));
        let slot = OperationSlot { line: Participants::Everyone, side: 0, number: 3 };
        let message = |theirs| group.mismatch(slot, (0, own), (1, theirs)).message().to_owned();
        let said = message(Some(other));
        assert!(said.contains(&format!("rank 0 asks for {}", own.operation)), "{said}");
        assert!(said.contains(&format!("rank 1 for {};", other.operation)), "{said}");
        let said = message(Some(Asked { pieces: 9, ..own }));
        assert!(said.contains("rank 0 has 1 pieces") && said.contains("rank 1 has 9;"), "{said}");
        let said = message(None);
        assert!(said.contains("rank 1 for something unknown"), "{said}");
        assert!(peer_requests(&group, 0, Some(other)).is_ok());
        let said = group.enter((Participants::Everyone, 0), own).err().unwrap().message().to_owned();
        assert!(said.contains(&format!("rank 1 for {};", other.operation)), "{said}");
    }
}
