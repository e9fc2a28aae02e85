// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A card's memory, dma-bufs of it, and command buffers of the kernel.

use super::super::uapi::{
    Call, CbIn, CbOut, MemAlloc, MemExport, MemFree, MemMapDevice, MemMapHost, MemOut, MemRegister, MemUnmap,
    cb, mem,
};
use super::{Card, Errno};
use hal_backend::HostRange;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use zerocopy::{Immutable, IntoBytes};

impl Card {
    fn memory<I: IntoBytes + Immutable>(&self, input: &I) -> Result<u64, Errno> {
        let (output, result) = self.call::<_, MemOut>(Call::Memory, input);
        result.map(|()| output.handle)
    }

    /// Takes device memory: a handle. Its pages may lie anywhere, since the card sees them through a mapping.
    pub fn allocate(&self, size: u64) -> Result<u64, Errno> {
        self.memory(&MemAlloc { mem_size: size, op: mem::ALLOC, ..MemAlloc::default() })
    }

    /// Gives device memory back.
    pub fn free(&self, handle: u64) -> Result<(), Errno> {
        self.memory(&MemFree { handle, op: mem::FREE, ..MemFree::default() }).map(drop)
    }

    /// Makes device memory addressable: its address.
    pub fn map_device(&self, handle: u64) -> Result<u64, Errno> {
        self.memory(&MemMapDevice { handle, op: mem::MAP, ..MemMapDevice::default() })
    }

    /// Makes host memory addressable by the device, and pins it: its address there.
    pub fn map_host(&self, range: &HostRange) -> Result<u64, Errno> {
        self.memory(&MemMapHost {
            host_virt_addr: range.address() as u64,
            mem_size: range.length(),
            op: mem::MAP,
            flags: mem::USERPTR,
            ..MemMapHost::default()
        })
    }

    /// Ends a mapping.
    pub fn unmap(&self, address: u64) -> Result<(), Errno> {
        self.memory(&MemUnmap { device_virt_addr: address, op: mem::UNMAP, ..MemUnmap::default() }).map(drop)
    }

    /// Makes a dma-buf of `size` bytes of device memory, at `offset` of a mapping or plainly at an address.
    pub fn export(&self, address: u64, size: u64, offset: u64) -> Result<OwnedFd, Errno> {
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        let descriptor = self.memory(&MemExport {
            addr: address,
            mem_size: size,
            offset,
            op: mem::EXPORT_DMABUF_FD,
            flags: flags.bits(),
            ..MemExport::default()
        })?;
        // The lower half of the answer is the descriptor.
        let number = i32::try_from(descriptor & u64::from(u32::MAX)).map_err(|_| Errno::BADF)?;
        // SAFETY: the kernel made the descriptor for this call, so it has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }

    /// Makes a dma-buf addressable, where the kernel can: its address.
    pub fn register(&self, buffer: BorrowedFd<'_>, length: u64) -> Result<u64, Errno> {
        let fd = u64::try_from(buffer.as_raw_fd()).map_err(|_| Errno::BADF)?;
        self.memory(&MemRegister { fd, length, op: mem::REGISTER_DMABUF_FD, ..MemRegister::default() })
    }

    /// Makes a command buffer of the kernel, and maps it.
    pub fn create_command_buffer(&self, size: u32) -> Result<(u64, HostRange), Errno> {
        let (output, result) = self.call::<_, CbOut>(
            Call::CommandBuffer,
            &CbIn { op: cb::CREATE, cb_size: size, ..CbIn::default() },
        );
        result?;
        let handle = output.cb_handle;
        let mapped = {
            let file = self.file.read();
            file.as_ref().ok_or(Errno::NODEV)?.map(size as usize, handle)
        };
        match mapped {
            Ok(range) => Ok((handle, range)),
            Err(errno) => {
                // It was made for nothing; that it cannot be mapped is what the caller wants to know.
                let _ = self.destroy_command_buffer(handle);
                Err(errno)
            }
        }
    }

    /// Gives a command buffer back.
    pub fn destroy_command_buffer(&self, handle: u64) -> Result<(), Errno> {
        let input = CbIn { cb_handle: handle, op: cb::DESTROY, ..CbIn::default() };
        self.call::<_, CbOut>(Call::CommandBuffer, &input).1
    }
}
