// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Virtual memory, which no device here supports: each slot answers so by name, with the code that IREE requires.

use crate::ffi::status::{guard, unavailable};
use hal_sys as sys;

fn none(what: &str) -> sys::iree_status_t {
    guard(|| Err(unavailable(what)))
}

pub(super) unsafe extern "C" fn supports(_: *mut sys::iree_hal_allocator_t) -> bool {
    false
}

pub(super) unsafe extern "C" fn query_granularity(
    _: *mut sys::iree_hal_allocator_t,
    _: sys::iree_hal_buffer_params_t,
    _: *mut sys::iree_device_size_t,
    _: *mut sys::iree_device_size_t,
) -> sys::iree_status_t {
    none("iree_hal_allocator_virtual_memory_query_granularity")
}

pub(super) unsafe extern "C" fn reserve(
    _: *mut sys::iree_hal_allocator_t,
    _: sys::iree_hal_queue_affinity_t,
    _: sys::iree_device_size_t,
    _: *mut *mut sys::iree_hal_buffer_t,
) -> sys::iree_status_t {
    none("iree_hal_allocator_virtual_memory_reserve")
}

pub(super) unsafe extern "C" fn release(
    _: *mut sys::iree_hal_allocator_t,
    _: *mut sys::iree_hal_buffer_t,
) -> sys::iree_status_t {
    none("iree_hal_allocator_virtual_memory_release")
}

pub(super) unsafe extern "C" fn physical_allocate(
    _: *mut sys::iree_hal_allocator_t,
    _: sys::iree_hal_buffer_params_t,
    _: sys::iree_device_size_t,
    _: sys::iree_allocator_t,
    _: *mut *mut sys::iree_hal_physical_memory_t,
) -> sys::iree_status_t {
    none("iree_hal_allocator_physical_memory_allocate")
}

pub(super) unsafe extern "C" fn physical_free(
    _: *mut sys::iree_hal_allocator_t,
    _: *mut sys::iree_hal_physical_memory_t,
) -> sys::iree_status_t {
    none("iree_hal_allocator_physical_memory_free")
}

pub(super) unsafe extern "C" fn map(
    _: *mut sys::iree_hal_allocator_t,
    _: *mut sys::iree_hal_buffer_t,
    _: sys::iree_device_size_t,
    _: *mut sys::iree_hal_physical_memory_t,
    _: sys::iree_device_size_t,
    _: sys::iree_device_size_t,
) -> sys::iree_status_t {
    none("iree_hal_allocator_virtual_memory_map")
}

pub(super) unsafe extern "C" fn unmap(
    _: *mut sys::iree_hal_allocator_t,
    _: *mut sys::iree_hal_buffer_t,
    _: sys::iree_device_size_t,
    _: sys::iree_device_size_t,
) -> sys::iree_status_t {
    none("iree_hal_allocator_virtual_memory_unmap")
}

pub(super) unsafe extern "C" fn protect(
    _: *mut sys::iree_hal_allocator_t,
    _: *mut sys::iree_hal_buffer_t,
    _: sys::iree_device_size_t,
    _: sys::iree_device_size_t,
    _: sys::iree_hal_queue_affinity_t,
    _: sys::iree_hal_memory_protection_t,
) -> sys::iree_status_t {
    none("iree_hal_allocator_virtual_memory_protect")
}

pub(super) unsafe extern "C" fn advise(
    _: *mut sys::iree_hal_allocator_t,
    _: *mut sys::iree_hal_buffer_t,
    _: sys::iree_device_size_t,
    _: sys::iree_device_size_t,
    _: sys::iree_hal_queue_affinity_t,
    _: sys::iree_hal_memory_advice_t,
) -> sys::iree_status_t {
    none("iree_hal_allocator_virtual_memory_advise")
}
