// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What ranks say of an operation to each other: letters, messages, and that a rank is there which sends nothing.

use super::*;
use crate::wire::CARRIED;

fn value(rank: usize, at: usize) -> u32 {
    u32::try_from(rank * 100_000_000 + at * 7).unwrap()
}

fn words_of(range: &HostRange) -> Vec<u32> {
    let mut bytes = vec![0; usize::try_from(range.length()).unwrap()];
    assert!(range.read(0, &mut bytes));
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Starts an operation with memory for everything that any kind needs, and returns what it receives, and
/// where it is told.
fn begin(group: &dyn Communicator, kind: Kind, words: usize) -> (HostRange, Receiver<Outcome>) {
    let (rank, ranks) = group.place().unwrap();
    let all = words * ranks as usize;
    let count = if kind == Kind::AllToAll { all } else { words } as u64;
    let operation = Operation { kind, element: Element::U32, count };
    let places = operation.places(rank, ranks);
    let sent: Vec<u32> = (0..all).map(|at| value(rank as usize, at)).collect();
    let part = |all: &HostRange, bytes: Option<u64>| bytes.map(|bytes| all.slice(0, bytes).unwrap());
    let recv = memory(&vec![9; all]);
    let (tell, told) = channel();
    let done = Box::new(move |end| {
        let _ = tell.send(outcome(end));
    });
    let buffers = Buffers { send: part(&memory(&sent), places.send), recv: part(&recv, places.recv) };
    assert!(group.enter(operation).unwrap().start(buffers, done).is_none());
    (recv, told)
}

#[test]
fn kinds_have_the_right_bytes_where_letters_end() {
    let letter = usize::try_from(CARRIED / 4).unwrap();
    for (ranks, sizes) in [(2, &[letter][..]), (3, &[letter - 1, letter, letter + 1])] {
        let engines = job(u32::try_from(ranks).unwrap());
        let groups: Vec<_> = engines.iter().map(|rank| rank.join(b"sizes", TERMS)).collect();
        for &words in sizes {
            let kinds = [
                Kind::AllGather,
                Kind::AllToAll,
                Kind::AllReduce(Reduction::Sum),
                Kind::ReduceScatter(Reduction::Sum),
                Kind::Broadcast { root: 1 },
            ];
            for kind in kinds {
                let begun: Vec<_> = groups.iter().map(|group| begin(&**group, kind, words)).collect();
                poll_all(&engines);
                for (rank, (got, told)) in begun.iter().enumerate() {
                    assert_eq!(told.try_recv(), Ok(Ok(())), "{kind:?} of {words} words on {ranks} ranks");
                    let sum = |at: usize| (0..ranks).map(|from| value(from, at)).fold(0, u32::wrapping_add);
                    let parts =
                        |from: usize, at: usize| (0..words).map(move |of| value(from, at * words + of));
                    let expected: Vec<u32> = match kind {
                        Kind::AllGather => (0..ranks).flat_map(|from| parts(from, 0)).collect(),
                        Kind::AllToAll => (0..ranks).flat_map(|from| parts(from, rank)).collect(),
                        Kind::AllReduce(_) => (0..words).map(sum).collect(),
                        Kind::ReduceScatter(_) => (0..words).map(|at| sum(rank * words + at)).collect(),
                        _ if rank == 1 => vec![9; words],
                        _ => parts(1, 0).collect(),
                    };
                    let got = words_of(got);
                    let wrong = got.iter().zip(&expected).position(|(got, expected)| got != expected);
                    assert_eq!(wrong, None, "{kind:?} of {words} words, rank {rank} of {ranks}");
                    assert!(got.get(expected.len()..).unwrap().iter().all(|&word| word == 9));
                }
            }
        }
    }
}

/// Also of ranks that send each other nothing.
#[test]
fn operation_that_does_not_fit_is_noticed_whichever_rank_asks_for_it() {
    let root = |root| Kind::Broadcast { root };
    let to = |root| Kind::Reduce { reduction: Reduction::Sum, root };
    let sum = Kind::AllReduce(Reduction::Sum);
    for (most, odd) in [(root(0), root(1)), (root(0), to(0)), (to(0), to(2)), (sum, root(2)), (to(1), sum)] {
        for words in [4, 5_000] {
            for who in 0..4 {
                let engines = job(4);
                let groups: Vec<_> = engines.iter().map(|rank| rank.join(b"mismatches", TERMS)).collect();
                let kinds = (0..4).map(|rank| if rank == who { odd } else { most });
                let begun: Vec<_> =
                    groups.iter().zip(kinds).map(|(group, kind)| begin(&**group, kind, words)).collect();
                poll_all(&engines);
                let failed = |group: &dyn Communicator| {
                    let operation = Operation { kind: sum, element: Element::U32, count: 1 };
                    group.enter(operation).err().map(|failure| failure.code())
                };
                for group in &groups {
                    assert_eq!(
                        failed(&**group),
                        Some(Code::InvalidArgument),
                        "{most:?}, and {odd:?} of rank {who}"
                    );
                }
                drop(begun);
            }
        }
    }
}
