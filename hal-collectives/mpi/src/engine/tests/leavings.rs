// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What is left when an operation, a group or the use of MPI has ended: nothing, and no thread waits for it for long.

use super::*;
use crate::library::loopback::{counted, network, stuck_network, unexpected_by};
use crate::wire::{FIRST_TAG, LETTER};

/// A limit that nothing here comes near.
const LONG: Duration = Duration::from_secs(20);

fn broadcast(group: &dyn Communicator) -> Receiver<Outcome> {
    let (tell, told) = channel();
    let operation = Operation { kind: Kind::Broadcast { root: 0 }, element: Element::U32, count: 1 };
    let buffers = Buffers { send: Some(memory(&[3])), recv: Some(memory(&[0])) };
    let done = Box::new(move |end| tell.send(outcome(end)).unwrap());
    assert!(group.enter(operation).unwrap().start(buffers, done).is_none());
    told
}

/// A part of both ranks, on each of them.
fn parts(ranks: &[Rank], groups: &[Box<dyn Communicator>; 2]) -> [Box<dyn Communicator>; 2] {
    let parts = groups.each_ref().map(|group| group.split(Some(1), 0).unwrap().unwrap());
    poll_all(ranks);
    parts
}

fn known(rank: &Rank) -> usize {
    rank.0.groups.lock().len()
}

/// The root of a broadcast is through with it before others say that they are there.
#[test]
fn letters_that_come_to_a_part_that_was_let_go_of_leave_nothing_behind() {
    let (ranks, groups) = pair();
    let [first, second] = parts(&ranks, &groups);
    let told = broadcast(&*first);
    poll_all(&ranks[..1]);
    assert_eq!(told.try_recv(), Ok(Ok(())));
    drop(first);
    assert_eq!(known(&ranks[0]), 1);
    let _other = broadcast(&*second);
    poll_all(&ranks);
    assert_eq!(known(&ranks[0]), 1, "it was let go of, and is known again");
    // What is sent to it, and its failure, neither.
    let large = Operation { kind: Kind::Broadcast { root: 1 }, element: Element::U32, count: 3_000 };
    let buffers = Buffers { send: Some(memory(&[1; 3_000])), recv: Some(memory(&[0; 3_000])) };
    assert!(second.enter(large).unwrap().start(buffers, Box::new(drop)).is_none());
    poll_all(&ranks);
    let left = ranks[0].0.with(LONG, |progress| unexpected_by(progress.library()));
    assert_eq!(left, Some(0), "a message was not received");
    assert_eq!(ranks[0].0.with(LONG, |progress| progress.early()), Some(0));
    second.end(&Failure::new(Code::DataLoss, "gone"));
    poll_all(&ranks);
    assert_eq!(known(&ranks[0]), 1);
}

/// A program may go on splitting a group whose parts fail.
#[test]
fn parts_that_have_failed_and_were_let_go_of_leave_nothing_behind() {
    let (ranks, groups) = pair();
    for turn in 0..3 {
        let [first, second] = parts(&ranks, &groups);
        first.place().unwrap();
        first.end(&Failure::new(Code::DataLoss, "gone"));
        poll_all(&ranks);
        assert_eq!(broadcast_of(&*second), Err(Code::DataLoss));
        drop((first, second));
        poll_all(&ranks);
        assert_eq!(ranks.each_ref().map(known), [1, 1], "turn {turn}");
    }
}

/// Whether a part takes an operation.
fn broadcast_of(group: &dyn Communicator) -> Outcome {
    let operation = Operation { kind: Kind::Broadcast { root: 0 }, element: Element::U32, count: 1 };
    outcome(group.enter(operation).map(drop))
}

/// Another rank tells of its failure before this one has heard that the split is over.
#[test]
fn part_that_has_failed_before_a_rank_knows_of_it_has_failed_for_that_rank() {
    let (ranks, groups) = pair();
    let [first, second] = groups.each_ref().map(|group| group.split(Some(1), 0).unwrap().unwrap());
    poll_all(&ranks[1..]);
    second.place().unwrap();
    second.end(&Failure::new(Code::DataLoss, "gone"));
    poll_all(&ranks);
    assert_eq!(broadcast_of(&*first), Err(Code::DataLoss));
    drop((first, second));
    assert_eq!(ranks.each_ref().map(known), [1, 1]);
}

