// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The timekeeper, a thread that notices when a rank has waited too long, and the notification of failures.
//!
//! One thread watches all groups while any rank waits, and a while longer. The engine's callback threads report
//! failures, since a callback may take its time, and may wait for the callback of another rank or group.

use super::group::Group;
use super::rendezvous::Arrival;
use crate::EndCountdown;
use hal_semaphore::Failure;
use hal_semaphore::backend::DeferredCallbacks;
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long the thread stays without work.
const IDLE: Duration = Duration::from_secs(2);

static TIMEKEEPER: Mutex<Timekeeper> =
    Mutex::new(Timekeeper { groups: Vec::new(), sooner: false, runs: false });
static NEWS: Condvar = Condvar::new();

struct Timekeeper {
    groups: Vec<Weak<Group>>,
    /// A group must be checked sooner than planned.
    sooner: bool,
    runs: bool,
}

/// Notifies ranks that their operations failed, soon and on other threads, none of which waits for another. Their
/// memory is released there too, as its owner may call the program back.
pub(super) fn notify_arrivals(arrivals: Vec<Arrival>, failure: &Failure) {
    for arrival in arrivals {
        let failure = failure.clone();
        DeferredCallbacks::new(move || arrival.end(Err(failure))).run_elsewhere();
    }
}

/// The same for parts without memory.
pub(super) fn notify(parts: impl Iterator<Item = Arc<EndCountdown>>, failure: &Failure) {
    for part in parts {
        let failure = failure.clone();
        DeferredCallbacks::new(move || part.end(Err(failure))).run_elsewhere();
    }
}

/// Watches the group until no rank waits in it.
pub(super) fn keep_time(group: &Arc<Group>) {
    let mut timekeeper = TIMEKEEPER.lock();
    timekeeper.groups.push(Arc::downgrade(group));
    timekeeper.wake();
}

/// Checks all groups again, as one of them has an earlier time.
pub(super) fn check_again() {
    let mut timekeeper = TIMEKEEPER.lock();
    timekeeper.sooner = true;
    timekeeper.wake();
}

impl Timekeeper {
    fn wake(&mut self) {
        if self.runs {
            NEWS.notify_one();
            return;
        }
        let thread = std::thread::Builder::new().name("hal-collectives".into());
        // Without a thread, the next call tries again.
        self.runs = thread.spawn(serve).is_ok();
    }
}

fn serve() {
    let mut timekeeper = TIMEKEEPER.lock();
    let mut kept: Vec<Weak<Group>> = Vec::new();
    loop {
        kept.append(&mut timekeeper.groups);
        drop(timekeeper);
        let now = Instant::now();
        let mut next = None;
        kept.retain(|group| {
            let deadline = group.upgrade().and_then(|group| group.check_timeouts(now));
            next = next.into_iter().chain(deadline).min();
            deadline.is_some()
        });
        timekeeper = TIMEKEEPER.lock();
        if std::mem::take(&mut timekeeper.sooner) || !timekeeper.groups.is_empty() {
            continue;
        }
        let timed_out = NEWS.wait_until(&mut timekeeper, next.unwrap_or(now + IDLE)).timed_out();
        if timed_out && next.is_none() && timekeeper.groups.is_empty() {
            timekeeper.runs = false;
            return;
        }
    }
}
