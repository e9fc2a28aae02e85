// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Operations that fail while messages are on their way: who is told when, and what becomes of the memory.

use super::*;
use crate::ending::GRACE;
use crate::library::loopback::{
    Call, behind, expected_by, interrupted_late_network, late_network, network, unexpected_by,
};
use crate::wire::{FIRST_TAG, LETTER, TAGS};
use std::sync::mpsc::TryRecvError;

/// A limit that nothing here comes near.
const LONG: Duration = Duration::from_secs(20);

/// Words of a transfer, whose message comes behind a letter.
const WORDS: u32 = 6_000;

/// Two ranks, of which the first receives what the second one has announced and not sent.
struct Announced {
    ranks: [Rank; 2],
    groups: [Box<dyn Communicator>; 2],
    /// Where the message will be written, until it is let go of.
    address: *const u32,
    /// Says that the memory goes, and whether the engine is free then.
    goes: Receiver<bool>,
    told: Receiver<Outcome>,
}

fn tag_of(transfer: u64) -> i32 {
    FIRST_TAG + i32::try_from(transfer).unwrap()
}

fn receive() -> Operation {
    Operation { kind: Kind::Recv { from: 1 }, element: Element::U32, count: WORDS.into() }
}

impl Announced {
    fn by(network: impl Iterator<Item = Library>) -> Self {
        Self::into_memory(network, |engine| memory_that_asks(engine, WORDS as usize))
    }

    fn into_memory(
        network: impl Iterator<Item = Library>,
        memory: impl FnOnce(&Arc<Engine>) -> (HostRange, Receiver<bool>),
    ) -> Self {
        let ranks: [Rank; 2] = job_of(network).try_into().ok().unwrap();
        let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"late", TERMS));
        let (recv, goes) = memory(&ranks[0].0);
        let address = recv.address().cast_const().cast();
        let (tell, told) = channel();
        let done = Box::new(move |end| tell.send(outcome(end)).unwrap());
        let buffers = Buffers { send: None, recv: Some(recv) };
        assert!(groups[0].enter(receive()).unwrap().start(buffers, done).is_none());
        let this = Self { ranks, groups, address, goes, told };
        this.announce(0, Messages::of([u64::from(WORDS) * 4]));
        assert!(this.told.try_recv().is_err());
        this
    }

    /// Sends the letter of messages.
    fn announce(&self, transfer: u64, messages: Messages) {
        let content = Content::Messages { tag: tag_of(transfer), messages };
        let header = header_of((number_of(&self.ranks[0]), transfer), WORDS.into(), content);
        self.message(letter(header, &[]), LETTER);
        self.ranks[0].poll();
    }

    fn message(&self, bytes: HostRange, tag: i32) {
        let sent = self.ranks[1].0.with(LONG, |progress| progress.library().send(bytes, 0, tag).is_ok());
        assert_eq!(sent, Some(true));
    }

    fn deliver(&self, transfer: u64) {
        self.message(memory(&vec![5; WORDS as usize]), tag_of(transfer));
    }

    fn fail(&self) {
        self.groups[0].end(&Failure::new(Code::DataLoss, "gone"));
        self.ranks[0].poll();
    }
}

#[test]
fn failure_is_told_when_a_message_that_is_on_its_way_has_come_and_not_before() {
    let late = Announced::by(late_network(2));
    late.fail();
    assert!(late.told.try_recv().is_err(), "told while a message may be written");
    assert!(late.goes.try_recv().is_err());
    late.deliver(0);
    late.ranks[0].poll();
    assert_eq!(late.told.try_recv(), Ok(Err(Code::DataLoss)));
    assert_eq!(late.goes.try_recv(), Ok(true));
}

