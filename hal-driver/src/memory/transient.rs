// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Stream-ordered buffers: objects that exist at once, and have memory between their allocation and their
//! deallocation.
//!
//! The program gets the buffer when it submits the allocation, and the buffer its memory when the allocation
//! happens in its queue. A deallocation takes the memory away, and the program orders it after every use. If the
//! program gets that wrong, only its bytes are wrong: each user of the memory, a command, a mapping or another
//! device, holds its own reference to it ([`TransientBuffer::backing`]), taken under the lock that the deallocation
//! takes too. The bytes may then belong to another allocation, and they stay memory of the device until the last
//! user has released them. A program's scoped mapping keeps more: the memory returns to its pool behind the last one.
//!
//! The memory returns to a pool, which may be the device's own. So a buffer keeps the device's pools, and may be
//! released after the device.
//!
//! IREE's local drivers have such a buffer too, which gives its memory out without a reference and keeps no pool.

use crate::ffi::constants::Access;
use crate::ffi::object::{Borrowed, HostAllocator, Retained, free, to_device_size};
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
    state: Mutex<TransientState>,
    /// The pools of the device. Dropped last: memory returns to them.
    pools: Arc<Pools>,
}

#[derive(Default)]
struct TransientState {
    /// The memory, while there is any.
    backing: Option<Retained<sys::iree_hal_buffer_t>>,
    /// Its reservation, which is returned after the memory and the mappings.
    reservation: Option<Reservation>,
    /// The number of scoped mappings.
    mappings: usize,
    /// How the memory is to be returned behind the mappings, once it is.
    late: Option<LateReturn>,
}

/// The return of memory that mappings still use. A program whose pool it is may release the pool by then.
struct LateReturn {
    frontier: Option<sys::iree_async_single_frontier_t>,
    _pool: Option<Retained<sys::iree_hal_pool_t>>,
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

    /// The buffer as one of these, if it is.
    pub(crate) fn of(buffer: Borrowed<'_, sys::iree_hal_buffer_t>) -> Option<Self> {
        // SAFETY: the buffer is alive, by the invariant of `Borrowed`, and every HAL object begins with the
        // resource header.
        let vtable = unsafe { (*buffer.get()).resource.vtable };
        std::ptr::eq(vtable.cast(), &raw const VTABLE).then(|| Self(buffer.retain()))
    }

    fn object(&self) -> &Transient {
        // SAFETY: made by `create` or recognised by `of`, and alive as long as the reference.
        unsafe { Transient::of(self.0.get()) }
    }

    /// A new reference for C.
    pub(crate) fn to_buffer(&self) -> Retained<sys::iree_hal_buffer_t> {
        self.0.clone()
    }

    /// True if it was allocated from a device with these pools.
    pub(crate) fn is_of(&self, pools: &Arc<Pools>) -> bool {
        Arc::ptr_eq(&self.object().pools, pools)
    }

    /// The C device that allocated it, unless that is gone.
    pub(crate) fn owner(&self) -> Option<Retained<sys::iree_hal_device_t>> {
        self.object().pools.parent().retain()
    }

    /// A new reference to the memory, if there is any.
    pub(crate) fn backing(&self) -> Result<Retained<sys::iree_hal_buffer_t>> {
        self.object().backing()
    }

    /// The pool of the memory, until it is returned.
    pub(crate) fn pool(&self) -> Option<Pool> {
        self.object().state.lock().reservation.as_ref().map(Reservation::pool)
    }

    /// Gives the buffer memory that is usable at once.
    pub(crate) fn commit(
        &self,
        params: sys::iree_hal_buffer_params_t,
        mut reservation: Reservation,
    ) -> Result {
        let backing = reservation.materialize(params)?;
        reservation.is_usable_now();
        let state = TransientState {
            backing: Some(backing),
            reservation: Some(reservation),
            ..TransientState::default()
        };
        let before = std::mem::replace(&mut *self.object().state.lock(), state);
        debug_assert!(before.backing.is_none(), "a buffer is allocated once");
        drop(before);
        Ok(())
    }

    /// Takes the memory away. Its users keep it; the pool does not have it back yet. False if there was none.
    pub(crate) fn decommit(&self) -> bool {
        let backing = self.object().state.lock().backing.take();
        backing.is_some()
    }

