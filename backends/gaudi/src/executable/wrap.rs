// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! IREE's host executables as containers, for the emulator.
//!
//! The compute engines of an emulated card run what IREE compiled for the host's processor. The program stays with the
//! emulator, which gives it a number; the container has one entry for each function, whose only step is one
//! [`DISPATCH`] packet that names the program and the function and brings everything else along. So on its way
//! to the engine a dispatch takes the same path as on hardware: template, patches, command buffer, queue.

use super::MAX_TEMPLATE;
use super::container::{Axis, Container, Entry, Patch, PatchKind, Step};
use super::fault::{Fault, Name, failure};
use super::walk::dispatch_length;
use crate::generation::{Generation, Lane};
use crate::packet::{DISPATCH, dispatch};
use hal_backend::{Failure, Function};

/// A container with these functions, in this order, for an emulated card of this generation.
///
/// It needs no check, and passes the one for an emulated card if each workgroup size has no zeros or nothing else. A
/// function with so many bindings and constants that a packet would exceed [`MAX_TEMPLATE`] is refused.
pub fn wrap(functions: &[Function], generation: Generation) -> Result<Container, Failure> {
    let entries = (0..).zip(functions).map(|(number, function)| entry(number, function));
    let entries: Result<Vec<Entry>, Fault> = entries.collect();
    let entries = entries.map_err(|fault| failure(&fault))?;
    Ok(Container { generation: Some(generation), data: Vec::new(), entries })
}

fn entry(number: u32, function: &Function) -> Result<Entry, Fault> {
    let (bindings, constants) = (function.bindings, function.constants);
    let length = dispatch_length(usize::from(bindings), usize::from(constants));
    let Some(said) = u32::try_from(length).ok().filter(|_| length <= MAX_TEMPLATE) else {
        let text = format!(
            "{bindings} bindings and {constants} constants need a packet of {length} bytes, and {MAX_TEMPLATE} is the most"
        );
        return Err(Fault::invalid(text).within(format_args!("entry {number}: {}", Name(&function.name))));
    };
    let mut template = vec![0; length];
    let fields = [
        (dispatch::LENGTH, said),
        (dispatch::CONTROL, DISPATCH << 24),
        (dispatch::FUNCTION, number),
        (dispatch::BINDINGS, u32::from(bindings)),
        (dispatch::CONSTANTS, u32::from(constants)),
    ];
    for (at, value) in fields {
        if let Some(word) = template.get_mut(at..).and_then(|bytes| bytes.first_chunk_mut()) {
            *word = value.to_le_bytes();
        }
    }
    let step = Step { lane: Lane::Compute, template, patches: patches(bindings, constants) };
    Ok(Entry {
        name: function.name.clone(),
        bindings,
        constants,
        workgroup_size: function.workgroup_size,
        steps: vec![step],
    })
}

fn patches(bindings: u16, constants: u16) -> Vec<Patch> {
    let mut places = vec![
        (dispatch::PROGRAM, PatchKind::Program),
        (dispatch::LOCAL_MEMORY, PatchKind::LocalMemory),
        (dispatch::INDIRECT, PatchKind::IndirectAddress),
    ];
    for (number, axis) in [Axis::X, Axis::Y, Axis::Z].into_iter().enumerate() {
        places.push((dispatch::WORKGROUP_SIZE + 4 * number, PatchKind::WorkgroupSize(axis)));
        places.push((dispatch::WORKGROUP_COUNT + 4 * number, PatchKind::WorkgroupCount(axis)));
    }
    let mut at = dispatch::FIXED;
    for binding in 0..bindings {
        places.push((at, PatchKind::BindingAddress { binding, addend: 0 }));
        places.push((at + 8, PatchKind::BindingLength { binding }));
        at += 16;
    }
    for constant in 0..constants {
        places.push((at, PatchKind::Constant { constant }));
        at += 4;
    }
    // No place is beyond the packet, whose length is a word: the conversion drops none.
    let patch = |(at, kind)| Some(Patch { offset: u32::try_from(at).ok()?, kind });
    places.into_iter().filter_map(patch).collect()
}
