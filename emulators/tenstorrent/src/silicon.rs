// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The chip behind the kernel's driver: simulated in this process, or in a simulator's library.

use crate::library::SimulatorProcess;
use crate::options::Options;
use emulator_chip::{BarAddress, Chip, ChipCounts, CoreStop, Family, Stopped};
use hal_backend::Failure;
use std::collections::BTreeSet;

/// A chip, simulated in this process or in another.
#[derive(Debug)]
pub(crate) enum Silicon {
    /// Simulated in this process, on the machine's workers.
    InProcess(Box<Chip>),
    /// Simulated by a library in another process, which does not use the machine's workers.
    OutOfProcess(SimulatorProcess),
}

impl Silicon {
    /// The chip of a card after power-on.
    pub(crate) fn new(options: &Options, number: usize) -> Result<Self, Failure> {
        let number = u16::try_from(number).unwrap_or(u16::MAX);
        match &options.library {
            None => Ok(Silicon::InProcess(Box::new(Chip::new(options.board().numbered(number))))),
            Some(library) => SimulatorProcess::start(library, options.board).map(Silicon::OutOfProcess),
        }
    }

    /// The kind of the chip.
    pub(crate) fn family(&self) -> &'static Family {
        match self {
            Silicon::InProcess(chip) => chip.family(),
            Silicon::OutOfProcess(simulator) => simulator.family(),
        }
    }

    /// The chip, if it is simulated in this process.
    fn in_process(&self) -> Option<&Chip> {
        match self {
            Silicon::InProcess(chip) => Some(chip),
            Silicon::OutOfProcess(_) => None,
        }
    }

    /// Reads as the host does. The error is for people.
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

    /// The reason why the chip does not answer any more, if it has ended.
    pub(crate) fn ended(&self) -> Option<String> {
        match self {
            Silicon::InProcess(chip) => chip.starved().map(ToString::to_string),
            Silicon::OutOfProcess(simulator) => simulator.ended().map(str::to_owned),
        }
    }

    /// The tiles that have started, for the machine's workers.
    pub(crate) fn take_started(&self) -> BTreeSet<usize> {
        self.in_process().map(Chip::take_started).unwrap_or_default()
    }

    /// True if any tile has started.
    pub(crate) fn has_started(&self) -> bool {
        self.in_process().is_some_and(Chip::has_started)
    }

    /// Runs a slice of a tile's instructions. Returns whether the tile continues.
    pub(crate) fn run_slice(&self, tile: usize, budget: u64) -> bool {
        let Some(chip) = self.in_process() else { return false };
        let runs = chip.run_slice(tile, budget);
        chip.pass(budget);
        runs
    }

    /// Keeps the cores of a tile out of reset, if the chip is in this process.
    pub(crate) fn stick(&self, tile: usize) {
        if let Some(chip) = self.in_process() {
            chip.stick(tile);
        }
    }

    /// The counts of a chip in this process; zeros for another one.
    pub(crate) fn counts(&self) -> ChipCounts {
        self.in_process().map(Chip::counts).unwrap_or_default()
    }

    /// How many cores of a chip in this process are not in reset.
    pub(crate) fn released(&self) -> usize {
        self.in_process().map_or(0, Chip::released)
    }

    /// A core that has stopped, and why.
    pub(crate) fn stopped(&self) -> Option<String> {
        let Some(chip) = self.in_process() else { return self.ended() };
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
