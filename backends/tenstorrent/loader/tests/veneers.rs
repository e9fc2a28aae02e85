// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Instructions that the cores lack, done by veneers on the interpreter, against the host's arithmetic.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test stops where something is not as it should be"
)]

mod support;

use hal_tenstorrent_loader::{Cores, ElfError, LoadError, Target, load};
use proptest::prelude::*;
use support::Parts;
use support::machine::{BASE, STACK};

const NAN: u32 = 0x7fc0_0000;
const SIGN: u32 = 1 << 31;

/// Executes one instruction, replaced as it is loaded, on the cores of both chips, with these first operands: the
/// results are the same.
struct Machine {
    machines: [support::machine::Machine; 2],
    word: u32,
}

impl Machine {
    fn new(word: u32) -> Self {
        let machines = [Cores::Blackhole, Cores::Wormhole];
        Self { machines: machines.map(|cores| support::machine::Machine::new(word, cores)), word }
    }

    /// The operands are in the registers that the instruction names.
    fn run(&self, x: u32, y: u32) -> u32 {
        let [rs1, rs2] = [15, 20].map(|at| (self.word >> at & 31) as usize);
        let funct5 = self.word >> 27;
        let (to_integer, from_integer) = (funct5 == 0x18, funct5 == 0x1a);
        let mut integers = std::array::from_fn(|register| 0x1000_0000 + register as u32);
        let mut floats = std::array::from_fn(|register| 0x2000_0000 + register as u32);
        (integers[0], integers[2]) = (0, STACK);
        if from_integer {
            if rs1 != 2 {
                integers[rs1] = x;
            }
        } else {
            floats[rs1] = x;
            if funct5 == 3 {
                floats[rs2] = y;
            }
        }
        let [one, other] = [0, 1].map(|index: usize| {
            let left = self.machines[index].run(integers, floats, 0);
            if to_integer { left.x } else { left.f }
        });
        assert_eq!(one, other, "on Blackhole and on Wormhole");
        one
    }
}

/// `fdiv.s f3, f1, f2`
const DIVIDE: u32 = 0x1820_f1d3;
/// `fsqrt.s f3, f1`
const ROOT: u32 = 0x5800_f1d3;

/// `fcvt.w.s x5, f1` and its like.
const fn to_integer(unsigned: u32, mode: u32, rd: u32) -> u32 {
    0xc000_8053 | unsigned << 20 | mode << 12 | rd << 7
}

/// `fcvt.s.w f3, x5` and its like.
const fn from_integer(unsigned: u32, mode: u32, rs1: u32) -> u32 {
    0xd000_01d3 | unsigned << 20 | mode << 12 | rs1 << 15
}

fn flushed(x: u32) -> u32 {
    if f32::from_bits(x).is_subnormal() { x & SIGN } else { x }
}

/// The result by IEEE, with denormals as zeros before and after, and one NaN.
fn expected(operation: impl Fn(f32, f32) -> f32, x: u32, y: u32) -> u32 {
    let result = operation(f32::from_bits(flushed(x)), f32::from_bits(flushed(y)));
    if result.is_nan() { NAN } else { flushed(result.to_bits()) }
}

const EDGES: [u32; 14] = [
    0,
    1,
    0x007f_ffff,
    0x0080_0000,
    0x0080_0001,
    0x00ff_ffff,
    0x3f7f_ffff,
    0x3f80_0000,
    0x3f80_0001,
    0x4b80_0000,
    0x7f7f_ffff,
    0x7f80_0000,
    0x7f80_0001,
    NAN,
];

#[test]
fn quotients_at_edges() {
    let machine = Machine::new(DIVIDE);
    let both = EDGES.iter().flat_map(|&edge| [edge, edge | SIGN]);
    for x in both.clone() {
        for y in both.clone() {
            assert_eq!(machine.run(x, y), expected(|x, y| x / y, x, y), "{x:#010x} / {y:#010x}");
        }
    }
    // The largest quotient below the smallest normal number: it is rounded up to that.
    assert_eq!(machine.run(0x00ff_ffff, 0x4000_0000), 0x0080_0000);
}

#[test]
fn quotients_at_random() {
    let machine = Machine::new(DIVIDE);
    proptest!(ProptestConfig::with_cases(20_000), |(x: u32, y: u32, near in 0..4_u32)| {
        // Also pairs whose quotient is near to the smallest or the largest.
        let y = match near {
            0 => y & 0x807f_ffff | (x >> 23 & 0xff).wrapping_add(126).min(254) << 23,
            1 => y & 0x807f_ffff | (x >> 23 & 0xff).saturating_sub(127) << 23,
            _ => y,
        };
        prop_assert_eq!(machine.run(x, y), expected(|x, y| x / y, x, y), "{:#010x} / {:#010x}", x, y);
    });
}

#[test]
fn square_roots_at_edges_and_at_random() {
    let machine = Machine::new(ROOT);
    for x in EDGES.iter().flat_map(|&edge| [edge, edge | SIGN]) {
        assert_eq!(machine.run(x, 0), expected(|x, _| x.sqrt(), x, 0), "sqrt {x:#010x}");
    }
    proptest!(ProptestConfig::with_cases(20_000), |(x: u32, square in 1_u32..5000, positive: bool)| {
        let exact = ((square * square) as f32).to_bits();
        for x in [x & !(u32::from(positive) << 31), exact, exact + 1, exact - 1] {
            prop_assert_eq!(machine.run(x, 0), expected(|x, _| x.sqrt(), x, 0), "sqrt {:#010x}", x);
        }
    });
}

