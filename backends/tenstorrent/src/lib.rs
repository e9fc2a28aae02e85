// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Tenstorrent Blackhole and Wormhole cards, through the `tt-kmd` kernel driver's own interface.
//!
//! `tenstorrent://` drives a card through the kernel driver's windows, and runs executables that IREE's compiler
//! makes for 32-bit RISC-V (`embedded-elf-riscv_32`, or several of these in a [container]) on the small cores of its
//! Tensix tiles. Nothing of the vendor's user-space software is needed, neither its compiler.
//! `tenstorrent://emulated` drives an emulator of that kernel driver with a simulated chip behind it: the same path,
//! down to the kernel's requests and windows. Nothing here has been proved on silicon yet.
//!
//! # Devices
//!
//! | path | device |
//! |---|---|
//! | `tenstorrent://` | the first card that the kernel lists |
//! | `tenstorrent://N` | the card behind `/dev/tenstorrent/N` |
//! | `tenstorrent://0000:01:00.0` | the card at a place on the bus |
//! | `tenstorrent:///dev/tenstorrent/N` | the card behind a node |
//! | `tenstorrent://emulated`, `tenstorrent://emulated/N` | an emulated card; never taken unless it is named |
//! | `tenstorrent://ttsim` | an emulated card whose chip is in the simulator's library that `LIBTTSIM` names |
//!
//! What `tenstorrent://` stands for can be said otherwise by the environment: `HAL_TENSTORRENT_DEFAULT` is then the
//! path. A card that is named is that card or an error. It is open for one program at a time, which may have several
//! devices of it.
//!
//! [`Tenstorrent::PARAMETERS`](hal_backend::Driver::PARAMETERS) declares the parameters, and `docs/tenstorrent.md`
//! has their table. An emulated card takes those of its [emulation](hal_kernel::Emulation::PARAMETERS) as well.
//!
//! # A simulator's library
//!
//! Such a library ends its process where a rule is broken. So another program has it loaded, `tenstorrent-ttsim`,
//! which `emulator-tenstorrent` has: beside the program that opens the device, where programs are looked for, or
//! where `HAL_TTSIM_SERVER` says. When it ends, the device is lost, and what the library said is the reason. Its
//! tiles execute when the host looks for their end, on one thread, and nothing is counted.
//!
//! # Where things are
//!
//! | | |
//! |---|---|
//! | `kmd/` | the kernel: nodes, an open card, windows, coordinates, what may go wrong |
//! | `memory.rs`, `memory/` | DRAM and tiles' memory: allocation, division over banks, transfers |
//! | `stub.rs`, `tile.rs` | what a tile's cores execute around a function, and how a tile is started and held |
//! | `open_card.rs` | the cards that a program has open, each once |
//! | `binding.rs`, `dispatch.rs` | the memory that a dispatch works on, and how it is laid out in tiles |
//! | `container.rs`, `container/` | several variants of one executable in one file |
//! | `executable.rs`, `queue.rs`, `device.rs` | what the driver sees |

mod binding;
pub mod container;
mod device;
mod dispatch;
mod executable;
mod generation;
pub mod kmd;
mod memory;
mod open_card;
mod queue;
mod stub;
mod tile;

pub use device::TenstorrentDevice;
pub use executable::{Executable, FORMAT};
pub use memory::{CardRange, Memory};

use dispatch::Settings;
use hal_backend::{DeviceInfo, Driver, Failure, Parameter, Parameters};
use hal_kernel::{Emulation, NoEmulation};
use kmd::{CARDS, Linux, cards};
use memory::{Division, L1Share};
use open_card::OpenCard;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

/// The driver behind `tenstorrent://`. `E` injects emulated cards, or none.
pub struct Tenstorrent<E = NoEmulation>(PhantomData<fn() -> E>);

impl<E> fmt::Debug for Tenstorrent<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tenstorrent")
    }
}

/// The first words of emulated cards' paths: this project's chip, and a simulator's library.
const EMULATED: [&str; 2] = ["emulated", "ttsim"];

/// More tiles than any card has.
const MOST_TILES: usize = 256;

