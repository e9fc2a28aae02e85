// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Transfers of an emulated card, against plain bytes.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]

mod support;

use hal_backend::{Command, Pattern, splitmix64};
use support::{Bench, contents, host, span, whole};

/// More than three pages for each of the tiles, and a part of one: shards of four.
const LENGTH: u64 = 1_500_001;

#[test]
#[expect(clippy::too_many_lines, reason = "one story, told from its beginning to its end")]
fn random_transfers_are_what_they_would_be_in_plain_memory() {
    for pairs in [
        &[("board", "p100a"), ("banks", "0xf7"), ("l1", "0")][..],
        &[("board", "p150"), ("l1", "0")],
        // In the memory of its tiles.
        &[("board", "p100a"), ("columns", "0x3bdf"), ("l1", "64")],
        &[("l1", "64:interleaved")],
        &[("l1", "64:height-columns")],
        &[("l1", "64:width")],
        &[("l1", "64:width-columns")],
        &[("l1", "64:block")],
        &[("l1", "64:block-columns")],
        &[("l1", "0"), ("fault", "no-large-windows"), ("fault", "windows:2")],
    ] {
        let bench = Bench::new(pairs);
        let mut draw = 0;
        let mut number = |below: u64| {
            draw += 1;
            splitmix64(draw) % below
        };
        let bytes: Vec<u8> = (0..LENGTH).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let mut expected = [bytes.clone(), bytes.iter().rev().copied().collect()];
        let memories = [bench.memory(&expected[0]), bench.memory(&expected[1])];
        let is_near = !pairs.iter().any(|(name, value)| *name == "l1" && *value == "0");
        assert_eq!(format!("{:?}", memories[0]).contains("L1"), is_near, "{:?}", memories[0]);
        for round in 0..300 {
            let length = number(if round % 3 == 0 { 40_000 } else { 70 }) + 1;
            let (from, to) = (number(LENGTH - length), number(LENGTH - length));
            let (source, target) = (usize::from(number(2) == 1), usize::from(number(2) == 1));
            let range = |at: u64| usize::try_from(at).unwrap()..usize::try_from(at + length).unwrap();
            match number(4) {
                0 => {
                    let pattern = [1, 2, 4][usize::try_from(number(3)).unwrap()];
                    let bytes: Vec<u8> = (0..pattern).map(|_| u8::try_from(number(256)).unwrap()).collect();
                    let target_span = span(&memories[target], to, length);
                    let pattern = Pattern::new(&bytes).unwrap();
                    bench.run(Command::Fill { target: target_span, pattern }).unwrap();
                    for (place, byte) in expected[target][range(to)].iter_mut().zip(bytes.iter().cycle()) {
                        *place = *byte;
                    }
                }
                1 => {
                    let copied = expected[source][range(from)].to_vec();
                    expected[target][range(to)].copy_from_slice(&copied);
                    let (source, target) =
                        (span(&memories[source], from, length), span(&memories[target], to, length));
                    bench.run(Command::Copy { source, target }).unwrap();
                }
                2 => {
                    let bytes: Vec<u8> = (0..length).map(|_| u8::try_from(number(256)).unwrap()).collect();
                    expected[target][range(to)].copy_from_slice(&bytes);
                    bench.write(&memories[target], to, &bytes);
                }
                _ => {
                    let range_of_host = host(&vec![0; usize::try_from(length).unwrap()]);
                    let source_span = span(&memories[source], from, length);
                    bench.run(Command::Copy { source: source_span, target: whole(&range_of_host) }).unwrap();
                    assert_eq!(contents(&range_of_host), expected[source][range(from)]);
                }
            }
        }
        for (memory, expected) in memories.iter().zip(&expected) {
            assert!(bench.read(memory, 0, LENGTH) == *expected);
        }
    }
}

#[test]
fn large_transfers_cover_everything_once() {
    let bench = Bench::new(&[("board", "p100a")]);
    let bytes: Vec<u8> = (0..3_000_000_u64).map(|at| u8::try_from(splitmix64(at) % 256).unwrap()).collect();
    let memory = bench.memory(&bytes);
    assert!(bench.read(&memory, 0, 3_000_000) == bytes);
    // Onto itself, further on.
    let (source, target) = (span(&memory, 0, 2_500_000), span(&memory, 400_000, 2_500_000));
    bench.run(Command::Copy { source, target }).unwrap();
    assert!(bench.read(&memory, 400_000, 2_500_000) == bytes[..2_500_000]);
    // A pattern whose length no chunk is a multiple of.
    let pattern = Pattern::new(&[1, 2, 3]).unwrap();
    bench.run(Command::Fill { target: span(&memory, 1, 2_999_998), pattern }).unwrap();
    let found = bench.read(&memory, 1, 2_999_998);
    assert!(found.iter().zip([1, 2, 3].iter().cycle()).all(|(found, byte)| found == byte));
}

#[test]
fn simulators_library_gives_the_same() {
    support::the_same_on_a_library("wormhole", &[]);
    support::the_same_on_a_library("blackhole", &[]);
}

#[test]
fn n150_gives_the_same() {
    support::the_same_on_an_n150();
}
