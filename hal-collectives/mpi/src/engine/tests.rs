// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Who looks, who is told and what is kept, on jobs of one process.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]
#![allow(unsafe_code, reason = "memory whose end is seen")]

use super::*;
use crate::announced::Messages;
use crate::group::Generation;
use crate::loopback::{Rank, job, job_of};
use crate::wire::{Asked, Content, HEADER, Header, Meeting, VERSION};
use hal_backend::HostRange;
use hal_collectives::{Buffers, Communicator, Done, Element, Kind, Operation, Participants, Reduction};
use std::sync::mpsc::{Receiver, channel};

mod announced;
mod asleep;
mod behind;
mod calls;
mod early;
mod endings;
mod every;
mod generations;
mod kinds;
mod leavings;
mod meanwhile;
mod overtaken;
mod refused;
mod splits;
mod tags;
mod versions;
mod worlds;

const TERMS: Duration = Duration::from_secs(30);

fn memory(words: &[u32]) -> HostRange {
    let range = HostRange::allocate(words.len() as u64 * 4, 64).unwrap();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    assert!(range.write(0, &bytes));
    range
}

/// How an operation went.
type Outcome = std::result::Result<(), Code>;

fn outcome(of: Result) -> Outcome {
    of.map_err(|failure| failure.code())
}

fn word(range: &HostRange) -> u32 {
    let mut bytes = [0; 4];
    assert!(range.read(0, &mut bytes));
    u32::from_le_bytes(bytes)
}

fn sum_with(group: &dyn Communicator, buffers: Buffers, done: Done) {
    let count = buffers.send.as_ref().unwrap().length() / 4;
    let operation = Operation { kind: Kind::AllReduce(Reduction::Sum), element: Element::U32, count };
    assert!(group.enter(operation).unwrap().start(buffers, done).is_none());
}

/// A sum of one word of each rank, and where it is told.
fn sum(group: &dyn Communicator, word: u32) -> (HostRange, Receiver<Outcome>) {
    let (tell, told) = channel();
    let recv = memory(&[0]);
    let buffers = Buffers { send: Some(memory(&[word])), recv: Some(recv.clone()) };
    sum_with(
        group,
        buffers,
        Box::new(move |end| {
            let _ = tell.send(outcome(end));
        }),
    );
    (recv, told)
}

/// A rank's end of a transfer of all words of some memory, and where it is told.
fn transfer(group: &dyn Communicator, kind: Kind, words: HostRange) -> Receiver<Outcome> {
    let (tell, told) = channel();
    let done = Box::new(move |end| {
        let _ = tell.send(outcome(end));
    });
    let operation = Operation { kind, element: Element::U32, count: words.length() / 4 };
    let (send, recv) =
        if matches!(kind, Kind::Send { .. }) { (Some(words), None) } else { (None, Some(words)) };
    assert!(group.enter(operation).unwrap().start(Buffers { send, recv }, done).is_none());
    told
}

/// The number of a group that a rank is in, where that is its only one.
fn number_of(rank: &Rank) -> u64 {
    *rank.0.groups.lock().keys().next().unwrap()
}

/// The header of a letter of rank 1 to rank 0, in a transfer of so many words in a group.
fn header_of((number, transfer): (u64, u64), words: u64, content: Content) -> Header {
    let (group, line) = (Generation { number, generation: 0 }, Participants::Pair { from: 1, to: 0 });
    let operation = Operation { kind: Kind::Send { to: 0 }, element: Element::U32, count: words };
    Header {
        meeting: Meeting { group, line, number: transfer, piece: 0 },
        from: 1,
        source: 1,
        asked: Some(Asked { operation, pieces: 1 }),
        content,
    }
}

/// A letter, with what it carries.
fn letter(header: Header, carried: &[u8]) -> HostRange {
    let letter = HostRange::allocate((HEADER + carried.len()) as u64, 64).unwrap();
    assert!(letter.write(0, &header.to_bytes(VERSION)) && letter.write(HEADER as u64, carried));
    letter
}

/// Has all ranks look until nothing moves.
fn poll_all(ranks: &[Rank]) {
    for _ in 0..10 {
        ranks.iter().for_each(Rank::poll);
    }
}

/// Has a rank look until it is told.
fn told_in_time(rank: &Rank, told: &Receiver<Outcome>) -> Outcome {
    let begin = Instant::now();
    let looks = std::iter::from_fn(|| {
        assert!(begin.elapsed() < TERMS);
        rank.poll();
        Some(told.try_recv())
    });
    looks.flatten().next().unwrap()
}

