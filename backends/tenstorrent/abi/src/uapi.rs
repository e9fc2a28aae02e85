// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The bytes of the kernel interface: request numbers, structures, constants.
//!
//! Each structure is what a request's argument points to, input first, then output. Sizes and offsets are asserted
//! when this is compiled, and compared by a test with `abi/tenstorrent.txt`, which a C compiler printed from the
//! header of module 2.10.0.

/// The requests. The numbers have no sizes in them: the kernel's are all made with `_IO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Request {
    /// The identity of the card.
    GetDeviceInfo = 0,
    /// Not implemented by any module of this API.
    GetHarvesting = 1,
    /// The regions that can be mapped.
    QueryMappings = 2,
    /// Memory of the host that the card can reach.
    AllocateDmaBuf = 3,
    /// Refused by every module: closing the file is what frees it.
    FreeDmaBuf = 4,
    /// Which module it is.
    GetDriverInfo = 5,
    /// Resets the card.
    ResetDevice = 6,
    /// Makes a program's memory reachable for the card.
    PinPages = 7,
    /// Locks between processes.
    LockCtl = 8,
    /// Makes another card's memory reachable.
    MapPeerBar = 9,
    /// Ends what [`Request::PinPages`] began.
    UnpinPages = 10,
    /// A window into the card's network.
    AllocateTlb = 11,
    /// Gives a window back.
    FreeTlb = 12,
    /// Points a window somewhere.
    ConfigureTlb = 13,
    /// A write that is done when the file is closed. Since 2.2.
    SetNocCleanup = 14,
    /// The parts that should be powered. Since 2.6.
    SetPowerState = 15,
    /// A window as a dma-buf. Since 2.10.
    ExportTlbDmabuf = 16,
}

impl Request {
    /// Every request.
    pub const ALL: [Request; 17] = [
        Request::GetDeviceInfo,
        Request::GetHarvesting,
        Request::QueryMappings,
        Request::AllocateDmaBuf,
        Request::FreeDmaBuf,
        Request::GetDriverInfo,
        Request::ResetDevice,
        Request::PinPages,
        Request::LockCtl,
        Request::MapPeerBar,
        Request::UnpinPages,
        Request::AllocateTlb,
        Request::FreeTlb,
        Request::ConfigureTlb,
        Request::SetNocCleanup,
        Request::SetPowerState,
        Request::ExportTlbDmabuf,
    ];

    /// The number to pass.
    pub const fn number(self) -> u32 {
        0xfa << 8 | self as u32
    }

    /// The request with this number.
    pub fn numbered(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|request| request.number() == number)
    }
}

