// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The chip, as the host sees it and as programs on its cores do.

mod support;

use emulator_chip::{
    BLACKHOLE, BarAddress, Board, Chip, ChipCounts, Core, CoreStop, EngineCounts, Model, SOFT_RESET, Stopped,
    Tile, Violation,
};
use emulator_riscv::{Cause, Trap};
use hal_tenstorrent_loader::encode::{Assembler, Reg, When, addi, lw, sw};
use proptest::prelude::*;
use support::{assert_violation, get, load, put, release, stay, store};

const T0: Reg = Reg::T[0];
const T1: Reg = Reg::T[1];
const T2: Reg = Reg::T[2];
const ZERO: Reg = Reg::ZERO;
/// The first tile.
const TILE: Tile = Tile { x: 1, y: 2 };
const BANK: Tile = Tile { x: 17, y: 12 };
const WINDOW: u64 = 2 << 20;

fn chip() -> Chip {
    Chip::new(Board::new(Model::P100a))
}

/// Stores a word, and stays where it is.
fn store_and_stay(program: &mut Assembler, address: u32, value: u32) {
    store(program, address, value);
    stay(program);
}

#[test]
fn windows_reach_memory_of_tiles_and_banks() {
    let chip = chip();
    let point = |chip: &Chip, tile: Tile, address: u64| {
        let bits = u128::from(address / WINDOW) | u128::from(tile.x) << 43 | u128::from(tile.y) << 49;
        for (word, value) in bits.to_le_bytes().chunks_exact(4).take(3).enumerate() {
            let offset = BLACKHOLE.configuration + 12 * 7 + 4 * word as u64;
            chip.write(BarAddress { bar: 0, offset }, value).unwrap();
            let mut back = [0; 4];
            chip.read(BarAddress { bar: 0, offset }, &mut back).unwrap();
            assert_eq!(back, value);
        }
    };
    let at = |offset| BarAddress { bar: 0, offset: 7 * WINDOW + offset };
    for (tile, address) in [(TILE, 0), (BANK, 0), (BANK, 0xfee0_0000)] {
        point(&chip, tile, address);
        chip.write(at(0x10_0001), b"over the network").unwrap();
        let mut bytes = [0; 18];
        chip.read(at(0x10_0000), &mut bytes).unwrap();
        assert_eq!(&bytes, b"\0over the network\0");
        let mut again = [0; 16];
        chip.tile_read(tile, address + 0x10_0001, &mut again).unwrap();
        assert_eq!(&again, b"over the network");
    }
    // Another bank is another memory; ports of one bank are the same.
    assert_eq!(get(&chip, Tile { x: 17, y: 15 }, 0x10_0001), 0);
    assert_eq!(get(&chip, Tile { x: 17, y: 14 }, 0x10_0001), u32::from_le_bytes(*b"over"));
}

#[test]
fn memory_ends_where_it_ends() {
    let chip = chip();
    let end = u64::from(BLACKHOLE.l1_bytes);
    assert!(chip.tile_write(TILE, end - 4, &[0; 4]).is_ok());
    let unmapped = |tile, address| Err(Violation::Unmapped { tile, address, length: 8 });
    assert_eq!(chip.tile_write(TILE, end - 4, &[0; 8]), unmapped(TILE, end - 4));
    assert_eq!(chip.tile_read(BANK, 0xff00_0000 - 4, &mut [0; 8]), unmapped(BANK, 0xff00_0000 - 4));
    assert_eq!(chip.tile_read(TILE, SOFT_RESET, &mut [0; 8]), unmapped(TILE, SOFT_RESET));
    assert_eq!(chip.tile_read(TILE, u64::MAX - 3, &mut [0; 8]), unmapped(TILE, u64::MAX - 3));
    let arc = Tile { x: 8, y: 0 };
    assert_eq!(
        chip.tile_write(arc, 0x8003_0434, &[0; 4]),
        Err(Violation::ReadOnly { tile: arc, address: 0x8003_0434 })
    );
    let ethernet = chip.tile_read(Tile { x: 1, y: 1 }, 0, &mut [0; 4]);
    assert!(matches!(ethernet, Err(Violation::NotModelled { .. })), "{ethernet:?}");
    // None of this loses the device.
    assert_eq!(get(&chip, BANK, 0), 0);
}

