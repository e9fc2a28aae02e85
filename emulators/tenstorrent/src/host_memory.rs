// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory of the host that a card may reach: buffers of the driver, and pages of a process.
//!
//! The driver finds an address for each, as behind an IOMMU, which makes scattered pages one range. A card's network
//! reaches a range through a region of the bridge's translation, of which there are few.

use crate::machine::{Card, Machine, OpenFile};
use emulator_chip::{BLACKHOLE, Family};
use emulator_core::file::Identity;
use emulator_core::{Errno, PAGE, Process};
use hal_backend::HostRange;
use hal_tenstorrent_abi::uapi;
use std::collections::BTreeMap;

/// The largest buffer of the driver, as a power of two (`MAX_DMA_BUF_SIZE_LOG2`).
pub(crate) const MOST_LOG2: u16 = 28;

/// Where buffers are in a card's file, and how far apart (`MMAP_OFFSET_DMA_BUF`, `MMAP_SIZE_DMA_BUF`).
const BUFFERS: u64 = (PAGE - 256) << 32;
const BUFFERS_APART: u64 = 1 << 32;

/// How many regions a bridge has (`TENSTORRENT_MAX_OUTBOUND_IATU_REGIONS`).
const REGIONS: usize = 16;

/// The first address for the card.
const FIRST: u64 = 0x1_0000_0000;

/// A region of the bridge's translation.
#[derive(Clone, Copy, Debug)]
struct Region {
    file: Identity,
    base: u64,
    limit: u64,
}

/// The regions of a card's bridge, and the addresses that were given out.
#[derive(Debug)]
pub(crate) struct OutboundRegions {
    regions: [Option<Region>; REGIONS],
    next: u64,
}

impl Default for OutboundRegions {
    fn default() -> Self {
        Self { regions: [None; REGIONS], next: FIRST }
    }
}

/// The last address that the network reaches of the host, and where it begins (`noc_dma_limit`, `noc_pcie_offset`).
fn network(family: &Family) -> (u64, u64) {
    if *family == BLACKHOLE { ((1 << 58) - 1, 4 << 58) } else { (0xfffe_0000 - 1, 0x8_0000_0000) }
}

impl OutboundRegions {
    /// Ends the regions of a file.
    pub(crate) fn release(&mut self, file: Identity) {
        self.retain(|region| region.file != file);
    }

    /// Ends the regions of every file but one.
    pub(crate) fn release_all_but(&mut self, file: Option<Identity>) {
        self.retain(|region| Some(region.file) == file);
    }

    fn retain(&mut self, keep: impl Fn(&Region) -> bool) {
        for region in &mut self.regions {
            *region = region.filter(&keep);
        }
    }

    /// An address of a range for the card; none is used twice.
    fn address(&mut self, size: u64) -> u64 {
        let address = self.next;
        self.next += size.next_multiple_of(PAGE) + PAGE;
        address
    }

    /// Makes a range reachable for the network (`setup_noc_dma`): the region's number, and its address there.
    fn set_up(
        &mut self,
        family: &Family,
        file: Identity,
        size: u64,
        top_down: bool,
    ) -> Result<(usize, u64), Errno> {
        let (last, offset) = network(family);
        let base = self.gap(size, last, top_down).ok_or(Errno::NOMEM)?;
        let free = self.regions.iter().position(Option::is_none).ok_or(Errno::NOSPC)?;
        if let Some(place) = self.regions.get_mut(free) {
            *place = Some(Region { file, base, limit: base + size - 1 });
        }
        Ok((free, offset.wrapping_add(base)))
    }

