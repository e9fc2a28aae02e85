// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The queues of a device: jobs, runs in flight, and reports.
//!
//! Two threads serve them. The [submission] thread takes jobs in order, does transfers, and queues runs of networks.
//! The [completion] thread waits for runs, copies their outputs, and reports. They share [`QueuesState`], behind one
//! lock that neither holds while it copies, calls the kernel, or calls the driver.
//!
//! # Order
//!
//! A queue begins its commands in order. Once a run of a network is queued with the device, the next command begins,
//! unless it reads what the run writes, or writes what the run uses ([`hazard`](crate::hazard)). So runs of one network
//! follow each other in its channel's ring, and networks on different channels run side by side, also those of one
//! queue. Jobs of a queue are reported in order. Nothing orders different queues here: the engine does.
//!
//! # Failure
//!
//! A dispatch that fails fails its job, and the queue goes on, also after the loss of a workload: the runs in flight on
//! its network fail for the same reason, and the next dispatch starts the network again. A device is lost only when it
//! is gone.

mod completion;
mod submission;

pub(crate) use completion::Completions;
pub(crate) use submission::Submissions;

use crate::device::QaicDevice;
use crate::hazard::{Hazards, Phase};
use crate::kmd::Error;
use crate::launch::RunError;
use crate::networks::LaunchedRun;
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

/// The receiver of the queues' reports.
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
struct StartedJob {
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
struct JobQueue {
    /// Jobs that have not begun.
    waiting: VecDeque<Job<QaicDevice>>,
    /// Those that have, in order.
    started: VecDeque<StartedJob>,
    hazards: Hazards,
    /// True if a submission was refused because the queue was full.
    full: bool,
    /// True while a thread reports its jobs. Another thread leaves its reports to that one, to keep the order.
    reporting: bool,
}

impl JobQueue {
    /// A job that has begun and is not over.
    #[expect(
        clippy::expect_used,
        reason = "only `pop` takes jobs, and the loss of the device once nothing is in flight"
    )]
    fn started(&mut self, number: u64) -> &mut StartedJob {
        // Numbers follow each other.
        let first = self.started.front().map(|first| first.number);
        let place = first.and_then(|first| usize::try_from(number.checked_sub(first)?).ok());
        place
            .and_then(|place| self.started.get_mut(place))
            .expect("a job stays in its queue until it is over")
    }

    /// Takes the first job that has begun, if it is over.
    fn pop(&mut self) -> Option<StartedJob> {
        let is_over = self.started.front().is_some_and(|started| started.job.is_some() && started.runs == 0);
        if is_over { self.started.pop_front() } else { None }
    }
}

/// The command that a run is for.
struct CommandRef {
    queue: usize,
    phase: Phase,
    command: usize,
    observer: Option<Arc<dyn Observer>>,
    /// When it was queued.
    begin: u64,
}

/// A run in flight.
struct RunInFlight {
    /// Its number among all runs of the device.
    number: u64,
    command_ref: CommandRef,
    launched: LaunchedRun,
}

/// A run that is over.
struct EndedRun {
    launched: LaunchedRun,
    /// Why it never ended, if its network has to be stopped. Its job is not notified yet.
    broken: Option<(Error, u64, CommandRef)>,
}

#[derive(Default)]
struct QueuesState {
    queues: Vec<JobQueue>,
    /// Runs that were queued, on their way to the completion thread.
    launched: Vec<RunInFlight>,
    /// Runs that are over, on their way back to the submission thread.
    ended_runs: Vec<EndedRun>,
    /// Executables that are gone, and whose networks can go.
    retired: Vec<u64>,
    aborted: Option<Failure>,
    lost: Option<Failure>,
    stopping: bool,
    /// True if one of the threads has panicked. The other one then waits for none of its work.
    has_panicked: bool,
    /// True once the submission thread has ended.
    over: bool,
    /// Grows with each event that the submission thread has to see.
    wakeups: u64,
}

impl QueuesState {
    fn queue(&mut self, number: usize) -> &mut JobQueue {
        #[expect(clippy::indexing_slicing, reason = "the engine names queues that the device has")]
        &mut self.queues[number]
    }
}

/// The queues of a device, and what their threads share.
pub(crate) struct Queues {
    name: String,
    state: Mutex<QueuesState>,
    /// Wakes the submission thread.
    submission: Condvar,
    /// Wakes the completion thread.
    completion: Condvar,
    reports: OnceLock<Box<dyn Reports>>,
    /// True once running work is to be given up.
    give_up: AtomicBool,
}

