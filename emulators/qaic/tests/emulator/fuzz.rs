// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Nonsense: whatever is asked or queued, the emulator answers, and the card can be used again afterwards.

use crate::common::{BINDING, Card, LONG, card, open, options, wait_for};
use emulator_core::System;
use emulator_qaic::{Emulator, Options};
use emulator_testbench::cases;
use hal_qaic_abi::uapi::{Call, Semaphore, SliceEntry};
use proptest::prelude::*;
use std::os::fd::AsFd;
use std::sync::Arc;

/// A card that still does what it should.
fn works(card: &Card) {
    let active = card.channel(8);
    let poster = card.poster(&active, 3);
    card.execute(active.channel, &[poster]).unwrap();
    assert_eq!(card.wait(active.channel, poster, LONG), Ok(()), "{:?}", card.emulator.complaint(0));
    assert_eq!(card.deactivate(active).0, Ok(()));
}

/// A machine with little memory.
fn machine() -> Arc<Emulator> {
    Emulator::new(Options { dram: 1 << 26, ..options() }).unwrap()
}

/// Words that are more often right than any number is.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![0..20_u32, Just(24), Just(32), Just(96), any::<u32>()]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases(60)) })]

    #[test]
    fn fuzz_any_message_has_an_answer(
        words in prop::collection::vec(word(), 0..64), len in 0_u32..300, count in 0_u32..6,
    ) {
        let machine = machine();
        {
            let card = open(&machine, 0);
            let mut memory: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            memory.resize(4096, 0);
            let _ = card.manage_raw(&mut memory, len, count);
        }
        let counts = machine.counts(0);
        prop_assert_eq!((counts.users, counts.channels, counts.activations, counts.mapped), (0, 0, 0, 0));
        works(&open(&machine, 0));
    }

    #[test]
    fn fuzz_any_command_has_an_answer(kind in 0_u32..40, words in prop::collection::vec(word(), 1..40)) {
        let machine = machine();
        let card = open(&machine, 0);
        let mut command: Vec<u8> = std::iter::once(kind).chain(words).flat_map(|word| word.to_le_bytes()).collect();
        command.resize(command.len().next_multiple_of(8), 0);
        let _ = card.manage(&[hal_qaic_abi::nnc::user::Ask::Passthrough(&command)]);
        works(&card);
    }

    #[test]
    fn fuzz_any_request_has_an_answer(number in 0_u32..0x50, words in prop::collection::vec(word(), 8)) {
        let machine = machine();
        let card = open(&machine, 0);
        let active = card.channel(8);
        let stuck = card.stuck(&active);
        // Numbers of addresses, which would be this process's own, are left out.
        let safe = [Call::CreateBo, Call::MmapBo, Call::Wait, Call::DetachSlice, Call::GemClose];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        for call in safe.into_iter().filter(|call| u32::from(call.number()) == number) {
            // A creation of terabytes is a matter of the machine's memory.
            bytes[4..8].fill(0);
            let _ = card.emulator.ioctl(card.file().as_fd(), call.request(), &mut bytes);
        }
        let _ = card.detach(stuck);
        works(&card);
    }

    #[test]
    fn any_slices_leave_a_card_that_works(
        entries in prop::collection::vec(
            (0_u64..9000, 0_u64..9000, 0_u8..8, 0_u8..40, 0_u8..3, 0_u8..5, 0_u32..40, any::<bool>()), 1..5,
        ),
    ) {
        let machine = machine();
        let card = open(&machine, 0);
        let active = card.channel(16);
        let handle = card.create(8192).unwrap();
        let entry = |&fields: &(u64, u64, u8, u8, u8, u8, u32, bool)| {
            let (offset, size, cmd, index, presync, flags, db_len, near) = fields;
            SliceEntry {
                offset,
                size,
                dev_addr: if near { active.bases.ddr + BINDING } else { offset << 32 },
                db_addr: if near { active.bases.multicast } else { size },
                db_len,
                sem0: Semaphore { cmd, index, presync, flags, val: 1, pad: 0 },
                sem1: wait_for(index % 32),
                ..SliceEntry::default()
            }
        };
        let entries: Vec<SliceEntry> = entries.iter().map(entry).collect();
        if card.attach(handle, active.channel, 1, &entries).is_ok() {
            let _ = card.execute_part(active.channel, &[(handle, 100)]);
            let _ = card.wait(active.channel, handle, 1);
        }
        prop_assert_eq!(card.deactivate(active).0, Ok(()));
        works(&card);
    }
}

#[test]
fn users_that_come_and_go_leave_nothing() {
    let first = card(options());
    let emulator = first.emulator.clone();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for round in 0..8 {
                    let card = open(&emulator, 0);
                    let active = card.channel(8);
                    let objects: Vec<u32> = (0..=round % 3).map(|_| card.stuck(&active)).collect();
                    card.execute(active.channel, &objects).unwrap();
                    // Gone with everything on its way.
                }
            });
        }
    });
    drop(first);
    let counts = emulator.counts(0);
    let left = (counts.users, counts.objects, counts.channels, counts.activations, counts.mapped);
    assert_eq!((left, counts.allocated_bytes, counts.opens), ((0, 0, 0, 0, 0), 0, 25));
}
