// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What a product's threads tell the engine of a Blackhole tile: its configuration, and its instructions.
//!
//! # Where numbers are
//!
//! Operands are in the tile's memory row by row, as in DRAM. An `UNPACR` moves 16 numbers of a row to a row of `SrcA`
//! or `SrcB`, so 64 of them move a square of 32 by 32: its left half to rows 0 to 31, its right half behind that. That
//! needs no element to be moved by a core, no alignment of rows but to an element, and no more of the engine than is
//! documented. The left operand is in `SrcB`, and the right one in `SrcA` (`MVMUL.md`).
//!
//! `Dst` has the results of a [group](super::division::GROUP) in one half, square after square, the columns 0 to 15 of
//! a square before the others. One `PACR` reads 16 numbers; eight in a row, each 32 rows of `Dst` behind the other, are
//! a row of the group's results, and go to memory one behind the other.
//!
//! # Order
//!
//! The unpackers give a bank of `SrcA` or `SrcB` to the matrix unit with the last `UNPACR` of a square, and that gives
//! it back with the last `MVMUL` that reads it (`SrcASrcB.md`): both wait for each other in hardware. What else there
//! is to wait for, the threads say:
//!
//! - A half of `Dst` is computed: [`RESULTS`] counts it. `STALLWAIT` until `MVMUL`s have ended, then `SEMPOST`; the
//!   packer's thread has `SEMWAIT` while it is zero.
//! - A half of `Dst` is packed: `STALLWAIT` until `PACR`s have ended, then `SEMGET`; the matrix unit's thread has
//!   `SEMWAIT` while it is two.
//! - A core has stored configuration: `STALLWAIT` on the core's requests before the first instruction that uses it
//!   (`BackendConfiguration.md`). All of it is stored before, and never again.
//! - Unpackers have read a chunk, or packers have written results: the core loads from `CoprocessorDoneCheck`
//!   (`TTSync.md`).
//!
//! - The engine is not in the middle of a product whose cores were held: [`BUSY_VALUE`] says so, which all cores wait
//!   for.
//!
//! Every wait also blocks the synchronisation unit, or the next would take its place (`SEMWAIT.md`).

use super::Kind;
use super::division::{GROUP, SIDE};
use hal_tenstorrent_loader::tensix::Bits;
use hal_tenstorrent_loader::tensix::blackhole::*;
use hal_tenstorrent_loader::tensix::instructions::{block, counters};
use hal_tenstorrent_loader::tensix::registers::{BASE, Field, ThreadField, blackhole as registers};
use std::collections::BTreeMap;

/// Where a thread's core stores an instruction, and the words of its `MopCfg`.
pub(super) const INSTRUCTIONS: u32 = 0xffe4_0000;
pub(super) const MOP_CONFIG: u32 = 0xffb8_0000;
/// A load from here waits for the end of all instructions of the thread (`TTSync.md`).
pub(super) const DONE_CHECK: u32 = 0xffe8_0004;

/// The bit of the semaphore that counts the halves of `Dst` which are computed and not packed.
const RESULTS: Bits<8> = Bits::new(1 << 0);
/// That of the semaphore which is one while there is a product: only a reset of the chip ends that of one whose cores
/// were held. Where cores load its value from (`SyncUnit.md`).
const BUSY: Bits<8> = Bits::new(1 << 7);
pub(super) const BUSY_VALUE: u32 = 0xffe8_0020 + 4 * 7;
/// Conditions of `SEMWAIT`: while it is zero, and while it is at its maximum.
const WHILE_ZERO: Bits<2> = Bits::new(1);
const WHILE_FULL: Bits<2> = Bits::new(2);

/// How many numbers one instruction moves.
pub(super) const ROW: u32 = 16;
/// How many rows of `Dst` a half of it has, as floats of 32 bits.
const HALF: u32 = 256;
const ONE: Bits<1> = Bits::MAX;
const NOTHING: u32 = Nop {}.encode();

/// The unpackers by their number: 0 has the right operand, 1 the left one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    Right,
    Left,
}

impl Operand {
    const fn unpacker(self) -> Bits<1> {
        match self {
            Self::Right => Bits::ZERO,
            Self::Left => ONE,
        }
    }

    const fn counters(self) -> Bits<3> {
        match self {
            Self::Right => counters::UNPACKER_0,
            Self::Left => counters::UNPACKER_1,
        }
    }

