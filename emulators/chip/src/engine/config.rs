// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The engine's configuration: words that all threads share, in two banks, and words of each thread
//! (`BackendConfiguration.md`).
//!
//! A thread chooses the bank that its instructions use. The last words are the same in both banks. A write of bits
//! without a function here is refused, so what an instruction does not look at is zero.

use super::error::EngineError;
use super::model::{Model, has};
use hal_tenstorrent_loader::tensix::Bits;
use hal_tenstorrent_loader::tensix::registers::{Field, Registers, ThreadField};

/// How many words a bank and a thread have at most.
const WORDS: usize = 224;
const THREAD_WORDS: usize = 68;

/// The bits of words that have a function.
#[derive(Clone, Debug)]
struct Modelled {
    shared: Box<[u32; WORDS]>,
    thread: Box<[u32; THREAD_WORDS]>,
}

/// Adds all bits of some fields.
macro_rules! add {
    ($bits:ident, $fields:ident: $($field:ident)*) => {
        $($bits[$fields.$field.word as usize] |= $fields.$field.mask();)*
    };
}

#[expect(clippy::indexing_slicing, reason = "fields are in words that there are")]
impl Modelled {
    fn new(model: &Model) -> Self {
        let fields = model.chip.registers();
        Self { shared: Self::shared(model, fields), thread: Self::thread(model, fields) }
    }

    fn shared(model: &Model, fields: &Registers) -> Box<[u32; WORDS]> {
        let mut bits = Box::new([0; WORDS]);
        add!(bits, fields:
            alu_format_spec_reg0_src_a_unsigned alu_format_spec_reg0_src_b_unsigned
            alu_format_spec_reg0_src_a alu_format_spec_reg1_src_b alu_format_spec_reg2_dstacc
            alu_acc_ctrl_fp32_enabled alu_acc_ctrl_sfpu_fp32_enabled alu_acc_ctrl_int8_math_enabled
            pck0_addr_ctrl_xy_reg_0_xstride pck0_addr_ctrl_xy_reg_0_ystride
            pck0_addr_ctrl_zw_reg_0_zstride pck0_addr_ctrl_zw_reg_0_wstride
            pck0_addr_ctrl_xy_reg_1_xstride pck0_addr_ctrl_xy_reg_1_ystride
            pck0_addr_ctrl_zw_reg_1_zstride pck0_addr_ctrl_zw_reg_1_wstride
            pck_dest_rd_ctrl_read_32b_data pck_dest_rd_ctrl_read_unsigned
            pck_edge_offset_sec0_mask pck_edge_offset_sec1_mask pck_edge_tile_row_set_select_select
            pack_counters_sec0_pack_per_xy_plane pack_counters_sec0_pack_reads_per_xy_plane
            pack_counters_sec0_pack_xys_per_tile
            unp0_add_dest_addr_cntr_add_dest_addr_cntr
            unp0_addr_ctrl_xy_reg_1_xstride unp0_addr_ctrl_xy_reg_1_ystride
            unp0_addr_ctrl_zw_reg_1_zstride unp0_addr_ctrl_zw_reg_1_wstride
            unp1_addr_ctrl_xy_reg_1_xstride unp1_addr_ctrl_xy_reg_1_ystride
            unp1_addr_ctrl_zw_reg_1_zstride unp1_addr_ctrl_zw_reg_1_wstride
            thcon_sec0_reg0_tile_descriptor thcon_sec1_reg0_tile_descriptor
            thcon_sec0_reg1_l1_dest_addr thcon_sec0_reg1_out_data_format thcon_sec0_reg1_in_data_format
            thcon_sec0_reg1_disable_zero_compress
            thcon_sec0_reg2_out_data_format thcon_sec0_reg2_throttle_mode thcon_sec0_reg2_haloize_mode
            thcon_sec0_reg2_tileize_mode thcon_sec0_reg2_shift_amount_cntx0 thcon_sec0_reg2_shift_amount_cntx1
            thcon_sec0_reg2_shift_amount_cntx2 thcon_sec0_reg2_disable_zero_compress_cntx0
            thcon_sec0_reg3_base_address thcon_sec0_reg3_base_cntx1_address
            thcon_sec0_reg5_dest_cntx0_address thcon_sec0_reg5_tile_x_dim_cntx0 thcon_sec0_reg7_offset_address
            thcon_sec1_reg2_out_data_format thcon_sec1_reg2_throttle_mode
            thcon_sec1_reg2_disable_zero_compress_cntx0
            thcon_sec1_reg3_base_address thcon_sec1_reg3_base_cntx1_address thcon_sec1_reg7_offset_address
            dest_target_reg_cfg_pack_sec0_offset
        );
        for descriptor in [fields.thcon_sec0_reg0_tile_descriptor, fields.thcon_sec1_reg0_tile_descriptor] {
            // `Y` and `Z`.
            bits[descriptor.word as usize + 1] = 0x00ff_00ff;
        }
        // Both maps from a tile's rows to masks.
        let maps = fields.tile_row_set_mapping_0_row_set_mapping_0.word as usize;
        bits[maps..maps + 2].fill(u32::MAX);
        for &(further, counters) in fields.other_packers {
            for field in [fields.thcon_sec0_reg1_in_data_format, fields.thcon_sec0_reg1_out_data_format] {
                bits[(field.word + further) as usize] |= field.mask();
            }
            let whole = fields.thcon_sec0_reg1_disable_zero_compress;
            bits[(whole.word + further) as usize] |= whole.mask();
            let rows = fields.pack_counters_sec0_pack_reads_per_xy_plane;
            bits[(rows.word + counters) as usize] |= rows.mask();
        }
        (0..WORDS).filter(|word| has(model.scratch, *word)).for_each(|word| bits[word] = u32::MAX);
        bits
    }