/// Pieces of one operation may be started one by one, each with someone of its own to tell.
#[test]
fn failure_is_told_to_all_of_a_group_when_none_of_its_messages_is_on_its_way() {
    let late = Announced::by(late_network(2));
    let got = || memory(&[0; WORDS as usize]);
    let second = transfer(&*late.groups[0], Kind::Recv { from: 1 }, got());
    late.announce(1, Messages::of([u64::from(WORDS) * 4]));
    let waits = transfer(&*late.groups[0], Kind::Recv { from: 1 }, got());
    let entered = late.groups[0].enter(receive()).unwrap();
    late.fail();
    let (tell, starts) = channel();
    let buffers = Buffers { send: None, recv: Some(got()) };
    assert!(entered.start(buffers, Box::new(move |end| tell.send(outcome(end)).unwrap())).is_none());
    let all = [&late.told, &second, &waits, &starts];
    for message in [1, 0] {
        late.ranks[0].poll();
        for told in all {
            assert!(told.try_recv().is_err(), "told while a message may be written");
        }
        late.deliver(message);
    }
    late.ranks[0].poll();
    for told in all {
        assert_eq!(told.try_recv(), Ok(Err(Code::DataLoss)));
    }
}

#[test]
fn receive_that_has_not_met_its_message_is_cancelled_and_the_failure_told_at_once() {
    let announced = Announced::by(network(2));
    announced.fail();
    assert_eq!(announced.told.try_recv(), Ok(Err(Code::DataLoss)));
    assert_eq!(announced.goes.try_recv(), Ok(true));
}

#[test]
fn message_that_does_not_come_holds_a_failure_up_for_a_bounded_time_and_its_memory_until_it_comes() {
    let late = Announced::by(late_network(2));
    let begin = Instant::now();
    late.fail();
    assert_eq!(told_in_time(&late.ranks[0], &late.told), Err(Code::DataLoss));
    assert!(begin.elapsed() >= GRACE);
    let look = late.ranks[0].0.poll();
    assert!(!look.waits && look.sends, "no rank waits for it, and it is looked for now and then");
    assert!(late.goes.try_recv().is_err(), "memory was let go of that MPI may write");
    late.deliver(0);
    // SAFETY: it was not let go of, and the thread that writes it is this one.
    assert_eq!(unsafe { late.address.read_volatile() }, 5);
    assert!(late.ranks[0].0.poll().moved);
    assert_eq!(late.goes.try_recv(), Ok(true));
    assert!(!late.ranks[0].0.poll().sends);
}

/// Its sender has failed, and says why in a notice, which may come later.
#[test]
fn message_that_comes_empty_is_not_taken_for_what_was_announced() {
    let announced = Announced::by(network(2));
    announced.message(HostRange::allocate(0, 1).unwrap(), tag_of(0));
    poll_all(&announced.ranks);
    assert!(announced.told.try_recv().is_err(), "told before it is known why");
    gone(&*announced.groups[1]);
    poll_all(&announced.ranks);
    assert_eq!(announced.told.try_recv(), Ok(Err(Code::DataLoss)));
    assert_eq!(announced.goes.try_recv(), Ok(true));
}

/// A rank of another version divides the operation in another way.
#[test]
fn letter_that_announces_other_messages_than_are_expected_fails_the_group_before_any_is_received() {
    let words = u64::from(WORDS) * 4;
    for lengths in [vec![words, words], vec![words - 4], vec![words + 4], vec![words / 2; 2]] {
        let announced = Announced::by(network(2));
        announced.deliver(0);
        announced.ranks[0].poll();
        assert_eq!(announced.told.try_recv(), Ok(Ok(())));
        let got = memory(&[0; WORDS as usize]);
        let told = transfer(&*announced.groups[0], Kind::Recv { from: 1 }, got.clone());
        announced.announce(1, Messages::of(lengths.iter().copied()));
        assert_eq!(told.try_recv(), Ok(Err(Code::DataLoss)), "{lengths:?}");
        for (at, length) in (1..).zip(lengths) {
            let words = memory(&vec![7; usize::try_from(length / 4).unwrap()]);
            announced.message(words, tag_of(at));
        }
        poll_all(&announced.ranks);
        assert_eq!((word(&got), left_over(&announced.ranks[0])), (0, 0));
    }
}

