// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Common properties of the tests' own devices.

use hal_backend::{Completion, DeviceSpec, Heap, NativeWaits, Properties};

/// Coherent memory that the host can map.
pub(crate) const HEAP: Heap = Heap {
    host_visible: true,
    coherent: true,
    device_local: true,
    max_allocation: 1 << 30,
    alignment: 64,
    import_alignment: None,
};

/// One queue without native waits, which reports by callback.
pub(crate) const QUEUE: DeviceSpec =
    DeviceSpec { queues: 1, native_waits: NativeWaits::None, completion: Completion::Callback };

/// A device with this queue and heap. A test changes what it needs.
pub(crate) fn properties(identifier: &str) -> Properties {
    Properties {
        identifier: identifier.into(),
        aliases: Vec::new(),
        queues: QUEUE,
        heaps: vec![HEAP],
        concurrency: 1,
        host_processor: false,
    }
}
