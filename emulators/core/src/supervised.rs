// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The interface between a supervisor and an emulator that answers the system calls of other processes.
//!
//! A [`System`] serves the process that the emulator is in. Here the process is an argument, descriptors are
//! the emulator's own duplicates of the process's, and the process maps by itself: the memory behind every
//! offset of an open file is in the file, so that the system maps it without the emulator.

use crate::process::Process;
use hal_kernel::HostPrograms;
use hal_kernel::{Errno, System};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// An emulator that answers for other processes.
pub trait Supervised: System + HostPrograms {
    /// Opens a node for a process. The descriptor is for the process alone: a copy of it keeps the file open.
    fn open_for(&self, process: &dyn Process, path: &Path) -> Result<OwnedFd, Errno>;

    /// Answers a request of a process.
    fn request_for(
        &self,
        process: &dyn Process,
        file: BorrowedFd<'_>,
        request: u32,
        argument: &mut [u8],
    ) -> Result<(), Errno>;

    /// Whether a process may map `length` bytes from an offset of an open file.
    fn may_map(
        &self,
        process: &dyn Process,
        file: BorrowedFd<'_>,
        length: u64,
        offset: u64,
    ) -> Result<(), Errno>;

    /// The node that an open file was opened by; nothing, if the file does not belong to this machine.
    fn node(&self, file: BorrowedFd<'_>) -> Option<PathBuf>;

    /// Releases closed files. Returns whether something is still open; the supervisor then calls it again from
    /// time to time.
    fn reap(&self) -> bool;

    /// Wakes every request that sleeps, so that it checks whether it is [interrupted](crate::interrupt).
    fn nudge(&self);

    /// A line for each card with what it has done, for people.
    fn report(&self) -> String;
}
