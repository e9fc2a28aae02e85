// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Putting a job on its stream, in one go or in several.
//!
//! Most jobs go on the stream as they are submitted. Four things stop one in the middle, until the stream has come so
//! far:
//!
//! | what | until | then the host |
//! |---|---|---|
//! | bytes that CUDA does not know ([`Pause::Host`]) | all before has ended | copies them to pinned memory |
//! | the result of a command for such bytes ([`Pause::Back`]) | the command has ended | copies it back |
//! | the number of workgroups in memory ([`Pause::Counts`]) | it is in memory of the host | reads it |
//! | a job of many commands ([`Pause::Room`]) | there is room | goes on |
//!
//! For that the stream writes a *ticket* into the queue's progress word, and whoever polls goes on. Jobs behind one
//! that pauses wait in the backlog.
//!
//! # Failure
//!
//! A command that CUDA refuses fails its job; the rest of the job is left out, and its end is put on the stream as
//! usual, so that who waits for it goes on. An error that stays, or one of the job's end, is the end of the device.

use super::graphs::{Graphs, Prepared, key};
use super::staging::{Staged, Stager};
use super::timing::Timing;
use super::{Queue, Queues};
use crate::device::NvidiaDevice;
use crate::executable::Kernel;
use crate::library::graph::GraphBuilder;
use crate::library::{CudaError, Current, Issue, Part};
use hal_backend::{
    Code, Command, Commands, Dispatch, Failure, HostRange, Job, Pattern, Place, Span, Workgroups,
};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// How many operations a stream has at most; CUDA blocks the caller at about a thousand launches.
pub(super) const MOST_PENDING: u64 = 500;

/// A job that has paused for room goes on when so few are left.
const FEW_PENDING: u64 = MOST_PENDING / 2;

/// A long job has a ticket behind so many operations.
const BETWEEN_TICKETS: u64 = 64;

/// The most bytes of the card's memory that a copy goes through.
const MOST_BETWEEN: usize = 64 << 20;

/// Why a job has stopped in the middle.
pub(super) enum Pause {
    Room,
    Host { ticket: u64 },
    Counts { ticket: u64, counts: HostRange },
    Back { ticket: u64, copies: HostSpans },
}

/// Ranges of the host, each with its bytes in pinned memory.
type HostSpans = SmallVec<[(Staged, HostRange); 2]>;

/// A job that is not wholly on its stream.
pub(super) struct OpenJob {
    pub(super) job: Job<NvidiaDevice>,
    next: usize,
    pause: Option<Pause>,
    /// Everything before the next command has ended, and the host may be read.
    is_settled: bool,
    counts: Option<[u32; 3]>,
    /// Pinned memory that the job's operations use.
    staged: Vec<HostRange>,
    timing: Option<Timing>,
    failure: Option<Failure>,
}

impl OpenJob {
    /// The commands, while the rest of the job changes.
    fn take_commands(&mut self) -> Commands<NvidiaDevice> {
        std::mem::replace(&mut self.job.commands, Commands::Own(SmallVec::new()))
    }
}

/// A job that is wholly on its stream.
pub(super) struct SealedJob {
    pub(super) job: Job<NvidiaDevice>,
    /// Operations of the stream up to its end.
    issued: u64,
    /// Kept until the job has ended.
    _staged: Vec<HostRange>,
    pub(super) timing: Option<Timing>,
    pub(super) failure: Option<Failure>,
}

/// What one thread at a time does with a queue.
#[derive(Default)]
pub(super) struct QueueState {
    pub(super) sealed: VecDeque<SealedJob>,
    pub(super) open: Option<OpenJob>,
    pub(super) backlog: VecDeque<Job<NvidiaDevice>>,
    /// Operations that were put on the stream, and that have ended.
    issued: u64,
    retired: u64,
    /// The last ticket, and what was on the stream at those that were not seen yet.
    ticket: u64,
    tickets: VecDeque<(u64, u64)>,
    /// What was on the stream at the last ticket or end of a job.
    marked: u64,
    stager: Stager,
    pub(super) graphs: Graphs,
    pub(super) aborted: Option<Failure>,
}

impl QueueState {
    /// True if a job is not wholly on the stream.
    pub(super) fn is_paused(&self) -> bool {
        self.open.is_some() || !self.backlog.is_empty()
    }

