// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What devices that tests make themselves have in common.

use hal_backend::{Completion, DeviceSpec, Heap, NativeWaits, Properties};

/// Memory that the host and the device both see as it is.
pub(crate) const HEAP: Heap = Heap {
    host_visible: true,
    coherent: true,
    device_local: true,
    max_allocation: 1 << 30,
    alignment: 64,
    import_alignment: None,
};

/// One queue, which waits for nothing natively and reports by itself.
pub(crate) const QUEUE: DeviceSpec = DeviceSpec {
    queues: 1,
    native_waits: NativeWaits::None,
    peers: Vec::new(),
    completion: Completion::Callback,
};

/// A device with such a queue and such memory. A test changes what it is about.
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
