// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The differences between a Wormhole and a Blackhole.

mod support;

use emulator_chip::{BarAddress, Board, Chip, Core, CoreStop, Model, Stopped, Tile, Violation, WORMHOLE};
use hal_tenstorrent_loader::encode::{Assembler, Reg, When, addi, lw, sw};
use support::{assert_violation, get, load, put, release, stay, store};

const T0: Reg = Reg::T[0];
const T1: Reg = Reg::T[1];
const ZERO: Reg = Reg::ZERO;
const TILE: Tile = Tile { x: 18, y: 18 };
const BANK: Tile = Tile { x: 5, y: 2 };
const ARC: Tile = Tile { x: 0, y: 10 };

fn chip() -> Chip {
    Chip::new(Board::new(Model::N150))
}

#[test]
fn windows_of_three_sizes_reach_tiles_banks_and_the_controller() {
    let chip = chip();
    for (number, tile, address) in
        [(3_u32, TILE, 0_u64), (160, BANK, 0x7fe0_0000), (170, BANK, 0x4100_0000), (185, ARC, 0x8_8000_0000)]
    {
        let (kind, index) = WORMHOLE.window(number).unwrap();
        let bits = 36 - kind.size.trailing_zeros();
        let setting = (address / kind.size) | u64::from(tile.x) << bits | u64::from(tile.y) << (bits + 6);
        for (word, value) in (0..).zip([setting & 0xffff_ffff, setting >> 32]) {
            let offset = WORMHOLE.configuration + 8 * u64::from(number) + 4 * word;
            // The third region shows the end of the first.
            let at = BarAddress { bar: 4, offset: offset - 0x1e00_0000 };
            chip.write(at, &u32::try_from(value).unwrap().to_le_bytes()).unwrap();
        }
        let offset = kind.offset + u64::from(index) * kind.size;
        let at = |within| BarAddress { bar: 0, offset: offset + within };
        if tile == ARC {
            let mut word = [0; 4];
            chip.read(at(0x3_0060), &mut word).unwrap();
            assert_eq!(u32::from_le_bytes(word), 0xc0de_0001);
            continue;
        }
        chip.write(at(0x1001), b"over the network").unwrap();
        let mut bytes = [0; 16];
        chip.tile_read(tile, address + 0x1001, &mut bytes).unwrap();
        assert_eq!(&bytes, b"over the network", "window {number}");
    }
}

#[test]
fn memory_ends_where_it_ends() {
    let chip = chip();
    let unmapped = |tile, address| Err(Violation::Unmapped { tile, address, length: 8 });
    for (tile, end) in [(TILE, 1464 << 10), (BANK, 2 << 30)] {
        assert!(chip.tile_write(tile, end - 4, &[0; 4]).is_ok());
        assert_eq!(chip.tile_write(tile, end - 4, &[0; 8]), unmapped(tile, end - 4));
    }
    // Three ports of one bank.
    chip.tile_write(BANK, 0x4000_0000, &[7; 4]).unwrap();
    assert_eq!(get(&chip, Tile { x: 5, y: 10 }, 0x4000_0000), 0x0707_0707);
    assert_eq!(get(&chip, Tile { x: 5, y: 3 }, 0x4000_0000), 0);
}

/// Sends the controller a message over the network, and says what is answered.
fn ask(chip: &Chip, number: u32) -> (u32, u32) {
    put(chip, ARC, 0x8_8003_006c, 0);
    put(chip, ARC, 0x8_8003_0074, 0xaa00 | number);
    let control = get(chip, ARC, 0x8_8003_0100);
    put(chip, ARC, 0x8_8003_0100, control | 1 << 16);
    assert_eq!(get(chip, ARC, 0x8_8003_0100) & 1 << 16, 0);
    (get(chip, ARC, 0x8_8003_0074), get(chip, ARC, 0x8_8003_006c))
}

