// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Timepoints of semaphores: what IREE's headers promise of them, whatever moves the semaphore.

use crate::common::{Buffer, Device, File, List, Result, Semaphore, check, failure};
use hal_semaphore::{Code, MAX_VALUE};
use hal_sys as sys;
use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

fn base(semaphore: &Semaphore) -> *mut sys::iree_async_semaphore_t {
    semaphore.0.cast()
}

/// Registers a timepoint that calls once when a semaphore reaches a value or fails. IREE has the storage until
/// then.
fn on(semaphore: &Semaphore, value: u64, call: impl FnOnce(Result) + Send + 'static) -> *mut Timepoint {
    let timepoint = Box::new(Timepoint { raw: Default::default(), call: Some(Box::new(call)) });
    let timepoint = Box::into_raw(timepoint);
    unsafe {
        (*timepoint).raw.callback = Some(reached);
        (*timepoint).raw.user_data = timepoint.cast();
        let raw = &raw mut (*timepoint).raw;
        check(sys::iree_async_semaphore_acquire_timepoint(base(semaphore), value, raw)).unwrap();
    }
    timepoint
}

#[repr(C)]
struct Timepoint {
    raw: sys::iree_async_semaphore_timepoint_t,
    call: Option<Box<dyn FnOnce(Result) + Send>>,
}

unsafe extern "C" fn reached(
    user_data: *mut c_void,
    _timepoint: *mut sys::iree_async_semaphore_timepoint_t,
    status: sys::iree_status_t,
) {
    let mut timepoint = unsafe { Box::from_raw(user_data.cast::<Timepoint>()) };
    timepoint.call.take().unwrap()(check(status));
}

/// The outcome of a timepoint.
fn outcome_of(semaphore: &Semaphore, value: u64) -> mpsc::Receiver<Result> {
    let (sender, receiver) = mpsc::channel();
    on(semaphore, value, move |outcome| drop(sender.send(outcome)));
    receiver
}

thread_local! {
    static SUBMITTING: Cell<bool> = const { Cell::new(false) };
}

/// A program that holds a lock while it submits, and takes it in its callbacks.
#[derive(Default)]
struct Program {
    lock: Mutex<()>,
    /// True if a callback ran on a thread that was submitting: taking the lock there would deadlock.
    stuck: AtomicBool,
    called: AtomicU64,
}

impl Program {
    fn submit<R>(&self, call: impl FnOnce() -> R) -> R {
        let held = self.lock.lock().unwrap();
        SUBMITTING.with(|submitting| submitting.set(true));
        let result = call();
        SUBMITTING.with(|submitting| submitting.set(false));
        drop(held);
        result
    }

    fn listen(self: &Arc<Self>, semaphore: &Semaphore, value: u64) {
        let program = self.clone();
        on(semaphore, value, move |_| program.take());
    }

