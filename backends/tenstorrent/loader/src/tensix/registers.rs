// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The fields of the engine's configuration.
//!
//! [`Field`]s are in the words that all threads share, which cores write in memory from [`BASE`] on. [`ThreadField`]s
//! are in those that each thread has for itself, and [`Setc16`](super::instructions::Setc16) writes.

use super::Bits;
use super::instructions::Setc16;

/// The address of the first word of the configuration, for the tile's cores.
pub const BASE: u32 = 0xffef_0000;

/// A field of so many bits in a word that all threads share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<const WIDTH: u32> {
    /// Its name in the documentation.
    pub name: &'static str,
    /// The number of its word.
    pub word: u32,
    /// Its lowest bit.
    pub low: u32,
}

/// A field of so many bits in a word that each thread has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadField<const WIDTH: u32> {
    /// Its name in the documentation.
    pub name: &'static str,
    /// The number of its word.
    pub word: u32,
    /// Its lowest bit.
    pub low: u32,
}

impl<const WIDTH: u32> Field<WIDTH> {
    /// The bits of its word that a value sets.
    pub const fn place(self, value: Bits<WIDTH>) -> u32 {
        value.get() << self.low
    }

    /// Its value in its word.
    pub const fn read(self, word: u32) -> Bits<WIDTH> {
        Bits::wrapping(word >> self.low)
    }

    /// The address of its word.
    pub const fn address(self) -> u32 {
        BASE + 4 * self.word
    }
}

impl<const WIDTH: u32> ThreadField<WIDTH> {
    /// The bits of its word that a value sets.
    pub const fn place(self, value: Bits<WIDTH>) -> u32 {
        value.get() << self.low
    }

    /// Its value in its word.
    pub const fn read(self, word: u32) -> Bits<WIDTH> {
        Bits::wrapping(word >> self.low)
    }

    /// The instruction that sets its word, to this value and zeros.
    pub const fn set(self, value: Bits<WIDTH>) -> Setc16 {
        Setc16 { cfg_index: Bits::new(self.word), new_value: Bits::new(self.place(value)) }
    }
}

macro_rules! fields {
    ($kind:ident: $($name:ident = $text:literal, $word:literal, $low:literal, $width:literal;)*) => {$(
        #[doc = concat!("`", $text, "`")]
        pub const $name: $kind<$width> = $kind { name: $text, word: $word, low: $low };
    )*};
}

macro_rules! modes {
    ($($name:ident = $text:literal, $word:literal, $low:literal, $width:literal,
       $count:literal by $stride:literal;)*) => {$(
        #[doc = concat!("`", $text, "`, of each mode")]
        #[expect(clippy::indexing_slicing, reason = "an index that is too large does not compile")]
        pub const $name: [ThreadField<$width>; $count] = {
            let mut modes = [ThreadField { name: $text, word: $word, low: $low }; $count];
            let mut mode = 0;
            let mut word = $word;
            while mode < $count {
                modes[mode].word = word;
                mode += 1;
                word += $stride;
            }
            modes
        };
    )*};
}

/// The registers of a Blackhole tile's engine.
pub mod blackhole {
    use super::{Field, ThreadField};

