// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Looking through the code of an executable for what the cores of a tile do not execute.
//!
//! Compilers do not know these cores. What they emit that can be done in other instructions is to be replaced; what
//! cannot is refused, with the word and where it is, before anything runs: hardware would execute it as something
//! else.

use crate::attributes::Extensions;
use crate::float::{Order, Rounding, Routine, Sign};
use crate::veneer::FloatMove;
use std::fmt;
use thiserror::Error;

/// The cores that an executable is loaded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cores {
    /// RV32IM.
    Wormhole,
    /// RV32IM with Zicsr, Zaamo, Zba, Zbb and F without division, square root and roundings other than the nearest.
    Blackhole,
}

impl Cores {
    /// The RISC-V extensions that code for them may be compiled with: what they execute, and what is replaced.
    pub fn extensions(self) -> Extensions {
        Extensions::of(
            match self {
                Cores::Wormhole => &["m", "f"][..],
                Cores::Blackhole => &["m", "f", "zaamo", "zba", "zbb"],
            }
            .iter()
            .copied(),
        )
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cores::Wormhole => "Wormhole",
            Cores::Blackhole => "Blackhole",
        })
    }
}

/// Something that the cores cannot do, and that is not replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("its instruction {word:#010x} at {at:#x} {why}")]
pub struct Unfit {
    /// Its offset from the image's beginning.
    pub at: u32,
    /// The instruction.
    pub word: u32,
    /// The reason.
    pub why: &'static str,
}

/// An instruction to be replaced by a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// Its offset from the image's beginning.
    pub(crate) at: u32,
    /// The original instruction.
    pub(crate) word: u32,
    /// The code that does its work.
    pub(crate) replacement: Replacement,
}

/// The code that does an instruction's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replacement {
    /// A routine.
    Routine(Routine),
    /// A veneer of its own.
    FloatRegister(FloatMove),
    /// A veneer that moves bits between registers.
    Move,
}

const COMPRESSED: &str = "is a compressed one, and the cores have none; compile without +c";
const PRECISION: &str = "is for floats of another size than 32 bits; compile without +d and +zfh";
const ROUNDING: &str = "asks for a rounding that the cores do not have";
const VECTOR: &str = "is for vectors; compile without +v";
const RESERVATION: &str = "is one of lr and sc, which the cores do not have; compile without +a";
const FENCE: &str = "is a fence, which orders nothing on Wormhole's cores; compile code that has no atomics";
const BLACKHOLE_ONLY: &str = "is one that Wormhole's cores do not have; compile with +m and +f alone";
const UNKNOWN: &str = "is not one of the cores'";
const KEPT: &str = "writes gp or tp, with which the loader replaces instructions that the cores lack";

/// The instructions of some code that are to be replaced.
pub(crate) fn scan(code: &[u8], address: u32, cores: Cores) -> Result<Vec<Site>, Unfit> {
    let mut sites = Vec::new();
    let mut kept = None;
    for (at, &word) in (address..).step_by(4).zip(code.as_chunks().0) {
        let word = u32::from_le_bytes(word);
        let unfit = |why| Unfit { at, word, why };
        if let Some(replacement) = examine(word, cores).map_err(unfit)? {
            sites.push(Site { at, word, replacement });
        }
        if writes_integer(word).is_some_and(is_kept) {
            kept.get_or_insert(unfit(KEPT));
        }
    }
    match kept {
        Some(unfit) if !sites.is_empty() => Err(unfit),
        _ => Ok(sites),
    }
}

/// True if an integer register is one that veneers have for themselves.
pub(crate) const fn is_kept(register: u32) -> bool {
    matches!(register, 3 | 4)
}

/// The integer register that an instruction writes, if it writes one.
pub(crate) fn writes_integer(word: u32) -> Option<u32> {
    let (opcode, funct7) = (word & 0x7f, word >> 25);
    let writes = match opcode {
        // Stores and branches, fences, loads of floats, and what is fused.
        0x23 | 0x27 | 0x63 | 0x0f | 0x07 | 0x43 | 0x47 | 0x4b | 0x4f => false,
        // Of floats: comparisons, conversions to integers, and moves to them.
        0x53 => matches!(funct7, 0x50 | 0x60 | 0x70),
        _ => word != 0,
    };
    writes.then_some(word >> 7 & 31)
}

/// True if some code stores bytes or halves, but for those that it finds by its stack pointer.
pub(crate) fn stores_narrowly(code: &[u8]) -> bool {
    const STORE: u32 = 0x23;
    const STACK: u32 = 2;
    code.as_chunks().0.iter().any(|&word| {
        let word = u32::from_le_bytes(word);
        field(word, 0, 7) == STORE && field(word, 12, 3) < 2 && field(word, 15, 5) != STACK
    })
}

