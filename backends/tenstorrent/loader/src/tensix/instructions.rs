// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Instructions. Most are the same on both chips.

use super::{Bits, Chip};

/// The bits of a value in a word, from the lowest on.
const fn place(value: u32, low: u32, width: u32) -> u32 {
    assert!(value <= mask(width), "a value is too large for its field, or the chip lacks the field");
    value << low
}

/// The largest value of so many bits.
const fn mask(width: u32) -> u32 {
    if width == 0 { 0 } else { u32::MAX >> (32 - width) }
}

/// An instruction: the width of each field, and where its bits are on each chip.
macro_rules! instruction {
    ($(#[$about:meta])* $name:ident = $opcode:literal {
        $($field:ident: $width:literal, ($low:literal, $bits:literal), ($wh_low:literal, $wh_bits:literal);)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $(
                #[doc = concat!("`", stringify!($field), "`")]
                pub $field: Bits<$width>,
            )*
        }

        impl $name {
            /// What the upper eight bits of the word are.
            pub const OPCODE: u32 = $opcode;

            const fn encode_for(self, chip: Chip) -> u32 {
                Self::OPCODE << 24 | match chip {
                    Chip::Blackhole => 0 $(| place(self.$field.get(), $low, $bits))*,
                    Chip::Wormhole => 0 $(| place(self.$field.get(), $wh_low, $wh_bits))*,
                }
            }

            /// The fields of a word, if it is this instruction and has no other bits.
            const fn decode(word: u32, chip: Chip) -> Option<Self> {
                let found = match chip {
                    Chip::Blackhole => Self { $($field: Bits::new(word >> $low & mask($bits)),)* },
                    Chip::Wormhole => Self { $($field: Bits::new(word >> $wh_low & mask($wh_bits)),)* },
                };
                if found.encode_for(chip) == word { Some(found) } else { None }
            }
        }

        const _: () = {
            // Fields that overlap add up to less than their widths.
            let one = 0_u32 $(| mask($bits) << $low)*;
            let other = 0_u32 $(| mask($wh_bits) << $wh_low)*;
            assert!(one >> 24 == 0 && one.count_ones() == 0 $(+ $bits)*, "fields overlap, or leave their word");
            assert!(other >> 24 == 0 && other.count_ones() == 0 $(+ $wh_bits)*, "fields overlap, or leave their word");
        };
    };
}

