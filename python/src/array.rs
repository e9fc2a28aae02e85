// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The Python class `Array`.

use crate::dlpack;
use crate::host_array::HostArray;
use crate::runtime::{self, Element, Program, View};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use std::ffi::{c_int, c_void};
use std::sync::{Arc, OnceLock};

/// An array on a device.
///
/// It becomes a numpy array with `numpy()` or `numpy.asarray`, and another library's with DLPack: in place if the
/// host can map the device's memory, otherwise by a copy that is made once. All of these are read-only.
#[pyclass(frozen, module = "iree_hal")]
pub(crate) struct Array {
    view: View,
    device: runtime::Device,
    host: OnceLock<Arc<HostArray>>,
    /// Results may be in constants of the module that returned them.
    _program: Option<Arc<Program>>,
}

impl Array {
    pub(crate) fn new(view: View, device: runtime::Device, program: Option<Arc<Program>>) -> Self {
        Self { view, device, host: OnceLock::new(), _program: program }
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    fn element(&self) -> PyResult<Element> {
        self.view
            .element()
            .ok_or_else(|| PyTypeError::new_err("Python has no type for this array's elements"))
    }

    /// Its bytes, copied to the host at the first call.
    pub(crate) fn host(&self, py: Python<'_>) -> PyResult<&Arc<HostArray>> {
        if let Some(host) = self.host.get() {
            return Ok(host);
        }
        let element = self.element()?;
        runtime::check_not_forked()?;
        let view = py.detach(|| self.view.host(&self.device))?;
        let host = HostArray::new(view, element, &self.view.shape(), self.view.length())?;
        Ok(self.host.get_or_init(|| Arc::new(host)))
    }
}

#[pymethods]
impl Array {
    /// The dimensions, outermost first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.view.shape())
    }

    /// The name of the element type in numpy or `ml_dtypes`.
    #[getter]
    fn dtype(&self) -> PyResult<&'static str> {
        Ok(self.element()?.name)
    }

    /// The size of the elements in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.view.length()
    }

    /// The array as a numpy array: a read-only view of the device's memory if the host can map it, otherwise a
    /// copy.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let numpy = py.import("numpy")?;
        let host = slf.get().host(py)?;
        if host.element.format.is_some() {
            return numpy.call_method1("asarray", (slf,));
        }
        // The buffer protocol has no letter for this type, but the package that extends numpy has a name.
        let types = py.import("ml_dtypes").map_err(|_| {
            PyTypeError::new_err(format!("numpy knows {} only with the package ml_dtypes", host.element.name))
        })?;
        // SAFETY: the bytes are as many as the array has, and live as long as the host view.
        let bytes = unsafe { std::slice::from_raw_parts(host.view.data(), host.length) };
        let arguments = PyDict::new(py);
        arguments.set_item("dtype", types.getattr(host.element.name)?)?;
        let flat = numpy.call_method("frombuffer", (PyBytes::new(py, bytes),), Some(&arguments))?;
        flat.call_method1("reshape", (slf.get().shape(py)?,))
    }

    /// Numpy calls this if the buffer protocol fails, as for a type that has no letter there. Without it numpy does
    /// not fail, but makes one object of the whole array.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let own = Self::numpy(slf)?;
        let array = match dtype {
            Some(dtype) => own.call_method1("astype", (dtype, "K", "unsafe", true, false))?,
            None => own.clone(),
        };
        // A type without a letter in the buffer protocol is copied already.
        let is_copy = slf.get().element()?.format.is_none() || !array.is(&own);
        match copy {
            Some(false) if is_copy => Err(PyValueError::new_err("numpy's array of that type needs a copy")),
            // `numpy()` returns a read-only array even if it is a copy.
            Some(true) => array.call_method0("copy"),
            _ => Ok(array),
        }
    }

    /// The only element, as a Python number.
    fn item<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::numpy(slf)?.call_method0("item")
    }

    fn __len__(&self) -> PyResult<usize> {
        self.view
            .shape()
            .first()
            .copied()
            .ok_or_else(|| PyTypeError::new_err("an array without dimensions has no length"))
    }

    fn __repr__(&self) -> String {
        let shape = self.view.shape().iter().map(ToString::to_string).collect::<Vec<_>>().join("x");
        let element = self.view.element().map_or("?", |element| element.name);
        format!("<iree_hal.Array {shape} {element} on {}>", self.device.identifier())
    }

    /// The DLPack device of the bytes: the host.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::HOST
    }

    /// The array for another library, in place if the host can map the device's memory.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // Results are ready when Python has them, so no stream needs to wait.
        let _ = stream;
        if dl_device.is_some_and(|device| device != dlpack::HOST) {
            return Err(PyBufferError::new_err(
                "arrays are exported as memory of the host, DLPack's device (1, 0)",
            ));
        }
        if copy == Some(true) {
            return Err(PyBufferError::new_err("arrays are exported without a copy; let the consumer copy"));
        }
        dlpack::export(py, self.host(py)?, max_version.is_some_and(|version| version.0 >= 1))
    }

    /// # Safety
    ///
    /// As the buffer protocol asks: `buffer` is Python's to be filled.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, buffer: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
            return Err(PyBufferError::new_err("arrays of devices are read-only: copy it to change it"));
        }
        let host = slf.get().host(slf.py())?;
        let format = host.element.format.ok_or_else(|| {
            PyBufferError::new_err(format!(
                "the buffer protocol has no {}: use numpy() or DLPack",
                host.element.name
            ))
        })?;
        let asked = |flag: c_int| flags & flag == flag;
        // SAFETY: the buffer is Python's to be filled, and everything it points to lives as long as the array,
        // which it keeps.
        unsafe {
            (*buffer).buf = host.view.data().cast_mut().cast::<c_void>();
            (*buffer).len = isize::try_from(host.length)?;
            (*buffer).readonly = 1;
            (*buffer).itemsize = isize::try_from(host.element.size)?;
            (*buffer).format =
                if asked(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { std::ptr::null_mut() };
            (*buffer).ndim = c_int::try_from(host.shape.len())?;
            (*buffer).shape = if asked(ffi::PyBUF_ND) {
                host.shape.as_ptr().cast_mut().cast()
            } else {
                std::ptr::null_mut()
            };
            (*buffer).strides =
                if asked(ffi::PyBUF_STRIDES) { host.steps.as_ptr().cast_mut() } else { std::ptr::null_mut() };
            (*buffer).suboffsets = std::ptr::null_mut();
            (*buffer).internal = std::ptr::null_mut();
            (*buffer).obj = slf.clone().into_any().into_ptr();
        }
        Ok(())
    }
}
