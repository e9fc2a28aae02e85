// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory: of the devices, and of the host as the devices see it.
//!
//! Addresses of a device's memory lie in a range that the host cannot access, and are used once: an address that was
//! freed is never anything else again. Memory of the host has the same address for the device.

use super::report::{Report, Rule};
use super::status::{Error, Outcome};
use crate::simt::{Memory, Region};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// How much of an address range is reserved for the devices' memory.
const RANGE: usize = 1 << 44;
/// What an address of device memory is a multiple of; also what lies at least between two allocations.
const ALIGNMENT: u64 = 512;
/// Up to how many bytes of new memory are filled with what nobody should rely on.
const FILL: usize = 1 << 20;

/// Which memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A device's.
    Device,
    /// A device's, from a pool with this handle.
    Pool(u64),
    /// A variable of a module.
    Global,
    /// The host's, allocated for the device.
    Host,
    /// The host's, registered.
    Registered,
    /// Both have it.
    Managed,
}

/// Whether memory can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Life {
    /// Its stream-ordered allocation has not happened.
    Pending,
    /// It can.
    Live,
    /// Not any more.
    Freed,
}

/// Bytes on the host that hold memory, and go with this.
struct Backing {
    host: *mut u8,
    size: usize,
}

// SAFETY: it is memory; who accesses it is up to `Region` and the copies.
unsafe impl Send for Backing {}
// SAFETY: as above.
unsafe impl Sync for Backing {}

impl Backing {
    fn new(size: usize) -> Outcome<Self> {
        // SAFETY: new memory at an address that the system chooses.
        let host = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), size, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
        };
        if host == libc::MAP_FAILED {
            return Err(Error::OUT_OF_MEMORY);
        }
        let host = host.cast::<u8>();
        // SAFETY: the mapping is at least as long.
        unsafe { host.write_bytes(0xa5, size.min(FILL)) };
        Ok(Self { host, size })
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made.
        unsafe { libc::munmap(self.host.cast(), self.size) };
    }
}

/// An allocation or registration.
pub struct Allocation {
    /// Where devices see it.
    pub address: u64,
    /// How many bytes it has.
    pub size: u64,
    /// Which memory it is.
    pub kind: Kind,
    /// The context that made it.
    pub context: u64,
    /// The device.
    pub device: i32,
    host: u64,
    /// Whether kernels may write it.
    pub writable: bool,
    life: AtomicU8,
    /// Whether its stream-ordered free was submitted.
    pub is_leaving: std::sync::atomic::AtomicBool,
    _backing: Option<Arc<Backing>>,
}

impl Allocation {
    /// Whether it can be used.
    pub fn life(&self) -> Life {
        match self.life.load(Relaxed) {
            0 => Life::Pending,
            1 => Life::Live,
            _ => Life::Freed,
        }
    }

    /// Changes whether it can be used.
    pub fn set_life(&self, life: Life) {
        self.life.store(life as u8, Relaxed);
    }

    /// Where its bytes are on the host.
    pub fn host(&self, address: u64) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(
            usize::try_from(self.host + (address - self.address)).unwrap_or(0),
        )
    }

    /// Whether the program can access it by its address.
    pub fn is_host(&self) -> bool {
        matches!(self.kind, Kind::Host | Kind::Registered | Kind::Managed)
    }
}

/// What an address is to a copy.
#[derive(Clone)]
pub enum Target {
    /// Memory that is known.
    Known(Arc<Allocation>, u64),
    /// Pageable memory of the host.
    Pageable(u64),
}

impl Target {
    /// Where the bytes are on the host, if they can be used now.
    pub fn host(&self, report: &Report) -> Result<*mut u8, Error> {
        match self {
            Self::Pageable(address) => {
                Ok(std::ptr::with_exposed_provenance_mut(usize::try_from(*address).unwrap_or(0)))
            }
            Self::Known(allocation, address) => match allocation.life() {
                Life::Live => Ok(allocation.host(*address)),
                Life::Pending => {
                    report.broken(Rule::UseBeforeAllocation, || format!("{address:#x}"));
                    Err(Error::ILLEGAL_ADDRESS)
                }
                Life::Freed => {
                    report.broken(Rule::UseAfterFree, || format!("{address:#x}"));
                    Err(Error::ILLEGAL_ADDRESS)
                }
            },
        }
    }

