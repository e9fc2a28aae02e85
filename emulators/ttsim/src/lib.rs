// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A Blackhole or Wormhole board in software as a shared library, with the C interface of `libttsim.so`.
//!
//! That interface is how the vendor's user-space driver (`tt-umd`) and what stands on it open a simulated
//! board: the regions of a PCI device as byte reads and writes, and a clock that only runs when it is told to.
//! This library has the same functions, over
//! [`emulator_chip`]; so the vendor's own driver is a judge of that chip.
//!
//! There is one board in a process, made by `libttsim_init`. Functions may be called from any thread, one at a
//! time. Which board it is says the variable `TENSTORRENT_SIM`: `p150`, which it is without, `p100a` or `n150`,
//! with what is fused off if that matters: `p100a,columns=0x3ffc,banks=0xdf`, `n150,rows=0x3fe`.
//!
//! Nothing can be returned to a caller who breaks a rule. What was wrong is written to the standard error
//! stream, a read gives ones, as a device that is gone does, and a write does nothing. Calls before
//! `libttsim_init`, a second one, and a `TENSTORRENT_SIM` that makes no sense end the process, as they do with
//! the vendor's simulator; with `TENSTORRENT_SIM_VIOLATIONS=exit`, so does every broken rule, and a core that
//! stops.

mod board;
pub mod ffi;
mod simulator;

pub use board::parse_board;
pub use simulator::{BAR0, BAR2, BAR4, Simulator};
