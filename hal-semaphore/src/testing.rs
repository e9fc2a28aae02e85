// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A device made of software, for tests, examples and benchmarks: a model of a backend, which also detects the
//! engine's mistakes.
//!
//! [`SoftBackend`] is a device with any number of queues. Its [`Job`]s only leave their tag in a log. It moves
//! only when a test says so: [`step`](SoftBackend::step) runs the head of a queue if its native waits allow, and
//! [`report`](SoftBackend::report) reports it, so that a test can report late, or one queue before another.
//! With [`eager`](SoftBackend::eager) everything runs and is reported from inside `submit`.
//!
//! Its events are binary, like a GPU's: a new recording overwrites the old one. A wait remembers its recording.
//! If a queue comes to a wait whose event was recorded again, that counts as a
//! [violation](SoftBackend::violations): the engine recycled an event that was still waited for.

use crate::backend::{
    Backend, Batch, Completer, Completion, DeviceSpec, Ended, HostTask, NativeWaits, Submitted,
};
use crate::engine::DeferredCallbacks;
use crate::failure::{Code, Failure};
use crate::ids::QueueId;
use crate::semaphore::Semaphore;
use crate::sync::{Guard, Mutex};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A small seeded generator of random numbers (SplitMix64): the seed of a failure is enough to repeat it.
#[derive(Clone, Debug)]
pub struct Seeded(u64);

impl Seeded {
    /// A generator whose numbers follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "the sequence has no end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is above zero.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).expect("below a usize")
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// Work of a software device: it logs its tag, or fails.
#[derive(Debug, Default)]
pub struct Job {
    /// The tag that the log shows.
    pub tag: u64,
    /// The failure that the device reports instead of success.
    pub failure: Option<Failure>,
    /// The answer at submission: the device cannot take this; or the host's answer to
    /// [`try_early`](Backend::try_early).
    pub refuse: Option<Failure>,
    /// True if the host can do it early.
    pub early: bool,
}

impl Job {
    /// A job that the host can do early, or cannot.
    pub fn early(tag: u64, early: bool) -> Self {
        Self { tag, early, ..Self::default() }
    }

    /// A job that succeeds.
    pub fn new(tag: u64) -> Self {
        Self { tag, ..Self::default() }
    }

    /// A job that fails when it runs.
    pub fn failing(tag: u64, failure: Failure) -> Self {
        Self { tag, failure: Some(failure), ..Self::default() }
    }

    /// A job that its device does not accept.
    pub fn refused(tag: u64, failure: Failure) -> Self {
        Self { tag, refuse: Some(failure), ..Self::default() }
    }
}

#[derive(Clone, Copy, Debug)]
struct Recording {
    event: usize,
    number: u64,
}

#[derive(Debug, Default)]
struct EventState {
    number: u64,
    fired: bool,
}

#[derive(Debug)]
struct Queued {
    epoch: u64,
    tag: Option<u64>,
    failure: Option<Failure>,
    waits: SmallVec<[(usize, u64, Option<Recording>); 2]>,
    record: Option<Recording>,
}

#[derive(Debug, Default)]
struct SoftQueue {
    queued: VecDeque<Queued>,
    ran: VecDeque<(u64, Option<Failure>)>,
    executed: u64,
}

/// The outcome of a step of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftStep {
    /// Nothing is queued.
    Idle,
    /// The head waits natively for another queue.
    Blocked,
    /// The head ran; it was this epoch.
    Ran(u64),
}

#[derive(Debug, Default)]
struct SoftState {
    queues: Vec<SoftQueue>,
    events: Vec<EventState>,
    log: Vec<(QueueId, Option<u64>)>,
    violations: usize,
    reclaimed: Vec<(u64, Result<(), Failure>)>,
    host: Vec<(HostTask, Job)>,
    markers: Vec<(QueueId, u64)>,
    early: Vec<u64>,
    native_waits: usize,
    aborted: bool,
    deferred: Vec<DeferredCallbacks>,
}

