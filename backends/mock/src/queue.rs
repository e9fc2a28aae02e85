//! The hardware: queues of jobs, and which of them a worker takes next.
//!
//! # The life of a job
//!
//! *queued* → *running* on one worker, with others helping → *done* → perhaps *delayed* → *complete*, reported. A queue
//! is always at one job. It is *ready* when it has a job and that job's native waits are reached; *blocked* when they
//! are not; *busy* while a worker has it; *delayed* while its job is done and not yet complete.
//!
//! # Locks
//!
//! One lock for each queue's jobs, and one for the schedule: which queues are ready, blocked or delayed. The schedule's
//! comes first; neither is held while a job runs or a completion is reported, since that may come back with more
//! work for any queue.

use crate::device::MockDevice;
use crate::fault::{Faults, Kind, kind, scramble};
use crate::options::Options;
use crate::workers::Share;
use hal_backend::{
    Command, Completer, Dispatch, Failure, HostCall, HostRange, Job, Point, QueueId, Rejected, Span,
    Workgroups,
};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Transfers of this size and more are shared among the workers.
const SHARED_TRANSFER: u64 = 1 << 20;

/// What one worker takes of a shared transfer at a time.
const TRANSFER_CHUNK: u64 = 256 << 10;

/// How many jobs a worker does of one queue before it looks at the others.
const TURN: usize = 64;

type MockJob = Job<MockDevice>;

/// One hardware queue.
struct Queue {
    jobs: Mutex<VecDeque<MockJob>>,
    /// The last epoch that is complete: what native waits look at.
    completed: AtomicU64,
    depth: AtomicUsize,
}

/// Where a queue is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It has no work.
    Idle,
    /// It waits for a worker.
    Ready,
    /// A worker has it.
    Busy,
    /// Its next job waits for another queue.
    Blocked,
    /// Its job is done and completes later.
    Delayed,
}

/// A job that is done and not yet complete.
struct Delayed {
    queue: usize,
    until: Instant,
    done: Done,
}

struct Done {
    id: QueueId,
    epoch: u64,
    outcome: Result<(), Failure>,
}

pub(crate) struct Schedule {
    places: Vec<Place>,
    ready: VecDeque<usize>,
    delayed: Vec<Delayed>,
    /// Work that any idle worker can help with.
    shares: Vec<Arc<Share>>,
    idle: usize,
    random: u64,
    stopping: bool,
}

/// What a worker finds to do.
pub(crate) enum Task {
    Queue(usize),
    Complete(usize, Completed),
    Help(Arc<Share>),
    Stop,
}

/// A job to report.
pub(crate) struct Completed(Done);

/// The queues of a device and everything around them.
pub(crate) struct Hardware {
    queues: Vec<Queue>,
    schedule: Mutex<Schedule>,
    work: Condvar,
    completer: OnceLock<Completer>,
    faults: Faults,
    depth: usize,
    latency: Duration,
    seeded: bool,
    seed: u64,
    jobs: AtomicU64,
    workers: usize,
    /// Why the device stops, if it does.
    aborted: OnceLock<Failure>,
    lost: AtomicBool,
    opened: Instant,
}

impl Hardware {
    pub(crate) fn new(options: Options) -> Arc<Self> {
        let queue = |_| Queue {
            jobs: Mutex::new(VecDeque::new()),
            completed: AtomicU64::new(0),
            depth: AtomicUsize::new(0),
        };
        Arc::new(Self {
            queues: (0..options.queues).map(queue).collect(),
            schedule: Mutex::new(Schedule {
                places: vec![Place::Idle; options.queues],
                ready: VecDeque::new(),
                delayed: Vec::new(),
                shares: Vec::new(),
                idle: 0,
                random: scramble(options.seed),
                stopping: false,
            }),
            work: Condvar::new(),
            completer: OnceLock::new(),
            faults: options.faults,
            depth: options.depth,
            latency: options.latency,
            seeded: options.seeded,
            seed: options.seed,
            jobs: AtomicU64::new(0),
            workers: options.workers,
            aborted: OnceLock::new(),
            lost: AtomicBool::new(false),
            opened: Instant::now(),
        })
    }

    pub(crate) fn start(&self, completer: Completer) {
        // A device is started once.
        let _ = self.completer.set(completer);
    }

    pub(crate) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Nanoseconds since the device was opened, and a little, so that none is zero.
    pub(crate) fn clock(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(1)
    }

