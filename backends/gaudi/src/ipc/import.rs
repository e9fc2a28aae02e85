//! The importer's side.

use super::Ipc;
use super::export::{PAGE, exported_place};
use super::handle::Handle;
use super::service::{HELLO, REPLY, REQUEST, address, message};
use super::socket::{failed, identify, receive_with, send_all, send_with};
use crate::dma::{Dma, Request};
use crate::generation::Lane;
use crate::kmd::{Errno, map_shared};
use crate::memory::{Memory, Region};
use hal_backend::{Code, Failure};
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// How much goes through the host at a time.
const STAGE: u64 = 4 << 20;

/// How a card reaches another one's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It maps it, by the vendor's kernel operation.
    Mapped,
    /// The bytes go through the host.
    Bounced,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Mapped => "mapped by the kernel's register operation",
            Way::Bounced => "bounced through host memory, as the kernel has no register operation",
        })
    }
}

/// Memory of another card, reached one way or the other.
pub(super) enum Mapping {
    Mapped { memory: Memory, _buffer: OwnedFd },
    Bounced(Bounce),
}

/// A connection to the exporter's service.
pub(super) struct Bounce {
    connection: Mutex<OwnedFd>,
    staging: Memory,
    buffer: u64,
    /// Keeps the memory in the exporter's kernel.
    _file: OwnedFd,
}

/// Memory of another card or process that this card can use.
#[derive(Clone)]
pub struct Import {
    mapping: Arc<Mapping>,
    dma: Arc<Dma>,
    length: u64,
}

impl fmt::Debug for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Import")
            .field("way", &self.way())
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl Ipc {
    /// How this card reaches memory of others. Found out once, by trying with memory of its own.
    pub fn way(&self) -> Result<Way, Failure> {
        if let Some(way) = self.way.get() {
            return Ok(*way);
        }
        let card = self.dma.card();
        let page = self.device.allocate(PAGE)?;
        let (base, inside) = exported_place(card, &page, 0);
        let buffer = card
            .export(base, PAGE, inside)
            .map_err(|errno| card.failure("a page of its memory cannot be exported", errno))?;
        let way = match card.register(buffer.as_fd(), PAGE) {
            Ok(address) => {
                card.unmap(address).map_err(|errno| card.failure("a mapping cannot be ended", errno))?;
                Way::Mapped
            }
            // An operation that a kernel does not know is an invalid argument to it.
            Err(Errno::INVAL | Errno::NOTTY | Errno::OPNOTSUPP | Errno::PERM | Errno::NOSYS) => Way::Bounced,
            Err(errno) => return Err(card.failure("a page cannot be registered", errno)),
        };
        Ok(*self.way.get_or_init(|| way))
    }

    /// Makes another card's memory usable by this one. The descriptor is taken over, and closed on every path on which it is
    /// not kept.
    ///
    /// # Errors
    ///
    /// `INVALID_ARGUMENT` if the descriptor is not what the handle says; `FAILED_PRECONDITION` if sharing is switched off;
    /// `UNAVAILABLE` if the bytes have to go through the host and the exporter is gone; and what the kernel says.
    pub fn import(&self, handle: &Handle, buffer: OwnedFd) -> Result<Import, Failure> {
        self.enabled()?;
        identify(handle, buffer.as_fd())?;
        let import = |mapping| Import { mapping, dma: self.dma.clone(), length: handle.length };
        if let Some(mapping) = self.cache.lock().find(handle) {
            return Ok(import(mapping));
        }
        let card = self.dma.card();
        let mapping = match self.way()? {
            Way::Mapped => {
                let address = card.register(buffer.as_fd(), handle.length).map_err(|errno| {
                    let what = format!("buffer {} of {} cannot be mapped", handle.buffer, handle.card);
                    card.failure(&what, errno)
                })?;
                let memory = Memory::whole(Region::foreign(card, address, handle.length));
                Mapping::Mapped { memory, _buffer: buffer }
            }
            Way::Bounced => Mapping::Bounced(Bounce::connect(&self.dma, handle, buffer)?),
        };
        let mapping = Arc::new(mapping);
        self.cache.lock().keep(handle, &mapping);
        Ok(import(mapping))
    }

    /// An exporter is gone, or takes one of its buffers back: what is kept of it goes, as soon as nobody uses it.
    pub fn forget(&self, exporter: u64, buffer: Option<u64>) {
        self.cache.lock().forget(exporter, buffer);
    }

    /// How many imports are kept.
    pub fn kept(&self) -> usize {
        self.cache.lock().len()
    }
}

impl Import {
    /// Which way it is reached.
    pub fn way(&self) -> Way {
        match *self.mapping {
            Mapping::Mapped { .. } => Way::Mapped,
            Mapping::Bounced(_) => Way::Bounced,
        }
    }

    /// How many bytes it has.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Where this card finds it, if it is mapped: for transfers that are to run beside others.
    pub fn address(&self) -> Option<u64> {
        match &*self.mapping {
            Mapping::Mapped { memory, .. } => Some(memory.address()),
            Mapping::Bounced(_) => None,
        }
    }

