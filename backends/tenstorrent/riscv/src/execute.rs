// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What each instruction does.
//!
//! An instruction changes nothing before everything that can be wrong with it has been ruled out, and the program counter last.

use crate::bus::{Bus, Width};
use crate::decode::{Instruction, Op};
use crate::float;
use crate::hart::Hart;
use crate::trap::Cause;

/// What a step gives. A cause is large and rare: it is put aside, so that what is common fits in registers.
pub(crate) type Step<T> = Result<T, Box<Cause>>;

/// How it goes on after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    On,
    Call,
    Break,
}

/// Whether an address is a multiple of the access.
#[inline(always)]
fn aligned(address: u32, width: Width) -> Step<u32> {
    if address & (width.bytes() - 1) == 0 {
        Ok(address)
    } else {
        Err(Box::new(Cause::Unaligned { address, width }))
    }
}

impl Hart {
    #[inline(always)]
    pub(crate) fn execute<B: Bus>(&mut self, instruction: Instruction, bus: &mut B) -> Step<Flow> {
        let Instruction { op, rd, rs1, rs2, imm } = instruction;
        let (a, b, immediate) = (self.x(rs1), self.x(rs2), imm.cast_unsigned());
        let mut next = self.pc().wrapping_add(4);
        match op {
            Op::Lui => self.set_x(rd, immediate),
            Op::Auipc => self.set_x(rd, self.pc().wrapping_add(immediate)),
            Op::Jal | Op::Jalr => {
                let from = if op == Op::Jal { self.pc() } else { a };
                let target = from.wrapping_add(immediate) & !1;
                self.check_target(target)?;
                self.set_x(rd, next);
                next = target;
            }
            Op::Beq | Op::Bne | Op::Blt | Op::Bge | Op::Bltu | Op::Bgeu => {
                if taken(op, a, b) {
                    next = self.pc().wrapping_add(immediate);
                    self.check_target(next)?;
                }
            }
            Op::Lb => self.load(bus, a, instruction, Width::Byte, |value| value << 24 >> 24)?,
            Op::Lh => self.load(bus, a, instruction, Width::Half, |value| value << 16 >> 16)?,
            Op::Lw | Op::Lbu | Op::Lhu => {
                let width = match op {
                    Op::Lw => Width::Word,
                    Op::Lhu => Width::Half,
                    _ => Width::Byte,
                };
                self.load(bus, a, instruction, width, |value| value)?;
            }
            Op::Sb => self.store(bus, a.wrapping_add(immediate), Width::Byte, b)?,
            Op::Sh => self.store(bus, a.wrapping_add(immediate), Width::Half, b)?,
            Op::Sw => self.store(bus, a.wrapping_add(immediate), Width::Word, b)?,
            Op::Flw => {
                let value = read(bus, a.wrapping_add(immediate), Width::Word)?;
                self.set_f(rd, value);
            }
            Op::Fsw => self.store(bus, a.wrapping_add(immediate), Width::Word, self.f(rs2))?,
            Op::Addi
            | Op::Slti
            | Op::Sltiu
            | Op::Xori
            | Op::Ori
            | Op::Andi
            | Op::Slli
            | Op::Srli
            | Op::Srai
            | Op::Rori => self.set_x(rd, with_immediate(op, a, immediate)),
            Op::Clz | Op::Ctz | Op::Cpop | Op::SextB | Op::SextH | Op::OrcB | Op::Rev8 | Op::Brev8 => {
                self.set_x(rd, of_one(op, a));
            }
            Op::Fence => {}
            Op::Ecall | Op::Ebreak => {
                self.set_pc(next);
                return Ok(if op == Op::Ecall { Flow::Call } else { Flow::Break });
            }
            Op::Csrrw | Op::Csrrs | Op::Csrrc => self.control(instruction, a)?,
            Op::Csrrwi | Op::Csrrsi | Op::Csrrci => self.control(instruction, u32::from(rs1))?,
            Op::AmoSwap
            | Op::AmoAdd
            | Op::AmoXor
            | Op::AmoAnd
            | Op::AmoOr
            | Op::AmoMin
            | Op::AmoMax
            | Op::AmoMinu
            | Op::AmoMaxu => {
                let address = aligned(a, Width::Word)?;
                let old = bus.update(address, |old| atomic(op, old, b));
                self.set_x(rd, old.map_err(|fault| Box::new(Cause::Atomic { address, fault }))?);
            }
            Op::Fadd
            | Op::Fsub
            | Op::Fmul
            | Op::Fmadd
            | Op::Fmsub
            | Op::Fnmsub
            | Op::Fnmadd
            | Op::Fsgnj
            | Op::Fsgnjn
            | Op::Fsgnjx
            | Op::Fmin
            | Op::Fmax => {
                let result = self.float_result(instruction);
                self.set_f(rd, result);
            }
            Op::Feq | Op::Flt | Op::Fle | Op::Fclass | Op::FcvtW | Op::FcvtWu | Op::FmvX => {
                self.set_x(rd, integer_result(op, self.f(rs1), self.f(rs2)));
            }
            Op::FcvtS => self.set_f(rd, float::from_signed(a)),
            Op::FcvtSu => self.set_f(rd, float::from_unsigned(a)),
            Op::FmvW => self.set_f(rd, a),
            _ => self.set_x(rd, of_two(op, a, b)),
        }
        self.set_pc(next);
        Ok(Flow::On)
    }

