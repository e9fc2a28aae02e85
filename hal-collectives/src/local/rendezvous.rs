// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! One operation of a group, from the first rank that enters it to the last one that has started it.

use super::group::Group;
use super::perform::perform;
use crate::operation::{Participants, SENDER, Side};
use crate::{Buffers, EndCountdown, Job, Operation, Parts, Piece, Result};
use hal_backend::TimeLimit;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The identity of an operation: its participants and its number among theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OperationSlot {
    pub(super) participants: Participants,
    pub(super) number: u64,
}

impl fmt::Display for OperationSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.participants {
            Participants::Everyone => write!(f, "operation {}", self.number),
            Participants::Pair { from, to } => {
                write!(f, "transfer {} from rank {from} to rank {to}", self.number)
            }
        }
    }
}

/// The wait of a rank for others: its timeout, and what is left of it.
#[derive(Clone, Copy)]
pub(super) struct Wait {
    pub(super) timeout: Duration,
    pub(super) limit: TimeLimit,
}

impl Wait {
    /// Begins a wait now.
    pub(super) fn begin(timeout: Duration) -> Self {
        Self { timeout, limit: TimeLimit::new(timeout, Instant::now()) }
    }

    /// The wait that ends first.
    pub(super) fn sooner(self, other: Self) -> Self {
        if other.limit.end() < self.limit.end() { other } else { self }
    }
}

/// A rank that has started its part.
#[derive(Clone)]
pub(super) struct Arrival {
    /// Keeps the group while a rank waits in it, even if all others have released it.
    pub(super) group: Arc<Group>,
    pub(super) operation: Operation,
    pub(super) memory: Buffers<Parts>,
    /// The parts of the rank's operation that have not ended: most operations have one, a send-receive has two.
    pub(super) part: Arc<EndCountdown>,
}

impl Arrival {
    /// Ends the rank's part: releases its memory, which may call the program back, and then notifies the rank.
    pub(super) fn end(self, outcome: Result) {
        let Self { memory, part, group, .. } = self;
        memory.release();
        drop(group);
        part.end(outcome);
    }
}

/// The progress of each side.
#[derive(Default)]
pub(super) struct Ends(Vec<Progress>);

/// The progress of one side.
enum Progress {
    Absent,
    Entered(Operation),
    Here(Arrival),
}

impl Progress {
    fn asks(&self) -> Option<&Operation> {
        match self {
            Progress::Absent => None,
            Progress::Entered(operation) => Some(operation),
            Progress::Here(arrival) => Some(&arrival.operation),
        }
    }
}

/// A piece of an operation that not all ranks have started. Ranks enter the first piece.
pub(super) struct Rendezvous {
    ends: Ends,
    /// The first rank that entered, and its operation. The operations of all present ranks match.
    first_request: Option<(u32, Operation)>,
    here: usize,
    /// The wait that ends first among the present ranks.
    pub(super) wait: Option<Wait>,
}

impl Rendezvous {
    /// None of the ranks has entered. Uses the memory of `ends`.
    pub(super) fn new(participants: Participants, ranks: u32, mut ends: Ends) -> Self {
        let sides = if participants == Participants::Everyone { ranks } else { 2 };
        ends.0.clear();
        ends.0.extend((0..sides).map(|_| Progress::Absent));
        Self { ends, first_request: None, here: 0, wait: None }
    }

    /// Another rank and its operation, if that does not match.
    pub(super) fn mismatch(
        &self,
        operation: &Operation,
        participants: Participants,
    ) -> Option<(u32, Operation)> {
        self.first_request.filter(|(_, other)| !operation.fits(other, participants))
    }

    pub(super) fn enter(&mut self, side: Side, rank: u32, operation: Operation) {
        self.first_request.get_or_insert((rank, operation));
        if let Some(end) = self.ends.0.get_mut(side as usize) {
            *end = Progress::Entered(operation);
        }
    }

    /// Begins the wait of a present rank. Returns the wait that ends first.
    pub(super) fn wait(&mut self, timeout: Duration) -> Wait {
        let wait = match self.wait {
            // An earlier wait with a timeout that is as short ends first.
            Some(other) if other.timeout <= timeout => return other,
            Some(other) => other.sooner(Wait::begin(timeout)),
            None => Wait::begin(timeout),
        };
        self.wait = Some(wait);
        wait
    }

