// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A whole chip.

use crate::arc::{Arc, ETHERNET_FIRMWARE};
use crate::board::Board;
use crate::counts::ChipCounts;
use crate::family::Family;
use crate::grid::{Endpoint, Grid};
use crate::memory::Sparse;
use crate::noc::{Location, NocTransfer, Tile};
use crate::tensix::{Core, CoreStop, INTERFACE, Tensix};
use crate::violation::Violation;
use crate::window::Windows;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How many instructions a core executes before the next one runs.
const SLICE: u64 = 32;
/// The length of a part's own interface to the network.
const INTERFACE_BYTES: u64 = 0x1000;

/// An address in one of the regions that the host maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarAddress {
    /// The region: 0, 2 or 4.
    pub bar: u8,
    /// The offset in it.
    pub offset: u64,
}

/// A core that has stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Its tile.
    pub tile: Tile,
    /// Its name within the tile.
    pub core: Core,
    /// The reason.
    pub stop: CoreStop,
}

/// A chip.
///
/// Several threads may use it. Each tile, each bank and all the rest have locks of their own, of which no
/// thread holds two at a time: bytes that go from one to another are copied in between, as by the network.
#[derive(Debug)]
pub struct Chip {
    family: &'static Family,
    grid: Grid,
    /// The bridge's coordinates.
    bridge_at: Location,
    /// By row, then column.
    tensix: Vec<Mutex<Tensix>>,
    /// The tiles that have started and are not idle in [`Chip::step`], or were not returned by
    /// [`Chip::take_started`].
    started: Mutex<BTreeSet<usize>>,
    /// By physical number; those that are fused off are never reached.
    banks: Vec<RwLock<Sparse>>,
    arc: RwLock<Arc>,
    windows: RwLock<Windows>,
    /// Registers of the bridge, which hold the written value without an effect.
    bridge: RwLock<Sparse>,
    /// What later accesses are refused with.
    lost: OnceLock<Violation>,
    steps: AtomicU64,
    /// How often Ethernet tiles were looked at: the firmware of each has counted on by then.
    ethernet_beats: AtomicU32,
}

