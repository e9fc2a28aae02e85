// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The watching thread: it looks at the devices whose URI says so, and prints reports.
//!
//! There is one for a process, from the first device that is watched or opened with SIGQUIT on, and it stays. While no
//! device is watched it sleeps until it is woken.

use super::{DEVICES, Listed, look_again, skip, stall_report};
use crate::ffi::status::Result;
use hal_semaphore::stall::Process;
use hal_semaphore::{Code, Failure};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The variable with which a process asks for reports on SIGQUIT.
const VARIABLE: &str = "HAL_REPORT_ON_SIGQUIT";

/// The shortest and the longest pause between two looks.
const PAUSES: [Duration; 2] = [Duration::from_millis(25), Duration::from_secs(1)];

/// True once the thread runs.
static RUNS: Mutex<bool> = Mutex::new(false);

/// Whether the environment asks for reports on SIGQUIT.
fn is_asked_by_signal() -> Result<bool> {
    match std::env::var(VARIABLE).as_deref() {
        Err(_) | Ok("" | "0") => Ok(false),
        Ok("1") if cfg!(unix) => Ok(true),
        Ok(other) => {
            let message = format!("{VARIABLE} is {other:?}; it takes 1, on systems with signals, or 0");
            Err(Failure::new(Code::InvalidArgument, message))
        }
    }
}

/// Starts the thread if somebody needs it: a device that is watched, or the environment.
pub(super) fn begin(watched: bool) -> Result {
    let by_signal = is_asked_by_signal()?;
    if !watched && !by_signal {
        return Ok(());
    }
    let mut runs = RUNS.lock();
    if !*runs {
        prepare()?;
        let name = "hal-stall";
        let spawned = std::thread::Builder::new().name(name.into()).spawn(serve);
        spawned.map_err(|error| Failure::without_thread(name, &error))?;
        *runs = true;
    }
    drop(runs);
    if by_signal { handle_signal() } else { Ok(()) }
}

#[cfg(unix)]
pub(super) use super::signal::wake;
#[cfg(unix)]
use super::signal::{handle as handle_signal, prepare, sleep};

#[cfg(not(unix))]
fn prepare() -> Result {
    Ok(())
}

#[cfg(not(unix))]
fn handle_signal() -> Result {
    Ok(())
}

/// Without descriptors, the thread looks now and then.
#[cfg(not(unix))]
fn sleep(pause: Option<Duration>) -> bool {
    std::thread::sleep(pause.unwrap_or(PAUSES[1]));
    false
}

#[cfg(not(unix))]
pub(super) fn wake() {}

/// How long the thread sleeps, by the device with the lowest limit; `None` if none is watched.
fn pause(devices: &[Arc<Listed>]) -> Option<Duration> {
    let least = devices.iter().filter_map(|device| device.limit).min()?;
    let [shortest, longest] = PAUSES;
    Some((least / 8).clamp(shortest, longest))
}

fn serve() {
    let mut next_report: Option<Instant> = None;
    loop {
        let devices = DEVICES.lock().clone();
        let (pause, begin) = (pause(&devices), Instant::now());
        let is_asked = sleep(pause);
        // Of a pause that is much longer than it should be, a part is a standstill of the process.
        if let Some(standstill) = pause.and_then(|pause| begin.elapsed().checked_sub(2 * pause)) {
            skip(standstill);
            next_report = next_report.map(|at| at + standstill);
        }
        if is_asked {
            print(&stall_report().to_string());
            continue;
        }
        let longest = if devices.iter().any(|device| device.limit.is_some()) {
            over_limit(&look_again(false), &devices)
        } else {
            None
        };
        match (longest, next_report) {
            (None, _) => next_report = None,
            (Some(_), Some(at)) if Instant::now() < at => {}
            (Some(age), _) => {
                print(&stall_report().to_string());
                // What stands still is reported again, ever more rarely.
                next_report = Some(Instant::now() + age);
            }
        }
    }
}

/// How long something has stood still on a watched device, if that is longer than its limit.
fn over_limit(process: &Process, devices: &[Arc<Listed>]) -> Option<Duration> {
    let limits = process.devices.iter().filter_map(|device| {
        let listed = devices.iter().find(|listed| listed.name == device.name)?;
        Some((device, listed.limit?))
    });
    let mut longest = None;
    for (device, limit) in limits {
        let operations = device.snapshot.queues.iter().flat_map(|queue| &queue.operations);
        let engine = device.snapshot.engine;
        let waits = process.host_waits.iter().filter(|wait| wait.step.timeline.engine() == Some(engine));
        let ages = operations.map(|operation| operation.age).chain(waits.map(|wait| wait.age));
        longest = longest.max(ages.flatten().filter(|age| *age >= limit).max());
    }
    longest
}

/// Writes to the standard error, without the lock that a stuck thread may have.
fn print(text: &str) {
    #[cfg(unix)]
    super::signal::print(text.as_bytes());
    #[cfg(not(unix))]
    eprint!("{text}");
}
