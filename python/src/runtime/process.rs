// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Whose objects there are: those of the process that opened devices. One that is forked from it has copies of them, without the threads
//! that they wait for and take locks from.

use super::status::{Error, Result};
use std::process::id;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The process that opened the first device of this package.
static OPENED_BY: OnceLock<u32> = OnceLock::new();

/// This process was forked from that one. A flag, as everything that is let go of asks for it.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn forked() {
    IS_FORKED.store(true, Ordering::Relaxed);
}

/// This process has opened a device.
pub(crate) fn has_opened() {
    OPENED_BY.get_or_init(|| {
        // SAFETY: a function that is never unloaded, and does what a process may that was forked.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        id()
    });
}

/// Whether this process was forked from one that had opened devices: then nothing of them is used, and nothing let go of.
pub(crate) fn is_forked() -> bool {
    IS_FORKED.load(Ordering::Relaxed)
}

/// Refuses work in a process that was forked from one that had opened devices, where it would wait for ever.
pub(crate) fn check_not_forked() -> Result {
    if !is_forked() {
        return Ok(());
    }
    let message = format!(
        "this process was forked from process {}, which had opened devices, and their threads are not here; open devices after \
         the fork alone, or start processes anew (multiprocessing.set_start_method(\"spawn\"))",
        OPENED_BY.get().copied().unwrap_or_default()
    );
    Err(Error::new("FAILED_PRECONDITION", message))
}
