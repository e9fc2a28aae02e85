// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Messages that come when others that were sent behind them, with other tags, have come: MPI keeps no order
//! between tags.

use super::*;
use crate::ending::GRACE;
use crate::exchange::SEGMENT;
use crate::library::loopback::{Call, behind, expected_by, interrupted_network, late_network, network};
use crate::library::{dropped_under_way, without_memory};
use crate::wire::{FIRST_TAG, LETTER};

const LONG: Duration = Duration::from_secs(20);
const WORDS: usize = 3_000;

/// Two ranks, and two groups, of which rank 0 is in what it has joined; what rank 1 sends the tests say. The
/// names are in the order of the groups.
struct Job {
    ranks: Vec<Rank>,
    names: [&'static [u8]; 2],
    ids: [u64; 2],
}

fn job_of_two() -> (Job, [Box<dyn Communicator>; 2]) {
    job_in(network(2))
}

fn job_in(network: impl Iterator<Item = Library>) -> (Job, [Box<dyn Communicator>; 2]) {
    let ranks = job_of(network);
    let names: [&[u8]; 2] = [b"first", b"second"];
    let mut ids = Vec::new();
    let groups = names.map(|name| {
        let group = ranks[0].join(name, TERMS);
        let known: Vec<u64> = ranks[0].0.groups.lock().keys().copied().collect();
        ids.extend(known.into_iter().find(|id| !ids.contains(id)));
        group
    });
    (Job { ranks, names, ids: ids.try_into().unwrap() }, groups)
}

impl Job {
    fn send(&self, bytes: HostRange, tag: i32) {
        send_by(&self.ranks[1].0, bytes, tag);
    }

    /// The letter of a message, in a transfer of a group.
    fn announce(&self, group: usize, number: u64, tag: i32) {
        let messages = Messages::of([WORDS as u64 * 4]);
        self.letter(self.header((group, number, WORDS), Content::Messages { tag, messages }), &[]);
        self.ranks[0].poll();
    }

    /// That of a letter in a transfer of so many words.
    fn header(&self, (group, number, words): (usize, u64, usize), content: Content) -> Header {
        header_of((self.ids[group], number), words as u64, content)
    }

    fn letter(&self, header: Header, carried: &[u8]) {
        self.send(letter(header, carried), LETTER);
    }

    fn message(&self, word: u32, tag: i32) {
        self.send(memory(&[word; WORDS]), tag);
    }
}

/// A rank sends rank 0 a message.
fn send_by(engine: &Engine, bytes: HostRange, tag: i32) {
    let sent = engine.with(LONG, |progress| progress.library().send(bytes, 0, tag));
    std::mem::forget(sent.unwrap().unwrap());
}

fn receive(group: &dyn Communicator) -> (HostRange, Receiver<Outcome>) {
    let words = memory(&[0; WORDS]);
    let told = transfer(group, Kind::Recv { from: 1 }, words.clone());
    (words, told)
}

/// The letter of its long message has come before the operation begins, and the one with the rest before the next look.
#[test]
fn letters_of_a_rank_are_taken_in_their_order_though_the_first_one_has_waited() {
    let (job, groups) = job_of_two();
    let words = usize::try_from(SEGMENT / 4).unwrap() + 1;
    let messages = Messages::of([SEGMENT]);
    job.letter(job.header((0, 0, words), Content::Messages { tag: FIRST_TAG, messages }), &[]);
    job.ranks[0].poll();
    let got = memory(&vec![0; words]);
    let told = transfer(&*groups[0], Kind::Recv { from: 1 }, got.clone());
    job.letter(job.header((0, 0, words), Content::Part { length: 4 }), &6_u32.to_le_bytes());
    job.send(memory(&vec![5; words - 1]), FIRST_TAG);
    poll_all(&job.ranks[..1]);
    assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), 5));
    assert_eq!(word(&got.slice(SEGMENT, 4).unwrap()), 6);
}

