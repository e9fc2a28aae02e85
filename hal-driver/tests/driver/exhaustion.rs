// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A host allocator that runs out: each call fails, and nothing is half done or leaks.

use crate::common::scarce::Scarce;
use crate::common::{
    Buffer, Commands, Device, Executable, List, Result, Semaphore, Tracker, check, params, view,
};
use hal_semaphore::Code;
use hal_sys as sys;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A device, and operations one after the other.
pub(crate) struct Program {
    pub(crate) device: Device,
    pub(crate) chain: Semaphore,
    pub(crate) value: u64,
}

impl Program {
    /// Submits an operation between the last one and the next. An accepted operation ends, whether it succeeds or
    /// not; a refused one has not changed the chain.
    pub(crate) fn step(&mut self, queue: impl FnOnce(&Device, &List, &List) -> Result) -> Result {
        let (waits, signals) = (self.chain.at(self.value), self.chain.at(self.value + 1));
        match queue(&self.device, &waits, &signals) {
            Ok(()) => {
                self.value += 1;
                self.chain.wait(self.value)
            }
            Err(error) => {
                assert_eq!(self.chain.value().unwrap(), self.value, "{}", error.text);
                Err(error)
            }
        }
    }
}

fn counting(count: &AtomicUsize) -> sys::iree_hal_buffer_release_callback_t {
    unsafe extern "C" fn release(count: *mut c_void, _: *mut sys::iree_hal_buffer_t) {
        unsafe { &*count.cast::<AtomicUsize>() }.fetch_add(1, Ordering::SeqCst);
    }
    let user_data = std::ptr::from_ref(count).cast_mut().cast();
    sys::iree_hal_buffer_release_callback_t { fn_: Some(release), user_data }
}

/// Memory of the program's own.
#[repr(align(4096))]
struct Page([u8; 4096]);

pub(crate) fn imports(program: &mut Program) -> Result {
    let (mut page, released) = (Page([3; 4096]), AtomicUsize::new(0));
    let of_host = sys::iree_hal_buffer_params_t {
        type_: sys::IREE_HAL_MEMORY_TYPE_HOST_LOCAL | sys::IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE,
        ..params()
    };
    let imported = program.device.import_until(of_host, page.0.as_mut_ptr(), 4096, counting(&released));
    let outcome = imported.and_then(|buffer| {
        let filled =
            program.step(|device, waits, signals| device.fill(waits, signals, &buffer, (0, 64), &[4]));
        drop(buffer);
        let until = Instant::now() + Duration::from_secs(60);
        while released.load(Ordering::SeqCst) == 0 && Instant::now() < until {
            std::thread::yield_now();
        }
        assert_eq!(released.load(Ordering::SeqCst), 1, "what was imported is released once");
        filled
    });
    if outcome.is_err() {
        assert!(released.load(Ordering::SeqCst) <= 1);
    }
    outcome
}

fn shares(program: &mut Program) -> Result {
    let usage = sys::IREE_HAL_BUFFER_USAGE_DEFAULT | sys::IREE_HAL_BUFFER_USAGE_SHARING_EXPORT;
    let type_ = sys::IREE_HAL_MEMORY_TYPE_HOST_LOCAL | sys::IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE;
    let shared = sys::iree_hal_buffer_params_t { type_, usage, ..Default::default() };
    let buffer = program.device.try_buffer_of(shared, 5000)?;
    let mut external = sys::iree_hal_external_buffer_t::default();
    let mut other = null_mut();
    unsafe {
        let (allocator, kind) = (program.device.allocator(), sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_OPAQUE_FD);
        check(sys::iree_hal_allocator_export_buffer(allocator, buffer.0, kind, 0, &raw mut external))?;
        use std::os::fd::FromRawFd;
        let _owned = std::os::fd::OwnedFd::from_raw_fd(external.handle.opaque_fd.fd);
        let release = sys::iree_hal_buffer_release_callback_t::default();
        check(sys::iree_hal_allocator_import_buffer(
            allocator,
            shared,
            &raw mut external,
            release,
            &raw mut other,
        ))?;
    }
    drop(Buffer(other));
    Ok(())
}

