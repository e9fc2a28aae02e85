// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The exporter's half of a bounce: a service for cards that cannot map the exporter's memory.
//!
//! A process that exports memory listens on a local socket with a random name, which goes with every handle. An
//! importer connects, with a piece of shared host memory if its kernel lacks the vendor's operation. Both pin that
//! memory for their card. A request names a part of the buffer and a direction; the exporter's card writes that part
//! into the shared memory, or reads it from there, and the reply reports the end.
//!
//! | from | bytes | |
//! |---|---|---|
//! | importer | 16 | the buffer, a number for this connection |
//! | exporter | 16 | its own number, its proof |
//! | importer | 16 | its proof, how long the shared memory is; and the memory's descriptor, if it is of any length |
//! | exporter | 8, and a text | a status code, the text's length |
//! | importer | 24, again and again | an offset, a length, 1 to write the buffer or 0 to read it |
//! | exporter | 8, and a text | as above |
//! | exporter | 8, and a text | once, whenever its card is lost: the code with [`NOTICE`], and why. Then it hangs up |
//!
//! A kernel tells the processes that have opened a card that it is about to be reset, and not those that have mapped
//! a dma-buf of it. So an importer that wants no bytes connects too.
//!
//! # Access
//!
//! A process of the same user, root's among them and no other, that [proves](super::proof) that it has the buffer's
//! secret. Until then it costs a thread and a few bytes, for [`HANDSHAKE`] at most, and there are no more than
//! [`UNPROVED`] such: the oldest goes when another one comes. An importer checks likewise whom it has found: a name
//! of a process that is gone can be taken by any process.
//!
//! A connection is for one buffer. When that is no longer exported the connection ends, and the pinned memory goes.

use super::bounce::STAGE;
use super::export::Exported;
use super::proof::{ConnectionId, Secret, Side, random};
use super::socket::{failed, limit_wait, receive_until, receive_with, send_all};
use crate::dma::Dma;
use crate::generation::Lane;
use crate::kmd::map_shared;
use crate::memory::{Memory, Region};
use hal_backend::{Code, Failure, HostRange, TimeLimit};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{SealFlags, fcntl_get_seals};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, UCred, accept_with, bind,
    listen, shutdown, socket_with,
};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long to sleep while there is nothing to accept a connection with.
const PAUSE: Duration = Duration::from_millis(10);

/// How long a connection may take to prove that it has the secret.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);

/// How long the other side may take to read a reply.
const READING: Duration = Duration::from_secs(30);

/// How many connections there may be that have proved nothing yet.
const UNPROVED: usize = 16;

/// How many there may be that have. Each has up to [`STAGE`] bytes of host memory pinned.
const IMPORTERS: usize = 256;

/// The first message of an importer.
const CALL: usize = 16;

/// The exporter's answer to it.
pub(super) const ANSWER: usize = 16;

/// The importer's proof.
const PROOF: usize = 16;

const REQUEST: usize = 24;

/// Marks the code of a notice, which is no reply: the last message of a connection, that its buffer's card is lost.
pub(super) const NOTICE: u32 = 1 << 31;

/// How long the sessions in the middle of a message may take, together, when a card is lost.
pub(super) const FAREWELL: Duration = Duration::from_millis(100);

/// A reply: a status code, and how long the text behind it is.
pub(super) const REPLY: usize = 8;

/// The longest text of a reply.
const TEXT: usize = 4096;

/// A buffer that is served.
struct OfferedBuffer {
    exported: Weak<Exported>,
    secret: Secret,
}

/// A connection, and the buffer that it may use once it has proved that it may.
struct Session {
    connection: Arc<OwnedFd>,
    /// Held while a message is sent to the other side.
    sending: Arc<Mutex<()>>,
    buffer: Option<u64>,
}

#[derive(Default)]
struct ServiceState {
    /// The name of this process's socket, if it listens.
    name: Option<String>,
    offers: HashMap<u64, OfferedBuffer>,
    /// By a number that grows.
    sessions: BTreeMap<u64, Session>,
    last: u64,
}

/// The buffers that this process serves, and its sessions.
struct Service {
    state: Mutex<ServiceState>,
    /// A session has ended.
    ended: Condvar,
}

static SERVICE: std::sync::LazyLock<Service> =
    std::sync::LazyLock::new(|| Service { state: Mutex::default(), ended: Condvar::new() });

