// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Reading containers of executables: FlatBuffers of untrusted bytes, and errors with the place of the fault.
//!
//! A device's container has a schema (`executable.fbs`) and code that reads and writes it field by field, so no
//! schema compiler is needed. [`read`] walks a container from its root, with a [`Table`] for each table on the way.
//! A [`ParseError`] collects its place on the way out. For writing, the library's builder and [`slot`] suffice.

mod flat;
mod parse_error;

pub use flat::{Table, read, required, slot};
pub use parse_error::{Name, ParseError, ParseErrorKind};
