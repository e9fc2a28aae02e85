// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The hardware: queues of jobs, and the scheduling of workers.
//!
//! # The life of a job
//!
//! *queued* → *running* on one worker, with others helping → *done* → possibly *delayed* → *complete*, and
//! reported. A queue is always at one job. It is *ready* if it has a job whose native waits are reached, *blocked*
//! if they are not, *busy* while a worker has it, and *delayed* while its job is done and not yet complete.
//!
//! # Locks
//!
//! Each queue's jobs have a lock, and the schedule has one: which queues are ready, blocked or delayed. The
//! schedule's lock comes first. Neither is held while a job runs or a completion is reported, since that may submit
//! more work to any queue.
//!
//! A queue's state changes under the schedule's lock, and is read without it: a thread that adds a job to a queue
//! that is not idle need not notify the schedule, and a thread that completes a job while no queue is blocked need
//! not unblock any. Both reads are safe because the other side checks again after it has published the queue's
//! state: a worker that leaves a queue idle checks for jobs once more, and one that leaves it blocked checks for
//! completions.
//!
//! # On the caller's thread
//!
//! A thread that [waits at once](hal_backend::caller) for what it submits does short work of an idle queue itself, as
//! a worker would: nothing is handed over, and no thread is woken. It is a worker of its own for each queue, since
//! calls of a program with the same worker's number wait for each other, and queues do not.
//!
//! # Sleep
//!
//! Waking a thread costs more than most jobs take, so an idle worker *watches* for 50 microseconds, by spinning,
//! before it sleeps. At most one worker watches, only while there is a processor that no other thread of the device
//! needs, and only while that pays ([`AdaptiveSpin`]): beside busy programs workers sleep at once.

use crate::command::{self, Extent};
use crate::device::MockDevice;
use crate::event::MockEvent;
use crate::fault::{CountedKind, Faults, kind};
use crate::options::Options;
use crate::reports::{Done, Reports};
use crate::workers::Share;
use hal_backend::{
    AdaptiveSpin, Command, Failure, Job, NativeWait, QueueId, Rejected, caller, processors, splitmix64,
};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The most jobs that a worker does of one queue before it checks the others.
const MOST_IN_A_ROW: usize = 64;

/// The most jobs that a worker takes from a queue at a time.
const BATCH: usize = 16;

/// The longest work that a thread does itself when it submits it.
const CALLERS_WORK: Duration = Duration::from_micros(200);

/// How long an idle worker watches for work before it sleeps.
const WATCH: Duration = Duration::from_micros(50);

/// The longest time that a job which has ended stays unreported because the next one is about to end.
const REPORT_DELAY: Duration = Duration::from_micros(10);

/// How long a worker spins for more jobs of a queue before it reports: about the time that a program takes between
/// two submissions with an allocation in between.
const LINGER: Duration = Duration::from_micros(1);

type MockJob = Job<MockDevice>;

/// A value that one thread writes often, on its own cache line.
#[derive(Default)]
#[repr(align(128))]
struct CachePadded<T>(T);

/// One hardware queue.
struct Queue {
    /// Written by submitting threads.
    jobs: CachePadded<Mutex<VecDeque<MockJob>>>,
    /// The last epoch that was submitted.
    submitted: AtomicU64,
    depth: AtomicUsize,
    /// Its [`QueueState`].
    state: AtomicU8,
    /// The memory of the jobs that a thread does itself.
    callers_batch: Mutex<VecDeque<MockJob>>,
    /// Written by the worker.
    progress: CachePadded<Progress>,
}

/// The progress of a queue.
#[derive(Default)]
struct Progress {
    /// The last complete epoch, which native waits read.
    completed: AtomicU64,
    /// Learns whether lingering pays.
    linger: AdaptiveSpin,
}

impl Queue {
    fn is(&self, state: QueueState) -> bool {
        self.state.load(Ordering::Relaxed) == state as u8
    }
}

/// The state of a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum QueueState {
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
    completed: Completed,
}

/// Jobs of a queue that have succeeded and are not reported yet: the first ones of the worker's batch. They are
/// dropped together, since others count references to what they use, and a counter that two threads change in turn
/// costs as much as a small job.
#[derive(Default)]
struct Unreported {
    /// The last of them, and their number.
    last: Option<(QueueId, u64)>,
    count: usize,
    /// Their estimated time.
    time: Duration,
}

