// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The process whose call is answered: its memory and its descriptors.
//!
//! A notice names a thread by its number. While the notice waits for its answer the number is that thread's;
//! afterwards another thread may have it. So a read is valid only if the notice still waits after it, and
//! nothing is written unless it waits. Memory that is lent for longer is reached through a file for the
//! process's memory at that time, which no other process and no later program can replace.

use crate::seccomp::{Listener, Notice};
use emulator_core::backing::{self, Backing, Lent};
use emulator_core::file::Identity;
use emulator_core::process::{MappingList, keeping, pinnable};
use emulator_core::{Errno, PAGE, Process, view};
use hal_backend::{HostPart, HostRange};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::FdFlags;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Weak};

/// The longest path that the system takes, with its end.
const PATH_MAX: usize = 4096;

/// A handle for a thread rather than its process (`PIDFD_THREAD`), which systems since 6.9 have.
const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0o200);

/// A thread that waits for the answer to its call, and its process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TargetProcess<'a> {
    listener: &'a Listener,
    notice: &'a Notice,
}

impl<'a> TargetProcess<'a> {
    pub(crate) fn new(listener: &'a Listener, notice: &'a Notice) -> Self {
        Self { listener, notice }
    }

    /// Checks that the number still belongs to the thread.
    fn still(&self) -> Result<(), Errno> {
        if self.listener.is_valid(self.notice) { Ok(()) } else { Err(Errno::SRCH) }
    }

    /// A file in the thread's folder of `/proc`.
    pub(crate) fn proc(&self, file: &str) -> String {
        format!("/proc/{}/{file}", self.notice.thread)
    }

    fn text(&self, file: &str) -> Result<String, Errno> {
        let text = std::fs::read_to_string(self.proc(file));
        let text = text.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        self.still().map(|()| text)
    }

    /// The target of a link in the thread's folder of `/proc`.
    pub(crate) fn link(&self, file: &str) -> Result<std::path::PathBuf, Errno> {
        let link = std::fs::read_link(self.proc(file));
        let link = link.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        self.still().map(|()| link)
    }

    /// A handle for the process, or for its thread.
    pub(crate) fn handle(&self) -> Result<OwnedFd, Errno> {
        let thread = i32::try_from(self.notice.thread).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        let handle = match pidfd_open(thread, THREAD) {
            Err(Errno::INVAL) => {
                let process = i32::try_from(self.id()).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
                pidfd_open(process, PidfdFlags::empty())?
            }
            handle => handle?,
        };
        self.still().map(|()| handle)
    }

    /// A path in the process's memory.
    pub(crate) fn path(&self, address: u64) -> Result<CString, Errno> {
        let mut path = Vec::with_capacity(256);
        while path.len() < PATH_MAX {
            // Memory behind the end of a path may be unmapped: only read to the end of the page at a time.
            let at = address.checked_add(path.len() as u64).ok_or(Errno::FAULT)?;
            let mut bytes = [0; 256];
            let (bytes, _) = bytes.split_at_mut(rest_of_page(at).min(256));
            self.read(at, bytes)?;
            let begun = path.len();
            path.extend_from_slice(bytes);
            if let Some(end) = bytes.iter().position(|&byte| byte == 0) {
                path.truncate(begun + end);
                return CString::new(path).map_err(|_| Errno::INVAL);
            }
        }
        Err(Errno::NAMETOOLONG)
    }

    /// The process's memory, in which something is mapped at an address. All of its mappings share a descriptor.
    fn memory(&self, process: u32, mapped: u64) -> Result<Arc<OwnedFd>, Errno> {
        static FILES: Mutex<BTreeMap<u32, Weak<OwnedFd>>> = Mutex::new(BTreeMap::new());
        let mut files = FILES.lock();
        if let Some(memory) = files.get(&process).and_then(Weak::upgrade)
            // Not that of an earlier program.
            && rustix::io::pread(&*memory, &mut [0], mapped) == Ok(1)
        {
            return Ok(memory);
        }
        files.retain(|_, memory| memory.strong_count() > 0);
        let memory = rustix::fs::open(self.proc("mem"), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let memory = Arc::new(memory);
        files.insert(process, Arc::downgrade(&memory));
        Ok(memory)
    }

    /// True if a signal waits that would end the thread's sleep in a kernel, or the thread is gone.
    pub(crate) fn is_interrupted(&self) -> bool {
        let Ok(status) = self.text("status") else { return true };
        let mask = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
        };
        (mask("SigPnd:") | mask("ShdPnd:")) & !mask("SigBlk:") & !mask("SigIgn:") != 0
    }

    /// Copies between the process's memory and this one's.
    fn transfer(&self, address: u64, bytes: *mut c_void, length: usize, write: bool) -> Result<(), Errno> {
        if length == 0 {
            return Ok(());
        }
        let there = usize::try_from(address).map_err(|_| Errno::FAULT)?;
        let thread = i32::try_from(self.notice.thread).map_err(|_| Errno::SRCH)?;
        let local = libc::iovec { iov_base: bytes, iov_len: length };
        let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(there), iov_len: length };
        // SAFETY: both vectors live through the call; the local one is valid for its length, as `read` and
        // `write` ensure, and the system checks the remote one.
        let done = unsafe {
            if write {
                libc::process_vm_writev(thread, &raw const local, 1, &raw const remote, 1, 0)
            } else {
                libc::process_vm_readv(thread, &raw const local, 1, &raw const remote, 1, 0)
            }
        };
        if usize::try_from(done).is_ok_and(|done| done == length) {
            return Ok(());
        }
        let error = Errno::from_io_error(&std::io::Error::last_os_error());
        // Part of it was copied. A system that forbids it altogether is another case.
        Err(error.filter(|&error| done < 0 && error == Errno::PERM).unwrap_or(Errno::FAULT))
    }
}

