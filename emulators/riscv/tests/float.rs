// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The float unit, against the vendor's model of it and against IEEE's arithmetic where both agree.

#[expect(dead_code, reason = "the other tests use the rest")]
mod support;

use emulator_riscv::float::*;
use proptest::prelude::*;
use support::{BLOCKS, hash, operands};

/// A million results, hashed block by block; `golden/README.md` says where the hashes are from.
#[test]
fn multiply_add_gives_what_the_vendors_model_gives() {
    let mut golden = include_str!("golden/fma-blackhole.txt").lines();
    for block in 0..BLOCKS {
        let results: Vec<u8> =
            operands(block).flat_map(|[x, y, z]| multiply_add(x, y, z).to_le_bytes()).collect();
        assert_eq!(Some(format!("{:016x}", hash(&results)).as_str()), golden.next(), "block {block}");
    }
    assert_eq!(golden.next(), None);
}

/// Single results of the same model, to begin with when a hash is wrong.
#[test]
fn multiply_add_is_neither_fused_nor_separate() {
    for [x, y, z, result] in SAMPLES {
        assert_eq!(multiply_add(x, y, z), result, "{x:#010x} * {y:#010x} + {z:#010x}");
    }
    let [x, y, z, result] = SAMPLES[0];
    let [x, y, z] = [x, y, z].map(f32::from_bits);
    assert_ne!(x.mul_add(y, z).to_bits(), result);
    assert_ne!((x * y + z).to_bits(), result);
}

const SAMPLES: [[u32; 4]; 8] = [
    [0x29a6_f05a, 0x3f80_0001, 0x9f7d_ffff, 0x29a6_f054],
    [0x4380_0008, 0xbf7f_ffff, 0x4380_0020, 0x3a45_0000],
    [0x0b58_e860, 0xf27f_ffef, 0x3da2_8871, 0xbe07_a419],
    [0xfd1e_43b9, 0x8500_4000, 0x3d50_c4a8, 0x429e_acf4],
    [0x459a_2bea, 0xf982_0000, 0x7eff_f7ff, 0xff80_0000],
    [0x1908_5ea5, 0x8e22_2b65, 0x8000_0001, 0x8000_0000],
    [0xf210_0000, 0xc602_6c59, 0xffc0_0000, 0x7fc0_0000],
    [0xa3f7_ffff, 0x8644_9ca4, 0x0080_0000, 0x0080_0000],
];

fn normal(x: u32) -> bool {
    f32::from_bits(x).is_normal()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn sums_and_products_of_normal_numbers_are_as_ieee_has_them(x: u32, y: u32) {
        prop_assume!(normal(x) && normal(y));
        let [a, b] = [x, y].map(f32::from_bits);
        for (ours, ieee) in [
            (add_floats(x, y), a + b),
            (subtract(x, y), a - b),
            (multiply(x, y), a * b),
        ] {
            if ieee.is_normal() || ieee.is_infinite() {
                prop_assert_eq!(ours, ieee.to_bits());
            } else {
                // A zero, or a denormal, which becomes a zero of its sign.
                prop_assert_eq!(ours & 0x7fff_ffff, 0);
            }
        }
    }

    #[test]
    fn comparisons_are_as_ieee_has_them(x: u32, y: u32, same: bool) {
        let y = if same { x } else { y };
        let [a, b] = [x, y].map(f32::from_bits);
        prop_assert_eq!(equal(x, y), a == b);
        prop_assert_eq!(less(x, y), a < b);
        prop_assert_eq!(less_or_equal(x, y), a <= b);
        prop_assert_eq!(is_nan(x), a.is_nan());
        if !a.is_nan() && !b.is_nan() {
            prop_assert_eq!(f32::from_bits(minimum(x, y)), a.min(b));
            prop_assert_eq!(f32::from_bits(maximum(x, y)), a.max(b));
        }
    }

    #[test]
    fn integers_go_to_floats_and_back(value: u32, exponent in 100_u32..170, fraction in 0..0x80_0000_u32) {
        let small = value & 0xff_ffff;
        prop_assert_eq!(to_unsigned(from_unsigned(small)), small);
        let negative = small.wrapping_neg();
        prop_assert_eq!(to_signed(from_signed(negative)), negative);
        let bits = exponent << 23 | fraction;
        let nearest = f64::from(f32::from_bits(bits)).round_ties_even();
        prop_assert_eq!(f64::from(to_unsigned(bits)), nearest.min(f64::from(u32::MAX)));
        let negated = f64::from(to_signed(bits | 1 << 31).cast_signed());
        prop_assert_eq!(negated, (-nearest).max(f64::from(i32::MIN)));
    }
}

#[test]
fn zeros_and_nans_of_comparisons() {
    const MINUS_ZERO: u32 = 1 << 31;
    const SIGNALLING: u32 = 0x7f80_0001;
    assert!(equal(0, MINUS_ZERO) && less_or_equal(MINUS_ZERO, 0) && !less(MINUS_ZERO, 0));
    assert_eq!((minimum(0, MINUS_ZERO), maximum(MINUS_ZERO, 0)), (MINUS_ZERO, 0));
    assert_eq!((minimum(SIGNALLING, 5), maximum(5, NAN)), (5, 5));
    assert_eq!((minimum(SIGNALLING, SIGNALLING), maximum(SIGNALLING, NAN)), (NAN, NAN));
    assert_eq!((to_signed(NAN), to_unsigned(SIGNALLING)), (0x7fff_ffff, 0xffff_ffff));
    assert_eq!((to_signed(0xff80_0000), to_unsigned(0xff80_0000)), (0x8000_0000, 0));
}

#[test]
fn each_kind_of_float_has_its_class() {
    for (bit, float) in [
        (0, 0xff80_0000),
        (1, 0xbf80_0000),
        (2, 0x8000_0001),
        (3, 0x8000_0000),
        (4, 0),
        (5, 0x007f_ffff),
        (6, 0x0080_0000),
        (7, 0x7f80_0000),
        (8, 0x7f80_0001),
        (9, 0xffc0_0000),
    ] {
        assert_eq!(classify(float), 1 << bit, "{float:#010x}");
    }
}
