// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Windows into a card's network, and which of them shows what.
//!
//! Every access of the host to a card goes through a window, which shows a piece of one tile's address space: registers, memory of a
//! tile, a DRAM bank. A card has few, and shares them with other programs. A Blackhole's window of 4 GiB shows all of a bank, so with one for each
//! bank nothing has to be pointed anew; a Wormhole's has 16 MiB. There may be none. Any number of small windows (2 MiB; of a Wormhole 1 MiB) from
//! one on will do for everything else: what is shown where is decided by the place alone, and a window that shows something else is pointed anew.

use super::error::Error;
use super::grid::Place;
use hal_backend::{Code, Failure};
use hal_kernel::{DeviceRange, Errno, System};
use hal_tenstorrent_abi::{CallError, Calls, Ioctl, Ordering, Target, Tlb, Window as Pointing};
use parking_lot::Mutex;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// An open file of a card.
pub(crate) struct File {
    kernel: Arc<dyn System>,
    /// Until it is closed.
    file: Option<OwnedFd>,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("File").field(&self.file).finish()
    }
}

impl File {
    pub(crate) fn new(kernel: Arc<dyn System>, file: OwnedFd) -> Self {
        Self { kernel, file: Some(file) }
    }

    fn map(&self, length: u64, offset: u64) -> Result<Arc<dyn DeviceRange>, Errno> {
        let file = self.file.as_ref().ok_or(Errno::BADF)?;
        let length = usize::try_from(length).map_err(|_| Errno::NOMEM)?;
        self.kernel.map_device(file.as_fd(), length, offset)
    }
}

impl Ioctl for File {
    fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let file = self.file.as_ref().ok_or(Errno::BADF)?;
        self.kernel.ioctl(file.as_fd(), request, argument)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.kernel.close(file);
        }
    }
}

/// How many small windows are asked for: for the memory and the registers of a few tiles, and to leave some to others.
const WANTED: usize = 32;

/// A window, mapped.
#[derive(Debug)]
struct Window {
    tlb: Tlb,
    range: Arc<dyn DeviceRange>,
    shows: Option<(Place, u64)>,
}

/// The windows of an open card. Several threads may use them.
#[derive(Debug)]
pub(crate) struct Windows {
    calls: Calls<File>,
    /// How long the windows of the two kinds are.
    lengths: (u64, u64),
    small: Vec<Mutex<Window>>,
    /// One for each bank, or none at all.
    large: Vec<(Place, Mutex<Window>)>,
}

impl Windows {
    /// Takes small windows. What there is will do, if it is one. `lengths` are those of a small one and of a large one.
    pub(crate) fn new(calls: Calls<File>, lengths: (u64, u64)) -> Result<Self, Error> {
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
    pub(crate) fn add_banks(&mut self, banks: &[Place]) -> Result<(), Error> {
        let mut large = Vec::new();
        for &bank in banks {
            match Self::take(&self.calls, self.lengths.1) {
                Ok(window) => large.push((bank, Mutex::new(window))),
                // The bridge shows none, or others have them.
                Err(Error::Refused(CallError::Refused { errno: Errno::NOMEM | Errno::INVAL, .. })) => {
                    return large.into_iter().try_for_each(|(_, window)| self.give_back(window.into_inner()));
                }
                Err(error) => return Err(error),
            }
        }
        self.large = large;
        Ok(())
    }

    fn take(calls: &Calls<File>, length: u64) -> Result<Window, Error> {
        let tlb = calls.allocate_window(length)?;
        // Uncached: what is written is on its way when the access is over, in order.
        match calls.kernel().map(length, tlb.uncached_offset) {
            Ok(range) => Ok(Window { tlb, range, shows: None }),
            Err(errno) => {
                // What is wrong with the mapping is what matters.
                let _ = calls.free_window(tlb);
                let message = format!("a window of {length} bytes cannot be mapped: {errno}");
                Err(Error::Other(Failure::new(Code::ResourceExhausted, message)))
            }
        }
    }

    fn give_back(&self, window: Window) -> Result<(), Error> {
        drop(window.range);
        Ok(self.calls.free_window(window.tlb)?)
    }

    /// The card's calls.
    pub(crate) fn calls(&self) -> &Calls<File> {
        &self.calls
    }

    /// How many windows of each kind there are.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.small.len(), self.large.len())
    }

    /// Reads from a place on the network.
    pub(crate) fn read(&self, place: Place, address: u64, bytes: &mut [u8]) -> Result<(), Error> {
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
    pub(crate) fn write(&self, place: Place, address: u64, bytes: &[u8]) -> Result<(), Error> {
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

    /// Has a window show an address, does an access of as many bytes as it shows of so many, and says how many.
    fn show(
        &self,
        place: Place,
        address: u64,
        length: usize,
        access: impl FnOnce(&dyn DeviceRange, u64, usize) -> Result<(), Errno>,
    ) -> Result<usize, Error> {
        let own = self.large.iter().find(|(bank, _)| *bank == place).map(|(_, window)| window);
        let size = if own.is_some() { self.lengths.1 } else { self.lengths.0 };
        let base = address - address % size;
        let window = own.or_else(|| self.small.get(self.slot(place, base)));
        let mut window = window.ok_or_else(|| Error::access(Errno::NXIO))?.lock();
        if window.shows != Some((place, base)) {
            window.shows = None;
            let pointing = Pointing {
                target: Target::Tile { x: place.x.into(), y: place.y.into() },
                address: base,
                noc: 0,
                ordering: Ordering::Strict,
            };
            self.calls.point(&window.tlb, &pointing)?;
            window.shows = Some((place, base));
        }
        let left = usize::try_from(base + size - address).unwrap_or(usize::MAX);
        let now = length.min(left);
        access(&*window.range, address - base, now).map_err(|errno| self.refused(errno))?;
        Ok(now)
    }

    /// Why an access was refused, with what the kernel knows of it.
    fn refused(&self, errno: Errno) -> Error {
        match self.calls.kernel().kernel.cause() {
            Some(cause) if errno == Errno::NODEV => Error::Gone(cause),
            _ => Error::access(errno),
        }
    }

    /// Which of the small windows shows this.
    fn slot(&self, place: Place, base: u64) -> usize {
        let number = u64::from(place.x) * 31 + u64::from(place.y) * 7 + base / self.lengths.0;
        #[expect(clippy::cast_possible_truncation, reason = "less than a length")]
        let slot = (number % (self.small.len() as u64).max(1)) as usize;
        slot
    }
}
