// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The device: what it is, and its memory, executables and queues for the driver.

use crate::container;
use crate::dispatch::Settings;
use crate::executable::{Executable, FORMAT, infer};
use crate::kmd::Card;
use crate::memory::{Memory, PAGE, allocate};
use crate::open_card::OpenCard;
use crate::queue::{DeviceShared, Queue};
use hal_backend::{
    Code, Completer, Completion, Device, DeviceSpec, Failure, Heap, HostLoader, HostRange, Inferred, Job,
    LoadRequest, Loaded, MemoryRequest, NativeWaits, Properties, Rejected,
};
use hal_kernel::clock;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The heaps: on the card, and of the host.
const CARD: usize = 0;
const HOST: usize = 1;
/// The most that one allocation of host memory can have.
const LARGEST: u64 = 1 << 36;
/// The alignment of allocations of host memory, which imports must have too.
const HOST_ALIGNMENT: u64 = 64;
/// The queues: one for dispatches, one for transfers; both take anything.
const QUEUES: [&str; 2] = ["tt-compute", "tt-transfer"];

/// A device.
pub struct TenstorrentDevice {
    shared: Arc<DeviceShared>,
    queues: Vec<Arc<Queue>>,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for TenstorrentDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TenstorrentDevice")
            .field("card", &self.shared.board.card.name())
            .finish_non_exhaustive()
    }
}

impl TenstorrentDevice {
    /// A device of an open card.
    pub(crate) fn new(board: Arc<OpenCard>, settings: Settings) -> Result<Self, Failure> {
        let shared = DeviceShared::new(board, settings);
        let mut device = Self { shared, queues: Vec::new(), threads: Vec::new() };
        for name in QUEUES {
            let queue = Queue::new(device.shared.clone());
            let (served, left) = (queue.clone(), queue.clone());
            let panicked = move |why: &Failure| left.thread_panicked(why);
            let thread = device.shared.reporter.spawn(name, move || served.serve(), panicked)?;
            device.queues.push(queue);
            device.threads.push(thread);
        }
        Ok(device)
    }

    /// How much of its tiles' memory is for buffers, of all tiles, if any is.
    #[cfg(test)]
    pub(crate) fn shared_l1(&self) -> Option<u64> {
        self.shared.board.l1.as_ref().map(|l1| l1.capacity())
    }

    /// The card that it is.
    pub fn card(&self) -> &Card {
        &self.shared.board.card
    }
}

impl Device for TenstorrentDevice {
    type Memory = Memory;
    type Executable = Executable;
    type Event = ();

    fn properties(&self) -> Properties {
        Properties {
            identifier: "tenstorrent".to_owned(),
            // IREE's compiler makes what runs here for its own device `local`.
            aliases: vec!["local-tenstorrent".to_owned(), "local".to_owned()],
            queues: DeviceSpec {
                queues: QUEUES.len(),
                // A card has no semaphores that its queues could wait for: they are threads of the host.
                native_waits: NativeWaits::None,
                completion: Completion::Callback,
            },
            heaps: vec![
                Heap {
                    host_visible: false,
                    coherent: false,
                    device_local: true,
                    max_allocation: self.shared.board.dram.capacity(),
                    alignment: PAGE,
                    import_alignment: None,
                },
                Heap {
                    host_visible: true,
                    coherent: true,
                    device_local: false,
                    max_allocation: LARGEST,
                    alignment: HOST_ALIGNMENT,
                    import_alignment: Some(HOST_ALIGNMENT),
                },
            ],
            concurrency: self.shared.board.tiles.concurrency(self.shared.settings),
            host_processor: false,
        }
    }

    fn start(&self, completer: Completer) {
        self.shared.reporter.start(completer);
    }

    fn allocate(&self, request: &MemoryRequest) -> Result<Memory, Failure> {
        match request.heap {
            CARD => {
                let OpenCard { dram, l1, .. } = &*self.shared.board;
                allocate(dram, l1.as_ref(), request).map(Memory::Card)
            }
            HOST => HostRange::allocate(request.length, 64).map(Memory::Host),
            heap => Err(Failure::new(Code::OutOfRange, format!("this device has no heap number {heap}"))),
        }
    }

    fn import(&self, range: HostRange) -> Result<Memory, Failure> {
        Ok(Memory::Host(range))
    }

    fn follows_mappings(&self) -> bool {
        true
    }

    fn exports(&self, heap: usize) -> bool {
        heap == CARD && self.card().window_to_lend(1).is_some()
    }

    fn export(&self, memory: &Memory) -> Result<OwnedFd, Failure> {
        match memory {
            Memory::Card(range) => range.export(),
            Memory::Host(_) => {
                let message = "a card lends its own memory: allocate host memory that is to be shared with \
                               IREE_HAL_BUFFER_USAGE_SHARING_EXPORT, which makes it shared memory of the host";
                Err(Failure::new(Code::Unavailable, message))
            }
        }
    }

    fn host_view(&self, memory: &Memory) -> Option<HostRange> {
        match memory {
            Memory::Card(_) => None,
            Memory::Host(range) => Some(range.clone()),
        }
    }

    fn supports(&self, format: &str, _: &dyn HostLoader) -> bool {
        [FORMAT, container::FORMAT].contains(&format)
    }

    fn infer_format(&self, data: &[u8]) -> Option<Inferred> {
        infer(data)
    }

    fn load(&self, request: &LoadRequest<'_>, host: &dyn HostLoader) -> Result<Loaded<Executable>, Failure> {
        if !self.supports(request.format, host) {
            let message = format!(
                "a card runs executables of formats {FORMAT} and {}, not {:?}: compile for it, as \
                 docs/tenstorrent.md says",
                container::FORMAT,
                request.format
            );
            return Err(Failure::new(Code::Incompatible, message));
        }
        if !request.constants.is_empty() {
            let count = request.constants.len();
            let message = format!(
                "an executable here takes no constants, and was given {count}; give them to its dispatches"
            );
            return Err(Failure::new(Code::InvalidArgument, message));
        }
        let executable = self.shared.board.tiles.load(request, self.shared.settings);
        let executable = executable.map_err(|error| error.failure(self.shared.board.card.name()))?;
        let functions = executable.functions();
        Ok(Loaded { executable, functions })
    }

    fn submit(&self, job: Job<Self>) -> Result<(), Rejected<Self>> {
        #[expect(clippy::indexing_slicing, reason = "the engine names queues that the device has")]
        self.queues[job.queue.index()].submit(job)
    }

    fn abort(&self, why: &Failure) {
        self.queues.iter().for_each(|queue| queue.abort(why));
    }

    fn clock(&self) -> Option<u64> {
        Some(clock())
    }
}

impl Drop for TenstorrentDevice {
    fn drop(&mut self) {
        self.queues.iter().for_each(|queue| queue.stop());
        let me = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // The last reference may be dropped from inside a completion, on a thread of the device's own.
            if thread.thread().id() != me {
                // A thread that panicked has nothing left to say.
                let _ = thread.join();
            }
        }
    }
}
