// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A timeline of an engine, or of another driver, that keeps what engines do to it.
//!
//! A test replaces what a driver does inside a call by a [hook](TimelineState::at): to wait, to call the engine, or
//! to panic.

use hal_semaphore::timeline::{Registration, Subscriber};
use hal_semaphore::{Backend, Engine, Failure, Point, SignalError, Timeline};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::ThreadId;

/// The calls that an engine makes of a timeline's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimelineCall {
    Clone,
    Drop,
    Identity,
    /// Of a timeline of another driver.
    Value,
    FailedBefore,
    Show,
    RecordStep,
    Notify,
    Deliver,
    Subscribe,
    Unsubscribe,
}

type Hook = (TimelineCall, Box<dyn FnOnce() + Send>);

/// The hooks of a timeline's calls, each for the next call of its kind.
#[derive(Default)]
struct Hooks(Mutex<Vec<Hook>>);

impl Hooks {
    /// Runs the hook of a call, if it has one. Not on a thread that panics, as a second panic ends the process.
    fn run(&self, call: TimelineCall) {
        if std::thread::panicking() {
            return;
        }
        let mut hooks = self.0.lock().unwrap();
        let at = hooks.iter().position(|&(at, _)| at == call);
        let hook = at.map(|at| hooks.remove(at));
        drop(hooks);
        if let Some((_, hook)) = hook {
            hook();
        }
    }

    fn has(&self, call: TimelineCall) -> bool {
        self.0.lock().unwrap().iter().any(|&(at, _)| at == call)
    }
}

/// A value or a failure, and where it was made.
type RecordedStep = (Result<u64, Failure>, Option<Point>);

/// A handle on a fake timeline.
pub(crate) struct FakeTimeline(pub(crate) Arc<TimelineState>);

/// A fake timeline. The lists have everything in the order in which it came.
#[derive(Default)]
pub(crate) struct TimelineState {
    /// `None` if the timeline is another driver's.
    registration: Option<Registration>,
    value: AtomicU64,
    /// The failure, and the value that was reached.
    pub(crate) failed_at: OnceLock<(u64, Failure)>,
    /// The steps that the timeline was shown. No thread holds this lock while it calls the engine.
    pub(crate) shown: Mutex<Vec<Result<u64, u64>>>,
    /// The recorded steps, and where they were made.
    pub(crate) recorded: Mutex<Vec<RecordedStep>>,
    pub(crate) notified: Mutex<Vec<Result<u64, Failure>>>,
    pub(crate) notified_by: Mutex<Vec<ThreadId>>,
    pub(crate) delivered: Mutex<Vec<Result<u64, Failure>>>,
    /// Another driver holds this lock while it reads the value, and while it notifies.
    pub(crate) subscribers: Mutex<Vec<(u64, Subscriber)>>,
    /// How many subscriptions were dropped.
    pub(crate) unsubscribed: AtomicUsize,
    has_waiters: bool,
    hooks: Hooks,
}

impl FakeTimeline {
    /// A timeline of an engine. It has waiters of its own only while a hook of [`TimelineCall::Notify`] is left.
    pub(crate) fn own<B: Backend>(engine: &Engine<B>) -> Self {
        let registration = Some(engine.register(0));
        Self(Arc::new(TimelineState { registration, ..TimelineState::default() }))
    }

    /// A timeline of an engine that always has waiters of its own.
    pub(crate) fn with_waiters<B: Backend>(engine: &Engine<B>) -> Self {
        let registration = Some(engine.register(0));
        Self(Arc::new(TimelineState { registration, has_waiters: true, ..TimelineState::default() }))
    }

    /// A timeline of another driver.
    pub(crate) fn foreign() -> Self {
        Self::foreign_at(0)
    }

    /// A timeline of another driver that has reached this value.
    pub(crate) fn foreign_at(value: u64) -> Self {
        Self(Arc::new(TimelineState { value: AtomicU64::new(value), ..TimelineState::default() }))
    }

    /// Another handle; unlike `clone`, no call of the driver.
    pub(crate) fn handle(&self) -> Self {
        Self(self.0.clone())
    }
}

impl Deref for FakeTimeline {
    type Target = TimelineState;

    fn deref(&self) -> &TimelineState {
        &self.0
    }
}

impl TimelineState {
    /// Runs `hook` inside the next call of this kind.
    pub(crate) fn at(&self, call: TimelineCall, hook: impl FnOnce() + Send + 'static) {
        self.hooks.0.lock().unwrap().push((call, Box::new(hook)));
    }

    /// Panics inside the next call of this kind.
    pub(crate) fn panic_at(&self, call: TimelineCall) {
        self.at(call, move || panic!("the driver of a timeline panics at {call:?}"));
    }

    /// True if a hook is left.
    pub(crate) fn has_hook(&self, call: TimelineCall) -> bool {
        self.hooks.has(call)
    }

