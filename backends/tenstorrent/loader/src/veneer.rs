// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What the cores' float unit lacks, in integer instructions.
//!
//! Blackhole's cores have no `fdiv.s` and no `fsqrt.s`, and round to nearest even alone, while compilers convert towards zero or
//! downwards. Each such instruction becomes a jump to a veneer of its own, which saves what it uses on the stack, brings the
//! operands to where a shared routine takes them, calls it, puts the result where the instruction would have, and jumps back
//! behind it. Nothing else changes: no other register, and no memory above the stack pointer.
//!
//! Results are IEEE's, rounded to nearest even where it is a division or a square root, in the manner of the unit: denormal
//! operands of a division or a root count as zeros of their sign, results that are denormal after rounding become such
//! zeros, and every NaN that is made is `0x7fc00000`. Conversions see denormals, as the unit's own do.

use crate::encode::{
    Assembler, FloatReg, Label, Reg, When, add, addi, and, andi, divu, fmv_w_x, fmv_x_w, jal, jalr, lui, lw,
    or, ori, remu, sll, slli, sltu, srl, srli, sub, sw, xor, xori,
};
use crate::scan::Site;

/// A rounding that the cores do not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rounding {
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
    /// By the number in an instruction.
    pub(crate) const fn numbered(number: u32) -> Option<Self> {
        Some(match number {
            1 => Rounding::Zero,
            2 => Rounding::Down,
            3 => Rounding::Up,
            4 => Rounding::NearestAway,
            _ => return None,
        })
    }
}

/// What an instruction does that is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Routine {
    /// `fdiv.s`
    Divide,
    /// `fsqrt.s`
    SquareRoot,
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
    /// Whether the result goes to an integer register.
    pub(crate) const fn gives_an_integer(self) -> bool {
        matches!(self, Routine::ToInteger { .. })
    }
}

const RA: Reg = Reg::RA;
const SP: Reg = Reg::SP;
const ZERO: Reg = Reg::ZERO;
const A0: Reg = Reg::A[0];
const A1: Reg = Reg::A[1];
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

/// The code for some instructions, to be placed at `at`, and the jump that each becomes. `None` if that is too far away from them.
pub(crate) fn assemble(sites: &[Site], at: u32) -> Option<(Vec<u32>, Vec<u32>)> {
    let mut asm = Assembler::new();
    let routines = Labels { divide: asm.label(), root: asm.label(), to: asm.label(), from: asm.label() };
    let mut jumps = Vec::with_capacity(sites.len());
    for site in sites {
        let here = at.checked_add(u32::try_from(asm.length()).ok()?)?;
        jumps.push(jal(ZERO, distance(site.at, here)?)?);
        veneer(&mut asm, site, &routines);
        let here = at.checked_add(u32::try_from(asm.length()).ok()?)?;
        asm.emit(jal(ZERO, distance(here, site.at.checked_add(4)?)?)?);
    }
    routine(&mut asm, routines.divide, divide);
    routine(&mut asm, routines.root, square_root);
    routine(&mut asm, routines.to, to_integer);
    routine(&mut asm, routines.from, from_integer);
    Some((asm.finish(), jumps))
}

struct Labels {
    divide: Label,
    root: Label,
    to: Label,
    from: Label,
}

fn distance(from: u32, to: u32) -> Option<i32> {
    i32::try_from(i64::from(to) - i64::from(from)).ok()
}

