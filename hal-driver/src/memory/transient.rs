// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Stream-ordered buffers: objects that exist at once, and have memory between their allocation and their deallocation.
//!
//! A buffer is handed to the program when it asks, and gets its memory when the allocation happens in its queue. A
//! deallocation takes the memory away again, which the program orders behind everything that uses it. A program that does
//! not is wrong, but only its bytes are: each user of the memory, a command, a mapping or another device, has a
//! reference of its own to it ([`TransientBuffer::backing`]), taken under the lock that a deallocation takes it away under.
//! The bytes may then be another allocation's, and they are memory of the device's until the last of them has let go.
//!
//! The memory goes back to a pool, which may be the device's own. So a buffer keeps the device's pools, and may be let go
//! of after the device.
//!
//! IREE's local drivers have a buffer of this kind as well. Theirs lends its memory without a reference and keeps no pool.

use crate::ffi::constants::Access;
use crate::ffi::object::{HostAllocator, Lent, Retained, free, to_device_size};
use crate::ffi::status::{Result, check, guard, guard_or, invalid};
use crate::memory::pools::Pools;
use crate::memory::reservation::{Pool, Reservation};
use hal_semaphore::{Code, Failure};
use hal_sys as sys;
use parking_lot::Mutex;
use std::cell::UnsafeCell;
use std::sync::Arc;

/// The C object.
///
/// # Invariants
///
/// `base` comes first, and is a buffer that is its own allocation, from its offset 0 to its end.
#[repr(C)]
struct Transient {
    base: UnsafeCell<sys::iree_hal_buffer_t>,
    allocator: HostAllocator,
    state: Mutex<State>,
    /// The pools of the device. Let go of last: memory goes back to them.
    pools: Arc<Pools>,
}

#[derive(Default)]
struct State {
    /// The memory, as long as there is any.
    backing: Option<Retained<sys::iree_hal_buffer_t>>,
    /// Where it came from; goes back behind the memory.
    reservation: Option<Reservation>,
}

/// A counted reference to a stream-ordered buffer of ours.
#[derive(Clone)]
pub(crate) struct TransientBuffer(Retained<sys::iree_hal_buffer_t>);

impl TransientBuffer {
    /// A buffer without memory.
    pub(crate) fn create(
        allocator: HostAllocator,
        placement: sys::iree_hal_buffer_placement_t,
        params: &sys::iree_hal_buffer_params_t,
        length: u64,
        pools: Arc<Pools>,
    ) -> Result<Self> {
        let buffer = Transient { base: UnsafeCell::default(), allocator, state: Mutex::default(), pools };
        let base: *mut sys::iree_hal_buffer_t =
            crate::ffi::object::allocate(allocator, buffer)?.as_ptr().cast();
        // SAFETY: the object is fresh, its base comes first, and IREE initialises all of the base.
        let buffer = unsafe {
            sys::iree_hal_buffer_initialize(
                placement,
                base,
                to_device_size(length),
                0,
                to_device_size(length),
                params.type_,
                params.access,
                params.usage,
                &raw const VTABLE,
                base,
            );
            Retained::adopt(base)
        };
        buffer.map(Self).ok_or_else(|| invalid("a buffer is never null"))
    }

    /// A buffer, if it is one of these.
    pub(crate) fn of(buffer: Lent<'_, sys::iree_hal_buffer_t>) -> Option<Self> {
        // SAFETY: the buffer is alive, by the invariant of `Lent`, and every HAL object begins with the resource header.
        let vtable = unsafe { (*buffer.get()).resource.vtable };
        std::ptr::eq(vtable.cast(), &raw const VTABLE).then(|| Self(buffer.retain()))
    }

    fn object(&self) -> &Transient {
        // SAFETY: made by `create` or recognised by `of`, and alive as long as the reference.
        unsafe { Transient::of(self.0.get()) }
    }

    /// The buffer, for C, which gets a reference of its own.
    pub(crate) fn to_buffer(&self) -> Retained<sys::iree_hal_buffer_t> {
        self.0.clone()
    }

