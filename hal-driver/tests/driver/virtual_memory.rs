// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Virtual memory by the rules of IREE's allocator header: reserved addresses, memory behind them, and access.

use crate::common::forbidden::{forbid, is_alone};
use crate::common::{Buffer, Device, File, List, Result, check, params, reference};
use crate::dispatches::{devices_of, first_function};
use hal_semaphore::Code;
use hal_sys as sys;
use std::ptr::null_mut;

/// Devices that use host memory by its addresses, and those that keep the pages of an import.
const WITH: [&str; 5] = ["mock", "mock://0?heaps=2", "template", "qaic://emulated", "tenstorrent://emulated"];
const WITHOUT: [&str; 2] = ["gaudi://emulated", "nvidia://emulated"];

const ANY: u64 = u64::MAX;
const NONE: u32 = sys::IREE_HAL_MEMORY_PROTECTION_NONE;
const READ: u32 = sys::IREE_HAL_MEMORY_PROTECTION_READ;
const WRITE: u32 = sys::IREE_HAL_MEMORY_PROTECTION_WRITE;
const BOTH: u32 = READ | WRITE;

/// The parameters of memory that any of these devices has.
fn optimal() -> sys::iree_hal_buffer_params_t {
    sys::iree_hal_buffer_params_t {
        type_: sys::IREE_HAL_MEMORY_TYPE_OPTIMAL | sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
        usage: sys::IREE_HAL_BUFFER_USAGE_DEFAULT,
        ..Default::default()
    }
}

/// A device's virtual memory.
struct Space<'a>(&'a Device);

type Physical = *mut sys::iree_hal_physical_memory_t;

impl Space<'_> {
    fn supported(&self) -> bool {
        unsafe { sys::iree_hal_allocator_supports_virtual_memory(self.0.allocator()) }
    }

    fn granularity(&self, params: sys::iree_hal_buffer_params_t) -> Result<(usize, usize)> {
        let (mut least, mut best) = (1, 1);
        let (allocator, least_out, best_out) = (self.0.allocator(), &raw mut least, &raw mut best);
        let query = sys::iree_hal_allocator_virtual_memory_query_granularity;
        check(unsafe { query(allocator, params, least_out, best_out) }).map(|()| (least, best))
    }

    fn page(&self) -> usize {
        self.granularity(optimal()).unwrap().0
    }

    fn reserve(&self, size: usize) -> Result<Buffer> {
        let mut buffer = null_mut();
        let (allocator, out) = (self.0.allocator(), &raw mut buffer);
        check(unsafe { sys::iree_hal_allocator_virtual_memory_reserve(allocator, ANY, size, out) })?;
        Ok(Buffer(buffer))
    }

    /// Releases a reservation; it stays the caller's if that is refused.
    fn release(&self, buffer: Buffer) -> std::result::Result<(), (Buffer, crate::common::Error)> {
        match check(unsafe { sys::iree_hal_allocator_virtual_memory_release(self.0.allocator(), buffer.0) }) {
            Ok(()) => {
                std::mem::forget(buffer);
                Ok(())
            }
            Err(error) => Err((buffer, error)),
        }
    }

    fn allocate(&self, size: usize) -> Result<Physical> {
        let mut memory = null_mut();
        unsafe {
            let system = sys::iree_allocator_system();
            check(sys::iree_hal_allocator_physical_memory_allocate(
                self.0.allocator(),
                optimal(),
                size,
                system,
                &raw mut memory,
            ))?;
        }
        Ok(memory)
    }

    fn free(&self, memory: Physical) -> Result {
        check(unsafe { sys::iree_hal_allocator_physical_memory_free(self.0.allocator(), memory) })
    }

    fn map(&self, buffer: &Buffer, at: usize, memory: Physical, from: usize, size: usize) -> Result {
        let allocator = self.0.allocator();
        check(unsafe {
            sys::iree_hal_allocator_virtual_memory_map(allocator, buffer.0, at, memory, from, size)
        })
    }

    fn unmap(&self, buffer: &Buffer, at: usize, size: usize) -> Result {
        check(unsafe { sys::iree_hal_allocator_virtual_memory_unmap(self.0.allocator(), buffer.0, at, size) })
    }

    fn protect(&self, buffer: &Buffer, at: usize, size: usize, bits: u32) -> Result {
        let (allocator, bits) = (self.0.allocator(), bits.into());
        check(unsafe {
            sys::iree_hal_allocator_virtual_memory_protect(allocator, buffer.0, at, size, ANY, bits)
        })
    }

    fn advise(&self, buffer: &Buffer, at: usize, size: usize, bits: u64) -> Result {
        let allocator = self.0.allocator();
        check(unsafe {
            sys::iree_hal_allocator_virtual_memory_advise(allocator, buffer.0, at, size, ANY, bits)
        })
    }

    /// Fills bytes by the device, and waits.
    fn fill(&self, buffer: &Buffer, range: (usize, usize), byte: u8) -> Result {
        let done = self.0.semaphore(0);
        self.0.fill(&List::none(), &done.at(1), buffer, range, &[byte])?;
        done.wait(1)
    }

    /// Bytes, as the device copies them.
    fn bytes(&self, buffer: &Buffer, at: usize, length: usize) -> Result<Vec<u8>> {
        let (host, done) = (self.0.buffer(length), self.0.semaphore(0));
        self.0.copy_on(ANY, &List::none(), &done.at(1), (buffer, at), (&host, 0), length)?;
        done.wait(1)?;
        Ok(host.read())
    }
}

