// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The fields of the engine's configuration, by chip.
//!
//! [`Field`]s are in the words that all threads share, which cores write in memory from [`BASE`] on. [`ThreadField`]s
//! are in those that each thread has for itself, and [`Setc16`] writes.

use super::Bits;
use super::instructions::Setc16;

/// The address of the first word of the configuration, for the tile's cores.
pub const BASE: u32 = 0xffef_0000;

/// A field in a word that all threads share. On some chips it has fewer bits than its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<const WIDTH: u32> {
    /// Its name in the documentation.
    pub name: &'static str,
    /// The number of its word.
    pub word: u32,
    /// Its lowest bit.
    pub low: u32,
    /// How many bits it has.
    pub width: u32,
}

/// A field in a word that each thread has.
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
    ///
    /// # Panics
    /// When the chip has too few of them, which is an error of the program: sizes are the same for all values.
    pub const fn place(self, value: Bits<WIDTH>) -> u32 {
        assert!(value.get() <= u32::MAX >> (32 - self.width), "a value is too large for its field");
        value.get() << self.low
    }

    /// All bits of it in its word.
    pub const fn mask(self) -> u32 {
        u32::MAX >> (32 - self.width) << self.low
    }

    /// Its value in its word.
    pub const fn read(self, word: u32) -> Bits<WIDTH> {
        Bits::wrapping((word & self.mask()) >> self.low)
    }

    /// The same field of a word so much further.
    #[must_use]
    pub const fn further(self, words: u32) -> Self {
        Self { word: self.word + words, ..self }
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

/// A field of each mode: in a word for each, so far behind the other.
const fn modes<const WIDTH: u32, const COUNT: usize>(
    name: &'static str,
    low: u32,
    (first, step): (u32, u32),
) -> [ThreadField<WIDTH>; COUNT] {
    let mut modes = [ThreadField { name, word: first, low }; COUNT];
    let mut mode = 1;
    #[expect(clippy::indexing_slicing, reason = "an index that is too large does not compile")]
    while mode < COUNT {
        modes[mode].word = modes[mode - 1].word + step;
        mode += 1;
    }
    modes
}

macro_rules! registers {
    (
        fields { $($field:ident: $width:literal = $text:literal, ($word:literal, $low:literal),
            ($wh_word:literal, $wh_low:literal, $wh_width:literal);)* }
        threads { $($own:ident: $own_width:literal = $own_text:literal, ($own_word:literal, $own_low:literal),
            ($own_wh_word:literal, $own_wh_low:literal);)* }
        modes { $($mode:ident: [$mode_width:literal; $count:literal] = $mode_text:literal, $mode_low:literal,
            $steps:expr, $wh_steps:expr;)* }
    ) => {
        /// The registers of an engine.
        #[derive(Clone, Debug)]
        pub struct Registers {
            $(#[doc = concat!("`", $text, "`")] pub $field: Field<$width>,)*
            $(#[doc = concat!("`", $own_text, "`")] pub $own: ThreadField<$own_width>,)*
            $(
                #[doc = concat!("`", $mode_text, "`, of each mode")]
                pub $mode: [ThreadField<$mode_width>; $count],
            )*
            /// `DISABLE_IMPLIED_SRCA_FMT_Base` and the same for `SRCB`: the format of a source is what the unit's
            /// configuration says, and not that in which it was unpacked. Where they are missing, it always is.
            pub disable_implied_fmt: Option<[ThreadField<1>; 2]>,
            /// `ADDR_MOD_SET_Base`, which chooses modes 4 to 7 where instructions have two bits for it.
            pub addr_mod_set_base: Option<ThreadField<1>>,
            /// How far the words of the packers behind the first are behind its own: those of `THCON`, and
            /// of `PACK_COUNTERS`.
            pub other_packers: &'static [(u32, u32)],
        }

        pub(super) static BLACKHOLE: Registers = Registers {
            $($field: Field { name: $text, word: $word, low: $low, width: $width },)*
            $($own: ThreadField { name: $own_text, word: $own_word, low: $own_low },)*
            $($mode: modes($mode_text, $mode_low, $steps),)*
            disable_implied_fmt: Some([
                ThreadField { name: "DISABLE_IMPLIED_SRCA_FMT_Base", word: 2, low: 0 },
                ThreadField { name: "DISABLE_IMPLIED_SRCB_FMT_Base", word: 3, low: 0 },
            ]),
            addr_mod_set_base: None,
            other_packers: &[],
        };

        pub(super) static WORMHOLE: Registers = Registers {
            $($field: Field { name: $text, word: $wh_word, low: $wh_low, width: $wh_width },)*
            $($own: ThreadField { name: $own_text, word: $own_wh_word, low: $own_wh_low },)*
            $($mode: modes($mode_text, $mode_low, $wh_steps),)*
            disable_implied_fmt: None,
            addr_mod_set_base: Some(ThreadField { name: "ADDR_MOD_SET_Base", word: 2, low: 0 }),
            other_packers: &[(28, 1), (40, 2), (68, 3)],
        };
    };
}

// A field's name, how many bits its values have, its name in the documentation; its word and lowest bit on Blackhole;
// these and its width on Wormhole. Modes have the same bits on both, and the first word and the step to the next.
registers! {
    fields {
        alu_format_spec_reg0_src_a_unsigned: 1 = "ALU_FORMAT_SPEC_REG0_SrcAUnsigned", (1, 15), (1, 15, 1);
        alu_format_spec_reg0_src_b_unsigned: 1 = "ALU_FORMAT_SPEC_REG0_SrcBUnsigned", (1, 16), (1, 16, 1);
        alu_format_spec_reg0_src_a: 4 = "ALU_FORMAT_SPEC_REG0_SrcA", (1, 17), (1, 17, 4);
        alu_format_spec_reg1_src_b: 4 = "ALU_FORMAT_SPEC_REG1_SrcB", (1, 21), (1, 21, 4);
        alu_format_spec_reg2_dstacc: 4 = "ALU_FORMAT_SPEC_REG2_Dstacc", (1, 25), (1, 25, 4);
        alu_acc_ctrl_fp32_enabled: 1 = "ALU_ACC_CTRL_Fp32_enabled", (1, 29), (1, 29, 1);
        alu_acc_ctrl_sfpu_fp32_enabled: 1 = "ALU_ACC_CTRL_SFPU_Fp32_enabled", (1, 30), (1, 30, 1);
        alu_acc_ctrl_int8_math_enabled: 1 = "ALU_ACC_CTRL_INT8_math_enabled", (1, 31), (1, 31, 1);
        alu_acc_ctrl_zero_flag_disabled_src: 1 = "ALU_ACC_CTRL_Zero_Flag_disabled_src", (2, 0), (2, 0, 1);
        alu_acc_ctrl_zero_flag_disabled_dst: 1 = "ALU_ACC_CTRL_Zero_Flag_disabled_dst", (2, 1), (2, 1, 1);
        stacc_relu_apply_relu: 4 = "STACC_RELU_ApplyRelu", (2, 2), (2, 2, 4);
        pck0_addr_ctrl_xy_reg_0_xstride: 16 = "PCK0_ADDR_CTRL_XY_REG_0_Xstride", (12, 0), (8, 0, 12);
        pck0_addr_ctrl_xy_reg_0_ystride: 16 = "PCK0_ADDR_CTRL_XY_REG_0_Ystride", (12, 16), (8, 12, 12);
        pck0_addr_ctrl_zw_reg_0_zstride: 16 = "PCK0_ADDR_CTRL_ZW_REG_0_Zstride", (13, 0), (9, 0, 12);
        pck0_addr_ctrl_zw_reg_0_wstride: 16 = "PCK0_ADDR_CTRL_ZW_REG_0_Wstride", (13, 16), (9, 12, 16);
        pck0_addr_ctrl_xy_reg_1_xstride: 16 = "PCK0_ADDR_CTRL_XY_REG_1_Xstride", (14, 0), (10, 0, 12);
        pck0_addr_ctrl_xy_reg_1_ystride: 16 = "PCK0_ADDR_CTRL_XY_REG_1_Ystride", (14, 16), (10, 12, 12);
        pck0_addr_ctrl_zw_reg_1_zstride: 16 = "PCK0_ADDR_CTRL_ZW_REG_1_Zstride", (15, 0), (11, 0, 12);
        pck0_addr_ctrl_zw_reg_1_wstride: 16 = "PCK0_ADDR_CTRL_ZW_REG_1_Wstride", (15, 16), (11, 12, 16);
        pck_dest_rd_ctrl_read_32b_data: 1 = "PCK_DEST_RD_CTRL_Read_32b_data", (18, 0), (14, 0, 1);
        pck_dest_rd_ctrl_read_unsigned: 1 = "PCK_DEST_RD_CTRL_Read_unsigned", (18, 1), (14, 1, 1);
        tile_row_set_mapping_0_row_set_mapping_0: 2 = "TILE_ROW_SET_MAPPING_0_row_set_mapping_0", (20, 0), (16, 0, 2);
        pck_edge_offset_sec0_mask: 16 = "PCK_EDGE_OFFSET_SEC0_mask", (24, 0), (20, 0, 16);
        pck_edge_offset_sec1_mask: 16 = "PCK_EDGE_OFFSET_SEC1_mask", (25, 0), (21, 0, 16);
        pck_edge_tile_row_set_select_select: 8 = "PCK_EDGE_TILE_ROW_SET_SELECT_select", (24, 17), (20, 17, 8);
        pack_counters_sec0_pack_per_xy_plane: 8 = "PACK_COUNTERS_SEC0_pack_per_xy_plane", (28, 0), (24, 0, 8);
        pack_counters_sec0_pack_reads_per_xy_plane: 8 = "PACK_COUNTERS_SEC0_pack_reads_per_xy_plane",
            (28, 8), (24, 8, 8);
        pack_counters_sec0_pack_xys_per_tile: 7 = "PACK_COUNTERS_SEC0_pack_xys_per_tile", (28, 16), (24, 16, 7);
        unp0_add_dest_addr_cntr_add_dest_addr_cntr: 1 = "UNP0_ADD_DEST_ADDR_CNTR_add_dest_addr_cntr",
            (50, 8), (41, 8, 1);
        unp0_addr_ctrl_xy_reg_1_xstride: 16 = "UNP0_ADDR_CTRL_XY_REG_1_Xstride", (56, 0), (44, 0, 12);
        unp0_addr_ctrl_xy_reg_1_ystride: 16 = "UNP0_ADDR_CTRL_XY_REG_1_Ystride", (56, 16), (44, 12, 12);
        unp0_addr_ctrl_zw_reg_1_zstride: 16 = "UNP0_ADDR_CTRL_ZW_REG_1_Zstride", (57, 0), (45, 0, 12);
        unp0_addr_ctrl_zw_reg_1_wstride: 16 = "UNP0_ADDR_CTRL_ZW_REG_1_Wstride", (57, 16), (45, 12, 16);
        unp1_addr_ctrl_xy_reg_1_xstride: 16 = "UNP1_ADDR_CTRL_XY_REG_1_Xstride", (58, 0), (46, 0, 12);
        unp1_addr_ctrl_xy_reg_1_ystride: 16 = "UNP1_ADDR_CTRL_XY_REG_1_Ystride", (58, 16), (46, 12, 12);
        unp1_addr_ctrl_zw_reg_1_zstride: 16 = "UNP1_ADDR_CTRL_ZW_REG_1_Zstride", (59, 0), (47, 0, 12);
        unp1_addr_ctrl_zw_reg_1_wstride: 16 = "UNP1_ADDR_CTRL_ZW_REG_1_Wstride", (59, 16), (47, 12, 16);
        thcon_sec0_reg0_tile_descriptor: 32 = "THCON_SEC0_REG0_TileDescriptor", (64, 0), (52, 0, 32);
        thcon_sec1_reg0_tile_descriptor: 32 = "THCON_SEC1_REG0_TileDescriptor", (112, 0), (92, 0, 32);
        thcon_sec0_reg1_row_start_section_size: 16 = "THCON_SEC0_REG1_Row_start_section_size", (68, 0), (56, 0, 16);
        thcon_sec0_reg1_l1_dest_addr: 32 = "THCON_SEC0_REG1_L1_Dest_addr", (69, 0), (57, 0, 32);
        thcon_sec0_reg1_disable_zero_compress: 1 = "THCON_SEC0_REG1_Disable_zero_compress", (70, 0), (58, 0, 1);
        thcon_sec0_reg1_out_data_format: 4 = "THCON_SEC0_REG1_Out_data_format", (70, 4), (58, 4, 4);
        thcon_sec0_reg1_in_data_format: 4 = "THCON_SEC0_REG1_In_data_format", (70, 8), (58, 8, 4);
        thcon_sec0_reg1_pack_l1_acc: 1 = "THCON_SEC0_REG1_Pack_L1_Acc", (71, 19), (59, 21, 1);
        thcon_sec0_reg2_out_data_format: 4 = "THCON_SEC0_REG2_Out_data_format", (72, 0), (60, 0, 4);
        thcon_sec0_reg2_throttle_mode: 2 = "THCON_SEC0_REG2_Throttle_mode", (72, 4), (60, 4, 2);
        thcon_sec0_reg2_haloize_mode: 1 = "THCON_SEC0_REG2_Haloize_mode", (72, 8), (60, 8, 1);
        thcon_sec0_reg2_tileize_mode: 1 = "THCON_SEC0_REG2_Tileize_mode", (72, 9), (60, 9, 1);
        thcon_sec0_reg2_shift_amount_cntx0: 4 = "THCON_SEC0_REG2_Shift_amount_cntx0", (72, 16), (60, 16, 4);
        thcon_sec0_reg2_shift_amount_cntx1: 4 = "THCON_SEC0_REG2_Shift_amount_cntx1", (72, 20), (60, 20, 4);
        thcon_sec0_reg2_shift_amount_cntx2: 4 = "THCON_SEC0_REG2_Shift_amount_cntx2", (72, 24), (60, 24, 4);
        thcon_sec0_reg2_disable_zero_compress_cntx0: 1 = "THCON_SEC0_REG2_Disable_zero_compress_cntx0",
            (73, 0), (61, 0, 1);
        thcon_sec0_reg3_base_address: 32 = "THCON_SEC0_REG3_Base_address", (76, 0), (64, 0, 32);
        thcon_sec0_reg3_base_cntx1_address: 32 = "THCON_SEC0_REG3_Base_cntx1_address", (77, 0), (65, 0, 32);
        thcon_sec0_reg5_dest_cntx0_address: 16 = "THCON_SEC0_REG5_Dest_cntx0_address", (84, 0), (72, 0, 16);
        thcon_sec0_reg5_tile_x_dim_cntx0: 16 = "THCON_SEC0_REG5_Tile_x_dim_cntx0", (86, 0), (74, 0, 16);
        thcon_sec0_reg7_offset_address: 16 = "THCON_SEC0_REG7_Offset_address", (92, 0), (80, 0, 16);
        thcon_sec1_reg2_out_data_format: 4 = "THCON_SEC1_REG2_Out_data_format", (120, 0), (100, 0, 4);
        thcon_sec1_reg2_throttle_mode: 2 = "THCON_SEC1_REG2_Throttle_mode", (120, 4), (100, 4, 2);
        thcon_sec1_reg2_disable_zero_compress_cntx0: 1 = "THCON_SEC1_REG2_Disable_zero_compress_cntx0",
            (121, 0), (101, 0, 1);
        thcon_sec1_reg3_base_address: 32 = "THCON_SEC1_REG3_Base_address", (124, 0), (104, 0, 32);
        thcon_sec1_reg3_base_cntx1_address: 32 = "THCON_SEC1_REG3_Base_cntx1_address", (125, 0), (105, 0, 32);
        thcon_sec1_reg7_offset_address: 16 = "THCON_SEC1_REG7_Offset_address", (140, 0), (120, 0, 16);
        dest_target_reg_cfg_pack_sec0_offset: 12 = "DEST_TARGET_REG_CFG_PACK_SEC0_Offset", (180, 0), (152, 0, 12);
    }
    threads {
        cfg_state_id_state_id: 1 = "CFG_STATE_ID_StateID", (0, 0), (0, 0);
        dest_target_reg_cfg_math_offset: 12 = "DEST_TARGET_REG_CFG_MATH_Offset", (1, 0), (1, 0);
        srca_set_set_ovrd_with_addr: 1 = "SRCA_SET_SetOvrdWithAddr", (5, 2), (3, 2);
        clr_dvalid_src_a_disable: 1 = "CLR_DVALID_SrcA_Disable", (7, 0), (5, 0);
        clr_dvalid_src_b_disable: 1 = "CLR_DVALID_SrcB_Disable", (7, 1), (5, 1);
        fidelity_base_phase: 2 = "FIDELITY_BASE_Phase", (11, 0), (6, 0);
        unpack_misc_cfg_cfg_context_offset_0: 4 = "UNPACK_MISC_CFG_CfgContextOffset_0", (41, 0), (39, 0);
        unpack_misc_cfg_cfg_context_offset_1: 4 = "UNPACK_MISC_CFG_CfgContextOffset_1", (41, 8), (39, 8);
    }
    modes {
        addr_mod_ab_src_a_incr: [6; 8] = "ADDR_MOD_AB_SrcAIncr", 0, (12, 1), (7, 2);
        addr_mod_ab_src_a_cr: [1; 8] = "ADDR_MOD_AB_SrcACR", 6, (12, 1), (7, 2);
        addr_mod_ab_src_a_clear: [1; 8] = "ADDR_MOD_AB_SrcAClear", 7, (12, 1), (7, 2);
        addr_mod_ab_src_b_incr: [6; 8] = "ADDR_MOD_AB_SrcBIncr", 8, (12, 1), (7, 2);
        addr_mod_ab_src_b_cr: [1; 8] = "ADDR_MOD_AB_SrcBCR", 14, (12, 1), (7, 2);
        addr_mod_ab_src_b_clear: [1; 8] = "ADDR_MOD_AB_SrcBClear", 15, (12, 1), (7, 2);
        addr_mod_dst_dest_incr: [10; 8] = "ADDR_MOD_DST_DestIncr", 0, (28, 1), (23, 1);
        addr_mod_dst_dest_cr: [1; 8] = "ADDR_MOD_DST_DestCR", 10, (28, 1), (23, 1);
        addr_mod_dst_dest_clear: [1; 8] = "ADDR_MOD_DST_DestClear", 11, (28, 1), (23, 1);
        addr_mod_dst_dest_c_to_cr: [1; 8] = "ADDR_MOD_DST_DestCToCR", 12, (28, 1), (23, 1);
        addr_mod_dst_fidelity_incr: [2; 8] = "ADDR_MOD_DST_FidelityIncr", 13, (28, 1), (23, 1);
        addr_mod_dst_fidelity_clear: [1; 8] = "ADDR_MOD_DST_FidelityClear", 15, (28, 1), (23, 1);
        addr_mod_bias_bias_incr: [4; 8] = "ADDR_MOD_BIAS_BiasIncr", 0, (47, 1), (48, 1);
        addr_mod_pack_ysrc_incr: [4; 4] = "ADDR_MOD_PACK_YsrcIncr", 0, (37, 1), (31, 1);
        addr_mod_pack_ysrc_cr: [1; 4] = "ADDR_MOD_PACK_YsrcCR", 4, (37, 1), (31, 1);
        addr_mod_pack_ysrc_clear: [1; 4] = "ADDR_MOD_PACK_YsrcClear", 5, (37, 1), (31, 1);
        addr_mod_pack_ydst_incr: [4; 4] = "ADDR_MOD_PACK_YdstIncr", 6, (37, 1), (31, 1);
        addr_mod_pack_ydst_cr: [1; 4] = "ADDR_MOD_PACK_YdstCR", 10, (37, 1), (31, 1);
        addr_mod_pack_ydst_clear: [1; 4] = "ADDR_MOD_PACK_YdstClear", 11, (37, 1), (31, 1);
        addr_mod_pack_zsrc_incr: [1; 4] = "ADDR_MOD_PACK_ZsrcIncr", 12, (37, 1), (31, 1);
        addr_mod_pack_zsrc_clear: [1; 4] = "ADDR_MOD_PACK_ZsrcClear", 13, (37, 1), (31, 1);
        addr_mod_pack_zdst_incr: [1; 4] = "ADDR_MOD_PACK_ZdstIncr", 14, (37, 1), (31, 1);
        addr_mod_pack_zdst_clear: [1; 4] = "ADDR_MOD_PACK_ZdstClear", 15, (37, 1), (31, 1);
    }
}
