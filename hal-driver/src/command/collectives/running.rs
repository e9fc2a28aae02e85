// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Collectives of an execution: how a step starts them, and how they end with their execution or their device.
//!
//! When a command buffer is executed, the rank enters all of its collectives in order, and each waits for its step
//! ([`crate::device`] has the chain of steps). A started collective occupies no thread: it is a host operation that
//! ends when the group has completed it.

use crate::command::collectives::execution::{ExecutionEnd, ExecutionPart};
use crate::command::command_buffer::Recorded;
use crate::ffi::constants::{ACCESS_READ, ACCESS_WRITE, Access};
use crate::ffi::status::Result;
use crate::memory::buffer_range::BufferRange;
use crate::sync::host_pool::HostPool;
use crate::sync::running_time::wait_while;
use hal_backend::HostRange;
use hal_collectives::{Buffers, Communicator, Done, EndCountdown, Job, Memory, OperationEntry, PieceEntry};
use hal_semaphore::backend::{DeferredCallbacks, HostTask};
use hal_semaphore::{Code, Failure};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

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
    Whole { entry: Box<dyn OperationEntry>, send: Option<BufferRange>, recv: Option<BufferRange> },
    Piece { entry: Box<dyn PieceEntry>, send: Option<PieceMemory>, recv: Option<PieceMemory> },
}

impl EnteredCollective {
    fn length(&self) -> u64 {
        let lengths = match self {
            EnteredCollective::Whole { send, recv, .. } => {
                [send, recv].map(|range| range.as_ref().map(|range| range.length))
            }
            EnteredCollective::Piece { send, recv, .. } => {
                [send, recv].map(|memory| memory.as_ref().map(PieceMemory::length))
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
                    Ok([send, recv]) => return entry.start(Buffers { send, recv }, done),
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
        running: &Arc<RunningCollectives>,
        done: impl FnOnce(Result) + Send + 'static,
    ) {
        // Drops the command buffer first: the program may see the end and release everything before this returns.
        let Self { commands, entered, part } = self;
        drop(commands);
        start(entered, part, (pool, running), done);
    }

    /// Withdraws this rank from the groups.
    pub(crate) fn give_up(self, why: &Failure) {
        give_up(self.entered, why);
    }
}

fn start(
    entered: Vec<(Arc<dyn Communicator>, EnteredCollective)>,
    part: ExecutionPart,
    (pool, running): (&Arc<HostPool>, &Arc<RunningCollectives>),
    done: impl FnOnce(Result) + Send + 'static,
) {
    let open = OpenGroups::new(entered.iter().map(|(group, _)| group.clone()));
    let number = match running.enter(&open, &part) {
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
        let running = running.clone();
        // A running collective keeps its execution until it ends.
        let ended = move |outcome| {
            done(outcome);
            running.leave(number);
        };
        EndCountdown::new(entered.len(), Box::new(ended))
    };
    for (place, (_, entered)) in entered.into_iter().enumerate() {
        let (countdown, open) = (over.clone(), open.clone());
        let done = move |outcome: Result| {
            open.end_one(place, &outcome);
            countdown.end(outcome);
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
        self.wait_until_idle(&mut progress, grace);
        let why = Failure::new(Code::Cancelled, "its device was released");
        progress.ended = Some(why.clone());
        let started: Vec<_> = progress.started.values().flatten().map(|(open, _)| open.clone()).collect();
        drop(progress);
        for open in started {
            open.end(&why);
        }
        self.wait_until_idle(&mut self.progress.lock(), grace);
    }

    fn wait_until_idle(&self, progress: &mut MutexGuard<'_, InProgress>, limit: Duration) {
        wait_while(&self.idle, progress, limit, |progress| !progress.started.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_collectives::{Element, Kind, Operation};
    use std::time::Instant;

    #[test]
    fn collective_that_comes_when_its_device_goes_does_not_start() {
        let running = RunningCollectives::default();
        running.finish(Duration::ZERO);
        let refused =
            running.enter(&OpenGroups::new(std::iter::empty()), &ExecutionPart::default()).unwrap_err();
        assert_eq!(refused.code(), Code::Cancelled);
    }

    #[test]
    fn device_that_goes_waits_no_longer_than_its_collectives_take() {
        let running = Arc::<RunningCollectives>::default();
        let number = running.enter(&OpenGroups::new(std::iter::empty()), &ExecutionPart::default()).unwrap();
        let begin = Instant::now();
        let leaves = running.clone();
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            leaves.leave(number);
        });
        running.finish(Duration::from_secs(30));
        assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
        ends.join().unwrap();
    }

    /// A group of one, so that nothing delays it.
    #[test]
    fn collective_is_in_progress_until_its_end_was_reported() {
        let request = hal_collectives::local::Request {
            id: b"until its end was reported",
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
        let (pool, running) = (Arc::<HostPool>::default(), Arc::<RunningCollectives>::default());
        let (sender, receiver) = std::sync::mpsc::channel();
        let in_progress = running.clone();
        start(entered, ExecutionPart::default(), (&pool, &running), move |outcome| {
            let count = in_progress.progress.lock().started.len();
            sender.send((count, outcome.is_ok())).unwrap();
        });
        assert_eq!(receiver.recv_timeout(Duration::from_secs(60)).unwrap(), (1, true));
        running.finish(Duration::from_secs(20));
        assert!(running.progress.lock().started.is_empty());
        assert!(pool.stop(Duration::from_secs(20)));
    }
}