    /// Copies some of it to this card's memory, and waits for that.
    pub fn read(&self, offset: u64, target: u64, length: u64) -> Result<(), Failure> {
        self.check(offset, length)?;
        match &*self.mapping {
            Mapping::Mapped { .. } => self.start_read(offset, target, length)?.wait(),
            Mapping::Bounced(bounce) => bounce.pieces(length, |done, piece| {
                bounce.ask(offset + done, piece, false)?;
                self.dma.transfer(Lane::Down, bounce.staging.address(), target + done, piece)?.wait()
            }),
        }
    }

    /// Copies this card's memory into it, and waits for that.
    pub fn write(&self, source: u64, offset: u64, length: u64) -> Result<(), Failure> {
        self.check(offset, length)?;
        match &*self.mapping {
            Mapping::Mapped { memory, .. } => {
                self.dma.transfer(Lane::Up, source, memory.address() + offset, length)?.wait()
            }
            Mapping::Bounced(bounce) => bounce.pieces(length, |done, piece| {
                self.dma.transfer(Lane::Up, source + done, bounce.staging.address(), piece)?.wait()?;
                bounce.ask(offset + done, piece, true)
            }),
        }
    }

    /// Begins to copy some of it to this card's memory, if it is mapped.
    pub fn start_read(&self, offset: u64, target: u64, length: u64) -> Result<Request, Failure> {
        self.check(offset, length)?;
        let address = self.address().ok_or_else(|| {
            let message = "memory that is bounced through the host cannot be read in the background";
            Failure::new(Code::Unimplemented, message)
        })?;
        // Outside of this card, so the way is that of host memory.
        self.dma.transfer(Lane::Down, address + offset, target, length)
    }

    fn check(&self, offset: u64, length: u64) -> Result<(), Failure> {
        if offset.checked_add(length).is_some_and(|end| end <= self.length) {
            return Ok(());
        }
        let message = format!("{length} bytes at {offset} are not inside a shared buffer of {}", self.length);
        Err(Failure::new(Code::OutOfRange, message))
    }
}

impl Bounce {
    fn connect(dma: &Arc<Dma>, handle: &Handle, file: OwnedFd) -> Result<Self, Failure> {
        let gone = |errno| {
            let what = format!(
                "the bytes of buffer {} have to come from process {}, which cannot be reached",
                handle.buffer, handle.process
            );
            failed(&what, errno)
        };
        if handle.service.is_empty() {
            return Err(gone(Errno::CONNREFUSED));
        }
        let connection =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(gone)?;
        connect(&connection, &address(&handle.service)?).map_err(gone)?;
        let length = STAGE.min(handle.length.next_multiple_of(PAGE));
        let shared = memfd_create("hal-gaudi-bounce", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(gone)?;
        ftruncate(&shared, length).map_err(gone)?;
        // The exporter would not survive it if this became shorter, and asks that it cannot.
        fcntl_add_seals(&shared, SealFlags::SHRINK).map_err(gone)?;
        let size = usize::try_from(length).map_err(|_| gone(Errno::OVERFLOW))?;
        let range = map_shared(shared.as_fd(), size, 0).map_err(gone)?;
        let region = Region::host(dma.card(), range)
            .map_err(|errno| dma.card().failure("shared memory could not be pinned", errno))?;
        let hello = message(&[handle.exporter, length]);
        debug_assert_eq!(hello.len(), HELLO);
        send_with(connection.as_fd(), &hello, shared.as_fd())?;
        Ok(Self {
            connection: Mutex::new(connection),
            staging: Memory::whole(region),
            buffer: handle.buffer,
            _file: file,
        })
    }

    /// Does something for each piece that the staging memory has room for. One at a time: there is one staging memory.
    fn pieces(
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
    fn ask(&self, offset: u64, length: u64, write: bool) -> Result<(), Failure> {
        let connection = self.connection.lock();
        let request = message(&[self.buffer, offset, length, u64::from(write)]);
        debug_assert_eq!(request.len(), REQUEST);
        let gone = || {
            let message = format!("the exporter of buffer {} is gone, and the bytes with it", self.buffer);
            Failure::new(Code::Unavailable, message)
        };
        send_all(connection.as_fd(), &request).map_err(|_| gone())?;
        let mut reply = [0; REPLY];
        if receive_with(connection.as_fd(), &mut reply)?.is_none() {
            return Err(gone());
        }
        let half = |at: usize| {
            reply.get(at..at + 4).and_then(|part| part.try_into().ok()).map_or(0, u32::from_le_bytes)
        };
        let (code, long) = (half(0), half(4) as usize);
        let mut text = vec![0; long.min(1 << 16)];
        if !text.is_empty() && receive_with(connection.as_fd(), &mut text)?.is_none() {
            return Err(gone());
        }
        if code == 0 {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&text);
        Err(Failure::new(Code::from_number(code), format!("the exporter says: {text}")))
    }
}