    fn thread(model: &Model, fields: &Registers) -> Box<[u32; THREAD_WORDS]> {
        let mut bits = Box::new([0; THREAD_WORDS]);
        for field in [
            fields.cfg_state_id_state_id,
            fields.srca_set_set_ovrd_with_addr,
            fields.clr_dvalid_src_a_disable,
            fields.clr_dvalid_src_b_disable,
        ] {
            bits[field.word as usize] |= field.place(Bits::MAX);
        }
        let of_some = fields.disable_implied_fmt.iter().flatten().chain(&fields.addr_mod_set_base);
        of_some.for_each(|field| bits[field.word as usize] |= field.place(Bits::MAX));
        let (offset, phase) = (fields.dest_target_reg_cfg_math_offset, fields.fidelity_base_phase);
        bits[offset.word as usize] |= offset.place(Bits::MAX);
        bits[phase.word as usize] |= phase.place(Bits::MAX);
        let modes = fields.addr_mod_ab_src_a_incr.iter().map(|field| field.word);
        let modes = modes.chain(fields.addr_mod_dst_dest_incr.iter().map(|field| field.word));
        let modes = modes.chain(fields.addr_mod_pack_ysrc_incr.iter().map(|field| field.word));
        modes.for_each(|word| bits[word as usize] = 0xffff);
        model.sync.into_iter().for_each(|word| bits[word] = 0x1f);
        bits
    }
}

/// The words.
#[derive(Clone, Debug)]
pub(super) struct Config {
    model: &'static Model,
    modelled: Modelled,
    banks: Box<[[u32; WORDS]; 2]>,
    threads: [[u16; THREAD_WORDS]; 3],
}

/// A bank of the words that all threads share.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConfigBank<'a> {
    words: &'a [u32; WORDS],
    pub(super) model: &'static Model,
    /// Where fields are.
    pub(super) fields: &'static Registers,
}

