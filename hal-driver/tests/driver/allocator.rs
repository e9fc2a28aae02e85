// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The allocator's answers match its behaviour, on every kind of device.

use crate::common::{Buffer, Device, List};
use hal_semaphore::Code;
use hal_sys as sys;
use std::ptr::null_mut;

/// A device of each kind: unified memory, and a card's own beside the host's.
const DEVICES: [&str; 4] = [
    "mock",
    "template",
    "gaudi://emulated?generation=gaudi1&seed=9001",
    "gaudi://emulated?generation=gaudi2&seed=9002",
];

/// Devices that behave like one of these in most tests.
const FURTHER: [&str; 3] =
    ["nvidia://emulated", "qaic://emulated?seed=9003", "tenstorrent://emulated?seed=9004"];

const PAGE: usize = 4096;

/// Some pages of the program.
struct Pages(Vec<u8>);

impl Pages {
    fn new() -> Self {
        Self(vec![0; 3 * PAGE])
    }

    /// An address so many bytes after the beginning of a page.
    fn at(&mut self, offset: usize) -> *mut u8 {
        let first = self.0.as_ptr().align_offset(PAGE);
        self.0[first + offset..].as_mut_ptr()
    }
}

fn heaps(device: &Device) -> Vec<sys::iree_hal_allocator_memory_heap_t> {
    let mut heaps = vec![sys::iree_hal_allocator_memory_heap_t::default(); 8];
    let mut count = 0;
    unsafe {
        let (allocator, capacity) = (device.allocator(), heaps.len());
        let (heaps, count) = (heaps.as_mut_ptr(), &raw mut count);
        crate::common::check(sys::iree_hal_allocator_query_memory_heaps(allocator, capacity, heaps, count))
            .unwrap();
    }
    heaps.truncate(count);
    heaps
}

/// The allocator's compatibility bits for such buffers.
fn compatibility(device: &Device, params: sys::iree_hal_buffer_params_t, length: usize) -> u32 {
    let (allocator, no_params, no_size) = (device.allocator(), null_mut(), null_mut());
    unsafe {
        sys::iree_hal_allocator_query_buffer_compatibility(allocator, params, length, no_params, no_size)
    }
}

/// The alignment that the allocator requires of imported host memory.
fn import_alignment(device: &Device) -> usize {
    let (mut found, allocator) = (sys::iree_hal_buffer_params_t::default(), device.allocator());
    unsafe {
        let (params, no_size) = (&raw mut found, null_mut());
        sys::iree_hal_allocator_query_buffer_compatibility(allocator, shared(), 1024, params, no_size);
    }
    found.min_alignment
}

/// Parameters of memory that the host and the device share, in any heap.
fn shared() -> sys::iree_hal_buffer_params_t {
    sys::iree_hal_buffer_params_t {
        type_: sys::IREE_HAL_MEMORY_TYPE_HOST_LOCAL | sys::IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE,
        usage: sys::IREE_HAL_BUFFER_USAGE_DEFAULT,
        ..Default::default()
    }
}

fn access(bits: sys::iree_hal_memory_access_bits_t) -> sys::iree_hal_memory_access_t {
    bits.try_into().unwrap()
}

#[test]
fn import_begins_where_its_heap_asks_it_to() {
    for uri in DEVICES.iter().chain(&FURTHER) {
        let device = Device::open(uri).unwrap();
        let mut pages = Pages::new();
        let alignment = import_alignment(&device);
        assert_eq!(alignment, 64, "{uri}: what programs are compiled for, and files are aligned to");
        for offset in [16, 32, alignment / 2, alignment + 8] {
            let refused = device.import(shared(), pages.at(offset), 1024).err().unwrap();
            assert_eq!(refused.code, Code::OutOfRange, "{uri} + {offset}: {}", refused.text);
            assert!(refused.text.contains(&format!("a multiple of {alignment}")), "{}", refused.text);
        }
        let nowhere = device.import(shared(), null_mut(), 1024).err().unwrap();
        assert_eq!(nowhere.code, Code::InvalidArgument, "{uri}: {}", nowhere.text);
        for offset in [0, alignment, 3 * alignment] {
            device.import(shared(), pages.at(offset), 1024).unwrap();
        }
        // A program that permits any alignment gets its memory imported as it is.
        let all = sys::IREE_HAL_MEMORY_ACCESS_ALL | sys::IREE_HAL_MEMORY_ACCESS_UNALIGNED;
        let anywhere = sys::iree_hal_buffer_params_t { access: access(all), ..shared() };
        drop(device.import(anywhere, pages.at(16), 1024).unwrap());
        let strict = sys::iree_hal_buffer_params_t { min_alignment: 32, ..anywhere };
        assert_eq!(device.import(strict, pages.at(16), 1024).err().unwrap().code, Code::OutOfRange);
        let page = sys::iree_hal_buffer_params_t { min_alignment: PAGE, ..shared() };
        assert_eq!(device.import(page, pages.at(2048), 1024).err().unwrap().code, Code::OutOfRange);
        drop(device.import(page, pages.at(PAGE), 1024).unwrap());
        let not_power_of_two = sys::iree_hal_buffer_params_t { min_alignment: 96, ..shared() };
        assert_eq!(query(&device, not_power_of_two).0, 0, "{uri}");
        let start = (0..PAGE).step_by(64).find(|&offset| (pages.at(offset) as usize).is_multiple_of(96));
        let refused = device.import(not_power_of_two, pages.at(start.unwrap()), 1024).err().unwrap();
        assert_eq!(refused.code, Code::InvalidArgument, "{uri}: {}", refused.text);
    }
}