    fn take(&self) {
        if SUBMITTING.with(Cell::get) {
            self.stuck.store(true, Ordering::Release);
        } else {
            drop(self.lock.lock().unwrap());
        }
        self.called.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits until so many callbacks have run, and checks that none would have deadlocked.
    #[track_caller]
    fn has_heard(&self, count: u64) {
        let begin = std::time::Instant::now();
        while self.called.load(Ordering::Acquire) < count {
            let called = self.called.load(Ordering::Acquire);
            assert!(begin.elapsed() < SOON, "{called} callbacks of {count}");
            std::thread::yield_now();
        }
        assert!(!self.stuck.load(Ordering::Acquire), "a callback ran on a thread that was submitting");
        assert_eq!(self.called.load(Ordering::Acquire), count, "a callback ran twice");
    }
}

/// Submits an operation that signals `done` at 1, while the program holds its lock.
#[track_caller]
fn submits(device: &Device, submit: impl FnOnce(&Semaphore) -> Result) {
    let (program, done) = (Arc::new(Program::default()), device.semaphore(0));
    program.listen(&done, 1);
    program.submit(|| submit(&done)).unwrap();
    program.has_heard(1);
}

fn failed(device: &Device) -> Semaphore {
    let failed = device.semaphore(0);
    failed.fail(Code::DataLoss, "gone");
    failed
}

#[test]
fn lock_may_be_held_around_a_barrier_that_ends_at_once() {
    let device = Device::open("mock").unwrap();
    submits(&device, |done| device.barrier(&List::none(), &done.at(1)));
}

#[test]
fn lock_may_be_held_around_many_fills() {
    let device = Device::open("mock://0?queues=1&workers=1").unwrap();
    let (program, buffer) = (Arc::new(Program::default()), device.buffer(64));
    let done: Vec<Semaphore> = (0..600).map(|_| device.semaphore(0)).collect();
    for done in &done {
        program.listen(done, 1);
    }
    for done in done.chunks(50) {
        program.submit(|| {
            for done in done {
                device.fill(&List::none(), &done.at(1), &buffer, (0, 64), &[1]).unwrap();
            }
        });
    }
    program.has_heard(600);
}

#[test]
fn lock_may_be_held_around_what_fails_at_once() {
    let device = Device::open("mock").unwrap();
    let (buffer, gone) = (device.buffer(64), failed(&device));
    submits(&device, |done| device.fill(&gone.at(1), &done.at(1), &buffer, (0, 64), &[1]));
    submits(&device, |done| device.barrier(&gone.at(1), &done.at(1)));
    submits(&device, |done| device.alloca(&gone.at(1), &done.at(1), 64).map(drop));
    let file = File::with(&[7; 64]);
    submits(&device, |done| device.read_file(&gone.at(1), &done.at(1), &file, 0, &buffer, 64));
    submits(&device, |done| device.write_file(&gone.at(1), &done.at(1), &buffer, &file, 0, 64));
    let local = device.local_buffer(64);
    submits(&device, |done| device.read_file(&gone.at(1), &done.at(1), &file, 0, &local, 64));
}

#[test]
fn lock_may_be_held_around_a_submission_to_a_lost_device() {
    let device = Device::open("mock://0?fault=lose:1").unwrap();
    let (buffer, first) = (device.buffer(64), device.semaphore(0));
    device.fill(&List::none(), &first.at(1), &buffer, (0, 64), &[1]).unwrap();
    first.wait(1).unwrap_err();
    submits(&device, |done| device.fill(&List::none(), &done.at(1), &buffer, (0, 64), &[1]));
    submits(&device, |done| device.barrier(&List::none(), &done.at(1)));
    submits(&device, |done| device.host_call(&List::none(), &done.at(1), 0, Box::new(null_mut)));
}

#[test]
fn lock_may_be_held_around_a_host_call() {
    let device = Device::open("mock").unwrap();
    submits(&device, |done| device.host_call(&List::none(), &done.at(1), 0, Box::new(null_mut)));
    submits(&device, |done| device.host_call(&List::none(), &done.at(1), 1, Box::new(null_mut)));
    let refuse = || failure(Code::Aborted, "no");
    submits(&device, |done| device.host_call(&List::none(), &done.at(1), 0, Box::new(refuse)));
}

#[test]
fn lock_may_be_held_around_a_host_call_that_is_never_made() {
    let device = Device::open("mock").unwrap();
    let gone = failed(&device);
    submits(&device, |done| device.host_call(&gone.at(1), &done.at(1), 1, Box::new(null_mut)));
    submits(&device, |done| device.host_call(&gone.at(1), &done.at(1), 0, Box::new(null_mut)));
}

#[test]
fn lock_may_be_held_around_memory_that_comes_and_goes() {
    let device = Device::open_in_group("mock").unwrap();
    let mut buffer = None;
    submits(&device, |done| {
        buffer = Some(device.alloca(&List::none(), &done.at(1), 64)?);
        Ok(())
    });
    let buffer: Buffer = buffer.unwrap();
    submits(&device, |done| device.dealloca(&List::none(), &done.at(1), &buffer));
    // There is nothing to deallocate any more.
    submits(&device, |done| device.dealloca(&List::none(), &done.at(1), &buffer));
}

#[test]
fn lock_may_be_held_around_what_is_refused_half_way() {
    let (device, owner) = (Device::open("mock").unwrap(), Device::open("gaudi://emulated").unwrap());
    let (theirs, never, file) = (owner.local_buffer(64), device.semaphore(0), File::with(&[7; 64]));
    // No semaphore can reach this, which is found after the last part was accepted.
    let past = List::of(&[(&never, MAX_VALUE + 1)]);
    for refused in [
        (|device, past, done, theirs, _| Device::fill(device, past, done, theirs, (0, 64), &[1]))
            as fn(&Device, &List, &List, &Buffer, &File) -> Result,
        |device, past, done, theirs, file| Device::read_file(device, past, done, file, 0, theirs, 64),
    ] {
        let (program, done) = (Arc::new(Program::default()), device.semaphore(0));
        program.listen(&done, 1);
        if program.submit(|| refused(&device, &past, &done.at(1), &theirs, &file)).is_err() {
            done.fail(Code::Aborted, "refused");
        }
        program.has_heard(1);
    }
}

#[test]
fn lock_may_be_held_around_what_releases_others() {
    // Each of two devices continues with what the other one waits for.
    let (one, two) = (Device::open("mock://0").unwrap(), Device::open("mock://1").unwrap());
    let (a, b, c) = (one.semaphore(0), two.semaphore(0), one.semaphore(0));
    let program = Arc::new(Program::default());
    for (semaphore, value) in [(&a, 1), (&b, 1), (&c, 1)] {
        program.listen(semaphore, value);
    }
    one.barrier(&b.at(1), &c.at(1)).unwrap();
    two.barrier(&a.at(1), &b.at(1)).unwrap();
    program.submit(|| one.barrier(&List::none(), &a.at(1))).unwrap();
    program.has_heard(3);
}

#[test]
fn device_waits_for_callbacks_that_were_put_off() {
    for _ in 0..50 {
        let device = Device::open("mock").unwrap();
        let (done, called) = (device.semaphore(0), Arc::new(AtomicBool::new(false)));
        let calling = called.clone();
        on(&done, 1, move |outcome| {
            std::thread::sleep(Duration::from_millis(1));
            calling.store(outcome.is_ok(), Ordering::Release);
        });
        device.barrier(&List::none(), &done.at(1)).unwrap();
        drop(device);
        assert!(called.load(Ordering::Acquire));
    }
}

#[test]
fn callback_that_was_put_off_may_let_everything_go() {
    for _ in 0..50 {
        let device = Device::open("mock").unwrap();
        let done = device.semaphore(0);
        let (last, sender) = ((device.again(), done.clone()), mpsc::channel());
        on(&done, 1, move |outcome| {
            drop(last);
            sender.0.send(outcome.is_ok()).unwrap();
        });
        device.barrier(&List::none(), &done.at(1)).unwrap();
        drop((device, done));
        assert!(sender.1.recv_timeout(SOON).unwrap());
    }
}

#[test]
fn semaphore_may_go_in_its_own_callback() {
    let device = Device::open("mock").unwrap();
    let done = device.semaphore(0);
    let (raw, (sender, receiver)) = (done.0, mpsc::channel());
    // The last reference.
    on(&done.clone(), 1, move |outcome| {
        drop(done);
        sender.send(outcome).unwrap();
    });
    unsafe { check(sys::iree_hal_semaphore_signal(raw, 1, std::ptr::null())).unwrap() };
    receiver.recv_timeout(SOON).unwrap().unwrap();
    drop(device);
}

fn has_timepoints(semaphore: &Semaphore) -> bool {
    unsafe {
        let base = base(semaphore);
        sys::iree_slim_mutex_lock(&raw mut (*base).mutex);
        let has_timepoints = !(*base).timepoints_head.is_null();
        sys::iree_slim_mutex_unlock(&raw mut (*base).mutex);
        has_timepoints
    }
}

/// The last reference to a semaphore that is waited for is that of an operation of another device, which fails while
/// another one is submitted.
#[test]
fn lock_may_be_held_around_the_end_of_a_semaphore() {
    let (device, other) = (Device::open("mock").unwrap(), Device::open("mock").unwrap());
    let (program, go, last) = (Arc::new(Program::default()), device.semaphore(0), other.semaphore(0));
    program.listen(&last, 2);
    device.barrier(&List::of(&[(&go, 1), (&last, 1)]), &List::none()).unwrap();
    drop(last);
    program.submit(|| device.barrier(&failed(&device).at(1), &go.at(1))).unwrap();
    program.has_heard(1);
}

/// Calls deep inside callbacks leave their work to the calls around them, which a waiting callback must not wait for.
#[test]
fn callback_deep_inside_others_that_waits_for_its_own_operation_ends() {
    const DEPTH: usize = 12;
    let device = Device::open("mock").unwrap();
    let mut chain: Vec<Semaphore> = (0..DEPTH).map(|_| device.semaphore(0)).collect();
    let (sender, receiver) = mpsc::channel();
    let (last, inside, done) = (chain.pop().unwrap(), device.again(), device.semaphore(0));
    on(&last, 1, move |_| {
        inside.barrier(&List::none(), &done.at(1)).unwrap();
        sender.send(done.wait_for(1, 60_000)).unwrap();
    });
    let first = chain.into_iter().rev().fold(last, |next, semaphore| {
        on(&semaphore, 1, move |_| next.signal(1).unwrap());
        semaphore
    });
    first.signal(1).unwrap();
    receiver.recv_timeout(2 * SOON).unwrap().unwrap();
}

/// A signal or a failure releases an operation whose callback waits for a thread that waits for the semaphore.
#[test]
fn thread_that_waits_for_a_step_is_woken_before_callbacks_of_what_the_step_releases() {
    let device = Device::open("mock").unwrap();
    let steps: [fn(&Semaphore); 2] =
        [|semaphore| semaphore.signal(1).unwrap(), |semaphore| semaphore.fail(Code::DataLoss, "gone")];
    for step in steps {
        let (semaphore, done) = (device.semaphore(0), device.semaphore(0));
        device.barrier(&semaphore.at(1), &done.at(1)).unwrap();
        let (theirs, (woken, is_woken)) = (semaphore.clone(), mpsc::channel());
        let waiter = std::thread::spawn(move || {
            let _ = theirs.wait(1);
            woken.send(()).unwrap();
        });
        while !has_timepoints(&semaphore) {
            std::thread::yield_now();
        }
        let (sender, called) = mpsc::channel();
        on(&done, 1, move |_| sender.send(is_woken.recv_timeout(SOON)).unwrap());
        step(&semaphore);
        assert_eq!(called.recv().unwrap(), Ok(()), "the thread sleeps until the callback has returned");
        waiter.join().unwrap();
    }
}

/// A frontier of so many axes, of no tracker.
fn frontier(axes: u8) -> Vec<u64> {
    let mut words = vec![u64::from(axes)];
    for axis in 1..=u64::from(axes) {
        words.extend([axis, 1]);
    }
    words
}

fn signal_with(semaphore: &Semaphore, value: u64, axes: u8) -> Result {
    let frontier = frontier(axes);
    assert_eq!(size_of::<sys::iree_async_frontier_t>(), 8);
    unsafe { check(sys::iree_hal_semaphore_signal(semaphore.0, value, frontier.as_ptr().cast())) }
}

fn axes_of(semaphore: &Semaphore) -> u8 {
    unsafe { sys::iree_async_semaphore_query_frontier(base(semaphore), null_mut(), 0) }
}

fn untainted(semaphore: &Semaphore) -> u64 {
    unsafe { sys::iree_async_semaphore_query_untainted_value(base(semaphore)) }
}

#[test]
fn signal_adds_its_frontier() {
    let device = Device::open("mock").unwrap();
    let semaphore = device.semaphore(0);
    signal_with(&semaphore, 1, 3).unwrap();
    assert_eq!((axes_of(&semaphore), untainted(&semaphore)), (3, 1));
    signal_with(&semaphore, 1, 5).unwrap_err();
    assert_eq!(axes_of(&semaphore), 3);
}

#[test]
fn frontier_that_does_not_fit_leaves_its_value_tainted() {
    let device = Device::open("mock").unwrap();
    let semaphore = device.semaphore(0);
    signal_with(&semaphore, 1, 3).unwrap();
    signal_with(&semaphore, 2, 200).unwrap();
    assert_eq!((semaphore.value().unwrap(), axes_of(&semaphore)), (2, 3));
    assert_eq!(untainted(&semaphore), 1);
}

#[test]
fn failure_takes_no_taint_away() {
    let device = Device::open("mock").unwrap();
    let (semaphore, gone) = (device.semaphore(10), failed(&device));
    unsafe { sys::iree_async_semaphore_mark_tainted_above(base(&semaphore), 7) };
    device.barrier(&gone.at(1), &semaphore.at(11)).unwrap();
    semaphore.wait(11).unwrap_err();
    // After every other barrier's callbacks.
    let _ = outcome_of(&semaphore, 11).recv_timeout(SOON).unwrap();
    drop(device);
    assert_eq!(untainted(&semaphore), 7);
}

#[test]
fn value_that_the_device_signals_is_untainted() {
    let device = Device::open_in_group("mock").unwrap();
    let (done, buffer) = (device.semaphore(0), device.buffer(64));
    let receiver = outcome_of(&done, 1);
    device.fill(&List::none(), &done.at(1), &buffer, (0, 64), &[1]).unwrap();
    receiver.recv_timeout(SOON).unwrap().unwrap();
    assert_eq!((untainted(&done), axes_of(&done)), (1, 1));
}

#[test]
fn value_that_was_waited_for_can_be_read() {
    let device = Device::open("mock").unwrap();
    let semaphore = device.semaphore(0);
    let steps = 300_000;
    std::thread::scope(|scope| {
        scope.spawn(|| (1..=steps).for_each(|value| semaphore.signal(value).unwrap()));
        let mut next = 1;
        while next <= steps {
            let mut raw = base(&semaphore);
            let waited = unsafe {
                let (mode, now) = (sys::IREE_ASYNC_WAIT_MODE_ALL, sys::iree_make_timeout_ms(0));
                let allocator = sys::iree_allocator_system();
                let mode = sys::iree_async_wait_mode_t::try_from(mode).unwrap();
                check(sys::iree_async_semaphore_multi_wait(
                    mode,
                    &raw mut raw,
                    &raw const next,
                    1,
                    now,
                    0,
                    allocator,
                ))
            };
            if waited.is_ok() {
                let value = semaphore.value().unwrap();
                assert!(value >= next, "waited for {next}, and it is {value}");
                next = value + 1;
            }
        }
    });
}

/// Runs a closure in the first callback of a failure, when the failure is visible and the driver has not been
/// notified yet.
fn as_it_fails<R: Send + 'static>(
    semaphore: &Semaphore,
    call: impl FnOnce(&Semaphore) -> R + Send + 'static,
) -> R {
    let (sender, receiver) = mpsc::channel();
    let theirs = semaphore.clone();
    on(semaphore, MAX_VALUE, move |outcome| {
        assert_eq!(outcome.unwrap_err().code, Code::DataLoss);
        assert_eq!(theirs.value().unwrap_err().code, Code::DataLoss);
        sender.send(call(&theirs)).unwrap();
    });
    semaphore.fail(Code::DataLoss, "gone");
    receiver.recv_timeout(SOON).unwrap()
}

