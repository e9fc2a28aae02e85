// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Collectives: what a command buffer records of them, and how an execution starts and ends them.
//!
//! A record keeps IREE's call in the terms of [`hal_collectives`]. When a command buffer is executed, the rank
//! enters all of its collectives in order, and each waits for its step ([`crate::device`] has the chain of steps).
//! A started collective occupies no thread: it is a host operation that ends when the group has completed it.

use crate::command::channel::Channel;
use crate::command::command_buffer::Recorded;
use crate::command::executable::DeviceIdentity;
use crate::command::execution::{ExecutionEnd, ExecutionPart};
use crate::command::record::{Reference, Use};
use crate::ffi::constants::{ACCESS_READ, ACCESS_WRITE, Access};
use crate::ffi::object::extent;
use crate::ffi::status::{Result, invalid};
use crate::memory::buffer_range::BufferRange;
use crate::sync::host_pool::HostPool;
use hal_backend::HostRange;
use hal_collectives::{
    Buffers, Communicator, Done, Element, Entry, Job, Kind, Memory, Operation, PieceBuffers, PieceEntry,
    Reduction,
};
use hal_semaphore::backend::{DeferredCallbacks, HostTask};
use hal_semaphore::{Code, Failure};
use hal_sys as sys;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One collective of one rank.
pub(crate) struct CollectiveRecord {
    pub(crate) communicator: Arc<dyn Communicator>,
    pub(crate) operation: Operation,
    /// The bytes that the operation uses, which may be fewer than C names.
    pub(crate) send: Option<Reference>,
    pub(crate) recv: Option<Reference>,
}

impl CollectiveRecord {
    /// A collective from C's arguments.
    ///
    /// # Safety
    ///
    /// The channel and the buffers are alive, or null.
    pub(crate) unsafe fn new(
        device: &DeviceIdentity,
        channel: *mut sys::iree_hal_channel_t,
        op: sys::iree_hal_collective_op_t,
        param: u32,
        [send, recv]: [&sys::iree_hal_buffer_ref_t; 2],
        count: u64,
    ) -> Result<Self> {
        // SAFETY: the channel is alive or null, as the function asks; every reading of the union is four bytes.
        let (communicator, packed) = unsafe { (Channel::lent(channel, device)?, op.packed) };
        let (rank, ranks) = communicator.place()?;
        let (kind, element) = decode(packed, param)?;
        let mut operation = Operation { kind, element, count };
        if kind == Kind::AllGather {
            // SAFETY: the buffer that is sent from is alive or null, as the function asks.
            operation.count = gathered(&operation, unsafe { length_of(send)? }, ranks)?;
        }
        communicator.check(&operation)?;
        let places = operation.places(rank, ranks);
        // SAFETY: both buffers are alive or null, as the function asks.
        let (send, recv) = unsafe {
            (cut(&operation, send, places.send, "sends")?, cut(&operation, recv, places.recv, "receives")?)
        };
        let record = Self { communicator, operation, send, recv };
        let mut allowed = Ok(());
        record.visit(|reference, way| {
            if allowed.is_ok() {
                allowed = reference.check(way);
            }
        });
        allowed.map(|()| record)
    }

    /// Calls `look` with each buffer and its use.
    pub(crate) fn visit(&self, mut look: impl FnMut(&Reference, Use)) {
        if let Some(send) = &self.send {
            look(send, Use::Sent);
        }
        if let Some(recv) = &self.recv {
            look(recv, Use::Received);
        }
    }
}

