// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The matrix unit: products of `SrcB` and `SrcA` onto `Dst`, and what prepares their registers (`MatrixUnit.md`).

use super::config::{ConfigBank, ThreadConfig};
use super::counters::Rwc;
use super::destination::{
    DST_ROWS, Destination, DstRows, decode_32, decode_bf16, decode_fp16, encode_32, encode_bf16, encode_fp16,
};
use super::error::{EngineError, rule, zero};
use super::format::DataFormat;
use super::product::{
    Accumulator, COLUMNS, Exponent, Key, Multipliers, Operand, ProductKind, ROWS, Row,
    multiply_accumulate_integers,
};
use super::source::{SRC_ROWS, Source};
use hal_tenstorrent_loader::tensix::instructions::{Cleardvalid, Incrwc, Mvmul, Setrwc, Zeroacc, Zerosrc};

/// The registers, as the matrix unit sees them.
pub(super) struct Registers<'a> {
    pub(super) config: ConfigBank<'a>,
    pub(super) thread: ThreadConfig<'a>,
    pub(super) rwc: &'a mut Rwc,
    pub(super) src_a: &'a mut Source,
    pub(super) src_b: &'a mut Source,
    pub(super) dst: &'a mut Destination,
    pub(super) multipliers: &'a mut Multipliers,
}

/// The kind of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Integers,
    Floats { exponent: Exponent, significant: [u32; 2] },
}

/// The bits of an element of a format that take part in a product.
const fn significant(format: DataFormat) -> u32 {
    match format {
        DataFormat::Tf32 => 0xffff_e000,
        DataFormat::Fp16 => 0x8fff_e000,
        _ => 0xffff_0000,
    }
}

/// True if a product takes elements of a format as floats with eight bits for the exponent.
const fn has_eight_bits(format: DataFormat) -> bool {
    matches!(format, DataFormat::Fp32 | DataFormat::Tf32 | DataFormat::Bf16)
}