/// A device made of software. See the [module documentation](self).
pub struct SoftBackend {
    spec: DeviceSpec,
    eager: bool,
    without_log: bool,
    capacity: usize,
    device_capacity: AtomicUsize,
    event_limit: usize,
    state: Mutex<SoftState>,
    ids: Mutex<Vec<QueueId>>,
    completer: OnceLock<Completer>,
}

impl fmt::Debug for SoftBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SoftBackend").field("spec", &self.spec).finish_non_exhaustive()
    }
}

/// A device with this many queues, and event objects.
pub fn device(queues: usize) -> DeviceSpec {
    DeviceSpec { queues, native_waits: NativeWaits::Events, completion: Completion::Callback }
}

impl SoftBackend {
    /// A device that runs when a test says so.
    pub fn new(spec: DeviceSpec) -> Self {
        let queues = (0..spec.queues).map(|_| SoftQueue::default()).collect();
        let state = SoftState { queues, ..SoftState::default() };
        Self {
            spec,
            eager: false,
            without_log: false,
            capacity: usize::MAX,
            device_capacity: AtomicUsize::new(usize::MAX),
            event_limit: usize::MAX,
            state: Mutex::new(state),
            ids: Mutex::new(Vec::new()),
            completer: OnceLock::new(),
        }
    }

    /// Everything runs and is reported from inside `submit`, as soon as its waits allow.
    #[must_use]
    pub fn eager(mut self) -> Self {
        self.eager = true;
        self
    }

    /// Keeps no log, and nothing that was reclaimed.
    #[must_use]
    pub fn without_log(mut self) -> Self {
        self.without_log = true;
        self
    }

    /// Each queue has capacity for this many jobs that have not run.
    #[must_use]
    pub fn capacity(mut self, jobs: usize) -> Self {
        self.capacity = jobs;
        self
    }

    /// From now on the device has capacity for this many unreported jobs, on all of its queues together.
    pub fn set_device_capacity(&self, jobs: usize) {
        let state = self.state();
        self.device_capacity.store(jobs, Ordering::Relaxed);
        drop(state);
    }

    fn has_room(&self, state: &SoftState, id: QueueId) -> bool {
        let there: usize = state.queues.iter().map(|queue| queue.queued.len() + queue.ran.len()).sum();
        there < self.device_capacity.load(Ordering::Relaxed)
            && state.queues.get(id.index()).is_some_and(|queue| queue.queued.len() < self.capacity)
    }

    /// The device can make this many events.
    #[must_use]
    pub fn event_limit(mut self, events: usize) -> Self {
        self.event_limit = events;
        self
    }

