// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Seccomp's notifications: installing a filter, and answering the calls that it stops.
//!
//! This file and [`target`](crate::target) have the crate's unsafe code.

use crate::filter;
use emulator_core::Errno;
use libc::{
    SECCOMP_ADDFD_FLAG_SEND, SECCOMP_ADDFD_FLAG_SETFD, SECCOMP_FILTER_FLAG_NEW_LISTENER,
    SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, SECCOMP_IOCTL_NOTIF_ADDFD, SECCOMP_IOCTL_NOTIF_ID_VALID,
    SECCOMP_IOCTL_NOTIF_RECV, SECCOMP_IOCTL_NOTIF_SEND, SECCOMP_IOCTL_NOTIF_SET_FLAGS,
    SECCOMP_SET_MODE_FILTER, SECCOMP_USER_NOTIF_FLAG_CONTINUE, seccomp_notif, seccomp_notif_addfd,
    seccomp_notif_resp, sock_filter, sock_fprog,
};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Makes the system run the answering thread on the processor of the calling one: they alternate anyway.
const SYNCHRONOUS: u64 = 1;

/// Promises for this process and its children that no program gains privileges; without this the system takes
/// filters from root alone.
pub(crate) fn give_up_new_rights() -> io::Result<()> {
    // SAFETY: this takes four numbers and has no memory.
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Installs a filter on this process, permanently, and returns the descriptor that answers for it. Safe between
/// fork and exec: it allocates nothing.
pub(crate) fn install(filter: &[sock_filter]) -> io::Result<OwnedFd> {
    #[expect(clippy::cast_possible_truncation, reason = "a filter has fewer than a hundred instructions")]
    let program = sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // A call that was received continues until it is answered, unless the process is killed: signals wait. A
    // call that a signal could undo would happen twice. Systems before 5.19 do not have that.
    let kinds = [SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, 0];
    let mut refused = io::Error::from_raw_os_error(libc::EINVAL);
    for kind in kinds {
        let flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | kind;
        // SAFETY: the program and the filter that it points to live through the call, which copies them.
        let listener =
            unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
        if let Ok(listener) = i32::try_from(listener)
            && listener >= 0
        {
            // SAFETY: the descriptor is new, and no other owner exists.
            return Ok(unsafe { OwnedFd::from_raw_fd(listener) });
        }
        refused = io::Error::last_os_error();
        if refused.raw_os_error() != Some(libc::EINVAL) {
            break;
        }
    }
    Err(refused)
}

/// A stopped call of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notice {
    pub(crate) id: u64,
    /// The thread.
    pub(crate) thread: u32,
    pub(crate) call: i64,
    pub(crate) arguments: [u64; 6],
}

/// Flags as the structures have them.
#[expect(clippy::cast_possible_truncation, reason = "each is one of the lowest bits")]
const fn flags(flags: libc::c_ulong) -> u32 {
    flags as u32
}

/// The source of notices.
#[derive(Debug)]
pub(crate) struct Listener(OwnedFd);

impl Listener {
    pub(crate) fn new(listener: OwnedFd) -> Self {
        let made = Self(listener);
        // SAFETY: the request takes a number in place of a pointer. Systems before 6.6 do not have it, and are
        // slower.
        unsafe { libc::ioctl(made.0.as_raw_fd(), SECCOMP_IOCTL_NOTIF_SET_FLAGS, SYNCHRONOUS) };
        made
    }

    /// One of the requests of a listener.
    ///
    /// # Safety
    ///
    /// `argument` has the type of the request, which may write to it.
    unsafe fn request<T>(&self, request: libc::Ioctl, argument: &mut T) -> Result<i32, Errno> {
        // SAFETY: the argument has the type of the request, as the caller promises.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), request, std::ptr::from_mut(argument)) };
        if result < 0 {
            return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
        }
        Ok(result)
    }