impl Chip {
    /// A chip after power-on.
    pub fn new(board: Board) -> Self {
        let (family, grid) = (board.family(), Grid::new(&board));
        let location = |place| location(&grid, place);
        #[expect(
            clippy::expect_used,
            reason = "a tile that is left out would shift the numbers of all behind it"
        )]
        let tensix = |(column, row)| {
            Tensix::new(family, location(grid.tensix(column, row).expect("a tile of the grid has a place")))
        };
        let mut places = (0..64).flat_map(|x| (0..64).map(move |y| (x, y)));
        #[expect(clippy::expect_used, reason = "no board is without a bridge to the host")]
        let bridge_at = places.find(|&(x, y)| grid.at(x, y) == Endpoint::Pcie).expect("a bridge");
        Self {
            family,
            bridge_at: location(bridge_at),
            tensix: grid.tiles().map(tensix).map(Mutex::new).collect(),
            started: Mutex::default(),
            banks: (0..family.banks).map(|_| RwLock::new(Sparse::new(family.bank_bytes))).collect(),
            arc: RwLock::new(Arc::new(&board)),
            windows: RwLock::new(Windows::new(family)),
            bridge: RwLock::new(Sparse::new(family.regions[1])),
            lost: OnceLock::new(),
            steps: AtomicU64::new(0),
            ethernet_beats: AtomicU32::new(0),
            grid,
        }
    }

    /// The coordinates of the chip's parts.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// The constants of its family.
    pub fn family(&self) -> &'static Family {
        self.family
    }

    /// The same address in the first region, if the third shows it.
    fn mirrored(&self, place: BarAddress) -> BarAddress {
        match self.family.mirror.filter(|_| place.bar == 4 && place.offset < self.family.regions[2]) {
            Some(start) => BarAddress { bar: 0, offset: start + place.offset },
            None => place,
        }
    }

    /// Reads as the host does.
    pub fn read(&self, from: BarAddress, bytes: &mut [u8]) -> Result<(), Violation> {
        self.check_lost()?;
        let place @ BarAddress { bar, offset } = self.mirrored(from);
        let length = bytes.len();
        if let Some(value) = self.bar_register(place, length) {
            bytes.copy_from_slice(&value.to_le_bytes());
            return Ok(());
        }
        if bar == 0 && self.arc.read().read_from_host(offset, bytes).is_some() {
            return Ok(());
        }
        if bar == 2 && offset.checked_add(length as u64).is_some_and(|end| end <= self.family.regions[1]) {
            self.bridge.read().read(offset, bytes);
            return Ok(());
        }
        let (tile, address) = self.windows.read().target(bar, offset, length)?;
        self.tile_read(tile, address, bytes)
    }

    /// Writes as the host does.
    pub fn write(&self, to: BarAddress, bytes: &[u8]) -> Result<(), Violation> {
        self.check_lost()?;
        let BarAddress { bar, offset } = self.mirrored(to);
        if bar == 0
            && Windows::has_setting(self.family, offset)
            && self.windows.write().set(offset, bytes).is_some()
        {
            return Ok(());
        }
        if bar == 0 && self.arc.write().write_from_host(offset, bytes).is_some() {
            return Ok(());
        }
        let end = offset.checked_add(bytes.len() as u64);
        if bar == 2 && end.is_some_and(|end| end <= self.family.regions[1]) {
            return self.check_kept(self.bridge.write().write(offset, bytes));
        }
        let (tile, address) = self.windows.read().target(bar, offset, bytes.len())?;
        self.tile_write(tile, address, bytes)
    }

    /// A word of the first region behind the windows.
    fn bar_register(&self, BarAddress { bar, offset }: BarAddress, length: usize) -> Option<u32> {
        if bar != 0 || length != 4 {
            return None;
        }
        match offset.checked_sub(self.family.bridge) {
            Some(within) if within < INTERFACE_BYTES => {
                self.bridge_at.register(&self.family.noc, u32::try_from(within).ok()?)
            }
            _ if Windows::has_setting(self.family, offset) => {
                self.windows.write().setting(offset).map(|setting| *setting)
            }
            _ => None,
        }
    }

    fn check_lost(&self) -> Result<(), Violation> {
        self.lost.get().map_or(Ok(()), |why| Err(why.clone()))
    }

    /// The reason why the chip does not answer any more, if the host has no memory for it.
    pub fn starved(&self) -> Option<&Violation> {
        self.lost.get().filter(|why| matches!(why, Violation::HostMemory { .. }))
    }

    /// Loses the chip if the host has no memory for what was written.
    fn check_kept<T>(&self, written: Result<T, Violation>) -> Result<T, Violation> {
        if let Err(why @ Violation::HostMemory { .. }) = &written {
            let _ = self.lost.set(why.clone());
        }
        written
    }

    /// Loses the device if the coordinates are fused off; else returns what is there.
    fn touch(&self, tile: Tile, address: u64) -> Result<Endpoint, Violation> {
        let endpoint = self.grid.at(tile.x, tile.y);
        if endpoint == Endpoint::Harvested {
            // A device that is lost stays lost, and the error names the first tile.
            let _ = self.lost.set(Violation::Lost(tile));
            return Err(Violation::Harvested { tile, address });
        }
        Ok(endpoint)
    }

    /// The index of a tile.
    fn index(&self, column: u8, row: u8) -> usize {
        usize::from(row) * usize::from(self.grid.columns()) + usize::from(column)
    }

    /// A tile of the grid.
    #[expect(clippy::indexing_slicing, reason = "there is a tile for each place that the grid has of them")]
    fn tensix(&self, column: u8, row: u8) -> &Mutex<Tensix> {
        &self.tensix[self.index(column, row)]
    }

    /// A setting of the interface to the network that the controller, the bridge, banks and fused-off tiles have, at
    /// an address of theirs.
    fn interface_setting(&self, tile: Tile, address: u64) -> Option<u32> {
        let interface = match self.grid.at(tile.x, tile.y) {
            Endpoint::Arc | Endpoint::Pcie => self.family.interface,
            Endpoint::Dram { .. } => self.family.bank_interface?,
            Endpoint::Harvested if self.grid.answers(tile.x, tile.y) => INTERFACE,
            _ => return None,
        };
        let within = address.checked_sub(interface).filter(|&within| within < INTERFACE_BYTES)?;
        location(&self.grid, (tile.x, tile.y)).register(&self.family.noc, u32::try_from(within).ok()?)
    }

    /// Reads over the network.
    pub fn tile_read(&self, tile: Tile, address: u64, bytes: &mut [u8]) -> Result<(), Violation> {
        self.check_lost()?;
        let length = bytes.len();
        let unmapped = Violation::Unmapped { tile, address, length };
        if let Some(setting) = self.interface_setting(tile, address)
            && length == 4
        {
            bytes.copy_from_slice(&setting.to_le_bytes());
            return Ok(());
        }
        match self.touch(tile, address)? {
            Endpoint::Tensix { column, row } => self.tensix(column, row).lock().read(address, bytes),
            Endpoint::Dram { bank } => {
                let bank = self.banks.get(usize::from(bank)).ok_or(unmapped.clone())?.read();
                if !bank.has(address, length) {
                    return Err(unmapped);
                }
                bank.read(address, bytes);
                Ok(())
            }
            Endpoint::Arc => self.arc.read().read(address, bytes).ok_or(unmapped),
            other @ Endpoint::Ethernet => {
                let count = self.ethernet_beats.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
                let word = switched_off(address, count).filter(|_| length == 4);
                let word: u32 = word.ok_or_else(|| not_modelled(other, tile, address))?;
                bytes.copy_from_slice(&word.to_le_bytes());
                Ok(())
            }
            other => Err(not_modelled(other, tile, address)),
        }
    }

    /// Writes over the network.
    pub fn tile_write(&self, tile: Tile, address: u64, bytes: &[u8]) -> Result<(), Violation> {
        self.check_lost()?;
        let length = bytes.len();
        let unmapped = Violation::Unmapped { tile, address, length };
        match self.touch(tile, address)? {
            Endpoint::Tensix { column, row } => {
                let index = self.index(column, row);
                let mut tensix = self.tensix(column, row).lock();
                let before = tensix.is_running();
                self.check_kept(tensix.write(address, bytes))?;
                let starts = !before && tensix.is_running();
                drop(tensix);
                if starts {
                    self.started.lock().insert(index);
                }
                Ok(())
            }
            Endpoint::Dram { bank } => {
                let mut bank = self.banks.get(usize::from(bank)).ok_or(unmapped.clone())?.write();
                if !bank.has(address, length) {
                    return Err(unmapped);
                }
                self.check_kept(bank.write(address, bytes))
            }
            Endpoint::Arc => {
                self.arc.write().write(address, bytes).ok_or(Violation::ReadOnly { tile, address })
            }
            other => Err(not_modelled(other, tile, address)),
        }
    }

    /// Lets every core that is not in reset execute this many instructions, a few of each at a time, always in
    /// the same order.
    pub fn step(&self, steps: u64) {
        let mut left = steps;
        while left > 0 && self.lost.get().is_none() && !self.started.lock().is_empty() {
            let slice = left.min(SLICE);
            // A tile that another one starts has its first slice in the same round if its number is higher.
            let mut from = 0;
            while let Some(index) = self.next_running(from) {
                if !self.run_slice(index, slice) {
                    self.started.lock().remove(&index);
                }
                from = index + 1;
            }
            left -= slice;
        }
        self.pass(steps);
    }

    /// The first tile from a number on that takes part in [`Chip::step`].
    fn next_running(&self, from: usize) -> Option<usize> {
        self.started.lock().range(from..).next().copied()
    }

    /// The tiles that have started since the last call, for callers that [run](Chip::run_slice) single tiles rather
    /// than [step](Chip::step) the whole chip.
    pub fn take_started(&self) -> BTreeSet<usize> {
        std::mem::take(&mut *self.started.lock())
    }

    /// True if [`Chip::take_started`] would return any.
    pub fn has_started(&self) -> bool {
        !self.started.lock().is_empty()
    }

    /// The counts of all tiles since power-on.
    pub fn counts(&self) -> ChipCounts {
        let mut counts = ChipCounts::default();
        self.tensix.iter().for_each(|tensix| counts += tensix.lock().counts());
        counts
    }

    /// How many cores are not in reset.
    pub fn released(&self) -> usize {
        self.tensix.iter().map(|tensix| tensix.lock().released()).sum()
    }

    /// Keeps the cores of this tile as they are: writes of the network to their reset registers are lost.
    pub fn stick(&self, index: usize) {
        if let Some(tile) = self.tensix.get(index) {
            tile.lock().stuck = true;
        }
    }

    /// Lets the cores of one tile execute this many instructions each, with their network transfers. Returns
    /// whether any core would continue.
    ///
    /// Different threads may run different tiles at the same time; their order is then as undefined as on
    /// silicon.
    pub fn run_slice(&self, index: usize, budget: u64) -> bool {
        // On a lost chip no core continues, and a caller has only tile numbers that the chip returned.
        let Some(tile) = self.tensix.get(index).filter(|_| self.lost.get().is_none()) else { return false };
        for core in Core::ALL {
            let mut left = budget;
            while left > 0 {
                let mut tensix = tile.lock();
                let done = tensix.run(core, left);
                tensix.apply_resets();
                let transfers = tensix.interface.take();
                drop(tensix);
                for transfer in &transfers {
                    self.perform(tile, transfer);
                }
                if done == 0 {
                    break;
                }
                left = left.saturating_sub(done);
            }
        }
        tile.lock().is_running()
    }

    /// Lets time pass for the controller.
    pub fn pass(&self, steps: u64) {
        let steps = self.steps.fetch_add(steps, Ordering::Relaxed).saturating_add(steps);
        self.arc.write().beat(steps);
    }

    fn perform(&self, tile: &Mutex<Tensix>, transfer: &NocTransfer) {
        let result = self.transfer(tile, transfer);
        let mut tensix = tile.lock();
        match result {
            Ok(()) => tensix.interface.done(transfer),
            Err(violation) => tensix.stop(transfer.core, violation),
        }
    }

    fn transfer(&self, tile: &Mutex<Tensix>, transfer: &NocTransfer) -> Result<(), Violation> {
        let NocTransfer { remote, remote_address, local_address, length, .. } = *transfer;
        let from_dram = matches!(self.grid.at(remote.x, remote.y), Endpoint::Dram { .. });
        transfer.check_alignment(&self.family.noc, from_dram)?;
        tile.lock().check_transfer(transfer)?;
        let mut bytes = vec![0; length as usize];
        if transfer.write {
            tile.lock().read(local_address, &mut bytes)?;
            self.tile_write(remote, remote_address, &bytes)
        } else {
            self.tile_read(remote, remote_address, &mut bytes)?;
            self.check_kept(tile.lock().write(local_address, &bytes))
        }
    }

    /// The cores that have stopped until they are reset.
    pub fn stopped(&self) -> Vec<Stopped> {
        let mut stopped = Vec::new();
        for (column, row) in self.grid.tiles() {
            let tensix = self.tensix(column, row).lock();
            let tile = tensix.place();
            let reason = |core| tensix.stopped(core).cloned().map(|stop| Stopped { tile, core, stop });
            stopped.extend(Core::ALL.into_iter().filter_map(reason));
        }
        stopped
    }
}

