// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What a card is known by, however it was opened.

use super::{Kernel, identity};
use hal_backend::{Code, Failure};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Two descriptors or paths with the same key are the same card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// A file, by its device and inode.
    File(u64, u64),
    /// A node of an emulated machine: where that machine is in memory, and the path in it.
    Emulated(usize, PathBuf),
    /// A path without a node. Opening it says what is wrong.
    Missing(PathBuf),
}

impl Key {
    /// The key of an open file.
    pub(crate) fn of_file(file: BorrowedFd<'_>) -> Result<Self, Failure> {
        let (device, inode) = identity(file).map_err(|errno| {
            Failure::new(Code::InvalidArgument, format!("a descriptor cannot be looked at: {errno}"))
        })?;
        Ok(Self::File(device, inode))
    }

    /// The key of a node of this system.
    pub(crate) fn of_node(path: &Path) -> Self {
        match rustix::fs::stat(path) {
            Ok(status) => Self::File(status.st_dev, status.st_ino),
            Err(_) => Self::Missing(path.to_owned()),
        }
    }

    /// The key of a node of an emulated machine.
    pub(crate) fn emulated<M: Kernel>(machine: &Arc<M>, path: &Path) -> Self {
        Self::Emulated(Arc::as_ptr(machine).addr(), path.to_owned())
    }
}
