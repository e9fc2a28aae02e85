// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Which threads poll, and which callbacks they run.

use super::*;
use crate::library::fake::hooks::{Closed, has_begun_to_end, has_ended_here, hold_up_ends};
use hal_collectives::local::spread;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::process;
use std::sync::Barrier;
use std::sync::mpsc::RecvTimeoutError;

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
    be_late();
    let _other = sum(&*groups[1], 1);
    groups[1].end(&Failure::new(Code::DataLoss, "gone"));
    poll_all(&ranks);
    arrive();
    assert!(notified_in_time(&ranks[0], &told).is_err());
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
fn poll_ends_at_once_where_nothing_is_under_way_and_polls_where_something_is() {
    let (ranks, groups) = pair();
    let begin = Instant::now();
    assert!(!poll_until_by(ranks[0].0.pollers, &|| None, None, || false));
    assert!(!poll_until_by(ranks[0].0.pollers, &|| Some(&ranks[0].0), None, || false));
    let (got, told) = sum(&*groups[0], 2);
    let _other = sum(&*groups[1], 3);
    assert!(poll_until_by(ranks[0].0.pollers, &|| Some(&ranks[0].0), None, || told.try_recv().is_ok()));
    assert_eq!(word(&got), 5);
    // And where something is, and does not move.
    let _alone = sum(&*groups[0], 2);
    assert!(!poll_until_by(ranks[0].0.pollers, &|| Some(&ranks[0].0), None, || false));
    assert!(begin.elapsed() < LONG);
}

#[test]
fn what_a_poll_leaves_behind_is_done_by_the_thread_of_the_engine() {
    let (ranks, groups) = pair();
    served(&ranks[..1]);
    // It sleeps.
    std::thread::sleep(Duration::from_millis(30));
    for turn in 0..50_u32 {
        let find = || Some(&ranks[0].0);
        let mut begun = None;
        // Begun while this thread polls, so that no other thread is woken; and the other rank does not come for as
        // long.
        poll_until_by(ranks[0].0.pollers, &find, None, || {
            begun.get_or_insert_with(|| sum(&*groups[0], turn));
            false
        });
        let (got, told) = begun.unwrap();
        let _other = sum(&*groups[1], 1);
        ranks[1].poll();
        assert_eq!(told.recv_timeout(LONG), Ok(Ok(())), "turn {turn}");
        assert_eq!(word(&got), turn + 1);
        poll_all(&ranks[1..]);
    }
}

#[test]
fn polls_that_begin_and_end_at_any_time_leave_nothing_undone() {
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
                        let mut polls = turn % 7;
                        poll_until_by(rank.0.pollers, &find, None, || {
                            polls -= 1;
                            polls < 0
                        });
                        std::thread::sleep(Duration::from_micros(u64::from(turn.unsigned_abs() % 5) * 60));
                    }
                });
            }
        }
        for turn in 0..300_u32 {
            let (got, told) = sum(&*groups[0], turn);
            let other = sum(&*groups[1], 1).1;
            let ends = [told, other].map(|told| told.recv_timeout(LONG));
            if ends != [Ok(Ok(())), Ok(Ok(()))] || word(&got) != turn + 1 {
                over.store(true, Ordering::Relaxed);
                panic!("turn {turn}: {ends:?}");
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// Begins a sum while another thread polls: it is left as a command.
fn left_behind(rank: &Rank, group: &dyn Communicator, word: u32) -> Begun {
    let polling = rank.0.progress.lock();
    let begun = sum(group, word);
    drop(polling);
    begun
}

/// Waits until the thread of an engine sleeps, and can be woken.
fn sleeps(rank: &Rank) {
    until("its thread does not sleep", || {
        // It says so before it sleeps, and has this lock from then on until it does.
        let _commands = rank.0.commands.lock();
        rank.0.is_idle.load(Ordering::SeqCst)
    });
}

#[test]
fn command_that_comes_behind_the_last_poll_of_a_thread_that_waits_is_done_by_a_thread_that_sleeps() {
    let (ranks, groups) = pair();
    served(&ranks[..1]);
    sleeps(&ranks[0]);
    let _other = sum(&*groups[1], 1);
    let mut begun = None;
    poll_until_by(ranks[0].0.pollers, &|| Some(&ranks[0].0), None, || {
        begun = Some(left_behind(&ranks[0], &*groups[0], 2));
        true
    });
    let (got, told) = begun.unwrap();
    assert_eq!(told.recv_timeout(LONG), Ok(Ok(())));
    assert_eq!(word(&got), 3);
}

/// Two ranks. Threads that have a gate can be held up in them.
fn held() -> ([Rank; 2], [Box<dyn Communicator>; 2]) {
    let ranks: [Rank; 2] = job(2).try_into().ok().unwrap();
    let terms = Terms { check: Check::Off, ..Terms::from(TERMS) };
    let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"held", terms));
    meet(&ranks, &groups);
    (ranks, groups)
}

