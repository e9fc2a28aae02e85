//! Stream-ordered memory that goes round while work is in flight: whoever gets it gets it whole, and in time.

#![allow(clippy::undocumented_unsafe_blocks, reason = "every object is alive as long as its wrapper")]
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

mod common;

use common::{Buffer, Device, List, Semaphore, check, params};
use hal_sys as sys;
use std::ptr::null_mut;

/// How much a transient buffer has, and where in it a word is looked at.
const LENGTH: usize = 300 << 10;
const LAST: usize = LENGTH - 4;

/// One chain of operations on a queue.
struct Chain<'a> {
    device: &'a Device,
    timeline: Semaphore,
    at: u64,
    affinity: u64,
}

impl Chain<'_> {
    fn step(&mut self) -> (List, List) {
        self.at += 1;
        (self.timeline.at(self.at - 1), self.timeline.at(self.at))
    }

    /// Takes memory, fills it with a word, copies its last word to a place in `results`, and gives it back.
    fn round(&mut self, word: u32, results: &Buffer, place: usize) {
        let device = self.device.0;
        unsafe {
            let mut buffer = null_mut();
            let (waits, signals) = self.step();
            let (pool, out) = (null_mut(), &raw mut buffer);
            let (affinity, flags) = (self.affinity, 0);
            let waits_raw = (waits.raw(), signals.raw());
            check(sys::iree_hal_device_queue_alloca(
                device,
                affinity,
                waits_raw.0,
                waits_raw.1,
                pool,
                params(),
                LENGTH,
                flags,
                out,
            ))
            .unwrap();
            let buffer = Buffer(buffer);
            let (waits, signals) = self.step();
            self.device
                .fill_on(affinity, &waits, &signals, &buffer, (0, LENGTH), &word.to_ne_bytes())
                .unwrap();
            let (waits, signals) = self.step();
            check(sys::iree_hal_device_queue_copy(
                device,
                affinity,
                waits.raw(),
                signals.raw(),
                buffer.0,
                LAST,
                results.0,
                place * 4,
                4,
                0,
            ))
            .unwrap();
            let (waits, signals) = self.step();
            check(sys::iree_hal_device_queue_dealloca(
                device,
                affinity,
                waits.raw(),
                signals.raw(),
                buffer.0,
                0,
            ))
            .unwrap();
        }
    }
}

/// Several chains on several queues share a slab that holds three of their buffers.
fn go_round(uri: &str, grouped: bool) {
    const CHAINS: usize = 4;
    const ROUNDS: usize = 150;
    let device = if grouped { Device::open_in_group(uri) } else { Device::open(uri) }.unwrap();
    let results = device.buffer(CHAINS * ROUNDS * 4);
    let mut chains: Vec<Chain<'_>> = (0..CHAINS)
        .map(|number| Chain {
            device: &device,
            timeline: device.semaphore(0),
            at: 0,
            affinity: 1 << (number % 2),
        })
        .collect();
    for round in 0..ROUNDS {
        for (number, chain) in chains.iter_mut().enumerate() {
            let place = round * CHAINS + number;
            chain.round(u32::try_from(place).unwrap() + 1, &results, place);
        }
    }
    for chain in &chains {
        chain.timeline.wait(chain.at).unwrap();
    }
    let words: Vec<u32> =
        results.read().chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect();
    let expected: Vec<u32> = (1..=u32::try_from(CHAINS * ROUNDS).unwrap()).collect();
    assert_eq!(words, expected, "{uri}");
}

#[test]
fn nobody_gets_memory_that_is_still_in_use() {
    for uri in [
        "mock://?memory=8m",
        "mock://?memory=8m&depth=3",
        "mock://?memory=8m&waits=none",
        "mock://?memory=8m&schedule=seeded&seed=5",
    ] {
        for grouped in [true, false] {
            go_round(uri, grouped);
        }
    }
}

#[test]
fn nor_when_everything_is_late() {
    go_round("mock://?memory=8m&latency=30us", true);
    go_round("mock://?memory=8m&fault=late:7&fault=late:40", true);
}