    /// Whether it is memory of a device alone.
    pub fn is_device(&self) -> bool {
        matches!(self, Self::Known(allocation, _) if !allocation.is_host())
    }

    /// Whether it is pageable memory.
    pub fn is_pageable(&self) -> bool {
        matches!(self, Self::Pageable(_))
    }
}

/// All memory.
pub struct Space {
    begin: u64,
    next: AtomicU64,
    known: RwLock<BTreeMap<u64, Arc<Allocation>>>,
    /// What was freed, by its address, with its size.
    freed: RwLock<BTreeMap<u64, u64>>,
}

/// What is to be allocated.
pub struct Wanted {
    pub(super) size: u64,
    pub(super) kind: Kind,
    pub(super) context: u64,
    pub(super) device: i32,
    pub(super) life: Life,
}

impl Space {
    /// The space; without addresses, if the process may not reserve so many.
    pub(super) fn new() -> Self {
        // SAFETY: a new range of addresses without access.
        let begin = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), RANGE, libc::PROT_NONE, flags, -1, 0)
        };
        let begin = if begin == libc::MAP_FAILED { 0 } else { begin.expose_provenance() as u64 };
        Self {
            begin,
            next: AtomicU64::new(begin + (1 << 21)),
            known: RwLock::default(),
            freed: RwLock::default(),
        }
    }

    /// Whether it has addresses for the devices' memory.
    pub(super) fn is_reserved(&self) -> bool {
        self.begin != 0
    }

    /// Whether an address is in the range of the devices' memory.
    pub fn is_device(&self, address: u64) -> bool {
        (self.begin..self.begin + RANGE as u64).contains(&address)
    }

    /// Allocates.
    pub(super) fn allocate(&self, wanted: &Wanted) -> Outcome<Arc<Allocation>> {
        let page = 4096;
        let size = usize::try_from(wanted.size).ok().and_then(|size| size.checked_next_multiple_of(page));
        let backing = Arc::new(Backing::new(size.ok_or(Error::OUT_OF_MEMORY)?)?);
        let host = backing.host.expose_provenance() as u64;
        let address = match wanted.kind {
            Kind::Host | Kind::Managed | Kind::Registered => host,
            _ => self.next.fetch_add(wanted.size.next_multiple_of(ALIGNMENT) + ALIGNMENT, Relaxed),
        };
        if self.is_device(address) != matches!(wanted.kind, Kind::Device | Kind::Pool(_) | Kind::Global) {
            return Err(Error::OUT_OF_MEMORY);
        }
        let allocation = Arc::new(Allocation {
            address,
            size: wanted.size,
            kind: wanted.kind,
            context: wanted.context,
            device: wanted.device,
            host,
            writable: true,
            life: AtomicU8::new(wanted.life as u8),
            is_leaving: false.into(),
            _backing: Some(backing),
        });
        self.known.write().insert(address, allocation.clone());
        Ok(allocation)
    }

    /// Registers memory of the host. Pages that are registered already are refused.
    pub(crate) fn register(
        &self,
        report: &Report,
        address: u64,
        size: u64,
        context: u64,
        device: i32,
        writable: bool,
    ) -> Outcome {
        let page = 4095;
        let end =
            address.checked_add(size).and_then(|end| end.checked_add(page)).ok_or(Error::INVALID_VALUE)?;
        let (begin, end) = (address & !page, end & !page);
        if !is_mapped(begin, end, writable) {
            return Err(Error::INVALID_VALUE);
        }
        let mut known = self.known.write();
        let before = known.range(..end).next_back();
        if let Some((_, other)) = before
            && ((other.address + other.size + page) & !page) > begin
            && other.is_host()
        {
            report.broken(Rule::Overlap, || {
                format!("{size} bytes at {address:#x}, beside {} at {:#x}", other.size, other.address)
            });
            return Err(Error::HOST_MEMORY_ALREADY_REGISTERED);
        }
        let allocation = Allocation {
            address,
            size,
            kind: Kind::Registered,
            context,
            device,
            host: address,
            writable,
            life: AtomicU8::new(Life::Live as u8),
            is_leaving: false.into(),
            _backing: None,
        };
        known.insert(address, Arc::new(allocation));
        Ok(())
    }

    /// Forgets memory that begins at an address.
    pub(super) fn remove(&self, address: u64) -> Option<Arc<Allocation>> {
        let found = self.known.write().remove(&address)?;
        found.set_life(Life::Freed);
        if self.is_device(address) {
            let mut freed = self.freed.write();
            freed.insert(address, found.size);
            if freed.len() > 4096 {
                freed.pop_first();
            }
        }
        Some(found)
    }

    /// The memory that an address is in.
    pub fn at(&self, address: u64) -> Option<Arc<Allocation>> {
        let known = self.known.read();
        let (_, found) = known.range(..=address).next_back()?;
        (address - found.address < found.size.max(1)).then(|| found.clone())
    }

    /// How many allocations and registrations there are.
    pub(super) fn count(&self) -> usize {
        self.known.read().len()
    }

    /// All memory of a context.
    pub(super) fn of_context(&self, context: u64) -> Vec<Arc<Allocation>> {
        self.known.read().values().filter(|it| it.context == context).cloned().collect()
    }

    /// Whether an address is of memory that was freed.
    pub fn was_freed(&self, address: u64) -> bool {
        let freed = self.freed.read();
        freed.range(..=address).next_back().is_some_and(|(begin, size)| address - begin < *size)
    }

    /// What a copy's side of some bytes is; they lie in one allocation or in none.
    pub(crate) fn target(&self, report: &Report, address: u64, size: u64) -> Outcome<Target> {
        let end = address.checked_add(size).ok_or(Error::INVALID_VALUE)?;
        let Some(found) = self.at(address) else {
            if self.is_device(address) && self.was_freed(address) {
                report.broken(Rule::UseAfterFree, || format!("{size} bytes at {address:#x}"));
            }
            // Memory is pageable as a whole, or not at all: the note on memory regions at `cuMemcpy`.
            let is_known_in_part = self.known.read().range(address..end).next().is_some();
            let is_wild = self.is_device(address) || address == 0 && size > 0 || is_known_in_part;
            return if is_wild { Err(Error::INVALID_VALUE) } else { Ok(Target::Pageable(address)) };
        };
        if found.is_leaving.load(Relaxed) {
            report.broken(Rule::UseAfterFree, || {
                format!("{size} bytes at {address:#x}, whose free was submitted before")
            });
            return Err(Error::INVALID_VALUE);
        }
        if end - found.address > found.size {
            return Err(Error::INVALID_VALUE);
        }
        Ok(Target::Known(found, address))
    }
}

