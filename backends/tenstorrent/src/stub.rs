// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The code of ours that a tile's cores execute around an executable's functions, and where everything is in a tile's
//! memory.
//!
//! Core B brings pages from DRAM into the tile's memory by the tile's own network interface, keeps a copy of each,
//! lets the other cores go, and calls the function for its workgroups, as they do for theirs. Then it compares each
//! page with its copy and writes what has changed back, and nothing else: so tiles that work on the same pages, each
//! for workgroups of its own, do not undo each other's, nor what a transfer writes there meanwhile. Words are
//! compared; an executable that stores less than words says so, and its bytes are. At the end it writes a number that
//! the host waits for, and stays where it is.
//!
//! # Order
//!
//! A core's stores reach one kind of memory in order, but not two (`MemoryOrdering.md` of both chips): a store to the
//! tile's memory may be overtaken by one to a register of the network, and on Blackhole no fence prevents that. So the
//! word that begins a transfer goes through the tile's memory: it is stored there, and loaded back from there, behind
//! everything that the core has stored before, and what is loaded is stored to the register. For the same reason a
//! Wormhole core that has said where the others start stores a word beside that, and loads it back, before it releases
//! them. Between cores, the word by which one reports its end comes after what it has stored.
//!
//! A Blackhole core keeps some of what it reads of the tile's memory, while others change it. A fence
//! [discards](Generation::discard) that: where a core begins, behind each transfer, and in each poll of another core's
//! word. On Wormhole a fence has no effect, and there is none.
//!
//! Everything that changes from call to call is in memory, in two kinds of structures of words: [`common`], for all
//! cores, and [`core`](mod@core), for each.

use crate::generation::{Generation, Starts};
use hal_tenstorrent_loader::encode::{
    Assembler, Label, Reg, When, add, addi, andi, divu, jalr, lbu, lui, lw, remu, sub, sw,
};
use hal_tenstorrent_loader::paging::Bringers;

mod paging;
#[cfg(test)]
mod tests;

/// How many cores a tile has.
pub(crate) const CORES: usize = 5;

/// The address at which core B starts: a jump to the stub, and from there on the tile's own part of the table of pages,
/// which is zeros.
pub(crate) const START: u32 = 0;
/// The address of the words for all cores.
pub(crate) const COMMON: u32 = 0x2000;
/// The address of the words for the first core.
const CORE: u32 = 0x2100;
/// How far it is to the next core's.
const CORE_STRIDE: u32 = 0x40;
/// The address of the state of the first core's workgroup.
const WORKGROUP: u32 = 0x2300;
/// How far it is to the next core's.
const WORKGROUP_STRIDE: u32 = 0x20;
/// The address of IREE's environment: zeros.
pub(crate) const ENVIRONMENT: u32 = 0x2400;
/// The address of IREE's state of a dispatch, and of what it points to.
pub(crate) const STATE: u32 = 0x2500;
/// The address of an executable's image.
pub(crate) const IMAGE: u32 = 0x3000;
/// How much of it each core has for its stack.
pub(crate) const STACK: u32 = 32 << 10;

