// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A range of any buffer, ours or another driver's, and the access that the program allows.
//!
//! `resolve.rs` finds its memory.

use crate::ffi::constants::Access;
use crate::ffi::object::{Borrowed, Retained, extent, to_u64};
use crate::ffi::status::Result;
use crate::memory::heap::HOST_VISIBLE;
use hal_semaphore::{Code, Failure};
use hal_sys as sys;

/// IREE's length "to the end".
pub(crate) const WHOLE: u64 = u64::MAX;

/// A range that an operation keeps until it has ended. Its memory may not be certain yet.
#[derive(Clone)]
pub(crate) struct BufferRange {
    pub(crate) buffer: Retained<sys::iree_hal_buffer_t>,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// A range of a buffer that is kept alive elsewhere: by C during a call, or by a [`BufferRange`].
#[derive(Clone, Copy)]
pub(crate) struct BorrowedRange<'a> {
    buffer: Borrowed<'a, sys::iree_hal_buffer_t>,
    offset: u64,
    pub(crate) length: u64,
}

impl<'a> BorrowedRange<'a> {
    /// A range of C's buffer, checked against the buffer's length, which never changes.
    ///
    /// # Safety
    ///
    /// The buffer is alive for `'a`, or null, which is refused.
    #[inline]
    pub(crate) unsafe fn new(
        buffer: *mut sys::iree_hal_buffer_t,
        offset: sys::iree_device_size_t,
        length: sys::iree_device_size_t,
    ) -> Result<Self> {
        // SAFETY: alive or null, as the caller promises.
        let buffer = unsafe { Borrowed::required(buffer, "a buffer is missing")? };
        Self::within(buffer, offset, length)
    }

    #[inline]
    fn within(
        buffer: Borrowed<'a, sys::iree_hal_buffer_t>,
        offset: sys::iree_device_size_t,
        length: sys::iree_device_size_t,
    ) -> Result<Self> {
        let range = Self { buffer, offset: to_u64(offset), length: extent(length) };
        let length = range.resolved_length()?;
        Ok(Self { length, ..range })
    }

    /// The same range for an operation, which keeps the buffer.
    #[inline]
    pub(crate) fn retain(self) -> BufferRange {
        BufferRange { buffer: self.buffer.retain(), offset: self.offset, length: self.length }
    }

    /// True if the host can map it.
    #[inline]
    pub(crate) fn is_host_visible(self) -> bool {
        // SAFETY: the buffer is borrowed; its type never changes.
        let memory_type = unsafe { (*self.buffer.get()).memory_type };
        memory_type & HOST_VISIBLE != 0
    }

    /// The access and the usage that the program gave the buffer.
    #[inline]
    pub(crate) fn allowed(self) -> (Access, sys::iree_hal_buffer_usage_t) {
        // SAFETY: the buffer is borrowed; what it allows never changes.
        unsafe { ((*self.buffer.get()).allowed_access, (*self.buffer.get()).allowed_usage) }
    }

    #[inline]
    fn resolved_length(self) -> Result<u64> {
        // SAFETY: the buffer is borrowed; its length never changes.
        let whole = to_u64(unsafe { (*self.buffer.get()).byte_length });
        let rest = whole.checked_sub(self.offset);
        match rest {
            Some(rest) if self.length == WHOLE => Ok(rest),
            Some(rest) if self.length <= rest => Ok(self.length),
            _ => Err(self.outside(whole)),
        }
    }

    #[cold]
    fn outside(self, whole: u64) -> Failure {
        let (offset, length) = (self.offset, self.length);
        let message = format!("{length} bytes at {offset} are not inside a buffer of {whole} bytes");
        Failure::new(Code::OutOfRange, message)
    }

    /// The allocation that the buffer is part of, and the range's offset in it. A buffer keeps its allocation.
    #[inline]
    pub(super) fn allocation(self) -> Result<(Borrowed<'a, sys::iree_hal_buffer_t>, u64)> {
        let (allocation, begin) = allocation_of(self.buffer)?;
        Ok((allocation, begin + self.offset))
    }
}

