// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Open files, and memory files that stand for a kernel's objects.
//!
//! A memory file stands for each open file. The program's descriptor is one file description of it, with a
//! shared lock. The emulator keeps another description. When the emulator gets the exclusive lock, every
//! descriptor of the program, every copy of one and every mapping through one is gone. So a file is released
//! when a kernel would release it, also if a program has duplicated it, or has closed it without the emulator.

use crate::backing::{self, Backing};
use crate::card_memory;
use crate::process::keeping;
use crate::view;
use hal_backend::HostRange;
use hal_backend::memory_file::memory_file;
use hal_kernel::{Errno, identity};
use rustix::fs::{FlockOperation, OFlags};
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The device and inode number behind a descriptor.
pub type Identity = (u64, u64);

/// Memory of a card: a memory file, and all of it mapped, and [not locked](card_memory).
pub fn mapped_file(name: &str, length: u64) -> Result<(Arc<OwnedFd>, HostRange), Errno> {
    let file = memory_file(name, length)?;
    let size = usize::try_from(length).map_err(|_| Errno::NOMEM)?;
    let range = card_memory::map(file.as_fd(), size)?;
    let file = Arc::new(file);
    let registered = backing::register(&range, Backing::File(file.clone(), 0));
    Ok((file, keeping(range, Box::new(registered))))
}

/// Another description of an open memory file: with its own position and its own locks.
pub fn reopen(file: BorrowedFd<'_>, access: OFlags) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, access | OFlags::CLOEXEC, rustix::fs::Mode::empty())
}

/// Another description of a memory file. Its shared lock shows that it is alive, in whichever process.
pub fn reopen_held(file: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let other = reopen(file, OFlags::RDWR)?;
    hold(other.as_fd())?;
    Ok(other)
}

/// Takes the shared lock of a description.
pub(crate) fn hold(description: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::fs::flock(description, FlockOperation::LockShared)
}

/// True if a description of this file made by [`reopen_held`] is alive, in any process.
pub fn is_held(file: BorrowedFd<'_>) -> bool {
    let alone = rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
    if alone {
        // Only a test: the next description may take the lock.
        let unlocked = rustix::fs::flock(file, FlockOperation::Unlock);
        debug_assert!(unlocked.is_ok(), "a lock of this description is released");
    }
    !alone
}

/// A new file that is in no table yet.
#[derive(Debug)]
pub struct Opened {
    /// The program's descriptor.
    pub file: OwnedFd,
    /// The file's identity.
    pub identity: Identity,
    watch: OwnedFd,
}

impl Opened {
    /// Makes a file with a name that `/proc` shows.
    pub fn new(name: &str) -> Result<Self, Errno> {
        let watch = memory_file(name, 0)?;
        let file = reopen_held(watch.as_fd())?;
        let identity = identity(file.as_fd())?;
        Ok(Self { file, identity, watch })
    }
}

/// The open files of a machine, and the emulator's data for each.
#[derive(Debug)]
pub struct OpenFiles<T> {
    files: HashMap<Identity, (Arc<OwnedFd>, T)>,
}

impl<T> Default for OpenFiles<T> {
    fn default() -> Self {
        Self { files: HashMap::new() }
    }
}

impl<T> OpenFiles<T> {
    /// Adds an open file, and returns the program's descriptor.
    pub fn insert(&mut self, opened: Opened, what: T) -> OwnedFd {
        self.files.insert(opened.identity, (Arc::new(opened.watch), what));
        opened.file
    }

    /// The data of an open file; `ENOTTY` if the file does not belong to this machine.
    pub fn get(&self, identity: Identity) -> Result<&T, Errno> {
        self.files.get(&identity).map(|(_, what)| what).ok_or(Errno::NOTTY)
    }

    /// True if no file is open.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The file that the data belongs to.
    pub fn find(&self, wanted: impl Fn(&T) -> bool) -> Option<Identity> {
        self.files.iter().find(|(_, (_, what))| wanted(what)).map(|(&identity, _)| identity)
    }

    /// [Memory](view::memory) at an offset of an open file.
    pub fn memory(&self, identity: Identity, offset: u64, length: u64) -> Result<HostRange, Errno> {
        let (file, _) = self.files.get(&identity).ok_or(Errno::NOTTY)?;
        view::memory(file, offset, length)
    }

    /// Removes and returns every file without a descriptor and a mapping.
    pub fn take_closed(&mut self) -> Vec<(Identity, T)> {
        let closed = |(&identity, (watch, _)): (&Identity, &(Arc<OwnedFd>, T))| {
            (!is_held(watch.as_fd())).then_some(identity)
        };
        let closed: Vec<Identity> = self.files.iter().filter_map(closed).collect();
        let taken = closed.into_iter().map(|identity| {
            view::forget(identity);
            (identity, self.files.remove(&identity))
        });
        taken.filter_map(|(identity, entry)| Some((identity, entry?.1))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_kernel::map_shared;

    /// A process that writes beyond its limit is killed by a signal, unless the length is checked first.
    #[test]
    fn limit_on_files_is_looked_at_before_the_kernel_does() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let before = getrlimit(Resource::Fsize);
        setrlimit(Resource::Fsize, Rlimit { current: Some(1 << 40), ..before }).unwrap();
        let refused = memory_file("test", (1 << 40) + 1);
        setrlimit(Resource::Fsize, before).unwrap();
        assert_eq!(refused.err(), Some(Errno::FBIG));
    }

    #[test]
    fn file_is_closed_when_its_last_copy_and_mapping_are_gone() {
        let mut files = OpenFiles::default();
        let opened = Opened::new("test").unwrap();
        let identity = opened.identity;
        let file = files.insert(opened, 7);
        assert_eq!(files.get(identity), Ok(&7));
        assert!(files.take_closed().is_empty());
        let copy = file.try_clone().unwrap();
        drop(file);
        assert!(files.take_closed().is_empty());
        rustix::fs::ftruncate(&copy, 4096).unwrap();
        let mapping = map_shared(copy.as_fd(), 4096, 0).unwrap();
        drop(copy);
        assert!(files.take_closed().is_empty(), "a mapping holds the file open");
        drop(mapping);
        assert_eq!(files.take_closed(), [(identity, 7)]);
        assert_eq!(files.get(identity), Err(Errno::NOTTY));
    }

    #[test]
    fn foreign_file_is_none_of_the_machines() {
        let files = OpenFiles::<()>::default();
        let other = memory_file("other", 0).unwrap();
        assert_eq!(files.get(identity(other.as_fd()).unwrap()), Err(Errno::NOTTY));
    }
}