/// Words for all cores, as offsets from [`COMMON`].
pub(crate) mod common {
    /// The function to call.
    pub(crate) const FUNCTION: i32 = 0;
    /// Three arguments; of a function that has workgroups, the third is the core's own.
    pub(crate) const ARGUMENTS: i32 = 4;
    /// How many workgroups there are in x and y; zero if the function is called once.
    pub(crate) const COUNT_X: i32 = 16;
    pub(crate) const COUNT_Y: i32 = 20;
    /// The pages: where the list of them is, and how many there are.
    pub(crate) const LIST: i32 = 24;
    pub(crate) const LIST_LENGTH: i32 = 28;
    /// The coordinates of this tile on the network.
    pub(crate) const OWN: i32 = 32;
    /// How far it is from a page to the copy of it.
    pub(crate) const COPY: i32 = 36;
    /// Nonzero if bytes are compared, rather than words.
    pub(crate) const BYTES: i32 = 40;
    /// The value that releases the other cores, if there are any, for the register that holds them.
    pub(crate) const RELEASE: i32 = 44;
    /// How many other cores there are.
    pub(crate) const OTHERS: i32 = 48;
    /// The number to write at the end.
    pub(crate) const EPOCH: i32 = 52;
    /// The address to write it to.
    pub(crate) const DONE: i32 = 56;
    /// How many places for pages there are, each with one for its copy behind it, where not all pages are brought at
    /// once; none, otherwise.
    pub(crate) const PLACES: i32 = 60;
    /// The address of the first of them.
    pub(crate) const PLACES_AT: i32 = 64;
    /// The address of a word for each, which has the address of its page's entry in the table of pages.
    pub(crate) const HOLDERS: i32 = 68;
    /// Which of them has its turn.
    pub(crate) const HAND: i32 = 72;
    /// How far it is from an entry of the table of pages to where its page is in DRAM, two words as in the list.
    pub(crate) const ORIGIN: i32 = 76;
    /// Such an entry of the list as is made for a page that is written back.
    pub(crate) const SCRATCH: i32 = 80;
    /// The word that begins a transfer.
    pub(crate) const BEGIN: i32 = 96;
    /// How many words there are.
    pub(crate) const WORDS: usize = 25;
}

/// Words for one core, as offsets from its first.
pub(crate) mod core {
    /// The end of its stack.
    pub(crate) const STACK: i32 = 0;
    /// The number of its first workgroup, and of the first that is not its own.
    pub(crate) const FIRST: i32 = 4;
    pub(crate) const END: i32 = 8;
    /// The address of the state of its workgroup.
    pub(crate) const WORKGROUP: i32 = 12;
    /// The function's result: zero, unless something is wrong.
    pub(crate) const RESULT: i32 = 16;
    /// The word by which it reports that it is done.
    pub(crate) const DONE: i32 = 20;
}

/// The number of a core, or a length of the stub's code.
#[expect(clippy::cast_possible_truncation, reason = "both are small")]
fn number(small: usize) -> u32 {
    small as u32
}

/// The address of the words of a core.
pub(crate) fn core_block(core: usize) -> u32 {
    CORE + CORE_STRIDE * number(core)
}

/// The address of the state of a core's workgroup.
pub(crate) fn workgroup_state(core: usize) -> u32 {
    WORKGROUP + WORKGROUP_STRIDE * number(core)
}

/// The bit of each core in the register that holds them.
pub(crate) const RESET_BITS: [u32; CORES] = [1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 18];

const ZERO: Reg = Reg::ZERO;
const RA: Reg = Reg::RA;
const SP: Reg = Reg::SP;
const T: [Reg; 7] = Reg::T;
const A: [Reg; 8] = Reg::A;
/// The registers that a called function preserves.
pub(crate) const S: [Reg; 12] = [
    Reg::numbered(8),
    Reg::numbered(9),
    Reg::numbered(18),
    Reg::numbered(19),
    Reg::numbered(20),
    Reg::numbered(21),
    Reg::numbered(22),
    Reg::numbered(23),
    Reg::numbered(24),
    Reg::numbered(25),
    Reg::numbered(26),
    Reg::numbered(27),
];
/// The tile's interface to the network, and registers of a command buffer; the first is at its beginning.
pub(crate) const INTERFACE: u32 = 0xffb2_0000;
pub(crate) const TARGET: i32 = 0x00;
pub(crate) const RETURN: i32 = 0x0c;
pub(crate) const CONTROL: i32 = 0x1c;
pub(crate) const LENGTH: i32 = 0x20;
/// Its counters of writes that were acknowledged, and of reads that were answered.
pub(crate) const WRITES: i32 = 0x204;
pub(crate) const READS: i32 = 0x208;
/// A read that is answered, over virtual channel 1, and the bit that makes it a write.
pub(crate) const READ: u32 = 1 << 4 | 1 << 7 | 1 << 13;
pub(crate) const WRITE: i32 = 1 << 1;
const SOFT_RESET: u32 = 0xffb1_21b0;

