// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The loss of a card: the events of its driver, the first cause, and threads that sleep until then.
//!
//! The driver notifies a program that has registered an eventfd, and resets the card half a minute later. A program
//! without one gets no notice: the reset comes at once, and the kernel kills the program a second later.

use super::card::Card;
use super::uapi::event;
use hal_backend::Failure;
use hal_kernel::Errno;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The events that end the use of a card.
const ENDS: u64 = event::DEVICE_RESET | event::DEVICE_UNAVAILABLE;

/// How often a thread that sleeps looks for itself: a program that has closed the eventfds of a card wakes nobody.
const INTERVAL: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// A counter that one thread raises and others wait for.
#[derive(Debug)]
pub(crate) struct EventFd {
    descriptor: OwnedFd,
    /// True if it was raised by way of this descriptor, and not cleared since.
    is_raised: AtomicBool,
}

impl EventFd {
    pub(crate) fn new() -> Result<Self, Errno> {
        Ok(Self::of(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    fn of(descriptor: OwnedFd) -> Self {
        Self { descriptor, is_raised: AtomicBool::new(false) }
    }

    pub(crate) fn signal(&self) {
        self.is_raised.store(true, Ordering::Release);
        // A counter that is full has woken all threads.
        let _ = rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes());
    }

    /// Another descriptor of the same counter.
    pub(crate) fn try_clone(&self) -> Result<Self, Errno> {
        Ok(Self::of(rustix::io::fcntl_dupfd_cloexec(&self.descriptor, 0)?))
    }

    /// The descriptor to poll for input.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    pub(crate) fn clear(&self) {
        self.is_raised.store(false, Ordering::Release);
        // Another thread may have cleared it first.
        let _ = rustix::io::read(&self.descriptor, &mut [0; 8]);
    }
}

/// Why a card is lost.
#[derive(Clone, Debug)]
pub(crate) enum LossCause {
    /// The driver reported it by an event.
    Notified,
    /// The driver refused a request with an error that only a lost card has.
    Refused(Errno),
    /// A user of the card has found out.
    Lost(Failure),
}

/// The loss of a card, however it was found out, and the eventfd that wakes those who wait for it.
pub(super) struct CardLoss {
    first: OnceLock<LossCause>,
    eventfd: EventFd,
}

impl CardLoss {
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Self { first: OnceLock::new(), eventfd: EventFd::new()? })
    }

    /// Records a cause, unless there is one, and wakes all who wait.
    pub(super) fn report(&self, cause: LossCause) {
        let _ = self.first.set(cause);
        self.eventfd.signal();
    }
}

impl Card {
    /// Why the card is lost, if it is known to be.
    pub(crate) fn loss_cause(&self) -> Option<LossCause> {
        self.loss().first.get().cloned()
    }

    /// Sleeps until the card is lost, and returns why; `None` once `stop` is signalled.
    pub(crate) fn wait_for_loss(&self, stop: &EventFd) -> Option<LossCause> {
        // A program that has opened the card itself may have registered its own eventfd; then there is none here.
        let eventfds = [Some(stop), Some(&self.loss().eventfd), self.driver_events()];
        loop {
            let mut polled: Vec<PollFd<'_>> = eventfds
                .iter()
                .flatten()
                .map(|eventfd| PollFd::new(&eventfd.descriptor, PollFlags::IN))
                .collect();
            if stop.is_raised.load(Ordering::Acquire) {
                return None;
            }
            if let Some(cause) = self.loss_cause() {
                return Some(cause);
            }
            match poll(&mut polled, Some(&INTERVAL)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(_) => return None,
            }
            let mut signalled = polled.iter().map(|eventfd| !eventfd.revents().is_empty());
            if signalled.next() == Some(true) {
                return None;
            }
            if signalled.next() == Some(true) {
                return self.loss_cause();
            }
            if let Some(driver_events) = self.driver_events() {
                driver_events.clear();
                // A card that is gone refuses the question, which reports the loss.
                if self.take_events() & ENDS != 0 {
                    self.give_up();
                    self.loss().report(LossCause::Notified);
                }
            }
        }
    }
}
