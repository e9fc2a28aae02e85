// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Arithmetic, lane by lane: what each operation of the table of forms computes.
//!
//! Where PTX leaves a result open, this chooses one: a division by zero of whole numbers gives ones. Approximations
//! are those of the host's library, which are within 2 units of the last place; a device may be worse, by what the
//! tables of PTX say.

use super::LANES;
use super::convert::to_odd;
use crate::ptx::instruction::{B32, B64, Cmp, Narrow, T32, T64, Type, U32, U64, Wide};
use half::{bf16, f16};

/// Registers of 32 bits.
pub(super) type Words = [u32; LANES];
/// Registers of 64 bits.
pub(super) type Doubles = [u64; LANES];

#[inline(always)]
fn one<A: Copy, R: Copy + Default, const N: usize>(a: &[A; N], f: impl Fn(A) -> R) -> [R; N] {
    let mut out = [R::default(); N];
    for (out, a) in out.iter_mut().zip(a) {
        *out = f(*a);
    }
    out
}

#[inline(always)]
fn two<A: Copy, B: Copy, R: Copy + Default, const N: usize>(
    a: &[A; N],
    b: &[B; N],
    f: impl Fn(A, B) -> R,
) -> [R; N] {
    let mut out = [R::default(); N];
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = f(*a, *b);
    }
    out
}

#[inline(always)]
fn three<A: Copy, C: Copy, R: Copy + Default, const N: usize>(
    a: &[A; N],
    b: &[A; N],
    c: &[C; N],
    f: impl Fn(A, A, C) -> R,
) -> [R; N] {
    let mut out = [R::default(); N];
    for (((out, a), b), c) in out.iter_mut().zip(a).zip(b).zip(c) {
        *out = f(*a, *b, *c);
    }
    out
}

#[inline(always)]
fn f(bits: u32) -> f32 {
    f32::from_bits(bits)
}

