// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A failure ends everything for all ranks, soon, with one message that names the rank and the cause.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed expectation ends the test")]
#![allow(unsafe_code, reason = "the memory belongs to the test")]

mod common;

use common::{LONG, Started, begin, group, group_in_pieces, memory, start};
use hal_backend::HostRange;
use hal_collectives::local::{Request, join};
use hal_collectives::{Buffers, Communicator, Element, Kind, Operation, PIECE, Reduction};
use hal_semaphore::{Code, Failure};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SUM: Kind = Kind::AllReduce(Reduction::Sum);

fn operation(kind: Kind, count: u64) -> Operation {
    Operation { kind, element: Element::F32, count }
}

fn buffers(bytes: usize) -> Buffers {
    Buffers { send: Some(memory(&vec![0; bytes])), recv: Some(memory(&vec![0; bytes])) }
}

/// The first rank has started one operation; the second enters another at the same place.
fn mismatch(first: Operation, second: Operation) -> String {
    let members = group(2, LONG);
    let waits = start(&members[0], first, buffers(1 << 12)).unwrap();
    assert!(!waits.has_ended());
    let refused = members[1].enter(second).err().unwrap();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let failure = waits.outcome().unwrap_err();
    assert!(failure.same_root(&refused), "one cause for all");
    let later = members[0].enter(first).err().unwrap();
    assert!(later.same_root(&refused), "and for what comes later");
    refused.message().to_owned()
}

#[test]
fn operation_that_does_not_fit_is_refused_and_fails_those_that_wait() {
    let sum = operation(SUM, 10);
    for other in [
        operation(SUM, 11),
        operation(Kind::AllReduce(Reduction::Product), 10),
        operation(Kind::AllGather, 10),
        Operation { element: Element::I32, ..sum },
    ] {
        let message = mismatch(sum, other);
        assert!(message.contains(&format!("rank 1 asks for {other}, rank 0 for {sum}")), "{message}");
        assert!(message.contains("operation 0 of the group \"test\""), "{message}");
    }
    mismatch(operation(Kind::Broadcast { root: 0 }, 4), operation(Kind::Broadcast { root: 1 }, 4));
    let message = mismatch(operation(Kind::Send { to: 1 }, 4), operation(Kind::Recv { from: 0 }, 5));
    assert!(message.contains("transfer 0 from rank 0 to rank 1"), "{message}");
}

#[test]
fn ranks_that_are_not_there_are_refused_and_nothing_else_happens() {
    let members = group(2, LONG);
    for kind in [
        Kind::Broadcast { root: 2 },
        Kind::Reduce { reduction: Reduction::Sum, root: 7 },
        Kind::Send { to: 2 },
        Kind::Recv { from: 2 },
        Kind::SendRecv { to: Some(1), from: Some(2) },
    ] {
        let refused = members[0].enter(operation(kind, 1)).err().unwrap();
        assert_eq!(refused.code(), Code::OutOfRange);
        assert!(refused.message().contains("the group has 2: 0 to 1"), "{refused}");
    }
    let refused = members[0].enter(operation(Kind::AllToAll, 3)).err().unwrap();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(members[0].enter(operation(SUM, u64::MAX / 2)).is_err());
    // The group is as before.
    let started: Vec<Started> =
        members.iter().map(|rank| start(rank, operation(SUM, 1), buffers(4)).unwrap()).collect();
    started.iter().for_each(|started| started.outcome().unwrap());
}

#[test]
fn memory_that_is_too_short_or_overlaps_fails_all_ranks() {
    let short = |first: Buffers, kind: Kind| {
        let members = group(2, LONG);
        let waits = start(&members[1], operation(kind, 4), buffers(64)).unwrap();
        let fails = start(&members[0], operation(kind, 4), first).unwrap();
        let (own, other) = (fails.outcome().unwrap_err(), waits.outcome().unwrap_err());
        assert_eq!(own.code(), other.code());
        assert!(other.message().contains("rank 0"), "{other}");
        assert!(other.message().contains(own.message()), "{other}");
        own
    };
    assert_eq!(short(buffers(12), SUM).code(), Code::OutOfRange);
    assert_eq!(short(Buffers::default(), SUM).code(), Code::OutOfRange);
    let whole = memory(&[0; 64]);
    let overlap = |from: u64, to: u64| Buffers { send: whole.slice(from, 16), recv: whole.slice(to, 32) };
    assert_eq!(short(overlap(0, 4), SUM).code(), Code::InvalidArgument);
    assert_eq!(short(overlap(4, 0), Kind::AllGather).code(), Code::InvalidArgument);
    assert_eq!(short(overlap(0, 0), Kind::AllToAll).code(), Code::InvalidArgument);
}

