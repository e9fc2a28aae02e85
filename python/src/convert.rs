// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Conversions of Python's values to the runtime's, and back.

use crate::array::Array;
use crate::dlpack;
use crate::runtime::{ArgumentKind, Device, Element, Foreign, Program, Value, View, check_not_forked};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyTuple};
use std::ptr::NonNull;
use std::sync::Arc;

/// The declared type of an argument that is an object.
#[derive(Clone, Copy, Default)]
pub(crate) enum Declared {
    #[default]
    Unknown,
    /// An array of these elements.
    Array(Element),
    /// A list of any values.
    List,
}

impl Declared {
    /// The element type for numbers without a type.
    fn element(self) -> Option<Element> {
        match self {
            Declared::Array(element) => Some(element),
            Declared::Unknown | Declared::List => None,
        }
    }
}

/// When the program's memory is copied to the device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copying {
    /// Always: later changes do not show.
    Always,
    /// Only if the device cannot use it in place.
    IfNeeded,
    /// Never: memory that cannot be used in place is an error.
    Never,
}

impl Copying {
    /// From numpy's and DLPack's argument `copy`.
    pub(crate) fn from_option(copy: Option<bool>) -> Self {
        match copy {
            Some(true) => Self::Always,
            None => Self::IfNeeded,
            Some(false) => Self::Never,
        }
    }
}

/// The host memory of an object, with its shape and type.
struct Source {
    data: NonNull<std::ffi::c_void>,
    length: usize,
    shape: Vec<usize>,
    element: Element,
    owner: Box<dyn Send>,
}

impl Source {
    /// The memory that an object exposes by the buffer protocol; `None` without one, or if its elements are not
    /// contiguous.
    fn of_buffer(object: &Bound<'_, PyAny>) -> Option<Self> {
        let buffer = PyUntypedBuffer::get(object).ok()?;
        let element = Element::from_format(buffer.format().to_bytes(), buffer.item_size())?;
        buffer.is_c_contiguous().then(|| Self {
            data: NonNull::new(buffer.buf_ptr()).unwrap_or(NonNull::dangling()),
            length: buffer.len_bytes(),
            shape: buffer.shape().to_vec(),
            element,
            owner: Box::new(buffer),
        })
    }

    /// The memory that an object exports by DLPack.
    fn of_dlpack(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let taken = dlpack::take(object)?;
        let count: usize = taken.shape.iter().product();
        Ok(Self {
            data: taken.data,
            length: count * taken.element.size,
            shape: taken.shape,
            element: taken.element,
            owner: taken.owner,
        })
    }

    /// An object by any of these protocols, or converted by numpy; `element` is the type for numbers without one.
    fn of(object: &Bound<'_, PyAny>, element: Option<Element>) -> PyResult<Self> {
        if let Some(source) = Self::of_buffer(object) {
            return Ok(source);
        }
        let py = object.py();
        let is_array = object.hasattr("dtype")?;
        let is_ours = object.cast::<Array>().is_ok();
        if is_array && (is_ours || !object.hasattr("__array__")?) && object.hasattr("__dlpack__")? {
            return Self::of_dlpack(object);
        }
        let numpy = py.import("numpy")?;
        let arguments = PyDict::new(py);
        if let (false, Some(element)) = (is_array, element) {
            arguments.set_item("dtype", element.name)?;
        }
        let array = numpy.call_method("ascontiguousarray", (object,), Some(&arguments))?;
        // Numpy turns zero dimensions into one.
        let shape = numpy.call_method1("shape", (object,))?.extract()?;
        let source = Self::of_buffer(&array).or_else(|| Self::of_extension(&array));
        source.map(|source| Self { shape, ..source }).ok_or_else(|| refused(object, &array))
    }

    /// An array with a type of `ml_dtypes`, which the buffer protocol does not name.
    fn of_extension(array: &Bound<'_, PyAny>) -> Option<Self> {
        let name: String = array.getattr("dtype").ok()?.getattr("name").ok()?.extract().ok()?;
        let element = Element::named(&name)?;
        let bytes = array.call_method1("view", ("uint16",)).ok().filter(|_| element.size == 2)?;
        Self::of_buffer(&bytes).map(|source| Self { element, ..source })
    }

    /// Puts the array on a device.
    fn place(self, py: Python<'_>, device: &Device, copying: Copying) -> PyResult<View> {
        let Self { data, length, shape, element, owner } = self;
        if copying == Copying::Always {
            return upload(py, device, &shape, element, data, length);
        }
        let memory = Foreign { data, length, owner };
        match py.detach(|| View::import(device, &shape, element, memory)) {
            Ok(view) => Ok(view),
            Err((error, _)) if copying == Copying::Never => Err(PyBufferError::new_err(format!(
                "this device cannot use the memory in place: {}",
                error.message
            ))),
            // `memory` keeps the bytes until they are copied.
            Err((_, memory)) => upload(py, device, &shape, element, memory.data, memory.length),
        }
    }
}

/// Explains why an object, as numpy converts it, cannot become an array of a device.
fn refused(object: &Bound<'_, PyAny>, array: &Bound<'_, PyAny>) -> PyErr {
    let name = object.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
    let elements = array.getattr("dtype").map_or_else(|_| "?".into(), |dtype| dtype.to_string());
    PyTypeError::new_err(format!(
        "a {name} of elements of type {elements} cannot become a device's array; convert it to one of {}, in \
         this machine's byte order",
        Element::names()
    ))
}