/// The stub, and where each core starts in it.
pub(crate) struct Stub {
    /// Its code, from where the tile's own part of the table of pages ends.
    pub(crate) words: Vec<u32>,
    /// The address at which the first core starts, by way of [`START`]. It tells the others where to start.
    pub(crate) start: u32,
    /// The routines that bring pages.
    pub(crate) bringers: Bringers,
}

impl Stub {
    pub(crate) fn new(generation: &Generation) -> Self {
        let code = generation.code();
        let mut asm = Assembler::new();
        let routines = Routines {
            transfer: asm.label(),
            workgroups: asm.label(),
            write_back: asm.label(),
            write_run: asm.label(),
            evict: asm.label(),
        };
        let here = |asm: &Assembler| code + number(asm.length());
        let mut starts = [code; CORES];
        for (core, start) in starts.iter_mut().enumerate().skip(1) {
            *start = here(&asm);
            other_core(&mut asm, &routines, generation, core);
        }
        let start = here(&asm);
        first_core(&mut asm, &routines, generation, starts);
        transfer(&mut asm, routines.transfer, generation);
        workgroups(&mut asm, routines.workgroups);
        write_back(&mut asm, &routines);
        write_run(&mut asm, &routines);
        paging::evict(&mut asm, &routines);
        let load = here(&asm);
        paging::bring(&mut asm, &routines, false);
        let store = here(&asm);
        paging::bring(&mut asm, &routines, true);
        Self { words: asm.finish(), start, bringers: Bringers { load, store } }
    }
}

struct Routines {
    transfer: Label,
    evict: Label,
    workgroups: Label,
    write_back: Label,
    write_run: Label,
}

/// Discards what the core has read of the tile's memory before.
pub(crate) fn discard(asm: &mut Assembler, generation: &Generation) {
    generation.discard.into_iter().for_each(|fence| asm.emit(fence));
}

/// Loads what every core has in registers for good: the words for all, its own, and its stack.
fn enter(asm: &mut Assembler, generation: &Generation, core: usize) {
    discard(asm, generation);
    asm.constant(S[0], COMMON);
    asm.constant(S[3], core_block(core));
    asm.emit(lw(SP, core::STACK, S[3]));
}

/// Says that it is done, and stays.
fn finish(asm: &mut Assembler, offset: i32, base: Reg) {
    asm.emit_all([lw(T[0], common::EPOCH, S[0]), sw(T[0], offset, base)]);
    let here = asm.here();
    asm.jump(ZERO, here);
}