#[test]
fn signal_in_the_callback_of_a_failure_is_refused_with_it() {
    let device = Device::open("mock").unwrap();
    let semaphore = device.semaphore(5);
    let refused = as_it_fails(&semaphore, |semaphore| semaphore.signal(6)).unwrap_err();
    assert_eq!(refused.code, Code::DataLoss);
}

#[test]
fn work_that_comes_in_the_callback_of_a_failure_fails() {
    let device = Device::open("mock").unwrap();
    let (semaphore, done) = (device.semaphore(5), device.semaphore(0));
    let (theirs, after) = (device.again(), done.clone());
    // A wait that is submitted after a failure fails, whether or not its value was reached.
    as_it_fails(&semaphore, move |semaphore| theirs.barrier(&semaphore.at(5), &after.at(1))).unwrap();
    assert_eq!(done.wait(1).map_err(|error| error.code), Err(Code::DataLoss));
}

#[test]
fn work_that_waits_when_a_semaphore_fails_fails() {
    let device = Device::open("mock").unwrap();
    let (go, semaphore, done) = (device.semaphore(0), device.semaphore(0), device.semaphore(0));
    device.barrier(&go.at(1), &semaphore.at(1)).unwrap();
    device.barrier(&semaphore.at(1), &done.at(1)).unwrap();
    // The operation that would have signalled the value comes too late.
    as_it_fails(&semaphore, move |_| go.signal(1)).unwrap();
    assert_eq!(done.wait(1).map_err(|error| error.code), Err(Code::DataLoss));
}

