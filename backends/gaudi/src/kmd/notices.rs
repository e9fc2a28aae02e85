//! What the driver tells of its own accord: that something went wrong with a card, whoever is at work on it.
//!
//! A program that asks to be told has half a minute to let go of a card before it is reset. One that does not ask is not
//! told, the reset comes at once, and a second later it is killed.

use super::card::Card;
use super::uapi::event;
use hal_emulation::Errno;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What ends the use of a card.
const ENDS: u64 = event::DEVICE_RESET | event::DEVICE_UNAVAILABLE;

/// A counter that the driver raises, and what it has said so far.
pub(super) struct Notices {
    counter: OwnedFd,
    /// Every event since the card was opened: the driver forgets one when it has told it.
    events: AtomicU64,
    stopped: AtomicBool,
}

impl Notices {
    pub(super) fn new() -> Result<Self, Errno> {
        let counter = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Self { counter, events: AtomicU64::new(0), stopped: AtomicBool::new(false) })
    }

    pub(super) fn counter(&self) -> BorrowedFd<'_> {
        self.counter.as_fd()
    }

    /// Takes down what the driver has told, and returns all that it ever has.
    pub(super) fn take_down(&self, events: u64) -> u64 {
        self.events.fetch_or(events, Ordering::AcqRel) | events
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        // A counter that is full has woken everybody.
        let _ = rustix::io::write(&self.counter, &1_u64.to_ne_bytes());
    }

    /// Sleeps until the driver, or whoever stops this, raises the counter. False if there is nothing to wait for any more.
    fn wait(&self) -> bool {
        let mut count = [0; 8];
        loop {
            match rustix::io::read(&self.counter, &mut count) {
                Err(Errno::INTR) => {}
                outcome => return outcome.is_ok() && !self.stopped.load(Ordering::Acquire),
            }
        }
    }
}

impl Card {
    /// Sleeps until the driver says that the card is of no use any more. False if that is not waited for any more, or if the
    /// driver tells somebody else: the program that has opened the card itself.
    pub(crate) fn wait_for_end(&self) -> bool {
        let Some(notices) = self.notices() else { return false };
        while notices.wait() {
            if self.take_events() & ENDS != 0 {
                return true;
            }
        }
        false
    }

    /// Ends every [`wait_for_end`](Self::wait_for_end).
    pub(crate) fn stop_notices(&self) {
        if let Some(notices) = self.notices() {
            notices.stop();
        }
    }
}