/// Everything of a site's veneer but the jump back.
fn veneer(asm: &mut Assembler, site: &Site, routines: &Labels) {
    const FRAME: i32 = 16;
    /// What is saved, in this order from the stack pointer on.
    const SAVED: [Reg; 3] = [RA, A0, A1];
    let (float1, float2) = (FloatReg::numbered(site.rs1), FloatReg::numbered(site.rs2));
    let conversion = |signed: bool, rounding: Rounding| rounding as i32 | if signed { 0 } else { UNSIGNED };
    asm.emit(addi(SP, SP, -FRAME));
    for (offset, register) in (0..).step_by(4).zip(SAVED) {
        asm.emit(sw(register, offset, SP));
    }
    let target = match site.routine {
        Routine::Divide => {
            asm.emit_all([fmv_x_w(A0, float1), fmv_x_w(A1, float2)]);
            routines.divide
        }
        Routine::SquareRoot => {
            asm.emit(fmv_x_w(A0, float1));
            routines.root
        }
        Routine::ToInteger { signed, rounding } => {
            asm.emit_all([fmv_x_w(A0, float1), addi(A1, ZERO, conversion(signed, rounding))]);
            routines.to
        }
        Routine::FromInteger { signed, rounding } => {
            let source = Reg::numbered(site.rs1);
            let moved = if source == SP { FRAME } else { 0 };
            asm.emit_all([addi(A0, source, moved), addi(A1, ZERO, conversion(signed, rounding))]);
            routines.from
        }
    };
    asm.jump(RA, target);
    let result = Reg::numbered(site.rd);
    if !site.routine.gives_an_integer() {
        asm.emit(fmv_w_x(FloatReg::numbered(site.rd), A0));
    } else if let Some((offset, _)) = (0..).step_by(4).zip(SAVED).find(|&(_, saved)| saved == result) {
        // What is restored below is then the result.
        asm.emit(sw(A0, offset, SP));
    } else if result != ZERO {
        asm.emit(addi(result, A0, 0));
    }
    for (offset, register) in (0..).step_by(4).zip(SAVED) {
        asm.emit(lw(register, offset, SP));
    }
    asm.emit(addi(SP, SP, FRAME));
}

/// A routine that may use every temporary register: arguments and result are in the first registers for them.
///
/// `body` ends behind its code or at the label that it is given.
fn routine(asm: &mut Assembler, label: Label, body: impl FnOnce(&mut Assembler, Label)) {
    const FRAME: i32 = 32;
    asm.bind(label);
    let done = asm.label();
    asm.emit(addi(SP, SP, -FRAME));
    for (offset, register) in (0..).step_by(4).zip(Reg::T) {
        asm.emit(sw(register, offset, SP));
    }
    body(asm, done);
    asm.bind(done);
    for (offset, register) in (0..).step_by(4).zip(Reg::T) {
        asm.emit(lw(register, offset, SP));
    }
    asm.emit_all([addi(SP, SP, FRAME), jalr(ZERO, RA, 0)]);
}

/// Takes a float's exponent and fraction out of it.
fn unpack(asm: &mut Assembler, float: Reg, exponent: Reg, fraction: Reg) {
    asm.emit_all([slli(exponent, float, 1), srli(exponent, exponent, 24)]);
    asm.emit_all([slli(fraction, float, 9), srli(fraction, fraction, 9)]);
}