/// How many KiB of a tile's memory buffers can have, and in which steps: pages.
const MOST_L1: u32 = 512;
const L1_STEP: u32 = 4;
/// What buffers have of it where nothing is said.
const L1_DEFAULT: L1Share = L1Share { bytes: 64 << 10, division: Division::DEFAULT };

/// The parameters of every card.
const PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "open_timeout",
        values: "SECONDS",
        default: "10",
        effect: "how long to wait for a card that another program has",
    },
    Parameter {
        name: "timeout",
        values: "SECONDS",
        default: "600",
        effect: "how long a dispatch may take; then its tiles are stopped, and it fails",
    },
    Parameter {
        name: "tiles",
        values: "N",
        default: "all but one; emulated: one for each worker",
        effect: "on how many tiles a dispatch runs, at most",
    },
    Parameter {
        name: "cores",
        values: "N",
        default: "5; emulated: 1",
        effect: "on how many cores of each tile",
    },
    Parameter {
        name: "l1",
        values: "KIB[:DIVISION]",
        default: "64:height",
        effect: "memory of each tile for [buffers](#memory), up to 512, and their division",
    },
    Parameter {
        name: "paging",
        values: "auto|always",
        default: "auto",
        effect: "`always`: a dispatch brings pages one by one even if all fit into a tile",
    },
];

/// The lines of `--dump_devices` that hold for every card.
const COMMON: &str = "- queues: 2, compute and transfer, each in order\n- executables: embedded-elf-riscv_32, \
                      tenstorrent-htt1";

/// What the parameters of a URI say.
#[derive(Debug, PartialEq, Eq)]
struct Opening {
    patience: Duration,
    timeout: Duration,
    tiles: Option<usize>,
    cores: Option<usize>,
    paged: bool,
    l1: L1Share,
}

impl Opening {
    fn read(parameters: &mut Parameters<'_>) -> Result<Self, Failure> {
        let seconds = |number: u64| Duration::from_secs(number);
        let l1 = match parameters.take("l1")? {
            Some(text) => share(text).ok_or_else(|| refuse_share(parameters, text))?,
            None => L1_DEFAULT,
        };
        let tiles = parameters.optional_number("tiles", 1, MOST_TILES)?;
        let cores = parameters.optional_number("cores", 1, stub::CORES)?;
        Ok(Self {
            patience: seconds(parameters.number("open_timeout", 10, 0, 86_400)?),
            timeout: seconds(parameters.number("timeout", 600, 1, 86_400)?),
            tiles,
            cores,
            l1,
            paged: parameters.choice("paging", &["auto", "always"])? == Some("always"),
        })
    }

    /// How dispatches run, with what is right where nothing was said.
    fn settings(&self, tiles: usize, cores: usize) -> Settings {
        Settings {
            tiles: self.tiles.unwrap_or(tiles),
            cores: self.cores.unwrap_or(cores),
            timeout: self.timeout,
            paged: self.paged,
        }
    }
}

/// What buffers have of tiles' memory: so many KiB, and how they are divided if that is said.
fn share(text: &str) -> Option<L1Share> {
    let (kib, division) = match text.split_once(':') {
        Some((kib, name)) => (kib, name.parse().ok()?),
        None => (text, Division::DEFAULT),
    };
    let kib = kib.parse::<u32>().ok().filter(|kib| *kib <= MOST_L1 && kib.is_multiple_of(L1_STEP))?;
    Some(L1Share { bytes: kib << 10, division })
}

#[cold]
fn refuse_share(parameters: &Parameters<'_>, text: &str) -> Failure {
    let names: Vec<&str> = Division::names().collect();
    let takes = format!(
        "is {text:?}; it takes a multiple of {L1_STEP} from 0 to {MOST_L1}, in KiB, and behind a colon how buffers \
         are divided: {}",
        names.join(", ")
    );
    parameters.refuse("l1", &takes)
}

impl<E: Emulation<()>> Driver for Tenstorrent<E> {
    type Device = TenstorrentDevice;

