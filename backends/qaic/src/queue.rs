// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The queues of a device: what programs submit, what is in flight, and what is reported.
//!
//! Two threads serve them. The [submission] thread takes jobs in their order, does transfers, and queues runs of
//! networks; the [completion] thread waits for runs, takes what came out, and reports. What they share is
//! [`State`], behind one lock that neither holds while it copies, talks to the kernel, or calls the driver.
//!
//! # Order
//!
//! A queue begins its commands in order. A run of a network is queued with the device and the next command begins, unless
//! that one could notice: it uses what the run writes, or writes what it uses ([`hazard`](crate::hazard)). So runs of one
//! network stand behind each other in its channel's ring, and networks on different channels work side by side, those of one
//! queue too. Jobs are reported in order. Queues are in no order among each other: the engine holds what has to wait.
//!
//! # Failure
//!
//! What goes wrong with one dispatch fails its job, and the queue goes on, also where a workload was lost: its network is
//! started again when it is wanted again, and what was in flight on it fails for the same reason. Only a device that is gone
//! is lost.

mod completion;
mod submission;

pub(crate) use completion::Completions;
pub(crate) use submission::Submissions;

use crate::device::QaicDevice;
use crate::hazard::{Hazards, Phase};
use crate::kmd::Error;
use crate::launch::Trouble;
use crate::networks::Launched;
use hal_backend::{Code, Failure, Job, Observer, QueueId, Rejected, Reporter};
use hal_kernel::clock;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// How many queues a device has.
pub(crate) const QUEUES: usize = 4;

/// How many jobs a queue takes.
const DEPTH: usize = 1024;

/// Who is told what became of jobs.
pub(crate) trait Reports: Send + Sync {
    /// A job is over. Those of one queue are reported in order, each once.
    fn ended(&self, queue: QueueId, epoch: u64, outcome: Result<(), Failure>);

    /// A queue that had no room has some.
    fn has_room(&self, queue: QueueId);

    /// The device is gone, and all jobs with it.
    fn lost(&self, why: Failure);
}

impl Reports for Reporter {
    fn ended(&self, queue: QueueId, epoch: u64, outcome: Result<(), Failure>) {
        self.ended(queue, epoch, outcome);
    }

    fn has_room(&self, _: QueueId) {
        self.unblock();
    }

    fn lost(&self, why: Failure) {
        self.lose(why);
    }
}

/// A job that has begun.
struct Begun {
    number: u64,
    queue: QueueId,
    epoch: u64,
    observer: Option<Arc<dyn Observer>>,
    begin: u64,
    /// How many runs of it are in flight.
    runs: usize,
    /// There once all its commands have begun.
    job: Option<Job<QaicDevice>>,
    failure: Option<Failure>,
}

/// One queue.
#[derive(Default)]
struct Line {
    /// Jobs that have not begun.
    waiting: VecDeque<Job<QaicDevice>>,
    /// Those that have, in order.
    begun: VecDeque<Begun>,
    hazards: Hazards,
    /// Whether a submission was refused for want of room.
    full: bool,
    /// Whether a thread reports its jobs now. Another one leaves what it has to report to that one, for the order's sake.
    reporting: bool,
}

impl Line {
    /// A job that has begun, and that has runs still, or commands that have not begun: until then it is not taken.
    #[expect(
        clippy::expect_used,
        reason = "only `pop` takes jobs, and the loss of the device once nothing is in flight"
    )]
    fn begun(&mut self, number: u64) -> &mut Begun {
        // Numbers follow each other.
        let first = self.begun.front().map(|first| first.number);
        let place = first.and_then(|first| usize::try_from(number.checked_sub(first)?).ok());
        place.and_then(|place| self.begun.get_mut(place)).expect("a job stays in its queue until it is over")
    }

    /// Takes the first job that has begun, if it is over.
    fn pop(&mut self) -> Option<Begun> {
        let is_over = self.begun.front().is_some_and(|begun| begun.job.is_some() && begun.runs == 0);
        if is_over { self.begun.pop_front() } else { None }
    }
}

