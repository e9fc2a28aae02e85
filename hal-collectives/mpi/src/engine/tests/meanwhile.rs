// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What others do while a thread looks, or has looked.

use super::asleep::until;
use super::*;
use crate::library::loopback::{broken_network, ending_network, expected_by, has_begun_to_end, hold_up_ends};
use std::sync::mpsc::RecvTimeoutError;

/// A limit that nothing here comes near.
const LONG: Duration = Duration::from_secs(20);

/// How many letters of others a rank would take from MPI now: none where MPI is left alone.
fn listens(rank: &Rank) -> usize {
    rank.0.with(LONG, |progress| expected_by(progress.library())).unwrap()
}

/// An engine whose MPI is the program's.
fn lent(mut ranks: [Rank; 2]) -> [Rank; 2] {
    for rank in &mut ranks {
        Arc::get_mut(&mut rank.0).unwrap().owned = false;
    }
    ranks
}

#[test]
fn letter_to_a_group_that_has_failed_is_answered_when_mpi_is_used_again_and_not_before() {
    let (ranks, [first, second]) = pair();
    first.end(&Failure::new(Code::DataLoss, "gone"));
    let _ahead = sum(&*second, 5);
    drop(first);
    ranks[0].0.with(Duration::ZERO, Progress::rest).unwrap();
    let before = listens(&ranks[1]);
    poll_all(&ranks[..1]);
    assert_eq!(listens(&ranks[1]), before, "a message was sent by an MPI that the program may have ended");
    let _again = ranks[0].join(b"pair", TERMS);
    poll_all(&ranks[..1]);
    assert_eq!(listens(&ranks[1]), before - 1);
}

/// One thread has found that there is no group, and another joins one before MPI is left alone.
#[test]
fn group_that_is_joined_while_mpi_is_being_left_alone_is_listened_for() {
    let (ranks, groups) = pair();
    ranks[0].0.commands.lock().push(Command::Rest);
    ranks[0].poll();
    let (got, told) = sum(&*groups[0], 2);
    let _other = sum(&*groups[1], 3);
    poll_all(&ranks);
    assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), 5));
}

#[test]
fn mpi_is_not_left_alone_where_others_speak_of_a_group_that_this_rank_is_not_in_beside_one_that_it_is_in() {
    let (ranks, groups) = pair();
    let another = ranks[1].join(b"another", TERMS);
    let _ahead = sum(&*another, 5);
    poll_all(&ranks);
    ranks[0].0.with(LONG, Progress::rest).unwrap();
    let (got, told) = sum(&*groups[0], 2);
    let _other = sum(&*groups[1], 3);
    poll_all(&ranks);
    assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), 5));
}

#[test]
fn mpi_is_left_alone_when_the_last_group_is_let_go_of() {
    let ranks = lent(job(2).try_into().ok().unwrap());
    let groups = [b"one", b"two"].map(|id| ranks[0].join(id, TERMS));
    let [one, two] = groups;
    drop(one);
    assert!(listens(&ranks[0]) > 0);
    drop(two);
    assert_eq!(listens(&ranks[0]), 0);
}

/// The rank that is told has the last reference to the group.
#[test]
fn mpi_is_left_alone_when_a_callback_lets_go_of_the_last_group() {
    let ranks = lent(job(2).try_into().ok().unwrap());
    let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"pair", TERMS));
    let [first, second] = groups.map(|group| Arc::new(Mutex::new(Some(group))));
    let (tell, told) = channel();
    let (rank, last) = (Rank(ranks[0].0.clone()), first.clone());
    let done = Box::new(move |end| {
        drop(last.lock().take());
        tell.send((outcome(end), listens(&rank))).unwrap();
    });
    let buffers = Buffers { send: Some(memory(&[1])), recv: Some(memory(&[0])) };
    sum_with(&**first.lock().as_ref().unwrap(), buffers, done);
    let _other = sum(&**second.lock().as_ref().unwrap(), 1);
    poll_all(&ranks);
    assert_eq!(told.try_recv(), Ok((Ok(()), 0)));
}

