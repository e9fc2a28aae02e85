// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An MPI whose calls fail, and what is received that nothing wants.

use super::*;
use crate::ending::GRACE;
use crate::library::loopback::{expected_by, fail_next, failing_network};
use crate::library::{dropped_under_way, without_memory};
use crate::wire::{FIRST_TAG, LETTER};

const LONG: Duration = Duration::from_secs(20);
const WORDS: u64 = 3_000;

fn ranks() -> ([Rank; 2], [Box<dyn Communicator>; 2]) {
    let ranks: [Rank; 2] = job_of(failing_network(2)).try_into().ok().unwrap();
    let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"refused", TERMS));
    (ranks, groups)
}

/// The letter of some messages in the first transfer of a group.
fn announce(ranks: &[Rank; 2], number: u64, messages: Messages) {
    let content = Content::Messages { tag: FIRST_TAG, messages };
    let header = header_of((number_of(&ranks[0]), number), WORDS, content);
    message(ranks, letter(header, &[]), LETTER);
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
    poll_all(&ranks[..1]);
    assert!(ranks[0].0.poll().waits, "someone is to be told");
    assert_eq!(told_in_time(&ranks[0], &told), Err(Code::Unavailable));
    assert!(begin.elapsed() >= GRACE, "told while MPI may still write");
    assert!(goes.try_recv().is_err(), "memory was let go of that MPI may write");
    message(&ranks, memory(&[5; 3_000]), FIRST_TAG);
    // SAFETY: it was not let go of, and the thread that writes it is this one.
    assert_eq!(unsafe { address.read_volatile() }, 5);
    poll_all(&ranks[..1]);
    assert_eq!((goes.try_recv(), dropped_under_way()), (Ok(true), before));
    // Whether a message has come is not known then, and nothing is believed.
    let told = transfer(&*ranks[0].join(b"another", TERMS), Kind::Recv { from: 1 }, memory(&[0; 3_000]));
    ranks[0].poll();
    assert_eq!(told.try_recv(), Ok(Err(Code::Unavailable)));
}

#[test]
fn failure_is_told_as_soon_as_a_message_has_come_that_mpi_failed_to_ask_about() {
    let (ranks, groups) = ranks();
    let told = transfer(&*groups[0], Kind::Recv { from: 1 }, memory(&[0; 3_000]));
    announce(&ranks, 0, Messages::of([WORDS * 4]));
    ranks[0].poll();
    fail_next(FIRST_TAG, 1);
    let begin = Instant::now();
    poll_all(&ranks[..1]);
    assert!(told.try_recv().is_err() || begin.elapsed() >= GRACE, "told while MPI may write");
    message(&ranks, memory(&[5; 3_000]), FIRST_TAG);
    ranks[0].poll();
    let is_told = told.try_recv() == Ok(Err(Code::Unavailable));
    assert!(is_told || begin.elapsed() >= GRACE);
}

#[test]
fn memory_of_a_message_that_is_not_wanted_is_kept_when_mpi_fails_to_ask_about_it() {
    let (ranks, groups) = ranks();
    let before = dropped_under_way();
    announce(&ranks, 0, Messages::of([WORDS * 4]));
    ranks[0].poll();
    groups[0].end(&Failure::new(Code::DataLoss, "gone"));
    ranks[0].poll();
    fail_next(FIRST_TAG, 1);
    ranks[0].poll();
    assert_eq!(dropped_under_way(), before, "memory was let go of that MPI may write");
}

/// No rank waits for it any more.
#[test]
fn memory_of_a_message_that_mpi_fails_to_ask_about_stays_where_it_is_when_mpi_is_left_alone() {
    let (ranks, groups) = ranks();
    let before = dropped_under_way();
    let (recv, goes) = memory_that_asks(&ranks[0].0, usize::try_from(WORDS).unwrap());
    let told = transfer(&*groups[0], Kind::Recv { from: 1 }, recv);
    announce(&ranks, 0, Messages::of([WORDS * 4]));
    ranks[0].poll();
    groups[0].end(&Failure::new(Code::DataLoss, "gone"));
    assert_eq!(told_in_time(&ranks[0], &told), Err(Code::DataLoss));
    drop(groups);
    fail_next(FIRST_TAG, u32::MAX);
    ranks[0].0.with(LONG, Progress::rest).unwrap();
    fail_next(FIRST_TAG, 0);
    ranks[0].poll();
    assert!(goes.try_recv().is_err(), "memory was let go of that MPI may write");
    assert_eq!(dropped_under_way(), before);
}

