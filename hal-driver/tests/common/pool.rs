// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A pool of a program, whose memory others may still use, and which records how its memory returns.

use super::{Buffer, Device, Proactor, Tracker, check};
use hal_sys as sys;
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

/// The frontier with which a reservation returned: axis and epoch, if there was one.
pub(crate) type Back = Option<(sys::iree_async_axis_t, u64)>;

/// The offset of a reservation's memory in its allocation.
const BEGIN: usize = 64;

#[repr(C)]
pub(crate) struct Pool {
    resource: sys::iree_hal_resource_t,
    allocator: *mut sys::iree_hal_allocator_t,
    /// The frontier to wait for before any of its memory may be used.
    frontier: sys::iree_async_single_frontier_t,
    back: Mutex<Vec<Back>>,
    /// The tracker that is advanced when memory returns, and how many waited for it then.
    tracker: Mutex<*mut sys::iree_async_frontier_tracker_t>,
    woken: AtomicUsize,
    /// If set, the first reservation fails for lack of memory, and later ones get unused memory.
    notification: *mut sys::iree_async_notification_t,
    /// The notification's reference count at each reservation.
    asked: Mutex<Vec<i32>>,
    /// Buffers have no address: mapping them gives a null pointer.
    is_nowhere: AtomicBool,
}

/// A reference of the program's to a pool.
pub(crate) struct Owned(*mut Pool);

impl std::ops::Deref for Owned {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        unsafe { &*self.0 }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        unsafe { sys::iree_hal_pool_release(self.raw()) };
    }
}

impl Pool {
    /// A pool over a device's memory, which outlives it. Its memory is free once an epoch of an axis has come.
    pub(crate) fn behind(device: &Device, axis: sys::iree_async_axis_t, epoch: u64) -> Owned {
        Self::with(device, (axis, epoch), null_mut())
    }

    fn with(
        device: &Device,
        (axis, epoch): (sys::iree_async_axis_t, u64),
        notification: *mut sys::iree_async_notification_t,
    ) -> Owned {
        let mut frontier = sys::iree_async_single_frontier_t { entry_count: 1, ..Default::default() };
        frontier.entries = [sys::iree_async_frontier_entry_t { axis, epoch }];
        let resource = sys::iree_hal_resource_t { ref_count: 1, vtable: (&raw const VTABLE).cast() };
        Owned(Box::into_raw(Box::new(Self {
            resource,
            allocator: device.allocator(),
            frontier,
            back: Mutex::default(),
            tracker: Mutex::new(null_mut()),
            woken: AtomicUsize::new(0),
            notification,
            asked: Mutex::default(),
            is_nowhere: AtomicBool::new(false),
        })))
    }

    /// A pool over a device's memory that has none at first, and then some that is unused.
    pub(crate) fn late(device: &Device, proactor: &Proactor) -> Owned {
        let mut notification = null_mut();
        unsafe { check(sys::iree_async_notification_create(proactor.0, 0, &raw mut notification)).unwrap() };
        Self::with(device, (0, 0), notification)
    }

    /// How many references there are to it.
    pub(crate) fn references(&self) -> i32 {
        unsafe { AtomicI32::from_ptr((&raw const self.resource.ref_count).cast_mut()) }.load(Ordering::SeqCst)
    }

    /// Advances the epoch when memory returns.
    pub(crate) fn advance_when_back(&self, tracker: &Tracker) {
        *self.tracker.lock().unwrap() = tracker.0;
    }

    /// The number of waiters for the epoch when the memory returned.
    pub(crate) fn woken(&self) -> usize {
        self.woken.load(Ordering::SeqCst)
    }

    /// The notification's reference count at each reservation.
    pub(crate) fn asked(&self) -> Vec<i32> {
        self.asked.lock().unwrap().clone()
    }

    /// From now on its buffers have no address.
    pub(crate) fn is_nowhere(&self) {
        self.is_nowhere.store(true, Ordering::SeqCst);
    }

