// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The devices of a machine as the system shows them in `/sys`: functions on a PCI bus, the devices of their driver,
//! and what each file of theirs holds.
//!
//! Every card is alone on a bus of its own, below a host bridge of its own: `/sys/devices/pci0000:10/0000:10:00.0`.

use std::fmt::Write;
use std::path::PathBuf;

/// What a machine shows of its cards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShownDevices {
    /// The kernel module, which has the driver's name.
    pub driver: &'static str,
    /// The cards on the bus.
    pub functions: Vec<PciFunction>,
    /// The devices of the driver.
    pub devices: Vec<ClassDevice>,
    /// Files elsewhere, whose text is the machine's [attribute](crate::EmulatedMachine::attribute_text).
    pub files: Vec<PathBuf>,
    /// Such files whose every read and write the machine answers: what is read is the text of that moment.
    pub live: Vec<PathBuf>,
}

/// A card on the bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciFunction {
    /// The number of its bus in the first domain; it is device 0, function 0 there.
    pub bus: u8,
    /// Vendor and device, of the chip and of the board.
    pub ids: [u16; 4],
    /// Class, sub-class and interface.
    pub class: u32,
    /// The chip's revision.
    pub revision: u8,
    /// The lengths of its regions 0, 2 and 4, each with addresses of 64 bits.
    pub regions: [u64; 3],
    /// True if an IOMMU translates its addresses.
    pub has_iommu: bool,
    /// Files beside those of every function, whose text is the machine's attribute of this path.
    pub attributes: Vec<(&'static str, PathBuf)>,
}

/// A device of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassDevice {
    /// The class.
    pub class: &'static str,
    /// Its name in the class.
    pub name: String,
    /// The function that it belongs to, by its place in [`ShownDevices::functions`]; nothing, for a device that has
    /// no place on a bus.
    pub function: Option<usize>,
    /// Its node, below `/dev`, and its number.
    pub node: Option<(String, u32, u32)>,
    /// Lines of its `uevent` beside those of the node.
    pub uevent: &'static str,
    /// Further files, whose text is the machine's attribute of this path.
    pub attributes: Vec<(String, PathBuf)>,
}

/// A class "processing accelerator" without an interface of its own.
pub const PROCESSING_ACCELERATOR: u32 = 0x12_0000;

/// Where the regions of functions begin, and how far those of two cards are apart.
const REGIONS: u64 = 0x2000_0000_0000;
const REGIONS_APART: u64 = 1 << 40;

/// The flags of a region that `resource` shows: memory, prefetchable, with 64 bits of address, whose size aligns it.
const REGION_FLAGS: u64 = 0x0014_220c;

/// How many lines `resource` has: six regions, a ROM, and the windows of a bridge.
const RESOURCES: usize = 13;

impl PciFunction {
    /// The files that every function has.
    pub const FILES: [&'static str; 25] = [
        "ari_enabled",
        "broken_parity_status",
        "class",
        "config",
        "consistent_dma_mask_bits",
        "current_link_speed",
        "current_link_width",
        "d3cold_allowed",
        "device",
        "dma_mask_bits",
        "enable",
        "irq",
        "local_cpulist",
        "local_cpus",
        "max_link_speed",
        "max_link_width",
        "modalias",
        "numa_node",
        "power_state",
        "resource",
        "revision",
        "subsystem_device",
        "subsystem_vendor",
        "uevent",
        "vendor",
    ];

    /// Its address on the bus.
    pub fn address(&self) -> String {
        format!("0000:{:02x}:00.0", self.bus)
    }

    /// The start of a region.
    fn start(&self, region: usize) -> u64 {
        let before: u64 = self.regions.iter().take(region).map(|length| self.aligned(*length)).sum();
        // Each begins at a multiple of the longest length, and so of its own.
        REGIONS + REGIONS_APART * u64::from(self.bus) + before
    }

    fn aligned(&self, length: u64) -> u64 {
        length.next_multiple_of(self.regions.iter().copied().max().unwrap_or(1).next_power_of_two())
    }

