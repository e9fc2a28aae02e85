//! The exporter's half of a bounce: what lets another card have the bytes of memory that it cannot map.
//!
//! A process that exports memory on a kernel without the vendor's operation listens on a socket of the local machine, under
//! a name that goes with every handle. Whoever imports connects, and brings a piece of shared host memory. Both pin it
//! for their card. A request names a buffer, a part of it and a direction; the exporter's card writes that part into the
//! shared memory, or reads it from there, and the reply says that it is done.
//!
//! Only processes of the same user are served, and only those that know the exporter's number, which is as good as
//! secret: it goes with the handles.
//!
//! One thread accepts and each connection has one of its own, asleep between requests. They live as long as the process.

use super::PROCESS;
use super::export::Exported;
use super::socket::{failed, receive_with, send_all};
use crate::dma::Dma;
use crate::generation::Lane;
use crate::kmd::map_shared;
use crate::memory::{Memory, Region};
use hal_backend::{Code, Failure, HostRange};
use parking_lot::Mutex;
use rustix::fs::{SealFlags, fcntl_get_seals};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long to sleep while there is nothing to accept a connection with.
const PAUSE: Duration = Duration::from_millis(10);

/// How much shared memory a connection may bring.
const MOST: u64 = 256 << 20;

/// What a connection begins with: the exporter's number and how long the shared memory is.
pub(super) const HELLO: usize = 16;

/// A request: the buffer, an offset in it, a length, and 1 to write the buffer or 0 to read it.
pub(super) const REQUEST: usize = 32;

/// A reply: a status code, and how long the message behind it is.
pub(super) const REPLY: usize = 8;

/// What this process serves.
#[derive(Default)]
struct Service {
    name: String,
    exports: HashMap<u64, Weak<Exported>>,
}

static SERVICE: Mutex<Option<Service>> = Mutex::new(None);

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

/// Serves a buffer from now on: under which name.
pub(super) fn offer(number: u64, exported: &Arc<Exported>) -> Result<String, Failure> {
    let mut service = SERVICE.lock();
    if service.is_none() {
        *service = Some(start()?);
    }
    let Some(service) = &mut *service else { return Ok(String::new()) };
    service.exports.insert(number, Arc::downgrade(exported));
    Ok(service.name.clone())
}

/// Serves a buffer no longer.
pub(super) fn withdraw(number: u64) {
    if let Some(service) = &mut *SERVICE.lock() {
        service.exports.remove(&number);
    }
}

/// The address of a service.
pub(super) fn address(name: &str) -> Result<SocketAddrUnix, Failure> {
    SocketAddrUnix::new_abstract_name(name.as_bytes())
        .map_err(|errno| failed(&format!("the service {name:?} has no address"), errno))
}

fn start() -> Result<Service, Failure> {
    // The number of a process is not its secret, so the name is another one.
    let name = format!("hal-gaudi-{}-{:x}", std::process::id(), PROCESS.rotate_left(32) & 0xff_ffff);
    let wrong = |errno| failed("memory cannot be shared through the host: no socket", errno);
    let listener =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(wrong)?;
    bind(&listener, &address(&name)?).map_err(wrong)?;
    listen(&listener, 16).map_err(wrong)?;
    thread("gaudi-share", move || {
        loop {
            match accept_with(&listener, SocketFlags::CLOEXEC) {
                // Nobody is told why a connection ends but by its end: the other side says what it wanted.
                Ok(connection) => drop(thread("gaudi-share", move || drop(serve(&connection)))),
                // Whoever connected is gone again.
                Err(Errno::INTR | Errno::CONNABORTED | Errno::AGAIN) => {}
                // This process is out of something for now; who connects waits.
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    std::thread::sleep(PAUSE);
                }
                Err(_) => return,
            }
        }
    })?;
    Ok(Service { name, exports: HashMap::new() })
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    started.map(drop).map_err(|error| {
        Failure::new(
            Code::ResourceExhausted,
            format!("memory cannot be shared through the host: no thread: {error}"),
        )
    })
}

/// Serves one connection until it ends.
fn serve(connection: &OwnedFd) -> Result<(), Failure> {
    let peer = rustix::net::sockopt::socket_peercred(connection)
        .map_err(|errno| failed("the other side is unknown", errno))?;
    let refuse = |why: &str| Failure::new(Code::PermissionDenied, why);
    if peer.uid != rustix::process::geteuid() && !rustix::process::geteuid().is_root() {
        return Err(refuse("the other side is another user"));
    }
    let mut hello = [0; HELLO];
    let Some(Some(file)) = receive_with(connection.as_fd(), &mut hello)? else { return Ok(()) };
    let [exporter, length] = words(&hello);
    if exporter != *PROCESS || length == 0 || length > MOST {
        return Err(refuse("the other side does not know whom it talks to"));
    }
    let size = usize::try_from(length).map_err(|_| refuse("too much shared memory"))?;
    // Shorter than it says, it would end this process when it is touched.
    let status =
        rustix::fs::fstat(&file).map_err(|errno| failed("shared memory could not be looked at", errno))?;
    let seals = fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
    if u64::try_from(status.st_size).unwrap_or(0) < length || !seals.contains(SealFlags::SHRINK) {
        return Err(refuse("the shared memory is shorter than was said, or may become so"));
    }
    let shared = map_shared(file.as_fd(), size, 0)
        .map_err(|errno| failed("shared memory could not be mapped", errno))?;
    // The memory, pinned for each card that it was used with.
    let mut pinned: Vec<(Arc<Dma>, Memory)> = Vec::new();
    let mut request = [0; REQUEST];
    while receive_with(connection.as_fd(), &mut request)?.is_some() {
        let outcome = answer(&request, &shared, &mut pinned);
        let (code, text) = match &outcome {
            Ok(()) => (0, ""),
            Err(failure) => (failure.code() as u32, failure.message()),
        };
        let mut reply = Vec::with_capacity(REPLY + text.len());
        reply.extend_from_slice(&code.to_le_bytes());
        reply.extend_from_slice(&u32::try_from(text.len()).unwrap_or(0).to_le_bytes());
        reply.extend_from_slice(text.as_bytes());
        send_all(connection.as_fd(), &reply)?;
    }
    Ok(())
}

fn answer(request: &[u8], shared: &HostRange, pinned: &mut Vec<(Arc<Dma>, Memory)>) -> Result<(), Failure> {
    let [number, offset, length, write] = words(request);
    let exported = {
        let service = SERVICE.lock();
        service.as_ref().and_then(|service| service.exports.get(&number)?.upgrade())
    };
    let exported = exported
        .ok_or_else(|| Failure::new(Code::NotFound, format!("buffer {number} is not exported any more")))?;
    let address =
        exported.address(offset, length).filter(|_| length <= shared.length()).ok_or_else(|| {
            Failure::new(
                Code::OutOfRange,
                format!("{length} bytes at {offset} are not inside buffer {number}"),
            )
        })?;
    let dma = exported.dma();
    let at = match pinned.iter().position(|(other, _)| Arc::ptr_eq(other, dma)) {
        Some(at) => at,
        None => {
            let region = Region::host(dma.card(), shared.clone())
                .map_err(|errno| dma.card().failure("shared memory could not be pinned", errno))?;
            pinned.push((dma.clone(), Memory::whole(region)));
            pinned.len() - 1
        }
    };
    let Some((dma, memory)) = pinned.get(at) else { return Ok(()) };
    let request = if write == 1 {
        dma.transfer(Lane::Down, memory.address(), address, length)?
    } else {
        dma.transfer(Lane::Up, address, memory.address(), length)?
    };
    request.wait()
}
