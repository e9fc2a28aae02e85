// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Command buffers with collectives: a chain of steps.
//!
//! A step's commands go to the queue and its collectives to the host, concurrently; both wait for both parts of the
//! step before. Two internal timelines order them. The last barrier is submitted first, as it alone has the
//! program's signals: a refusal leaves nothing begun, and later failures reach the signals along the chain once
//! everything that had begun has ended ([`ExecutionPart`]).
//!
//! # Memory
//!
//! Memory that the host can map is used in place, whatever its driver. Other memory goes through host memory in the
//! [pieces](hal_collectives::Pieces) into which the operation is divided: the owner's queue copies a piece to the
//! host, the group performs the piece there, and the owner's queue copies back what was received. A *lane* is host
//! memory for one piece, with a timeline that orders its uses: every n-th piece, one after the other. Nothing else
//! orders pieces, so a card copies one while others travel between the ranks, and an operation of any size needs
//! host memory for as many pieces as it has lanes.

use super::DeviceState;
use super::submit::{SemaphoreLists, Side};
use crate::command::collectives::execution::ExecutionPart;
use crate::command::collectives::record::CollectiveRecord;
use crate::command::collectives::running::{Collectives, EnteredCollective, Mapped, PieceMemory};
use crate::command::command_buffer::{CommandStep, Recorded};
use crate::command::record::{Reference, Use};
use crate::device::work::Operation;
use crate::ffi::constants::{ACCESS_READ, ACCESS_WRITE};
use crate::ffi::status::{Result, bug};
use crate::memory::bounce::buffer::{Owner, copy_all_by};
use crate::memory::buffer_range::BufferRange;
use crate::sync::semaphore::{IreeTimeline, OwnedList};
use hal_backend::Device;
use hal_collectives::{Communicator, OperationEntry, Piece, PieceEntry, Pieces, WINDOW};
use hal_semaphore::{Affinity, Failure};
use std::collections::VecDeque;
use std::sync::Arc;

/// The memory of a collective's buffer.
enum CollectiveMemory {
    /// The host can map them.
    Mappable(BufferRange),
    /// Only their owner can use them.
    OwnerOnly(Owner, BufferRange),
}

/// The uses of a lane's memory for each piece, in this order.
const FETCHED: u64 = 1;
const EXCHANGED: u64 = 2;
const RETURNED: u64 = 3;

struct StagingLane {
    send: Option<BufferRange>,
    recv: Option<BufferRange>,
    /// Three times the number of finished pieces, plus the progress of the next one.
    order: IreeTimeline,
}

/// The memory of one collective.
struct CollectiveRoute {
    send: Option<CollectiveMemory>,
    recv: Option<CollectiveMemory>,
    /// Empty if the host can map all of it.
    lanes: Vec<StagingLane>,
    /// The number of pieces that go through the lanes.
    pieces: u64,
}

impl CollectiveRoute {
    /// The values at which its lanes have ended.
    fn ends(&self) -> impl Iterator<Item = (&IreeTimeline, u64)> {
        let lanes = self.lanes.len() as u64;
        (0..).zip(&self.lanes).map(move |(lane, StagingLane { order, .. })| {
            let rounds = (self.pieces + lanes - 1 - lane) / lanes;
            (order, rounds * RETURNED)
        })
    }
}

/// The ranges of a buffer that a piece uses, each with its place in the lane's memory.
fn copies(
    piece: &Piece,
    ranks: u32,
    all: &BufferRange,
    staging: &BufferRange,
    bytes: u64,
) -> Result<Vec<(BufferRange, BufferRange)>> {
    let length = piece.part(ranks).max(1);
    let parts = u32::try_from(bytes / length).unwrap_or(u32::MAX);
    let pair = |rank: u32| {
        Ok((all.part(piece.offset_of(rank), length)?, staging.part(u64::from(rank) * length, length)?))
    };
    (0..parts).map(pair).collect()
}

/// A step of an execution, and the memory of each of its collectives.
struct RoutedStep<'a> {
    number: usize,
    step: &'a CommandStep,
    routes: Vec<CollectiveRoute>,
}

impl RoutedStep<'_> {
    /// The number of this device's queue operations that may run independently in this step.
    fn queue_operations(&self) -> usize {
        let lanes: usize = self.routes.iter().map(|route| route.lanes.len()).sum();
        lanes + usize::from(!self.step.records.is_empty())
    }

    /// The value of the chain's timelines after this step.
    fn end(&self) -> u64 {
        self.number as u64 + 1
    }
}

