// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Tenstorrent Blackhole and Wormhole cards, through the `tt-kmd` kernel driver's own interface.
//!
//! `tenstorrent://` drives a card through the kernel driver's windows, and runs executables that IREE's compiler makes for 32-bit RISC-V
//! (`embedded-elf-riscv_32`, or several of these in a [container]) on the small cores of its Tensix tiles. Nothing of the vendor's user-space software is needed, neither
//! its compiler. `tenstorrent://emulated` drives an emulator of that kernel driver with a simulated chip
//! behind it: the same path, down to the kernel's requests and windows. Nothing here has been proved on silicon yet.
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
//! | `tenstorrent://ttsim` | the same, but the chip is in the simulator's library (`libttsim.so`) that the variable `LIBTTSIM` names |
//!
//! What `tenstorrent://` stands for can be said otherwise by the environment: `HAL_TENSTORRENT_DEFAULT` is then the path. A card that is
//! named is that card or an error. It is open for one program at a time, which may have several devices of it.
//!
//! # Parameters
//!
//! | parameter | default | what it does |
//! |---|---|---|
//! | `open_timeout=SECONDS` | 10 | how long to wait for a card that another program has |
//! | `timeout=SECONDS` | 600 | how long a dispatch may take; then its tiles are stopped, and it fails |
//! | `tiles=N` | all but one; of an emulated card as many as it has workers | on how many tiles a dispatch runs, at most |
//! | `cores=N` | 5; of an emulated card 1 | on how many cores of each tile |
//! | `l1=KIB`, `l1=KIB:DIVISION` | 64:height | how much of each tile's memory is for buffers that dispatches work on and that fit: up to 512, in whole pages of 4, and none with 0; and how they are divided over the tiles: `interleaved`, `height`, `width` or `block`, of which the last three may end in `-columns`. Dispatches have the rest |
//! | `paging=auto\|always` | auto | whether a dispatch brings pages one by one also where all of them fit into a tile |
//!
//! An emulated card takes those of its emulator as well.
//!
//! # A simulator's library
//!
//! Such a library ends its process where a rule is broken. So another program has it loaded, `tenstorrent-ttsim`, which `emulator-tenstorrent` has: beside the
//! program that opens the device, where programs are looked for, or where `HAL_TTSIM_SERVER` says. When it ends, the device is lost, and
//! what the library said is the reason. Its tiles execute when the host looks for their end, on one thread, and nothing is counted.
//!
//! # Where things are
//!
//! | | |
//! |---|---|
//! | `kmd/` | the kernel: nodes, an open card, windows, coordinates, what may go wrong |
//! | `memory.rs`, `memory/` | DRAM and tiles' memory: who has which part, how buffers are divided over banks; transfers |
//! | `stub.rs`, `tile.rs` | what a tile's cores execute around a function, and how a tile is let go and held |
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
use hal_backend::{DeviceInfo, Driver, Failure, Parameters};
use hal_kernel::{Emulation, NoEmulation};
use kmd::{CARDS, Linux, cards};
use memory::{Division, Share};
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

/// What emulated cards are called, as the first word of a path: ours, and those of a simulator's library.
const EMULATED: [&str; 2] = ["emulated", "ttsim"];

/// More tiles than any card has.
const MOST_TILES: usize = 256;

/// How many KiB of a tile's memory buffers can have, and in which steps: pages.
const MOST_L1: u32 = 512;
const L1_STEP: u32 = 4;
/// What buffers have of it where nothing is said.
const L1_DEFAULT: Share = Share { bytes: 64 << 10, division: Division::DEFAULT };

/// What is true of every device, for `--dump_devices`.
const COMMON: &str = "- queues: 2, compute and transfer, each in order\n- executables: embedded-elf-riscv_32, tenstorrent-htt1\n- parameters: \
                      open_timeout, timeout, tiles, cores, l1, paging";

/// What the parameters of a URI say.
#[derive(Debug, PartialEq, Eq)]
struct Opening {
    patience: Duration,
    timeout: Duration,
    tiles: Option<usize>,
    cores: Option<usize>,
    paged: bool,
    l1: Share,
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
fn share(text: &str) -> Option<Share> {
    let (kib, division) = match text.split_once(':') {
        Some((kib, name)) => (kib, name.parse().ok()?),
        None => (text, Division::DEFAULT),
    };
    let kib = kib.parse::<u32>().ok().filter(|kib| *kib <= MOST_L1 && kib.is_multiple_of(L1_STEP))?;
    Some(Share { bytes: kib << 10, division })
}

#[cold]
fn refuse_share(parameters: &Parameters<'_>, text: &str) -> Failure {
    let names: Vec<&str> = Division::names().collect();
    let takes = format!(
        "is {text:?}; it takes a multiple of {L1_STEP} from 0 to {MOST_L1}, in KiB, and behind a colon how buffers are divided: {}",
        names.join(", ")
    );
    parameters.refuse("l1", &takes)
}

impl<E: Emulation<()>> Driver for Tenstorrent<E> {
    type Device = TenstorrentDevice;

    const NAME: &'static str = CARDS.driver;
    const FULL_NAME: &'static str =
        "Tenstorrent Blackhole and Wormhole (tt-kmd kernel driver, or an emulator of it)";

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
        if EMULATED.contains(&info.path.as_str()) {
            return format!(
                "# {}\n- evidence: emulator; nothing here is proved on silicon\n- cards: 1 unless cards= says otherwise, as \
                 {path}/0, {path}/1\n{COMMON}, and the emulator's",
                info.name,
                path = info.path,
            );
        }
        format!("# {}\n- evidence: none on silicon yet\n{COMMON}", info.name)
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
    fn parameters_are_what_was_asked_for_or_an_error() {
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
    fn card_that_is_not_there_is_said_with_what_to_do() {
        let failure = Tenstorrent::create()
            .open("/dev/tenstorrent/9999", &mut Parameters::new("tenstorrent", []))
            .unwrap_err();
        assert_eq!(failure.code(), Code::NotFound);
        assert!(failure.message().contains("/dev/tenstorrent/9999"), "{failure}");
        assert!(failure.message().contains("tenstorrent://emulated"), "{failure}");
    }

    #[test]
    fn advice_is_for_what_was_not_done() {
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
