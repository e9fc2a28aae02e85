// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! How MPI folds two operands into one: with an operation of its own, or with one of ours.
//!
//! Ours are for numbers that MPI does not know, and for the smallest and largest float, which are not a number if
//! either operand is not.

use super::Handle;
use hal_backend::HostRange;
use hal_collectives::{Element, Folding, Reduction, reduce};
use std::ffi::{c_int, c_void};

/// `MPI_User_function`.
pub(super) type Function = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_int, *mut Handle);

/// A fold of elements of a type. An average's are its [partial results](Folding), which are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fold {
    pub(crate) element: Element,
    pub(crate) reduction: Reduction,
}

impl Fold {
    /// The place of MPI's own operation among its four, if it computes the same.
    pub(super) fn native(self) -> Option<usize> {
        let is_native = match (self.element, self.reduction) {
            (Element::I64 | Element::U64, Reduction::Average) => false,
            (_, Reduction::Average) => true,
            (Element::F16 | Element::Bf16, _) => false,
            (Element::F32 | Element::F64, how) => matches!(how, Reduction::Sum | Reduction::Product),
            _ => true,
        };
        is_native.then_some(match self.reduction {
            Reduction::Sum | Reduction::Average => 0,
            Reduction::Product => 1,
            Reduction::Minimum => 2,
            Reduction::Maximum => 3,
        })
    }
}

macro_rules! own {
    ($($element:ident $reduction:ident $function:ident,)*) => {
        $(unsafe extern "C" fn $function(
            left: *mut c_void,
            right: *mut c_void,
            count: *mut c_int,
            _of: *mut Handle,
        ) {
            // SAFETY: MPI passes operands of so many numbers.
            unsafe { fold(Element::$element, Reduction::$reduction, left, right, count) }
        })*

        /// All folds that MPI has not.
        pub(super) const OWN: [(Fold, Function); [$(Element::$element),*].len()] = [
            $((Fold { element: Element::$element, reduction: Reduction::$reduction }, $function as Function)),*
        ];
    };
}

own! {
    F16 Sum f16_sum,
    F16 Product f16_product,
    F16 Minimum f16_minimum,
    F16 Maximum f16_maximum,
    Bf16 Sum bf16_sum,
    Bf16 Product bf16_product,
    Bf16 Minimum bf16_minimum,
    Bf16 Maximum bf16_maximum,
    F32 Minimum f32_minimum,
    F32 Maximum f32_maximum,
    F64 Minimum f64_minimum,
    F64 Maximum f64_maximum,
    I64 Average i64_average,
    U64 Average u64_average,
}

/// Folds two operands into the second.
///
/// # Safety
///
/// Both have so many elements, or partial results of an average.
unsafe fn fold(
    element: Element,
    reduction: Reduction,
    left: *mut c_void,
    right: *mut c_void,
    count: *mut c_int,
) {
    let folding = Folding::new(element, reduction);
    let is_average = reduction == Reduction::Average;
    let size = if is_average { folding.width() } else { element.size() };
    // SAFETY: as the caller promises.
    let length = u64::from(unsafe { *count }.unsigned_abs()) * size;
    // SAFETY: as above; the ranges live for this call.
    let operand = |start: *mut c_void| unsafe {
        HostRange::from_raw(start.cast(), usize::try_from(length).unwrap_or(0), None)
    };
    let (left, right) = (operand(left), operand(right));
    if is_average {
        return folding.combine(&left, &right, &right);
    }
    reduce(element, reduction, &[left, right.clone()], (0, length), &mut |at, bytes| {
        let written = right.write(at, bytes);
        debug_assert!(written, "a result is as long as its operands");
    });
}
