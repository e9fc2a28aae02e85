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
//! Processors of the host have no vectors of shifts by different distances, unless they are new, but all have vectors
//! of floats. So a product is one of floats, which are exact at these sizes; the shift is a multiplication by a power
//! of two; and the rounding is the addition of a number so large that a float has no bits behind the point. That
//! addition rounds ties to even, so what is rounded is first made larger by less than half of its last bit, or a tie is
//! recognised and put right.
//!
//! This needs exponents that fit into a float's. If those of a block's operands are too far apart, their products are
//! made of floats of twice the size ([`Lane`]), which are never too small.

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
    /// See [`Model`](super::model::Model::minus_one).
    pub(super) minus_one: i32,
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
    /// Two to the difference of exponents, of which the first has its place in the bits of a float of 32. Zero, if that
    /// is zero.
    fn power(exponent: u32, most: u32) -> Self;
    /// The exponent of a power of two.
    fn exponent(self) -> f32;
    /// A little more than one divided by a power of two, or anything if it is zero.
    fn inverse(self) -> Self;
    /// From a number with few bits.
    fn integer(value: f32) -> Self;
    /// To a number with few bits.
    fn float(self) -> f32;
}

#[expect(clippy::cast_precision_loss, reason = "exponents have few bits")]
impl Lane for f32 {
    const INTEGERS: Self = 12_582_912.0;

    #[inline(always)]
    fn power(exponent: u32, most: u32) -> Self {
        let bits = exponent.wrapping_add(127 << 23).wrapping_sub(most << 23);
        Self::from_bits(if exponent == 0 { 0 } else { bits })
    }

    #[inline(always)]
    fn exponent(self) -> f32 {
        ((self.to_bits() >> 23).cast_signed() - 127) as f32
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

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "exponents have few bits")]
impl Lane for f64 {
    const INTEGERS: Self = 6_755_399_441_055_744.0;

    #[inline(always)]
    fn power(exponent: u32, most: u32) -> Self {
        let bits = u64::from(1023 + (exponent >> 23) - most) << 52;
        Self::from_bits(if exponent == 0 { 0 } else { bits })
    }

    #[inline(always)]
    fn exponent(self) -> f32 {
        ((self.to_bits() >> 52).cast_signed() - 1023) as f32
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
    fn float(self) -> f32 {
        self as f32
    }
}

/// The bits of an element's exponent, in their place.
const EXPONENT: u32 = 0xff << 23;
const SIGN: u32 = 1 << 31;

/// The smallest and largest exponent of operands that are not zero.
#[derive(Clone, Copy, Debug)]
struct Range {
    least: u32,
    most: u32,
}

impl Range {
    fn of(rows: &[Row]) -> Self {
        // Zeros wrap around to what is never the smallest.
        let (mut least, mut most) = ([u8::MAX; COLUMNS], [0; COLUMNS]);
        for row in rows {
            for ((least, most), &value) in least.iter_mut().zip(&mut most).zip(row) {
                let exponent = (value >> 23 & 0xff) as u8;
                *most = exponent.max(*most);
                *least = exponent.wrapping_sub(1).min(*least);
            }
        }
        let least = least.into_iter().min().unwrap_or(u8::MAX);
        let most = most.into_iter().max().unwrap_or(0);
        Self { least: u32::from(least) + 1, most: most.into() }
    }

    /// How far apart they are.
    fn width(self) -> u32 {
        self.most.saturating_sub(self.least)
    }
}

/// The bits of an element that a multiplier takes as its mantissa, in a phase.
#[derive(Clone, Copy)]
struct Mantissa {
    shift: u32,
    mask: u32,
    /// The bit in front of those in the element.
    implied: u32,
}

impl Mantissa {
    /// Of `SrcA`: five of eleven bits, of which the last is never taken.
    const fn of_a(phase: u32) -> Self {
        match phase & 1 {
            0 => Self { shift: 19, mask: 0xf, implied: 0x10 },
            _ => Self { shift: 14, mask: 0x1f, implied: 0 },
        }
    }