/// Unpacks the kind and the element type from IREE's word.
fn decode(packed: u32, param: u32) -> Result<(Kind, Element)> {
    let [kind, reduction, element, _] = packed.to_ne_bytes().map(u32::from);
    let element = element_of(element)?;
    let reduces =
        || reduction_of(reduction)?.ok_or_else(|| invalid("a collective that reduces needs to be told how"));
    let kind = match kind {
        sys::IREE_HAL_COLLECTIVE_KIND_ALL_GATHER => Kind::AllGather,
        sys::IREE_HAL_COLLECTIVE_KIND_ALL_REDUCE => Kind::AllReduce(reduces()?),
        sys::IREE_HAL_COLLECTIVE_KIND_ALL_TO_ALL => Kind::AllToAll,
        sys::IREE_HAL_COLLECTIVE_KIND_BROADCAST => Kind::Broadcast { root: param },
        sys::IREE_HAL_COLLECTIVE_KIND_REDUCE => Kind::Reduce { reduction: reduces()?, root: param },
        sys::IREE_HAL_COLLECTIVE_KIND_REDUCE_SCATTER => Kind::ReduceScatter(reduces()?),
        sys::IREE_HAL_COLLECTIVE_KIND_SEND => Kind::Send { to: param },
        sys::IREE_HAL_COLLECTIVE_KIND_RECV => Kind::Recv { from: param },
        sys::IREE_HAL_COLLECTIVE_KIND_SEND_RECV => {
            let peer = |half: u32| (half != 0xFFFF).then_some(half);
            Kind::SendRecv { to: peer(param & 0xFFFF), from: peer(param >> 16) }
        }
        other => return Err(invalid(format!("there is no collective of kind {other}"))),
    };
    let is_reduction = matches!(kind, Kind::AllReduce(_) | Kind::Reduce { .. } | Kind::ReduceScatter(_));
    if !is_reduction && reduction_of(reduction)?.is_some() {
        return Err(invalid("a collective that does not reduce is told how to reduce"));
    }
    Ok((kind, element))
}

fn reduction_of(number: u32) -> Result<Option<Reduction>> {
    Ok(Some(match number {
        sys::IREE_HAL_COLLECTIVE_REDUCTION_NONE => return Ok(None),
        sys::IREE_HAL_COLLECTIVE_REDUCTION_SUM => Reduction::Sum,
        sys::IREE_HAL_COLLECTIVE_REDUCTION_PRODUCT => Reduction::Product,
        sys::IREE_HAL_COLLECTIVE_REDUCTION_MINIMUM => Reduction::Minimum,
        sys::IREE_HAL_COLLECTIVE_REDUCTION_MAXIMUM => Reduction::Maximum,
        sys::IREE_HAL_COLLECTIVE_REDUCTION_AVERAGE => Reduction::Average,
        other => return Err(invalid(format!("there is no reduction {other}"))),
    }))
}

fn element_of(number: u32) -> Result<Element> {
    Ok(match number {
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_SINT_8 => Element::I8,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_UINT_8 => Element::U8,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_SINT_16 => Element::I16,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_UINT_16 => Element::U16,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_SINT_32 => Element::I32,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_UINT_32 => Element::U32,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_SINT_64 => Element::I64,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_UINT_64 => Element::U64,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_FLOAT_16 => Element::F16,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_FLOAT_32 => Element::F32,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_FLOAT_64 => Element::F64,
        sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_BFLOAT_16 => Element::Bf16,
        other => return Err(invalid(format!("there is no collective element type {other}"))),
    })
}

/// The number of bytes that C names, if it is known before the binding table is.
///
/// # Safety
///
/// The buffer is alive, or null.
unsafe fn length_of(reference: &sys::iree_hal_buffer_ref_t) -> Result<u64> {
    if reference.buffer.is_null() {
        return Ok(extent(reference.length));
    }
    // SAFETY: the buffer is alive, as the function asks of one that is not null.
    unsafe { BufferRange::lent(reference.buffer, reference.offset, reference.length) }
        .map(|range| range.length)
}

/// The number of elements that one rank of an all-gather sends. IREE's header says that the count is this number;
/// compiled modules pass the elements of all ranks, of which this is one share.
fn gathered(operation: &Operation, sent: u64, ranks: u32) -> Result<u64> {
    let room = sent / operation.element.size();
    let ranks = u64::from(ranks.max(1));
    if operation.count <= room {
        return Ok(operation.count);
    }
    if operation.count.is_multiple_of(ranks) && operation.count / ranks == room {
        return Ok(room);
    }
    let message = format!("{operation} sends from memory of {sent} bytes, which has {room} elements");
    Err(Failure::new(Code::OutOfRange, message))
}

