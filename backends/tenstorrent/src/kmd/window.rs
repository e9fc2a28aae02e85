// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Windows into a card's network.
//!
//! Every access of the host to a card goes through a window, which shows a piece of one tile's address space:
//! registers, memory of a tile, a DRAM bank. A card has few, and shares them with other programs. A Blackhole's
//! window of 4 GiB shows all of a bank, so with one for each bank nothing has to be pointed anew; a Wormhole's has 16
//! MiB. There may be none. Any number of small windows (2 MiB; of a Wormhole 1 MiB) from one on will do for
//! everything else: what is shown where is decided by the place alone, and a window that shows something else is
//! pointed anew.

use super::error::Error;
use super::grid::Coordinates;
use hal_backend::{Code, Failure};
use hal_kernel::{CardFile, DeviceRange, Errno};
use hal_tenstorrent_abi::{CallError, Calls, Ordering, Target, Tlb, Window as Pointing};
use parking_lot::Mutex;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

fn map(file: &CardFile, length: u64, offset: u64) -> Result<Arc<dyn DeviceRange>, Errno> {
    file.map_device(usize::try_from(length).map_err(|_| Errno::NOMEM)?, offset)
}

/// How many small windows are asked for: for the memory and the registers of a few tiles, and to leave some to others.
const WANTED: usize = 32;

/// A window, mapped.
#[derive(Debug)]
struct Window {
    tlb: Tlb,
    range: Arc<dyn DeviceRange>,
    shows: Option<(Coordinates, u64)>,
}

/// The windows of an open card. Several threads may use them.
#[derive(Debug)]
pub(crate) struct Windows {
    calls: Calls<CardFile>,
    /// How long the windows of the two kinds are.
    lengths: (u64, u64),
    small: Vec<Mutex<Window>>,
    /// One for each bank, or none at all.
    large: Vec<(Coordinates, Mutex<Window>)>,
}