#[test]
fn part_is_joined_though_its_letters_come_before_it_is_known() {
    let (ranks, groups) = pair();
    let split = |rank: usize| groups[rank].split(Some(1), 0).unwrap().unwrap();
    let (first, second) = (split(0), split(1));
    // The second rank is in the part before the first one knows of it.
    poll_all(&ranks[1..]);
    ranks[0].poll();
    let other = broadcast(&*second);
    poll_all(&ranks);
    let told = broadcast(&*first);
    poll_all(&ranks);
    assert_eq!([told, other].map(|told| told.try_recv()), [Ok(Ok(())); 2]);
}

/// A rank whose letters are not taken, and whose MPI is the program's.
#[test]
fn letters_that_are_not_taken_do_not_keep_mpi_busy_for_longer_than_a_device_may_take_to_go() {
    let ranks = stuck(2);
    let group = ranks[0].join(b"stuck", TERMS);
    let _sum = sum(&*group, 1);
    group.end(&Failure::new(Code::DataLoss, "gone"));
    ranks[0].poll();
    assert!(ranks[0].0.poll().sends);
    let begin = Instant::now();
    drop(group);
    ranks[0].0.with(LONG, Progress::rest).unwrap();
    assert!(!ranks[0].0.poll().sends);
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
}

fn stuck(ranks: u32) -> Vec<Rank> {
    job_of(stuck_network(ranks))
}

/// What is sent may need this process to look for it to go.
#[test]
fn letters_that_are_on_their_way_when_the_last_watch_ends_are_looked_for() {
    let ranks = stuck(2);
    let group = ranks[0].join(b"stuck", TERMS);
    // Behind this nothing is under way but what tells the others of it.
    group.end(&Failure::new(Code::DataLoss, "gone"));
    let look = ranks[0].0.poll();
    assert!(look.sends && !look.waits);
    ranks[0].0.watched.store(0, Ordering::Relaxed);
    ranks[0].0.watchers.fetch_add(1, Ordering::SeqCst);
    drop(CountedPoller(ranks[0].0.watchers, &|| Some(&ranks[0].0)));
    assert!(!ranks[0].0.is_watched(), "it is taken for granted that a thread looks");
}

#[test]
fn operation_that_has_ended_has_no_deadline_left() {
    let (ranks, groups) = pair();
    let sums = [0, 1].map(|rank: usize| sum(&*groups[rank], 1).1);
    let deadlines = |rank: &Rank| rank.0.with(LONG, |progress| progress.deadlines()).unwrap();
    assert_eq!(ranks.each_ref().map(deadlines).iter().sum::<usize>(), 2);
    poll_all(&ranks);
    assert_eq!(sums.map(|told| told.try_recv()), [Ok(Ok(())); 2]);
    assert_eq!(ranks.each_ref().map(deadlines), [0, 0]);
}

/// A rank of another version sends more than an operation takes.
#[test]
fn letter_of_an_operation_that_takes_no_more_goes_with_it() {
    let (ranks, groups) = pair();
    let words = || memory(&[1; 3_000]);
    let buffers = Buffers { send: Some(words()), recv: Some(words()) };
    sum_with(&*groups[0], buffers, Box::new(|_| {}));
    let number = number_of(&ranks[0]);
    let operation = Operation { kind: Kind::AllReduce(Reduction::Sum), element: Element::U32, count: 3_000 };
    let group = Generation { number, generation: 0 };
    let extra = |tag| Header {
        meeting: Meeting { group, line: Participants::Everyone, number: 0, piece: 0 },
        from: 1,
        source: 1,
        asked: Some(Asked { operation, pieces: 1 }),
        content: Content::Messages { tag, messages: Messages::of([12_000]) },
    };
    let send = |bytes: HostRange, tag| {
        let sent = ranks[1].0.with(LONG, |progress| progress.library().send(bytes, 0, tag).is_ok());
        assert_eq!(sent, Some(true));
    };
    // The first is taken, and the second is not.
    for tag in [FIRST_TAG + 100, FIRST_TAG + 101] {
        send(letter(extra(tag), &[]), LETTER);
        ranks[0].poll();
    }
    let early = || ranks[0].0.with(LONG, |progress| progress.early());
    assert_eq!(early(), Some(1));
    for tag in [FIRST_TAG + 100, FIRST_TAG + 101] {
        send(words(), tag);
    }
    poll_all(&ranks[..1]);
    assert_eq!(early(), Some(0));
    let left = ranks[0].0.with(LONG, |progress| unexpected_by(progress.library()));
    assert_eq!(left, Some(0), "its message was not received");
}

