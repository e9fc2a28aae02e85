// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! One thread of this process that sleeps at the lines to those whose memory was imported, so that the loss of their cards is
//! learnt of also while no bytes are moved: a mapping holds the lost card, and its exporter is killed for it.

use super::import::Mapping;
use super::line::Heard;
use crate::kmd::Bell;
use hal_backend::{Code, Failure};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{LazyLock, Weak};
use std::time::Duration;

/// How long a line is left alone while a request is under way on it.
const PAUSE: Duration = Duration::from_millis(5);

/// A line that is slept at.
struct Sentry {
    line: OwnedFd,
    mapping: Weak<Mapping>,
}

#[derive(Default)]
struct Watch {
    /// Those that the thread has not seen yet.
    fresh: Vec<Sentry>,
    bell: Option<Bell>,
}

static WATCH: LazyLock<Mutex<Watch>> = LazyLock::new(Mutex::default);

/// Has a mapping told when the card behind it is lost. It is not kept.
pub(super) fn listen(mapping: &Weak<Mapping>, line: OwnedFd) -> Result<(), Failure> {
    let trouble = |what: String| {
        Failure::new(
            Code::ResourceExhausted,
            format!("the loss of the exporter's card cannot be watched for: {what}"),
        )
    };
    let mut watch = WATCH.lock();
    watch.fresh.push(Sentry { line, mapping: mapping.clone() });
    if let Some(bell) = &watch.bell {
        bell.ring();
        return Ok(());
    }
    let bell = Bell::new().map_err(|errno| trouble(errno.to_string()))?;
    let other = bell.try_clone().map_err(|errno| trouble(errno.to_string()))?;
    let thread = std::thread::Builder::new().name("gaudi-peers".to_owned());
    thread.spawn(move || keep_watch(&other)).map_err(|error| trouble(error.to_string()))?;
    watch.bell = Some(bell);
    Ok(())
}

/// Sleeps at all lines, as long as there are any.
fn keep_watch(bell: &Bell) {
    let mut sentries: Vec<Sentry> = Vec::new();
    loop {
        {
            let mut watch = WATCH.lock();
            sentries.append(&mut watch.fresh);
            if sentries.is_empty() {
                watch.bell = None;
                return;
            }
        }
        let lines: Vec<BorrowedFd<'_>> =
            std::iter::once(bell.as_fd()).chain(sentries.iter().map(|sentry| sentry.line.as_fd())).collect();
        let mut polled: Vec<PollFd<'_>> = lines
            .iter()
            .map(|line| PollFd::from_borrowed_fd(*line, PollFlags::IN | PollFlags::RDHUP))
            .collect();
        // Interrupted, it looks again.
        let _ = poll(&mut polled, None::<&Timespec>);
        bell.silence();
        let ready: Vec<bool> = polled.iter().skip(1).map(|line| !line.revents().is_empty()).collect();
        let mut busy = false;
        let mut states = ready.into_iter();
        sentries.retain(|sentry| {
            if !states.next().unwrap_or(false) {
                return true;
            }
            // What was dropped has hung up.
            let Some(mapping) = sentry.mapping.upgrade() else { return false };
            let heard = mapping.listen();
            busy |= heard == Heard::Busy;
            heard != Heard::Over
        });
        if busy {
            std::thread::sleep(PAUSE);
        }
    }
}
