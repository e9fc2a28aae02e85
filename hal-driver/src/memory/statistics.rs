// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Statistics: the allocated device memory and host memory.

use crate::ffi::object::to_device_size;
use hal_backend::Heap;
use hal_sys as sys;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The allocated bytes of the device's memory and of the host's, for `--print_device_statistics`.
#[derive(Default)]
pub(crate) struct Statistics {
    pub(crate) device: Arc<Counter>,
    pub(crate) host: Arc<Counter>,
}

#[derive(Default)]
pub(crate) struct Counter {
    allocated: AtomicU64,
    freed: AtomicU64,
    peak: AtomicU64,
}

impl Counter {
    pub(crate) fn add(self: &Arc<Self>, bytes: u64) -> CountedBytes {
        let allocated = self.allocated.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let live = allocated.saturating_sub(self.freed.load(Ordering::Relaxed));
        self.peak.fetch_max(live, Ordering::Relaxed);
        CountedBytes { counter: self.clone(), bytes }
    }

    /// The peak, the allocated and the freed bytes.
    pub(crate) fn read(&self) -> [sys::iree_device_size_t; 3] {
        [&self.peak, &self.allocated, &self.freed]
            .map(|number| to_device_size(number.load(Ordering::Relaxed)))
    }
}

impl Statistics {
    pub(crate) fn of(&self, heap: &Heap) -> &Arc<Counter> {
        if heap.device_local { &self.device } else { &self.host }
    }
}

/// Bytes that are counted until this is dropped.
pub(crate) struct CountedBytes {
    counter: Arc<Counter>,
    bytes: u64,
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.counter.freed.fetch_add(self.bytes, Ordering::Relaxed);
    }
}
