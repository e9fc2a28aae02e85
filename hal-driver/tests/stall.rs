// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Programs that hang, and what a report says of each.
//!
//! A report is of the whole process, so these tests are a program of their own and run one at a time.
#![allow(clippy::undocumented_unsafe_blocks, reason = "every object is alive as long as its wrapper")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed expectation ends the test")]
#![cfg(unix)]

mod common;

use common::properties::{QUEUE, properties};
use common::{Device, List, Semaphore, Tracker, check, registry, stop, wait_until};
use emulator_cuda as _;
use hal_backend::{
    Completer, DeviceInfo, DeviceSpec, Driver, Failure, Function, HostLoader, HostRange, Job, LoadRequest,
    Loaded, MemoryRequest, Parameters, Properties, QueueId, Rejected,
};
use hal_driver::{StallReport, stall_report};
use hal_semaphore::Code;
use hal_semaphore::stall::{Reason, Stage, Waiter};
use hal_sys as sys;
use std::ffi::c_char;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

// ------------------------------------------------------------------------------------------------------------------
// A device that never answers
// ------------------------------------------------------------------------------------------------------------------

/// True while silent devices do not end their work when they are told to.
static ABORT_WAITS: AtomicBool = AtomicBool::new(false);

/// A device that takes work and never reports it, until it is told to stop.
struct Silent;

impl Driver for Silent {
    type Device = SilentDevice;

    const NAME: &'static str = "silent";
    const FULL_NAME: &'static str = "a device that never answers";

    fn create() -> Self {
        Self
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Failure> {
        Ok(Vec::new())
    }

    fn open(&self, _path: &str, parameters: &mut Parameters<'_>) -> Result<SilentDevice, Failure> {
        let depth = parameters.number("depth", 1000, 1, 1000)?;
        Ok(SilentDevice { depth, ..SilentDevice::default() })
    }
}

#[derive(Default)]
struct SilentDevice {
    depth: usize,
    completer: OnceLock<Completer>,
    jobs: Mutex<Vec<(QueueId, u64)>>,
}

impl hal_backend::Device for SilentDevice {
    type Memory = HostRange;
    type Executable = ();
    type Event = ();

    fn properties(&self) -> Properties {
        Properties { queues: DeviceSpec { queues: 2, ..QUEUE }, ..properties("silent") }
    }

    fn start(&self, completer: Completer) {
        let _ = self.completer.set(completer);
    }

    fn allocate(&self, request: &MemoryRequest) -> Result<HostRange, Failure> {
        HostRange::allocate(request.length, 64)
    }

    fn host_view(&self, memory: &HostRange) -> Option<HostRange> {
        Some(memory.clone())
    }

    fn supports(&self, format: &str, _host: &dyn HostLoader) -> bool {
        format == "silent"
    }

    fn load(&self, _request: &LoadRequest<'_>, _host: &dyn HostLoader) -> Result<Loaded<()>, Failure> {
        let named =
            |name: &str| Function { name: name.into(), workgroup_size: [1; 3], ..Function::default() };
        Ok(Loaded { executable: (), functions: vec![named("main_dispatch_0_matmul")] })
    }

    fn submit(&self, job: Job<Self>) -> Result<(), Rejected<Self>> {
        let mut jobs = self.jobs.lock().unwrap();
        if jobs.iter().filter(|(queue, _)| *queue == job.queue).count() >= self.depth {
            return Err(Rejected::Full(Box::new(job)));
        }
        jobs.push((job.queue, job.epoch));
        Ok(())
    }

    fn abort(&self, _why: &Failure) {
        wait_until(|| !ABORT_WAITS.load(Ordering::SeqCst));
        let jobs = std::mem::take(&mut *self.jobs.lock().unwrap());
        for (queue, epoch) in jobs {
            let _ = self.completer.get().unwrap().complete(queue, epoch);
        }
    }
}

fn silent(parameters: &str) -> Device {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| check(unsafe { hal_driver::register::<Silent>(registry()) }).unwrap());
    Device::open(&format!("silent://{parameters}")).unwrap()
}

