// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! All objects that a program can have of a device, released in every order; the remaining ones work or fail with a
//! reason.

use crate::cards::{card, steps};
use crate::common::random::Random;
use crate::common::{
    Buffer, Commands, Device, Executable, List, Result, Semaphore, check, params, reference, view,
};
use hal_sys as sys;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

const LENGTH: usize = 512;

/// An object that a program has a reference to.
enum HeldObject {
    Device(Device),
    Allocator(*mut sys::iree_hal_allocator_t),
    Buffer(Buffer),
    /// A scoped mapping, which keeps its buffer.
    Mapping(Box<sys::iree_hal_buffer_mapping_t>),
    Commands(Commands),
    Cache(*mut sys::iree_hal_executable_cache_t),
    Executable(Executable),
    Event(*mut sys::iree_hal_event_t),
    Semaphore(Semaphore),
    Channel(*mut sys::iree_hal_channel_t),
    File(*mut sys::iree_hal_file_t, Arc<Vec<u8>>),
}

unsafe impl Send for HeldObject {}

impl HeldObject {
    /// Uses it in every way that needs no other object.
    fn try_out(&self) {
        unsafe {
            match self {
                HeldObject::Device(device) => {
                    let (done, buffer) = (device.semaphore(0), device.buffer(64));
                    device.fill(&List::none(), &done.at(1), &buffer, (0, 64), &[1]).unwrap();
                    done.wait(1).unwrap();
                    check(sys::iree_hal_device_trim(device.0)).unwrap();
                }
                HeldObject::Allocator(allocator) => {
                    let mut buffer = null_mut();
                    let made = check(sys::iree_hal_allocator_allocate_buffer(
                        *allocator,
                        params(),
                        64,
                        &raw mut buffer,
                    ));
                    drop(made.map(|()| Buffer(buffer)));
                    check(sys::iree_hal_allocator_trim(*allocator)).unwrap();
                    let mut statistics = sys::iree_hal_allocator_statistics_t::default();
                    sys::iree_hal_allocator_query_statistics(*allocator, &raw mut statistics);
                }
                HeldObject::Buffer(buffer) => {
                    // An object that only a released device could access says so.
                    let mut bytes = [0_u8; 16];
                    drop(check(sys::iree_hal_buffer_map_read(buffer.0, 16, bytes.as_mut_ptr().cast(), 16)));
                    drop(check(sys::iree_hal_buffer_map_fill(buffer.0, 0, 8, [3_u8].as_ptr().cast(), 1)));
                }
                HeldObject::Mapping(mapping) => {
                    let bytes = mapping.contents;
                    bytes.data.write_bytes(7, bytes.data_length);
                    assert_eq!(bytes.data.add(bytes.data_length - 1).read(), 7);
                }
                HeldObject::Commands(commands) => {
                    assert_eq!(sys::iree_hal_command_buffer_mode(commands.0), COMMANDS);
                }
                HeldObject::Cache(cache) => {
                    assert!(!sys::iree_hal_executable_cache_can_prepare_format(*cache, 0, view("none")));
                }
                HeldObject::Executable(executable) => {
                    assert_eq!(sys::iree_hal_executable_function_count(executable.0), 1);
                }
                HeldObject::Event(_) => {}
                HeldObject::Semaphore(semaphore) => {
                    let value = semaphore.value().unwrap();
                    semaphore.signal(value + 1).unwrap();
                    semaphore.wait(value + 1).unwrap();
                }
                HeldObject::Channel(channel) => {
                    let (mut rank, mut count) = (7, 7);
                    sys::iree_hal_channel_query_rank_and_count(*channel, &raw mut rank, &raw mut count);
                    assert_eq!((rank, count), (0, 1));
                }
                HeldObject::File(file, bytes) => {
                    assert_eq!(sys::iree_hal_file_length(*file), bytes.len() as u64);
                }
            }
        }
    }
}

impl Drop for HeldObject {
    fn drop(&mut self) {
        unsafe {
            match self {
                HeldObject::Allocator(allocator) => sys::iree_hal_allocator_release(*allocator),
                HeldObject::Mapping(mapping) => {
                    drop(check(sys::iree_hal_buffer_unmap_range(&raw mut **mapping)))
                }
                HeldObject::Cache(cache) => sys::iree_hal_executable_cache_release(*cache),
                HeldObject::Event(event) => sys::iree_hal_event_release(*event),
                HeldObject::Channel(channel) => sys::iree_hal_channel_release(*channel),
                HeldObject::File(file, _) => sys::iree_hal_file_release(*file),
                HeldObject::Device(_)
                | HeldObject::Buffer(_)
                | HeldObject::Commands(_)
                | HeldObject::Executable(_)
                | HeldObject::Semaphore(_) => {}
            }
        }
    }
}

const COMMANDS: u32 = sys::IREE_HAL_COMMAND_BUFFER_MODE_UNVALIDATED;

