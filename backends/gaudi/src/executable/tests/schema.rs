// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The code against the schema file: files are written here with the numbers that the file gives.

use super::*;
use flatbuffers::{FlatBufferBuilder, TableFinishedWIPOffset, WIPOffset};

const SCHEMA: &str = include_str!("../../../executable.fbs");

/// The lines between the braces of a declaration, without comments.
fn declaration(name: &str) -> impl Iterator<Item = &'static str> {
    let begin = SCHEMA.find(&format!(" {name} ")).expect("a declaration");
    let body = SCHEMA[begin..].split_once("{\n").unwrap().1.split_once("\n}").unwrap().0;
    body.lines().map(str::trim).filter(|line| !line.starts_with("//"))
}

/// The slot of a table's field.
fn slot(table: &str, field: &str) -> u16 {
    let mut fields = declaration(table).map(|line| line.split(':').next().unwrap());
    4 + 2 * u16::try_from(fields.position(|name| name == field).expect("a field")).unwrap()
}

/// The number of an enumeration's value.
fn number(enumeration: &str, value: &str) -> u8 {
    let mut values = declaration(enumeration).filter_map(|line| line.split_once(" = "));
    let (_, number) = values.find(|(name, _)| *name == value).expect("a value");
    number.trim_end_matches(',').parse().unwrap()
}

type Written = WIPOffset<TableFinishedWIPOffset>;

/// A file with one patch: all but the patch's numbers.
struct Raw {
    version: u16,
    generation: u8,
    lane: u8,
    kind: u8,
    index: u16,
    addend: u64,
    name: &'static [u8],
    without: &'static str,
    entries: usize,
}

impl Default for Raw {
    fn default() -> Self {
        let kind = number("PatchKind", "Constant");
        Raw {
            version: 1,
            generation: 0,
            lane: 0,
            kind,
            index: 0,
            addend: 0,
            name: b"raw",
            without: "",
            entries: 1,
        }
    }
}

impl Raw {
    fn write(&self) -> Vec<u8> {
        let mut builder = FlatBufferBuilder::new();
        let entry = self.entry(&mut builder);
        let entries = builder.create_vector(&vec![entry; self.entries]);
        let bytes = builder.create_vector(&[7u8, 8, 9]);
        let table = builder.start_table();
        if self.without != "bytes" {
            builder.push_slot_always(slot("DataSegment", "bytes"), bytes);
        }
        let segment = builder.end_table(table);
        let segments = builder.create_vector(&[segment]);
        let table = builder.start_table();
        builder.push_slot_always(slot("Executable", "version"), self.version);
        builder.push_slot_always(slot("Executable", "generation"), self.generation);
        builder.push_slot_always(slot("Executable", "data"), segments);
        if self.without != "entries" {
            builder.push_slot_always(slot("Executable", "entries"), entries);
        }
        let root = builder.end_table(table);
        builder.finish(root, Some("HGX1"));
        builder.finished_data().to_vec()
    }

    fn entry(&self, builder: &mut FlatBufferBuilder<'_>) -> Written {
        let table = builder.start_table();
        builder.push_slot_always(slot("Patch", "addend"), self.addend);
        builder.push_slot_always(slot("Patch", "offset"), 8u32);
        builder.push_slot_always(slot("Patch", "index"), self.index);
        builder.push_slot_always(slot("Patch", "kind"), self.kind);
        let patch = builder.end_table(table);
        let patches = builder.create_vector(&[patch]);
        let template = builder.create_vector(&packet(opcode::MSG_LONG, 16));
        let table = builder.start_table();
        builder.push_slot_always(slot("Step", "lane"), self.lane);
        if self.without != "template" {
            builder.push_slot_always(slot("Step", "template"), template);
        }
        builder.push_slot_always(slot("Step", "patches"), patches);
        let step = builder.end_table(table);
        let steps = builder.create_vector(&[step]);
        // A vector of bytes is a string but for the zero behind it.
        let name = builder.create_byte_string(self.name);
        let table = builder.start_table();
        if self.without != "name" {
            builder.push_slot_always(slot("Entry", "name"), name);
        }
        builder.push_slot_always(slot("Entry", "bindings"), 3u16);
        builder.push_slot_always(slot("Entry", "constants"), 4u16);
        builder.push_slot_always(slot("Entry", "workgroup_size_x"), 5u32);
        builder.push_slot_always(slot("Entry", "workgroup_size_y"), 6u32);
        builder.push_slot_always(slot("Entry", "workgroup_size_z"), 7u32);
        if self.without != "steps" {
            builder.push_slot_always(slot("Entry", "steps"), steps);
        }
        builder.end_table(table)
    }

    fn read(&self) -> Result<Container, Failure> {
        Container::read(&self.write(), Generation::Gaudi1)
    }
}

