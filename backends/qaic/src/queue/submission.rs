// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The submission thread: it begins transfers and runs of networks.
//!
//! It goes round the queues, one command of each at a time, and sleeps when none can go on. A command waits for a run
//! that it must not overtake, for room in the ring of its network, or for one of the sixteen channels. Each of these
//! waits ends with a run, and the completion thread wakes this thread then. For what other programs have of the device
//! this thread asks again and again, for a while.
//!
//! Only this thread starts and stops networks, so no two of these meet. It sends messages to the device's management
//! processor then, and the other queues wait for that; runs in flight go on.

use super::{CommandRef, EndedRun, QUEUES, Queues, RunInFlight, StartedJob};
use crate::device::QaicDevice;
use crate::executable::{Callee, Executable};
use crate::hazard::{Access, AccessedRange, Phase};
use crate::kmd::Error;
use crate::launch::{Binding, RunError};
use crate::networks::{LaunchedRun, Networks, Refusal, Settings};
use hal_backend::{
    Code, Command, Dispatch, Failure, HostPart, HostRange, Job, Place, Span, TimeLimit, Workgroups,
};
use hal_kernel::clock;
use hal_qaic_abi::programs::ProgramCall;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a network is tried for which other programs leave nothing of the device.
const SCARCE: Duration = Duration::from_millis(100);

/// The first and the longest sleep while others' work fills a ring.
const BACK_OFF: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));

/// A job of which some commands have not begun yet.
struct StartingJob {
    job: Job<QaicDevice>,
    phase: Phase,
    /// The next command.
    next: usize,
    /// The time that its next run has to wait for a ring, and for what other programs have.
    full: Option<TimeLimit>,
    scarce: Option<TimeLimit>,
}

/// The state of a command after an attempt to begin it.
enum Progress {
    /// It is done.
    Done,
    /// It is in flight.
    InFlight,
    /// It waits for a run.
    Waiting,
    /// It waits for a ring that other work, or work that has just ended, is in.
    Full,
    /// It waits for what other programs have of the device.
    Scarce(Error),
    Failed(RunError),
}

/// The thread's next action.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Go round again.
    Again,
    /// Sleep until there is a wake-up after this, or so long.
    Sleep(u64, Option<Duration>),
    /// There is nothing more to do.
    End,
}

/// The submission thread's own.
pub(crate) struct Submissions {
    pub(super) queues: Arc<Queues>,
    pub(super) networks: Networks,
    pub(super) settings: Settings,
    starting: [Option<StartingJob>; QUEUES],
    /// How many jobs of each queue have begun.
    jobs: [u64; QUEUES],
    /// How many runs have begun.
    runs: u64,
    in_flight: usize,
    ended_runs: Vec<EndedRun>,
    bindings: Vec<Binding>,
    ranges: Vec<AccessedRange>,
    pause: Duration,
    /// True once the loss of the device was reported.
    told_loss: bool,
}

impl Submissions {
    pub(crate) fn new(queues: &Arc<Queues>, networks: Networks, settings: Settings) -> Self {
        Self {
            queues: queues.clone(),
            networks,
            settings,
            starting: [const { None }; QUEUES],
            jobs: [0; QUEUES],
            runs: 0,
            in_flight: 0,
            ended_runs: Vec::new(),
            bindings: Vec::new(),
            ranges: Vec::new(),
            pause: BACK_OFF.0,
            told_loss: false,
        }
    }

    /// Runs on the thread until the device is dropped.
    pub(crate) fn serve(mut self) {
        loop {
            match self.step() {
                Next::Again => {}
                Next::Sleep(wakeups, most) => {
                    let mut state = self.queues.state.lock();
                    if state.wakeups == wakeups {
                        match most {
                            Some(most) => drop(self.queues.submission.wait_for(&mut state, most)),
                            None => self.queues.submission.wait(&mut state),
                        }
                    }
                }
                Next::End => break,
            }
        }
        self.queues.end_submissions();
    }

