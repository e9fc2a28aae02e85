// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! One thread of this process that sleeps at the lines to those whose memory was imported, so that the loss of their
//! cards is learnt of also while no bytes are moved: a mapping holds the lost card, and its exporter is killed for
//! it.

use super::connection::Heard;
use super::import::Mapping;
use crate::kmd::EventFd;
use hal_backend::{Code, Failure};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{LazyLock, Weak};
use std::time::Duration;

/// How long a line is left alone while a request is under way on it.
const PAUSE: Duration = Duration::from_millis(5);

/// A line that is slept at.
struct MonitoredMapping {
    line: OwnedFd,
    mapping: Weak<Mapping>,
}

#[derive(Default)]
struct LossMonitor {
    /// Those that the thread has not seen yet.
    fresh: Vec<MonitoredMapping>,
    eventfd: Option<EventFd>,
}

static MONITOR: LazyLock<Mutex<LossMonitor>> = LazyLock::new(Mutex::default);

/// Has a mapping told when the card behind it is lost. It is not kept.
pub(super) fn listen(mapping: &Weak<Mapping>, line: OwnedFd) -> Result<(), Failure> {
    let failed = |what: String| {
        Failure::new(
            Code::ResourceExhausted,
            format!("the loss of the exporter's card cannot be watched for: {what}"),
        )
    };
    let mut monitor = MONITOR.lock();
    monitor.fresh.push(MonitoredMapping { line, mapping: mapping.clone() });
    if let Some(eventfd) = &monitor.eventfd {
        eventfd.signal();
        return Ok(());
    }
    let eventfd = EventFd::new().map_err(|errno| failed(errno.to_string()))?;
    let other = eventfd.try_clone().map_err(|errno| failed(errno.to_string()))?;
    let thread = std::thread::Builder::new().name("gaudi-peers".to_owned());
    thread.spawn(move || poll_connections(&other)).map_err(|error| failed(error.to_string()))?;
    monitor.eventfd = Some(eventfd);
    Ok(())
}

/// Sleeps at all lines, as long as there are any.
fn poll_connections(eventfd: &EventFd) {
    let mut mappings: Vec<MonitoredMapping> = Vec::new();
    loop {
        {
            let mut monitor = MONITOR.lock();
            mappings.append(&mut monitor.fresh);
            if mappings.is_empty() {
                monitor.eventfd = None;
                return;
            }
        }
        let lines: Vec<BorrowedFd<'_>> = std::iter::once(eventfd.as_fd())
            .chain(mappings.iter().map(|monitored| monitored.line.as_fd()))
            .collect();
        let mut polled: Vec<PollFd<'_>> = lines
            .iter()
            .map(|line| PollFd::from_borrowed_fd(*line, PollFlags::IN | PollFlags::RDHUP))
            .collect();
        // Interrupted, it looks again.
        let _ = poll(&mut polled, None::<&Timespec>);
        eventfd.clear();
        let ready: Vec<bool> = polled.iter().skip(1).map(|line| !line.revents().is_empty()).collect();
        let mut busy = false;
        let mut states = ready.into_iter();
        mappings.retain(|monitored| {
            if !states.next().unwrap_or(false) {
                return true;
            }
            // What was dropped has hung up.
            let Some(mapping) = monitored.mapping.upgrade() else { return false };
            let heard = mapping.listen();
            busy |= heard == Heard::Busy;
            heard != Heard::Over
        });
        if busy {
            std::thread::sleep(PAUSE);
        }
    }
}