    /// Moves 16 numbers, and goes on to the next row of both; the last gives the bank to the matrix unit.
    pub(super) const fn unpack(self, last: bool) -> u32 {
        let flip_src = if last { ONE } else { Bits::ZERO };
        let unpack = Unpacr {
            last: ONE,
            flip_src,
            multi_context_mode: ONE,
            context_adc: Bits::ZERO,
            ch0_y_inc: Bits::new(1),
            ch1_z_inc: Bits::new(1),
            which_unpacker: self.unpacker(),
            row_search: Bits::ZERO,
            use_context_counter: Bits::ZERO,
            all_datums_are_zero: Bits::ZERO,
            context_number: Bits::ZERO,
            ch0_z_inc: Bits::ZERO,
            ch1_y_inc: Bits::ZERO,
        };
        unpack.encode()
    }

    /// Clears a bank, once that is the unpacker's.
    pub(super) const fn clear(self) -> u32 {
        let clear = UnpacrNop {
            unpack_pop: Bits::new(1),
            stall_clr_cntrl: ONE,
            unpacker_select: self.unpacker(),
            src_clr_val_ctrl: Bits::ZERO,
            bank_clr_ctrl: Bits::ZERO,
            clr_to1_fmt_ctrl: Bits::ZERO,
            set_dvalid: Bits::ZERO,
            msg_clr_cnt: Bits::ZERO,
            stream_id: Bits::ZERO,
        };
        clear.encode()
    }

    /// The instruction that chooses so many columns from the first on. Each column further adds [`COLUMN`] to it.
    pub(super) const fn columns(self, count: u32) -> u32 {
        Setadcxx { x0_val: Bits::ZERO, x1_val: Bits::new(count - 1), counters: self.counters() }.encode()
    }

    /// The instruction that chooses the first row in memory. Each row further adds one to it.
    pub(super) const fn row(self) -> u32 {
        let y = Bits::new(1);
        Setadc { new_value: Bits::ZERO, xyzw: y, channel: Bits::ZERO, counters: self.counters() }.encode()
    }

    /// The instruction that chooses a row of `SrcA` or `SrcB`.
    pub(super) const fn target(self, row: u32) -> u32 {
        let z = Bits::new(2);
        Setadc { new_value: Bits::new(row), xyzw: z, channel: ONE, counters: self.counters() }.encode()
    }

    /// The upper half of the mask by which [`rows`](Self::rows) finds this operand.
    pub(super) const fn choose(self) -> u32 {
        let mask_hi = match self {
            Self::Right => Bits::ZERO,
            Self::Left => Bits::MAX,
        };
        MopCfg { mask_hi }.encode()
    }

    /// Unpacks as many rows, but not the last of a square.
    pub(super) const fn rows(self, count: u32) -> u32 {
        let mask_lo = match self {
            Self::Right => Bits::ZERO,
            Self::Left => Bits::MAX,
        };
        Mop { template: Bits::ZERO, count1: Bits::new(count - 1), mask_lo }.encode()
    }
}

/// What a column further adds to the word of [`Operand::columns`]: one to where it begins, and one to where it ends.
pub(super) const COLUMN: u32 = 1 << 10 | 1;

/// `MopCfg` of the unpackers' thread: template 0 has an instruction for each value of a bit of its mask.
pub(super) fn unpack_loop() -> [u32; 9] {
    let (right, left) = (Operand::Right.unpack(false), Operand::Left.unpack(false));
    [0, 0, NOTHING, right, NOTHING, NOTHING, NOTHING, left, NOTHING]
}

/// The words of configuration, collected by their fields.
#[derive(Default)]
struct Words(BTreeMap<u32, u32>);

impl Words {
    fn set<const WIDTH: u32>(&mut self, field: Field<WIDTH>, value: Bits<WIDTH>) -> &mut Self {
        *self.0.entry(field.word).or_default() |= field.place(value);
        self
    }

    /// Their addresses and values.
    fn finish(self) -> Vec<(u32, u32)> {
        self.0.into_iter().map(|(word, value)| (BASE + 4 * word, value)).collect()
    }
}

/// The instructions that set a thread's own configuration.
#[derive(Default)]
struct ThreadWords(BTreeMap<u32, u32>);