// ------------------------------------------------------------------------------------------------------------------
// Reading reports
// ------------------------------------------------------------------------------------------------------------------

/// A text without the addresses of semaphores and without times.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(" (0x") {
        plain.push_str(before);
        rest = after.split_once(')').unwrap().1;
    }
    plain.push_str(rest);
    let Some((before, after)) = plain.rsplit_once(" for ") else { return plain };
    match after.split_once(" s or longer") {
        Some((time, after)) if time.parse::<f64>().is_ok() => format!("{before}{after}"),
        _ => plain,
    }
}

fn causes(report: &StallReport) -> Vec<String> {
    report.causes.iter().map(|cause| plain(&report.sentence(&cause.reason))).collect()
}

/// Checks that a report has these causes, and that its text begins with them.
#[track_caller]
fn explains(report: &StallReport, expected: &[&str]) {
    assert_eq!(causes(report), expected, "{report}");
    let text = report.to_string();
    for (line, cause) in text.lines().skip(1).zip(expected) {
        assert!(plain(line).starts_with(&format!("- {cause}")), "{line}\n{cause}");
    }
    assert!(report.to_json().starts_with("{\"causes\": ["));
}

/// A thread that waits for a value, and is there when this returns.
fn waiting(semaphore: &Semaphore, value: u64) -> std::thread::JoinHandle<bool> {
    let semaphore = semaphore.clone();
    std::thread::spawn(move || semaphore.wait(value).is_ok())
}

// ------------------------------------------------------------------------------------------------------------------
// Programs that hang
// ------------------------------------------------------------------------------------------------------------------

#[test]
fn semaphore_that_nobody_signals() {
    let _alone = alone();
    let device = Device::open("mock://0?queues=2").unwrap();
    let (go, done, buffer) = (device.semaphore(2), device.semaphore(0), device.buffer(64));
    device.fill_on(2, &go.at(3), &done.at(1), &buffer, (0, 64), &[1]).unwrap();
    let waiter = waiting(&done, 1);
    wait_until(|| stall_report().causes.iter().any(|cause| cause.holds_up == 2));
    let report = stall_report();
    explains(
        &report,
        &[
            "queue 1 of mock://0 (fill of 64 bytes) waits for semaphore 0 to reach 3; it is at 2; nobody has promised \
             3",
        ],
    );
    let text = report.to_string();
    assert!(
        text.contains(&format!("{:#x}", go.0.addr())),
        "a program knows a semaphore by its address: {text}"
    );
    let (line, promise) =
        ("1 waits for semaphore 1 of mock://0 to reach 1; it is at 0", "(fill of 64 bytes) is to signal it");
    assert!(text.lines().any(|known| plain(known).contains(line)) && text.contains(promise), "{text}");
    go.signal(3).unwrap();
    assert!(waiter.join().unwrap());
    assert!(stall_report().causes.is_empty());
}

/// An operation is refused, and the program goes on as if it had been taken.
#[test]
fn signal_of_a_submission_that_failed() {
    let _alone = alone();
    let device = Device::open("mock").unwrap();
    let (done, buffer) = (device.semaphore(0), device.buffer(64));
    device.fill(&List::none(), &done.at(1), &buffer, (0, 128), &[1]).unwrap_err();
    let waiter = waiting(&done, 1);
    wait_until(|| !stall_report().causes.is_empty());
    explains(
        &stall_report(),
        &["the host waits for semaphore 0 of mock to reach 1; it is at 0; nobody has promised 1"],
    );
    done.signal(1).unwrap();
    assert!(waiter.join().unwrap());
}

