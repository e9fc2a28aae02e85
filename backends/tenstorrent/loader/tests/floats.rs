// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Floats on cores that have none: every instruction for floats, replaced for Wormhole, against the same on an interpreted Blackhole, whose
//! float unit the vendor's own model judges, and against the host's arithmetic.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test stops where something is not as it should be"
)]

#[path = "../../riscv/tests/support/mod.rs"]
#[expect(dead_code, reason = "the interpreter's tests use the rest")]
mod random;
mod support;

use support::forms::{FORMS, Form, run};
use support::machine::{Left, Machine, STACK};
use tenstorrent_loader::Cores;

/// How many instructions are executed for one.
const COSTS: [(&str, u64); 10] = [
    ("flw", 5),
    ("fsw", 5),
    ("fmv.s", 5),
    ("fadd.s", 71),
    ("fmul.s", 66),
    ("fmadd.s", 103),
    ("fmin.s", 38),
    ("flt.s", 41),
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

/// As the documentation has it, of numbers between -4 and 4.
#[test]
fn an_instruction_costs_what_is_documented() {
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
            // What becomes normal by rounding alone is between the two.
            if expected.is_subnormal() || expected.abs() == f32::MIN_POSITIVE {
                continue;
            }
            let found = run(&machine, word, operands).f;
            let expected = if expected.is_nan() { 0x7fc0_0000 } else { expected.to_bits() };
            assert_eq!(found, expected, "{word:#010x} of {operands:08x?}");
        }
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
