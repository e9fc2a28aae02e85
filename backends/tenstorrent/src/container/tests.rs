// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Containers: bytes that stay as they are, each refusal, which variant is chosen, and bytes of any kind.

use super::*;
use emulator_testbench::cases;
use flatbuffers::FlatBufferBuilder;
use hal_backend::Code;
use proptest::prelude::*;

/// A file with no more than its header, and attributes that name an architecture.
fn elf(architecture: &str) -> Vec<u8> {
    let mut file = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let mut words = |values: &[u32]| file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    let has_attributes = u32::from(!architecture.is_empty());
    words(&[3 | 243 << 16, 1, 0, 52, 0, 2, 52 | 32 << 16, has_attributes, 0]);
    if architecture.is_empty() {
        return file;
    }
    let sized = |head: &[u8], tail: &[u8]| {
        let length = u32::try_from(head.len() + 4 + tail.len()).unwrap();
        [head, &length.to_le_bytes()[..], tail].concat()
    };
    let entries = [&[5][..], architecture.as_bytes(), &[0]].concat();
    let vendor = sized(&[], &[&b"riscv\0"[..], &sized(&[1], &entries)].concat());
    let attributes = [b"A", &vendor[..]].concat();
    let length = u32::try_from(attributes.len()).unwrap();
    words(&[0x7000_0003, 84, 0, 0, length, length, 4, 1]);
    file.extend(attributes);
    file
}

fn variant<'a>(cores: Option<Cores>, extensions: &[&str], elf: &'a [u8]) -> Variant<'a> {
    Variant { cores, extensions: extensions.iter().map(|&name| name.to_owned()).collect(), elf }
}

fn refused(container: &Container<'_>, code: Code, parts: &[&str]) {
    refused_bytes(&container.write(), code, parts);
}

fn refused_bytes(bytes: &[u8], code: Code, parts: &[&str]) {
    let failure = Container::read(bytes).unwrap_err();
    assert_eq!(failure.code(), code, "{failure}");
    assert!(failure.message().starts_with("tenstorrent-htt1 executable: "), "{failure}");
    for part in parts {
        assert!(failure.message().contains(part), "{part:?} in {failure}");
    }
}

fn one(extensions: &[&str], elf: &[u8]) -> Vec<u8> {
    Container { variants: vec![variant(None, extensions, elf)] }.write()
}

#[test]
fn bytes_of_a_container_stay_as_they_are() {
    let container = Container {
        variants: vec![variant(Some(Cores::Blackhole), &["m", "f"], b"one"), variant(None, &[], b"another")],
    };
    let bytes = container.write();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, GOLDEN);
    assert_eq!(schema::read(&bytes).unwrap(), container);
}

const GOLDEN: &str = "100000004854543108000c0006000800080000000000010004000000020000003c0000001000000000000a000c000000\
                      040008000a00000008000000080000000000000007000000616e6f746865720000000a001000070008000c000a000000\
                      0000000208000000200000000200000010000000040000000100000066000000010000006d000000030000006f6e6500";

const SCHEMA: &str = include_str!("../../executable.fbs");

/// The slot of a table's field, from the schema's text.
fn slot(table: &str, field: &str) -> u16 {
    let begin = SCHEMA.find(&format!("table {table} ")).unwrap();
    let body = SCHEMA[begin..].split_once("{\n").unwrap().1.split_once("\n}").unwrap().0;
    let mut fields = body.lines().map(str::trim).filter(|line| !line.starts_with("//"));
    let number = fields.position(|line| line.starts_with(&format!("{field}:"))).unwrap();
    4 + 2 * u16::try_from(number).unwrap()
}

