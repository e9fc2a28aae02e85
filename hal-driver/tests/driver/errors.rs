// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Wrong requests are refused with the right status and a message, and change nothing.

use crate::common::{Device, Error, List, Semaphore, check, view};
use hal_semaphore::Code;
use hal_sys as sys;
use std::ptr::null_mut;
use std::time::Duration;

fn refused(result: crate::common::Result, code: Code, says: &str) {
    let error = result.expect_err(says);
    check_error(&error, code, says);
}

fn check_error(error: &Error, code: Code, says: &str) {
    assert_eq!(error.code, code, "{}", error.text);
    assert!(error.text.contains(says), "{:?} does not say {says:?}", error.text);
}

#[test]
fn devices_and_parameters_that_do_not_exist() {
    for (uri, code, says) in [
        ("mock://2", Code::NotFound, "mock://0 to mock://1"),
        ("mock://first", Code::NotFound, "there is no mock://first"),
        ("mock://0?queues=0", Code::InvalidArgument, "a number from 1 to 64"),
        ("mock://0?queues=2&queues=3", Code::InvalidArgument, "given twice"),
        ("mock://0?memory=lots", Code::InvalidArgument, "64m"),
        ("mock://0?fault=fire", Code::InvalidArgument, "lose:N"),
        ("mock://0?speed=fast", Code::InvalidArgument, "parameter speed is unknown; this device takes"),
        ("mokc", Code::NotFound, "mokc"),
    ] {
        let error = Device::open(uri).err().unwrap_or_else(|| panic!("{uri} was opened"));
        check_error(&error, code, says);
    }
}

/// Otherwise the name would read as empty, which is the default device.
#[test]
fn names_that_are_not_utf_8_are_refused() {
    for uri in [&b"mock://\xff"[..], b"mock://0?name=\xff", b"mock://0?\xff=1", b"template://\xff"] {
        let error = Device::open_named(uri).err().unwrap_or_else(|| panic!("{uri:x?} was opened"));
        check_error(&error, Code::InvalidArgument, "UTF-8");
    }
}

#[test]
fn refused_operation_leaves_its_signals_as_they_were() {
    let device = Device::open("mock").unwrap();
    let (buffer, done) = (device.buffer(64), device.semaphore(5));
    let none = List::none;
    let fill = |signals: &List, range, pattern: &[u8]| device.fill(&none(), signals, &buffer, range, pattern);
    refused(fill(&done.at(6), (0, 65), &[1]), Code::OutOfRange, "not inside a buffer of 64 bytes");
    refused(fill(&done.at(6), (60, 8), &[1]), Code::OutOfRange, "8 bytes at 60");
    refused(fill(&done.at(6), (0, 64), &[0; 17]), Code::InvalidArgument, "1 to 16 bytes, not 17");
    refused(fill(&done.at(5), (0, 64), &[1]), Code::InvalidArgument, "at 5 already");
    refused(fill(&done.at(1 << 40), (0, 64), &[1]), Code::OutOfRange, "past the largest");
    let other = device.buffer(32);
    refused(device.copy(&none(), &done.at(6), &other, &buffer, 64), Code::OutOfRange, "32 bytes");
    assert_eq!(done.value().unwrap(), 5);
    assert_eq!(buffer.read(), [0; 64]);
    device.fill(&none(), &done.at(6), &buffer, (0, 64), &[1]).unwrap();
    done.wait(6).unwrap();
}

#[test]
fn semaphores_only_grow_and_fail_once() {
    let device = Device::open("mock").unwrap();
    let semaphore = device.semaphore(3);
    refused(semaphore.signal(3), Code::InvalidArgument, "3");
    refused(semaphore.signal(1 << 33), Code::InvalidArgument, "the largest value of a semaphore is");
    semaphore.fail(Code::DataLoss, "first");
    semaphore.fail(Code::Aborted, "second");
    check_error(&semaphore.value().unwrap_err(), Code::DataLoss, "first");
    let after = device.semaphore(0);
    device.barrier(&semaphore.at(9), &after.at(1)).unwrap();
    check_error(&after.wait(1).unwrap_err(), Code::DataLoss, "first");
}