    pub(crate) fn registered(&self) -> &Registration {
        self.registration.as_ref().expect("the timeline is an engine's own")
    }

    /// Signals from the host.
    pub(crate) fn signal(&self, value: u64) -> Result<(), SignalError> {
        self.registered().signal(value, || self.step(Ok(value)), Vec::new)
    }

    /// Fails from the host.
    pub(crate) fn fail(&self, failure: &Failure) -> bool {
        self.registered().fail(failure, |reached| self.step(Err((reached, failure))), Vec::new)
    }

    /// Another driver raises its timeline. `locked` runs when it has its lock.
    pub(crate) fn raise(&self, value: u64, locked: impl FnOnce()) {
        let subscribers = self.subscribers.lock().unwrap();
        locked();
        self.value.store(value, Ordering::SeqCst);
        subscribers.iter().for_each(|(_, subscriber)| subscriber.notify(Ok(value)));
    }

    fn step(&self, state: Result<u64, (u64, &Failure)>) {
        match state {
            Ok(value) => self.value.store(value, Ordering::SeqCst),
            Err((value, failure)) => {
                assert_eq!(value, self.value.load(Ordering::SeqCst), "a failure does not move the value");
                assert!(self.failed_at.set((value, failure.clone())).is_ok(), "a timeline fails once");
            }
        }
        self.shown.lock().unwrap().push(state.map_err(|(value, _)| value));
    }
}

/// A subscription to a timeline of another driver.
pub(crate) struct FakeSubscription(Arc<TimelineState>);

impl Drop for FakeSubscription {
    fn drop(&mut self) {
        self.0.unsubscribed.fetch_add(1, Ordering::SeqCst);
        self.0.hooks.run(TimelineCall::Unsubscribe);
    }
}

impl Clone for FakeTimeline {
    fn clone(&self) -> Self {
        self.hooks.run(TimelineCall::Clone);
        self.handle()
    }
}

impl Drop for FakeTimeline {
    fn drop(&mut self) {
        self.hooks.run(TimelineCall::Drop);
    }
}

impl Timeline for FakeTimeline {
    type Subscription = FakeSubscription;

    fn registration(&self) -> Option<&Registration> {
        self.registration.as_ref()
    }

    fn identity(&self) -> usize {
        self.hooks.run(TimelineCall::Identity);
        Arc::as_ptr(&self.0).addr()
    }

    fn value(&self) -> u64 {
        if self.registration.is_none() {
            self.hooks.run(TimelineCall::Value);
            let _locked = self.subscribers.lock().unwrap();
            return self.value.load(Ordering::SeqCst);
        }
        self.value.load(Ordering::SeqCst)
    }

    fn failure(&self) -> Option<Failure> {
        self.failed_at.get().map(|(_, failure)| failure.clone())
    }

    fn show(&self, state: Result<u64, (u64, &Failure)>) -> Option<Failure> {
        assert!(self.registration.is_some(), "the timeline is another driver's");
        self.hooks.run(TimelineCall::Show);
        self.step(state);
        None
    }

    fn failed_before(&self) -> Option<Failure> {
        self.hooks.run(TimelineCall::FailedBefore);
        None
    }

    fn record_step(&self, state: Result<u64, &Failure>, by: Option<Point>) -> bool {
        assert!(self.registration.is_some(), "the timeline is another driver's");
        if let Ok(value) = state {
            assert!(self.value() >= value, "a step is shown before it is recorded");
        }
        self.recorded.lock().unwrap().push((state.map_err(Failure::clone), by));
        self.hooks.run(TimelineCall::RecordStep);
        self.has_waiters || self.hooks.has(TimelineCall::Notify)
    }

    fn notify(&self, state: Result<u64, &Failure>) {
        if let Ok(value) = state {
            let recorded = self.recorded.lock().unwrap();
            let is_recorded = recorded.iter().any(|(known, _)| matches!(known, Ok(known) if *known == value));
            assert!(is_recorded, "a step is recorded before waiters are notified");
        }
        self.hooks.run(TimelineCall::Notify);
        self.notified.lock().unwrap().push(state.map_err(Failure::clone));
        self.notified_by.lock().unwrap().push(std::thread::current().id());
    }

    fn deliver(&self, state: Result<u64, &Failure>) {
        assert!(self.registration.is_none(), "the timeline is the engine's own");
        self.hooks.run(TimelineCall::Deliver);
        self.delivered.lock().unwrap().push(state.map_err(Failure::clone));
    }

    fn subscribe(&self, value: u64, subscriber: Subscriber) -> FakeSubscription {
        assert!(self.registration.is_none(), "the timeline is the engine's own");
        self.subscribers.lock().unwrap().push((value, subscriber));
        self.hooks.run(TimelineCall::Subscribe);
        FakeSubscription(self.0.clone())
    }
}
