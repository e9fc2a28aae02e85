// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The process that makes requests: its memory and its descriptors, reached the way a kernel reaches them.
//!
//! Addresses in an argument come from another process and are not trusted. Bytes are copied by system calls
//! that return `EFAULT` for addresses that are not mapped. Memory that the device uses is pinned, which checks
//! that it is mapped and writable.
//!
//! This is the only module of the crate with unsafe code.

use crate::file::Identity;
use hal_backend::HostRange;
use hal_kernel::Errno;
use std::any::Any;
use std::ffi::c_void;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

/// A page of the host, and the unit of every mapping.
pub const PAGE: u64 = 4096;

/// A process that has a device open.
pub trait Process: Send + Sync {
    /// Reads its memory; `EFAULT` if some of it is not mapped.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno>;

    /// Writes its memory; `EFAULT` if some of it is not mapped or not writable.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno>;

    /// Makes its memory usable by the device: `EFAULT` if it is not mapped or not writable, `ENOMEM` if only
    /// pages behind the first are not.
    fn pin(&self, address: u64, length: u64) -> Result<HostRange, Errno>;

    /// Another reference to the file of one of its descriptors.
    fn descriptor(&self, number: i32) -> Result<OwnedFd, Errno>;

    /// Installs a descriptor in the process.
    fn install(&self, file: OwnedFd) -> Result<i32, Errno>;

    /// The process's number.
    fn id(&self) -> u32;

    /// A pidfd of the calling thread, which stays that thread's if its number is used again. Nothing for the
    /// process that the emulator is in, which is never killed.
    fn task(&self) -> Result<Option<OwnedFd>, Errno> {
        Ok(None)
    }

    /// The last offset of an open file that the process can map. A process maps parts of a file by itself, and
    /// no file has offsets with the sign bit.
    fn last_offset(&self) -> u64 {
        u64::MAX
    }

    /// True if the process has mapped a file from this offset on, through the system rather than through an
    /// emulator.
    fn has_mapped(&self, file: Identity, offset: u64) -> bool {
        let _ = (file, offset);
        false
    }
}

/// The process that the emulator runs in.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnProcess;

/// Up to this length, `pin` checks memory by touching it; beyond, it reads the list of mappings.
const TOUCHED: u64 = 1 << 20;

impl OwnProcess {
    /// Copies between an address and this process's own bytes, through the system.
    fn transfer(address: u64, bytes: *mut c_void, length: usize, write: bool) -> Result<(), Errno> {
        if length == 0 {
            return Ok(());
        }
        let there = usize::try_from(address).map_err(|_| Errno::FAULT)?;
        let local = libc::iovec { iov_base: bytes, iov_len: length };
        let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(there), iov_len: length };
        let me = i32::try_from(std::process::id()).map_err(|_| Errno::FAULT)?;
        // SAFETY: both vectors live through the call; the local one is valid for its length, as `read` and
        // `write` ensure, and the system checks the remote one.
        let done = unsafe {
            if write {
                libc::process_vm_writev(me, &raw const local, 1, &raw const remote, 1, 0)
            } else {
                libc::process_vm_readv(me, &raw const local, 1, &raw const remote, 1, 0)
            }
        };
        match usize::try_from(done) {
            Ok(done) if done == length => Ok(()),
            Ok(_) => Err(Errno::FAULT),
            Err(_) => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::FAULT)),
        }
    }

    /// True if whole pages are mapped and writable.
    fn writable(start: u64, end: u64) -> bool {
        let (Ok(at), Ok(length)) = (usize::try_from(start), usize::try_from(end - start)) else {
            return false;
        };
        if end - start <= TOUCHED {
            // SAFETY: this is what a pin does: it faults pages in for writing, and changes no byte and no mapping.
            let touched = unsafe {
                let advice = rustix::mm::Advice::LinuxPopulateWrite;
                rustix::mm::madvise(std::ptr::without_provenance_mut(at), length, advice)
            };
            match touched {
                Ok(()) => return true,
                // Older kernels do not know the advice, and return the same error for memory that is not
                // writable.
                Err(Errno::INVAL) => {}
                Err(_) => return false,
            }
        }
        MappingList::open(Path::new("/proc/self/maps")).is_ok_and(|list| list.is_writable(start, end))
    }
}

/// Checks that memory can be pinned; `writable` finds out which pages are mapped and writable.
pub fn pinnable(address: u64, length: u64, writable: impl Fn(u64, u64) -> bool) -> Result<(), Errno> {
    let end = address.checked_add(length).and_then(|end| end.checked_next_multiple_of(PAGE));
    let (start, end) = (address / PAGE * PAGE, end.ok_or(Errno::INVAL)?);
    if start == 0 || !writable(start, end) {
        let first = start != 0 && end - start > PAGE && writable(start, start + PAGE);
        return Err(if first { Errno::NOMEM } else { Errno::FAULT });
    }
    Ok(())
}