    /// Waits for the next notice. Nothing, if it was withdrawn meanwhile.
    pub(crate) fn receive(&self) -> Result<Option<Notice>, Errno> {
        // SAFETY: numbers alone, which the system wants to be zero.
        let mut notice: seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: this is the structure of the request.
        match unsafe { self.request(SECCOMP_IOCTL_NOTIF_RECV, &mut notice) } {
            Ok(_) => Ok(Some(Notice {
                id: notice.id,
                thread: notice.pid,
                call: notice.data.nr.into(),
                arguments: notice.data.args,
            })),
            // Killed before it was received, or a signal of this process.
            Err(Errno::NOENT | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// True if a notice still waits for its answer. While it does, its number names its thread.
    pub(crate) fn is_valid(&self, notice: &Notice) -> bool {
        let mut id = notice.id;
        // SAFETY: the request takes a notice's number.
        unsafe { self.request(SECCOMP_IOCTL_NOTIF_ID_VALID, &mut id).is_ok() }
    }

    fn respond(&self, notice: &Notice, value: i64, error: i32, flags: u32) {
        let mut response = seccomp_notif_resp { id: notice.id, val: value, error, flags };
        // SAFETY: this is the structure of the request. The error is ignored: the process that asked has ended.
        let _ = unsafe { self.request(SECCOMP_IOCTL_NOTIF_SEND, &mut response) };
    }

    /// Answers a call.
    pub(crate) fn answer(&self, notice: &Notice, result: Result<i64, Errno>) {
        match result {
            Ok(value) => self.respond(notice, value, 0, 0),
            Err(errno) => self.respond(notice, 0, -errno.raw_os_error(), 0),
        }
    }

    /// Leaves a call to the system.
    pub(crate) fn pass(&self, notice: &Notice) {
        self.respond(notice, 0, 0, flags(SECCOMP_USER_NOTIF_FLAG_CONTINUE));
    }

    fn add(
        &self,
        notice: &Notice,
        (file, cloexec): (BorrowedFd<'_>, bool),
        number: Option<u32>,
        with: libc::c_ulong,
    ) -> Result<i32, Errno> {
        let placed = if number.is_some() { SECCOMP_ADDFD_FLAG_SETFD } else { 0 };
        let mut request = seccomp_notif_addfd {
            id: notice.id,
            flags: flags(with | placed),
            srcfd: u32::try_from(file.as_raw_fd()).map_err(|_| Errno::BADF)?,
            newfd: number.unwrap_or(0),
            newfd_flags: if cloexec { libc::O_CLOEXEC.cast_unsigned() } else { 0 },
        };
        // SAFETY: this is the structure of the request.
        unsafe { self.request(SECCOMP_IOCTL_NOTIF_ADDFD, &mut request) }
    }

    /// Installs a descriptor in the process while its call waits. Returns its number there.
    pub(crate) fn give(&self, notice: &Notice, file: BorrowedFd<'_>, cloexec: bool) -> Result<i32, Errno> {
        self.add(notice, (file, cloexec), None, 0)
    }

    /// Answers a call with a descriptor, in one step: the process gets both or neither. The descriptor has this
    /// number, which is free, or any.
    pub(crate) fn answer_with(
        &self,
        notice: &Notice,
        file: BorrowedFd<'_>,
        cloexec: bool,
        number: Option<u32>,
    ) {
        match self.add(notice, (file, cloexec), number, SECCOMP_ADDFD_FLAG_SEND) {
            Ok(_) | Err(Errno::NOENT) => {}
            // Its table is full, or its limit is reached.
            Err(errno) => self.answer(notice, Err(errno)),
        }
    }
}

/// The filter that programs get, with the numbers of live files, for a machine that may map registers.
pub(crate) fn filter(live: &Range<u32>, maps_registers: bool) -> Vec<sock_filter> {
    filter::program(live, maps_registers)
}

/// Makes the system end this process when its parent ends. Safe between fork and exec.
pub(crate) fn end_with_parent() -> io::Result<()> {
    // SAFETY: this takes numbers and has no memory.
    let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM, 0, 0, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The previous handlers of the terminal's signals.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interrupts([(libc::c_int, libc::sighandler_t); 2]);

/// Leaves the handling of the terminal's signals to the program; both processes get them.
pub(crate) fn ignore_interrupts() -> Interrupts {
    Interrupts([libc::SIGINT, libc::SIGQUIT].map(|number| {
        // SAFETY: to ignore a signal runs no code.
        (number, unsafe { libc::signal(number, libc::SIG_IGN) })
    }))
}

impl Interrupts {
    /// Restores them. Safe between fork and exec.
    pub(crate) fn restore(self) {
        for (number, handler) in self.0.into_iter().filter(|(_, handler)| *handler != libc::SIG_ERR) {
            // SAFETY: a handler that `signal` has returned for this number may be set again.
            unsafe { libc::signal(number, handler) };
        }
    }
}
