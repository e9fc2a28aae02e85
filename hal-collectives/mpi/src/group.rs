// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A rank's handle on a group between processes, and the operations that it has entered.

use crate::calls::{Calls, prepare};
use crate::engine::{Command, Engine, engine};
use crate::library::Handle;
use crate::notice::{Generation, Line, Place};
use crate::order::Order;
use crate::parts::{CALL, Part, Parts, Split};
use crate::started::Started;
use crate::table::Groups;
use hal_backend::HostRange;
use hal_collectives::{
    Buffers, Communicator, Done, Element, Entered, GroupOperation, Job, Kind, Operation, OperationEntry,
    Participants, PendingGroup, Piece, Result, SENDER, Terms, notify,
};
use hal_semaphore::{Code, Failure};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// The operations of a line that are remembered, for ranks that come to them later.
const REMEMBERED: usize = 256;

/// Ranks of the job that do operations together.
pub(crate) struct Group {
    pub(crate) engine: Arc<Engine>,
    pub(crate) id: Generation,
    pub(crate) name: String,
    /// The rank of each in the job.
    pub(crate) members: Vec<u32>,
    pub(crate) rank: u32,
    pub(crate) terms: Terms,
    /// It came out of a split: all of its ranks know it.
    pub(crate) is_part: bool,
    /// Its communicator, once it is made.
    pub(crate) communicator: OnceLock<Handle>,
    /// The order in which operations begin. Only the thread that holds the engine locks it.
    pub(crate) order: Mutex<Order>,
    /// The parts that it was split into.
    pub(crate) parts: Mutex<Parts>,
    failed: OnceLock<Failure>,
    state: Mutex<State>,
    speaker: Mutex<Speaker>,
}

/// Who speaks for this rank, and how often: one at a time, as the operations of two would be taken for those of one.
#[derive(Default)]
struct Speaker {
    owner: usize,
    members: usize,
}

#[derive(Default)]
struct State {
    entered: BTreeMap<Line, Asked>,
    /// What others ask for that this rank has not come to: the first of those that fit.
    heard: BTreeMap<Place, SmallVec<[(u32, Operation); 1]>>,
}

/// The operations of a line that this rank has entered: their number, and the last of them.
#[derive(Default)]
struct Asked {
    count: u64,
    last: VecDeque<Operation>,
}

impl Asked {
    fn push(&mut self, operation: Operation) -> u64 {
        if self.last.len() == REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back(operation);
        self.count += 1;
        self.count - 1
    }

    fn get(&self, number: u64) -> Option<Operation> {
        let behind = usize::try_from(self.count.checked_sub(number)?).ok()?;
        self.last.get(self.last.len().checked_sub(behind)?).copied()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line.0 {
            Participants::Everyone => write!(f, "operation {}", self.number),
            Participants::Pair { from, to } => {
                write!(f, "transfer {} from rank {from} to rank {to}", self.number)
            }
        }
    }
}

/// A number for some bytes, the same in each process.
pub(crate) fn hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let add = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
    bytes.into_iter().fold(0xCBF2_9CE4_8422_2325, add)
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
pub(crate) const ALONE: usize = 0;

fn whole_job(engine: Arc<Engine>, id: &[u8], name: &str, terms: Terms) -> Arc<Group> {
    let members = (0..engine.size).collect();
    let (rank, number) = (engine.rank, hash(id.iter().copied()));
    Groups::get(&engine, number, name.to_owned(), (members, rank), terms, false)
}

impl Group {
    pub(crate) fn new(
        engine: Arc<Engine>,
        id: Generation,
        name: String,
        (members, rank): (Vec<u32>, u32),
        terms: Terms,
        is_part: bool,
    ) -> Self {
        let (communicator, order, state) = (OnceLock::new(), Mutex::default(), Mutex::default());
        let failed = OnceLock::new();
        let (parts, speaker) = (Mutex::default(), Mutex::default());
        let terms = terms.bounded();
        Self {
            engine,
            id,
            name,
            members,
            rank,
            terms,
            is_part,
            communicator,
            order,
            parts,
            failed,
            state,
            speaker,
        }
    }