/// As [`served`], with a gate for the thread.
fn served_behind(gate: &Arc<Gate>, rank: &Rank) {
    let (engine, gate) = (rank.0.clone(), gate.clone());
    std::thread::spawn(move || {
        gate.hold_up_this_thread();
        engine.serve(Duration::from_secs(3600));
    });
}

/// Wakes the thread of an engine, which finds nothing, and holds it up in that poll for as long as what this returns
/// is there. It has taken the commands that
/// there were by then, and so it needs their lock no more in this poll: this thread may have it, and wait for the end
/// of the poll.
fn held_up_in_its_last_look<'a>(rank: &Rank, gate: &'a Gate) -> Closed<'a> {
    sleeps(rank);
    let closed = gate.close();
    rank.0.news.notify_one();
    until("its thread does not poll", || gate.has_arrived());
    closed
}

/// A sum that one rank has begun, and the other would if it had not lost the command, which is returned.
fn begun_by_one(ranks: &[Rank; 2], groups: &[Box<dyn Communicator>; 2]) -> (Begun, Command) {
    let _other = sum(&*groups[1], 1);
    let left = left_behind(&ranks[0], &*groups[0], 2);
    (left, ranks[0].0.commands.lock().pop().unwrap())
}

#[test]
fn command_that_comes_in_the_last_poll_of_a_thread_is_done_before_it_sleeps() {
    let ((ranks, groups), gate) = (held(), Arc::default());
    let ((got, told), command) = begun_by_one(&ranks, &groups);
    served_behind(&gate, &ranks[0]);
    let closed = held_up_in_its_last_look(&ranks[0], &gate);
    ranks[0].0.leave(command);
    drop(closed);
    assert_eq!(told.recv_timeout(LONG), Ok(Ok(())));
    assert_eq!(word(&got), 3);
}

#[test]
fn what_another_thread_begins_behind_the_last_poll_of_a_thread_is_done_before_it_sleeps() {
    let ((ranks, groups), gate) = (held(), Arc::default());
    let ((got, told), command) = begun_by_one(&ranks, &groups);
    served_behind(&gate, &ranks[0]);
    let closed = held_up_in_its_last_look(&ranks[0], &gate);
    // It has this before it sleeps.
    let commands = ranks[0].0.commands.lock();
    drop(closed);
    assert!(ranks[0].0.with(LONG, |progress| progress.take([command])).is_some(), "its poll does not end");
    drop(commands);
    assert_eq!(told.recv_timeout(LONG), Ok(Ok(())));
    assert_eq!(word(&got), 3);
}