#[test]
fn access_to_a_fused_off_tile_loses_the_device() {
    for tile in [Tile { x: 15, y: 2 }, Tile { x: 18, y: 21 }, Tile { x: 9, y: 5 }] {
        let chip = chip();
        assert_eq!(get(&chip, TILE, 0), 0);
        let touched = chip.tile_read(tile, 0x40, &mut [0; 4]);
        assert_eq!(touched, Err(Violation::Harvested { tile, address: 0x40 }));
        assert_eq!(chip.tile_read(TILE, 0, &mut [0; 4]), Err(Violation::Lost(tile)));
        let host = BarAddress { bar: 0, offset: BLACKHOLE.configuration };
        assert_eq!(chip.read(host, &mut [0; 4]), Err(Violation::Lost(tile)));
        assert_eq!(chip.write(host, &[0; 4]), Err(Violation::Lost(tile)));
    }
}

#[test]
fn every_tiles_interface_names_its_place_also_where_the_tile_is_fused_off() {
    let chip = chip();
    for x in (1..=7).chain(10..=16) {
        for y in 2..=11 {
            let tile = Tile { x, y };
            assert_eq!(get(&chip, tile, 0xffb2_0148), u32::from(x) | u32::from(y) << 6, "{tile}");
            assert_eq!(get(&chip, tile, 0xffb2_0044) & 0xfff, u32::from(x) | u32::from(y) << 6, "{tile}");
        }
    }
    let written = chip.tile_write(Tile { x: 16, y: 2 }, 0xffb2_0148, &[0; 4]);
    assert!(matches!(written, Err(Violation::Harvested { .. })), "{written:?}");
}

#[test]
fn telemetry_reports_fused_off_parts() {
    const ARC: Tile = Tile { x: 8, y: 0 };
    let board = Board::with_masks(Model::P100a, 0x3e7f, 0xdf).unwrap();
    let chip = Chip::new(board);
    let table: u64 = get(&chip, ARC, 0x8003_0434).into();
    let values: u64 = get(&chip, ARC, 0x8003_0430).into();
    let count = get(&chip, ARC, table + 4);
    assert_eq!(values, table + 8 + 4 * u64::from(count), "where luwen looks for them");
    let mut entries = std::collections::BTreeMap::new();
    for index in 0..u64::from(count) {
        let entry = get(&chip, ARC, table + 8 + 4 * index);
        entries.insert(entry & 0xffff, get(&chip, ARC, values + 4 * u64::from(entry >> 16)));
    }
    assert_eq!(entries.get(&34), Some(&0x3e7f));
    assert_eq!(entries.get(&36), Some(&0xdf));
    assert_eq!(entries.get(&1), Some(&0x430));
    // The banks that are there are ready.
    assert_eq!(entries.get(&22), Some(&0x5155));
    let beats = entries.get(&32).copied().unwrap();
    chip.step(1 << 20);
    let entry = entries.keys().position(|&tag| tag == 32).unwrap() as u64;
    assert_eq!(get(&chip, ARC, values + 4 * entry), beats + 16);
}

#[test]
fn each_core_starts_where_it_is_told() {
    for (core, start) in
        [(Core::B, 0), (Core::T0, 0x100), (Core::T1, 0x200), (Core::T2, 0x300), (Core::Nc, 0x400)]
    {
        let chip = chip();
        let mut program = Assembler::new();
        store_and_stay(&mut program, 0x1000, start + 1);
        load(&chip, TILE, start.into(), program);
        match core {
            Core::B => {}
            Core::Nc => {
                put(&chip, TILE, BLACKHOLE.starts.nc, start);
                put(&chip, TILE, BLACKHOLE.starts.nc_enable, 1);
            }
            _ => {
                let index = core as usize - 1;
                put(&chip, TILE, BLACKHOLE.starts.t[index], start);
                put(&chip, TILE, BLACKHOLE.starts.t_enable, 1 << index);
            }
        }
        release(&chip, TILE, core);
        assert_eq!(get(&chip, TILE, 0x1000), 0);
        chip.step(100);
        assert_eq!(get(&chip, TILE, 0x1000), start + 1, "{core:?}");
        assert_eq!(chip.stopped(), []);
    }
}

