// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The hardware: queues of little room, each with a thread, and the pipe by which all of them report.

use crate::event::Event;
use crate::{Card, Executable};
use hal_backend::{
    Command, Completer, Dispatch, Failure, HostCall, HostPart, Job, Place, QueueId, Rejected, Span,
    Workgroups,
};
use std::collections::VecDeque;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// How often a job found no room, on any card.
pub static FULL: AtomicUsize = AtomicUsize::new(0);

/// How many jobs waited for an event, on any card.
pub static NATIVE_WAITS: AtomicUsize = AtomicUsize::new(0);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A job that is taken, with the recordings that it waits for as they were asked for then.
struct Taken {
    job: Job<Card>,
    waits: Vec<(Arc<Event>, u64)>,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Taken>,
    aborted: Option<Failure>,
    stopping: bool,
}

/// A queue.
pub(crate) struct Queue {
    state: Mutex<State>,
    work: Condvar,
    depth: usize,
    reports: Arc<Reports>,
}

impl Queue {
    pub(crate) fn new(depth: usize, reports: Arc<Reports>) -> Self {
        Self { state: Mutex::default(), work: Condvar::new(), depth, reports }
    }

    pub(crate) fn push(&self, job: Job<Card>) -> Result<(), Rejected<Card>> {
        let mut state = lock(&self.state);
        if state.jobs.len() >= self.depth {
            FULL.fetch_add(1, Ordering::Relaxed);
            return Err(Rejected::Full(Box::new(job)));
        }
        let waits: Vec<_> = job
            .waits
            .iter()
            .filter_map(|wait| wait.event.clone())
            .map(|event| (event.clone(), event.awaited()))
            .collect();
        NATIVE_WAITS.fetch_add(usize::from(!waits.is_empty()), Ordering::Relaxed);
        if let Some(event) = &job.event {
            event.ask();
        }
        state.jobs.push_back(Taken { job, waits });
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    pub(crate) fn abort(&self, why: &Failure) {
        lock(&self.state).aborted.get_or_insert_with(|| why.clone());
        self.work.notify_one();
    }

    pub(crate) fn stop(&self) {
        lock(&self.state).stopping = true;
        self.work.notify_one();
    }

    pub(crate) fn serve(&self) {
        while let Some((taken, aborted)) = self.next() {
            for (event, recording) in &taken.waits {
                event.wait(*recording);
            }
            let (queue, epoch) = (taken.job.queue, taken.job.epoch);
            let begin = self.reports.clock();
            let outcome = aborted.map_or_else(|| self.run(&taken.job), Err);
            if let Some(observer) = &taken.job.observer {
                observer.job(begin, self.reports.clock(), outcome.as_ref().map(drop));
            }
            if let Some(event) = &taken.job.event {
                event.record();
            }
            drop(taken);
            self.reports.add(Report { queue, epoch, outcome });
        }
    }

    /// Does the commands of a job.
    fn run(&self, job: &Job<Card>) -> Result<(), Failure> {
        for (number, command) in job.commands.iter().enumerate() {
            let begin = self.reports.clock();
            run(command, job.queue.index())?;
            if let Some(observer) = &job.observer {
                observer.command(number, begin, self.reports.clock());
            }
        }
        Ok(())
    }

    fn next(&self) -> Option<(Taken, Option<Failure>)> {
        let mut state = lock(&self.state);
        loop {
            if let Some(taken) = state.jobs.pop_front() {
                return Some((taken, state.aborted.clone()));
            }
            if state.stopping {
                return None;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A job that has ended.
struct Report {
    queue: QueueId,
    epoch: u64,
    outcome: Result<(), Failure>,
}

/// What is to be reported, and a pipe with a byte in it as long as there is anything.
pub(crate) struct Reports {
    due: Mutex<Vec<Report>>,
    /// Held by the thread that reports, so that a queue's reports stay in order.
    delivering: Mutex<()>,
    completer: OnceLock<Completer>,
    opened: Instant,
    reader: PipeReader,
    writer: PipeWriter,
}

impl Reports {
    pub(crate) fn new() -> std::io::Result<Self> {
        let (reader, writer) = std::io::pipe()?;
        let (due, delivering, completer) = (Mutex::default(), Mutex::default(), OnceLock::new());
        Ok(Self { due, delivering, completer, opened: Instant::now(), reader, writer })
    }

    /// The card's clock, which never shows zero.
    pub(crate) fn clock(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(1)
    }

    pub(crate) fn start(&self, completer: Completer) {
        let _ = self.completer.set(completer);
    }

    fn add(&self, report: Report) {
        let mut due = lock(&self.due);
        if due.is_empty() {
            // There is room: the pipe is empty.
            let _ = (&self.writer).write_all(&[1]);
        }
        due.push(report);
    }

    fn take(&self) -> Vec<Report> {
        let mut due = lock(&self.due);
        if !due.is_empty() {
            // This does not block: the byte is there.
            let _ = (&self.reader).read(&mut [0]);
        }
        std::mem::take(&mut due)
    }

    /// Reports what is due, unless another thread is at it: what that one does not take, the pipe brings again.
    pub(crate) fn deliver(&self) {
        let Ok(_delivering) = self.delivering.try_lock() else { return };
        let Some(completer) = self.completer.get() else { return };
        for Report { queue, epoch, outcome } in self.take() {
            let _ = match outcome {
                Ok(()) => completer.complete(queue, epoch),
                Err(failure) => completer.fail(queue, epoch, failure),
            };
        }
    }
}

impl AsFd for Reports {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// Does one command, on the thread of a queue.
fn run(command: &Command<Card>, queue: usize) -> Result<(), Failure> {
    match command {
        Command::Fill { target, pattern } => done(part(target)?.fill(pattern.bytes())),
        Command::Copy { source, target } => done(part(target)?.copy_from(part(source)?)),
        Command::Update { source, target } => done(part(target)?.copy_from(source.whole())),
        Command::Dispatch(dispatch) => call(dispatch, queue),
        Command::Barrier => Ok(()),
    }
}

fn call(dispatch: &Dispatch<Card>, queue: usize) -> Result<(), Failure> {
    let bindings = dispatch.bindings.iter().map(part).collect::<Result<Vec<_>, _>>()?;
    let program = match &*dispatch.executable {
        Executable::Bytecode(program) => return program.run(&dispatch.constants, &bindings),
        Executable::Host(program) => program,
    };
    let workgroups = match &dispatch.workgroups {
        Workgroups::Count(count) => *count,
        Workgroups::Indirect(place) => {
            let mut words = [[0; 4]; 3];
            done(part(place)?.read(words.as_flattened_mut()))?;
            words.map(u32::from_ne_bytes)
        }
    };
    let call = HostCall {
        function: dispatch.function,
        workgroup_size: dispatch.workgroup_size,
        workgroups,
        constants: &dispatch.constants,
        bindings: &bindings,
        concurrency: 1,
        local_memory: dispatch.local_memory,
    };
    program.run(&call, 0..call.total(), queue)
}

fn part(span: &Span<Card>) -> Result<HostPart<'_>, Failure> {
    let part = match &span.place {
        Place::Device(memory, offset) => memory.range.part(*offset, span.length),
        Place::Host(range) => range.part(0, span.length),
    };
    part.ok_or_else(misfit)
}

fn done(fitted: bool) -> Result<(), Failure> {
    fitted.then_some(()).ok_or_else(misfit)
}

fn misfit() -> Failure {
    Failure::new(hal_backend::Code::OutOfRange, "a command reaches past the memory that it works on")
}