impl ThreadWords {
    fn set<const WIDTH: u32>(&mut self, field: ThreadField<WIDTH>, value: u32) -> &mut Self {
        *self.0.entry(field.word).or_default() |= field.place(Bits::new(value));
        self
    }

    fn finish(self) -> impl Iterator<Item = u32> {
        self.0
            .into_iter()
            .map(|(word, value)| Setc16 { cfg_index: Bits::new(word), new_value: Bits::new(value) }.encode())
    }
}

/// An address as the engine's configuration has it: in steps of 16 bytes, minus one.
const fn steps(address: u32) -> Bits<32> {
    Bits::new(address / 16 - 1)
}

/// A place in memory with rows of numbers: its address, and how far it is from row to row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub(super) at: u32,
    pub(super) pitch: u32,
}

/// The configuration of the unpackers.
pub(super) fn unpack_config(kind: Kind, left: Rows, right: Rows) -> Vec<(u32, u32)> {
    let (from, to) = (kind.operand_format(), kind.source_format());
    let numbers = |rows: Rows| rows.pitch / kind.operand_bytes();
    // How far it is from row to row of `SrcA` and `SrcB`, as a thread's counter Z counts them.
    let row = Bits::new(ROW * kind.source_bytes());
    let mut words = Words::default();
    // What a descriptor has beside its format: that it is not compressed, its size in x, and one y and one z.
    let descriptor = |rows: Rows| Bits::new(from.get() | 1 << 4 | numbers(rows) << 16);
    let second = |descriptor: Field<32>| Field { word: descriptor.word + 1, ..descriptor };
    for (field, rows) in [
        (registers::THCON_SEC0_REG0_TILE_DESCRIPTOR, right),
        (registers::THCON_SEC1_REG0_TILE_DESCRIPTOR, left),
    ] {
        words.set(field, descriptor(rows)).set(second(field), Bits::new(1 | 1 << 16));
    }
    words
        .set(registers::THCON_SEC0_REG2_OUT_DATA_FORMAT, to)
        .set(registers::THCON_SEC1_REG2_OUT_DATA_FORMAT, to)
        .set(registers::THCON_SEC0_REG2_DISABLE_ZERO_COMPRESS_CNTX0, ONE)
        .set(registers::THCON_SEC1_REG2_DISABLE_ZERO_COMPRESS_CNTX0, ONE)
        .set(registers::THCON_SEC0_REG3_BASE_ADDRESS, steps(right.at))
        .set(registers::THCON_SEC1_REG3_BASE_ADDRESS, steps(left.at))
        .set(registers::THCON_SEC0_REG5_TILE_X_DIM_CNTX0, Bits::new(numbers(right)))
        // The first four rows of `SrcA` are not counted. The counters are added to them.
        .set(registers::THCON_SEC0_REG5_DEST_CNTX0_ADDRESS, Bits::new(4 * ROW))
        .set(registers::UNP0_ADD_DEST_ADDR_CNTR_ADD_DEST_ADDR_CNTR, ONE)
        .set(registers::THCON_SEC0_REG7_OFFSET_ADDRESS, Bits::ZERO)
        .set(registers::UNP0_ADDR_CTRL_ZW_REG_1_ZSTRIDE, row)
        .set(registers::UNP1_ADDR_CTRL_ZW_REG_1_ZSTRIDE, row);
    words.finish()
}

/// What the unpackers' thread begins with, behind its configuration.
pub(super) fn unpack_start() -> Vec<u32> {
    let mut own = ThreadWords::default();
    own.set(registers::CFG_STATE_ID_STATE_ID, 0)
        .set(registers::SRCA_SET_SET_OVRD_WITH_ADDR, 1)
        .set(registers::UNPACK_MISC_CFG_CFG_CONTEXT_OFFSET_0, 0)
        .set(registers::UNPACK_MISC_CFG_CFG_CONTEXT_OFFSET_1, 0);
    let both = Bits::new(counters::UNPACKER_0.get() | counters::UNPACKER_1.get());
    let core = condition::CORE;
    own.finish().chain(zero_counters(both)).chain([stall(block::UNPACK | block::SYNC, core)]).collect()
}

fn zero_counters(counters: Bits<3>) -> [u32; 2] {
    let [x0, y0, x1, y1] = [ONE; 4];
    let xy = Setadcxy { x0, y0, x1, y1, counters, ..Setadcxy::default() };
    let zw = Setadczw { z0: ONE, w0: ONE, z1: ONE, w1: ONE, counters, ..Setadczw::default() };
    [xy.encode(), zw.encode()]
}