    /// The lowest or highest free range up to `last` (`find_iatu_region_bottom_up`, `…_top_down`).
    fn gap(&self, size: u64, last: u64, top_down: bool) -> Option<u64> {
        let mut used: Vec<Region> = self.regions.iter().copied().flatten().collect();
        used.sort_unstable_by_key(|region| region.base);
        let starts = std::iter::once(0).chain(used.iter().map(|region| region.limit + 1));
        let ends = used.iter().map(|region| region.base).chain(std::iter::once(last + 1));
        let mut gaps = starts.zip(ends).filter(|(start, end)| end.saturating_sub(*start) >= size);
        if top_down { gaps.last().map(|(_, end)| end - size) } else { gaps.next().map(|(start, _)| start) }
    }
}

/// A buffer of the driver.
#[derive(Debug)]
struct DmaBuffer {
    memory: HostRange,
}

/// Pinned pages of a process.
#[derive(Debug)]
struct PinnedPages {
    address: u64,
    size: u64,
    region: Option<usize>,
    #[expect(dead_code, reason = "it keeps the pages")]
    memory: HostRange,
}

/// The memory that a file has made reachable.
#[derive(Debug, Default)]
pub(crate) struct HostMemory {
    buffers: BTreeMap<u8, DmaBuffer>,
    pinned: Vec<PinnedPages>,
}

impl HostMemory {
    /// The buffer at an offset of the file, if it has so many bytes (`vma_dmabuf_target`).
    pub(crate) fn at(&self, offset: u64, length: u64) -> Option<HostRange> {
        let index = u8::try_from(offset.checked_sub(BUFFERS)? / BUFFERS_APART).ok()?;
        self.buffers.get(&index)?.memory.slice(offset % BUFFERS_APART, length)
    }
}

/// `ioctl_allocate_dma_buf`
pub(crate) fn allocate(
    (card, file, identity): (&mut Card, &mut OpenFile, Identity),
    memory: impl FnOnce(u64, u64) -> Result<HostRange, Errno>,
    input: &uapi::AllocateDmaBuf,
) -> Result<uapi::AllocateDmaBuf, Errno> {
    let size = u64::from(input.requested_size);
    let fits = size.is_multiple_of(PAGE) && size != 0 && size <= 1 << MOST_LOG2;
    if !fits || file.memory.buffers.contains_key(&input.buf_index) {
        return Err(Errno::INVAL);
    }
    let offset = BUFFERS + u64::from(input.buf_index) * BUFFERS_APART;
    let memory = memory(offset, size)?;
    let noc_address = if input.flags & uapi::dma::NOC == 0 {
        0
    } else {
        card.regions.set_up(card.board.chip.family(), identity, size, true)?.1
    };
    file.memory.buffers.insert(input.buf_index, DmaBuffer { memory });
    Ok(uapi::AllocateDmaBuf {
        physical_address: card.regions.address(size),
        mapping_offset: offset,
        size: input.requested_size,
        reserved0: 0,
        noc_address,
        reserved1: 0,
        ..*input
    })
}

/// `ioctl_pin_pages`, behind an IOMMU: the pages need not follow each other.
pub(crate) fn pin(
    (card, file, identity): (&mut Card, &mut OpenFile, Identity),
    process: &dyn Process,
    input: &uapi::PinPages,
    read_only: bool,
) -> Result<uapi::PinPages, Errno> {
    let known = uapi::pin::CONTIGUOUS | uapi::pin::NOC | uapi::pin::NOC_TOP_DOWN;
    let known = if read_only { known | uapi::pin::READ_ONLY } else { known };
    let (address, size) = (input.virtual_address, input.size);
    if input.flags & !known != 0 || !address.is_multiple_of(PAGE) || !size.is_multiple_of(PAGE) || size == 0 {
        return Err(Errno::INVAL);
    }
    if file.memory.pinned.iter().any(|pinned| (pinned.address, pinned.size) == (address, size)) {
        return Err(Errno::EXIST);
    }
    // Only the first of some pages is there.
    let memory = process
        .pin(address, size)
        .map_err(|errno| if errno == Errno::NOMEM { Errno::INVAL } else { errno })?;
    let top_down = input.flags & uapi::pin::NOC_TOP_DOWN != 0;
    let region = if input.flags & (uapi::pin::NOC | uapi::pin::NOC_TOP_DOWN) == 0 {
        None
    } else {
        Some(card.regions.set_up(card.board.chip.family(), identity, size, top_down)?)
    };
    file.memory.pinned.push(PinnedPages { address, size, region: region.map(|(number, _)| number), memory });
    Ok(uapi::PinPages {
        physical_address: card.regions.address(size),
        noc_address: region.map_or(0, |(_, address)| address),
        ..*input
    })
}