/// A thread that waits for a list is in IREE's own code, and no slot of ours knows of it.
#[test]
fn host_that_waits_for_a_list() {
    let _alone = alone();
    let device = Device::open("mock").unwrap();
    let (first, second) = (device.semaphore(0), device.semaphore(0));
    first.signal(1).unwrap();
    let semaphores = [first.clone(), second.clone()];
    let waiter = std::thread::spawn(move || unsafe {
        let list = List::of(&[(&semaphores[0], 1), (&semaphores[1], 5)]);
        check(sys::iree_hal_semaphore_list_wait(list.raw(), sys::iree_make_timeout_ms(600_000), 0)).is_ok()
    });
    wait_until(|| !stall_report().causes.is_empty());
    let report = stall_report();
    explains(
        &report,
        &["the host waits for semaphore 1 of mock to reach 5; it is at 0; nobody has promised 5"],
    );
    let Reason::Unpromised { waiter: Waiter::Host(_), reached: Some(0), .. } = report.causes[0].reason else {
        panic!("{report}");
    };
    second.signal(5).unwrap();
    assert!(waiter.join().unwrap());
}

#[test]
fn cycle_within_a_device() {
    let _alone = alone();
    let device = Device::open("mock://0?queues=2").unwrap();
    let (a, b, buffer) = (device.semaphore(0), device.semaphore(0), device.buffer(64));
    device.fill_on(1, &a.at(1), &b.at(1), &buffer, (0, 64), &[1]).unwrap();
    device.copy_on(2, &b.at(1), &a.at(1), (&buffer, 0), (&device.buffer(64), 0), 64).unwrap();
    let cause = "a cycle: queue 0 of mock://0 (fill of 64 bytes) waits for semaphore 0 to reach 1; it is at 0; that is \
                 for queue 1 of mock://0 (copy of 64 bytes) to signal; queue 1 of mock://0 (copy of 64 bytes) waits \
                 for semaphore 1 to reach 1; it is at 0; that is for queue 0 of mock://0 (fill of 64 bytes) to signal";
    explains(&stall_report(), &[cause]);
}

/// Checks the cycle of a fill on each of two devices.
#[track_caller]
fn has_a_cycle(first: &str, second: &str) {
    let (one, other) = (Device::open(first).unwrap(), Device::open(second).unwrap());
    let (a, b, buffers) = (one.semaphore(0), other.semaphore(0), [one.buffer(64), other.buffer(64)]);
    one.fill(&b.at(1), &a.at(1), &buffers[0], (0, 64), &[1]).unwrap();
    other.fill(&a.at(1), &b.at(1), &buffers[1], (0, 64), &[1]).unwrap();
    let cause = format!(
        "a cycle: queue 0 of {first} (fill of 64 bytes) waits for semaphore 0 of {second} to reach 1; it is at 0; that \
         is for queue 0 of {second} (fill of 64 bytes) to signal; queue 0 of {second} (fill of 64 bytes) waits for \
         semaphore 0 of {first} to reach 1; it is at 0; that is for queue 0 of {first} (fill of 64 bytes) to signal"
    );
    explains(&stall_report(), &[&cause]);
}

#[test]
fn cycle_across_two_devices() {
    let _alone = alone();
    has_a_cycle("mock://0", "mock://1");
}

#[test]
fn cycle_across_two_drivers() {
    let _alone = alone();
    has_a_cycle("mock://0", "gaudi://emulated");
    has_a_cycle("qaic://emulated", "gaudi://emulated");
}

/// Another driver's semaphore, of which nothing is known but its value.
#[test]
fn semaphore_of_another_driver_that_nobody_signals() {
    let _alone = alone();
    let tracker = Tracker::new();
    let local = Device::open_in("local-task", &tracker).unwrap();
    let device = Device::open("mock").unwrap();
    let (theirs, done, buffer) = (local.semaphore(1), device.semaphore(0), device.buffer(64));
    device.fill(&theirs.at(2), &done.at(1), &buffer, (0, 64), &[1]).unwrap();
    let report = stall_report();
    let cause = "queue 0 of mock (fill of 64 bytes) waits for a semaphore of another driver to reach 2; it is at 1; \
                 whether its own driver has promised 2 is not known here";
    explains(&report, &[cause]);
    assert!(report.to_string().contains(&format!("{:#x}", theirs.0.addr())), "{report}");
    theirs.signal(2).unwrap();
    done.wait(1).unwrap();
}

