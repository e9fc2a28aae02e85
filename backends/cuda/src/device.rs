// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The device: its properties, memory, executables and queues.

use crate::executable::container::{self, CACHE_FORMAT, FORMAT};
use crate::executable::{Executable, Limits};
use crate::library::memory::Pool;
use crate::library::{Attribute, Context, CudaError, Gpu};
use crate::memory::{ALIGNMENT, IMPORT_ALIGNMENT, Imports, Memory, PinnedCache};
use crate::options::Options;
use crate::queue::{Queues, Watcher};
use hal_backend::{
    Code, Completer, Completion, Device, DeviceSpec, Failure, Heap, HostLoader, HostRange, Inferred, Job,
    LoadRequest, Loaded, MemoryRequest, NativeWaits, Properties, Rejected,
};
use std::sync::Arc;

/// A card, or a part of one that CUDA shows as a card.
pub struct NvidiaDevice {
    properties: Properties,
    /// Ends the thread, and waits for it, before everything else goes.
    _watcher: Watcher,
    queues: Arc<Queues>,
    pool: Arc<Pool>,
    pinned: Arc<PinnedCache>,
    imports: Arc<Imports>,
    context: Arc<Context>,
}

impl std::fmt::Debug for NvidiaDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NvidiaDevice").field("properties", &self.properties).finish_non_exhaustive()
    }
}

impl NvidiaDevice {
    pub(crate) fn open(gpu: &Gpu, options: &Options) -> Result<Self, Failure> {
        gpu.check()?;
        let failure = |error: CudaError| error.failure(format_args!("opening card {}", gpu.number));
        let context = Context::new(gpu, options.context).map_err(failure)?;
        let limits = Limits::of(gpu).map_err(failure)?;
        let properties = properties(gpu, options).map_err(failure)?;
        let current = context.enter().map_err(failure)?;
        let pool = Arc::new(Pool::new(&current).map_err(failure)?);
        drop(current);
        let pinned = PinnedCache::new(context.clone());
        let queues = Queues::new(&context, options, limits, pool.clone(), pinned.clone())?;
        let watcher = Watcher::start(&queues)?;
        let imports = Imports::new(context.clone());
        Ok(Self { properties, _watcher: watcher, queues, pool, pinned, imports, context })
    }

    fn allocate_card(&self, length: usize) -> Result<Memory, CudaError> {
        match self.pool.allocate(length) {
            Err(error) if error.is_out_of_memory() => {
                self.queues.trim();
                self.pool.trim()?;
                self.pool.allocate(length).map(Memory::from)
            }
            outcome => outcome.map(Memory::from),
        }
    }
}

fn properties(gpu: &Gpu, options: &Options) -> Result<Properties, CudaError> {
    let registers = gpu.attribute(Attribute::HostRegister)? != 0
        && gpu.attribute(Attribute::RegisteredAtHostAddress)? != 0;
    let heap = |is_card: bool, most, imports: Option<u64>| Heap {
        host_visible: !is_card,
        coherent: !is_card,
        device_local: is_card,
        max_allocation: most,
        alignment: ALIGNMENT,
        import_alignment: imports,
    };
    Ok(Properties {
        identifier: "cuda".to_owned(),
        aliases: vec!["nvidia".to_owned()],
        queues: DeviceSpec {
            queues: options.streams,
            native_waits: NativeWaits::Epochs,
            completion: Completion::Poll,
        },
        heaps: vec![
            heap(true, gpu.memory()?, None),
            heap(false, 1 << 40, registers.then_some(IMPORT_ALIGNMENT)),
        ],
        concurrency: gpu.attribute(Attribute::Multiprocessors)?.max(1) as usize,
        host_processor: false,
    })
}

impl Device for NvidiaDevice {
    type Memory = Memory;
    type Executable = Executable;
    type Event = ();

    fn properties(&self) -> Properties {
        self.properties.clone()
    }

    fn start(&self, completer: Completer) {
        self.queues.reporter().start(completer);
    }

    fn allocate(&self, request: &MemoryRequest) -> Result<Memory, Failure> {
        let what = format!("allocating {} bytes", request.length);
        let length = usize::try_from(request.length).map_err(|_| {
            Failure::new(Code::ResourceExhausted, format!("{what}: more than an address space"))
        })?;
        let allocated = match request.heap {
            0 => self.allocate_card(length),
            _ => self.pinned.allocate(length).map(Memory::from),
        };
        allocated.map_err(|error| error.failure(what))
    }

    fn import(&self, range: HostRange) -> Result<Memory, Failure> {
        let length = range.length();
        self.imports.import(range).map(Memory::from).map_err(|error| {
            let why = error.failure(format_args!("using {length} bytes of the program in place"));
            Failure::new(Code::Unavailable, format!("{}; copy them into an allocated buffer", why.message()))
        })
    }

    fn host_view(&self, memory: &Memory) -> Option<HostRange> {
        memory.host_view()
    }

    fn supports(&self, format: &str, _: &dyn HostLoader) -> bool {
        matches!(format, FORMAT | CACHE_FORMAT)
    }

    fn infer_format(&self, data: &[u8]) -> Option<Inferred> {
        container::infer(data)
    }

    fn load(&self, request: &LoadRequest<'_>, _: &dyn HostLoader) -> Result<Loaded<Executable>, Failure> {
        Executable::load(&self.context, self.queues.limits(), request)
    }

    fn global(&self, executable: &Arc<Executable>, name: &str) -> Result<(Memory, u64), Failure> {
        let variable = executable.variable(&self.context, name)?;
        let length = variable.whole().length() as u64;
        Ok((Memory::from(variable), length))
    }

    fn addresses(&self) -> Option<fn(&Memory) -> u64> {
        Some(|memory| memory.whole().address())
    }

    fn submit(&self, job: Job<Self>) -> Result<(), Rejected<Self>> {
        self.queues.submit(job)
    }

    fn poll(&self) {
        self.queues.poll();
    }

    fn abort(&self, why: &Failure) {
        self.queues.abort(why);
    }

    fn trim(&self) {
        // It is a hint; who allocates next sees an error that stays.
        self.queues.trim();
        let _ = self.pool.trim();
        self.pinned.clear();
    }

    fn clock(&self) -> Option<u64> {
        Some(self.queues.now())
    }
}
