// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The identity of a card, however it was opened.

use crate::system::{System, identity};
use hal_backend::{Code, Failure};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Two descriptors or paths with the same key are the same card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CardKey {
    /// A file, by its device and inode.
    File(u64, u64),
    /// A node of an emulated machine: where that machine is in memory, and the path in it.
    Emulated(usize, PathBuf),
    /// A path without a node. Opening it says what is wrong.
    Missing(PathBuf),
}

impl CardKey {
    /// The key of an open file.
    pub fn of_file(file: BorrowedFd<'_>) -> Result<Self, Failure> {
        let (device, inode) = identity(file).map_err(|errno| {
            Failure::new(Code::InvalidArgument, format!("a descriptor cannot be identified: {errno}"))
        })?;
        Ok(Self::File(device, inode))
    }

    /// The key of a node of the system that this runs on.
    pub fn of_node(path: &Path) -> Self {
        match rustix::fs::stat(path) {
            Ok(status) => Self::File(status.st_dev, status.st_ino),
            Err(_) => Self::Missing(path.to_owned()),
        }
    }

    /// The key of a node of an emulated machine. No two machines that exist at the same time are at one address, and
    /// an open card keeps its machine.
    pub fn emulated<S: System + ?Sized>(machine: &Arc<S>, path: &Path) -> Self {
        Self::Emulated(Arc::as_ptr(machine).addr(), path.to_owned())
    }
}
