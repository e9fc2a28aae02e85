// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Decoded code: instructions that follow each other, whatever jumps between them always or seldom.
//!
//! A block begins where a core goes on, and ends before or behind what leaves it every time: a jump to an address in a register, a
//! call of an environment, whatever reads counters. It goes on behind a branch that may leave it, and behind a jump whose target is in the
//! instruction, there. So a core decodes once what it executes often, and looks for what comes next once in a block.
//!
//! # When a block is right
//!
//! A block keeps the words that it was made of. While a core [runs](crate::Hart::run), nothing but its own stores changes memory, so a block
//! is compared with memory when it is executed first in a run, and first after a store to somewhere near decoded code, which also ends the
//! block that it is in. Code that changes itself is therefore seen at once. An owner that knows what else changes memory can
//! [say so](crate::Hart::changed) instead.

use crate::bus::Bus;
use crate::decode::{Class, Instruction, Isa, Op, decode};
use crate::hart::Counts;
use crate::trap::Cause;

/// How many words there are at whose addresses blocks may begin: 2 MiB. Those that are further away share places.
const PLACES: usize = 1 << 19;
/// How many blocks are kept; then all are forgotten.
const MOST: usize = 1 << 14;
/// How many instructions a block has, at most.
const LENGTH: usize = 64;
/// An instruction of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockEntry {
    pub(crate) instruction: Instruction,
    /// Where it is.
    pub(crate) pc: u32,
    word: u32,
    pub(crate) jump: Jump,
}

/// What a jump comes to, as far as that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Jump {
    /// It is none, or one as any other.
    Plain,
    /// To a [look-up](Lookup).
    Lookup(Lookup),
    /// Itself, with no other effect.
    Itself,
}

/// What an access by a table of pages in software begins with, which is executed in one step where the page is there, with the load that it
/// is for: a jump to
///
/// ```text
/// addi  address, base, offset      where the offset is not zero; else the address is the base
/// srli  entry, address, 12
/// slli  entry, entry, 3
/// lw    entry, which(entry)
/// blt   x0, entry, elsewhere
/// add   address, address, entry
/// lw    result, 0(address)         or another load
/// jal   x0, back
/// ```
///
/// A store is executed by itself: what it sets going is no part of this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lookup {
    /// Whether the address is added up.
    adds: bool,
    /// Whether it is for a load.
    loads: bool,
}

/// What a [`Lookup`] is done with.
pub(crate) struct Parts {
    pub(crate) base: u8,
    pub(crate) offset: u32,
    pub(crate) address: u8,
    pub(crate) entry: u8,
    pub(crate) which: u32,
    /// How many instructions it has, with the load and the jump back.
    pub(crate) length: usize,
    pub(crate) load: Option<Instruction>,
}

impl Lookup {
    /// Where its instructions are that are always there, by whether the address is added up.
    const fn first(adds: bool) -> usize {
        if adds { 2 } else { 1 }
    }

    /// The one that some instructions begin with.
    fn starting(entries: &[BlockEntry]) -> Option<Self> {
        let (jump, next) = (entries.first()?.instruction, entries.get(1)?.instruction);
        let adds = next.op == Op::Addi;
        let first = Self::first(adds);
        let table = entries.get(first..)?.first_chunk::<5>()?;
        let [page, scaled, load, branch, result] = table.map(|entry| entry.instruction);
        let (base, address, entry) = (page.rs1, result.rd, page.rd);
        let found = (jump.op, jump.rd) == (Op::Jal, 0)
            && (!adds || next.rd == base && base == address)
            && (page.op, page.imm) == (Op::Srli, 12)
            && (scaled.op, scaled.rd, scaled.rs1, scaled.imm) == (Op::Slli, entry, entry, 3)
            && (load.op, load.rd, load.rs1) == (Op::Lw, entry, entry)
            && (branch.op, branch.rs1, branch.rs2) == (Op::Blt, 0, entry)
            && (result.op, result.rs1, result.rs2) == (Op::Add, base, entry)
            && address != 0
            && entry != 0
            && address != entry
            && base != entry;
        let end = entries.get(first + 5..).and_then(<[BlockEntry]>::first_chunk::<2>);
        let loads = end.is_some_and(|end| {
            let [access, back] = end.map(|entry| entry.instruction);
            matches!(access.op, Op::Lb | Op::Lh | Op::Lw | Op::Lbu | Op::Lhu | Op::Flw)
                && (access.rs1, access.imm) == (address, 0)
                && (back.op, back.rd) == (Op::Jal, 0)
                && back.imm != 0
        });
        found.then_some(Self { adds, loads })
    }

