// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The interface between the driver and an emulated card for host programs: commands that call one.
//!
//! No hardware understands such commands. Their bytes are the emulator's own, and the driver passes them on.

use hal_backend::Failure;
use hal_kernel::ProgramHost;

/// A call of a host program.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProgramCall<'a> {
    /// The program's number.
    pub program: u64,
    /// The function's number in it.
    pub function: u32,
    /// The size of a workgroup.
    pub workgroup_size: [u32; 3],
    /// How many workgroups; zeros where the number is indirect.
    pub workgroup_count: [u32; 3],
    /// The device address that the number of workgroups is read from when the commands run; zero where it is known.
    pub indirect: u64,
    /// Bytes of workgroup-local memory beyond what the function asks for itself.
    pub local_memory: u32,
    /// Constants.
    pub constants: &'a [u32],
    /// The device address and the length of each binding.
    pub bindings: &'a [(u64, u64)],
}

/// An emulated card that runs host programs.
pub trait CardPrograms: Send + Sync {
    /// The keeper of the programs.
    fn host(&self) -> &dyn ProgramHost;

    /// The commands that make a compute queue run a call. Their length depends on the numbers of bindings and constants
    /// alone.
    fn encode(&self, call: &ProgramCall<'_>) -> Result<Vec<u8>, Failure>;
}
