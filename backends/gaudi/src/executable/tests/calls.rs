// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

use super::*;
use crate::executable::Call;

const INVALID: Code = Code::InvalidArgument;

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
fn too_few_bindings_or_constants() {
    let container = with(step(packet(opcode::NOP, 8), vec![]));
    let entry = &container.entries[0];
    let few = Call { bindings: &[(8, 8)], constants: &[1], ..Call::default() };
    refused(encode(entry, &few), INVALID, &["dispatch of \"two\"", "1 bindings given", "takes 2"]);
    let none = Call { bindings: &[(8, 8); 2], ..Call::default() };
    refused(encode(entry, &none), INVALID, &["dispatch of \"two\"", "0 constants given", "takes 1"]);
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
        [(8, PatchKind::LocalMemory), (4, PatchKind::IndirectAddress), (u32::MAX, PatchKind::IndirectAddress)]
    {
        check(patch(offset, kind), "outside of its template");
    }
    check(patch(0, PatchKind::Constant { constant: 1 }), "no constant 1");
    check(patch(0, PatchKind::BindingLength { binding: 2 }), "no binding 2");
}
