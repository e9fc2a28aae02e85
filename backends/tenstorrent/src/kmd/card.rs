// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An open card: its identity, memory and registers, and its end.
//!
//! A card is opened for one program alone; modules before 2.10 need a lock for that. Before the driver touches any
//! tile, it asks the card's controller what is fused off: touching such a tile hangs the network, and may hang the
//! host. Then it touches only places of the [`Grid`].
//!
//! # When the program ends
//!
//! Whenever the file is closed, the kernel does one write to the network ([`Card::set_cleanup`]), which holds the cores
//! of the first tile. A device that is closed in order holds all other tiles. If a program dies, its other tiles run to
//! their end, and the next program that opens the card holds all tiles before it does anything else.

use super::error::Error;
use super::grid::{Coordinates, Grid};
use super::nodes::CARDS;
use super::window::Windows;
use crate::generation::{Controller, Generation, Harvest, Messages};
use hal_backend::{Code, Failure};
use hal_kernel::drm::Unidentified;
use hal_kernel::{CardFile, Errno, System, clock};
use hal_tenstorrent_abi::uapi::{VENDOR, lock, power};
use hal_tenstorrent_abi::{CallError, Calls, Feature, NocCleanup, Power};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The register of a tile with a bit for each core that is held, and all five of them held.
pub(crate) const SOFT_RESET: u64 = 0xffb1_21b0;
pub(crate) const ALL_HELD: u32 = 0x4_7800;

/// The upper half of a message's number, and the number's value if the firmware does not know the message.
const ASKED: u32 = 0xaa00;
const UNKNOWN: u32 = u32::MAX;
/// The lock of a card that is open alone, with modules before 2.10: the last one. The first are for Ethernet cores.
const LOCK: u8 = lock::COUNT - 1;

/// How long a controller may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
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
    generation: &'static Generation,
    board: &'static str,
    grid: Grid,
    windows: Windows,
}

impl Card {
    /// Opens a node, and waits up to `patience` for another program that has it.
    pub fn open(system: Arc<dyn System>, node: &Path, patience: Duration) -> Result<Self, Failure> {
        let begin = Instant::now();
        let file = CardFile::open(&CARDS, system.clone(), node, patience)?;
        let name = file.name().to_owned();
        let of = |error: Error| error.failure(&name);
        let calls = Calls::new(file).map_err(|error| match error {
            // Every module answers this.
            CallError::Refused { errno: errno @ (Errno::NOTTY | Errno::INVAL), .. } => {
                Unidentified::Unanswered(errno).failure(&name, CARDS.module)
            }
            other => of(other.into()),
        })?;
        let info = calls.device().map_err(|error| of(error.into()))?;
        let generation = Generation::of(info.device).filter(|_| info.vendor == VENDOR).ok_or_else(|| {
            let message = format!(
                "{name} is a card of an unknown kind ({:#06x}:{:#06x}), and only {} can be used: name one of those by \
                 tenstorrent://N, or ask for tenstorrent://emulated",
                info.vendor,
                info.device,
                Generation::supported()
            );
            Failure::new(Code::FailedPrecondition, message)
        })?;
        take_alone(&name, &calls, || begin.elapsed() < patience, || CARDS.holder(&*system, node))?;
        if calls.driver().has(Feature::PowerState) {
            let flags = power::MAX_AI_CLOCK | power::MEMORY_AWAKE | power::TENSIX;
            calls.set_power(Power { flags }).map_err(|error| of(error.into()))?;
        }
        let windows = Windows::new(calls, generation.windows).map_err(of)?;
        Self::identify(name.clone(), generation, windows).map_err(of)
    }