#[test]
fn thread_that_sees_nothing_under_way_and_has_yet_to_sleep_is_woken_behind_that_for_what_begins_meanwhile() {
    let ((ranks, groups), gate) = (held(), Arc::<Gate>::default());
    let engine = &ranks[0].0;
    let closed = gate.close();
    std::thread::scope(|scope| {
        let begins = scope.spawn(|| {
            gate.clone().hold_up_this_thread();
            sum(&*groups[0], 2)
        });
        until("nothing is sent", || gate.has_arrived());
        // This thread is the one that sleeps, step by step.
        let mut commands = engine.commands.lock();
        engine.is_idle.store(true, Ordering::SeqCst);
        assert!(commands.is_empty() && !engine.under_way.load(Ordering::SeqCst));
        drop(closed);
        until("nothing is under way", || engine.under_way.load(Ordering::SeqCst));
        // More than enough to wake it too early.
        std::thread::sleep(Duration::from_millis(50));
        let is_woken = !engine.news.wait_for(&mut commands, LONG).timed_out();
        drop(commands);
        begins.join().unwrap();
        assert!(is_woken);
    });
}

#[test]
fn thread_that_polls_helps_with_what_is_done_within_the_process() {
    // As many as there may be processors wait, so that no other thread comes.
    let _waiting: Vec<Helper> = (0..64).map(|_| Helper::begin()).collect();
    let (begin, begun) = channel();
    let owner = std::thread::spawn(move || {
        // Two grains that wait for each other: one for this thread, and one for a helper.
        spread((Barrier::new(2), Mutex::new(begin)), 2, 0, |(both, begin), _| {
            begin.lock().send(()).unwrap();
            both.wait();
        });
    });
    begun.recv().unwrap();
    let end = Instant::now() + LONG;
    while !owner.is_finished() {
        assert!(Instant::now() < end, "no thread helped");
        poll_until_by(Box::leak(Box::default()), &|| None, Some(end), || owner.is_finished());
    }
    owner.join().unwrap();
}

/// As a rank among so many that a launcher has started on this machine, bound to the first processor that this
/// process has: whether it takes its processor
/// for one that it shares.
fn shares_when_bound(test: &str, ranks: usize) -> bool {
    let bound = std::thread::spawn({
        let test = test.to_owned();
        move || {
            let all = sched_getaffinity(None).unwrap();
            let first = (0..CpuSet::MAX_CPU).find(|&processor| all.is_set(processor)).unwrap();
            let mut one = CpuSet::new();
            one.set(first);
            sched_setaffinity(None, &one).unwrap();
            let mut rank = process::Command::new(std::env::current_exe().unwrap());
            rank.args(["--exact", &test, "--nocapture"]).env("BOUND", "1");
            rank.env("OMPI_COMM_WORLD_SIZE", "1000").env("OMPI_COMM_WORLD_LOCAL_SIZE", ranks.to_string());
            rank.output().unwrap()
        }
    });
    let said = bound.join().unwrap();
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.status.success() && text.contains("shares: "), "{text}");
    text.contains("shares: true")
}

#[test]
fn rank_that_is_bound_to_a_processor_shares_it_where_there_are_more_ranks_than_processors() {
    if std::env::var_os("BOUND").is_some() {
        println!("shares: {}", shares_processors());
        return;
    }
    let test = std::thread::current().name().unwrap().to_owned();
    let processors = std::thread::available_parallelism().unwrap().get();
    for (ranks, shares) in [(1, false), (processors, false), (processors + 1, true)] {
        assert_eq!(shares_when_bound(&test, ranks), shares, "{ranks} ranks on {processors} processors");
    }
}

#[test]
fn thread_of_the_engine_naps_for_a_part_of_the_time_in_which_there_was_always_a_poller() {
    let naps = [0, 3, 16, 48, 320, 1_000_000].map(|watched| nap(Duration::from_millis(watched)));
    assert_eq!(naps, [200, 200, 1_000, 3_000, 20_000, 20_000].map(Duration::from_micros));
}