/// A program keeps the granted alignment and requests it again, also from other devices, and so does IREE's
/// recorder.
#[test]
fn alignment_that_is_granted_can_be_asked_of_every_device() {
    let devices: Vec<_> = DEVICES.iter().map(|uri| (uri, Device::open(uri).unwrap())).collect();
    for (uri, device) in &devices {
        for asked in [0, 16, 64] {
            let (bits, granted) =
                query(device, sys::iree_hal_buffer_params_t { min_alignment: asked, ..own() });
            assert!(bits & ALLOCATABLE != 0, "{uri}");
            assert!(granted.min_alignment == asked || granted.min_alignment == 64, "{uri}: {granted:?}");
            for (other, device) in &devices {
                let again = sys::iree_hal_buffer_params_t { min_alignment: granted.min_alignment, ..own() };
                assert!(query(device, again).0 & ALLOCATABLE != 0, "{uri} granted what {other} refuses");
            }
        }
    }
}

fn query(device: &Device, params: sys::iree_hal_buffer_params_t) -> (u32, sys::iree_hal_buffer_params_t) {
    let mut granted = sys::iree_hal_buffer_params_t::default();
    let (allocator, out) = (device.allocator(), &raw mut granted);
    let bits = unsafe {
        sys::iree_hal_allocator_query_buffer_compatibility(allocator, params, 1024, out, null_mut())
    };
    (bits, granted)
}

/// Parameters of the device's own memory, if that is not the host's.
fn own() -> sys::iree_hal_buffer_params_t {
    sys::iree_hal_buffer_params_t {
        type_: sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
        usage: sys::IREE_HAL_BUFFER_USAGE_DEFAULT,
        ..Default::default()
    }
}

const ALLOCATABLE: u32 = sys::IREE_HAL_BUFFER_COMPATIBILITY_ALLOCATABLE;
const IMPORTABLE: u32 = sys::IREE_HAL_BUFFER_COMPATIBILITY_IMPORTABLE;
const EXPORTABLE: u32 = sys::IREE_HAL_BUFFER_COMPATIBILITY_EXPORTABLE;

fn memory_type(buffer: &Buffer) -> u32 {
    unsafe { sys::iree_hal_buffer_memory_type(buffer.0) }
}

#[test]
fn host_memory_is_imported_as_what_it_is() {
    let device_local = sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL;
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        let mut pages = Pages::new();
        assert_ne!(compatibility(&device, shared(), 1024) & IMPORTABLE, 0, "{uri}");
        let buffer = device.import(shared(), pages.at(0), 1024).unwrap();
        let unified = heaps(&device).len() == 1;
        // A card's own memory is separate; unified memory is both.
        let importable = compatibility(&device, own(), 1024) & IMPORTABLE != 0;
        assert_eq!(importable, unified, "{uri}");
        match device.import(own(), pages.at(PAGE), 1024) {
            Ok(buffer) => assert!(unified && memory_type(&buffer) & device_local == device_local, "{uri}"),
            Err(refused) => {
                assert!(!unified && memory_type(&buffer) & device_local != device_local, "{uri}");
                assert_eq!(refused.code, Code::Unavailable);
                assert!(refused.text.contains("allocate a buffer and copy into it"), "{}", refused.text);
            }
        }
    }
}

