// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Addresses of the process behind which a program maps memory, and such memory.
//!
//! Reserved addresses are pages without access. Mapping replaces some of them by pages of a memory file, still without
//! access, which [`protect`](VirtualAddresses::protect) gives; unmapping puts the reservation back. The kernel does
//! each change in one call or not at all, so a refused call changes nothing. What is mapped is noted here as well:
//! work on other addresses would end the process, and is refused.

use crate::ffi::status::{Result, invalid};
use crate::memory::statistics::CountedBytes;
use hal_backend::HostRange;
use hal_backend::memory_file::{memory_file, no_memory_file};
use hal_semaphore::{Code, Failure};
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The bytes that the kernel allocates in one call, which a signal makes begin again.
const PIECE: u64 = 64 << 20;

/// Memory without an address. Each mapping keeps it.
pub(super) struct PhysicalMemory {
    file: OwnedFd,
    length: usize,
    _counted: CountedBytes,
}

impl PhysicalMemory {
    /// Allocates zeroed memory at once: a page that is missing later ends the process.
    pub(super) fn create(length: usize, counted: CountedBytes) -> Result<Arc<Self>> {
        let size = length as u64;
        let refused = |errno| no_memory_file(size, errno);
        let file = memory_file("iree-hal-physical-memory", size).map_err(refused)?;
        for begin in (0..size).step_by(usize::try_from(PIECE).unwrap_or(usize::MAX)) {
            let piece = PIECE.min(size - begin);
            let allocate = || rustix::fs::fallocate(&file, FallocateFlags::empty(), begin, piece);
            rustix::io::retry_on_intr(allocate).map_err(refused)?;
        }
        Ok(Arc::new(Self { file, length, _counted: counted }))
    }
}

/// What may be done with mapped memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Protection {
    None,
    Read,
    ReadWrite,
}

impl Protection {
    fn flags(self) -> MprotectFlags {
        match self {
            Self::None => MprotectFlags::empty(),
            Self::Read => MprotectFlags::READ,
            Self::ReadWrite => MprotectFlags::READ | MprotectFlags::WRITE,
        }
    }
}

/// Memory behind some addresses.
#[derive(Clone)]
struct Mapping {
    end: usize,
    /// Kept as long as it is mapped.
    _physical: Arc<PhysicalMemory>,
    protection: Protection,
}

/// Reserved addresses.
///
/// # Invariants
///
/// `length` bytes of addresses from `start` on are this one's until it is dropped, when no user is left. `mappings`
/// has what is mapped there, by its offset; everything else has no access.
pub(crate) struct VirtualAddresses {
    start: *mut c_void,
    length: usize,
    mappings: Mutex<BTreeMap<usize, Mapping>>,
}

// SAFETY: the addresses stay, and any thread may use them; changes are made under the lock.
unsafe impl Send for VirtualAddresses {}
// SAFETY: as for `Send`.
unsafe impl Sync for VirtualAddresses {}

