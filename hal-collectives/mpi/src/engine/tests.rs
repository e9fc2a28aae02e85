// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Jobs of one process, whose ranks move when they poll.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]
#![allow(unsafe_code, reason = "memory whose end is seen")]

use super::*;
use crate::library::fake::hooks::{Gate, arrive, be_late, before, break_tests, calls, fail};
use crate::loopback::{Rank, job};
use hal_backend::HostRange;
use hal_collectives::{Buffers, Check, Communicator, Done, Element, Kind, Operation, Reduction, Terms};
use std::sync::mpsc::{Receiver, channel};

mod creations;
mod failures;
mod order;
mod parts;
mod random;
mod threads;

const TERMS: Duration = Duration::from_secs(100);

/// A limit that nothing here comes near, on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A time that passes in some tests, and that ranks come in before on a busy machine.
const PASSES: Duration = Duration::from_secs(2);

/// What is begun: where it receives, and where it is told.
type Begun = (HostRange, Receiver<Outcome>);

/// How an operation went.
type Outcome = std::result::Result<(), Code>;

/// Numbers that a seed decides.
struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 4) % below as u64).unwrap()
    }
}

fn memory(words: &[u32]) -> HostRange {
    let range = HostRange::allocate(words.len() as u64 * 4, 64).unwrap();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert!(range.write(0, &bytes));
    range
}

fn outcome(of: Result) -> Outcome {
    of.map_err(|failure| failure.code())
}

fn word(range: &HostRange) -> u32 {
    let mut bytes = [0; 4];
    assert!(range.read(0, &mut bytes));
    u32::from_le_bytes(bytes)
}

fn sum_with(group: &dyn Communicator, buffers: Buffers, done: Done) {
    let count = buffers.send.as_ref().unwrap().length() / 4;
    let operation = Operation { kind: Kind::AllReduce(Reduction::Sum), element: Element::U32, count };
    assert!(group.enter(operation).unwrap().start(buffers, done).is_none());
}

/// A sum of one word of each rank, and where it is told.
fn sum(group: &dyn Communicator, word: u32) -> Begun {
    let (tell, told) = channel();
    let recv = memory(&[0]);
    let buffers = Buffers { send: Some(memory(&[word])), recv: Some(recv.clone()) };
    sum_with(
        group,
        buffers,
        Box::new(move |end| {
            let _ = tell.send(outcome(end));
        }),
    );
    (recv, told)
}

/// A sum that is to fail, and where that is told.
fn doomed_sum(group: &dyn Communicator) -> Receiver<Failure> {
    let (tell, told) = channel();
    let buffers = Buffers { send: Some(memory(&[1])), recv: Some(memory(&[0])) };
    sum_with(group, buffers, Box::new(move |end| tell.send(end.unwrap_err()).unwrap()));
    told
}

/// Has some ranks poll until each of them is told of its failure.
fn failures(ranks: &[&Rank], told: &[Receiver<Failure>]) -> Vec<Failure> {
    failures_of(ranks, told, Duration::ZERO)
}

/// The same, with a pause between any two polls.
fn failures_of(ranks: &[&Rank], told: &[Receiver<Failure>], pause: Duration) -> Vec<Failure> {
    let mut failures = vec![None; told.len()];
    until("a rank waits", || {
        std::thread::sleep(pause);
        ranks.iter().for_each(|rank| rank.poll());
        for (failure, told) in failures.iter_mut().zip(told) {
            *failure = failure.take().or_else(|| told.try_recv().ok());
        }
        failures.iter().all(Option::is_some)
    });
    failures.into_iter().flatten().collect()
}

/// A rank's end of a transfer of all words of some memory, and where it is told.
fn transfer(group: &dyn Communicator, kind: Kind, words: HostRange) -> Receiver<Outcome> {
    let (tell, told) = channel();
    let done = Box::new(move |end| {
        let _ = tell.send(outcome(end));
    });
    let operation = Operation { kind, element: Element::U32, count: words.length() / 4 };
    let (send, recv) =
        if matches!(kind, Kind::Send { .. }) { (Some(words), None) } else { (None, Some(words)) };
    assert!(group.enter(operation).unwrap().start(Buffers { send, recv }, done).is_none());
    told
}

/// Has all ranks poll until nothing moves.
fn poll_all(ranks: &[Rank]) {
    for _ in 0..10 {
        ranks.iter().for_each(Rank::poll);
    }
}

/// Has a rank poll until it is notified.
fn notified_in_time(rank: &Rank, told: &Receiver<Outcome>) -> Outcome {
    let begin = Instant::now();
    let polls = std::iter::from_fn(|| {
        assert!(begin.elapsed() < TERMS);
        rank.poll();
        Some(told.try_recv())
    });
    polls.flatten().next().unwrap()
}

/// Two ranks of a group that has its communicator, and compares nothing.
fn pair() -> ([Rank; 2], [Box<dyn Communicator>; 2]) {
    let ranks: [Rank; 2] = job(2).try_into().ok().unwrap();
    let terms = Terms { check: Check::Off, ..Terms::from(TERMS) };
    let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"pair", terms));
    meet(&ranks, &groups);
    (ranks, groups)
}

/// Has all ranks of a group do one operation, for which its communicator is made.
fn meet(ranks: &[Rank], groups: &[Box<dyn Communicator>]) {
    let sums: Vec<_> = groups.iter().map(|group| sum(&**group, 1).1).collect();
    let mut ended = 0;
    until("the ranks do not meet", || {
        ranks.iter().for_each(Rank::poll);
        ended += sums.iter().filter(|told| told.try_recv().is_ok_and(|end| end.is_ok())).count();
        ended == sums.len()
    });
}

/// Waits until something is so.
fn until(otherwise: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "{otherwise}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
