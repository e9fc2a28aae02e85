// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The queues of a device: a stream each, and two words of pinned memory that the stream writes.
//!
//! A job is put on its stream by the thread that submits it ([`encode`]); its last operation writes its epoch into the
//! queue's completion word. [`Queues::poll`] reads the words, releases what has ended and reports it. Between the
//! caller and CUDA there is no thread, and no host function of a stream.
//!
//! # Long jobs and faults
//!
//! After a fault no stream writes a word any more. So a queue whose word has not moved for [`LONG`] gets a thread that
//! sleeps in CUDA until the stream has done what is on it ([`watcher`]): that sees the end of a long job at once, and
//! an error. The error belongs to the context and stays, so it is the loss of the device. A second thread goes on with
//! jobs that have paused, also while one that reports is blocked inside CUDA.
//!
//! # Locks
//!
//! `state` of a queue is held while operations are put on its stream, and never while something is reported or dropped.
//! `marks` is taken inside `state`, of the same queue or of another one.
//! `reporting` makes one thread at a time report the completions of a queue, in order; another leaves them to it.

mod encode;
mod graphs;
mod order;
mod staging;
mod timing;
mod watcher;

use crate::device::NvidiaDevice;
use crate::executable::Limits;
use crate::fill::FillKernel;
use crate::library::memory::{Pool, Word};
use crate::library::stream::Stream;
use crate::library::{Context, CudaError, Current};
use crate::memory::PinnedCache;
use crate::options::Options;
use encode::{Encoder, QueueState, SealedJob};
use hal_backend::{Command, Failure, Job, Origin, Rejected, Reporter, TimeLimit};
use order::Marks;
pub(crate) use order::WaitKind;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use timing::Clock;
pub(crate) use watcher::Watcher;
use watcher::{Feed, Watch};

/// How long a queue's word may stand still before a thread sleeps until it moves.
const LONG: Duration = Duration::from_micros(100);

/// How long the end of a device waits for a stream that has not come to its end.
const SOON: Duration = Duration::from_secs(2);

/// How long it waits for one that has, and is idle as soon as the system lets it.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a queue of a lost device writes in place of an epoch: at least as high as each, as CUDA compares.
const END: u64 = u64::MAX >> 1;

/// How many jobs wait behind one that has paused.
const BACKLOG: usize = 64;

/// One queue.
struct Queue {
    stream: Stream,
    /// The epoch of the last job that has ended.
    completed: Word,
    /// The last ticket that the stream has come to.
    progress: Word,
    /// The epoch of the last job that is wholly on the stream.
    sealed: AtomicU64,
    /// The completions that were taken to be reported.
    taken: AtomicU64,
    is_paused: AtomicBool,
    /// Held while a job's end is put on the stream, and while another queue marks it.
    marks: Mutex<Marks>,
    state: Mutex<QueueState>,
    reporting: Mutex<()>,
}

impl Queue {
    fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Acquire)
    }

    /// True if there is something to take, or to go on with.
    fn has_moved(&self) -> bool {
        self.is_paused() || self.completed.get() != self.taken.load(Ordering::Acquire)
    }

    /// True if the stream has come to the end of the last job, or of a lost device.
    fn is_at_end(&self) -> bool {
        self.completed.get() >= self.sealed.load(Ordering::Acquire)
    }

    /// True if a job on the stream has not been taken.
    fn is_busy(&self) -> bool {
        self.is_paused() || self.sealed.load(Ordering::Acquire) != self.taken.load(Ordering::Acquire)
    }
}

/// The queues of a device.
pub(crate) struct Queues {
    queues: Box<[Queue]>,
    waits: WaitKind,
    watch: Watch,
    feed: Feed,
    reporter: Reporter,
    lost: OnceLock<Failure>,
    clock: Clock,
    /// When a word moved last, by the clock.
    moved: AtomicU64,
    fill: FillKernel,
    limits: Limits,
    pinned: Arc<PinnedCache>,
    pool: Arc<Pool>,
    context: Arc<Context>,
}

