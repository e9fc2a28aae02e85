// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Every schedule on a network of queues, for more ranks than a machine can be asked to run.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]

use super::*;
use hal_collectives::{Buffers, Element, Memory, PieceBuffers, Pieces, Reduction, reduce};
use std::collections::{BTreeMap, VecDeque};

/// A rank and where it is in its steps.
struct Rank {
    steps: Schedule,
    waits: SmallVec<[Receive; 1]>,
    after: Option<LocalWork>,
    is_done: bool,
}

/// How much went over the network.
#[derive(Default)]
struct Traffic {
    /// The most messages that any rank sent or received.
    messages: u64,
    /// The most bytes that any rank sent.
    bytes: u64,
}

fn bytes_of(range: &HostRange) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(range.length()).unwrap()];
    assert!(range.read(0, &mut bytes));
    bytes
}

/// How many messages the ranks announce before the first step. What a rank announces to another one is what
/// that one expects.
fn announced_by(operation: Operation, ranks: &[Rank]) -> u32 {
    let count = u32::try_from(ranks.len()).unwrap();
    let totals = |of: fn(&Schedule) -> &Totals, rank: u32, other: u32| {
        let known = of(&ranks[rank as usize].steps).iter().find(|(of, _)| *of == other);
        known.map(|(_, messages)| *messages)
    };
    for (own, other) in (0..count).flat_map(|own| (0..count).map(move |other| (own, other))) {
        let sends = totals(|schedule| &schedule.sends, own, other);
        assert_eq!(sends, totals(|schedule| &schedule.receives, other, own), "{operation} of {count}");
    }
    ranks.iter().flat_map(|rank| &rank.steps.sends).map(|(_, all)| all.count).sum()
}

/// The ranks of an operation, before their first steps.
fn begun(operation: Operation, buffers: &[Buffers]) -> Vec<Rank> {
    let count = u32::try_from(buffers.len()).unwrap();
    let mut scratches: Vec<Scratch> = buffers.iter().map(|_| Scratch::default()).collect();
    (0..count)
        .zip(&mut scratches)
        .map(|(rank, scratch)| {
            let whole = buffers[rank as usize].cut(&operation, (rank, count)).unwrap();
            let memory =
                PieceBuffers { send: whole.send.map(Memory::Whole), recv: whole.recv.map(Memory::Whole) };
            let piece = Pieces::new(operation, count, u64::MAX).get(0);
            let memory = piece.cut(&memory, (rank, count)).unwrap();
            let steps = schedule(operation, (rank, count), memory, scratch).unwrap();
            Rank { steps, waits: SmallVec::new(), after: None, is_done: false }
        })
        .collect()
}

/// Runs an operation to its end, the ranks in turns.
fn run(operation: Operation, buffers: &[Buffers]) -> Traffic {
    let count = u32::try_from(buffers.len()).unwrap();
    let mut ranks = begun(operation, buffers);
    let announced = announced_by(operation, &ranks);
    let mut sent = 0;
    let mut network: BTreeMap<(u32, u32), VecDeque<Vec<u8>>> = BTreeMap::new();
    let mut traffic: Vec<(u64, u64)> = vec![(0, 0); buffers.len()];
    loop {
        let mut moved = false;
        for (own, rank) in (0..).zip(&mut ranks) {
            for Receive { from, length, target } in std::mem::take(&mut rank.waits) {
                let Some(message) = network.get_mut(&(from, own)).and_then(VecDeque::pop_front) else {
                    rank.waits.push(Receive { from, length, target });
                    continue;
                };
                assert_eq!(message.len() as u64, length, "{operation}: {from} to {own} of {count}");
                match target {
                    Target::Memory(into) => assert!(into.write(0, &message)),
                    Target::Folded(fold) => fold(&memory(&message)),
                }
                traffic[own as usize].0 += 1;
                moved = true;
            }
            if !rank.waits.is_empty() || rank.is_done {
                continue;
            }
            moved = true;
            rank.after.take().into_iter().for_each(|after| after());
            let Some(step) = rank.steps.steps.next() else {
                rank.is_done = true;
                continue;
            };
            for (to, range) in step.sends {
                assert!(to != own && to < count);
                traffic[own as usize].0 += 1;
                traffic[own as usize].1 += range.length();
                sent += Messages::of([range.length()]).count;
                network.entry((own, to)).or_default().push_back(bytes_of(&range));
            }
            step.meanwhile.into_iter().for_each(|mut copying| while copying.go_on() {});
            (rank.waits, rank.after) = (step.receives, step.after);
        }
        if !moved {
            break;
        }
    }
    // Where nothing is announced at first, it is step by step.
    assert!(
        announced == 0 || announced == sent,
        "{operation} of {count}: {announced} announced, {sent} sent"
    );
    assert!(ranks.iter().all(|rank| rank.is_done), "{operation} of {count} ranks stands still");
    assert!(network.values().all(VecDeque::is_empty), "{operation}: a rank was sent too much");
    let most = |of: fn(&(u64, u64)) -> u64| traffic.iter().map(of).max().unwrap_or_default();
    Traffic { messages: most(|own| own.0), bytes: most(|own| own.1) }
}