    /// Of `SrcB`: seven of eleven bits, or the other four.
    const fn of_b(phase: u32) -> Self {
        match phase & 2 {
            0 => Self { shift: 17, mask: 0x3f, implied: 0x40 },
            _ => Self { shift: 10, mask: 0x78, implied: 0 },
        }
    }
}

/// Operands as floats: mantissas with their signs and exponents, and the exponents alone, relative to the largest.
#[derive(Clone, Debug)]
struct Operands<T, const N: usize> {
    values: [[T; COLUMNS]; N],
    powers: [[T; COLUMNS]; N],
    range: Range,
}

impl<T: Lane, const N: usize> Operands<T, N> {
    fn empty() -> Self {
        let zeros = [[T::default(); COLUMNS]; N];
        Self { values: zeros, powers: zeros, range: Range { least: 0, most: 0 } }
    }

    /// Takes rows, of whose elements some bits are significant.
    #[inline(always)]
    fn fill(&mut self, rows: &[Row; N], mantissa: Mantissa, significant: u32) {
        self.range = Range::of(rows);
        for ((row, values), powers) in rows.iter().zip(&mut self.values).zip(&mut self.powers) {
            for ((&value, place), power) in row.iter().zip(values).zip(powers) {
                let bits = (value & significant) >> mantissa.shift & mantissa.mask | mantissa.implied;
                #[expect(clippy::cast_precision_loss, reason = "seven bits")]
                let magnitude = bits.cast_signed() as f32;
                let signed = f32::from_bits(magnitude.to_bits() | value & SIGN);
                *power = T::power(value & EXPONENT, self.range.most);
                *place = T::integer(signed) * *power;
            }
        }
    }
}

/// The sums of both groups of products for a row of the result, and their exponents: zeros, if they are too small.
struct Sums {
    sums: [[f32; COLUMNS]; 2],
    exponents: [[f32; COLUMNS]; 2],
}

/// Multiplies a row of `SrcB` by `SrcA`.
///
/// `bias` is what the largest powers stand for, and `of_nothing` the exponent of a group of zeros.
#[inline(always)]
fn multiply<T: Lane>(
    a: &Operands<T, COLUMNS>,
    (values, powers): (&[T; COLUMNS], &[T; COLUMNS]),
    bias: f32,
    of_nothing: f32,
) -> Sums {
    let mut result = Sums { sums: [[0.0; COLUMNS]; 2], exponents: [[0.0; COLUMNS]; 2] };
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
            let found = if *largest == T::default() { of_nothing } else { largest.exponent() + bias };
            *exponent = if found > 0.0 { found } else { 0.0 };
            *sum = if found > 0.0 { (*total - T::INTEGERS).float() } else { 0.0 };
        }
    }
    result
}

/// Two to the power of a number of eight bits, less its bias; of less than one, it is very small.
#[inline(always)]
fn power(biased: f32) -> f32 {
    // A float without bits behind the point has its integer in the lowest bits.
    let biased = if biased > 1.0 { biased } else { 1.0 };
    f32::from_bits((biased + 8_388_608.0).to_bits() << 23)
}

/// The nearest integer of a number of less than 2^22; ties go to what is larger.
#[inline(always)]
fn nearest(value: f32) -> f32 {
    let rounded = value + f32::INTEGERS - f32::INTEGERS;
    if value - rounded == 0.5 { rounded + 1.0 } else { rounded }
}

/// The same of a number of less than 2^23 that is not negative.
#[inline(always)]
fn nearest_magnitude(value: f32) -> f32 {
    let rounded = value + 8_388_608.0 - 8_388_608.0;
    if value - rounded == 0.5 { rounded + 1.0 } else { rounded }
}

/// The exponent of what a sum's last bit stands for in front of that of an element's.
const SUM_BITS: f32 = 13.0;
/// The last bit of elements in formats of 16 bits, and its inverse.
const UNIT: f32 = 8192.0;
const PER_UNIT: f32 = 1.0 / UNIT;

