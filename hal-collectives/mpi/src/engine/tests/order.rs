// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The order in which operations begin, and what ranks compare before.

use super::*;
use hal_collectives::{Memory, OperationEntry, PieceEntry};
use std::collections::VecDeque;

const SUM: Kind = Kind::AllReduce(Reduction::Sum);

fn operation(kind: Kind, count: u64) -> Operation {
    Operation { kind, element: Element::U32, count }
}

/// Starts what was entered, with memory for so many words on both sides.
fn start(entry: Box<dyn OperationEntry>, words: usize, value: u32) -> Begun {
    let (tell, told) = channel();
    let recv = memory(&vec![0; words]);
    let buffers = Buffers { send: Some(memory(&vec![value; words])), recv: Some(recv.clone()) };
    let done = Box::new(move |end| {
        let _ = tell.send(outcome(end));
    });
    assert!(entry.start(buffers, done).is_none());
    (recv, told)
}

fn job_with(ranks: u32, check: Check) -> (Vec<Rank>, Vec<Box<dyn Communicator>>) {
    let ranks = job(ranks);
    let terms = Terms { check, ..Terms::from(TERMS) };
    let groups = ranks.iter().map(|rank| rank.join(b"group", terms)).collect();
    (ranks, groups)
}

/// The pieces of two ranks that they have not started.
type Left = [VecDeque<Box<dyn PieceEntry>>; 2];

/// Two ranks of a group, and the pieces of their first operation, the first of which has ended.
fn pair_in_pieces(count: u64) -> ([Rank; 2], [Box<dyn Communicator>; 2], Left) {
    let ranks: [Rank; 2] = job(2).try_into().ok().unwrap();
    let terms = Terms { check: Check::Off, piece: 4, ..Terms::from(PASSES) };
    let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"pair", terms));
    meet(&ranks, &groups);
    let mut pieces =
        groups.each_ref().map(|group| group.enter(operation(SUM, count)).unwrap().divide().into());
    start_piece(&ranks, &mut pieces, &[0, 1]);
    (ranks, groups, pieces)
}

/// Has some ranks start their next piece.
fn start_piece(ranks: &[Rank], pieces: &mut Left, by: &[usize]) {
    for &rank in by {
        let memory = || Some(Memory::Alone(memory(&[1])));
        let piece = pieces[rank].pop_front().unwrap();
        assert!(piece.start(Buffers { send: memory(), recv: memory() }, Box::new(drop)).is_none());
    }
    poll_all(ranks);
}

#[test]
fn operations_begin_in_the_order_in_which_they_were_entered() {
    let (ranks, groups) = pair();
    let mut entries: Vec<Vec<_>> = groups
        .iter()
        .map(|group| (1..=4).map(|count| group.enter(operation(SUM, count)).unwrap()).collect())
        .collect();
    entries[1].reverse();
    let begun: Vec<Vec<Begun>> = (0..)
        .zip(entries)
        .map(|(rank, entries)| entries.into_iter().map(|entry| start(entry, 4, rank + 1)).collect())
        .collect();
    poll_all(&ranks);
    for (got, told) in begun.iter().flatten() {
        assert_eq!((told.try_recv(), word(got)), (Ok(Ok(())), 3));
    }
}

#[test]
fn operation_waits_for_one_that_was_entered_before_and_says_so_when_its_time_is_over() {
    let ranks = job(2);
    let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"pair", PASSES));
    meet(&ranks, &groups);
    let _first = groups[0].enter(operation(SUM, 1)).unwrap();
    let told = doomed_sum(&*groups[0]);
    let failure = failures(&ranks.iter().collect::<Vec<_>>(), &[told]).swap_remove(0);
    let says = "rank 0 has not begun an operation that it entered before";
    assert!(failure.message().contains(says), "{failure}");
}

/// What waits for the time of another rank is the piece that has begun, though that has come later.
#[test]
fn operation_behind_pieces_of_one_that_another_rank_leaves_fails_because_of_that_rank() {
    let (ranks, groups, mut pieces) = pair_in_pieces(3);
    let sums = groups.each_ref().map(|group| doomed_sum(&**group));
    start_piece(&ranks, &mut pieces, &[0]);
    for failure in failures(&[&ranks[0]], &sums[..1]) {
        assert!(failure.message().contains("rank 1 has not come"), "{failure}");
    }
}

