// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Orders that hardware does not give by itself, and a program must ask for.
//!
//! Instructions are executed one by one here. On hardware each unit works through its own while other units, other
//! threads and the cores go on. So what a thread or a core does is compared with what it *knows* of instructions that
//! may not have started or ended yet, and a program that relies on more than that is refused.
//!
//! | who | learns by | that |
//! |---|---|---|
//! | a thread | itself | its instructions before have started |
//! | | `STALLWAIT` for a unit | its instructions in the unit have ended, for what the block mask holds back |
//! | | `SEMWAIT` | what threads and cores knew that changed the semaphore, for what the block mask holds back |
//! | | a product | the unpackers have ended with both banks |
//! | | a push | what the core knew |
//! | a core | loading where it waits for the thread's end | all instructions of its thread have ended |
//! | | loading a semaphore | what threads and cores knew that changed it |
//!
//! | what | needs to know |
//! |---|---|
//! | a write to rows of `Dst`, also by `ZEROACC` | packers that read them have ended |
//! | a read of rows of `Dst` | writes of other threads have started: hardware holds back reads during a write |
//! | a write of formats and masks to the configuration | instructions of the unit that they are for have ended |
//! | an instruction directly behind `WRCFG` | it does not read that word: `WRCFG` takes two cycles |
//! | a core's store to the configuration | instructions that it pushed, and that may read it, have ended |
//! | a transfer of the network | what unpackers read, or the packer writes, of the same memory, has ended: any core |
//! | a core's push | what it stored to the configuration, registers or memory, and the instruction reads, is there |
//!
//! A core knows that what it stored last is there once it has loaded it back, and all that it stored before in the same
//! region. Where a thread's `TENSIX_TRISC_SYNC` is on (`AutoTTSync.md`), hardware keeps its core's accesses to
//! configuration and registers in order with its instructions. `STALLWAIT` for the core's requests does so for the
//! instructions that it blocks.

use super::error::EngineError;
use super::frontend::Unit;
use super::model::{Model, has};
use hal_tenstorrent_loader::tensix::instructions::Instruction;
use hal_tenstorrent_loader::tensix::{Chip, Conditions};

/// How many threads there are.
const THREADS: usize = 3;
/// Rows of `Dst` that hardware keeps apart: eight of 16 bits.
pub(super) const BLOCK: u32 = 8;
/// How many of them there are.
const BLOCKS: usize = 128;

/// A unit whose instructions take a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pipeline {
    Unpack0,
    Unpack1,
    Matrix,
    Pack,
}

const PIPELINES: usize = 4;

/// How many instructions of each thread in each pipeline have started and ended, as far as is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Clock {
    started: [[u64; PIPELINES]; THREADS],
    ended: [[u64; PIPELINES]; THREADS],
}

impl Clock {
    fn join(&mut self, other: &Self) {
        let mine = self.started.iter_mut().chain(&mut self.ended).flatten();
        for (mine, other) in mine.zip(other.started.iter().chain(&other.ended).flatten()) {
            *mine = (*mine).max(*other);
        }
    }
}

/// What a thread learns once an instruction starts that a wait would have kept from starting.
#[derive(Clone, Copy, Debug)]
struct Lesson {
    blocks: u32,
    clock: Clock,
}

/// What a thread knows.
#[derive(Clone, Debug, Default)]
struct ThreadOrder {
    known: Clock,
    lessons: Vec<Lesson>,
    /// The words that the instruction before has written by `WRCFG`.
    written: std::ops::Range<usize>,
}

/// A core's store to the configuration, or else to registers of the scalar unit.
#[derive(Clone, Copy, Debug)]
struct CoreStore {
    address: u32,
    is_config: bool,
    /// The block masks of `STALLWAIT`s for it.
    covered: u32,
}

/// What an instruction reads or writes that cores store as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Uses {
    config: bool,
    registers: bool,
}

/// A word that a core pushes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pushed {
    /// The unit, if it does not become other instructions.
    unit: Option<Unit>,
    uses: Uses,
    /// The block mask, if it is `STALLWAIT` for what the core has stored.
    covers: u32,
    is_mop: bool,
}

