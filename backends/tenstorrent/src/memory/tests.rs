// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The places of allocations on emulated cards, and that bytes written there are read there.

use super::*;
use crate::{Tenstorrent, TenstorrentDevice};
use hal_backend::{Device, Driver, MemoryRequest, Parameters, Purpose, splitmix64};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn chunks_cover_a_transfer_once() {
    for length in [0, 1, CHUNK as u64, CHUNK as u64 + 1, 3 * CHUNK as u64 - 7] {
        let mut end = 0;
        for (at, now) in chunks(length) {
            assert_eq!(at, end);
            end += now as u64;
        }
        assert_eq!(end, length);
    }
}

/// Boards, with parts fused off, and how many tiles and banks are left of them.
const BOARDS: [(&str, usize, usize); 4] = [
    ("board=p100a&columns=0x3bdf&banks=0xf7", 120, 7),
    ("board=p150&columns=0x1ffe", 120, 8),
    ("board=p100a&columns=0x0fff&banks=0x7f", 120, 7),
    ("board=n150&rows=0x2ff", 72, 6),
];

/// The ends of the memory for buffers in a board's tiles, of which they have 64 KiB, and in its banks.
fn ends(device: &TenstorrentDevice) -> [(u64, u64); 2] {
    match device.card().board() {
        "n150" => [(1400 << 10, 1464 << 10), (1 << 20, 2 << 30)],
        _ => [(1472 << 10, 1536 << 10), (1 << 20, 0xff00_0000)],
    }
}

/// A card of a machine of its own.
fn card(board: &str, l1: &str) -> TenstorrentDevice {
    static MACHINES: AtomicU64 = AtomicU64::new(70_000);
    let seed = MACHINES.fetch_add(1, Ordering::Relaxed).to_string();
    let pairs = board.split('&').filter_map(|pair| pair.split_once('='));
    let pairs = pairs.chain([("l1", l1), ("seed", seed.as_str())]);
    Tenstorrent::<emulator_tenstorrent::Emulated>::create()
        .open("emulated", &mut Parameters::new("tenstorrent", pairs))
        .unwrap()
}

fn allocate_one(device: &TenstorrentDevice, length: u64, purpose: Purpose) -> CardRange {
    match device.allocate(&MemoryRequest::new(0, length).with_purpose(purpose)).unwrap() {
        Memory::Card(range) => range,
        Memory::Host(_) => panic!("the first heap is the card's"),
    }
}

fn kind(range: &CardRange) -> BankKind {
    range.pool.kind()
}

fn bytes(length: u64, seed: u64) -> Vec<u8> {
    (0..length.div_ceil(8))
        .flat_map(|word| splitmix64(seed ^ word << 20).to_le_bytes())
        .take(usize::try_from(length).unwrap())
        .collect()
}

/// A program's step with memory.
#[derive(Clone, Debug)]
enum TestStep {
    Allocate { length: u64, purpose: Purpose },
    Free(prop::sample::Index),
    Write { which: prop::sample::Index, from: prop::sample::Index, length: u64 },
}

fn steps() -> impl Strategy<Value = Vec<TestStep>> {
    let length = prop_oneof![1..5000_u64, 1..200_000_u64, 1..3_000_000_u64];
    let purpose = prop_oneof![
        4 => Just(Purpose::Dispatch),
        1 => Just(Purpose::Transfer),
        1 => Just(Purpose::Pool),
        2 => Just(Purpose::Export),
    ];
    let step = prop_oneof![
        4 => (length, purpose).prop_map(|(length, purpose)| TestStep::Allocate { length, purpose }),
        2 => any::<prop::sample::Index>().prop_map(TestStep::Free),
        3 => (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1..50_000_u64)
            .prop_map(|(which, from, length)| TestStep::Write { which, from, length }),
    ];
    prop::collection::vec(step, 1..40)
}

