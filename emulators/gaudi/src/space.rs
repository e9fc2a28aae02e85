// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The device addresses of a context, and its mappings.

use crate::hardware::Hardware;
use emulator_core::Errno;
use emulator_core::PAGE;
use hal_backend::HostRange;
use rustix::fs::{FallocateFlags, SeekFrom};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The kind of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MappingKind {
    /// Memory that every context has.
    Fixed,
    /// Device memory with this handle.
    Device(u64),
    /// Memory of the process.
    Host,
    /// A command buffer of the kernel.
    Buffer,
    /// An imported dma-buf.
    Imported,
}

/// Memory to be mapped, and the part of it that a program asked for. rule(map-pages)
#[derive(Clone, Debug)]
pub(crate) struct MappedMemory {
    pub(crate) memory: HostRange,
    /// The offset and the length of that part.
    pub(crate) skip: u64,
    pub(crate) length: u64,
}

impl From<HostRange> for MappedMemory {
    fn from(memory: HostRange) -> Self {
        Self { skip: 0, length: memory.length(), memory }
    }
}

/// A mapping of device addresses.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// The address of the first page.
    start: u64,
    mapped: MappedMemory,
    pub(crate) what: MappingKind,
    /// The file of all this memory, if it is known.
    file: Option<Arc<OwnedFd>>,
}

impl Mapping {
    pub(crate) fn memory(&self) -> &HostRange {
        &self.mapped.memory
    }

    /// The exact address that a program got, by which the mapping is ended.
    fn address(&self) -> u64 {
        self.start + self.mapped.skip
    }

    fn end(&self) -> u64 {
        self.start.saturating_add(self.mapped.memory.length())
    }
}

/// An area of addresses.
#[derive(Debug)]
struct Area {
    bounds: RangeInclusive<u64>,
    /// The end of the last mapping, where the next one begins: an address is not used again soon, so that a use
    /// after the end of a mapping is noticed.
    cursor: u64,
}

impl Area {
    fn new(bounds: RangeInclusive<u64>) -> Self {
        Self { cursor: *bounds.start(), bounds }
    }
}

/// The area of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pool {
    Device,
    Host,
    /// Command buffers of the kernel.
    Buffers,
}

/// The areas of a context.
#[derive(Clone, Debug)]
pub(crate) struct Areas {
    pub(crate) device: RangeInclusive<u64>,
    pub(crate) host: RangeInclusive<u64>,
    pub(crate) buffers: Option<RangeInclusive<u64>>,
    /// The area that a program must ask for.
    pub(crate) reserved: Vec<RangeInclusive<u64>>,
    /// Mappings of device memory are whole multiples of this.
    pub(crate) page: u64,
}

impl Areas {
    /// The areas of a card on which a program can have this much device memory.
    pub(crate) fn of(hardware: &Hardware, dram: u64) -> Self {
        let (device, host) = (hardware.dram_space(dram), hardware.host_space());
        let reserved =
            [*device.start(), *host.start()].into_iter().filter_map(|address| hardware.reserved(address));
        Self {
            reserved: reserved.collect(),
            buffers: hardware.buffer_space(),
            page: hardware.dram_page,
            device,
            host,
        }
    }
}

/// The address that a mapping asks for. rule(map-hint)
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hint {
    /// No address, if it is zero.
    pub(crate) address: u64,
    /// This address, or no mapping.
    pub(crate) force: bool,
    /// The alignment of this address, and of another one that replaces it; a page, if it is zero.
    pub(crate) align: u64,
}

/// Everything that a context has mapped, in the order of addresses.
#[derive(Debug)]
pub(crate) struct Space {
    /// By the first page's address.
    mappings: BTreeMap<u64, Mapping>,
    areas: [Option<Area>; 3],
    reserved: Vec<RangeInclusive<u64>>,
    page: u64,
}

impl Space {
    pub(crate) fn new(areas: Areas) -> Self {
        let Areas { device, host, buffers, reserved, page } = areas;
        let areas = [Some(device), Some(host), buffers].map(|bounds| bounds.map(Area::new));
        Self { mappings: BTreeMap::new(), areas, reserved, page }
    }

