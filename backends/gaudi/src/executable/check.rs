// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What is refused of a container that could be read: packets, patches, indices and sizes.

use super::container::{Container, DataSegment, Entry, Patch, PatchKind, Step};
use super::fault::{Fault, Name};
use super::walk::{Packet, packets};
use super::{MAX_ALIGNMENT, MAX_TEMPLATE};
use crate::generation::Generation;
use crate::packet::{DISPATCH, dispatch};
use hal_backend::Function;

/// Refuses what a card of this generation should not be given.
pub(super) fn container(container: &Container, generation: Generation, emulated: bool) -> Result<(), Fault> {
    for (number, one) in container.data.iter().enumerate() {
        segment(one).map_err(|fault| fault.within(format_args!("data segment {number}")))?;
    }
    for (number, one) in container.entries.iter().enumerate() {
        let check = Check { entry: one, data: &container.data, generation, emulated };
        let name = Name(&one.name);
        check.entry().map_err(|fault| fault.within(format_args!("entry {number}: {name}")))?;
    }
    Ok(())
}

/// Refuses packets of the emulator's own that do not run a function of the host executable that was loaded with the container,
/// with what that function takes. Told only when they run, the card would be reset for them.
pub(super) fn programs(
    container: &Container,
    generation: Generation,
    functions: &[Function],
) -> Result<(), Fault> {
    for (number, entry) in container.entries.iter().enumerate() {
        for (step, one) in entry.steps.iter().enumerate() {
            let found = packets(&one.template, generation, true)?;
            for packet in found.iter().filter(|packet| packet.operation == DISPATCH) {
                program(one, packet, functions).map_err(|fault| {
                    let name = Name(&entry.name);
                    fault.within(format_args!(
                        "entry {number}: {name}: step {step}: DISPATCH at template offset {}",
                        packet.offset
                    ))
                })?;
            }
        }
    }
    Ok(())
}

/// Checks one packet against what it runs.
fn program(step: &Step, packet: &Packet, functions: &[Function]) -> Result<(), Fault> {
    if functions.is_empty() {
        return Err(Fault::invalid(
            "it runs a host executable, and this container was loaded without one; load the host executable's own file, \
             which the device puts into a container itself",
        ));
    }
    // Fields that the packet has, or it would not have been read as one.
    let field = |at: usize| packet.word(&step.template, at).unwrap_or(u32::MAX);
    let patched = |at: usize, width: usize| {
        let (begin, end) = (packet.offset.saturating_add(at), packet.offset.saturating_add(at + width));
        step.patches
            .iter()
            .find(move |patch| {
                offset(patch) < end && offset(patch).saturating_add(patch.kind.width()) > begin
            })
            .map(|patch| (patch.kind, offset(patch) == begin))
    };
    if patched(dispatch::PROGRAM, 8) != Some((PatchKind::Program, true)) {
        return Err(Fault::invalid(format!(
            "it names its program by a number of its own, which may be another executable's; patch Program over its bytes {} to {}",
            dispatch::PROGRAM,
            dispatch::PROGRAM + 8
        )));
    }
    if patched(dispatch::FUNCTION, 4).is_some() {
        return Err(Fault::invalid(
            "a patch writes the function's number, for which the counts of bindings and constants would not be known; \
             write one entry for each function",
        ));
    }
    let number = field(dispatch::FUNCTION);
    let Some(function) = usize::try_from(number).ok().and_then(|number| functions.get(number)) else {
        let text = format!(
            "it runs function {number}, and the host executable has {} (numbered from 0)",
            functions.len()
        );
        return Err(Fault::invalid(text));
    };
    let (bindings, constants) = (field(dispatch::BINDINGS), field(dispatch::CONSTANTS));
    if (bindings, constants) != (u32::from(function.bindings), u32::from(function.constants)) {
        return Err(Fault::invalid(format!(
            "it brings {bindings} bindings and {constants} constants, and function {number}, {}, takes {} and {}; write the \
             packet with as many",
            Name(&function.name),
            function.bindings,
            function.constants
        )));
    }
    match patched(dispatch::LOCAL_MEMORY, 4) {
        Some((PatchKind::LocalMemory, true)) => Ok(()),
        None if field(dispatch::LOCAL_MEMORY) == 0 => Ok(()),
        _ => Err(Fault::invalid(format!(
            "it asks for workgroup-local memory by itself, which no limit is kept for; leave its bytes {} to {} zero, or patch \
             LocalMemory there, which is what a dispatch asks for",
            dispatch::LOCAL_MEMORY,
            dispatch::LOCAL_MEMORY + 4
        ))),
    }
}

fn segment(segment: &DataSegment) -> Result<(), Fault> {
    let alignment = segment.alignment;
    if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
        let text = format!("alignment {alignment}; it must be a power of two and at most {MAX_ALIGNMENT}");
        return Err(Fault::invalid(text));
    }
    if segment.bytes.is_empty() {
        return Err(Fault::invalid("no bytes; leave it out"));
    }
    Ok(())
}

