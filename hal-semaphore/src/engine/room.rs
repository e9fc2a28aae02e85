// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! How much of a queue's work its device takes at a time.
//!
//! A backend says "full" and not how much it holds. Asking again after every completion would hand over a whole batch
//! to get rid of one piece of it, so a queue remembers what the device had when it was full, offers no more than fits
//! into that, and asks again once a fair part of it has ended. What the device holds may grow, and it may be shared with
//! other queues: each time that everything was taken more is offered, first by one piece, then by two, by four.

/// How many pieces of work one submission carries at most.
pub(super) const BATCH: usize = 64;

/// The flow window of one queue: how much its device takes.
#[derive(Debug)]
pub(super) struct FlowWindow {
    /// What the device has of this queue.
    taken: usize,
    /// What it can have, as far as is known.
    known: usize,
    /// How much more than that is tried next.
    step: usize,
    /// While it is full: with how much left it is worth asking again.
    resume_at: Option<usize>,
}

impl Default for FlowWindow {
    fn default() -> Self {
        Self { taken: 0, known: usize::MAX, step: 1, resume_at: None }
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
        self.known.saturating_sub(self.taken).clamp(1, BATCH)
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
        if self.taken >= self.known {
            self.known = self.known.saturating_add(self.step);
            self.step = self.step.saturating_mul(2);
        }
    }

    /// The device had no room for more than it has now.
    pub(super) fn refused(&mut self) {
        self.known = self.taken.max(1);
        self.step = 1;
        self.resume_at = Some(self.taken - (self.taken / 4).clamp(1, BATCH).min(self.taken));
    }

    /// Something has ended, or the device says that it has room (`asked`): whether the queue goes on.
    pub(super) fn resume(&mut self, asked: bool) -> bool {
        let goes_on = self.resume_at.is_some_and(|resume_at| asked || self.taken <= resume_at);
        if goes_on {
            self.resume_at = None;
            if asked {
                self.known = self.known.saturating_add(1);
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
        let (mut room, mut left, mut wasted) = (FlowWindow::default(), work, 0);
        while left > 0 || room.taken > 0 {
            while left > 0 && !room.is_full() {
                let offered = room.batch().min(left);
                let accepted = offered.min(depth - room.taken);
                room.take(offered);
                room.give(offered - accepted);
                left -= accepted;
                wasted += offered - accepted;
                if offered == accepted { room.accepted() } else { room.refused() }
            }
            assert!(room.taken > 0 || left == 0, "work is left, and nothing will ever ask for it");
            if room.taken > 0 {
                room.give(1);
                room.resume(false);
            }
        }
        wasted
    }

    #[test]
    fn little_is_handed_over_in_vain() {
        for depth in [1, 2, 3, 7, 64, 65, 1024] {
            let wasted = churn(depth, 100_000);
            assert!(wasted <= 100_000 + BATCH, "{wasted} with room for {depth}");
        }
        assert!(churn(1024, 100_000) < 100_000 / 60);
        assert_eq!(churn(1_000_000, 100_000), 0);
    }

    #[test]
    fn room_that_grows_is_found() {
        let mut room = FlowWindow::default();
        room.take(4);
        room.refused();
        room.give(4);
        assert!(room.resume(false));
        let mut submissions = 0;
        while room.taken < 1000 {
            let offered = room.batch();
            room.take(offered);
            room.accepted();
            submissions += 1;
        }
        assert!(submissions < 10 + 1000 / BATCH, "{submissions} for {room:?}");
    }

    #[test]
    fn queue_without_anything_goes_on_as_soon_as_anything_ends() {
        let mut room = FlowWindow::default();
        room.refused();
        assert!(room.is_full() && room.resume(false));
        assert_eq!(room.batch(), 1);
        room.take(1);
        room.refused();
        assert!(!room.resume(false) && room.is_full());
        assert!(room.resume(true), "the device says that it has room");
        assert_eq!(room.batch(), 1);
    }
}
