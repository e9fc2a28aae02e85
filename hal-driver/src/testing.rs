//! A mock device as C has it, for tests of what only this crate can see or do.

use crate::object::Retained;
use crate::semaphore::IreeTimeline;
use crate::status::{check, view};
use hal_sys as sys;
use std::ptr::{null, null_mut};
use std::sync::Once;

/// A device that nobody else has.
pub(crate) fn device(uri: &str) -> Retained<sys::iree_hal_device_t> {
    static REGISTER: Once = Once::new();
    let (mut pool, mut device) = (null_mut(), null_mut());
    // SAFETY: what is made is released or adopted once, and everything lives through the calls.
    unsafe {
        let (registry, system) = (sys::iree_hal_driver_registry_default(), sys::iree_allocator_system());
        REGISTER.call_once(|| check(crate::register::<hal_mock::Mock>(registry)).unwrap());
        let options = sys::iree_async_proactor_pool_options_default();
        check(sys::iree_async_proactor_pool_create(1, null(), options, system, &raw mut pool)).unwrap();
        let params = sys::iree_hal_device_create_params_t { next: null(), proactor_pool: pool };
        let (params, out) = (&raw const params, &raw mut device);
        let created = check(sys::iree_hal_create_device(registry, view(uri), params, system, out));
        sys::iree_async_proactor_pool_release(pool);
        created.unwrap();
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
