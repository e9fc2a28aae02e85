// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A process that is stopped and goes on, and a thread that is cancelled.

use crate::common::forbidden::is_alone_for;
use crate::common::{Device, File, List, Result, Tracker, check, new_pool, own_pool, stop, view};
use crate::exhaustion::{self, imports, profiles, records, streams};
use crate::limits::{Program, work};
use crate::processes::DEVICES;
use hal_semaphore::Code;
use hal_sys as sys;
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static HOLDS: AtomicBool = AtomicBool::new(false);
static IS_HELD: AtomicBool = AtomicBool::new(false);

/// The thread that executes what an emulated card is given, if it is the only one of a driver's cards.
fn worker(driver: &str) -> libc::pid_t {
    let name = format!("{driver}-0\n");
    let mut threads = std::fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
    let is_it =
        |thread: &PathBuf| std::fs::read_to_string(thread.join("comm")).is_ok_and(|comm| comm == name);
    let thread = threads.find(is_it).unwrap();
    thread.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// A thread of this process stands still, until this is dropped.
struct HeldThread;

impl HeldThread {
    fn new(thread: libc::pid_t) -> Self {
        extern "C" fn stand_still(_signal: libc::c_int) {
            IS_HELD.store(true, Ordering::SeqCst);
            while HOLDS.load(Ordering::SeqCst) {
                // A handler of a signal may call it.
                unsafe { libc::usleep(1000) };
            }
            IS_HELD.store(false, Ordering::SeqCst);
        }
        // It sleeps without a lock.
        let stat = format!("/proc/self/task/{thread}/stat");
        until(|| std::fs::read_to_string(&stat).unwrap().contains(") S "));
        HOLDS.store(true, Ordering::SeqCst);
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = stand_still as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_RESTART;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
            assert_eq!(libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1), 0);
        }
        until(|| IS_HELD.load(Ordering::SeqCst));
        Self
    }
}

impl Drop for HeldThread {
    fn drop(&mut self) {
        HOLDS.store(false, Ordering::SeqCst);
        until(|| !IS_HELD.load(Ordering::SeqCst));
    }
}