/// The number of release callbacks.
type Returned = Arc<AtomicUsize>;

/// A buffer of the program's memory, with a release callback.
fn imported(device: &Device, returned: &Returned) -> Result<Buffer> {
    struct Memory(Vec<u8>, Returned);
    unsafe extern "C" fn is_back(memory: *mut c_void, _buffer: *mut sys::iree_hal_buffer_t) {
        let mut memory = unsafe { Box::from_raw(memory.cast::<Memory>()) };
        memory.0.fill(0);
        memory.1.fetch_add(1, Ordering::SeqCst);
    }
    let mut memory = Box::new(Memory(vec![1; LENGTH + 64], returned.clone()));
    let start = memory.0.as_ptr().align_offset(64);
    let start = memory.0[start..].as_mut_ptr();
    let user_data: *mut c_void = Box::into_raw(memory).cast();
    let release = sys::iree_hal_buffer_release_callback_t { fn_: Some(is_back), user_data };
    let shared = sys::iree_hal_buffer_params_t {
        type_: sys::IREE_HAL_MEMORY_TYPE_HOST_LOCAL | sys::IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE,
        ..params()
    };
    let buffer = device.import_until(shared, start, LENGTH, release);
    if buffer.is_err() {
        drop(unsafe { Box::from_raw(user_data.cast::<Memory>()) });
    }
    buffer
}

fn mapping(buffer: &Buffer) -> Result<HeldObject> {
    let mut mapping = Box::<sys::iree_hal_buffer_mapping_t>::default();
    unsafe {
        let access = sys::IREE_HAL_MEMORY_ACCESS_ALL.try_into().unwrap();
        let (mode, out) = (sys::IREE_HAL_MAPPING_MODE_SCOPED, &raw mut *mapping);
        check(sys::iree_hal_buffer_map_range(buffer.0, mode, access, 8, 100, out))?;
    }
    Ok(HeldObject::Mapping(mapping))
}

fn file(device: &Device) -> HeldObject {
    let bytes = Arc::new(vec![9_u8; LENGTH]);
    let (mut handle, mut file) = (null_mut(), null_mut());
    unsafe {
        let system = sys::iree_allocator_system();
        let span = sys::iree_byte_span_t { data: bytes.as_ptr().cast_mut(), data_length: bytes.len() };
        let (access, release) = (sys::IREE_IO_FILE_ACCESS_READ, Default::default());
        check(sys::iree_io_file_handle_wrap_host_allocation(access, span, release, system, &raw mut handle))
            .unwrap();
        let access = sys::IREE_HAL_MEMORY_ACCESS_READ.try_into().unwrap();
        check(sys::iree_hal_file_import(device.0, u64::MAX, access, handle, 0, &raw mut file)).unwrap();
        sys::iree_io_file_handle_release(handle);
    }
    HeldObject::File(file, bytes)
}

/// All objects that a program can have of a device, with queued work that uses most of them and that nothing waits
/// for.
fn everything(device: Device, executable: Option<Executable>, returned: &Returned) -> Vec<HeldObject> {
    let mut things = Vec::new();
    let order = device.semaphore(0);
    let (own, local) = (device.buffer(LENGTH), device.local_buffer(LENGTH));
    let transient = device.alloca(&List::none(), &order.at(1), LENGTH).unwrap();
    let freed = device.alloca(&List::none(), &List::none(), LENGTH).unwrap();
    device.fill(&order.at(1), &order.at(2), &transient, (0, LENGTH), &[4]).unwrap();
    order.wait(2).unwrap();
    device.dealloca(&order.at(2), &order.at(3), &freed).unwrap();
    let commands = device.record(1, |commands| unsafe {
        let slot = sys::iree_hal_make_indirect_buffer_ref(0, 0, LENGTH);
        check(sys::iree_hal_command_buffer_copy_buffer(commands, reference(&local), slot, 0))?;
        check(sys::iree_hal_command_buffer_copy_buffer(commands, reference(&local), reference(&transient), 0))
    });
    let commands = commands.unwrap();
    device.execute(u64::MAX, &order.at(3), &order.at(4), &commands, &[&own]).unwrap();
    unsafe {
        let allocator = device.allocator();
        sys::iree_hal_allocator_retain(allocator);
        things.push(HeldObject::Allocator(allocator));
        let (mut cache, mut event, mut channel) = (null_mut(), null_mut(), null_mut());
        check(sys::iree_hal_executable_cache_create(device.0, view("test"), &raw mut cache)).unwrap();
        check(sys::iree_hal_event_create(device.0, 0, 0, &raw mut event)).unwrap();
        let alone = sys::iree_hal_channel_params_t { rank: -1, count: -1, ..Default::default() };
        check(sys::iree_hal_channel_create(device.0, u64::MAX, alone, &raw mut channel)).unwrap();
        things.extend([
            HeldObject::Cache(cache),
            HeldObject::Event(event),
            HeldObject::Channel(channel),
            file(&device),
        ]);
    }
    let parts =
        [own.subspan(64, LENGTH / 2), local.subspan(64, LENGTH / 2), transient.subspan(64, LENGTH / 2)];
    for buffer in
        parts.into_iter().chain([own, local, transient, freed]).chain(imported(&device, returned).ok())
    {
        things.extend(mapping(&buffer).ok());
        things.push(HeldObject::Buffer(buffer));
    }
    things.extend(executable.map(HeldObject::Executable));
    things.extend([
        HeldObject::Commands(commands),
        HeldObject::Semaphore(device.semaphore(3)),
        HeldObject::Device(device),
    ]);
    things
}