impl Drop for VirtualAddresses {
    fn drop(&mut self) {
        // SAFETY: this one's addresses, by the invariant, which nobody uses any more.
        let unmapped = unsafe { rustix::mm::munmap(self.start, self.length) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

impl VirtualAddresses {
    /// The size of a page.
    pub(super) fn page() -> usize {
        // SAFETY: a question that changes nothing.
        usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
    }

    /// Reserves addresses.
    pub(super) fn reserve(length: usize) -> Result<Arc<Self>> {
        let refused = |errno| {
            let message = format!(
                "no {length} bytes of addresses can be reserved: {errno}; release some, or raise their limit (ulimit \
                 -v)"
            );
            Failure::new(Code::ResourceExhausted, message)
        };
        // SAFETY: the kernel chooses an address where nothing is mapped.
        let start =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::empty(), RESERVED) };
        Ok(Arc::new(Self { start: start.map_err(refused)?, length, mappings: Mutex::default() }))
    }

    /// All addresses, as memory that keeps this.
    pub(super) fn range(self: &Arc<Self>) -> HostRange {
        // SAFETY: the addresses stay as long as the owner. Work on those that have no memory is refused by `check`.
        unsafe { HostRange::from_raw(self.start.cast(), self.length, Some(self.clone())) }
    }

    /// True if memory is mapped anywhere.
    pub(super) fn is_mapped(&self) -> bool {
        !self.mappings.lock().is_empty()
    }

    /// Whole pages inside `length` bytes.
    fn pages(offset: usize, size: usize, length: usize, of: &str) -> Result<Range<usize>> {
        let page = Self::page();
        if size == 0 || !offset.is_multiple_of(page) || !size.is_multiple_of(page) {
            let message = format!("{size} bytes at {offset} of {of} are not whole pages of {page} bytes");
            return Err(invalid(message));
        }
        Self::inside(offset, size, length, of)
    }

    fn inside(offset: usize, size: usize, length: usize, of: &str) -> Result<Range<usize>> {
        let end = offset.checked_add(size).filter(|&end| end <= length);
        end.map(|end| offset..end).ok_or_else(|| {
            let message = format!("{size} bytes at {offset} are not inside {of} of {length} bytes");
            Failure::new(Code::OutOfRange, message)
        })
    }

    fn at(&self, offset: usize) -> *mut c_void {
        self.start.wrapping_byte_add(offset)
    }

    /// Maps pages of memory where none is mapped. They have no access yet.
    pub(super) fn map(
        &self,
        offset: usize,
        physical: &Arc<PhysicalMemory>,
        from: usize,
        size: usize,
    ) -> Result {
        let range = Self::pages(offset, size, self.length, RESERVATION)?;
        Self::pages(from, size, physical.length, "physical memory")?;
        let mut mappings = self.mappings.lock();
        if let Some((begin, mapping)) = overlapping(&mappings, &range).next() {
            let message = format!(
                "bytes {begin} to {} of the reservation have memory already; unmap them first",
                mapping.end
            );
            return Err(Failure::new(Code::FailedPrecondition, message));
        }
        let _room = Room::beside(&mappings).map_err(|errno| unchanged("mapped", size, errno))?;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: this one's pages, where nothing is mapped; the file is as long as the memory.
        let mapped = unsafe {
            rustix::mm::mmap(self.at(offset), size, ProtFlags::empty(), flags, &physical.file, from as u64)
        };
        if let Err(errno) = mapped {
            self.keep_reserved(&range);
            return Err(unchanged("mapped", size, errno));
        }
        let mapping = Mapping { end: range.end, _physical: physical.clone(), protection: Protection::None };
        mappings.insert(offset, mapping);
        Ok(())
    }

    /// Unmaps pages that are all mapped.
    pub(super) fn unmap(&self, offset: usize, size: usize) -> Result {
        let range = Self::pages(offset, size, self.length, RESERVATION)?;
        let mut mappings = self.mappings.lock();
        covered(&mappings, &range)?;
        let flags = RESERVED | MapFlags::FIXED;
        // SAFETY: this one's pages; the program unmaps nothing that is in use.
        let unmapped =
            unsafe { rustix::mm::mmap_anonymous(self.at(offset), size, ProtFlags::empty(), flags) };
        unmapped.map_err(|errno| unchanged("unmapped", size, errno))?;
        split(&mut mappings, &range);
        mappings.retain(|begin, _| !range.contains(begin));
        Ok(())
    }

    /// Sets what may be done with pages that are all mapped.
    pub(super) fn protect(&self, offset: usize, size: usize, protection: Protection) -> Result {
        let range = Self::pages(offset, size, self.length, RESERVATION)?;
        let mut mappings = self.mappings.lock();
        covered(&mappings, &range)?;
        let _room = Room::beside(&mappings).map_err(|errno| unchanged("protected", size, errno))?;
        // SAFETY: this one's pages, which all have memory; the program takes no access from work that has it.
        let set = |at: usize, size, protection: Protection| unsafe {
            rustix::mm::mprotect(self.at(at), size, protection.flags())
        };
        if let Err(errno) = set(offset, size, protection) {
            // The kernel may have begun.
            for (begin, mapping) in overlapping(&mappings, &range) {
                let begin = begin.max(range.start);
                let _ = set(begin, mapping.end.min(range.end) - begin, mapping.protection);
            }
            return Err(unchanged("protected", size, errno));
        }
        split(&mut mappings, &range);
        mappings.range_mut(range).for_each(|(_, mapping)| mapping.protection = protection);
        Ok(())
    }

    /// Advises the kernel about the whole pages of some bytes. The bytes stay the same.
    pub(super) fn advise(&self, offset: usize, size: usize, advice: Advice) -> Result {
        let range = Self::inside(offset, size, self.length, RESERVATION)?;
        let page = Self::page();
        let (begin, end) = (range.start.next_multiple_of(page), range.end - range.end % page);
        if begin < end {
            // SAFETY: this one's pages; the advice changes no byte of shared memory, and it is none of the reserved.
            let _ = unsafe { rustix::mm::madvise(self.at(begin), end - begin, advice) };
        }
        Ok(())
    }

    /// Checks that bytes may be read, and written if asked.
    #[cold]
    pub(super) fn check(&self, offset: u64, length: u64, writes: bool) -> Result {
        let (Ok(offset), Ok(length)) = (usize::try_from(offset), usize::try_from(length)) else {
            return Err(invalid("more bytes than there are addresses"));
        };
        if length == 0 {
            return Ok(());
        }
        let range = Self::inside(offset, length, self.length, RESERVATION)?;
        let mappings = self.mappings.lock();
        covered(&mappings, &range)?;
        let allows = |protection| match protection {
            Protection::None => false,
            Protection::Read => !writes,
            Protection::ReadWrite => true,
        };
        match overlapping(&mappings, &range).find(|(_, mapping)| !allows(mapping.protection)) {
            None => Ok(()),
            Some((begin, mapping)) => {
                let (what, bit) = if writes { ("written", "READ_WRITE") } else { ("read", "READ") };
                let message = format!(
                    "bytes {begin} to {} of the reservation may not be {what}; \
                     iree_hal_allocator_virtual_memory_protect with IREE_HAL_MEMORY_PROTECTION_{bit} allows it",
                    mapping.end
                );
                Err(Failure::new(Code::PermissionDenied, message))
            }
        }
    }

    /// A mapping that fails may have taken the reservation away: nothing else may come there.
    #[cold]
    fn keep_reserved(&self, range: &Range<usize>) {
        let flags = RESERVED | MapFlags::FIXED_NOREPLACE;
        // SAFETY: replaces nothing.
        let _ = unsafe {
            rustix::mm::mmap_anonymous(
                self.at(range.start),
                range.end - range.start,
                ProtFlags::empty(),
                flags,
            )
        };
    }
}

/// Mappings of the process that are kept free for a moment. A process has a limited number of them, and where it is
/// reached the kernel unmaps nothing and allocators get no memory: a change that would come near it is refused.
///
/// # Invariants
///
/// `PAGES` pages are mapped here, which nobody uses.
struct Room(*mut c_void);

impl Room {
    const PAGES: usize = 128;

