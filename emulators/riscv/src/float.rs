// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The floats of a Blackhole core, on bit patterns.
//!
//! Addition, multiplication and their combination use one unit, which is not IEEE's:
//! - denormal operands count as zeros of their sign, and a result that is denormal after rounding becomes one;
//! - every NaN that it makes is `0x7fc00000`;
//! - rounding is to nearest even, always;
//! - in `x * y + z` the product is neither rounded nor exact: it has three bits more than a float, and the bits
//!   below become one sticky bit, unless all of the operand is below;
//! - a product that overflows by itself is an infinity, one that underflows by itself is a zero, whatever `z`
//!   is.
//!
//! Comparison, minimum, maximum and conversion are exact, and see denormals.
//!
//! The vendor describes the unit bit by bit; `tests/float.rs` has results of the vendor's own model and simulator.

/// The NaN that the unit makes.
pub const NAN: u32 = 0x7fc0_0000;

const SIGN: u32 = 0x8000_0000;
const INFINITY: u32 = 0x7f80_0000;
const ONE: u32 = 0x3f80_0000;
/// How many bits the unit keeps below a float's own.
const GUARD: i32 = 3;
/// The position of a normal significand's leading bit within the unit.
const LEADING: i32 = 23 + GUARD;

/// An operand within the unit.
#[derive(Clone, Copy)]
struct Unpacked {
    sign: u32,
    exponent: i32,
    /// With its leading one; zero for zeros and denormals.
    significand: u32,
}

impl Unpacked {
    #[inline(always)]
    fn new(bits: u32) -> Self {
        let exponent = ((bits >> 23) & 0xff).cast_signed();
        let significand = if exponent == 0 { 0 } else { bits & 0x7f_ffff | 0x80_0000 };
        Self { sign: bits & SIGN, exponent, significand }
    }

    fn is_special(self) -> bool {
        self.exponent == 0xff
    }

    fn is_nan(self) -> bool {
        self.is_special() && self.significand != 0x80_0000
    }

    fn is_infinite(self) -> bool {
        self.is_special() && self.significand == 0x80_0000
    }
}

/// `x * y + z`, as the unit does it.
#[inline]
pub fn multiply_add(x: u32, y: u32, z: u32) -> u32 {
    let (a, b, addend) = (Unpacked::new(x), Unpacked::new(y), Unpacked::new(z));
    let sign = a.sign ^ b.sign;
    let exponent = a.exponent + b.exponent - 127;
    if a.is_special() || b.is_special() || addend.is_special() || exponent >= 0xff {
        return special(a, b, addend, sign);
    }
    let exact = u64::from(a.significand) * u64::from(b.significand);
    if exact == 0 || exponent < 0 {
        // No product, or one too small to be: the addend alone, and of two zeros the negative only if both are.
        return if addend.significand == 0 { addend.sign & sign } else { z };
    }
    #[expect(clippy::cast_possible_truncation, reason = "48 bits, of which 20 go")]
    let product = (exact >> (23 - GUARD)) as u32 | u32::from(exact & ((1 << (23 - GUARD)) - 1) != 0);
    add(sign, exponent, product, addend)
}

/// An infinity or a NaN, if an operand is one or the product overflows by itself.
#[cold]
fn special(a: Unpacked, b: Unpacked, addend: Unpacked, sign: u32) -> u32 {
    let zero_times_infinity = |one: Unpacked, other: Unpacked| one.is_infinite() && other.significand == 0;
    let product_of_infinity = a.is_special() || b.is_special();
    if a.is_nan()
        || b.is_nan()
        || addend.is_nan()
        || zero_times_infinity(a, b)
        || zero_times_infinity(b, a)
        || (addend.is_infinite() && product_of_infinity && addend.sign != sign)
    {
        NAN
    } else if addend.is_infinite() {
        addend.sign | INFINITY
    } else {
        sign | INFINITY
    }
}

/// Shifts right. Lost bits become one sticky bit, unless nothing else is left.
#[inline(always)]
fn align(value: u32, distance: i32) -> u32 {
    let distance = distance.cast_unsigned();
    let Some(kept) = value.checked_shr(distance) else { return 0 };
    if kept == 0 { 0 } else { kept | u32::from(kept << distance != value) }
}

/// The product, with its guard bits, and the addend.
#[inline(always)]
fn add(product_sign: u32, product_exponent: i32, product: u32, addend: Unpacked) -> u32 {
    let mut exponent = product_exponent.max(addend.exponent);
    let product = align(product, exponent - product_exponent);
    let other = align(addend.significand << GUARD, exponent - addend.exponent);
    let sign = if product >= other { product_sign } else { addend.sign };
    let sum = if product_sign == addend.sign { product + other } else { product.abs_diff(other) };
    if sum == 0 {
        return product_sign & addend.sign;
    }
    let mut shift = 31 - sum.leading_zeros().cast_signed() - LEADING;
    exponent += shift;
    if exponent >= 0xff {
        return sign | INFINITY;
    }
    if exponent <= 0 {
        // One place lower, so that rounding can still make the smallest normal number of it.
        shift += 1;
        exponent = 0;
    }
    let significand = if shift <= 0 { sum << -shift } else { align(sum, shift) };
    let fraction = (significand >> GUARD) & 0x7f_ffff;
    let magnitude = (exponent.cast_unsigned() << 23) + fraction;
    let up = (significand & 7) + (magnitude & 1) > 4;
    let rounded = magnitude + u32::from(up);
    if rounded >> 23 == 0 { sign } else { sign | rounded }
}