impl Queues {
    pub(crate) fn new(name: &str) -> Arc<Self> {
        let queues = std::iter::repeat_with(JobQueue::default).take(QUEUES).collect();
        Arc::new(Self {
            name: name.to_owned(),
            state: Mutex::new(QueuesState { queues, ..QueuesState::default() }),
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

    /// The receiver of reports.
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
        let queue = state.queue(job.queue.index());
        if queue.waiting.len() + queue.started.len() >= DEPTH {
            queue.full = true;
            return Err(Rejected::Full(Box::new(job)));
        }
        queue.waiting.push_back(job);
        self.notify(state);
        Ok(())
    }

    /// Fails the jobs that have not begun, and gives up running work.
    pub(crate) fn abort(&self, why: &Failure) {
        let mut state = self.state.lock();
        state.aborted.get_or_insert_with(|| why.clone());
        self.give_up.store(true, Ordering::Relaxed);
        self.notify(state);
    }

    /// The threads end when there are no more jobs.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopping = true;
        self.notify(state);
    }

    /// Networks of this executable are not wanted any more.
    pub(crate) fn retire(&self, executable: u64) {
        let mut state = self.state.lock();
        state.retired.push(executable);
        self.notify(state);
    }

    /// Wakes the submission thread.
    fn notify(&self, mut state: MutexGuard<'_, QueuesState>) {
        state.wakeups += 1;
        drop(state);
        self.submission.notify_one();
    }

    /// Ends a run and notifies its job. The run's references to the program's memory are dropped before.
    fn finish_run(
        &self,
        state: &mut QueuesState,
        run: u64,
        command_ref: &CommandRef,
        outcome: Result<(), Failure>,
    ) {
        let queue = state.queue(command_ref.queue);
        queue.hazards.remove(run);
        let started = queue.started(command_ref.phase.job);
        started.runs -= 1;
        if let Err(failure) = outcome {
            started.failure.get_or_insert(failure);
        }
    }

    /// Reports the jobs of a queue that are over.
    fn report(&self, number: usize) {
        let mut state = self.state.lock();
        let queue = state.queue(number);
        if queue.reporting {
            return;
        }
        queue.reporting = true;
        while let Some(started) = state.queue(number).pop() {
            let had_no_room = std::mem::take(&mut state.queue(number).full);
            MutexGuard::unlocked(&mut state, || self.report_one(started, had_no_room));
        }
        state.queue(number).reporting = false;
    }

    fn report_one(&self, started: StartedJob, had_no_room: bool) {
        let StartedJob { queue, epoch, observer, begin, job, failure, .. } = started;
        let outcome = failure.map_or(Ok(()), Err);
        if let Some(observer) = &observer {
            observer.job(begin, clock(), outcome.as_ref().map(drop));
        }
        // The job's memory is free before its completion is reported.
        drop((job, observer));
        let reports = self.reports();
        reports.ended(queue, epoch, outcome);
        if had_no_room {
            reports.has_room(queue);
        }
    }

    /// Loses the device. The loss is reported once all runs in flight have come back.
    fn lose(&self, state: &mut QueuesState) {
        let failure = Error::Gone.failure(&self.name);
        state.lost.get_or_insert(failure);
        self.completion.notify_one();
    }

    /// The submission thread has panicked.
    pub(crate) fn submissions_panicked(&self, why: &Failure) {
        self.thread_panicked(why);
        self.end_submissions();
    }

    /// One of the threads has panicked. The other one takes no more work, releases what there is, and ends.
    pub(crate) fn thread_panicked(&self, why: &Failure) {
        let mut state = self.state.lock();
        state.has_panicked = true;
        state.lost.get_or_insert_with(|| why.clone());
        self.completion.notify_one();
        self.notify(state);
    }

    /// The submission thread has nothing more to do.
    fn end_submissions(&self) {
        self.state.lock().over = true;
        self.completion.notify_one();
    }

    /// Releases all jobs and runs of a device that is lost. Only for the last thread that looks for them.
    fn clear(&self) {
        let mut state = self.state.lock();
        let queues = state.queues.iter_mut();
        let jobs: Vec<_> = queues
            .map(|queue| (std::mem::take(&mut queue.waiting), std::mem::take(&mut queue.started)))
            .collect();
        let runs = (std::mem::take(&mut state.launched), std::mem::take(&mut state.ended_runs));
        drop(state);
        drop((jobs, runs));
    }

    fn failure(&self, error: RunError) -> Failure {
        match error {
            // A run that was given up has no time to blame.
            RunError::Device(Error::TimedOut) if self.give_up.load(Ordering::Relaxed) => {
                let aborted = self.state.lock().aborted.clone();
                aborted.unwrap_or_else(|| Error::TimedOut.failure(&self.name))
            }
            RunError::Device(Error::TimedOut) => {
                let message = format!(
                    "{}: a dispatch has not ended in time, and its network was stopped with all that it had in \
                     flight; give timeout= more if it needs longer",
                    self.name
                );
                Failure::new(Code::Aborted, message)
            }
            RunError::Device(error) => error.failure(&self.name),
            RunError::Program(failure) => failure,
        }
    }
}

#[cfg(test)]
mod tests;
