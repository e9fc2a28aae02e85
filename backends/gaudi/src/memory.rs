// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory of a card: large pieces from the kernel, divided here.
//!
//! The kernel allocates device memory in pages (768 MiB on Gaudi 2) and pins host memory call by call: too coarse and
//! too slow for buffers. So a heap takes [`Region`]s of both kinds, each one mapping of the kernel, and allocates
//! ranges of them. A [`Memory`] is such a range. Dropping it returns it to its heap. The heap frees a region without
//! ranges, but keeps one for the next allocation.
//!
//! A heap's lock is held to find a range, never during a call to the kernel. Two threads that both find no room may
//! both take a region; the second one serves later.

use crate::generation::Capabilities;
use crate::kmd::{Card, Errno};
use hal_backend::{Code, Failure, HostRange};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The alignment of every range: small for host memory, and a whole page for device memory, which can then be shared.
const HOST_ALIGNMENT: u64 = 256;
pub(crate) const DEVICE_ALIGNMENT: u64 = 4096;

/// The size of the host's pages.
pub(crate) const HOST_PAGE: u64 = 4096;

/// The smallest size that is pinned at once.
const HOST_REGION: u64 = 8 << 20;

/// The kind of a region, which decides how it is freed.
enum Source {
    /// Device memory behind this handle, mapped.
    Mapped { handle: u64 },
    /// Device memory that has an address from the beginning.
    Physical,
    /// Host memory, mapped.
    Host { range: HostRange },
    /// An imported dma-buf, mapped.
    Foreign,
}

/// One mapping of a card's kernel driver, ended when it is dropped.
pub struct Region {
    card: Arc<Card>,
    address: u64,
    length: u64,
    source: Source,
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({:#x}, {})", self.address, self.length)
    }
}

impl Region {
    /// Device memory, taken and mapped.
    fn device(card: &Arc<Card>, length: u64) -> Result<Self, Errno> {
        let handle = card.allocate(length)?;
        match card.map_device(handle) {
            Ok(address) => {
                Ok(Self { card: card.clone(), address, length, source: Source::Mapped { handle } })
            }
            Err(errno) => {
                // The caller gets the error of the mapping.
                let _ = card.free(handle);
                Err(errno)
            }
        }
    }

    /// Host memory, as it is.
    pub(crate) fn host(card: &Arc<Card>, range: HostRange) -> Result<Self, Errno> {
        let address = card.map_host(&range)?;
        Ok(Self { card: card.clone(), address, length: range.length(), source: Source::Host { range } })
    }

    /// Something that a call of the kernel has mapped.
    pub(crate) fn foreign(card: &Arc<Card>, address: u64, length: u64) -> Self {
        Self { card: card.clone(), address, length, source: Source::Foreign }
    }

    /// Its device address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes it has.
    pub fn length(&self) -> u64 {
        self.length
    }

    fn host_view(&self) -> Option<&HostRange> {
        match &self.source {
            Source::Host { range } => Some(range),
            _ => None,
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // A card that is being reset or gone has forgotten all its mappings. Memory that others still have as a
        // dma-buf is kept by the kernel, which takes it back when the card is closed.
        match self.source {
            Source::Mapped { handle } => {
                let _ = self.card.unmap(self.address);
                let _ = self.card.free(handle);
            }
            Source::Host { .. } | Source::Foreign => {
                let _ = self.card.unmap(self.address);
            }
            Source::Physical => {}
        }
    }
}

/// The free ranges of a region: by where they begin, never two that touch.
#[derive(Debug, Default)]
struct FreeRanges {
    ranges: BTreeMap<u64, u64>,
}

impl FreeRanges {
    fn all(length: u64) -> Self {
        Self { ranges: BTreeMap::from([(0, length)]) }
    }

    /// Takes a range out of the smallest one that it fits in.
    fn take(&mut self, length: u64) -> Option<u64> {
        let (&start, &room) =
            self.ranges.iter().filter(|(_, room)| **room >= length).min_by_key(|(_, room)| **room)?;
        self.ranges.remove(&start);
        if room > length {
            self.ranges.insert(start + length, room - length);
        }
        Some(start)
    }

    /// Frees a range.
    fn give(&mut self, mut start: u64, mut length: u64) {
        if let Some(more) = self.ranges.remove(&(start + length)) {
            length += more;
        }
        if let Some((&before, &room)) = self.ranges.range(..start).next_back()
            && before + room == start
        {
            start = before;
            length += room;
        }
        self.ranges.insert(start, length);
    }

