// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The matrix engine, compared with the vendor's simulator, and what it refuses.

#[path = "support/cases.rs"]
mod cases;
mod support;

use cases::cases;
use emulator_chip::{Board, Chip, Core, CoreStop, EngineCounts, Model, SOFT_RESET, Stopped, Tile};
use hal_tenstorrent_loader::encode::{Assembler, Reg, lw, sw};
use hal_tenstorrent_loader::tensix::instructions::{
    Mop, Mvmul, Nop, Pacr, Semget, Seminit, Sempost, Semwait, Setadc, Setadcxx, Setc16, Stallwait, Unpacr,
    Wrcfg, Zeroacc, block,
};
use hal_tenstorrent_loader::tensix::{Bits, Chip as Kind, Conditions};
use support::{assert_violation, get, load, put, release, stay, store};

const TILE: Tile = Tile { x: 1, y: 2 };
/// Where core B pushes to the first thread.
const PUSH: u32 = 0xffe4_0000;
/// The first word of the configuration.
const CONFIG: u32 = 0xffef_0000;

/// Runs the cases of a file.
fn check(file: &[u8]) {
    let mut last = None;
    for (number, case) in cases(file).iter().enumerate() {
        let chip = last.take().filter(|_| !case.is_first).unwrap_or_else(|| case.chip());
        assert_eq!(case.check(&chip), Ok(()), "case {number}");
        last = Some(chip);
    }
}

#[test]
fn products_are_the_vendors_to_the_bit() {
    check(include_bytes!("golden/products.bin"));
}

#[test]
fn products_of_wormhole_are_the_vendors_to_the_bit() {
    check(include_bytes!("golden/wormhole.bin"));
}

#[test]
fn random_instructions_leave_what_the_vendors_do() {
    check(include_bytes!("golden/programs.bin"));
}

#[test]
fn threads_with_semaphores_and_expanders_end_as_the_vendors_do() {
    check(include_bytes!("golden/threads.bin"));
}

fn chip() -> Chip {
    Chip::new(Board::new(Model::P150))
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
        (Mvmul::default().encode(Kind::Blackhole) | 1 << 20, "this is no instruction"),
        (unpacr.encode(), "UNPACR's MultiContextMode = 0: only settings of a context are modelled"),
        (
            Pacr { flush: Bits::MAX, ..Pacr::default() }.encode(Kind::Blackhole),
            "PACR's Flush = 1 is not modelled",
        ),
        (Setadc { new_value: Bits::MAX, ..Setadc::default() }.encode(), "SETADC's ThreadOverride = 3"),
    ] {
        let chip = chip();
        run(&chip, &[(PUSH, word)]);
        assert_violation(&chip, reason);
    }
}

#[test]
fn lost_counts_and_rows_are_refused() {
    let semaphore_mask = Bits::new(1);
    let init = |value, max| {
        Seminit { semaphore_mask, new_value: Bits::new(value), new_max: Bits::new(max) }.encode()
    };
    let (post, get) = (Sempost { semaphore_mask }.encode(), Semget { semaphore_mask }.encode());
    let offset = |rows| Setc16 { cfg_index: Bits::new(1), new_value: Bits::new(rows) }.encode();
    let clear = Zeroacc { imm10: Bits::new(1023), ..Zeroacc::default() }.encode(Kind::Blackhole);
    let pack = Pacr { read_intf_sel: Bits::new(2), ..Pacr::default() }.encode(Kind::Blackhole);
    for (good, bad, reason) in [
        (init(1, 1), init(2, 1), "SEMINIT's NewValue = 2: it is not above NewMax"),
        (init(0, 1), post, "SEMPOST's semaphore = 1: it is below its maximum"),
        (init(1, 1), get, "SEMGET's semaphore = 0: it is above zero"),
        (offset(0), clear, "ZEROACC's row = 1024: Dst has 1024 rows"),
        (init(0, 1), pack, "PACR's ReadIntfSel = 2 is not modelled"),
    ] {
        let again = if bad == clear { offset(1) } else { bad };
        let chip = chip();
        run(&chip, &[(PUSH, good), (PUSH, again), (PUSH, bad)]);
        assert_violation(&chip, reason);
    }
}

