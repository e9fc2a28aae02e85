// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What a product's threads tell the engine of a tile: its configuration, and its instructions.
//!
//! Both kinds of chips get the same: where fields are, their [tables](Chip) say. One packer of Wormhole's four is used,
//! and no mode of an instruction beyond the fourth.
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
use hal_tenstorrent_loader::tensix::instructions::*;
use hal_tenstorrent_loader::tensix::registers::{BASE, Field, Registers, ThreadField};
use hal_tenstorrent_loader::tensix::{Bits, Chip};
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
    pub(super) fn clear(self, chip: Chip) -> u32 {
        let clear = UnpacrNop { unpacker_select: self.unpacker(), ..UnpacrNop::default() };
        let clear = match chip {
            Chip::Blackhole => UnpacrNop { unpack_pop: Bits::new(1), stall_clr_cntrl: ONE, ..clear },
            // It waits for all banks that the unpacker has given away before.
            Chip::Wormhole => UnpacrNop { no_op: Bits::new(1), ..clear },
        };
        clear.encode(chip)
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

/// The engine of a kind of chip, for products of a kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Engine {
    pub(super) chip: Chip,
    pub(super) kind: Kind,
}

fn zero_counters(counters: Bits<3>) -> [u32; 2] {
    let [x0, y0, x1, y1] = [ONE; 4];
    let xy = Setadcxy { x0, y0, x1, y1, counters, ..Setadcxy::default() };
    let zw = Setadczw { z0: ONE, w0: ONE, z1: ONE, w1: ONE, counters, ..Setadczw::default() };
    [xy.encode(), zw.encode()]
}

