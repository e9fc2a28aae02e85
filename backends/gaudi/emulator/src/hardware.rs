//! What the cards of each generation are, as the kernel's driver and its users see them.
//!
//! These tables are written from the driver's rules, and not from what the backend believes of them.

use hal_gaudi_abi::generation::Generation;
use std::ops::RangeInclusive;

/// What a hardware queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Takes command buffers of the kernel, which are parsed and copied.
    External,
    /// Takes device addresses, but only beside something on an external queue.
    Internal,
    /// Takes device addresses.
    Hardware,
    /// Belongs to the driver.
    Driver,
}

/// The numbers of a generation.
#[derive(Debug)]
pub(crate) struct Hardware {
    pub(crate) device: u32,
    pub(crate) card_name: &'static str,
    pub(crate) device_type: &'static str,
    /// Where a program's device memory begins.
    pub(crate) dram_base: u64,
    /// How much there is.
    pub(crate) dram_size: u64,
    pub(crate) dram_page: u64,
    /// Whether device memory is taken and mapped in pages.
    pub(crate) dram_virtual: bool,
    pub(crate) sram_base: u64,
    pub(crate) sram_size: u64,
    /// How much of the beginning is the driver's.
    pub(crate) sram_reserved: u64,
    /// Where host memory is mapped.
    pub(crate) host: RangeInclusive<u64>,
    /// How many submissions may be in flight, and have their outcome remembered. A power of two.
    pub(crate) window: u64,
    pub(crate) multi_wait: bool,
    pub(crate) staged: bool,
    /// Seconds that a submission may take.
    pub(crate) timeout: u64,
    /// Whether the compute engines are reset after each close.
    pub(crate) release_reset: bool,
    pub(crate) first_sob: u32,
    pub(crate) first_monitor: u32,
    pub(crate) first_cq: u32,
    pub(crate) queues: u32,
    pub(crate) edma_mask: u32,
}

static GAUDI1: Hardware = Hardware {
    device: 0x1000,
    card_name: "HL205",
    device_type: "GAUDI",
    dram_base: 0x2000_0000,
    dram_size: (32 << 30) - 0x2000_0000,
    dram_page: 2 << 20,
    dram_virtual: false,
    sram_base: 0x7F_F000_0000,
    sram_size: 20 << 20,
    sram_reserved: 0x80,
    host: 0x1_0000_0000_0000..=0x3_FF7F_FFFF_FFFF,
    window: 16384,
    multi_wait: true,
    staged: true,
    timeout: 600,
    release_reset: false,
    first_sob: 144,
    first_monitor: 72,
    first_cq: 0xFFFF,
    queues: 113,
    edma_mask: 0,
};

static GAUDI2: Hardware = Hardware {
    device: 0x1020,
    card_name: "HL225",
    device_type: "GAUDI2",
    // Virtual addresses of device memory begin behind the physical ones.
    dram_base: 0x1001_8000_0000_0000,
    dram_size: 96 << 30,
    dram_page: 768 << 20,
    dram_virtual: true,
    sram_base: 0x1000_FFFF_FD00_0000,
    sram_size: 48 << 20,
    sram_reserved: 0,
    host: 0xFFF0_0000_0000_0000..=0xFFF0_FFFF_FFFF_FFFF,
    window: 64,
    multi_wait: false,
    staged: false,
    timeout: 30,
    release_reset: true,
    first_sob: 413,
    first_monitor: 289,
    first_cq: 2,
    queues: 261,
    edma_mask: 0xFF,
};

/// The numbers of a generation.
pub(crate) fn of(generation: Generation) -> &'static Hardware {
    match generation {
        Generation::Gaudi1 => &GAUDI1,
        Generation::Gaudi2 => &GAUDI2,
    }
}

impl Hardware {
    /// What a queue is; nothing, if there is none of that number.
    pub(crate) fn queue(&self, number: u32) -> Option<Kind> {
        if number >= self.queues {
            return None;
        }
        Some(match (self.dram_virtual, number) {
            (false, 0..=7) => Kind::External,
            (false, 8) | (true, 260) => Kind::Driver,
            (false, _) => Kind::Internal,
            (true, _) => Kind::Hardware,
        })
    }

    /// Whether a queue can signal and wait.
    pub(crate) fn syncs(&self, number: u32) -> bool {
        match self.queue(number) {
            Some(Kind::External) => true,
            Some(Kind::Hardware) => !(156..=251).contains(&number),
            _ => false,
        }
    }

    /// Whether a queue moves bytes, and only within the device.
    pub(crate) fn stays_within(&self, number: u32) -> bool {
        self.dram_virtual && matches!(number, 8..=15 | 48..=55 | 84..=91 | 120..=127)
    }

    /// How far the virtual addresses of device memory go: twice as far as there is memory, so that one can be taken
    /// again much later than it was given back.
    pub(crate) fn dram_virtual_end(&self, dram: u64) -> u64 {
        self.dram_base + (2 * dram).max(self.dram_page)
    }

    /// Whether the driver takes an address for that of a command buffer. Whether something is there is
    /// found out by the hardware.
    pub(crate) fn may_hold_commands(&self, address: u64, length: u64, dram: u64) -> bool {
        let Some(last) = address.checked_add(length.saturating_sub(1)) else { return false };
        let sram = self.sram_base..=self.sram_base + self.sram_size - 1;
        let device = self.dram_base..=self.dram_virtual_end(dram) - 1;
        let physical = 0x1001_0000_0000_0000..=0x1001_0000_0000_0000 + dram - 1;
        let inside = |range: &RangeInclusive<u64>| range.contains(&address) && range.contains(&last);
        [&sram, &device, &self.host].into_iter().any(inside) || self.dram_virtual && inside(&physical)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_what_the_driver_says() {
        let (first, second) = (of(Generation::Gaudi1), of(Generation::Gaudi2));
        assert_eq!(first.queue(7), Some(Kind::External));
        assert_eq!((first.queue(8), first.queue(9)), (Some(Kind::Driver), Some(Kind::Internal)));
        assert_eq!((first.queue(112), first.queue(113)), (Some(Kind::Internal), None));
        assert_eq!((second.queue(0), second.queue(260)), (Some(Kind::Hardware), Some(Kind::Driver)));
        assert_eq!(second.queue(261), None);
        assert!(second.syncs(155) && !second.syncs(156) && second.syncs(252));
        assert!(second.stays_within(8) && second.stays_within(127) && !second.stays_within(20));
        assert!(!first.stays_within(9));
    }

    #[test]
    fn commands_may_be_where_the_driver_looks() {
        let second = of(Generation::Gaudi2);
        let may = |address, length| second.may_hold_commands(address, length, 96 << 30);
        assert!(may(0xFFF0_0000_0000_1000, 64) && may(second.sram_base, 8) && may(second.dram_base, 8));
        assert!(!may(0x1000, 8) && !may(u64::MAX - 3, 8) && !may(second.sram_base - 4, 8));
    }
}
