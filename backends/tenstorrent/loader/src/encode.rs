// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! RISC-V instructions as words, and an assembler for the little code that a driver needs.
//!
//! Only what is used: RV32IM, and what brings floats to integer registers and back.

/// An integer register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reg(u32);

impl Reg {
    /// Always zero.
    pub const ZERO: Reg = Reg(0);
    /// The return address.
    pub const RA: Reg = Reg(1);
    /// The stack pointer.
    pub const SP: Reg = Reg(2);
    /// Registers that compilers keep for purposes that executables here do not have: the global pointer, and that of a
    /// thread.
    pub const GP: Reg = Reg(3);
    /// See [`Reg::GP`].
    pub const TP: Reg = Reg(4);
    /// Temporary registers.
    pub const T: [Reg; 7] = [Reg(5), Reg(6), Reg(7), Reg(28), Reg(29), Reg(30), Reg(31)];
    /// Arguments; the first is also the result.
    pub const A: [Reg; 8] = [Reg(10), Reg(11), Reg(12), Reg(13), Reg(14), Reg(15), Reg(16), Reg(17)];

    /// By its number, of which five bits count.
    pub const fn numbered(number: u32) -> Self {
        Self(number & 31)
    }
}

/// A float register, by its number, of which five bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloatReg(u32);

impl FloatReg {
    /// By its number, of which five bits count.
    pub const fn numbered(number: u32) -> Self {
        Self(number & 31)
    }
}

const fn r_type(opcode: u32, funct3: u32, funct7: u32, rd: u32, rs1: u32, rs2: u32) -> u32 {
    funct7 << 25 | rs2 << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode
}

const fn i_type(opcode: u32, funct3: u32, rd: u32, rs1: u32, immediate: i32) -> u32 {
    assert!(immediate >= -2048 && immediate < 2048, "an immediate has twelve bits");
    (immediate.cast_unsigned() & 0xfff) << 20 | rs1 << 15 | funct3 << 12 | rd << 7 | opcode
}

