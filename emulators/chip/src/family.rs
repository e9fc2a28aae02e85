// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The sizes, addresses and registers that all chips of a kind share.
//!
//! All values that software of the host or of a core sees are from the vendor's descriptions
//! (`tt-isa-documentation`) and its drivers' sources.

use crate::tensix::Core;
use emulator_riscv::Isa;
use hal_tenstorrent_loader::tensix::Chip;

/// A kind of chip.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// Its device number on the host's bus.
    pub device: u16,
    /// The instruction set of its cores.
    pub isa: Isa,
    /// The memory size of a tile.
    pub l1_bytes: u32,
    /// The size of a core's own memory: B and NC, and the other three.
    pub(crate) own_bytes: (usize, usize),
    /// The columns or rows in which Tensix tiles are fused off.
    pub lines: Lines,
    /// How many DRAM banks a whole chip has.
    pub banks: u8,
    /// The size of a bank.
    pub bank_bytes: u64,
    /// The lengths of the three regions that the host maps: 0, 2 and 4.
    pub regions: [u64; 3],
    /// The windows, in the order of their numbers.
    pub windows: &'static [WindowKind],
    /// The offset of the windows' settings in the first region, one behind the other.
    pub configuration: u64,
    /// The words of each window's settings.
    pub setting_words: usize,
    /// The bits of a network address that a window shows, and of a plane's number.
    pub address_bits: u32,
    /// See [`Family::address_bits`].
    pub plane_bits: u32,
    /// True if the kernel's driver lets programs choose a channel of the network for a window.
    pub static_channels: bool,
    /// A tile that is fused off on every board that is sold.
    pub fused_off: (u16, u16),
    /// The offset in the first region at which the third begins, if it shows the same.
    pub(crate) mirror: Option<u64>,
    /// The offset of the bridge's own interface to the network in the first region.
    pub(crate) bridge: u64,
    /// The address of the interface to the network of parts that are no Tensix tiles, on the network.
    pub(crate) interface: u64,
    /// The same of the ports of a bank, where they have one that is modelled.
    pub(crate) bank_interface: Option<u64>,
    /// The cores' interface to the network.
    pub noc: NocRegisters,
    /// The start addresses of cores.
    pub starts: Starts,
    /// The matrix engines of its tiles.
    pub engine: Chip,
}

/// Tensix tiles that are fused off together.
#[derive(Debug, PartialEq, Eq)]
pub struct Lines {
    /// `columns` or `rows`.
    pub name: &'static str,
    /// How many a whole chip has.
    pub all: u32,
    /// How many tiles each has.
    pub tiles: u8,
}

/// Windows of one size.
#[derive(Debug, PartialEq, Eq)]
pub struct WindowKind {
    /// Their region.
    pub bar: u8,
    /// The offset of the first one.
    pub offset: u64,
    /// The length of each.
    pub size: u64,
    /// The number of them.
    pub count: u32,
}

/// A tile's interface to the network, by offsets of its registers.
#[derive(Debug, PartialEq, Eq)]
pub struct NocRegisters {
    /// The distance of two command buffers.
    pub(crate) stride: u32,
    /// The register of a command buffer that starts a transfer.
    pub command: u32,
    /// True if coordinates have a register of their own, or are the highest bits of an address.
    pub(crate) apart: bool,
    /// The register with the tile's own coordinates, and the one with the translated ones.
    pub node_id: u32,
    pub(crate) translated_id: u32,
    /// The network's size, as that register holds it.
    pub(crate) size: (u32, u32),
    /// The longest transfer, and the rule.
    pub max_burst: u32,
    pub(crate) burst_rule: &'static str,
    /// The bits that both addresses must share when DRAM is read, and the rule.
    pub(crate) dram_bits: u64,
    pub(crate) dram_rule: &'static str,
}

/// The registers with the start addresses of T0, T1, T2 and NC, and those that enable them: a bit for each of
/// the three, and one for the last. A core without one starts where all chips' do.
#[derive(Debug, PartialEq, Eq)]
pub struct Starts {
    /// Of the first three.
    pub t: [u64; 3],
    /// Which of these are enabled.
    pub t_enable: u64,
    /// Of NC.
    pub nc: u64,
    /// The register that enables it.
    pub nc_enable: u64,
    /// True if they are reached over the network, or only by cores of the tile other than NC.
    pub(crate) over_network: bool,
    /// A word beside them without an effect here, which can be read, unlike them.
    pub(crate) beside: Option<u64>,
}

impl Starts {
    /// True if a core reaches them.
    pub(crate) fn reached_by(&self, core: Core) -> bool {
        self.over_network || core != Core::Nc
    }

    /// True if what was written to one of them can be read. In the vendor's simulators those for NC cannot, and none
    /// that the network does not reach.
    pub(crate) fn is_readable(&self, address: u64) -> bool {
        let written_alone =
            if self.over_network { self.nc..=self.nc_enable } else { self.t[0]..=self.nc_enable };
        !written_alone.contains(&address)
    }
}

impl Family {
    /// A window by its number: its kind, and its index within the kind.
    pub fn window(&self, number: u32) -> Option<(&'static WindowKind, u32)> {
        let mut first = 0;
        self.windows.iter().find_map(|kind| {
            let index = number.checked_sub(first).filter(|&index| index < kind.count);
            first += kind.count;
            index.map(|index| (kind, index))
        })
    }

