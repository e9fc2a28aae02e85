// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Instructions. Most are the same on both chips; [`blackhole`] and [`wormhole`] have all that theirs knows.

use super::Bits;

macro_rules! instructions {
    ($($(#[$about:meta])* $name:ident = $opcode:literal { $($field:ident: $low:literal, $width:literal;)* })*) => {$(
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

            /// The word.
            pub const fn encode(self) -> u32 {
                Self::OPCODE << 24 $(| self.$field.get() << $low)*
            }

            /// The fields of a word, if it is this instruction and has no other bits.
            pub const fn decode(word: u32) -> Option<Self> {
                let found = Self { $($field: Bits::wrapping(word >> $low),)* };
                if found.encode() == word { Some(found) } else { None }
            }
        }

        const _: () = {
            // Fields that overlap add up to less than their widths.
            let fields = $name { $($field: Bits::MAX,)* }.encode() & 0x00ff_ffff;
            assert!(fields.count_ones() == 0 $(+ $width)*, "fields overlap, or leave their word");
        };
    )*};
}

macro_rules! set {
    ($(#[$about:meta])* $($name:ident,)*) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Instruction {
            $(
                #[doc = concat!("See [`", stringify!($name), "`].")]
                $name($name),
            )*
        }

        impl Instruction {
            /// The word.
            pub const fn encode(self) -> u32 {
                match self { $(Self::$name(fields) => fields.encode(),)* }
            }

            /// What a word is, if it is known here and has no bits outside of its fields.
            pub const fn decode(word: u32) -> Option<Self> {
                match word >> 24 {
                    $($name::OPCODE => match $name::decode(word) {
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

/// The instructions of a Blackhole tile.
pub mod blackhole {
    use super::Bits;
    pub use super::{
        Cleardvalid, Incadcxy, Incadczw, Incrwc, Mop, MopCfg, Nop, Replay, Semget, Seminit, Sempost, Semwait,
        Setadc, Setadcxx, Setadcxy, Setadczw, Setc16, Setdmareg, Setrwc, Unpacr, Wrcfg, Zerosrc,
    };

    /// Bits of the condition mask of `STALLWAIT`: what is waited for the end of. The bits are not Wormhole's.
    pub mod condition {
        /// The scalar unit's requests to memory.
        pub const SCALAR: u32 = 1 << 0;
        /// The thread's instructions in unpacker 0.
        pub const UNPACK_0: u32 = 1 << 1;
        /// The thread's instructions in unpacker 1.
        pub const UNPACK_1: u32 = 1 << 2;
        /// The thread's instructions in the packer.
        pub const PACK: u32 = 1 << 3;
        /// The thread's instructions in the matrix unit.
        pub const MATH: u32 = 1 << 4;
        /// A bank of `SrcA` that its unpacker cannot write yet.
        pub const SRC_A_CLEARED: u32 = 1 << 5;
        /// A bank of `SrcB` that its unpacker cannot write yet.
        pub const SRC_B_CLEARED: u32 = 1 << 6;
        /// A bank of `SrcA` that the matrix unit cannot read yet.
        pub const SRC_A_VALID: u32 = 1 << 7;
        /// A bank of `SrcB` that the matrix unit cannot read yet.
        pub const SRC_B_VALID: u32 = 1 << 8;
        /// Requests of the thread's core to the configuration.
        pub const CORE: u32 = 1 << 10;
    }

    instructions! {
        /// Makes rows of `Dst` undefined, which read as zeros (`ZEROACC.md`).
        Zeroacc = 0x10 { imm10: 0, 10; addr_mod: 14, 3; revert: 17, 1; use_dst32b: 18, 1; mode: 19, 2; }
        /// Adds a product of eight rows of `SrcB` and sixteen of `SrcA` to eight of `Dst` (`MVMUL.md`).
        Mvmul = 0x26 {
            dst_row: 0, 10; addr_mod: 14, 3; broadcast_src_b_row: 19, 1; flip_src_a: 22, 1; flip_src_b: 23, 1;
        }
        /// Moves data from `Dst` to memory (`PACR.md`; the interfaces that read `Dst`, and how, are Blackhole's own).
        Pacr = 0x41 {
            last: 0, 1; flush: 1, 1; ctxt_ctrl: 2, 2; concat: 4, 1; ovrd_thread_id: 7, 1; read_intf_sel: 8, 4;
            zero_write: 12, 1; addr_cnt_context: 13, 2; addr_mod: 15, 2; dst_access_mode: 17, 1; row_pad_zero: 18, 3;
            cfg_context: 21, 2;
        }
        /// Clears a bank of `SrcA` or `SrcB`, and gives it to the matrix unit.
        UnpacrNop = 0x43 {
            unpack_pop: 0, 2; src_clr_val_ctrl: 2, 2; bank_clr_ctrl: 4, 1; stall_clr_cntrl: 5, 1;
            clr_to1_fmt_ctrl: 6, 2; set_dvalid: 8, 1; msg_clr_cnt: 12, 3; stream_id: 16, 6; unpacker_select: 23, 1;
        }
        /// Keeps instructions of the thread from starting until others have ended (`STALLWAIT.md`).
        Stallwait = 0xa2 { condition_mask: 0, 12; block_mask: 15, 9; }
    }

    set! {
        /// An instruction of a Blackhole tile.
        Mop, Nop, MopCfg, Replay, Zeroacc, Zerosrc, Mvmul, Cleardvalid, Setrwc, Incrwc, Pacr, Unpacr, UnpacrNop,
        Setdmareg, Setadc, Setadcxy, Incadcxy, Setadczw, Incadczw, Setadcxx, Stallwait, Seminit, Sempost, Semget,
        Semwait, Wrcfg, Setc16,
    }
}

/// The instructions of a Wormhole tile.
pub mod wormhole {
    use super::Bits;
    pub use super::{
        Cleardvalid, Incadcxy, Incadczw, Incrwc, Mop, MopCfg, Nop, Replay, Semget, Seminit, Sempost, Semwait,
        Setadc, Setadcxx, Setadcxy, Setadczw, Setc16, Setdmareg, Setrwc, Unpacr, Wrcfg, Zerosrc,
    };

    /// Bits of the condition mask of `STALLWAIT` (`STALLWAIT.md`): what is waited for the end of.
    pub mod condition {
        /// C0: the scalar unit's requests to memory.
        pub const SCALAR: u32 = 1 << 0;
        /// C1: the thread's instructions in unpacker 0.
        pub const UNPACK_0: u32 = 1 << 1;
        /// C2: the thread's instructions in unpacker 1.
        pub const UNPACK_1: u32 = 1 << 2;
        /// C3 to C6: the thread's instructions in the packers.
        pub const PACK: u32 = 0xf << 3;
        /// C7: the thread's instructions in the matrix unit.
        pub const MATH: u32 = 1 << 7;
        /// C10: a bank of `SrcA` that the matrix unit cannot read yet.
        pub const SRC_A_VALID: u32 = 1 << 10;
        /// C11: a bank of `SrcB` that the matrix unit cannot read yet.
        pub const SRC_B_VALID: u32 = 1 << 11;
        /// C13: requests of the thread's core to the configuration.
        pub const CORE: u32 = 1 << 13;
    }

    instructions! {
        /// Makes rows of `Dst` undefined, which read as zeros (`ZEROACC.md`).
        Zeroacc = 0x10 { imm10: 0, 10; addr_mod: 15, 2; mode: 19, 2; use_dst32b: 21, 1; }
        /// Adds a product of eight rows of `SrcB` and sixteen of `SrcA` to eight of `Dst` (`MVMUL.md`).
        Mvmul = 0x26 {
            dst_row: 0, 10; addr_mod: 15, 2; broadcast_src_b_row: 19, 1; flip_src_a: 22, 1; flip_src_b: 23, 1;
        }
        /// Moves data from `Dst` to memory (`PACR.md`).
        Pacr = 0x41 {
            last: 0, 1; flush: 1, 1; concat: 4, 1; ovrd_thread_id: 7, 1; packer_mask: 8, 4; zero_write: 12, 1;
            addr_mod: 15, 2;
        }
        /// Clears a bank of `SrcA` or `SrcB`, or gives it to the matrix unit.
        UnpacrNop = 0x43 { no_op: 0, 5; which_unpacker: 23, 1; }
        /// Keeps instructions of the thread from starting until others have ended (`STALLWAIT.md`).
        Stallwait = 0xa2 { condition_mask: 0, 15; block_mask: 15, 9; }
    }

    set! {
        /// An instruction of a Wormhole tile.
        Mop, Nop, MopCfg, Replay, Zeroacc, Zerosrc, Mvmul, Cleardvalid, Setrwc, Incrwc, Pacr, Unpacr, UnpacrNop,
        Setdmareg, Setadc, Setadcxy, Incadcxy, Setadczw, Incadczw, Setadcxx, Stallwait, Seminit, Sempost, Semget,
        Semwait, Wrcfg, Setc16,
    }
}
