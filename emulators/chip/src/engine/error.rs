// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What is wrong with an instruction of the matrix engine.

use thiserror::Error;

/// The reason why the matrix engine did not execute an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// No instruction that is known here.
    #[error("this is no instruction of the matrix engine, or one that is not modelled")]
    Unknown,
    /// A field of the instruction, or a register, with a value that is not modelled.
    #[error("{what} = {value} is not modelled")]
    Value {
        /// The name of the field.
        what: &'static str,
        /// The value.
        value: u32,
    },
    /// Formats between which the unit does not convert, or not here.
    #[error("no conversion from format {from} to format {to} is modelled")]
    Conversion {
        /// The format's number.
        from: u8,
        /// The format's number.
        to: u8,
    },
    /// Bits of a configuration word that are not modelled.
    #[error("word {word} of the configuration has bits {bits:#x} set, which are not modelled")]
    Configuration {
        /// Its number.
        word: u32,
        /// The bits.
        bits: u32,
    },
    /// A configuration word that does something when it is written.
    #[error("word {word} of the configuration does something when it is written, which is not modelled")]
    Acts {
        /// Its number.
        word: u32,
    },
    /// The same of a word that each thread has.
    #[error("word {word} of the thread's configuration has bits {bits:#x} set, which are not modelled")]
    ThreadConfiguration {
        /// Its number.
        word: u32,
        /// The bits.
        bits: u32,
    },
    /// Hardware would do something undefined.
    #[error("{what} = {value}: {rule}")]
    Undefined {
        /// The name of the field or the counter.
        what: &'static str,
        /// The value.
        value: u32,
        /// The rule that it breaks.
        rule: &'static str,
    },
    /// An access of an unpacker or a packer outside of the tile's memory.
    #[error("{length} bytes at {address:#x} are not in the tile's memory")]
    Memory {
        /// The address.
        address: u64,
        /// How many bytes.
        length: u32,
    },
    /// An order that hardware does not guarantee.
    #[error("{0}")]
    Unordered(&'static str),
}

/// Refuses a value other than zero.
pub(super) const fn zero(what: &'static str, value: u32) -> Result<(), EngineError> {
    if value == 0 { Ok(()) } else { Err(EngineError::Value { what, value }) }
}

/// Refuses a value that breaks a rule.
pub(super) const fn rule(
    holds: bool,
    what: &'static str,
    value: u32,
    rule: &'static str,
) -> Result<(), EngineError> {
    if holds { Ok(()) } else { Err(EngineError::Undefined { what, value, rule }) }
}
