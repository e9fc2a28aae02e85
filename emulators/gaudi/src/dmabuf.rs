// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! [Dma-bufs](emulator_core::dmabuf) of device memory: export, and import by another card.

use crate::card::{Context, Export};
use crate::injection;
use crate::machine::Machine;
use crate::space::{Hint, MappingKind, Pool};
use emulator_core::file::is_held;
use emulator_core::{Errno, PAGE, Process, dmabuf};
use hal_gaudi_abi::uapi::{Abi, MemExport, MemRegister};
use rustix::fs::OFlags;
use rustix::io::FdFlags;
use std::os::fd::AsFd;

/// The name of device-memory files.
pub(crate) const NAME: &str = "habanalabs-dram";

impl Context {
    /// True if a dma-buf of a mapping is alive.
    pub(crate) fn is_exported(&mut self, address: u64) -> bool {
        self.exports.retain(|export| is_held(export.file.as_fd()));
        self.exports.iter().any(|export| export.address == Some(address))
    }
}

impl Machine {
    /// Makes a dma-buf, and returns its descriptor.
    pub(crate) fn export(
        &self,
        process: &dyn Process,
        number: usize,
        request: &MemExport,
    ) -> Result<u64, Errno> {
        let mut state = self.lock();
        let card = &mut state.cards[number];
        let context = card.context.as_mut().ok_or(Errno::NODEV)?;
        let aligned = [request.addr, request.mem_size, request.offset].iter().all(|value| value % PAGE == 0);
        if !aligned || request.mem_size == 0 {
            return Err(Errno::INVAL);
        }
        let hardware = self.hardware;
        let (file, offset, address) = if let Some(dram) = &context.dram {
            let offset =
                request.addr.checked_sub(hardware.dram_base(self.options.dram)).ok_or(Errno::INVAL)?;
            let end = offset.checked_add(request.mem_size).ok_or(Errno::INVAL)?;
            if request.offset != 0 || end > self.options.dram {
                return Err(Errno::INVAL);
            }
            (dram.clone(), offset, None)
        } else {
            let space = context.live.space.read();
            let mapping = space.get(request.addr).ok_or(Errno::INVAL)?;
            let MappingKind::Device(handle) = mapping.what else { return Err(Errno::INVAL) };
            let end = request.offset.checked_add(request.mem_size).ok_or(Errno::INVAL)?;
            if end > mapping.memory().length() {
                return Err(Errno::INVAL);
            }
            let memory = context.memory.get(&handle).ok_or(Errno::INVAL)?;
            (memory.file.clone(), request.offset, Some(request.addr))
        };
        // rule(export-offset)
        let offset = if self.options.abi == Abi::Old && address.is_some() { 0 } else { offset };
        let buffer = dmabuf::export(file.as_fd(), offset, request.mem_size)?;
        context.exports.retain(|export| is_held(export.file.as_fd()));
        context.exports.push(Export { file, address });
        // Flags are ignored, but for `O_CLOEXEC`. rule(export-flags)
        let closes = OFlags::from_bits_retain(request.flags).contains(OFlags::CLOEXEC);
        rustix::io::fcntl_setfd(&buffer, if closes { FdFlags::CLOEXEC } else { FdFlags::empty() })?;
        let descriptor = process.install(buffer)?;
        u64::try_from(descriptor).map_err(|_| Errno::MFILE)
    }

    /// Maps an imported dma-buf, and returns its device address.
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
        let range = dmabuf::import(buffer, NAME, request.length)?;
        let mut state = self.lock();
        let card = &mut state.cards[number];
        // The exporter checks at the mapping whether the other device can reach it. rule(export-peer)
        if card.injections.has(injection::NO_P2P) {
            return Err(Errno::PERM);
        }
        if card.injections.strikes(injection::MAP) {
            return Err(Errno::NOMEM);
        }
        let context = card.context.as_mut().ok_or(Errno::NODEV)?;
        let address =
            context.live.space.write().map(Pool::Host, range, Hint::default(), MappingKind::Imported);
        address.ok_or(Errno::NOMEM)
    }
}
