// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Programs that query a semaphore instead of waiting for it.

use crate::common::{Device, List};
use hal_semaphore::Code;
use std::time::{Duration, Instant};

#[test]
fn to_ask_takes_a_moment_at_most() {
    let device = Device::open("mock://?latency=60s").unwrap();
    let (done, never, buffer) = (device.semaphore(0), device.semaphore(3), device.buffer(64));
    device.fill(&List::none(), &done.at(1), &buffer, (0, 64), &[3]).unwrap();
    let begin = Instant::now();
    for _ in 0..200 {
        assert_eq!((done.value().unwrap(), never.value().unwrap()), (0, 3));
    }
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
}

#[test]
fn queries_alone_see_values_and_failures() {
    let device = Device::open("mock://?fault=fail:fill:100").unwrap();
    let (done, buffer) = (device.semaphore(0), device.buffer(64));
    for value in 1..100 {
        device.fill(&done.at(value - 1), &done.at(value), &buffer, (0, 64), &[3]).unwrap();
        while done.value().unwrap() < value {}
        assert_eq!(done.value().unwrap(), value);
    }
    device.fill(&done.at(99), &done.at(100), &buffer, (0, 64), &[3]).unwrap();
    let failure = loop {
        match done.value() {
            Ok(value) => assert_eq!(value, 99),
            Err(failure) => break failure,
        }
    };
    assert_eq!(failure.code, Code::DataLoss);
}

#[test]
fn program_that_polls_is_answered_at_once() {
    let device = Device::open("mock://?latency=60s").unwrap();
    let (done, buffer) = (device.semaphore(0), device.buffer(64));
    device.fill(&List::none(), &done.at(1), &buffer, (0, 64), &[3]).unwrap();
    // The first query may spin while the work is about to end. Other programs share the processors, so some are
    // slow anyway.
    let slow = |_| {
        let begin = Instant::now();
        assert_eq!(done.value().unwrap(), 0);
        begin.elapsed() > Duration::from_micros(30)
    };
    let fewest = (0..5).map(|_| (0..1000).filter(|&at: &usize| slow(at)).count()).min().unwrap();
    assert!(fewest < 500, "{fewest} of 1000");
}

/// New devices, so that each first query spins. Other programs share the processors, so the quickest counts, and none
/// that comes behind the end.
#[test]
fn first_answer_takes_what_it_costs_to_be_woken_at_most() {
    let first = |_| {
        let device = Device::open("mock://?latency=100ms").unwrap();
        let (done, buffer) = (device.semaphore(0), device.buffer(64));
        device.fill(&List::none(), &done.at(1), &buffer, (0, 64), &[3]).unwrap();
        let begin = Instant::now();
        let value = done.value().unwrap();
        let took = begin.elapsed();
        (value == 0).then_some(took)
    };
    let quickest = (0..10).filter_map(first).min().unwrap();
    assert!(quickest < Duration::from_millis(1), "{quickest:?}");
}
