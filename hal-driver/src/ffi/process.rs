// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Which process the open devices belong to.
//!
//! A forked process has its parent's memory and none of its threads. A lock that one of these had stays taken there,
//! among them those inside of libraries, and what the process does with a device may wait for one for ever. So a
//! process that was forked while its parent had a device open can do nothing: its calls are refused where they come
//! from C, and what it releases stays.

use crate::ffi::status::Result;
use hal_semaphore::{Code, Failure};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The number of devices that this process has open.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// True in a process that was forked while its parent had a device open. A flag, as every call reads it.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// A device that this process has open, until this is dropped.
pub(crate) struct OpenDevice(());

impl OpenDevice {
    pub(crate) fn new() -> Result<Self> {
        #[cfg(unix)]
        look_for_forks()?;
        OPEN.fetch_add(1, Ordering::Relaxed);
        Ok(Self(()))
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// True in a process that was forked while its parent had a device open.
#[inline]
pub(crate) fn is_forked() -> bool {
    IS_FORKED.load(Ordering::Relaxed)
}

/// Why nothing can be done in such a process.
#[cold]
pub(crate) fn forked() -> Failure {
    let message = "this process was forked while its parent had devices open, and has none of the threads that serve \
                   them; open no device before the fork, or start the process anew instead (Python: \
                   multiprocessing.set_start_method(\"spawn\"))";
    Failure::new(Code::FailedPrecondition, message)
}

/// Has every process that is forked from this one, and from its children, set the flag.
#[cfg(unix)]
fn look_for_forks() -> Result {
    extern "C" fn in_child() {
        if OPEN.load(Ordering::Relaxed) > 0 {
            IS_FORKED.store(true, Ordering::Relaxed);
        }
    }
    static LOOKS: AtomicBool = AtomicBool::new(false);

    // Threads that come here at the same time may each do it, which does no harm.
    if LOOKS.load(Ordering::Relaxed) {
        return Ok(());
    }
    // SAFETY: the function stays, as this library does, and does what a process may that was forked.
    let errno = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    if errno != 0 {
        let error = std::io::Error::from_raw_os_error(errno);
        return Err(Failure::new(Code::ResourceExhausted, format!("forks cannot be noticed: {error}")));
    }
    LOOKS.store(true, Ordering::Relaxed);
    Ok(())
}
