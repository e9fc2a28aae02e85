// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What a device must offer to become an IREE HAL driver.
//!
//! A backend implements [`Driver`] (a name, a list of devices, how to open one) and [`Device`] (memory, executables,
//! queues). Everything else that IREE asks of a driver is made of these by `hal-driver`: semaphores, waits, command
//! buffers, pools, stream-ordered allocation, host calls, files, profiling, and the C interface. This crate stands below
//! all of that and knows nothing of IREE, so a backend can live in any repository and needs no unsafe code.
//!
//! # The contract in short
//!
//! - **A queue is in order.** A [`Job`] starts after the job before it on its queue has ended, and after the points
//!   of its native waits. What a job's commands may do at the same time is the backend's business between two
//!   [`Command::Barrier`]s; after one, everything before it is visible.
//! - **Submitting does not block.** A full queue [says so](Rejected::Full) and the job comes back later.
//! - **Completion is reported** through the [`Completer`] that [`Device::start`] gets: by callback, by poll, or when
//!   a descriptor becomes readable. A [`Reporter`] keeps it, and starts the threads that report. See [`hal_semaphore::backend`] for every promise that goes with it.
//! - **A failed job is done.** It is reported with [`Completer::fail`], and the queue goes on. Only what makes the
//!   whole device useless is a [loss](Completer::lose).
//! - **A job owns what it uses.** Memory and executables are counted references: a job that is dropped lets go.
//!
//! # Where the host comes in
//!
//! [`HostRange`] is a counted piece of host memory: what a mapping shows, what an upload reads, and all the memory
//! there is where a device works on the host's. [`HostLoader`] loads IREE's own host executables, for devices
//! that are software: the mock device and the compute engines of emulated ones.
//!
//! The smallest whole backend lies beside this crate, in `backends/template`, and `docs/backend.md` walks through it.

mod command;
mod device;
mod host;
mod machine;
mod program;
mod reporter;
mod request;
mod uri;

pub use command::{
    Bindings, Command, Commands, Constants, Dispatch, Job, Observer, Pattern, Place, Span, Workgroups,
};
pub use device::{Device, DeviceInfo, Driver, Heap, Loaded, Properties, Rejected};
pub use hal_semaphore::backend::{Completer, Completion, DeviceSpec, NativeWait, NativeWaits};
pub use hal_semaphore::{AdaptiveSpin, Code, CompletionError, Failure, Origin, Point, QueueId};
pub use host::{HostPart, HostRange};
pub use machine::{processors, splitmix64};
pub use program::{Function, HostCall, HostLoader, HostProgram, Inferred, LoadRequest};
pub use reporter::Reporter;
pub use request::{MemoryRequest, Purpose};
pub use uri::{Parameter, Parameters};
