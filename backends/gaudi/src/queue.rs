// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The HAL queues of a card: jobs in, submissions out, and their [completion].
//!
//! # A HAL queue is several hardware queues
//!
//! Each direction of a transfer, and computing, has a hardware queue of its own for every HAL queue: a *lane*. A
//! hardware queue is in order by itself. When a job changes its lane, the old lane signals and the new one waits, by
//! the kernel's own submissions for that, and the host sleeps. A wait for another HAL queue is the same: the other
//! queue's lane signals behind the point, and this queue's lane waits. A signal comes behind everything that its queue
//! has by then. That may be a little more than the wait needs, and is never a job that waits for this one: a
//! submission only waits for earlier ones.
//!
//! A driver that refuses signals is asked once. From then on a step waits on the host until the step before it has
//! ended. The results are the same, but queues that depend on each other do not overlap.
//!
//! # Limits
//!
//! The kernel takes a limited number of submissions. A job without room stays at the end of its queue, perhaps half
//! submitted, until a submission has ended; the queue takes no other job until then.
//!
//! # Locks
//!
//! One lock guards all queues. It is held during submissions to the kernel, which do not wait, and never during a wait
//! or while the engine or an observer is notified.

mod completion;

use crate::device::GaudiDevice;
use crate::executable::IndirectDispatch;
use crate::generation::{Capabilities, Generation, Lane};
use crate::kmd::{EventFd, clock};
use crate::memory::Memory;
use crate::plan::{LanePackets, Planner};
use crate::submit::{InFlight, Refused, Submitter};
use hal_backend::{Commands, Failure, Job, Observer, QueueId, Rejected, Reporter};
use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

/// How many jobs a queue takes, done or not.
const DEPTH: usize = 4096;

/// A point of another queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AwaitedEpoch {
    queue: usize,
    epoch: u64,
}

/// One job, until it is reported.
struct QueuedJob {
    id: QueueId,
    epoch: u64,
    /// The steps that are not submitted yet.
    steps: VecDeque<LanePackets>,
    /// The submissions, in order; the last one ends last.
    submissions: SmallVec<[InFlight; 2]>,
    /// Which of them end commands that are observed.
    marks: Vec<(usize, usize)>,
    /// From when to when the observed commands that have ended went.
    times: Vec<(usize, u64, u64)>,
    /// Points that it waits for and that are not submitted yet.
    waits: SmallVec<[AwaitedEpoch; 2]>,
    submitted: bool,
    /// Points that have to be reached before a job that submits nothing is over.
    needs: SmallVec<[AwaitedEpoch; 2]>,
    failure: Option<Failure>,
    begin: u64,
    end: Option<u64>,
    observer: Option<Arc<dyn Observer>>,
    /// The memory that the card works on.
    _retained: Vec<Memory>,
    /// Dispatches that may have been refused as they began.
    indirect: Vec<IndirectDispatch>,
    _commands: Commands<GaudiDevice>,
}

/// One HAL queue.
#[derive(Default)]
struct Queue {
    jobs: VecDeque<QueuedJob>,
    /// The lane that its last submission went to.
    last: Option<Lane>,
    /// Points of other queues that what comes next has to wait for.
    waits: SmallVec<[AwaitedEpoch; 2]>,
    submitted: u64,
    completed: u64,
    /// When its last job ended.
    ended: u64,
}

impl Queue {
    /// True if its last job is not submitted, or not wholly.
    fn is_behind(&self) -> bool {
        self.jobs.back().is_some_and(|queued| !queued.submitted)
    }

    /// The job at its end, which is being submitted.
    #[expect(
        clippy::expect_used,
        reason = "it leaves its queue when it is submitted and over, and under the lock nothing else takes it off"
    )]
    fn newest(&mut self) -> &mut QueuedJob {
        self.jobs.back_mut().expect("the job that is being submitted is in its queue")
    }

    fn await_point(&mut self, point: AwaitedEpoch) {
        match self.waits.iter_mut().find(|wait| wait.queue == point.queue) {
            Some(wait) => wait.epoch = wait.epoch.max(point.epoch),
            None => self.waits.push(point),
        }
    }
}

struct QueuesState {
    queues: Vec<Queue>,
    /// For each hardware queue that has signalled behind everything it has: the signal.
    signals: Vec<(u32, u64)>,
    aborted: Option<Failure>,
    lost: Option<Failure>,
    stopping: bool,
}

impl QueuesState {
    fn queue(&self, number: usize) -> &Queue {
        #[expect(clippy::indexing_slicing, reason = "the engine names queues that the card has")]
        &self.queues[number]
    }

    fn queue_mut(&mut self, number: usize) -> &mut Queue {
        #[expect(clippy::indexing_slicing, reason = "the engine names queues that the card has")]
        &mut self.queues[number]
    }
}

