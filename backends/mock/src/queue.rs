// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

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
//!
//! A queue's place changes under the schedule's lock, and is read without it: a thread that adds a job to a queue that is
//! anything but idle has nothing to tell the schedule, and one that completes a job while no queue is blocked has
//! none to unblock. Both looks are safe because the other side looks again after it has said where the queue is: a
//! worker that leaves a queue idle looks for jobs once more, and one that leaves it blocked for completions.
//!
//! # Sleep
//!
//! Waking a thread costs more than most jobs take, so an idle worker spins for 50 microseconds before it sleeps: it *watches*.
//! One worker at most does so, only while there is a processor that no other thread of the device needs, and only as long as
//! that pays ([`AdaptiveSpin`]): beside busy programs workers sleep at once.

use crate::command::{self, Extent};
use crate::device::MockDevice;
use crate::event::MockEvent;
use crate::fault::{Faults, Kind, kind};
use crate::options::Options;
use crate::reports::{Done, Reports};
use crate::workers::Share;
use hal_backend::{
    AdaptiveSpin, Command, Failure, Job, NativeWait, QueueId, Rejected, processors, splitmix64,
};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How many jobs a worker does of one queue before it looks at the others.
const TURN: usize = 64;

/// How many jobs a worker takes off a queue at a time.
const BATCH: usize = 16;

/// How long an idle worker watches for work before it sleeps.
const WATCH: Duration = Duration::from_micros(50);

/// How long a job that has ended may go unreported because the next one is about to.
const REPORT_DELAY: Duration = Duration::from_micros(10);

/// How long a worker spins for more jobs of a queue before it reports what it did: about what a program takes from one piece
/// of work to the next when there is an allocation in between.
const LINGER: Duration = Duration::from_micros(1);

type MockJob = Job<MockDevice>;

/// Something that one thread writes often, away from what another one does: what shares a cache line travels together.
#[derive(Default)]
#[repr(align(128))]
struct CachePadded<T>(T);

/// One hardware queue.
struct Queue {
    /// What submitting threads write.
    jobs: CachePadded<Mutex<VecDeque<MockJob>>>,
    /// The last epoch that was submitted.
    submitted: AtomicU64,
    depth: AtomicUsize,
    /// Its [`Place`].
    place: AtomicU8,
    /// What the worker writes.
    progress: CachePadded<Progress>,
}

/// How far a queue is.
#[derive(Default)]
struct Progress {
    /// The last epoch that is complete: what native waits look at.
    completed: AtomicU64,
    /// Whether lingering pays.
    linger: AdaptiveSpin,
}

impl Queue {
    fn is(&self, place: Place) -> bool {
        self.place.load(Ordering::Relaxed) == place as u8
    }
}

/// Where a queue is.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
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
    completed: Completed,
}

/// Jobs of a queue that have ended well and are not reported yet: the first ones of the worker's batch. They are let go
/// together, since others count what they use, and a count that two threads change in turn costs as much as a small job.
#[derive(Default)]
struct Unreported {
    /// The last of them, and how many there are.
    last: Option<(QueueId, u64)>,
    count: usize,
    /// How long they have taken, roughly.
    time: Duration,
}

pub(crate) struct Schedule {
    ready: VecDeque<usize>,
    delayed: Vec<Delayed>,
    /// Work that any idle worker can help with.
    shares: Vec<Arc<Share>>,
    /// Workers that sleep.
    asleep: usize,
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

/// A job to report, and what it records.
pub(crate) struct Completed {
    done: Done,
    event: Option<MockEvent>,
}

/// The queues of a device and everything around them.
pub(crate) struct Hardware {
    queues: Vec<Queue>,
    schedule: Mutex<Schedule>,
    work: Condvar,
    /// Grows with whatever a worker could do: what a watching worker watches.
    offers: AtomicU64,
    /// Whether a worker watches. Changes under the schedule's lock.
    watched: AtomicBool,
    /// Whether watching pays.
    watch: AdaptiveSpin,
    /// How many queues are blocked.
    blocked: AtomicUsize,
    reports: Reports,
    faults: Faults,
    depth: usize,
    latency: Duration,
    seeded: bool,
    seed: u64,
    /// Whether jobs may complete later than they end.
    delays: bool,
    /// How many jobs have begun.
    jobs: CachePadded<AtomicU64>,
    workers: usize,
    /// How many workers may be awake for one of them to watch.
    watchers: usize,
    /// Why the device stops, if it does.
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
            place: AtomicU8::new(Place::Idle as u8),
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

    /// Nanoseconds since the device was opened, and a little, so that none is zero.
    pub(crate) fn clock(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(1)
    }

