// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The engine's memory: no allocation for a submission in the steady state, and a bounded record for a blocked
//! operation.
#![cfg(not(any(loom, shuttle)))]
#![expect(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

#[path = "common/counting.rs"]
mod counting;
#[path = "common/noop.rs"]
mod noop;

use counting::{Counting, counted};
use hal_semaphore::backend::{DeviceSpec, NativeWaits};
use hal_semaphore::testing::device;
use hal_semaphore::*;
use noop::Noop;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn semaphore(engine: &Engine<Noop>) -> Semaphore {
    Semaphore::new(engine, 0).unwrap()
}

/// Operation `i` waits for `i` and signals `i + 1`, on the queues in turn.
fn chain(
    engine: &Engine<Noop>,
    x: &Semaphore,
    from: u64,
    n: u64,
    queues: u64,
    action: fn(u64) -> Action<u64>,
) {
    for i in from..from + n {
        let queue = Affinity(1 << (i % queues));
        engine.submit(queue, &[(x.clone(), i)], &[(x.clone(), i + 1)], action(i)).unwrap();
    }
}

/// Runs a round until it allocates nothing, and insists that it gets there.
fn becomes_steady(name: &str, mut round: impl FnMut(u64)) {
    for warm_up in 0..3 {
        round(warm_up);
    }
    let ((), allocated) = counted(|| (3..8).for_each(&mut round));
    assert_eq!(allocated.allocations, 0, "{name}: {allocated:?}");
}

#[test]
fn chains_allocate_nothing() {
    for (name, queues, action) in [
        ("one queue", 1, Action::Queue as fn(u64) -> Action<u64>),
        ("two queues", 2, Action::Queue),
        ("barriers", 1, |_| Action::Barrier),
    ] {
        let engine = Engine::new(Noop::immediate(2)).unwrap();
        let x = semaphore(&engine);
        becomes_steady(name, |round| chain(&engine, &x, round * 1000, 1000, queues, action));
        assert_eq!(x.query().unwrap(), 8000);
    }
}

#[test]
fn native_events_allocate_nothing() {
    let engine = Engine::new(Noop::deferred(2)).unwrap();
    let x = semaphore(&engine);
    let mut waits = 0;
    becomes_steady("events", |round| {
        chain(&engine, &x, round * 1000, 1000, 2, Action::Queue);
        waits = engine.backend().native_waits();
        engine.backend().flush();
    });
    assert_eq!(x.query().unwrap(), 8000);
    assert!(waits >= 8000 - 8, "only {waits} waits were left to the device");
    let counts = engine.counts();
    assert_eq!(counts.events, counts.idle_events);
}

#[test]
fn blocked_operations_are_small_and_draining_them_allocates_nothing() {
    let engine = Engine::new(Noop::immediate(1)).unwrap();
    let n = 100_000;
    let x = semaphore(&engine);
    // The semaphore itself is at 0: the chain begins with a wait for 1.
    let ((), held) = counted(|| chain(&engine, &x, 1, n, 1, Action::Queue));
    let each = held.peak / i64::try_from(n).unwrap();
    println!(
        "{each} bytes for each blocked operation at most, {} kept",
        held.kept / i64::try_from(n).unwrap()
    );
    assert!(each <= 512, "{each} bytes for each blocked operation");
    x.signal(1).unwrap();
    assert_eq!(x.query().unwrap(), n + 1);

    let ((), again) = counted(|| {
        chain(&engine, &x, n + 2, n / 2, 1, Action::Queue);
        x.signal(n + 2).unwrap();
    });
    assert_eq!(x.query().unwrap(), n + 2 + n / 2);
    assert_eq!(again.allocations, 0, "the second time: {again:?}");
    engine.trim();
}

/// `trim` releases the memory of a burst.
#[test]
fn trimmed_engine_has_released_the_memory_of_a_burst() {
    let engine = Engine::new(Noop::immediate(1)).unwrap();
    let x = semaphore(&engine);
    let n = 20_000;
    let ((), burst) = counted(|| {
        chain(&engine, &x, 1, n, 1, Action::Queue);
        x.signal(1).unwrap();
        engine.trim();
    });
    assert_eq!(x.query().unwrap(), n + 1);
    assert!(burst.kept < 64 << 10, "{} bytes are kept, of {}", burst.kept, burst.peak);
}

