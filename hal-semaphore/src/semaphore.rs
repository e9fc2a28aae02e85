// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The timeline semaphore of this crate: a timeline that an engine keeps, and the host's waiters.
//!
//! The engine knows no waiter of the host: it [notifies](Timeline::notify) the timeline of its steps, and the
//! timeline wakes its own. Here these are threads that sleep, and callbacks, in lists ordered by value. Threads are
//! woken as soon as a step is made, by any thread. Callbacks are the program's, so they run on a thread that may
//! call it.
//!
//! A waiter is counted before it looks at the timeline, under the timeline's lock; a thread that makes a step does so
//! under that lock, and looks at the count afterwards. So one of the two sees the other, and a step of a semaphore
//! without waiters costs a load.

use crate::backend::Backend;
use crate::clock::{Clock, Time};
use crate::engine::{Engine, TimelineState};
use crate::error::{SignalError, WaitError};
use crate::failure::Failure;
use crate::ids::{MAX_VALUE, Point};
use crate::mutation::{Mutation, is_mutated};
use crate::notification::Wakeup;
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::timeline::{Callback, DueCallbacks, Registration, Subscriber, Timeline};
use crate::wait_list::WaitList;
use std::fmt;
use std::sync::{Arc, Weak};

/// From this capacity on, the memory of an empty list is worth releasing.
const LARGE: usize = 1024;

/// A timeline semaphore. Clones are handles on the same one. When the last is dropped, its waits fail as
/// abandoned; an operation that will signal it holds a handle.
#[derive(Clone)]
pub struct Semaphore(Arc<Inner>);

struct Inner {
    registration: Registration,
    /// How many waiters there are, and one that is about to be added.
    count: AtomicU64,
    waiters: Mutex<Waiters>,
}

struct Waiters {
    threads: WaitList<Wakeup>,
    callbacks: WaitList<Callback>,
    /// The number of the last waiter.
    last: u32,
}

impl Waiters {
    /// Releases the memory of a burst that is over.
    fn trim(&mut self) {
        if self.callbacks.is_empty() && self.callbacks.capacity() > LARGE {
            self.callbacks.trim();
        }
    }
}

impl Semaphore {
    /// A semaphore of `engine` that starts at `initial`.
    pub fn new<B: Backend>(engine: &Engine<B>, initial: u64) -> Result<Self, SignalError> {
        if initial > MAX_VALUE {
            return Err(SignalError::ValueTooLarge { value: initial });
        }
        let (threads, callbacks) = (WaitList::new(), WaitList::new());
        let waiters = Mutex::new(Waiters { threads, callbacks, last: 0 });
        Ok(Self(Arc::new(Inner {
            registration: engine.register(initial),
            count: AtomicU64::new(0),
            waiters,
        })))
    }

    /// The value, or the failure.
    pub fn query(&self) -> Result<u64, Failure> {
        self.0.registration.query()
    }

    /// Raises the timeline to `value`, which must be above the present one, and releases its waits.
    pub fn signal(&self, value: u64) -> Result<(), SignalError> {
        self.0.registration.signal(value, || {}, || self.0.has_stepped())
    }

    /// Fails the timeline for good. Only the first failure counts; returns whether this was it.
    pub fn fail(&self, failure: Failure) -> bool {
        self.0.fail(&failure)
    }

    /// See [`Registration::promised`].
    pub fn promised(&self) -> Option<u64> {
        self.0.registration.promised()
    }

    /// Sleeps until the timeline reaches `value` or fails, or until the time is `until`.
    ///
    /// To wait for several semaphores, wait for one after the other.
    pub fn wait(&self, value: u64, clock: &dyn Clock, until: Option<Time>) -> Result<(), WaitError> {
        if value > MAX_VALUE {
            return Err(WaitError::ValueTooLarge { value });
        }
        if self.has_reached(value)? {
            return Ok(());
        }
        // Work that calls around this one have deferred may be what this thread waits for.
        self.0.registration.run_deferred();
        let wakeup = Wakeup::new();
        let add = |waiters: &mut Waiters, order| waiters.threads.push(order, value, wakeup.clone());
        let order = match self.0.add(value, add) {
            Ok(order) => order,
            Err(state) => return state.map(drop).map_err(|failure| WaitError::Failed { failure }),
        };
        let is_over = |until: Time| until <= clock.now();
        while !wakeup.is_raised() && !until.is_some_and(is_over) && !wakeup.spin() {
            clock.sleep(&wakeup, until);
        }
        if !wakeup.is_raised() {
            self.0.remove(|waiters| waiters.threads.remove(value, order));
        }
        if self.0.registration.value() >= value || self.has_reached(value)? {
            return Ok(());
        }
        Err(WaitError::DeadlineExceeded)
    }

    /// True if the value is reached; an error if the timeline has failed.
    fn has_reached(&self, value: u64) -> Result<bool, WaitError> {
        self.query().map(|reached| reached >= value).map_err(|failure| WaitError::Failed { failure })
    }