fn first_core(asm: &mut Assembler, routines: &Routines, generation: &Generation, others: [u32; CORES]) {
    enter(asm, generation, 0);
    let [stage, staged, alone, wait, next_other, all_done, next, places, end] =
        std::array::from_fn(|_| asm.label());
    // Each page, and a copy of it.
    asm.emit_all([lw(S[1], common::LIST, S[0]), lw(S[2], common::LIST_LENGTH, S[0])]);
    asm.bind(stage);
    asm.branch(When::Eq, S[2], ZERO, staged);
    asm.emit_all([lw(A[0], 0, S[1]), lw(A[1], 4, S[1]), lw(A[2], 8, S[1]), lw(A[3], 12, S[1])]);
    asm.emit(addi(A[4], ZERO, 0));
    asm.jump(RA, routines.transfer);
    asm.emit_all([lw(A[0], common::OWN, S[0]), lw(A[1], 8, S[1]), lw(T[0], common::COPY, S[0])]);
    asm.emit_all([add(A[2], A[1], T[0]), lw(A[3], 12, S[1]), addi(A[4], ZERO, 0)]);
    asm.jump(RA, routines.transfer);
    asm.emit_all([addi(S[1], S[1], 16), addi(S[2], S[2], -1)]);
    asm.jump(ZERO, stage);
    asm.bind(staged);
    // The other cores begin, and this one.
    asm.emit_all([lw(T[0], common::RELEASE, S[0]), lw(T[1], common::OTHERS, S[0])]);
    asm.branch(When::Eq, T[1], ZERO, alone);
    say_starts(asm, &generation.starts, others);
    asm.constant(T[1], SOFT_RESET);
    asm.emit(sw(T[0], 0, T[1]));
    asm.bind(alone);
    asm.jump(RA, routines.workgroups);
    // The others end.
    asm.emit_all([lw(S[1], common::OTHERS, S[0]), lw(S[2], common::EPOCH, S[0])]);
    asm.emit(addi(S[3], S[3], CORE_STRIDE.cast_signed()));
    asm.bind(next_other);
    asm.branch(When::Eq, S[1], ZERO, all_done);
    asm.bind(wait);
    discard(asm, generation);
    asm.emit(lw(T[0], core::DONE, S[3]));
    asm.branch(When::Ne, T[0], S[2], wait);
    asm.emit_all([addi(S[3], S[3], CORE_STRIDE.cast_signed()), addi(S[1], S[1], -1)]);
    asm.jump(ZERO, next_other);
    asm.bind(all_done);
    // Changed bytes go back.
    asm.emit_all([lw(S[1], common::LIST, S[0]), lw(S[2], common::LIST_LENGTH, S[0])]);
    asm.emit(lw(S[8], common::COPY, S[0]));
    asm.bind(next);
    asm.branch(When::Eq, S[2], ZERO, places);
    asm.jump(RA, routines.write_back);
    asm.emit_all([addi(S[1], S[1], 16), addi(S[2], S[2], -1)]);
    asm.jump(ZERO, next);
    // And of the pages that were brought one by one.
    asm.bind(places);
    asm.emit(lw(T[0], common::PLACES, S[0]));
    asm.branch(When::Eq, T[0], ZERO, end);
    asm.emit_all([addi(T[0], T[0], -1), sw(T[0], common::PLACES, S[0]), sw(T[0], common::HAND, S[0])]);
    asm.jump(RA, routines.evict);
    asm.jump(ZERO, places);
    asm.bind(end);
    finish(asm, common::DONE, S[0]);
}

/// Says where the other cores start, before what lets them go.
fn say_starts(asm: &mut Assembler, starts: &Starts, [_, t0, t1, t2, nc]: [u32; CORES]) {
    let words = [
        (starts.t, t0),
        (starts.t + 4, t1),
        (starts.t + 8, t2),
        (starts.t_enable, 7),
        (starts.nc, nc),
        (starts.nc_enable, 1),
    ];
    for (address, value) in words {
        asm.constant(T[1], address);
        asm.constant(T[2], value);
        asm.emit(sw(T[2], 0, T[1]));
    }
    // The word keeps its value. It is loaded back behind all of these, and used.
    if let Some(beside) = starts.beside {
        asm.constant(T[1], beside);
        asm.emit_all([lw(T[2], 0, T[1]), sw(T[2], 0, T[1]), lw(T[2], 0, T[1]), addi(T[2], T[2], 0)]);
    }
}

fn other_core(asm: &mut Assembler, routines: &Routines, generation: &Generation, core: usize) {
    enter(asm, generation, core);
    asm.jump(RA, routines.workgroups);
    finish(asm, core::DONE, S[3]);
}

