// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The unpackers, which move elements from memory to `SrcA` and `SrcB` (`UNPACR_Regular.md`).
//!
//! A tile in memory has rows of `XDim` elements, and counters say where a run of elements begins and ends. What the run
//! is converted to goes to one row of the register behind the other. Of Blackhole's modes there are those for
//! uncompressed floats and integers; unpacker 0 can also transpose faces of 16 by 16, and bring rows of 32 elements
//! that are apart.

use super::config::ConfigBank;
use super::counters::Adc;
use super::error::{EngineError, rule, zero};
use super::format::{DataFormat, Unpacking};
use super::model::Model;
use super::product::{COLUMNS, ROW_ELEMENTS};
use super::source::{SRC_ROWS, Source};
use hal_tenstorrent_loader::tensix::instructions::{Unpacr, UnpacrNop};
use hal_tenstorrent_loader::tensix::{Bits, Chip};

/// The element of `SrcA` that an output address of zero stands for is this far in front of its first.
const SRC_A_OFFSET: u32 = 64;

/// What both unpackers have, by other fields.
#[derive(Clone, Copy, Debug)]
struct Settings {
    from: DataFormat,
    to: DataFormat,
    unsigned: bool,
    uncompressed: bool,
    x_dim: u32,
    y_dim: u32,
    z_dim: u32,
    /// In units of 16 bytes.
    base: u32,
    /// In bytes of the output format.
    y_stride: u32,
    z_stride: u32,
    w_stride: u32,
    transposes: bool,
    /// The distance of rows in memory, if they are apart.
    row_stride: Option<u32>,
}

impl Settings {
    fn new(config: ConfigBank<'_>, unpacker: usize) -> Result<Self, EngineError> {
        let fields = config.fields;
        let descriptor = match unpacker {
            0 => fields.thcon_sec0_reg0_tile_descriptor,
            _ => fields.thcon_sec1_reg0_tile_descriptor,
        };
        let (descriptor, dimensions) = (config.get(descriptor), config.get(descriptor.further(1)));
        let from = DataFormat::new("the tile descriptor's InDataFormat", descriptor & 15)?;
        let common = Self {
            from,
            to: from,
            unsigned: false,
            uncompressed: false,
            x_dim: descriptor >> 16,
            y_dim: dimensions & 0xff,
            z_dim: (dimensions >> 16 & 0xff).max(1),
            base: 0,
            y_stride: 0,
            z_stride: 0,
            w_stride: 0,
            transposes: false,
            row_stride: None,
        };
        let to = |value| DataFormat::new("REG2_Out_data_format", value);
        if unpacker == 0 {
            let stride = config.get(fields.thcon_sec0_reg2_shift_amount_cntx0) << 4
                | config.get(fields.thcon_sec0_reg2_shift_amount_cntx1) << 8
                | config.get(fields.thcon_sec0_reg2_shift_amount_cntx2) << 12;
            let apart = config.has(fields.thcon_sec0_reg2_tileize_mode);
            if !apart {
                zero("THCON_SEC0_REG2_Shift_amount", stride)?;
            }
            let offset = config.get(fields.thcon_sec0_reg7_offset_address);
            return Ok(Self {
                to: to(config.get(fields.thcon_sec0_reg2_out_data_format))?,
                unsigned: config.has(fields.alu_format_spec_reg0_src_a_unsigned),
                uncompressed: config.has(fields.thcon_sec0_reg2_disable_zero_compress_cntx0),
                x_dim: config.get(fields.thcon_sec0_reg5_tile_x_dim_cntx0),
                base: config.get(fields.thcon_sec0_reg3_base_address).wrapping_add(offset),
                y_stride: config.get(fields.unp0_addr_ctrl_xy_reg_1_ystride),
                z_stride: config.get(fields.unp0_addr_ctrl_zw_reg_1_zstride),
                w_stride: config.get(fields.unp0_addr_ctrl_zw_reg_1_wstride),
                transposes: config.has(fields.thcon_sec0_reg2_haloize_mode),
                row_stride: apart.then_some(stride),
                ..common
            });
        }
        let offset = config.get(fields.thcon_sec1_reg7_offset_address);
        Ok(Self {
            to: to(config.get(fields.thcon_sec1_reg2_out_data_format))?,
            unsigned: config.has(fields.alu_format_spec_reg0_src_b_unsigned),
            uncompressed: config.has(fields.thcon_sec1_reg2_disable_zero_compress_cntx0),
            base: config.get(fields.thcon_sec1_reg3_base_address).wrapping_add(offset),
            y_stride: config.get(fields.unp1_addr_ctrl_xy_reg_1_ystride),
            z_stride: config.get(fields.unp1_addr_ctrl_zw_reg_1_zstride),
            w_stride: config.get(fields.unp1_addr_ctrl_zw_reg_1_wstride),
            ..common
        })
    }

    /// How many elements of a row are together in memory, where rows are apart.
    const fn row_width(self, model: &Model) -> u32 {
        let [of_one_byte, of_more] = model.row_width;
        if self.from.bytes() == 1 { of_one_byte } else { of_more }
    }

