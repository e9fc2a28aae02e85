//! Says what is known of a card: `cargo run -p hal-gaudi --example card -- gaudi://0`.

use hal_backend::{Driver, Failure, Parameters};
use hal_gaudi::Gaudi;
use std::process::ExitCode;

fn show(uri: &str) -> Result<(), Failure> {
    let rest = uri.strip_prefix("gaudi://").unwrap_or(uri);
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let mut parameters = Parameters::new(Gaudi::NAME, pairs);
    let device = Gaudi::create().open(path, &mut parameters)?;
    parameters.finish()?;
    print!("{}", device.info());
    Ok(())
}

fn main() -> ExitCode {
    let uri = std::env::args().nth(1).unwrap_or_else(|| "gaudi://".to_owned());
    match show(&uri) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{uri}: {}", failure.message());
            ExitCode::FAILURE
        }
    }
}
