// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

use super::*;
use crate::executable::{Axis, Call};
use proptest::collection::vec;
use proptest::prelude::*;

const BINDINGS: [(u64, u64); 3] = [(0x1_0000_0000, 0x1_0000), (0x2_0000_0100, 0x8000), (7, u32::MAX as u64)];
const CONSTANTS: [u32; 4] = [0xa, 0xbb, 0xccc, 0xdddd_dddd];
const DATA: [u64; 2] = [0x9_0000_0000, 0xa_0000_0000];
const CALL: Call<'_> = Call {
    workgroup_size: [2, 3, 4],
    workgroup_count: [50, 60, 70],
    indirect: 0x8877_0000_0000,
    local_memory: 4096,
    constants: &CONSTANTS,
    bindings: &BINDINGS,
    data: &DATA,
};

/// A packet's bytes, and where in them 4 bytes may be patched.
fn some_packet(which: u8, fill: u8) -> (Vec<u8>, Vec<usize>) {
    let (operation, length, places): (_, _, &[usize]) = match which % 6 {
        0 => (opcode::NOP, 8, &[0]),
        1 => (opcode::MSG_SHORT, 8, &[0]),
        2 => (opcode::MSG_LONG, 16, &[0, 8, 12]),
        3 => (opcode::LIN_DMA, 24, &[0, 8, 12, 16, 20]),
        4 => (opcode::WREG_BULK, 24, &[8, 12, 16, 20]),
        _ => (opcode::LOAD_AND_EXE, 16, &[8, 12]),
    };
    let mut bytes = vec![fill; length];
    let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    put(4, operation << 24);
    if operation == opcode::WREG_BULK {
        put(0, 2);
    }
    (bytes, places.to_vec())
}

fn some_kind(which: u8, index: u16, addend: u64) -> PatchKind {
    let axis = [Axis::X, Axis::Y, Axis::Z][usize::from(index % 3)];
    match which % 9 {
        0 => PatchKind::BindingAddress { binding: index % 3, addend },
        1 => PatchKind::BindingLength { binding: index % 3 },
        2 => PatchKind::BindingLengthWord { binding: index % 3 },
        3 => PatchKind::Constant { constant: index % 4 },
        4 => PatchKind::WorkgroupCount(axis),
        5 => PatchKind::WorkgroupSize(axis),
        6 => PatchKind::LocalMemory,
        7 => PatchKind::IndirectAddress,
        _ => PatchKind::DataAddress { segment: index % 2, addend: addend % 4 },
    }
}

/// Packets and patches by these choices: a kind that does not fit its place is left out.
fn some_step(lane: Lane, choices: &[(u8, u8, u8, u16, u64)]) -> Step {
    let mut step = Step { lane, template: Vec::new(), patches: Vec::new() };
    for &(which, fill, kind, index, addend) in choices {
        let (bytes, places) = some_packet(which, fill);
        let begin = step.template.len();
        let mut free = 0;
        for (number, &place) in places.iter().enumerate() {
            let turn = u8::try_from(number).unwrap();
            let kind =
                some_kind(kind.wrapping_add(turn.wrapping_mul(fill | 1)), index + u16::from(turn), addend);
            let room = kind.width() == 4 || places.contains(&(place + 4));
            if place < free || !room {
                continue;
            }
            free = place + kind.width();
            step.patches.push(patch(u32::try_from(begin + place).unwrap(), kind));
        }
        step.template.extend(bytes);
    }
    step
}

fn lane() -> impl Strategy<Value = Lane> {
    prop::sample::select(Lane::ALL.to_vec())
}

fn entry() -> impl Strategy<Value = Entry> {
    let choice = (any::<u8>(), any::<u8>(), any::<u8>(), 0u16..1000, 0u64..0x8000);
    let step = (lane(), vec(choice, 1..6)).prop_map(|(lane, choices)| some_step(lane, &choices));
    let size = prop_oneof![Just([0; 3]), [1u32.., 1u32.., 1u32..]];
    (".{0,12}", size, vec(step, 1..4)).prop_map(|(name, workgroup_size, steps)| Entry {
        name,
        bindings: 3,
        constants: 4,
        workgroup_size,
        steps,
    })
}

fn container() -> impl Strategy<Value = Container> {
    let segment = (0u32..22, vec(any::<u8>(), 3..40))
        .prop_map(|(shift, bytes)| DataSegment { alignment: 1 << shift, bytes });
    (any::<bool>(), vec(segment, 2), vec(entry(), 0..4)).prop_map(|(any, data, entries)| Container {
        generation: (!any).then_some(Generation::Gaudi2),
        data,
        entries,
    })
}