/// The bytes that an operation uses, out of those that C names.
///
/// # Safety
///
/// The buffer is alive, or null.
unsafe fn cut(
    operation: &Operation,
    reference: &sys::iree_hal_buffer_ref_t,
    bytes: Option<u64>,
    does: &str,
) -> Result<Option<Reference>> {
    let Some(bytes) = bytes.filter(|&bytes| bytes > 0) else { return Ok(None) };
    let short = |given: u64| {
        let message = format!("{operation} {does} {bytes} bytes, and is given memory for {given}");
        Failure::new(Code::OutOfRange, message)
    };
    // SAFETY: the buffer of the reference is alive or null, as the function asks.
    Ok(Some(match unsafe { Reference::new(reference)? } {
        Reference::Direct(range) if range.length < bytes => return Err(short(range.length)),
        Reference::Direct(range) => Reference::Direct(range.part(0, bytes)?),
        Reference::Slot { length, .. } if length < bytes => return Err(short(length)),
        Reference::Slot { slot, offset, .. } => Reference::Slot { slot, offset, length: bytes },
    }))
}

/// Memory that stays mapped from the start of the first piece that uses it to the end of the last one.
pub(crate) struct Mapped {
    bytes: BufferRange,
    access: Access,
    mapped: Mutex<Option<HostRange>>,
}

impl Mapped {
    pub(crate) fn new(bytes: BufferRange, access: Access) -> Arc<Self> {
        Arc::new(Self { bytes, access, mapped: Mutex::default() })
    }

    fn map(&self) -> Result<HostRange> {
        if let Some(mapped) = &*self.mapped.lock() {
            return Ok(mapped.clone());
        }
        // Maps without the lock, as the buffer may belong to another driver. Two pieces that start at once may both
        // map it.
        let mapped = self.bytes.map(self.access)?;
        Ok(self.mapped.lock().get_or_insert(mapped).clone())
    }
}

/// The host memory of one piece.
pub(crate) enum PieceMemory {
    /// The mapping of the whole operation, and how many of its bytes the piece uses.
    Whole(Arc<Mapped>, u64),
    /// A staging buffer for the piece.
    Staging(BufferRange),
}

impl PieceMemory {
    fn length(&self) -> u64 {
        match self {
            PieceMemory::Whole(_, length) => *length,
            PieceMemory::Staging(range) => range.length,
        }
    }

    fn map(&self, access: Access) -> Result<Memory> {
        Ok(match self {
            PieceMemory::Whole(mapped, _) => Memory::Whole(mapped.map()?),
            PieceMemory::Staging(range) => Memory::Alone(range.map(access)?),
        })
    }
}

/// A collective, or a piece of one, that its rank has entered, with memory that the host can access.
pub(crate) enum EnteredCollective {
    Whole { entry: Box<dyn Entry>, send: Option<BufferRange>, recv: Option<BufferRange> },
    Piece { entry: Box<dyn PieceEntry>, send: Option<PieceMemory>, recv: Option<PieceMemory> },
}

impl EnteredCollective {
    fn length(&self) -> u64 {
        let lengths = match self {
            EnteredCollective::Whole { send, recv, .. } => {
                [send, recv].map(|range| range.as_ref().map(|range| range.length))
            }
            EnteredCollective::Piece { send, recv, .. } => {
                [send, recv].map(|near| near.as_ref().map(PieceMemory::length))
            }
        };
        lengths.into_iter().flatten().sum()
    }

    /// Withdraws this rank from the group.
    pub(crate) fn give_up(self, why: &Failure) {
        match self {
            EnteredCollective::Whole { entry, .. } => entry.give_up(why),
            EnteredCollective::Piece { entry, .. } => entry.give_up(why),
        }
    }