#[test]
fn configuration_without_a_function_is_refused() {
    let chip = chip();
    run(&chip, &[(CONFIG + 4 * 19, 1 << 8)]);
    assert_violation(&chip, "tile (1, 2): word 19 of the configuration has bits 0x100 set");
}

/// Lets core B of a tile of a chip store words.
fn run_on(chip: &Chip, tile: Tile, stores: &[(u32, u32)]) -> Option<String> {
    let mut program = Assembler::new();
    stores.iter().for_each(|&(address, value)| store(&mut program, address, value));
    stay(&mut program);
    load(chip, tile, 0, program);
    release(chip, tile, Core::B);
    chip.step(1000);
    violation(chip)
}

/// Words that change what instructions do, or do something themselves, on both chips: what is not modelled of them is
/// refused.
#[test]
fn configuration_with_an_effect_that_is_not_modelled_is_refused() {
    let blackhole: [(u32, u32); 8] =
        [(0, 1 << 4), (0, 1 << 14), (6, 8), (17, 1), (74, 1), (101, 16), (220, 1), (220, 8)];
    let wormhole: [(u32, u32); 6] = [(0, 1 << 4), (6, 8), (13, 1), (62, 1), (89, 16), (75, 1)];
    let n150 = || Chip::new(Board::new(Model::N150));
    let there = Tile { x: 18, y: 18 };
    let of = |word: u32, value| (CONFIG + 4 * word, value);
    for (word, bits) in blackhole {
        let found = run_on(&chip(), TILE, &[of(word, bits)]).expect("a violation");
        let expected = format!("tile (1, 2): word {word} of the configuration has bits {bits:#x} set");
        assert!(found.contains(&expected), "{found}");
    }
    for (word, bits) in wormhole {
        let found = run_on(&n150(), there, &[of(word, bits)]).expect("a violation");
        let expected = format!("tile (18, 18): word {word} of the configuration has bits {bits:#x} set");
        assert!(found.contains(&expected), "{found}");
    }
    for (found, word) in [
        (run_on(&chip(), TILE, &[of(185, 0)]), 185),
        (run_on(&chip(), TILE, &[of(186, 0)]), 186),
        (run_on(&n150(), there, &[of(164, 0)]), 164),
    ] {
        let expected = format!("word {word} of the configuration does something when it is written");
        assert!(found.as_ref().is_some_and(|found| found.contains(&expected)), "{found:?}");
    }
    // A thread's own: the format of all products, and the unpackers' contexts.
    for (word, value) in [(55, 1), (41, 1 << 4), (70, 0)] {
        let set = Setc16 { cfg_index: Bits::new(word), new_value: Bits::new(value) }.encode();
        let found = run_on(&chip(), TILE, &[(PUSH, set)]).expect("a violation");
        assert!(
            found.contains(&format!("in thread 0 of the matrix engine of tile (1, 2): word {word}")),
            "{found}"
        );
    }
}

#[test]
fn soft_reset_of_the_engine_is_refused_and_one_of_nothing_is_not() {
    let held: u32 = Core::ALL.map(Core::reset_bit).iter().sum();
    let chip = chip();
    let write = |value: u32| chip.tile_write(TILE, SOFT_RESET, &value.to_le_bytes());
    assert_eq!(write(held | 1 << 31), Ok(()));
    let refused = write(held | 1 << 10).unwrap_err().to_string();
    assert_eq!(
        refused,
        "the soft reset of parts of the matrix engine of tile (1, 2) (bits 0x400) is not modelled"
    );
    let reset = u32::try_from(SOFT_RESET).unwrap();
    let found = run_on(&chip, TILE, &[(reset, 1 << 15)]).expect("a violation");
    assert!(found.contains("(bits 0x8000)"), "{found}");
}

