// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The matrix engine of a tile: the part of the Tensix coprocessor that a matrix product needs.
//!
//! Cores push words into three threads. A thread's words pass [two expanders and a gate](frontend) in order, and then
//! start in a unit: [unpackers](unpacker) move elements from the tile's memory to [`SrcA` and `SrcB`](source), the
//! [matrix unit](matrix) adds [products](product) to [`Dst`](destination), and the [packer] moves rows of that back to
//! memory. Instructions take most of their operands from [configuration](config) and [counters]. Names are those of the
//! ISA documentation (tenstorrent/tt-isa-documentation, `TensixTile/TensixCoprocessor`), which each module cites by
//! page.
//!
//! # What it is judged by
//!
//! Results are those of the vendor's simulator to the bit: `tests/golden` of this crate has some, and says how they
//! were made. What neither has a function for is refused by an [`EngineError`]. A few things are here by the
//! documentation alone, since that simulator refuses them: `FIDELITY_BASE`, automatic TTSync, unpacker 1's strides `X`
//! and `Y` of channel 1, `Offset_address` of `THCON_SEC0_REG7` and `THCON_SEC1_REG7`, `ZEROACC` of a row with
//! `INT8_math_enabled`, `YsrcCR` in a packer's address mode, and the conditions C5, C6 and C9 of `STALLWAIT`. Counters
//! Z and W have 8 bits, as there, where the documentation gives Blackhole 13.
//!
//! # Order
//!
//! An instruction is executed as soon as it may start, and completely: threads take turns, one instruction each, until
//! all wait or are done. Hardware executes instructions of different units side by side.
//!
//! What must wait, waits: an unpacker for its bank, a product for both banks, `STALLWAIT` and `SEMWAIT` for their
//! conditions, and a core that pushes for room in the queue. A program that waits for ever does so here as well.
//!
//! An order that hardware does not give, and the program does not ask for, is [refused](order). The vendor's simulator
//! does not notice it.

mod config;
mod counters;
mod destination;
mod error;
mod format;
mod frontend;
mod matrix;
mod model;
mod order;
mod packer;
mod product;
mod source;
mod sync;
mod thread;
mod unpacker;
mod window;

pub use error::EngineError;

use crate::counts::EngineCounts;
use crate::noc::Tile;
use crate::tensix::Core;
use crate::violation::Violation;
use config::Config;
use destination::Destination;
use frontend::LatchedWait;
pub(crate) use frontend::Unit;
use hal_tenstorrent_loader::tensix::instructions::{Instruction, Mvmul, Pacr, Semwait, Unpacr, Wrcfg};
use hal_tenstorrent_loader::tensix::{Chip, Conditions};
use matrix::Registers;
use model::Model;
use order::{Order, Pipeline};
use packer::Packer;
use product::Multipliers;
use source::Source;
use std::ops::Range;
use sync::Semaphores;
use thread::{GPRS, Thread};

/// How many threads there are.
const THREADS: usize = 3;

/// The engine of a tile.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    tile: Tile,
    model: &'static Model,
    threads: [Thread; THREADS],
    config: Config,
    src_a: Source,
    src_b: Source,
    dst: Destination,
    multipliers: Multipliers,
    packer: Packer,
    semaphores: Semaphores,
    counts: EngineCounts,
    order: Order,
    /// The address of what the core that pushes has stored last in memory, and not loaded back.
    unloaded: Option<u32>,
    /// The tile's memory that the packer has written since the last call of [`Engine::take_written`].
    written: Range<u64>,
    /// The rule that an instruction broke. Nothing is executed from then on.
    broken: Option<Violation>,
}

/// The place of a tile's engine, which is made when a core uses it.
#[derive(Clone, Debug)]
pub(crate) struct EngineSlot {
    tile: Tile,
    chip: Chip,
    engine: Option<Box<Engine>>,
}

impl EngineSlot {
    /// Without an engine yet.
    pub(crate) fn new(tile: Tile, chip: Chip) -> Self {
        Self { tile, chip, engine: None }
    }

    /// The engine.
    pub(crate) fn get(&mut self) -> &mut Engine {
        let (tile, chip) = (self.tile, self.chip);
        self.engine.get_or_insert_with(|| Box::new(Engine::new(tile, chip)))
    }

    /// The engine, if a core has used it.
    pub(crate) fn used(&self) -> Option<&Engine> {
        self.engine.as_deref()
    }

    /// The engine, if a core has used it.
    pub(crate) fn used_mut(&mut self) -> Option<&mut Engine> {
        self.engine.as_deref_mut()
    }
}

