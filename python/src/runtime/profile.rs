// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Profiles of a device, written to a file for IREE's `iree-profile`.

use super::device::Device;
use super::instance::allocator;
use super::object::Ref;
use super::status::{Result, check};
use super::view;
use hal_sys as sys;

/// The recorded data: everything that shows when queues and dispatches ran.
const FAMILIES: sys::iree_hal_device_profiling_data_families_t =
    sys::IREE_HAL_DEVICE_PROFILING_DATA_QUEUE_EVENTS as u64
        | sys::IREE_HAL_DEVICE_PROFILING_DATA_HOST_EXECUTION_EVENTS as u64
        | sys::IREE_HAL_DEVICE_PROFILING_DATA_DEVICE_QUEUE_EVENTS as u64
        | sys::IREE_HAL_DEVICE_PROFILING_DATA_DISPATCH_EVENTS as u64
        | sys::IREE_HAL_DEVICE_PROFILING_DATA_EXECUTABLE_METADATA as u64;

/// A profile that is being taken.
pub(crate) struct Profile {
    device: Device,
}

impl Profile {
    /// Begins a profile. Only one can be taken of a device at a time.
    pub(crate) fn begin(device: &Device, path: &str) -> Result<Self> {
        let mode =
            sys::IREE_IO_FILE_MODE_READ | sys::IREE_IO_FILE_MODE_WRITE | sys::IREE_IO_FILE_MODE_OVERWRITE;
        // SAFETY: each object is owned as soon as it exists; the session keeps the sink, and the sink the file.
        unsafe {
            let file = Ref::make(|out| {
                sys::iree_io_file_handle_create(mode.into(), view(path), 0, allocator(), out)
            })?;
            let sink =
                Ref::make(|out| sys::iree_hal_profile_file_sink_create(file.as_ptr(), allocator(), out))?;
            let mut options = std::mem::zeroed::<sys::iree_hal_device_profiling_options_t>();
            options.data_families = FAMILIES;
            options.sink = sink.as_ptr();
            check(sys::iree_hal_device_profiling_begin(device.as_ptr(), &raw const options))?;
        }
        Ok(Self { device: device.clone() })
    }

    /// Ends the profile and finishes the file.
    pub(crate) fn end(self) -> Result {
        // SAFETY: `self.device` keeps the device alive, by the invariant of `Ref`; it has a session since `begin`,
        // which ends here once.
        unsafe { check(sys::iree_hal_device_profiling_end(self.device.as_ptr())) }
    }
}
