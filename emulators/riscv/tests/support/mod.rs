// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Random programs, and the hash that their results are compared by.
//!
//! The same seed makes the same program for ever: `tests/golden` has what other implementations made of them.

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    pub(crate) fn word(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }

    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        ((u64::from(self.word()) * u64::from(limit)) >> 32) as u32
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        *from
            .get(self.below(u32::try_from(from.len()).expect("a short list")) as usize)
            .expect("below its length")
    }

    /// An integer that is often at an edge.
    fn integer(&mut self) -> u32 {
        match self.below(3) {
            0 => {
                self.pick(&[0, 1, 2, 31, 32, 0x7fff_ffff, 0x8000_0000, 0x8000_0001, 0xffff_fffe, 0xffff_ffff])
            }
            1 => self.word() >> self.below(32),
            _ => self.word(),
        }
    }

    /// A float that is often at an edge, or near others in magnitude, so that sums cancel.
    pub(crate) fn float(&mut self) -> u32 {
        const EDGES: [u32; 16] = [
            0,
            1,
            0x007f_ffff,
            0x0080_0000,
            0x0080_0001,
            0x00ff_ffff,
            0x0100_0000,
            0x3f7f_ffff,
            0x3f80_0000,
            0x3f80_0001,
            0x7f00_0000,
            0x7f7f_ffff,
            0x7f80_0000,
            0x7f80_0001,
            0x7fc0_0000,
            0x4f00_0000,
        ];
        let sign = self.word() & 0x8000_0000;
        let fraction = match self.below(3) {
            0 => self.word() & 0x7f_ffff,
            1 => (1 << self.below(24)) & 0x7f_ffff,
            _ => !(1 << self.below(24)) & 0x7f_ffff,
        };
        let exponent = match self.below(6) {
            0 => return sign | self.pick(&EDGES),
            1 => self.below(256),
            2 => self.below(30),
            3 => 225 + self.below(30),
            4 => 50 + self.below(40),
            _ => 115 + self.below(26),
        };
        sign | exponent << 23 | fraction
    }
}

/// FNV-1a.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The address of a program's data, which are its result.
pub(crate) const DATA: u32 = 0x8000;
/// How many bytes they have.
pub(crate) const DATA_LENGTH: u32 = 0x1000;
/// The last word of the data, which is one when the program has ended.
pub(crate) const DONE: u32 = DATA + DATA_LENGTH - 4;

/// The operands of an instruction.
#[derive(Clone, Copy)]
enum Form {
    /// Two integers.
    Rrr(u32),
    /// One integer.
    Rr(u32),
    /// An integer and an immediate.
    Rri(u32),
    /// An integer and a distance.
    Shift(u32),
    /// Twenty bits.
    Upper(u32),
    /// A load of so many bytes.
    Load(u32, u32),
    /// A store of so many bytes.
    Store(u32, u32),
    /// A branch over the next instruction.
    Branch(u32),
    /// A jump over the next instruction.
    Jump,
    /// An atomic operation.
    Atomic(u32),
    /// Two floats to a float.
    Fff(u32),
    /// Three floats to a float.
    Ffff(u32),
    /// Two floats to an integer.
    Xff(u32),
    /// One float to an integer.
    Xf(u32),
    /// An integer to a float.
    Fx(u32),
    FloatLoad,
    FloatStore,
}

use Form::*;

const RV32IM: &[Form] = &[
    Rrr(0x0000_0033),
    Rrr(0x4000_0033),
    Rrr(0x0000_1033),
    Rrr(0x0000_2033),
    Rrr(0x0000_3033),
    Rrr(0x0000_4033),
    Rrr(0x0000_5033),
    Rrr(0x4000_5033),
    Rrr(0x0000_6033),
    Rrr(0x0000_7033),
    Rrr(0x0200_0033),
    Rrr(0x0200_1033),
    Rrr(0x0200_2033),
    Rrr(0x0200_3033),
    Rrr(0x0200_4033),
    Rrr(0x0200_5033),
    Rrr(0x0200_6033),
    Rrr(0x0200_7033),
    Rri(0x0013),
    Rri(0x2013),
    Rri(0x3013),
    Rri(0x4013),
    Rri(0x6013),
    Rri(0x7013),
    Shift(0x0000_1013),
    Shift(0x0000_5013),
    Shift(0x4000_5013),
    Upper(0x37),
    Upper(0x17),
    Jump,
    Load(0x0003, 1),
    Load(0x1003, 2),
    Load(0x2003, 4),
    Load(0x4003, 1),
    Load(0x5003, 2),
    Store(0x0023, 1),
    Store(0x1023, 2),
    Store(0x2023, 4),
    Branch(0x0063),
    Branch(0x1063),
    Branch(0x4063),
    Branch(0x5063),
    Branch(0x6063),
    Branch(0x7063),
];

