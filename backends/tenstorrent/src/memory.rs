// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory of a device: DRAM and tiles' memory (L1), both interleaved, and memory of the host.
//!
//! Both are pools of *banks*: the banks of DRAM, or the tiles, of which each gives the end of its memory. An allocation is a number of
//! *rows*: a page in each bank, at the same address in all of them. Its bytes are linear: page after page, each in the next bank. How many
//! banks there are is the board's own (a p100a has seven of DRAM), so nothing here is a power of two but the page.
//!
//! # Which pool
//!
//! Of L1 there is what the `l1` parameter says. A buffer that the host does not map is there if it is no longer than one row, so that no two of its
//! pages are in the same tile, and while there is room; what is larger, or finds none, is in DRAM. What passes through the card only on its
//! way to a tile stays out of L1.
//!
//! The host cannot map DRAM, so what a program maps is memory of the host, which a dispatch works on by way of DRAM.

use crate::kmd::{Card, Error, Place};
use crate::stub::L1;
use hal_backend::{Code, Failure, HostRange};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// How many bytes of an allocation are together in one bank.
pub(crate) const PAGE: u64 = tenstorrent_loader::paging::PAGE as u64;
/// How many bytes a bank has.
const BANK_BYTES: u64 = 0xff00_0000;
/// Where allocations begin in a bank: what is before is left to firmware.
const FIRST: u64 = 1 << 20;
/// How many holders of memory a message names.
const NAMED: usize = 5;
/// How much is transferred at once.
pub(crate) const CHUNK: usize = 256 << 10;

/// The rows of a card's DRAM, or of its tiles' memory, and who has which.
#[derive(Debug)]
pub(crate) struct Pool {
    card: Arc<Card>,
    kind: Kind,
    banks: Vec<Place>,
    /// Where rows begin in each bank.
    first: u64,
    rows: Mutex<Rows>,
}

/// What a pool's banks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Dram,
    Tiles,
}

/// How many rows there are, and which are taken: by the first, how many there are of it and for how many bytes.
#[derive(Debug)]
struct Rows {
    count: u64,
    taken: BTreeMap<u64, (u64, u64)>,
}

impl Rows {
    fn new(count: u64) -> Self {
        Self { count, taken: BTreeMap::new() }
    }

    /// The free ranges, in order: first row and number of rows.
    fn free(&self) -> impl Iterator<Item = (u64, u64)> {
        let ends = std::iter::once(0).chain(self.taken.iter().map(|(first, (count, _))| first + count));
        let starts = self.taken.keys().copied().chain(std::iter::once(self.count));
        ends.zip(starts).map(|(end, start)| (end, start - end)).filter(|&(_, count)| count > 0)
    }

    /// Takes so many rows, where the least is left over.
    fn take(&mut self, count: u64, length: u64) -> Option<u64> {
        let fitting = self.free().filter(|&(_, free)| free >= count);
        let (first, _) = fitting.min_by_key(|&(first, free)| (free, first))?;
        self.taken.insert(first, (count, length));
        Some(first)
    }
}

impl Pool {
    /// A card's DRAM.
    pub(crate) fn dram(card: &Arc<Card>) -> Arc<Self> {
        let (card, banks) = (card.clone(), card.grid().banks().to_vec());
        let rows = Mutex::new(Rows::new((BANK_BYTES - FIRST) / PAGE));
        Arc::new(Self { card, kind: Kind::Dram, banks, first: FIRST, rows })
    }

    /// The last bytes of the memory of each of these tiles: whole pages.
    pub(crate) fn tiles(card: &Arc<Card>, tiles: Vec<Place>, bytes: u32) -> Arc<Self> {
        let pages = u64::from(bytes) / PAGE;
        let (first, rows) = (u64::from(L1) - pages * PAGE, Mutex::new(Rows::new(pages)));
        Arc::new(Self { card: card.clone(), kind: Kind::Tiles, banks: tiles, first, rows })
    }

