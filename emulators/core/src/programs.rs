// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Who keeps host executables for a device that is software, and runs them when a packet or a network names them.

use hal_backend::HostProgram;
use std::sync::Arc;

/// A keeper of programs: an emulator in this process, or [one in another](crate::remote).
pub trait Programs: Send + Sync {
    /// Keeps a program: its number.
    fn load(&self, program: Arc<dyn HostProgram>) -> u64;

    /// Lets go of a program. What is under way with it goes on.
    fn unload(&self, number: u64);

    /// How many threads run programs: what a loader of one is told.
    fn workers(&self) -> usize;
}