/// A receive that a later one stands behind is not cancelled: the later one would get its message. Its
/// operation may begin before both letters, behind them, or behind the later operation.
#[test]
fn message_of_an_operation_that_fails_is_not_taken_for_one_whose_receive_has_begun() {
    for begins in 0..3 {
        let (job, groups) = job_of_two();
        let mut first = (begins == 0).then(|| receive(&*groups[0]));
        job.announce(0, 0, FIRST_TAG);
        job.announce(1, 0, FIRST_TAG);
        first = first.or_else(|| (begins == 1).then(|| receive(&*groups[0])));
        job.ranks[0].poll();
        let (got, told) = receive(&*groups[1]);
        job.ranks[0].poll();
        let first = first.unwrap_or_else(|| receive(&*groups[0]));
        job.ranks[0].poll();
        groups[0].end(&Failure::new(Code::DataLoss, "gone"));
        job.ranks[0].poll();
        job.message(1, FIRST_TAG);
        job.message(2, FIRST_TAG);
        poll_all(&job.ranks[..1]);
        assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), 2), "{begins}");
        assert_eq!(first.1.try_recv(), Ok(Err(Code::DataLoss)), "{begins}");
        assert!(!job.ranks[0].0.poll().sends, "something is left");
    }
}

/// The same when another letter has come meanwhile: what is known of clear tags then does not leave out
/// receives that have begun.
#[test]
fn receive_that_has_begun_is_not_forgotten_when_letters_with_other_tags_come() {
    let (job, groups) = job_of_two();
    let first = receive(&*groups[0]);
    // Those of the second group look at all tags, and at all again.
    let tags = [5, 3, 0].map(|at| FIRST_TAG + at);
    let others = tags.map(|_| receive(&*groups[1]));
    job.announce(0, 0, FIRST_TAG);
    (0..).zip(tags).for_each(|(number, tag)| job.announce(1, number, tag));
    groups[0].end(&Failure::new(Code::DataLoss, "gone"));
    job.ranks[0].poll();
    job.message(1, FIRST_TAG);
    (2..).zip(tags).for_each(|(word, tag)| job.message(word, tag));
    poll_all(&job.ranks[..1]);
    let got = others.map(|(got, told)| (told.try_recv(), word(&got)));
    assert_eq!(got, [2, 3, 4].map(|word| (Ok(Ok(())), word)));
    assert_eq!(first.1.try_recv(), Ok(Err(Code::DataLoss)));
}

/// Or with the same, of other ranks.
#[test]
fn receive_is_cancelled_at_once_though_letters_with_other_tags_have_come() {
    for (from, tag) in [(1, FIRST_TAG + 1), (2, FIRST_TAG)] {
        let (job, groups) = job_in(network(3));
        let told = transfer(&*groups[0], Kind::Recv { from }, memory(&[0; WORDS]));
        let header =
            job.header((0, 0, WORDS), Content::Messages { tag, messages: Messages::of([WORDS as u64 * 4]) });
        let meeting = Meeting { line: Participants::Pair { from, to: 0 }, ..header.meeting };
        job.letter(Header { meeting, from, source: from, ..header }, &[]);
        // All tags are looked at for the second one.
        (0..2).for_each(|number| job.announce(1, number, FIRST_TAG));
        groups[0].end(&Failure::new(Code::DataLoss, "gone"));
        job.ranks[0].poll();
        assert_eq!(told.try_recv(), Ok(Err(Code::DataLoss)), "from rank {from}");
    }
}

#[test]
fn letters_behind_one_with_the_tag_of_a_message_that_is_waited_for_are_taken() {
    let (job, groups) = job_of_two();
    let _first = receive(&*groups[0]);
    job.announce(0, 0, FIRST_TAG);
    job.announce(1, 0, FIRST_TAG);
    let _second = receive(&*groups[1]);
    let got = memory(&[0]);
    let told = transfer(&*groups[1], Kind::Recv { from: 1 }, got.clone());
    job.letter(job.header((1, 1, 1), Content::Part { length: 4 }), &6_u32.to_le_bytes());
    poll_all(&job.ranks[..1]);
    assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), 6));
}

/// There is no memory for the first message when its receive is to begin again.
#[test]
fn message_is_not_taken_for_an_earlier_one_whose_receive_could_not_begin_again() {
    let (job, groups) = job_of_two();
    job.announce(0, 0, FIRST_TAG);
    job.announce(1, 0, FIRST_TAG);
    drop(groups);
    job.ranks[0].0.with(LONG, Progress::rest).unwrap();
    let groups = without_memory(|| job.names.map(|name| job.ranks[0].join(name, TERMS)));
    let (got, told) = receive(&*groups[1]);
    job.message(1, FIRST_TAG);
    job.message(2, FIRST_TAG);
    poll_all(&job.ranks[..1]);
    assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), 2));
    let (got, told) = receive(&*groups[0]);
    poll_all(&job.ranks[..1]);
    assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), 1));
}