#[test]
fn every_semaphore_of_a_host_call_is_notified_of_its_end() {
    let device = Device::open("mock").unwrap();
    let (one, two) = (device.semaphore(0), device.semaphore(0));
    let theirs = one.clone();
    let call = Box::new(move || {
        theirs.fail(Code::DataLoss, "gone");
        null_mut()
    });
    device.host_call(&List::none(), &List::of(&[(&one, 1), (&two, 1)]), 0, call).unwrap();
    let receiver = outcome_of(&two, 1);
    assert_eq!(one.wait(1).unwrap_err().code, Code::DataLoss);
    assert!(receiver.recv_timeout(SOON).is_ok(), "the other one is never notified");
}

#[test]
fn status_without_text_is_a_failure_too() {
    let device = Device::open("mock").unwrap();
    let (semaphore, done) = (device.semaphore(0), device.semaphore(0));
    device.barrier(&semaphore.at(1), &done.at(1)).unwrap();
    // A bare code.
    unsafe { sys::iree_hal_semaphore_fail(semaphore.0, Code::Aborted as usize as sys::iree_status_t) };
    assert_eq!(semaphore.value().unwrap_err().code, Code::Aborted);
    assert_eq!(semaphore.signal(1).unwrap_err().code, Code::Aborted);
    assert_eq!(done.wait(1).unwrap_err().code, Code::Aborted);
}