impl Windows {
    /// Takes as many small windows as there are, at least one. `lengths` are those of a small one and of a large one.
    pub(crate) fn new(calls: Calls<CardFile>, lengths: (u64, u64)) -> Result<Self, Error> {
        let mut small = Vec::new();
        while small.len() < WANTED {
            match Self::take(&calls, lengths.0) {
                Ok(window) => small.push(Mutex::new(window)),
                Err(Error::Refused(CallError::Refused { errno: Errno::NOMEM, .. })) if !small.is_empty() => {
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Self { calls, lengths, small, large: Vec::new() })
    }

    /// Takes a large window for each bank, if there are as many.
    pub(crate) fn add_banks(&mut self, banks: &[Coordinates]) -> Result<(), Error> {
        let mut large = Vec::new();
        for &bank in banks {
            match Self::take(&self.calls, self.lengths.1) {
                Ok(window) => large.push((bank, Mutex::new(window))),
                // The bridge shows none, or others have them.
                Err(Error::Refused(CallError::Refused { errno: Errno::NOMEM | Errno::INVAL, .. })) => {
                    return large.into_iter().try_for_each(|(_, window)| self.free(window.into_inner()));
                }
                Err(error) => return Err(error),
            }
        }
        self.large = large;
        Ok(())
    }

    fn take(calls: &Calls<CardFile>, length: u64) -> Result<Window, Error> {
        let tlb = calls.allocate_window(length)?;
        // Uncached: what is written is on its way when the access is over, in order.
        match map(calls.file(), length, tlb.uncached_offset) {
            Ok(range) => Ok(Window { tlb, range, shows: None }),
            Err(errno) => {
                // The error of the mapping is the one that matters.
                let _ = calls.free_window(tlb);
                let message = format!("a window of {length} bytes cannot be mapped: {errno}");
                Err(Error::Other(Failure::new(Code::ResourceExhausted, message)))
            }
        }
    }

    fn free(&self, window: Window) -> Result<(), Error> {
        drop(window.range);
        Ok(self.calls.free_window(window.tlb)?)
    }

    /// The card's calls.
    pub(crate) fn calls(&self) -> &Calls<CardFile> {
        &self.calls
    }

    /// How many windows of each kind there are.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.small.len(), self.large.len())
    }

    /// Reads from a place on the network.
    pub(crate) fn read(&self, place: Coordinates, address: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let mut rest = bytes;
        let mut at = address;
        while !rest.is_empty() {
            let now = self.show(place, at, rest.len(), |range, offset, length| {
                #[expect(clippy::indexing_slicing, reason = "`show` gives not more than was asked for")]
                range.read(offset, &mut rest[..length])
            })?;
            #[expect(clippy::indexing_slicing, reason = "`show` gives not more than was asked for")]
            let behind = &mut rest[now..];
            rest = behind;
            at += now as u64;
        }
        Ok(())
    }

    /// Writes to a place on the network.
    pub(crate) fn write(&self, place: Coordinates, address: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut rest = bytes;
        let mut at = address;
        while !rest.is_empty() {
            let now = self.show(place, at, rest.len(), |range, offset, length| {
                #[expect(clippy::indexing_slicing, reason = "`show` gives not more than was asked for")]
                range.write(offset, &rest[..length])
            })?;
            #[expect(clippy::indexing_slicing, reason = "`show` gives not more than was asked for")]
            let behind = &rest[now..];
            rest = behind;
            at += now as u64;
        }
        Ok(())
    }

    /// The most bytes that a window shows to other devices: a bank's own, if there are such.
    pub(crate) fn most_to_lend(&self) -> u64 {
        if self.large.is_empty() { self.lengths.0 } else { self.lengths.1 }
    }

    /// The size of the window that shows so many bytes to other devices: a small one, if it can.
    pub(crate) fn to_lend(&self, length: u64) -> Option<u64> {
        let most = self.most_to_lend();
        [self.lengths.0, most].into_iter().find(|&size| length <= size)
    }

    /// A dma-buf of a part of a bank, which is in one window of the [size](Self::to_lend) for it.
    ///
    /// The window is one that shows nothing else, and is the dma-buf's alone when this returns; the kernel frees it
    /// when the last descriptor and the last mapping of the dma-buf are gone. Where a bank's own window shows all of
    /// the bank it never shows anything else, and a large part is lent through it, as there may be no other one.
    pub(crate) fn lend(
        &self,
        bank: Coordinates,
        address: u64,
        length: u64,
        bank_bytes: u64,
    ) -> Result<OwnedFd, Error> {
        let size = self.to_lend(length).unwrap_or(self.lengths.1);
        let base = address - address % size;
        let own = self.large.iter().find(|(place, _)| *place == bank && size >= bank_bytes);
        let export = |tlb: &Tlb, shows: &mut _| {
            self.point(tlb, shows, (bank, base))?;
            let number = self.calls.export_window(tlb, address - base, length)?;
            // SAFETY: the kernel made the descriptor for this call, so it has no other owner.
            Ok(unsafe { OwnedFd::from_raw_fd(number) })
        };
        if let Some((_, own)) = own {
            let Window { tlb, shows, .. } = &mut *own.lock();
            return export(tlb, shows);
        }
        let tlb = self.calls.allocate_window(size)?;
        let exported = export(&tlb, &mut None);
        // Also after a failure, whose error is the one that matters.
        let freed = self.calls.free_window(tlb);
        let buffer = exported?;
        freed?;
        Ok(buffer)
    }

    /// Has a window show a part of a place's addresses, unless it does.
    fn point(
        &self,
        tlb: &Tlb,
        shows: &mut Option<(Coordinates, u64)>,
        (place, base): (Coordinates, u64),
    ) -> Result<(), Error> {
        if *shows != Some((place, base)) {
            *shows = None;
            let pointing = Pointing {
                target: Target::Tile { x: place.x.into(), y: place.y.into() },
                address: base,
                noc: 0,
                ordering: Ordering::Strict,
            };
            self.calls.point(tlb, &pointing)?;
            *shows = Some((place, base));
        }
        Ok(())
    }

    /// Has a window show an address, does an access of as many bytes as it shows of so many, and says how many.
    fn show(
        &self,
        place: Coordinates,
        address: u64,
        length: usize,
        access: impl FnOnce(&dyn DeviceRange, u64, usize) -> Result<(), Errno>,
    ) -> Result<usize, Error> {
        let own = self.large.iter().find(|(bank, _)| *bank == place).map(|(_, window)| window);
        let size = if own.is_some() { self.lengths.1 } else { self.lengths.0 };
        let base = address - address % size;
        let window = own.or_else(|| self.small.get(self.index(place, base)));
        let mut window = window.ok_or_else(|| Error::access(Errno::NXIO))?.lock();
        let Window { tlb, range, shows } = &mut *window;
        self.point(tlb, shows, (place, base))?;
        let left = usize::try_from(base + size - address).unwrap_or(usize::MAX);
        let now = length.min(left);
        access(&**range, address - base, now).map_err(|errno| self.refused(errno))?;
        Ok(now)
    }

    /// The error of a refused access, with the system's cause if it knows one.
    fn refused(&self, errno: Errno) -> Error {
        match self.calls.file().system().cause() {
            Some(cause) if errno == Errno::NODEV => Error::Gone(cause),
            _ => Error::access(errno),
        }
    }

    /// The index of the small window for an address of a tile.
    fn index(&self, place: Coordinates, base: u64) -> usize {
        let number = u64::from(place.x) * 31 + u64::from(place.y) * 7 + base / self.lengths.0;
        #[expect(clippy::cast_possible_truncation, reason = "less than a length")]
        let index = (number % (self.small.len() as u64).max(1)) as usize;
        index
    }
}
