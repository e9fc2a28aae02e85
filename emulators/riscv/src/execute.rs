// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The execution of instructions.
//!
//! An instruction changes nothing before all of its errors have been ruled out.

use crate::block::{BlockEntry, Jump, Lookup, Map};
use crate::bus::{Bus, Width};
use crate::decode::{Instruction, Op};
use crate::float;
use crate::hart::HartRegisters;
use crate::trap::Cause;

/// The result of a step. A cause is large and rare: it is boxed, so that the common case fits in registers.
pub(crate) type StepResult<T> = Result<T, Box<Cause>>;

/// The address at which a core of a tile stores instructions for the tile's matrix engine. A `ttinsn` is such a store.
const ENGINE_INSTRUCTIONS: u32 = 0xffe4_0000;

/// The step after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// The next instruction of the block.
    On,
    /// The next instruction of the block, which begins a lookup.
    Lookup(Lookup),
    /// Nothing: it jumps to itself.
    Stay,
    /// Another address.
    Jump(u32),
    /// The address behind it, after decoded code was compared with memory.
    Changed,
    /// Behind an `ecall`.
    Call,
    /// Behind an `ebreak`.
    Break,
}

/// Checks that an address is a multiple of the access.
#[inline(always)]
fn aligned(address: u32, width: Width) -> StepResult<u32> {
    if address & (width.bytes() - 1) == 0 {
        Ok(address)
    } else {
        Err(Box::new(Cause::Unaligned { address, width }))
    }
}

/// An arm for each of some operations, in which `$op` is a constant.
macro_rules! by_operation {
    ($value:expr, $op:ident; $([$($name:ident)*] => $body:expr,)*) => {
        match $value { $($(Op::$name => { const $op: Op = Op::$name; const _: Op = $op; $body })*)* }
    };
}

impl HartRegisters {
    /// Executes an instruction. Only one that leaves its block returns an address.
    #[inline(always)]
    #[expect(clippy::too_many_lines, reason = "an arm for each group of instructions")]
    pub(crate) fn execute<B: Bus>(
        &mut self,
        entry: &BlockEntry,
        bus: &mut B,
        code: &Map,
    ) -> StepResult<Flow> {
        let instruction = entry.instruction;
        let Instruction { op, rd, rs1, rs2, imm } = instruction;
        let (a, b, immediate) = (self.x(rs1), self.x(rs2), imm.cast_unsigned());
        by_operation!(op, OP;
            [Lui] => self.set_x(rd, immediate),
            [Auipc] => self.set_x(rd, entry.pc.wrapping_add(immediate)),
            [Jal] => {
                check_target(entry.pc.wrapping_add(immediate))?;
                self.set_x(rd, entry.pc.wrapping_add(4));
                match entry.jump {
                    Jump::Plain => {}
                    Jump::Lookup(found) => return Ok(Flow::Lookup(found)),
                    Jump::Itself => return Ok(Flow::Stay),
                }
            },
            [Jalr] => {
                let target = a.wrapping_add(immediate) & !1;
                check_target(target)?;
                self.set_x(rd, entry.pc.wrapping_add(4));
                return Ok(Flow::Jump(target));
            },
            [Beq Bne Blt Bge Bltu Bgeu] => {
                if taken(OP, a, b) {
                    let target = entry.pc.wrapping_add(immediate);
                    check_target(target)?;
                    return Ok(Flow::Jump(target));
                }
            },
            [Lb Lh Lw Lbu Lhu] => {
                let value = read(bus, a.wrapping_add(immediate), loaded_width(OP))?;
                self.set_x(rd, extended(OP, value));
            },
            [Sb Sh Sw] => return store(bus, code, a.wrapping_add(immediate), stored_width(OP), b),
            [Ttinsn] => return store(bus, code, ENGINE_INSTRUCTIONS, Width::Word, immediate),
            [Flw] => {
                let value = read(bus, a.wrapping_add(immediate), Width::Word)?;
                self.set_f(rd, value);
            },
            [Fsw] => return store(bus, code, a.wrapping_add(immediate), Width::Word, self.f(rs2)),
            [Addi Slti Sltiu Xori Ori Andi Slli Srli Srai Rori] => {
                self.set_x(rd, with_immediate(OP, a, immediate));
            },
            [Clz Ctz Cpop SextB SextH OrcB Rev8 Brev8] => self.set_x(rd, of_one(OP, a)),
            [Add Sub Sll Slt Sltu Xor Srl Sra Or And Sh1add Sh2add Sh3add Andn Orn Xnor Min Minu Max Maxu Rol Ror Pack
                Mul Mulh Mulhsu Mulhu Div Divu Rem Remu] => self.set_x(rd, of_two(OP, a, b)),
            [Fence] => {},
            [Ecall] => return Ok(Flow::Call),
            [Ebreak] => return Ok(Flow::Break),
            [Csrrw Csrrs Csrrc] => self.control(instruction, a)?,
            [Csrrwi Csrrsi Csrrci] => self.control(instruction, u32::from(rs1))?,
            [AmoSwap AmoAdd AmoXor AmoAnd AmoOr AmoMin AmoMax AmoMinu AmoMaxu] => {
                let address = aligned(a, Width::Word)?;
                let old = bus.update(address, |old| atomic(OP, old, b));
                self.set_x(rd, old.map_err(|fault| Box::new(Cause::Atomic { address, fault }))?);
                return Ok(changed(code, address));
            },
            [Fadd Fsub Fmul Fsgnj Fsgnjn Fsgnjx Fmin Fmax] => {
                self.set_f(rd, of_two_floats(OP, self.f(rs1), self.f(rs2)));
            },
            [Fmadd Fmsub Fnmsub Fnmadd] => {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a register's number")]
                let c = self.f(imm as u8);
                self.set_f(rd, fused(OP, self.f(rs1), self.f(rs2), c));
            },
            [Feq Flt Fle Fclass FcvtW FcvtWu FmvX] => {
                self.set_x(rd, integer_result(OP, self.f(rs1), self.f(rs2)));
            },
            [FcvtS] => self.set_f(rd, float::from_signed(a)),
            [FcvtSu] => self.set_f(rd, float::from_unsigned(a)),
            [FmvW] => self.set_f(rd, a),
        );
        Ok(Flow::On)
    }