#[test]
fn device_that_never_answers() {
    let _alone = alone();
    let device = silent("");
    let (a, b, buffer) = (device.semaphore(0), device.semaphore(0), device.buffer(64));
    device.fill_on(1, &List::none(), &a.at(1), &buffer, (0, 64), &[1]).unwrap();
    device.fill_on(2, &a.at(1), &b.at(1), &buffer, (0, 64), &[1]).unwrap();
    let waiter = waiting(&b, 1);
    wait_until(|| stall_report().causes.iter().any(|cause| cause.holds_up == 3));
    let report = stall_report();
    explains(&report, &["the device has had epoch 1 of queue 0 of silent (single transfer or dispatch)"]);
    let Reason::Device(place) = report.causes[0].reason else { panic!("{report}") };
    let operation = report.operation(place).unwrap();
    assert_eq!((operation.stage, operation.epoch), (Stage::OnDevice, Some(1)));
    assert!(operation.age.unwrap() >= Duration::from_millis(100), "{report}");
    drop(device);
    assert!(!waiter.join().unwrap());
}

#[test]
fn full_queue() {
    let _alone = alone();
    let device = silent("?depth=2");
    let (done, buffer) = (device.semaphore(0), device.buffer(64));
    for value in 1..=10 {
        device.fill_on(1, &List::none(), &done.at(value), &buffer, (0, 64), &[1]).unwrap();
    }
    let report = stall_report();
    explains(&report, &["the device has had epoch 1 of queue 0 of silent (single transfer or dispatch)"]);
    assert_eq!(report.causes[0].holds_up, 10);
    assert!(report.to_string().contains("accepted epoch 2 and reported 0, and is full"), "{report}");
}

/// What the device has is named by the functions of its command buffer.
#[test]
fn command_buffer_that_does_not_end_is_named_by_its_functions() {
    let _alone = alone();
    let device = silent("");
    let done = device.semaphore(0);
    let executable = device.load("silent", b"x").unwrap();
    let commands = device.record(0, |commands| unsafe {
        let config = sys::iree_hal_dispatch_config_t {
            workgroup_size: [1; 3],
            workgroup_count: [1; 3],
            ..Default::default()
        };
        let function = sys::iree_hal_executable_function_from_index(0);
        let constants = sys::iree_const_byte_span_t { data: std::ptr::null(), data_length: 0 };
        let list = sys::iree_hal_buffer_ref_list_t { count: 0, values: std::ptr::null() };
        check(sys::iree_hal_command_buffer_dispatch(
            commands,
            executable.0,
            function,
            config,
            constants,
            list,
            0,
        ))
    });
    let commands = commands.unwrap();
    device.execute(1, &List::none(), &done.at(1), &commands, &[]).unwrap();
    let cause =
        "the device has had epoch 1 of queue 0 of silent (command buffer with main_dispatch_0_matmul)";
    explains(&stall_report(), &[cause]);
    drop(device);
}

unsafe extern "C" {
    /// Changes what NVIDIA's library in software does.
    fn emulator_cuda_control(text: *const c_char) -> i32;
}

/// Devices whose work does not end by itself. `driver/qaic.rs` has a network that hangs, and one whose end is never
/// signalled.
#[test]
fn devices_whose_work_does_not_end() {
    // A kernel of the NVIDIA driver fills with it, and a kernel can stall.
    const PATTERN: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
    let _alone = alone();
    for uri in ["mock://0?latency=60s", "nvidia://emulated?fault=stall@1"] {
        let Ok(device) = Device::open(uri) else { panic!("{uri} cannot be opened") };
        let (done, buffer) = (device.semaphore(0), device.local_buffer(4096));
        for value in 1..=3 {
            device.fill(&done.at(value - 1), &done.at(value), &buffer, (0, 4096), &PATTERN).unwrap();
        }
        let waiter = waiting(&done, 3);
        let name = uri.split('?').next().unwrap();
        let cause = |epoch| {
            format!("the device has had epoch {epoch} of queue 0 of {name} (single transfer or dispatch)")
        };
        wait_until(|| {
            let report = stall_report();
            let found = causes(&report);
            (1..=3).any(|epoch| found == [cause(epoch)]) && report.causes[0].holds_up >= 2
        });
        if name == "nvidia://emulated" {
            // No call of CUDA's ends a kernel.
            assert_eq!(unsafe { emulator_cuda_control(c"release".as_ptr()) }, 0);
        }
        drop((device, buffer));
        let _ = waiter.join();
    }
}

