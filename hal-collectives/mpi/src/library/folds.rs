// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! How MPI folds two operands into one: with an operation of its own, or with one of ours.
//!
//! Ours are for
//!
//! - numbers that MPI does not know;
//! - the smallest and largest float, which are not a number if either operand is not;
//! - numbers of 8 and 16 bits, of which Open MPI 4.1's sums do not wrap around (`ompi/mca/op/avx`, `_mm256_adds_epi8`);
//! - the smallest and largest number without a sign, which MPICH 4.0 takes for ones with a sign.

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
        let is_native = match self.element {
            Element::F16 | Element::Bf16 | Element::I8 | Element::U8 | Element::I16 | Element::U16 => {
                self.reduction == Reduction::Average
            }
            Element::I32 => true,
            Element::I64 => self.reduction != Reduction::Average,
            Element::U32 | Element::F32 | Element::F64 => {
                !matches!(self.reduction, Reduction::Minimum | Reduction::Maximum)
            }
            Element::U64 => matches!(self.reduction, Reduction::Sum | Reduction::Product),
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
    ($($element:ident [$($reduction:ident)*],)*) => { [$($((
        Fold { element: Element::$element, reduction: Reduction::$reduction },
        own::<{ Element::$element as usize }, { Reduction::$reduction as usize }> as Function,
    )),*),*] };
}

/// All folds that MPI has not.
pub(super) const OWN: [(Fold, Function); 34] = own! {
    I8 [Sum Product Minimum Maximum],
    U8 [Sum Product Minimum Maximum],
    I16 [Sum Product Minimum Maximum],
    U16 [Sum Product Minimum Maximum],
    F16 [Sum Product Minimum Maximum],
    Bf16 [Sum Product Minimum Maximum],
    U32 [Minimum Maximum],
    F32 [Minimum Maximum],
    F64 [Minimum Maximum],
    I64 [Average],
    U64 [Minimum Maximum Average],
};

/// The fold of the element and the reduction with these numbers.
#[expect(clippy::indexing_slicing, reason = "checked when it is compiled")]
unsafe extern "C" fn own<const ELEMENT: usize, const REDUCTION: usize>(
    left: *mut c_void,
    right: *mut c_void,
    count: *mut c_int,
    _of: *mut Handle,
) {
    // SAFETY: MPI passes operands of so many numbers.
    unsafe { fold(const { Element::ALL[ELEMENT] }, const { Reduction::ALL[REDUCTION] }, left, right, count) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folds_are_those_of_mpi_or_ours() {
        for (element, reduction) in
            Element::ALL.into_iter().flat_map(|element| Reduction::ALL.map(|reduction| (element, reduction)))
        {
            let fold = Fold { element, reduction };
            let own = OWN.iter().filter(|(own, _)| *own == fold).count();
            assert_eq!(own, usize::from(fold.native().is_none()), "{fold:?}");
        }
    }
}
