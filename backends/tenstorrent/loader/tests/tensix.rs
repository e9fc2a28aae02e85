// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The engine's instructions and fields, against words that the vendor's simulator executes as what they are here.

use hal_tenstorrent_loader::tensix::instructions::*;
use hal_tenstorrent_loader::tensix::{Bits, Chip};
use proptest::prelude::*;

const ONE: Bits<1> = Bits::MAX;

#[test]
fn words_are_those_that_the_vendors_simulator_executes() {
    use Chip::{Blackhole, Wormhole};
    let unpack = Unpacr {
        last: ONE,
        flip_src: ONE,
        multi_context_mode: ONE,
        which_unpacker: ONE,
        ..Unpacr::default()
    };
    assert_eq!(unpack.encode(), 0x4280_00c1);
    let multiply = Mvmul { addr_mod: Bits::new(5), flip_src_a: ONE, flip_src_b: ONE, ..Mvmul::default() };
    assert_eq!(multiply.encode(Blackhole), 0x26c1_4000);
    let columns = Setadcxx {
        x1_val: Bits::new(1023),
        counters: Bits::new(counters::UNPACKER_0.get() | counters::UNPACKER_1.get()),
        ..Setadcxx::default()
    };
    assert_eq!(columns.encode(), 0x5e6f_fc00);
    assert_eq!(Pacr { last: ONE, ..Pacr::default() }.encode(Blackhole), 0x4100_0001);
    assert_eq!(Zeroacc { mode: Bits::new(3), ..Zeroacc::default() }.encode(Blackhole), 0x1018_0000);
    let mode = Mvmul { addr_mod: Bits::new(3), ..Mvmul::default() };
    assert_eq!(mode.encode(Wormhole), 0x2601_8000);
    let clear = UnpacrNop { no_op: Bits::new(1), unpacker_select: ONE, ..UnpacrNop::default() };
    assert_eq!(clear.encode(Wormhole), 0x4380_0001);
    let wait = Stallwait { condition_mask: Bits::new(1 << 13), block_mask: Bits::new(block::MATH) };
    assert_eq!(wait.encode(Wormhole), 0xa220_2000);
}

#[test]
fn fields_are_where_the_vendors_simulator_has_them() {
    let [blackhole, wormhole] = [Chip::Blackhole, Chip::Wormhole].map(Chip::registers);
    let unit = blackhole.thcon_sec1_reg3_base_address;
    assert_eq!((unit.word, unit.address()), (124, 0xffef_01f0));
    assert_eq!(wormhole.thcon_sec1_reg3_base_address.word, 104);
    let format = blackhole.alu_format_spec_reg1_src_b;
    assert_eq!(format.place(Bits::new(5)), 5 << 21);
    assert_eq!(format.read(0xf << 21 | 1), Bits::MAX);
    let step = blackhole.addr_mod_dst_dest_incr[4];
    assert_eq!(step.set(Bits::new(1000)).encode(), 0xb220_03e8);
    assert_eq!(wormhole.addr_mod_ab_src_a_incr[7].word, 21);
    // A field with 16 bits on one chip and 12 on the other.
    let [wide, narrow] = [blackhole, wormhole].map(|all| all.pck0_addr_ctrl_xy_reg_0_ystride);
    assert_eq!((wide.mask(), narrow.mask()), (0xffff_0000, 0x00ff_f000));
    assert_eq!((wide.place(Bits::new(2048)), narrow.place(Bits::new(2048))), (2048 << 16, 2048 << 12));
    assert_eq!(narrow.read(0xff12_3fff), Bits::new(0x123));
}

#[test]
#[should_panic(expected = "the chip lacks the field")]
fn value_that_a_chip_has_no_bits_for_is_not_encoded() {
    Mvmul { addr_mod: Bits::new(4), ..Mvmul::default() }.encode(Chip::Wormhole);
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
    let decode = Instruction::decode;
    assert!(decode(0x2600_0000, Chip::Blackhole).is_some());
    assert_eq!(decode(0x2600_0400, Chip::Blackhole), None);
    // A mode of three bits, where Wormhole has two.
    assert_eq!(decode(0x2600_4000, Chip::Wormhole), None);
    assert_eq!(decode(0xff00_0000, Chip::Blackhole), None);
}

proptest! {
    #[test]
    fn what_is_decoded_encodes_to_the_same_word(word: u32) {
        // Every opcode comes as often as others.
        for opcode in 0..=255_u32 {
            let word = opcode << 24 | word & 0x00ff_ffff;
            for chip in [Chip::Blackhole, Chip::Wormhole] {
                if let Some(found) = Instruction::decode(word, chip) {
                    prop_assert_eq!(found.encode(chip), word);
                }
            }
        }
    }
}
