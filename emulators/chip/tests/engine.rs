// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The matrix engine, compared with the vendor's simulator, and what it refuses.

#[path = "support/cases.rs"]
mod cases;
mod support;

use cases::{cases, chip};
use emulator_chip::{Board, Chip, Core, CoreStop, Model, SOFT_RESET, Stopped, Tile};
use hal_tenstorrent_loader::encode::Assembler;
use hal_tenstorrent_loader::tensix::Bits;
use hal_tenstorrent_loader::tensix::blackhole::{Mvmul, Pacr, Setadc, Stallwait, Unpacr};
use support::{assert_violation, get, load, put, release, stay, store};

const TILE: Tile = Tile { x: 1, y: 2 };
/// Where core B pushes to the first thread.
const PUSH: u32 = 0xffe4_0000;
/// The first word of the configuration.
const CONFIG: u32 = 0xffef_0000;

#[test]
fn products_are_the_vendors_to_the_bit() {
    let mut chip = chip();
    for (number, case) in cases(include_bytes!("golden/products.bin")).iter().enumerate() {
        if case.is_first {
            chip = cases::chip();
        }
        assert_eq!(case.check(&chip), Ok(()), "case {number}");
    }
}

/// Lets core B store words.
fn run(chip: &Chip, stores: &[(u32, u32)]) {
    let mut program = Assembler::new();
    for &(address, value) in stores {
        store(&mut program, address, value);
    }
    stay(&mut program);
    load(chip, TILE, 0, program);
    release(chip, TILE, Core::B);
    chip.step(1000);
}

#[test]
fn unknown_words_and_fields_are_refused_by_name() {
    let unpacr = Unpacr { last: Bits::MAX, ..Unpacr::default() };
    for (word, reason) in [
        (0, "0x00000000 in thread 0 of the matrix engine of tile (1, 2): this is no instruction"),
        (0x7000_0000, "this is no instruction of the matrix engine, or one that is not modelled"),
        // A bit outside of the fields.
        (Mvmul::default().encode() | 1 << 20, "this is no instruction"),
        (unpacr.encode(), "UNPACR's MultiContextMode = 0: only settings of a context are modelled"),
        (Pacr { flush: Bits::MAX, ..Pacr::default() }.encode(), "PACR's Flush = 1 is not modelled"),
        (Setadc { new_value: Bits::MAX, ..Setadc::default() }.encode(), "SETADC's ThreadOverride = 3"),
    ] {
        let chip = chip();
        run(&chip, &[(PUSH, word)]);
        assert_violation(&chip, reason);
    }
}

#[test]
fn configuration_without_a_function_is_refused() {
    let chip = chip();
    run(&chip, &[(CONFIG + 4 * 19, 1 << 8)]);
    assert_violation(&chip, "tile (1, 2): word 19 of the configuration has bits 0x100 set");
}

/// What is refused once is refused from then on, whoever asks.
#[test]
fn broken_engine_executes_nothing() {
    let chip = chip();
    run(&chip, &[(PUSH, 0)]);
    put(&chip, TILE, SOFT_RESET, Core::ALL.map(Core::reset_bit).iter().sum());
    run(&chip, &[(PUSH, Stallwait::default().encode())]);
    assert_violation(&chip, "0x00000000 in thread 0");
}

#[test]
fn core_waits_for_room_and_ends_with_its_product() {
    // A product without operands waits for ever: the core pushes as much as the queue takes.
    let chip = chip();
    let mut words = vec![(PUSH, Mvmul::default().encode()); 40];
    words.push((0x7000, 1));
    run(&chip, &words);
    assert_eq!(chip.stopped(), []);
    assert_eq!((get(&chip, TILE, 0x7000), chip.counts().engine.total()), (0, 0));
    let instructions = chip.counts().instructions;
    chip.step(1000);
    assert_eq!(chip.counts().instructions, instructions);
}

#[test]
fn engine_of_a_wormhole_tile_is_refused_by_name() {
    let chip = Chip::new(Board::new(Model::N150));
    let tile = Tile { x: 18, y: 18 };
    let mut program = Assembler::new();
    store(&mut program, PUSH, 0);
    stay(&mut program);
    load(&chip, tile, 0, program);
    release(&chip, tile, Core::B);
    chip.step(100);
    let [Stopped { stop: CoreStop::Violation(_, violation), .. }] = &chip.stopped()[..] else { panic!() };
    assert_eq!(violation.to_string(), "the matrix engine at 0xffe40000 of tile (18, 18) is not modelled");
    put(&chip, tile, 0x100, 7);
}
