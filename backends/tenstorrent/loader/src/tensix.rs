// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The instructions and the configuration of the engine (the coprocessor) of a Tensix tile, as words and as fields.
//!
//! A driver writes words, and a simulator reads them: both by these tables. A field's type has its width
//! ([`Bits`]), so a value that does not fit cannot be encoded; a word with bits outside of its instruction's fields is
//! not decoded. Only what a matrix product needs is here.
//!
//! Names are those of the public ISA documentation (tenstorrent/tt-isa-documentation, `TensixTile/TensixCoprocessor`),
//! which has a page for each instruction. Places of the bits are from there for Wormhole, and for Blackhole from the
//! tables that the vendor's simulator ships (tenstorrent/ttsim, `tensix_isa.json` and `tensix_regs.json`), which also
//! has the instructions and fields that the documentation lacks.

pub mod instructions;
pub mod registers;

pub use instructions::{blackhole, wormhole};

/// A value of so many bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bits<const WIDTH: u32>(u32);

impl<const WIDTH: u32> Bits<WIDTH> {
    /// The largest.
    pub const MAX: Self = Self(u32::MAX >> (32 - WIDTH));
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// A value that is known to fit.
    ///
    /// # Panics
    /// When it does not fit, which for a constant is an error of compilation.
    pub const fn new(value: u32) -> Self {
        assert!(value <= Self::MAX.0, "a value is too large for its field");
        Self(value)
    }

    /// A value, if it fits.
    pub const fn checked(value: u32) -> Option<Self> {
        if value <= Self::MAX.0 { Some(Self(value)) } else { None }
    }

    /// The lowest bits of a value, as counters that wrap around take it.
    pub const fn wrapping(value: u32) -> Self {
        Self(value & Self::MAX.0)
    }

    /// The value.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Formats of data (`DataFormat` of the documentation's pages), as registers have them.
pub mod format {
    use super::Bits;

    /// A float of 32 bits.
    pub const FP32: Bits<4> = Bits::new(0);
    /// A float of 16 bits, with five of exponent.
    pub const FP16: Bits<4> = Bits::new(1);
    /// A float of 19 bits: those of [`BF16`] with ten of mantissa. Only in `SrcA` and `SrcB`.
    pub const TF32: Bits<4> = Bits::new(4);
    /// The upper half of [`FP32`].
    pub const BF16: Bits<4> = Bits::new(5);
    /// An integer of 32 bits, as sign and magnitude.
    pub const INT32: Bits<4> = Bits::new(8);
    /// An integer of 8 bits, as sign and magnitude, or without sign.
    pub const INT8: Bits<4> = Bits::new(14);
}