    /// Asks the controller which tiles and banks there are.
    fn identify(name: String, generation: &'static Generation, mut windows: Windows) -> Result<Self, Error> {
        let controller = &generation.controller;
        let telemetry = telemetry(&windows, controller)?;
        let of = |tag| telemetry.get(&tag).copied();
        let grid = match &controller.harvest {
            // A controller that does not report one of them has a chip of which nothing is fused off.
            Harvest::Telemetry => Grid::blackhole(
                of(tag::TENSIX_COLUMNS).unwrap_or(Grid::ALL_COLUMNS),
                of(tag::BANKS).unwrap_or(Grid::ALL_BANKS),
            ),
            Harvest::Message(messages) => Grid::wormhole(ask(&windows, controller, messages)?),
        };
        let grid = grid.map_err(|error| {
            Error::Other(Failure::new(
                Code::FailedPrecondition,
                format!("{error} (firmware {:#010x})", of(tag::FIRMWARE).unwrap_or(0)),
            ))
        })?;
        let board = match of(tag::BOARD_HIGH).unwrap_or(0) >> 4 {
            0x43 => "p100a",
            0x40..=0x42 => "p150",
            0x18 => "n150",
            _ => "board of an unknown kind",
        };
        windows.add_banks(grid.banks())?;
        let card = Self { name: format!("{board} at {name}"), generation, board, grid, windows };
        card.hold_all()?;
        card.set_cleanup()?;
        Ok(card)
    }

    /// Holds the cores of every tile, which a program that died may have left running.
    pub(crate) fn hold_all(&self) -> Result<(), Error> {
        self.grid.tiles().iter().try_for_each(|&tile| self.write_word(tile, SOFT_RESET, ALL_HELD))
    }

    /// Has the kernel hold the first tile when the file is closed.
    fn set_cleanup(&self) -> Result<(), Error> {
        let calls = self.windows.calls();
        let Some(&Coordinates { x, y }) = self.grid.tiles().first() else { return Ok(()) };
        if calls.driver().has(Feature::NocCleanup) {
            let cleanup = NocCleanup { x, y, noc: 0, address: SOFT_RESET, value: ALL_HELD };
            calls.set_cleanup(Some(cleanup))?;
        }
        Ok(())
    }

