// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Decoded code: consecutive instructions, with jumps between them.
//!
//! A block begins where a core continues. It ends behind an instruction that always leaves it: a jump to an address
//! in a register, or an environment call. It continues behind a branch, and at the target of a jump with an
//! immediate. So a core decodes frequent code once, and looks up the next block once per block.
//!
//! # Validity
//!
//! A block keeps the words that it was made of. While a core [runs](crate::Hart::run), only its own stores
//! change memory, so a block is compared with memory at its first execution in a run, and at its first
//! execution after a store near decoded code, which also ends the block that it is in. Code that changes itself
//! is therefore seen at once. An owner that knows the changes by others can [report them](crate::Hart::changed)
//! instead.

use crate::bus::Bus;
use crate::decode::{Instruction, Isa, Op, decode};
use crate::hart::Counts;
use crate::trap::Cause;

/// The number of word addresses at which blocks may begin: 2 MiB. Addresses further away share entries.
const PLACES: usize = 1 << 19;
/// How many blocks are kept; when there are more, all are dropped.
const MOST: usize = 1 << 14;
/// How many instructions a block has, at most.
const LENGTH: usize = 64;
/// An instruction of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockEntry {
    pub(crate) instruction: Instruction,
    /// Its address.
    pub(crate) pc: u32,
    word: u32,
    pub(crate) jump: Jump,
}

/// The kind of a jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Jump {
    /// No jump, or an ordinary one.
    Plain,
    /// To a [look-up](Lookup).
    Lookup(Lookup),
    /// Itself, with no other effect.
    Itself,
}

/// The beginning of a memory access through a software page table. It is executed in one step together with its
/// load, if the page is present. It is a jump to
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
/// A store is executed by itself, because of its side effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lookup {
    /// True if the address is computed.
    adds: bool,
    /// True if it is for a load.
    loads: bool,
}

/// The operation of a [`Lookup`].
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
    /// The positions of the instructions that are always present, by whether the address is computed.
    const fn first(adds: bool) -> usize {
        if adds { 2 } else { 1 }
    }

    /// The lookup that some instructions begin with.
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

    /// The operation, if these instructions hold all of it.
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
    /// The address behind the last instruction, if that does not jump.
    pub(crate) end: u32,
    /// How often it was left behind each of them.
    left: Box<[u64]>,
    /// The last time at which it matched memory.
    checked: u64,
}

impl Block {
    /// The address of a core that executed this many instructions of it, and did not jump.
    #[inline(always)]
    pub(crate) fn pc_behind(&self, count: usize) -> u32 {
        self.entries.get(count).map_or(self.end, |entry| entry.pc)
    }

    /// Its first address.
    #[inline(always)]
    pub(crate) fn start(&self) -> u32 {
        self.pc_behind(0)
    }

    /// Counts this many executed instructions of it.
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

/// The parts of the address space with decoded code: a bit for each 256 bytes, of 2 MiB; addresses further away
/// share bits.
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

    /// True if code was decoded near some of these addresses.
    pub(crate) fn overlaps(&self, address: u32, length: u32) -> bool {
        let last = address.saturating_add(length.saturating_sub(1));
        (address >> 8..=last >> 8).any(|granule| self.has(granule << 8))
    }

    /// True if code was decoded near an address.
    #[inline(always)]
    pub(crate) fn has(&self, address: u32) -> bool {
        let (word, bit) = Self::place(address);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }
}

/// A number for each place, in parts that take memory when they are written: a core that executes little code needs
/// few of them.
#[derive(Clone, Debug, Default)]
struct Places(Vec<Box<[u32]>>);

impl Places {
    /// The numbers in a part.
    const PART: usize = 1 << 12;

    /// The number at a place, or 0.
    #[inline(always)]
    fn at(&self, place: usize) -> u32 {
        let part = self.0.get(place / Self::PART);
        part.and_then(|part| part.get(place % Self::PART)).copied().unwrap_or(0)
    }

    fn set(&mut self, place: usize, number: u32) {
        if self.0.len() <= place / Self::PART {
            self.0.resize_with(place / Self::PART + 1, Box::default);
        }
        let Some(part) = self.0.get_mut(place / Self::PART) else { return };
        if part.is_empty() {
            *part = vec![0; Self::PART].into_boxed_slice();
        }
        if let Some(known) = part.get_mut(place % Self::PART) {
            *known = number;
        }
    }
}

/// Every block of a core.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    isa: Isa,
    /// One more than the number of the block at an address, by the address's lower bits.
    places: Places,
    blocks: Vec<Block>,
    /// Blocks that matched memory since this time need not be compared.
    now: u64,
    /// The counts of dropped blocks.
    before: Counts,
}

impl Blocks {
    pub(crate) fn new(isa: Isa) -> Self {
        Self { isa, places: Places::default(), blocks: Vec::new(), now: 0, before: Counts::default() }
    }

    /// The number of the block at an index; none has the number that means no block.
    #[inline(always)]
    fn number(&self, place: usize) -> usize {
        (self.places.at(place) as usize).wrapping_sub(1)
    }

    /// Memory may have changed.
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

    /// The block that begins at an address, as in memory.
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
        #[expect(clippy::cast_possible_truncation, reason = "there are never more blocks than the most")]
        self.places.set(place, self.blocks.len() as u32);
        Ok(number)
    }

    /// Drops every block, but keeps the counts.
    fn forget(&mut self) {
        self.before = self.counts();
        self.blocks.clear();
        self.places = Places::default();
    }

    /// Decodes a block. An instruction that cannot be executed is an error if it comes first, and else the end.
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
            entries.push(entry);
            let target = pc.wrapping_add(entry.instruction.imm.cast_unsigned());
            pc = if after == After::Target && target.is_multiple_of(4) { target } else { pc.wrapping_add(4) };
            // The block may hold the next instruction already, as in a loop.
            if after == After::Elsewhere || entries.iter().any(|entry| entry.pc == pc) {
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

/// The step behind an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    /// The next.
    Next,
    /// The instruction at its target.
    Target,
    /// It is unknown.
    Elsewhere,
}

impl After {
    fn of(op: Op) -> Self {
        match op {
            Op::Jal => After::Target,
            Op::Jalr | Op::Ecall | Op::Ebreak => After::Elsewhere,
            _ => After::Next,
        }
    }
}
