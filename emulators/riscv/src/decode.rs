// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Decoding of words.

use thiserror::Error;

/// The instruction set of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// RV32IM.
    Wormhole,
    /// RV32IM, Zicsr, Zaamo, Zba, Zbb, `pack`, `brev8`, and F without division and square root.
    Blackhole,
}

/// The reason why a word is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Refusal {
    /// No RISC-V instruction that is known here.
    #[error("not an instruction of this core")]
    Unknown,
    /// A float instruction on Wormhole.
    #[error("this core has no floats")]
    NoFloats,
    /// `fdiv.s`.
    #[error("this core cannot divide floats")]
    FloatDivision,
    /// `fsqrt.s`.
    #[error("this core has no square root")]
    SquareRoot,
    /// A float instruction with a rounding mode of its own. Hardware rounds to nearest even, whatever a mode says.
    #[error("this core rounds to nearest even, and takes no rounding mode of an instruction's own")]
    Rounding,
    /// A `fence` on Wormhole, which executes it without an effect.
    #[error("a fence orders nothing on Wormhole: load back what was stored, and use it")]
    Fence,
    /// Half, double or quad precision. Hardware has parts of the first, which are not modelled.
    #[error("this core has floats of 32 bits alone")]
    OtherPrecision,
    /// `lr.w`, `sc.w`.
    #[error("this core has no reservations")]
    Reservation,
    /// Of Blackhole's extensions, on Wormhole.
    #[error("Blackhole has this instruction, Wormhole does not")]
    BlackholeOnly,
    /// A vector instruction. One of Blackhole's cores has some, which are not modelled.
    #[error("vector instructions are not modelled")]
    Vector,
}

macro_rules! ops {
    ($($class:ident: $($op:ident)*;)*) => {
        /// The operation of an instruction. Names are the mnemonics.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[expect(missing_docs, reason = "the names are the instruction set's, and say it")]
        pub enum Op { $($($op,)*)* }

        impl Op {
            /// Every operation.
            pub const ALL: &[Op] = &[$($(Op::$op,)*)*];

            /// The class that it counts as.
            #[inline(always)]
            pub const fn class(self) -> Class {
                match self { $($(Op::$op => Class::$class,)*)* }
            }
        }
    };
}

ops! {
    Integer: Lui Auipc Addi Slti Sltiu Xori Ori Andi Slli Srli Srai Add Sub Sll Slt Sltu Xor Srl Sra Or And
        Sh1add Sh2add Sh3add Andn Orn Xnor Min Minu Max Maxu Rol Ror Rori Pack
        Clz Ctz Cpop SextB SextH OrcB Rev8 Brev8;
    Multiply: Mul Mulh Mulhsu Mulhu;
    Divide: Div Divu Rem Remu;
    Jump: Jal Jalr Beq Bne Blt Bge Bltu Bgeu;
    Load: Lb Lh Lw Lbu Lhu Flw;
    Store: Sb Sh Sw Fsw Ttinsn;
    Atomic: AmoSwap AmoAdd AmoXor AmoAnd AmoOr AmoMin AmoMax AmoMinu AmoMaxu;
    System: Fence Ecall Ebreak Csrrw Csrrs Csrrc Csrrwi Csrrsi Csrrci;
    Float: Fadd Fsub Fmul Fmadd Fmsub Fnmsub Fnmadd Fsgnj Fsgnjn Fsgnjx Fmin Fmax Feq Flt Fle Fclass
        FcvtW FcvtWu FcvtS FcvtSu FmvX FmvW;
}

/// The classes that instructions count as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Class {
    /// Integers, without multiplication and division.
    Integer,
    /// Multiplication of integers.
    Multiply,
    /// Division of integers.
    Divide,
    /// Jumps, and branches taken or not.
    Jump,
    /// Loads.
    Load,
    /// Stores.
    Store,
    /// Atomic operations.
    Atomic,
    /// Fences, calls of an environment and control registers.
    System,
    /// Floats, without their loads and stores.
    Float,
}

impl Class {
    /// How many there are.
    pub const COUNT: usize = Class::Float as usize + 1;
}

