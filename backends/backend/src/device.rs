// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The two traits of a backend: a driver that opens devices, and a device.

use crate::command::Job;
use crate::host::HostRange;
use crate::program::{Function, HostLoader, Inferred, LoadRequest};
use crate::request::MemoryRequest;
use crate::uri::{Parameter, Parameters};
use hal_semaphore::backend::{Completer, DeviceSpec};
use hal_semaphore::{Code, Failure};

/// One device that a driver can open.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The path behind `name://` that opens this device. Stable between runs.
    pub path: String,
    /// A description of the device, for people. An emulated device says so.
    pub name: String,
}

/// A family of devices under one name.
pub trait Driver: Send + Sync + 'static {
    /// The devices of this family.
    type Device: Device;

    /// The scheme of the driver's URIs: the part before `://`.
    const NAME: &'static str;
    /// A description of the driver, for people.
    const FULL_NAME: &'static str;
    /// The parameters that [`open`](Self::open) takes. `--dump_devices` and the refusal of an unknown parameter list
    /// them. A driver that declares none is not checked.
    const PARAMETERS: &'static [Parameter] = &[];

    /// Creates the driver. Must be cheap and touch no hardware: a program creates every driver that it is linked
    /// with.
    fn create() -> Self;

    /// The devices that are present. The first is the default device.
    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Failure>;

    /// Opens a device by its path, empty for the default one. The caller refuses every parameter that was not taken.
    /// Parameters beyond [`PARAMETERS`](Self::PARAMETERS), of one kind of device, are [declared](Parameters::declare)
    /// first.
    fn open(&self, path: &str, parameters: &mut Parameters<'_>) -> Result<Self::Device, Failure>;

    /// Opens the device that a URI names, such as `mock://0?queues=2`, for programs that do not go through IREE.
    fn open_uri(uri: &str) -> Result<Self::Device, Failure>
    where
        Self: Sized,
    {
        let (path, mut parameters) = Parameters::of_uri(Self::NAME, uri);
        parameters.declare(Self::PARAMETERS);
        let device = Self::create().open(path, &mut parameters)?;
        parameters.finish().map(|()| device)
    }

    /// More about one device, for `--dump_devices`: lines of text. The caller appends the parameters.
    fn describe(&self, info: &DeviceInfo) -> String {
        format!("# {}", info.name)
    }

    /// The parameters of one device, for `--dump_devices`: more than [`PARAMETERS`](Self::PARAMETERS) if an emulator or
    /// another kind of device takes more.
    fn parameters(&self, info: &DeviceInfo) -> Vec<Parameter> {
        let _ = info;
        Self::PARAMETERS.to_vec()
    }
}

/// A kind of memory of a device.
#[derive(Clone, Debug)]
pub struct Heap {
    /// True if the host can map it ([`Device::host_view`]).
    pub host_visible: bool,
    /// True if the host and the device see each other's writes without flushing.
    pub coherent: bool,
    /// True if it is the device's own memory rather than the host's.
    pub device_local: bool,
    /// The size of the largest allocation.
    pub max_allocation: u64,
    /// The alignment of every allocation, a power of two.
    pub alignment: u64,
    /// The alignment that host memory needs to become memory of this heap ([`Device::import`]), a power of two: as
    /// much as the device and its programs need, which may be less than the alignment of allocations. `None` if
    /// host memory cannot become memory of this heap.
    pub import_alignment: Option<u64>,
}

/// The properties of a device: its queues, its heaps and what it supports.
#[derive(Clone, Debug)]
pub struct Properties {
    /// Its name, which IREE compares with `hal.device.id` patterns.
    pub identifier: String,
    /// Other names for the same patterns. `local` allows modules that were compiled for the host.
    pub aliases: Vec<String>,
    /// The number of queues, their native waits, and how completions are reported.
    pub queues: DeviceSpec,
    /// At least one heap, the preferred one first.
    pub heaps: Vec<Heap>,
    /// The number of workgroups that run at once.
    pub concurrency: usize,
    /// True if its code runs on the host's processor, whose features a module may require.
    pub host_processor: bool,
}

/// The result of loading an executable.
pub struct Loaded<E> {
    /// The executable.
    pub executable: E,
    /// Its functions.
    pub functions: Vec<Function>,
}

/// Why a device did not take a job.
pub enum Rejected<D: Device> {
    /// There is no room now. The engine submits the job again when something of the device completes.
    Full(Box<Job<D>>),
    /// This job cannot run at all, and nothing of it has begun. Other jobs can.
    Failed(Failure),
    /// The device is lost. The engine fails everything at once, even while the hardware still works: the backend
    /// keeps the memory that the hardware may access until it no longer can.
    Lost(Failure),
}

