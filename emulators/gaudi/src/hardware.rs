// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The constants of each generation, as the kernel's driver and its users see them.
//!
//! These tables are written from the driver's source, not from the backend. `emulators/gaudi/rules.md` lists
//! the source of each number, under the names that stand here as `rule(…)`.

use hal_gaudi_abi::generation::Generation;
use std::ops::RangeInclusive;

/// The kind of a hardware queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueKind {
    /// Takes command buffers of the kernel, which are parsed and copied.
    External,
    /// Takes device addresses, but only together with a chunk on an external queue.
    Internal,
    /// Takes device addresses.
    Hardware,
    /// Belongs to the driver.
    Driver,
}

/// The numbers of a generation.
#[derive(Debug)]
pub(crate) struct Hardware {
    pub(crate) device: u16,
    pub(crate) card_name: &'static str,
    pub(crate) device_type: &'static str,
    /// The base address of device memory, which begins with the driver's part.
    dram_physical: u64,
    /// The size of the driver's part.
    pub(crate) dram_reserved: u64,
    /// The size of the program's part.
    pub(crate) dram_size: u64,
    pub(crate) dram_page: u64,
    /// True if device memory is allocated and mapped in pages.
    pub(crate) dram_virtual: bool,
    pub(crate) sram_base: u64,
    pub(crate) sram_size: u64,
    /// The size of the driver's part at the beginning.
    pub(crate) sram_reserved: u64,
    /// The base address of mapped host memory.
    pub(crate) host: RangeInclusive<u64>,
    /// The most submissions in flight, and outcomes that are kept. A power of two.
    pub(crate) window: u64,
    pub(crate) multi_wait: bool,
    pub(crate) staged: bool,
    /// The timeout of a submission in seconds.
    pub(crate) timeout: u64,
    /// True if the compute engines are reset after each close.
    pub(crate) release_reset: bool,
    /// True if an error of an engine resets the card. rule(error-events)
    pub(crate) errors_reset: bool,
    /// The program's first sync object, monitor and completion queue.
    pub(crate) first_sob: u32,
    pub(crate) first_monitor: u32,
    pub(crate) first_cq: u32,
    /// The completion queue of sync managers of which nothing is reserved.
    pub(crate) other_cq: u32,
    /// The first sync object of the driver's own signals.
    pub(crate) driver_sob: u32,
    pub(crate) queues: u32,
    pub(crate) tpc_mask: u64,
    pub(crate) edma_mask: u32,
    pub(crate) events: u32,
    pub(crate) first_interrupt: u16,
    pub(crate) interrupts: u16,
    pub(crate) tpc_interrupt: u16,
    pub(crate) rotator_mask: u32,
    pub(crate) master_slave: u8,
}

/// The sizes of device memory differ by this, and so do the pages that map it.
const GIB: u64 = 1 << 30;

/// The end of the virtual addresses of device memory on the second generation.
const DRAM_SPACE_END: u64 = 0x1002_0000_0000_0000;

/// The part of the host's addresses that the driver takes for its own command buffers.
const INTERNAL: u64 = 2 << 20;

/// The part for command buffers that a program has mapped.
const MAPPED_BUFFERS: u64 = 4 << 30;

/// The chunks that a queue holds.
const DEPTH: usize = 4096;

static GAUDI1: Hardware = Hardware {
    device: 0x1000,
    card_name: "HL205",
    device_type: "GAUDI",
    dram_physical: 0,
    dram_reserved: 0x2000_0000,
    dram_size: (32 << 30) - 0x2000_0000,
    dram_page: 2 << 20,
    dram_virtual: false,
    sram_base: 0x7F_F000_0000,
    sram_size: 20 << 20,
    sram_reserved: 0x80,
    // Half of the addresses; the other half is for device memory, which needs none here. rule(host-range)
    host: 0x1_0000_0000_0000..=0x2_7FBF_FFFF_EFFF,
    window: 16384,
    multi_wait: true,
    staged: true,
    timeout: 600,
    release_reset: false,
    errors_reset: false,
    first_sob: 144,
    first_monitor: 72,
    first_cq: 0xFFFF,
    other_cq: 0xFFFF,
    driver_sob: 128,
    queues: 113,
    tpc_mask: 0xFF,
    edma_mask: 0,
    events: 663,
    first_interrupt: u16::MAX,
    interrupts: 0,
    tpc_interrupt: u16::MAX,
    rotator_mask: 0,
    master_slave: 0,
};

