// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cost of collectives within a process and between processes, beside the plain calls of the MPI that
//! carries them, in the same run.
//!
//! `cargo bench -p hal-collectives-mpi --bench collectives -- [--quick] [--only WORDS]`; `--quick` measures
//! processes on two ranks alone, and WORDS are as in "tcp all_reduce 2ranks".
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a measurement stops where something is not as it should be"
)]

mod launch;
mod only;
mod rank;
mod report;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let value = |flag: &str| {
        let at = words.iter().position(|word| word == flag)?;
        words.get(at + 1).map(String::as_str)
    };
    let has = |flag: &str| words.iter().any(|word| word == flag);
    let only = value("--only").unwrap_or_default();
    if let Some(way) = value("--rank") {
        rank::run(way, has("--overlap"), only);
        return ExitCode::SUCCESS;
    }
    match launch::run(has("--quick"), only) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
