// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The Python classes of devices.

use crate::array::Array;
use crate::convert::{self, Copying};
use crate::error::Error;
use crate::runtime::{self, Element};
use parking_lot::Mutex;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::path::PathBuf;

/// The names of all drivers of this package, IREE's own local ones included.
#[pyfunction]
pub(crate) fn drivers(py: Python<'_>) -> PyResult<Vec<String>> {
    Ok(py.detach(runtime::drivers)?)
}

/// A device that a driver lists.
#[pyclass(frozen, get_all, module = "iree_hal")]
pub(crate) struct DeviceInfo {
    /// The driver's name.
    driver: String,
    /// The part of the URI after `driver://`.
    path: String,
    /// A description. An emulated device says so.
    name: String,
}

#[pymethods]
impl DeviceInfo {
    /// The URI for `Device`.
    #[getter]
    fn uri(&self) -> String {
        format!("{}://{}", self.driver, self.path)
    }

    fn __repr__(&self) -> String {
        format!("<iree_hal.DeviceInfo {}: {}>", self.uri(), self.name)
    }
}

/// The devices that one driver lists, or all of them, without opening any. A driver without hardware lists none.
#[pyfunction]
#[pyo3(signature = (driver=None))]
pub(crate) fn devices(py: Python<'_>, driver: Option<&str>) -> PyResult<Vec<DeviceInfo>> {
    driver.map_or(Ok(()), check_text)?;
    let listed = py.detach(|| match driver {
        Some(driver) => runtime::list(driver),
        None => Ok(runtime::drivers()?
            .iter()
            .flat_map(|driver| runtime::list(driver).unwrap_or_default())
            .collect()),
    })?;
    let info = |found: runtime::ListedDevice| DeviceInfo {
        driver: found.driver,
        path: found.path,
        name: found.name,
    };
    Ok(listed.into_iter().map(info).collect())
}

/// What this process waits for, on all devices of this project's drivers: for a program that hangs. As text, or as JSON
/// for `json.loads`. Any thread may call it.
#[pyfunction]
#[pyo3(signature = (*, json=false))]
pub(crate) fn stall_report(py: Python<'_>, json: bool) -> PyResult<String> {
    runtime::check_not_forked()?;
    let report = py.detach(hal_driver::stall_report);
    Ok(if json { report.to_json() } else { report.to_string() })
}

/// A device, opened by its URI: `Device("mock")`, `Device("gaudi://0")`, `Device("mock://0?queues=4")`.
#[pyclass(frozen, module = "iree_hal")]
pub(crate) struct Device {
    uri: String,
    device: runtime::Device,
}

impl Device {
    pub(crate) fn open(py: Python<'_>, uri: &str) -> PyResult<Self> {
        runtime::check_not_forked()?;
        check_text(uri)?;
        let device = py.detach(|| runtime::Device::open(uri))?;
        runtime::has_opened();
        Ok(Self { uri: uri.to_owned(), device })
    }

    pub(crate) fn inner(&self) -> &runtime::Device {
        &self.device
    }
}

#[pymethods]
impl Device {
    #[new]
    fn new(py: Python<'_>, uri: &str) -> PyResult<Self> {
        Self::open(py, uri)
    }

    /// The URI that it was opened with.
    #[getter]
    fn uri(&self) -> &str {
        &self.uri
    }

    /// The device's own name.
    #[getter]
    fn name(&self) -> String {
        self.device.identifier()
    }

    /// An array on the device, of numbers, of a numpy array, or of another library's array by DLPack.
    ///
    /// It is a copy, unless `copy` is `False`, which uses the memory in place or raises `BufferError`, or `None`,
    /// which copies only if the device cannot use the memory in place. Memory in use shows later changes, and must
    /// not be changed while the device works on it. `dtype` is for numbers that have no type.
    #[pyo3(signature = (object, dtype=None, *, copy=Some(true)))]
    fn array(&self, object: &Bound<'_, PyAny>, dtype: Option<&str>, copy: Option<bool>) -> PyResult<Array> {
        let element = dtype.map(element).transpose()?;
        let view = convert::array(object, &self.device, element, Copying::from_option(copy))?;
        Ok(Array::new(view, self.device.clone(), None))
    }

    /// Another library's DLPack export on the device: in place if the device can use it, otherwise copied.
    #[expect(clippy::wrong_self_convention, reason = "the name in Python's libraries")]
    #[pyo3(signature = (object, *, copy=None))]
    fn from_dlpack(&self, object: &Bound<'_, PyAny>, copy: Option<bool>) -> PyResult<Array> {
        let view = convert::from_dlpack(object, &self.device, Copying::from_option(copy))?;
        Ok(Array::new(view, self.device.clone(), None))
    }

    /// Writes a profile for IREE's `iree-profile` to a file, while the block runs: `with device.profile(path):`
    fn profile(&self, path: PathBuf) -> Profile {
        Profile { device: self.device.clone(), path, session: Mutex::new(None) }
    }

    fn __repr__(&self) -> String {
        format!("<iree_hal.Device {}>", self.uri)
    }
}

/// Refuses text with a NUL, where C would end it.
fn check_text(text: &str) -> PyResult<()> {
    if text.contains('\0') {
        return Err(PyValueError::new_err(format!(
            "{text:?} has a NUL, which no name of a device or driver has"
        )));
    }
    Ok(())
}

fn element(name: &str) -> PyResult<Element> {
    Element::named(name).ok_or_else(|| {
        PyTypeError::new_err(format!(
            "arrays have no elements of type '{name}'; the types are {}",
            Element::names()
        ))
    })
}

/// A profile of a device, taken between `with` and the end of its block.
#[pyclass(frozen, module = "iree_hal")]
pub(crate) struct Profile {
    device: runtime::Device,
    path: PathBuf,
    session: Mutex<Option<runtime::Profile>>,
}

#[pymethods]
impl Profile {
    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        let profile = slf.get();
        let path =
            profile.path.to_str().ok_or_else(|| PyTypeError::new_err("the path of a profile is text"))?;
        runtime::check_not_forked()?;
        slf.py().detach(|| {
            let mut session = profile.session.lock();
            if session.is_some() {
                return Err(runtime::Error::new("FAILED_PRECONDITION", "this profile has begun already"));
            }
            *session = Some(runtime::Profile::begin(&profile.device, path)?);
            Ok(())
        })?;
        Ok(slf)
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _trace: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        runtime::check_not_forked()?;
        let session = self.session.lock().take();
        let session = session.ok_or_else(|| Error::new_err("this profile has not begun"))?;
        Ok(py.detach(|| session.end())?)
    }
}