    /// Whether it was allocated from a device with these pools.
    pub(crate) fn is_of(&self, pools: &Arc<Pools>) -> bool {
        Arc::ptr_eq(&self.object().pools, pools)
    }

    /// The device for C that it is of, unless that is gone.
    pub(crate) fn owner(&self) -> Option<Retained<sys::iree_hal_device_t>> {
        self.object().pools.parent().retain()
    }

    /// The memory, if there is any, with a reference of the caller's own.
    pub(crate) fn backing(&self) -> Result<Retained<sys::iree_hal_buffer_t>> {
        self.object().backing()
    }

    /// The pool that the memory is from, until it is given back.
    pub(crate) fn pool(&self) -> Option<Pool> {
        self.object().state.lock().reservation.as_ref().map(Reservation::pool)
    }

    /// Gives the buffer its memory, which may be used at once.
    pub(crate) fn commit(
        &self,
        params: sys::iree_hal_buffer_params_t,
        mut reservation: Reservation,
    ) -> Result {
        let backing = reservation.materialize(params)?;
        reservation.is_usable_now();
        let state = State { backing: Some(backing), reservation: Some(reservation) };
        let before = std::mem::replace(&mut *self.object().state.lock(), state);
        debug_assert!(before.backing.is_none(), "a buffer is allocated once");
        drop(before);
        Ok(())
    }

    /// Takes the memory away. Those who work with it keep it; the pool does not have it back yet. False if there is none.
    pub(crate) fn decommit(&self) -> bool {
        let backing = self.object().state.lock().backing.take();
        backing.is_some()
    }

    /// Gives the memory back to its pool, unless that has happened. The pool may hand it out again to allocations
    /// that wait for the frontier.
    pub(crate) fn release(&self, frontier: Option<&sys::iree_async_single_frontier_t>) {
        let reservation = self.object().state.lock().reservation.take();
        if let Some(reservation) = reservation {
            reservation.release(frontier);
        }
    }
}

impl Transient {
    /// # Safety
    ///
    /// The buffer is one of these and alive for `'a`.
    unsafe fn of<'a>(buffer: *mut sys::iree_hal_buffer_t) -> &'a Self {
        // SAFETY: one of these and alive, as the caller promises; the base comes first.
        unsafe { &*buffer.cast::<Self>() }
    }

    fn backing(&self) -> Result<Retained<sys::iree_hal_buffer_t>> {
        self.state.lock().backing.clone().ok_or_else(no_memory)
    }
}

/// What is wrong with a buffer that is used before its allocation or behind its deallocation.
pub(crate) fn no_memory() -> Failure {
    let message = "the buffer has no memory: its queue_alloca has not happened yet or its queue_dealloca has";
    Failure::new(Code::FailedPrecondition, message)
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
        let buffer = base.cast::<Transient>();
        // SAFETY: C gives the last reference up.
        unsafe {
            let allocator = (*buffer).allocator;
            free(allocator, buffer);
        }
    });
}

/// Maps the memory that there is now. A scoped mapping is one of that memory and keeps it, whatever is deallocated
/// meanwhile; of a persistent one IREE asks that it ends before the memory does.
unsafe extern "C" fn map_range(
    base: *mut sys::iree_hal_buffer_t,
    mode: sys::iree_hal_mapping_mode_t,
    access: Access,
    offset: sys::iree_device_size_t,
    length: sys::iree_device_size_t,
    mapping: *mut sys::iree_hal_buffer_mapping_t,
) -> sys::iree_status_t {
    guard(|| {
        // SAFETY: C passes a live buffer of ours and a mapping to fill.
        let (buffer, mapping) = unsafe { (Transient::of(base), &mut *mapping) };
        let backing = buffer.backing()?;
        let mut inner = Box::new(sys::iree_hal_buffer_mapping_t::default());
        // SAFETY: the memory is retained during the call, and by a scoped mapping until that ends.
        unsafe {
            let inner = &raw mut *inner;
            check(sys::iree_hal_buffer_map_range(backing.get(), mode, access, offset, length, inner))?;
        }
        mapping.contents = inner.contents;
        // A persistent mapping keeps nothing. What IREE notes of that is in a bit field that shares a word with a field before it, where
        // the bindings do not find it.
        if mode & sys::IREE_HAL_MAPPING_MODE_PERSISTENT != 0 {
            return Ok(());
        }
        if inner.contents.data.is_null() {
            // IREE does not ask to unmap what is nowhere.
            // SAFETY: mapped above, unmapped once.
            return unsafe { check(sys::iree_hal_buffer_unmap_range(&raw mut *inner)) };
        }
        set_inner(mapping, Box::into_raw(inner));
        Ok(())
    })
}

