//! What processes see of each other's machines: locks on files that machines of one name share.
//!
//! A device that only one process may have open is claimed by a lock on a file, which the system takes back however the
//! process ends. The file says which process it is.

use crate::kernel::Errno;
use crate::process::Process;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// The claims of a machine. One without a name sees no other process's.
#[derive(Clone, Debug)]
pub struct Claims {
    driver: &'static str,
    machine: Option<String>,
}

/// A device that this process has claimed, until this is dropped.
#[derive(Debug)]
pub struct Claim(OwnedFd);

impl Drop for Claim {
    fn drop(&mut self) {
        // A name that stays in the file of a device that is free is no harm: its lock is gone.
        let _ = rustix::fs::ftruncate(&self.0, 0);
    }
}

impl Claims {
    /// The claims of machines of this name.
    pub fn new(driver: &'static str, machine: Option<String>) -> Self {
        Self { driver, machine }
    }

    fn path(&self, device: usize) -> Option<PathBuf> {
        let (driver, name) = (self.driver, self.machine.as_ref()?);
        let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let user = rustix::process::getuid().as_raw();
        Some(folder.join(format!("{driver}-emulator-{user}-{name}-accel{device}")))
    }

    /// Claims a device for a process: `EBUSY`, if another process has it. Nothing, if the machine has no name.
    pub fn take(&self, process: &dyn Process, device: usize) -> Result<Option<Claim>, Errno> {
        let Some(path) = self.path(device) else { return Ok(None) };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| Errno::BUSY)?;
        rustix::fs::ftruncate(&file, 0)?;
        rustix::io::write(&file, process.id().to_string().as_bytes())?;
        Ok(Some(Claim(file)))
    }

    /// The process that has a device, for people; `here`, if that is this machine's own.
    pub fn holder(&self, here: Option<&dyn Process>, device: usize) -> Option<String> {
        let id: String = match here {
            Some(process) => process.id().to_string(),
            // A process that gives a device back empties the file, and one that has died is gone.
            None => std::fs::read_to_string(self.path(device)?).ok()?,
        };
        let name = std::fs::read_to_string(format!("/proc/{id}/comm")).ok()?;
        Some(format!("process {id} ({})", name.trim()))
    }
}
