// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Executables: networks of the vendor's compiler, and IREE's host executables where the device is an emulator.
//!
//! A container of the vendor's compiler, known to IREE under the format string [`FORMAT`], is an executable with one
//! function: its bindings are the network's buffers, by number, in the form that the network wants them. What the
//! vendor's own runtime does to inputs and outputs on the host (quantisation, layouts) is the compiler's business
//! here.
//!
//! A host executable stays with the emulated card. Each of its functions becomes a network for sizes that are large
//! enough, when it is first called with such.

use crate::blueprint::Blueprint;
use crate::hazard::Access;
use crate::launch::Binding;
use crate::networks::{NetworkKey, NetworkRequest};
use crate::queue::Queues;
use hal_backend::{Code, Failure, Function, HostProgram};
use hal_qaic_abi::container::ParseError;
use hal_qaic_abi::programs::CardPrograms;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// IREE's name of the format of the vendor's compiler.
pub const FORMAT: &str = "qaic-qpc";

/// The least that a network is made for.
const LEAST: u64 = 4096;

/// Up to here sizes are doubled, and from here on rounded to a multiple of this.
const COARSE: u64 = 1 << 20;

enum ExecutableKind {
    Network(Arc<Blueprint>),
    Program { number: u64, functions: Vec<Function>, programs: Arc<dyn CardPrograms> },
}

/// A loaded executable.
pub struct Executable {
    number: u64,
    kind: ExecutableKind,
    /// The queues that may still run networks of it.
    queue: Weak<Queues>,
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executable").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.upgrade() {
            queue.retire(self.number);
        }
        if let ExecutableKind::Program { number, programs, .. } = &self.kind {
            programs.host().unload(*number);
        }
    }
}

/// The failure that a container's fault is.
pub(crate) fn refused(fault: &ParseError) -> Failure {
    fault.failure(FORMAT)
}

impl Executable {
    fn new(kind: ExecutableKind, queue: &Arc<Queues>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { number: NEXT.fetch_add(1, Ordering::Relaxed), kind, queue: Arc::downgrade(queue) }
    }

    /// A network in a container: of a compiler, or for an emulated card one that calls a host program.
    pub(crate) fn network(
        bytes: &[u8],
        programs: Option<&Arc<dyn CardPrograms>>,
        queue: &Arc<Queues>,
    ) -> Result<Self, Failure> {
        let blueprint = match programs {
            Some(programs) => Blueprint::of_program(programs.recognize(bytes)?, programs.clone()),
            None => Blueprint::read(bytes.into()),
        };
        let blueprint = blueprint.map_err(|error| refused(&error))?;
        Ok(Self::new(ExecutableKind::Network(Arc::new(blueprint)), queue))
    }

    /// A host executable.
    pub(crate) fn program(
        program: Arc<dyn HostProgram>,
        programs: &Arc<dyn CardPrograms>,
        queue: &Arc<Queues>,
    ) -> Self {
        let functions = program.functions().to_vec();
        let number = programs.host().load(program);
        Self::new(ExecutableKind::Program { number, functions, programs: programs.clone() }, queue)
    }

    /// Its functions.
    pub(crate) fn functions(&self) -> Vec<Function> {
        match &self.kind {
            ExecutableKind::Network(blueprint) => vec![Function {
                name: blueprint.network.name.clone(),
                bindings: blueprint.bindings,
                constants: blueprint.constants,
                workgroup_size: [1; 3],
            }],
            ExecutableKind::Program { functions, .. } => functions.clone(),
        }
    }

    /// True if a dispatch is one run of a network, whatever its workgroups are.
    pub(crate) fn is_network(&self) -> bool {
        matches!(self.kind, ExecutableKind::Network(_))
    }

    /// Fails for fewer bindings than a network has buffers. Programs of the host count theirs themselves.
    pub(crate) fn takes(&self, bindings: usize) -> Result<(), Failure> {
        match &self.kind {
            ExecutableKind::Network(blueprint) if bindings < usize::from(blueprint.bindings) => {
                let message = format!(
                    "network {:?} has {} bindings, and the dispatch {bindings}",
                    blueprint.network.name, blueprint.bindings
                );
                Err(Failure::new(Code::InvalidArgument, message))
            }
            _ => Ok(()),
        }
    }

    /// The access of a run to a binding.
    pub(crate) fn access(&self, binding: usize) -> Access {
        match &self.kind {
            ExecutableKind::Network(blueprint) => blueprint.access(binding),
            // The executable does not say which way they go.
            ExecutableKind::Program { .. } => Access::BOTH,
        }
    }

    /// The sizes that a network is made for, where it is made for some.
    fn capacities<'a>(&self, bindings: &'a [Binding]) -> impl Iterator<Item = u64> + 'a {
        let bindings = if self.is_network() { &[] } else { bindings };
        bindings.iter().map(|binding| capacity(binding.view.length()))
    }

    /// How many constants a function takes.
    fn constants(&self, function: usize) -> Result<u16, Failure> {
        let functions = self.functions();
        let found = functions.get(function).map(|function| function.constants);
        found.ok_or_else(|| {
            let count = functions.len();
            let message = format!("the executable has {count} functions, none with number {function}");
            Failure::new(Code::OutOfRange, message)
        })
    }

    /// The network for a call.
    fn blueprint(&self, key: &NetworkKey) -> Result<Arc<Blueprint>, Failure> {
        let constants = self.constants(key.function)?;
        match &self.kind {
            ExecutableKind::Network(blueprint) => Ok(blueprint.clone()),
            ExecutableKind::Program { number, programs, .. } => {
                let function = u32::try_from(key.function).unwrap_or(u32::MAX);
                let network = programs.network(*number, function, constants, &key.capacities)?;
                let blueprint = Blueprint::of_program(network, programs.clone());
                let blueprint = blueprint.map_err(|error| refused(&error))?;
                Ok(Arc::new(blueprint))
            }
        }
    }
}

/// A function of an executable, for some bindings.
pub(crate) struct Callee<'a> {
    pub(crate) executable: &'a Executable,
    pub(crate) function: usize,
}

impl NetworkRequest for Callee<'_> {
    fn is(&self, key: &NetworkKey, bindings: &[Binding]) -> bool {
        key.executable == self.executable.number
            && key.function == self.function
            && self.executable.capacities(bindings).eq(key.capacities.iter().copied())
    }

    fn make(&self, bindings: &[Binding]) -> Result<(NetworkKey, Arc<Blueprint>), Failure> {
        let capacities = self.executable.capacities(bindings).collect();
        let key = NetworkKey { executable: self.executable.number, function: self.function, capacities };
        let blueprint = self.executable.blueprint(&key)?;
        Ok((key, blueprint))
    }
}

/// The length that a network is made for, if a binding has so many bytes.
fn capacity(length: u64) -> u64 {
    if length <= COARSE {
        length.max(LEAST).next_power_of_two()
    } else {
        // A size beyond every limit is refused when the network is made.
        length.checked_next_multiple_of(COARSE).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_made_for_sizes_that_are_large_enough_and_few() {
        let cases = [
            (0, 4096),
            (4096, 4096),
            (4097, 8192),
            (COARSE, COARSE),
            (COARSE + 1, 2 * COARSE),
            (5 * COARSE, 5 * COARSE),
            (u64::MAX, u64::MAX),
        ];
        for (length, made) in cases {
            assert_eq!(capacity(length), made, "{length}");
        }
    }
}
