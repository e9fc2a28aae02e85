// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What is begun in the moments in which a thread is about to sleep, or has just gone.

use super::*;
use crate::library::loopback::{HOLD, held_network};
use hal_collectives::local::spread;
use std::sync::{Barrier, PoisonError};

/// A limit that nothing here comes near.
const LONG: Duration = Duration::from_secs(20);

/// What a command is about.
type Begun = (HostRange, Receiver<Outcome>);

/// Begins a sum while another thread looks: it is left as a command.
fn left_behind(rank: &Rank, group: &dyn Communicator, word: u32) -> Begun {
    let looking = rank.0.progress.lock();
    let begun = sum(group, word);
    drop(looking);
    begun
}

fn sleeps(rank: &Rank) {
    let end = Instant::now() + LONG;
    // It says so before it sleeps.
    while !rank.0.is_idle.load(Ordering::SeqCst) {
        assert!(Instant::now() < end, "its thread does not sleep");
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(20));
}

#[test]
fn command_that_comes_behind_the_last_look_of_a_watch_is_done_by_a_thread_that_sleeps() {
    let (ranks, groups) = pair();
    served(&ranks[..1]);
    sleeps(&ranks[0]);
    let _other = sum(&*groups[1], 1);
    let mut begun = None;
    watch_by(ranks[0].0.watchers, &|| Some(&ranks[0].0), None, || {
        begun = Some(left_behind(&ranks[0], &*groups[0], 2));
        true
    });
    let (got, told) = begun.unwrap();
    assert_eq!(told.recv_timeout(LONG), Ok(Ok(())));
    assert_eq!(word(&got), 3);
}

/// Two ranks whose looks can be held up, and no other test's.
fn held() -> ([Rank; 2], [Box<dyn Communicator>; 2]) {
    let watchers = Box::leak(Box::default());
    let ranks: Vec<Rank> =
        held_network(2).map(|library| Rank(Arc::new(Engine::new(library, watchers)))).collect();
    let ranks: [Rank; 2] = ranks.try_into().ok().unwrap();
    let groups = [0, 1].map(|rank: usize| ranks[rank].join(b"held", TERMS));
    (ranks, groups)
}

/// Wakes the thread of an engine, which finds nothing: `meanwhile` runs in its look, and what that returns before it would sleep again.
fn while_it_looks<T: FnOnce()>(rank: &Rank, meanwhile: impl FnOnce() -> T) {
    let held = HOLD.lock().unwrap_or_else(PoisonError::into_inner);
    rank.0.news.notify_one();
    let end = Instant::now() + LONG;
    while rank.0.progress.try_lock().is_some() {
        assert!(Instant::now() < end, "its thread does not look");
        std::thread::yield_now();
    }
    let then = meanwhile();
    // It has these before it sleeps.
    let commands = rank.0.commands.lock();
    drop(held);
    drop(rank.0.progress.lock());
    then();
    drop(commands);
}

#[test]
fn what_is_begun_while_a_thread_looks_for_the_last_time_is_done_before_it_sleeps() {
    for is_command in [true, false] {
        let (ranks, groups) = held();
        let _other = sum(&*groups[1], 1);
        let left = left_behind(&ranks[0], &*groups[0], 2);
        let mut command = ranks[0].0.commands.lock().pop();
        assert!(command.is_some());
        served(&ranks[..1]);
        sleeps(&ranks[0]);
        let engine = &ranks[0].0;
        while_it_looks(&ranks[0], || {
            if is_command {
                engine.commands.lock().extend(command.take());
            }
            // Or another thread takes it behind that look, and goes.
            || assert!(engine.with(LONG, |progress| progress.take(command)).is_some())
        });
        assert_eq!(left.1.recv_timeout(LONG), Ok(Ok(())), "as a command: {is_command}");
        assert_eq!(word(&left.0), 3);
    }
}

#[test]
fn thread_that_watches_helps_with_what_is_done_within_the_process() {
    // As many as there may be processors wait, so that no other thread comes.
    let _waiting: Vec<Helper> = (0..64).map(|_| Helper::begin()).collect();
    let (begin, begun) = channel();
    let owner = std::thread::spawn(move || {
        // Two grains that wait for each other: one for this thread, and one for a helper.
        spread((Barrier::new(2), Mutex::new(begin)), 2, |(both, begin), _| {
            begin.lock().send(()).unwrap();
            both.wait();
        });
    });
    begun.recv().unwrap();
    let end = Instant::now() + LONG;
    while !owner.is_finished() {
        assert!(Instant::now() < end, "no thread helped");
        watch_by(Box::leak(Box::default()), &|| None, Some(end), || owner.is_finished());
    }
    owner.join().unwrap();
}
