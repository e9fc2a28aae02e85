// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Each fault of the mock device, and its effect on a program.

use crate::common::{Device, List};
use hal_semaphore::Code;
use std::time::{Duration, Instant};

#[test]
fn failed_operation_fails_its_signals_and_nothing_else() {
    let device = Device::open("mock://0?queues=1&fault=fail:fill:2:ABORTED").unwrap();
    let buffer = device.buffer(64);
    let done = [device.semaphore(0), device.semaphore(0), device.semaphore(0)];
    for done in &done {
        device.fill(&List::none(), &done.at(1), &buffer, (0, 64), &[7]).unwrap();
    }
    done[0].wait(1).unwrap();
    let failed = done[1].wait(1).unwrap_err();
    assert_eq!(failed.code, Code::Aborted);
    assert!(failed.text.contains("Fill number 2 failed, as fault=fail asked"), "{}", failed.text);
    done[2].wait(1).unwrap();
}

#[test]
fn first_cause_is_reported_at_the_end_of_a_chain_across_devices() {
    let first = Device::open("mock://0?fault=fail:copy:1:DATA_LOSS").unwrap();
    let second = Device::open("mock://1").unwrap();
    let (source, target) = (first.buffer(64), first.buffer(64));
    let (a, b, c) = (first.semaphore(0), second.semaphore(0), second.semaphore(0));
    second.barrier(&b.at(1), &c.at(1)).unwrap();
    second.barrier(&a.at(1), &b.at(1)).unwrap();
    first.copy(&List::none(), &a.at(1), &source, &target, 64).unwrap();
    let failed = c.wait(1).unwrap_err();
    assert_eq!(failed.code, Code::DataLoss);
    assert!(failed.text.contains("Copy number 1 failed"), "{}", failed.text);
    // Both devices still work.
    let again = first.semaphore(0);
    first.copy(&List::none(), &again.at(1), &source, &target, 64).unwrap();
    again.wait(1).unwrap();
}

#[test]
fn lost_device_fails_everything_with_one_cause() {
    let device = Device::open("mock://0?fault=lose:2").unwrap();
    let buffer = device.buffer(64);
    let (first, held, never) = (device.semaphore(0), device.semaphore(0), device.semaphore(0));
    device.fill(&List::none(), &first.at(1), &buffer, (0, 64), &[1]).unwrap();
    first.wait(1).unwrap();
    device.barrier(&never.at(1), &held.at(1)).unwrap();
    let second = device.semaphore(0);
    device.fill(&List::none(), &second.at(1), &buffer, (0, 64), &[2]).unwrap();
    for semaphore in [&second, &held] {
        let failed = semaphore.wait(1).unwrap_err();
        assert_eq!(failed.code, Code::Unavailable);
        assert!(failed.text.contains("lost at job 2"), "{}", failed.text);
    }
    // Later work is accepted and fails in the same way.
    let later = device.semaphore(0);
    device.fill(&List::none(), &later.at(1), &buffer, (0, 64), &[3]).unwrap();
    assert!(later.wait(1).unwrap_err().text.contains("lost at job 2"));
}

#[test]
fn late_completion_is_late_and_right() {
    let device = Device::open("mock://0?fault=late:1").unwrap();
    let (buffer, done) = (device.buffer(64), device.semaphore(0));
    let begin = Instant::now();
    device.fill(&List::none(), &done.at(1), &buffer, (0, 64), &[9]).unwrap();
    done.wait(1).unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(50));
    assert_eq!(buffer.read(), [9; 64]);
}

#[test]
fn allocations_find_no_memory_when_there_is_none() {
    let device = Device::open("mock://0?fault=oom:2").unwrap();
    let kept = device.try_buffer(64);
    let refused = [kept.is_err(), device.try_buffer(64).is_err(), device.try_buffer(64).is_err()];
    // The pools may have made an allocation already: one of the first three is the second.
    assert_eq!(refused.iter().filter(|refused| **refused).count(), 1, "{refused:?}");

    let small = Device::open("mock://0?memory=1m").unwrap();
    let refused = small.try_buffer(2 << 20).err().unwrap();
    assert_eq!(refused.code, Code::ResourceExhausted);
    let refused = small.alloca(&List::none(), &small.semaphore(0).at(1), 2 << 20).err().unwrap();
    assert!(matches!(refused.code, Code::ResourceExhausted | Code::InvalidArgument), "{refused:?}");
    assert!(small.try_buffer(1000).is_ok());
}

/// Work on many queues whose completions overtake each other, and a graph that must keep its order.
#[test]
fn jitter_and_seeded_schedules_keep_the_order_that_was_asked_for() {
    for uri in [
        "mock://0?queues=4&fault=jitter&seed=3",
        "mock://0?queues=4&schedule=seeded&seed=5",
        "mock://0?queues=3&waits=none&fault=jitter",
        "mock://0?queues=2&depth=1",
    ] {
        let device = Device::open(uri).unwrap();
        let buffer = device.buffer(256);
        let done = device.semaphore(0);
        for step in 1..=60_u64 {
            let queue = 1 << (step % 2);
            let pattern = [u8::try_from(step).unwrap()];
            device.fill_on(queue, &done.at(step - 1), &done.at(step), &buffer, (0, 256), &pattern).unwrap();
        }
        done.wait(60).unwrap();
        assert_eq!(buffer.read(), [60; 256], "{uri}");
    }
}
