// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A network before it runs: a parsed container, and the role of each of its buffers.

use crate::hazard::Access;
use hal_qaic_abi::container::metadata::Direction;
use hal_qaic_abi::container::{Container, Group, Network, ParseError, PartialInput, Plan, description, qpc};
use hal_qaic_abi::programs::{BufferRole, CardPrograms, ProgramNetwork};
use hal_qaic_abi::uapi::sem;
use std::fmt;
use std::sync::Arc;

/// A network before it runs.
#[derive(Clone)]
pub(crate) struct Blueprint {
    bytes: Arc<[u8]>,
    /// Its metadata, of which the plan has the requests.
    pub(crate) network: Network,
    pub(crate) plan: Plan,
    /// The emulated card whose host program it calls. A compiler's network calls none.
    pub(crate) programs: Option<Arc<dyn CardPrograms>>,
    /// The content of the buffer of each group; `None` for a group without bytes.
    pub(crate) roles: Vec<Option<BufferRole>>,
    /// The inputs that may be shorter than their buffers, behind headers of their own.
    partial: Vec<PartialInput>,
    /// How many bindings it takes.
    pub(crate) bindings: u16,
    /// How many constants its host program takes.
    pub(crate) constants: u16,
    /// The groups whose objects are waited for: when they are complete, so is the run.
    pub(crate) waited: Vec<usize>,
}

/// The groups that are complete last. What comes out says that what went in was used; of several that come out, one
/// with a fence has those before it behind itself.
fn waited(groups: &[Group]) -> Vec<usize> {
    let fenced = |group: &Group| {
        let mut commands = group.requests.iter().flat_map(|request| &request.semaphores);
        commands.any(|command| command.flags & sem::OUT_SYNC_FENCE != 0)
    };
    let out = |group: &Group| group.direction == Direction::Out;
    let last_fence = groups.iter().rposition(|group| out(group) && fenced(group)).unwrap_or(0);
    let outputs = groups.iter().enumerate().skip(last_fence);
    let outputs: Vec<usize> = outputs.filter(|(_, group)| out(group)).map(|(number, _)| number).collect();
    if outputs.is_empty() { (0..groups.len()).collect() } else { outputs }
}

impl fmt::Debug for Blueprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blueprint").field("name", &self.network.name).finish_non_exhaustive()
    }
}

/// The network of a container, and its plan.
fn parse(bytes: &[u8]) -> Result<(Network, Plan), ParseError> {
    let container = Container::read(bytes)?;
    container.constants()?;
    let network = Network::read(container.network()?)?;
    let plan = Plan::new(&network)?;
    Ok((network, plan))
}

impl Blueprint {
    /// Reads a compiler's container, and checks all of it.
    pub(crate) fn read(bytes: Arc<[u8]>) -> Result<Self, ParseError> {
        let (network, plan) = parse(&bytes)?;
        let buffers = plan.buffers.len();
        let bindings = u16::try_from(buffers).map_err(|_| {
            let most = u16::MAX;
            ParseError::unsupported(format!("it has {buffers} buffers, and a dispatch binds {most} at most"))
        })?;
        let description = Container::read(&bytes)?;
        let description = description.segment(qpc::name::NETWORK_DESCRIPTION);
        let partial = description.map(|description| description::partial_inputs(description.bytes, &network));
        let partial = partial.transpose().map_err(|error| error.within(qpc::name::NETWORK_DESCRIPTION))?;
        let role = |buffer: u16| Ok(BufferRole::Binding(buffer.into()));
        let blueprint = Self::new(bytes, network, plan, bindings, role)?;
        Ok(Self { partial: partial.unwrap_or_default(), ..blueprint })
    }

    /// The network of a host program.
    pub(crate) fn of_program(
        network: ProgramNetwork,
        programs: Arc<dyn CardPrograms>,
    ) -> Result<Self, ParseError> {
        let ProgramNetwork { container, roles, constants } = network;
        let (network, plan) = parse(&container)?;
        let bindings = roles.iter().filter_map(|role| match role {
            BufferRole::Binding(number) => u16::try_from(number + 1).ok(),
            _ => None,
        });
        let bindings = bindings.max().unwrap_or(0);
        let role = |buffer: u16| {
            roles.get(usize::from(buffer)).copied().ok_or_else(|| {
                ParseError::invalid("a network of a host program with a buffer that has no role")
            })
        };
        let blueprint = Self::new(container.into(), network, plan, bindings, role)?;
        Ok(Self { programs: Some(programs), constants, ..blueprint })
    }

