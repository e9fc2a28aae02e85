// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Profiling sessions whose sink fails: each begun session is ended, and nothing leaks.

use crate::common::{Device, List, check, failure};
use hal_semaphore::Code;
use hal_sys as sys;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// A sink that fails at one of its writes.
#[repr(C)]
struct Sink {
    resource: sys::iree_hal_resource_t,
    fails_at: usize,
    begun: AtomicUsize,
    written: AtomicUsize,
    ended: AtomicUsize,
    /// Other actions of a call.
    works: Option<Box<dyn Fn() + Send + Sync>>,
}

impl Sink {
    fn new(fails_at: usize, works: Option<Box<dyn Fn() + Send + Sync>>) -> Self {
        Self {
            resource: sys::iree_hal_resource_t { ref_count: 1, vtable: (&raw const VTABLE).cast() },
            fails_at,
            begun: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            works,
        }
    }

    fn work(&self) {
        if let Some(works) = &self.works {
            works();
        }
    }

    fn options(&mut self) -> sys::iree_hal_device_profiling_options_t {
        sys::iree_hal_device_profiling_options_t {
            data_families: sys::IREE_HAL_DEVICE_PROFILING_DATA_QUEUE_EVENTS.into(),
            sink: std::ptr::from_mut(self).cast(),
            ..Default::default()
        }
    }
}

static VTABLE: sys::iree_hal_profile_sink_vtable_t = sys::iree_hal_profile_sink_vtable_t {
    destroy: Some(destroy),
    begin_session: Some(begin_session),
    write: Some(write),
    end_session: Some(end_session),
};

unsafe extern "C" fn destroy(_: *mut sys::iree_hal_profile_sink_t) {
    panic!("the test keeps its reference");
}

unsafe extern "C" fn begin_session(
    sink: *mut sys::iree_hal_profile_sink_t,
    _: *const sys::iree_hal_profile_chunk_metadata_t,
) -> sys::iree_status_t {
    let sink = unsafe { &*sink.cast::<Sink>() };
    sink.begun.fetch_add(1, Ordering::Relaxed);
    sink.work();
    std::ptr::null_mut()
}

unsafe extern "C" fn write(
    sink: *mut sys::iree_hal_profile_sink_t,
    _: *const sys::iree_hal_profile_chunk_metadata_t,
    _: usize,
    _: *const sys::iree_const_byte_span_t,
) -> sys::iree_status_t {
    let sink = unsafe { &*sink.cast::<Sink>() };
    sink.work();
    if sink.written.fetch_add(1, Ordering::Relaxed) == sink.fails_at {
        return failure(Code::DataLoss, "the disk is full");
    }
    std::ptr::null_mut()
}

unsafe extern "C" fn end_session(
    sink: *mut sys::iree_hal_profile_sink_t,
    _: *const sys::iree_hal_profile_chunk_metadata_t,
    _: sys::iree_status_code_t,
) -> sys::iree_status_t {
    let sink = unsafe { &*sink.cast::<Sink>() };
    sink.ended.fetch_add(1, Ordering::Relaxed);
    sink.work();
    std::ptr::null_mut()
}

#[test]
fn session_that_could_not_begin_is_ended_and_forgotten() {
    let device = Device::open("mock").unwrap();
    let (buffer, mut refused) = (device.buffer(64), 0);
    for fails_at in 0..12 {
        let mut sink = Sink::new(fails_at, None);
        let options = sink.options();
        let begun = unsafe { check(sys::iree_hal_device_profiling_begin(device.0, &raw const options)) };
        if begun.is_ok() {
            let done = device.semaphore(0);
            device.fill(&List::none(), &done.at(1), &buffer, (0, 64), &[1]).unwrap();
            done.wait(1).unwrap();
            // It may fail, and ends anyway.
            let _ = unsafe { check(sys::iree_hal_device_profiling_end(device.0)) };
        } else {
            refused += 1;
        }
        let numbers = [&sink.begun, &sink.ended].map(|number| number.load(Ordering::Relaxed));
        assert_eq!(numbers, [1, 1], "begun and ended, with failure {fails_at}");
        assert_eq!(sink.resource.ref_count, 1, "references, with failure {fails_at}");
    }
    assert!(refused > 2, "metadata and the first look at the clock are written at the beginning");
}

