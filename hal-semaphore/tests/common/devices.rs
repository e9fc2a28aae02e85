// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A device that a test drives by hand, with hooks inside the backend.
//!
//! [`Devices`] differs from the library's own `SoftBackend` by its hooks: a test can run code from *inside* the
//! backend while an event is made, while one item of a batch is accepted, before `submit` answers, while work
//! is reclaimed. From there it may call the engine, as any backend may. Each queue has a capacity, and so has
//! the device as a whole.
//!
//! Nothing moves by itself: [`step`](Devices::step) runs the head of a queue, [`report`](Devices::report)
//! reports the oldest job that ran.

use super::TestEngine;
use hal_semaphore::backend::{
    Backend, Batch, Completer, Completion, DeviceSpec, Ended, HostTask, NativeWaits, Submission, Submitted,
};
use hal_semaphore::*;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// A failure of an operation's own work.
pub(crate) fn broken(message: &str) -> Failure {
    Failure::new(Code::DataLoss, message)
}

/// The loss of a device.
pub(crate) fn gone() -> Failure {
    Failure::with_origin(Code::Unavailable, Origin::Device, "the device is gone")
}

/// Work with a number.
#[derive(Debug, Default)]
pub(crate) struct Job {
    pub(crate) id: u64,
    failure: Option<Failure>,
    refusal: Option<Failure>,
    early: bool,
}

impl Job {
    pub(crate) fn new(id: u64) -> Self {
        Self { id, ..Self::default() }
    }

    /// The device, or the host, reports this instead of success.
    pub(crate) fn fails(self, failure: &Failure) -> Self {
        Self { failure: Some(failure.clone()), ..self }
    }

    /// The device cannot take it.
    pub(crate) fn refused(self, failure: &Failure) -> Self {
        Self { refusal: Some(failure.clone()), ..self }
    }

    /// The host can do it before its waits are reached.
    pub(crate) fn early(self) -> Self {
        Self { early: true, ..self }
    }
}

/// The calls in which a hook runs. None of the devices' own locks is held there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The engine requests an event, which does not exist yet.
    EventCreation,
    /// A batch for this queue has arrived, and nothing of it is taken yet.
    SubmitBegins(usize),
    /// The device has just taken the job with this number, and the rest of its batch not yet.
    Taken(u64),
    /// The device has taken what it takes of a batch for this queue, and has not answered yet.
    SubmitEnds(usize),
    /// The engine tries the job with this number early.
    Early(u64),
    /// The work of the job with this number is reclaimed.
    Reclaim(u64),
    /// The device is aborted.
    Abort,
}

enum Hook {
    Once(Box<dyn FnOnce(&Devices) + Send>),
    Always(Arc<dyn Fn(&Devices) + Send + Sync>),
}

#[derive(Clone, Copy, Debug)]
struct Recording {
    event: usize,
    number: u64,
}

struct FakeEvent {
    number: u64,
    fired: bool,
}

struct Queued {
    epoch: u64,
    id: Option<u64>,
    failure: Option<Failure>,
    waits: Vec<(Point, Option<Recording>)>,
    records: Option<Recording>,
}

#[derive(Default)]
struct HardwareQueue {
    id: Option<QueueId>,
    queued: VecDeque<Queued>,
    ran: VecDeque<(u64, Option<Failure>)>,
    executed: u64,
    batches: Vec<usize>,
}

#[derive(Default)]
struct DevicesState {
    queues: Vec<HardwareQueue>,
    events: Vec<FakeEvent>,
    lost: bool,
    answers: Vec<(usize, Submitted)>,
    last_answers: Vec<(usize, Submitted)>,
    host: Vec<(HostTask, Job)>,
    ran: Vec<u64>,
    markers: Vec<u64>,
    early: Vec<u64>,
    returned: Vec<(u64, Result<(), Failure>)>,
    native_waits: Vec<(Point, bool)>,
    stale_events: usize,
}

/// A device made of software. See the [module documentation](self).
pub(crate) struct Devices {
    spec: DeviceSpec,
    queue_capacity: usize,
    device_capacity: usize,
    event_limit: usize,
    keeps_deferred: bool,
    deferred: Mutex<Vec<DeferredCallbacks>>,
    state: Mutex<DevicesState>,
    hooks: Mutex<Vec<(Moment, Hook)>>,
    completer: OnceLock<Completer>,
}

