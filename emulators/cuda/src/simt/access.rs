// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory as threads see it.
//!
//! Memory of the device is shared with other launches, with copies and with the program. Each access is a relaxed
//! atomic one, so that a race is a wrong value, as on a device, and not undefined behaviour.

use super::{Fault, LANES, LOCAL_WINDOW, SHARED_WINDOW};
use crate::ptx::Kernel;
use crate::ptx::instruction::{Access, Space};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicI8, AtomicI16, AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed,
};

/// Contiguous memory that threads may access.
#[derive(Clone)]
pub struct Region {
    address: u64,
    size: u64,
    host: *mut u8,
    writable: bool,
    _keep: Option<Arc<dyn Any + Send + Sync>>,
}

impl Region {
    /// Memory of `size` bytes at `host`, which threads know by `address`.
    ///
    /// # Safety
    /// The memory is valid for reads, and writes if `writable`, for as long as the region or a copy of it exists;
    /// `keep` may see to that. It is accessed by others only with atomic operations, or with consent to races.
    #[must_use]
    pub unsafe fn new(
        address: u64,
        size: u64,
        host: *mut u8,
        writable: bool,
        keep: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Self {
        Self { address, size, host, writable, _keep: keep }
    }

    /// Where `bytes` at an address are, if they are all in here.
    #[inline(always)]
    fn at(&self, address: u64, bytes: u64, write: bool) -> Option<*mut u8> {
        let offset = address.wrapping_sub(self.address);
        let inside = offset <= self.size && bytes <= self.size - offset && (self.writable || !write);
        // An offset into memory that exists fits the host's addresses.
        #[expect(clippy::cast_possible_truncation, reason = "the rig runs on hosts with 64 bits")]
        inside.then(|| self.host.wrapping_add(offset as usize))
    }
}

/// The memory of a device.
pub trait Memory: Sync {
    /// The region that an address is in.
    fn find(&self, address: u64) -> Option<Region>;
}

/// What an address is, once it was checked.
pub(super) enum Place {
    Device(*mut u8),
    /// An offset into the block's memory or all lanes' local memory.
    Shared(usize),
    Local(usize),
}

/// The memory of the block that runs.
pub(super) struct View<'m> {
    memory: &'m dyn Memory,
    /// Regions that were found.
    regions: Vec<Region>,
    /// The region that each instruction accessed last.
    hints: Vec<u32>,
    shared: Vec<u8>,
    /// The bytes of shared memory in use.
    shared_bytes: u64,
    /// The bytes of local memory of each thread.
    local_bytes: u32,
}

impl<'m> View<'m> {
    pub(super) fn new(memory: &'m dyn Memory, kernel: &Kernel, shared_bytes: u32) -> Self {
        let shared = vec![0; shared_bytes as usize];
        Self {
            memory,
            regions: Vec::new(),
            hints: vec![0; kernel.code.len()],
            shared,
            shared_bytes: u64::from(shared_bytes),
            local_bytes: kernel.local_bytes,
        }
    }

    /// Fills shared memory with what nobody should rely on.
    pub(super) fn forget_shared(&mut self) {
        self.shared.fill(0xa5);
    }

    /// Checks an access, and says where it is.
    #[inline(always)]
    pub(super) fn place(
        &mut self,
        pc: usize,
        space: Space,
        (address, bytes): (u64, u64),
        write: bool,
        lane: usize,
    ) -> Result<Place, Fault> {
        let local_bytes = self.local_bytes;
        if address & (bytes - 1) != 0 {
            return Err(Fault::Misaligned { address, bytes });
        }
        let (space, offset) = match space {
            Space::Generic => match address & !0x0fff_ffff_ffff_ffff {
                SHARED_WINDOW => (Space::Shared, address - SHARED_WINDOW),
                LOCAL_WINDOW => (Space::Local, address - LOCAL_WINDOW),
                _ => (Space::Global, address),
            },
            other => (other, address),
        };
        let outside = Fault::Outside { address, bytes, write };
        let within = |size: u64| offset <= size && bytes <= size - offset;
        #[expect(clippy::cast_possible_truncation, reason = "both are below sizes that are small")]
        match space {
            Space::Shared if within(self.shared_bytes) => Ok(Place::Shared(offset as usize)),
            Space::Local if within(u64::from(local_bytes)) => {
                Ok(Place::Local(lane * local_bytes as usize + offset as usize))
            }
            Space::Shared | Space::Local => Err(outside),
            _ => self.device(pc, address, bytes, write).map(Place::Device).ok_or(outside),
        }
    }