    fields! {
        Field:
        ALU_ROUNDING_MODE_FPU_SRND_EN = "ALU_ROUNDING_MODE_Fpu_srnd_en", 1, 0, 1;
        ALU_ROUNDING_MODE_GASKET_SRND_EN = "ALU_ROUNDING_MODE_Gasket_srnd_en", 1, 1, 1;
        ALU_ROUNDING_MODE_PACKER_SRND_EN = "ALU_ROUNDING_MODE_Packer_srnd_en", 1, 2, 1;
        ALU_FORMAT_SPEC_REG0_SRC_A_UNSIGNED = "ALU_FORMAT_SPEC_REG0_SrcAUnsigned", 1, 15, 1;
        ALU_FORMAT_SPEC_REG0_SRC_B_UNSIGNED = "ALU_FORMAT_SPEC_REG0_SrcBUnsigned", 1, 16, 1;
        ALU_FORMAT_SPEC_REG0_SRC_A = "ALU_FORMAT_SPEC_REG0_SrcA", 1, 17, 4;
        ALU_FORMAT_SPEC_REG1_SRC_B = "ALU_FORMAT_SPEC_REG1_SrcB", 1, 21, 4;
        ALU_FORMAT_SPEC_REG2_DSTACC = "ALU_FORMAT_SPEC_REG2_Dstacc", 1, 25, 4;
        ALU_ACC_CTRL_FP32_ENABLED = "ALU_ACC_CTRL_Fp32_enabled", 1, 29, 1;
        ALU_ACC_CTRL_SFPU_FP32_ENABLED = "ALU_ACC_CTRL_SFPU_Fp32_enabled", 1, 30, 1;
        ALU_ACC_CTRL_INT8_MATH_ENABLED = "ALU_ACC_CTRL_INT8_math_enabled", 1, 31, 1;
        ALU_ACC_CTRL_ZERO_FLAG_DISABLED_SRC = "ALU_ACC_CTRL_Zero_Flag_disabled_src", 2, 0, 1;
        ALU_ACC_CTRL_ZERO_FLAG_DISABLED_DST = "ALU_ACC_CTRL_Zero_Flag_disabled_dst", 2, 1, 1;
        STACC_RELU_APPLY_RELU = "STACC_RELU_ApplyRelu", 2, 2, 4;
        STACC_RELU_RELU_THRESHOLD = "STACC_RELU_ReluThreshold", 2, 6, 16;
        PCK0_ADDR_CTRL_XY_REG_0_XSTRIDE = "PCK0_ADDR_CTRL_XY_REG_0_Xstride", 12, 0, 16;
        PCK0_ADDR_CTRL_XY_REG_0_YSTRIDE = "PCK0_ADDR_CTRL_XY_REG_0_Ystride", 12, 16, 16;
        PCK0_ADDR_CTRL_ZW_REG_0_ZSTRIDE = "PCK0_ADDR_CTRL_ZW_REG_0_Zstride", 13, 0, 16;
        PCK0_ADDR_CTRL_ZW_REG_0_WSTRIDE = "PCK0_ADDR_CTRL_ZW_REG_0_Wstride", 13, 16, 16;
        PCK0_ADDR_CTRL_XY_REG_1_XSTRIDE = "PCK0_ADDR_CTRL_XY_REG_1_Xstride", 14, 0, 16;
        PCK0_ADDR_CTRL_XY_REG_1_YSTRIDE = "PCK0_ADDR_CTRL_XY_REG_1_Ystride", 14, 16, 16;
        PCK0_ADDR_CTRL_ZW_REG_1_ZSTRIDE = "PCK0_ADDR_CTRL_ZW_REG_1_Zstride", 15, 0, 16;
        PCK0_ADDR_CTRL_ZW_REG_1_WSTRIDE = "PCK0_ADDR_CTRL_ZW_REG_1_Wstride", 15, 16, 16;
        PCK_DEST_RD_CTRL_READ_32B_DATA = "PCK_DEST_RD_CTRL_Read_32b_data", 18, 0, 1;
        PCK_DEST_RD_CTRL_READ_UNSIGNED = "PCK_DEST_RD_CTRL_Read_unsigned", 18, 1, 1;
        PCK_DEST_RD_CTRL_READ_INT8 = "PCK_DEST_RD_CTRL_Read_int8", 18, 2, 1;
        PCK_DEST_RD_CTRL_ROUND_10B_MANT = "PCK_DEST_RD_CTRL_Round_10b_mant", 18, 3, 1;
        TILE_ROW_SET_MAPPING_0_ROW_SET_MAPPING_0 = "TILE_ROW_SET_MAPPING_0_row_set_mapping_0", 20, 0, 2;
        PCK_EDGE_OFFSET_SEC0_MASK = "PCK_EDGE_OFFSET_SEC0_mask", 24, 0, 16;
        PCK_EDGE_OFFSET_SEC1_MASK = "PCK_EDGE_OFFSET_SEC1_mask", 25, 0, 16;
        PCK_EDGE_MODE_MODE = "PCK_EDGE_MODE_mode", 24, 16, 1;
        PCK_EDGE_TILE_ROW_SET_SELECT_SELECT = "PCK_EDGE_TILE_ROW_SET_SELECT_select", 24, 17, 8;
        PACK_COUNTERS_SEC0_PACK_PER_XY_PLANE = "PACK_COUNTERS_SEC0_pack_per_xy_plane", 28, 0, 8;
        PACK_COUNTERS_SEC0_PACK_READS_PER_XY_PLANE = "PACK_COUNTERS_SEC0_pack_reads_per_xy_plane", 28, 8, 8;
        PACK_COUNTERS_SEC0_PACK_XYS_PER_TILE = "PACK_COUNTERS_SEC0_pack_xys_per_tile", 28, 16, 7;
        PACK_COUNTERS_SEC0_PACK_YZ_TRANSPOSED = "PACK_COUNTERS_SEC0_pack_yz_transposed", 28, 23, 1;
        PACK_COUNTERS_SEC0_AUTO_CTXT_INC_XYS_CNT = "PACK_COUNTERS_SEC0_auto_ctxt_inc_xys_cnt", 28, 24, 8;
        UNP0_ADD_DEST_ADDR_CNTR_ADD_DEST_ADDR_CNTR = "UNP0_ADD_DEST_ADDR_CNTR_add_dest_addr_cntr", 50, 8, 1;
        UNP0_ADDR_CTRL_XY_REG_1_XSTRIDE = "UNP0_ADDR_CTRL_XY_REG_1_Xstride", 56, 0, 16;
        UNP0_ADDR_CTRL_XY_REG_1_YSTRIDE = "UNP0_ADDR_CTRL_XY_REG_1_Ystride", 56, 16, 16;
        UNP0_ADDR_CTRL_ZW_REG_1_ZSTRIDE = "UNP0_ADDR_CTRL_ZW_REG_1_Zstride", 57, 0, 16;
        UNP0_ADDR_CTRL_ZW_REG_1_WSTRIDE = "UNP0_ADDR_CTRL_ZW_REG_1_Wstride", 57, 16, 16;
        UNP1_ADDR_CTRL_XY_REG_1_XSTRIDE = "UNP1_ADDR_CTRL_XY_REG_1_Xstride", 58, 0, 16;
        UNP1_ADDR_CTRL_XY_REG_1_YSTRIDE = "UNP1_ADDR_CTRL_XY_REG_1_Ystride", 58, 16, 16;
        UNP1_ADDR_CTRL_ZW_REG_1_ZSTRIDE = "UNP1_ADDR_CTRL_ZW_REG_1_Zstride", 59, 0, 16;
        UNP1_ADDR_CTRL_ZW_REG_1_WSTRIDE = "UNP1_ADDR_CTRL_ZW_REG_1_Wstride", 59, 16, 16;
        THCON_SEC0_REG0_TILE_DESCRIPTOR = "THCON_SEC0_REG0_TileDescriptor", 64, 0, 32;
        THCON_SEC1_REG0_TILE_DESCRIPTOR = "THCON_SEC1_REG0_TileDescriptor", 112, 0, 32;
        THCON_SEC0_REG1_ROW_START_SECTION_SIZE = "THCON_SEC0_REG1_Row_start_section_size", 68, 0, 16;
        THCON_SEC0_REG1_EXP_SECTION_SIZE = "THCON_SEC0_REG1_Exp_section_size", 68, 16, 16;
        THCON_SEC0_REG1_L1_DEST_ADDR = "THCON_SEC0_REG1_L1_Dest_addr", 69, 0, 32;
        THCON_SEC0_REG1_DISABLE_ZERO_COMPRESS = "THCON_SEC0_REG1_Disable_zero_compress", 70, 0, 1;
        THCON_SEC0_REG1_ADD_L1_DEST_ADDR_OFFSET = "THCON_SEC0_REG1_Add_l1_dest_addr_offset", 70, 1, 1;
        THCON_SEC0_REG1_DISABLE_PACK_ZERO_FLAGS = "THCON_SEC0_REG1_Disable_pack_zero_flags", 70, 2, 1;
        THCON_SEC0_REG1_OUT_DATA_FORMAT = "THCON_SEC0_REG1_Out_data_format", 70, 4, 4;
        THCON_SEC0_REG1_IN_DATA_FORMAT = "THCON_SEC0_REG1_In_data_format", 70, 8, 4;
        THCON_SEC0_REG1_SOURCE_INTERFACE_SELECTION = "THCON_SEC0_REG1_Source_interface_selection", 70, 16, 1;
        THCON_SEC0_REG1_PACK_L1_ACC = "THCON_SEC0_REG1_Pack_L1_Acc", 71, 19, 1;
        THCON_SEC0_REG2_OUT_DATA_FORMAT = "THCON_SEC0_REG2_Out_data_format", 72, 0, 4;
        THCON_SEC0_REG2_THROTTLE_MODE = "THCON_SEC0_REG2_Throttle_mode", 72, 4, 2;
        THCON_SEC0_REG2_HALOIZE_MODE = "THCON_SEC0_REG2_Haloize_mode", 72, 8, 1;
        THCON_SEC0_REG2_TILEIZE_MODE = "THCON_SEC0_REG2_Tileize_mode", 72, 9, 1;
        THCON_SEC0_REG2_UNPACK_SRC_REG_SET_UPD = "THCON_SEC0_REG2_Unpack_Src_Reg_Set_Upd", 72, 10, 1;
        THCON_SEC0_REG2_UNPACK_IF_SEL = "THCON_SEC0_REG2_Unpack_If_Sel", 72, 11, 1;
        THCON_SEC0_REG2_UPSAMPLE_RATE = "THCON_SEC0_REG2_Upsample_rate", 72, 12, 2;
        THCON_SEC0_REG2_OVRD_DATA_FORMAT = "THCON_SEC0_REG2_Ovrd_data_format", 72, 14, 1;
        THCON_SEC0_REG2_UPSAMPLE_AND_INTERLEAVE = "THCON_SEC0_REG2_Upsample_and_interleave", 72, 15, 1;
        THCON_SEC0_REG2_SHIFT_AMOUNT_CNTX0 = "THCON_SEC0_REG2_Shift_amount_cntx0", 72, 16, 4;
        THCON_SEC0_REG2_SHIFT_AMOUNT_CNTX1 = "THCON_SEC0_REG2_Shift_amount_cntx1", 72, 20, 4;
        THCON_SEC0_REG2_SHIFT_AMOUNT_CNTX2 = "THCON_SEC0_REG2_Shift_amount_cntx2", 72, 24, 4;
        THCON_SEC0_REG2_DISABLE_ZERO_COMPRESS_CNTX0 = "THCON_SEC0_REG2_Disable_zero_compress_cntx0", 73, 0, 1;
        THCON_SEC0_REG2_UNPACK_IF_SEL_CNTX0 = "THCON_SEC0_REG2_Unpack_if_sel_cntx0", 73, 4, 1;
        THCON_SEC0_REG2_FORCE_SHARED_EXP = "THCON_SEC0_REG2_Force_shared_exp", 73, 8, 1;
        THCON_SEC0_REG3_BASE_ADDRESS = "THCON_SEC0_REG3_Base_address", 76, 0, 32;
        THCON_SEC0_REG3_BASE_CNTX1_ADDRESS = "THCON_SEC0_REG3_Base_cntx1_address", 77, 0, 32;
        THCON_SEC0_REG5_DEST_CNTX0_ADDRESS = "THCON_SEC0_REG5_Dest_cntx0_address", 84, 0, 16;
        THCON_SEC0_REG5_TILE_X_DIM_CNTX0 = "THCON_SEC0_REG5_Tile_x_dim_cntx0", 86, 0, 16;
        THCON_SEC0_REG7_OFFSET_ADDRESS = "THCON_SEC0_REG7_Offset_address", 92, 0, 16;
        THCON_SEC1_REG2_OUT_DATA_FORMAT = "THCON_SEC1_REG2_Out_data_format", 120, 0, 4;
        THCON_SEC1_REG2_THROTTLE_MODE = "THCON_SEC1_REG2_Throttle_mode", 120, 4, 2;
        THCON_SEC1_REG2_HALOIZE_MODE = "THCON_SEC1_REG2_Haloize_mode", 120, 8, 1;
        THCON_SEC1_REG2_TILEIZE_MODE = "THCON_SEC1_REG2_Tileize_mode", 120, 9, 1;
        THCON_SEC1_REG2_UNPACK_SRC_REG_SET_UPD = "THCON_SEC1_REG2_Unpack_Src_Reg_Set_Upd", 120, 10, 1;
        THCON_SEC1_REG2_UPSAMPLE_RATE = "THCON_SEC1_REG2_Upsample_rate", 120, 12, 2;
        THCON_SEC1_REG2_OVRD_DATA_FORMAT = "THCON_SEC1_REG2_Ovrd_data_format", 120, 14, 1;
        THCON_SEC1_REG2_UPSAMPLE_AND_INTERLEAVE = "THCON_SEC1_REG2_Upsample_and_interleave", 120, 15, 1;
        THCON_SEC1_REG2_DISABLE_ZERO_COMPRESS_CNTX0 = "THCON_SEC1_REG2_Disable_zero_compress_cntx0", 121, 0, 1;
        THCON_SEC1_REG2_FORCE_SHARED_EXP = "THCON_SEC1_REG2_Force_shared_exp", 121, 8, 1;
        THCON_SEC1_REG3_BASE_ADDRESS = "THCON_SEC1_REG3_Base_address", 124, 0, 32;
        THCON_SEC1_REG3_BASE_CNTX1_ADDRESS = "THCON_SEC1_REG3_Base_cntx1_address", 125, 0, 32;
        THCON_SEC1_REG7_OFFSET_ADDRESS = "THCON_SEC1_REG7_Offset_address", 140, 0, 16;
        DEST_TARGET_REG_CFG_PACK_SEC0_OFFSET = "DEST_TARGET_REG_CFG_PACK_SEC0_Offset", 180, 0, 12;
        DEST_TARGET_REG_CFG_PACK_SEC0_ZOFFSET = "DEST_TARGET_REG_CFG_PACK_SEC0_ZOffset", 180, 12, 6;
    }

