// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Says what is known of a card: `cargo run -p hal-gaudi --example gaudi_card -- gaudi://0`.

use hal_backend::Driver;

type Gaudi = hal_gaudi::Gaudi<emulator_gaudi::Emulated>;
use std::process::ExitCode;

fn main() -> ExitCode {
    let uri = std::env::args().nth(1).unwrap_or_else(|| "gaudi://".to_owned());
    match Gaudi::open_uri(&uri) {
        Ok(device) => {
            print!("{}", device.info());
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{uri}: {}", failure.message());
            ExitCode::FAILURE
        }
    }
}
