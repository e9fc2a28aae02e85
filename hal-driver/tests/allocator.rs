//! What the allocator says of its memory is what it does, on every kind of device.
#![allow(clippy::undocumented_unsafe_blocks, reason = "every object is alive as long as its wrapper")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]

mod common;

use common::Device;
use hal_semaphore::Code;
use hal_sys as sys;

/// A device of each kind: unified memory, and a card's own beside the host's.
const DEVICES: [&str; 4] = [
    "mock",
    "template",
    "gaudi://emulated?generation=gaudi1&seed=9001",
    "gaudi://emulated?generation=gaudi2&seed=9002",
];

const PAGE: usize = 4096;

/// Some pages of the program's own.
struct Pages(Vec<u8>);

impl Pages {
    fn new() -> Self {
        Self(vec![0; 3 * PAGE])
    }

    /// So many bytes behind the beginning of a page.
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
        common::check(sys::iree_hal_allocator_query_memory_heaps(allocator, capacity, heaps, count)).unwrap();
    }
    heaps.truncate(count);
    heaps
}

/// What the host shares with the device, in whatever heap.
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
fn an_import_begins_where_the_buffers_of_its_heap_do() {
    for uri in DEVICES {
        let device = Device::open(uri).unwrap();
        let mut pages = Pages::new();
        let host =
            heaps(&device).into_iter().rfind(|heap| heap.type_ & sys::IREE_HAL_MEMORY_TYPE_HOST_VISIBLE != 0);
        let alignment = host.unwrap().min_alignment;
        assert!(alignment >= 64, "{uri}: programs are compiled for 64, not {alignment}");
        for offset in [16, 32, alignment / 2, alignment + 8] {
            let refused = device.import(shared(), pages.at(offset), 1024).err().unwrap();
            assert_eq!(refused.code, Code::OutOfRange, "{uri} + {offset}: {}", refused.text);
            assert!(refused.text.contains(&format!("a multiple of {alignment}")), "{}", refused.text);
        }
        for offset in [0, alignment, 3 * alignment] {
            device.import(shared(), pages.at(offset), 1024).unwrap();
        }
        // Whoever says that it may begin anywhere gets it as it is.
        let all = sys::IREE_HAL_MEMORY_ACCESS_ALL | sys::IREE_HAL_MEMORY_ACCESS_UNALIGNED;
        let anywhere = sys::iree_hal_buffer_params_t { access: access(all), ..shared() };
        drop(device.import(anywhere, pages.at(16), 1024).unwrap());
        let strict = sys::iree_hal_buffer_params_t { min_alignment: 32, ..anywhere };
        assert_eq!(device.import(strict, pages.at(16), 1024).err().unwrap().code, Code::OutOfRange);
        let page = sys::iree_hal_buffer_params_t { min_alignment: PAGE, ..shared() };
        assert_eq!(device.import(page, pages.at(2048), 1024).err().unwrap().code, Code::OutOfRange);
        drop(device.import(page, pages.at(PAGE), 1024).unwrap());
    }
}