/// It is in a callback, or stopped. If the thread of the engine took a whole long nap for each poll, these would take
/// more than a minute.
#[test]
fn thread_that_is_expected_to_poll_and_does_not_holds_the_engine_up_once() {
    let (ranks, groups) = pair();
    served(&ranks[..1]);
    let _under_way = sum(&*groups[0], 1);
    ranks[0].0.pollers.fetch_add(1, Ordering::SeqCst);
    let polls = || ranks[0].0.polls.load(Ordering::Relaxed);
    let last = polls() + 3500;
    until("the engine does not poll", || polls() > last);
    ranks[0].0.pollers.fetch_sub(1, Ordering::SeqCst);
}

/// True if a rank takes notices from MPI.
fn listens(rank: &Rank) -> bool {
    rank.0.with(LONG, |progress| progress.listens()).unwrap()
}

/// A job whose MPI is the program's.
fn lent() -> [Rank; 2] {
    let lent = |mut library: Library| {
        library.owned = false;
        library
    };
    crate::loopback::job_of(crate::library::fake::network(2).map(lent)).try_into().ok().unwrap()
}

/// One thread has found that there is no group, and another joins one before MPI is left alone.
#[test]
fn group_that_is_joined_while_mpi_is_being_left_alone_is_listened_for() {
    let (ranks, groups) = pair();
    ranks[0].0.leave(Command::Rest);
    ranks[0].poll();
    let (got, told) = sum(&*groups[0], 2);
    let _other = sum(&*groups[1], 3);
    poll_all(&ranks);
    assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), 5));
}

#[test]
fn mpi_is_left_alone_when_the_last_group_is_let_go_of() {
    let ranks = lent();
    let groups = [b"one", b"two"].map(|id| ranks[0].join(id, TERMS));
    let [one, two] = groups;
    ranks[0].poll();
    drop(one);
    assert!(listens(&ranks[0]));
    drop(two);
    assert!(!listens(&ranks[0]));
}

/// The other ranks of a split wait for this one, whether it is in a part or not.
#[test]
fn mpi_is_not_left_alone_while_a_split_is_under_way_whose_channels_are_released() {
    for color in [None, Some(0)] {
        let ranks = lent();
        let [first, second] = [0, 1].map(|rank: usize| ranks[rank].join(b"pair", TERMS));
        drop((first.split(color, 0).unwrap(), first));
        poll_all(&ranks);
        assert!(!ranks[0].0.rest(true) && listens(&ranks[0]));
        let _part = second.split(Some(0), 0).unwrap();
        poll_all(&ranks);
        assert!(ranks[0].0.rest(true) && !listens(&ranks[0]));
    }
}

/// The rank that is told has the last reference to the group.
#[test]
fn mpi_is_left_alone_when_a_callback_lets_go_of_the_last_group() {
    let ranks = lent();
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
    assert_eq!(told.try_recv(), Ok((Ok(()), false)));
}

/// A program that has begun MPI itself lets go of a group, and a command of it is left, which another thread takes as
/// it begins something.
#[test]
fn group_that_goes_with_its_last_command_does_not_hold_up_the_thread_that_takes_the_command() {
    let ranks = lent();
    let [gone, stays] = [b"gone", b"stay"].map(|id| ranks[0].join(id, TERMS));
    let polling = ranks[0].0.progress.lock();
    gone.end(&Failure::new(Code::DataLoss, "gone"));
    drop((gone, polling));
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
    let ranks = lent();
    let [first, second] = [0, 1].map(|rank: usize| ranks[rank].join(b"pair", TERMS));
    let waits = sum(&*second, 5).1;
    let polling = ranks[0].0.progress.lock();
    first.end(&Failure::new(Code::DataLoss, "gone"));
    drop((first, polling));
    ranks[0].0.wait_until_idle();
    assert!(!listens(&ranks[0]));
    assert_eq!(notified_in_time(&ranks[1], &waits), Err(Code::DataLoss));
}

