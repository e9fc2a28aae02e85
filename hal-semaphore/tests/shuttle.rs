// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Random schedules that are larger than loom can exhaust: several threads submit a random graph, signal,
//! fail, lose the device and shut down, while it runs and reports. The graphs and their oracle are
//! those of the engine's tests (`common/graph.rs`).
//!
//! Run with `RUSTFLAGS="--cfg shuttle" cargo test -p hal-semaphore --test shuttle --release`. A run repeats
//! itself: `SHUTTLE_SEED` selects other schedules and `SHUTTLE_ITERATIONS` more. A failure prints the schedule
//! that repeats it.
#![cfg(shuttle)]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]

#[path = "common/graph.rs"]
mod graph;

use graph::{Graph, Shape, assert_idle};
use hal_semaphore::backend::{DeviceSpec, NativeWaits};
use hal_semaphore::mutation::{self, Mutation};
use hal_semaphore::testing::{Seeded, device};
use hal_semaphore::*;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Runner, thread};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const PRODUCERS: usize = 3;

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

/// A device with four queues, and a graph for it in which some operations fail, or none.
fn random_graph(random: &mut Seeded) -> Graph {
    let ways = [NativeWaits::Events, NativeWaits::Events, NativeWaits::Epochs, NativeWaits::None];
    let kind = ways[random.below(4)];
    let spec = DeviceSpec { native_waits: kind, ..device(4) };
    let failing = if random.one_in(2) { 8 } else { 0 };
    Graph::new(Shape { spec, has_hub: false, operations: (9, 9), failing }, Seeded::new(random.next()))
}

fn soak(random: u64) {
    let mut random = Seeded::new(random);
    let graph = Arc::new(random_graph(&mut random));
    let loses = random.one_in(4);
    let (engine, semaphores) = graph.engine();
    let called = Arc::new(AtomicU64::new(0));
    // A thread that sees a signal sees everything that its operation waited for.
    let mut witnesses = Vec::new();
    for node in &graph.nodes {
        for &(effect, value) in &node.signals {
            let of = |&(semaphore, value): &(usize, u64)| (semaphores[semaphore].clone(), value);
            let causes: Vec<_> = node.waits.iter().map(of).collect();
            let called = called.clone();
            witnesses.push(semaphores[effect].subscribe(value, move |state| {
                called.fetch_add(1, Ordering::SeqCst);
                for (cause, value) in causes.iter().filter(|_| state.is_ok()) {
                    assert!(cause.value() >= *value, "the effect is there and its cause is not");
                }
            }));
        }
    }

    let mut threads = Vec::new();
    for producer in 0..PRODUCERS {
        let (graph, engine, semaphores) = (graph.clone(), engine.clone(), semaphores.clone());
        threads.push(thread::spawn(move || {
            for number in (producer..graph.nodes.len()).step_by(PRODUCERS) {
                graph.submit(&engine, &semaphores, number);
            }
        }));
    }
    threads.push({
        let (graph, semaphores) = (graph.clone(), semaphores.clone());
        thread::spawn(move || {
            for &(semaphore, value) in &graph.host {
                semaphores[semaphore].signal(value).unwrap();
            }
        })
    });
    let device = {
        let (engine, mut random) = (engine.clone(), Seeded::new(random.next()));
        thread::spawn(move || {
            for _ in 0..60 {
                let queue = engine.queue(random.below(4)).unwrap();
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
                engine.backend().lose(Failure::with_origin(Code::Unavailable, Origin::Device, "gone"));
            }
        })
    };
    for thread in threads {
        thread.join().unwrap();
    }
    device.join().unwrap();
    // The rest runs on devices and the host while a thread waits for it: that thread may be the one that hands it to
    // them.
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
    for &(semaphore, value) in graph.nodes.iter().flat_map(|node| &node.signals) {
        // Reached or failed: either way the wait ends.
        let point = [(semaphores[semaphore].clone(), value)];
        let _ = engine.wait(WaitMode::All, &point, &VirtualClock::new(), None);
    }
    waited.store(true, Ordering::SeqCst);
    runner.join().unwrap();
    engine.backend().run_until_idle_with_host();
    engine.shut_down(&Endless(VirtualClock::new()), Duration::MAX, Duration::MAX).unwrap();

    assert_idle(&engine, "soak");
    let reclaimed = engine.backend().reclaimed();
    let mut tags: Vec<u64> = reclaimed.iter().map(|&(tag, _)| tag).collect();
    tags.sort_unstable();
    assert!(tags.windows(2).all(|pair| pair.first() != pair.last()), "work is reclaimed twice: {tags:?}");
    assert_eq!(called.load(Ordering::SeqCst), witnesses.len() as u64, "each callback is called once");
    let counts = engine.counts();
    assert_eq!((counts.host_waits, counts.callbacks), (0, 0));
    let succeeds =
        |number: usize| reclaimed.iter().any(|(tag, outcome)| *tag == number as u64 && outcome.is_ok());
    graph.check_order(&engine, "soak", succeeds);
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
        Mutation::FailsStarted,
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
