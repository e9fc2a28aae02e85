// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Descriptors between processes.
//!
//! A message is some bytes and one descriptor, over a socket of the local machine. The kernel makes a descriptor of the
//! receiver's for it. What arrives and is not wanted is closed on every path.

use super::handle::Handle;
use hal_backend::{Code, Failure, TimeLimit};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

pub(super) fn failed(what: &str, errno: Errno) -> Failure {
    Failure::new(Code::Unavailable, format!("{what}: {errno} (errno {})", errno.raw_os_error()))
}

/// Sends bytes, and a descriptor with them.
pub(super) fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], file: BorrowedFd<'_>) -> Result<(), Failure> {
    let files = [file];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(Failure::new(Code::Internal, "there is no room for a descriptor in a message"));
    }
    let sent = loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => break other.map_err(|errno| failed("a descriptor could not be sent", errno))?,
        }
    };
    // A stream may take fewer bytes than it is given; the descriptor went with the first.
    send_all(socket, bytes.get(sent..).unwrap_or_default())
}

/// Sends bytes, all of them.
pub(super) fn send_all(socket: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Failure> {
    while !bytes.is_empty() {
        match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("the other side could not be reached", errno)),
        }
    }
    Ok(())
}

/// Receives so many bytes, and the descriptor that came with them, if one did. Nothing at all, if the other side has
/// hung up.
pub(super) fn receive_with(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> Result<Option<Option<OwnedFd>>, Failure> {
    receive_until(socket, bytes, None)
}

/// The same, for a limited time.
pub(super) fn receive_until(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    mut limit: Option<TimeLimit>,
) -> Result<Option<Option<OwnedFd>>, Failure> {
    let mut file = None;
    let mut done = 0;
    while done < bytes.len() {
        if let Some(limit) = &mut limit {
            let now = Instant::now();
            if limit.look(now).is_zero() {
                return Err(late());
            }
            limit_wait(socket, Some(limit.next_look().saturating_duration_since(now)))?;
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let rest = bytes.get_mut(done..).unwrap_or_default();
        let received =
            match recvmsg(socket, &mut [IoSliceMut::new(rest)], &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => received,
                Err(Errno::INTR) => continue,
                // The loop looks at its limit again.
                Err(Errno::AGAIN) if limit.is_some() => continue,
                Err(Errno::CONNRESET) => return Ok(None),
                Err(Errno::AGAIN) => return Err(late()),
                Err(errno) => return Err(failed("nothing could be received", errno)),
            };
        let mut files: Vec<OwnedFd> = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(arrived) = message {
                files.extend(arrived);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC)
            || files.len() > 1
            || (file.is_some() && !files.is_empty())
        {
            let message = "more descriptors came with a message than the one that it may have";
            return Err(Failure::new(Code::InvalidArgument, message));
        }
        file = file.or_else(|| files.pop());
        if received.bytes == 0 {
            return if done == 0 { Ok(None) } else { Err(failed("a message ends early", Errno::CONNRESET)) };
        }
        done += received.bytes;
    }
    Ok(Some(file))
}

/// How long a receipt may wait from now on.
pub(super) fn limit_wait(socket: BorrowedFd<'_>, limit: Option<Duration>) -> Result<(), Failure> {
    set_socket_timeout(socket, Timeout::Recv, limit)
        .map_err(|errno| failed("a socket cannot be given a limit", errno))
}

fn late() -> Failure {
    Failure::new(Code::DeadlineExceeded, "the other side says nothing")
}

/// Sends a shared buffer to another process.
pub fn send(socket: impl AsFd, handle: &Handle, buffer: BorrowedFd<'_>) -> Result<(), Failure> {
    send_with(socket.as_fd(), &handle.encode(), buffer)
}

/// Receives a shared buffer from another process. Nothing, if that has hung up.
pub fn receive(socket: impl AsFd) -> Result<Option<(Handle, OwnedFd)>, Failure> {
    let mut bytes = [0; Handle::SIZE];
    let Some(file) = receive_with(socket.as_fd(), &mut bytes)? else { return Ok(None) };
    let handle = Handle::decode(&bytes)?;
    let Some(file) = file else {
        let message = "a handle of shared memory came without its descriptor; a descriptor's number is worth nothing \
         in \
                       another process";
        return Err(Failure::new(Code::InvalidArgument, message));
    };
    identify(&handle, file.as_fd())?;
    Ok(Some((handle, file)))
}

/// The device and the inode of a file, which identify it whatever its descriptor's number.
pub(super) fn identity(file: BorrowedFd<'_>) -> Result<(u64, u64), Failure> {
    hal_kernel::identity(file).map_err(|errno| failed("a descriptor could not be looked at", errno))
}

/// Refuses a descriptor that is of something else than its handle says.
pub(super) fn identify(handle: &Handle, file: BorrowedFd<'_>) -> Result<(), Failure> {
    if identity(file)? == (handle.device, handle.inode) {
        return Ok(());
    }
    let message = format!("the descriptor that came with buffer {} is of something else", handle.buffer);
    Err(Failure::new(Code::InvalidArgument, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::Generation;
    use crate::ipc::proof::Secret;
    use std::os::unix::net::UnixStream;

    fn file() -> OwnedFd {
        rustix::fs::memfd_create("shared", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
    }

    fn handle(file: &OwnedFd) -> Handle {
        let (device, inode) = identity(file.as_fd()).unwrap();
        Handle {
            exporter: 1,
            process: 2,
            namespace: 3,
            generation: Generation::Gaudi2,
            buffer: 4,
            base: 0,
            offset: 0,
            length: 4096,
            device,
            inode,
            card: String::new(),
            service: String::new(),
            secret: Secret::from_words([0, 0]),
        }
    }

    #[test]
    fn receipt_has_its_limit_beside_the_time_in_which_the_process_stands_still() {
        let (here, there) = UnixStream::pair().unwrap();
        let stopped = Instant::now().checked_sub(Duration::from_secs(3600)).unwrap();
        let limit = |limit| Some(TimeLimit::new(limit, stopped));
        send_all(here.as_fd(), &[7]).unwrap();
        let mut byte = [0];
        receive_until(there.as_fd(), &mut byte, limit(Duration::from_secs(60))).unwrap().unwrap();
        assert_eq!(byte, [7]);
        let late = receive_until(there.as_fd(), &mut byte, limit(Duration::from_millis(30))).unwrap_err();
        assert_eq!(late.code(), Code::DeadlineExceeded);
    }

    #[test]
    fn buffer_arrives_under_another_number() {
        let (here, there) = UnixStream::pair().unwrap();
        let file = file();
        send(&here, &handle(&file), file.as_fd()).unwrap();
        let (arrived, copy) = receive(&there).unwrap().unwrap();
        assert_eq!(arrived, handle(&file));
        assert_eq!(identity(copy.as_fd()).unwrap(), identity(file.as_fd()).unwrap());
        drop(here);
        assert!(receive(&there).unwrap().is_none(), "a hang-up is no error");
    }

    #[test]
    fn handle_and_descriptor_that_do_not_belong_together_are_refused() {
        let (here, there) = UnixStream::pair().unwrap();
        let (one, other) = (file(), file());
        send(&here, &handle(&one), other.as_fd()).unwrap();
        assert!(receive(&there).unwrap_err().message().contains("something else"));
        send_all(here.as_fd(), &handle(&one).encode()).unwrap();
        assert!(receive(&there).unwrap_err().message().contains("without its descriptor"));
        send_all(here.as_fd(), &[1, 2, 3]).unwrap();
        drop(here);
        assert!(receive(&there).unwrap_err().message().contains("ends early"));
    }

    #[test]
    fn too_many_descriptors_are_refused_and_closed() {
        let (here, there) = UnixStream::pair().unwrap();
        let file = file();
        let files = [file.as_fd(), file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        let bytes = handle(&file).encode();
        sendmsg(&here, &[IoSlice::new(&bytes)], &mut control, SendFlags::empty()).unwrap();
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        assert!(receive(&there).is_err());
        assert!(open() <= before, "nothing that arrived is left open");
    }
}
