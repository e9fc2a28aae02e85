// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Types of elements, and the reductions.

use std::fmt;

/// The type of an operation's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum Element {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F16,
    F32,
    F64,
    Bf16,
}

impl Element {
    /// Every variant.
    pub const ALL: [Element; 12] = [
        Element::I8,
        Element::U8,
        Element::I16,
        Element::U16,
        Element::I32,
        Element::U32,
        Element::I64,
        Element::U64,
        Element::F16,
        Element::F32,
        Element::F64,
        Element::Bf16,
    ];

    /// The size of an element in bytes.
    pub fn size(self) -> u64 {
        match self {
            Element::I8 | Element::U8 => 1,
            Element::I16 | Element::U16 | Element::F16 | Element::Bf16 => 2,
            Element::I32 | Element::U32 | Element::F32 => 4,
            Element::I64 | Element::U64 | Element::F64 => 8,
        }
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Element::I8 => "si8",
            Element::U8 => "ui8",
            Element::I16 => "si16",
            Element::U16 => "ui16",
            Element::I32 => "si32",
            Element::U32 => "ui32",
            Element::I64 => "si64",
            Element::U64 => "ui64",
            Element::F16 => "f16",
            Element::F32 => "f32",
            Element::F64 => "f64",
            Element::Bf16 => "bf16",
        })
    }
}

/// How the elements of several ranks become one.
///
/// Within a process the ranks are folded along a tree that depends on their number only, whichever thread computes it
/// and however the operation is divided. So every rank gets the same bits, every time. Between processes the order is
/// that of the library which carries the group. The bits of a result that is not a number are unspecified, as
/// processors take those of either operand.
///
/// - Integers: sum and product wrap around. The average is that of the exact sum, rounded towards zero.
/// - `f32` and `f64`: each step is rounded to the type. The average is the sum divided by the number of ranks.
/// - `f16` and `bf16`: steps are done in `f32`, and the result is rounded to the type, to nearest, ties to even;
///   between processes that of each step, except for an average.
/// - Minimum and maximum of floating-point numbers are not a number if any element is not, and -0 is less than +0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum Reduction {
    Sum,
    Product,
    Minimum,
    Maximum,
    Average,
}

impl Reduction {
    /// Every variant.
    pub const ALL: [Reduction; 5] =
        [Reduction::Sum, Reduction::Product, Reduction::Minimum, Reduction::Maximum, Reduction::Average];
}

impl fmt::Display for Reduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reduction::Sum => "sum",
            Reduction::Product => "product",
            Reduction::Minimum => "minimum",
            Reduction::Maximum => "maximum",
            Reduction::Average => "average",
        })
    }
}