/// The result of an access by a core.
pub(crate) enum Access<T> {
    /// It was done.
    Done(T),
    /// It waits, and was not done.
    Wait,
    /// Nothing is there for this core.
    Unmapped,
    /// A rule was broken.
    Broken(Violation),
}

#[expect(clippy::indexing_slicing, reason = "threads are numbered 0 to 2")]
impl Engine {
    /// The engine of a tile after power-on.
    pub(crate) fn new(tile: Tile, chip: Chip) -> Self {
        let model = Model::of(chip);
        Self {
            tile,
            model,
            threads: [(); THREADS].map(|()| Thread::new(chip)),
            config: Config::new(model),
            src_a: Source::new(),
            src_b: Source::new(),
            dst: Destination::new(),
            multipliers: Multipliers::new(),
            packer: Packer::default(),
            semaphores: Semaphores::default(),
            counts: EngineCounts::default(),
            order: Order::new(model),
            unloaded: None,
            written: 0..0,
            broken: None,
        }
    }

    /// How many instructions it has executed.
    pub(crate) fn counts(&self) -> EngineCounts {
        self.counts
    }

    /// A core is held in reset: instructions on their way to its expander are gone.
    pub(crate) fn hold(&mut self, core: Core) {
        if let Some(thread) = window::thread_of(core) {
            self.threads[thread].frontend.discard();
        }
    }

    /// Refuses a transfer of the network that reads or writes memory that instructions may still use.
    pub(crate) fn check_transfer(&self, range: &Range<u64>, writes: bool) -> Result<(), Violation> {
        let checked = self.order.check_transfer(range, writes);
        checked.map_err(|reason| Violation::EngineAccess { tile: self.tile, reason })
    }

    /// A core starts: what has been executed before has ended.
    pub(crate) fn release(&mut self) {
        self.order.forget();
    }

    /// The memory that was written since the last call.
    pub(crate) fn take_written(&mut self) -> Option<Range<u64>> {
        let written = std::mem::take(&mut self.written);
        (!written.is_empty()).then_some(written)
    }

    /// Executes instructions of all threads until each waits or has none.
    fn run(&mut self, l1: &mut [u8]) -> Result<(), Violation> {
        loop {
            let mut any = false;
            for thread in 0..THREADS {
                any |= self.step(thread, l1)?;
            }
            if !any {
                return Ok(());
            }
        }
    }

    /// Executes the next instruction of a thread. Returns false if it has none, or that waits.
    fn step(&mut self, thread: usize, l1: &mut [u8]) -> Result<bool, Violation> {
        let tile = self.tile;
        let broken = |word, reason| Violation::Engine { tile, thread, word, reason };
        let next = self.threads[thread].frontend.next().map_err(|(word, reason)| broken(word, reason))?;
        let Some(word) = next else { return Ok(false) };
        let instruction =
            Instruction::decode(word, self.model.chip).ok_or_else(|| broken(word, EngineError::Unknown))?;
        let unit = Unit::of(instruction);
        if self.must_wait(thread, unit) || !self.may_start(instruction) {
            return Ok(false);
        }
        self.order.start(thread, unit).map_err(|reason| broken(word, reason))?;
        self.execute(thread, instruction, l1).map_err(|reason| broken(word, reason))?;
        self.threads[thread].frontend.start();
        self.counts.count(unit);
        Ok(true)
    }

    /// True if the thread's last wait keeps an instruction from starting. Forgets a wait whose conditions are met.
    fn must_wait(&mut self, thread: usize, unit: Unit) -> bool {
        let Some(wait) = self.threads[thread].frontend.wait else { return false };
        let waits = match wait.semaphores {
            Some(mask) => {
                wait.conditions & 1 != 0 && self.semaphores.any_zero(mask)
                    || wait.conditions & 2 != 0 && self.semaphores.any_full(mask)
            }
            None => self.stalls(wait.conditions),
        };
        if !waits {
            self.threads[thread].frontend.wait = None;
            if let Some(mask) = wait.semaphores {
                self.order.waited(thread, mask, wait.blocks);
            }
        }
        waits && unit.is_blocked_by(wait.blocks)
    }

