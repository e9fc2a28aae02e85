// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A device that accepts all work and ends none, unless a test says otherwise.
//!
//! [`Fake`] has any timelines and any work. Each method of the backend has a default here, and a test replaces the ones
//! that it is about with closures. [`Devices`](crate::rig::Devices) is the other fake: it models queues, events and
//! capacities.
#![allow(dead_code, reason = "each test binary uses its own part")]

use hal_semaphore::backend::{
    Backend, Batch, Completer, DeferredCallbacks, DeviceSpec, Ended, HostTask, Submitted,
};
use hal_semaphore::{Engine, Failure, QueueId, Timeline};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

type Hook<F> = Option<Box<F>>;

type OnSubmit<B> = dyn Fn(&B, QueueId, &mut Batch<'_, B>) -> Submitted + Send + Sync;
type OnRun<B, W> = dyn Fn(&B, HostTask, W) + Send + Sync;
type OnEarly<W> = dyn Fn(&mut W) -> Result<bool, Failure> + Send + Sync;
type CallsBack<W> = dyn Fn(&mut Option<W>) -> bool + Send + Sync;
type OnReclaim<B, W> = dyn Fn(&B, Ended<W>) + Send + Sync;
type OnDefer<B> = dyn Fn(&B, DeferredCallbacks) + Send + Sync;
type OnPoll<B> = dyn Fn(&B) + Send + Sync;
type OnAbort<B> = dyn Fn(&B) + Send + Sync;

/// See the [module documentation](self).
pub(crate) struct Fake<T: Timeline, W: Send + 'static> {
    spec: DeviceSpec,
    completer: OnceLock<Completer>,
    /// The accepted work that [`complete_all`](Fake::complete_all) has not reported, in the order of submission.
    pub(crate) accepted: Mutex<Vec<(QueueId, u64)>>,
    /// How often the device was polled.
    pub(crate) polls: AtomicUsize,
    /// The reclaimed operations.
    pub(crate) ended: Mutex<Vec<Ended<W>>>,
    /// The callbacks that the engine deferred, if the device [keeps](Fake::keeps_deferred) them.
    pub(crate) deferred: Mutex<Vec<DeferredCallbacks>>,
    on_submit: Hook<OnSubmit<Self>>,
    on_run: Hook<OnRun<Self, W>>,
    on_early: Hook<OnEarly<W>>,
    calls_back: Hook<CallsBack<W>>,
    on_reclaim: Hook<OnReclaim<Self, W>>,
    on_defer: Hook<OnDefer<Self>>,
    on_poll: Hook<OnPoll<Self>>,
    on_abort: Hook<OnAbort<Self>>,
    timelines: PhantomData<fn() -> T>,
}