    /// Where all lanes' bytes are, if they are in the region that an instruction accessed last.
    #[inline(always)]
    pub(super) fn hosts(
        &self,
        pc: usize,
        addresses: &[u64; LANES],
        bytes: u64,
        active: u32,
        write: bool,
    ) -> Option<Hosts> {
        let hint = self.hints.get(pc).copied().unwrap_or(0);
        let region = self.regions.get(hint as usize)?;
        if region.size < bytes || (write && !region.writable) {
            return None;
        }
        let (base, most) = (region.address, region.size - bytes);
        let mut offsets = [0; LANES];
        let mut outside = 0;
        for (lane, (offset, address)) in offsets.iter_mut().zip(addresses).enumerate() {
            *offset = address.wrapping_sub(base);
            let is_outside = *offset > most || address & (bytes - 1) != 0;
            outside |= u32::from(is_outside) << lane;
        }
        (outside & active == 0).then_some(Hosts { host: region.host, offsets })
    }

    #[inline(always)]
    fn device(&mut self, pc: usize, address: u64, bytes: u64, write: bool) -> Option<*mut u8> {
        let hint = self.hints.get(pc).copied().unwrap_or(0);
        let hinted = self.regions.get(hint as usize).and_then(|region| region.at(address, bytes, write));
        hinted.or_else(|| self.search(pc, address, bytes, write))
    }

    #[cold]
    #[inline(never)]
    fn search(&mut self, pc: usize, address: u64, bytes: u64, write: bool) -> Option<*mut u8> {
        let known = self.regions.iter().position(|region| region.at(address, bytes, write).is_some());
        let number = match known {
            Some(number) => number,
            None => {
                self.regions.push(self.memory.find(address)?);
                self.regions.len() - 1
            }
        };
        if let Some(hint) = self.hints.get_mut(pc) {
            *hint = u32::try_from(number).unwrap_or(0);
        }
        self.regions.get(number)?.at(address, bytes, write)
    }

    /// Reads 1, 2, 4 or 8 bytes, at some bytes behind a place that was checked with them.
    #[inline(always)]
    pub(super) fn read(&self, place: &Place, behind: usize, bytes: u8, local: &[u8]) -> u64 {
        match *place {
            // SAFETY: `place` was made by a check of all bytes of the access, aligned to them, and `behind` and
            // `bytes` are within it; the region is kept in `self.regions`.
            Place::Device(host) => unsafe { read(host.wrapping_add(behind), bytes) },
            Place::Shared(at) => from_bytes(&self.shared, at + behind, bytes),
            Place::Local(at) => from_bytes(local, at + behind, bytes),
        }
    }

    /// Writes 1, 2, 4 or 8 bytes, as `read` reads them.
    #[inline(always)]
    pub(super) fn write(&mut self, place: &Place, behind: usize, bytes: u8, value: u64, local: &mut [u8]) {
        match *place {
            // SAFETY: as in `read`; the check was for a write.
            Place::Device(host) => unsafe { write(host.wrapping_add(behind), bytes, value) },
            Place::Shared(at) => to_bytes(&mut self.shared, at + behind, bytes, value),
            Place::Local(at) => to_bytes(local, at + behind, bytes, value),
        }
    }

    /// Changes 2, 4 or 8 bytes in one step, and returns what was there.
    #[inline(always)]
    pub(super) fn update(
        &mut self,
        place: &Place,
        bytes: u8,
        local: &mut [u8],
        change: impl Fn(u64) -> u64,
    ) -> u64 {
        if let Place::Device(host) = *place {
            // SAFETY: as in `write`.
            return unsafe { update(host, bytes, change) };
        }
        let old = self.read(place, 0, bytes, local);
        self.write(place, 0, bytes, change(old), local);
        old
    }
}

/// # Safety
/// As many bytes at `host` can be read, and it is a multiple of them.
#[inline(always)]
unsafe fn read(host: *mut u8, bytes: u8) -> u64 {
    // SAFETY: the caller's promise; atomic, so that races are not undefined.
    unsafe {
        match bytes {
            1 => u64::from(AtomicU8::from_ptr(host).load(Relaxed)),
            2 => u64::from(AtomicU16::from_ptr(host.cast()).load(Relaxed)),
            4 => u64::from(AtomicU32::from_ptr(host.cast()).load(Relaxed)),
            _ => AtomicU64::from_ptr(host.cast()).load(Relaxed),
        }
    }
}

/// # Safety
/// As many bytes at `host` can be written, and it is a multiple of them.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the lower bytes are what is written")]
unsafe fn write(host: *mut u8, bytes: u8, value: u64) {
    // SAFETY: the caller's promise; atomic, so that races are not undefined.
    unsafe {
        match bytes {
            1 => AtomicU8::from_ptr(host).store(value as u8, Relaxed),
            2 => AtomicU16::from_ptr(host.cast()).store(value as u16, Relaxed),
            4 => AtomicU32::from_ptr(host.cast()).store(value as u32, Relaxed),
            _ => AtomicU64::from_ptr(host.cast()).store(value, Relaxed),
        }
    }
}

