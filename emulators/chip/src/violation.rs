// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A rule that was broken.

use crate::engine::EngineError;
use crate::noc::Tile;
use thiserror::Error;

/// A rule that software broke.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Violation {
    /// The device is lost: a fused-off part was accessed before.
    #[error("the device is lost since tile {0}, which is fused off, was touched")]
    Lost(Tile),
    /// A fused-off part was accessed now.
    #[error(
        "tile {tile} is fused off: touching it at {address:#x} hangs the network, and the device is lost"
    )]
    Harvested {
        /// The tile.
        tile: Tile,
        /// The address in it.
        address: u64,
    },
    /// The simulated chip's memory does not fit into the host's, and its content is lost.
    #[error(
        "the host has no {length} bytes left for the memory of a simulated chip; raise its limit (ulimit -v), or \
         use less of the chip's memory"
    )]
    HostMemory {
        /// How many bytes.
        length: usize,
    },
    /// A part that is not modelled.
    #[error("{what} at {address:#x} of tile {tile} is not modelled")]
    NotModelled {
        /// Its name.
        what: &'static str,
        /// The tile.
        tile: Tile,
        /// The address in it.
        address: u64,
    },
    /// No memory or register, or a smaller one.
    #[error("{length} bytes at {address:#x} of tile {tile} are not memory and not a register")]
    Unmapped {
        /// The tile.
        tile: Tile,
        /// The address in it.
        address: u64,
        /// How many bytes.
        length: usize,
    },
    /// A read-only register.
    #[error("{address:#x} of tile {tile} cannot be written")]
    ReadOnly {
        /// The tile.
        tile: Tile,
        /// The address in it.
        address: u64,
    },
    /// An offset in a region without a function.
    #[error("{length} bytes at {offset:#x} of BAR{bar} are nothing, or more than one thing")]
    Bar {
        /// The region.
        bar: u8,
        /// The offset.
        offset: u64,
        /// How many bytes.
        length: usize,
    },
    /// An address of the host's bus that is in none of the regions.
    #[error("{length} bytes at {address:#x} of the bus are in none of the device's regions")]
    Bus {
        /// The address.
        address: u64,
        /// How many bytes.
        length: usize,
    },
    /// A window with impossible settings.
    #[error("window {window} is set up with {what}")]
    Window {
        /// The window.
        window: usize,
        /// The error.
        what: &'static str,
    },
    /// A transfer that the network would corrupt.
    #[error("a transfer of {length} bytes from {from:#x} to {to:#x}: {rule}")]
    Transfer {
        /// The address that it reads.
        from: u64,
        /// The address that it writes.
        to: u64,
        /// How many bytes.
        length: u32,
        /// The rule that it breaks.
        rule: &'static str,
    },
    /// An instruction that the matrix engine did not execute. The engine executes nothing from then on.
    #[error("{word:#010x} in thread {thread} of the matrix engine of tile {tile}: {reason}")]
    Engine {
        /// The tile.
        tile: Tile,
        /// The number of the thread.
        thread: usize,
        /// The instruction.
        word: u32,
        /// The reason.
        reason: EngineError,
    },
    /// An access of a core or of the network that the matrix engine does not allow, or not at this time.
    #[error("the matrix engine of tile {tile}: {reason}")]
    EngineAccess {
        /// The tile.
        tile: Tile,
        /// The reason.
        reason: EngineError,
    },
    /// A soft reset of parts of the matrix engine.
    #[error("the soft reset of parts of the matrix engine of tile {tile} (bits {bits:#x}) is not modelled")]
    EngineReset {
        /// The tile.
        tile: Tile,
        /// The bits of the register.
        bits: u32,
    },
    /// A store to a register that may come before an earlier one to somewhere else.
    #[error(
        "the store to {register:#x} may overtake the one to {stored:#x}: load that back, and use it, before"
    )]
    Unordered {
        /// The address of the earlier store.
        stored: u64,
        /// The register.
        register: u64,
    },
}