    fn area(&mut self, pool: Pool) -> Option<&mut Area> {
        self.areas.get_mut(pool as usize).and_then(Option::as_mut)
    }

    /// True if nothing is mapped in whole pages from here.
    fn is_free(&self, start: u64, length: u64) -> bool {
        let end = start.saturating_add(length);
        self.mappings.range(..end).next_back().is_none_or(|(_, last)| last.end() <= start)
    }

    /// Finds addresses for whole pages; nothing, if there are none left.
    fn find(&mut self, pool: Pool, length: u64, align: u64) -> Option<u64> {
        let area = self.area(pool)?;
        let (first, last, cursor) = (*area.bounds.start(), *area.bounds.end(), area.cursor);
        let mut start = self.aligned(pool, cursor, align)?;
        let mut again = cursor != first;
        let found = loop {
            let end = start.checked_add(length - 1).filter(|&end| end <= last);
            let Some(end) = end else {
                // Again from the beginning.
                if !std::mem::take(&mut again) {
                    return None;
                }
                start = self.aligned(pool, first, align)?;
                continue;
            };
            let mapped = self.mappings.range(..=end).next_back().map(|(_, mapping)| mapping.end());
            let mapped = mapped.filter(|&mapped| mapped > start);
            let kept = self.reserved.iter().find(|range| *range.start() <= end && start <= *range.end());
            match (mapped, kept) {
                (None, None) => break start,
                (mapped, kept) => {
                    let next = mapped.unwrap_or(0).max(kept.map_or(0, |range| range.end() + 1));
                    start = self.aligned(pool, next, align)?;
                }
            }
        };
        self.area(pool)?.cursor = found + length;
        Some(found)
    }

    /// The next address at which a mapping may begin.
    fn aligned(&mut self, pool: Pool, address: u64, align: u64) -> Option<u64> {
        if pool != Pool::Device {
            return address.checked_next_multiple_of(align);
        }
        // Pages of device memory are counted from the first address.
        let (first, page) = (*self.area(pool)?.bounds.start(), self.page);
        Some(first + (address - first).checked_next_multiple_of(page)?)
    }

    /// Maps memory at a wanted address or at any free one. Returns the address of the part that was asked for;
    /// nothing, if there is no room.
    pub(crate) fn map(
        &mut self,
        pool: Pool,
        memory: impl Into<MappedMemory>,
        hint: Hint,
        what: MappingKind,
    ) -> Option<u64> {
        let memory = memory.into();
        let unit = if pool == Pool::Device { self.page } else { PAGE };
        let length = memory.memory.length().max(1).checked_next_multiple_of(unit)?;
        let align = hint.align.max(PAGE);
        let bounds = self.area(pool)?.bounds.clone();
        let ends = hint.address.checked_add(length).is_some_and(|end| end <= *bounds.end());
        let inside = hint.address != 0 && bounds.contains(&hint.address) && ends;
        let whole = self.aligned(pool, hint.address.max(*bounds.start()), align) == Some(hint.address);
        let start = if inside && whole && self.is_free(hint.address, length) {
            hint.address
        } else if hint.force {
            return None;
        } else {
            self.find(pool, length, align)?
        };
        let address = start + memory.skip;
        self.place(start, memory, what);
        Some(address)
    }

    /// Address and length of every mapping of device memory, or of host memory.
    pub(crate) fn ranges(&self, address: u64) -> Vec<(u64, u64)> {
        let host =
            self.areas.get(1).and_then(Option::as_ref).is_some_and(|area| area.bounds.contains(&address));
        let of_kind =
            |what| if host { what == MappingKind::Host } else { matches!(what, MappingKind::Device(_)) };
        let mappings = self.mappings.values().filter(|mapping| of_kind(mapping.what));
        mappings.map(|mapping| (mapping.address(), mapping.mapped.length)).collect()
    }

    /// Maps memory at an address that is known to be free.
    pub(crate) fn place(&mut self, start: u64, memory: impl Into<MappedMemory>, what: MappingKind) {
        self.mappings.insert(start, Mapping { start, mapped: memory.into(), what, file: None });
    }