#[test]
fn controller_is_asked_what_is_fused_off() {
    // The first row, which is row 1 of the network, is the second that the answer has; the last row is the first.
    for (missing, answer) in [(0, 1 << 1), (9, 1 << 0), (4, 1 << 9), (5, 1 << 8)] {
        let chip = Chip::new(Board::with_masks(Model::N150, 0x3ff & !(1 << missing), 0x3f).unwrap());
        assert_eq!(ask(&chip, 0x57), (0x57, answer), "row {missing}");
    }
    let chip = chip();
    assert_eq!(ask(&chip, 0x11), (0x11, 0));
    assert_eq!(ask(&chip, 0x34), (0x34, 1000));
    assert_eq!(ask(&chip, 0x99).0, u32::MAX);
    // It is no message without what comes before the number, and everything else cannot be written.
    put(&chip, ARC, 0x8_8003_0074, 0x57);
    put(&chip, ARC, 0x8_8003_0100, 1 << 16);
    assert_eq!(get(&chip, ARC, 0x8_8003_0074), 0x57);
    let read_only = Violation::ReadOnly { tile: ARC, address: 0x8_8003_01d0 };
    assert_eq!(chip.tile_write(ARC, 0x8_8003_01d0, &[0; 4]), Err(read_only));
    // The host finds the same registers, and that coordinates are translated.
    let mut word = [0; 4];
    chip.read(BarAddress { bar: 0, offset: 0x1ff3_0034 + 0x40 }, &mut word).unwrap();
    assert_eq!(u32::from_le_bytes(word), 0x57);
    assert_eq!(get(&chip, ARC, 0x8_8005_0100) >> 14 & 1, 1);
}

#[test]
fn telemetry_reports_the_board() {
    let chip = chip();
    let table = 0x8_0000_0000 + u64::from(get(&chip, ARC, 0x8_8003_01d0));
    let values = 0x8_0000_0000 + u64::from(get(&chip, ARC, 0x8_8003_01d4));
    let count = get(&chip, ARC, table + 4);
    let entries = (0..u64::from(count)).map(|index| get(&chip, ARC, table + 8 + 4 * index));
    let board = entries.into_iter().find(|entry| entry & 0xffff == 1).unwrap();
    assert_eq!(get(&chip, ARC, values + 4 * u64::from(board >> 16)) >> 4, 0x18);
}

/// The vendor's tools take the address that a message answers to be one of the controller's (luwen), or look where that
/// is also found (tt-umd since 0.9.9).
#[test]
fn old_software_finds_telemetry_where_the_controller_says() {
    let chip = Chip::new(Board::new(Model::N150).numbered(6));
    let (number, address) = ask(&chip, 0x2c);
    assert_eq!((number, address >> 19), (0x2c, 0x1000_0000 >> 19), "in its memory");
    let again = 0x8_1000_0000 + u64::from(address);
    for (word, value) in
        [(1, 0x401e_1e52), (4, 0x180), (5, 7), (28, 750), (34, 950 << 16 | 700), (49, 0x1205_0000)]
    {
        assert_eq!(get(&chip, ARC, 0x8_0000_0000 + u64::from(address) + 4 * word), value, "{word}");
        assert_eq!(get(&chip, ARC, again + 4 * word), value, "{word}");
        let host = BarAddress { bar: 0, offset: 0x1fe8_0000 + u64::from(address - 0x1000_0000) + 4 * word };
        let mut found = [0; 4];
        chip.read(host, &mut found).unwrap();
        assert_eq!(u32::from_le_bytes(found), value, "{word}");
    }
    let before = get(&chip, ARC, again + 4 * 19);
    chip.pass(1 << 20);
    assert!(get(&chip, ARC, again + 4 * 19) > before);
    // Tools read more at once than there is of it, and the last of the registers for software.
    assert_eq!(get(&chip, ARC, again + 4 * 50), 0);
    let mut word = [1; 4];
    chip.read(BarAddress { bar: 0, offset: 0x1ff3_007c }, &mut word).unwrap();
    assert_eq!(word, [0; 4]);
    assert!(chip.tile_read(ARC, 0x8_1008_0000, &mut [0; 4]).is_err());
}