    fields! {
        ThreadField:
        CFG_STATE_ID_STATE_ID = "CFG_STATE_ID_StateID", 0, 0, 1;
        DEST_TARGET_REG_CFG_MATH_OFFSET = "DEST_TARGET_REG_CFG_MATH_Offset", 1, 0, 12;
        DISABLE_IMPLIED_SRCA_FMT_BASE = "DISABLE_IMPLIED_SRCA_FMT_Base", 2, 0, 1;
        DISABLE_IMPLIED_SRCB_FMT_BASE = "DISABLE_IMPLIED_SRCB_FMT_Base", 3, 0, 1;
        SRCA_SET_BASE = "SRCA_SET_Base", 5, 0, 2;
        SRCA_SET_SET_OVRD_WITH_ADDR = "SRCA_SET_SetOvrdWithAddr", 5, 2, 1;
        SRCB_SET_BASE = "SRCB_SET_Base", 6, 0, 2;
        CLR_DVALID_SRC_A_DISABLE = "CLR_DVALID_SrcA_Disable", 7, 0, 1;
        CLR_DVALID_SRC_B_DISABLE = "CLR_DVALID_SrcB_Disable", 7, 1, 1;
        FIDELITY_BASE_PHASE = "FIDELITY_BASE_Phase", 11, 0, 2;
        UNPACK_MISC_CFG_CFG_CONTEXT_OFFSET_0 = "UNPACK_MISC_CFG_CfgContextOffset_0", 41, 0, 4;
        UNPACK_MISC_CFG_CFG_CONTEXT_OFFSET_1 = "UNPACK_MISC_CFG_CfgContextOffset_1", 41, 8, 4;
    }

