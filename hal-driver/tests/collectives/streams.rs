// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Collectives among other queue operations: stream-ordered memory, files, host calls, and semaphores of other
//! devices, on devices of any drivers.

use crate::common::{Buffer, Device, File, List, Result, Semaphore};
use crate::rig::*;
use hal_semaphore::Code;
use hal_sys as sys;
use std::sync::mpsc;
use std::time::Duration;

/// Devices that differ in whose memory the host can map and in who computes.
const MIXTURES: [&[&str]; 4] = [
    &["tenstorrent://emulated?", "mock://?heaps=2&queues=2&"],
    &["qaic://emulated?", "gaudi://emulated?"],
    &[
        "mock://?heaps=2&queues=3&fault=jitter&schedule=seeded&",
        "template://?",
        "tenstorrent://emulated?board=n150&",
    ],
    &["gaudi://emulated?", "mock://?queues=1&depth=1&", "qaic://emulated?", "mock://?heaps=2&waits=none&"],
];

/// A mixture, in pieces of so many bytes.
fn mixture(uris: &[&str], piece: usize) -> Vec<Rank> {
    let uris: Vec<String> = uris.iter().map(|uri| format!("{uri}collective_piece={piece}")).collect();
    ranks(&uris.iter().map(String::as_str).collect::<Vec<_>>())
}

const WORDS: usize = 150;
const BYTES: usize = WORDS * 4;

fn sum_of(words: impl Iterator<Item = u32>) -> Vec<u8> {
    words.sum::<u32>().to_le_bytes().repeat(WORDS)
}

fn local() -> sys::iree_hal_buffer_params_t {
    let type_ = sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL;
    sys::iree_hal_buffer_params_t { type_, usage: sys::IREE_HAL_BUFFER_USAGE_DEFAULT, ..Default::default() }
}

/// Everything is submitted and released before any of it may begin; memory that one round returns may be used by
/// another.
#[test]
fn memory_that_queues_allocate_around_collectives_is_that_of_one_of_them_at_a_time() {
    const ROUNDS: u32 = 6;
    for uris in MIXTURES {
        let ranks = mixture(uris, 256);
        let mut results = Vec::new();
        for (number, rank) in (1..).zip(&ranks) {
            let (device, gate, commands) = (&rank.device, rank.device.semaphore(0), rank.sum_of_slots(WORDS));
            for round in 0..ROUNDS {
                let order = device.semaphore(0);
                let send = device.alloca_of(&gate.at(1), &order.at(1), local(), BYTES).unwrap();
                let recv = device.alloca_of(&order.at(1), &order.at(2), local(), BYTES).unwrap();
                let word = (number * 100 + round).to_le_bytes();
                device.fill(&order.at(2), &order.at(3), &send, (0, BYTES), &word).unwrap();
                device.execute(u64::MAX, &order.at(3), &order.at(4), &commands, &[&send, &recv]).unwrap();
                // The send memory is deallocated while the receive memory is in use.
                let (sent, got) = (device.semaphore(0), device.buffer(BYTES));
                device.dealloca(&order.at(4), &sent.at(1), &send).unwrap();
                device.copy(&order.at(4), &order.at(5), &recv, &got, BYTES).unwrap();
                device.dealloca(&order.at(5), &order.at(6), &recv).unwrap();
                results.push((round, order, sent, got));
            }
            drop(commands);
            gate.signal(1).unwrap();
        }
        let count = u32::try_from(ranks.len()).unwrap();
        for (round, order, sent, got) in &results {
            order.wait(6).unwrap();
            sent.wait(1).unwrap();
            assert_eq!(got.read(), sum_of((1..=count).map(|number| number * 100 + round)), "{uris:?}");
        }
    }
}