fn refused<T>(result: Result<T>, code: Code, says: &str) {
    let Err(error) = result else { panic!("was accepted; expected {code:?} {says:?}") };
    assert!(error.code == code && error.text.contains(says), "{error:?} is not {code:?} {says:?}");
}

/// Memory is used where it is mapped, at as many addresses as it is mapped at, by each queue, the host and programs.
#[test]
fn memory_is_used_where_it_is_mapped() {
    for uri in WITH {
        let device = Device::open(uri).unwrap();
        let space = Space(&device);
        assert!(space.supported(), "{uri}");
        let (page, best) = space.granularity(optimal()).unwrap();
        assert!(page.is_power_of_two() && best >= page, "{uri}: {page} {best}");
        let buffer = space.reserve(4 * page).unwrap();
        let memory = space.allocate(2 * page).unwrap();
        // Pages 0 and 2 are one piece of memory, page 3 another, and page 1 has none.
        space.map(&buffer, 0, memory, page, page).unwrap();
        space.map(&buffer, 2 * page, memory, page, page).unwrap();
        space.map(&buffer, 3 * page, memory, 0, page).unwrap();
        for at in [0, 2, 3] {
            space.protect(&buffer, at * page, page, BOTH).unwrap();
        }
        assert_eq!(space.bytes(&buffer, 2 * page, 2 * page).unwrap(), vec![0; 2 * page], "{uri}");
        space.fill(&buffer, (8, 64), 7).unwrap();
        let seen = space.bytes(&buffer, 2 * page, 80).unwrap();
        assert_eq!((seen[7], seen[8], seen[71], seen[72]), (0, 7, 7, 0), "{uri}");
        assert_eq!(space.bytes(&buffer, 3 * page, 80).unwrap(), [0; 80], "{uri}");
        buffer.subspan(2 * page, page).write(0, &[9; 4]);
        assert_eq!(space.bytes(&buffer, 0, 8).unwrap(), [9, 9, 9, 9, 0, 0, 0, 0], "{uri}");
        // One across two pieces of memory.
        space.fill(&buffer, (3 * page - 4, 8), 5).unwrap();
        assert_eq!(space.bytes(&buffer, page - 4, 4).unwrap(), [5; 4], "{uri}");
        assert_eq!(space.bytes(&buffer, 3 * page, 5).unwrap(), [5, 5, 5, 5, 0], "{uri}");
        // A recording that is executed twice sees what is mapped each time.
        let target = device.buffer(8);
        let source = sys::iree_hal_buffer_ref_t { length: 8, ..reference(&buffer) };
        let commands = device.record(0, |commands| unsafe {
            check(sys::iree_hal_command_buffer_copy_buffer(commands, source, reference(&target), 0))
        });
        let (commands, done) = (commands.unwrap(), device.semaphore(0));
        device.execute(1, &List::none(), &done.at(1), &commands, &[]).unwrap();
        done.wait(1).unwrap();
        assert_eq!(target.read(), [9, 9, 9, 9, 0, 0, 0, 0], "{uri}");
        space.unmap(&buffer, 0, page).unwrap();
        device.execute(1, &List::none(), &device.semaphore(0).at(1), &commands, &[]).unwrap();
        space.map(&buffer, 0, memory, 0, page).unwrap();
        space.protect(&buffer, 0, page, READ).unwrap();
        device.execute(1, &List::none(), &done.at(2), &commands, &[]).unwrap();
        done.wait(2).unwrap();
        assert_eq!(target.read(), [5, 5, 5, 5, 0, 0, 0, 0], "{uri}");
        space.unmap(&buffer, 0, page).unwrap();
        space.unmap(&buffer, 2 * page, 2 * page).unwrap();
        space.free(memory).unwrap();
        space.release(buffer).map_err(|(_, error)| error).unwrap();
    }
}