/// What one entry is checked against.
struct Check<'a> {
    entry: &'a Entry,
    data: &'a [DataSegment],
    generation: Generation,
    emulated: bool,
}

impl Check<'_> {
    fn entry(&self) -> Result<(), Fault> {
        let size = self.entry.workgroup_size;
        if size.contains(&0) && size != [0; 3] {
            let text = format!(
                "workgroup size {size:?}; give all three, or three zeros where each dispatch says it"
            );
            return Err(Fault::invalid(text));
        }
        if self.entry.steps.is_empty() {
            return Err(Fault::invalid("no steps; a function that does nothing needs one with a NOP"));
        }
        for (number, step) in self.entry.steps.iter().enumerate() {
            self.step(step).map_err(|fault| fault.within(format_args!("step {number}")))?;
        }
        Ok(())
    }

    fn step(&self, step: &Step) -> Result<(), Fault> {
        let length = step.template.len();
        if length == 0 || length > MAX_TEMPLATE {
            let text = format!(
                "a template of {length} bytes; it must have 8 to {MAX_TEMPLATE}, to fit into a slot of a command \
                 buffer: divide it into several steps"
            );
            return Err(Fault::invalid(text));
        }
        let packets = packets(&step.template, self.generation, self.emulated)?;
        for (number, patch) in step.patches.iter().enumerate() {
            self.patch(patch, &packets, length).map_err(|fault| {
                fault.within(format_args!("patch {number} at template offset {}", patch.offset))
            })?;
        }
        apart(&step.patches)
    }

    fn patch(&self, patch: &Patch, packets: &[Packet], length: usize) -> Result<(), Fault> {
        self.index(patch.kind)?;
        let (begin, width) = (offset(patch), patch.kind.width());
        if !begin.is_multiple_of(4) {
            return Err(Fault::invalid("its offset must be a multiple of 4"));
        }
        let end = begin.saturating_add(width);
        if end > length {
            let text = format!("it writes {width} bytes, but the template has {length} bytes in all");
            return Err(Fault::invalid(text));
        }
        // The packets lie one after the other from the template's beginning, so one of them has this place.
        let number = packets.partition_point(|packet| packet.end() <= begin);
        let Some(packet) = packets.get(number) else {
            return Err(Fault::invalid("it is in no packet"));
        };
        let name = packet.name();
        let at = packet.offset;
        for (fixed, what) in packet.fixed() {
            if begin < at.saturating_add(fixed.end) && end > at.saturating_add(fixed.start) {
                let text = format!("it would write over {what} of the {name} at {at}, which no patch may");
                return Err(Fault::invalid(text));
            }
        }
        if end > packet.end() {
            let text = format!("it writes {width} bytes, but the {name} at {at} ends at {}", packet.end());
            return Err(Fault::invalid(text));
        }
        if patch.kind == PatchKind::Program && packet.operation != DISPATCH {
            let text =
                format!("it writes a program's number into the {name} at {at}; only DISPATCH takes one");
            return Err(Fault::invalid(text));
        }
        Ok(())
    }

    /// Whether a patch is of something that there is.
    fn index(&self, kind: PatchKind) -> Result<(), Fault> {
        let (what, index, count) = match kind {
            PatchKind::BindingAddress { binding, .. }
            | PatchKind::BindingLength { binding }
            | PatchKind::BindingLengthWord { binding } => {
                ("binding", binding, usize::from(self.entry.bindings))
            }
            PatchKind::Constant { constant } => ("constant", constant, usize::from(self.entry.constants)),
            PatchKind::DataAddress { segment, addend } => {
                if let Some(data) = self.data.get(usize::from(segment)) {
                    let length = data.bytes.len();
                    if usize::try_from(addend).map_or(true, |addend| addend > length) {
                        let text = format!(
                            "addend {addend:#x} to data segment {segment}, which has {length:#x} bytes"
                        );
                        return Err(Fault::invalid(text));
                    }
                }
                ("data segment", segment, self.data.len())
            }
            PatchKind::WorkgroupCount(_)
            | PatchKind::WorkgroupSize(_)
            | PatchKind::LocalMemory
            | PatchKind::IndirectAddress
            | PatchKind::Program => return Ok(()),
        };
        if usize::from(index) < count {
            return Ok(());
        }
        Err(Fault::invalid(format!("it wants {what} {index}, and {count} are declared (numbered from 0)")))
    }
}

fn offset(patch: &Patch) -> usize {
    usize::try_from(patch.offset).unwrap_or(usize::MAX)
}

/// Refuses patches that lie on each other.
fn apart(patches: &[Patch]) -> Result<(), Fault> {
    let mut sorted: Vec<(usize, &Patch)> = patches.iter().enumerate().collect();
    sorted.sort_by_key(|(_, patch)| patch.offset);
    for pair in sorted.windows(2) {
        let [(first, left), (second, right)] = pair else { continue };
        if offset(left).saturating_add(left.kind.width()) > offset(right) {
            let text = format!(
                "patch {second} at template offset {}: it would write over what patch {first} writes at {}",
                right.offset, left.offset
            );
            return Err(Fault::invalid(text));
        }
    }
    Ok(())
}
