// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Fills: CUDA's own where a pattern is one, two or four bytes and lies at a multiple of them, else a small kernel.

use crate::library::module::{Function, Module};
use crate::library::stream::{Element, Shape};
use crate::library::{CudaError, Current, Issue, Part};
use hal_backend::{Failure, Pattern};
use std::ffi::CStr;

/// The kernel.
const TEXT: &str = concat!(include_str!("kernels.ptx"), "\0");

/// Threads of a block.
const THREADS: u32 = 256;

/// The kernel that repeats any pattern.
pub(crate) struct FillKernel(Function);

/// How a fill is done.
#[derive(Debug)]
enum Way {
    Set(Element),
    Kernel,
}

/// The shortest pattern that repeated gives the same.
fn shortest(pattern: &[u8]) -> &[u8] {
    let repeats = |period: &usize| {
        let (first, _) = pattern.split_at(*period);
        pattern.len().is_multiple_of(*period) && pattern.chunks(*period).all(|chunk| chunk == first)
    };
    (1..pattern.len()).find(repeats).map_or(pattern, |period| pattern.split_at(period).0)
}

fn way(pattern: &[u8], target: Part) -> Way {
    let fits =
        |size: u64| target.address().is_multiple_of(size) && (target.length() as u64).is_multiple_of(size);
    match *pattern {
        [a] => Way::Set(Element::One(a)),
        [a, b] if fits(2) => Way::Set(Element::Two(u16::from_le_bytes([a, b]))),
        [a, b, c, d] if fits(4) => Way::Set(Element::Four(u32::from_le_bytes([a, b, c, d]))),
        _ => Way::Kernel,
    }
}

impl FillKernel {
    pub(crate) fn load(current: &Current<'_>) -> Result<Self, Failure> {
        let text = CStr::from_bytes_until_nul(TEXT.as_bytes()).unwrap_or_default();
        let loaded = Module::load(current, text).map_err(|(error, log)| error.own_module(&log))?;
        let function = loaded.function(current, c"fill");
        function.map(Self).map_err(|error| error.own_module(""))
    }

    /// Repeats a pattern over memory.
    pub(crate) fn fill(
        &self,
        current: &Current<'_>,
        to: &mut impl Issue,
        target: Part,
        pattern: &Pattern,
    ) -> Result<(), CudaError> {
        let pattern = shortest(pattern.bytes());
        if let Way::Set(element) = way(pattern, target) {
            return to.set(current, target, element);
        }
        let mut bytes = [0; 16];
        bytes.iter_mut().zip(pattern).for_each(|(to, from)| *to = *from);
        let mut parameters = [0; 36];
        let (words, size) = parameters.split_at_mut(32);
        let length = target.length() as u64;
        let (address, length_bytes) = (target.address().to_le_bytes(), length.to_le_bytes());
        let all = address.into_iter().chain(length_bytes).chain(bytes);
        words.iter_mut().zip(all).for_each(|(to, from)| *to = from);
        #[expect(clippy::cast_possible_truncation, reason = "a pattern has at most sixteen bytes")]
        size.copy_from_slice(&(pattern.len() as u32).to_le_bytes());
        let blocks = u32::try_from(length.div_ceil(THREADS.into())).unwrap_or(u32::MAX);
        let shape = Shape { grid: [blocks, 1, 1], block: [THREADS, 1, 1], shared: 0 };
        to.launch(current, &self.0, &shape, &parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_is_reduced_to_its_period() {
        assert_eq!(shortest(&[7; 16]), [7]);
        assert_eq!(shortest(&[1, 2, 1, 2]), [1, 2]);
        assert_eq!(shortest(&[1, 2, 3, 4, 1, 2, 3, 4]), [1, 2, 3, 4]);
        assert_eq!(shortest(&[1, 2, 1]), [1, 2, 1]);
        assert_eq!(shortest(&[5]), [5]);
    }
}
