// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Sums, products, and a product and a sum, as Blackhole's float unit does them.
//!
//! A significand that is worked on has three bits below a float's own, of which the lowest is one if anything has
//! fallen off below it: so its leading bit is bit 26. What falls off altogether leaves nothing, as in the unit.

use super::*;

/// The leading bit of a significand that is worked on.
const WORKED: u32 = 1 << 26;
/// More than any magnitude of a number, shifted left by one place: what is above is none.
const NUMBERS_END: u32 = INFINITY << 1;

/// `A0 = A0 + A1`, or `A0 - A1`.
#[expect(clippy::too_many_lines, reason = "one routine for the card, in the order of its instructions")]
pub(super) fn sum(asm: &mut Assembler, done: Label, negate: bool) {
    let (value, other, exponent) = (T0, T1, T2);
    let [ordered, special, alone, apart, round, again, normal, nothing, infinite, nan, signed] =
        [(); 11].map(|()| asm.label());
    if negate {
        asm.emit_all([lui(T0, SIGN), xor(A1, A1, T0)]);
    }
    // The one with the larger magnitude first.
    asm.emit_all([slli(T0, A0, 1), slli(T1, A1, 1)]);
    asm.branch(When::Geu, T0, T1, ordered);
    asm.emit_all([addi(T2, A0, 0), addi(A0, A1, 0), addi(A1, T2, 0), slli(T0, A0, 1), slli(T1, A1, 1)]);
    asm.bind(ordered);
    asm.emit_all([srli(exponent, T0, 24), srli(T3, T1, 24), addi(T4, ZERO, 0xff)]);
    asm.branch(When::Eq, exponent, T4, special);
    asm.branch(When::Eq, T3, ZERO, alone);
    // Too small to change anything, if all of it falls off.
    asm.emit_all([sub(T3, exponent, T3), addi(T4, ZERO, 27)]);
    asm.branch(When::Geu, T3, T4, done);
    asm.emit(lui(T4, WORKED));
    for (significand, float) in [(value, A0), (other, A1)] {
        asm.emit_all([
            slli(significand, float, 9),
            srli(significand, significand, 6),
            or(significand, significand, T4),
        ]);
    }
    asm.emit_all([srl(T4, other, T3), sll(T3, T4, T3), xor(other, other, T3)]);
    asm.emit_all([sltu(other, ZERO, other), or(other, other, T4), xor(T3, A0, A1)]);
    asm.branch(When::Lt, T3, ZERO, apart);
    asm.emit_all([add(value, value, other), srli(T1, value, 27)]);
    asm.branch(When::Eq, T1, ZERO, round);
    halve(asm, value, T1);
    asm.emit_all([addi(exponent, exponent, 1), addi(T1, ZERO, 0xff)]);
    asm.branch(When::Eq, exponent, T1, infinite);
    asm.bind(round);
    round_to_even(asm, value, T1);
    // The leading bit adds one to the exponent; a carry out of the significand does the right thing too, up to
    // infinity.
    asm.emit_all([addi(exponent, exponent, -1), slli(exponent, exponent, 23), add(value, value, exponent)]);
    asm.bind(signed);
    asm.emit_all([srli(A0, A0, 31), slli(A0, A0, 31), or(A0, A0, value)]);
    asm.jump(ZERO, done);

    asm.bind(apart);
    asm.emit(sub(value, value, other));
    asm.branch(When::Eq, value, ZERO, nothing);
    asm.emit(lui(T1, WORKED));
    asm.branch(When::Geu, value, T1, normal);
    asm.bind(again);
    asm.emit_all([slli(value, value, 1), addi(exponent, exponent, -1)]);
    asm.branch(When::Ltu, value, T1, again);
    asm.bind(normal);
    asm.branch(When::Lt, ZERO, exponent, round);
    // A denormal: nothing of it has fallen off, so no rounding makes it normal.
    asm.emit(addi(value, ZERO, 0));
    asm.jump(ZERO, signed);
    asm.bind(nothing);
    asm.emit(addi(A0, ZERO, 0));
    asm.jump(ZERO, done);

    asm.bind(alone);
    asm.branch(When::Ne, exponent, ZERO, done);
    asm.emit_all([and(A0, A0, A1), srli(A0, A0, 31), slli(A0, A0, 31)]);
    asm.jump(ZERO, done);

    asm.bind(special);
    asm.emit(lui(T3, NUMBERS_END));
    asm.branch(When::Ltu, T3, T0, nan);
    asm.branch(When::Ne, T0, T1, done);
    asm.emit(xor(T3, A0, A1));
    asm.branch(When::Ge, T3, ZERO, done);
    asm.bind(nan);
    asm.emit(lui(A0, NAN));
    asm.jump(ZERO, done);
    asm.bind(infinite);
    asm.emit(lui(value, INFINITY));
    asm.jump(ZERO, signed);
}

