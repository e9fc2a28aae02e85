// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A program's thread that waits for a semaphore looks for messages of collectives meanwhile.

use crate::sync::teardown;
use hal_semaphore::WithoutCallbacks;
use std::time::{Duration, Instant};

/// Whether collectives of this process are under way, so that a thread which has to wait does well to [watch].
pub(crate) fn is_busy() -> bool {
    hal_collectives_mpi::is_busy()
}

/// Does what there is to do for collectives on a thread of the program's that waits for something, as long as that does any good:
/// messages of others are seen at once, and no thread has to be woken. The program is not called back from here, as it may hold what its
/// callbacks take, and no device is torn down.
pub(crate) fn watch(limit: Duration, is_over: impl FnMut() -> bool) {
    if !is_busy() {
        return;
    }
    let (_inside, _quiet) = (teardown::enter(), WithoutCallbacks::begin());
    hal_collectives_mpi::watch(Instant::now().checked_add(limit), is_over);
}
