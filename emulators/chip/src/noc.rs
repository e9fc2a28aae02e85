// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The network transfers that a core requests.
//!
//! A core has four command buffers, each a few registers, whose layout differs between chips. A read brings
//! bytes from another tile (the target) into this one (the return address), a write takes them from this one
//! (the target) to another (the return address). Transfers are done in the order of their requests, a little
//! later.

use crate::counts::ChipCounts;
use crate::family::NocRegisters;
use crate::tensix::Core;
use crate::violation::Violation;
use std::fmt;

/// Coordinates on the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// The column.
    pub x: u8,
    /// The row.
    pub y: u8,
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.x, self.y)
    }
}

/// The register whose bit 14 enables translation.
const CONFIGURATION: u32 = 0x100;
const TRANSLATED: u32 = 1 << 14;
/// The counters of acknowledged writes and of answered reads.
const WRITES_ACKNOWLEDGED: u32 = 0x204;
const READS_ANSWERED: u32 = 0x208;

const BUFFERS: usize = 4;

const CONTROL: usize = 7;
const LENGTH: usize = 8;
/// Bits of the control register.
const WRITE: u32 = 1 << 1;
const RESPONSE: u32 = 1 << 4;
/// The static virtual channel, which has no effect here: the enable bit, and the number.
const CHANNEL: u32 = 1 << 7 | 7 << 13;

/// The coordinates of an interface: those that software uses, and those that it reports itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) tile: Tile,
    pub(crate) named: Tile,
}

impl Location {
    /// The settings of an interface to the network that software reads.
    pub(crate) fn register(self, network: &NocRegisters, offset: u32) -> Option<u32> {
        let bits = |tile: Tile| u32::from(tile.x) | u32::from(tile.y) << 6;
        let (columns, rows) = network.size;
        match offset {
            // The highest bits as in the vendor's simulator.
            _ if offset == network.node_id => Some(bits(self.named) | columns << 12 | rows << 19 | 1 << 28),
            _ if offset == network.translated_id => Some(bits(self.tile)),
            CONFIGURATION => Some(TRANSLATED),
            _ => None,
        }
    }
}

/// The effect of a write to a register of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteEffect {
    /// The register changed.
    Register,
    /// A transfer was requested.
    Transfer,
}

/// A transfer that a core has requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NocTransfer {
    /// The core.
    pub(crate) core: Core,
    pub(crate) write: bool,
    /// True if its end is counted.
    pub(crate) counted: bool,
    pub(crate) remote: Tile,
    pub(crate) remote_address: u64,
    pub(crate) local_address: u64,
    pub(crate) length: u32,
    /// The command buffer that is busy with it.
    buffer: usize,
}

/// A tile's interface to the network.
#[derive(Clone, Debug)]
pub(crate) struct Interface {
    network: &'static NocRegisters,
    location: Location,
    /// Target low, middle, high; return low, middle, high; tag; control; length.
    buffers: [[u32; 9]; BUFFERS],
    busy: [bool; BUFFERS],
    pending: Vec<NocTransfer>,
    writes_acknowledged: u32,
    reads_answered: u32,
    counts: ChipCounts,
}

impl Interface {
    pub(crate) fn new(network: &'static NocRegisters, location: Location) -> Self {
        Self {
            network,
            location,
            buffers: [[0; 9]; BUFFERS],
            busy: [false; BUFFERS],
            pending: Vec::new(),
            writes_acknowledged: 0,
            reads_answered: 0,
            counts: ChipCounts::default(),
        }
    }

    /// A setting, for the whole network.
    pub(crate) fn setting(&self, offset: u32) -> Option<u32> {
        self.location.register(self.network, offset)
    }

    /// A register, for the tile's own cores.
    pub(crate) fn read(&self, offset: u32) -> Option<u32> {
        match offset {
            WRITES_ACKNOWLEDGED => Some(self.writes_acknowledged),
            READS_ANSWERED => Some(self.reads_answered),
            _ => self.setting(offset).or_else(|| {
                let (buffer, register) = self.place(offset);
                if register == self.network.command {
                    return self.busy.get(buffer).copied().map(u32::from);
                }
                self.buffers.get(buffer)?.get(self.slot(register)?).copied()
            }),
        }
    }

    /// The command buffer of an offset, and the offset in it.
    fn place(&self, offset: u32) -> (usize, u32) {
        let stride = self.network.stride;
        ((offset / stride) as usize, offset % stride)
    }

