// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The identity of a card, however it was opened.

use crate::system::System;
use hal_backend::{Code, Failure};
use rustix::fs::{FileType, Stat};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Two descriptors or paths with the same key are the same card, while it is in the machine: the next one may have the
/// number of one that was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CardKey {
    /// A character device, by its number: nodes of one card differ in their inodes, as in a container.
    Device(u64),
    /// Any other file, by its device and inode.
    File(u64, u64),
    /// A node of an emulated machine: where that machine is in memory, and the path in it.
    Emulated(usize, PathBuf),
    /// A path without a node. Opening it says what is wrong.
    Missing(PathBuf),
}

impl CardKey {
    /// The key of an open file.
    pub fn of_file(file: BorrowedFd<'_>) -> Result<Self, Failure> {
        let status = rustix::fs::fstat(file).map_err(|errno| {
            Failure::new(Code::InvalidArgument, format!("a descriptor cannot be identified: {errno}"))
        })?;
        Ok(Self::of_status(&status))
    }

    /// The key of a node of the system that this runs on.
    pub fn of_node(path: &Path) -> Self {
        match rustix::fs::stat(path) {
            Ok(status) => Self::of_status(&status),
            Err(_) => Self::Missing(path.to_owned()),
        }
    }

    fn of_status(status: &Stat) -> Self {
        match FileType::from_raw_mode(status.st_mode) {
            FileType::CharacterDevice => Self::Device(status.st_rdev),
            _ => Self::File(status.st_dev, status.st_ino),
        }
    }

    /// The key of a node of an emulated machine. No two machines that exist at the same time are at one address, and
    /// an open card keeps its machine.
    pub fn emulated<S: System + ?Sized>(machine: &Arc<S>, path: &Path) -> Self {
        Self::Emulated(Arc::as_ptr(machine).addr(), path.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Linux;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::os::fd::AsFd;

    /// A container has nodes of its own for the host's devices, and a program may make more by `mknod`.
    #[test]
    fn device_has_one_key_whatever_its_node() {
        let (one, other) = (Path::new("/dev/ptmx"), Path::new("/dev/pts/ptmx"));
        assert_eq!(CardKey::of_node(one), CardKey::of_node(other));
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(CardKey::of_file(null.as_fd()).unwrap(), CardKey::of_node(Path::new("/dev/null")));
        assert_ne!(CardKey::of_node(Path::new("/dev/null")), CardKey::of_node(Path::new("/dev/zero")));
    }

    #[test]
    fn link_to_a_node_has_the_key_of_the_node() {
        let link = std::env::temp_dir().join(format!("card-key-{}", std::process::id()));
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        let key = CardKey::of_node(&link);
        std::fs::remove_file(&link).unwrap();
        assert_eq!(key, CardKey::of_node(Path::new("/dev/null")));
        assert_ne!(CardKey::of_node(&link), CardKey::of_node(Path::new("/dev/absent")));
    }

    #[test]
    fn cards_of_emulated_machines_differ_by_machine_and_node() {
        let (machine, other) = (Arc::new(Linux), Arc::new(Linux));
        let key = |machine: &Arc<Linux>, node: &str| CardKey::emulated(machine, Path::new(node));
        assert_eq!(key(&machine, "/dev/0"), key(&machine.clone(), "/dev/0"));
        assert_ne!(key(&machine, "/dev/0"), key(&other, "/dev/0"));
        assert_ne!(key(&machine, "/dev/0"), key(&machine, "/dev/1"));
    }

    #[test]
    fn duplicates_of_a_file_have_its_key_and_other_files_do_not() {
        let file = || memfd_create("card", MemfdFlags::CLOEXEC).unwrap();
        let (one, other) = (file(), file());
        let key = |file: &std::os::fd::OwnedFd| CardKey::of_file(file.as_fd()).unwrap();
        assert_eq!(key(&one), key(&one.try_clone().unwrap()));
        assert_ne!(key(&one), key(&other));
    }
}