/// A function computes from one mapping into another.
#[test]
fn functions_use_mapped_memory() {
    for (uri, format, folder) in devices_of("89") {
        let device = Device::open(&uri).unwrap();
        let space = Space(&device);
        if !space.supported() {
            let family = uri.split(':').next().unwrap();
            assert!(WITHOUT.iter().any(|known| known.starts_with(family)), "{uri}");
            continue;
        }
        let page = space.page();
        let (buffer, memory) = (space.reserve(2 * page).unwrap(), space.allocate(2 * page).unwrap());
        space.map(&buffer, 0, memory, 0, 2 * page).unwrap();
        space.protect(&buffer, 0, 2 * page, BOTH).unwrap();
        buffer.write(0, [-2.5_f32, 4.0].map(f32::to_le_bytes).as_flattened());
        let executable = first_function(&device, format, folder);
        let (done, input, output) = (device.semaphore(0), buffer.subspan(0, 8), buffer.subspan(page, 8));
        device.dispatch(1, &List::none(), &done.at(1), &executable, &[], &[&input, &output]).unwrap();
        done.wait(1).unwrap();
        assert_eq!(output.read(), [2.5_f32, 4.0].map(f32::to_le_bytes).as_flattened(), "{uri}");
        // Without memory behind an argument it fails, and nothing else does.
        space.unmap(&buffer, page, page).unwrap();
        device.dispatch(1, &List::none(), &done.at(2), &executable, &[], &[&input, &output]).unwrap();
        refused(done.wait(2), Code::FailedPrecondition, "has no memory");
        assert_eq!(space.bytes(&buffer, 0, 4).unwrap(), (-2.5_f32).to_le_bytes(), "{uri}");
        drop((input, output));
        space.unmap(&buffer, 0, page).unwrap();
        space.free(memory).unwrap();
        space.release(buffer).map_err(|(_, error)| error).unwrap();
    }
}