    fn start(self, done: Done) -> Option<Job> {
        let (failure, memory) = match self {
            EnteredCollective::Whole { entry, send, recv } => {
                match map_both([send, recv], BufferRange::map) {
                    Ok([send, recv]) => return entry.start(Buffers { send, recv }, done),
                    Err(failed) => {
                        entry.give_up(&failed.0);
                        failed
                    }
                }
            }
            EnteredCollective::Piece { entry, send, recv } => {
                match map_both([send, recv], PieceMemory::map) {
                    Ok([send, recv]) => return entry.start(PieceBuffers { send, recv }, done),
                    Err(failed) => {
                        entry.give_up(&failed.0);
                        failed
                    }
                }
            }
        };
        drop(DeferredCallbacks::new(move || {
            drop(memory);
            done(Err(failure));
        }));
        None
    }
}

/// The failure of a mapping, and the memory to release.
type MappingFailure = (Failure, Box<dyn Send>);

/// Maps the send and receive memory. A mapping keeps its memory alive. If either fails, the caller releases both,
/// which may call the program back.
fn map_both<T: Send + 'static, M: Send + 'static>(
    [send, recv]: [Option<T>; 2],
    map: impl Fn(&T, Access) -> Result<M>,
) -> std::result::Result<[Option<M>; 2], MappingFailure> {
    let one = |memory: &Option<T>, access| memory.as_ref().map(|memory| map(memory, access)).transpose();
    match (one(&send, ACCESS_READ), one(&recv, ACCESS_WRITE)) {
        (Ok(send), Ok(recv)) => Ok([send, recv]),
        (Err(failure), other) | (other, Err(failure)) => Err((failure, Box::new((send, recv, other)))),
    }
}

/// The collectives of one step. Nothing orders them against each other: they start together and end together.
pub(crate) struct Collectives {
    commands: Recorded,
    entered: Vec<(Arc<dyn Communicator>, EnteredCollective)>,
    part: ExecutionPart,
}

impl Collectives {
    pub(crate) fn new(
        commands: Recorded,
        entered: Vec<(Arc<dyn Communicator>, EnteredCollective)>,
        part: ExecutionPart,
    ) -> Box<Self> {
        Box::new(Self { commands, entered, part })
    }

    pub(crate) fn commands(&self) -> &Recorded {
        &self.commands
    }

    pub(crate) fn count(&self) -> usize {
        self.entered.len()
    }

    /// The bytes that they receive and send.
    pub(crate) fn payload(&self) -> u64 {
        self.entered.iter().map(|(_, entered)| entered.length()).sum()
    }

    /// Starts all of them. A thread of the pool does the group's work.
    pub(crate) fn start(
        self,
        pool: &Arc<HostPool>,
        waiting: &Arc<RunningCollectives>,
        done: impl FnOnce(Result) + Send + 'static,
    ) {
        // Drops the command buffer first: the program may see the end and release everything before this returns.
        let Self { commands, entered, part } = self;
        drop(commands);
        start(entered, part, (pool, waiting), done);
    }

    /// Withdraws this rank from the groups.
    pub(crate) fn give_up(self, why: &Failure) {
        give_up(self.entered, why);
    }
}

fn start(
    entered: Vec<(Arc<dyn Communicator>, EnteredCollective)>,
    part: ExecutionPart,
    (pool, waiting): (&Arc<HostPool>, &Arc<RunningCollectives>),
    done: impl FnOnce(Result) + Send + 'static,
) {
    let open = OpenGroups::new(entered.iter().map(|(group, _)| group.clone()));
    let number = match waiting.enter(&open, &part) {
        Ok(number) => number,
        Err(why) => {
            return drop(DeferredCallbacks::new(move || {
                give_up(entered, &why);
                drop(part);
                done(Err(why));
            }));
        }
    };
    let over = {
        let waiting = waiting.clone();
        // A running collective keeps its execution until it ends.
        EndCountdown::new(entered.len(), move |outcome| {
            done(outcome);
            waiting.leave(number);
        })
    };
    for (place, (_, entered)) in entered.into_iter().enumerate() {
        let (told, open) = (over.clone(), open.clone());
        let done = move |outcome: Result| {
            open.end_one(place, &outcome);
            told.end(outcome);
        };
        if let Some(job) = entered.start(Box::new(done)) {
            pool.run(job);
        }
    }
}