#[test]
fn memory_is_returned_once() {
    let device = Device::open("mock").unwrap();
    let done = device.semaphore(0);
    let buffer = device.alloca(&List::none(), &done.at(1), 256).unwrap();
    device.dealloca(&done.at(1), &done.at(2), &buffer).unwrap();
    done.wait(2).unwrap();
    let (again, used) = (device.semaphore(0), device.semaphore(0));
    device.dealloca(&List::none(), &again.at(1), &buffer).unwrap();
    check_error(&again.wait(1).unwrap_err(), Code::FailedPrecondition, "deallocated before");
    device.fill(&List::none(), &used.at(1), &buffer, (0, 256), &[1]).unwrap();
    check_error(&used.wait(1).unwrap_err(), Code::FailedPrecondition, "the buffer has no memory");
}

#[test]
fn host_call_that_fails_or_panics_fails_its_signals() {
    let device = Device::open("mock").unwrap();
    let (ready, done, chained) = (device.semaphore(0), device.semaphore(0), device.semaphore(0));
    let call = Box::new(|| crate::common::failure(Code::NotFound, "the call found nothing"));
    device.host_call(&ready.at(1), &done.at(1), 0, call).unwrap();
    device.barrier(&done.at(1), &chained.at(1)).unwrap();
    ready.signal(1).unwrap();
    check_error(&chained.wait(1).unwrap_err(), Code::NotFound, "the call found nothing");
    // A call whose wait fails is never made.
    let (broken, skipped) = (device.semaphore(0), device.semaphore(0));
    device.host_call(&broken.at(1), &skipped.at(1), 0, Box::new(|| panic!("was called"))).unwrap();
    broken.fail(Code::Unavailable, "gone");
    check_error(&skipped.wait(1).unwrap_err(), Code::Unavailable, "gone");
}

#[test]
fn host_call_signals_the_rest_where_one_was_overtaken() {
    let device = Device::open("mock").unwrap();
    let (overtaken, failed, rest) = (device.semaphore(0), device.semaphore(0), device.semaphore(0));
    let (ahead, broken) = (overtaken.clone(), failed.clone());
    let call = Box::new(move || {
        ahead.signal(5).unwrap();
        broken.fail(Code::DataLoss, "another cause");
        null_mut()
    });
    let signals = List::of(&[(&overtaken, 1), (&failed, 1), (&rest, 1)]);
    device.host_call(&List::none(), &signals, 0, call).unwrap();
    rest.wait(1).unwrap();
    assert_eq!(overtaken.value().unwrap(), 5);
    check_error(&failed.value().unwrap_err(), Code::DataLoss, "another cause");
}

#[test]
fn last_of_many_host_calls_releases_the_others() {
    const CALLS: u64 = 40;
    let device = Device::open("mock").unwrap();
    let (done, all) = (device.semaphore(0), std::sync::Arc::new(std::sync::Barrier::new(40)));
    let each: Vec<_> = (0..CALLS).map(|_| device.semaphore(0)).collect();
    for semaphore in &each {
        let all = all.clone();
        let call = Box::new(move || {
            all.wait();
            null_mut()
        });
        device.host_call(&List::none(), &semaphore.at(1), 0, call).unwrap();
    }
    for (value, semaphore) in (0..).zip(&each) {
        device.barrier(&List::of(&[(semaphore, 1), (&done, value)]), &done.at(value + 1)).unwrap();
    }
    done.wait(CALLS).unwrap();
}

#[test]
fn queries_have_values_or_say_that_they_have_none() {
    let device = Device::open("mock://0?queues=3&workers=5").unwrap();
    for (category, key, value) in [
        ("hal.device.id", "mock", 1),
        ("hal.device.id", "mock*", 1),
        ("hal.device.id", "local*", 1),
        ("hal.device.id", "cuda*", 0),
        ("hal.executable.format", "vmvx-bytecode-fb", 1),
        ("hal.executable.format", "FOO?", 0),
        ("hal.device", "concurrency", 3),
        ("hal.dispatch", "concurrency", 5),
    ] {
        assert_eq!(device.query(category, key).unwrap(), value, "{category} {key}");
    }
    check_error(&device.query("hal.device", "colour").unwrap_err(), Code::NotFound, "hal.device :: colour");
}

