// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The program that loads a simulator's library, for the tests of this crate: cargo builds no programs of other
//! crates for them.

use std::process::ExitCode;

fn main() -> ExitCode {
    emulator_tenstorrent::serve()
}
