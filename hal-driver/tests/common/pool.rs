// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A pool of the program's own, whose memory others may still be using, and which remembers how that comes back.

use super::{Buffer, Device, check};
use hal_sys as sys;
use std::ptr::null_mut;
use std::sync::Mutex;

/// What a reservation came back with: the axis and the epoch of its frontier, if there was one.
pub(crate) type Back = Option<(sys::iree_async_axis_t, u64)>;

/// Where in an allocation of its own the memory of a reservation begins.
const BEGIN: usize = 64;

#[repr(C)]
pub(crate) struct Pool {
    resource: sys::iree_hal_resource_t,
    allocator: *mut sys::iree_hal_allocator_t,
    /// What has to be reached before any of its memory may be used.
    frontier: sys::iree_async_single_frontier_t,
    back: Mutex<Vec<Back>>,
}

impl Pool {
    /// A pool over memory of a device, which outlives it. Its memory is free once an epoch of an axis has come.
    pub(crate) fn new(device: &Device, axis: sys::iree_async_axis_t, epoch: u64) -> Box<Self> {
        let mut frontier = sys::iree_async_single_frontier_t { entry_count: 1, ..Default::default() };
        frontier.entries = [sys::iree_async_frontier_entry_t { axis, epoch }];
        let resource = sys::iree_hal_resource_t { ref_count: 1, vtable: (&raw const VTABLE).cast() };
        Box::new(Self { resource, allocator: device.allocator(), frontier, back: Mutex::default() })
    }

    pub(crate) fn raw(&self) -> *mut sys::iree_hal_pool_t {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// How the memory came back so far.
    pub(crate) fn back(&self) -> Vec<Back> {
        self.back.lock().unwrap().clone()
    }
}

static VTABLE: sys::iree_hal_pool_vtable_t = sys::iree_hal_pool_vtable_t {
    destroy: None,
    acquire_reservation: Some(acquire_reservation),
    release_reservation: Some(release_reservation),
    materialize_reservation: Some(materialize_reservation),
    query_capabilities: None,
    query_stats: None,
    trim: None,
    notification: Some(notification),
};

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
        reservation.write(sys::iree_hal_pool_reservation_t { length: size, ..Default::default() });
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
    pool.back.lock().unwrap().push(back);
}

/// Part of a buffer, which keeps that.
unsafe extern "C" fn materialize_reservation(
    pool: *mut sys::iree_hal_pool_t,
    params: sys::iree_hal_buffer_params_t,
    reservation: *const sys::iree_hal_pool_reservation_t,
    _flags: sys::iree_hal_pool_materialize_flags_t,
    out: *mut *mut sys::iree_hal_buffer_t,
) -> sys::iree_status_t {
    unsafe {
        let (allocator, length) = ((*pool.cast::<Pool>()).allocator, (*reservation).length);
        let mut whole = null_mut();
        check(sys::iree_hal_allocator_allocate_buffer(allocator, params, BEGIN + length, &raw mut whole))
            .unwrap();
        let whole = Buffer(whole);
        sys::iree_hal_buffer_subspan(whole.0, BEGIN, length, sys::iree_allocator_system(), out)
    }
}

unsafe extern "C" fn notification(_: *mut sys::iree_hal_pool_t) -> *mut sys::iree_async_notification_t {
    null_mut()
}