#[test]
fn core_that_was_told_nothing_starts_at_an_address_of_its_own() {
    for (core, start) in [(Core::T0, 0x6000), (Core::T1, 0xa000), (Core::T2, 0xe000), (Core::Nc, 0x1_2000)] {
        let chip = chip();
        let mut program = Assembler::new();
        store_and_stay(&mut program, 0x1000, 1);
        load(&chip, TILE, start, program);
        release(&chip, TILE, core);
        chip.step(100);
        assert_eq!((get(&chip, TILE, 0x1000), chip.stopped().len()), (1, 0), "{core:?}");
    }
}

#[test]
fn start_of_nc_is_written_and_not_read() {
    let chip = chip();
    let starts = &BLACKHOLE.starts;
    for address in [starts.nc, starts.nc_enable] {
        let refused = chip.tile_read(TILE, address, &mut [0; 4]);
        assert_eq!(refused, Err(Violation::Unmapped { tile: TILE, address, length: 4 }));
    }
    put(&chip, TILE, starts.t_enable, 5);
    assert_eq!(get(&chip, TILE, starts.t_enable), 5);
    let mut program = Assembler::new();
    program.constant(T0, u32::try_from(starts.nc_enable).unwrap());
    program.emit(lw(T1, 0, T0));
    load(&chip, TILE, 0, program);
    release(&chip, TILE, Core::B);
    chip.step(100);
    let stopped = chip.stopped();
    let [Stopped { stop: CoreStop::Trap(trap), .. }] = &stopped[..] else { panic!("{stopped:?}") };
    assert!(trap.to_string().contains("nothing is mapped"), "{trap}");
}

/// A store to the tile's memory, what comes behind it, and a transfer that reads the memory.
fn stored_before_a_transfer(behind: &[u32]) -> Chip {
    let chip = chip();
    let mut program = Assembler::new();
    program.constant(T1, 7);
    program.emit(sw(T1, 0x700, ZERO));
    behind.iter().for_each(|&word| program.emit(word));
    transfer(&mut program, (0x700, coordinates(TILE)), (0x1000, coordinates(BANK)), 64, WRITE);
    store_and_stay(&mut program, 0x780, 1);
    load(&chip, TILE, 0, program);
    release(&chip, TILE, Core::B);
    chip.step(1000);
    chip
}

#[test]
fn transfer_needs_what_was_stored_to_be_loaded_back() {
    // amoadd.w x6, x6, (x0); a fence; loads of another word, and of a part of it.
    let (atomic, fence) = (0x0060_232f, 0x0ff0_000f);
    for behind in
        [vec![], vec![fence], vec![lw(T1, 0x704, ZERO)], vec![lw(T1, 0x700, ZERO), sw(T1, 0x704, ZERO)]]
    {
        let chip = stored_before_a_transfer(&behind);
        assert_violation(&chip, "0xffb20040 may overtake the one to 0x70");
        assert_eq!(get(&chip, BANK, 0x1000), 0);
    }
    for behind in [vec![lw(T1, 0x700, ZERO)], vec![atomic], vec![lw(T1, 0x700, ZERO), lw(T1, 0x704, ZERO)]] {
        let chip = stored_before_a_transfer(&behind);
        assert_eq!((chip.stopped(), get(&chip, BANK, 0x1000)), (vec![], 7));
    }
}

#[test]
fn release_of_a_core_needs_what_was_stored_to_be_loaded_back() {
    for (loads, stops) in [(false, 1), (true, 0)] {
        let chip = chip();
        let mut program = Assembler::new();
        program.emit(sw(ZERO, 0x700, ZERO));
        if loads {
            program.emit(lw(T1, 0x700, ZERO));
        }
        store_and_stay(&mut program, 0xffb1_21b0, 0x4_7000);
        load(&chip, TILE, 0, program);
        release(&chip, TILE, Core::B);
        chip.step(100);
        assert_eq!(chip.stopped().len(), stops);
    }
}

#[test]
fn core_that_is_held_forgets_why_it_stopped() {
    let chip = chip();
    put(&chip, TILE, 0, 0x0010_0073);
    release(&chip, TILE, Core::B);
    chip.step(10);
    assert_eq!(chip.stopped(), [Stopped { tile: TILE, core: Core::B, stop: CoreStop::Paused(4) }]);
    put(&chip, TILE, SOFT_RESET, Core::ALL.map(Core::reset_bit).iter().sum());
    assert_eq!(chip.stopped(), []);
    put(&chip, TILE, 0, 0x1820_f053);
    release(&chip, TILE, Core::B);
    chip.step(10);
    let stopped = chip.stopped();
    let [Stopped { stop: CoreStop::Trap(Trap { pc: 0, cause: Cause::Instruction { .. } }), .. }] =
        &stopped[..]
    else {
        panic!("{stopped:?}")
    };
}

