//! A network before it runs: a container, read, and what each of its buffers is for.

use hal_qaic_abi::container::emulated::Program;
use hal_qaic_abi::container::{Container, Fault, Network, Plan};
use std::sync::Arc;

/// What the buffer of a group is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It is a binding.
    Binding(usize),
    /// It says what an emulated program is called with.
    Call,
    /// It says how that went.
    Outcome,
    /// Nothing is transferred.
    Nothing,
}

/// A network before it runs.
#[derive(Clone, Debug)]
pub(crate) struct Blueprint {
    bytes: Arc<[u8]>,
    pub(crate) name: String,
    pub(crate) plan: Plan,
    /// The program of an emulator's network.
    pub(crate) program: Option<Program>,
    /// What each group of the plan is for.
    pub(crate) roles: Vec<Role>,
    /// How many bindings it takes.
    pub(crate) bindings: usize,
}

impl Blueprint {
    /// Reads a container, and checks all of it.
    pub(crate) fn read(bytes: Arc<[u8]>) -> Result<Self, Fault> {
        let container = Container::read(&bytes)?;
        let image = container.network()?;
        container.constants()?;
        let network = Network::read(image)?;
        let plan = Plan::new(&network)?;
        let program = Program::read(image)?;
        let bindings = program.as_ref().map_or(plan.buffers.len(), |program| program.capacities.len());
        let role = |buffer: u16, length: u64| {
            let buffer = usize::from(buffer);
            match &program {
                _ if length == 0 => Role::Nothing,
                None => Role::Binding(buffer),
                Some(_) if buffer == 0 => Role::Call,
                Some(program) if buffer == program.outcome_buffer() => Role::Outcome,
                // First all that go in, then all that go out.
                Some(_) => Role::Binding((buffer - 1) % bindings.max(1)),
            }
        };
        let roles = plan.groups.iter().map(|group| role(group.buffer, group.length)).collect();
        Ok(Self { name: network.name, plan, program, roles, bindings, bytes: bytes.clone() })
    }

    /// The container again.
    pub(crate) fn container(&self) -> Result<Container<'_>, Fault> {
        Container::read(&self.bytes)
    }

    /// Whether a group's object may be the program's own buffer: the only object of a buffer that goes one way.
    pub(crate) fn takes_buffers(&self, group: usize) -> bool {
        let role = self.roles.get(group);
        let alone = self.roles.iter().filter(|other| Some(*other) == role).count() == 1;
        alone && matches!(role, Some(Role::Binding(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_a_call_bindings_both_ways_and_an_outcome() {
        let program = Program { program: 1, function: 0, constants: 2, capacities: vec![64, 128] };
        let blueprint = Blueprint::read(program.container().unwrap().into()).unwrap();
        let binding = Role::Binding;
        let expected = [Role::Call, binding(0), binding(1), binding(0), binding(1), Role::Outcome];
        assert_eq!(blueprint.roles, expected);
        assert_eq!((blueprint.bindings, blueprint.program.as_ref()), (2, Some(&program)));
        let taken = (0..6).filter(|&group| blueprint.takes_buffers(group)).count();
        assert_eq!(taken, 0, "each goes both ways");
    }

    #[test]
    fn a_function_without_bindings_is_a_network_too() {
        let program = Program { program: 1, function: 0, constants: 0, capacities: vec![] };
        let blueprint = Blueprint::read(program.container().unwrap().into()).unwrap();
        assert_eq!(blueprint.roles, [Role::Call, Role::Outcome]);
        assert!(Blueprint::read(Arc::from(&b"nothing"[..])).is_err());
    }
}