/// A device with so many queues, which reports by itself.
pub(crate) fn device(queues: usize, native_waits: NativeWaits) -> DeviceSpec {
    DeviceSpec { queues, native_waits, completion: Completion::Callback }
}

impl Devices {
    pub(crate) fn new(spec: DeviceSpec) -> Self {
        let queues = (0..spec.queues).map(|_| HardwareQueue::default()).collect();
        let state = DevicesState { queues, ..DevicesState::default() };
        Self {
            spec,
            queue_capacity: usize::MAX,
            device_capacity: usize::MAX,
            event_limit: usize::MAX,
            keeps_deferred: false,
            deferred: Mutex::default(),
            state: Mutex::new(state),
            hooks: Mutex::default(),
            completer: OnceLock::new(),
        }
    }

    /// Each queue has capacity for this many jobs that have not run.
    pub(crate) fn queue_capacity(self, jobs: usize) -> Self {
        Self { queue_capacity: jobs, ..self }
    }

    /// The queues share capacity for this many jobs that have not run.
    pub(crate) fn device_capacity(self, jobs: usize) -> Self {
        Self { device_capacity: jobs, ..self }
    }

    /// So many events can be made.
    pub(crate) fn event_limit(self, events: usize) -> Self {
        Self { event_limit: events, ..self }
    }

    /// No thread runs deferred callbacks until the test [drops](Devices::let_deferred_go) them.
    pub(crate) fn keeps_deferred(self) -> Self {
        Self { keeps_deferred: true, ..self }
    }

    /// Drops what was deferred and kept, which runs it. An engine lives as long as something of it is kept.
    pub(crate) fn drop_deferred(&self) {
        let kept = std::mem::take(&mut *self.deferred.lock().expect("nothing runs with this lock"));
        drop(kept);
    }

    /// An engine for this device.
    pub(crate) fn start(self) -> TestEngine {
        TestEngine { engine: Engine::new(self).expect("the devices are well described") }
    }