/// MPI copies what is sent as an operation begins.
#[test]
fn large_operation_is_begun_by_a_thread_that_polls_and_not_by_the_one_that_starts_it() {
    let (ranks, groups) = pair();
    let (tell, told) = channel();
    let before = calls();
    for group in &groups {
        let words = || memory(&vec![1; 1 << 20]);
        let buffers = Buffers { send: Some(words()), recv: Some(words()) };
        let tell = tell.clone();
        sum_with(&**group, buffers, Box::new(move |end| tell.send(outcome(end)).unwrap()));
    }
    assert_eq!(calls(), before);
    assert!(ranks.iter().all(|rank| rank.0.is_busy()));
    poll_all(&ranks);
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [Ok(()); 2]);
    assert!(!ranks.iter().any(|rank| rank.0.is_busy()));
}

/// MPI does not say how far it is.
#[test]
fn thread_polls_for_as_long_as_what_is_under_way_is_likely_to_take() {
    let (ranks, groups) = pair();
    for (words, least, most) in [(1, Duration::ZERO, LONG), (1 << 20, Duration::from_millis(30), LONG)] {
        let buffers = Buffers { send: Some(memory(&vec![1; words])), recv: Some(memory(&vec![0; words])) };
        sum_with(&*groups[0], buffers, Box::new(drop));
        let begin = Instant::now();
        assert!(!poll_until_by(ranks[0].0.pollers, &|| Some(&ranks[0].0), None, || false));
        assert!((least..most).contains(&begin.elapsed()), "{words} words: {:?}", begin.elapsed());
    }
}

