// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An affinity names queues as the program counts them, and a device may have any number: equal affinities mean the
//! same queue.

use crate::common::{Buffer, Device, File, List, check, params, reference};
use hal_sys as sys;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

const DEVICES: [&str; 5] = [
    "mock://?queues=1",
    "mock://?queues=3&fault=jitter&seed=7",
    "mock://?queues=64",
    "template",
    "gaudi://emulated?generation=gaudi2&seed=9200",
];

/// Few bits and many, of the first queues and of queues that hardly any device has.
const AFFINITIES: [u64; 9] = [0, 1, 2, 4, 5, 6, 1 << 40, 1 << 63, u64::MAX << 33];

const LENGTH: usize = 64;

#[test]
#[expect(clippy::too_many_lines, reason = "one sequence of steps")]
fn every_affinity_is_legal_wherever_one_comes_in() {
    for uri in DEVICES {
        let device = Device::open_in_group(uri).unwrap();
        for affinity in AFFINITIES {
            let order = device.semaphore(0);
            let at = |value: u64| (order.at(value), order.at(value + 1));
            let (buffer, file) = (device.buffer(LENGTH), File::with(&[3; LENGTH]));
            let (waits, signals) = at(0);
            device.fill_on(affinity, &waits, &signals, &buffer, (0, LENGTH), &[1]).unwrap();
            let (waits, signals) = at(1);
            device.update_on(affinity, &waits, &signals, &[2; 8], (&buffer, 8)).unwrap();
            let other = device.buffer(LENGTH);
            let (waits, signals) = at(2);
            device.copy_on(affinity, &waits, &signals, (&buffer, 0), (&other, 0), LENGTH).unwrap();
            let commands = unsafe {
                let record = |commands| {
                    check(sys::iree_hal_command_buffer_copy_buffer(
                        commands,
                        reference(&other),
                        reference(&buffer),
                        0,
                    ))
                };
                device.record_for(affinity, 0, record).unwrap()
            };
            let (waits, signals) = at(3);
            device.execute(affinity, &waits, &signals, &commands, &[]).unwrap();
            let (waits, signals) = at(4);
            unsafe {
                let (waits, signals) = (waits.raw(), signals.raw());
                check(sys::iree_hal_device_queue_barrier(device.0, affinity, waits, signals, 0)).unwrap();
                check(sys::iree_hal_device_queue_flush(device.0, affinity)).unwrap();
                let mut backend = sys::iree_hal_queue_pool_backend_t::default();
                check(sys::iree_hal_device_query_queue_pool_backend(device.0, affinity, &raw mut backend))
                    .unwrap();
            }
            let (waits, signals) = at(5);
            let memory = unsafe {
                let (waits, signals) = (waits.raw(), signals.raw());
                let (pool, mut memory) = (null_mut(), null_mut());
                let out = &raw mut memory;
                let (device, params) = (device.0, params());
                check(sys::iree_hal_device_queue_alloca(
                    device, affinity, waits, signals, pool, params, LENGTH, 0, out,
                ))
                .unwrap();
                Buffer(memory)
            };
            let (waits, signals) = at(6);
            device.read_file(&waits, &signals, &file, 0, &memory, LENGTH).unwrap();
            let (waits, signals) = at(7);
            unsafe {
                let (waits, signals) = (waits.raw(), signals.raw());
                check(sys::iree_hal_device_queue_dealloca(device.0, affinity, waits, signals, memory.0, 0))
                    .unwrap();
            }
            order.wait(8).unwrap();
            let mut expected = vec![1; LENGTH];
            expected[8..16].fill(2);
            assert_eq!(buffer.read(), expected, "{uri} with {affinity:#x}");
        }
    }
}

#[test]
fn same_affinity_is_the_same_queue() {
    for uri in DEVICES {
        let device = Device::open_in_group(uri).unwrap();
        for affinity in AFFINITIES.into_iter().filter(|affinity| affinity.is_power_of_two()) {
            let (buffer, done) = (device.buffer(LENGTH), device.semaphore(0));
            // Nothing but the queue orders these.
            for step in 1..=20_u8 {
                let signals = if step == 20 { done.at(1) } else { List::none() };
                device.fill_on(affinity, &List::none(), &signals, &buffer, (0, LENGTH), &[step]).unwrap();
            }
            done.wait(1).unwrap();
            assert_eq!(buffer.read(), [20; LENGTH], "{uri} with {affinity:#x}");
        }
    }
}

/// Bits of queues that do not exist are folded into existing ones: neighbouring bits are different queues, and each
/// bit is always the same queue.
#[test]
fn affinity_of_no_queue_here_is_folded_into_one_that_is() {
    const LATENCY: Duration = Duration::from_millis(500);
    let device = Device::open("mock://?queues=3&workers=3&latency=500ms").unwrap();
    let took = |affinities: [u64; 3]| {
        let (buffers, done) =
            (affinities.map(|_| device.buffer(LENGTH)), affinities.map(|_| device.semaphore(0)));
        let begin = Instant::now();
        for ((buffer, done), affinity) in buffers.iter().zip(&done).zip(affinities) {
            device.fill_on(affinity, &List::none(), &done.at(1), buffer, (0, LENGTH), &[1]).unwrap();
        }
        done.iter().for_each(|done| done.wait(1).unwrap());
        begin.elapsed()
    };
    // A busy machine may be late, but not each time.
    assert!((0..10).any(|_| took([1 << 39, 1 << 40, 1 << 41]) < 3 * LATENCY), "three queues");
    assert!(took([1 << 40; 3]) >= 3 * LATENCY, "one queue");
    assert!(took([1 << 1, 1 << 40, 1 << 61]) >= 2 * LATENCY, "two of them are one queue");
}