const BLACKHOLE: &[Form] = &[
    Rrr(0x2000_2033),
    Rrr(0x2000_4033),
    Rrr(0x2000_6033),
    Rrr(0x4000_4033),
    Rrr(0x4000_6033),
    Rrr(0x4000_7033),
    Rrr(0x0a00_4033),
    Rrr(0x0a00_5033),
    Rrr(0x0a00_6033),
    Rrr(0x0a00_7033),
    Rrr(0x6000_1033),
    Rrr(0x6000_5033),
    Rrr(0x0800_4033),
    Shift(0x6000_5013),
    Rr(0x6000_1013),
    Rr(0x6010_1013),
    Rr(0x6020_1013),
    Rr(0x6040_1013),
    Rr(0x6050_1013),
    Rr(0x2870_5013),
    Rr(0x6980_5013),
    Rr(0x6870_5013),
    Atomic(0x0000_202f),
    Atomic(0x0800_202f),
    Atomic(0x2000_202f),
    Atomic(0x4000_202f),
    Atomic(0x6000_202f),
    Atomic(0x8000_202f),
    Atomic(0xa000_202f),
    Atomic(0xc000_202f),
    Atomic(0xe000_202f),
    Fff(0x0000_7053),
    Fff(0x0800_7053),
    Fff(0x1000_7053),
    Fff(0x0000_7053),
    Fff(0x0800_7053),
    Fff(0x1000_7053),
    Fff(0x2000_0053),
    Fff(0x2000_1053),
    Fff(0x2000_2053),
    Fff(0x2800_0053),
    Fff(0x2800_1053),
    Ffff(0x7043),
    Ffff(0x7047),
    Ffff(0x704b),
    Ffff(0x704f),
    Xff(0xa000_0053),
    Xff(0xa000_1053),
    Xff(0xa000_2053),
    Xf(0xc000_0053),
    Xf(0xc010_0053),
    Xf(0xe000_0053),
    Xf(0xe000_1053),
    Fx(0xd000_0053),
    Fx(0xd010_0053),
    Fx(0xf000_0053),
    FloatLoad,
    FloatStore,
];

/// The register with the address of the data, which a program only writes first.
const BASE: u32 = 30;

fn addi(rd: u32, rs1: u32, immediate: u32) -> u32 {
    (immediate & 0xfff) << 20 | rs1 << 15 | rd << 7 | 0x13
}

fn store(template: u32, base: u32, source: u32, offset: u32) -> u32 {
    template | (offset >> 5) << 25 | source << 20 | base << 15 | (offset & 31) << 7
}

/// Puts a value in a register.
fn constant(words: &mut Vec<u32>, register: u32, value: u32) {
    words.push(value.wrapping_add(0x800) & 0xffff_f000 | register << 7 | 0x37);
    words.push(addi(register, register, value));
}

/// One random instruction.
fn instruction(random: &mut Random, form: Form) -> u32 {
    // Neither the base nor 31, which is used at the end.
    let rd = random.below(30) << 7;
    let (rs1, rs2) = (random.below(32) << 15, random.below(32) << 20);
    let (f1, f2, f3) = (random.below(32) << 15, random.below(32) << 20, random.below(32) << 27);
    let fd = random.below(32) << 7;
    // The first half of the data: the second is for registers.
    let offset = |random: &mut Random, width: u32| random.below(0x7f0 / width) * width;
    match form {
        Rrr(template) => template | rd | rs1 | rs2,
        Rr(template) => template | rd | rs1,
        Rri(template) => template | rd | rs1 | random.word() << 20,
        Shift(template) => template | rd | rs1 | random.below(32) << 20,
        Upper(template) => template | rd | random.word() << 12,
        Load(template, width) => template | rd | BASE << 15 | offset(random, width) << 20,
        Store(template, width) => store(template, BASE, rs2 >> 20, offset(random, width)),
        Branch(template) => template | rs1 | rs2 | 8 << 7,
        Jump => 0x0080_006f | rd,
        // The address is the base itself.
        Atomic(template) => template | rd | BASE << 15 | rs2,
        Fff(template) => template | fd | f1 | f2,
        Ffff(template) => template | fd | f1 | f2 | f3,
        Xff(template) => template | rd | f1 | f2,
        Xf(template) => template | rd | f1,
        Fx(template) => template | fd | rs1,
        FloatLoad => 0x2007 | fd | BASE << 15 | offset(random, 4) << 20,
        FloatStore => store(0x2027, BASE, f2 >> 20, offset(random, 4)),
    }
}

/// A program that begins at address 0, sets every register, does random things, stores every register behind
/// the middle of its data and one in the last word, and then jumps to itself. Jumps go forward alone: it
/// executes no instruction twice.
pub(crate) fn program(seed: u64, blackhole: bool) -> Vec<u32> {
    let mut random = Random::new(seed);
    let mut words = Vec::new();
    if blackhole {
        for register in 0..32 {
            constant(&mut words, 1, random.float());
            words.push(0xf000_0053 | 1 << 15 | register << 7);
        }
    }
    for register in 1..32 {
        let value = if register == BASE { DATA } else { random.integer() };
        constant(&mut words, register, value);
    }
    for offset in (0..0x40).step_by(4) {
        words.push(store(0x2023, BASE, 1 + random.below(29), offset));
    }
    for _ in 0..200 {
        let more = blackhole && random.below(3) > 0;
        let form = random.pick(if more { BLACKHOLE } else { RV32IM });
        words.push(instruction(&mut random, form));
    }
    // The instructions that the last branch may skip.
    words.push(addi(0, 0, 0));
    // Displacements reach 2047: beyond, from an address of its own.
    words.push(addi(31, BASE, 0x7ff));
    words.push(addi(31, 31, 1));
    for register in 1..31 {
        words.push(store(0x2023, 31, register, 4 * register));
    }
    if blackhole {
        for register in 0..32 {
            words.push(store(0x2027, 31, register, 0x100 + 4 * register));
        }
    }
    words.push(addi(1, 0, 1));
    words.push(store(0x2023, 31, 1, DONE - DATA - 0x800));
    words.push(0x0000_006f);
    words
}

/// How many blocks of operands there are for the float unit.
pub(crate) const BLOCKS: u64 = 64;

/// A block of operands for the float unit.
pub(crate) fn operands(block: u64) -> impl Iterator<Item = [u32; 3]> {
    let mut random = Random::new(0xf10a_7000 + block);
    (0..16384).map(move |_| [random.float(), random.float(), random.float()])
}
