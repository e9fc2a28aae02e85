// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Qualcomm Cloud AI 100 (AIC080, AIC100), through the `qaic` kernel driver's own interface.
//!
//! `qaic://` drives a card through the requests of the upstream kernel driver: buffer objects, slices, execution, and
//! messages to the card's management processor. Nothing of the vendor's user-space software is needed but its compiler.
//! `qaic://emulated` drives an [emulator] of that kernel driver and its cards, which runs IREE's host
//! executables as networks of its own. What no emulator can show is said in `docs/qaic.md`: nothing here has been proved on
//! silicon yet.
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
//! What `qaic://` stands for can be said otherwise by the environment: `HAL_QAIC_DEFAULT` is then the path.
//!
//! A card that is named is that card or an error. Each device that is opened is a client of its own: its networks and
//! buffers are its own, and no other device's, in this process or another.
//!
//! # Parameters
//!
//! | parameter | default | what it does |
//! |---|---|---|
//! | `open_timeout=SECONDS` | 10 | how long to wait for a card that boots or is being reset |
//! | `control_timeout=SECONDS` | the kernel's, 60 | how long a message to the card may take; longer than the kernel waits is refused |
//! | `execute_timeout=SECONDS` | 60 | how long a dispatch may take; then its network is stopped, and the dispatch fails |
//! | `restart_timeout=SECONDS` | 5 | how long a network waits for a sub-system that restarts before it is given up |
//! | `channels=N` | 16 | how many networks run at once |
//! | `elements=N` | as many as needed | how many elements the rings of a channel have |
//! | `in_flight=N` | as many as the ring takes | how many dispatches of one network are queued at once |
//!
//! An emulated card takes those of the [emulator] as well.
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
#[cfg(test)]
mod desk;
mod device;
mod executable;
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

use emulator::{Emulator, Options};
use emulator_core::options::check_card;
use emulator_core::programs::Programs;
use emulator_core::remote::{self, Remote};
pub use emulator_qaic as emulator;
use hal_backend::{Code, DeviceInfo, Driver, Failure, Parameters};
use hal_qaic_abi::sysfs;
use kmd::{Card, Device as Client, Kernel, Linux, ModuleSettings, Node, Selector, find, nodes};
use networks::Settings;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The driver behind `qaic://`.
#[derive(Debug)]
pub struct Qaic;

/// What a device without a path stands for, if the environment says so.
const DEFAULT: &str = "HAL_QAIC_DEFAULT";

impl Qaic {
    /// Opens a node of a kernel other than this system's, such as one that counts or records what it passes on, with the
    /// parameters that a URI has. `programs` is the emulator behind it, where there is one that runs host executables.
    pub fn open_on(
        kernel: Arc<dyn Kernel>,
        node: &Path,
        programs: Option<Arc<Emulator>>,
        parameters: &mut Parameters<'_>,
    ) -> Result<QaicDevice, Failure> {
        let programs = programs.map(|emulator| -> Arc<dyn Programs> { emulator });
        open(kernel, node, programs, &Opening::read(parameters)?)
    }

    /// Opens what a URI names, such as `qaic://0` or `qaic://emulated?cards=2`, for programs that are no IREE.
    pub fn open_uri(uri: &str) -> Result<QaicDevice, Failure> {
        let rest = uri.strip_prefix(Self::NAME).unwrap_or(uri);
        let rest = rest.strip_prefix("://").unwrap_or(rest);
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let mut parameters = Parameters::new(Self::NAME, pairs);
        let device = Self.open(path, &mut parameters)?;
        parameters.finish().map(|()| device)
    }
}

/// What the parameters of a URI say.
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
        let execute_timeout = seconds("execute_timeout", default.execute_timeout, 1)?;
        let restart_timeout = seconds("restart_timeout", default.restart_timeout, 0)?;
        let control = optional(parameters, "control_timeout", 86_400)?;
        let elements = optional(parameters, "elements", 1 << 15)?;
        let in_flight = optional(parameters, "in_flight", 1 << 15)?;
        let settings = Settings {
            channels: parameters.number("channels", default.channels, 1, default.channels)?,
            elements,
            in_flight: in_flight.and_then(|number| usize::try_from(number).ok()),
            execute_timeout,
            restart_timeout,
        };
        Ok(Self { patience, control: control.map(|control| Duration::from_secs(control.into())), settings })
    }
}