fn pair() -> ([Rank; 2], [Box<dyn Communicator>; 2]) {
    let ranks: [Rank; 2] = job(2).try_into().ok().unwrap();
    let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"pair", TERMS));
    (ranks, groups)
}

#[test]
fn letter_that_came_before_mpi_was_left_alone_is_read_when_the_group_is_joined_again() {
    let (ranks, [first, second]) = pair();
    let _ahead = sum(&*second, 5);
    drop(first);
    // The letter is there, and unopened.
    ranks[0].0.with(Duration::ZERO, Progress::rest).unwrap();
    let first = ranks[0].join(b"pair", TERMS);
    let (got, told) = sum(&*first, 2);
    poll_all(&ranks);
    assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), 7));
}

#[test]
fn operation_that_a_letter_ends_is_told_before_the_next_letter_is_opened() {
    let (ranks, groups) = pair();
    // The letters of the second rank are there, unopened, when the first rank begins.
    let _others = [1, 2].map(|word| sum(&*groups[1], word));
    let looking = ranks[0].0.progress.lock();
    let begun = [3, 4].map(|word| sum(&*groups[0], word));
    drop(looking);
    for (at, (got, told)) in begun.iter().enumerate() {
        let at = u32::try_from(at).unwrap();
        assert!(told.try_recv().is_err(), "{at}");
        ranks[0].poll();
        assert_eq!((told.try_recv(), word(got)), (Ok(Ok(())), 4 + 2 * at));
    }
}

/// Which may be long, and the thread is the program's.
#[test]
fn thread_that_starts_an_operation_does_not_take_in_what_has_come_for_it() {
    const WORDS: usize = 50_000;
    let (ranks, groups) = pair();
    let sent = transfer(&*groups[1], Kind::Send { to: 0 }, memory(&[5; WORDS]));
    poll_all(&ranks);
    let got = memory(&[0; WORDS]);
    let told = transfer(&*groups[0], Kind::Recv { from: 1 }, got.clone());
    assert_eq!(word(&got), 0, "taken in by the thread that starts it");
    poll_all(&ranks);
    assert_eq!((told.try_recv(), sent.try_recv(), word(&got)), (Ok(Ok(())), Ok(Ok(())), 5));
}

#[test]
fn thread_that_starts_an_operation_takes_in_letters_that_have_come_for_it() {
    let (ranks, groups) = pair();
    let _sent = transfer(&*groups[1], Kind::Send { to: 0 }, memory(&[5]));
    poll_all(&ranks);
    let got = memory(&[0]);
    let told = transfer(&*groups[0], Kind::Recv { from: 1 }, got.clone());
    assert_eq!((word(&got), told.try_recv().is_err()), (5, true));
    ranks[0].poll();
    assert_eq!(told.try_recv(), Ok(Ok(())));
}

#[test]
fn callback_that_panics_leaves_others_told_and_the_engine_at_work() {
    let (ranks, groups) = pair();
    let buffers = || Buffers { send: Some(memory(&[1])), recv: Some(memory(&[0])) };
    sum_with(&*groups[0], buffers(), Box::new(|_| panic!("a callback of the program's")));
    let behind = sum(&*groups[0], 3).1;
    let [other, other_behind] = [1, 4].map(|word| sum(&*groups[1], word).1);
    poll_all(&ranks);
    for told in [behind, other, other_behind] {
        assert_eq!(told.try_recv(), Ok(Ok(())));
    }
}

/// Memory that says, when it is let go of, whether the engine is free then.
fn memory_that_asks(engine: &Arc<Engine>, words: usize) -> (HostRange, Receiver<bool>) {
    struct Owner(Vec<u32>, Arc<Engine>, std::sync::mpsc::Sender<bool>);
    impl Drop for Owner {
        fn drop(&mut self) {
            let _ = self.2.send(self.1.progress.try_lock().is_some());
        }
    }
    let (tell, told) = channel();
    let mut owner = Arc::new(Owner(vec![1; words], engine.clone(), tell));
    let start = Arc::get_mut(&mut owner).unwrap().0.as_mut_ptr();
    // SAFETY: words that live as long as their owner, which does not look at them.
    (unsafe { HostRange::from_raw(start.cast(), words * 4, Some(owner)) }, told)
}