/// `A0 = A0 / A1`.
fn divide(asm: &mut Assembler, done: Label) {
    let (sign, exponent, other_exponent, dividend, divisor) = (T0, T1, T2, T3, T4);
    let [special, other_special, by_zero, nan, infinite, zero] = [(); 6].map(|()| asm.label());
    asm.emit_all([xor(sign, A0, A1), srli(sign, sign, 31), slli(sign, sign, 31)]);
    unpack(asm, A0, exponent, dividend);
    unpack(asm, A1, other_exponent, divisor);
    asm.constant(T5, 0xff);
    asm.branch(When::Eq, exponent, T5, special);
    asm.branch(When::Eq, other_exponent, T5, other_special);
    asm.branch(When::Eq, other_exponent, ZERO, by_zero);
    asm.branch(When::Eq, exponent, ZERO, zero);
    quotient(asm);
    // Behind it, T5 is the quotient with 24 bits and one more, T3 whether anything is left.
    asm.constant(T6, 0xff);
    asm.branch(When::Ge, exponent, T6, infinite);
    asm.branch(When::Lt, exponent, ZERO, zero);
    let normal = asm.label();
    asm.branch(When::Ne, exponent, ZERO, normal);
    // Denormal but for rounding: one bit further down. Only one that is all ones is rounded up to a normal number, and it is odd,
    // so what was below the bit that goes here does not count.
    asm.emit_all([srli(T5, T5, 1), addi(exponent, ZERO, 1)]);
    asm.bind(normal);
    round_to_even(asm, T5, T3, T6, T2);
    // The leading bit adds one to the exponent; a carry out of the significand does the right thing too, up to infinity.
    asm.emit_all([addi(exponent, exponent, -1), slli(exponent, exponent, 23), add(T5, T5, exponent)]);
    asm.emit(srli(T6, T5, 23));
    asm.branch(When::Eq, T6, ZERO, zero);
    asm.emit(or(A0, T5, sign));
    asm.jump(ZERO, done);

    asm.bind(special);
    asm.branch(When::Ne, dividend, ZERO, nan);
    asm.branch(When::Eq, other_exponent, T5, nan);
    asm.jump(ZERO, infinite);
    asm.bind(other_special);
    asm.branch(When::Ne, divisor, ZERO, nan);
    asm.jump(ZERO, zero);
    asm.bind(by_zero);
    asm.branch(When::Eq, exponent, ZERO, nan);
    asm.bind(infinite);
    asm.emit_all([lui(A0, INFINITY), or(A0, A0, sign)]);
    asm.jump(ZERO, done);
    asm.bind(nan);
    asm.emit(lui(A0, NAN));
    asm.jump(ZERO, done);
    asm.bind(zero);
    asm.emit(addi(A0, sign, 0));
}

/// Divides the significands in T3 and T4 and corrects the exponent in T1, from which it takes that in T2.
fn quotient(asm: &mut Assembler) {
    asm.emit_all([lui(T5, LEADING), or(T3, T3, T5), or(T4, T4, T5)]);
    asm.emit_all([sub(T1, T1, T2), addi(T1, T1, 127)]);
    let large = asm.label();
    asm.branch(When::Geu, T3, T4, large);
    asm.emit_all([slli(T3, T3, 1), addi(T1, T1, -1)]);
    asm.bind(large);
    // The first digit is one; then three times eight binary digits. A remainder is less than 24 bits long.
    asm.emit_all([sub(T3, T3, T4), addi(T5, ZERO, 1), addi(T6, ZERO, 3)]);
    let digits = asm.here();
    asm.emit_all([slli(T3, T3, 8), divu(T2, T3, T4), remu(T3, T3, T4), slli(T5, T5, 8), or(T5, T5, T2)]);
    asm.emit(addi(T6, T6, -1));
    asm.branch(When::Ne, T6, ZERO, digits);
    asm.emit(sltu(T3, ZERO, T3));
}

/// Drops the lowest bit of `value`, which is rounded to even; `rest` is odd if there is more below.
fn round_to_even(asm: &mut Assembler, value: Reg, rest: Reg, half: Reg, odd: Reg) {
    asm.emit_all([andi(half, value, 1), srli(value, value, 1), andi(odd, value, 1), or(odd, odd, rest)]);
    asm.emit_all([and(half, half, odd), add(value, value, half)]);
}

