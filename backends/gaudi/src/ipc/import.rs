// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The importer's side.

use super::Ipc;
use super::bounce::BouncedBuffer;
use super::connection::{Connection, PollResult};
use super::export::{PAGE, exported_here, exported_place};
use super::handle::Handle;
use super::loss_monitor;
use super::socket::identify;
use crate::dma::Dma;
use crate::generation::Lane;
use crate::kmd::{DmabufHolder, Errno};
use crate::memory::{Memory, Region};
use hal_backend::{Code, Failure};
use parking_lot::Mutex;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

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
    Mapped {
        /// The mapping, or why there is none any more: the memory's card is lost. A transfer keeps it for as long as
        /// it runs.
        memory: Mutex<Result<Arc<Memory>, Failure>>,
        /// The connection by which another process reports its end, if it could be reached.
        connection: Option<Connection>,
    },
    Bounced(BouncedBuffer),
}

impl Mapping {
    /// False if the other side is known to be gone.
    fn is_usable(&self) -> bool {
        match self {
            Mapping::Mapped { memory, .. } => memory.lock().is_ok(),
            Mapping::Bounced(bounce) => bounce.connection().is_open(),
        }
    }

    /// Why it is of no use any more, if that is known.
    fn lost(&self) -> Option<Failure> {
        match self {
            Mapping::Mapped { memory, .. } => memory.lock().as_ref().err().cloned(),
            Mapping::Bounced(bounce) => bounce.connection().end(),
        }
    }

    fn connection(&self) -> Option<&Connection> {
        match self {
            Mapping::Mapped { connection, .. } => connection.as_ref(),
            Mapping::Bounced(bounce) => Some(bounce.connection()),
        }
    }

    /// Hears what the exporter says of its own accord. Of one that has just hung up the memory is still there.
    pub(super) fn listen(&self) -> PollResult {
        let Some(connection) = self.connection() else { return PollResult::Over };
        let heard = connection.listen();
        if let (Mapping::Mapped { memory, .. }, Some(lost)) = (self, connection.lost()) {
            end(memory, lost);
        }
        heard
    }
}

/// Ends a mapping whose card is lost.
fn end(memory: &Mutex<Result<Arc<Memory>, Failure>>, lost: Failure) {
    let mut memory = memory.lock();
    if memory.is_ok() {
        let old = std::mem::replace(&mut *memory, Err(lost));
        // Not under the lock: what it drops may call the kernel.
        drop(memory);
        drop(old);
    }
}

impl DmabufHolder for Mapping {
    fn release(&self, why: &str) {
        // A bounced import holds nothing of the card.
        if let Mapping::Mapped { memory, .. } = self {
            let message = format!("the card that exported the memory is lost, and the bytes with it: {why}");
            end(memory, Failure::new(Code::Unavailable, message));
        }
    }
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

    /// Maps a dma-buf of any device, not of a peer of ours. It shows whatever that device has there for as long as the
    /// memory lives.
    pub(crate) fn foreign(&self, buffer: BorrowedFd<'_>, length: u64) -> Result<Memory, Failure> {
        self.enabled()?;
        let card = self.dma.card();
        let whole = length.checked_next_multiple_of(PAGE).unwrap_or(length);
        let address = card.register(buffer, whole).map_err(|errno| {
            let what = format!(
                "{length} bytes of the descriptor cannot be mapped into the card, which takes a dma-buf of as many \
                 bytes, from a device that the card reaches, and the vendor's kernel driver (the upstream one maps \
                 none); otherwise copy through host memory"
            );
            match errno {
                Errno::INVAL | Errno::NOTTY | Errno::OPNOTSUPP | Errno::PERM | Errno::NOSYS => {
                    Failure::new(Code::Unavailable, format!("{what}: {errno}"))
                }
                errno => card.failure(&what, errno),
            }
        })?;
        Ok(Memory::whole(Region::foreign(card, address, whole)))
    }

