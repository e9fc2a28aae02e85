// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Groups of ranks in many processes and on many machines, by MPI.
//!
//! The library is the one of whatever launched the process, loaded at run time ([`is_launched`], [`join`]); a
//! program that is linked with this crate needs none. One thread at a time makes calls to it: one that waits,
//! or one of this crate's (`engine.rs`).
//!
//! Each group has a communicator of its own, and each piece of an operation is a call of MPI's (`calls.rs`). Calls
//! begin in the order in which operations were entered, after ranks have compared what they ask for (`order.rs`).
//! Beside them processes exchange notices (`notice.rs`): what is compared, who wants a communicator, which group has
//! failed (`progress.rs`).
#![deny(unsafe_code)]

mod calls;
mod creations;
mod engine;
mod group;
mod launcher;
mod library;
mod notice;
mod order;
mod parts;
mod progress;
mod started;
mod table;

use hal_collectives::{Communicator, Result, Terms};
use std::time::Instant;

/// Whether a launcher of MPI programs started this process beside others.
pub fn is_launched() -> bool {
    launcher::is_launched()
}

/// Whether a group of so many ranks can be the whole job, as far as the launcher says how large that is. Asks no MPI.
pub fn can_be_job(count: u32) -> bool {
    launcher::launched().is_none_or(|launched| launched == count)
}

/// This process's rank in its job, and how many there are. Loads and initialises MPI if the program has not.
pub fn place() -> Result<(u32, u32)> {
    let engine = engine::engine()?;
    Ok((engine.rank, engine.size))
}

/// The whole job as a group: the same `id` and terms on all ranks. Does not wait for the others.
pub fn join(id: &[u8], name: &str, terms: impl Into<Terms>) -> Result<Box<dyn Communicator>> {
    join_as(0, id, name, terms)
}

/// The same for one of several speakers that this process may have, told apart by a number: only one of them
/// is its rank of a group at a time.
pub fn join_as(
    owner: usize,
    id: &[u8],
    name: &str,
    terms: impl Into<Terms>,
) -> Result<Box<dyn Communicator>> {
    group::join(owner, id, name, terms.into())
}

/// True if an operation of this process is under way, so that a waiting thread should [poll](poll_until).
pub fn is_busy() -> bool {
    engine::is_busy()
}

/// Polls for messages on this thread, and helps with work within this process, until something is over or a little
/// after `until`: for a thread that waits for an operation. It returns early if nothing is under way any more or
/// nothing has moved for a while. Returns the last answer of `is_over`. Operations go on without it.
///
/// Callbacks of operations that end meanwhile run on this thread, without a lock. If they may take a lock that this
/// thread holds, the program defers them or does not poll.
pub fn poll_until(until: Option<Instant>, is_over: impl FnMut() -> bool) -> bool {
    engine::poll_until(until, is_over)
}

/// Waits until this crate makes no calls to MPI, if this process is in no group any more and the program has started
/// MPI: the program may end it then. That is when all that other processes need from this one is over, or has had its
/// time.
pub fn wait_until_idle() {
    engine::wait_until_idle();
}

/// Jobs whose ranks are in one process and reach each other without any MPI, for counting what an operation costs here.
#[cfg(any(test, feature = "loopback"))]
pub mod loopback {
    use crate::engine::Engine;
    use crate::library::Library;
    use hal_collectives::{Communicator, Terms};
    use std::sync::Arc;

    /// A rank of a job. It moves only when it [polls](Self::poll) or starts something.
    pub struct Rank(pub(crate) Arc<Engine>);

    /// A job of so many ranks.
    pub fn job(ranks: u32) -> Vec<Rank> {
        job_of(crate::library::fake::network(ranks))
    }

    /// A job whose ranks have some libraries.
    pub(crate) fn job_of(libraries: impl IntoIterator<Item = Library>) -> Vec<Rank> {
        let pollers = Box::leak(Box::default());
        libraries.into_iter().map(|library| Rank(Engine::new(library, pollers))).collect()
    }

    impl Rank {
        /// As [`join`](crate::join).
        pub fn join(&self, id: &[u8], terms: impl Into<Terms>) -> Box<dyn Communicator> {
            crate::group::join_of(self.0.clone(), id, "job", terms.into())
        }

        /// Polls once whether anything has moved.
        pub fn poll(&self) {
            self.0.poll();
        }
    }
}
