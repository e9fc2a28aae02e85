// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The interface that a device implements to become an IREE HAL driver.
//!
//! A backend implements [`Driver`] (a name, a list of devices, how to open one) and [`Device`] (memory,
//! executables, queues). `hal-driver` builds everything else that IREE requires of a driver on these: semaphores,
//! waits, command buffers, pools, stream-ordered allocation, host calls, files, profiling, and the C interface.
//! This crate is below all of that and knows nothing of IREE, so a backend can live in any repository and needs no
//! unsafe code.
//!
//! # The contract in short
//!
//! - **A queue is in order.** A [`Job`] starts after the previous job of its queue has ended, and after the points
//!   of its native waits. Between two [`Command::Barrier`]s the backend may run a job's commands at the same time;
//!   after a barrier, everything before it is visible.
//! - **Submitting does not block.** A full queue [refuses the job](Rejected::Full), and the engine submits it again
//!   later.
//! - **Completion is reported** through the [`Completer`] that [`Device::start`] gets: by callback, by poll, or
//!   when a descriptor becomes readable. A [`Reporter`] keeps it, and starts the threads that report.
//!   [`hal_semaphore::backend`] documents the completer's rules.
//! - **A failed job has ended.** It is reported with [`Completer::fail`], and the queue goes on. Only a fault that
//!   makes the whole device useless is a [loss](Completer::lose).
//! - **A job owns what it uses.** Memory and executables are counted references, which dropping the job releases.
//!
//! # The host
//!
//! [`HostRange`] is reference-counted host memory: a mapping, the source of an upload, or the whole memory of a
//! device that works on the host's. [`HostLoader`] loads IREE's own host executables, for devices that are
//! software: the mock device and the compute engines of emulated cards.
//!
//! The smallest complete backend is `backends/template`, and `docs/backend.md` walks through it.

pub mod caller;
mod command;
pub mod container;
mod device;
mod host;
mod machine;
#[cfg(target_os = "linux")]
pub mod memory_file;
mod program;
mod reporter;
mod request;
mod time_limit;
mod uri;

pub use command::{
    Bindings, Command, Commands, Constants, Dispatch, Job, Observer, Pattern, Place, Recording, Span,
    Workgroups,
};
pub use device::{Device, DeviceInfo, Driver, Heap, Loaded, Properties, Rejected};
pub use hal_semaphore::backend::{Completer, Completion, DeviceSpec, NativeWait, NativeWaits};
pub use hal_semaphore::{AdaptiveSpin, Code, CompletionError, Failure, Origin, Point, QueueId};
pub use host::{HostPart, HostRange, zeros};
pub use machine::{processors, splitmix64};
pub use program::{
    Function, HostCall, HostLoader, HostProgram, Inferred, LoadRequest, MOST_LAYERS, WORKGROUPS_AT_A_TIME,
};
pub use reporter::Reporter;
pub use request::{MemoryRequest, Purpose};
pub use time_limit::TimeLimit;
pub use uri::{Parameter, Parameters};
