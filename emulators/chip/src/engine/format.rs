// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Formats of elements, as configuration registers name them, and what is done with their bits on the way to and from
//! memory (`Packers/FormatConversion.md`, `UNPACR_Regular.md`).

use super::error::EngineError;

/// A format that is modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum DataFormat {
    /// Floats of 32 bits.
    Fp32 = 0,
    /// Floats of 16 bits, five of them for the exponent.
    Fp16 = 1,
    /// Floats of 19 bits, eight of them for the exponent.
    Tf32 = 4,
    /// Floats of 16 bits, eight of them for the exponent.
    Bf16 = 5,
    /// Integers of 32 bits: a sign and a magnitude.
    Int32 = 8,
    /// Integers of eight bits: a sign and a magnitude, or a magnitude alone.
    Int8 = 14,
}

impl DataFormat {
    /// By the number that a register holds.
    pub(super) fn new(what: &'static str, number: u32) -> Result<Self, EngineError> {
        Ok(match number {
            0 => Self::Fp32,
            1 => Self::Fp16,
            4 => Self::Tf32,
            5 => Self::Bf16,
            8 => Self::Int32,
            14 => Self::Int8,
            value => return Err(EngineError::Value { what, value }),
        })
    }

    /// How many bytes an element has in memory.
    pub(super) const fn bytes(self) -> u32 {
        match self {
            Self::Fp32 | Self::Tf32 | Self::Int32 => 4,
            Self::Fp16 | Self::Bf16 => 2,
            Self::Int8 => 1,
        }
    }
}

/// A half, as `SrcA` and `SrcB` hold it.
const fn half(value: u32) -> u32 {
    (value & 0x8000) << 16 | (value & 0x7fff) << 13
}

/// How an unpacker brings elements to `SrcA` or `SrcB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unpacking {
    /// To 19 bits, by leaving away the rest.
    Fp32ToTf32,
    /// To 16 bits, by leaving away the rest; denormals become zeros.
    Fp32ToBf16,
    /// To a half: what is too large becomes the largest, and what is too small becomes zero.
    Fp32ToFp16,
    /// As it is.
    Bf16,
    /// As it is.
    Fp16,
    /// A magnitude behind an exponent of 16.
    Int8 {
        /// Without a sign.
        unsigned: bool,
    },
}

impl Unpacking {
    /// From one format to another, or to the register's own of it.
    pub(super) fn new(from: DataFormat, to: DataFormat, unsigned: bool) -> Result<Self, EngineError> {
        Ok(match (from, to) {
            (DataFormat::Fp32, DataFormat::Tf32) => Self::Fp32ToTf32,
            (DataFormat::Fp32, DataFormat::Bf16) => Self::Fp32ToBf16,
            (DataFormat::Fp32, DataFormat::Fp16) => Self::Fp32ToFp16,
            (DataFormat::Bf16, DataFormat::Bf16) => Self::Bf16,
            (DataFormat::Fp16, DataFormat::Fp16) => Self::Fp16,
            (DataFormat::Int8, DataFormat::Int8) => Self::Int8 { unsigned },
            (from, to) => return Err(EngineError::Conversion { from: from as u8, to: to as u8 }),
        })
    }

    /// Converts some elements, as far as there is room.
    pub(super) fn convert(self, bytes: &[u8], values: &mut [u32]) {
        match self {
            Self::Fp32ToTf32 => each(bytes, values, |value| u32::from_le_bytes(value) & 0xffff_e000),
            Self::Fp32ToBf16 => each(bytes, values, |value| {
                let value = u32::from_le_bytes(value);
                value & if value & 0x7f80_0000 == 0 { 0x8000_0000 } else { 0xffff_0000 }
            }),
            Self::Fp32ToFp16 => each(bytes, values, |value| fp32_to_half(u32::from_le_bytes(value))),
            Self::Bf16 => each(bytes, values, |value| u32::from(u16::from_le_bytes(value)) << 16),
            Self::Fp16 => each(bytes, values, |value| half(u16::from_le_bytes(value).into())),
            Self::Int8 { unsigned } => each(bytes, values, |[value]| int8(value, unsigned)),
        }
    }
}

/// Converts elements one by one.
fn each<const N: usize>(bytes: &[u8], values: &mut [u32], convert: impl Fn([u8; N]) -> u32) {
    let (elements, _) = bytes.as_chunks::<N>();
    for (value, &element) in values.iter_mut().zip(elements) {
        *value = convert(element);
    }
}

fn fp32_to_half(value: u32) -> u32 {
    let sign = value & 0x8000_0000;
    match (value >> 23 & 0xff).checked_sub(112) {
        None => sign,
        Some(exponent @ 0..=31) => sign | exponent << 23 | value & 0x7f_e000,
        Some(_) => sign | 0x0fff_e000,
    }
}

