// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The system's requests for a thread that this thread traces.

use emulator_core::Errno;
use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::ptr::{null_mut, without_provenance_mut};

/// A thread, by its number.
pub(crate) type Thread = libc::pid_t;

/// What became of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It has ended, with this status, or 128 and the number of the signal that ended it.
    Ended(u8),
    /// It is about to get a signal, and is stopped.
    Signal(c_int),
    /// It is stopped at an event, or as part of its process, by a signal.
    Event { event: c_int, signal: c_int },
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// A request.
///
/// # Safety
///
/// `data` is what the request takes: memory that it writes to or reads, or a number.
unsafe fn request(request: c_uint, thread: Thread, address: usize, data: *mut c_void) -> Result<(), Errno> {
    let address: *mut c_void = without_provenance_mut(address);
    // SAFETY: as the caller promises; the system checks that this thread traces the other one.
    if unsafe { libc::ptrace(request, thread, address, data) } == -1 { Err(last_error()) } else { Ok(()) }
}

/// A request with a number, or with nothing.
fn simple(kind: c_uint, thread: Thread, number: usize) -> Result<(), Errno> {
    // SAFETY: the requests below take numbers.
    unsafe { request(kind, thread, 0, without_provenance_mut(number)) }
}

/// Begins to trace a thread, without stopping it, and its new threads and children too.
pub(crate) fn seize(thread: Thread) -> Result<(), Errno> {
    let options = libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACEEXEC;
    simple(libc::PTRACE_SEIZE, thread, usize::try_from(options).map_err(|_| Errno::INVAL)?)
}

/// Stops a thread when it next comes back to its program.
pub(crate) fn interrupt(thread: Thread) -> Result<(), Errno> {
    simple(libc::PTRACE_INTERRUPT, thread, 0)
}

/// Has a stopped thread go on, and get a signal; 0 for none.
pub(crate) fn go_on(thread: Thread, signal: c_int) -> Result<(), Errno> {
    simple(libc::PTRACE_CONT, thread, usize::try_from(signal).map_err(|_| Errno::INVAL)?)
}

/// Leaves a thread stopped as part of its process.
pub(crate) fn listen(thread: Thread) -> Result<(), Errno> {
    simple(libc::PTRACE_LISTEN, thread, 0)
}

/// Ends the tracing of a stopped thread.
pub(crate) fn detach(thread: Thread) -> Result<(), Errno> {
    simple(libc::PTRACE_DETACH, thread, 0)
}

/// Has a stopped thread execute an instruction. Returns a signal that it is about to get, or 0.
pub(crate) fn step(thread: Thread) -> Result<c_int, Errno> {
    let mut late = 0;
    loop {
        simple(libc::PTRACE_SINGLESTEP, thread, 0)?;
        match wait_for(thread)? {
            Change::Signal(libc::SIGTRAP) => return Ok(late),
            Change::Signal(signal) if is_fault(signal) => return Err(Errno::FAULT),
            // It comes before the instruction, which is still to be executed.
            Change::Signal(signal) => late = signal,
            Change::Event { .. } => {}
            Change::Ended(_) => return Err(Errno::SRCH),
        }
    }
}

fn is_fault(signal: c_int) -> bool {
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE].contains(&signal)
}

/// The registers of a stopped thread.
pub(crate) fn registers(thread: Thread) -> Result<libc::user_regs_struct, Errno> {
    // SAFETY: a structure of integers.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    // SAFETY: the request fills this structure.
    unsafe { request(libc::PTRACE_GETREGS, thread, 0, (&raw mut registers).cast())? };
    Ok(registers)
}

/// Sets the registers of a stopped thread.
pub(crate) fn set_registers(thread: Thread, registers: &libc::user_regs_struct) -> Result<(), Errno> {
    let mut registers = *registers;
    // SAFETY: the request reads this structure.
    unsafe { request(libc::PTRACE_SETREGS, thread, 0, (&raw mut registers).cast()) }
}

/// The address of the access for which a stopped thread is about to get `SIGSEGV`; nothing, if it is sent by a process.
pub(crate) fn fault_address(thread: Thread) -> Result<Option<u64>, Errno> {
    // SAFETY: a structure of integers.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the request fills this structure.
    unsafe { request(libc::PTRACE_GETSIGINFO, thread, 0, (&raw mut info).cast())? };
    // SAFETY: the field of a signal that an access has caused, whose code is positive.
    let address = unsafe { info.si_addr() };
    Ok((info.si_code > 0).then(|| address.addr() as u64))
}

/// The number that comes with an event: that of a new process.
pub(crate) fn message(thread: Thread) -> Result<u32, Errno> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: the request fills this number.
    unsafe { request(libc::PTRACE_GETEVENTMSG, thread, 0, (&raw mut message).cast())? };
    u32::try_from(message).map_err(|_| Errno::SRCH)
}

/// The thread of this process that has changed, if there is one, and how.
pub(crate) fn poll() -> Result<Option<(Thread, Change)>, Errno> {
    wait(-1, libc::WNOHANG)
}

/// Waits until a traced thread has changed.
fn wait_for(thread: Thread) -> Result<Change, Errno> {
    loop {
        match wait(thread, 0) {
            Ok(Some((_, change))) => return Ok(change),
            Ok(None) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

#[expect(
    clippy::expect_used,
    reason = "a status of the system's has eight bits, and so has 128 with a signal's number"
)]
fn wait(thread: Thread, flags: c_int) -> Result<Option<(Thread, Change)>, Errno> {
    let mut status = 0;
    // SAFETY: the status lives through the call.
    let changed = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL | flags) };
    let change = match changed {
        -1 => return Err(last_error()),
        0 => return Ok(None),
        _ if libc::WIFEXITED(status) => {
            Change::Ended(u8::try_from(libc::WEXITSTATUS(status)).expect("a status"))
        }
        _ if libc::WIFSIGNALED(status) => {
            Change::Ended(u8::try_from(128 + libc::WTERMSIG(status)).expect("a status"))
        }
        _ => match status >> 16 {
            0 => Change::Signal(libc::WSTOPSIG(status)),
            event => Change::Event { event, signal: libc::WSTOPSIG(status) },
        },
    };
    Ok(Some((changed, change)))
}

/// The signals by which the waiting thread learns of changes, and of work: of children, and of its own.
fn signals() -> libc::sigset_t {
    // SAFETY: the set is initialised by the first call, and the others are given two of the system's signals.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        libc::sigaddset(&raw mut set, libc::SIGUSR1);
        set
    }
}

/// Keeps those signals for [`sleep`], in this thread and in those that it starts: a thread that takes one would lose
/// it.
pub(crate) fn keep_signals() {
    change_signals(libc::SIG_BLOCK);
}

/// Leaves those signals to the program. Safe between fork and exec.
pub(crate) fn leave_signals() {
    change_signals(libc::SIG_UNBLOCK);
}

fn change_signals(how: c_int) {
    let set = signals();
    // SAFETY: the set lives through the call.
    unsafe { libc::pthread_sigmask(how, &raw const set, null_mut()) };
}

/// Sleeps until one of those signals comes.
pub(crate) fn sleep() {
    let set = signals();
    // SAFETY: the set lives through the call.
    unsafe { libc::sigwaitinfo(&raw const set, null_mut()) };
}

/// Wakes the first thread of this process from its [`sleep`].
pub(crate) fn wake() {
    let process = std::process::id().cast_signed();
    // SAFETY: the call has no memory.
    unsafe { libc::syscall(libc::SYS_tgkill, process, process, libc::SIGUSR1) };
}