#[test]
fn what_a_file_has_is_reduced_and_written_to_another_one() {
    for uris in MIXTURES {
        let ranks = mixture(uris, 333);
        let results: Vec<_> = (1_u32..)
            .zip(&ranks)
            .map(|(number, rank)| {
                let device = &rank.device;
                let (source, target) =
                    (File::with(&number.to_le_bytes().repeat(WORDS)), File::with(&[0; BYTES]));
                let [send, recv] = [(); 2].map(|()| device.local_buffer(BYTES));
                let (gate, order) = (device.semaphore(0), device.semaphore(0));
                device.read_file(&gate.at(1), &order.at(1), &source, 0, &send, BYTES).unwrap();
                let slots = [&send, &recv];
                device
                    .execute(u64::MAX, &order.at(1), &order.at(2), &rank.sum_of_slots(WORDS), &slots)
                    .unwrap();
                device.write_file(&order.at(2), &order.at(3), &recv, &target, 0, BYTES).unwrap();
                gate.signal(1).unwrap();
                (order, source, target)
            })
            .collect();
        let count = u32::try_from(ranks.len()).unwrap();
        for (order, _, target) in &results {
            order.wait(3).unwrap();
            assert_eq!(target.read(), sum_of(1..=count), "{uris:?}");
        }
    }
}

/// One recording, several executions of which are under way at once, each on other memory.
#[test]
fn one_recording_is_under_way_several_times_at_once() {
    const TIMES: u32 = 5;
    for uris in MIXTURES {
        let ranks = mixture(uris, 100);
        let mut results = Vec::new();
        let gates: Vec<Semaphore> = ranks.iter().map(|rank| rank.device.semaphore(0)).collect();
        for (number, rank) in (1..).zip(&ranks) {
            let commands = rank.sum_of_slots(WORDS);
            for time in 0..TIMES {
                let send = rank.words(&[number * 10 + time; WORDS]);
                let (recv, done) = (rank.words(&[9; WORDS]), rank.device.semaphore(0));
                let slots = [&send, &recv];
                // Its waits may be reached in any order.
                let gate = &gates[(number + time) as usize % gates.len()];
                rank.device.execute(u64::MAX, &gate.at(1), &done.at(1), &commands, &slots).unwrap();
                results.push((number, time, recv, done));
            }
        }
        gates.iter().for_each(|gate| gate.signal(1).unwrap());
        let count = u32::try_from(ranks.len()).unwrap();
        for (number, time, recv, done) in &results {
            done.wait(1).unwrap();
            let sum: u32 = (1..=count).map(|number| number * 10 + time).sum();
            assert_eq!(ranks[*number as usize - 1].read(recv), [sum; WORDS], "{uris:?}");
        }
    }
}

/// Each rank waits for the next one's operation before the collective, and is waited for after it, also by a device
/// of another driver, all before anything was signalled.
#[test]
fn collective_closes_a_ring_of_devices_that_wait_for_each_other() {
    for uris in MIXTURES {
        let ranks = mixture(uris, 4096);
        let other = Device::open_in_group("local-task").unwrap();
        let semaphores =
            |device: &dyn Fn(usize) -> Semaphore| (0..ranks.len()).map(device).collect::<Vec<_>>();
        let before = semaphores(&|rank| ranks[rank].device.semaphore(0));
        // Of a foreign device, so that the host sees every step.
        let after = semaphores(&|_| other.semaphore(0));
        let gate = other.semaphore(0);
        let mut results = Vec::new();
        for (at, rank) in ranks.iter().enumerate() {
            let next = (at + 1) % ranks.len();
            let send = rank.words(&[0; WORDS]);
            let (recv, last) = (rank.words(&[0; WORDS]), rank.device.semaphore(0));
            let slots = [&send, &recv];
            let commands = rank.sum_of_slots(WORDS);
            let waits = List::of(&[(&before[next], 1), (&before[at], 1)]);
            rank.device.execute(u64::MAX, &waits, &after[at].at(1), &commands, &slots).unwrap();
            let word = (at as u32 + 1).to_le_bytes();
            rank.device.fill(&gate.at(1), &before[at].at(1), &send, (0, BYTES), &word).unwrap();
            rank.device.barrier(&after[next].at(1), &last.at(1)).unwrap();
            results.push((recv, last, send));
        }
        gate.signal(1).unwrap();
        let count = u32::try_from(ranks.len()).unwrap();
        for ((rank, (recv, last, _)), after) in ranks.iter().zip(&results).zip(&after) {
            last.wait(1).unwrap();
            after.wait(1).unwrap();
            assert_eq!(rank.read(recv), [(1..=count).sum::<u32>(); WORDS], "{uris:?}");
        }
    }
}

