// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Part of any buffer, ours or another driver's, as something that a queue can work on.

use crate::ffi::constants::{ACCESS_ANY, ACCESS_READ, Access};
use crate::ffi::object::{Lent, Retained, extent, to_device_size, to_u64};
use crate::ffi::status::{Result, check};
use crate::memory::backing::{DeviceMemory, owner_is_gone};
use crate::memory::buffer::Buffer;
use crate::memory::heap::HOST_VISIBLE;
use crate::memory::transient::{TransientBuffer, no_memory};
use hal_backend::{Device, HostRange, Place, Span};
use hal_semaphore::{Code, Failure, WithoutCallbacks};
use hal_sys as sys;
use std::cell::UnsafeCell;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// "To the end", as IREE writes it.
pub(crate) const WHOLE: u64 = u64::MAX;

/// Part of a buffer that an operation keeps until it has ended. Which memory that is may not be certain yet.
#[derive(Clone)]
pub(crate) struct BufferRange {
    pub(crate) buffer: Retained<sys::iree_hal_buffer_t>,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl BufferRange {
    /// Part of a buffer that C lends us, checked against the buffer's length, which never changes.
    ///
    /// # Safety
    ///
    /// The buffer is alive, or null, which is refused.
    #[inline]
    pub(crate) unsafe fn lent(
        buffer: *mut sys::iree_hal_buffer_t,
        offset: sys::iree_device_size_t,
        length: sys::iree_device_size_t,
    ) -> Result<Self> {
        // SAFETY: alive or null, as the caller promises.
        let buffer = unsafe { Lent::required(buffer, "a buffer is missing")? };
        Self::new(buffer.retain(), offset, length)
    }

    /// Part of a buffer.
    #[inline]
    pub(crate) fn new(
        buffer: Retained<sys::iree_hal_buffer_t>,
        offset: sys::iree_device_size_t,
        length: sys::iree_device_size_t,
    ) -> Result<Self> {
        let range = Self { buffer, offset: to_u64(offset), length: extent(length) };
        let length = range.resolved_length()?;
        Ok(Self { length, ..range })
    }

    /// The memory, if the buffer is an allocation of the device's that keeps it for good and belongs to nobody who wants to
    /// be told when the buffer is gone. Whoever has the memory of such a buffer need not keep the buffer.
    pub(crate) fn resolve_static<D: Device>(&self, device: &Arc<D>) -> Option<Span<D>> {
        let (allocation, offset) = self.allocation().ok()?;
        let (buffer, memory) = of_device(allocation, device)?;
        if buffer.release.is_some() {
            return None;
        }
        let place = Place::Device(memory.clone(), buffer.offset + offset);
        Some(Span { place, length: self.length })
    }

    /// Whether the host can map it.
    #[inline]
    pub(crate) fn is_host_visible(&self) -> bool {
        // SAFETY: the buffer is retained; its type never changes.
        let memory_type = unsafe { (*self.buffer.get()).memory_type };
        memory_type & HOST_VISIBLE != 0
    }

    /// The access and the usage that the program asked for when it made the buffer.
    #[inline]
    pub(crate) fn allowed(&self) -> (Access, sys::iree_hal_buffer_usage_t) {
        // SAFETY: the buffer is retained; what it allows never changes.
        unsafe { ((*self.buffer.get()).allowed_access, (*self.buffer.get()).allowed_usage) }
    }

    /// Which bytes of which buffer it is.
    fn bytes(&self) -> (*mut sys::iree_hal_buffer_t, u64, u64) {
        // SAFETY: the buffer is retained, and what it is allocated from lives as long as it does.
        unsafe {
            let buffer = self.buffer.get();
            let start = to_u64((*buffer).byte_offset) + self.offset;
            ((*buffer).allocated_buffer, start, start + self.length)
        }
    }

    /// Where it begins: a number for its buffer, and the first byte there.
    pub(crate) fn place(&self) -> (usize, u64) {
        let (buffer, start, _) = self.bytes();
        (buffer.addr(), start)
    }

    /// Where in other bytes of the same buffer these begin, if all of them are there.
    pub(crate) fn offset_in(&self, other: &BufferRange) -> Option<u64> {
        let ((buffer, start, end), (within, begin, stop)) = (self.bytes(), other.bytes());
        (buffer == within && begin <= start && end <= stop).then(|| start - begin)
    }

    /// All from the first to the last byte of both, if they have bytes in common.
    pub(crate) fn union(&self, other: &BufferRange) -> Option<BufferRange> {
        let ((buffer, start, end), (within, begin, stop)) = (self.bytes(), other.bytes());
        if buffer != within || start >= stop || begin >= end {
            return None;
        }
        let (first, last) = (start.min(begin), end.max(stop));
        // SAFETY: what a buffer is allocated from lives as long as it, and one of its parts is retained.
        let (whole, before) = unsafe { (Retained::retain(buffer)?, to_u64((*buffer).byte_offset)) };
        Some(BufferRange { buffer: whole, offset: first - before, length: last - first })
    }

    /// The device that alone can use it: its owner, where the host cannot map the memory.
    #[inline]
    pub(crate) fn sole_user(&self) -> Option<*mut sys::iree_hal_device_t> {
        if self.is_host_visible() {
            return None;
        }
        // SAFETY: the buffer is retained, and what it is allocated from lives as long as it does. Where it is placed never
        // changes.
        let owner = unsafe { (*(*self.buffer.get()).allocated_buffer).placement.device };
        (!owner.is_null()).then_some(owner)
    }

    /// The device that alone can use it, if that is another one than `device`.
    #[inline]
    pub(crate) fn out_of_reach(
        &self,
        device: *mut sys::iree_hal_device_t,
    ) -> Option<*mut sys::iree_hal_device_t> {
        self.sole_user().filter(|&owner| owner != device)
    }

    /// The device that it is placed on, which a buffer does not keep.
    pub(crate) fn owner(&self) -> Result<Retained<sys::iree_hal_device_t>> {
        let (allocation, _) = self.allocation()?;
        let owner = if let Some(buffer) = Buffer::recognise(allocation) {
            buffer.backing.parent().retain()
        } else if let Some(buffer) = TransientBuffer::of(allocation) {
            buffer.owner()
        } else {
            // SAFETY: the buffer is alive. That another driver's device is there as long as work is asked of it is the
            // promise of the program, as IREE's placement says.
            unsafe { Retained::retain((*allocation.get()).placement.device) }
        };
        owner.ok_or_else(owner_is_gone)
    }

    #[inline]
    fn resolved_length(&self) -> Result<u64> {
        // SAFETY: the buffer is retained; its length never changes.
        let whole = to_u64(unsafe { (*self.buffer.get()).byte_length });
        let rest = whole.checked_sub(self.offset);
        match rest {
            Some(rest) if self.length == WHOLE => Ok(rest),
            Some(rest) if self.length <= rest => Ok(self.length),
            _ => {
                let (offset, length) = (self.offset, self.length);
                let message = format!("{length} bytes at {offset} are not inside a buffer of {whole} bytes");
                Err(Failure::new(Code::OutOfRange, message))
            }
        }
    }

    /// A part of this part.
    pub(crate) fn part(&self, offset: u64, length: u64) -> Result<Self> {
        let rest = self.length.checked_sub(offset);
        match rest {
            Some(rest) if length == WHOLE => {
                Ok(Self { length: rest, offset: self.offset + offset, ..self.clone() })
            }
            Some(rest) if length <= rest => Ok(Self { length, offset: self.offset + offset, ..self.clone() }),
            _ => {
                let whole = self.length;
                let message = format!("{length} bytes at {offset} are not inside a binding of {whole} bytes");
                Err(Failure::new(Code::OutOfRange, message))
            }
        }
    }

    /// What the buffer is part of, and where in that the range begins. A buffer keeps what it is part of.
    #[inline]
    fn allocation(&self) -> Result<(Lent<'_, sys::iree_hal_buffer_t>, u64)> {
        let (allocation, begin) = allocation_of(self.buffer.lend())?;
        Ok((allocation, begin + self.offset))
    }

    /// The memory as it is now: a stream-ordered buffer has some between its allocation and its deallocation, whoever's it is.
    fn allocated(&self) -> Result<Allocated<'_>> {
        let (allocation, offset) = self.allocation()?;
        let backing = match TransientBuffer::of(allocation) {
            Some(transient) => transient.backing()?,
            None => match foreign_backing(allocation)? {
                Some(backing) => backing,
                None => return Ok(Allocated { memory: Memory::Whole(allocation), offset, range: self }),
            },
        };
        let (allocation, begin) = allocation_of(backing.lend())?;
        // Mostly the memory's buffer is all of its allocation, and the reference to it will do.
        let other = (allocation.get() != backing.get()).then(|| allocation.retain());
        let memory = Memory::Backing(other.unwrap_or(backing));
        Ok(Allocated { memory, offset: begin + offset, range: self })
    }