impl Queues {
    pub(crate) fn new(
        context: &Arc<Context>,
        options: &Options,
        limits: Limits,
        pool: Arc<Pool>,
        pinned: Arc<PinnedCache>,
    ) -> Result<Arc<Self>, Failure> {
        let failure = |error: CudaError| error.failure("making the queues of a device");
        let current = context.enter().map_err(failure)?;
        let mut words = Word::new(&current, 2 * options.streams).map_err(failure)?;
        let mut queues = Vec::new();
        while let (Some(progress), Some(completed)) = (words.pop(), words.pop()) {
            queues.push(Queue {
                stream: Stream::new(&current).map_err(failure)?,
                completed,
                progress,
                sealed: AtomicU64::new(0),
                taken: AtomicU64::new(0),
                is_paused: AtomicBool::new(false),
                marks: Mutex::default(),
                state: Mutex::default(),
                reporting: Mutex::default(),
            });
        }
        Ok(Arc::new(Self {
            queues: queues.into_boxed_slice(),
            waits: options.waits,
            watch: Watch::default(),
            feed: Feed::default(),
            reporter: Reporter::default(),
            lost: OnceLock::new(),
            clock: Clock::new(&current).map_err(failure)?,
            moved: AtomicU64::new(0),
            fill: FillKernel::load(&current)?,
            limits,
            pinned,
            pool,
            context: context.clone(),
        }))
    }

    pub(crate) fn reporter(&self) -> &Reporter {
        &self.reporter
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock.now()
    }

    fn queue(&self, number: usize) -> &Queue {
        #[expect(clippy::indexing_slicing, reason = "the engine names queues that the device has")]
        &self.queues[number]
    }

    /// Takes a job: puts it on its stream, or behind one that has paused.
    pub(crate) fn submit(&self, job: Job<NvidiaDevice>) -> Result<(), Rejected<NvidiaDevice>> {
        check(&job).map_err(Rejected::Failed)?;
        let queue = self.queue(job.queue.index());
        let mut state = queue.state.lock();
        if let Some(failure) = self.lost.get() {
            return Err(Rejected::Lost(failure.clone()));
        }
        if state.is_paused() {
            if state.backlog.len() >= BACKLOG {
                return Err(Rejected::Full(Box::new(job)));
            }
            state.backlog.push_back(job);
            return Ok(());
        }
        if !state.has_room(queue) {
            return Err(Rejected::Full(Box::new(job)));
        }
        let begun = self.with_encoder(queue, &mut state, |encoder| encoder.begin(job));
        drop(state);
        begun.map_err(|error| Rejected::Lost(self.lose_quietly(&error)))
    }

