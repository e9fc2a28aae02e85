// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Part of any buffer, ours or another driver's: which bytes of which buffer, and what the program may do with them.
//!
//! Which memory that is, as far as it is certain already, `resolve.rs` says.

use crate::ffi::constants::Access;
use crate::ffi::object::{Lent, Retained, extent, to_u64};
use crate::ffi::status::Result;
use crate::memory::heap::HOST_VISIBLE;
use hal_semaphore::{Code, Failure};
use hal_sys as sys;

/// "To the end", as IREE writes it.
pub(crate) const WHOLE: u64 = u64::MAX;

/// Part of a buffer that an operation keeps until it has ended. Which memory that is may not be certain yet.
#[derive(Clone)]
pub(crate) struct BufferRange {
    pub(crate) buffer: Retained<sys::iree_hal_buffer_t>,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// Part of a buffer that is kept alive elsewhere: by C during a call, or by a [`BufferRange`].
#[derive(Clone, Copy)]
pub(crate) struct LentRange<'a> {
    buffer: Lent<'a, sys::iree_hal_buffer_t>,
    offset: u64,
    pub(crate) length: u64,
}

impl<'a> LentRange<'a> {
    /// Part of a buffer that C lends us, checked against the buffer's length, which never changes.
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
        let buffer = unsafe { Lent::required(buffer, "a buffer is missing")? };
        Self::within(buffer, offset, length)
    }

    #[inline]
    fn within(
        buffer: Lent<'a, sys::iree_hal_buffer_t>,
        offset: sys::iree_device_size_t,
        length: sys::iree_device_size_t,
    ) -> Result<Self> {
        let range = Self { buffer, offset: to_u64(offset), length: extent(length) };
        let length = range.resolved_length()?;
        Ok(Self { length, ..range })
    }

    /// The same for an operation, which keeps the buffer until it has ended.
    #[inline]
    pub(crate) fn retain(self) -> BufferRange {
        BufferRange { buffer: self.buffer.retain(), offset: self.offset, length: self.length }
    }

    /// Whether the host can map it.
    #[inline]
    pub(crate) fn is_host_visible(self) -> bool {
        // SAFETY: the buffer is lent; its type never changes.
        let memory_type = unsafe { (*self.buffer.get()).memory_type };
        memory_type & HOST_VISIBLE != 0
    }

    /// The access and the usage that the program asked for when it made the buffer.
    #[inline]
    pub(crate) fn allowed(self) -> (Access, sys::iree_hal_buffer_usage_t) {
        // SAFETY: the buffer is lent; what it allows never changes.
        unsafe { ((*self.buffer.get()).allowed_access, (*self.buffer.get()).allowed_usage) }
    }

    #[inline]
    fn resolved_length(self) -> Result<u64> {
        // SAFETY: the buffer is lent; its length never changes.
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

    /// What the buffer is part of, and where in that the range begins. A buffer keeps what it is part of.
    #[inline]
    pub(super) fn allocation(self) -> Result<(Lent<'a, sys::iree_hal_buffer_t>, u64)> {
        let (allocation, begin) = allocation_of(self.buffer)?;
        Ok((allocation, begin + self.offset))
    }
}

impl BufferRange {
    /// Part of a buffer that C lends us, as [`LentRange::new`].
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
        // SAFETY: the buffer is alive or null, as the function asks.
        unsafe { LentRange::new(buffer, offset, length) }.map(LentRange::retain)
    }

    /// Part of a buffer.
    #[inline]
    pub(crate) fn new(
        buffer: Retained<sys::iree_hal_buffer_t>,
        offset: sys::iree_device_size_t,
        length: sys::iree_device_size_t,
    ) -> Result<Self> {
        let LentRange { offset, length, .. } = LentRange::within(buffer.lend(), offset, length)?;
        Ok(Self { buffer, offset, length })
    }

    /// The same, for as long as this keeps its buffer.
    #[inline]
    pub(crate) fn lend(&self) -> LentRange<'_> {
        LentRange { buffer: self.buffer.lend(), offset: self.offset, length: self.length }
    }

    /// Whether the host can map it.
    #[inline]
    pub(crate) fn is_host_visible(&self) -> bool {
        self.lend().is_host_visible()
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
}

/// What a buffer is part of, which it keeps, and where in that it begins.
#[inline]
pub(super) fn allocation_of<'a>(
    buffer: Lent<'a, sys::iree_hal_buffer_t>,
) -> Result<(Lent<'a, sys::iree_hal_buffer_t>, u64)> {
    // SAFETY: the buffer is lent, and keeps what it is part of.
    unsafe {
        let buffer = buffer.get();
        let allocation = Lent::required((*buffer).allocated_buffer, "a buffer is part of none")?;
        Ok((allocation, to_u64((*buffer).byte_offset)))
    }
}
