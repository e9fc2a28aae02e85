// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What this process waits for: a report of all devices, on request.
//!
//! Each device is in a list from its creation to its end. A report looks at all of them three times, with a pause
//! between the first two looks, and claims only about what stood still ([`hal_semaphore::stall`]). Nothing is recorded
//! for it while nobody asks.
//!
//! - A program asks by [`stall_report`], in C by `hal_drivers_stall_report`.
//! - `stall_report=SECONDS` in a device's URI has a [watching thread](watch) print a report when something has stood
//!   still for that long.
//! - SIGQUIT does if `HAL_REPORT_ON_SIGQUIT=1`: the handler wakes the same thread, and does nothing else.
//!
//! A report waits for nothing that may never end: it tries for locks for a bounded time, calls no device and no other
//! driver, and runs on the thread that asks or on the watching thread.

#[cfg(unix)]
mod signal;
mod watch;

use crate::ffi::status::{Result, check, guard, invalid, view};
use crate::sync::live_semaphores::host_waits;
use hal_backend::{Parameter, Parameters};
use hal_semaphore::stall::{Device, Process, Report, Snapshot, Stage, Step};
use hal_sys as sys;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The pause between the first two looks of a report.
const PAUSE: Duration = Duration::from_millis(100);

/// The parameter `stall_report`.
pub(crate) const PARAMETER: Parameter = Parameter {
    name: "stall_report",
    values: "SECONDS",
    default: "off",
    effect: "print [what the process waits for](#when-a-program-hangs) when something on this device has stood still \
             for that long",
};

/// A device's name in reports, and how long something may stand still on it.
pub(crate) struct StallSettings {
    name: String,
    limit: Option<Duration>,
}

impl StallSettings {
    /// Reads the parameter of a device that is opened by this path.
    pub(crate) fn take(driver: &str, path: &str, parameters: &mut Parameters<'_>) -> Result<Self> {
        let seconds = parameters.take(PARAMETER.name)?.map(|seconds| {
            let number = seconds.parse::<f64>().ok().filter(|seconds| (0.1..=1e6).contains(seconds));
            number.map(Duration::from_secs_f64).ok_or_else(|| {
                let why = format!("is {seconds:?}; it takes a number of seconds from 0.1 to 1000000");
                parameters.refuse(PARAMETER.name, &why)
            })
        });
        let name = if path.is_empty() { driver.to_owned() } else { format!("{driver}://{path}") };
        Ok(Self { name, limit: seconds.transpose()? })
    }
}

/// The engine of a device, for those who do not know its type.
pub(crate) trait Inspect: Send + Sync {
    /// See [`hal_semaphore::Engine::snapshot`].
    fn snapshot(&self, names: bool) -> Snapshot;
}

/// A device in the list.
struct Listed {
    name: String,
    limit: Option<Duration>,
    /// `None` once the device has ended. Reports have this lock for as long as a snapshot takes, which is bounded.
    engine: Mutex<Option<Box<dyn Inspect>>>,
}

impl Listed {
    fn look(&self, names: bool) -> Option<Device> {
        let snapshot = self.engine.lock().as_ref()?.snapshot(names);
        Some(Device { name: self.name.clone(), snapshot })
    }
}

static DEVICES: Mutex<Vec<Arc<Listed>>> = Mutex::new(Vec::new());

/// Keeps a device in reports.
pub(crate) struct InReports(Arc<Listed>);

impl InReports {
    /// Puts a device into reports, and has it watched if its settings say so.
    pub(crate) fn new(settings: StallSettings, engine: impl Inspect + 'static) -> Result<Self> {
        watch::begin(settings.limit.is_some())?;
        let mut devices = DEVICES.lock();
        let same = devices.iter().filter(|other| {
            let base = other.name.split_once(" #").map_or(other.name.as_str(), |(base, _)| base);
            base == settings.name
        });
        let name = match same.count() {
            0 => settings.name,
            // A number that none of them has.
            _ => (2..)
                .map(|number| format!("{} #{number}", settings.name))
                .find(|name| devices.iter().all(|other| other.name != *name))
                .unwrap_or_default(),
        };
        let engine = Mutex::new(Some(Box::new(engine) as Box<dyn Inspect>));
        let listed = Arc::new(Listed { name, limit: settings.limit, engine });
        devices.push(listed.clone());
        drop(devices);
        watch::wake();
        Ok(Self(listed))
    }

