// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Containers as FlatBuffers: `executable.fbs`, field by field.

use super::container::{Axis, Container, DataSegment, Entry, Patch, PatchKind, Step};
use super::{IDENTIFIER, VERSION};
use crate::generation::{Generation, Lane};
use flatbuffers::{FlatBufferBuilder, TableFinishedWIPOffset, WIPOffset};
use hal_backend::container::{Name, ParseError};
use hal_backend::container::{Table, required, slot};

// The fields' numbers, which are their order in the schema.
const EXECUTABLE_VERSION: u16 = 0;
const EXECUTABLE_GENERATION: u16 = 1;
const EXECUTABLE_DATA: u16 = 2;
const EXECUTABLE_ENTRIES: u16 = 3;
const SEGMENT_ALIGNMENT: u16 = 0;
const SEGMENT_BYTES: u16 = 1;
const ENTRY_NAME: u16 = 0;
const ENTRY_BINDINGS: u16 = 1;
const ENTRY_CONSTANTS: u16 = 2;
/// The first of three.
const ENTRY_WORKGROUP_SIZE: u16 = 3;
const ENTRY_STEPS: u16 = 6;
const STEP_LANE: u16 = 0;
const STEP_TEMPLATE: u16 = 1;
const STEP_PATCHES: u16 = 2;
const PATCH_OFFSET: u16 = 0;
const PATCH_KIND: u16 = 1;
const PATCH_INDEX: u16 = 2;
const PATCH_ADDEND: u16 = 3;

/// A segment's alignment where the file leaves it out.
const DEFAULT_ALIGNMENT: u32 = 1;

fn generation_number(generation: Option<Generation>) -> u8 {
    match generation {
        None => 0,
        Some(Generation::Gaudi1) => 1,
        Some(Generation::Gaudi2) => 2,
    }
}

fn lane_number(lane: Lane) -> u8 {
    match lane {
        Lane::Compute => 0,
        Lane::HostToDevice => 1,
        Lane::DeviceToHost => 2,
        Lane::DeviceToDevice => 3,
    }
}

/// A patch's kind, index and addend.
fn kind_numbers(kind: PatchKind) -> (u8, u16, u64) {
    let axis = |axis: Axis| match axis {
        Axis::X => 0,
        Axis::Y => 1,
        Axis::Z => 2,
    };
    match kind {
        PatchKind::BindingAddress { binding, addend } => (1, binding, addend),
        PatchKind::BindingLength { binding } => (2, binding, 0),
        PatchKind::BindingLengthWord { binding } => (3, binding, 0),
        PatchKind::Constant { constant } => (4, constant, 0),
        PatchKind::WorkgroupCount(of) => (5, axis(of), 0),
        PatchKind::WorkgroupSize(of) => (6, axis(of), 0),
        PatchKind::LocalMemory => (7, 0, 0),
        PatchKind::IndirectAddress => (8, 0, 0),
        PatchKind::DataAddress { segment, addend } => (9, segment, addend),
    }
}

fn kind_of(number: u8, index: u16, addend: u64) -> Result<PatchKind, ParseError> {
    let axis = || match index {
        0 => Ok(Axis::X),
        1 => Ok(Axis::Y),
        2 => Ok(Axis::Z),
        _ => Err(ParseError::invalid(format!(
            "dimension {index} of a workgroup; there are 0 (x), 1 (y) and 2 (z)"
        ))),
    };
    let kind = match number {
        1 => PatchKind::BindingAddress { binding: index, addend },
        2 => PatchKind::BindingLength { binding: index },
        3 => PatchKind::BindingLengthWord { binding: index },
        4 => PatchKind::Constant { constant: index },
        5 => PatchKind::WorkgroupCount(axis()?),
        6 => PatchKind::WorkgroupSize(axis()?),
        7 => PatchKind::LocalMemory,
        8 => PatchKind::IndirectAddress,
        9 => PatchKind::DataAddress { segment: index, addend },
        _ => return Err(ParseError::invalid(format!("patch kind {number}; there are 1 to 9"))),
    };
    if kind_numbers(kind) != (number, index, addend) {
        let text = format!(
            "index {index} and addend {addend:#x} with {kind:?}, which must leave what it does not use zero"
        );
        return Err(ParseError::invalid(text));
    }
    Ok(kind)
}

