// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Transfers of each kind of buffer, which the program releases while they are blocked: some keep only the memory,
//! others the buffer.

use crate::common::{Device, List, counting_release, params};
use hal_sys as sys;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const LENGTH: usize = 4096;

/// Host memory with the alignment that devices require.
#[repr(align(4096))]
struct AlignedBytes([u8; LENGTH]);

fn has_come(count: &AtomicUsize, wanted: usize) -> bool {
    let begin = Instant::now();
    while count.load(Ordering::SeqCst) != wanted && begin.elapsed() < Duration::from_secs(60) {
        std::thread::yield_now();
    }
    count.load(Ordering::SeqCst) == wanted
}

/// A fill, an update and a copy of parts of parts, of a buffer of each kind, behind a signal that comes after the
/// program has released all of them. The bytes are right, and imported memory returns after the last of them, not
/// before.
#[test]
fn blocked_transfers_work_on_released_buffers() {
    for uri in ["mock://?queues=1", "mock", "mock://?depth=1"] {
        let device = Device::open(uri).unwrap();
        let bytes: Vec<u8> = (0..64).collect();
        let plain = || device.buffer(LENGTH);
        let transient = || {
            let there = device.semaphore(0);
            let buffer = device.alloca(&List::none(), &there.at(1), LENGTH).unwrap();
            there.wait(1).unwrap();
            buffer
        };
        let (mut pages, given_back) = (Box::new(AlignedBytes([0; LENGTH])), AtomicUsize::new(0));
        let on_host = sys::IREE_HAL_MEMORY_TYPE_HOST_LOCAL | sys::IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE;
        let here = sys::iree_hal_buffer_params_t { type_: on_host, ..params() };
        let imported =
            device.import_until(here, pages.0.as_mut_ptr(), LENGTH, counting_release(&given_back)).unwrap();
        for (kind, whole) in [plain(), transient(), imported].into_iter().enumerate() {
            let (gate, done, seen) = (device.semaphore(0), device.semaphore(0), device.buffer(256));
            let half = whole.subspan(LENGTH / 2, LENGTH / 2);
            let part = half.subspan(256, 512);
            device.fill(&gate.at(1), &done.at(1), &part, (64, 128), &[7, 8]).unwrap();
            device.update_on(1, &done.at(1), &done.at(2), &bytes, (&part, 32)).unwrap();
            device.copy_on(1, &done.at(2), &done.at(3), (&part, 16), (&seen, 0), 256).unwrap();
            device.copy_on(1, &done.at(3), &done.at(4), (&seen, 16), (&half, 0), 64).unwrap();
            device.copy_on(1, &done.at(4), &done.at(5), (&whole, LENGTH / 2), (&seen, 0), 64).unwrap();
            drop((whole, half, part));
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(given_back.load(Ordering::SeqCst), 0, "{uri} {kind}: transfers are to come");
            gate.signal(1).unwrap();
            done.wait(5).unwrap();
            let seen = seen.read();
            assert_eq!(seen[..64], bytes[..], "{uri} {kind}: there and back");
            assert_eq!(seen[80..82], [7, 8], "{uri} {kind}: behind the update");
            assert!(seen[80..174].chunks(2).all(|pair| pair == [7, 8]), "{uri} {kind}: {seen:?}");
        }
        assert!(has_come(&given_back, 1), "{uri}");
    }
}

/// Checks run in the same order for any buffer: the pattern, then the length, then the access, and last whether
/// there is anything to do.
#[test]
fn refused_transfer_says_the_same_of_any_buffer() {
    let device = Device::open("mock").unwrap();
    let read_only = |length| device.local_buffer_for(sys::IREE_HAL_MEMORY_ACCESS_READ, length);
    let write_only = |length| device.local_buffer_for(sys::IREE_HAL_MEMORY_ACCESS_WRITE, length);
    let done = device.semaphore(0);
    let (none, never) = (List::none(), done.at(1));
    let (whole, out) = (read_only(64), write_only(64));
    let part = whole.subspan(32, 32);
    for target in [&whole, &part] {
        let says = |result: crate::common::Result, text: &str| {
            let error = result.unwrap_err();
            assert!(error.text.contains(text), "{}", error.text);
        };
        says(device.fill(&none, &never, target, (0, 65), &[0; 17]), "65 bytes at 0");
        says(device.fill(&none, &never, target, (0, 8), &[0; 17]), "pattern");
        says(device.fill(&none, &never, target, (0, 8), &[1]), "WRITE");
        says(device.fill(&none, &never, target, (0, 0), &[1]), "WRITE");
        says(device.update_on(1, &none, &never, &[1, 2], (target, 0)), "WRITE");
        says(device.copy(&none, &never, &out, target, 8), "READ");
        says(device.copy(&none, &never, target, target, 8), "WRITE");
        says(device.copy(&none, &never, target, &out, 65), "65 bytes at 0");
    }
    assert_eq!(done.value().unwrap(), 0);
    // An empty transfer is a barrier.
    device.fill(&none, &done.at(1), &out, (64, 0), &[1]).unwrap();
    device.copy(&done.at(1), &done.at(2), &whole, &out, 0).unwrap();
    // To the end.
    device.fill(&done.at(2), &done.at(3), &out, (60, usize::MAX), &[1]).unwrap();
    done.wait(3).unwrap();
}