    /// Its name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kind of its chip.
    pub(crate) fn generation(&self) -> &'static Generation {
        self.generation
    }

    /// The name of its board.
    pub fn board(&self) -> &'static str {
        self.board
    }

    /// Its tiles and banks.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// The number of small windows, and of those for a bank each.
    pub fn windows(&self) -> (usize, usize) {
        self.windows.counts()
    }

    /// The size of a window that shows all of so many bytes of a bank to other devices, if one can and the kernel
    /// driver lends windows.
    pub(crate) fn window_to_lend(&self, length: u64) -> Option<u64> {
        self.windows.calls().driver().has(Feature::ExportWindow).then(|| self.windows.to_lend(length))?
    }

    /// The most bytes that a window shows to other devices.
    pub(crate) fn most_to_lend(&self) -> u64 {
        self.windows.most_to_lend()
    }

    /// A dma-buf of whole pages of a bank.
    pub(crate) fn lend(&self, bank: Coordinates, address: u64, length: u64) -> Result<OwnedFd, Error> {
        self.windows.lend(bank, address, length, self.generation.bank_bytes)
    }

    /// Reads memory of a place on the network.
    pub(crate) fn read(&self, place: Coordinates, address: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.windows.read(place, address, bytes)
    }

    /// Writes memory of a place on the network.
    pub(crate) fn write(&self, place: Coordinates, address: u64, bytes: &[u8]) -> Result<(), Error> {
        self.windows.write(place, address, bytes)
    }

    /// Reads a word, which may be a register.
    pub(crate) fn read_word(&self, place: Coordinates, address: u64) -> Result<u32, Error> {
        let mut bytes = [0; 4];
        self.windows.read(place, address, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Writes a word, which may be a register.
    pub(crate) fn write_word(&self, place: Coordinates, address: u64, word: u32) -> Result<(), Error> {
        self.windows.write(place, address, &word.to_le_bytes())
    }

    /// Finds out whether the file is still one of the card: a reset by another program, or a removal, ends that.
    pub(crate) fn ask(&self) -> Result<(), Error> {
        Ok(self.windows.calls().device().map(drop)?)
    }

    /// Finds out whether a card that answers with ones only is still there: its controller always has something else
    /// to say.
    pub(crate) fn check_alive(&self) -> Result<(), Error> {
        let Controller { place, base, table, .. } = self.generation.controller;
        if self.read_word(place, base + table)? == u32::MAX {
            return Err(hung());
        }
        Ok(())
    }
}

/// Has the card for this program alone where the module opens it for all, by the [`LOCK`]. That keeps out programs
/// with this driver, not others.
fn take_alone(
    name: &str,
    calls: &Calls<CardFile>,
    may_wait: impl Fn() -> bool,
    holder: impl FnOnce() -> String,
) -> Result<(), Failure> {
    if calls.driver().has(Feature::ExclusiveOpen) {
        return Ok(());
    }
    while !calls.try_lock(LOCK).map_err(|error| Error::from(error).failure(name))? {
        if !may_wait() {
            let message =
                format!("{name} is in use: its lock {LOCK} is taken, and it is open in {}", holder());
            return Err(Failure::new(Code::Unavailable, message));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

impl Drop for Card {
    fn drop(&mut self) {
        // A card that is gone runs nothing that has to be held, and an access by a mapping of it is a signal.
        if self.ask().is_ok() {
            let _ = self.hold_all();
        }
    }
}

/// Why a card whose controller reads as ones cannot be used.
fn hung() -> Error {
    let why =
        "everything of it reads as ones, as when its network hangs: reset it (tt-smi -r), and open it again";
    Error::Gone(why.to_owned())
}

/// A word of the controller's own address space.
fn word(windows: &Windows, controller: &Controller, address: u64) -> Result<u32, Error> {
    let mut bytes = [0; 4];
    windows.read(controller.place, controller.base + address, &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

/// Asks the controller what is fused off.
fn ask(windows: &Windows, controller: &Controller, messages: &Messages) -> Result<u32, Error> {
    let word = |address| word(windows, controller, address);
    let put = |address, value: u32| {
        windows.write(controller.place, controller.base + address, &value.to_le_bytes())
    };
    let unusable = |message: String| Error::Other(Failure::new(Code::FailedPrecondition, message));
    if word(messages.translation)? & messages.translated == 0 {
        return Err(unusable(
            "its firmware does not translate coordinates, without which tiles that are fused off leave holes: update \
             it (tt-flash)"
                .to_owned(),
        ));
    }
    put(messages.argument, 0)?;
    put(messages.number, ASKED | messages.question)?;
    put(messages.control, word(messages.control)? | messages.doorbell)?;
    let deadline = clock().saturating_add(u64::try_from(ANSWER.as_nanos()).unwrap_or(u64::MAX));
    loop {
        let state = word(messages.number)?;
        if state & 0xffff == messages.question {
            // The upper half is zero if the question was answered.
            return match state >> 16 {
                0 => word(messages.argument),
                code => Err(unusable(format!("its controller does not say what is fused off ({code:#x})"))),
            };
        }
        if state == UNKNOWN && word(controller.table)? == u32::MAX {
            return Err(hung());
        }
        if state == UNKNOWN || clock() >= deadline {
            return Err(unusable(format!(
                "its controller does not answer what is fused off ({state:#x}), so no tile can be touched: reset it \
                 (tt-smi -r), or update its firmware (tt-flash)"
            )));
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// The controller's telemetry, by tag.
fn telemetry(windows: &Windows, controller: &Controller) -> Result<BTreeMap<u32, u32>, Error> {
    let word = |address| word(windows, controller, address);
    let (table, values) = (word(controller.table)?, word(controller.values)?);
    let count = if table == u32::MAX { u32::MAX } else { word(u64::from(table) + 4)? };
    if count > MOST_ENTRIES {
        return Err(Error::Gone(format!(
            "its controller has no telemetry (a table of {count} entries at {table:#x}): its firmware has not \
             started, or its network hangs; reset it (tt-smi -r)"
        )));
    }
    let mut telemetry = BTreeMap::new();
    for index in 0..u64::from(count) {
        let entry = word(u64::from(table) + 8 + 4 * index)?;
        telemetry.insert(entry & 0xffff, word(u64::from(values) + 4 * u64::from(entry >> 16))?);
    }
    Ok(telemetry)
}

#[cfg(test)]
mod tests;
