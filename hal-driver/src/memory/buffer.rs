// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Buffers: memory of a device behind IREE's buffer interface.

use crate::ffi::constants::{ACCESS_ANY, ACCESS_READ, ACCESS_WRITE, Access};
use crate::ffi::object::{Borrowed, HostAllocator, Retained, to_device_size, to_u64};
use crate::ffi::status::{Result, check, guard, guard_or, invalid, text};
use crate::memory::backing::{AnyMemory, owner_is_gone};
use crate::memory::bounce;
use crate::sync::teardown;
use hal_semaphore::{Code, Failure};
use hal_sys as sys;
use parking_lot::Mutex;
use std::cell::UnsafeCell;
use std::sync::Arc;

/// A release callback of the program, made when a buffer's memory is used no longer.
///
/// The buffer holds a reference to it, and so does each range of host memory that the buffer was imported from. A
/// backend may drop those ranges after the buffer, and after the last job that used them. Dropping the last
/// reference makes the callback, which gets the buffer; so the buffer's structure stays until then, though nothing
/// of it is used.
///
/// # Invariants
///
/// The callback may be made once, on any thread, with the structure in `buffer`. That is a buffer of ours whose
/// contents were dropped, and which only this frees.
pub(crate) struct ReleaseCallback {
    callback: sys::iree_hal_buffer_release_callback_t,
    /// The released buffer. Without one, no callback is due.
    gone: Mutex<Option<ReleasedBuffer>>,
}

/// A buffer's structure after its release, and its allocator.
struct ReleasedBuffer {
    buffer: *mut sys::iree_hal_buffer_t,
    allocator: HostAllocator,
}

// SAFETY: the callback may be made on any thread, by the invariant, and a host allocator may be used on any.
unsafe impl Send for ReleaseCallback {}
// SAFETY: as for `Send`; writes are locked.
unsafe impl Sync for ReleaseCallback {}

impl ReleaseCallback {
    /// `None` if the program gave no callback.
    ///
    /// # Safety
    ///
    /// The callback may be made once, with a buffer, on any thread.
    pub(crate) unsafe fn new(callback: sys::iree_hal_buffer_release_callback_t) -> Option<Arc<Self>> {
        callback.fn_?;
        Some(Arc::new(Self { callback, gone: Mutex::new(None) }))
    }
}

impl Drop for ReleaseCallback {
    fn drop(&mut self) {
        let (Some(release), Some(gone)) = (self.callback.fn_, self.gone.get_mut().take()) else { return };
        let _inside = teardown::enter();
        // SAFETY: the one call that the invariant allows; the structure is freed here alone, behind it.
        unsafe {
            release(self.callback.user_data, gone.buffer);
            sys::iree_allocator_free(gone.allocator.raw(), gone.buffer.cast());
        }
    }
}

/// A buffer of ours.
///
/// # Invariants
///
/// `base` comes first, and is a buffer that is its own allocation; only [`create`](Self::create) gives it
/// [`VTABLE`]. All of it is inside the memory of `backing`, from `offset` on.
#[repr(C)]
pub(crate) struct Buffer {
    base: UnsafeCell<sys::iree_hal_buffer_t>,
    allocator: HostAllocator,
    pub(super) backing: AnyMemory,
    /// The buffer's offset in the allocation.
    pub(super) offset: u64,
    pub(super) release: Option<Arc<ReleaseCallback>>,
}

/// The parameters of a new buffer.
pub(crate) struct BufferSpec {
    pub(crate) placement: sys::iree_hal_buffer_placement_t,
    pub(crate) params: sys::iree_hal_buffer_params_t,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) release: Option<Arc<ReleaseCallback>>,
}

impl Buffer {
    /// Creates a buffer over a part of an allocation. The caller owns it.
    pub(crate) fn create(
        allocator: HostAllocator,
        backing: AnyMemory,
        spec: BufferSpec,
    ) -> Result<Retained<sys::iree_hal_buffer_t>> {
        let buffer = Buffer {
            base: UnsafeCell::default(),
            allocator,
            backing,
            offset: spec.offset,
            release: spec.release,
        };
        let buffer = crate::ffi::object::allocate(allocator, buffer)?.as_ptr();
        let base: *mut sys::iree_hal_buffer_t = buffer.cast();
        // SAFETY: the object is fresh, its base comes first, and IREE initialises all of the base.
        unsafe {
            sys::iree_hal_buffer_initialize(
                spec.placement,
                base,
                to_device_size(spec.length),
                0,
                to_device_size(spec.length),
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

    /// The buffer as one of ours, if it is.
    pub(super) fn recognise<'a>(buffer: Borrowed<'a, sys::iree_hal_buffer_t>) -> Option<&'a Self> {
        // SAFETY: the buffer is borrowed, and every HAL object begins with the resource header.
        let vtable = unsafe { (*buffer.get()).resource.vtable };
        let ours = std::ptr::eq(vtable.cast(), &raw const VTABLE);
        // SAFETY: a buffer with this table is a `Buffer`, by the invariant.
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
        // SAFETY: C released the last reference. The fields that are dropped first may still use the memory whose
        // release is reported last; the structure is freed here or with the release, once.
        unsafe {
            let allocator = (*buffer).allocator;
            let release = (*buffer).release.take();
            buffer.drop_in_place();
            match release {
                Some(release) => *release.gone.lock() = Some(ReleasedBuffer { buffer: base, allocator }),
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
        if let Some(addresses) = buffer.backing.addresses() {
            addresses.check(to_u64(offset), to_u64(length), access & ACCESS_WRITE != 0)?;
        }
        if access & ACCESS_ANY != 0 && buffer.backing.host_view().is_none() {
            let owner = buffer.backing.parent().retain().ok_or_else(owner_is_gone)?;
            // SAFETY: C passes a live buffer of ours, and ends the mapping with `unmap_range`.
            return unsafe { bounce::mapping::map(base, owner, to_u64(offset), to_u64(length), mapping) };
        }
        let view = buffer
            .backing
            .host_view()
            .and_then(|view| view.slice(buffer.offset.checked_add(to_u64(offset))?, to_u64(length)))
            .ok_or_else(|| {
                let message = format!(
                    "the buffer is in memory of the device {}, which the host cannot map; copy it with a queue \
                     of that device into a buffer that is HOST_VISIBLE, or allocate it with \
                     IREE_HAL_MEMORY_TYPE_HOST_VISIBLE (devices that map their buffers, as IREE's local ones \
                     do, can use no other)",
                    owner_name(buffer)
                );
                Failure::new(Code::PermissionDenied, message)
            })?;
        if access & ACCESS_READ != 0 {
            buffer.backing.invalidate(buffer.offset + to_u64(offset), to_u64(length))?;
        }
        // A scoped mapping keeps the buffer and so the view; for a persistent one IREE requires the program to.
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
            if bounce::mapping::unmap(&mut *mapping)? {
                Ok(())
            } else {
                check(flush_range(base, offset, length))
            }
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
        buffer.backing.invalidate(buffer.offset + to_u64(offset), to_u64(length))
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
        buffer.backing.flush(buffer.offset + to_u64(offset), to_u64(length))
    })
}

/// The name of a buffer's device, for people.
#[cold]
fn owner_name(buffer: &Buffer) -> String {
    match buffer.backing.parent().retain() {
        // SAFETY: the device is retained, and has its name as long as it lives.
        Some(owner) => format!("{:?}", unsafe { text(sys::iree_hal_device_id(owner.get())) }),
        None => "that created it, which was released".to_owned(),
    }
}