/// `A0 = A0 * A1`.
pub(super) fn product(asm: &mut Assembler, done: Label) {
    let (sign, exponent, value) = (T0, T1, T2);
    let [special, nan, zero] = [(); 3].map(|()| asm.label());
    let ends = Ends::new(asm);
    asm.emit_all([xor(sign, A0, A1), slli(T1, A0, 1), srli(T1, T1, 24), slli(T2, A1, 1), srli(T2, T2, 24)]);
    asm.emit(addi(T3, ZERO, 0xff));
    asm.branch(When::Eq, T1, T3, special);
    asm.branch(When::Eq, T2, T3, special);
    asm.branch(When::Eq, T1, ZERO, zero);
    asm.branch(When::Eq, T2, ZERO, zero);
    asm.emit_all([add(exponent, T1, T2), addi(exponent, exponent, -127)]);
    asm.branch(When::Lt, exponent, ZERO, zero);
    asm.branch(When::Ge, exponent, T3, ends.infinite);
    multiply(asm, T4);
    let normal = asm.label();
    asm.emit(srli(A0, value, 27));
    asm.branch(When::Eq, A0, ZERO, normal);
    halve(asm, value, A0);
    asm.emit(addi(exponent, exponent, 1));
    asm.branch(When::Eq, exponent, T3, ends.infinite);
    asm.bind(normal);
    asm.branch(When::Eq, exponent, ZERO, ends.small);
    finish(asm, done, &ends);

    asm.bind(zero);
    asm.emit(addi(value, ZERO, 0));
    asm.jump(ZERO, ends.signed);
    asm.bind(special);
    asm.emit_all([lui(T3, NUMBERS_END), slli(A0, A0, 1), slli(A1, A1, 1)]);
    asm.branch(When::Ltu, T3, A0, nan);
    asm.branch(When::Ltu, T3, A1, nan);
    // Infinity times nothing.
    asm.branch(When::Eq, T1, ZERO, nan);
    asm.branch(When::Ne, T2, ZERO, ends.infinite);
    asm.bind(nan);
    asm.emit(lui(A0, NAN));
}