fn upload(
    py: Python<'_>,
    device: &Device,
    shape: &[usize],
    element: Element,
    data: NonNull<std::ffi::c_void>,
    length: usize,
) -> PyResult<View> {
    // SAFETY: the caller holds the memory, which has this many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>().as_ptr(), length) };
    Ok(py.detach(|| View::upload(device, shape, element, bytes))?)
}

pub(crate) fn array(
    object: &Bound<'_, PyAny>,
    device: &Device,
    element: Option<Element>,
    copying: Copying,
) -> PyResult<View> {
    check_not_forked()?;
    Source::of(object, element)?.place(object.py(), device, copying)
}

/// An object's DLPack export as an array on a device.
pub(crate) fn from_dlpack(object: &Bound<'_, PyAny>, device: &Device, copying: Copying) -> PyResult<View> {
    check_not_forked()?;
    Source::of_dlpack(object)?.place(object.py(), device, copying)
}

/// Converts an argument that the machine passes as `kind`, at this depth of lists; numbers become arrays of the
/// declared type.
pub(crate) fn argument(
    object: &Bound<'_, PyAny>,
    kind: ArgumentKind,
    declared: Declared,
    device: Option<&Device>,
    depth: usize,
) -> PyResult<Value> {
    Ok(match kind {
        ArgumentKind::I32 => Value::I32(object.extract()?),
        ArgumentKind::I64 => Value::I64(object.extract()?),
        ArgumentKind::F32 => Value::F32(object.extract()?),
        ArgumentKind::F64 => Value::F64(object.extract()?),
        ArgumentKind::Object if object.is_none() => match declared {
            Declared::Array(element) => {
                let message = format!("it takes an array of {} and got None", element.name);
                return Err(PyTypeError::new_err(message));
            }
            Declared::List | Declared::Unknown => Value::None,
        },
        ArgumentKind::Object => match (object.cast::<Array>(), declared) {
            (Ok(array), _) => Value::Array(array.get().view().clone()),
            (Err(_), Declared::List) => list(object, device, depth)?,
            (Err(_), _) => {
                let device = device
                    .ok_or_else(|| PyTypeError::new_err("a module without a device takes no arrays"))?;
                Value::Array(array(object, device, declared.element(), Copying::Always)?)
            }
        },
    })
}

/// The deepest nesting of lists, small enough for any thread's stack.
const DEEPEST: usize = 64;

/// Refuses lists that are nested too deeply, as a list that contains itself is.
pub(crate) fn check_depth(depth: usize) -> PyResult<()> {
    if depth <= DEEPEST {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("lists are nested more than {DEEPEST} deep; does one contain itself?")))
}

/// Converts a list and the lists in it: numbers, arrays, and `None`.
fn list(object: &Bound<'_, PyAny>, device: Option<&Device>, depth: usize) -> PyResult<Value> {
    check_depth(depth)?;
    let values = object.try_iter()?.map(|element| {
        let element = element?;
        if let Ok(whole) = element.cast::<PyInt>() {
            return Ok(Value::I64(whole.extract()?));
        }
        if let Ok(real) = element.cast::<PyFloat>() {
            return Ok(Value::F64(real.extract()?));
        }
        let is_list = element.cast::<PyList>().is_ok() || element.cast::<PyTuple>().is_ok();
        let declared = if is_list { Declared::List } else { Declared::Unknown };
        argument(&element, ArgumentKind::Object, declared, device, depth + 1)
    });
    values.collect::<PyResult<_>>().map(Value::List)
}

/// The results of a call: `None` for none, the result itself for one, otherwise a tuple.
pub(crate) fn results(py: Python<'_>, values: &[Value], program: &Arc<Program>) -> PyResult<Py<PyAny>> {
    match values {
        [] => Ok(py.None()),
        [value] => result(py, value, program),
        _ => {
            let values =
                values.iter().map(|value| result(py, value, program)).collect::<PyResult<Vec<_>>>()?;
            Ok(PyTuple::new(py, values)?.into_any().unbind())
        }
    }
}

fn result(py: Python<'_>, value: &Value, program: &Arc<Program>) -> PyResult<Py<PyAny>> {
    Ok(match value {
        Value::None => py.None(),
        Value::I32(number) => number.into_pyobject(py)?.into_any().unbind(),
        Value::I64(number) => number.into_pyobject(py)?.into_any().unbind(),
        Value::F32(number) => number.into_pyobject(py)?.into_any().unbind(),
        Value::F64(number) => number.into_pyobject(py)?.into_any().unbind(),
        Value::Array(view) => {
            let device = view
                .device()
                .or_else(|| program.device().cloned())
                .ok_or_else(|| PyTypeError::new_err("the function returned an array that is on no device"))?;
            Py::new(py, Array::new(view.clone(), device, Some(program.clone())))?.into_any()
        }
        Value::List(values) => {
            let values =
                values.iter().map(|value| result(py, value, program)).collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, values)?.into_any().unbind()
        }
    })
}
