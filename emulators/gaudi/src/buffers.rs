// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Buffers of the kernel: command buffers, timestamps, blocks of registers, and how a process gets to see them.
//!
//! Only the number in a handle counts; the kind that it names decides only how it is mapped.
//! rule(handle-number)

use crate::blocks;
use crate::card::{Buffer, BufferKind, Context, Status};
use crate::file::OpenNode;
use crate::hardware::Hardware;
use crate::machine::{Cards, Machine};
use crate::space::{Hint, MappingKind, Pool};
use emulator_core::PAGE;
use emulator_core::drm::{give, take};
use emulator_core::file::{Identity, OpenFiles};
use emulator_core::process::keeping;
use emulator_core::{Errno, Process, map_shared};
use hal_backend::HostRange;
use hal_backend::memory_file::memory_file;
use hal_gaudi_abi::uapi::{CbIn, CbOut, cb, handle};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Kept while a process maps a buffer: the file stays open, as for any mapping.
struct BufferMapping {
    seen: Arc<AtomicBool>,
    file: Option<OwnedFd>,
    machine: Weak<Machine>,
    card: usize,
}

impl Drop for BufferMapping {
    fn drop(&mut self) {
        self.seen.store(false, Ordering::Release);
        drop(self.file.take());
        if let Some(machine) = self.machine.upgrade() {
            let mut state = machine.lock();
            if let Some(context) = state.cards[self.card].context.as_mut() {
                context.sweep();
            }
            machine.reap(&mut state);
        }
    }
}

impl Context {
    /// The handle that the next buffer gets.
    fn next(&self, kind: u64) -> u64 {
        kind | self.next_handle << 12
    }

    /// Keeps a buffer under the next handle's number.
    fn keep(&mut self, buffer: Buffer) {
        // The distance keeps the offsets of one handle from reaching the next handle.
        let id = self.next_handle;
        self.next_handle += buffer.range.length().max(u64::from(cb::MAX_SIZE) + 32) / PAGE;
        self.buffers.insert(id, buffer);
    }

    /// The memory of a block of registers, which every process sees that asks for exactly its size. rule(map-block)
    pub(crate) fn block(
        &mut self,
        (hardware, files, owner): (&Hardware, &OpenFiles<OpenNode>, Identity),
        offset: u64,
        length: u64,
    ) -> Result<HostRange, Errno> {
        let id = offset >> 12 & 0xFFFF_FFFF;
        let size = blocks::size(hardware, id)?;
        if size != length {
            return Err(Errno::INVAL);
        }
        match self.blocks.get(&id) {
            Some(range) => Ok(range.clone()),
            None => Ok(self.blocks.entry(id).or_insert(kernel_memory(files, owner, offset, size)?).clone()),
        }
    }

    /// Removes buffers whose handle was released and that are mapped no more. rule(cb-destroyed)
    pub(crate) fn sweep(&mut self) {
        let (alarms, buffers) = (&self.alarms, &self.buffers);
        let used = |id: u64| alarms.iter().any(|alarm| alarm.times.0 == id || alarm.counter.0 == id);
        let is_gone = |&id: &u64| {
            buffers.get(&id).is_none_or(|buffer| !buffer.seen.load(Ordering::Acquire)) && !used(id)
        };
        let gone: Vec<u64> = self.destroyed.iter().copied().filter(is_gone).collect();
        for id in gone {
            self.destroyed.remove(&id);
            if let Some(Buffer { kind: BufferKind::Commands(Some(address)), .. }) = self.buffers.remove(&id) {
                self.live.space.write().unmap(address);
            }
        }
    }
}

/// Memory of the kernel for a buffer: whole pages in the open file, at the offset of the buffer's handle, so
/// that another process maps them by itself. No file reaches as far as the handles of timestamps, so these have
/// a file of their own.
fn kernel_memory(
    files: &OpenFiles<OpenNode>,
    owner: Identity,
    handle: u64,
    size: u64,
) -> Result<HostRange, Errno> {
    let size = size.max(1).next_multiple_of(PAGE);
    if i64::try_from(handle).is_ok() {
        return files.memory(owner, handle, size);
    }
    let length = usize::try_from(size).map_err(|_| Errno::NOMEM)?;
    map_shared(memory_file("habanalabs-ts", size)?.as_fd(), length, 0)
}

/// Makes a command buffer, and returns its handle.
fn create_buffer(
    context: &mut Context,
    files: &OpenFiles<OpenNode>,
    owner: Identity,
    request: &CbIn,
) -> Result<u64, Errno> {
    if request.cb_size > cb::MAX_SIZE {
        return Err(Errno::INVAL);
    }
    // rule(cb-size)
    let size = u64::from(request.cb_size).max(PAGE);
    let handle = context.next(handle::COMMAND_BUFFER);
    let range = kernel_memory(files, owner, handle, size)?;
    let mut address = None;
    if request.flags & cb::FLAG_MAP != 0 {
        // A generation that cannot map it reports a lack of memory. rule(cb-map)
        let mut space = context.live.space.write();
        let mapped = space.map(Pool::Buffers, range.clone(), Hint::default(), MappingKind::Buffer);
        address = Some(mapped.ok_or(Errno::NOMEM)?);
    }
    let seen = Arc::new(AtomicBool::new(false));
    context.keep(Buffer { size, range, kind: BufferKind::Commands(address), seen, destroyed: false });
    Ok(handle)
}

