// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The thread that notices when a rank has waited too long, and the threads that report failures.
//!
//! There is one that keeps the time for all groups, as long as there is anything to do for it and a while longer. Failures are told on the
//! threads for callbacks that the engine keeps: what is told may take its time, and wait for what another rank or group is told.

use super::group::Group;
use super::meeting::{Arrival, Part};
use hal_semaphore::Failure;
use hal_semaphore::backend::DeferredCallbacks;
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long the thread stays without work.
const IDLE: Duration = Duration::from_secs(2);

static WATCH: Mutex<Watch> = Mutex::new(Watch { groups: Vec::new(), sooner: false, runs: false });
static NEWS: Condvar = Condvar::new();

struct Watch {
    groups: Vec<Weak<Group>>,
    /// A group is to be looked at sooner than it was said.
    sooner: bool,
    runs: bool,
}

/// Has ranks told that their operations failed, soon and by other threads, none of which waits for another. Their memory is let go of there
/// too, as its owner may call the program back.
pub(super) fn tell_arrivals(arrivals: Vec<Arrival>, failure: &Failure) {
    for arrival in arrivals {
        let failure = failure.clone();
        DeferredCallbacks::new(move || arrival.end(Err(failure))).run_elsewhere();
    }
}

/// The same where there is no memory.
pub(super) fn tell(parts: impl Iterator<Item = Part>, failure: &Failure) {
    for part in parts {
        let failure = failure.clone();
        DeferredCallbacks::new(move || part.end(Err(failure))).run_elsewhere();
    }
}

/// Has the group looked at until no rank waits in it.
pub(super) fn keep_time(group: &Arc<Group>) {
    let mut watch = WATCH.lock();
    watch.groups.push(Arc::downgrade(group));
    watch.wake();
}

/// Has all groups looked at, one of which is to be sooner than it said.
pub(super) fn look_again() {
    let mut watch = WATCH.lock();
    watch.sooner = true;
    watch.wake();
}

impl Watch {
    fn wake(&mut self) {
        if self.runs {
            NEWS.notify_one();
            return;
        }
        let thread = std::thread::Builder::new().name("hal-collectives".into());
        // Without a thread the next one that has something for it tries again.
        self.runs = thread.spawn(serve).is_ok();
    }
}

fn serve() {
    let mut watch = WATCH.lock();
    let mut kept: Vec<Weak<Group>> = Vec::new();
    loop {
        kept.append(&mut watch.groups);
        drop(watch);
        let now = Instant::now();
        let mut next = None;
        kept.retain(|group| {
            let deadline = group.upgrade().and_then(|group| group.look(now));
            next = next.into_iter().chain(deadline).min();
            deadline.is_some()
        });
        watch = WATCH.lock();
        if std::mem::take(&mut watch.sooner) || !watch.groups.is_empty() {
            continue;
        }
        let timed_out = NEWS.wait_until(&mut watch, next.unwrap_or(now + IDLE)).timed_out();
        if timed_out && next.is_none() && watch.groups.is_empty() {
            watch.runs = false;
            return;
        }
    }
}
