// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Errors of a program.

use crate::bus::{BusFault, Width};
use crate::decode::Refusal;
use thiserror::Error;

/// The reason why an instruction was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Cause {
    /// The word is not an instruction that this core has.
    #[error("{word:#010x}: {refusal}")]
    Instruction {
        /// The word.
        word: u32,
        /// The kind of the word, as far as it is known.
        refusal: Refusal,
    },
    /// No instruction can be fetched from this address.
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
    /// A load from an address that refuses it.
    #[error("a load of {} bytes from {address:#010x}: {fault}", width.bytes())]
    Load {
        /// The address.
        address: u32,
        /// How many bytes.
        width: Width,
        /// The reason.
        fault: BusFault,
    },
    /// A store to an address that refuses it.
    #[error("a store of {} bytes to {address:#010x}: {fault}", width.bytes())]
    Store {
        /// The address.
        address: u32,
        /// How many bytes.
        width: Width,
        /// The reason.
        fault: BusFault,
    },
    /// An atomic operation on an address that refuses it.
    #[error("an atomic operation on {address:#010x}: {fault}")]
    Atomic {
        /// The address.
        address: u32,
        /// The reason.
        fault: BusFault,
    },
    /// A control register that is not modelled, or may not be written.
    #[error("control register {number:#05x} cannot be {}", if *written { "written" } else { "read" })]
    ControlRegister {
        /// Its number.
        number: u16,
        /// True if it was to be written.
        written: bool,
    },
}

/// An instruction that was not executed, and the reason. The core is as it was before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("at {pc:#010x}: {cause}")]
pub struct Trap {
    /// Its address.
    pub pc: u32,
    /// The reason.
    #[source]
    pub cause: Cause,
}