/// The thread that delivers a letter has the group for a moment, which is no reason to go on listening.
#[test]
fn mpi_is_left_alone_when_the_last_group_is_let_go_of_while_a_letter_is_delivered() {
    let ranks = lent(job(2).try_into().ok().unwrap());
    let group = ranks[0].join(b"pair", TERMS);
    assert!(listens(&ranks[0]) > 0);
    let id = *ranks[0].0.groups.lock().keys().next().unwrap();
    let (begin, begun) = channel();
    std::thread::scope(|scope| {
        let engine = &ranks[0].0;
        scope.spawn(move || {
            engine.with(LONG, |_| {
                let held = engine.groups.lock().get(&id).unwrap().group.upgrade();
                begin.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(100));
                drop(held);
            });
        });
        begun.recv().unwrap();
        drop(group);
        // The program ends MPI when this has returned.
        engine.wait_until_idle();
        assert_eq!(listens(&ranks[0]), 0);
    });
}

/// A program that has begun MPI itself lets go of a group, and a command of it is left, which another thread
/// takes as it begins something.
#[test]
fn group_that_goes_with_its_last_command_does_not_hold_up_the_thread_that_takes_the_command() {
    let ranks = lent(job(2).try_into().ok().unwrap());
    let [gone, stays] = [b"gone", b"stay"].map(|id| ranks[0].join(id, TERMS));
    let looking = ranks[0].0.progress.lock();
    gone.end(&Failure::new(Code::DataLoss, "gone"));
    drop((gone, looking));
    let (tell, told) = channel();
    std::thread::spawn(move || {
        stays.end(&Failure::new(Code::DataLoss, "gone too"));
        tell.send(()).unwrap();
    });
    assert_eq!(told.recv_timeout(LONG), Ok(()));
}

/// The same, and the program ends MPI then: the others are told before.
#[test]
fn mpi_is_left_alone_when_what_a_group_has_left_to_others_to_tell_is_told() {
    let ranks = lent(job(2).try_into().ok().unwrap());
    let [first, second] = [0, 1].map(|rank: usize| ranks[rank].join(b"pair", TERMS));
    let waits = sum(&*second, 5).1;
    let looking = ranks[0].0.progress.lock();
    first.end(&Failure::new(Code::DataLoss, "gone"));
    drop((first, looking));
    ranks[0].0.wait_until_idle();
    assert_eq!(listens(&ranks[0]), 0);
    ranks[1].poll();
    assert_eq!(waits.try_recv(), Ok(Err(Code::DataLoss)));
}

#[test]
fn watch_ends_at_its_time_while_other_operations_move_all_the_time() {
    let (ranks, groups) = pair();
    let begin = Instant::now();
    let mut moves = 0;
    let over = poll_until_by(
        ranks[0].0.watchers,
        &|| Some(&ranks[0].0),
        Some(begin + Duration::from_millis(5)),
        || {
            moves += 1;
            let _sums = [0, 1].map(|rank: usize| sum(&*groups[rank], moves));
            ranks[1].poll();
            begin.elapsed() > LONG
        },
    );
    assert!(!over, "{:?}", begin.elapsed());
}

/// A thread that has watched just before is likely to do so again, but a thread that sleeps soundly would not
/// look up meanwhile.
#[test]
fn what_is_begun_just_behind_a_watch_wakes_a_thread_that_sleeps_until_it_is_woken() {
    let (ranks, groups) = pair();
    served(&ranks[..1]);
    for turn in 0..20 {
        std::thread::sleep(Duration::from_millis(10));
        let _other = sum(&*groups[1], 1);
        poll_until_by(ranks[0].0.watchers, &|| Some(&ranks[0].0), None, || true);
        let (got, told) = sum(&*groups[0], turn);
        assert_eq!(told.recv_timeout(LONG), Ok(Ok(())), "turn {turn}");
        assert_eq!(word(&got), turn + 1);
        ranks[1].poll();
    }
}

/// A thread that watches is busy with a callback of the program's, and does not look (S13).
#[test]
fn callback_that_takes_its_time_in_a_watch_holds_up_nothing_else() {
    let (ranks, groups) = pair();
    for rank in &ranks {
        let engine = rank.0.clone();
        std::thread::spawn(move || engine.serve(IDLE));
    }
    let (tell, told_behind) = channel::<Outcome>();
    let (answer, answered) = channel();
    let slow = move |_| answer.send(told_behind.recv_timeout(LONG)).unwrap();
    let mut slow: Option<Done> = Some(Box::new(slow));
    let buffers = || Buffers { send: Some(memory(&[1])), recv: Some(memory(&[0])) };
    std::thread::scope(|scope| {
        let (ranks, groups) = (&ranks, &groups);
        scope.spawn(move || {
            // Begun while this thread watches, so that it is told here.
            poll_until_by(ranks[0].0.watchers, &|| Some(&ranks[0].0), None, || {
                if let Some(slow) = slow.take() {
                    let _other = sum(&*groups[1], 2);
                    ranks[1].poll();
                    sum_with(&*groups[0], buffers(), slow);
                }
                false
            });
        });
        // It is in the callback by now, or will soon be; what is begun here ends in any case.
        std::thread::sleep(Duration::from_millis(50));
        let _other = sum(&*groups[1], 4);
        sum_with(
            &*groups[0],
            buffers(),
            Box::new(move |end| {
                let _ = tell.send(outcome(end));
            }),
        );
        assert_eq!(answered.recv().unwrap(), Ok(Ok(())));
    });
}

