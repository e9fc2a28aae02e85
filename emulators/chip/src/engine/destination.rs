// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! `Dst`, in which the matrix unit adds up its results (`Dst.md`).
//!
//! It has 1024 rows of 16 bits, or 512 of 32, whose halves are in two of the others. It holds floats with their
//! exponent and mantissa exchanged, so that a read of the other width, or in another format, is what it is on hardware.
//! A row that was marked as undefined reads as zeros until it is written.

use super::order::BLOCK;
use super::product::{COLUMNS, Row};

/// How many rows of 16 bits there are.
pub(super) const DST_ROWS: u32 = 1024;

/// How far behind the row with the upper halves that with the lower ones is.
const LOWER: usize = 8;

/// The registers.
#[derive(Clone, Debug)]
pub(super) struct Destination {
    rows: Box<[[u16; COLUMNS]; DST_ROWS as usize]>,
    defined: Box<[bool; DST_ROWS as usize]>,
}

/// The place of a row of 16 bits.
fn place(row: u32) -> usize {
    (row % DST_ROWS) as usize
}

/// The place of the upper halves of a row of 32 bits.
fn upper(row: u32) -> usize {
    place((row & 0x1f8) << 1 | row & 0x207)
}

/// Some rows, of 16 bits or of 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DstRows {
    pub(super) first: u32,
    pub(super) count: u32,
    pub(super) is_wide: bool,
}

impl DstRows {
    /// The numbers of the blocks of eight rows of 16 bits that they are in.
    pub(super) fn blocks(self) -> impl Iterator<Item = usize> {
        let first = self.first - self.first % BLOCK;
        let rows = (first..self.first + self.count).step_by(BLOCK as usize);
        rows.flat_map(move |row| {
            let block = if self.is_wide { upper(row) } else { place(row) } / BLOCK as usize;
            [Some(block), self.is_wide.then_some(block + 1)]
        })
        .flatten()
    }
}

/// The bits of a float of 16 bits with eight for its exponent, as `Dst` holds it.
pub(super) const fn encode_bf16(value: u16) -> u16 {
    value & 0x8000 | (value & 0x7f) << 8 | value >> 7 & 0xff
}

/// The inverse of [`encode_bf16`].
pub(super) const fn decode_bf16(value: u16) -> u16 {
    value & 0x8000 | (value & 0xff) << 7 | value >> 8 & 0x7f
}

/// The bits of a float of 16 bits with five for its exponent, as `Dst` holds it.
pub(super) const fn encode_fp16(value: u16) -> u16 {
    value & 0x8000 | (value & 0x3ff) << 5 | value >> 10 & 0x1f
}

/// The inverse of [`encode_fp16`].
pub(super) const fn decode_fp16(value: u16) -> u16 {
    value & 0x8000 | (value & 0x1f) << 10 | value >> 5 & 0x3ff
}

/// The bits of a float or an integer of 32 bits, as `Dst` holds it.
pub(super) const fn encode_32(value: u32) -> u32 {
    value & 0x8000_ffff | (value & 0x7f_0000) << 8 | value >> 7 & 0xff_0000
}

/// The inverse of [`encode_32`].
pub(super) const fn decode_32(value: u32) -> u32 {
    value & 0x8000_ffff | (value & 0xff_0000) << 7 | value >> 8 & 0x7f_0000
}

#[expect(clippy::indexing_slicing, reason = "rows are taken modulo their number")]
impl Destination {
    pub(super) fn new() -> Self {
        Self {
            rows: Box::new([[0; COLUMNS]; DST_ROWS as usize]),
            defined: Box::new([true; DST_ROWS as usize]),
        }
    }

    /// A row of 16 bits.
    pub(super) fn read_16(&self, row: u32) -> [u16; COLUMNS] {
        let row = place(row);
        if self.defined[row] { self.rows[row] } else { [0; COLUMNS] }
    }

    /// Writes a row of 16 bits.
    pub(super) fn write_16(&mut self, row: u32, values: [u16; COLUMNS]) {
        let row = place(row);
        self.rows[row] = values;
        self.defined[row] = true;
    }

    /// A row of 32 bits.
    pub(super) fn read_32(&self, row: u32) -> Row {
        let row = upper(row);
        if !self.defined[row] {
            return [0; COLUMNS];
        }
        let mut values = [0; COLUMNS];
        let halves = self.rows[row].iter().zip(&self.rows[row + LOWER]);
        for (value, (&upper, &lower)) in values.iter_mut().zip(halves) {
            *value = u32::from(upper) << 16 | u32::from(lower);
        }
        values
    }

    /// Writes a row of 32 bits.
    pub(super) fn write_32(&mut self, row: u32, values: &Row) {
        let row = upper(row);
        let (before, behind) = self.rows.split_at_mut(row + LOWER);
        for ((&value, upper), lower) in values.iter().zip(&mut before[row]).zip(&mut behind[0]) {
            *upper = (value >> 16) as u16;
            *lower = (value & 0xffff) as u16;
        }
        self.defined[row] = true;
    }

    /// Marks a row of 16 bits as undefined.
    pub(super) fn undefine_16(&mut self, row: u32) {
        self.defined[place(row)] = false;
    }

    /// Marks a row of 32 bits as undefined.
    pub(super) fn undefine_32(&mut self, row: u32) {
        self.defined[upper(row)] = false;
    }

    /// Marks the lower or the upper half of all rows as undefined.
    pub(super) fn undefine_half(&mut self, upper: bool) {
        let (low, high) = self.defined.split_at_mut(DST_ROWS as usize / 2);
        if upper { high } else { low }.fill(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_exchanged_and_back() {
        for value in 0..=u16::MAX {
            assert_eq!(decode_bf16(encode_bf16(value)), value);
            assert_eq!(decode_fp16(encode_fp16(value)), value);
            let wide = u32::from(value) << 16 | 0x1234;
            assert_eq!(encode_32(wide), u32::from(encode_bf16(value)) << 16 | 0x1234);
            assert_eq!(decode_32(encode_32(wide)), wide);
        }
    }

    #[test]
    fn wide_rows_are_two_narrow_ones() {
        let mut dst = Destination::new();
        let mut places = std::collections::BTreeSet::new();
        for row in 0..512 {
            dst.write_32(row, &[row << 16 | 0x8000 | row; COLUMNS]);
            places.extend([upper(row), upper(row) + LOWER]);
        }
        assert_eq!(places.len(), 1024);
        for row in 0..512 {
            assert_eq!(dst.read_32(row), [row << 16 | 0x8000 | row; COLUMNS]);
        }
        assert_eq!((dst.read_16(0), dst.read_16(8)), ([0; COLUMNS], [0x8000; COLUMNS]));
        assert_eq!((dst.read_16(16), dst.read_16(24)), ([8; COLUMNS], [0x8008; COLUMNS]));
        dst.undefine_32(8);
        assert_eq!((dst.read_32(8), dst.read_16(16), dst.read_16(24)), ([0; 16], [0; 16], [0x8008; 16]));
        dst.undefine_half(true);
        assert_eq!((dst.read_32(255)[0] >> 16, dst.read_32(256)), (255, [0; 16]));
    }
}