/// Whatever is written to the word that resets a bank, also zero, sets its own words to zero, and no others.
#[test]
fn bank_of_the_configuration_is_reset() {
    for (chip, tile, (shared, resets)) in
        [(chip(), TILE, (180, 4)), (Chip::new(Board::new(Model::N150)), Tile { x: 18, y: 18 }, (152, 4))]
    {
        let mut program = Assembler::new();
        for (word, value) in [(1, 1 << 17), (shared, 8), (resets, 0)] {
            store(&mut program, CONFIG + 4 * word, value);
        }
        for (place, word) in [(0x7000, 1), (0x7004, shared)] {
            program.constant(Reg::T[0], CONFIG + 4 * word);
            program.emit(lw(Reg::T[1], 0, Reg::T[0]));
            program.constant(Reg::T[0], place);
            program.emit(sw(Reg::T[1], 0, Reg::T[0]));
        }
        stay(&mut program);
        load(&chip, tile, 0, program);
        put(&chip, tile, 0x7000, 7);
        release(&chip, tile, Core::B);
        chip.step(1000);
        assert_eq!(violation(&chip), None);
        assert_eq!((get(&chip, tile, 0x7000), get(&chip, tile, 0x7004)), (0, 8));
    }
}

/// What is refused once is refused from then on, whoever asks.
#[test]
fn broken_engine_executes_nothing() {
    let chip = chip();
    run(&chip, &[(PUSH, 0)]);
    put(&chip, TILE, SOFT_RESET, Core::ALL.map(Core::reset_bit).iter().sum());
    run(&chip, &[(PUSH, Stallwait::default().encode(Kind::Blackhole))]);
    assert_violation(&chip, "0x00000000 in thread 0");
}

#[test]
fn core_waits_for_room_and_ends_with_its_product() {
    // A product without operands waits for ever: the core pushes as much as the queue takes.
    let chip = chip();
    let mut words = vec![(PUSH, Mvmul::default().encode(Kind::Blackhole)); 40];
    words.push((0x7000, 1));
    run(&chip, &words);
    assert_eq!(chip.stopped(), []);
    assert_eq!((get(&chip, TILE, 0x7000), chip.counts().engine.total()), (0, 0));
    let instructions = chip.counts().instructions;
    chip.step(1000);
    assert_eq!(chip.counts().instructions, instructions);
}

#[test]
fn instructions_are_counted_by_unit() {
    let chip = chip();
    let set = Setadcxx { x1_val: Bits::new(15), counters: Bits::MAX, ..Setadcxx::default() }.encode();
    run(&chip, &[Nop {}.encode(), zeroacc(), set, zeroacc()].map(|word| (PUSH, word)));
    assert_eq!(chip.counts().engine, EngineCounts { matrix: 2, other: 2, ..EngineCounts::default() });
    assert_eq!(chip.counts().engine.total(), 4);
}

/// Stores and loads of a core, in order.
#[derive(Clone, Copy)]
enum Step {
    Store(u32, u32),
    Load(u32),
}
use Step::{Load, Store};

/// A push to the core's thread.
fn push(word: u32) -> Step {
    Store(PUSH, word)
}

/// Lets cores do steps.
fn run_steps(chip: &Chip, cores: &[(Core, &[Step])]) {
    let mut held: u32 = Core::ALL.map(Core::reset_bit).iter().sum();
    for (at, &(core, steps)) in (0..).zip(cores) {
        let mut program = Assembler::new();
        for &step in steps {
            match step {
                Store(address, value) => store(&mut program, address, value),
                Load(address) => {
                    program.constant(Reg::T[0], address);
                    program.emit(lw(Reg::T[1], 0, Reg::T[0]));
                }
            }
        }
        stay(&mut program);
        let start = if core == Core::B { 0 } else { 0x4000 * (at + 1) };
        load(chip, TILE, u64::from(start), program);
        if core != Core::B {
            put(chip, TILE, 0xffb1_2224 + 4 * core as u64, start);
        }
        held &= !core.reset_bit();
    }
    put(chip, TILE, 0xffb1_2234, 7);
    put(chip, TILE, SOFT_RESET, held);
    chip.step(2000);
}

/// What a core was stopped for, if any was.
fn violation(chip: &Chip) -> Option<String> {
    match &chip.stopped()[..] {
        [] => None,
        [Stopped { stop: CoreStop::Violation(_, violation), .. }, ..] => Some(violation.to_string()),
        other => panic!("{other:?}"),
    }
}

