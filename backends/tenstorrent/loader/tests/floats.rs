// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Floats on cores that have none: every instruction for floats, replaced for Wormhole, against the same on an
//! interpreted Blackhole, whose float unit the vendor's own model judges, and against the host's arithmetic.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test stops where something is not as it should be"
)]

#[path = "../../../../emulators/riscv/tests/support/mod.rs"]
#[expect(dead_code, reason = "the interpreter's tests use the rest")]
mod random;
mod support;

use hal_tenstorrent_loader::Cores;
use support::forms::{FORMS, Form, run};
use support::machine::{Left, Machine, STACK};

/// How many instructions are executed for one.
const COSTS: [(&str, u64); 13] = [
    ("flw", 5),
    ("fsw", 5),
    ("fmv.s", 5),
    ("fneg.s", 8),
    ("fadd.s", 71),
    ("fmul.s", 66),
    ("fmadd.s", 103),
    ("fmin.s", 38),
    ("flt.s", 41),
    ("fle.s", 42),
    ("feq.s", 43),
    ("fcvt.w.s", 69),
    ("fcvt.s.w", 56),
];

#[test]
fn every_instruction_gives_the_bits_that_a_blackhole_gives() {
    for Form { name, word } in FORMS {
        // A store's lower half of the offset is where a result would be.
        let (ours, theirs) = (Machine::new(word, Cores::Wormhole), Machine::executing(word));
        for operands in (0..5).flat_map(|block| random::operands(block).take(2000)) {
            let (found, expected) = (run(&ours, word, operands), run(&theirs, word, operands));
            let same = Left { instructions: found.instructions, ..expected };
            assert_eq!(found, same, "{name} of {operands:08x?}");
        }
    }
}

/// Blackhole's cores take no rounding mode of an instruction's own, not even their own one.
#[test]
fn arithmetic_that_names_its_rounding_gives_the_same() {
    for Form { name, word } in FORMS.iter().take(7) {
        let named = word & !(7 << 12);
        let (ours, theirs) = (Machine::new(named, Cores::Blackhole), Machine::executing(*word));
        for operands in random::operands(1).take(500) {
            let (found, expected) = (run(&ours, named, operands), run(&theirs, *word, operands));
            let same = Left { instructions: found.instructions, ..expected };
            assert_eq!(found, same, "{name} of {operands:08x?}");
        }
    }
}

/// As the documentation has it, of numbers between -4 and 4.
#[test]
fn instruction_costs_what_is_documented() {
    for (name, documented) in COSTS {
        let form = FORMS.iter().find(|form| form.name == name).unwrap();
        assert_eq!(form.cost(), documented, "{name}");
    }
}

fn flushed(x: u32) -> u32 {
    if f32::from_bits(x).is_subnormal() { x & 1 << 31 } else { x }
}

/// Sums and products of numbers that are not denormal are IEEE's.
#[test]
fn sums_and_products_are_as_the_host_has_them() {
    type Operation = fn(f32, f32) -> f32;
    let operations: [(u32, Operation); 3] =
        [(FORMS[0].word, |x, y| x + y), (FORMS[1].word, |x, y| x - y), (FORMS[2].word, |x, y| x * y)];
    for (word, operation) in operations {
        let machine = Machine::new(word, Cores::Wormhole);
        for operands in random::operands(7).take(20_000) {
            let [x, y] = [operands[0], operands[1]].map(|x| f32::from_bits(flushed(x)));
            let expected = operation(x, y);
            // A result that becomes normal by rounding alone is between the two.
            if expected.is_subnormal() || expected.abs() == f32::MIN_POSITIVE {
                continue;
            }
            let found = run(&machine, word, operands).f;
            let expected = if expected.is_nan() { 0x7fc0_0000 } else { expected.to_bits() };
            assert_eq!(found, expected, "{word:#010x} of {operands:08x?}");
        }
    }
}

/// One bit for what a float is, by what the host calls it.
fn kind(x: f32) -> u32 {
    use std::num::FpCategory::{Infinite, Nan, Normal, Subnormal, Zero};
    let positive = match x.classify() {
        Nan => return if x.to_bits() & 0x40_0000 == 0 { 1 << 8 } else { 1 << 9 },
        Zero => 4,
        Subnormal => 5,
        Normal => 6,
        Infinite => 7,
    };
    1 << if x.is_sign_negative() { 7 - positive } else { positive }
}

/// The least of these, or the greatest; a number rather than none; a zero's sign counts.
fn extreme(x: f32, y: f32, greater: bool) -> u32 {
    match (x.is_nan(), y.is_nan()) {
        (true, true) => 0x7fc0_0000,
        (true, false) => y.to_bits(),
        (false, true) => x.to_bits(),
        // The host's total order is that of numbers, with the zeros apart.
        _ if x.total_cmp(&y).is_lt() == greater => y.to_bits(),
        _ => x.to_bits(),
    }
}

