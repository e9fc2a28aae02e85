//! Timepoints as file descriptors, both ways, for programs that wait with poll.

#![allow(clippy::undocumented_unsafe_blocks, reason = "every object is alive, and descriptors are owned")]
#![allow(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

mod common;

use common::{Device, Semaphore, check};
use hal_sys as sys;
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

/// Whether a descriptor is readable within some time.
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
fn a_descriptor_releases_work_of_the_device() {
    let device = Device::open("mock").unwrap();
    let (source, imported, done) = (device.semaphore(0), device.semaphore(0), device.semaphore(0));
    let descriptor = export(&source, 1);
    let mut point = sys::iree_hal_external_timepoint_t {
        type_: sys::IREE_HAL_EXTERNAL_TIMEPOINT_TYPE_ASYNC_PRIMITIVE,
        ..Default::default()
    };
    unsafe {
        // The semaphore takes the descriptor over.
        let fd = std::os::fd::IntoRawFd::into_raw_fd(descriptor);
        point.handle.async_primitive = sys::iree_async_primitive_from_fd(fd);
        check(sys::iree_hal_semaphore_import_timepoint(imported.0, 1, u64::MAX, point)).unwrap();
    }
    device.barrier(&imported.at(1), &done.at(1)).unwrap();
    assert_eq!(done.value().unwrap(), 0);
    source.signal(1).unwrap();
    done.wait(1).unwrap();
}