static GAUDI2: Hardware = Hardware {
    device: 0x1020,
    card_name: "HL225",
    device_type: "GAUDI2",
    dram_physical: 0x1001_0000_0000_0000,
    // One page of six memories. rule(dram-numbers)
    dram_reserved: 768 << 20,
    dram_size: (96 << 30) - (768 << 20),
    dram_page: 768 << 20,
    dram_virtual: true,
    sram_base: 0x1000_FFFF_FD00_0000,
    sram_size: 48 << 20,
    sram_reserved: 0,
    host: 0xFFF0_0000_0000_0000..=0xFFF0_7FFF_FFFF_FFFF,
    window: 64,
    multi_wait: false,
    staged: false,
    timeout: 30,
    release_reset: true,
    errors_reset: true,
    first_sob: 413,
    first_monitor: 289,
    first_cq: 2,
    other_cq: 0,
    driver_sob: 85,
    queues: 261,
    // Six for each of four parts, and one on the bus. rule(tpc-mask)
    tpc_mask: (1 << 25) - 1,
    edma_mask: 0xFF,
    events: 1329,
    first_interrupt: 48,
    interrupts: 64,
    tpc_interrupt: 46,
    rotator_mask: 3,
    master_slave: 1,
};

/// The constants of a generation.
pub(crate) fn of(generation: Generation) -> &'static Hardware {
    match generation {
        Generation::Gaudi1 => &GAUDI1,
        Generation::Gaudi2 => &GAUDI2,
    }
}

impl Hardware {
    /// The kind of a queue; nothing, if there is none of that number.
    pub(crate) fn queue(&self, number: u32) -> Option<QueueKind> {
        if number >= self.queues {
            return None;
        }
        Some(match (self.dram_virtual, number) {
            (false, 0..=7) => QueueKind::External,
            (false, 8) | (true, 260) => QueueKind::Driver,
            (false, _) => QueueKind::Internal,
            (true, _) => QueueKind::Hardware,
        })
    }

    /// True if the driver takes commands of programs for a queue.
    ///
    /// No driver of the kernel's own enables networks. Of the streams of the two engines that reach the host,
    /// it enables three, and of the others all. rule(queue-enabled)
    pub(crate) fn is_enabled(&self, number: u32) -> bool {
        match (self.dram_virtual, number) {
            (false, 73..=112) | (true, 156..=251) => false,
            (true, 2..=7) => number == 4,
            _ => true,
        }
    }

    /// How many chunks a queue holds. rule(queue-depth)
    pub(crate) fn depth(&self, number: u32) -> usize {
        match (self.dram_virtual, number) {
            // Of matrix and tensor engines.
            (false, 33..=72) => 1024,
            _ => DEPTH,
        }
    }

    /// True if a queue can signal and wait.
    pub(crate) fn syncs(&self, number: u32) -> bool {
        match self.queue(number) {
            Some(QueueKind::External) => true,
            Some(QueueKind::Hardware) => !(156..=251).contains(&number),
            _ => false,
        }
    }

    /// The first of the two sync objects that the driver signals with for a queue.
    pub(crate) fn sync_object(&self, number: u32) -> u32 {
        // Queues that cannot signal have none.
        let place = if self.dram_virtual && number > 251 { number - 96 } else { number };
        self.driver_sob + 2 * place
    }

    /// True if a queue moves bytes, and only within the device.
    pub(crate) fn stays_within(&self, number: u32) -> bool {
        self.dram_virtual && matches!(number, 8..=15 | 48..=55 | 84..=91 | 120..=127)
    }

    /// True if a queue is one of an engine for transfers.
    pub(crate) fn transfers(&self, number: u32) -> bool {
        match self.dram_virtual {
            true => number <= 7 || self.stays_within(number),
            false => matches!(number, 0..=7 | 9..=32),
        }
    }

