// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Intel Gaudi and Gaudi 2, through the habanalabs kernel driver's own interface.
//!
//! `gaudi://` drives a card through the requests of the upstream kernel driver: command submissions, signals and waits,
//! memory. Nothing of the vendor's user-space software is needed. `gaudi://emulated` drives an [emulator] of that
//! kernel driver and its cards, which runs IREE's host executables behind the same submissions; every path of this
//! crate goes through the same bytes on both. What no emulator can show is said in `docs/gaudi.md`: nothing here has been
//! proved on silicon yet.
//!
//! # Devices
//!
//! | path | device |
//! |---|---|
//! | `gaudi://` | the first card that the kernel lists |
//! | `gaudi://N` | the card behind `/dev/accel/accelN` |
//! | `gaudi://0000:19:00.0` | the card at a place on the bus |
//! | `gaudi:///dev/hl0` | the card behind a node, where an older driver puts it elsewhere |
//! | `gaudi://fd/N` | the card that the program itself has opened as descriptor N, and closes |
//! | `gaudi://emulated`, `gaudi://emulated/N` | an emulated card; never taken unless it is named |
//!
//! What `gaudi://` stands for can be said otherwise by the environment: `HAL_GAUDI_DEFAULT` is then the path.
//!
//! A card is open once in a process: devices that are opened for the same card share it, each with queues of its own.
//!
//! # Parameters
//!
//! | parameter | default | what it does |
//! |---|---|---|
//! | `open_timeout=SECONDS` | 130 | how long to wait for a card that is being reset |
//! | `timeout=SECONDS` | the kernel's | how long a submission may take before the kernel resets the card |
//! | `in_flight=N` | what the kernel takes | how many submissions may be in flight |
//!
//! The sharing of memory between cards and processes has [settings of its own](ipc), and an emulated card those of the
//! [emulator].
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
//! | `dma.rs`, `ffi.rs` | asynchronous transfers, in Rust and in C |
//! | `ipc/` | memory shared between cards and processes |
//! | `executable/` | the container of executables |
//! | `device.rs`, `info.rs` | all of it as a device, and what it says of itself |
//! | `shared.rs` | what there is once for each card of a process |

mod device;
pub mod dma;
pub mod executable;
pub mod ffi;
pub mod generation;
mod info;
pub mod ipc;
pub mod kmd;
pub mod memory;
pub mod packet;
mod plan;
mod queue;
mod shared;
mod submit;

pub use device::{Executable, GaudiDevice};
pub use emulator_gaudi as emulator;
pub use info::Info;

use device::Settings;
use emulator::{Emulator, Options};
use emulator_core::options::check_card;
use emulator_core::programs::Programs;
use emulator_core::remote::{self, Remote};
use hal_backend::{Code, DeviceInfo, Driver, Failure, Parameters};
use kmd::{Kernel, Key, Linux, Node, nodes};
use shared::Shared;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The driver behind `gaudi://`.
#[derive(Debug)]
pub struct Gaudi;

/// How many seconds a card that is being reset is waited for. The kernel gives the firmware 25 to 85 s to come up, and 10 s and
/// 30 s for what it loads then.
const OPEN_TIMEOUT: u64 = 130;

/// What a device without a path stands for, if the environment says so.
const DEFAULT: &str = "HAL_GAUDI_DEFAULT";

impl Gaudi {
    /// Opens what a URI names, such as `gaudi://0` or `gaudi://emulated?cards=1`, for programs that are no IREE.
    pub fn open_uri(uri: &str) -> Result<GaudiDevice, Failure> {
        let (path, pairs) = parse(uri);
        let mut parameters = Parameters::new(Self::NAME, pairs);
        let device = Self.open(path, &mut parameters)?;
        parameters.finish().map(|()| device)
    }
}

/// The path and the parameters of a URI.
fn parse(uri: &str) -> (&str, impl Iterator<Item = (&str, &str)>) {
    let rest = uri.strip_prefix(Gaudi::NAME).unwrap_or(uri);
    let rest = rest.strip_prefix("://").unwrap_or(rest);
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    (path, pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))))
}

/// What comes before the number of an emulated card.
const EMULATED: &str = "emulated";

impl Driver for Gaudi {
    type Device = GaudiDevice;