pub(crate) fn streams(program: &mut Program) -> Result {
    for length in [4096, 40 << 20] {
        let mut buffer = None;
        program.step(|device, waits, signals| {
            buffer = Some(device.alloca(waits, signals, length)?);
            Ok(())
        })?;
        let buffer = buffer.unwrap();
        program.step(|device, waits, signals| device.fill(waits, signals, &buffer, (0, 64), &[4]))?;
        program.step(|device, waits, signals| device.dealloca(waits, signals, &buffer))?;
    }
    // The same before any wait is reached.
    let gate = program.try_semaphore()?;
    let mut ends: Vec<Semaphore> = Vec::new();
    let mut run = || -> Result {
        let (there, used) = (program.try_semaphore()?, program.try_semaphore()?);
        ends.push(there.clone());
        ends.push(used.clone());
        let buffer = program.device.alloca(&gate.at(1), &there.at(1), 8192);
        let buffer = match buffer {
            Ok(buffer) => buffer,
            Err(error) => {
                ends.clear();
                return Err(error);
            }
        };
        if let Err(error) = program.device.fill(&there.at(1), &used.at(1), &buffer, (0, 64), &[4]) {
            ends.pop();
            return Err(error);
        }
        drop(buffer);
        Ok(())
    };
    let queued = run();
    gate.signal(1).unwrap();
    for end in &ends {
        end.wait(1)?;
    }
    queued
}

impl Program {
    fn try_semaphore(&self) -> Result<Semaphore> {
        let mut semaphore = null_mut();
        unsafe {
            check(sys::iree_hal_semaphore_create(self.device.0, u64::MAX, 0, 0, &raw mut semaphore))?;
        }
        Ok(Semaphore(semaphore))
    }
}

pub(crate) fn records(program: &mut Program, buffers: [&Buffer; 2]) -> Result {
    let mut commands = null_mut();
    let mode = sys::IREE_HAL_COMMAND_BUFFER_MODE_DEFAULT;
    unsafe {
        let mut event = null_mut();
        check(sys::iree_hal_event_create(program.device.0, u64::MAX, 0, &raw mut event))?;
        sys::iree_hal_event_release(event);
        check(sys::iree_hal_command_buffer_create(
            program.device.0,
            mode,
            3,
            u64::MAX,
            2,
            &raw mut commands,
        ))?;
    }
    let commands = Commands(commands);
    let slot = |slot: u32| {
        let mut reference = sys::iree_hal_buffer_ref_t { length: 64, ..Default::default() };
        reference.set_buffer_slot(slot);
        reference
    };
    unsafe {
        check(sys::iree_hal_command_buffer_begin(commands.0))?;
        let pattern = 7_u32;
        check(sys::iree_hal_command_buffer_fill_buffer(
            commands.0,
            slot(0),
            (&raw const pattern).cast(),
            4,
            0,
        ))?;
        check(sys::iree_hal_command_buffer_copy_buffer(commands.0, slot(0), slot(1), 0))?;
        let source = [9_u8; 64];
        check(sys::iree_hal_command_buffer_update_buffer(commands.0, source.as_ptr().cast(), 0, slot(0), 0))?;
        check(sys::iree_hal_command_buffer_end(commands.0))?;
    }
    for _ in 0..2 {
        program.step(|device, waits, signals| device.execute(1, waits, signals, &commands, &buffers))?;
    }
    Ok(())
}

fn dispatches(program: &mut Program, buffers: [&Buffer; 2]) -> Result {
    let bytes = crate::common::testdata("vmvx/command_buffer_dispatch_constants_bindings_test.bin");
    let executable: Executable = program.device.load("vmvx-bytecode-fb", &bytes)?;
    program.step(|device, waits, signals| device.dispatch(1, waits, signals, &executable, &[1, 2], &buffers))
}