/// Tools wait for the training of every port, and look at no more of those that are switched off.
#[test]
fn firmware_of_ethernet_tiles_says_that_their_ports_are_switched_off() {
    let chip = chip();
    for tile in [Tile { x: 25, y: 16 }, Tile { x: 18, y: 17 }, Tile { x: 1, y: 6 }] {
        let word = |address| {
            let mut word = [0; 4];
            chip.tile_read(tile, address, &mut word).map(|()| u32::from_le_bytes(word))
        };
        let said = [0x1008, 0x1efc, 0x1104, 0x1440].map(|address| word(address).unwrap());
        assert_eq!(said, [0xffff, 0, 2, 14]);
        assert_eq!((word(0x210).unwrap(), word(0x1108).unwrap()), (0x6_e000, 0));
        assert_eq!([0x1200, 0x123c].map(|link| word(link).unwrap()), [1; 2], "nothing is connected");
        let beats = [0x1c, 0x1c].map(|address| word(address).unwrap());
        assert!(beats[0] != beats[1] && beats.iter().all(|beat| beat >> 16 == 0xabcd));
        assert!(
            word(0x1000).is_err()
                && word(0x1240).is_err()
                && chip.tile_write(tile, 0x1efc, &[1, 0, 0, 0]).is_err()
        );
    }
}

#[test]
fn row_that_is_fused_off_loses_the_device() {
    for tile in [Tile { x: 20, y: 27 }, Tile { x: 1, y: 11 }] {
        let chip = chip();
        let touched = chip.tile_read(tile, 0x40, &mut [0; 4]);
        assert_eq!(touched, Err(Violation::Harvested { tile, address: 0x40 }));
        assert_eq!(chip.tile_read(TILE, 0, &mut [0; 4]), Err(Violation::Lost(tile)));
    }
}

/// The first word of the matrix engine's configuration.
const CONFIGURATION: u32 = 0xffef_0000;

#[test]
fn starts_are_written_and_not_read() {
    let starts = &WORMHOLE.starts;
    for address in [starts.t[0], starts.t_enable, starts.nc, starts.nc_enable] {
        let chip = chip();
        let mut program = Assembler::new();
        program.constant(T0, u32::try_from(address).unwrap());
        program.emit(lw(T1, 0, T0));
        load(&chip, TILE, 0, program);
        release(&chip, TILE, Core::B);
        chip.step(100);
        let stopped = chip.stopped();
        let [Stopped { stop: CoreStop::Trap(trap), .. }] = &stopped[..] else { panic!("{stopped:?}") };
        assert!(trap.to_string().contains("nothing is mapped"), "{trap}");
    }
}

#[test]
fn cores_start_where_another_core_has_said() {
    let starts = &WORMHOLE.starts;
    // Not over the network.
    let chip = chip();
    let refused = chip.tile_write(TILE, starts.t_enable, &[0; 4]);
    assert!(matches!(refused, Err(Violation::Unmapped { .. })), "{refused:?}");
    let register = |address: u64| u32::try_from(address).unwrap();
    let mut program = Assembler::new();
    for (address, value) in
        [(starts.t[1], 0x4000), (starts.t_enable, 7), (starts.nc, 0x5000), (starts.nc_enable, 1)]
    {
        store(&mut program, register(address), value);
    }
    // A word beside them, which is written last and read back, comes before the release.
    store(&mut program, CONFIGURATION, 0);
    program.constant(T0, CONFIGURATION);
    program.emit(lw(T1, 0, T0));
    store(&mut program, 0xffb1_21b0, 0);
    stay(&mut program);
    load(&chip, TILE, 0, program);
    for (start, value) in [(0x4000, 2), (0x5000, 3)] {
        let mut program = Assembler::new();
        store(&mut program, 0x1000 + 4 * value, value);
        stay(&mut program);
        load(&chip, TILE, start, program);
    }
    release(&chip, TILE, Core::B);
    chip.step(1000);
    assert_eq!((get(&chip, TILE, 0x1008), get(&chip, TILE, 0x100c)), (2, 3));
}

