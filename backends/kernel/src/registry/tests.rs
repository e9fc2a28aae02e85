// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

use super::*;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// A registry that lives as long as a static of the program.
fn registry<T>() -> &'static Registry<u32, T> {
    Box::leak(Box::default())
}

/// A key whose place no test waits for.
fn plain(registry: &'static Registry<u32, u32>, key: u32) -> Arc<u32> {
    registry.open(key, long(), |_| Ok::<_, Infallible>(key)).unwrap()
}

/// Time that only a test that goes wrong uses up.
fn long() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[test]
fn things_of_one_key_are_one_while_they_live() {
    let registry = registry();
    let (one, two) = (plain(registry, 1), plain(registry, 2));
    assert!(Arc::ptr_eq(&one, &plain(registry, 1)) && !Arc::ptr_eq(&one, &two));
    let private = registry.private(3);
    assert!(!Arc::ptr_eq(&private, &plain(registry, 3)), "a private entry was given out");
    assert!(registry.find(|&thing| thing == 3).is_some_and(|found| Arc::ptr_eq(&found, &private)));
    drop((one, private));
    assert!(registry.find(|&thing| thing == 1).is_none());
    let _again = plain(registry, 1);
    assert_eq!(registry.state.lock().entries.len(), 2, "those that have ended are forgotten");
}

#[test]
fn request_for_held_keys_waits_until_they_are_free() {
    let registry = registry();
    let (sender, receiver) = mpsc::channel();
    let first = registry.open(1, long(), |place| sender.send(place).map(|()| 1)).unwrap();
    let place = receiver.recv().unwrap();
    drop(first);
    thread::scope(|scope| {
        let next = scope.spawn(|| registry.open(1, long(), |_| Ok::<_, Infallible>(2)).unwrap());
        // Until it sleeps.
        while !next.is_finished() && registry.changed.notify_all() == 0 {
            thread::yield_now();
        }
        // It has looked again, and sleeps.
        thread::sleep(Duration::from_millis(50));
        assert!(!next.is_finished(), "the first is still there");
        let begin = Instant::now();
        drop(place);
        assert_eq!(*next.join().unwrap(), 2);
        assert!(begin.elapsed() < Duration::from_secs(20), "the waiting thread was not woken");
    });
}

#[test]
fn wait_for_held_keys_ends_in_time_and_the_next_maker_reports_the_error() {
    let registry = registry();
    let (sender, receiver) = mpsc::channel();
    drop(registry.open(1, long(), |place| sender.send(place).map(|()| 1)).unwrap());
    let begin = Instant::now();
    let patience = Duration::from_millis(20);
    let refused = registry.open(1, begin + patience, |_| Err("busy")).unwrap_err();
    assert_eq!(refused, "busy");
    assert!(begin.elapsed() >= patience);
    drop(receiver.recv().unwrap());
    assert_eq!(*plain(registry, 1), 1);
}

#[test]
fn thing_that_is_given_up_is_shared_no_more_and_replaced_once_released() {
    let registry = registry();
    let (sender, receiver) = mpsc::channel();
    let lost = registry.open(1, long(), |place| sender.send(place).map(|()| 1)).unwrap();
    let place = receiver.recv().unwrap();
    place.give_up();
    assert!(registry.find(|&thing| thing == 1).is_some(), "its holders still have it");
    assert_eq!(registry.open(1, Instant::now(), |_| Err::<u32, _>("held")).unwrap_err(), "held");
    place.release();
    let next = plain(registry, 1);
    assert!(!Arc::ptr_eq(&lost, &next));
    drop(place);
    assert!(Arc::ptr_eq(&next, &plain(registry, 1)), "the place was that of the first");
    let again = registry.open(2, long(), |place| sender.send(place).map(|()| 2)).unwrap();
    receiver.recv().unwrap().release();
    assert!(!Arc::ptr_eq(&again, &plain(registry, 2)), "what is released is given up");
}

#[test]
fn one_thread_makes_it_and_other_keys_do_not_wait() {
    let registry = registry();
    let (begun, has_begun) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let slow = scope.spawn(move || {
            registry.open(1, long(), |place| {
                // A thing without a place is made once, too.
                drop(place);
                begun.send(()).unwrap();
                may_go.recv().unwrap();
                Ok::<_, Infallible>(1)
            })
        });
        has_begun.recv().unwrap();
        assert_eq!(*plain(registry, 2), 2, "another key");
        let at_once = Instant::now();
        let other =
            scope.spawn(move || registry.open(1, at_once, |_| -> Result<u32, &str> { panic!("made twice") }));
        go.send(()).unwrap();
        assert!(Arc::ptr_eq(&slow.join().unwrap().unwrap(), &other.join().unwrap().unwrap()));
    });
}