impl Process for TargetProcess<'_> {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let result = self.transfer(address, bytes.as_mut_ptr().cast(), bytes.len(), false);
        self.still().and(result)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.still()?;
        // The system only reads from these when it writes to the process.
        self.transfer(address, bytes.as_ptr().cast_mut().cast(), bytes.len(), true)
    }

    fn pin(&self, address: u64, length: u64) -> Result<HostRange, Errno> {
        let mappings = MappingList::open(Path::new(&self.proc("maps")))?;
        self.still()?;
        pinnable(address, length, |start, end| mappings.is_writable(start, end))?;
        let process = self.id();
        let memory = self.memory(process, address)?;
        self.still()?;
        let skip = address % PAGE;
        let copy = HostRange::allocate(skip + length, 4096).map_err(|_| Errno::NOMEM)?;
        let copy = copy.slice(skip, length).ok_or(Errno::NOMEM)?;
        let lent = Backing::Lent(Arc::new(LentMemory { memory, process, start: address }), 0);
        let registered = backing::register(&copy, lent);
        Ok(keeping(copy, Box::new(registered)))
    }

    fn descriptor(&self, number: i32) -> Result<OwnedFd, Errno> {
        let handle = self.handle()?;
        pidfd_getfd(&handle, number, PidfdGetfdFlags::empty())
    }

    fn install(&self, file: OwnedFd) -> Result<i32, Errno> {
        let cloexec = rustix::io::fcntl_getfd(&file).is_ok_and(|flags| flags.contains(FdFlags::CLOEXEC));
        self.listener.give(self.notice, file.as_fd(), cloexec)
    }

    fn id(&self) -> u32 {
        let status = std::fs::read_to_string(self.proc("status")).unwrap_or_default();
        let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
        process.and_then(|number| number.trim().parse().ok()).unwrap_or(self.notice.thread)
    }

    fn task(&self) -> Result<Option<OwnedFd>, Errno> {
        self.handle().map(Some)
    }

    fn last_offset(&self) -> u64 {
        i64::MAX.cast_unsigned()
    }

    fn has_mapped(&self, file: Identity, offset: u64) -> bool {
        view::is_mapped(self.notice.thread, file, offset)
    }
}

/// How many bytes there are from an address to the end of its page.
#[expect(clippy::cast_possible_truncation, reason = "at most a page")]
const fn rest_of_page(at: u64) -> usize {
    (PAGE - at % PAGE) as usize
}

/// Memory that a process has lent to a device.
struct LentMemory {
    /// The process's memory file. It ends with the program that the process ran then.
    memory: Arc<OwnedFd>,
    process: u32,
    start: u64,
}

impl LentMemory {
    /// Moves bytes, and skips pages that are not mapped any more.
    #[expect(
        clippy::expect_used,
        reason = "memory that was pinned is in the half of the address space that programs have"
    )]
    fn each(
        &self,
        part: HostPart<'_>,
        offset: u64,
        move_some: impl Fn(i32, *mut c_void, usize, i64) -> isize,
    ) {
        let mut done = 0;
        while done < part.length() {
            let at = self.start + offset + done as u64;
            let place = i64::try_from(at).expect("an address of a program's");
            let here = part.address().wrapping_add(done).cast();
            match usize::try_from(move_some(self.memory.as_raw_fd(), here, part.length() - done, place)) {
                // The program has ended.
                Ok(0) => return,
                Ok(moved) => done += moved,
                Err(_) => done += rest_of_page(at),
            }
        }
    }
}

impl Lent for LentMemory {
    fn pull(&self, copy: HostPart<'_>, offset: u64) {
        self.each(copy, offset, |memory, here, length, place| {
            // SAFETY: `each` stays inside the part, which is valid for writes as long as it is borrowed.
            unsafe { libc::pread(memory, here, length, place) }
        });
    }

    fn push(&self, copy: HostPart<'_>, offset: u64) {
        self.each(copy, offset, |memory, here, length, place| {
            // SAFETY: `each` stays inside the part, which is valid for reads as long as it is borrowed.
            unsafe { libc::pwrite(memory, here, length, place) }
        });
    }

    fn place(&self) -> Option<(u32, u64)> {
        Some((self.process, self.start))
    }
}

/// The bytes of one of the system's structures.
pub(crate) trait Plain: Copy {
    /// Its bytes.
    fn bytes(&self) -> &[u8] {
        // SAFETY: the implementors below are structures of integers that were made from zeroed memory, so every
        // byte, padding included, is initialised.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// Zeros.
    fn zeroed() -> Self {
        // SAFETY: the implementors below are structures of integers, for which zeros are values.
        unsafe { std::mem::zeroed() }
    }
}

impl Plain for libc::stat {}
impl Plain for libc::statx {}
impl Plain for libc::statfs {}
impl Plain for rustix::fs::Stat {}
impl Plain for rustix::fs::Statx {}
impl Plain for rustix::fs::StatFs {}
