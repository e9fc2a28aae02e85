// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Releasing a device in any state: in bounded time, with all waiters notified.

use crate::common::{Buffer, Device, List};
use hal_semaphore::Code;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Shorter than the limit of a teardown, and long enough on a busy machine.
const SOON: Duration = Duration::from_secs(15);

#[test]
fn wait_without_a_signal_ends_with_the_device() {
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
    // Each job takes longer than the teardown waits.
    let device = Device::open("mock://0?latency=60s").unwrap();
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
fn device_may_be_dropped_by_its_own_callback() {
    let (sender, receiver) = mpsc::channel();
    let device = Device::open("mock").unwrap();
    let (go, done) = (device.semaphore(0), device.semaphore(0));
    // The call's closure holds the last reference.
    let last = device.again();
    let call = Box::new(move || {
        drop(last);
        sender.send(()).unwrap();
        std::ptr::null_mut()
    });
    device.host_call(&go.at(1), &done.at(1), 0, call).unwrap();
    drop(device);
    go.signal(1).unwrap();
    receiver.recv_timeout(SOON).unwrap();
    done.wait(1).unwrap();
}

#[test]
fn objects_of_a_device_may_outlive_it() {
    let device = Device::open("mock").unwrap();
    let (buffer, done) = (device.buffer(4096), device.semaphore(0));
    device.fill(&List::none(), &done.at(1), &buffer, (0, 4096), &[5]).unwrap();
    done.wait(1).unwrap();
    let commands = device.record(0, |_| Ok(())).unwrap();
    drop(device);
    drop(commands);
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

/// An allocation that waits for memory which only a card's long job would return, and the semaphore
/// that it waits for.
fn park(device: &Device) -> (crate::common::Semaphore, Vec<Buffer>) {
    const PART: usize = 400 << 10;
    // All of the device's memory but the pool's one slab.
    let mut kept: Vec<Buffer> = (0..7).map(|_| device.buffer(1 << 20)).collect();
    let (chain, now) = (device.semaphore(0), device.semaphore(0));
    device.fill(&List::none(), &chain.at(1), &kept[0], (0, 64), &[1]).unwrap();
    kept.extend((1..3).map(|at| device.alloca(&chain.at(at), &chain.at(at + 1), PART).unwrap()));
    kept.push(device.alloca(&List::none(), &now.at(1), PART).unwrap());
    assert_eq!(now.value().unwrap(), 0, "it waits");
    (now, kept)
}

/// The polling thread of a proactor would wait for itself if it waited for the device's operations there, or for
/// its own end.
#[test]
fn device_may_be_dropped_on_the_thread_that_polls_its_proactor() {
    for has_parked in [false, true] {
        for in_callback in [false, true] {
            let begin = Instant::now();
            let (device, proactor) = Device::open_polled("mock://?memory=8m&queues=1&latency=60s").unwrap();
            let parked = has_parked.then(|| park(&device));
            let (never, cancelled, go) = (device.semaphore(0), device.semaphore(0), device.semaphore(0));
            device.barrier(&never.at(1), &cancelled.at(1)).unwrap();
            let (sender, receiver) = mpsc::channel();
            let last = move || {
                drop(device);
                sender.send(()).unwrap();
            };
            if in_callback {
                go.when(1, last);
                let go = go.clone();
                proactor.run(move || go.signal(1).unwrap());
            } else {
                proactor.run(last);
            }
            receiver.recv_timeout(2 * SOON).expect("the polling thread goes on");
            assert_eq!(cancelled.wait(1).unwrap_err().code, Code::Cancelled);
            if let Some((now, kept)) = parked {
                assert_eq!(now.wait(1).unwrap_err().code, Code::Cancelled);
                drop(kept);
            }
            assert!(begin.elapsed() < 4 * SOON, "{:?}", begin.elapsed());
        }
    }
}

/// The polling thread may not have polled since the device was created, so the device cannot know it.
#[test]
fn device_may_be_made_and_dropped_on_the_thread_that_polls_its_proactor() {
    let (sender, receiver) = mpsc::channel();
    crate::common::on_a_polling_thread(move |pool| {
        let device = Device::open_with_pool("mock", pool).unwrap();
        let (buffer, done) = (device.buffer(64), device.semaphore(0));
        device.fill(&List::none(), &done.at(1), &buffer, (0, 64), &[1]).unwrap();
        done.wait(1).unwrap();
        drop((buffer, done));
        // Only the device holds the pool from here on.
        // SAFETY: the pool is this call's.
        unsafe { hal_sys::iree_async_proactor_pool_release(pool) };
        drop(device);
        sender.send(()).unwrap();
    });
    receiver.recv_timeout(2 * SOON).expect("the polling thread goes on");
}

/// The last object that keeps the proactor may be released there too.
#[test]
fn last_buffer_or_semaphore_may_be_dropped_on_the_thread_that_polled_for_its_device() {
    let (device, proactor) = Device::open_polled("mock").unwrap();
    let done = device.semaphore(0);
    let buffer = device.alloca(&List::none(), &done.at(1), 4096).unwrap();
    done.wait(1).unwrap();
    let (go, went) = mpsc::channel::<()>();
    let (sender, receiver) = mpsc::channel();
    proactor.run(move || {
        went.recv().unwrap();
        drop(done);
        drop(buffer);
        sender.send(()).unwrap();
    });
    drop(device);
    go.send(()).unwrap();
    receiver.recv_timeout(2 * SOON).expect("the polling thread goes on");
}
