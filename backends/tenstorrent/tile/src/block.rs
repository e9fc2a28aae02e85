// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Block floats: sixteen elements, a row of a face, share an exponent.
//!
//! A tile begins with its 64 exponents, row by row and face by face, each the largest biased exponent of its row. Then come the
//! elements in the order of faces: a sign and a magnitude that has its leading one in it, so that an element is `magnitude *
//! 2^(exponent - 127 - (bits - 1))`.
//!
//! An element is shifted to the row's exponent as a float of 24 bits, and what falls off is lost; then it is rounded to nearest even, and
//! to the largest magnitude where that would carry. (So something just above half way can count as half way.) Denormals count as zeros, and a
//! zero has no sign. Infinity and NaN have no encoding: their row's exponent is 255, and what they become is as large as
//! that.

use crate::layout::{Matrix, SizeMismatch};
use crate::{ELEMENTS, FACE};

/// How many exponents a tile has.
const EXPONENTS: usize = ELEMENTS / FACE;

/// The largest exponent of a row, and its elements with magnitudes of so many bits below their sign.
#[inline(always)]
fn pack_row<const BITS: u32>(row: &[u32; FACE]) -> (u8, [u8; FACE]) {
    let largest = row.iter().fold(0, |largest, bits| largest.max(bits >> 23 & 0xff));
    let elements = row.map(|bits| {
        let exponent = bits >> 23 & 0xff;
        let significand = if exponent == 0 { 0 } else { bits & 0x7f_ffff | 0x80_0000 };
        // What falls off while it is brought to the row's exponent is gone: only what is left is rounded.
        let aligned = significand.checked_shr(largest - exponent).unwrap_or(0);
        let kept = aligned >> (24 - BITS);
        let rest = aligned & ((1 << (24 - BITS)) - 1);
        let half = 1 << (23 - BITS);
        let up = rest > half || rest == half && kept & 1 == 1;
        let magnitude = (kept + u32::from(up)).min((1 << BITS) - 1);
        let sign = if magnitude == 0 { 0 } else { bits >> 31 };
        #[expect(clippy::cast_possible_truncation, reason = "eight bits at most")]
        let element = (sign << BITS | magnitude) as u8;
        element
    });
    #[expect(clippy::cast_possible_truncation, reason = "eight bits")]
    let exponent = largest as u8;
    (exponent, elements)
}

/// What an element is worth.
#[inline(always)]
fn unpack<const BITS: u32>(exponent: u8, element: u8) -> f32 {
    let magnitude = u32::from(element) & ((1 << BITS) - 1);
    if magnitude == 0 {
        return 0.0;
    }
    // The leading one goes to where a float has it, and the exponent down by as many places.
    let places = BITS - 1 - magnitude.ilog2();
    let fraction = magnitude << (24 - BITS + places) & 0x7f_ffff;
    let sign = u32::from(element) >> BITS << 31;
    match u32::from(exponent).checked_sub(places) {
        Some(exponent) if exponent > 0 => f32::from_bits(sign | exponent << 23 | fraction),
        // Below the normal numbers, where matrix engines have zeros.
        _ => f32::from_bits(sign),
    }
}

macro_rules! format {
    ($(#[$about:meta])* $module:ident, $bits:literal, $per_byte:literal) => {
        $(#[$about])*
        pub mod $module {
            use super::*;

            /// How many bytes a tile has.
            pub const TILE_BYTES: usize = EXPONENTS + ELEMENTS / $per_byte;

            /// How many bytes the elements of a face's row have.
            const ROW_BYTES: usize = FACE / $per_byte;

            /// Brings a matrix from rows of floats into tiles.
            pub fn pack(matrix: Matrix, rows: &[f32], tiles: &mut [u8]) -> Result<(), SizeMismatch> {
                matrix.check("elements", rows.len(), matrix.elements())?;
                matrix.check("bytes in tiles", tiles.len(), matrix.tile_count().saturating_mul(TILE_BYTES))?;
                let mut face_rows = matrix.face_rows();
                for tile in tiles.chunks_exact_mut(TILE_BYTES) {
                    let (exponents, elements) = tile.split_at_mut(EXPONENTS);
                    for (exponent, to) in exponents.iter_mut().zip(elements.as_chunks_mut::<ROW_BYTES>().0) {
                        let (start, inside) = face_rows.next().expect("as many tiles as the matrix takes");
                        let mut row = [0; FACE];
                        let (_, from) = rows.split_at(start);
                        for (place, value) in row.iter_mut().zip(from).take(inside) {
                            *place = value.to_bits();
                        }
                        let (shared, values) = pack_row::<$bits>(&row);
                        *exponent = shared;
                        for (place, values) in to.iter_mut().zip(values.as_chunks::<$per_byte>().0) {
                            *place = join(values);
                        }
                    }
                }
                Ok(())
            }

            /// Brings a matrix from tiles into rows of floats. Padding is not looked at.
            pub fn unpack(matrix: Matrix, tiles: &[u8], rows: &mut [f32]) -> Result<(), SizeMismatch> {
                matrix.check("elements", rows.len(), matrix.elements())?;
                matrix.check("bytes in tiles", tiles.len(), matrix.tile_count().saturating_mul(TILE_BYTES))?;
                let mut face_rows = matrix.face_rows();
                for tile in tiles.chunks_exact(TILE_BYTES) {
                    let (exponents, elements) = tile.split_at(EXPONENTS);
                    for (&exponent, from) in exponents.iter().zip(elements.as_chunks::<ROW_BYTES>().0) {
                        let (start, inside) = face_rows.next().expect("as many tiles as the matrix takes");
                        let (_, to) = rows.split_at_mut(start);
                        for (place, element) in to.iter_mut().zip(from.iter().flat_map(|&byte| split(byte))).take(inside) {
                            *place = super::unpack::<$bits>(exponent, element);
                        }
                    }
                }
                Ok(())
            }

            /// Elements in a byte: the first in its lowest bits.
            #[inline(always)]
            fn join(elements: &[u8; $per_byte]) -> u8 {
                elements.iter().rev().fold(0_u8, |byte, element| byte.checked_shl($bits + 1).unwrap_or(0) | element)
            }

            /// The elements of a byte.
            #[inline(always)]
            fn split(byte: u8) -> [u8; $per_byte] {
                let mask = u8::MAX >> (7 - $bits);
                let mut rest = byte;
                std::array::from_fn(|_| {
                    let element = rest & mask;
                    rest = rest.checked_shr($bits + 1).unwrap_or(0);
                    element
                })
            }
        }
    };
}

format! {
    /// `bfp8_b`: a sign and seven bits, an element in a byte.
    bfp8, 7, 1
}

format! {
    /// `bfp4_b`: a sign and three bits, two elements in a byte, the first in the lower half.
    bfp4, 3, 2
}