    modes! {
        ADDR_MOD_AB_SRC_A_INCR = "ADDR_MOD_AB_SrcAIncr", 12, 0, 6, 8 by 1;
        ADDR_MOD_AB_SRC_A_CR = "ADDR_MOD_AB_SrcACR", 12, 6, 1, 8 by 1;
        ADDR_MOD_AB_SRC_A_CLEAR = "ADDR_MOD_AB_SrcAClear", 12, 7, 1, 8 by 1;
        ADDR_MOD_AB_SRC_B_INCR = "ADDR_MOD_AB_SrcBIncr", 12, 8, 6, 8 by 1;
        ADDR_MOD_AB_SRC_B_CR = "ADDR_MOD_AB_SrcBCR", 12, 14, 1, 8 by 1;
        ADDR_MOD_AB_SRC_B_CLEAR = "ADDR_MOD_AB_SrcBClear", 12, 15, 1, 8 by 1;
        ADDR_MOD_DST_DEST_INCR = "ADDR_MOD_DST_DestIncr", 28, 0, 10, 8 by 1;
        ADDR_MOD_DST_DEST_CR = "ADDR_MOD_DST_DestCR", 28, 10, 1, 8 by 1;
        ADDR_MOD_DST_DEST_CLEAR = "ADDR_MOD_DST_DestClear", 28, 11, 1, 8 by 1;
        ADDR_MOD_DST_DEST_C_TO_CR = "ADDR_MOD_DST_DestCToCR", 28, 12, 1, 8 by 1;
        ADDR_MOD_DST_FIDELITY_INCR = "ADDR_MOD_DST_FidelityIncr", 28, 13, 2, 8 by 1;
        ADDR_MOD_DST_FIDELITY_CLEAR = "ADDR_MOD_DST_FidelityClear", 28, 15, 1, 8 by 1;
        ADDR_MOD_BIAS_BIAS_INCR = "ADDR_MOD_BIAS_BiasIncr", 47, 0, 4, 8 by 1;
        ADDR_MOD_BIAS_BIAS_CLEAR = "ADDR_MOD_BIAS_BiasClear", 47, 4, 1, 8 by 1;
        ADDR_MOD_PACK_YSRC_INCR = "ADDR_MOD_PACK_YsrcIncr", 37, 0, 4, 4 by 1;
        ADDR_MOD_PACK_YSRC_CR = "ADDR_MOD_PACK_YsrcCR", 37, 4, 1, 4 by 1;
        ADDR_MOD_PACK_YSRC_CLEAR = "ADDR_MOD_PACK_YsrcClear", 37, 5, 1, 4 by 1;
        ADDR_MOD_PACK_YDST_INCR = "ADDR_MOD_PACK_YdstIncr", 37, 6, 4, 4 by 1;
        ADDR_MOD_PACK_YDST_CR = "ADDR_MOD_PACK_YdstCR", 37, 10, 1, 4 by 1;
        ADDR_MOD_PACK_YDST_CLEAR = "ADDR_MOD_PACK_YdstClear", 37, 11, 1, 4 by 1;
        ADDR_MOD_PACK_ZSRC_INCR = "ADDR_MOD_PACK_ZsrcIncr", 37, 12, 1, 4 by 1;
        ADDR_MOD_PACK_ZSRC_CLEAR = "ADDR_MOD_PACK_ZsrcClear", 37, 13, 1, 4 by 1;
        ADDR_MOD_PACK_ZDST_INCR = "ADDR_MOD_PACK_ZdstIncr", 37, 14, 1, 4 by 1;
        ADDR_MOD_PACK_ZDST_CLEAR = "ADDR_MOD_PACK_ZdstClear", 37, 15, 1, 4 by 1;
    }
}

