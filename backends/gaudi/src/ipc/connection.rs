// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A connection to the [service](super::service) of a process that exports: requests and replies, and the news that
//! its card is lost.
//!
//! That news comes unasked. A request under way finds it where the reply would be; for all others one thread of this
//! process [listens](super::loss_monitor).

use super::export::is_here;
use super::handle::Handle;
use super::proof::{ConnectionId, Side, random};
use super::service::{
    ANSWER, NOTICE, REPLY, address, is_of_this_user, message, most_text, peer_of, split_reply, words,
};
use super::socket::{failed, receive_until, send_all, send_with};
use hal_backend::{Code, Failure, TimeLimit};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, connect, recv, shutdown, socket_with,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// A connection whose other end has proved itself, before any memory was passed over it.
pub(super) struct Call<'a> {
    handle: &'a Handle,
    socket: OwnedFd,
    id: ConnectionId,
    patience: Duration,
}

/// A connection that the exporter has accepted.
pub(super) struct Connection {
    state: Mutex<ConnectionState>,
    buffer: u64,
    card: String,
    patience: Duration,
}

struct ConnectionState {
    /// `None` once the two sides are out of step, or one is gone.
    socket: Option<OwnedFd>,
    /// The exporter's last message: that its card is lost, and why.
    lost: Option<Failure>,
}

/// How long a last message may take that has begun or has arrived.
const LAST_MESSAGE_TIMEOUT: Duration = Duration::from_millis(100);

/// The result of polling a connection without a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollResult {
    /// Nothing so far.
    Nothing,
    /// A request is under way, and takes what arrives.
    Busy,
    /// It is over.
    Over,
}

/// The exporter of a buffer is not there.
pub(super) fn unreachable(handle: &Handle, errno: Errno) -> Failure {
    let Handle { buffer, process, .. } = handle;
    let what =
        format!("the bytes of buffer {buffer} have to come from process {process}, which cannot be reached");
    failed(&what, errno)
}