    /// The rank in the job of a rank of the group.
    #[expect(
        clippy::indexing_slicing,
        reason = "a message for a rank that the group has not goes to a stranger"
    )]
    pub(crate) fn member(&self, rank: u32) -> u32 {
        self.members[rank as usize]
    }

    /// The first of its ranks in the job, and the next one there behind one of them.
    pub(crate) fn first_in_job(&self) -> u32 {
        self.members.iter().copied().min().unwrap_or_default()
    }

    pub(crate) fn next_in_job(&self, behind: u32) -> Option<u32> {
        self.members.iter().copied().filter(|&rank| rank > behind).min()
    }

    /// The ranks of the job that are notified when it fails, and notify others: those that are a power of two away.
    pub(crate) fn neighbours(&self) -> impl Iterator<Item = u32> {
        let count = self.count();
        (0..32)
            .map(|bit| 1_u32 << bit)
            .take_while(move |&distance| distance < count)
            .flat_map(move |distance| [distance, count - distance].map(|by| self.member(self.behind(by))))
    }

    /// The rank that is so many behind this one, less than their count, around the ring.
    #[expect(clippy::cast_possible_truncation, reason = "less than their count")]
    pub(crate) fn behind(&self, by: u32) -> u32 {
        ((u64::from(self.rank) + u64::from(by)) % u64::from(self.count())) as u32
    }

    #[expect(clippy::cast_possible_truncation, reason = "ranks have numbers of 32 bits")]
    pub(crate) fn count(&self) -> u32 {
        self.members.len() as u32
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        self.failed.get().cloned()
    }

    /// True if no channel of this process is on it, and it goes on.
    pub(crate) fn is_idle(&self) -> bool {
        self.speaker.lock().members == 0 && self.failure().is_none()
    }

    /// Remembers the first failure. True if this is it.
    pub(crate) fn set_failed(&self, failure: &Failure) -> bool {
        self.engine.groups.remember_failure(self.id, failure);
        self.failed.set(failure.clone()).is_ok()
    }

    /// Ends the group. What is under way is ended by the thread that holds the engine.
    pub(crate) fn fail(self: &Arc<Self>, failure: &Failure) {
        if !self.engine.is_forked() && self.set_failed(failure) {
            self.engine.send(Command::Failed(self.clone()));
        }
    }

    /// Takes the next place of a line, and compares the operation with what others have asked for there.
    fn enter(&self, line: Line, own: Operation) -> Result<Place> {
        let mut state = self.state.lock();
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        let number = state.entered.entry(line).or_default().push(own);
        let place = Place { line, number };
        let heard = if state.heard.is_empty() { None } else { state.heard.remove(&place) };
        match heard.into_iter().flatten().find(|(_, theirs)| !own.fits(theirs, line.0)) {
            Some(theirs) => Err(self.mismatch(place, (self.rank, own), theirs)),
            None => Ok(place),
        }
    }

    /// Another rank asks for an operation: compares it with what this one asks for there, or else with what was heard
    /// first.
    pub(crate) fn hear(&self, place: Place, peer: u32, theirs: Operation) -> Result {
        let mut state = self.state.lock();
        let entered = state.entered.get(&place.line);
        let is_over = entered.is_some_and(|entered| place.number < entered.count);
        let own = entered.and_then(|entered| entered.get(place.number)).map(|own| (self.rank, own));
        let known = own.or_else(|| state.heard.get(&place)?.first().copied());
        if let Some(known) = known.filter(|(_, known)| !known.fits(&theirs, place.line.0)) {
            return Err(self.mismatch(place, known, (peer, theirs)));
        }
        if known.is_none() && !is_over {
            state.heard.entry(place).or_default().push((peer, theirs));
        }
        Ok(())
    }

    fn mismatch(
        &self,
        place: Place,
        (rank, own): (u32, Operation),
        (peer, theirs): (u32, Operation),
    ) -> Failure {
        let message = format!(
            "{place} of the group {:?} is not the same for all: rank {rank} asks for {own}, rank {peer} for {theirs}; \
             every rank has to ask for the same operations in the same order",
            self.name
        );
        Failure::new(Code::InvalidArgument, message)
    }
}

/// One rank of a group.
pub(crate) struct Member(pub(crate) Arc<Group>);