#[test]
fn exportable_buffer_is_exported() {
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        for params in [own(), shared()] {
            let exportable = compatibility(&device, params, 1024) & EXPORTABLE != 0;
            let buffer = device.try_buffer_of(params, 1024).unwrap();
            let mut external = sys::iree_hal_external_buffer_t::default();
            let exported = unsafe {
                let kind = sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_HOST_ALLOCATION;
                let (allocator, external) = (device.allocator(), &raw mut external);
                crate::common::check(sys::iree_hal_allocator_export_buffer(
                    allocator, buffer.0, kind, 0, external,
                ))
            };
            match exported {
                Ok(()) => assert!(exportable && external.size == 1024, "{uri}"),
                Err(refused) => {
                    assert!(!exportable && refused.code == Code::Unavailable, "{uri}: {refused:?}")
                }
            }
        }
    }
}

#[test]
fn external_memory_of_other_kinds_is_unavailable_by_name() {
    let kinds = [
        (sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_DEVICE_ALLOCATION, "a device's pointer"),
        (sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_OPAQUE_WIN32, "a Win32 handle"),
    ];
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        let buffer = device.try_buffer_of(shared(), 1024).unwrap();
        for (kind, name) in kinds {
            let mut external =
                sys::iree_hal_external_buffer_t { type_: kind, size: 1024, ..Default::default() };
            let (allocator, given, mut imported) = (device.allocator(), &raw mut external, null_mut());
            let (importing, exporting) = unsafe {
                let no_callback = sys::iree_hal_buffer_release_callback_t::default();
                let made = &raw mut imported;
                (
                    crate::common::check(sys::iree_hal_allocator_import_buffer(
                        allocator,
                        shared(),
                        given,
                        no_callback,
                        made,
                    )),
                    crate::common::check(sys::iree_hal_allocator_export_buffer(
                        allocator, buffer.0, kind, 0, given,
                    )),
                )
            };
            // `dispatches.rs` has what exported pointers are for.
            let is_pointer = kind == sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_DEVICE_ALLOCATION;
            let exporting = (!is_pointer).then_some(exporting);
            for refused in [Some(importing), exporting].into_iter().flatten().map(Result::unwrap_err) {
                assert_eq!(refused.code, Code::Unavailable, "{uri}: {}", refused.text);
                assert!(refused.text.contains(name), "{uri}: {}", refused.text);
            }
        }
    }
}

#[test]
fn alignment_that_is_allocatable_is_allocated() {
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        let queue = device.semaphore(0);
        let mut value = 0;
        for (params, length) in [(own(), 1000), (shared(), 1000), (own(), 40 << 20), (shared(), 40 << 20)] {
            for alignment in (0..15).map(|shift| 1 << shift).chain([3, 96]) {
                let params = sys::iree_hal_buffer_params_t { min_alignment: alignment, ..params };
                let allocatable = compatibility(&device, params, length) & ALLOCATABLE != 0;
                let mapped = params.type_ & sys::IREE_HAL_MEMORY_TYPE_HOST_VISIBLE;
                let has_room = heaps(&device)
                    .iter()
                    .any(|heap| heap.type_ & mapped == mapped && heap.min_alignment >= alignment);
                assert_eq!(allocatable, has_room && alignment.is_power_of_two(), "{uri}: {alignment}");
                let what = format!("{uri}: {length} bytes at a multiple of {alignment}");
                match device.try_buffer_of(params, length) {
                    Ok(buffer) => {
                        assert!(allocatable, "{what}");
                        assert_eq!(address(&buffer) % alignment, 0, "{what}");
                    }
                    Err(refused) => assert!(!allocatable && refused.code == Code::InvalidArgument, "{what}"),
                }
                match device.alloca_of(&queue.at(value), &queue.at(value + 1), params, length) {
                    Ok(buffer) => {
                        assert!(allocatable, "{what}");
                        queue.wait(value + 1).expect(&what);
                        assert_eq!(address(&buffer) % alignment, 0, "{what}");
                        device.dealloca(&queue.at(value + 1), &queue.at(value + 2), &buffer).unwrap();
                        value += 2;
                    }
                    Err(refused) => assert!(!allocatable && refused.code == Code::InvalidArgument, "{what}"),
                }
            }
        }
        queue.wait(value).unwrap();
    }
}

/// The host address of a buffer, 0 if it has none.
fn address(buffer: &Buffer) -> usize {
    let mut mapping = sys::iree_hal_buffer_mapping_t::default();
    unsafe {
        if memory_type(buffer) & sys::IREE_HAL_MEMORY_TYPE_HOST_VISIBLE == 0 {
            return 0;
        }
        let (mode, read) = (sys::IREE_HAL_MAPPING_MODE_SCOPED, access(sys::IREE_HAL_MEMORY_ACCESS_READ));
        crate::common::check(sys::iree_hal_buffer_map_range(buffer.0, mode, read, 0, 1, &raw mut mapping))
            .unwrap();
        let address = mapping.contents.data as usize;
        crate::common::check(sys::iree_hal_buffer_unmap_range(&raw mut mapping)).unwrap();
        address
    }
}