    /// Records the file that the memory of a mapping is in, from its beginning.
    pub(crate) fn back(&mut self, address: u64, file: &Arc<OwnedFd>) {
        if let Some(mapping) = self.mappings.get_mut(&page_of(address)) {
            mapping.file = Some(file.clone());
        }
    }

    /// The mapping with exactly this address.
    pub(crate) fn get(&self, address: u64) -> Option<&Mapping> {
        self.mappings.get(&page_of(address)).filter(|mapping| mapping.address() == address)
    }

    /// Ends the mapping with exactly this address.
    pub(crate) fn unmap(&mut self, address: u64) -> Option<Mapping> {
        self.get(address)?;
        self.mappings.remove(&page_of(address))
    }

    /// How many mappings a program has made.
    pub(crate) fn mapped(&self) -> usize {
        self.mappings.values().filter(|mapping| mapping.what != MappingKind::Fixed).count()
    }

    /// Passes the memory behind a range of addresses to `each`, piece by piece, if all of it is mapped.
    /// Otherwise returns the first address that is not, without calling `each`.
    pub(crate) fn resolve(&self, address: u64, length: u64) -> Result<Vec<Piece>, u64> {
        let (mut at, mut rest) = (address, length);
        let mut pieces = Vec::with_capacity(1);
        while rest > 0 {
            let mapping = self.mappings.range(..=at).next_back().map(|(_, mapping)| mapping).ok_or(at)?;
            let (start, memory) = (mapping.start, mapping.memory());
            let offset = at.checked_sub(start).ok_or(at)?;
            let here = memory.length().saturating_sub(offset).min(rest);
            if here == 0 {
                return Err(at);
            }
            let memory = memory.slice(offset, here).ok_or(at)?;
            pieces.push(Piece {
                memory,
                host: matches!(mapping.what, MappingKind::Host | MappingKind::Buffer | MappingKind::Imported),
                file: mapping.file.clone().map(|file| (file, offset)),
            });
            at = at.wrapping_add(here);
            rest -= here;
        }
        Ok(pieces)
    }
}

/// The address of an address's page. What every context has begins where it begins, and is named by nobody.
const fn page_of(address: u64) -> u64 {
    address / PAGE * PAGE
}

/// Memory behind an address.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) memory: HostRange,
    /// True if it is in the host's half of the address space.
    pub(crate) host: bool,
    /// Its file, and the offset there.
    pub(crate) file: Option<(Arc<OwnedFd>, u64)>,
}

impl Piece {
    /// True if part of it was never written, so that it is zero and takes no space.
    pub(crate) fn is_hole(&self, at: u64, length: u64) -> bool {
        let Some((file, offset)) = &self.file else { return false };
        let start = offset + at;
        match rustix::fs::seek(file, SeekFrom::Data(start)) {
            Ok(data) => data >= start + length,
            // There is no data behind this.
            Err(error) => error == Errno::NXIO,
        }
    }