#[test]
fn release_needs_what_was_written_last_to_be_read_back() {
    let starts = &WORMHOLE.starts;
    let register = |address: u64| u32::try_from(address).unwrap();
    for reads in [false, true] {
        let chip = chip();
        let mut program = Assembler::new();
        store(&mut program, register(starts.t[0]), 0x4000);
        store(&mut program, register(starts.t_enable), 1);
        // Another word of the same memory, which may come first.
        if reads {
            program.constant(T0, CONFIGURATION);
            program.emit(lw(T1, 0, T0));
        }
        store(&mut program, 0xffb1_21b0, 0x4_6000);
        load(&chip, TILE, 0, program);
        release(&chip, TILE, Core::B);
        chip.step(1000);
        assert_violation(&chip, "0xffb121b0 may overtake the one to 0xffef0284");
    }
}

#[test]
fn core_that_was_told_nothing_starts_at_an_address_of_its_own() {
    for (core, start) in [(Core::T0, 0x6000), (Core::T1, 0xa000), (Core::T2, 0xe000), (Core::Nc, 0x1_2000)] {
        let chip = chip();
        let mut program = Assembler::new();
        store(&mut program, 0x1000, 1);
        // The core for the network does not reach what says where cores start.
        store(&mut program, u32::try_from(WORMHOLE.starts.nc).unwrap(), 1);
        store(&mut program, 0x1000, 2);
        stay(&mut program);
        load(&chip, TILE, start, program);
        release(&chip, TILE, core);
        chip.step(100);
        assert_eq!(get(&chip, TILE, 0x1000), if core == Core::Nc { 1 } else { 2 }, "{core:?}");
        assert_eq!(chip.stopped().len(), usize::from(core == Core::Nc));
    }
}

const READ: u32 = 1 << 4 | 1 << 7 | 1 << 13;
const WRITE: u32 = READ | 1 << 1;

/// Coordinates as the upper half of an address has them.
fn coordinates(tile: Tile) -> u32 {
    u32::from(tile.x) << 4 | u32::from(tile.y) << 10
}

fn transfer(program: &mut Assembler, from: (u32, u32), to: (u32, u32), length: u32, control: u32) {
    program.constant(T0, 0xffb2_0000);
    for (offset, value) in
        [(0x00, from.0), (0x04, from.1), (0x0c, to.0), (0x10, to.1), (0x1c, control), (0x20, length)]
    {
        program.constant(T1, value);
        program.emit(sw(T1, offset, T0));
    }
    program.emit_all([addi(T1, ZERO, 1), sw(T1, 0x28, T0)]);
    let wait = program.here();
    program.emit(lw(T1, 0x28, T0));
    program.branch(When::Ne, T1, ZERO, wait);
}

#[test]
fn core_brings_memory_from_a_bank_and_back() {
    let chip = chip();
    let input: Vec<u8> = (0..200).collect();
    chip.tile_write(BANK, 0x4000_1020, &input).unwrap();
    let mut program = Assembler::new();
    let (bank, own) = (coordinates(BANK), coordinates(TILE));
    // The same modulo 32 is enough.
    transfer(&mut program, (0x4000_1020, bank), (0x2000, own), 200, READ);
    transfer(&mut program, (0x2000, own), (0x8010, bank), 200, WRITE);
    program.constant(T0, 0xffb2_0000);
    for (offset, place) in [(0x204, 0x780), (0x208, 0x784), (0x2c, 0x788), (0x138, 0x78c)] {
        program.emit_all([lw(T1, offset, T0), sw(T1, place, ZERO)]);
    }
    stay(&mut program);
    load(&chip, TILE, 0, program);
    release(&chip, TILE, Core::B);
    chip.step(10_000);
    assert_eq!(chip.stopped(), []);
    let mut output = [0; 200];
    chip.tile_read(BANK, 0x8010, &mut output).unwrap();
    assert_eq!(output, input[..]);
    assert_eq!((get(&chip, TILE, 0x780), get(&chip, TILE, 0x784)), (1, 1));
    // Its physical and its translated coordinates.
    assert_eq!(get(&chip, TILE, 0x788) & 0xfff, 1 | 1 << 6);
    assert_eq!(get(&chip, TILE, 0x78c), 18 | 18 << 6);
}

