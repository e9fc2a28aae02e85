// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Prints the operands of the float tests as hexadecimal words, three to a line: food for other implementations.

#[path = "../tests/support/mod.rs"]
#[expect(dead_code, reason = "the tests use the rest")]
mod support;

use std::io::Write;

fn main() -> std::io::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for block in 0..support::BLOCKS {
        for [x, y, z] in support::operands(block) {
            writeln!(out, "{x:08x} {y:08x} {z:08x}")?;
        }
    }
    Ok(())
}