    const NAME: &'static str = CARDS.driver;
    const FULL_NAME: &'static str =
        "Tenstorrent Blackhole and Wormhole (tt-kmd kernel driver, or an emulator of it)";
    const PARAMETERS: &'static [Parameter] = PARAMETERS;

    fn create() -> Self {
        Self(PhantomData)
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Failure> {
        Ok(CARDS.devices::<E, ()>(&cards(&Linux)?))
    }

    fn open(&self, path: &str, parameters: &mut Parameters<'_>) -> Result<TenstorrentDevice, Failure> {
        let opening = Opening::read(parameters)?;
        let named = CARDS.resolve::<E, ()>(path, parameters, cards)?;
        // More tiles of an emulated card than there are threads, or more cores of a tile, would make nothing faster.
        let (tiles, cores) = named.workers.map_or((MOST_TILES, stub::CORES), |workers| (workers, 1));
        let card = OpenCard::open(&named, opening.patience, opening.l1)?;
        TenstorrentDevice::new(card, opening.settings(tiles, cores))
    }

    fn describe(&self, info: &DeviceInfo) -> String {
        if CARDS.is_emulated(info) {
            return format!(
                "# {}\n- evidence: emulator; nothing here is proved on silicon\n- cards: 1 unless cards= says \
                 otherwise, as \
                 {path}/0, {path}/1\n{COMMON}",
                info.name,
                path = info.path,
            );
        }
        format!("# {}\n- evidence: none on silicon yet\n{COMMON}", info.name)
    }

    fn parameters(&self, info: &DeviceInfo) -> Vec<Parameter> {
        CARDS.parameters::<E, ()>(info, PARAMETERS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_backend::Code;

    type Tenstorrent = super::Tenstorrent<emulator_tenstorrent::Emulated>;

    fn opening(pairs: &[(&'static str, &'static str)]) -> Result<Opening, Failure> {
        Opening::read(&mut Parameters::new("tenstorrent", pairs.iter().copied()))
    }

    #[test]
    fn parameters_are_read_or_refused() {
        let given =
            [("open_timeout", "0"), ("timeout", "3"), ("tiles", "7"), ("cores", "2"), ("paging", "always")];
        let settings = opening(&given).unwrap().settings(1, 1);
        assert_eq!(settings, Settings { tiles: 7, cores: 2, timeout: Duration::from_secs(3), paged: true });
        let settings = opening(&[]).unwrap().settings(4, 5);
        assert_eq!(
            settings,
            Settings { tiles: 4, cores: 5, timeout: Duration::from_secs(600), paged: false }
        );
        for pair in [
            ("tiles", "0"),
            ("tiles", "257"),
            ("cores", "6"),
            ("timeout", "0"),
            ("l1", "5"),
            ("l1", "516"),
            ("l1", "64:"),
            ("l1", "64:depth"),
            ("l1", ":height"),
            ("l1", "-4"),
        ] {
            let refused = opening(&[pair]).unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert!(refused.message().contains(pair.0), "{refused}");
        }
    }

    #[test]
    fn missing_card_is_refused_with_advice() {
        let failure = Tenstorrent::create()
            .open("/dev/tenstorrent/9999", &mut Parameters::new("tenstorrent", []))
            .unwrap_err();
        assert_eq!(failure.code(), Code::NotFound);
        assert!(failure.message().contains("/dev/tenstorrent/9999"), "{failure}");
        assert!(failure.message().contains("tenstorrent://emulated"), "{failure}");
    }

    #[test]
    fn advice_differs_from_the_request() {
        let cases: &[(&str, &[&str])] = &[
            ("tenstorrent://emulated/1", &["tenstorrent://emulated/1", "has 1 card,", "cards=2"]),
            ("tenstorrent://emulated/3?cards=2", &["has 2 cards", "cards=4"]),
            ("tenstorrent://emulated/8?cards=8", &["has 8 cards", "from 0 to 7"]),
            ("tenstorrent://emulated/x", &["emulated/0, emulated/1"]),
            ("tenstorrent:///dev/tenstorrent/250", &["ask for tenstorrent://emulated"]),
        ];
        emulator_testbench::assert_refused(Tenstorrent::open_uri, cases);
    }
}