/// Neither rank goes on with its pieces.
#[test]
fn operation_behind_pieces_that_do_not_go_on_fails_because_of_them() {
    let (ranks, groups, _pieces) = pair_in_pieces(3);
    let told = groups.each_ref().map(|group| doomed_sum(&**group));
    for failure in failures(&ranks.iter().collect::<Vec<_>>(), &told) {
        assert!(failure.message().contains("has not begun an operation that it entered before"), "{failure}");
    }
}

/// Its time begins when it does.
#[test]
fn operation_behind_many_pieces_waits_for_as_long_as_they_go_on() {
    let (ranks, groups, mut pieces) = pair_in_pieces(12);
    let begin = Instant::now();
    let sums = groups.each_ref().map(|group| sum(&**group, 1));
    while !pieces[0].is_empty() {
        be_late();
        start_piece(&ranks, &mut pieces, &[0, 1]);
        let next = Instant::now() + PASSES / 8;
        while Instant::now() < next {
            poll_all(&ranks);
            std::thread::sleep(Duration::from_millis(1));
        }
        arrive();
        poll_all(&ranks);
    }
    assert!(begin.elapsed() > PASSES);
    for (rank, (_, told)) in ranks.iter().zip(&sums) {
        assert_eq!(notified_in_time(rank, told), Ok(()));
    }
}

#[test]
fn transfers_of_different_pairs_and_collectives_do_not_wait_for_each_other() {
    let (ranks, groups) = pair();
    let held = groups[0].enter(operation(SUM, 1)).unwrap();
    let sent = transfer(&*groups[0], Kind::Send { to: 1 }, memory(&[5]));
    let got = memory(&[0]);
    let received = transfer(&*groups[1], Kind::Recv { from: 0 }, got.clone());
    poll_all(&ranks);
    assert_eq!([sent.try_recv(), received.try_recv()], [Ok(Ok(())); 2]);
    assert_eq!(word(&got), 5);
    drop(held);
}

/// Each field of an operation, with one that differs in it.
fn unlike() -> Vec<[Operation; 2]> {
    let of = |element| Operation { kind: SUM, element, count: 4 };
    vec![
        [operation(SUM, 4), operation(Kind::AllGather, 4)],
        [operation(SUM, 4), operation(Kind::AllReduce(Reduction::Product), 4)],
        [operation(SUM, 4), operation(SUM, 8)],
        [of(Element::U32), of(Element::F32)],
        [operation(Kind::Broadcast { root: 0 }, 4), operation(Kind::Broadcast { root: 1 }, 4)],
    ]
}

#[test]
fn operation_that_differs_in_any_field_is_named_with_its_rank_and_no_byte_moves() {
    for (check, count) in
        [Check::First, Check::On].into_iter().flat_map(|check| [2, 3, 5].map(|n| (check, n)))
    {
        for ([most, odd], who) in unlike().into_iter().flat_map(|both| (0..count).map(move |who| (both, who)))
        {
            let (ranks, groups) = job_with(count, check);
            // One that all agree on, so that its shape is known.
            let before: Vec<Begun> =
                groups.iter().map(|group| start(group.enter(most).unwrap(), 64, 1)).collect();
            poll_all(&ranks);
            assert!(before.iter().all(|(_, told)| told.try_recv() == Ok(Ok(()))));
            let (tell, told) = channel();
            for (rank, group) in (0..).zip(&groups) {
                let of = if rank == who { odd } else { most };
                let recv = memory(&[0; 64]);
                let buffers = Buffers { send: Some(memory(&[1; 64])), recv: Some(recv.clone()) };
                let tell = tell.clone();
                let done = Box::new(move |end: Result| tell.send((rank, end, word(&recv))).unwrap());
                match group.enter(of) {
                    Ok(entry) => drop(entry.start(buffers, done)),
                    Err(failure) => done(Err(failure)),
                }
            }
            let end = Instant::now() + LONG;
            let mut ends = Vec::new();
            while ends.len() < count as usize {
                assert!(Instant::now() < end, "{most} and {odd} by {who} of {count}");
                ranks.iter().for_each(Rank::poll);
                ends.extend(told.try_iter());
            }
            for (rank, end, got) in ends {
                let failure = end.unwrap_err();
                let message = failure.message();
                assert_eq!(failure.code(), Code::InvalidArgument, "{message}");
                assert!(message.contains(&format!("rank {who} ")), "{message}");
                assert!(
                    message.contains(&odd.to_string()) && message.contains(&most.to_string()),
                    "{message}"
                );
                assert!(rank != who || got == 0, "something has moved");
            }
        }
    }
}