#[test]
fn first_failure_is_reported_to_all_waiters() {
    for step in 0..200 {
        let device = Device::open("mock://0?queues=1").unwrap();
        let (semaphore, gone, after) = (device.semaphore(0), device.semaphore(0), device.semaphore(0));
        device.barrier(&gone.at(1), &semaphore.at(1)).unwrap();
        device.barrier(&semaphore.at(1), &after.at(1)).unwrap();
        let receiver = outcome_of(&semaphore, 1);
        std::thread::scope(|scope| {
            let one = scope.spawn(|| gone.fail(Code::DataLoss, "one"));
            if step % 2 == 0 {
                std::thread::yield_now();
            }
            semaphore.fail(Code::Aborted, "two");
            one.join().unwrap();
        });
        let first = semaphore.value().unwrap_err();
        assert_eq!(semaphore.value().unwrap_err().text, first.text);
        assert_eq!(receiver.recv_timeout(SOON).unwrap().unwrap_err().code, first.code);
        assert_eq!(after.wait(1).unwrap_err().code, first.code);
        assert_eq!(semaphore.signal(2).unwrap_err().code, first.code);
    }
}

#[test]
fn no_timepoint_is_lost_between_a_step_and_its_callbacks() {
    let device = Device::open("mock://0?queues=2&workers=2").unwrap();
    let semaphore = device.semaphore(0);
    let (steps, called) = (2_000_u64, Arc::new(AtomicU64::new(0)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let buffer = device.buffer(64);
            for value in 1..=steps {
                let (waits, signals) = (semaphore.at(value - 1), semaphore.at(value));
                match value % 3 {
                    0 => device.barrier(&waits, &signals).unwrap(),
                    _ => device.fill(&waits, &signals, &buffer, (0, 64), &[1]).unwrap(),
                }
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                for value in 1..=steps {
                    let (called, seen) = (called.clone(), semaphore.clone());
                    on(&semaphore, value, move |outcome| {
                        outcome.unwrap();
                        assert!(seen.value().unwrap() >= value);
                        called.fetch_add(1, Ordering::AcqRel);
                    });
                }
            });
        }
    });
    semaphore.wait(steps).unwrap();
    drop(device);
    assert_eq!(called.load(Ordering::Acquire), 2 * steps);
}

