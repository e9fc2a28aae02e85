// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! How many instructions a core without floats executes for each instruction that has them. How fast it executes
//! those is what the example `speed` of `emulator-riscv` says.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "an example stops where something is not as it should be"
)]

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod support;

fn main() {
    for form in support::forms::FORMS {
        println!("{:14} {:4} instructions", form.name, form.cost());
    }
}