    /// So many mappings of a reservation are no reason to look for the limit.
    const FEW: usize = 256;

    fn beside(mappings: &BTreeMap<usize, Mapping>) -> std::result::Result<Option<Self>, Errno> {
        if mappings.len() < Self::FEW {
            return Ok(None);
        }
        let page = VirtualAddresses::page();
        // SAFETY: the kernel chooses an address where nothing is mapped.
        let start = unsafe {
            let (nowhere, size) = (std::ptr::null_mut(), Self::PAGES * page);
            rustix::mm::mmap_anonymous(nowhere, size, ProtFlags::empty(), RESERVED)?
        };
        let room = Self(start);
        // With another access than its neighbours', each second one is a mapping of its own.
        for number in (1..Self::PAGES).step_by(2) {
            // SAFETY: one of the new pages.
            unsafe {
                rustix::mm::mprotect(start.wrapping_byte_add(number * page), page, MprotectFlags::READ)?
            };
        }
        Ok(Some(room))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // SAFETY: nobody uses the pages, by the invariant.
        let _ = unsafe { rustix::mm::munmap(self.0, Self::PAGES * VirtualAddresses::page()) };
    }
}

const RESERVATION: &str = "a reservation";

/// Pages that are only reserved.
const RESERVED: MapFlags = MapFlags::PRIVATE.union(MapFlags::NORESERVE);

/// The mappings that have bytes of a range, in order.
fn overlapping<'a>(
    mappings: &'a BTreeMap<usize, Mapping>,
    range: &Range<usize>,
) -> impl Iterator<Item = (usize, &'a Mapping)> {
    let before = mappings.range(..range.start).next_back().filter(|(_, mapping)| mapping.end > range.start);
    before.into_iter().chain(mappings.range(range.clone())).map(|(&begin, mapping)| (begin, mapping))
}

/// Checks that every byte of a range is mapped.
fn covered(mappings: &BTreeMap<usize, Mapping>, range: &Range<usize>) -> Result {
    let mut at = range.start;
    for (begin, mapping) in overlapping(mappings, range) {
        if begin > at {
            break;
        }
        at = mapping.end;
    }
    if at >= range.end {
        return Ok(());
    }
    let message = format!("byte {at} of the reservation has no memory; map some there first");
    Err(Failure::new(Code::FailedPrecondition, message))
}

/// Divides mappings where a range begins and ends.
fn split(mappings: &mut BTreeMap<usize, Mapping>, range: &Range<usize>) {
    for at in [range.start, range.end] {
        let Some((_, before)) = mappings.range_mut(..at).next_back() else { continue };
        if before.end > at {
            let behind = before.clone();
            before.end = at;
            mappings.insert(at, behind);
        }
    }
}

/// The failure of a change that the kernel refused.
fn unchanged(what: &str, size: usize, errno: Errno) -> Failure {
    let message = format!(
        "{size} bytes of the reservation cannot be {what}: {errno}; a process has a limited number of mappings \
         (vm.max_map_count) and of memory (ulimit -v)"
    );
    Failure::new(Code::ResourceExhausted, message)
}