fn files(program: &mut Program, buffer: &Buffer) -> Result {
    use std::os::fd::AsRawFd;
    let descriptor = rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&descriptor, 4096).unwrap();
    let access = sys::IREE_IO_FILE_ACCESS_READ | sys::IREE_IO_FILE_ACCESS_WRITE;
    let primitive = sys::iree_io_file_handle_primitive_t {
        type_: sys::IREE_IO_FILE_HANDLE_TYPE_FD,
        value: sys::iree_io_file_handle_primitive_value_t { fd: descriptor.as_raw_fd() },
    };
    let (mut handle, mut file) = (null_mut(), null_mut());
    unsafe {
        let (release, allocator) = (Default::default(), sys::iree_allocator_system());
        check(sys::iree_io_file_handle_wrap(access, 0, primitive, release, allocator, &raw mut handle))
            .unwrap();
        let access =
            u16::try_from(sys::IREE_HAL_MEMORY_ACCESS_READ | sys::IREE_HAL_MEMORY_ACCESS_WRITE).unwrap();
        let imported =
            check(sys::iree_hal_file_import(program.device.0, u64::MAX, access, handle, 0, &raw mut file));
        sys::iree_io_file_handle_release(handle);
        imported?;
        let read = program.step(|device, waits, signals| {
            let (waits, signals) = (waits.raw(), signals.raw());
            let device = device.0;
            check(sys::iree_hal_device_queue_read(device, 1, waits, signals, file, 0, buffer.0, 0, 64, 0))
        });
        let written = read.and_then(|()| {
            program.step(|device, waits, signals| {
                let (waits, signals) = (waits.raw(), signals.raw());
                let device = device.0;
                check(sys::iree_hal_device_queue_write(
                    device, 1, waits, signals, buffer.0, 0, file, 8, 64, 0,
                ))
            })
        });
        sys::iree_hal_file_release(file);
        written
    }
}

/// A sink that counts open sessions.
#[repr(C)]
struct Sink {
    resource: sys::iree_hal_resource_t,
    open: AtomicUsize,
}

static SINK: sys::iree_hal_profile_sink_vtable_t = sys::iree_hal_profile_sink_vtable_t {
    destroy: None,
    begin_session: Some(begin_session),
    write: Some(write),
    end_session: Some(end_session),
};

unsafe extern "C" fn begin_session(
    sink: *mut sys::iree_hal_profile_sink_t,
    _: *const sys::iree_hal_profile_chunk_metadata_t,
) -> sys::iree_status_t {
    unsafe { (*sink.cast::<Sink>()).open.fetch_add(1, Ordering::Relaxed) };
    null_mut()
}

unsafe extern "C" fn write(
    _: *mut sys::iree_hal_profile_sink_t,
    _: *const sys::iree_hal_profile_chunk_metadata_t,
    _: usize,
    _: *const sys::iree_const_byte_span_t,
) -> sys::iree_status_t {
    null_mut()
}

unsafe extern "C" fn end_session(
    sink: *mut sys::iree_hal_profile_sink_t,
    _: *const sys::iree_hal_profile_chunk_metadata_t,
    _: sys::iree_status_code_t,
) -> sys::iree_status_t {
    unsafe { (*sink.cast::<Sink>()).open.fetch_sub(1, Ordering::Relaxed) };
    null_mut()
}

pub(crate) fn profiles(program: &mut Program, buffer: &Buffer) -> Result {
    let resource = sys::iree_hal_resource_t { ref_count: 1, vtable: (&raw const SINK).cast() };
    let mut sink = Sink { resource, open: AtomicUsize::new(0) };
    let options = sys::iree_hal_device_profiling_options_t {
        data_families: sys::IREE_HAL_DEVICE_PROFILING_DATA_QUEUE_EVENTS.into(),
        sink: (&raw mut sink).cast(),
        ..Default::default()
    };
    let device = program.device.again();
    let begun = unsafe { check(sys::iree_hal_device_profiling_begin(device.0, &raw const options)) };
    let outcome = begun.and_then(|()| {
        let done = program.step(|device, waits, signals| device.fill(waits, signals, buffer, (0, 64), &[1]));
        let flushed = unsafe { check(sys::iree_hal_device_profiling_flush(device.0)) };
        let ended = unsafe { check(sys::iree_hal_device_profiling_end(device.0)) };
        done.and(flushed).and(ended)
    });
    assert_eq!((sink.open.load(Ordering::Relaxed), sink.resource.ref_count), (0, 1));
    outcome
}