/// Asks for a transfer and waits until it was done.
fn transfer(program: &mut Assembler, from: (u32, u32), to: (u32, u32), length: u32, control: u32) {
    program.constant(T0, 0xffb2_0000);
    for (offset, value) in [
        (0x00, from.0),
        (0x04, 0),
        (0x08, from.1),
        (0x0c, to.0),
        (0x10, 0),
        (0x14, to.1),
        (0x1c, control),
        (0x20, length),
    ] {
        program.constant(T1, value);
        program.emit(sw(T1, offset, T0));
    }
    program.emit(addi(T1, ZERO, 1));
    program.emit(sw(T1, 0x40, T0));
    let wait = program.here();
    program.emit(lw(T1, 0x40, T0));
    program.branch(When::Ne, T1, ZERO, wait);
}

const READ: u32 = 1 << 4 | 1 << 7 | 1 << 13;
const WRITE: u32 = READ | 1 << 1;

fn coordinates(tile: Tile) -> u32 {
    u32::from(tile.x) | u32::from(tile.y) << 6
}

#[test]
fn core_brings_memory_from_a_bank_and_back() {
    let chip = chip();
    let input: Vec<u8> = (0..200).collect();
    chip.tile_write(BANK, 0x1040, &input).unwrap();
    let mut program = Assembler::new();
    let (bank, own) = (coordinates(BANK), coordinates(TILE));
    transfer(&mut program, (0x1040, bank), (0x2000, own), 200, READ);
    // Every word one more.
    program.constant(T0, 0x2000);
    program.constant(T2, 0x2000 + 200);
    let next = program.here();
    program.emit(lw(T1, 0, T0));
    program.emit(addi(T1, T1, 1));
    program.emit(sw(T1, 0, T0));
    program.emit(addi(T0, T0, 4));
    program.branch(When::Ne, T0, T2, next);
    program.emit(lw(T1, -4, T0));
    transfer(&mut program, (0x2000, own), (0x8000, coordinates(Tile { x: 18, y: 14 })), 200, WRITE);
    // The counters: one read was answered, one write acknowledged.
    program.constant(T0, 0xffb2_0000);
    program.emit(lw(T1, 0x204, T0));
    program.emit(lw(T2, 0x208, T0));
    program.emit(lw(T0, 0x44, T0));
    program.emit(sw(T0, 0x788, ZERO));
    program.emit(sw(T1, 0x780, ZERO));
    program.emit(sw(T2, 0x784, ZERO));
    store_and_stay(&mut program, 0x790, 1);
    load(&chip, TILE, 0, program);
    release(&chip, TILE, Core::B);
    chip.step(10_000);
    assert_eq!(chip.stopped(), []);
    assert_eq!(get(&chip, TILE, 0x790), 1);
    let mut output = [0; 200];
    chip.tile_read(Tile { x: 18, y: 12 }, 0x8000, &mut output).unwrap();
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert!((0..200).step_by(4).all(|at| word(&output, at) == word(&input, at) + 1));
    assert_eq!((get(&chip, TILE, 0x780), get(&chip, TILE, 0x784)), (1, 1));
    assert_eq!(get(&chip, TILE, 0x788) & 0xfff, own);
}