    fn is_all(&self, length: u64) -> bool {
        self.ranges.get(&0) == Some(&length)
    }
}

/// A region that is divided.
struct DividedRegion {
    region: Arc<Region>,
    free: FreeRanges,
}

/// Which memory a heap is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeapKind {
    /// The card's own, in pages of this size.
    Device { page: u64 },
    /// The host's, pinned.
    Host,
}

/// Memory of one kind.
pub(crate) struct Heap {
    card: Arc<Card>,
    kind: HeapKind,
    regions: Mutex<Vec<DividedRegion>>,
    taken: AtomicU64,
}

impl Heap {
    /// Device memory of a card that has pages, taken as it is needed.
    pub(crate) fn device(card: &Arc<Card>) -> Arc<Self> {
        let hardware = card.hardware();
        let kind = HeapKind::Device { page: hardware.dram_page_size.max(HOST_PAGE) };
        let mut regions = Vec::new();
        if !card.generation().has_virtual_memory() {
            // Nothing has to be allocated: every address is valid, and all of the memory is this context's.
            let (address, length) =
                (hardware.dram_base_address, hardware.dram_size & !(DEVICE_ALIGNMENT - 1));
            let region = Region { card: card.clone(), address, length, source: Source::Physical };
            regions.push(DividedRegion { region: Arc::new(region), free: FreeRanges::all(length) });
        }
        Arc::new(Self { card: card.clone(), kind, regions: Mutex::new(regions), taken: AtomicU64::new(0) })
    }

    /// Pinned host memory.
    pub(crate) fn host(card: &Arc<Card>) -> Arc<Self> {
        Arc::new(Self {
            card: card.clone(),
            kind: HeapKind::Host,
            regions: Mutex::default(),
            taken: AtomicU64::new(0),
        })
    }

    /// The alignment of its ranges.
    pub(crate) fn alignment(&self) -> u64 {
        match self.kind {
            HeapKind::Device { .. } => DEVICE_ALIGNMENT,
            HeapKind::Host => HOST_ALIGNMENT,
        }
    }

    /// The bytes of all allocated ranges.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// A range of some bytes.
    pub(crate) fn allocate(self: &Arc<Self>, length: u64) -> Result<Memory, Failure> {
        let rounded = length
            .max(1)
            .checked_next_multiple_of(self.alignment())
            .ok_or_else(|| Failure::new(Code::OutOfRange, format!("{length} bytes are no size of memory")))?;
        if let Some(memory) = self.take(rounded, length) {
            return Ok(memory);
        }
        let region = Arc::new(self.grow(rounded)?);
        let mut regions = self.regions.lock();
        let mut free = FreeRanges::all(region.length);
        let start = free.take(rounded).unwrap_or(0);
        regions.push(DividedRegion { region: region.clone(), free });
        drop(regions);
        Ok(self.memory(region, start, rounded, length))
    }

    fn take(self: &Arc<Self>, rounded: u64, length: u64) -> Option<Memory> {
        let mut regions = self.regions.lock();
        let (region, start) = regions
            .iter_mut()
            .find_map(|divided| Some((divided.region.clone(), divided.free.take(rounded)?)))?;
        drop(regions);
        Some(self.memory(region, start, rounded, length))
    }

    fn memory(self: &Arc<Self>, region: Arc<Region>, start: u64, rounded: u64, length: u64) -> Memory {
        self.taken.fetch_add(rounded, Ordering::Relaxed);
        Memory { share: Some(HeapShare { heap: Arc::downgrade(self), rounded }), region, start, length }
    }

    /// Asks the kernel for a region with room for some bytes.
    fn grow(&self, length: u64) -> Result<Region, Failure> {
        let whole = |unit: u64| {
            length.checked_next_multiple_of(unit).ok_or_else(|| {
                Failure::new(Code::OutOfRange, format!("{length} bytes are no size of memory"))
            })
        };
        match self.kind {
            HeapKind::Device { page } if self.card.generation().has_virtual_memory() => {
                let size = whole(page)?;
                Region::device(&self.card, size).map_err(|errno| self.exhausted(length, errno))
            }
            HeapKind::Device { .. } => Err(self.exhausted(length, Errno::NOMEM)),
            HeapKind::Host => {
                let size = whole(HOST_PAGE)?.max(HOST_REGION);
                let page = usize::try_from(HOST_PAGE).unwrap_or(1);
                let range = HostRange::allocate(size, page)?;
                Region::host(&self.card, range).map_err(|errno| {
                    self.card.failure(&format!("{size} bytes of host memory could not be pinned"), errno)
                })
            }
        }
    }

