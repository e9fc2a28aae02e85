// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The layout that Tenstorrent's matrix engines want: tiles, faces and block floats.
//!
//! A matrix is padded with zeros to whole tiles of 32 by 32 elements, which follow one another row by row. A tile has four
//! faces of 16 by 16, top left, top right, bottom left and bottom right, each row by row. So the element in row `r` and
//! column `c` of a matrix with `t` tiles in a row is at
//!
//! ```text
//! (r / 32 * t + c / 32) * 1024  +  (r % 32 / 16 * 2 + c % 32 / 16) * 256  +  r % 16 * 16 + c % 16
//! ```
//!
//! [`tilize`] and [`untilize`] move elements of any type between that and rows. [`bfp8`] and [`bfp4`] are the formats in which the
//! sixteen elements of a face's row share an exponent. [`Format`] says how large tiles are.
//!
//! [`shard`] says which core has which pages of a matrix that is divided over them: by height, by width or both ways, in either order.
//!
//! Nothing here knows which buffer is tiled: memory does not say, and a program must.

#![forbid(unsafe_code)]

mod block;
mod layout;
pub mod shard;

pub use block::{bfp4, bfp8};
pub use layout::{Matrix, SizeMismatch, tilize, untilize};

/// How many rows and columns a tile has.
pub const TILE: usize = 32;
/// How many rows and columns a face has.
pub const FACE: usize = 16;
/// How many elements a tile has.
pub const ELEMENTS: usize = TILE * TILE;

/// What the elements of tiles are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// 32-bit floats.
    Fp32,
    /// The upper halves of 32-bit floats.
    Bf16,
    /// Block floats of a sign and seven bits.
    Bfp8B,
    /// Block floats of a sign and three bits.
    Bfp4B,
    /// 32-bit integers, with or without a sign.
    Int32,
    /// 16-bit integers.
    Int16,
    /// 8-bit integers.
    Int8,
}

impl Format {
    /// How many bytes a tile has.
    pub const fn tile_bytes(self) -> usize {
        match self {
            Format::Fp32 | Format::Int32 => 4 * ELEMENTS,
            Format::Bf16 | Format::Int16 => 2 * ELEMENTS,
            Format::Int8 => ELEMENTS,
            Format::Bfp8B => bfp8::TILE_BYTES,
            Format::Bfp4B => bfp4::TILE_BYTES,
        }
    }
}

/// The 16-bit float nearest to a 32-bit one, of two the even one. A NaN stays one.
#[inline]
pub fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let bits = if value.is_nan() { bits | 0x40_0000 } else { rounded };
    (bits >> 16) as u16
}

/// A 16-bit float as a 32-bit one.
#[inline]
pub fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}