    pub(crate) fn submit(&self, job: MockJob) -> Result<(), Rejected<MockDevice>> {
        if self.lost.load(Ordering::Acquire) {
            return Err(Rejected::Lost(self.gone()));
        }
        let queue = self.queue(job.queue.ordinal());
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

    /// The queue has new work.
    pub(crate) fn kick(&self, queue: usize) {
        if !self.queue(queue).is(Place::Idle) {
            return;
        }
        let mut schedule = self.schedule.lock();
        if self.queue(queue).is(Place::Idle) && self.has_work(queue) {
            self.offer(&mut schedule, queue, 0);
        }
    }

    fn has_work(&self, queue: usize) -> bool {
        !self.queue(queue).jobs.0.lock().is_empty()
    }

    /// Says where a queue is. Under the schedule's lock.
    fn put(&self, _schedule: &mut Schedule, queue: usize, place: Place) {
        let before = self.queue(queue).place.swap(place as u8, Ordering::Relaxed);
        if place == Place::Blocked {
            self.blocked.fetch_add(1, Ordering::SeqCst);
        }
        if before == Place::Blocked as u8 {
            self.blocked.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Puts a queue that has work where it belongs. So many workers are about to look by themselves.
    fn offer(&self, schedule: &mut Schedule, queue: usize, looking: usize) {
        if !self.next_is_reached(queue) {
            self.put(schedule, queue, Place::Blocked);
            // A worker that completes a job from here on sees that a queue is blocked; what was completed before is seen here.
            fence(Ordering::SeqCst);
            if !self.next_is_reached(queue) {
                return;
            }
        }
        self.put(schedule, queue, Place::Ready);
        schedule.ready.push_back(queue);
        self.call(schedule, schedule.ready.len().saturating_sub(looking));
    }

    /// There are some things to do: lets a worker know if no other will see them.
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
        let completed = &self.queue(wait.point.queue.ordinal()).progress.0.completed;
        completed.load(Ordering::Acquire) >= wait.point.epoch
    }

    /// The next thing for a worker to do; sleeps until there is one.
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

    /// Something for a worker to do, if there is anything.
    fn find(&self, schedule: &mut Schedule) -> Option<Task> {
        if !schedule.delayed.is_empty() {
            let now = Instant::now();
            if let Some(at) = schedule.delayed.iter().position(|delayed| delayed.until <= now) {
                let delayed = schedule.delayed.swap_remove(at);
                self.put(schedule, delayed.queue, Place::Busy);
                return Some(Task::Complete(delayed.queue, delayed.completed));
            }
        }
        if let Some(queue) = self.draw(schedule) {
            self.put(schedule, queue, Place::Busy);
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

    /// Does jobs of a queue, and leaves it where it belongs.
    pub(crate) fn run(&self, queue: usize, worker: usize, batch: &mut VecDeque<MockJob>) {
        let turn = if self.seeded { 1 } else { TURN };
        // A job that completes late holds up those behind it, which therefore stay on their queue.
        let at_once = if self.seeded || self.delays { 1 } else { BATCH };
        let mut left = turn;
        let mut unreported = Unreported::default();
        while left > 0 {
            self.take(queue, left.min(at_once), batch);
            if batch.len() == unreported.count && unreported.count > 0 {
                // The submitting thread is mostly about to submit more; else what has ended may set the next job free.
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

    /// Whether more is submitted soon to a queue that has nothing left. Where that was not so lately, it is tried only now
    /// and then.
    fn linger(&self, queue: usize) -> bool {
        if self.watchers == 0 {
            return false;
        }
        let queue = self.queue(queue);
        let Progress { completed, linger } = &queue.progress.0;
        let done = completed.load(Ordering::Relaxed);
        linger.spin_until(LINGER, || queue.submitted.load(Ordering::Acquire) > done)
    }

    /// Takes the next jobs of a queue, as far as their waits are reached.
    fn take(&self, queue: usize, most: usize, batch: &mut VecDeque<MockJob>) {
        let queue = self.queue(queue);
        let completed = || queue.progress.0.completed.load(Ordering::Relaxed);
        let taken = batch.back().map_or_else(completed, |job| job.epoch);
        // If nothing was submitted the lock is left to submitting threads. What comes between is seen by the worker that leaves the queue.
        if queue.submitted.load(Ordering::Acquire) <= taken {
            return;
        }
        let mut jobs = queue.jobs.0.lock();
        let ready = jobs.iter().take(most).take_while(|job| self.all_reached(job)).count();
        batch.extend(jobs.drain(..ready));
        if jobs.is_empty() {
            // The next ones lie where these did, which both sides have in their caches, and not further round.
            jobs.clear();
        }
    }

    /// A worker is done with a queue for now.
    pub(crate) fn leave(&self, queue: usize) {
        let mut schedule = self.schedule.lock();
        // First idle, then another look: a thread that adds a job after it sees that the queue is idle.
        self.put(&mut schedule, queue, Place::Idle);
        if self.has_work(queue) {
            self.offer(&mut schedule, queue, 1);
        }
    }

    /// How long a job will take, roughly.
    fn time(&self, job: &MockJob) -> Duration {
        job.commands.iter().map(command::time).fold(Duration::ZERO, Duration::saturating_add)
    }

    /// Runs the next job of the batch and completes it; false if it completes later, and the queue is not ours any more.
    fn work_on(
        &self,
        queue: usize,
        batch: &mut VecDeque<MockJob>,
        worker: usize,
        unreported: &mut Unreported,
    ) -> bool {
        // The caller has seen it there, and a report leaves it the first one.
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
            None => self.faults.strike(Kind::Job).and_then(|()| self.execute(job, worker)),
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
        self.put(&mut schedule, queue, Place::Delayed);
        schedule.delayed.push(Delayed { queue, until: Instant::now() + delay, completed });
        // A worker may have to wake earlier than it meant to.
        self.offers.fetch_add(1, Ordering::Release);
        self.work.notify_one();
        false
    }

    /// Reports jobs that have ended well. What they used is free before their completion is reported.
    fn report(&self, queue: usize, unreported: &mut Unreported, batch: &mut VecDeque<MockJob>) {
        let unreported = std::mem::take(unreported);
        batch.drain(..unreported.count);
        let Some((id, epoch)) = unreported.last else { return };
        self.report_done(queue, Done { id, epoch, outcome: Ok(()) }, unreported.count);
    }

    /// Reports a job.
    pub(crate) fn complete(&self, queue: usize, completed: Completed) {
        self.pass(queue, &completed);
        self.report_done(queue, completed.done, 1);
    }

    /// A job has ended, failed or not: native waits for it are over.
    fn pass(&self, queue: usize, completed: &Completed) {
        if let Some(event) = &completed.event {
            event.record();
        }
        self.queue(queue).progress.0.completed.store(completed.done.epoch, Ordering::Release);
    }

    /// Reports some jobs that have passed, of which `done` is the last, and lets those go that waited for them.
    fn report_done(&self, queue: usize, done: Done, count: usize) {
        self.queue(queue).depth.fetch_sub(count, Ordering::Relaxed);
        self.unblock();
        if !self.lost.load(Ordering::Acquire) {
            self.reports.done(done);
        }
    }

    /// Looks at the queues that wait for others.
    fn unblock(&self) {
        // Either this sees that a queue is blocked, or the worker that blocks it sees what is complete.
        fence(Ordering::SeqCst);
        if self.blocked.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut schedule = self.schedule.lock();
        for (number, queue) in self.queues.iter().enumerate() {
            if queue.is(Place::Blocked) && self.next_is_reached(number) {
                self.offer(&mut schedule, number, 0);
            }
        }
    }

    fn lose(&self, failure: Failure) {
        let _ = self.aborted.set(failure.clone());
        self.lost.store(true, Ordering::Release);
        self.reports.lost(failure);
    }

    /// A worker has panicked: its queue stays where it is. Lets go of all jobs, and ends what waits for that queue.
    pub(crate) fn worker_panicked(&self, why: &Failure) {
        self.lost.store(true, Ordering::Release);
        self.abort(why);
        let jobs: Vec<_> =
            self.queues.iter().map(|queue| std::mem::take(&mut *queue.jobs.0.lock())).collect();
        let shares = std::mem::take(&mut self.schedule.lock().shares);
        drop((jobs, shares));
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
        self.offers.fetch_add(1, Ordering::Release);
        self.work.notify_all();
    }

    fn execute(&self, job: &MockJob, worker: usize) -> Result<(), Failure> {
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

    /// Does a command, with the help of other workers if it is large.
    fn command(&self, command: &Command<MockDevice>, worker: usize) -> Result<(), Failure> {
        let extent = command::extent(command, self.workers, self.watched.load(Ordering::Relaxed))?;
        let begin = matches!(command, Command::Dispatch(_)).then(Instant::now);
        let (outcome, done) = if extent.is_shared() {
            self.share(command, &extent, worker)
        } else {
            (command::part(command, &extent, 0..extent.pieces, worker), extent.pieces)
        };
        if let Some(begin) = begin {
            command::learn(command, begin, done);
        }
        outcome
    }

    /// Does a command on this worker and on every idle one; also says how many pieces this one did.
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
