// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! One operation of a group, from the first rank that enters it to the last one that has started it.

use super::group::Group;
use super::perform::perform;
use crate::operation::{Line, SENDER, Side};
use crate::{Done, Job, Operation, Piece, Portions, Result, tell};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Which operation of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    pub(super) line: Line,
    pub(super) number: u64,
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Line::Everyone => write!(f, "operation {}", self.number),
            Line::Pair { from, to } => write!(f, "transfer {} from rank {from} to rank {to}", self.number),
        }
    }
}

/// The wait of a rank for others: how long it has patience, and when that ends.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    pub(super) timeout: Duration,
    pub(super) end: Instant,
}

impl Wait {
    /// A rank begins to wait now.
    pub(super) fn begin(timeout: Duration) -> Self {
        Self { timeout, end: Instant::now() + timeout }
    }

    /// The one that ends first.
    pub(super) fn sooner(self, other: Self) -> Self {
        if other.end < self.end { other } else { self }
    }
}

/// Part of a rank's operation: most have one, and what sends and receives has two.
pub(super) type Part = Arc<Parts>;

/// The parts of one rank's operation that have not ended.
pub(super) struct Parts(Mutex<Open>);

struct Open {
    left: usize,
    outcome: Result,
    done: Option<Done>,
}

impl Parts {
    pub(super) fn new(count: usize, done: Done) -> Part {
        Arc::new(Self(Mutex::new(Open { left: count, outcome: Ok(()), done: Some(done) })))
    }

    /// One of them has ended. With the last one the rank is told.
    pub(super) fn end(&self, outcome: Result) {
        let mut open = self.0.lock();
        open.left -= 1;
        if open.outcome.is_ok() {
            open.outcome = outcome;
        }
        if open.left > 0 {
            return;
        }
        let outcome = std::mem::replace(&mut open.outcome, Ok(()));
        let done = open.done.take();
        drop(open);
        if let Some(done) = done {
            tell(done, outcome);
        }
    }
}

/// A rank that has started.
#[derive(Clone)]
pub(super) struct Arrival {
    /// It is there as long as a rank waits in it, also when all others have let go of it.
    pub(super) group: Arc<Group>,
    pub(super) operation: Operation,
    pub(super) piece: Piece,
    pub(super) memory: Portions,
    pub(super) part: Part,
    /// How long the rank waits for the others.
    pub(super) timeout: Duration,
}

impl Arrival {
    /// Its part of the operation has ended: lets go of its memory, which may call the program back, and then tells the rank.
    pub(super) fn end(self, outcome: Result) {
        let Self { memory, part, group, .. } = self;
        memory.let_go();
        drop(group);
        part.end(outcome);
    }
}

/// How far one side is.
enum End {
    Absent,
    Entered(Operation),
    Here(Arrival),
}

impl End {
    fn asks(&self) -> Option<&Operation> {
        match self {
            End::Absent => None,
            End::Entered(operation) => Some(operation),
            End::Here(arrival) => Some(&arrival.operation),
        }
    }
}

/// A piece of an operation that not all ranks have started. Ranks enter the first one.
pub(super) struct Meeting {
    ends: Vec<End>,
    /// What the first rank asks for that entered. All of those that are there fit each other.
    asked: Option<(u32, Operation)>,
    here: usize,
    /// Who came last.
    last: Side,
    /// Of the ranks that are there, the wait that ends first.
    pub(super) wait: Option<Wait>,
}

impl Meeting {
    pub(super) fn new(line: Line, ranks: u32) -> Self {
        let sides = if line == Line::Everyone { ranks } else { 2 };
        Self { ends: (0..sides).map(|_| End::Absent).collect(), asked: None, here: 0, last: 0, wait: None }
    }

    /// Another rank's operation that does not fit.
    pub(super) fn misfit(&self, operation: &Operation, line: Line) -> Option<(u32, Operation)> {
        self.asked.filter(|(_, other)| !operation.fits(other, line))
    }

    pub(super) fn enter(&mut self, side: Side, rank: u32, operation: Operation) {
        self.asked.get_or_insert((rank, operation));
        if let Some(end) = self.ends.get_mut(side as usize) {
            *end = End::Entered(operation);
        }
    }

    /// One that is there waits from now on. Returns the wait that ends first.
    pub(super) fn wait(&mut self, timeout: Duration) -> Wait {
        let wait = match self.wait {
            // It began before, and is as short.
            Some(other) if other.timeout <= timeout => return other,
            Some(other) => other.sooner(Wait::begin(timeout)),
            None => Wait::begin(timeout),
        };
        self.wait = Some(wait);
        wait
    }

