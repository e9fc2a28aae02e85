// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Pools of rows: a page in each bank, at the same address in all of them.
//!
//! A pool's banks are those of DRAM, or the tiles, of which each gives the end of its memory. An allocation takes as
//! many rows as the pages that its [division](super::division) puts into one bank; so those of a shard are at one
//! address in every bank, also in banks that have less of it or nothing.

use super::division::{Banks, Division, Shards};
use super::{CardRange, PAGE};
use crate::kmd::{Card, Coordinates};
use hal_backend::{Code, Failure, MemoryRequest, Purpose};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// The first address for allocations in a bank: the memory before is left to firmware.
const FIRST: u64 = 1 << 20;
/// How many holders of memory a message names for each use.
const NAMED: usize = 3;

/// How much of each tile's memory buffers have, and how they are divided there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct L1Share {
    /// In bytes: whole pages.
    pub(crate) bytes: u32,
    pub(crate) division: Division,
}

impl fmt::Display for L1Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.bytes >> 10, self.division)
    }
}

/// The purpose of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Use {
    /// For what a program said.
    Program(Purpose),
    /// For memory of the host that a dispatch works on.
    Passage,
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Use::Program(purpose) => purpose.fmt(f),
            Use::Passage => f.write_str("host memory on its way to tiles"),
        }
    }
}

/// The kind of a pool's banks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BankKind {
    Dram,
    Tiles,
}

impl fmt::Display for BankKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BankKind::Dram => "DRAM",
            BankKind::Tiles => "L1",
        })
    }
}

/// The rows of a card's DRAM, or of its tiles' memory, and who has which.
#[derive(Debug)]
pub(crate) struct Pool {
    card: Arc<Card>,
    kind: BankKind,
    banks: Banks,
    /// The address of the first row in each bank.
    first: u64,
    rows: Mutex<Rows>,
}

/// A holder of some rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowHolder {
    /// How many rows.
    count: u64,
    /// For how many bytes.
    length: u64,
    used_for: Use,
}

/// How many rows there are, which are taken, by the first, and the ranges between them: how many rows, and the first.
///
/// # Invariants
///
/// A row is in one of `taken` or in one of `free`, whose ranges are as long as they can be.
#[derive(Debug)]
struct Rows {
    count: u64,
    taken: BTreeMap<u64, RowHolder>,
    free: BTreeSet<(u64, u64)>,
}

impl Rows {
    fn new(count: u64) -> Self {
        let mut rows = Self { count, taken: BTreeMap::new(), free: BTreeSet::new() };
        rows.free_between(0, count);
        rows
    }

    fn free_between(&mut self, first: u64, end: u64) {
        if first < end {
            self.free.insert((end - first, first));
        }
    }

    /// Takes rows where the least is left over, of those behind the first one at which they may begin.
    fn take(&mut self, holder: RowHolder, begin: impl Fn(u64) -> u64) -> Option<u64> {
        let large = self.free.range((holder.count, 0)..);
        let mut ranges = large.map(|&(count, first)| (first, begin(first), first + count));
        let (first, begin, end) = ranges.find(|(_, begin, end)| begin + holder.count <= *end)?;
        self.free.remove(&(end - first, first));
        self.taken.insert(begin, holder);
        self.free_between(first, begin);
        self.free_between(begin + holder.count, end);
        Some(begin)
    }

    /// The rows that begin with this one are free again.
    fn give_back(&mut self, first: u64) {
        let Some(holder) = self.taken.remove(&first) else { return };
        let end = first + holder.count;
        let before = self.taken.range(..first).next_back().map_or(0, |(first, holder)| first + holder.count);
        let after = self.taken.range(first..).next().map_or(self.count, |(first, _)| *first);
        self.free.remove(&(first - before, before));
        self.free.remove(&(after - end, end));
        self.free_between(before, after);
    }
}

impl Pool {
    /// A card's DRAM.
    pub(crate) fn dram(card: &Arc<Card>) -> Option<Arc<Self>> {
        let rows = Rows::new((card.generation().bank_bytes - FIRST) / PAGE);
        Self::of(card, BankKind::Dram, (card.grid().banks(), Division::Interleaved), (FIRST, rows))
    }

    /// The last bytes of the memory of each of these tiles; nothing, if that is no page.
    pub(crate) fn tiles(card: &Arc<Card>, tiles: &[Coordinates], share: L1Share) -> Option<Arc<Self>> {
        let pages = u64::from(share.bytes) / PAGE;
        let rows = (u64::from(card.generation().l1) - pages * PAGE, Rows::new(pages));
        Self::of(card, BankKind::Tiles, (tiles, share.division), rows).filter(|_| pages > 0)
    }

