// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The kinds of chips: sizes, addresses and registers. Everything else of the driver is the same for all.

use crate::kmd::Coordinates;
use hal_tenstorrent_abi::uapi::device;
use hal_tenstorrent_loader::Cores;
use hal_tenstorrent_loader::paging::{ENTRY, PAGE};
use hal_tenstorrent_loader::tensix::Chip;
use std::fmt;

/// A kind of chip.
#[derive(PartialEq, Eq)]
pub(crate) struct Generation {
    /// Its name and its boards.
    pub(crate) name: &'static str,
    pub(crate) boards: &'static str,
    /// Its number on the host's bus.
    device: u16,
    /// The instructions that its cores lack.
    pub(crate) cores: Cores,
    /// The size of a tile's memory.
    pub(crate) l1: u32,
    /// The size of a DRAM bank.
    pub(crate) bank_bytes: u64,
    /// The sizes of a small window and of one for a bank.
    pub(crate) windows: (u64, u64),
    pub(crate) controller: Controller,
    pub(crate) network: Network,
    pub(crate) starts: Starts,
    /// How a core discards what it has read of the tile's memory before, which others may have changed since. Nothing
    /// where it keeps nothing.
    pub(crate) discard: Option<u32>,
    /// What its tiles' engines are told.
    pub(crate) engine: Chip,
}

/// The chip's controller.
#[derive(PartialEq, Eq)]
pub(crate) struct Controller {
    pub(crate) place: Coordinates,
    /// The beginning of its own address space.
    pub(crate) base: u64,
    /// The addresses of the pointers to the telemetry's table and values.
    pub(crate) table: u64,
    pub(crate) values: u64,
    /// How it reports what is fused off.
    pub(crate) harvest: Harvest,
}

/// How a controller reports what is fused off.
#[derive(PartialEq, Eq)]
pub(crate) enum Harvest {
    /// Telemetry has masks of the columns of tiles and of the banks that are there.
    Telemetry,
    /// It answers a message with a mask of the rows of tiles that are not. That coordinates are translated is a bit
    /// of a register, without which old firmware leaves holes.
    Message(Messages),
}

/// The registers of a controller for messages.
#[derive(PartialEq, Eq)]
pub(crate) struct Messages {
    /// The register with a message's argument, then its answer.
    pub(crate) argument: u64,
    /// The number of a message; then what became of it.
    pub(crate) number: u64,
    /// The register with the controller's doorbell, and the bit that rings it.
    pub(crate) control: u64,
    pub(crate) doorbell: u32,
    /// The message that asks what is fused off.
    pub(crate) question: u32,
    /// The register that says whether coordinates are translated, and the bit.
    pub(crate) translation: u64,
    pub(crate) translated: u32,
}

/// How a tile's cores use the network.
#[derive(PartialEq, Eq)]
pub(crate) struct Network {
    /// How far it is from a command buffer to the next.
    pub(crate) buffer: u32,
    /// The offset in a command buffer of the register that begins a transfer.
    pub(crate) command: i32,
    /// How far behind the lower half of an address the register is that has the coordinates, and how far they are
    /// shifted there.
    pub(crate) coordinates: i32,
    pub(crate) shift: u32,
}

/// The registers that say where the other cores of a tile start: three, what counts of them, one, and whether that
/// counts.
#[derive(PartialEq, Eq)]
pub(crate) struct Starts {
    pub(crate) t: u32,
    pub(crate) t_enable: u32,
    pub(crate) nc: u32,
    pub(crate) nc_enable: u32,
    /// A word in the same memory, where that is another than that of the register which releases the cores. Not every
    /// simulator can read the others.
    pub(crate) beside: Option<u32>,
}

/// `fence iorw, iorw`
const FENCE: u32 = 0x0ff0_000f;

const BLACKHOLE: Generation = Generation {
    name: "Blackhole",
    boards: "p100a, p150",
    device: device::BLACKHOLE,
    cores: Cores::Blackhole,
    l1: 1536 << 10,
    bank_bytes: 0xff00_0000,
    windows: (2 << 20, 4 << 30),
    controller: Controller {
        place: Coordinates { x: 8, y: 0 },
        base: 0,
        table: 0x8003_0434,
        values: 0x8003_0430,
        harvest: Harvest::Telemetry,
    },
    network: Network { buffer: 0x800, command: 0x40, coordinates: 8, shift: 0 },
    starts: Starts {
        t: 0xffb1_2228,
        t_enable: 0xffb1_2234,
        nc: 0xffb1_2238,
        nc_enable: 0xffb1_223c,
        beside: None,
    },
    discard: Some(FENCE),
    engine: Chip::Blackhole,
};

const WORMHOLE: Generation = Generation {
    name: "Wormhole",
    boards: "n150",
    device: device::WORMHOLE,
    cores: Cores::Wormhole,
    l1: 1464 << 10,
    bank_bytes: 2 << 30,
    windows: (1 << 20, 16 << 20),
    controller: Controller {
        place: Coordinates { x: 0, y: 10 },
        base: 0x8_0000_0000,
        table: 0x8003_01d0,
        values: 0x8003_01d4,
        harvest: Harvest::Message(Messages {
            argument: 0x8003_006c,
            number: 0x8003_0074,
            control: 0x8003_0100,
            doorbell: 1 << 16,
            question: 0x57,
            translation: 0x8005_0100,
            translated: 1 << 14,
        }),
    },
    // Coordinates are above the 36 bits of an address.
    network: Network { buffer: 0x400, command: 0x28, coordinates: 4, shift: 4 },
    // Words of the matrix engine's configuration, which the tile's own cores reach and the network does not.
    starts: Starts {
        t: 0xffef_0278,
        t_enable: 0xffef_0284,
        nc: 0xffef_0288,
        nc_enable: 0xffef_028c,
        beside: Some(0xffef_0000),
    },
    // A fence does nothing, and there is no cache of data.
    discard: None,
    engine: Chip::Wormhole,
};

/// Every kind of chip that is driven.
static ALL: [Generation; 2] = [BLACKHOLE, WORMHOLE];

impl Generation {
    /// The one with a number on the host's bus.
    pub(crate) fn of(device: u16) -> Option<&'static Self> {
        ALL.iter().find(|generation| generation.device == device)
    }

    /// Which cards are driven, for a message.
    pub(crate) fn supported() -> String {
        let one = |generation: &Self| format!("{} ({})", generation.name, generation.boards);
        ALL.each_ref().map(one).join(" and ")
    }

    /// The end of a tile's own part of the table of pages, where the stub begins.
    pub(crate) fn code(&self) -> u32 {
        self.l1 / PAGE * ENTRY
    }

    /// Coordinates as a register of the network's interface has them.
    pub(crate) fn bits(&self, place: Coordinates) -> u32 {
        (u32::from(place.x) | u32::from(place.y) << 6) << self.network.shift
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