    fn state(&self) -> MutexGuard<'_, DevicesState> {
        self.state.lock().expect("no hook runs with this lock")
    }

    /// The completer that the engine gave to this backend.
    pub(crate) fn completer(&self) -> &Completer {
        self.completer.get().expect("the engine has started the backend")
    }

    /// Runs `hook` the next time that the moment comes.
    pub(crate) fn once(&self, moment: Moment, hook: impl FnOnce(&Devices) + Send + 'static) {
        self.add_hook(moment, Hook::Once(Box::new(hook)));
    }

    /// Runs `hook` each time that the moment comes.
    pub(crate) fn always(&self, moment: Moment, hook: impl Fn(&Devices) + Send + Sync + 'static) {
        self.add_hook(moment, Hook::Always(Arc::new(hook)));
    }

    fn add_hook(&self, moment: Moment, hook: Hook) {
        self.hooks.lock().expect("no hook runs with this lock").push((moment, hook));
    }

    fn come(&self, moment: Moment) {
        let mut hooks = self.hooks.lock().expect("no hook runs with this lock");
        let kept: Vec<_> = hooks
            .iter()
            .filter_map(|(at, hook)| match hook {
                Hook::Always(hook) if *at == moment => Some(hook.clone()),
                _ => None,
            })
            .collect();
        let due: Vec<_> =
            hooks.extract_if(.., |(at, hook)| *at == moment && matches!(hook, Hook::Once(_))).collect();
        drop(hooks);
        for hook in kept {
            hook(self);
        }
        for (_, hook) in due {
            if let Hook::Once(hook) = hook {
                hook(self);
            }
        }
    }

    /// The next batch for this queue gets this answer, and nothing of it is taken.
    pub(crate) fn answer_next(&self, queue: usize, answer: Submitted) {
        self.state().answers.push((queue, answer));
    }

    /// The next batch for this queue gets this answer after it was taken.
    pub(crate) fn answer_last(&self, queue: usize, answer: Submitted) {
        self.state().last_answers.push((queue, answer));
    }

    /// Lets the head of a queue run, if its native waits allow. True if something ran.
    pub(crate) fn step(&self, queue: usize) -> bool {
        let state = &mut *self.state();
        let Some(head) = state.queues[queue].queued.front() else { return false };
        for &(point, recording) in &head.waits {
            let fired = match recording {
                None => state.queues[point.queue.index()].executed >= point.epoch,
                Some(Recording { event, number }) => {
                    state.stale_events += usize::from(state.events[event].number != number);
                    state.events[event].fired
                }
            };
            if !fired {
                return false;
            }
        }
        let hardware = &mut state.queues[queue];
        let Some(job) = hardware.queued.pop_front() else { return false };
        hardware.executed = job.epoch;
        hardware.ran.push_back((job.epoch, job.failure));
        if let Some(Recording { event, number }) = job.records
            && state.events[event].number == number
        {
            state.events[event].fired = true;
        }
        state.ran.extend(job.id);
        true
    }

    /// Reports the oldest thing that ran on a queue and was not reported. True if there was one.
    pub(crate) fn report(&self, queue: usize) -> bool {
        let mut state = self.state();
        let hardware = &mut state.queues[queue];
        let (Some(id), Some((epoch, failure))) = (hardware.id, hardware.ran.pop_front()) else {
            return false;
        };
        drop(state);
        // The engine may be gone by now; then the report is dropped.
        let _ = match failure {
            None => self.completer().complete(id, epoch),
            Some(failure) => self.completer().fail(id, epoch, failure),
        };
        true
    }

    /// Runs and reports everything that can run.
    pub(crate) fn run_until_idle(&self) {
        let queues = self.state().queues.len();
        let mut moved = true;
        while moved {
            moved = false;
            for queue in 0..queues {
                while self.step(queue) || self.report(queue) {
                    moved = true;
                }
            }
        }
    }

    /// As [`run_until_idle`](Devices::run_until_idle), and ends what the host was given.
    pub(crate) fn run_until_idle_with_host(&self) {
        loop {
            self.run_until_idle();
            let host = self.take_host();
            if host.is_empty() {
                return;
            }
            for (task, job) in host {
                task.finish(job.failure.map_or(Ok(()), Err));
            }
        }
    }

    /// Loses the device: its jobs are gone, and the engine is notified.
    pub(crate) fn lose(&self, failure: &Failure) {
        let mut state = self.state();
        state.lost = true;
        for hardware in &mut state.queues {
            hardware.queued.clear();
            hardware.ran.clear();
        }
        drop(state);
        // The engine may be gone by now; then the report is dropped.
        let _ = self.completer().lose(failure.clone());
    }

    /// How many queues there are.
    pub(crate) fn queues(&self) -> usize {
        self.spec.queues
    }

    /// How many jobs a queue holds that have not run.
    pub(crate) fn queued(&self, queue: usize) -> usize {
        self.state().queues[queue].queued.len()
    }

    /// How many items each batch for a queue had.
    pub(crate) fn batches(&self, queue: usize) -> Vec<usize> {
        self.state().queues[queue].batches.clone()
    }

    /// The jobs that ran, in order.
    pub(crate) fn ran(&self) -> Vec<u64> {
        self.state().ran.clone()
    }

    /// The markers that came to a queue without going to its device, in order.
    pub(crate) fn markers(&self) -> Vec<u64> {
        self.state().markers.clone()
    }

    /// The jobs that were done early, in order.
    pub(crate) fn done_early(&self) -> Vec<u64> {
        self.state().early.clone()
    }

    /// The reclaimed jobs, in order, and their results.
    pub(crate) fn returned(&self) -> Vec<(u64, Result<(), Failure>)> {
        self.state().returned.clone()
    }

    /// The numbers of the reclaimed jobs, in order.
    pub(crate) fn reclaimed(&self) -> Vec<u64> {
        self.state().returned.iter().map(|(id, _)| *id).collect()
    }

    /// Forgets all that was written down so far.
    pub(crate) fn forget(&self) {
        let mut state = self.state();
        state.ran.clear();
        state.markers.clear();
        state.early.clear();
        state.returned = Vec::new();
        state.native_waits.clear();
        for queue in &mut state.queues {
            queue.batches.clear();
        }
    }

    /// The native waits that queues were given, and whether each had an event.
    pub(crate) fn native_waits(&self) -> Vec<(Point, bool)> {
        self.state().native_waits.clone()
    }

    /// How often a queue came to a wait whose event had been recorded again since.
    pub(crate) fn stale_events(&self) -> usize {
        self.state().stale_events
    }

    /// The host jobs that were started and not ended.
    pub(crate) fn take_host(&self) -> Vec<(HostTask, Job)> {
        std::mem::take(&mut self.state().host)
    }

    /// Accepts one item of a batch, or returns why not.
    fn take(
        &self,
        queue: QueueId,
        position: usize,
        item: Submission<'_, Self>,
    ) -> Result<Option<u64>, Submitted> {
        let state = &mut *self.state();
        if state.lost {
            return Err(Submitted::lost(gone()));
        }
        if let Some(refusal) = item.work.as_ref().and_then(|job| job.refusal.clone()) {
            return Err(Submitted::failed(position, refusal));
        }
        let id = item.work.as_ref().map(|job| job.id);
        if item.coalesced {
            state.markers.extend(id);
            return Ok(id);
        }
        let shared: usize = state.queues.iter().map(|queue| queue.queued.len()).sum();
        let own = state.queues[queue.index()].queued.len();
        if own >= self.queue_capacity || shared >= self.device_capacity {
            return Err(Submitted::full(position));
        }
        let waits: Vec<_> = item
            .waits
            .iter()
            .map(|wait| {
                let recording =
                    wait.event.map(|event| Recording { event, number: state.events[event].number });
                (wait.point, recording)
            })
            .collect();
        state.native_waits.extend(waits.iter().map(|(point, recording)| (*point, recording.is_some())));
        let records = item.event.map(|&event| {
            let record = &mut state.events[event];
            record.number += 1;
            record.fired = false;
            Recording { event, number: record.number }
        });
        let failure = item.work.as_ref().and_then(|job| job.failure.clone());
        state.queues[queue.index()].queued.push_back(Queued {
            epoch: item.epoch,
            id,
            failure,
            waits,
            records,
        });
        Ok(id)
    }
}

