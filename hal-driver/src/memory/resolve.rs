// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The memory of a [`BufferRange`]: a device's own, or the host's view of another device's.

use crate::ffi::constants::{ACCESS_ANY, ACCESS_READ, ACCESS_WRITE, Access};
use crate::ffi::object::{Borrowed, Retained, to_device_size, to_u64};
use crate::ffi::status::{Result, check};
use crate::memory::backing::owner_is_gone;
use crate::memory::buffer::Buffer;
use crate::memory::buffer_range::{BorrowedRange, BufferRange, allocation_of};
use crate::memory::transient::{TransientBuffer, no_memory};
use hal_backend::{Device, HostRange, Place, Span};
use hal_semaphore::{Code, Failure, WithoutCallbacks};
use hal_sys as sys;
use std::cell::UnsafeCell;
use std::os::fd::OwnedFd;
use std::sync::Arc;

impl BorrowedRange<'_> {
    /// The memory, if the buffer is an allocation of the device that keeps it until its end and has no release
    /// callback: then the memory may be used without the buffer. Memory behind reserved addresses comes and goes.
    #[inline(always)]
    pub(crate) fn resolve_static<D: Device>(self, device: &Arc<D>) -> Option<Span<D>> {
        let (allocation, offset) = self.allocation().ok()?;
        let (buffer, memory) = of_device(allocation, device)?;
        if buffer.release.is_some() || buffer.backing.addresses().is_some() {
            return None;
        }
        let place = Place::Device(memory.clone(), buffer.offset + offset);
        Some(Span { place, length: self.length })
    }
}

impl BufferRange {
    /// The device of the buffer's placement, which a buffer does not keep.
    pub(crate) fn owner(&self) -> Result<Retained<sys::iree_hal_device_t>> {
        let (allocation, _) = self.borrow().allocation()?;
        let owner = if let Some(buffer) = Buffer::recognise(allocation) {
            buffer.backing.parent().retain()
        } else if let Some(buffer) = TransientBuffer::of(allocation) {
            buffer.owner()
        } else {
            // SAFETY: the range keeps its buffer alive. Another driver's device exists as long as work is submitted
            // to it; the program promises this, as IREE's placement documents.
            unsafe { Retained::retain((*allocation.get()).placement.device) }
        };
        owner.ok_or_else(owner_is_gone)
    }

    /// The memory as it is now. A stream-ordered buffer has memory between its allocation and its deallocation.
    fn allocated(&self) -> Result<Allocated<'_>> {
        let (allocation, offset) = self.borrow().allocation()?;
        let backing = match TransientBuffer::of(allocation) {
            Some(transient) => transient.backing()?,
            None => match foreign_backing(allocation)? {
                Some(backing) => backing,
                None => return Ok(Allocated { memory: Memory::Whole(allocation), offset, range: self }),
            },
        };
        let (allocation, begin) = allocation_of(backing.borrow())?;
        // Usually the memory's buffer is its whole allocation, and the reference to it suffices.
        let other = (allocation.get() != backing.get()).then(|| allocation.retain());
        let memory = Memory::Backing(other.unwrap_or(backing));
        Ok(Allocated { memory, offset: begin + offset, range: self })
    }

    /// The memory for a device that writes it or does not: its own, or other memory through the host.
    pub(crate) fn resolve<D: Device>(&self, device: &Arc<D>, writes: bool) -> Result<Span<D>> {
        let allocated = self.allocated()?;
        if let Some((buffer, memory)) = of_device(allocated.buffer(), device) {
            if let Some(addresses) = buffer.backing.addresses() {
                addresses.check(allocated.offset, self.length, writes)?;
            }
            let place = Place::Device(memory.clone(), buffer.offset + allocated.offset);
            return Ok(Span { place, length: self.length });
        }
        // Resolving must not wait: memory that has to be copied was bounced before.
        let access = match (self.sole_user().is_some(), writes) {
            (true, _) => ACCESS_READ,
            (false, false) => ACCESS_ANY,
            // What is mapped for any access may only be readable.
            (false, true) => ACCESS_ANY | ACCESS_WRITE,
        };
        let range = allocated.map(access).map_err(|failure| {
            let message = format!(
                "a buffer of another device can only be used through the host: {}",
                failure.message()
            );
            Failure::new(failure.code(), message)
        })?;
        Ok(Span { place: Place::Host(range), length: self.length })
    }

    /// The address of the memory for functions of its device's executables. A program keeps the memory while it uses
    /// the address.
    pub(crate) fn address(&self) -> Result<u64> {
        let allocated = self.allocated()?;
        let own = Buffer::recognise(allocated.buffer());
        let address =
            own.and_then(|buffer| Some(buffer.backing.address()? + buffer.offset + allocated.offset));
        address.ok_or_else(|| {
            let message = "functions of the buffer's device get no plain addresses, so there is none to export; export \
                           a host allocation or a file descriptor";
            Failure::new(Code::Unavailable, message)
        })
    }

    /// A descriptor of the memory, which is a whole allocation.
    pub(crate) fn descriptor(&self) -> Result<OwnedFd> {
        let (allocation, offset) = self.borrow().allocation()?;
        let Some(buffer) = Buffer::recognise(allocation) else {
            let message = "stream-ordered memory has no descriptor; allocate the buffer from the device's \
                           allocator with IREE_HAL_BUFFER_USAGE_SHARING_EXPORT";
            return Err(Failure::new(Code::Unavailable, message));
        };
        // SAFETY: the allocation is borrowed; its length never changes.
        let whole = to_u64(unsafe { (*allocation.get()).byte_length });
        if (buffer.offset + offset, self.length) != (0, whole) {
            let message = format!(
                "a descriptor has all {whole} bytes of an allocation, not {} at {offset}; export the whole buffer",
                self.length
            );
            return Err(Failure::new(Code::InvalidArgument, message));
        }
        buffer.backing.descriptor()
    }

    /// The bytes as host memory, mapped while a reference to the range is left.
    pub(crate) fn map(&self, access: Access) -> Result<HostRange> {
        self.allocated()?.map(access)
    }
}