/// Two messages with one tag, and the operation of the second one has begun and fails: its receive is not
/// wanted any more, and the first one's has begun beside it. The groups are let go of.
fn let_go_of_two(job: &Job, groups: [Box<dyn Communicator>; 2]) {
    job.announce(0, 0, FIRST_TAG);
    job.announce(1, 0, FIRST_TAG);
    let (_, told) = receive(&*groups[1]);
    job.ranks[0].poll();
    groups[1].end(&Failure::new(Code::DataLoss, "gone"));
    assert_eq!(told_in_time(&job.ranks[0], &told), Err(Code::DataLoss));
}

/// A program that began MPI itself may end it then.
#[test]
fn mpi_has_no_receive_of_ours_when_it_is_left_alone() {
    let (job, groups) = job_of_two();
    let_go_of_two(&job, groups);
    let expected = || job.ranks[0].0.with(LONG, |progress| expected_by(progress.library())).unwrap();
    assert!(expected() >= 2);
    job.ranks[0].0.with(LONG, Progress::rest).unwrap();
    assert_eq!(expected(), 0);
    let first = job.ranks[0].join(job.names[0], TERMS);
    job.message(1, FIRST_TAG);
    job.message(2, FIRST_TAG);
    let (got, told) = receive(&*first);
    poll_all(&job.ranks[..1]);
    assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), 1));
    assert!(!job.ranks[0].0.poll().sends, "something is left");
}

/// The later ones end first: an earlier message would come to a later one's receive.
#[test]
fn message_that_comes_while_receives_are_cancelled_is_not_taken_for_a_later_one() {
    let (job, groups) = job_in(interrupted_network(2));
    let_go_of_two(&job, groups);
    let sender = job.ranks[1].0.clone();
    behind(Call::Cancel, FIRST_TAG, || {
        // Another thread, as this one looks.
        let sends = std::thread::spawn(move || send_by(&sender, memory(&[1; WORDS]), FIRST_TAG));
        sends.join().unwrap();
    });
    job.ranks[0].0.with(LONG, Progress::rest).unwrap();
    let first = job.ranks[0].join(job.names[0], TERMS);
    job.message(2, FIRST_TAG);
    let (got, told) = receive(&*first);
    poll_all(&job.ranks[..1]);
    assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), 1));
    assert!(!job.ranks[0].0.poll().sends, "something is left");
}

/// Four letters, each of which has those before it remembered.
#[test]
fn message_is_remembered_once_however_many_letters_come_with_its_tag() {
    let (job, groups) = job_of_two();
    for number in 0..2 {
        job.announce(0, number, FIRST_TAG);
        job.announce(1, number, FIRST_TAG);
    }
    (1..5).for_each(|word| job.message(word, FIRST_TAG));
    // The last one first, beside which the others are received.
    let operations = [(1, 2), (1, 4), (0, 1), (0, 3)].map(|(group, sent)| (receive(&*groups[group]), sent));
    poll_all(&job.ranks[..1]);
    for ((got, told), sent) in operations {
        assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), sent));
    }
}