/// Checks that steps are refused for a reason, and that others are not.
fn refuses(reason: &str, wrong: &[(Core, &[Step])], right: &[(Core, &[Step])]) {
    let found = chip();
    run_steps(&found, wrong);
    let message = violation(&found).expect("a violation");
    assert!(message.contains(reason), "{message}");
    let found = chip();
    run_steps(&found, right);
    assert_eq!(violation(&found), None);
}

/// What a Blackhole tile waits for.
const WAITS: Conditions = Kind::Blackhole.conditions();
const DONE: u32 = 0xffe8_0004;
const MOP_WORDS: u32 = 0xffb8_0000;
/// The word with the edge's mask of columns, which the packer needs to be set.
const EDGE: u32 = CONFIG + 4 * 24;

fn stall(condition_mask: u32, block_mask: u32) -> u32 {
    Stallwait { condition_mask: Bits::new(condition_mask), block_mask: Bits::new(block_mask) }
        .encode(Kind::Blackhole)
}

/// What lets a packer read a row of Dst.
fn packs() -> Vec<Step> {
    let configuration = [(12, 4 | 64 << 16), (18, 1), (28, 16 << 8), (69, 0x5fff), (70, 0), (24, 0xffff)];
    let mut steps: Vec<Step> =
        configuration.into_iter().map(|(word, value)| Store(CONFIG + 4 * word, value)).collect();
    steps.push(Load(EDGE));
    let counters = Bits::new(4);
    steps.push(push(Setadcxx { x0_val: Bits::ZERO, x1_val: Bits::new(15), counters }.encode()));
    steps
}

fn zeroacc() -> u32 {
    Zeroacc { mode: Bits::new(3), ..Zeroacc::default() }.encode(Kind::Blackhole)
}

fn pacr() -> u32 {
    Pacr { last: Bits::MAX, ..Pacr::default() }.encode(Kind::Blackhole)
}

#[test]
fn rows_that_a_packer_may_read_are_not_written_before_its_end() {
    let steps = |between: Option<u32>| {
        let mut steps = packs();
        steps.push(push(pacr()));
        steps.extend(between.map(push));
        steps.push(push(zeroacc()));
        steps
    };
    let (none, packer, other) =
        (steps(None), steps(Some(stall(WAITS.pack, block::MATH))), steps(Some(stall(WAITS.pack, 2))));
    let reason = "the packer may still read these rows of Dst: STALLWAIT for it, with block bit B6";
    refuses(reason, &[(Core::T2, &none)], &[(Core::T2, &packer)]);
    // A wait that does not block the write does not help.
    refuses(reason, &[(Core::T2, &other)], &[(Core::T2, &packer)]);
}

#[test]
fn rows_of_another_thread_are_read_behind_its_semaphore() {
    let semaphore_mask = Bits::new(1);
    let post = Sempost { semaphore_mask }.encode();
    let wait =
        Semwait { condition_mask: Bits::new(1), semaphore_mask, block_mask: Bits::new(block::PACK) }.encode();
    let init = Seminit { semaphore_mask, new_value: Bits::ZERO, new_max: Bits::new(1) }.encode();
    let writes = [push(init), push(zeroacc()), push(post)];
    let mut reads = packs();
    reads.push(push(wait));
    reads.push(push(pacr()));
    let mut early = packs();
    early.push(push(pacr()));
    // Long enough for the other to have written.
    early.splice(0..0, std::iter::repeat_n(Store(0x8000, 0), 200));
    let reason = "another thread may not have written these rows of Dst yet: wait for a semaphore";
    refuses(reason, &[(Core::T1, &writes), (Core::T2, &early)], &[(Core::T1, &writes), (Core::T2, &reads)]);
}

#[test]
fn configuration_that_a_core_stores_is_loaded_back_before_a_push() {
    let reason = "it may overtake what the core stored to the configuration or to registers: load that back";
    let stored = Store(EDGE, 0xffff);
    let set = push(zeroacc());
    for core in [Core::B, Core::T1] {
        refuses(reason, &[(core, &[stored, set])], &[(core, &[stored, Load(EDGE), set])]);
    }
    // A thread's core can let its instructions wait; and hardware can do so by itself.
    let waits = push(stall(WAITS.core, block::MATH));
    let not_for_these = push(stall(WAITS.core, block::PACK));
    refuses(reason, &[(Core::T1, &[stored, not_for_these, set])], &[(Core::T1, &[stored, waits, set])]);
    let tracks = push(Setc16 { cfg_index: Bits::new(56), new_value: Bits::new(0x1f) }.encode());
    refuses(reason, &[(Core::T1, &[stored, set])], &[(Core::T1, &[tracks, stored, set])]);
}

