//! A device goes, whatever it still has: in bounded time, with everybody told.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]

mod common;

use common::{Device, List};
use hal_semaphore::Code;
use std::sync::mpsc;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(1);

#[test]
fn a_wait_that_nobody_signals_ends_with_the_device() {
    let begin = Instant::now();
    let device = Device::open("mock").unwrap();
    let buffer = device.buffer(64);
    let (never, after, last) = (device.semaphore(0), device.semaphore(0), device.semaphore(0));
    device.fill(&never.at(1), &after.at(1), &buffer, (0, 64), &[1]).unwrap();
    device.barrier(&after.at(1), &last.at(1)).unwrap();
    let transient = device.alloca(&never.at(1), &device.semaphore(0).at(1), 64).unwrap();
    drop(device);
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    assert_eq!(last.wait(1).unwrap_err().code, Code::Cancelled);
    drop((transient, buffer, never));
}

#[test]
fn work_in_flight_ends_or_is_stopped() {
    // Each job takes longer than a device is waited for.
    let device = Device::open("mock://0?latency=30s").unwrap();
    let (buffer, done) = (device.buffer(64), device.semaphore(0));
    for step in 1..=10 {
        device.fill(&done.at(step - 1), &done.at(step), &buffer, (0, 64), &[1]).unwrap();
    }
    let begin = Instant::now();
    drop(device);
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    assert!(done.wait(10).is_err());
}

#[test]
fn a_device_may_be_dropped_by_its_own_callback() {
    let (tell, told) = mpsc::channel();
    let device = Device::open("mock").unwrap();
    let (go, done) = (device.semaphore(0), device.semaphore(0));
    // The call's closure has the last reference.
    let last = device.again();
    let call = Box::new(move || {
        drop(last);
        tell.send(()).unwrap();
        std::ptr::null_mut()
    });
    device.host_call(&go.at(1), &done.at(1), 0, call).unwrap();
    drop(device);
    go.signal(1).unwrap();
    told.recv_timeout(SOON).unwrap();
    done.wait(1).unwrap();
}

#[test]
fn what_was_made_with_a_device_may_outlive_it() {
    let device = Device::open("mock").unwrap();
    let (buffer, done) = (device.buffer(4096), device.semaphore(0));
    device.fill(&List::none(), &done.at(1), &buffer, (0, 4096), &[5]).unwrap();
    done.wait(1).unwrap();
    drop(device);
    assert_eq!(buffer.read(), [5; 4096]);
    done.signal(2).unwrap();
    assert_eq!(done.value().unwrap(), 2);
}

#[test]
fn many_devices_come_and_go_beside_each_other() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let device = Device::open("mock://0?workers=2").unwrap();
                    let (buffer, done) = (device.buffer(64), device.semaphore(0));
                    device.fill(&List::none(), &done.at(1), &buffer, (0, 64), &[1]).unwrap();
                }
            });
        }
    });
}
