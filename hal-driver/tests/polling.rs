// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cost of polling a device for completions, and the faults of a device while it is polled.
#![allow(clippy::undocumented_unsafe_blocks, reason = "every object is alive as long as its wrapper")]
#![allow(clippy::unwrap_used, reason = "a failed expectation ends the test")]

mod common;

use common::properties::{QUEUE, properties};
use common::{Device, List, check, registry};
use hal_backend::{
    Completer, Completion, DeviceInfo, DeviceSpec, Driver, Failure, HostLoader, HostRange, Job, LoadRequest,
    Loaded, MemoryRequest, Parameters, Properties, QueueId, Rejected,
};
use hal_semaphore::Code;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Threads are counted by name, so one test runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The processor time of the thread with this name, in ticks of the kernel.
fn ticks(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let mine = tasks.filter(|task| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    });
    let stats = mine.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let spent = |stat: String| -> u64 {
        // After the name, which is in parentheses, fields 12 and 13 are the times.
        let fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
        fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
    };
    stats.map(spent).sum()
}

#[test]
fn polling_costs_nothing_while_nothing_is_in_flight_and_little_while_something_is() {
    let _alone = alone();
    register();
    let device = Device::open("poll-faults://").unwrap();
    let done = device.semaphore(0);
    let buffer = device.buffer(64);
    device.fill(&List::none(), &done.at(1), &buffer, (0, 64), &[1]).unwrap();
    done.wait(1).unwrap();
    let polls = || POLLS.load(Ordering::Relaxed);
    let is_polled_for = |time| {
        let before = polls();
        std::thread::sleep(Duration::from_millis(time));
        polls() > before
    };
    // The thread that polls needs a processor to see that nothing is in flight.
    let begin = Instant::now();
    while is_polled_for(300) {
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing is in flight");
    }
    // A long job: the device is polled ever more rarely.
    HOLDS.store(true, Ordering::Relaxed);
    device.fill(&List::none(), &done.at(2), &buffer, (0, 64), &[1]).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let (begin, before, spent) = (Instant::now(), polls(), ticks("hal-poll"));
    std::thread::sleep(Duration::from_millis(300));
    // On a busy machine it may have been longer.
    let (after, used, time) = (polls(), ticks("hal-poll") - spent, begin.elapsed());
    assert!((after - before) as u128 <= 10 * time.as_millis(), "{} polls in {time:?}", after - before);
    assert!(30 * u128::from(used) <= time.as_millis(), "{used} ticks in {time:?}");
    crate::common::wait_until(|| polls() > before);
    HOLDS.store(false, Ordering::Relaxed);
    done.wait(2).unwrap();
}

/// The number of polls of the device below.
static POLLS: AtomicUsize = AtomicUsize::new(0);
/// True while it withholds completions.
static HOLDS: AtomicBool = AtomicBool::new(false);

/// True if the lingering device stays in its poll, after everything was reported.
static LINGERS: AtomicBool = AtomicBool::new(false);
static IS_LINGERING: AtomicBool = AtomicBool::new(false);

/// Drivers whose devices do what the mock device does not: count polls, have no descriptor, panic, linger, or panic
/// when their descriptor is asked for.
struct PollFaults;
struct Blind;
struct Panics;
struct Lingers;
struct Torn;

macro_rules! driver {
    ($driver:ident, $name:literal, $completion:expr) => {
        impl Driver for $driver {
            type Device = PolledDevice;
            const NAME: &'static str = $name;
            const FULL_NAME: &'static str = $name;

            fn create() -> Self {
                Self
            }

            fn enumerate(&self) -> Result<Vec<DeviceInfo>, Failure> {
                Ok(Vec::new())
            }

            fn open(&self, _path: &str, _parameters: &mut Parameters<'_>) -> Result<PolledDevice, Failure> {
                Ok(PolledDevice { name: $name, completion: $completion, ..PolledDevice::default() })
            }
        }
    };
}

driver!(PollFaults, "poll-faults", Completion::Poll);
driver!(Blind, "blind", Completion::Descriptor);
driver!(Panics, "panics", Completion::Poll);
driver!(Lingers, "lingers", Completion::Descriptor);
driver!(Torn, "torn", Completion::Descriptor);

struct PolledDevice {
    name: &'static str,
    completion: Completion,
    completer: OnceLock<Completer>,
    jobs: Mutex<Vec<(QueueId, u64)>>,
    was_looked_at: AtomicBool,
    /// Bytes that are written to one end become readable at the other.
    ends: (UnixStream, UnixStream),
}

impl Default for PolledDevice {
    fn default() -> Self {
        let (completer, jobs, was_looked_at) = (OnceLock::new(), Mutex::default(), AtomicBool::new(false));
        let ends = UnixStream::pair().unwrap();
        ends.0.set_nonblocking(true).unwrap();
        Self { name: "", completion: Completion::Poll, completer, jobs, was_looked_at, ends }
    }
}

