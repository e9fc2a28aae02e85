// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The matrix engine of a Blackhole tile: the part of the Tensix coprocessor that a matrix product needs.
//!
//! Cores push words into three threads. A thread's words pass [two expanders and a gate](frontend) in order, and then
//! start in a unit: [unpackers] move elements from the tile's memory to [`SrcA` and `SrcB`](source), the [matrix unit]
//! (matrix) adds [products](product) to [`Dst`](destination), and the [packer] moves rows of that back to memory.
//! Instructions take most of their operands from [configuration](config) and [counters]. Names are those of the ISA
//! documentation (tenstorrent/tt-isa-documentation, `TensixTile/TensixCoprocessor`), which each module cites by page.
//!
//! # What it is judged by
//!
//! Results are those of the vendor's simulator to the bit: `tests/golden` of this crate has some, and says how they were
//! made. What that simulator refuses, or does not have, is refused here as well, by an [`EngineError`].
//!
//! # Order
//!
//! An instruction is executed as soon as it may start, and completely: threads take turns, one instruction each, until
//! all wait or are done. Hardware executes instructions of different units side by side.
//!
//! What must wait, waits: an unpacker for its bank, a product for both banks, `STALLWAIT` and `SEMWAIT` for their
//! conditions, and a core that pushes for room in the queue. A program that waits for ever does so here as well.

mod config;
mod counters;
mod destination;
mod error;
mod format;
mod frontend;
mod matrix;
mod packer;
mod product;
mod source;
mod sync;
mod unpacker;

pub use error::EngineError;

use crate::counts::EngineCounts;
use crate::noc::Tile;
use crate::tensix::Core;
use crate::violation::Violation;
use config::Config;
use counters::{Adc, Rwc};
use destination::Destination;
use error::zero;
pub(crate) use frontend::Unit;
use frontend::{Frontend, LatchedWait};
use hal_tenstorrent_loader::tensix::blackhole::{
    Incadcxy, Incadczw, Instruction, Semwait, Setadc, Setadcxx, Setadcxy, Setadczw, Setdmareg, Wrcfg,
    condition,
};
use hal_tenstorrent_loader::tensix::registers::blackhole as fields;
use matrix::Registers;
use packer::Packer;
use source::Source;
use std::ops::Range;
use sync::Semaphores;

/// How many threads there are.
const THREADS: usize = 3;
/// How many registers the scalar unit has for each.
const GPRS: usize = 64;

/// What a thread has for itself.
#[derive(Clone, Debug)]
struct Thread {
    frontend: Frontend,
    /// Of unpacker 0, unpacker 1 and the packer.
    adcs: [Adc; 3],
    rwc: Rwc,
    gprs: [u32; GPRS],
}

impl Thread {
    fn new() -> Self {
        Self { frontend: Frontend::new(), adcs: [Adc::default(); 3], rwc: Rwc::default(), gprs: [0; GPRS] }
    }
}

/// The engine of a tile.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    tile: Tile,
    threads: [Thread; THREADS],
    config: Config,
    src_a: Source,
    src_b: Source,
    dst: Destination,
    packer: Packer,
    semaphores: Semaphores,
    counts: EngineCounts,
    /// The tile's memory that the packer has written since the last call of [`Engine::take_written`].
    written: Range<u64>,
    /// The rule that an instruction broke. Nothing is executed from then on.
    broken: Option<Violation>,
}

/// The place of a tile's engine, which is made when a core uses it.
#[derive(Clone, Debug)]
pub(crate) struct EngineSlot {
    tile: Tile,
    is_modelled: bool,
    engine: Option<Box<Engine>>,
}

impl EngineSlot {
    /// Without an engine yet; or for ever, if the family's is not modelled.
    pub(crate) fn new(tile: Tile, is_modelled: bool) -> Self {
        Self { tile, is_modelled, engine: None }
    }

    /// True if an access of a core to one of the engine's windows is the engine's. The configuration of an engine that is
    /// not modelled holds other registers.
    pub(crate) fn is_for(&self, address: u32) -> bool {
        self.is_modelled || word(address, window::CONFIG, 3 * config::WORDS).is_none()
    }

