// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Containers that are read, those that are refused and why, and the patches of calls.

mod calls;
mod properties;
mod refusals;
mod schema;

use super::{Container, DataSegment, Entry, Patch, PatchKind, Step};
use crate::generation::{Generation, Lane};
use crate::packet::opcode;
use hal_backend::{Code, Failure};

/// A packet with this operation and length, and bytes that name their place.
fn packet(operation: u32, length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).unwrap()).collect();
    bytes[4..8].copy_from_slice(&(operation << 24 | 1 << 31).to_le_bytes());
    bytes
}

fn patch(offset: u32, kind: PatchKind) -> Patch {
    Patch { offset, kind }
}

fn step(template: Vec<u8>, patches: Vec<Patch>) -> Step {
    Step { lane: Lane::Compute, template, patches }
}

/// A container that is fine, with two entries, two steps, a data segment and some patches.
fn sample() -> Container {
    let transfer = packet(opcode::LIN_DMA, 24);
    let message = packet(opcode::MSG_LONG, 16);
    let first = Step {
        lane: Lane::DeviceToDevice,
        template: transfer,
        patches: vec![
            patch(0, PatchKind::BindingLengthWord { binding: 1 }),
            patch(8, PatchKind::BindingAddress { binding: 1, addend: 16 }),
            patch(16, PatchKind::DataAddress { segment: 0, addend: 3 }),
        ],
    };
    let second = step(
        [message.clone(), packet(opcode::NOP, 8), message].concat(),
        vec![patch(0, PatchKind::Constant { constant: 0 }), patch(32, PatchKind::IndirectAddress)],
    );
    let two = Entry {
        name: "two".into(),
        bindings: 2,
        constants: 1,
        workgroup_size: [8, 4, 1],
        steps: vec![first, second],
    };
    let one = Entry { steps: vec![step(packet(opcode::NOP, 8), vec![])], ..Entry::default() };
    Container {
        generation: None,
        data: vec![DataSegment { alignment: 128, bytes: vec![1, 2, 3] }],
        entries: vec![two, one],
    }
}

/// A container whose only entry has only this step.
fn with(step: Step) -> Container {
    let mut container = sample();
    container.entries.truncate(1);
    container.entries[0].steps = vec![step];
    container
}

fn read(container: &Container, generation: Generation) -> Result<Container, Failure> {
    Container::read(&container.write(), generation)
}

/// Asserts that something is refused like this. The message must have all of the pieces.
fn refused<T: std::fmt::Debug>(result: Result<T, Failure>, code: Code, pieces: &[&str]) {
    let failure = result.expect_err("should be refused");
    assert_eq!(failure.code(), code, "{failure}");
    for piece in pieces {
        assert!(failure.message().contains(piece), "{piece:?} is not in {failure}");
    }
}

#[test]
fn written_container_is_read_as_it_was() {
    for generation in [Generation::Gaudi1, Generation::Gaudi2] {
        let mut container = sample();
        assert_eq!(read(&container, generation).unwrap(), container);
        container.generation = Some(generation);
        assert_eq!(read(&container, generation).unwrap(), container);
    }
    let nothing = Container::default();
    assert_eq!(read(&nothing, Generation::Gaudi1).unwrap(), nothing);
}

#[test]
fn every_packet_that_a_card_has_is_read() {
    use opcode::*;
    let both = [
        (MSG_LONG, 16),
        (MSG_SHORT, 8),
        (FENCE, 8),
        (LIN_DMA, 24),
        (NOP, 8),
        (WAIT, 8),
        (ARB_POINT, 8),
        (LOAD_AND_EXE, 16),
        (WREG_32, 8),
        (REPEAT, 8),
    ];
    let second = [(CP_DMA, 16), (MSG_PROT, 16), (CB_LIST, 24)];
    let all = |packets: &[(u32, usize)]| {
        packets.iter().flat_map(|&(operation, length)| packet(operation, length)).collect::<Vec<u8>>()
    };
    let common = all(&both);
    let mut bulk = packet(WREG_BULK, 8 + 8 * 3);
    bulk[..4].copy_from_slice(&0xffff_0003u32.to_le_bytes());
    let more = [common.clone(), all(&second), bulk].concat();
    assert!(read(&with(step(common, vec![])), Generation::Gaudi1).is_ok());
    assert!(read(&with(step(more, vec![])), Generation::Gaudi2).is_ok());
}

#[test]
fn entry_becomes_the_loaders_function() {
    let function = sample().entries[0].function();
    assert_eq!((function.name.as_str(), function.bindings, function.constants), ("two", 2, 1));
    assert_eq!(function.workgroup_size, [8, 4, 1]);
}