impl Connection {
    /// Connects to the exporter of a buffer, and checks that it is the one that the handle names.
    pub(super) fn call(handle: &Handle, patience: Duration) -> Result<Call<'_>, Failure> {
        let gone = |errno| unreachable(handle, errno);
        if handle.service.is_empty() {
            return Err(gone(Errno::CONNREFUSED));
        }
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(gone)?;
        // Also how long connecting may take, if the exporter accepts no connection.
        set_socket_timeout(&socket, Timeout::Send, Some(patience)).map_err(gone)?;
        connect(&socket, &address(&handle.service)?).map_err(gone)?;
        let id = meet(&socket, handle, TimeLimit::new(patience, Instant::now()))?;
        Ok(Call { handle, socket, id, patience })
    }

    /// True while a request can be sent.
    pub(super) fn is_open(&self) -> bool {
        self.state.lock().socket.is_some()
    }

    /// Why the other side's card is lost, if it said so; or that the other side is gone.
    pub(super) fn end(&self) -> Option<Failure> {
        let state = self.state.lock();
        let gone = || state.socket.is_none().then(|| self.gone());
        state.lost.clone().or_else(gone)
    }

    /// Why the other side's card is lost, if it said so.
    pub(super) fn lost(&self) -> Option<Failure> {
        self.state.lock().lost.clone()
    }

    /// Another descriptor of the connection, to poll.
    pub(super) fn descriptor(&self) -> Option<OwnedFd> {
        self.state.lock().socket.as_ref()?.try_clone().ok()
    }

    /// Takes a notice of the other side, if there is one. Never waits for long.
    pub(super) fn listen(&self) -> PollResult {
        let Some(mut state) = self.state.try_lock() else { return PollResult::Busy };
        let Some(socket) = &state.socket else { return PollResult::Over };
        let (first, flags) = (&mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        match recv(socket, &mut first[..], flags) {
            Err(Errno::AGAIN | Errno::INTR) => return PollResult::Nothing,
            Ok((1.., _)) => {
                let said = self.reply(socket, LAST_MESSAGE_TIMEOUT);
                self.conclude(&mut state, &said);
            }
            _ => {}
        }
        hang_up(&mut state);
        PollResult::Over
    }

    fn gone(&self) -> Failure {
        let message = format!("the exporter of buffer {} is gone, and the bytes with it", self.buffer);
        Failure::new(Code::Unavailable, message)
    }

    /// True if that was the last message.
    fn conclude(&self, state: &mut ConnectionState, said: &Result<Option<(u32, String)>, Failure>) -> bool {
        let Ok(Some((code, why))) = said else { return false };
        if code & NOTICE == 0 {
            return false;
        }
        let message = format!("the exporter's card, {}, is lost, and the bytes with it: {why}", self.card);
        state.lost.get_or_insert_with(|| Failure::new(Code::Unavailable, message));
        true
    }

    /// Sends a request and takes the reply. After anything but a whole reply the connection is of no use: what comes
    /// next on it could be the answer to something else.
    pub(super) fn exchange(&self, request: &[u8]) -> Result<(), Failure> {
        let mut state = self.state.lock();
        if let Some(lost) = &state.lost {
            return Err(lost.clone());
        }
        let socket = state.socket.as_ref().ok_or_else(|| self.gone())?;
        // If the request cannot be sent, the last message of the other side may still be there to be read.
        let sent = send_all(socket.as_fd(), request);
        let patience = if sent.is_ok() { self.patience } else { LAST_MESSAGE_TIMEOUT };
        let said = self.reply(socket, patience);
        if self.conclude(&mut state, &said) {
            hang_up(&mut state);
            return Err(state.lost.clone().unwrap_or_else(|| self.gone()));
        }
        let outcome = if sent.is_err() { Ok(None) } else { said };
        match outcome {
            Ok(Some((0, _))) => Ok(()),
            Ok(Some((code, text))) => {
                Err(Failure::new(Code::from_number(code), format!("the exporter says: {text}")))
            }
            Ok(None) => {
                hang_up(&mut state);
                Err(self.gone())
            }
            Err(failure) => {
                hang_up(&mut state);
                Err(failure)
            }
        }
    }

    /// The reply to a request: a status code, and the words of a failure. Nothing if the exporter has hung up.
    fn reply(&self, connection: &OwnedFd, patience: Duration) -> Result<Option<(u32, String)>, Failure> {
        let limit = Some(TimeLimit::new(patience, Instant::now()));
        let silent = |failure: Failure| match failure.code() {
            Code::DeadlineExceeded => Failure::new(
                Code::DeadlineExceeded,
                format!(
                    "the exporter of buffer {} has not answered for {patience:?} (peer_timeout)",
                    self.buffer
                ),
            ),
            _ => failure,
        };
        let mut reply = [0; REPLY];
        if receive_until(connection.as_fd(), &mut reply, limit).map_err(silent)?.is_none() {
            return Ok(None);
        }
        let (code, length) = split_reply(&reply);
        let mut text = vec![0; most_text(length)?];
        if !text.is_empty() && receive_until(connection.as_fd(), &mut text, limit).map_err(silent)?.is_none()
        {
            return Ok(None);
        }
        Ok(Some((code, String::from_utf8_lossy(&text).into_owned())))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        hang_up(self.state.get_mut());
    }
}

/// Ends a connection, for all other descriptors of it too.
fn hang_up(state: &mut ConnectionState) {
    if let Some(socket) = state.socket.take() {
        // A socket without a connection has ended already.
        let _ = shutdown(&socket, Shutdown::Both);
    }
}

impl Call<'_> {
    /// Offers shared memory, or none, and is accepted.
    pub(super) fn enter(self, memory: Option<(BorrowedFd<'_>, u64)>) -> Result<Connection, Failure> {
        let Self { handle, socket, id, patience } = self;
        let length = memory.map_or(0, |(_, length)| length);
        let shown = message(&[handle.secret.proof(Side::Importer, id, length), length]);
        match memory {
            Some((file, _)) => send_with(socket.as_fd(), &shown, file)?,
            None => send_all(socket.as_fd(), &shown)?,
        }
        let connection = Connection {
            state: Mutex::new(ConnectionState { socket: Some(socket), lost: None }),
            buffer: handle.buffer,
            card: handle.card.clone(),
            patience,
        };
        connection.exchange(&[])?;
        Ok(connection)
    }
}

/// Makes sure that the listener under a handle's name is its exporter, before anything of use is sent to it.
fn meet(connection: &OwnedFd, handle: &Handle, limit: TimeLimit) -> Result<ConnectionId, Failure> {
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
    let mut id = ConnectionId { buffer, importer: random()?, exporter: 0 };
    send_all(connection.as_fd(), &message(&[buffer, id.importer]))?;
    let mut answer = [0; ANSWER];
    let answered = receive_until(connection.as_fd(), &mut answer, Some(limit)).map_err(|failure| {
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
    [id.exporter, proof] = words(&answer);
    if proof != handle.secret.proof(Side::Exporter, id, 0) {
        return Err(other("one that does not know its secret".to_owned()));
    }
    Ok(id)
}