/// A container by the numbers that the schema gives, with what is left out.
fn raw(version: u16, cores: u8, without: &str) -> Vec<u8> {
    let file = elf("");
    let mut builder = FlatBufferBuilder::new();
    let bytes = builder.create_vector(&file);
    let name = builder.create_string("m");
    let names = builder.create_vector(&[name]);
    let table = builder.start_table();
    builder.push_slot_always(slot("Variant", "cores"), cores);
    if without != "extensions" {
        builder.push_slot_always(slot("Variant", "extensions"), names);
    }
    if without != "elf" {
        builder.push_slot_always(slot("Variant", "elf"), bytes);
    }
    let one = builder.end_table(table);
    let variants = builder.create_vector(&[one]);
    let table = builder.start_table();
    builder.push_slot_always(slot("Executable", "version"), version);
    if without != "variants" {
        builder.push_slot_always(slot("Executable", "variants"), variants);
    }
    let root = builder.end_table(table);
    builder.finish(root, Some("HTT1"));
    builder.finished_data().to_vec()
}

#[test]
fn fields_are_where_the_schema_has_them() {
    let file = elf("");
    for (number, cores) in [(0, None), (1, Some(Cores::Wormhole)), (2, Some(Cores::Blackhole))] {
        let names = ["Any", "Wormhole", "Blackhole"];
        assert!(SCHEMA.contains(&format!("  {} = {number},", names[usize::from(number)])));
        let bytes = raw(1, number, "");
        assert_eq!(Container::read(&bytes).unwrap().variants, [variant(cores, &["m"], &file)]);
    }
    let bytes = raw(1, 0, "extensions");
    assert_eq!(Container::read(&bytes).unwrap().variants, [variant(None, &[], &file)]);
}

#[test]
fn container_outside_of_the_schema_is_refused() {
    for version in [0, 2] {
        let says = format!("version {version}, and this driver reads version 1");
        refused_bytes(&raw(version, 0, ""), Code::Incompatible, &[&says, "tenstorrent-pack"]);
    }
    refused_bytes(&raw(1, 3, ""), Code::Incompatible, &["variant 0: cores 3", "0 (any), 1 (Wormhole)"]);
    refused_bytes(&raw(1, 0, "elf"), Code::InvalidArgument, &["variant 0: no elf, which is required"]);
    refused_bytes(&raw(1, 0, "variants"), Code::InvalidArgument, &["no variants, which are required"]);
    refused_bytes(b"", Code::Incompatible, &["0 bytes", "another kind of file"]);
    refused_bytes(b"\x7fELF\x01\x01\x01\0and so on", Code::Incompatible, &["another kind of file"]);
    refused_bytes(&one(&[], &elf(""))[..20], Code::InvalidArgument, &["damaged"]);
}

#[test]
fn container_that_contradicts_itself_is_refused() {
    refused(&Container::default(), Code::InvalidArgument, &["no variants", "pack at least one file"]);
    let file = elf("");
    for name in ["", "M", "+m", "zb a", "mf", "z", "é"] {
        refused_bytes(
            &one(&["f", name], &file),
            Code::InvalidArgument,
            &["variant 0", "no extension's name"],
        );
    }
    refused_bytes(&one(&["m", "f", "m"], &file), Code::InvalidArgument, &["m is declared twice"]);
    refused_bytes(&one(&["m"], b""), Code::Incompatible, &["variant 0: its file: ", "not an ELF file"]);
    let mut other = file.clone();
    other[18] = 62;
    refused_bytes(&one(&["m"], &other), Code::Incompatible, &["machine 0x3e"]);
    refused_bytes(
        &one(&["m"], &elf("rv64i2p1")),
        Code::Incompatible,
        &["\"rv64i2p1\"", "no RISC-V of 32 bits"],
    );
    let mut cut = elf("rv32i2p1");
    cut.pop();
    refused_bytes(&one(&["m"], &cut), Code::Incompatible, &["the attributes is outside of it"]);
    let second = Container { variants: vec![variant(None, &["m"], &file), variant(None, &["M"], &file)] };
    refused(&second, Code::InvalidArgument, &["variant 1: \"M\""]);
}