macro_rules! instructions {
    ($($(#[$about:meta])* $name:ident = $opcode:literal { $($field:ident: $low:literal, $width:literal;)* })*) => {$(
        instruction! {
            $(#[$about])*
            $name = $opcode { $($field: $width, ($low, $width), ($low, $width);)* }
        }

        impl $name {
            /// The word.
            pub const fn encode(self) -> u32 {
                self.encode_for(Chip::Blackhole)
            }
        }
    )*};
}

/// Instructions whose fields are elsewhere on Wormhole. A chip lacks a field that has no bits there.
macro_rules! different {
    ($($(#[$about:meta])* $name:ident = $opcode:literal { $($fields:tt)* })*) => {$(
        instruction! { $(#[$about])* $name = $opcode { $($fields)* } }

        impl $name {
            /// The word.
            ///
            /// # Panics
            /// When a value does not fit, or is of a field that the chip lacks: for constants that is an error of
            /// compilation.
            pub const fn encode(self, chip: Chip) -> u32 {
                self.encode_for(chip)
            }
        }
    )*};
}

macro_rules! set {
    ($($name:ident,)*) => {
        /// An instruction.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Instruction {
            $(
                #[doc = concat!("See [`", stringify!($name), "`].")]
                $name($name),
            )*
        }

        impl Instruction {
            /// The word.
            pub const fn encode(self, chip: Chip) -> u32 {
                match self { $(Self::$name(fields) => fields.encode_for(chip),)* }
            }

            /// What a word is to a chip, if it is known here and has no bits outside of its fields.
            pub const fn decode(word: u32, chip: Chip) -> Option<Self> {
                match word >> 24 {
                    $($name::OPCODE => match $name::decode(word, chip) {
                        Some(fields) => Some(Self::$name(fields)),
                        None => None,
                    },)*
                    _ => None,
                }
            }
        }
    };
}

/// Bits that choose what an instruction of a counter group (`ADCs.md`) works on: `U0`, `U1` and `PK`.
pub mod counters {
    use super::Bits;

    /// The counters of unpacker 0.
    pub const UNPACKER_0: Bits<3> = Bits::new(1);
    /// The counters of unpacker 1.
    pub const UNPACKER_1: Bits<3> = Bits::new(2);
    /// The counters of the packers.
    pub const PACKERS: Bits<3> = Bits::new(4);
}

/// Bits of the block mask of `STALLWAIT` and `SEMWAIT` (`STALLWAIT.md`): what is kept from starting.
pub mod block {
    /// B0: the miscellaneous unit, the mover, the scalar unit, packers, and unpackers.
    pub const THREAD_CONTROL: u32 = 1 << 0;
    /// B1: the synchronisation unit.
    pub const SYNC: u32 = 1 << 1;
    /// B2: packers.
    pub const PACK: u32 = 1 << 2;
    /// B3: unpackers.
    pub const UNPACK: u32 = 1 << 3;
    /// B5: the scalar unit.
    pub const SCALAR: u32 = 1 << 5;
    /// B6: the matrix unit.
    pub const MATH: u32 = 1 << 6;
    /// B7: the configuration unit.
    pub const CONFIG: u32 = 1 << 7;
}

instructions! {
    /// Expands to a sequence of instructions by the words of `MopCfg` (`MOP.md`, `MOPExpander.md`).
    Mop = 0x01 { mask_lo: 0, 16; count1: 16, 7; template: 23, 1; }
    /// Does nothing.
    Nop = 0x02 { }
    /// The upper half of the mask of the next [`Mop`] (`MOP_CFG.md`).
    MopCfg = 0x03 { mask_hi: 0, 16; }
    /// Keeps or replays instructions (`REPLAY.md`).
    Replay = 0x04 { load: 0, 1; exec: 1, 1; count: 4, 6; index: 14, 5; }
    /// Clears `SrcA` or `SrcB` (`ZEROSRC.md`).
    Zerosrc = 0x11 {
        clear_src_a: 0, 1; clear_src_b: 1, 1; both_banks: 2, 1; single_bank_matrix_unit: 3, 1;
        negative_inf_src_a: 4, 1;
    }
    /// Gives banks of `SrcA` and `SrcB` back to the unpackers (`CLEARDVALID.md`).
    Cleardvalid = 0x36 {
        reset: 0, 1; keep_reading_same_src: 1, 1; flip_src_a: 22, 1; flip_src_b: 23, 1;
    }
    /// Sets the matrix unit's counters (`SETRWC.md`).
    Setrwc = 0x37 {
        src_a: 0, 1; src_b: 1, 1; dst: 2, 1; fidelity: 3, 1; src_a_val: 6, 4; src_b_val: 10, 4; dst_val: 14, 4;
        src_a_cr: 18, 1; src_b_cr: 19, 1; dst_cr: 20, 1; dst_c_to_cr: 21, 1; flip_src_a: 22, 1; flip_src_b: 23, 1;
    }
    /// Adds to the matrix unit's counters (`INCRWC.md`).
    Incrwc = 0x38 {
        src_a_inc: 6, 4; src_b_inc: 10, 4; dst_inc: 14, 4; src_a_cr: 18, 1; src_b_cr: 19, 1; dst_cr: 20, 1;
    }
    /// Moves data from memory to `SrcA` (by unpacker 0) or `SrcB` (by unpacker 1) (`UNPACR_Regular.md`).
    Unpacr = 0x42 {
        last: 0, 1; row_search: 2, 1; use_context_counter: 3, 1; all_datums_are_zero: 4, 1; flip_src: 6, 1;
        multi_context_mode: 7, 1; context_adc: 8, 2; context_number: 10, 3; ch0_z_inc: 15, 2; ch0_y_inc: 17, 2;
        ch1_z_inc: 19, 2; ch1_y_inc: 21, 2; which_unpacker: 23, 1;
    }
    /// Sets half of a register of the scalar unit (`SETDMAREG_Immediate.md`).
    Setdmareg = 0x45 { result_half_reg: 0, 7; new_value: 8, 16; }
    /// Sets a counter of unpackers or packers (`SETADC.md`).
    Setadc = 0x50 { new_value: 0, 18; xyzw: 18, 2; channel: 20, 1; counters: 21, 3; }
    /// Sets counters X and Y (`SETADCXY.md`).
    Setadcxy = 0x51 {
        x0: 0, 1; y0: 1, 1; x1: 2, 1; y1: 3, 1; thread_override: 4, 2; x0_val: 6, 3; y0_val: 9, 3; x1_val: 12, 3;
        y1_val: 15, 3; counters: 21, 3;
    }
    /// Adds to counters X and Y (`INCADCXY.md`).
    Incadcxy = 0x52 {
        thread_override: 4, 2; x0_inc: 6, 3; y0_inc: 9, 3; x1_inc: 12, 3; y1_inc: 15, 3; counters: 21, 3;
    }
    /// Sets counters Z and W (`SETADCZW.md`).
    Setadczw = 0x54 {
        z0: 0, 1; w0: 1, 1; z1: 2, 1; w1: 3, 1; thread_override: 4, 2; z0_val: 6, 3; w0_val: 9, 3; z1_val: 12, 3;
        w1_val: 15, 3; counters: 21, 3;
    }
    /// Adds to counters Z and W (`INCADCZW.md`).
    Incadczw = 0x55 {
        thread_override: 4, 2; z0_inc: 6, 3; w0_inc: 9, 3; z1_inc: 12, 3; w1_inc: 15, 3; counters: 21, 3;
    }
    /// Sets counters X of both channels: where data begins and ends (`SETADCXX.md`).
    Setadcxx = 0x5e { x0_val: 0, 10; x1_val: 10, 10; counters: 21, 3; }
    /// Writes registers of the scalar unit to the configuration (`WRCFG.md`).
    Wrcfg = 0xb0 { cfg_index: 0, 11; is_128_bit: 15, 1; input_reg: 16, 6; }
    /// Writes the thread's own configuration (`SETC16.md`).
    Setc16 = 0xb2 { new_value: 0, 16; cfg_index: 16, 8; }
    /// Sets semaphores (`SEMINIT.md`).
    Seminit = 0xa3 { semaphore_mask: 2, 8; new_value: 16, 4; new_max: 20, 4; }
    /// Adds one to semaphores (`SEMPOST.md`).
    Sempost = 0xa4 { semaphore_mask: 2, 8; }
    /// Takes one from semaphores (`SEMGET.md`).
    Semget = 0xa5 { semaphore_mask: 2, 8; }
    /// Keeps instructions of the thread from starting while a semaphore is zero (C0) or at its maximum (C1)
    /// (`SEMWAIT.md`).
    Semwait = 0xa6 { condition_mask: 0, 2; semaphore_mask: 2, 8; block_mask: 15, 9; }
}

different! {
    /// Makes rows of `Dst` undefined, which read as zeros (`ZEROACC.md`).
    Zeroacc = 0x10 {
        imm10: 10, (0, 10), (0, 10); addr_mod: 3, (14, 3), (15, 2); revert: 1, (17, 1), (0, 0);
        use_dst32b: 1, (18, 1), (21, 1); mode: 2, (19, 2), (19, 2);
    }
    /// Adds a product of eight rows of `SrcB` and sixteen of `SrcA` to eight of `Dst` (`MVMUL.md`).
    Mvmul = 0x26 {
        dst_row: 10, (0, 10), (0, 10); addr_mod: 3, (14, 3), (15, 2); broadcast_src_b_row: 1, (19, 1), (19, 1);
        flip_src_a: 1, (22, 1), (22, 1); flip_src_b: 1, (23, 1), (23, 1);
    }
    /// Moves data from `Dst` to memory (`PACR.md`): by one packer with several interfaces that read `Dst`
    /// (Blackhole), or by several packers (Wormhole).
    Pacr = 0x41 {
        last: 1, (0, 1), (0, 1); flush: 1, (1, 1), (1, 1); ctxt_ctrl: 2, (2, 2), (0, 0);
        concat: 1, (4, 1), (4, 1); ovrd_thread_id: 1, (7, 1), (7, 1); read_intf_sel: 4, (8, 4), (0, 0);
        packer_mask: 4, (0, 0), (8, 4); zero_write: 1, (12, 1), (12, 1); addr_cnt_context: 2, (13, 2), (0, 0);
        addr_mod: 2, (15, 2), (15, 2); dst_access_mode: 1, (17, 1), (0, 0); row_pad_zero: 3, (18, 3), (0, 0);
        cfg_context: 2, (21, 2), (0, 0);
    }
    /// Clears a bank of `SrcA` or `SrcB`, or gives it to the matrix unit (`UNPACR_NOP.md`): what, says `unpack_pop`
    /// with other fields (Blackhole), or `no_op` (Wormhole).
    UnpacrNop = 0x43 {
        unpack_pop: 2, (0, 2), (0, 0); src_clr_val_ctrl: 2, (2, 2), (0, 0); bank_clr_ctrl: 1, (4, 1), (0, 0);
        stall_clr_cntrl: 1, (5, 1), (0, 0); clr_to1_fmt_ctrl: 2, (6, 2), (0, 0); set_dvalid: 1, (8, 1), (0, 0);
        msg_clr_cnt: 3, (12, 3), (0, 0); stream_id: 6, (16, 6), (0, 0); no_op: 5, (0, 0), (0, 5);
        unpacker_select: 1, (23, 1), (23, 1);
    }
    /// Keeps instructions of the thread from starting until others have ended (`STALLWAIT.md`).
    /// [`Conditions`](super::Conditions) has the bits of what is waited for.
    Stallwait = 0xa2 { condition_mask: 15, (0, 12), (0, 15); block_mask: 9, (15, 9), (15, 9); }
}

set! {
    Mop, Nop, MopCfg, Replay, Zeroacc, Zerosrc, Mvmul, Cleardvalid, Setrwc, Incrwc, Pacr, Unpacr, UnpacrNop,
    Setdmareg, Setadc, Setadcxy, Incadcxy, Setadczw, Incadczw, Setadcxx, Stallwait, Seminit, Sempost, Semget,
    Semwait, Wrcfg, Setc16,
}
