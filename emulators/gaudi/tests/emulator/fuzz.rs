// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Nonsense: whatever is submitted or asked, the emulator answers, and a card can be used again afterwards.

use crate::common::{Card, LONG, card, executing, open};
use emulator_core::Errno;
use emulator_testbench::cases;
use hal_gaudi_abi::generation::Generation;
use hal_gaudi_abi::uapi::{Abi, Call, CsIn, WaitOut, cs, wait};
use proptest::prelude::*;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Words of a command buffer: anything, but often with an operation that exists.
fn packets() -> impl Strategy<Value = Vec<u8>> {
    let operation = prop_oneof![Just(9_u64), Just(0x1f), Just(0xa), Just(3), Just(4), Just(8), 0_u64..32];
    let mode = prop_oneof![Just(0x8_u64), Just(0x10), Just(0), any::<u16>().prop_map(u64::from)];
    let head = (operation, mode, 0_u32..200)
        .prop_map(|(operation, mode, low)| operation << 56 | mode << 32 | u64::from(low));
    let address = prop_oneof![
        Just(0x2000_0000_u64),
        Just(0x1001_0018_0000_0000),
        Just(0x1000_FFFF_FD00_0000),
        Just(0xFFF0_0000_0000_0000),
        0_u64..300,
        any::<u64>()
    ];
    let word = prop_oneof![head, address];
    proptest::collection::vec(word, 1..24)
        .prop_map(|words| words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

/// A submission that may take long, where a driver's seconds are short and the machine has something else to do.
fn patient() -> CsIn {
    CsIn { cs_flags: cs::CUSTOM_TIMEOUT, timeout: 1_000_000, ..CsIn::default() }
}

/// True if commands may wait for ever: at a fence, which they may also have somewhere else.
fn may_wait(bytes: &[u8]) -> bool {
    bytes.chunks_exact(8).any(|head| matches!(head[7] & 0x1F, 5 | 8))
}

/// The answer of a wait for a submission that has ended, that may wait for ever, or that an error has stopped.
fn ended(card: &Card, sequence: u64, bytes: &[u8]) -> (Result<(), Errno>, WaitOut) {
    let limit = Instant::now() + LONG;
    loop {
        let (result, answer) = card.wait_for(sequence, Duration::from_millis(20));
        let is_busy = result.is_ok() && answer.status != wait::COMPLETED;
        let stands_still = may_wait(bytes) || card.complaint().is_some();
        if !is_busy || stands_still || Instant::now() > limit {
            return (result, answer);
        }
    }
}

/// Runs nonsense, and then something that makes sense.
fn run(generation: Generation, queue: u32, bytes: &[u8]) {
    // Its resets are quick, and still not given up before a busy machine has closed the file.
    let card = card(executing(generation, |execution| execution.speed = 200));
    let machine = card.machine().clone();
    if generation == Generation::Gaudi2 {
        card.dram(1);
    }
    let commands = card.commands(bytes);
    match card.run_with(&patient(), &commands, queue, bytes.len()) {
        Ok(sequence) => match ended(&card, sequence, bytes) {
            (Ok(()), answer) => {
                let stands_still = may_wait(bytes) || card.complaint().is_some();
                assert!(answer.status == wait::COMPLETED || stands_still, "it did not end");
            }
            (Err(error), _) => assert!(matches!(error, Errno::IO | Errno::BUSY), "{error}"),
        },
        Err(error) => assert!(matches!(error, Errno::INVAL | Errno::PERM), "{error}"),
    }
    card.give_back_late(commands);
    card.close();
    let again = open(&machine, 0);
    let commands = again.commands(&Card::nop());
    again.finish(again.run_with(&patient(), &commands, 0, 8).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases(200)) })]

    #[test]
    fn fuzz_commands_of_any_kind_end(queue in prop_oneof![Just(0_u32), Just(4)], bytes in packets()) {
        run(Generation::Gaudi1, queue, &bytes);
        run(Generation::Gaudi2, queue, &bytes);
        run(Generation::Gaudi2, queue + 8, &bytes);
    }

    #[test]
    fn fuzz_requests_of_any_kind_are_answered(
        numbers in proptest::collection::vec((0_usize..5, 0_u32..12, any::<[u8; 56]>(), 0_usize..60), 1..40),
    ) {
        let card = card(executing(Generation::Gaudi2, |execution| execution.speed = 10_000));
        for (call, operation, mut bytes, length) in numbers {
            let call = Call::ALL[call];
            // Pointers that are followed must not lead into this process, so that they lead to the first page.
            for word in bytes.chunks_exact_mut(8) {
                let value = u64::from_le_bytes(word.try_into().unwrap());
                word.copy_from_slice(&(value & 0xF0F).to_le_bytes());
            }
            let place = match call {
                Call::Info => 12,
                Call::CommandBuffer => 8,
                _ => 24,
            };
            bytes[place..place + 4].copy_from_slice(&operation.to_le_bytes());
            let size = u32::try_from(length).unwrap();
            let request = call.request(Abi::Drm) & !(0x3FFF << 16) | size << 16;
            let result = card.kernel.ioctl(card.file().as_fd(), request, &mut bytes);
            prop_assert_ne!(result, Err(Errno::NOTTY));
        }
        prop_assert_eq!(card.status(), 0);
    }
}
