// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Intel Gaudi and Gaudi 2, through the habanalabs kernel driver's own interface.
//!
//! `gaudi://` drives a card through the requests of the upstream kernel driver: command submissions, signals and
//! waits, memory. Nothing of the vendor's user-space software is needed. `gaudi://emulated` drives an emulator of
//! that kernel driver and its cards, which runs IREE's host executables behind the same submissions; every path of
//! this crate goes through the same bytes on both. What no emulator can show is said in `docs/gaudi.md`: nothing here
//! has been proved on silicon yet.
//!
//! # Devices
//!
//! | path | device |
//! |---|---|
//! | `gaudi://` | the first card that the kernel lists, of those that have a node here |
//! | `gaudi://N` | the card behind `/dev/accel/accelN`; `/dev/hlN` before Linux 6.7 |
//! | `gaudi://0000:19:00.0` | the card at a place on the bus |
//! | `gaudi:///dev/hl0` | the card behind a node |
//! | `gaudi://fd/N` | the card that the program itself has opened as descriptor N, and closes |
//! | `gaudi://emulated`, `gaudi://emulated/N` | an emulated card; never taken unless it is named |
//!
//! The variable `HAL_GAUDI_DEFAULT` of the environment sets another path for `gaudi://`.
//!
//! A card is open once in a process: devices that are opened for the same card share it, each with queues of its own.
//!
//! [`Gaudi::PARAMETERS`](hal_backend::Driver::PARAMETERS) declares the parameters, and `docs/gaudi.md` has their
//! table. An emulated card takes those of its [emulation](hal_kernel::Emulation::PARAMETERS) as well.
//!
//! # Where things are
//!
//! | | |
//! |---|---|
//! | `kmd/` | the kernel: the boundary, its bytes, its calls with types |
//! | `generation.rs`, `packet.rs` | what the generations differ in; the commands of their queues |
//! | `memory.rs` | device and pinned host memory, divided |
//! | `submit.rs` | submissions and the kernel's limits |
//! | `plan.rs`, `queue.rs` | a job as packets; queues, their order, their completion |
//! | `dma.rs` | asynchronous transfers |
//! | `ipc/` | memory shared between cards and processes |
//! | `executable/` | the container of executables, and executables on a card |
//! | `device.rs`, `info.rs` | all of it as a device, and what it says of itself |
//! | `open_card.rs` | the cards that a process has open, each once |
//! | `options.rs` | the parameters of a URI |

mod device;
pub mod dma;
pub mod executable;
pub mod generation;
mod info;
pub mod ipc;
pub mod kmd;
pub mod memory;
mod open_card;
mod options;
pub mod packet;
mod plan;
mod queue;
mod submit;

pub use device::GaudiDevice;
pub use executable::Executable;
pub use info::Info;

use dma::CardTransfers;
use hal_backend::{Code, DeviceInfo, Driver, Failure, Parameter, Parameters};
use hal_gaudi_abi::programs::CardPrograms;
use hal_kernel::cards::{CardHandle, NamedCard};
use hal_kernel::{Emulation, Linux, NoEmulation, System};
use kmd::{CARDS, cards};
use open_card::OpenCard;
use options::{Options, PARAMETERS};
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The driver behind `gaudi://`. `E` injects emulated cards, or none.
pub struct Gaudi<E = NoEmulation>(PhantomData<fn() -> E>);

impl<E> fmt::Debug for Gaudi<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gaudi")
    }
}

impl<E: Emulation<dyn CardPrograms>> Gaudi<E> {
    /// Opens the file of a card, for programs that make requests of their own. The caller closes it by
    /// [`System::close`].
    pub fn open_file(uri: &str) -> Result<(OwnedFd, Arc<dyn System>), Failure> {
        let (path, mut parameters) = Parameters::of_uri(Self::NAME, uri);
        let patience = options::patience(&mut parameters)?;
        let card = Self::resolve(path, &mut parameters)?;
        parameters.finish()?;
        match &card.handle {
            CardHandle::Node(node) => Ok((CARDS.open_file(&*card.system, node, patience)?, card.system)),
            CardHandle::Descriptor(number) => {
                let message = format!("the card of descriptor {number} is open already, and opened once");
                Err(Failure::new(Code::InvalidArgument, message))
            }
        }
    }

    /// Transfers on the card behind a descriptor that the program has opened, and the card's memory.
    pub fn transfers(file: RawFd) -> Result<CardTransfers, Failure> {
        let card = Self::resolve(&format!("fd/{file}"), &mut Parameters::new(Self::NAME, []))?;
        OpenCard::open(&card, Duration::ZERO).map(|card| CardTransfers::of(&card))
    }

    fn resolve(path: &str, parameters: &mut Parameters<'_>) -> Result<NamedCard<dyn CardPrograms>, Failure> {
        CARDS.resolve::<E, _>(path, parameters, cards)
    }
}

impl<E: Emulation<dyn CardPrograms>> Driver for Gaudi<E> {
    type Device = GaudiDevice;

    const NAME: &'static str = CARDS.driver;
    const FULL_NAME: &'static str = "Intel Gaudi (habanalabs kernel driver, or an emulator of it)";
    const PARAMETERS: &'static [Parameter] = PARAMETERS;