/// # Safety
/// As many bytes at `host` can be written, and it is a multiple of them.
#[expect(clippy::cast_possible_truncation, reason = "the lower bytes are what is written")]
unsafe fn update(host: *mut u8, bytes: u8, change: impl Fn(u64) -> u64) -> u64 {
    // SAFETY: the caller's promise; atomic, so that other launches do not come between.
    unsafe {
        match bytes {
            2 => {
                let it = AtomicU16::from_ptr(host.cast());
                let result = it.fetch_update(Relaxed, Relaxed, |old| Some(change(u64::from(old)) as u16));
                u64::from(result.unwrap_or_else(|old| old))
            }
            4 => {
                let it = AtomicU32::from_ptr(host.cast());
                let result = it.fetch_update(Relaxed, Relaxed, |old| Some(change(u64::from(old)) as u32));
                u64::from(result.unwrap_or_else(|old| old))
            }
            _ => {
                let it = AtomicU64::from_ptr(host.cast());
                it.fetch_update(Relaxed, Relaxed, |old| Some(change(old))).unwrap_or_else(|old| old)
            }
        }
    }
}

/// Where the bytes of each lane are on the host; of lanes that take no part, it may be anywhere.
pub(super) struct Hosts {
    host: *mut u8,
    offsets: [u64; LANES],
}

impl Hosts {
    /// Reads one part of each lane, extended as a register wants it.
    ///
    /// # Safety
    /// `behind` and the part's bytes are within what was checked for the lanes of `active`.
    #[inline(always)]
    pub(super) unsafe fn read(&self, behind: usize, access: Access, active: u32) -> [u64; LANES] {
        let mut values = [0; LANES];
        macro_rules! each {
            ($atomic:ty, $convert:expr) => {
                for (lane, value) in values.iter_mut().enumerate() {
                    if active >> lane & 1 == 1 {
                        // SAFETY: the caller's promise; atomic, so that races are not undefined.
                        let found = unsafe { <$atomic>::from_ptr(self.at(lane, behind).cast()) };
                        *value = $convert(found.load(Relaxed));
                    }
                }
            };
        }
        match (access.bytes, access.signed) {
            (4, false) => each!(AtomicU32, u64::from),
            (8, _) => each!(AtomicU64, |it| it),
            (1, false) => each!(AtomicU8, u64::from),
            (2, false) => each!(AtomicU16, u64::from),
            (1, true) => each!(AtomicI8, |it| i64::from(it).cast_unsigned()),
            (2, true) => each!(AtomicI16, |it| i64::from(it).cast_unsigned()),
            _ => each!(AtomicI32, |it| i64::from(it).cast_unsigned()),
        }
        values
    }

    /// Reads words of 32 bits, as `read` does.
    ///
    /// # Safety
    /// As for `read`.
    #[inline(always)]
    pub(super) unsafe fn read_words(&self, behind: usize, active: u32) -> [u32; LANES] {
        let mut values = [0; LANES];
        for (lane, value) in values.iter_mut().enumerate() {
            if active == !0 || active >> lane & 1 == 1 {
                // SAFETY: the caller's promise; atomic, so that races are not undefined.
                *value = unsafe { AtomicU32::from_ptr(self.at(lane, behind).cast()) }.load(Relaxed);
            }
        }
        values
    }

    /// Writes one part of each lane, in the order of the lanes.
    ///
    /// # Safety
    /// As for `read`; the check was for a write.
    #[inline(always)]
    pub(super) unsafe fn write(&self, behind: usize, access: Access, active: u32, values: &[u64; LANES]) {
        for (lane, value) in values.iter().enumerate() {
            if active >> lane & 1 == 1 {
                // SAFETY: the caller's promise.
                unsafe { write(self.at(lane, behind), access.bytes, *value) };
            }
        }
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the rig runs on hosts with 64 bits")]
    #[expect(clippy::indexing_slicing, reason = "a lane is below 32")]
    fn at(&self, lane: usize, behind: usize) -> *mut u8 {
        self.host.wrapping_add(self.offsets[lane] as usize + behind)
    }
}

#[inline(always)]
#[expect(clippy::indexing_slicing, reason = "the place was checked")]
fn from_bytes(memory: &[u8], at: usize, bytes: u8) -> u64 {
    let mut value = [0; 8];
    let bytes = usize::from(bytes);
    value[..bytes].copy_from_slice(&memory[at..at + bytes]);
    u64::from_le_bytes(value)
}

#[inline(always)]
#[expect(clippy::indexing_slicing, reason = "the place was checked")]
fn to_bytes(memory: &mut [u8], at: usize, bytes: u8, value: u64) {
    let bytes = usize::from(bytes);
    memory[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
}

/// The bytes of local memory of a warp.
pub(super) fn local_bytes(of_thread: u32) -> usize {
    of_thread as usize * LANES
}
