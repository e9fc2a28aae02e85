// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Flow control for a queue: how many submissions its device accepts before it is full.
//!
//! A backend says "full" but not how much it holds. To try again after every completion would hand over a whole
//! batch to place one operation. So the queue remembers how many operations the device had when it was full,
//! offers no more than that, and tries again once a fair part of them has ended. The capacity may grow, and
//! other queues may share it: each time that everything was accepted, the queue offers more, first one more,
//! then two, then four.

/// How many operations for the device one submission carries at most.
pub(super) const MAX_BATCH: usize = 64;

/// The flow window of one queue.
#[derive(Debug)]
pub(super) struct FlowWindow {
    /// Operations of this queue that the device has.
    taken: usize,
    /// How many it can have, as far as is known.
    capacity: usize,
    /// How many more than that are tried next.
    step: usize,
    /// While the device is full: the number of operations from which it is worth trying again.
    resume_at: Option<usize>,
}

impl Default for FlowWindow {
    fn default() -> Self {
        Self { taken: 0, capacity: usize::MAX, step: 1, resume_at: None }
    }
}

impl FlowWindow {
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.resume_at.is_some()
    }

    /// Operations of this queue that the device has.
    #[inline]
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// How many operations the next submission may carry, at least one: after everything was accepted, one more
    /// than the known capacity is tried.
    #[inline]
    pub(super) fn batch(&self) -> usize {
        self.capacity.saturating_sub(self.taken).clamp(1, MAX_BATCH)
    }

    /// Counts operations that were handed over.
    #[inline]
    pub(super) fn take(&mut self, count: usize) {
        self.taken += count;
    }

    /// Counts operations that came back unseen, or have ended.
    #[inline]
    pub(super) fn give(&mut self, count: usize) {
        self.taken -= count;
    }

    /// The device accepted everything.
    #[inline]
    pub(super) fn accepted(&mut self) {
        if self.taken >= self.capacity {
            self.capacity = self.capacity.saturating_add(self.step);
            self.step = self.step.saturating_mul(2);
        }
    }

    /// The device is full with what it has now.
    pub(super) fn refused(&mut self) {
        self.capacity = self.taken.max(1);
        self.step = 1;
        self.resume_at = Some(self.taken - (self.taken / 4).clamp(1, MAX_BATCH).min(self.taken));
    }

    /// Something has ended, or the device says that it has capacity (`asked`). Returns whether the queue
    /// continues.
    pub(super) fn resume(&mut self, asked: bool) -> bool {
        let goes_on = self.resume_at.is_some_and(|resume_at| asked || self.taken <= resume_at);
        if goes_on {
            self.resume_at = None;
            if asked {
                self.capacity = self.capacity.saturating_add(1);
            }
        }
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a device with capacity for `depth` operations, one completion at a time. Returns how many were
    /// handed over in vain.
    fn churn(depth: usize, work: usize) -> usize {
        let (mut window, mut left, mut wasted) = (FlowWindow::default(), work, 0);
        while left > 0 || window.taken > 0 {
            while left > 0 && !window.is_full() {
                let offered = window.batch().min(left);
                let accepted = offered.min(depth - window.taken);
                window.take(offered);
                window.give(offered - accepted);
                left -= accepted;
                wasted += offered - accepted;
                if offered == accepted { window.accepted() } else { window.refused() }
            }
            assert!(window.taken > 0 || left == 0, "work is left, and nothing will ever ask for it");
            if window.taken > 0 {
                window.give(1);
                window.resume(false);
            }
        }
        wasted
    }

    #[test]
    fn few_operations_are_handed_over_in_vain() {
        for depth in [1, 2, 3, 7, 64, 65, 1024] {
            let wasted = churn(depth, 100_000);
            assert!(wasted <= 100_000 + MAX_BATCH, "{wasted} with capacity for {depth}");
        }
        assert!(churn(1024, 100_000) < 100_000 / 60);
        assert_eq!(churn(1_000_000, 100_000), 0);
    }

    #[test]
    fn capacity_that_grows_is_found() {
        let mut window = FlowWindow::default();
        window.take(4);
        window.refused();
        window.give(4);
        assert!(window.resume(false));
        let mut submissions = 0;
        while window.taken < 1000 {
            let offered = window.batch();
            window.take(offered);
            window.accepted();
            submissions += 1;
        }
        assert!(submissions < 10 + 1000 / MAX_BATCH, "{submissions} for {window:?}");
    }

    #[test]
    fn empty_queue_resumes_as_soon_as_anything_ends() {
        let mut window = FlowWindow::default();
        window.refused();
        assert!(window.is_full() && window.resume(false));
        assert_eq!(window.batch(), 1);
        window.take(1);
        window.refused();
        assert!(!window.resume(false) && window.is_full());
        assert!(window.resume(true), "the device calls unblock");
        assert_eq!(window.batch(), 1);
    }
}
