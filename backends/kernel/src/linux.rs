// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The system calls of Linux.

use crate::card_file::named_process;
use crate::system::{DeviceRange, Errno, System};
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

/// A piece of a file that is mapped, shared, until this is dropped.
///
/// # Invariants
///
/// `length` bytes are mapped at `start`, and this alone ends that: every range of them keeps it.
pub struct Mapping {
    start: *mut c_void,
    length: usize,
}

// SAFETY: a mapping is an address; ending it is all that is done here.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length and ended here alone, with no range of it left, by the invariant.
        let ended = unsafe { rustix::mm::munmap(self.start, self.length) };
        debug_assert!(ended.is_ok(), "a whole mapping can be ended");
    }
}

impl Mapping {
    /// Maps a piece of a file for these accesses.
    ///
    /// `EAGAIN` is Linux's answer to a process that may lock no more memory and locks all of it. That is no card which
    /// is not ready, so it becomes `ENOMEM`.
    pub fn new(file: BorrowedFd<'_>, length: usize, offset: u64, access: ProtFlags) -> Result<Self, Errno> {
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let mapped =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, file, offset) };
        let start = mapped.map_err(|errno| if errno == Errno::AGAIN { Errno::NOMEM } else { errno })?;
        Ok(Self { start, length })
    }

    /// Where it begins.
    pub fn start(&self) -> *mut c_void {
        self.start
    }

    /// The memory, which keeps the mapping.
    ///
    /// # Safety
    ///
    /// It can be read and written.
    pub unsafe fn memory(self) -> HostRange {
        let (start, length) = (self.start, self.length);
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(self);
        // SAFETY: it can be read and written, as the caller promises, and lives as long as the owner.
        unsafe { HostRange::from_raw(start.cast(), length, Some(owner)) }
    }
}

/// A piece of a file, shared, as host memory that unmaps itself.
pub fn map_shared(file: BorrowedFd<'_>, length: usize, offset: u64) -> Result<HostRange, Errno> {
    let mapping = Mapping::new(file, length, offset, ProtFlags::READ | ProtFlags::WRITE)?;
    // SAFETY: it is mapped for both.
    Ok(unsafe { mapping.memory() })
}

/// A piece of a device that is mapped into this process. Every access is one that the device sees, once and with the
/// width that it has here: words of eight bytes where they are aligned, of four or one at the edges.
#[derive(Debug)]
pub struct MappedRange(HostRange);

impl MappedRange {
    /// A mapping of a device.
    pub fn new(range: HostRange) -> Self {
        Self(range)
    }

    /// Cuts an access into a head of bytes up to a multiple of four, a word of four up to one of eight, words of
    /// eight, a word of four and a tail of bytes: the offsets between them.
    fn cuts(address: usize, length: usize) -> [usize; 4] {
        let head = address.next_multiple_of(4).saturating_sub(address).min(length);
        let long = address.next_multiple_of(8).saturating_sub(address);
        let long = if long > length { head } else { long };
        let end = long + (length - long) / 8 * 8;
        [head, long, end, end + (length - end) / 4 * 4]
    }

    /// The address of an access; `EFAULT` if not all of it is inside.
    fn at(&self, offset: u64, length: usize) -> Result<*mut u8, Errno> {
        self.0.part(offset, length as u64).map(|part| part.address()).ok_or(Errno::FAULT)
    }
}

/// Copies between a device and memory in volatile accesses of one width.
///
/// # Safety
/// Both are valid for this many bytes, a multiple of the width, and the device's address is aligned to it.
unsafe fn copy_volatile<T: Copy>(from: *const T, to: *mut T, bytes: usize, device_is_target: bool) {
    for index in 0..bytes / size_of::<T>() {
        // SAFETY: inside of both, says the caller; the side that is memory need not be aligned.
        unsafe {
            if device_is_target {
                to.add(index).write_volatile(from.add(index).read_unaligned());
            } else {
                to.add(index).write_unaligned(from.add(index).read_volatile());
            }
        }
    }
}

/// Copies between a device and memory in the widths of [`MappedRange::cuts`].
///
/// # Safety
/// Both are valid for this many bytes.
unsafe fn copy_device(from: *const u8, to: *mut u8, length: usize, device_is_target: bool) {
    let device = if device_is_target { to.addr() } else { from.addr() };
    let [head, long, end, tail] = MappedRange::cuts(device, length);
    // SAFETY: the cuts are in order and inside; behind the head the device's address is a multiple of four, behind
    // the next cut, if there is a word of eight, of eight.
    unsafe {
        let part = |at: usize| (from.add(at), to.add(at));
        let (source, target) = part(0);
        copy_volatile(source, target, head, device_is_target);
        let (source, target) = part(head);
        copy_volatile::<u32>(source.cast(), target.cast(), long - head, device_is_target);
        let (source, target) = part(long);
        copy_volatile::<u64>(source.cast(), target.cast(), end - long, device_is_target);
        let (source, target) = part(end);
        copy_volatile::<u32>(source.cast(), target.cast(), tail - end, device_is_target);
        let (source, target) = part(tail);
        copy_volatile(source, target, length - tail, device_is_target);
    }
}

impl DeviceRange for MappedRange {
    fn length(&self) -> u64 {
        self.0.length()
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let from = self.at(offset, bytes.len())?;
        // SAFETY: the mapping has these bytes and lives as long as the range; the target is exclusive.
        unsafe { copy_device(from, bytes.as_mut_ptr(), bytes.len(), false) };
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let to = self.at(offset, bytes.len())?;
        // SAFETY: the mapping has these bytes and lives as long as the range; the source does not change meanwhile.
        unsafe { copy_device(bytes.as_ptr(), to, bytes.len(), true) };
        Ok(())
    }
}

