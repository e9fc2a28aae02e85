// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Starting a program whose calls this process answers.

use crate::seccomp::{self, Listener};
use emulator_core::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::Pid;
use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The child's progress, which it reports before each step.
const PROMISE: u8 = b'p';
const FILTER: u8 = b'f';
const READY: u8 = b'r';

/// The reason why a program could not be started, and the exit status for it.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) status: u8,
    pub(crate) message: String,
}

/// The supervisor itself failed; the status is the same as of similar programs.
pub(crate) const OURS: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// A running program.
pub(crate) struct LaunchedProgram {
    pub(crate) process: Pid,
    pub(crate) listener: Listener,
}

/// Starts a program whose live files get these numbers.
pub(crate) fn launch(
    program: &OsString,
    arguments: &[OsString],
    live: &Range<u32>,
    maps_registers: bool,
) -> Result<LaunchedProgram, Refused> {
    let internal = |what: &str, errno: Errno| Refused { status: OURS, message: format!("{what}: {errno}") };
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (ours, theirs) =
        pair.map_err(|errno| internal("there is no socket for the program's start", errno))?;
    // Descendants whose parents end become this process's children, and so stay accessible.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|errno| internal("this process cannot become the parent of orphans", errno))?;
    let filter = seccomp::filter(live, maps_registers);
    let mut command = Command::new(program);
    command.args(arguments);
    let interrupts = seccomp::ignore_interrupts();
    let start = move || {
        interrupts.restore();
        #[cfg(target_arch = "x86_64")]
        crate::ptrace::leave_signals();
        report(theirs.as_fd(), PROMISE, &[])?;
        seccomp::give_up_new_rights()?;
        seccomp::end_with_parent()?;
        report(theirs.as_fd(), FILTER, &[])?;
        let listener = seccomp::install(&filter)?;
        report(theirs.as_fd(), READY, &[listener.as_fd()])
    };
    // SAFETY: between fork and exec this makes system calls on prepared values, and allocates nothing.
    unsafe { command.pre_exec(start) };
    let started = command.spawn();
    // Its closure has the other end of the socket.
    drop(command);
    let (stage, listener) = receive(ours.as_fd());
    match (started, listener) {
        (Ok(child), Some(listener)) => {
            Ok(LaunchedProgram { process: Pid::from_child(&child), listener: Listener::new(listener) })
        }
        (Ok(_), None) => Err(internal("the program started without a supervisor", Errno::PROTO)),
        (Err(error), _) => Err(refused(stage, program, &error)),
    }
}

fn report(socket: BorrowedFd<'_>, stage: u8, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(files));
    }
    sendmsg(socket, &[IoSlice::new(&[stage])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The child's last report, and the descriptor of its filter.
fn receive(socket: BorrowedFd<'_>) -> (u8, Option<OwnedFd>) {
    let (mut last, mut listener) = (0, None);
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut stage = [0];
        // The child has ended, or has become the program: all reports have arrived.
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        match recvmsg(socket, &mut [IoSliceMut::new(&mut stage)], &mut control, flags) {
            Ok(message) if message.bytes == 1 => [last] = stage,
            _ => return (last, listener),
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut files) = message {
                listener = files.next();
            }
        }
    }
}

fn refused(stage: u8, program: &OsString, error: &io::Error) -> Refused {
    let name = program.to_string_lossy();
    match stage {
        READY if error.kind() == io::ErrorKind::NotFound => {
            Refused { status: NOT_FOUND, message: format!("there is no program {name}") }
        }
        READY => Refused { status: NOT_EXECUTABLE, message: format!("{name} cannot be run: {error}") },
        FILTER => Refused { status: OURS, message: no_filter(error) },
        _ => Refused { status: OURS, message: format!("a process for {name} cannot be started: {error}") },
    }
}

/// The advice for a system that takes no filter.
fn no_filter(error: &io::Error) -> String {
    let advice = match error.raw_os_error() {
        Some(libc::EBUSY) => {
            "another supervisor already answers for this process, and the system allows one: do not nest \
             this program in itself, nor in a container whose runtime answers system calls by itself"
        }
        Some(libc::EPERM | libc::EACCES) => {
            "something forbids the system call seccomp to this process, often the profile of a container: allow \
             seccomp with the flag SECCOMP_FILTER_FLAG_NEW_LISTENER, for docker and podman by \
             --security-opt seccomp=unconfined"
        }
        Some(libc::ENOSYS | libc::EINVAL) => {
            "the system has no user notifications of seccomp: it takes Linux 5.14 or newer with \
             CONFIG_SECCOMP_FILTER, and no sandbox such as gVisor in between"
        }
        Some(libc::ENOMEM) => {
            "there is no memory for a filter, or there are too many on this process already"
        }
        _ => "the system does not say why",
    };
    format!("seccomp(SECCOMP_SET_MODE_FILTER) failed: {error}: {advice}")
}

/// Waits until the program and all its descendants have ended. Returns the program's status, as shells do.
#[cfg(not(target_arch = "x86_64"))]
#[expect(
    clippy::expect_used,
    reason = "a status of the system's has eight bits, and so has 128 with a signal's number"
)]
pub(crate) fn wait_for_all(process: Pid) -> u8 {
    use rustix::process::{WaitOptions, wait};
    let mut status = OURS;
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((who, how))) if who == process => {
                let code = how.exit_status().or_else(|| how.terminating_signal().map(|signal| 128 + signal));
                let code = code.expect("it has exited, or a signal has ended it");
                status = u8::try_from(code).expect("a status");
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return status,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_remedy() {
        for (errno, advice) in [
            (libc::EBUSY, "do not nest"),
            (libc::EPERM, "--security-opt seccomp=unconfined"),
            (libc::EACCES, "SECCOMP_FILTER_FLAG_NEW_LISTENER"),
            (libc::ENOSYS, "Linux 5.14"),
            (libc::EINVAL, "CONFIG_SECCOMP_FILTER"),
            (libc::ENOMEM, "too many"),
        ] {
            let refused = refused(FILTER, &"program".into(), &io::Error::from_raw_os_error(errno));
            assert_eq!(refused.status, OURS);
            assert!(refused.message.contains(advice), "{}", refused.message);
        }
    }
}