    fn exhausted(&self, length: u64, errno: Errno) -> Failure {
        let hardware = self.card.hardware();
        let what = format!(
            "no {length} bytes of device memory: {} of {} are given out, in pages of {}",
            self.taken(),
            hardware.dram_size,
            hardware.dram_page_size
        );
        self.card.failure(&what, errno)
    }

    fn give(&self, region: &Arc<Region>, start: u64, rounded: u64) {
        self.taken.fetch_sub(rounded, Ordering::Relaxed);
        let mut regions = self.regions.lock();
        let mut unused = 0;
        for divided in regions.iter_mut() {
            if Arc::ptr_eq(&divided.region, region) {
                divided.free.give(start, rounded);
            }
            unused += usize::from(divided.free.is_all(divided.region.length));
        }
        // One unused region is kept for the next allocation; more go back to the kernel, behind the lock.
        let gone = if unused > 1 { self.remove_unused(&mut regions, 1) } else { Vec::new() };
        drop(regions);
        drop(gone);
    }

    fn remove_unused(&self, regions: &mut Vec<DividedRegion>, keep: usize) -> Vec<DividedRegion> {
        let mut kept = 0;
        let (gone, rest) = regions.drain(..).partition(|divided| {
            let unused = divided.free.is_all(divided.region.length)
                && !matches!(divided.region.source, Source::Physical);
            kept += usize::from(unused);
            unused && kept > keep
        });
        *regions = rest;
        gone
    }

    /// Frees every unused region.
    pub(crate) fn trim(&self) {
        let gone = self.remove_unused(&mut self.regions.lock(), 0);
        drop(gone);
    }
}

/// The owner of a range.
struct HeapShare {
    heap: Weak<Heap>,
    rounded: u64,
}

/// Memory that a card can use.
pub struct Memory {
    share: Option<HeapShare>,
    region: Arc<Region>,
    start: u64,
    length: u64,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({:#x}, {})", self.address(), self.length)
    }
}

impl Memory {
    /// All of a region that no heap divides.
    pub(crate) fn whole(region: Region) -> Self {
        let length = region.length;
        Self { share: None, region: Arc::new(region), start: 0, length }
    }

    /// Its device address.
    pub fn address(&self) -> u64 {
        self.region.address + self.start
    }

    /// How many bytes it has.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The mapping that it is in, and where.
    pub fn region(&self) -> (&Region, u64) {
        (&self.region, self.start)
    }

    /// True if its address is one of this card's.
    pub(crate) fn is_of(&self, card: &Arc<Card>) -> bool {
        Arc::ptr_eq(&self.region.card, card)
    }

    /// True for memory outside of the card: the host's, and other devices'.
    pub fn is_outside(&self) -> bool {
        matches!(self.region.source, Source::Host { .. } | Source::Foreign)
    }

    /// The host's view of it, where it is host memory.
    pub fn host_view(&self) -> Option<HostRange> {
        self.region.host_view()?.slice(self.start, self.length)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(share) = &self.share
            && let Some(heap) = share.heap.upgrade()
        {
            heap.give(&self.region, self.start, share.rounded);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_never_overlap_and_all_come_back(steps in prop::collection::vec((any::<bool>(), 1_u64..40), 1..200)) {
            let mut free = FreeRanges::all(512);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (take, number) in steps {
                if take || taken.is_empty() {
                    let room = free.ranges.values().copied().max().unwrap_or(0);
                    match free.take(number) {
                        Some(start) => {
                            prop_assert!(start + number <= 512);
                            for &(other, length) in &taken {
                                prop_assert!(start + number <= other || other + length <= start);
                            }
                            taken.push((start, number));
                        }
                        None => prop_assert!(room < number),
                    }
                } else {
                    let (start, length) = taken.swap_remove(usize::try_from(number).unwrap() % taken.len());
                    free.give(start, length);
                }
            }
            for (start, length) in taken {
                free.give(start, length);
            }
            prop_assert!(free.is_all(512));
        }
    }
}
