// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The engine in the address space of a tile's cores: where they push instructions, configure it, and wait for it
//! (`BabyRISCV/README.md`, `PushTensixInstruction.md`, `ManualTTSync.md`).

use super::frontend::MOP_WORDS;
use super::model::Model;
use super::order::Pushed;
use super::thread::GPRS;
use super::{Access, Engine, EngineError, THREADS};
use crate::tensix::Core;
use crate::violation::Violation;

/// The words that configure the MOP expander of the core's thread.
const MOP: u32 = 0xffb8_0000;
/// The scalar unit's registers: of all threads for core B, and of its own for others.
const REGISTERS: u32 = 0xffe0_0000;
/// Where instructions are pushed: to the core's thread, or from core B to the first, second or third.
const INSTRUCTIONS: [u32; 3] = [0xffe4_0000, 0xffe5_0000, 0xffe6_0000];
/// Waits for the end of the thread's instructions.
const DONE: u32 = 0xffe8_0004;
/// Waits for the end of its MOP expander.
const MOP_DONE: u32 = 0xffe8_0008;
/// The semaphores.
const SEMAPHORES: u32 = 0xffe8_0020;
/// The configuration: two banks, and one that is written as both.
const CONFIG: u32 = 0xffef_0000;

/// What lets hardware keep a core's accesses in order, of the word of its thread that says so.
const TRACKS_CONFIG: u32 = 1 << 0 | 1 << 4;
const TRACKS_REGISTERS: u32 = 1 << 2 | 1 << 4;

/// The number of a word in a window of so many.
fn word(address: u32, window: u32, count: usize) -> Option<usize> {
    let number = address.checked_sub(window)? as usize / 4;
    (number < count).then_some(number)
}

/// The thread of a core that has one.
pub(super) const fn thread_of(core: Core) -> Option<usize> {
    match core {
        Core::T0 => Some(0),
        Core::T1 => Some(1),
        Core::T2 => Some(2),
        Core::B | Core::Nc => None,
    }
}

