// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Executables: requests to load one, its functions, and IREE's host executables for devices that are software.

use crate::host::HostPart;
use hal_semaphore::{Code, Failure};
use std::ops::Range;
use std::sync::Arc;

/// A request to load an executable.
#[derive(Clone, Copy, Debug)]
pub struct LoadRequest<'a> {
    /// The format's name, such as `embedded-elf-x86_64`.
    pub format: &'a str,
    /// Its bytes, borrowed for the call.
    pub data: &'a [u8],
    /// Specialisation constants.
    pub constants: &'a [u32],
}

/// The format and the length of an executable, inferred from its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inferred {
    /// Its format, as in a [`LoadRequest`].
    pub format: String,
    /// The length of the executable, which may be less than that of the bytes.
    pub length: u64,
}

/// A function of an executable.
#[derive(Clone, Debug, Default)]
pub struct Function {
    /// Its name; empty if it has none.
    pub name: String,
    /// The number of buffers that it takes.
    pub bindings: u16,
    /// The number of 32-bit constants that it takes.
    pub constants: u16,
    /// The size of its workgroups if it is fixed, otherwise zeros.
    pub workgroup_size: [u32; 3],
}

/// The most workgroups of a call that a worker runs at a time. A grid may have more workgroups than ever end, so a
/// worker checks between them whether the call is given up.
pub const WORKGROUPS_AT_A_TIME: u64 = 1024;

/// The most workgroups of a host executable's grid in z, as IREE counts them in 16 bits.
pub const MOST_LAYERS: u32 = 65_535;

/// One call of a function of a host executable.
#[derive(Clone, Copy, Debug)]
pub struct HostCall<'a> {
    /// The function's number.
    pub function: usize,
    /// The size of a workgroup.
    pub workgroup_size: [u32; 3],
    /// The number of workgroups.
    pub workgroups: [u32; 3],
    /// The constants.
    pub constants: &'a [u32],
    /// The buffers, in binding order.
    pub bindings: &'a [HostPart<'a>],
    /// The number of threads that may run the call at once.
    pub concurrency: usize,
    /// Bytes of workgroup-local memory beyond the function's own.
    pub local_memory: u32,
}

impl HostCall<'_> {
    /// The number of all workgroups.
    pub fn total(&self) -> u64 {
        self.workgroups.iter().fold(1, |total, &count| total.saturating_mul(u64::from(count)))
    }
}

/// A loaded host executable.
pub trait HostProgram: Send + Sync {
    /// The functions of the executable.
    fn functions(&self) -> &[Function];

    /// Runs some workgroups of a call, numbered with x fastest. Any number of threads may run one call, each with
    /// its own `worker` number below the loader's limit; two threads with the same number run one after the other.
    /// Refuses a call with fewer bindings or constants than the function takes, and workgroups that the call does
    /// not have.
    fn run(&self, call: &HostCall<'_>, workgroups: Range<u64>, worker: usize) -> Result<(), Failure>;

    /// The same for arguments that a program made itself: a call without bindings, whose constants begin with the
    /// addresses of all of them, two words each with the lower one first. Only for a device that has told a program
    /// these addresses ([`Device::addresses`](crate::Device::addresses)).
    fn run_with_addresses(
        &self,
        call: &HostCall<'_>,
        workgroups: Range<u64>,
        worker: usize,
    ) -> Result<(), Failure> {
        let _ = (workgroups, worker);
        let message = format!("function number {} takes no addresses", call.function);
        Err(Failure::new(Code::InvalidArgument, message))
    }

    /// The one of both that a dispatch is for: with addresses in place of the bindings that the function takes.
    fn run_dispatch(
        &self,
        call: &HostCall<'_>,
        workgroups: Range<u64>,
        worker: usize,
    ) -> Result<(), Failure> {
        let takes_any = self.functions().get(call.function).is_some_and(|function| function.bindings > 0);
        if takes_any && call.bindings.is_empty() {
            self.run_with_addresses(call, workgroups, worker)
        } else {
            self.run(call, workgroups, worker)
        }
    }
}

/// Loads host executables: given to [`Device::load`](crate::Device::load).
pub trait HostLoader {
    /// True if executables of this format can be loaded.
    fn supports(&self, format: &str) -> bool;

    /// Loads an executable for up to `workers` threads at a time.
    fn load(&self, request: &LoadRequest<'_>, workers: usize) -> Result<Arc<dyn HostProgram>, Failure>;
}