fn stall(blocked: u32, condition: u32) -> u32 {
    Stallwait { condition_mask: Bits::new(condition), block_mask: Bits::new(blocked) }.encode()
}

fn wait(blocked: u32, condition_mask: Bits<2>) -> u32 {
    Semwait { condition_mask, semaphore_mask: RESULTS, block_mask: Bits::new(blocked) }.encode()
}

/// The configuration of the matrix unit.
pub(super) fn math_config(kind: Kind) -> Vec<(u32, u32)> {
    let mut words = Words::default();
    words
        .set(registers::ALU_FORMAT_SPEC_REG0_SRC_A, kind.source_format())
        .set(registers::ALU_FORMAT_SPEC_REG1_SRC_B, kind.source_format())
        .set(registers::ALU_FORMAT_SPEC_REG2_DSTACC, kind.result_format())
        .set(registers::ALU_ACC_CTRL_FP32_ENABLED, ONE)
        // What another program may have left: results below zero, and operands that are denormal.
        .set(registers::STACC_RELU_APPLY_RELU, Bits::ZERO)
        .set(registers::ALU_ACC_CTRL_ZERO_FLAG_DISABLED_SRC, Bits::ZERO)
        .set(registers::ALU_ACC_CTRL_ZERO_FLAG_DISABLED_DST, Bits::ZERO);
    words.finish()
}

/// How the matrix unit's counters go on behind an `MVMUL`: always to the next eight rows of the left operand.
struct MathMode {
    /// How many rows of the right operand further.
    right: u32,
    /// How many rows of `Dst` further, of which ten bits count.
    dst: u32,
    /// To the next phase.
    phase: u32,
    /// To the first phase.
    first_phase: u32,
}

/// The modes, in this order: to the next eight rows of the left operand and of `Dst`; ...
const NEXT: u32 = 0;
/// to the right half of the left operand's columns, the rows of the right operand below, and back in `Dst`;
const NEXT_COLUMNS: u32 = 1;
/// to the right half of the right operand's columns, from the left operand's first rows on;
const NEXT_HALF: u32 = 2;
/// to where the square began, with other bits of both operands;
const NEXT_PHASE: u32 = 3;
/// to the next square.
const NEXT_SQUARE: u32 = 4;

fn math_modes() -> [MathMode; 5] {
    let back = |rows: u32| (1 << 10) - rows;
    [
        MathMode { right: 0, dst: 8, phase: 0, first_phase: 0 },
        MathMode { right: 16, dst: back(24), phase: 0, first_phase: 0 },
        MathMode { right: 16, dst: 8, phase: 0, first_phase: 0 },
        MathMode { right: 16, dst: back(56), phase: 1, first_phase: 0 },
        MathMode { right: 16, dst: 8, phase: 0, first_phase: 1 },
    ]
}

/// A field of a mode.
#[expect(clippy::indexing_slicing, reason = "there are as many modes as the chip has")]
fn section<const WIDTH: u32, const MODES: usize>(
    fields: &[ThreadField<WIDTH>; MODES],
    mode: usize,
) -> ThreadField<WIDTH> {
    fields[mode]
}

/// What the matrix unit's thread begins with, behind its configuration.
pub(super) fn math_start() -> Vec<u32> {
    let mut own = ThreadWords::default();
    own.set(registers::CFG_STATE_ID_STATE_ID, 0)
        .set(registers::CLR_DVALID_SRC_A_DISABLE, 0)
        .set(registers::CLR_DVALID_SRC_B_DISABLE, 0);
    for (mode, fields) in (0..).zip(math_modes()) {
        let MathMode { right, dst, phase, first_phase } = fields;
        own.set(section(&registers::ADDR_MOD_AB_SRC_A_INCR, mode), right)
            .set(section(&registers::ADDR_MOD_AB_SRC_B_INCR, mode), 8)
            .set(section(&registers::ADDR_MOD_DST_DEST_INCR, mode), dst)
            .set(section(&registers::ADDR_MOD_DST_FIDELITY_INCR, mode), phase)
            .set(section(&registers::ADDR_MOD_DST_FIDELITY_CLEAR, mode), first_phase)
            .set(section(&registers::ADDR_MOD_BIAS_BIAS_INCR, mode), 0);
    }
    let keep = Replay { load: ONE, exec: Bits::ZERO, count: Bits::new(2 * PASS), index: Bits::ZERO };
    own.finish()
        .chain([stall(block::MATH | block::SYNC, condition::CORE), keep.encode()])
        .chain(pass(NEXT_PHASE, Bits::ZERO))
        .chain(pass(NEXT_SQUARE, ONE))
        .collect()
}