    /// True if packets of a queue can write to the registers of its transfers.
    pub(crate) fn has_transfer_registers(&self, number: u32) -> bool {
        !self.dram_virtual && self.transfers(number)
    }

    /// The first address of a program's device memory, if it can have this much.
    pub(crate) fn dram_base(&self, dram: u64) -> u64 {
        // Virtual addresses follow the physical ones. rule(dram-numbers)
        let physical = self.dram_physical + self.dram_reserved;
        if self.dram_virtual { physical + dram } else { physical }
    }

    /// The addresses of device memory: one page each, as many as there are pages of 1 GiB to map them.
    pub(crate) fn dram_space(&self, dram: u64) -> RangeInclusive<u64> {
        let start = self.dram_base(dram);
        let length = if self.dram_virtual { self.dram_page * ((DRAM_SPACE_END - start) / GIB) } else { dram };
        start..=start + length - 1
    }

    /// The addresses for host memory, behind the driver's own part.
    pub(crate) fn host_space(&self) -> RangeInclusive<u64> {
        let taken = if self.dram_virtual { MAPPED_BUFFERS + INTERNAL } else { INTERNAL };
        self.host.start() + taken..=*self.host.end()
    }

    /// The addresses for command buffers of the kernel, on a generation that maps them. rule(cb-map)
    pub(crate) fn buffer_space(&self) -> Option<RangeInclusive<u64>> {
        let start = *self.host.start();
        self.dram_virtual.then(|| start..=start + MAPPED_BUFFERS - 1)
    }

    /// Addresses that are mapped only if a program asks for them. rule(map-reserved)
    pub(crate) fn reserved(&self, address: u64) -> Option<RangeInclusive<u64>> {
        const HOST: RangeInclusive<u64> = 0xFFF0_77FF_FFFF_0000..=0xFFF0_7FFF_FFFF_FFFF;
        const DEVICE: RangeInclusive<u64> = 0x1001_5000_0000_0000..=0x1001_6FFF_FFFF_FFFF;
        let range = if self.host.contains(&address) { HOST } else { DEVICE };
        self.dram_virtual.then_some(range)
    }

    /// The firmware's event for an error of a queue's engine, if it has one here. rule(event-numbers)
    pub(crate) fn queue_event(&self, queue: u32) -> Option<u16> {
        let tensor = |first: u32, engine: u32| Some(first + engine);
        let number = match (self.dram_virtual, queue) {
            (false, 0..=7) => tensor(583, queue / 4),
            (false, 9..=32) => tensor(585, (queue - 9) / 4),
            (false, 41..=72) => tensor(572, (queue - 41) / 4),
            (true, 0..=7) => tensor(1244, queue / 4),
            (true, 20..=43) => tensor(1206, (queue - 20) / 4),
            (true, 44..=47) => tensor(1230, 0),
            (true, 60..=83) => tensor(1212, (queue - 60) / 4),
            (true, 96..=119) => tensor(1218, (queue - 96) / 4),
            (true, 132..=155) => tensor(1224, (queue - 132) / 4),
            _ => None,
        };
        number.and_then(|number| u16::try_from(number).ok())
    }

    /// The firmware's event for an access to memory that is not mapped.
    pub(crate) fn fault_event(&self, address: u64) -> u16 {
        match self.dram_virtual {
            false => 380,
            true if self.host.contains(&address) => 768,
            true => 720,
        }
    }

    /// True if a word that is written here raises the interrupt of that number. rule(doorbell)
    pub(crate) fn is_doorbell(&self, address: u64) -> bool {
        /// The one that the driver maps for every program.
        const MAPPED: u64 = 0xFFF0_77FF_FFFF_0000;
        /// The register behind it, which the vendor's open tests use.
        const REGISTER: u64 = 0x1000_007F_FCC1_7000;
        self.dram_virtual && matches!(address, MAPPED | REGISTER)
    }

