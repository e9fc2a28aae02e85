//! The timeline semaphore of this crate: a value that only grows, and the first failure.
//!
//! Value and failure share one word, so that no signal can slip in after a failure: the top bit says that the
//! timeline has failed, the rest is the value it had reached. Everything about waiting is the engine's; the semaphore
//! only tells it when the host has moved the timeline.

use crate::backend::Backend;
use crate::engine::Engine;
use crate::error::SignalError;
use crate::failure::{Failure, Origin};
use crate::ids::{MAX_VALUE, Point, TimelineKey};
use crate::sync::{AtomicU64, Ordering};
use crate::timeline::{Registration, Subscription, Timeline, Watcher};
use std::fmt;
use std::sync::{Arc, OnceLock};

const FAILED: u64 = 1 << 63;

/// A timeline semaphore. Clones are handles on the same one; when the last is dropped, whatever still waits for it
/// fails as abandoned (an operation that will signal it holds a handle).
#[derive(Clone)]
pub struct Semaphore(Arc<Inner>);

struct Inner {
    word: AtomicU64,
    failure: OnceLock<Failure>,
    registration: Registration,
}

impl Semaphore {
    /// A semaphore of `engine` that starts at `initial`.
    pub fn new<B: Backend>(engine: &Engine<B>, initial: u64) -> Result<Self, SignalError> {
        if initial > MAX_VALUE {
            return Err(SignalError::ValueTooLarge { value: initial });
        }
        Ok(Self(Arc::new(Inner {
            word: AtomicU64::new(initial),
            failure: OnceLock::new(),
            registration: engine.register(initial),
        })))
    }

    /// The value reached, or what the timeline failed with.
    pub fn query(&self) -> Result<u64, Failure> {
        let word = self.0.word.load(Ordering::Acquire);
        if word & FAILED == 0 { Ok(word) } else { Err(self.recorded()) }
    }

    /// Raises the timeline to `value`, which must be above where it is, and releases what waits for it.
    pub fn signal(&self, value: u64) -> Result<(), SignalError> {
        if value > MAX_VALUE {
            return Err(SignalError::ValueTooLarge { value });
        }
        let mut word = self.0.word.load(Ordering::Acquire);
        loop {
            if word & FAILED != 0 {
                return Err(SignalError::Failed { value, failure: self.recorded() });
            }
            if value <= word {
                return Err(SignalError::NotAbove { value, current: word });
            }
            match self.0.word.compare_exchange_weak(word, value, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        self.0.registration.advanced(value);
        Ok(())
    }

    /// Fails the timeline for good. Only the first failure counts; says whether this was it.
    pub fn fail(&self, failure: Failure) -> bool {
        let first = self.record(&failure);
        if first {
            self.0.registration.failed(&failure);
        }
        first
    }

    /// See [`Registration::promised`].
    pub fn promised(&self) -> Option<u64> {
        self.0.registration.promised()
    }

    /// Calls `callback` once the timeline reaches `value` or fails; see [`Registration::subscribe`].
    pub fn subscribe(
        &self,
        value: u64,
        callback: impl FnOnce(Result<u64, Failure>) + Send + 'static,
    ) -> Subscription {
        self.0.registration.subscribe(value, callback)
    }

    fn record(&self, failure: &Failure) -> bool {
        let first = self.0.failure.set(failure.clone()).is_ok();
        if first {
            self.0.word.fetch_or(FAILED, Ordering::AcqRel);
        }
        first
    }

    #[cold]
    fn recorded(&self) -> Failure {
        self.0.failure.get().cloned().unwrap_or_else(|| {
            Failure::with_origin(
                crate::Code::Internal,
                Origin::Host,
                "a failed timeline has no failure recorded",
            )
        })
    }
}

impl Timeline for Semaphore {
    type Watch = Subscription;

    fn key(&self) -> Option<TimelineKey> {
        Some(self.0.registration.key())
    }

    fn value(&self) -> u64 {
        self.0.word.load(Ordering::Acquire) & !FAILED
    }

    fn failure(&self) -> Option<Failure> {
        self.query().err()
    }

    fn publish(&self, value: u64, _by: Option<Point>) {
        let mut word = self.0.word.load(Ordering::Acquire);
        while word & FAILED == 0 && word < value {
            match self.0.word.compare_exchange_weak(word, value, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
    }

    fn fail(&self, failure: &Failure) {
        self.record(failure);
    }

    fn deliver(&self, state: Result<u64, &Failure>) {
        match state {
            // Refused means that somebody else got there first, which is no news to anyone.
            Ok(value) => drop(self.signal(value)),
            Err(failure) => drop(self.fail(failure.clone())),
        }
    }

    fn watch(&self, value: u64, watcher: Watcher) -> Subscription {
        self.subscribe(value, move |state| watcher.notify(state))
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("state", &self.query()).finish_non_exhaustive()
    }
}