    /// Takes the device out of reports: nothing runs for it any more.
    pub(crate) fn end(&self) {
        DEVICES.lock().retain(|other| !Arc::ptr_eq(other, &self.0));
        let engine = self.0.engine.lock().take();
        drop(engine);
    }
}

impl Drop for InReports {
    fn drop(&mut self) {
        self.end();
    }
}

/// One look at the process.
fn look(names: bool) -> Process {
    let listed = DEVICES.lock().clone();
    let devices = listed.iter().filter_map(|device| device.look(names)).collect();
    let (host_waits, addresses) = host_waits(names);
    Process { devices, host_waits, addresses }
}

/// Since when things have stood as they do, by the looks so far.
#[derive(Default)]
struct Seen {
    /// The stages of operations, by engine, queue and number.
    operations: HashMap<(u32, u32, u64), (Stage, Instant)>,
    host_waits: HashMap<Step, Instant>,
}

static SEEN: Mutex<Option<Seen>> = Mutex::new(None);

impl Seen {
    /// Takes in a look, and fills its ages.
    fn see(&mut self, process: &mut Process) {
        let now = Instant::now();
        let before = std::mem::take(self);
        for device in &mut process.devices {
            let engine = device.snapshot.engine;
            for queue in &mut device.snapshot.queues {
                if queue.is_locked {
                    // What it has is not known to have moved.
                    let kept = before
                        .operations
                        .iter()
                        .filter(|((known, index, _), _)| (*known, *index) == (engine, queue.index));
                    self.operations.extend(kept);
                }
                for operation in &mut queue.operations {
                    let key = (engine, queue.index, operation.id);
                    let since = before.operations.get(&key).filter(|(stage, _)| *stage == operation.stage);
                    let since = since.map_or(now, |(_, since)| *since);
                    self.operations.insert(key, (operation.stage, since));
                    operation.age = Some(now - since).filter(|age| !age.is_zero());
                }
            }
        }
        for wait in &mut process.host_waits {
            let since = before.host_waits.get(&wait.step).copied().unwrap_or(now);
            self.host_waits.insert(wait.step, since);
            wait.age = Some(now - since).filter(|age| !age.is_zero());
        }
    }
}

/// The process has stood still for so long: what it has seen stand is not so much older.
fn skip(by: Duration) {
    if let Some(seen) = &mut *SEEN.lock() {
        let operations = seen.operations.values_mut().map(|(_, since)| since);
        operations.chain(seen.host_waits.values_mut()).for_each(|since| *since += by);
    }
}

/// One look, with ages.
fn look_again(names: bool) -> Process {
    let mut process = look(names);
    SEEN.lock().get_or_insert_default().see(&mut process);
    process
}

/// What this process waits for, on all devices of this library: its text and JSON begin with the causes.
///
/// It takes about a tenth of a second longer than the looks, waits for nothing that may never end, and may be called on
/// any thread, several at once. Ages count from the first report or look of a watching thread.
pub fn stall_report() -> Report {
    static REPORTS: Mutex<()> = Mutex::new(());
    let _one_at_a_time = REPORTS.lock();
    let before = look_again(false);
    std::thread::sleep(PAUSE);
    let process = look_again(true);
    let after = look(false);
    Report::of(&before, process, &after)
}

/// Appends a report to a builder of C's, as text for format 0 and as JSON for 1.
///
/// # Safety
///
/// The builder is alive, or null, which is refused.
#[cfg_attr(test, expect(dead_code, reason = "tests of this crate export no function"))]
pub(crate) unsafe fn append_report(
    format: u32,
    builder: *mut sys::iree_string_builder_t,
) -> sys::iree_status_t {
    guard(|| {
        if builder.is_null() {
            return Err(invalid("a report needs a string builder (a null pointer was passed)"));
        }
        let text = match format {
            0 => stall_report().to_string(),
            1 => stall_report().to_json(),
            other => {
                return Err(invalid(format!("a report has format 0, text, or 1, JSON, and not {other}")));
            }
        };
        // SAFETY: the builder is alive, as the caller promises; it copies the text.
        unsafe { check(sys::iree_string_builder_append_string(builder, view(&text))) }
    })
}