    fn pending(&self) -> u64 {
        self.issued - self.retired
    }

    /// True if a job may begin. Finds out what has ended if the stream seems to be full.
    pub(super) fn has_room(&mut self, queue: &Queue) -> bool {
        if self.pending() >= MOST_PENDING {
            self.retire(queue);
        }
        self.pending() < MOST_PENDING
    }

    /// Counts what has ended, by the queue's two words.
    pub(super) fn retire(&mut self, queue: &Queue) {
        let progress = queue.progress.get();
        while let Some((_, issued)) = self.tickets.front().filter(|(ticket, _)| *ticket <= progress) {
            self.retired = self.retired.max(*issued);
            self.tickets.pop_front();
        }
        let completed = queue.completed.get();
        let ended = self.sealed.partition_point(|sealed| sealed.job.epoch <= completed);
        if let Some(last) = ended.checked_sub(1).and_then(|last| self.sealed.get(last)) {
            self.retired = self.retired.max(last.issued);
        }
    }

    fn is_over(&self, queue: &Queue, pause: &Pause) -> bool {
        match pause {
            Pause::Room => self.pending() <= FEW_PENDING,
            Pause::Host { ticket } | Pause::Counts { ticket, .. } | Pause::Back { ticket, .. } => {
                queue.progress.get() >= *ticket
            }
        }
    }
}

/// Whether a command is on the stream.
enum Step {
    Done,
    Pause(Pause),
}

/// Why a command is not: the job's failure, or the device's.
enum StepError {
    Job(Failure),
    Cuda(CudaError),
}

impl From<CudaError> for StepError {
    fn from(error: CudaError) -> Self {
        Self::Cuda(error)
    }
}

impl From<Failure> for StepError {
    fn from(failure: Failure) -> Self {
        Self::Job(failure)
    }
}

/// One queue at work: everything that an operation needs.
pub(super) struct Encoder<'a> {
    pub(super) queues: &'a Queues,
    pub(super) queue: &'a Queue,
    pub(super) current: &'a Current<'a>,
    pub(super) state: &'a mut QueueState,
}