/// The registers of a Wormhole tile's engine.
pub mod wormhole {
    use super::{Field, ThreadField};

    fields! {
        Field:
        ALU_ROUNDING_MODE_FPU_SRND_EN = "ALU_ROUNDING_MODE_Fpu_srnd_en", 1, 0, 1;
        ALU_ROUNDING_MODE_GASKET_SRND_EN = "ALU_ROUNDING_MODE_Gasket_srnd_en", 1, 1, 1;
        ALU_ROUNDING_MODE_PACKER_SRND_EN = "ALU_ROUNDING_MODE_Packer_srnd_en", 1, 2, 1;
        ALU_FORMAT_SPEC_REG0_SRC_A_UNSIGNED = "ALU_FORMAT_SPEC_REG0_SrcAUnsigned", 1, 15, 1;
        ALU_FORMAT_SPEC_REG0_SRC_B_UNSIGNED = "ALU_FORMAT_SPEC_REG0_SrcBUnsigned", 1, 16, 1;
        ALU_FORMAT_SPEC_REG0_SRC_A = "ALU_FORMAT_SPEC_REG0_SrcA", 1, 17, 4;
        ALU_FORMAT_SPEC_REG1_SRC_B = "ALU_FORMAT_SPEC_REG1_SrcB", 1, 21, 4;
        ALU_FORMAT_SPEC_REG2_DSTACC = "ALU_FORMAT_SPEC_REG2_Dstacc", 1, 25, 4;
        ALU_ACC_CTRL_FP32_ENABLED = "ALU_ACC_CTRL_Fp32_enabled", 1, 29, 1;
        ALU_ACC_CTRL_SFPU_FP32_ENABLED = "ALU_ACC_CTRL_SFPU_Fp32_enabled", 1, 30, 1;
        ALU_ACC_CTRL_INT8_MATH_ENABLED = "ALU_ACC_CTRL_INT8_math_enabled", 1, 31, 1;
        ALU_ACC_CTRL_ZERO_FLAG_DISABLED_SRC = "ALU_ACC_CTRL_Zero_Flag_disabled_src", 2, 0, 1;
        ALU_ACC_CTRL_ZERO_FLAG_DISABLED_DST = "ALU_ACC_CTRL_Zero_Flag_disabled_dst", 2, 1, 1;
        STACC_RELU_APPLY_RELU = "STACC_RELU_ApplyRelu", 2, 2, 4;
        STACC_RELU_RELU_THRESHOLD = "STACC_RELU_ReluThreshold", 2, 6, 16;
        PCK0_ADDR_CTRL_XY_REG_0_XSTRIDE = "PCK0_ADDR_CTRL_XY_REG_0_Xstride", 8, 0, 12;
        PCK0_ADDR_CTRL_XY_REG_0_YSTRIDE = "PCK0_ADDR_CTRL_XY_REG_0_Ystride", 8, 12, 12;
        PCK0_ADDR_CTRL_ZW_REG_0_ZSTRIDE = "PCK0_ADDR_CTRL_ZW_REG_0_Zstride", 9, 0, 12;
        PCK0_ADDR_CTRL_ZW_REG_0_WSTRIDE = "PCK0_ADDR_CTRL_ZW_REG_0_Wstride", 9, 12, 16;
        PCK0_ADDR_CTRL_XY_REG_1_XSTRIDE = "PCK0_ADDR_CTRL_XY_REG_1_Xstride", 10, 0, 12;
        PCK0_ADDR_CTRL_XY_REG_1_YSTRIDE = "PCK0_ADDR_CTRL_XY_REG_1_Ystride", 10, 12, 12;
        PCK0_ADDR_CTRL_ZW_REG_1_ZSTRIDE = "PCK0_ADDR_CTRL_ZW_REG_1_Zstride", 11, 0, 12;
        PCK0_ADDR_CTRL_ZW_REG_1_WSTRIDE = "PCK0_ADDR_CTRL_ZW_REG_1_Wstride", 11, 12, 16;
        PCK_DEST_RD_CTRL_READ_32B_DATA = "PCK_DEST_RD_CTRL_Read_32b_data", 14, 0, 1;
        PCK_DEST_RD_CTRL_READ_UNSIGNED = "PCK_DEST_RD_CTRL_Read_unsigned", 14, 1, 1;
        PCK_DEST_RD_CTRL_READ_INT8 = "PCK_DEST_RD_CTRL_Read_int8", 14, 2, 1;
        PCK_DEST_RD_CTRL_ROUND_10B_MANT = "PCK_DEST_RD_CTRL_Round_10b_mant", 14, 3, 1;
        TILE_ROW_SET_MAPPING_0_ROW_SET_MAPPING_0 = "TILE_ROW_SET_MAPPING_0_row_set_mapping_0", 16, 0, 2;
        PCK_EDGE_OFFSET_SEC0_MASK = "PCK_EDGE_OFFSET_SEC0_mask", 20, 0, 16;
        PCK_EDGE_OFFSET_SEC1_MASK = "PCK_EDGE_OFFSET_SEC1_mask", 21, 0, 16;
        PCK_EDGE_MODE_MODE = "PCK_EDGE_MODE_mode", 20, 16, 1;
        PCK_EDGE_TILE_ROW_SET_SELECT_SELECT = "PCK_EDGE_TILE_ROW_SET_SELECT_select", 20, 17, 8;
        PACK_COUNTERS_SEC0_PACK_PER_XY_PLANE = "PACK_COUNTERS_SEC0_pack_per_xy_plane", 24, 0, 8;
        PACK_COUNTERS_SEC0_PACK_READS_PER_XY_PLANE = "PACK_COUNTERS_SEC0_pack_reads_per_xy_plane", 24, 8, 8;
        PACK_COUNTERS_SEC0_PACK_XYS_PER_TILE = "PACK_COUNTERS_SEC0_pack_xys_per_tile", 24, 16, 7;
        PACK_COUNTERS_SEC0_PACK_YZ_TRANSPOSED = "PACK_COUNTERS_SEC0_pack_yz_transposed", 24, 23, 1;
        UNP0_ADD_DEST_ADDR_CNTR_ADD_DEST_ADDR_CNTR = "UNP0_ADD_DEST_ADDR_CNTR_add_dest_addr_cntr", 41, 8, 1;
        UNP0_ADDR_CTRL_XY_REG_1_XSTRIDE = "UNP0_ADDR_CTRL_XY_REG_1_Xstride", 44, 0, 12;
        UNP0_ADDR_CTRL_XY_REG_1_YSTRIDE = "UNP0_ADDR_CTRL_XY_REG_1_Ystride", 44, 12, 12;
        UNP0_ADDR_CTRL_ZW_REG_1_ZSTRIDE = "UNP0_ADDR_CTRL_ZW_REG_1_Zstride", 45, 0, 12;
        UNP0_ADDR_CTRL_ZW_REG_1_WSTRIDE = "UNP0_ADDR_CTRL_ZW_REG_1_Wstride", 45, 12, 16;
        UNP1_ADDR_CTRL_XY_REG_1_XSTRIDE = "UNP1_ADDR_CTRL_XY_REG_1_Xstride", 46, 0, 12;
        UNP1_ADDR_CTRL_XY_REG_1_YSTRIDE = "UNP1_ADDR_CTRL_XY_REG_1_Ystride", 46, 12, 12;
        UNP1_ADDR_CTRL_ZW_REG_1_ZSTRIDE = "UNP1_ADDR_CTRL_ZW_REG_1_Zstride", 47, 0, 12;
        UNP1_ADDR_CTRL_ZW_REG_1_WSTRIDE = "UNP1_ADDR_CTRL_ZW_REG_1_Wstride", 47, 12, 16;
        THCON_SEC0_REG0_TILE_DESCRIPTOR = "THCON_SEC0_REG0_TileDescriptor", 52, 0, 32;
        THCON_SEC1_REG0_TILE_DESCRIPTOR = "THCON_SEC1_REG0_TileDescriptor", 92, 0, 32;
        THCON_SEC0_REG1_ROW_START_SECTION_SIZE = "THCON_SEC0_REG1_Row_start_section_size", 56, 0, 16;
        THCON_SEC0_REG1_EXP_SECTION_SIZE = "THCON_SEC0_REG1_Exp_section_size", 56, 16, 16;
        THCON_SEC0_REG1_L1_DEST_ADDR = "THCON_SEC0_REG1_L1_Dest_addr", 57, 0, 32;
        THCON_SEC0_REG1_DISABLE_ZERO_COMPRESS = "THCON_SEC0_REG1_Disable_zero_compress", 58, 0, 1;
        THCON_SEC0_REG1_ADD_L1_DEST_ADDR_OFFSET = "THCON_SEC0_REG1_Add_l1_dest_addr_offset", 58, 1, 1;
        THCON_SEC0_REG1_DISABLE_PACK_ZERO_FLAGS = "THCON_SEC0_REG1_Disable_pack_zero_flags", 59, 22, 1;
        THCON_SEC0_REG1_OUT_DATA_FORMAT = "THCON_SEC0_REG1_Out_data_format", 58, 4, 4;
        THCON_SEC0_REG1_IN_DATA_FORMAT = "THCON_SEC0_REG1_In_data_format", 58, 8, 4;
        THCON_SEC0_REG1_SOURCE_INTERFACE_SELECTION = "THCON_SEC0_REG1_Source_interface_selection", 58, 16, 1;
        THCON_SEC0_REG1_PACK_L1_ACC = "THCON_SEC0_REG1_Pack_L1_Acc", 59, 21, 1;
        THCON_SEC0_REG2_OUT_DATA_FORMAT = "THCON_SEC0_REG2_Out_data_format", 60, 0, 4;
        THCON_SEC0_REG2_THROTTLE_MODE = "THCON_SEC0_REG2_Throttle_mode", 60, 4, 2;
        THCON_SEC0_REG2_HALOIZE_MODE = "THCON_SEC0_REG2_Haloize_mode", 60, 8, 1;
        THCON_SEC0_REG2_TILEIZE_MODE = "THCON_SEC0_REG2_Tileize_mode", 60, 9, 1;
        THCON_SEC0_REG2_UNPACK_SRC_REG_SET_UPD = "THCON_SEC0_REG2_Unpack_Src_Reg_Set_Upd", 60, 10, 1;
        THCON_SEC0_REG2_UNPACK_IF_SEL = "THCON_SEC0_REG2_Unpack_If_Sel", 60, 11, 1;
        THCON_SEC0_REG2_UPSAMPLE_RATE = "THCON_SEC0_REG2_Upsample_rate", 60, 12, 2;
        THCON_SEC0_REG2_OVRD_DATA_FORMAT = "THCON_SEC0_REG2_Ovrd_data_format", 60, 14, 1;
        THCON_SEC0_REG2_UPSAMPLE_AND_INTERLEAVE = "THCON_SEC0_REG2_Upsample_and_interleave", 60, 15, 1;
        THCON_SEC0_REG2_SHIFT_AMOUNT_CNTX0 = "THCON_SEC0_REG2_Shift_amount_cntx0", 60, 16, 4;
        THCON_SEC0_REG2_SHIFT_AMOUNT_CNTX1 = "THCON_SEC0_REG2_Shift_amount_cntx1", 60, 20, 4;
        THCON_SEC0_REG2_SHIFT_AMOUNT_CNTX2 = "THCON_SEC0_REG2_Shift_amount_cntx2", 60, 24, 4;
        THCON_SEC0_REG2_DISABLE_ZERO_COMPRESS_CNTX0 = "THCON_SEC0_REG2_Disable_zero_compress_cntx0", 61, 0, 1;
        THCON_SEC0_REG2_UNPACK_IF_SEL_CNTX0 = "THCON_SEC0_REG2_Unpack_if_sel_cntx0", 61, 4, 1;
        THCON_SEC0_REG2_FORCE_SHARED_EXP = "THCON_SEC0_REG2_Force_shared_exp", 61, 8, 1;
        THCON_SEC0_REG3_BASE_ADDRESS = "THCON_SEC0_REG3_Base_address", 64, 0, 32;
        THCON_SEC0_REG3_BASE_CNTX1_ADDRESS = "THCON_SEC0_REG3_Base_cntx1_address", 65, 0, 32;
        THCON_SEC0_REG5_DEST_CNTX0_ADDRESS = "THCON_SEC0_REG5_Dest_cntx0_address", 72, 0, 16;
        THCON_SEC0_REG5_TILE_X_DIM_CNTX0 = "THCON_SEC0_REG5_Tile_x_dim_cntx0", 74, 0, 16;
        THCON_SEC0_REG7_OFFSET_ADDRESS = "THCON_SEC0_REG7_Offset_address", 80, 0, 16;
        THCON_SEC1_REG2_OUT_DATA_FORMAT = "THCON_SEC1_REG2_Out_data_format", 100, 0, 4;
        THCON_SEC1_REG2_THROTTLE_MODE = "THCON_SEC1_REG2_Throttle_mode", 100, 4, 2;
        THCON_SEC1_REG2_HALOIZE_MODE = "THCON_SEC1_REG2_Haloize_mode", 100, 8, 1;
        THCON_SEC1_REG2_TILEIZE_MODE = "THCON_SEC1_REG2_Tileize_mode", 100, 9, 1;
        THCON_SEC1_REG2_UNPACK_SRC_REG_SET_UPD = "THCON_SEC1_REG2_Unpack_Src_Reg_Set_Upd", 100, 10, 1;
        THCON_SEC1_REG2_UPSAMPLE_RATE = "THCON_SEC1_REG2_Upsample_rate", 100, 12, 2;
        THCON_SEC1_REG2_OVRD_DATA_FORMAT = "THCON_SEC1_REG2_Ovrd_data_format", 100, 14, 1;
        THCON_SEC1_REG2_UPSAMPLE_AND_INTERLEAVE = "THCON_SEC1_REG2_Upsample_and_interleave", 100, 15, 1;
        THCON_SEC1_REG2_DISABLE_ZERO_COMPRESS_CNTX0 = "THCON_SEC1_REG2_Disable_zero_compress_cntx0", 101, 0, 1;
        THCON_SEC1_REG2_FORCE_SHARED_EXP = "THCON_SEC1_REG2_Force_shared_exp", 101, 8, 1;
        THCON_SEC1_REG3_BASE_ADDRESS = "THCON_SEC1_REG3_Base_address", 104, 0, 32;
        THCON_SEC1_REG3_BASE_CNTX1_ADDRESS = "THCON_SEC1_REG3_Base_cntx1_address", 105, 0, 32;
        THCON_SEC1_REG7_OFFSET_ADDRESS = "THCON_SEC1_REG7_Offset_address", 120, 0, 16;
        DEST_TARGET_REG_CFG_PACK_SEC0_OFFSET = "DEST_TARGET_REG_CFG_PACK_SEC0_Offset", 152, 0, 12;
        DEST_TARGET_REG_CFG_PACK_SEC0_ZOFFSET = "DEST_TARGET_REG_CFG_PACK_SEC0_ZOffset", 152, 12, 6;
    }

