// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Larger schedules than loom can exhaust, at random: several threads that submit, signal, cancel, fail, lose a device
//! and shut down, while devices run and report.
//!
//! Run with `RUSTFLAGS="--cfg shuttle" cargo test -p hal-semaphore --test shuttle --release`. A run repeats itself:
//! `SHUTTLE_SEED` asks for other schedules and `SHUTTLE_ITERATIONS` for more. A failure prints the schedule that
//! repeats it.
#![cfg(shuttle)]
#![expect(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

use hal_semaphore::backend::{DeviceSpec, NativeWaits};
use hal_semaphore::mutation::{self, Mutation};
use hal_semaphore::testing::{Job, Seeded, SoftBackend, device};
use hal_semaphore::*;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Runner, thread};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const PRODUCERS: u64 = 3;
const LINKS: u64 = 5;

/// A clock on which no moment ever comes.
struct Endless(VirtualClock);

impl Clock for Endless {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, pending: &Wakeup, _until: Option<Duration>) {
        self.0.sleep(pending, None);
    }
}

fn soak(random: u64) {
    let mut random = Seeded::new(random);
    let spec = |native_waits| DeviceSpec { native_waits, ..device(2) };
    let kind = match random.below(3) {
        0 => NativeWaits::Events,
        1 => NativeWaits::Epochs,
        _ => NativeWaits::None,
    };
    let capacity = if random.one_in(2) { 2 } else { usize::MAX };
    let loses = random.one_in(4);
    let backend = SoftBackend::new(vec![spec(kind), spec(NativeWaits::Events)]).capacity(capacity);
    let engine = Engine::new(backend).unwrap();
    let start = Semaphore::new(&engine, 0).unwrap();
    // Two semaphores a chain, in turn: what a link signals is not what the link before it signalled.
    let pair = |_| [Semaphore::new(&engine, 0).unwrap(), Semaphore::new(&engine, 0).unwrap()];
    let chains: Vec<[Semaphore; 2]> = (0..PRODUCERS).map(pair).collect();
    let (accepted, called) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));

    let mut threads = Vec::new();
    // The tags of what was answered to be cancelled. No schedule depends on this lock.
    let cancelled: Arc<std::sync::Mutex<Vec<u64>>> = Arc::default();
    for (number, [even, odd]) in (0..PRODUCERS).zip(chains.clone()) {
        let (engine, start, accepted) = (engine.clone(), start.clone(), accepted.clone());
        let cancelled = cancelled.clone();
        let mut random = Seeded::new(random.next());
        threads.push(thread::spawn(move || {
            // A chain across queues and devices; its first link waits for a signal that is not there yet.
            for link in 1..=LINKS {
                let (before, after) = if link % 2 == 1 { (&even, &odd) } else { (&odd, &even) };
                let waits = [(start.clone(), 1), (before.clone(), link - 1)];
                let tag = number * LINKS + link;
                let failure = Failure::new(Code::DataLoss, format!("{tag}"));
                let action = match random.below(10) {
                    0 => Action::Barrier,
                    1 => Action::Queue(Job::failing(tag, failure)),
                    2 => Action::Marker(Job::new(tag)),
                    3 => Action::Early(Job::early(tag, random.one_in(2))),
                    _ => Action::Queue(Job::new(tag)),
                };
                let affinity = Affinity::queue(random.below(2));
                let signals = [(after.clone(), link)];
                let placed = engine.submit(random.below(2), affinity, &waits, &signals, action).unwrap();
                accepted.fetch_add(1, Ordering::SeqCst);
                if random.one_in(6) {
                    if engine.cancel(placed.ticket) == Cancel::Cancelled {
                        cancelled.lock().unwrap().push(tag);
                    }
                }
            }
        }));
    }
    let subscriptions: Vec<_> = chains
        .iter()
        .map(|[_, last]| {
            let called = called.clone();
            last.subscribe(LINKS, move |_| {
                called.fetch_add(1, Ordering::SeqCst);
            })
        })
        .collect();
    // A thread that sees a link's signal sees the signal of the link before it.
    let mut witnesses = Vec::new();
    for link in 1..=LINKS {
        for [even, odd] in &chains {
            let (effect, cause) = if link % 2 == 1 { (odd, even.clone()) } else { (even, odd.clone()) };
            witnesses.push(effect.subscribe(link, move |state| {
                if let Ok(seen) = state {
                    assert!(cause.value() + 1 >= seen, "the effect {seen} is there and its cause is not");
                }
            }));
        }
    }
    {
        let start = start.clone();
        threads.push(thread::spawn(move || start.signal(1).unwrap()));
    }
    let device = {
        let (engine, mut random) = (engine.clone(), Seeded::new(random.next()));
        thread::spawn(move || {
            for _ in 0..60 {
                let queue = engine.queue(random.below(2), random.below(2)).unwrap();
                // Reports lag behind, and one queue's may overtake another's.
                if random.one_in(8) {
                    engine.backend().take_host().into_iter().for_each(|(task, _)| task.finish(Ok(())));
                } else if random.one_in(3) {
                    engine.backend().report(queue);
                } else {
                    engine.backend().step(queue);
                }
                thread::yield_now();
            }
            if loses {
                engine.backend().lose(0, Failure::with_origin(Code::Unavailable, Origin::Device, "gone"));
            }
        })
    };
    for thread in threads {
        thread.join().unwrap();
    }
    device.join().unwrap();
    // Whatever the devices and the host still have runs while a thread waits for it: that thread may be the one that
    // hands it to them.
    let waited = Arc::new(AtomicBool::new(false));
    let runner = {
        let (engine, waited) = (engine.clone(), waited.clone());
        thread::spawn(move || {
            while !waited.load(Ordering::SeqCst) {
                engine.backend().run_until_idle_with_host();
                thread::yield_now();
            }
        })
    };
    for [_, last] in &chains {
        // Reached or failed: either way the wait ends.
        let _ = engine.wait(WaitMode::All, &[(last.clone(), LINKS)], &VirtualClock::new(), None);
    }
    waited.store(true, Ordering::SeqCst);
    runner.join().unwrap();
    engine.backend().run_until_idle_with_host();
    engine.shut_down(&Endless(VirtualClock::new()), Duration::MAX, Duration::MAX).unwrap();

    assert_eq!(engine.backend().violations(), 0);
    let stats = engine.stats();
    assert_eq!(stats.succeeded + stats.failed, accepted.load(Ordering::SeqCst), "each operation ends once");
    let mut tags: Vec<u64> = engine.backend().reclaimed().into_iter().map(|(tag, _)| tag).collect();
    tags.sort_unstable();
    assert!(tags.windows(2).all(|pair| pair.first() != pair.last()), "work came back twice: {tags:?}");
    assert_eq!(called.load(Ordering::SeqCst), PRODUCERS, "each callback is called once");
    let occupancy = engine.occupancy();
    assert_eq!((occupancy.operations, occupancy.host_waits, occupancy.callbacks), (0, 0, 0));
    assert_eq!(occupancy.events, occupancy.idle_events);
    let log = engine.backend().tags();
    let cancelled = cancelled.lock().unwrap();
    assert!(
        log.iter().all(|tag| !cancelled.contains(tag)),
        "what was cancelled has run: {cancelled:?}, {log:?}"
    );
    // Links of one chain run in order, wherever they run.
    for number in 0..PRODUCERS {
        let chain: Vec<u64> = log.iter().copied().filter(|tag| (tag - 1) / LINKS == number).collect();
        assert!(chain.is_sorted(), "chain {number} ran as {chain:?}");
    }
    drop((subscriptions, witnesses));
}

fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}: a number")))
}

fn set_mutation() {
    mutation::set(setting("ENGINE_MUTATION", 0));
}

#[test]
fn random_schedules() {
    set_mutation();
    let scheduler =
        RandomScheduler::new_from_seed(setting("SHUTTLE_SEED", 1), setting("SHUTTLE_ITERATIONS", 30_000));
    let seed = AtomicU64::new(0);
    Runner::new(scheduler, shuttle::Config::default()).run(move || soak(seed.fetch_add(1, Ordering::SeqCst)));
}

#[test]
fn schedules_with_few_preemptions() {
    set_mutation();
    let (seed, iterations) = (setting("SHUTTLE_SEED", 1), setting("SHUTTLE_ITERATIONS", 10_000));
    let scheduler = PctScheduler::new_from_seed(seed, 3, iterations);
    let seed = AtomicU64::new(1 << 32);
    Runner::new(scheduler, shuttle::Config::default()).run(move || soak(seed.fetch_add(1, Ordering::SeqCst)));
}

/// The soak notices the mutants that loom notices, as far as they show in it: the one that is left out needs a
/// schedule too rare for chance, and loom, which tries them all, finds it.
#[test]
fn mutants_of_loom_are_caught() {
    for mutation in [
        Mutation::RegisterDoesNotCheck,
        Mutation::CancelIgnoresState,
        Mutation::EventNotHeld,
        Mutation::RetireOutOfOrder,
        Mutation::EarlyDoesNotCheck,
    ] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "random_schedules", "--nocapture"])
            .env("ENGINE_MUTATION", (mutation as u32).to_string())
            .output()
            .unwrap();
        assert!(String::from_utf8_lossy(&output.stdout).contains("running 1 test"));
        assert!(!output.status.success(), "the soak did not notice {mutation:?}");
    }
}