pub(crate) struct Schedule {
    ready: VecDeque<usize>,
    delayed: Vec<Delayed>,
    /// Work that any idle worker can share.
    shares: Vec<Arc<Share>>,
    /// The number of sleeping workers.
    asleep: usize,
    random: u64,
    stopping: bool,
}

/// A worker's next task.
pub(crate) enum Task {
    Queue(usize),
    Complete(usize, Completed),
    Help(Arc<Share>),
    Stop,
}

/// A job to report, and the event that it records.
pub(crate) struct Completed {
    done: Done,
    event: Option<MockEvent>,
}

/// The queues of a device and everything around them.
pub(crate) struct Hardware {
    queues: Vec<Queue>,
    schedule: Mutex<Schedule>,
    work: Condvar,
    /// Incremented with every possible task. The watching worker spins on it.
    offers: AtomicU64,
    /// True while a worker watches. Changes under the schedule's lock.
    watched: AtomicBool,
    /// Learns whether watching pays.
    watch: AdaptiveSpin,
    /// The number of blocked queues.
    blocked: AtomicUsize,
    reports: Reports,
    faults: Faults,
    depth: usize,
    latency: Duration,
    seeded: bool,
    seed: u64,
    /// True if jobs may complete later than they end.
    delays: bool,
    /// The number of jobs that have begun.
    jobs: CachePadded<AtomicU64>,
    workers: usize,
    /// The most workers that are awake while one of them watches.
    watchers: usize,
    /// The reason why the device stops, if it does.
    aborted: OnceLock<Failure>,
    lost: AtomicBool,
    opened: Instant,
}

impl Hardware {
    pub(crate) fn new(options: Options) -> Result<Arc<Self>, Failure> {
        let queue = |_| Queue {
            jobs: CachePadded::default(),
            submitted: AtomicU64::new(0),
            depth: AtomicUsize::new(0),
            state: AtomicU8::new(QueueState::Idle as u8),
            callers_batch: Mutex::default(),
            progress: CachePadded::default(),
        };
        Ok(Arc::new(Self {
            queues: (0..options.queues).map(queue).collect(),
            schedule: Mutex::new(Schedule {
                ready: VecDeque::new(),
                delayed: Vec::new(),
                shares: Vec::new(),
                asleep: 0,
                random: splitmix64(options.seed),
                stopping: false,
            }),
            work: Condvar::new(),
            offers: AtomicU64::new(0),
            watched: AtomicBool::new(false),
            watch: AdaptiveSpin::new(),
            blocked: AtomicUsize::new(0),
            reports: Reports::new(options.completion)?,
            delays: !options.latency.is_zero() || options.faults.delays(),
            faults: options.faults,
            depth: options.depth,
            latency: options.latency,
            seeded: options.seeded,
            seed: options.seed,
            jobs: CachePadded::default(),
            workers: options.workers,
            // One processor is for the thread that submits and waits.
            watchers: processors() - 1,
            aborted: OnceLock::new(),
            lost: AtomicBool::new(false),
            opened: Instant::now(),
        }))
    }

    pub(crate) fn reports(&self) -> &Reports {
        &self.reports
    }

    pub(crate) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Nanoseconds since the device was opened, plus a few, so that none is zero.
    pub(crate) fn clock(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(1)
    }

    pub(crate) fn submit(&self, job: MockJob) -> Result<(), Rejected<MockDevice>> {
        if self.lost.load(Ordering::Acquire) {
            return Err(Rejected::Lost(self.gone()));
        }
        let queue = self.queue(job.queue.index());
        if queue.depth.load(Ordering::Relaxed) >= self.depth {
            return Err(Rejected::Full(Box::new(job)));
        }
        queue.depth.fetch_add(1, Ordering::Relaxed);
        if let Some(event) = &job.event {
            event.reset();
        }
        let epoch = job.epoch;
        queue.jobs.0.lock().push_back(job);
        queue.submitted.store(epoch, Ordering::Release);
        Ok(())
    }

    fn queue(&self, number: usize) -> &Queue {
        #[expect(clippy::indexing_slicing, reason = "the engine names queues that the device has")]
        &self.queues[number]
    }