    pub(super) fn arrive(&mut self, side: Side, arrival: Arrival) {
        if let Some(end) = self.ends.0.get_mut(side as usize) {
            *end = Progress::Here(arrival);
            self.here += 1;
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.here == self.ends.0.len()
    }

    /// The ranks that have started. Leaves the memory that they were in.
    pub(super) fn into_arrivals(mut self, spare: &mut Ends) -> Vec<Arrival> {
        let here = |end| if let Progress::Here(arrival) = end { Some(arrival) } else { None };
        let arrivals = self.ends.0.drain(..).filter_map(here).collect();
        *spare = self.ends;
        arrivals
    }

    /// The progress of each rank, in words.
    pub(super) fn describe_progress(
        &self,
        participants: Participants,
        has_entered: impl Fn(Side) -> bool,
    ) -> String {
        let (mut here, mut entered, mut absent) = (Vec::new(), Vec::new(), Vec::new());
        let mut requests = Vec::new();
        for (side, end) in (0..).zip(&self.ends.0) {
            let rank = match participants {
                Participants::Everyone => side,
                Participants::Pair { from, to } => {
                    if side == SENDER {
                        from
                    } else {
                        to
                    }
                }
            };
            match end {
                Progress::Here(..) => here.push(rank),
                Progress::Entered(..) => entered.push(rank),
                // For a piece after the first one.
                Progress::Absent if has_entered(side) => entered.push(rank),
                Progress::Absent => absent.push(rank),
            }
            requests.extend(end.asks().map(Operation::to_string));
        }
        requests.dedup();
        let mut text = format!("{}; {} for the others", requests.join(", "), ranks(&here, "waits", "wait"));
        if !entered.is_empty() {
            text += &format!("; {} asked for it, but not started it", ranks(&entered, "has", "have"));
        }
        if !absent.is_empty() {
            text += &format!("; {} not asked for it", ranks(&absent, "has", "have"));
        }
        text
    }
}

/// The job of the rank that was the last to start a piece, and has the side `last`.
pub(super) fn job(participants: Participants, piece: Piece, arrivals: Vec<Arrival>, last: Side) -> Job {
    Box::new(move || {
        let (arrivals, performed) = perform(participants, piece, arrivals, last);
        let outcome = match (performed, arrivals.first()) {
            (Err(why), Some(first)) => Err(first.group.fail_in(&first.operation, &why)),
            (outcome, _) => outcome,
        };
        arrivals.into_iter().for_each(|arrival| arrival.end(outcome.clone()));
    })
}

/// Names some ranks, a few of them in full, and what they do.
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
    use crate::{Element, Kind, Memory, Pieces};
    use hal_backend::HostRange;
    use hal_semaphore::Code;
    use std::sync::mpsc;

    /// Memory that is shorter than its operation, which no call can bring about. The thread that moves the bytes
    /// goes on.
    #[test]
    fn panic_of_the_moving_thread_is_reported_to_all_ranks() {
        for count in [8, 1 << 20] {
            let group = Group::new("panics".into(), 2, Duration::from_secs(60).into());
            let operation = |count| Operation { kind: Kind::AllGather, element: Element::U8, count };
            let piece = |count| Pieces::new(operation(count), 2, u64::MAX).get(0);
            let (notify, callbacks) = mpsc::channel();
            let mut job = None;
            for rank in 0..2 {
                let slot = group.enter((Participants::Everyone, rank), (rank, operation(count))).unwrap();
                let notify = notify.clone();
                let part =
                    EndCountdown::new(1, Box::new(move |outcome| notify.send((rank, outcome)).unwrap()));
                let host = |length| Memory::Alone(HostRange::allocate(length, 1).unwrap());
                let buffers = Buffers { send: Some(host(count / 2)), recv: Some(host(count)) };
                let memory = piece(count / 2).cut(buffers, (rank, 2)).unwrap();
                let arrival = Arrival { group: group.clone(), operation: operation(count), memory, part };
                job = group.arrive((slot, rank), piece(count), arrival, Duration::from_secs(60));
            }
            job.unwrap()();
            for _ in 0..2 {
                let (_, outcome) = callbacks.recv_timeout(Duration::from_secs(60)).unwrap();
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