    /// Executes a lookup with its load, and returns how many instructions that was: none, without an effect, if
    /// these do not hold all of it, if the page is missing, or on an error.
    #[inline(always)]
    pub(crate) fn look_up<B: Bus>(&mut self, lookup: Lookup, entries: &[BlockEntry], bus: &mut B) -> usize {
        let Some(parts) = lookup.parts(entries) else { return 0 };
        let sum = self.x(parts.base).wrapping_add(parts.offset);
        let place = (sum >> 12 << 3).wrapping_add(parts.which);
        let Ok(found) = read(bus, place, Width::Word) else { return 0 };
        if found.cast_signed() > 0 {
            return 0;
        }
        let address = sum.wrapping_add(found);
        let loaded = match parts.load {
            None => None,
            Some(load) => {
                let Ok(value) = read(bus, address, loaded_width(load.op)) else { return 0 };
                Some((load, value))
            }
        };
        self.set_x(parts.entry, found);
        self.set_x(parts.address, address);
        match loaded {
            Some((Instruction { op: Op::Flw, rd, .. }, value)) => self.set_f(rd, value),
            Some((Instruction { op, rd, .. }, value)) => self.set_x(rd, extended(op, value)),
            None => {}
        }
        parts.length
    }

    /// Reads a control register, writes it if the instruction does, and returns the old value.
    fn control(&mut self, instruction: Instruction, operand: u32) -> StepResult<()> {
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
}

#[inline(always)]
fn check_target(target: u32) -> StepResult<()> {
    if target.is_multiple_of(4) { Ok(()) } else { Err(Box::new(Cause::UnalignedTarget(target))) }
}

/// The step after a store.
#[inline(always)]
fn changed(code: &Map, address: u32) -> Flow {
    if code.has(address) { Flow::Changed } else { Flow::On }
}

#[inline(always)]
fn store<B: Bus>(bus: &mut B, code: &Map, address: u32, width: Width, value: u32) -> StepResult<Flow> {
    let address = aligned(address, width)?;
    let stored = bus.store(address, width, value);
    stored.map_err(|fault| Box::new(Cause::Store { address, width, fault }))?;
    Ok(changed(code, address))
}

#[inline(always)]
const fn loaded_width(op: Op) -> Width {
    match op {
        Op::Lb | Op::Lbu => Width::Byte,
        Op::Lh | Op::Lhu => Width::Half,
        _ => Width::Word,
    }
}

#[inline(always)]
const fn stored_width(op: Op) -> Width {
    match op {
        Op::Sb => Width::Byte,
        Op::Sh => Width::Half,
        _ => Width::Word,
    }
}

/// A loaded value, with its sign if the instruction extends it.
#[inline(always)]
const fn extended(op: Op, value: u32) -> u32 {
    match op {
        Op::Lb => (value.cast_signed() << 24 >> 24).cast_unsigned(),
        Op::Lh => (value.cast_signed() << 16 >> 16).cast_unsigned(),
        _ => value,
    }
}

const SIGN: u32 = 1 << 31;

#[inline(always)]
fn fused(op: Op, a: u32, b: u32, c: u32) -> u32 {
    match op {
        Op::Fmadd => float::multiply_add(a, b, c),
        Op::Fmsub => float::multiply_add(a, b, c ^ SIGN),
        Op::Fnmsub => float::multiply_add(a ^ SIGN, b, c),
        _ => float::multiply_add(a ^ SIGN, b, c ^ SIGN),
    }
}

#[inline(always)]
fn of_two_floats(op: Op, a: u32, b: u32) -> u32 {
    match op {
        Op::Fadd => float::add_floats(a, b),
        Op::Fsub => float::subtract(a, b),
        Op::Fmul => float::multiply(a, b),
        Op::Fsgnj => a & !SIGN | b & SIGN,
        Op::Fsgnjn => a & !SIGN | !b & SIGN,
        Op::Fsgnjx => a ^ b & SIGN,
        Op::Fmin => float::minimum(a, b),
        _ => float::maximum(a, b),
    }
}

#[inline(always)]
fn read<B: Bus>(bus: &mut B, address: u32, width: Width) -> StepResult<u32> {
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
