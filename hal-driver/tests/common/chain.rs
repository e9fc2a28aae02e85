// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Transfers that wait for each other over all queues of a card, against plain memory.
#![allow(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a failed expectation ends the test"
)]

use super::random::Random;
use super::{Buffer, Device, List, Semaphore};
use hal_semaphore::Code;

pub(crate) const LENGTH: usize = 4096 + 3;

/// Random transfers over all queues, each after the one before, on memory of both kinds, and the same on plain
/// bytes.
pub(crate) fn chain(device: &Device, seed: u64, steps: u64) {
    let mut random = Random::new(seed);
    let buffers: Vec<Buffer> = (0..6)
        .map(|at| if at % 2 == 0 { device.local_buffer(LENGTH) } else { device.buffer(LENGTH) })
        .collect();
    let mut expected = vec![vec![0_u8; LENGTH]; 6];
    let order = device.semaphore(0);
    for (at, buffer) in (0..).zip(&buffers) {
        device.fill(&order.at(at), &order.at(at + 1), buffer, (0, LENGTH), &[0]).unwrap();
    }
    let begin = 6;
    for step in begin..begin + steps {
        let (waits, signals) = (order.at(step), order.at(step + 1));
        let queue = 1_u64 << random.below(4);
        let target = random.below(6);
        match random.below(4) {
            0 => {
                let length = [1, 2, 4][random.below(3)];
                let pattern: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
                let offset = random.below(100) * length;
                let bytes = random.below((LENGTH - offset) / length) * length;
                device.fill_on(queue, &waits, &signals, &buffers[target], (offset, bytes), &pattern).unwrap();
                for at in 0..bytes {
                    expected[target][offset + at] = pattern[at % length];
                }
            }
            1 => {
                let offset = random.below(LENGTH);
                let bytes: Vec<u8> =
                    (0..random.below(LENGTH - offset)).map(|_| random.below(256) as u8).collect();
                device.update_on(queue, &waits, &signals, &bytes, (&buffers[target], offset)).unwrap();
                expected[target][offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
            _ => {
                let source = (target + 1 + random.below(5)) % 6;
                let (from, to) = (random.below(LENGTH), random.below(LENGTH));
                let length = random.below(LENGTH - from.max(to));
                let ends = ((&buffers[source], from), (&buffers[target], to));
                device.copy_on(queue, &waits, &signals, ends.0, ends.1, length).unwrap();
                let bytes = expected[source][from..from + length].to_vec();
                expected[target][to..to + length].copy_from_slice(&bytes);
            }
        }
    }
    let end = begin + steps;
    order.wait(end).unwrap();
    let read = device.buffer(LENGTH);
    for (at, (buffer, expected)) in buffers.iter().zip(&expected).enumerate() {
        let value = end + at as u64;
        device.copy(&order.at(value), &order.at(value + 1), buffer, &read, LENGTH).unwrap();
        order.wait(value + 1).unwrap();
        assert!(read.read() == *expected, "buffer {at}, seed {seed}");
    }
}

/// Fills on so many queues in turn, each after the one before. Returns the number that were accepted before the
/// first refusal.
pub(crate) fn dependent_fills(
    device: &Device,
    order: &Semaphore,
    buffer: &Buffer,
    length: usize,
    queues: u64,
    steps: u64,
) -> u64 {
    for step in 0..steps {
        let (queue, waits, signals) = (1 << (step % queues), order.at(step), order.at(step + 1));
        if device.fill_on(queue, &waits, &signals, buffer, (0, length), &[1]).is_err() {
            return step;
        }
    }
    steps
}

/// A chain of fills of one byte. Returns the failures, by step.
pub(crate) fn fills(device: &Device, buffer: &Buffer, steps: u64) -> Vec<(u64, Code)> {
    let done: Vec<Semaphore> = (0..steps).map(|_| device.semaphore(0)).collect();
    for semaphore in &done {
        device.fill_on(1, &List::none(), &semaphore.at(1), buffer, (0, 64), &[1]).unwrap();
    }
    let failed = done.iter().zip(0..).map(|(semaphore, step)| (step, semaphore.wait(1)));
    failed.filter_map(|(step, result)| result.err().map(|failed| (step, failed.code))).collect()
}
