// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An MPI whose calls fail, and what is received that nothing wants.

use super::*;
use crate::announced::Messages;
use crate::ending::GRACE;
use crate::group::Generation;
use crate::library::dropped_under_way;
use crate::library::loopback::{expected_by, fail_next, failing_network};
use crate::wire::{Asked, Content, FIRST_TAG, HEADER, Header, LETTER, Meeting, VERSION};
use hal_collectives::Line;

const LONG: Duration = Duration::from_secs(20);
const WORDS: u64 = 3_000;

fn ranks() -> ([Rank; 2], [Box<dyn Communicator>; 2]) {
    let watchers = Box::leak(Box::default());
    let ranks: Vec<Rank> =
        failing_network(2).map(|library| Rank(Arc::new(Engine::new(library, watchers)))).collect();
    let ranks: [Rank; 2] = ranks.try_into().ok().unwrap();
    let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"refused", TERMS));
    (ranks, groups)
}

/// The letter of some messages in the first transfer of a group.
fn announce(ranks: &[Rank; 2], number: u64, messages: Messages) {
    let group = *ranks[0].0.groups.lock().keys().next().unwrap();
    let group = Generation { number: group, generation: 0 };
    let operation = Operation { kind: Kind::Send { to: 0 }, element: Element::U32, count: WORDS };
    let header = Header {
        meeting: Meeting { group, line: Line::Pair { from: 1, to: 0 }, number, piece: 0 },
        from: 1,
        source: 1,
        asked: Some(Asked { operation, pieces: 1 }),
        content: Content::Messages { tag: FIRST_TAG, messages },
    };
    let letter = HostRange::allocate(HEADER as u64, 64).unwrap();
    assert!(letter.write(0, &header.to_bytes(VERSION)));
    message(ranks, letter, LETTER);
}

fn message(ranks: &[Rank; 2], bytes: HostRange, tag: i32) {
    let sent = ranks[1].0.with(LONG, |progress| progress.library().send(bytes, 0, tag));
    std::mem::forget(sent.unwrap().unwrap());
}

#[test]
fn memory_of_a_message_that_mpi_fails_to_ask_about_is_kept() {
    let (ranks, groups) = ranks();
    let before = dropped_under_way();
    let (recv, goes) = memory_that_asks(&ranks[0].0, usize::try_from(WORDS).unwrap());
    let address: *const u32 = recv.address().cast_const().cast();
    let told = transfer(&*groups[0], Kind::Recv { from: 1 }, recv);
    announce(&ranks, 0, Messages::of([WORDS * 4]));
    fail_next(FIRST_TAG, 5);
    let begin = Instant::now();
    look_all(&ranks[..1]);
    assert!(ranks[0].0.look().waits, "someone is to be told");
    assert_eq!(told_in_time(&ranks[0], &told), Err(Code::Unavailable));
    assert!(begin.elapsed() >= GRACE, "told while MPI may still write");
    assert!(goes.try_recv().is_err(), "memory was let go of that MPI may write");
    message(&ranks, memory(&[5; 3_000]), FIRST_TAG);
    // SAFETY: it was not let go of, and the thread that writes it is this one.
    assert_eq!(unsafe { address.read_volatile() }, 5);
    look_all(&ranks[..1]);
    assert_eq!((goes.try_recv(), dropped_under_way()), (Ok(true), before));
    // Whether a message has come is not known then, and nothing is believed.
    let told = transfer(&*ranks[0].join(b"another", TERMS), Kind::Recv { from: 1 }, memory(&[0; 3_000]));
    ranks[0].look();
    assert_eq!(told.try_recv(), Ok(Err(Code::Unavailable)));
}

#[test]
fn memory_of_a_message_that_is_not_wanted_is_kept_when_mpi_fails_to_ask_about_it() {
    let (ranks, groups) = ranks();
    let before = dropped_under_way();
    announce(&ranks, 0, Messages::of([WORDS * 4]));
    ranks[0].look();
    groups[0].end(&Failure::new(Code::DataLoss, "gone"));
    ranks[0].look();
    fail_next(FIRST_TAG, 1);
    ranks[0].look();
    assert_eq!(dropped_under_way(), before, "memory was let go of that MPI may write");
}