/// Has the network bring A3 bytes from A1 of the tile at A0 to A2 of this one, or the other way if A4 is not zero,
/// and waits for it.
fn transfer(asm: &mut Assembler, label: Label, generation: &Generation) {
    let network = &generation.network;
    let [write, go, busy, wait] = std::array::from_fn(|_| asm.label());
    asm.bind(label);
    asm.emit(lui(T[0], INTERFACE));
    asm.bind(busy);
    asm.emit(lw(T[1], network.command, T[0]));
    asm.branch(When::Ne, T[1], ZERO, busy);
    asm.emit(lw(T[2], common::OWN, S[0]));
    asm.constant(T[3], READ);
    asm.branch(When::Ne, A[4], ZERO, write);
    let address = |asm: &mut Assembler, (offset, here, tile): (i32, Reg, Reg)| {
        asm.emit(sw(here, offset, T[0]));
        // The upper half of an address, where coordinates are not there.
        for middle in (4..network.coordinates).step_by(4) {
            asm.emit(sw(ZERO, offset + middle, T[0]));
        }
        asm.emit(sw(tile, offset + network.coordinates, T[0]));
    };
    for place in [(TARGET, A[1], A[0]), (RETURN, A[2], T[2])] {
        address(asm, place);
    }
    asm.emit(addi(T[4], T[0], READS));
    asm.jump(ZERO, go);
    asm.bind(write);
    for place in [(TARGET, A[2], T[2]), (RETURN, A[1], A[0])] {
        address(asm, place);
    }
    asm.emit_all([addi(T[3], T[3], WRITE), addi(T[4], T[0], WRITES)]);
    asm.bind(go);
    asm.emit_all([sw(T[3], CONTROL, T[0]), sw(A[3], LENGTH, T[0]), lw(T[5], 0, T[4])]);
    asm.emit_all([addi(T[5], T[5], 1), addi(T[6], ZERO, 1)]);
    // Behind everything that was stored before.
    asm.emit_all([sw(T[6], common::BEGIN, S[0]), lw(T[6], common::BEGIN, S[0])]);
    asm.emit(sw(T[6], network.command, T[0]));
    asm.bind(wait);
    asm.emit(lw(T[6], 0, T[4]));
    asm.branch(When::Ne, T[6], T[5], wait);
    discard(asm, generation);
    asm.emit(jalr(ZERO, RA, 0));
}

/// Calls the function for each of this core's workgroups, until one is not well; or once, where there are no
/// workgroups.
fn workgroups(asm: &mut Assembler, label: Label) {
    let [next, fail, end] = std::array::from_fn(|_| asm.label());
    asm.bind(label);
    asm.emit_all([addi(S[7], RA, 0), lw(S[4], core::FIRST, S[3]), lw(S[5], core::END, S[3])]);
    asm.emit_all([lw(S[6], core::WORKGROUP, S[3]), lw(T[0], common::COUNT_X, S[0])]);
    asm.branch(When::Ne, T[0], ZERO, next);
    asm.emit_all([
        lw(A[0], common::ARGUMENTS, S[0]),
        lw(A[1], common::ARGUMENTS + 4, S[0]),
        lw(A[2], common::ARGUMENTS + 8, S[0]),
        lw(T[0], common::FUNCTION, S[0]),
        jalr(RA, T[0], 0),
    ]);
    asm.jump(ZERO, fail);
    asm.bind(next);
    asm.branch(When::Geu, S[4], S[5], end);
    asm.emit_all([
        lw(T[0], common::COUNT_X, S[0]),
        remu(T[1], S[4], T[0]),
        divu(T[2], S[4], T[0]),
        lw(T[3], common::COUNT_Y, S[0]),
        remu(T[4], T[2], T[3]),
        divu(T[5], T[2], T[3]),
        // The third number has sixteen bits, and what comes behind it is zero.
        sw(T[1], 0, S[6]),
        sw(T[4], 4, S[6]),
        sw(T[5], 8, S[6]),
    ]);
    asm.emit_all([
        lw(A[0], common::ARGUMENTS, S[0]),
        lw(A[1], common::ARGUMENTS + 4, S[0]),
        addi(A[2], S[6], 0),
        lw(T[0], common::FUNCTION, S[0]),
        jalr(RA, T[0], 0),
    ]);
    asm.branch(When::Ne, A[0], ZERO, fail);
    asm.emit(addi(S[4], S[4], 1));
    asm.jump(ZERO, next);
    asm.bind(fail);
    asm.emit(sw(A[0], core::RESULT, S[3]));
    asm.bind(end);
    asm.emit(jalr(ZERO, S[7], 0));
}