/// True if the kernel pins a mapping for as long as a device has it, judged by the path in the list of
/// mappings: memory is pinned; a device is not, nor a file that the kernel writes back
/// (`vma_needs_dirty_tracking`, since 6.5).
fn is_memory(path: &str, kept_by_system: impl Fn(&Path) -> bool) -> bool {
    let shared = ["/memfd:", "/SYSV", "/dev/zero", "/dev/shm/", "/anon_hugepage"];
    match path {
        // Memory without a name; stacks and heaps have one in brackets.
        "" => true,
        name if name.starts_with('[') => true,
        name if shared.iter().any(|begin| name.starts_with(begin)) => true,
        name if name.starts_with("/dev/") || !name.starts_with('/') => false,
        name => !kept_by_system(Path::new(name)),
    }
}

/// True if the system writes the pages of a file back, as all file systems do but those in memory.
fn is_written_back(path: &Path) -> bool {
    const IN_MEMORY: [i64; 3] = [0x0102_1994, 0x9584_58F6, 0x8584_58F6];
    // A file without a name counts as one on a disk.
    rustix::fs::statfs(path).map_or(true, |status| !IN_MEMORY.contains(&status.f_type))
}

/// The list of a process's mappings, `/proc/…/maps`.
///
/// The system answers for one address since Linux 6.11 (`PROCMAP_QUERY`), which takes as long however many mappings
/// there are. Older ones write down the whole list.
#[derive(Debug)]
pub struct MappingList(OwnedFd);

/// The question for the mapping at an address (`struct procmap_query`).
#[repr(C)]
#[derive(Default)]
struct MappingQuery {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

impl MappingList {
    const QUERY: libc::c_ulong =
        3 << 30 | (size_of::<MappingQuery>() as libc::c_ulong) << 16 | 0x9F << 8 | 17;
    /// The longest name, with its end.
    const NAME: u32 = 4096;
    const READABLE: u64 = 1;
    const WRITABLE: u64 = 2;
    const SHARED: u64 = 8;

    /// Opens a list.
    pub fn open(path: &Path) -> Result<Self, Errno> {
        use rustix::fs::{Mode, OFlags};
        Ok(Self(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// True if all of a range is readable, writable and pinnable.
    pub fn is_writable(&self, start: u64, end: u64) -> bool {
        let mut reached = start;
        while reached < end {
            match self.writable_until(reached) {
                Ok(Some(end)) => reached = end,
                Ok(None) => return false,
                // An older system, or a sandbox that forbids the question.
                Err(_) => return self.is_listed_as_writable(start, end),
            }
        }
        true
    }

    fn is_listed_as_writable(&self, start: u64, end: u64) -> bool {
        let Ok(file) = self.0.try_clone() else { return false };
        let mut text = String::new();
        let read = std::fs::File::from(file).read_to_string(&mut text);
        read.is_ok() && is_writable(&text, start, end).unwrap_or(false)
    }

    /// The end of the mapping that has an address, if it is readable, writable and pinnable.
    fn writable_until(&self, address: u64) -> Result<Option<u64>, Errno> {
        let mut name = [0_u8; Self::NAME as usize];
        let mut query = MappingQuery {
            size: size_of::<MappingQuery>() as u64,
            address,
            name: name.as_mut_ptr() as u64,
            name_size: Self::NAME,
            ..MappingQuery::default()
        };
        // SAFETY: the structure is the system's, and the name has the room that the structure says.
        let answer = unsafe { libc::ioctl(self.0.as_raw_fd(), Self::QUERY, &raw mut query) };
        if answer < 0 {
            let error = Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
            return if error == Errno::NOENT { Ok(None) } else { Err(error) };
        }
        let may = |right: u64| query.rights & right == right;
        let name = name.iter().copied().take_while(|&byte| byte != 0).collect();
        let name: String = String::from_utf8(name).unwrap_or_else(|_| "/".to_owned());
        let path = name.strip_suffix(" (deleted)").unwrap_or(&name);
        // A private mapping has pages of its own wherever it may be written.
        let is_kept = !may(Self::SHARED) || is_memory(path, is_written_back);
        Ok((may(Self::READABLE | Self::WRITABLE) && is_kept).then_some(query.end))
    }
}

/// True if a process's list of mappings, in the format of `/proc/…/maps`, has all of a range as readable,
/// writable and pinnable.
fn is_writable(text: &str, start: u64, end: u64) -> Option<bool> {
    let mut reached = start;
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let (range, rights, path) = (words.next()?, words.next()?, words.nth(3).unwrap_or_default());
        let (first, last) = range.split_once('-')?;
        // A range that does not fit into 64 bits is no memory of the process.
        let (first, last) = (u64::from_str_radix(first, 16).ok()?, u64::from_str_radix(last, 16).ok()?);
        if last <= reached {
            continue;
        }
        if first > reached || !rights.starts_with("rw") {
            return Some(false);
        }
        // A private mapping has pages of its own wherever it may be written.
        if rights.ends_with('s') && !is_memory(path, is_written_back) {
            return Some(false);
        }
        reached = last;
        if reached >= end {
            return Some(true);
        }
    }
    Some(false)
}

impl Process for OwnProcess {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        Self::transfer(address, bytes.as_mut_ptr().cast(), bytes.len(), false)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        // The system only reads from these when it writes to the process.
        Self::transfer(address, bytes.as_ptr().cast_mut().cast(), bytes.len(), true)
    }

    fn pin(&self, address: u64, length: u64) -> Result<HostRange, Errno> {
        pinnable(address, length, Self::writable)?;
        let size = usize::try_from(length).map_err(|_| Errno::NOMEM)?;
        let at = usize::try_from(address).map_err(|_| Errno::FAULT)?;
        // SAFETY: it was just checked to be mapped and writable. The caller of `System::ioctl` promises to keep
        // it until it is unmapped from the device.
        Ok(unsafe {
            HostRange::from_raw(std::ptr::with_exposed_provenance_mut(at), size, Some(Arc::new(())))
        })
    }

    fn descriptor(&self, number: i32) -> Result<OwnedFd, Errno> {
        duplicate(number)
    }

    fn install(&self, file: OwnedFd) -> Result<i32, Errno> {
        Ok(file.into_raw_fd())
    }

    fn id(&self) -> u32 {
        std::process::id()
    }
}

/// Another descriptor for the file of a number.
fn duplicate(number: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: duplicating takes any number, and fails if no file is behind it.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::BADF));
    }
    // SAFETY: the descriptor is new, and no other owner exists.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Memory of this process at an address that it gave to a device itself; `None` if no memory can be there. The process
