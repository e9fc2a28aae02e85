// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The interface between the driver and an emulated card for host programs: networks that call one.
//!
//! No device understands such networks. Their images and the bytes of calls and outcomes are the emulator's own, and
//! the driver passes them on.

use hal_backend::Failure;
use hal_kernel::ProgramHost;

/// How many bytes an outcome has.
pub const OUTCOME: usize = 256;

/// A network that calls a function of a host program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramNetwork {
    /// The network as a compiler writes one.
    pub container: Vec<u8>,
    /// The role of each of its buffers, by number.
    pub roles: Vec<BufferRole>,
    /// How many constants the function takes.
    pub constants: u16,
}

/// The content of a buffer of a [`ProgramNetwork`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferRole {
    /// The call, as [`CardPrograms::write_call`] writes it.
    Call,
    /// A binding of the function, on its way in or out.
    Binding(usize),
    /// The outcome, which [`CardPrograms::outcome`] reads. The driver writes zeros before a run.
    Outcome,
}

/// A call of a function.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProgramCall<'a> {
    /// How many workgroups.
    pub workgroups: [u32; 3],
    /// The size of a workgroup.
    pub workgroup_size: [u32; 3],
    /// Bytes of local memory beyond what the function asks for itself.
    pub local_memory: u32,
    /// Constants.
    pub constants: &'a [u32],
}

/// An emulated card that runs host programs.
pub trait CardPrograms: Send + Sync {
    /// The keeper of the programs.
    fn host(&self) -> &dyn ProgramHost;

    /// The network of a function that takes so many constants, for bindings of at most these sizes.
    fn network(
        &self,
        program: u64,
        function: u32,
        constants: u16,
        capacities: &[u64],
    ) -> Result<ProgramNetwork, Failure>;

    /// A network that was loaded from a file. Refuses one for real cores, which an emulated card does not have.
    fn recognize(&self, container: &[u8]) -> Result<ProgramNetwork, Failure>;

    /// Replaces `bytes` by a call with bindings of these lengths.
    fn write_call(
        &self,
        call: &ProgramCall<'_>,
        lengths: &mut dyn ExactSizeIterator<Item = u64>,
        bytes: &mut Vec<u8>,
    );

    /// How a call went, by the bytes of its outcome.
    fn outcome(&self, bytes: &[u8]) -> Result<(), Failure>;
}