impl hal_backend::Device for PolledDevice {
    type Memory = HostRange;
    type Executable = ();
    type Event = ();

    fn properties(&self) -> Properties {
        let queues = DeviceSpec { completion: self.completion, ..QUEUE };
        Properties { queues, ..properties(self.name) }
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

    fn supports(&self, _format: &str, _host: &dyn HostLoader) -> bool {
        false
    }

    fn load(&self, _request: &LoadRequest<'_>, _host: &dyn HostLoader) -> Result<Loaded<()>, Failure> {
        Err(Failure::new(Code::Unimplemented, "there is nothing to run"))
    }

    fn submit(&self, job: Job<Self>) -> Result<(), Rejected<Self>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).push((job.queue, job.epoch));
        (&self.ends.1).write_all(&[1]).unwrap();
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        assert!(self.name != "torn" || !self.was_looked_at.load(Ordering::Relaxed), "it is torn");
        ["lingers", "torn"].contains(&self.name).then(|| self.ends.0.as_fd())
    }

    fn poll(&self) {
        POLLS.fetch_add(1, Ordering::Relaxed);
        self.was_looked_at.store(true, Ordering::Relaxed);
        while (&self.ends.0).read(&mut [0; 64]).is_ok() {}
        assert_ne!(self.name, "panics", "as it was asked");
        if !HOLDS.load(Ordering::Relaxed) {
            for (queue, epoch) in std::mem::take(&mut *self.jobs.lock().unwrap()) {
                self.completer.get().unwrap().complete(queue, epoch).unwrap();
            }
        }
        let end = Instant::now() + Duration::from_secs(60);
        while self.name == "lingers" && LINGERS.load(Ordering::SeqCst) && Instant::now() < end {
            IS_LINGERING.store(true, Ordering::SeqCst);
            std::thread::yield_now();
        }
    }

    fn abort(&self, _why: &Failure) {}
}

static REGISTER: Once = Once::new();

fn register() {
    REGISTER.call_once(|| unsafe {
        check(hal_driver::register::<PollFaults>(registry())).unwrap();
        check(hal_driver::register::<Blind>(registry())).unwrap();
        check(hal_driver::register::<Panics>(registry())).unwrap();
        check(hal_driver::register::<Lingers>(registry())).unwrap();
        check(hal_driver::register::<Torn>(registry())).unwrap();
    });
}

#[test]
fn device_without_the_descriptor_that_it_speaks_of_is_refused() {
    register();
    let refused = Device::open("blind://").err().unwrap();
    assert_eq!(refused.code, Code::Internal);
    assert!(
        refused.text.contains("blind") && refused.text.contains("Device::descriptor"),
        "{}",
        refused.text
    );
}

/// A poll that runs while the device is torn down is the last one.
#[test]
fn device_that_is_destroyed_during_a_poll_is_not_polled_any_more() {
    let _alone = alone();
    register();
    let device = Device::open("lingers://").unwrap();
    let (buffer, done) = (device.buffer(64), device.semaphore(0));
    LINGERS.store(true, Ordering::SeqCst);
    device.fill(&List::none(), &done.at(1), &buffer, (0, 64), &[1]).unwrap();
    done.wait(1).unwrap();
    let begin = Instant::now();
    while !IS_LINGERING.load(Ordering::SeqCst) && begin.elapsed() < Duration::from_secs(60) {
        std::thread::yield_now();
    }
    std::thread::scope(|scope| {
        scope.spawn(move || drop(device));
        std::thread::sleep(Duration::from_millis(200));
        LINGERS.store(false, Ordering::SeqCst);
    });
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
}

/// The descriptor is asked for after each poll.
#[test]
fn panic_at_the_question_for_a_descriptor_loses_the_device() {
    let _alone = alone();
    register();
    let device = Device::open("torn://").unwrap();
    let (buffer, done) = (device.buffer(64), device.semaphore(0));
    device.fill(&List::none(), &done.at(1), &buffer, (0, 64), &[1]).unwrap();
    let _ = done.wait(1);
    device.fill(&done.at(1), &done.at(2), &buffer, (0, 64), &[1]).unwrap();
    let failed = done.wait(2).unwrap_err();
    assert_eq!(failed.code, Code::Unavailable);
    assert!(failed.text.contains("the backend panicked: it is torn"), "{}", failed.text);
}

#[test]
fn panic_of_a_poll_loses_the_device() {
    let _alone = alone();
    register();
    let device = Device::open("panics://").unwrap();
    let (buffer, done) = (device.buffer(64), device.semaphore(0));
    device.fill(&List::none(), &done.at(1), &buffer, (0, 64), &[1]).unwrap();
    let failed = done.wait(1).unwrap_err();
    assert_eq!(failed.code, Code::Internal);
    assert!(failed.text.contains("the backend panicked: "), "{}", failed.text);
}
