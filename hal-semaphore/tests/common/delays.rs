// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! How long a thread was kept from its processor: what the machine adds to a time, not the engine.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::time::Duration;

/// How long a thread was ready to run and did not, by Linux's `schedstat`; `None` on other kernels. A lock that
/// a thread sleeps for does not count.
pub(crate) struct Delays(Option<File>);

impl Delays {
    /// Of the calling thread, wherever the file is read later.
    pub(crate) fn of_this_thread() -> Self {
        Self(File::open("/proc/thread-self/schedstat").ok())
    }

    pub(crate) fn read(&mut self) -> Duration {
        let delay = |file: &mut File| {
            let mut text = String::new();
            file.rewind().and_then(|()| file.read_to_string(&mut text)).ok()?;
            text.split_whitespace().nth(1)?.parse::<u64>().ok()
        };
        Duration::from_nanos(self.0.as_mut().and_then(delay).unwrap_or_default())
    }
}