#[test]
fn work_of_cores_and_the_network_is_counted_exactly() {
    let program = || {
        let mut program = Assembler::new();
        let (bank, own) = (coordinates(BANK), coordinates(TILE));
        transfer(&mut program, (0x1040, bank), (0x2000, own), 200, READ);
        transfer(&mut program, (0x1040, bank), (0x3000, own), 64, READ);
        program.constant(T0, 50);
        let next = program.here();
        program.emit(addi(T0, T0, -1));
        program.branch(When::Ne, T0, ZERO, next);
        transfer(&mut program, (0x2000, own), (0x8000, bank), 100, WRITE);
        let here = program.here();
        program.jump(ZERO, here);
        program
    };
    // Each instruction once, but for the loop's other 49 rounds; the jump at the end never.
    let instructions = program().finish().len() as u64 + 2 * 49 - 1;
    assert_eq!(instructions, 169);
    let once = ChipCounts {
        instructions,
        packets_read: 2,
        bytes_read: 264,
        packets_written: 1,
        bytes_written: 100,
        engine: EngineCounts::default(),
    };
    // However many instructions are executed at a time.
    for steps in [1, 7, 10_000] {
        let chip = chip();
        assert_eq!(chip.counts(), ChipCounts::default());
        load(&chip, TILE, 0, program());
        release(&chip, TILE, Core::B);
        for _ in 0..10_000 / steps {
            chip.step(steps);
        }
        assert_eq!(chip.counts(), once, "{steps} at a time");
        // It waits, for however long, and what the host does is not counted.
        chip.step(10_000);
        assert_eq!(get(&chip, TILE, 0x2000), 0);
        chip.step(10_000);
        assert_eq!(chip.counts(), once, "{steps} at a time");
        // Another time, on another core.
        put(&chip, TILE, BLACKHOLE.starts.t_enable, 1);
        release(&chip, TILE, Core::T0);
        chip.step(10_000);
        let mut twice = once;
        twice += once;
        assert_eq!(chip.counts(), twice);
    }
}

#[test]
fn tiles_write_to_each_other() {
    let chip = chip();
    let other = Tile { x: 14, y: 11 };
    let mut program = Assembler::new();
    transfer(&mut program, (0x0, coordinates(TILE)), (0x3000, coordinates(other)), 64, WRITE);
    store_and_stay(&mut program, 0x780, 1);
    load(&chip, TILE, 0, program);
    release(&chip, TILE, Core::B);
    chip.step(1000);
    assert_eq!(get(&chip, TILE, 0x780), 1);
    assert_eq!(get(&chip, other, 0x3004), get(&chip, TILE, 4));
}

#[test]
fn transfers_that_the_network_does_wrong_stop_the_core() {
    let own = coordinates(TILE);
    let bank = coordinates(BANK);
    let fused = coordinates(Tile { x: 16, y: 3 });
    for (from, to, length, control, part) in [
        ((0x1020, bank), (0x2000, own), 64, READ, "modulo 64"),
        ((0x2008, own), (0x1000, bank), 64, WRITE, "modulo 16"),
        ((0x2000, own), (0x1000, bank), 0, WRITE, "between 1 and 16384 bytes"),
        ((0x2000, own), (0x1000, bank), BLACKHOLE.noc.max_burst + 1, WRITE, "between 1 and 16384 bytes"),
        ((0x2000, own), (0x1000, bank), 64, WRITE | 1 << 5, "multicast"),
        ((0x1000, bank), (0x2000, own), 64, READ & !(1 << 4), "the bit for a response"),
        ((0x2000, own), (0x1000, fused), 64, WRITE, "fused off"),
        ((0x17_fff0, own), (0x1000, bank), 64, WRITE, "not memory"),
        ((0x1000, coordinates(Tile { x: 2, y: 0 })), (0x2000, own), 64, READ, "the host's memory"),
    ] {
        let chip = chip();
        let mut program = Assembler::new();
        transfer(&mut program, from, to, length, control);
        store_and_stay(&mut program, 0x780, 1);
        load(&chip, TILE, 0, program);
        release(&chip, TILE, Core::B);
        chip.step(1000);
        assert_violation(&chip, part);
    }
}

#[test]
fn cores_reach_their_own_memory_and_nothing_else() {
    for (address, part) in [
        (0xffb0_0ff0, None),
        (0xffb0_2000, Some("nothing is mapped")),
        (0xffb3_0000, Some("nothing is mapped")),
        (0x0018_0000, Some("nothing is mapped")),
    ] {
        let chip = chip();
        let mut program = Assembler::new();
        store_and_stay(&mut program, address, 7);
        load(&chip, TILE, 0, program);
        release(&chip, TILE, Core::B);
        chip.step(100);
        let stopped = chip.stopped();
        match (part, &stopped[..]) {
            (None, []) => {}
            (Some(part), [Stopped { stop: CoreStop::Trap(trap), .. }]) => {
                assert!(trap.to_string().contains(part), "{trap}");
            }
            _ => panic!("{address:#x}: {stopped:?}"),
        }
    }
}

/// One thing that a host does.
#[derive(Clone, Debug)]
enum Access {
    Bar { bar: u8, offset: u64, length: usize, write: bool },
    Network { tile: (u8, u8), address: u64, length: usize, write: bool },
    Step(u16),
}

