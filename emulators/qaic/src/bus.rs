// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The bus between the kernel and a device: host memory that the device reaches, and the registers of its channels.
//!
//! The two sides share nothing else. The kernel writes requests into host memory and moves a register; the
//! device reads them by their addresses on the bus, like all host memory.

use hal_backend::HostRange;
use std::collections::BTreeMap;

/// The first address on the bus.
const FIRST: u64 = 0x1_0000_0000;
/// The alignment of addresses, and the least distance between segments.
const PAGE: u64 = 4096;
/// The longest segment: whole pages within 32 bits.
const MOST: u64 = (1 << 32) - PAGE;

/// Host memory by its addresses on the bus.
#[derive(Debug)]
pub(crate) struct DeviceBus {
    next: u64,
    mapped: BTreeMap<u64, HostRange>,
}

impl Default for DeviceBus {
    fn default() -> Self {
        Self { next: FIRST, mapped: BTreeMap::new() }
    }
}

/// A segment of memory as the device sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) length: u64,
}

impl DeviceBus {
    /// Makes memory reachable, in one segment. No address is used twice, so that a use after the end of a
    /// mapping is noticed.
    pub(crate) fn map(&mut self, memory: HostRange) -> u64 {
        let address = self.next;
        // A page between two segments belongs to neither.
        self.next += memory.length().next_multiple_of(PAGE) + PAGE;
        self.mapped.insert(address, memory);
        address
    }

    /// Makes memory reachable, in segments of at most this length; without a limit, as long as possible.
    pub(crate) fn map_pieces(&mut self, memory: &HostRange, most: Option<u64>) -> Vec<Segment> {
        let step = most.unwrap_or(MOST).clamp(1, MOST);
        let mut segments = Vec::new();
        let mut offset = 0;
        while offset < memory.length() {
            let length = step.min(memory.length() - offset);
            if let Some(piece) = memory.slice(offset, length) {
                segments.push(Segment { address: self.map(piece), length });
            }
            offset += length;
        }
        segments
    }

    /// Ends the mappings of some segments.
    pub(crate) fn unmap(&mut self, segments: &[Segment]) {
        for segment in segments {
            self.mapped.remove(&segment.address);
        }
    }

    /// The memory at an address; nothing, if it crosses the end of a segment.
    pub(crate) fn find(&self, address: u64, length: u64) -> Option<HostRange> {
        let (&start, memory) = self.mapped.range(..=address).next_back()?;
        memory.slice(address - start, length)
    }

    /// How many segments are reachable.
    pub(crate) fn mapped(&self) -> usize {
        self.mapped.len()
    }
}

/// The registers of a channel: indices into its rings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RingRegisters {
    /// The device's index into the requests.
    pub(crate) request_head: u32,
    /// The kernel's index into the requests.
    pub(crate) request_tail: u32,
    /// The kernel's index into the responses.
    pub(crate) response_head: u32,
    /// The device's index into the responses.
    pub(crate) response_tail: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_mapped_is_found_and_only_in_one_piece() {
        let mut bus = DeviceBus::default();
        let memory = HostRange::allocate(10_000, 4096).unwrap();
        let pieces = bus.map_pieces(&memory, Some(4096));
        assert_eq!(pieces.iter().map(|piece| piece.length).collect::<Vec<_>>(), [4096, 4096, 1808]);
        let second = pieces[1].address;
        let found = bus.find(second + 8, 100).unwrap();
        assert_eq!(found.address() as usize, memory.address() as usize + 4104);
        assert!(bus.find(second + 8, 4096).is_none() && bus.find(FIRST - 1, 1).is_none());
        bus.unmap(&pieces);
        assert!(bus.find(second, 1).is_none());
        assert_eq!(bus.mapped(), 0);
        assert_eq!(bus.map_pieces(&memory, None).len(), 1);
    }
}