    fn state(&self) -> Guard<'_, SoftState> {
        self.state.lock()
    }

    /// The completer that the engine gave to this backend.
    pub fn completer(&self) -> Completer {
        self.completer.get().expect("the engine has started the backend").clone()
    }

    /// Lets the head of a queue run, without reporting it.
    pub fn step(&self, queue: QueueId) -> SoftStep {
        self.state().step(queue, self.without_log)
    }

    /// Reports the oldest unreported job of a queue that ran. Returns whether there was one.
    ///
    /// The calling thread acts as one of the device's, and first runs the callbacks that a submitting thread
    /// deferred.
    pub fn report(&self, queue: QueueId) -> bool {
        self.call_back();
        self.report_one(queue)
    }

    /// Runs the callbacks that became due on a submitting thread.
    pub fn call_back(&self) {
        loop {
            let deferred = std::mem::take(&mut self.state().deferred);
            if deferred.is_empty() {
                return;
            }
            for callbacks in deferred {
                callbacks.run();
            }
        }
    }

    fn report_one(&self, queue: QueueId) -> bool {
        let ran = self.state().queues.get_mut(queue.index()).and_then(|queue| queue.ran.pop_front());
        let Some((epoch, failure)) = ran else { return false };
        let completer = self.completer();
        // The engine may be gone by now; then the report is dropped.
        let _ = match failure {
            None => completer.complete(queue, epoch),
            Some(failure) => completer.fail(queue, epoch, failure),
        };
        true
    }

    /// Runs and reports everything that can run, until nothing can.
    pub fn run_until_idle(&self) {
        self.call_back();
        self.run_queues_until_idle();
        self.call_back();
    }

    fn run_queues_until_idle(&self) {
        loop {
            let ids = self.ids.lock().clone();
            let mut moved = false;
            for queue in ids {
                while matches!(self.step(queue), SoftStep::Ran(_)) {
                    moved = true;
                }
                while self.report_one(queue) {
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// As [`run_until_idle`](SoftBackend::run_until_idle), and ends all host jobs with success.
    pub fn run_until_idle_with_host(&self) {
        loop {
            self.run_until_idle();
            let host = self.take_host();
            if host.is_empty() {
                return;
            }
            for (task, _) in host {
                task.finish(Ok(()));
            }
        }
    }

    /// Loses the device: its jobs are gone, and the engine is notified.
    pub fn lose(&self, failure: Failure) {
        let mut state = self.state();
        for queue in &mut state.queues {
            queue.queued.clear();
            queue.ran.clear();
        }
        drop(state);
        // The engine may be gone by now; then the report is dropped.
        let _ = self.completer().lose(failure);
    }

    /// How many jobs a queue holds that have not run.
    pub fn queued(&self, queue: QueueId) -> usize {
        self.state().queues.get(queue.index()).map_or(0, |queue| queue.queued.len())
    }

    /// The jobs that ran, in order: the queue and the tag (`None` for a barrier).
    pub fn log(&self) -> Vec<(QueueId, Option<u64>)> {
        self.state().log.clone()
    }

    /// The tags that ran, in order.
    pub fn tags(&self) -> Vec<u64> {
        self.state().log.iter().filter_map(|&(_, tag)| tag).collect()
    }

    /// How often a queue came to a wait whose event had been recorded again.
    pub fn violations(&self) -> usize {
        self.state().violations
    }

    /// How many native waits the device was given.
    pub fn native_waits(&self) -> usize {
        self.state().native_waits
    }

    /// The reclaimed jobs, in order, and their results.
    pub fn reclaimed(&self) -> Vec<(u64, Result<(), Failure>)> {
        self.state().reclaimed.clone()
    }

    /// The tags of coalesced markers, in order.
    pub fn markers(&self) -> Vec<(QueueId, u64)> {
        self.state().markers.clone()
    }

    /// The tags of jobs that were done early, in order.
    pub fn done_early(&self) -> Vec<u64> {
        self.state().early.clone()
    }

    /// The host jobs that were started and have not ended.
    pub fn take_host(&self) -> Vec<(HostTask, Job)> {
        std::mem::take(&mut self.state().host)
    }

    /// True if the device was aborted.
    pub fn is_aborted(&self) -> bool {
        self.state().aborted
    }
}

impl SoftState {
    fn step(&mut self, id: QueueId, without_log: bool) -> SoftStep {
        let Some(head) = self.queues.get(id.index()).and_then(|queue| queue.queued.front()) else {
            return SoftStep::Idle;
        };
        for &(producer, epoch, recording) in &head.waits {
            let stale = recording.is_some_and(|recording| {
                self.events.get(recording.event).is_none_or(|event| event.number != recording.number)
            });
            if stale {
                self.violations += 1;
            }
            let fired = match recording {
                Some(recording) => self.events.get(recording.event).is_some_and(|event| event.fired),
                None => self.queues.get(producer).is_some_and(|queue| queue.executed >= epoch),
            };
            if !fired {
                return SoftStep::Blocked;
            }
        }
        let Some(queue) = self.queues.get_mut(id.index()) else { return SoftStep::Idle };
        let Some(job) = queue.queued.pop_front() else { return SoftStep::Idle };
        queue.executed = job.epoch;
        queue.ran.push_back((job.epoch, job.failure));
        if let Some(event) = job.record.and_then(|recording| self.events.get_mut(recording.event)) {
            event.fired = true;
        }
        if !without_log {
            self.log.push((id, job.tag));
        }
        SoftStep::Ran(job.epoch)
    }
}

impl Backend for SoftBackend {
    type Timeline = Semaphore;
    type Work = Job;
    type Event = usize;

    fn device(&self) -> DeviceSpec {
        self.spec
    }

    fn start(&self, completer: Completer) {
        let _ = self.completer.set(completer);
    }

    fn submit(&self, queue: QueueId, batch: &mut Batch<'_, Self>) -> Submitted {
        let mut state = self.state();
        {
            let mut ids = self.ids.lock();
            if !ids.contains(&queue) {
                ids.push(queue);
            }
        }
        let mut answer = Submitted::all();
        for (accepted, submission) in batch.iter().enumerate() {
            if let Some(failure) = submission.work.as_ref().and_then(|job| job.refuse.clone()) {
                answer = Submitted::failed(accepted, failure);
                break;
            }
            if submission.coalesced {
                if let Some(job) = submission.work.as_ref().filter(|_| !self.without_log) {
                    state.markers.push((queue, job.tag));
                }
                continue;
            }
            if !self.has_room(&state, queue) {
                answer = Submitted::full(accepted);
                break;
            }
            let mut waits = SmallVec::new();
            for wait in submission.waits {
                let recording = wait.event.map(|event| Recording {
                    event,
                    number: state.events.get(event).map_or(0, |event| event.number),
                });
                waits.push((wait.point.queue.index(), wait.point.epoch, recording));
            }
            state.native_waits += waits.len();
            let record = submission.event.map(|&event| {
                let number = state.events.get_mut(event).map_or(0, |event| {
                    event.number += 1;
                    event.fired = false;
                    event.number
                });
                Recording { event, number }
            });
            let epoch = submission.epoch;
            let (tag, failure) =
                submission.work.as_mut().map_or((None, None), |job| (Some(job.tag), job.failure.take()));
            if let Some(queue) = state.queues.get_mut(queue.index()) {
                queue.queued.push_back(Queued { epoch, tag, failure, waits, record });
            }
        }
        drop(state);
        if self.eager {
            self.run_queues_until_idle();
        }
        answer
    }

    fn create_event(&self) -> Result<usize, Failure> {
        let mut state = self.state();
        if state.events.len() >= self.event_limit {
            return Err(Failure::new(Code::ResourceExhausted, "the device is out of events"));
        }
        state.events.push(EventState::default());
        Ok(state.events.len() - 1)
    }

    fn run(&self, task: HostTask, work: Job) {
        if self.eager {
            task.finish(work.failure.map_or(Ok(()), Err));
        } else {
            self.state().host.push((task, work));
        }
    }

    fn clean_up(&self, task: HostTask, work: Job, _why: &Failure) {
        self.run(task, work);
    }

    fn try_early(&self, job: &mut Job) -> Result<bool, Failure> {
        if let Some(failure) = job.refuse.clone() {
            return Err(failure);
        }
        if job.early && !self.without_log {
            self.state().early.push(job.tag);
        }
        Ok(job.early)
    }

    fn defer(&self, callbacks: DeferredCallbacks) {
        if self.eager && !cfg!(any(loom, shuttle)) {
            // No test steps an eager device by hand.
            callbacks.run_elsewhere();
        } else {
            self.state().deferred.push(callbacks);
        }
    }

    fn reclaim(&self, ended: Ended<Job>) {
        if let Some(job) = ended.work
            && !self.without_log
        {
            self.state().reclaimed.push((job.tag, ended.outcome));
        }
    }

    fn poll(&self) {
        self.run_queues_until_idle();
    }

    fn abort(&self, _why: &Failure) {
        self.state().aborted = true;
    }
}