impl Member {
    /// Speaks for this rank, unless another owner does.
    pub(crate) fn claim(group: Arc<Group>, owner: usize) -> Result<Self> {
        let mut speaker = group.speaker.lock();
        if speaker.members > 0 && speaker.owner != owner {
            let message = format!(
                "rank {} of the group {:?} is another device of this process already; in a job each process is one \
                 rank of a group, with one device",
                group.rank, group.name
            );
            return Err(Failure::new(Code::AlreadyExists, message));
        }
        *speaker = Speaker { owner, members: speaker.members + 1 };
        drop(speaker);
        if group.engine.groups.joined() {
            group.engine.send(Command::Listen(group.terms.timeout));
        }
        Ok(Self(group))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if self.0.engine.is_forked() {
            return;
        }
        self.0.speaker.lock().members -= 1;
        self.0.engine.groups.left();
        self.0.engine.rest(true);
    }
}

impl Communicator for Member {
    fn place(&self) -> Result<(u32, u32)> {
        Ok((self.0.rank, self.0.count()))
    }

    fn enter(&self, operation: Operation) -> Result<Box<dyn OperationEntry>> {
        self.0.engine.check_process()?;
        operation.check(self.0.count())?;
        let end = |(line, side)| (line, if line == Participants::Everyone { SENDER } else { side });
        let lines = operation.lines(self.0.rank).into_iter().map(end);
        let places = lines.map(|line| self.0.enter(line, operation)).collect::<Result<_>>();
        // What does not fit ends the group for all.
        let places = places.inspect_err(|failure| self.0.fail(failure))?;
        Ok(Box::new(Entered::new(Places { group: self.0.clone(), operation, places })))
    }

    fn end(&self, why: &Failure) {
        let (rank, name) = (self.0.rank, &self.0.name);
        let message = format!("rank {rank} of the group {name:?} has gone: {}", why.message());
        self.0.fail(&Failure::new(why.code(), message));
    }

    fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>> {
        self.0.engine.check_process()?;
        let all = HostRange::allocate(u64::from(self.0.count()) * CALL as u64, 64)?;
        let own = HostRange::allocate(CALL as u64, 64)?;
        let (split, call) = self.0.parts.lock().call(color, key);
        let pending = PendingGroup::new(self.0.terms.timeout);
        let written = own.write(0, &call);
        debug_assert!(written, "a call has room for what a rank says");
        let operation = Operation { kind: Kind::AllGather, element: Element::U8, count: CALL as u64 };
        let splitting = self.0.engine.groups.begin_split();
        let (group, own_split) = (self.0.clone(), Split { color, pending: pending.clone(), splitting });
        let buffers = Buffers { send: Some(own), recv: Some(all.clone()) };
        self.enter(operation)?.start(
            buffers,
            Box::new(move |outcome| Parts::called(&group, split, outcome.map(|()| all), own_split)),
        );
        let part = Part { pending, group: self.0.clone() };
        Ok(color.map(|_| Box::new(part) as Box<dyn Communicator>))
    }
}

/// A rank's places in an operation.
#[derive(Clone)]
struct Places {
    group: Arc<Group>,
    operation: Operation,
    places: SmallVec<[Place; 2]>,
}

impl Places {
    /// The failure of all ranks, as this one cannot take part.
    fn why(&self, why: &Failure) -> Failure {
        let message = format!(
            "rank {} of the group {:?} could not take part in {}: {}",
            self.group.rank,
            self.group.name,
            self.operation,
            why.message()
        );
        Failure::new(why.code(), message)
    }
}

impl GroupOperation for Places {
    fn operation(&self) -> Operation {
        self.operation
    }

    fn place(&self) -> (u32, u32) {
        (self.group.rank, self.group.count())
    }

    fn piece_size(&self) -> u64 {
        self.group.terms.piece
    }

    fn start(
        &self,
        piece: Piece,
        memory: Result<Buffers<hal_collectives::Parts>>,
        done: Done,
    ) -> Option<Job> {
        if let Err(failure) = self.group.engine.check_process() {
            notify(done, Err(failure));
            return None;
        }
        let (group, places) = (self.group.clone(), SmallVec::from_slice(&self.places));
        let count = self.pieces().count();
        let prepared = memory.and_then(|memory| {
            prepare(piece.operation, self.place(), count == 1, memory, &group.engine.spares)
        });
        let last = piece.number + 1 == count;
        let calls = prepared.unwrap_or_else(|failure| {
            self.fail(&failure);
            Calls::default()
        });
        let started = Started::new(group, (self.operation, places), (piece.number, last), calls, done);
        self.group.engine.send(Command::Start(started));
        None
    }

    fn fail(&self, why: &Failure) {
        self.group.fail(&self.why(why));
    }
}