/// The memory of another driver's stream-ordered buffer, if it is one and cannot be mapped itself.
///
/// Such a buffer maps its memory under its own lock, so that is tried first. Once a deallocation is queued it maps
/// nothing more, although work that was ordered before may still have to run here. Then its memory is taken, which
/// IREE gives out without a reference: the program promises that it stays until this holds one, as it orders the
/// deallocation after this work. This is never done for our own buffers.
fn foreign_backing(
    buffer: Borrowed<'_, sys::iree_hal_buffer_t>,
) -> Result<Option<Retained<sys::iree_hal_buffer_t>>> {
    let buffer = buffer.get();
    // SAFETY: the buffer is borrowed; its memory stays by the order that the program gave its deallocation.
    unsafe {
        if !sys::iree_hal_local_transient_buffer_isa(buffer)
            || !sys::iree_hal_local_transient_buffer_is_dealloca_queued(buffer)
        {
            return Ok(None);
        }
        let backing = Retained::retain(sys::iree_hal_local_transient_buffer_backing_buffer(buffer));
        backing.map(Some).ok_or_else(no_memory)
    }
}

/// The memory of a range at one time.
struct Allocated<'a> {
    memory: Memory<'a>,
    /// The range's offset in it.
    offset: u64,
    range: &'a BufferRange,
}

enum Memory<'a> {
    /// The allocation of the range's buffer, which lives as long as the buffer.
    Whole(Borrowed<'a, sys::iree_hal_buffer_t>),
    /// The memory of a stream-ordered buffer at that time, whatever happens to the buffer.
    Backing(Retained<sys::iree_hal_buffer_t>),
}

impl Allocated<'_> {
    fn buffer(&self) -> Borrowed<'_, sys::iree_hal_buffer_t> {
        match &self.memory {
            Memory::Whole(buffer) => *buffer,
            Memory::Backing(buffer) => buffer.borrow(),
        }
    }

    /// The bytes as host memory, mapped while a reference to the range is left.
    fn map(&self, access: Access) -> Result<HostRange> {
        let buffer = self.buffer();
        let mut mapping = sys::iree_hal_buffer_mapping_t::default();
        // SAFETY: the buffer is borrowed, and the mapping keeps it; the mapping is ours, and valid until its owner
        // unmaps it.
        unsafe {
            check(sys::iree_hal_buffer_map_range(
                buffer.get(),
                sys::IREE_HAL_MAPPING_MODE_SCOPED,
                access,
                to_device_size(self.offset),
                to_device_size(self.range.length),
                &raw mut mapping,
            ))?;
            let (start, length) = (mapping.contents.data, mapping.contents.data_length);
            let (mapping, source) = (mapping.into(), self.range.buffer.clone());
            let owner = Arc::new(Mapping { mapping, source: Some(source) });
            Ok(HostRange::from_raw(start, length, Some(owner)))
        }
    }
}

/// The buffer as one of this device's, with its memory, if it is.
fn of_device<'a, D: Device>(
    buffer: Borrowed<'a, sys::iree_hal_buffer_t>,
    device: &Arc<D>,
) -> Option<(&'a Buffer, &'a Arc<D::Memory>)> {
    let buffer = Buffer::recognise(buffer)?;
    Some((buffer, buffer.backing.of(device)?))
}

/// A mapping that ends when its last range is dropped. It is scoped, so IREE keeps the memory's buffer as long.
///
/// # Invariants
///
/// `mapping` was made by IREE, and only this ends it, when it is dropped. Until then nothing accesses it.
struct Mapping {
    mapping: UnsafeCell<sys::iree_hal_buffer_mapping_t>,
    /// Keeps a stream-ordered buffer, which keeps the pool of its memory.
    source: Option<Retained<sys::iree_hal_buffer_t>>,
}

// SAFETY: the mapping is only touched when it is dropped, by the invariant.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Written bytes go back before waiters are notified; but buffers have release callbacks, and are released
        // on a thread that may call the program.
        let mapped = WithoutCallbacks::is_active().then(|| {
            // SAFETY: the mapping keeps the buffer until it ends.
            unsafe { Retained::retain(self.mapping.get_mut().buffer) }
        });
        // SAFETY: ended here alone, by the invariant. The error of a flush that fails can be returned to no caller
        // here.
        unsafe { drop(check(sys::iree_hal_buffer_unmap_range(self.mapping.get()))) };
        if let Some(mapped) = mapped {
            for buffer in mapped.into_iter().chain(self.source.take()) {
                if let Some(last) = buffer.release_unless_last() {
                    WithoutCallbacks::call_back(move || drop(last));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