/// hal/device.h: "Sink callbacks may block or allocate", so no lock is held that the end of work needs.
#[test]
fn sink_may_wait_for_work_of_the_device() {
    for uri in [
        "mock",
        "template",
        "gaudi://emulated?generation=gaudi2&seed=9601",
        "nvidia://emulated",
        "qaic://emulated",
    ] {
        let device = Arc::new(Device::open(uri).unwrap());
        let buffer = device.buffer(64);
        let works = {
            let device = device.clone();
            let buffer = device.buffer(64);
            move || {
                let done = device.semaphore(0);
                device.fill(&List::none(), &done.at(1), &buffer, (0, 64), &[2]).unwrap();
                done.wait(1).unwrap();
            }
        };
        let mut sink = Sink::new(usize::MAX, Some(Box::new(works)));
        let options = sink.options();
        unsafe { check(sys::iree_hal_device_profiling_begin(device.0, &raw const options)) }.unwrap();
        let done = device.semaphore(0);
        for step in 0..20 {
            device.fill(&done.at(step), &done.at(step + 1), &buffer, (0, 64), &[1]).unwrap();
        }
        done.wait(20).unwrap();
        let before = sink.written.load(Ordering::Relaxed);
        unsafe { check(sys::iree_hal_device_profiling_flush(device.0)) }.unwrap();
        assert!(sink.written.load(Ordering::Relaxed) > before, "{uri}: what was done is written");
        unsafe { check(sys::iree_hal_device_profiling_end(device.0)) }.unwrap();
        assert_eq!(sink.ended.load(Ordering::Relaxed), 1, "{uri}");
        sink.works = None;
    }
}

/// hal/device.h: nested begins fail with `FAILED_PRECONDITION`, and a program begins, flushes and ends one after
/// the other. A sink that such a call or recorded work invokes gets this failure for its own session, and never
/// hangs.
#[test]
fn sink_may_not_begin_flush_or_end_the_session_that_calls_it() {
    let (sender, receiver) = mpsc::channel();
    let (calls, called) = mpsc::channel();
    let calls = std::sync::Mutex::new(calls);
    std::thread::spawn(move || {
        let [device, other] = [0, 1].map(|_| Arc::new(Device::open("mock").unwrap()));
        let works = {
            let device = device.clone();
            move || {
                let mut inner = Sink::new(usize::MAX, None);
                let options = inner.options();
                let nested = unsafe {
                    [
                        check(sys::iree_hal_device_profiling_begin(device.0, &raw const options)),
                        check(sys::iree_hal_device_profiling_flush(device.0)),
                        check(sys::iree_hal_device_profiling_end(device.0)),
                    ]
                };
                // Another device has another session.
                unsafe {
                    check(sys::iree_hal_device_profiling_begin(other.0, &raw const options)).unwrap();
                    check(sys::iree_hal_device_profiling_flush(other.0)).unwrap();
                    check(sys::iree_hal_device_profiling_end(other.0)).unwrap();
                }
                calls.lock().unwrap().send(nested.map(|refused| refused.unwrap_err().code)).unwrap();
            }
        };
        let mut sink = Sink::new(usize::MAX, Some(Box::new(works)));
        let options = sink.options();
        unsafe { check(sys::iree_hal_device_profiling_begin(device.0, &raw const options)) }.unwrap();
        let (buffer, done) = (device.buffer(64), device.semaphore(0));
        device.fill(&List::none(), &done.at(1), &buffer, (0, 64), &[1]).unwrap();
        done.wait(1).unwrap();
        unsafe { check(sys::iree_hal_device_profiling_flush(device.0)) }.unwrap();
        unsafe { check(sys::iree_hal_device_profiling_end(device.0)) }.unwrap();
        sink.works = None;
        let numbers = [&sink.begun, &sink.ended].map(|number| number.load(Ordering::Relaxed));
        sender.send(numbers).unwrap();
    });
    let numbers = receiver.recv_timeout(Duration::from_secs(60)).expect("a sink hangs in its own session");
    assert_eq!(numbers, [1, 1], "begun and ended");
    let called: Vec<_> = called.try_iter().collect();
    assert!(called.len() > 4, "the sink was called {} times", called.len());
    assert!(called.iter().all(|codes| *codes == [Code::FailedPrecondition; 3]), "{called:?}");
}

