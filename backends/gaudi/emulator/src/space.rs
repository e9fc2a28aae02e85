//! A context's device addresses: what is mapped where.

use hal_backend::HostRange;
use hal_emulation::Errno;
use hal_emulation::PAGE;
use rustix::fs::{FallocateFlags, SeekFrom};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What a mapping is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Memory that has its address from the beginning.
    Fixed,
    /// Device memory with this handle.
    Device(u64),
    /// Memory of the process.
    Host,
    /// A command buffer of the kernel.
    Buffer,
    /// Somebody else's dma-buf.
    Imported,
}

/// Addresses of the device that mean something.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// The exact first address, which is what ends the mapping.
    pub(crate) address: u64,
    pub(crate) memory: HostRange,
    pub(crate) what: What,
    /// The file that this is all of, where that is known.
    file: Option<Arc<OwnedFd>>,
}

impl Mapping {
    fn end(&self) -> u64 {
        self.address.saturating_add(self.memory.length())
    }
}

/// An area that addresses are given out of.
#[derive(Debug)]
struct Area {
    bounds: RangeInclusive<u64>,
    /// Where the last one ended. The next begins there, so that an address is not given out again soon, and using
    /// it after the end of its mapping is found out.
    cursor: u64,
}

impl Area {
    fn new(bounds: RangeInclusive<u64>) -> Self {
        Self { cursor: *bounds.start(), bounds }
    }
}

/// Which of the areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pool {
    Device,
    Host,
}

/// Everything that a context has mapped, in the order of addresses.
#[derive(Debug)]
pub(crate) struct Space {
    /// By the first page's address.
    mappings: BTreeMap<u64, Mapping>,
    device: Area,
    host: Area,
}

impl Space {
    pub(crate) fn new(device: RangeInclusive<u64>, host: RangeInclusive<u64>) -> Self {
        Self { mappings: BTreeMap::new(), device: Area::new(device), host: Area::new(host) }
    }

    /// Whether nothing is mapped in whole pages from here.
    fn is_free(&self, start: u64, length: u64) -> bool {
        let end = start.saturating_add(length);
        self.mappings.range(..end).next_back().is_none_or(|(_, last)| last.end() <= start)
    }

    /// Finds addresses for whole pages; nothing, if there are none left.
    fn find(&mut self, pool: Pool, length: u64) -> Option<u64> {
        let area = match pool {
            Pool::Device => &self.device,
            Pool::Host => &self.host,
        };
        let (first, last) = (*area.bounds.start(), *area.bounds.end());
        let fits = |start: u64| start.checked_add(length - 1).is_some_and(|end| end <= last);
        let cursor = area.cursor;
        let found = if fits(cursor) && self.is_free(cursor, length) {
            Some(cursor)
        } else {
            // The first hole that is large enough.
            let mut start = first;
            for (_, mapping) in self.mappings.range(first..=last) {
                if mapping.address / PAGE * PAGE >= start.saturating_add(length) {
                    break;
                }
                start = mapping.end().next_multiple_of(PAGE);
            }
            Some(start).filter(|&start| fits(start))
        };
        if let Some(start) = found {
            let area = match pool {
                Pool::Device => &mut self.device,
                Pool::Host => &mut self.host,
            };
            area.cursor = start + length;
        }
        found
    }

    /// Maps memory, `skip` bytes into a page, and says where: at a wanted address, or wherever there is room. Nothing, if
    /// there is none.
    pub(crate) fn map(
        &mut self,
        pool: Pool,
        memory: HostRange,
        skip: u64,
        wanted: Option<u64>,
        what: What,
    ) -> Option<u64> {
        let length = (skip + memory.length()).max(1).checked_next_multiple_of(PAGE)?;
        let start = match wanted {
            Some(wanted) => {
                let area = if pool == Pool::Device { &self.device } else { &self.host };
                let last = wanted.checked_add(length - 1)?;
                let inside = area.bounds.contains(&wanted) && area.bounds.contains(&last);
                Some(wanted).filter(|_| inside && wanted % PAGE == 0 && self.is_free(wanted, length))?
            }
            None => self.find(pool, length)?,
        };
        self.place(start + skip, memory, what);
        Some(start + skip)
    }

    /// Maps memory at an address that is known to be free.
    pub(crate) fn place(&mut self, address: u64, memory: HostRange, what: What) {
        self.mappings.insert(address / PAGE * PAGE, Mapping { address, memory, what, file: None });
    }

    /// Tells what file the memory of a mapping is, from its beginning.
    pub(crate) fn back(&mut self, address: u64, file: &Arc<OwnedFd>) {
        if let Some(mapping) = self.mappings.get_mut(&(address / PAGE * PAGE)) {
            mapping.file = Some(file.clone());
        }
    }