impl Pushed {
    pub(super) fn new(chip: Chip, word: u32) -> Self {
        let instruction = Instruction::decode(word, chip);
        let (config, registers) = match instruction {
            None | Some(Instruction::Mop(_) | Instruction::Wrcfg(_)) => (true, true),
            Some(Instruction::Replay(fields)) => (fields.load.get() == 0, fields.load.get() == 0),
            Some(
                Instruction::Unpacr(_)
                | Instruction::UnpacrNop(_)
                | Instruction::Pacr(_)
                | Instruction::Mvmul(_)
                | Instruction::Zeroacc(_),
            ) => (true, false),
            Some(Instruction::Setdmareg(_)) => (false, true),
            Some(_) => (false, false),
        };
        let unit = match instruction {
            None | Some(Instruction::Mop(_) | Instruction::Replay(_)) => None,
            Some(instruction) => Some(Unit::of(instruction)),
        };
        let covers = match instruction {
            Some(Instruction::Stallwait(fields))
                if fields.condition_mask.get() & chip.conditions().core != 0 =>
            {
                fields.block_mask.get()
            }
            _ => 0,
        };
        let is_mop = matches!(instruction, Some(Instruction::Mop(_)));
        Self { unit, uses: Uses { config, registers }, covers, is_mop }
    }
}

/// What a core has not made sure of.
#[derive(Clone, Copy, Debug, Default)]
struct CoreOrder {
    /// The last store that it has not loaded back.
    stored: Option<CoreStore>,
    /// True if it has pushed what may read the configuration, and not waited since.
    pushed: bool,
    /// True if it has pushed a MOP, and not waited since.
    pushed_mop: bool,
}

/// The last accesses of a block of `Dst`.
#[derive(Clone, Copy, Debug, Default)]
struct DstBlock {
    /// By thread: the number of the last instruction of the matrix unit that wrote it.
    written: [u64; THREADS],
    /// By thread: the number of the packer's last instruction that read it.
    read: [u64; THREADS],
}

/// Memory that some instructions have read or written.
#[derive(Clone, Debug, Default)]
struct Touched {
    /// From the first to the last of it.
    range: std::ops::Range<u64>,
    /// A bit for each 16 bytes.
    bits: Vec<u64>,
    /// The number of the last instruction.
    last: u64,
}

impl Touched {
    /// The numbers of the bits of some memory.
    fn granules(range: &std::ops::Range<u64>) -> std::ops::Range<usize> {
        let number = |address: u64| usize::try_from(address).unwrap_or(usize::MAX);
        number(range.start / 16)..number(range.end.div_ceil(16))
    }

    fn add(&mut self, range: std::ops::Range<u64>) {
        let granules = Self::granules(&range);
        if self.bits.len() * 64 < granules.end {
            self.bits.resize(granules.end.div_ceil(64), 0);
        }
        for granule in granules {
            if let Some(word) = self.bits.get_mut(granule / 64) {
                *word |= 1 << (granule % 64);
            }
        }
        self.range = if self.range.is_empty() {
            range
        } else {
            self.range.start.min(range.start)..self.range.end.max(range.end)
        };
    }

    fn meets(&self, range: &std::ops::Range<u64>) -> bool {
        let both = self.range.start.max(range.start)..self.range.end.min(range.end);
        both.start < both.end
            && Self::granules(&both).any(|granule| {
                self.bits.get(granule / 64).is_some_and(|word| word >> (granule % 64) & 1 == 1)
            })
    }

    fn clear(&mut self) {
        let granules = Self::granules(&self.range);
        let words = self.bits.get_mut(granules.start / 64..granules.end.div_ceil(64));
        words.into_iter().flatten().for_each(|word| *word = 0);
        self.range = 0..0;
    }
}

/// All of it.
#[derive(Clone, Debug)]
pub(super) struct Order {
    model: &'static Model,
    started: [[u64; PIPELINES]; THREADS],
    threads: [ThreadOrder; THREADS],
    /// What the threads' cores know.
    cores: [Clock; THREADS],
    /// Those of the threads, and core B.
    stores: [CoreOrder; THREADS + 1],
    semaphores: [Clock; 8],
    dst: Box<[DstBlock; BLOCKS]>,
    /// The memory that a thread's instructions in a pipeline have read or written, of whose end no core knows.
    memory: [[Touched; PIPELINES]; THREADS],
    /// What is known of the unpacker's instructions that wrote each bank, where it was given away: by source and bank.
    banks: [[(usize, u64); 2]; 2],
}

const ALL_PIPELINES: [Pipeline; PIPELINES] =
    [Pipeline::Unpack0, Pipeline::Unpack1, Pipeline::Matrix, Pipeline::Pack];