    /// The address of the first element.
    fn input(self, adc: &Adc) -> u64 {
        let [from, _] = &adc.channels;
        let first = u64::from(from.w.get() * self.z_dim + from.z.get());
        let first = (first * u64::from(self.y_dim) + u64::from(from.y.get())) * u64::from(self.x_dim);
        let first = first + u64::from(from.x.get());
        (u64::from(self.base.wrapping_add(1)) << 4) + first * u64::from(self.from.bytes())
    }

    /// The number of the register's element that is written first.
    fn output(self, adc: &Adc, config: ConfigBank<'_>, unpacker: usize) -> Result<u32, EngineError> {
        let fields = config.fields;
        const ALIGNED: &str = "a stride of the output is a multiple of an element's bytes";
        const ROW: &str = "the output begins with a row";
        let bytes = self.to.bytes();
        for stride in [self.y_stride, self.z_stride, self.w_stride] {
            rule(stride.is_multiple_of(bytes), "UNP_ADDR_CTRL_REG_1_stride", stride, ALIGNED)?;
        }
        let [_, to] = &adc.channels;
        let counted = to.y.get() * self.y_stride + to.z.get() * self.z_stride + to.w.get() * self.w_stride;
        let counted = counted / bytes;
        let output = if unpacker == 0 {
            let context = config.get(fields.thcon_sec0_reg5_dest_cntx0_address);
            let adds = config.has(fields.unp0_add_dest_addr_cntr_add_dest_addr_cntr);
            let output = if adds { counted + context } else { context };
            output.checked_sub(SRC_A_OFFSET).ok_or(EngineError::Undefined {
                what: "the output address of unpacker 0",
                value: output,
                rule: "the first 64 elements are in front of SrcA",
            })?
        } else {
            counted
        };
        rule(output.is_multiple_of(ROW_ELEMENTS), "the output address", output, ROW)?;
        Ok(output)
    }

    /// Refuses a run to `SrcA` of which hardware may leave elements away, because it begins within rows that are
    /// written at once.
    fn check_burst(self, row: u32, count: u32) -> Result<(), EngineError> {
        const BURST: &str =
            "a long run begins with a row of SrcA that is a multiple of those written at once";
        let at_once = 8 / self.from.bytes();
        rule(count <= ROW_ELEMENTS || row.is_multiple_of(at_once), "the first row", row, BURST)
    }
}

/// Refuses what is not modelled of an instruction.
fn check(unpacr: Unpacr) -> Result<(), EngineError> {
    rule(unpacr.last.get() == 1, "UNPACR's last", 0, "only whole transfers are modelled")?;
    zero("UNPACR's RowSearch", unpacr.row_search.get())?;
    zero("UNPACR's UseContextCounter", unpacr.use_context_counter.get())?;
    zero("UNPACR's AllDatumsAreZero", unpacr.all_datums_are_zero.get())?;
    zero("UNPACR's ContextADC", unpacr.context_adc.get())?;
    zero("UNPACR's ContextNumber", unpacr.context_number.get())?;
    let multi = unpacr.multi_context_mode.get();
    rule(multi == 1, "UNPACR's MultiContextMode", multi, "only settings of a context are modelled")
}

/// The bytes of memory that an instruction reads.
pub(super) type MemoryRange = std::ops::Range<u64>;

/// Executes `UNPACR`, whose bank is the unpacker's. Returns where it has read.
pub(super) fn unpack(
    unpacr: Unpacr,
    config: ConfigBank<'_>,
    sets_address: bool,
    adc: &mut Adc,
    source: &mut Source,
    l1: &[u8],
) -> Result<MemoryRange, EngineError> {
    check(unpacr)?;
    let unpacker = unpacr.which_unpacker.get() as usize;
    let settings = Settings::new(config, unpacker)?;
    rule(settings.uncompressed, "Disable_zero_compress_cntx0", 0, "only uncompressed data is modelled")?;
    rule(sets_address, "SRCA_SET_SetOvrdWithAddr", 0, "only outputs by their address are modelled")?;
    let conversion = Unpacking::new(settings.from, settings.to, settings.unsigned)?;
    let ([from, to], input) = (&adc.channels, settings.input(adc));
    let (first, end) = (from.x.get(), to.x.get() + 1);
    rule(first < end, "the counter X of channel 0", first, "it is not behind that of channel 1")?;
    let count = end - first;
    let output = settings.output(adc, config, unpacker)?;
    if unpacker == 0 {
        settings.check_burst(output / ROW_ELEMENTS, count)?;
    }
    if settings.transposes || settings.row_stride.is_some() {
        let low = u32::try_from(input & 15).unwrap_or_default();
        rule(low == 0, "the input address modulo 16", low, "this mode's input is aligned")?;
    }
    let wraps = unpacker == 0 && config.model.src_a_wraps;
    let mut write = Output { source, wraps, transposes: settings.transposes, element: output };
    let width =
        if settings.row_stride.is_some() { settings.row_width(config.model).min(count) } else { count };
    let stride = settings.row_stride.unwrap_or(width * settings.from.bytes());
    let (mut address, mut left, mut range) = (input, count, input..input);
    while left > 0 {
        let now = left.min(width);
        let length = now * settings.from.bytes();
        let bytes = memory(l1, address, length)?;
        write.elements(conversion, bytes, settings.from.bytes() as usize)?;
        range = range.start.min(address)..range.end.max(address + u64::from(length));
        (address, left) = (address + u64::from(stride), left - now);
    }
    let [from, to] = &mut adc.channels;
    from.z.add(unpacr.ch0_z_inc.get());
    from.y.add(unpacr.ch0_y_inc.get());
    to.z.add(unpacr.ch1_z_inc.get());
    to.y.add(unpacr.ch1_y_inc.get());
    if unpacr.flip_src.get() == 1 {
        source.give_to_matrix(settings.to);
    }
    Ok(range)
}

