// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Buffers: memory of a device behind IREE's buffer interface, and any buffer as something a queue can work on.

use crate::allocator::{Counted, HOST_VISIBLE, Parent};
use crate::bounce;
use crate::constants::{ACCESS_ANY, ACCESS_READ, Access};
use crate::external::SharedMemory;
use crate::object::{HostAllocator, Lent, Retained, extent, narrow, wide};
use crate::status::{Result, check, guard, guard_or, invalid, text};
use crate::teardown;
use crate::transient::TransientBuffer;
use hal_backend::{Device, HostRange, Place, Span};
use hal_semaphore::{Code, Failure, WithoutCallbacks};
use hal_sys as sys;
use parking_lot::Mutex;
use std::any::Any;
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

/// An allocation of some device: what a buffer's slots need of it.
pub(crate) trait Backing: Send + Sync {
    /// The host's view of all of it: the same each time, and valid as long as the allocation.
    fn host_view(&self) -> Option<HostRange>;
    /// Makes the host's writes visible to the device.
    fn flush(&self, offset: u64, length: u64) -> Result;
    /// Makes the device's writes visible to the host.
    fn invalidate(&self, offset: u64, length: u64) -> Result;
    /// A descriptor of all of it, for whoever can use such.
    fn descriptor(&self) -> Result<OwnedFd>;
    /// The device for C that it is of.
    fn parent(&self) -> &Parent;
    /// The allocation itself.
    fn as_any(&self) -> &dyn Any;
}

/// An allocation and the device that it is of, which goes last.
pub(crate) struct DeviceMemory<D: Device> {
    memory: Arc<D::Memory>,
    /// The host's view, once it was asked for. A backend may make a new one each time; what the host is shown is this one,
    /// which stays where it is as long as the allocation.
    view: OnceLock<Option<HostRange>>,
    device: Arc<D>,
    /// The device for C.
    parent: Arc<Parent>,
    /// What it was imported from, if that has a descriptor.
    shared: Option<Arc<SharedMemory>>,
    /// What a statistic counts as gone when this is.
    _counted: Option<Counted>,
}

impl<D: Device> DeviceMemory<D> {
    pub(crate) fn new(
        device: Arc<D>,
        parent: Arc<Parent>,
        memory: D::Memory,
        shared: Option<Arc<SharedMemory>>,
        counted: Option<Counted>,
    ) -> Arc<Self> {
        let (memory, view) = (Arc::new(memory), OnceLock::new());
        Arc::new(Self { memory, view, device, parent, shared, _counted: counted })
    }
}

impl<D: Device> Backing for DeviceMemory<D> {
    fn host_view(&self) -> Option<HostRange> {
        self.view.get_or_init(|| self.device.host_view(&self.memory)).clone()
    }

    fn flush(&self, offset: u64, length: u64) -> Result {
        self.device.flush(&self.memory, offset, length)
    }

    fn invalidate(&self, offset: u64, length: u64) -> Result {
        self.device.invalidate(&self.memory, offset, length)
    }

    fn descriptor(&self) -> Result<OwnedFd> {
        match &self.shared {
            Some(shared) => shared.descriptor(),
            None => self.device.export(&self.memory),
        }
    }

