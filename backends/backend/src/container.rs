// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Reading containers of executables: FlatBuffers that may be any bytes, and errors that say where they are wrong.
//!
//! A device's container is a schema (`executable.fbs`) and code that reads and writes it field by field, so that no compiler of
//! schemas is needed. [`read`] walks one from its root, with a [`Table`] for each table on the way. A [`ParseError`] collects
//! where it happened while it travels outwards. For writing, the library's own builder and [`slot`] are enough.

mod flat;
mod parse_error;

pub use flat::{Table, read, required, slot};
pub use parse_error::{Name, ParseError, ParseErrorKind};