#[test]
fn timepoint_that_was_cancelled_is_not_called() {
    let device = Device::open("mock").unwrap();
    let mut cancelled = 0;
    for _ in 0..500 {
        let (done, called) = (device.semaphore(0), Arc::new(AtomicU64::new(0)));
        let calling = called.clone();
        let timepoint = on(&done, 1, move |_| {
            calling.fetch_add(1, Ordering::AcqRel);
        });
        device.barrier(&List::none(), &done.at(1)).unwrap();
        // A timepoint that is not found in the list is not accessed.
        if unsafe { sys::iree_async_semaphore_cancel_timepoint(base(&done), timepoint.cast()) } {
            cancelled += 1;
            drop(unsafe { Box::from_raw(timepoint) });
            std::thread::yield_now();
            assert_eq!(called.load(Ordering::Acquire), 0);
        } else {
            while called.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
        }
    }
    assert!(cancelled <= 500);
}

#[test]
fn links_relay_between_semaphores_of_any_driver() {
    let (device, local) = (Device::open("mock").unwrap(), Device::open_in_group("local-task").unwrap());
    let chain = [device.semaphore(0), local.semaphore(0), device.semaphore(0)];
    let mut links = [sys::iree_async_semaphore_link_t::default(); 2];
    for (at, link) in links.iter_mut().enumerate() {
        let (from, to) = (base(&chain[at]), base(&chain[at + 1]));
        unsafe { check(sys::iree_async_semaphore_link(from, 1, to, 2 - at as u64, link)).unwrap() };
        if at == 0 {
            // The middle semaphore reaches two, while the second link waits for one.
            assert_eq!(chain[1].value().unwrap(), 0);
        }
    }
    let done = device.semaphore(0);
    device.barrier(&chain[2].at(1), &done.at(1)).unwrap();
    device.barrier(&List::none(), &chain[0].at(1)).unwrap();
    done.wait(1).unwrap();
    assert_eq!(chain[1].value().unwrap(), 2);
}

