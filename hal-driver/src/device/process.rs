// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Which process the open devices belong to.
//!
//! A forked process has its parent's memory and none of its threads. A lock that one of these had stays taken there,
//! among them those inside of libraries, and a device that is opened there may wait for one for ever. So no device is
//! opened in a process that was forked while its parent had one open.

use crate::ffi::status::Result;
use hal_semaphore::{Code, Failure};
use std::sync::atomic::{AtomicU64, Ordering};

/// The process that has devices open, and below it their number.
static OPEN: AtomicU64 = AtomicU64::new(0);

const COUNT: u64 = u32::MAX as u64;

/// A device that this process has open, until this is dropped.
pub(crate) struct OpenDevice {
    process: u64,
}

impl OpenDevice {
    /// Refuses a process that was forked while its parent had a device open.
    pub(crate) fn new() -> Result<Self> {
        let process = u64::from(std::process::id());
        Self::count(&OPEN, process)?;
        Ok(Self { process })
    }

    fn count(open: &AtomicU64, process: u64) -> Result {
        let next = |open: u64| {
            (open & COUNT == 0 || open >> 32 == process).then(|| (process << 32 | open & COUNT) + 1)
        };
        let counted = open.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        counted.map(drop).map_err(|open| {
            let message = format!(
                "this process was forked while its parent, process {}, had devices open, and has none of the threads \
                 that serve them; open no device before the fork, or start the process anew instead (Python: \
                 multiprocessing.set_start_method(\"spawn\"))",
                open >> 32
            );
            Failure::new(Code::FailedPrecondition, message)
        })
    }

    fn uncount(open: &AtomicU64, process: u64) {
        // A copy in a forked process is none of that process's.
        let next = |open: u64| (open >> 32 == process).then(|| open - 1);
        let _ = open.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        if u64::from(std::process::id()) == self.process {
            Self::uncount(&OPEN, self.process);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_refused_while_it_has_its_parents_devices() {
        let open = AtomicU64::new(0);
        for _ in 0..2 {
            OpenDevice::count(&open, 7).unwrap();
        }
        let refused = OpenDevice::count(&open, 8).unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains("process 7") && refused.message().contains("spawn"), "{refused}");
        OpenDevice::uncount(&open, 8);
        OpenDevice::uncount(&open, 7);
        assert!(OpenDevice::count(&open, 8).is_err());
        OpenDevice::uncount(&open, 7);
        OpenDevice::count(&open, 8).unwrap();
        OpenDevice::count(&open, 8).unwrap();
        assert!(OpenDevice::count(&open, 7).is_err());
    }
}