/// Writes what has changed of the page whose entry is at S1 back. S8 is how far it is to the copy.
fn write_back(asm: &mut Assembler, routines: &Routines) {
    let [words, differ, run, emit, bytes, byte_differs, byte_run, byte_emit, end] =
        std::array::from_fn(|_| asm.label());
    asm.bind(routines.write_back);
    asm.emit_all([
        addi(S[10], RA, 0),
        lw(S[7], 0, S[1]),
        lw(T[0], 4, S[1]),
        lw(S[4], 8, S[1]),
        lw(T[1], 12, S[1]),
        add(S[5], S[4], T[1]),
        sub(S[6], T[0], S[4]),
        lw(S[11], common::BYTES, S[0]),
    ]);
    let compare = |asm: &mut Assembler, load: fn(Reg, i32, Reg) -> u32| {
        asm.emit_all([load(T[0], 0, S[4]), add(T[2], S[4], S[8]), load(T[1], 0, T[2])]);
    };
    asm.bind(words);
    asm.branch(When::Geu, S[4], S[5], end);
    compare(asm, lw);
    asm.branch(When::Ne, T[0], T[1], differ);
    asm.emit(addi(S[4], S[4], 4));
    asm.jump(ZERO, words);
    asm.bind(differ);
    asm.branch(When::Ne, S[11], ZERO, bytes);
    asm.emit(addi(S[9], S[4], 0));
    asm.bind(run);
    asm.emit(addi(S[4], S[4], 4));
    asm.branch(When::Geu, S[4], S[5], emit);
    compare(asm, lw);
    asm.branch(When::Ne, T[0], T[1], run);
    asm.bind(emit);
    asm.jump(RA, routines.write_run);
    asm.jump(ZERO, words);
    // Byte by byte up to the end of a word that has no more to do with it.
    asm.bind(bytes);
    compare(asm, lbu);
    asm.branch(When::Ne, T[0], T[1], byte_differs);
    asm.emit_all([addi(S[4], S[4], 1), andi(T[0], S[4], 3)]);
    asm.branch(When::Ne, T[0], ZERO, bytes);
    asm.jump(ZERO, words);
    asm.bind(byte_differs);
    asm.emit(addi(S[9], S[4], 0));
    asm.bind(byte_run);
    asm.emit(addi(S[4], S[4], 1));
    asm.branch(When::Geu, S[4], S[5], byte_emit);
    compare(asm, lbu);
    asm.branch(When::Ne, T[0], T[1], byte_run);
    asm.bind(byte_emit);
    asm.jump(RA, routines.write_run);
    asm.emit(andi(T[0], S[4], 3));
    asm.branch(When::Ne, T[0], ZERO, bytes);
    asm.jump(ZERO, words);
    asm.bind(end);
    asm.emit(jalr(ZERO, S[10], 0));
}

/// Writes the bytes from S9 up to S4 back: to the tile at S7, S6 further than they are here.
fn write_run(asm: &mut Assembler, routines: &Routines) {
    asm.bind(routines.write_run);
    asm.emit_all([
        addi(A[0], S[7], 0),
        add(A[1], S[9], S[6]),
        addi(A[2], S[9], 0),
        sub(A[3], S[4], S[9]),
        addi(A[4], ZERO, 1),
    ]);
    asm.jump(ZERO, routines.transfer);
}