fn memory(bytes: &[u8]) -> HostRange {
    let range = HostRange::allocate(bytes.len() as u64, 64).unwrap();
    assert!(range.write(0, bytes));
    range
}

/// Bytes of a rank that are numbers of a middling size in every type that the tests use.
fn sent(element: Element, rank: u32, length: u64) -> Vec<u8> {
    let count = length / element.size();
    let number =
        |at: u64| 1.0 + f32::from(u16::try_from((at * 7 + u64::from(rank) * 131) % 1000).unwrap()) / 64.0;
    (0..count)
        .flat_map(|at| match element {
            Element::F32 => number(at).to_le_bytes().to_vec(),
            Element::Bf16 => half::bf16::from_f32(number(at)).to_le_bytes().to_vec(),
            _ => (at * 2_654_435_761 + u64::from(rank) * 97).to_le_bytes()
                [..usize::try_from(element.size()).unwrap()]
                .to_vec(),
        })
        .collect()
}

/// What all ranks send, folded as within one process.
fn folded(operation: Operation, sent: &[Vec<u8>]) -> Vec<u8> {
    let (Kind::AllReduce(how) | Kind::Reduce { reduction: how, .. } | Kind::ReduceScatter(how)) =
        operation.kind
    else {
        return Vec::new();
    };
    let sources: Vec<HostRange> = sent.iter().map(|bytes| memory(bytes)).collect();
    let mut result = Vec::new();
    reduce(operation.element, how, &sources, (0, sent[0].len() as u64), &mut |_, piece| {
        result.extend_from_slice(piece);
    });
    result
}

/// What each rank should have.
fn expected(operation: Operation, sent: &[Vec<u8>], folded: &[u8], rank: usize) -> Option<Vec<u8>> {
    let bytes = usize::try_from(operation.count * operation.element.size()).unwrap();
    Some(match operation.kind {
        Kind::AllReduce(_) => folded.to_vec(),
        Kind::Reduce { root, .. } if root as usize == rank => folded.to_vec(),
        Kind::ReduceScatter(_) => folded[rank * bytes..][..bytes].to_vec(),
        Kind::AllGather => sent.concat(),
        Kind::AllToAll => {
            let part = bytes / sent.len();
            sent.iter().flat_map(|bytes| bytes[rank * part..][..part].to_vec()).collect()
        }
        Kind::Broadcast { root } if root as usize != rank => sent[root as usize].clone(),
        _ => return None,
    })
}