/// A message that is on its way when MPI is left alone, and does not come in time: MPI may write its memory
/// later, and what comes behind it is not believed.
#[test]
fn message_that_does_not_come_when_mpi_is_left_alone_keeps_its_memory_and_is_taken_for_no_other() {
    let before = dropped_under_way();
    let (job, groups) = job_in(late_network(2));
    let_go_of_two(&job, groups);
    let begin = Instant::now();
    job.ranks[0].0.with(LONG, Progress::rest).unwrap();
    assert!((GRACE..LONG).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    job.message(1, FIRST_TAG);
    assert_eq!(dropped_under_way(), before, "memory was let go of that MPI may write");
    let first = job.ranks[0].join(job.names[0], TERMS);
    let (got, told) = receive(&*first);
    poll_all(&job.ranks[..1]);
    assert_eq!((told.try_recv(), word(&got)), (Ok(Err(Code::Aborted)), 0));
}

#[test]
fn letter_of_a_process_that_is_not_the_rank_that_it_names_fails_the_operation() {
    let (job, groups) = job_of_two();
    let (got, told) = receive(&*groups[0]);
    let messages = Messages::of([WORDS as u64 * 4]);
    let header = job.header((0, 0, WORDS), Content::Messages { tag: FIRST_TAG, messages });
    job.letter(Header { source: 0, ..header }, &[]);
    poll_all(&job.ranks[..1]);
    assert_eq!((told.try_recv(), word(&got)), (Ok(Err(Code::DataLoss)), 0));
}

#[test]
fn letter_that_carries_more_or_less_than_is_expected_fails_the_operation() {
    for carried in [[6; 3].as_slice(), &[6; 5], &[6; 8]] {
        let (job, groups) = job_of_two();
        let got = memory(&[0; 2]);
        let told = transfer(&*groups[0], Kind::Recv { from: 1 }, got.slice(0, 4).unwrap());
        job.letter(job.header((0, 0, 1), Content::Part { length: carried.len() as u64 }), carried);
        poll_all(&job.ranks[..1]);
        assert_eq!((told.try_recv(), word(&got)), (Ok(Err(Code::DataLoss)), 0));
    }
}

/// The last message of each group's operation ends the wait for it.
#[test]
fn failures_of_two_groups_are_told_each_when_its_own_message_has_come() {
    let (job, groups) = job_in(late_network(2));
    let begun = [0, 1].map(|group| receive(&*groups[group]));
    job.announce(0, 0, FIRST_TAG);
    job.announce(1, 0, FIRST_TAG + 1);
    let begin = Instant::now();
    for group in &groups {
        group.end(&Failure::new(Code::DataLoss, "gone"));
    }
    job.ranks[0].poll();
    for (group, (_, told)) in begun.iter().enumerate() {
        assert!(told.try_recv().is_err());
        job.message(1, FIRST_TAG + i32::try_from(group).unwrap());
        job.ranks[0].poll();
        assert!(told.try_recv() == Ok(Err(Code::DataLoss)) || begin.elapsed() >= GRACE);
    }
}

/// Its receive has begun beside that of a later one. The sender has failed, and says why in a notice, which
/// may come later.
#[test]
fn message_that_was_received_before_it_was_asked_for_and_came_empty_is_not_taken_for_what_was_announced() {
    let (job, groups) = job_of_two();
    job.announce(0, 0, FIRST_TAG);
    job.announce(1, 0, FIRST_TAG);
    let later = receive(&*groups[1]);
    job.ranks[0].poll();
    let (_, told) = receive(&*groups[0]);
    job.ranks[0].poll();
    job.send(HostRange::allocate(0, 1).unwrap(), FIRST_TAG);
    job.message(2, FIRST_TAG);
    poll_all(&job.ranks[..1]);
    assert_eq!((later.1.try_recv(), word(&later.0)), (Ok(Ok(())), 2));
    assert!(told.try_recv().is_err(), "told before it is known why");
}

/// The letter says how long the longest of its messages is.
#[test]
fn message_that_was_received_before_it_was_asked_for_may_be_shorter_than_others_of_its_letter() {
    let (job, groups) = job_of_two();
    let words = usize::try_from(SEGMENT / 4).unwrap() + WORDS;
    let messages = Messages::of([SEGMENT, WORDS as u64 * 4]);
    job.letter(job.header((0, 0, words), Content::Messages { tag: FIRST_TAG, messages }), &[]);
    job.announce(1, 0, FIRST_TAG + 1);
    let later = receive(&*groups[1]);
    job.ranks[0].poll();
    let got = memory(&vec![0; words]);
    let told = transfer(&*groups[0], Kind::Recv { from: 1 }, got.clone());
    job.ranks[0].poll();
    job.send(memory(&vec![5; words - WORDS]), FIRST_TAG);
    job.message(6, FIRST_TAG + 1);
    job.message(7, FIRST_TAG + 1);
    poll_all(&job.ranks[..1]);
    assert_eq!((later.1.try_recv(), word(&later.0)), (Ok(Ok(())), 7));
    let rest = got.slice(SEGMENT, 4).unwrap();
    assert_eq!((told.try_recv(), word(&got), word(&rest)), (Ok(Ok(())), 5, 6));
}