    const NAME: &'static str = "gaudi";
    const FULL_NAME: &'static str = "Intel Gaudi (habanalabs kernel driver, or an emulator of it)";

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
            name: "emulated Gaudi 2: software behind the kernel driver's interface, no hardware".to_owned(),
        });
        Ok(devices)
    }

    fn open(&self, path: &str, parameters: &mut Parameters<'_>) -> Result<GaudiDevice, Failure> {
        let patience = Duration::from_secs(parameters.number("open_timeout", OPEN_TIMEOUT, 0, 3600)?);
        let in_flight = optional(parameters, "in_flight", submit::LEAST as u64, 1 << 14)?;
        let timeout = optional(parameters, "timeout", 1, 86_400)?;
        let mut settings = Settings {
            number: 0,
            in_flight: in_flight.and_then(|number| usize::try_from(number).ok()),
            timeout: timeout.and_then(|number| u32::try_from(number).ok()),
            ipc: ipc::Settings::read(parameters)?,
        };
        let default = std::env::var(DEFAULT).unwrap_or_default();
        let path = if path.is_empty() { default.as_str() } else { path };
        if let Some(number) = path.strip_prefix("fd/") {
            let (card, emulator) = adopt(number)?;
            return GaudiDevice::new(&card, programs(emulator)?, &settings);
        }
        let (node, emulator) = locate(path, parameters)?;
        settings.number = number_of(&node);
        let key = match &emulator {
            Some(emulator) => Key::emulated(emulator, &node),
            None => Key::of_node(&node),
        };
        let card = Shared::open(kernel(emulator.as_ref()), key, &node, patience)?;
        GaudiDevice::new(&card, programs(emulator)?, &settings)
    }

    fn describe(&self, info: &DeviceInfo) -> String {
        let common = "- queues: 2, and 4 on the first generation, in order, waiting for each other on the card\n- parameters: open_timeout, timeout, \
                      in_flight, dmabuf, mapped_dmabuf, dmabuf_cache, max_devices, peer_timeout";
        if info.path == EMULATED {
            return format!(
                "# {}\n- evidence: emulator; nothing here is proved on silicon\n- cards: 2 unless cards= says otherwise, as \
                 {EMULATED}/0, {EMULATED}/1\n- executables: {} and IREE's host executables\n{common}, and the emulator's: cards, \
                 generation, dram, register, abi, workers, schedule, seed, speed, machine, fault",
                info.name,
                executable::FORMAT
            );
        }
        let node = nodes(&Linux).ok().and_then(|nodes| find(&nodes, &info.path).ok());
        let status = node.map_or_else(|| "gone".to_owned(), |node| node.status);
        format!(
            "# {}\n- evidence: none on silicon yet; the emulator's tests\n- state: {status}\n- executables: {}\n{common}",
            info.name,
            executable::FORMAT
        )
    }
}

/// A number that may be left out.
fn optional(
    parameters: &mut Parameters<'_>,
    key: &'static str,
    least: u64,
    most: u64,
) -> Result<Option<u64>, Failure> {
    // No number below the least can be given, so it stands for none.
    let number = parameters.number(key, u64::MAX, least, most)?;
    Ok((number != u64::MAX).then_some(number))
}

fn listed(node: &Node) -> DeviceInfo {
    DeviceInfo {
        path: node.number.to_string(),
        name: format!("{} at {}, {}", node.generation, node.address, node.path().display()),
    }
}

/// Which emulated card a path names, if it names one.
fn emulated(path: &str) -> Result<Option<usize>, Failure> {
    let Some(rest) = path.strip_prefix(EMULATED) else { return Ok(None) };
    let number =
        if rest.is_empty() { Some(0) } else { rest.strip_prefix('/').and_then(|text| text.parse().ok()) };
    match number {
        Some(number) => Ok(Some(number)),
        None => Err(Failure::new(
            Code::NotFound,
            format!(
                "there is no gaudi://{path}; the emulated cards are {EMULATED}/0, {EMULATED}/1 and so on"
            ),
        )),
    }
}

/// The node that a path names, and the machine that it is in, if that is emulated.
fn locate(path: &str, parameters: &mut Parameters<'_>) -> Result<(PathBuf, Option<Arc<Emulator>>), Failure> {
    match emulated(path)? {
        Some(number) => {
            let options = Options::read(parameters)?;
            check_card(Gaudi::NAME, number, options.cards)?;
            let emulator = Emulator::get(&options)?;
            Ok((PathBuf::from(format!("/dev/accel/accel{number}")), Some(emulator)))
        }
        None if path.starts_with('/') => Ok((PathBuf::from(path), None)),
        None => Ok((find(&nodes(&Linux)?, path)?.path(), None)),
    }
}

/// Who runs host executables for a card that is software: the machine that it is in, or the process that emulates all
/// cards of this system. `None` where cards are hardware.
fn programs(emulator: Option<Arc<Emulator>>) -> Result<Option<Arc<dyn Programs>>, Failure> {
    match emulator {
        Some(emulator) => Ok(Some(emulator)),
        None => Ok(Remote::connect(&Linux)?.map(|remote| remote as Arc<dyn Programs>)),
    }
}

/// What a card is asked through: the machine that it is in, or this system.
fn kernel(emulator: Option<&Arc<Emulator>>) -> Arc<dyn Kernel> {
    match emulator {
        Some(emulator) => emulator.clone(),
        None => Arc::new(Linux),
    }
}

/// The card that a path names.
fn find(nodes: &[Node], path: &str) -> Result<Node, Failure> {
    let number = path.parse::<u32>().ok();
    let named = |node: &&Node| path.is_empty() || Some(node.number) == number || node.address == path;
    nodes.iter().find(named).cloned().ok_or_else(|| {
        let there: Vec<String> =
            nodes.iter().map(|node| format!("{} ({})", node.number, node.address)).collect();
        let there = if there.is_empty() {
            format!(
                "the kernel lists none in /sys/class/accel: no card, or its driver habanalabs is not loaded; without a card, \
                 ask for gaudi://{EMULATED}"
            )
        } else {
            format!("there are {}", there.join(", "))
        };
        Failure::new(
            Code::NotFound,
            format!("there is no card gaudi://{path}; {there}"),
        )
    })
}

