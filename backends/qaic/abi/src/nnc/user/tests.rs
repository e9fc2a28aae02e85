// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Messages byte for byte, what is refused, and bytes that are no messages.

use super::*;
use crate::nnc::Version;
use proptest::prelude::*;

/// Bytes as words, lowest byte first.
fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn message(asks: &[Ask<'_>]) -> Message {
    let mut message = Message::new();
    for ask in asks {
        message.ask(ask).unwrap();
    }
    message
}

#[test]
#[cfg(target_endian = "little")]
fn every_transaction_of_a_program_has_its_bytes() {
    let asks = [
        Ask::Passthrough(&[13, 0, 0, 0, 1, 0, 0, 0]),
        Ask::DmaTransfer { tag: 100, address: 0x7fff_1234_5678, size: 0x1_0000_0003 },
        Ask::Activate { elements: 512, options: 0x1_0000 },
        Ask::Deactivate { channel: 7 },
        Ask::Status,
    ];
    let message = message(&asks);
    let expected: &[u32] = &[
        1,
        16,
        13,
        1, // passthrough
        5,
        32,
        100,
        0,
        0x1234_5678,
        0x7fff,
        3,
        1, // DMA transfer
        7,
        24,
        512,
        0,
        0x1_0000,
        0, // activate
        10,
        16,
        7,
        0, // deactivate
        12,
        8, // status
    ];
    assert_eq!(words(message.bytes()), expected);
    assert_eq!(message.count(), 5);
    assert_eq!(super::asks(message.bytes(), 5).unwrap(), asks);
}

#[test]
#[cfg(target_endian = "little")]
fn every_transaction_of_the_kernel_has_its_bytes() {
    let answers = [
        Answer::Passthrough(&[10, 0, 0, 0, 0, 0, 0, 0]),
        Answer::Activated { status: 0, channel: 15, options: 1 << 40 },
        Answer::Status { version: Version { major: 5, minor: 1 }, status: 2, flags: 1 },
    ];
    let mut message = Message::new();
    for answer in &answers {
        message.answer(answer).unwrap();
    }
    let expected: &[u32] = &[3, 16, 10, 0, 8, 24, 0, 15, 0, 1 << 8, 14, 24, 0x1_0005, 2, 1, 0];
    assert_eq!(words(message.bytes()), expected);
    assert_eq!(super::answers(message.bytes()).unwrap(), answers);
}

#[test]
fn answer_is_as_long_as_it_says_whatever_it_counts() {
    let mut message = Message::new();
    message.answer(&Answer::Passthrough(&[12, 0, 0, 0, 0, 0, 0, 0])).unwrap();
    // The kernel has kept the answer to a deactivation to itself, and counts it.
    assert_eq!(answers(message.bytes()).unwrap().len(), 1);
    assert_eq!(answers(&[]).unwrap(), []);
}

#[test]
fn message_that_is_too_long_or_crooked_is_not_made() {
    let mut message = Message::new();
    let unaligned = message.ask(&Ask::Passthrough(&[0; 9])).unwrap_err();
    assert_eq!(unaligned, Malformed::Unaligned { what: "a command", length: 9 });
    assert!(message.ask(&Ask::Passthrough(&[0; MESSAGE_MAX])).is_err());
    message.ask(&Ask::Passthrough(&[0; MESSAGE_MAX - 8])).unwrap();
    let full = message.ask(&Ask::Status).unwrap_err();
    assert_eq!(full, Malformed::TooLong { length: MESSAGE_MAX + 8, most: MESSAGE_MAX });
    assert_eq!(message.count(), 1, "what was refused is not counted");
    let mut many = Message::new();
    for _ in 0..TRANSACTIONS_MAX {
        many.ask(&Ask::Status).unwrap();
    }
    assert!(many.ask(&Ask::Status).is_err());
}

#[test]
fn lengths_that_lie_are_noticed() {
    let message = message(&[Ask::Status, Ask::Deactivate { channel: 1 }]);
    let bytes = message.bytes();
    assert_eq!(asks(bytes, 1), Err(Malformed::Count { said: 1, found: 1, left: 16 }));
    assert_eq!(asks(bytes, 3), Err(Malformed::Count { said: 3, found: 2, left: 0 }));
    assert!(matches!(asks(&bytes[..20], 2), Err(Malformed::Length { number: 1, length: 16, left: 12 })));
    assert!(matches!(asks(&bytes[..12], 2), Err(Malformed::TooShort { found: 4, .. })));
    for length in [0_u32, 7, 9, u32::MAX] {
        let mut bytes = bytes.to_vec();
        bytes[4..8].copy_from_slice(&length.to_ne_bytes());
        assert!(asks(&bytes, 2).is_err(), "{length}");
    }
    // Messages to the device are not answers from it.
    assert!(matches!(answers(bytes), Err(Malformed::Kind { number: 0, kind: 12 })));
}

proptest! {
    #[test]
    fn messages_come_back(
        commands in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..16), 0..8),
        numbers in any::<(u32, u64, u64, u32, u32, u32)>(),
    ) {
        let (tag, address, size, elements, options, channel) = numbers;
        let commands: Vec<Vec<u8>> =
            commands.into_iter().map(|bytes| bytes.repeat(8)).collect();
        let mut asks: Vec<Ask<'_>> = commands.iter().map(|bytes| Ask::Passthrough(bytes)).collect();
        asks.push(Ask::DmaTransfer { tag, address, size });
        asks.push(Ask::Activate { elements, options });
        asks.push(Ask::Deactivate { channel });
        let message = message(&asks);
        prop_assert_eq!(super::asks(message.bytes(), message.count()).unwrap(), asks);
    }

    #[test]
    fn fuzz_no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..256), count in 0_u32..16) {
        let _ = super::asks(&bytes, count);
        let _ = super::answers(&bytes);
    }

    #[test]
    fn fuzz_no_change_of_a_message_makes_it_panic(at in 0_usize..64, byte in any::<u8>(), cut in 0_usize..64) {
        let message = message(&[
            Ask::Passthrough(&[1; 8]),
            Ask::DmaTransfer { tag: 1, address: 2, size: 3 },
            Ask::Deactivate { channel: 2 },
        ]);
        let mut bytes = message.bytes().to_vec();
        bytes[at] = byte;
        bytes.truncate(bytes.len() - cut);
        let _ = super::asks(&bytes, 3);
        let _ = super::answers(&bytes);
    }
}
