// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A queue of a device: one thread does its jobs in order and reports their end.
//!
//! The thread does transfers through windows. It lays out a dispatch, starts the tiles, and waits for them. There are
//! two queues, so that transfers go on while tiles run.
//!
//! A job that fails does not stop its queue. The device, with both queues, is lost only when its card is gone.

use crate::device::TenstorrentDevice;
use crate::dispatch::Settings;
use crate::kmd::Error;
use crate::memory::{Bytes, Memory, copy, fill};
use crate::open_card::OpenCard;
use hal_backend::{
    Code, Command, Dispatch, Failure, Job, Observer, Place, Rejected, Reporter, Span, Workgroups,
};
use hal_kernel::clock;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// How many jobs a queue takes.
const DEPTH: usize = 1024;

/// The part that the queues of a device share.
#[derive(Debug)]
pub(crate) struct DeviceShared {
    pub(crate) board: Arc<OpenCard>,
    pub(crate) settings: Settings,
    pub(crate) reporter: Reporter,
    /// Why the device is lost, if it is.
    lost: OnceLock<Failure>,
}

impl DeviceShared {
    pub(crate) fn new(board: Arc<OpenCard>, settings: Settings) -> Arc<Self> {
        Arc::new(Self { board, settings, reporter: Reporter::default(), lost: OnceLock::new() })
    }

    /// Loses the device for this reason. True if it is the first one.
    fn lose(&self, why: &Failure) -> bool {
        let is_first = self.lost.set(why.clone()).is_ok();
        if is_first {
            self.board.lose();
        }
        is_first
    }
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Job<TenstorrentDevice>>,
    /// True if a submission was refused because the queue was full.
    full: bool,
    aborted: Option<Failure>,
    stopping: bool,
}

/// A queue, as its thread shares it with the driver.
pub(crate) struct Queue {
    shared: Arc<DeviceShared>,
    state: Mutex<QueueState>,
    work: Condvar,
    /// True once running work is to be given up.
    give_up: AtomicBool,
}

impl Queue {
    pub(crate) fn new(shared: Arc<DeviceShared>) -> Arc<Self> {
        Arc::new(Self {
            shared,
            state: Mutex::default(),
            work: Condvar::new(),
            give_up: AtomicBool::new(false),
        })
    }