macro_rules! register_register {
    ($($(#[$about:meta])* $name:ident = $funct3:literal, $funct7:literal;)*) => {
        $($(#[$about])* pub const fn $name(rd: Reg, rs1: Reg, rs2: Reg) -> u32 {
            r_type(0x33, $funct3, $funct7, rd.0, rs1.0, rs2.0)
        })*
    };
}

register_register! {
    /// `rd = rs1 + rs2`
    add = 0, 0;
    /// `rd = rs1 - rs2`
    sub = 0, 0x20;
    /// `rd = rs1 << rs2`
    sll = 1, 0;
    /// `rd = rs1 < rs2`, with signs.
    slt = 2, 0;
    /// `rd = rs1 < rs2`, without signs.
    sltu = 3, 0;
    /// `rd = rs1 ^ rs2`
    xor = 4, 0;
    /// `rd = rs1 >> rs2`
    srl = 5, 0;
    /// `rd = rs1 | rs2`
    or = 6, 0;
    /// `rd = rs1 & rs2`
    and = 7, 0;
    /// `rd = rs1 * rs2`, the lower half.
    mul = 0, 1;
    /// `rd = rs1 * rs2`, the upper half, without signs.
    mulhu = 3, 1;
    /// `rd = rs1 / rs2`, without signs.
    divu = 5, 1;
    /// `rd = rs1 % rs2`, without signs.
    remu = 7, 1;
}

/// `rd = rs1 + immediate`
pub const fn addi(rd: Reg, rs1: Reg, immediate: i32) -> u32 {
    i_type(0x13, 0, rd.0, rs1.0, immediate)
}

/// `rd = rs1 ^ immediate`
pub const fn xori(rd: Reg, rs1: Reg, immediate: i32) -> u32 {
    i_type(0x13, 4, rd.0, rs1.0, immediate)
}

/// `rd = rs1 | immediate`
pub const fn ori(rd: Reg, rs1: Reg, immediate: i32) -> u32 {
    i_type(0x13, 6, rd.0, rs1.0, immediate)
}

/// `rd = rs1 & immediate`
pub const fn andi(rd: Reg, rs1: Reg, immediate: i32) -> u32 {
    i_type(0x13, 7, rd.0, rs1.0, immediate)
}

/// `rd = rs1 << distance`
pub const fn slli(rd: Reg, rs1: Reg, distance: i32) -> u32 {
    i_type(0x13, 1, rd.0, rs1.0, distance & 31)
}

/// `rd = rs1 >> distance`
pub const fn srli(rd: Reg, rs1: Reg, distance: i32) -> u32 {
    i_type(0x13, 5, rd.0, rs1.0, distance & 31)
}

/// `rd = rs1 >> distance`, with the sign.
pub const fn srai(rd: Reg, rs1: Reg, distance: i32) -> u32 {
    i_type(0x13, 5, rd.0, rs1.0, distance & 31 | 0x400)
}

/// `rd = upper`, whose lowest twelve bits are zero.
pub const fn lui(rd: Reg, upper: u32) -> u32 {
    upper & 0xffff_f000 | rd.0 << 7 | 0x37
}

/// `rd = memory[rs1 + offset]`
pub const fn lw(rd: Reg, offset: i32, rs1: Reg) -> u32 {
    i_type(0x03, 2, rd.0, rs1.0, offset)
}

/// `rd = memory[rs1 + offset]`, a byte without sign.
pub const fn lbu(rd: Reg, offset: i32, rs1: Reg) -> u32 {
    i_type(0x03, 4, rd.0, rs1.0, offset)
}

/// `rd = memory[rs1 + offset]`, two bytes without sign.
pub const fn lhu(rd: Reg, offset: i32, rs1: Reg) -> u32 {
    i_type(0x03, 5, rd.0, rs1.0, offset)
}

const fn s_type(funct3: u32, rs2: Reg, offset: i32, rs1: Reg) -> u32 {
    assert!(offset >= -2048 && offset < 2048, "an offset has twelve bits");
    let offset = offset.cast_unsigned();
    (offset >> 5 & 0x7f) << 25 | rs2.0 << 20 | rs1.0 << 15 | funct3 << 12 | (offset & 31) << 7 | 0x23
}

/// `memory[rs1 + offset] = rs2`
pub const fn sw(rs2: Reg, offset: i32, rs1: Reg) -> u32 {
    s_type(2, rs2, offset, rs1)
}

/// `memory[rs1 + offset] = rs2`, its lower two bytes.
pub const fn sh(rs2: Reg, offset: i32, rs1: Reg) -> u32 {
    s_type(1, rs2, offset, rs1)
}

/// Goes to `rs1 + offset`; `rd` is what comes after.
pub const fn jalr(rd: Reg, rs1: Reg, offset: i32) -> u32 {
    i_type(0x67, 0, rd.0, rs1.0, offset)
}

/// `rd = memory[rs1 + offset]`, the bits of a float.
pub const fn flw(rd: FloatReg, offset: i32, rs1: Reg) -> u32 {
    i_type(0x07, 2, rd.0, rs1.0, offset)
}

/// `rd = rs1`, the bits of a float.
pub const fn fmv_x_w(rd: Reg, rs1: FloatReg) -> u32 {
    r_type(0x53, 0, 0x70, rd.0, rs1.0, 0)
}

/// Goes a distance from here; `rd` is what comes after. `None` if that is a mebibyte or more, or no multiple of two.
pub const fn jal(rd: Reg, distance: i32) -> Option<u32> {
    if distance < -(1 << 20) || distance >= 1 << 20 || distance & 1 != 0 {
        return None;
    }
    let d = distance.cast_unsigned();
    let immediate =
        (d >> 20 & 1) << 31 | (d >> 1 & 0x3ff) << 21 | (d >> 11 & 1) << 20 | (d >> 12 & 0xff) << 12;
    Some(immediate | rd.0 << 7 | 0x6f)
}

/// When a branch is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum When {
    /// Equal.
    Eq = 0,
    /// Not equal.
    Ne = 1,
    /// Less, with signs.
    Lt = 4,
    /// Not less, with signs.
    Ge = 5,
    /// Less, without signs.
    Ltu = 6,
    /// Not less, without signs.
    Geu = 7,
}

/// Goes a distance from here, maybe. `None` if that is 4 KiB or more, or no multiple of two.
pub const fn branch(when: When, rs1: Reg, rs2: Reg, distance: i32) -> Option<u32> {
    if distance < -4096 || distance >= 4096 || distance & 1 != 0 {
        return None;
    }
    let d = distance.cast_unsigned();
    let immediate = (d >> 12 & 1) << 31 | (d >> 5 & 0x3f) << 25 | (d >> 1 & 0xf) << 8 | (d >> 11 & 1) << 7;
    Some(immediate | rs2.0 << 20 | rs1.0 << 15 | (when as u32) << 12 | 0x63)
}

/// A place in the code that is being assembled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

enum Fixup {
    Branch(When, Reg, Reg),
    Jump(Reg),
}

/// Code in the making.
#[derive(Default)]
pub struct Assembler {
    words: Vec<u32>,
    /// The position of each label, in words.
    labels: Vec<Option<usize>>,
    fixups: Vec<(usize, Label, Fixup)>,
}

impl Assembler {
    /// No code.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an instruction.
    pub fn emit(&mut self, word: u32) {
        self.words.push(word);
    }

    /// Appends instructions.
    pub fn emit_all<const N: usize>(&mut self, words: [u32; N]) {
        self.words.extend(words);
    }

    /// Puts any value in a register.
    pub fn constant(&mut self, rd: Reg, value: u32) {
        let low = (value << 20).cast_signed() >> 20;
        let upper = value.wrapping_sub(low.cast_unsigned());
        if upper == 0 {
            self.emit(addi(rd, Reg::ZERO, low));
        } else {
            self.emit(lui(rd, upper));
            if low != 0 {
                self.emit(addi(rd, rd, low));
            }
        }
    }

    /// A label for somewhere later.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Here is where the label is.
    pub fn bind(&mut self, label: Label) {
        let here = self.words.len();
        if let Some(place) = self.labels.get_mut(label.0) {
            *place = Some(here);
        }
    }

    /// A label for here.
    pub fn here(&mut self) -> Label {
        let label = self.label();
        self.bind(label);
        label
    }

    /// Appends a branch.
    pub fn branch(&mut self, when: When, rs1: Reg, rs2: Reg, to: Label) {
        self.fixups.push((self.words.len(), to, Fixup::Branch(when, rs1, rs2)));
        self.words.push(0);
    }

    /// Appends a jump; `rd` is what comes after it.
    pub fn jump(&mut self, rd: Reg, to: Label) {
        self.fixups.push((self.words.len(), to, Fixup::Jump(rd)));
        self.words.push(0);
    }

    /// How many bytes there are so far.
    pub fn length(&self) -> usize {
        4 * self.words.len()
    }

    /// The code, with every label resolved.
    ///
    /// # Panics
    /// When a label was never bound, or is too far away: code that is too large for its branches is a mistake of its
    /// author.
    pub fn finish(mut self) -> Vec<u32> {
        for (at, label, fixup) in self.fixups {
            let place = self.labels.get(label.0).copied().flatten().expect("every label is bound");
            let words = i64::try_from(place).and_then(|to| i64::try_from(at).map(|from| to - from));
            let distance = words.ok().and_then(|words| i32::try_from(4 * words).ok());
            let word = distance.and_then(|distance| match fixup {
                Fixup::Branch(when, rs1, rs2) => branch(when, rs1, rs2, distance),
                Fixup::Jump(rd) => jal(rd, distance),
            });
            let slot = self.words.get_mut(at).expect("a word was left for it");
            *slot = word.expect("a label is near");
        }
        self.words
    }
}