impl Encoder<'_> {
    /// Begins a job.
    pub(super) fn begin(&mut self, job: Job<NvidiaDevice>) -> Result<(), CudaError> {
        let mut open = OpenJob {
            next: 0,
            pause: None,
            is_settled: false,
            counts: None,
            staged: Vec::new(),
            timing: None,
            failure: None,
            job,
        };
        self.queue.begin();
        let begun = self.begin_waits(&mut open);
        self.fail_job(&mut open, begun.map_err(StepError::from))?;
        let commands = open.take_commands();
        let is_graph = self.launch_graph(&mut open, &commands);
        open.job.commands = commands;
        if is_graph? { self.seal(open) } else { self.advance(open) }
    }

    /// Puts a whole job on the stream, if there is a graph of its commands.
    fn launch_graph(
        &mut self,
        open: &mut OpenJob,
        commands: &[Command<NvidiaDevice>],
    ) -> Result<bool, CudaError> {
        let is_stopped = open.failure.is_some() || self.state.aborted.is_some();
        // The times of single commands are not those of a graph.
        if is_stopped || open.timing.is_some() {
            return Ok(false);
        }
        let Some((recording, key)) = open.job.recording.clone().zip(key(commands)) else { return Ok(false) };
        let mut graphs = std::mem::take(&mut self.state.graphs);
        let launched = match graphs.execute(&recording, key, open.job.epoch, self.queue.completed.get()) {
            Some((prepared, is_due)) => self.launch_prepared(open, commands, prepared, is_due),
            None => Ok(false),
        };
        self.state.graphs = graphs;
        launched
    }

    fn launch_prepared(
        &mut self,
        open: &mut OpenJob,
        commands: &[Command<NvidiaDevice>],
        prepared: &mut Prepared,
        is_due: bool,
    ) -> Result<bool, CudaError> {
        if is_due {
            *prepared = match self.make_graph(open, commands) {
                Ok(prepared) => prepared,
                Err(StepError::Cuda(error)) if error.is_loss() => return Err(error),
                Err(_) => Prepared::Refused,
            };
        }
        let Prepared::Graph(graph, _) = prepared else { return Ok(false) };
        self.state.issued += 1;
        let launched = self.queue.stream.launch_graph(self.current, graph);
        self.fail_job(open, launched.map_err(StepError::from))?;
        Ok(true)
    }

    fn make_graph(
        &mut self,
        open: &mut OpenJob,
        commands: &[Command<NvidiaDevice>],
    ) -> Result<Prepared, StepError> {
        let mut graph = GraphBuilder::new(self.current)?;
        for command in commands {
            if matches!(command, Command::Barrier) {
                graph.barrier(self.current)?;
            } else {
                self.encode(&mut graph, open, command, &mut HostSpans::new())?;
            }
        }
        Ok(Prepared::Graph(graph.finish(self.current)?, std::mem::take(&mut open.staged)))
    }

    fn begin_waits(&mut self, open: &mut OpenJob) -> Result<(), CudaError> {
        if self.queues.pool.wait_on(self.current, &self.queue.stream)? {
            self.state.issued += 1;
        }
        for wait in &open.job.waits {
            if self.wait(wait.point)? {
                self.state.issued += 1;
            }
        }
        if let Some(observer) = &open.job.observer {
            let timing = Timing::begin(self.current, &self.queue.stream, &self.queues.clock, observer)?;
            self.state.issued += 1;
            open.timing = Some(timing);
        }
        Ok(())
    }

    /// Goes on with everything that has paused, as far as possible.
    pub(super) fn resume(&mut self) -> Result<(), CudaError> {
        if let Some(open) = self.state.open.take() {
            self.advance(open)?;
        }
        while self.state.open.is_none() && self.state.has_room(self.queue) {
            let Some(job) = self.state.backlog.pop_front() else { break };
            self.begin(job)?;
        }
        Ok(())
    }

    /// Puts commands on the stream, up to the job's end or the next pause.
    fn advance(&mut self, mut open: OpenJob) -> Result<(), CudaError> {
        let commands = open.take_commands();
        let pause = self.run(&mut open, &commands);
        open.job.commands = commands;
        open.pause = pause?;
        if open.pause.is_none() {
            return self.seal(open);
        }
        self.state.open = Some(open);
        Ok(())
    }

    fn run(
        &mut self,
        open: &mut OpenJob,
        commands: &[Command<NvidiaDevice>],
    ) -> Result<Option<Pause>, CudaError> {
        loop {
            if let Some(aborted) = &self.state.aborted {
                open.failure.get_or_insert_with(|| aborted.clone());
            }
            let Some(command) = commands.get(open.next).filter(|_| open.failure.is_none()) else {
                return Ok(None);
            };
            let step = match open.pause.take() {
                Some(pause) if !self.state.is_over(self.queue, &pause) => return Ok(Some(pause)),
                Some(pause) => self.unpause(open, pause),
                None => self.step(open, command),
            };
            match step {
                Ok(Step::Done) => {}
                Ok(Step::Pause(pause)) => open.pause = Some(pause),
                Err(error) => self.fail_job(open, Err(error))?,
            }
        }
    }

    /// Fails the job with an error that is not the device's end.
    fn fail_job(&self, open: &mut OpenJob, outcome: Result<(), StepError>) -> Result<(), CudaError> {
        let failure = match outcome {
            Ok(()) => return Ok(()),
            Err(StepError::Cuda(error)) if error.is_loss() => return Err(error),
            Err(StepError::Cuda(error)) => error.failure(format_args!("command {} of a job", open.next)),
            Err(StepError::Job(failure)) => failure,
        };
        open.failure.get_or_insert(failure);
        Ok(())
    }

    /// Does what the host had to do in a pause that is over.
    fn unpause(&mut self, open: &mut OpenJob, pause: Pause) -> Result<Step, StepError> {
        match pause {
            Pause::Room => {}
            Pause::Host { .. } => open.is_settled = true,
            Pause::Counts { counts, .. } => open.counts = Some(read_counts(&counts)?),
            Pause::Back { copies, .. } => {
                copies.iter().try_for_each(|(staged, host)| write_back(staged, host))?;
                Self::done(open);
            }
        }
        Ok(Step::Done)
    }

    fn done(open: &mut OpenJob) {
        open.next += 1;
        open.is_settled = false;
        open.counts = None;
    }

    /// Puts the next command on the stream.
    fn step(&mut self, open: &mut OpenJob, command: &Command<NvidiaDevice>) -> Result<Step, StepError> {
        if self.state.pending() >= MOST_PENDING {
            self.state.retire(self.queue);
            if self.state.pending() >= MOST_PENDING {
                return Ok(Step::Pause(Pause::Room));
            }
        }
        if has_host_span(command) && !open.is_settled {
            return Ok(Step::Pause(Pause::Host { ticket: self.ticket()? }));
        }
        if let Command::Dispatch(dispatch) = command
            && let Workgroups::Indirect(span) = &dispatch.workgroups
            && open.counts.is_none()
        {
            return self.request_counts(open, span);
        }
        let mut spans = HostSpans::new();
        let queue = self.queue;
        self.encode(&mut &queue.stream, open, command, &mut spans)?;
        if let Some(timing) = &mut open.timing {
            timing.command(self.current, &self.queue.stream, open.next)?;
            self.state.issued += 1;
        }
        if !spans.is_empty() {
            return Ok(Step::Pause(Pause::Back { ticket: self.ticket()?, copies: spans }));
        }
        Self::done(open);
        if self.state.issued - self.state.marked >= BETWEEN_TICKETS {
            self.ticket()?;
        }
        Ok(Step::Done)
    }

    /// Has the stream write the next ticket when it comes here.
    fn ticket(&mut self) -> Result<u64, CudaError> {
        let ticket = self.state.ticket + 1;
        self.queue.stream.write(self.current, &self.queue.progress, ticket)?;
        self.state.ticket = ticket;
        self.state.issued += 1;
        self.state.marked = self.state.issued;
        self.state.tickets.push_back((ticket, self.state.issued));
        Ok(ticket)
    }

    /// Reads the number of workgroups, or has it copied to where it can be read.
    fn request_counts(&mut self, open: &mut OpenJob, span: &Span<NvidiaDevice>) -> Result<Step, StepError> {
        let (memory, offset) = match &span.place {
            Place::Host(range) => {
                open.counts = Some(read_counts(range)?);
                return Ok(Step::Done);
            }
            Place::Device(memory, offset) => (memory, *offset),
        };
        let counts = match memory.host_view() {
            Some(view) => view.slice(offset, COUNTS).ok_or_else(out_of_range)?,
            None => {
                let from = memory.whole().part(offset, COUNTS).ok_or_else(out_of_range)?;
                let staged = self.stage(open, COUNTS)?;
                self.queue.stream.copy(self.current, staged.card, from)?;
                self.state.issued += 1;
                staged.host
            }
        };
        Ok(Step::Pause(Pause::Counts { ticket: self.ticket()?, counts }))
    }

    /// Pinned memory that exists as long as the job.
    fn stage(&mut self, open: &mut OpenJob, length: u64) -> Result<Staged, CudaError> {
        let staged = self.state.stager.take(&self.queues.pinned, length)?;
        open.staged.push(staged.host.clone());
        Ok(staged)
    }

    /// The bytes of a span as the card sees them. Those of the host are copied to pinned memory, and `back` says that
    /// they are copied back.
    fn part(
        &mut self,
        open: &mut OpenJob,
        span: &Span<NvidiaDevice>,
        back: Option<&mut HostSpans>,
    ) -> Result<Part, StepError> {
        match &span.place {
            Place::Device(memory, offset) => {
                Ok(memory.whole().part(*offset, span.length).ok_or_else(out_of_range)?)
            }
            Place::Host(range) => {
                let range = range.slice(0, span.length).ok_or_else(out_of_range)?;
                let staged = self.stage(open, span.length)?;
                done(staged.host.copy_from(&range))?;
                let part = staged.card;
                if let Some(back) = back {
                    back.push((staged, range));
                }
                Ok(part)
            }
        }
    }

    fn encode<I: Issue>(
        &mut self,
        on: &mut I,
        open: &mut OpenJob,
        command: &Command<NvidiaDevice>,
        back: &mut HostSpans,
    ) -> Result<(), StepError> {
        match command {
            Command::Fill { target, pattern } => {
                let to = self.part(open, target, Some(back))?;
                self.fill(on, to, pattern)
            }
            Command::Copy { source, target } => {
                let from = self.part(open, source, None)?;
                let to = self.part(open, target, Some(back))?;
                self.copy(on, (to, target), (from, Some(source)))
            }
            Command::Update { source, target } => {
                let staged = self.stage(open, source.length())?;
                done(staged.host.copy_from(source))?;
                let to = self.part(open, target, Some(back))?;
                self.copy(on, (to, target), (staged.card, None))
            }
            Command::Dispatch(dispatch) => self.dispatch(on, open, dispatch, back),
            // Everything on a stream is in order.
            Command::Barrier => Ok(()),
        }
    }

    fn fill<I: Issue>(&mut self, on: &mut I, to: Part, pattern: &Pattern) -> Result<(), StepError> {
        if to.length() > 0 {
            self.state.issued += I::OPERATIONS;
            self.queues.fill.fill(self.current, on, to, pattern)?;
        }
        Ok(())
    }

    /// Copies; a source without a span is pinned memory. Where both overlap the bytes go through other memory, and so
    /// do those from the host to the host: CUDA blocks the caller of such a copy until the stream has done it. That is
    /// on the stream, and in no graph.
    fn copy<I: Issue>(
        &mut self,
        on: &mut I,
        (to, target): (Part, &Span<NvidiaDevice>),
        (from, source): (Part, Option<&Span<NvidiaDevice>>),
    ) -> Result<(), StepError> {
        if to == from || to.length() == 0 {
            return Ok(());
        }
        let is_within_host = is_host(target) && source.is_none_or(is_host);
        if !to.overlaps(from) && !is_within_host {
            return self.copy_pieces(on, (to, Some(target)), (from, source));
        }
        let stream = &self.queue.stream;
        let between = self.queues.pool.allocate_on(self.current, stream, to.length().min(MOST_BETWEEN))?;
        let copied = self.copy_through(on, between, (to, target), (from, source));
        self.state.issued += 2;
        self.queues.pool.free_on(self.current, stream, between)?;
        copied
    }

    /// Copies through memory of the card that may be shorter, from the end where the target overlaps with what is still
    /// to be read behind it.
    fn copy_through<I: Issue>(
        &mut self,
        on: &mut I,
        between: Part,
        (to, target): (Part, &Span<NvidiaDevice>),
        (from, source): (Part, Option<&Span<NvidiaDevice>>),
    ) -> Result<(), StepError> {
        let (length, most) = (to.length() as u64, between.length() as u64);
        let count = length.div_ceil(most);
        for number in 0..count {
            let number = if to.address() > from.address() { count - 1 - number } else { number };
            let (offset, length) = (number * most, most.min(length - number * most));
            let piece = |part: Part, offset| part.part(offset, length).ok_or_else(out_of_range);
            let (to, between, from) = (piece(to, offset)?, piece(between, 0)?, piece(from, offset)?);
            self.copy_pieces(on, (between, None), (from, source))?;
            self.copy_pieces(on, (to, Some(target)), (between, None))?;
        }
        Ok(())
    }

    /// Copies in pieces as CUDA takes them.
    fn copy_pieces<I: Issue>(
        &mut self,
        on: &mut I,
        (mut to, target): (Part, Option<&Span<NvidiaDevice>>),
        (mut from, source): (Part, Option<&Span<NvidiaDevice>>),
    ) -> Result<(), StepError> {
        while to.length() > 0 {
            let fits = copyable(target, to).min(copyable(source, from));
            let length = fits.min(to.length()).max(1) as u64;
            let (Some(to_piece), Some(from_piece)) = (to.part(0, length), from.part(0, length)) else {
                return Err(out_of_range().into());
            };
            self.state.issued += I::OPERATIONS;
            on.copy(self.current, to_piece, from_piece)?;
            let rest = |part: Part| part.part(length, part.length() as u64 - length).ok_or_else(out_of_range);
            (to, from) = (rest(to)?, rest(from)?);
        }
        Ok(())
    }

    fn dispatch<I: Issue>(
        &mut self,
        on: &mut I,
        open: &mut OpenJob,
        dispatch: &Dispatch<NvidiaDevice>,
        back: &mut HostSpans,
    ) -> Result<(), StepError> {
        let kernel: &Kernel = dispatch.executable.kernel(dispatch.function)?;
        let grid = match &dispatch.workgroups {
            Workgroups::Count(grid) => *grid,
            // Without workgroups there would be nothing to do; `step` has read them before.
            Workgroups::Indirect(_) => open.counts.unwrap_or_default(),
        };
        let Some(shape) = kernel.shape(grid, dispatch.local_memory)? else { return Ok(()) };
        let mut parameters = SmallVec::<[u8; 128]>::new();
        for binding in dispatch.bindings.iter().take(kernel.bindings) {
            let part = self.part(open, binding, Some(back))?;
            parameters.extend_from_slice(&part.address().to_le_bytes());
        }
        let words = kernel.words(dispatch.bindings.len());
        for constant in dispatch.constants.iter().take(words) {
            parameters.extend_from_slice(&constant.to_le_bytes());
        }
        self.state.issued += I::OPERATIONS;
        on.launch(self.current, &kernel.function, &shape, &parameters)?;
        Ok(())
    }

    /// Puts the end of a job on the stream. What the job uses is kept also where that fails.
    fn seal(&mut self, mut open: OpenJob) -> Result<(), CudaError> {
        let outcome = self.put_end(&mut open);
        let OpenJob { job, staged, timing, failure, .. } = open;
        let sealed = SealedJob { job, issued: self.state.issued, _staged: staged, timing, failure };
        self.state.sealed.push_back(sealed);
        outcome
    }

    fn put_end(&mut self, open: &mut OpenJob) -> Result<(), CudaError> {
        let (stream, epoch) = (&self.queue.stream, open.job.epoch);
        if let Some(timing) = &mut open.timing {
            timing.end(self.current, stream)?;
            self.state.issued += 1;
        }
        self.queue.complete(self.current, epoch)?;
        self.state.issued += 1;
        self.state.marked = self.state.issued;
        Ok(())
    }
}