fn give_up(entered: Vec<(Arc<dyn Communicator>, EnteredCollective)>, why: &Failure) {
    for (_, entered) in entered {
        entered.give_up(why);
    }
}

/// The groups of collectives that started together, each until its own collective has ended.
struct OpenGroups(Mutex<Vec<Option<Arc<dyn Communicator>>>>);

impl OpenGroups {
    fn new(groups: impl Iterator<Item = Arc<dyn Communicator>>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(groups.map(Some).collect())))
    }

    /// Removes a collective that has ended. A failure ends the others too, as their rank fails in any case.
    fn end_one(&self, place: usize, outcome: &Result) {
        let group = self.0.lock().get_mut(place).and_then(Option::take);
        drop(group);
        if let Err(why) = outcome {
            self.end(why);
        }
    }

    /// Ends those that have not ended.
    fn end(&self, why: &Failure) {
        let groups = std::mem::take(&mut *self.0.lock());
        for group in groups.into_iter().flatten() {
            group.end(why);
        }
    }
}

/// Reports the end of the last of several, with the first failure.
struct EndCountdown(Mutex<CountdownState>);

struct CountdownState {
    left: usize,
    outcome: Result,
    done: Option<Box<dyn FnOnce(Result) + Send>>,
}

impl EndCountdown {
    fn new(count: usize, done: impl FnOnce(Result) + Send + 'static) -> Arc<Self> {
        Arc::new(Self(Mutex::new(CountdownState {
            left: count,
            outcome: Ok(()),
            done: Some(Box::new(done)),
        })))
    }

    fn end(&self, outcome: Result) {
        let mut counted = self.0.lock();
        counted.left -= 1;
        if counted.outcome.is_ok() {
            counted.outcome = outcome;
        }
        if counted.left > 0 {
            return;
        }
        let (outcome, done) = (counted.outcome.clone(), counted.done.take());
        drop(counted);
        if let Some(done) = done {
            done(outcome);
        }
    }
}

/// A device's collectives that have started and not ended. They end with the device.
#[derive(Default)]
pub(crate) struct RunningCollectives {
    progress: Mutex<InProgress>,
    idle: Condvar,
}

/// A started collective and its part of the execution; `None` once it has ended.
type RunningCollective = Option<(Arc<OpenGroups>, ExecutionPart)>;

#[derive(Default)]
struct InProgress {
    next: u64,
    started: BTreeMap<u64, RunningCollective>,
    /// Set when the device goes: the failure of every later start.
    ended: Option<Failure>,
}

impl RunningCollectives {
    fn enter(&self, open: &Arc<OpenGroups>, part: &ExecutionPart) -> Result<u64> {
        let mut progress = self.progress.lock();
        if let Some(why) = progress.ended.clone().or_else(|| part.failed()) {
            return Err(why);
        }
        let number = progress.next;
        progress.next += 1;
        progress.started.insert(number, Some((open.clone(), part.clone())));
        Ok(number)
    }

    /// A thread that waits for the last end may rely on the groups being released by then.
    fn leave(&self, number: u64) {
        let left = self.progress.lock().started.get_mut(&number).map(std::mem::take);
        drop(left);
        let mut progress = self.progress.lock();
        progress.started.remove(&number);
        if progress.started.is_empty() {
            self.idle.notify_all();
        }
    }

