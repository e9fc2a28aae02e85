//! The boundary as Linux has it.

use crate::claim::printable;
use crate::kernel::{Errno, Kernel};
use hal_backend::HostRange;
use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::any::Any;
use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// The system that this runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Linux;

/// A mapping, ended when it is dropped.
struct Mapping {
    start: *mut c_void,
    length: usize,
}

// SAFETY: a mapping is an address; ending it is all that is done here.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped below with this length, and every range of it is gone. It cannot fail for a whole mapping.
        let _ = unsafe { rustix::mm::munmap(self.start, self.length) };
    }
}

/// A piece of a file, shared, as host memory that unmaps itself.
pub fn map_shared(file: BorrowedFd<'_>, length: usize, offset: u64) -> Result<HostRange, Errno> {
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let start = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            length,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file,
            offset,
        )?
    };
    let owner: Arc<dyn Any + Send + Sync> = Arc::new(Mapping { start, length });
    // SAFETY: the mapping is readable and writable and lives as long as the owner.
    Ok(unsafe { HostRange::from_raw(start.cast(), length, Some(owner)) })
}

impl Kernel for Linux {
    fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
    }

    fn close(&self, file: OwnedFd) {
        drop(file);
    }

    fn ioctl(&self, file: BorrowedFd<'_>, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        // SAFETY: the argument is as large as the request says, which is where the caller took its size from; addresses in
        // it are the caller's business, as the trait says.
        let result =
            unsafe { libc::ioctl(file.as_raw_fd(), libc::c_ulong::from(request), argument.as_mut_ptr()) };
        if result < 0 {
            let error = std::io::Error::last_os_error();
            return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
        }
        Ok(())
    }

    fn map(&self, file: BorrowedFd<'_>, length: usize, offset: u64) -> Result<HostRange, Errno> {
        map_shared(file, length, offset)
    }

    fn read(&self, path: &Path) -> Result<String, Errno> {
        let text = std::fs::read_to_string(path);
        text.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    fn list(&self, path: &Path) -> Result<Vec<String>, Errno> {
        let number = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path).map_err(number)? {
            names.push(entry.map_err(number)?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn holder(&self, path: &Path) -> Option<String> {
        for process in self.list(Path::new("/proc")).ok()? {
            if !process.bytes().all(|letter| letter.is_ascii_digit()) {
                continue;
            }
            let folder = Path::new("/proc").join(&process);
            // Other people's processes do not show their files.
            let Ok(files) = std::fs::read_dir(folder.join("fd")) else { continue };
            let mut targets = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
            if targets.any(|target| target == path) {
                let name = self.read(&folder.join("comm")).unwrap_or_default();
                return Some(format!("process {process} ({})", printable(name.trim())));
            }
        }
        None
    }
}
