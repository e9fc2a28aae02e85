// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Element types: IREE's number, and the names in numpy, the buffer protocol and DLPack.

use hal_sys as sys;
use std::ffi::CStr;

/// The type of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    /// The name in numpy, or in its extension `ml_dtypes`.
    pub(crate) name: &'static str,
    /// IREE's number.
    pub(crate) iree: sys::iree_hal_element_type_t,
    /// The size of one in bytes.
    pub(crate) size: usize,
    /// The buffer protocol's format, if it has one.
    pub(crate) format: Option<&'static CStr>,
    /// DLPack's code and bits.
    pub(crate) dlpack: (u8, u8),
    /// The names in modules' declarations.
    declared: &'static [&'static str],
}

/// DLPack's kinds of numbers.
const INT: u8 = 0;
const UINT: u8 = 1;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;
const COMPLEX: u8 = 5;
const BOOL: u8 = 6;

macro_rules! elements {
    ($($name:literal: $iree:ident, $size:literal, $format:expr, $dlpack:expr, $declared:expr;)*) => {
        &[$(Element {
            name: $name,
            iree: sys::$iree,
            size: $size,
            format: $format,
            dlpack: $dlpack,
            declared: &$declared,
        }),*]
    };
}

/// Every supported element type. Integers without a sign in the module count as signed.
const ELEMENTS: &[Element] = elements! {
    "float32": IREE_HAL_ELEMENT_TYPE_FLOAT_32, 4, Some(c"f"), (FLOAT, 32), ["f32"];
    "float64": IREE_HAL_ELEMENT_TYPE_FLOAT_64, 8, Some(c"d"), (FLOAT, 64), ["f64"];
    "float16": IREE_HAL_ELEMENT_TYPE_FLOAT_16, 2, Some(c"e"), (FLOAT, 16), ["f16"];
    "bfloat16": IREE_HAL_ELEMENT_TYPE_BFLOAT_16, 2, None, (BFLOAT, 16), ["bf16"];
    "int8": IREE_HAL_ELEMENT_TYPE_SINT_8, 1, Some(c"b"), (INT, 8), ["i8", "si8"];
    "int16": IREE_HAL_ELEMENT_TYPE_SINT_16, 2, Some(c"h"), (INT, 16), ["i16", "si16"];
    "int32": IREE_HAL_ELEMENT_TYPE_SINT_32, 4, Some(c"i"), (INT, 32), ["i32", "si32"];
    "int64": IREE_HAL_ELEMENT_TYPE_SINT_64, 8, Some(c"q"), (INT, 64), ["i64", "si64"];
    "uint8": IREE_HAL_ELEMENT_TYPE_UINT_8, 1, Some(c"B"), (UINT, 8), ["ui8"];
    "uint16": IREE_HAL_ELEMENT_TYPE_UINT_16, 2, Some(c"H"), (UINT, 16), ["ui16"];
    "uint32": IREE_HAL_ELEMENT_TYPE_UINT_32, 4, Some(c"I"), (UINT, 32), ["ui32"];
    "uint64": IREE_HAL_ELEMENT_TYPE_UINT_64, 8, Some(c"Q"), (UINT, 64), ["ui64"];
    "bool": IREE_HAL_ELEMENT_TYPE_BOOL_8, 1, Some(c"?"), (BOOL, 8), ["i1"];
    "complex64": IREE_HAL_ELEMENT_TYPE_COMPLEX_FLOAT_64, 8, Some(c"Zf"), (COMPLEX, 64), ["complex<f32>"];
    "complex128": IREE_HAL_ELEMENT_TYPE_COMPLEX_FLOAT_128, 16, Some(c"Zd"), (COMPLEX, 128), ["complex<f64>"];
};

/// Integers without a sign in the module, as the signed ones.
const SIGNLESS: [(sys::iree_hal_element_type_t, &str); 4] = [
    (sys::IREE_HAL_ELEMENT_TYPE_INT_8, "int8"),
    (sys::IREE_HAL_ELEMENT_TYPE_INT_16, "int16"),
    (sys::IREE_HAL_ELEMENT_TYPE_INT_32, "int32"),
    (sys::IREE_HAL_ELEMENT_TYPE_INT_64, "int64"),
];

impl Element {
    /// The names of all, for a message.
    pub(crate) fn names() -> String {
        ELEMENTS.iter().map(|element| element.name).collect::<Vec<_>>().join(", ")
    }

    /// The type with numpy's name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        ELEMENTS.iter().copied().find(|element| element.name == name)
    }

    /// The type with IREE's number.
    pub(crate) fn of(iree: sys::iree_hal_element_type_t) -> Option<Self> {
        let signless = SIGNLESS.iter().find(|(number, _)| *number == iree);
        signless
            .and_then(|(_, name)| Self::named(name))
            .or_else(|| ELEMENTS.iter().copied().find(|element| element.iree == iree))
    }

    /// The type of a DLPack description.
    pub(crate) fn from_dlpack(code: u8, bits: u8) -> Option<Self> {
        ELEMENTS.iter().copied().find(|element| element.dlpack == (code, bits))
    }

    /// The type of a declaration such as `tensor<4xf32>`.
    pub(crate) fn declared(word: &str) -> Option<Self> {
        ELEMENTS.iter().copied().find(|element| element.declared.contains(&word))
    }

    /// The type of a format of the buffer protocol: a native letter, with its size if C leaves that open.
    pub(crate) fn from_format(format: &[u8], size: usize) -> Option<Self> {
        let letters = match format {
            [b'@' | b'=', rest @ ..] => rest,
            [b'<', rest @ ..] if cfg!(target_endian = "little") => rest,
            rest => rest,
        };
        let sized = |prefix: &str| Self::named(&format!("{prefix}{}", size * 8));
        match letters {
            b"?" => Self::named("bool"),
            b"b" | b"h" | b"i" | b"l" | b"q" | b"n" => sized("int"),
            b"B" | b"H" | b"I" | b"L" | b"Q" | b"N" => sized("uint"),
            b"e" | b"f" | b"d" => sized("float"),
            b"Zf" | b"Zd" => sized("complex"),
            _ => None,
        }
    }
}