impl<T: Timeline, W: Send + 'static> Fake<T, W> {
    pub(crate) fn new(spec: DeviceSpec) -> Self {
        Self {
            spec,
            completer: OnceLock::new(),
            accepted: Mutex::default(),
            polls: AtomicUsize::new(0),
            ended: Mutex::default(),
            deferred: Mutex::default(),
            on_submit: None,
            on_run: None,
            on_early: None,
            calls_back: None,
            on_reclaim: None,
            on_defer: None,
            on_poll: None,
            on_abort: None,
            timelines: PhantomData,
        }
    }

    /// Answers submissions. The default [accepts](Fake::accept) them.
    pub(crate) fn on_submit(
        mut self,
        hook: impl Fn(&Self, QueueId, &mut Batch<'_, Self>) -> Submitted + Send + Sync + 'static,
    ) -> Self {
        self.on_submit = Some(Box::new(hook));
        self
    }

    /// Runs host operations, and cleans up. By default they end at once with success.
    pub(crate) fn on_run(mut self, hook: impl Fn(&Self, HostTask, W) + Send + Sync + 'static) -> Self {
        self.on_run = Some(Box::new(hook));
        self
    }

    /// Tries early actions. By default they are not done.
    pub(crate) fn on_early(
        mut self,
        hook: impl Fn(&mut W) -> Result<bool, Failure> + Send + Sync + 'static,
    ) -> Self {
        self.on_early = Some(Box::new(hook));
        self
    }

    /// Selects work whose reclaim calls the program back. By default none does.
    pub(crate) fn calls_back(
        mut self,
        hook: impl Fn(&mut Option<W>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.calls_back = Some(Box::new(hook));
        self
    }

    /// Takes ended operations. By default they are kept in `ended`.
    pub(crate) fn on_reclaim(mut self, hook: impl Fn(&Self, Ended<W>) + Send + Sync + 'static) -> Self {
        self.on_reclaim = Some(Box::new(hook));
        self
    }

    /// Takes deferred callbacks. By default a thread of the engine's runs them.
    pub(crate) fn on_defer(
        mut self,
        hook: impl Fn(&Self, DeferredCallbacks) + Send + Sync + 'static,
    ) -> Self {
        self.on_defer = Some(Box::new(hook));
        self
    }

    /// Keeps deferred callbacks until the test [runs](Fake::run_deferred) them.
    pub(crate) fn keeps_deferred(self) -> Self {
        self.on_defer(|fake, callbacks| {
            fake.deferred.lock().expect("no callback runs with it").push(callbacks)
        })
    }

    /// Answers polls. By default they [report everything](Fake::complete_all).
    pub(crate) fn on_poll(mut self, hook: impl Fn(&Self) + Send + Sync + 'static) -> Self {
        self.on_poll = Some(Box::new(hook));
        self
    }

    /// Stops. By default nothing happens.
    pub(crate) fn on_abort(mut self, hook: impl Fn(&Self) + Send + Sync + 'static) -> Self {
        self.on_abort = Some(Box::new(hook));
        self
    }

    pub(crate) fn start(self) -> Engine<Self> {
        Engine::new(self).expect("the device is well described")
    }

    pub(crate) fn completer(&self) -> &Completer {
        self.completer.get().expect("the engine has started the backend")
    }

    /// Accepts a batch.
    pub(crate) fn accept(&self, queue: QueueId, batch: &mut Batch<'_, Self>) -> Submitted {
        let mut accepted = self.accepted.lock().expect("nothing panics with it");
        accepted.extend(batch.iter().map(|submission| (queue, submission.epoch)));
        Submitted::all()
    }

    /// Reports a queue up to an epoch.
    pub(crate) fn complete(&self, queue: QueueId, epoch: u64) {
        self.completer().complete(queue, epoch).expect("the engine lives, and has submitted it");
    }

    /// Reports all accepted work, one report for each operation.
    pub(crate) fn complete_all(&self) {
        let accepted = std::mem::take(&mut *self.accepted.lock().expect("nothing panics with it"));
        for (queue, epoch) in accepted {
            self.complete(queue, epoch);
        }
    }

    /// Runs the callbacks that were deferred so far. Returns how many calls had deferred some.
    pub(crate) fn run_deferred(&self) -> usize {
        let deferred = std::mem::take(&mut *self.deferred.lock().expect("no callback runs with it"));
        let count = deferred.len();
        deferred.into_iter().for_each(DeferredCallbacks::run);
        count
    }

    /// How many operations were reclaimed with their work.
    pub(crate) fn reclaimed(&self) -> usize {
        let ended = self.ended.lock().expect("nothing panics with it");
        ended.iter().filter(|ended| ended.work.is_some()).count()
    }
}

impl<T: Timeline, W: Send + 'static> Backend for Fake<T, W> {
    type Timeline = T;
    type Work = W;
    type Event = ();

    fn device(&self) -> DeviceSpec {
        self.spec
    }

    fn start(&self, completer: Completer) {
        let _ = self.completer.set(completer);
    }

    fn submit(&self, queue: QueueId, batch: &mut Batch<'_, Self>) -> Submitted {
        match &self.on_submit {
            Some(hook) => hook(self, queue, batch),
            None => self.accept(queue, batch),
        }
    }

    fn run(&self, task: HostTask, work: W) {
        match &self.on_run {
            Some(hook) => hook(self, task, work),
            None => task.finish(Ok(())),
        }
    }

    fn clean_up(&self, task: HostTask, work: W, _why: &Failure) {
        self.run(task, work);
    }

    fn try_early(&self, work: &mut W) -> Result<bool, Failure> {
        self.on_early.as_ref().map_or(Ok(false), |hook| hook(work))
    }

    fn defer(&self, callbacks: DeferredCallbacks) {
        match &self.on_defer {
            Some(hook) => hook(self, callbacks),
            None => callbacks.run_elsewhere(),
        }
    }

    fn calls_back(&self, work: &mut Option<W>) -> bool {
        self.calls_back.as_ref().is_some_and(|hook| hook(work))
    }

    fn reclaim(&self, ended: Ended<W>) {
        match &self.on_reclaim {
            Some(hook) => hook(self, ended),
            None => self.ended.lock().expect("nothing panics with it").push(ended),
        }
    }

    fn poll(&self) {
        self.polls.fetch_add(1, Ordering::SeqCst);
        match &self.on_poll {
            Some(hook) => hook(self),
            None => self.complete_all(),
        }
    }

    fn abort(&self, _why: &Failure) {
        if let Some(hook) = &self.on_abort {
            hook(self);
        }
    }
}