    /// The kind of a queue's engine, for people.
    pub(crate) fn engine_name(&self, queue: u32) -> &'static str {
        match (self.dram_virtual, queue) {
            _ if self.transfers(queue) => "transfer engine",
            (false, 33..=40) | (true, 16..=19 | 56..=59 | 92..=95 | 128..=131) => "matrix engine",
            (false, 41..=72) | (true, 20..=47 | 60..=83 | 96..=119 | 132..=155) => "tensor engine",
            (true, 252..=259) => "rotator",
            _ => "network",
        }
    }

    /// True if the driver accepts an address as that of a command buffer. Only the hardware checks that it is
    /// mapped. rule(cb-address)
    pub(crate) fn may_hold_commands(&self, address: u64, length: u64, dram: u64) -> bool {
        // A buffer without bytes has no address.
        let Some(end) = address.checked_add(length).filter(|&end| end > address) else { return false };
        let inside = |start: u64, limit: u64| address >= start && end <= limit;
        let sram = inside(self.sram_base + self.sram_reserved, self.sram_base + self.sram_size);
        let user = self.dram_physical + self.dram_reserved;
        let space = self.dram_space(dram);
        // On the second generation, the addresses of large host pages follow those of small ones.
        let host =
            if self.dram_virtual { self.host.end() + 0x8000_0000_0001 } else { self.host.end() + 0x1000 };
        sram || inside(user, user + dram)
            || self.dram_virtual && inside(*space.start(), space.end() + 1)
            || inside(*self.host.start(), host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_what_the_driver_says() {
        let (first, second) = (of(Generation::Gaudi1), of(Generation::Gaudi2));
        assert_eq!(first.queue(7), Some(QueueKind::External));
        assert_eq!((first.queue(8), first.queue(9)), (Some(QueueKind::Driver), Some(QueueKind::Internal)));
        assert_eq!((first.queue(112), first.queue(113)), (Some(QueueKind::Internal), None));
        assert_eq!(
            (second.queue(0), second.queue(260)),
            (Some(QueueKind::Hardware), Some(QueueKind::Driver))
        );
        assert_eq!(second.queue(261), None);
        assert!(second.syncs(155) && !second.syncs(156) && second.syncs(252));
        assert!(second.stays_within(8) && second.stays_within(127) && !second.stays_within(20));
        assert!(!first.stays_within(9));
        assert_eq!((first.depth(7), first.depth(40), first.depth(112)), (4096, 1024, 4096));
    }

    /// Each of the two sync objects of a queue that can signal is that queue's alone, and none is a program's.
    #[test]
    fn sync_objects_of_queues_are_the_drivers() {
        for (generation, queues) in [(Generation::Gaudi1, 8), (Generation::Gaudi2, 164)] {
            let hardware = of(generation);
            let mut objects: Vec<u32> = (0..hardware.queues)
                .filter(|&queue| hardware.syncs(queue))
                .map(|queue| hardware.sync_object(queue))
                .collect();
            assert_eq!(objects.len(), queues);
            objects.dedup();
            assert_eq!(objects.len(), queues);
            assert!(
                objects.is_sorted() && objects.iter().all(|object| object % 2 == hardware.driver_sob % 2)
            );
            assert_eq!(objects.last().map(|last| last + 2), Some(hardware.first_sob));
        }
    }

    #[test]
    fn device_memory_is_where_the_driver_puts_it() {
        let second = of(Generation::Gaudi2);
        assert_eq!(second.dram_base(second.dram_size), 0x1001_0018_0000_0000);
        assert_eq!((second.dram_space(second.dram_size).start() & ((1 << 48) - 1)) % second.dram_page, 0);
        assert_eq!(of(Generation::Gaudi1).dram_base(1 << 30), 0x2000_0000);
    }

    #[test]
    fn addresses_of_command_buffers_are_checked() {
        let second = of(Generation::Gaudi2);
        let may = |address, length| second.may_hold_commands(address, length, second.dram_size);
        let device = second.dram_base(second.dram_size);
        assert!(may(0xFFF0_0000_0000_1000, 64) && may(second.sram_base, 8) && may(device, 8));
        assert!(may(0xFFF0_FFFF_FFFF_F000, 4096) && !may(0xFFF0_FFFF_FFFF_F000, 4097));
        assert!(!may(0x1000, 8) && !may(u64::MAX - 3, 8) && !may(second.sram_base - 4, 8));
        assert!(!may(device, 0), "nothing is nowhere");
        assert!(!may(0x1001_0000_0000_0000, 8), "the driver's own page");
    }
}
