// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Random programs of collectives, in one group after the other, whatever becomes of each: what is told to
//! have gone well has the bytes that it should. The environment says which (`SEED`), how many groups
//! (`ROUNDS`), and how long an operation may take (`MILLISECONDS`).

use crate::{SUM, read};
use hal_backend::HostRange;
use hal_collectives::{Buffers, Communicator, Element, Kind, Operation, Result};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How many operations a group has, and how many are under way at once.
const OPERATIONS: usize = 30;
const AT_ONCE: usize = 4;

pub(crate) struct Random(u64);

impl Random {
    /// A sequence of its own for each pair of numbers.
    pub(crate) fn of(seed: u64, number: u64) -> Self {
        let mut random = Self((seed * 1_000 + number).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        random.below(2);
        random
    }

    pub(crate) fn below(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 4) % below as u64).unwrap()
    }
}

pub(crate) fn said(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|said| said.parse().ok()).unwrap_or(otherwise)
}

/// A word that no other rank has at that place of that operation.
fn value(operation: usize, rank: usize, at: usize) -> u32 {
    let all = operation * 104_729 + rank * 1_299_709 + at * 31;
    u32::try_from(all & 0xFFFF_FFFF).unwrap().wrapping_mul(0x9E37_79B1)
}

struct Part {
    send: HostRange,
    recv: HostRange,
    expected: Vec<u32>,
    told: Receiver<Result>,
    what: String,
}

impl Part {
    fn begin(
        group: &dyn Communicator,
        number: usize,
        (kind, words, root): (usize, usize, usize),
    ) -> Result<Self> {
        let (rank, ranks) = group.place()?;
        let (rank, ranks) = (rank as usize, ranks as usize);
        let value = |rank: usize, at: usize| value(number, rank, at);
        let sum = |at: usize| (0..ranks).fold(0_u32, |sum, rank| sum.wrapping_add(value(rank, at)));
        let of_root = u32::try_from(root).unwrap();
        let (kind, sends, expected): (_, usize, Vec<u32>) = match kind {
            0 => (Kind::AllReduce(SUM), words, (0..words).map(sum).collect()),
            1 => {
                let all = (0..ranks).flat_map(|rank| (0..words).map(move |at| value(rank, at)));
                (Kind::AllGather, words, all.collect())
            }
            2 => {
                let own = (0..words).map(|at| sum(rank * words + at));
                (Kind::ReduceScatter(SUM), words * ranks, own.collect())
            }
            3 => {
                let own = (0..words).map(|at| if rank == root { sum(at) } else { 0 });
                (Kind::Reduce { reduction: SUM, root: of_root }, words, own.collect())
            }
            4 => {
                let own = (0..words).map(|at| if rank == root { 0 } else { value(root, at) });
                (Kind::Broadcast { root: of_root }, words, own.collect())
            }
            _ => {
                let part = |from: usize| (0..words).map(move |at| value(from, rank * words + at));
                (Kind::AllToAll, words * ranks, (0..ranks).flat_map(part).collect())
            }
        };
        let own: Vec<u32> = (0..sends).map(|at| value(rank, at)).collect();
        let (send, recv) = (crate::memory(&own), crate::memory(&vec![0; expected.len()]));
        let count = if matches!(kind, Kind::AllToAll) { words * ranks } else { words } as u64;
        let operation = Operation { kind, element: Element::U32, count };
        let (tell, told) = channel();
        let buffers = Buffers { send: Some(send.clone()), recv: Some(recv.clone()) };
        let entry = group.enter(operation)?;
        assert!(entry.start(buffers, Box::new(move |outcome| drop(tell.send(outcome)))).is_none());
        let what = format!("{operation}, the operation {number} of rank {rank}");
        Ok(Self { send, recv, expected, told, what })
    }

    /// Waits until it is told, and uses its memory for something else.
    fn end(self, limit: Duration) -> bool {
        let told = self.told.recv_timeout(limit);
        let outcome = told.unwrap_or_else(|_| panic!("{} is not told", self.what));
        if outcome.is_ok() {
            let got = read(&self.recv);
            let wrong = got.iter().zip(&self.expected).position(|(got, expected)| got != expected);
            assert_eq!(wrong, None, "{} has other words than it should", self.what);
        }
        for memory in [&self.send, &self.recv] {
            assert!(memory.fill(&0xD1E5_D1E5_u32.to_le_bytes()));
        }
        outcome.is_ok()
    }
}

/// See the file.
pub(crate) fn random() {
    let (seed, groups) = (said("SEED", 1), said("ROUNDS", 4));
    let timeout = Duration::from_millis(said("MILLISECONDS", 30_000));
    let (mut done, mut failed) = (0, 0);
    for number in 0..groups {
        // The same on all ranks.
        let mut random = Random::of(seed, number);
        let name = format!("{number} of {seed}");
        let group = hal_collectives_mpi::join(name.as_bytes(), &name, timeout).unwrap();
        let ranks = group.place().unwrap().1 as usize;
        let mut parts = VecDeque::new();
        let mut count = |is_done| if is_done { done += 1 } else { failed += 1 };
        for operation in 0..OPERATIONS {
            let words = [3, 2_000, 2_100, 6_000, 40_000, 700_000][random.below(6)];
            let planned = (random.below(6), words, random.below(ranks));
            match Part::begin(&*group, operation, planned) {
                Ok(part) => parts.push_back(part),
                Err(_) => break,
            }
            if parts.len() == AT_ONCE {
                parts.pop_front().into_iter().for_each(|part: Part| count(part.end(timeout * 10)));
            }
        }
        parts.into_iter().for_each(|part| count(part.end(timeout * 10)));
    }
    println!("{done} operations went well, and {failed} failed");
}