/// `x + y`.
#[inline]
pub fn add_floats(x: u32, y: u32) -> u32 {
    multiply_add(x, ONE, y)
}

/// `x - y`.
#[inline]
pub fn subtract(x: u32, y: u32) -> u32 {
    multiply_add(x, ONE, y ^ SIGN)
}

/// `x * y`.
#[inline]
pub fn multiply(x: u32, y: u32) -> u32 {
    // The added zero has the product's sign, so that it never changes that of a zero product.
    multiply_add(x, y, (x ^ y) & SIGN)
}

/// True for a NaN.
#[inline]
pub fn is_nan(x: u32) -> bool {
    x & !SIGN > INFINITY
}

/// A number that orders floats that are not NaN, with both zeros the same.
fn order(x: u32) -> i32 {
    let magnitude = (x & !SIGN).cast_signed();
    if x & SIGN == 0 { magnitude } else { -magnitude }
}

/// True if both are numbers and equal.
#[inline]
pub fn equal(x: u32, y: u32) -> bool {
    !is_nan(x) && !is_nan(y) && order(x) == order(y)
}

/// True if both are numbers and the first is less.
#[inline]
pub fn less(x: u32, y: u32) -> bool {
    !is_nan(x) && !is_nan(y) && order(x) < order(y)
}

/// True if both are numbers and the first is not greater.
#[inline]
pub fn less_or_equal(x: u32, y: u32) -> bool {
    !is_nan(x) && !is_nan(y) && order(x) <= order(y)
}

/// The lesser; of a number and a NaN the number; of two zeros the negative.
#[inline]
pub fn minimum(x: u32, y: u32) -> u32 {
    match (is_nan(x), is_nan(y)) {
        (true, true) => NAN,
        (true, false) => y,
        (false, true) => x,
        _ if order(x) == order(y) => x | y,
        _ if order(x) < order(y) => x,
        _ => y,
    }
}

/// The greater; of a number and a NaN the number; of two zeros the positive.
#[inline]
pub fn maximum(x: u32, y: u32) -> u32 {
    match (is_nan(x), is_nan(y)) {
        (true, true) => NAN,
        (true, false) => y,
        (false, true) => x,
        _ if order(x) == order(y) => x & y,
        _ if order(x) > order(y) => x,
        _ => y,
    }
}

/// One bit for what a float is, as `fclass.s` numbers them.
pub fn classify(x: u32) -> u32 {
    let negative = x & SIGN != 0;
    let pick = |below: u32, above: u32| 1 << if negative { below } else { above };
    match ((x >> 23) & 0xff, x & 0x7f_ffff) {
        (0xff, 0) => pick(0, 7),
        (0xff, fraction) => 1 << if fraction & 0x40_0000 == 0 { 8 } else { 9 },
        (0, 0) => pick(3, 4),
        (0, _) => pick(2, 5),
        _ => pick(1, 6),
    }
}

/// The nearest integer, of two the even one; a number beyond all integers stays as it is.
fn round(x: u32) -> f64 {
    f64::from(f32::from_bits(x)).round_ties_even()
}

/// The nearest signed integer; the nearest end for what is outside; the greatest for NaN.
#[inline]
pub fn to_signed(x: u32) -> u32 {
    if is_nan(x) {
        return i32::MAX.cast_unsigned();
    }
    #[expect(clippy::cast_possible_truncation, reason = "a cast saturates, which is what is asked for")]
    let value = round(x) as i32;
    value.cast_unsigned()
}

/// The nearest unsigned integer; the nearest end for what is outside; the greatest for NaN.
#[inline]
pub fn to_unsigned(x: u32) -> u32 {
    if is_nan(x) {
        return u32::MAX;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast saturates")]
    let value = round(x) as u32;
    value
}

/// The float nearest to a signed integer.
#[inline]
pub fn from_signed(x: u32) -> u32 {
    #[expect(clippy::cast_precision_loss, reason = "rounding is what is asked for")]
    let value = x.cast_signed() as f32;
    value.to_bits()
}

/// The float nearest to an unsigned integer.
#[inline]
pub fn from_unsigned(x: u32) -> u32 {
    #[expect(clippy::cast_precision_loss, reason = "rounding is what is asked for")]
    let value = x as f32;
    value.to_bits()
}