#[test]
fn host_call_that_does_not_return_has_promised_its_signals() {
    let _alone = alone();
    let device = Device::open("mock").unwrap();
    let (called, done, buffer) = (device.semaphore(0), device.semaphore(0), device.buffer(64));
    let (go, gone) = mpsc::channel::<()>();
    let call = Box::new(move || {
        gone.recv().unwrap();
        null_mut()
    });
    device.host_call(&List::none(), &called.at(1), 0, call).unwrap();
    device.fill(&called.at(1), &done.at(1), &buffer, (0, 64), &[1]).unwrap();
    let report = stall_report();
    explains(&report, &["the host has been at queue 0 of mock (host call)"]);
    assert_eq!(report.causes[0].holds_up, 2);
    go.send(()).unwrap();
    done.wait(1).unwrap();
}

/// A call that has not begun has promised its signals too.
#[test]
fn host_call_that_waits_has_promised_its_signals() {
    let _alone = alone();
    let device = Device::open("mock").unwrap();
    let (go, called, done) = (device.semaphore(0), device.semaphore(0), device.semaphore(0));
    device.host_call(&go.at(1), &called.at(1), 0, Box::new(null_mut)).unwrap();
    device.barrier(&called.at(1), &done.at(1)).unwrap();
    let report = stall_report();
    explains(
        &report,
        &["queue 0 of mock (host call) waits for semaphore 0 to reach 1; it is at 0; nobody has promised 1"],
    );
    assert_eq!(report.causes[0].holds_up, 2);
    go.signal(1).unwrap();
    done.wait(1).unwrap();
}

/// Memory that others have early, before the work that it is for, is in the way of an allocation that needs some now.
#[test]
fn allocation_that_finds_no_memory() {
    let _alone = alone();
    // A busy machine may take longer to ask than the device takes for the work.
    assert!([3, 60].into_iter().any(is_explained_while_it_waits));
}

/// True if the report came while the allocation waited, for so many seconds.
fn is_explained_while_it_waits(latency: u64) -> bool {
    const PART: usize = 400 << 10;
    let device = format!("mock://0?memory=8m&queues=1&latency={latency}s");
    let device = Device::open_in_group(&device).unwrap();
    // All of the device's memory but the pool's one slab.
    let rest: Vec<_> = (0..7).map(|_| device.buffer(1 << 20)).collect();
    let (chain, now) = (device.semaphore(0), device.semaphore(0));
    device.fill(&List::none(), &chain.at(1), &rest[0], (0, 64), &[1]).unwrap();
    let early: Vec<_> =
        (1..3).map(|at| device.alloca(&chain.at(at), &chain.at(at + 1), PART).unwrap()).collect();
    let buffer = device.alloca(&List::none(), &now.at(1), PART).unwrap();
    let report = stall_report();
    let waits = chain.value().unwrap() == 0;
    if waits {
        explains(
            &report,
            &[
                "the device has had epoch 1 of queue 0 of mock://0 (single transfer or dispatch)",
                "the host has been at queue 0 of mock://0 (allocation that waits for memory)",
            ],
        );
    }
    device.dealloca(&chain.at(3), &chain.at(4), &early[0]).unwrap();
    now.wait(1).unwrap();
    drop((buffer, early));
    waits
}

// ------------------------------------------------------------------------------------------------------------------
// Asking at bad moments
// ------------------------------------------------------------------------------------------------------------------

