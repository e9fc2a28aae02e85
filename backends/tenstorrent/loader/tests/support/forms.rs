// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Every instruction for floats.

use super::machine::{Left, Machine, PLACE, STACK};
use hal_tenstorrent_loader::Cores;

/// An instruction of the registers f8, f1, f2, f4 and x5, x6.
pub(crate) struct Form {
    pub(crate) name: &'static str,
    pub(crate) word: u32,
}

const fn form(name: &'static str, word: u32) -> Form {
    Form { name, word }
}

/// `rd`, `rs1`, `rs2` are 8, 1, 2.
const fn two(funct7: u32, funct3: u32) -> u32 {
    funct7 << 25 | 2 << 20 | 1 << 15 | funct3 << 12 | 8 << 7 | 0x53
}

/// The same with no second operand but a number.
const fn one(funct7: u32, number: u32, funct3: u32) -> u32 {
    funct7 << 25 | number << 20 | 1 << 15 | funct3 << 12 | 8 << 7 | 0x53
}

const fn fused(opcode: u32) -> u32 {
    4 << 27 | 2 << 20 | 1 << 15 | 7 << 12 | 8 << 7 | opcode
}

/// With an integer register for the result, or for the operand.
const fn to_integer(word: u32) -> u32 {
    word & !(31 << 7) | 5 << 7
}

const fn from_integer(word: u32) -> u32 {
    word & !(31 << 15) | 6 << 15
}

/// Every one.
pub(crate) const FORMS: [Form; 29] = [
    form("fadd.s", two(0x00, 7)),
    form("fsub.s", two(0x04, 7)),
    form("fmul.s", two(0x08, 7)),
    form("fmadd.s", fused(0x43)),
    form("fmsub.s", fused(0x47)),
    form("fnmsub.s", fused(0x4b)),
    form("fnmadd.s", fused(0x4f)),
    form("fsgnj.s", two(0x10, 0)),
    form("fsgnjn.s", two(0x10, 1)),
    form("fsgnjx.s", two(0x10, 2)),
    form("fmv.s", one(0x10, 1, 0)),
    form("fneg.s", one(0x10, 1, 1)),
    form("fabs.s", one(0x10, 1, 2)),
    form("fmin.s", two(0x14, 0)),
    form("fmax.s", two(0x14, 1)),
    form("feq.s", to_integer(two(0x50, 2))),
    form("flt.s", to_integer(two(0x50, 1))),
    form("fle.s", to_integer(two(0x50, 0))),
    form("fclass.s", to_integer(one(0x70, 0, 1))),
    form("fcvt.w.s", to_integer(one(0x60, 0, 0))),
    form("fcvt.wu.s", to_integer(one(0x60, 1, 7))),
    form("fcvt.s.w", from_integer(one(0x68, 0, 0))),
    form("fcvt.s.wu", from_integer(one(0x68, 1, 7))),
    form("fmv.x.w", to_integer(one(0x70, 0, 0))),
    form("fmv.w.x", from_integer(one(0x78, 0, 0))),
    // By x7, at the ends of what an offset may be.
    form("flw", 0x8003_a407),
    form("flw, further", 0x7ff3_a407),
    form("fsw", 0x8023_a027),
    form("fsw, further", 0x7e23_afa7),
];

impl Form {
    /// How many instructions a Wormhole's core executes for it, of numbers between -4 and 4.
    pub(crate) fn cost(&self) -> u64 {
        let machine = Machine::new(self.word, Cores::Wormhole);
        let number = |index: u32| {
            let bits = index.wrapping_mul(0x9e37_79b9) ^ 0x5bd1_e995_u32.wrapping_mul(index | 1);
            (bits as i32 as f32 / (1 << 29) as f32).to_bits()
        };
        let calls = (0..3000).step_by(3).map(|index| [number(index), number(index + 1), number(index + 2)]);
        // Less the one that stops the core.
        calls.map(|operands| run(&machine, self.word, operands).instructions - 1).sum::<u64>() / 1000
    }
}

/// Executes one with these operands: the third is also what is loaded.
pub(crate) fn run(machine: &Machine, word: u32, [x, y, z]: [u32; 3]) -> Left {
    let mut integers: [u32; 32] = std::array::from_fn(|register| 0x1000_0000 + register as u32);
    let mut floats: [u32; 32] = std::array::from_fn(|register| 0x2000_0000 + register as u32);
    (integers[0], integers[2], integers[6]) = (0, STACK, x);
    let offset = match word & 0x7f {
        0x07 => word.cast_signed() >> 20,
        _ => word.cast_signed() >> 25 << 5 | (word >> 7 & 31).cast_signed(),
    };
    integers[7] = PLACE.wrapping_sub(offset.cast_unsigned());
    (floats[1], floats[2], floats[4]) = (x, y, z);
    machine.run(integers, floats, z)
}