/// Reserved pages have no access, mapped ones what protection gives: for the device's work and for the host.
#[test]
fn access_is_what_protection_gives() {
    let device = Device::open("mock").unwrap();
    let space = Space(&device);
    let page = space.page();
    let (buffer, memory) = (space.reserve(3 * page).unwrap(), space.allocate(3 * page).unwrap());
    refused(
        space.fill(&buffer, (0, 4), 1),
        Code::FailedPrecondition,
        "byte 0 of the reservation has no memory",
    );
    refused(space.protect(&buffer, 0, page, BOTH), Code::FailedPrecondition, "has no memory");
    space.map(&buffer, 0, memory, 0, 3 * page).unwrap();
    refused(space.bytes(&buffer, 0, 4), Code::PermissionDenied, "IREE_HAL_MEMORY_PROTECTION_READ");
    space.protect(&buffer, page, page, READ).unwrap();
    assert_eq!(space.bytes(&buffer, page, page).unwrap(), vec![0; page]);
    refused(
        space.fill(&buffer, (page, 4), 1),
        Code::PermissionDenied,
        "IREE_HAL_MEMORY_PROTECTION_READ_WRITE",
    );
    refused(space.bytes(&buffer, page - 4, 8), Code::PermissionDenied, "may not be read");
    let mapped = |at, length, access: u32| unsafe {
        let mut mapping = sys::iree_hal_buffer_mapping_t::default();
        let (mode, access) = (sys::IREE_HAL_MAPPING_MODE_SCOPED, access.try_into().unwrap());
        check(sys::iree_hal_buffer_map_range(buffer.0, mode, access, at, length, &raw mut mapping))?;
        check(sys::iree_hal_buffer_unmap_range(&raw mut mapping))
    };
    mapped(page, page, sys::IREE_HAL_MEMORY_ACCESS_READ).unwrap();
    refused(mapped(page, 4, sys::IREE_HAL_MEMORY_ACCESS_WRITE), Code::PermissionDenied, "may not be written");
    refused(mapped(0, 4, sys::IREE_HAL_MEMORY_ACCESS_READ), Code::PermissionDenied, "may not be read");
    // Memory that may be written can be read.
    space.protect(&buffer, 0, 3 * page, WRITE).unwrap();
    space.fill(&buffer, (0, 3 * page), 3).unwrap();
    assert_eq!(space.bytes(&buffer, 0, 3 * page).unwrap(), vec![3; 3 * page]);
    space.protect(&buffer, page, page, NONE).unwrap();
    refused(space.bytes(&buffer, 0, 3 * page), Code::PermissionDenied, "may not be read");
    assert_eq!(space.bytes(&buffer, 2 * page, 4).unwrap(), [3; 4]);
    // Advice is no promise and no change.
    for bits in [0, 1, 2, 3, 1 << 40] {
        space.advise(&buffer, 3, 2 * page, bits).unwrap();
    }
    space.protect(&buffer, page, page, READ).unwrap();
    assert_eq!(space.bytes(&buffer, 0, 3 * page).unwrap(), vec![3; 3 * page]);
    refused(space.protect(&buffer, 0, page, 4), Code::InvalidArgument, "0x4");
    space.unmap(&buffer, 0, 3 * page).unwrap();
    space.free(memory).unwrap();
}

/// Another device and what moves files see what is mapped at the time, and obey protection as well.
#[test]
fn other_devices_and_files_use_what_is_mapped_as_protection_allows() {
    let file = File::with(&[8; 64]);
    for uri in WITH {
        let owner = Device::open(uri).unwrap();
        let space = Space(&owner);
        let page = space.page();
        let (buffer, memory) = (space.reserve(2 * page).unwrap(), space.allocate(2 * page).unwrap());
        let bare = buffer.subspan(page, page);
        for name in [uri, "mock", "template", "qaic://emulated"].into_iter().chain(WITHOUT) {
            let user = Device::open(name).unwrap();
            let copied = |from: &Buffer, to: &Buffer| {
                let done = user.semaphore(0);
                user.copy(&List::none(), &done.at(1), from, to, 8)?;
                done.wait(1)
            };
            let written = |from: &Buffer, to: &File, at: u64| {
                let done = user.semaphore(0);
                user.write_file(&List::none(), &done.at(1), from, to, at, 8)?;
                done.wait(1)
            };
            let read = |from: &File, to: &Buffer| {
                let done = user.semaphore(0);
                user.read_file(&List::none(), &done.at(1), from, 0, to, 8)?;
                done.wait(1)
            };
            let host = user.buffer(8);
            for number in [1, 2] {
                space.map(&buffer, 0, memory, (number - 1) * page, page).unwrap();
                space.protect(&buffer, 0, page, BOTH).unwrap();
                let byte = u8::try_from(number).unwrap();
                space.fill(&buffer, (0, 8), byte).unwrap();
                copied(&buffer, &host).unwrap();
                assert_eq!(host.read(), [byte; 8], "{uri} {name}");
                Space(&user).fill(&buffer, (0, 4), byte + 4).unwrap();
                assert_eq!(
                    space.bytes(&buffer, 0, 5).unwrap()[..],
                    [[byte + 4; 4].as_slice(), &[byte]].concat()
                );
                if number == 1 {
                    space.unmap(&buffer, 0, page).unwrap();
                }
            }
            space.protect(&buffer, 0, page, READ).unwrap();
            // A device that pins pages does so for writing.
            if !WITHOUT.contains(&name) {
                copied(&buffer, &host).unwrap();
                assert_eq!(host.read(), [6, 6, 6, 6, 2, 2, 2, 2], "{uri} {name}");
                written(&buffer, &file, 8).unwrap();
                assert_eq!(file.read()[6..16], [8, 8, 6, 6, 6, 6, 2, 2, 2, 2], "{uri} {name}");
            }
            refused(copied(&host, &buffer), Code::PermissionDenied, "may not be written");
            refused(Space(&user).fill(&buffer, (8, 8), 3), Code::PermissionDenied, "may not be written");
            refused(read(&file, &buffer), Code::PermissionDenied, "may not be written");
            refused(copied(&host, &bare), Code::FailedPrecondition, "has no memory");
            refused(copied(&bare, &host), Code::FailedPrecondition, "has no memory");
            refused(read(&file, &bare), Code::FailedPrecondition, "has no memory");
            refused(written(&bare, &file, 0), Code::FailedPrecondition, "has no memory");
            assert_eq!(space.bytes(&buffer, 0, 8).unwrap(), [6, 6, 6, 6, 2, 2, 2, 2], "{uri} {name}");
            space.unmap(&buffer, 0, page).unwrap();
        }
        space.free(memory).unwrap();
    }
}