/// The same after one timeline had very many waits, and no promise.
#[test]
fn trimmed_engine_has_released_the_memory_of_many_waits_for_one_timeline() {
    let engine = Engine::new(Noop::immediate(1)).unwrap();
    let x = semaphore(&engine);
    let ((), burst) = counted(|| {
        let (waits, nothing): ([_; 1], [(Semaphore, u64); 0]) = ([(x.clone(), 1)], []);
        for id in 0..20_000 {
            engine.submit(Affinity::ANY, &waits, &nothing, Action::Queue(id)).unwrap();
        }
        x.signal(1).unwrap();
        engine.trim();
    });
    assert!(
        burst.peak > 1 << 20 && burst.kept < 64 << 10,
        "{} bytes are kept, of {}",
        burst.kept,
        burst.peak
    );
}

/// One operation signals very many timelines, for each of which another queue has a waiter. `trim` releases
/// that memory, too, wherever the queues keep it for the next.
#[test]
fn trimmed_engine_has_released_the_memory_of_a_wide_signal() {
    for later in 0..3 {
        let spec = DeviceSpec { native_waits: NativeWaits::None, ..device(2) };
        let engine = Engine::new(Noop::at_once(spec)).unwrap();
        let timelines: Vec<Semaphore> = (0..20_000).map(|_| semaphore(&engine)).collect();
        let submit = |queue, waits: &[(Semaphore, u64)], signals: &[(Semaphore, u64)]| {
            engine.submit(Affinity::queue(queue), waits, signals, Action::Queue(0)).unwrap();
        };
        // Each timeline has its own lists from here on.
        for timeline in &timelines {
            submit(1, &[(timeline.clone(), 1)], &[]);
            submit(0, &[], &[(timeline.clone(), 1)]);
        }
        engine.trim();
        let ((), burst) = counted(|| {
            let signals: Vec<_> = timelines.iter().map(|timeline| (timeline.clone(), 2)).collect();
            signals.iter().for_each(|signal| submit(1, std::slice::from_ref(signal), &[]));
            submit(0, &[], &signals);
            (0..later).for_each(|_| submit(0, &[], &[]));
            engine.trim();
        });
        assert_eq!(engine.counts().operations, 0);
        assert!(burst.kept < 64 << 10, "{later}: {} bytes are kept, of {}", burst.kept, burst.peak);
    }
}

#[test]
fn wide_operations_allocate_nothing() {
    let engine = Engine::new(Noop::immediate(1)).unwrap();
    let (gate, x) = (semaphore(&engine), semaphore(&engine));
    let others: Vec<Semaphore> = (0..1000).map(|_| semaphore(&engine)).collect();
    let mut waits: Vec<(Semaphore, u64)> = others.iter().map(|other| (other.clone(), 0)).collect();
    let mut signals: Vec<(Semaphore, u64)> = (0..1000).map(|_| (semaphore(&engine), 0)).collect();
    becomes_steady("fan out and in", |round| {
        let value = round + 1;
        for other in &others {
            let (waits, signals) = ([(gate.clone(), value)], [(other.clone(), value)]);
            engine.submit(Affinity::ANY, &waits, &signals, Action::Queue(0)).unwrap();
        }
        for (_, other) in waits.iter_mut().chain(&mut signals) {
            *other = value;
        }
        engine.submit(Affinity::ANY, &waits, &[(x.clone(), value)], Action::Queue(1)).unwrap();
        engine.submit(Affinity::ANY, &[(x.clone(), value)], &signals, Action::Queue(2)).unwrap();
        gate.signal(value).unwrap();
        assert_eq!(x.query().unwrap(), value);
        assert!(signals.iter().all(|(signal, value)| signal.query().unwrap() == *value));
    });
}

