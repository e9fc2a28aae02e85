// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A card from elsewhere: what a newcomer chooses that the template has not.
//!
//! Two heaps, of which the host maps only one; three queues that wait for each other's events; little room;
//! completions behind a file descriptor; executables in a format of its own beside the host's. `cargo xtask
//! test --only outside-driver` puts this in place of the template's source in a crate that `cargo xtask
//! new-backend` has made.

mod bytecode;
mod event;
mod queue;

use bytecode::Bytecode;
use event::Event;
use hal_backend::{
    Code, Completer, Completion, Device, DeviceInfo, DeviceSpec, Driver, Failure, Heap, HostLoader,
    HostProgram, HostRange, Inferred, Job, LoadRequest, Loaded, MemoryRequest, NativeWaits, Parameter,
    Parameters, Properties, Rejected,
};
use queue::{Queue, Reports};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

pub use queue::{FULL, NATIVE_WAITS};

hal_driver::export_driver!(iree_hal_acme_driver_module_register, Acme);

/// The driver behind `acme://`.
pub struct Acme;

impl Driver for Acme {
    type Device = Card;

    const NAME: &'static str = "acme";
    const FULL_NAME: &'static str = "A card that is software, outside the repository";
    const PARAMETERS: &'static [Parameter] = &[Parameter {
        name: "depth",
        values: "N",
        default: "2",
        effect: "jobs that a queue holds, 1 to 1024",
    }];

    fn create() -> Self {
        Self
    }

    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Failure> {
        Ok(vec![DeviceInfo { path: "0".into(), name: "a card of three threads".into() }])
    }

    fn open(&self, path: &str, parameters: &mut Parameters<'_>) -> Result<Card, Failure> {
        if !matches!(path, "" | "0") {
            return Err(Failure::new(Code::NotFound, format!("there is no acme://{path}, only acme://0")));
        }
        Card::open(parameters.number("depth", 2, 1, 1024)?)
    }
}

/// The heap of memory that the host cannot map.
const DEVICE: usize = 0;

/// The heap of memory that it can.
const HOST: usize = 1;

const QUEUES: usize = 3;

/// An allocation, and of which heap.
pub struct Memory {
    heap: usize,
    range: HostRange,
}

/// Something to run.
pub enum Executable {
    /// In the format of this card.
    Bytecode(Bytecode),
    /// In one of the host's.
    Host(Arc<dyn HostProgram>),
}

/// A card.
pub struct Card {
    queues: Vec<Arc<Queue>>,
    reports: Arc<Reports>,
    threads: Vec<JoinHandle<()>>,
}

impl Card {
    fn open(depth: usize) -> Result<Self, Failure> {
        let failed = |what: &str, error: std::io::Error| {
            Failure::new(Code::ResourceExhausted, format!("the card has no {what}: {error}"))
        };
        let reports = Arc::new(Reports::new().map_err(|error| failed("pipe", error))?);
        let mut card = Self { queues: Vec::new(), reports, threads: Vec::new() };
        for number in 0..QUEUES {
            let queue = Arc::new(Queue::new(depth, card.reports.clone()));
            card.queues.push(queue.clone());
            let thread = std::thread::Builder::new().name(format!("acme-{number}"));
            let thread = thread.spawn(move || queue.serve()).map_err(|error| failed("thread", error))?;
            card.threads.push(thread);
        }
        Ok(card)
    }
}

impl Device for Card {
    type Memory = Memory;
    type Executable = Executable;
    type Event = Arc<Event>;

    fn properties(&self) -> Properties {
        let heap = |host_visible| Heap {
            host_visible,
            coherent: host_visible,
            device_local: !host_visible,
            max_allocation: 1 << 36,
            alignment: 256,
            import_alignment: host_visible.then_some(64),
        };
        Properties {
            identifier: "acme".into(),
            aliases: vec!["local".into()],
            queues: DeviceSpec {
                queues: QUEUES,
                native_waits: NativeWaits::Events,
                completion: Completion::Descriptor,
            },
            heaps: vec![heap(false), heap(true)],
            concurrency: 1,
            host_processor: true,
        }
    }

    fn start(&self, completer: Completer) {
        self.reports.start(completer);
    }

    fn allocate(&self, request: &MemoryRequest) -> Result<Memory, Failure> {
        Ok(Memory { heap: request.heap, range: HostRange::allocate(request.length, 256)? })
    }

    fn import(&self, range: HostRange) -> Result<Memory, Failure> {
        Ok(Memory { heap: HOST, range })
    }

    fn host_view(&self, memory: &Memory) -> Option<HostRange> {
        (memory.heap != DEVICE).then(|| memory.range.clone())
    }

    fn supports(&self, format: &str, host: &dyn HostLoader) -> bool {
        format == bytecode::FORMAT || host.supports(format)
    }

    fn infer_format(&self, data: &[u8]) -> Option<Inferred> {
        let length = Bytecode::parse(data).ok()?.1;
        Some(Inferred { format: bytecode::FORMAT.into(), length: u64::try_from(length).ok()? })
    }

    fn load(&self, request: &LoadRequest<'_>, host: &dyn HostLoader) -> Result<Loaded<Executable>, Failure> {
        if request.format == bytecode::FORMAT {
            let (program, _) = Bytecode::parse(request.data)?;
            let functions = vec![program.function()];
            return Ok(Loaded { executable: Executable::Bytecode(program), functions });
        }
        // Each queue has a thread, which is the worker of its number.
        let program = host.load(request, QUEUES)?;
        let functions = program.functions().to_vec();
        Ok(Loaded { executable: Executable::Host(program), functions })
    }

    fn submit(&self, job: Job<Self>) -> Result<(), Rejected<Self>> {
        match self.queues.get(job.queue.index()) {
            Some(queue) => queue.push(job),
            None => Err(Rejected::Failed(Failure::new(Code::Internal, "the card has no such queue"))),
        }
    }

    fn create_event(&self) -> Result<Arc<Event>, Failure> {
        Ok(Arc::default())
    }

    fn poll(&self) {
        self.reports.deliver();
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.reports.as_fd())
    }

    fn clock(&self) -> Option<u64> {
        Some(self.reports.clock())
    }

    fn abort(&self, why: &Failure) {
        for queue in &self.queues {
            queue.abort(why);
        }
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        for queue in &self.queues {
            queue.stop();
        }
        let me = std::thread::current().id();
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != me) {
            let _ = thread.join();
        }
    }
}