#[test]
fn rank_that_gives_up_is_not_waited_for() {
    for dropped in [false, true] {
        let members = group(3, LONG);
        let waits = start(&members[0], operation(SUM, 4), buffers(16)).unwrap();
        let entry = members[2].enter(operation(SUM, 4)).unwrap();
        if dropped {
            drop(entry);
        } else {
            entry.give_up(&Failure::new(Code::DataLoss, "bank 3 is on fire"));
        }
        let failure = waits.outcome().unwrap_err();
        let says = if dropped { "it was cancelled" } else { "bank 3 is on fire" };
        assert!(failure.message().contains(says), "{failure}");
        assert!(failure.message().contains("rank 2 of the group \"test\""), "{failure}");
        assert!(failure.message().contains("all-reduce (sum) of 4 f32"), "{failure}");
        assert_eq!(failure.code(), if dropped { Code::Cancelled } else { Code::DataLoss });
    }
}

/// The notifying thread goes on after a callback panicked, also for later operations.
#[test]
fn callback_that_panics_leaves_the_other_ranks_notified() {
    for fails in [false, true, true] {
        let members = group(3, LONG);
        let first = members[0].enter(operation(SUM, 4)).unwrap();
        let job = first.start(buffers(16), Box::new(|_| panic!("a callback of the program's")));
        assert!(job.is_none());
        let waits = start(&members[1], operation(SUM, 4), buffers(16)).unwrap();
        if fails {
            members[2].end(&Failure::new(Code::DataLoss, "bank 3 is on fire"));
            assert_eq!(waits.outcome().unwrap_err().code(), Code::DataLoss);
        } else {
            let last = start(&members[2], operation(SUM, 4), buffers(16)).unwrap();
            assert!(waits.outcome().is_ok() && last.outcome().is_ok());
        }
    }
}

/// Large enough to be spread over threads: no helper uses the memory any more when the ranks are notified.
#[test]
fn memory_of_a_large_operation_is_the_callers_alone_when_it_is_reported() {
    for _ in 0..20 {
        let members = group(2, LONG);
        let all: Vec<Buffers> = members.iter().map(|_| buffers(1 << 20)).collect();
        let (sender, receiver) = std::sync::mpsc::channel();
        for (member, own) in members.iter().zip(&all) {
            let (sender, seen) = (sender.clone(), own.send.clone().unwrap());
            let parts = Buffers { send: Some(seen), recv: own.recv.clone() };
            let entry = member.enter(operation(SUM, 1 << 18)).unwrap();
            if let Some(job) = entry.start(parts, Box::new(move |outcome| sender.send(outcome).unwrap())) {
                job();
            }
        }
        for own in &all {
            assert!(receiver.recv_timeout(LONG).unwrap().is_ok());
            assert!(!own.send.as_ref().unwrap().is_shared() && !own.recv.as_ref().unwrap().is_shared());
        }
    }
}

