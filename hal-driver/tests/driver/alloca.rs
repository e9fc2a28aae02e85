// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Stream-ordered memory that is reused while work is in flight: each owner gets all of it, and in time.

use crate::common::{Buffer, Device, List, Semaphore, check, params};
use hal_semaphore::Code;
use hal_sys as sys;
use std::ptr::null_mut;

/// The length of a transient buffer, and the offset of the word that is checked.
const LENGTH: usize = 300 << 10;
const LAST: usize = LENGTH - 4;

/// One chain of operations on a queue.
struct AllocaChain<'a> {
    device: &'a Device,
    timeline: Semaphore,
    at: u64,
    affinity: u64,
}

impl AllocaChain<'_> {
    fn step(&mut self) -> (List, List) {
        self.at += 1;
        (self.timeline.at(self.at - 1), self.timeline.at(self.at))
    }

    /// Allocates memory, fills it with a word, copies its last word into `results`, and deallocates it.
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
    let mut chains: Vec<AllocaChain<'_>> = (0..CHAINS)
        .map(|number| AllocaChain {
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
fn memory_in_use_is_not_allocated_again() {
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
fn memory_in_use_is_not_allocated_again_by_late_operations() {
    go_round("mock://?memory=8m&latency=30us", true);
    go_round("mock://?memory=8m&fault=late:7&fault=late:40", true);
}

/// The device's peak of allocated memory.
fn peak(device: &Device) -> usize {
    let mut statistics = sys::iree_hal_allocator_statistics_t::default();
    unsafe { sys::iree_hal_allocator_query_statistics(device.allocator(), &raw mut statistics) };
    statistics.device_bytes_peak
}

const SLAB: usize = 64 << 20;

/// Rounds of allocation, fill and deallocation, one after the other; the first waits for `from`. All of them are
/// submitted long before the device gets to them.
fn chain(device: &Device, timeline: &Semaphore, from: u64, rounds: u64, length: usize) {
    for round in 0..rounds {
        let at = from + round * 3;
        let buffer = device.alloca(&timeline.at(at), &timeline.at(at + 1), length).unwrap();
        device.fill_on(1, &timeline.at(at + 1), &timeline.at(at + 2), &buffer, (0, 64), &[7]).unwrap();
        device.dealloca(&timeline.at(at + 2), &timeline.at(at + 3), &buffer).unwrap();
    }
}

#[test]
fn no_more_than_a_slab_is_taken_ahead_of_time() {
    const ROUNDS: u64 = 500;
    for uri in ["mock://?queues=1&latency=20us", "mock://?queues=1", "mock://?latency=20us"] {
        let device = Device::open_in_group(uri).unwrap();
        let timeline = device.semaphore(0);
        chain(&device, &timeline, 1, ROUNDS, 1 << 20);
        timeline.signal(1).unwrap();
        timeline.wait(1 + ROUNDS * 3).unwrap();
        // Once more, submitted while the first link is under way.
        device
            .fill_on(1, &timeline.at(1501), &timeline.at(1502), &device.buffer(64 << 10), (0, 65536), &[1])
            .unwrap();
        chain(&device, &timeline, 1502, ROUNDS, 1 << 20);
        timeline.wait(1502 + ROUNDS * 3).unwrap();
        assert!(peak(&device) <= 3 * SLAB, "{uri}: {} bytes", peak(&device));
    }
}

/// The rest of the pool is for operations that need it sooner.
#[test]
fn no_more_than_a_slab_is_out_ahead_of_time() {
    const PIECE: usize = 1 << 20;
    const PIECES: usize = 3 * SLAB / PIECE - 10;
    let device = Device::open_in_group("mock://?queues=1&latency=300ms").unwrap();
    // The pool grows to four slabs, and gets all of them back.
    let all: Vec<_> = (0..PIECES)
        .map(|_| {
            let done = device.semaphore(0);
            (device.alloca(&List::none(), &done.at(1), PIECE).unwrap(), done)
        })
        .collect();
    for (buffer, done) in &all {
        device.dealloca(&done.at(1), &done.at(2), buffer).unwrap();
    }
    for (_, done) in &all {
        done.wait(2).unwrap();
    }
    drop(all);
    assert!(peak(&device) > 2 * SLAB);
    let (word, begin, done) = (device.buffer(64), device.semaphore(0), device.semaphore(0));
    device.fill(&List::none(), &begin.at(1), &word, (0, 64), &[1]).unwrap();
    let early: Vec<Buffer> = (1..)
        .take(PIECES)
        .map(|value| device.alloca(&begin.at(1), &done.at(value), PIECE).unwrap())
        .collect();
    let is_there = |buffer: &&Buffer| buffer.is_mappable();
    let count = early.iter().filter(is_there).count();
    assert_eq!(begin.value().unwrap(), 0, "it is ahead of time");
    assert!((1..=SLAB / PIECE).contains(&count), "{count} of {PIECES}");
    done.wait(PIECES.try_into().unwrap()).unwrap();
}

#[test]
fn memory_taken_ahead_comes_back_when_the_release_it_counted_on_fails() {
    let device = Device::open_in_group("mock://?queues=1&latency=20us&fault=fail:fill:1").unwrap();
    let buffer = device.buffer(64);
    let fails = device.semaphore(0);
    device.fill(&List::none(), &fails.at(1), &buffer, (0, 64), &[1]).unwrap();
    chain(&device, &fails, 1, 60, 1 << 20);
    fails.wait(181).unwrap_err();
    // All early memory is back: as much can be allocated early again, many times.
    for _ in 0..20 {
        let timeline = device.semaphore(0);
        device.fill(&List::none(), &timeline.at(1), &buffer, (0, 64), &[1]).unwrap();
        chain(&device, &timeline, 1, 60, 1 << 20);
        timeline.wait(181).unwrap();
    }
    assert!(peak(&device) <= 3 * SLAB, "{} bytes", peak(&device));
}

#[test]
fn memory_for_one_at_a_time_is_enough_for_a_chain() {
    // A slab of 8 MiB and nothing else: a buffer of more than half of it has its own allocation, one at a time.
    for length in [3 << 20, 40 << 20] {
        let device = Device::open_in_group("mock://?memory=64m").unwrap();
        let timeline = device.semaphore(0);
        chain(&device, &timeline, 1, 100, length);
        timeline.signal(1).unwrap();
        timeline.wait(301).unwrap();
        assert!(peak(&device) <= 64 << 20);
    }
}

/// Early memory is in the way of allocations that need some now. These wait for its return rather than fail, and
/// fail if it does not return.
#[test]
fn allocation_that_is_due_waits_for_memory_that_is_out_early() {
    const PART: usize = 400 << 10;
    for comes_back in [true, false] {
        let device = Device::open_in_group("mock://?memory=8m&queues=1&latency=100ms").unwrap();
        // All of the device's memory but the pool's one slab.
        let rest: Vec<Buffer> = (0..7).map(|_| device.buffer(1 << 20)).collect();
        let (chain, now) = (device.semaphore(0), device.semaphore(0));
        let word = &rest[0];
        device.fill(&List::none(), &chain.at(1), word, (0, 64), &[1]).unwrap();
        let early: Vec<Buffer> =
            (1..3).map(|at| device.alloca(&chain.at(at), &chain.at(at + 1), PART).unwrap()).collect();
        let buffer = device.alloca(&List::none(), &now.at(1), PART).unwrap();
        assert_eq!((chain.value().unwrap(), now.value().unwrap()), (0, 0), "it waits");
        if comes_back {
            device.dealloca(&chain.at(3), &chain.at(4), &early[0]).unwrap();
            now.wait(1).unwrap();
            device.dealloca(&now.at(1), &now.at(2), &buffer).unwrap();
            now.wait(2).unwrap();
        } else {
            chain.wait(3).unwrap();
            assert_eq!(now.wait(1).unwrap_err().code, Code::ResourceExhausted);
        }
    }
}