pub(crate) const fn field(word: u32, from: u32, count: u32) -> u32 {
    (word >> from) & ((1 << count) - 1)
}

/// The replacement of an instruction, if it needs one, or why it cannot be executed.
fn examine(word: u32, cores: Cores) -> Result<Option<Replacement>, &'static str> {
    // Zeros fill the space between functions, and are refused by every core that comes across them.
    if word == 0 {
        return Ok(None);
    }
    if word & 3 != 3 {
        return Err(COMPRESSED);
    }
    let funct3 = field(word, 12, 3);
    if matches!(field(word, 0, 7), 0x07 | 0x27 | 0x43 | 0x47 | 0x4b | 0x4f | 0x53) {
        let replacement = float(word)?;
        let is_executed = cores == Cores::Blackhole && is_executed(replacement) && !names_a_rounding(word);
        return Ok((!is_executed).then_some(replacement));
    }
    if cores == Cores::Wormhole && !is_rv32im(word) {
        return Err(BLACKHOLE_ONLY);
    }
    let known = |is_known: bool| if is_known { Ok(None) } else { Err(UNKNOWN) };
    match field(word, 0, 7) {
        0x17 | 0x37 | 0x6f => Ok(None),
        0x0f if cores == Cores::Wormhole => Err(FENCE),
        0x0f | 0x67 => known(funct3 == 0),
        0x63 => known(!matches!(funct3, 2 | 3)),
        0x03 => known(!matches!(funct3, 3 | 6 | 7)),
        0x23 => known(funct3 < 3),
        0x13 => known(is_rv32im(word) || is_bit_operation_of_one(word)),
        0x33 => known(is_rv32im(word) || is_bit_operation_of_two(word)),
        // Calls of a debugger, and control registers.
        0x73 => known(matches!(word, 0x0000_0073 | 0x0010_0073) || !matches!(funct3, 0 | 4)),
        0x2f => match (funct3, field(word, 27, 5)) {
            (2, 2 | 3) => Err(RESERVATION),
            (2, 0 | 1 | 4 | 8 | 12 | 16 | 20 | 24 | 28) => Ok(None),
            _ => Err(UNKNOWN),
        },
        0x57 => Err(VECTOR),
        _ => Err(UNKNOWN),
    }
}

/// True if an instruction with an immediate is one of Zbb's, or `brev8`.
fn is_bit_operation_of_one(word: u32) -> bool {
    match (field(word, 12, 3), field(word, 20, 12)) {
        // clz, ctz, cpop, sext.b, sext.h
        (1, 0x600 | 0x601 | 0x602 | 0x604 | 0x605) => true,
        // rori; orc.b, rev8, brev8
        (5, 0x600..=0x61f | 0x287 | 0x698 | 0x687) => true,
        _ => false,
    }
}

/// True if an instruction of two registers is one of Zba's or Zbb's, or `pack`.
fn is_bit_operation_of_two(word: u32) -> bool {
    matches!(
        (field(word, 25, 7), field(word, 12, 3)),
        (0x04, 4) | (0x05, 4..=7) | (0x10, 2 | 4 | 6) | (0x20, 4 | 6 | 7) | (0x30, 1 | 5)
    )
}

/// True if an instruction without floats, of a form that RV32IM has, is one of RV32IM's.
fn is_rv32im(word: u32) -> bool {
    let (funct3, funct7) = (field(word, 12, 3), field(word, 25, 7));
    match field(word, 0, 7) {
        0x13 => match funct3 {
            1 => funct7 == 0,
            5 => matches!(funct7, 0 | 0x20),
            _ => true,
        },
        0x33 => match funct7 {
            0 | 1 => true,
            0x20 => matches!(funct3, 0 | 5),
            _ => false,
        },
        0x73 => funct3 == 0,
        0x2f => false,
        _ => true,
    }
}

/// Refuses every rounding but to the nearest even, said outright or left to a register that the cores ignore.
fn nearest(mode: u32) -> Result<(), &'static str> {
    if matches!(mode, 0 | 7) { Ok(()) } else { Err(ROUNDING) }
}

/// True for float arithmetic with a rounding mode of its own. Blackhole's cores take none, not even the one they have.
fn names_a_rounding(word: u32) -> bool {
    let is_fused = matches!(field(word, 0, 7), 0x43 | 0x47 | 0x4b | 0x4f);
    let is_arithmetic = field(word, 0, 7) == 0x53 && field(word, 27, 5) < 3;
    (is_fused || is_arithmetic) && field(word, 12, 3) != 7
}

/// True if Blackhole's cores execute the instruction themselves.
fn is_executed(replacement: Replacement) -> bool {
    match replacement {
        Replacement::Routine(Routine::Divide | Routine::SquareRoot) => false,
        Replacement::Routine(Routine::ToInteger { rounding, .. } | Routine::FromInteger { rounding, .. }) => {
            rounding == Rounding::NearestEven
        }
        _ => true,
    }
}