/// A sum shifted to a larger exponent, by what is in front of it: an integer.
#[inline(always)]
fn aligned_sum<const WIDE: bool>(sum: f32, distance: f32) -> f32 {
    let power = power(127.0 + SUM_BITS - distance);
    let shifted = sum * power;
    let rounded = if power < 1.0 { nearest(shifted) } else { shifted };
    if WIDE { rounded } else { nearest(rounded * PER_UNIT) * UNIT }
}

/// An element's mantissa shifted to a larger exponent.
#[inline(always)]
fn aligned_mantissa<const WIDE: bool>(mantissa: f32, distance: f32) -> f32 {
    let power = power(127.0 - distance);
    let shifted = mantissa * power;
    let rounded = if power < 1.0 { nearest_magnitude(shifted) } else { shifted };
    if WIDE { rounded } else { nearest(rounded * PER_UNIT) * UNIT }
}

/// Adds sums to an element of `Dst`, given and returned as the bits of a float.
#[inline(always)]
#[expect(clippy::cast_precision_loss, reason = "24 bits")]
fn accumulate<const WIDE: bool>(format: Rounding, old: u32, sums: [f32; 2], exponents: [f32; 2]) -> u32 {
    let old_exponent = (old >> 23 & 0xff).cast_signed() as f32;
    let mantissa = if old & EXPONENT == 0 { 0 } else { old & 0x7f_ffff | 0x80_0000 }.cast_signed() as f32;
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let largest = larger(larger(exponents[0], exponents[1]), old_exponent);
    let first = aligned_sum::<WIDE>(sums[0], largest - exponents[0]);
    let second = aligned_sum::<WIDE>(sums[1], largest - exponents[1]);
    let mantissa = aligned_mantissa::<WIDE>(mantissa, largest - old_exponent);
    let mantissa = f32::from_bits(mantissa.to_bits() | old & SIGN);
    let sum = f64::from(mantissa) + f64::from(first) + f64::from(second);
    // Larger by less than half of the last of its thirty bits.
    #[expect(clippy::cast_possible_truncation, reason = "this is the rounding")]
    let rounded = ((sum * (1.0 + 1.0 / 2_147_483_648.0)) as f32).to_bits();
    let rounded = if WIDE { rounded } else { rounded.wrapping_add(format.half) & format.mask };
    let largest = ((largest + 8_388_608.0).to_bits() & 0xffff).cast_signed();
    let minus_one = if sum == -1.0 { format.minus_one } else { 0 };
    let exponent = largest + (rounded >> 23 & 0xff).cast_signed() - 127 - 23 + minus_one;
    let value = exponent.cast_unsigned() << 23 | rounded & 0x7f_ffff;
    let value = if exponent >= format.limit { format.most } else { value };
    if exponent <= 0 || rounded & !SIGN == 0 { 0 } else { rounded & SIGN | value }
}

/// How a sum becomes an element of `Dst`.
#[derive(Clone, Copy)]
struct Rounding {
    /// Half of the last bit, and the bits from the last on.
    half: u32,
    mask: u32,
    /// The first exponent that is too large, and what stands for such a number.
    limit: i32,
    most: u32,
    /// What is added to the exponent of a sum of minus one.
    minus_one: i32,
}

impl Rounding {
    const fn new(kind: ProductKind) -> Self {
        let minus_one = kind.minus_one;
        match kind.accumulator {
            Accumulator::Fp32 => Self { half: 0, mask: !0, limit: 255, most: 0x7f80_0000, minus_one },
            Accumulator::Bf16 => {
                Self { half: 1 << 15, mask: !0xffff, limit: 255, most: 0x7f80_0000, minus_one }
            }
            Accumulator::Fp16 => {
                Self { half: 1 << 12, mask: !0x1fff, limit: 32, most: 0x0fff_e000, minus_one }
            }
        }
    }
}

/// Rows of a source that take part in a product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand<'a, const N: usize> {
    pub(super) rows: &'a [Row; N],
    pub(super) key: Key,
}

