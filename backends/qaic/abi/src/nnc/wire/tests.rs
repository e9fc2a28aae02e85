// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Messages byte for byte, checksums, and bytes that are no messages.

use super::*;
use crate::nnc::crc::crc32;
use proptest::prelude::*;

const HEAD: Header = Header { sequence: 0x0102_0304, handle: 9, partition: NO_PARTITION };

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn to_device() -> Vec<ToDevice> {
    vec![
        ToDevice::Passthrough(vec![9, 0, 0, 0, 1, 2, 3, 4]),
        ToDevice::DmaTransfer {
            tag: 100,
            chunk: 3,
            pieces: vec![Piece { address: 0x1_0000_2000, size: 0x3000 }, Piece { address: 0x5000, size: 7 }],
        },
        ToDevice::Activate {
            requests: 0xa_0000_0000,
            responses: 0xa_0000_7000,
            request_count: 512,
            response_count: 512,
            length: 36_864,
            options: 1 << 16,
        },
        ToDevice::Status,
        ToDevice::Terminate { handle: 9 },
        ToDevice::ValidatePartition { partition: 2 },
    ]
}

fn from_device() -> Vec<FromDevice> {
    vec![
        FromDevice::Passthrough(vec![10, 0, 0, 0, 0, 0, 0, 0]),
        FromDevice::DmaContinue { chunk: 3, transferred: 0x1_0000_0001 },
        FromDevice::Activated { status: 0, channel: 4, options: 1 << 33 },
        FromDevice::Deactivated { status: 1, channel: 4 },
        FromDevice::Status { version: Version { major: 5, minor: 2 }, status: 0, flags: 1 },
        FromDevice::Terminated { status: 3 },
        FromDevice::PartitionValidated { status: 4 },
    ]
}

#[test]
fn every_transaction_to_a_device_has_its_bytes() {
    let message = Message { header: HEAD, transactions: to_device() };
    let bytes = message.write(false).unwrap();
    let expected: &[u32] = &[
        0,
        0x4349_4151,
        0x0102_0304,
        184,
        6,
        9,
        0xffff_ffff,
        0, // header
        4,
        16,
        9,
        0x0403_0201, // passthrough
        6,
        56,
        100,
        2,
        3,
        0,
        0x2000,
        1,
        0x3000,
        0,
        0x5000,
        0,
        7,
        0, // DMA transfer
        9,
        40,
        0,
        0xa,
        0x7000,
        0xa,
        512,
        512,
        36_864,
        1 << 16, // activate
        15,
        8, // status
        17,
        16,
        9,
        0, // terminate
        20,
        16,
        2,
        0, // validate partition
    ];
    assert_eq!(bytes.len(), 184);
    assert_eq!(words(&bytes), expected);
    assert_eq!(Message::<ToDevice>::read(&bytes, false).unwrap(), message);
}

#[test]
fn every_transaction_from_a_device_has_its_bytes() {
    let message = Message { header: HEAD, transactions: from_device() };
    let bytes = message.write(false).unwrap();
    let expected: &[u32] = &[
        3,
        16,
        10,
        0, // passthrough
        18,
        24,
        3,
        0,
        1,
        1, // DMA transfer, continued
        8,
        24,
        0,
        4,
        0,
        2, // activated
        11,
        16,
        1,
        4, // deactivated
        14,
        24,
        0x0002_0005,
        0,
        1,
        0, // status
        16,
        16,
        3,
        0, // terminated
        19,
        16,
        4,
        0, // partition validated
    ];
    assert_eq!(words(&bytes[HEADER..]), expected);
    assert_eq!(Message::<FromDevice>::read(&bytes, false).unwrap(), message);
}

#[test]
fn checksum_is_of_everything_with_its_own_field_zero() {
    let message = Message { header: HEAD, transactions: to_device() };
    let plain = message.write(false).unwrap();
    let mut signed = message.write(true).unwrap();
    assert_eq!(words(&signed)[0], crc32(&plain));
    assert_eq!(Message::<ToDevice>::read(&signed, true).unwrap(), message);
    signed[40] ^= 1;
    assert!(matches!(Message::<ToDevice>::read(&signed, true), Err(Malformed::Checksum { .. })));
    assert!(Message::<ToDevice>::read(&signed, false).is_ok());
}

