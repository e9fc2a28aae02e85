// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A device that has to be asked what has ended: how often it is asked, and what comes to it at all.

use crate::common::properties::{QUEUE, properties};
use crate::common::{Device, List, check};
use hal_backend::{
    Completer, Completion, DeviceInfo, DeviceSpec, Driver, Failure, HostLoader, HostRange, Job, LoadRequest,
    Loaded, MemoryRequest, Parameters, Properties, Rejected,
};
use hal_semaphore::QueueId;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How often the device was asked.
static POLLS: AtomicUsize = AtomicUsize::new(0);
/// How many commands came to it.
static COMMANDS: AtomicUsize = AtomicUsize::new(0);

struct Polled;

impl Driver for Polled {
    type Device = PolledDevice;

    const NAME: &'static str = "polled";
    const FULL_NAME: &'static str = "a device that counts how often it is asked";

    fn create() -> Self {
        Self
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Failure> {
        Ok(Vec::new())
    }

    fn open(&self, _path: &str, _parameters: &mut Parameters<'_>) -> Result<PolledDevice, Failure> {
        Ok(PolledDevice::default())
    }
}

#[derive(Default)]
struct PolledDevice {
    completer: OnceLock<Completer>,
    /// The last job, until it was reported.
    last: Mutex<Option<(QueueId, u64)>>,
}

impl hal_backend::Device for PolledDevice {
    type Memory = HostRange;
    type Executable = ();
    type Event = ();

    fn properties(&self) -> Properties {
        let queues = DeviceSpec { completion: Completion::Poll, ..QUEUE };
        Properties { queues, ..properties("polled") }
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
        Ok(Loaded { executable: (), functions: Vec::new() })
    }

    fn submit(&self, job: Job<Self>) -> Result<(), Rejected<Self>> {
        COMMANDS.fetch_add(job.commands.iter().count(), Ordering::SeqCst);
        *self.last.lock().unwrap() = Some((job.queue, job.epoch));
        Ok(())
    }

    fn poll(&self) {
        POLLS.fetch_add(1, Ordering::SeqCst);
        let last = self.last.lock().unwrap().take();
        if let Some((queue, epoch)) = last {
            self.completer.get().unwrap().complete(queue, epoch).unwrap();
        }
    }

    fn abort(&self, _why: &Failure) {}
}

/// The device, for one test at a time: the counts are the process's.
fn open() -> (MutexGuard<'static, ()>, Device) {
    static ALONE: Mutex<()> = Mutex::new(());
    static REGISTER: Once = Once::new();
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    REGISTER
        .call_once(|| unsafe { check(hal_driver::register::<Polled>(crate::common::registry())).unwrap() });
    (alone, Device::open("polled").unwrap())
}

/// A device that has nothing to do is not asked (an idle program takes no processor).
#[test]
fn device_that_has_nothing_to_do_is_not_asked() {
    let (_alone, device) = open();
    let (buffer, done) = (device.buffer(64), device.semaphore(0));
    for round in 1..=3 {
        let before = POLLS.load(Ordering::SeqCst);
        device.fill(&List::none(), &done.at(round), &buffer, (0, 64), &[1]).unwrap();
        done.wait(round).unwrap();
        assert!(POLLS.load(Ordering::SeqCst) > before, "nobody else reports");
        let begin = Instant::now();
        loop {
            let asked = POLLS.load(Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            if POLLS.load(Ordering::SeqCst) == asked {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(10), "it is asked and asked");
        }
    }
}

/// A transfer of no bytes only waits and signals: no device has to know what to do with one.
#[test]
fn transfer_of_no_bytes_does_not_come_to_the_device() {
    let (_alone, device) = open();
    let (source, target, done) = (device.buffer(64), device.buffer(64), device.semaphore(0));
    let before = COMMANDS.load(Ordering::SeqCst);
    device.fill(&List::none(), &done.at(1), &target, (64, 0), &[1]).unwrap();
    device.copy(&done.at(1), &done.at(2), &source, &target, 0).unwrap();
    device.update_on(u64::MAX, &done.at(2), &done.at(3), &[], (&target, 8)).unwrap();
    done.wait(3).unwrap();
    assert_eq!(COMMANDS.load(Ordering::SeqCst), before);
    device.fill(&done.at(3), &done.at(4), &target, (0, 64), &[1]).unwrap();
    done.wait(4).unwrap();
    assert_eq!(COMMANDS.load(Ordering::SeqCst), before + 1);
}
