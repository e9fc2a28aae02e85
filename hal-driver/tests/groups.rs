//! A device in several groups at once: every session of the runtime library makes one around the device it is given.

#![allow(clippy::undocumented_unsafe_blocks, reason = "every object is alive as long as its wrapper")]
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

mod common;

use common::{Device, List, Semaphore, Tracker, check};
use hal_sys as sys;

/// A chain of fills: an epoch each.
fn work(device: &Device, chain: &Semaphore, values: std::ops::Range<u64>) {
    let buffer = device.buffer(64);
    for value in values.clone() {
        device.fill(&chain.at(value), &chain.at(value + 1), &buffer, (0, 64), &[1]).unwrap();
    }
    chain.wait(values.end).unwrap();
}

/// Epochs are told after the signals, so they may come a moment later than a wait.
fn reaches(tracker: &Tracker, epoch: u64) -> bool {
    let begin = std::time::Instant::now();
    while !tracker.reached(epoch) {
        if begin.elapsed().as_secs() > 5 {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

fn release(group: *mut sys::iree_hal_device_group_t) {
    unsafe { sys::iree_hal_device_group_release(group) };
}

#[test]
fn every_group_is_told_every_epoch_and_what_was_before_it() {
    let device = Device::open("mock://?queues=1").unwrap();
    let chain = device.semaphore(0);
    work(&device, &chain, 0..5);
    let (first, second) = (Tracker::new(), Tracker::new());
    let one = first.group(&device).unwrap();
    assert!(reaches(&first, 5) && !first.reached(6));
    work(&device, &chain, 5..8);
    let two = second.group(&device).unwrap();
    assert!(reaches(&second, 8) && !second.reached(9));
    work(&device, &chain, 8..10);
    assert!(reaches(&first, 10) && reaches(&second, 10));
    // A group that is gone changes nothing for the others.
    release(one);
    work(&device, &chain, 10..12);
    assert!(reaches(&first, 12) && reaches(&second, 12) && !second.reached(13));
    release(two);
}

#[test]
fn a_group_that_could_not_be_built_is_left_again() {
    let device = Device::open("mock://?queues=1").unwrap();
    let (first, second) = (Tracker::new(), Tracker::new());
    let (one, two) = (first.group(&device).unwrap(), second.group(&device).unwrap());
    unsafe { check(sys::iree_hal_device_assign_topology_info(device.0, std::ptr::null())).unwrap() };
    let chain = device.semaphore(0);
    work(&device, &chain, 0..3);
    assert!(reaches(&first, 3));
    assert!(!second.reached(1), "nothing advances an axis that was given up");
    release(one);
    release(two);
}

#[test]
fn a_group_may_be_made_again_around_the_same_tracker() {
    let device = Device::open("mock://?queues=1").unwrap();
    let tracker = Tracker::new();
    let (one, two) = (tracker.group(&device).unwrap(), tracker.group(&device).unwrap());
    let chain = device.semaphore(0);
    work(&device, &chain, 0..3);
    assert!(reaches(&tracker, 3));
    release(one);
    release(two);
}

#[test]
fn memory_goes_round_while_groups_come_and_go() {
    let device = Device::open("mock://?memory=8m").unwrap();
    let chain = device.semaphore(0);
    let mut value = 0;
    for _ in 0..50 {
        let tracker = Tracker::new();
        let group = tracker.group(&device).unwrap();
        // More than fits at once, so allocations wait for the frontiers of deallocations.
        for _ in 0..8 {
            let buffer = device.alloca(&chain.at(value), &chain.at(value + 1), 3 << 20).unwrap();
            device.fill(&chain.at(value + 1), &chain.at(value + 2), &buffer, (0, 3 << 20), &[7]).unwrap();
            device.dealloca(&chain.at(value + 2), &chain.at(value + 3), &buffer).unwrap();
            value += 3;
        }
        chain.wait(value).unwrap();
        release(group);
    }
    device.barrier(&List::none(), &chain.at(value + 1)).unwrap();
    chain.wait(value + 1).unwrap();
}
