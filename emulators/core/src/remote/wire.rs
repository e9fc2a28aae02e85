// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The messages, and how they are sent with files.

use hal_kernel::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The protocol version, which both sides must have.
pub(super) const VERSION: u64 = 0x4841_4c52_0000_0002;

/// The longest message that sockets take by default.
pub(super) const LONGEST: usize = 128 << 10;

/// How many files one message may carry.
pub(super) const FILES: usize = 253;

/// The first message of each connection, to the program.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Hello {
    pub(super) version: u64,
    /// The session that this connection begins, if it becomes a control connection.
    pub(super) session: u64,
    pub(super) workers: u64,
}

/// The answer to it: the role of the connection. A [`NumberMessage`] answers it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct ConnectionRole {
    /// The session.
    pub(super) session: u64,
    /// The worker's number, or [`CONTROL`].
    pub(super) worker: u64,
}

/// In place of a worker's number.
pub(super) const CONTROL: u64 = u64::MAX;

/// A request on a control connection.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct ControlRequest {
    /// [`LOAD`] or [`UNLOAD`].
    pub(super) what: u64,
    /// The program's key for an executable, or the emulator's number for it.
    pub(super) number: u64,
}

pub(super) const LOAD: u64 = 1;
pub(super) const UNLOAD: u64 = 2;

/// An answer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct NumberMessage {
    pub(super) number: u64,
}

/// A call of an executable. Its constants follow, then its bindings.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct CallMessage {
    /// The program's key for the executable.
    pub(super) key: u64,
    pub(super) function: u64,
    /// The range of workgroups.
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) concurrency: u64,
    pub(super) workgroup_size: [u32; 3],
    pub(super) workgroups: [u32; 3],
    pub(super) local_memory: u32,
    pub(super) constants: u32,
    pub(super) bindings: u64,
}

/// The memory of a binding.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Binding {
    /// The number of a file of this message, or [`OWN`].
    pub(super) file: u64,
    /// An offset in the file, or an address in the program.
    pub(super) place: u64,
    pub(super) length: u64,
}

/// In place of a file's number: memory of the program itself.
pub(super) const OWN: u64 = u64::MAX;

/// The outcome of a call. The message of a failure follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct CallResult {
    pub(super) key: u64,
    /// The number of a failure's [`Code`](hal_backend::Code), or [`SUCCESS`].
    pub(super) code: u64,
}

/// In place of a failure's code.
pub(super) const SUCCESS: u64 = 0;

/// Sends a message.
pub(super) fn send(socket: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    if bytes.len() > LONGEST || files.len() > FILES {
        return Err(Errno::MSGSIZE);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::MSGSIZE);
    }
    loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
            Ok(sent) if sent == bytes.len() => return Ok(()),
            Ok(_) => return Err(Errno::MSGSIZE),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Receives a message into `bytes`, and returns its length and its files. Returns nothing if the connection has
/// ended.
pub(super) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), Errno> {
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        match recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => {
                let mut files = Vec::new();
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(rights) = message {
                        files.extend(rights);
                    }
                }
                return Ok((message.bytes, files));
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Receives a message of one kind; nothing, if the connection has ended.
pub(super) fn expect<T: FromBytes>(socket: BorrowedFd<'_>) -> Result<Option<T>, Errno> {
    let mut bytes = [0; 128];
    let (length, _) = receive(socket, &mut bytes)?;
    if length == 0 {
        return Ok(None);
    }
    let message = bytes.get(..length).and_then(|bytes| T::read_from_bytes(bytes).ok());
    message.map(Some).ok_or(Errno::PROTO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::os::fd::AsFd;

    proptest! {
        #[test]
        fn fuzz_any_message_is_of_its_kind_or_refused(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
            let (here, there) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            (0..4).for_each(|_| send(here.as_fd(), &bytes, &[]).unwrap());
            fn kind<T: FromBytes>(socket: BorrowedFd<'_>) -> Option<usize> {
                expect::<T>(socket).ok().map(|message| message.map_or(0, |_| size_of::<T>()))
            }
            let there = there.as_fd();
            let kinds =
                [kind::<Hello>, kind::<ConnectionRole>, kind::<ControlRequest>, kind::<NumberMessage>];
            let lengths = [24, 16, 16, 8];
            for (kind, length) in kinds.into_iter().zip(lengths) {
                prop_assert_eq!(kind(there), (bytes.len() == length).then_some(length));
            }
        }
    }
}