#[test]
fn memory_is_let_go_of_without_the_lock_and_before_its_rank_is_told() {
    let (ranks, groups) = pair();
    let (send, is_free) = memory_that_asks(&ranks[0].0, 1);
    let (tell, told) = channel();
    let buffers = Buffers { send: Some(send), recv: Some(memory(&[0])) };
    let done = Box::new(move |end: Result| {
        tell.send((outcome(end), is_free.try_recv())).unwrap();
    });
    sum_with(&*groups[0], buffers, done);
    let _other = sum(&*groups[1], 1);
    poll_all(&ranks);
    assert_eq!(told.try_recv(), Ok((Ok(()), Ok(true))));
}

#[test]
fn memory_of_an_operation_that_fails_is_let_go_of_without_the_lock() {
    let (ranks, groups) = pair();
    let (send, is_free) = memory_that_asks(&ranks[0].0, 1);
    let (tell, told) = channel();
    let buffers = Buffers { send: Some(send), recv: Some(memory(&[0])) };
    sum_with(
        &*groups[0],
        buffers,
        Box::new(move |end| {
            let _ = tell.send(outcome(end));
        }),
    );
    groups[1].end(&Failure::new(Code::DataLoss, "gone"));
    poll_all(&ranks);
    assert!(told.try_recv().unwrap().is_err());
    assert_eq!(is_free.try_recv(), Ok(true));
}

/// As on the thread of an engine, which here sleeps for ever unless it is woken.
fn served(ranks: &[Rank]) {
    for rank in ranks {
        let engine = rank.0.clone();
        std::thread::spawn(move || engine.serve(Duration::from_secs(3600)));
    }
}

#[test]
fn watch_ends_at_once_where_nothing_is_under_way_and_looks_where_something_is() {
    let (ranks, groups) = pair();
    let begin = Instant::now();
    assert!(!poll_until_by(ranks[0].0.watchers, &|| None, None, || false));
    assert!(!poll_until_by(ranks[0].0.watchers, &|| Some(&ranks[0].0), None, || false));
    let (got, told) = sum(&*groups[0], 2);
    let _other = sum(&*groups[1], 3);
    assert!(poll_until_by(ranks[0].0.watchers, &|| Some(&ranks[0].0), None, || told.try_recv().is_ok()));
    assert_eq!(word(&got), 5);
    // And where something is, and does not move.
    let _alone = sum(&*groups[0], 2);
    assert!(!poll_until_by(ranks[0].0.watchers, &|| Some(&ranks[0].0), None, || false));
    assert!(begin.elapsed() < Duration::from_secs(10));
}

#[test]
fn what_a_watch_leaves_behind_is_done_by_the_thread_of_the_engine() {
    let (ranks, groups) = pair();
    served(&ranks[..1]);
    // It sleeps.
    std::thread::sleep(Duration::from_millis(30));
    for turn in 0..50_u32 {
        let find = || Some(&ranks[0].0);
        let mut begun = None;
        // Begun while this thread watches, so that no other thread is woken; and the other rank does not come
        // for as long.
        poll_until_by(ranks[0].0.watchers, &find, None, || {
            begun.get_or_insert_with(|| sum(&*groups[0], turn));
            false
        });
        let (got, told) = begun.unwrap();
        let _other = sum(&*groups[1], 1);
        ranks[1].poll();
        assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(Ok(())), "turn {turn}");
        assert_eq!(word(&got), turn + 1);
        poll_all(&ranks[1..]);
    }
}

#[test]
fn watches_that_begin_and_end_at_any_time_leave_nothing_undone() {
    let (ranks, groups) = pair();
    served(&ranks);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for rank in &ranks {
            for _ in 0..2 {
                let over = &over;
                scope.spawn(move || {
                    let find = || Some(&rank.0);
                    let mut turn = 0_i32;
                    while !over.load(Ordering::Relaxed) {
                        turn += 1;
                        let mut looks = turn % 7;
                        poll_until_by(rank.0.watchers, &find, None, || {
                            looks -= 1;
                            looks < 0
                        });
                        std::thread::sleep(Duration::from_micros(u64::from(turn.unsigned_abs() % 5) * 60));
                    }
                });
            }
        }
        for turn in 0..300_u32 {
            let (got, told) = sum(&*groups[0], turn);
            let other = sum(&*groups[1], 1).1;
            let ends = [told, other].map(|told| told.recv_timeout(Duration::from_secs(20)));
            if ends != [Ok(Ok(())), Ok(Ok(()))] || word(&got) != turn + 1 {
                over.store(true, Ordering::Relaxed);
                panic!("turn {turn}: {ends:?}");
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}