/// Memory of some elements, whose owner holds a clone of `mark` as long as it lives.
fn marked_memory(elements: usize, mark: &Arc<()>) -> HostRange {
    struct Owner(Vec<f32>, #[expect(dead_code, reason = "it is counted")] Arc<()>);
    let mut owner = Arc::new(Owner(vec![1.0; elements], mark.clone()));
    let start = Arc::get_mut(&mut owner).unwrap().0.as_mut_ptr();
    // SAFETY: elements that live as long as their owner, which does not look at them.
    unsafe { HostRange::from_raw(start.cast(), elements * 4, Some(owner)) }
}

#[test]
fn memory_is_released_before_its_rank_is_notified_in_pieces_too() {
    const ELEMENTS: usize = 1 << 10;
    for (piece, fails) in [(PIECE, false), (PIECE, true), (1 << 9, false), (1 << 9, true)] {
        let members = group_in_pieces(2, LONG, piece);
        let (sender, receiver) = std::sync::mpsc::channel();
        let start = |rank: usize| {
            let (mark, sender) = (Arc::new(()), sender.clone());
            let [send, recv] = [(); 2].map(|()| Some(marked_memory(ELEMENTS, &mark)));
            let done = move |end: hal_collectives::Result| {
                sender.send((end.is_ok(), Arc::strong_count(&mark))).unwrap()
            };
            let entry = members[rank].enter(operation(SUM, ELEMENTS as u64)).unwrap();
            let job = entry.start(Buffers { send, recv }, Box::new(done));
            job.into_iter().for_each(|job| job());
        };
        start(0);
        if fails {
            members[1].end(&Failure::new(Code::DataLoss, "gone"));
            assert_eq!(receiver.recv_timeout(LONG), Ok((false, 1)), "in pieces of {piece}");
            continue;
        }
        start(1);
        let both = [(); 2].map(|()| receiver.recv_timeout(LONG));
        assert_eq!(both, [Ok((true, 1)); 2], "in pieces of {piece}");
    }
}

#[test]
fn rank_that_does_not_come_is_named_when_the_time_is_over() {
    // Long enough for the others to come, on a busy machine.
    let timeout = Duration::from_secs(3);
    let members = group(4, timeout);
    let begin_of_wait = Instant::now();
    let waits: Vec<Started> =
        members[..2].iter().map(|rank| start(rank, operation(SUM, 4), buffers(16)).unwrap()).collect();
    let entry = members[2].enter(operation(SUM, 4)).unwrap();
    for waits in waits {
        let failure = waits.outcome().unwrap_err();
        assert_eq!(failure.code(), Code::DeadlineExceeded);
        let message = failure.message();
        assert!(message.contains("all-reduce (sum) of 4 f32; ranks 0, 1 wait for the others"), "{message}");
        assert!(message.contains("rank 2 has asked for it, but not started it"), "{message}");
        assert!(message.contains("rank 3 has not asked for it"), "{message}");
        assert!(message.contains("collective_timeout"), "{message}");
    }
    assert!(begin_of_wait.elapsed() >= timeout);
    // A rank that comes too late gets the same failure.
    let (late, job) = begin(entry, buffers(16));
    assert!(job.is_none());
    assert_eq!(late.outcome().unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(members[3].enter(operation(SUM, 4)).err().unwrap().code(), Code::DeadlineExceeded);
}

#[test]
fn transfer_without_an_answer_names_the_rank_that_gave_none() {
    let members = group(3, Duration::from_millis(100));
    let waits = start(&members[1], operation(Kind::Recv { from: 2 }, 4), buffers(16)).unwrap();
    let message = waits.outcome().unwrap_err().message().to_owned();
    assert!(
        message
            .contains("recv from rank 2 of 4 f32; rank 1 waits for the others; rank 2 has not asked for it"),
        "{message}"
    );
}

#[test]
fn waiting_rank_is_notified_after_all_others_were_released() {
    let mut members = group(2, Duration::from_millis(100));
    let waits = start(&members[0], operation(SUM, 4), buffers(16)).unwrap();
    members.clear();
    assert_eq!(waits.outcome().unwrap_err().code(), Code::DeadlineExceeded);
}

fn request(id: &[u8], rank: u32, count: u32, owner: usize) -> Request<'_> {
    Request { id, name: "joined", rank, count, owner, terms: LONG.into() }
}

#[test]
fn rank_is_one_owner_and_a_group_has_one_size() {
    let id = b"a rank is one owner";
    let first = join(&request(id, 0, 2, 10)).unwrap();
    let again = join(&request(id, 0, 2, 10)).unwrap();
    let refused = join(&request(id, 0, 2, 11)).err().unwrap();
    assert_eq!(refused.code(), Code::AlreadyExists);
    let refused = join(&request(id, 1, 3, 11)).err().unwrap();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("with 3 ranks, but others have joined it with 2"), "{refused}");
    assert_eq!(join(&request(id, 2, 2, 11)).err().unwrap().code(), Code::InvalidArgument);
    drop(first);
    assert!(join(&request(id, 0, 2, 11)).is_err(), "the first owner has it still");
    drop(again);
    join(&request(id, 0, 2, 11)).unwrap();
}

#[test]
fn ranks_that_come_and_go_go_on_counting_and_a_failed_group_is_begun_anew() {
    let id = b"come and go";
    let member =
        |rank| -> Arc<dyn Communicator> { Arc::from(join(&request(id, rank, 2, rank as usize)).unwrap()) };
    for _ in 0..3 {
        // The first rank is gone before the second one comes.
        let waits = start(&member(0), operation(SUM, 1), buffers(4)).unwrap();
        let comes = start(&member(1), operation(SUM, 1), buffers(4)).unwrap();
        waits.outcome().unwrap();
        comes.outcome().unwrap();
    }
    let (first, second) = (member(0), member(1));
    drop(first.enter(operation(SUM, 1)).unwrap());
    assert!(second.enter(operation(SUM, 1)).is_err());
    let (first, second) = (member(0), member(1));
    let started = [first, second].map(|rank| start(&rank, operation(SUM, 1), buffers(4)).unwrap());
    started.iter().for_each(|started| started.outcome().unwrap());
}