#[test]
fn ends_of_a_transfer_that_differ_are_named() {
    for (kind, count) in [(Element::F32, 4), (Element::U32, 3)].map(|(element, count)| (element, count)) {
        let (ranks, groups) = job_with(2, Check::First);
        let send = Operation { kind: Kind::Send { to: 1 }, element: kind, count };
        let (sent, got) =
            (groups[0].enter(send).unwrap(), groups[1].enter(operation(Kind::Recv { from: 0 }, 4)));
        let told = [start(sent, 4, 1).1, start(got.unwrap(), 4, 1).1];
        assert_eq!(told_in_both(&ranks, &told), [Err(Code::InvalidArgument); 2]);
    }
}

/// Has all ranks poll until both are told.
fn told_in_both(ranks: &[Rank], told: &[Receiver<Outcome>; 2]) -> [Outcome; 2] {
    let end = Instant::now() + LONG;
    let mut outcomes = [None; 2];
    while outcomes.contains(&None) {
        assert!(Instant::now() < end);
        ranks.iter().for_each(Rank::poll);
        for (outcome, told) in outcomes.iter_mut().zip(told) {
            *outcome = outcome.or(told.try_recv().ok());
        }
    }
    outcomes.map(Option::unwrap)
}

#[test]
fn ranks_compare_what_they_are_to_compare_and_no_more() {
    // Of two, three and five ranks, each tells as many others as there are rounds.
    for (check, first, later) in [(Check::Off, 0, 0), (Check::First, 1, 0), (Check::On, 1, 1)] {
        for (count, rounds) in [(1, 0), (2, 1), (3, 2), (5, 3)] {
            let (ranks, groups) = job_with(count, check);
            meet(&ranks, &groups);
            for told in [first, later] {
                let before = ranks[0].0.with(LONG, |progress| progress.notices()).unwrap();
                let begun: Vec<Begun> =
                    groups.iter().map(|group| start(group.enter(operation(SUM, 2)).unwrap(), 2, 1)).collect();
                poll_all(&ranks);
                assert!(begun.iter().all(|(_, told)| told.try_recv() == Ok(Ok(()))));
                let after = ranks[0].0.with(LONG, |progress| progress.notices()).unwrap();
                assert_eq!(after - before, told * rounds, "{check:?} of {count}");
            }
        }
    }
}

#[test]
fn terms_that_are_not_the_same_fail_the_group_for_all() {
    let unlike = [
        ("collective_piece", Terms { piece: 100, ..Terms::from(TERMS) }),
        ("collective_check", Terms { check: Check::Off, ..Terms::from(TERMS) }),
    ];
    for (what, terms) in unlike {
        let ranks = job(3);
        let groups: Vec<_> = (0..)
            .zip(&ranks)
            .map(|(number, rank)| rank.join(b"group", if number == 1 { terms } else { TERMS.into() }))
            .collect();
        let begun: Vec<_> =
            groups.iter().map(|group| start(group.enter(operation(SUM, 1)).unwrap(), 1, 1)).collect();
        poll_all(&ranks);
        for (_, told) in begun {
            assert_eq!(told.try_recv(), Ok(Err(Code::InvalidArgument)));
        }
        for group in &groups {
            let refused = group.enter(operation(SUM, 1)).err().unwrap();
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert!(refused.message().contains(&format!("give every rank the same {what}")), "{refused}");
        }
    }
}

#[test]
fn operation_that_no_group_can_do_is_refused_and_takes_no_place() {
    let (ranks, groups) = pair();
    assert!(groups[0].enter(operation(Kind::Broadcast { root: 2 }, 1)).is_err());
    let sums = [0, 1].map(|rank: usize| sum(&*groups[rank], 2));
    poll_all(&ranks);
    for (got, told) in sums {
        assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), 4));
    }
}