hal_kernel::layouts! {
    /// The identity of the card.
    GetDeviceInfo = "get_device_info", 24 {
        /// How many bytes of the rest there is room for.
        in_output_size_bytes: u32 = 0,
        output_size_bytes: u32 = 4,
        vendor_id: u16 = 8,
        device_id: u16 = 10,
        subsystem_vendor_id: u16 = 12,
        subsystem_id: u16 = 14,
        /// Function in three bits, device in five, bus in eight.
        bus_dev_fn: u16 = 16,
        max_dma_buf_size_log2: u16 = 18,
        pci_domain: u16 = 20,
        reserved: u16 = 22,
    }

    /// The regions that can be mapped: as many [`Mapping`]s follow as the number says.
    QueryMappings = "query_mappings", 8 {
        output_mapping_count: u32 = 0,
        reserved: u32 = 4,
    }

    /// Something that can be mapped.
    Mapping = "mapping", 24 {
        /// One of [`mapping`].
        mapping_id: u32 = 0,
        reserved: u32 = 4,
        mapping_base: u64 = 8,
        mapping_size: u64 = 16,
    }

    /// Memory of the host that the card can reach.
    AllocateDmaBuf = "allocate_dma_buf", 64 {
        requested_size: u32 = 0,
        buf_index: u8 = 4,
        /// One of [`dma`].
        flags: u8 = 5,
        in_reserved0: [u8; 2] = 6,
        in_reserved1: [u64; 2] = 8,
        physical_address: u64 = 24,
        mapping_offset: u64 = 32,
        size: u32 = 40,
        reserved0: u32 = 44,
        noc_address: u64 = 48,
        reserved1: u64 = 56,
    }

    /// Which module it is.
    GetDriverInfo = "get_driver_info", 16 {
        in_output_size_bytes: u32 = 0,
        output_size_bytes: u32 = 4,
        /// Of the interface.
        driver_version: u32 = 8,
        driver_version_major: u8 = 12,
        driver_version_minor: u8 = 13,
        driver_version_patch: u8 = 14,
        reserved0: u8 = 15,
    }

    /// Resets the card.
    ResetDevice = "reset_device", 16 {
        in_output_size_bytes: u32 = 0,
        /// One of [`reset`].
        flags: u32 = 4,
        output_size_bytes: u32 = 8,
        /// Zero if it went well.
        result: u32 = 12,
    }

    /// Makes a program's memory reachable for the card, with the longer of two outputs.
    PinPages = "pin_pages_extended", 40 {
        output_size_bytes: u32 = 0,
        /// Of [`pin`].
        flags: u32 = 4,
        virtual_address: u64 = 8,
        size: u64 = 16,
        physical_address: u64 = 24,
        noc_address: u64 = 32,
    }

    /// Part of another card's region, for this one.
    MapPeerBar = "map_peer_bar", 40 {
        /// A file of the other card.
        peer_fd: u32 = 0,
        peer_bar_index: u32 = 4,
        peer_bar_offset: u32 = 8,
        peer_bar_length: u32 = 12,
        flags: u32 = 16,
        in_reserved: u32 = 20,
        dma_address: u64 = 24,
        reserved: u64 = 32,
    }

    /// Ends what a pinning began.
    UnpinPages = "unpin_pages", 24 {
        virtual_address: u64 = 0,
        size: u64 = 8,
        reserved: u64 = 16,
    }

    /// Locks between processes.
    LockCtl = "lock_ctl", 16 {
        output_size_bytes: u32 = 0,
        /// One of [`lock`].
        flags: u32 = 4,
        index: u8 = 8,
        in_reserved: [u8; 3] = 9,
        value: u8 = 12,
        reserved: [u8; 3] = 13,
    }

    /// A window into the card's network.
    AllocateTlb = "allocate_tlb", 48 {
        size: u64 = 0,
        in_reserved: u64 = 8,
        id: u32 = 16,
        reserved0: u32 = 20,
        mmap_offset_uc: u64 = 24,
        mmap_offset_wc: u64 = 32,
        reserved1: u64 = 40,
    }

    /// Gives a window back.
    FreeTlb = "free_tlb", 4 {
        id: u32 = 0,
    }

    /// The target of a window.
    NocTlbConfig = "noc_tlb_config", 32 {
        addr: u64 = 0,
        x_end: u16 = 8,
        y_end: u16 = 10,
        x_start: u16 = 12,
        y_start: u16 = 14,
        noc: u8 = 16,
        mcast: u8 = 17,
        /// One of [`ordering`].
        ordering: u8 = 18,
        linked: u8 = 19,
        static_vc: u8 = 20,
        reserved0: [u8; 3] = 21,
        reserved1: [u32; 2] = 24,
    }

    /// Points a window somewhere.
    ConfigureTlb = "configure_tlb", 48 {
        id: u32 = 0,
        reserved: u32 = 4,
        config: NocTlbConfig = 8,
        out_reserved: u64 = 40,
    }

    /// A write that is done when the file is closed.
    SetNocCleanup = "set_noc_cleanup", 32 {
        argsz: u32 = 0,
        flags: u32 = 4,
        enabled: u8 = 8,
        x: u8 = 9,
        y: u8 = 10,
        noc: u8 = 11,
        reserved0: u32 = 12,
        addr: u64 = 16,
        /// The lower half is written.
        data: u64 = 24,
    }

    /// The parts that should be powered.
    PowerState = "power_state", 40 {
        argsz: u32 = 0,
        flags: u32 = 4,
        reserved0: u8 = 8,
        /// How many flags count, in four bits, and how many settings.
        validity: u8 = 9,
        /// Of [`power`].
        power_flags: u16 = 10,
        power_settings: [u16; 14] = 12,
    }

    /// A window as a dma-buf.
    ExportTlbDmabuf = "export_tlb_dmabuf", 32 {
        argsz: u32 = 0,
        flags: u32 = 4,
        tlb_id: u32 = 8,
        fd: i32 = 12,
        offset: u64 = 16,
        /// Zero for all up to the end.
        size: u64 = 24,
    }
}

/// Things that can be mapped, [`Mapping::mapping_id`]: each of three regions, uncached and write-combined.
pub mod mapping {
    #![expect(missing_docs, reason = "the names are the kernel's, and say it")]
    pub const UNUSED: u32 = 0;
    pub const RESOURCE0_UC: u32 = 1;
    pub const RESOURCE0_WC: u32 = 2;
    pub const RESOURCE1_UC: u32 = 3;
    pub const RESOURCE1_WC: u32 = 4;
    pub const RESOURCE2_UC: u32 = 5;
    pub const RESOURCE2_WC: u32 = 6;
}