/// No thread watches, so that callbacks are on threads of the engine's own; each of them waits for what is
/// begun when it is called.
#[test]
fn callbacks_that_wait_for_operations_on_threads_of_the_engine_hold_up_nothing_else() {
    const DEEP: usize = 3;
    let (ranks, groups) = pair();
    served(&ranks[..1]);
    let (answer, answered) = channel();
    let mut behind = None;
    for turn in 0..=DEEP {
        let (tell, told) = channel::<Outcome>();
        let before: Option<std::sync::mpsc::Sender<Outcome>> = behind.replace(tell);
        let (begin, begun) = channel();
        let answer = answer.clone();
        let slow = move |end: Result| {
            begin.send(()).unwrap();
            let _ = before.map(|before| before.send(outcome(end)));
            if turn < DEEP {
                answer.send(told.recv_timeout(LONG)).unwrap();
            }
        };
        let _other = sum(&*groups[1], 2);
        let buffers = Buffers { send: Some(memory(&[1])), recv: Some(memory(&[0])) };
        sum_with(&*groups[0], buffers, Box::new(slow));
        ranks[1].poll();
        begun.recv_timeout(LONG).expect("no thread looks while a callback waits");
    }
    for _ in 0..DEEP {
        assert_eq!(answered.recv_timeout(LONG), Ok(Ok(Ok(()))));
    }
    // Those that were held up are not needed any more.
    let end = Instant::now() + LONG;
    while Arc::strong_count(&ranks[0].0) > AT_REST {
        assert!(Instant::now() < end, "{} hold the engine", Arc::strong_count(&ranks[0].0));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Begins two sums, of which the first one's callback waits for the second one's outcome, and answers with that.
fn two_of_which_one_waits(
    group: &dyn Communicator,
) -> Receiver<std::result::Result<Outcome, RecvTimeoutError>> {
    let (tell, told) = channel::<Outcome>();
    let (answer, answered) = channel();
    let slow = move |_| answer.send(told.recv_timeout(LONG)).unwrap();
    let done = move |end| tell.send(outcome(end)).unwrap();
    let both: [Done; 2] = [Box::new(slow), Box::new(done)];
    for done in both {
        let buffers = Buffers { send: Some(memory(&[1])), recv: Some(memory(&[0])) };
        sum_with(group, buffers, done);
    }
    answered
}

/// Both have ended when a thread looks.
#[test]
fn callback_that_waits_for_an_operation_which_ended_together_with_its_own_returns() {
    let (ranks, groups) = pair();
    let _others = [(); 2].map(|()| sum(&*groups[1], 2));
    let answered = two_of_which_one_waits(&*groups[0]);
    ranks[1].poll();
    served(&ranks[..1]);
    assert_eq!(answered.recv(), Ok(Ok(Ok(()))));
}

/// They are told together.
#[test]
fn callback_that_waits_for_an_operation_which_failed_together_with_its_own_returns() {
    let (ranks, groups) = pair();
    let answered = two_of_which_one_waits(&*groups[0]);
    groups[1].end(&Failure::new(Code::DataLoss, "gone"));
    served(&ranks[..1]);
    assert_eq!(answered.recv(), Ok(Ok(Err(Code::DataLoss))));
}

/// References to an engine whose thread has called a callback: its rank, a group, the thread that serves, and
/// the one that stands by.
const AT_REST: usize = 4;

#[test]
fn mpi_that_says_nothing_but_errors_fails_what_is_under_way_and_returns() {
    let watchers = Box::leak(Box::default());
    let engine = Arc::new(Engine::new(broken_network().unwrap(), watchers));
    let rank = Rank(engine.clone());
    // Alone in its job it would be over at once: it sends to itself, which takes a letter.
    let group = rank.join(b"alone", TERMS);
    let (tell, told) = channel();
    let operation =
        Operation { kind: Kind::SendRecv { to: Some(0), from: Some(0) }, element: Element::U32, count: 1 };
    let buffers = Buffers { send: Some(memory(&[1])), recv: Some(memory(&[0])) };
    let done = Box::new(move |end| tell.send(outcome(end)).unwrap());
    assert!(group.enter(operation).unwrap().start(buffers, done).is_none());
    let (looked, has_looked) = channel();
    std::thread::spawn(move || looked.send([engine.poll(), engine.poll()]).unwrap());
    let looks = has_looked.recv_timeout(LONG).expect("a look ends");
    assert_eq!(told.try_recv(), Ok(Err(Code::Unavailable)));
    assert!(!looks[1].moved, "the thread that looks may rest");
}

/// Other threads may go on until the process has ended.
#[test]
fn mpi_that_has_ended_is_called_no_more_and_its_thread_goes() {
    let ranks = job(2);
    let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"pair", Duration::from_millis(1)));
    let (engine, (tell, told)) = (ranks[0].0.clone(), channel());
    let _waits = sum(&*groups[0], 1);
    engine.quit();
    // Its time is over.
    std::thread::sleep(Duration::from_millis(2));
    let places = listens(&ranks[1]);
    std::thread::spawn(move || {
        engine.serve(IDLE);
        tell.send(()).unwrap();
    });
    assert_eq!(told.recv_timeout(LONG), Ok(()));
    let _sum = sum(&*groups[0], 2);
    let end = Instant::now() + LONG;
    assert!(!poll_until_by(ranks[0].0.watchers, &|| Some(&ranks[0].0), None, || Instant::now() > end));
    assert_eq!(listens(&ranks[1]), places, "something was sent");
}

