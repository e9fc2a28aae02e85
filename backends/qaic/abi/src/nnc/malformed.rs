// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The errors of a message.

use thiserror::Error;

/// Why a message cannot be made, or is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// There are fewer bytes than this needs.
    #[error("{what} needs {needed} bytes, and there are {found}")]
    TooShort {
        /// The part.
        what: &'static str,
        /// How many bytes.
        needed: usize,
        /// How many there are.
        found: usize,
    },
    /// A transaction, command or payload that does not end at a multiple of eight bytes.
    #[error("{what} has {length} bytes, which is no multiple of 8")]
    Unaligned {
        /// The part.
        what: &'static str,
        /// How many bytes.
        length: usize,
    },
    /// A transaction that says it is longer than what it is in, or shorter than its own header.
    #[error("transaction {number} says that it has {length} bytes, and {left} are left")]
    Length {
        /// Which one, from 0.
        number: usize,
        /// The number in the message.
        length: u32,
        /// How many bytes the rest of the message has.
        left: usize,
    },
    /// A transaction that has no business in this direction, or of an unknown kind.
    #[error("transaction {number} is of kind {kind}, which does not go this way")]
    Kind {
        /// Which one, from 0.
        number: usize,
        /// The number in the message.
        kind: u32,
    },
    /// Bytes behind the last transaction, or too few transactions.
    #[error("{said} transactions are announced, and there are {found} with {left} bytes behind them")]
    Count {
        /// The number in the message.
        said: u32,
        /// How many there are.
        found: usize,
        /// How many bytes are left.
        left: usize,
    },
    /// More than a message takes.
    #[error("a message of {length} bytes, and {most} is the most")]
    TooLong {
        /// How many bytes there would be.
        length: usize,
        /// How many there may be.
        most: usize,
    },
    /// Something that begins differently from every message.
    #[error("it begins with {found:#010x} where a message has {:#010x}", super::wire::MAGIC)]
    Magic {
        /// The kind that was found.
        found: u32,
    },
    /// A message whose bytes are not those that were sent.
    #[error("its checksum is {said:#010x}, and its bytes give {found:#010x}")]
    Checksum {
        /// The number in the message.
        said: u32,
        /// The number by its bytes.
        found: u32,
    },
    /// A command other than the one that is read.
    #[error("command {found} where {expected} belongs")]
    Command {
        /// The kind that is there.
        found: u32,
        /// The kind that belongs there.
        expected: u32,
    },
}