/// The same for an operation with one wait and several signals.
#[test]
fn operations_with_several_signals_allocate_nothing() {
    let engine = Engine::new(Noop::immediate(1)).unwrap();
    let [gate, x, y] = [(), (), ()].map(|()| semaphore(&engine));
    becomes_steady("several signals", |round| {
        for value in round * 100 + 1..=(round + 1) * 100 {
            let (waits, signals) = ([(gate.clone(), value)], [(x.clone(), value), (y.clone(), value)]);
            engine.submit(Affinity::ANY, &waits, &signals, Action::Queue(value)).unwrap();
            gate.signal(value).unwrap();
        }
    });
    assert_eq!((x.query().unwrap(), y.query().unwrap()), (800, 800));
}

/// Callbacks signal the timelines that the next ones wait for, some calls deep inside each other. That costs no
/// more than the same calls in a row: each depth keeps its memory for the next call (S4).
#[test]
fn calls_inside_calls_allocate_no_more_than_others() {
    let engine = Engine::new(Noop::immediate(1)).unwrap();
    let timelines: Vec<Semaphore> = (0..5).map(|_| semaphore(&engine)).collect();
    let round = |value: u64, is_nested: bool| {
        let _subscriptions: [_; 5] = std::array::from_fn(|at| {
            let next = timelines.get(at + 1).filter(|_| is_nested).cloned();
            let called = move |_| next.iter().for_each(|next| next.signal(value).unwrap());
            timelines.get(at).map(|timeline| timeline.subscribe(value, called))
        });
        for timeline in timelines.iter().take(if is_nested { 1 } else { 5 }) {
            timeline.signal(value).unwrap();
        }
        assert!(timelines.iter().all(|timeline| timeline.query().unwrap() == value));
    };
    let [nested, plain] = [true, false].map(|is_nested| {
        let first = if is_nested { 1 } else { 101 };
        (first..first + 3).for_each(|value| round(value, is_nested));
        counted(|| (first + 3..first + 100).for_each(|value| round(value, is_nested))).1.allocations
    });
    assert_eq!(nested, plain);
}

/// A semaphore is one allocation, its handle; its state in the engine is recycled.
#[test]
fn short_lived_semaphores_cost_their_handle() {
    let engine = Engine::new(Noop::immediate(1)).unwrap();
    let round = || {
        let (x, y) = (semaphore(&engine), semaphore(&engine));
        engine.submit(Affinity::ANY, &[(x.clone(), 1)], &[(y.clone(), 1)], Action::Queue(0)).unwrap();
        x.signal(1).unwrap();
        assert_eq!(y.query().unwrap(), 1);
    };
    (0..1000).for_each(|_| round());
    let ((), allocated) = counted(|| (0..1000).for_each(|_| round()));
    assert_eq!(allocated.allocations, 2000, "{allocated:?}");
    assert_eq!(allocated.kept, 0);
}

#[test]
fn million_blocked_operations_drain_on_a_small_stack() {
    let n: u64 = if cfg!(debug_assertions) { 200_000 } else { 1_000_000 };
    let drain = move || {
        let engine = Engine::new(Noop::immediate(2)).unwrap();
        let x = semaphore(&engine);
        chain(&engine, &x, 1, n, 2, Action::Queue);
        x.signal(1).unwrap();
        assert_eq!(x.query().unwrap(), n + 1);
    };
    std::thread::Builder::new().stack_size(64 << 10).spawn(drain).unwrap().join().unwrap();
}

/// Callback threads exit soon after the last deferred callback, except for the one that engines have. No other test
/// of this program needs more.
#[test]
#[cfg(target_os = "linux")]
fn all_callback_threads_but_one_exit_when_no_callback_is_left() {
    let engine = Engine::new(Noop::immediate(1)).unwrap();
    let threads = move || {
        let name = |task: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
        };
        let names = std::fs::read_dir("/proc/self/task").unwrap().filter_map(name);
        names.filter(|name| name.trim_end() == "hal-callbacks").count()
    };
    let x = semaphore(&engine);
    let (sender, receiver) = std::sync::mpsc::channel();
    let _subscription = x.subscribe(1, move |_| sender.send(threads()).unwrap());
    engine.submit(Affinity::ANY, &[], &[(x, 1)], Action::Barrier).unwrap();
    assert!(receiver.recv().unwrap() > 0, "one calls back");
    let begin = std::time::Instant::now();
    while threads() > 1 {
        assert!(begin.elapsed() < std::time::Duration::from_secs(20), "{} are left", threads());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
