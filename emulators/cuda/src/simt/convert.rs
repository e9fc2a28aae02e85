// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Conversions between types.

use crate::ptx::instruction::{Convert, Round, Type};
use half::{bf16, f16};

/// A value on its way from one type to another.
enum Value {
    Whole(i128),
    Float(f64),
}

/// Converts one value, given and returned by its bits.
#[expect(clippy::cast_possible_truncation, reason = "the lower bits are what a type has")]
pub(super) fn convert(it: Convert, bits: u64) -> u64 {
    let value = match it.from {
        Type::U8 => Value::Whole(i128::from(bits as u8)),
        Type::U16 => Value::Whole(i128::from(bits as u16)),
        Type::U32 => Value::Whole(i128::from(bits as u32)),
        Type::U64 => Value::Whole(i128::from(bits)),
        Type::S8 => Value::Whole(i128::from(bits as i8)),
        Type::S16 => Value::Whole(i128::from(bits as i16)),
        Type::S32 => Value::Whole(i128::from(bits as i32)),
        Type::S64 => Value::Whole(i128::from(bits as i64)),
        Type::F16 => Value::Float(f16::from_bits(bits as u16).to_f64()),
        Type::Bf16 => Value::Float(bf16::from_bits(bits as u16).to_f64()),
        Type::F32 => Value::Float(f64::from(f32::from_bits(bits as u32))),
        Type::F64 => Value::Float(f64::from_bits(bits)),
    };
    let value = match value {
        Value::Float(it_is) => Value::Float(whole(it.round, it_is)),
        Value::Whole(it_is) if it.saturate && it.to.is_float() => Value::Whole(it_is.clamp(0, 1)),
        other => other,
    };
    match (value, it.to.is_float()) {
        (Value::Whole(value), false) => to_whole(it, value),
        // Casts of floats saturate, and NaN is zero.
        (Value::Float(value), false) => to_limits(it.to, value as i128).cast_unsigned() as u64,
        (Value::Whole(value), true) if it.to == Type::F32 => {
            let near = value as f32;
            let order = |candidate| compare_whole(candidate, value);
            neighbour(it.round, u64::from(near.to_bits()), f64::from(near), 31, &order)
        }
        (Value::Whole(value), true) => {
            to_float(it, value as f64, |candidate| compare_whole(candidate, value))
        }
        (Value::Float(value), true) => {
            let value = if it.saturate { saturate(value) } else { value };
            to_float(it, value, |candidate| candidate.partial_cmp(&value))
        }
    }
}

/// Rounds to a whole number, where the conversion says so.
fn whole(round: Round, value: f64) -> f64 {
    match round {
        Round::Rni => value.round_ties_even(),
        Round::Rzi => value.trunc(),
        Round::Rmi => value.floor(),
        Round::Rpi => value.ceil(),
        _ => value,
    }
}

fn saturate(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) }
}

fn limits(to: Type) -> (i128, i128) {
    let bits = u32::from(to.bytes()) * 8;
    if to.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

fn to_limits(to: Type, value: i128) -> i128 {
    let (least, most) = limits(to);
    value.clamp(least, most)
}

/// The lower bits, in a register: a number with a sign is extended to it.
#[expect(clippy::cast_possible_truncation, reason = "the lower bits are what a type has")]
fn to_whole(it: Convert, value: i128) -> u64 {
    let value = if it.saturate { to_limits(it.to, value) } else { value };
    let low = value.cast_unsigned() as u64;
    match it.to {
        Type::U8 => u64::from(low as u8),
        Type::U16 => u64::from(low as u16),
        Type::U32 => u64::from(low as u32),
        Type::S8 => i64::from(low as i8).cast_unsigned(),
        Type::S16 => i64::from(low as i16).cast_unsigned(),
        Type::S32 => i64::from(low as i32).cast_unsigned(),
        _ => low,
    }
}

/// How a float compares with a whole number that no float may be equal to.
fn compare_whole(candidate: f64, value: i128) -> Option<std::cmp::Ordering> {
    // Candidates are whole numbers here, and small enough.
    #[expect(clippy::cast_possible_truncation, reason = "so that it saturates")]
    Some((candidate as i128).cmp(&value))
}

/// The bits of the nearest float, or of its neighbour in the direction of the rounding.
fn to_float(it: Convert, value: f64, order: impl Fn(f64) -> Option<std::cmp::Ordering>) -> u64 {
    match it.to {
        Type::F16 => {
            let near = f16::from_f32(to_odd(value));
            let bits = neighbour(it.round, u64::from(near.to_bits()), near.to_f64(), 15, &order);
            if near.is_nan() { 0x7fff } else { bits }
        }
        Type::Bf16 => {
            let near = bf16::from_f32(to_odd(value));
            let bits = neighbour(it.round, u64::from(near.to_bits()), near.to_f64(), 15, &order);
            if near.is_nan() { 0x7fff } else { bits }
        }
        Type::F32 => {
            #[expect(clippy::cast_possible_truncation, reason = "this rounds, as it should")]
            let near = value as f32;
            neighbour(it.round, u64::from(near.to_bits()), f64::from(near), 31, &order)
        }
        _ => neighbour(it.round, value.to_bits(), value, 63, &order),
    }
}

/// The float beside the nearest one if that is on the wrong side.
fn neighbour(
    round: Round,
    bits: u64,
    near: f64,
    sign: u32,
    order: &impl Fn(f64) -> Option<std::cmp::Ordering>,
) -> u64 {
    use std::cmp::Ordering::{Greater, Less};
    let order = order(near);
    let negative = bits >> sign & 1 == 1;
    let down = order == Some(Greater);
    let up = order == Some(Less);
    match round {
        Round::Rz if (down && !negative) || (up && negative) => bits - 1,
        Round::Rm if down => {
            if negative {
                bits + 1
            } else {
                bits.wrapping_sub(1)
            }
        }
        Round::Rp if up => {
            if negative {
                bits.wrapping_sub(1)
            } else {
                bits + 1
            }
        }
        _ => bits,
    }
}

/// The float between which and zero there is no other, and if it is not exact, the one of both neighbours that is odd:
/// that rounds to a shorter type as the value itself does.
#[expect(clippy::cast_possible_truncation, reason = "this rounds, and what follows corrects it")]
pub(super) fn to_odd(value: f64) -> f32 {
    let near = value as f32;
    if value.is_nan() || f64::from(near) == value {
        return near;
    }
    let away = f64::from(near).abs() > value.abs();
    f32::from_bits((near.to_bits() - u32::from(away)) | 1)
}