#[test]
fn poll_ends_at_its_time_while_other_operations_move_all_the_time() {
    let (ranks, groups) = pair();
    let begin = Instant::now();
    let mut moves = 0;
    let over = poll_until_by(
        ranks[0].0.pollers,
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

/// A thread that has polled just before is likely to do so again, but a thread that sleeps soundly would not wake up
/// meanwhile.
#[test]
fn what_is_begun_just_behind_a_poll_wakes_a_thread_that_sleeps_until_it_is_woken() {
    let (ranks, groups) = pair();
    served(&ranks[..1]);
    for turn in 0..20 {
        std::thread::sleep(Duration::from_millis(10));
        let _other = sum(&*groups[1], 1);
        poll_until_by(ranks[0].0.pollers, &|| Some(&ranks[0].0), None, || true);
        let (got, told) = sum(&*groups[0], turn);
        assert_eq!(told.recv_timeout(LONG), Ok(Ok(())), "turn {turn}");
        assert_eq!(word(&got), turn + 1);
        ranks[1].poll();
    }
}

/// A thread that waits is busy with a callback of the program's, and does not poll (S13).
#[test]
fn callback_that_takes_its_time_in_a_poll_holds_up_nothing_else() {
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
            // Begun while this thread polls, so that its callback is here.
            poll_until_by(ranks[0].0.pollers, &|| Some(&ranks[0].0), None, || {
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

/// No thread polls, so that callbacks are on threads of the engine's own; each of them waits for what is begun when
/// it is called.
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
        begun.recv_timeout(LONG).expect("no thread polls while a callback waits");
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

/// Both have ended when a thread polls.
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

/// References to an engine whose thread has called a callback: its rank, a group, the thread that serves, and the one
/// that stands by.
const AT_REST: usize = 4;

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
        be_late();
        let others = [1, 4].map(|word| sum(&*groups[1], word).1);
        if fails {
            groups[1].end(&Failure::new(Code::DataLoss, "gone"));
        }
        poll_all(&ranks);
        arrive();
        poll_all(&ranks);
        let expected = if fails { Err(Code::DataLoss) } else { Ok(()) };
        for told in [told, behind].into_iter().chain(others) {
            assert_eq!(told.try_recv(), Ok(expected));
        }
    }
}

/// A launcher ends all ranks with one that ends without MPI, and some MPIs wait for all ranks.
#[test]
fn end_of_mpi_has_no_limit_unless_a_rank_has_not_come_or_what_has_failed_has_not_ended() {
    for (is_missing, keeps) in [(false, false), (true, false), (false, true)] {
        let (ranks, groups) = pair();
        let terms = if is_missing { Duration::from_millis(1) } else { TERMS };
        let [group, _other] = [0, 1].map(|rank: usize| ranks[rank].join(b"another", terms));
        if is_missing {
            let (_, told) = sum(&*group, 1);
            assert_eq!(notified_in_time(&ranks[0], &told), Err(Code::DeadlineExceeded));
        }
        if keeps {
            let (_, told) = sum(&*groups[0], 1);
            groups[0].end(&Failure::new(Code::DataLoss, "gone"));
            assert_eq!(notified_in_time(&ranks[0], &told), Err(Code::DataLoss));
        }
        let is_bounded = is_missing || keeps;
        let (held, (tell, told)) = (hold_up_ends(), channel());
        let engine = ranks[0].0.clone();
        std::thread::spawn(move || {
            engine.with(LONG, |progress| progress.quit(Duration::from_millis(1))).unwrap();
            tell.send(()).unwrap();
        });
        until("MPI is not told to end", has_begun_to_end);
        if is_bounded {
            assert_eq!(told.recv_timeout(LONG), Ok(()));
        } else {
            assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "MPI has not ended");
        }
        drop(held);
        assert!(is_bounded || told.recv_timeout(LONG) == Ok(()));
    }
}

/// The standard wants it ended by the thread that has begun it, which is often this one.
#[test]
fn mpi_is_ended_by_the_thread_that_ends_the_process() {
    let (ranks, groups) = pair();
    drop(groups);
    ranks[0].0.quit();
    assert!(has_ended_here());
}

/// Other threads may go on until the process has ended.
#[test]
fn mpi_that_has_ended_is_called_no_more_and_its_thread_goes() {
    let (ranks, groups) = pair();
    let _waits = sum(&*groups[0], 1);
    let engine = ranks[0].0.clone();
    engine.quit();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let before = calls();
        engine.serve(IDLE);
        tell.send(calls() - before).unwrap();
    });
    assert_eq!(told.recv_timeout(LONG), Ok(0));
    let before = calls();
    let _sum = sum(&*groups[0], 2);
    let end = Instant::now() + Duration::from_millis(20);
    assert!(!poll_until_by(ranks[0].0.pollers, &|| Some(&ranks[0].0), None, || Instant::now() > end + LONG));
    assert_eq!(calls(), before);
}

/// A thread of the process that it was forked from may have had any lock at that moment, and is not there any more.
#[test]
fn forked_process_waits_for_no_lock_and_for_no_operation() {
    let ranks = lent();
    let group = ranks[0].join(b"pair", TERMS);
    let operation = Operation { kind: Kind::AllReduce(Reduction::Sum), element: Element::U32, count: 1 };
    let [started, dropped] = [0, 1].map(|_| group.enter(operation).unwrap());
    // The other rank does not come to it.
    let part = group.split(Some(0), 0).unwrap().unwrap();
    let engine = ranks[0].0.clone();
    let (_commands, _progress) = (ranks[0].0.commands.lock(), ranks[0].0.progress.lock());
    engine.is_forked.store(true, Ordering::Relaxed);
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let (tell_end, told_end) = channel();
        let buffers = Buffers { send: Some(memory(&[1])), recv: Some(memory(&[0])) };
        assert!(started.start(buffers, Box::new(move |end| drop(tell_end.send(end)))).is_none());
        drop(dropped);
        let failures = [
            group.enter(operation).err(),
            group.split(Some(0), 0).err(),
            part.place().err(),
            part.enter(operation).err(),
            part.split(Some(0), 0).err(),
            told_end.recv_timeout(LONG / 4).ok().and_then(Result::err),
        ];
        group.end(&Failure::new(Code::DataLoss, "gone"));
        drop(group);
        engine.wait_until_idle();
        let _ = tell.send(failures);
    });
    let failures = told.recv_timeout(LONG / 2).expect("a process that was forked goes on");
    for failure in failures {
        assert_eq!(failure.map(|failure| failure.code()), Some(Code::FailedPrecondition));
    }
}

