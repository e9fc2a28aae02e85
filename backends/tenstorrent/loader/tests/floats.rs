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

use support::machine::{Left, Machine, PLACE, STACK};
use tenstorrent_loader::Cores;

/// An instruction of the registers f8, f1, f2, f4 and x5, x6, and whether that is all that is to be known of it.
struct Form {
    name: &'static str,
    word: u32,
}

const fn form(name: &'static str, word: u32) -> Form {
    Form { name, word }
}

/// `rd`, `rs1`, `rs2` are 8, 1, 2.
const fn two(funct7: u32, funct3: u32) -> u32 {
    funct7 << 25 | 2 << 20 | 1 << 15 | funct3 << 12 | 8 << 7 | 0x53
}

/// The same with no second operand but a number.
const fn one(funct7: u32, number: u32, funct3: u32) -> u32 {
    funct7 << 25 | number << 20 | 1 << 15 | funct3 << 12 | 8 << 7 | 0x53
}

const fn fused(opcode: u32) -> u32 {
    4 << 27 | 2 << 20 | 1 << 15 | 8 << 7 | opcode
}

/// With an integer register for the result, or for the operand.
const fn to_integer(word: u32) -> u32 {
    word & !(31 << 7) | 5 << 7
}

const fn from_integer(word: u32) -> u32 {
    word & !(31 << 15) | 6 << 15
}

const FORMS: [Form; 29] = [
    form("fadd.s", two(0x00, 0)),
    form("fsub.s", two(0x04, 7)),
    form("fmul.s", two(0x08, 0)),
    form("fmadd.s", fused(0x43)),
    form("fmsub.s", fused(0x47)),
    form("fnmsub.s", fused(0x4b)),
    form("fnmadd.s", fused(0x4f)),
    form("fsgnj.s", two(0x10, 0)),
    form("fsgnjn.s", two(0x10, 1)),
    form("fsgnjx.s", two(0x10, 2)),
    form("fmv.s", one(0x10, 1, 0)),
    form("fneg.s", one(0x10, 1, 1)),
    form("fabs.s", one(0x10, 1, 2)),
    form("fmin.s", two(0x14, 0)),
    form("fmax.s", two(0x14, 1)),
    form("feq.s", to_integer(two(0x50, 2))),
    form("flt.s", to_integer(two(0x50, 1))),
    form("fle.s", to_integer(two(0x50, 0))),
    form("fclass.s", to_integer(one(0x70, 0, 1))),
    form("fcvt.w.s", to_integer(one(0x60, 0, 0))),
    form("fcvt.wu.s", to_integer(one(0x60, 1, 7))),
    form("fcvt.s.w", from_integer(one(0x68, 0, 0))),
    form("fcvt.s.wu", from_integer(one(0x68, 1, 7))),
    form("fmv.x.w", to_integer(one(0x70, 0, 0))),
    form("fmv.w.x", from_integer(one(0x78, 0, 0))),
    // By x7, at the ends of what an offset may be.
    form("flw", 0x8003_a407),
    form("flw, further", 0x7ff3_a407),
    form("fsw", 0x8023_a027),
    form("fsw, further", 0x7e23_afa7),
];

/// How many instructions are executed for one.
const COSTS: [(&str, u64); 10] = [
    ("flw", 5),
    ("fsw", 5),
    ("fmv.s", 5),
    ("fadd.s", 71),
    ("fmul.s", 65),
    ("fmadd.s", 103),
    ("fmin.s", 37),
    ("flt.s", 41),
    ("fcvt.w.s", 69),
    ("fcvt.s.w", 56),
];

fn run(machine: &Machine, word: u32, [x, y, z]: [u32; 3]) -> Left {
    let mut integers: [u32; 32] = std::array::from_fn(|register| 0x1000_0000 + register as u32);
    let mut floats: [u32; 32] = std::array::from_fn(|register| 0x2000_0000 + register as u32);
    (integers[0], integers[2], integers[6]) = (0, STACK, x);
    let offset = match word & 0x7f {
        0x07 => word.cast_signed() >> 20,
        _ => word.cast_signed() >> 25 << 5 | (word >> 7 & 31).cast_signed(),
    };
    integers[7] = PLACE.wrapping_sub(offset.cast_unsigned());
    (floats[1], floats[2], floats[4]) = (x, y, z);
    machine.run(integers, floats, z)
}

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
    let number = |random: &mut random::Random| (random.word() as i32 as f32 / (1 << 29) as f32).to_bits();
    for (name, documented) in COSTS {
        let word = FORMS.iter().find(|form| form.name == name).unwrap().word;
        let (machine, mut random) = (Machine::new(word, Cores::Wormhole), random::Random::new(1));
        let mut instructions = 0;
        for _ in 0..1000 {
            let operands = [(); 3].map(|()| number(&mut random));
            // Less the one that stops the core.
            instructions += run(&machine, word, operands).instructions - 1;
        }
        assert_eq!(instructions / 1000, documented, "{name}");
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
