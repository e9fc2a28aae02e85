//! The device: what it is, and its memory, executables and queue for the driver.

use crate::executable::{Executable, FORMAT};
use crate::kmd::Device as Client;
use crate::memory::Memory;
use crate::networks::{Networks, Settings};
use crate::queue::Queue;
use hal_backend::{
    Code, Completer, Completion, Device, DeviceSpec, Failure, Heap, HostLoader, HostRange, Job, LoadRequest,
    Loaded, NativeWaits, Properties, Rejected,
};
use hal_emulation::clock;
use hal_emulation::programs::Programs;
use hal_qaic_abi::uapi::PAGE;
use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The most that one buffer can have: as much as the largest card has memory, though a buffer is the host's.
const LARGEST: u64 = 32 << 30;

/// A device.
pub struct QaicDevice {
    client: Arc<Client>,
    queue: Arc<Queue>,
    programs: Option<Arc<dyn Programs>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for QaicDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QaicDevice").field("client", &self.client).finish_non_exhaustive()
    }
}

impl QaicDevice {
    /// A device of an open client; with who keeps host executables, if it is software.
    pub(crate) fn new(
        client: Client,
        programs: Option<Arc<dyn Programs>>,
        settings: Settings,
    ) -> Result<Self, Failure> {
        let client = Arc::new(client);
        let queue = Queue::new(client.card().name());
        let (served, networks) = (queue.clone(), Networks::new(client.clone(), settings));
        let builder = std::thread::Builder::new().name("qaic".to_owned());
        let thread = builder.spawn(move || served.serve(networks, settings)).map_err(|error| {
            Failure::new(Code::ResourceExhausted, format!("the device has no thread: {error}"))
        })?;
        Ok(Self { client, queue, programs, thread: Some(thread) })
    }

    /// The client that it is.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Whether it is software.
    pub fn is_emulated(&self) -> bool {
        self.programs.is_some()
    }
}

impl Device for QaicDevice {
    type Memory = Memory;
    type Executable = Executable;
    type Event = ();

    fn properties(&self) -> Properties {
        let emulated = self.is_emulated();
        let aliases = if emulated { vec!["local-qaic".to_owned(), "local".to_owned()] } else { Vec::new() };
        Properties {
            identifier: "qaic".to_owned(),
            aliases,
            queues: DeviceSpec {
                queues: 1,
                // The kernel shows no semaphore of the device's to programs.
                native_waits: NativeWaits::None,
                peers: Vec::new(),
                completion: Completion::Callback,
            },
            heaps: vec![Heap {
                host_visible: true,
                coherent: true,
                // There is no other memory that a program's buffer could be in.
                device_local: true,
                max_allocation: LARGEST,
                alignment: PAGE,
                import_alignment: Some(64),
            }],
            concurrency: 1,
            host_processor: emulated,
        }
    }

    fn start(&self, completer: Completer) {
        self.queue.start(completer);
    }

    fn allocate(&self, heap: usize, length: u64) -> Result<Memory, Failure> {
        if heap != 0 {
            return Err(Failure::new(Code::OutOfRange, format!("this device has no heap number {heap}")));
        }
        let card = self.client.card();
        Memory::allocate(card, length).map_err(|error| error.failure(card.name()))
    }

    fn import(&self, range: HostRange) -> Result<Memory, Failure> {
        Ok(Memory::import(range))
    }

    fn host_view(&self, memory: &Memory) -> Option<HostRange> {
        Some(memory.view().clone())
    }

    fn supports(&self, format: &str, host: &dyn HostLoader) -> bool {
        format == FORMAT || (self.is_emulated() && host.supports(format))
    }

    fn load(&self, request: &LoadRequest<'_>, host: &dyn HostLoader) -> Result<Loaded<Executable>, Failure> {
        let executable = if request.format == FORMAT {
            Executable::network(request.data, &self.queue)?
        } else if let Some(programs) = &self.programs {
            let program = host.load(request, programs.workers())?;
            Executable::program(program, programs, &self.queue)
        } else {
            let message = format!(
                "a card runs networks of format {FORMAT}, not {:?}, which only an emulated one does",
                request.format
            );
            return Err(Failure::new(Code::Incompatible, message));
        };
        let functions = executable.functions();
        Ok(Loaded { executable, functions })
    }

    fn submit(&self, job: Job<Self>) -> Result<(), Rejected<Self>> {
        self.queue.submit(job)
    }

    fn abort(&self, why: &Failure) {
        self.queue.abort(why);
    }

    fn clock(&self) -> Option<u64> {
        Some(clock())
    }
}

impl Drop for QaicDevice {
    fn drop(&mut self) {
        self.queue.stop();
        let me = std::thread::current().id();
        // The last reference may be dropped from inside a completion, on the device's own thread.
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != me) {
            // A thread that panicked has nothing left to say.
            let _ = thread.join();
        }
    }
}
