// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A rank's end of a group, and what it has entered.

use crate::progress::{Command, Engine, Started, engine};
use hal_backend::HostRange;
use hal_collectives::{
    Buffers, Communicator, Done, Element, Entry, Job, Kind, Line, Operation, Result, Side,
};
use hal_semaphore::{Code, Failure};
use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The groups of this process, by their numbers, which are the same in all processes.
static GROUPS: Mutex<BTreeMap<u32, Weak<Group>>> = Mutex::new(BTreeMap::new());

/// Whether this process is in any group.
pub(crate) fn any() -> bool {
    GROUPS.lock().values().any(|group| group.strong_count() > 0)
}

/// Ranks of the job that talk to each other.
pub(crate) struct Group {
    pub(crate) engine: Arc<Engine>,
    pub(crate) number: u32,
    pub(crate) name: String,
    /// The rank of each in the job.
    pub(crate) members: Vec<u32>,
    pub(crate) rank: u32,
    pub(crate) timeout: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    failed: Option<Failure>,
    /// How many operations each side of each line has entered.
    entered: BTreeMap<(Line, Side), u64>,
    splits: u32,
}

/// Which operation of a line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) line: Line,
    pub(crate) side: Side,
    pub(crate) number: u64,
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Line::Everyone => write!(f, "operation {}", self.number),
            Line::Pair { from, to } => write!(f, "transfer {} from rank {from} to rank {to}", self.number),
        }
    }
}