/// keeps it for as long as it is mapped for the device, as [`System::ioctl`](hal_kernel::System::ioctl) requires.
pub(crate) fn lent(address: u64, length: u64) -> Option<HostRange> {
    if length == 0 {
        return HostRange::allocate(0, 8).ok();
    }
    let (start, length) = (usize::try_from(address).ok()?, usize::try_from(length).ok()?);
    start.checked_add(length).filter(|_| start != 0)?;
    // SAFETY: the process has mapped it for the device, writable, and promised to keep it until that mapping
    // ends, which it does not before everything that was submitted to the device has.
    Some(unsafe {
        HostRange::from_raw(std::ptr::with_exposed_provenance_mut(start), length, Some(Arc::new(())))
    })
}

/// Zeros; `ENOMEM` where the process has no memory left for them, which a program may limit (`ulimit -v`).
pub fn zeroed(length: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| Errno::NOMEM)?;
    bytes.resize(length, 0);
    Ok(bytes)
}

/// The same memory, which also keeps `other` alive.
#[expect(clippy::expect_used, reason = "memory of this process is no longer than its address space")]
pub fn keeping(range: HostRange, other: Box<dyn Any + Send + Sync>) -> HostRange {
    let (start, length) = (range.address(), range.length());
    let length = usize::try_from(length).expect("memory of this process");
    // `other` is dropped first, while the memory is still mapped.
    let owner: Arc<dyn Any + Send + Sync> = Arc::new((other, range));
    // SAFETY: the range is valid for as long as it lives, and the owner has it.
    unsafe { HostRange::from_raw(start, length, Some(owner)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags};

    #[test]
    fn memory_that_there_is_not_is_an_error() {
        assert_eq!(zeroed(3), Ok(vec![0; 3]));
        for length in [isize::MAX.unsigned_abs(), 1 << 60] {
            assert_eq!(zeroed(length), Err(Errno::NOMEM));
        }
    }

    fn pages(count: usize, rights: ProtFlags) -> u64 {
        // SAFETY: a fresh mapping, never ended.
        let start = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), count * 4096, rights, MapFlags::PRIVATE).unwrap()
        };
        start as u64
    }

    #[test]
    fn bad_addresses_are_found_out() {
        let good = pages(2, ProtFlags::READ | ProtFlags::WRITE);
        assert_eq!(OwnProcess.write(good + 4090, &[1, 2, 3, 4, 5, 6, 7, 8]), Ok(()));
        let mut bytes = [0; 4];
        assert_eq!(OwnProcess.read(good + 4092, &mut bytes), Ok(()));
        assert_eq!(bytes, [3, 4, 5, 6]);
        assert_eq!(OwnProcess.read(8, &mut bytes), Err(Errno::FAULT));
        assert_eq!(OwnProcess.read(u64::MAX - 1, &mut bytes), Err(Errno::FAULT));
        let constant = pages(1, ProtFlags::READ);
        assert_eq!(OwnProcess.write(constant, &[1]), Err(Errno::FAULT));
    }

    #[test]
    fn files_that_are_written_back_and_devices_are_not_pinned() {
        let kept = |path: &Path| path.starts_with("/home");
        for memory in
            ["", "[heap]", "/memfd:x", "/dev/zero", "/dev/shm/x", "/SYSV00000000", "/anon_hugepage", "/run/x"]
        {
            assert!(is_memory(memory, kept), "{memory}");
        }
        for other in ["/home/x", "/dev/mem", "/dev/dri/card0", "anon_inode:x"] {
            assert!(!is_memory(other, kept), "{other}");
        }
        let line = |rights: &str, path: &str| {
            let text = format!(
                "1000-3000 {rights} 00000000 08:01 77     {path}\n3000-4000 rw-p 00000000 00:00 0 \n"
            );
            is_writable(&text, 0x1000, 0x4000)
        };
        assert_eq!((line("rw-s", "/memfd:x (deleted)"), line("rw-s", "/dev/mem")), (Some(true), Some(false)));
        assert_eq!(line("rw-s", "/no/such/file (deleted)"), Some(false));
        assert_eq!(line("rw-p", "/no/such/file (deleted)"), Some(true), "its pages are the process's own");
    }

    /// The system's answer for an address is what its list says, and so is that of systems that only have the list.
    #[test]
    fn question_for_an_address_is_answered_as_the_list_is() {
        let middle = pages(3, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a page of a mapping of this test's own.
        unsafe {
            let at = std::ptr::without_provenance_mut(usize::try_from(middle).unwrap() + 4096);
            rustix::mm::mprotect(at, 4096, rustix::mm::MprotectFlags::READ).unwrap();
        }
        let file = hal_backend::memory_file::memory_file("listed", 8192).unwrap();
        let shared = hal_kernel::map_shared(std::os::fd::AsFd::as_fd(&file), 8192, 0).unwrap();
        let shared = shared.address() as u64;
        let list = || MappingList::open(Path::new("/proc/self/maps")).unwrap();
        for (start, end, writable) in [
            (middle, middle + 4096, true),
            (middle, middle + 8192, false),
            (middle + 4096, middle + 8192, false),
            (middle + 8192, middle + 3 * 4096, true),
            (shared, shared + 8192, true),
            (4096, 8192, false),
        ] {
            assert_eq!(list().is_writable(start, end), writable, "{start:#x}");
            assert_eq!(list().is_listed_as_writable(start, end), writable, "{start:#x}");
        }
    }

    #[test]
    fn only_memory_that_may_be_written_is_pinned() {
        let good = pages(600, ProtFlags::READ | ProtFlags::WRITE);
        for (offset, length) in [(0, 8), (100, 8192), (5, 599 * 4096)] {
            let range = OwnProcess.pin(good + offset, length).unwrap();
            assert_eq!((range.address() as u64, range.length()), (good + offset, length));
        }
        let constant = pages(600, ProtFlags::READ);
        assert_eq!(OwnProcess.pin(constant, 8).unwrap_err(), Errno::FAULT);
        assert_eq!(OwnProcess.pin(constant, 599 * 4096).unwrap_err(), Errno::FAULT);
        assert_eq!(OwnProcess.pin(16, 8).unwrap_err(), Errno::FAULT);
        assert_eq!(OwnProcess.pin(u64::MAX - 10, 64).unwrap_err(), Errno::INVAL);
        for count in [3, 600] {
            let half = pages(count, ProtFlags::READ | ProtFlags::WRITE);
            // SAFETY: the last page of a mapping of this test's own.
            unsafe {
                let last =
                    std::ptr::without_provenance_mut(usize::try_from(half).unwrap() + (count - 1) * 4096);
                rustix::mm::mprotect(last, 4096, rustix::mm::MprotectFlags::READ).unwrap();
            }
            assert_eq!(OwnProcess.pin(half, count as u64 * 4096).unwrap_err(), Errno::NOMEM);
        }
    }
}