    /// The engine.
    pub(crate) fn get(&mut self, address: u32) -> Result<&mut Engine, Violation> {
        let tile = self.tile;
        if self.is_modelled {
            return Ok(self.engine.get_or_insert_with(|| Box::new(Engine::new(tile))));
        }
        Err(Violation::NotModelled { what: "the matrix engine", tile, address: address.into() })
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

/// The windows of the engine in the address space of a core.
mod window {
    /// The words that configure the MOP expander of the core's thread.
    pub(super) const MOP: u32 = 0xffb8_0000;
    /// The scalar unit's registers: of all threads for core B, and of its own for others.
    pub(super) const GPRS: u32 = 0xffe0_0000;
    /// Where instructions are pushed: to the core's thread, or from core B to the first, second or third.
    pub(super) const INSTRUCTIONS: [u32; 3] = [0xffe4_0000, 0xffe5_0000, 0xffe6_0000];
    /// Waits for the end of the thread's instructions.
    pub(super) const DONE: u32 = 0xffe8_0004;
    /// Waits for the end of its MOP expander.
    pub(super) const MOP_DONE: u32 = 0xffe8_0008;
    /// The semaphores.
    pub(super) const SEMAPHORES: u32 = 0xffe8_0020;
    /// The configuration: two banks, and one that is written as both.
    pub(super) const CONFIG: u32 = 0xffef_0000;
}

/// The number of a word in a window of so many.
fn word(address: u32, window: u32, count: usize) -> Option<usize> {
    let number = address.checked_sub(window)? as usize / 4;
    (number < count).then_some(number)
}

/// The thread of a core that has one.
const fn thread_of(core: Core) -> Option<usize> {
    match core {
        Core::T0 => Some(0),
        Core::T1 => Some(1),
        Core::T2 => Some(2),
        Core::B | Core::Nc => None,
    }
}

#[expect(clippy::indexing_slicing, reason = "threads are numbered 0 to 2")]
impl Engine {
    /// The engine of a tile after power-on.
    pub(crate) fn new(tile: Tile) -> Self {
        Self {
            tile,
            threads: [(); THREADS].map(|()| Thread::new()),
            config: Config::new(),
            src_a: Source::new(),
            src_b: Source::new(),
            dst: Destination::new(),
            packer: Packer::default(),
            semaphores: Semaphores::default(),
            counts: EngineCounts::default(),
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
        if let Some(thread) = thread_of(core) {
            self.threads[thread].frontend.discard();
        }
    }

    /// The memory that was written since the last call.
    pub(crate) fn take_written(&mut self) -> Option<Range<u64>> {
        let written = std::mem::take(&mut self.written);
        (!written.is_empty()).then_some(written)
    }

    /// True if an address is in one of its windows.
    pub(crate) const fn has(address: u32) -> bool {
        matches!(address, 0xffb8_0000..=0xffb8_0fff | 0xffe0_0000..=0xffe0_0fff | 0xffe4_0000..=0xffe6_ffff
            | 0xffe8_0000..=0xffe8_0fff | 0xffef_0000..=0xffef_ffff)
    }

    /// Loads a word, as a core does.
    pub(crate) fn load(&mut self, core: Core, address: u32) -> Access<u32> {
        if core == Core::Nc {
            return Access::Unmapped;
        }
        if let Some(violation) = &self.broken {
            return Access::Broken(violation.clone());
        }
        let found = match thread_of(core) {
            Some(thread) => {
                let frontend = &self.threads[thread].frontend;
                match address {
                    window::DONE if !frontend.is_empty() => return Access::Wait,
                    window::MOP_DONE if !frontend.is_expanded() => return Access::Wait,
                    window::DONE | window::MOP_DONE => Some(0),
                    _ => word(address, window::SEMAPHORES, 8)
                        .and_then(|number| self.semaphores.value(number))
                        .or_else(|| {
                            word(address, window::GPRS, GPRS).map(|at| self.threads[thread].gprs[at])
                        }),
                }
            }
            None => word(address, window::GPRS, THREADS * GPRS)
                .map(|number| self.threads[number / GPRS].gprs[number % GPRS]),
        };
        let config = || {
            let number = word(address, window::CONFIG, 2 * config::WORDS)?;
            self.config.read(number / config::WORDS, number % config::WORDS)
        };
        found.or_else(config).map_or(Access::Unmapped, Access::Done)
    }

    /// Stores a word, as a core does, and executes what can start then.
    pub(crate) fn store(&mut self, core: Core, address: u32, value: u32, l1: &mut [u8]) -> Access<()> {
        if core == Core::Nc {
            return Access::Unmapped;
        }
        if let Some(violation) = &self.broken {
            return Access::Broken(violation.clone());
        }
        let stored = match thread_of(core) {
            Some(thread) => self.store_of_thread(thread, address, value),
            None => self.store_of_b(address, value),
        };
        match stored {
            Access::Unmapped => match self.store_config(address, value) {
                Access::Done(()) => {}
                other => return other,
            },
            Access::Done(()) => {}
            other => return other,
        }
        match self.run(l1) {
            Ok(()) => Access::Done(()),
            Err(violation) => {
                self.broken = Some(violation.clone());
                Access::Broken(violation)
            }
        }
    }

    fn store_of_thread(&mut self, thread: usize, address: u32, value: u32) -> Access<()> {
        if address == window::INSTRUCTIONS[0] {
            return self.push(thread, value, false);
        }
        let state = &mut self.threads[thread];
        if let Some(number) = word(address, window::MOP, frontend::MOP_WORDS) {
            return state.frontend.set_mop(number, value).map_or(Access::Unmapped, Access::Done);
        }
        if let Some(number) = word(address, window::SEMAPHORES, 8) {
            if value & 1 == 1 {
                self.semaphores.get(1 << number)
            } else {
                self.semaphores.post(1 << number)
            }
            return Access::Done(());
        }
        if let Some(number) = word(address, window::GPRS, GPRS) {
            state.gprs[number] = value;
            return Access::Done(());
        }
        match address {
            // These only keep what comes behind them in order.
            window::DONE | window::MOP_DONE => Access::Done(()),
            _ => Access::Unmapped,
        }
    }

    fn store_of_b(&mut self, address: u32, value: u32) -> Access<()> {
        if let Some(thread) = window::INSTRUCTIONS.iter().position(|&window| window == address) {
            return self.push(thread, value, true);
        }
        match word(address, window::GPRS, THREADS * GPRS) {
            Some(number) => {
                self.threads[number / GPRS].gprs[number % GPRS] = value;
                Access::Done(())
            }
            None => Access::Unmapped,
        }
    }

    fn store_config(&mut self, address: u32, value: u32) -> Access<()> {
        let Some(number) = word(address, window::CONFIG, 3 * config::WORDS) else { return Access::Unmapped };
        let (bank, number) = (number / config::WORDS, number % config::WORDS);
        let banks = if bank == 2 { 0..2 } else { bank..bank + 1 };
        for bank in banks {
            if let Err(reason) = self.config.write(bank, number, value) {
                return Access::Broken(Violation::EngineConfiguration { tile: self.tile, reason });
            }
        }
        Access::Done(())
    }

    fn push(&mut self, thread: usize, word: u32, bypasses: bool) -> Access<()> {
        let frontend = &mut self.threads[thread].frontend;
        if frontend.is_full() {
            return Access::Wait;
        }
        frontend.push(word, bypasses);
        Access::Done(())
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
        let instruction = Instruction::decode(word).ok_or_else(|| broken(word, EngineError::Unknown))?;
        let unit = Unit::of(instruction);
        if self.must_wait(thread, unit) {
            return Ok(false);
        }
        let started = self.execute(thread, instruction, l1).map_err(|reason| broken(word, reason))?;
        if started {
            self.threads[thread].frontend.start();
            self.counts.count(unit);
        }
        Ok(started)
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
        }
        waits && wait.blocks(unit)
    }

    /// True if a condition of `STALLWAIT` is not met. Units are done with their instructions at once.
    fn stalls(&self, conditions: u32) -> bool {
        conditions & condition::SRC_A_CLEARED != 0 && !self.src_a.unpacker_may_write()
            || conditions & condition::SRC_B_CLEARED != 0 && !self.src_b.unpacker_may_write()
            || conditions & condition::SRC_A_VALID != 0 && !self.src_a.matrix_may_read()
            || conditions & condition::SRC_B_VALID != 0 && !self.src_b.matrix_may_read()
    }

    /// Executes an instruction. Returns false, without an effect, if it must wait.
    fn execute(
        &mut self,
        thread: usize,
        instruction: Instruction,
        l1: &mut [u8],
    ) -> Result<bool, EngineError> {
        let state = &mut self.threads[thread];
        match instruction {
            Instruction::Nop(_) => {}
            // Behind the expanders there are none.
            Instruction::Mop(_) | Instruction::MopCfg(_) | Instruction::Replay(_) => {
                return Err(EngineError::Unknown);
            }
            Instruction::Seminit(fields) => self.semaphores.init(
                fields.semaphore_mask.get(),
                fields.new_value.get(),
                fields.new_max.get(),
            ),
            Instruction::Sempost(fields) => self.semaphores.post(fields.semaphore_mask.get()),
            Instruction::Semget(fields) => self.semaphores.get(fields.semaphore_mask.get()),
            Instruction::Semwait(fields) => state.frontend.wait = Some(semaphore_wait(fields)?),
            Instruction::Stallwait(fields) => {
                let wait = LatchedWait::stall(fields.condition_mask.get(), fields.block_mask.get());
                state.frontend.wait = Some(wait);
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
            Instruction::Unpacr(_) | Instruction::UnpacrNop(_) => {
                return self.unpack(thread, instruction, l1);
            }
            Instruction::Pacr(_) => self.pack(thread, instruction, l1)?,
            instruction => return self.compute(thread, instruction),
        }
        Ok(true)
    }

    fn write_config(&mut self, thread: usize, fields: Wrcfg) -> Result<(), EngineError> {
        let bank = self.config.bank_of(thread);
        let (count, mask) = if fields.is_128_bit.get() == 1 { (4, !3) } else { (1, !0) };
        let (word, register) = (fields.cfg_index.get() & mask, fields.input_reg.get() & mask);
        for step in 0..count {
            let value = self.threads[thread].gprs[(register + step) as usize % GPRS];
            self.config.write(bank, (word + step) as usize, value)?;
        }
        Ok(())
    }

    fn unpack(&mut self, thread: usize, instruction: Instruction, l1: &[u8]) -> Result<bool, EngineError> {
        let config = self.config.bank(thread);
        match instruction {
            Instruction::Unpacr(unpacr) => {
                let unpacker = unpacr.which_unpacker.get() as usize;
                let source = if unpacker == 0 { &mut self.src_a } else { &mut self.src_b };
                if !source.unpacker_may_write() {
                    return Ok(false);
                }
                let sets_address = self.config.thread(thread).has(fields::SRCA_SET_SET_OVRD_WITH_ADDR);
                let adc = &mut self.threads[thread].adcs[unpacker];
                unpacker::unpack(unpacr, config, sets_address, adc, source, l1)?;
                Ok(true)
            }
            Instruction::UnpacrNop(nop) => {
                let source = if nop.unpacker_select.get() == 0 { &mut self.src_a } else { &mut self.src_b };
                unpacker::clear(nop, config, source)
            }
            _ => Err(EngineError::Unknown),
        }
    }

    fn pack(&mut self, thread: usize, instruction: Instruction, l1: &mut [u8]) -> Result<(), EngineError> {
        let Instruction::Pacr(pacr) = instruction else { return Err(EngineError::Unknown) };
        let adc = &mut self.threads[thread].adcs[2];
        let (_, range) = self.packer.pack(pacr, self.config.bank(thread), adc, &self.dst, l1)?;
        adc.apply_pack(self.config.thread(thread), pacr.addr_mod.get());
        self.written = if self.written.is_empty() {
            range
        } else {
            self.written.start.min(range.start)..self.written.end.max(range.end)
        };
        Ok(())
    }

    /// Executes an instruction of the matrix unit.
    fn compute(&mut self, thread: usize, instruction: Instruction) -> Result<bool, EngineError> {
        let mut registers = Registers {
            config: self.config.bank(thread),
            thread: self.config.thread(thread),
            rwc: &mut self.threads[thread].rwc,
            src_a: &mut self.src_a,
            src_b: &mut self.src_b,
            dst: &mut self.dst,
        };
        match instruction {
            Instruction::Mvmul(_) if !registers.may_multiply() => return Ok(false),
            Instruction::Mvmul(mvmul) => {
                registers.multiply(mvmul)?;
            }
            Instruction::Setrwc(fields) => registers.set_counters(fields)?,
            Instruction::Incrwc(fields) => registers.add_to_counters(fields),
            Instruction::Cleardvalid(fields) => registers.clear_valid(fields)?,
            Instruction::Zeroacc(fields) => registers.clear_dst(fields)?,
            Instruction::Zerosrc(fields) => registers.clear_sources(fields)?,
            _ => return Err(EngineError::Unknown),
        }
        Ok(true)
    }
}

fn semaphore_wait(fields: Semwait) -> Result<LatchedWait, EngineError> {
    let conditions = fields.condition_mask.get();
    error::rule(conditions != 0, "SEMWAIT's ConditionMask", 0, "it waits for something")?;
    let blocks = LatchedWait::stall(1, fields.block_mask.get()).blocks;
    Ok(LatchedWait { conditions, semaphores: Some(fields.semaphore_mask.get()), blocks })
}

impl Thread {
    /// The counters that a mask chooses.
    fn chosen(&mut self, mask: u32) -> impl Iterator<Item = &mut Adc> {
        self.adcs
            .iter_mut()
            .enumerate()
            .filter(move |(number, _)| mask >> number & 1 == 1)
            .map(|(_, adc)| adc)
    }

    fn set_gpr(&mut self, fields: Setdmareg) {
        let (half, value) = (fields.result_half_reg.get(), fields.new_value.get());
        if let Some(register) = self.gprs.get_mut(half as usize / 2) {
            *register = match half & 1 {
                0 => *register & 0xffff_0000 | value,
                _ => *register & 0xffff | value << 16,
            };
        }
    }

    fn set_adc(&mut self, fields: Setadc) -> Result<(), EngineError> {
        let (value, channel) = (fields.new_value.get(), fields.channel.get() as usize);
        zero("SETADC's ThreadOverride", value >> 16)?;
        for adc in self.chosen(fields.counters.get()) {
            let Some(channel) = adc.channels.get_mut(channel) else { continue };
            match fields.xyzw.get() {
                0 => channel.x.set(value),
                1 => channel.y.set(value),
                2 => channel.z.set(value),
                _ => channel.w.set(value),
            }
        }
        Ok(())
    }

    fn set_xy(&mut self, fields: Setadcxy) -> Result<(), EngineError> {
        zero("SETADCXY's ThreadOverride", fields.thread_override.get())?;
        for Adc { channels: [from, to] } in self.chosen(fields.counters.get()) {
            if fields.x0.get() == 1 {
                from.x.set(fields.x0_val.get());
            }
            if fields.y0.get() == 1 {
                from.y.set(fields.y0_val.get());
            }
            if fields.x1.get() == 1 {
                to.x.set(fields.x1_val.get());
            }
            if fields.y1.get() == 1 {
                to.y.set(fields.y1_val.get());
            }
        }
        Ok(())
    }

    fn add_xy(&mut self, fields: Incadcxy) -> Result<(), EngineError> {
        zero("INCADCXY's ThreadOverride", fields.thread_override.get())?;
        for Adc { channels: [from, to] } in self.chosen(fields.counters.get()) {
            from.x.add(fields.x0_inc.get());
            from.y.add(fields.y0_inc.get());
            to.x.add(fields.x1_inc.get());
            to.y.add(fields.y1_inc.get());
        }
        Ok(())
    }

    fn set_zw(&mut self, fields: Setadczw) -> Result<(), EngineError> {
        zero("SETADCZW's ThreadOverride", fields.thread_override.get())?;
        for Adc { channels: [from, to] } in self.chosen(fields.counters.get()) {
            if fields.z0.get() == 1 {
                from.z.set(fields.z0_val.get());
            }
            if fields.w0.get() == 1 {
                from.w.set(fields.w0_val.get());
            }
            if fields.z1.get() == 1 {
                to.z.set(fields.z1_val.get());
            }
            if fields.w1.get() == 1 {
                to.w.set(fields.w1_val.get());
            }
        }
        Ok(())
    }

    fn add_zw(&mut self, fields: Incadczw) -> Result<(), EngineError> {
        zero("INCADCZW's ThreadOverride", fields.thread_override.get())?;
        for Adc { channels: [from, to] } in self.chosen(fields.counters.get()) {
            from.z.add(fields.z0_inc.get());
            from.w.add(fields.w0_inc.get());
            to.z.add(fields.z1_inc.get());
            to.w.add(fields.w1_inc.get());
        }
        Ok(())
    }

    fn set_xx(&mut self, fields: Setadcxx) {
        for Adc { channels: [from, to] } in self.chosen(fields.counters.get()) {
            from.x.set(fields.x0_val.get());
            to.x.set(fields.x1_val.get());
        }
    }
}
