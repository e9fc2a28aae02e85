// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

use super::*;
use crate::executable::Call;
use crate::executable::wrap::wrap;
use crate::packet::{DISPATCH, dispatch};
use hal_backend::Function;

const INVALID: Code = Code::InvalidArgument;

fn function(name: &str, bindings: u16, constants: u16, workgroup_size: [u32; 3]) -> Function {
    Function { name: name.into(), bindings, constants, workgroup_size }
}

fn encode(entry: &Entry, call: &Call<'_>) -> Result<Vec<u8>, Failure> {
    let mut out = b"before".to_vec();
    let result = entry.encode(0, call, &mut out);
    assert!(out.starts_with(b"before"));
    if result.is_err() {
        assert_eq!(out.len(), 6, "something was left behind");
    }
    result.map(|()| out.split_off(6))
}

#[test]
fn wrapped_function_is_one_dispatch_with_everything() {
    let functions = [function("first", 0, 0, [0; 3]), function("second", 2, 3, [4, 1, 1])];
    let container = wrap(&functions, Generation::Gaudi2).unwrap();
    assert_eq!(container.generation, Some(Generation::Gaudi2));
    assert_eq!(Container::read(&container.write(), Generation::Gaudi2, true).unwrap(), container);
    refused(read(&container, Generation::Gaudi2), Code::PermissionDenied, &["DISPATCH"]);

    let call = Call {
        program: 0x0102_0304_0506_0708,
        workgroup_size: [9, 9, 9],
        workgroup_count: [10, 11, 12],
        indirect: 0x77_0000_0000,
        local_memory: 13,
        constants: &[100, 101, 102, 103],
        bindings: &[(0x1_0000_0000, 0x10), (0x2_0000_0000, 0x2_0000_0001)],
        data: &[],
    };
    let bytes = encode(&container.entries[1], &call).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let words = |at: usize| [word(at), word(at + 4), word(at + 8)];
    assert_eq!(bytes.len(), 64 + 2 * 16 + 16);
    assert_eq!(word(dispatch::LENGTH), 112);
    assert_eq!(word(dispatch::CONTROL), DISPATCH << 24);
    assert_eq!(long(dispatch::PROGRAM), 0x0102_0304_0506_0708);
    assert_eq!(word(dispatch::FUNCTION), 1);
    assert_eq!(word(dispatch::LOCAL_MEMORY), 13);
    assert_eq!(words(dispatch::WORKGROUP_SIZE), [4, 1, 1], "the function's own");
    assert_eq!((word(dispatch::BINDINGS), word(dispatch::CONSTANTS)), (2, 3));
    assert_eq!(words(dispatch::WORKGROUP_COUNT), [10, 11, 12]);
    assert_eq!(long(dispatch::INDIRECT), 0x77_0000_0000);
    assert_eq!([64, 72, 80, 88].map(long), [0x1_0000_0000, 0x10, 0x2_0000_0000, 0x2_0000_0001]);
    assert_eq!(words(96), [100, 101, 102]);
    assert_eq!(word(108), 0);

    let open = encode(&container.entries[0], &call).unwrap();
    assert_eq!(open[dispatch::WORKGROUP_SIZE..][..4], 9u32.to_le_bytes(), "the call's");
}

#[test]
fn function_that_no_packet_is_large_enough_for_is_not_wrapped() {
    assert!(wrap(&[function("much", 3836, 0, [0; 3])], Generation::Gaudi1).is_ok());
    let result = wrap(&[function("more", 3836, 1, [0; 3])], Generation::Gaudi1);
    refused(result, INVALID, &["entry 0: \"more\"", "3836 bindings and 1 constants", "61440"]);
}

#[test]
fn too_few_bindings_or_constants() {
    let container = wrap(&[function("f", 2, 1, [0; 3])], Generation::Gaudi1).unwrap();
    let entry = &container.entries[0];
    let few = Call { bindings: &[(8, 8)], constants: &[1], ..Call::default() };
    refused(encode(entry, &few), INVALID, &["dispatch of \"f\"", "1 bindings given", "takes 2"]);
    let none = Call { bindings: &[(8, 8); 2], ..Call::default() };
    refused(encode(entry, &none), INVALID, &["dispatch of \"f\"", "0 constants given", "takes 1"]);
    assert!(encode(entry, &Call { constants: &[1], ..none }).is_ok());
    let enough = Call { constants: &[1, 2], ..none };
    refused(entry.encode(1, &enough, &mut Vec::new()), INVALID, &["step 1 of 1"]);
}

#[test]
fn indirect_count_that_nothing_reads() {
    let call = Call { indirect: 8, ..Call::default() };
    let entry = &sample().entries[1];
    refused(encode(entry, &call), Code::Unimplemented, &["indirect", "give the count"]);
    assert!(encode(entry, &Call::default()).is_ok());
    // One step that reads it is enough for all of them.
    let call = Call { bindings: &[(16, 16); 2], constants: &[1], data: &[16], ..call };
    assert!(encode(&sample().entries[0], &call).is_ok());
}

#[test]
fn values_that_do_not_fit() {
    let one = |kind| with(step(packet(opcode::LIN_DMA, 24), vec![patch(16, kind)])).entries.remove(0);
    let call = Call { constants: &[1], bindings: &[(0x100, 1 << 32), (u64::MAX, 8)], ..Call::default() };
    let check = |kind, pieces: &[&str]| refused(encode(&one(kind), &call), INVALID, pieces);
    check(
        PatchKind::BindingLengthWord { binding: 0 },
        &["\"two\"", "step 0", "binding 0 has 4294967296 bytes"],
    );
    check(
        PatchKind::BindingAddress { binding: 1, addend: 9 },
        &["binding 1 has 8 bytes", "begins 9 bytes into"],
    );
    check(PatchKind::BindingAddress { binding: 1, addend: 8 }, &["beyond every address"]);
    check(PatchKind::DataAddress { segment: 0, addend: 0 }, &["data segment 0 was placed nowhere"]);
}

#[test]
fn patches_that_were_never_checked() {
    let one = |patch| with(step(packet(opcode::NOP, 8), vec![patch])).entries.remove(0);
    let call = Call { constants: &[1], bindings: &[(0, 0); 2], ..Call::default() };
    let check = |patch, piece| refused(encode(&one(patch), &call), INVALID, &[piece]);
    for (offset, kind) in
        [(8, PatchKind::LocalMemory), (4, PatchKind::Program), (u32::MAX, PatchKind::Program)]
    {
        check(patch(offset, kind), "outside of its template");
    }
    check(patch(0, PatchKind::Constant { constant: 1 }), "no constant 1");
    check(patch(0, PatchKind::BindingLength { binding: 2 }), "no binding 2");
}
