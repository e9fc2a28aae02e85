// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The device's properties, memory, executables and queues for the driver.

use crate::executable::{Executable, FORMAT};
use crate::kmd::Device as Client;
use crate::memory::Memory;
use crate::networks::{Networks, Settings};
use crate::queue::{Completions, QUEUES, Queues, Submissions};
use hal_backend::{
    Code, Completer, Completion, Device, DeviceSpec, Failure, Heap, HostLoader, HostRange, Job, LoadRequest,
    Loaded, MemoryRequest, NativeWaits, Properties, Rejected, Reporter,
};
use hal_kernel::clock;
use hal_qaic_abi::programs::CardPrograms;
use hal_qaic_abi::uapi::PAGE;
use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The most that one buffer can have: as much as the largest card has memory, though a buffer is the host's.
const LARGEST: u64 = 32 << 30;

/// A device.
pub struct QaicDevice {
    client: Arc<Client>,
    queues: Arc<Queues>,
    reporter: Reporter,
    programs: Option<Arc<dyn CardPrograms>>,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for QaicDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QaicDevice").field("client", &self.client).finish_non_exhaustive()
    }
}

impl QaicDevice {
    /// A device of an open client; `programs` keeps host executables, if the card is emulated.
    pub(crate) fn new(
        client: Client,
        programs: Option<Arc<dyn CardPrograms>>,
        settings: Settings,
    ) -> Result<Self, Failure> {
        let client = Arc::new(client);
        let queues = Queues::new(client.card().name());
        let networks = Networks::new(client.clone(), settings);
        let submissions = Submissions::new(&queues, networks, settings);
        let completions = Completions::new(&queues, settings.timeout);
        let reporter = Reporter::default();
        let mut device = Self { client, queues, reporter, programs, threads: Vec::new() };
        // Each that was started ends when the device is dropped, on error too.
        device.spawn("qaic", || submissions.serve(), Queues::submissions_panicked)?;
        device.spawn("qaic-ended", || completions.serve(), Queues::thread_panicked)?;
        Ok(device)
    }

    fn spawn(
        &mut self,
        name: &str,
        work: impl FnOnce() + Send + 'static,
        panicked: fn(&Queues, &Failure),
    ) -> Result<(), Failure> {
        let queues = self.queues.clone();
        self.threads.push(self.reporter.spawn(name, work, move |why| panicked(&queues, why))?);
        Ok(())
    }

    /// Its queues.
    #[cfg(test)]
    pub(crate) fn queues(&self) -> &Arc<Queues> {
        &self.queues
    }

    /// The client that it is.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// True for an emulated card.
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
                queues: QUEUES,
                // The kernel shows no semaphore of the device's to programs.
                native_waits: NativeWaits::None,
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
        self.reporter.start(completer);
        self.queues.start(Box::new(self.reporter.clone()));
    }

    fn allocate(&self, request: &MemoryRequest) -> Result<Memory, Failure> {
        if request.heap != 0 {
            let message = format!("this device has no heap number {}", request.heap);
            return Err(Failure::new(Code::OutOfRange, message));
        }
        let card = self.client.card();
        Memory::allocate(card, request.length).map_err(|error| error.failure(card.name()))
    }

    fn import(&self, range: HostRange) -> Result<Memory, Failure> {
        Ok(Memory::import(range))
    }

    fn follows_mappings(&self) -> bool {
        true
    }

    fn host_view(&self, memory: &Memory) -> Option<HostRange> {
        Some(memory.view().clone())
    }

    fn supports(&self, format: &str, host: &dyn HostLoader) -> bool {
        format == FORMAT || (self.is_emulated() && host.supports(format))
    }

    fn load(&self, request: &LoadRequest<'_>, host: &dyn HostLoader) -> Result<Loaded<Executable>, Failure> {
        let executable = if request.format == FORMAT {
            Executable::network(request.data, self.programs.as_ref(), &self.queues)?
        } else if let Some(programs) = &self.programs {
            let program = host.load(request, programs.host().workers())?;
            Executable::program(program, programs, &self.queues)
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
        self.queues.submit(job)
    }

    fn abort(&self, why: &Failure) {
        self.queues.abort(why);
        self.client.give_up();
    }

    fn clock(&self) -> Option<u64> {
        Some(clock())
    }
}

impl Drop for QaicDevice {
    fn drop(&mut self) {
        self.queues.stop();
        let me = std::thread::current().id();
        // The last reference may be dropped from inside a completion, on one of the device's own threads. The other
        // one may need this one to come to its end.
        if self.threads.iter().any(|thread| thread.thread().id() == me) {
            return;
        }
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing left to say.
            let _ = thread.join();
        }
    }
}