impl ConfigBank<'_> {
    /// A field.
    #[inline]
    pub(super) fn get<const WIDTH: u32>(self, field: Field<WIDTH>) -> u32 {
        field.read(self.word(field.word as usize)).get()
    }

    /// True if a field of one bit is set.
    #[inline]
    pub(super) fn has(self, field: Field<1>) -> bool {
        self.get(field) != 0
    }

    /// A word.
    #[inline]
    pub(super) fn word(self, number: usize) -> u32 {
        self.words.get(number).copied().unwrap_or_default()
    }
}

/// The words of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadConfig<'a> {
    words: &'a [u16; THREAD_WORDS],
    /// Where fields are.
    pub(super) fields: &'static Registers,
}

impl ThreadConfig<'_> {
    /// A field.
    #[inline]
    pub(super) fn get<const WIDTH: u32>(self, field: ThreadField<WIDTH>) -> u32 {
        field.read(self.words.get(field.word as usize).copied().unwrap_or_default().into()).get()
    }

    /// A word.
    pub(super) fn word(self, number: usize) -> u32 {
        self.words.get(number).copied().unwrap_or_default().into()
    }

    /// True if a field of one bit is set.
    #[inline]
    pub(super) fn has(self, field: ThreadField<1>) -> bool {
        self.get(field) != 0
    }
}

#[expect(
    clippy::indexing_slicing,
    reason = "there are three threads and two banks, and other numbers were refused"
)]
impl Config {
    pub(super) fn new(model: &'static Model) -> Self {
        Self {
            model,
            modelled: Modelled::new(model),
            banks: Box::new([[0; WORDS]; 2]),
            threads: [[0; THREAD_WORDS]; 3],
        }
    }

    /// The number of the bank that a thread uses.
    pub(super) fn bank_of(&self, thread: usize) -> usize {
        self.thread(thread).get(self.model.chip.registers().cfg_state_id_state_id) as usize
    }

    /// The bank that a thread uses.
    pub(super) fn bank(&self, thread: usize) -> ConfigBank<'_> {
        let words = &self.banks[self.bank_of(thread)];
        ConfigBank { words, model: self.model, fields: self.model.chip.registers() }
    }

    /// A thread's own words.
    pub(super) fn thread(&self, thread: usize) -> ThreadConfig<'_> {
        ThreadConfig { words: &self.threads[thread], fields: self.model.chip.registers() }
    }

    /// A word of a bank.
    pub(super) fn read(&self, bank: usize, number: usize) -> Option<u32> {
        self.banks.get(bank)?.get(number).copied()
    }

    /// Writes a word of a bank, and of the other too if they share it.
    pub(super) fn write(&mut self, bank: usize, number: usize, value: u32) -> Result<(), EngineError> {
        let modelled = self.modelled.shared.get(number).copied().unwrap_or_default();
        let word = u32::try_from(number).unwrap_or(u32::MAX);
        if number == self.model.resets {
            self.banks[bank & 1][..self.model.shared].fill(0);
            return Ok(());
        }
        if has(self.model.acts, number) {
            return Err(EngineError::Acts { word });
        }
        if value & !modelled != 0 {
            return Err(EngineError::Configuration { word, bits: value & !modelled });
        }
        if number >= self.model.shared {
            self.banks.iter_mut().filter_map(|bank| bank.get_mut(number)).for_each(|word| *word = value);
        } else if let Some(word) = self.banks[bank & 1].get_mut(number) {
            *word = value;
        }
        Ok(())
    }

    /// Writes a word of a thread.
    pub(super) fn write_thread(&mut self, thread: usize, number: u32, value: u32) -> Result<(), EngineError> {
        let modelled = self.modelled.thread.get(number as usize).copied().unwrap_or_default();
        if value & !modelled != 0 || number as usize >= self.model.thread_words {
            return Err(EngineError::ThreadConfiguration { word: number, bits: value & !modelled });
        }
        if let (Some(word), Ok(value)) = (self.threads[thread].get_mut(number as usize), value.try_into()) {
            *word = value;
        }
        Ok(())
    }
}