/// The program may end it then, and nothing of it is asked about any more.
#[test]
fn memory_that_mpi_may_write_stays_where_it_is_when_mpi_is_left_alone() {
    let late = Announced::by(late_network(2));
    late.fail();
    std::thread::sleep(GRACE);
    late.ranks[0].poll();
    assert_eq!(late.told.try_recv(), Ok(Err(Code::DataLoss)));
    assert!(late.ranks[0].0.poll().sends);
    drop(late.groups);
    late.ranks[0].0.with(LONG, Progress::rest).unwrap();
    assert!(!late.ranks[0].0.poll().sends);
    assert_eq!(late.goes.try_recv(), Err(TryRecvError::Empty));
}

#[test]
fn memory_of_a_message_that_comes_while_mpi_is_being_left_alone_is_let_go_of_without_the_lock() {
    let late = Announced::by(interrupted_late_network(2));
    late.fail();
    assert_eq!(told_in_time(&late.ranks[0], &late.told), Err(Code::DataLoss));
    drop(late.groups);
    let sender = late.ranks[1].0.clone();
    behind(Call::Test, tag_of(0), || {
        // By another thread, as this one looks.
        let sends = std::thread::spawn(move || {
            let words = memory(&vec![5; WORDS as usize]);
            sender.with(LONG, |progress| progress.library().send(words, 0, tag_of(0)).is_ok())
        });
        assert_eq!(sends.join().unwrap(), Some(true));
    });
    late.ranks[0].0.with(LONG, |progress| progress.leave_alone(LONG)).unwrap();
    late.ranks[0].poll();
    assert_eq!(late.goes.try_recv(), Ok(true));
}

/// As the process ends, others wait for it.
#[test]
fn receives_of_operations_that_wait_are_cancelled_when_mpi_ends() {
    let announced = Announced::by(network(2));
    let expected = || announced.ranks[0].0.with(LONG, |progress| expected_by(progress.library())).unwrap();
    assert!(expected() > 0);
    announced.ranks[0].0.quit();
    assert_eq!(expected(), 0);
}

#[test]
fn receive_of_another_group_goes_on_when_a_group_fails() {
    let late = Announced::by(network(2));
    let other = late.ranks[0].join(b"another", TERMS);
    gone(&*other);
    late.ranks[0].poll();
    assert!(late.told.try_recv().is_err(), "ended without its message");
    late.deliver(0);
    late.ranks[0].poll();
    assert_eq!(late.told.try_recv(), Ok(Ok(())));
}

#[test]
fn letters_that_came_early_to_a_group_that_fails_are_let_go_of() {
    let (ranks, groups) = pair();
    let _ahead = sum(&*groups[1], 5);
    ranks[0].poll();
    let early = || ranks[0].0.with(LONG, |progress| progress.early());
    assert_eq!(early(), Some(1));
    groups[0].end(&Failure::new(Code::DataLoss, "gone"));
    assert_eq!(early(), Some(0));
}

/// Messages that have come to a rank and that it will not ask for.
fn left_over(rank: &Rank) -> usize {
    rank.0.with(LONG, |progress| unexpected_by(progress.library())).unwrap()
}

fn gone(group: &dyn Communicator) {
    group.end(&Failure::new(Code::DataLoss, "gone"));
}

/// A tag is used again, and MPI would give the first of two messages with the same tag to the first who asks for one.
#[test]
fn message_of_a_group_that_has_failed_is_not_taken_for_a_later_one_with_the_same_tag() {
    let (ranks, groups) = pair();
    let words = memory(&[1; 3_000]);
    gone(&*groups[0]);
    let _lost = transfer(&*groups[1], Kind::Send { to: 0 }, words.clone());
    poll_all(&ranks);
    let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"pair", TERMS));
    ranks[1].0.with(LONG, |progress| progress.skip_tags(0, TAGS - 1)).unwrap();
    let (sent, got) = (memory(&[2; 3_000]), memory(&[0; 3_000]));
    let sends = transfer(&*groups[1], Kind::Send { to: 0 }, sent.clone());
    let told = [sends, transfer(&*groups[0], Kind::Recv { from: 1 }, got.clone())];
    poll_all(&ranks);
    assert_eq!(told.map(|told| told.try_recv()), [Ok(Ok(())); 2]);
    assert_eq!(word(&got), 2);
}