    /// What it is done with, if all of it is among these instructions.
    #[inline(always)]
    pub(crate) fn parts(self, entries: &[BlockEntry]) -> Option<Parts> {
        let first = Self::first(self.adds);
        let instruction = |at: usize| entries.get(at).map(|entry| entry.instruction);
        let end = if self.loads { first + 6 } else { first + 4 };
        let last = instruction(end)?;
        let (page, result) = (instruction(first)?, instruction(first + 4)?);
        let (base, offset) = match self.adds {
            true => instruction(1).map(|sum| (sum.rs1, sum.imm.cast_unsigned()))?,
            false => (page.rs1, 0),
        };
        debug_assert!(!self.loads || last.op == Op::Jal, "a look-up for a load ends with a jump back");
        Some(Parts {
            base,
            offset,
            address: result.rd,
            entry: page.rd,
            which: instruction(first + 2)?.imm.cast_unsigned(),
            length: end + 1,
            load: if self.loads { instruction(first + 5) } else { None },
        })
    }
}

/// Some instructions.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) entries: Box<[BlockEntry]>,
    /// Where it goes on behind the last of them, if that does not jump.
    pub(crate) end: u32,
    /// How often it was left behind each of them.
    left: Box<[u64]>,
    /// When it was last known to be what is in memory.
    checked: u64,
}

impl Block {
    /// Where a core is that executed so many instructions of it, and did not jump.
    #[inline(always)]
    pub(crate) fn pc_behind(&self, count: usize) -> u32 {
        self.entries.get(count).map_or(self.end, |entry| entry.pc)
    }

    /// Where it begins.
    #[inline(always)]
    pub(crate) fn start(&self) -> u32 {
        self.pc_behind(0)
    }

    /// Counts that so many instructions of it were executed.
    #[inline(always)]
    pub(crate) fn count(&mut self, count: usize) {
        if let Some(left) = self.left.get_mut(count.wrapping_sub(1)) {
            *left += 1;
        }
    }

    fn add_to(&self, counts: &mut Counts) {
        let mut times = 0;
        for (entry, left) in self.entries.iter().zip(&self.left).rev() {
            times += left;
            counts.add(entry.instruction.op.class(), times);
        }
    }
}

/// Which parts of the address space have decoded code: a bit for each 256 bytes, of 2 MiB; what is further away shares bits.
#[derive(Clone, Debug)]
pub(crate) struct Map(Box<[u64; Map::WORDS]>);

impl Default for Map {
    fn default() -> Self {
        Self(Box::new([0; Self::WORDS]))
    }
}

impl Map {
    const WORDS: usize = 128;

    #[inline(always)]
    fn place(address: u32) -> (usize, u64) {
        let granule = address >> 8;
        ((granule >> 6) as usize % Self::WORDS, 1 << (granule % 64))
    }

    fn mark(&mut self, address: u32) {
        let (word, bit) = Self::place(address);
        if let Some(word) = self.0.get_mut(word) {
            *word |= bit;
        }
    }

    /// Whether code was decoded near some of these addresses.
    pub(crate) fn overlaps(&self, address: u32, length: u32) -> bool {
        let last = address.saturating_add(length.saturating_sub(1));
        (address >> 8..=last >> 8).any(|granule| self.has(granule << 8))
    }

    /// Whether code was decoded near an address.
    #[inline(always)]
    pub(crate) fn has(&self, address: u32) -> bool {
        let (word, bit) = Self::place(address);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }
}

/// Memory that takes nothing until it is written to.
fn no_places() -> Box<[u32]> {
    vec![0; PLACES].into_boxed_slice()
}

/// Every block of a core.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    isa: Isa,
    /// One more than the number of the block at an address, by what is left of that; zeros, of which a core that executes little code
    /// touches few.
    places: Box<[u32]>,
    blocks: Vec<Block>,
    /// Which blocks need not be compared with memory: those that were since this.
    now: u64,
    /// What blocks counted that are forgotten.
    before: Counts,
}

impl Blocks {
    pub(crate) fn new(isa: Isa) -> Self {
        Self { isa, places: no_places(), blocks: Vec::new(), now: 0, before: Counts::default() }
    }

    /// The number of the block at a place; none has the number that there is for no block.
    #[inline(always)]
    #[expect(clippy::indexing_slicing, reason = "places are what addresses leave of their number")]
    fn number(&self, place: usize) -> usize {
        (self.places[place] as usize).wrapping_sub(1)
    }

    /// What is in memory may have changed.
    #[inline(always)]
    pub(crate) fn doubt(&mut self) {
        self.now += 1;
    }