/// Does an operation on so many ranks, and looks at every byte.
fn check(operation: Operation, ranks: u32, in_place: bool) -> Traffic {
    let all: Vec<Vec<u8>> = (0..ranks)
        .map(|rank| {
            sent(
                operation.element,
                rank,
                operation.places(rank, ranks).send.unwrap_or(operation.count * operation.element.size()),
            )
        })
        .collect();
    let buffers: Vec<Buffers> = (0..ranks)
        .map(|rank| {
            let (places, bytes) = (operation.places(rank, ranks), &all[rank as usize]);
            let send = places.send.map(|_| memory(bytes));
            let recv = places.recv.map(|length| memory(&vec![0xA5; usize::try_from(length).unwrap()]));
            match (operation.kind, send, recv) {
                (Kind::AllReduce(_) | Kind::Reduce { .. }, send, Some(_)) if in_place => {
                    Buffers { send: send.clone(), recv: send }
                }
                (Kind::ReduceScatter(_), Some(send), Some(recv)) if in_place => {
                    let own = send.slice(u64::from(rank) * recv.length(), recv.length());
                    Buffers { send: Some(send), recv: own }
                }
                (Kind::AllGather, Some(send), Some(recv)) if in_place => {
                    assert!(recv.write(u64::from(rank) * send.length(), bytes));
                    Buffers {
                        send: recv.slice(u64::from(rank) * send.length(), send.length()),
                        recv: Some(recv),
                    }
                }
                (_, send, recv) => Buffers { send, recv },
            }
        })
        .collect();
    let traffic = run(operation, &buffers);
    let folded = folded(operation, &all);
    for (rank, buffers) in buffers.iter().enumerate() {
        if let Some(expected) = expected(operation, &all, &folded, rank) {
            assert!(
                bytes_of(buffers.recv.as_ref().unwrap()) == expected,
                "{operation}: rank {rank} of {ranks}{}",
                if in_place { " in place" } else { "" }
            );
        }
    }
    traffic
}

fn kinds(ranks: u32) -> Vec<Kind> {
    let mut kinds = vec![Kind::AllGather, Kind::AllToAll];
    for how in [Reduction::Sum, Reduction::Average] {
        kinds.extend([Kind::AllReduce(how), Kind::ReduceScatter(how)]);
        kinds.extend([0, ranks / 2, ranks - 1].map(|root| Kind::Reduce { reduction: how, root }));
    }
    kinds.extend([0, ranks / 2, ranks - 1].map(|root| Kind::Broadcast { root }));
    kinds
}

#[test]
fn every_kind_comes_to_the_same_as_within_one_process() {
    for ranks in [1, 2, 3, 4, 7, 8] {
        for kind in kinds(ranks) {
            for (element, count) in [
                (Element::F32, 0),
                (Element::F32, 1),
                (Element::Bf16, 37),
                (Element::U8, 37),
                (Element::F32, 4201),
            ] {
                let count = if kind == Kind::AllToAll { count * u64::from(ranks) } else { count };
                for in_place in [false, true] {
                    check(Operation { kind, element, count }, ranks, in_place);
                }
            }
        }
    }
    // The width of partial results is another, and the sizes are those that are divided.
    for ranks in [3, 4] {
        for kind in kinds(ranks) {
            let count = if kind == Kind::AllToAll { 9001 * u64::from(ranks) } else { 36_001 };
            check(Operation { kind, element: Element::Bf16, count }, ranks, false);
        }
    }
}

#[test]
fn messages_in_segments_are_put_together() {
    let count = 3 * SEGMENT / 4 + 1;
    for ranks in [2, 3] {
        for kind in [Kind::AllGather, Kind::AllReduce(Reduction::Sum), Kind::Broadcast { root: 1 }] {
            check(Operation { kind, element: Element::F32, count }, ranks, false);
        }
    }
}

/// A rank that sends another one several messages of a piece sends it one letter for them.
#[test]
fn all_messages_of_a_piece_between_two_ranks_are_announced_at_once() {
    let announced = |kind, count, ranks, rank| {
        let operation = Operation { kind, element: Element::F32, count };
        let places = operation.places(rank, ranks);
        let own = |length: Option<u64>| {
            length.map(|length| Memory::Whole(HostRange::allocate(length, 64).unwrap()))
        };
        let buffers = PieceBuffers { send: own(places.send), recv: own(places.recv) };
        let cut = Pieces::new(operation, ranks, u64::MAX).get(0).cut(&buffers, (rank, ranks)).unwrap();
        schedule(operation, (rank, ranks), cut, &mut Scratch::default()).unwrap().sends
    };
    let (sum, size) = (Kind::AllReduce(Reduction::Sum), 512 << 10);
    assert_eq!(announced(sum, 1 << 18, 2, 0)[..], [(1, Messages::of([size; 2]))]);
    let (near, far) = (Messages::of([size; 2]), Messages::of([size / 2; 2]));
    assert_eq!(announced(sum, 1 << 18, 4, 1)[..], [(0, near), (3, far)]);
    assert_eq!(announced(Kind::AllGather, 1 << 18, 4, 3)[..], [(0, Messages::of([1 << 20; 3]))]);
    assert!(announced(sum, 2, 4, 1).is_empty());
}