/// Which command of which job a run is for.
struct Origin {
    line: usize,
    phase: Phase,
    command: usize,
    observer: Option<Arc<dyn Observer>>,
    /// When it was queued.
    begin: u64,
}

/// A run in flight.
struct Flight {
    /// Its number among all runs of the device.
    number: u64,
    origin: Origin,
    launched: Launched,
}

/// A run that is over.
struct Landed {
    launched: Launched,
    /// Why it never ended, if its network has to be stopped: its job is not told yet.
    broken: Option<(Error, u64, Origin)>,
}

#[derive(Default)]
struct State {
    lines: Vec<Line>,
    /// Runs that were queued, on their way to the completion thread.
    launched: Vec<Flight>,
    /// Runs that are over, on their way back to the submission thread.
    landed: Vec<Landed>,
    /// Executables that are gone, and whose networks can go.
    retired: Vec<u64>,
    aborted: Option<Failure>,
    lost: Option<Failure>,
    stopping: bool,
    /// Whether one of the threads has panicked: the other one waits for nothing of its.
    has_panicked: bool,
    /// Whether the submission thread has ended.
    over: bool,
    /// Grows with whatever the submission thread may want to know.
    news: u64,
}

impl State {
    fn line(&mut self, number: usize) -> &mut Line {
        #[expect(clippy::indexing_slicing, reason = "the engine names queues that the device has")]
        &mut self.lines[number]
    }
}

/// The queues of a device, and what their threads share.
pub(crate) struct Queues {
    name: String,
    state: Mutex<State>,
    /// Where the submission thread sleeps.
    submission: Condvar,
    /// Where the completion thread sleeps.
    completion: Condvar,
    reports: OnceLock<Box<dyn Reports>>,
    /// Whether whatever runs is to be given up.
    give_up: AtomicBool,
}

impl Queues {
    pub(crate) fn new(name: &str) -> Arc<Self> {
        let lines = std::iter::repeat_with(Line::default).take(QUEUES).collect();
        Arc::new(Self {
            name: name.to_owned(),
            state: Mutex::new(State { lines, ..State::default() }),
            submission: Condvar::new(),
            completion: Condvar::new(),
            reports: OnceLock::new(),
            give_up: AtomicBool::new(false),
        })
    }

    pub(crate) fn start(&self, reports: Box<dyn Reports>) {
        let is_first = self.reports.set(reports).is_ok();
        debug_assert!(is_first, "a device is started once");
    }

    /// Who is told.
    #[expect(clippy::expect_used, reason = "`start` comes before the first job")]
    fn reports(&self) -> &dyn Reports {
        &**self.reports.get().expect("the device was started")
    }

    /// Takes a job, unless there is no room: then it comes back when something has ended.
    pub(crate) fn submit(&self, job: Job<QaicDevice>) -> Result<(), Rejected<QaicDevice>> {
        let mut state = self.state.lock();
        if let Some(failure) = &state.lost {
            return Err(Rejected::Lost(failure.clone()));
        }
        let line = state.line(job.queue.ordinal());
        if line.waiting.len() + line.begun.len() >= DEPTH {
            line.full = true;
            return Err(Rejected::Full(Box::new(job)));
        }
        line.waiting.push_back(job);
        self.tell(state);
        Ok(())
    }

    /// What has not begun fails, and what runs is given up.
    pub(crate) fn abort(&self, why: &Failure) {
        let mut state = self.state.lock();
        state.aborted.get_or_insert_with(|| why.clone());
        self.give_up.store(true, Ordering::Relaxed);
        self.tell(state);
    }