#[expect(clippy::indexing_slicing, reason = "threads, blocks, semaphores and pipelines have these numbers")]
impl Order {
    pub(super) fn new(model: &'static Model) -> Self {
        Self {
            model,
            started: [[0; PIPELINES]; THREADS],
            threads: [(); THREADS].map(|()| ThreadOrder::default()),
            cores: [Clock::default(); THREADS],
            stores: [CoreOrder::default(); THREADS + 1],
            semaphores: [Clock::default(); 8],
            dst: Box::new([DstBlock::default(); BLOCKS]),
            memory: [(); THREADS].map(|()| [(); PIPELINES].map(|()| Touched::default())),
            banks: [[(0, 0); 2]; 2],
        }
    }

    /// Everything has ended, and all know.
    pub(super) fn forget(&mut self) {
        *self = Self::new(self.model);
    }

    /// An instruction is about to start: its thread learns from waits that would have kept it from doing so.
    pub(super) fn start(&mut self, thread: usize, unit: Unit) -> Result<(), EngineError> {
        let ThreadOrder { known, lessons, written } = &mut self.threads[thread];
        lessons.retain(|lesson| {
            let learns = unit.is_blocked_by(lesson.blocks);
            if learns {
                known.join(&lesson.clock);
            }
            !learns
        });
        let reads = match unit {
            Unit::Unpack => self.model.read[0],
            Unit::Matrix => self.model.read[1],
            Unit::Pack => self.model.read[2],
            _ => &[],
        };
        if std::mem::take(written).any(|word| has(reads, word)) {
            return Err(EngineError::Unordered(
                "it reads a word that WRCFG wrote directly before: put a NOP in between",
            ));
        }
        Ok(())
    }

    /// Counts an instruction in its pipeline, and returns its number.
    pub(super) fn count(&mut self, thread: usize, pipeline: Pipeline) -> u64 {
        let count = &mut self.started[thread][pipeline as usize];
        *count += 1;
        self.threads[thread].known.started[thread][pipeline as usize] = *count;
        *count
    }

    /// `STALLWAIT`: the instructions that have started before have ended, where it blocks.
    pub(super) fn stall(&mut self, thread: usize, conditions: u32, blocks: u32) {
        let mut clock = Clock::default();
        let Conditions { unpack_0, unpack_1, pack, math, .. } = self.model.chip.conditions();
        for (condition, pipeline) in [unpack_0, unpack_1, math, pack].into_iter().zip(ALL_PIPELINES) {
            // Of several packers, the first.
            if conditions & (condition & condition.wrapping_neg()) != 0 {
                clock.ended[thread][pipeline as usize] = self.started[thread][pipeline as usize];
            }
        }
        self.threads[thread].lessons.push(Lesson { blocks, clock });
    }

    /// The semaphores for which a thread waited have the values that it waited for.
    pub(super) fn waited(&mut self, thread: usize, mask: u32, blocks: u32) {
        let mut clock = Clock::default();
        for (_, semaphore) in self.semaphores.iter().enumerate().filter(|(at, _)| mask >> at & 1 == 1) {
            clock.join(semaphore);
        }
        self.threads[thread].lessons.push(Lesson { blocks, clock });
    }

    /// A thread changes semaphores.
    pub(super) fn signal(&mut self, thread: usize, mask: u32) {
        let known = self.threads[thread].known;
        for (_, semaphore) in self.semaphores.iter_mut().enumerate().filter(|(at, _)| mask >> at & 1 == 1) {
            semaphore.join(&known);
        }
    }

    /// The core of a thread changes a semaphore.
    pub(super) fn core_signals(&mut self, thread: usize, semaphore: usize) {
        self.semaphores[semaphore].join(&self.cores[thread]);
    }

    /// The core of a thread has loaded a semaphore.
    pub(super) fn core_sees(&mut self, thread: usize, semaphore: usize) {
        let seen = &self.semaphores[semaphore];
        self.cores[thread].join(seen);
        for (touched, ended) in self.memory.iter_mut().flatten().zip(seen.ended.iter().flatten()) {
            if touched.last <= *ended {
                touched.clear();
            }
        }
        self.stores[thread].pushed = false;
    }

    /// The core of a thread has waited for its thread.
    pub(super) fn core_waited(&mut self, thread: usize) {
        let clock = &mut self.cores[thread];
        clock.started[thread] = self.started[thread];
        clock.ended[thread] = self.started[thread];
        self.memory[thread].iter_mut().for_each(Touched::clear);
        let state = &mut self.stores[thread];
        (state.pushed, state.pushed_mop) = (false, false);
    }