    fn with_encoder(
        &self,
        queue: &Queue,
        state: &mut QueueState,
        act: impl FnOnce(&mut Encoder<'_>) -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        let entered = self.context.enter();
        let outcome =
            entered.and_then(|current| act(&mut Encoder { queues: self, queue, current: &current, state }));
        if let Err(error) = &outcome {
            // Under the lock: nothing gets behind a job that is not wholly on the stream, and waits for it in vain.
            self.mark_lost(error);
        }
        queue.is_paused.store(state.is_paused(), Ordering::Release);
        if state.is_paused() {
            self.feed.request();
        }
        outcome
    }

    /// Goes on with what has paused, as far as possible.
    fn go_on(&self, queue: &Queue, state: &mut QueueState) -> Result<(), CudaError> {
        if !state.is_paused() || self.lost.get().is_some() {
            return Ok(());
        }
        state.retire(queue);
        self.with_encoder(queue, state, |encoder| encoder.resume())
    }

    /// Reports what has ended, and goes on with what has paused.
    pub(crate) fn poll(&self) {
        if self.lost.get().is_some() {
            return;
        }
        let mut has_moved = false;
        for queue in &self.queues {
            if queue.has_moved() {
                has_moved |= self.attend(queue);
            }
        }
        if has_moved {
            self.moved.store(self.now(), Ordering::Relaxed);
        } else {
            self.watch_if_long();
        }
    }

    /// Reports and goes on, for one queue. Returns whether something has ended.
    fn attend(&self, queue: &Queue) -> bool {
        let Some(_reporting) = queue.reporting.try_lock() else { return false };
        let mut state = queue.state.lock();
        state.retire(queue);
        let ended = take_ended(queue, &mut state);
        let resumed = self.go_on(queue, &mut state);
        drop(state);
        let has_ended = !ended.is_empty();
        self.report(ended);
        if let Err(error) = resumed {
            self.lose(&error);
        }
        has_ended
    }

    /// Releases what jobs used, and reports them.
    fn report(&self, ended: Vec<SealedJob>) {
        let mut succeeded = None;
        for SealedJob { job, failure, timing, .. } in ended {
            let (queue, epoch) = (job.queue, job.epoch);
            // Releases what the job used, before anyone knows that it has ended.
            drop(job);
            if let Some(timing) = timing
                && let Ok(current) = self.context.enter()
            {
                timing.report(&current, &self.clock, failure.as_ref().map_or(Ok(()), Err));
            }
            match failure {
                // A later report covers this one.
                None => succeeded = Some((queue, epoch)),
                Some(failure) => {
                    if let Some((queue, epoch)) = succeeded.take() {
                        self.reporter.ended(queue, epoch, Ok(()));
                    }
                    self.reporter.ended(queue, epoch, Err(failure));
                }
            }
        }
        if let Some((queue, epoch)) = succeeded {
            self.reporter.ended(queue, epoch, Ok(()));
        }
    }

    /// Has a thread sleep until the first busy queue moves, if none has for long.
    fn watch_if_long(&self) {
        let stood = self.now().saturating_sub(self.moved.load(Ordering::Relaxed));
        if u128::from(stood) < LONG.as_nanos() {
            return;
        }
        if let Some(number) = self.queues.iter().position(Queue::is_busy) {
            self.watch.request(number);
        }
    }

    /// Ends everything soon: what has not begun fails; what is on a stream cannot be stopped.
    pub(crate) fn abort(&self, why: &Failure) {
        for queue in &self.queues {
            let mut state = queue.state.lock();
            state.aborted.get_or_insert_with(|| why.clone());
            let resumed = self.go_on(queue, &mut state);
            drop(state);
            if let Err(error) = resumed {
                self.lose(&error);
            }
        }
    }

    /// Gives the memory of graphs back.
    pub(crate) fn trim(&self) {
        for queue in &self.queues {
            queue.state.lock().graphs.trim(queue.completed.get());
        }
    }

    /// Loses the device, and reports that.
    fn lose(&self, error: &CudaError) {
        let failure = self.lose_quietly(error);
        self.reporter.lose(failure);
    }

    /// Loses the device. The first cause counts. After an error that stays nothing of the context runs any more, and
    /// what jobs use is released. After another one the streams go on to the end of what is on them.
    fn lose_quietly(&self, error: &CudaError) -> Failure {
        for queue in &self.queues {
            // What ended before, unless a thread is at it.
            if let Some(_reporting) = queue.reporting.try_lock() {
                let ended = take_ended(queue, &mut queue.state.lock());
                self.report(ended);
            }
        }
        let failure = self.mark_lost(error);
        if self.end_streams().is_err() && error.is_loss() {
            drop(self.take_all());
        }
        failure.clone()
    }

    /// The cause of the loss.
    fn mark_lost(&self, error: &CudaError) -> &Failure {
        self.lost.get_or_init(|| {
            let failure = error.failure("the device is lost");
            Failure::with_origin(failure.code(), Origin::Device, failure.message().to_owned())
        })
    }

    /// Has each stream write the end behind what is on it: others may wait for jobs that it does not get any more, and
    /// CUDA would wait for those for ever before it frees memory.
    fn end_streams(&self) -> Result<(), CudaError> {
        let current = self.context.enter()?;
        self.queues.iter().try_for_each(|queue| {
            // What a thread puts on the stream that has seen no loss is before.
            let _state = queue.state.lock();
            queue.stream.write(&current, &queue.completed, END)
        })
    }

    /// Every job, in the states of the queues, which have none then.
    fn take_all(&self) -> Vec<QueueState> {
        self.queues.iter().map(|queue| std::mem::take(&mut *queue.state.lock())).collect()
    }

    /// A thread has panicked.
    fn thread_panicked(&self, why: &Failure) {
        let _ = self.lost.set(why.clone());
    }

    /// Waits until no stream runs anything any more; false if a job does not end.
    fn drain(&self, current: &Current<'_>) -> bool {
        let begin = Instant::now();
        let mut limits = [PATIENCE, SOON].map(|limit| TimeLimit::new(limit, begin));
        // Behind the last job's word nothing takes long. After an error that stays nothing runs.
        self.queues.iter().all(|queue| {
            while matches!(queue.stream.is_idle(current), Ok(false)) {
                let [patience, soon] = limits.each_mut().map(|limit| limit.look(Instant::now()));
                if (if queue.is_at_end() { patience } else { soon }).is_zero() {
                    return false;
                }
                std::thread::sleep(Duration::from_micros(100));
            }
            true
        })
    }
}

/// Takes the jobs whose epochs the completion word has come to.
fn take_ended(queue: &Queue, state: &mut QueueState) -> Vec<SealedJob> {
    let completed = queue.completed.get();
    let count = state.sealed.partition_point(|sealed| sealed.job.epoch <= completed);
    let ended: Vec<_> = state.sealed.drain(..count).collect();
    if let Some(last) = ended.last() {
        queue.taken.store(last.job.epoch, Ordering::Release);
    }
    ended
}

/// Checks a job as far as that is possible before it begins.
fn check(job: &Job<NvidiaDevice>) -> Result<(), Failure> {
    for command in job.commands.iter() {
        if let Command::Dispatch(dispatch) = command {
            dispatch.executable.kernel(dispatch.function)?.check(dispatch)?;
        }
    }
    Ok(())
}