    /// The numbers of its regions, with their lengths.
    pub fn regions(&self) -> impl Iterator<Item = (usize, u64)> {
        self.regions
            .into_iter()
            .enumerate()
            .filter(|(_, length)| *length != 0)
            .map(|(at, length)| (2 * at, length))
    }

    /// The bytes of a file.
    pub fn file(&self, name: &str, driver: &str) -> Option<Vec<u8>> {
        let [vendor, device, subsystem_vendor, subsystem_device] = self.ids;
        let text = match name {
            "config" => return Some(self.configuration()),
            "vendor" => format!("{vendor:#06x}"),
            "device" => format!("{device:#06x}"),
            "subsystem_vendor" => format!("{subsystem_vendor:#06x}"),
            "subsystem_device" => format!("{subsystem_device:#06x}"),
            "class" => format!("{:#08x}", self.class),
            "revision" => format!("{:#04x}", self.revision),
            "resource" => return Some(self.resource().into_bytes()),
            "uevent" => return Some(self.uevent(driver).into_bytes()),
            "modalias" => self.alias(),
            "irq" => format!("{}", 0x80 + u32::from(self.bus)),
            "numa_node" => "-1".to_owned(),
            "local_cpus" => "ffffffff".to_owned(),
            "local_cpulist" => "0-31".to_owned(),
            "enable" | "d3cold_allowed" => "1".to_owned(),
            "ari_enabled" | "broken_parity_status" => "0".to_owned(),
            "dma_mask_bits" | "consistent_dma_mask_bits" => "64".to_owned(),
            "max_link_speed" | "current_link_speed" => "16.0 GT/s PCIe".to_owned(),
            "max_link_width" | "current_link_width" => "16".to_owned(),
            "power_state" => "D0".to_owned(),
            _ => return None,
        };
        Some((text + "\n").into_bytes())
    }

    /// `pci_uevent`
    fn uevent(&self, driver: &str) -> String {
        let [vendor, device, subsystem_vendor, subsystem_device] = self.ids;
        format!(
            "DRIVER={driver}\nPCI_CLASS={:X}\nPCI_ID={vendor:04X}:{device:04X}\n\
             PCI_SUBSYS_ID={subsystem_vendor:04X}:{subsystem_device:04X}\nPCI_SLOT_NAME={}\nMODALIAS={}\n",
            self.class,
            self.address(),
            self.alias(),
        )
    }

    fn alias(&self) -> String {
        let [vendor, device, subsystem_vendor, subsystem_device] = self.ids;
        let [_, class, subclass, interface] = self.class.to_be_bytes();
        format!(
            "pci:v{vendor:08X}d{device:08X}sv{subsystem_vendor:08X}sd{subsystem_device:08X}\
             bc{class:02X}sc{subclass:02X}i{interface:02X}"
        )
    }

