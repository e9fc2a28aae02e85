// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

use super::*;
use crate::executable::{MAX_ALIGNMENT, MAX_TEMPLATE};

const INVALID: Code = Code::InvalidArgument;

fn both(container: &Container, code: Code, pieces: &[&str]) {
    for generation in [Generation::Gaudi1, Generation::Gaudi2] {
        refused(read(container, generation), code, pieces);
    }
}

#[test]
fn file_of_another_kind_is_refused() {
    for bytes in [&b""[..], b"short", b"\0\0\0\0HGX2", b"\x7fELF\x02\x01\x01\0\0\0\0\0"] {
        let result = Container::read(bytes, Generation::Gaudi1);
        refused(result, Code::Incompatible, &["gaudi-hgx1", "\"HGX1\"", "another kind of file"]);
    }
    for bytes in [&b"\xff\xff\xff\xffHGX1"[..], b"\x08\0\0\0HGX1", b"\x04\0\0\0HGX1"] {
        refused(Container::read(bytes, Generation::Gaudi1), INVALID, &["damaged"]);
    }
}

#[test]
fn container_for_another_generation_is_refused() {
    let mut container = sample();
    container.generation = Some(Generation::Gaudi2);
    let pieces = ["it is for Gaudi 2 and this card is a Gaudi; compile"];
    refused(read(&container, Generation::Gaudi1), Code::Incompatible, &pieces);
}

#[test]
fn data_segment_with_bad_alignment_or_no_bytes_is_refused() {
    let mut container = sample();
    for alignment in [0, 3, 2 * MAX_ALIGNMENT] {
        container.data[0].alignment = alignment;
        both(&container, INVALID, &["data segment 0", &format!("alignment {alignment}"), "power of two"]);
    }
    container.data[0] = DataSegment { alignment: MAX_ALIGNMENT, bytes: vec![] };
    both(&container, INVALID, &["data segment 0", "no bytes"]);
}

#[test]
fn entry_with_bad_workgroup_or_no_steps_is_refused() {
    let mut container = sample();
    container.entries[1].name = "half".into();
    container.entries[1].workgroup_size = [0, 1, 1];
    both(&container, INVALID, &["entry 1: \"half\"", "[0, 1, 1]", "three zeros"]);
    container.entries[1].workgroup_size = [0; 3];
    container.entries[1].steps.clear();
    both(&container, INVALID, &["entry 1: \"half\"", "no steps"]);
    container.entries[1].name = "long".repeat(1000);
    let failure = read(&container, Generation::Gaudi1).unwrap_err();
    assert!(failure.message().len() < 200, "{failure}");
}

#[test]
fn templates_of_no_size_or_too_much() {
    both(&with(step(vec![], vec![])), INVALID, &["step 0", "a template of 0 bytes"]);
    let nops = |bytes: usize| with(step(packet(opcode::NOP, 8).repeat(bytes / 8), vec![]));
    assert!(read(&nops(MAX_TEMPLATE), Generation::Gaudi1).is_ok());
    both(&nops(MAX_TEMPLATE + 8), INVALID, &["61448 bytes", "61440", "several steps"]);
}

#[test]
fn packets_that_are_not_whole_or_not_known() {
    let after = |mut bytes: Vec<u8>, length| {
        bytes.truncate(length);
        with(step([packet(opcode::NOP, 8), bytes].concat(), vec![]))
    };
    let place = ["entry 0: \"two\"", "step 0", "template offset 8"];
    let check = |container: &Container, piece: &str| {
        both(container, INVALID, &place);
        both(container, INVALID, &[piece]);
    };
    check(&after(packet(opcode::NOP, 8), 4), "4 bytes, which are no whole packet");
    check(&after(packet(opcode::LIN_DMA, 24), 16), "LIN_DMA has 24 bytes, but the template ends after 16");
    for unknown in [0, 0x10, 0x13, 0x1e, 0x1f] {
        check(&after(packet(unknown, 8), 8), &format!("operation {unknown:#x}"));
    }
    let mut bulk = packet(opcode::WREG_BULK, 16);
    bulk[..4].copy_from_slice(&0xffffu32.to_le_bytes());
    let pieces = [&place[..], &["WREG_BULK has 524288 bytes"]].concat();
    refused(read(&after(bulk, 16), Generation::Gaudi2), INVALID, &pieces);
}

