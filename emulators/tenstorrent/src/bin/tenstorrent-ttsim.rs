// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Loads a simulator's library (`libttsim.so`) for `tenstorrent://ttsim`, which starts this program.

use std::process::ExitCode;

fn main() -> ExitCode {
    emulator_tenstorrent::serve()
}