fn open(number: usize) -> (Device, Option<Executable>) {
    let uris =
        ["mock", "mock://?heaps=2&queues=2", "template", "gaudi://emulated?generation=gaudi2&seed=9300"];
    match uris.get(number) {
        Some(uri) => (Device::open_in_group(uri).unwrap(), None),
        None if number == uris.len() => {
            let device = Device::open_in_group("nvidia://emulated?streams=3").unwrap();
            let bytes = crate::common::testdata("cuda_sm80/command_buffer_dispatch_test.bin");
            let executable = device.load("PTXE", &bytes).unwrap();
            (device, Some(executable))
        }
        None => {
            let card = card(0);
            let executable = steps(&card);
            (card, Some(executable))
        }
    }
}

/// The number of kinds of devices that [`open`] knows.
const KINDS: usize = 6;

#[test]
fn everything_may_be_released_in_any_order() {
    for seed in 1..=60_u64 {
        let mut random = Random::new(seed);
        let returned = Returned::default();
        let (device, executable) = open(usize::try_from(seed).unwrap() % KINDS);
        let mut things = everything(device, executable, &returned);
        while !things.is_empty() {
            drop(things.swap_remove(random.below(things.len())));
            if let Some(at) = things.len().checked_sub(1).map(|most| random.below(most + 1)) {
                things[at].try_out();
            }
        }
        wait_for(&returned);
    }
}

#[test]
fn everything_may_be_released_by_many_threads_at_once() {
    for seed in 1..=30_u64 {
        let returned = Returned::default();
        let (device, executable) = open(usize::try_from(seed).unwrap() % KINDS);
        let mut things = everything(device, executable, &returned);
        let mut random = Random::new(seed);
        std::thread::scope(|scope| {
            while !things.is_empty() {
                let share: Vec<_> =
                    (0..=things.len() / 4).map(|_| things.swap_remove(random.below(things.len()))).collect();
                scope.spawn(move || {
                    for thing in share {
                        thing.try_out();
                        drop(thing);
                    }
                });
            }
        });
        wait_for(&returned);
    }
}

/// Waits until all imported memory is returned.
fn wait_for(returned: &Returned) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while Arc::strong_count(returned) > 1 {
        assert!(std::time::Instant::now() < until, "memory that was imported does not come back");
        std::thread::yield_now();
    }
    assert!(returned.load(Ordering::SeqCst) <= 1, "it comes back once");
}

/// IREE validates an execution with the allocator that the commands were created with, even on another device.
#[test]
fn commands_keep_the_allocator_that_they_are_checked_by() {
    let (first, second) = (Device::open("mock").unwrap(), Device::open("mock").unwrap());
    let references = first.allocator().cast::<sys::iree_hal_resource_t>();
    let references =
        || unsafe { AtomicI32::from_ptr(&raw mut (*references).ref_count).load(Ordering::SeqCst) };
    let before = references();
    let mut commands = null_mut();
    unsafe {
        let mode = sys::IREE_HAL_COMMAND_BUFFER_MODE_DEFAULT;
        check(sys::iree_hal_command_buffer_create(first.0, mode, 3, u64::MAX, 1, &raw mut commands)).unwrap();
    }
    let commands = Commands(commands);
    assert_eq!(references(), before + 1);
    unsafe {
        let (length, pattern) = (LENGTH, 7_u8);
        let target = sys::iree_hal_buffer_ref_t { length, ..Default::default() };
        check(sys::iree_hal_command_buffer_begin(commands.0)).unwrap();
        let pattern = (&raw const pattern).cast();
        check(sys::iree_hal_command_buffer_fill_buffer(commands.0, target, pattern, 1, 0)).unwrap();
        check(sys::iree_hal_command_buffer_end(commands.0)).unwrap();
    }
    drop(first);
    let (buffer, done) = (second.buffer(LENGTH), second.semaphore(0));
    second.execute(1, &List::none(), &done.at(1), &commands, &[&buffer]).unwrap();
    done.wait(1).unwrap();
    assert_eq!(buffer.read(), [7; LENGTH]);
}