fn rounded(value: f64, mode: u32) -> f64 {
    match mode {
        1 => value.trunc(),
        2 => value.floor(),
        3 => value.ceil(),
        _ => value.round(),
    }
}

#[test]
fn floats_to_integers() {
    for mode in 1..=4 {
        let signed = Machine::new(to_integer(0, mode, 5));
        let unsigned = Machine::new(to_integer(1, mode, 5));
        let check = |x: u32| {
            let float = f32::from_bits(x);
            let value = rounded(f64::from(float), mode);
            let nan = float.is_nan();
            let integer = if nan { i32::MAX } else { value as i32 };
            assert_eq!(signed.run(x, 0), integer.cast_unsigned(), "{x:#010x} with rounding {mode}");
            #[expect(clippy::cast_sign_loss, reason = "a cast saturates, which is what is asked for")]
            let natural = if nan { u32::MAX } else { value as u32 };
            assert_eq!(unsigned.run(x, 0), natural, "{x:#010x} with rounding {mode}, unsigned");
        };
        for edge in EDGES {
            check(edge);
            check(edge | SIGN);
        }
        for value in
            [0.5_f32, 1.5, 2.5, 0.49999997, 8388607.5, 2147483648.0, 2147483520.0, 4294967040.0, 4294967296.0]
        {
            check(value.to_bits());
            check((-value).to_bits());
        }
        let config = ProptestConfig::with_cases(2000);
        proptest!(config, |(sign: bool, exponent in 110_u32..165, fraction in 0..0x80_0000_u32)| {
            check(u32::from(sign) << 31 | exponent << 23 | fraction);
        });
    }
}

/// An integer as a float, rounded as asked for: of the nearest and its neighbours the one that is right.
fn as_float(value: i64, mode: u32) -> f32 {
    let nearest = value as f32;
    let exact = |float: f32| f64::from(float) - value as f64;
    let (below, above) = match exact(nearest) {
        0.0 => return nearest,
        more if more > 0.0 => (nearest.next_down(), nearest),
        _ => (nearest, nearest.next_up()),
    };
    match mode {
        1 => {
            if value < 0 {
                above
            } else {
                below
            }
        }
        2 => below,
        3 => above,
        _ if -exact(below) == exact(above) => {
            if value < 0 {
                below
            } else {
                above
            }
        }
        _ => nearest,
    }
}

#[test]
fn integers_to_floats() {
    for mode in 1..=4 {
        let signed = Machine::new(from_integer(0, mode, 5));
        let unsigned = Machine::new(from_integer(1, mode, 5));
        let check = |x: u32| {
            let expected = as_float(x.cast_signed().into(), mode).to_bits();
            assert_eq!(signed.run(x, 0), expected, "{} with rounding {mode}", x.cast_signed());
            assert_eq!(unsigned.run(x, 0), as_float(x.into(), mode).to_bits(), "{x} with rounding {mode}");
        };
        for x in
            [0, 1, 0x00ff_ffff, 0x0100_0001, 0x0100_0003, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, 0xffff_ff7f]
        {
            check(x);
            check(x.wrapping_neg());
        }
        proptest!(ProptestConfig::with_cases(2000), |(x: u32, shift in 0..32_u32)| check(x >> shift));
    }
}

/// Results in registers that veneers use themselves, and operands in them.
#[test]
fn every_register_can_be_operand_and_result() {
    for register in 0..32 {
        let float = Machine::new(0x1800_7053 | register << 7 | register << 15 | ((register + 1) % 32) << 20);
        assert_eq!(float.run(7_f32.to_bits(), 2_f32.to_bits()), 3.5_f32.to_bits());
        // These two are the veneers'.
        if matches!(register, 3 | 4) {
            continue;
        }
        let value = Machine::new(to_integer(0, 1, register)).run((-2.75_f32).to_bits(), 0);
        assert_eq!(value, if register == 0 { 0 } else { (-2_i32).cast_unsigned() });
        let x = match register {
            0 => 0,
            2 => STACK,
            _ => 0x0100_0001,
        };
        let value = Machine::new(from_integer(0, 3, register)).run(x, 0);
        assert_eq!(value, as_float(x.into(), 3).to_bits(), "x{register}");
    }
}

#[test]
fn code_that_writes_what_veneers_have_is_refused() {
    let target = Target { cores: Cores::Blackhole, base: BASE, room: 0x8000 };
    // addi gp, x0, 0; lw tp, 0(a0); fcvt.w.s gp, fa0, rtz
    for word in [0x0000_0193, 0x0005_2203, 0xc005_11d3] {
        match load(&Parts::new(&[word, DIVIDE, 0x0010_0073]).file(), target) {
            Err(LoadError::Code(unfit)) => assert!(unfit.to_string().contains("gp or tp"), "{unfit}"),
            other => panic!("{other:?}"),
        }
    }
    // Without replacements, executables may use these registers.
    assert!(load(&Parts::new(&[0x0000_0193, 0x0010_0073]).file(), target).is_ok());
}

#[test]
fn veneers_need_room_too() {
    let file = Parts::new(&[DIVIDE, 0x0010_0073]).file();
    let target = |room| Target { cores: Cores::Blackhole, base: BASE, room };
    let length = load(&file, target(0x8000)).unwrap().bytes().len() as u32;
    assert!(load(&file, target(length)).is_ok());
    let needed = u64::from(length);
    let room = length - 4;
    assert_eq!(load(&file, target(room)), Err(ElfError::TooLarge { needed, room }.into()));
}