    /// Goes round the queues once.
    pub(crate) fn step(&mut self) -> Next {
        let wakeups = self.take_ended();
        if self.is_lost() {
            // A lost device takes no more submissions.
            return if self.told_loss { Next::End } else { Next::Sleep(wakeups, None) };
        }
        let mut next = Next::Sleep(wakeups, None);
        for queue in 0..QUEUES {
            match self.advance(queue) {
                None => {}
                Some(Progress::Full) => {
                    if matches!(next, Next::Sleep(..)) {
                        next = Next::Sleep(wakeups, Some(self.pause));
                        self.pause = (self.pause * 2).min(BACK_OFF.1);
                    }
                }
                Some(Progress::Scarce(_)) => {
                    if let Next::Sleep(_, None) = next {
                        next = Next::Sleep(wakeups, Some(SCARCE));
                    }
                }
                Some(Progress::Waiting) => {}
                Some(Progress::Done | Progress::InFlight | Progress::Failed(_)) => {
                    self.pause = BACK_OFF.0;
                    next = Next::Again;
                }
            }
        }
        if let Next::Sleep(_, most) = &mut next {
            let idle = self.networks.park_idle(Instant::now());
            *most = most.iter().copied().chain(idle).min();
        }
        let state = self.queues.state.lock();
        let is_done = state.stopping
            && state.queues.iter().all(|queue| queue.waiting.is_empty() && queue.started.is_empty());
        if is_done { Next::End } else { next }
    }

    /// Takes back the buffers of runs that are over, and stops the networks of those that will not end.
    fn take_ended(&mut self) -> u64 {
        let mut state = self.queues.state.lock();
        std::mem::swap(&mut state.ended_runs, &mut self.ended_runs);
        let (wakeups, retired) = (state.wakeups, std::mem::take(&mut state.retired));
        drop(state);
        for EndedRun { mut launched, broken } in self.ended_runs.drain(..) {
            self.in_flight -= 1;
            let Some((error, run, command_ref)) = broken else {
                self.networks.release_buffers(launched.network, launched.buffers);
                continue;
            };
            let error = self.networks.end(launched.network, &error);
            launched.end();
            drop(launched);
            let failure = self.queues.failure(RunError::Device(error));
            self.queues.finish_run(&mut self.queues.state.lock(), run, &command_ref, Err(failure));
            self.queues.report(command_ref.queue);
        }
        retired.into_iter().for_each(|executable| self.networks.retire(executable));
        wakeups
    }

    /// True if the device is gone. If so, it drops all jobs, and reports the loss once nothing is in flight.
    fn is_lost(&mut self) -> bool {
        let state = self.queues.state.lock();
        let Some(failure) = state.lost.clone() else { return false };
        // Runs in flight come back from the completion thread, unless that one has panicked.
        let is_coming_back = self.in_flight > 0 && !state.has_panicked;
        drop(state);
        if self.told_loss || is_coming_back {
            return true;
        }
        self.told_loss = true;
        self.networks.clear();
        self.starting = [const { None }; QUEUES];
        self.queues.clear();
        self.queues.reports().lost(failure);
        true
    }

    /// Begins a queue's next command; nothing, if it has none.
    fn advance(&mut self, queue: usize) -> Option<Progress> {
        let mut starting = match self.starting(queue).take() {
            Some(starting) => starting,
            None => self.next_job(queue)?,
        };
        let step = if self.has_failed(queue, &starting) { None } else { self.begin(queue, &mut starting) };
        let Some(step) = step else {
            self.finish(queue, starting);
            return Some(Progress::Done);
        };
        match step {
            Progress::Done | Progress::InFlight => {
                starting.next += 1;
                (starting.full, starting.scarce) = (None, None);
            }
            Progress::Waiting => {}
            Progress::Full => {
                if is_over(&mut starting.full, self.settings.timeout) {
                    self.fail(queue, &starting, RunError::Device(Error::Full));
                }
            }
            Progress::Scarce(ref error) => {
                let waited = self.settings.scarce_timeout;
                if is_over(&mut starting.scarce, waited) {
                    let error = Error::Scarce { error: Box::new(error.clone()), waited };
                    self.fail(queue, &starting, RunError::Device(error));
                }
            }
            Progress::Failed(ref error) => self.fail(queue, &starting, error.clone()),
        }
        *self.starting(queue) = Some(starting);
        Some(step)
    }

    /// The job of a queue whose commands are beginning.
    fn starting(&mut self, queue: usize) -> &mut Option<StartingJob> {
        #[expect(clippy::indexing_slicing, reason = "there is one for each queue")]
        &mut self.starting[queue]
    }

