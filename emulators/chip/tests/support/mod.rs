// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Words of a chip's memory, and programs for its cores.

#![expect(clippy::unwrap_used, reason = "a test stops where something is not as it should be")]

use emulator_chip::{Chip, Core, CoreStop, SOFT_RESET, Stopped, Tile};
use hal_tenstorrent_loader::encode::{Assembler, Reg, sw};

const ADDRESS: Reg = Reg::T[0];
const VALUE: Reg = Reg::T[1];

pub(crate) fn put(chip: &Chip, tile: Tile, address: u64, word: u32) {
    chip.tile_write(tile, address, &word.to_le_bytes()).unwrap();
}

pub(crate) fn get(chip: &Chip, tile: Tile, address: u64) -> u32 {
    let mut bytes = [0; 4];
    chip.tile_read(tile, address, &mut bytes).unwrap();
    u32::from_le_bytes(bytes)
}

pub(crate) fn load(chip: &Chip, tile: Tile, address: u64, program: Assembler) {
    for (address, word) in (address..).step_by(4).zip(program.finish()) {
        put(chip, tile, address, word);
    }
}

/// Starts one core and keeps the others in reset.
pub(crate) fn release(chip: &Chip, tile: Tile, core: Core) {
    let all: u32 = Core::ALL.iter().map(|core| core.reset_bit()).sum();
    put(chip, tile, SOFT_RESET, all & !core.reset_bit());
}

/// Stores a word.
pub(crate) fn store(program: &mut Assembler, address: u32, value: u32) {
    program.constant(ADDRESS, address);
    program.constant(VALUE, value);
    program.emit(sw(VALUE, 0, ADDRESS));
}

/// Jumps to itself.
pub(crate) fn stay(program: &mut Assembler) {
    let here = program.here();
    program.jump(Reg::ZERO, here);
}

/// Checks that core B alone has stopped, for breaking a rule whose message has this part.
pub(crate) fn assert_violation(chip: &Chip, part: &str) {
    let stopped = chip.stopped();
    let [Stopped { core: Core::B, stop: CoreStop::Violation(_, violation), .. }] = &stopped[..] else {
        panic!("{part}: {stopped:?}")
    };
    assert!(violation.to_string().contains(part), "{violation}");
}