/// The order of one execution's steps.
struct StepChain<'a> {
    steps: Vec<RoutedStep<'a>>,
    /// Each reaches the [end](RoutedStep::end) of a step when that part of it has ended.
    commands: IreeTimeline,
    collectives: IreeTimeline,
    /// The executed command buffer, and everything that is submitted for it.
    recorded: &'a Recorded,
    part: ExecutionPart,
}

impl StepChain<'_> {
    /// The timeline values after a step.
    fn end_of(&self, routed: &RoutedStep<'_>) -> OwnedList {
        let mut list = OwnedList::default();
        if !routed.step.records.is_empty() {
            list.push(self.commands.clone(), routed.end());
        }
        if routed.routes.iter().any(|route| route.lanes.is_empty()) {
            list.push(self.collectives.clone(), routed.end());
        }
        for (order, end) in routed.routes.iter().flat_map(CollectiveRoute::ends) {
            list.push(order.clone(), end);
        }
        list
    }
}

/// The collectives that the rank has entered and not started. They are given up if something fails before.
#[derive(Default)]
struct UnstartedCollectives {
    /// Those of later steps.
    whole: VecDeque<Box<dyn OperationEntry>>,
    /// Those of this step whose memory the host can map.
    mappable: Vec<(Arc<dyn Communicator>, EnteredCollective)>,
    /// The pieces of the collective that is being submitted.
    pieces: VecDeque<Box<dyn PieceEntry>>,
}

impl UnstartedCollectives {
    fn next(&mut self) -> Result<Box<dyn OperationEntry>> {
        self.whole.pop_front().ok_or_else(|| bug("a collective was not entered"))
    }

    /// Withdraws the rank from the groups.
    fn give_up(self, why: &Failure) {
        self.pieces.into_iter().for_each(|piece| piece.give_up(why));
        self.mappable.into_iter().for_each(|(_, entered)| entered.give_up(why));
        self.whole.into_iter().for_each(|entry| entry.give_up(why));
    }
}

/// Ends the groups of an execution that is refused before the rank entered its collectives: otherwise the rank's
/// next collectives would be taken for them.
#[cold]
pub(super) fn end_groups(commands: &Recorded, why: &Failure) {
    let steps = if commands.has_collectives() { commands.steps() } else { &[] };
    steps.iter().flat_map(|step| &step.collectives).for_each(|record| record.communicator.end(why));
}

impl<D: Device> DeviceState<D> {
    /// Submits an execution with collectives.
    pub(super) fn execute_steps(
        &self,
        affinity: Affinity,
        lists: &SemaphoreLists<'_>,
        commands: &Recorded,
        bindings: &[Option<BufferRange>],
    ) -> Result {
        let mut entries = UnstartedCollectives::default();
        let outcome = self.enter_steps(commands, bindings, &mut entries).and_then(|chain| {
            let last = chain.steps.last().ok_or_else(|| bug("collectives without a step"))?;
            let end = chain.end_of(last);
            let mut waits = end.borrow().to_owned();
            // Queue operations that run concurrently may go on after one of them has failed. A barrier in their
            // queue would fail with the first, without the cleanup. So it becomes a queue operation only when the
            // host has seen the end of all.
            if chain.steps.iter().any(|step| step.queue_operations() > 1) {
                let all = self.timeline()?;
                waits.push(all.clone(), 1);
                chain.part.signal_at_end(all);
            }
            let last = SemaphoreLists { waits: waits.borrow(), signals: lists.signals.borrow() };
            self.ending(affinity, &last, chain.part.ending())?;
            Ok((chain, end))
        });
        let (chain, end) = match outcome {
            Ok(entered) => entered,
            Err(failure) => {
                entries.give_up(&failure);
                return Err(failure);
            }
        };
        // The execution is accepted: later failures go to its signals, on a thread that submits nothing.
        let mut waits = lists.waits.to_owned();
        for routed in &chain.steps {
            let step = self
                .step_commands(affinity, &waits, &chain, routed, bindings)
                .and_then(|()| self.step_collectives(affinity, &waits, &chain, routed, &mut entries));
            if let Err(failure) = step {
                entries.give_up(&failure);
                self.pool.run(move || end.signal_or_fail(Err(&failure)));
                return Ok(());
            }
            waits = chain.end_of(routed);
        }
        Ok(())
    }