/// The card behind a descriptor of this process.
fn adopt(number: &str) -> Result<(Arc<Shared>, Option<Arc<Emulator>>), Failure> {
    let bad = || {
        let message = format!("gaudi://fd/{number} names no open descriptor of this process");
        Failure::new(Code::InvalidArgument, message)
    };
    let number: i32 = number.parse().map_err(|_| bad())?;
    let file = kmd::borrow(number).ok_or_else(bad)?;
    let emulator = Emulator::of(file);
    let card = Shared::adopt(kernel(emulator.as_ref()), file, format!("descriptor {number}"))?;
    Ok((card, emulator))
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

    #[test]
    fn card_has_the_number_at_the_end_of_its_node() {
        let numbers = ["/dev/accel/accel12", "/dev/hl0", "/dev/host2/accel/accel3", "/dev/accel"];
        assert_eq!(numbers.map(|node| number_of(Path::new(node))), [12, 0, 3, 0]);
    }
    use emulator_testbench::cases;
    use generation::Generation;
    use proptest::prelude::*;

    #[test]
    fn card_is_found_by_number_and_by_place() {
        let node = |number, address: &str| Node {
            number,
            address: address.to_owned(),
            generation: Generation::Gaudi2,
            status: String::new(),
        };
        let nodes = [node(0, "0000:19:00.0"), node(3, "0000:b3:00.0")];
        for (path, number) in [("", 0), ("0", 0), ("3", 3), ("0000:b3:00.0", 3)] {
            assert_eq!(find(&nodes, path).unwrap().number, number, "{path}");
        }
        let missing = find(&nodes, "1").unwrap_err();
        assert_eq!(missing.code(), Code::NotFound);
        assert!(missing.message().contains("0 (0000:19:00.0), 3 (0000:b3:00.0)"), "{missing}");
        let none = find(&[], "").unwrap_err();
        assert!(
            none.message().contains("habanalabs") && none.message().contains("gaudi://emulated"),
            "{none}"
        );
    }

    #[test]
    fn emulated_card_has_to_be_named() {
        assert_eq!(emulated("").unwrap(), None);
        assert_eq!(emulated("0").unwrap(), None);
        assert_eq!(emulated("emulated").unwrap(), Some(0));
        assert_eq!(emulated("emulated/1").unwrap(), Some(1));
        assert!(emulated("emulated1").is_err() && emulated("emulated/x").is_err());
    }

    /// A card that boots refuses to be opened for longer than ten seconds.
    #[test]
    fn card_that_boots_is_waited_for() {
        let begin = std::time::Instant::now();
        Gaudi::open_uri("gaudi://emulated?seed=130&fault=open:EAGAIN:1050").unwrap();
        assert!(begin.elapsed() > Duration::from_secs(10));
    }

    #[test]
    fn advice_is_for_what_was_not_done() {
        let cases: &[(&str, &[&str])] = &[
            ("gaudi://emulated/2", &["gaudi://emulated/2", "has 2 cards", "cards=3"]),
            ("gaudi://emulated/1?cards=1", &["has 1 card,", "cards=2"]),
            ("gaudi://emulated/8?cards=8", &["has 8 cards", "from 0 to 7"]),
            ("gaudi://emulated/x", &["emulated/0, emulated/1"]),
            ("gaudi://emulated?fault=open:EAGAIN:100000&open_timeout=0", &["longer open_timeout="]),
            ("gaudi:///dev/accel/accel250", &["ask for gaudi://emulated"]),
        ];
        emulator_testbench::assert_refused(Gaudi::open_uri, cases);
        let listed = [Node {
            number: 0,
            address: "0000:19:00.0".to_owned(),
            generation: Generation::Gaudi2,
            status: String::new(),
        }];
        let other = find(&listed, "1").unwrap_err();
        assert!(!other.message().contains("without a card"), "there is one: {other}");
    }

    /// A parameter, often one that there is, with a value that is often one that it takes.
    fn pair() -> impl Strategy<Value = String> {
        let keys = [
            "cards",
            "generation",
            "dram",
            "register",
            "abi",
            "hz",
            "workers",
            "schedule",
            "seed",
            "speed",
            "machine",
            "fault",
            "timeout",
            "in_flight",
            "dmabuf",
            "mapped_dmabuf",
            "dmabuf_cache",
            "max_devices",
            "peer_timeout",
        ];
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
            "yes",
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
        let key =
            prop_oneof![8 => prop::sample::select(keys.to_vec()).prop_map(str::to_owned), 1 => "[a-z_]{0,9}"];
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
            path in prop_oneof![4 => Just("emulated".to_owned()), 1 => "emulated/[0-9a-z]{0,3}", 1 => "[a-z:/.%]{1,12}"],
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