pub(super) fn write(container: &Container) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let data: Vec<_> = container.data.iter().map(|segment| write_segment(&mut builder, segment)).collect();
    let data = builder.create_vector(&data);
    let entries: Vec<_> = container.entries.iter().map(|entry| write_entry(&mut builder, entry)).collect();
    let entries = builder.create_vector(&entries);
    let table = builder.start_table();
    builder.push_slot(slot(EXECUTABLE_VERSION), VERSION, 0);
    builder.push_slot(slot(EXECUTABLE_GENERATION), generation_number(container.generation), 0);
    builder.push_slot_always(slot(EXECUTABLE_DATA), data);
    builder.push_slot_always(slot(EXECUTABLE_ENTRIES), entries);
    let root = builder.end_table(table);
    builder.finish(root, Some(IDENTIFIER));
    builder.finished_data().to_vec()
}

type Written = WIPOffset<TableFinishedWIPOffset>;

fn write_segment(builder: &mut FlatBufferBuilder<'_>, segment: &DataSegment) -> Written {
    let bytes = builder.create_vector(&segment.bytes);
    let table = builder.start_table();
    builder.push_slot(slot(SEGMENT_ALIGNMENT), segment.alignment, DEFAULT_ALIGNMENT);
    builder.push_slot_always(slot(SEGMENT_BYTES), bytes);
    builder.end_table(table)
}

fn write_entry(builder: &mut FlatBufferBuilder<'_>, entry: &Entry) -> Written {
    let name = builder.create_string(&entry.name);
    let steps: Vec<_> = entry.steps.iter().map(|step| write_step(builder, step)).collect();
    let steps = builder.create_vector(&steps);
    let table = builder.start_table();
    builder.push_slot_always(slot(ENTRY_NAME), name);
    builder.push_slot(slot(ENTRY_BINDINGS), entry.bindings, 0);
    builder.push_slot(slot(ENTRY_CONSTANTS), entry.constants, 0);
    for (number, size) in (ENTRY_WORKGROUP_SIZE..).zip(entry.workgroup_size) {
        builder.push_slot(slot(number), size, 0);
    }
    builder.push_slot_always(slot(ENTRY_STEPS), steps);
    builder.end_table(table)
}

fn write_step(builder: &mut FlatBufferBuilder<'_>, step: &Step) -> Written {
    let template = builder.create_vector(&step.template);
    let patches: Vec<_> = step.patches.iter().map(|patch| write_patch(builder, patch)).collect();
    let patches = builder.create_vector(&patches);
    let table = builder.start_table();
    builder.push_slot(slot(STEP_LANE), lane_number(step.lane), 0);
    builder.push_slot_always(slot(STEP_TEMPLATE), template);
    builder.push_slot_always(slot(STEP_PATCHES), patches);
    builder.end_table(table)
}

fn write_patch(builder: &mut FlatBufferBuilder<'_>, patch: &Patch) -> Written {
    let (kind, index, addend) = kind_numbers(patch.kind);
    let table = builder.start_table();
    builder.push_slot(slot(PATCH_ADDEND), addend, 0);
    builder.push_slot(slot(PATCH_OFFSET), patch.offset, 0);
    builder.push_slot(slot(PATCH_INDEX), index, 0);
    builder.push_slot(slot(PATCH_KIND), kind, 0);
    builder.end_table(table)
}

/// Everything but what the packets mean.
pub(super) fn read(bytes: &[u8], card: Generation) -> Result<Container, ParseError> {
    hal_backend::container::read(bytes, Some(IDENTIFIER), |executable| read_executable(executable, card))
}