/// What cannot be is refused, and changes nothing.
#[test]
fn pages_that_do_not_fit_are_refused() {
    let device = Device::open("mock").unwrap();
    let other = Device::open("mock").unwrap();
    let space = Space(&device);
    let page = space.page();
    for size in [0, 1, page - 1, page + 1] {
        refused(space.reserve(size), Code::InvalidArgument, "whole pages");
        refused(space.allocate(size), Code::InvalidArgument, "whole pages");
    }
    refused(space.reserve(1 << 62), Code::ResourceExhausted, "addresses");
    refused(space.allocate(1 << 62), Code::ResourceExhausted, "bytes");
    let (buffer, memory) = (space.reserve(6 * page).unwrap(), space.allocate(4 * page).unwrap());
    for (at, from, size) in [(1, 0, page), (0, 1, page), (0, 0, 1), (0, 0, 0)] {
        refused(space.map(&buffer, at, memory, from, size), Code::InvalidArgument, "whole pages");
    }
    let beyond = usize::MAX - page + 1;
    for (at, from, size) in [(5, 0, 2), (0, 3, 2), (0, 0, 5)] {
        let mapped = space.map(&buffer, at * page, memory, from * page, size * page);
        refused(mapped, Code::OutOfRange, "are not inside");
    }
    refused(space.map(&buffer, page, memory, 0, beyond), Code::OutOfRange, "are not inside");
    // Pages that have memory get none.
    space.map(&buffer, page, memory, 0, 4 * page).unwrap();
    space.protect(&buffer, page, 4 * page, BOTH).unwrap();
    space.fill(&buffer, (page, 4 * page), 1).unwrap();
    for (at, size) in [(0, 2), (1, 1), (2, 1), (4, 2), (0, 6)] {
        let mapped = space.map(&buffer, at * page, memory, 0, size.min(4) * page);
        refused(mapped, Code::FailedPrecondition, "have memory already");
    }
    // Nor are pages unmapped that have none, beside others or not.
    space.unmap(&buffer, 3 * page, page).unwrap();
    for (at, size) in [(0, 2), (2, 2), (2, 3), (3, 1), (4, 2), (0, 6)] {
        refused(space.unmap(&buffer, at * page, size * page), Code::FailedPrecondition, "has no memory");
        refused(
            space.protect(&buffer, at * page, size * page, NONE),
            Code::FailedPrecondition,
            "has no memory",
        );
    }
    refused(space.unmap(&buffer, 1, page), Code::InvalidArgument, "whole pages");
    refused(space.unmap(&buffer, 5 * page, 2 * page), Code::OutOfRange, "are not inside");
    refused(space.advise(&buffer, 6 * page, 1, 1), Code::OutOfRange, "are not inside");
    assert_eq!(space.bytes(&buffer, page, 2 * page).unwrap(), vec![1; 2 * page]);
    assert_eq!(space.bytes(&buffer, 4 * page, page).unwrap(), vec![1; page]);
    // What is mapped is neither released nor freed.
    let (buffer, error) = space.release(buffer).unwrap_err();
    refused::<()>(Err(error), Code::FailedPrecondition, "unmap all of it");
    refused(space.free(memory), Code::FailedPrecondition, "still mapped");
    space.unmap(&buffer, page, 2 * page).unwrap();
    refused(space.free(memory), Code::FailedPrecondition, "still mapped");
    space.unmap(&buffer, 4 * page, page).unwrap();
    // Other buffers are no reservations, and each device has its own.
    let plain = device.buffer(page);
    refused(space.map(&plain, 0, memory, 0, page), Code::InvalidArgument, "no reservation");
    let (_, error) = space.release(plain).unwrap_err();
    refused::<()>(Err(error), Code::InvalidArgument, "no reservation");
    let theirs = Space(&other);
    refused(theirs.unmap(&buffer, 0, page), Code::InvalidArgument, "no reservation");
    let foreign = theirs.reserve(page).unwrap();
    refused(theirs.map(&foreign, 0, memory, 0, page), Code::InvalidArgument, "another device's");
    refused(theirs.free(memory), Code::InvalidArgument, "another device's");
    space.free(memory).unwrap();
    space.release(buffer).map_err(|(_, error)| error).unwrap();
}