/// A decoded instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// The operation.
    pub op: Op,
    /// The register of the result.
    pub rd: u8,
    /// The first operand.
    pub rs1: u8,
    /// The second operand.
    pub rs2: u8,
    /// The immediate with its sign; the word of a `ttinsn`; a shift's distance; a control register's number; the third
    /// operand of a fused operation.
    pub imm: i32,
}

/// Bits of a word.
const fn bits(word: u32, from: u32, count: u32) -> u32 {
    (word >> from) & ((1 << count) - 1)
}

/// A number with this many bits, and its sign in the highest.
const fn signed(value: u32, bits: u32) -> i32 {
    (value << (32 - bits)).cast_signed() >> (32 - bits)
}

const fn register(word: u32, from: u32) -> u8 {
    #[expect(clippy::cast_possible_truncation, reason = "five bits")]
    let register = bits(word, from, 5) as u8;
    register
}

const fn i_immediate(word: u32) -> i32 {
    signed(bits(word, 20, 12), 12)
}

const fn s_immediate(word: u32) -> i32 {
    signed(bits(word, 25, 7) << 5 | bits(word, 7, 5), 12)
}

const fn b_immediate(word: u32) -> i32 {
    let value =
        bits(word, 31, 1) << 12 | bits(word, 7, 1) << 11 | bits(word, 25, 6) << 5 | bits(word, 8, 4) << 1;
    signed(value, 13)
}

const fn j_immediate(word: u32) -> i32 {
    let value =
        bits(word, 31, 1) << 20 | bits(word, 12, 8) << 12 | bits(word, 20, 1) << 11 | bits(word, 21, 10) << 1;
    signed(value, 21)
}

/// The instruction of a word.
pub fn decode(word: u32, isa: Isa) -> Result<Instruction, Refusal> {
    if word & 3 != 3 {
        let imm = word.rotate_right(2).cast_signed();
        return Ok(Instruction { op: Op::Ttinsn, rd: 0, rs1: 0, rs2: 0, imm });
    }
    let funct3 = bits(word, 12, 3);
    let (op, imm) = match bits(word, 0, 7) {
        0x37 => (Op::Lui, (word & 0xffff_f000).cast_signed()),
        0x17 => (Op::Auipc, (word & 0xffff_f000).cast_signed()),
        0x6f => (Op::Jal, j_immediate(word)),
        0x67 if funct3 == 0 => (Op::Jalr, i_immediate(word)),
        0x63 => (branch(funct3)?, b_immediate(word)),
        0x03 => (load(funct3)?, i_immediate(word)),
        0x23 => (store(funct3)?, s_immediate(word)),
        0x13 => immediate(word, isa)?,
        0x33 => (register_register(word, isa)?, 0),
        0x0f if funct3 == 0 => (fence(isa)?, 0),
        0x73 => system(word, isa)?,
        0x2f => (atomic(word, isa)?, 0),
        0x07 | 0x27 | 0x43 | 0x47 | 0x4b | 0x4f | 0x53 => float(word, isa)?,
        0x57 => return Err(Refusal::Vector),
        _ => return Err(Refusal::Unknown),
    };
    Ok(Instruction { op, rd: register(word, 7), rs1: register(word, 15), rs2: register(word, 20), imm })
}

fn branch(funct3: u32) -> Result<Op, Refusal> {
    Ok(match funct3 {
        0 => Op::Beq,
        1 => Op::Bne,
        4 => Op::Blt,
        5 => Op::Bge,
        6 => Op::Bltu,
        7 => Op::Bgeu,
        _ => return Err(Refusal::Unknown),
    })
}

fn load(funct3: u32) -> Result<Op, Refusal> {
    Ok(match funct3 {
        0 => Op::Lb,
        1 => Op::Lh,
        2 => Op::Lw,
        4 => Op::Lbu,
        5 => Op::Lhu,
        _ => return Err(Refusal::Unknown),
    })
}

fn store(funct3: u32) -> Result<Op, Refusal> {
    Ok(match funct3 {
        0 => Op::Sb,
        1 => Op::Sh,
        2 => Op::Sw,
        _ => return Err(Refusal::Unknown),
    })
}

