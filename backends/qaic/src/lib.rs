// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Qualcomm Cloud AI 100 (AIC080, AIC100), through the `qaic` kernel driver's own interface.
//!
//! `qaic://` drives a card through the requests of the upstream kernel driver: buffer objects, slices, execution, and
//! messages to the card's management processor. Nothing of the vendor's user-space software is needed but its
//! compiler. `qaic://emulated` drives an emulator of that kernel driver and its cards, which runs IREE's host
//! executables as networks of its own. What no emulator can show is said in `docs/qaic.md`: nothing here has been
//! proved on silicon yet.
//!
//! # Devices
//!
//! | path | device |
//! |---|---|
//! | `qaic://` | the first card that the kernel lists, of those that have a node here |
//! | `qaic://N` | the card behind `/dev/accel/accelN` |
//! | `qaic://0000:19:00.0` | the card at a place on the bus |
//! | `qaic:///dev/accel/accelN` | the card behind a node |
//! | `qaic://fd/N` | the card that the program itself has opened as descriptor N, and closes |
//! | `qaic://emulated`, `qaic://emulated/N` | an emulated card; never taken unless it is named |
//!
//! The variable `HAL_QAIC_DEFAULT` of the environment sets another path for `qaic://`.
//!
//! A card that is named is that card or an error. Each device that is opened is a client of its own: its networks and
//! buffers are its own, and no other device's, in this process or another.
//!
//! [`Qaic::PARAMETERS`](hal_backend::Driver::PARAMETERS) declares the parameters, and `docs/qaic.md` has their table.
//! An emulated card takes those of its [emulation](hal_kernel::Emulation::PARAMETERS) as well.
//!
//! # Where things are
//!
//! | | |
//! |---|---|
//! | `kmd/` | the kernel: its calls with types, messages, what may go wrong |
//! | `memory.rs` | buffer objects, and for what they are sliced |
//! | `blueprint.rs`, `active.rs`, `networks.rs` | a network before it runs, one that runs, all that run |
//! | `launch.rs` | one run of a network |
//! | `hazard.rs`, `queue.rs`, `queue/` | what may overlap; the queues and their two threads |
//! | `executable.rs`, `device.rs` | what the driver sees |
//! | `info.rs` | what an open card says of itself |
//! | `options.rs` | the parameters of a URI |
//!
//! The bytes of all interfaces are [`hal_qaic_abi`].

mod active;
mod blueprint;
mod device;
mod executable;
#[cfg(test)]
mod fake_card;
mod hazard;
mod info;
pub mod kmd;
mod launch;
mod memory;
mod networks;
mod options;
mod queue;

pub use device::QaicDevice;
pub use executable::{Executable, FORMAT};
pub use info::Info;
pub use memory::Memory;

use hal_backend::{DeviceInfo, Driver, Failure, Parameter, Parameters};
use hal_kernel::cards::{CardHandle, NamedCard};
use hal_kernel::{CardFile, CardKey, Emulation, NoEmulation};
use hal_qaic_abi::programs::CardPrograms;
use kmd::{CARDS, Card, Device as Client, Linux, ModuleSettings, System, cards};
use options::{Options, PARAMETERS};
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

/// The driver behind `qaic://`. `E` injects emulated cards, or none.
pub struct Qaic<E = NoEmulation>(PhantomData<fn() -> E>);

impl<E> fmt::Debug for Qaic<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Qaic")
    }
}

impl Qaic {
    /// Opens a node on another system than this one, such as one that counts or records requests, with the parameters
    /// that a URI has. `programs` runs host programs, if the card is emulated.
    pub fn open_on(
        system: Arc<dyn System>,
        node: &Path,
        programs: Option<Arc<dyn CardPrograms>>,
        parameters: &mut Parameters<'_>,
    ) -> Result<QaicDevice, Failure> {
        let (key, handle) = (CardKey::emulated(&system, node), CardHandle::Node(node.to_owned()));
        open(NamedCard { key, system, handle, programs, workers: None }, &Options::read(parameters)?)
    }
}