/// A number from 1 that may be left out.
fn optional(parameters: &mut Parameters<'_>, key: &'static str, most: u32) -> Result<Option<u32>, Failure> {
    // No number above the most can be given, so that one stands for none.
    let number = parameters.number(key, u32::MAX, 1, most)?;
    Ok((number != u32::MAX).then_some(number))
}

impl Driver for Qaic {
    type Device = QaicDevice;

    const NAME: &'static str = "qaic";
    const FULL_NAME: &'static str = "Qualcomm Cloud AI 100 (qaic kernel driver, or an emulator of it)";

    fn create() -> Self {
        Self
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Failure> {
        let mut devices: Vec<DeviceInfo> = nodes(&Linux)?.iter().map(listed).collect();
        if remote::is_supervised() {
            devices.iter_mut().for_each(|device| device.name.insert_str(0, "emulated by another process: "));
        }
        devices.push(DeviceInfo {
            path: EMULATED.to_owned(),
            name: "emulated Cloud AI 100: software behind the kernel driver's interface, no hardware"
                .to_owned(),
        });
        Ok(devices)
    }

    fn open(&self, path: &str, parameters: &mut Parameters<'_>) -> Result<QaicDevice, Failure> {
        let opening = Opening::read(parameters)?;
        let default = std::env::var(DEFAULT).unwrap_or_default();
        let path = if path.is_empty() { default.as_str() } else { path };
        if let Some(number) = path.strip_prefix("fd/") {
            return adopt(number, &opening);
        }
        let Some(number) = emulated(path)? else {
            let kernel: Arc<dyn Kernel> = Arc::new(Linux);
            let node = locate(&*kernel, path)?;
            // Where another process emulates the cards, it has our executables run, too.
            let programs = Remote::connect(&*kernel)?.map(|remote| remote as Arc<dyn Programs>);
            return open(kernel, &node, programs, &opening);
        };
        let options = Options::read(parameters)?;
        check_card(Self::NAME, number, options.cards)?;
        let emulator = Emulator::get(&options)?;
        let node = Path::new(sysfs::NODES).join(format!("accel{number}"));
        let programs: Arc<dyn Programs> = emulator.clone();
        open(emulator, &node, Some(programs), &opening)
    }

    fn describe(&self, info: &DeviceInfo) -> String {
        if info.path == EMULATED {
            return format!(
                "# {}\n- evidence: emulator; nothing here is proved on silicon\n- cards: 1 unless cards= says otherwise, \
                 as {EMULATED}/0, {EMULATED}/1\n- executables: {FORMAT} and IREE's host executables\n{COMMON}, and the \
                 emulator's",
                info.name
            );
        }
        let node = nodes(&Linux).ok().and_then(|nodes| find(&nodes, &Selector::of(&info.path)).ok());
        let state = node.map_or_else(|| "gone".to_owned(), |node| node.occupancy());
        format!(
            "# {}\n- evidence: none on silicon yet\n- channels: {state}\n- kernel module: {}\n- executables: {FORMAT}\n\
             {COMMON}",
            info.name,
            ModuleSettings::read(&Linux).describe()
        )
    }
}

/// What comes before the number of an emulated card.
const EMULATED: &str = "emulated";

/// What is true of every device, for `--dump_devices`.
const COMMON: &str = "- queues: 4, in order\n- parameters: open_timeout, control_timeout, execute_timeout, restart_timeout, \
                      channels, elements, in_flight";

/// Which emulated card a path names, if it names one.
fn emulated(path: &str) -> Result<Option<usize>, Failure> {
    let Some(rest) = path.strip_prefix(EMULATED) else { return Ok(None) };
    let number =
        if rest.is_empty() { Some(0) } else { rest.strip_prefix('/').and_then(|text| text.parse().ok()) };
    number.map(Some).ok_or_else(|| {
        let message =
            format!("there is no qaic://{path}; the emulated cards are {EMULATED}/0, {EMULATED}/1 and so on");
        Failure::new(Code::NotFound, message)
    })
}

/// Opens a node of a kernel, and makes a device of it.
fn open(
    kernel: Arc<dyn Kernel>,
    node: &Path,
    programs: Option<Arc<dyn Programs>>,
    opening: &Opening,
) -> Result<QaicDevice, Failure> {
    device(Card::open(kernel, node, opening.patience)?, programs, opening)
}

/// The card behind a descriptor of this process.
fn adopt(number: &str, opening: &Opening) -> Result<QaicDevice, Failure> {
    let bad = || {
        let message = format!("qaic://fd/{number} names no open descriptor of this process");
        Failure::new(Code::InvalidArgument, message)
    };
    let number: i32 = number.parse().map_err(|_| bad())?;
    let file = kmd::borrow(number).ok_or_else(bad)?;
    let name = format!("descriptor {number}");
    match Emulator::of(file) {
        Some(emulator) => {
            let programs: Arc<dyn Programs> = emulator.clone();
            device(Card::adopt(emulator, file, name)?, Some(programs), opening)
        }
        None => device(Card::adopt(Arc::new(Linux), file, name)?, None, opening),
    }
}

fn device(
    card: Arc<Card>,
    programs: Option<Arc<dyn Programs>>,
    opening: &Opening,
) -> Result<QaicDevice, Failure> {
    let client = Client::new(card, opening.control)?;
    for warning in client.warnings() {
        // Nothing fails for it, so that there is no status that it could be in.
        eprintln!("hal-qaic: {warning}");
    }
    QaicDevice::new(client, programs, opening.settings)
}

fn listed(node: &Node) -> DeviceInfo {
    DeviceInfo {
        path: node.number.to_string(),
        name: format!("{} at {}, {}", node.model.name(), node.address, node.path().display()),
    }
}

/// The node that a path names.
fn locate(kernel: &dyn Kernel, path: &str) -> Result<PathBuf, Failure> {
    if path.starts_with('/') {
        return Ok(PathBuf::from(path));
    }
    Ok(find(&nodes(kernel)?, &Selector::of(path))?.path())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kmd::scripted::Files;
    use hal_backend::Code;

    fn opening(pairs: &[(&'static str, &'static str)]) -> Result<Opening, Failure> {
        Opening::read(&mut Parameters::new("qaic", pairs.iter().copied()))
    }

    #[test]
    fn timeouts_are_what_was_asked_for_or_an_error() {
        let given = opening(&[
            ("open_timeout", "0"),
            ("control_timeout", "7"),
            ("execute_timeout", "90"),
            ("restart_timeout", "0"),
            ("channels", "3"),
            ("elements", "64"),
        ]);
        let given = given.unwrap();
        assert_eq!((given.patience, given.control), (Duration::ZERO, Some(Duration::from_secs(7))));
        let settings = given.settings;
        assert_eq!(
            (settings.execute_timeout, settings.restart_timeout),
            (Duration::from_secs(90), Duration::ZERO)
        );
        assert_eq!((settings.channels, settings.elements), (3, Some(64)));
        let default = opening(&[]).unwrap();
        assert_eq!((default.control, default.settings.elements), (None, None));
        for pair in [
            ("execute_timeout", "0"),
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
    fn emulated_card_has_to_be_named() {
        assert_eq!(emulated("").unwrap(), None);
        assert_eq!(emulated("0").unwrap(), None);
        assert_eq!(emulated("emulated").unwrap(), Some(0));
        assert_eq!(emulated("emulated/1").unwrap(), Some(1));
        assert!(emulated("emulated1").is_err() && emulated("emulated/x").is_err());
    }

    #[test]
    fn path_names_a_node_or_nothing() {
        let description = "PCI_ID=17CB:A100\nPCI_SLOT_NAME=0000:19:00.0\n".to_owned();
        let system = Files::new([("/sys/class/accel/accel4/device/uevent", description)]);
        for path in ["", "4", "0000:19:00.0", "/dev/accel/accel4"] {
            assert_eq!(locate(&system, path).unwrap(), Path::new("/dev/accel/accel4"), "{path}");
        }
        assert_eq!(locate(&system, "0").unwrap_err().code(), Code::NotFound);
        // A node is taken as it is: whose it is, is asked when it is open.
        assert_eq!(locate(&system, "/dev/other").unwrap(), Path::new("/dev/other"));
    }

    #[test]
    fn creating_the_driver_touches_nothing_and_a_missing_card_is_said() {
        let failure =
            Qaic::create().open("/dev/accel/accel9999", &mut Parameters::new("qaic", [])).unwrap_err();
        assert_eq!(failure.code(), Code::NotFound);
        assert!(failure.message().contains("accel9999"), "{failure}");
    }

    #[test]
    fn advice_is_for_what_was_not_done() {
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
