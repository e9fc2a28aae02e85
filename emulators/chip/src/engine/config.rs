// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The engine's configuration: words that all threads share, in two banks, and words of each thread
//! (`BackendConfiguration.md`).
//!
//! A thread chooses the bank that its instructions use. From [`GLOBAL`] on, both banks are one. A write of bits without
//! a function here is refused, so what an instruction does not look at is zero.

use super::error::EngineError;
use hal_tenstorrent_loader::tensix::Bits;
use hal_tenstorrent_loader::tensix::registers::blackhole as fields;
use hal_tenstorrent_loader::tensix::registers::{Field, ThreadField};

/// How many words a bank has.
pub(super) const WORDS: usize = 224;
/// The first word of those that are in both banks.
const GLOBAL: usize = 180;
/// How many words each thread has.
const THREAD_WORDS: usize = 68;

/// The second to fourth words of tile descriptors, of which documentation names the fields (`UNPACR_Regular.md`).
pub(super) const TILE_DESCRIPTORS: [usize; 2] = [64, 112];

/// The bits of words that have a function.
macro_rules! bits_of {
    ($words:ident: $($field:ident)*) => {{
        let mut bits = [0; $words];
        $(bits[fields::$field.word as usize] |= fields::$field.place(Bits::MAX);)*
        bits
    }};
}

#[expect(clippy::indexing_slicing, reason = "an index that is too large does not compile")]
const MODELLED: [u32; WORDS] = {
    let mut bits = bits_of!(WORDS:
        ALU_FORMAT_SPEC_REG0_SRC_A_UNSIGNED ALU_FORMAT_SPEC_REG0_SRC_B_UNSIGNED
        ALU_FORMAT_SPEC_REG0_SRC_A ALU_FORMAT_SPEC_REG1_SRC_B ALU_FORMAT_SPEC_REG2_DSTACC
        ALU_ACC_CTRL_FP32_ENABLED ALU_ACC_CTRL_SFPU_FP32_ENABLED ALU_ACC_CTRL_INT8_MATH_ENABLED
        PCK0_ADDR_CTRL_XY_REG_0_XSTRIDE PCK0_ADDR_CTRL_XY_REG_0_YSTRIDE
        PCK0_ADDR_CTRL_ZW_REG_0_ZSTRIDE PCK0_ADDR_CTRL_ZW_REG_0_WSTRIDE
        PCK0_ADDR_CTRL_XY_REG_1_XSTRIDE PCK0_ADDR_CTRL_XY_REG_1_YSTRIDE
        PCK0_ADDR_CTRL_ZW_REG_1_ZSTRIDE PCK0_ADDR_CTRL_ZW_REG_1_WSTRIDE
        PCK_DEST_RD_CTRL_READ_32B_DATA PCK_DEST_RD_CTRL_READ_UNSIGNED
        PCK_EDGE_OFFSET_SEC0_MASK PCK_EDGE_OFFSET_SEC1_MASK PCK_EDGE_TILE_ROW_SET_SELECT_SELECT
        PACK_COUNTERS_SEC0_PACK_PER_XY_PLANE PACK_COUNTERS_SEC0_PACK_READS_PER_XY_PLANE
        PACK_COUNTERS_SEC0_PACK_XYS_PER_TILE
        UNP0_ADD_DEST_ADDR_CNTR_ADD_DEST_ADDR_CNTR
        UNP0_ADDR_CTRL_XY_REG_1_XSTRIDE UNP0_ADDR_CTRL_XY_REG_1_YSTRIDE
        UNP0_ADDR_CTRL_ZW_REG_1_ZSTRIDE UNP0_ADDR_CTRL_ZW_REG_1_WSTRIDE
        UNP1_ADDR_CTRL_XY_REG_1_XSTRIDE UNP1_ADDR_CTRL_XY_REG_1_YSTRIDE
        UNP1_ADDR_CTRL_ZW_REG_1_ZSTRIDE UNP1_ADDR_CTRL_ZW_REG_1_WSTRIDE
        THCON_SEC0_REG0_TILE_DESCRIPTOR THCON_SEC1_REG0_TILE_DESCRIPTOR
        THCON_SEC0_REG1_L1_DEST_ADDR THCON_SEC0_REG1_OUT_DATA_FORMAT THCON_SEC0_REG1_IN_DATA_FORMAT
        THCON_SEC0_REG1_DISABLE_ZERO_COMPRESS
        THCON_SEC0_REG2_OUT_DATA_FORMAT THCON_SEC0_REG2_THROTTLE_MODE THCON_SEC0_REG2_HALOIZE_MODE
        THCON_SEC0_REG2_TILEIZE_MODE THCON_SEC0_REG2_SHIFT_AMOUNT_CNTX0 THCON_SEC0_REG2_SHIFT_AMOUNT_CNTX1
        THCON_SEC0_REG2_SHIFT_AMOUNT_CNTX2 THCON_SEC0_REG2_DISABLE_ZERO_COMPRESS_CNTX0
        THCON_SEC0_REG3_BASE_ADDRESS THCON_SEC0_REG3_BASE_CNTX1_ADDRESS
        THCON_SEC0_REG5_DEST_CNTX0_ADDRESS THCON_SEC0_REG5_TILE_X_DIM_CNTX0 THCON_SEC0_REG7_OFFSET_ADDRESS
        THCON_SEC1_REG2_OUT_DATA_FORMAT THCON_SEC1_REG2_THROTTLE_MODE
        THCON_SEC1_REG2_DISABLE_ZERO_COMPRESS_CNTX0
        THCON_SEC1_REG3_BASE_ADDRESS THCON_SEC1_REG3_BASE_CNTX1_ADDRESS THCON_SEC1_REG7_OFFSET_ADDRESS
        DEST_TARGET_REG_CFG_PACK_SEC0_OFFSET
    );
    // `Y` and `Z` of the descriptors' second words.
    bits[TILE_DESCRIPTORS[0] + 1] = 0x00ff_00ff;
    bits[TILE_DESCRIPTORS[1] + 1] = 0x00ff_00ff;
    // Both maps from a tile's rows to masks.
    bits[20] = u32::MAX;
    bits[21] = u32::MAX;
    // What instructions add to words (`CFGSHIFTMASK.md`), and software uses as it likes.
    bits[209] = u32::MAX;
    bits[210] = u32::MAX;
    bits[211] = u32::MAX;
    bits
};