/// True if the system lets this process read all pages of a range, and write them if that is asked for.
/// `cuMemHostRegister` takes memory that is read-only for the processor with `CU_MEMHOSTREGISTER_READ_ONLY` alone.
fn is_mapped(begin: u64, end: u64, writable: bool) -> bool {
    // Without a descriptor to look with, the range is believed: the card's driver needs none.
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return true };
    let mut at = begin;
    for line in maps.lines() {
        let (range, rest) = line.split_once(' ').unwrap_or_default();
        let mut bounds = range.split('-').map(|bound| u64::from_str_radix(bound, 16).unwrap_or(0));
        let (Some(first), Some(last)) = (bounds.next(), bounds.next()) else { continue };
        if last <= at {
            continue;
        }
        if first > at || !rest.starts_with(if writable { "rw" } else { "r" }) {
            return false;
        }
        at = last;
        if at >= end {
            return true;
        }
    }
    false
}

/// Memory as kernels of a launch see it.
pub(super) struct KernelView<'a> {
    pub(super) space: &'a Space,
    pub(super) report: &'a Report,
}

impl Memory for KernelView<'_> {
    fn find(&self, address: u64) -> Option<Region> {
        let Some(found) = self.space.at(address) else {
            if self.space.was_freed(address) {
                self.report.broken(Rule::UseAfterFree, || format!("a kernel's access at {address:#x}"));
            }
            return None;
        };
        match found.life() {
            Life::Live => {
                let host = found.host(found.address);
                let (address, size, writable) = (found.address, found.size, found.writable);
                // SAFETY: the allocation's memory, which it keeps; what is registered is the program's promise.
                Some(unsafe { Region::new(address, size, host, writable, Some(found)) })
            }
            Life::Pending => {
                let text = || format!("a kernel's access at {address:#x}");
                self.report.broken(Rule::UseBeforeAllocation, text);
                None
            }
            Life::Freed => None,
        }
    }
}
