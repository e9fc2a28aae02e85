// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What the containers of executables have in common: FlatBuffers that may be any bytes, and what is wrong with them.
//!
//! A device's container is a schema (`executable.fbs`) and code that reads and writes it field by field, so that no compiler of schemas is
//! needed. [`read`] walks one from its root, with a [`Table`] for each table on the way; a [`Fault`] that comes out of it has learned on
//! its way where it is. For writing, the library's own builder and [`slot`] are enough.

#![forbid(unsafe_code)]

mod fault;
mod flat;

pub use fault::{Fault, FaultKind, Name};
pub use flat::{Table, read, required, slot};