/// `A0 = A0 * A1 + A2`, with the signs of the product and of A2 as they are or the other way.
#[expect(clippy::too_many_lines, reason = "one routine for the card, in the order of its instructions")]
pub(super) fn product_and_sum(asm: &mut Assembler, done: Label, negate: (bool, bool)) {
    let (sign, exponent, value, other_exponent, other) = (T0, T1, T2, T3, T4);
    let [special, no_product, addend, product_first, aligned, apart, less, normalise] =
        [(); 8].map(|()| asm.label());
    let [left, right, narrow, normal, zero] = [(); 5].map(|()| asm.label());
    let ends = Ends::new(asm);
    for (negate, float) in [(negate.0, A0), (negate.1, A2)] {
        if negate {
            asm.emit_all([lui(T0, SIGN), xor(float, float, T0)]);
        }
    }
    asm.emit_all([xor(sign, A0, A1), addi(T4, ZERO, 0xff)]);
    for (exponent, float) in [(T1, A0), (T2, A1), (T3, A2)] {
        asm.emit_all([slli(exponent, float, 1), srli(exponent, exponent, 24)]);
    }
    for exponent in [T1, T2, T3] {
        asm.branch(When::Eq, exponent, T4, special);
    }
    asm.branch(When::Eq, T1, ZERO, no_product);
    asm.branch(When::Eq, T2, ZERO, no_product);
    asm.emit_all([add(exponent, T1, T2), addi(exponent, exponent, -127)]);
    asm.branch(When::Lt, exponent, ZERO, no_product);
    asm.branch(When::Ge, exponent, T4, ends.infinite);
    multiply(asm, T5);
    asm.emit(addi(other, ZERO, 0));
    asm.branch(When::Eq, other_exponent, ZERO, addend);
    asm.emit_all([lui(T5, WORKED), slli(other, A2, 9), srli(other, other, 6), or(other, other, T5)]);
    asm.bind(addend);
    asm.emit(sub(T5, exponent, other_exponent));
    asm.branch(When::Ge, exponent, other_exponent, product_first);
    asm.emit_all([sub(T5, ZERO, T5), addi(exponent, other_exponent, 0)]);
    align(asm, value);
    asm.jump(ZERO, aligned);
    asm.bind(product_first);
    align(asm, other);
    asm.bind(aligned);
    asm.emit(xor(A0, sign, A2));
    asm.branch(When::Lt, A0, ZERO, apart);
    asm.emit(add(value, value, other));
    asm.jump(ZERO, normalise);
    asm.bind(apart);
    asm.branch(When::Ltu, value, other, less);
    asm.emit(sub(value, value, other));
    asm.branch(When::Ne, value, ZERO, normalise);
    asm.emit(addi(A0, ZERO, 0));
    asm.jump(ZERO, done);
    asm.bind(less);
    asm.emit_all([sub(value, other, value), addi(sign, A2, 0)]);
    asm.bind(normalise);
    asm.emit(lui(T5, WORKED));
    asm.branch(When::Geu, value, T5, right);
    asm.bind(left);
    asm.emit_all([slli(value, value, 1), addi(exponent, exponent, -1)]);
    asm.branch(When::Ltu, value, T5, left);
    asm.bind(right);
    asm.emit(srli(A0, value, 27));
    asm.branch(When::Eq, A0, ZERO, normal);
    asm.bind(narrow);
    halve(asm, value, A0);
    asm.emit_all([addi(exponent, exponent, 1), srli(A0, value, 27)]);
    asm.branch(When::Ne, A0, ZERO, narrow);
    asm.bind(normal);
    asm.emit(addi(A0, ZERO, 0xff));
    asm.branch(When::Ge, exponent, A0, ends.infinite);
    asm.branch(When::Ge, ZERO, exponent, ends.small);
    finish(asm, done, &ends);

    asm.bind(no_product);
    asm.branch(When::Eq, other_exponent, ZERO, zero);
    asm.emit(addi(A0, A2, 0));
    asm.jump(ZERO, done);
    asm.bind(zero);
    asm.emit_all([and(A0, sign, A2), srli(A0, A0, 31), slli(A0, A0, 31)]);
    asm.jump(ZERO, done);

    asm.bind(special);
    let [of_first, of_second, infinity, nan] = [(); 4].map(|()| asm.label());
    asm.emit(lui(T5, NUMBERS_END));
    for float in [A0, A1, A2] {
        asm.emit(slli(T6, float, 1));
        asm.branch(When::Ltu, T5, T6, nan);
    }
    asm.branch(When::Eq, T1, T4, of_first);
    asm.branch(When::Eq, T2, T4, of_second);
    asm.emit(addi(A0, A2, 0));
    asm.jump(ZERO, done);
    // A product that is infinite, unless it is of nothing.
    asm.bind(of_first);
    asm.branch(When::Ne, T2, ZERO, infinity);
    asm.jump(ZERO, nan);
    asm.bind(of_second);
    asm.branch(When::Eq, T1, ZERO, nan);
    asm.bind(infinity);
    asm.branch(When::Ne, T3, T4, ends.infinite);
    asm.emit(xor(A0, sign, A2));
    asm.branch(When::Ge, A0, ZERO, ends.infinite);
    asm.bind(nan);
    asm.emit(lui(A0, NAN));
}

