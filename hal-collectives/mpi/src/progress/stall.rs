// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A process that stood still: what it received meanwhile counts only when the others have answered.

use crate::notice::Generation;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// A process that has not polled for so long has stood still; how long it waits for answers then.
const STILL: Duration = Duration::from_millis(100);
const CATCH_UP: Duration = Duration::from_secs(1);

/// See the [module documentation](self).
pub(super) struct Stall {
    /// When this process tested for notices last.
    polled: Instant,
    /// Until when answers are waited for, and the ranks of the job that have not answered.
    open: Option<(Instant, BTreeSet<u32>)>,
    /// How often this process stood still: answers say to which question.
    count: u64,
}

impl Stall {
    pub(super) fn new() -> Self {
        Self { polled: Instant::now(), open: None, count: 0 }
    }

    /// True if answers are waited for: nothing else is believed meanwhile.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// True if this process has stood still until now.
    pub(super) fn stood_still(&self, now: Instant) -> bool {
        now - self.polled >= STILL
    }

    /// This process tests for notices.
    pub(super) fn polls(&mut self, now: Instant) {
        self.polled = now;
    }

    /// Some ranks of the job are asked. Returns the number of the question.
    pub(super) fn ask(&mut self, missing: BTreeSet<u32>, now: Instant) -> Generation {
        self.count += 1;
        self.open = Some((now + CATCH_UP, missing));
        Generation { number: self.count, generation: 0 }
    }

    /// A rank of the job has answered a question.
    pub(super) fn answered(&mut self, question: Generation, from: u32) {
        if let Some((_, missing)) = self.open.as_mut().filter(|_| question.number == self.count) {
            missing.remove(&from);
        }
    }

    /// Ends when all have answered, or had their time.
    pub(super) fn end_if_over(&mut self, now: Instant) {
        self.open.take_if(|(until, missing)| missing.is_empty() || now >= *until);
    }
}