    /// The threads end when there are no more jobs.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        self.tell(state);
    }

    /// Networks of this executable are not wanted any more.
    pub(crate) fn retire(&self, executable: u64) {
        let mut state = self.state.lock();
        state.retired.push(executable);
        self.tell(state);
    }

    /// There is news for the submission thread.
    fn tell(&self, mut state: MutexGuard<'_, State>) {
        state.news += 1;
        drop(state);
        self.submission.notify_one();
    }

    /// A run is over, and its job is told. Whatever it had of the program's is free.
    fn finish_run(&self, state: &mut State, run: u64, origin: &Origin, outcome: Result<(), Failure>) {
        let line = state.line(origin.line);
        line.hazards.remove(run);
        let begun = line.begun(origin.phase.job);
        begun.runs -= 1;
        if let Err(failure) = outcome {
            begun.failure.get_or_insert(failure);
        }
    }

    /// Reports the jobs of a queue that are over.
    fn report(&self, number: usize) {
        let mut state = self.state.lock();
        let line = state.line(number);
        if line.reporting {
            return;
        }
        line.reporting = true;
        while let Some(begun) = state.line(number).pop() {
            let had_no_room = std::mem::take(&mut state.line(number).full);
            MutexGuard::unlocked(&mut state, || self.report_one(begun, had_no_room));
        }
        state.line(number).reporting = false;
    }

    fn report_one(&self, begun: Begun, had_no_room: bool) {
        let Begun { queue, epoch, observer, begin, job, failure, .. } = begun;
        let outcome = failure.map_or(Ok(()), Err);
        if let Some(observer) = &observer {
            observer.job(begin, clock(), outcome.as_ref().map(drop));
        }
        // What the job held is free before its completion is known.
        drop((job, observer));
        let reports = self.reports();
        reports.ended(queue, epoch, outcome);
        if had_no_room {
            reports.has_room(queue);
        }
    }

    /// The device is gone, which is told once all runs in flight have come back.
    fn lose(&self, state: &mut State) {
        let failure = Error::Gone.failure(&self.name);
        state.lost.get_or_insert(failure);
        self.completion.notify_one();
    }

    /// The submission thread has panicked.
    pub(crate) fn submissions_panicked(&self, why: &Failure) {
        self.thread_panicked(why);
        self.end_submissions();
    }

    /// One of the threads has panicked. The other one takes no more work, lets go of what there is, and ends.
    pub(crate) fn thread_panicked(&self, why: &Failure) {
        let mut state = self.state.lock();
        state.has_panicked = true;
        state.lost.get_or_insert_with(|| why.clone());
        self.completion.notify_one();
        self.tell(state);
    }

    /// The submission thread has nothing more to do.
    fn end_submissions(&self) {
        self.state.lock().over = true;
        self.completion.notify_one();
    }

    /// Lets go of all jobs and runs of a device that is lost. Only by the last thread that looks for them.
    fn clear(&self) {
        let mut state = self.state.lock();
        let lines = state.lines.iter_mut();
        let jobs: Vec<_> =
            lines.map(|line| (std::mem::take(&mut line.waiting), std::mem::take(&mut line.begun))).collect();
        let runs = (std::mem::take(&mut state.launched), std::mem::take(&mut state.landed));
        drop(state);
        drop((jobs, runs));
    }

    fn failure(&self, trouble: Trouble) -> Failure {
        match trouble {
            // A run that was given up has no time to blame.
            Trouble::Device(Error::TimedOut) if self.give_up.load(Ordering::Relaxed) => {
                let aborted = self.state.lock().aborted.clone();
                aborted.unwrap_or_else(|| Error::TimedOut.failure(&self.name))
            }
            Trouble::Device(Error::TimedOut) => {
                let message = format!(
                    "{}: a dispatch has not ended in time, and its network was stopped with all that it had in flight; give \
                     timeout= more if it needs longer",
                    self.name
                );
                Failure::new(Code::Aborted, message)
            }
            Trouble::Device(error) => error.failure(&self.name),
            Trouble::Program(failure) => failure,
        }
    }
}

#[cfg(test)]
mod tests;
