//! All of a chip together.

use crate::arc::Arc;
use crate::board::{BANKS, Board};
use crate::grid::{Endpoint, Grid, TENSIX_COLUMNS, TENSIX_ROWS};
use crate::memory::Sparse;
use crate::noc::{Tile, Transfer, interface_register};
use crate::tensix::{Core, Stop, Tensix};
use crate::violation::Violation;
use crate::window::{BAR0_BYTES, BAR2_BYTES, Windows};
use std::collections::BTreeSet;

/// How many bytes a DRAM bank has.
const BANK_BYTES: u64 = 0xff00_0000;
/// How many instructions a core executes before the next has its turn.
const TURN: u64 = 32;
/// Where in the first region the bridge's own interface to the network is.
const BRIDGE: u64 = 0x1fd0_4000;
const BRIDGE_BYTES: u64 = 0x1000;
const BRIDGE_TILE: Tile = Tile { x: 2, y: 0 };

/// A place in one of the regions that the host maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarAddress {
    /// Which: 0, 2 or 4.
    pub bar: u8,
    /// Where in it.
    pub offset: u64,
}

/// A core that does not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Its tile.
    pub tile: Tile,
    /// Which of the tile's.
    pub core: Core,
    /// Why.
    pub stop: Stop,
}

/// A chip.
#[derive(Clone, Debug)]
pub struct Chip {
    grid: Grid,
    /// By row, then column.
    tensix: Vec<Tensix>,
    /// Which of them may have a core that executes: all that do.
    running: BTreeSet<usize>,
    /// By physical number; those that are fused off are never reached.
    banks: Vec<Sparse>,
    arc: Arc,
    windows: Windows,
    /// Registers of the bridge, which hold what was written: nothing of the bridge's own is modelled.
    bridge: Sparse,
    lost: Option<Tile>,
    steps: u64,
}

impl Chip {
    /// A chip after it was switched on.
    pub fn new(board: Board) -> Self {
        let grid = Grid::new(&board);
        let tiles = (0..TENSIX_ROWS).flat_map(|row| (0..TENSIX_COLUMNS).map(move |column| (column, row)));
        let place = |(column, row)| grid.tensix(column, row).map(|(x, y)| Tensix::new(Tile { x, y }));
        Self {
            tensix: tiles.filter_map(place).collect(),
            running: BTreeSet::new(),
            banks: (0..BANKS).map(|_| Sparse::new(BANK_BYTES)).collect(),
            arc: Arc::new(&board),
            windows: Windows::new(),
            bridge: Sparse::new(BAR2_BYTES),
            lost: None,
            steps: 0,
            grid,
        }
    }

    /// Where everything is.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// Reads as the host does.
    pub fn read(&mut self, from: BarAddress, bytes: &mut [u8]) -> Result<(), Violation> {
        self.check_lost()?;
        let BarAddress { bar, offset } = from;
        let length = bytes.len();
        if let Some(value) = self.bar_register(from, length) {
            bytes.copy_from_slice(&value.to_le_bytes());
            return Ok(());
        }
        if bar == 2 && self.bridge.has(offset, length) {
            self.bridge.read(offset, bytes);
            return Ok(());
        }
        let (tile, address) = self.windows.target(bar, offset, length)?;
        self.tile_read(tile, address, bytes)
    }

    /// Writes as the host does.
    pub fn write(&mut self, to: BarAddress, bytes: &[u8]) -> Result<(), Violation> {
        self.check_lost()?;
        let BarAddress { bar, offset } = to;
        if bar == 0
            && let (Ok(word), Some(setting)) = (bytes.try_into(), self.windows.setting(offset))
        {
            *setting = u32::from_le_bytes(word);
            return Ok(());
        }
        if bar == 2 && self.bridge.has(offset, bytes.len()) {
            self.bridge.write(offset, bytes);
            return Ok(());
        }
        let (tile, address) = self.windows.target(bar, offset, bytes.len())?;
        self.tile_write(tile, address, bytes)
    }

    /// A word of the first region behind the windows.
    fn bar_register(&mut self, BarAddress { bar, offset }: BarAddress, length: usize) -> Option<u32> {
        if bar != 0 || length != 4 || offset >= BAR0_BYTES {
            return None;
        }
        match offset.checked_sub(BRIDGE) {
            Some(within) if within < BRIDGE_BYTES => {
                interface_register(BRIDGE_TILE, u32::try_from(within).ok()?)
            }
            _ => self.windows.setting(offset).map(|setting| *setting),
        }
    }

    fn check_lost(&self) -> Result<(), Violation> {
        self.lost.map_or(Ok(()), |tile| Err(Violation::Lost(tile)))
    }

    /// Loses the device if something that is fused off is touched; else what is there.
    fn touch(&mut self, tile: Tile, address: u64) -> Result<Endpoint, Violation> {
        let endpoint = self.grid.at(tile.x, tile.y);
        if endpoint == Endpoint::Harvested {
            self.lost = Some(tile);
            return Err(Violation::Harvested { tile, address });
        }
        Ok(endpoint)
    }

