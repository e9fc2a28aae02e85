// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A mock device through the C interface, for unit tests of this crate.

use crate::ffi::object::Retained;
use crate::ffi::status::{check, view};
use crate::sync::proactor::Proactor;
use crate::sync::semaphore::IreeTimeline;
use hal_sys as sys;
use std::ptr::{null, null_mut};
use std::sync::{Arc, Once};

fn pool() -> Retained<sys::iree_async_proactor_pool_t> {
    let mut pool = null_mut();
    // SAFETY: what is made is adopted once, and everything lives through the calls.
    unsafe {
        let (options, system) =
            (sys::iree_async_proactor_pool_options_default(), sys::iree_allocator_system());
        check(sys::iree_async_proactor_pool_create(1, null(), options, system, &raw mut pool)).unwrap();
        Retained::adopt(pool).unwrap()
    }
}

/// A new proactor.
pub(crate) fn proactor() -> Arc<Proactor> {
    Proactor::new(pool()).unwrap()
}

/// A new device.
pub(crate) fn device(uri: &str) -> Retained<sys::iree_hal_device_t> {
    static REGISTER: Once = Once::new();
    let (pool, mut device) = (pool(), null_mut());
    // SAFETY: what is made is adopted once, and everything lives through the calls.
    unsafe {
        let (registry, system) = (sys::iree_hal_driver_registry_default(), sys::iree_allocator_system());
        REGISTER.call_once(|| check(crate::register::<hal_mock::Mock>(registry)).unwrap());
        let params = sys::iree_hal_device_create_params_t { next: null(), proactor_pool: pool.get() };
        let (params, out) = (&raw const params, &raw mut device);
        check(sys::iree_hal_create_device(registry, view(uri), params, system, out)).unwrap();
        Retained::adopt(device).unwrap()
    }
}

/// A semaphore of a device, at 0.
pub(crate) fn semaphore(device: &Retained<sys::iree_hal_device_t>) -> IreeTimeline {
    let mut semaphore = null_mut();
    // SAFETY: the device is retained; what it makes is adopted once.
    unsafe {
        check(sys::iree_hal_semaphore_create(device.get(), u64::MAX, 0, 0, &raw mut semaphore)).unwrap();
        IreeTimeline::adopt(semaphore).unwrap()
    }
}
