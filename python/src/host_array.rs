// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An array on the host, as the buffer protocol and DLPack export it.

use crate::runtime::{Element, HostView};
use pyo3::prelude::*;

/// An array's bytes on the host, with the shape and strides of the buffer protocol and DLPack.
pub(crate) struct HostArray {
    pub(crate) view: HostView,
    pub(crate) element: Element,
    pub(crate) shape: Vec<i64>,
    /// In elements.
    pub(crate) strides: Vec<i64>,
    /// In bytes.
    pub(crate) steps: Vec<isize>,
    pub(crate) length: usize,
}

impl HostArray {
    pub(crate) fn new(view: HostView, element: Element, shape: &[usize], length: usize) -> PyResult<Self> {
        let mut strides = vec![1_i64; shape.len()];
        let mut stride = 1_i64;
        for (step, dimension) in strides.iter_mut().zip(shape).rev() {
            *step = stride;
            stride = stride.saturating_mul(i64::try_from(*dimension)?.max(1));
        }
        let size = isize::try_from(element.size)?;
        let steps =
            strides.iter().map(|stride| Ok(isize::try_from(*stride)? * size)).collect::<PyResult<_>>()?;
        let shape = shape.iter().map(|dimension| Ok(i64::try_from(*dimension)?)).collect::<PyResult<_>>()?;
        Ok(Self { view, element, shape, strides, steps, length })
    }
}
