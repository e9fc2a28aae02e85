// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What the driver tells of its own accord: that something went wrong with a card, whoever is at work on it.
//!
//! A program that asks to be told has half a minute to let go of a card before it is reset. One that does not ask is not
//! told, the reset comes at once, and a second later it is killed.

use super::card::Card;
use super::uapi::event;
use hal_emulation::Errno;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// What ends the use of a card.
const ENDS: u64 = event::DEVICE_RESET | event::DEVICE_UNAVAILABLE;

/// A counter that somebody raises and others wait for.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn ring(&self) {
        // A counter that is full has woken everybody.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Another one that rings with it.
    pub(crate) fn try_clone(&self) -> Result<Self, Errno> {
        Ok(Self(rustix::io::fcntl_dupfd_cloexec(&self.0, 0)?))
    }

    /// What to sleep at until it rings.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(crate) fn silence(&self) {
        // Somebody else may have been here first.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// The bell that the driver rings, and what it has said so far. Several devices of ours may share a card: all of them listen.
pub(super) struct Notices {
    bell: Bell,
    /// Every event since the card was opened: the driver forgets one when it has told it.
    events: AtomicU64,
}

impl Notices {
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Self { bell: Bell::new()?, events: AtomicU64::new(0) })
    }

    pub(super) fn counter(&self) -> BorrowedFd<'_> {
        self.bell.0.as_fd()
    }

    /// Takes down what the driver has told, and returns all that it ever has.
    pub(super) fn take_down(&self, events: u64) -> u64 {
        self.events.fetch_or(events, Ordering::AcqRel) | events
    }
}

impl Card {
    /// Sleeps until the driver says that the card is of no use any more, or until `stop` rings: then it returns false, as it
    /// does if the driver tells somebody else, the program that has opened the card itself.
    pub(crate) fn wait_for_end(&self, stop: &Bell) -> bool {
        let Some(notices) = self.notices() else { return false };
        loop {
            let mut bells = [&stop.0, &notices.bell.0].map(|bell| PollFd::new(bell, PollFlags::IN));
            match poll(&mut bells, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return false,
            }
            let [stops, tells] = bells.map(|bell| !bell.revents().is_empty());
            if stops {
                return false;
            }
            if tells {
                notices.bell.silence();
                if self.take_events() & ENDS != 0 {
                    // It goes on for whoever else listens.
                    notices.bell.ring();
                    return true;
                }
            }
        }
    }
}