fn access() -> impl Strategy<Value = Access> {
    let interesting = prop_oneof![
        0..0x100_u64,
        Just(SOFT_RESET),
        (0..0x40_u64).prop_map(|at| BLACKHOLE.starts.t[0] + 4 * at),
        (0..0x100_u64).prop_map(|at| 0xffb2_0000 + 4 * at),
        (0x17_ff00..0x18_0010_u64),
        (0..0x100_u64).prop_map(|at| 0x8003_0400 + at),
        (0..0x200_u64).prop_map(|at| 0x8_8003_0000 + at),
        any::<u64>(),
    ];
    let offset = prop_oneof![
        0..0x20_0010_u64,
        (0..0xa00_u64).prop_map(|at| BLACKHOLE.configuration + at),
        0x1fd0_2000..0x1fd0_5010_u64,
        (0..0x80_u64).prop_map(|at| 0x1ff3_0000 + 4 * at),
        any::<u64>(),
    ];
    let bar = prop_oneof![Just(0_u8), Just(2), Just(4), any::<u8>()];
    prop_oneof![
        (bar, offset, 0..70_usize, any::<bool>()).prop_map(|(bar, offset, length, write)| Access::Bar {
            bar,
            offset,
            length,
            write
        }),
        ((0..28_u8, 0..29_u8), interesting, 0..70_usize, any::<bool>())
            .prop_map(|(tile, address, length, write)| Access::Network { tile, address, length, write }),
        (0..200_u16).prop_map(Access::Step),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Whatever the host does, it is done or refused; once the device is lost, nothing is done.
    #[test]
    fn every_access_is_done_or_refused(
        accesses in proptest::collection::vec(access(), 1..40),
        fill: u8,
        wormhole: bool,
    ) {
        let chip = if wormhole { Chip::new(Board::new(Model::N150)) } else { chip() };
        let mut lost = false;
        for access in accesses {
            let result = match access {
                Access::Bar { bar, offset, length, write } => {
                    let (at, mut bytes) = (BarAddress { bar, offset }, vec![fill; length]);
                    if write { chip.write(at, &bytes) } else { chip.read(at, &mut bytes) }
                }
                Access::Network { tile: (x, y), address, length, write } => {
                    let (tile, mut bytes) = (Tile { x, y }, vec![fill; length]);
                    if write {
                        chip.tile_write(tile, address, &bytes)
                    } else {
                        chip.tile_read(tile, address, &mut bytes)
                    }
                }
                Access::Step(steps) => {
                    chip.step(steps.into());
                    continue;
                }
            };
            if lost {
                prop_assert!(matches!(result, Err(Violation::Lost(_))));
            }
            lost |= matches!(result, Err(Violation::Harvested { .. }));
        }
    }
}

#[test]
fn five_cores_of_a_tile_take_turns_and_always_the_same() {
    let mut ends = Vec::new();
    for piece in [100_000, 32, 64] {
        let chip = chip();
        // Each core adds one to a word, a thousand times, without regard for the others.
        let mut program = Assembler::new();
        program.constant(T2, 1000);
        let next = program.here();
        program.emit(lw(T1, 0x780, ZERO));
        program.emit(addi(T1, T1, 1));
        program.emit(sw(T1, 0x780, ZERO));
        program.emit(addi(T2, T2, -1));
        program.branch(When::Ne, T2, ZERO, next);
        program.emit(0x0010_0073);
        load(&chip, TILE, 0, program);
        for address in BLACKHOLE.starts.t.into_iter().chain([BLACKHOLE.starts.nc]) {
            put(&chip, TILE, address, 0);
        }
        put(&chip, TILE, BLACKHOLE.starts.t_enable, 7);
        put(&chip, TILE, BLACKHOLE.starts.nc_enable, 1);
        put(&chip, TILE, SOFT_RESET, 0);
        for _ in 0..100_000 / piece {
            chip.step(piece);
        }
        assert_eq!(chip.stopped().len(), 5);
        ends.push(get(&chip, TILE, 0x780));
    }
    // They do get in each other's way, and in the same way whenever turns are whole.
    assert!((1000..5000).contains(&ends[0]), "{ends:?}");
    assert!(ends.iter().all(|&end| end == ends[0]), "{ends:?}");
}
