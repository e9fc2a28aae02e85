// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Executables: requests to load one, its functions, and IREE's host executables for devices that are software.

use crate::host::HostPart;
use hal_semaphore::Failure;
use std::ops::Range;
use std::sync::Arc;

/// An executable that a program wants to run.
#[derive(Clone, Copy, Debug)]
pub struct LoadRequest<'a> {
    /// The format that the program names, such as `embedded-elf-x86_64`.
    pub format: &'a str,
    /// Its bytes. They must be copied if they are needed later.
    pub data: &'a [u8],
    /// Specialisation constants.
    pub constants: &'a [u32],
}

/// The format and the length of an executable, found out from its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inferred {
    /// Its format, as in a [`LoadRequest`].
    pub format: String,
    /// How many of the bytes are it.
    pub length: u64,
}

/// A function of an executable.
#[derive(Clone, Debug, Default)]
pub struct Function {
    /// Its name; empty if it has none.
    pub name: String,
    /// How many buffers it takes.
    pub bindings: u16,
    /// How many 32-bit constants it takes.
    pub constants: u16,
    /// The size of its workgroups, where it is fixed; zeros otherwise.
    pub workgroup_size: [u32; 3],
}

/// One call of a function of a host executable.
#[derive(Clone, Copy, Debug)]
pub struct HostCall<'a> {
    /// The function's number.
    pub function: usize,
    /// The size of a workgroup.
    pub workgroup_size: [u32; 3],
    /// How many workgroups.
    pub workgroups: [u32; 3],
    /// Constants.
    pub constants: &'a [u32],
    /// Buffers, in binding order.
    pub bindings: &'a [HostPart<'a>],
    /// How many threads may be at it at once.
    pub concurrency: usize,
    /// Bytes of workgroup-local memory beyond what the function asks for itself.
    pub local_memory: u32,
}

impl HostCall<'_> {
    /// How many workgroups there are in all.
    pub fn total(&self) -> u64 {
        self.workgroups.iter().fold(1, |total, &count| total.saturating_mul(u64::from(count)))
    }
}

/// A host executable that is ready to run.
pub trait HostProgram: Send + Sync {
    /// Its functions.
    fn functions(&self) -> &[Function];

    /// Runs some of the workgroups of a call, numbered with x fastest. Any number of threads may be at one call, each
    /// with its own `worker` number below what the loader was told; two with the same number run one after the other. A
    /// call with fewer bindings or constants than the function takes is refused, and so are workgroups that it has not.
    fn run(&self, call: &HostCall<'_>, workgroups: Range<u64>, worker: usize) -> Result<(), Failure>;
}

/// Loads host executables: given to [`Device::load`](crate::Device::load).
pub trait HostLoader {
    /// Whether executables of this format can be loaded.
    fn supports(&self, format: &str) -> bool;

    /// Loads one for up to `workers` threads at a time.
    fn load(&self, request: &LoadRequest<'_>, workers: usize) -> Result<Arc<dyn HostProgram>, Failure>;
}
