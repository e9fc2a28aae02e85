// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What is begun in the moments in which a thread is about to sleep, or has just gone.

use super::*;
use crate::library::loopback::{Closed, Gate, held_network};
use hal_collectives::local::spread;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::process;
use std::sync::Barrier;

/// A limit that nothing here comes near.
const LONG: Duration = Duration::from_secs(20);

/// What a command is about.
type StartedOperation = (HostRange, Receiver<Outcome>);

/// Begins a sum while another thread looks: it is left as a command.
fn left_behind(rank: &Rank, group: &dyn Communicator, word: u32) -> StartedOperation {
    let looking = rank.0.progress.lock();
    let begun = sum(group, word);
    drop(looking);
    begun
}

/// Waits until something is so.
pub(super) fn until(otherwise: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "{otherwise}");
        std::thread::sleep(Duration::from_millis(1));
    }
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
fn command_that_comes_behind_the_last_look_of_a_watch_is_done_by_a_thread_that_sleeps() {
    let (ranks, groups) = pair();
    served(&ranks[..1]);
    sleeps(&ranks[0]);
    let _other = sum(&*groups[1], 1);
    let mut begun = None;
    poll_until_by(ranks[0].0.watchers, &|| Some(&ranks[0].0), None, || {
        begun = Some(left_behind(&ranks[0], &*groups[0], 2));
        true
    });
    let (got, told) = begun.unwrap();
    assert_eq!(told.recv_timeout(LONG), Ok(Ok(())));
    assert_eq!(word(&got), 3);
}

/// Two ranks. Threads that have a gate can be held up in them.
fn held() -> ([Rank; 2], [Box<dyn Communicator>; 2]) {
    let ranks: [Rank; 2] = job_of(held_network(2)).try_into().ok().unwrap();
    let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"held", TERMS));
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

/// Wakes the thread of an engine, which finds nothing, and holds it up in that look for as long as what this
/// returns is there. It has taken the commands that there were by then, and so it needs their lock no more in
/// this look: this thread may have it, and wait for the end of the look.
fn held_up_in_its_last_look<'a>(rank: &Rank, gate: &'a Gate) -> Closed<'a> {
    sleeps(rank);
    let closed = gate.close();
    rank.0.news.notify_one();
    until("its thread does not look", || gate.has_arrived());
    closed
}

/// A sum that one rank has begun, and the other would if it had not lost the command, which is returned.
fn begun_by_one(ranks: &[Rank; 2], groups: &[Box<dyn Communicator>; 2]) -> (StartedOperation, Command) {
    let _other = sum(&*groups[1], 1);
    let left = left_behind(&ranks[0], &*groups[0], 2);
    (left, ranks[0].0.commands.lock().pop().unwrap())
}

#[test]
fn command_that_comes_in_the_last_look_of_a_thread_is_done_before_it_sleeps() {
    let ((ranks, groups), gate) = (held(), Arc::default());
    let ((got, told), command) = begun_by_one(&ranks, &groups);
    served_behind(&gate, &ranks[0]);
    let closed = held_up_in_its_last_look(&ranks[0], &gate);
    ranks[0].0.commands.lock().push(command);
    drop(closed);
    assert_eq!(told.recv_timeout(LONG), Ok(Ok(())));
    assert_eq!(word(&got), 3);
}

#[test]
fn what_another_thread_begins_behind_the_last_look_of_a_thread_is_done_before_it_sleeps() {
    let ((ranks, groups), gate) = (held(), Arc::default());
    let ((got, told), command) = begun_by_one(&ranks, &groups);
    served_behind(&gate, &ranks[0]);
    let closed = held_up_in_its_last_look(&ranks[0], &gate);
    // It has this before it sleeps.
    let commands = ranks[0].0.commands.lock();
    drop(closed);
    assert!(ranks[0].0.with(LONG, |progress| progress.take([command])).is_some(), "its look does not end");
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
fn thread_that_watches_helps_with_what_is_done_within_the_process() {
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

/// As a rank among so many that a launcher has started on this machine, bound to the first processor that
/// this process has: whether it takes its processor for one that it shares.
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
fn thread_of_the_engine_naps_for_a_part_of_the_time_in_which_there_was_always_a_watcher() {
    let naps = [0, 3, 16, 48, 52, 1_000_000].map(|watched| nap(Duration::from_millis(watched)));
    assert_eq!(naps, [200, 200, 1_000, 3_000, 3_200, 3_200].map(Duration::from_micros));
}
