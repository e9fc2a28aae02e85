// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Conversions between floats and integers, with any rounding; they see denormals.

use super::*;

/// Makes of T5, what falls off, and T6, half of what it is counted in, whether to round the magnitude up, in T6.
///
/// The sign is in T0, the rounding in A1. T2 is used.
fn round_up(asm: &mut Assembler, magnitude: Reg) {
    let [even, away, up, rounded] = [(); 4].map(|()| asm.label());
    let (rest, half, sign) = (T5, T6, T0);
    asm.emit(andi(T2, A1, 7));
    asm.branch(When::Eq, T2, ZERO, even);
    asm.emit(addi(T2, T2, -(Rounding::NearestAway as i32)));
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
    asm.jump(ZERO, rounded);
    asm.bind(even);
    // An odd magnitude has one more to go up with.
    asm.emit_all([andi(T2, magnitude, 1), add(rest, rest, T2), sltu(half, half, rest)]);
    asm.bind(rounded);
}

/// `A0 = integer(A0)`, as A1 says.
pub(super) fn to_integer(asm: &mut Assembler, done: Label) {
    let (sign, exponent, significand, magnitude) = (T0, T1, T3, T4);
    let [overflow, integral, unsigned, number, normal] = [(); 5].map(|()| asm.label());
    asm.emit(srli(sign, A0, 31));
    unpack(asm, A0, exponent, significand);
    asm.constant(T2, 0xff);
    asm.branch(When::Ne, exponent, T2, number);
    asm.branch(When::Eq, significand, ZERO, overflow);
    // A NaN counts as too large.
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
    round_up(asm, magnitude);
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
pub(super) fn from_integer(asm: &mut Assembler, done: Label) {
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
    round_up(asm, magnitude);
    asm.emit_all([add(magnitude, magnitude, T6), slli(exponent, exponent, 23), add(A0, magnitude, exponent)]);
    asm.emit_all([slli(sign, sign, 31), or(A0, A0, sign)]);
}