    fn next_job(&mut self, queue: usize) -> Option<StartingJob> {
        #[expect(clippy::indexing_slicing, reason = "there is one for each queue")]
        let number = &mut self.jobs[queue];
        let mut state = self.queues.state.lock();
        let aborted = state.aborted.clone();
        let found = state.queue(queue);
        let job = found.waiting.pop_front()?;
        *number += 1;
        found.started.push_back(StartedJob {
            number: *number,
            queue: job.queue,
            epoch: job.epoch,
            observer: job.observer.clone(),
            begin: clock(),
            runs: 0,
            job: None,
            failure: aborted,
        });
        let phase = Phase { job: *number, barriers: 0 };
        Some(StartingJob { job, phase, next: 0, full: None, scarce: None })
    }

    /// True if nothing more of a job may begin.
    fn has_failed(&self, queue: usize, starting: &StartingJob) -> bool {
        let mut state = self.queues.state.lock();
        let aborted = state.aborted.clone();
        let started = state.queue(queue).started(starting.phase.job);
        if started.failure.is_none() {
            started.failure = aborted;
        }
        started.failure.is_some()
    }

    fn fail(&self, queue: usize, starting: &StartingJob, error: RunError) {
        let is_gone = matches!(error, RunError::Device(Error::Gone));
        let failure = self.queues.failure(error);
        let mut state = self.queues.state.lock();
        if is_gone {
            self.queues.lose(&mut state);
            state.wakeups += 1;
        }
        state.queue(queue).started(starting.phase.job).failure.get_or_insert(failure);
    }

    /// Marks a job as begun: no more commands of it begin.
    fn finish(&self, queue: usize, starting: StartingJob) {
        let mut state = self.queues.state.lock();
        state.queue(queue).started(starting.phase.job).job = Some(starting.job);
        drop(state);
        self.queues.report(queue);
    }

    /// Begins the next command of a job; nothing, if all have begun.
    fn begin(&mut self, queue: usize, starting: &mut StartingJob) -> Option<Progress> {
        let StartingJob { job, phase, next, .. } = starting;
        let command = job.commands.get(*next)?;
        let begin = clock();
        let result = match command {
            Command::Fill { target, pattern } => part(target).and_then(|target| {
                let used = [AccessedRange::new(target, Access::WRITE)];
                self.transfer(queue, *phase, &used, || target.fill(pattern.bytes()))
            }),
            Command::Copy { source, target } => part(source).and_then(|source| {
                let target = part(target)?;
                let used =
                    [AccessedRange::new(source, Access::READ), AccessedRange::new(target, Access::WRITE)];
                self.transfer(queue, *phase, &used, || target.copy_from(source))
            }),
            Command::Update { source, target } => part(target).and_then(|target| {
                let used = [AccessedRange::new(target, Access::WRITE)];
                self.transfer(queue, *phase, &used, || target.copy_from(source.whole()))
            }),
            Command::Dispatch(dispatch) => {
                let observer = job.observer.clone();
                self.dispatch(dispatch, CommandRef { queue, phase: *phase, command: *next, observer, begin })
            }
            Command::Barrier => {
                phase.barriers += 1;
                Ok(Progress::Done)
            }
        };
        let step = result.unwrap_or_else(Progress::Failed);
        if let (Progress::Done, Some(observer)) = (&step, &job.observer) {
            observer.command(*next, begin, clock());
        }
        Some(step)
    }

    /// Does a transfer, which is a copy by this thread, unless it has to wait.
    fn transfer(
        &self,
        queue: usize,
        phase: Phase,
        used: &[AccessedRange],
        work: impl FnOnce() -> bool,
    ) -> Result<Progress, RunError> {
        if self.has_to_wait(queue, phase, used) {
            return Ok(Progress::Waiting);
        }
        done(work()).map(|()| Progress::Done)
    }

    /// True if a command that uses this must not overtake a run.
    fn has_to_wait(&self, queue: usize, phase: Phase, used: &[AccessedRange]) -> bool {
        let mut state = self.queues.state.lock();
        let hazards = &state.queue(queue).hazards;
        used.iter().any(|range| hazards.hold(phase, range))
    }

    /// Queues a run of a network, unless it has to wait.
    fn dispatch(
        &mut self,
        dispatch: &Dispatch<QaicDevice>,
        command_ref: CommandRef,
    ) -> Result<Progress, RunError> {
        let result = self.run(dispatch, command_ref);
        // What is not in flight is kept by its job alone, and is free when that ends.
        self.bindings.clear();
        self.ranges.clear();
        result
    }

