// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The device: its properties, memory, executables and queues.

use crate::event::MockEvent;
use crate::executable::Executable;
use crate::memory::{ALIGNMENT, Budget, MockMemory};
use crate::options::Options;
use crate::queue::Hardware;
use crate::workers::Workers;
use hal_backend::{
    Code, Completer, Device, DeviceSpec, Failure, Heap, HostLoader, HostRange, Job, LoadRequest, Loaded,
    MemoryRequest, Properties, Rejected,
};
use std::sync::Arc;

/// A mock device.
pub struct MockDevice {
    properties: Properties,
    /// The free bytes of each heap.
    memory: Vec<Arc<Budget>>,
    hardware: Arc<Hardware>,
    /// Ends the threads when the device is dropped.
    _workers: Workers,
}

impl std::fmt::Debug for MockDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MockDevice").field("properties", &self.properties).finish_non_exhaustive()
    }
}

impl MockDevice {
    pub(crate) fn open(number: usize, options: Options) -> Result<Self, Failure> {
        let properties = Properties {
            identifier: "mock".to_owned(),
            // Compilers know no mock device: modules that are compiled for the host call theirs `local`.
            aliases: vec![format!("mock-{number}"), "local-mock".to_owned(), "local".to_owned()],
            queues: DeviceSpec {
                queues: options.queues,
                native_waits: options.waits,
                completion: options.completion,
            },
            heaps: heaps(&options),
            concurrency: options.workers,
            host_processor: true,
        };
        let memory = properties.heaps.iter().map(|heap| Budget::new(heap.max_allocation)).collect();
        let count = options.workers;
        let hardware = Hardware::new(options)?;
        let workers = Workers::start(&hardware, count)?;
        Ok(Self { properties, memory, hardware, _workers: workers })
    }
}

/// The heaps. If there are two, the host cannot map the device's own, as on a card.
fn heaps(options: &Options) -> Vec<Heap> {
    let heap = |host_visible, device_local| Heap {
        host_visible,
        coherent: host_visible,
        device_local,
        max_allocation: options.memory,
        alignment: ALIGNMENT,
        import_alignment: host_visible.then_some(ALIGNMENT),
    };
    match options.heaps {
        2 => vec![heap(false, true), heap(true, false)],
        _ => vec![heap(true, true)],
    }
}

impl Device for MockDevice {
    type Memory = MockMemory;
    type Executable = Executable;
    type Event = MockEvent;

    fn properties(&self) -> Properties {
        self.properties.clone()
    }

    fn start(&self, completer: Completer) {
        self.hardware.reports().reporter().start(completer);
    }

    fn allocate(&self, request: &MemoryRequest) -> Result<MockMemory, Failure> {
        self.hardware.faults().allocate()?;
        let number = request.heap;
        match (self.memory.get(number), self.properties.heaps.get(number)) {
            (Some(budget), Some(heap)) => budget.allocate(request.length, heap.host_visible),
            _ => Err(Failure::new(Code::Internal, format!("the device has no heap {number}"))),
        }
    }

    fn import(&self, range: HostRange) -> Result<MockMemory, Failure> {
        Ok(MockMemory::imported(range))
    }

    fn follows_mappings(&self) -> bool {
        true
    }

    fn host_view(&self, memory: &MockMemory) -> Option<HostRange> {
        memory.is_visible.then(|| memory.range.clone())
    }

    fn supports(&self, format: &str, host: &dyn HostLoader) -> bool {
        host.supports(format)
    }

    fn load(&self, request: &LoadRequest<'_>, host: &dyn HostLoader) -> Result<Loaded<Executable>, Failure> {
        // One more for each queue, whose work a thread may do itself.
        let executable = host.load(request, self.properties.concurrency + self.properties.queues.queues)?;
        let functions = executable.functions().to_vec();
        Ok(Loaded { executable: Executable::new(executable), functions })
    }

    fn addresses(&self) -> Option<fn(&MockMemory) -> u64> {
        Some(|memory| memory.range.address() as u64)
    }

    fn submit(&self, job: Job<Self>) -> Result<(), Rejected<Self>> {
        self.hardware.submit(job)
    }

    fn kick(&self, queue: usize) {
        self.hardware.kick(queue);
    }

    fn create_event(&self) -> Result<MockEvent, Failure> {
        Ok(MockEvent::default())
    }

    fn poll(&self) {
        self.hardware.reports().deliver();
    }

    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.hardware.reports().descriptor()
    }

    fn abort(&self, why: &Failure) {
        self.hardware.abort(why);
    }

    fn clock(&self) -> Option<u64> {
        Some(self.hardware.clock())
    }
}