/// The bytes that a patch writes, by an implementation of the test's own.
fn expected(entry: &Entry, kind: PatchKind) -> Vec<u8> {
    let axis = |axis, [x, y, z]: [u32; 3]| match axis {
        Axis::X => x,
        Axis::Y => y,
        Axis::Z => z,
    };
    let long = |value: u64| value.to_le_bytes().to_vec();
    let word = |value: u32| value.to_le_bytes().to_vec();
    match kind {
        PatchKind::BindingAddress { binding, addend } => long(BINDINGS[usize::from(binding)].0 + addend),
        PatchKind::BindingLength { binding } => long(BINDINGS[usize::from(binding)].1),
        PatchKind::BindingLengthWord { binding } => {
            word(u32::try_from(BINDINGS[usize::from(binding)].1).unwrap())
        }
        PatchKind::Constant { constant } => word(CONSTANTS[usize::from(constant)]),
        PatchKind::WorkgroupCount(of) => word(axis(of, [50, 60, 70])),
        PatchKind::WorkgroupSize(of) if entry.workgroup_size[0] == 0 => word(axis(of, [2, 3, 4])),
        PatchKind::WorkgroupSize(of) => word(axis(of, entry.workgroup_size)),
        PatchKind::LocalMemory => word(4096),
        PatchKind::IndirectAddress => long(0x8877_0000_0000),
        PatchKind::DataAddress { segment, addend } => long(DATA[usize::from(segment)] + addend),
    }
}

/// The call, as far as an entry takes it.
fn call_of(entry: &Entry) -> Call<'static> {
    let mut patches = entry.steps.iter().flat_map(|step| &step.patches);
    let indirect = patches.any(|patch| patch.kind == PatchKind::IndirectAddress);
    Call { indirect: if indirect { CALL.indirect } else { 0 }, ..CALL }
}

proptest! {
    #[test]
    fn valid_container_comes_back_as_it_was(container in container()) {
        let bytes = container.write();
        prop_assert_eq!(Container::read(&bytes, Generation::Gaudi2).unwrap(), container);
    }

    #[test]
    fn filled_in_template_differs_where_its_patches_are(entry in entry()) {
        let mut out = vec![0xee; 3];
        for (number, step) in entry.steps.iter().enumerate() {
            let mut bytes = step.template.clone();
            for patch in &step.patches {
                let value = expected(&entry, patch.kind);
                let at = usize::try_from(patch.offset).unwrap();
                bytes.splice(at..at + value.len(), value);
            }
            let begin = out.len();
            entry.encode(number, &call_of(&entry), &mut out).unwrap();
            prop_assert_eq!(&out[begin..], &bytes[..]);
        }
        prop_assert_eq!(&out[..3], &[0xee; 3]);
    }

    #[test]
    fn fuzz_damaged_files_are_refused_or_read_and_nothing_else(
        container in container(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let mut bytes = container.write();
        for (place, value) in changes {
            let at = place.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        for generation in [Generation::Gaudi1, Generation::Gaudi2] {
            let Ok(read) = Container::read(&bytes, generation) else { continue };
            for entry in &read.entries {
                for (number, step) in entry.steps.iter().enumerate() {
                    let mut out = Vec::new();
                    let done = entry.encode(number, &call_of(entry), &mut out).is_ok();
                    prop_assert_eq!(out.len(), if done { step.template.len() } else { 0 });
                }
            }
            // A container that was read is valid: it is written and read again.
            prop_assert_eq!(&Container::read(&read.write(), generation).unwrap(), &read);
        }
    }

    #[test]
    fn fuzz_any_bytes_are_read_or_refused_without_a_panic(bytes in vec(any::<u8>(), 0..200)) {
        let mut file = bytes;
        if let Some(identifier) = file.get_mut(4..8) {
            identifier.copy_from_slice(b"HGX1");
        }
        let _ = Container::read(&file, Generation::Gaudi1);
    }

    #[test]
    fn fuzz_templates_of_any_words_are_read_or_refused_without_a_panic(
        words in vec((any::<u32>(), 0u32..0x20, any::<bool>()), 1..40),
        at in 0u32..400,
    ) {
        // Operations are likely to exist, and first words to be small.
        let template = words.iter().flat_map(|&(word, operation, small)| {
            let first = if small { word & 3 } else { word };
            [first.to_le_bytes(), (operation << 24 | word & 0xff).to_le_bytes()].concat()
        });
        let container = with(step(template.collect(), vec![patch(at, PatchKind::LocalMemory)]));
        if let Ok(read) = Container::read(&container.write(), Generation::Gaudi2) {
            prop_assert_eq!(read, container);
        }
    }
}