/// An operation of one of Blackhole's extensions.
fn extended(op: Op, isa: Isa) -> Result<Op, Refusal> {
    match isa {
        Isa::Wormhole => Err(Refusal::BlackholeOnly),
        Isa::Blackhole => Ok(op),
    }
}

fn fence(isa: Isa) -> Result<Op, Refusal> {
    match isa {
        Isa::Wormhole => Err(Refusal::Fence),
        Isa::Blackhole => Ok(Op::Fence),
    }
}

fn immediate(word: u32, isa: Isa) -> Result<(Op, i32), Refusal> {
    let distance = bits(word, 20, 5).cast_signed();
    let op = match bits(word, 12, 3) {
        0 => Op::Addi,
        2 => Op::Slti,
        3 => Op::Sltiu,
        4 => Op::Xori,
        6 => Op::Ori,
        7 => Op::Andi,
        1 => match (bits(word, 25, 7), distance) {
            (0x00, _) => return Ok((Op::Slli, distance)),
            (0x30, 0) => extended(Op::Clz, isa)?,
            (0x30, 1) => extended(Op::Ctz, isa)?,
            (0x30, 2) => extended(Op::Cpop, isa)?,
            (0x30, 4) => extended(Op::SextB, isa)?,
            (0x30, 5) => extended(Op::SextH, isa)?,
            _ => return Err(Refusal::Unknown),
        },
        _ => match (bits(word, 25, 7), distance) {
            (0x00, _) => return Ok((Op::Srli, distance)),
            (0x20, _) => return Ok((Op::Srai, distance)),
            (0x30, _) => return Ok((extended(Op::Rori, isa)?, distance)),
            (0x14, 0x07) => extended(Op::OrcB, isa)?,
            (0x34, 0x18) => extended(Op::Rev8, isa)?,
            (0x34, 0x07) => extended(Op::Brev8, isa)?,
            _ => return Err(Refusal::Unknown),
        },
    };
    Ok((op, i_immediate(word)))
}

fn register_register(word: u32, isa: Isa) -> Result<Op, Refusal> {
    let op = match (bits(word, 25, 7), bits(word, 12, 3)) {
        (0x00, 0) => Op::Add,
        (0x20, 0) => Op::Sub,
        (0x00, 1) => Op::Sll,
        (0x00, 2) => Op::Slt,
        (0x00, 3) => Op::Sltu,
        (0x00, 4) => Op::Xor,
        (0x00, 5) => Op::Srl,
        (0x20, 5) => Op::Sra,
        (0x00, 6) => Op::Or,
        (0x00, 7) => Op::And,
        (0x01, 0) => Op::Mul,
        (0x01, 1) => Op::Mulh,
        (0x01, 2) => Op::Mulhsu,
        (0x01, 3) => Op::Mulhu,
        (0x01, 4) => Op::Div,
        (0x01, 5) => Op::Divu,
        (0x01, 6) => Op::Rem,
        (0x01, 7) => Op::Remu,
        (0x10, 2) => extended(Op::Sh1add, isa)?,
        (0x10, 4) => extended(Op::Sh2add, isa)?,
        (0x10, 6) => extended(Op::Sh3add, isa)?,
        (0x20, 4) => extended(Op::Xnor, isa)?,
        (0x20, 6) => extended(Op::Orn, isa)?,
        (0x20, 7) => extended(Op::Andn, isa)?,
        (0x05, 4) => extended(Op::Min, isa)?,
        (0x05, 5) => extended(Op::Minu, isa)?,
        (0x05, 6) => extended(Op::Max, isa)?,
        (0x05, 7) => extended(Op::Maxu, isa)?,
        (0x30, 1) => extended(Op::Rol, isa)?,
        (0x30, 5) => extended(Op::Ror, isa)?,
        // With zero as its second operand this is `zext.h`.
        (0x04, 4) => extended(Op::Pack, isa)?,
        _ => return Err(Refusal::Unknown),
    };
    Ok(op)
}

fn system(word: u32, isa: Isa) -> Result<(Op, i32), Refusal> {
    let op = match bits(word, 12, 3) {
        0 if word == 0x0000_0073 => return Ok((Op::Ecall, 0)),
        0 if word == 0x0010_0073 => return Ok((Op::Ebreak, 0)),
        1 => Op::Csrrw,
        2 => Op::Csrrs,
        3 => Op::Csrrc,
        5 => Op::Csrrwi,
        6 => Op::Csrrsi,
        7 => Op::Csrrci,
        _ => return Err(Refusal::Unknown),
    };
    Ok((extended(op, isa)?, bits(word, 20, 12).cast_signed()))
}

