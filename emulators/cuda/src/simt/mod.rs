// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Grids of threads: a launch, block after block, each as warps of 32 lanes.
//!
//! A warp's registers lie in arrays of 32. Its lanes run together until a jump divides them; then each part is a
//! fragment with its own program counter. The fragment with the lowest counter runs, and fragments that meet at an
//! instruction join, so lanes converge where a compiler lays the code of both ways before what follows.
//! An instruction across lanes waits until all lanes that it names, and that have not returned, are there.
//! A warp runs until each of its lanes is at a barrier or has returned, then the block's next warp does.

mod access;
mod alu;
mod block;
mod convert;
mod transfer;
mod warp;

use crate::ptx::Kernel;
pub use access::{Memory, Region};
use std::sync::atomic::AtomicBool;
use thiserror::Error;

/// Where shared memory begins in generic addresses.
pub const SHARED_WINDOW: u64 = 0x1000_0000_0000_0000;
/// Where a thread's local memory begins in generic addresses.
pub const LOCAL_WINDOW: u64 = 0x2000_0000_0000_0000;
/// Lanes of a warp.
pub const LANES: usize = 32;

/// What is to run.
pub struct Launch<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// Blocks in each direction.
    pub grid: [u32; 3],
    /// Threads of a block in each direction.
    pub block: [u32; 3],
    /// Bytes of shared memory beyond the kernel's own.
    pub dynamic_shared: u32,
    /// The parameters' bytes.
    pub parameters: &'a [u8],
    /// The addresses of the module's variables.
    pub globals: &'a [u64],
    /// Chooses the order of the blocks.
    pub seed: u64,
    /// How many instructions of warps may run; then the launch is given up.
    pub budget: Option<u64>,
    /// Ends the launch early if it becomes true.
    pub stop: &'a AtomicBool,
}

/// What a thread did wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// An access outside of all memory.
    #[error("{} of {bytes} bytes at {address:#x}, which is no memory", if *write { "write" } else { "read" })]
    Outside {
        /// Where.
        address: u64,
        /// How much.
        bytes: u64,
        /// A write.
        write: bool,
    },
    /// An access whose address is not a multiple of its size.
    #[error("misaligned access of {bytes} bytes at {address:#x}")]
    Misaligned {
        /// Where.
        address: u64,
        /// How much.
        bytes: u64,
    },
    /// `trap`.
    #[error("trap")]
    Trap,
    /// An instruction across lanes, or a barrier, that not all lanes reach.
    #[error("{0}")]
    Stuck(&'static str),
    /// The launch was given up.
    #[error("more instructions than it may run")]
    Endless,
    /// The launch was ended from outside.
    #[error("stopped")]
    Stopped,
}

/// A fault, and where it happened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{fault}, in {kernel}, block {block:?}, thread {thread:?}: {source_line}")]
pub struct Trap {
    /// What happened.
    pub fault: Fault,
    /// The kernel.
    pub kernel: String,
    /// The block.
    pub block: [u32; 3],
    /// The first thread.
    pub thread: [u32; 3],
    /// The instruction.
    pub source_line: String,
}

/// Runs a launch.
///
/// # Errors
/// What the first thread did that did something wrong. Memory is then as the threads before it left it.
///
/// # Panics
/// If the parameters are not as long as the kernel's.
pub fn run(launch: &Launch<'_>, memory: &dyn Memory) -> Result<u64, Trap> {
    block::run(launch, memory)
}
