// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Waiters on the host: a thread that sleeps until timelines reach values, or a callback.

use crate::engine_events::Callback;
use crate::failure::Failure;
use crate::notification::Wakeup;
use crate::sync::Mutex;
use std::fmt;

/// The timeline that decided a wait, by index.
#[derive(Clone, Debug)]
pub(crate) enum HostOutcome {
    Reached(usize),
    Failed(usize, Failure),
}

struct HostWaitProgress {
    /// How many timelines are not reached yet.
    remaining: usize,
    outcome: Option<HostOutcome>,
}

/// A thread that waits for some timelines.
pub(crate) struct HostWait {
    /// One timeline is enough.
    any: bool,
    wakeup: Wakeup,
    state: Mutex<HostWaitProgress>,
}

impl HostWait {
    pub(super) fn new(any: bool, count: usize, wakeup: Wakeup) -> Self {
        Self { any, wakeup, state: Mutex::new(HostWaitProgress { remaining: count, outcome: None }) }
    }

    pub(super) fn reached(&self, index: usize) {
        let mut state = self.state.lock();
        state.remaining = state.remaining.saturating_sub(1);
        let decided = state.outcome.is_none() && (self.any || state.remaining == 0);
        if decided {
            state.outcome = Some(HostOutcome::Reached(index));
        }
        drop(state);
        if decided {
            self.wakeup.raise();
        }
    }

    pub(super) fn failed(&self, index: usize, failure: &Failure) {
        let mut state = self.state.lock();
        let decided = state.outcome.is_none();
        if decided {
            state.outcome = Some(HostOutcome::Failed(index, failure.clone()));
        }
        drop(state);
        if decided {
            self.wakeup.raise();
        }
    }

    pub(super) fn outcome(&self) -> Option<HostOutcome> {
        self.state.lock().outcome.clone()
    }
}

impl fmt::Debug for HostWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostWait").field("any", &self.any).finish_non_exhaustive()
    }
}

/// A callback that waits for its timeline. The thread that takes it calls it or drops it.
pub(crate) struct CallbackRecord(Mutex<Option<Callback>>);

impl CallbackRecord {
    pub(crate) fn new(callback: Callback) -> Self {
        Self(Mutex::new(Some(callback)))
    }

    pub(crate) fn take(&self) -> Option<Callback> {
        self.0.lock().take()
    }
}

impl fmt::Debug for CallbackRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallbackRecord")
    }
}