/// The replacement of an instruction for floats.
fn float(word: u32) -> Result<Replacement, &'static str> {
    let mode = field(word, 12, 3);
    let access = |own| match mode {
        2 => Ok(Replacement::FloatRegister(own)),
        1 | 3 | 4 => Err(PRECISION),
        _ => Err(VECTOR),
    };
    let fused =
        |product, addend| nearest(mode).map(|()| Replacement::Routine(Routine::MultiplyAdd(product, addend)));
    match field(word, 0, 7) {
        0x07 => access(FloatMove::Load),
        0x27 => access(FloatMove::Store),
        _ if field(word, 25, 2) != 0 => Err(PRECISION),
        0x43 => fused(false, false),
        0x47 => fused(false, true),
        0x4b => fused(true, false),
        0x4f => fused(true, true),
        _ => float_operation(word),
    }
}

fn float_operation(word: u32) -> Result<Replacement, &'static str> {
    let (mode, rs1, rs2) = (field(word, 12, 3), field(word, 15, 5), field(word, 20, 5));
    let arithmetic = |routine| nearest(mode).map(|()| routine);
    let routine = match field(word, 27, 5) {
        0x00 => arithmetic(Routine::Add)?,
        0x01 => arithmetic(Routine::Subtract)?,
        0x02 => arithmetic(Routine::Multiply)?,
        0x03 => arithmetic(Routine::Divide)?,
        0x0b if rs2 == 0 => arithmetic(Routine::SquareRoot)?,
        0x18 | 0x1a if rs2 > 1 => return Err(UNKNOWN),
        conversion @ (0x18 | 0x1a) => {
            let rounding = Rounding::numbered(mode).ok_or(ROUNDING)?;
            let signed = rs2 == 0;
            let to_integer = Routine::ToInteger { signed, rounding };
            let from_integer = Routine::FromInteger { signed, rounding };
            if conversion == 0x18 { to_integer } else { from_integer }
        }
        0x04 => {
            let sign = match mode {
                0 => Sign::Copied,
                1 => Sign::Negated,
                2 => Sign::Combined,
                _ => return Err(UNKNOWN),
            };
            if rs1 == rs2 {
                return Ok(Replacement::FloatRegister(FloatMove::Copy(sign)));
            }
            Routine::Sign(sign)
        }
        0x05 if mode == 0 => Routine::Minimum,
        0x05 if mode == 1 => Routine::Maximum,
        0x14 => Routine::Compare(match mode {
            0 => Order::LessOrEqual,
            1 => Order::Less,
            2 => Order::Equal,
            _ => return Err(UNKNOWN),
        }),
        0x1c if rs2 == 0 && mode == 1 => Routine::Classify,
        0x1c if rs2 == 0 && mode == 0 => return Ok(Replacement::Move),
        0x1e if rs2 == 0 && mode == 0 => return Ok(Replacement::Move),
        _ => return Err(UNKNOWN),
    };
    Ok(Replacement::Routine(routine))
}

#[cfg(test)]
mod tests {
    use super::*;
    use emulator_riscv::{Isa, Refusal, decode};
    use proptest::prelude::*;

    /// The interpreter's decoder was written apart from this, and judged by other implementations: both must agree on
    /// what a core executes.
    fn agree(word: u32) {
        for (cores, isa) in [(Cores::Wormhole, Isa::Wormhole), (Cores::Blackhole, Isa::Blackhole)] {
            let (ours, theirs) = (examine(word, cores), decode(word, isa));
            // Instructions that Wormhole lacks are replaced if Blackhole executes or replaces them.
            let lacked = match theirs {
                Err(Refusal::NoFloats) => decode(word, Isa::Blackhole),
                _ => theirs,
            };
            let replaced = theirs.is_err() && lacked.is_ok()
                || matches!(lacked, Err(Refusal::FloatDivision | Refusal::SquareRoot | Refusal::Rounding));
            let agreed = match ours {
                Ok(None) => theirs.is_ok() || word == 0,
                Ok(Some(_)) => replaced,
                // To the cores a shorter word is one for the engine, which no executable of IREE's has.
                Err(_) => theirs.is_err() || word & 3 != 3,
            };
            assert!(agreed, "{word:#010x} on {cores:?}: {ours:?}, and {theirs:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50_000))]

        #[test]
        fn words_are_executed_replaced_or_refused(word: u32, opcode in 0..32_u32, plain: bool) {
            // Of all words few are near to an instruction: most have an opcode, and a function of few bits.
            let known = word & 0xffff_ff80 | opcode << 2 | 3;
            agree(if plain { word } else { known });
            agree(known & 0xf1ff_ffff);
            agree(known & 0x0fff_ffff);
            agree(known & 0x3ff0_7fff | 0x6000_0000);
        }
    }
}