/// The queues of a card.
pub(crate) struct Queues {
    generation: Generation,
    planner: Planner,
    submitter: Arc<Submitter>,
    state: Mutex<QueuesState>,
    work: Condvar,
    pub(crate) reporter: Reporter,
    /// Ends the wait for word of errors.
    shutdown: EventFd,
}

/// Why a submission was not made now.
enum Stop {
    /// There is no room, or a point that it waits for is not submitted.
    Later,
    Failed(Failure),
    Lost(Failure),
}

impl From<Refused> for Stop {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Full => Stop::Later,
            Refused::Failed(failure) => Stop::Failed(failure),
            Refused::Lost(failure) => Stop::Lost(failure),
        }
    }
}

impl Queues {
    pub(crate) fn new(planner: Planner, submitter: Arc<Submitter>) -> Result<Arc<Self>, Failure> {
        let no_eventfd = |errno| planner.card.failure("word of its errors", errno);
        let shutdown = EventFd::new().map_err(no_eventfd)?;
        let generation = planner.card.generation();
        let state = QueuesState {
            queues: (0..generation.queues()).map(|_| Queue::default()).collect(),
            signals: Vec::new(),
            aborted: None,
            lost: None,
            stopping: false,
        };
        Ok(Arc::new(Self {
            generation,
            planner,
            submitter,
            state: Mutex::new(state),
            work: Condvar::new(),
            reporter: Reporter::default(),
            shutdown,
        }))
    }

    /// Takes a job. It is planned before anything of it is submitted, so that what cannot be done is refused whole.
    pub(crate) fn submit(&self, job: Job<GaudiDevice>) -> Result<(), Rejected<GaudiDevice>> {
        let number = job.queue.index();
        {
            let state = self.state.lock();
            if let Some(failure) = &state.lost {
                return Err(Rejected::Lost(failure.clone()));
            }
            if let Some(failure) = &state.aborted {
                return Err(Rejected::Failed(failure.clone()));
            }
            let queue = state.queue(number);
            if queue.is_behind() || queue.jobs.len() >= DEPTH {
                return Err(Rejected::Full(Box::new(job)));
            }
        }
        let plan = self.planner.plan(&job.commands, job.observer.is_some()).map_err(Rejected::Failed)?;
        let waits = job.waits.iter();
        let queued = QueuedJob {
            id: job.queue,
            epoch: job.epoch,
            steps: plan.steps.into(),
            submissions: SmallVec::new(),
            marks: Vec::new(),
            times: Vec::new(),
            waits: waits
                .map(|wait| AwaitedEpoch { queue: wait.point.queue.index(), epoch: wait.point.epoch })
                .collect(),
            submitted: false,
            needs: SmallVec::new(),
            failure: None,
            begin: clock(),
            end: None,
            observer: job.observer,
            _retained: plan.retained,
            indirect: plan.indirect,
            _commands: job.commands,
        };
        let mut state = self.state.lock();
        if let Some(failure) = &state.lost {
            // No thread would ever look at it again.
            return Err(Rejected::Lost(failure.clone()));
        }
        state.queue_mut(number).jobs.push_back(queued);
        match self.advance(&mut state, number) {
            Ok(()) | Err(Stop::Later) => {}
            Err(Stop::Failed(failure)) => fail_last(&mut state, number, failure),
            Err(Stop::Lost(failure)) => {
                // The first thread to notice records the loss. The job stays where it is until nothing touches its
                // memory.
                state.lost.get_or_insert_with(|| failure.clone());
                drop(state);
                self.work.notify_all();
                return Err(Rejected::Lost(failure));
            }
        }
        drop(state);
        self.work.notify_all();
        Ok(())
    }

    /// Submits what can be of the job at the end of a queue.
    fn advance(&self, state: &mut QueuesState, number: usize) -> Result<(), Stop> {
        let queued = state.queue_mut(number).newest();
        debug_assert!(!queued.submitted, "a job is submitted once");
        let epoch = queued.epoch;
        let waits = std::mem::take(&mut queued.waits);
        for (index, &wait) in waits.iter().enumerate() {
            if let Err(stop) = self.inherit(state, number, wait) {
                let rest: SmallVec<[AwaitedEpoch; 2]> = waits.iter().skip(index).copied().collect();
                state.queue_mut(number).newest().waits = rest;
                return Err(stop);
            }
        }
        while let Some(step) = state.queue_mut(number).newest().steps.pop_front() {
            if let Err(stop) = self.step(state, number, &step) {
                state.queue_mut(number).newest().steps.push_front(step);
                return Err(stop);
            }
            if let Some(command) = step.ends {
                let queued = state.queue_mut(number).newest();
                queued.marks.push((command, queued.submissions.len().saturating_sub(1)));
            }
        }
        let queue = state.queue_mut(number);
        queue.submitted = epoch;
        let waits = queue.waits.clone();
        let queued = queue.newest();
        queued.submitted = true;
        if queued.submissions.is_empty() {
            queued.needs = waits;
        }
        Ok(())
    }