    pub(super) fn arrive(&mut self, side: Side, arrival: Arrival) {
        if let Some(end) = self.ends.get_mut(side as usize) {
            *end = End::Here(arrival);
            self.here += 1;
            self.last = side;
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.here == self.ends.len()
    }

    /// The ranks that are there.
    pub(super) fn into_arrivals(self) -> Vec<Arrival> {
        let here = |end| if let End::Here(arrival) = end { Some(arrival) } else { None };
        self.ends.into_iter().filter_map(here).collect()
    }

    /// The job that is due once all ranks are there, for the one that came last.
    pub(super) fn into_job(self, line: Line) -> Job {
        let last = self.last;
        let arrivals = self.into_arrivals();
        Box::new(move || {
            let (arrivals, performed) = perform(line, arrivals, last);
            let outcome = match (performed, arrivals.first()) {
                (Err(why), Some(first)) => Err(first.group.fail_in(&first.operation, &why)),
                (outcome, _) => outcome,
            };
            arrivals.into_iter().for_each(|arrival| arrival.end(outcome.clone()));
        })
    }

    /// Who has come how far, in words.
    pub(super) fn who_is_there(&self, line: Line, has_entered: impl Fn(Side) -> bool) -> String {
        let (mut here, mut entered, mut absent) = (Vec::new(), Vec::new(), Vec::new());
        let mut asked = Vec::new();
        for (side, end) in (0..).zip(&self.ends) {
            let rank = match line {
                Line::Everyone => side,
                Line::Pair { from, to } => {
                    if side == SENDER {
                        from
                    } else {
                        to
                    }
                }
            };
            match end {
                End::Here(..) => here.push(rank),
                End::Entered(..) => entered.push(rank),
                // Of a piece behind the first one.
                End::Absent if has_entered(side) => entered.push(rank),
                End::Absent => absent.push(rank),
            }
            asked.extend(end.asks().map(Operation::to_string));
        }
        asked.dedup();
        let mut text = format!("{}; {} in it", asked.join(", "), ranks(&here, "waits", "wait"));
        if !entered.is_empty() {
            text += &format!("; {} asked for it, but not come so far", ranks(&entered, "has", "have"));
        }
        if !absent.is_empty() {
            text += &format!("; {} not asked for it", ranks(&absent, "has", "have"));
        }
        text
    }
}

/// Names ranks, a few of them, and what they do.
pub(super) fn ranks(ranks: &[u32], one: &str, several: &str) -> String {
    const NAMED: usize = 8;
    let names: Vec<String> = ranks.iter().take(NAMED).map(u32::to_string).collect();
    match ranks {
        [rank] => format!("rank {rank} {one}"),
        ranks if ranks.len() <= NAMED => format!("ranks {} {several}", names.join(", ")),
        ranks => format!("ranks {} and {} others {several}", names.join(", "), ranks.len() - NAMED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Element, Kind, Memory, PieceBuffers, Pieces};
    use hal_backend::HostRange;
    use hal_semaphore::Code;
    use std::sync::mpsc;

    /// Memory that is shorter than its operation, which none is that has come in the ordinary way. The thread that moves the bytes goes on.
    #[test]
    fn panic_of_who_moves_the_bytes_is_told_to_all_ranks() {
        for count in [8, 1 << 20] {
            let group = Group::new("panics".into(), 2, Duration::from_secs(60).into());
            let operation = |count| Operation { kind: Kind::AllGather, element: Element::U8, count };
            let piece = |count| Pieces::new(operation(count), 2, u64::MAX).get(0);
            let (tell, told) = mpsc::channel();
            let mut job = None;
            for rank in 0..2 {
                let slot = group.enter((Line::Everyone, rank), (rank, operation(count))).unwrap();
                let tell = tell.clone();
                let part = Parts::new(1, Box::new(move |outcome| tell.send((rank, outcome)).unwrap()));
                let host = |length| Memory::Alone(HostRange::allocate(length, 1).unwrap());
                let buffers = PieceBuffers { send: Some(host(count / 2)), recv: Some(host(count)) };
                let memory = piece(count / 2).cut(&buffers, (rank, 2)).unwrap();
                let (operation, piece, timeout) = (operation(count), piece(count), Duration::from_secs(60));
                let arrival = Arrival { group: group.clone(), operation, piece, memory, part, timeout };
                job = group.arrive(slot, rank, arrival);
            }
            job.unwrap()();
            for _ in 0..2 {
                let (_, outcome) = told.recv_timeout(Duration::from_secs(20)).unwrap();
                let failure = outcome.unwrap_err();
                assert_eq!(failure.code(), Code::Internal);
                let says = "all-gather of";
                assert!(
                    failure.message().contains(says) && failure.message().contains("panicked"),
                    "{failure}"
                );
            }
            assert!(group.has_failed(), "what it has in progress waits for ever");
        }
    }
}