fn until(holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Two cards have a dispatch each when their process is stopped for longer than a dispatch may take: one that ends as
/// soon as its card goes on, and one that never ends, on a card with this fault. An emulated card is stopped with the
/// process that it is in, as no card of silicon is.
fn stop_during_dispatches(test: &str, card: &str, fault: &str, (code, text): (Code, &str)) {
    let Some(card) = is_alone_for(test, &[card]) else { return };
    let driver = card.split(':').next().unwrap();
    let (uri, program) = (format!("{card}&workers=1&timeout=5"), Program::read(&card));
    let device = Device::open(&uri).unwrap();
    work(&device, &program).unwrap();
    let worker = worker(driver);
    let faulty = Device::open(&format!("{uri}&fault={fault}")).unwrap();
    let [dispatch, endless] = [&device, &faulty].map(|device| {
        let executable = device.load(program.format, &program.bytes).unwrap();
        let (first, second, done) = (device.buffer(8), device.buffer(8), device.semaphore(0));
        move || {
            let bindings = [&first.subspan(0, 8), &second.subspan(0, 8)];
            device.dispatch(1, &List::none(), &done.at(1), &executable, &[], &bindings).unwrap();
            done.clone()
        }
    });
    let endless = endless();
    let held = HeldThread::new(worker);
    let done = dispatch();
    // The drivers' threads have both by then, and their time goes on. If they had not, less would be tried here.
    std::thread::sleep(Duration::from_millis(300));
    stop(5);
    // Who counts the time of the stop gives up by then.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!((done.value().unwrap(), endless.value().unwrap()), (0, 0));
    drop(held);
    done.wait_for(1, 60_000).unwrap();
    let failed = endless.wait_for(1, 60_000).unwrap_err();
    assert!(failed.code == code && failed.text.contains(text), "{failed:?}");
}

#[test]
fn dispatch_of_gaudi_has_its_timeout_beside_the_time_in_which_the_process_is_stopped() {
    let test = "stops::dispatch_of_gaudi_has_its_timeout_beside_the_time_in_which_the_process_is_stopped";
    stop_during_dispatches(
        test,
        "gaudi://emulated?generation=gaudi2",
        "hang:1",
        (Code::Aborted, "did not end within 5 s"),
    );
}

#[test]
fn dispatch_of_qaic_has_its_timeout_beside_the_time_in_which_the_process_is_stopped() {
    let test = "stops::dispatch_of_qaic_has_its_timeout_beside_the_time_in_which_the_process_is_stopped";
    stop_during_dispatches(
        test,
        "qaic://emulated?cards=1",
        "hang:1",
        (Code::Aborted, "a dispatch has not ended in time"),
    );
}

/// The first tile that starts there is the one that loads.
#[test]
fn dispatch_of_tenstorrent_has_its_timeout_beside_the_time_in_which_the_process_is_stopped() {
    let test =
        "stops::dispatch_of_tenstorrent_has_its_timeout_beside_the_time_in_which_the_process_is_stopped";
    stop_during_dispatches(
        test,
        "tenstorrent://emulated?board=n150",
        "hang:2",
        (Code::DeadlineExceeded, "has not ended in 5 s"),
    );
}

/// A device that was released before its work has ended would leave memory to the program that the work still uses.
#[test]
fn release_of_a_device_waits_for_its_work_beside_the_time_in_which_the_process_is_stopped() {
    let test =
        "stops::release_of_a_device_waits_for_its_work_beside_the_time_in_which_the_process_is_stopped";
    let Some(uri) = is_alone_for(test, &["gaudi://emulated?workers=1&timeout=60"]) else { return };
    let (device, program) = (Device::open(&uri).unwrap(), Program::read(&uri));
    work(&device, &program).unwrap();
    let executable = device.load(program.format, &program.bytes).unwrap();
    let (first, second, done) = (device.buffer(8), device.buffer(8), device.semaphore(0));
    let held = HeldThread::new(worker("gaudi"));
    let bindings = [&first.subspan(0, 8), &second.subspan(0, 8)];
    device.dispatch(1, &List::none(), &done.at(1), &executable, &[], &bindings).unwrap();
    drop((first, second, executable));
    let release = std::thread::spawn(|| drop(device));
    // It waits for its work by then. If it did not, less would be tried here.
    std::thread::sleep(Duration::from_millis(300));
    // Longer than a device waits for its work.
    stop(21);
    std::thread::sleep(Duration::from_secs(1));
    assert!(!release.is_finished());
    drop(held);
    release.join().unwrap();
}

unsafe extern "C-unwind" {
    fn pthread_create(
        thread: *mut libc::pthread_t,
        attributes: *const libc::pthread_attr_t,
        start: unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void,
        argument: *mut c_void,
    ) -> libc::c_int;
    fn pthread_testcancel();
}

/// Does something on a thread that is to be cancelled: libc ends it by unwinding, wherever it next calls a function of
/// libc's that uses files or waits. So nothing but calls of drivers may do that. True if the thread ends afterwards.
fn on_a_cancelled_thread(body: impl FnOnce()) -> bool {
    struct Body<F>(Option<F>);
    unsafe extern "C-unwind" fn start<F: FnOnce()>(argument: *mut c_void) -> *mut c_void {
        unsafe {
            assert_eq!(libc::pthread_cancel(libc::pthread_self()), 0);
            let body = (*argument.cast::<Body<F>>()).0.take();
            body.unwrap()();
            // Here nothing is left that has to be dropped.
            pthread_testcancel();
        }
        std::ptr::null_mut()
    }
    fn of<F: FnOnce()>(_: &Body<F>) -> unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void {
        start::<F>
    }
    let mut body = Body(Some(body));
    let (mut thread, mut ended) = (0, std::ptr::null_mut());
    unsafe {
        let start = of(&body);
        assert_eq!(pthread_create(&raw mut thread, std::ptr::null(), start, (&raw mut body).cast()), 0);
        assert_eq!(libc::pthread_join(thread, &raw mut ended), 0);
    }
    // `PTHREAD_CANCELED`
    ended.addr() == usize::MAX
}

/// A host allocator of a program that reads a file, as one that logs would write one.
fn reading() -> sys::iree_allocator_t {
    unsafe extern "C" fn control(
        _: *mut c_void,
        command: sys::iree_allocator_command_t,
        parameters: *const c_void,
        pointer: *mut *mut c_void,
    ) -> sys::iree_status_t {
        drop(std::fs::read("/proc/self/comm"));
        unsafe {
            let system = sys::iree_allocator_system();
            system.ctl.unwrap()(system.self_, command, parameters, pointer)
        }
    }
    sys::iree_allocator_t { self_: std::ptr::null_mut(), ctl: Some(control) }
}

/// Calls that use the host allocator of their device: of a program's own pool, and of an event.
fn allocations(device: &Device) -> Result {
    let (mut buffer, mut event) = (std::ptr::null_mut(), std::ptr::null_mut());
    unsafe {
        check(sys::iree_hal_event_create(device.0, u64::MAX, 0, &raw mut event))?;
        sys::iree_hal_event_release(event);
        let pool = own_pool(device)?;
        let (no_waits, forever) = (std::ptr::null(), sys::iree_infinite_timeout());
        let params = crate::common::params();
        let made =
            check(sys::iree_hal_pool_allocate_buffer(pool, params, 64, no_waits, forever, &raw mut buffer));
        sys::iree_hal_buffer_release(buffer);
        sys::iree_hal_pool_release(pool);
        made
    }
}

/// Recording that is refused.
fn refusals(device: &Device) {
    let config = sys::iree_hal_dispatch_config_t { workgroup_count: [1; 3], ..Default::default() };
    let (no_executable, function) = (std::ptr::null_mut(), Default::default());
    let (constants, bindings) = Default::default();
    let record = |commands| unsafe {
        check(sys::iree_hal_command_buffer_dispatch(
            commands,
            no_executable,
            function,
            config,
            constants,
            bindings,
            0,
        ))
    };
    let refused = device.record_for(1, 0, record);
    assert_eq!(refused.map(drop).unwrap_err().code, Code::InvalidArgument);
}

/// Opens a device, makes calls of each kind, and releases it.
fn call_everything(
    uri: &str,
    program: &Program,
    pool: *mut sys::iree_async_proactor_pool_t,
    file: &File,
) -> Result {
    let device = Device::open_with_pool(uri, pool)?;
    work(&device, program)?;
    refusals(&device);
    let chain = device.semaphore(0);
    let mut steps = exhaustion::Program { device: device.again(), chain, value: 0 };
    let [first, second] = [device.buffer(4096), device.buffer(4096)];
    imports(&mut steps)?;
    streams(&mut steps)?;
    records(&mut steps, [&first, &second])?;
    profiles(&mut steps, &first)?;
    steps.step(|device, waits, signals| device.read_file(waits, signals, file, 0, &first, 64))?;
    steps.step(|device, waits, signals| device.write_file(waits, signals, &first, file, 64, 64))?;
    steps.step(|device, waits, signals| device.host_call(waits, signals, 0, Box::new(std::ptr::null_mut)))?;
    first.write(0, &[1, 2, 3]);
    assert_eq!(first.read()[..3], [1, 2, 3]);
    let never = device.semaphore(0);
    // For long enough to look whether its proactor still polls.
    assert_eq!(never.wait_for(1, 1_500).unwrap_err().code, Code::DeadlineExceeded);
    assert_eq!(never.value()?, 0);
    // A callback of the program's own may do what it likes, in the call that makes it.
    never.when(1, || drop(std::fs::read("/proc/self/comm")));
    never.signal(1)?;
    let mut point = sys::iree_hal_external_timepoint_t::default();
    let kind = sys::IREE_HAL_EXTERNAL_TIMEPOINT_TYPE_ASYNC_PRIMITIVE;
    unsafe {
        check(sys::iree_hal_semaphore_export_timepoint(never.0, 2, u64::MAX, kind, 0, &raw mut point))?;
        check(sys::iree_hal_device_trim(device.0))?;
    }
    never.fail(Code::DataLoss, "on purpose");
    device.query("hal.device", "concurrency").map(drop)
}

#[test]
fn thread_that_is_cancelled_ends_behind_its_calls() {
    let test = "stops::thread_that_is_cancelled_ends_behind_its_calls";
    let Some(uri) = is_alone_for(test, &DEVICES) else { return };
    let (program, file, (pool, _)) = (Program::read(&uri), File::with(&[7; 128]), new_pool().unwrap());
    // Registers the drivers.
    crate::common::registry();
    let mut outcome = None;
    assert!(on_a_cancelled_thread(|| outcome = Some(call_everything(&uri, &program, pool, &file))));
    outcome.unwrap().unwrap();
    let mut device = Device::create(view(&uri), pool, reading()).unwrap();
    device.join(&Tracker::new()).unwrap();
    let mut outcome = None;
    assert!(on_a_cancelled_thread(|| outcome = Some(allocations(&device))));
    outcome.unwrap().unwrap();
    drop(device);
    unsafe { sys::iree_async_proactor_pool_release(pool) };
}
