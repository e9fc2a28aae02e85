// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! One thread of this process that polls the connections to the exporters of mapped memory, so that a mapping ends
//! soon after the loss of the exporter's card, also while no bytes are moved. A mapping holds the lost card, and the
//! kernel kills the exporter for that.

use super::connection::PollResult;
use super::import::Mapping;
use crate::kmd::EventFd;
use hal_backend::{Code, Failure};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{LazyLock, Weak};
use std::time::Duration;

/// The pause before a connection with a request under way is polled again.
const PAUSE: Duration = Duration::from_millis(5);

/// A mapping, and the connection to its exporter.
struct MonitoredMapping {
    connection: OwnedFd,
    mapping: Weak<Mapping>,
}

#[derive(Default)]
struct LossMonitor {
    /// The mappings that the thread has not seen yet.
    fresh: Vec<MonitoredMapping>,
    eventfd: Option<EventFd>,
}

static MONITOR: LazyLock<Mutex<LossMonitor>> = LazyLock::new(Mutex::default);

/// Ends a mapping when the exporter's card is lost. The mapping is not kept alive.
pub(super) fn listen(mapping: &Weak<Mapping>, connection: OwnedFd) -> Result<(), Failure> {
    let failed = |what: String| {
        Failure::new(
            Code::ResourceExhausted,
            format!("the loss of the exporter's card cannot be watched for: {what}"),
        )
    };
    let mut monitor = MONITOR.lock();
    monitor.fresh.push(MonitoredMapping { connection, mapping: mapping.clone() });
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

/// Polls all connections, as long as there are any.
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
        let connections: Vec<BorrowedFd<'_>> = std::iter::once(eventfd.as_fd())
            .chain(mappings.iter().map(|monitored| monitored.connection.as_fd()))
            .collect();
        let mut polled: Vec<PollFd<'_>> = connections
            .iter()
            .map(|connection| PollFd::from_borrowed_fd(*connection, PollFlags::IN | PollFlags::RDHUP))
            .collect();
        // An interrupted poll is repeated.
        let _ = poll(&mut polled, None::<&Timespec>);
        eventfd.clear();
        let ready: Vec<bool> =
            polled.iter().skip(1).map(|connection| !connection.revents().is_empty()).collect();
        let mut busy = false;
        let mut states = ready.into_iter();
        mappings.retain(|monitored| {
            if !states.next().unwrap_or(false) {
                return true;
            }
            // A mapping that was dropped has hung up.
            let Some(mapping) = monitored.mapping.upgrade() else { return false };
            let heard = mapping.listen();
            busy |= heard == PollResult::Busy;
            heard != PollResult::Over
        });
        if busy {
            std::thread::sleep(PAUSE);
        }
    }
}
