// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Events: what a queue records at the end of a job and another one waits for.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// An event. It is recorded again and again, and a wait is for the recording that was asked for last when the
/// wait was submitted: so both are counted.
#[derive(Default)]
pub struct Event {
    counts: Mutex<Counts>,
    recorded: Condvar,
}

/// How many recordings were asked for, and how many are made.
#[derive(Default)]
struct Counts {
    asked: u64,
    made: u64,
}

impl Event {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A job that records it is submitted.
    pub(crate) fn ask(&self) {
        self.lock().asked += 1;
    }

    /// Which recording a job has to wait for that is submitted now.
    pub(crate) fn awaited(&self) -> u64 {
        self.lock().asked
    }

    /// The job has ended.
    pub(crate) fn record(&self) {
        self.lock().made += 1;
        self.recorded.notify_all();
    }

    /// Waits for a recording.
    pub(crate) fn wait(&self, recording: u64) {
        let waiting = |counts: &mut Counts| counts.made < recording;
        drop(self.recorded.wait_while(self.lock(), waiting).unwrap_or_else(PoisonError::into_inner));
    }
}