/// A number for some bytes, the same in each process.
fn hash(bytes: impl IntoIterator<Item = u8>) -> u32 {
    bytes.into_iter().fold(0x811C_9DC5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

pub(crate) fn join(id: &[u8], name: &str, timeout: Duration) -> Result<Box<dyn Communicator>> {
    let engine = engine()?;
    let members = (0..engine.size).collect();
    let rank = engine.rank;
    Ok(Box::new(Member(Group::get(
        engine,
        hash(id.iter().copied()),
        name.to_owned(),
        members,
        rank,
        timeout,
    ))))
}

impl Group {
    /// The group with a number, or a new one. One that has failed is begun anew.
    fn get(
        engine: Arc<Engine>,
        number: u32,
        name: String,
        members: Vec<u32>,
        rank: u32,
        timeout: Duration,
    ) -> Arc<Self> {
        // The end of a group looks at the table too, so that none ends under its lock: this is dropped behind the lock.
        let known;
        let mut groups = GROUPS.lock();
        groups.retain(|_, group| group.strong_count() > 0);
        known = groups.get(&number).and_then(Weak::upgrade);
        let works = known.as_ref().filter(|group| group.failure().is_none()).cloned();
        works.unwrap_or_else(|| {
            let state = Mutex::default();
            let group = Arc::new(Self { engine, number, name, members, rank, timeout, state });
            groups.insert(number, Arc::downgrade(&group));
            group.engine.send(Command::Listen);
            group
        })
    }

    /// The group with a number, if this process is in it.
    pub(crate) fn find(number: u32) -> Option<Arc<Self>> {
        GROUPS.lock().get(&number).and_then(Weak::upgrade)
    }

    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        self.state.lock().failed.clone()
    }

    /// Remembers the first failure. Whether this is it.
    pub(crate) fn set_failed(&self, failure: &Failure) -> bool {
        let mut state = self.state.lock();
        let first = state.failed.is_none();
        state.failed.get_or_insert_with(|| failure.clone());
        first
    }

    fn enter(&self, (line, side): (Line, Side)) -> Result<Slot> {
        let mut state = self.state.lock();
        if let Some(failure) = &state.failed {
            return Err(failure.clone());
        }
        let entered = state.entered.entry((line, side)).or_default();
        let number = *entered;
        *entered += 1;
        Ok(Slot { line, side, number })
    }

    /// Has everything of the group ended, by the thread that tells of it.
    fn fail(self: &Arc<Self>, failure: Failure) {
        self.engine.send(Command::Fail(self.clone(), failure));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        crate::progress::rest();
    }
}

/// One rank of a group.
struct Member(Arc<Group>);

impl Communicator for Member {
    fn place(&self) -> Result<(u32, u32)> {
        Ok((self.0.rank, self.0.count()))
    }

    fn enter(&self, operation: Operation) -> Result<Box<dyn Entry>> {
        operation.check(self.0.count())?;
        let lines = operation.lines(self.0.rank);
        let slots = lines.into_iter().map(|line| self.0.enter(line)).collect::<Result<_>>()?;
        Ok(Box::new(Entered { group: self.0.clone(), operation, slots, ended: false }))
    }

    fn end(&self, why: &Failure) {
        let (rank, name) = (self.0.rank, &self.0.name);
        let message = format!("rank {rank} of the group {name:?} has gone: {}", why.message());
        self.0.fail(Failure::new(why.code(), message));
    }

    fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>> {
        let split = {
            let mut state = self.0.state.lock();
            state.splits += 1;
            state.splits
        };
        let pending =
            Arc::new(Pending { outcome: Mutex::new(None), known: Condvar::new(), timeout: self.0.timeout });
        let all = HostRange::allocate(u64::from(self.0.count()) * CALL, 64)?;
        let own = HostRange::allocate(CALL, 64)?;
        let _ = own.write(0, &color.map_or(-1, i64::from).to_le_bytes());
        let _ = own.write(8, &key.to_le_bytes());
        let operation = Operation { kind: Kind::AllGather, element: Element::U8, count: CALL };
        let (group, told) = (self.0.clone(), pending.clone());
        let buffers = Buffers { send: Some(own), recv: Some(all.clone()) };
        self.enter(operation)?.start(
            buffers,
            Box::new(move |outcome| {
                let part =
                    outcome.and_then(|()| part_of(&group, split, color, &all).map(Member).map(Arc::new));
                *told.outcome.lock() = Some(part);
                told.known.notify_all();
            }),
        );
        Ok(color.map(|_| Box::new(Part(pending)) as Box<dyn Communicator>))
    }
}

/// How many bytes a rank says when it splits: its color and its key.
const CALL: u64 = 12;

/// The part of a group with a color, when everybody has said theirs.
fn part_of(group: &Arc<Group>, split: u32, color: Option<u32>, all: &HostRange) -> Result<Arc<Group>> {
    let color = color.map_or(-1, i64::from);
    let mut members = Vec::new();
    for (rank, &member) in (0..).zip(&group.members) {
        let (mut theirs, mut key) = ([0; 8], [0; 4]);
        let at = u64::from(rank) * CALL;
        let _ = all.read(at, &mut theirs) && all.read(at + 8, &mut key);
        if i64::from_le_bytes(theirs) == color {
            members.push((i32::from_le_bytes(key), rank, member));
        }
    }
    members.sort_unstable();
    let own = members.iter().position(|&(_, rank, _)| rank == group.rank).unwrap_or_default();
    let name = format!("{} split {split} color {color}", group.name);
    let words = [group.number, split].map(u32::to_le_bytes).into_iter().flatten().chain(color.to_le_bytes());
    let members = members.into_iter().map(|(_, _, member)| member).collect();
    let rank = u32::try_from(own).unwrap_or_default();
    Ok(Group::get(group.engine.clone(), hash(words), name, members, rank, group.timeout))
}

/// A rank's end of a group that is being agreed on.
struct Pending {
    outcome: Mutex<Option<Result<Arc<Member>>>>,
    known: Condvar,
    timeout: Duration,
}

impl Pending {
    fn member(&self) -> Result<Arc<Member>> {
        let mut outcome = self.outcome.lock();
        // Who keeps the time ends it; twice as long is for a thread that was not woken in time.
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
struct Part(Arc<Pending>);

impl Communicator for Part {
    fn place(&self) -> Result<(u32, u32)> {
        self.0.member()?.place()
    }

    fn enter(&self, operation: Operation) -> Result<Box<dyn Entry>> {
        self.0.member()?.enter(operation)
    }

    fn end(&self, why: &Failure) {
        let known = self.0.outcome.lock().clone();
        if let Some(Ok(member)) = known {
            member.end(why);
        }
    }

    fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>> {
        self.0.member()?.split(color, key)
    }
}

/// A rank's places in an operation.
struct Entered {
    group: Arc<Group>,
    operation: Operation,
    slots: SmallVec<[Slot; 2]>,
    /// Started or given up.
    ended: bool,
}

impl Entered {
    fn cut(&self, buffers: &Buffers) -> Result<Buffers> {
        let places = self.operation.places(self.group.rank, self.group.count());
        let cut = |range: &Option<HostRange>, bytes: Option<u64>, does: &str| {
            let Some(bytes) = bytes.filter(|&bytes| bytes > 0) else { return Ok(None) };
            range.as_ref().and_then(|range| range.slice(0, bytes)).map(Some).ok_or_else(|| {
                let length = range.as_ref().map_or(0, HostRange::length);
                let message = format!("{} {does} {bytes} bytes, and has memory for {length}", self.operation);
                Failure::new(Code::OutOfRange, message)
            })
        };
        Ok(Buffers {
            send: cut(&buffers.send, places.send, "sends")?,
            recv: cut(&buffers.recv, places.recv, "receives")?,
        })
    }

    fn fail(&self, why: &Failure) {
        let message = format!(
            "rank {} of the group {:?} could not take part in {}: {}",
            self.group.rank,
            self.group.name,
            self.operation,
            why.message()
        );
        self.group.fail(Failure::new(why.code(), message));
    }
}

impl Entry for Entered {
    fn start(mut self: Box<Self>, buffers: Buffers, done: Done) -> Option<Job> {
        self.ended = true;
        let buffers = self.cut(&buffers).inspect_err(|failure| self.fail(failure));
        let slots = self.slots.clone();
        let started = Started { group: self.group.clone(), operation: self.operation, slots, buffers, done };
        self.group.engine.send(Command::Start(Box::new(started)));
        None
    }

    fn give_up(mut self: Box<Self>, why: &Failure) {
        self.ended = true;
        self.fail(why);
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if !self.ended {
            self.fail(&Failure::new(Code::Cancelled, "it was cancelled"));
        }
    }
}
