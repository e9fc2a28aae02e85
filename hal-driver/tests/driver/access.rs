// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A buffer's access and usage bits are enforced on every path, and refusals name the missing bit.

use crate::common::{Buffer, Device, File, List, check, reference};
use hal_semaphore::Code;
use hal_sys as sys;
use std::ffi::c_void;
use std::ptr::null_mut;

const DEVICES: [&str; 3] = ["mock", "template", "gaudi://emulated?generation=gaudi2&seed=9100"];

const LENGTH: usize = 64;

/// A buffer with these bits, in the device's own or in mappable memory.
fn buffer(device: &Device, is_mapped: bool, access: sys::iree_hal_memory_access_bits_t) -> Buffer {
    let params = sys::iree_hal_buffer_params_t {
        type_: if is_mapped {
            sys::IREE_HAL_MEMORY_TYPE_HOST_LOCAL | sys::IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE
        } else {
            sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL
        },
        access: access.try_into().unwrap(),
        usage: sys::IREE_HAL_BUFFER_USAGE_DEFAULT,
        ..Default::default()
    };
    device.try_buffer_of(params, LENGTH).unwrap()
}

fn denied(what: &str, result: crate::common::Result, says: &str) {
    let refused = result.expect_err(what);
    assert_eq!(refused.code, Code::PermissionDenied, "{what}: {}", refused.text);
    assert!(refused.text.contains(says), "{what}: {:?} does not say {says:?}", refused.text);
}

#[test]
fn buffer_is_written_only_if_the_program_allowed_it() {
    const WRITE: &str = "IREE_HAL_MEMORY_ACCESS_WRITE";
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        let (done, none) = (device.semaphore(7), List::none());
        let signals = done.at(8);
        let file = File::with(&[9; LENGTH]);
        for is_mapped in [false, true] {
            let kept = buffer(&device, is_mapped, sys::IREE_HAL_MEMORY_ACCESS_READ);
            let other = device.buffer(LENGTH);
            denied("fill", device.fill(&none, &signals, &kept, (0, LENGTH), &[1]), WRITE);
            denied("empty fill", device.fill(&none, &signals, &kept, (0, 0), &[1]), WRITE);
            denied("update", device.update_on(1, &none, &signals, &[1; 8], (&kept, 8)), WRITE);
            denied("copy", device.copy(&none, &signals, &other, &kept, LENGTH), WRITE);
            denied("read", device.read_file(&none, &signals, &file, 0, &kept, LENGTH), WRITE);
            let recorded = device.record(0, |commands| unsafe {
                check(sys::iree_hal_command_buffer_fill_buffer(
                    commands,
                    reference(&kept),
                    [1_u8].as_ptr().cast(),
                    1,
                    0,
                ))
            });
            denied("a recorded fill", recorded.map(drop), WRITE);
            let recorded = device.record(0, |commands| unsafe {
                check(sys::iree_hal_command_buffer_copy_buffer(
                    commands,
                    reference(&other),
                    reference(&kept),
                    0,
                ))
            });
            denied("a recorded copy", recorded.map(drop), WRITE);
            // For a slot it is checked when the table arrives.
            let commands = device.record(1, |commands| unsafe {
                let slot = sys::iree_hal_make_indirect_buffer_ref(0, 0, LENGTH);
                let source: *const c_void = [1_u8; LENGTH].as_ptr().cast();
                check(sys::iree_hal_command_buffer_update_buffer(commands, source, 0, slot, 0))
            });
            let commands = commands.unwrap();
            denied("execute", device.execute(1, &none, &signals, &commands, &[&kept]), WRITE);
            denied("execute", device.execute(1, &none, &signals, &commands, &[&kept]), "slot 0");
            // A part has the bits of the whole.
            let part = kept.subspan(LENGTH / 2, LENGTH / 2);
            denied("fill", device.fill(&none, &signals, &part, (0, 8), &[1]), WRITE);
            // Nothing of that has happened, and permitted operations work.
            assert_eq!(done.value().unwrap(), 7);
            let end = device.semaphore(0);
            device.copy(&none, &end.at(1), &kept, &other, LENGTH).unwrap();
            device.execute(1, &end.at(1), &end.at(2), &commands, &[&other]).unwrap();
            end.wait(2).unwrap();
            assert_eq!(other.read(), [1; LENGTH]);
        }
    }
}