/// How many `MVMUL`s a square has in each phase.
const PASS: u32 = 16;

/// The product of two squares in one phase.
fn pass(last: u32, flip_src_a: Bits<1>) -> impl Iterator<Item = u32> {
    let modes = [NEXT, NEXT, NEXT, NEXT_COLUMNS, NEXT, NEXT, NEXT, NEXT_HALF];
    let modes = modes.into_iter().chain([NEXT, NEXT, NEXT, NEXT_COLUMNS, NEXT, NEXT, NEXT, last]);
    modes.zip(1..).map(move |(mode, number)| {
        let flip_src_a = if number == PASS { flip_src_a } else { Bits::ZERO };
        Mvmul { addr_mod: Bits::new(mode), flip_src_a, ..Mvmul::default() }.encode()
    })
}

/// `MopCfg` of the matrix unit's thread: the product of two squares in so many phases, of which the last gives the
/// right operand's bank back.
pub(super) fn math_loop(phases: u32) -> [u32; 9] {
    let replay = |index| Replay { count: Bits::new(PASS), index: Bits::new(index), ..Replay::default() };
    let (each, last) = (replay(0).encode(), replay(PASS).encode());
    [1, phases, NOTHING, NOTHING, NOTHING, each, NOTHING, last, last]
}

/// Expands [`math_loop`] or [`pack_loop`].
pub(super) const LOOP: u32 = Mop { template: ONE, count1: Bits::ZERO, mask_lo: Bits::ZERO }.encode();

/// Waits for a half of `Dst`, in the matrix unit's thread.
pub(super) fn math_wait() -> u32 {
    wait(block::MATH | block::SYNC, WHILE_FULL)
}

/// Chooses the first half of `Dst`; the second adds [`HALF_OFFSET`] to it.
pub(super) const MATH_TARGET: u32 = registers::DEST_TARGET_REG_CFG_MATH_OFFSET.set(Bits::ZERO).encode();
/// What the second half adds to the word: that many rows.
pub(super) const HALF_OFFSET: u32 = HALF;

/// Clears the first half of `Dst`; the second adds one to it.
pub(super) const CLEAR: u32 = Zeroacc {
    mode: Bits::new(2),
    use_dst32b: ONE,
    imm10: Bits::ZERO,
    addr_mod: Bits::ZERO,
    revert: Bits::ZERO,
}
.encode();

/// Sets all of the matrix unit's counters to zero, and gives a bank of the left operand back or not.
pub(super) fn math_counters(flip: bool) -> u32 {
    let flip_src_b = if flip { ONE } else { Bits::ZERO };
    Setrwc { src_a: ONE, src_b: ONE, dst: ONE, fidelity: ONE, flip_src_b, ..Setrwc::default() }.encode()
}

/// Reports a half of `Dst`, once it is computed. The thread's configuration has to wait as well.
pub(super) fn math_done() -> [u32; 2] {
    [
        stall(block::MATH | block::SYNC | block::CONFIG, condition::MATH),
        Sempost { semaphore_mask: RESULTS }.encode(),
    ]
}

/// Says that there is a product, and that no half of `Dst` is computed.
pub(super) fn begin() -> [u32; 2] {
    let one = Bits::new(1);
    [
        Seminit { semaphore_mask: BUSY, new_value: one, new_max: one }.encode(),
        Seminit { semaphore_mask: RESULTS, new_value: Bits::ZERO, new_max: Bits::new(2) }.encode(),
    ]
}

/// Says that there is none.
pub(super) fn end() -> u32 {
    Semget { semaphore_mask: BUSY }.encode()
}

