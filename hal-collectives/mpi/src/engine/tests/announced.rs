// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Operations that fail when messages have been announced and not sent: whatever rank fails at whatever step,
//! and in whatever order ranks look.

use super::*;
use crate::exchange::SEGMENT;
use crate::library::loopback::{expected_by, late_network, network, unexpected_by};
use crate::wire::TAGS;
use hal_collectives::Terms;

const LONG: Duration = Duration::from_secs(20);

/// Where a rank's result is, and what it is told.
type StartedOperation = (HostRange, Receiver<Outcome>);

/// Numbers that look random, below another one each.
fn numbers(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    }
}

/// Each kind with so many words that it is divided, in parts that are too large for letters.
fn kinds() -> [(Kind, u64); 6] {
    let reduction = Reduction::Sum;
    [
        (Kind::AllReduce(reduction), 12_000),
        (Kind::AllGather, 3_000),
        (Kind::ReduceScatter(reduction), 3_000),
        (Kind::Reduce { reduction, root: 1 }, 18_000),
        (Kind::Broadcast { root: 1 }, 72_000),
        (Kind::AllToAll, 12_000),
    ]
}

fn begin(group: &dyn Communicator, (kind, count): (Kind, u64), word: u32) -> StartedOperation {
    let operation = Operation { kind, element: Element::U32, count };
    let (rank, ranks) = group.place().unwrap();
    let places = operation.places(rank, ranks);
    let filled = |length, word: u32| {
        let range = HostRange::allocate(length, 64).unwrap();
        assert!(range.fill(&word.to_le_bytes()));
        range
    };
    let send = places.send.map(|length| filled(length, word));
    let recv = places.recv.map(|length| filled(length, 0));
    let got = recv.clone().or(send.clone()).unwrap();
    let (tell, told) = channel();
    let done = Box::new(move |end| tell.send(outcome(end)).unwrap());
    assert!(group.enter(operation).unwrap().start(Buffers { send, recv }, done).is_none());
    (got, told)
}

/// Receives that wait for messages, and messages that no receive has met.
fn left(rank: &Rank) -> (usize, usize) {
    let left = |library: &Library| (expected_by(library), unexpected_by(library));
    rank.0.with(LONG, |progress| left(progress.library())).unwrap()
}

fn fails_at(kind: (Kind, u64), ranks: &[Rank], fails: usize, looks: usize, seed: u64) {
    let what = format!("{kind:?} of {}, {fails} at {looks}, {seed}", ranks.len());
    let mut number = numbers(seed);
    let groups: Vec<_> = ranks.iter().map(|rank| rank.join(b"fails", TERMS)).collect();
    let places: Vec<usize> = ranks.iter().map(|rank| left(rank).0).collect();
    let mut begun: Vec<Option<StartedOperation>> = ranks.iter().map(|_| None).collect();
    // Ranks begin and look in any order, and some may not have begun when it fails.
    for _ in 0..looks {
        let at = number(ranks.len());
        match &begun[at] {
            None => begun[at] = Some(begin(&*groups[at], kind, 1)),
            Some(_) => ranks[at].poll(),
        }
    }
    groups[fails].end(&Failure::new(Code::DataLoss, "gone"));
    for _ in 0..20 * ranks.len() {
        ranks[number(ranks.len())].poll();
    }
    poll_all(ranks);
    for (_, told) in begun.iter().flatten() {
        let told = told.try_recv();
        assert!(matches!(told, Ok(Ok(()) | Err(Code::DataLoss))), "{what}: {told:?}");
    }
    for (rank, places) in ranks.iter().zip(&places) {
        assert_eq!(left(rank), (*places, 0), "{what}: something was not sent or not received");
        assert!(!rank.0.poll().sends, "{what}: something is kept");
    }
    drop(groups);
    // The tags that the operation had are used again.
    for (rank, peer) in ranks.iter().flat_map(|rank| (0..ranks.len()).map(move |peer| (rank, peer))) {
        let peer = u32::try_from(peer).unwrap();
        rank.0.with(LONG, |progress| progress.skip_tags(peer, TAGS - 4)).unwrap();
    }
    let groups: Vec<_> = ranks.iter().map(|rank| rank.join(b"fails", TERMS)).collect();
    let sum = (Kind::AllReduce(Reduction::Sum), 12_000);
    let begun: Vec<StartedOperation> =
        (1..).zip(&groups).map(|(word, group)| begin(&**group, sum, 10 * word)).collect();
    for _ in 0..4 {
        poll_all(ranks);
    }
    let all: u32 = (1..).take(ranks.len()).map(|word| 10 * word).sum();
    for (got, told) in begun {
        assert_eq!(told.try_recv(), Ok(Ok(())), "{what}: behind it");
        let last = got.slice(got.length() - 4, 4).unwrap();
        assert_eq!([word(&got), word(&last)], [all; 2], "{what}: behind it");
    }
}

