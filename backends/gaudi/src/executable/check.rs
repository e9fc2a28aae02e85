// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Checks of a container that could be read: packets, patches, indices and sizes.

use super::container::{Container, DataSegment, Entry, Patch, PatchKind, Step};
use super::walk::{Packet, packets};
use super::{MAX_ALIGNMENT, MAX_TEMPLATE};
use crate::generation::Generation;
use hal_backend::container::{Name, ParseError};

/// Refuses what a card of this generation should not be given.
pub(super) fn container(container: &Container, generation: Generation) -> Result<(), ParseError> {
    for (number, one) in container.data.iter().enumerate() {
        segment(one).map_err(|error| error.within(format_args!("data segment {number}")))?;
    }
    for (number, one) in container.entries.iter().enumerate() {
        let check = Check { entry: one, data: &container.data, generation };
        let name = Name(&one.name);
        check.entry().map_err(|error| error.within(format_args!("entry {number}: {name}")))?;
    }
    Ok(())
}

fn segment(segment: &DataSegment) -> Result<(), ParseError> {
    let alignment = segment.alignment;
    if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
        let text = format!("alignment {alignment}; it must be a power of two and at most {MAX_ALIGNMENT}");
        return Err(ParseError::invalid(text));
    }
    if segment.bytes.is_empty() {
        return Err(ParseError::invalid("no bytes; leave it out"));
    }
    Ok(())
}

/// The limits for one entry.
struct Check<'a> {
    entry: &'a Entry,
    data: &'a [DataSegment],
    generation: Generation,
}

impl Check<'_> {
    fn entry(&self) -> Result<(), ParseError> {
        let size = self.entry.workgroup_size;
        if size.contains(&0) && size != [0; 3] {
            let text = format!(
                "workgroup size {size:?}; give all three, or three zeros where each dispatch says it"
            );
            return Err(ParseError::invalid(text));
        }
        if self.entry.steps.is_empty() {
            return Err(ParseError::invalid("no steps; a function that does nothing needs one with a NOP"));
        }
        for (number, step) in self.entry.steps.iter().enumerate() {
            self.step(step).map_err(|error| error.within(format_args!("step {number}")))?;
        }
        Ok(())
    }

    fn step(&self, step: &Step) -> Result<(), ParseError> {
        let length = step.template.len();
        if length == 0 || length > MAX_TEMPLATE {
            let text = format!(
                "a template of {length} bytes; it must have 8 to {MAX_TEMPLATE}, to fit into a slot of a command \
                 buffer: divide it into several steps"
            );
            return Err(ParseError::invalid(text));
        }
        let packets = packets(&step.template, self.generation)?;
        for (number, patch) in step.patches.iter().enumerate() {
            self.patch(patch, &packets, length).map_err(|error| {
                error.within(format_args!("patch {number} at template offset {}", patch.offset))
            })?;
        }
        apart(&step.patches)
    }

    fn patch(&self, patch: &Patch, packets: &[Packet], length: usize) -> Result<(), ParseError> {
        self.index(patch.kind)?;
        let (begin, width) = (offset(patch), patch.kind.width());
        if !begin.is_multiple_of(4) {
            return Err(ParseError::invalid("its offset must be a multiple of 4"));
        }
        let end = begin.saturating_add(width);
        if end > length {
            let text = format!("it writes {width} bytes, but the template has {length} bytes in all");
            return Err(ParseError::invalid(text));
        }
        // The packets lie one after the other from the template's beginning, so one of them has this place.
        let number = packets.partition_point(|packet| packet.end() <= begin);
        let Some(packet) = packets.get(number) else {
            return Err(ParseError::invalid("it is in no packet"));
        };
        let name = packet.name();
        let at = packet.offset;
        for (fixed, what) in packet.fixed() {
            if begin < at.saturating_add(fixed.end) && end > at.saturating_add(fixed.start) {
                let text = format!("it would write over {what} of the {name} at {at}, which no patch may");
                return Err(ParseError::invalid(text));
            }
        }
        if end > packet.end() {
            let text = format!("it writes {width} bytes, but the {name} at {at} ends at {}", packet.end());
            return Err(ParseError::invalid(text));
        }
        Ok(())
    }

    /// Checks that a patch's index is in range.
    fn index(&self, kind: PatchKind) -> Result<(), ParseError> {
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
                        return Err(ParseError::invalid(text));
                    }
                }
                ("data segment", segment, self.data.len())
            }
            PatchKind::WorkgroupCount(_)
            | PatchKind::WorkgroupSize(_)
            | PatchKind::LocalMemory
            | PatchKind::IndirectAddress => return Ok(()),
        };
        if usize::from(index) < count {
            return Ok(());
        }
        Err(ParseError::invalid(format!(
            "it wants {what} {index}, and {count} are declared (numbered from 0)"
        )))
    }
}

fn offset(patch: &Patch) -> usize {
    usize::try_from(patch.offset).unwrap_or(usize::MAX)
}

/// Refuses patches that lie on each other.
fn apart(patches: &[Patch]) -> Result<(), ParseError> {
    let mut sorted: Vec<(usize, &Patch)> = patches.iter().enumerate().collect();
    sorted.sort_by_key(|(_, patch)| patch.offset);
    for pair in sorted.windows(2) {
        let [(first, left), (second, right)] = pair else { continue };
        if offset(left).saturating_add(left.kind.width()) > offset(right) {
            let text = format!(
                "patch {second} at template offset {}: it would write over what patch {first} writes at {}",
                right.offset, left.offset
            );
            return Err(ParseError::invalid(text));
        }
    }
    Ok(())
}
