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

use registers::Registers;

/// A kind of chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chip {
    /// A Blackhole chip.
    Blackhole,
    /// A Wormhole chip.
    Wormhole,
}

impl Chip {
    /// The fields of its engines' configuration.
    pub fn registers(self) -> &'static Registers {
        match self {
            Self::Blackhole => &registers::BLACKHOLE,
            Self::Wormhole => &registers::WORMHOLE,
        }
    }

    /// The bits of a condition mask.
    pub const fn conditions(self) -> Conditions {
        match self {
            Self::Blackhole => BLACKHOLE,
            Self::Wormhole => WORMHOLE,
        }
    }
}

/// The bits of the condition mask of `STALLWAIT` (`STALLWAIT.md`): what is waited for the end of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// The scalar unit's requests to memory.
    pub scalar: u32,
    /// The thread's instructions in unpacker 0.
    pub unpack_0: u32,
    /// The thread's instructions in unpacker 1.
    pub unpack_1: u32,
    /// The thread's instructions in packers.
    pub pack: u32,
    /// The thread's instructions in the matrix unit.
    pub math: u32,
    /// A bank of `SrcA` that its unpacker cannot write yet.
    pub src_a_cleared: u32,
    /// A bank of `SrcB` that its unpacker cannot write yet.
    pub src_b_cleared: u32,
    /// A bank of `SrcA` that the matrix unit cannot read yet.
    pub src_a_valid: u32,
    /// A bank of `SrcB` that the matrix unit cannot read yet.
    pub src_b_valid: u32,
    /// Requests of the thread's core to the configuration.
    pub core: u32,
}

const BLACKHOLE: Conditions = Conditions {
    scalar: 1 << 0,
    unpack_0: 1 << 1,
    unpack_1: 1 << 2,
    pack: 1 << 3,
    math: 1 << 4,
    src_a_cleared: 1 << 5,
    src_b_cleared: 1 << 6,
    src_a_valid: 1 << 7,
    src_b_valid: 1 << 8,
    core: 1 << 10,
};

const WORMHOLE: Conditions = Conditions {
    scalar: 1 << 0,
    unpack_0: 1 << 1,
    unpack_1: 1 << 2,
    // A bit for each.
    pack: 0xf << 3,
    math: 1 << 7,
    src_a_cleared: 1 << 8,
    src_b_cleared: 1 << 9,
    src_a_valid: 1 << 10,
    src_b_valid: 1 << 11,
    core: 1 << 13,
};

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