    fields! {
        ThreadField:
        CFG_STATE_ID_STATE_ID = "CFG_STATE_ID_StateID", 0, 0, 1;
        DEST_TARGET_REG_CFG_MATH_OFFSET = "DEST_TARGET_REG_CFG_MATH_Offset", 1, 0, 12;
        ADDR_MOD_SET_BASE = "ADDR_MOD_SET_Base", 2, 0, 1;
        SRCA_SET_BASE = "SRCA_SET_Base", 3, 0, 2;
        SRCA_SET_SET_OVRD_WITH_ADDR = "SRCA_SET_SetOvrdWithAddr", 3, 2, 1;
        SRCB_SET_BASE = "SRCB_SET_Base", 4, 0, 2;
        CLR_DVALID_SRC_A_DISABLE = "CLR_DVALID_SrcA_Disable", 5, 0, 1;
        CLR_DVALID_SRC_B_DISABLE = "CLR_DVALID_SrcB_Disable", 5, 1, 1;
        FIDELITY_BASE_PHASE = "FIDELITY_BASE_Phase", 6, 0, 2;
        UNPACK_MISC_CFG_CFG_CONTEXT_OFFSET_0 = "UNPACK_MISC_CFG_CfgContextOffset_0", 39, 0, 4;
        UNPACK_MISC_CFG_CFG_CONTEXT_OFFSET_1 = "UNPACK_MISC_CFG_CfgContextOffset_1", 39, 8, 4;
    }