    #[inline(always)]
    fn check_target(&self, target: u32) -> Step<()> {
        if target.is_multiple_of(4) { Ok(()) } else { Err(Box::new(Cause::UnalignedTarget(target))) }
    }

    /// Loads into a register; `extend` shifts a narrow value's sign into place.
    #[inline(always)]
    fn load<B: Bus>(
        &mut self,
        bus: &mut B,
        base: u32,
        instruction: Instruction,
        width: Width,
        extend: impl FnOnce(i32) -> i32,
    ) -> Step<()> {
        let value = read(bus, base.wrapping_add(instruction.imm.cast_unsigned()), width)?;
        self.set_x(instruction.rd, extend(value.cast_signed()).cast_unsigned());
        Ok(())
    }

    #[inline(always)]
    fn store<B: Bus>(&self, bus: &mut B, address: u32, width: Width, value: u32) -> Step<()> {
        let address = aligned(address, width)?;
        bus.store(address, width, value).map_err(|fault| Box::new(Cause::Store { address, width, fault }))
    }

    /// Reads a control register, writes it if the instruction does, and gives what it held.
    fn control(&mut self, instruction: Instruction, operand: u32) -> Step<()> {
        let Instruction { op, rd, rs1, imm, .. } = instruction;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "twelve bits")]
        let number = imm as u16;
        let wrong = |written| Box::new(Cause::ControlRegister { number, written });
        let old = self.read_control(number).ok_or_else(|| wrong(false))?;
        let new = match op {
            Op::Csrrw | Op::Csrrwi => operand,
            Op::Csrrs | Op::Csrrsi => old | operand,
            _ => old & !operand,
        };
        // Setting or clearing with register or immediate 0 only reads.
        if rs1 != 0 || matches!(op, Op::Csrrw | Op::Csrrwi) {
            self.write_control(number, new).ok_or_else(|| wrong(true))?;
        }
        self.set_x(rd, old);
        Ok(())
    }

    #[inline(always)]
    fn float_result(&self, instruction: Instruction) -> u32 {
        const SIGN: u32 = 1 << 31;
        let Instruction { op, rs1, rs2, imm, .. } = instruction;
        let (a, b) = (self.f(rs1), self.f(rs2));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a register's number")]
        let c = self.f(imm as u8);
        match op {
            Op::Fadd => float::add_floats(a, b),
            Op::Fsub => float::subtract(a, b),
            Op::Fmul => float::multiply(a, b),
            Op::Fmadd => float::multiply_add(a, b, c),
            Op::Fmsub => float::multiply_add(a, b, c ^ SIGN),
            Op::Fnmsub => float::multiply_add(a ^ SIGN, b, c),
            Op::Fnmadd => float::multiply_add(a ^ SIGN, b, c ^ SIGN),
            Op::Fsgnj => a & !SIGN | b & SIGN,
            Op::Fsgnjn => a & !SIGN | !b & SIGN,
            Op::Fsgnjx => a ^ b & SIGN,
            Op::Fmin => float::minimum(a, b),
            _ => float::maximum(a, b),
        }
    }
}

#[inline(always)]
fn read<B: Bus>(bus: &mut B, address: u32, width: Width) -> Step<u32> {
    let address = aligned(address, width)?;
    bus.load(address, width).map_err(|fault| Box::new(Cause::Load { address, width, fault }))
}

#[inline(always)]
fn taken(op: Op, a: u32, b: u32) -> bool {
    match op {
        Op::Beq => a == b,
        Op::Bne => a != b,
        Op::Blt => a.cast_signed() < b.cast_signed(),
        Op::Bge => a.cast_signed() >= b.cast_signed(),
        Op::Bltu => a < b,
        _ => a >= b,
    }
}

