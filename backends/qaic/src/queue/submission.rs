// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The thread that begins what was submitted: transfers, and runs of networks.
//!
//! It goes round the queues, a command of each at a time, and sleeps when none can go on. What keeps a command waiting is a
//! run that it would be noticed to overtake, a network that has as many runs in flight as its ring takes, or sixteen
//! channels that are all busy: each ends with a run that is over, of which the completion thread tells.
//!
//! Everything that starts or stops a network for a dispatch is done here, so that no two of them meet. It talks to the
//! device's management processor then, and other queues wait for that; what is in flight goes on.

use super::{Begun, Flight, Landed, Origin, QUEUES, Queues};
use crate::device::QaicDevice;
use crate::executable::{Callee, Executable};
use crate::hazard::{Access, Phase, Reach};
use crate::kmd::Error;
use crate::launch::{Binding, Trouble};
use crate::networks::{Launched, Networks, Refusal, Settings};
use hal_backend::{Code, Command, Dispatch, Failure, HostPart, HostRange, Job, Place, Span, Workgroups};
use hal_kernel::clock;
use hal_qaic_abi::programs::ProgramCall;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long to sleep when a ring is full of what is not ours: at first, and at most.
const BACK_OFF: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));

/// A job whose commands begin.
struct Current {
    job: Job<QaicDevice>,
    phase: Phase,
    /// The next command.
    next: usize,
    /// Since when its next run finds a ring full that nothing of ours is in.
    full_since: Option<Instant>,
}

/// What became of a command.
enum Step {
    /// It is done.
    Done,
    /// It is in flight.
    Begun,
    /// It waits for a run.
    Waiting,
    /// It waits for a ring that other work, or work that has just ended, is in.
    Full,
    Failed(Trouble),
}

/// What the thread is to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Go round again.
    Again,
    /// Sleep until there is news after this, or so long.
    Sleep(u64, Option<Duration>),
    /// There is nothing more to do.
    End,
}

/// The submission thread's own.
pub(crate) struct Submissions {
    pub(super) queues: Arc<Queues>,
    pub(super) networks: Networks,
    settings: Settings,
    current: [Option<Current>; QUEUES],
    /// How many jobs of each queue have begun.
    jobs: [u64; QUEUES],
    /// How many runs have begun.
    runs: u64,
    in_flight: usize,
    landed: Vec<Landed>,
    bindings: Vec<Binding>,
    reaches: Vec<Reach>,
    pause: Duration,
    /// Whether the loss of the device was reported.
    told_loss: bool,
}

impl Submissions {
    pub(crate) fn new(queues: &Arc<Queues>, networks: Networks, settings: Settings) -> Self {
        Self {
            queues: queues.clone(),
            networks,
            settings,
            current: [const { None }; QUEUES],
            jobs: [0; QUEUES],
            runs: 0,
            in_flight: 0,
            landed: Vec::new(),
            bindings: Vec::new(),
            reaches: Vec::new(),
            pause: BACK_OFF.0,
            told_loss: false,
        }
    }