    /// Calls `callback` once when the timeline reaches `value` or fails: before this returns if it has already,
    /// or else on a thread that completes, signals or fails something, without a lock, and never inside a
    /// submission (see [`Backend::defer`]). If the timeline has failed, the callback
    /// gets the failure even if the value was reached. It may still be called after the subscription was
    /// dropped, if it was due by then.
    pub fn subscribe(
        &self,
        value: u64,
        callback: impl FnOnce(Result<u64, Failure>) + Send + 'static,
    ) -> Subscription {
        let timeline_state = self.0.registration.timeline_state().clone();
        let mut callback = Some(callback);
        let add = |waiters: &mut Waiters, order| {
            if let Some(callback) = callback.take() {
                waiters.callbacks.push(order, value, Box::new(callback));
            }
        };
        match self.0.add(value, add) {
            Ok(order) => Subscription { semaphore: Arc::downgrade(&self.0), timeline_state, value, order },
            Err(state) => {
                if let Some(callback) = callback {
                    callback(state);
                }
                Subscription { semaphore: Weak::new(), timeline_state, value, order: 0 }
            }
        }
    }
}

impl Inner {
    /// Adds a waiter, and returns its number; or returns the state of the timeline if the wait is over.
    fn add(&self, value: u64, add: impl FnOnce(&mut Waiters, u32)) -> Result<u32, Result<u64, Failure>> {
        let mut waiters = self.waiters.lock();
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Relaxed);
        let state = self.registration.settled();
        let is_over = state.as_ref().map_or(true, |&reached| reached >= value);
        if is_over && !is_mutated(Mutation::RegisterDoesNotCheck) {
            self.count.store(count, Ordering::Relaxed);
            return Err(state);
        }
        waiters.last = waiters.last.wrapping_add(1);
        let order = waiters.last;
        add(&mut waiters, order);
        Ok(order)
    }

    /// Removes a waiter, if it is still there.
    fn remove<W>(&self, remove: impl FnOnce(&mut Waiters) -> Option<W>) {
        let mut waiters = self.waiters.lock();
        let removed = remove(&mut waiters);
        self.count_down(u64::from(removed.is_some()));
        waiters.trim();
        drop(waiters);
        // A callback may own a handle on this semaphore: it is dropped without the lock.
        drop(removed);
    }

    /// Counts waiters that are gone. The caller has the lock.
    fn count_down(&self, gone: u64) {
        self.count.store(self.count.load(Ordering::Relaxed) - gone, Ordering::Relaxed);
    }

    fn fail(&self, failure: &Failure) -> bool {
        self.registration.fail(failure, |_| {}, || self.has_stepped())
    }

    /// The timeline has made a step: wakes threads. Returns the callbacks that are due.
    fn has_stepped(&self) -> DueCallbacks {
        if self.wake_threads() { self.take_due() } else { DueCallbacks::new() }
    }

    /// Takes the callbacks that are due, each with what it is called with. A value that came before the failure
    /// counts.
    fn take_due(&self) -> DueCallbacks {
        let mut waiters = self.waiters.lock();
        let (limit, reached) = (self.limit(), self.registration.value());
        let mut due = DueCallbacks::new();
        while let Some((value, callback)) = waiters.callbacks.pop(limit) {
            self.count_down(1);
            let state = if value <= reached { Ok(reached) } else { self.registration.query() };
            due.push((callback, state));
        }
        waiters.trim();
        due
    }

    /// The largest value whose waiters are due.
    fn limit(&self) -> u64 {
        if self.registration.has_failed() { u64::MAX } else { self.registration.value() }
    }

    /// Wakes the threads whose wait is over. Returns whether callbacks are due.
    fn wake_threads(&self) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut waiters = self.waiters.lock();
        let limit = self.limit();
        while let Some((_, wakeup)) = waiters.threads.pop(limit) {
            self.count_down(1);
            wakeup.raise();
        }
        waiters.callbacks.releases(limit)
    }
}

impl Drop for Inner {
    /// No handle is left to signal the timeline.
    fn drop(&mut self) {
        let mut waiters = self.waiters.lock();
        let mut due = DueCallbacks::new();
        while let Some((_, callback)) = waiters.callbacks.pop(u64::MAX) {
            due.push((callback, Err(self.registration.abandoned())));
        }
        drop(waiters);
        self.registration.call_back(due);
    }
}

impl Timeline for Semaphore {
    type Subscription = Subscription;

    fn registration(&self) -> Option<&Registration> {
        Some(&self.0.registration)
    }

    fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    fn value(&self) -> u64 {
        self.0.registration.value()
    }

    fn failure(&self) -> Option<Failure> {
        self.query().err()
    }

    fn record_step(&self, _state: Result<u64, &Failure>, _by: Option<Point>) -> bool {
        self.0.wake_threads()
    }

    fn notify(&self, _state: Result<u64, &Failure>) {
        self.0.registration.call_back(self.0.take_due());
    }

    fn deliver(&self, state: Result<u64, &Failure>) {
        match state {
            // Refused: another thread was first. Ignore it.
            Ok(value) => drop(self.signal(value)),
            Err(failure) => drop(self.0.fail(failure)),
        }
    }

    fn subscribe(&self, value: u64, subscriber: Subscriber) -> Subscription {
        self.subscribe(value, move |state| subscriber.notify(state))
    }

    fn subscribed_value(subscription: &Subscription) -> Option<u64> {
        Some(subscription.timeline_state.value())
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("state", &self.query()).finish_non_exhaustive()
    }
}

/// A callback of a semaphore; dropping it takes the callback back, unless it is due already.
pub struct Subscription {
    semaphore: Weak<Inner>,
    timeline_state: Arc<TimelineState>,
    value: u64,
    order: u32,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("value", &self.value).finish_non_exhaustive()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(semaphore) = self.semaphore.upgrade() {
            semaphore.remove(|waiters| waiters.callbacks.remove(self.value, self.order));
        }
    }
}