#[test]
fn device_that_shuts_down_is_in_the_report() {
    let _alone = alone();
    let device = silent("");
    let (done, buffer) = (device.semaphore(0), device.buffer(64));
    device.fill_on(1, &List::none(), &done.at(1), &buffer, (0, 64), &[1]).unwrap();
    ABORT_WAITS.store(true, Ordering::SeqCst);
    drop(buffer);
    let closing = std::thread::spawn(move || drop(device));
    wait_until(|| stall_report().to_string().contains("being released"));
    explains(
        &stall_report(),
        &["the device has had epoch 1 of queue 0 of silent (single transfer or dispatch)"],
    );
    ABORT_WAITS.store(false, Ordering::SeqCst);
    closing.join().unwrap();
    let report = stall_report();
    assert!(report.process.devices.iter().all(|device| !device.name.starts_with("silent")), "{report}");
}

/// Two threads report while others submit, and devices come and go. No report claims what is not so.
#[test]
fn reports_beside_threads_at_full_speed() {
    let _alone = alone();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for uris in [["mock://0", "mock://1"], ["mock://0?queues=4", "gaudi://emulated?seed=9103"]] {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let [one, other] = uris.map(|uri| Device::open(uri).unwrap());
                    let buffers = [one.buffer(64), other.buffer(64)];
                    for _ in 0..20 {
                        let (a, b) = (one.semaphore(0), other.semaphore(0));
                        for value in 1..=16 {
                            one.fill(&b.at(value - 1), &a.at(value), &buffers[0], (0, 64), &[1]).unwrap();
                            other.fill(&a.at(value), &b.at(value), &buffers[1], (0, 64), &[1]).unwrap();
                        }
                        b.wait(16).unwrap();
                    }
                }
            });
        }
        let reporters: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let end = Instant::now() + Duration::from_secs(3);
                    while Instant::now() < end {
                        let report = stall_report();
                        let wrong =
                            |reason: &Reason| matches!(reason, Reason::Unpromised { .. } | Reason::Cycle(_));
                        assert!(!report.causes.iter().any(|cause| wrong(&cause.reason)), "{report}");
                    }
                })
            })
            .collect();
        let outcomes: Vec<_> = reporters.into_iter().map(|reporter| reporter.join()).collect();
        stop.store(true, Ordering::Relaxed);
        outcomes.into_iter().for_each(|outcome| outcome.unwrap());
    });
}

/// Two devices of one URI have names of their own.
#[test]
fn devices_of_one_uri_are_told_apart() {
    let _alone = alone();
    let devices = ["mock", "mock", "mock"].map(|uri| Device::open(uri).unwrap());
    let names =
        || -> Vec<String> { stall_report().process.devices.into_iter().map(|device| device.name).collect() };
    assert_eq!(names(), ["mock", "mock #2", "mock #3"]);
    let [first, second, third] = devices;
    drop(second);
    assert_eq!(names(), ["mock", "mock #3"]);
    let again = Device::open("mock").unwrap();
    assert_eq!(names(), ["mock", "mock #3", "mock #2"]);
    drop((first, third, again));
}

#[test]
fn parameter_takes_seconds() {
    for wrong in ["0", "soon", "-1", "1e9"] {
        let uri = format!("mock://0?stall_report={wrong}");
        Device::cannot_be_opened(
            &uri,
            Code::InvalidArgument,
            "it takes a number of seconds from 0.1 to 1000000",
        );
    }
}

/// The C function's text or JSON.
fn through_c(format: u32) -> Result<String, common::Error> {
    unsafe {
        let mut builder = sys::iree_string_builder_t::default();
        sys::iree_string_builder_initialize(sys::iree_allocator_system(), &raw mut builder);
        let outcome = check(hal_driver::hal_drivers_stall_report(format, &raw mut builder));
        let text = outcome.map(|()| {
            let bytes = std::slice::from_raw_parts(builder.buffer.cast::<u8>(), builder.size);
            String::from_utf8(bytes.to_vec()).unwrap()
        });
        sys::iree_string_builder_deinitialize(&raw mut builder);
        text
    }
}

