// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The hazards between commands of one queue, which decide whether the commands may overlap.
//!
//! A queue is in order as far as a program can observe: a command may begin before earlier ones have ended if none of
//! them writes what it uses or uses what it writes. Commands of one job without a barrier between them are in no order,
//! and overlap whatever they use.

use hal_backend::HostPart;

/// An access to some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) reads: bool,
    pub(crate) writes: bool,
}

impl Access {
    pub(crate) const READ: Self = Self { reads: true, writes: false };
    pub(crate) const WRITE: Self = Self { reads: false, writes: true };
    pub(crate) const BOTH: Self = Self { reads: true, writes: true };
}

/// Some bytes, and what is done to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessedRange {
    begin: usize,
    end: usize,
    access: Access,
}

impl AccessedRange {
    pub(crate) fn new(bytes: HostPart<'_>, access: Access) -> Self {
        let begin = bytes.address().addr();
        Self { begin, end: begin.saturating_add(bytes.length()), access }
    }

    fn conflicts(&self, other: &AccessedRange) -> bool {
        let (mine, theirs) = (self.access, other.access);
        let matters = (mine.writes && (theirs.reads || theirs.writes)) || (mine.reads && theirs.writes);
        matters && self.begin.max(other.begin) < self.end.min(other.end)
    }
}

/// The place of a command in its queue: the number of its job there, and how many barriers of the job are in front of
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    pub(crate) job: u64,
    pub(crate) barriers: usize,
}

/// The bytes that the runs in flight of a queue use.
#[derive(Debug, Default)]
pub(crate) struct Hazards(Vec<(u64, Phase, AccessedRange)>);

impl Hazards {
    /// A run of this number uses some bytes from here on.
    pub(crate) fn add(&mut self, run: u64, phase: Phase, range: AccessedRange) {
        self.0.push((run, phase, range));
    }

    /// The run is over.
    pub(crate) fn remove(&mut self, run: u64) {
        self.0.retain(|(other, ..)| *other != run);
    }

    /// True if a command that uses this has to wait for a run.
    pub(crate) fn hold(&self, phase: Phase, range: &AccessedRange) -> bool {
        self.0.iter().any(|(_, other, used)| *other != phase && used.conflicts(range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_backend::HostRange;

    #[test]
    fn only_conflicting_accesses_wait() {
        let memory = HostRange::allocate(100, 64).unwrap();
        let range = |at, length, access| AccessedRange::new(memory.part(at, length).unwrap(), access);
        let (first, second) = (Phase { job: 1, barriers: 0 }, Phase { job: 1, barriers: 1 });
        let mut hazards = Hazards::default();
        hazards.add(1, first, range(10, 10, Access::READ));
        hazards.add(1, first, range(30, 10, Access::WRITE));
        let holds = |hazards: &Hazards, at, length, access| hazards.hold(second, &range(at, length, access));
        assert!(!holds(&hazards, 10, 10, Access::READ));
        assert!(holds(&hazards, 19, 1, Access::WRITE) && holds(&hazards, 0, 11, Access::BOTH));
        assert!(!holds(&hazards, 20, 10, Access::BOTH) && !holds(&hazards, 0, 10, Access::BOTH));
        assert!(holds(&hazards, 39, 5, Access::READ) && holds(&hazards, 0, 31, Access::WRITE));
        assert!(!holds(&hazards, 40, 5, Access::BOTH) && !holds(&hazards, 35, 0, Access::READ));
        // Without a barrier between them there is no order.
        assert!(!hazards.hold(first, &range(30, 1, Access::BOTH)));
        assert!(hazards.hold(Phase { job: 2, barriers: 0 }, &range(30, 1, Access::BOTH)));
        hazards.remove(1);
        assert!(!holds(&hazards, 30, 10, Access::BOTH));
    }
}