impl Backend for Devices {
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
        let hardware = &mut state.queues[queue.index()];
        hardware.id = Some(queue);
        hardware.batches.push(batch.len());
        drop(state);
        self.come(Moment::SubmitBegins(queue.index()));
        let mut state = self.state();
        let scripted = state.answers.iter().position(|(at, _)| *at == queue.index());
        if let Some(scripted) = scripted {
            return state.answers.remove(scripted).1;
        }
        drop(state);
        let mut answer = Submitted::all();
        for (position, item) in batch.iter().enumerate() {
            match self.take(queue, position, item) {
                Ok(Some(id)) => self.come(Moment::Taken(id)),
                Ok(None) => {}
                Err(stopped) => {
                    answer = stopped;
                    break;
                }
            }
        }
        self.come(Moment::SubmitEnds(queue.index()));
        let mut state = self.state();
        if let Some(at) = state.last_answers.iter().position(|(at, _)| *at == queue.index()) {
            answer = state.last_answers.remove(at).1;
        }
        answer
    }

    fn create_event(&self) -> Result<usize, Failure> {
        self.come(Moment::EventCreation);
        let mut state = self.state();
        if state.events.len() >= self.event_limit {
            return Err(Failure::new(Code::ResourceExhausted, "the device is out of events"));
        }
        state.events.push(FakeEvent { number: 0, fired: false });
        Ok(state.events.len() - 1)
    }

    fn run(&self, task: HostTask, job: Job) {
        self.state().host.push((task, job));
    }

    fn clean_up(&self, task: HostTask, job: Job, _why: &Failure) {
        self.run(task, job);
    }

    fn try_early(&self, job: &mut Job) -> Result<bool, Failure> {
        self.come(Moment::Early(job.id));
        if let Some(refusal) = job.refusal.clone() {
            return Err(refusal);
        }
        if job.early {
            self.state().early.push(job.id);
        }
        Ok(job.early)
    }

    fn defer(&self, callbacks: DeferredCallbacks) {
        if self.keeps_deferred {
            self.deferred.lock().expect("nothing runs with this lock").push(callbacks);
        } else {
            callbacks.run_elsewhere();
        }
    }

    fn abort(&self, _why: &Failure) {
        self.come(Moment::Abort);
    }

    fn reclaim(&self, ended: Ended<Job>) {
        if let Some(job) = ended.work {
            self.come(Moment::Reclaim(job.id));
            self.state().returned.push((job.id, ended.outcome));
        }
    }
}