    /// How many instructions of each class were executed in blocks.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = self.before;
        self.blocks.iter().for_each(|block| block.add_to(&mut counts));
        counts
    }

    /// The block that begins at an address, as it is in memory.
    #[inline(always)]
    pub(crate) fn at<B: Bus>(
        &mut self,
        pc: u32,
        code: &mut Map,
        bus: &mut B,
    ) -> Result<&mut Block, Box<Cause>> {
        let place = (pc >> 2) as usize % PLACES;
        let number = self.number(place);
        let known =
            self.blocks.get(number).is_some_and(|block| block.start() == pc && block.checked == self.now);
        let number = if known { number } else { self.find(pc, place, code, bus)? };
        #[expect(clippy::indexing_slicing, reason = "it was just found or made")]
        Ok(&mut self.blocks[number])
    }

    /// Compares a block with memory, or makes one.
    #[cold]
    fn find<B: Bus>(
        &mut self,
        pc: u32,
        place: usize,
        code: &mut Map,
        bus: &mut B,
    ) -> Result<usize, Box<Cause>> {
        let number = self.number(place);
        let found = self.blocks.get_mut(number).filter(|block| block.start() == pc);
        if let Some(block) = found
            && block.entries.iter().all(|entry| bus.fetch(entry.pc) == Ok(entry.word))
        {
            block.checked = self.now;
            return Ok(number);
        }
        if self.blocks.len() == MOST {
            self.forget();
            *code = Map::default();
        }
        let block = self.decode(pc, bus)?;
        for entry in &block.entries {
            code.mark(entry.pc);
        }
        let number = self.blocks.len();
        self.blocks.push(block);
        #[expect(clippy::indexing_slicing, reason = "places are what addresses leave of their number")]
        #[expect(clippy::cast_possible_truncation, reason = "there are never more blocks than the most")]
        {
            self.places[place] = self.blocks.len() as u32;
        }
        Ok(number)
    }

    /// Forgets every block, but not what was executed.
    fn forget(&mut self) {
        self.before = self.counts();
        self.blocks.clear();
        self.places = no_places();
    }

    /// Decodes a block. What cannot be executed is an error where it comes first, and else the end.
    fn decode<B: Bus>(&self, start: u32, bus: &mut B) -> Result<Block, Box<Cause>> {
        let mut entries: Vec<BlockEntry> = Vec::new();
        let mut pc = start;
        while entries.len() < LENGTH {
            let entry = match self.entry(pc, bus) {
                Ok(entry) => entry,
                Err(cause) if entries.is_empty() => return Err(cause),
                Err(_) => break,
            };
            let after = After::of(entry.instruction.op);
            if after == After::Alone && !entries.is_empty() {
                break;
            }
            entries.push(entry);
            let target = pc.wrapping_add(entry.instruction.imm.cast_unsigned());
            pc = if after == After::Target && target.is_multiple_of(4) { target } else { pc.wrapping_add(4) };
            // What comes next may be in it already: a loop, which is a block's whole life.
            if matches!(after, After::Elsewhere | After::Alone) || entries.iter().any(|entry| entry.pc == pc)
            {
                break;
            }
        }
        for start in 0..entries.len() {
            let found = entries.get(start..).and_then(Lookup::starting);
            if let (Some(found), Some(entry)) = (found, entries.get_mut(start)) {
                entry.jump = Jump::Lookup(found);
            }
        }
        let left = vec![0; entries.len()].into_boxed_slice();
        Ok(Block { entries: entries.into_boxed_slice(), end: pc, left, checked: self.now })
    }

    fn entry<B: Bus>(&self, pc: u32, bus: &mut B) -> Result<BlockEntry, Box<Cause>> {
        let word = bus.fetch(pc).map_err(|fault| Box::new(Cause::Fetch(fault)))?;
        let instruction = decode(word, self.isa);
        let instruction = instruction.map_err(|refusal| Box::new(Cause::Instruction { word, refusal }))?;
        let stays = (instruction.op, instruction.rd, instruction.imm) == (Op::Jal, 0, 0);
        Ok(BlockEntry { instruction, pc, word, jump: if stays { Jump::Itself } else { Jump::Plain } })
    }
}

/// What comes behind an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    /// The next.
    Next,
    /// What is at its target.
    Target,
    /// It is unknown.
    Elsewhere,
    /// Nothing in the same block, nor before it: it may read how many were executed.
    Alone,
}

impl After {
    fn of(op: Op) -> Self {
        match op {
            Op::Jal => After::Target,
            Op::Jalr => After::Elsewhere,
            _ if op.class() == Class::System && op != Op::Fence => After::Alone,
            _ => After::Next,
        }
    }
}
