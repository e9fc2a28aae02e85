// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The engine's instructions and fields, against words that the vendor's simulator executes as what they are here.

use hal_tenstorrent_loader::tensix::instructions::counters;
use hal_tenstorrent_loader::tensix::{Bits, blackhole, registers, wormhole};
use proptest::prelude::*;

const ONE: Bits<1> = Bits::MAX;

#[test]
fn words_are_those_that_the_vendors_simulator_executes() {
    use blackhole::*;
    let unpack = Unpacr {
        last: ONE,
        flip_src: ONE,
        multi_context_mode: ONE,
        which_unpacker: ONE,
        ..Unpacr::default()
    };
    assert_eq!(unpack.encode(), 0x4280_00c1);
    let multiply = Mvmul { addr_mod: Bits::new(5), flip_src_a: ONE, flip_src_b: ONE, ..Mvmul::default() };
    assert_eq!(multiply.encode(), 0x26c1_4000);
    let columns = Setadcxx {
        x1_val: Bits::new(1023),
        counters: Bits::new(counters::UNPACKER_0.get() | counters::UNPACKER_1.get()),
        ..Setadcxx::default()
    };
    assert_eq!(columns.encode(), 0x5e6f_fc00);
    assert_eq!(Pacr { last: ONE, ..Pacr::default() }.encode(), 0x4100_0001);
    assert_eq!(Zeroacc { mode: Bits::new(3), ..Zeroacc::default() }.encode(), 0x1018_0000);
    let mode = wormhole::Mvmul { addr_mod: Bits::new(3), ..wormhole::Mvmul::default() };
    assert_eq!(mode.encode(), 0x2601_8000);
}

#[test]
fn fields_are_where_the_vendors_simulator_has_them() {
    let unit = registers::blackhole::THCON_SEC1_REG3_BASE_ADDRESS;
    assert_eq!((unit.word, unit.address()), (124, 0xffef_01f0));
    let format = registers::blackhole::ALU_FORMAT_SPEC_REG1_SRC_B;
    assert_eq!(format.place(Bits::new(5)), 5 << 21);
    assert_eq!(format.read(0xf << 21 | 1), Bits::MAX);
    let step = registers::blackhole::ADDR_MOD_DST_DEST_INCR[4];
    assert_eq!(step.set(Bits::new(1000)).encode(), 0xb220_03e8);
    assert_eq!(registers::wormhole::ADDR_MOD_AB_SRC_A_INCR[7].word, 21);
}

#[test]
fn what_does_not_fit_is_no_value() {
    assert_eq!(Bits::<4>::checked(16), None);
    assert_eq!(Bits::<4>::checked(15), Some(Bits::MAX));
    assert_eq!(Bits::<32>::checked(u32::MAX), Some(Bits::MAX));
    assert_eq!(Bits::<4>::wrapping(16), Bits::ZERO);
}

#[test]
fn a_word_with_bits_that_are_no_field_is_not_decoded() {
    assert!(blackhole::Instruction::decode(0x2600_0000).is_some());
    assert_eq!(blackhole::Instruction::decode(0x2600_0400), None);
    // A mode of three bits, where Wormhole has two.
    assert_eq!(wormhole::Instruction::decode(0x2600_4000), None);
    assert_eq!(blackhole::Instruction::decode(0xff00_0000), None);
}

proptest! {
    #[test]
    fn what_is_decoded_encodes_to_the_same_word(word: u32) {
        // Every opcode comes as often as others.
        for opcode in 0..=255_u32 {
            let word = opcode << 24 | word & 0x00ff_ffff;
            if let Some(found) = blackhole::Instruction::decode(word) {
                prop_assert_eq!(found.encode(), word);
            }
            if let Some(found) = wormhole::Instruction::decode(word) {
                prop_assert_eq!(found.encode(), word);
            }
        }
    }
}