impl Registers<'_> {
    /// The formats of both sources: of their banks, if the thread does not say otherwise.
    fn formats(&self) -> Result<(DataFormat, DataFormat), EngineError> {
        let fields = self.config.fields;
        let named = |what, value| DataFormat::new(what, value);
        let [of_a, of_b] = match fields.disable_implied_fmt {
            Some(own) => own.map(|own| self.thread.has(own)),
            None => [true; 2],
        };
        let a = if of_a {
            named("ALU_FORMAT_SPEC_REG0_SrcA", self.config.get(fields.alu_format_spec_reg0_src_a))?
        } else {
            self.src_a.format()
        };
        let b = if of_b {
            named("ALU_FORMAT_SPEC_REG1_SrcB", self.config.get(fields.alu_format_spec_reg1_src_b))?
        } else {
            self.src_b.format()
        };
        Ok((a, b))
    }

    fn style(&self) -> Result<Style, EngineError> {
        let fields = self.config.fields;
        let (a, b) = self.formats()?;
        let fits = EngineError::Conversion { from: a as u8, to: b as u8 };
        if self.config.has(fields.alu_acc_ctrl_int8_math_enabled) {
            let integers = (a, b) == (DataFormat::Int8, DataFormat::Int8);
            return if integers { Ok(Style::Integers) } else { Err(fits) };
        }
        let exponent = match (a, b) {
            (DataFormat::Fp16, DataFormat::Fp16) => Exponent::FiveBits,
            (a, b) if has_eight_bits(a) && has_eight_bits(b) => Exponent::EightBits,
            _ => return Err(fits),
        };
        Ok(Style::Floats { exponent, significant: [significant(a), significant(b)] })
    }

    /// The row of `Dst` that an instruction means.
    fn dst_row(&self, row: u32) -> u32 {
        let fields = self.config.fields;
        (row + self.rwc.dst.get() + self.thread.get(fields.dest_target_reg_cfg_math_offset)) % DST_ROWS
    }

    /// Executes `MVMUL`, whose banks are the matrix unit's. Returns the rows of `Dst`.
    pub(super) fn multiply(&mut self, mvmul: Mvmul) -> Result<DstRows, EngineError> {
        let fields = self.config.fields;
        const EIGHT: &str = "rows begin with a multiple of eight";
        zero("MVMUL's BroadcastSrcBRow", mvmul.broadcast_src_b_row.get())?;
        let style = self.style()?;
        let (a, b) = (self.rwc.src_a.get(), self.rwc.src_b.get());
        let row = self.dst_row(mvmul.dst_row.get());
        rule(a.is_multiple_of(16), "the row of SrcA", a, "it is a multiple of sixteen")?;
        rule(b.is_multiple_of(8), "the row of SrcB", b, EIGHT)?;
        rule(row.is_multiple_of(8), "the row of Dst", row, EIGHT)?;
        let phase = (self.rwc.fidelity + self.thread.get(fields.fidelity_base_phase)) & 3;
        match style {
            Style::Integers => self.multiply_integers(row, (a, b), phase),
            Style::Floats { exponent, significant } => {
                self.multiply_floats(row, (a, b), exponent, significant, phase)?;
            }
        }
        self.rwc.apply(self.thread, mvmul.addr_mod.get())?;
        self.flip(mvmul.flip_src_a.get() == 1, mvmul.flip_src_b.get() == 1)?;
        Ok(DstRows { first: row, count: 8, is_wide: self.is_wide() })
    }

    /// True if rows of 32 bits are meant where it is not said.
    fn is_wide(&self) -> bool {
        let fields = self.config.fields;
        self.config.has(fields.alu_acc_ctrl_fp32_enabled)
            || self.config.has(fields.alu_acc_ctrl_int8_math_enabled)
    }

    fn multiply_floats(
        &mut self,
        row: u32,
        (row_a, row_b): (u32, u32),
        exponent: Exponent,
        [of_a, of_b]: [u32; 2],
        phase: u32,
    ) -> Result<(), EngineError> {
        let fields = self.config.fields;
        let (Some(a), Some(b)) = (rows(self.src_a, row_a), rows(self.src_b, row_b)) else { return Ok(()) };
        if exponent == Exponent::FiveBits {
            check_halves(a)?;
            check_halves(b)?;
        }
        let accumulator = match exponent {
            _ if self.config.has(fields.alu_acc_ctrl_fp32_enabled) => Accumulator::Fp32,
            Exponent::EightBits => Accumulator::Bf16,
            Exponent::FiveBits => Accumulator::Fp16,
        };
        let mut sums = [[0; COLUMNS]; ROWS];
        for (row, sums) in (row..).zip(&mut sums) {
            *sums = read_floats(self.dst, row, accumulator);
        }
        let kind = ProductKind { exponent, accumulator, phase, minus_one: self.config.model.minus_one };
        let key =
            |source: &Source, row, significant| Key { version: source.version(), row, significant, phase };
        let a = Operand { rows: a, key: key(self.src_a, row_a, of_a) };
        let b = Operand { rows: b, key: key(self.src_b, row_b, of_b) };
        self.multipliers.multiply_accumulate(kind, &mut sums, b, a);
        for (row, sums) in (row..).zip(&sums) {
            write_floats(self.dst, row, accumulator, sums);
        }
        Ok(())
    }

    fn multiply_integers(&mut self, row: u32, (a, b): (u32, u32), phase: u32) {
        let (Some(a), Some(b)) = (rows::<COLUMNS>(self.src_a, a), rows::<ROWS>(self.src_b, b)) else {
            return;
        };
        // The bits of magnitudes that a phase multiplies.
        let of_a = if phase & 1 == 0 { 0xe0 } else { 0x1f };
        let of_b = if phase & 2 == 0 { 0x3f0 } else { 0xf };
        let a = a.map(|row| row.map(|value| integer(value, of_a)));
        let b = b.map(|row| row.map(|value| integer(value, of_b)));
        let mut sums = [[0; COLUMNS]; ROWS];
        for (row, sums) in (row..).zip(&mut sums) {
            *sums = self.dst.read_32(row).map(|value| signed(decode_32(value)));
        }
        multiply_accumulate_integers(&mut sums, &b, &a);
        for (row, sums) in (row..).zip(&sums) {
            self.dst.write_32(row, &sums.map(|value| encode_32(magnitude(value))));
        }
    }

    /// Gives banks back to the unpackers, unless the thread says not to, and goes on with the others.
    fn flip(&mut self, a: bool, b: bool) -> Result<(), EngineError> {
        let fields = self.config.fields;
        let keep_a = self.thread.has(fields.clr_dvalid_src_a_disable);
        let keep_b = self.thread.has(fields.clr_dvalid_src_b_disable);
        for (chosen, keeps, source) in [(a, keep_a, &mut *self.src_a), (b, keep_b, &mut *self.src_b)] {
            if chosen && !keeps {
                give_back(source)?;
            }
            if chosen {
                source.flip_matrix();
            }
        }
        Ok(())
    }

    /// Executes `SETRWC`.
    pub(super) fn set_counters(&mut self, fields: Setrwc) -> Result<(), EngineError> {
        const MASK: &str = "a counter that returns is set";
        let set = |flag: u32| flag == 1;
        let (a, b, dst) = (set(fields.src_a.get()), set(fields.src_b.get()), set(fields.dst.get()));
        let (a_cr, b_cr) = (set(fields.src_a_cr.get()), set(fields.src_b_cr.get()));
        rule(a || !a_cr, "SETRWC's SrcACr", 1, MASK)?;
        rule(b || !b_cr, "SETRWC's SrcBCr", 1, MASK)?;
        zero("SETRWC's DstCtoCr", fields.dst_c_to_cr.get())?;
        let rwc = &mut *self.rwc;
        match (a, a_cr) {
            (true, true) => rwc.src_a.return_and_add(fields.src_a_val.get()),
            (true, false) => rwc.src_a.set(fields.src_a_val.get()),
            (false, _) => {}
        }
        match (b, b_cr) {
            (true, true) => rwc.src_b.return_and_add(fields.src_b_val.get()),
            (true, false) => rwc.src_b.set(fields.src_b_val.get()),
            (false, _) => {}
        }
        match (dst, set(fields.dst_cr.get())) {
            (true, true) => rwc.dst.return_and_add(fields.dst_val.get()),
            (true, false) => rwc.dst.set(fields.dst_val.get()),
            (false, _) => {}
        }
        if set(fields.fidelity.get()) {
            rwc.fidelity = 0;
        }
        self.flip(set(fields.flip_src_a.get()), set(fields.flip_src_b.get()))
    }

    /// Executes `INCRWC`.
    pub(super) fn add_to_counters(&mut self, fields: Incrwc) {
        let rwc = &mut *self.rwc;
        match fields.src_a_cr.get() {
            0 => rwc.src_a.add(fields.src_a_inc.get()),
            _ => rwc.src_a.return_and_add(fields.src_a_inc.get()),
        }
        match fields.src_b_cr.get() {
            0 => rwc.src_b.add(fields.src_b_inc.get()),
            _ => rwc.src_b.return_and_add(fields.src_b_inc.get()),
        }
        match fields.dst_cr.get() {
            0 => rwc.dst.add(fields.dst_inc.get()),
            _ => rwc.dst.return_and_add(fields.dst_inc.get()),
        }
    }

    /// Executes `CLEARDVALID`.
    pub(super) fn clear_valid(&mut self, fields: Cleardvalid) -> Result<(), EngineError> {
        // The vendor's simulator refuses it as unsafe.
        zero("CLEARDVALID's Reset", fields.reset.get())?;
        let keeps = fields.keep_reading_same_src.get() == 1;
        let chosen =
            [(fields.flip_src_a.get(), &mut *self.src_a), (fields.flip_src_b.get(), &mut *self.src_b)];
        for (_, source) in chosen.into_iter().filter(|(chosen, _)| *chosen == 1) {
            give_back(source)?;
            if !keeps {
                source.flip_matrix();
            }
        }
        Ok(())
    }

    /// Executes `ZEROACC`. Returns the rows.
    pub(super) fn clear_dst(&mut self, fields: Zeroacc) -> Result<DstRows, EngineError> {
        zero("ZEROACC's Revert", fields.revert.get())?;
        let (place, wide) = (fields.imm10.get(), fields.use_dst32b.get() == 1);
        let half = DST_ROWS / 2;
        let rows = match fields.mode.get() {
            0 => self.clear_row(place)?,
            1 => self.clear_sixteen(place, wide)?,
            2 => {
                rule(place <= 1, "ZEROACC's Imm10", place, "there are two halves")?;
                self.dst.undefine_half(place == 1);
                DstRows { first: half * place, count: half, is_wide: false }
            }
            _ => {
                rule(place == 0, "ZEROACC's Imm10", place, "there is one whole")?;
                self.dst.undefine_half(false);
                self.dst.undefine_half(true);
                DstRows { first: 0, count: DST_ROWS, is_wide: false }
            }
        };
        if fields.mode.get() <= 1 {
            self.rwc.apply(self.thread, fields.addr_mod.get())?;
        }
        Ok(rows)
    }

    fn clear_row(&mut self, row: u32) -> Result<DstRows, EngineError> {
        let fields = self.config.fields;
        let row = row + self.rwc.dst.get() + self.thread.get(fields.dest_target_reg_cfg_math_offset);
        rule(row < DST_ROWS, "ZEROACC's row", row, "Dst has 1024 rows")?;
        let is_wide = self.is_wide();
        if is_wide {
            self.dst.undefine_32(row);
        } else {
            self.dst.undefine_16(row);
        }
        Ok(DstRows { first: row, count: 1, is_wide })
    }

    /// Sixteen rows, counted from the half of `Dst` in which the thread works.
    fn clear_sixteen(&mut self, block: u32, wide: bool) -> Result<DstRows, EngineError> {
        let fields = self.config.fields;
        let offset = self.thread.get(fields.dest_target_reg_cfg_math_offset) + self.rwc.dst.get();
        let (halves, blocks) = if wide { (offset & 768 != 0, 32) } else { (offset & 512 != 0, 64) };
        let halves = halves && self.config.model.clears_in_half;
        let block = if halves { block + blocks / 2 } else { block };
        rule(block < blocks, "ZEROACC's Imm10", block, "there are 64 blocks of 16 rows, or 32 of 32 bits")?;
        for row in 16 * block..16 * (block + 1) {
            if wide { self.dst.undefine_32(row) } else { self.dst.undefine_16(row) }
        }
        Ok(DstRows { first: 16 * block, count: 16, is_wide: wide })
    }

    /// Executes `ZEROSRC`.
    pub(super) fn clear_sources(&mut self, fields: Zerosrc) -> Result<(), EngineError> {
        zero("ZEROSRC's NegativeInfSrcA", fields.negative_inf_src_a.get())?;
        let (both, single) = (fields.both_banks.get() == 1, fields.single_bank_matrix_unit.get());
        if !both {
            rule(
                single == 1,
                "ZEROSRC's SingleBankMatrixUnit",
                single,
                "only both banks or the matrix unit's",
            )?;
        }
        let chosen =
            [(fields.clear_src_a.get(), &mut *self.src_a), (fields.clear_src_b.get(), &mut *self.src_b)];
        for (_, source) in chosen.into_iter().filter(|(chosen, _)| *chosen == 1) {
            if both {
                source.clear();
            } else {
                *source.rows_mut() = [[0; COLUMNS]; SRC_ROWS];
            }
        }
        Ok(())
    }
}