    /// True if the banks of an instruction are its unit's.
    fn may_start(&self, instruction: Instruction) -> bool {
        match instruction {
            Instruction::Mvmul(_) => self.src_a.matrix_may_read() && self.src_b.matrix_may_read(),
            Instruction::Unpacr(unpacr) if unpacr.which_unpacker.get() == 0 => {
                self.src_a.unpacker_may_write()
            }
            Instruction::Unpacr(_) => self.src_b.unpacker_may_write(),
            Instruction::UnpacrNop(nop) => {
                let source = if nop.unpacker_select.get() == 0 { &self.src_a } else { &self.src_b };
                // Wormhole's mode that only gives a bank away does not wait.
                if nop.stall_clr_cntrl.get() == 1 {
                    source.unpacker_may_write()
                } else {
                    !source.matrix_may_read()
                }
            }
            _ => true,
        }
    }

    /// True if a condition of `STALLWAIT` is not met. Units are done with their instructions at once.
    fn stalls(&self, conditions: u32) -> bool {
        let Conditions { src_a_cleared, src_b_cleared, src_a_valid, src_b_valid, .. } =
            self.model.chip.conditions();
        conditions & src_a_cleared != 0 && !self.src_a.unpacker_may_write()
            || conditions & src_b_cleared != 0 && !self.src_b.unpacker_may_write()
            || conditions & src_a_valid != 0 && !self.src_a.matrix_may_read()
            || conditions & src_b_valid != 0 && !self.src_b.matrix_may_read()
    }

    /// Executes an instruction that may start.
    fn execute(&mut self, thread: usize, instruction: Instruction, l1: &mut [u8]) -> Result<(), EngineError> {
        let state = &mut self.threads[thread];
        match instruction {
            Instruction::Nop(_) => {}
            // Behind the expanders there are none.
            Instruction::Mop(_) | Instruction::MopCfg(_) | Instruction::Replay(_) => {
                return Err(EngineError::Unknown);
            }
            Instruction::Seminit(_) | Instruction::Sempost(_) | Instruction::Semget(_) => {
                self.signal(thread, instruction)?;
            }
            Instruction::Semwait(fields) => state.frontend.wait = Some(semaphore_wait(fields)?),
            Instruction::Stallwait(fields) => {
                let (conditions, blocks) = (fields.condition_mask.get(), fields.block_mask.get());
                let wait = LatchedWait::stall(self.model.chip, conditions, blocks);
                state.frontend.wait = Some(wait);
                self.order.stall(thread, wait.conditions, wait.blocks);
            }
            Instruction::Setdmareg(fields) => state.set_gpr(fields),
            Instruction::Wrcfg(fields) => self.write_config(thread, fields)?,
            Instruction::Setc16(fields) => {
                self.config.write_thread(thread, fields.cfg_index.get(), fields.new_value.get())?;
            }
            Instruction::Setadc(fields) => state.set_adc(fields)?,
            Instruction::Setadcxy(fields) => state.set_xy(fields)?,
            Instruction::Incadcxy(fields) => state.add_xy(fields)?,
            Instruction::Setadczw(fields) => state.set_zw(fields)?,
            Instruction::Incadczw(fields) => state.add_zw(fields)?,
            Instruction::Setadcxx(fields) => state.set_xx(fields),
            Instruction::Unpacr(unpacr) => self.unpack(thread, unpacr, l1)?,
            Instruction::UnpacrNop(nop) => {
                let source = if nop.unpacker_select.get() == 0 { &mut self.src_a } else { &mut self.src_b };
                let bank = source.unpack_bank();
                unpacker::clear(nop, self.config.bank(thread), source)?;
                self.give(thread, nop.unpacker_select.get(), bank);
            }
            Instruction::Pacr(pacr) => self.pack(thread, pacr, l1)?,
            Instruction::Mvmul(mvmul) => self.multiply(thread, mvmul)?,
            Instruction::Zeroacc(fields) => {
                let rows = self.registers(thread).clear_dst(fields)?;
                self.order.write_dst(thread, rows.blocks(), false)?;
            }
            Instruction::Setrwc(fields) => self.registers(thread).set_counters(fields)?,
            Instruction::Incrwc(fields) => self.registers(thread).add_to_counters(fields),
            Instruction::Cleardvalid(fields) => self.registers(thread).clear_valid(fields)?,
            Instruction::Zerosrc(fields) => self.registers(thread).clear_sources(fields)?,
        }
        Ok(())
    }

