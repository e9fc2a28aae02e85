// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Polling for messages of collectives on a program's thread that waits for a semaphore.

use crate::sync::teardown;
use hal_semaphore::WithoutCallbacks;
use std::time::{Duration, Instant};

/// True if collectives of this process are under way, so that a waiting thread should [poll](poll_until).
pub(crate) fn is_busy() -> bool {
    hal_collectives_mpi::is_busy()
}

/// Polls for messages of collectives on a program's thread that waits, as long as polling pays: messages are
/// received at once, and no thread has to be woken. Never calls the program back, as it may hold a lock that its
/// callbacks take, and tears down no device.
pub(crate) fn poll_until(limit: Duration, is_over: impl FnMut() -> bool) {
    if !is_busy() {
        return;
    }
    let (_inside, _quiet) = (teardown::enter(), WithoutCallbacks::begin());
    hal_collectives_mpi::poll_until(Instant::now().checked_add(limit), is_over);
}