/// What the firmware of a Wormhole's Ethernet tile says in its memory of ports that are switched off. It counts that it
/// runs.
fn switched_off(address: u64, count: u32) -> Option<u32> {
    match address {
        0x1c => Some(0xabcd_0000 | count & 0xffff),
        0x210 => Some(ETHERNET_FIRMWARE),
        // A bit for each port, in the parameters with which it starts.
        0x1008 => Some(0xffff),
        // Training has failed, for this reason, and is not tried again.
        0x1104 => Some(2),
        0x1440 => Some(14),
        0x1efc => Some(0),
        // Where the chip is among others: it is alone.
        0x1108 => Some(0),
        // The link of each port: nothing is at its other end.
        0x1200..0x1240 => Some(1),
        _ => None,
    }
}

/// The coordinates of the part at a place.
fn location(grid: &Grid, (x, y): (u8, u8)) -> Location {
    let tile = |(x, y)| Tile { x, y };
    Location { tile: tile(grid.translated(x, y)), named: tile(grid.named(x, y)) }
}

fn not_modelled(endpoint: Endpoint, tile: Tile, address: u64) -> Violation {
    let what = match endpoint {
        Endpoint::Pcie => "the host's memory",
        _ => "what is",
    };
    Violation::NotModelled { what, tile, address }
}
