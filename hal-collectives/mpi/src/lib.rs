// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Groups of ranks in many processes and on many machines, by MPI.
//!
//! The library is the one of whatever launched the process, loaded at run time ([`is_launched`], [`join`]); a program that is
//! linked with this crate needs none. One thread makes all calls to it (`progress.rs`); what each kind of operation is in
//! messages stands in `exchange.rs`, and a rank's end of a group in `group.rs`.
//!
//! # Agreement
//!
//! Each letter between two ranks says in its header which operation the sender is in (`wire.rs`). A header that does not fit ends the
//! group before anything that comes behind it is received. The ranks that exchange letters for an operation depend on which one
//! it is, so every rank also tells the next one that it is there, if that gets nothing else at first: around that ring two neighbours
//! disagree wherever two ranks do. What does not come in time ends the group too.
//!
//! Whoever ends a group tells the ranks whose number differs from its own by a power of two, and everybody who hears of it for the first time
//! does the same. So all know after a logarithmic number of hops, also where some ranks are gone.
#![deny(unsafe_code)]

mod active;
mod exchange;
mod group;
mod library;
mod mail;
mod progress;
mod wire;

use hal_collectives::{Communicator, Result, Terms};

/// Whether a launcher of MPI programs started this process beside others.
pub fn is_launched() -> bool {
    library::is_launched()
}

/// This process's rank in its job, and how many there are. Loads and initialises MPI if nobody has.
pub fn place() -> Result<(u32, u32)> {
    let engine = progress::engine()?;
    Ok((engine.rank, engine.size))
}

/// The whole job as a group: the same `id` and terms on all ranks. Does not wait for the others.
pub fn join(id: &[u8], name: &str, terms: impl Into<Terms>) -> Result<Box<dyn Communicator>> {
    group::join(id, name, terms.into())
}

/// Looks once, on this thread, whether anything has moved: for a thread that has nothing better to do than to wait for an
/// operation. Operations go on without it.
pub fn poll() {
    progress::poll();
}

/// Returns when MPI is left alone, if this process is in no group any more and MPI is the program's: it may end it then.
pub fn rest() {
    progress::rest();
}