#[test]
fn transfers_that_the_network_does_wrong_stop_the_core() {
    let (own, bank) = (coordinates(TILE), coordinates(BANK));
    let fused = coordinates(Tile { x: 18, y: 27 });
    for (from, to, length, control, part) in [
        ((0x1030, bank), (0x2000, own), 64, READ, "modulo 32"),
        ((0x2008, own), (0x1000, bank), 64, WRITE, "modulo 16"),
        ((0x2000, own), (0x1000, bank), 8193, WRITE, "between 1 and 8192 bytes"),
        ((0x2000, own), (0x1000, fused), 64, WRITE, "fused off"),
        ((0x16_dff0, own), (0x1000, bank), 64, WRITE, "not memory"),
        ((0x2000, own), (0x1000, 8 | bank), 64, WRITE, "not memory"),
    ] {
        let chip = chip();
        let mut program = Assembler::new();
        transfer(&mut program, from, to, length, control);
        load(&chip, TILE, 0, program);
        release(&chip, TILE, Core::B);
        chip.step(1000);
        assert_violation(&chip, part);
    }
}

#[test]
fn its_cores_have_no_floats() {
    let chip = chip();
    // fadd.s f0, f0, f0
    put(&chip, TILE, 0, 0x53);
    release(&chip, TILE, Core::B);
    chip.step(10);
    let stopped = chip.stopped();
    let [Stopped { stop: CoreStop::Trap(trap), .. }] = &stopped[..] else { panic!("{stopped:?}") };
    assert!(trap.to_string().contains("no floats"), "{trap}");
}

/// Software asks the parts beside the tiles for their place on the network, to find out whether that hangs.
#[test]
fn controller_bridge_and_banks_name_their_place() {
    let place = |chip: &Chip, tile: Tile, address| {
        let mut word = [0; 4];
        chip.tile_read(tile, address, &mut word).map(|()| u32::from_le_bytes(word))
    };
    let wormhole = chip();
    for tile in [ARC, Tile { x: 0, y: 3 }] {
        let found = place(&wormhole, tile, 0xf_ffb2_002c).unwrap();
        assert_eq!(found & 0xfff, u32::from(tile.x) | u32::from(tile.y) << 6, "{tile}");
    }
    for tile in [Tile { x: 0, y: 11 }, Tile { x: 5, y: 0 }] {
        let found = place(&wormhole, tile, 0x1_0009_002c).unwrap();
        assert_eq!(found & 0xfff, u32::from(tile.x) | u32::from(tile.y) << 6, "{tile}");
    }
    let blackhole = Chip::new(Board::new(Model::P150));
    let (controller, bridge, translated) = (Tile { x: 8, y: 0 }, Tile { x: 2, y: 0 }, Tile { x: 19, y: 24 });
    for (tile, address, named) in [
        (controller, 0xffff_ffff_ff00_0044, controller),
        (controller, 0x8005_0044, controller),
        (bridge, 0xffff_ffff_ff00_0044, bridge),
        (translated, 0xffff_ffff_ff00_0044, bridge),
        (bridge, 0xffff_ffff_ff00_0148, translated),
        (translated, 0xffff_ffff_ff00_0148, translated),
    ] {
        let found = place(&blackhole, tile, address).unwrap();
        assert_eq!(found & 0xfff, u32::from(named.x) | u32::from(named.y) << 6, "{tile} {address:#x}");
        assert_eq!(place(&blackhole, tile, 0xffff_ffff_ff00_014c).ok(), None, "what it does not have");
    }
    // What is behind the bridge is the host's.
    assert!(matches!(place(&blackhole, Tile { x: 2, y: 0 }, 64), Err(Violation::NotModelled { .. })));
}
