// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A folder of this process with stand-ins for the folders of a machine with cards.

use crate::listing::{Listing, TreeEntry};
use emulator_core::Errno;
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, mknodat};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, symlink};
use std::path::{Path, PathBuf};

/// A folder of this process, removed when this is dropped. It is locked as long as the process lives, however that
/// ends.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    #[expect(dead_code, reason = "it holds the lock")]
    lock: OwnedFd,
}

impl Folder {
    /// A folder that only this user can write to. Those that killed processes have left are removed.
    pub(crate) fn new(name: &str) -> std::io::Result<Self> {
        let folder = std::env::temp_dir();
        let is_ours = |found: &str| {
            let numbers = found.strip_prefix(name).and_then(|rest| rest.strip_prefix('-')?.split_once('-'));
            numbers
                .is_some_and(|(one, other)| [one, other].iter().all(|number| number.parse::<u32>().is_ok()))
        };
        for entry in std::fs::read_dir(&folder)?.flatten() {
            if is_ours(&entry.file_name().to_string_lossy()) {
                // A folder of another user's cannot be locked or removed, and is not in the way.
                let _ = lock(&entry.path()).map(|_lock| std::fs::remove_dir_all(entry.path()));
            }
        }
        (0..=u32::MAX).find_map(|number| Self::create(&folder, name, number).transpose()).unwrap_or_else(
            || Err(std::io::Error::new(std::io::ErrorKind::AlreadyExists, "every name is taken")),
        )
    }

    /// The folder with this number, unless it is there, or another process has just taken it for one that was left.
    fn create(folder: &Path, name: &str, number: u32) -> std::io::Result<Option<Self>> {
        let path = folder.join(format!("{name}-{}-{number}", std::process::id()));
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Ok(None),
            result => result?,
        }
        Ok(lock(&path).ok().filter(|_| path.exists()).map(|lock| Self { path, lock }))
    }
}

/// Locks a folder, unless a process has.
fn lock(path: &Path) -> std::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    Ok(folder)
}

impl Drop for Folder {
    fn drop(&mut self) {
        // It holds only names, and the next tree has another path.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// What a stand-in has under a name.
enum StandIn {
    Folder,
    Link(PathBuf),
    File,
    Node,
}

impl StandIn {
    /// Makes it, unless it is there; another thread may do the same.
    fn make(&self, path: &Path) -> std::io::Result<()> {
        let made = match self {
            Self::Folder => std::fs::create_dir(path),
            Self::Link(target) => symlink(target, path),
            // Anybody may make a node of this number, since it is no device's.
            Self::Node => mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), 0)
                .map_err(std::io::Error::from)
                .or_else(|error| if is_there(&error) { Err(error) } else { Self::File.make(path) }),
            Self::File => std::fs::File::create_new(path).map(drop),
        };
        made.or_else(|error| if is_there(&error) { Ok(()) } else { Err(error) })
    }
}

fn is_there(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::AlreadyExists
}

/// What the system has in a folder, if it has one there.
fn of_the_system(path: &Path) -> impl Iterator<Item = (OsString, StandIn)> {
    std::fs::read_dir(path).into_iter().flatten().flatten().filter_map(|entry| {
        let kind = entry.file_type().ok()?;
        let stand_in = match () {
            () if kind.is_dir() => StandIn::Folder,
            () if kind.is_char_device() => StandIn::Node,
            () if kind.is_symlink() => StandIn::Link(std::fs::read_link(entry.path()).ok()?),
            () => StandIn::File,
        };
        Some((entry.file_name(), stand_in))
    })
}

/// The stand-ins in a folder, for as long as that is there.
#[derive(Debug)]
pub(crate) struct StandIns(PathBuf);

impl StandIns {
    pub(crate) fn new(folder: &Folder) -> Self {
        Self(folder.path.clone())
    }

    /// The folder that they are in.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The stand-in for a folder, up to date.
    pub(crate) fn show(&self, listing: &Listing, path: &Path) -> Result<PathBuf, Errno> {
        let shown = self.0.join(path.strip_prefix("/").unwrap_or(path));
        let number = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        update(listing, path, &shown).map(|()| shown).map_err(number)
    }
}

/// Brings a stand-in up to date.
fn update(listing: &Listing, path: &Path, shown: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(shown)?;
    let mut names: BTreeMap<OsString, StandIn> = match listing.get(path) {
        Some(TreeEntry::Folder { is_systems: false }) => BTreeMap::new(),
        _ => of_the_system(path).collect(),
    };
    names.extend(listing.inside(path).map(|(name, entry)| {
        let stand_in = match entry {
            TreeEntry::Folder { .. } => StandIn::Folder,
            TreeEntry::Link(target) => StandIn::Link(target.clone()),
            TreeEntry::Node { .. } => StandIn::Node,
            _ => StandIn::File,
        };
        (name.to_owned(), stand_in)
    }));
    for entry in std::fs::read_dir(shown)? {
        let entry = entry?;
        if !names.contains_key(&entry.file_name()) {
            // A card that was pulled out. Another thread may have removed it first.
            let _ = std::fs::remove_dir_all(entry.path()).or_else(|_| std::fs::remove_file(entry.path()));
        }
    }
    names.iter().try_for_each(|(name, stand_in)| stand_in.make(&shown.join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_killed_processes_left_are_removed_and_others_stay() {
        const NAME: &str = "with-cards-folders";
        let temporary = std::env::temp_dir();
        let make = |name: &str| {
            let path = temporary.join(format!("{NAME}-{name}"));
            std::fs::create_dir_all(path.join("dev")).unwrap();
            path
        };
        let (left, other) = (make("1-0"), make("notes"));
        // A process that had this one's number.
        let number = make(&format!("{}-0", std::process::id()));
        let first = Folder::new(NAME).unwrap();
        assert!(!left.exists() && other.exists());
        assert_eq!(first.path, number, "it was left, and is taken again");
        let second = Folder::new(NAME).unwrap();
        assert!(first.path.exists() && second.path.exists() && first.path != second.path);
        drop((first, second));
        assert!(!number.exists());
        std::fs::remove_dir_all(other).unwrap();
    }
}