/// The configuration of the packer, which writes rows of results.
pub(super) fn pack_config(kind: Kind, results: Rows) -> Vec<(u32, u32)> {
    // Rows of `Dst` have 16 numbers of the format that is read from it.
    let rows = |count: u32| Bits::new(count * ROW * kind.result_bytes());
    let mut words = Words::default();
    words
        .set(registers::THCON_SEC0_REG1_ROW_START_SECTION_SIZE, Bits::ZERO)
        .set(registers::THCON_SEC0_REG1_L1_DEST_ADDR, steps(results.at))
        .set(registers::THCON_SEC0_REG1_IN_DATA_FORMAT, kind.result_format())
        .set(registers::THCON_SEC0_REG1_OUT_DATA_FORMAT, kind.result_format())
        .set(registers::THCON_SEC0_REG1_DISABLE_ZERO_COMPRESS, ONE)
        .set(registers::THCON_SEC0_REG1_PACK_L1_ACC, Bits::ZERO)
        .set(registers::PCK_DEST_RD_CTRL_READ_32B_DATA, ONE)
        .set(registers::PACK_COUNTERS_SEC0_PACK_READS_PER_XY_PLANE, Bits::new(16))
        .set(registers::PCK_EDGE_OFFSET_SEC0_MASK, Bits::MAX)
        .set(registers::TILE_ROW_SET_MAPPING_0_ROW_SET_MAPPING_0, Bits::ZERO)
        .set(registers::DEST_TARGET_REG_CFG_PACK_SEC0_OFFSET, Bits::ZERO)
        .set(registers::PCK0_ADDR_CTRL_XY_REG_0_XSTRIDE, Bits::new(kind.result_bytes()))
        .set(registers::PCK0_ADDR_CTRL_XY_REG_0_YSTRIDE, rows(SIDE))
        .set(registers::PCK0_ADDR_CTRL_ZW_REG_0_ZSTRIDE, rows(1))
        .set(registers::PCK0_ADDR_CTRL_ZW_REG_0_WSTRIDE, rows(HALF))
        .set(registers::PCK0_ADDR_CTRL_XY_REG_1_YSTRIDE, Bits::new(results.pitch));
    words.finish()
}

/// What the packer's thread begins with, behind its configuration.
pub(super) fn pack_start() -> Vec<u32> {
    let mut own = ThreadWords::default();
    let [inside, at_the_end] = [0, 1];
    own.set(registers::CFG_STATE_ID_STATE_ID, 0)
        .set(section(&registers::ADDR_MOD_PACK_YSRC_INCR, inside), 1)
        .set(section(&registers::ADDR_MOD_PACK_YSRC_CLEAR, at_the_end), 1)
        .set(section(&registers::ADDR_MOD_PACK_ZSRC_INCR, at_the_end), 1)
        .set(section(&registers::ADDR_MOD_PACK_YDST_INCR, at_the_end), 1);
    let columns = Setadcxx { x0_val: Bits::ZERO, x1_val: Bits::new(ROW - 1), counters: counters::PACKERS };
    own.finish()
        .chain(zero_counters(counters::PACKERS))
        .chain([columns.encode(), stall(block::PACK | block::SYNC, condition::CORE)])
        .collect()
}

/// `MopCfg` of the packer's thread: 32 rows of a group's results.
pub(super) fn pack_loop() -> [u32; 9] {
    let one_interface = Bits::new(1);
    let pack = |mode, last| {
        Pacr { read_intf_sel: one_interface, addr_mod: Bits::new(mode), last, ..Pacr::default() }.encode()
    };
    let (inside, at_the_end) = (pack(0, Bits::ZERO), pack(1, ONE));
    [SIDE, GROUP * SIDE / ROW, NOTHING, NOTHING, NOTHING, inside, NOTHING, at_the_end, at_the_end]
}

/// Packs a half of `Dst`, once it is computed, to the first or second 32 rows in memory, and gives it back.
pub(super) fn pack(half: u32) -> [u32; 7] {
    let packers = counters::PACKERS;
    let from = Setadcxy { y0: ONE, counters: packers, ..Setadcxy::default() };
    let half_of_dst =
        Setadczw { z0: ONE, w0: ONE, w0_val: Bits::new(half), counters: packers, ..Setadczw::default() };
    let y = Bits::new(1);
    let to = Setadc { new_value: Bits::new(half * SIDE), xyzw: y, channel: ONE, counters: packers };
    [
        wait(block::PACK | block::SYNC, WHILE_ZERO),
        from.encode(),
        half_of_dst.encode(),
        to.encode(),
        LOOP,
        stall(block::PACK | block::SYNC, condition::PACK),
        Semget { semaphore_mask: RESULTS }.encode(),
    ]
}
