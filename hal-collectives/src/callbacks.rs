// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Callbacks with the outcomes of operations, and the release of their memory. Both are foreign code, which may
//! panic.

use crate::{Done, Result};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Calls a rank's callback with the outcome of its operation. A panic is reported by the panic hook, and affects
/// neither the ranks that are notified next nor this thread.
pub fn notify(done: Done, outcome: Result) {
    guarded(|| done(outcome));
}

/// Drops a value that may hold the last reference to memory, whose owner may panic: that does not affect the ranks
/// that are notified next either. Each value is dropped by itself, as a panic within a panic ends the process.
pub fn release<T>(memory: T) {
    guarded(|| drop(memory));
}

/// Several things that end as one: the end of the last one is reported, with the first failure.
pub struct EndCountdown(Mutex<CountdownState>);

struct CountdownState {
    left: usize,
    outcome: Result,
    done: Option<Done>,
}

impl EndCountdown {
    /// `done` is [notified](notify) of the end of `count` things.
    pub fn new(count: usize, done: Done) -> Arc<Self> {
        Arc::new(Self(Mutex::new(CountdownState { left: count, outcome: Ok(()), done: Some(done) })))
    }

    /// One of them has ended.
    pub fn end(&self, outcome: Result) {
        let mut state = self.0.lock();
        state.left -= 1;
        if state.outcome.is_ok() {
            state.outcome = outcome;
        }
        if state.left > 0 {
            return;
        }
        let outcome = std::mem::replace(&mut state.outcome, Ok(()));
        let done = state.done.take();
        drop(state);
        if let Some(done) = done {
            notify(done, outcome);
        }
    }
}

fn guarded(foreign: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(foreign)) {
        // The payload may panic again when it is dropped.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_semaphore::{Code, Failure};
    use std::sync::mpsc;

    #[test]
    fn first_failure_of_several_is_reported_when_the_last_has_ended() {
        let (sender, reported) = mpsc::channel();
        let countdown = EndCountdown::new(3, Box::new(move |outcome| sender.send(outcome).unwrap()));
        let [first, second] = ["first", "second"].map(|text| Failure::new(Code::Aborted, text));
        countdown.end(Err(first.clone()));
        countdown.end(Err(second));
        assert!(reported.try_recv().is_err(), "one has not ended");
        countdown.end(Ok(()));
        assert!(reported.try_recv().unwrap().unwrap_err().same_root(&first));
    }
}
