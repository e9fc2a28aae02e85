// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Instructions in decoded form: operands are numbers of registers, and constants lie in registers too.
//!
//! There are three files of registers: `W` with 32 bits, which also holds those of 16 and 8 bits, zero-extended;
//! `D` with 64 bits; `P`, predicates.

/// A file of registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// 32 bits and less.
    W,
    /// 64 bits.
    D,
    /// Predicates.
    P,
}

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Its file.
    pub class: Class,
    /// Its number in the file.
    pub index: u32,
}

/// What a register holds from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Constant {
    /// A number, by its bits.
    Bits(u64),
    /// The address of the module's global with this number, plus an offset.
    Global(u32, i64),
    /// A special register that differs between threads or blocks.
    Special(Special),
}

/// Special registers with 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are PTX's")]
pub enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
}

/// An instruction.
#[derive(Clone, Copy, Debug)]
pub struct Inst {
    /// What it does.
    pub op: Op,
    /// The predicate under which it does so, in `P`.
    pub guard: u32,
    /// Whether the predicate is negated.
    pub negated: bool,
    /// The destination; of a branch, the instruction's number.
    pub d: u32,
    /// A second destination.
    pub e: u32,
    /// The first operand.
    pub a: u32,
    /// The second operand.
    pub b: u32,
    /// The third operand.
    pub c: u32,
}

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Memory of the device, constants included.
    Global,
    /// Memory of the block.
    Shared,
    /// Memory of the thread.
    Local,
    /// One of these, by the address.
    Generic,
}

/// A load or store of up to eight parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Where.
    pub space: Space,
    /// Bytes of one part: 1, 2, 4 or 8.
    pub bytes: u8,
    /// Whether a part that is loaded is extended with its sign.
    pub signed: bool,
    /// How many parts.
    pub parts: u8,
    /// The first of the registers in the kernel's list.
    pub list: u32,
    /// What is added to the address.
    pub offset: i64,
}

macro_rules! ops {
    ($(#[$attribute:meta])* $name:ident: $($op:ident)*) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the table of forms says which instruction each is")]
        pub enum $name { $($op),* }
    };
}

ops!(/// One operand in `W`, result in `W`.
    U32: Mov Neg Not Cnot Abs Popc Clz Brev Neg16 Not16 Abs16 NegF AbsF Ex2 Lg2 Rcp Sqrt Rsqrt Sin Cos Tanh
    FlushF NegH AbsH Ex2H TanhH NegH2 AbsH2);
ops!(/// One operand in `D`, result in `D`.
    U64: Mov Neg Not Abs Brev NegF AbsF Rcp Sqrt Rsqrt);
ops!(/// One operand in `D`, result in `W`.
    Narrow: Popc Clz);
ops!(/// Two operands in `W`, result in `W`.
    B32: Add Sub Mul MulHiU MulHiS DivU DivS RemU RemS MinU MinS MaxU MaxS And Or Xor Shl ShrU ShrS
    Add16 Sub16 Mul16 MulHiU16 MulHiS16 DivU16 DivS16 RemU16 RemS16 MinU16 MinS16 MaxU16 MaxS16 Shl16 ShrU16 ShrS16
    MulWideU16 MulWideS16
    AddF SubF MulF DivF MinF MaxF MinNanF MaxNanF CopysignF AddRzF SubRzF MulRzF
    AddH SubH MulH MinH MaxH MinNanH MaxNanH MinB MaxB MinNanB MaxNanB
    AddH2 SubH2 MulH2 MinH2 MaxH2 MinNanH2 MaxNanH2);
ops!(/// Two operands in `D`, result in `D`; of shifts, the second is in `W`.
    B64: Add Sub Mul MulHiU MulHiS DivU DivS RemU RemS MinU MinS MaxU MaxS And Or Xor Shl ShrU ShrS
    AddF SubF MulF DivF MinF MaxF CopysignF);
ops!(/// Two operands in `W`, result in `D`.
    Wide: U S);
ops!(/// Three operands in `W`, result in `W`.
    T32: Mad MadHiU MadHiS Mad16 MadWideU16 MadWideS16 FmaF FmaRzF FmaH FmaB FmaH2 BfeU BfeS ShlWrap ShlClamp ShrWrap
    ShrClamp Prmt);
ops!(/// Three operands in `D`, result in `D`.
    T64: Mad FmaF);
ops!(/// Operations on predicates.
    Pred: Mov Not And Or Xor);
ops!(/// How two values are compared. Those with `u` hold if either is not a number.
    Cmp: Eq Ne Lt Le Gt Ge Equ Neu Ltu Leu Gtu Geu Num Nan);
ops!(/// Types of values.
    Type: U8 U16 U32 U64 S8 S16 S32 S64 F16 Bf16 F32 F64);
ops!(/// How the result of a comparison is combined with a third operand.
    Combine: None And Or Xor);
ops!(/// How a conversion rounds: to the nearest even, to zero, down, up; to whole numbers in floats.
    Round: None Rn Rz Rm Rp Rni Rzi Rmi Rpi);
ops!(/// Which lane a value comes from.
    Shuffle: Bfly Up Down Idx);
ops!(/// Votes of a warp.
    Vote: All Any Uni Ballot);
ops!(/// Atomic operations.
    Atomic: Add AddF Min Max And Or Xor Exch Cas Inc Dec);

/// A conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convert {
    /// The type of the result.
    pub to: Type,
    /// The type of the operand.
    pub from: Type,
    /// How it rounds.
    pub round: Round,
    /// Whether floats are limited to 0 to 1. Whole numbers from floats always saturate.
    pub saturate: bool,
}

