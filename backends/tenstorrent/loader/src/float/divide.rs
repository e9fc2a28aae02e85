// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Division and square root: IEEE's, rounded to nearest even, with denormals as zeros before and after.

use super::*;

/// `A0 = A0 / A1`.
pub(super) fn divide(asm: &mut Assembler, done: Label) {
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
    // Denormal but for rounding: one bit further down. Only one that is all ones is rounded up to a normal number,
    // and it is odd, so what was below the bit that goes here does not count.
    asm.emit_all([srli(T5, T5, 1), addi(exponent, ZERO, 1)]);
    asm.bind(normal);
    round_to_even(asm, T5, T3, T6, T2);
    // The leading bit adds one to the exponent; a carry out of the significand does the right thing too, up to
    // infinity.
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
pub(super) fn square_root(asm: &mut Assembler, done: Label) {
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
