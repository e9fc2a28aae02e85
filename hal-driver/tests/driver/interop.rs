// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Timepoints as file descriptors, both ways, for programs that wait with poll; and buffers of other drivers.

use crate::common::{Device, List, Semaphore, check};
use hal_semaphore::Code;
use hal_sys as sys;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A descriptor that becomes readable when the semaphore reaches the value.
fn export(semaphore: &Semaphore, value: u64) -> OwnedFd {
    unsafe {
        let mut point = sys::iree_hal_external_timepoint_t::default();
        let kind = sys::IREE_HAL_EXTERNAL_TIMEPOINT_TYPE_ASYNC_PRIMITIVE;
        check(sys::iree_hal_semaphore_export_timepoint(
            semaphore.0,
            value,
            u64::MAX,
            kind,
            0,
            &raw mut point,
        ))
        .unwrap();
        OwnedFd::from_raw_fd(point.handle.async_primitive.value.fd)
    }
}

/// True if a descriptor becomes readable within some time.
fn readable(descriptor: &OwnedFd, milliseconds: i32) -> bool {
    #[repr(C)]
    struct Poll {
        fd: i32,
        events: i16,
        revents: i16,
    }
    unsafe extern "C" {
        fn poll(fds: *mut Poll, count: u64, timeout: i32) -> i32;
    }
    let mut entry = Poll { fd: descriptor.as_raw_fd(), events: 1, revents: 0 };
    unsafe { poll(&raw mut entry, 1, milliseconds) == 1 }
}

#[test]
fn work_of_the_device_makes_a_descriptor_readable() {
    let device = Device::open("mock").unwrap();
    let (go, done, buffer) = (device.semaphore(0), device.semaphore(0), device.buffer(64));
    let descriptor = export(&done, 1);
    device.fill(&go.at(1), &done.at(1), &buffer, (0, 64), &[3]).unwrap();
    assert!(!readable(&descriptor, 20));
    go.signal(1).unwrap();
    assert!(readable(&descriptor, 5_000));
}

#[test]
fn descriptor_releases_work_of_the_device() {
    let device = Device::open("mock").unwrap();
    let (source, imported, done) = (device.semaphore(0), device.semaphore(0), device.semaphore(0));
    let descriptor = export(&source, 1);
    let mut point = sys::iree_hal_external_timepoint_t {
        type_: sys::IREE_HAL_EXTERNAL_TIMEPOINT_TYPE_ASYNC_PRIMITIVE,
        ..Default::default()
    };
    unsafe {
        // The semaphore takes over the descriptor.
        let fd = std::os::fd::IntoRawFd::into_raw_fd(descriptor);
        point.handle.async_primitive = sys::iree_async_primitive_from_fd(fd);
        check(sys::iree_hal_semaphore_import_timepoint(imported.0, 1, u64::MAX, point)).unwrap();
    }
    device.barrier(&imported.at(1), &done.at(1)).unwrap();
    assert_eq!(done.value().unwrap(), 0);
    source.signal(1).unwrap();
    done.wait(1).unwrap();
}

/// Also when its deallocation is queued already, after which it cannot be mapped any more.
#[test]
fn stream_ordered_buffer_of_another_driver_is_used_until_its_deallocation() {
    for is_deallocated_ahead in [false, true] {
        let (owner, worker) = (Device::open_in_group("local-task").unwrap(), Device::open("mock").unwrap());
        let (go, order, target) = (owner.semaphore(0), owner.semaphore(0), worker.buffer(4096));
        let buffer = owner.alloca(&go.at(1), &order.at(1), 4096).unwrap();
        owner.fill(&order.at(1), &order.at(2), &buffer, (0, 4096), &[6]).unwrap();
        worker.copy(&order.at(2), &order.at(3), &buffer, &target, 4096).unwrap();
        if is_deallocated_ahead {
            owner.dealloca(&order.at(3), &order.at(4), &buffer).unwrap();
        }
        go.signal(1).unwrap();
        order.wait(3).unwrap();
        if !is_deallocated_ahead {
            owner.dealloca(&order.at(3), &order.at(4), &buffer).unwrap();
        }
        order.wait(4).unwrap();
        assert!(target.read() == [6; 4096]);
        let late = worker.semaphore(0);
        worker.copy(&List::none(), &late.at(1), &buffer, &target, 4096).unwrap();
        assert_eq!(late.wait(1).unwrap_err().code, Code::FailedPrecondition);
    }
}

/// IREE exports with the proactor that a semaphore was created with.
#[test]
fn semaphore_makes_descriptors_readable_behind_its_device() {
    let device = Device::open("mock").unwrap();
    let semaphore = device.semaphore(0);
    drop(device);
    let descriptor = export(&semaphore, 1);
    semaphore.signal(1).unwrap();
    let mut counter = [0; 8];
    std::fs::File::from(descriptor).read_exact(&mut counter).unwrap();
    assert_ne!(counter, [0; 8]);
}
