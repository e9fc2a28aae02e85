// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An open card: who it is, its memory and registers, and what is done when it is closed.
//!
//! A card is opened for one program alone. Before any tile is touched, its controller is asked what is fused off: touching that hangs
//! the network, and may take the host along. From then on only places of the [`Grid`] are touched.
//!
//! # When the program ends
//!
//! The kernel does one write to the network when the file is closed, however that comes about ([`Card::arm`]): it holds the cores of the
//! first tile. All other tiles are held when the device is closed in order; a program that dies leaves theirs where they are, executing
//! what they were given to its end, and the next program that opens the card holds all of them before it does anything else.

use super::error::Error;
use super::grid::{CONTROLLER, Grid, Place};
use super::window::{File, Windows};
use hal_backend::{Code, Failure};
use hal_emulation::{Errno, Kernel, clock};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tenstorrent_abi::uapi::{VENDOR, device, power};
use tenstorrent_abi::{Calls, Feature, NocCleanup, Power};

/// The register of a tile with a bit for each core that is held, and all five of them held.
pub(crate) const SOFT_RESET: u64 = 0xffb1_21b0;
pub(crate) const ALL_HELD: u32 = 0x4_7800;

/// Where the controller says where telemetry is: the table, and the values.
const TABLE: u64 = 0x8003_0434;
const VALUES: u64 = 0x8003_0430;
/// More entries than any firmware has.
const MOST_ENTRIES: u32 = 512;

/// Tags of telemetry.
mod tag {
    pub(super) const BOARD_HIGH: u32 = 1;
    pub(super) const FIRMWARE: u32 = 28;
    pub(super) const TENSIX_COLUMNS: u32 = 34;
    pub(super) const BANKS: u32 = 36;
}

/// An open card.
#[derive(Debug)]
pub struct Card {
    name: String,
    board: &'static str,
    grid: Grid,
    windows: Windows,
}

impl Card {
    /// Opens a node, waiting so long for another program that has it.
    pub fn open(kernel: Arc<dyn Kernel>, node: &Path, patience: Duration) -> Result<Self, Failure> {
        let name = node.display().to_string();
        let file = open(&kernel, node, patience)?;
        let of = |error: Error| error.failure(&name);
        let calls = Calls::new(File::new(kernel, file)).map_err(|error| of(error.into()))?;
        let info = calls.device().map_err(|error| of(error.into()))?;
        if info.vendor != VENDOR || info.device != device::BLACKHOLE {
            let what = if info.device == device::WORMHOLE { "a Wormhole" } else { "no Blackhole" };
            let message = format!(
                "{name} is {what} ({:#06x}:{:#06x}), and only Blackhole cards (p100a, p150) can be used: name one of those by \
                 tenstorrent://N, or ask for tenstorrent://emulated",
                info.vendor, info.device
            );
            return Err(Failure::new(Code::FailedPrecondition, message));
        }
        if calls.driver().has(Feature::PowerState) {
            let flags = power::MAX_AI_CLOCK | power::MEMORY_AWAKE | power::TENSIX;
            calls.set_power(Power { flags }).map_err(|error| of(error.into()))?;
        }
        let windows = Windows::new(calls).map_err(of)?;
        Self::identify(name.clone(), windows).map_err(of)
    }

    /// Asks the controller what there is.
    fn identify(name: String, mut windows: Windows) -> Result<Self, Error> {
        let telemetry = telemetry(&windows)?;
        let of = |tag| telemetry.get(&tag).copied().unwrap_or(0);
        let grid = Grid::new(of(tag::TENSIX_COLUMNS), of(tag::BANKS));
        let grid = grid.map_err(|error| {
            Error::Other(Failure::new(
                Code::FailedPrecondition,
                format!("{error} (firmware {:#010x})", of(tag::FIRMWARE)),
            ))
        })?;
        let board = match of(tag::BOARD_HIGH) >> 4 {
            0x43 => "p100a",
            0x40..=0x42 => "p150",
            _ => "board of an unknown kind",
        };
        windows.add_banks(grid.banks())?;
        let card = Self { name: format!("{board} at {name}"), board, grid, windows };
        card.hold_all()?;
        card.arm()?;
        Ok(card)
    }

    /// Holds the cores of every tile: what a program that died has left running.
    pub(crate) fn hold_all(&self) -> Result<(), Error> {
        self.grid.tiles().iter().try_for_each(|&tile| self.write_word(tile, SOFT_RESET, ALL_HELD))
    }

