// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Compares the matrix engine with the vendor's simulator: runs the cases of files that `tests/golden/engine.py` wrote.
//! Without a file, it says how many products of tiles of 32 by 32 the engine makes a second.

#[path = "../tests/support/cases.rs"]
mod cases;

use emulator_chip::{Board, Chip, Core, Model, SOFT_RESET, Tile};
use hal_tenstorrent_loader::encode::{Assembler, Reg, lw, sw};
use hal_tenstorrent_loader::tensix::instructions::{Mvmul, Setadcxx, Setc16, Setrwc, Unpacr, Zeroacc};
use hal_tenstorrent_loader::tensix::registers::Field;
use hal_tenstorrent_loader::tensix::{Bits, Chip as Kind, format};
use std::time::{Duration, Instant};

const TILE: Tile = Tile { x: 1, y: 2 };
/// The chip whose speed is said.
const KIND: Kind = Kind::Blackhole;
const ON: Bits<1> = Bits::MAX;

fn compare(path: &str) -> (usize, usize) {
    let (mut right, mut wrong) = (0, 0);
    let file = std::fs::read(path).expect("a file of cases");
    let mut last = None;
    for (number, case) in cases::cases(&file).iter().enumerate() {
        let chip = last.take().filter(|_| !case.is_first).unwrap_or_else(|| case.chip());
        match case.check(&chip) {
            Ok(()) => {
                right += 1;
                last = Some(chip);
            }
            // What it left behind would be wrong as well.
            Err(reason) => {
                wrong += 1;
                println!("{path}, case {number}: {reason}");
            }
        }
    }
    (right, wrong)
}

/// The words of the configuration that a product of BF16 needs.
fn configuration() -> Vec<(u32, u32)> {
    let fields = KIND.registers();
    let mut words = std::collections::BTreeMap::new();
    fn set<const WIDTH: u32>(
        words: &mut std::collections::BTreeMap<u32, u32>,
        field: Field<WIDTH>,
        value: Bits<WIDTH>,
    ) {
        *words.entry(field.address()).or_default() |= field.place(value);
    }
    let descriptor = Bits::new(format::BF16.get() | 1 << 4 | 256 << 16);
    set(&mut words, fields.alu_acc_ctrl_fp32_enabled, ON);
    set(&mut words, fields.thcon_sec0_reg0_tile_descriptor, descriptor);
    set(&mut words, fields.thcon_sec1_reg0_tile_descriptor, descriptor);
    set(&mut words, fields.thcon_sec0_reg2_out_data_format, format::BF16);
    set(&mut words, fields.thcon_sec1_reg2_out_data_format, format::BF16);
    set(&mut words, fields.thcon_sec0_reg2_disable_zero_compress_cntx0, ON);
    set(&mut words, fields.thcon_sec1_reg2_disable_zero_compress_cntx0, ON);
    set(&mut words, fields.thcon_sec0_reg5_tile_x_dim_cntx0, Bits::new(256));
    set(&mut words, fields.thcon_sec0_reg5_dest_cntx0_address, Bits::new(64));
    set(&mut words, fields.thcon_sec0_reg3_base_address, Bits::new((0x4_0000 >> 4) - 1));
    set(&mut words, fields.thcon_sec1_reg3_base_address, Bits::new((0x2_0000 >> 4) - 1));
    words.into_iter().collect()
}

/// A word of a program that pushes an instruction.
const fn pushed(word: u32) -> u32 {
    word.rotate_left(2)
}