    /// Takes a job, or returns it if the queue is full.
    pub(crate) fn submit(&self, job: Job<TenstorrentDevice>) -> Result<(), Rejected<TenstorrentDevice>> {
        if let Some(failure) = self.shared.lost.get() {
            return Err(Rejected::Lost(failure.clone()));
        }
        let mut state = self.state.lock();
        if state.jobs.len() >= DEPTH {
            state.full = true;
            return Err(Rejected::Full(Box::new(job)));
        }
        state.jobs.push_back(job);
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Fails the jobs that have not begun, and gives up the running one.
    pub(crate) fn abort(&self, why: &Failure) {
        self.state.lock().aborted.get_or_insert_with(|| why.clone());
        self.give_up.store(true, Ordering::Relaxed);
        self.work.notify_one();
    }

    /// Has the thread end when there are no more jobs.
    pub(crate) fn stop(&self) {
        self.state.lock().stopping = true;
        self.work.notify_one();
    }

    /// Drops the jobs, because the thread has panicked.
    pub(crate) fn thread_panicked(&self, why: &Failure) {
        self.shared.lose(why);
        let jobs = std::mem::take(&mut self.state.lock().jobs);
        drop(jobs);
    }

    /// The next job, why it must not run if so, and whether a refused submission waits for room.
    fn next(&self) -> Option<(Job<TenstorrentDevice>, Option<Failure>, bool)> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some((job, state.aborted.clone(), std::mem::take(&mut state.full)));
            }
            if state.stopping {
                return None;
            }
            self.work.wait(&mut state);
        }
    }

    /// Runs on the thread until the device is dropped.
    pub(crate) fn serve(&self) {
        while let Some((job, aborted, had_no_room)) = self.next() {
            self.perform(job, aborted, had_no_room);
        }
    }

    /// Does a job and reports it.
    fn perform(&self, job: Job<TenstorrentDevice>, aborted: Option<Failure>, had_no_room: bool) {
        let (queue, epoch) = (job.queue, job.epoch);
        let begin = clock();
        let outcome = match aborted.or_else(|| self.shared.lost.get().cloned()) {
            Some(failure) => Err(Error::Other(failure)),
            None => self.run(&job.commands, job.observer.as_deref()),
        };
        let ends = matches!(&outcome, Err(error) if error.is_end());
        let outcome = outcome.map_err(|error| self.failure(&error));
        if let Some(observer) = &job.observer {
            observer.job(begin, clock(), outcome.as_ref().map(drop));
        }
        // The job's memory is free before its completion is reported.
        drop(job);
        let reporter = &self.shared.reporter;
        if let (true, Err(failure)) = (ends, &outcome)
            && self.shared.lose(failure)
        {
            reporter.lose(failure.clone());
            return;
        }
        // In queue order, once for each job. A failed job is complete too: the queue goes on.
        reporter.ended(queue, epoch, outcome);
        if had_no_room {
            reporter.unblock();
        }
    }

    fn failure(&self, error: &Error) -> Failure {
        let aborted = self.state.lock().aborted.clone();
        match (error, aborted) {
            // A job that was given up fails for the reason of that.
            (Error::Other(failure), Some(aborted)) if failure.code() == Code::Aborted => aborted,
            _ => error.failure(self.shared.board.card.name()),
        }
    }

    fn run(
        &self,
        commands: &[Command<TenstorrentDevice>],
        observer: Option<&dyn Observer>,
    ) -> Result<(), Error> {
        for (number, command) in commands.iter().enumerate() {
            let begin = clock();
            match command {
                Command::Fill { target, pattern } => {
                    fill(bytes(target)?, pattern.bytes(), target.length)?;
                }
                Command::Copy { source, target } => {
                    copy(bytes(source)?, bytes(target)?, source.length.min(target.length))?;
                }
                Command::Update { source, target } => {
                    copy(Bytes::Host(source, 0), bytes(target)?, source.length().min(target.length))?;
                }
                Command::Dispatch(dispatch) => self.dispatch(dispatch)?,
                // One thread does one command after the other, so a barrier is nothing.
                Command::Barrier => {}
            }
            if let Some(observer) = observer {
                observer.command(number, begin, clock());
            }
        }
        Ok(())
    }

    fn dispatch(&self, dispatch: &Dispatch<TenstorrentDevice>) -> Result<(), Error> {
        let workgroups = match &dispatch.workgroups {
            Workgroups::Count(count) => *count,
            Workgroups::Indirect(place) => {
                let mut words = [[0; 4]; 3];
                bytes(place)?.read(0, words.as_flattened_mut())?;
                words.map(u32::from_le_bytes)
            }
        };
        let DeviceShared { board, settings, .. } = &*self.shared;
        board.tiles.run(dispatch, workgroups, *settings, &self.give_up)
    }
}

/// The bytes of a span.
fn bytes(span: &Span<TenstorrentDevice>) -> Result<Bytes<'_>, Error> {
    let (found, room) = match &span.place {
        Place::Host(range) => (Bytes::Host(range, 0), range.length()),
        Place::Device(memory, offset) => match &**memory {
            Memory::Host(range) => (Bytes::Host(range, *offset), range.length().saturating_sub(*offset)),
            Memory::Card(range) => (Bytes::Card(range, *offset), range.room().saturating_sub(*offset)),
        },
    };
    if span.length <= room {
        return Ok(found);
    }
    let message = format!("a command works on {} bytes of memory that has {room} from there on", span.length);
    Err(Failure::new(Code::OutOfRange, message).into())
}
