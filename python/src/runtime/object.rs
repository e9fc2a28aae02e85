// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Reference-counted objects of IREE.

use super::process::is_forked;
use super::status::{Result, check};
use hal_sys as sys;
use std::ptr::{NonNull, null_mut};

/// A C type whose objects are counted.
///
/// # Safety
///
/// `retain` and `release` count references to one object, from any thread, and the last release ends it.
pub(crate) unsafe trait Counted {
    /// Adds a reference.
    ///
    /// # Safety
    ///
    /// The object is alive.
    unsafe fn retain(object: *mut Self);

    /// Removes a reference.
    ///
    /// # Safety
    ///
    /// The caller owns a reference, and gives it up.
    unsafe fn release(object: *mut Self);
}

macro_rules! counted {
    ($($object:ty: $retain:path, $release:path;)*) => {
        $(
            // SAFETY: IREE's own pair for this type, whose count is atomic.
            unsafe impl Counted for $object {
                unsafe fn retain(object: *mut Self) {
                    // SAFETY: the object is alive, as the method asks.
                    unsafe { $retain(object) };
                }
                unsafe fn release(object: *mut Self) {
                    // SAFETY: a reference is owned and given up, as the method asks.
                    unsafe { $release(object) };
                }
            }
        )*
    };
}

counted! {
    sys::iree_async_frontier_tracker_t:
        sys::iree_async_frontier_tracker_retain, sys::iree_async_frontier_tracker_release;
    sys::iree_async_proactor_pool_t: sys::iree_async_proactor_pool_retain, sys::iree_async_proactor_pool_release;
    sys::iree_hal_buffer_t: sys::iree_hal_buffer_retain, sys::iree_hal_buffer_release;
    sys::iree_hal_buffer_view_t: sys::iree_hal_buffer_view_retain, sys::iree_hal_buffer_view_release;
    sys::iree_hal_device_group_t: sys::iree_hal_device_group_retain, sys::iree_hal_device_group_release;
    sys::iree_hal_device_t: sys::iree_hal_device_retain, sys::iree_hal_device_release;
    sys::iree_hal_driver_t: sys::iree_hal_driver_retain, sys::iree_hal_driver_release;
    sys::iree_hal_fence_t: sys::iree_hal_fence_retain, sys::iree_hal_fence_release;
    sys::iree_hal_profile_sink_t: sys::iree_hal_profile_sink_retain, sys::iree_hal_profile_sink_release;
    sys::iree_hal_semaphore_t: sys::iree_hal_semaphore_retain, sys::iree_hal_semaphore_release;
    sys::iree_io_file_handle_t: sys::iree_io_file_handle_retain, sys::iree_io_file_handle_release;
    sys::iree_io_parameter_index_t: sys::iree_io_parameter_index_retain, sys::iree_io_parameter_index_release;
    sys::iree_io_parameter_provider_t: sys::iree_io_parameter_provider_retain, sys::iree_io_parameter_provider_release;
    sys::iree_vm_context_t: sys::iree_vm_context_retain, sys::iree_vm_context_release;
    sys::iree_vm_instance_t: sys::iree_vm_instance_retain, sys::iree_vm_instance_release;
    sys::iree_vm_list_t: sys::iree_vm_list_retain, sys::iree_vm_list_release;
    sys::iree_vm_module_t: sys::iree_vm_module_retain, sys::iree_vm_module_release;
}

/// A reference to an object.
///
/// # Invariants
///
/// The object is alive, and one of its references is this one's.
pub(crate) struct Ref<T: Counted>(NonNull<T>);

// SAFETY: counts are atomic; whether calls need a lock is the business of their callers.
unsafe impl<T: Counted> Send for Ref<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Counted> Sync for Ref<T> {}

impl<T: Counted> Ref<T> {
    /// An object from a C constructor; a success without one is an error.
    pub(crate) fn make(make: impl FnOnce(*mut *mut T) -> sys::iree_status_t) -> Result<Self> {
        let mut object = null_mut();
        check(make(&raw mut object))?;
        NonNull::new(object)
            .map(Self)
            .ok_or_else(|| super::Error::new("INTERNAL", "IREE reported success but returned no object"))
    }

    /// A new reference to an object; `None` for null.
    ///
    /// # Safety
    ///
    /// The object is alive, or null.
    pub(crate) unsafe fn retained(object: *mut T) -> Option<Self> {
        let object = NonNull::new(object)?;
        // SAFETY: the object is alive, as the function asks of one that is not null; the reference is owned from
        // here on.
        unsafe { T::retain(object.as_ptr()) };
        Some(Self(object))
    }

    /// The pointer, for a call to C.
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

impl<T: Counted> Clone for Ref<T> {
    fn clone(&self) -> Self {
        // SAFETY: this reference keeps the object alive, by the invariant.
        unsafe { T::retain(self.0.as_ptr()) };
        Self(self.0)
    }
}

impl<T: Counted> Drop for Ref<T> {
    fn drop(&mut self) {
        // The last release of an object joins threads, which a forked process does not have.
        if !is_forked() {
            // SAFETY: the reference is ours, by the invariant, and given up once.
            unsafe { T::release(self.0.as_ptr()) }
        }
    }
}
