//! The device: what it is, and its memory, executables and queues for the driver.

use crate::memory::{ALIGNMENT, Budget, MockMemory};
use crate::options::Options;
use crate::program::Program;
use crate::queue::Hardware;
use crate::workers::Workers;
use hal_backend::{
    Completer, Completion, Device, DeviceSpec, Failure, Heap, HostLoader, HostRange, Job, LoadRequest,
    Loaded, Properties, Rejected,
};
use std::sync::Arc;

/// A mock device.
pub struct MockDevice {
    properties: Properties,
    memory: Arc<Budget>,
    hardware: Arc<Hardware>,
    /// Ends the threads when the device goes.
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
            // Compilers know no mock device: modules that are compiled for the host name theirs `local`.
            aliases: vec![format!("mock-{number}"), "local-mock".to_owned(), "local".to_owned()],
            queues: DeviceSpec {
                queues: options.queues,
                native_waits: options.waits,
                peers: Vec::new(),
                completion: Completion::Callback,
            },
            heaps: vec![Heap {
                host_visible: true,
                coherent: true,
                device_local: true,
                max_allocation: options.memory,
                alignment: ALIGNMENT,
                import_alignment: Some(ALIGNMENT),
            }],
            concurrency: options.workers,
            host_processor: true,
        };
        let (memory, count) = (Budget::new(options.memory), options.workers);
        let hardware = Hardware::new(options);
        let workers = Workers::start(&hardware, count)?;
        Ok(Self { properties, memory, hardware, _workers: workers })
    }
}

impl Device for MockDevice {
    type Memory = MockMemory;
    type Executable = Program;
    type Event = ();

    fn properties(&self) -> Properties {
        self.properties.clone()
    }

    fn start(&self, completer: Completer) {
        self.hardware.start(completer);
    }

    fn allocate(&self, _heap: usize, length: u64) -> Result<MockMemory, Failure> {
        self.hardware.faults().allocate()?;
        self.memory.allocate(length)
    }

    fn import(&self, range: HostRange) -> Result<MockMemory, Failure> {
        Ok(MockMemory::imported(range))
    }

    fn host_view(&self, memory: &MockMemory) -> Option<HostRange> {
        Some(memory.range.clone())
    }

    fn supports(&self, format: &str, host: &dyn HostLoader) -> bool {
        host.supports(format)
    }

    fn load(&self, request: &LoadRequest<'_>, host: &dyn HostLoader) -> Result<Loaded<Program>, Failure> {
        let executable = host.load(request, self.properties.concurrency)?;
        let functions = executable.functions().to_vec();
        Ok(Loaded { executable: Program::new(executable), functions })
    }

    fn submit(&self, job: Job<Self>) -> Result<(), Rejected<Self>> {
        self.hardware.submit(job)
    }

    fn kick(&self, queue: usize) {
        self.hardware.kick(queue);
    }

    fn abort(&self, why: &Failure) {
        self.hardware.abort(why);
    }

    fn clock(&self) -> Option<u64> {
        Some(self.hardware.clock())
    }
}
