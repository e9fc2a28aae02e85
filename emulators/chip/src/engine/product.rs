// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The arithmetic of a matrix product of floats, to the bit.
//!
//! An element of the result is `Dst + sum of sixteen products`. The unit does this without a float format in between:
//!
//! 1. A multiplier takes five bits of the mantissa of `SrcA` and seven of `SrcB`. Which ones is the *fidelity phase*;
//!    four phases make a whole product.
//! 2. The products of each group of eight are shifted to the largest exponent of the group, each rounded to the nearest
//!    integer with ties away from zero, and added.
//! 3. Both sums and the element of `Dst` are shifted to the largest of their three exponents, rounded again, and added.
//! 4. The sum is rounded to the format of `Dst`.
//!
//! Denormals are zeros, and exponents of only ones are ordinary ones: there are no infinities among the operands, only
//! in results.
//!
//! # How it is computed here
//!
//! Processors of the host have no vectors of shifts by different distances, unless they are new, but all have vectors of
//! floats. So a product is one of floats, which are exact at these sizes; the shift is a multiplication by a power of
//! two; and the rounding is the addition of a number so large that a float has no bits behind the point. That addition
//! rounds ties to even, so what is rounded is first made larger by less than half of its last bit: then there are no ties.
//!
//! This needs exponents that fit into a float's. If those of a block's operands are too far apart, the same is done with
//! floats of twice the size ([`Lane`]), which are never too small.

use std::ops::{Add, Mul, Sub};

/// The columns of a row of `SrcA`, `SrcB` and `Dst`.
pub(super) const COLUMNS: usize = 16;
/// The same.
pub(super) const ROW_ELEMENTS: u32 = 16;
/// The rows of `SrcB` and `Dst` in a product.
pub(super) const ROWS: usize = 8;
/// How many products are added at once.
const GROUP: usize = 8;

/// A row of the registers.
pub(super) type Row = [u32; COLUMNS];

/// The format of elements of `Dst` in a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accumulator {
    /// 32 bits.
    Fp32,
    /// 16 bits, eight of them for the exponent.
    Bf16,
    /// 16 bits, five of them for the exponent.
    Fp16,
}

/// The exponents of operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exponent {
    /// As of a float.
    EightBits,
    /// As of a half.
    FiveBits,
}

/// A product's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProductKind {
    /// The exponents of `SrcA` and `SrcB`.
    pub(super) exponent: Exponent,
    /// The format of `Dst`.
    pub(super) accumulator: Accumulator,
    /// 0 to 3.
    pub(super) phase: u32,
}

impl ProductKind {
    /// What is added to the sum of two operands' exponents to get their product's.
    const fn bias(self) -> i32 {
        let format = match (self.exponent, self.accumulator) {
            (Exponent::EightBits, _) => -127,
            // From two exponents with a bias of 15 to one with a bias of 127.
            (Exponent::FiveBits, Accumulator::Fp32) => 127 - 30,
            (Exponent::FiveBits, _) => -15,
        };
        let a = if self.phase & 1 == 0 { 0 } else { 5 };
        let b = if self.phase & 2 == 0 { 0 } else { 7 };
        format - a - b
    }
}

/// A float of the host.
trait Lane: Copy + Default + PartialOrd + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> {
    /// One and a half times the number from which on there are no bits behind the point.
    const INTEGERS: Self;
    /// Two to an exponent that a normal number has.
    fn power(exponent: i32) -> Self;
    /// The exponent of a power of two.
    fn exponent(self) -> i32;
    /// A little more than one divided by a power of two, or anything if it is zero.
    fn inverse(self) -> Self;
    /// From a number with few bits.
    fn integer(value: f32) -> Self;
    /// To a number with few bits.
    fn float(self) -> f32;
}

impl Lane for f32 {
    const INTEGERS: Self = 12_582_912.0;

    #[inline(always)]
    fn power(exponent: i32) -> Self {
        Self::from_bits((127 + exponent).cast_unsigned() << 23)
    }