#[inline(always)]
fn with_immediate(op: Op, a: u32, b: u32) -> u32 {
    match op {
        Op::Addi => a.wrapping_add(b),
        Op::Slti => u32::from(a.cast_signed() < b.cast_signed()),
        Op::Sltiu => u32::from(a < b),
        Op::Xori => a ^ b,
        Op::Ori => a | b,
        Op::Andi => a & b,
        Op::Slli => a << (b & 31),
        Op::Srli => a >> (b & 31),
        Op::Srai => (a.cast_signed() >> (b & 31)).cast_unsigned(),
        _ => a.rotate_right(b & 31),
    }
}

#[inline(always)]
fn of_one(op: Op, a: u32) -> u32 {
    match op {
        Op::Clz => a.leading_zeros(),
        Op::Ctz => a.trailing_zeros(),
        Op::Cpop => a.count_ones(),
        Op::SextB => (a.cast_signed() << 24 >> 24).cast_unsigned(),
        Op::SextH => (a.cast_signed() << 16 >> 16).cast_unsigned(),
        Op::OrcB => u32::from_ne_bytes(a.to_ne_bytes().map(|byte| if byte == 0 { 0 } else { 0xff })),
        Op::Rev8 => a.swap_bytes(),
        _ => a.reverse_bits().swap_bytes(),
    }
}

#[inline(always)]
fn of_two(op: Op, a: u32, b: u32) -> u32 {
    let (signed, other) = (a.cast_signed(), b.cast_signed());
    match op {
        Op::Add => a.wrapping_add(b),
        Op::Sub => a.wrapping_sub(b),
        Op::Sll => a << (b & 31),
        Op::Slt => u32::from(signed < other),
        Op::Sltu => u32::from(a < b),
        Op::Xor => a ^ b,
        Op::Srl => a >> (b & 31),
        Op::Sra => (signed >> (b & 31)).cast_unsigned(),
        Op::Or => a | b,
        Op::And => a & b,
        Op::Sh1add => (a << 1).wrapping_add(b),
        Op::Sh2add => (a << 2).wrapping_add(b),
        Op::Sh3add => (a << 3).wrapping_add(b),
        Op::Andn => a & !b,
        Op::Orn => a | !b,
        Op::Xnor => !(a ^ b),
        Op::Min => signed.min(other).cast_unsigned(),
        Op::Minu => a.min(b),
        Op::Max => signed.max(other).cast_unsigned(),
        Op::Maxu => a.max(b),
        Op::Rol => a.rotate_left(b & 31),
        Op::Ror => a.rotate_right(b & 31),
        Op::Pack => a & 0xffff | b << 16,
        Op::Mul => a.wrapping_mul(b),
        Op::Mulh => high_half((i64::from(signed) * i64::from(other)).cast_unsigned()),
        Op::Mulhsu => high_half((i64::from(signed) * i64::from(b)).cast_unsigned()),
        Op::Mulhu => high_half(u64::from(a) * u64::from(b)),
        Op::Div if b == 0 => u32::MAX,
        Op::Div => signed.wrapping_div(other).cast_unsigned(),
        Op::Divu => a.checked_div(b).unwrap_or(u32::MAX),
        Op::Rem if b == 0 => a,
        Op::Rem => signed.wrapping_rem(other).cast_unsigned(),
        Op::Remu => a.checked_rem(b).unwrap_or(a),
        _ => unreachable!("{op:?} does not take two integers"),
    }
}

#[inline(always)]
fn high_half(value: u64) -> u32 {
    (value >> 32) as u32
}

#[inline(always)]
fn atomic(op: Op, old: u32, operand: u32) -> u32 {
    match op {
        Op::AmoSwap => operand,
        Op::AmoAdd => old.wrapping_add(operand),
        Op::AmoXor => old ^ operand,
        Op::AmoAnd => old & operand,
        Op::AmoOr => old | operand,
        Op::AmoMin => old.cast_signed().min(operand.cast_signed()).cast_unsigned(),
        Op::AmoMax => old.cast_signed().max(operand.cast_signed()).cast_unsigned(),
        Op::AmoMinu => old.min(operand),
        _ => old.max(operand),
    }
}

#[inline(always)]
fn integer_result(op: Op, a: u32, b: u32) -> u32 {
    match op {
        Op::Feq => u32::from(float::equal(a, b)),
        Op::Flt => u32::from(float::less(a, b)),
        Op::Fle => u32::from(float::less_or_equal(a, b)),
        Op::Fclass => float::classify(a),
        Op::FcvtW => float::to_signed(a),
        Op::FcvtWu => float::to_unsigned(a),
        _ => a,
    }
}