#[expect(clippy::indexing_slicing, reason = "an index that is too large does not compile")]
const THREAD_MODELLED: [u32; THREAD_WORDS] = {
    let mut bits = bits_of!(THREAD_WORDS:
        CFG_STATE_ID_STATE_ID DEST_TARGET_REG_CFG_MATH_OFFSET DISABLE_IMPLIED_SRCA_FMT_BASE
        DISABLE_IMPLIED_SRCB_FMT_BASE SRCA_SET_SET_OVRD_WITH_ADDR CLR_DVALID_SRC_A_DISABLE
        CLR_DVALID_SRC_B_DISABLE FIDELITY_BASE_PHASE
    );
    let mut mode = 0;
    while mode < 8 {
        bits[12 + mode] = 0xffff;
        bits[28 + mode] = 0xffff;
        mode += 1;
    }
    let mut mode = 0;
    while mode < 4 {
        bits[37 + mode] = 0xffff;
        mode += 1;
    }
    // What keeps cores and instructions in order by itself (`AutoTTSync.md`).
    bits[56] = 0x1f;
    bits
};

/// The words.
#[derive(Clone, Debug)]
pub(super) struct Config {
    banks: Box<[[u32; WORDS]; 2]>,
    threads: [[u16; THREAD_WORDS]; 3],
}

/// A bank of the words that all threads share.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConfigBank<'a>(&'a [u32; WORDS]);

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
        self.0.get(number).copied().unwrap_or_default()
    }
}

/// The words of a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadConfig<'a>(&'a [u16; THREAD_WORDS]);

impl ThreadConfig<'_> {
    /// A field.
    #[inline]
    pub(super) fn get<const WIDTH: u32>(self, field: ThreadField<WIDTH>) -> u32 {
        field.read(self.0.get(field.word as usize).copied().unwrap_or_default().into()).get()
    }

    /// A word.
    pub(super) fn word(self, number: u32) -> u32 {
        self.0.get(number as usize).copied().unwrap_or_default().into()
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
    pub(super) fn new() -> Self {
        Self { banks: Box::new([[0; WORDS]; 2]), threads: [[0; THREAD_WORDS]; 3] }
    }

    /// The number of the bank that a thread uses.
    pub(super) fn bank_of(&self, thread: usize) -> usize {
        self.thread(thread).get(fields::CFG_STATE_ID_STATE_ID) as usize
    }

    /// The bank that a thread uses.
    pub(super) fn bank(&self, thread: usize) -> ConfigBank<'_> {
        ConfigBank(&self.banks[self.bank_of(thread)])
    }

    /// A thread's own words.
    pub(super) fn thread(&self, thread: usize) -> ThreadConfig<'_> {
        ThreadConfig(&self.threads[thread])
    }

    /// A word of a bank.
    pub(super) fn read(&self, bank: usize, number: usize) -> Option<u32> {
        self.banks.get(bank)?.get(number).copied()
    }

    /// Writes a word of a bank, and of the other too if they share it.
    pub(super) fn write(&mut self, bank: usize, number: usize, value: u32) -> Result<(), EngineError> {
        let modelled = MODELLED.get(number).copied().unwrap_or_default();
        let word = u32::try_from(number).unwrap_or(u32::MAX);
        if value & !modelled != 0 {
            return Err(EngineError::Configuration { word, bits: value & !modelled });
        }
        if number >= GLOBAL {
            self.banks.iter_mut().filter_map(|bank| bank.get_mut(number)).for_each(|word| *word = value);
        } else if let Some(word) = self.banks[bank & 1].get_mut(number) {
            *word = value;
        }
        Ok(())
    }

    /// Writes a word of a thread.
    pub(super) fn write_thread(&mut self, thread: usize, number: u32, value: u32) -> Result<(), EngineError> {
        let modelled = THREAD_MODELLED.get(number as usize).copied().unwrap_or_default();
        if value & !modelled != 0 {
            return Err(EngineError::ThreadConfiguration { word: number, bits: value & !modelled });
        }
        if let (Some(word), Ok(value)) = (self.threads[thread].get_mut(number as usize), value.try_into()) {
            *word = value;
        }
        Ok(())
    }
}
