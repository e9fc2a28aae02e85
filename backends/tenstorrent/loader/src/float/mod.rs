// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Instructions for floats in integer instructions: the routines that [veneers](crate::veneer) go to.
//!
//! Each takes its operands, the bits of floats, in the first registers for arguments, and leaves its result in the
//! first. It may use every temporary register.
//!
//! Results are Blackhole's, bit by bit, where Blackhole has the instruction: denormal operands of arithmetic count as
//! zeros of their sign, results that are denormal after rounding become such zeros, every NaN that is made is
//! `0x7fc00000`, rounding is to nearest even, and in `x * y + z` the product has three bits more than a float. What
//! no core has, division, square root and conversions with a rounding of their own, is IEEE's, in the same manner. So
//! a kernel computes the same bits on every board.

mod arithmetic;
mod compare;
mod convert;
mod divide;

pub use compare::{Order, Sign};

use crate::encode::{
    Assembler, Label, Reg, When, add, addi, and, andi, divu, lui, mul, mulhu, or, ori, remu, sll, slli, slt,
    sltu, srai, srl, srli, sub, xor, xori,
};

const ZERO: Reg = Reg::ZERO;
const A0: Reg = Reg::A[0];
const A1: Reg = Reg::A[1];
const A2: Reg = Reg::A[2];
const T0: Reg = Reg::T[0];
const T1: Reg = Reg::T[1];
const T2: Reg = Reg::T[2];
const T3: Reg = Reg::T[3];
const T4: Reg = Reg::T[4];
const T5: Reg = Reg::T[5];
const T6: Reg = Reg::T[6];

/// The bit of a conversion's second argument that says that integers have no sign; the rounding is below.
const UNSIGNED: i32 = 8;
/// The bit in front of a significand.
const LEADING: u32 = 1 << 23;
const NAN: u32 = 0x7fc0_0000;
const INFINITY: u32 = 0x7f80_0000;
const SIGN: u32 = 1 << 31;

/// A rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rounding {
    /// To the nearest, of two the even one: the one that Blackhole's cores have.
    NearestEven = 0,
    /// Towards zero.
    Zero = 1,
    /// Downwards.
    Down = 2,
    /// Upwards.
    Up = 3,
    /// To the nearest, of two the one further from zero.
    NearestAway = 4,
}

impl Rounding {
    /// By the number in an instruction. What is left to a register, which the cores ignore, is to the nearest even.
    pub(crate) const fn numbered(number: u32) -> Option<Self> {
        Some(match number {
            0 | 7 => Rounding::NearestEven,
            1 => Rounding::Zero,
            2 => Rounding::Down,
            3 => Rounding::Up,
            4 => Rounding::NearestAway,
            _ => return None,
        })
    }
}

/// The computation of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Routine {
    /// `fadd.s`
    Add,
    /// `fsub.s`
    Subtract,
    /// `fmul.s`
    Multiply,
    /// `fmadd.s` and its like: whether the product is negated, and whether the addend is.
    MultiplyAdd(bool, bool),
    /// `fdiv.s`
    Divide,
    /// `fsqrt.s`
    SquareRoot,
    /// `fsgnj.s` and its like.
    Sign(Sign),
    /// `fmin.s`
    Minimum,
    /// `fmax.s`
    Maximum,
    /// `feq.s`, `flt.s`, `fle.s`
    Compare(Order),
    /// `fclass.s`
    Classify,
    /// `fcvt.w.s`, `fcvt.wu.s`
    ToInteger {
        /// Which of them.
        signed: bool,
        /// With which rounding.
        rounding: Rounding,
    },
    /// `fcvt.s.w`, `fcvt.s.wu`
    FromInteger {
        /// Which of them.
        signed: bool,
        /// With which rounding.
        rounding: Rounding,
    },
}

impl Routine {
    /// True if its result goes to an integer register.
    pub(crate) const fn gives_an_integer(self) -> bool {
        matches!(self, Routine::ToInteger { .. } | Routine::Compare(_) | Routine::Classify)
    }

    /// How many floats it takes.
    pub(crate) const fn floats(self) -> usize {
        match self {
            Routine::MultiplyAdd(..) => 3,
            Routine::FromInteger { .. } => 0,
            Routine::SquareRoot | Routine::Classify | Routine::ToInteger { .. } => 1,
            _ => 2,
        }
    }

    /// How many arguments it takes.
    pub(crate) const fn arguments(self) -> usize {
        match self.setting() {
            Some(_) => 2,
            None => self.floats(),
        }
    }

    /// The second argument of a conversion.
    pub(crate) const fn setting(self) -> Option<i32> {
        match self {
            Routine::ToInteger { signed, rounding } | Routine::FromInteger { signed, rounding } => {
                Some(rounding as i32 | if signed { 0 } else { UNSIGNED })
            }
            _ => None,
        }
    }

    /// The routine whose code does this: all conversions of one kind share it, and an argument selects among them.
    pub(crate) const fn shared(self) -> Self {
        let (signed, rounding) = (true, Rounding::NearestEven);
        match self {
            Routine::ToInteger { .. } => Routine::ToInteger { signed, rounding },
            Routine::FromInteger { .. } => Routine::FromInteger { signed, rounding },
            other => other,
        }
    }

    /// The temporary registers that it uses.
    pub(crate) fn temporaries(self) -> &'static [Reg] {
        let count = match self {
            Routine::Sign(_) => 1,
            Routine::Compare(_) | Routine::Minimum | Routine::Maximum => 3,
            Routine::Add | Routine::Subtract | Routine::Multiply | Routine::Classify => 5,
            _ => 7,
        };
        Reg::T.split_at(count).0
    }

    /// Its code, which ends behind itself or at the label that it is given.
    pub(crate) fn assemble(self, asm: &mut Assembler, done: Label) {
        match self {
            Routine::Add => arithmetic::sum(asm, done, false),
            Routine::Subtract => arithmetic::sum(asm, done, true),
            Routine::Multiply => arithmetic::product(asm, done),
            Routine::MultiplyAdd(product, addend) => {
                arithmetic::product_and_sum(asm, done, (product, addend));
            }
            Routine::Divide => divide::divide(asm, done),
            Routine::SquareRoot => divide::square_root(asm, done),
            Routine::Sign(how) => compare::sign(asm, how),
            Routine::Minimum => compare::extreme(asm, done, false),
            Routine::Maximum => compare::extreme(asm, done, true),
            Routine::Compare(order) => compare::compare(asm, done, order),
            Routine::Classify => compare::classify(asm, done),
            Routine::ToInteger { .. } => convert::to_integer(asm, done),
            Routine::FromInteger { .. } => convert::from_integer(asm, done),
        }
    }
}

/// Takes a float's exponent and fraction out of it.
fn unpack(asm: &mut Assembler, float: Reg, exponent: Reg, fraction: Reg) {
    asm.emit_all([slli(exponent, float, 1), srli(exponent, exponent, 24)]);
    asm.emit_all([slli(fraction, float, 9), srli(fraction, fraction, 9)]);
}
