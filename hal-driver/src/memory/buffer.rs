// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Buffers: memory of a device behind IREE's buffer interface.

use crate::ffi::constants::{ACCESS_ANY, ACCESS_READ, Access};
use crate::ffi::object::{HostAllocator, Lent, Retained, to_device_size, to_u64};
use crate::ffi::status::{Result, check, guard, guard_or, invalid, text};
use crate::memory::backing::{AnyMemory, owner_is_gone};
use crate::memory::bounced_mapping;
use crate::sync::teardown;
use hal_semaphore::{Code, Failure};
use hal_sys as sys;
use parking_lot::Mutex;
use std::cell::UnsafeCell;
use std::sync::Arc;

/// A release callback of C's, due when a buffer's memory is used no longer.
///
/// The buffer has a reference to it, and so has each range of the host's memory that the buffer was imported from. A
/// backend may let go of those behind the buffer, as it may of the last job that used them. The last reference tells the
/// program, which gets to see the buffer; so the buffer's structure stays until then, though nothing of it is used.
///
/// # Invariants
///
/// The callback may be made once, on any thread, with the structure in `gone`. That is a buffer of ours whose contents were
/// dropped, and which this alone frees.
pub(crate) struct Release {
    callback: sys::iree_hal_buffer_release_callback_t,
    /// The buffer, when it is gone. As long as there is none, the callback is not owed.
    gone: Mutex<Option<Remains>>,
}

/// A buffer's structure behind its end, and where its memory goes.
struct Remains {
    buffer: *mut sys::iree_hal_buffer_t,
    allocator: HostAllocator,
}

// SAFETY: the callback may be made on any thread, by the invariant, and a host allocator may be used on any.
unsafe impl Send for Release {}
// SAFETY: as for `Send`; what is written is locked.
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
/// `base` comes first, and is a buffer that is its own allocation; only [`create`](Self::create) gives it [`VTABLE`]. All of
/// it is inside the memory of `backing`, from `offset` on.
#[repr(C)]
pub(crate) struct Buffer {
    base: UnsafeCell<sys::iree_hal_buffer_t>,
    allocator: HostAllocator,
    pub(super) backing: AnyMemory,
    /// Where in the allocation the buffer begins.
    pub(super) offset: u64,
    pub(super) release: Option<Arc<Release>>,
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

    /// A buffer as one of ours, if it is.
    pub(super) fn recognise<'a>(buffer: Lent<'a, sys::iree_hal_buffer_t>) -> Option<&'a Self> {
        // SAFETY: the buffer is lent, and every HAL object begins with the resource header.
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
            // SAFETY: C passes a live buffer of ours, and ends the mapping with `unmap_range`.
            return unsafe { bounced_mapping::map(base, owner, to_u64(offset), to_u64(length), mapping) };
        }
        let view = buffer
            .backing
            .host_view()
            .and_then(|view| view.slice(buffer.offset.checked_add(to_u64(offset))?, to_u64(length)))
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
            buffer.backing.invalidate(buffer.offset + to_u64(offset), to_u64(length))?;
        }
        // A scoped mapping keeps the buffer and so the view; of a persistent one IREE asks that the program does.
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
            if bounced_mapping::unmap(&mut *mapping)? {
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

/// The name of the device that a buffer is placed on, for people.
#[cold]
fn owner_name(buffer: &Buffer) -> String {
    match buffer.backing.parent().retain() {
        // SAFETY: the device is retained, and has its name as long as it lives.
        Some(owner) => format!("{:?}", unsafe { text(sys::iree_hal_device_id(owner.get())) }),
        None => "that it was made by, which is gone".to_owned(),
    }
}