/// No program that is this one sends it, and MPI refuses to receive from such a rank.
#[test]
fn letter_that_names_a_rank_that_is_not_in_the_job_is_none() {
    let (ranks, groups) = pair();
    let words = || memory(&[3; 3_000]);
    let (got, (tell, told)) = (words(), channel());
    let buffers = Buffers { send: Some(words()), recv: Some(got.clone()) };
    sum_with(&*groups[0], buffers, Box::new(move |end| tell.send(outcome(end)).unwrap()));
    let number = number_of(&ranks[0]);
    let operation = Operation { kind: Kind::AllReduce(Reduction::Sum), element: Element::U32, count: 3_000 };
    for source in [2, 3, 1 << 30] {
        let meeting = Meeting {
            group: Generation { number, generation: 0 },
            line: Participants::Everyone,
            number: 0,
            piece: 0,
        };
        let content = Content::Messages { tag: FIRST_TAG, messages: Messages::of([12_000]) };
        let header =
            Header { meeting, from: 1, source, asked: Some(Asked { operation, pieces: 1 }), content };
        let bytes = letter(header, &[]);
        let sent = ranks[1].0.with(LONG, |progress| progress.library().send(bytes, 0, LETTER).is_ok());
        assert_eq!(sent, Some(true));
    }
    poll_all(&ranks[..1]);
    let buffers = Buffers { send: Some(words()), recv: Some(words()) };
    sum_with(&*groups[1], buffers, Box::new(|_| {}));
    poll_all(&ranks);
    assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), 6));
}

/// They are three ranks apart, so that each would be told of a failure of the other one by ranks between
/// them, which do not look.
#[test]
fn letter_of_a_group_that_was_begun_anew_ends_the_one_before_it() {
    let ranks = job(6);
    let groups: Vec<_> = ranks.iter().map(|rank| rank.join(b"six", TERMS)).collect();
    let waits = sum(&*groups[0], 5).1;
    groups[3].end(&Failure::new(Code::DataLoss, "gone"));
    let again = ranks[3].join(b"six", TERMS);
    let sent = transfer(&*again, Kind::Send { to: 0 }, memory(&[7]));
    ranks[3].poll();
    assert_eq!(sent.try_recv(), Ok(Ok(())));
    ranks[0].poll();
    assert_eq!(waits.try_recv(), Ok(Err(Code::Aborted)));
    let (again, got) = (ranks[0].join(b"six", TERMS), memory(&[0]));
    let told = transfer(&*again, Kind::Recv { from: 3 }, got.clone());
    ranks[0].poll();
    assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), 7));
}

/// It was told so by a rank that was in no generation before, as those between them are not in the group.
#[test]
fn notice_of_a_group_that_was_begun_anew_ends_the_one_before_it() {
    let ranks = job(6);
    let groups = [0, 3].map(|rank: usize| ranks[rank].join(b"six", TERMS));
    let _another = ranks[1].join(b"another", TERMS);
    let waits = sum(&*groups[0], 5).1;
    groups[1].end(&Failure::new(Code::DataLoss, "gone"));
    ranks[1].poll();
    let again = ranks[1].join(b"six", TERMS);
    again.end(&Failure::new(Code::DataLoss, "gone again"));
    ranks[0].poll();
    assert_eq!(waits.try_recv(), Ok(Err(Code::DataLoss)));
}