/// Words of a message.
pub(super) fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, part) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = part.try_into().map_or(0, u64::from_le_bytes);
    }
    words
}

/// A message of words.
pub(super) fn message(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The code of a reply, and the length of its text.
pub(super) fn split_reply(reply: &[u8; REPLY]) -> (u32, u32) {
    let [code @ .., _, _, _, _] = *reply;
    let [_, _, _, _, length @ ..] = *reply;
    (u32::from_le_bytes(code), u32::from_le_bytes(length))
}

/// The length of a reply's text, if it is one.
pub(super) fn most_text(length: u32) -> Result<usize, Failure> {
    usize::try_from(length).ok().filter(|&length| length <= TEXT).ok_or_else(|| {
        let message = format!("the other side is out of step: its reply has {length} bytes of text");
        Failure::new(Code::DataLoss, message)
    })
}

/// Serves a buffer from now on: under which name.
pub(super) fn offer(buffer: u64, secret: Secret, exported: &Arc<Exported>) -> Result<String, Failure> {
    let mut state = SERVICE.state.lock();
    let name = match &state.name {
        Some(name) => name.clone(),
        None => state.name.insert(start()?).clone(),
    };
    state.offers.insert(buffer, OfferedBuffer { exported: Arc::downgrade(exported), secret });
    Ok(name)
}

/// Serves a buffer no longer: its importers are hung up on, and what was pinned for it goes.
pub(super) fn withdraw(buffer: u64) {
    let mut state = SERVICE.state.lock();
    state.offers.remove(&buffer);
    for session in state.sessions.values().filter(|session| session.buffer == Some(buffer)) {
        hang_up(session);
    }
}

/// The card of a buffer is lost: its importers are told why, and hung up on. One that does not listen does not hold
/// this up.
pub(super) fn lose(buffer: u64, why: &str) {
    let importers: Vec<_> = {
        let mut state = SERVICE.state.lock();
        state.offers.remove(&buffer);
        let of_buffer = state.sessions.values().filter(|session| session.buffer == Some(buffer));
        of_buffer.map(|session| (session.connection.clone(), session.sending.clone())).collect()
    };
    let notice = words_of(Code::Unavailable as u32 | NOTICE, why);
    let end = Instant::now() + FAREWELL;
    for (connection, sending) in importers {
        if let Some(_turn) = sending.try_lock_until(end) {
            // An importer that has not even read what it asked for learns it from the connection's end.
            let _ = rustix::net::send(&connection, &notice, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
        let _ = shutdown(&connection, Shutdown::Both);
    }
}

/// Ends a session's connection; its thread goes when it sees that.
fn hang_up(session: &Session) {
    // A socket without a connection has ended already.
    let _ = shutdown(&session.connection, Shutdown::Both);
}

/// The address of a service.
pub(super) fn address(name: &str) -> Result<SocketAddrUnix, Failure> {
    SocketAddrUnix::new_abstract_name(name.as_bytes())
        .map_err(|errno| failed(&format!("the service {name:?} has no address"), errno))
}

/// The process at the other end.
pub(super) fn peer_of(connection: &OwnedFd) -> Result<UCred, Failure> {
    socket_peercred(connection).map_err(|errno| failed("the other side is unknown", errno))
}

/// True if a peer belongs to this user. Root is a user like any other: its memory is not for other users.
pub(super) fn is_of_this_user(peer: &UCred) -> bool {
    peer.uid == rustix::process::geteuid()
}

fn start() -> Result<String, Failure> {
    // Every process on the machine can read the names that are listened at.
    let name = format!("gaudi-{:016x}{:08x}", random()?, random()? >> 32);
    let wrong = |errno| failed("memory cannot be shared through the host: no socket", errno);
    let listener =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(wrong)?;
    bind(&listener, &address(&name)?).map_err(wrong)?;
    listen(&listener, 16).map_err(wrong)?;
    thread(move || {
        loop {
            match accept_with(&listener, SocketFlags::CLOEXEC) {
                Ok(connection) => SERVICE.accept_session(connection),
                // The client is gone again.
                Err(Errno::INTR | Errno::CONNABORTED | Errno::AGAIN) => {}
                // This process is out of something for now; a client that connects waits.
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    std::thread::sleep(PAUSE);
                }
                Err(_) => return,
            }
        }
    })?;
    Ok(name)
}

fn thread(body: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let name = "gaudi-share";
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    started.map(drop).map_err(|error| Failure::without_thread(name, &error))
}

impl Service {
    /// Gives a connection a thread, if it is of this user's. The reason of its end is sent to neither side: the
    /// client reports what it wanted.
    fn accept_session(&'static self, connection: OwnedFd) {
        if !peer_of(&connection).is_ok_and(|peer| is_of_this_user(&peer)) {
            return;
        }
        let Some(number) = self.admit(Arc::new(connection)) else { return };
        let started = thread(move || {
            // The other side's error, which was sent to it if it could be.
            let _ = self.serve(number);
            self.leave(number);
        });
        if started.is_err() {
            self.leave(number);
        }
    }

    /// Takes a connection in, and makes room among those that have proved nothing. Says under which number.
    fn admit(&self, connection: Arc<OwnedFd>) -> Option<u64> {
        let mut state = self.state.lock();
        let deadline = Instant::now() + HANDSHAKE;
        loop {
            let mut unproved = state.sessions.values().filter(|session| session.buffer.is_none());
            let oldest = unproved.next();
            if oldest.is_none() || unproved.count() + 1 < UNPROVED {
                break;
            }
            oldest.map(hang_up);
            if self.ended.wait_until(&mut state, deadline).timed_out() {
                return None;
            }
        }
        state.last += 1;
        let number = state.last;
        state.sessions.insert(number, Session { connection, sending: Arc::default(), buffer: None });
        Some(number)
    }

    fn leave(&self, number: u64) {
        let session = self.state.lock().sessions.remove(&number);
        self.ended.notify_all();
        drop(session);
    }

    /// Serves one connection until it ends.
    fn serve(&self, number: u64) -> Result<(), Failure> {
        let found = {
            let state = self.state.lock();
            state.sessions.get(&number).map(|session| (session.connection.clone(), session.sending.clone()))
        };
        let Some((connection, sending)) = found else { return Ok(()) };
        set_socket_timeout(&connection, Timeout::Send, Some(READING))
            .map_err(|errno| failed("a socket cannot be given a limit", errno))?;
        let Some((buffer, length, file)) = self.handshake(&connection)? else { return Ok(()) };
        let accepted =
            self.admit_importer(number, buffer).and_then(|exported| Importer::new(exported, file, length));
        reply(&connection, &sending, accepted.as_ref().map(|_| ()))?;
        let mut importer = accepted?;
        limit_wait(connection.as_fd(), None)?;
        let mut request = [0; REQUEST];
        while receive_with(connection.as_fd(), &mut request)?.is_some() {
            reply(&connection, &sending, importer.answer(&request).as_ref().copied())?;
        }
        Ok(())
    }

    /// The handshake: both sides prove that they have the secret, and the client names the buffer and the length of its
    /// shared memory. `None` if there is nothing for this client.
    fn handshake(&self, connection: &Arc<OwnedFd>) -> Result<Option<(u64, u64, Option<OwnedFd>)>, Failure> {
        let limit = Some(TimeLimit::new(HANDSHAKE, Instant::now()));
        let mut call = [0; CALL];
        if receive_until(connection.as_fd(), &mut call, limit)?.is_none() {
            return Ok(None);
        }
        let [buffer, importer] = words(&call);
        let Some(secret) = self.state.lock().offers.get(&buffer).map(|offer| offer.secret) else {
            return Ok(None);
        };
        let id = ConnectionId { buffer, importer, exporter: random()? };
        let answer = message(&[id.exporter, secret.proof(Side::Exporter, id, 0)]);
        send_all(connection.as_fd(), &answer)?;
        let mut shown = [0; PROOF];
        let Some(file) = receive_until(connection.as_fd(), &mut shown, limit)? else {
            return Ok(None);
        };
        let [proof, length] = words(&shown);
        let is_known = proof == secret.proof(Side::Importer, id, length);
        Ok(is_known.then_some((buffer, length, file)))
    }

    /// Lets a connection use a buffer, once the other side has proved that it may.
    fn admit_importer(&self, number: u64, buffer: u64) -> Result<Weak<Exported>, Failure> {
        let mut state = self.state.lock();
        let importers = state.sessions.values().filter(|session| session.buffer.is_some()).count();
        if importers >= IMPORTERS {
            let message = format!("it serves {importers} imports already; drop some");
            return Err(Failure::new(Code::ResourceExhausted, message));
        }
        let exported = state.offers.get(&buffer).map(|offer| offer.exported.clone());
        let exported = exported.ok_or_else(|| not_exported(buffer))?;
        if let Some(session) = state.sessions.get_mut(&number) {
            session.buffer = Some(buffer);
        }
        Ok(exported)
    }
}

fn not_exported(buffer: u64) -> Failure {
    Failure::new(Code::NotFound, format!("buffer {buffer} is not exported any more"))
}

fn reply(
    connection: &Arc<OwnedFd>,
    sending: &Mutex<()>,
    outcome: Result<(), &Failure>,
) -> Result<(), Failure> {
    let (code, text) = match outcome {
        Ok(()) => (0, ""),
        Err(failure) => (failure.code() as u32, failure.message()),
    };
    let _turn = sending.lock();
    send_all(connection.as_fd(), &words_of(code, text))
}

/// A code and a text, as they are sent.
fn words_of(code: u32, text: &str) -> Vec<u8> {
    let text = text.as_bytes().get(..text.len().min(TEXT)).unwrap_or_default();
    let mut reply = Vec::with_capacity(REPLY + text.len());
    reply.extend_from_slice(&code.to_le_bytes());
    reply.extend_from_slice(&u32::try_from(text.len()).unwrap_or(0).to_le_bytes());
    reply.extend_from_slice(text);
    reply
}

/// A peer that may use a buffer, with the host memory that it brought for that. No memory if it only wants to be told
/// of the buffer's end.
struct Importer {
    exported: Weak<Exported>,
    shared: Option<HostRange>,
    /// The memory as the exporter's card sees it, from the first request on.
    pinned: Option<Memory>,
}

impl Importer {
    fn new(exported: Weak<Exported>, file: Option<OwnedFd>, length: u64) -> Result<Self, Failure> {
        let file = match (file, length) {
            (Some(file), _) => file,
            (None, 0) => return Ok(Self { exported, shared: None, pinned: None }),
            (None, _) => {
                let message = format!("{length} bytes of shared memory came without a descriptor");
                return Err(Failure::new(Code::InvalidArgument, message));
            }
        };
        let refuse = |why: String| Failure::new(Code::InvalidArgument, why);
        let size =
            usize::try_from(length).ok().filter(|_| (1..=STAGE).contains(&length)).ok_or_else(|| {
                refuse(format!("{length} bytes of shared memory are not between 1 and {STAGE}"))
            })?;
        // Shorter than it says, it would end this process when it is touched.
        let status = rustix::fs::fstat(&file)
            .map_err(|errno| failed("shared memory could not be looked at", errno))?;
        let seals = fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
        if u64::try_from(status.st_size).unwrap_or(0) < length || !seals.contains(SealFlags::SHRINK) {
            return Err(refuse("the shared memory is shorter than was said, or may become so".to_owned()));
        }
        let shared = map_shared(file.as_fd(), size, 0)
            .map_err(|errno| failed("shared memory could not be mapped", errno))?;
        Ok(Self { exported, shared: Some(shared), pinned: None })
    }

    fn answer(&mut self, request: &[u8; REQUEST]) -> Result<(), Failure> {
        let [offset, length, write] = words(request);
        let gone = || Failure::new(Code::NotFound, "the buffer is not exported any more");
        let exported = self.exported.upgrade().ok_or_else(gone)?;
        let most = self.shared.as_ref().map_or(0, HostRange::length);
        let address =
            exported.address(offset, length).filter(|_| (1..=most).contains(&length)).ok_or_else(|| {
                let message = format!("{length} bytes at {offset} are not inside the buffer and the memory");
                Failure::new(Code::OutOfRange, message)
            })?;
        let dma = exported.dma();
        let staging = self.pin(dma)?.address();
        let request = if write == 1 {
            dma.transfer(Lane::HostToDevice, staging, address, length)?
        } else {
            dma.transfer(Lane::DeviceToHost, address, staging, length)?
        };
        request.wait()
    }

    fn pin(&mut self, dma: &Arc<Dma>) -> Result<&Memory, Failure> {
        if self.pinned.is_none() {
            let nothing = || Failure::new(Code::OutOfRange, "no memory was brought for the bytes");
            let region = Region::host(dma.card(), self.shared.clone().ok_or_else(nothing)?)
                .map_err(|errno| dma.card().failure("shared memory could not be pinned", errno))?;
            self.pinned = Some(Memory::whole(region));
        }
        self.pinned.as_ref().ok_or_else(|| Failure::new(Code::Internal, "shared memory is not pinned"))
    }
}