/// A launcher ends all ranks with one that ends without MPI, and some MPIs wait for all ranks.
#[test]
fn end_of_mpi_is_waited_for_however_long_it_takes_unless_a_rank_has_not_come() {
    for is_missing in [false, true] {
        let ranks = job_of(ending_network(2));
        let group = ranks[0].join(b"pair", if is_missing { Duration::from_millis(1) } else { TERMS });
        if is_missing {
            let (_, told) = sum(&*group, 1);
            assert_eq!(told_in_time(&ranks[0], &told), Err(Code::DeadlineExceeded));
        }
        let (held, (tell, told)) = (hold_up_ends(), channel());
        let engine = ranks[0].0.clone();
        std::thread::spawn(move || {
            engine.with(LONG, |progress| progress.quit(Duration::from_millis(1))).unwrap();
            tell.send(()).unwrap();
        });
        until("MPI is not told to end", has_begun_to_end);
        if is_missing {
            assert_eq!(told.recv_timeout(LONG), Ok(()));
        } else {
            assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "MPI has not ended");
        }
        drop(held);
        assert!(is_missing || told.recv_timeout(LONG) == Ok(()));
    }
}

#[test]
fn own_part_of_what_is_gathered_is_copied_in_parts_while_others_are_waited_for() {
    const WORDS: usize = 1 << 18;
    let (ranks, groups) = pair();
    let got = memory(&[0; 2 * WORDS]);
    let buffers = Buffers { send: Some(memory(&[7; WORDS])), recv: Some(got.clone()) };
    let operation = Operation { kind: Kind::AllGather, element: Element::U32, count: WORDS as u64 };
    assert!(groups[0].enter(operation).unwrap().start(buffers, Box::new(|_| {})).is_none());
    let last = got.slice(WORDS as u64 * 4 - 4, 4).unwrap();
    ranks[0].poll();
    assert_eq!(word(&last), 0, "all is copied at once, and messages may have come");
    (0..20).for_each(|_| ranks[0].poll());
    assert_eq!(word(&last), 7);
}

/// A process that was forked has the connections of the one that MPI knows.
#[test]
fn process_that_mpi_does_not_know_makes_no_call_to_it() {
    let ranks = lent(job(2).try_into().ok().unwrap());
    ranks[0].0.is_forked.store(true, Ordering::Relaxed);
    let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"pair", TERMS));
    assert_eq!(expected_by_forked(&ranks[0]), 0, "a group listens");
    let places = listens(&ranks[1]);
    let _sum = sum(&*groups[0], 2);
    poll_all(&ranks[..1]);
    assert_eq!(listens(&ranks[1]), places, "an operation sends");
    assert!(!poll_until_by(ranks[0].0.watchers, &|| Some(&ranks[0].0), None, || false));
}

fn expected_by_forked(rank: &Rank) -> usize {
    expected_by(rank.0.progress.lock().library())
}