    /// Where a tile is among all.
    fn index(column: u8, row: u8) -> usize {
        usize::from(row) * usize::from(TENSIX_COLUMNS) + usize::from(column)
    }

    /// Reads over the network.
    pub fn tile_read(&mut self, tile: Tile, address: u64, bytes: &mut [u8]) -> Result<(), Violation> {
        self.check_lost()?;
        let length = bytes.len();
        let unmapped = Violation::Unmapped { tile, address, length };
        match self.touch(tile, address)? {
            Endpoint::Tensix { column, row } => {
                let tensix = self.tensix.get_mut(Self::index(column, row));
                tensix.ok_or(unmapped)?.read(address, bytes)
            }
            Endpoint::Dram { bank } => {
                let bank = self.banks.get(usize::from(bank)).filter(|bank| bank.has(address, length));
                bank.ok_or(unmapped)?.read(address, bytes);
                Ok(())
            }
            Endpoint::Arc => self.arc.read(address, bytes).ok_or(unmapped),
            other => Err(not_modelled(other, tile, address)),
        }
    }

    /// Writes over the network.
    pub fn tile_write(&mut self, tile: Tile, address: u64, bytes: &[u8]) -> Result<(), Violation> {
        self.check_lost()?;
        let length = bytes.len();
        let unmapped = Violation::Unmapped { tile, address, length };
        match self.touch(tile, address)? {
            Endpoint::Tensix { column, row } => {
                let index = Self::index(column, row);
                let tensix = self.tensix.get_mut(index).ok_or(unmapped)?;
                tensix.write(address, bytes)?;
                if tensix.is_running() {
                    self.running.insert(index);
                }
                Ok(())
            }
            Endpoint::Dram { bank } => {
                let bank = self.banks.get_mut(usize::from(bank)).filter(|bank| bank.has(address, length));
                bank.ok_or(unmapped)?.write(address, bytes);
                Ok(())
            }
            Endpoint::Arc => Err(Violation::ReadOnly { tile, address }),
            other => Err(not_modelled(other, tile, address)),
        }
    }

    /// Lets every core that is not held execute so many instructions, a few of each at a time, always in the same order.
    pub fn step(&mut self, steps: u64) {
        let mut left = steps;
        while left > 0 && self.lost.is_none() && !self.running.is_empty() {
            let turn = left.min(TURN);
            // A tile that another one lets go has its first turn in the same round if it comes later.
            let mut from = 0;
            while let Some(&index) = self.running.range(from..).next() {
                self.turn(index, turn);
                from = index + 1;
            }
            left -= turn;
        }
        self.steps = self.steps.saturating_add(steps);
        self.arc.beat(self.steps);
    }

    /// Lets the cores of one tile execute, and does what they asked of the network.
    fn turn(&mut self, index: usize, turn: u64) {
        let Some(tensix) = self.tensix.get_mut(index).filter(|tensix| tensix.is_running()) else {
            self.running.remove(&index);
            return;
        };
        for core in Core::ALL {
            tensix.run(core, turn);
        }
        tensix.apply_resets();
        while let Some(transfer) = self.tensix.get_mut(index).and_then(|tensix| tensix.interface.next()) {
            let result = self.transfer(index, &transfer);
            let Some(tensix) = self.tensix.get_mut(index) else { return };
            match result {
                Ok(()) => tensix.interface.done(&transfer),
                Err(violation) => tensix.stop(transfer.core, violation),
            }
        }
    }

    fn transfer(&mut self, index: usize, transfer: &Transfer) -> Result<(), Violation> {
        let Transfer { remote, remote_address, local_address, length, .. } = *transfer;
        let from_dram = matches!(self.grid.at(remote.x, remote.y), Endpoint::Dram { .. });
        transfer.check_alignment(from_dram)?;
        let mut bytes = vec![0; length as usize];
        let gone = Violation::Lost(remote);
        if transfer.write {
            self.tensix.get_mut(index).ok_or(gone)?.read(local_address, &mut bytes)?;
            self.tile_write(remote, remote_address, &bytes)
        } else {
            self.tile_read(remote, remote_address, &mut bytes)?;
            self.tensix.get_mut(index).ok_or(gone)?.write(local_address, &bytes)
        }
    }

    /// The cores that do not go on until they are reset.
    pub fn stopped(&self) -> Vec<Stopped> {
        let mut stopped = Vec::new();
        for row in 0..TENSIX_ROWS {
            for column in 0..TENSIX_COLUMNS {
                let place = self.grid.tensix(column, row).map(|(x, y)| Tile { x, y });
                let tensix = self.tensix.get(Self::index(column, row));
                let (Some(tile), Some(tensix)) = (place, tensix) else { continue };
                let reason = |core| tensix.stopped(core).cloned().map(|stop| Stopped { tile, core, stop });
                stopped.extend(Core::ALL.into_iter().filter_map(reason));
            }
        }
        stopped
    }
}

fn not_modelled(endpoint: Endpoint, tile: Tile, address: u64) -> Violation {
    let what = match endpoint {
        Endpoint::Pcie => "the host's memory",
        _ => "what is",
    };
    Violation::NotModelled { what, tile, address }
}
