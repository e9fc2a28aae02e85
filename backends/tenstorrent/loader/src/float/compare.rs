// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Comparisons, signs and kinds: exact, and denormals are what they are.

use super::*;

/// A comparison of two floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Order {
    /// `feq.s`
    Equal,
    /// `flt.s`
    Less,
    /// `fle.s`
    LessOrEqual,
}

/// The change of a float's sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sign {
    /// `fsgnj.s`: that of another.
    Copied,
    /// `fsgnjn.s`: the opposite of another's.
    Negated,
    /// `fsgnjx.s`: both together.
    Combined,
}

/// More than any magnitude of a number, shifted left by one place.
const NUMBERS_END: u32 = INFINITY << 1;

/// Makes of a float that is a number an integer that orders floats, both zeros the same. T0 is used.
fn order(asm: &mut Assembler, result: Reg, float: Reg) {
    asm.emit_all([srai(T0, float, 31), slli(result, float, 1), srli(result, result, 1)]);
    asm.emit_all([xor(result, result, T0), sub(result, result, T0)]);
}

/// `A0 = A0 is … A1`: one or zero.
pub(super) fn compare(asm: &mut Assembler, done: Label, wanted: Order) {
    let nan = asm.label();
    asm.emit(lui(T2, NUMBERS_END));
    for float in [A0, A1] {
        asm.emit(slli(T0, float, 1));
        asm.branch(When::Ltu, T2, T0, nan);
    }
    order(asm, T1, A0);
    order(asm, T2, A1);
    match wanted {
        Order::Equal => asm.emit_all([xor(T1, T1, T2), sltu(A0, ZERO, T1), xori(A0, A0, 1)]),
        Order::Less => asm.emit(slt(A0, T1, T2)),
        Order::LessOrEqual => asm.emit_all([slt(A0, T2, T1), xori(A0, A0, 1)]),
    }
    asm.jump(ZERO, done);
    asm.bind(nan);
    asm.emit(addi(A0, ZERO, 0));
}

/// `A0 = min(A0, A1)`, or the greater. Of a number and what is none, the number.
pub(super) fn extreme(asm: &mut Assembler, done: Label, greater: bool) {
    let [first_is_none, same] = [(); 2].map(|()| asm.label());
    asm.emit_all([lui(T2, NUMBERS_END), slli(T0, A0, 1)]);
    asm.branch(When::Ltu, T2, T0, first_is_none);
    asm.emit(slli(T0, A1, 1));
    asm.branch(When::Ltu, T2, T0, done);
    order(asm, T1, A0);
    order(asm, T2, A1);
    asm.branch(When::Eq, T1, T2, same);
    let (one, other) = if greater { (T2, T1) } else { (T1, T2) };
    asm.branch(When::Lt, one, other, done);
    asm.emit(addi(A0, A1, 0));
    asm.jump(ZERO, done);
    asm.bind(same);
    // Of two zeros, the negative is the lesser.
    asm.emit(if greater { and(A0, A0, A1) } else { or(A0, A0, A1) });
    asm.jump(ZERO, done);
    asm.bind(first_is_none);
    asm.emit_all([addi(A0, A1, 0), slli(T0, A1, 1)]);
    asm.branch(When::Geu, T2, T0, done);
    asm.emit(lui(A0, NAN));
}

/// `A0`, with a sign of A1's.
pub(super) fn sign(asm: &mut Assembler, how: Sign) {
    if how == Sign::Negated {
        asm.emit(xori(A1, A1, -1));
    }
    asm.emit_all([srli(A1, A1, 31), slli(A1, A1, 31)]);
    if how != Sign::Combined {
        asm.emit_all([slli(A0, A0, 1), srli(A0, A0, 1)]);
    }
    asm.emit(xor(A0, A0, A1));
}

/// `A0` = one bit for what A0 is, as `fclass.s` numbers them.
pub(super) fn classify(asm: &mut Assembler, done: Label) {
    let (exponent, fraction, number) = (T1, T2, T3);
    let [small, known, none] = [(); 3].map(|()| asm.label());
    unpack(asm, A0, exponent, fraction);
    // As if it were positive: 7 is infinity, 6 normal, 5 denormal, 4 zero.
    asm.emit_all([addi(number, ZERO, 6), addi(T4, ZERO, 0xff)]);
    asm.branch(When::Eq, exponent, ZERO, small);
    asm.branch(When::Ne, exponent, T4, known);
    asm.branch(When::Ne, fraction, ZERO, none);
    asm.emit(addi(number, ZERO, 7));
    asm.jump(ZERO, known);
    asm.bind(small);
    asm.emit(addi(number, ZERO, 5));
    asm.branch(When::Ne, fraction, ZERO, known);
    asm.emit(addi(number, ZERO, 4));
    asm.bind(known);
    // The negative ones have the same order backwards.
    asm.emit_all([srai(T0, A0, 31), andi(T0, T0, 7), xor(number, number, T0)]);
    asm.emit_all([addi(A0, ZERO, 1), sll(A0, A0, number)]);
    asm.jump(ZERO, done);
    asm.bind(none);
    // Eight if it signals, and nine if it is quiet.
    asm.emit_all([srli(T0, fraction, 22), addi(T0, T0, 8), addi(A0, ZERO, 1), sll(A0, A0, T0)]);
}