#[inline(always)]
fn g(bits: u64) -> f64 {
    f64::from_bits(bits)
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the register's lower half")]
fn h(bits: u32) -> f32 {
    f16::from_bits(bits as u16).to_f32()
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the register's lower half")]
fn bf(bits: u32) -> f32 {
    bf16::from_bits(bits as u16).to_f32()
}

#[inline(always)]
fn to_h(value: f32) -> u32 {
    if value.is_nan() { 0x7fff } else { u32::from(f16::from_f32(value).to_bits()) }
}

#[inline(always)]
fn to_bf(value: f32) -> u32 {
    if value.is_nan() { 0x7fff } else { u32::from(bf16::from_f32(value).to_bits()) }
}

/// Both halves of a register.
#[inline(always)]
fn halves(a: u32, b: u32, f: impl Fn(u32, u32) -> u32) -> u32 {
    f(a & 0xffff, b & 0xffff) | f(a >> 16, b >> 16) << 16
}

/// The lesser, if one is no number the other, and a negative zero is less than a positive one.
#[inline(always)]
fn min(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        b
    } else if b.is_nan() || a < b || (a == b && a.is_sign_negative()) {
        a
    } else {
        b
    }
}

#[inline(always)]
fn max(a: f32, b: f32) -> f32 {
    -min(-a, -b)
}

/// No number if one is none.
#[inline(always)]
fn nan_or(a: f32, b: f32, f: impl Fn(f32, f32) -> f32) -> f32 {
    if a.is_nan() || b.is_nan() { f32::from_bits(0x7fff_ffff) } else { f(a, b) }
}

#[inline(always)]
fn min64(a: f64, b: f64) -> f64 {
    if a.is_nan() {
        b
    } else if b.is_nan() || a < b || (a == b && a.is_sign_negative()) {
        a
    } else {
        b
    }
}

#[inline(always)]
fn signed16(a: u32) -> i32 {
    #[expect(clippy::cast_possible_truncation, reason = "the register's lower half")]
    let low = a as u16;
    i32::from(low.cast_signed())
}

#[inline(always)]
fn low(a: i32) -> u32 {
    a.cast_unsigned() & 0xffff
}

#[inline(always)]
fn flush(a: u32) -> u32 {
    if a & 0x7f80_0000 == 0 { a & 0x8000_0000 } else { a }
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
pub(super) fn unary32(op: U32, a: &Words) -> Words {
    match op {
        U32::Mov => *a,
        U32::Neg => one(a, u32::wrapping_neg),
        U32::Not => one(a, |a: u32| !a),
        U32::Cnot => one(a, |a: u32| u32::from(a == 0)),
        U32::Abs => one(a, |a: u32| a.cast_signed().unsigned_abs()),
        U32::Popc => one(a, u32::count_ones),
        U32::Clz => one(a, u32::leading_zeros),
        U32::Brev => one(a, u32::reverse_bits),
        U32::Neg16 => one(a, |a| low(-signed16(a))),
        U32::Not16 => one(a, |a: u32| !a & 0xffff),
        U32::Abs16 => one(a, |a| low(signed16(a).abs())),
        U32::NegF => one(a, |a: u32| a ^ 0x8000_0000),
        U32::AbsF => one(a, |a: u32| a & 0x7fff_ffff),
        U32::Ex2 => one(a, |a| f(a).exp2().to_bits()),
        U32::Lg2 => one(a, |a| f(a).log2().to_bits()),
        U32::Rcp => one(a, |a| (1.0 / f(a)).to_bits()),
        U32::Sqrt => one(a, |a| f(a).sqrt().to_bits()),
        U32::Rsqrt => one(a, |a| (1.0 / f(a).sqrt()).to_bits()),
        U32::Sin => one(a, |a| f(a).sin().to_bits()),
        U32::Cos => one(a, |a| f(a).cos().to_bits()),
        U32::Tanh => one(a, |a| f(a).tanh().to_bits()),
        U32::FlushF => one(a, flush),
        U32::NegH => one(a, |a: u32| (a ^ 0x8000) & 0xffff),
        U32::AbsH => one(a, |a: u32| a & 0x7fff),
        U32::Ex2H => one(a, |a| to_h(h(a).exp2())),
        U32::TanhH => one(a, |a| to_h(h(a).tanh())),
        U32::NegH2 => one(a, |a: u32| a ^ 0x8000_8000),
        U32::AbsH2 => one(a, |a: u32| a & 0x7fff_7fff),
    }
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
pub(super) fn unary64(op: U64, a: &Doubles) -> Doubles {
    match op {
        U64::Mov => *a,
        U64::Neg => one(a, u64::wrapping_neg),
        U64::Not => one(a, |a: u64| !a),
        U64::Abs => one(a, |a: u64| a.cast_signed().unsigned_abs()),
        U64::Brev => one(a, u64::reverse_bits),
        U64::NegF => one(a, |a: u64| a ^ (1 << 63)),
        U64::AbsF => one(a, |a: u64| a & !(1 << 63)),
        U64::Rcp => one(a, |a| (1.0 / g(a)).to_bits()),
        U64::Sqrt => one(a, |a| g(a).sqrt().to_bits()),
        U64::Rsqrt => one(a, |a| (1.0 / g(a).sqrt()).to_bits()),
    }
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
pub(super) fn narrow(op: Narrow, a: &Doubles) -> Words {
    match op {
        Narrow::Popc => one(a, u64::count_ones),
        Narrow::Clz => one(a, u64::leading_zeros),
    }
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
#[expect(clippy::too_many_lines, reason = "a table")]
pub(super) fn binary32(op: B32, a: &Words, b: &Words) -> Words {
    let high_u = |a: u32, b: u32| ((u64::from(a) * u64::from(b)) >> 32) as u32;
    let high_s = |a: u32, b: u32| ((i64::from(a.cast_signed()) * i64::from(b.cast_signed())) >> 32) as u32;
    let shift = |b: u32| b < 32;
    match op {
        B32::Add => two(a, b, u32::wrapping_add),
        B32::Sub => two(a, b, u32::wrapping_sub),
        B32::Mul => two(a, b, u32::wrapping_mul),
        B32::MulHiU => two(a, b, high_u),
        B32::MulHiS => two(a, b, high_s),
        B32::DivU => two(a, b, |a: u32, b| a.checked_div(b).unwrap_or(!0)),
        B32::DivS => {
            two(
                a,
                b,
                |a: u32, b: u32| {
                    if b == 0 { !0 } else { a.cast_signed().wrapping_div(b.cast_signed()).cast_unsigned() }
                },
            )
        }
        B32::RemU => two(a, b, |a: u32, b| a.checked_rem(b).unwrap_or(!0)),
        B32::RemS => {
            two(
                a,
                b,
                |a: u32, b: u32| {
                    if b == 0 { !0 } else { a.cast_signed().wrapping_rem(b.cast_signed()).cast_unsigned() }
                },
            )
        }
        B32::MinU => two(a, b, |a: u32, b| a.min(b)),
        B32::MinS => two(a, b, |a: u32, b: u32| a.cast_signed().min(b.cast_signed()).cast_unsigned()),
        B32::MaxU => two(a, b, |a: u32, b| a.max(b)),
        B32::MaxS => two(a, b, |a: u32, b: u32| a.cast_signed().max(b.cast_signed()).cast_unsigned()),
        B32::And => two(a, b, |a: u32, b| a & b),
        B32::Or => two(a, b, |a: u32, b| a | b),
        B32::Xor => two(a, b, |a: u32, b| a ^ b),
        B32::Shl => two(a, b, |a: u32, b| if shift(b) { a << b } else { 0 }),
        B32::ShrU => two(a, b, |a: u32, b| if shift(b) { a >> b } else { 0 }),
        B32::ShrS => two(a, b, |a: u32, b: u32| (a.cast_signed() >> b.min(31)).cast_unsigned()),
        B32::Add16 => two(a, b, |a: u32, b| a.wrapping_add(b) & 0xffff),
        B32::Sub16 => two(a, b, |a: u32, b| a.wrapping_sub(b) & 0xffff),
        B32::Mul16 => two(a, b, |a: u32, b| a.wrapping_mul(b) & 0xffff),
        B32::MulHiU16 => two(a, b, |a: u32, b: u32| ((a & 0xffff) * (b & 0xffff)) >> 16),
        B32::MulHiS16 => two(a, b, |a, b| low((signed16(a) * signed16(b)) >> 16)),
        B32::DivU16 => two(a, b, |a: u32, b: u32| (a & 0xffff).checked_div(b & 0xffff).unwrap_or(0xffff)),
        B32::DivS16 => two(a, b, |a, b| low(signed16(a).checked_div(signed16(b)).unwrap_or(-1))),
        B32::RemU16 => two(a, b, |a: u32, b: u32| (a & 0xffff).checked_rem(b & 0xffff).unwrap_or(0xffff)),
        B32::RemS16 => two(a, b, |a, b| low(signed16(a).checked_rem(signed16(b)).unwrap_or(-1))),
        B32::MinU16 => two(a, b, |a: u32, b: u32| (a & 0xffff).min(b & 0xffff)),
        B32::MinS16 => two(a, b, |a, b| low(signed16(a).min(signed16(b)))),
        B32::MaxU16 => two(a, b, |a: u32, b: u32| (a & 0xffff).max(b & 0xffff)),
        B32::MaxS16 => two(a, b, |a, b| low(signed16(a).max(signed16(b)))),
        B32::Shl16 => two(a, b, |a: u32, b| if b < 16 { a << b & 0xffff } else { 0 }),
        B32::ShrU16 => two(a, b, |a: u32, b| if b < 16 { (a & 0xffff) >> b } else { 0 }),
        B32::ShrS16 => two(a, b, |a, b: u32| low(signed16(a) >> b.min(15))),
        B32::MulWideU16 => two(a, b, |a: u32, b: u32| (a & 0xffff) * (b & 0xffff)),
        B32::MulWideS16 => two(a, b, |a, b| (signed16(a) * signed16(b)).cast_unsigned()),
        B32::AddF => two(a, b, |a, b| (f(a) + f(b)).to_bits()),
        B32::SubF => two(a, b, |a, b| (f(a) - f(b)).to_bits()),
        B32::MulF => two(a, b, |a, b| (f(a) * f(b)).to_bits()),
        B32::DivF => two(a, b, |a, b| (f(a) / f(b)).to_bits()),
        B32::MinF => two(a, b, |a, b| min(f(a), f(b)).to_bits()),
        B32::MaxF => two(a, b, |a, b| max(f(a), f(b)).to_bits()),
        B32::MinNanF => two(a, b, |a, b| nan_or(f(a), f(b), min).to_bits()),
        B32::MaxNanF => two(a, b, |a, b| nan_or(f(a), f(b), max).to_bits()),
        // The first operand's sign, on the second's value.
        B32::CopysignF => two(a, b, |a, b: u32| (a & 0x8000_0000) | (b & 0x7fff_ffff)),
        B32::AddRzF => two(a, b, |a, b| sum_to_zero(f64::from(f(a)), f(b))),
        B32::SubRzF => two(a, b, |a, b| sum_to_zero(f64::from(f(a)), -f(b))),
        B32::MulRzF => two(a, b, |a, b| sum_to_zero(f64::from(f(a)) * f64::from(f(b)), 0.0)),
        B32::AddH => two(a, b, add_h),
        B32::SubH => two(a, b, sub_h),
        B32::MulH => two(a, b, mul_h),
        B32::MinH => two(a, b, |a, b| to_h(min(h(a), h(b)))),
        B32::MaxH => two(a, b, |a, b| to_h(max(h(a), h(b)))),
        B32::MinNanH => two(a, b, |a, b| to_h(nan_or(h(a), h(b), min))),
        B32::MaxNanH => two(a, b, |a, b| to_h(nan_or(h(a), h(b), max))),
        B32::MinB => two(a, b, |a, b| to_bf(min(bf(a), bf(b)))),
        B32::MaxB => two(a, b, |a, b| to_bf(max(bf(a), bf(b)))),
        B32::MinNanB => two(a, b, |a, b| to_bf(nan_or(bf(a), bf(b), min))),
        B32::MaxNanB => two(a, b, |a, b| to_bf(nan_or(bf(a), bf(b), max))),
        B32::AddH2 => two(a, b, |a, b| halves(a, b, add_h)),
        B32::SubH2 => two(a, b, |a, b| halves(a, b, sub_h)),
        B32::MulH2 => two(a, b, |a, b| halves(a, b, mul_h)),
        B32::MinH2 => two(a, b, |a, b| halves(a, b, |a, b| to_h(min(h(a), h(b))))),
        B32::MaxH2 => two(a, b, |a, b| halves(a, b, |a, b| to_h(max(h(a), h(b))))),
        B32::MinNanH2 => two(a, b, |a, b| halves(a, b, |a, b| to_h(nan_or(h(a), h(b), min)))),
        B32::MaxNanH2 => two(a, b, |a, b| halves(a, b, |a, b| to_h(nan_or(h(a), h(b), max)))),
    }
}

/// The exact sum, rounded to zero. A product of two floats is exact in twice their bits.
#[inline(never)]
#[expect(clippy::cast_possible_truncation, reason = "this rounds, and what follows corrects it")]
fn sum_to_zero(a: f64, b: f32) -> u32 {
    let b = f64::from(b);
    let sum = a + b;
    let near = sum as f32;
    if !near.is_finite() {
        let overflows = a.is_finite() && b.is_finite();
        return if overflows { f32::MAX.copysign(near).to_bits() } else { near.to_bits() };
    }
    // What the sum lost: the sum of both is exact.
    let other = sum - a;
    let lost = (a - (sum - other)) + (b - other);
    let wide = f64::from(near);
    let is_beyond =
        if wide == sum { lost != 0.0 && (lost < 0.0) != (sum < 0.0) } else { wide.abs() > sum.abs() };
    near.to_bits() - u32::from(is_beyond && near != 0.0)
}

// Sums and products of two short floats in a float of twice their bits and two more round like the exact ones.
#[inline(always)]
fn add_h(a: u32, b: u32) -> u32 {
    to_h(h(a) + h(b))
}

#[inline(always)]
fn sub_h(a: u32, b: u32) -> u32 {
    to_h(h(a) - h(b))
}

#[inline(always)]
fn mul_h(a: u32, b: u32) -> u32 {
    to_h(h(a) * h(b))
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
pub(super) fn binary64(op: B64, a: &Doubles, b: &Doubles) -> Doubles {
    match op {
        B64::Add => two(a, b, u64::wrapping_add),
        B64::Sub => two(a, b, u64::wrapping_sub),
        B64::Mul => two(a, b, u64::wrapping_mul),
        B64::MulHiU => two(a, b, |a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        B64::MulHiS => two(a, b, |a: u64, b: u64| {
            ((i128::from(a.cast_signed()) * i128::from(b.cast_signed())) >> 64) as u64
        }),
        B64::DivU => two(a, b, |a: u64, b| a.checked_div(b).unwrap_or(!0)),
        B64::DivS => {
            two(
                a,
                b,
                |a: u64, b: u64| {
                    if b == 0 { !0 } else { a.cast_signed().wrapping_div(b.cast_signed()).cast_unsigned() }
                },
            )
        }
        B64::RemU => two(a, b, |a: u64, b| a.checked_rem(b).unwrap_or(!0)),
        B64::RemS => {
            two(
                a,
                b,
                |a: u64, b: u64| {
                    if b == 0 { !0 } else { a.cast_signed().wrapping_rem(b.cast_signed()).cast_unsigned() }
                },
            )
        }
        B64::MinU => two(a, b, |a: u64, b| a.min(b)),
        B64::MinS => two(a, b, |a: u64, b: u64| a.cast_signed().min(b.cast_signed()).cast_unsigned()),
        B64::MaxU => two(a, b, |a: u64, b| a.max(b)),
        B64::MaxS => two(a, b, |a: u64, b: u64| a.cast_signed().max(b.cast_signed()).cast_unsigned()),
        B64::And => two(a, b, |a: u64, b| a & b),
        B64::Or => two(a, b, |a: u64, b| a | b),
        B64::Xor => two(a, b, |a: u64, b| a ^ b),
        B64::AddF => two(a, b, |a, b| (g(a) + g(b)).to_bits()),
        B64::SubF => two(a, b, |a, b| (g(a) - g(b)).to_bits()),
        B64::MulF => two(a, b, |a, b| (g(a) * g(b)).to_bits()),
        B64::DivF => two(a, b, |a, b| (g(a) / g(b)).to_bits()),
        B64::MinF => two(a, b, |a, b| min64(g(a), g(b)).to_bits()),
        B64::MaxF => two(a, b, |a, b| (-min64(-g(a), -g(b))).to_bits()),
        B64::CopysignF => two(a, b, |a, b: u64| (a & (1 << 63)) | (b & !(1 << 63))),
        B64::Shl | B64::ShrU | B64::ShrS => *a,
    }
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
pub(super) fn shift64(op: B64, a: &Doubles, b: &Words) -> Doubles {
    match op {
        B64::Shl => two(a, b, |a: u64, b| if b < 64 { a << b } else { 0 }),
        B64::ShrU => two(a, b, |a: u64, b| if b < 64 { a >> b } else { 0 }),
        _ => two(a, b, |a: u64, b: u32| (a.cast_signed() >> b.min(63)).cast_unsigned()),
    }
}

#[inline(always)]
fn product(op: Wide, a: u32, b: u32) -> u64 {
    match op {
        Wide::U => u64::from(a) * u64::from(b),
        Wide::S => (i64::from(a.cast_signed()) * i64::from(b.cast_signed())).cast_unsigned(),
    }
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
pub(super) fn mul_wide(op: Wide, a: &Words, b: &Words) -> Doubles {
    two(a, b, |a, b| product(op, a, b))
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
pub(super) fn mad_wide(op: Wide, a: &Words, b: &Words, c: &Doubles) -> Doubles {
    three(a, b, c, |a, b, c: u64| product(op, a, b).wrapping_add(c))
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
#[expect(clippy::cast_possible_truncation, reason = "parts of a product")]
pub(super) fn ternary32(op: T32, a: &Words, b: &Words, c: &Words) -> Words {
    let high_s = |a: u32, b: u32| ((i64::from(a.cast_signed()) * i64::from(b.cast_signed())) >> 32) as u32;
    match op {
        T32::Mad => three(a, b, c, |a: u32, b, c: u32| a.wrapping_mul(b).wrapping_add(c)),
        T32::MadHiU => three(a, b, c, |a: u32, b: u32, c: u32| {
            (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c)
        }),
        T32::MadHiS => three(a, b, c, |a, b, c: u32| high_s(a, b).wrapping_add(c)),
        T32::Mad16 => three(a, b, c, |a: u32, b, c: u32| a.wrapping_mul(b).wrapping_add(c) & 0xffff),
        T32::MadWideU16 => {
            three(a, b, c, |a: u32, b: u32, c: u32| ((a & 0xffff) * (b & 0xffff)).wrapping_add(c))
        }
        T32::MadWideS16 => {
            three(a, b, c, |a, b, c: u32| (signed16(a) * signed16(b)).cast_unsigned().wrapping_add(c))
        }
        T32::FmaF => three(a, b, c, |a, b, c| f(a).mul_add(f(b), f(c)).to_bits()),
        T32::FmaRzF => three(a, b, c, |a, b, c| sum_to_zero(f64::from(f(a)) * f64::from(f(b)), f(c))),
        T32::FmaH => three(a, b, c, fma_h),
        T32::FmaB => three(a, b, c, |a, b, c| {
            to_bf(to_odd(f64::from(bf(a)).mul_add(f64::from(bf(b)), f64::from(bf(c)))))
        }),
        T32::FmaH2 => three(a, b, c, |a: u32, b: u32, c: u32| {
            fma_h(a & 0xffff, b & 0xffff, c & 0xffff) | fma_h(a >> 16, b >> 16, c >> 16) << 16
        }),
        T32::BfeU => three(a, b, c, |a: u32, b: u32, c: u32| {
            let (at, bits) = (b & 0xff, c & 0xff);
            let shifted = a.checked_shr(at).unwrap_or(0);
            if bits >= 32 { shifted } else { shifted & ((1 << bits) - 1) }
        }),
        T32::BfeS => three(a, b, c, |a: u32, b: u32, c: u32| {
            let (at, bits) = ((b & 0xff).min(63), (c & 0xff).min(63));
            if bits == 0 {
                return 0;
            }
            // Bits beyond the register are its sign.
            let wide = i64::from(a.cast_signed()) >> at;
            ((wide << (64 - bits)) >> (64 - bits)) as u32
        }),
        T32::ShlWrap => three(a, b, c, |a, b, c: u32| funnel(a, b, 32 - (c & 31))),
        T32::ShlClamp => three(a, b, c, |a, b, c: u32| funnel(a, b, 32 - c.min(32))),
        T32::ShrWrap => three(a, b, c, |a, b, c: u32| funnel(a, b, c & 31)),
        T32::ShrClamp => three(a, b, c, |a, b, c: u32| funnel(a, b, c.min(32))),
        T32::Prmt => three(a, b, c, permute),
    }
}

/// The lower word of two, `b:a`, shifted right.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the lower word")]
fn funnel(a: u32, b: u32, right: u32) -> u32 {
    ((u64::from(b) << 32 | u64::from(a)) >> right) as u32
}

/// Each byte of the result is one of `b:a`, or that one's sign.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "single bytes")]
fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = u64::from(b) << 32 | u64::from(a);
    (0..4).fold(0, |sum, at| {
        let pick = selector >> (4 * at) & 0xf;
        let byte = (bytes >> (8 * (pick & 7))) as u8;
        let byte = if pick & 8 == 0 { byte } else { (byte.cast_signed() >> 7).cast_unsigned() };
        sum | u32::from(byte) << (8 * at)
    })
}

/// The exact product, and a sum that is rounded once, but for sums of very different size.
#[inline(always)]
fn fma_h(a: u32, b: u32, c: u32) -> u32 {
    to_h(to_odd(f64::from(h(a)).mul_add(f64::from(h(b)), f64::from(h(c)))))
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
pub(super) fn ternary64(op: T64, a: &Doubles, b: &Doubles, c: &Doubles) -> Doubles {
    match op {
        T64::Mad => three(a, b, c, |a: u64, b, c: u64| a.wrapping_mul(b).wrapping_add(c)),
        T64::FmaF => three(a, b, c, |a, b, c| g(a).mul_add(g(b), g(c)).to_bits()),
    }
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
pub(super) fn bit_insert(a: &Words, b: &Words, c: &Words, d: &Words) -> Words {
    let mut out = *b;
    for ((out, a), (at, bits)) in out.iter_mut().zip(a).zip(c.iter().zip(d)) {
        let (at, bits) = (at & 0xff, bits & 0xff);
        let mask = if bits >= 32 { !0 } else { (1_u32 << bits) - 1 };
        let mask = mask.checked_shl(at).unwrap_or(0);
        *out = (*out & !mask) | (a.checked_shl(at).unwrap_or(0) & mask);
    }
    out
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
pub(super) fn lop3(table: u8, a: &Words, b: &Words, c: &Words) -> Words {
    three(a, b, c, |a: u32, b: u32, c: u32| {
        (0..8_u32).filter(|row| table >> row & 1 == 1).fold(0, |sum, row| {
            let pick = |on: u32, word: u32| if row & on == 0 { !word } else { word };
            sum | (pick(4, a) & pick(2, b) & pick(1, c))
        })
    })
}

/// One bit for each lane.
#[inline(always)]
fn bits<T: Copy>(a: &[T; LANES], b: &[T; LANES], test: impl Fn(T, T) -> bool) -> u32 {
    let mut out = 0;
    for (lane, (a, b)) in a.iter().zip(b).enumerate() {
        out |= u32::from(test(*a, *b)) << lane;
    }
    out
}

/// The comparison, of each lane: less, equal, greater, or neither for what is no number.
#[inline(always)]
fn ordered<T: Copy, V: PartialOrd>(
    cmp: Cmp,
    a: &[T; LANES],
    b: &[T; LANES],
    value: impl Fn(T) -> V + Copy,
) -> u32 {
    let less = bits(a, b, |a, b| value(a) < value(b));
    let equal = bits(a, b, |a, b| value(a) == value(b));
    let greater = bits(a, b, |a, b| value(a) > value(b));
    match cmp {
        Cmp::Eq => equal,
        Cmp::Ne => less | greater,
        Cmp::Lt => less,
        Cmp::Le => less | equal,
        Cmp::Gt => greater,
        Cmp::Ge => greater | equal,
        Cmp::Equ => !(less | greater),
        Cmp::Neu => !equal,
        Cmp::Ltu => !(equal | greater),
        Cmp::Leu => !greater,
        Cmp::Gtu => !(equal | less),
        Cmp::Geu => !less,
        Cmp::Num => less | equal | greater,
        Cmp::Nan => !(less | equal | greater),
    }
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
#[expect(clippy::cast_possible_truncation, reason = "the register's lower half")]
pub(super) fn compare32(cmp: Cmp, kind: Type, a: &Words, b: &Words) -> u32 {
    match kind {
        Type::S32 => ordered(cmp, a, b, u32::cast_signed),
        Type::U16 => ordered(cmp, a, b, |a| a as u16),
        Type::S16 => ordered(cmp, a, b, |a| a as i16),
        Type::F16 => ordered(cmp, a, b, h),
        Type::Bf16 => ordered(cmp, a, b, bf),
        Type::F32 => ordered(cmp, a, b, f),
        _ => ordered(cmp, a, b, |a| a),
    }
}

#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
pub(super) fn compare64(cmp: Cmp, kind: Type, a: &Doubles, b: &Doubles) -> u32 {
    match kind {
        Type::S64 => ordered(cmp, a, b, u64::cast_signed),
        Type::F64 => ordered(cmp, a, b, g),
        _ => ordered(cmp, a, b, |a| a),
    }
}