#[test]
fn fields_are_where_the_schema_has_them() {
    let container = Raw { index: 2, ..Raw::default() }.read().unwrap();
    let entry = Entry {
        name: "raw".into(),
        bindings: 3,
        constants: 4,
        workgroup_size: [5, 6, 7],
        steps: vec![step(packet(opcode::MSG_LONG, 16), vec![patch(8, PatchKind::Constant { constant: 2 })])],
    };
    let data = vec![DataSegment { alignment: 1, bytes: vec![7, 8, 9] }];
    assert_eq!(container, Container { generation: None, data, entries: vec![entry] });
}

#[test]
fn numbers_are_what_the_schema_says() {
    use crate::executable::Axis;
    let kinds = [
        ("BindingAddress", 2, 9, PatchKind::BindingAddress { binding: 2, addend: 9 }),
        ("BindingLength", 2, 0, PatchKind::BindingLength { binding: 2 }),
        ("BindingLengthWord", 2, 0, PatchKind::BindingLengthWord { binding: 2 }),
        ("Constant", 3, 0, PatchKind::Constant { constant: 3 }),
        ("WorkgroupCount", 0, 0, PatchKind::WorkgroupCount(Axis::X)),
        ("WorkgroupCount", 1, 0, PatchKind::WorkgroupCount(Axis::Y)),
        ("WorkgroupSize", 2, 0, PatchKind::WorkgroupSize(Axis::Z)),
        ("LocalMemory", 0, 0, PatchKind::LocalMemory),
        ("IndirectAddress", 0, 0, PatchKind::IndirectAddress),
        ("DataAddress", 0, 2, PatchKind::DataAddress { segment: 0, addend: 2 }),
    ];
    for (name, index, addend, kind) in kinds {
        let raw = Raw { kind: number("PatchKind", name), index, addend, ..Raw::default() };
        assert_eq!(raw.read().unwrap().entries[0].steps[0].patches, [patch(8, kind)]);
    }
    for (name, lane) in [
        ("Compute", Lane::Compute),
        ("HostToDevice", Lane::HostToDevice),
        ("DeviceToHost", Lane::DeviceToHost),
        ("DeviceToDevice", Lane::DeviceToDevice),
    ] {
        let raw = Raw { lane: number("Lane", name), ..Raw::default() };
        assert_eq!(raw.read().unwrap().entries[0].steps[0].lane, lane);
    }
    for (name, generation) in [("Any", None), ("Gaudi1", Some(Generation::Gaudi1))] {
        let raw = Raw { generation: number("Generation", name), ..Raw::default() };
        assert_eq!(raw.read().unwrap().generation, generation);
    }
    let raw = Raw { generation: number("Generation", "Gaudi2"), ..Raw::default() };
    refused(raw.read(), Code::Incompatible, &["it is for Gaudi 2"]);
}

#[test]
fn numbers_that_the_schema_does_not_have_are_refused() {
    for version in [0, 2] {
        let raw = Raw { version, ..Raw::default() };
        let pieces = [&*format!("version {version}"), "reads version 1", "compile"];
        refused(raw.read(), Code::Incompatible, &pieces);
    }
    let raw = Raw { generation: 3, ..Raw::default() };
    refused(raw.read(), Code::Incompatible, &["generation 3"]);
    let raw = Raw { lane: 4, ..Raw::default() };
    refused(raw.read(), Code::InvalidArgument, &["entry 0: \"raw\": step 0: lane 4"]);
    for kind in [0, 11, 255] {
        let raw = Raw { kind, ..Raw::default() };
        let place = "step 0: patch 0: at offset 8";
        refused(raw.read(), Code::InvalidArgument, &[place, &format!("patch kind {kind}")]);
    }
    let raw = Raw { kind: number("PatchKind", "WorkgroupSize"), index: 3, ..Raw::default() };
    refused(raw.read(), Code::InvalidArgument, &["dimension 3"]);
    for (kind, index, addend) in [("LocalMemory", 1, 0), ("Constant", 1, 1), ("IndirectAddress", 0, 8)] {
        let raw = Raw { kind: number("PatchKind", kind), index, addend, ..Raw::default() };
        refused(raw.read(), Code::InvalidArgument, &["must leave what it does not use zero", kind]);
    }
}

#[test]
fn container_without_a_required_field_is_refused() {
    let fields = [
        ("name", "entry 0: no name"),
        ("steps", "entry 0: \"raw\": no steps"),
        ("template", "step 0: no template"),
        ("bytes", "data segment 0: no bytes"),
        ("entries", "no entries"),
    ];
    for (without, text) in fields {
        refused(Raw { without, ..Raw::default() }.read(), Code::InvalidArgument, &[text, "required"]);
    }
    let raw = Raw { name: b"\xff", ..Raw::default() };
    refused(raw.read(), Code::InvalidArgument, &["entry 0: name: damaged", "Utf8"]);
}

#[test]
fn sharing_does_not_make_a_small_file_large() {
    assert_eq!(Raw { entries: 3, ..Raw::default() }.read().unwrap().entries.len(), 3);
    let raw = Raw { entries: 100_000, ..Raw::default() };
    refused(raw.read(), Code::InvalidArgument, &["damaged"]);
}
