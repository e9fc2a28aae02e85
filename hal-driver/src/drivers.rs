// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The drivers of this library, and the one place where emulated cards come in.
//!
//! `cards!` gives each driver of cards its emulated ones: those of the feature `emulated`, or none.
//! `drivers!` exports a registration function for each driver.

macro_rules! cards {
    ($($feature:literal: $driver:ident, $backend:ident, $emulator:ident;)*) => {
        $(
            #[cfg(all(feature = $feature, feature = "emulated"))]
            pub(crate) type $driver = $backend::$driver<$emulator::Emulated>;
            #[cfg(all(feature = $feature, not(feature = "emulated")))]
            pub(crate) type $driver = $backend::$driver;
        )*
    };
}

#[cfg(all(feature = "nvidia", feature = "emulated"))]
use crate::emulated_cuda;

cards! {
    "nvidia": Nvidia, hal_cuda, emulated_cuda;
    "gaudi": Gaudi, hal_gaudi, emulator_gaudi;
    "qaic": Qaic, hal_qaic, emulator_qaic;
    "tenstorrent": Tenstorrent, hal_tenstorrent, emulator_tenstorrent;
}

/// The drivers of this library, each behind the feature of its name.
macro_rules! drivers {
    ($($feature:literal: $function:ident, $driver:ty;)*) => {
        $(
            // What the crate's own tests need of a driver they make: the drivers are most of what there is to compile.
            #[cfg(all(feature = $feature, not(test)))]
            crate::export_driver!($function, $driver);
        )*

        /// Adds every driver of this library to a registry, as selected by its features. Cheap, and touches no
        /// hardware. Stops at the first that cannot be added, such as one that is registered already. A library
        /// without drivers has no such function, so that a program may link it beside this one.
        ///
        /// # Safety
        ///
        /// The registry is alive.
        #[cfg(all(any($(feature = $feature),*), not(test)))]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn hal_drivers_register_all(
            registry: *mut crate::sys::iree_hal_driver_registry_t,
        ) -> crate::sys::iree_status_t {
            $(
                #[cfg(feature = $feature)]
                {
                    // SAFETY: the registry is alive, as the caller promises.
                    let status = unsafe { $function(registry) };
                    if !status.is_null() {
                        return status;
                    }
                }
            )*
            std::ptr::null_mut()
        }

        /// Appends to a builder what this process waits for, on all devices of this library: as text for 0, as JSON
        /// for 1. See [`stall_report`](crate::stall_report).
        ///
        /// # Safety
        ///
        /// The builder is alive, or null, which is refused.
        #[cfg(all(any($(feature = $feature),*), not(test)))]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn hal_drivers_stall_report(
            format: u32,
            builder: *mut crate::sys::iree_string_builder_t,
        ) -> crate::sys::iree_status_t {
            // SAFETY: the builder is alive or null, as the caller promises.
            unsafe { crate::stall::append_report(format, builder) }
        }
    };
}

drivers! {
    "gaudi": iree_hal_gaudi_driver_module_register, Gaudi;
    "mock": iree_hal_mock_driver_module_register, hal_mock::Mock;
    "nvidia": iree_hal_nvidia_driver_module_register, Nvidia;
    "qaic": iree_hal_qaic_driver_module_register, Qaic;
    "template": iree_hal_template_driver_module_register, hal_template::Template;
    "tenstorrent": iree_hal_tenstorrent_driver_module_register, Tenstorrent;
}
