// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Whether commands of one queue may overlap.
//!
//! A queue is in order as far as a program can observe: a command may begin before earlier ones have ended if none of
//! them writes what it uses or uses what it writes. Commands of one job without a barrier between them are in no order,
//! and overlap whatever they use.

use hal_backend::HostPart;

/// What is done to some bytes.
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
pub(crate) struct Reach {
    begin: usize,
    end: usize,
    access: Access,
}

impl Reach {
    pub(crate) fn new(bytes: HostPart<'_>, access: Access) -> Self {
        let begin = bytes.address().addr();
        Self { begin, end: begin.saturating_add(bytes.length()), access }
    }

    fn conflicts(&self, other: &Reach) -> bool {
        let (mine, theirs) = (self.access, other.access);
        let matters = (mine.writes && (theirs.reads || theirs.writes)) || (mine.reads && theirs.writes);
        matters && self.begin.max(other.begin) < self.end.min(other.end)
    }
}

/// Where a command is in its queue: the number of its job there, and how many barriers of the job are in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    pub(crate) job: u64,
    pub(crate) barriers: usize,
}

/// What the runs in flight of a queue use.
#[derive(Debug, Default)]
pub(crate) struct Hazards(Vec<(u64, Phase, Reach)>);

impl Hazards {
    /// A run of this number uses some bytes from here on.
    pub(crate) fn add(&mut self, run: u64, phase: Phase, reach: Reach) {
        self.0.push((run, phase, reach));
    }

    /// The run is over.
    pub(crate) fn remove(&mut self, run: u64) {
        self.0.retain(|(other, ..)| *other != run);
    }

    /// Whether a command that uses this has to wait for a run.
    pub(crate) fn hold(&self, phase: Phase, reach: &Reach) -> bool {
        self.0.iter().any(|(_, other, used)| *other != phase && used.conflicts(reach))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_backend::HostRange;

    #[test]
    fn only_conflicting_accesses_wait() {
        let memory = HostRange::allocate(100, 64).unwrap();
        let reach = |at, length, access| Reach::new(memory.part(at, length).unwrap(), access);
        let (first, second) = (Phase { job: 1, barriers: 0 }, Phase { job: 1, barriers: 1 });
        let mut hazards = Hazards::default();
        hazards.add(1, first, reach(10, 10, Access::READ));
        hazards.add(1, first, reach(30, 10, Access::WRITE));
        let holds = |hazards: &Hazards, at, length, access| hazards.hold(second, &reach(at, length, access));
        assert!(!holds(&hazards, 10, 10, Access::READ));
        assert!(holds(&hazards, 19, 1, Access::WRITE) && holds(&hazards, 0, 11, Access::BOTH));
        assert!(!holds(&hazards, 20, 10, Access::BOTH) && !holds(&hazards, 0, 10, Access::BOTH));
        assert!(holds(&hazards, 39, 5, Access::READ) && holds(&hazards, 0, 31, Access::WRITE));
        assert!(!holds(&hazards, 40, 5, Access::BOTH) && !holds(&hazards, 35, 0, Access::READ));
        // Without a barrier between them there is no order.
        assert!(!hazards.hold(first, &reach(30, 1, Access::BOTH)));
        assert!(hazards.hold(Phase { job: 2, barriers: 0 }, &reach(30, 1, Access::BOTH)));
        hazards.remove(1);
        assert!(!holds(&hazards, 30, 10, Access::BOTH));
    }
}
