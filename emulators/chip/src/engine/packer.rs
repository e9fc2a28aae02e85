// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The packer, which moves rows of `Dst` to memory (`PACR.md`, `Packers/`).
//!
//! Blackhole has one, with four interfaces that read a row each; of Wormhole's four, the first is here, which reads one
//! row. The rows of instructions up to one that is the last follow each other in memory; behind the last, the rest of
//! 16 bytes is filled with zeros. Of the packer's many stages there are the conversion of formats and the mask of
//! columns.

use super::config::ConfigBank;
use super::counters::Adc;
use super::destination::{DST_ROWS, Destination, DstRows, decode_32, decode_bf16, decode_fp16};
use super::error::{EngineError, rule, zero};
use super::format::{DataFormat, Packing};
use super::product::{COLUMNS, ROW_ELEMENTS, Row};
use super::unpacker::MemoryRange;
use hal_tenstorrent_loader::tensix::Chip;
use hal_tenstorrent_loader::tensix::instructions::Pacr;

/// What goes on from one instruction to the next, until the last.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// The address in memory of the next element.
    address: u64,
    /// The element of a row, and the row of a plane, at which the mask of columns is.
    x: u32,
    y: u32,
}

/// The packer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Packer {
    progress: Option<Progress>,
}

/// The settings of an instruction.
struct Settings {
    packing: Packing,
    /// The format of `Dst`, by which its bits are put in order.
    from: DataFormat,
    to: DataFormat,
}

impl Settings {
    fn new(config: ConfigBank<'_>) -> Result<Self, EngineError> {
        let fields = config.fields;
        let from = config.get(fields.thcon_sec0_reg1_in_data_format);
        let between = config.get(fields.alu_format_spec_reg2_dstacc);
        rule(
            from == between,
            "THCON_SEC0_REG1_In_data_format",
            from,
            "it is ALU_FORMAT_SPEC_REG2_Dstacc too",
        )?;
        let from = DataFormat::new("THCON_SEC0_REG1_In_data_format", from)?;
        let to = config.get(fields.thcon_sec0_reg1_out_data_format);
        let to = DataFormat::new("THCON_SEC0_REG1_Out_data_format", to)?;
        let wide = config.has(fields.pck_dest_rd_ctrl_read_32b_data);
        let unsigned = config.has(fields.pck_dest_rd_ctrl_read_unsigned);
        Ok(Self { packing: Packing::new(wide, from, to, unsigned)?, from, to })
    }

    /// A row of `Dst`, converted.
    fn row(&self, dst: &Destination, row: u32) -> Row {
        let mut values = [0; COLUMNS];
        if self.packing.is_wide() {
            for (value, read) in values.iter_mut().zip(dst.read_32(row)) {
                *value = self.packing.convert(decode_32(read));
            }
        } else {
            let decode = if self.from == DataFormat::Fp16 { decode_fp16 } else { decode_bf16 };
            for (value, read) in values.iter_mut().zip(dst.read_16(row)) {
                *value = self.packing.convert(decode(read).into());
            }
        }
        values
    }
}

/// Refuses what is not modelled of an instruction. Returns the interfaces that read `Dst`, each of which has a bit.
fn check(chip: Chip, pacr: Pacr) -> Result<u32, EngineError> {
    const KNOWN: [u32; 5] = [0, 0b1, 0b11, 0b101, 0b1010];
    let interfaces = match (chip, pacr.read_intf_sel.get(), pacr.packer_mask.get()) {
        (Chip::Blackhole, interfaces, _) if KNOWN.contains(&interfaces) => interfaces,
        (Chip::Blackhole, value, _) => return Err(EngineError::Value { what: "PACR's ReadIntfSel", value }),
        // The first packer reads one row behind the other.
        (Chip::Wormhole, _, 0 | 1) => 1,
        (Chip::Wormhole, _, value) => return Err(EngineError::Value { what: "PACR's PackerMask", value }),
    };
    zero("PACR's Flush", pacr.flush.get())?;
    zero("PACR's CtxtCtrl", pacr.ctxt_ctrl.get())?;
    zero("PACR's Concat", pacr.concat.get())?;
    zero("PACR's OvrdThreadId", pacr.ovrd_thread_id.get())?;
    zero("PACR's ZeroWrite", pacr.zero_write.get())?;
    zero("PACR's AddrCntContext", pacr.addr_cnt_context.get())?;
    zero("PACR's DstAccessMode", pacr.dst_access_mode.get())?;
    zero("PACR's RowPadZero", pacr.row_pad_zero.get())?;
    zero("PACR's CfgContext", pacr.cfg_context.get())?;
    Ok(if interfaces == 0 { 15 } else { interfaces })
}