#[test]
fn link_relays_a_failure() {
    let device = Device::open("mock").unwrap();
    let (source, target, done) = (device.semaphore(0), device.semaphore(0), device.semaphore(0));
    let mut link = sys::iree_async_semaphore_link_t::default();
    unsafe {
        check(sys::iree_async_semaphore_link(base(&source), 1, base(&target), 1, &raw mut link)).unwrap();
    }
    device.barrier(&target.at(1), &done.at(1)).unwrap();
    device.barrier(&failed(&device).at(1), &source.at(1)).unwrap();
    assert_eq!(done.wait(1).unwrap_err().code, Code::DataLoss);
    assert!(!unsafe { sys::iree_async_semaphore_unlink(&raw mut link) });
}

#[test]
fn wait_for_all_or_any_takes_semaphores_of_any_driver() {
    let (device, other) = (Device::open("mock://0").unwrap(), Device::open("mock://1").unwrap());
    let local = Device::open_in_group("local-task").unwrap();
    let semaphores = [device.semaphore(0), other.semaphore(0), local.semaphore(0)];
    let wait = |mode: u32| {
        let mut raw: Vec<_> = semaphores.iter().map(base).collect();
        let values = [1_u64; 3];
        unsafe {
            let timeout = sys::iree_make_timeout_ms(5_000);
            let mode = sys::iree_async_wait_mode_t::try_from(mode).unwrap();
            let allocator = sys::iree_allocator_system();
            let (raw, values) = (raw.as_mut_ptr(), values.as_ptr());
            check(sys::iree_async_semaphore_multi_wait(mode, raw, values, 3, timeout, 0, allocator))
        }
    };
    std::thread::scope(|scope| {
        let any = scope.spawn(|| wait(sys::IREE_ASYNC_WAIT_MODE_ANY));
        let all = scope.spawn(|| wait(sys::IREE_ASYNC_WAIT_MODE_ALL));
        std::thread::sleep(Duration::from_millis(10));
        device.barrier(&List::none(), &semaphores[0].at(1)).unwrap();
        any.join().unwrap().unwrap();
        other.barrier(&semaphores[0].at(1), &semaphores[1].at(1)).unwrap();
        device.barrier(&semaphores[1].at(1), &semaphores[2].at(1)).unwrap();
        all.join().unwrap().unwrap();
    });
    semaphores[0].fail(Code::Aborted, "enough");
    assert_eq!(wait(sys::IREE_ASYNC_WAIT_MODE_ANY).unwrap_err().code, Code::Aborted);
}