    #[inline(always)]
    fn exponent(self) -> i32 {
        (self.to_bits() >> 23).cast_signed() - 127
    }

    #[inline(always)]
    fn inverse(self) -> Self {
        Self::from_bits(((254 << 23) - self.to_bits()) | 1 << 10)
    }

    #[inline(always)]
    fn integer(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn float(self) -> f32 {
        self
    }
}

impl Lane for f64 {
    const INTEGERS: Self = 6_755_399_441_055_744.0;

    #[inline(always)]
    fn power(exponent: i32) -> Self {
        Self::from_bits(u64::from((1023 + exponent).cast_unsigned()) << 52)
    }

    #[inline(always)]
    fn exponent(self) -> i32 {
        ((self.to_bits() >> 52) as u32).cast_signed() - 1023
    }

    #[inline(always)]
    fn inverse(self) -> Self {
        Self::from_bits(((2046 << 52) - self.to_bits()) | 1 << 39)
    }

    #[inline(always)]
    fn integer(value: f32) -> Self {
        value.into()
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the caller's numbers have few bits")]
    fn float(self) -> f32 {
        self as f32
    }
}

/// An operand's exponent, as both registers hold it: zero if the operand is.
#[inline(always)]
const fn exponent(value: u32) -> i32 {
    (value >> 23 & 0xff).cast_signed()
}

/// The smallest and largest exponent of operands that are not zero.
#[derive(Clone, Copy)]
struct Range {
    least: i32,
    most: i32,
}

impl Range {
    fn of(rows: &[Row]) -> Self {
        let (mut least, mut most) = ([256; COLUMNS], [0; COLUMNS]);
        for row in rows {
            for ((least, most), &value) in least.iter_mut().zip(&mut most).zip(row) {
                let exponent = exponent(value);
                *most = exponent.max(*most);
                *least = if exponent == 0 { *least } else { exponent.min(*least) };
            }
        }
        let (mut all, columns) = (Self { least: 256, most: 0 }, least.into_iter().zip(most));
        for (least, most) in columns {
            all = Self { least: all.least.min(least), most: all.most.max(most) };
        }
        all
    }

