// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Types of registers and operands, and which agree: the section "Type Checking Rules" of PTX's manual.

use super::instruction::{B32, B64, Class, Narrow, Op, Pred, T32, Type, U32};

/// What a type's bits mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// Nothing more.
    Bits,
    /// A whole number, with or without a sign.
    Whole,
    /// A float.
    Float,
    /// Two floats of 16 bits.
    Pair,
    /// One or two of `bf16`, whose registers have untyped bits.
    Brain,
    /// A predicate.
    Predicate,
}

/// The type of a register or of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    meaning: Meaning,
    bits: u8,
}

impl Kind {
    pub(super) const PREDICATE: Self = Self { meaning: Meaning::Predicate, bits: 1 };
    pub(super) const B32: Self = Self::untyped(32);
    pub(super) const U32: Self = Self { meaning: Meaning::Whole, bits: 32 };
    pub(super) const U64: Self = Self { meaning: Meaning::Whole, bits: 64 };

    /// Bits without a meaning.
    pub(super) const fn untyped(bits: u8) -> Self {
        Self { meaning: Meaning::Bits, bits }
    }

    /// The type of a word such as `s32`.
    pub(super) fn of(word: &str) -> Option<Self> {
        let (meaning, bits) = match word {
            "pred" => return Some(Self::PREDICATE),
            "f16x2" => (Meaning::Pair, 32),
            "bf16" => (Meaning::Brain, 16),
            "bf16x2" => (Meaning::Brain, 32),
            "b8" => (Meaning::Bits, 8),
            "u8" | "s8" => (Meaning::Whole, 8),
            "b16" => (Meaning::Bits, 16),
            "u16" | "s16" => (Meaning::Whole, 16),
            "f16" => (Meaning::Float, 16),
            "b32" => (Meaning::Bits, 32),
            "u32" | "s32" => (Meaning::Whole, 32),
            "f32" => (Meaning::Float, 32),
            "b64" => (Meaning::Bits, 64),
            "u64" | "s64" => (Meaning::Whole, 64),
            "f64" => (Meaning::Float, 64),
            _ => return None,
        };
        Some(Self { meaning, bits })
    }

    /// The file of registers that holds it.
    pub(super) fn class(self) -> Class {
        match (self.meaning, self.bits) {
            (Meaning::Predicate, _) => Class::P,
            (_, 64) => Class::D,
            _ => Class::W,
        }
    }

    pub(super) fn is_whole(self) -> bool {
        self.meaning == Meaning::Whole
    }

    /// The same with twice the bits.
    fn doubled(self) -> Self {
        Self { bits: self.bits * 2, ..self }
    }

    fn means_the_same(self, operand: Self) -> bool {
        self.meaning == operand.meaning || self.meaning == Meaning::Bits || operand.meaning == Meaning::Bits
    }

    /// Whether a register of this type is an operand of that type: the table "Operand Type Checking Rules".
    pub(super) fn agrees(self, operand: Self) -> bool {
        let is_predicate = |it: Self| it.meaning == Meaning::Predicate;
        self.bits == operand.bits
            && is_predicate(self) == is_predicate(operand)
            && self.means_the_same(operand)
    }

    /// Whether a register of this type is an operand of that type, or wider than it, as loads, stores and conversions
    /// take it: the tables of "Operand Size Exceeding Instruction-Type Size".
    pub(super) fn holds(self, operand: Self) -> bool {
        let is_float = self.meaning == Meaning::Float && operand.meaning == Meaning::Float;
        self.agrees(operand)
            || self.class() != Class::P
                && self.bits > operand.bits
                && !is_float
                && self.means_the_same(operand)
    }
}

impl From<Type> for Kind {
    fn from(it: Type) -> Self {
        let meaning = match it {
            Type::Bf16 => Meaning::Brain,
            _ if it.is_float() => Meaning::Float,
            _ => Meaning::Whole,
        };
        Self { meaning, bits: it.bytes() * 8 }
    }
}

/// The types of an instruction's result and operands, by the last part of its form.
pub(super) fn signature(op: Op, form: &str) -> (Option<Kind>, Vec<Kind>) {
    let kind = form.rsplit('.').next().and_then(Kind::of).unwrap_or(Kind::B32);
    let same = |count| vec![kind; count];
    let (to, from) = match op {
        Op::U32(U32::Popc | U32::Clz) | Op::Narrow(Narrow::Popc | Narrow::Clz) => (Kind::U32, same(1)),
        Op::U32(_) | Op::U64(_) | Op::Pred(Pred::Mov | Pred::Not) => (kind, same(1)),
        Op::B32(B32::Shl | B32::ShrU | B32::ShrS | B32::Shl16 | B32::ShrU16 | B32::ShrS16)
        | Op::B64(B64::Shl | B64::ShrU | B64::ShrS) => (kind, vec![kind, Kind::U32]),
        Op::B32(B32::MulWideU16 | B32::MulWideS16) | Op::MulWide(_) => (kind.doubled(), same(2)),
        Op::B32(_) | Op::B64(_) | Op::Pred(_) => (kind, same(2)),
        Op::MadWide(_) | Op::T32(T32::MadWideU16 | T32::MadWideS16) => {
            (kind.doubled(), vec![kind, kind, kind.doubled()])
        }
        Op::T32(T32::BfeU | T32::BfeS) => (kind, vec![kind, Kind::U32, Kind::U32]),
        Op::T32(T32::ShlWrap | T32::ShlClamp | T32::ShrWrap | T32::ShrClamp) => {
            (kind, vec![kind, kind, Kind::U32])
        }
        Op::T32(_) | Op::T64(_) => (kind, same(3)),
        Op::Bfi => (kind, vec![kind, kind, Kind::U32, Kind::U32]),
        Op::Select32 | Op::Select64 => (kind, vec![kind, kind, Kind::PREDICATE]),
        Op::ActiveMask => (kind, vec![]),
        Op::WarpBarrier => return (None, vec![Kind::B32]),
        _ => return (None, vec![]),
    };
    (Some(to), from)
}