#[test]
fn wait_source_resolves() {
    unsafe extern "C" fn resolved(user_data: *mut c_void, status: sys::iree_status_t) {
        let sender = unsafe { Box::from_raw(user_data.cast::<mpsc::Sender<Result>>()) };
        sender.send(check(status)).unwrap();
    }
    let device = Device::open("mock").unwrap();
    for fails in [false, true] {
        let (source, done) = (if fails { failed(&device) } else { device.semaphore(1) }, device.semaphore(0));
        let (sender, receiver) = mpsc::channel::<Result>();
        unsafe {
            let timeout = sys::iree_make_timeout_ms(0);
            let sender = Box::into_raw(Box::new(sender)).cast();
            check(sys::iree_async_semaphore_resolve(base(&done), 1, timeout, Some(resolved), sender))
                .unwrap();
        }
        device.barrier(&source.at(1), &done.at(1)).unwrap();
        assert_eq!(receiver.recv_timeout(SOON).unwrap().is_err(), fails);
    }
}

#[test]
fn no_signal_goes_past_the_largest_value() {
    let device = Device::open("mock").unwrap();
    let semaphore = device.semaphore(0);
    assert_eq!(semaphore.signal(MAX_VALUE + 1).unwrap_err().code, Code::InvalidArgument);
    assert_eq!(semaphore.signal(0).unwrap_err().code, Code::InvalidArgument);
    semaphore.signal(MAX_VALUE).unwrap();
    assert_eq!(semaphore.value().unwrap(), MAX_VALUE);
    assert_eq!(semaphore.signal(MAX_VALUE).unwrap_err().code, Code::InvalidArgument);
}