/// They are told with memory of letters that have gone.
#[test]
fn operation_that_has_no_memory_to_begin_with_fails_its_group_for_all() {
    let (ranks, groups) = pair();
    let _before = [0, 1].map(|rank: usize| sum(&*groups[rank], 1));
    poll_all(&ranks);
    let [told, waits] = [0, 1].map(|rank: usize| {
        let (tell, told) = channel();
        let [send, recv] = [(); 2].map(|()| Some(memory(&[1; 2_000])));
        let done = Box::new(move |end| tell.send(outcome(end)).unwrap());
        let begin = || sum_with(&*groups[rank], Buffers { send, recv }, done);
        if rank == 0 {
            without_memory(begin)
        } else {
            begin()
        }
        told
    });
    poll_all(&ranks);
    assert_eq!([told, waits].map(|told| told.try_recv()), [Ok(Err(Code::ResourceExhausted)); 2]);
}

/// Even if it is larger than what is received at once.
#[test]
fn message_that_is_not_wanted_is_received_however_large_it_is() {
    let (ranks, groups) = ranks();
    announce(&ranks, 0, Messages::of([40 << 20]));
    ranks[0].poll();
    groups[0].end(&Failure::new(Code::DataLoss, "gone"));
    ranks[0].poll();
    message(&ranks, memory(&[1; 3_000]), FIRST_TAG);
    ranks[0].poll();
    assert!(!ranks[0].0.poll().sends, "it is not received");
}

#[test]
fn what_is_not_wanted_is_received_some_at_a_time() {
    let (ranks, groups) = ranks();
    let places = ranks[0].0.with(LONG, |progress| expected_by(progress.library())).unwrap();
    let (largest, count) = (2 << 20, 100_u32);
    announce(&ranks, 0, Messages { count, largest, bytes: u64::from(largest * count) });
    ranks[0].poll();
    groups[0].end(&Failure::new(Code::DataLoss, "gone"));
    for at in 0..count {
        let expected = ranks[0].0.with(LONG, |progress| expected_by(progress.library())).unwrap() - places;
        assert!((1..=8).contains(&expected), "{expected} at once");
        message(&ranks, memory(&[1; 3_000]), FIRST_TAG + at.cast_signed());
        ranks[0].poll();
    }
    let expected = ranks[0].0.with(LONG, |progress| expected_by(progress.library()));
    assert_eq!(expected, Some(places));
    assert!(!ranks[0].0.poll().sends);
}

/// Three ranks, of which the first has announced messages to the second that it has yet to get from the
/// third, which does not come.
#[test]
fn messages_that_mpi_refuses_to_send_empty_are_sent_later_and_hold_up_no_other() {
    let ranks = job_of(failing_network(4));
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
    poll_all(&ranks);
    // Of the two that are left the first is refused.
    fail_next(FIRST_TAG + 1, 1);
    groups[0].end(&Failure::new(Code::DataLoss, "gone"));
    for _ in 0..4 {
        poll_all(&ranks);
    }
    assert!(told.iter().all(|told| told.try_recv() == Ok(Err(Code::DataLoss))));
    for rank in &ranks {
        let expected = rank.0.with(LONG, |progress| expected_by(progress.library()));
        assert_eq!(expected, Some(32), "a message was not sent");
        assert!(!rank.0.poll().sends);
    }
}

#[test]
fn what_is_not_wanted_is_received_when_mpi_is_used_again_and_not_before() {
    let (ranks, [group, _other]) = pair();
    let expected = || ranks[0].0.with(LONG, |progress| expected_by(progress.library())).unwrap();
    let places = expected();
    announce(&ranks, 0, Messages::of([WORDS * 4]));
    ranks[0].poll();
    group.end(&Failure::new(Code::DataLoss, "gone"));
    ranks[0].poll();
    assert_eq!(expected(), places + 1);
    drop(group);
    ranks[0].0.with(LONG, Progress::rest).unwrap();
    poll_all(&ranks[..1]);
    assert_eq!(expected(), 0, "MPI may have been ended by the program");
    let _again = ranks[0].join(b"again", TERMS);
    assert_eq!(expected(), places + 1);
    message(&ranks, memory(&[1; 3_000]), FIRST_TAG);
    ranks[0].poll();
    assert_eq!(expected(), places);
}