    fn run(
        &mut self,
        dispatch: &Dispatch<QaicDevice>,
        command_ref: CommandRef,
    ) -> Result<Progress, RunError> {
        let executable: &Executable = &dispatch.executable;
        executable.takes(dispatch.bindings.len()).map_err(RunError::Program)?;
        for (number, span) in dispatch.bindings.iter().enumerate() {
            let binding = binding(span)?;
            self.ranges.push(AccessedRange::new(binding.view.whole(), executable.access(number)));
            self.bindings.push(binding);
        }
        if let Workgroups::Indirect(place) = &dispatch.workgroups {
            self.ranges.push(AccessedRange::new(part(place)?, Access::READ));
        }
        if self.has_to_wait(command_ref.queue, command_ref.phase, &self.ranges) {
            return Ok(Progress::Waiting);
        }
        let workgroups = match &dispatch.workgroups {
            Workgroups::Count(count) => *count,
            Workgroups::Indirect(place) => counts(part(place)?)?,
        };
        if workgroups.contains(&0) {
            return Ok(Progress::Done);
        }
        if executable.is_network() && workgroups != [1; 3] {
            let message =
                format!("a network runs as a whole, so its workgroups are 1 1 1, not {workgroups:?}");
            return Err(RunError::Program(Failure::new(Code::InvalidArgument, message)));
        }
        let Dispatch { workgroup_size, local_memory, .. } = *dispatch;
        let constants = &dispatch.constants;
        let call = ProgramCall { workgroups, workgroup_size, local_memory, constants };
        let callee = Callee { executable, function: dispatch.function };
        match self.networks.launch(&callee, &call, &mut self.bindings) {
            Ok(launched) => {
                self.launched(command_ref, launched);
                Ok(Progress::InFlight)
            }
            Err(Refusal::Busy) => Ok(Progress::Waiting),
            Err(Refusal::Full) => Ok(Progress::Full),
            Err(Refusal::Scarce(error)) => Ok(Progress::Scarce(error)),
            Err(Refusal::Failed(error)) => Err(error),
        }
    }

    /// A run is in flight.
    fn launched(&mut self, command_ref: CommandRef, launched: LaunchedRun) {
        self.runs += 1;
        self.in_flight += 1;
        let mut state = self.queues.state.lock();
        let queue = state.queue(command_ref.queue);
        for range in self.ranges.drain(..) {
            queue.hazards.add(self.runs, command_ref.phase, range);
        }
        queue.started(command_ref.phase.job).runs += 1;
        state.launched.push(RunInFlight { number: self.runs, command_ref, launched });
        drop(state);
        self.queues.completion.notify_one();
    }
}

fn binding(span: &Span<QaicDevice>) -> Result<Binding, RunError> {
    let memory = match &span.place {
        Place::Device(memory, offset) => Some((memory.clone(), *offset)),
        Place::Host(_) => None,
    };
    Ok(Binding { view: view(span)?, memory })
}

/// True if a wait has taken so long. The first look begins it.
fn is_over(wait: &mut Option<TimeLimit>, limit: Duration) -> bool {
    let now = Instant::now();
    wait.get_or_insert_with(|| TimeLimit::new(limit, now)).look(now).is_zero()
}

/// The bytes of a span, for as long as its memory lives.
fn view(span: &Span<QaicDevice>) -> Result<HostRange, RunError> {
    let found = match &span.place {
        Place::Device(memory, offset) => memory.view().slice(*offset, span.length),
        Place::Host(range) => range.slice(0, span.length),
    };
    found.ok_or_else(out_of_range)
}

/// The bytes of a span, for as long as it is borrowed.
fn part(span: &Span<QaicDevice>) -> Result<HostPart<'_>, RunError> {
    let found = match &span.place {
        Place::Device(memory, offset) => memory.view().part(*offset, span.length),
        Place::Host(range) => range.part(0, span.length),
    };
    found.ok_or_else(out_of_range)
}

/// The number of workgroups, which is read when the dispatch begins.
fn counts(place: HostPart<'_>) -> Result<[u32; 3], RunError> {
    let mut words = [[0; 4]; 3];
    done(place.read(words.as_flattened_mut()))?;
    Ok(words.map(u32::from_ne_bytes))
}

fn done(fitted: bool) -> Result<(), RunError> {
    fitted.then_some(()).ok_or_else(out_of_range)
}

fn out_of_range() -> RunError {
    let message = "a command reaches past the memory that it works on";
    RunError::Program(Failure::new(Code::OutOfRange, message))
}