/// Parameters that virtual memory does not have.
#[test]
fn granularity_is_of_memory_that_there_is() {
    let device = Device::open("mock://0?heaps=2").unwrap();
    let space = Space(&device);
    let page = space.page();
    let local = sys::iree_hal_buffer_params_t { type_: sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL, ..optimal() };
    refused(space.granularity(local), Code::Unavailable, "without DEVICE_LOCAL");
    for (min_alignment, says) in [(2 * page, "aligned to"), (3, "power of two")] {
        let aligned = sys::iree_hal_buffer_params_t { min_alignment, ..optimal() };
        refused(space.granularity(aligned), Code::InvalidArgument, says);
    }
    let shared = Device::open("mock").unwrap();
    assert!(Space(&shared).granularity(params()).is_ok());
}

/// A reservation that is only released as a buffer takes its mappings along, as soon as its work has ended.
#[test]
fn mappings_end_with_the_last_reference() {
    let device = Device::open("mock").unwrap();
    let space = Space(&device);
    let page = space.page();
    let (buffer, memory) = (space.reserve(page).unwrap(), space.allocate(page).unwrap());
    space.map(&buffer, 0, memory, 0, page).unwrap();
    space.protect(&buffer, 0, page, BOTH).unwrap();
    let (gate, done, seen) = (device.semaphore(0), device.semaphore(0), device.buffer(4));
    device.fill(&gate.at(1), &done.at(1), &buffer, (0, 4), &[6]).unwrap();
    device.copy(&done.at(1), &done.at(2), &buffer, &seen, 4).unwrap();
    drop(buffer);
    refused(space.free(memory), Code::FailedPrecondition, "still mapped");
    gate.signal(1).unwrap();
    done.wait(2).unwrap();
    assert_eq!(seen.read(), [6; 4]);
    crate::common::wait_until(|| match space.free(memory) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.code, Code::FailedPrecondition, "{}", error.text);
            false
        }
    });
}

/// Memory is counted while it exists, and addresses are not.
#[test]
fn statistics_count_physical_memory() {
    let device = Device::open("mock").unwrap();
    let space = Space(&device);
    let size = 16 * space.page();
    let allocated = || unsafe {
        let mut statistics = sys::iree_hal_allocator_statistics_t::default();
        sys::iree_hal_allocator_query_statistics(device.allocator(), &raw mut statistics);
        (statistics.device_bytes_allocated, statistics.device_bytes_freed)
    };
    let before = allocated();
    let buffer = space.reserve(size).unwrap();
    assert_eq!(allocated(), before);
    let memory = space.allocate(size).unwrap();
    assert_eq!(allocated(), (before.0 + size, before.1));
    space.free(memory).unwrap();
    assert_eq!(allocated(), (before.0 + size, before.1 + size));
    space.release(buffer).map_err(|(_, error)| error).unwrap();
}