    /// The last instruction of a thread in a pipeline has read or written memory.
    pub(super) fn touch(&mut self, thread: usize, pipeline: Pipeline, range: std::ops::Range<u64>) {
        let touched = &mut self.memory[thread][pipeline as usize];
        touched.last = self.started[thread][pipeline as usize];
        touched.add(range);
    }

    /// Refuses a transfer of the network that reads or writes memory that instructions may still use.
    pub(super) fn check_transfer(
        &self,
        range: &std::ops::Range<u64>,
        writes: bool,
    ) -> Result<(), EngineError> {
        for [unpack0, unpack1, _, pack] in &self.memory {
            if pack.meets(range) {
                return Err(EngineError::Unordered(
                    "a transfer of results that the packer may not have written yet: a core waits for its end before",
                ));
            }
            if writes && (unpack0.meets(range) || unpack1.meets(range)) {
                return Err(EngineError::Unordered(
                    "a transfer to operands that an unpacker may still read: a core waits for its end before",
                ));
            }
        }
        Ok(())
    }

    /// The core of a thread has waited for its MOP expander.
    pub(super) fn core_waited_for_mop(&mut self, thread: usize) {
        self.stores[thread].pushed_mop = false;
    }

    /// Refuses a store to the configuration of a MOP expander that may still use it.
    pub(super) fn check_mop(&self, thread: usize) -> Result<(), EngineError> {
        if self.stores[thread].pushed_mop {
            return Err(EngineError::Unordered(
                "the MOP expander may still use its configuration: wait for its end before",
            ));
        }
        Ok(())
    }

    /// The core of a thread, or core B, has stored to the configuration or to registers. `is_tracked` if hardware keeps
    /// that in order.
    pub(super) fn core_stored(
        &mut self,
        core: Option<usize>,
        address: u32,
        is_config: bool,
        is_tracked: bool,
    ) {
        if !is_tracked {
            self.stores[core.unwrap_or(THREADS)].stored = Some(CoreStore { address, is_config, covered: 0 });
        }
    }

    /// A core has loaded from the configuration or from registers.
    pub(super) fn core_loaded(&mut self, core: Option<usize>, address: u32) {
        let stored = &mut self.stores[core.unwrap_or(THREADS)].stored;
        if stored.is_some_and(|last| last.address == address) {
            *stored = None;
        }
    }

    /// Refuses a store of a core to the configuration that instructions may still read which it pushed before.
    pub(super) fn check_core_store(&self, core: Option<usize>, is_tracked: bool) -> Result<(), EngineError> {
        if self.stores[core.unwrap_or(THREADS)].pushed && !is_tracked {
            return Err(EngineError::Unordered(
                "instructions that the core pushed before may read the old value, or the new: wait for their end \
                 before, or let WRCFG write it",
            ));
        }
        Ok(())
    }

    /// The core of a thread, or core B, pushes a word to a thread.
    pub(super) fn push(
        &mut self,
        core: Option<usize>,
        thread: usize,
        word: &Pushed,
    ) -> Result<(), EngineError> {
        if let Some(core) = core {
            let known = self.cores[core];
            self.threads[thread].known.join(&known);
        }
        let state = &mut self.stores[core.unwrap_or(THREADS)];
        state.pushed_mop |= word.is_mop;
        state.pushed |= word.uses.config;
        let Some(stored) = &mut state.stored else { return Ok(()) };
        if core.is_some() {
            stored.covered |= word.covers;
        }
        let meets = if stored.is_config { word.uses.config } else { word.uses.registers };
        if !meets {
            return Ok(());
        }
        // What becomes other instructions may wait with the first of them.
        let waits = word.unit.map_or(stored.covered != 0, |unit| unit.is_blocked_by(stored.covered));
        if waits {
            state.stored = None;
            return Ok(());
        }
        Err(EngineError::Unordered(
            "it may overtake what the core stored to the configuration or to registers: load that back, and use it, \
             before",
        ))
    }