    /// Fails an execution: ends its running collectives and prevents later starts. `task` ends when no part of it
    /// is left.
    pub(crate) fn end_execution(&self, of: &ExecutionEnd, why: &Failure, task: HostTask) {
        let Some(part) = of.part() else { return task.finish(Ok(())) };
        let progress = self.progress.lock();
        part.fail(why, task);
        let started = progress.started.values().flatten().filter(|(_, other)| other.is_of(&part));
        let started: Vec<_> = started.map(|(open, _)| open.clone()).collect();
        drop(progress);
        for open in started {
            open.end(why);
        }
    }

    /// Waits up to `grace` for running collectives when the device goes, then ends them and refuses later starts.
    /// Then waits up to `grace` again for the reports of what it ended.
    pub(crate) fn finish(&self, grace: Duration) {
        let mut progress = self.progress.lock();
        self.rest(&mut progress, grace);
        let why = Failure::new(Code::Cancelled, "its device was released");
        progress.ended = Some(why.clone());
        let started: Vec<_> = progress.started.values().flatten().map(|(open, _)| open.clone()).collect();
        drop(progress);
        for open in started {
            open.end(&why);
        }
        self.rest(&mut self.progress.lock(), grace);
    }

    fn rest(&self, progress: &mut MutexGuard<'_, InProgress>, limit: Duration) {
        let end = Instant::now() + limit;
        while !progress.started.is_empty() && !self.idle.wait_until(progress, end).timed_out() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_semaphore::Code;

    #[test]
    fn collective_that_comes_when_its_device_goes_does_not_start() {
        let waiting = RunningCollectives::default();
        waiting.finish(Duration::ZERO);
        let refused =
            waiting.enter(&OpenGroups::new(std::iter::empty()), &ExecutionPart::default()).unwrap_err();
        assert_eq!(refused.code(), Code::Cancelled);
    }

    #[test]
    fn device_that_goes_waits_no_longer_than_its_collectives_take() {
        let waiting = Arc::<RunningCollectives>::default();
        let number = waiting.enter(&OpenGroups::new(std::iter::empty()), &ExecutionPart::default()).unwrap();
        let begin = Instant::now();
        let leaves = waiting.clone();
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            leaves.leave(number);
        });
        waiting.finish(Duration::from_secs(30));
        assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
        ends.join().unwrap();
    }

    /// A group of one, so that nothing delays it.
    #[test]
    fn collective_is_in_progress_until_its_end_was_told() {
        let request = hal_collectives::local::Request {
            id: b"until its end was told",
            name: "alone",
            rank: 0,
            count: 1,
            owner: 1,
            terms: Duration::from_secs(60).into(),
        };
        let group: Arc<dyn Communicator> = hal_collectives::local::join(&request).unwrap().into();
        let operation = Operation { kind: Kind::AllGather, element: Element::U8, count: 0 };
        let entry = group.enter(operation).unwrap();
        let entered = vec![(group, EnteredCollective::Whole { entry, send: None, recv: None })];
        let (pool, waiting) = (Arc::<HostPool>::default(), Arc::<RunningCollectives>::default());
        let (tell, told) = std::sync::mpsc::channel();
        let in_progress = waiting.clone();
        start(entered, ExecutionPart::default(), (&pool, &waiting), move |outcome| {
            let count = in_progress.progress.lock().started.len();
            tell.send((count, outcome.is_ok())).unwrap();
        });
        assert_eq!(told.recv_timeout(Duration::from_secs(20)).unwrap(), (1, true));
        waiting.finish(Duration::from_secs(20));
        assert!(waiting.progress.lock().started.is_empty());
        assert!(pool.stop(Duration::from_secs(20)));
    }

    #[test]
    fn first_failure_of_several_is_told_when_the_last_has_ended() {
        let told = Arc::new(Mutex::new(None));
        let of = told.clone();
        let over = EndCountdown::new(3, move |outcome| *of.lock() = Some(outcome));
        let [first, second] = ["first", "second"].map(|text| Failure::new(Code::Aborted, text));
        over.end(Err(first.clone()));
        over.end(Err(second));
        assert!(told.lock().is_none());
        over.end(Ok(()));
        assert!(told.lock().take().unwrap().unwrap_err().same_root(&first));
    }
}