impl<E: Emulation<dyn CardPrograms>> Driver for Qaic<E> {
    type Device = QaicDevice;

    const NAME: &'static str = CARDS.driver;
    const FULL_NAME: &'static str = "Qualcomm Cloud AI 100 (qaic kernel driver, or an emulator of it)";
    const PARAMETERS: &'static [Parameter] = PARAMETERS;

    fn create() -> Self {
        Self(PhantomData)
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Failure> {
        Ok(CARDS.devices::<E, dyn CardPrograms>(&cards(&Linux)?))
    }

    fn open(&self, path: &str, parameters: &mut Parameters<'_>) -> Result<QaicDevice, Failure> {
        let options = Options::read(parameters)?;
        let card = CARDS.resolve::<E, dyn CardPrograms>(path, parameters, cards)?;
        open(card, &options)
    }

    fn describe(&self, info: &DeviceInfo) -> String {
        let (state, host) = if CARDS.is_emulated(info) {
            (String::new(), " and IREE's host executables")
        } else {
            let card = cards(&Linux).ok().and_then(|cards| CARDS.find(&cards, &info.path).ok());
            let state = card.map_or_else(|| "gone".to_owned(), |card| card.state);
            let module = ModuleSettings::read(&Linux).describe();
            (format!("\n- channels: {state}\n- kernel module: {module}"), "")
        };
        format!(
            "{}{state}\n- executables: {FORMAT}{host}\n- queues: 4, in order",
            CARDS.heading::<E, _>(info)
        )
    }

    fn parameters(&self, info: &DeviceInfo) -> Vec<Parameter> {
        CARDS.parameters::<E, _>(info, PARAMETERS)
    }
}

/// Opens a card, and makes a device of it.
fn open(named: NamedCard<dyn CardPrograms>, options: &Options) -> Result<QaicDevice, Failure> {
    let card = Card::of(CardFile::of(&CARDS, &named, options.patience)?)?;
    let client = Client::new(card, options.control)?;
    for warning in client.warnings() {
        // Nothing fails for it, so no status carries it.
        eprintln!("hal-qaic: {warning}");
    }
    QaicDevice::new(client, named.programs, options.settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Qaic = super::Qaic<emulator_qaic::Emulated>;
    use hal_backend::Code;
    use std::os::fd::AsRawFd;

    #[test]
    fn creating_the_driver_touches_nothing_and_a_missing_card_is_refused() {
        let failure =
            Qaic::create().open("/dev/accel/accel9999", &mut Parameters::new("qaic", [])).unwrap_err();
        assert_eq!(failure.code(), Code::NotFound);
        assert!(failure.message().contains("accel9999"), "{failure}");
    }

    /// The file is the emulated machine's, which alone answers requests of it.
    #[test]
    fn descriptor_of_an_emulated_card_is_adopted() {
        let options = emulator_qaic::Options::read(&mut Parameters::new("qaic", [])).unwrap();
        let machine = emulator_qaic::Emulator::new(options).unwrap();
        let file = machine.open(Path::new("/dev/accel/accel0")).unwrap();
        Qaic::open_uri(&format!("qaic://fd/{}", file.as_raw_fd())).unwrap();
        machine.close(file);
    }

    #[test]
    fn advice_differs_from_the_request() {
        let cases: &[(&str, &[&str])] = &[
            ("qaic://emulated/1", &["qaic://emulated/1", "has 1 card,", "cards=2"]),
            ("qaic://emulated/3?cards=2", &["has 2 cards", "cards=4"]),
            ("qaic://emulated/8?cards=8", &["has 8 cards", "from 0 to 7"]),
            ("qaic://emulated/x", &["emulated/0, emulated/1"]),
            ("qaic://emulated?fault=boot:100000&open_timeout=0", &["longer open_timeout="]),
            ("qaic:///dev/accel/accel250", &["ask for qaic://emulated"]),
        ];
        emulator_testbench::assert_refused(Qaic::open_uri, cases);
    }
}