    /// The register of a command buffer at an offset.
    fn slot(&self, offset: u32) -> Option<usize> {
        match offset {
            // Coordinates of their own.
            0x08 | 0x14 if !self.network.apart => None,
            0x00..=0x18 if offset.is_multiple_of(4) => Some((offset / 4) as usize),
            0x1c => Some(CONTROL),
            0x20 => Some(LENGTH),
            _ => None,
        }
    }

    /// True for a register that starts a transfer.
    pub(crate) fn is_command(&self, offset: u32) -> bool {
        self.place(offset).1 == self.network.command
    }

    /// Writes a register; `None` if there is none.
    pub(crate) fn write(
        &mut self,
        core: Core,
        offset: u32,
        value: u32,
    ) -> Option<Result<WriteEffect, Violation>> {
        let (buffer, register) = self.place(offset);
        if register == self.network.command {
            let registers = *self.buffers.get(buffer)?;
            if value & 1 == 1 {
                return Some(self.request(core, buffer, &registers).map(|()| WriteEffect::Transfer));
            }
            return Some(Ok(WriteEffect::Register));
        }
        let slot = self.slot(register)?;
        *self.buffers.get_mut(buffer)?.get_mut(slot)? = value;
        Some(Ok(WriteEffect::Register))
    }

    fn request(&mut self, core: Core, buffer: usize, registers: &[u32; 9]) -> Result<(), Violation> {
        let [target_low, target_middle, target_high, low, middle, high, _, control, length] = *registers;
        let address = |low: u32, middle: u32| {
            let middle = if self.network.apart { middle } else { middle & 0xf };
            u64::from(middle) << 32 | u64::from(low)
        };
        let place = |middle: u32, high: u32| if self.network.apart { high } else { middle >> 4 };
        let (target, back) = (address(target_low, target_middle), address(low, middle));
        let wrong = |rule| Err(Violation::Transfer { from: target, to: back, length, rule });
        if control & !(WRITE | RESPONSE | CHANNEL) != 0 {
            return wrong(
                "only plain reads and writes to one tile are modelled: neither multicast, nor atomics, \
                     nor inline writes",
            );
        }
        let write = control & WRITE != 0;
        if !write && control & RESPONSE == 0 {
            return wrong("a read needs the bit for a response");
        }
        let (remote, remote_address, local_address) = if write {
            (place(middle, high), back, target)
        } else {
            (place(target_middle, target_high), target, back)
        };
        if length == 0 || length > self.network.max_burst {
            return wrong(self.network.burst_rule);
        }
        let remote = Tile { x: (remote & 63) as u8, y: (remote >> 6 & 63) as u8 };
        let counted = !write || control & RESPONSE != 0;
        self.pending.push(NocTransfer {
            core,
            write,
            counted,
            remote,
            remote_address,
            local_address,
            length,
            buffer,
        });
        if let Some(busy) = self.busy.get_mut(buffer) {
            *busy = true;
        }
        Ok(())
    }

    /// The transfers that were done.
    pub(crate) fn counts(&self) -> ChipCounts {
        self.counts
    }

    /// Removes and returns the transfers to be done, in order.
    pub(crate) fn take(&mut self) -> Vec<NocTransfer> {
        std::mem::take(&mut self.pending)
    }

    /// Counts a transfer that was done. A core requests one at a time, so its buffer is free again.
    pub(crate) fn done(&mut self, transfer: &NocTransfer) {
        if let Some(busy) = self.busy.get_mut(transfer.buffer) {
            *busy = false;
        }
        let counts = &mut self.counts;
        let (packets, bytes) = if transfer.write {
            (&mut counts.packets_written, &mut counts.bytes_written)
        } else {
            (&mut counts.packets_read, &mut counts.bytes_read)
        };
        *packets += 1;
        *bytes += u64::from(transfer.length);
        let counter = if transfer.write { &mut self.writes_acknowledged } else { &mut self.reads_answered };
        *counter = counter.wrapping_add(u32::from(transfer.counted));
    }
}

impl NocTransfer {
    /// Checks the alignment of both addresses: their last bits must be equal, four of them, or more when DRAM
    /// is read.
    pub(crate) fn check_alignment(&self, network: &NocRegisters, from_dram: bool) -> Result<(), Violation> {
        let (bits, rule) = if from_dram && !self.write {
            (network.dram_bits, network.dram_rule)
        } else {
            (15, "both addresses must be the same modulo 16")
        };
        if (self.remote_address ^ self.local_address) & bits == 0 {
            return Ok(());
        }
        let (from, to) = if self.write {
            (self.local_address, self.remote_address)
        } else {
            (self.remote_address, self.local_address)
        };
        Err(Violation::Transfer { from, to, length: self.length, rule })
    }
}