/// A transfer is in the profile that is open when it is submitted, with its kind and its bytes, whatever its memory
/// is.
#[test]
fn transfers_are_in_the_profile_that_is_open_when_they_are_submitted() {
    let device = Device::open("mock").unwrap();
    let (source, target, done) = (device.buffer(64), device.buffer(64), device.semaphore(0));
    let submit = |at: u64| {
        let (first, second, third) = (done.at(at + 1), done.at(at + 2), done.at(at + 3));
        device.fill(&done.at(at), &first, &source, (0, 16), &[1]).unwrap();
        device.copy(&first, &second, &source, &target, 32).unwrap();
        device.update_on(u64::MAX, &second, &third, &[7; 48], (&target, 0)).unwrap();
        done.wait(at + 3).unwrap();
    };
    submit(0);
    for round in 0..2 {
        let profile = crate::common::sink::Sink::begin(&device).unwrap();
        submit(3 + 6 * round);
        let events = profile.end(&device).unwrap();
        let transfers = [
            (sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_FILL, 1, 16),
            (sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_COPY, 1, 32),
            (sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_UPDATE, 1, 48),
        ];
        assert_eq!(events, transfers, "in round {round}");
        submit(6 + 6 * round);
    }
}

/// IREE's tools sum up functions from these events (`--print_device_statistics`, `--dispatch_statistics`), which is the
/// cheapest of its profiles.
#[test]
fn each_dispatch_is_a_function_that_ran_with_times_of_the_hosts_clock() {
    let _types = crate::common::keep_types();
    let now = || unsafe { sys::iree_time_now() };
    for (uri, format, folder) in crate::dispatches::DEVICES {
        let device = Device::open(uri).unwrap();
        let function = crate::dispatches::Absolute::new(&device, format, folder);
        let families = sys::IREE_HAL_DEVICE_PROFILING_DATA_HOST_EXECUTION_EVENTS;
        let profile = crate::common::sink::Sink::begin_with(&device, families).unwrap();
        let begin = now();
        function.recorded(&device, [1; 3]).unwrap();
        function.run(&device, [1; 3], None).unwrap();
        let end = now();
        profile.end(&device).unwrap();
        let functions = profile.functions.lock().unwrap().clone();
        let in_command_buffers = functions.iter().filter(|(commands, ..)| *commands != 0).count();
        assert_eq!((functions.len(), in_command_buffers), (2, 1), "{uri}: {functions:?}");
        for (_, started, ended) in functions {
            // The two clocks are compared at the beginning of the session, to some microseconds.
            let slack = 1_000_000;
            assert!(
                begin - slack <= started && started <= ended && ended <= end + slack,
                "{uri}: {started} to {ended}, between {begin} and {end}"
            );
        }
    }
}

#[test]
fn families_that_no_device_records_are_refused_by_name() {
    let device = Device::open("mock").unwrap();
    for (family, name) in [
        (sys::IREE_HAL_DEVICE_PROFILING_DATA_MEMORY_EVENTS, "memory-events"),
        (sys::IREE_HAL_DEVICE_PROFILING_DATA_COMMAND_REGION_EVENTS, "command-region-events"),
    ] {
        let families = family | sys::IREE_HAL_DEVICE_PROFILING_DATA_QUEUE_EVENTS;
        let refused = crate::common::sink::Sink::begin_with(&device, families).err().unwrap();
        assert_eq!(refused.code, Code::Unimplemented);
        assert!(refused.text.contains(name), "{}", refused.text);
    }
    crate::common::sink::Sink::begin(&device).unwrap().end(&device).unwrap();
}