    pub(crate) fn submit(&self, job: MockJob) -> Result<(), Rejected<MockDevice>> {
        if self.lost.load(Ordering::Acquire) {
            return Err(Rejected::Lost(self.gone()));
        }
        let Some(queue) = self.queues.get(job.queue.ordinal()) else {
            let message = format!("the device has no queue {}", job.queue.ordinal());
            return Err(Rejected::Failed(Failure::new(hal_backend::Code::Internal, message)));
        };
        if queue.depth.load(Ordering::Relaxed) >= self.depth {
            return Err(Rejected::Full(Box::new(job)));
        }
        queue.depth.fetch_add(1, Ordering::Relaxed);
        queue.jobs.lock().push_back(job);
        Ok(())
    }

    fn gone(&self) -> Failure {
        let unknown = || Failure::new(hal_backend::Code::Unavailable, "the mock device is lost");
        self.aborted.get().cloned().unwrap_or_else(unknown)
    }

    /// The queue has new work.
    pub(crate) fn kick(&self, queue: usize) {
        let mut schedule = self.schedule.lock();
        if schedule.places.get(queue) == Some(&Place::Idle) && self.has_work(queue) {
            self.offer(&mut schedule, queue);
        }
    }

    fn has_work(&self, queue: usize) -> bool {
        self.queues.get(queue).is_some_and(|queue| !queue.jobs.lock().is_empty())
    }

    /// Puts a queue that has work where it belongs.
    fn offer(&self, schedule: &mut Schedule, queue: usize) {
        let reached = self.next_is_reached(queue);
        let Some(place) = schedule.places.get_mut(queue) else { return };
        if reached {
            *place = Place::Ready;
            schedule.ready.push_back(queue);
            if schedule.idle > 0 {
                self.work.notify_one();
            }
        } else {
            *place = Place::Blocked;
        }
    }

    fn next_is_reached(&self, queue: usize) -> bool {
        let Some(queue) = self.queues.get(queue) else { return false };
        let jobs = queue.jobs.lock();
        jobs.front().is_none_or(|job| job.waits.iter().all(|wait| self.reached(wait.point)))
    }

    fn reached(&self, point: Point) -> bool {
        self.aborted.get().is_some()
            || self
                .queues
                .get(point.queue.ordinal())
                .is_none_or(|queue| queue.completed.load(Ordering::Acquire) >= point.epoch)
    }

    /// The next thing for a worker to do; sleeps until there is one.
    pub(crate) fn next(&self) -> Task {
        let mut schedule = self.schedule.lock();
        loop {
            if schedule.stopping {
                return Task::Stop;
            }
            let now = Instant::now();
            if let Some(at) = schedule.delayed.iter().position(|delayed| delayed.until <= now) {
                let delayed = schedule.delayed.swap_remove(at);
                if let Some(place) = schedule.places.get_mut(delayed.queue) {
                    *place = Place::Busy;
                }
                return Task::Complete(delayed.queue, Completed(delayed.done));
            }
            if let Some(queue) = self.draw(&mut schedule) {
                if let Some(place) = schedule.places.get_mut(queue) {
                    *place = Place::Busy;
                }
                return Task::Queue(queue);
            }
            if let Some(share) = schedule.shares.iter().find(|share| share.has_more()) {
                return Task::Help(share.clone());
            }
            let wake = schedule.delayed.iter().map(|delayed| delayed.until).min();
            schedule.idle += 1;
            match wake {
                Some(until) => drop(self.work.wait_until(&mut schedule, until)),
                None => self.work.wait(&mut schedule),
            }
            schedule.idle -= 1;
        }
    }

    fn draw(&self, schedule: &mut Schedule) -> Option<usize> {
        if !self.seeded || schedule.ready.len() < 2 {
            return schedule.ready.pop_front();
        }
        schedule.random = scramble(schedule.random);
        let count = schedule.ready.len();
        let at = usize::try_from(schedule.random % count as u64).unwrap_or(0);
        schedule.ready.remove(at)
    }

    /// Does jobs of a queue, and leaves it where it belongs.
    pub(crate) fn run(self: &Arc<Self>, queue: usize, worker: usize) {
        let turn = if self.seeded { 1 } else { TURN };
        for _ in 0..turn {
            let Some(job) = self.take(queue) else { break };
            if !self.work_on(queue, job, worker) {
                return;
            }
        }
        self.leave(queue);
    }

    /// Takes the next job of a queue whose waits are reached.
    fn take(&self, queue: usize) -> Option<MockJob> {
        let mut jobs = self.queues.get(queue)?.jobs.lock();
        let reached = jobs.front()?.waits.iter().all(|wait| self.reached(wait.point));
        if reached { jobs.pop_front() } else { None }
    }

    /// A worker is done with a queue for now.
    fn leave(&self, queue: usize) {
        let mut schedule = self.schedule.lock();
        if self.has_work(queue) {
            self.offer(&mut schedule, queue);
        } else if let Some(place) = schedule.places.get_mut(queue) {
            *place = Place::Idle;
        }
    }