/// `A0 = sqrt(A0)`.
fn square_root(asm: &mut Assembler, done: Label) {
    let (exponent, radicand, root, rest, trial, count) = (T1, T3, T4, T5, T6, T2);
    let [special, nan, zero] = [(); 3].map(|()| asm.label());
    unpack(asm, A0, exponent, radicand);
    asm.constant(T0, 0xff);
    asm.branch(When::Eq, exponent, T0, special);
    asm.branch(When::Eq, exponent, ZERO, zero);
    asm.branch(When::Lt, A0, ZERO, nan);
    asm.emit_all([lui(T0, LEADING), or(radicand, radicand, T0)]);
    // An even power of two before the radicand: with the bias, that is an odd exponent.
    let even = asm.label();
    asm.emit(andi(T0, exponent, 1));
    asm.branch(When::Ne, T0, ZERO, even);
    asm.emit_all([slli(radicand, radicand, 1), addi(exponent, exponent, -1)]);
    asm.bind(even);
    // Half of it, biased again, less the one that the leading bit brings.
    asm.emit_all([addi(exponent, exponent, 127 - 2), srli(exponent, exponent, 1)]);
    // The radicand has 25 bits, and as many zeros behind them; two a step from the top make 25 bits of a root.
    asm.emit_all([
        slli(radicand, radicand, 7),
        addi(root, ZERO, 0),
        addi(rest, ZERO, 0),
        addi(count, ZERO, 25),
    ]);
    let step = asm.here();
    let skip = asm.label();
    asm.emit_all([slli(rest, rest, 2), srli(trial, radicand, 30), or(rest, rest, trial)]);
    asm.emit_all([
        slli(radicand, radicand, 2),
        slli(trial, root, 2),
        ori(trial, trial, 1),
        slli(root, root, 1),
    ]);
    asm.branch(When::Ltu, rest, trial, skip);
    asm.emit_all([sub(rest, rest, trial), ori(root, root, 1)]);
    asm.bind(skip);
    asm.emit(addi(count, count, -1));
    asm.branch(When::Ne, count, ZERO, step);
    // The radicand is even: where the last bit of the root is one, and only there it counts, the rest is odd.
    round_to_even(asm, root, rest, T0, T6);
    asm.emit_all([slli(exponent, exponent, 23), add(A0, root, exponent)]);
    asm.jump(ZERO, done);

    asm.bind(special);
    // Of the infinite, the positive is its own root.
    asm.branch(When::Ne, radicand, ZERO, nan);
    asm.branch(When::Ge, A0, ZERO, done);
    asm.bind(nan);
    asm.emit(lui(A0, NAN));
    asm.jump(ZERO, done);
    asm.bind(zero);
    asm.emit_all([srli(A0, A0, 31), slli(A0, A0, 31)]);
}

/// Makes of T5, what falls off, and T6, half of what it is counted in, whether to round the magnitude up, in T6.
///
/// The sign is in T0, the rounding in A1. T2 is used.
fn round_up(asm: &mut Assembler) {
    let [away, up, rounded] = [(); 3].map(|()| asm.label());
    let (rest, half, sign) = (T5, T6, T0);
    asm.emit_all([andi(T2, A1, 7), addi(T2, T2, -(Rounding::NearestAway as i32))]);
    asm.branch(When::Eq, T2, ZERO, away);
    asm.emit_all([addi(T2, T2, 1), sltu(half, ZERO, rest)]);
    asm.branch(When::Eq, T2, ZERO, up);
    asm.emit_all([and(half, half, sign), addi(T2, T2, 1)]);
    asm.branch(When::Eq, T2, ZERO, rounded);
    // Towards zero.
    asm.emit(addi(half, ZERO, 0));
    asm.jump(ZERO, rounded);
    asm.bind(up);
    asm.emit_all([xori(T2, sign, 1), and(half, half, T2)]);
    asm.jump(ZERO, rounded);
    asm.bind(away);
    asm.emit_all([sltu(half, rest, half), xori(half, half, 1)]);
    asm.bind(rounded);
}

