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
//! | `qaic://` | the first card that the kernel lists |
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
mod queue;

pub use device::QaicDevice;
pub use executable::{Executable, FORMAT};
pub use info::Info;
pub use memory::Memory;

use hal_backend::{DeviceInfo, Driver, Failure, Parameter, Parameters};
use hal_kernel::cards::{CardHandle, NamedCard};
use hal_kernel::{CardFile, Emulation, NoEmulation};
use hal_qaic_abi::programs::CardPrograms;
use kmd::{CARDS, Card, Device as Client, Linux, ModuleSettings, System, cards};
use networks::Settings;
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The driver behind `qaic://`. `E` injects emulated cards, or none.
pub struct Qaic<E = NoEmulation>(PhantomData<fn() -> E>);

impl<E> fmt::Debug for Qaic<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Qaic")
    }
}

/// The parameters of every card.
const PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "open_timeout",
        values: "SECONDS",
        default: "10",
        effect: "how long to wait for a card that boots or is being reset",
    },
    Parameter {
        name: "control_timeout",
        values: "SECONDS",
        default: "the kernel's: 60",
        effect: "how long a message to the card may take, at most what the kernel waits",
    },
    Parameter {
        name: "timeout",
        values: "SECONDS",
        default: "60",
        effect: "how long a dispatch may take; then its network is stopped and the dispatch fails",
    },
    Parameter {
        name: "restart_timeout",
        values: "SECONDS",
        default: "5",
        effect: "how long a network waits for a sub-system that restarts",
    },
    Parameter { name: "channels", values: "N", default: "16", effect: "how many networks run at once" },
    Parameter {
        name: "elements",
        values: "N",
        default: "512, or what is needed",
        effect: "how many elements a channel's rings have; a given number is never raised",
    },
    Parameter {
        name: "in_flight",
        values: "N",
        default: "what the ring takes",
        effect: "how many dispatches of one network are queued at once",
    },
];

/// The first word of an emulated card's path.
const EMULATED: &str = "emulated";

impl Qaic {
    /// Opens a node on a system other than this one, such as one that counts or records what it passes on, with the
    /// parameters that a URI has. `programs` runs host programs, if the card is emulated.
    pub fn open_on(
        system: Arc<dyn System>,
        node: &Path,
        programs: Option<Arc<dyn CardPrograms>>,
        parameters: &mut Parameters<'_>,
    ) -> Result<QaicDevice, Failure> {
        let handle = CardHandle::Node(node.to_owned());
        open(NamedCard { system, handle, programs, workers: None }, &Opening::read(parameters)?)
    }
}

/// The parameters of a URI.
struct Opening {
    patience: Duration,
    control: Option<Duration>,
    settings: Settings,
}

impl Opening {
    fn read(parameters: &mut Parameters<'_>) -> Result<Self, Failure> {
        let default = Settings::default();
        let mut seconds = |key, default: Duration, least| {
            parameters.number(key, default.as_secs(), least, 86_400).map(Duration::from_secs)
        };
        let patience = seconds("open_timeout", Duration::from_secs(10), 0)?;
        let timeout = seconds("timeout", default.timeout, 1)?;
        let restart_timeout = seconds("restart_timeout", default.restart_timeout, 0)?;
        let control = parameters.optional_number("control_timeout", 1, 86_400)?;
        let elements = parameters.optional_number("elements", 1, 1 << 15)?;
        let in_flight = parameters.optional_number("in_flight", 1, 1 << 15)?;
        let settings = Settings {
            channels: parameters.number("channels", default.channels, 1, default.channels)?,
            elements,
            in_flight,
            timeout,
            restart_timeout,
        };
        Ok(Self { patience, control: control.map(Duration::from_secs), settings })
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
        let opening = Opening::read(parameters)?;
        let card = CARDS.resolve::<E, dyn CardPrograms>(path, parameters, cards)?;
        open(card, &opening)
    }

    fn describe(&self, info: &DeviceInfo) -> String {
        if CARDS.is_emulated(info) {
            return format!(
                "# {}\n- evidence: emulator; nothing here is proved on silicon\n- cards: 1 unless cards= says \
                 otherwise, \
                 as {EMULATED}/0, {EMULATED}/1\n- executables: {FORMAT} and IREE's host executables\n- queues: 4, in \
                 order",
                info.name
            );
        }
        let card = cards(&Linux).ok().and_then(|cards| CARDS.find(&cards, &info.path).ok());
        let state = card.map_or_else(|| "gone".to_owned(), |card| card.state);
        format!(
            "# {}\n- evidence: none on silicon yet\n- channels: {state}\n- kernel module: {}\n- executables: \
             {FORMAT}\n- \
             queues: 4, in order",
            info.name,
            ModuleSettings::read(&Linux).describe()
        )
    }

    fn parameters(&self, info: &DeviceInfo) -> Vec<Parameter> {
        CARDS.parameters::<E, _>(info, PARAMETERS)
    }
}

/// Opens a card, and makes a device of it.
fn open(named: NamedCard<dyn CardPrograms>, opening: &Opening) -> Result<QaicDevice, Failure> {
    let card = Card::of(CardFile::of(&CARDS, &named, opening.patience)?)?;
    let client = Client::new(card, opening.control)?;
    for warning in client.warnings() {
        // Nothing fails for it, so no status carries it.
        eprintln!("hal-qaic: {warning}");
    }
    QaicDevice::new(client, named.programs, opening.settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Qaic = super::Qaic<emulator_qaic::Emulated>;
    use hal_backend::Code;

    fn opening(pairs: &[(&'static str, &'static str)]) -> Result<Opening, Failure> {
        Opening::read(&mut Parameters::new("qaic", pairs.iter().copied()))
    }

    #[test]
    fn timeouts_are_read_or_refused() {
        let given = opening(&[
            ("open_timeout", "0"),
            ("control_timeout", "7"),
            ("timeout", "90"),
            ("restart_timeout", "0"),
            ("channels", "3"),
            ("elements", "64"),
        ]);
        let given = given.unwrap();
        assert_eq!((given.patience, given.control), (Duration::ZERO, Some(Duration::from_secs(7))));
        let settings = given.settings;
        assert_eq!((settings.timeout, settings.restart_timeout), (Duration::from_secs(90), Duration::ZERO));
        assert_eq!((settings.channels, settings.elements), (3, Some(64)));
        let default = opening(&[]).unwrap();
        assert_eq!((default.control, default.settings.elements), (None, None));
        for pair in [
            ("timeout", "0"),
            ("control_timeout", "0"),
            ("control_timeout", "soon"),
            ("channels", "17"),
            ("elements", "0"),
        ] {
            let refused = opening(&[pair]).map(|_| ()).unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert!(refused.message().contains(pair.0), "{refused}");
        }
    }

    #[test]
    fn creating_the_driver_touches_nothing_and_a_missing_card_is_refused() {
        let failure =
            Qaic::create().open("/dev/accel/accel9999", &mut Parameters::new("qaic", [])).unwrap_err();
        assert_eq!(failure.code(), Code::NotFound);
        assert!(failure.message().contains("accel9999"), "{failure}");
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
