// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Which of the engine's own threads serves.
//!
//! A callback may hold up the thread that serves, and wait for something that only that thread would report. So a
//! second thread stands by from the first callback on, and takes the place of a thread whose callback does not return
//! within a [`NAP`] or two, or an [`IDLE`] where there was nothing to do for long. A thread that returns and finds its
//! place taken stands by, or ends if another one does: at most one stands by, one serves, and the others are in
//! callbacks.

use super::IDLE;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long a thread that stands by sleeps, at most while callbacks are called.
const NAP: Duration = Duration::from_micros(3200);

/// The turn in which MPI has ended.
const OVER: u64 = u64::MAX;

/// See the [module documentation](self).
#[derive(Default)]
pub(super) struct Relay {
    /// How often the thread that serves has begun its callbacks, and has returned or was replaced: it is in a callback
    /// while this is odd.
    turns: AtomicU64,
    /// A thread stands by, or is about to.
    stands_by: AtomicBool,
}

impl Relay {
    /// The thread that serves begins its callbacks. Returns its turn.
    pub(super) fn begin_callbacks(&self) -> u64 {
        self.turns.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Ends a turn: the callbacks have returned, or another thread serves instead. True for the first of the two.
    pub(super) fn take_turn(&self, turn: u64) -> bool {
        self.turns.compare_exchange(turn, turn + 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// True if this thread, or one that it starts, is the one to stand by.
    pub(super) fn is_to_stand_by(&self) -> bool {
        !self.stands_by.swap(true, Ordering::SeqCst)
    }

    /// The thread that was to stand by does not.
    pub(super) fn stand_down(&self) {
        self.stands_by.store(false, Ordering::SeqCst);
    }

    /// Sleeps until this thread is to serve. False if MPI has ended.
    pub(super) fn stand_by(&self) -> bool {
        let (mut seen, mut nap) = (self.turns.load(Ordering::SeqCst), NAP);
        loop {
            std::thread::sleep(nap);
            let turn = self.turns.load(Ordering::SeqCst);
            if turn == OVER {
                return false;
            }
            if turn != seen {
                (seen, nap) = (turn, NAP);
            } else if !turn.is_multiple_of(2) && self.take_turn(turn) {
                self.stand_down();
                return true;
            } else {
                nap = (nap * 2).min(IDLE);
            }
        }
    }

    /// MPI has ended: nobody serves any more.
    pub(super) fn end(&self) {
        self.turns.store(OVER, Ordering::SeqCst);
    }
}
