// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The runtime's errors as exceptions.

use crate::runtime;
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::prelude::*;

create_exception!(
    iree_hal,
    Error,
    PyRuntimeError,
    "What the runtime or a device says went wrong. `code` is IREE's name of it, such as \"NOT_FOUND\"."
);

impl From<runtime::Error> for PyErr {
    fn from(error: runtime::Error) -> Self {
        let exception = if error.is_deadline() {
            PyTimeoutError::new_err(error.message)
        } else {
            Error::new_err(error.message)
        };
        Python::attach(|py| {
            // An exception without its code is still the exception.
            let _ = exception.value(py).setattr("code", error.code);
        });
        exception
    }
}
