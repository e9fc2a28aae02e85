// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Stream-ordered buffers in programs with ordering mistakes, or that act late.

use crate::common::{Buffer, Device, List, check, reference};
use hal_semaphore::Code;
use hal_sys as sys;
use std::sync::Barrier;

const LENGTH: usize = 4096;

/// The number of commands that name the buffer, each of which resolves it.
const COMMANDS: usize = 1000;

/// Commands that fill a buffer which they name.
fn filling(device: &Device, target: &Buffer) -> crate::common::Commands {
    let pattern = 7_u8;
    device
        .record(0, |commands| unsafe {
            let (target, pattern) = (reference(target), (&raw const pattern).cast());
            (0..COMMANDS).try_for_each(|_| {
                check(sys::iree_hal_command_buffer_fill_buffer(commands, target, pattern, 1, 0))
            })
        })
        .unwrap()
}

/// A stream-ordered buffer that has its memory.
fn allocated(device: &Device, length: usize) -> Buffer {
    let done = device.semaphore(0);
    let buffer = device.alloca(&List::none(), &done.at(1), length).unwrap();
    done.wait(1).unwrap();
    buffer
}

/// Runs a use of a buffer beside its deallocation, with no order between them, `rounds` times. The use waits for
/// the barrier.
fn beside_deallocation(
    device: &Device,
    length: usize,
    rounds: usize,
    work: impl Fn(&Buffer, &Barrier) + Sync,
) {
    for _ in 0..rounds {
        let (buffer, gone, start) = (allocated(device, length), device.semaphore(0), Barrier::new(2));
        std::thread::scope(|scope| {
            let (buffer, start) = (&buffer, &start);
            let work = &work;
            scope.spawn(move || work(buffer, start));
            start.wait();
            device.dealloca(&List::none(), &gone.at(1), buffer).unwrap();
        });
        gone.wait(1).unwrap();
    }
}

/// The bytes may belong to another allocation by then, but they are memory of the device, and freed memory is never
/// accessed. AddressSanitizer checks these rounds.
#[test]
fn unordered_deallocation_leaves_work_with_memory_or_fails_it() {
    for uri in ["mock://0?queues=2", "gaudi://emulated"] {
        let device = Device::open(uri).unwrap();
        beside_deallocation(&device, LENGTH, 200, |buffer, start| {
            let done = device.semaphore(0);
            let commands = filling(&device, buffer);
            start.wait();
            device.execute(2, &List::none(), &done.at(1), &commands, &[]).unwrap();
            if let Err(failure) = done.wait(1) {
                assert_eq!(failure.code, Code::FailedPrecondition, "{failure:?}");
            }
        });
    }
}

#[test]
fn unordered_deallocation_leaves_mappings_with_memory_or_refuses_them() {
    let device = Device::open("mock").unwrap();
    // Too large for a shared slab: the deallocation frees the memory itself.
    for length in [LENGTH, 80 << 20] {
        beside_deallocation(&device, length, 50, |buffer, start| unsafe {
            start.wait();
            let mut mapping = sys::iree_hal_buffer_mapping_t::default();
            let mapped = check(sys::iree_hal_buffer_map_range(
                buffer.0,
                sys::IREE_HAL_MAPPING_MODE_SCOPED,
                u16::try_from(sys::IREE_HAL_MEMORY_ACCESS_READ).unwrap(),
                0,
                LENGTH,
                &raw mut mapping,
            ));
            match mapped {
                Ok(()) => {
                    let bytes = std::slice::from_raw_parts(mapping.contents.data, LENGTH);
                    assert!(bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>() < u64::MAX);
                    check(sys::iree_hal_buffer_unmap_range(&raw mut mapping)).unwrap();
                }
                Err(failure) => assert_eq!(failure.code, Code::FailedPrecondition, "{failure:?}"),
            }
        });
    }
}

#[test]
fn stream_ordered_buffer_may_outlive_its_device() {
    for uri in ["mock", "gaudi://emulated"] {
        for length in [LENGTH, 80 << 20] {
            let device = Device::open(uri).unwrap();
            let (buffer, filled) = (allocated(&device, length), device.semaphore(0));
            device.fill(&List::none(), &filled.at(1), &buffer, (0, length), &[5]).unwrap();
            filled.wait(1).unwrap();
            drop(device);
            assert!(buffer.read().iter().all(|&byte| byte == 5));
        }
    }
}

#[test]
fn mapping_keeps_memory_whatever_goes_before_it() {
    let device = Device::open("mock").unwrap();
    for length in [LENGTH, 80 << 20] {
        let device = device.again();
        let (buffer, gone) = (allocated(&device, length), device.semaphore(0));
        let mut mapping = sys::iree_hal_buffer_mapping_t::default();
        unsafe {
            check(sys::iree_hal_buffer_map_range(
                buffer.0,
                sys::IREE_HAL_MAPPING_MODE_SCOPED,
                u16::try_from(sys::IREE_HAL_MEMORY_ACCESS_WRITE).unwrap(),
                0,
                length,
                &raw mut mapping,
            ))
            .unwrap();
            device.dealloca(&List::none(), &gone.at(1), &buffer).unwrap();
            gone.wait(1).unwrap();
            drop((buffer, gone, device));
            mapping.contents.data.write_bytes(3, length);
            assert_eq!(mapping.contents.data.add(length - 1).read(), 3);
            check(sys::iree_hal_buffer_unmap_range(&raw mut mapping)).unwrap();
        }
    }
}