/// The first row of `Dst` that an instruction reads.
fn first_row(config: ConfigBank<'_>, adc: &Adc, bytes: u32) -> Result<u32, EngineError> {
    let fields = config.fields;
    const ALIGNED: &str = "a stride is a multiple of an element's bytes";
    let strides = [
        config.get(fields.pck0_addr_ctrl_xy_reg_0_ystride),
        config.get(fields.pck0_addr_ctrl_zw_reg_0_zstride),
        config.get(fields.pck0_addr_ctrl_zw_reg_0_wstride),
    ];
    let [from, _] = &adc.channels;
    let mut address = 0;
    for (stride, count) in strides.into_iter().zip([from.y.get(), from.z.get(), from.w.get()]) {
        rule(stride.is_multiple_of(bytes), "PCK0_ADDR_CTRL_REG_0_stride", stride, ALIGNED)?;
        address += stride * count;
    }
    let element = address / bytes;
    rule(element.is_multiple_of(ROW_ELEMENTS), "the element of Dst", element, "it is the first of its row")?;
    Ok((element / ROW_ELEMENTS + config.get(fields.dest_target_reg_cfg_pack_sec0_offset)) % DST_ROWS)
}

/// Where the first row of some goes in memory.
fn first_address(config: ConfigBank<'_>, adc: &Adc) -> u64 {
    let fields = config.fields;
    let [_, to] = &adc.channels;
    let counted = to.y.get() * config.get(fields.pck0_addr_ctrl_xy_reg_1_ystride)
        + to.z.get() * config.get(fields.pck0_addr_ctrl_zw_reg_1_zstride)
        + to.w.get() * config.get(fields.pck0_addr_ctrl_zw_reg_1_wstride);
    let address = config.get(fields.thcon_sec0_reg1_l1_dest_addr).wrapping_add(1);
    u64::from(address.wrapping_add(counted >> 4)) << 4
}

/// The mask of columns for a row of a plane: a bit for each column that is not zero.
fn mask(config: ConfigBank<'_>, y: u32) -> Result<u32, EngineError> {
    let fields = config.fields;
    let map = config.get(fields.pck_edge_tile_row_set_select_select) & 3;
    let first = fields.tile_row_set_mapping_0_row_set_mapping_0.word as usize;
    let map = match map {
        0 => config.word(first),
        1 => config.word(first + 1),
        value => return Err(EngineError::Value { what: "PCK_EDGE_TILE_ROW_SET_SELECT_select", value }),
    };
    match map >> (2 * (y & 15)) & 3 {
        0 => Ok(config.get(fields.pck_edge_offset_sec0_mask)),
        1 => Ok(config.get(fields.pck_edge_offset_sec1_mask)),
        value => Err(EngineError::Value { what: "TILE_ROW_SET_MAPPING_row_set_mapping", value }),
    }
}