/// A device. It is dropped when the program has released everything that it created with it, after its queues are
/// idle or were [stopped](Device::abort).
pub trait Device: Send + Sync + Sized + 'static {
    /// An allocation.
    type Memory: Send + Sync + 'static;
    /// A loaded executable.
    type Executable: Send + Sync + 'static;
    /// A native event, or `()` where there are none.
    type Event: Clone + Send + Sync + 'static;

    /// The device's properties. Called once.
    fn properties(&self) -> Properties;

    /// Starts the queues; completions go to `completer`.
    fn start(&self, completer: Completer);

    /// Allocates memory. The request's purpose is a hint; everything else is binding.
    fn allocate(&self, request: &MemoryRequest) -> Result<Self::Memory, Failure>;

    /// Makes host memory usable by the device without copying it, as memory of a heap with an
    /// [`import_alignment`](Heap::import_alignment).
    ///
    /// The program gets the memory back when the last clone of the range is dropped, if it registered a release
    /// callback; otherwise when the buffer is gone and the work that used it has ended. So a device keeps no clone
    /// beyond the allocation and the jobs that name it.
    fn import(&self, range: HostRange) -> Result<Self::Memory, Failure> {
        let message = format!("this device cannot use {} bytes of host memory in place", range.length());
        Err(Failure::new(Code::Unavailable, message))
    }

    /// Makes memory of another device usable by this one, by a dma-buf that stays the program's. The memory is not the
    /// host's to map, and belongs to a heap that the host cannot map.
    ///
    /// By default refused: not every kernel driver can. Whether it can use a certain dma-buf is known only when it is
    /// tried.
    fn import_dma_buf(
        &self,
        buffer: std::os::fd::BorrowedFd<'_>,
        length: u64,
    ) -> Result<Self::Memory, Failure> {
        let _ = (buffer, length);
        let message = "this device imports no memory of other devices, and host memory cannot become its own; import \
                       shared memory of the host without DEVICE_LOCAL, or allocate a buffer and copy into it";
        Err(Failure::new(Code::Unavailable, message))
    }

    /// True if the device uses imported memory by the host's addresses, at the time of each access, and so sees what
    /// is mapped there later: then it has IREE's virtual memory. A device that pins pages or maps them elsewhere keeps
    /// the pages of the import.
    fn follows_mappings(&self) -> bool {
        false
    }

    /// True if allocations of the heap with this number can be [exported](Device::export).
    fn exports(&self, heap: usize) -> bool {
        let _ = heap;
        false
    }

    /// A descriptor of a whole allocation for other devices and processes: a dma-buf. The program closes it. Host
    /// memory needs none: memory of a heap with an [`import_alignment`](Heap::import_alignment) is shared memory of
    /// the driver, which is imported.
    fn export(&self, memory: &Self::Memory) -> Result<std::os::fd::OwnedFd, Failure> {
        let _ = memory;
        let message = "this device's own memory has no descriptor; allocate HOST_VISIBLE memory with \
                       IREE_HAL_BUFFER_USAGE_SHARING_EXPORT";
        Err(Failure::new(Code::Unavailable, message))
    }

    /// The host's view of a whole allocation of a host-visible heap, valid as long as the allocation. Called at
    /// most once for each allocation.
    fn host_view(&self, memory: &Self::Memory) -> Option<HostRange> {
        let _ = memory;
        None
    }

    /// Makes the host's writes visible to the device, if the heap is not coherent.
    fn flush(&self, memory: &Self::Memory, offset: u64, length: u64) -> Result<(), Failure> {
        let _ = (memory, offset, length);
        Ok(())
    }

    /// Makes the device's writes visible to the host, if the heap is not coherent.
    fn invalidate(&self, memory: &Self::Memory, offset: u64, length: u64) -> Result<(), Failure> {
        let _ = (memory, offset, length);
        Ok(())
    }

    /// True if [`load`](Device::load) takes executables of this format.
    fn supports(&self, format: &str, host: &dyn HostLoader) -> bool;

    /// The format and the length of an executable in a format of the device's own. The driver recognises the host's
    /// formats by itself.
    fn infer_format(&self, data: &[u8]) -> Option<Inferred> {
        let _ = data;
        None
    }

    /// Loads an executable. `host` loads executables of the host's processor, for devices that are software.
    fn load(
        &self,
        request: &LoadRequest<'_>,
        host: &dyn HostLoader,
    ) -> Result<Loaded<Self::Executable>, Failure>;

    /// The memory of a variable of an executable, and its length: memory of the first heap, which keeps the executable.
    /// `NOT_FOUND` if there is no variable of that name, `UNIMPLEMENTED` if executables of this device have none.
    fn global(
        &self,
        executable: &std::sync::Arc<Self::Executable>,
        name: &str,
    ) -> Result<(Self::Memory, u64), Failure> {
        let _ = executable;
        let message = format!("there is no variable {name:?}: executables of this device have none");
        Err(Failure::new(Code::Unimplemented, message))
    }

    /// The address of memory as functions of the device's executables get it, if they get plain addresses and nothing
    /// else beside constants: then programs may make the arguments of a dispatch themselves
    /// ([`Dispatch::constants`](crate::Dispatch::constants)).
    fn addresses(&self) -> Option<fn(&Self::Memory) -> u64> {
        None
    }

    /// Submits a job to its queue. Must not block on the device. One thread at a time for each queue.
    fn submit(&self, job: Job<Self>) -> Result<(), Rejected<Self>>;

    /// Ends a run of submissions to a queue: rings its doorbell, if the device defers that.
    fn kick(&self, queue: usize) {
        let _ = queue;
    }

    /// Creates a native event, if the device has them.
    fn create_event(&self) -> Result<Self::Event, Failure> {
        Err(Failure::new(Code::Unimplemented, "this device has no native events"))
    }

    /// Polls for completions and reports them, if they are not reported by callback.
    fn poll(&self) {}

    /// A descriptor that is readable while there is something to [poll](Device::poll) for.
    #[cfg(unix)]
    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    /// Stops the device: it reports everything outstanding soon, as completed or failed.
    fn abort(&self, why: &Failure);

    /// Frees memory that is cached for later.
    fn trim(&self) {}

    /// The time, in nanoseconds, of the clock that an [`Observer`](crate::Observer) gets. A device without a clock
    /// is profiled by the host alone.
    fn clock(&self) -> Option<u64> {
        None
    }
}