/// The bytes of a number of workgroups.
const COUNTS: u64 = 12;

fn read_counts(range: &HostRange) -> Result<[u32; 3], Failure> {
    let mut words = [[0; 4]; 3];
    done(range.read(0, words.as_flattened_mut()))?;
    Ok(words.map(u32::from_le_bytes))
}

/// Copies a result back, unless it is what is there already: memory that is only read may not be written.
fn write_back(staged: &Staged, host: &HostRange) -> Result<(), Failure> {
    let mut is_same = true;
    done(host.whole().each_with::<64>(staged.host.whole(), |there, here| is_same &= there == here))?;
    if is_same { Ok(()) } else { done(host.copy_from(&staged.host)) }
}

/// How many bytes of a part CUDA copies in one call.
fn copyable(span: Option<&Span<NvidiaDevice>>, part: Part) -> usize {
    match span.map(|span| &span.place) {
        Some(Place::Device(memory, _)) => memory.copyable(part),
        Some(Place::Host(_)) | None => part.length(),
    }
}

/// True if the bytes of a span are in memory of the host as a stream accesses them.
pub(super) fn is_host(span: &Span<NvidiaDevice>) -> bool {
    match &span.place {
        Place::Device(memory, _) => memory.is_host(),
        Place::Host(_) => true,
    }
}

fn has_host_span(command: &Command<NvidiaDevice>) -> bool {
    let is_host = |span: &Span<NvidiaDevice>| matches!(span.place, Place::Host(_));
    match command {
        Command::Fill { target, .. } | Command::Update { target, .. } => is_host(target),
        Command::Copy { source, target } => is_host(source) || is_host(target),
        Command::Dispatch(dispatch) => {
            let counts = matches!(&dispatch.workgroups, Workgroups::Indirect(span) if is_host(span));
            counts || dispatch.bindings.iter().any(is_host)
        }
        Command::Barrier => false,
    }
}

fn done(fitted: bool) -> Result<(), Failure> {
    fitted.then_some(()).ok_or_else(out_of_range)
}

fn out_of_range() -> Failure {
    Failure::new(Code::OutOfRange, "a command accesses bytes beyond its memory")
}
