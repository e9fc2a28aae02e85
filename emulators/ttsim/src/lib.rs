// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A Blackhole or Wormhole board in software as a shared library, with the C interface of `libttsim.so`.
//!
//! That interface is how the vendor's user-space driver (`tt-umd`) and what stands on it open a simulated
//! board: the regions of a PCI device as byte reads and writes, and a clock that runs on request.
//! This library has the same functions, over
//! [`emulator_chip`]; so the vendor's own driver is a judge of that chip.
//!
//! There is one board in a process, made by `libttsim_init`. Functions may be called from any thread, one at a
//! time. The variable `TENSTORRENT_SIM` selects the board: `p150` (the default), `p100a` or `n150`, with masks of
//! the parts that are present: `p100a,columns=0x3ffc,banks=0xdf`, `n150,rows=0x3fe`; or `blackhole` or `wormhole`, a
//! whole chip whose controller does not report what is there, as the vendor's simulators are.
//!
//! The functions return no errors. Those that reach tiles past the windows end the process, as with the vendor's
//! simulators of these chips. Another broken rule is reported on the standard error stream, a read returns ones,
//! like a device that is gone, and a write has no effect. Calls before `libttsim_init`, a second one, and an
//! invalid `TENSTORRENT_SIM` end the process, as with the vendor's simulator; with
//! `TENSTORRENT_SIM_VIOLATIONS=exit`, so does every broken rule, and a core that stops.

mod board;
pub mod ffi;
mod simulator;

pub use board::parse_board;
pub use simulator::{BAR0, BAR2, BAR4, Simulator};