#[test]
fn extensions_that_are_not_declared_are_noticed_whatever_is_declared() {
    let file = elf("rv32i2p1_m2p0_f2p2_zicsr2p0_zmmul1p0_zba1p0_zbb1p0");
    for (declared, missing) in [
        (&[][..], "compiled with f, m, zba, zbb, zicsr, zmmul, and declared is none"),
        (&["m"], "compiled with f, zba, zbb, zicsr, and declared is m"),
        (&["m", "f", "zba"], "compiled with zbb, and declared is m, f, zba"),
        (&["zbb", "d"], "compiled with m, zba, zmmul, and declared is zbb, d"),
    ] {
        refused_bytes(&one(declared, &file), Code::InvalidArgument, &["variant 0: its file says", missing]);
    }
    assert!(
        Container::read(&one(&["m", "f", "zba", "zbb"], &file)).is_ok(),
        "what is implied is not missing"
    );
    assert!(Container::read(&one(&["m", "f", "b", "v"], &file)).is_ok(), "more may be declared");
    assert!(Container::read(&one(&[], &elf("rv32i2p1"))).is_ok());
    assert!(Container::read(&one(&[], &elf(""))).is_ok(), "a file that says nothing contradicts nothing");
}

#[test]
fn first_variant_that_the_cores_have_everything_for_is_chosen() {
    let file = elf("");
    let choose = |variants: &[Variant<'_>], cores| {
        let container = Container { variants: variants.to_vec() };
        container.choose(cores).map(|(number, _)| number)
    };
    let variants = [
        variant(None, &["m", "f", "d"], &file),
        variant(Some(Cores::Wormhole), &["m"], &file),
        variant(Some(Cores::Blackhole), &["m", "f", "zba", "zbb"], &file),
        variant(None, &["m"], &file),
    ];
    assert_eq!(choose(&variants, Cores::Wormhole).unwrap(), 1);
    assert_eq!(choose(&variants, Cores::Blackhole).unwrap(), 2);
    // Wormhole's floats are replaced, and nothing else.
    let of_wormhole =
        |extensions| choose(&[variant(Some(Cores::Wormhole), extensions, &file)], Cores::Wormhole);
    assert_eq!(of_wormhole(&["m", "f"]).unwrap(), 0);
    assert!(of_wormhole(&["m", "f", "zba"]).is_err());
    let [first, wormhole, blackhole, any] = variants.clone();
    assert_eq!(choose(&[any, blackhole.clone()], Cores::Blackhole).unwrap(), 0, "the order decides");
    let refused = choose(&[first, wormhole], Cores::Blackhole).unwrap_err();
    assert_eq!(refused.code(), Code::Incompatible);
    for part in [
        "nothing for this card's cores (Blackhole, which have f, i, m, zaamo, zba, zbb, zicsr, zmmul)",
        "one for any cores with m, f, d (they lack d)",
        "one for Wormhole with m;",
        "docs/tenstorrent.md",
    ] {
        assert!(refused.message().contains(part), "{part:?} in {refused}");
    }
    let refused = choose(&[blackhole], Cores::Wormhole).unwrap_err();
    assert!(refused.message().contains("one for Blackhole with m, f, zba, zbb"), "{refused}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(2000)))]

    #[test]
    fn fuzz_damaged_containers_are_read_or_refused(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let (one, other) = (elf("rv32i2p1_m2p0_zmmul1p0"), elf(""));
        let container = Container {
            variants: vec![variant(Some(Cores::Blackhole), &["m", "zba"], &one), variant(None, &["m"], &other)],
        };
        let mut bytes = container.write();
        prop_assert_eq!(&Container::read(&bytes).unwrap(), &container);
        for (at, byte) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        for bytes in [&bytes[..], &bytes[..cut.index(bytes.len())]] {
            if let Ok(container) = Container::read(bytes) {
                prop_assert!(!container.variants.is_empty());
                let _ = container.choose(Cores::Wormhole);
            }
        }
    }

    #[test]
    fn fuzz_noise_is_refused(mut noise in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(Container::read(&noise).is_err());
        if let Some(place) = noise.get_mut(4..8) {
            place.copy_from_slice(b"HTT1");
        }
        let _ = Container::read(&noise);
    }
}
