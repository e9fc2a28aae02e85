// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What the driver tells of its own accord: that something went wrong with a card, whichever process works on it.
//!
//! A program that asks to be told has half a minute to let go of a card before it is reset. One that does not ask is not
//! told, the reset comes at once, and a second later it is killed.

use super::card::Card;
use super::uapi::event;
use hal_backend::Failure;
use hal_kernel::Errno;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// What ends the use of a card.
const ENDS: u64 = event::DEVICE_RESET | event::DEVICE_UNAVAILABLE;

/// A counter that one thread raises and others wait for.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn ring(&self) {
        // A counter that is full has woken all threads.
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
        // Another thread may have read it first.
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

/// Why a card is of no use any more.
#[derive(Clone, Debug)]
pub(crate) enum Ending {
    /// The driver reported it by an event.
    Notified,
    /// The driver refused a request as only of a card that is lost.
    Refused(Errno),
    /// A user of it has found out.
    Lost(Failure),
}

/// The end of a card's use, however that was found out, for threads that sleep until then.
pub(super) struct End {
    first: OnceLock<Ending>,
    bell: Bell,
}

impl End {
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Self { first: OnceLock::new(), bell: Bell::new()? })
    }

    /// It has come. The first reason is the one.
    pub(super) fn come(&self, ending: Ending) {
        let _ = self.first.set(ending);
        self.bell.ring();
    }
}

impl Card {
    /// Why the card is of no use any more, if that is known.
    pub(crate) fn ending(&self) -> Option<Ending> {
        self.end().first.get().cloned()
    }

    /// Sleeps until the card is of no use any more, and says why; or until `stop` rings.
    pub(crate) fn wait_for_end(&self, stop: &Bell) -> Option<Ending> {
        // Where the driver notifies another descriptor, of the program that has opened the card itself, there is no bell of ours.
        let notice_bell = self.notices().map(|notices| &notices.bell);
        let bells = [Some(stop), Some(&self.end().bell), notice_bell];
        loop {
            let mut polled: Vec<PollFd<'_>> =
                bells.iter().flatten().map(|bell| PollFd::new(&bell.0, PollFlags::IN)).collect();
            match poll(&mut polled, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return None,
            }
            let mut rings = polled.iter().map(|bell| !bell.revents().is_empty());
            if rings.next() == Some(true) {
                return None;
            }
            if rings.next() == Some(true) {
                return self.ending();
            }
            if let Some(notices) = self.notices() {
                notices.bell.silence();
                // A card that is not there any more does not say what there was: that it refuses to is how it ends.
                if self.take_events() & ENDS != 0 {
                    self.give_up();
                    self.end().come(Ending::Notified);
                }
            }
        }
    }
}
