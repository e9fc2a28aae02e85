// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The exporter's side.

use super::handle::Handle;
use super::proof::Secret;
use super::service;
use super::socket::identity;
use super::{Ipc, PROCESS};
use crate::dma::Dma;
use crate::generation::Capabilities;
use crate::kmd::{Card, DmabufHolder};
use crate::memory::Memory;
use hal_backend::{Code, Failure};
use hal_gaudi_abi::uapi::Abi;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};

/// A dma-buf is a number of these.
pub(super) const PAGE: u64 = 4096;

/// The buffers that this process has exported so far.
static BUFFERS: AtomicU64 = AtomicU64::new(1);

/// The exports of this process, by number.
static EXPORTS: LazyLock<Mutex<HashMap<u64, Weak<Exported>>>> = LazyLock::new(Mutex::default);

/// The export that a handle names, if this process exports it.
pub(super) fn exported_here(handle: &Handle) -> Option<Arc<Exported>> {
    let exports = (handle.exporter == *PROCESS).then(|| EXPORTS.lock())?;
    exports.get(&handle.buffer)?.upgrade()
}

/// The descriptor of a dma-buf, until its card is lost.
struct Buffer {
    number: u64,
    file: Mutex<Option<OwnedFd>>,
}

impl DmabufHolder for Buffer {
    fn release(&self, why: &str) {
        let file = self.file.lock().take();
        drop(file);
        // Those in other processes have mapped it, or will ask for its bytes.
        service::lose(self.number, why);
    }
}

/// Memory that is exported, and the transfers that reach it.
pub(super) struct Exported {
    memory: Arc<Memory>,
    offset: u64,
    length: u64,
    dma: Arc<Dma>,
}

impl Exported {
    /// The address of a part on its card. `None` if the part is not inside.
    pub(super) fn address(&self, offset: u64, length: u64) -> Option<u64> {
        let end = offset.checked_add(length)?;
        (end <= self.length).then(|| self.memory.address() + self.offset + offset)
    }

    pub(super) fn dma(&self) -> &Arc<Dma> {
        &self.dma
    }
}

/// Device memory that others can use: a dma-buf and its handle. Dropping it closes the descriptor; others keep theirs.
/// So does the loss of the card, since a dma-buf keeps the card's file open.
pub struct Export {
    handle: Handle,
    buffer: Arc<Buffer>,
    exported: Arc<Exported>,
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl Export {
    /// Its handle.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// A new descriptor of the memory, to give to others. A descriptor that is open when the card is lost keeps the
    /// card from being reset, and the kernel kills this process for it; a process that has [imported](Ipc::import) it
    /// is notified, and closes its own.
    ///
    /// # Errors
    ///
    /// `UNAVAILABLE` if the card is lost, and `RESOURCE_EXHAUSTED` if there are too many descriptors.
    pub fn buffer(&self) -> Result<OwnedFd, Failure> {
        let file = self.buffer.file.lock();
        let file = file.as_ref().ok_or_else(|| {
            let message = format!("{} is lost, and buffer {} with it", self.handle.card, self.handle.buffer);
            Failure::new(Code::Unavailable, message)
        })?;
        file.try_clone().map_err(|error| {
            Failure::new(Code::ResourceExhausted, format!("a descriptor could not be copied: {error}"))
        })
    }

    /// The memory.
    pub fn memory(&self) -> &Arc<Memory> {
        &self.exported.memory
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        service::withdraw(self.handle.buffer);
        EXPORTS.lock().remove(&self.handle.buffer);
    }
}

/// The kernel's names for memory to export: a mapping and an offset from its beginning if memory is mapped, else the
/// memory's address.
pub(super) fn exported_place(card: &Card, memory: &Memory, offset: u64) -> (u64, u64) {
    let (region, start) = memory.region();
    if card.generation().exports_mappings() {
        (region.address(), start + offset)
    } else {
        (region.address() + start + offset, 0)
    }
}

/// A dma-buf of whole pages of some device memory, and the kernel's name for them: a place, and an offset from it. If
/// places are mappings, `inside` allows it to begin behind the mapping's beginning.
fn dma_buf(
    card: &Card,
    memory: &Memory,
    offset: u64,
    length: u64,
    inside: bool,
) -> Result<(OwnedFd, u64, u64), Failure> {
    if memory.is_outside() {
        let message = "a card's dma-buf is of its own memory: allocate host memory that is to be shared with \
                       IREE_HAL_BUFFER_USAGE_SHARING_EXPORT, which makes it shared memory of the host";
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
    let (base, begin) = exported_place(card, memory, offset);
    if begin > 0 && !inside {
        let message = format!(
            "the memory begins {begin} bytes into its allocation, and mapped_dmabuf=off allows whole allocations only"
        );
        return Err(Failure::new(Code::FailedPrecondition, message));
    }
    if begin > 0 && card.abi() == Abi::Old {
        let message = format!(
            "the memory begins {begin} bytes into its allocation, and drivers before Linux 6.7 may export other \
             memory than that: share whole allocations"
        );
        return Err(Failure::new(Code::FailedPrecondition, message));
    }
    let buffer = card.export(base, length, begin).map_err(|errno| {
        card.failure(&format!("{length} bytes at {:#x} cannot be exported", base + begin), errno)
    })?;
    Ok((buffer, base, begin))
}

/// The namespace that process ids are of: those of others mean something else.
fn namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |status| status.st_ino)
}

/// True if process ids of a namespace mean the same in this process.
pub(super) fn is_here(other: u64) -> bool {
    other != 0 && other == namespace()
}

impl Ipc {
    /// A dma-buf of all of some device memory, for another device's driver, not a peer of ours. It shows the
    /// memory for as long as that lives, and whatever has the memory later.
    pub(crate) fn descriptor(&self, memory: &Memory) -> Result<OwnedFd, Failure> {
        self.enabled()?;
        let length = memory.length().next_multiple_of(PAGE);
        dma_buf(self.dma.card(), memory, 0, length, self.settings.mapped).map(|(buffer, ..)| buffer)
    }

    /// Makes a dma-buf of some device memory: whole pages of it.
    ///
    /// # Errors
    ///
    /// `INVALID_ARGUMENT` if it is not whole pages, or not device memory; `OUT_OF_RANGE` if it is not inside the
    /// memory; `FAILED_PRECONDITION` if sharing is switched off; and what the kernel says, with nothing left behind.
    pub fn export(&self, memory: &Arc<Memory>, offset: u64, length: u64) -> Result<Export, Failure> {
        self.enabled()?;
        let card = self.dma.card();
        let (buffer, base, inside) = dma_buf(card, memory, offset, length, self.settings.mapped)?;
        let (device, inode) = identity(buffer.as_fd())?;
        let exported = Arc::new(Exported { memory: memory.clone(), offset, length, dma: self.dma.clone() });
        let number = BUFFERS.fetch_add(1, Ordering::Relaxed);
        let secret = Secret::new()?;
        // An importer that cannot map it asks this process for the bytes, and all are notified when the card is lost.
        let service = service::offer(number, secret, &exported)?;
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
        EXPORTS.lock().insert(number, Arc::downgrade(&exported));
        let buffer = Arc::new(Buffer { number, file: Mutex::new(Some(buffer)) });
        let holder: Arc<dyn DmabufHolder> = buffer.clone();
        card.is_held_by(Arc::downgrade(&holder));
        Ok(Export { handle, buffer, exported })
    }
}