    fn of(
        card: &Arc<Card>,
        kind: BankKind,
        (places, division): (&[Coordinates], Division),
        (first, rows): (u64, Rows),
    ) -> Option<Arc<Self>> {
        let banks = Banks::new(places, division)?;
        Some(Arc::new(Self { card: card.clone(), kind, banks, first, rows: Mutex::new(rows) }))
    }

    pub(crate) fn card(&self) -> &Card {
        &self.card
    }

    pub(crate) fn kind(&self) -> BankKind {
        self.kind
    }

    pub(crate) fn banks(&self) -> &Banks {
        &self.banks
    }

    /// How many bytes a row has.
    pub(crate) fn row_bytes(&self) -> u64 {
        PAGE * self.banks.count()
    }

    /// How many bytes there are.
    pub(crate) fn capacity(&self) -> u64 {
        self.rows.lock().count * self.row_bytes()
    }

    /// The address of a row in each bank.
    pub(crate) fn address(&self, row: u64) -> u64 {
        self.first + row * PAGE
    }

    /// Rows for so many bytes, if there are as many together.
    pub(crate) fn take(self: &Arc<Self>, length: u64, used_for: Use) -> Option<CardRange> {
        let shards: Shards = self.banks.shards(length.div_ceil(PAGE));
        let holder = RowHolder { count: shards.pages(), length, used_for };
        let first = self.rows.lock().take(holder, |first| first)?;
        Some(CardRange { pool: self.clone(), first, length, shards })
    }

    /// Rows for so many bytes in one bank, of which a window of `window` bytes shows all. The other banks' parts of
    /// these rows are not used.
    fn take_alone(self: &Arc<Self>, length: u64, window: u64, used_for: Use) -> Option<CardRange> {
        let count = length.div_ceil(PAGE);
        let holder = RowHolder { count, length, used_for };
        let begin = |first: u64| {
            let (start, last) = (self.address(first), self.address(first + count) - 1);
            if start / window == last / window { first } else { (last / window * window - self.first) / PAGE }
        };
        let first = self.rows.lock().take(holder, begin)?;
        let shards = self.banks.alone(count, first / (window / PAGE));
        Some(CardRange { pool: self.clone(), first, length, shards })
    }

    /// The rows that begin with this one are free again.
    pub(super) fn give_back(&self, first: u64) {
        self.rows.lock().give_back(first);
    }

    /// How much there is, how much of it is free, and who has the rest.
    fn describe(&self) -> String {
        let rows = self.rows.lock();
        let row = self.row_bytes();
        let free: u64 = rows.free.iter().map(|(count, _)| count * row).sum();
        let largest = rows.free.last().map_or(0, |(count, _)| count * row);
        let (kind, count) = (self.kind, self.banks.count());
        let of = if self.kind == BankKind::Dram { "banks" } else { "tiles" };
        let all = rows.count * row;
        format!(
            "of the {all} bytes of {kind} in {count} {of} {free} are free, {largest} of them together; {}",
            holders(rows.taken.values())
        )
    }
}

/// The holders in a message: for each use how many they are and how much they have in all, by which they are sorted,
/// and the largest.
fn holders<'a>(taken: impl Iterator<Item = &'a RowHolder>) -> String {
    let mut uses: BTreeMap<Use, Vec<u64>> = BTreeMap::new();
    for holder in taken {
        uses.entry(holder.used_for).or_default().push(holder.length);
    }
    let mut uses: Vec<(Use, Vec<u64>)> = uses.into_iter().collect();
    uses.sort_by_key(|(_, lengths)| std::cmp::Reverse(lengths.iter().sum::<u64>()));
    let one = |(used_for, mut lengths): (Use, Vec<u64>)| {
        lengths.sort_unstable_by(|one, other| other.cmp(one));
        let all: u64 = lengths.iter().sum();
        let largest: Vec<String> = lengths.iter().take(NAMED).map(u64::to_string).collect();
        let rest = lengths.len().saturating_sub(NAMED);
        let rest = if rest > 0 { format!(" and {rest} smaller") } else { String::new() };
        format!("for {used_for} {} with {all} bytes ({}{rest})", lengths.len(), largest.join(", "))
    };
    let named: Vec<String> = uses.into_iter().map(one).collect();
    if named.is_empty() { "nothing is taken".to_owned() } else { format!("taken are {}", named.join(", ")) }
}