/// The messages of a rank for something small, as the ranks become more.
#[test]
fn messages_of_a_rank_grow_with_the_logarithm_of_the_ranks() {
    for ranks in [2_u32, 3, 16, 31, 128] {
        let steps = u64::from(ranks.next_power_of_two().ilog2());
        for kind in kinds(ranks) {
            let operation = Operation {
                kind,
                element: Element::F32,
                count: if kind == Kind::AllToAll { u64::from(ranks) } else { 4 },
            };
            let traffic = check(operation, ranks, false);
            assert!(
                traffic.messages <= 2 * steps + 2,
                "{operation} of {ranks} ranks: {} messages",
                traffic.messages
            );
        }
    }
}

/// The bytes of a rank for something large, where they are twice the operand whatever the number of ranks.
#[test]
fn bytes_of_a_rank_do_not_grow_with_the_ranks() {
    for ranks in [2, 4, 16, 32] {
        let operation =
            Operation { kind: Kind::AllReduce(Reduction::Sum), element: Element::F32, count: 16 << 10 };
        let traffic = check(operation, ranks, false);
        assert!(traffic.bytes <= 2 * (64 << 10), "{ranks} ranks: {} bytes", traffic.bytes);
    }
    // A rank with a pair beside it has its elements and its result to move, too.
    for ranks in [3, 7, 17] {
        let operation =
            Operation { kind: Kind::AllReduce(Reduction::Sum), element: Element::F32, count: 16 << 10 };
        let traffic = check(operation, ranks, false);
        assert!(traffic.bytes <= 3 * (64 << 10), "{ranks} ranks: {} bytes", traffic.bytes);
    }
}

/// What one rank sends for a piece: messages and bytes. Nothing goes anywhere, so that there may be any
/// number of ranks.
fn sends(operation: Operation, ranks: u32, rank: u32) -> (u64, u64) {
    let places = operation.places(rank, ranks);
    let own =
        |length: Option<u64>| length.map(|length| Memory::Whole(HostRange::allocate(length, 64).unwrap()));
    let piece = Pieces::new(operation, ranks, u64::MAX).get(0);
    let memory = PieceBuffers { send: own(places.send), recv: own(places.recv) };
    let memory = piece.cut(&memory, (rank, ranks)).unwrap();
    let all = schedule(operation, (rank, ranks), memory, &mut Scratch::default()).unwrap();
    all.steps
        .flat_map(|step| step.sends)
        .fold((0, 0), |(messages, bytes), (_, range)| (messages + 1, bytes + range.length()))
}

/// The most that any of these ranks sends.
fn most(operation: Operation, ranks: u32, of: impl Iterator<Item = u32>) -> (u64, u64) {
    of.map(|rank| sends(operation, ranks, rank))
        .fold((0, 0), |most, one| (most.0.max(one.0), most.1.max(one.1)))
}

const ROOT: u32 = 1;

fn modelled() -> [Kind; 6] {
    let sum = Reduction::Sum;
    let reduce = Kind::Reduce { reduction: sum, root: ROOT };
    let broadcast = Kind::Broadcast { root: ROOT };
    [Kind::AllReduce(sum), Kind::ReduceScatter(sum), reduce, Kind::AllGather, broadcast, Kind::AllToAll]
}