fn read_executable(executable: &mut Table<'_, '_, '_>, card: Generation) -> Result<Container, ParseError> {
    let version = executable.u16(EXECUTABLE_VERSION, 0)?;
    if version != VERSION {
        let text = format!(
            "version {version}, and this driver reads version {VERSION}; compile the module for this driver's release"
        );
        return Err(ParseError::incompatible(text));
    }
    let generation = match executable.u8(EXECUTABLE_GENERATION, 0)? {
        0 => None,
        1 => Some(Generation::Gaudi1),
        2 => Some(Generation::Gaudi2),
        number => {
            let text = format!("it is for generation {number}; there are 0 (any), 1 (Gaudi) and 2 (Gaudi 2)");
            return Err(ParseError::incompatible(text));
        }
    };
    if let Some(generation) = generation.filter(|&generation| generation != card) {
        let text = format!("it is for {generation} and this card is a {card}; compile the module for {card}");
        return Err(ParseError::incompatible(text));
    }
    let data = executable.tables(EXECUTABLE_DATA, "data segment", read_segment)?.unwrap_or_default();
    let entries = executable.tables(EXECUTABLE_ENTRIES, "entry", read_entry)?;
    let entries = required(entries, "entries")?;
    Ok(Container { generation, data, entries })
}

fn read_segment(segment: &mut Table<'_, '_, '_>) -> Result<DataSegment, ParseError> {
    let alignment = segment.u32(SEGMENT_ALIGNMENT, DEFAULT_ALIGNMENT)?;
    let bytes = required(segment.bytes(SEGMENT_BYTES, "bytes")?, "bytes")?.to_vec();
    Ok(DataSegment { alignment, bytes })
}

fn read_entry(entry: &mut Table<'_, '_, '_>) -> Result<Entry, ParseError> {
    let name = required(entry.text(ENTRY_NAME, "name")?, "name")?.to_owned();
    let mut rest = || {
        let mut workgroup_size = [0; 3];
        for (number, size) in (ENTRY_WORKGROUP_SIZE..).zip(&mut workgroup_size) {
            *size = entry.u32(number, 0)?;
        }
        let bindings = entry.u16(ENTRY_BINDINGS, 0)?;
        let constants = entry.u16(ENTRY_CONSTANTS, 0)?;
        let steps = entry.tables(ENTRY_STEPS, "step", read_step)?;
        let steps = required(steps, "steps")?;
        Ok(Entry { name: String::new(), bindings, constants, workgroup_size, steps })
    };
    match rest() {
        Ok(entry) => Ok(Entry { name, ..entry }),
        Err(fault) => Err(ParseError::within(fault, Name(&name))),
    }
}

fn read_step(step: &mut Table<'_, '_, '_>) -> Result<Step, ParseError> {
    let lane = match step.u8(STEP_LANE, 0)? {
        0 => Lane::Compute,
        1 => Lane::HostToDevice,
        2 => Lane::DeviceToHost,
        3 => Lane::DeviceToDevice,
        number => {
            let text = format!("lane {number}; there are 0 (compute), 1 (down), 2 (up) and 3 (within)");
            return Err(ParseError::invalid(text));
        }
    };
    let template = required(step.bytes(STEP_TEMPLATE, "template")?, "template")?.to_vec();
    let patches = step.tables(STEP_PATCHES, "patch", read_patch)?.unwrap_or_default();
    Ok(Step { lane, template, patches })
}

fn read_patch(patch: &mut Table<'_, '_, '_>) -> Result<Patch, ParseError> {
    let offset = patch.u32(PATCH_OFFSET, 0)?;
    let kind = patch.u8(PATCH_KIND, 0)?;
    let index = patch.u16(PATCH_INDEX, 0)?;
    let addend = patch.u64(PATCH_ADDEND, 0)?;
    let kind =
        kind_of(kind, index, addend).map_err(|error| error.within(format_args!("at offset {offset}")))?;
    Ok(Patch { offset, kind })
}