/// The others, which would tell it, are not in the group.
#[test]
fn rank_that_sends_to_one_whose_group_has_failed_is_told_so() {
    let ranks = job(6);
    let groups = [0, 3].map(|rank: usize| ranks[rank].join(b"six", TERMS));
    groups[0].end(&Failure::new(Code::DataLoss, "gone"));
    let (tell, told) = channel();
    let operation =
        Operation { kind: Kind::SendRecv { to: Some(0), from: Some(0) }, element: Element::U32, count: 1 };
    let buffers = Buffers { send: Some(memory(&[1])), recv: Some(memory(&[0])) };
    let done = Box::new(move |end| tell.send(outcome(end)).unwrap());
    assert!(groups[1].enter(operation).unwrap().start(buffers, done).is_none());
    poll_all(&ranks);
    assert_eq!(told.try_recv(), Ok(Err(Code::DataLoss)));
}

#[test]
fn operation_that_a_rank_gives_up_or_drops_ends_the_group_for_all() {
    for gives_up in [true, false] {
        let (ranks, groups) = pair();
        let waits = sum(&*groups[1], 5).1;
        let operation = Operation { kind: Kind::AllReduce(Reduction::Sum), element: Element::U32, count: 1 };
        let entry = groups[0].enter(operation).unwrap();
        if gives_up {
            entry.give_up(&Failure::new(Code::DataLoss, "gone"));
        } else {
            drop(entry);
        }
        poll_all(&ranks);
        let code = if gives_up { Code::DataLoss } else { Code::Cancelled };
        assert_eq!(waits.try_recv(), Ok(Err(code)));
        let again = groups[0].enter(operation).map(drop);
        assert_eq!(outcome(again), Err(code));
    }
}

/// A rank that hears of it tells others once.
#[test]
fn ranks_that_were_told_of_a_failure_come_to_rest() {
    let ranks = job(5);
    let groups: Vec<_> = ranks.iter().map(|rank| rank.join(b"five", TERMS)).collect();
    groups[2].end(&Failure::new(Code::DataLoss, "gone"));
    (0..10).for_each(|_| poll_all(&ranks));
    assert!(ranks.iter().all(|rank| !rank.0.poll().moved), "they tell each other again and again");
    assert!(groups.iter().all(|group| {
        group.enter(Operation { kind: Kind::AllGather, element: Element::U8, count: 1 }).is_err()
    }));
}

#[test]
fn receive_that_has_ended_is_not_cancelled_any_more() {
    let [first, second]: [Library; 2] = network(2).collect::<Vec<_>>().try_into().ok().unwrap();
    let _sent = second.send(memory(&[1]), 0, FIRST_TAG).unwrap();
    let mut request = first.receive(memory(&[0]), 1, FIRST_TAG).unwrap();
    assert!(first.has_ended(&mut request).unwrap());
    first.cancel(&mut request);
    assert!(!request.is_cancelled(), "MPI was asked to cancel what it has forgotten");
}

/// Before that MPI has written no status that could be read.
#[test]
fn length_of_a_message_is_asked_for_once_and_when_it_has_come() {
    let [first, second]: [Library; 2] = network(2).collect::<Vec<_>>().try_into().ok().unwrap();
    let mut request = first.receive(memory(&[0]), 1, FIRST_TAG).unwrap();
    let before = counted();
    assert!(!first.has_ended(&mut request).unwrap());
    assert_eq!(counted(), before);
    let _sent = second.send(memory(&[1]), 0, FIRST_TAG).unwrap();
    assert_eq!([(); 2].map(|()| first.has_ended(&mut request).unwrap()), [true; 2]);
    assert_eq!(counted(), before + 1);
}

/// A rank may find that its operation fits no other's, and end, while another thread is at the progress for a moment.
#[test]
fn failure_that_a_rank_has_left_to_others_to_tell_is_told_before_mpi_ends() {
    let (ranks, groups) = pair();
    let waits = sum(&*groups[1], 5).1;
    ranks[1].poll();
    let looking = ranks[0].0.progress.lock();
    groups[0].end(&Failure::new(Code::DataLoss, "gone"));
    drop(looking);
    ranks[0].0.quit();
    ranks[1].poll();
    assert_eq!(waits.try_recv(), Ok(Err(Code::DataLoss)));
}