    /// Turns part of it into zeros that take no space. Returns false, without an effect, if that is impossible.
    pub(crate) fn punch(&self, at: u64, length: u64) -> bool {
        let Some((file, offset)) = &self.file else { return false };
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(file, how, offset + at, length).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn space() -> Space {
        Space::new(Areas {
            device: 0x10_0000..=0x1F_FFFF,
            host: 0x100_0000..=0x100_FFFF,
            buffers: None,
            reserved: vec![0x100_B000..=0x100_BFFF],
            page: 0x3_0000,
        })
    }

    fn memory(length: u64) -> HostRange {
        HostRange::allocate(length, 8).unwrap()
    }

    #[test]
    fn access_may_go_on_in_the_next_mapping() {
        let mut space = space();
        let first = space.map(Pool::Host, memory(4096), Hint::default(), MappingKind::Host).unwrap();
        let second = space.map(Pool::Host, memory(4096), Hint::default(), MappingKind::Host).unwrap();
        assert_eq!(second, first + 4096);
        let lengths =
            |pieces: Vec<Piece>| pieces.iter().map(|piece| piece.memory.length()).collect::<Vec<_>>();
        assert_eq!(lengths(space.resolve(first + 4000, 200).unwrap()), [96, 104]);
        assert_eq!(space.resolve(second + 4000, 97).unwrap_err(), second + 4096);
        assert_eq!(space.resolve(first - 1, 8).unwrap_err(), first - 1);
        assert!(space.resolve(3, 0).unwrap().is_empty());
    }

    #[test]
    fn only_the_exact_address_ends_a_mapping() {
        let mut space = space();
        let asked = MappedMemory { memory: memory(8192), skip: 12, length: 5000 };
        let address = space.map(Pool::Host, asked, Hint::default(), MappingKind::Host).unwrap();
        assert_eq!(address % 4096, 12);
        assert_eq!(space.ranges(address), [(address, 5000)]);
        assert!(space.resolve(address - 12, 8192).is_ok(), "all of its pages");
        assert!(space.unmap(address - 12).is_none() && space.unmap(address + 4096).is_none());
        assert!(space.unmap(address).is_some() && space.unmap(address).is_none());
        assert_eq!(space.mapped(), 0);
    }

    #[test]
    fn wanted_addresses_are_had_if_they_are_free() {
        let mut space = space();
        let mut want = |address, force, align| {
            space.map(Pool::Host, memory(8192), Hint { address, force, align }, MappingKind::Host)
        };
        assert_eq!(want(0x100_4000, true, 0), Some(0x100_4000));
        assert_eq!(
            (want(0x100_5000, true, 0), want(0x100_3000, true, 0), want(0x100_4800, true, 0)),
            (None, None, None)
        );
        assert_eq!(
            (want(0x100_F000, true, 0), want(0x10_0000, true, 0)),
            (None, None),
            "outside of the area"
        );
        assert_eq!(want(0x100_E000, true, 0), None, "one that ends with the area is not taken");
        assert_eq!(want(0x100_2000, true, 0x2000), Some(0x100_2000));
        assert_eq!(want(0x100_7000, true, 0x2000), None, "not aligned");
        assert_eq!(want(0, true, 0), None, "there is no address zero");
        assert_eq!(want(0x100_8000, false, 0), Some(0x100_8000), "a hint");
        assert_eq!(want(0x100_8000, false, 0), Some(0x100_0000), "and one that is taken");
        assert_eq!(want(0x100_A000, true, 0), Some(0x100_A000), "what is reserved, too");
    }

    #[test]
    fn reserved_addresses_are_given_to_who_asks_only() {
        let mut space = space();
        let mut next = || space.map(Pool::Host, memory(4096), Hint::default(), MappingKind::Host);
        let all: Vec<u64> = std::iter::from_fn(&mut next).collect();
        assert_eq!(all.len(), 15);
        assert!(!all.contains(&0x100_B000));
    }

    #[test]
    fn device_memory_is_mapped_in_pages_of_its_own() {
        let mut space = space();
        let mut map = |address| {
            space.map(
                Pool::Device,
                memory(0x3_0000),
                Hint { address, force: address != 0, align: 0 },
                MappingKind::Device(1),
            )
        };
        assert_eq!((map(0), map(0)), (Some(0x10_0000), Some(0x13_0000)));
        assert_eq!((map(0x16_1000), map(0x16_0000)), (None, Some(0x16_0000)));
    }

    proptest! {
        #[test]
        fn mappings_never_overlap(
        steps in proptest::collection::vec((1_u64..20_000, 0_u64..4096, any::<bool>()), 1..60)
    ) {
            let mut space = space();
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (length, skip, end) in steps {
                if end && !live.is_empty() {
                    let (address, _) = live.swap_remove(usize::try_from(length).unwrap() % live.len());
                    prop_assert!(space.unmap(address).is_some());
                    continue;
                }
                let pages = memory((skip + length).next_multiple_of(PAGE));
                let asked = MappedMemory { memory: pages, skip, length };
                if let Some(address) = space.map(Pool::Host, asked, Hint::default(), MappingKind::Host) {
                    prop_assert!((0x100_0000..0x101_0000).contains(&address));
                    let apart = |&(other, size): &(u64, u64)| address + length <= other || other + size <= address;
                    prop_assert!(live.iter().all(apart));
                    live.push((address, length));
                }
            }
            for (address, length) in live {
                prop_assert_eq!(space.resolve(address, length).unwrap().len(), 1);
            }
        }
    }
}
