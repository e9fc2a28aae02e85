// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Shows step by step what works with a card: `cargo run -p hal-qaic --example qaic_card -- qaic://0 [network.bin]`.
//!
//! Without a network it shows what the card says and that its driver gives memory; with a container of the vendor's
//! compiler also that the network is read, loaded, activated, and given back. It is run by nothing here: what a
//! network computes, a program that knows it shows.

use hal_backend::{Driver, Failure};
use hal_qaic::QaicDevice;
use hal_qaic::kmd::Error;
use hal_qaic_abi::container::{Container, Network, ParseError, Plan};
use std::process::ExitCode;
use std::time::Duration;

/// The driver with emulated cards, to rehearse on.
type Qaic = hal_qaic::Qaic<emulator_qaic::Emulated>;

/// How large the object is that is tried.
const LENGTH: u64 = 1 << 20;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let uri = arguments.next().unwrap_or_else(|| "qaic://".to_owned());
    match run(&uri, arguments.next().as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("failed:        {text}");
            ExitCode::FAILURE
        }
    }
}

fn run(uri: &str, network: Option<&str>) -> Result<(), String> {
    let text = |failure: Failure| failure.message().to_owned();
    let device = Qaic::open_uri(uri).map_err(text)?;
    println!("opened:        {uri}");
    print!("{}", device.info());
    memory(&device)?;
    match network {
        Some(path) => activate(&device, path),
        None => Ok(()),
    }
}

/// An object is created, mapped, written and read.
fn memory(device: &QaicDevice) -> Result<(), String> {
    let said = |error: Error| error.to_string();
    let object = device.client().card().create(LENGTH).map_err(said)?;
    let mut bytes = [0; 16];
    if !object.view().fill(&[0x5a]) || !object.view().read(LENGTH - 16, &mut bytes) || bytes != [0x5a; 16] {
        return Err("a buffer object does not keep what is written to it".to_owned());
    }
    println!("buffer object: {} bytes created, mapped, written and read", object.length());
    Ok(())
}

/// A network is read, loaded, activated, and given back.
fn activate(device: &QaicDevice, path: &str) -> Result<(), String> {
    let bytes = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    let wrong = |error: ParseError| format!("{path}: {error}");
    let said = |error: Error| error.to_string();
    let container = Container::read(&bytes).map_err(wrong)?;
    let image = container.network().map_err(wrong)?;
    let network = Network::read(image).map_err(wrong)?;
    let plan = Plan::new(&network).map_err(wrong)?;
    println!("network:       {}, {} cores, {} bytes of memory", network.name, network.cores, network.ddr);
    for (number, buffer) in plan.buffers.iter().enumerate() {
        println!("  buffer {number}: {:?}, {} bytes", buffer.direction, buffer.length);
    }
    let client = device.client();
    client.suits(&network).map_err(said)?;
    let constants = match container.constants().map_err(wrong)? {
        Some(constants) => Some(client.load_constants(&constants).map_err(said)?),
        None => None,
    };
    let loaded = client.load_network(&network.name, image, 0).map_err(said)?;
    println!("loaded:        constants {}", if constants.is_some() { "and image" } else { "none, image" });
    let active = client.activate(loaded, constants, 512, Duration::from_secs(5)).map_err(said)?;
    println!("activated:     on channel {}, memory at {:#x}", active.channel, active.bases.ddr);
    client.deactivate(&active).map_err(said)?;
    client.unload_network(loaded).map_err(said)?;
    if let Some(constants) = constants {
        client.unload_constants(constants).map_err(said)?;
    }
    println!("given back:    channel, image and constants");
    Ok(())
}
