// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The device's properties, memory, executables and queues for the driver.

use crate::dma::Dma;
use crate::executable::{Executable, FORMAT, IDENTIFIER};
use crate::generation::{Capabilities, Generation};
use crate::ipc::Ipc;
use crate::kmd::{Card, clock};
use crate::memory::{Heap, Memory, Region};
use crate::open_card::OpenCard;
use crate::options::Options;
use crate::plan::Planner;
use crate::queue::Queues;
use crate::submit::Submitter;
use hal_backend::{
    Code, Completer, Completion, Device, DeviceSpec, Failure, Heap as HeapInfo, HostLoader, HostRange,
    Inferred, Job, LoadRequest, Loaded, MemoryRequest, NativeWaits, Properties, Rejected,
};
use hal_gaudi_abi::programs::CardPrograms;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// The alignment of imported host memory. Cards read and write single bytes of it; programs are compiled for that much.
const IMPORT_ALIGNMENT: u64 = 64;

/// The numbers of heaps.
const DEVICE_HEAP: usize = 0;
const HOST_HEAP: usize = 1;

/// A card as a device.
pub struct GaudiDevice {
    properties: Properties,
    device: Arc<Heap>,
    host: Arc<Heap>,
    ipc: Ipc,
    dma: Arc<Dma>,
    queues: Arc<Queues>,
    /// Runs host executables, if the card is emulated.
    programs: Option<Arc<dyn CardPrograms>>,
    threads: Vec<JoinHandle<()>>,
    // Closed behind everything that uses it.
    card: Arc<Card>,
}

impl fmt::Debug for GaudiDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GaudiDevice").field("card", &self.card).finish_non_exhaustive()
    }
}

impl GaudiDevice {
    /// A device of an open card; `programs` runs host executables for it, if it is emulated.
    pub(crate) fn new(
        shared: &Arc<OpenCard>,
        programs: Option<Arc<dyn CardPrograms>>,
        number: usize,
        options: &Options,
    ) -> Result<Self, Failure> {
        let OpenCard { card, device, host, .. } = &**shared;
        let (card, device, host) = (card.clone(), device.clone(), host.clone());
        let submitter = Arc::new(Submitter::new(shared, options.in_flight, options.timeout));
        let planner = Planner { card: card.clone(), host: host.clone(), device: device.clone() };
        let queues = Queues::new(planner, submitter.clone())?;
        let emulated = programs.is_some();
        let generation = card.generation();
        let mut aliases = vec![format!("gaudi-{number}"), name(generation).to_owned()];
        if emulated {
            // An emulated card runs host code, and compilers name the host `local`.
            aliases.extend(["local-gaudi".to_owned(), "local".to_owned()]);
        }
        let heap = |host_visible: bool, max_allocation, alignment| HeapInfo {
            host_visible,
            coherent: host_visible,
            device_local: !host_visible,
            max_allocation,
            alignment,
            import_alignment: host_visible.then_some(IMPORT_ALIGNMENT),
        };
        let properties = Properties {
            identifier: "gaudi".to_owned(),
            aliases,
            queues: DeviceSpec {
                queues: generation.queues(),
                native_waits: NativeWaits::Epochs,
                completion: Completion::Callback,
            },
            heaps: vec![
                heap(false, card.hardware().dram_size, device.alignment()),
                heap(true, 1 << 40, host.alignment()),
            ],
            concurrency: 1,
            host_processor: emulated,
        };
        let dma = Arc::new(Dma::new(shared, submitter));
        let ipc = Ipc::new(dma.clone(), device.clone(), options.ipc.clone());
        let mut made =
            Self { properties, device, host, ipc, dma, queues, programs, threads: Vec::new(), card };
        // Made before its threads, so that those that were started end when another one cannot be.
        let name = format!("gaudi-{number}");
        made.start_thread(&name, Queues::serve, Queues::server_panicked)?;
        let name = format!("{name}-errors");
        made.start_thread(&name, Queues::watch_for_reset, Queues::watcher_panicked)?;
        Ok(made)
    }

    fn start_thread(
        &mut self,
        name: &str,
        body: fn(&Queues),
        panicked: fn(&Queues, &Failure),
    ) -> Result<(), Failure> {
        let (queues, left) = (self.queues.clone(), self.queues.clone());
        let panicked = move |why: &Failure| panicked(&left, why);
        let thread = self.queues.reporter.spawn(name, move || body(&queues), panicked)?;
        self.threads.push(thread);
        Ok(())
    }

