// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Another process that sends its buffers, and takes them along when it goes.

use super::import::Import;
use super::{Ipc, receive};
use hal_backend::Failure;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::OwnedFd;

/// A connection to a process that exports. When it hangs up, or this is dropped, nothing of its is kept any more;
/// imports that are in use stay until they are dropped.
pub struct Peer<'a> {
    socket: OwnedFd,
    ipc: &'a Ipc,
    exporters: Mutex<BTreeSet<u64>>,
}

impl fmt::Debug for Peer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer").field("exporters", &self.exporters.lock()).finish_non_exhaustive()
    }
}

impl<'a> Peer<'a> {
    /// Handles that come over a socket are imported on the card of `ipc`.
    pub fn new(socket: OwnedFd, ipc: &'a Ipc) -> Self {
        Self { socket, ipc, exporters: Mutex::default() }
    }

    /// Waits for a buffer. Nothing, if the other side has hung up.
    pub fn receive(&self) -> Result<Option<Import>, Failure> {
        let Some((handle, buffer)) = receive(&self.socket)? else {
            self.forget();
            return Ok(None);
        };
        self.exporters.lock().insert(handle.exporter);
        self.ipc.import(&handle, buffer).map(Some)
    }

    fn forget(&self) {
        for exporter in std::mem::take(&mut *self.exporters.lock()) {
            self.ipc.forget(exporter, None);
        }
    }
}

impl Drop for Peer<'_> {
    fn drop(&mut self) {
        self.forget();
    }
}
