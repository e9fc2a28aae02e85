// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The singletons of a process: IREE's types, the registry with every driver, and the threads that poll devices.

use super::object::Ref;
use super::status::{Error, Result, check};
use hal_sys as sys;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

/// The instance of this process. Never freed: devices and modules may live until the process ends.
///
/// # Invariants
///
/// `registry` was allocated by IREE and is never freed.
pub(crate) struct Instance {
    pub(super) vm: Ref<sys::iree_vm_instance_t>,
    pub(super) pool: Ref<sys::iree_async_proactor_pool_t>,
    registry: *mut sys::iree_hal_driver_registry_t,
}

// SAFETY: the registry is there, by the invariant, and has a lock of its own.
unsafe impl Send for Instance {}
// SAFETY: as for `Send`.
unsafe impl Sync for Instance {}

impl Instance {
    pub(super) fn get() -> Result<&'static Self> {
        static INSTANCE: OnceLock<Result<Instance>> = OnceLock::new();
        INSTANCE.get_or_init(Self::create).as_ref().map_err(Error::clone)
    }

    fn create() -> Result<Self> {
        let allocator = allocator();
        // SAFETY: each object is owned as soon as it exists; the registry is kept for good.
        unsafe {
            let capacity = sys::IREE_VM_TYPE_CAPACITY_DEFAULT as usize;
            let vm = Ref::make(|out| sys::iree_vm_instance_create(capacity, allocator, out))?;
            check(sys::iree_hal_module_register_all_types(vm.as_ptr()))?;
            let options = sys::iree_async_proactor_pool_options_default();
            let pool =
                Ref::make(|out| sys::iree_async_proactor_pool_create(1, null(), options, allocator, out))?;
            let mut registry = null_mut();
            check(sys::iree_hal_driver_registry_allocate(allocator, &raw mut registry))?;
            check(hal_driver::hal_drivers_register_all(registry))?;
            check(sys::iree_hal_local_task_driver_module_register(registry))?;
            check(sys::iree_hal_local_sync_driver_module_register(registry))?;
            Ok(Self { vm, pool, registry })
        }
    }

    pub(super) fn registry(&self) -> *mut sys::iree_hal_driver_registry_t {
        self.registry
    }
}

/// The allocator of IREE's objects.
pub(super) fn allocator() -> sys::iree_allocator_t {
    // SAFETY: says where the system's allocator is.
    unsafe { sys::iree_allocator_system() }
}