#[test]
fn packets_that_the_kernel_refuses() {
    let one =
        |operation, length| with(step([packet(opcode::NOP, 8), packet(operation, length)].concat(), vec![]));
    for (operation, length, name) in [
        (opcode::MSG_PROT, 16, "MSG_PROT"),
        (opcode::CP_DMA, 16, "CP_DMA"),
        (opcode::WREG_BULK, 8, "WREG_BULK"),
    ] {
        let pieces = ["step 0", "template offset 8", name, "kernel", "Gaudi"];
        refused(read(&one(operation, length), Generation::Gaudi1), Code::PermissionDenied, &pieces);
    }
    let pieces = ["template offset 8: CB_LIST", "only Gaudi 2"];
    refused(read(&one(opcode::CB_LIST, 24), Generation::Gaudi1), Code::PermissionDenied, &pieces);
    both(&one(opcode::STOP, 8), Code::PermissionDenied, &["template offset 8: STOP", "leave it out"]);
    let mut load = packet(opcode::LOAD_AND_EXE, 16);
    load[0] = 1;
    let load = with(step(load, vec![]));
    refused(read(&load, Generation::Gaudi1), Code::PermissionDenied, &["LOAD_AND_EXE", "clear bit 0"]);
    assert!(read(&load, Generation::Gaudi2).is_ok());
}

#[test]
fn patches_in_the_wrong_place() {
    let message = packet(opcode::MSG_LONG, 16);
    let check = |patches: Vec<Patch>, pieces: &[&str]| {
        let container = with(step(message.repeat(2), patches));
        both(&container, INVALID, &["entry 0: \"two\"", "step 0"]);
        both(&container, INVALID, pieces);
    };
    let (word, long) = (PatchKind::LocalMemory, PatchKind::IndirectAddress);
    check(vec![patch(2, word)], &["patch 0 at template offset 2", "multiple of 4"]);
    check(vec![patch(32, word)], &["patch 0 at template offset 32", "32 bytes in all"]);
    check(vec![patch(28, long)], &["writes 8 bytes", "32 bytes in all"]);
    check(vec![patch(u32::MAX - 3, long)], &["32 bytes in all"]);
    check(vec![patch(4, word)], &["the control word of the MSG_LONG at 0"]);
    check(vec![patch(0, long)], &["the control word of the MSG_LONG at 0"]);
    check(vec![patch(20, word)], &["the control word of the MSG_LONG at 16"]);
    check(vec![patch(12, long)], &["the MSG_LONG at 0 ends at 16"]);
    check(
        vec![patch(24, word), patch(12, word), patch(8, long)],
        &["patch 1 at template offset 12", "what patch 2 writes at 8"],
    );
    check(vec![patch(8, word), patch(8, word)], &["patch 1 at template offset 8", "what patch 0 writes"]);
}

#[test]
fn patches_of_what_says_how_long_a_packet_is() {
    let mut bulk = packet(opcode::WREG_BULK, 16);
    bulk[..4].copy_from_slice(&1u32.to_le_bytes());
    let word = vec![patch(0, PatchKind::LocalMemory)];
    refused(
        read(&with(step(bulk, word.clone())), Generation::Gaudi2),
        INVALID,
        &["the length of the WREG_BULK"],
    );
    both(&with(step(packet(opcode::LOAD_AND_EXE, 16), word)), INVALID, &["the choice of a fetcher"]);
}

#[test]
fn patches_of_what_there_is_not() {
    let check = |kind, pieces: &[&str]| {
        both(&with(step(packet(opcode::LIN_DMA, 24), vec![patch(16, kind)])), INVALID, pieces);
    };
    let place = "patch 0 at template offset 16";
    check(PatchKind::BindingAddress { binding: 2, addend: 0 }, &[place, "binding 2, and 2 are declared"]);
    check(PatchKind::BindingLength { binding: 7 }, &[place, "binding 7, and 2 are declared"]);
    check(PatchKind::BindingLengthWord { binding: 2 }, &[place, "binding 2, and 2 are declared"]);
    check(PatchKind::Constant { constant: 1 }, &[place, "constant 1, and 1 are declared"]);
    check(PatchKind::DataAddress { segment: 1, addend: 0 }, &[place, "data segment 1, and 1 are declared"]);
    check(PatchKind::DataAddress { segment: 0, addend: 4 }, &[place, "addend 0x4", "0x3 bytes"]);
    check(PatchKind::DataAddress { segment: 0, addend: u64::MAX }, &[place, "addend", "0x3 bytes"]);
}