/// A program for T1 that multiplies two tiles again and again, with some phases.
fn program(phases: u32) -> Assembler {
    let mut program = Assembler::new();
    for (address, value) in configuration() {
        program.constant(Reg::T[0], address);
        program.constant(Reg::T[1], value);
        program.emit(sw(Reg::T[1], 0, Reg::T[0]));
    }
    // All of it is there before the first instruction that uses it.
    program.emit(lw(Reg::T[1], 0, Reg::T[0]));
    // How counters go on, by mode: of SrcA, SrcB and Dst, and the phase.
    let modes =
        [(0, 8, 8, 0), (0, 24, 24, 0), (16, 24, 1000, 0), (16, 40, 968, 0), (16, 8, 968, 1), (16, 8, 968, 4)];
    for (mode, (a, b, dst, phase)) in (0..).zip(modes) {
        for (word, value) in [(12 + mode, a | b << 8), (28 + mode, dst | phase << 13)] {
            let set = Setc16 { cfg_index: Bits::new(word), new_value: Bits::new(value) };
            program.emit(pushed(set.encode()));
        }
    }
    let counters = Bits::new(3);
    program.emit(pushed(KIND.registers().srca_set_set_ovrd_with_addr.set(ON).encode()));
    program.emit(pushed(Setadcxx { x0_val: Bits::ZERO, x1_val: Bits::new(1023), counters }.encode()));
    program.emit(pushed(Zeroacc { mode: Bits::MAX, ..Zeroacc::default() }.encode(KIND)));
    program
        .emit(pushed(Setrwc { src_a: ON, src_b: ON, dst: ON, fidelity: ON, ..Setrwc::default() }.encode()));
    let again = program.here();
    for which_unpacker in [Bits::ZERO, ON] {
        let unpacr =
            Unpacr { last: ON, flip_src: ON, multi_context_mode: ON, which_unpacker, ..Unpacr::default() };
        program.emit(pushed(unpacr.encode()));
    }
    for phase in 1..=phases {
        for mode in [0, 1, 0, 2, 0, 1, 0, 3, 0, 1, 0, 2, 0, 1, 0] {
            program.emit(pushed(Mvmul { addr_mod: Bits::new(mode), ..Mvmul::default() }.encode(KIND)));
        }
        let (mode, flip) = if phase == phases { (5, ON) } else { (4, Bits::ZERO) };
        let last =
            Mvmul { addr_mod: Bits::new(mode), flip_src_a: flip, flip_src_b: flip, ..Mvmul::default() };
        program.emit(pushed(last.encode(KIND)));
    }
    program.jump(Reg::ZERO, again);
    program
}

fn measure(phases: u32) {
    let chip = Chip::new(Board::new(Model::P150));
    let put = |address: u64, bytes: &[u8]| chip.tile_write(TILE, address, bytes).expect("a tile");
    for address in [0x2_0000_u32, 0x4_0000] {
        let mut state = address;
        for at in (0..2048_u32).step_by(2) {
            // Between a quarter and four, of either sign.
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let [low, high, ..] = ((state >> 31 << 15 | 125 << 7) + (state >> 16 & 0x1ff)).to_le_bytes();
            put((address + at).into(), &[low, high]);
        }
    }
    for (address, word) in (0x9_0000..).step_by(4).zip(program(phases).finish()) {
        put(address, &word.to_le_bytes());
    }
    let all: u32 = Core::ALL.map(Core::reset_bit).iter().sum();
    put(0xffb1_222c, &0x9_0000_u32.to_le_bytes());
    put(0xffb1_2234, &2_u32.to_le_bytes());
    put(SOFT_RESET, &(all & !Core::T1.reset_bit()).to_le_bytes());
    let (begin, time) = (Instant::now(), Duration::from_secs(1));
    while begin.elapsed() < time {
        chip.step(1000);
    }
    assert_eq!(chip.stopped(), []);
    say(&chip, phases, begin.elapsed());
}

#[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
fn say(chip: &Chip, phases: u32, time: Duration) {
    let products = chip.counts().engine.matrix / u64::from(16 * phases);
    let speed = products as f64 / time.as_secs_f64();
    println!("{phases} phases: {speed:8.0} products of tiles a second");
}

fn main() {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    if paths.is_empty() {
        [1, 2, 4].into_iter().for_each(measure);
        return;
    }
    let (mut right, mut wrong) = (0, 0);
    for (of_file, not) in paths.iter().map(|path| compare(path)) {
        right += of_file;
        wrong += not;
    }
    println!("{right} cases are as the vendor's simulator has them, {wrong} are not");
    std::process::exit(i32::from(wrong > 0));
}