    fn banks(&self) -> &[Place] {
        &self.banks
    }

    /// How many bytes a row has.
    fn row_bytes(&self) -> u64 {
        PAGE * self.banks().len() as u64
    }

    /// How many bytes there are.
    pub(crate) fn capacity(&self) -> u64 {
        self.rows.lock().count * self.row_bytes()
    }

    /// Takes a row for bytes of which no two pages are in one bank; none, if they are more, or there is no room.
    pub(crate) fn allocate_row(self: &Arc<Self>, length: u64) -> Option<CardRange> {
        let fits = length <= self.row_bytes();
        let first = fits.then(|| self.rows.lock().take(1, length)).flatten()?;
        Some(CardRange { pool: self.clone(), first, length })
    }

    /// Takes rows for so many bytes.
    pub(crate) fn allocate(self: &Arc<Self>, length: u64) -> Result<CardRange, Failure> {
        let count = length.div_ceil(self.row_bytes()).max(1);
        let mut rows = self.rows.lock();
        match rows.take(count, length) {
            Some(first) => Ok(CardRange { pool: self.clone(), first, length }),
            None => Err(self.exhausted(&rows, length)),
        }
    }

    /// Why there is no room, and who has it.
    fn exhausted(&self, rows: &Rows, length: u64) -> Failure {
        let row = self.row_bytes();
        let free: u64 = rows.free().map(|(_, count)| count * row).sum();
        let largest = rows.free().map(|(_, count)| count * row).max().unwrap_or(0);
        let mut holders: Vec<u64> = rows.taken.values().map(|&(_, length)| length).collect();
        holders.sort_unstable_by(|one, other| other.cmp(one));
        let named: Vec<String> = holders.iter().take(NAMED).map(u64::to_string).collect();
        let others = holders.len().saturating_sub(NAMED);
        let message = format!(
            "{}: no room for {length} bytes in DRAM: of {} bytes in {} banks {free} are free, {largest} of them together; {} \
             buffers have the rest, of {} bytes{}",
            self.card.name(),
            rows.count * row,
            self.banks().len(),
            holders.len(),
            if named.is_empty() { "0".to_owned() } else { named.join(", ") },
            if others > 0 { format!(" and {others} smaller ones") } else { String::new() },
        );
        Failure::new(Code::ResourceExhausted, message)
    }
}

/// An allocation of the card's memory. Its rows are free again when it is dropped.
pub struct CardRange {
    pool: Arc<Pool>,
    first: u64,
    length: u64,
}

impl fmt::Debug for CardRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.pool.kind {
            Kind::Dram => "DRAM",
            Kind::Tiles => "L1",
        };
        write!(f, "CardRange(row {} of {kind}, {} bytes)", self.first, self.length)
    }
}

impl Drop for CardRange {
    fn drop(&mut self) {
        self.pool.rows.lock().taken.remove(&self.first);
    }
}

/// A part of an allocation that is in one bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// A port of the bank, or the tile.
    pub(crate) bank: Place,
    /// Where in the bank it is.
    pub(crate) address: u64,
    /// Where in what was asked for it begins.
    pub(crate) at: u64,
    /// How many bytes it has.
    pub(crate) length: u64,
}

impl CardRange {
    /// How many bytes there are, in whole rows.
    pub(crate) fn room(&self) -> u64 {
        let row = self.pool.row_bytes();
        self.length.div_ceil(row).max(1) * row
    }

    /// A number that no other allocation has while this one lives.
    pub(crate) fn identity(&self) -> u64 {
        self.first | u64::from(self.pool.kind == Kind::Tiles) << 63
    }

