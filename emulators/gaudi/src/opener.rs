// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The process that opened a card, which a reset kills while the file has a holder.

use emulator_core::{Errno, Process};
use rustix::process::{Signal, pidfd_send_signal};
use std::os::fd::OwnedFd;

/// The thread that opened a card. The driver keeps that thread's number to find the process that a reset kills,
/// and kills no process once the thread has ended. Nothing, if it belongs to the emulator's own process.
/// rule(reset-waits)
#[derive(Debug, Default)]
pub(crate) struct Opener(Option<OwnedFd>);

impl Opener {
    /// The calling thread.
    pub(crate) fn of(process: &dyn Process) -> Result<Self, Errno> {
        process.task().map(Self)
    }

    /// Kills its process, as the kernel does. Returns whether a kernel would have killed it. The emulator's own
    /// process is spared, and counts.
    pub(crate) fn kill(&self) -> bool {
        self.0.as_ref().is_none_or(|task| pidfd_send_signal(task, Signal::KILL).is_ok())
    }
}