/// `ioctl_unpin_pages`
pub(crate) fn unpin(card: &mut Card, file: &mut OpenFile, input: &uapi::UnpinPages) -> Result<(), Errno> {
    let pages = input.size / PAGE;
    if input.reserved != 0 || pages == 0 {
        return Err(Errno::INVAL);
    }
    let pinned = &mut file.memory.pinned;
    let place =
        pinned.iter().position(|pinned| pinned.address == input.virtual_address).ok_or(Errno::INVAL)?;
    if pinned.get(place).is_none_or(|pinned| pinned.size / PAGE != pages) {
        return Err(Errno::INVAL);
    }
    let region = pinned.remove(place).region;
    if let Some(place) = region.and_then(|number| card.regions.regions.get_mut(number)) {
        *place = None;
    }
    Ok(())
}

/// `ioctl_map_peer_bar`: part of another card's region, for this one.
pub(crate) fn map_peer(
    card: &mut Card,
    (own, peer): (usize, usize),
    input: &uapi::MapPeerBar,
) -> Result<uapi::MapPeerBar, Errno> {
    if peer == own {
        return Err(Errno::INVAL);
    }
    // All cards of a machine are of one kind.
    let regions = card.board.chip.family().regions;
    let region = match input.peer_bar_index {
        index @ (0 | 2 | 4) => regions.get(index as usize / 2).copied().unwrap_or_default(),
        _ => 0,
    };
    let (offset, length) = (u64::from(input.peer_bar_offset), u64::from(input.peer_bar_length));
    if offset >= region || length > region - offset {
        return Err(Errno::INVAL);
    }
    Ok(uapi::MapPeerBar { dma_address: card.regions.address(length), reserved: 0, ..*input })
}

impl Machine {
    /// The memory of a buffer at an offset of a file.
    pub(crate) fn buffer_at(&self, file: Identity, length: u64, offset: u64) -> Result<HostRange, Errno> {
        let state = self.lock();
        let open = state.open.get(&file).ok_or(Errno::NOTTY)?;
        let card = &state.cards[open.card];
        if card.detached || card.resets != open.resets {
            return Err(Errno::NODEV);
        }
        open.memory.at(offset, length).ok_or(Errno::INVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_found_from_either_end_and_between_others() {
        let mut regions = OutboundRegions::default();
        let set_up = |regions: &mut OutboundRegions, file, size, top_down| {
            regions.set_up(&BLACKHOLE, (0, file), size, top_down).map(|(_, address)| address - (4 << 58))
        };
        assert_eq!(set_up(&mut regions, 1, 0x1000, false), Ok(0));
        assert_eq!(set_up(&mut regions, 2, 0x2000, false), Ok(0x1000));
        assert_eq!(set_up(&mut regions, 1, 0x1000, true), Ok((1 << 58) - 0x1000));
        assert_eq!(set_up(&mut regions, 1, 1 << 58, false), Err(Errno::NOMEM));
        regions.release((0, 2));
        assert_eq!(set_up(&mut regions, 1, 0x2000, false), Ok(0x1000));
        for _ in 3..REGIONS {
            assert!(set_up(&mut regions, 1, 0x1000, true).is_ok());
        }
        assert_eq!(set_up(&mut regions, 1, 0x1000, true), Err(Errno::NOSPC));
    }
}
