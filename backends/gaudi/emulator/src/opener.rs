// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Whoever opened a card, whom a reset kills while anybody has the file.

use rustix::process::{PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use std::os::fd::OwnedFd;

/// A process, and no other that gets its number later. Nothing, if it is the emulator's own, which is never killed.
#[derive(Debug, Default)]
pub(crate) struct Opener(Option<OwnedFd>);

impl Opener {
    /// The process of a number.
    pub(crate) fn new(process: u32) -> Self {
        let process = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw);
        let other = process.filter(|&process| process != getpid());
        // One that has ended meanwhile needs no kill.
        Self(other.and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok()))
    }

    /// Kills it, as the kernel does.
    pub(crate) fn kill(&self) {
        if let Some(process) = &self.0 {
            // Somebody else may have been quicker.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
}
