// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A Blackhole or a Wormhole chip in software, as it is seen over PCI and by the cores of its Tensix tiles.
//!
//! What is there: the boards p100a, p150 and n150 with whatever parts are fused off ([`Board`]); the coordinates that follow from that
//! ([`Grid`]); memory of DRAM banks and tiles, which takes as much of the host's as was written to; the network's reads and
//! writes, from the host through windows and from cores through command buffers, with its rules of alignment; the five RISC-V
//! cores of each tile, their resets and start addresses; and the controller's telemetry table. That is what software needs to
//! find a chip, own its memory and run programs on it.
//!
//! What is not there is refused by name: the matrix engines, Ethernet, the network's multicast, atomics and second plane, and
//! accesses of the chip to the host's memory. There is no model of time: a step of [`Chip::step`] is an instruction of each core.
//!
//! Hardware does not say what a program did wrong, it hangs. Here every rule that is broken is a [`Violation`] with what was asked for.
//! Touching a tile that is fused off loses the device, as it does on silicon (where it can take the host along): from then on
//! everything reads as ones. A violation by a core stops that core, and [`Chip::stopped`] tells why.

#![forbid(unsafe_code)]

mod arc;
mod board;
mod chip;
mod core_bus;
mod counts;
mod family;
mod grid;
mod memory;
mod noc;
mod tensix;
mod violation;
mod window;

pub use board::{Board, BoardError, Model};
pub use chip::{BarAddress, Chip, Stopped};
pub use counts::ChipCounts;
pub use family::{BLACKHOLE, Family, Lines, NocRegisters, Starts, WORMHOLE, WindowKind};
pub use grid::{Endpoint, Grid};
pub use noc::Tile;
pub use tensix::{Core, CoreStop, SOFT_RESET};
pub use violation::Violation;