    /// Runs a job and completes it; false if it completes later, and the queue is not ours any more.
    fn work_on(self: &Arc<Self>, queue: usize, job: MockJob, worker: usize) -> bool {
        let number = self.jobs.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(failure) = self.faults.loses(number) {
            self.lose(failure);
        }
        let begin = job.observer.as_ref().map(|_| self.clock());
        let outcome = match self.aborted.get() {
            Some(why) => Err(why.clone()),
            None => self.faults.strike(Kind::Job).and_then(|()| self.execute(&job, worker)),
        };
        if let (Some(observer), Some(begin)) = (&job.observer, begin) {
            observer.job(begin, self.clock(), outcome.as_ref().map(drop));
        }
        let done = Done { id: job.queue, epoch: job.epoch, outcome };
        // What the job used is free before anybody hears that it is complete.
        drop(job);
        let delay = self.latency + self.faults.delay(number, self.seed);
        if delay.is_zero() || self.aborted.get().is_some() {
            self.complete(queue, Completed(done));
            return true;
        }
        let mut schedule = self.schedule.lock();
        if let Some(place) = schedule.places.get_mut(queue) {
            *place = Place::Delayed;
        }
        schedule.delayed.push(Delayed { queue, until: Instant::now() + delay, done });
        // A sleeping worker may have to wake earlier than it meant to.
        self.work.notify_one();
        false
    }

    /// Reports a job and lets those go that waited for it.
    pub(crate) fn complete(&self, queue: usize, Completed(done): Completed) {
        let Some(state) = self.queues.get(queue) else { return };
        state.completed.store(done.epoch, Ordering::Release);
        let was_full = state.depth.fetch_sub(1, Ordering::Relaxed) == self.depth;
        self.unblock();
        if self.lost.load(Ordering::Acquire) {
            return;
        }
        let Some(completer) = self.completer.get() else { return };
        // Whoever is gone does not want to know.
        let _ = match done.outcome {
            Ok(()) => completer.complete(done.id, done.epoch),
            Err(failure) => completer.fail(done.id, done.epoch, failure),
        };
        if was_full {
            let _ = completer.unblock(done.id.device());
        }
    }

    /// The rest of a queue after a delayed completion.
    pub(crate) fn resume(&self, queue: usize) {
        self.leave(queue);
    }

    /// Looks at the queues that wait for others.
    fn unblock(&self) {
        let mut schedule = self.schedule.lock();
        for queue in 0..self.queues.len() {
            if schedule.places.get(queue) == Some(&Place::Blocked) && self.next_is_reached(queue) {
                self.offer(&mut schedule, queue);
            }
        }
    }

    fn lose(&self, failure: Failure) {
        let _ = self.aborted.set(failure.clone());
        self.lost.store(true, Ordering::Release);
        if let Some(completer) = self.completer.get() {
            let _ = completer.lose(0, failure);
        }
    }

    /// Fails what has not begun, stops what has, and completes what is only late.
    pub(crate) fn abort(&self, why: &Failure) {
        let _ = self.aborted.set(why.clone());
        let mut schedule = self.schedule.lock();
        let now = Instant::now();
        for delayed in &mut schedule.delayed {
            delayed.until = now;
        }
        drop(schedule);
        self.unblock();
        self.work.notify_all();
    }

    /// Ends the workers. Nothing is in flight any more.
    pub(crate) fn stop(&self) {
        self.schedule.lock().stopping = true;
        self.work.notify_all();
    }

    fn execute(self: &Arc<Self>, job: &MockJob, worker: usize) -> Result<(), Failure> {
        for (number, command) in job.commands.iter().enumerate() {
            if let Some(why) = self.aborted.get() {
                return Err(why.clone());
            }
            if let Some(kind) = kind(command) {
                self.faults.strike(kind)?;
            }
            let begin = job.observer.as_ref().map(|_| self.clock());
            self.command(command, worker)?;
            if let (Some(observer), Some(begin)) = (&job.observer, begin) {
                observer.command(number, begin, self.clock());
            }
        }
        Ok(())
    }

    fn command(self: &Arc<Self>, command: &Command<MockDevice>, worker: usize) -> Result<(), Failure> {
        match command {
            Command::Fill { target, pattern } => {
                let target = host(target)?;
                let pattern = *pattern;
                // Every chunk begins where the pattern does.
                let period = pattern.bytes().len() as u64;
                let chunk = TRANSFER_CHUNK / period * period;
                self.transfer(target.length(), chunk, worker, move |range| {
                    part(&target, &range).is_some_and(|part| part.fill(pattern.bytes()))
                })
            }
            Command::Copy { source, target } => {
                let (source, target) = (host(source)?, host(target)?);
                let apart = source.address() as usize + size(&source) <= target.address() as usize
                    || target.address() as usize + size(&target) <= source.address() as usize;
                // What overlaps is copied in one go, in the right direction.
                let chunk = if apart { TRANSFER_CHUNK } else { u64::MAX };
                self.transfer(target.length(), chunk, worker, move |range| {
                    let (Some(source), Some(target)) = (part(&source, &range), part(&target, &range)) else {
                        return false;
                    };
                    target.copy_from(&source)
                })
            }
            Command::Update { source, target } => {
                let written = host(target)?.write(0, source);
                written.then_some(()).ok_or_else(misfit)
            }
            Command::Dispatch(dispatch) => self.dispatch(dispatch, worker),
            Command::Barrier => Ok(()),
        }
    }

