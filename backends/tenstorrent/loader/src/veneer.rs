// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Instructions that the cores lack, replaced by jumps to integer code.
//!
//! Blackhole's cores have no `fdiv.s` and no `fsqrt.s`, and round to nearest even alone, while compilers convert
//! towards zero or downwards. Wormhole's have no floats at all. Each instruction that the cores do not execute
//! becomes a jump to a *veneer*, which brings the operands to where a [routine](crate::float) takes them, and puts
//! the result where the instruction would have. Nothing else changes: no other register, and no memory that a program
//! has.
//!
//! A veneer needs two registers. It has `gp` and `tp`, which compilers keep for purposes that such executables do not
//! have; one that writes either is refused. What it saves is in memory that each core has for itself, at the same
//! address for all of them, of which executables know nothing: so cores that execute the same image do not disturb
//! each other, and the stack is left alone. The float registers that Wormhole lacks are there too.
//!
//! Instructions that are the same share a veneer, whose return address is in `tp`. Only loads, stores and copies of
//! floats, where there are none, have one each: they need both registers, and are the most.

use crate::encode::{
    Assembler, FloatReg, Label, Reg, addi, flw, fmv_x_w, jal, jalr, lui, lw, slli, srli, sw, xor,
};
use crate::float::{Routine, Sign};
use crate::scan::{Cores, Replacement, Site, field};
use std::collections::BTreeMap;

const ZERO: Reg = Reg::ZERO;
const GP: Reg = Reg::GP;
const TP: Reg = Reg::TP;
const A0: Reg = Reg::A[0];

/// The address of the memory that each core has for itself.
pub const OWN_MEMORY: u32 = 0xffb0_0000;
/// How much of it veneers use.
pub const OWN_MEMORY_LENGTH: u32 = 256;

/// The layout of that memory, as offsets.
mod slot {
    /// The float registers, where the cores have none.
    pub(super) const FLOATS: i32 = 0;
    /// The saved registers for arguments, and temporary ones.
    pub(super) const ARGUMENTS: i32 = 128;
    pub(super) const TEMPORARIES: i32 = 140;
    /// The address that a veneer returns to.
    pub(super) const LINK: i32 = 168;
    /// A result that goes to a register.
    pub(super) const RESULT: i32 = 172;
    /// The address of the word for the result.
    pub(super) const DESTINATION: i32 = 176;
}

/// The offset of a float register.
fn float(number: u32) -> i32 {
    slot::FLOATS + 4 * (number & 31).cast_signed()
}

/// The code for some instructions, to be placed at `at`, and the jump that each becomes. `None` if that is too far
/// away from them.
pub(crate) fn assemble(sites: &[Site], at: u32, cores: Cores) -> Option<(Vec<u32>, Vec<u32>)> {
    let mut asm = Assembler::new();
    let mut jumps = Vec::with_capacity(sites.len());
    let mut routines = BTreeMap::new();
    let mut veneers = BTreeMap::new();
    for site in sites {
        let here = at.checked_add(u32::try_from(asm.length()).ok()?)?;
        if let Replacement::FloatRegister(own) = site.replacement {
            jumps.push(jal(ZERO, distance(site.at, here)?)?);
            own.assemble(&mut asm, site.word);
            let here = at.checked_add(u32::try_from(asm.length()).ok()?)?;
            asm.emit(jal(ZERO, distance(here, site.at.checked_add(4)?)?)?);
            continue;
        }
        let veneer = *veneers.entry(site.word).or_insert(here);
        jumps.push(jal(TP, distance(site.at, veneer)?)?);
        if veneer == here {
            match site.replacement {
                Replacement::Routine(routine) => {
                    let label = *routines.entry(routine.shared()).or_insert_with(|| asm.label());
                    shared(&mut asm, site.word, routine, label, cores);
                }
                _ => move_bits(&mut asm, site.word),
            }
        }
    }
    for (routine, label) in routines {
        assemble_routine(&mut asm, routine, label);
    }
    Some((asm.finish(), jumps))
}

fn distance(from: u32, to: u32) -> Option<i32> {
    i32::try_from(i64::from(to) - i64::from(from)).ok()
}

/// The registers for a routine's arguments, and where what they held is saved.
fn saved_arguments(routine: Routine) -> impl Iterator<Item = (Reg, i32)> {
    Reg::A.into_iter().zip((slot::ARGUMENTS..).step_by(4)).take(routine.arguments())
}

