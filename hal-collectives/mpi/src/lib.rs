// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Groups of ranks in many processes and on many machines, by MPI.
//!
//! The library is the one of whatever launched the process, loaded at run time ([`is_launched`], [`join`]); a program that is
//! linked with this crate needs none. One thread makes all calls to it (`progress.rs`); what each kind of operation is in
//! messages stands in `exchange.rs`, and a rank's end of a group in `group.rs`.
//!
//! # Agreement
//!
//! Each message between two ranks begins with a header that says what operation the sender is in. A header that does not fit ends the group
//! before anything that comes behind it is received. Whoever ends a group tells all the others, and what does not come in
//! time ends it too.
#![deny(unsafe_code)]

mod exchange;
mod group;
mod library;
mod progress;

use hal_collectives::{Communicator, Result};
use std::time::Duration;

/// Whether a launcher of MPI programs started this process beside others.
pub fn is_launched() -> bool {
    library::is_launched()
}

/// This process's rank in its job, and how many there are. Loads and initialises MPI if nobody has.
pub fn place() -> Result<(u32, u32)> {
    let engine = progress::engine()?;
    Ok((engine.rank, engine.size))
}

/// The whole job as a group: the same `id` and count on all ranks. Does not wait for the others.
pub fn join(id: &[u8], name: &str, timeout: Duration) -> Result<Box<dyn Communicator>> {
    group::join(id, name, timeout)
}

/// Returns when MPI is left alone, if this process is in no group any more and MPI is the program's: it may end it then.
pub fn rest() {
    progress::rest();
}
