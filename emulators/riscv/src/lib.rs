// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The five small RISC-V cores of a Tensix tile, interpreted.
//!
//! A core is RV32IM on Wormhole. On Blackhole it has parts of more extensions: Zicsr, Zaamo, Zba, Zbb, `pack`
//! and `brev8`, and F without division and square root. Its floats are not IEEE's: see [`float`]. Neither has
//! compressed instructions: a word whose two lowest bits are not both set is a `ttinsn`, which stores the word, rotated
//! right by two, where the tile's matrix engine takes its instructions.
//!
//! Hardware raises no faults. It rounds an unaligned address down, executes an unknown instruction as some
//! other one and waits forever for memory that does not exist. Here each of these is a [`Trap`], with the
//! program counter and the error, because such a program is broken; the trap leaves the core as it was before
//! the instruction. What hardware has and does not do as the instruction set says, is refused as well: a rounding mode
//! of an instruction's own, and a `fence` on Wormhole.
//!
//! A [`Hart`] has no thread: [`Hart::run`] executes at most a number of instructions on a [`Bus`], so an owner
//! of several cores schedules them, and the same schedule gives the same result. There is no model of time.
//!
//! Self-modifying code is seen at once. The instruction caches of hardware are not coherent, so a program that
//! does not invalidate them runs here and fails there.

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