    fn parent(&self) -> &Parent {
        &self.parent
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What C wants to be told when a buffer's memory is used no longer.
///
/// The buffer has a reference to it, and so has each range of the host's memory that the buffer was imported from. A
/// backend may let go of those behind the buffer, as it may of the last job that used them. Whoever is last tells the
/// program, which gets to see the buffer; so the buffer's structure stays until then, though nothing of it is used.
pub(crate) struct Release {
    callback: sys::iree_hal_buffer_release_callback_t,
    /// The buffer, when it is gone. As long as there is none, nothing was promised to anybody.
    gone: Mutex<Option<Remains>>,
}

/// A buffer's structure behind its end, and where its memory goes.
struct Remains {
    buffer: *mut sys::iree_hal_buffer_t,
    allocator: HostAllocator,
}

// SAFETY: IREE asks that release callbacks may come on any thread, and a host allocator may be used on any.
unsafe impl Send for Release {}
// SAFETY: as above; what is written is locked.
unsafe impl Sync for Release {}

impl Release {
    /// Nothing, if C wants to be told nothing.
    ///
    /// # Safety
    ///
    /// The callback may be made once, with a buffer, on any thread.
    pub(crate) unsafe fn new(callback: sys::iree_hal_buffer_release_callback_t) -> Option<Arc<Self>> {
        callback.fn_?;
        Some(Arc::new(Self { callback, gone: Mutex::new(None) }))
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        let (Some(release), Some(gone)) = (self.callback.fn_, self.gone.get_mut().take()) else { return };
        let _inside = teardown::enter();
        // SAFETY: what was promised to `new`, once; the structure is freed once, behind it.
        unsafe {
            release(self.callback.user_data, gone.buffer);
            sys::iree_allocator_free(gone.allocator.raw(), gone.buffer.cast());
        }
    }
}

/// A buffer of ours.
#[repr(C)]
pub(crate) struct Buffer {
    base: UnsafeCell<sys::iree_hal_buffer_t>,
    allocator: HostAllocator,
    backing: Arc<dyn Backing>,
    /// Where in the allocation the buffer begins.
    offset: u64,
    release: Option<Arc<Release>>,
}

/// How a buffer is to be made.
pub(crate) struct BufferSpec {
    pub(crate) placement: sys::iree_hal_buffer_placement_t,
    pub(crate) params: sys::iree_hal_buffer_params_t,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) release: Option<Arc<Release>>,
}

impl Buffer {
    /// A buffer over part of an allocation, owned by the caller.
    pub(crate) fn create(
        allocator: HostAllocator,
        backing: Arc<dyn Backing>,
        spec: BufferSpec,
    ) -> Result<Retained<sys::iree_hal_buffer_t>> {
        let buffer = Buffer {
            base: UnsafeCell::default(),
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
        // SAFETY: ours and alive, as the caller promises; the base comes first.
        unsafe { &*buffer.cast::<Buffer>() }
    }

    /// A buffer as one of ours, if it is.
    fn recognise<'a>(buffer: Lent<'a, sys::iree_hal_buffer_t>) -> Option<&'a Self> {
        // SAFETY: the buffer is lent, and every HAL object begins with the resource header.
        let vtable = unsafe { (*buffer.get()).resource.vtable };
        let ours = std::ptr::eq(vtable.cast(), &raw const VTABLE);
        // SAFETY: only `create` makes buffers with this table.
        ours.then(|| unsafe { Self::of(buffer.get()) })
    }
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
        // SAFETY: C gives the last reference up. What is dropped first may still use the memory that C is told of last; the
        // structure is freed here or with the release, once.
        unsafe {
            let allocator = (*buffer).allocator;
            let release = (*buffer).release.take();
            buffer.drop_in_place();
            match release {
                Some(release) => *release.gone.lock() = Some(Remains { buffer: base, allocator }),
                None => sys::iree_allocator_free(allocator.raw(), base.cast()),
            }
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
            let owner = buffer.backing.parent().retain().ok_or_else(owner_is_gone)?;
            // SAFETY: as above; `unmap_range` ends it.
            return unsafe { bounce::map(base, owner, wide(offset), wide(length), mapping) };
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
        // A scoped mapping keeps the buffer and so the view; of a persistent one IREE asks that somebody does.
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
    ///
    /// # Safety
    ///
    /// The buffer is alive, or null, which is refused.
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
    pub(crate) fn new(
        buffer: Retained<sys::iree_hal_buffer_t>,
        offset: sys::iree_device_size_t,
        length: sys::iree_device_size_t,
    ) -> Result<Self> {
        let slice = Self { buffer, offset: wide(offset), length: extent(length) };
        let length = slice.resolved_length()?;
        Ok(Self { length, ..slice })
    }

    /// The memory, if the buffer is an allocation of the device's that keeps it for good and belongs to nobody who wants to
    /// be told when the buffer is gone. Whoever has the memory of such a buffer need not keep the buffer.
    pub(crate) fn settled<D: Device>(&self, device: &Arc<D>) -> Option<Span<D>> {
        let (allocation, offset) = self.allocation().ok()?;
        let (buffer, memory) = of_device(allocation, device)?;
        if buffer.release.is_some() {
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

    /// What the buffer is part of, and where in that the slice begins. A buffer keeps what it is part of.
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
                None => return Ok(Allocated { memory: Memory::Whole(allocation), offset, slice: self }),
            },
        };
        let (allocation, begin) = allocation_of(backing.lend())?;
        // Mostly the memory's buffer is all of its allocation, and the reference to it will do.
        let other = (allocation.get() != backing.get()).then(|| allocation.retain());
        let memory = Memory::Backing(other.unwrap_or(backing));
        Ok(Allocated { memory, offset: begin + offset, slice: self })
    }

