// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! How many instructions a second the interpreter executes: a multiplication of matrices of floats, and one of integers.

use std::time::{Duration, Instant};
use tenstorrent_riscv::{Bus, Class, Hart, Isa, Outcome, Ram, Width};

/// `for i in 0..x10 { x12 += a[i] * b[i] }` over tables of 64 words, again and again.
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

fn measure(name: &str, words: &[u32], value: u32) {
    const CODE: u32 = 0x1000;
    let mut ram = Ram::new(0, 0x18_0000);
    for (address, word) in (CODE..).step_by(4).zip(words) {
        ram.store(address, Width::Word, *word).expect("inside");
    }
    for address in (0..0x200).step_by(4) {
        ram.store(address, Width::Word, value).expect("inside");
    }
    let mut hart = Hart::new(Isa::Blackhole, CODE);
    hart.set_x(10, 256);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(500) {
        assert_eq!(hart.run(&mut ram, 1_000_000), Outcome::Budget);
    }
    let total = hart.counts().total();
    #[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
    let speed = total as f64 / start.elapsed().as_secs_f64() / 1e6;
    let loads = hart.counts().of(Class::Load);
    println!("{name:10} {speed:8.1} million instructions a second ({total} executed, {loads} of them loads)");
}

fn main() {
    measure("integers", INTEGERS, 3);
    measure("floats", FLOATS, 1.5_f32.to_bits());
}