    /// Some bytes, page by page. They are inside the rows.
    pub(crate) fn pieces(&self, offset: u64, length: u64) -> impl Iterator<Item = Piece> {
        let banks = self.pool.banks();
        let end = offset + length;
        let mut at = offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (page, within) = (at / PAGE, at % PAGE);
            let count = banks.len() as u64;
            let bank = *banks.get(usize::try_from(page % count).ok()?)?;
            let address = self.pool.first + (self.first + page / count) * PAGE + within;
            let piece = Piece { bank, address, at: at - offset, length: (PAGE - within).min(end - at) };
            at += piece.length;
            Some(piece)
        })
    }

    /// Reads bytes of it.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Error> {
        for piece in self.pieces(offset, bytes.len() as u64) {
            let part = part(piece);
            let place = bytes.get_mut(part).unwrap_or_default();
            self.pool.card.read(piece.bank, piece.address, place)?;
        }
        // That is what a card reads as that is lost.
        if bytes.iter().all(|&byte| byte == 0xff) { self.pool.card.check_alive() } else { Ok(()) }
    }

    /// Writes bytes of it.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        for piece in self.pieces(offset, bytes.len() as u64) {
            let source = bytes.get(part(piece)).unwrap_or_default();
            self.pool.card.write(piece.bank, piece.address, source)?;
        }
        Ok(())
    }

    /// Waits until what was written to some bytes is there: a read of the same bank comes after the writes.
    pub(crate) fn flush(&self, offset: u64, length: u64) -> Result<(), Error> {
        let banks = self.pool.banks().len() as u64;
        let last = length.min(banks * PAGE);
        let mut byte = [0];
        let mut ones = true;
        for piece in self.pieces(offset + length - last, last) {
            self.pool.card.read(piece.bank, piece.address, &mut byte)?;
            ones &= byte == [0xff];
        }
        // Of a card that is lost, nothing was written, and everything reads as ones.
        if ones { self.pool.card.check_alive() } else { Ok(()) }
    }
}

/// The part of a slice that a piece is.
fn part(piece: Piece) -> std::ops::Range<usize> {
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

    /// Whether a copy from here to `target` must begin with the last bytes: both are in the same memory, and the target is behind.
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
        (at, usize::try_from((length - at).min(chunk)).unwrap_or(CHUNK))
    })
}

/// Copies bytes, which may overlap, and waits until they are there.
pub(crate) fn copy(source: Bytes<'_>, target: Bytes<'_>, length: u64) -> Result<(), Error> {
    let mut buffer = vec![0; CHUNK.min(usize::try_from(length).unwrap_or(CHUNK))];
    let mut step = |(at, now): (u64, usize)| {
        let bytes = buffer.get_mut(..now).unwrap_or_default();
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
    let bytes: Vec<u8> = pattern.iter().copied().cycle().take(whole).collect();
    let mut at = 0;
    while at < length {
        let now = usize::try_from(length - at).unwrap_or(whole).min(whole);
        target.write(at, bytes.get(..now).unwrap_or_default())?;
        at += now as u64;
    }
    target.flush(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_taken_where_least_is_left_over_and_come_back() {
        const ROWS: u64 = 1_000_000;
        let mut rows = Rows::new(ROWS);
        assert_eq!((rows.take(10, 0), rows.take(5, 0), rows.take(20, 0)), (Some(0), Some(10), Some(15)));
        rows.taken.remove(&10);
        assert_eq!(rows.take(5, 0), Some(10), "the hole fits");
        rows.taken.remove(&0);
        assert_eq!(rows.take(4, 0), Some(0));
        assert_eq!(rows.take(7, 0), Some(35), "what is left of the hole does not");
        assert_eq!(rows.take(ROWS, 0), None);
        assert_eq!(rows.free().map(|(_, count)| count).sum::<u64>(), ROWS - 4 - 5 - 20 - 7);
    }

    #[test]
    fn chunks_cover_a_transfer_once() {
        for length in [0, 1, CHUNK as u64, CHUNK as u64 + 1, 3 * CHUNK as u64 - 7] {
            let mut end = 0;
            for (at, now) in chunks(length) {
                assert_eq!(at, end);
                end += now as u64;
            }
            assert_eq!(end, length);
        }
    }
}