    /// The memory for a device: its own, or anybody else's through the host.
    pub(crate) fn resolve<D: Device>(&self, device: &Arc<D>) -> Result<Span<D>> {
        let allocated = self.allocated()?;
        if let Some((buffer, memory)) = of_device(allocated.buffer(), device) {
            let place = Place::Device(memory.memory.clone(), buffer.offset + allocated.offset);
            return Ok(Span { place, length: self.length });
        }
        // Resolving must not wait: what has to be copied was lent before.
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
        let whole = wide(unsafe { (*allocation.get()).byte_length });
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
        Ok((allocation, wide((*buffer).byte_offset)))
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
        backing.map(Some).ok_or_else(crate::transient::no_memory)
    }
}

/// The memory of a slice, at one time.
struct Allocated<'a> {
    memory: Memory<'a>,
    /// Where in it the slice begins.
    offset: u64,
    slice: &'a Slice,
}

enum Memory<'a> {
    /// What the slice's buffer is part of, for as long as the buffer.
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
                narrow(self.offset),
                narrow(self.slice.length),
                &raw mut mapping,
            ))?;
            let (start, length) = (mapping.contents.data, mapping.contents.data_length);
            let (mapping, source) = (mapping.into(), self.slice.buffer.clone());
            let owner = Arc::new(Mapping { mapping, source: Some(source) });
            Ok(HostRange::from_raw(start, length, Some(owner)))
        }
    }
}

#[cold]
fn owner_is_gone() -> Failure {
    let message = "the buffer's device is gone, and only it could reach the buffer's memory; copy what is still needed before the \
                   device is released";
    Failure::new(Code::FailedPrecondition, message)
}

/// The name of the device that a buffer is placed on, for people.
#[cold]
fn owner_name(buffer: &Buffer) -> String {
    match buffer.backing.parent().retain() {
        // SAFETY: the device is retained, and has its name as long as it lives.
        Some(owner) => format!("{:?}", unsafe { text(sys::iree_hal_device_id(owner.get())) }),
        None => "that it was made by, which is gone".to_owned(),
    }
}

/// A buffer as one of this device's, if it is.
fn of_device<'a, D: Device>(
    buffer: Lent<'a, sys::iree_hal_buffer_t>,
    device: &Arc<D>,
) -> Option<(&'a Buffer, &'a DeviceMemory<D>)> {
    let buffer = Buffer::recognise(buffer)?;
    let memory: &DeviceMemory<D> = buffer.backing.as_any().downcast_ref()?;
    Arc::ptr_eq(&memory.device, device).then_some((buffer, memory))
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

/// A pointer to C's own data that we keep but never look at.
pub(crate) struct Opaque(pub(crate) *mut c_void);

// SAFETY: only handed back to whoever gave it.
unsafe impl Send for Opaque {}
// SAFETY: as above.
unsafe impl Sync for Opaque {}

#[cfg(test)]
mod tests;