fn wait(blocked: u32, condition_mask: Bits<2>) -> u32 {
    Semwait { condition_mask, semaphore_mask: RESULTS, block_mask: Bits::new(blocked) }.encode()
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
/// to where the half of the right operand's columns began, with other bits of both operands;
const NEXT_PHASE: u32 = 2;
/// to the next half of the right operand's columns, or the next square, from the left operand's first rows on.
const NEXT_HALF: u32 = 3;

fn math_modes() -> [MathMode; 4] {
    let back = |rows: u32| (1 << 10) - rows;
    [
        MathMode { right: 0, dst: 8, phase: 0, first_phase: 0 },
        MathMode { right: 16, dst: back(24), phase: 0, first_phase: 0 },
        MathMode { right: 64 - 16, dst: back(24), phase: 1, first_phase: 0 },
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

/// How many `MVMUL`s half a square has in each phase.
const PASS: u32 = 8;

/// `MopCfg` of the matrix unit's thread: the product of two squares in so many phases, first of the left half of the
/// right operand's columns and then of the other, which gives that operand's bank back.
pub(super) fn math_loop(phases: u32) -> [u32; 9] {
    let replay = |index| Replay { count: Bits::new(PASS), index: Bits::new(index), ..Replay::default() };
    let [each, last, last_of_all] = [0, PASS, 2 * PASS].map(|index| replay(index).encode());
    [2, phases, NOTHING, NOTHING, NOTHING, each, NOTHING, last_of_all, last]
}

/// Expands [`math_loop`] or the packer's.
pub(super) const LOOP: u32 = Mop { template: ONE, count1: Bits::ZERO, mask_lo: Bits::ZERO }.encode();

/// Waits for a half of `Dst`, in the matrix unit's thread.
pub(super) fn math_wait() -> u32 {
    wait(block::MATH | block::SYNC, WHILE_FULL)
}

/// What the second half adds to the word that chooses the first: that many rows.
pub(super) const HALF_OFFSET: u32 = HALF;

/// Sets all of the matrix unit's counters to zero, and gives a bank of the left operand back or not.
pub(super) fn math_counters(flip: bool) -> u32 {
    let flip_src_b = if flip { ONE } else { Bits::ZERO };
    Setrwc { src_a: ONE, src_b: ONE, dst: ONE, fidelity: ONE, flip_src_b, ..Setrwc::default() }.encode()
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

impl Engine {
    fn registers(self) -> &'static Registers {
        self.chip.registers()
    }

    fn stall(self, blocked: u32, condition: u32) -> u32 {
        Stallwait { condition_mask: Bits::new(condition), block_mask: Bits::new(blocked) }.encode(self.chip)
    }

    /// Waits for what the thread's core has stored in the configuration.
    fn wait_for_core(self, blocked: u32) -> u32 {
        self.stall(blocked | block::SYNC, self.chip.conditions().core)
    }

    /// The configuration of the unpackers.
    pub(super) fn unpack_config(self, left: Rows, right: Rows) -> Vec<(u32, u32)> {
        let (registers, kind) = (self.registers(), self.kind);
        let (from, to) = (kind.operand_format(), kind.source_format());
        let numbers = |rows: Rows| rows.pitch / kind.operand_bytes();
        // How far it is from row to row of `SrcA` and `SrcB`, as a thread's counter Z counts them.
        let row = Bits::new(ROW * kind.source_bytes());
        let mut words = Words::default();
        // What a descriptor has beside its format: that it is not compressed, its size in x, and one y and one z.
        let descriptor = |rows: Rows| Bits::new(from.get() | 1 << 4 | numbers(rows) << 16);
        for (field, rows) in [
            (registers.thcon_sec0_reg0_tile_descriptor, right),
            (registers.thcon_sec1_reg0_tile_descriptor, left),
        ] {
            words.set(field, descriptor(rows)).set(field.further(1), Bits::new(1 | 1 << 16));
        }
        words
            .set(registers.thcon_sec0_reg2_out_data_format, to)
            .set(registers.thcon_sec1_reg2_out_data_format, to)
            .set(registers.thcon_sec0_reg2_disable_zero_compress_cntx0, ONE)
            .set(registers.thcon_sec1_reg2_disable_zero_compress_cntx0, ONE)
            .set(registers.thcon_sec0_reg3_base_address, steps(right.at))
            .set(registers.thcon_sec1_reg3_base_address, steps(left.at))
            .set(registers.thcon_sec0_reg5_tile_x_dim_cntx0, Bits::new(numbers(right)))
            // The first four rows of `SrcA` are not counted. The counters are added to them.
            .set(registers.thcon_sec0_reg5_dest_cntx0_address, Bits::new(4 * ROW))
            .set(registers.unp0_add_dest_addr_cntr_add_dest_addr_cntr, ONE)
            .set(registers.thcon_sec0_reg7_offset_address, Bits::ZERO)
            .set(registers.unp0_addr_ctrl_zw_reg_1_zstride, row)
            .set(registers.unp1_addr_ctrl_zw_reg_1_zstride, row);
        words.finish()
    }

    /// What the unpackers' thread begins with, behind its configuration.
    pub(super) fn unpack_start(self) -> Vec<u32> {
        let registers = self.registers();
        let mut own = ThreadWords::default();
        own.set(registers.cfg_state_id_state_id, 0)
            .set(registers.srca_set_set_ovrd_with_addr, 1)
            .set(registers.unpack_misc_cfg_cfg_context_offset_0, 0)
            .set(registers.unpack_misc_cfg_cfg_context_offset_1, 0);
        let both = Bits::new(counters::UNPACKER_0.get() | counters::UNPACKER_1.get());
        own.finish().chain(zero_counters(both)).chain([self.wait_for_core(block::UNPACK)]).collect()
    }

    /// The configuration of the matrix unit.
    pub(super) fn math_config(self) -> Vec<(u32, u32)> {
        let (registers, kind) = (self.registers(), self.kind);
        let mut words = Words::default();
        words
            .set(registers.alu_format_spec_reg0_src_a, kind.source_format())
            .set(registers.alu_format_spec_reg1_src_b, kind.source_format())
            .set(registers.alu_format_spec_reg2_dstacc, kind.result_format())
            .set(registers.alu_acc_ctrl_fp32_enabled, ONE)
            // What another program may have left: results below zero, and operands that are denormal.
            .set(registers.stacc_relu_apply_relu, Bits::ZERO)
            .set(registers.alu_acc_ctrl_zero_flag_disabled_src, Bits::ZERO)
            .set(registers.alu_acc_ctrl_zero_flag_disabled_dst, Bits::ZERO);
        words.finish()
    }

    /// What the matrix unit's thread begins with, behind its configuration.
    pub(super) fn math_start(self) -> Vec<u32> {
        let registers = self.registers();
        let mut own = ThreadWords::default();
        own.set(registers.cfg_state_id_state_id, 0)
            .set(registers.clr_dvalid_src_a_disable, 0)
            .set(registers.clr_dvalid_src_b_disable, 0);
        if let Some(base) = registers.addr_mod_set_base {
            own.set(base, 0);
        }
        for (mode, fields) in (0..).zip(math_modes()) {
            let MathMode { right, dst, phase, first_phase } = fields;
            own.set(section(&registers.addr_mod_ab_src_a_incr, mode), right)
                .set(section(&registers.addr_mod_ab_src_b_incr, mode), 8)
                .set(section(&registers.addr_mod_dst_dest_incr, mode), dst)
                .set(section(&registers.addr_mod_dst_fidelity_incr, mode), phase)
                .set(section(&registers.addr_mod_dst_fidelity_clear, mode), first_phase)
                .set(section(&registers.addr_mod_bias_bias_incr, mode), 0);
        }
        let keep = Replay { load: ONE, exec: Bits::ZERO, count: Bits::new(3 * PASS), index: Bits::ZERO };
        own.finish()
            .chain([self.wait_for_core(block::MATH), keep.encode()])
            .chain(self.pass(NEXT_PHASE, Bits::ZERO))
            .chain(self.pass(NEXT_HALF, Bits::ZERO))
            .chain(self.pass(NEXT_HALF, ONE))
            .collect()
    }

    /// The product of a square and half of another in one phase.
    fn pass(self, last: u32, flip_src_a: Bits<1>) -> impl Iterator<Item = u32> {
        let modes = [NEXT, NEXT, NEXT, NEXT_COLUMNS, NEXT, NEXT, NEXT, last];
        modes.into_iter().zip(1..).map(move |(mode, number)| {
            let flip_src_a = if number == PASS { flip_src_a } else { Bits::ZERO };
            Mvmul { addr_mod: Bits::new(mode), flip_src_a, ..Mvmul::default() }.encode(self.chip)
        })
    }

    /// Chooses the first half of `Dst`; the second adds [`HALF_OFFSET`] to it.
    pub(super) fn math_target(self) -> u32 {
        self.registers().dest_target_reg_cfg_math_offset.set(Bits::ZERO).encode()
    }

    /// Clears the first half of `Dst`; the second adds one to it.
    pub(super) fn clear(self) -> u32 {
        Zeroacc { mode: Bits::new(2), use_dst32b: ONE, ..Zeroacc::default() }.encode(self.chip)
    }

    /// Reports a half of `Dst`, once it is computed. The thread's configuration has to wait as well.
    pub(super) fn math_done(self) -> [u32; 2] {
        [
            self.stall(block::MATH | block::SYNC | block::CONFIG, self.chip.conditions().math),
            Sempost { semaphore_mask: RESULTS }.encode(),
        ]
    }

    /// The configuration of the packer, which writes rows of results one behind the other.
    pub(super) fn pack_config(self, results: Rows) -> Vec<(u32, u32)> {
        let (registers, kind) = (self.registers(), self.kind);
        // Rows of `Dst` have 16 numbers of the format that is read from it.
        let rows = |count: u32| Bits::new(count * ROW * kind.result_bytes());
        let mut words = Words::default();
        words
            .set(registers.thcon_sec0_reg1_row_start_section_size, Bits::ZERO)
            .set(registers.thcon_sec0_reg1_l1_dest_addr, steps(results.at))
            .set(registers.pck_dest_rd_ctrl_read_32b_data, ONE)
            .set(registers.pck_edge_offset_sec0_mask, Bits::MAX)
            .set(registers.tile_row_set_mapping_0_row_set_mapping_0, Bits::ZERO)
            .set(registers.dest_target_reg_cfg_pack_sec0_offset, Bits::ZERO)
            .set(registers.pck0_addr_ctrl_xy_reg_0_xstride, Bits::new(kind.result_bytes()))
            .set(registers.pck0_addr_ctrl_xy_reg_0_ystride, rows(SIDE))
            .set(registers.pck0_addr_ctrl_zw_reg_0_zstride, rows(1))
            .set(registers.pck0_addr_ctrl_zw_reg_0_wstride, rows(HALF));
        // Formats are the same in all packers, though one is used: the vendor's programs keep them so.
        for &(further, counters) in [(0, 0)].iter().chain(registers.other_packers) {
            words
                .set(registers.thcon_sec0_reg1_in_data_format.further(further), kind.result_format())
                .set(registers.thcon_sec0_reg1_out_data_format.further(further), kind.result_format())
                .set(registers.thcon_sec0_reg1_disable_zero_compress.further(further), ONE)
                .set(registers.thcon_sec0_reg1_pack_l1_acc.further(further), Bits::ZERO)
                .set(registers.pack_counters_sec0_pack_reads_per_xy_plane.further(counters), Bits::new(16));
        }
        words.finish()
    }

    /// What the packer's thread begins with, behind its configuration.
    pub(super) fn pack_start(self) -> Vec<u32> {
        let registers = self.registers();
        let mut own = ThreadWords::default();
        let [inside, at_the_end] = [0, 1];
        own.set(registers.cfg_state_id_state_id, 0)
            .set(section(&registers.addr_mod_pack_ysrc_incr, inside), 1)
            .set(section(&registers.addr_mod_pack_ysrc_clear, at_the_end), 1)
            .set(section(&registers.addr_mod_pack_zsrc_incr, at_the_end), 1);
        let columns =
            Setadcxx { x0_val: Bits::ZERO, x1_val: Bits::new(ROW - 1), counters: counters::PACKERS };
        own.finish().chain(zero_counters(counters::PACKERS)).chain([columns.encode()]).collect()
    }

    /// `MopCfg` of the packer's thread: 32 rows of a group's results.
    pub(super) fn pack_loop(self) -> [u32; 9] {
        let one = Bits::new(1);
        let reader = match self.chip {
            Chip::Blackhole => Pacr { read_intf_sel: one, ..Pacr::default() },
            Chip::Wormhole => Pacr { packer_mask: one, ..Pacr::default() },
        };
        let pack = |mode, last| Pacr { addr_mod: Bits::new(mode), last, ..reader }.encode(self.chip);
        let (inside, at_the_end, last) = (pack(0, Bits::ZERO), pack(1, Bits::ZERO), pack(1, ONE));
        [SIDE, GROUP * SIDE / ROW, NOTHING, NOTHING, NOTHING, inside, NOTHING, last, at_the_end]
    }

    /// The word of the configuration that says where results go, and that of the first 32 rows; the second 32 rows are
    /// behind them.
    pub(super) fn pack_target(self, results: Rows) -> (u32, [u32; 2]) {
        let field = self.registers().thcon_sec0_reg1_l1_dest_addr;
        let second = results.at + SIDE * results.pitch;
        (field.address(), [results.at, second].map(|at| field.place(steps(at))))
    }

    /// Packs a half of `Dst`, once it is computed, and gives it back.
    pub(super) fn pack(self, half: u32) -> [u32; 7] {
        let packers = counters::PACKERS;
        let from = Setadcxy { y0: ONE, counters: packers, ..Setadcxy::default() };
        let half_of_dst =
            Setadczw { z0: ONE, w0: ONE, w0_val: Bits::new(half), counters: packers, ..Setadczw::default() };
        [
            wait(block::PACK | block::SYNC, WHILE_ZERO),
            self.wait_for_core(block::PACK),
            from.encode(),
            half_of_dst.encode(),
            LOOP,
            self.stall(block::PACK | block::SYNC, self.chip.conditions().pack),
            Semget { semaphore_mask: RESULTS }.encode(),
        ]
    }
}