    /// The card.
    pub fn card(&self) -> &Arc<Card> {
        &self.card
    }

    /// True for an emulated card.
    pub fn is_emulated(&self) -> bool {
        self.programs.is_some()
    }

    /// Transfers beside the queues.
    pub fn dma(&self) -> &Arc<Dma> {
        &self.dma
    }

    /// Its memory for others, and others' for it.
    pub fn ipc(&self) -> &Ipc {
        &self.ipc
    }
}

/// The name of a generation in a module's device patterns.
fn name(generation: Generation) -> &'static str {
    match generation {
        Generation::Gaudi1 => "gaudi1",
        Generation::Gaudi2 => "gaudi2",
    }
}

impl Device for GaudiDevice {
    type Memory = Memory;
    type Executable = Executable;
    type Event = ();

    fn properties(&self) -> Properties {
        self.properties.clone()
    }

    fn start(&self, completer: Completer) {
        self.queues.reporter.start(completer);
    }

    fn allocate(&self, request: &MemoryRequest) -> Result<Memory, Failure> {
        match request.heap {
            DEVICE_HEAP => self.device.allocate(request.length),
            HOST_HEAP => self.host.allocate(request.length),
            heap => Err(Failure::new(Code::OutOfRange, format!("this device has no heap number {heap}"))),
        }
    }

    fn import(&self, range: HostRange) -> Result<Memory, Failure> {
        let length = range.length();
        let region = Region::host(&self.card, range).map_err(|errno| {
            let what = format!(
                "{length} bytes of host memory cannot be used in place: they may be read-only, or too many to be pinned"
            );
            self.card.failure(&what, errno)
        })?;
        Ok(Memory::whole(region))
    }

    fn import_dma_buf(&self, buffer: BorrowedFd<'_>, length: u64) -> Result<Memory, Failure> {
        self.ipc.foreign(buffer, length)
    }

    fn exports(&self, heap: usize) -> bool {
        heap == DEVICE_HEAP && self.ipc.settings().dmabuf
    }

    fn export(&self, memory: &Memory) -> Result<OwnedFd, Failure> {
        self.ipc.descriptor(memory)
    }

    fn host_view(&self, memory: &Memory) -> Option<HostRange> {
        memory.host_view()
    }

    fn supports(&self, format: &str, host: &dyn HostLoader) -> bool {
        format == FORMAT || (self.programs.is_some() && host.supports(format))
    }

    fn infer_format(&self, data: &[u8]) -> Option<Inferred> {
        let identifier = data.get(4..8)?;
        (identifier == IDENTIFIER.as_bytes())
            .then(|| Inferred { format: FORMAT.to_owned(), length: data.len() as u64 })
    }

    fn load(&self, request: &LoadRequest<'_>, host: &dyn HostLoader) -> Result<Loaded<Executable>, Failure> {
        if request.format == FORMAT {
            return Executable::of_container(&self.card, &self.device, &self.dma, request.data);
        }
        let Some(programs) = &self.programs else {
            let message = format!(
                "a card runs executables of format {FORMAT}, not {:?}, which only an emulated one does",
                request.format
            );
            return Err(Failure::new(Code::Incompatible, message));
        };
        let program = host.load(request, programs.host().workers())?;
        Executable::of_program(&self.card, programs, program)
    }

    fn submit(&self, job: Job<Self>) -> Result<(), Rejected<Self>> {
        self.queues.submit(job)
    }

    fn abort(&self, why: &Failure) {
        self.card.ends_programs.store(true, Ordering::Relaxed);
        self.queues.abort(why);
    }

    fn trim(&self) {
        self.device.trim();
        self.host.trim();
    }

    fn clock(&self) -> Option<u64> {
        Some(clock())
    }
}

impl Drop for GaudiDevice {
    fn drop(&mut self) {
        // Jobs in flight end first: the kernel resets a card that is closed in the middle of its work.
        self.dma.finish();
        self.queues.stop();
        let me = std::thread::current().id();
        // The last reference may be dropped from inside a completion, on the device's own thread.
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != me) {
            // A thread that panicked has nothing left to say.
            let _ = thread.join();
        }
    }
}
