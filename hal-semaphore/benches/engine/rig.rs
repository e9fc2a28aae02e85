// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Devices, chains of operations and sizes that the cases share.

use crate::noop::Noop;
use hal_semaphore::*;
use std::time::{Duration, Instant};

pub(crate) type Make = fn(u64) -> Action<u64>;

/// How much to do.
pub(crate) struct Plan {
    /// Times that a short case is run.
    pub(crate) rounds: usize,
    /// Times that a case with very many operations is run.
    pub(crate) long_rounds: usize,
    /// Operations in a chain.
    pub(crate) n: u64,
    /// How many operations are blocked at once.
    pub(crate) blocked: Vec<u64>,
    /// Round trips between two threads, and latencies that are reported one by one.
    pub(crate) pings: u64,
}

impl Plan {
    /// The most operations that are blocked at once.
    pub(crate) fn most(&self) -> u64 {
        self.blocked.iter().copied().max().unwrap_or(1)
    }
}

pub(crate) fn semaphore(engine: &Engine<Noop>) -> Semaphore {
    Semaphore::new(engine, 0).unwrap()
}

/// Operations `from..end`, each waiting for the one before it, on the queue that `place` names.
pub(crate) fn chain(engine: &Engine<Noop>, x: &Semaphore, from: u64, end: u64, place: impl Fn(u64) -> usize) {
    for i in from..end {
        let (waits, signals) = ([(x.clone(), i)], [(x.clone(), i + 1)]);
        engine.submit(Affinity::queue(place(i)), &waits, &signals, Action::Queue(i)).unwrap();
    }
}

/// Blocks `n` operations on queue 0 until `x` reaches 1; operation `i` signals `i` of `y`.
pub(crate) fn hold(engine: &Engine<Noop>, x: &Semaphore, y: &Semaphore, n: u64) {
    for i in 1..=n {
        let (waits, signals) = ([(x.clone(), 1)], [(y.clone(), i)]);
        engine.submit(Affinity::queue(0), &waits, &signals, Action::Queue(i)).unwrap();
    }
}

pub(crate) fn per(n: u64, time: Duration) -> f64 {
    time.as_secs_f64() * 1e9 / n as f64
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The time that a busy loop waits, off and on the clock.
pub(crate) fn spin(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}