#[test]
fn bytes_that_are_no_message_are_refused() {
    let message = Message { header: HEAD, transactions: from_device() };
    let bytes = message.write(false).unwrap();
    let read = |bytes: &[u8]| Message::<FromDevice>::read(bytes, false);
    assert!(matches!(read(&bytes[..HEADER - 1]), Err(Malformed::TooShort { .. })));
    assert!(matches!(read(&bytes[..bytes.len() - 1]), Err(Malformed::TooShort { .. })));
    let with = |word: usize, value: u32| {
        let mut bytes = bytes.clone();
        bytes[word * 4..word * 4 + 4].copy_from_slice(&value.to_le_bytes());
        read(&bytes)
    };
    assert_eq!(with(1, 7), Err(Malformed::Magic { found: 7 }));
    assert!(matches!(with(3, 31), Err(Malformed::TooShort { .. })));
    assert_eq!(with(3, 5000), Err(Malformed::TooLong { length: 5000, most: FROM_DEVICE_MAX }));
    assert!(matches!(with(4, 6), Err(Malformed::Count { said: 6, found: 6, left: 16 })));
    assert!(matches!(with(4, 8), Err(Malformed::Count { said: 8, found: 7, left: 0 })));
    assert_eq!(with(8, 4), Err(Malformed::Kind { number: 0, kind: 4 }), "that goes the other way");
    assert!(matches!(with(9, 7), Err(Malformed::Length { number: 0, length: 7, .. })));
    assert!(matches!(with(9, 12), Err(Malformed::Unaligned { .. })));
    // More bytes than the message has are no matter: a device answers into memory of a fixed size.
    let longer = [bytes.as_slice(), &[0; 8]].concat();
    assert_eq!(read(&longer).unwrap(), message);
}

#[test]
fn message_that_is_too_long_is_not_made() {
    let pieces = vec![Piece { address: 0, size: 1 }; TO_DEVICE_MAX / 16];
    let transactions = vec![ToDevice::DmaTransfer { tag: 1, chunk: 1, pieces }];
    let refused = Message { header: HEAD, transactions }.write(false).unwrap_err();
    assert!(matches!(refused, Malformed::TooLong { most: TO_DEVICE_MAX, .. }));
    let transactions = vec![FromDevice::Passthrough(vec![0; FROM_DEVICE_MAX])];
    assert!(Message { header: HEAD, transactions }.write(false).is_err());
    let transactions = vec![FromDevice::Passthrough(vec![0; 3])];
    let refused = Message { header: HEAD, transactions }.write(false).unwrap_err();
    assert_eq!(refused, Malformed::Unaligned { what: "a transaction", length: 3 });
}

proptest! {
    #[test]
    fn fuzz_no_bytes_make_it_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..256), checksum: bool) {
        let _ = Message::<ToDevice>::read(&bytes, checksum);
        // With the right beginning it gets further.
        if let Some(magic) = bytes.get_mut(4..8) {
            magic.copy_from_slice(&MAGIC.to_le_bytes());
        }
        if let Some(rest) = bytes.get_mut(13..16) {
            rest.fill(0);
        }
        let _ = Message::<ToDevice>::read(&bytes, checksum);
        let _ = Message::<FromDevice>::read(&bytes, checksum);
    }

    #[test]
    fn fuzz_no_change_of_a_message_makes_it_panic(changes in prop::collection::vec((0_usize..184, any::<u8>()), 1..4)) {
        let mut bytes = Message { header: HEAD, transactions: to_device() }.write(false).unwrap();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        if let Ok(message) = Message::<ToDevice>::read(&bytes, false) {
            // A message that was read can be written again.
            let again = message.write(false).unwrap();
            prop_assert_eq!(Message::<ToDevice>::read(&again, false).unwrap(), message);
        }
    }
}