/// Bytes of a tile's memory.
pub(super) fn memory(l1: &[u8], address: u64, length: u32) -> Result<&[u8], EngineError> {
    let start = usize::try_from(address).unwrap_or(usize::MAX);
    let bytes = l1.get(start..).and_then(|rest| rest.get(..length as usize));
    bytes.ok_or(EngineError::Memory { address, length })
}

/// Where an unpacker writes.
struct Output<'a> {
    source: &'a mut Source,
    /// True if rows behind the last are the first again.
    wraps: bool,
    /// True if rows and columns of each 16 are exchanged.
    transposes: bool,
    /// The number of the next element.
    element: u32,
}

impl Output<'_> {
    /// Writes elements one behind the other.
    fn elements(&mut self, conversion: Unpacking, bytes: &[u8], size: usize) -> Result<(), EngineError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let column = self.element as usize % COLUMNS;
            let (now, later) = rest.split_at(rest.len().min((COLUMNS - column) * size));
            let mut values = [0; COLUMNS];
            let count = now.len() / size;
            conversion.convert(now, &mut values);
            self.row(column, values.get(..count).unwrap_or(&values))?;
            self.element += u32::try_from(count).unwrap_or_default();
            rest = later;
        }
        Ok(())
    }

    /// Writes some elements of a row.
    fn row(&mut self, column: usize, values: &[u32]) -> Result<(), EngineError> {
        let row = self.element / ROW_ELEMENTS;
        rule(self.wraps || row < 64, "the row of SrcA or SrcB", row, "it has 64")?;
        let row = row as usize % SRC_ROWS;
        let rows = self.source.unpacked();
        if self.transposes {
            let (face, place) = (row - row % COLUMNS, row % COLUMNS);
            let places = rows.iter_mut().skip(face + column).filter_map(|row| row.get_mut(place));
            places.zip(values).for_each(|(place, value)| *place = *value);
        } else if let Some(row) = rows.get_mut(row).and_then(|row| row.get_mut(column..)) {
            row.iter_mut().zip(values).for_each(|(place, value)| *place = *value);
        }
        Ok(())
    }
}

/// Executes `UNPACR_NOP`, which may start: sets a bank to zero, or to what stands for minus infinity.
pub(super) fn clear(nop: UnpacrNop, config: ConfigBank<'_>, source: &mut Source) -> Result<(), EngineError> {
    let fields = config.fields;
    const MODE: &str = "only the mode that clears a bank is modelled";
    let nop = match (config.model.chip, nop.no_op.get()) {
        (Chip::Blackhole, _) => nop,
        (Chip::Wormhole, mode) => {
            rule(matches!(mode, 1 | 5), "UNPACR_NOP's NoOp", mode, MODE)?;
            UnpacrNop { unpack_pop: Bits::new(1), src_clr_val_ctrl: Bits::new(mode >> 2), ..nop }
        }
    };
    rule(nop.unpack_pop.get() == 1, "UNPACR_NOP's Unpack_Pop", nop.unpack_pop.get(), MODE)?;
    zero("UNPACR_NOP's BankClrCtrl", nop.bank_clr_ctrl.get())?;
    zero("UNPACR_NOP's ClrTo1FmtCtrl", nop.clr_to1_fmt_ctrl.get())?;
    zero("UNPACR_NOP's MsgClrCnt", nop.msg_clr_cnt.get())?;
    zero("UNPACR_NOP's StreamId", nop.stream_id.get())?;
    let unpacker = nop.unpacker_select.get();
    let infinite = nop.src_clr_val_ctrl.get();
    rule(
        infinite + unpacker <= 1,
        "UNPACR_NOP's SrcClrValCtrl",
        infinite,
        "SrcA alone is cleared to infinity",
    )?;
    let value = if infinite == 1 { 0xffff_e000 } else { 0 };
    *source.unpacked() = [[value; COLUMNS]; SRC_ROWS];
    if nop.set_dvalid.get() == 1 {
        rule(source.unpacker_may_write(), "UNPACR_NOP's SetDvalid", 1, "the bank is the unpacker's")?;
        let format = if unpacker == 0 {
            config.get(fields.thcon_sec0_reg2_out_data_format)
        } else {
            config.get(fields.thcon_sec1_reg2_out_data_format)
        };
        source.give_to_matrix(DataFormat::new("REG2_Out_data_format", format)?);
    }
    Ok(())
}