    fn create() -> Self {
        Self(PhantomData)
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Failure> {
        Ok(CARDS.devices::<E, dyn CardPrograms>(&cards(&Linux)?))
    }

    fn open(&self, path: &str, parameters: &mut Parameters<'_>) -> Result<GaudiDevice, Failure> {
        let options = Options::read(parameters)?;
        let card = Self::resolve(path, parameters)?;
        let number = match &card.handle {
            CardHandle::Node(node) => number_of(node),
            CardHandle::Descriptor(_) => 0,
        };
        let open = OpenCard::open(&card, options.patience)?;
        GaudiDevice::new(&open, card.programs, number, &options)
    }

    fn describe(&self, info: &DeviceInfo) -> String {
        let (state, host) = if CARDS.is_emulated(info) {
            (String::new(), " and IREE's host executables")
        } else {
            let card = cards(&Linux).ok().and_then(|cards| CARDS.find(&cards, &info.path).ok());
            (format!("\n- state: {}", card.map_or_else(|| "gone".to_owned(), |card| card.state)), "")
        };
        format!(
            "{}{state}\n- executables: {}{host}\n- queues: 2, and 4 on the first generation, in order, \
             waiting for each other on the card",
            CARDS.heading::<E, _>(info),
            executable::FORMAT
        )
    }

    fn parameters(&self, info: &DeviceInfo) -> Vec<Parameter> {
        CARDS.parameters::<E, _>(info, PARAMETERS)
    }
}

/// The number at the end of a node's name.
fn number_of(node: &Path) -> usize {
    let name = node.to_string_lossy();
    let number = name.rsplit(|letter: char| !letter.is_ascii_digit()).next();
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use emulator_testbench::cases;
    use proptest::prelude::*;

    type Gaudi = super::Gaudi<emulator_gaudi::Emulated>;

    #[test]
    fn card_has_the_number_at_the_end_of_its_node() {
        let numbers = ["/dev/accel/accel12", "/dev/hl0", "/dev/host2/accel/accel3", "/dev/accel"];
        assert_eq!(numbers.map(|node| number_of(Path::new(node))), [12, 0, 3, 0]);
    }

    /// A card has one open file: there is no second one for a program that has the first.
    #[test]
    fn file_of_a_descriptor_is_the_programs_already() {
        let (file, system) = Gaudi::open_file("gaudi://emulated?seed=131").unwrap();
        let uri = format!("gaudi://fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let refused = Gaudi::open_file(&uri).map(|_| ()).unwrap_err();
        system.close(file);
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains("is open already"), "{refused}");
    }

    /// A card that boots refuses to be opened for longer than ten seconds.
    #[test]
    fn card_that_boots_is_waited_for() {
        let begin = std::time::Instant::now();
        Gaudi::open_uri("gaudi://emulated?seed=130&fault=open:EAGAIN:1050").unwrap();
        assert!(begin.elapsed() > Duration::from_secs(10));
    }

    #[test]
    fn advice_differs_from_the_request() {
        let cases: &[(&str, &[&str])] = &[
            ("gaudi://emulated/2", &["gaudi://emulated/2", "has 2 cards", "cards=3"]),
            ("gaudi://emulated/1?cards=1", &["has 1 card,", "cards=2"]),
            ("gaudi://emulated/8?cards=8", &["has 8 cards", "from 0 to 7"]),
            ("gaudi://emulated/x", &["emulated/0, emulated/1"]),
            ("gaudi://emulated?fault=open:EAGAIN:100000&open_timeout=0", &["longer open_timeout="]),
            ("gaudi:///dev/accel/accel250", &["ask for gaudi://emulated"]),
        ];
        emulator_testbench::assert_refused(Gaudi::open_uri, cases);
    }

    /// A parameter, often one that there is, with a value that is often one that it takes.
    fn pair() -> impl Strategy<Value = String> {
        // `fuzz_uris_of_any_kind_open_or_are_refused` gives `open_timeout` itself.
        let emulated = <emulator_gaudi::Emulated as Emulation<_>>::PARAMETERS;
        let names = PARAMETERS.iter().chain(emulated).map(|parameter| parameter.name);
        let keys: Vec<&str> = names.filter(|name| *name != "open_timeout").collect();
        let values = [
            "0",
            "1",
            "2",
            "64",
            "-1",
            "18446744073709551616",
            "1g",
            "2gib",
            "on",
            "off",
            "gaudi1",
            "gaudi2",
            "old",
            "seeded",
            "jitter",
            "hang:1",
            "open:EBUSY:1",
            "submit:EAGAIN:40:25",
            "map:1",
            "../x",
            "",
            "=",
            "%00",
        ];
        let key = prop_oneof![8 => prop::sample::select(keys).prop_map(str::to_owned), 1 => "[a-z_]{0,9}"];
        let value =
            prop_oneof![8 => prop::sample::select(values.to_vec()).prop_map(str::to_owned), 1 => ".{0,9}"];
        (key, value, any::<bool>())
            .prop_map(|(key, value, whole)| if whole { format!("{key}={value}") } else { key })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases(64)) })]

        /// Nothing here names a card that the machine may have.
        #[test]
        fn fuzz_uris_of_any_kind_open_or_are_refused(
            path in prop_oneof![
                4 => Just("emulated".to_owned()),
                1 => "emulated/[0-9a-z]{0,3}",
                1 => "[a-z:/.%]{1,12}",
            ],
            pairs in prop::collection::vec(pair(), 0..4),
        ) {
            let uri = format!("gaudi://{path}?open_timeout=0&{}", pairs.join("&"));
            if let Err(failure) = Gaudi::open_uri(&uri) {
                prop_assert!(!failure.message().is_empty());
                let advice = emulator_testbench::circular_advice(&uri, failure.message());
                prop_assert_eq!(advice, None, "{}: {}", uri, failure);
                prop_assert_ne!(failure.code(), Code::Internal, "{}: {}", uri, failure);
            }
        }
    }
}
