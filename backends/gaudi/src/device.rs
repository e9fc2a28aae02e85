// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The device: what it is, and its memory, executables and queues for the driver.

use crate::dma::Dma;
use crate::executable::{Container, Entry, FORMAT, IDENTIFIER, MAX_TEMPLATE};
use crate::generation::{Capabilities, Generation};
use crate::ipc::Ipc;
use crate::kmd::{Card, clock};
use crate::memory::{DEVICE_ALIGNMENT, Heap, Memory, Region};
use crate::open_card::OpenCard;
use crate::options::Options;
use crate::plan::Planner;
use crate::queue::Queues;
use crate::submit::Submitter;
use hal_backend::{
    Code, Completer, Completion, Device, DeviceSpec, Failure, Function, Heap as HeapInfo, HostCall,
    HostLoader, HostProgram, HostRange, Inferred, Job, LoadRequest, Loaded, MemoryRequest, NativeWaits,
    Properties, Rejected,
};
use hal_gaudi_abi::programs::{CardPrograms, ProgramCall};
use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
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
    /// A device of an open card; with who runs host executables for it, if it is software.
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
        let mut aliases = vec![format!("gaudi-{}", number), name(generation).to_owned()];
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
                peers: Vec::new(),
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
        let name = format!("gaudi-{}", number);
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
        let started =
            self.queues.reporter.spawn(name, move || body(&queues), move |why| panicked(&left, why));
        let thread = started.map_err(|error| {
            Failure::new(Code::ResourceExhausted, format!("{} has no thread: {error}", self.card.name()))
        })?;
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

/// A loaded executable.
pub struct Executable {
    /// The card that it is loaded on, and no other.
    card: Arc<Card>,
    pub(crate) code: DeviceCode,
}

/// The functions of an executable.
pub(crate) enum DeviceCode {
    /// Packets of a compiler, and the device memory that they use.
    Container(ContainerCode),
    /// A host program that an emulated card runs.
    Program(ProgramCode),
}

/// The functions of a container.
pub(crate) struct ContainerCode {
    entries: Vec<Entry>,
    /// The device addresses of the data segments.
    pub(crate) data: Vec<u64>,
    /// The memory that the segments are in.
    _memory: Vec<Memory>,
}

impl ContainerCode {
    /// One of the functions.
    pub(crate) fn entry(&self, number: usize) -> Result<&Entry, Failure> {
        self.entries.get(number).ok_or_else(|| no_function(number, self.entries.len()))
    }
}

/// A host program that an emulated card keeps.
pub(crate) struct ProgramCode {
    pub(crate) card: Arc<dyn CardPrograms>,
    pub(crate) number: u64,
    functions: Vec<Function>,
}

impl ProgramCode {
    /// One of the functions.
    pub(crate) fn function(&self, number: usize) -> Result<&Function, Failure> {
        self.functions.get(number).ok_or_else(|| no_function(number, self.functions.len()))
    }
}

impl Drop for ProgramCode {
    fn drop(&mut self) {
        self.card.host().unload(self.number);
    }
}

#[cold]
fn no_function(number: usize, count: usize) -> Failure {
    let message = format!("the executable has {count} functions, none with number {number}");
    Failure::new(Code::OutOfRange, message)
}

/// Refuses a function whose call would not fit into a slot of a command buffer.
fn check_function(card: &dyn CardPrograms, function: &Function) -> Result<(), Failure> {
    let Function { bindings, constants, .. } = *function;
    let call = ProgramCall {
        bindings: &vec![(0, 0); bindings.into()],
        constants: &vec![0; constants.into()],
        ..ProgramCall::default()
    };
    let length = card.encode(&call)?.len();
    if length <= MAX_TEMPLATE {
        return Ok(());
    }
    let message = format!(
        "function {:?}: {bindings} bindings and {constants} constants need a packet of {length} bytes, and \
         {MAX_TEMPLATE} is the most",
        function.name
    );
    Err(Failure::new(Code::InvalidArgument, message))
}

/// A host program whose failures are noted on its card: an engine that fails has its card reset, and the kernel
/// driver does not say why.
struct NotingProgram {
    program: Arc<dyn HostProgram>,
    card: Weak<Card>,
}

impl HostProgram for NotingProgram {
    fn functions(&self) -> &[Function] {
        self.program.functions()
    }

    fn run(&self, call: &HostCall<'_>, workgroups: Range<u64>, worker: usize) -> Result<(), Failure> {
        self.program.run(call, workgroups, worker).inspect_err(|failure| {
            if let Some(card) = self.card.upgrade() {
                card.note(failure.message());
            }
        })
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executable").field("card", &self.card).finish_non_exhaustive()
    }
}

impl Executable {
    /// True if it is loaded on this card.
    pub(crate) fn is_of(&self, card: &Arc<Card>) -> bool {
        Arc::ptr_eq(&self.card, card)
    }
}

impl GaudiDevice {
    /// Loads a container, and puts into device memory what it keeps there.
    fn load_container(&self, bytes: &[u8]) -> Result<Loaded<Executable>, Failure> {
        let container = Container::read(bytes, self.card.generation())?;
        let (mut data, mut memories) = (Vec::new(), Vec::new());
        for segment in &container.data {
            let length = segment.bytes.len() as u64;
            let alignment = u64::from(segment.alignment.max(1));
            // Memory begins with a page; a segment with a larger alignment is placed inside.
            let spare = if alignment > DEVICE_ALIGNMENT { alignment } else { 0 };
            let memory = self.device.allocate(length + spare)?;
            let address = memory.address().next_multiple_of(alignment);
            let source = HostRange::allocate(length, 64)?;
            if !source.write(0, &segment.bytes) {
                return Err(Failure::new(Code::Internal, "a data segment does not fit into its own length"));
            }
            self.dma.host_to_device(&source, address)?.wait()?;
            data.push(address);
            memories.push(memory);
        }
        let functions = container.entries.iter().map(Entry::function).collect();
        let code = ContainerCode { entries: container.entries, data, _memory: memories };
        let executable = Executable { card: self.card.clone(), code: DeviceCode::Container(code) };
        Ok(Loaded { executable, functions })
    }

    /// Gives a host program to the emulated card, which runs it.
    fn load_program(
        &self,
        card: &Arc<dyn CardPrograms>,
        program: Arc<dyn HostProgram>,
    ) -> Result<Loaded<Executable>, Failure> {
        let functions = program.functions().to_vec();
        functions.iter().try_for_each(|function| check_function(&**card, function))?;
        let number = card.host().load(Arc::new(NotingProgram { program, card: Arc::downgrade(&self.card) }));
        let code = ProgramCode { card: card.clone(), number, functions: functions.clone() };
        let executable = Executable { card: self.card.clone(), code: DeviceCode::Program(code) };
        Ok(Loaded { executable, functions })
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
            return self.load_container(request.data);
        }
        let Some(programs) = &self.programs else {
            let message = format!(
                "a card runs executables of format {FORMAT}, not {:?}, which only an emulated one does",
                request.format
            );
            return Err(Failure::new(Code::Incompatible, message));
        };
        let program = host.load(request, programs.host().workers())?;
        self.load_program(programs, program)
    }

    fn submit(&self, job: Job<Self>) -> Result<(), Rejected<Self>> {
        self.queues.submit(job)
    }

    fn abort(&self, why: &Failure) {
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