    /// How far apart they are.
    fn width(self) -> i32 {
        (self.most - self.least).max(0)
    }
}

/// Operands as floats: mantissas with their exponents and signs, and the exponents alone, relative to the largest.
struct Operands<T, const N: usize> {
    values: [[T; COLUMNS]; N],
    powers: [[T; COLUMNS]; N],
}

impl<T: Lane, const N: usize> Operands<T, N> {
    /// `mantissa` picks the bits of a mantissa that a phase multiplies.
    #[inline(always)]
    fn new(rows: &[Row; N], range: Range, mantissa: impl Fn(u32) -> u32) -> Self {
        let zeros = [[T::default(); COLUMNS]; N];
        let mut operands = Self { values: zeros, powers: zeros };
        for ((row, values), powers) in rows.iter().zip(&mut operands.values).zip(&mut operands.powers) {
            for ((&value, place), power) in row.iter().zip(values).zip(powers) {
                let exponent = exponent(value);
                let bits = mantissa(value >> 13 & 0x3ff | 0x400).cast_signed();
                #[expect(clippy::cast_precision_loss, reason = "seven bits")]
                let magnitude = bits as f32;
                let signed = f32::from_bits(magnitude.to_bits() | value & 1 << 31);
                let scale = if exponent == 0 { T::default() } else { T::power(exponent - range.most) };
                *place = T::integer(signed) * scale;
                *power = scale;
            }
        }
        operands
    }
}

/// The sums of both groups of products for a row of the result, and their exponents.
struct Sums {
    sums: [[f32; COLUMNS]; 2],
    exponents: [[i32; COLUMNS]; 2],
}

/// Multiplies a row of `SrcB` by `SrcA`.
///
/// `bias` is what an exponent of zero stands for, and `of_nothing` the exponent of a group of zeros.
#[inline(always)]
fn multiply<T: Lane>(
    a: &Operands<T, COLUMNS>,
    (values, powers): (&[T; COLUMNS], &[T; COLUMNS]),
    bias: i32,
    of_nothing: i32,
) -> Sums {
    let mut result = Sums { sums: [[0.0; COLUMNS]; 2], exponents: [[0; COLUMNS]; 2] };
    let groups = values.chunks_exact(GROUP).zip(powers.chunks_exact(GROUP));
    let of_a = a.values.chunks_exact(GROUP).zip(a.powers.chunks_exact(GROUP));
    let places = result.sums.iter_mut().zip(&mut result.exponents);
    for (((values, powers), (of_a, powers_of_a)), (sums, exponents)) in groups.zip(of_a).zip(places) {
        let mut largest = [T::default(); COLUMNS];
        for (power, row) in powers.iter().zip(powers_of_a) {
            for (largest, other) in largest.iter_mut().zip(row) {
                let power = *power * *other;
                *largest = if power > *largest { power } else { *largest };
            }
        }
        let mut inverses = [T::default(); COLUMNS];
        for (inverse, largest) in inverses.iter_mut().zip(&largest) {
            *inverse = largest.inverse();
        }
        let mut totals = [T::INTEGERS; COLUMNS];
        for (value, row) in values.iter().zip(of_a) {
            for ((total, inverse), other) in totals.iter_mut().zip(&inverses).zip(row) {
                *total = *total + *value * *other * *inverse;
            }
        }
        for (((total, largest), sum), exponent) in totals.iter().zip(&largest).zip(sums).zip(exponents) {
            let nothing = *largest == T::default();
            *exponent = if nothing { of_nothing } else { largest.exponent() + bias };
            *sum = if *exponent > 0 { (*total - T::INTEGERS).float() } else { 0.0 };
            *exponent = (*exponent).max(0);
        }
    }
    result
}

/// Two to the power of less than nothing.
#[inline(always)]
fn shift(distance: i32) -> f64 {
    f64::power(-distance)
}

/// The nearest integer of a number without a tie.
#[inline(always)]
fn nearest(value: f64) -> f64 {
    value + f64::INTEGERS - f64::INTEGERS
}

/// How much more than an integer it must be to have no ties, whatever power of two it is divided by.
const NO_TIE: f64 = 0.25;
/// The unit of a sum's last bit in formats of 16 bits.
const UNIT: f64 = 8192.0;
/// The bits of a number of that large a unit.
const UNIT_BITS: f64 = 1.0 / UNIT;

/// Adds sums to an element of `Dst`, given and returned as the bits of a float.
#[inline(always)]
fn accumulate(kind: ProductKind, old: u32, sums: [f32; 2], exponents: [i32; 2]) -> u32 {
    let wide = kind.accumulator == Accumulator::Fp32;
    let old_exponent = exponent(old);
    let [first, second] = exponents;
    let largest = first.max(second).max(old_exponent);
    let aligned = |sum: f32, exponent: i32| {
        // Rounded up where it lies between: ties go to what is larger.
        let sum = nearest((f64::from(sum) * UNIT + NO_TIE) * shift(largest - exponent));
        if wide { sum } else { nearest((sum + NO_TIE) * UNIT_BITS) * UNIT }
    };
    let [first, second] = [aligned(sums[0], first), aligned(sums[1], second)];
    let magnitude = if old_exponent == 0 { 0 } else { old & 0x7f_ffff | 0x80_0000 };
    let magnitude = nearest((f64::from(magnitude.cast_signed()) + NO_TIE) * shift(largest - old_exponent));
    let magnitude = if wide { magnitude } else { nearest((magnitude + NO_TIE) * UNIT_BITS) * UNIT };
    let sum = if old >> 31 == 0 { magnitude } else { -magnitude } + first + second;
    // Larger by less than half of the last of its thirty bits.
    #[expect(clippy::cast_possible_truncation, reason = "this is the rounding")]
    let rounded = ((sum * (1.0 + 1.0 / 2_147_483_648.0)) as f32).to_bits();
    let rounded = match kind.accumulator {
        Accumulator::Fp32 => rounded,
        Accumulator::Bf16 => rounded.wrapping_add(1 << 15) & 0xffff_0000,
        Accumulator::Fp16 => rounded.wrapping_add(1 << 12) & 0xffff_e000,
    };
    let (sign, exponent) = (rounded & 1 << 31, largest + exponent(rounded) - 127 - 23);
    let (limit, most) = match (kind.accumulator, kind.exponent) {
        (Accumulator::Fp16, _) => (32, 0x0fff_e000),
        _ => (255, 0x7f80_0000),
    };
    let value = if exponent >= limit { most } else { exponent.cast_unsigned() << 23 | rounded & 0x7f_ffff };
    if sum == 0.0 || exponent <= 0 || largest <= 0 { 0 } else { sign | value }
}

/// `dst += b * a`: rows of `Dst` as the bits of floats, rows of `SrcB`, and `SrcA`.
pub(super) fn multiply_accumulate(
    kind: ProductKind,
    dst: &mut [Row; ROWS],
    b: &[Row; ROWS],
    a: &[Row; COLUMNS],
) {
    let ranges = (Range::of(a), Range::of(b));
    // The product of two powers must not be less than a float's smallest, nor a mantissa's product with it.
    if ranges.0.width() + ranges.1.width() <= 100 {
        with_lanes::<f32>(kind, dst, b, a, ranges);
    } else {
        with_lanes::<f64>(kind, dst, b, a, ranges);
    }
}

#[inline(always)]
fn with_lanes<T: Lane>(
    kind: ProductKind,
    dst: &mut [Row; ROWS],
    b: &[Row; ROWS],
    a: &[Row; COLUMNS],
    (range_a, range_b): (Range, Range),
) {
    let low_a = kind.phase & 1 != 0;
    let low_b = kind.phase & 2 != 0;
    let a = Operands::<T, COLUMNS>::new(a, range_a, |bits| if low_a { bits >> 1 & 31 } else { bits >> 6 });
    let b = Operands::<T, ROWS>::new(b, range_b, |bits| if low_b { (bits & 15) << 3 } else { bits >> 4 });
    let bias = kind.bias() + range_a.most + range_b.most;
    let of_nothing = kind.bias();
    for (dst, row) in dst.iter_mut().zip(b.values.iter().zip(&b.powers)) {
        let Sums { sums, exponents } = multiply(&a, row, bias, of_nothing);
        let each = sums[0].iter().zip(&sums[1]).zip(exponents[0].iter().zip(&exponents[1]));
        match kind.accumulator {
            Accumulator::Fp32 => {
                for (dst, ((&s, &t), (&e, &f))) in dst.iter_mut().zip(each) {
                    let kind = ProductKind { accumulator: Accumulator::Fp32, ..kind };
                    *dst = accumulate(kind, *dst, [s, t], [e, f]);
                }
            }
            accumulator => {
                for (dst, ((&s, &t), (&e, &f))) in dst.iter_mut().zip(each) {
                    *dst = accumulate(ProductKind { accumulator, ..kind }, *dst, [s, t], [e, f]);
                }
            }
        }
    }
}

/// `dst += b * a` of integers, of which the multipliers take some bits of the magnitude in each phase: rows of `Dst`,
/// `SrcB` and `SrcA` as integers.
pub(super) fn multiply_accumulate_integers(
    dst: &mut [[i32; COLUMNS]; ROWS],
    b: &[[i32; COLUMNS]; ROWS],
    a: &[[i32; COLUMNS]; COLUMNS],
) {
    for (dst, b) in dst.iter_mut().zip(b) {
        let mut sums = [0; COLUMNS];
        for (b, a) in b.iter().zip(a) {
            for (sum, a) in sums.iter_mut().zip(a) {
                *sum += a * b;
            }
        }
        for (dst, sum) in dst.iter_mut().zip(sums) {
            // Its magnitude has 31 bits.
            *dst = dst.saturating_add(sum).max(-i32::MAX);
        }
    }
}