    /// `WRCFG` is about to write words.
    pub(super) fn check_config(
        &mut self,
        thread: usize,
        words: std::ops::Range<usize>,
    ) -> Result<(), EngineError> {
        let known = &self.threads[thread].known;
        for pipeline in ALL_PIPELINES {
            let busy = (0..THREADS)
                .any(|other| known.ended[other][pipeline as usize] < self.started[other][pipeline as usize]);
            let reads = self.model.read_throughout[pipeline as usize];
            if busy && words.clone().any(|word| has(reads, word)) {
                return Err(EngineError::Unordered(match pipeline {
                    Pipeline::Unpack0 => {
                        "unpacker 0 may still read the word: STALLWAIT for it, with block bit B7, before"
                    }
                    Pipeline::Unpack1 => {
                        "unpacker 1 may still read the word: STALLWAIT for it, with block bit B7, before"
                    }
                    Pipeline::Pack => {
                        "the packer may still read the word: STALLWAIT for it, with block bit B7, before"
                    }
                    Pipeline::Matrix => {
                        "the matrix unit may still read the word: STALLWAIT for it, with block bit B7, before"
                    }
                }));
            }
        }
        self.threads[thread].written = words;
        Ok(())
    }

    /// A bank is given to the matrix unit by an instruction of an unpacker.
    pub(super) fn give(&mut self, source: usize, bank: usize, thread: usize, number: u64) {
        self.banks[source & 1][bank & 1] = (thread, number);
    }

    /// A product reads both banks, which it has waited for.
    pub(super) fn multiply(&mut self, thread: usize, banks: [usize; 2]) {
        for (source, bank) in banks.into_iter().enumerate() {
            let (by, number) = self.banks[source][bank & 1];
            for clock in [&mut self.threads[thread].known.started, &mut self.threads[thread].known.ended] {
                clock[by][source] = clock[by][source].max(number);
            }
        }
    }

    /// The matrix unit is about to write blocks of `Dst`, and to read them too if it adds.
    pub(super) fn write_dst(
        &mut self,
        thread: usize,
        blocks: impl Iterator<Item = usize>,
        adds: bool,
    ) -> Result<(), EngineError> {
        let number = self.count(thread, Pipeline::Matrix);
        let known = &self.threads[thread].known;
        for block in blocks {
            let block = &mut self.dst[block % BLOCKS];
            for other in 0..THREADS {
                if block.read[other] > known.ended[other][Pipeline::Pack as usize] {
                    return Err(EngineError::Unordered(
                        "the packer may still read these rows of Dst: STALLWAIT for it, with block bit B6, or for \
                         SEMPOST or SEMGET (B1) to the semaphore that this thread waits for, before",
                    ));
                }
                check_written(block, known, other, adds)?;
            }
            block.written[thread] = number;
        }
        Ok(())
    }

    /// The packer is about to read blocks of `Dst`.
    pub(super) fn read_dst(
        &mut self,
        thread: usize,
        blocks: impl Iterator<Item = usize>,
    ) -> Result<(), EngineError> {
        let number = self.count(thread, Pipeline::Pack);
        let known = &self.threads[thread].known;
        for block in blocks {
            let block = &mut self.dst[block % BLOCKS];
            (0..THREADS).try_for_each(|other| check_written(block, known, other, true))?;
            block.read[thread] = number;
        }
        Ok(())
    }
}

/// Refuses a read of rows that another thread may not have written yet.
#[expect(clippy::indexing_slicing, reason = "threads have these numbers")]
fn check_written(block: &DstBlock, known: &Clock, other: usize, reads: bool) -> Result<(), EngineError> {
    if reads && block.written[other] > known.started[other][Pipeline::Matrix as usize] {
        return Err(EngineError::Unordered(
            "another thread may not have written these rows of Dst yet: wait for a semaphore that it changes behind",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// True if a thread may write rows that its packer has read, behind `STALLWAIT` for something.
    fn may_write(chip: Chip, conditions: u32) -> bool {
        let mut order = Order::new(Model::of(chip));
        order.read_dst(0, [0].into_iter()).unwrap();
        order.stall(0, conditions, 1 << 6);
        order.start(0, Unit::Matrix).unwrap();
        order.write_dst(0, [0].into_iter(), false).is_ok()
    }

    /// Of Wormhole's four packers, the first is here.
    #[test]
    fn end_of_the_packer_is_waited_for_by_its_own_bit() {
        assert!(may_write(Chip::Blackhole, 1 << 3) && !may_write(Chip::Blackhole, 1 << 4));
        assert!(may_write(Chip::Wormhole, 1 << 3) && may_write(Chip::Wormhole, 0xf << 3));
        assert!(!may_write(Chip::Wormhole, 0xe << 3) && !may_write(Chip::Wormhole, 1 << 7));
    }
}