#[test]
fn group_is_split_by_color_and_ordered_by_key() {
    let members = group(5, LONG);
    // Ranks 0, 2 and 4 are red, in the opposite order; 1 and 3 green; then 3 is in none.
    let split = |which: &[(Option<u32>, i32)]| {
        let parts: Vec<_> = members
            .iter()
            .zip(which)
            .map(|(member, &(color, key))| member.split(color, key).unwrap())
            .collect();
        parts.iter().map(|part| part.as_ref().map(|part| part.place().unwrap())).collect::<Vec<_>>()
    };
    let red = |key| (Some(7), key);
    let places = split(&[red(2), (Some(0), 0), red(1), (Some(0), 0), red(-1)]);
    assert_eq!(places, [Some((2, 3)), Some((0, 2)), Some((1, 3)), Some((1, 2)), Some((0, 3))]);
    let places = split(&[red(0), red(0), red(0), (None, 0), red(0)]);
    assert_eq!(places, [Some((0, 4)), Some((1, 4)), Some((2, 4)), None, Some((3, 4))]);
}

#[test]
fn split_is_for_all_though_each_rank_has_released_the_group() {
    // As compiled modules do: the channel that is split exists only for that.
    let parts: Vec<_> = (0..3)
        .map(|rank| {
            let member = join(&request(b"released", rank, 3, rank as usize)).unwrap();
            member.split(Some(rank % 2), 0).unwrap().unwrap()
        })
        .collect();
    let places: Vec<_> = parts.iter().map(|part| part.place().unwrap()).collect();
    assert_eq!(places, [(0, 2), (0, 1), (1, 2)]);
}

#[test]
fn parts_of_a_group_work_beside_each_other_and_beside_the_whole() {
    let members = group(4, LONG);
    let parts: Vec<Arc<dyn Communicator>> = members
        .iter()
        .zip([0, 0, 1, 1])
        .map(|(member, color)| member.split(Some(color), 0).unwrap().unwrap())
        .map(Arc::from)
        .collect();
    let whole: Vec<_> =
        members[..3].iter().map(|rank| start(rank, operation(SUM, 1), buffers(4)).unwrap()).collect();
    for part in [[0, 1], [3, 2]] {
        let started = part.map(|rank: usize| start(&parts[rank], operation(SUM, 2), buffers(8)).unwrap());
        started.iter().for_each(|started| started.outcome().unwrap());
    }
    assert!(whole.iter().all(|started| !started.has_ended()));
    start(&members[3], operation(SUM, 1), buffers(4)).unwrap().outcome().unwrap();
    whole.iter().for_each(|started| started.outcome().unwrap());
}

#[test]
fn rank_that_ends_in_a_part_of_a_group_is_not_waited_for() {
    let members = group(2, LONG);
    let parts: Vec<Arc<dyn Communicator>> =
        members.iter().map(|member| Arc::from(member.split(Some(0), 0).unwrap().unwrap())).collect();
    let waits = start(&parts[0], operation(SUM, 4), buffers(16)).unwrap();
    parts[1].end(&Failure::new(Code::DataLoss, "bank 3 is on fire"));
    let failure = waits.outcome().unwrap_err();
    assert!(failure.message().contains("bank 3 is on fire"), "{failure}");
}

#[test]
fn rank_that_ends_in_a_part_before_others_have_split_the_group_is_not_waited_for() {
    let members = group(2, LONG);
    let split = |rank: usize| -> Arc<dyn Communicator> {
        Arc::from(members[rank].split(Some(0), 0).unwrap().unwrap())
    };
    split(0).end(&Failure::new(Code::DataLoss, "bank 3 is on fire"));
    let part = split(1);
    assert_eq!(part.place().unwrap(), (1, 2));
    let failure = part.enter(operation(SUM, 4)).err().unwrap();
    assert!(failure.message().contains("bank 3 is on fire"), "{failure}");
}

#[test]
fn split_that_a_rank_does_not_call_ends_in_time() {
    let members = group(3, Duration::from_millis(100));
    let part = members[0].split(Some(0), 0).unwrap().unwrap();
    let failure = part.place().unwrap_err();
    assert_eq!(failure.code(), Code::DeadlineExceeded);
    assert!(failure.message().contains("ranks 1, 2 have not split it"), "{failure}");
    assert!(part.enter(operation(SUM, 1)).is_err());
}