/// A size that is reported as allocatable is available at once, or later when other memory is released.
#[test]
fn more_than_one_allocation_can_have_is_not_allocatable() {
    for uri in DEVICES.iter().chain(&FURTHER) {
        let device = Device::open(uri).unwrap();
        let queue = device.semaphore(0);
        let most = heaps(&device).into_iter().map(|heap| heap.max_allocation_size).max().unwrap();
        for length in [most + 1, 1 << 60, usize::MAX] {
            for params in [own(), shared()] {
                assert_eq!(compatibility(&device, params, length) & ALLOCATABLE, 0, "{uri}: {length}");
                let refused = [
                    device.try_buffer_of(params, length),
                    device.alloca_of(&List::none(), &queue.at(1), params, length),
                ];
                for refused in refused.map(|made| made.err().unwrap()) {
                    assert_eq!(refused.code, Code::ResourceExhausted, "{uri}: {length}: {}", refused.text);
                }
            }
        }
        assert_eq!(queue.value().unwrap(), 0);
    }
}

#[test]
fn bytes_are_counted_where_they_are() {
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        let statistics = || unsafe {
            let mut statistics = sys::iree_hal_allocator_statistics_t::default();
            sys::iree_hal_allocator_query_statistics(device.allocator(), &raw mut statistics);
            let host = statistics.host_bytes_allocated - statistics.host_bytes_freed;
            (host, statistics.device_bytes_allocated - statistics.device_bytes_freed)
        };
        let (host, device_bytes) = statistics();
        let own = device.try_buffer_of(own(), 1000).unwrap();
        assert_eq!(statistics(), (host, device_bytes + 1000), "{uri}");
        let shared = device.try_buffer_of(shared(), 100).unwrap();
        let unified = heaps(&device).len() == 1;
        let expected = if unified { (host, device_bytes + 1100) } else { (host + 100, device_bytes + 1000) };
        assert_eq!(statistics(), expected, "{uri}");
        drop((own, shared));
        assert_eq!(statistics(), (host, device_bytes), "{uri}");
        // Imported memory is not counted against the device's limit.
        let mut pages = Pages::new();
        let imported = device.import(self::shared(), pages.at(0), PAGE).unwrap();
        assert_eq!(statistics(), (host, device_bytes), "{uri}");
        drop(imported);
        assert_eq!(statistics(), (host, device_bytes), "{uri}");
    }
}

/// hal/allocator.h shows it: the first call asks for the count, and its answer is ignored.
#[test]
fn asking_how_many_heaps_there_are_leaves_nothing_to_free() {
    for uri in ["mock", "template"] {
        let device = Device::open(uri).unwrap();
        let (allocator, mut count) = (device.allocator(), 0);
        let asked =
            unsafe { sys::iree_hal_allocator_query_memory_heaps(allocator, 0, null_mut(), &raw mut count) };
        assert_eq!(count, heaps(&device).len(), "{uri}");
        // A bare code.
        assert_eq!(asked.addr(), sys::IREE_STATUS_OUT_OF_RANGE as usize, "{uri}");
    }
}

/// hal/allocator.h, LOW_PERFORMANCE: "a buffer that must be allocated in host memory and accessed by the device over
/// the PCI bus". IREE's tools then generate inputs on the host and copy them.
#[test]
fn device_memory_that_must_be_mapped_is_slow_where_it_lies_on_the_host() {
    const SLOW: u32 = sys::IREE_HAL_BUFFER_COMPATIBILITY_LOW_PERFORMANCE;
    for uri in DEVICES.iter().chain(&FURTHER) {
        let device = Device::open(uri).unwrap();
        let has_two = heaps(&device).len() > 1;
        let bits = |type_| query(&device, sys::iree_hal_buffer_params_t { type_, ..own() }).0;
        let mapped = sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL | sys::IREE_HAL_MEMORY_TYPE_HOST_VISIBLE;
        assert_eq!(
            bits(mapped) & (ALLOCATABLE | SLOW),
            if has_two { ALLOCATABLE | SLOW } else { ALLOCATABLE },
            "{uri}"
        );
        assert_eq!(bits(sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL) & (ALLOCATABLE | SLOW), ALLOCATABLE, "{uri}");
        let host = sys::IREE_HAL_MEMORY_TYPE_HOST_LOCAL | sys::IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE;
        assert_eq!(bits(host) & (ALLOCATABLE | SLOW), ALLOCATABLE, "{uri}");
    }
}