/// Gives a bank back to its unpacker.
fn give_back(source: &mut Source) -> Result<(), EngineError> {
    const OWN: &str = "a bank that is given back is the matrix unit's";
    rule(source.matrix_may_read(), "the bank's owner", 0, OWN)?;
    source.give_to_unpacker();
    Ok(())
}

/// Some rows from one on, of those of the matrix unit's bank. There are as many behind a row that is a multiple of
/// them.
fn rows<const N: usize>(source: &Source, first: u32) -> Option<&[Row; N]> {
    source.rows().get(first as usize..)?.first_chunk()
}

/// Refuses elements whose exponents have more than five bits.
fn check_halves(rows: &[Row]) -> Result<(), EngineError> {
    const HALVES: &str = "the exponent of a half has five bits";
    let upper = rows.iter().flatten().fold(0, |seen, value| seen | value) & 0x7000_0000;
    rule(upper == 0, "an exponent's upper bits", upper >> 28, HALVES)
}

/// A row of `Dst` as the bits of floats.
fn read_floats(dst: &Destination, row: u32, accumulator: Accumulator) -> Row {
    match accumulator {
        Accumulator::Fp32 => dst.read_32(row).map(decode_32),
        Accumulator::Bf16 => dst.read_16(row).map(|value| u32::from(decode_bf16(value)) << 16),
        Accumulator::Fp16 => dst.read_16(row).map(|value| {
            let value = u32::from(decode_fp16(value));
            (value & 0x8000) << 16 | (value & 0x7fff) << 13
        }),
    }
}

