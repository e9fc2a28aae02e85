//! The exporter's side.

use super::handle::Handle;
use super::proof::Secret;
use super::service;
use super::socket::identity;
use super::{Ipc, PROCESS, Way};
use crate::dma::Dma;
use crate::generation::Capabilities;
use crate::kmd::Card;
use crate::memory::Memory;
use hal_backend::{Code, Failure};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a dma-buf is a number of.
pub(super) const PAGE: u64 = 4096;

/// The buffers that this process has exported so far.
static BUFFERS: AtomicU64 = AtomicU64::new(1);

/// Memory that is exported, and the transfers that reach it.
pub(super) struct Exported {
    memory: Arc<Memory>,
    offset: u64,
    length: u64,
    dma: Arc<Dma>,
}

impl Exported {
    /// Where some of it is on its card. Nothing, if that is not inside.
    pub(super) fn address(&self, offset: u64, length: u64) -> Option<u64> {
        let end = offset.checked_add(length)?;
        (end <= self.length).then(|| self.memory.address() + self.offset + offset)
    }

    pub(super) fn dma(&self) -> &Arc<Dma> {
        &self.dma
    }
}

/// Device memory that others can use: a dma-buf, and what it is. Dropping it closes the descriptor; others keep theirs.
pub struct Export {
    handle: Handle,
    buffer: OwnedFd,
    exported: Arc<Exported>,
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl Export {
    /// What it is.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The descriptor.
    pub fn buffer(&self) -> BorrowedFd<'_> {
        self.buffer.as_fd()
    }

    /// The memory.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.exported.memory
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        service::withdraw(self.handle.buffer);
    }
}

/// What the kernel is to export memory by: where memory is mapped, a mapping and an offset from its beginning; else the
/// memory's address.
pub(super) fn exported_place(card: &Card, memory: &Memory, offset: u64) -> (u64, u64) {
    let (region, start) = memory.region();
    if card.generation().exports_mappings() {
        (region.address(), start + offset)
    } else {
        (region.address() + start + offset, 0)
    }
}

/// The namespace that process ids are of: those of others mean something else.
fn namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |status| status.st_ino)
}

/// Whether process ids of a namespace mean here what they mean there.
pub(super) fn is_here(other: u64) -> bool {
    other != 0 && other == namespace()
}

impl Ipc {
    /// Makes a dma-buf of some device memory: whole pages of it.
    ///
    /// # Errors
    ///
    /// `INVALID_ARGUMENT` if it is not whole pages, or not device memory; `OUT_OF_RANGE` if it is not inside the memory;
    /// `FAILED_PRECONDITION` if sharing is switched off; and what the kernel says, with nothing left behind.
    pub fn export(&self, memory: &Arc<Memory>, offset: u64, length: u64) -> Result<Export, Failure> {
        self.enabled()?;
        let card = self.dma.card();
        if memory.is_host() {
            let message = "host memory is shared by other means than a card's dma-buf";
            return Err(Failure::new(Code::InvalidArgument, message));
        }
        if offset.checked_add(length).is_none_or(|end| end > memory.length().next_multiple_of(PAGE)) {
            let message =
                format!("{length} bytes at {offset} are not inside {} bytes of memory", memory.length());
            return Err(Failure::new(Code::OutOfRange, message));
        }
        let (region, start) = memory.region();
        let start = start + offset;
        if length == 0 || !length.is_multiple_of(PAGE) || !(region.address() + start).is_multiple_of(PAGE) {
            let message = format!(
                "{length} bytes at {:#x} are not whole pages of {PAGE}, and only such can be shared",
                region.address() + start
            );
            return Err(Failure::new(Code::InvalidArgument, message));
        }
        let (base, inside) = exported_place(card, memory, offset);
        if inside > 0 && !self.settings.mapped {
            let message = format!(
                "the memory begins {inside} bytes into its allocation, and mapped_dmabuf=no allows whole allocations only"
            );
            return Err(Failure::new(Code::FailedPrecondition, message));
        }
        let buffer = card.export(base, length, inside).map_err(|errno| {
            card.failure(&format!("{length} bytes at {:#x} cannot be exported", base + inside), errno)
        })?;
        let (device, inode) = identity(buffer.as_fd())?;
        let exported = Arc::new(Exported { memory: memory.clone(), offset, length, dma: self.dma.clone() });
        let number = BUFFERS.fetch_add(1, Ordering::Relaxed);
        let secret = Secret::new()?;
        // Whoever cannot map it asks this process for the bytes.
        let service = match self.way()? {
            Way::Mapped => String::new(),
            Way::Bounced => service::offer(number, secret, &exported)?,
        };
        let handle = Handle {
            exporter: *PROCESS,
            process: std::process::id(),
            namespace: namespace(),
            generation: card.generation(),
            buffer: number,
            base,
            offset: inside,
            length,
            device,
            inode,
            card: card.name().to_owned(),
            service,
            secret,
        };
        Ok(Export { handle, buffer, exported })
    }
}