impl Machine {
    /// A request about command buffers.
    pub(crate) fn command_buffer(&self, number: usize, argument: &mut [u8]) -> Result<(), Errno> {
        let request: CbIn = take(argument)?;
        let mut state = self.lock();
        let Cards { cards, files, .. } = &mut **state;
        let card = &mut cards[number];
        card.ready()?;
        let owner = card.owner;
        let context = card.context.as_mut().ok_or(Errno::NODEV)?;
        let found = match request.op {
            cb::CREATE => {
                let made = create_buffer(context, files, owner.ok_or(Errno::NODEV)?, &request);
                give(argument, &CbOut { cb_handle: made.unwrap_or(0) });
                return made.map(drop);
            }
            cb::DESTROY => {
                let id = request.cb_handle >> 12 & 0xFFFF_FFFF;
                let buffer =
                    context.buffers.get_mut(&id).filter(|buffer| !buffer.destroyed).ok_or(Errno::INVAL)?;
                buffer.destroyed = true;
                context.destroyed.insert(id);
                context.sweep();
                return Ok(());
            }
            cb::INFO => {
                let buffer = context.buffer(request.cb_handle).ok_or(Errno::INVAL)?;
                match buffer.kind {
                    BufferKind::Commands(Some(address)) if request.flags & cb::FLAG_GET_DEVICE_VA != 0 => {
                        address
                    }
                    _ if request.flags & cb::FLAG_GET_DEVICE_VA != 0 => return Err(Errno::INVAL),
                    // How many submissions use it: always zero, because the driver copies the commands at
                    // submission, and the second generation takes no such buffers. rule(cb-usage)
                    _ => 0,
                }
            }
            _ => return Err(Errno::INVAL),
        };
        give(argument, &CbOut { cb_handle: found });
        Ok(())
    }

    /// Makes a buffer for timestamps, and returns its handle. rule(timestamp-buffers)
    pub(crate) fn create_times(
        &self,
        process: &dyn Process,
        number: usize,
        count: u32,
    ) -> Result<u64, Errno> {
        const MOST: u32 = 1 << 20;
        if count > MOST {
            return Err(Errno::INVAL);
        }
        // A length of zero gets no memory.
        if count == 0 {
            return Err(Errno::NOMEM);
        }
        let size = u64::from(count) * 8;
        let mut state = self.lock();
        let Cards { cards, files, .. } = &mut **state;
        let card = &mut cards[number];
        let owner = card.owner.ok_or(Errno::NODEV)?;
        let context = card.context.as_mut().ok_or(Errno::NODEV)?;
        // The number alone finds buffers of both kinds, and they are mapped in the same way.
        // rule(handle-number)
        let reachable = handle::TIMESTAMPS <= process.last_offset();
        let handle = context.next(if reachable { handle::TIMESTAMPS } else { handle::COMMAND_BUFFER });
        let (range, seen) = (kernel_memory(files, owner, handle, size)?, Arc::new(AtomicBool::new(false)));
        context.keep(Buffer { size, range, kind: BufferKind::Times, seen, destroyed: false });
        Ok(handle)
    }

    /// Maps all of a buffer into the process, once at a time.
    pub(crate) fn see(
        self: &Arc<Self>,
        number: usize,
        file: OwnedFd,
        length: usize,
        offset: u64,
    ) -> Result<HostRange, Errno> {
        let mut state = self.lock();
        let Cards { cards, files, .. } = &mut **state;
        let card = &mut cards[number];
        if card.status == Status::Gone {
            return Err(Errno::NODEV);
        }
        let owner = card.owner.ok_or(Errno::NODEV)?;
        let context = card.context.as_mut().ok_or(Errno::NODEV)?;
        let (range, seen) = match offset & handle::KIND {
            handle::BLOCK => {
                let range = context.block((self.hardware, files, owner), offset, length as u64)?;
                (range, Arc::default())
            }
            handle::COMMAND_BUFFER | handle::TIMESTAMPS => {
                let buffer = context.buffer(offset).ok_or(Errno::INVAL)?;
                if buffer.range.length() != length as u64 || buffer.seen.swap(true, Ordering::AcqRel) {
                    return Err(Errno::INVAL);
                }
                (buffer.range.clone(), buffer.seen.clone())
            }
            _ => return Err(Errno::INVAL),
        };
        drop(state);
        let seen = BufferMapping { seen, file: Some(file), machine: Arc::downgrade(self), card: number };
        Ok(keeping(range, Box::new(seen)))
    }
}
