//! Dma-bufs: device memory as a descriptor that can go to another process.
//!
//! It is a description of the device memory's file of its own, which carries what part of the memory it is of in its position,
//! and a shared lock that tells the exporter that it is alive. Both go where the descriptor goes, and need
//! neither the exporting process nor its emulator.
//!
//! Two things differ from a real one: it could be mapped by a process, which a real one cannot, and dma-bufs of the
//! same memory have the same inode number, which real ones do not.

use crate::card::{Context, Export};
use crate::fault::Fault;
use crate::file::is_held;
use crate::machine::Machine;
use crate::space::{Pool, What};
use hal_emulation::PAGE;
use hal_emulation::{Errno, map_shared};
use hal_emulation::{Process, keeping, reopen};
use hal_gaudi_abi::uapi::{MemExport, MemRegister};
use rustix::fs::{FlockOperation, OFlags, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// What files of device memory are called.
pub(crate) const NAME: &str = "habanalabs-dram";

/// How many bits of the position say how many pages there are. Those above say where they begin.
const COUNT_BITS: u32 = 31;

/// Makes a dma-buf of some of a device memory file.
fn make(file: &OwnedFd, offset: u64, length: u64) -> Result<OwnedFd, Errno> {
    let position = ((offset / PAGE) << COUNT_BITS) | (length / PAGE);
    let buffer = reopen(file.as_fd())?;
    rustix::fs::flock(&buffer, FlockOperation::LockShared)?;
    rustix::fs::seek(&buffer, SeekFrom::Start(position))?;
    Ok(buffer)
}

/// What part of the file behind it a dma-buf is of; nothing, if it is no dma-buf.
fn extent(buffer: BorrowedFd<'_>) -> Option<(u64, u64)> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", buffer.as_raw_fd())).ok()?;
    if !link.to_string_lossy().starts_with(&format!("/memfd:{NAME}")) {
        return None;
    }
    let position = rustix::fs::seek(buffer, SeekFrom::Current(0)).ok()?;
    let pages = position & ((1 << COUNT_BITS) - 1);
    (pages > 0).then_some(((position >> COUNT_BITS) * PAGE, pages * PAGE))
}

impl Context {
    /// Whether a dma-buf of a mapping is alive.
    pub(crate) fn is_exported(&mut self, address: u64) -> bool {
        self.exports.retain(|export| is_held(export.file.as_fd()));
        self.exports.iter().any(|export| export.address == Some(address))
    }
}

impl Machine {
    /// Makes a dma-buf, and says its descriptor.
    pub(crate) fn export(
        &self,
        process: &dyn Process,
        number: usize,
        request: &MemExport,
    ) -> Result<u64, Errno> {
        let mut state = self.state.lock();
        let card = state.cards.get_mut(number).ok_or(Errno::NODEV)?;
        let context = card.context.as_mut().ok_or(Errno::NODEV)?;
        let mode = OFlags::from_bits_retain(request.flags) - OFlags::CLOEXEC;
        let known = [OFlags::RDWR, OFlags::RDONLY, OFlags::WRONLY].contains(&mode);
        if !known || request.flags & OFlags::CLOEXEC.bits() == 0 {
            return Err(Errno::INVAL);
        }
        let aligned = [request.addr, request.mem_size, request.offset].iter().all(|value| value % PAGE == 0);
        if !aligned || request.mem_size == 0 {
            return Err(Errno::INVAL);
        }
        let hardware = self.hardware;
        let (file, offset, address) = if let Some(dram) = &context.dram {
            let offset = request.addr.checked_sub(hardware.dram_base).ok_or(Errno::INVAL)?;
            let end = offset.checked_add(request.mem_size).ok_or(Errno::INVAL)?;
            if request.offset != 0 || end > self.options.dram {
                return Err(Errno::INVAL);
            }
            (dram.clone(), offset, None)
        } else {
            let space = context.live.space.read();
            let mapping = space.get(request.addr).ok_or(Errno::INVAL)?;
            let What::Device(handle) = mapping.what else { return Err(Errno::INVAL) };
            let end = request.offset.checked_add(request.mem_size).ok_or(Errno::INVAL)?;
            if end > mapping.memory.length() {
                return Err(Errno::INVAL);
            }
            let memory = context.memory.get(&handle).ok_or(Errno::INVAL)?;
            (memory.file.clone(), request.offset, Some(request.addr))
        };
        if card.faults.has(Fault::NoP2p) {
            return Err(Errno::PERM);
        }
        let buffer = make(&file, offset, request.mem_size)?;
        context.exports.retain(|export| is_held(export.file.as_fd()));
        context.exports.push(Export { file, address });
        let descriptor = process.install(buffer)?;
        u64::try_from(descriptor).map_err(|_| Errno::MFILE)
    }

    /// Makes somebody's dma-buf addressable, and says where.
    pub(crate) fn register(
        &self,
        process: &dyn Process,
        number: usize,
        request: &MemRegister,
    ) -> Result<u64, Errno> {
        if !self.options.register {
            return Err(Errno::INVAL);
        }
        let buffer = process.descriptor(i32::try_from(request.fd).map_err(|_| Errno::INVAL)?)?;
        let (offset, length) = extent(buffer.as_fd()).ok_or(Errno::INVAL)?;
        if request.length == 0 || !request.length.is_multiple_of(PAGE) || request.length > length {
            return Err(Errno::INVAL);
        }
        let size = usize::try_from(request.length).map_err(|_| Errno::NOMEM)?;
        let range = map_shared(buffer.as_fd(), size, offset)?;
        // The attachment holds the dma-buf after its descriptors are closed.
        let range = keeping(range, Box::new(Arc::new(buffer)));
        let mut state = self.state.lock();
        let card = state.cards.get_mut(number).ok_or(Errno::NODEV)?;
        card.faults.map()?;
        let context = card.context.as_mut().ok_or(Errno::NODEV)?;
        let address = context.live.space.write().map(Pool::Host, range, 0, None, What::Imported);
        address.ok_or(Errno::NOMEM)
    }
}