    /// The mapping with exactly this address.
    pub(crate) fn get(&self, address: u64) -> Option<&Mapping> {
        self.mappings.get(&(address / PAGE * PAGE)).filter(|mapping| mapping.address == address)
    }

    /// Ends the mapping with exactly this address.
    pub(crate) fn unmap(&mut self, address: u64) -> Option<Mapping> {
        self.get(address)?;
        self.mappings.remove(&(address / PAGE * PAGE))
    }

    /// How many mappings a program has made.
    pub(crate) fn mapped(&self) -> usize {
        self.mappings.values().filter(|mapping| mapping.what != What::Fixed).count()
    }

    /// Hands the memory behind a range of addresses to `each`, piece by piece, if all of them are mapped. Otherwise says
    /// which is the first that is not, and has handed out nothing.
    pub(crate) fn resolve(&self, address: u64, length: u64) -> Result<Vec<Piece>, u64> {
        let (mut at, mut rest) = (address, length);
        let mut pieces = Vec::with_capacity(1);
        while rest > 0 {
            let mapping = self.mappings.range(..=at).next_back().map(|(_, mapping)| mapping).ok_or(at)?;
            let offset = at.checked_sub(mapping.address).ok_or(at)?;
            let here = mapping.memory.length().saturating_sub(offset).min(rest);
            if here == 0 {
                return Err(at);
            }
            let memory = mapping.memory.slice(offset, here).ok_or(at)?;
            pieces.push(Piece {
                memory,
                host: matches!(mapping.what, What::Host | What::Buffer | What::Imported),
                file: mapping.file.clone().map(|file| (file, offset)),
            });
            at = at.wrapping_add(here);
            rest -= here;
        }
        Ok(pieces)
    }
}

/// Memory behind an address.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) memory: HostRange,
    /// Whether it is reached through the host's half of the address space.
    pub(crate) host: bool,
    /// The file that it is in, and where.
    pub(crate) file: Option<(Arc<OwnedFd>, u64)>,
}

impl Piece {
    /// Whether nothing was ever written to part of it, so that it is zeros without taking space.
    pub(crate) fn is_hole(&self, at: u64, length: u64) -> bool {
        let Some((file, offset)) = &self.file else { return false };
        let start = offset + at;
        match rustix::fs::seek(file, SeekFrom::Data(start)) {
            Ok(data) => data >= start + length,
            // There is no data from here on.
            Err(error) => error == Errno::NXIO,
        }
    }

    /// Makes part of it zeros that take no space. False, and nothing is done, if that cannot be.
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
        Space::new(0x10_0000..=0x1F_FFFF, 0x100_0000..=0x100_FFFF)
    }

    fn memory(length: u64) -> HostRange {
        HostRange::allocate(length, 8).unwrap()
    }

    #[test]
    fn an_access_may_go_on_in_the_next_mapping() {
        let mut space = space();
        let first = space.map(Pool::Host, memory(4096), 0, None, What::Host).unwrap();
        let second = space.map(Pool::Host, memory(4096), 0, None, What::Host).unwrap();
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
        let address = space.map(Pool::Host, memory(5000), 12, None, What::Host).unwrap();
        assert_eq!(address % 4096, 12);
        assert!(space.unmap(address - 12).is_none() && space.unmap(address + 4096).is_none());
        assert!(space.unmap(address).is_some() && space.unmap(address).is_none());
        assert_eq!(space.mapped(), 0);
    }

    #[test]
    fn wanted_addresses_are_had_if_they_are_free() {
        let mut space = space();
        let mut want = |address| space.map(Pool::Host, memory(8192), 0, Some(address), What::Host);
        assert_eq!(want(0x100_4000), Some(0x100_4000));
        assert_eq!((want(0x100_5000), want(0x100_3000), want(0x100_4800)), (None, None, None));
        assert_eq!((want(0x100_F000), want(0x10_0000)), (None, None), "outside of the area");
        assert_eq!(want(0x100_2000), Some(0x100_2000));
    }

    proptest! {
        #[test]
        fn mappings_never_overlap(steps in proptest::collection::vec((1_u64..20_000, 0_u64..4096, any::<bool>()), 1..60)) {
            let mut space = space();
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (length, skip, end) in steps {
                if end && !live.is_empty() {
                    let (address, _) = live.swap_remove(usize::try_from(length).unwrap() % live.len());
                    prop_assert!(space.unmap(address).is_some());
                } else if let Some(address) = space.map(Pool::Host, memory(length), skip, None, What::Host) {
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
