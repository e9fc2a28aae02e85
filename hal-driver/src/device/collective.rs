// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Command buffers with collectives: a chain of steps.
//!
//! A step's commands go to the queue, and its collectives to the host, side by side; both wait for both parts of the step
//! before. Two timelines of our own order them. The last barrier is submitted first, as it alone has the program's signals:
//! if they are refused, nothing has begun, and whatever goes wrong later reaches them along the chain, when what had begun has ended
//! ([`Part`]).
//!
//! # Memory
//!
//! What the host can map is used where it is, of whatever driver. Other memory goes through host memory in the
//! [pieces](hal_collectives::Pieces) that the operation is divided into: its owner's queue brings a piece, the piece is an operation of
//! the host, and the owner's queue takes back what was received. A *lane* is host memory for one piece, and a timeline that orders what
//! is done with it: every n-th piece, one after the other. Nothing else orders pieces, so a card copies one while others are on
//! their way between the ranks, and an operation of any size needs host memory for as many pieces as it has lanes.

use super::State;
use super::queue::{SemaphoreLists, Side};
use crate::command::collective::{CollectiveRecord, Collectives, Entered, Mapped, Near};
use crate::command::command_buffer::{Recorded, Step};
use crate::command::execution::Part;
use crate::command::record::{Reference, Use};
use crate::device::work::{Operation, Work};
use crate::ffi::constants::{ACCESS_READ, ACCESS_WRITE};
use crate::ffi::status::{Result, bug};
use crate::memory::bounce_buffer::{Owner, copy_all_by};
use crate::memory::buffer_range::BufferRange;
use crate::sync::semaphore::{IreeTimeline, OwnedList};
use hal_backend::Device;
use hal_collectives::{Communicator, Entry, Piece, PieceEntry, Pieces, WINDOW};
use hal_semaphore::{Action, Affinity, Failure};
use std::collections::VecDeque;
use std::sync::Arc;

/// Where a collective finds the bytes of a buffer.
enum Place {
    /// The host can map them.
    Here(BufferRange),
    /// Only their owner can use them.
    There(Owner, BufferRange),
}

/// What is done with the memory of a lane, in this order, for each piece.
const FETCHED: u64 = 1;
const MOVED: u64 = 2;
const RETURNED: u64 = 3;

/// Host memory for one piece at a time.
struct Lane {
    send: Option<BufferRange>,
    recv: Option<BufferRange>,
    /// At three times the number of its pieces before, and as far as it is with the next one.
    order: IreeTimeline,
}

/// The memory of one collective.
struct Route {
    send: Option<Place>,
    recv: Option<Place>,
    /// None where all of it is here.
    lanes: Vec<Lane>,
    /// How many pieces go through them.
    pieces: u64,
}

impl Route {
    /// What says that it has ended, if it has lanes.
    fn ends(&self) -> impl Iterator<Item = (&IreeTimeline, u64)> {
        let lanes = self.lanes.len() as u64;
        (0..).zip(&self.lanes).map(move |(lane, Lane { order, .. })| {
            let turns = (self.pieces + lanes - 1 - lane) / lanes;
            (order, turns * RETURNED)
        })
    }
}

/// Which bytes of a buffer a piece uses, and where they are in memory for the piece alone.
fn copies(
    piece: &Piece,
    ranks: u32,
    all: &BufferRange,
    alone: &BufferRange,
    bytes: u64,
) -> Result<Vec<(BufferRange, BufferRange)>> {
    let length = piece.part(ranks).max(1);
    let parts = u32::try_from(bytes / length).unwrap_or(u32::MAX);
    let pair = |rank: u32| {
        Ok((all.part(piece.offset_of(rank), length)?, alone.part(u64::from(rank) * length, length)?))
    };
    (0..parts).map(pair).collect()
}

/// A step of an execution, and the memory of each of its collectives.
struct Routed<'a> {
    number: usize,
    step: &'a Step,
    routes: Vec<Route>,
}