    fn new(
        bytes: Arc<[u8]>,
        network: Network,
        plan: Plan,
        bindings: u16,
        role: impl Fn(u16) -> Result<BufferRole, ParseError>,
    ) -> Result<Self, ParseError> {
        let content = |group: &Group| Ok((group.length > 0).then_some(role(group.buffer)?));
        let roles = plan.groups.iter().map(content).collect::<Result<_, ParseError>>()?;
        let waited = waited(&plan.groups);
        Ok(Self {
            bytes,
            network: Network { requests: Vec::new(), ..network },
            plan,
            programs: None,
            roles,
            partial: Vec::new(),
            bindings,
            constants: 0,
            waited,
        })
    }

    /// How a run accesses a binding.
    pub(crate) fn access(&self, binding: usize) -> Access {
        match self.plan.buffers.get(binding).and_then(|buffer| buffer.direction) {
            _ if self.programs.is_some() => Access::BOTH,
            Some(Direction::In) => Access { reads: true, writes: false },
            Some(Direction::Out) => Access { reads: false, writes: true },
            None => Access { reads: false, writes: false },
        }
    }

    /// The container again.
    pub(crate) fn container(&self) -> Result<Container<'_>, ParseError> {
        Container::read(&self.bytes)
    }

    /// The group that brings in what another one brings out, if what comes out went in before.
    pub(crate) fn counterpart(&self, group: usize) -> Option<usize> {
        let role = self.roles.get(group)?;
        let goes_in = |other: &Group| other.direction == Direction::In;
        let groups = self.plan.groups.iter().zip(&self.roles);
        groups.into_iter().position(|(other, found)| found == role && goes_in(other))
    }

    /// The input of a group that may be shorter than its buffer.
    pub(crate) fn partial(&self, group: usize) -> Option<PartialInput> {
        // Empty for most networks.
        let buffer = self.partial.first().and_then(|_| self.plan.groups.get(group))?.buffer;
        self.partial.iter().find(|input| input.buffer == buffer).copied()
    }

    /// True if a group's object may be the program's own buffer: the only object of a buffer that goes one way, and
    /// has no header of the network's.
    pub(crate) fn takes_buffers(&self, group: usize) -> bool {
        let role = self.roles.get(group);
        let alone = self.roles.iter().filter(|other| Some(*other) == role).count() == 1;
        alone && matches!(role, Some(Some(BufferRole::Binding(_)))) && self.partial(group).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_card::FakeCard;
    use emulator_qaic::programs::card_programs;
    use hal_qaic_abi::container::metadata::{Request, Space};
    use hal_qaic_abi::container::{Bases, Segment, qpc};
    use hal_qaic_abi::uapi::Semaphore;

    fn of_program(constants: u16, capacities: &[u64]) -> Blueprint {
        let programs = card_programs(FakeCard::new(1, 1));
        let network = programs.network(1, 0, constants, capacities).unwrap();
        Blueprint::of_program(network, programs).unwrap()
    }

    #[test]
    fn container_of_the_compiler_that_is_damaged_anywhere_is_read_or_refused() {
        let whole = include_bytes!("../abi/src/container/description/compiler_partial.qpc");
        let (mut read, mut refused) = (0, 0);
        let mut attempt = |bytes: &[u8]| match Blueprint::read(bytes.into()) {
            Ok(blueprint) => {
                // What it says can be asked of the kernel, or it cannot.
                let bases = Bases { ddr: 1 << 32, multicast: 1 << 40 };
                for (number, group) in blueprint.plan.groups.iter().enumerate() {
                    let _ = (group.slices(bases, 0), blueprint.takes_buffers(number));
                    let input = blueprint.partial(number);
                    assert!(input.is_none_or(|input| (8..=group.length).contains(&input.begin)));
                }
                assert!(blueprint.container().unwrap().constants().is_ok());
                read += 1;
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
        };
        for at in 0..whole.len() {
            for change in [0x01, 0x80, 0xff] {
                let mut bytes = *whole;
                bytes[at] ^= change;
                attempt(&bytes);
            }
            attempt(&whole[..at]);
        }
        assert!(read > 1000 && refused > whole.len(), "{read} read, {refused} refused");
    }

    #[test]
    fn program_has_a_call_bindings_both_ways_and_an_outcome() {
        let blueprint = of_program(2, &[64, 128]);
        let binding = BufferRole::Binding;
        let roles = [BufferRole::Call, binding(0), binding(1), binding(0), binding(1), BufferRole::Outcome];
        assert_eq!(blueprint.roles, roles.map(Some));
        assert_eq!(blueprint.bindings, 2);
        assert_eq!(blueprint.waited, [5], "the outcome has a fence");
        let taken = (0..6).filter(|&group| blueprint.takes_buffers(group)).count();
        assert_eq!(taken, 0, "each goes both ways");
        assert_eq!([0, 1].map(|binding| blueprint.access(binding)), [Access::BOTH; 2]);
    }

    #[test]
    fn last_output_to_complete_is_waited_for() {
        let group = |direction, flags| {
            let command = Semaphore { flags, ..Semaphore::default() };
            let request = Request {
                buffer: 0,
                direction,
                host_offset: 0,
                device_offset: 0,
                size: 1,
                space: Space::Ddr,
                semaphores: vec![command],
                doorbell: None,
            };
            Group { buffer: 0, direction, length: 1, requests: vec![request] }
        };
        let (input, output) = (group(Direction::In, 0), group(Direction::Out, 0));
        let fenced = group(Direction::Out, sem::OUT_SYNC_FENCE);
        // A fence of transfers in says nothing about what comes out.
        let other = group(Direction::In, sem::OUT_SYNC_FENCE);
        let of = |groups: &[&Group]| waited(&groups.iter().map(|&group| group.clone()).collect::<Vec<_>>());
        assert_eq!(of(&[&input, &output]), [1]);
        assert_eq!(of(&[&output, &input, &output]), [0, 2], "they are complete in no order");
        assert_eq!(of(&[&output, &fenced, &input, &output]), [1, 3]);
        assert_eq!(of(&[&output, &output, &fenced]), [2]);
        assert_eq!(of(&[&output, &other, &output]), [0, 2]);
        assert_eq!(of(&[&input, &input]), [0, 1], "nothing comes out");
    }

    #[test]
    fn request_that_transfers_nothing_is_no_binding() {
        let request = |size| Request {
            buffer: 0,
            direction: Direction::Out,
            host_offset: 0,
            device_offset: 0,
            size,
            space: Space::Ddr,
            semaphores: Vec::new(),
            doorbell: None,
        };
        let requests = vec![request(0), request(8)];
        let image = Network { name: "net".to_owned(), requests, ..Network::default() }.image();
        let segments = vec![Segment { name: qpc::name::NETWORK, split: 0, bytes: image.as_slice() }];
        let container = Container { segments }.write();
        let blueprint = Blueprint::read(container.into()).unwrap();
        assert_eq!(blueprint.roles, [None, Some(BufferRole::Binding(0))]);
        assert!(blueprint.takes_buffers(1), "the only object of its buffer");
    }

    #[test]
    fn network_with_more_buffers_than_a_dispatch_can_bind_is_refused() {
        let read = |buffer| {
            let request = Request {
                buffer,
                direction: Direction::Out,
                host_offset: 0,
                device_offset: 0,
                size: 8,
                space: Space::Ddr,
                semaphores: Vec::new(),
                doorbell: None,
            };
            let image =
                Network { name: "net".to_owned(), requests: vec![request], ..Network::default() }.image();
            let segments = vec![Segment { name: qpc::name::NETWORK, split: 0, bytes: image.as_slice() }];
            Blueprint::read(Container { segments }.write().into())
        };
        assert!(read(u16::MAX - 1).is_ok());
        let refused = read(u16::MAX).unwrap_err().to_string();
        assert!(refused.contains("65536 buffers") && refused.contains("65535"), "{refused}");
    }

    #[test]
    fn function_without_bindings_is_a_network_too() {
        let blueprint = of_program(0, &[]);
        assert_eq!(blueprint.roles, [Some(BufferRole::Call), Some(BufferRole::Outcome)]);
        assert!(Blueprint::read(Arc::from(&b"nothing"[..])).is_err());
    }
}