/// What tells rows of a source, as operands, from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// The number of the last change of their bank.
    pub(super) version: u64,
    /// The first of them.
    pub(super) row: u32,
    /// The bits of their elements that take part.
    pub(super) significant: u32,
    pub(super) phase: u32,
}

/// Operands as they were made last, for the next product of the same.
#[derive(Clone, Debug)]
struct Kept<const N: usize> {
    key: Option<Key>,
    operands: Operands<f32, N>,
}

impl<const N: usize> Kept<N> {
    fn new() -> Self {
        Self { key: None, operands: Operands::empty() }
    }

    fn get(&mut self, operand: Operand<'_, N>, mantissa: Mantissa) -> &Operands<f32, N> {
        if self.key != Some(operand.key) {
            self.key = Some(operand.key);
            self.operands.fill(operand.rows, mantissa, operand.key.significant);
        }
        &self.operands
    }
}

/// The multipliers. A block of `SrcA` is multiplied by several of `SrcB`, one behind the other, and each of these again
/// a little later: what both are as floats is kept.
#[derive(Clone, Debug)]
pub(super) struct Multipliers {
    a: Box<Kept<COLUMNS>>,
    b: Box<[Kept<ROWS>; 8]>,
}

impl Multipliers {
    pub(super) fn new() -> Self {
        Self { a: Box::new(Kept::new()), b: Box::new([(); 8].map(|()| Kept::new())) }
    }

    /// `dst += b * a`: rows of `Dst` as the bits of floats, rows of `SrcB`, and `SrcA`.
    pub(super) fn multiply_accumulate(
        &mut self,
        kind: ProductKind,
        dst: &mut [Row; ROWS],
        b: Operand<'_, ROWS>,
        a: Operand<'_, COLUMNS>,
    ) {
        let wide = kind.accumulator == Accumulator::Fp32;
        let (mantissa_a, mantissa_b) = (Mantissa::of_a(kind.phase), Mantissa::of_b(kind.phase));
        #[expect(clippy::indexing_slicing, reason = "a bank has 64 rows")]
        let kept_b = self.b[b.key.row as usize / ROWS % 8].get(b, mantissa_b);
        let kept_a = self.a.get(a, mantissa_a);
        // The product of two powers must not be less than a float's smallest, nor a mantissa's product with it.
        if kept_a.range.width() + kept_b.range.width() <= 100 {
            let with = if wide { with_lanes::<f32, true> } else { with_lanes::<f32, false> };
            return with(kind, dst, kept_b, kept_a);
        }
        let (mut of_a, mut of_b) = (Operands::<f64, COLUMNS>::empty(), Operands::<f64, ROWS>::empty());
        of_a.fill(a.rows, mantissa_a, a.key.significant);
        of_b.fill(b.rows, mantissa_b, b.key.significant);
        let with = if wide { with_lanes::<f64, true> } else { with_lanes::<f64, false> };
        with(kind, dst, &of_b, &of_a);
    }
}

#[expect(clippy::cast_precision_loss, reason = "exponents have few bits")]
fn with_lanes<T: Lane, const WIDE: bool>(
    kind: ProductKind,
    dst: &mut [Row; ROWS],
    b: &Operands<T, ROWS>,
    a: &Operands<T, COLUMNS>,
) {
    let of_nothing = kind.bias() as f32;
    let bias = of_nothing + (a.range.most + b.range.most) as f32;
    let format = Rounding::new(kind);
    for (dst, row) in dst.iter_mut().zip(b.values.iter().zip(&b.powers)) {
        let Sums { sums: [first, second], exponents: [e, f] } = multiply(a, row, bias, of_nothing);
        let each = first.iter().zip(&second).zip(e.iter().zip(&f));
        for (dst, ((&first, &second), (&e, &f))) in dst.iter_mut().zip(each) {
            *dst = accumulate::<WIDE>(format, *dst, [first, second], [e, f]);
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
