// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Device memory and mappings: the driver's memory requests.

use crate::blocks;
use crate::card::{Context, DeviceMemory};
use crate::file::device_memory;
use crate::injection;
use crate::machine::{Guard, Machine};
use crate::space::{Hint, MappedMemory, MappingKind, Pool};
use emulator_core::Errno;
use emulator_core::PAGE;
use emulator_core::Process;
use emulator_core::drm::{give, take};
use hal_gaudi_abi::uapi::{
    MemAlloc, MemExport, MemFree, MemMapDevice, MemMapHost, MemOut, MemRegister, MemUnmap, handle, mem,
};

/// The context of a card that is known to be open.
fn context<'a>(state: &'a mut Guard<'_>, number: usize) -> Result<&'a mut Context, Errno> {
    state.cards[number].context.as_mut().ok_or(Errno::NODEV)
}

/// A failure of these leaves zeros in the argument. rule(memory-answer)
fn answered<T>(argument: &mut [u8], result: Result<T, Errno>) -> Result<T, Errno> {
    result.inspect_err(|_| argument.fill(0))
}

impl Machine {
    /// A memory request. Every operation has its number and its flags in the same place.
    pub(crate) fn memory(
        &self,
        process: &dyn Process,
        number: usize,
        argument: &mut [u8],
    ) -> Result<(), Errno> {
        {
            let state = self.lock();
            state.cards[number].ready()?;
        }
        let header: MemFree = take(argument)?;
        let result = match header.op {
            mem::ALLOC => answered(argument, self.allocate(number, &take(argument)?))?,
            // These leave the argument as it was. rule(memory-answer)
            mem::FREE => return self.free(number, &header),
            mem::UNMAP => return self.unmap(number, &take(argument)?),
            mem::MAP if header.flags & mem::USERPTR != 0 => {
                answered(argument, self.map_host(process, number, &take(argument)?))?
            }
            mem::MAP => answered(argument, self.map_device(number, &take(argument)?))?,
            // The address is in the place of the handle. rule(memory-answer)
            mem::MAP_BLOCK => {
                let block = blocks::at(self.hardware, header.handle);
                let (handle, size) = block.map_or((0, 0), |(id, size)| (handle::BLOCK | id << 12, size));
                let answer = handle.to_le_bytes().into_iter().chain(size.to_le_bytes()).take(12);
                argument.iter_mut().zip(answer).for_each(|(place, byte)| *place = byte);
                return block.map(drop);
            }
            mem::TS_ALLOC => self.create_times(process, number, header.num_of_elements)?,
            mem::EXPORT_DMABUF_FD => {
                let request: MemExport = take(argument)?;
                answered(argument, self.export(process, number, &request))?
            }
            mem::REGISTER_DMABUF_FD => {
                let request: MemRegister = take(argument)?;
                self.register(process, number, &request)?
            }
            _ => return Err(Errno::INVAL),
        };
        give(argument, &MemOut { handle: result, reserved: 0 });
        Ok(())
    }

    fn allocate(&self, number: usize, request: &MemAlloc) -> Result<u64, Errno> {
        if request.mem_size == 0 {
            return Err(Errno::INVAL);
        }
        let mut state = self.lock();
        let card = &mut state.cards[number];
        if card.injections.strikes(injection::ALLOC) {
            return Err(Errno::NOMEM);
        }
        let context = card.context.as_mut().ok_or(Errno::NODEV)?;
        if !self.hardware.dram_virtual {
            // The program manages the addresses; the driver only counts.
            context.allocated = context.allocated.saturating_add(request.mem_size);
            return Ok(0);
        }
        // The page is no power of two.
        let pages = request.mem_size.div_ceil(self.hardware.dram_page);
        let size = pages.checked_mul(self.hardware.dram_page).ok_or(Errno::NOMEM)?;
        let contiguous = request.flags & mem::CONTIGUOUS != 0 && pages > 1;
        if contiguous && card.injections.has(injection::FRAGMENTED) {
            return Err(Errno::NOMEM);
        }
        if context.allocated.checked_add(size).is_none_or(|total| total > self.options.dram) {
            return Err(Errno::NOMEM);
        }
        let (file, range) = device_memory(size)?;
        let handle = context.next_handle;
        context.next_handle += 1;
        context.allocated += size;
        context.memory.insert(handle, DeviceMemory { file, range, size, mapped: 0 });
        Ok(handle)
    }