/// The veneer of an instruction whose work a routine does.
fn shared(asm: &mut Assembler, word: u32, routine: Routine, label: Label, cores: Cores) {
    let rd = field(word, 7, 5);
    let sources = [field(word, 15, 5), field(word, 20, 5), field(word, 27, 5)];
    let in_memory = cores == Cores::Wormhole && !routine.gives_an_integer();
    asm.emit(lui(GP, OWN_MEMORY));
    for (register, offset) in saved_arguments(routine) {
        asm.emit(sw(register, offset, GP));
    }
    // Before the register is needed for an argument; an integer operand may be in the first.
    #[expect(
        clippy::indexing_slicing,
        reason = "no routine has more arguments than there are registers for them"
    )]
    let scratch = Reg::A[routine.arguments().saturating_sub(1)];
    if routine.floats() == 0 {
        asm.emit(addi(A0, Reg::numbered(sources[0]), 0));
    }
    asm.emit(addi(scratch, GP, if in_memory { float(rd) } else { slot::RESULT }));
    asm.emit(sw(scratch, slot::DESTINATION, GP));
    for (register, source) in Reg::A.into_iter().zip(sources).take(routine.floats()) {
        asm.emit(match cores {
            Cores::Wormhole => lw(register, float(source), GP),
            Cores::Blackhole => fmv_x_w(register, FloatReg::numbered(source)),
        });
    }
    if let Some(setting) = routine.setting() {
        asm.emit(addi(Reg::A[1], ZERO, setting));
    }
    if in_memory {
        asm.jump(ZERO, label);
        return;
    }
    asm.emit(sw(TP, slot::LINK, GP));
    asm.jump(TP, label);
    asm.emit(match routine.gives_an_integer() {
        true => lw(Reg::numbered(rd), slot::RESULT, GP),
        false => flw(FloatReg::numbered(rd), slot::RESULT, GP),
    });
    asm.emit_all([lw(TP, slot::LINK, GP), jalr(ZERO, TP, 0)]);
}

/// The veneer of a move between a float register, which is in memory, and one for integers.
fn move_bits(asm: &mut Assembler, word: u32) {
    const TO_INTEGER: u32 = 0x1c;
    let (rd, rs1) = (field(word, 7, 5), field(word, 15, 5));
    asm.emit(lui(GP, OWN_MEMORY));
    asm.emit(match field(word, 27, 5) {
        TO_INTEGER => lw(Reg::numbered(rd), float(rs1), GP),
        _ => sw(Reg::numbered(rs1), float(rd), GP),
    });
    asm.emit(jalr(ZERO, TP, 0));
}

/// A routine with what it saves, up to its way back.
fn assemble_routine(asm: &mut Assembler, routine: Routine, label: Label) {
    let done = asm.label();
    let temporaries = || routine.temporaries().iter().zip((slot::TEMPORARIES..).step_by(4));
    asm.bind(label);
    for (&register, offset) in temporaries() {
        asm.emit(sw(register, offset, GP));
    }
    routine.assemble(asm, done);
    asm.bind(done);
    asm.emit_all([lw(Reg::T[0], slot::DESTINATION, GP), sw(A0, 0, Reg::T[0])]);
    for (&register, offset) in temporaries() {
        asm.emit(lw(register, offset, GP));
    }
    for (register, offset) in saved_arguments(routine) {
        asm.emit(lw(register, offset, GP));
    }
    asm.emit(jalr(ZERO, TP, 0));
}

/// An instruction whose veneer is its own, where float registers are in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FloatMove {
    /// `flw`
    Load,
    /// `fsw`
    Store,
    /// `fsgnj.s` and its like, with one operand: a copy, the negated, the magnitude.
    Copy(Sign),
}

impl FloatMove {
    /// Everything but the jump back.
    fn assemble(self, asm: &mut Assembler, word: u32) {
        let (rd, rs1, rs2) = (field(word, 7, 5), field(word, 15, 5), field(word, 20, 5));
        let address = Reg::numbered(rs1);
        let upper = word.cast_signed() >> 25 << 5;
        match self {
            FloatMove::Load => {
                asm.emit_all([lw(TP, word.cast_signed() >> 20, address), lui(GP, OWN_MEMORY)]);
                asm.emit(sw(TP, float(rd), GP));
            }
            FloatMove::Store => {
                asm.emit_all([lui(TP, OWN_MEMORY), lw(TP, float(rs2), TP)]);
                asm.emit(sw(TP, upper | rd.cast_signed(), address));
            }
            FloatMove::Copy(sign) => {
                asm.emit_all([lui(GP, OWN_MEMORY), lw(TP, float(rs1), GP)]);
                match sign {
                    Sign::Copied => {}
                    Sign::Negated => {
                        asm.emit_all([lui(GP, 1 << 31), xor(TP, TP, GP), lui(GP, OWN_MEMORY)]);
                    }
                    Sign::Combined => asm.emit_all([slli(TP, TP, 1), srli(TP, TP, 1)]),
                }
                asm.emit(sw(TP, float(rd), GP));
            }
        }
    }
}

/// The replacement of a float register's load or store if pages are looked up, behind the load of [`Reg::TP`] itself.
///
/// The address is in [`Reg::GP`].
pub(crate) fn behind_page(asm: &mut Assembler, word: u32, store: bool) {
    if store {
        asm.emit_all([lw(TP, float(field(word, 20, 5)), TP), sw(TP, 0, GP)]);
    } else {
        asm.emit_all([lui(GP, OWN_MEMORY), sw(TP, float(field(word, 7, 5)), GP)]);
    }
}
