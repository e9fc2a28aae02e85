// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Prints the random programs that the tests run, one a line, as hexadecimal words: food for other implementations.
//!
//! `programs wormhole 400` prints the first 400 of RV32IM.

#[path = "../tests/support/mod.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod support;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let isa = arguments.next().unwrap_or_else(|| "wormhole".to_owned());
    let count = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(1);
    for seed in 0..count {
        let words = support::program(seed, isa == "blackhole");
        println!("{}", words.iter().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(" "));
    }
}
