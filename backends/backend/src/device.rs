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

    /// Makes the driver. Must be cheap and touch no hardware: programs create every driver they are linked with.
    fn create() -> Self;

    /// The devices that are there. The first is the one that a program gets when it names none.
    fn enumerate(&self) -> Result<Vec<DeviceInfo>, Failure>;

    /// Opens a device by its path, empty for the default one. The caller refuses every parameter that was not taken.
    /// What one kind of device takes beyond [`PARAMETERS`](Self::PARAMETERS) is [declared](Parameters::declare) first.
    fn open(&self, path: &str, parameters: &mut Parameters<'_>) -> Result<Self::Device, Failure>;

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
    /// Whether the host can map it ([`Device::host_view`]).
    pub host_visible: bool,
    /// Whether the host and the device see each other's writes without flushing.
    pub coherent: bool,
    /// Whether it is the device's own memory rather than the host's.
    pub device_local: bool,
    /// The most that one allocation can have.
    pub max_allocation: u64,
    /// The alignment of every allocation, a power of two.
    pub alignment: u64,
    /// The alignment that host memory needs to become memory of this heap ([`Device::import`]), a power of two: whatever the
    /// device and the programs that run on it ask for, which may be less than what allocations have. Nothing where host
    /// memory does not become memory of this heap.
    pub import_alignment: Option<u64>,
}

/// The properties of a device: its queues, its heaps and what it supports.
#[derive(Clone, Debug)]
pub struct Properties {
    /// Its name, which `hal.device.id` patterns are matched with.
    pub identifier: String,
    /// Other names that it answers to. `local` lets modules run that were compiled for the host.
    pub aliases: Vec<String>,
    /// Its queues.
    pub queues: DeviceSpec,
    /// Its memory: at least one heap, the preferred one first.
    pub heaps: Vec<Heap>,
    /// How many workgroups run at once.
    pub concurrency: usize,
    /// Whether its code runs on the host's processor, whose features a module may ask for.
    pub host_processor: bool,
}

/// The result of loading an executable.
pub struct Loaded<E> {
    /// The executable.
    pub executable: E,
    /// Its functions.
    pub functions: Vec<Function>,
}

/// Why a job was not taken.
pub enum Rejected<D: Device> {
    /// There is no room now. It is offered again when something of the device completes.
    Full(Box<Job<D>>),
    /// This job cannot be run at all; nothing of it has begun. Others can.
    Failed(Failure),
    /// The device is gone. The engine fails everything at once, perhaps while the hardware still works: what it may touch
    /// stays with the backend until it no longer can.
    Lost(Failure),
}

/// A device. Dropped when the program has let go of everything that it made with it, after its queues are idle or
/// have been [told to stop](Device::abort).
pub trait Device: Send + Sync + Sized + 'static {
    /// An allocation.
    type Memory: Send + Sync + 'static;
    /// A loaded executable.
    type Executable: Send + Sync + 'static;
    /// A native event, or `()` where there are none.
    type Event: Clone + Send + Sync + 'static;

    /// The device's properties. Called once.
    fn properties(&self) -> Properties;

    /// The queues may be used now, and completions go to `completer`.
    fn start(&self, completer: Completer);

    /// Allocates memory. The request's purpose is a hint, and everything else in it has to hold.
    fn allocate(&self, request: &MemoryRequest) -> Result<Self::Memory, Failure>;

    /// Makes host memory usable by the device without copying it, as memory of a heap with an
    /// [`import_alignment`](Heap::import_alignment).
    ///
    /// The memory is the program's, which is told when the last clone of the range is dropped, and may have it back then.
    /// A program that does not want to be told has it back when the buffer is gone and the work that used it has ended: a
    /// device keeps no clone beyond the allocation and the jobs that name it.
    fn import(&self, range: HostRange) -> Result<Self::Memory, Failure> {
        let message = format!("this device cannot use {} bytes of host memory in place", range.length());
        Err(Failure::new(Code::Unavailable, message))
    }

    /// Whether allocations of the heap with this number can be [exported](Device::export).
    fn exports(&self, heap: usize) -> bool {
        let _ = heap;
        false
    }

    /// A descriptor of an allocation, whole, that other devices and processes can use: a dma-buf. It is the program's to close.
    /// Host memory needs none from here: what a heap with an [`import_alignment`](Heap::import_alignment) is to share is shared
    /// memory, which is imported.
    fn export(&self, memory: &Self::Memory) -> Result<std::os::fd::OwnedFd, Failure> {
        let _ = memory;
        let message = "this device gives out no descriptors of its memory; what has one is HOST_VISIBLE memory that was \
                       allocated with IREE_HAL_BUFFER_USAGE_SHARING_EXPORT, of a heap that imports";
        Err(Failure::new(Code::Unavailable, message))
    }

    /// The host's view of an allocation of a host-visible heap, whole. Asked for at most once for each allocation, to be
    /// mapped for as long as that lives.
    fn host_view(&self, memory: &Self::Memory) -> Option<HostRange> {
        let _ = memory;
        None
    }

    /// Makes the host's writes visible to the device, where the heap is not coherent.
    fn flush(&self, memory: &Self::Memory, offset: u64, length: u64) -> Result<(), Failure> {
        let _ = (memory, offset, length);
        Ok(())
    }

    /// Makes the device's writes visible to the host, where the heap is not coherent.
    fn invalidate(&self, memory: &Self::Memory, offset: u64, length: u64) -> Result<(), Failure> {
        let _ = (memory, offset, length);
        Ok(())
    }

    /// Whether [`load`](Device::load) takes executables of this format.
    fn supports(&self, format: &str, host: &dyn HostLoader) -> bool;

    /// The format and the length of an executable, if the bytes are one in a format of the device's own. Those that the host loads are
    /// recognised without asking.
    fn infer_format(&self, data: &[u8]) -> Option<Inferred> {
        let _ = data;
        None
    }

    /// Loads an executable. `host` loads those of the host's processor, for devices that are software.
    fn load(
        &self,
        request: &LoadRequest<'_>,
        host: &dyn HostLoader,
    ) -> Result<Loaded<Self::Executable>, Failure>;

    /// Puts a job on its queue. Must not block on the device. One thread at a time for each queue.
    fn submit(&self, job: Job<Self>) -> Result<(), Rejected<Self>>;

    /// A run of submissions to a queue is over: ring its doorbell, if that was put off.
    fn kick(&self, queue: usize) {
        let _ = queue;
    }

    /// Makes one more native event, where the device has them.
    fn create_event(&self) -> Result<Self::Event, Failure> {
        Err(Failure::new(Code::Unimplemented, "this device has no native events"))
    }

    /// Looks for completions and reports them, where they are not reported by callback.
    fn poll(&self) {}

    /// A descriptor that becomes readable when there is something to [poll](Device::poll) for.
    #[cfg(unix)]
    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    /// Asks the device to stop: report everything outstanding soon, as completed or failed.
    fn abort(&self, why: &Failure);

    /// Gives back memory that is kept for later.
    fn trim(&self) {}

    /// The clock that an [`Observer`](crate::Observer) is told the times of, in nanoseconds. A device without one is
    /// profiled from the host alone.
    fn clock(&self) -> Option<u64> {
        None
    }
}