/// A program that does not order a deallocation behind a collective gets unspecified bytes, or an error for lack of
/// memory; nothing hangs.
#[test]
fn deallocation_that_nothing_orders_leaves_collectives_with_memory_or_fails_them() {
    for uris in [
        ["mock://?queues=2", "mock"],
        ["mock://?heaps=2&queues=2&collective_piece=100", "mock://?collective_piece=100"],
    ] {
        for round in 0..30 {
            let ranks = ranks(&uris);
            let (device, order) = (&ranks[0].device, ranks[0].device.semaphore(0));
            let [send, recv] = [1, 2].map(|at| {
                let buffer = device.alloca_of(&order.at(at - 1), &order.at(at), local(), BYTES);
                buffer.unwrap()
            });
            let slots = [&send, &recv];
            let done = &ranks[0].done;
            device
                .execute(u64::MAX, &order.at(2), &done.at(1), &ranks[0].sum_of_slots(WORDS), &slots)
                .unwrap();
            let gone = device.semaphore(0);
            let other = &ranks[1];
            let [theirs, got] = [5, 0].map(|word| other.words(&[word; WORDS]));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_micros(30 * round));
                    device.dealloca(&order.at(2), &gone.at(1), &recv).unwrap();
                    device.dealloca(&gone.at(1), &gone.at(2), &send).unwrap();
                });
                let slots = [&theirs, &got];
                let begun = other.device.execute(
                    u64::MAX,
                    &List::none(),
                    &other.done.at(1),
                    &other.sum_of_slots(WORDS),
                    &slots,
                );
                for outcome in [begun.and_then(|()| other.done.wait(1)), done.wait(1)] {
                    if let Err(error) = outcome {
                        assert_eq!(error.code, Code::FailedPrecondition, "{}", error.text);
                        assert!(error.text.contains("has no memory"), "{}", error.text);
                    }
                }
            });
            gone.wait(2).unwrap();
        }
    }
}

/// More host calls than a device has threads wait for a collective whose bytes those threads would move.
#[test]
fn calls_that_wait_for_a_collective_do_not_hold_it_up() {
    const CALLS: usize = 40;
    let ranks = mocks(2);
    let memory: Vec<[Buffer; 2]> =
        ranks.iter().map(|rank| [1, 0].map(|word| rank.words(&[word; WORDS]))).collect();
    let (sender, receiver) = mpsc::channel();
    for rank in &ranks {
        for _ in 0..CALLS {
            let (done, sender) = (ranks[1].done.clone(), sender.clone());
            let call = move || {
                sender.send(done.wait(1)).unwrap();
                std::ptr::null_mut()
            };
            let over = rank.device.semaphore(0);
            rank.device.host_call(&List::none(), &over.at(1), 0, Box::new(call)).unwrap();
        }
    }
    for (rank, [send, recv]) in ranks.iter().zip(&memory) {
        let slots = [send, recv];
        rank.device
            .execute(u64::MAX, &List::none(), &rank.done.at(1), &rank.sum_of_slots(WORDS), &slots)
            .unwrap();
    }
    for _ in 0..2 * CALLS {
        let waited: Result = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        waited.unwrap();
    }
    assert_eq!(ranks[1].read(&memory[1][1]), [2; WORDS]);
}