/// The memory goes to others behind the last mapping.
#[test]
fn mapping_shows_no_bytes_of_later_allocations() {
    let fill = |device: &Device, buffer: &Buffer, byte| {
        let done = device.semaphore(0);
        device.fill(&List::none(), &done.at(1), buffer, (0, LENGTH), &[byte]).unwrap();
        done.wait(1).unwrap();
    };
    for uri in ["mock", "template", "gaudi://emulated?seed=8601", "qaic://emulated?seed=8602"] {
        let device = Device::open(uri).unwrap();
        let (buffer, gone) = (allocated(&device, LENGTH), device.semaphore(0));
        fill(&device, &buffer, 3);
        let access = u16::try_from(sys::IREE_HAL_MEMORY_ACCESS_READ).unwrap();
        let mode = sys::IREE_HAL_MAPPING_MODE_SCOPED;
        let mut mappings = [sys::iree_hal_buffer_mapping_t::default(); 2];
        for mapping in &mut mappings {
            unsafe { check(sys::iree_hal_buffer_map_range(buffer.0, mode, access, 0, LENGTH, mapping)) }
                .unwrap();
        }
        device.dealloca(&List::none(), &gone.at(1), &buffer).unwrap();
        gone.wait(1).unwrap();
        for mapping in &mut mappings {
            for _ in 0..3 {
                let other = allocated(&device, LENGTH);
                fill(&device, &other, 9);
                let bytes = unsafe { std::slice::from_raw_parts(mapping.contents.data, LENGTH) };
                assert!(bytes.iter().all(|&byte| byte == 3), "{uri}: {:?}", &bytes[..8]);
            }
            unsafe { check(sys::iree_hal_buffer_unmap_range(mapping)) }.unwrap();
        }
    }
}

/// Memory that a mapping keeps is not lost: the next allocation gets it when the mapping has ended.
#[test]
fn memory_of_an_ended_mapping_is_allocated_again() {
    const PIECE: usize = 400 << 10;
    let device = Device::open("mock://?memory=8m&queues=1").unwrap();
    for _ in 0..100 {
        let (buffer, gone) = (allocated(&device, PIECE), device.semaphore(0));
        let access = u16::try_from(sys::IREE_HAL_MEMORY_ACCESS_READ).unwrap();
        let mode = sys::IREE_HAL_MAPPING_MODE_SCOPED;
        let mut mapping = sys::iree_hal_buffer_mapping_t::default();
        let out = &raw mut mapping;
        unsafe { check(sys::iree_hal_buffer_map_range(buffer.0, mode, access, 0, PIECE, out)) }.unwrap();
        device.dealloca(&List::none(), &gone.at(1), &buffer).unwrap();
        gone.wait(1).unwrap();
        unsafe { check(sys::iree_hal_buffer_unmap_range(out)) }.unwrap();
    }
}

/// A persistent mapping keeps nothing: it must end before the memory, and a late unmap is refused.
#[test]
fn persistent_mapping_ends_before_the_deallocation_or_its_unmap_is_refused() {
    for length in [LENGTH, 80 << 20] {
        for in_time in [true, false] {
            let device = Device::open("mock").unwrap();
            let (buffer, gone) = (allocated(&device, length), device.semaphore(0));
            let mut mapping = sys::iree_hal_buffer_mapping_t::default();
            let access =
                u16::try_from(sys::IREE_HAL_MEMORY_ACCESS_READ | sys::IREE_HAL_MEMORY_ACCESS_WRITE).unwrap();
            let mode = sys::IREE_HAL_MAPPING_MODE_PERSISTENT;
            unsafe {
                let out = &raw mut mapping;
                check(sys::iree_hal_buffer_map_range(buffer.0, mode, access, 0, length, out)).unwrap();
                mapping.contents.data.write_bytes(3, length);
                if in_time {
                    assert_eq!(buffer.read().last(), Some(&3));
                    check(sys::iree_hal_buffer_unmap_range(out)).unwrap();
                }
                device.dealloca(&List::none(), &gone.at(1), &buffer).unwrap();
                gone.wait(1).unwrap();
                let late = check(sys::iree_hal_buffer_unmap_range(out));
                assert_eq!(
                    late.err().map(|error| error.code),
                    (!in_time).then_some(Code::FailedPrecondition)
                );
            }
        }
    }
}

#[test]
fn deallocation_twice_is_refused_and_the_buffer_says_that_it_has_no_memory() {
    let device = Device::open("mock").unwrap();
    let (buffer, gone) = (allocated(&device, LENGTH), device.semaphore(0));
    device.dealloca(&List::none(), &gone.at(1), &buffer).unwrap();
    gone.wait(1).unwrap();
    let again = device.semaphore(0);
    device.dealloca(&List::none(), &again.at(1), &buffer).unwrap();
    let refused = again.wait(1).unwrap_err();
    assert_eq!(refused.code, Code::FailedPrecondition);
    assert!(refused.text.contains("no memory to deallocate"), "{}", refused.text);
    let mut mapping = sys::iree_hal_buffer_mapping_t::default();
    let access = u16::try_from(sys::IREE_HAL_MEMORY_ACCESS_READ).unwrap();
    let mode = sys::IREE_HAL_MAPPING_MODE_SCOPED;
    let mapped =
        unsafe { check(sys::iree_hal_buffer_map_range(buffer.0, mode, access, 0, 1, &raw mut mapping)) };
    assert_eq!(mapped.unwrap_err().code, Code::FailedPrecondition);
}
