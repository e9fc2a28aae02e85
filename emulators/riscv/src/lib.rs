// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The five small RISC-V cores of a Tensix tile, interpreted.
//!
//! A core is RV32IM on Wormhole. On Blackhole it has parts of more extensions: Zicsr, Zaamo, Zba, Zbb, `pack` and `brev8`, and F
//! without division and square root. Its floats are not IEEE's: see [`float`]. Neither has compressed instructions: a word whose
//! two lowest bits are not both set is one for the tile's matrix engine.
//!
//! Hardware has no faults. It rounds an unaligned address down, executes an unknown instruction as some other one and waits
//! for ever for memory that is not there. Here each of these is a [`Trap`], with the program counter and what was wrong, because
//! a program that does it is broken; the trap leaves the core as it was before the instruction.
//!
//! A [`Hart`] does nothing by itself: [`Hart::run`] executes at most as many instructions as it is told to, on the [`Bus`] that it
//! is given, so an owner of several decides how they take turns, and the same turns give the same result. There is no
//! model of time: `mcycle` counts instructions.
//!
//! Self-modifying code is seen at once. The instruction caches of hardware are not coherent, so a program that forgets to
//! invalidate them runs here and fails there.

#![forbid(unsafe_code)]

mod block;
mod bus;
mod csr;
mod decode;
mod execute;
pub mod float;
mod hart;
mod trap;

pub use bus::{Bus, BusFault, Ram, Width};
pub use decode::{Class, Instruction, Isa, Op, Refusal, decode};
pub use hart::{Counts, Hart, RunOutcome};
pub use trap::{Cause, Trap};