/// Writes the bits of floats to a row of `Dst`.
fn write_floats(dst: &mut Destination, row: u32, accumulator: Accumulator, values: &Row) {
    match accumulator {
        Accumulator::Fp32 => dst.write_32(row, &values.map(encode_32)),
        Accumulator::Bf16 => dst.write_16(row, values.map(|value| encode_bf16((value >> 16) as u16))),
        Accumulator::Fp16 => dst.write_16(
            row,
            values.map(|value| {
                let (sign, rest) = ((value >> 16 & 0x8000) as u16, (value >> 13 & 0x7fff) as u16);
                encode_fp16(sign | rest)
            }),
        ),
    }
}

/// An element of a source as an integer, of whose magnitude some bits count.
fn integer(value: u32, bits: u32) -> i32 {
    let magnitude = if value & 0x7f80_0000 == 0 { 0 } else { value >> 13 & bits }.cast_signed();
    if value >> 31 == 1 { -magnitude } else { magnitude }
}

/// A sign and a magnitude as an integer.
fn signed(value: u32) -> i32 {
    let magnitude = (value & 0x7fff_ffff).cast_signed();
    if value >> 31 == 1 { -magnitude } else { magnitude }
}

/// The inverse of [`signed`].
fn magnitude(value: i32) -> u32 {
    let sign = if value < 0 { 1 << 31 } else { 0 };
    sign | value.unsigned_abs()
}