    /// Enters all collectives in order, and finds their memory.
    fn enter_steps<'a>(
        &self,
        recorded: &'a Recorded,
        bindings: &[Option<BufferRange>],
        entries: &mut UnstartedCollectives,
    ) -> Result<StepChain<'a>> {
        let steps = recorded.steps();
        let mut records = steps.iter().flat_map(|step| &step.collectives);
        while let Some(record) = records.next() {
            match record.communicator.enter(record.operation) {
                Ok(entry) => entries.whole.push_back(entry),
                Err(why) => {
                    // The rank has not entered them, and its next collectives would be taken for these.
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
            routed.push(RoutedStep { number, step, routes: routes.collect::<Result<_>>()? });
        }
        let (commands, collectives) = (self.timeline()?, self.timeline()?);
        Ok(StepChain { steps: routed, commands, collectives, recorded, part: ExecutionPart::default() })
    }

    /// Finds the memory of a collective, and allocates lanes for what the host cannot map.
    fn route(
        &self,
        record: &CollectiveRecord,
        pieces: Option<Pieces>,
        bindings: &[Option<BufferRange>],
    ) -> Result<CollectiveRoute> {
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
        let place = |range: Option<BufferRange>, usage: Use| {
            let Some(range) = range else { return Ok(None) };
            if range.sole_user().is_none() {
                return Ok(Some(CollectiveMemory::Mappable(range)));
            }
            usage.check(range.borrow())?;
            Ok::<_, Failure>(Some(CollectiveMemory::OwnerOnly(range.owner()?, range)))
        };
        let (send, recv) = (place(send, Use::Source)?, place(recv, Use::Target)?);
        let mut route = CollectiveRoute { send, recv, lanes: Vec::new(), pieces: 0 };
        let is_owner_only =
            |place: &Option<CollectiveMemory>| matches!(place, Some(CollectiveMemory::OwnerOnly(..)));
        let Some(pieces) = pieces.filter(|_| is_owner_only(&route.send) || is_owner_only(&route.recv)) else {
            return Ok(route);
        };
        route.pieces = pieces.count().into();
        // The first piece is the largest.
        let largest = pieces.get(0).operation.places(rank, ranks);
        let staging = |place: &Option<CollectiveMemory>, bytes: Option<u64>| match place {
            Some(CollectiveMemory::OwnerOnly(owner, _)) => {
                Ok::<_, Failure>(Some(self.staging_with(owner, bytes.ok_or_else(unused_memory)?)?))
            }
            Some(CollectiveMemory::Mappable(_)) | None => Ok(None),
        };
        for _ in 0..route.pieces.min(WINDOW) {
            let (send, recv) = (staging(&route.send, largest.send)?, staging(&route.recv, largest.recv)?);
            route.lanes.push(StagingLane { send, recv, order: self.timeline()? });
        }
        Ok(route)
    }

    /// Submits the device commands of a step.
    fn step_commands(
        &self,
        affinity: Affinity,
        waits: &OwnedList,
        chain: &StepChain<'_>,
        routed: &RoutedStep<'_>,
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
            substitutes: bounces.substitutes(),
            part: Some(chain.part.clone()),
        };
        // Returns to other devices are parts of the execution too, after the commands.
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

    /// Submits a step's collectives: those in mappable memory together, and each other one by itself.
    fn step_collectives(
        &self,
        affinity: Affinity,
        waits: &OwnedList,
        chain: &StepChain<'_>,
        routed: &RoutedStep<'_>,
        entries: &mut UnstartedCollectives,
    ) -> Result {
        let mut begun = None;
        for (record, route) in routed.step.collectives.iter().zip(&routed.routes) {
            if !route.lanes.is_empty() {
                let waits = match &begun {
                    Some(begun) => begun,
                    None => begun.insert(self.waits_for_copies(affinity, waits, routed.number)?),
                };
                entries.pieces = entries.next()?.divide().into();
                self.pieces(affinity, waits, (record, chain), route, &mut entries.pieces)?;
                continue;
            }
            let range = |place: &Option<CollectiveMemory>| match place {
                Some(CollectiveMemory::Mappable(range)) => Some(range.clone()),
                _ => None,
            };
            let (send, recv, entry) = (range(&route.send), range(&route.recv), entries.next()?);
            entries
                .mappable
                .push((record.communicator.clone(), EnteredCollective::Whole { entry, send, recv }));
        }
        let mappable = std::mem::take(&mut entries.mappable);
        if mappable.is_empty() {
            return Ok(());
        }
        let mut exchanged = OwnedList::default();
        exchanged.push(chain.collectives.clone(), routed.end());
        let lists = SemaphoreLists { waits: waits.borrow(), signals: exchanged.borrow() };
        let collectives =
            Operation::Collectives(Collectives::new(chain.recorded.clone(), mappable, chain.part.clone()));
        self.submit(affinity, &lists, Side::Host, collectives)
    }

    /// The waits of a step's copies: timelines of this device instead of the program's semaphores. If the device is
    /// lost, copies that other devices have not begun fail with it, and none waits for a signal that the program
    /// may never give.
    fn waits_for_copies(&self, affinity: Affinity, waits: &OwnedList, number: usize) -> Result<OwnedList> {
        if number > 0 || waits.borrow().reached() {
            return Ok(waits.borrow().to_owned());
        }
        let mut begun = OwnedList::default();
        begun.push(self.timeline()?, 1);
        self.barrier(affinity, &SemaphoreLists { waits: waits.borrow(), signals: begun.borrow() })?;
        Ok(begun)
    }

    /// Submits the owner's copy for a piece. The copy is a part of the execution with its own timeline, because a
    /// lane's timeline fails as soon as any of its uses does.
    fn copy_for(
        &self,
        part: &ExecutionPart,
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
        (record, StepChain { recorded, part, .. }): (&CollectiveRecord, &StepChain<'_>),
        route: &CollectiveRoute,
        pieces: &mut VecDeque<Box<dyn PieceEntry>>,
    ) -> Result {
        let (rank, ranks) = record.communicator.place()?;
        let mapped = |place: &Option<CollectiveMemory>, access| match place {
            Some(CollectiveMemory::Mappable(range)) => Some(Mapped::new(range.clone(), access)),
            _ => None,
        };
        let (send_mapped, recv_mapped) =
            (mapped(&route.send, ACCESS_READ), mapped(&route.recv, ACCESS_WRITE));
        let rounds = (0..).flat_map(|round: u64| route.lanes.iter().map(move |lane| (round, lane)));
        for (round, lane) in rounds {
            let Some(piece) = pieces.front().map(|entry| entry.piece()) else { break };
            let places = piece.operation.places(rank, ranks);
            let at = |step: u64| {
                let mut list = OwnedList::default();
                list.push(lane.order.clone(), round * RETURNED + step);
                list
            };
            let mut ready = if round == 0 { waits.borrow().to_owned() } else { at(0) };
            let copies = |place: &Option<CollectiveMemory>,
                          staging: &Option<BufferRange>,
                          bytes: Option<u64>| {
                let Some(CollectiveMemory::OwnerOnly(owner, all)) = place else { return Ok(None) };
                let staging =
                    staging.as_ref().ok_or_else(|| bug("memory of another device has no substitute"))?;
                let bytes = bytes.ok_or_else(unused_memory)?;
                let staging = staging.part(0, bytes)?;
                Ok::<_, Failure>(Some((owner.clone(), copies(&piece, ranks, all, &staging, bytes)?, staging)))
            };
            let memory =
                |mapped: &Option<Arc<Mapped>>, staging: Option<BufferRange>, bytes: Option<u64>| match (
                    mapped, staging,
                ) {
                    (_, Some(staging)) => Ok::<_, Failure>(Some(PieceMemory::Staging(staging))),
                    (Some(mapped), None) => {
                        Ok(Some(PieceMemory::Whole(mapped.clone(), bytes.ok_or_else(unused_memory)?)))
                    }
                    (None, None) => Ok(None),
                };
            let mut sent = None;
            if let Some((owner, pairs, staging)) = copies(&route.send, &lane.send, places.send)? {
                self.copy_for(part, &owner, &pairs, (ready, at(FETCHED)))?;
                (ready, sent) = (at(FETCHED), Some(staging));
            }
            let returning = copies(&route.recv, &lane.recv, places.recv)?;
            let exchanged = at(if returning.is_some() { EXCHANGED } else { RETURNED });
            let got = returning.as_ref().map(|(_, _, staging)| staging.clone());
            let (send, recv) =
                (memory(&send_mapped, sent, places.send)?, memory(&recv_mapped, got, places.recv)?);
            let Some(entry) = pieces.pop_front() else { break };
            let entered = vec![(record.communicator.clone(), EnteredCollective::Piece { entry, send, recv })];
            let lists = SemaphoreLists { waits: ready.borrow(), signals: exchanged.borrow() };
            let collectives =
                Operation::Collectives(Collectives::new((*recorded).clone(), entered, part.clone()));
            self.submit(affinity, &lists, Side::Host, collectives)?;
            if let Some((owner, pairs, _)) = returning {
                let pairs: Vec<_> = pairs.into_iter().map(|(all, staging)| (staging, all)).collect();
                self.copy_for(part, &owner, &pairs, (exchanged, at(RETURNED)))?;
            }
        }
        Ok(())
    }
}

/// The failure of a collective with memory on a side where it moves no bytes.
fn unused_memory() -> Failure {
    bug("a collective has memory that it does not use")
}
