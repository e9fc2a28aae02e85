// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What a supervisor needs of an emulator, to answer the system calls of other processes.
//!
//! A [`System`] is for the process that the emulator is in. Here the process is an argument, descriptors
//! are the emulator's own duplicates of those that the process has, and mapping is left to the process: the memory
//! behind every offset of an open file is in the file, so that the system maps it by itself.

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

    /// Whether a process may map so much from an offset of an open file.
    fn may_map(
        &self,
        process: &dyn Process,
        file: BorrowedFd<'_>,
        length: u64,
        offset: u64,
    ) -> Result<(), Errno>;

    /// The node that an open file is of; nothing, if it is none of this machine's.
    fn node(&self, file: BorrowedFd<'_>) -> Option<PathBuf>;

    /// Releases what has no holder any more. To be called now and then while it says that something is open.
    fn reap(&self) -> bool;

    /// Wakes every request that sleeps, so that it looks whether it is [interrupted](crate::interrupt).
    fn nudge(&self);

    /// What became of the cards, a line for each, for people.
    fn report(&self) -> String;
}
