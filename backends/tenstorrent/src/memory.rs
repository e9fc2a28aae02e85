// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory of a device: DRAM, tiles' memory (L1), and memory of the host.
//!
//! DRAM and L1 are [pools](pool) of *banks*: the banks of DRAM, or the ends of the tiles' memories. The bytes of an
//! allocation are linear, page after page, and its [division] maps each page to a bank and an address there. The number
//! of banks depends on the board (a p100a has seven of DRAM), so only the page is a power of two.
//!
//! # Which pool
//!
//! The `l1` parameter sets how much L1 buffers have, and their division. A buffer that dispatches work on is in L1
//! while there is room. A buffer that is larger, finds no room or has another use (transfers alone, or a pool that is
//! divided later) is in DRAM, and so are copies of host memory.
//!
//! The host cannot map either pool. A buffer that a program maps is host memory, and dispatches work on a copy in DRAM.

mod division;
mod pool;

pub(crate) use division::Division;
pub(crate) use pool::{BankKind, L1Share, Pool, allocate, passage};

use crate::kmd::{Coordinates, Error};
use division::Shards;
use hal_backend::{Code, Failure, HostRange, zeros};
use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The size of a page: bytes of an allocation that are together in one bank.
pub(crate) const PAGE: u64 = hal_tenstorrent_loader::paging::PAGE as u64;
/// The size of one transfer.
pub(crate) const CHUNK: usize = 256 << 10;

/// An allocation of the card's memory. Its rows are free again when it is dropped.
pub struct CardRange {
    pool: Arc<Pool>,
    first: u64,
    length: u64,
    shards: Shards,
}

impl fmt::Debug for CardRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, division) = (self.pool.kind(), self.pool.banks().division());
        write!(f, "CardRange(row {} of {kind}, {division}, {} bytes)", self.first, self.length)
    }
}

impl Drop for CardRange {
    fn drop(&mut self) {
        self.pool.give_back(self.first);
    }
}

/// A part of an allocation that is in one bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BankRange {
    /// A port of the bank, or the tile.
    pub(crate) bank: Coordinates,
    /// Its address in the bank.
    pub(crate) address: u64,
    /// Its offset in the requested bytes.
    pub(crate) at: u64,
    /// How many bytes it has.
    pub(crate) length: u64,
}

impl CardRange {
    /// How many bytes its shards have room for.
    pub(crate) fn room(&self) -> u64 {
        self.shards.room() * PAGE
    }

    /// A number that no other allocation has while this one lives.
    pub(crate) fn identity(&self) -> u64 {
        self.first | u64::from(self.pool.kind() == BankKind::Tiles) << 63
    }

    /// Some bytes, page by page. They are inside the shards.
    pub(crate) fn pieces(&self, offset: u64, length: u64) -> impl DoubleEndedIterator<Item = BankRange> {
        let end = offset + length;
        let piece = move |page: u64| {
            #[expect(clippy::expect_used, reason = "to leave a page out would lose its bytes")]
            let (bank, within) = self.pool.banks().locate(self.shards, page).expect("a page of the shards");
            let from = offset.max(page * PAGE);
            let address = self.pool.address(self.first + within) + from % PAGE;
            BankRange { bank, address, at: from - offset, length: end.min((page + 1) * PAGE) - from }
        };
        (offset / PAGE..end.div_ceil(PAGE)).map(piece)
    }

    /// A dma-buf of its pages, which are together in one bank.
    pub(crate) fn export(&self) -> Result<OwnedFd, Failure> {
        let card = self.pool.card();
        let pages = self.length.div_ceil(PAGE).max(1);
        let whole = |first: BankRange, last: BankRange| {
            first.bank == last.bank && last.address == first.address + (pages - 1) * PAGE
        };
        let ends = self.pieces(0, 1).next().zip(self.pieces((pages - 1) * PAGE, 1).next());
        match ends.filter(|&(first, last)| whole(first, last)) {
            Some((BankRange { bank, address, .. }, _)) => {
                card.lend(bank, address, pages * PAGE).map_err(|error| error.failure(card.name()))
            }
            None => {
                let most = card.most_to_lend();
                let message = format!(
                    "{}: the {} bytes are divided over several banks, and the kernel driver lends what a window shows, \
                     which is a part of one: allocate memory of its own for each {most} bytes at most, with \
                     IREE_HAL_BUFFER_USAGE_SHARING_EXPORT, and export that",
                    card.name(),
                    self.length
                );
                Err(Failure::new(Code::Unavailable, message))
            }
        }
    }

    /// Reads bytes of it.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        for piece in self.pieces(offset, bytes.len() as u64) {
            #[expect(clippy::indexing_slicing, reason = "pieces are of these bytes")]
            let place = &mut bytes[part(piece)];
            self.pool.card().read(piece.bank, piece.address, place)?;
        }
        // A card that is lost during the read reads as ones to its end, so the last bytes are checked.
        if bytes.last() == Some(&0xff) { self.pool.card().check_alive() } else { Ok(()) }
    }

    /// Writes bytes of it.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        for piece in self.pieces(offset, bytes.len() as u64) {
            #[expect(clippy::indexing_slicing, reason = "pieces are of these bytes")]
            let source = &bytes[part(piece)];
            self.pool.card().write(piece.bank, piece.address, source)?;
        }
        Ok(())
    }

    /// Waits until writes to some bytes are done, by a read of each bank, which comes after them.
    pub(crate) fn flush(&self, offset: u64, length: u64) -> Result<(), Error> {
        let count = self.pool.banks().count();
        let mut read: BTreeSet<Coordinates> = BTreeSet::new();
        let mut ones = true;
        for piece in self.pieces(offset, length).rev() {
            if read.insert(piece.bank) {
                let mut byte = [0];
                self.pool.card().read(piece.bank, piece.address, &mut byte)?;
                ones &= byte == [0xff];
            }
            if read.len() as u64 == count {
                break;
            }
        }
        // A lost card drops writes and reads as ones.
        if ones { self.pool.card().check_alive() } else { Ok(()) }
    }
}

