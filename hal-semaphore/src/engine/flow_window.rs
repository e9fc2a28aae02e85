// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Flow control for a queue: how many submissions its device accepts before it is full.
//!
//! A backend says "full" and not how much it holds. Asking again after every completion would hand over a whole batch
//! to get rid of one piece of it, so a queue remembers what the device had when it was full, offers no more than fits
//! into that, and asks again once a fair part of it has ended. What the device holds may grow, and it may be shared with
//! other queues: each time that everything was taken more is offered, first by one piece, then by two, by four.

/// How many pieces of work one submission carries at most.
pub(super) const MAX_BATCH: usize = 64;

/// The flow window of one queue: how much its device takes.
#[derive(Debug)]
pub(super) struct FlowWindow {
    /// What the device has of this queue.
    taken: usize,
    /// What it can have, as far as is known.
    capacity: usize,
    /// How much more than that is tried next.
    step: usize,
    /// While it is full: with how much left it is worth asking again.
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

    /// What the device has of this queue.
    #[inline]
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// How much the next submission of a queue that is not full may carry: one piece at least, since more than the device
    /// has is tried after everything was taken.
    #[inline]
    pub(super) fn batch(&self) -> usize {
        self.capacity.saturating_sub(self.taken).clamp(1, MAX_BATCH)
    }

    /// So much was handed over.
    #[inline]
    pub(super) fn take(&mut self, count: usize) {
        self.taken += count;
    }

    /// So much came back unseen, or has ended.
    #[inline]
    pub(super) fn give(&mut self, count: usize) {
        self.taken -= count;
    }

    /// The device took everything that it was offered.
    #[inline]
    pub(super) fn accepted(&mut self) {
        if self.taken >= self.capacity {
            self.capacity = self.capacity.saturating_add(self.step);
            self.step = self.step.saturating_mul(2);
        }
    }

    /// The device had no room for more than it has now.
    pub(super) fn refused(&mut self) {
        self.capacity = self.taken.max(1);
        self.step = 1;
        self.resume_at = Some(self.taken - (self.taken / 4).clamp(1, MAX_BATCH).min(self.taken));
    }

    /// Something has ended, or the device says that it has room (`asked`): whether the queue goes on.
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

    /// A device with room for `depth`, one completion at a time. Returns how many pieces were handed over and came back.
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
    fn little_is_handed_over_in_vain() {
        for depth in [1, 2, 3, 7, 64, 65, 1024] {
            let wasted = churn(depth, 100_000);
            assert!(wasted <= 100_000 + MAX_BATCH, "{wasted} with room for {depth}");
        }
        assert!(churn(1024, 100_000) < 100_000 / 60);
        assert_eq!(churn(1_000_000, 100_000), 0);
    }

    #[test]
    fn room_that_grows_is_found() {
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
    fn queue_without_anything_goes_on_as_soon_as_anything_ends() {
        let mut window = FlowWindow::default();
        window.refused();
        assert!(window.is_full() && window.resume(false));
        assert_eq!(window.batch(), 1);
        window.take(1);
        window.refused();
        assert!(!window.resume(false) && window.is_full());
        assert!(window.resume(true), "the device says that it has room");
        assert_eq!(window.batch(), 1);
    }
}