    /// The memory for a device: its own, or anybody else's through the host.
    pub(crate) fn resolve<D: Device>(&self, device: &Arc<D>) -> Result<Span<D>> {
        let allocated = self.allocated()?;
        if let Some((buffer, memory)) = of_device(allocated.buffer(), device) {
            let place = Place::Device(memory.clone(), buffer.offset + allocated.offset);
            return Ok(Span { place, length: self.length });
        }
        // Resolving must not wait: what has to be copied was bounced before.
        let access = if self.sole_user().is_some() { ACCESS_READ } else { ACCESS_ANY };
        let range = allocated.map(access).map_err(|failure| {
            let message = format!(
                "a buffer of another device can only be used through the host: {}",
                failure.message()
            );
            Failure::new(failure.code(), message)
        })?;
        Ok(Span { place: Place::Host(range), length: self.length })
    }

    /// A descriptor of the memory, which is all of an allocation.
    pub(crate) fn descriptor(&self) -> Result<OwnedFd> {
        let (allocation, offset) = self.allocation()?;
        let Some(buffer) = Buffer::recognise(allocation) else {
            let message = "memory that is allocated in queue order has no descriptor; allocate the buffer from the device's \
                           allocator with IREE_HAL_BUFFER_USAGE_SHARING_EXPORT";
            return Err(Failure::new(Code::Unavailable, message));
        };
        // SAFETY: the allocation is lent; its length never changes.
        let whole = to_u64(unsafe { (*allocation.get()).byte_length });
        if (buffer.offset + offset, self.length) != (0, whole) {
            let message = format!(
                "a descriptor is of all {whole} bytes of an allocation, and not of {} at {offset}; export the whole buffer",
                self.length
            );
            return Err(Failure::new(Code::InvalidArgument, message));
        }
        buffer.backing.descriptor()
    }