#[test]
#[expect(clippy::undocumented_unsafe_blocks, reason = "every object is alive")]
fn objects_of_other_drivers_are_recognised() {
    let (device, other) = (Device::open("mock").unwrap(), Device::open_in_group("local-task").unwrap());
    unsafe {
        let mut commands = null_mut();
        let once = sys::IREE_HAL_COMMAND_BUFFER_MODE_ONE_SHOT;
        check(sys::iree_hal_command_buffer_create(other.0, once, u32::MAX, 0, 0, &raw mut commands)).unwrap();
        check(sys::iree_hal_command_buffer_begin(commands)).unwrap();
        check(sys::iree_hal_command_buffer_end(commands)).unwrap();
        let (waits, signals) = (List::none(), device.semaphore(0).at(1));
        let table = sys::iree_hal_buffer_binding_table_t { count: 0, bindings: std::ptr::null() };
        let executed = check(sys::iree_hal_device_queue_execute(
            device.0,
            u64::MAX,
            waits.raw(),
            signals.raw(),
            commands,
            table,
            0,
        ));
        refused(executed, Code::InvalidArgument, "belongs to another driver");
        sys::iree_hal_command_buffer_release(commands);
    }
}

#[test]
fn semaphores_and_buffers_of_another_driver_work() {
    let (device, other) = (Device::open("mock").unwrap(), Device::open_in_group("local-task").unwrap());
    let (theirs, ours) = (other.buffer(64), device.buffer(64));
    let (a, b, c) = (other.semaphore(0), device.semaphore(0), other.semaphore(0));
    // Submitted back to front: each waits for the next one's signal.
    other.barrier(&b.at(1), &c.at(1)).unwrap();
    device.copy(&a.at(1), &b.at(1), &theirs, &ours, 64).unwrap();
    other.fill(&List::none(), &a.at(1), &theirs, (0, 64), &[42]).unwrap();
    c.wait(1).unwrap();
    assert_eq!(ours.read(), [42; 64]);
    // A failure crosses devices with its message.
    let (broken, failed) = (other.semaphore(0), device.semaphore(0));
    device.barrier(&broken.at(1), &failed.at(1)).unwrap();
    broken.fail(Code::DataLoss, "their bank 3");
    check_error(&failed.wait(1).unwrap_err(), Code::DataLoss, "their bank 3");
    // And ours signals theirs.
    let signalled = other.semaphore(0);
    device.barrier(&List::none(), &signalled.at(7)).unwrap();
    signalled.wait(7).unwrap();
}

/// The slots that answer UNIMPLEMENTED. The list only shrinks.
#[test]
#[expect(clippy::undocumented_unsafe_blocks, reason = "every object is alive, and no slot reads the nulls")]
fn slot_that_is_not_there_says_so_by_name() {
    let device = Device::open("mock").unwrap();
    let semaphore = device.semaphore(0);
    unsafe {
        let table =
            &*(*device.0.cast::<sys::iree_hal_resource_t>()).vtable.cast::<sys::iree_hal_device_vtable_t>();
        let timeline = (*semaphore.0.cast::<sys::iree_async_semaphore_t>())
            .vtable
            .cast::<sys::iree_hal_semaphore_vtable_t>();
        let timeline = &*timeline;
        let unimplemented = |status, name: &str| refused(check(status), Code::Unimplemented, name);
        let options = std::ptr::null();
        unimplemented(table.external_capture_begin.unwrap()(device.0, options), "external_capture_begin");
        unimplemented(table.external_capture_end.unwrap()(device.0), "external_capture_end");
        let point = sys::iree_hal_external_timepoint_t::default();
        unimplemented(timeline.import_timepoint.unwrap()(semaphore.0, 1, 0, point), "import_timepoint");
        unimplemented(
            timeline.export_timepoint.unwrap()(semaphore.0, 1, 0, 0, 0, null_mut()),
            "export_timepoint",
        );
    }
}

