// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Operations in pieces of any size: some ranks start them as a whole, others piece by piece, with memory for a
//! piece at a time.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed expectation ends the test")]

mod common;

use common::{LONG, Random, bytes, group_in_pieces, memory, read};
use hal_backend::HostRange;
use hal_collectives::{Buffers, Communicator, Element, Job, Kind, Memory, Operation, Reduction, reduce};
use hal_semaphore::{Code, Failure};
use std::sync::Arc;
use std::sync::mpsc::channel;

/// The elements that a rank must get.
fn expected(operation: Operation, sent: &[Vec<u8>], rank: usize) -> Option<Vec<u8>> {
    let (ranks, size) = (sent.len(), usize::try_from(operation.element.size()).unwrap());
    let one = usize::try_from(operation.count).unwrap() * size;
    let folded = |how| {
        let sources: Vec<HostRange> = sent.iter().map(|bytes| memory(bytes)).collect();
        let mut all = Vec::new();
        reduce(operation.element, how, &sources, (0, sent[0].len() as u64), &mut |_, piece| {
            all.extend_from_slice(piece);
        });
        all
    };
    Some(match operation.kind {
        Kind::AllGather => sent.concat(),
        Kind::AllReduce(how) => folded(how),
        Kind::AllToAll => {
            sent.iter().flat_map(|bytes| bytes[rank * one / ranks..][..one / ranks].to_vec()).collect()
        }
        Kind::Broadcast { root } if root as usize != rank => sent[root as usize].clone(),
        Kind::Reduce { reduction, root } if root as usize == rank => folded(reduction),
        Kind::ReduceScatter(how) => folded(how)[rank * one..][..one].to_vec(),
        Kind::SendRecv { from: Some(from), .. } => sent[from as usize].clone(),
        _ => return None,
    })
}

/// Copies a piece's bytes between the memory of the whole and that of the piece.
fn parts(
    piece: &hal_collectives::Piece,
    ranks: u32,
    whole: &HostRange,
    alone: &HostRange,
    each: impl Fn(&HostRange, &HostRange),
) {
    let length = piece.part(ranks);
    if length == 0 {
        return;
    }
    for rank in 0..u32::try_from(alone.length() / length).unwrap() {
        each(
            &whole.slice(piece.offset_of(rank), length).unwrap(),
            &alone.slice(u64::from(rank) * length, length).unwrap(),
        );
    }
}

/// One rank's part, a few pieces at a time and in its own order, with memory of the size of a piece.
fn by_pieces(
    random: &mut Random,
    member: &dyn Communicator,
    operation: Operation,
    place: (u32, u32),
    buffers: &Buffers,
) {
    let mut pieces = member.enter(operation).unwrap().divide();
    while !pieces.is_empty() {
        let mut window: Vec<_> = pieces.drain(..pieces.len().min(3)).collect();
        random.shuffle(&mut window);
        let waits: Vec<_> = window
            .into_iter()
            .map(|entry| {
                let piece = entry.piece();
                let places = piece.operation.places(place.0, place.1);
                let own = |bytes: Option<u64>| bytes.map(|bytes| HostRange::allocate(bytes, 64).unwrap());
                let (send, recv) = (own(places.send), own(places.recv));
                if let (Some(whole), Some(alone)) = (&buffers.send, &send) {
                    parts(&piece, place.1, whole, alone, |whole, alone| assert!(alone.copy_from(whole)));
                }
                let memory = Buffers { send: send.map(Memory::Alone), recv: recv.clone().map(Memory::Alone) };
                let (sender, receiver) = channel();
                let job: Option<Job> =
                    entry.start(memory, Box::new(move |outcome| drop(sender.send(outcome))));
                job.into_iter().for_each(|job| job());
                (piece, recv, receiver)
            })
            .collect();
        for (piece, recv, receiver) in waits {
            receiver.recv_timeout(LONG).unwrap().unwrap();
            if let (Some(whole), Some(alone)) = (&buffers.recv, &recv) {
                parts(&piece, place.1, whole, alone, |whole, alone| assert!(whole.copy_from(alone)));
            }
        }
    }
}

