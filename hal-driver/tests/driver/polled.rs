// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A device that reports by poll: how often it is polled, and which commands reach it.

use crate::common::{Device, List};
use crate::dispatches::{self, COMMANDS, POLLS};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The device, for one test at a time: the counters are process-wide.
fn open() -> (MutexGuard<'static, ()>, Device) {
    static ALONE: Mutex<()> = Mutex::new(());
    (ALONE.lock().unwrap_or_else(PoisonError::into_inner), dispatches::open("noting://?polled=yes"))
}

/// An idle device is not polled (an idle program uses no processor).
#[test]
fn device_that_has_nothing_to_do_is_not_asked() {
    let (_alone, device) = open();
    let (buffer, done) = (device.buffer(64), device.semaphore(0));
    for round in 1..=3 {
        let before = POLLS.load(Ordering::SeqCst);
        device.fill(&List::none(), &done.at(round), &buffer, (0, 64), &[1]).unwrap();
        done.wait(round).unwrap();
        assert!(POLLS.load(Ordering::SeqCst) > before, "it was reported without a poll");
        let begin = Instant::now();
        loop {
            let asked = POLLS.load(Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            if POLLS.load(Ordering::SeqCst) == asked {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "it is asked and asked");
        }
    }
}

/// A transfer of no bytes only waits and signals: devices need not support one.
#[test]
fn transfer_of_no_bytes_does_not_come_to_the_device() {
    let (_alone, device) = open();
    let (source, target, done) = (device.buffer(64), device.buffer(64), device.semaphore(0));
    let before = COMMANDS.load(Ordering::SeqCst);
    device.fill(&List::none(), &done.at(1), &target, (64, 0), &[1]).unwrap();
    device.copy(&done.at(1), &done.at(2), &source, &target, 0).unwrap();
    device.update_on(u64::MAX, &done.at(2), &done.at(3), &[], (&target, 8)).unwrap();
    done.wait(3).unwrap();
    assert_eq!(COMMANDS.load(Ordering::SeqCst), before);
    device.fill(&done.at(3), &done.at(4), &target, (0, 64), &[1]).unwrap();
    done.wait(4).unwrap();
    assert_eq!(COMMANDS.load(Ordering::SeqCst), before + 1);
}
