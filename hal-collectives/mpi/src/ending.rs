// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Operations that have failed while transfers of theirs were under way.
//!
//! A rank that is told that its operation has failed may use the memory again at once, for something else. So it is told when no transfer
//! reads or writes that memory any more: receives are cancelled, and those that have met their message already, as well as sends, get
//! [`GRACE`] to end. A send counts too: whoever receives it may be through with the operation before it hears of the failure, and would have
//! got what the sender wrote there afterwards.
//!
//! A transfer may never end, where its other end is gone. When its time is over the rank is told all the same, as nobody hangs because of
//! a peer, and the memory of the transfer is *kept*: it is not let go of before MPI says that it is done with it, and never if
//! that never happens. What a late message writes then it writes into memory that nobody else has got.

use crate::active::InFlight;
use crate::library::Library;
use crate::progress::Told;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a failure waits for transfers to end: less than a device that is released waits for its operations.
pub(crate) const GRACE: Duration = Duration::from_millis(250);

/// An operation whose rank is to be told when its transfers have ended.
struct Ending {
    told: Told,
    transfers: usize,
    until: Instant,
}

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Endings {
    operations: BTreeMap<u64, Ending>,
    /// Transfers whose ranks could not wait for them.
    kept: Vec<InFlight>,
}

impl Endings {
    /// Whether there is memory that MPI may use though its operation is over.
    pub(crate) fn keeps(&self) -> bool {
        !self.kept.is_empty()
    }

    /// An operation has failed that has so many transfers under way.
    pub(crate) fn add(&mut self, operation: u64, told: Told, transfers: usize) {
        self.operations.insert(operation, Ending { told, transfers, until: Instant::now() + GRACE });
    }

    /// A transfer of an operation has ended: who is to be told, if it was the last one.
    pub(crate) fn landed(&mut self, operation: u64) -> Option<Told> {
        let ending = self.operations.get_mut(&operation)?;
        ending.transfers -= 1;
        if ending.transfers > 0 {
            return None;
        }
        self.operations.remove(&operation).map(|ending| ending.told)
    }

    /// Those whose time is over are to be told, and their transfers are kept.
    pub(crate) fn overdue(&mut self, in_flight: &mut Vec<InFlight>) -> Vec<Told> {
        if self.operations.is_empty() {
            return Vec::new();
        }
        let now = Instant::now();
        let is_overdue = |operation: &u64| {
            self.operations.get(operation).is_some_and(|ending: &Ending| ending.until <= now)
        };
        self.kept.extend(in_flight.extract_if(.., |flight| is_overdue(&flight.owner)));
        let overdue: Vec<u64> = self.operations.keys().copied().filter(is_overdue).collect();
        overdue.iter().filter_map(|id| self.operations.remove(id)).map(|ending| ending.told).collect()
    }

    /// Transfers that have ended after all.
    pub(crate) fn let_go<'a>(&'a mut self, library: &'a Library) -> impl Iterator<Item = InFlight> + 'a {
        self.kept.extract_if(.., |flight| library.has_ended(&mut flight.request).unwrap_or(true))
    }

    /// All that is kept, for whoever ends MPI.
    pub(crate) fn take_kept(&mut self) -> Vec<InFlight> {
        std::mem::take(&mut self.kept)
    }
}