/// The C driver, and its devices.
fn lists(uri: &str, allocator: sys::iree_allocator_t) -> Result {
    let name = uri.split(':').next().unwrap();
    let (mut driver, mut count, mut infos) = (null_mut(), 0, null_mut());
    unsafe {
        let registry = crate::common::registry();
        check(sys::iree_hal_driver_registry_try_create(registry, view(name), allocator, &raw mut driver))?;
        let listed = check(sys::iree_hal_driver_query_available_devices(
            driver,
            allocator,
            &raw mut count,
            &raw mut infos,
        ));
        sys::iree_allocator_free(allocator, infos.cast());
        sys::iree_hal_driver_release(driver);
        listed
    }
}

/// Everything that a device does for a program.
fn run(uri: &str, lender: &Device, allocator: sys::iree_allocator_t) -> Result {
    lists(uri, allocator)?;
    let (device, _) = Device::open_with(uri, allocator)?;
    let tracker = Tracker::new();
    let group = tracker.group(&device)?;
    let chain = {
        let mut semaphore = null_mut();
        let made =
            unsafe { check(sys::iree_hal_semaphore_create(device.0, u64::MAX, 0, 0, &raw mut semaphore)) };
        made.map(|()| Semaphore(semaphore))
    };
    let outcome = chain.and_then(|chain| {
        let mut program = Program { device: device.again(), chain, value: 0 };
        let outcome = steps(&mut program, lender);
        drop(program);
        outcome
    });
    drop(device);
    unsafe { sys::iree_hal_device_group_release(group) };
    outcome
}

fn steps(program: &mut Program, lender: &Device) -> Result {
    let one = program.device.try_buffer(4096)?;
    let two = program.device.try_buffer(4096)?;
    let own = program.device.try_local_buffer(1 << 20)?;
    program.step(|device, waits, signals| device.fill(waits, signals, &own, (0, 64), &[1]))?;
    program.step(|device, waits, signals| device.copy(waits, signals, &own, &one, 4096))?;
    let many = vec![5; 100 << 10];
    program.step(|device, waits, signals| device.update_on(1, waits, signals, &many, (&own, 0)))?;
    let theirs = lender.local_buffer(4096);
    program.step(|device, waits, signals| device.copy(waits, signals, &theirs, &two, 4096))?;
    program.step(|device, waits, signals| device.fill(waits, signals, &theirs, (1, 3), &[1]))?;
    imports(program)?;
    shares(program)?;
    streams(program)?;
    records(program, [&one, &two])?;
    dispatches(program, [&one, &two])?;
    files(program, &one)?;
    files(program, &own)?;
    profiles(program, &one)?;
    program.step(|device, waits, signals| device.host_call(waits, signals, 0, Box::new(null_mut)))?;
    unsafe { check(sys::iree_hal_device_trim(program.device.0)) }
}

#[test]
fn host_allocator_that_runs_out_leaves_nothing_behind() {
    let lender = Device::open("gaudi://emulated?generation=gaudi2&seed=9901").unwrap();
    for uri in ["mock", "template", "gaudi://emulated?generation=gaudi2&seed=9902", "qaic://emulated"] {
        let plenty = Scarce::new(usize::MAX, false);
        run(uri, &lender, plenty.raw()).unwrap_or_else(|error| panic!("{uri}: {}", error.text));
        assert_eq!(plenty.left(), [0; 0], "{uri}");
        let needed = plenty.asked();
        eprintln!("{uri}: {needed} allocations");
        for then_all in [false, true] {
            for fails_at in 0.. {
                let scarce = Scarce::new(fails_at, then_all);
                let outcome = run(uri, &lender, scarce.raw());
                let what = format!("{uri}: allocation {fails_at} of {needed} failed, then all: {then_all}");
                if !scarce.has_failed() {
                    outcome.unwrap_or_else(|error| panic!("{what}: {}", error.text));
                    break;
                }
                // A driver may do without some allocations.
                if let Err(error) = outcome {
                    assert_eq!(error.code, Code::ResourceExhausted, "{what}: {}", error.text);
                }
                assert_eq!(scarce.left(), [0; 0], "{what}");
            }
        }
    }
}