    fn signal(&mut self, thread: usize, instruction: Instruction) -> Result<(), EngineError> {
        let mask = match instruction {
            Instruction::Seminit(fields) => {
                let mask = fields.semaphore_mask.get();
                self.semaphores.init(mask, fields.new_value.get(), fields.new_max.get())?;
                mask
            }
            Instruction::Sempost(fields) => {
                self.semaphores.post_below_max(fields.semaphore_mask.get())?;
                fields.semaphore_mask.get()
            }
            Instruction::Semget(fields) => {
                self.semaphores.get_above_zero(fields.semaphore_mask.get())?;
                fields.semaphore_mask.get()
            }
            _ => 0,
        };
        self.order.signal(thread, mask);
        Ok(())
    }

    fn write_config(&mut self, thread: usize, fields: Wrcfg) -> Result<(), EngineError> {
        let bank = self.config.bank_of(thread);
        let (count, mask) = if fields.is_128_bit.get() == 1 { (4, !3) } else { (1, !0) };
        let (word, register) = (fields.cfg_index.get() & mask, fields.input_reg.get() & mask);
        let words = word as usize..(word + count) as usize;
        self.order.check_config(thread, words.clone())?;
        for (word, register) in words.zip(register..) {
            let value = self.threads[thread].gprs[register as usize % GPRS];
            self.config.write(bank, word, value)?;
        }
        Ok(())
    }

    fn unpack(&mut self, thread: usize, unpacr: Unpacr, l1: &[u8]) -> Result<(), EngineError> {
        const STORED: &str =
            "the core has just stored what it reads, and it may be earlier: load that back before the push";
        let unpacker = unpacr.which_unpacker.get() as usize;
        let source = if unpacker == 0 { &mut self.src_a } else { &mut self.src_b };
        let bank = source.unpack_bank();
        let sets_address =
            self.config.thread(thread).has(self.model.chip.registers().srca_set_set_ovrd_with_addr);
        let adc = &mut self.threads[thread].adcs[unpacker];
        let read = unpacker::unpack(unpacr, self.config.bank(thread), sets_address, adc, source, l1)?;
        if self.unloaded.is_some_and(|address| read.contains(&address.into())) {
            return Err(EngineError::Unordered(STORED));
        }
        let pipeline = self.give(thread, unpacr.which_unpacker.get(), bank);
        self.order.touch(thread, pipeline, read);
        Ok(())
    }

    /// Counts an instruction of an unpacker that wrote a bank, and may have given it away.
    fn give(&mut self, thread: usize, unpacker: u32, bank: usize) -> Pipeline {
        let pipeline = if unpacker == 0 { Pipeline::Unpack0 } else { Pipeline::Unpack1 };
        let number = self.order.count(thread, pipeline);
        self.order.give(pipeline as usize, bank, thread, number);
        pipeline
    }

    fn pack(&mut self, thread: usize, pacr: Pacr, l1: &mut [u8]) -> Result<(), EngineError> {
        let adc = &mut self.threads[thread].adcs[2];
        let (rows, range) = self.packer.pack(pacr, self.config.bank(thread), adc, &self.dst, l1)?;
        adc.apply_pack(self.config.thread(thread), pacr.addr_mod.get());
        let touched = range.clone();
        self.written = if self.written.is_empty() {
            range
        } else {
            self.written.start.min(range.start)..self.written.end.max(range.end)
        };
        self.order.read_dst(thread, rows.blocks())?;
        self.order.touch(thread, Pipeline::Pack, touched);
        Ok(())
    }

    fn multiply(&mut self, thread: usize, mvmul: Mvmul) -> Result<(), EngineError> {
        self.order.multiply(thread, [self.src_a.matrix_bank(), self.src_b.matrix_bank()]);
        let rows = self.registers(thread).multiply(mvmul)?;
        self.order.write_dst(thread, rows.blocks(), true)
    }

    /// The registers, as the matrix unit sees them for a thread.
    fn registers(&mut self, thread: usize) -> Registers<'_> {
        Registers {
            config: self.config.bank(thread),
            thread: self.config.thread(thread),
            rwc: &mut self.threads[thread].rwc,
            src_a: &mut self.src_a,
            src_b: &mut self.src_b,
            dst: &mut self.dst,
            multipliers: &mut self.multipliers,
        }
    }
}

fn semaphore_wait(fields: Semwait) -> Result<LatchedWait, EngineError> {
    let conditions = fields.condition_mask.get();
    error::rule(conditions != 0, "SEMWAIT's ConditionMask", 0, "it waits for something")?;
    let blocks = LatchedWait::stall(Chip::Blackhole, 1, fields.block_mask.get()).blocks;
    Ok(LatchedWait { conditions, semaphores: Some(fields.semaphore_mask.get()), blocks })
}
