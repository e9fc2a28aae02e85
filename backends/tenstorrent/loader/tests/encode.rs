// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Words of the encoder, read by the interpreter's decoder, which shares nothing with it.

#![expect(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

use emulator_riscv::{Instruction, Isa, Op, decode};
use hal_tenstorrent_loader::encode::*;
use proptest::prelude::*;

fn read(word: u32) -> Instruction {
    decode(word, Isa::Blackhole).unwrap()
}

proptest! {
    #[test]
    fn words_mean_what_they_say(rd in 0..32_u32, rs1 in 0..32_u32, rs2 in 0..32_u32, immediate in -2048..2048_i32) {
        let [d, a, b] = [rd, rs1, rs2].map(Reg::numbered);
        let registers = |word| { let i = read(word); (i.op, u32::from(i.rd), u32::from(i.rs1), u32::from(i.rs2)) };
        for (word, op) in [
            (add(d, a, b), Op::Add), (sub(d, a, b), Op::Sub), (sll(d, a, b), Op::Sll), (srl(d, a, b), Op::Srl),
            (slt(d, a, b), Op::Slt), (sltu(d, a, b), Op::Sltu), (mul(d, a, b), Op::Mul),
            (mulhu(d, a, b), Op::Mulhu), (xor(d, a, b), Op::Xor), (or(d, a, b), Op::Or),
            (and(d, a, b), Op::And),
            (divu(d, a, b), Op::Divu), (remu(d, a, b), Op::Remu),
        ] {
            prop_assert_eq!(registers(word), (op, rd, rs1, rs2));
        }
        for (word, op) in [
            (addi(d, a, immediate), Op::Addi), (xori(d, a, immediate), Op::Xori),
            (ori(d, a, immediate), Op::Ori), (andi(d, a, immediate), Op::Andi), (lw(d, immediate, a), Op::Lw),
            (lbu(d, immediate, a), Op::Lbu), (jalr(d, a, immediate), Op::Jalr),
        ] {
            let i = read(word);
            prop_assert_eq!((i.op, u32::from(i.rd), u32::from(i.rs1), i.imm), (op, rd, rs1, immediate));
        }
        let stored = read(sw(b, immediate, a));
        prop_assert_eq!(
            (stored.op, u32::from(stored.rs1), u32::from(stored.rs2), stored.imm),
            (Op::Sw, rs1, rs2, immediate)
        );
        let distance = immediate & 31;
        for (word, op) in [
            (slli(d, a, immediate), Op::Slli),
            (srli(d, a, immediate), Op::Srli),
            (srai(d, a, immediate), Op::Srai),
        ] {
            let i = read(word);
            prop_assert_eq!((i.op, u32::from(i.rd), u32::from(i.rs1), i.imm), (op, rd, rs1, distance));
        }
        let moved = read(fmv_x_w(d, FloatReg::numbered(rs1)));
        prop_assert_eq!((moved.op, u32::from(moved.rd), u32::from(moved.rs1)), (Op::FmvX, rd, rs1));
        let loaded = read(flw(FloatReg::numbered(rd), immediate, a));
        prop_assert_eq!(
            (loaded.op, u32::from(loaded.rd), u32::from(loaded.rs1), loaded.imm),
            (Op::Flw, rd, rs1, immediate)
        );
    }

    #[test]
    fn jumps_and_branches_go_where_they_say(distance in -0x10_0000..0x10_0000_i32, near in -0x1000..0x1000_i32) {
        match jal(Reg::RA, distance) {
            Some(word) => prop_assert_eq!((read(word).op, read(word).rd, read(word).imm), (Op::Jal, 1, distance)),
            None => prop_assert!(distance & 1 != 0),
        }
        for (when, op) in [
            (When::Eq, Op::Beq), (When::Ne, Op::Bne), (When::Lt, Op::Blt),
            (When::Ge, Op::Bge), (When::Ltu, Op::Bltu), (When::Geu, Op::Bgeu),
        ] {
            match branch(when, Reg::SP, Reg::RA, near) {
                Some(word) => {
                    let i = read(word);
                    prop_assert_eq!((i.op, i.rs1, i.rs2, i.imm), (op, 2, 1, near));
                }
                None => prop_assert!(near & 1 != 0),
            }
        }
    }

    #[test]
    fn constants_are_made_of_two_instructions_at_most(value: u32, narrow in -5000..5000_i32) {
        for value in [value, narrow.cast_unsigned(), value & 0xffff_f000] {
            let mut asm = Assembler::new();
            asm.constant(Reg::T[0], value);
            prop_assert!(asm.length() <= 8);
            let made = asm.finish().into_iter().fold(0, |held: u32, word| match read(word) {
                Instruction { op: Op::Lui, imm, .. } => imm.cast_unsigned(),
                Instruction { rs1: 0, imm, .. } => imm.cast_unsigned(),
                Instruction { imm, .. } => held.wrapping_add(imm.cast_unsigned()),
            });
            prop_assert_eq!(made, value);
        }
    }
}

#[test]
fn distances_that_do_not_fit_are_refused() {
    assert_eq!((jal(Reg::ZERO, 1 << 20), jal(Reg::ZERO, -(1 << 20) - 2)), (None, None));
    assert_eq!(branch(When::Eq, Reg::ZERO, Reg::ZERO, 4096), None);
    assert_eq!(branch(When::Eq, Reg::ZERO, Reg::ZERO, -4098), None);
}

#[test]
fn labels_may_be_before_and_behind() {
    let mut asm = Assembler::new();
    let start = asm.here();
    let end = asm.label();
    asm.branch(When::Ne, Reg::RA, Reg::ZERO, end);
    asm.jump(Reg::ZERO, start);
    asm.bind(end);
    asm.emit(addi(Reg::ZERO, Reg::ZERO, 0));
    let words = asm.finish();
    assert_eq!((read(words[0]).imm, read(words[1]).imm), (8, -4));
}

#[test]
#[should_panic(expected = "every label is bound")]
fn label_that_is_nowhere_is_the_authors_mistake() {
    let mut asm = Assembler::new();
    let label = asm.label();
    asm.jump(Reg::ZERO, label);
    asm.finish();
}