impl System for Linux {
    fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
    }

    fn open_exclusive(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let alone = OFlags::EXCL | OFlags::NONBLOCK;
        rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC | alone, Mode::empty())
    }

    fn close(&self, file: OwnedFd) {
        drop(file);
    }

    fn ioctl(&self, file: BorrowedFd<'_>, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        // The size of the argument is in the numbers made by `_IOR`, `_IOW` and `_IOWR`.
        if argument.len() < (request >> 16 & 0x3fff) as usize {
            return Err(Errno::FAULT);
        }
        // SAFETY: the argument is as large as the request says, or as its caller knows where the number has no size;
        // addresses in it are the caller's business, as the trait says.
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
        // Processes name the file that a link leads to.
        let path = std::fs::canonicalize(path).ok()?;
        for process in self.list(Path::new("/proc")).ok()? {
            if !process.bytes().all(|letter| letter.is_ascii_digit()) {
                continue;
            }
            let folder = Path::new("/proc").join(&process);
            // Other people's processes do not show their files.
            let Ok(files) = std::fs::read_dir(folder.join("fd")) else { continue };
            let mut targets = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
            if targets.any(|target| target == path) {
                return Some(named_process(self, process));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;
    use std::os::fd::AsFd;

    #[test]
    fn mapping_is_read_and_written_at_any_offset_and_length() {
        let file = rustix::fs::memfd_create("device", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 64).unwrap();
        let range = map_shared(file.as_fd(), 64, 0).unwrap();
        let device = MappedRange::new(range.clone());
        assert_eq!(device.length(), 64);
        for offset in 0..17_usize {
            for length in 0..40 {
                let bytes: Vec<u8> = (0..length).map(|at| u8::try_from(offset + at + 1).unwrap()).collect();
                assert!(range.fill(&[0]));
                device.write(offset as u64, &bytes).unwrap();
                let mut expected = vec![0; 64];
                expected[offset..offset + length].copy_from_slice(&bytes);
                let mut found = vec![0; 64];
                assert!(range.read(0, &mut found));
                assert_eq!(found, expected, "{length} bytes at {offset}");
                let mut back = vec![0; length];
                device.read(offset as u64, &mut back).unwrap();
                assert_eq!(back, bytes, "{length} bytes at {offset}");
            }
        }
        assert_eq!(device.read(60, &mut [0; 5]), Err(Errno::FAULT));
        assert_eq!(device.write(u64::MAX, &[0]), Err(Errno::FAULT));
    }

    #[test]
    fn mapping_is_of_its_offset_and_ends_with_its_last_range() {
        let file = rustix::fs::memfd_create("mapping-that-ends", MemfdFlags::CLOEXEC).unwrap();
        rustix::io::pwrite(&file, &[7; 8192], 4096).unwrap();
        let range = Linux.map(file.as_fd(), 4096, 4096).unwrap();
        let mut byte = [0];
        assert!(range.read(0, &mut byte));
        assert_eq!(byte, [7]);
        let is_mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().contains("mapping-that-ends");
        let part = range.slice(8, 8);
        drop(range);
        assert!(is_mapped());
        drop(part);
        assert!(!is_mapped());
    }

    /// A program that this one starts would keep the card busy.
    #[test]
    fn files_are_not_inherited_by_other_programs() {
        let node = Path::new("/dev/null");
        for file in [Linux.open(node), Linux.open_exclusive(node)] {
            let flags = rustix::io::fcntl_getfd(file.unwrap()).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
    }

    #[test]
    fn holder_of_a_node_is_found_by_a_link_to_it() {
        let folder = std::env::temp_dir().join(format!("hal-kernel-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (node, link) = (folder.join("node"), folder.join("link"));
        std::os::unix::fs::symlink("node", &link).unwrap();
        let file = std::fs::File::create(node).unwrap();
        let holder = Linux.holder(&link);
        drop(file);
        std::fs::remove_dir_all(folder).unwrap();
        assert!(holder.unwrap().contains(&std::process::id().to_string()));
    }

    /// The kernel writes as many bytes as the request's number says, whatever the caller has room for.
    #[test]
    fn request_is_not_made_with_an_argument_shorter_than_it_says() {
        /// `TIOCGPTN`: `_IOR('T', 0x30, unsigned int)`.
        const NUMBER: u32 = 0x8004_5430;
        let terminal = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR).unwrap();
        let mut bytes = [0xff; 8];
        assert_eq!(Linux.ioctl(terminal.as_fd(), NUMBER, &mut bytes[..1]), Err(Errno::FAULT));
        assert_eq!(bytes, [0xff; 8]);
        assert_eq!(Linux.ioctl(terminal.as_fd(), NUMBER, &mut bytes[..4]), Ok(()));
        assert_eq!(bytes[4..], [0xff; 4]);
        let null = Linux.open(Path::new("/dev/null")).unwrap();
        assert_eq!(Linux.ioctl(null.as_fd(), NUMBER, &mut bytes), Err(Errno::NOTTY));
    }

    #[test]
    fn register_is_one_access() {
        // Head, words of four and eight, and tail: an aligned word is nothing but one word.
        for address in [0x1000, 0x1004] {
            let [head, long, end, tail] = MappedRange::cuts(address, 4);
            let words_of_four = [long - head, tail - end];
            assert_eq!((head, end - long, words_of_four.iter().sum::<usize>()), (0, 0, 4), "{address:#x}");
        }
    }
}