    /// A transfer in chunks, shared if it is large.
    fn transfer(
        self: &Arc<Self>,
        length: u64,
        chunk: u64,
        worker: usize,
        body: impl Fn(Range<u64>) -> bool + Send + Sync + 'static,
    ) -> Result<(), Failure> {
        if length < SHARED_TRANSFER || chunk == u64::MAX || self.workers == 1 {
            return body(0..length).then_some(()).ok_or_else(misfit);
        }
        let chunks = length.div_ceil(chunk);
        self.share(chunks, 1, worker, move |numbers, _| {
            let range = numbers.start * chunk..(numbers.end * chunk).min(length);
            body(range).then_some(()).ok_or_else(misfit)
        })
    }

    fn dispatch(self: &Arc<Self>, dispatch: &Dispatch<MockDevice>, worker: usize) -> Result<(), Failure> {
        let workgroups = match &dispatch.workgroups {
            Workgroups::Count(count) => *count,
            Workgroups::Indirect(place) => counts(&host(place)?)?,
        };
        let bindings: Vec<HostRange> = dispatch.bindings.iter().map(host).collect::<Result<_, _>>()?;
        let (program, constants) = (dispatch.executable.clone(), dispatch.constants.clone());
        let (function, workgroup_size) = (dispatch.function, dispatch.workgroup_size);
        let (concurrency, local_memory) = (self.workers, dispatch.local_memory);
        let total = workgroups.iter().fold(1, |total, &count| u64::saturating_mul(total, u64::from(count)));
        let run = move |range: Range<u64>, worker: usize| {
            let call = HostCall {
                function,
                workgroup_size,
                workgroups,
                constants: &constants,
                bindings: &bindings,
                concurrency,
                local_memory,
            };
            program.run(&call, range, worker)
        };
        match total {
            0 => Ok(()),
            1 => run(0..1, worker),
            _ if self.workers == 1 => run(0..total, worker),
            // A few chunks for each worker, so that a slow one does not hold up the rest.
            _ => self.share(total, (total / (self.workers as u64 * 4)).max(1), worker, run),
        }
    }

    /// Does `total` pieces in chunks on this worker and on every idle one.
    fn share(
        self: &Arc<Self>,
        total: u64,
        chunk: u64,
        worker: usize,
        body: impl Fn(Range<u64>, usize) -> Result<(), Failure> + Send + Sync + 'static,
    ) -> Result<(), Failure> {
        let share = Share::new(total, chunk, Box::new(body));
        let mut schedule = self.schedule.lock();
        schedule.shares.push(share.clone());
        if schedule.idle > 0 {
            self.work.notify_all();
        }
        drop(schedule);
        share.help(worker, &self.aborted);
        let outcome = share.finish();
        self.schedule.lock().shares.retain(|other| !Arc::ptr_eq(other, &share));
        outcome
    }

    pub(crate) fn aborted(&self) -> &OnceLock<Failure> {
        &self.aborted
    }
}

/// Everything here is host memory.
fn host(span: &Span<MockDevice>) -> Result<HostRange, Failure> {
    let range = match &span.place {
        hal_backend::Place::Host(range) => range.slice(0, span.length),
        hal_backend::Place::Device(memory, offset) => memory.range.slice(*offset, span.length),
    };
    range.ok_or_else(misfit)
}

fn misfit() -> Failure {
    Failure::new(hal_backend::Code::OutOfRange, "a command reaches past the memory that it works on")
}

fn part(range: &HostRange, bytes: &Range<u64>) -> Option<HostRange> {
    range.slice(bytes.start, bytes.end - bytes.start)
}

fn size(range: &HostRange) -> usize {
    usize::try_from(range.length()).unwrap_or(usize::MAX)
}

fn counts(place: &HostRange) -> Result<[u32; 3], Failure> {
    let mut counts = [0; 3];
    for (at, count) in (0..).zip(&mut counts) {
        let mut bytes = [0; 4];
        if !place.read(at * 4, &mut bytes) {
            return Err(misfit());
        }
        *count = u32::from_ne_bytes(bytes);
    }
    Ok(counts)
}
