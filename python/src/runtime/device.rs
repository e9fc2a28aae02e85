// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Drivers, the devices that they list, and open devices.

use super::instance::{Instance, allocator};
use super::object::Ref;
use super::status::{Error, Result, check};
use super::{text, view};
use hal_sys as sys;
use std::ptr::{null, null_mut};

/// A device that a driver lists.
pub(crate) struct ListedDevice {
    pub(crate) driver: String,
    pub(crate) path: String,
    pub(crate) name: String,
}

pub(crate) fn drivers() -> Result<Vec<String>> {
    let instance = Instance::get()?;
    let (mut count, mut infos) = (0, null_mut());
    // SAFETY: the list is copied, then freed.
    unsafe {
        let registry = instance.registry();
        check(sys::iree_hal_driver_registry_enumerate(
            registry,
            allocator(),
            &raw mut count,
            &raw mut infos,
        ))?;
        let names = (0..count).map(|at| text((*infos.add(at)).driver_name)).collect();
        sys::iree_allocator_free(allocator(), infos.cast());
        Ok(names)
    }
}

/// The devices that a driver lists, without opening them.
pub(crate) fn list(driver: &str) -> Result<Vec<ListedDevice>> {
    let instance = Instance::get()?;
    let (mut count, mut infos) = (0, null_mut());
    // SAFETY: C gives an array of as many as it says, whose texts live until it is freed, which is once and behind
    // the last of them.
    unsafe {
        let made = Ref::make(|out| {
            sys::iree_hal_driver_registry_try_create(instance.registry(), view(driver), allocator(), out)
        })
        .map_err(|error| with_drivers(error, driver))?;
        check(sys::iree_hal_driver_query_available_devices(
            made.as_ptr(),
            allocator(),
            &raw mut count,
            &raw mut infos,
        ))?;
        let listed = (0..count).map(|at| {
            let info = *infos.add(at);
            ListedDevice { driver: driver.to_owned(), path: text(info.path), name: text(info.name) }
        });
        let listed = listed.collect();
        sys::iree_allocator_free(allocator(), infos.cast());
        Ok(listed)
    }
}

/// Adds the names of the drivers to an error about an unknown driver.
fn with_drivers(mut error: Error, driver: &str) -> Error {
    if let Ok(drivers) = drivers()
        && !drivers.iter().any(|known| known == driver)
    {
        error.message += &format!("; there is no driver {driver}, there are {}", drivers.join(", "));
        if let Some((name, parameters)) = driver.split_once('?') {
            error.message += &format!("; parameters stand behind ://, as in {name}://?{parameters}");
        }
    }
    error
}

/// An open device.
#[derive(Clone)]
pub(crate) struct Device(Ref<sys::iree_hal_device_t>);

impl Device {
    /// Opens a device by its URI.
    pub(crate) fn open(uri: &str) -> Result<Self> {
        let instance = Instance::get()?;
        let params =
            sys::iree_hal_device_create_params_t { next: null(), proactor_pool: instance.pool.as_ptr() };
        // SAFETY: registry and pool live as long as the process; the device keeps what it needs of the rest.
        Ref::make(|out| unsafe {
            sys::iree_hal_create_device(instance.registry(), view(uri), &raw const params, allocator(), out)
        })
        .map(Self)
        .map_err(|error| with_drivers(error, uri.split("://").next().unwrap_or(uri)))
    }

    /// The device's own name.
    pub(crate) fn identifier(&self) -> String {
        // SAFETY: the text lives as long as the device.
        unsafe { text(sys::iree_hal_device_id(self.as_ptr())) }
    }

    /// A semaphore at 0.
    pub(super) fn semaphore(&self) -> Result<Ref<sys::iree_hal_semaphore_t>> {
        // SAFETY: this keeps the device alive, by the invariant of `Ref`.
        Ref::make(|out| unsafe {
            sys::iree_hal_semaphore_create(
                self.as_ptr(),
                sys::iree_hal_queue_affinity_t::MAX,
                0,
                sys::IREE_HAL_SEMAPHORE_FLAG_DEFAULT.into(),
                out,
            )
        })
    }

    /// A new reference to a device; `None` for null.
    ///
    /// # Safety
    ///
    /// The device is alive, or null.
    pub(super) unsafe fn retained(device: *mut sys::iree_hal_device_t) -> Option<Self> {
        // SAFETY: the device is alive or null, as the function asks.
        unsafe { Ref::retained(device) }.map(Self)
    }

    pub(super) fn as_ptr(&self) -> *mut sys::iree_hal_device_t {
        self.0.as_ptr()
    }
}