    fn gone(&self) -> Failure {
        let unknown = || Failure::new(hal_backend::Code::Unavailable, "the mock device is lost");
        self.aborted.get().cloned().unwrap_or_else(unknown)
    }

    /// Schedules a queue that has new work, or does it.
    pub(crate) fn kick(&self, queue: usize) {
        caller::submits(|waits| {
            if !self.queue(queue).is(QueueState::Idle) {
                return;
            }
            let mut schedule = self.schedule.lock();
            if !self.queue(queue).is(QueueState::Idle) || !self.has_work(queue) {
                return;
            }
            let Some(count) = waits.then(|| self.short_jobs(queue)).flatten() else {
                return self.offer(&mut schedule, queue, 0);
            };
            self.put(&mut schedule, queue, QueueState::Busy);
            drop(schedule);
            let mut batch = std::mem::take(&mut *self.queue(queue).callers_batch.lock());
            self.run_some(queue, count, self.workers + queue, &mut batch);
            *self.queue(queue).callers_batch.lock() = batch;
        });
    }

    /// The number of jobs of a queue, if a thread that submits may do them all: they are short, nothing delays or fails
    /// them, and none waits for another queue.
    fn short_jobs(&self, queue: usize) -> Option<usize> {
        if self.seeded || self.delays || self.faults.any() {
            return None;
        }
        let jobs = self.queue(queue).jobs.0.lock();
        let time = jobs.iter().map(|job| self.time(job)).fold(Duration::ZERO, Duration::saturating_add);
        let short =
            jobs.len() <= BATCH && time <= CALLERS_WORK && jobs.iter().all(|job| self.all_reached(job));
        short.then_some(jobs.len())
    }

    fn has_work(&self, queue: usize) -> bool {
        !self.queue(queue).jobs.0.lock().is_empty()
    }