#[test]
fn configuration_is_not_stored_while_instructions_may_read_it() {
    let stored = Store(EDGE, 0xffff);
    let set = push(zeroacc());
    let reason = "instructions that the core pushed before may read the old value, or the new";
    refuses(reason, &[(Core::T0, &[set, stored])], &[(Core::T0, &[set, Store(DONE, 0), Load(DONE), stored])]);
}

#[test]
fn expander_is_not_configured_while_it_may_expand() {
    let words = [Store(MOP_WORDS + 4, 0), Store(MOP_WORDS + 12, Nop {}.encode())];
    let [flags, nop] = words;
    let mop = push(Mop::default().encode());
    let reason = "the MOP expander may still use its configuration: wait for its end before";
    let right = [flags, nop, mop, Load(DONE + 4), nop];
    refuses(reason, &[(Core::T0, &[flags, nop, mop, nop])], &[(Core::T0, &right)]);
}

#[test]
fn word_is_not_read_directly_behind_its_write() {
    let write = push(Wrcfg { cfg_index: Bits::new(1), ..Wrcfg::default() }.encode());
    let nop = push(Nop {}.encode());
    let reason = "it reads a word that WRCFG wrote directly before: put a NOP in between";
    let set = push(zeroacc());
    refuses(reason, &[(Core::T1, &[write, set])], &[(Core::T1, &[write, nop, set])]);
}

#[test]
fn formats_are_not_changed_while_a_unit_may_read_them() {
    let write = push(Wrcfg { cfg_index: Bits::new(1), ..Wrcfg::default() }.encode());
    let set = push(zeroacc());
    let waits = push(stall(WAITS.math, block::CONFIG));
    let reason = "the matrix unit may still read the word: STALLWAIT for it, with block bit B7";
    refuses(reason, &[(Core::T1, &[set, write])], &[(Core::T1, &[set, waits, write])]);
}

/// Commands the network to bring memory of the tile to a bank, or a bank's to the tile, from the network's first
/// buffer.
fn transfer(address: u32, to_bank: bool) -> Vec<Step> {
    const BANK: u32 = 17 | 12 << 6;
    const HERE: u32 = 1 | 2 << 6;
    let local = [address, 0, HERE];
    let remote = [0, 0, BANK];
    let ([target, back], control) =
        if to_bank { ([local, remote], 2 | 1 << 4) } else { ([remote, local], 1 << 4) };
    let registers = target.into_iter().chain(back).chain([0, control, 64]);
    let offsets = [0x0, 0x4, 0x8, 0xc, 0x10, 0x14, 0x18, 0x1c, 0x20];
    let mut steps: Vec<Step> = offsets
        .into_iter()
        .zip(registers)
        .map(|(offset, value)| Store(0xffb2_0000 + offset, value))
        .collect();
    steps.push(Store(0xffb2_0040, 1));
    steps
}

#[test]
fn results_are_sent_behind_the_end_of_the_packer() {
    let reason =
        "a transfer of results that the packer may not have written yet: a core waits for its end before";
    let steps = |waits: &[Step], address| {
        let mut steps = packs();
        steps.push(push(pacr()));
        steps.extend(waits);
        steps.extend(transfer(address, true));
        steps
    };
    let waits = [Store(DONE, 0), Load(DONE)];
    let wrong = steps(&[], 0x6_0000);
    refuses(reason, &[(Core::T2, &wrong)], &[(Core::T2, &steps(&waits, 0x6_0000))]);
    // Other memory is not the packer's.
    refuses(reason, &[(Core::T2, &wrong)], &[(Core::T2, &steps(&[], 0x7_0000))]);
    let mut overwritten = packs();
    overwritten.push(push(pacr()));
    overwritten.extend(transfer(0x6_0000, false));
    refuses(reason, &[(Core::T2, &overwritten)], &[(Core::T2, &steps(&waits, 0x6_0000))]);
}
