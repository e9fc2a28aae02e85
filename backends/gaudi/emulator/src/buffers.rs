//! Command buffers of the kernel: their requests, and how a process gets to see them.

use crate::card::CommandBuffer;
use crate::machine::{Cards, Machine};
use crate::space::{Pool, What};
use hal_backend::HostRange;
use hal_emulation::Errno;
use hal_emulation::PAGE;
use hal_emulation::drm::{give, take};
use hal_emulation::process::keeping;
use hal_gaudi_abi::uapi::{CbIn, CbOut, cb, handle};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// What a process has while it sees a command buffer: the file stays open that long, as for any mapping.
struct Seen {
    seen: Arc<AtomicBool>,
    file: Option<OwnedFd>,
    machine: Weak<Machine>,
}

impl Drop for Seen {
    fn drop(&mut self) {
        self.seen.store(false, Ordering::Release);
        drop(self.file.take());
        if let Some(machine) = self.machine.upgrade() {
            let mut state = machine.lock();
            machine.reap(&mut state);
        }
    }
}

impl Machine {
    /// A request about command buffers.
    pub(crate) fn command_buffer(&self, number: usize, argument: &mut [u8]) -> Result<(), Errno> {
        let request: CbIn = take(argument)?;
        let mut state = self.lock();
        let Cards { cards, files, .. } = &mut **state;
        let card = cards.get_mut(number).ok_or(Errno::NODEV)?;
        card.ready()?;
        let owner = card.owner;
        let context = card.context.as_mut().ok_or(Errno::NODEV)?;
        let found = match request.op {
            cb::CREATE => {
                if request.cb_size > cb::MAX_SIZE {
                    return Err(Errno::INVAL);
                }
                let size = u64::from(request.cb_size).max(1).next_multiple_of(PAGE);
                // Far enough apart that what is behind one handle does not reach the next one, read as an offset.
                let id = context.next_handle;
                context.next_handle += (u64::from(cb::MAX_SIZE) + 32) / PAGE;
                let name = handle::COMMAND_BUFFER | id << 12;
                let range = files.memory(owner.ok_or(Errno::NODEV)?, name, size)?;
                let mut device_address = None;
                if request.flags & cb::FLAG_MAP != 0 {
                    let mut space = context.live.space.write();
                    let address = space.map(Pool::Host, range.clone(), 0, None, What::Buffer);
                    device_address = Some(address.ok_or(Errno::NOMEM)?);
                }
                let seen = Arc::new(AtomicBool::new(false));
                context.buffers.insert(name, CommandBuffer { range, device_address, seen, used: 0 });
                name
            }
            cb::DESTROY => {
                let buffer = context.buffers.remove(&request.cb_handle).ok_or(Errno::INVAL)?;
                if let Some(address) = buffer.device_address {
                    context.live.space.write().unmap(address);
                }
                0
            }
            cb::INFO => {
                let buffer = context.buffers.get(&request.cb_handle).ok_or(Errno::INVAL)?;
                if request.flags & cb::FLAG_GET_DEVICE_VA != 0 {
                    buffer.device_address.ok_or(Errno::INVAL)?
                } else {
                    u64::from(buffer.used)
                }
            }
            _ => return Err(Errno::INVAL),
        };
        give(argument, &CbOut { cb_handle: found });
        Ok(())
    }

    /// Maps what a handle names into the process.
    pub(crate) fn see(
        self: &Arc<Self>,
        number: usize,
        file: OwnedFd,
        length: usize,
        offset: u64,
    ) -> Result<HostRange, Errno> {
        let state = self.lock();
        let card = state.cards.get(number).ok_or(Errno::NODEV)?;
        if card.status == crate::card::Status::Gone {
            return Err(Errno::NODEV);
        }
        let context = card.context.as_ref().ok_or(Errno::NODEV)?;
        let buffer = context.buffers.get(&offset).ok_or(Errno::INVAL)?;
        if buffer.range.length() != length as u64 || buffer.seen.swap(true, Ordering::AcqRel) {
            return Err(Errno::INVAL);
        }
        let (range, seen) = (buffer.range.clone(), buffer.seen.clone());
        drop(state);
        Ok(keeping(range, Box::new(Seen { seen, file: Some(file), machine: Arc::downgrade(self) })))
    }
}