    /// Has the kernel hold the first tile when the file is closed.
    fn arm(&self) -> Result<(), Error> {
        let calls = self.windows.calls();
        let Some(&Place { x, y }) = self.grid.tiles().first() else { return Ok(()) };
        if calls.driver().has(Feature::NocCleanup) {
            let cleanup = NocCleanup { x, y, noc: 0, address: SOFT_RESET, value: ALL_HELD };
            calls.set_cleanup(Some(cleanup))?;
        }
        Ok(())
    }

    /// What it is called in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is sold as.
    pub fn board(&self) -> &'static str {
        self.board
    }

    /// What there is of it.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// How many windows it has: of 2 MiB, and of 4 GiB.
    pub fn windows(&self) -> (usize, usize) {
        self.windows.counts()
    }

    /// Reads memory of a place on the network.
    pub(crate) fn read(&self, place: Place, address: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.windows.read(place, address, bytes)
    }

    /// Writes memory of a place on the network.
    pub(crate) fn write(&self, place: Place, address: u64, bytes: &[u8]) -> Result<(), Error> {
        self.windows.write(place, address, bytes)
    }

    /// Reads a word, which may be a register.
    pub(crate) fn read_word(&self, place: Place, address: u64) -> Result<u32, Error> {
        let mut bytes = [0; 4];
        self.windows.read(place, address, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Writes a word, which may be a register.
    pub(crate) fn write_word(&self, place: Place, address: u64, word: u32) -> Result<(), Error> {
        self.windows.write(place, address, &word.to_le_bytes())
    }

    /// Finds out whether a card that answers with ones only is still there: its controller always has something else to say.
    pub(crate) fn check_alive(&self) -> Result<(), Error> {
        if self.read_word(CONTROLLER, TABLE)? == u32::MAX {
            return Err(Error::Gone(
                "everything of it reads as ones, as when its network hangs: reset it (tt-smi -r), and open it again"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // A card that is gone holds nothing, and needs nothing held.
        let _ = self.hold_all();
    }
}

/// Opens a node for this program alone.
fn open(kernel: &Arc<dyn Kernel>, node: &Path, patience: Duration) -> Result<std::os::fd::OwnedFd, Failure> {
    let deadline = clock().saturating_add(u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX));
    let name = node.display();
    loop {
        let errno = match kernel.open_exclusive(node) {
            Ok(file) => return Ok(file),
            Err(errno) => errno,
        };
        let (code, why) = match errno {
            Errno::AGAIN | Errno::BUSY if clock() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
            Errno::AGAIN | Errno::BUSY => {
                let holder = kernel.holder(node).unwrap_or_else(|| "another program".to_owned());
                (Code::Unavailable, format!("{holder} has it open; a card is one program's at a time"))
            }
            Errno::NOENT | Errno::NXIO | Errno::NODEV => (
                Code::NotFound,
                "there is no such card; without one, ask for tenstorrent://emulated".to_owned(),
            ),
            Errno::ACCESS | Errno::PERM => (
                Code::PermissionDenied,
                format!("{errno}: allow your user to read and write it, as tt-kmd's udev rules do"),
            ),
            _ => (Code::Unavailable, errno.to_string()),
        };
        return Err(Failure::new(code, format!("{name} cannot be opened: {why}")));
    }
}

/// What the controller says, by tag.
fn telemetry(windows: &Windows) -> Result<BTreeMap<u32, u32>, Error> {
    let word = |address: u64| {
        let mut bytes = [0; 4];
        windows.read(CONTROLLER, address, &mut bytes)?;
        Ok::<u32, Error>(u32::from_le_bytes(bytes))
    };
    let (table, values) = (word(TABLE)?, word(VALUES)?);
    let count = if table == u32::MAX { u32::MAX } else { word(u64::from(table) + 4)? };
    if count > MOST_ENTRIES {
        return Err(Error::Gone(format!(
            "its controller has no telemetry (a table of {count} entries at {table:#x}): its firmware has not started, or its \
             network hangs; reset it (tt-smi -r)"
        )));
    }
    let mut telemetry = BTreeMap::new();
    for index in 0..u64::from(count) {
        let entry = word(u64::from(table) + 8 + 4 * index)?;
        telemetry.insert(entry & 0xffff, word(u64::from(values) + 4 * u64::from(entry >> 16))?);
    }
    Ok(telemetry)
}