    /// Sets a queue's state. Called under the schedule's lock.
    fn put(&self, _schedule: &mut Schedule, queue: usize, state: QueueState) {
        let before = self.queue(queue).state.swap(state as u8, Ordering::Relaxed);
        if state == QueueState::Blocked {
            self.blocked.fetch_add(1, Ordering::SeqCst);
        }
        if before == QueueState::Blocked as u8 {
            self.blocked.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Sets the state of a queue that has work. `looking` workers are about to check by themselves.
    fn offer(&self, schedule: &mut Schedule, queue: usize, looking: usize) {
        if !self.next_is_reached(queue) {
            self.put(schedule, queue, QueueState::Blocked);
            // A worker that completes a job from here on sees that a queue is blocked; an earlier completion is
            // seen here.
            fence(Ordering::SeqCst);
            if !self.next_is_reached(queue) {
                return;
            }
        }
        self.put(schedule, queue, QueueState::Ready);
        schedule.ready.push_back(queue);
        self.call(schedule, schedule.ready.len().saturating_sub(looking));
    }

    /// Wakes a worker for new tasks if no other will see them.
    fn call(&self, schedule: &Schedule, things: usize) {
        self.offers.fetch_add(1, Ordering::Release);
        if schedule.asleep > 0 && things > usize::from(self.watched.load(Ordering::Relaxed)) {
            self.work.notify_one();
        }
    }

    fn next_is_reached(&self, queue: usize) -> bool {
        let jobs = self.queue(queue).jobs.0.lock();
        jobs.front().is_none_or(|job| self.all_reached(job))
    }

    fn all_reached(&self, job: &MockJob) -> bool {
        job.waits.iter().all(|wait| self.reached(wait))
    }

    fn reached(&self, wait: &NativeWait<MockEvent>) -> bool {
        if self.aborted.get().is_some() {
            return true;
        }
        if let Some(event) = &wait.event {
            return event.is_recorded();
        }
        let completed = &self.queue(wait.point.queue.index()).progress.0.completed;
        completed.load(Ordering::Acquire) >= wait.point.epoch
    }

    /// The next task of a worker; blocks until there is one.
    pub(crate) fn next(&self) -> Task {
        let mut schedule = self.schedule.lock();
        let mut fresh = true;
        loop {
            if schedule.stopping {
                return Task::Stop;
            }
            if let Some(task) = self.find(&mut schedule) {
                return task;
            }
            let awake = self.workers - schedule.asleep;
            if fresh
                && !self.watched.load(Ordering::Relaxed)
                && schedule.delayed.is_empty()
                && awake <= self.watchers
                && self.watch.take_turn()
            {
                fresh = false;
                self.watched.store(true, Ordering::Relaxed);
                let seen = self.offers.load(Ordering::Relaxed);
                MutexGuard::unlocked(&mut schedule, || {
                    self.watch.spin(WATCH, || self.offers.load(Ordering::Acquire) != seen)
                });
                self.watched.store(false, Ordering::Relaxed);
                continue;
            }
            fresh = true;
            let wake = schedule.delayed.iter().map(|delayed| delayed.until).min();
            schedule.asleep += 1;
            match wake {
                Some(until) => drop(self.work.wait_until(&mut schedule, until)),
                None => self.work.wait(&mut schedule),
            }
            schedule.asleep -= 1;
        }
    }

    /// A task for a worker, if there is any.
    fn find(&self, schedule: &mut Schedule) -> Option<Task> {
        if !schedule.delayed.is_empty() {
            let now = Instant::now();
            if let Some(at) = schedule.delayed.iter().position(|delayed| delayed.until <= now) {
                let delayed = schedule.delayed.swap_remove(at);
                self.put(schedule, delayed.queue, QueueState::Busy);
                return Some(Task::Complete(delayed.queue, delayed.completed));
            }
        }
        if let Some(queue) = self.draw(schedule) {
            self.put(schedule, queue, QueueState::Busy);
            return Some(Task::Queue(queue));
        }
        schedule.shares.iter().find(|share| share.has_more()).map(|share| Task::Help(share.clone()))
    }

    fn draw(&self, schedule: &mut Schedule) -> Option<usize> {
        if !self.seeded || schedule.ready.len() < 2 {
            return schedule.ready.pop_front();
        }
        schedule.random = splitmix64(schedule.random);
        let count = schedule.ready.len();
        let at = usize::try_from(schedule.random % count as u64).unwrap_or(0);
        schedule.ready.remove(at)
    }

    /// Runs jobs of a queue, and sets its state afterwards.
    pub(crate) fn run(&self, queue: usize, worker: usize, batch: &mut VecDeque<MockJob>) {
        self.run_some(queue, if self.seeded { 1 } else { MOST_IN_A_ROW }, worker, batch);
    }

    /// Runs so many jobs of a queue at most.
    fn run_some(&self, queue: usize, most: usize, worker: usize, batch: &mut VecDeque<MockJob>) {
        // A job that completes late delays those behind it, which therefore stay on their queue.
        let at_once = if self.seeded || self.delays { 1 } else { BATCH };
        let mut left = most;
        let mut unreported = Unreported::default();
        while left > 0 {
            self.take(queue, left.min(at_once), batch);
            if batch.len() == unreported.count && unreported.count > 0 {
                // The submitting thread is usually about to submit more; otherwise an ended job may release the
                // next one.
                if !self.linger(queue) {
                    self.report(queue, &mut unreported, batch);
                }
                self.take(queue, left.min(at_once), batch);
            }
            if batch.len() == unreported.count {
                break;
            }
            left -= batch.len() - unreported.count;
            while let Some(job) = batch.get(unreported.count) {
                // A report costs as much as a small job, so one report covers several jobs, as long as none is
                // reported late.
                let time = self.time(job);
                if unreported.time.saturating_add(time) > REPORT_DELAY {
                    self.report(queue, &mut unreported, batch);
                }
                unreported.time = unreported.time.saturating_add(time);
                if !self.work_on(queue, batch, worker, &mut unreported) {
                    return;
                }
            }
        }
        self.report(queue, &mut unreported, batch);
        self.leave(queue);
    }

    /// Spins briefly for another submission to an empty queue. If that did not pay lately, it is tried only now and
    /// then.
    fn linger(&self, queue: usize) -> bool {
        if self.watchers == 0 {
            return false;
        }
        let queue = self.queue(queue);
        let Progress { completed, linger } = &queue.progress.0;
        let done = completed.load(Ordering::Relaxed);
        linger.spin_until(LINGER, || queue.submitted.load(Ordering::Acquire) > done)
    }

    /// Takes the next jobs of a queue whose waits are reached.
    fn take(&self, queue: usize, most: usize, batch: &mut VecDeque<MockJob>) {
        let queue = self.queue(queue);
        let completed = || queue.progress.0.completed.load(Ordering::Relaxed);
        let taken = batch.back().map_or_else(completed, |job| job.epoch);
        // Without a submission the lock is left to submitting threads. The worker that leaves the queue sees later
        // ones.
        if queue.submitted.load(Ordering::Acquire) <= taken {
            return;
        }
        let mut jobs = queue.jobs.0.lock();
        let ready = jobs.iter().take(most).take_while(|job| self.all_reached(job)).count();
        batch.extend(jobs.drain(..ready));
        if jobs.is_empty() {
            // The next jobs reuse the same memory, which both sides have in their caches.
            jobs.clear();
        }
    }

    /// Leaves a queue for now.
    pub(crate) fn leave(&self, queue: usize) {
        let mut schedule = self.schedule.lock();
        // Idle first, then another check: a thread that adds a job later sees that the queue is idle.
        self.put(&mut schedule, queue, QueueState::Idle);
        if self.has_work(queue) {
            self.offer(&mut schedule, queue, 1);
        }
    }

    /// The estimated time of a job.
    fn time(&self, job: &MockJob) -> Duration {
        job.commands.iter().map(command::time).fold(Duration::ZERO, Duration::saturating_add)
    }

    /// Runs the next job of the batch and completes it; false if it completes later, and the queue is not this
    /// worker's any more.
    fn work_on(
        &self,
        queue: usize,
        batch: &mut VecDeque<MockJob>,
        worker: usize,
        unreported: &mut Unreported,
    ) -> bool {
        // The caller has seen it, and a report keeps it as the first one.
        let job = &batch[unreported.count];
        let number = self.jobs.0.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(failure) = self.faults.loses(number) {
            self.lose(failure);
        }
        self.faults.panic_at(number);
        if self.faults.hangs_up_at(number) {
            self.reports.hang_up();
        }
        let begin = job.observer.as_ref().map(|_| self.clock());
        let outcome = match self.aborted.get() {
            Some(why) => Err(why.clone()),
            None => self.faults.count_and_fail(CountedKind::Job).and_then(|()| self.execute(job, worker)),
        };
        if let (Some(observer), Some(begin)) = (&job.observer, begin) {
            observer.job(begin, self.clock(), outcome.as_ref().map(drop));
        }
        let completed =
            Completed { done: Done { id: job.queue, epoch: job.epoch, outcome }, event: job.event.clone() };
        let delay =
            if self.delays { self.latency + self.faults.delay(number, self.seed) } else { Duration::ZERO };
        if delay.is_zero() || self.aborted.get().is_some() {
            if completed.done.outcome.is_ok() {
                self.pass(queue, &completed);
                unreported.last = Some((completed.done.id, completed.done.epoch));
                unreported.count += 1;
            } else {
                self.report(queue, unreported, batch);
                drop(batch.pop_front());
                self.complete(queue, completed);
            }
            return true;
        }
        self.report(queue, unreported, batch);
        drop(batch.pop_front());
        let mut schedule = self.schedule.lock();
        self.put(&mut schedule, queue, QueueState::Delayed);
        schedule.delayed.push(Delayed { queue, until: Instant::now() + delay, completed });
        // A sleeping worker may have to wake earlier than planned.
        self.offers.fetch_add(1, Ordering::Release);
        self.work.notify_one();
        false
    }

    /// Reports jobs that have succeeded. They release what they used before their completion is reported.
    fn report(&self, queue: usize, unreported: &mut Unreported, batch: &mut VecDeque<MockJob>) {
        let unreported = std::mem::take(unreported);
        batch.drain(..unreported.count);
        let Some((id, epoch)) = unreported.last else { return };
        self.report_done(queue, Done { id, epoch, outcome: Ok(()) }, unreported.count);
    }

    pub(crate) fn complete(&self, queue: usize, completed: Completed) {
        self.pass(queue, &completed);
        self.report_done(queue, completed.done, 1);
    }

    /// Records that a job has ended, failed or not: native waits for it are over.
    fn pass(&self, queue: usize, completed: &Completed) {
        if let Some(event) = &completed.event {
            event.record();
        }
        self.queue(queue).progress.0.completed.store(completed.done.epoch, Ordering::Release);
    }

    /// Reports ended jobs, of which `done` is the last, and releases the queues that waited for them.
    fn report_done(&self, queue: usize, done: Done, count: usize) {
        self.queue(queue).depth.fetch_sub(count, Ordering::Relaxed);
        self.unblock();
        if !self.lost.load(Ordering::Acquire) {
            self.reports.done(done);
        }
    }

    /// Checks the queues that wait for others.
    fn unblock(&self) {
        // Either this thread sees that a queue is blocked, or the worker that blocks it sees the completion.
        fence(Ordering::SeqCst);
        if self.blocked.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut schedule = self.schedule.lock();
        for (number, queue) in self.queues.iter().enumerate() {
            if queue.is(QueueState::Blocked) && self.next_is_reached(number) {
                self.offer(&mut schedule, number, 0);
            }
        }
    }

    fn lose(&self, failure: Failure) {
        let _ = self.aborted.set(failure.clone());
        self.lost.store(true, Ordering::Release);
        self.reports.lost(failure);
    }

    /// Ends all jobs after a worker has panicked: its queue stays as it is. Drops the jobs, and ends the waits for
    /// that queue.
    pub(crate) fn worker_panicked(&self, why: &Failure) {
        self.lost.store(true, Ordering::Release);
        self.abort(why);
        let jobs: Vec<_> =
            self.queues.iter().map(|queue| std::mem::take(&mut *queue.jobs.0.lock())).collect();
        let shares = std::mem::take(&mut self.schedule.lock().shares);
        drop((jobs, shares));
    }

    /// Fails jobs that have not begun, stops running ones, and completes delayed ones.
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
        self.offers.fetch_add(1, Ordering::Release);
        self.work.notify_all();
    }

    fn execute(&self, job: &MockJob, worker: usize) -> Result<(), Failure> {
        for (number, command) in job.commands.iter().enumerate() {
            if let Some(why) = self.aborted.get() {
                return Err(why.clone());
            }
            if let Some(kind) = kind(command) {
                self.faults.count_and_fail(kind)?;
            }
            let begin = job.observer.as_ref().map(|_| self.clock());
            self.command(command, worker)?;
            if let (Some(observer), Some(begin)) = (&job.observer, begin) {
                observer.command(number, begin, self.clock());
            }
        }
        Ok(())
    }

    /// Runs a command, with the help of other workers if it is large.
    fn command(&self, command: &Command<MockDevice>, worker: usize) -> Result<(), Failure> {
        let extent = command::extent(command, self.workers, self.watched.load(Ordering::Relaxed))?;
        let begin = matches!(command, Command::Dispatch(_)).then(Instant::now);
        let (outcome, done) = if extent.is_shared() {
            self.share(command, &extent, worker)
        } else {
            (self.alone(command, &extent, worker), extent.pieces)
        };
        if let Some(begin) = begin {
            command::learn(command, begin, done);
        }
        outcome
    }

    /// Runs a command on this worker.
    fn alone(&self, command: &Command<MockDevice>, extent: &Extent, worker: usize) -> Result<(), Failure> {
        let mut done = 0;
        while let Some(pieces) = extent.take(done, false) {
            if let Some(why) = self.aborted.get() {
                return Err(why.clone());
            }
            done = pieces.end;
            command::part(command, extent, pieces, worker)?;
        }
        Ok(())
    }

    /// Runs a command on this worker and on every idle one. Also returns the number of pieces that this worker did.
    fn share(
        &self,
        command: &Command<MockDevice>,
        extent: &Extent,
        worker: usize,
    ) -> (Result<(), Failure>, u64) {
        let share = Share::new(command.clone(), extent.clone());
        let mut schedule = self.schedule.lock();
        schedule.shares.push(share.clone());
        for others in 1..extent.chunks().min(self.workers) {
            self.call(&schedule, others);
        }
        drop(schedule);
        let done = share.help(worker, &self.aborted);
        let outcome = share.finish();
        self.schedule.lock().shares.retain(|other| !Arc::ptr_eq(other, &share));
        (outcome, done)
    }

    pub(crate) fn aborted(&self) -> &OnceLock<Failure> {
        &self.aborted
    }
}

#[cfg(test)]
mod tests;