impl BufferRange {
    /// A retained range of C's buffer, as [`BorrowedRange::new`].
    ///
    /// # Safety
    ///
    /// The buffer is alive, or null, which is refused.
    #[inline]
    pub(crate) unsafe fn retain(
        buffer: *mut sys::iree_hal_buffer_t,
        offset: sys::iree_device_size_t,
        length: sys::iree_device_size_t,
    ) -> Result<Self> {
        // SAFETY: the buffer is alive or null, as the function asks.
        unsafe { BorrowedRange::new(buffer, offset, length) }.map(BorrowedRange::retain)
    }

    #[inline]
    pub(crate) fn new(
        buffer: Retained<sys::iree_hal_buffer_t>,
        offset: sys::iree_device_size_t,
        length: sys::iree_device_size_t,
    ) -> Result<Self> {
        let BorrowedRange { offset, length, .. } = BorrowedRange::within(buffer.borrow(), offset, length)?;
        Ok(Self { buffer, offset, length })
    }

    /// Releases the buffer unless this is the last reference to it, which is returned: its release may call the
    /// program.
    pub(crate) fn release_unless_last(self) -> Option<Self> {
        let Self { buffer, offset, length } = self;
        Some(Self { buffer: buffer.release_unless_last()?, offset, length })
    }

    /// The same range, borrowed from this.
    #[inline]
    pub(crate) fn borrow(&self) -> BorrowedRange<'_> {
        BorrowedRange { buffer: self.buffer.borrow(), offset: self.offset, length: self.length }
    }

    /// True if the host can map it.
    #[inline]
    pub(crate) fn is_host_visible(&self) -> bool {
        self.borrow().is_host_visible()
    }

    /// The buffer's address, the offset and the length.
    fn bytes(&self) -> (*mut sys::iree_hal_buffer_t, u64, u64) {
        // SAFETY: the buffer is retained, and what it is allocated from lives as long as it does.
        unsafe {
            let buffer = self.buffer.get();
            let start = to_u64((*buffer).byte_offset) + self.offset;
            ((*buffer).allocated_buffer, start, start + self.length)
        }
    }

    /// A sort key: the buffer's address and the offset.
    pub(crate) fn place(&self) -> (usize, u64) {
        let (buffer, start, _) = self.bytes();
        (buffer.addr(), start)
    }

    /// The offset of this range in `other`, if it is inside.
    pub(crate) fn offset_in(&self, other: &BufferRange) -> Option<u64> {
        let ((buffer, start, end), (within, begin, stop)) = (self.bytes(), other.bytes());
        (buffer == within && begin <= start && end <= stop).then(|| start - begin)
    }

    /// The smallest range that contains both, if they overlap.
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

    /// The only device that can use it: its owner, if the host cannot map the memory.
    #[inline]
    pub(crate) fn sole_user(&self) -> Option<*mut sys::iree_hal_device_t> {
        if self.is_host_visible() {
            return None;
        }
        // SAFETY: the buffer is retained, and its allocation lives as long. Its placement never changes.
        let owner = unsafe { (*(*self.buffer.get()).allocated_buffer).placement.device };
        (!owner.is_null()).then_some(owner)
    }

    /// The only device that can use it, if that is not `device`.
    #[inline]
    pub(crate) fn foreign_sole_user(
        &self,
        device: *mut sys::iree_hal_device_t,
    ) -> Option<*mut sys::iree_hal_device_t> {
        self.sole_user().filter(|&owner| owner != device)
    }

    /// A part of this range.
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
}

/// The allocation that a buffer is part of, which it keeps, and the buffer's offset in it.
#[inline]
pub(super) fn allocation_of<'a>(
    buffer: Borrowed<'a, sys::iree_hal_buffer_t>,
) -> Result<(Borrowed<'a, sys::iree_hal_buffer_t>, u64)> {
    // SAFETY: the buffer is borrowed, and keeps what it is part of.
    unsafe {
        let buffer = buffer.get();
        let allocation = Borrowed::required((*buffer).allocated_buffer, "a buffer is part of none")?;
        Ok((allocation, to_u64((*buffer).byte_offset)))
    }
}
