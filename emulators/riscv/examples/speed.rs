// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! How many instructions a second the interpreter executes, and how much longer it takes than the host's own
//! code for the same work.

use emulator_riscv::{Bus, Hart, Isa, Ram, RunOutcome, Width};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// `for i in 0..64 { x12 += a[i] * b[i] }` over tables of words, again and again.
const INTEGERS: &[u32] = &[
    0x0000_0293, // addi x5, x0, 0
    0x0002_a303, // lw x6, 0(x5)
    0x1002_a383, // lw x7, 256(x5)
    0x0273_0333, // mul x6, x6, x7
    0x0066_0633, // add x12, x12, x6
    0x0042_8293, // addi x5, x5, 4
    0xfea2_96e3, // bne x5, x10, -20
    0xfe5f_f06f, // jal x0, -28
];

/// The same with floats, fused.
const FLOATS: &[u32] = &[
    0x0000_0293, // addi x5, x0, 0
    0x0002_a087, // flw f1, 0(x5)
    0x1002_a107, // flw f2, 256(x5)
    0x1820_f1c3, // fmadd.s f3, f1, f2, f3
    0x0042_8293, // addi x5, x5, 4
    0xfea2_98e3, // bne x5, x10, -16
    0xfe9f_f06f, // jal x0, -24
];

/// The same with floats, where both loads go by a table of pages.
const BY_PAGES: &[u32] = &[
    0x0000_0293, // addi x5, x0, 0
    0x0180_006f, // jal x0, 24
    0x0380_006f, // jal x0, 56
    0x1820_f1c3, // fmadd.s f3, f1, f2, f3
    0x0042_8293, // addi x5, x5, 4
    0xfea2_98e3, // bne x5, x10, -16
    0xfe9f_f06f, // jal x0, -24
    0x2002_8193, // addi x3, x5, 512
    0x00c1_d213, // srli x4, x3, 12
    0x0032_1213, // slli x4, x4, 3
    0x0002_2203, // lw x4, 0(x4)
    0x0040_4863, // blt x0, x4, 16
    0x0041_81b3, // add x3, x3, x4
    0x0001_a087, // flw f1, 0(x3)
    0xfd1f_f06f, // jal x0, -48
    0x0010_0073, // ebreak
    0x3002_8193, // addi x3, x5, 768
    0x00c1_d213, // srli x4, x3, 12
    0x0032_1213, // slli x4, x4, 3
    0x0002_2203, // lw x4, 0(x4)
    0x0040_4863, // blt x0, x4, 16
    0x0041_81b3, // add x3, x3, x4
    0x0001_a107, // flw f2, 0(x3)
    0xfb1f_f06f, // jal x0, -80
    0x0010_0073, // ebreak
];

const TIME: Duration = Duration::from_millis(500);

/// How many elements a table has.
const ELEMENTS: usize = 64;

/// Interprets code for a while, of which each element takes so many instructions, and says how fast that was:
/// elements a second.
fn interpreted(name: &str, words: &[u32], each: u64, value: u32) -> f64 {
    const CODE: u32 = 0x1000;
    let mut ram = Ram::new(0, 0x18_0000);
    for (address, word) in (CODE..).step_by(4).zip(words) {
        ram.store(address, Width::Word, *word).expect("inside");
    }
    // The first two words are the first entry of a table of pages: zeros.
    for address in (8..0x400).step_by(4) {
        ram.store(address, Width::Word, value).expect("inside");
    }
    let mut hart = Hart::new(Isa::Blackhole, CODE);
    hart.set_x(10, 256);
    let start = Instant::now();
    while start.elapsed() < TIME {
        assert_eq!(hart.run(&mut ram, 1_000_000), RunOutcome::Budget);
    }
    let speed = per_second(hart.executed(), start);
    print!("{name:10} {:8.1} million instructions a second", speed / 1e6);
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let each = each as f64;
    speed / each
}

/// Does the same work in the host's own code: elements a second.
fn native<T: Copy>(start: T, tables: &[[T; ELEMENTS]; 2], step: impl Fn(T, T, T) -> T) -> f64 {
    let (mut sum, mut elements, begin) = (start, 0, Instant::now());
    while begin.elapsed() < TIME {
        for _ in 0..1000 {
            let [a, b] = black_box(tables);
            for (a, b) in a.iter().zip(b) {
                // One after the other, as a small core does it.
                sum = black_box(step(sum, *a, *b));
            }
        }
        elements += 1000 * ELEMENTS as u64;
    }
    per_second(elements, begin)
}

#[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
fn per_second(count: u64, start: Instant) -> f64 {
    count as f64 / start.elapsed().as_secs_f64()
}

fn main() {
    let integers = native(0_u32, &[[3; ELEMENTS]; 2], |sum, a, b| sum.wrapping_add(a.wrapping_mul(b)));
    let floats = native(0.0_f32, &[[1.5; ELEMENTS]; 2], |sum, a, b| sum + a * b);
    for (name, words, each, value, host) in [
        ("integers", INTEGERS, 6, 3, integers),
        ("floats", FLOATS, 5, 1.5_f32.to_bits(), floats),
        ("by pages", BY_PAGES, 21, 1.5_f32.to_bits(), floats),
    ] {
        let speed = interpreted(name, words, each, value);
        println!(", {:6.1} times as long as the host's own code", host / speed);
    }
}