#[test]
fn buffer_is_read_only_if_the_program_allowed_it() {
    const READ: &str = "IREE_HAL_MEMORY_ACCESS_READ";
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        let (done, none) = (device.semaphore(7), List::none());
        let signals = done.at(8);
        let file = File::with(&[9; LENGTH]);
        let (hidden, other) =
            (buffer(&device, false, sys::IREE_HAL_MEMORY_ACCESS_WRITE), device.buffer(LENGTH));
        denied("copy", device.copy(&none, &signals, &hidden, &other, LENGTH), READ);
        denied("write", device.write_file(&none, &signals, &hidden, &file, 0, LENGTH), READ);
        let recorded = device.record(0, |commands| unsafe {
            check(sys::iree_hal_command_buffer_copy_buffer(
                commands,
                reference(&hidden),
                reference(&other),
                0,
            ))
        });
        denied("a recorded copy", recorded.map(drop), READ);
        assert_eq!(done.value().unwrap(), 7);
        device.fill(&none, &signals, &hidden, (0, LENGTH), &[1]).unwrap();
        done.wait(8).unwrap();
    }
}

/// Pages that the program cannot write, such as those of a mapped file: a fill of these would end the process.
#[test]
fn imported_pages_that_are_read_only_stay_as_they_are() {
    unsafe extern "C" {
        fn mmap(
            start: *mut c_void,
            length: usize,
            access: i32,
            flags: i32,
            file: i32,
            at: i64,
        ) -> *mut c_void;
        fn munmap(start: *mut c_void, length: usize) -> i32;
    }
    let (page, readable, private_and_anonymous) = (4096, 1, 0x22);
    for uri in ["mock", "template"] {
        let device = Device::open(uri).unwrap();
        let pages = unsafe { mmap(null_mut(), page, readable, private_and_anonymous, -1, 0) };
        let params = sys::iree_hal_buffer_params_t {
            type_: sys::IREE_HAL_MEMORY_TYPE_HOST_LOCAL | sys::IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE,
            access: sys::IREE_HAL_MEMORY_ACCESS_READ.try_into().unwrap(),
            ..Default::default()
        };
        let buffer = device.import(params, pages.cast(), page).unwrap();
        let done = device.semaphore(0);
        let filled = device.fill(&List::none(), &done.at(1), &buffer, (0, page), &[1]);
        denied("fill", filled, "import");
        assert_eq!(buffer.read(), vec![0; page]);
        drop((buffer, device));
        unsafe { munmap(pages, page) };
    }
}

#[test]
fn mapping_is_refused_where_it_cannot_be() {
    let device = Device::open(DEVICES[2]).unwrap();
    let map = |buffer: &Buffer, access: sys::iree_hal_memory_access_bits_t| unsafe {
        let mut mapping = sys::iree_hal_buffer_mapping_t::default();
        let (mode, access) = (sys::IREE_HAL_MAPPING_MODE_SCOPED, access.try_into().unwrap());
        let mapped = sys::iree_hal_buffer_map_range(buffer.0, mode, access, 0, LENGTH, &raw mut mapping);
        check(mapped).and_then(|()| check(sys::iree_hal_buffer_unmap_range(&raw mut mapping)))
    };
    let (read, write) = (sys::IREE_HAL_MEMORY_ACCESS_READ, sys::IREE_HAL_MEMORY_ACCESS_WRITE);
    let kept = buffer(&device, true, read);
    map(&kept, read).unwrap();
    denied("a mapping to write", map(&kept, write), "WRITE");
    denied("a mapping of device memory", map(&device.local_buffer(LENGTH), read), "HOST_VISIBLE");
}
