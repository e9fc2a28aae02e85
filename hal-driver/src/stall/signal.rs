// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The signal, and the pipe by which its handler wakes the watching thread.

use crate::ffi::status::Result;
use hal_semaphore::{Code, Failure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, read, write};
use rustix::pipe::{PipeFlags, pipe_with};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// What is written to the pipe: a device came, or a report is asked for.
const CAME: u8 = 0;
const ASKED: u8 = 1;

/// The ends of the pipe, to read and to write.
static PIPE: OnceLock<(OwnedFd, OwnedFd)> = OnceLock::new();

/// The process whose thread reads the pipe: a forked one has none.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The handler before ours.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

fn no_pipe(error: Errno) -> Failure {
    Failure::new(Code::ResourceExhausted, format!("no pipe could be made to watch the device: {error}"))
}

/// Makes the pipe.
pub(super) fn prepare() -> Result {
    let pipe = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(no_pipe)?;
    // Only one thread prepares.
    let _ = PIPE.set(pipe);
    PROCESS.store(std::process::id(), Ordering::Release);
    Ok(())
}

/// Writes a byte. Fit for a signal handler: loads and system calls alone. A full pipe has a byte to read.
fn tell(byte: u8) {
    if let Some((_, end)) = PIPE.get()
        && PROCESS.load(Ordering::Acquire) == std::process::id()
    {
        let _ = write(end, &[byte]);
    }
}

/// Has the thread look at the devices again.
pub(super) fn wake() {
    tell(CAME);
}

/// Sleeps for this long, or until the thread is woken. Returns whether a report is asked for.
pub(super) fn sleep(pause: Option<Duration>) -> bool {
    let Some((end, _)) = PIPE.get() else { return false };
    let timeout = pause.and_then(|pause| Timespec::try_from(pause).ok());
    // After an error of any kind the pipe is read, which does not block.
    let _ = poll(&mut [PollFd::new(end, PollFlags::IN)], timeout.as_ref());
    let (mut bytes, mut asked) = ([0; 64], false);
    while let Ok(count) = read(end, &mut bytes)
        && count > 0
    {
        asked |= bytes.iter().take(count).any(|byte| *byte == ASKED);
    }
    asked
}

extern "C" fn asked(number: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    tell(ASKED);
    let Some(before) = BEFORE.get() else { return };
    let handler = before.sa_sigaction;
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        return;
    }
    // SAFETY: the program's own handler, of the kind that its flags say, with the arguments of this signal.
    unsafe {
        if before.sa_flags & libc::SA_SIGINFO == 0 {
            std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler)(number);
        } else {
            type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            std::mem::transmute::<usize, Handler>(handler)(number, info, context);
        }
    }
}

/// Sets the handler, once. A program's handler that was there is called behind it.
pub(super) fn handle() -> Result {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    // SAFETY: the structures are plain data; the handler does what a handler may.
    let outcome = unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        let mut outcome = libc::sigaction(libc::SIGQUIT, std::ptr::null(), &raw mut before);
        if outcome == 0 && BEFORE.set(before).is_ok() {
            let mut ours: libc::sigaction = std::mem::zeroed();
            ours.sa_sigaction = asked as *const () as usize;
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
            outcome = libc::sigaction(libc::SIGQUIT, &raw const ours, std::ptr::null_mut());
        }
        outcome
    };
    if outcome == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Failure::new(Code::Internal, format!("the handler of SIGQUIT could not be set: {error}")))
}

/// Writes all of a text to the standard error. What cannot be written is dropped.
pub(super) fn print(mut text: &[u8]) {
    // SAFETY: a descriptor that is closed fails the write, and no more.
    let error = unsafe { BorrowedFd::borrow_raw(2) };
    while !text.is_empty() {
        match write(error.as_fd(), text) {
            Ok(count) => text = text.get(count..).unwrap_or(&[]),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
            Err(_) => return,
        }
    }
}