/// Keeps the mapping of the memory where IREE lets a driver keep something.
fn set_inner(mapping: &mut sys::iree_hal_buffer_mapping_t, inner: *mut sys::iree_hal_buffer_mapping_t) {
    let [place] = &mut mapping.impl_.reserved;
    *place = inner as u64;
}

unsafe extern "C" fn unmap_range(
    base: *mut sys::iree_hal_buffer_t,
    offset: sys::iree_device_size_t,
    length: sys::iree_device_size_t,
    mapping: *mut sys::iree_hal_buffer_mapping_t,
) -> sys::iree_status_t {
    // SAFETY: C passes a mapping that `map_range` has filled.
    let [inner] = unsafe { (*mapping).impl_.reserved };
    if inner == 0 {
        // SAFETY: C passes a live buffer of ours.
        return unsafe { flush_range(base, offset, length) };
    }
    guard(|| {
        // SAFETY: put there by `map_range`, and taken out once: IREE clears the mapping behind this call.
        let mut inner = unsafe { Box::from_raw(inner as *mut sys::iree_hal_buffer_mapping_t) };
        // SAFETY: mapped by `map_range`, unmapped once.
        unsafe { check(sys::iree_hal_buffer_unmap_range(&raw mut *inner)) }
    })
}

/// What makes writes visible, on either side.
type Sync = unsafe extern "C" fn(
    *mut sys::iree_hal_buffer_t,
    sys::iree_device_size_t,
    sys::iree_device_size_t,
) -> sys::iree_status_t;

/// Asks the memory that there is now.
///
/// # Safety
///
/// The buffer is one of these and alive.
unsafe fn sync(
    base: *mut sys::iree_hal_buffer_t,
    offset: sys::iree_device_size_t,
    length: sys::iree_device_size_t,
    slot: impl FnOnce(&sys::iree_hal_buffer_vtable_t) -> Option<Sync>,
) -> sys::iree_status_t {
    guard(|| {
        // SAFETY: the buffer is a transient one and alive, as the function asks.
        let backing = unsafe { Transient::of(base) }.backing()?;
        // SAFETY: a buffer's resource header names a table of buffers, and the reference keeps both.
        let (table, begin) = unsafe {
            let buffer = backing.get();
            (&*(*buffer).resource.vtable.cast::<sys::iree_hal_buffer_vtable_t>(), (*buffer).byte_offset)
        };
        let slot = slot(table).ok_or_else(|| invalid("the memory's buffer has a hole in its table"))?;
        // SAFETY: the memory is retained, and the range was checked against the buffer, which is as long.
        unsafe { check(slot(backing.get(), begin + offset, length)) }
    })
}

unsafe extern "C" fn invalidate_range(
    base: *mut sys::iree_hal_buffer_t,
    offset: sys::iree_device_size_t,
    length: sys::iree_device_size_t,
) -> sys::iree_status_t {
    // SAFETY: C passes a live buffer of ours.
    unsafe { sync(base, offset, length, |table| table.invalidate_range) }
}

unsafe extern "C" fn flush_range(
    base: *mut sys::iree_hal_buffer_t,
    offset: sys::iree_device_size_t,
    length: sys::iree_device_size_t,
) -> sys::iree_status_t {
    // SAFETY: C passes a live buffer of ours.
    unsafe { sync(base, offset, length, |table| table.flush_range) }
}