/// A process has a limited number of mappings. What the kernel refuses is as it was, and everything else works on.
#[test]
fn change_that_the_kernel_refuses_is_none() {
    if !is_alone("virtual_memory::change_that_the_kernel_refuses_is_none") {
        return;
    }
    let device = Device::open("mock").unwrap();
    let space = Space(&device);
    let page = space.page();
    let limit: usize = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse().unwrap();
    // Each second page is a mapping of its own, and so are those between.
    let buffer = space.reserve(2 * limit * page).unwrap();
    let memory = space.allocate(4 * page).unwrap();
    space.map(&buffer, 0, memory, 0, 3 * page).unwrap();
    space.protect(&buffer, 0, 3 * page, BOTH).unwrap();
    let (count, refusal) = (2..)
        .find_map(|count| {
            space.map(&buffer, 2 * count * page, memory, 3 * page, page).err().map(|error| (count, error))
        })
        .unwrap();
    refused::<()>(Err(refusal), Code::ResourceExhausted, "vm.max_map_count");
    let (last, next) = (2 * (count - 1) * page, 2 * count * page);
    refused(space.protect(&buffer, page, page, READ), Code::ResourceExhausted, "vm.max_map_count");
    space.fill(&buffer, (0, 3 * page), 4).unwrap();
    refused(space.fill(&buffer, (next, 4), 4), Code::FailedPrecondition, "has no memory");
    refused(space.unmap(&buffer, next, page), Code::FailedPrecondition, "has no memory");
    // Where there is room again, it goes on.
    for at in (0..8).map(|back| last - 2 * back * page) {
        space.unmap(&buffer, at, page).unwrap();
    }
    space.protect(&buffer, page, page, READ).unwrap();
    refused(space.fill(&buffer, (page, 4), 5), Code::PermissionDenied, "may not be written");
    assert_eq!(space.bytes(&buffer, 0, 3 * page).unwrap(), vec![4; 3 * page]);
    // An operation releases its buffers after its signals.
    buffer.wait_until_it_is_ours_alone();
    drop(buffer);
    space.free(memory).unwrap();
}

/// A sandbox that does not allow to allocate memory files.
#[test]
fn physical_memory_that_cannot_be_had_is_refused() {
    if !is_alone("virtual_memory::physical_memory_that_cannot_be_had_is_refused") {
        return;
    }
    let device = Device::open("mock").unwrap();
    let space = Space(&device);
    let size = space.page();
    forbid(&[libc::SYS_fallocate], libc::EPERM);
    refused(space.allocate(size), Code::FailedPrecondition, "fallocate");
}

/// A device without virtual memory says why, with the code that IREE's header requires, whatever it gets.
#[test]
fn device_without_it_says_so() {
    for uri in WITHOUT {
        let device = Device::open(uri).unwrap();
        let (space, buffer) = (Space(&device), device.buffer(64));
        assert!(!space.supported(), "{uri}");
        let why = "virtual memory is not supported by this device";
        refused(space.granularity(params()), Code::Unavailable, why);
        refused(space.reserve(0), Code::Unavailable, why);
        refused(space.allocate(0), Code::Unavailable, why);
        refused(space.free(null_mut()), Code::Unavailable, why);
        refused(space.map(&buffer, 0, null_mut(), 0, 0), Code::Unavailable, why);
        refused(space.unmap(&buffer, 0, 0), Code::Unavailable, why);
        refused(space.protect(&buffer, 0, 0, 99), Code::Unavailable, why);
        refused(space.advise(&buffer, 0, 0, 0), Code::Unavailable, why);
        let (_, error) = space.release(buffer).unwrap_err();
        refused::<()>(Err(error), Code::Unavailable, why);
    }
}
