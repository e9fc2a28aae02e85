// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A device in several groups at once: every session of the runtime library makes one around its device.

use crate::common::{Device, List, Semaphore, Tracker, check};
use hal_sys as sys;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A chain of fills: an epoch each.
fn work(device: &Device, chain: &Semaphore, values: std::ops::Range<u64>) {
    let buffer = device.buffer(64);
    for value in values.clone() {
        device.fill(&chain.at(value), &chain.at(value + 1), &buffer, (0, 64), &[1]).unwrap();
    }
    chain.wait(values.end).unwrap();
}

/// Epochs are reported after the signals, so they may come a moment later than a wait returns.
fn reaches(tracker: &Tracker, epoch: u64) -> bool {
    let begin = std::time::Instant::now();
    while !tracker.reached(epoch) {
        if begin.elapsed().as_secs() > 60 {
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
fn every_group_gets_every_epoch_and_the_ones_before_it() {
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
fn group_that_could_not_be_built_is_left_again() {
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
fn group_may_be_made_again_around_the_same_tracker() {
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

/// The number of trackers whose memory is counted.
static TRACKERS: AtomicUsize = AtomicUsize::new(0);

/// One test, as they share the count: sessions one after the other, many at once, and two devices in one group.
#[test]
fn group_that_is_gone_leaves_nothing_behind() {
    let device = Device::open("mock://?queues=1").unwrap();
    let chain = device.semaphore(0);
    let mut at = 0;
    let live = |most: usize, what: &str| {
        let live = TRACKERS.load(Ordering::Relaxed);
        assert!(live <= most, "{live} trackers {what}");
    };
    // The first group's tracker is the device's own, and the last group is the one that it reports.
    for _ in 0..100 {
        let tracker = Tracker::counted(&TRACKERS);
        let group = tracker.group(&device).unwrap();
        work(&device, &chain, at..at + 3);
        assert!(reaches(&tracker, at + 3));
        at += 3;
        release(group);
        drop(tracker);
        live(3, "of sessions that are over");
    }
    let kept = Tracker::counted(&TRACKERS);
    let group = kept.group(&device).unwrap();
    let many: Vec<_> =
        (0..100).map(|_| Tracker::counted(&TRACKERS)).map(|one| (one.group(&device).unwrap(), one)).collect();
    work(&device, &chain, at..at + 3);
    at += 3;
    for (_, tracker) in &many {
        assert!(reaches(tracker, at), "a live group is notified");
    }
    many.into_iter().for_each(|(group, _)| release(group));
    work(&device, &chain, at..at + 2048);
    at += 2048;
    live(3, "though work went on");
    assert!(reaches(&kept, at));
    // Two devices in one group: each has a reference, and neither tracker is spare.
    let other = Device::open("mock://1?queues=1").unwrap();
    for _ in 0..20 {
        let tracker = Tracker::counted(&TRACKERS);
        let both = tracker.group_of(&[&device, &other]).unwrap();
        release(both);
    }
    for device in [&device, &other] {
        unsafe { check(sys::iree_hal_device_trim(device.0)).unwrap() };
    }
    live(4, "of groups of two");
    release(group);
    drop((kept, device, other, chain));
}

/// IREE's information about a device's place in its group.
fn place(device: &Device) -> sys::iree_hal_device_topology_info_t {
    unsafe { *sys::iree_hal_device_topology_info(device.0) }
}

#[test]
fn device_in_two_groups_shows_the_last_one_with_the_axes_that_its_frontiers_are_in() {
    let (device, other) = (Device::open("mock").unwrap(), Device::open("mock").unwrap());
    let (first, second) = (Tracker::new(), Tracker::new());
    let one = first.group(&device).unwrap();
    let before = place(&device);
    assert_eq!(before.topology_index, 0);
    let two = second.group_of(&[&other, &device]).unwrap();
    let (after, beside) = (place(&device), place(&other));
    assert_eq!(after.topology_index, 1);
    assert!(after.topology != before.topology && after.topology == beside.topology);
    assert_eq!(after.frontier.tracker, before.frontier.tracker);
    assert_eq!(after.frontier.base_axis, before.frontier.base_axis);
    assert_ne!(beside.frontier.tracker, before.frontier.tracker);
    release(one);
    release(two);
}