    /// The bytes as host memory, mapped as long as anybody has the range.
    pub(crate) fn map(&self, access: Access) -> Result<HostRange> {
        self.allocated()?.map(access)
    }
}

/// What a buffer is part of, which it keeps, and where in that it begins.
fn allocation_of<'a>(
    buffer: Lent<'a, sys::iree_hal_buffer_t>,
) -> Result<(Lent<'a, sys::iree_hal_buffer_t>, u64)> {
    // SAFETY: the buffer is lent, and keeps what it is part of.
    unsafe {
        let buffer = buffer.get();
        let allocation = Lent::required((*buffer).allocated_buffer, "a buffer is part of none")?;
        Ok((allocation, to_u64((*buffer).byte_offset)))
    }
}

/// The memory of a stream-ordered buffer of another driver, if that is what it is and it cannot be mapped by itself.
///
/// Such a buffer maps its memory under its own lock, so that is how it is used. Once a deallocation is queued it maps nothing
/// more, though what was ordered before that may still have to run here. Its memory is then taken from it, which IREE lends
/// without a reference: that it stays until we have one is the promise of the program, which orders the deallocation behind
/// us. Of our own buffers nothing is believed.
fn foreign_backing(
    buffer: Lent<'_, sys::iree_hal_buffer_t>,
) -> Result<Option<Retained<sys::iree_hal_buffer_t>>> {
    let buffer = buffer.get();
    // SAFETY: the buffer is lent; its memory stays by the order that the program gave its deallocation.
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

/// The memory of a range, at one time.
struct Allocated<'a> {
    memory: Memory<'a>,
    /// Where in it the range begins.
    offset: u64,
    range: &'a BufferRange,
}

enum Memory<'a> {
    /// What the range's buffer is part of, for as long as the buffer.
    Whole(Lent<'a, sys::iree_hal_buffer_t>),
    /// What a stream-ordered buffer had when it was asked, whatever becomes of that.
    Backing(Retained<sys::iree_hal_buffer_t>),
}

impl Allocated<'_> {
    /// The buffer of the memory.
    fn buffer(&self) -> Lent<'_, sys::iree_hal_buffer_t> {
        match &self.memory {
            Memory::Whole(buffer) => *buffer,
            Memory::Backing(buffer) => buffer.lend(),
        }
    }

    /// The bytes as host memory, mapped as long as anybody has the range.
    fn map(&self, access: Access) -> Result<HostRange> {
        let buffer = self.buffer();
        let mut mapping = sys::iree_hal_buffer_mapping_t::default();
        // SAFETY: the buffer is lent, and the mapping keeps it; that is ours, and valid until it is unmapped, which its owner does.
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

/// A buffer as one of this device's, with its memory, if it is.
fn of_device<'a, D: Device>(
    buffer: Lent<'a, sys::iree_hal_buffer_t>,
    device: &Arc<D>,
) -> Option<(&'a Buffer, &'a Arc<D::Memory>)> {
    let buffer = Buffer::recognise(buffer)?;
    Some((buffer, DeviceMemory::recognise(&*buffer.backing, device)?))
}

/// A mapping that ends when its last range is dropped. It is scoped, so IREE keeps the memory's buffer as long.
struct Mapping {
    mapping: UnsafeCell<sys::iree_hal_buffer_mapping_t>,
    /// A stream-ordered buffer keeps the pool that its memory is from. There until this is dropped.
    source: Option<Retained<sys::iree_hal_buffer_t>>,
}

// SAFETY: the mapping is only touched when it is dropped.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // What is written back is so before anybody is told; but buffers have release callbacks, and are let go of where a program may be
        // called back.
        let mapped = WithoutCallbacks::is_there().then(|| {
            // SAFETY: the mapping keeps the buffer until it ends.
            unsafe { Retained::retain(self.mapping.get_mut().buffer) }
        });
        // SAFETY: mapped once, unmapped once. A flush that fails has nobody left to tell.
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
