//! Where a semaphore keeps its value: the engine's only view of one.
//!
//! The engine does not own timelines. [`Semaphore`](crate::Semaphore) is the one of this crate; a C ABI has its own
//! layout with the value, the failure and the host's waiters inside it, and adapts it by implementing [`Timeline`].
//! The contract is *push*: whoever moves a registered timeline (a host signal, a host failure) tells the engine
//! afterwards through its [`Registration`]; the engine never asks in a loop.
//!
//! **Own and foreign.** A timeline whose [`key`](Timeline::key) names this engine is its own: waits for it are kept
//! in the engine's ordered lists and can be covered by native events. Every other timeline (another engine's,
//! another driver's) is foreign: it is never assumed to be anything but this trait, and its waits go through
//! [`watch`](Timeline::watch), a callback (rule S9).

use crate::failure::Failure;
use crate::ids::{Point, TimelineKey};
use crate::port::Port;
use crate::slab::Key;
use std::fmt;
use std::sync::{Arc, Weak};

/// A handle on one timeline. Clones are handles on the same one.
pub trait Timeline: Clone + Send + Sync + 'static {
    /// What [`watch`](Timeline::watch) returns; dropping it ends the watch. `()` where nothing is ever foreign.
    type Watch: Send + 'static;

    /// The engine's name for it, if it was registered with an engine.
    fn key(&self) -> Option<TimelineKey>;

    /// The value it has reached. Called under the engine's lock: it must be a load, not a lock.
    fn value(&self) -> u64;

    /// What it failed with. Called under the engine's lock.
    fn failure(&self) -> Option<Failure>;

    /// Raises the value to at least `value` and wakes the waiters that the engine does not know: an operation has
    /// completed, at `by` if it ran on a queue. The engine knows already. A value that is reached, or a timeline that
    /// has failed, stays as it is. Called without a lock held, in completion order.
    fn publish(&self, value: u64, by: Option<Point>);

    /// Fails the timeline, unless it has failed already, and wakes the waiters that the engine does not know. Called
    /// without a lock held.
    fn fail(&self, failure: &Failure);

    /// Signals or fails a timeline that is not the calling engine's: whatever that takes where it belongs. A signal
    /// that the timeline refuses (it is there already, or has failed) is dropped. Called without a lock held.
    fn deliver(&self, state: Result<u64, &Failure>);

    /// Calls `watcher` once, on any thread and possibly before this returns, when `value` is reached or the timeline
    /// has failed. Only called on foreign timelines, without a lock held.
    fn watch(&self, value: u64, watcher: Watcher) -> Self::Watch;
}

/// Some timelines and a value for each: what an operation waits for, or what it signals.
///
/// A slice of pairs is the natural form in Rust; a pair of slices is the form a C ABI has at hand.
pub trait Points<T> {
    /// How many there are.
    fn len(&self) -> usize;

    /// The one with this number, which is below [`len`](Points::len).
    fn get(&self, index: usize) -> Option<(&T, u64)>;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Points<T> for [(T, u64)] {
    fn len(&self) -> usize {
        <[(T, u64)]>::len(self)
    }

    fn get(&self, index: usize) -> Option<(&T, u64)> {
        <[(T, u64)]>::get(self, index).map(|(timeline, value)| (timeline, *value))
    }
}

impl<T, const N: usize> Points<T> for [(T, u64); N] {
    fn len(&self) -> usize {
        N
    }

    fn get(&self, index: usize) -> Option<(&T, u64)> {
        Points::get(self.as_slice(), index)
    }
}

impl<T> Points<T> for Vec<(T, u64)> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn get(&self, index: usize) -> Option<(&T, u64)> {
        Points::get(self.as_slice(), index)
    }
}

impl<T> Points<T> for (&[T], &[u64]) {
    fn len(&self) -> usize {
        self.0.len().min(self.1.len())
    }

    fn get(&self, index: usize) -> Option<(&T, u64)> {
        Some((self.0.get(index)?, *self.1.get(index)?))
    }
}

pub(crate) fn iter<'a, T, P: Points<T> + ?Sized>(points: &'a P) -> impl Iterator<Item = (&'a T, u64)> + 'a
where
    T: 'a,
{
    (0..points.len()).filter_map(|index| points.get(index))
}

/// A timeline's place in its engine. Dropping it tells the engine that nobody can signal the timeline any more:
/// what still waits for it fails as abandoned.
pub struct Registration {
    port: Arc<dyn Port>,
    key: TimelineKey,
}

impl Registration {
    pub(crate) fn new(port: Arc<dyn Port>, key: TimelineKey) -> Self {
        Self { port, key }
    }

    /// What [`Timeline::key`] answers.
    pub fn key(&self) -> TimelineKey {
        self.key
    }

    /// The host has raised the timeline to `value`; releases what waited for it. The timeline shows the value already.
    pub fn advanced(&self, value: u64) {
        self.port.advanced(self.key.key, value);
    }

    /// The host has failed the timeline; fails what waited for it. The timeline shows the failure already.
    pub fn failed(&self, failure: &Failure) {
        self.port.failed(self.key.key, failure);
    }

    /// The value that work which has its place in a queue will bring the timeline to, unless something fails; nothing if
    /// no such work signals it.
    pub fn promised(&self) -> Option<u64> {
        self.port.promised(self.key.key)
    }

    /// Calls `callback` once when the engine has seen the timeline reach `value` or fail. It may be called before
    /// this returns, on any thread, without a lock held, and after the subscription was dropped if it was on its way.
    pub fn subscribe(
        &self,
        value: u64,
        callback: impl FnOnce(Result<u64, Failure>) + Send + 'static,
    ) -> Subscription {
        let key = self.port.subscribe(self.key.key, value, Box::new(callback));
        Subscription { port: Arc::downgrade(&self.port), key }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.port.dropped(self.key.key);
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("key", &self.key).finish_non_exhaustive()
    }
}

/// A callback timepoint; dropping it takes the callback back, unless it is on its way already.
pub struct Subscription {
    port: Weak<dyn Port>,
    key: Option<Key>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let (Some(key), Some(port)) = (self.key, self.port.upgrade()) {
            port.unsubscribe(key);
        }
    }
}

/// Tells an engine about one foreign timeline. Telling it late, twice or after the wait has ended is harmless.
#[derive(Clone)]
pub struct Watcher {
    port: Weak<dyn Port>,
    key: Key,
}

impl Watcher {
    pub(crate) fn new(port: Weak<dyn Port>, key: Key) -> Self {
        Self { port, key }
    }

    /// The foreign timeline has reached this value, or has failed.
    pub fn notify(&self, state: Result<u64, Failure>) {
        let Some(port) = self.port.upgrade() else { return };
        match state {
            Ok(value) => port.advanced(self.key, value),
            Err(failure) => port.failed(self.key, &failure),
        }
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").field("key", &self.key).finish_non_exhaustive()
    }
}
