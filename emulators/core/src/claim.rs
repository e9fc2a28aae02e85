// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Locks on files, by which machines of one name show each other which devices are in use.
//!
//! A device that only one process may open is claimed by a lock on a file, which the system releases however
//! the process ends. The file holds the process's number.

use crate::process::Process;
use hal_backend::{Code, Failure};
use hal_kernel::{Errno, printable};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, fstat};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

/// The claims of a machine. A machine without a name sees no other process's claims.
#[derive(Clone, Debug)]
pub struct Claims {
    /// The folder of the lock files.
    folder: PathBuf,
    machine: Option<String>,
}

/// A device that this process has claimed, until this is dropped.
#[derive(Debug)]
pub struct Claim(OwnedFd);

impl Drop for Claim {
    fn drop(&mut self) {
        // A number that stays in the file of a free device does no harm: its lock is gone.
        let _ = rustix::fs::ftruncate(&self.0, 0);
    }
}

/// Checks that a file has a type, belongs to this user, and is writable by this user alone; else `EPERM`.
fn check(file: impl AsFd, kind: FileType) -> Result<(), Errno> {
    let status = fstat(file)?;
    let is_ours = status.st_uid == rustix::process::getuid().as_raw();
    let mode = Mode::from_raw_mode(status.st_mode);
    let is_private = !mode.intersects(Mode::RWXG | Mode::RWXO);
    (FileType::from_raw_mode(status.st_mode) == kind && is_ours && is_private)
        .then_some(())
        .ok_or(Errno::PERM)
}

impl Claims {
    /// The claims of machines of this name.
    pub fn new(driver: &str, machine: Option<String>) -> Self {
        let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let user = rustix::process::getuid().as_raw();
        Self { folder: folder.join(format!("{driver}-emulator-{user}")), machine }
    }

    /// Checks that the folder can be used, if the machine has a name.
    pub fn check(&self) -> Result<(), Failure> {
        let Some(machine) = &self.machine else { return Ok(()) };
        self.open_folder().map(drop).map_err(|errno| {
            let message = format!(
                "machine={machine} keeps its locks in {}, which cannot be used ({errno}): it has to be a folder of \
                 this user alone; set XDG_RUNTIME_DIR to the folder to make it in",
                self.folder.display()
            );
            Failure::new(Code::FailedPrecondition, message)
        })
    }

    /// The folder, which only this user can change.
    fn open_folder(&self) -> Result<OwnedFd, Errno> {
        match rustix::fs::mkdir(&self.folder, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let folder = rustix::fs::open(&self.folder, flags | OFlags::DIRECTORY, Mode::empty())?;
        check(&folder, FileType::Directory)?;
        Ok(folder)
    }

    /// The file of a device. Nothing, if the machine has no name.
    fn open(&self, device: usize) -> Result<Option<OwnedFd>, Errno> {
        let Some(machine) = &self.machine else { return Ok(None) };
        let folder = self.open_folder()?;
        let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK;
        let file =
            rustix::fs::openat(&folder, format!("{machine}-accel{device}"), flags, Mode::RUSR | Mode::WUSR)?;
        check(&file, FileType::RegularFile)?;
        Ok(Some(file))
    }

    /// Claims a device for a process: `EBUSY`, if another process has it. Nothing, if the machine has no name.
    pub fn take(&self, process: &dyn Process, device: usize) -> Result<Option<Claim>, Errno> {
        let Some(file) = self.open(device)? else { return Ok(None) };
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| Errno::BUSY)?;
        rustix::fs::ftruncate(&file, 0)?;
        rustix::io::write(&file, process.id().to_string().as_bytes())?;
        Ok(Some(Claim(file)))
    }

    /// The process that has a device open, for people; `here`, if it is a process of this machine.
    pub fn holder(&self, here: Option<&dyn Process>, device: usize) -> Option<String> {
        let id: u32 = match here {
            Some(process) => process.id(),
            // A process that releases a device empties the file, and one that has died is gone.
            None => {
                let mut text = String::new();
                std::fs::File::from(self.open(device).ok()??).read_to_string(&mut text).ok()?;
                text.parse().ok()?
            }
        };
        let name = std::fs::read_to_string(format!("/proc/{id}/comm")).ok()?;
        Some(format!("process {id} ({})", printable(name.trim())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// A folder for this test alone.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("claims-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn files_are_in_a_folder_of_this_user_alone() {
        let parent = folder("mode");
        let claims = Claims { folder: parent.join("emulator"), machine: Some("one".to_owned()) };
        let file = claims.open(3).unwrap().unwrap();
        let mode = std::fs::metadata(&claims.folder).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        drop(file);
        // A folder that others can write to, a wrong file type and a link are refused.
        std::fs::set_permissions(&claims.folder, Permissions::from_mode(0o770)).unwrap();
        assert_eq!(claims.open(3).err(), Some(Errno::PERM));
        let link = Claims { folder: parent.join("link"), ..claims.clone() };
        symlink(&claims.folder, &link.folder).unwrap();
        assert!(link.open(3).is_err());
        std::fs::set_permissions(&claims.folder, Permissions::from_mode(0o700)).unwrap();
        symlink("one-accel3", claims.folder.join("one-accel4")).unwrap();
        std::fs::create_dir(claims.folder.join("one-accel5")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            claims.folder.join("one-accel6"),
            rustix::fs::FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        for device in 4..7 {
            assert!(claims.open(device).is_err(), "{device}");
        }
        assert!(claims.open(3).is_ok());
        std::fs::remove_dir_all(parent).unwrap();
    }

    /// The errors of the host are none of a card's.
    #[test]
    fn folder_that_cannot_be_used_is_named_with_what_to_set() {
        let parent = folder("check");
        let claims = Claims { folder: parent.join("emulator"), machine: Some("one".to_owned()) };
        assert!(claims.check().is_ok());
        std::fs::set_permissions(&claims.folder, Permissions::from_mode(0o770)).unwrap();
        let absent = Claims { folder: parent.join("absent/emulator"), ..claims.clone() };
        for unusable in [&claims, &absent] {
            let refused = unusable.check().unwrap_err();
            assert_eq!(refused.code(), Code::FailedPrecondition);
            assert!(refused.message().contains("set XDG_RUNTIME_DIR"), "{refused}");
        }
        assert!(Claims { machine: None, ..absent }.check().is_ok());
        std::fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn holder_is_named_without_what_a_terminal_obeys() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a[2Jb");
    }
}