/// The list belongs to a type, so no other function answers like that.
#[test]
fn nothing_else_is_unimplemented() {
    fn uses(folder: &std::path::Path) -> usize {
        let entries = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
        let count = |path: std::path::PathBuf| {
            if path.is_dir() {
                return uses(&path);
            }
            std::fs::read_to_string(&path).unwrap().matches("Failure::new(Code::Unimplemented").count()
        };
        entries.map(count).sum()
    }
    let pinned = [
        "iree_hal_device_external_capture_begin",
        "iree_hal_device_external_capture_end",
        "iree_hal_semaphore_export_timepoint of this kind",
        "iree_hal_semaphore_import_timepoint of this kind",
    ];
    assert_eq!(hal_driver::UNIMPLEMENTED, pinned);
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    // The other one concerns devices, which may have no clock, not the driver.
    assert_eq!(
        uses(&sources),
        2,
        "one function makes such a failure, and one refuses a profile that a device does not have"
    );
}

/// A null slot crashes its caller: IREE does not check.
#[test]
#[expect(clippy::undocumented_unsafe_blocks, reason = "a table is pointers to functions and nothing else")]
fn no_table_has_a_hole() {
    fn full<T>(table: *const std::ffi::c_void) -> bool {
        let slots = size_of::<T>() / size_of::<usize>();
        (0..slots).all(|slot| unsafe { *table.cast::<usize>().add(slot) } != 0)
    }
    let device = Device::open("mock").unwrap();
    let (buffer, semaphore) = (device.buffer(64), device.semaphore(0));
    unsafe {
        let table = |object: *mut std::ffi::c_void| (*object.cast::<sys::iree_hal_resource_t>()).vtable;
        assert!(full::<sys::iree_hal_device_vtable_t>(table(device.0.cast())));
        assert!(full::<sys::iree_hal_allocator_vtable_t>(table(device.allocator().cast())));
        assert!(full::<sys::iree_hal_buffer_vtable_t>(table(buffer.0.cast())));
        assert!(full::<sys::iree_hal_semaphore_vtable_t>(table(semaphore.0.cast())));
        let (mut commands, mut cache, mut event) = (null_mut(), null_mut(), null_mut());
        let once = sys::IREE_HAL_COMMAND_BUFFER_MODE_ONE_SHOT;
        check(sys::iree_hal_command_buffer_create(device.0, once, u32::MAX, 0, 0, &raw mut commands))
            .unwrap();
        assert!(full::<sys::iree_hal_command_buffer_vtable_t>(table(commands.cast())));
        sys::iree_hal_command_buffer_release(commands);
        check(sys::iree_hal_executable_cache_create(device.0, view("test"), &raw mut cache)).unwrap();
        assert!(full::<sys::iree_hal_executable_cache_vtable_t>(table(cache.cast())));
        sys::iree_hal_executable_cache_release(cache);
        check(sys::iree_hal_event_create(device.0, 0, 0, &raw mut event)).unwrap();
        assert!(full::<sys::iree_hal_event_vtable_t>(table(event.cast())));
        sys::iree_hal_event_release(event);
    }
}

/// The answer of a program's wait. A wait for one semaphore is a slot of the driver, and has the message.
fn waited(semaphore: &Semaphore, value: u64, timeout: sys::iree_timeout_t) -> crate::common::Result {
    unsafe { check(sys::iree_hal_semaphore_wait(semaphore.0, value, timeout, 0)) }
}

#[test]
fn wait_for_a_semaphore_that_fails_says_why() {
    let forever = unsafe { sys::iree_infinite_timeout() };
    for code in [Code::DataLoss, Code::DeadlineExceeded] {
        let device = Device::open("mock").unwrap();
        let done = device.semaphore(0);
        let (again, begun) = (done.clone(), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                begun.wait();
                waited(&again, 1, forever)
            });
            begun.wait();
            // Long enough for it to fall asleep.
            std::thread::sleep(Duration::from_millis(50));
            done.fail(code, "on purpose");
            refused(sleeper.join().unwrap(), code, "on purpose");
        });
        refused(waited(&done, 1, forever), code, "on purpose");
        refused(waited(&done, 1, unsafe { sys::iree_make_timeout_ms(0) }), code, "on purpose");
    }
}

#[test]
fn wait_that_takes_too_long_for_a_sound_semaphore_is_a_deadline_exceeded() {
    let device = Device::open("mock").unwrap();
    let late = waited(&device.semaphore(0), 1, unsafe { sys::iree_make_timeout_ms(20) }).unwrap_err();
    assert_eq!(late.code, Code::DeadlineExceeded, "{}", late.text);
}