impl Type {
    /// The bytes of a value.
    #[must_use]
    pub fn bytes(self) -> u8 {
        match self {
            Self::U8 | Self::S8 => 1,
            Self::U16 | Self::S16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::S32 | Self::F32 => 4,
            Self::U64 | Self::S64 | Self::F64 => 8,
        }
    }

    /// Whether it is a float.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32 | Self::F64)
    }

    /// Whether it is a whole number with a sign.
    #[must_use]
    pub fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    /// The file of registers that holds it.
    #[must_use]
    pub fn class(self) -> Class {
        if self.bytes() == 8 { Class::D } else { Class::W }
    }
}

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// One operand.
    U32(U32),
    /// One operand.
    U64(U64),
    /// One operand.
    Narrow(Narrow),
    /// Two operands.
    B32(B32),
    /// Two operands.
    B64(B64),
    /// A product of twice the width.
    MulWide(Wide),
    /// The same, and a sum.
    MadWide(Wide),
    /// Three operands.
    T32(T32),
    /// Three operands.
    T64(T64),
    /// `d = a` with bits of `b` at `c`, as many as `e` says.
    Bfi,
    /// A function of three bits, by its table.
    Lop3(u8),
    /// A choice by a predicate.
    Select32,
    /// A choice by a predicate.
    Select64,
    /// A comparison.
    Compare(Cmp, Type, Combine),
    /// Predicates.
    Pred(Pred),
    /// A conversion.
    Convert(Convert),
    /// Several registers of `bytes` into one.
    Pack {
        /// Bytes of a part.
        bytes: u8,
        /// How many.
        parts: u8,
        /// The first of the registers in the kernel's list.
        list: u32,
    },
    /// One register into several.
    Unpack {
        /// Bytes of a part.
        bytes: u8,
        /// How many.
        parts: u8,
        /// The first of the registers in the kernel's list.
        list: u32,
    },
    /// A parameter.
    Parameter(Access),
    /// A load.
    Load(Access),
    /// A store.
    Store(Access),
    /// An atomic operation; `true` if the old value is wanted. `b` is the operand, `c` what `cas` writes.
    Atomic(Atomic, Type, Access, bool),
    /// A value of another lane.
    Shuffle(Shuffle),
    /// A vote.
    Vote(Vote),
    /// The lanes that are here.
    ActiveMask,
    /// The clock in nanoseconds.
    Timer,
    /// A barrier of the block.
    Barrier,
    /// A barrier of the warp.
    WarpBarrier,
    /// Order of memory: nothing to do, since one thread runs at a time.
    Fence,
    /// A jump.
    Branch,
    /// The end.
    Return,
    /// An error on purpose.
    Trap,
}
