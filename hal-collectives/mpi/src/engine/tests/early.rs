// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What others say before a rank is in the group, or in the operation, that they speak of.

use super::*;
use crate::progress::LETTERS;

const BROADCAST: Kind = Kind::Broadcast { root: 0 };

/// Whether a rank may enter an operation on one word.
fn enter(group: &dyn Communicator, kind: Kind) -> Outcome {
    outcome(group.enter(Operation { kind, element: Element::U32, count: 1 }).map(drop))
}

#[test]
fn operation_that_does_not_fit_what_was_heard_before_the_group_was_joined_is_refused() {
    // In another group, so that they hear each other.
    let (ranks, _groups) = pair();
    let ahead = ranks[1].join(b"later", TERMS);
    let waits = sum(&*ahead, 5).1;
    poll_all(&ranks);
    let group = ranks[0].join(b"later", TERMS);
    assert_eq!(enter(&*group, BROADCAST), Err(Code::InvalidArgument));
    poll_all(&ranks);
    assert_eq!(waits.try_recv(), Ok(Err(Code::InvalidArgument)));
}

#[test]
fn what_was_heard_of_a_group_is_not_forgotten_when_more_is_heard_or_another_group_fails() {
    let (ranks, _groups) = pair();
    let ahead = ranks[1].join(b"later", TERMS);
    let others = [5, 6].map(|word| sum(&*ahead, word).1);
    ranks[1].join(b"fails", TERMS).end(&Failure::new(Code::DataLoss, "gone"));
    poll_all(&ranks);
    let group = ranks[0].join(b"later", TERMS);
    let own = [1, 2].map(|word| sum(&*group, word));
    poll_all(&ranks);
    assert_eq!(own.map(|(got, told)| (told.try_recv(), word(&got))), [(Ok(Ok(())), 6), (Ok(Ok(())), 8)]);
    assert_eq!(others.map(|told| told.try_recv()), [Ok(Ok(())); 2]);
}

#[test]
fn operation_that_no_group_can_do_is_refused_and_takes_no_place() {
    let (ranks, groups) = pair();
    assert_eq!(enter(&*groups[0], Kind::Broadcast { root: 2 }), Err(Code::OutOfRange));
    let told = [0, 1].map(|rank: usize| sum(&*groups[rank], 1).1);
    poll_all(&ranks);
    assert_eq!(told.map(|told| told.try_recv()), [Ok(Ok(())); 2]);
}

/// The thread that looks has the lock, and others have begun something meanwhile.
#[test]
fn look_takes_only_so_many_letters_as_others_may_write_them_as_fast_as_they_are_read() {
    const SENT: usize = 3_000;
    let (ranks, groups) = pair();
    for word in 0..SENT {
        drop(transfer(&*groups[1], Kind::Send { to: 0 }, memory(&[u32::try_from(word).unwrap()])));
    }
    let early = || ranks[0].0.with(TERMS, |progress| progress.early()).unwrap();
    ranks[0].poll();
    assert!((1..=LETTERS).contains(&early()), "{}", early());
    // Each of those that take some says so.
    let looks = (0..SENT).take_while(|_| ranks[0].0.poll().moved).count();
    assert_eq!((early(), looks), (SENT, (SENT - LETTERS).div_ceil(LETTERS)));
}

/// The thread that looks does not sleep then.
#[test]
fn look_that_goes_on_with_an_operation_says_so() {
    let ranks = job(3);
    let groups: Vec<_> = ranks.iter().map(|rank| rank.join(b"ring", TERMS)).collect();
    let gather = |rank: usize| {
        let buffers = Buffers { send: Some(memory(&[1; 3_000])), recv: Some(memory(&[0; 9_000])) };
        let operation = Operation { kind: Kind::AllGather, element: Element::U32, count: 3_000 };
        assert!(groups[rank].enter(operation).unwrap().start(buffers, Box::new(|_| {})).is_none());
    };
    gather(2);
    gather(0);
    // It takes a letter and the message behind it, and then goes on; the third rank does not come.
    let looks = [(); 4].map(|()| ranks[0].0.poll().moved);
    assert_eq!(looks, [true, true, false, false]);
}