/// A process that was forked has the connections of the one that MPI knows.
#[test]
fn process_that_mpi_does_not_know_makes_no_call_to_it() {
    let ranks = lent();
    ranks[0].0.is_forked.store(true, Ordering::Relaxed);
    let before = calls();
    let group = ranks[0].join(b"pair", TERMS);
    poll_all(&ranks[..1]);
    drop(group);
    assert_eq!(calls(), before);
}

/// A call that makes a communicator does not return, and no other one is allowed meanwhile. What receives notices then
/// is still there when it has returned.
#[test]
fn notices_come_again_when_mpi_was_left_alone_while_it_could_not_be_called() {
    let single = |mut library: Library| {
        (library.owned, library.level) = (false, 1);
        library
    };
    let libraries = crate::library::fake::network(2).map(single);
    let ranks: [Rank; 2] = crate::loopback::job_of(libraries).try_into().ok().unwrap();
    let join = |id: &[u8], time| {
        [0, 1].map(|rank: usize| ranks[rank].join(id, if rank == 0 { time } else { TERMS }))
    };
    let groups = join(b"first", TERMS);
    meet(&ranks, &groups);
    let [first, second] = join(b"late", PASSES);
    let [(_, told), _other] = [&first, &second].map(|group| sum(&**group, 1));
    let mut made = None;
    until("the communicator is not to be made", || {
        ranks[1].poll();
        let next = |progress: &mut Progress| {
            progress.step();
            made = progress.next_creation();
        };
        ranks[0].0.with(LONG, next).unwrap();
        made.is_some()
    });
    let (creation, parent, members) = made.unwrap();
    assert_eq!(notified_in_time(&ranks[0], &told), Err(Code::DeadlineExceeded));
    drop((groups, first));
    until("the communicator is waited for", || {
        ranks[0].poll();
        ranks[0].0.rest(false)
    });
    let outcome = ranks[0].0.library.create(parent, &members);
    ranks[0].0.send(Command::Created(creation, outcome));
    let groups = join(b"next", TERMS);
    meet(&ranks, &groups);
}

/// The program has ended MPI when it gives up what it has entered.
#[test]
fn operation_that_is_given_up_when_mpi_was_left_alone_makes_no_call_to_it() {
    let ranks = lent();
    let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"pair", TERMS));
    poll_all(&ranks);
    let operation = Operation { kind: Kind::AllReduce(Reduction::Sum), element: Element::U32, count: 1 };
    let entered = groups[0].enter(operation).unwrap();
    drop(groups);
    assert!(ranks[0].0.rest(true) && !listens(&ranks[0]));
    let before = calls();
    entered.give_up(&Failure::new(Code::DataLoss, "given up"));
    ranks[0].poll();
    assert_eq!(calls(), before);
}

#[test]
fn mpi_that_was_left_alone_is_not_called_until_a_group_is_joined_again() {
    let ranks = lent();
    let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"pair", TERMS));
    let sums = [0, 1].map(|rank: usize| sum(&*groups[rank], 2));
    poll_all(&ranks);
    assert!(sums.iter().all(|(_, told)| told.try_recv() == Ok(Ok(()))));
    drop(groups);
    let before = calls();
    poll_all(&ranks);
    assert_eq!(calls(), before, "the program may have ended MPI");
    let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"pair", TERMS));
    let sums = [0, 1].map(|rank: usize| sum(&*groups[rank], 3));
    poll_all(&ranks);
    for (got, told) in sums {
        assert_eq!((told.try_recv(), word(&got)), (Ok(Ok(())), 6));
    }
}
