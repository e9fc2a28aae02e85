// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Random programs: every rank enters the same operations in the same order, on threads that start them in any
//! order and after any time.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed expectation ends the test")]

mod common;

use common::{LONG, Random, begin, group, memory, read};
use hal_collectives::{Buffers, Element, Kind, Operation, Reduction};
use std::time::Duration;

/// The program of a seed, the same on each rank except for the peers of transfers.
fn program(seed: u64, ranks: u32) -> Vec<Operation> {
    let mut random = Random::new(seed);
    (0..30)
        .map(|_| {
            let count = random.below(50) * u64::from(ranks);
            let root = u32::try_from(random.below(u64::from(ranks))).unwrap();
            let kind = match random.below(6) {
                0 => Kind::AllGather,
                1 => Kind::AllReduce(Reduction::Sum),
                2 => Kind::AllToAll,
                3 => Kind::Broadcast { root },
                4 => Kind::Reduce { reduction: Reduction::Maximum, root },
                _ => Kind::ReduceScatter(Reduction::Sum),
            };
            Operation { kind, element: Element::U32, count }
        })
        .collect()
}

/// The words that a rank sends: they identify the rank and their place.
fn sent(rank: u32, number: usize, words: u64) -> Vec<u32> {
    (0..words)
        .map(|at| rank * 1_000_000 + u32::try_from(number).unwrap() * 10_000 + u32::try_from(at).unwrap())
        .collect()
}

fn expected(operation: Operation, rank: u32, ranks: u32, number: usize) -> Option<Vec<u32>> {
    let count = operation.count;
    let words = operation.places(rank, ranks).send.map_or(count, |bytes| bytes / 4);
    let of = |rank| sent(rank, number, words);
    let everybody: Vec<Vec<u32>> = (0..ranks).map(of).collect();
    let summed = |at: usize| everybody.iter().map(|words| words[at]).fold(0, u32::wrapping_add);
    let length = usize::try_from(count).unwrap();
    Some(match operation.kind {
        Kind::AllGather => (0..ranks).flat_map(of).collect(),
        Kind::AllReduce(_) => (0..length).map(summed).collect(),
        Kind::AllToAll => {
            let part = length / ranks as usize;
            (0..ranks).flat_map(|from| of(from)[rank as usize * part..][..part].to_vec()).collect()
        }
        Kind::Broadcast { root } if rank != root => of(root),
        Kind::Reduce { root, .. } if rank == root => of(ranks - 1),
        Kind::ReduceScatter(_) => {
            (rank as usize * length..(rank as usize + 1) * length).map(summed).collect()
        }
        _ => return None,
    })
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn programs_come_to_the_same_in_any_order() {
    for seed in 0..20 {
        let ranks = [2, 3, 4, 8][usize::try_from(seed % 4).unwrap()];
        let members = group(ranks, LONG);
        let operations = program(seed, ranks);
        std::thread::scope(|scope| {
            for (rank, member) in (0..ranks).zip(&members) {
                let operations = &operations;
                scope.spawn(move || {
                    let mut random = Random::new(seed * 100 + u64::from(rank));
                    let mut entered: Vec<_> = operations
                        .iter()
                        .enumerate()
                        .map(|(number, &operation)| (number, operation, member.enter(operation).unwrap()))
                        .collect();
                    random.shuffle(&mut entered);
                    let mut started = Vec::new();
                    for (number, operation, entry) in entered {
                        let places = operation.places(rank, ranks);
                        let send = places.send.map(|length| memory(&bytes(&sent(rank, number, length / 4))));
                        let recv =
                            places.recv.map(|length| memory(&vec![0; usize::try_from(length).unwrap()]));
                        let (outcome, job) = begin(entry, Buffers { send, recv: recv.clone() });
                        if random.below(3) == 0 {
                            std::thread::sleep(Duration::from_micros(random.below(300)));
                        }
                        if let Some(job) = job {
                            job();
                        }
                        started.push((number, operation, outcome, recv));
                    }
                    for (number, operation, outcome, recv) in started {
                        outcome.outcome().unwrap();
                        if let Some(expected) = expected(operation, rank, ranks, number) {
                            let got = recv.map(|recv| read(&recv));
                            assert_eq!(
                                got,
                                Some(bytes(&expected)),
                                "seed {seed}: {operation} of rank {rank}"
                            );
                        }
                    }
                });
            }
        });
    }
}
