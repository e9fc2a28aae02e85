// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What is behind the kernel's driver: a chip that is simulated here, or one in a simulator's library.

use crate::library::SimulatorProcess;
use crate::options::Options;
use emulator_chip::{BarAddress, Chip, ChipCounts, CoreStop, Stopped, Tile};
use hal_backend::Failure;
use std::collections::BTreeSet;

/// A chip, wherever it is simulated.
#[derive(Debug)]
pub(crate) enum Silicon {
    /// Simulated in this process, on the machine's workers.
    InProcess(Box<Chip>),
    /// Simulated by a library in a process of its own, which has no part in the machine's workers.
    OutOfProcess(SimulatorProcess),
}

impl Silicon {
    /// One after it was switched on.
    pub(crate) fn new(options: &Options) -> Result<Self, Failure> {
        match &options.library {
            None => Ok(Silicon::InProcess(Box::new(Chip::new(options.board)))),
            Some(library) => {
                SimulatorProcess::start(library, options.board.family()).map(Silicon::OutOfProcess)
            }
        }
    }

    /// The chip, if it is simulated in this process.
    fn in_process(&self) -> Option<&Chip> {
        match self {
            Silicon::InProcess(chip) => Some(chip),
            Silicon::OutOfProcess(_) => None,
        }
    }

    /// Reads as the host does. What went wrong is for people.
    pub(crate) fn read(&self, from: BarAddress, bytes: &mut [u8]) -> Result<(), String> {
        match self {
            Silicon::InProcess(chip) => chip.read(from, bytes).map_err(|violation| violation.to_string()),
            Silicon::OutOfProcess(simulator) => simulator.read(from, bytes),
        }
    }

    /// Writes as the host does.
    pub(crate) fn write(&self, to: BarAddress, bytes: &[u8]) -> Result<(), String> {
        match self {
            Silicon::InProcess(chip) => chip.write(to, bytes).map_err(|violation| violation.to_string()),
            Silicon::OutOfProcess(simulator) => simulator.write(to, bytes),
        }
    }

    /// Writes over the network.
    pub(crate) fn tile_write(&self, tile: Tile, address: u64, bytes: &[u8]) -> Result<(), String> {
        match self {
            Silicon::InProcess(chip) => {
                chip.tile_write(tile, address, bytes).map_err(|violation| violation.to_string())
            }
            Silicon::OutOfProcess(simulator) => simulator.tile_write(tile, address, bytes),
        }
    }

    /// Why nothing answers any more, where nothing does.
    pub(crate) fn ended(&self) -> Option<&str> {
        match self {
            Silicon::InProcess(_) => None,
            Silicon::OutOfProcess(simulator) => simulator.ended(),
        }
    }

    /// The tiles that began to execute, for the machine's workers.
    pub(crate) fn take_started(&self) -> BTreeSet<usize> {
        self.in_process().map(Chip::take_started).unwrap_or_default()
    }

    /// Whether there are any.
    pub(crate) fn has_started(&self) -> bool {
        self.in_process().is_some_and(Chip::has_started)
    }

    /// Gives a tile a turn. Whether it would go on.
    pub(crate) fn turn(&self, tile: usize, budget: u64) -> bool {
        let Some(chip) = self.in_process() else { return false };
        let runs = chip.turn(tile, budget);
        chip.pass(budget);
        runs
    }

    /// Has the cores of a tile stay as they are, of one that is here.
    pub(crate) fn stick(&self, tile: usize) {
        if let Some(chip) = self.in_process() {
            chip.stick(tile);
        }
    }

    /// What was done by one that is here; not counted, else.
    pub(crate) fn counts(&self) -> ChipCounts {
        self.in_process().map(Chip::counts).unwrap_or_default()
    }

    /// How many cores are not held, of one that is here.
    pub(crate) fn released(&self) -> usize {
        self.in_process().map_or(0, Chip::released)
    }

    /// A core that does not go on, and why.
    pub(crate) fn stopped(&self) -> Option<String> {
        let Some(chip) = self.in_process() else { return self.ended().map(str::to_owned) };
        let stopped = chip.stopped();
        let Stopped { tile, core, stop } = stopped.first()?;
        Some(match stop {
            CoreStop::Trap(trap) => format!("core {core:?} of tile {tile} at {:#x}: {}", trap.pc, trap.cause),
            CoreStop::Paused(pc) => format!("core {core:?} of tile {tile} called a debugger before {pc:#x}"),
            CoreStop::Violation(pc, violation) => {
                format!("core {core:?} of tile {tile} near {pc:#x}: {violation}")
            }
        })
    }
}