#[test]
fn c_function_gives_text_and_json_and_refuses_the_rest() {
    let _alone = alone();
    let device = Device::open("mock").unwrap();
    let (go, done) = (device.semaphore(0), device.semaphore(0));
    device.barrier(&go.at(1), &done.at(1)).unwrap();
    let text = through_c(0).unwrap();
    assert!(text.starts_with("stall report: 1 of 1 operations"), "{text}");
    let json = through_c(1).unwrap();
    assert!(json.contains("\"kind\": \"unpromised\"") && json.contains("\"device\": \"mock\""), "{json}");
    assert_eq!(through_c(2).unwrap_err().code, Code::InvalidArgument);
    let refused = check(unsafe { hal_driver::hal_drivers_stall_report(0, null_mut()) });
    assert_eq!(refused.unwrap_err().code, Code::InvalidArgument);
}

// ------------------------------------------------------------------------------------------------------------------
// Without asking
// ------------------------------------------------------------------------------------------------------------------

/// Runs a test of this program again, alone and with variables, and returns what it writes. The test may
/// [wait](is_told_to_go_on) until its text holds for `seen`.
fn run_alone(test: &str, variables: &[(&str, &str)], seen: impl Fn(&str) -> bool) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env("STALL_ALONE", "1").envs(variables.iter().copied());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (sender, lines) = mpsc::channel();
    let read = |from: Box<dyn Read + Send>| {
        let sender = sender.clone();
        std::thread::spawn(move || {
            BufReader::new(from).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        })
    };
    let readers = [read(Box::new(output.unwrap())), read(Box::new(errors.unwrap()))];
    drop(sender);
    let mut text = String::new();
    while let Ok(line) = lines.recv_timeout(Duration::from_secs(60)) {
        text += &line;
        text.push('\n');
        if seen(&text) {
            input = None;
        }
    }
    drop(input);
    let ended = child.wait().unwrap();
    assert!(ended.success() && text.contains("1 passed"), "{text}");
    readers.into_iter().for_each(|reader| drop(reader.join().unwrap()));
    text
}

/// In a program that was run again: waits until what it has written is seen.
fn is_told_to_go_on() {
    assert_eq!(std::io::stdin().read_to_end(&mut Vec::new()).unwrap(), 0);
}

fn is_alone() -> bool {
    std::env::var_os("STALL_ALONE").is_some()
}

#[test]
fn watched_device_prints_a_report_by_itself() {
    if !is_alone() {
        let ages = |text: &str| -> Vec<f64> {
            let ages = text.split("blocked for ").skip(1);
            ages.map(|rest| rest.split(' ').next().unwrap().parse().unwrap()).collect()
        };
        let test = "watched_device_prints_a_report_by_itself";
        let text = run_alone(test, &[], |text| ages(text).len() == 3);
        let cause = "- queue 0 of mock://0 (fill of 64 bytes) waits for semaphore 0 to reach 1; it is at 0; nobody has \
                     promised 1";
        assert!(text.lines().any(|line| plain(line) == cause), "{text}");
        // Again after twice the time, and then after four times that: not without end.
        let ages = ages(&text);
        assert!(ages[0] >= 0.5 && ages.windows(2).all(|pair| pair[1] >= 2.0 * pair[0] - 0.2), "{text}");
        return;
    }
    let device = Device::open("mock://0?stall_report=0.5").unwrap();
    let (go, done, buffer) = (device.semaphore(0), device.semaphore(0), device.buffer(64));
    device.fill(&go.at(1), &done.at(1), &buffer, (0, 64), &[1]).unwrap();
    is_told_to_go_on();
    go.signal(1).unwrap();
    done.wait(1).unwrap();
}