    modes! {
        ADDR_MOD_AB_SRC_A_INCR = "ADDR_MOD_AB_SrcAIncr", 7, 0, 6, 8 by 2;
        ADDR_MOD_AB_SRC_A_CR = "ADDR_MOD_AB_SrcACR", 7, 6, 1, 8 by 2;
        ADDR_MOD_AB_SRC_A_CLEAR = "ADDR_MOD_AB_SrcAClear", 7, 7, 1, 8 by 2;
        ADDR_MOD_AB_SRC_B_INCR = "ADDR_MOD_AB_SrcBIncr", 7, 8, 6, 8 by 2;
        ADDR_MOD_AB_SRC_B_CR = "ADDR_MOD_AB_SrcBCR", 7, 14, 1, 8 by 2;
        ADDR_MOD_AB_SRC_B_CLEAR = "ADDR_MOD_AB_SrcBClear", 7, 15, 1, 8 by 2;
        ADDR_MOD_DST_DEST_INCR = "ADDR_MOD_DST_DestIncr", 23, 0, 10, 8 by 1;
        ADDR_MOD_DST_DEST_CR = "ADDR_MOD_DST_DestCR", 23, 10, 1, 8 by 1;
        ADDR_MOD_DST_DEST_CLEAR = "ADDR_MOD_DST_DestClear", 23, 11, 1, 8 by 1;
        ADDR_MOD_DST_DEST_C_TO_CR = "ADDR_MOD_DST_DestCToCR", 23, 12, 1, 8 by 1;
        ADDR_MOD_DST_FIDELITY_INCR = "ADDR_MOD_DST_FidelityIncr", 23, 13, 2, 8 by 1;
        ADDR_MOD_DST_FIDELITY_CLEAR = "ADDR_MOD_DST_FidelityClear", 23, 15, 1, 8 by 1;
        ADDR_MOD_BIAS_BIAS_INCR = "ADDR_MOD_BIAS_BiasIncr", 48, 0, 4, 8 by 1;
        ADDR_MOD_BIAS_BIAS_CLEAR = "ADDR_MOD_BIAS_BiasClear", 48, 4, 1, 8 by 1;
        ADDR_MOD_PACK_YSRC_INCR = "ADDR_MOD_PACK_YsrcIncr", 31, 0, 4, 8 by 1;
        ADDR_MOD_PACK_YSRC_CR = "ADDR_MOD_PACK_YsrcCR", 31, 4, 1, 8 by 1;
        ADDR_MOD_PACK_YSRC_CLEAR = "ADDR_MOD_PACK_YsrcClear", 31, 5, 1, 8 by 1;
        ADDR_MOD_PACK_YDST_INCR = "ADDR_MOD_PACK_YdstIncr", 31, 6, 4, 8 by 1;
        ADDR_MOD_PACK_YDST_CR = "ADDR_MOD_PACK_YdstCR", 31, 10, 1, 8 by 1;
        ADDR_MOD_PACK_YDST_CLEAR = "ADDR_MOD_PACK_YdstClear", 31, 11, 1, 8 by 1;
        ADDR_MOD_PACK_ZSRC_INCR = "ADDR_MOD_PACK_ZsrcIncr", 31, 12, 1, 8 by 1;
        ADDR_MOD_PACK_ZSRC_CLEAR = "ADDR_MOD_PACK_ZsrcClear", 31, 13, 1, 8 by 1;
        ADDR_MOD_PACK_ZDST_INCR = "ADDR_MOD_PACK_ZdstIncr", 31, 14, 1, 8 by 1;
        ADDR_MOD_PACK_ZDST_CLEAR = "ADDR_MOD_PACK_ZdstClear", 31, 15, 1, 8 by 1;
    }
}
