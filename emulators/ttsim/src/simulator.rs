// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The board on a bus, which gives its regions addresses.

use emulator_chip::{BarAddress, Board, Chip, Stopped, Violation};

/// The address of the first region.
pub const BAR0: u64 = 0x1_0000_0000;
/// The address of the second region.
pub const BAR2: u64 = 0x1_2000_0000;
/// The address of the third region.
pub const BAR4: u64 = 0x8_0000_0000;

/// The vendor's number on a PCI bus.
const VENDOR: u32 = 0x1e52;
/// The lowest bits of a region's address: 64 bits wide.
const WIDE: u32 = 4;

/// A board, and the stopped cores that were reported.
#[derive(Debug)]
pub struct Simulator {
    chip: Chip,
    reported: Vec<Stopped>,
}

impl Simulator {
    /// A board after power-on.
    pub fn new(board: Board) -> Self {
        Self { chip: Chip::new(board), reported: Vec::new() }
    }

    /// A word of the bus's configuration space. There is only one device.
    pub fn configuration(&self, function: u32, offset: u32) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "an address in two halves")]
        let (low, high) = (|address: u64| address as u32 | WIDE, |address: u64| (address >> 32) as u32);
        match (function, offset) {
            (0, 0x00) => u32::from(self.chip.family().device) << 16 | VENDOR,
            (0, 0x10) => low(BAR0),
            (0, 0x14) => high(BAR0),
            (0, 0x18) => low(BAR2),
            (0, 0x1c) => high(BAR2),
            (0, 0x20) => low(BAR4),
            (0, 0x24) => high(BAR4),
            (0, _) => 0,
            _ => u32::MAX,
        }
    }

    /// Reads from the bus.
    pub fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Violation> {
        self.chip.read(self.region(address, bytes.len())?, bytes)
    }

    /// Writes to the bus.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Violation> {
        self.chip.write(self.region(address, bytes.len())?, bytes)
    }

    /// Lets time pass; returns the cores that have stopped since the last call.
    pub fn clock(&mut self, clocks: u32) -> Vec<Stopped> {
        self.chip.step(clocks.into());
        let now = self.chip.stopped();
        let new = now.iter().filter(|stopped| !self.reported.contains(stopped)).cloned().collect();
        self.reported = now;
        new
    }

    /// The region of an address of the bus.
    fn region(&self, address: u64, length: usize) -> Result<BarAddress, Violation> {
        let regions = [(0, BAR0), (2, BAR2), (4, BAR4)].into_iter().zip(self.chip.family().regions);
        for ((bar, base), bytes) in regions {
            if let Some(offset) = address.checked_sub(base)
                && offset < bytes
            {
                return Ok(BarAddress { bar, offset });
            }
        }
        Err(Violation::Bus { address, length })
    }
}
