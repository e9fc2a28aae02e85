// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The importer's half of a bounce: a connection to the exporter's [service](super::service).

use super::export::{PAGE, is_here};
use super::handle::Handle;
use super::proof::{Side, Talk, random};
use super::service::{
    ANSWER, REPLY, address, is_of_this_user, message, most_text, peer_of, split_reply, words,
};
use super::socket::{failed, receive_until, send_all, send_with};
use crate::dma::Dma;
use crate::kmd::map_shared;
use crate::memory::{Memory, Region};
use hal_backend::{Code, Failure};
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How much goes through the host at a time.
pub(super) const STAGE: u64 = 4 << 20;

/// A buffer of another process that is read and written through host memory. It keeps no dma-buf: the exporter has the memory,
/// and could not let go of its card while somebody else held one.
pub(super) struct Bounce {
    /// Nothing once the two sides are out of step, or one is gone.
    connection: Mutex<Option<OwnedFd>>,
    staging: Memory,
    buffer: u64,
    patience: Duration,
}

impl Bounce {
    /// Connects to whoever exports a buffer, makes sure that it is who the handle says, and brings shared memory.
    pub(super) fn connect(dma: &Arc<Dma>, handle: &Handle, patience: Duration) -> Result<Self, Failure> {
        let Handle { buffer, process, .. } = *handle;
        let what = format!(
            "the bytes of buffer {buffer} have to come from process {process}, which cannot be reached"
        );
        let gone = |errno| failed(&what, errno);
        if handle.service.is_empty() {
            return Err(gone(Errno::CONNREFUSED));
        }
        let connection =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(gone)?;
        // Also how long connecting may take, if the exporter accepts nobody.
        set_socket_timeout(&connection, Timeout::Send, Some(patience)).map_err(gone)?;
        connect(&connection, &address(&handle.service)?).map_err(gone)?;
        let talk = meet(&connection, handle, Instant::now() + patience)?;

        let length = STAGE.min(handle.length).next_multiple_of(PAGE);
        let shared = memfd_create("hal-gaudi-bounce", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(gone)?;
        ftruncate(&shared, length).map_err(gone)?;
        // The exporter would not survive it if this became shorter, and asks that it cannot.
        fcntl_add_seals(&shared, SealFlags::SHRINK).map_err(gone)?;
        let size = usize::try_from(length).map_err(|_| gone(Errno::OVERFLOW))?;
        let range = map_shared(shared.as_fd(), size, 0).map_err(gone)?;
        let region = Region::host(dma.card(), range)
            .map_err(|errno| dma.card().failure("shared memory could not be pinned", errno))?;
        let proof = handle.secret.proof(Side::Importer, talk, length);
        send_with(connection.as_fd(), &message(&[proof, length]), shared.as_fd())?;
        let bounce = Self {
            connection: Mutex::new(Some(connection)),
            staging: Memory::whole(region),
            buffer,
            patience,
        };
        bounce.exchange(&[])?;
        Ok(bounce)
    }

    /// Where this card finds the shared memory.
    pub(super) fn staging(&self) -> u64 {
        self.staging.address()
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.lock().is_some()
    }

    /// Does something for each piece that the staging memory has room for. One at a time: there is one staging memory.
    pub(super) fn pieces(
        &self,
        length: u64,
        mut each: impl FnMut(u64, u64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut done = 0;
        while done < length {
            let piece = self.staging.length().min(length - done);
            each(done, piece)?;
            done += piece;
        }
        Ok(())
    }

    /// Has the exporter's card move a piece, and waits for it.
    pub(super) fn ask(&self, offset: u64, length: u64, write: bool) -> Result<(), Failure> {
        self.exchange(&message(&[offset, length, u64::from(write)]))
    }

    /// Sends a request and takes the reply. After anything but a whole reply the connection is of no use: what comes next on it
    /// could be the answer to something else.
    fn exchange(&self, request: &[u8]) -> Result<(), Failure> {
        let mut connection = self.connection.lock();
        let gone = || {
            let message = format!("the exporter of buffer {} is gone, and the bytes with it", self.buffer);
            Failure::new(Code::Unavailable, message)
        };
        let open = connection.as_ref().ok_or_else(gone)?;
        let outcome = match send_all(open.as_fd(), request) {
            Ok(()) => self.reply(open),
            Err(_) => Err(gone()),
        };
        match outcome {
            Ok(Some((0, _))) => Ok(()),
            Ok(Some((code, text))) => {
                Err(Failure::new(Code::from_number(code), format!("the exporter says: {text}")))
            }
            Ok(None) => {
                *connection = None;
                Err(gone())
            }
            Err(failure) => {
                *connection = None;
                Err(failure)
            }
        }
    }

    /// The reply to a request: a status code, and the words of a failure. Nothing if the exporter has hung up.
    fn reply(&self, connection: &OwnedFd) -> Result<Option<(u32, String)>, Failure> {
        let deadline = Some(Instant::now() + self.patience);
        let silent = |failure: Failure| match failure.code() {
            Code::DeadlineExceeded => Failure::new(
                Code::DeadlineExceeded,
                format!(
                    "the exporter of buffer {} has not answered for {:?} (peer_timeout)",
                    self.buffer, self.patience
                ),
            ),
            _ => failure,
        };
        let mut reply = [0; REPLY];
        if receive_until(connection.as_fd(), &mut reply, deadline).map_err(silent)?.is_none() {
            return Ok(None);
        }
        let (code, length) = split_reply(&reply);
        let mut text = vec![0; most_text(length)?];
        if !text.is_empty()
            && receive_until(connection.as_fd(), &mut text, deadline).map_err(silent)?.is_none()
        {
            return Ok(None);
        }
        Ok(Some((code, String::from_utf8_lossy(&text).into_owned())))
    }
}

/// Makes sure that whoever listens under a handle's name is its exporter, before it is told anything of use.
fn meet(connection: &OwnedFd, handle: &Handle, deadline: Instant) -> Result<Talk, Failure> {
    let Handle { buffer, process, .. } = *handle;
    let other = |who: String| {
        let message =
            format!("who answers for buffer {buffer} is {who}, and not its exporter, process {process}");
        Failure::new(Code::PermissionDenied, message)
    };
    let peer = peer_of(connection)?;
    if !is_of_this_user(&peer) {
        return Err(other(format!("user {}", peer.uid.as_raw())));
    }
    let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).unwrap_or(0);
    if is_here(handle.namespace) && pid != process {
        return Err(other(format!("process {pid}")));
    }
    let mut talk = Talk { buffer, importer: random()?, exporter: 0 };
    send_all(connection.as_fd(), &message(&[buffer, talk.importer]))?;
    let mut answer = [0; ANSWER];
    let answered = receive_until(connection.as_fd(), &mut answer, Some(deadline)).map_err(|failure| {
        let message = format!(
            "process {process}, the exporter of buffer {buffer}, does not answer: {}",
            failure.message()
        );
        Failure::new(failure.code(), message)
    })?;
    if answered.is_none() {
        let message = format!("process {process} does not export buffer {buffer} any more");
        return Err(Failure::new(Code::Unavailable, message));
    }
    let proof;
    [talk.exporter, proof] = words(&answer);
    if proof != handle.secret.proof(Side::Exporter, talk, 0) {
        return Err(other("one that does not know its secret".to_owned()));
    }
    Ok(talk)
}
