// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The bus between the kernel and a device: host memory that the device reaches, and the registers of its channels.
//!
//! This is all that the two sides share. The kernel puts requests into host memory and moves a register; the device reads
//! them from there by their addresses on the bus, as it does any other memory of the host.

use hal_backend::HostRange;
use std::collections::BTreeMap;

/// Where addresses of the bus begin.
const FIRST: u64 = 0x1_0000_0000;
/// What addresses are aligned to, and how far pieces of memory are apart at least.
const PAGE: u64 = 4096;
/// The most that one piece has: whole pages of what 32 bits count.
const MOST: u64 = (1 << 32) - PAGE;

/// Host memory by the addresses that the device has for it.
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

/// A piece of memory as the device sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) length: u64,
}

impl DeviceBus {
    /// Makes memory reachable, in one piece. An address is never given twice, so that one that is used too late is
    /// found out.
    pub(crate) fn map(&mut self, memory: HostRange) -> u64 {
        let address = self.next;
        // A page between two pieces belongs to neither.
        self.next += memory.length().next_multiple_of(PAGE) + PAGE;
        self.mapped.insert(address, memory);
        address
    }

    /// Makes memory reachable, in pieces of at most so many bytes (as many as may be if nothing is said).
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

    /// Ends the mappings of some pieces.
    pub(crate) fn unmap(&mut self, segments: &[Segment]) {
        for segment in segments {
            self.mapped.remove(&segment.address);
        }
    }

    /// The memory at an address; nothing, if not all of it is one piece.
    pub(crate) fn find(&self, address: u64, length: u64) -> Option<HostRange> {
        let (&start, memory) = self.mapped.range(..=address).next_back()?;
        memory.slice(address - start, length)
    }

    /// How many pieces are reachable.
    pub(crate) fn mapped(&self) -> usize {
        self.mapped.len()
    }
}

/// The registers of a channel: places in its rings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RingRegisters {
    /// The device's place among the requests.
    pub(crate) request_head: u32,
    /// The kernel's place among the requests.
    pub(crate) request_tail: u32,
    /// The kernel's place among the responses.
    pub(crate) response_head: u32,
    /// The device's place among the responses.
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
