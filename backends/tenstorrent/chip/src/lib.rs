// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A Blackhole chip in software, as it is seen over PCI and by the cores of its Tensix tiles.
//!
//! What is there: the boards p100a and p150 with whatever parts are fused off ([`Board`]); the coordinates that follow from that
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
mod grid;
mod memory;
mod noc;
mod tensix;
mod violation;
mod window;

pub use board::{Board, BoardError, Model};
pub use chip::{BarAddress, Chip, Stopped};
pub use counts::Counts;
pub use grid::{Endpoint, Grid, TENSIX_COLUMNS, TENSIX_ROWS};
pub use noc::{MAX_BURST, NODE_ID, Tile};
pub use tensix::{Core, L1_BYTES, Stop, register};
pub use violation::Violation;
pub use window::{BAR0_BYTES, BAR2_BYTES, BAR4_BYTES, CONFIGURATION, LARGE_WINDOW, WINDOW, WINDOWS};