/// [`AllocateDmaBuf::flags`].
pub mod dma {
    /// The card's network shall reach it.
    pub const NOC: u8 = 2;
    /// How many buffers a file can have.
    pub const BUFFERS: usize = 256;
}

/// [`ResetDevice::flags`].
pub mod reset {
    /// Restores the card's place on the bus.
    pub const RESTORE: u32 = 0;
    /// Resets the link.
    pub const LINK: u32 = 1;
    /// Lets the card reset itself, by its configuration.
    pub const CONFIG: u32 = 2;
    /// Marks files and mappings as dead and leaves the reset to a program. Since 2.4, as the others.
    pub const USER: u32 = 3;
    /// Resets the chip.
    pub const ASIC: u32 = 4;
    /// Resets the chip and the controller of the board.
    pub const ASIC_AND_CONTROLLER: u32 = 5;
    /// Brings the card up again afterwards.
    pub const POST: u32 = 6;
}

/// [`PinPages::flags`].
pub mod pin {
    /// The program knows that the pages follow each other physically.
    pub const CONTIGUOUS: u32 = 1;
    /// The card's network shall reach them.
    pub const NOC: u32 = 2;
    /// So they shall, from the top of the range downwards.
    pub const NOC_TOP_DOWN: u32 = 4;
    /// The card only reads. Since 2.9, with an IOMMU.
    pub const READ_ONLY: u32 = 8;
}

/// [`LockCtl::flags`].
pub mod lock {
    /// Takes it if it is free.
    pub const ACQUIRE: u32 = 0;
    /// Gives it back.
    pub const RELEASE: u32 = 1;
    /// Looks who has it: bit 0 this file, bit 1 any.
    pub const TEST: u32 = 2;
    /// Takes it when it is free. Since 2.7.
    pub const ACQUIRE_BLOCKING: u32 = 3;
    /// How many there are.
    pub const COUNT: u8 = 64;
}

/// [`NocTlbConfig::ordering`].
pub mod ordering {
    /// Accesses may overtake each other.
    pub const RELAXED: u8 = 0;
    /// Each is acknowledged before the next.
    pub const STRICT: u8 = 1;
    /// Writes are not acknowledged.
    pub const POSTED: u8 = 2;
    /// Writes are not acknowledged, and stay in order.
    pub const POSTED_STRICT: u8 = 3;
}

/// [`PowerState::power_flags`].
pub mod power {
    /// The highest clock.
    pub const MAX_AI_CLOCK: u16 = 1;
    /// Memory is awake.
    pub const MEMORY_AWAKE: u16 = 1 << 1;
    /// Tensix tiles have a clock.
    pub const TENSIX: u16 = 1 << 2;
    /// The large cores have a clock.
    pub const L2CPU: u16 = 1 << 3;
    /// How many flags there are.
    pub const COUNT: u8 = 4;
}

/// Tenstorrent, on a PCI bus.
pub const VENDOR: u16 = 0x1e52;

/// Devices on a PCI bus.
pub mod device {
    /// A Wormhole chip.
    pub const WORMHOLE: u16 = 0x401e;
    /// A Blackhole chip.
    pub const BLACKHOLE: u16 = 0xb140;
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal_kernel::{Field, Layout};
    use std::collections::BTreeMap;

    /// Lines of `structure size` and `structure.field offset size`, from a C compiler.
    const TABLE: &str = include_str!("../tenstorrent.txt");

    #[test]
    fn layouts_are_the_c_compilers() {
        let table: BTreeMap<&str, &str> = TABLE
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_once(' ').unwrap())
            .collect();
        let mut ours = BTreeMap::new();
        for Layout { kernel, size, fields, .. } in LAYOUTS {
            ours.insert((*kernel).to_owned(), size.to_string());
            for Field { name, offset, size } in *fields {
                ours.insert(format!("{kernel}.{name}"), format!("{offset} {size}"));
            }
        }
        for request in Request::ALL {
            ours.insert(format!("request.{request:?}"), format!("{:#x}", request.number()));
        }
        let ours: BTreeMap<&str, &str> =
            ours.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(ours, table);
    }

    #[test]
    fn requests_have_their_numbers() {
        for (index, request) in (0..).zip(Request::ALL) {
            assert_eq!(request.number(), 0xfa00 + index);
            assert_eq!(Request::numbered(request.number()), Some(request));
        }
        assert_eq!(Request::numbered(0xfa11), None);
        assert_eq!(Request::numbered(5), None);
    }
}