#[test]
fn message_behind_a_letter_that_is_not_taken_is_received_all_the_same() {
    let words = || memory(&[1; 3_000]);
    // The letter does not fit.
    let (ranks, groups) = pair();
    let _other = transfer(&*groups[0], Kind::Recv { from: 1 }, memory(&[0; 2_999]));
    let _lost = transfer(&*groups[1], Kind::Send { to: 0 }, words());
    poll_all(&ranks);
    assert_eq!(left_over(&ranks[0]), 0, "what does not fit");
    // It came early, to a group that fails then, and to one that is joined when it has.
    let (ranks, groups) = pair();
    let _lost = transfer(&*groups[1], Kind::Send { to: 0 }, words());
    ranks[0].poll();
    gone(&*groups[0]);
    poll_all(&ranks);
    assert_eq!(left_over(&ranks[0]), 0, "what came early");
    let ranks: [Rank; 2] = job(2).try_into().ok().unwrap();
    let [there, here] = [1, 0].map(|rank: usize| ranks[rank].join(b"pair", TERMS));
    drop(here);
    let _lost = transfer(&*there, Kind::Send { to: 0 }, words());
    ranks[0].poll();
    gone(&*there);
    poll_all(&ranks);
    assert_eq!(left_over(&ranks[0]), 0, "what came to a group that was not joined yet");
    // Its receive was cancelled, and the message comes then.
    let announced = Announced::by(network(2));
    announced.fail();
    announced.deliver(0);
    announced.ranks[0].poll();
    assert_eq!(left_over(&announced.ranks[0]), 0, "what came behind its end");
}

/// An owner of memory that panics when it is let go of.
struct Panics(Vec<u32>);

impl Drop for Panics {
    fn drop(&mut self) {
        panic!("an owner of memory");
    }
}

fn memory_that_panics(words: usize) -> HostRange {
    let mut owner = Arc::new(Panics(vec![1; words]));
    let start = Arc::get_mut(&mut owner).unwrap().0.as_mut_ptr();
    // SAFETY: words that live as long as their owner, which does not look at them.
    unsafe { HostRange::from_raw(start.cast(), words * 4, Some(owner)) }
}

#[test]
fn owners_that_panic_on_release_leave_all_ranks_notified() {
    for fails in [false, true] {
        let (ranks, groups) = pair();
        let (tell, told) = channel();
        let done = Box::new(move |end| tell.send(outcome(end)).unwrap());
        let buffers = Buffers { send: Some(memory_that_panics(1)), recv: Some(memory_that_panics(1)) };
        sum_with(&*groups[0], buffers, done);
        let behind = sum(&*groups[0], 3).1;
        let others = [1, 4].map(|word| (!fails).then(|| sum(&*groups[1], word).1));
        if fails {
            // Its steps have its memory then.
            gone(&*groups[1]);
        }
        poll_all(&ranks);
        let expected = if fails { Err(Code::DataLoss) } else { Ok(()) };
        for told in [told, behind].into_iter().chain(others.into_iter().flatten()) {
            assert_eq!(told.try_recv(), Ok(expected));
        }
    }
}

/// No rank waits for it any more.
#[test]
fn owner_of_memory_that_panics_when_a_late_message_has_come_leaves_the_engine_at_work() {
    let panics = |_: &Arc<Engine>| (memory_that_panics(WORDS as usize), channel().1);
    let late = Announced::into_memory(late_network(2), panics);
    late.fail();
    assert_eq!(told_in_time(&late.ranks[0], &late.told), Err(Code::DataLoss));
    late.deliver(0);
    late.ranks[0].poll();
    assert!(!late.ranks[0].0.poll().sends);
}
