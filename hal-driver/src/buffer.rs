//! Buffers: memory of a device behind IREE's buffer interface, and any buffer as something a queue can work on.

use crate::allocator::HOST_VISIBLE;
use crate::bounce;
use crate::constants::{ACCESS_ANY, ACCESS_READ, Access};
use crate::object::{Retained, extent, free, narrow, wide};
use crate::status::{Result, check, guard, guard_or, invalid, text};
use hal_backend::{Device, HostRange, Place, Span};
use hal_semaphore::{Code, Failure};
use hal_sys as sys;
use std::any::Any;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

/// An allocation of some device: what a buffer's slots need of it.
pub(crate) trait Backing: Send + Sync {
    /// The host's view of all of it.
    fn host_view(&self) -> Option<HostRange>;
    /// Makes the host's writes visible to the device.
    fn flush(&self, offset: u64, length: u64) -> Result;
    /// Makes the device's writes visible to the host.
    fn invalidate(&self, offset: u64, length: u64) -> Result;
    /// The allocation itself.
    fn as_any(&self) -> &dyn Any;
}

/// An allocation and the device that it is of.
pub(crate) struct DeviceMemory<D: Device> {
    device: Arc<D>,
    memory: Arc<D::Memory>,
    /// What a statistic counts as gone when this is.
    _counted: Option<crate::allocator::Counted>,
}

impl<D: Device> DeviceMemory<D> {
    pub(crate) fn new(
        device: Arc<D>,
        memory: D::Memory,
        counted: Option<crate::allocator::Counted>,
    ) -> Arc<Self> {
        Arc::new(Self { device, memory: Arc::new(memory), _counted: counted })
    }
}

impl<D: Device> Backing for DeviceMemory<D> {
    fn host_view(&self) -> Option<HostRange> {
        self.device.host_view(&self.memory)
    }

    fn flush(&self, offset: u64, length: u64) -> Result {
        self.device.flush(&self.memory, offset, length)
    }

    fn invalidate(&self, offset: u64, length: u64) -> Result {
        self.device.invalidate(&self.memory, offset, length)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What C wants to be told when a buffer is gone.
pub(crate) struct Release(sys::iree_hal_buffer_release_callback_t);

// SAFETY: IREE asks that release callbacks may come on any thread.
unsafe impl Send for Release {}
// SAFETY: as above.
unsafe impl Sync for Release {}

impl Release {
    pub(crate) fn new(callback: sys::iree_hal_buffer_release_callback_t) -> Self {
        Self(callback)
    }

    fn call(&mut self, buffer: *mut sys::iree_hal_buffer_t) {
        if let Some(release) = self.0.fn_.take() {
            // SAFETY: what the creator of the buffer asked for, once.
            unsafe { release(self.0.user_data, buffer) };
        }
    }
}

/// A buffer of ours.
#[repr(C)]
pub(crate) struct Buffer {
    base: sys::iree_hal_buffer_t,
    allocator: sys::iree_allocator_t,
    backing: Arc<dyn Backing>,
    /// Where in the allocation the buffer begins.
    offset: u64,
    release: Release,
}

/// How a buffer is to be made.
pub(crate) struct BufferSpec {
    pub(crate) placement: sys::iree_hal_buffer_placement_t,
    pub(crate) params: sys::iree_hal_buffer_params_t,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) release: Release,
}

impl Buffer {
    /// A buffer over part of an allocation, owned by the caller.
    pub(crate) fn create(
        allocator: sys::iree_allocator_t,
        backing: Arc<dyn Backing>,
        spec: BufferSpec,
    ) -> Result<Retained<sys::iree_hal_buffer_t>> {
        let buffer = Buffer {
            base: sys::iree_hal_buffer_t::default(),
            allocator,
            backing,
            offset: spec.offset,
            release: spec.release,
        };
        let buffer = crate::object::allocate(allocator, buffer)?.as_ptr();
        let base: *mut sys::iree_hal_buffer_t = buffer.cast();
        // SAFETY: the object is fresh, its base comes first, and IREE initialises all of the base.
        unsafe {
            sys::iree_hal_buffer_initialize(
                spec.placement,
                base,
                narrow(spec.length),
                0,
                narrow(spec.length),
                spec.params.type_,
                spec.params.access,
                spec.params.usage,
                &raw const VTABLE,
                base,
            );
            Retained::adopt(base).ok_or_else(|| invalid("a buffer is never null"))
        }
    }