impl Packer {
    /// Executes `PACR`. Returns the rows of `Dst` that it read, up to the end of their group of four, and where it has
    /// written.
    pub(super) fn pack(
        &mut self,
        pacr: Pacr,
        config: ConfigBank<'_>,
        adc: &Adc,
        dst: &Destination,
        l1: &mut [u8],
    ) -> Result<(DstRows, MemoryRange), EngineError> {
        let fields = config.fields;
        const GROUP: &str = "the rows that interfaces read are in one group of four";
        let interfaces = check(config.model.chip, pacr)?;
        let settings = Settings::new(config)?;
        let planes = config.get(fields.pack_counters_sec0_pack_reads_per_xy_plane);
        rule((1..=16).contains(&planes), "pack_reads_per_xy_plane", planes, "a plane has 1 to 16 rows")?;
        let [from, to] = &adc.channels;
        zero("the packer's counter X of channel 0", from.x.get())?;
        let count = to.x.get() + 1;
        let whole = count == 16 || count == 8 && interfaces == 1;
        rule(whole, "the packer's count", count, "a row has 16 elements, or 8 for interface 0 alone")?;
        let row = first_row(config, adc, settings.from.bytes())?;
        rule(interfaces << (row & 3) <= 15, "PACR's ReadIntfSel", interfaces, GROUP)?;
        if self.progress.is_none() {
            let [_, to] = &adc.channels;
            zero("the packer's counter Z of channel 1", to.z.get())?;
            zero("the packer's counter W of channel 1", to.w.get())?;
            if !config.model.packs_by_y {
                zero("the packer's counter Y of channel 1", to.y.get())?;
            }
        }
        let fresh = || Progress { address: first_address(config, adc), x: 0, y: 0 };
        let mut progress = self.progress.unwrap_or_else(fresh);
        let start = progress.address;
        for interface in (0..4).filter(|interface| interfaces >> interface & 1 == 1) {
            let mut values = settings.row(dst, row + interface);
            let values = values.get_mut(..count as usize).unwrap_or_default();
            for (column, value) in values.iter_mut().enumerate() {
                *value = if mask(config, progress.y)? >> column & 1 == 1 { *value } else { 0 };
                progress.step(planes);
            }
            progress.address = store(settings.to, values, progress.address, l1)?;
        }
        let mut end = progress.address;
        if pacr.last.get() == 1 {
            let rest = (16 - end % 16) % 16;
            fill(end, rest, l1)?;
            end += rest;
        }
        self.progress = if pacr.last.get() == 1 { None } else { Some(progress) };
        let rows = DstRows { first: row, count: 4 - row % 4, is_wide: settings.packing.is_wide() };
        Ok((rows, start..end))
    }
}

impl Progress {
    /// Goes on by an element.
    const fn step(&mut self, rows: u32) {
        self.x += 1;
        if self.x == 16 {
            self.x = 0;
            self.y = if self.y + 1 == rows { 0 } else { self.y + 1 };
        }
    }
}

/// Writes elements to memory, and returns the address behind them.
fn store(format: DataFormat, values: &[u32], address: u64, l1: &mut [u8]) -> Result<u64, EngineError> {
    let size = format.bytes() as usize;
    let length = u32::try_from(values.len() * size).unwrap_or(u32::MAX);
    let place = memory_mut(l1, address, length)?;
    for (place, value) in place.chunks_exact_mut(size).zip(values) {
        place.iter_mut().zip(value.to_le_bytes()).for_each(|(place, byte)| *place = byte);
    }
    Ok(address + u64::from(length))
}

/// Sets bytes of memory to zero.
fn fill(address: u64, length: u64, l1: &mut [u8]) -> Result<(), EngineError> {
    memory_mut(l1, address, u32::try_from(length).unwrap_or(u32::MAX)).map(|place| place.fill(0))
}

fn memory_mut(l1: &mut [u8], address: u64, length: u32) -> Result<&mut [u8], EngineError> {
    let start = usize::try_from(address).unwrap_or(usize::MAX);
    let place = l1.get_mut(start..).and_then(|rest| rest.get_mut(..length as usize));
    place.ok_or(EngineError::Memory { address, length })
}