/// The first thing of a key is held while the second, which was opened late, is free.
#[test]
fn request_waits_for_every_thing_of_its_key() {
    let registry = registry();
    let (sender, receiver) = mpsc::channel();
    let open = |until| registry.open(1, until, |place| sender.send(place).map(|()| 1)).unwrap();
    let (first, place) = (open(long()), receiver.recv().unwrap());
    place.give_up();
    let second = open(Instant::now());
    receiver.recv().unwrap().release();
    let begin = Instant::now();
    let patience = Duration::from_millis(20);
    assert_eq!(registry.open(1, begin + patience, |_| Err::<u32, _>("held")).unwrap_err(), "held");
    assert!(begin.elapsed() >= patience);
    drop((first, second));
}

/// A thread that sleeps until a key is free or made, and has had the time to fall asleep.
fn wait_for<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    registry: &'static Registry<u32, u32>,
    key: u32,
) -> thread::ScopedJoinHandle<'scope, Arc<u32>> {
    let waiting = scope.spawn(move || registry.open(key, long(), |_| Ok::<_, Infallible>(key)).unwrap());
    thread::sleep(Duration::from_millis(50));
    waiting
}

/// Threads that wait for other keys have slept for longer.
#[test]
fn threads_are_woken_whatever_others_wait_for() {
    let registry = registry();
    let (sender, receiver) = mpsc::channel();
    let places = [1, 2].map(|key| {
        drop(registry.open(key, long(), |place| sender.send(place).map(|()| key)).unwrap());
        receiver.recv().unwrap()
    });
    thread::scope(|scope| {
        let waiting = [1, 2].map(|key| wait_for(scope, registry, key));
        let begin = Instant::now();
        for (place, thread) in places.into_iter().zip(waiting).rev() {
            drop(place);
            thread.join().unwrap();
            assert!(begin.elapsed() < Duration::from_secs(20), "the key was free");
        }
        let makers = [3, 4].map(|key| {
            let (begun, has_begun) = mpsc::channel();
            let (go, may_go) = mpsc::channel::<()>();
            scope.spawn(move || {
                let made = registry.open(key, long(), |place| {
                    drop(place);
                    begun.send(()).unwrap();
                    may_go.recv().unwrap();
                    Ok::<_, Infallible>(key)
                });
                drop(made);
            });
            has_begun.recv().unwrap();
            go
        });
        let waiting = [3, 4].map(|key| wait_for(scope, registry, key));
        let begin = Instant::now();
        for (go, thread) in makers.into_iter().zip(waiting).rev() {
            go.send(()).unwrap();
            thread.join().unwrap();
            assert!(begin.elapsed() < Duration::from_secs(20), "it was made");
        }
    });
}

/// A thing whose end calls the registry.
struct Placed {
    _place: Registration,
}

#[test]
fn thing_may_end_while_it_is_looked_at() {
    let registry = registry();
    let opened = registry.open(1, long(), |place| Ok::<_, Infallible>(Placed { _place: place })).unwrap();
    let last = Mutex::new(Some(opened));
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let found = registry.find(|_| {
            drop(last.lock().take());
            false
        });
        sender.send(found.is_none())
    });
    assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Ok(true), "it waits for itself");
}

/// Also where it is not an error that ends it, but a panic.
#[test]
fn waiting_thread_retries_what_could_not_be_made() {
    let registry = registry();
    for panics in [false, true] {
        let (begun, has_begun) = mpsc::channel();
        let (go, may_go) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let failing = scope.spawn(move || {
                registry.open(1, long(), |_| {
                    begun.send(()).unwrap();
                    may_go.recv().unwrap();
                    assert!(!panics, "on purpose");
                    Err("no")
                })
            });
            has_begun.recv().unwrap();
            let other = scope.spawn(|| plain(registry, 1));
            go.send(()).unwrap();
            assert!(failing.join().is_err() == panics);
            assert_eq!(*other.join().unwrap(), 1);
        });
    }
}