    /// Has the next packets of a queue wait for a point of another, and for the waits of that one.
    fn inherit(&self, state: &mut QueuesState, number: usize, wait: AwaitedEpoch) -> Result<(), Stop> {
        let other = state.queue(wait.queue);
        if other.completed >= wait.epoch {
            return Ok(());
        }
        if other.submitted < wait.epoch {
            return Err(Stop::Later);
        }
        let theirs = other.waits.clone();
        let queue = state.queue_mut(number);
        queue.await_point(wait);
        for wait in theirs.into_iter().filter(|wait| wait.queue != number) {
            queue.await_point(wait);
        }
        Ok(())
    }

    /// Submits one step, behind the steps of its queue on another lane and behind the points that it waits for.
    fn step(&self, state: &mut QueuesState, number: usize, step: &LanePackets) -> Result<(), Stop> {
        let target = self.generation.hardware_queue(step.lane, number);
        let queue = state.queue(number);
        let busy = queue.jobs.iter().any(|queued| !queued.submissions.is_empty());
        let mut sources: SmallVec<[u32; 4]> = SmallVec::new();
        if let Some(lane) = queue.last.filter(|&lane| busy && lane != step.lane) {
            sources.push(self.generation.hardware_queue(lane, number));
        }
        for wait in &queue.waits {
            let other = state.queue(wait.queue);
            if other.completed >= wait.epoch {
                continue;
            }
            // One that has submitted nothing to the card waits itself for what this job has inherited.
            if let Some(lane) = other.last {
                sources.push(self.generation.hardware_queue(lane, wait.queue));
            }
        }
        sources.retain(|source| *source != target);
        // Without signals the host keeps the order: what is waited for ends first.
        if !sources.is_empty() && !self.submitter.has_signals() {
            return Err(Stop::Later);
        }
        // All of it or nothing, so that no signal is made for a wait that finds no room.
        if self.submitter.in_flight() + 2 * sources.len() + 1 > self.submitter.limit() {
            return Err(Stop::Later);
        }
        for source in sources {
            let signal = match state.signals.iter().find(|(queue, _)| *queue == source) {
                Some(&(_, signal)) => signal,
                None => {
                    let signal = self.submitter.signal(source)?;
                    let sequence = signal.sequence();
                    state.signals.push((source, sequence));
                    state.queue_mut(number).newest().submissions.push(signal);
                    sequence
                }
            };
            if let Some(wait) = self.submitter.wait(target, signal)? {
                state.signals.retain(|(queue, _)| *queue != target);
                state.queue_mut(number).newest().submissions.push(wait);
            }
        }
        let submission = self.submitter.submit(target, &step.commands)?;
        state.signals.retain(|(queue, _)| *queue != target);
        let queue = state.queue_mut(number);
        queue.last = Some(step.lane);
        queue.waits.clear();
        queue.newest().submissions.push(submission);
        Ok(())
    }

    /// Submits whatever had to wait and can go now.
    fn advance_all(&self, state: &mut QueuesState) {
        let mut again = true;
        while again && state.lost.is_none() {
            again = false;
            for number in 0..state.queues.len() {
                if !state.queue(number).is_behind() {
                    continue;
                }
                match self.advance(state, number) {
                    // Another queue may have waited for it to be submitted.
                    Ok(()) => again = true,
                    Err(Stop::Later) => {}
                    Err(Stop::Failed(failure)) => {
                        fail_last(state, number, failure);
                        again = true;
                    }
                    Err(Stop::Lost(failure)) => {
                        state.lost.get_or_insert(failure);
                    }
                }
            }
        }
    }

    /// Ends everything soon, as failed: what is submitted runs to its end, which the kernel bounds for engines, and the
    /// driver for the programs of an emulated card.
    pub(crate) fn abort(&self, why: &Failure) {
        let mut state = self.state.lock();
        state.aborted.get_or_insert_with(|| why.clone());
        for number in 0..state.queues.len() {
            if state.queue(number).is_behind() {
                fail_last(&mut state, number, why.clone());
            }
        }
        drop(state);
        self.work.notify_all();
    }

    /// Ends the threads when nothing is in flight any more.
    pub(crate) fn stop(&self) {
        self.state.lock().stopping = true;
        self.work.notify_all();
        self.shutdown.signal();
    }
}

/// The job at the end of a queue cannot be submitted, or not wholly: what is left of it is dropped.
fn fail_last(state: &mut QueuesState, number: usize, failure: Failure) {
    let queue = state.queue_mut(number);
    let queued = queue.newest();
    queued.steps.clear();
    queued.waits.clear();
    queued.submitted = true;
    queued.failure.get_or_insert(failure);
    queue.submitted = queued.epoch;
}