fn int8(value: u8, unsigned: bool) -> u32 {
    let (sign, magnitude) =
        if unsigned { (0, value.into()) } else { (u32::from(value >> 7), u32::from(value & 0x7f)) };
    let exponent = if magnitude == 0 { 0 } else { 16 << 10 };
    half(sign << 15 | exponent | magnitude)
}

/// How a packer brings elements from `Dst` to memory. Denormals become zeros, and NaNs infinities, where formats are
/// not of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// 32 bits as they are: floats or integers.
    Word,
    /// Floats of 32 bits, rounded to the nearest; ties go away from zero.
    Fp32ToBf16,
    /// Floats of 32 bits, by leaving away the rest.
    Fp32ToFp16,
    /// Integers of 32 bits, limited to eight.
    Int32ToInt8 {
        /// Without a sign.
        unsigned: bool,
    },
    /// 16 bits.
    Bf16,
    /// 16 bits.
    Bf16ToFp32,
    /// 16 bits.
    Fp16,
    /// 16 bits.
    Fp16ToFp32,
    /// 16 bits.
    Fp16ToBf16,
}

impl Packing {
    /// From `Dst`, of which rows of 32 bits are read or of 16, by way of a format to another.
    pub(super) fn new(
        wide: bool,
        from: DataFormat,
        to: DataFormat,
        unsigned: bool,
    ) -> Result<Self, EngineError> {
        Ok(match (wide, from, to) {
            (true, DataFormat::Fp32, DataFormat::Fp32) | (true, DataFormat::Int32, DataFormat::Int32) => {
                Self::Word
            }
            (true, DataFormat::Bf16, DataFormat::Bf16) => Self::Fp32ToBf16,
            (true, DataFormat::Fp32, DataFormat::Fp16) => Self::Fp32ToFp16,
            (true, DataFormat::Int8, DataFormat::Int8) => Self::Int32ToInt8 { unsigned },
            (false, DataFormat::Bf16, DataFormat::Bf16) => Self::Bf16,
            (false, DataFormat::Bf16, DataFormat::Fp32) => Self::Bf16ToFp32,
            (false, DataFormat::Fp16, DataFormat::Fp16) => Self::Fp16,
            (false, DataFormat::Fp16, DataFormat::Fp32) => Self::Fp16ToFp32,
            (false, DataFormat::Fp16, DataFormat::Bf16) => Self::Fp16ToBf16,
            (_, from, to) => return Err(EngineError::Conversion { from: from as u8, to: to as u8 }),
        })
    }

    /// True if rows of 32 bits are read.
    pub(super) const fn is_wide(self) -> bool {
        matches!(self, Self::Word | Self::Fp32ToBf16 | Self::Fp32ToFp16 | Self::Int32ToInt8 { .. })
    }

    /// Converts an element, of which `Dst` held the bits in the usual order.
    #[inline(always)]
    pub(super) fn convert(self, value: u32) -> u32 {
        match self {
            Self::Word => value,
            Self::Fp32ToBf16 => {
                let value = if value & 0x7fff_ffff > 0x7f80_0000 { value & 0xff80_0000 } else { value };
                flushed(value.wrapping_add(0x8000) >> 16, 0x80)
            }
            Self::Fp32ToFp16 => {
                let (sign, mantissa) = (value >> 16 & 0x8000, value >> 13 & 0x3ff);
                match (value >> 23 & 0xff).checked_sub(112) {
                    None => sign,
                    Some(exponent @ 0..=31) => sign | exponent << 10 | mantissa,
                    Some(_) => sign | 0x7fff,
                }
            }
            Self::Int32ToInt8 { unsigned: true } if value >> 31 == 1 => 0,
            Self::Int32ToInt8 { unsigned: true } => value.min(255),
            Self::Int32ToInt8 { unsigned: false } => value >> 24 & 0x80 | (value & 0x7fff_ffff).min(127),
            Self::Bf16 => bf16(value),
            Self::Bf16ToFp32 => bf16(value) << 16,
            Self::Fp16 => flushed(value, 0x400),
            Self::Fp16ToFp32 => match flushed(value, 0x400) {
                0 => 0,
                value => (value & 0x8000) << 16 | ((value & 0x7fff) + (112 << 10)) << 13,
            },
            Self::Fp16ToBf16 => match flushed(value, 0x400) {
                0 => 0,
                value => value & 0x8000 | ((value >> 10 & 0x1f) + 112) << 7 | value >> 3 & 0x7f,
            },
        }
    }
}

/// A float of 16 bits, or zero if its magnitude is less than the first normal one.
const fn flushed(value: u32, normal: u32) -> u32 {
    if value & 0x7fff < normal { 0 } else { value }
}

const fn bf16(value: u32) -> u32 {
    if value & 0x7fff > 0x7f80 { value & 0xff80 } else { flushed(value, 0x80) }
}