    /// `resource_show`
    fn resource(&self) -> String {
        let mut text = String::new();
        for line in 0..RESOURCES {
            let length = self.regions.get(line / 2).copied().filter(|_| line % 2 == 0).unwrap_or(0);
            let (start, end, flags) = match length {
                0 => (0, 0, 0),
                _ => (self.start(line / 2), self.start(line / 2) + length - 1, REGION_FLAGS),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{start:#018x} {end:#018x} {flags:#018x}");
        }
        text
    }

    /// The configuration space: a header, power management, MSI and PCI Express.
    fn configuration(&self) -> Vec<u8> {
        let mut space = vec![0; 256];
        let mut put = |at: usize, bytes: &[u8]| {
            space.iter_mut().skip(at).zip(bytes).for_each(|(place, byte)| *place = *byte);
        };
        let [vendor, device, subsystem_vendor, subsystem_device] = self.ids;
        put(0x00, &vendor.to_le_bytes());
        put(0x02, &device.to_le_bytes());
        // Memory and bus master are on, legacy interrupts off; there is a list of capabilities.
        put(0x04, &0x0406_u16.to_le_bytes());
        put(0x06, &0x0010_u16.to_le_bytes());
        put(0x08, &(self.class << 8 | u32::from(self.revision)).to_le_bytes());
        for (region, length) in self.regions.iter().enumerate().filter(|(_, length)| **length != 0) {
            debug_assert!(length.is_power_of_two(), "a region's length aligns it");
            // Prefetchable memory with 64 bits of address.
            put(0x10 + 8 * region, &(self.start(region) | 0xc).to_le_bytes());
        }
        put(0x2c, &subsystem_vendor.to_le_bytes());
        put(0x2e, &subsystem_device.to_le_bytes());
        put(0x34, &[0x40]);
        // Power management, version 3, in D0.
        put(0x40, &[0x01, 0x50, 0x03, 0x00, 0x08, 0x00]);
        // MSI with 32 vectors, on, to the address of the first processor.
        put(0x50, &[0x05, 0x70, 0xdb, 0x00, 0x00, 0x00, 0xe0, 0xfe, 0x00, 0x00, 0x00, 0x00, 0x21, 0x40]);
        // PCI Express, version 2, endpoint: payloads of 512 bytes; a link of 16 lanes at 16 GT/s, trained.
        put(0x70, &[0x10, 0x00, 0x02, 0x00]);
        put(0x74, &0x0000_8002_u32.to_le_bytes());
        // Errors are reported.
        put(0x78, &0x295f_u16.to_le_bytes());
        put(0x7c, &0x0000_0104_u32.to_le_bytes());
        put(0x82, &0x0104_u16.to_le_bytes());
        put(0x9c, &0x0000_001e_u32.to_le_bytes());
        put(0xa0, &0x0004_u16.to_le_bytes());
        space
    }
}

impl ClassDevice {
    /// Its `uevent` (`dev_uevent`).
    pub fn uevent(&self) -> String {
        let node = match &self.node {
            Some((name, major, minor)) => format!("MAJOR={major}\nMINOR={minor}\nDEVNAME={name}\n"),
            None => String::new(),
        };
        node + self.uevent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function() -> PciFunction {
        PciFunction {
            bus: 0x11,
            ids: [0x1da3, 0x1020, 0x1da3, 0x1020],
            class: PROCESSING_ACCELERATOR,
            revision: 1,
            regions: [64 << 20, 128 << 20, 32 << 30],
            has_iommu: false,
            attributes: Vec::new(),
        }
    }

    #[test]
    fn files_are_formatted_as_the_kernel_does() {
        let text = |name| String::from_utf8(function().file(name, "driver").unwrap()).unwrap();
        assert_eq!(text("class"), "0x120000\n");
        assert_eq!(text("revision"), "0x01\n");
        assert_eq!(text("modalias"), "pci:v00001DA3d00001020sv00001DA3sd00001020bc12sc00i00\n");
        assert!(text("uevent").contains("PCI_CLASS=120000\nPCI_ID=1DA3:1020\n"));
        let resource = text("resource");
        assert_eq!(resource.lines().count(), 13);
        assert_eq!(resource.lines().next(), Some("0x0000310000000000 0x0000310003ffffff 0x000000000014220c"));
        assert!(PciFunction::FILES.iter().all(|name| function().file(name, "driver").is_some()));
        assert_eq!(function().file("rom", "driver"), None);
    }

    /// Every region is where `resource` and the configuration space say, aligned, and alone there.
    #[test]
    fn regions_are_aligned_and_apart() {
        let function = function();
        let space = function.file("config", "driver").unwrap();
        let mut ends = 0;
        for (region, length) in function.regions.iter().enumerate() {
            let at = 0x10 + 8 * region;
            let word = u64::from_le_bytes(space[at..at + 8].try_into().unwrap());
            assert_eq!(word, function.start(region) | 0xc);
            assert!(function.start(region).is_multiple_of(*length) && function.start(region) >= ends);
            ends = function.start(region) + length;
        }
    }
}
