// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Sets of bytes, as ranges of offsets.

use hal_backend::HostRange;
use std::ops::Range;

/// Sorted ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<Range<u64>>);

impl Ranges {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn as_slice(&self) -> &[Range<u64>] {
        &self.0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.0.iter()
    }

    /// Adds a range. A range after all others is added without a search.
    pub(crate) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|other| other.end < range.start);
        let behind = self.0.partition_point(|other| other.start <= range.end);
        #[expect(clippy::indexing_slicing, reason = "a range that ends earlier also begins earlier")]
        let joined = &self.0[first..behind];
        let start = joined.first().map_or(range.start, |other| other.start.min(range.start));
        let end = joined.last().map_or(range.end, |other| other.end.max(range.end));
        self.0.splice(first..behind, std::iter::once(start..end));
    }
}

/// Bytes that are compared at a time.
const BLOCK: usize = 32 << 10;

/// The ranges in which two pieces of memory of equal length differ.
pub(crate) fn differences(now: &HostRange, before: &HostRange) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    let (mut left, mut right) = (vec![0; BLOCK], vec![0; BLOCK]);
    for start in (0..now.length()).step_by(BLOCK) {
        let length = usize::try_from(now.length() - start).unwrap_or(BLOCK).min(BLOCK);
        #[expect(clippy::indexing_slicing, reason = "at most the length of a block")]
        let (left, right) = (&mut left[..length], &mut right[..length]);
        let inside = now.read(start, left) && before.read(start, right);
        debug_assert!(inside, "both are as long as each other");
        if left == right {
            continue;
        }
        for ((offset, now), before) in (start..).zip(&*left).zip(&*right) {
            match found.last_mut() {
                _ if now == before => {}
                Some(last) if last.end == offset => last.end += 1,
                _ => found.push(offset..offset + 1),
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(all: &[Range<u64>]) -> Ranges {
        let mut ranges = Ranges::default();
        all.iter().for_each(|range| ranges.add(range.clone()));
        ranges
    }

    #[test]
    fn ranges_that_overlap_or_touch_are_one() {
        assert_eq!(ranges(&[4..8, 0..2, 8..9, 2..3, 20..20]).as_slice(), [0..3, 4..9]);
        assert_eq!(ranges(&[0..1, 2..3, 4..5, 1..4, 7..8]).as_slice(), [0..5, 7..8]);
        assert_eq!(ranges(&[5..6, 0..10, 20..21]).as_slice(), [0..10, 20..21]);
        assert!(ranges(&[3..3, 4..4]).is_empty());
    }

    #[test]
    fn differences_are_found_to_the_byte_and_across_blocks() {
        let length = 3 * BLOCK as u64 + 5;
        let (now, before) =
            (HostRange::allocate(length, 64).unwrap(), HostRange::allocate(length, 64).unwrap());
        assert!(now.fill(&[1]) && before.fill(&[1]));
        assert_eq!(differences(&now, &before), []);
        let block = BLOCK as u64;
        for (offset, bytes) in [(0, 1_usize), (2, 2), (block - 1, 2), (2 * block, 1), (length - 1, 1)] {
            assert!(now.write(offset, &vec![2; bytes]));
        }
        let expected = [0..1, 2..4, block - 1..block + 1, 2 * block..2 * block + 1, length - 1..length];
        assert_eq!(differences(&now, &before), expected);
    }
}