/// Memory whose owner panics when it is released.
fn memory_that_panics() -> HostRange {
    struct Owner(Vec<f32>);
    impl Drop for Owner {
        fn drop(&mut self) {
            panic!("an owner of memory");
        }
    }
    let mut owner = Arc::new(Owner(vec![1.0]));
    let start = Arc::get_mut(&mut owner).unwrap().0.as_mut_ptr();
    // SAFETY: an element that lives as long as its owner.
    unsafe { HostRange::from_raw(start.cast(), 4, Some(owner)) }
}

#[test]
fn owners_that_panic_on_release_leave_all_ranks_notified() {
    let members = group(3, LONG);
    let panics = || Buffers { send: Some(memory_that_panics()), recv: Some(memory_that_panics()) };
    let started =
        members.iter().map(|rank| start(rank, operation(SUM, 1), panics()).unwrap()).collect::<Vec<_>>();
    started.iter().for_each(|started| started.outcome().unwrap());
}

/// One group's failure callback takes its time and waits for that of another, which ends by a rank or by a timeout.
#[test]
fn slow_failure_callback_delays_no_other_group_and_no_timeout() {
    for by_time in [false, true] {
        let timeout = if by_time { Duration::from_millis(20) } else { LONG };
        let (slow, other) = (group(2, LONG), group(2, timeout));
        let (sender, receiver) = std::sync::mpsc::channel();
        let (answer, answered) = std::sync::mpsc::channel();
        let (enter, inside) = std::sync::mpsc::channel();
        let wait = move |_: Result<(), Failure>| {
            enter.send(()).unwrap();
            answer.send(receiver.recv_timeout(LONG)).unwrap();
        };
        let sum = operation(SUM, 1);
        assert!(slow[0].enter(sum).unwrap().start(buffers(4), Box::new(wait)).is_none());
        slow[1].end(&Failure::new(Code::DataLoss, "gone"));
        inside.recv_timeout(LONG).unwrap();
        let done = move |end: Result<(), Failure>| _ = sender.send(end.map_err(|failure| failure.code()));
        assert!(other[0].enter(sum).unwrap().start(buffers(4), Box::new(done)).is_none());
        if !by_time {
            other[1].end(&Failure::new(Code::DataLoss, "gone"));
        }
        let code = if by_time { Code::DeadlineExceeded } else { Code::DataLoss };
        assert_eq!(answered.recv().unwrap(), Ok(Err(code)), "by time: {by_time}");
    }
}

/// Three ranks, of which the second has a short timeout and the third does not come.
fn patient_and_impatient(id: &[u8]) -> Vec<Box<dyn Communicator>> {
    let terms = [LONG, Duration::from_millis(300), LONG];
    (0..)
        .zip(terms)
        .map(|(rank, timeout)| {
            let terms = timeout.into();
            let request = Request { id, name: "patience", rank, count: 3, owner: rank as usize, terms };
            join(&request).unwrap()
        })
        .collect()
}

#[test]
fn rank_that_comes_later_and_waits_for_less_is_heeded() {
    let ranks = patient_and_impatient(b"rank that comes later and waits for less");
    let operation = Operation { kind: Kind::AllGather, element: Element::U8, count: 0 };
    let started: Vec<Started> = ranks[..2]
        .iter()
        .map(|rank| {
            let started = begin(rank.enter(operation).unwrap(), Buffers::default()).0;
            // The timekeeper watches the first one's timeout already.
            std::thread::sleep(Duration::from_millis(50));
            started
        })
        .collect();
    for started in started {
        let failure = started.outcome().unwrap_err();
        assert_eq!(failure.code(), Code::DeadlineExceeded);
        assert!(failure.message().contains("after 300ms"), "{failure}");
    }
}

#[test]
fn rank_that_splits_later_and_waits_for_less_is_heeded() {
    let ranks = patient_and_impatient(b"rank that splits later and waits for less");
    let parts = [0, 1].map(|rank: usize| {
        let part = ranks[rank].split(Some(1), 0).unwrap().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        part
    });
    for part in parts {
        let failure = part.place().unwrap_err();
        assert_eq!(failure.code(), Code::DeadlineExceeded);
        assert!(failure.message().contains("after 300ms"), "{failure}");
    }
}

/// The group stays while others are in it.
#[test]
fn rank_may_be_another_owner_when_the_first_has_released_it() {
    let id = b"rank that is another owner";
    let join = |rank, owner| join(&Request { id, name: "owners", rank, count: 2, owner, terms: LONG.into() });
    let _other = join(1, 1).unwrap();
    let first = join(0, 2).unwrap();
    assert_eq!(join(0, 3).err().unwrap().code(), Code::AlreadyExists);
    drop(first);
    join(0, 3).unwrap();
}
