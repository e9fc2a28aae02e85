// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A group that its ranks are still agreeing on.

use crate::{Communicator, Operation, OperationEntry, Result};
use hal_backend::TimeLimit;
use hal_semaphore::{Code, Failure};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A rank's handle on a group that is known when all ranks have split the one before. Clones are the same handle.
#[derive(Clone)]
pub struct PendingGroup(Arc<Pending>);

struct Pending {
    state: Mutex<State>,
    known: Condvar,
    /// How long the rank waits for the others.
    timeout: Duration,
}

#[derive(Default)]
struct State {
    outcome: Option<Result<Arc<dyn Communicator>>>,
    /// Why the rank has ended in it, before it was known.
    ended: Option<Failure>,
}

impl PendingGroup {
    /// A group that is not known yet. Whoever makes it ends the wait, as the timeout does.
    pub fn new(timeout: Duration) -> Self {
        Self(Arc::new(Pending { state: Mutex::default(), known: Condvar::new(), timeout }))
    }

    /// The rank's handle on the group is known, or why it has none.
    pub fn set(&self, outcome: Result<Arc<dyn Communicator>>) {
        let mut state = self.0.state.lock();
        state.outcome = Some(outcome.clone());
        let ended = state.ended.take();
        drop(state);
        self.0.known.notify_all();
        if let (Ok(member), Some(why)) = (outcome, ended) {
            member.end(&why);
        }
    }

    fn member(&self) -> Result<Arc<dyn Communicator>> {
        let mut state = self.0.state.lock();
        // Whoever keeps the time ends the wait; twice the timeout allows for a late wake-up.
        let patience = self.0.timeout * 2 + Duration::from_secs(1);
        let mut limit = TimeLimit::new(patience, Instant::now());
        loop {
            if let Some(outcome) = &state.outcome {
                return outcome.clone();
            }
            self.0.known.wait_until(&mut state, limit.next_look());
            if state.outcome.is_none() && limit.look(Instant::now()).is_zero() {
                let message = "the group is not formed yet: not every rank has called the split";
                return Err(Failure::new(Code::DeadlineExceeded, message));
            }
        }
    }
}

impl Communicator for PendingGroup {
    fn place(&self) -> Result<(u32, u32)> {
        self.member()?.place()
    }

    fn enter(&self, operation: Operation) -> Result<Box<dyn OperationEntry>> {
        self.member()?.enter(operation)
    }

    fn end(&self, why: &Failure) {
        let mut state = self.0.state.lock();
        let Some(outcome) = state.outcome.clone() else {
            state.ended.get_or_insert_with(|| why.clone());
            return;
        };
        drop(state);
        if let Ok(member) = outcome {
            member.end(why);
        }
    }

    fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Box<dyn Communicator>>> {
        self.member()?.split(color, key)
    }
}
