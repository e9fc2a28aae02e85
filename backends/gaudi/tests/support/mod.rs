// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Parts that the tests of emulated cards share.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests, each of which uses some of it"
)]

use emulator_gaudi::{Emulator, Options};
use hal_backend::{Driver, Failure, HostRange, Parameters, splitmix64};
use hal_gaudi::GaudiDevice;

pub(crate) type Gaudi = hal_gaudi::Gaudi<emulator_gaudi::Emulated>;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A machine that no other test has.
pub(crate) fn machine(rest: &str) -> String {
    static MACHINES: AtomicU64 = AtomicU64::new(1);
    // Machines that differ in nothing are one, so each gets a seed of its own.
    format!("emulated?seed={}&{rest}", MACHINES.fetch_add(1, Ordering::Relaxed))
}

/// The card to prove something on, such as `gaudi://0`; emulated ones, if there is none.
const CARD: &str = "HAL_GAUDI_CARD";

/// An emulated card of each generation, or the card that the environment names.
pub(crate) fn both() -> Vec<String> {
    match std::env::var(CARD) {
        Ok(uri) => vec![uri.trim_start_matches("gaudi://").to_owned()],
        Err(_) => ["generation=gaudi1", "generation=gaudi2"].map(machine).to_vec(),
    }
}

/// Opens what is behind `gaudi://`.
pub(crate) fn try_open(uri: &str) -> Result<GaudiDevice, Failure> {
    Gaudi::open_uri(&format!("gaudi://{uri}"))
}

/// Opens what is behind `gaudi://`.
pub(crate) fn open(uri: &str) -> GaudiDevice {
    try_open(uri).unwrap_or_else(|failure| panic!("gaudi://{uri}: {failure}"))
}

/// The machine that a card of a URI is in, while one of it is open.
pub(crate) fn emulator(uri: &str) -> Arc<Emulator> {
    let query = uri.split_once('?').map_or("", |(_, query)| query);
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    Emulator::get(&Options::read(&mut Parameters::new("gaudi", pairs)).unwrap()).unwrap()
}

/// Fresh host memory.
pub(crate) fn range(length: u64) -> HostRange {
    HostRange::allocate(length, 64).unwrap()
}

/// Host memory with bytes in it that differ from place to place and from seed to seed.
pub(crate) fn pattern(length: u64, seed: u64) -> HostRange {
    let range = range(length);
    let bytes: Vec<u8> = (0..length).map(|at| splitmix64(splitmix64(seed) ^ at) as u8).collect();
    assert!(range.write(0, &bytes));
    range
}

/// The contents of host memory.
pub(crate) fn bytes(range: &HostRange) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(range.length()).unwrap()];
    assert!(range.read(0, &mut bytes));
    bytes
}
