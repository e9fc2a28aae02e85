// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What a program did that it must not do.

use crate::bus::{BusFault, Width};
use crate::decode::Refusal;
use thiserror::Error;

/// Why an instruction was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Cause {
    /// The word is not an instruction that this core has.
    #[error("{word:#010x}: {refusal}")]
    Instruction {
        /// The word.
        word: u32,
        /// What it is, as far as it is known.
        refusal: Refusal,
    },
    /// There is no instruction to be had from this address.
    #[error("the program counter is outside of executable memory: {0}")]
    Fetch(BusFault),
    /// Hardware would round the address down.
    #[error("an access of {} bytes to {address:#010x}, which is not aligned", width.bytes())]
    Unaligned {
        /// The address.
        address: u32,
        /// How many bytes.
        width: Width,
    },
    /// A jump or branch to an address that is not a multiple of four.
    #[error("a jump to {0:#010x}, which is not a multiple of four")]
    UnalignedTarget(u32),
    /// A load from where none is possible.
    #[error("a load of {} bytes from {address:#010x}: {fault}", width.bytes())]
    Load {
        /// The address.
        address: u32,
        /// How many bytes.
        width: Width,
        /// Why.
        fault: BusFault,
    },
    /// A store to where none is possible.
    #[error("a store of {} bytes to {address:#010x}: {fault}", width.bytes())]
    Store {
        /// The address.
        address: u32,
        /// How many bytes.
        width: Width,
        /// Why.
        fault: BusFault,
    },
    /// An atomic operation where none is possible.
    #[error("an atomic operation on {address:#010x}: {fault}")]
    Atomic {
        /// The address.
        address: u32,
        /// Why.
        fault: BusFault,
    },
    /// A control register that is not modelled, or may not be written.
    #[error("control register {number:#05x} cannot be {}", if *written { "written" } else { "read" })]
    ControlRegister {
        /// Its number.
        number: u16,
        /// Whether it was to be written.
        written: bool,
    },
}

/// An instruction that was not executed, and why. The core is as it was before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("at {pc:#010x}: {cause}")]
pub struct Trap {
    /// Where the instruction is.
    pub pc: u32,
    /// What was wrong.
    #[source]
    pub cause: Cause,
}