#[expect(clippy::indexing_slicing, reason = "threads are numbered 0 to 2, and numbers of words are checked")]
impl Engine {
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
        let thread = thread_of(core);
        if let Some(waited) = thread.and_then(|thread| self.load_sync(thread, address)) {
            return waited;
        }
        let registers = match thread {
            Some(thread) => word(address, REGISTERS, GPRS).map(|number| self.threads[thread].gprs[number]),
            None => word(address, REGISTERS, THREADS * GPRS)
                .map(|number| self.threads[number / GPRS].gprs[number % GPRS]),
        };
        let config = || {
            let number = word(address, CONFIG, 2 * self.model.words)?;
            self.config.read(number / self.model.words, number % self.model.words)
        };
        let found = registers.or_else(config);
        self.order.core_loaded(thread, address);
        found.map_or(Access::Unmapped, Access::Done)
    }

    /// Loads what a core and its thread wait for each other by.
    fn load_sync(&mut self, thread: usize, address: u32) -> Option<Access<u32>> {
        let frontend = &self.threads[thread].frontend;
        match address {
            DONE if !frontend.is_empty() => Some(Access::Wait),
            MOP_DONE if !frontend.is_expanded() => Some(Access::Wait),
            DONE => {
                self.order.core_waited(thread);
                Some(Access::Done(0))
            }
            MOP_DONE => {
                self.order.core_waited_for_mop(thread);
                Some(Access::Done(0))
            }
            _ => {
                let number = word(address, SEMAPHORES, 8)?;
                self.order.core_sees(thread, number);
                self.semaphores.value(number).map(Access::Done)
            }
        }
    }

    /// Stores a word, as a core does, and executes what can start then. `unloaded` is the address of what the core has
    /// stored last in memory, and not loaded back.
    pub(crate) fn store(
        &mut self,
        core: Core,
        address: u32,
        value: u32,
        unloaded: Option<u32>,
        l1: &mut [u8],
    ) -> Access<()> {
        if core == Core::Nc {
            return Access::Unmapped;
        }
        if let Some(violation) = &self.broken {
            return Access::Broken(violation.clone());
        }
        let thread = thread_of(core);
        let stored = match thread {
            Some(thread) => self.store_of_thread(thread, address, value),
            None => self.store_of_b(address, value),
        };
        match stored.unwrap_or_else(|| self.store_config(thread, address, value)) {
            Access::Done(()) => {}
            other => return other,
        }
        self.unloaded = unloaded;
        match self.run(l1) {
            Ok(()) => Access::Done(()),
            Err(violation) => {
                self.broken = Some(violation.clone());
                Access::Broken(violation)
            }
        }
    }

    /// Stores where the core of a thread does; nothing if that is no window of its own.
    fn store_of_thread(&mut self, thread: usize, address: u32, value: u32) -> Option<Access<()>> {
        if address == INSTRUCTIONS[0] {
            return Some(self.push(Some(thread), thread, value));
        }
        if let Some(number) = word(address, MOP, MOP_WORDS) {
            if let Err(reason) = self.order.check_mop(thread) {
                return Some(self.refuse(reason));
            }
            self.threads[thread].frontend.set_mop(number, value);
        } else if let Some(number) = word(address, SEMAPHORES, 8) {
            self.order.core_signals(thread, number);
            match value & 1 {
                0 => self.semaphores.post(1 << number),
                _ => self.semaphores.get(1 << number),
            }
        } else if let Some(number) = word(address, REGISTERS, GPRS) {
            self.threads[thread].gprs[number] = value;
            let is_tracked = self.is_tracked(Some(thread), TRACKS_REGISTERS);
            self.order.core_stored(Some(thread), address, false, is_tracked);
        } else if !matches!(address, DONE | MOP_DONE) {
            // These only keep what comes behind them in order.
            return None;
        }
        Some(Access::Done(()))
    }

    /// Stores where core B does; nothing if that is no window of its own.
    fn store_of_b(&mut self, address: u32, value: u32) -> Option<Access<()>> {
        if let Some(thread) = INSTRUCTIONS.iter().position(|&window| window == address) {
            return Some(self.push(None, thread, value));
        }
        let number = word(address, REGISTERS, THREADS * GPRS)?;
        self.threads[number / GPRS].gprs[number % GPRS] = value;
        self.order.core_stored(None, address, false, false);
        Some(Access::Done(()))
    }

    fn store_config(&mut self, thread: Option<usize>, address: u32, value: u32) -> Access<()> {
        let Model { words, windows, .. } = *self.model;
        let Some(number) = word(address, CONFIG, windows * words) else { return Access::Unmapped };
        let is_tracked = self.is_tracked(thread, TRACKS_CONFIG);
        if let Err(reason) = self.order.check_core_store(thread, is_tracked) {
            return self.refuse(reason);
        }
        let (bank, number) = (number / words, number % words);
        let banks = if bank == 2 { 0..2 } else { bank..bank + 1 };
        for bank in banks {
            if let Err(reason) = self.config.write(bank, number, value) {
                return self.refuse(reason);
            }
        }
        self.order.core_stored(thread, address, true, is_tracked);
        Access::Done(())
    }

    /// True if hardware keeps accesses of a thread's core in order with its instructions.
    fn is_tracked(&self, thread: Option<usize>, bits: u32) -> bool {
        let word = |thread| self.model.sync.map_or(0, |sync| self.config.thread(thread).word(sync));
        thread.is_some_and(|thread| word(thread) & bits == bits)
    }

    fn refuse(&self, reason: EngineError) -> Access<()> {
        Access::Broken(Violation::EngineAccess { tile: self.tile, reason })
    }

    /// A core pushes an instruction to a thread: the thread's own core, or core B.
    fn push(&mut self, core: Option<usize>, thread: usize, value: u32) -> Access<()> {
        if self.threads[thread].frontend.is_full() {
            return Access::Wait;
        }
        if let Err(reason) = self.order.push(core, thread, &Pushed::new(self.model.chip, value)) {
            return Access::Broken(Violation::Engine { tile: self.tile, thread, word: value, reason });
        }
        self.threads[thread].frontend.push(value, core.is_none());
        Access::Done(())
    }
}