    /// # Safety
    ///
    /// The buffer is one of ours and alive for `'a`.
    unsafe fn of<'a>(buffer: *mut sys::iree_hal_buffer_t) -> &'a Self {
        // SAFETY: the caller's promise.
        unsafe { &*buffer.cast::<Buffer>() }
    }
}

fn is_ours(buffer: *mut sys::iree_hal_buffer_t) -> bool {
    // SAFETY: every HAL object begins with the resource header; the buffer is alive.
    let vtable = unsafe { (*buffer).resource.vtable };
    std::ptr::eq(vtable.cast(), &raw const VTABLE)
}

static VTABLE: sys::iree_hal_buffer_vtable_t = sys::iree_hal_buffer_vtable_t {
    recycle: Some(sys::iree_hal_buffer_recycle),
    destroy: Some(destroy),
    map_range: Some(map_range),
    unmap_range: Some(unmap_range),
    invalidate_range: Some(invalidate_range),
    flush_range: Some(flush_range),
};

unsafe extern "C" fn destroy(base: *mut sys::iree_hal_buffer_t) {
    guard_or((), || {
        let buffer = base.cast::<Buffer>();
        // SAFETY: the last reference is gone.
        unsafe {
            (*buffer).release.call(base);
            let allocator = (*buffer).allocator;
            free(allocator, buffer);
        }
    });
}

unsafe extern "C" fn map_range(
    base: *mut sys::iree_hal_buffer_t,
    _mode: sys::iree_hal_mapping_mode_t,
    access: Access,
    offset: sys::iree_device_size_t,
    length: sys::iree_device_size_t,
    mapping: *mut sys::iree_hal_buffer_mapping_t,
) -> sys::iree_status_t {
    guard(|| {
        // SAFETY: C passes a live buffer of ours and a mapping to fill.
        let (buffer, mapping) = unsafe { (Buffer::of(base), &mut *mapping) };
        if access & ACCESS_ANY != 0 && buffer.backing.host_view().is_none() {
            // SAFETY: as above; `unmap_range` ends it.
            return unsafe { bounce::map(base, wide(offset), wide(length), mapping) };
        }
        let view = buffer
            .backing
            .host_view()
            .and_then(|view| view.slice(buffer.offset.checked_add(wide(offset))?, wide(length)))
            .ok_or_else(|| {
                let message = format!(
                    "the buffer is in memory of the device {}, which the host cannot map; copy it with a queue of that \
                     device into a buffer that is HOST_VISIBLE, or ask for IREE_HAL_MEMORY_TYPE_HOST_VISIBLE where it is \
                     allocated (devices that map what they work on, as IREE's local ones do, can use no other)",
                    owner_name(buffer)
                );
                Failure::new(Code::PermissionDenied, message)
            })?;
        if access & ACCESS_READ != 0 {
            buffer.backing.invalidate(buffer.offset + wide(offset), wide(length))?;
        }
        // The view is of memory that the buffer's own reference keeps.
        mapping.contents = sys::iree_byte_span_t { data: view.address(), data_length: length };
        Ok(())
    })
}

unsafe extern "C" fn unmap_range(
    base: *mut sys::iree_hal_buffer_t,
    offset: sys::iree_device_size_t,
    length: sys::iree_device_size_t,
    mapping: *mut sys::iree_hal_buffer_mapping_t,
) -> sys::iree_status_t {
    guard(|| {
        // SAFETY: C passes a live buffer of ours and a mapping of it, which ends.
        unsafe {
            if bounce::unmap(&mut *mapping)? { Ok(()) } else { check(flush_range(base, offset, length)) }
        }
    })
}

unsafe extern "C" fn invalidate_range(
    base: *mut sys::iree_hal_buffer_t,
    offset: sys::iree_device_size_t,
    length: sys::iree_device_size_t,
) -> sys::iree_status_t {
    guard(|| {
        // SAFETY: C passes a live buffer of ours.
        let buffer = unsafe { Buffer::of(base) };
        buffer.backing.invalidate(buffer.offset + wide(offset), wide(length))
    })
}

unsafe extern "C" fn flush_range(
    base: *mut sys::iree_hal_buffer_t,
    offset: sys::iree_device_size_t,
    length: sys::iree_device_size_t,
) -> sys::iree_status_t {
    guard(|| {
        // SAFETY: C passes a live buffer of ours.
        let buffer = unsafe { Buffer::of(base) };
        buffer.backing.flush(buffer.offset + wide(offset), wide(length))
    })
}

/// "To the end", as IREE writes it.
pub(crate) const WHOLE: u64 = u64::MAX;

/// Part of a buffer that an operation keeps until it has ended. Which memory that is may not be settled yet.
#[derive(Clone)]
pub(crate) struct Slice {
    pub(crate) buffer: Retained<sys::iree_hal_buffer_t>,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl Slice {
    /// Part of a buffer that C lends us, checked against the buffer's length, which never changes.
    pub(crate) fn new(
        buffer: *mut sys::iree_hal_buffer_t,
        offset: sys::iree_device_size_t,
        length: sys::iree_device_size_t,
    ) -> Result<Self> {
        // SAFETY: C lends us a live buffer, or null.
        let buffer = unsafe { Retained::retain(buffer) }.ok_or_else(|| invalid("a buffer is missing"))?;
        let slice = Self { buffer, offset: wide(offset), length: extent(length) };
        let length = slice.resolved_length()?;
        Ok(Self { length, ..slice })
    }

    /// The memory, if the buffer is an allocation of the device's that keeps it for good and belongs to nobody who wants to
    /// be told when the buffer is gone. Whoever has the memory of such a buffer need not keep the buffer.
    pub(crate) fn settled<D: Device>(&self, device: &Arc<D>) -> Option<Span<D>> {
        // SAFETY: the buffer is retained, and what it is allocated from lives as long as it does.
        let (allocated, offset) = unsafe {
            let base = self.buffer.get();
            (NonNull::new((*base).allocated_buffer)?, wide((*base).byte_offset) + self.offset)
        };
        let (buffer, memory) = of_device(allocated, device)?;
        if buffer.release.0.fn_.is_some() {
            return None;
        }
        let place = Place::Device(memory.memory.clone(), buffer.offset + offset);
        Some(Span { place, length: self.length })
    }

    /// Whether the host can map it.
    pub(crate) fn is_host_visible(&self) -> bool {
        // SAFETY: the buffer is retained; its type never changes.
        let memory_type = unsafe { (*self.buffer.get()).memory_type };
        memory_type & HOST_VISIBLE != 0
    }

    /// The access and the usage that the program asked for when it made the buffer.
    pub(crate) fn allowed(&self) -> (Access, sys::iree_hal_buffer_usage_t) {
        // SAFETY: the buffer is retained; what it allows never changes.
        unsafe { ((*self.buffer.get()).allowed_access, (*self.buffer.get()).allowed_usage) }
    }

    /// Which bytes of which buffer it is.
    fn bytes(&self) -> (*mut sys::iree_hal_buffer_t, u64, u64) {
        // SAFETY: the buffer is retained, and what it is allocated from lives as long as it does.
        unsafe {
            let buffer = self.buffer.get();
            let start = wide((*buffer).byte_offset) + self.offset;
            ((*buffer).allocated_buffer, start, start + self.length)
        }
    }

    /// Where it begins: a number for its buffer, and the first byte there.
    pub(crate) fn place(&self) -> (usize, u64) {
        let (buffer, start, _) = self.bytes();
        (buffer.addr(), start)
    }

    /// Where in other bytes of the same buffer these begin, if all of them are there.
    pub(crate) fn offset_in(&self, other: &Slice) -> Option<u64> {
        let ((buffer, start, end), (within, begin, stop)) = (self.bytes(), other.bytes());
        (buffer == within && begin <= start && end <= stop).then(|| start - begin)
    }

    /// All from the first to the last byte of both, if they have bytes in common.
    pub(crate) fn union(&self, other: &Slice) -> Option<Slice> {
        let ((buffer, start, end), (within, begin, stop)) = (self.bytes(), other.bytes());
        if buffer != within || start >= stop || begin >= end {
            return None;
        }
        let (first, last) = (start.min(begin), end.max(stop));
        // SAFETY: what a buffer is allocated from lives as long as it, and one of its parts is retained.
        let (whole, before) = unsafe { (Retained::retain(buffer)?, wide((*buffer).byte_offset)) };
        Some(Slice { buffer: whole, offset: first - before, length: last - first })
    }

    /// The device that alone can use it: its owner, where the host cannot map the memory.
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
    pub(crate) fn out_of_reach(
        &self,
        device: *mut sys::iree_hal_device_t,
    ) -> Option<*mut sys::iree_hal_device_t> {
        self.sole_user().filter(|&owner| owner != device)
    }

    fn resolved_length(&self) -> Result<u64> {
        // SAFETY: the buffer is retained; its length never changes.
        let whole = wide(unsafe { (*self.buffer.get()).byte_length });
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

    /// What the buffer is part of, as it is now: a stream-ordered buffer has memory between its allocation and its
    /// deallocation, whoever's it is.
    ///
    /// What comes back is borrowed: it lives as long as the operation may run.
    fn allocated(&self) -> Result<(NonNull<sys::iree_hal_buffer_t>, u64)> {
        // SAFETY: the buffer is retained, and what it is allocated from lives as long as it does. The backing of a
        // transient is retained by it until it is deallocated, which is ordered behind the operations that use it.
        unsafe {
            let base = self.buffer.get();
            let mut allocated = (*base).allocated_buffer;
            let mut offset = wide((*base).byte_offset) + self.offset;
            if sys::iree_hal_local_transient_buffer_isa(allocated) {
                let backing = sys::iree_hal_local_transient_buffer_backing_buffer(allocated);
                if backing.is_null() {
                    let message = "the buffer has no memory: its queue_alloca has not happened yet or its queue_dealloca has";
                    return Err(Failure::new(Code::FailedPrecondition, message));
                }
                offset += wide((*backing).byte_offset);
                allocated = (*backing).allocated_buffer;
            }
            let allocated = NonNull::new(allocated).ok_or_else(|| invalid("a buffer is part of none"))?;
            Ok((allocated, offset))
        }
    }

    /// The memory for a device: its own, or anybody else's through the host.
    pub(crate) fn resolve<D: Device>(&self, device: &Arc<D>) -> Result<Span<D>> {
        let (allocated, offset) = self.allocated()?;
        if let Some((buffer, memory)) = of_device(allocated, device) {
            let place = Place::Device(memory.memory.clone(), buffer.offset + offset);
            return Ok(Span { place, length: self.length });
        }
        // Whoever resolves must not wait: what has to be copied for that was lent before.
        let access = if self.sole_user().is_some() { ACCESS_READ } else { ACCESS_ANY };
        let range = map(allocated, offset, self.length, access).map_err(|failure| {
            let message = format!(
                "a buffer of another device can only be used through the host: {}",
                failure.message()
            );
            Failure::new(failure.code(), message)
        })?;
        Ok(Span { place: Place::Host(range), length: self.length })
    }

    /// The bytes as host memory, mapped as long as anybody has the range.
    pub(crate) fn map(&self, access: Access) -> Result<HostRange> {
        let (allocated, offset) = self.allocated()?;
        map(allocated, offset, self.length, access)
    }
}

/// The name of the device that a buffer is placed on, for people.
#[cold]
fn owner_name(buffer: &Buffer) -> String {
    let owner = buffer.base.placement.device;
    if owner.is_null() {
        // Memory of a pool; what is made of it is placed.
        return "that its pool is of".to_owned();
    }
    // SAFETY: a device outlives the buffers that are placed on it.
    format!("{:?}", unsafe { text(sys::iree_hal_device_id(owner)) })
}

/// A buffer as one of this device's, if it is. Both live as long as the buffer.
fn of_device<'a, D: Device>(
    buffer: NonNull<sys::iree_hal_buffer_t>,
    device: &Arc<D>,
) -> Option<(&'a Buffer, &'a DeviceMemory<D>)> {
    if !is_ours(buffer.as_ptr()) {
        return None;
    }
    // SAFETY: ours, and alive.
    let buffer = unsafe { Buffer::of(buffer.as_ptr()) };
    let memory: &DeviceMemory<D> = buffer.backing.as_any().downcast_ref()?;
    Arc::ptr_eq(&memory.device, device).then_some((buffer, memory))
}

/// Maps part of a buffer of whatever driver.
fn map(
    buffer: NonNull<sys::iree_hal_buffer_t>,
    offset: u64,
    length: u64,
    access: Access,
) -> Result<HostRange> {
    // SAFETY: the buffer is alive.
    let buffer = unsafe { Retained::retain(buffer.as_ptr()) }.ok_or_else(|| invalid("there is no buffer"))?;
    let mut mapping = sys::iree_hal_buffer_mapping_t::default();
    // SAFETY: the buffer is retained; the mapping is ours and keeps it.
    unsafe {
        check(sys::iree_hal_buffer_map_range(
            buffer.get(),
            sys::IREE_HAL_MAPPING_MODE_SCOPED,
            access,
            narrow(offset),
            narrow(length),
            &raw mut mapping,
        ))?;
        let (start, length) = (mapping.contents.data, mapping.contents.data_length);
        let owner = Arc::new(Mapping { mapping: mapping.into(), _buffer: buffer });
        Ok(HostRange::from_raw(start, length, Some(owner)))
    }
}

/// A mapping that ends when its last range is dropped.
struct Mapping {
    mapping: std::cell::UnsafeCell<sys::iree_hal_buffer_mapping_t>,
    _buffer: Retained<sys::iree_hal_buffer_t>,
}

// SAFETY: the mapping is only touched when it is dropped.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped once, unmapped once. A flush that fails has nobody left to tell.
        unsafe { drop(check(sys::iree_hal_buffer_unmap_range(self.mapping.get()))) };
    }
}

/// A pointer to C's own data that we keep but never look at.
pub(crate) struct Opaque(pub(crate) *mut c_void);

// SAFETY: only handed back to whoever gave it.
unsafe impl Send for Opaque {}
// SAFETY: as above.
unsafe impl Sync for Opaque {}