/// The part of a slice that a piece is.
fn part(piece: BankRange) -> std::ops::Range<usize> {
    let at = usize::try_from(piece.at).unwrap_or(usize::MAX);
    at..at.saturating_add(usize::try_from(piece.length).unwrap_or(usize::MAX))
}

/// An allocation of a heap.
#[derive(Debug)]
pub enum Memory {
    /// On the card: in DRAM, or in the memory of its tiles.
    Card(CardRange),
    /// In memory of the host.
    Host(HostRange),
}

/// Bytes of an allocation, or of the host, that are inside of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bytes<'a> {
    /// On the card, from an offset.
    Card(&'a CardRange, u64),
    /// In memory of the host, from an offset.
    Host(&'a HostRange, u64),
}

fn outside() -> Error {
    Error::Other(Failure::new(Code::OutOfRange, "a command reaches past the memory that it works on"))
}

impl Bytes<'_> {
    /// Reads some from an offset on.
    pub(crate) fn read(self, at: u64, bytes: &mut [u8]) -> Result<(), Error> {
        match self {
            Bytes::Card(range, offset) => range.read(offset + at, bytes),
            Bytes::Host(range, offset) => {
                if range.read(offset + at, bytes) {
                    Ok(())
                } else {
                    Err(outside())
                }
            }
        }
    }

    /// Writes some from an offset on.
    pub(crate) fn write(self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        match self {
            Bytes::Card(range, offset) => range.write(offset + at, bytes),
            Bytes::Host(range, offset) => {
                if range.write(offset + at, bytes) {
                    Ok(())
                } else {
                    Err(outside())
                }
            }
        }
    }

    /// Waits until what was written is there.
    pub(crate) fn flush(self, length: u64) -> Result<(), Error> {
        match self {
            Bytes::Card(range, offset) => range.flush(offset, length),
            Bytes::Host(..) => Ok(()),
        }
    }

    /// True if a copy from here to `target` must begin with the last bytes: both are in the same memory, and the
    /// target is behind.
    fn runs_into(self, target: Bytes<'_>) -> bool {
        match (self, target) {
            (Bytes::Card(one, from), Bytes::Card(other, to)) => {
                one.identity() == other.identity() && from < to
            }
            (Bytes::Host(one, from), Bytes::Host(other, to)) => {
                let address = |range: &HostRange, at| range.address().addr() as u64 + at;
                address(one, from) < address(other, to)
            }
            _ => false,
        }
    }
}

/// The chunks of a transfer, in order: where each begins, and how long it is.
fn chunks(length: u64) -> impl DoubleEndedIterator<Item = (u64, usize)> {
    let chunk = CHUNK as u64;
    (0..length.div_ceil(chunk)).map(move |index| {
        let at = index * chunk;
        #[expect(clippy::cast_possible_truncation, reason = "a chunk at most")]
        let now = (length - at).min(chunk) as usize;
        (at, now)
    })
}

/// Copies bytes, which may overlap, and waits until they are there.
pub(crate) fn copy(source: Bytes<'_>, target: Bytes<'_>, length: u64) -> Result<(), Error> {
    let mut buffer = zeros(CHUNK.min(usize::try_from(length).unwrap_or(CHUNK)))?;
    let mut step = |(at, now): (u64, usize)| {
        #[expect(clippy::indexing_slicing, reason = "a chunk at most")]
        let bytes = &mut buffer[..now];
        source.read(at, bytes)?;
        target.write(at, bytes)
    };
    if source.runs_into(target) {
        chunks(length).rev().try_for_each(&mut step)?;
    } else {
        chunks(length).try_for_each(&mut step)?;
    }
    target.flush(length)
}

/// Repeats a pattern of up to 16 bytes, and waits until it is there.
pub(crate) fn fill(target: Bytes<'_>, pattern: &[u8], length: u64) -> Result<(), Error> {
    // Patterns have 1, 2, 4, ... bytes, and then chunks begin with a whole one; others would not, but for this.
    let whole = CHUNK - CHUNK % pattern.len().max(1);
    let mut bytes = zeros(whole.min(usize::try_from(length).unwrap_or(whole)))?;
    bytes.iter_mut().zip(pattern.iter().cycle()).for_each(|(byte, new)| *byte = *new);
    let mut at = 0;
    while at < length {
        let now = usize::try_from(length - at).unwrap_or(whole).min(whole);
        #[expect(clippy::indexing_slicing, reason = "not more than the whole")]
        target.write(at, &bytes[..now])?;
        at += now as u64;
    }
    target.flush(length)
}

#[cfg(test)]
mod tests;
