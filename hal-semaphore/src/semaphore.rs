// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The timeline semaphore of this crate: a handle on a timeline that an engine keeps.

use crate::backend::Backend;
use crate::engine::Engine;
use crate::error::SignalError;
use crate::failure::Failure;
use crate::ids::MAX_VALUE;
use crate::timeline::{Registration, Subscriber, Subscription, Timeline};
use std::fmt;
use std::sync::Arc;

/// A timeline semaphore. Clones are handles on the same one. When the last is dropped, its waits fail as
/// abandoned; an operation that will signal it holds a handle.
#[derive(Clone)]
pub struct Semaphore(Arc<Registration>);

impl Semaphore {
    /// A semaphore of `engine` that starts at `initial`.
    pub fn new<B: Backend>(engine: &Engine<B>, initial: u64) -> Result<Self, SignalError> {
        if initial > MAX_VALUE {
            return Err(SignalError::ValueTooLarge { value: initial });
        }
        Ok(Self(Arc::new(engine.register(initial))))
    }

    /// The value, or the failure.
    pub fn query(&self) -> Result<u64, Failure> {
        self.0.query()
    }

    /// Raises the timeline to `value`, which must be above the present one, and releases its waits.
    pub fn signal(&self, value: u64) -> Result<(), SignalError> {
        self.0.signal(value)
    }

    /// Fails the timeline for good. Only the first failure counts; returns whether this was it.
    pub fn fail(&self, failure: Failure) -> bool {
        self.0.fail(&failure)
    }

    /// See [`Registration::promised`].
    pub fn promised(&self) -> Option<u64> {
        self.0.promised()
    }

    /// Calls `callback` once the timeline reaches `value` or fails; see [`Registration::subscribe`].
    pub fn subscribe(
        &self,
        value: u64,
        callback: impl FnOnce(Result<u64, Failure>) + Send + 'static,
    ) -> Subscription {
        self.0.subscribe(value, callback)
    }
}

impl Timeline for Semaphore {
    type Subscription = Subscription;

    fn registration(&self) -> Option<&Registration> {
        Some(&self.0)
    }

    fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    fn value(&self) -> u64 {
        self.0.value()
    }

    fn failure(&self) -> Option<Failure> {
        self.query().err()
    }

    fn deliver(&self, state: Result<u64, &Failure>) {
        match state {
            // Refused: another thread was first. Ignore it.
            Ok(value) => drop(self.0.signal(value)),
            Err(failure) => drop(self.0.fail(failure)),
        }
    }

    fn subscribe(&self, value: u64, subscriber: Subscriber) -> Subscription {
        self.subscribe(value, move |state| subscriber.notify(state))
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("state", &self.query()).finish_non_exhaustive()
    }
}