/// Exact operations, and conversions to the nearest, see denormals, and give the host's results.
#[test]
#[expect(clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a cast is what is asked for")]
fn comparisons_signs_kinds_and_conversions_are_as_the_host_has_them() {
    type Operation = fn(f32, f32) -> u32;
    let operations: [(&str, Operation); 17] = [
        ("feq.s", |x, y| (x == y).into()),
        ("flt.s", |x, y| (x < y).into()),
        ("fle.s", |x, y| (x <= y).into()),
        ("fmin.s", |x, y| extreme(x, y, false)),
        ("fmax.s", |x, y| extreme(x, y, true)),
        ("fclass.s", |x, _| kind(x)),
        ("fsgnj.s", |x, y| x.copysign(y).to_bits()),
        ("fsgnjn.s", |x, y| x.copysign(-y).to_bits()),
        ("fsgnjx.s", |x, y| x.to_bits() ^ y.to_bits() & 1 << 31),
        ("fmv.s", |x, _| x.to_bits()),
        ("fneg.s", |x, _| (-x).to_bits()),
        ("fabs.s", |x, _| x.abs().to_bits()),
        (
            "fcvt.w.s",
            |x, _| if x.is_nan() { 0x7fff_ffff } else { (x.round_ties_even() as i32).cast_unsigned() },
        ),
        ("fcvt.wu.s", |x, _| if x.is_nan() { u32::MAX } else { x.round_ties_even() as u32 }),
        ("fcvt.s.w", |x, _| (x.to_bits().cast_signed() as f32).to_bits()),
        ("fcvt.s.wu", |x, _| (x.to_bits() as f32).to_bits()),
        ("fmv.x.w", |x, _| x.to_bits()),
    ];
    for (name, operation) in operations {
        let word = FORMS.iter().find(|form| form.name == name).unwrap().word;
        let machine = Machine::new(word, Cores::Wormhole);
        let to_integer = word & 1 << 31 != 0 && !matches!(word >> 27, 0x1a | 0x1e);
        for (number, [x, y, _]) in random::operands(11).take(5000).enumerate() {
            // Also neighbours, and what is the same.
            let y = [y, x, x ^ 1 << 31, x.wrapping_add(1)][number % 4];
            let left = run(&machine, word, [x, y, 0]);
            let found = if to_integer { left.x } else { left.f };
            assert_eq!(
                found,
                operation(f32::from_bits(x), f32::from_bits(y)),
                "{name} of {x:08x} and {y:08x}"
            );
        }
    }
}

/// Two factors, what is added, and what the vendor's model (`fma_model_bh` of tenstorrent/ttsim at 56694c8) makes of
/// it.
const ENDS: [[u32; 4]; 14] = [
    [0x0080_0001, 0x3f00_0001, 0x8080_0000, 0x8000_0000],
    [0x0080_0000, 0x3f7f_ffff, 0x8080_0000, 0x8000_0000],
    [0x00ff_ffff, 0x3f00_0000, 0x0000_0000, 0x0080_0000],
    [0x00ff_ffff, 0x3f00_0000, 0x8000_0001, 0x0080_0000],
    [0x0080_0000, 0x3f7f_ffff, 0x0000_0000, 0x0080_0000],
    [0x7f00_0000, 0x4000_0000, 0xff7f_ffff, 0x7f80_0000],
    [0x7f00_0000, 0x3fff_ffff, 0xff7f_ffff, 0x0000_0000],
    [0x7f00_0000, 0x4000_0000, 0xff80_0000, 0xff80_0000],
    [0x0080_0000, 0x3e80_0000, 0x0080_0001, 0x0080_0001],
    [0x0080_0000, 0x3f00_0000, 0x8080_0001, 0x8000_0000],
    [0x3f80_0001, 0x3f80_0001, 0xbf80_0002, 0x3280_0000],
    [0x3f80_0001, 0x3f80_0001, 0xbf80_0003, 0xb3e0_0000],
    [0x4b80_0000, 0x3f80_0000, 0xb380_0000, 0x4b80_0000],
    [0x4b80_0000, 0x3f80_0000, 0xbf00_0001, 0x4b7f_ffff],
];

/// Products and sums by the vendor's model of the unit, where sums lose their leading bits and become
/// denormal, and where a product alone is too large or too small.
#[test]
fn products_and_sums_at_the_ends_are_as_the_vendors_model_has_them() {
    let machine = Machine::new(FORMS[3].word, Cores::Wormhole);
    for [x, y, z, result] in ENDS {
        assert_eq!(run(&machine, FORMS[3].word, [x, y, z]).f, result, "{x:08x} * {y:08x} + {z:08x}");
    }
}

/// Each register, also where result and operands are the same.
#[test]
fn every_float_register_is_one() {
    for register in 0..32_u32 {
        let other = (register + 1) % 32;
        let word = register << 7 | register << 15 | other << 20 | 0x53;
        let machine = Machine::new(word, Cores::Wormhole);
        let mut floats = [0; 32];
        (floats[register as usize], floats[other as usize]) = (1.5_f32.to_bits(), 2.25_f32.to_bits());
        let mut integers = [0; 32];
        integers[2] = STACK;
        assert_eq!(machine.run(integers, floats, 0).f, 3.75_f32.to_bits(), "f{register}");
    }
}