#[test]
fn what_was_announced_is_sent_and_received_whatever_rank_fails_at_whatever_step() {
    for (ranks, kind) in [2, 3, 4].into_iter().flat_map(|ranks| kinds().map(|kind| (ranks, kind))) {
        for (fails, looks) in (0..ranks).flat_map(|fails| (0..10).map(move |looks| (fails, looks * 2))) {
            let seed = u64::try_from(looks + 100 * fails).unwrap();
            fails_at(kind, &job_of(network(u32::try_from(ranks).unwrap())), fails, looks, seed);
        }
    }
}

/// Two messages and a letter in a part, which are announced step by step, and a message and a letter in each
/// half of a sum, which are announced at once.
#[test]
fn messages_and_letters_of_one_rank_come_to_their_places_where_a_part_is_both() {
    let segment = SEGMENT / 4;
    let words = 2 * segment + 6;
    let ranks = job(2);
    let terms = Terms { piece: u64::MAX, ..TERMS.into() };
    let groups: Vec<_> = ranks.iter().map(|rank| rank.join(b"both", terms)).collect();
    // Of both ranks' parts: where a segment, a half or a part ends or begins.
    let places = [0, segment - 1, segment, segment + 3, 2 * segment + 2, 2 * segment + 3, words - 1];
    let value = |rank: u32, at: u64| (rank + 1) * 1_000_000_000 + u32::try_from(at).unwrap();
    for kind in [Kind::AllToAll, Kind::AllReduce(Reduction::Sum), Kind::AllGather] {
        let begun = [0, 1].map(|rank| {
            let count = if kind == Kind::AllToAll { 2 * words } else { words };
            let operation = Operation { kind, element: Element::U32, count };
            let at = operation.places(rank, 2);
            let [send, recv] =
                [at.send, at.recv].map(|bytes| HostRange::allocate(bytes.unwrap(), 64).unwrap());
            for place in places.into_iter().chain(places.map(|place| words + place)) {
                if place * 4 < send.length() {
                    assert!(send.write(place * 4, &value(rank, place).to_le_bytes()));
                }
            }
            let (tell, told) = channel();
            let done = Box::new(move |end| tell.send(outcome(end)).unwrap());
            let buffers = Buffers { send: Some(send), recv: Some(recv.clone()) };
            assert!(groups[rank as usize].enter(operation).unwrap().start(buffers, done).is_none());
            (recv, told)
        });
        poll_all(&ranks);
        let parts = if kind == Kind::AllReduce(Reduction::Sum) { 1 } else { 2 };
        for (rank, (got, told)) in (0_u32..).zip(&begun) {
            assert_eq!(told.try_recv(), Ok(Ok(())), "{kind:?}");
            for (from, place) in (0..parts).flat_map(|from| places.map(|place| (from, place))) {
                let got = word(&got.slice((u64::from(from) * words + place) * 4, 4).unwrap());
                let expected = match kind {
                    Kind::AllToAll => value(from, u64::from(rank) * words + place),
                    Kind::AllGather => value(from, place),
                    _ => value(0, place).wrapping_add(value(1, place)),
                };
                assert_eq!(got, expected, "{kind:?}, rank {rank}, {place} of rank {from}");
            }
        }
    }
}

/// A receive that has met its message does not end before that has come: an empty one lets it.
#[test]
fn failure_does_not_wait_for_messages_that_are_not_sent_any_more() {
    for (ranks, kind) in [2, 4].into_iter().flat_map(|ranks| kinds().map(|kind| (ranks, kind))) {
        for looks in 0..14 {
            let ranks = job_of(late_network(ranks));
            fails_at(kind, &ranks, looks % ranks.len(), looks, u64::try_from(looks).unwrap() + 7_000);
        }
    }
}

/// Rank 2 comes late to an all-gather around a ring, so that rank 0 has announced a message to rank 1 that it
/// cannot send before; it sends rank 1 many others meanwhile.
#[test]
fn message_that_waits_to_be_sent_keeps_its_tag_however_many_others_are_sent_meanwhile() {
    let ranks = job_of(network(3));
    let groups: Vec<_> = ranks.iter().map(|rank| rank.join(b"ring", TERMS)).collect();
    let gather = (Kind::AllGather, 3_000);
    let mut begun: Vec<StartedOperation> =
        (1..).zip(&groups[..2]).map(|(word, group)| begin(&**group, gather, 10 * word)).collect();
    poll_all(&ranks[..2]);
    // Two are announced, of which one was sent.
    ranks[0].0.with(LONG, |progress| progress.skip_tags(1, TAGS - 1)).unwrap();
    let others: Vec<_> = [(0, Kind::Send { to: 1 }), (1, Kind::Recv { from: 0 })]
        .map(|(rank, kind)| begin(&*groups[rank], (kind, 3_000), 99))
        .into();
    poll_all(&ranks[..2]);
    begun.push(begin(&*groups[2], gather, 30));
    poll_all(&ranks);
    for (rank, (got, told)) in begun.iter().enumerate() {
        assert_eq!(told.try_recv(), Ok(Ok(())), "rank {rank}");
        let parts = [0, 1, 2].map(|part| word(&got.slice(part * 12_000, 4).unwrap()));
        assert_eq!(parts, [10, 20, 30], "rank {rank}");
    }
    for (got, told) in &others {
        assert_eq!((told.try_recv(), word(got)), (Ok(Ok(())), 99));
    }
}