/// A kernel that lets one file at a time use a card.
#[derive(Default)]
struct Node {
    open: AtomicBool,
}

/// A card that is open, until it is dropped or lost.
struct Card {
    number: u64,
    node: &'static Node,
    file: Mutex<bool>,
    place: Registration,
}

impl Card {
    fn open(node: &'static Node, number: &AtomicU64, place: Registration) -> Result<Self, &'static str> {
        if node.open.swap(true, Ordering::SeqCst) {
            return Err("busy");
        }
        let number = number.fetch_add(1, Ordering::SeqCst) + 1;
        Ok(Self { number, node, file: Mutex::new(true), place })
    }

    /// Others may be at it: the owner of the file says that it is closed.
    fn close(&self) {
        let file = std::mem::take(&mut *self.file.lock());
        if file {
            thread::yield_now();
            assert!(self.node.open.swap(false, Ordering::SeqCst), "it was open");
            self.place.release();
        }
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        self.close();
    }
}

/// Threads open cards, close them and lose them at once. Each gets one, none is told that another has it, and a
/// thread that begins to ask when a card is known to be lost does not get that one.
#[test]
fn threads_that_open_close_and_lose_cards_at_once_all_get_one() {
    const ROUNDS: u64 = 2000;
    let registry: &Registry<u32, Card> = registry();
    let nodes: &'static [Node; 2] = Box::leak(Box::default());
    let (made, known_lost) = (AtomicU64::new(0), [AtomicU64::new(0), AtomicU64::new(0)]);
    thread::scope(|scope| {
        for thread in 0..6_u64 {
            let (made, known_lost) = (&made, &known_lost);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let which = usize::try_from((thread + round) % 2).unwrap();
                    let before = known_lost[which].load(Ordering::SeqCst);
                    let open = |place| Card::open(&nodes[which], made, place);
                    let card = registry.open(u32::try_from(which).unwrap(), long(), open).unwrap();
                    assert!(card.number > before, "it was known to be lost");
                    if (round * 7 + thread) % 5 == 0 {
                        card.place.give_up();
                        known_lost[which].fetch_max(card.number, Ordering::SeqCst);
                        thread::yield_now();
                        card.close();
                    }
                }
            });
        }
    });
    assert!(nodes.iter().all(|node| !node.open.load(Ordering::SeqCst)));
    assert!(made.load(Ordering::SeqCst) < 6 * ROUNDS, "some got what others had");
}

/// Threads open a card, fail to, panic while they do, lose it and close it, all at once. No thread waits for what
/// never came, none is told that another has it, and nothing of those who failed is left.
#[test]
fn threads_that_fail_and_panic_while_they_open_cards_leave_them_to_others() {
    const ROUNDS: u64 = 1000;
    let registry: &Registry<u32, Card> = registry();
    let node: &'static Node = Box::leak(Box::default());
    let (made, ends) = (AtomicU64::new(0), [const { AtomicU64::new(0) }; 4]);
    thread::scope(|scope| {
        for thread in 0..6_u64 {
            let (made, ends) = (&made, &ends);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let open = |place| {
                        if round % 7 == thread {
                            return Err("before");
                        }
                        let card = Card::open(node, made, place)?;
                        match (round + thread) % 5 {
                            0 => Err("behind"),
                            // Says nothing on the terminal.
                            1 => resume_unwind(Box::new("on purpose")),
                            _ => Ok(card),
                        }
                    };
                    let opened = catch_unwind(AssertUnwindSafe(|| registry.open(1, long(), open)));
                    let end = match opened {
                        Ok(Ok(card)) => {
                            if round % 3 == 0 {
                                card.place.give_up();
                                thread::yield_now();
                                card.close();
                            }
                            0
                        }
                        Ok(Err("before")) => 1,
                        Ok(Err("behind")) => 2,
                        Ok(Err(other)) => panic!("{other}"),
                        Err(_) => 3,
                    };
                    ends[end].fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert!(!node.open.load(Ordering::SeqCst));
    assert!(ends.iter().all(|end| end.load(Ordering::SeqCst) > 0), "{ends:?}");
    let last = registry.open(1, Instant::now(), |place| Card::open(node, &made, place)).unwrap();
    assert!(*last.file.lock());
    assert_eq!(registry.state.lock().entries.len(), 1, "those that failed are forgotten");
}