fn random_operation(random: &mut Random, ranks: u32) -> (Operation, u64) {
    let element = Element::ALL[usize::try_from(random.below(12)).unwrap()];
    let how = Reduction::ALL[usize::try_from(random.below(5)).unwrap()];
    let root = u32::try_from(random.below(u64::from(ranks))).unwrap();
    let mut count = random.below(200);
    let kind = match random.below(6) {
        0 => Kind::AllGather,
        1 => Kind::AllReduce(how),
        2 => {
            count *= u64::from(ranks);
            Kind::AllToAll
        }
        3 => Kind::Broadcast { root },
        4 => Kind::Reduce { reduction: how, root },
        _ => Kind::ReduceScatter(how),
    };
    (Operation { kind, element, count }, 1 + random.below(500))
}

fn run(random: &mut Random, seed: u64, ranks: u32, operation: Operation, piece: u64) {
    let members: Vec<Arc<dyn Communicator>> = group_in_pieces(ranks, LONG, piece);
    let sent: Vec<Vec<u8>> = (0..ranks)
        .map(|rank| {
            let one = operation.count * operation.element.size();
            let length = operation.places(rank, ranks).send.unwrap_or(one);
            // Small numbers, so that no sum of halves is not a number.
            let count = length / operation.element.size();
            match operation.element {
                Element::F16 | Element::Bf16 | Element::F32 | Element::F64 => {
                    vec![0; usize::try_from(length).unwrap()]
                }
                element => bytes(random, element, count),
            }
        })
        .collect();
    std::thread::scope(|scope| {
        for (rank, member) in (0..ranks).zip(&members) {
            let (sent, divides) = (&sent, random.below(2) == 0);
            scope.spawn(move || {
                let mut random = Random::new(seed + u64::from(rank));
                let places = operation.places(rank, ranks);
                let send = places.send.map(|_| memory(&sent[rank as usize]));
                let recv = places.recv.map(|length| memory(&vec![0xA5; usize::try_from(length).unwrap()]));
                let buffers = Buffers { send, recv };
                if divides {
                    by_pieces(&mut random, &**member, operation, (rank, ranks), &buffers);
                } else {
                    common::start(member, operation, buffers.clone()).unwrap().outcome().unwrap();
                }
                if let Some(expected) = expected(operation, sent, rank as usize) {
                    let got = read(buffers.recv.as_ref().unwrap());
                    assert!(
                        got == expected,
                        "seed {seed}: {operation} on rank {rank} of {ranks} in pieces of {piece}"
                    );
                }
            });
        }
    });
}

#[test]
fn pieces_of_any_size_come_to_what_the_whole_does() {
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let ranks = [1, 2, 3, 4, 8][usize::try_from(seed % 5).unwrap()];
        let (operation, piece) = random_operation(&mut random, ranks);
        run(&mut random, seed, ranks, operation, piece);
    }
}

#[test]
fn transfer_of_thousands_of_pieces_needs_no_stack() {
    let mut random = Random::new(1);
    let operation = Operation { kind: Kind::AllReduce(Reduction::Sum), element: Element::U8, count: 50_000 };
    run(&mut random, 1, 2, operation, 1);
}

#[test]
fn rank_that_gives_up_between_pieces_ends_the_operation_for_all() {
    let operation = Operation { kind: Kind::AllReduce(Reduction::Sum), element: Element::U8, count: 100 };
    for last in 0..10 {
        let members = group_in_pieces(2, LONG, 10);
        let started = common::start(
            &members[0],
            operation,
            Buffers { send: Some(memory(&[1; 100])), recv: Some(memory(&[0; 100])) },
        )
        .unwrap();
        let (send, recv) = (memory(&[1; 100]), memory(&[0; 100]));
        for (number, entry) in (0..).zip(members[1].enter(operation).unwrap().divide()) {
            if number == last {
                entry.give_up(&Failure::new(Code::DataLoss, "bank 3 is on fire"));
                break;
            }
            let memory =
                Buffers { send: Some(Memory::Whole(send.clone())), recv: Some(Memory::Whole(recv.clone())) };
            let job = entry.start(memory, Box::new(|outcome| outcome.unwrap()));
            job.into_iter().for_each(|job| job());
        }
        let failure = started.outcome().unwrap_err();
        assert_eq!(failure.code(), Code::DataLoss);
        assert!(failure.message().contains("rank 1"), "{failure}");
    }
}