    fn free(&self, number: usize, request: &MemFree) -> Result<(), Errno> {
        let mut state = self.lock();
        let context = context(&mut state, number)?;
        if !self.hardware.dram_virtual {
            // The place of the handle holds a number of bytes here.
            context.allocated = context.allocated.saturating_sub(request.handle);
            return Ok(());
        }
        let memory = context.memory.get(&request.handle).ok_or(Errno::INVAL)?;
        // Exported memory counts as mapped. rule(free-mapped)
        if memory.mapped > 0 {
            return Err(Errno::INVAL);
        }
        context.allocated -= memory.size;
        context.memory.remove(&request.handle);
        Ok(())
    }

    fn map_device(&self, number: usize, request: &MemMapDevice) -> Result<u64, Errno> {
        let mut state = self.lock();
        let card = &mut state.cards[number];
        let context = card.context.as_mut().ok_or(Errno::NODEV)?;
        let memory = context.memory.get_mut(&request.handle).ok_or(Errno::INVAL)?;
        if card.injections.strikes(injection::MAP) {
            return Err(Errno::NOMEM);
        }
        let force = request.flags & mem::FORCE_HINT != 0;
        let hint = Hint { address: request.hint_addr, force, align: 0 };
        let what = MappingKind::Device(request.handle);
        let address = context.live.space.write().map(Pool::Device, memory.range.clone(), hint, what);
        let address = address.ok_or(Errno::NOMEM)?;
        context.live.space.write().back(address, &memory.file);
        memory.mapped += 1;
        Ok(address)
    }

    fn map_host(&self, process: &dyn Process, number: usize, request: &MemMapHost) -> Result<u64, Errno> {
        /// A large page of the host.
        const LARGE: u64 = 2 << 20;
        let (start, size) = (request.host_virt_addr, request.mem_size);
        let end = start.checked_add(size).and_then(|end| end.checked_next_multiple_of(PAGE));
        if size == 0 || end.is_none() {
            return Err(Errno::INVAL);
        }
        {
            let mut state = self.lock();
            if state.cards[number].injections.strikes(injection::MAP) {
                return Err(Errno::NOMEM);
            }
        }
        // Whole pages. rule(map-pages)
        let skip = start % PAGE;
        let pages = (skip + size).checked_next_multiple_of(PAGE).ok_or(Errno::INVAL)?;
        let memory = MappedMemory { memory: process.pin(start - skip, pages)?, skip, length: size };
        let mut state = self.lock();
        let context = context(&mut state, number)?;
        let force = request.flags & mem::FORCE_HINT != 0;
        // Memory that begins inside a page cannot follow a hint. rule(map-hint)
        if force && request.hint_addr != 0 && skip != 0 {
            return Err(Errno::INVAL);
        }
        let align = if start % LARGE == 0 { LARGE } else { PAGE };
        let hint = Hint { address: request.hint_addr, force, align };
        let address = context.live.space.write().map(Pool::Host, memory, hint, MappingKind::Host);
        address.ok_or(Errno::NOMEM)
    }

    fn unmap(&self, number: usize, request: &MemUnmap) -> Result<(), Errno> {
        let address = request.device_virt_addr;
        let mut state = self.lock();
        let owner = context(&mut state, number)?;
        let id = owner.id;
        if owner.is_exported(address) {
            return Err(Errno::INVAL);
        }
        let mapping = {
            let mut space = owner.live.space.write();
            let mine =
                |what| matches!(what, MappingKind::Device(_) | MappingKind::Host | MappingKind::Imported);
            if space.get(address).is_none_or(|mapping| !mine(mapping.what)) {
                return Err(Errno::INVAL);
            }
            space.unmap(address).ok_or(Errno::INVAL)?
        };
        if let MappingKind::Device(handle) = mapping.what
            && let Some(memory) = owner.memory.get_mut(&handle)
        {
            memory.mapped -= 1;
        }
        if mapping.what == MappingKind::Host {
            // The program may free the memory as soon as this returns, so no worker may use it then. A program
            // that waits for its submissions first never waits here.
            let here = |state: &Guard<'_>| {
                let card = &state.cards[number];
                card.running > 0 && card.context.as_ref().is_some_and(|now| now.id == id)
            };
            while mapping.memory().is_shared() && here(&state) && !state.is_stopping() {
                self.sleep(&mut state, number, None);
            }
        }
        Ok(())
    }
}