    /// What the thread does, until the device is dropped.
    pub(crate) fn serve(mut self) {
        loop {
            match self.step() {
                Next::Again => {}
                Next::Sleep(news, most) => {
                    let mut state = self.queues.state.lock();
                    if state.news == news {
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
        let news = self.take_landed();
        if self.is_lost() {
            // A lost device takes no more submissions.
            return if self.told_loss { Next::End } else { Next::Sleep(news, None) };
        }
        let mut next = Next::Sleep(news, None);
        for line in 0..QUEUES {
            match self.advance(line) {
                None => {}
                Some(Step::Full) => {
                    if matches!(next, Next::Sleep(..)) {
                        next = Next::Sleep(news, Some(self.pause));
                        self.pause = (self.pause * 2).min(BACK_OFF.1);
                    }
                }
                Some(Step::Waiting) => {}
                Some(Step::Done | Step::Begun | Step::Failed(_)) => {
                    self.pause = BACK_OFF.0;
                    next = Next::Again;
                }
            }
        }
        let state = self.queues.state.lock();
        let is_done =
            state.stopping && state.lines.iter().all(|line| line.waiting.is_empty() && line.begun.is_empty());
        if is_done { Next::End } else { next }
    }

    /// Takes back what runs that are over had, and stops the networks of those that will not end.
    fn take_landed(&mut self) -> u64 {
        let mut state = self.queues.state.lock();
        std::mem::swap(&mut state.landed, &mut self.landed);
        let (news, retired) = (state.news, std::mem::take(&mut state.retired));
        drop(state);
        for Landed { mut launched, broken } in self.landed.drain(..) {
            self.in_flight -= 1;
            let Some((error, run, origin)) = broken else {
                self.networks.give_back(launched.network, launched.slot);
                continue;
            };
            let error = self.networks.end(launched.network, &error);
            launched.end();
            drop(launched);
            let failure = self.queues.failure(Trouble::Device(error));
            self.queues.finish_run(&mut self.queues.state.lock(), run, &origin, Err(failure));
            self.queues.report(origin.line);
        }
        retired.into_iter().for_each(|executable| self.networks.retire(executable));
        news
    }

    /// Whether the device is gone. Then everything goes, and it is told when nothing is in flight any more.
    fn is_lost(&mut self) -> bool {
        let state = self.queues.state.lock();
        let Some(failure) = state.lost.clone() else { return false };
        // What is in flight comes back from the completion thread, unless that one has panicked.
        let is_coming_back = self.in_flight > 0 && !state.has_panicked;
        drop(state);
        if self.told_loss || is_coming_back {
            return true;
        }
        self.told_loss = true;
        self.networks.clear();
        self.current = [const { None }; QUEUES];
        self.queues.clear();
        self.queues.reports().lost(failure);
        true
    }

    /// Begins a queue's next command; nothing, if it has none.
    fn advance(&mut self, line: usize) -> Option<Step> {
        let mut current = match self.current(line).take() {
            Some(current) => current,
            None => self.next_job(line)?,
        };
        let step = if self.has_failed(line, &current) { None } else { self.begin(line, &mut current) };
        let Some(step) = step else {
            self.finish(line, current);
            return Some(Step::Done);
        };
        match step {
            Step::Done | Step::Begun => {
                current.next += 1;
                current.full_since = None;
            }
            Step::Waiting => {}
            Step::Full => {
                let since = *current.full_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= self.settings.timeout {
                    self.fail(line, &current, Trouble::Device(Error::Full));
                }
            }
            Step::Failed(ref trouble) => self.fail(line, &current, trouble.clone()),
        }
        *self.current(line) = Some(current);
        Some(step)
    }

    /// The job of a queue whose commands are beginning.
    fn current(&mut self, line: usize) -> &mut Option<Current> {
        #[expect(clippy::indexing_slicing, reason = "there is one for each queue")]
        &mut self.current[line]
    }

    fn next_job(&mut self, line: usize) -> Option<Current> {
        #[expect(clippy::indexing_slicing, reason = "there is one for each queue")]
        let number = &mut self.jobs[line];
        let mut state = self.queues.state.lock();
        let aborted = state.aborted.clone();
        let found = state.line(line);
        let job = found.waiting.pop_front()?;
        *number += 1;
        found.begun.push_back(Begun {
            number: *number,
            queue: job.queue,
            epoch: job.epoch,
            observer: job.observer.clone(),
            begin: clock(),
            runs: 0,
            job: None,
            failure: aborted,
        });
        Some(Current { job, phase: Phase { job: *number, barriers: 0 }, next: 0, full_since: None })
    }

    /// Whether nothing more of a job is to begin.
    fn has_failed(&self, line: usize, current: &Current) -> bool {
        let mut state = self.queues.state.lock();
        let aborted = state.aborted.clone();
        let begun = state.line(line).begun(current.phase.job);
        if begun.failure.is_none() {
            begun.failure = aborted;
        }
        begun.failure.is_some()
    }

    fn fail(&self, line: usize, current: &Current, trouble: Trouble) {
        let is_gone = matches!(trouble, Trouble::Device(Error::Gone));
        let failure = self.queues.failure(trouble);
        let mut state = self.queues.state.lock();
        if is_gone {
            self.queues.lose(&mut state);
            state.news += 1;
        }
        state.line(line).begun(current.phase.job).failure.get_or_insert(failure);
    }

    /// Everything of a job has begun that will.
    fn finish(&self, line: usize, current: Current) {
        let mut state = self.queues.state.lock();
        state.line(line).begun(current.phase.job).job = Some(current.job);
        drop(state);
        self.queues.report(line);
    }

    /// Begins the next command of a job; nothing, if all have begun.
    fn begin(&mut self, line: usize, current: &mut Current) -> Option<Step> {
        let Current { job, phase, next, .. } = current;
        let command = job.commands.get(*next)?;
        let begin = clock();
        let result = match command {
            Command::Fill { target, pattern } => part(target).and_then(|target| {
                let used = [Reach::new(target, Access::WRITE)];
                self.transfer(line, *phase, &used, || target.fill(pattern.bytes()))
            }),
            Command::Copy { source, target } => part(source).and_then(|source| {
                let target = part(target)?;
                let used = [Reach::new(source, Access::READ), Reach::new(target, Access::WRITE)];
                self.transfer(line, *phase, &used, || target.copy_from(source))
            }),
            Command::Update { source, target } => part(target).and_then(|target| {
                let used = [Reach::new(target, Access::WRITE)];
                self.transfer(line, *phase, &used, || target.copy_from(source.whole()))
            }),
            Command::Dispatch(dispatch) => {
                let observer = job.observer.clone();
                self.dispatch(dispatch, Origin { line, phase: *phase, command: *next, observer, begin })
            }
            Command::Barrier => {
                phase.barriers += 1;
                Ok(Step::Done)
            }
        };
        let step = result.unwrap_or_else(Step::Failed);
        if let (Step::Done, Some(observer)) = (&step, &job.observer) {
            observer.command(*next, begin, clock());
        }
        Some(step)
    }

    /// Does a transfer, which is a copy by this thread, unless it has to wait.
    fn transfer(
        &self,
        line: usize,
        phase: Phase,
        used: &[Reach],
        work: impl FnOnce() -> bool,
    ) -> Result<Step, Trouble> {
        if self.has_to_wait(line, phase, used) {
            return Ok(Step::Waiting);
        }
        done(work()).map(|()| Step::Done)
    }

    /// Whether a command that uses this would be noticed to overtake a run.
    fn has_to_wait(&self, line: usize, phase: Phase, used: &[Reach]) -> bool {
        let mut state = self.queues.state.lock();
        let hazards = &state.line(line).hazards;
        used.iter().any(|reach| hazards.hold(phase, reach))
    }

    /// Queues a run of a network, unless it has to wait.
    fn dispatch(&mut self, dispatch: &Dispatch<QaicDevice>, origin: Origin) -> Result<Step, Trouble> {
        let executable: &Executable = &dispatch.executable;
        executable.takes(dispatch.bindings.len()).map_err(Trouble::Program)?;
        self.bindings.clear();
        self.reaches.clear();
        for (number, span) in dispatch.bindings.iter().enumerate() {
            let binding = binding(span)?;
            self.reaches.push(Reach::new(binding.view.whole(), executable.access(number)));
            self.bindings.push(binding);
        }
        if let Workgroups::Indirect(place) = &dispatch.workgroups {
            self.reaches.push(Reach::new(part(place)?, Access::READ));
        }
        if self.has_to_wait(origin.line, origin.phase, &self.reaches) {
            return Ok(Step::Waiting);
        }
        let workgroups = match &dispatch.workgroups {
            Workgroups::Count(count) => *count,
            Workgroups::Indirect(place) => counts(part(place)?)?,
        };
        if workgroups.contains(&0) {
            return Ok(Step::Done);
        }
        if executable.is_network() && workgroups != [1; 3] {
            let message =
                format!("a network runs as a whole, so its workgroups are 1 1 1, not {workgroups:?}");
            return Err(Trouble::Program(Failure::new(Code::InvalidArgument, message)));
        }
        let Dispatch { workgroup_size, local_memory, .. } = *dispatch;
        let constants = &dispatch.constants;
        let call = ProgramCall { workgroups, workgroup_size, local_memory, constants };
        let callee = Callee { executable, function: dispatch.function };
        match self.networks.launch(&callee, &call, &mut self.bindings) {
            Ok(launched) => {
                self.launched(origin, launched);
                Ok(Step::Begun)
            }
            Err(Refusal::Busy) => Ok(Step::Waiting),
            Err(Refusal::Full) => Ok(Step::Full),
            Err(Refusal::Failed(trouble)) => Err(trouble),
        }
    }

    /// A run is in flight.
    fn launched(&mut self, origin: Origin, launched: Launched) {
        self.runs += 1;
        self.in_flight += 1;
        let mut state = self.queues.state.lock();
        let line = state.line(origin.line);
        for reach in self.reaches.drain(..) {
            line.hazards.add(self.runs, origin.phase, reach);
        }
        line.begun(origin.phase.job).runs += 1;
        state.launched.push(Flight { number: self.runs, origin, launched });
        drop(state);
        self.queues.completion.notify_one();
    }
}

fn binding(span: &Span<QaicDevice>) -> Result<Binding, Trouble> {
    let memory = match &span.place {
        Place::Device(memory, offset) => Some((memory.clone(), *offset)),
        Place::Host(_) => None,
    };
    Ok(Binding { view: view(span)?, memory })
}

/// The bytes of a span, for as long as its memory lives.
fn view(span: &Span<QaicDevice>) -> Result<HostRange, Trouble> {
    let found = match &span.place {
        Place::Device(memory, offset) => memory.view().slice(*offset, span.length),
        Place::Host(range) => range.slice(0, span.length),
    };
    found.ok_or_else(misfit)
}

/// The bytes of a span, for as long as it is borrowed.
fn part(span: &Span<QaicDevice>) -> Result<HostPart<'_>, Trouble> {
    let found = match &span.place {
        Place::Device(memory, offset) => memory.view().part(*offset, span.length),
        Place::Host(range) => range.part(0, span.length),
    };
    found.ok_or_else(misfit)
}

/// The number of workgroups, which is read when the dispatch begins.
fn counts(place: HostPart<'_>) -> Result<[u32; 3], Trouble> {
    let mut words = [[0; 4]; 3];
    done(place.read(words.as_flattened_mut()))?;
    Ok(words.map(u32::from_ne_bytes))
}

fn done(fitted: bool) -> Result<(), Trouble> {
    fitted.then_some(()).ok_or_else(misfit)
}

fn misfit() -> Trouble {
    let message = "a command reaches past the memory that it works on";
    Trouble::Program(Failure::new(Code::OutOfRange, message))
}