/// Memory for what a program asks for: in one bank what is for other devices, if a window shows all of it; beside the
/// tiles' cores what dispatches work on, if it finds room there; and else in DRAM.
pub(crate) fn allocate(
    dram: &Arc<Pool>,
    l1: Option<&Arc<Pool>>,
    request: &MemoryRequest,
) -> Result<CardRange, Failure> {
    let used_for = Use::Program(request.purpose);
    if request.purpose == Purpose::Export
        && let Some(window) = dram.card().window_to_lend(request.length)
        && let Some(alone) = dram.take_alone(request.length, window, used_for)
    {
        return Ok(alone);
    }
    let near = l1.filter(|_| request.purpose == Purpose::Dispatch);
    let range = near.and_then(|l1| l1.take(request.length, used_for));
    range.or_else(|| dram.take(request.length, used_for)).ok_or_else(|| {
        let pools: Vec<String> = std::iter::once(dram).chain(l1).map(|pool| pool.describe()).collect();
        exhausted(dram.card(), request.length, used_for, &pools)
    })
}

/// Memory in DRAM for what passes through it.
pub(crate) fn passage(dram: &Arc<Pool>, length: u64) -> Result<CardRange, Failure> {
    let range = dram.take(length, Use::Passage);
    range.ok_or_else(|| exhausted(dram.card(), length, Use::Passage, &[dram.describe()]))
}

#[cold]
fn exhausted(card: &Card, length: u64, used_for: Use, pools: &[String]) -> Failure {
    let message = format!("{}: no room for {length} bytes for {used_for}: {}", card.name(), pools.join("; "));
    Failure::new(Code::ResourceExhausted, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: Use = Use::Program(Purpose::Dispatch);

    fn holder(count: u64) -> RowHolder {
        RowHolder { count, length: 0, used_for: PROGRAM }
    }

    #[test]
    fn rows_are_taken_where_least_is_left_over_and_come_back() {
        const ROWS: u64 = 1_000_000;
        let mut rows = Rows::new(ROWS);
        let take = |rows: &mut Rows, count| rows.take(holder(count), |first| first);
        assert_eq!(
            (take(&mut rows, 10), take(&mut rows, 5), take(&mut rows, 20)),
            (Some(0), Some(10), Some(15))
        );
        rows.give_back(10);
        assert_eq!(take(&mut rows, 5), Some(10), "the hole fits");
        rows.give_back(0);
        assert_eq!(take(&mut rows, 4), Some(0));
        assert_eq!(take(&mut rows, 7), Some(35), "what is left of the hole does not");
        assert_eq!(take(&mut rows, ROWS), None);
        assert_eq!(rows.free.iter().map(|(count, _)| count).sum::<u64>(), ROWS - 4 - 5 - 20 - 7);
        let even = |first: u64| first.next_multiple_of(2);
        assert_eq!(rows.take(holder(1), even), Some(4));
        assert_eq!(rows.take(holder(5), even), Some(42), "at an even row");
    }

    /// Ten thousand holes of a row each: none is looked at for two rows, and one for one.
    #[test]
    fn rows_are_found_without_a_look_at_every_hole() {
        let mut rows = Rows::new(1_000_000);
        for first in 0..20_000 {
            assert_eq!(rows.take(holder(1), |first| first), Some(first));
        }
        for first in (0..20_000).step_by(2) {
            rows.give_back(first);
        }
        let looks = std::cell::Cell::new(0);
        let begin = |first| {
            looks.set(looks.get() + 1);
            first
        };
        assert_eq!((rows.take(holder(2), begin), rows.take(holder(1), begin)), (Some(20_000), Some(0)));
        assert_eq!(looks.get(), 2);
        for first in [0, 20_000].into_iter().chain((1..20_000).step_by(2)) {
            rows.give_back(first);
        }
        assert_eq!(rows.free, BTreeSet::from([(1_000_000, 0)]), "holes are one again");
    }

    #[test]
    fn holders_are_named_by_use_the_largest_first() {
        let of = |used_for, length| RowHolder { count: 1, length, used_for };
        let taken = [
            of(PROGRAM, 5),
            of(Use::Program(Purpose::Pool), 900),
            of(PROGRAM, 70),
            of(Use::Passage, 3),
            of(PROGRAM, 40),
            of(PROGRAM, 6),
            of(PROGRAM, 1),
        ];
        assert_eq!(
            holders(taken.iter()),
            "taken are for pools 1 with 900 bytes (900), for dispatches 5 with 122 bytes (70, 40, 6 and 2 smaller), \
             for host memory on its way to tiles 1 with 3 bytes (3)"
        );
        assert_eq!(holders([].iter()), "nothing is taken");
    }
}
