// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The operating system as a driver sees it.
//!
//! [`System`] is at the level of system calls: paths, descriptors, request numbers, bytes. A driver cannot
//! distinguish [`Linux`](crate::Linux) from an emulator, but by the device's description of itself.

pub use rustix::io::Errno;

use crate::linux::MappedRange;
use hal_backend::HostRange;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// An operating system with the driver of a device. What an implementation leaves out, the system does not have.
pub trait System: Send + Sync + 'static {
    /// Opens a file for reading and writing.
    fn open(&self, path: &Path) -> Result<OwnedFd, Errno>;

    /// Opens a file for itself alone (`O_EXCL`), where a driver knows what that means, without waiting for others
    /// (`O_NONBLOCK`).
    fn open_exclusive(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let _ = path;
        Err(Errno::OPNOTSUPP)
    }

    /// Closes a file. Its opener calls this rather than drop it.
    fn close(&self, file: OwnedFd) {
        drop(file);
    }

    /// Makes a request of a file. The argument goes in and comes back, also where the request fails. Addresses in
    /// it are of this process, and the caller keeps what is there until the request has ended.
    fn ioctl(&self, file: BorrowedFd<'_>, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let _ = (file, request, argument);
        Err(Errno::NOTTY)
    }

    /// Maps a piece of a file into this process, shared. It is unmapped when the last clone of the range is gone.
    fn map(&self, file: BorrowedFd<'_>, length: usize, offset: u64) -> Result<HostRange, Errno> {
        let _ = (file, length, offset);
        Err(Errno::NODEV)
    }

    /// Maps a piece of a file that is a device's own: registers, or a window into its memory. Unlike
    /// [`map`](System::map)ped memory, it does something when it is touched.
    fn map_device(
        &self,
        file: BorrowedFd<'_>,
        length: usize,
        offset: u64,
    ) -> Result<Arc<dyn DeviceRange>, Errno> {
        Ok(Arc::new(MappedRange::new(self.map(file, length, offset)?)))
    }

    /// The text of a small file, such as an attribute in sysfs.
    fn read(&self, path: &Path) -> Result<String, Errno> {
        let _ = path;
        Err(Errno::NOENT)
    }

    /// The names of what is in a folder.
    fn list(&self, path: &Path) -> Result<Vec<String>, Errno> {
        let _ = path;
        Err(Errno::NOENT)
    }

    /// Why devices of this system do not answer any more, for people. `None` if it knows no more than the errors that
    /// it gave.
    fn cause(&self) -> Option<String> {
        None
    }

    /// Why a card will not finish what it was given, for people, such as a core that has stopped. Hardware does not
    /// say.
    fn stopped(&self, node: &Path) -> Option<String> {
        let _ = node;
        None
    }

    /// The process that has a file open, for people. `None` if that cannot be found out.
    fn holder(&self, path: &Path) -> Option<String> {
        let _ = path;
        None
    }
}

/// A mapped piece of a device, until it is dropped. Any thread may use it.
pub trait DeviceRange: Send + Sync + fmt::Debug {
    /// How many bytes it has.
    fn length(&self) -> u64;

    /// Reads from the device. Four bytes at a multiple of four are one access, which is how registers are read.
    ///
    /// `EFAULT` if not all of it is inside; `ENODEV` where the kernel has taken the mapping back, as after a reset,
    /// which on Linux is a signal instead.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno>;

    /// Writes to the device; otherwise like [`read`](DeviceRange::read).
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno>;
}

/// A descriptor of this process by its number, if it is open.
///
/// The number came from outside, through a URI or a C call: the program that gave it promises that it stays open
/// while it is used.
pub fn borrow<'a>(number: i32) -> Option<BorrowedFd<'a>> {
    if number < 0 {
        return None;
    }
    // SAFETY: not negative; whether it is open is found out by the next line, and that it stays so is promised.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(file).is_ok().then_some(file)
}

/// The monotonic clock in nanoseconds, which the kernel stamps what has ended with.
pub fn clock() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // It counts from the start of the system: neither part is negative, nor are its nanoseconds too many for 64 bits.
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// The device and the inode of a file, which identify it whatever its descriptor's number.
pub fn identity(file: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    let status = rustix::fs::fstat(file)?;
    Ok((status.st_dev, status.st_ino))
}

/// A name from outside without what a terminal would obey.
pub fn printable(name: &str) -> String {
    name.chars().filter(|letter| !letter.is_control()).collect()
}