    /// Returns the memory to its pool, unless that has happened; behind the mappings, if there are any. The pool may
    /// give it to allocations that wait for the frontier.
    pub(crate) fn release(&self, frontier: Option<&sys::iree_async_single_frontier_t>) {
        let mut state = self.object().state.lock();
        if state.mappings > 0 {
            if let (Some(reservation), None) = (&state.reservation, &state.late) {
                let pool = reservation.pool().retain();
                state.late = Some(LateReturn { frontier: frontier.copied(), _pool: pool });
            }
            return;
        }
        let reservation = state.reservation.take();
        drop(state);
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

    /// The memory for a scoped mapping, which keeps it until [`end_mapping`](Self::end_mapping).
    fn begin_mapping(&self) -> Result<Retained<sys::iree_hal_buffer_t>> {
        let mut state = self.state.lock();
        let backing = state.backing.clone().ok_or_else(no_memory)?;
        state.mappings += 1;
        Ok(backing)
    }

    fn end_mapping(&self) {
        let mut state = self.state.lock();
        state.mappings -= 1;
        if state.mappings > 0 {
            return;
        }
        let Some(late) = state.late.take() else { return };
        let reservation = state.reservation.take();
        // A pool is foreign code.
        drop(state);
        if let Some(reservation) = reservation {
            reservation.release(late.frontier.as_ref());
        }
    }
}

/// The failure of a use before the allocation or after the deallocation.
pub(crate) fn no_memory() -> Failure {
    let message = "the buffer has no memory: its queue_alloca has not run yet, or its queue_dealloca has run";
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

/// Maps the current memory. A scoped mapping keeps that memory, even if it is deallocated; a persistent one ends
/// before the memory, as IREE requires.
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
        // A persistent mapping keeps nothing. IREE records this in a bit field that shares a word with the field
        // before it, where the bindings do not find it.
        if mode & sys::IREE_HAL_MAPPING_MODE_PERSISTENT != 0 {
            let (_, contents) = map_memory(&buffer.backing()?, mode, access, offset, length)?;
            mapping.contents = contents;
            return Ok(());
        }
        let backing = buffer.begin_mapping()?;
        let (mut inner, contents) =
            map_memory(&backing, mode, access, offset, length).inspect_err(|_| buffer.end_mapping())?;
        mapping.contents = contents;
        if contents.data.is_null() {
            // IREE does not ask to unmap what is nowhere.
            // SAFETY: mapped above, unmapped once.
            let unmapped = unsafe { check(sys::iree_hal_buffer_unmap_range(&raw mut *inner)) };
            buffer.end_mapping();
            return unmapped;
        }
        set_inner(mapping, Box::into_raw(inner));
        Ok(())
    })
}

/// Maps the memory of a buffer. A scoped mapping keeps the memory's buffer until it ends.
fn map_memory(
    backing: &Retained<sys::iree_hal_buffer_t>,
    mode: sys::iree_hal_mapping_mode_t,
    access: Access,
    offset: sys::iree_device_size_t,
    length: sys::iree_device_size_t,
) -> Result<(Box<sys::iree_hal_buffer_mapping_t>, sys::iree_byte_span_t)> {
    let mut inner = Box::new(sys::iree_hal_buffer_mapping_t::default());
    // SAFETY: the memory is retained during the call, and by a scoped mapping until that ends.
    unsafe {
        let inner = &raw mut *inner;
        check(sys::iree_hal_buffer_map_range(backing.get(), mode, access, offset, length, inner))?;
    }
    let contents = inner.contents;
    Ok((inner, contents))
}

/// Stores the memory's mapping in the field that IREE has for the driver.
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
        let unmapped = unsafe { check(sys::iree_hal_buffer_unmap_range(&raw mut *inner)) };
        // SAFETY: C passes a live buffer of ours.
        unsafe { Transient::of(base) }.end_mapping();
        unmapped
    })
}

/// A flush or an invalidation.
type SyncFn = unsafe extern "C" fn(
    *mut sys::iree_hal_buffer_t,
    sys::iree_device_size_t,
    sys::iree_device_size_t,
) -> sys::iree_status_t;

/// Applies it to the current memory.
///
/// # Safety
///
/// The buffer is one of these and alive.
unsafe fn sync(
    base: *mut sys::iree_hal_buffer_t,
    offset: sys::iree_device_size_t,
    length: sys::iree_device_size_t,
    slot: impl FnOnce(&sys::iree_hal_buffer_vtable_t) -> Option<SyncFn>,
) -> sys::iree_status_t {
    guard(|| {
        // SAFETY: the buffer is a transient one and alive, as the function asks.
        let backing = unsafe { Transient::of(base) }.backing()?;
        // SAFETY: a buffer's resource header names a table of buffers, and the reference keeps both.
        let (table, begin) = unsafe {
            let buffer = backing.get();
            (&*(*buffer).resource.vtable.cast::<sys::iree_hal_buffer_vtable_t>(), (*buffer).byte_offset)
        };
        let slot = slot(table).ok_or_else(|| invalid("the memory's buffer lacks a slot of its vtable"))?;
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