/// `A0 = integer(A0)`, as A1 says.
fn to_integer(asm: &mut Assembler, done: Label) {
    let (sign, exponent, significand, magnitude) = (T0, T1, T3, T4);
    let [overflow, integral, unsigned, number, normal] = [(); 5].map(|()| asm.label());
    asm.emit(srli(sign, A0, 31));
    unpack(asm, A0, exponent, significand);
    asm.constant(T2, 0xff);
    asm.branch(When::Ne, exponent, T2, number);
    asm.branch(When::Eq, significand, ZERO, overflow);
    // What is not a number counts as too large.
    asm.emit(addi(sign, ZERO, 0));
    asm.jump(ZERO, overflow);
    asm.bind(number);
    // From 2 to the 32nd on.
    asm.constant(T2, 127 + 32);
    asm.branch(When::Geu, exponent, T2, overflow);
    asm.branch(When::Eq, exponent, ZERO, normal);
    asm.emit_all([lui(T2, LEADING), or(significand, significand, T2)]);
    asm.bind(normal);
    let fractional = asm.label();
    asm.emit(addi(T2, exponent, -150));
    asm.branch(When::Lt, T2, ZERO, fractional);
    asm.emit(sll(magnitude, significand, T2));
    asm.jump(ZERO, integral);

    asm.bind(fractional);
    let near = asm.label();
    asm.emit(sub(T2, ZERO, T2));
    asm.constant(T5, 31);
    asm.branch(When::Geu, T5, T2, near);
    // Far below one half, which 31 places are too.
    asm.emit(addi(T2, T5, 0));
    asm.bind(near);
    asm.emit_all([srl(magnitude, significand, T2), sll(T5, magnitude, T2), sub(T5, significand, T5)]);
    asm.emit_all([addi(T2, T2, -1), addi(T6, ZERO, 1), sll(T6, T6, T2)]);
    round_up(asm);
    asm.emit(add(magnitude, magnitude, T6));

    asm.bind(integral);
    asm.emit(andi(T2, A1, UNSIGNED));
    asm.branch(When::Ne, T2, ZERO, unsigned);
    // The greatest magnitude is one more below zero.
    asm.emit_all([lui(T2, 1 << 31), add(T5, T2, sign)]);
    asm.branch(When::Geu, magnitude, T5, overflow);
    let positive = asm.label();
    asm.emit(addi(A0, magnitude, 0));
    asm.branch(When::Eq, sign, ZERO, positive);
    asm.emit(sub(A0, ZERO, magnitude));
    asm.bind(positive);
    asm.jump(ZERO, done);
    asm.bind(unsigned);
    // All bits if there is no sign, none if there is: what is below zero is nearest to it.
    asm.emit_all([addi(T2, sign, -1), and(A0, magnitude, T2)]);
    asm.jump(ZERO, done);

    asm.bind(overflow);
    let signed = asm.label();
    asm.emit_all([addi(T3, sign, -1), andi(T2, A1, UNSIGNED)]);
    asm.branch(When::Eq, T2, ZERO, signed);
    asm.emit(addi(A0, T3, 0));
    asm.jump(ZERO, done);
    asm.bind(signed);
    // 0x7fffffff without a sign, 0x80000000 with one.
    asm.emit_all([lui(A0, 1 << 31), add(A0, A0, sign), addi(A0, A0, -1)]);
}

/// `A0 = float(A0)`, as A1 says.
fn from_integer(asm: &mut Assembler, done: Label) {
    let (sign, exponent, magnitude) = (T0, T1, T3);
    let [positive, normal] = [(); 2].map(|()| asm.label());
    asm.branch(When::Eq, A0, ZERO, done);
    asm.emit_all([addi(sign, ZERO, 0), addi(magnitude, A0, 0), andi(T2, A1, UNSIGNED)]);
    asm.branch(When::Ne, T2, ZERO, positive);
    asm.emit(srli(sign, A0, 31));
    asm.branch(When::Eq, sign, ZERO, positive);
    asm.emit(sub(magnitude, ZERO, A0));
    asm.bind(positive);
    // The leading bit to the top. The exponent lacks the one that this bit brings.
    asm.constant(exponent, 127 + 31 - 1);
    let shift = asm.here();
    asm.branch(When::Lt, magnitude, ZERO, normal);
    asm.emit_all([slli(magnitude, magnitude, 1), addi(exponent, exponent, -1)]);
    asm.jump(ZERO, shift);
    asm.bind(normal);
    asm.emit_all([andi(T5, magnitude, 0xff), srli(magnitude, magnitude, 8), addi(T6, ZERO, 0x80)]);
    round_up(asm);
    asm.emit_all([add(magnitude, magnitude, T6), slli(exponent, exponent, 23), add(A0, magnitude, exponent)]);
    asm.emit_all([slli(sign, sign, 31), or(A0, A0, sign)]);
}