    pub(crate) fn raw(&self) -> *mut sys::iree_hal_pool_t {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// How the memory has returned so far.
    pub(crate) fn back(&self) -> Vec<Back> {
        self.back.lock().unwrap().clone()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        unsafe { sys::iree_async_notification_release(self.notification) };
    }
}

static VTABLE: sys::iree_hal_pool_vtable_t = sys::iree_hal_pool_vtable_t {
    destroy: Some(destroy),
    acquire_reservation: Some(acquire_reservation),
    release_reservation: Some(release_reservation),
    materialize_reservation: Some(materialize_reservation),
    query_capabilities: None,
    query_stats: None,
    trim: None,
    notification: Some(notification),
};

unsafe extern "C" fn destroy(pool: *mut sys::iree_hal_pool_t) {
    drop(unsafe { Box::from_raw(pool.cast::<Pool>()) });
}

unsafe extern "C" fn acquire_reservation(
    pool: *mut sys::iree_hal_pool_t,
    size: sys::iree_device_size_t,
    _alignment: sys::iree_device_size_t,
    _requester: *const sys::iree_async_frontier_t,
    _flags: sys::iree_hal_pool_reserve_flags_t,
    reservation: *mut sys::iree_hal_pool_reservation_t,
    info: *mut sys::iree_hal_pool_acquire_info_t,
    result: *mut sys::iree_hal_pool_acquire_result_t,
) -> sys::iree_status_t {
    unsafe {
        let own = &*pool.cast::<Pool>();
        reservation.write(sys::iree_hal_pool_reservation_t { length: size, ..Default::default() });
        if !own.notification.is_null() {
            let references = AtomicI32::from_ptr(&raw mut (*own.notification).ref_count);
            let mut asked = own.asked.lock().unwrap();
            result.write(if asked.is_empty() {
                sys::IREE_HAL_POOL_ACQUIRE_EXHAUSTED
            } else {
                sys::IREE_HAL_POOL_ACQUIRE_OK
            });
            asked.push(references.load(Ordering::SeqCst));
            return null_mut();
        }
        let frontier = &raw const (*pool.cast::<Pool>()).frontier;
        info.write(sys::iree_hal_pool_acquire_info_t {
            wait_frontier: frontier.cast(),
            ..Default::default()
        });
        result.write(sys::IREE_HAL_POOL_ACQUIRE_OK_NEEDS_WAIT);
    }
    null_mut()
}

unsafe extern "C" fn release_reservation(
    pool: *mut sys::iree_hal_pool_t,
    _reservation: *const sys::iree_hal_pool_reservation_t,
    frontier: *const sys::iree_async_frontier_t,
) {
    let (pool, frontier) =
        unsafe { (&*pool.cast::<Pool>(), frontier.cast::<sys::iree_async_single_frontier_t>().as_ref()) };
    let back = frontier.map(|frontier| (frontier.entries[0].axis, frontier.entries[0].epoch));
    let tracker = *pool.tracker.lock().unwrap();
    if let Some((axis, epoch)) = back.filter(|_| !tracker.is_null()) {
        let woken = unsafe { sys::iree_async_frontier_tracker_advance(tracker, axis, epoch) };
        pool.woken.fetch_add(woken, Ordering::SeqCst);
    }
    pool.back.lock().unwrap().push(back);
}

/// A part of a buffer, which it keeps.
unsafe extern "C" fn materialize_reservation(
    pool: *mut sys::iree_hal_pool_t,
    params: sys::iree_hal_buffer_params_t,
    reservation: *const sys::iree_hal_pool_reservation_t,
    _flags: sys::iree_hal_pool_materialize_flags_t,
    out: *mut *mut sys::iree_hal_buffer_t,
) -> sys::iree_status_t {
    unsafe {
        let (allocator, length) = ((*pool.cast::<Pool>()).allocator, (*reservation).length);
        if (*pool.cast::<Pool>()).is_nowhere.load(Ordering::SeqCst) {
            out.write(nowhere(params, length));
            return null_mut();
        }
        let mut whole = null_mut();
        check(sys::iree_hal_allocator_allocate_buffer(allocator, params, BEGIN + length, &raw mut whole))
            .unwrap();
        let whole = Buffer(whole);
        sys::iree_hal_buffer_subspan(whole.0, BEGIN, length, sys::iree_allocator_system(), out)
    }
}

unsafe extern "C" fn notification(pool: *mut sys::iree_hal_pool_t) -> *mut sys::iree_async_notification_t {
    unsafe { (*pool.cast::<Pool>()).notification }
}

/// The number of buffers without an address.
pub(crate) static NOWHERE: AtomicUsize = AtomicUsize::new(0);

/// A buffer without an address.
fn nowhere(params: sys::iree_hal_buffer_params_t, length: usize) -> *mut sys::iree_hal_buffer_t {
    NOWHERE.fetch_add(1, Ordering::SeqCst);
    let buffer = Box::into_raw(Box::new(UnsafeCell::new(sys::iree_hal_buffer_t::default())));
    let buffer: *mut sys::iree_hal_buffer_t = buffer.cast();
    unsafe {
        sys::iree_hal_buffer_initialize(
            sys::iree_hal_buffer_placement_t::default(),
            buffer,
            length,
            0,
            length,
            params.type_,
            params.access,
            params.usage,
            &raw const NOWHERE_VTABLE,
            buffer,
        );
    }
    buffer
}

static NOWHERE_VTABLE: sys::iree_hal_buffer_vtable_t = sys::iree_hal_buffer_vtable_t {
    recycle: Some(sys::iree_hal_buffer_recycle),
    destroy: Some(destroy_nowhere),
    map_range: Some(map_nowhere),
    unmap_range: None,
    invalidate_range: None,
    flush_range: None,
};

unsafe extern "C" fn destroy_nowhere(buffer: *mut sys::iree_hal_buffer_t) {
    drop(unsafe { Box::from_raw(buffer.cast::<UnsafeCell<sys::iree_hal_buffer_t>>()) });
    NOWHERE.fetch_sub(1, Ordering::SeqCst);
}

unsafe extern "C" fn map_nowhere(
    _buffer: *mut sys::iree_hal_buffer_t,
    _mode: sys::iree_hal_mapping_mode_t,
    _access: u16,
    _offset: sys::iree_device_size_t,
    _length: sys::iree_device_size_t,
    mapping: *mut sys::iree_hal_buffer_mapping_t,
) -> sys::iree_status_t {
    let contents = sys::iree_byte_span_t { data: null_mut(), data_length: 0 };
    unsafe { (*mapping).contents = contents };
    null_mut()
}