/// The ends that products have in common.
struct Ends {
    /// For results smaller than a normal number, but for rounding.
    small: Label,
    infinite: Label,
    /// With everything but its sign.
    signed: Label,
}

impl Ends {
    fn new(asm: &mut Assembler) -> Self {
        Self { small: asm.label(), infinite: asm.label(), signed: asm.label() }
    }
}

/// Makes a float of the significand in T2, with the exponent in T1 and the sign in T0.
fn finish(asm: &mut Assembler, done: Label, ends: &Ends) {
    let (sign, exponent, value) = (T0, T1, T2);
    round_to_even(asm, value, A0);
    asm.emit_all([addi(exponent, exponent, -1), slli(exponent, exponent, 23), add(value, value, exponent)]);
    asm.bind(ends.signed);
    asm.emit_all([srli(sign, sign, 31), slli(sign, sign, 31), or(A0, value, sign)]);
    asm.jump(ZERO, done);
    asm.bind(ends.infinite);
    asm.emit(lui(value, INFINITY));
    asm.jump(ZERO, ends.signed);
    // One place further down, so that rounding can still make the smallest normal number of it; else it is nothing.
    asm.bind(ends.small);
    halve(asm, value, A0);
    round_to_even(asm, value, A0);
    asm.emit(srli(A0, value, 23));
    asm.branch(When::Ne, A0, ZERO, ends.signed);
    asm.emit(addi(value, ZERO, 0));
    asm.jump(ZERO, ends.signed);
}

/// Multiplies the significands of A0 and A1, which are used: T2 is their product, whose leading bit is bit 26 or 27.
fn multiply(asm: &mut Assembler, scratch: Reg) {
    asm.emit_all([lui(scratch, SIGN), slli(A0, A0, 8), or(A0, A0, scratch), slli(A1, A1, 8)]);
    // Shifted so far that the lower half of the product is what falls off.
    asm.emit_all([or(A1, A1, scratch), srli(A1, A1, 4), mulhu(T2, A0, A1), mul(A0, A0, A1)]);
    asm.emit_all([sltu(A0, ZERO, A0), or(T2, T2, A0)]);
}

/// Shifts right by one place.
fn halve(asm: &mut Assembler, value: Reg, scratch: Reg) {
    asm.emit_all([andi(scratch, value, 1), srli(value, value, 1), or(value, value, scratch)]);
}

/// Shifts right by T5 places. A0 and A1 are used.
fn align(asm: &mut Assembler, value: Reg) {
    let [nothing, end] = [(); 2].map(|()| asm.label());
    asm.emit(addi(A0, ZERO, 32));
    asm.branch(When::Geu, T5, A0, nothing);
    asm.emit(srl(A0, value, T5));
    asm.branch(When::Eq, A0, ZERO, nothing);
    asm.emit_all([sll(A1, A0, T5), xor(value, value, A1), sltu(value, ZERO, value), or(value, value, A0)]);
    asm.jump(ZERO, end);
    asm.bind(nothing);
    asm.emit(addi(value, ZERO, 0));
    asm.bind(end);
}

/// Drops the three lowest bits.
fn round_to_even(asm: &mut Assembler, value: Reg, scratch: Reg) {
    // More than a half goes up by three, and a half if what is left is odd, which adds one.
    asm.emit_all([srli(scratch, value, 3), andi(scratch, scratch, 1), add(value, value, scratch)]);
    asm.emit_all([addi(value, value, 3), srli(value, value, 3)]);
}