/// Checks where an allocation is, and that nothing else is there.
fn check_places(
    device: &TenstorrentDevice,
    range: &CardRange,
    taken: &mut BTreeMap<(Coordinates, u64), u64>,
) {
    let grid = device.card().grid();
    let tiles = kind(range) == BankKind::Tiles;
    let legal = if tiles { grid.tiles() } else { grid.banks() };
    let ends = ends(device)[usize::from(!tiles)];
    for piece in range.pieces(0, range.length.next_multiple_of(PAGE)) {
        assert!(legal.contains(&piece.bank), "{range:?}: {piece:?}");
        assert!(piece.address.is_multiple_of(PAGE) && piece.length == PAGE, "{range:?}: {piece:?}");
        assert!(piece.address >= ends.0 && piece.address + PAGE <= ends.1, "{range:?}: {piece:?}");
        let other = taken.insert((piece.bank, piece.address), range.identity());
        assert_eq!(other, None, "{range:?}: {piece:?}");
    }
    if tiles {
        // The tile that executables are asked on has no buffers.
        let query_tile = grid.tiles().last().unwrap();
        assert!(!taken.keys().any(|(place, _)| place == query_tile));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn random_allocations_are_apart_in_legal_places_and_keep_what_is_written(
        steps in steps(),
        board in 0..BOARDS.len(),
    ) {
        for name in Division::names() {
            let device = card(BOARDS[board].0, &format!("64:{name}"));
            let grid = device.card().grid();
            prop_assert_eq!((grid.tiles().len(), grid.banks().len()), (BOARDS[board].1, BOARDS[board].2));
            let mut live: Vec<(CardRange, Vec<u8>)> = Vec::new();
            for (number, step) in (0..).zip(&steps) {
                match step {
                    TestStep::Allocate { length, purpose } => {
                        let range = allocate_one(&device, *length, *purpose);
                        if *purpose != Purpose::Dispatch {
                            prop_assert_eq!(kind(&range), BankKind::Dram);
                        }
                        let contents = bytes(*length, number);
                        range.write(0, &contents).unwrap();
                        range.flush(0, *length).unwrap();
                        live.push((range, contents));
                    }
                    TestStep::Free(which) if !live.is_empty() => drop(live.swap_remove(which.index(live.len()))),
                    TestStep::Write { which, from, length } if !live.is_empty() => {
                        let at = which.index(live.len());
                        let (range, contents) = &mut live[at];
                        let from = from.index(contents.len());
                        let end = contents.len().min(from + usize::try_from(*length).unwrap());
                        contents[from..end].copy_from_slice(&bytes((end - from) as u64, !number));
                        range.write(from as u64, &contents[from..end]).unwrap();
                    }
                    _ => {}
                }
            }
            let mut taken = BTreeMap::new();
            for (range, contents) in &live {
                check_places(&device, range, &mut taken);
                let mut found = vec![0; contents.len()];
                range.read(0, &mut found).unwrap();
                prop_assert!(found == *contents, "{range:?} on {}", BOARDS[board].0);
            }
        }
    }
}

#[test]
fn tiles_memory_that_is_full_is_full_until_some_comes_back() {
    for (board, ..) in BOARDS {
        for name in Division::names() {
            let device = card(board, &format!("64:{name}"));
            let small = |purpose| allocate_one(&device, 5000, purpose);
            // Two pages are in two tiles, so that each buffer takes one of the sixteen rows.
            let mut near: Vec<CardRange> = (0..16).map(|_| small(Purpose::Dispatch)).collect();
            assert!(near.iter().all(|range| kind(range) == BankKind::Tiles), "{near:?}");
            assert_eq!(kind(&small(Purpose::Dispatch)), BankKind::Dram, "{name}: there is no room");
            let gone = near.swap_remove(7);
            let first = gone.first;
            assert_eq!(kind(&small(Purpose::Transfer)), BankKind::Dram);
            drop(gone);
            let again = small(Purpose::Dispatch);
            assert_eq!((kind(&again), again.first), (BankKind::Tiles, first), "{name}");
            // All of it is one buffer's when everything is back.
            let room = again.pool.capacity();
            drop((near, again));
            let whole = allocate_one(&device, room, Purpose::Dispatch);
            assert_eq!((kind(&whole), whole.room()), (BankKind::Tiles, room), "{name}");
            drop(whole);
            let more = allocate_one(&device, room + 1, Purpose::Dispatch);
            assert_eq!(kind(&more), BankKind::Dram, "{name}");
        }
    }
}

#[test]
fn buffers_are_beside_the_cores_only_where_some_of_it_is_theirs() {
    let none = card("board=p100a", "0");
    assert_eq!(kind(&allocate_one(&none, 100, Purpose::Dispatch)), BankKind::Dram);
    assert_eq!(none.shared_l1(), None);
    let some = card("board=p100a", "4:interleaved");
    assert_eq!(some.shared_l1(), Some(119 * 4096));
    assert_eq!(card("board=n150", "4:height").shared_l1(), Some(71 * 4096));
}

/// The first bytes of a dma-buf, as another device sees them.
fn seen(buffer: OwnedFd, length: u64) -> (HostRange, Vec<u8>) {
    let whole = length.next_multiple_of(PAGE);
    assert_eq!(rustix::fs::seek(&buffer, rustix::fs::SeekFrom::End(0)), Ok(whole));
    let imported = emulator_core::dmabuf::import(buffer, "none", whole).unwrap();
    emulator_core::backing::pull(imported.whole());
    let mut found = vec![0; usize::try_from(length).unwrap()];
    assert!(imported.read(0, &mut found));
    (imported, found)
}

/// A window shows one bank: what is to be lent is there as a whole, whatever else is beside it.
#[test]
fn lent_memory_is_in_one_bank_and_another_device_sees_it_and_nothing_else() {
    const MIB: u64 = 1 << 20;
    for (board, most) in [
        ("board=p150", 0xfef0_0000),
        ("board=p100a&fault=no-large-windows", 2 * MIB),
        ("board=n150", 16 * MIB),
        ("board=n150&fault=no-large-windows", MIB),
    ] {
        let device = card(board, "64:height");
        // Two beside each other may be in two windows.
        let lengths = [1, 5000, MIB - 1, MIB, 2 * MIB, 3 * MIB, 16 * MIB].map(|length: u64| length.min(most));
        let mut lent = Vec::new();
        for (number, length) in (0..).zip(lengths) {
            let range = allocate_one(&device, length, Purpose::Export);
            let contents = bytes(length, number);
            range.write(0, &contents).unwrap();
            range.flush(0, length).unwrap();
            let memory = Memory::Card(range);
            let buffer = device.export(&memory).unwrap();
            lent.push((memory, buffer, contents));
        }
        for (memory, buffer, contents) in lent {
            let (imported, found) = seen(buffer, contents.len() as u64);
            assert!(found == contents, "{board}: {memory:?}");
            let last = imported.part(contents.len() as u64 - 1, 1).unwrap();
            assert!(last.write(&[!contents[contents.len() - 1]]));
            emulator_core::backing::push(last);
            let Memory::Card(range) = memory else { panic!("the card lends its own memory") };
            let mut found = vec![0; contents.len()];
            range.read(0, &mut found).unwrap();
            assert_eq!(found.iter().zip(&contents).filter(|(one, other)| one != other).count(), 1, "{board}");
        }
        let longer = (most < 64 * MIB).then_some((most + 1, Purpose::Export));
        for (length, purpose) in
            [(5000, Purpose::Transfer), (5000, Purpose::Dispatch)].into_iter().chain(longer)
        {
            let divided = Memory::Card(allocate_one(&device, length, purpose));
            let refused = device.export(&divided).unwrap_err();
            assert_eq!(refused.code(), Code::Unavailable, "{board} {length}: {refused}");
            assert!(refused.message().contains("IREE_HAL_BUFFER_USAGE_SHARING_EXPORT"), "{refused}");
        }
        let host = device.allocate(&MemoryRequest::new(1, 5000)).unwrap();
        assert_eq!(device.export(&host).unwrap_err().code(), Code::Unavailable);
        assert_eq!((device.exports(0), device.exports(1)), (true, false));
    }
}

/// The module exports windows since 2.10; with an older one nothing is placed for it.
#[test]
fn older_modules_lend_nothing() {
    let device = card("module=2.9", "64:height");
    assert!(!device.exports(0));
    let range = allocate_one(&device, 5000, Purpose::Export);
    assert_eq!(range.room(), 8 * PAGE, "over all banks");
    let refused = device.export(&Memory::Card(allocate_one(&device, 100, Purpose::Export))).unwrap_err();
    assert!(refused.message().contains("2.10"), "{refused}");
}

/// Each lent buffer has a window of its own; where there is none left that is said, and one comes back with a buffer.
#[test]
fn memory_is_lent_while_there_are_windows() {
    let device = card("board=p100a&fault=windows:34", "0");
    let memory = Memory::Card(allocate_one(&device, 100, Purpose::Export));
    let mut lent = [(); 2].map(|()| Some(device.export(&memory).unwrap()));
    let refused = device.export(&memory).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    lent[0] = None;
    device.export(&memory).unwrap();
    drop(lent);
}
