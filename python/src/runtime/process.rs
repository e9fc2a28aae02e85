// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Detection of forked processes. A process that is forked from one that opened devices has copies of the objects,
//! without the threads that they wait for and take locks from.

use super::status::{Error, Result};
use std::process::id;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The process that opened the first device of this package.
static OPENED_BY: OnceLock<u32> = OnceLock::new();

/// True if this process was forked from that one. A flag, as every release reads it.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn forked() {
    IS_FORKED.store(true, Ordering::Relaxed);
}

/// Records that this process has opened a device.
pub(crate) fn has_opened() {
    OPENED_BY.get_or_init(|| {
        // SAFETY: a function that is never unloaded, and does what a process may that was forked.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        id()
    });
}

/// True if this process was forked from one that had opened devices: then their objects are neither used nor
/// released.
pub(crate) fn is_forked() -> bool {
    IS_FORKED.load(Ordering::Relaxed)
}

/// Refuses work in a process that was forked from one that had opened devices, where it would wait for ever.
pub(crate) fn check_not_forked() -> Result {
    if !is_forked() {
        return Ok(());
    }
    let message = format!(
        "this process was forked from process {}, which had opened devices, and their threads do not exist \
         here; open devices only after the fork, or spawn processes \
         (multiprocessing.set_start_method(\"spawn\"))",
        OPENED_BY.get().copied().unwrap_or_default()
    );
    Err(Error::new("FAILED_PRECONDITION", message))
}
