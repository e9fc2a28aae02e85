// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! DLPack, both ways: arrays that change hands without a copy.
//!
//! A capsule holds a structure with a deleter. A consumer takes the structure: it renames the capsule and calls the
//! deleter once. A capsule that was not taken is freed with its structure by its own destructor. Both versions of
//! the structure are supported.

use crate::host_array::HostArray;
use crate::runtime::Element;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

/// DLPack's device type and number of the host.
pub(crate) const HOST: (i32, i32) = (1, 0);
/// DLPack's types of host memory that CUDA or ROCm has pinned.
const PINNED: [i32; 2] = [3, 11];

const PLAIN: &CStr = c"dltensor";
const PLAIN_USED: &CStr = c"used_dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const VERSIONED_USED: &CStr = c"used_dltensor_versioned";

/// DLPack's flag of read-only bytes.
const READ_ONLY: u64 = 1;
/// DLPack's flag of bytes that are the receiver's copy.
const IS_COPIED: u64 = 2;

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    rank: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    offset: u64,
}

#[repr(C)]
struct Plain {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: Tensor,
}

/// The common part of both versions of DLPack's structure.
trait Managed: Sized {
    /// The name of a capsule until it is taken.
    const NAME: &'static CStr;
    /// The name of a capsule after it was taken.
    const USED: &'static CStr;

    fn tensor(&self) -> &Tensor;
    fn context(&self) -> *mut c_void;
    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)>;
}

impl Managed for Plain {
    const NAME: &'static CStr = PLAIN;
    const USED: &'static CStr = PLAIN_USED;

    fn tensor(&self) -> &Tensor {
        &self.tensor
    }
    fn context(&self) -> *mut c_void {
        self.context
    }
    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
        self.deleter
    }
}

impl Managed for Versioned {
    const NAME: &'static CStr = VERSIONED;
    const USED: &'static CStr = VERSIONED_USED;

    fn tensor(&self) -> &Tensor {
        &self.tensor
    }
    fn context(&self) -> *mut c_void {
        self.context
    }
    fn deleter(&self) -> Option<unsafe extern "C" fn(*mut Self)> {
        self.deleter
    }
}

/// Frees a structure of ours: the box, and the array that it kept.
unsafe extern "C" fn delete<M: Managed>(managed: *mut M) {
    // SAFETY: made by `export`, and ended once, as DLPack asks of its owner.
    unsafe {
        let managed = Box::from_raw(managed);
        drop(Arc::from_raw(managed.context().cast::<HostArray>()));
    }
}

/// Frees a capsule that was not taken.
unsafe extern "C" fn destroy<M: Managed>(capsule: *mut ffi::PyObject) {
    // SAFETY: Python destroys a capsule of ours; under its first name it still has the structure.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()).cast::<M>());
        }
    }
}

fn capsule<M: Managed>(py: Python<'_>, managed: M) -> PyResult<Bound<'_, PyAny>> {
    let managed = Box::into_raw(Box::new(managed));
    // SAFETY: the pointer is not null, and the name lives for ever; a capsule that could not be made takes nothing.
    unsafe {
        let made = ffi::PyCapsule_New(managed.cast(), M::NAME.as_ptr(), Some(destroy::<M>));
        if made.is_null() {
            delete(managed);
        }
        Bound::from_owned_ptr_or_err(py, made)
    }
}

/// A capsule with the bytes of an array, which it keeps.
pub(crate) fn export<'py>(
    py: Python<'py>,
    host: &Arc<HostArray>,
    versioned: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let (code, bits) = host.element.dlpack;
    let tensor = Tensor {
        data: host.view.data().cast_mut().cast(),
        device_type: HOST.0,
        device_id: HOST.1,
        rank: i32::try_from(host.shape.len())?,
        code,
        bits,
        lanes: 1,
        shape: host.shape.as_ptr(),
        strides: host.strides.as_ptr(),
        offset: 0,
    };
    let context = Arc::into_raw(host.clone()).cast_mut().cast();
    if versioned {
        let flags = if host.view.is_copy() { READ_ONLY | IS_COPIED } else { READ_ONLY };
        capsule(py, Versioned { major: 1, minor: 0, context, deleter: Some(delete), flags, tensor })
    } else {
        capsule(py, Plain { tensor, context, deleter: Some(delete) })
    }
}

/// Another library's array, taken from its capsule.
pub(crate) struct ImportedTensor {
    /// The address of its bytes.
    pub(crate) data: NonNull<c_void>,
    /// Its dimensions.
    pub(crate) shape: Vec<usize>,
    /// The type of its elements.
    pub(crate) element: Element,
    /// Calls the other library's deleter when it is dropped.
    pub(crate) owner: Box<dyn Send>,
}