impl Routed<'_> {
    /// How many timelines the queues of this device may move for it, each for itself.
    fn works_of_queues(&self) -> usize {
        let lanes: usize = self.routes.iter().map(|route| route.lanes.len()).sum();
        lanes + usize::from(!self.step.records.is_empty())
    }

    /// What the timelines of a chain have when this step has ended.
    fn end(&self) -> u64 {
        self.number as u64 + 1
    }
}

/// What orders the steps of one execution.
struct Chain<'a> {
    steps: Vec<Routed<'a>>,
    /// Each at the [end](Routed::end) of a step when that part of it has ended.
    commands: IreeTimeline,
    collectives: IreeTimeline,
    /// What is executed, and all that is submitted for it.
    recorded: &'a Recorded,
    part: Part,
}

impl Chain<'_> {
    /// What says that a step has ended.
    fn end_of(&self, routed: &Routed<'_>) -> OwnedList {
        let mut list = OwnedList::default();
        if !routed.step.records.is_empty() {
            list.push(self.commands.clone(), routed.end());
        }
        if routed.routes.iter().any(|route| route.lanes.is_empty()) {
            list.push(self.collectives.clone(), routed.end());
        }
        for (order, end) in routed.routes.iter().flat_map(Route::ends) {
            list.push(order.clone(), end);
        }
        list
    }
}

/// What the rank has entered and not started, for whatever may go wrong before that.
#[derive(Default)]
struct Entries {
    /// Of the steps that come.
    whole: VecDeque<Box<dyn Entry>>,
    /// Of this step, where the memory is here.
    here: Vec<(Arc<dyn Communicator>, Entered)>,
    /// Of the collective that is divided now.
    pieces: VecDeque<Box<dyn PieceEntry>>,
}

impl Entries {
    fn next(&mut self) -> Result<Box<dyn Entry>> {
        self.whole.pop_front().ok_or_else(|| bug("a collective was not entered"))
    }

    /// Tells the groups that this rank does not take part.
    fn give_up(self, why: &Failure) {
        self.pieces.into_iter().for_each(|piece| piece.give_up(why));
        self.here.into_iter().for_each(|(_, entered)| entered.give_up(why));
        self.whole.into_iter().for_each(|entry| entry.give_up(why));
    }
}

/// The engine has refused an action: if it is a rank's part of collectives, their groups are told why.
#[cold]
pub(super) fn give_up<D: Device>(refused: Action<Work<D>>, why: &Failure) {
    if let Action::Host(Work { operation: Operation::Collectives(collectives), .. }) = refused {
        collectives.give_up(why);
    }
}

/// An execution is refused before the rank has a place in any of its collectives: what it enters next would be taken for them.
#[cold]
pub(super) fn end_groups(commands: &Recorded, why: &Failure) {
    let steps = if commands.has_collectives() { commands.steps() } else { &[] };
    steps.iter().flat_map(|step| &step.collectives).for_each(|record| record.communicator.end(why));
}

impl<D: Device> State<D> {
    /// Executes commands that have collectives.
    pub(super) fn execute_steps(
        &self,
        affinity: Affinity,
        lists: &SemaphoreLists<'_>,
        commands: &Recorded,
        bindings: &[Option<BufferRange>],
    ) -> Result {
        let mut entries = Entries::default();
        let outcome = self.enter_steps(commands, bindings, &mut entries).and_then(|chain| {
            let last = chain.steps.last().ok_or_else(|| bug("collectives without a step"))?;
            let over = chain.end_of(last);
            let mut waits = over.borrow().to_owned();
            // What its queues work on side by side may go on where one of them has failed. A barrier behind them in a queue would fail with the
            // first, without having been cleaned up: so it has no place before the host has seen the end of all.
            if chain.steps.iter().any(|step| step.works_of_queues() > 1) {
                let all = self.timeline()?;
                waits.push(all.clone(), 1);
                chain.part.tells(all);
            }
            let last = SemaphoreLists { waits: waits.borrow(), signals: lists.signals.borrow() };
            self.ending(affinity, &last, chain.part.ending())?;
            Ok((chain, over))
        });
        let (chain, over) = match outcome {
            Ok(entered) => entered,
            Err(failure) => {
                entries.give_up(&failure);
                return Err(failure);
            }
        };
        // From here on it was accepted: what goes wrong is told through the signals, and not by a thread that submits.
        let mut waits = lists.waits.to_owned();
        for routed in &chain.steps {
            let step = self
                .step_commands(affinity, &waits, &chain, routed, bindings)
                .and_then(|()| self.step_collectives(affinity, &waits, &chain, routed, &mut entries));
            if let Err(failure) = step {
                entries.give_up(&failure);
                self.pool.run(move || over.signal_or_fail(Err(&failure)));
                return Ok(());
            }
            waits = chain.end_of(routed);
        }
        Ok(())
    }