/// A device that works, and stands still for less than the limit, prints nothing.
#[test]
fn watched_device_that_works_prints_nothing() {
    const PAUSED: &str = "the machine has paused this program";
    if !is_alone() {
        let run = || run_alone("watched_device_that_works_prints_nothing", &[], |_| true);
        let text = std::iter::repeat_with(run).find(|text| !text.contains(PAUSED)).unwrap();
        assert!(!text.contains("stall report: "), "{text}");
        return;
    }
    const LIMIT: Duration = Duration::from_secs(2);
    let device = Device::open("mock://0?stall_report=2").unwrap();
    let (done, buffer, begin) = (device.semaphore(0), device.buffer(64), Instant::now());
    for value in 1.. {
        let step = Instant::now();
        let waiter = waiting(&done, value);
        std::thread::sleep(LIMIT / 20);
        device.fill(&List::none(), &done.at(value), &buffer, (0, 64), &[1]).unwrap();
        assert!(waiter.join().unwrap());
        if step.elapsed() >= LIMIT {
            return println!("{PAUSED}");
        }
        if begin.elapsed() > 3 * LIMIT / 2 {
            return;
        }
    }
}

#[test]
fn watched_device_stands_still_for_none_of_the_time_in_which_its_process_is_stopped() {
    if !is_alone() {
        let test = "watched_device_stands_still_for_none_of_the_time_in_which_its_process_is_stopped";
        let text = run_alone(test, &[], |_| true);
        assert!(!text.contains("stall report: "), "{text}");
        return;
    }
    let device = Device::open("mock://0?stall_report=20").unwrap();
    let (go, done, buffer) = (device.semaphore(0), device.semaphore(0), device.buffer(64));
    device.fill(&go.at(1), &done.at(1), &buffer, (0, 64), &[1]).unwrap();
    // The watching thread looks once in a second.
    std::thread::sleep(Duration::from_secs(2));
    stop(21);
    std::thread::sleep(Duration::from_secs(2));
    go.signal(1).unwrap();
    done.wait(1).unwrap();
}

static HANDLED: AtomicBool = AtomicBool::new(false);

extern "C" fn handled(_number: libc::c_int) {
    HANDLED.store(true, Ordering::SeqCst);
}

/// A signal wakes the watching thread, also while the thread that gets it holds the lock of the program's output; the
/// program's own handler is called too, and a forked process prints nothing.
#[test]
fn sigquit_prints_a_report() {
    if !is_alone() {
        let asked = [("HAL_REPORT_ON_SIGQUIT", "1")];
        // The report's last line.
        let last = |text: &str| text.lines().any(|line| line == "    nobody has promised 9");
        let text = run_alone("sigquit_prints_a_report", &asked, last);
        let cause = "- the host waits for semaphore 0 of mock to reach 9; it is at 0; nobody has promised 9";
        assert_eq!(text.lines().filter(|line| plain(line) == cause).count(), 1, "{text}");
        assert_eq!(text.matches("stall report: ").count(), 1, "{text}");
        return;
    }
    unsafe { libc::signal(libc::SIGQUIT, handled as *const () as usize) };
    let device = Device::open("mock").unwrap();
    let never = device.semaphore(0);
    let waiter = waiting(&never, 9);
    wait_until(|| !stall_report().causes.is_empty());
    let child = unsafe { libc::fork() };
    if child == 0 {
        unsafe {
            libc::raise(libc::SIGQUIT);
            libc::_exit(0);
        }
    }
    let mut status = -1;
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    let output = std::io::stderr().lock();
    unsafe { libc::raise(libc::SIGQUIT) };
    is_told_to_go_on();
    drop(output);
    assert!(HANDLED.load(Ordering::SeqCst));
    never.signal(9).unwrap();
    assert!(waiter.join().unwrap());
}

#[test]
fn variable_with_another_value_is_refused() {
    if !is_alone() {
        run_alone("variable_with_another_value_is_refused", &[("HAL_REPORT_ON_SIGQUIT", "yes")], |_| true);
        return;
    }
    Device::cannot_be_opened("mock", Code::InvalidArgument, "HAL_REPORT_ON_SIGQUIT is \"yes\"; it takes 1");
}