    /// Makes another card's memory usable by this one. The descriptor is taken over, and closed on every path on
    /// which it is not kept.
    ///
    /// # Errors
    ///
    /// `INVALID_ARGUMENT` if the descriptor is not what the handle says; `FAILED_PRECONDITION` if sharing is switched
    /// off; where the bytes have to go through the host, `UNAVAILABLE` if the exporter is gone, `PERMISSION_DENIED`
    /// if the process there is not the exporter, and `DEADLINE_EXCEEDED` if there is no answer; and what the kernel
    /// says.
    pub fn import(&self, handle: &Handle, buffer: OwnedFd) -> Result<Import, Failure> {
        self.enabled()?;
        identify(handle, buffer.as_fd())?;
        let import = |mapping| Import { mapping, dma: self.dma.clone(), length: handle.length };
        if let Some(mapping) = self.cache.lock().find(handle).filter(|mapping| mapping.is_usable()) {
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
                // An exporter in this process needs no connection; one that cannot be reached has exited, or is another
                // user's.
                let connection = match exported_here(handle) {
                    Some(_) => None,
                    None => Connection::call(handle, self.settings.patience)
                        .and_then(|call| call.enter(None))
                        .ok(),
                };
                Mapping::Mapped { memory: Mutex::new(Ok(Arc::new(memory))), connection }
            }
            Way::Bounced => {
                Mapping::Bounced(BouncedBuffer::connect(&self.dma, handle, self.settings.patience)?)
            }
        };
        let mapping = Arc::new(mapping);
        if let Some(exported) = exported_here(handle) {
            let holder: Arc<dyn DmabufHolder> = mapping.clone();
            exported.dma().card().is_held_by(Arc::downgrade(&holder));
        }
        if let Some(connection) = mapping.connection().and_then(Connection::descriptor) {
            loss_monitor::listen(&Arc::downgrade(&mapping), connection)?;
        }
        self.cache.lock().keep(handle, &mapping);
        Ok(import(mapping))
    }

    /// An exporter is gone, or takes one of its buffers back: what is kept of it goes, as soon as it is unused.
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

    /// Why it is of no use any more, as soon as that is known: the exporter's card is lost, or the bytes have to come
    /// from an exporter that is gone.
    pub fn lost(&self) -> Option<Failure> {
        self.mapping.lost()
    }

    /// Its address on this card: while it is mapped, which it is until the exporting card is lost.
    pub fn address(&self) -> Option<u64> {
        match &*self.mapping {
            Mapping::Mapped { memory, .. } => memory.lock().as_ref().ok().map(|memory| memory.address()),
            Mapping::Bounced(_) => None,
        }
    }

    /// Copies some of it to this card's memory, and waits for that.
    pub fn read(&self, offset: u64, target: u64, length: u64) -> Result<(), Failure> {
        self.check(offset, length)?;
        match &*self.mapping {
            // Outside of this card, so the way is that of host memory.
            Mapping::Mapped { memory, .. } => {
                let memory = memory.lock().clone()?;
                self.dma.transfer(Lane::HostToDevice, memory.address() + offset, target, length)?.wait()
            }
            Mapping::Bounced(bounce) => bounce.pieces(length, |done, piece| {
                bounce.ask(offset + done, piece, false)?;
                self.dma.transfer(Lane::HostToDevice, bounce.staging(), target + done, piece)?.wait()
            }),
        }
    }

    /// Copies this card's memory into it, and waits for that.
    pub fn write(&self, source: u64, offset: u64, length: u64) -> Result<(), Failure> {
        self.check(offset, length)?;
        match &*self.mapping {
            Mapping::Mapped { memory, .. } => {
                let memory = memory.lock().clone()?;
                self.dma.transfer(Lane::DeviceToHost, source, memory.address() + offset, length)?.wait()
            }
            Mapping::Bounced(bounce) => bounce.pieces(length, |done, piece| {
                self.dma.transfer(Lane::DeviceToHost, source + done, bounce.staging(), piece)?.wait()?;
                bounce.ask(offset + done, piece, true)
            }),
        }
    }

    fn check(&self, offset: u64, length: u64) -> Result<(), Failure> {
        if offset.checked_add(length).is_some_and(|end| end <= self.length) {
            return Ok(());
        }
        let message = format!("{length} bytes at {offset} are not inside a shared buffer of {}", self.length);
        Err(Failure::new(Code::OutOfRange, message))
    }
}