/// The table of `docs/collectives.md`: what one rank sends at most, where each rank has so many bytes.
fn table(kind: Kind, is_large: bool, ranks: u32, bytes: u64) -> (u64, u64) {
    let n = u64::from(ranks);
    let (log, up) = (u64::from(ranks.ilog2()), u64::from(ranks.next_power_of_two().ilog2()));
    let pairs = u64::from(!ranks.is_power_of_two());
    match (kind, is_large) {
        (Kind::AllReduce(_), false) => (log + pairs, bytes * (log + pairs)),
        (Kind::AllReduce(_), true) => (2 * log + pairs, (2 + pairs) * bytes),
        (Kind::ReduceScatter(_), _) => (log + pairs, (n + pairs) * bytes),
        (Kind::Reduce { .. }, false) => (1, bytes),
        (Kind::Reduce { .. }, true) => (log + 1, 2 * bytes),
        (Kind::AllGather, false) => (up, (n - 1) * bytes),
        (Kind::AllGather, true) => (n - 1, (n - 1) * bytes),
        (Kind::Broadcast { .. }, false) => (up, up * bytes),
        (Kind::Broadcast { .. }, true) => (3 * up, 2 * bytes),
        (Kind::AllToAll, false) => (up, bytes * up / 2),
        (_, _) => (n - 1, bytes),
    }
}

#[test]
fn messages_and_bytes_are_those_of_the_table_from_two_to_eight_ranks() {
    for (ranks, kind) in (2..=8).flat_map(|ranks| modelled().map(|kind| (ranks, kind))) {
        for is_large in [false, true] {
            // A message is not divided into segments.
            let (bytes, of_all): (u64, u64) = match kind {
                _ if !is_large => (64, 64 * u64::from(ranks)),
                Kind::AllGather | Kind::ReduceScatter(_) => (56 << 10, (56 << 10) * u64::from(ranks)),
                _ => (430_080, 430_080),
            };
            let count = bytes / 4 / 840 * 840;
            let count = if is_large { count } else { bytes / 4 };
            let count = if kind == Kind::AllToAll { count.next_multiple_of(ranks.into()) } else { count };
            let operation = Operation { kind, element: Element::F32, count };
            assert!(of_all <= SEGMENT);
            let (messages, sent) = most(operation, ranks, 0..ranks);
            // Among few ranks everything is sent straight.
            let is_straight = is_large || kind == Kind::AllToAll && ranks < 4;
            let (most_messages, most_bytes) = table(kind, is_straight, ranks, count * 4);
            assert!(
                messages <= most_messages,
                "{operation} of {ranks}: {messages} messages, {most_messages} by the table"
            );
            assert!(sent <= most_bytes, "{operation} of {ranks}: {sent} bytes, {most_bytes} by the table");
            // The table does not say more than is so, either.
            assert!(
                2 * sent >= most_bytes,
                "{operation} of {ranks}: {sent} bytes, {most_bytes} by the table"
            );
        }
    }
}

/// Pieces of the largest size, among more ranks than any machine here could run: every rank sends a
/// logarithmic number of messages, so nothing that all ranks do grows with the square of their number.
#[test]
fn no_rank_of_a_thousand_or_a_hundred_thousand_sends_more_than_a_few_messages_for_a_piece() {
    for ranks in [1_000_u32, 1_024, 100_000] {
        // Those that have something of their own to do, and some others.
        let some = [0, ROOT, 2, 3, ranks / 2, ranks - 1];
        for kind in modelled() {
            let element = Element::F32;
            let whole = Operation {
                kind,
                element,
                count: (4 << 20) * if kind == Kind::AllToAll { ranks.into() } else { 1 },
            };
            let pieces = Pieces::new(whole, ranks, hal_collectives::PIECE);
            let operation = pieces.get(0).operation;
            let (messages, bytes) = most(operation, ranks, some.into_iter());
            let log = u64::from(ranks.next_power_of_two().ilog2());
            let most = hal_collectives::PIECE.max(u64::from(ranks) * 4) * (log / 2 + 1);
            assert!(bytes <= most.max(3 * hal_collectives::PIECE), "{operation} of {ranks}: {bytes} bytes");
            let segments = bytes / SEGMENT;
            assert!(messages <= 3 * log + segments + 2, "{operation} of {ranks}: {messages} messages");
        }
    }
}
