// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A pool of scratch memory for operations under way: fresh memory costs a page fault for each of its pages.

use crate::library::allocate;
use hal_backend::HostRange;
use hal_collectives::Result;

/// How many pieces are kept, and how many bytes one may have.
const KEPT: usize = 32;
const LARGEST: u64 = 64 << 20;

/// Memory that was used, and may be in use.
#[derive(Default)]
pub(crate) struct Scratch(Vec<HostRange>);

impl Scratch {
    /// Memory of at least so many bytes, cut to them, for the caller alone until it is let go.
    pub(crate) fn take(&mut self, length: u64) -> Result<HostRange> {
        let fits = |range: &HostRange| {
            range.length() >= length && range.length() / 4 <= length.max(4 << 10) && !range.is_shared()
        };
        if let Some(range) = self.0.iter().find(|range| fits(range)).and_then(|range| range.slice(0, length))
        {
            return Ok(range);
        }
        let range = allocate(length.next_multiple_of(4 << 10))?;
        if length <= LARGEST {
            if self.0.len() == KEPT {
                self.0.remove(0);
            }
            self.0.push(range.clone());
        }
        Ok(range.slice(0, length).unwrap_or(range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_when_it_was_let_go_and_never_twice_at_once() {
        let mut scratch = Scratch::default();
        let first = scratch.take(10_000).unwrap();
        let second = scratch.take(10_000).unwrap();
        assert_ne!(first.address(), second.address());
        let place = first.address();
        drop(first);
        assert_eq!(scratch.take(9_000).unwrap().address(), place);
        assert_eq!(scratch.take(0).unwrap().length(), 0);
        for _ in 0..100 {
            std::mem::forget(scratch.take(100).unwrap());
        }
        assert!(scratch.0.len() <= KEPT);
    }

    #[test]
    fn memory_of_the_same_size_is_used_again_and_memory_that_is_much_larger_is_not() {
        for length in [4 << 10, 100_000, 1 << 20] {
            let mut scratch = Scratch::default();
            for _ in 0..2 {
                drop(scratch.take(length).unwrap());
                assert_eq!(scratch.0.len(), 1, "{length} bytes");
            }
            let is_much = length / 8 > 4 << 10;
            drop(scratch.take(length / 8).unwrap());
            assert_eq!(scratch.0.len(), 1 + usize::from(is_much), "{length} bytes");
        }
        let mut scratch = Scratch::default();
        drop(scratch.take(LARGEST + 1).unwrap());
        assert!(scratch.0.is_empty(), "so much is not kept");
    }
}
