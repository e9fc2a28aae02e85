// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Whose objects there are: those of the process that opened devices. One that is forked from it has copies of them, without the threads
//! that they wait for and take locks from.

use super::status::{Error, Result};
use std::process::id;
use std::sync::atomic::{AtomicU32, Ordering};

/// The process that opened the first device of this package; none has yet if it is zero.
static OPENED_BY: AtomicU32 = AtomicU32::new(0);

/// This process has opened a device.
pub(crate) fn has_opened() {
    let _ = OPENED_BY.compare_exchange(0, id(), Ordering::Relaxed, Ordering::Relaxed);
}

/// Whether this process was forked from one that had opened devices: then nothing of them is used, and nothing let go of.
pub(crate) fn is_forked() -> bool {
    let opened_by = OPENED_BY.load(Ordering::Relaxed);
    opened_by != 0 && opened_by != id()
}

/// Refuses work in a process that was forked from one that had opened devices, where it would wait for ever.
pub(crate) fn check_not_forked() -> Result {
    if !is_forked() {
        return Ok(());
    }
    let message = format!(
        "this process was forked from process {}, which had opened devices, and their threads are not here; open devices after \
         the fork alone, or start processes anew (multiprocessing.set_start_method(\"spawn\"))",
        OPENED_BY.load(Ordering::Relaxed)
    );
    Err(Error::new("FAILED_PRECONDITION", message))
}
