// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A Blackhole or a Wormhole chip in software, as seen over PCI and by the cores of its Tensix tiles.
//!
//! Modelled are the boards p100a, p150 and n150 with any fused-off parts, and whole chips ([`Board`]); the
//! coordinates that follow from these ([`Grid`]); memory of DRAM banks and tiles, which takes space when it is
//! written; the network's reads and writes, from the host through windows and from cores through command buffers,
//! with its rules of alignment; the five RISC-V cores of each tile, their resets and start addresses; of a Blackhole
//! tile's matrix engine what a matrix product needs; and the controller's telemetry table. With these, software finds a
//! chip, manages its memory and runs programs on it.
//!
//! Accesses are done in the order of instructions, which hardware does not promise: a core's store to the tile's
//! memory may be overtaken by one to a register. So a core that starts a transfer or another core before it has loaded
//! back what it stored last is stopped ([`Violation::Unordered`]). It is not noticed whether what was loaded is used,
//! and no core has a cache of data.
//!
//! All the rest is refused by name: the vector unit; Ethernet, whose ports are switched off; the network's multicast,
//! atomics and second plane, and accesses of the chip to the host's memory. There is no model of time: a step of
//! [`Chip::step`] is an instruction of each core.
//!
//! Hardware hangs when a program breaks a rule. Here every broken rule is a [`Violation`] that names the
//! access. An access to a fused-off tile loses the device, as on silicon (where it can take the host along):
//! from then on all reads return ones. A violation by a core stops that core, and [`Chip::stopped`] returns the
//! reason.

#![forbid(unsafe_code)]

mod arc;
mod board;
mod chip;
mod core_bus;
mod counts;
mod engine;
mod family;
mod grid;
mod memory;
mod noc;
mod tensix;
mod violation;
mod window;

pub use board::{Board, BoardError, Model};
pub use chip::{BarAddress, Chip, Stopped};
pub use counts::{ChipCounts, EngineCounts};
pub use engine::EngineError;
pub use family::{BLACKHOLE, Family, Lines, NocRegisters, Starts, WORMHOLE, WindowKind};
pub use grid::{Endpoint, Grid};
pub use noc::Tile;
pub use tensix::{Core, CoreStop, SOFT_RESET};
pub use violation::Violation;