    /// Enters all collectives in their order, and finds their memory.
    fn enter_steps<'a>(
        &self,
        recorded: &'a Recorded,
        bindings: &[Option<BufferRange>],
        entries: &mut Entries,
    ) -> Result<Chain<'a>> {
        let steps = recorded.steps();
        let mut records = steps.iter().flat_map(|step| &step.collectives);
        while let Some(record) = records.next() {
            match record.communicator.enter(record.operation) {
                Ok(entry) => entries.whole.push_back(entry),
                Err(why) => {
                    // The rank has no place there, and what it enters next would be taken for this.
                    records.for_each(|other| other.communicator.end(&why));
                    return Err(why);
                }
            }
        }
        let mut entered = entries.whole.iter();
        let mut routed = Vec::with_capacity(steps.len());
        for (number, step) in steps.iter().enumerate() {
            let entered = step.collectives.iter().zip(entered.by_ref());
            let routes = entered.map(|(record, entry)| self.route(record, entry.pieces(), bindings));
            routed.push(Routed { number, step, routes: routes.collect::<Result<_>>()? });
        }
        let (commands, collectives) = (self.timeline()?, self.timeline()?);
        Ok(Chain { steps: routed, commands, collectives, recorded, part: Part::default() })
    }

    /// Where the bytes of a collective are, and what stands for them.
    fn route(
        &self,
        record: &CollectiveRecord,
        pieces: Option<Pieces>,
        bindings: &[Option<BufferRange>],
    ) -> Result<Route> {
        let bytes = |reference: &Option<Reference>| {
            reference
                .as_ref()
                .map(|reference| Ok::<_, Failure>(reference.bytes(bindings)?.into_owned()))
                .transpose()
        };
        let (send, recv) = (bytes(&record.send)?, bytes(&record.recv)?);
        let (rank, ranks) = record.communicator.place()?;
        if let (Some(send), Some(recv)) = (&send, &recv) {
            let ((buffer, sent), (other, got)) = (send.place(), recv.place());
            if buffer == other {
                record.operation.check_places(rank, (sent, send.length), (got, recv.length))?;
            }
        }
        let place = |range: Option<BufferRange>, way: Use| {
            let Some(range) = range else { return Ok(None) };
            if range.sole_user().is_none() {
                return Ok(Some(Place::Here(range)));
            }
            way.check(range.lend())?;
            Ok::<_, Failure>(Some(Place::There(range.owner()?, range)))
        };
        let (send, recv) = (place(send, Use::Source)?, place(recv, Use::Target)?);
        let mut route = Route { send, recv, lanes: Vec::new(), pieces: 0 };
        let far = |place: &Option<Place>| matches!(place, Some(Place::There(..)));
        let Some(pieces) = pieces.filter(|_| far(&route.send) || far(&route.recv)) else { return Ok(route) };
        route.pieces = pieces.count().into();
        // None is larger than the first one.
        let largest = pieces.get(0).operation.places(rank, ranks);
        let staging = |place: &Option<Place>, bytes: Option<u64>| match place {
            Some(Place::There(owner, _)) => {
                Ok::<_, Failure>(Some(self.staging_with(owner, bytes.ok_or_else(unnamed)?)?))
            }
            Some(Place::Here(_)) | None => Ok(None),
        };
        for _ in 0..route.pieces.min(WINDOW) {
            let (send, recv) = (staging(&route.send, largest.send)?, staging(&route.recv, largest.recv)?);
            route.lanes.push(Lane { send, recv, order: self.timeline()? });
        }
        Ok(route)
    }

    /// Submits what a step has for the queue.
    fn step_commands(
        &self,
        affinity: Affinity,
        waits: &OwnedList,
        chain: &Chain<'_>,
        routed: &Routed<'_>,
        bindings: &[Option<BufferRange>],
    ) -> Result {
        let step = routed.step;
        if step.records.is_empty() {
            return Ok(());
        }
        let mut signals = OwnedList::default();
        signals.push(chain.commands.clone(), routed.end());
        let bounces = self.bounce_commands(chain.recorded, step, bindings)?;
        let operation = Operation::Execute {
            commands: chain.recorded.clone(),
            step: routed.number,
            bindings: bindings.into(),
            stand_ins: bounces.stand_ins(),
            part: Some(chain.part.clone()),
        };
        // What goes back to other devices is a part of the execution too, behind the commands.
        let mut ended = None;
        if !bounces.is_empty() {
            signals.push(ended.insert(self.timeline()?).clone(), 1);
        }
        let lists = SemaphoreLists { waits: waits.borrow(), signals: signals.borrow() };
        self.with_bounces(affinity, &lists, &bounces, |lists| {
            self.submit(affinity, lists, Side::Queue, operation)
        })?;
        if let Some(ended) = ended {
            ended.keep_until(1, chain.part.clone());
        }
        Ok(())
    }

    /// Submits a step's collectives: together those whose memory is here, and the others by themselves.
    fn step_collectives(
        &self,
        affinity: Affinity,
        waits: &OwnedList,
        chain: &Chain<'_>,
        routed: &Routed<'_>,
        entries: &mut Entries,
    ) -> Result {
        let mut begun = None;
        for (record, route) in routed.step.collectives.iter().zip(&routed.routes) {
            if !route.lanes.is_empty() {
                let waits = match &begun {
                    Some(begun) => begun,
                    None => begun.insert(self.own_waits(affinity, waits, routed.number)?),
                };
                entries.pieces = entries.next()?.divide().into();
                self.pieces(affinity, waits, (record, chain), route, &mut entries.pieces)?;
                continue;
            }
            let range = |place: &Option<Place>| match place {
                Some(Place::Here(range)) => Some(range.clone()),
                _ => None,
            };
            let (send, recv, entry) = (range(&route.send), range(&route.recv), entries.next()?);
            entries.here.push((record.communicator.clone(), Entered::Whole { entry, send, recv }));
        }
        let here = std::mem::take(&mut entries.here);
        if here.is_empty() {
            return Ok(());
        }
        let mut moved = OwnedList::default();
        moved.push(chain.collectives.clone(), routed.end());
        let lists = SemaphoreLists { waits: waits.borrow(), signals: moved.borrow() };
        let collectives =
            Operation::Collectives(Collectives::new(chain.recorded.clone(), here, chain.part.clone()));
        self.submit(affinity, &lists, Side::Host, collectives)
    }

    /// What the copies of a step wait for: this device's word, and not the program's. Where the device is lost, copies that others have
    /// not begun fail with it, and none waits for what the program may never signal.
    fn own_waits(&self, affinity: Affinity, waits: &OwnedList, number: usize) -> Result<OwnedList> {
        if number > 0 || waits.borrow().reached() {
            return Ok(waits.borrow().to_owned());
        }
        let mut begun = OwnedList::default();
        begun.push(self.timeline()?, 1);
        self.barrier(affinity, &SemaphoreLists { waits: waits.borrow(), signals: begun.borrow() })?;
        Ok(begun)
    }

    /// Has the owner of memory copy for a piece. The copy is a part of the execution by a timeline of its own: those of the lanes fail as soon
    /// as anything of theirs does.
    fn copy_for(
        &self,
        part: &Part,
        owner: &Owner,
        pairs: &[(BufferRange, BufferRange)],
        (waits, mut signals): (OwnedList, OwnedList),
    ) -> Result {
        let ended = self.timeline()?;
        signals.push(ended.clone(), 1);
        copy_all_by(owner, pairs, waits, signals)?;
        ended.keep_until(1, part.clone());
        Ok(())
    }

    /// Submits the pieces of a collective, each to the next lane.
    fn pieces(
        &self,
        affinity: Affinity,
        waits: &OwnedList,
        (record, Chain { recorded, part, .. }): (&CollectiveRecord, &Chain<'_>),
        route: &Route,
        pieces: &mut VecDeque<Box<dyn PieceEntry>>,
    ) -> Result {
        let (rank, ranks) = record.communicator.place()?;
        let mapped = |place: &Option<Place>, access| match place {
            Some(Place::Here(range)) => Some(Mapped::new(range.clone(), access)),
            _ => None,
        };
        let (send_here, recv_here) = (mapped(&route.send, ACCESS_READ), mapped(&route.recv, ACCESS_WRITE));
        let turns = (0..).flat_map(|turn: u64| route.lanes.iter().map(move |lane| (turn, lane)));
        for (turn, lane) in turns {
            let Some(piece) = pieces.front().map(|entry| entry.piece()) else { break };
            let places = piece.operation.places(rank, ranks);
            let at = |step: u64| {
                let mut list = OwnedList::default();
                list.push(lane.order.clone(), turn * RETURNED + step);
                list
            };
            let mut ready = if turn == 0 { waits.borrow().to_owned() } else { at(0) };
            let copies = |place: &Option<Place>, alone: &Option<BufferRange>, bytes: Option<u64>| {
                let Some(Place::There(owner, all)) = place else { return Ok(None) };
                let alone = alone
                    .as_ref()
                    .ok_or_else(|| bug("memory of another device has nothing to stand for it"))?;
                let bytes = bytes.ok_or_else(unnamed)?;
                let alone = alone.part(0, bytes)?;
                Ok::<_, Failure>(Some((owner.clone(), copies(&piece, ranks, all, &alone, bytes)?, alone)))
            };
            let near = |here: &Option<Arc<Mapped>>, alone: Option<BufferRange>, bytes: Option<u64>| match (
                here, alone,
            ) {
                (_, Some(alone)) => Ok::<_, Failure>(Some(Near::Staging(alone))),
                (Some(here), None) => Ok(Some(Near::Whole(here.clone(), bytes.ok_or_else(unnamed)?))),
                (None, None) => Ok(None),
            };
            let mut sent = None;
            if let Some((owner, pairs, alone)) = copies(&route.send, &lane.send, places.send)? {
                self.copy_for(part, &owner, &pairs, (ready, at(FETCHED)))?;
                (ready, sent) = (at(FETCHED), Some(alone));
            }
            let returning = copies(&route.recv, &lane.recv, places.recv)?;
            let moved = at(if returning.is_some() { MOVED } else { RETURNED });
            let got = returning.as_ref().map(|(_, _, alone)| alone.clone());
            let (send, recv) = (near(&send_here, sent, places.send)?, near(&recv_here, got, places.recv)?);
            let Some(entry) = pieces.pop_front() else { break };
            let entered = vec![(record.communicator.clone(), Entered::Piece { entry, send, recv })];
            let lists = SemaphoreLists { waits: ready.borrow(), signals: moved.borrow() };
            let collectives =
                Operation::Collectives(Collectives::new((*recorded).clone(), entered, part.clone()));
            self.submit(affinity, &lists, Side::Host, collectives)?;
            if let Some((owner, pairs, _)) = returning {
                let pairs: Vec<_> = pairs.into_iter().map(|(all, alone)| (alone, all)).collect();
                self.copy_for(part, &owner, &pairs, (moved, at(RETURNED)))?;
            }
        }
        Ok(())
    }
}

/// An operation has memory on a side where it moves no bytes.
fn unnamed() -> Failure {
    bug("a collective has memory that it does not use")
}
