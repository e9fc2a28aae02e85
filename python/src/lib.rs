// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The extension module of the Python package `iree_hal`: IREE's runtime with the drivers of this repository.
//!
//! `runtime` is IREE without Python; the other modules are Python's classes over it. The interpreter lock is
//! released while something may take long: loading, calling, waiting, copying.

mod array;
mod convert;
mod device;
mod dlpack;
mod error;
mod future;
mod host_array;
mod module;
mod runtime;

use pyo3::prelude::*;

/// The native part of `iree_hal`, which users import.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::array::Array;
    #[pymodule_export]
    use super::device::{Device, DeviceInfo, Profile, devices, drivers, stall_report};
    #[pymodule_export]
    use super::error::Error;
    #[pymodule_export]
    use super::future::Future;
    #[pymodule_export]
    use super::module::{Function, Module};
}
