// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A wait as a [`Future`], for the feature `futures`. It needs no executor of a particular kind.

use crate::error::WaitError;
use crate::failure::Failure;
use crate::ids::MAX_VALUE;
use crate::mutation::{Mutation, is_mutated};
use crate::semaphore::{Semaphore, Subscription};
use crate::sync::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// What the wait and the callback of its timeline share.
#[derive(Default)]
struct Shared(Mutex<State>);

#[derive(Default)]
struct State {
    outcome: Option<Result<(), Failure>>,
    /// Of the task that polled last.
    waker: Option<Waker>,
}

impl Shared {
    /// The timeline has reached the value or failed. The waker is foreign code: no lock is held.
    fn finish(&self, outcome: Result<(), Failure>) {
        let mut state = self.0.lock();
        state.outcome = Some(outcome);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The outcome; or keeps the waker, in place of an older one.
    fn poll(&self, waker: &Waker) -> Option<Result<(), Failure>> {
        let next = waker.clone();
        let mut state = self.0.lock();
        if let Some(outcome) = &state.outcome {
            return Some(outcome.clone());
        }
        if is_mutated(Mutation::WakerIsLate) {
            drop(state);
            state = self.0.lock();
        }
        let before = state.waker.replace(next);
        drop(state);
        drop(before);
        None
    }
}

/// A wait for a value, from [`Semaphore::reached`]. Dropping it takes the wait back.
#[must_use = "a wait that is not awaited is taken back"]
pub struct Reached {
    shared: Arc<Shared>,
    /// Takes the callback back. `None` for a value that can never be reached.
    subscription: Option<Subscription>,
    value: u64,
}

impl Semaphore {
    /// A wait that is a [`Future`]: ready when the timeline has reached `value` or has failed.
    ///
    /// The wait begins with this call, so of a value and a later failure the value counts, whenever the future is
    /// polled. The future holds no handle on the semaphore: if the last one is dropped, it ends with a failure. The
    /// waker is called once, without a lock, on a thread that may call the program, as callbacks of
    /// [`subscribe`](Semaphore::subscribe) are. A deadline is the executor's own.
    ///
    /// ```
    /// use hal_semaphore::testing::{SoftBackend, device};
    /// use hal_semaphore::{Action, Affinity, Engine, Semaphore};
    ///
    /// async fn run(engine: &Engine<SoftBackend>) -> Result<(), Box<dyn std::error::Error>> {
    ///     let (input, output) = (Semaphore::new(engine, 0)?, Semaphore::new(engine, 0)?);
    ///     engine.submit(Affinity::ANY, &[(input.clone(), 1)], &[(output.clone(), 1)], Action::Barrier)?;
    ///     input.signal(1)?;
    ///     output.reached(1).await?;
    ///     Ok(())
    /// }
    /// ```
    pub fn reached(&self, value: u64) -> Reached {
        let shared = Arc::new(Shared::default());
        let finishing = shared.clone();
        let subscribe = || self.subscribe(value, move |state| finishing.finish(state.map(drop)));
        Reached { subscription: (value <= MAX_VALUE).then(subscribe), shared, value }
    }
}

impl Future for Reached {
    type Output = Result<(), WaitError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.subscription.is_none() {
            return Poll::Ready(Err(WaitError::ValueTooLarge { value: self.value }));
        }
        match self.shared.poll(context.waker()) {
            Some(outcome) => Poll::Ready(outcome.map_err(|failure| WaitError::Failed { failure })),
            None => Poll::Pending,
        }
    }
}

impl std::fmt::Debug for Reached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reached").field("value", &self.value).finish_non_exhaustive()
    }
}