/// Another library's structure.
///
/// # Invariants
///
/// It was taken from its capsule, is valid until its deleter is called, and only this calls that.
struct ForeignTensor<M: Managed>(NonNull<M>);

// SAFETY: DLPack lets the deleter be called from any thread.
unsafe impl<M: Managed> Send for ForeignTensor<M> {}

impl<M: Managed> Drop for ForeignTensor<M> {
    fn drop(&mut self) {
        // SAFETY: valid, and ended here alone, by the invariant.
        unsafe {
            if let Some(deleter) = self.0.as_ref().deleter() {
                deleter(self.0.as_ptr());
            }
        }
    }
}

/// Takes an object's export.
pub(crate) fn take(object: &Bound<'_, PyAny>) -> PyResult<ImportedTensor> {
    let py = object.py();
    let arguments = PyDict::new(py);
    arguments.set_item("max_version", (1, 0))?;
    let capsule = match object.call_method("__dlpack__", (), Some(&arguments)) {
        // A library without versions.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => object.call_method0("__dlpack__")?,
        outcome => outcome?,
    };
    if let Some(owner) = owner::<Versioned>(&capsule) {
        return describe(owner);
    }
    match owner::<Plain>(&capsule) {
        Some(owner) => describe(owner),
        None => Err(PyTypeError::new_err("__dlpack__ returned no DLPack capsule")),
    }
}

/// The structure of a capsule, which is marked as taken.
fn owner<M: Managed>(capsule: &Bound<'_, PyAny>) -> Option<ForeignTensor<M>> {
    // SAFETY: asked of a live object; under this name the pointer is what the name says.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), M::NAME.as_ptr()) != 1 {
            return None;
        }
        let managed = ffi::PyCapsule_GetPointer(capsule.as_ptr(), M::NAME.as_ptr()).cast::<M>();
        ffi::PyCapsule_SetName(capsule.as_ptr(), M::USED.as_ptr());
        NonNull::new(managed).map(ForeignTensor)
    }
}

fn describe<M: Managed + 'static>(owner: ForeignTensor<M>) -> PyResult<ImportedTensor> {
    // SAFETY: valid as long as `owner`, by its invariant.
    let tensor = unsafe { owner.0.as_ref() }.tensor();
    if tensor.device_type != HOST.0 && !PINNED.contains(&tensor.device_type) {
        return Err(PyBufferError::new_err(format!(
            "the array is on DLPack's device ({}, {}); only host memory can be imported: copy it to the host \
             first",
            tensor.device_type, tensor.device_id
        )));
    }
    let element =
        Element::from_dlpack(tensor.code, tensor.bits).filter(|_| tensor.lanes == 1).ok_or_else(|| {
            PyTypeError::new_err(format!(
                "arrays cannot have DLPack's type with code {}, {} bits and {} lanes",
                tensor.code, tensor.bits, tensor.lanes
            ))
        })?;
    let rank = usize::try_from(tensor.rank)?;
    if rank > 0 && tensor.shape.is_null() {
        return Err(PyBufferError::new_err(format!("the array has {rank} dimensions but no shape")));
    }
    // SAFETY: a structure has as many dimensions as its rank, and strides as many or none.
    let (shape, strides) = unsafe {
        let list = |numbers: *const i64| {
            (!numbers.is_null() && rank > 0).then(|| std::slice::from_raw_parts(numbers, rank))
        };
        (list(tensor.shape).unwrap_or(&[]), list(tensor.strides))
    };
    if strides.is_some_and(|strides| !is_dense(shape, strides)) {
        return Err(PyBufferError::new_err("the array is not contiguous: make a contiguous copy first"));
    }
    let shape = shape.iter().map(|dimension| Ok(usize::try_from(*dimension)?)).collect::<PyResult<_>>()?;
    let data = tensor.data.wrapping_byte_add(usize::try_from(tensor.offset)?);
    Ok(ImportedTensor {
        data: NonNull::new(data).unwrap_or(NonNull::dangling()),
        shape,
        element,
        owner: Box::new(owner),
    })
}

/// True if the elements are contiguous, the last dimension innermost. Without elements, strides mean nothing.
fn is_dense(shape: &[i64], strides: &[i64]) -> bool {
    if shape.contains(&0) {
        return true;
    }
    let mut expected = 1_i64;
    shape.iter().zip(strides).rev().all(|(dimension, stride)| {
        let fits = *dimension == 1 || *stride == expected;
        expected = expected.saturating_mul(*dimension);
        fits
    })
}