/// Even if it is larger than what is received at once.
#[test]
fn message_that_is_not_wanted_is_received_however_large_it_is() {
    let (ranks, groups) = ranks();
    announce(&ranks, 0, Messages::of([40 << 20]));
    ranks[0].look();
    groups[0].end(&Failure::new(Code::DataLoss, "gone"));
    ranks[0].look();
    message(&ranks, memory(&[1; 3_000]), FIRST_TAG);
    ranks[0].look();
    assert!(!ranks[0].0.look().sends, "it is not received");
}

#[test]
fn what_is_not_wanted_is_received_some_at_a_time() {
    let (ranks, groups) = ranks();
    let places = ranks[0].0.with(LONG, |progress| expected_by(progress.library())).unwrap();
    let (largest, count) = (2 << 20, 100_u32);
    announce(&ranks, 0, Messages { count, largest, bytes: u64::from(largest * count) });
    ranks[0].look();
    groups[0].end(&Failure::new(Code::DataLoss, "gone"));
    for at in 0..count {
        let expected = ranks[0].0.with(LONG, |progress| expected_by(progress.library())).unwrap() - places;
        assert!((1..=8).contains(&expected), "{expected} at once");
        message(&ranks, memory(&[1; 3_000]), FIRST_TAG + at.cast_signed());
        ranks[0].look();
    }
    let expected = ranks[0].0.with(LONG, |progress| expected_by(progress.library()));
    assert_eq!(expected, Some(places));
    assert!(!ranks[0].0.look().sends);
}

/// Three ranks, of which the first has announced messages to the second that it has yet to get from the third, which does not come.
#[test]
fn messages_that_mpi_refuses_to_send_empty_are_sent_later_and_hold_up_no_other() {
    let watchers = Box::leak(Box::default());
    let ranks: Vec<Rank> =
        failing_network(4).map(|library| Rank(Arc::new(Engine::new(library, watchers)))).collect();
    let groups: Vec<_> = ranks.iter().map(|rank| rank.join(b"ring", TERMS)).collect();
    let gather = |rank: usize| {
        let operation = Operation { kind: Kind::AllGather, element: Element::U32, count: WORDS };
        let buffers = Buffers { send: Some(memory(&[1; 3_000])), recv: Some(memory(&[0; 12_000])) };
        let (tell, told) = channel();
        let done = Box::new(move |end| tell.send(outcome(end)).unwrap());
        assert!(groups[rank].enter(operation).unwrap().start(buffers, done).is_none());
        told
    };
    let told = [0, 1, 2].map(gather);
    look_all(&ranks);
    // Of the two that are left the first is refused.
    fail_next(FIRST_TAG + 1, 1);
    groups[0].end(&Failure::new(Code::DataLoss, "gone"));
    for _ in 0..4 {
        look_all(&ranks);
    }
    assert!(told.iter().all(|told| told.try_recv() == Ok(Err(Code::DataLoss))));
    for rank in &ranks {
        let expected = rank.0.with(LONG, |progress| expected_by(progress.library()));
        assert_eq!(expected, Some(32), "a message was not sent");
        assert!(!rank.0.look().sends);
    }
}

#[test]
fn what_is_not_wanted_is_received_when_mpi_is_used_again_and_not_before() {
    let (ranks, [group, _other]) = pair();
    let expected = || ranks[0].0.with(LONG, |progress| expected_by(progress.library())).unwrap();
    let places = expected();
    announce(&ranks, 0, Messages::of([WORDS * 4]));
    ranks[0].look();
    group.end(&Failure::new(Code::DataLoss, "gone"));
    ranks[0].look();
    assert_eq!(expected(), places + 1);
    drop(group);
    ranks[0].0.with(LONG, Progress::rest).unwrap();
    look_all(&ranks[..1]);
    assert_eq!(expected(), 0, "MPI may have been ended by the program");
    let _again = ranks[0].join(b"again", TERMS);
    assert_eq!(expected(), places + 1);
    message(&ranks, memory(&[1; 3_000]), FIRST_TAG);
    ranks[0].look();
    assert_eq!(expected(), places);
}