    /// The number of the window at an offset of a region, and its kind.
    pub fn window_at(&self, bar: u8, offset: u64) -> Option<(u32, &'static WindowKind)> {
        let mut first = 0;
        self.windows.iter().find_map(|kind| {
            let at = offset.checked_sub(kind.offset).filter(|_| kind.bar == bar);
            let index = at.map(|at| at / kind.size).and_then(|index| u32::try_from(index).ok());
            let number = index.filter(|&index| index < kind.count).map(|index| first + index);
            first += kind.count;
            number.map(|number| (number, kind))
        })
    }

    /// How many windows there are.
    pub fn window_count(&self) -> u32 {
        self.windows.iter().map(|kind| kind.count).sum()
    }

    /// The length of the settings of all windows.
    pub(crate) fn configuration_bytes(&self) -> u64 {
        u64::from(self.window_count()) * 4 * self.setting_words as u64
    }
}

/// A chip with 14 columns of tiles, and floats.
pub static BLACKHOLE: Family = Family {
    name: "Blackhole",
    device: 0xb140,
    isa: Isa::Blackhole,
    l1_bytes: 1536 << 10,
    own_bytes: (8 << 10, 4 << 10),
    lines: Lines { name: "columns", all: 14, tiles: 10 },
    banks: 8,
    bank_bytes: 0xff00_0000,
    regions: [512 << 20, 1 << 20, 32 << 30],
    windows: &[
        WindowKind { bar: 0, offset: 0, size: 2 << 20, count: 202 },
        WindowKind { bar: 4, offset: 0, size: 4 << 30, count: 8 },
    ],
    configuration: 0x1fc0_0000,
    setting_words: 3,
    address_bits: 64,
    plane_bits: 2,
    static_channels: true,
    fused_off: (16, 2),
    mirror: None,
    bridge: 0x1fd0_4000,
    interface: 0xffff_ffff_ff00_0000,
    bank_interface: None,
    noc: NocRegisters {
        stride: 0x800,
        command: 0x40,
        apart: true,
        node_id: 0x44,
        translated_id: 0x148,
        size: (17, 12),
        max_burst: 16384,
        burst_rule: "a transfer has between 1 and 16384 bytes",
        dram_bits: 63,
        dram_rule: "where DRAM is read, both addresses must be the same modulo 64",
    },
    starts: Starts {
        t: [0xffb1_2228, 0xffb1_222c, 0xffb1_2230],
        t_enable: 0xffb1_2234,
        nc: 0xffb1_2238,
        nc_enable: 0xffb1_223c,
        over_network: true,
        beside: None,
    },
    engine: Chip::Blackhole,
};

/// A chip with ten rows of tiles, and without floats.
pub static WORMHOLE: Family = Family {
    name: "Wormhole",
    device: 0x401e,
    isa: Isa::Wormhole,
    l1_bytes: 1464 << 10,
    own_bytes: (4 << 10, 2 << 10),
    lines: Lines { name: "rows", all: 10, tiles: 8 },
    banks: 6,
    bank_bytes: 2 << 30,
    regions: [512 << 20, 1 << 20, 32 << 20],
    windows: &[
        WindowKind { bar: 0, offset: 0, size: 1 << 20, count: 156 },
        WindowKind { bar: 0, offset: 156 << 20, size: 2 << 20, count: 10 },
        WindowKind { bar: 0, offset: 176 << 20, size: 16 << 20, count: 20 },
    ],
    configuration: 0x1fc0_0000,
    setting_words: 2,
    address_bits: 36,
    plane_bits: 1,
    static_channels: false,
    fused_off: (18, 27),
    mirror: Some(480 << 20),
    bridge: 0x1fd0_2000,
    interface: 0xf_ffb2_0000,
    bank_interface: Some(0x1_0009_0000),
    noc: NocRegisters {
        stride: 0x400,
        command: 0x28,
        apart: false,
        node_id: 0x2c,
        translated_id: 0x138,
        size: (10, 12),
        max_burst: 8192,
        burst_rule: "a transfer has between 1 and 8192 bytes",
        dram_bits: 31,
        dram_rule: "where DRAM is read, both addresses must be the same modulo 32",
    },
    // Words 158 to 163 of the configuration of the matrix engine, which the network does not reach.
    starts: Starts {
        t: [0xffef_0278, 0xffef_027c, 0xffef_0280],
        t_enable: 0xffef_0284,
        nc: 0xffef_0288,
        nc_enable: 0xffef_028c,
        over_network: false,
        // The first word of that configuration.
        beside: Some(0xffef_0000),
    },
    engine: Chip::Wormhole,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_have_numbers_and_places() {
        assert_eq!((BLACKHOLE.window_count(), WORMHOLE.window_count()), (210, 186));
        for family in [&BLACKHOLE, &WORMHOLE] {
            for number in 0..family.window_count() {
                let (kind, index) = family.window(number).unwrap();
                let offset = kind.offset + u64::from(index) * kind.size;
                assert_eq!(family.window_at(kind.bar, offset + kind.size - 1), Some((number, kind)));
            }
            assert_eq!(family.window(family.window_count()), None);
        }
        // The last window of 16 MiB ends at the registers.
        assert_eq!(WORMHOLE.window_at(0, 496 << 20), None);
        assert_eq!(WORMHOLE.window_at(0, (496 << 20) - 1).map(|(number, _)| number), Some(185));
        assert_eq!(WORMHOLE.window_at(4, 0), None);
    }
}