fn atomic(word: u32, isa: Isa) -> Result<Op, Refusal> {
    if bits(word, 12, 3) != 2 {
        return Err(Refusal::Unknown);
    }
    let op = match bits(word, 27, 5) {
        0x00 => Op::AmoAdd,
        0x01 => Op::AmoSwap,
        0x02 | 0x03 => return Err(Refusal::Reservation),
        0x04 => Op::AmoXor,
        0x08 => Op::AmoOr,
        0x0c => Op::AmoAnd,
        0x10 => Op::AmoMin,
        0x14 => Op::AmoMax,
        0x18 => Op::AmoMinu,
        0x1c => Op::AmoMaxu,
        _ => return Err(Refusal::Unknown),
    };
    extended(op, isa)
}

fn float(word: u32, isa: Isa) -> Result<(Op, i32), Refusal> {
    let opcode = bits(word, 0, 7);
    let funct3 = bits(word, 12, 3);
    if isa == Isa::Wormhole {
        return Err(Refusal::NoFloats);
    }
    match opcode {
        0x07 | 0x27 => match (funct3, opcode) {
            (2, 0x07) => Ok((Op::Flw, i_immediate(word))),
            (2, _) => Ok((Op::Fsw, s_immediate(word))),
            (1 | 3 | 4, _) => Err(Refusal::OtherPrecision),
            _ => Err(Refusal::Vector),
        },
        _ if bits(word, 25, 2) != 0 => Err(Refusal::OtherPrecision),
        0x53 => Ok((float_operation(word)?, 0)),
        _ => {
            rounding(funct3)?;
            let op = match opcode {
                0x43 => Op::Fmadd,
                0x47 => Op::Fmsub,
                0x4b => Op::Fnmsub,
                _ => Op::Fnmadd,
            };
            Ok((op, bits(word, 27, 5).cast_signed()))
        }
    }
}

/// Refuses every rounding mode but that of a register which hardware ignores.
fn rounding(mode: u32) -> Result<(), Refusal> {
    match mode {
        7 => Ok(()),
        0..=4 => Err(Refusal::Rounding),
        _ => Err(Refusal::Unknown),
    }
}

fn float_operation(word: u32) -> Result<Op, Refusal> {
    let funct3 = bits(word, 12, 3);
    let rounded = |op| rounding(funct3).map(|()| op);
    // Conversions may name the rounding that hardware has.
    let converted = |op| if funct3 == 0 { Ok(op) } else { rounded(op) };
    match (bits(word, 27, 5), bits(word, 20, 5), funct3) {
        (0x00, ..) => rounded(Op::Fadd),
        (0x01, ..) => rounded(Op::Fsub),
        (0x02, ..) => rounded(Op::Fmul),
        (0x03, ..) => Err(Refusal::FloatDivision),
        (0x0b, 0, _) => Err(Refusal::SquareRoot),
        (0x04, _, 0) => Ok(Op::Fsgnj),
        (0x04, _, 1) => Ok(Op::Fsgnjn),
        (0x04, _, 2) => Ok(Op::Fsgnjx),
        (0x05, _, 0) => Ok(Op::Fmin),
        (0x05, _, 1) => Ok(Op::Fmax),
        (0x14, _, 0) => Ok(Op::Fle),
        (0x14, _, 1) => Ok(Op::Flt),
        (0x14, _, 2) => Ok(Op::Feq),
        (0x18, 0, _) => converted(Op::FcvtW),
        (0x18, 1, _) => converted(Op::FcvtWu),
        (0x1a, 0, _) => converted(Op::FcvtS),
        (0x1a, 1, _) => converted(Op::FcvtSu),
        (0x1c, 0, 0) => Ok(Op::FmvX),
        (0x1c, 0, 1) => Ok(Op::Fclass),
        (0x1e, 0, 0) => Ok(Op::FmvW),
        _ => Err(Refusal::Unknown),
    }
}
