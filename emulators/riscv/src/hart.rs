// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A core's state, and the loop that steps it.

use crate::block::{Blocks, Map};
use crate::bus::{Bus, BusFault};
use crate::csr::CFG0_RESET;
use crate::decode::{Class, Isa};
use crate::execute::Flow;
use crate::trap::{Cause, Trap};

/// How many instructions of each class a core has executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; Class::COUNT]);

impl Counts {
    /// Of this class.
    #[expect(clippy::indexing_slicing, reason = "there is a count for each class")]
    pub fn of(&self, class: Class) -> u64 {
        self.0[class as usize]
    }

    /// Of all classes.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Counts so many more.
    #[expect(clippy::indexing_slicing, reason = "there is a count for each class")]
    pub(crate) fn add(&mut self, class: Class, times: u64) {
        self.0[class as usize] += times;
    }
}

/// Why [`Hart::run`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// The budget is used up.
    Budget,
    /// A jump to itself, not executed and not counted: the program counter is at it. Nothing interrupts a core,
    /// so it loops until another agent changes memory.
    Idle,
    /// A store with an effect on the bus, executed: the program counter is behind it. The owner of the bus
    /// handles the effect before the core continues.
    Pause,
    /// A load or a store that waits for something on the bus, not executed: the program counter is at it.
    Wait,
    /// An `ecall`, executed: the program counter is behind it. Hardware pauses until a debugger resumes it.
    Call,
    /// An `ebreak`, executed: the program counter is behind it. Hardware pauses until a debugger resumes it.
    Break,
    /// An instruction that cannot be executed: the program counter is at it.
    Trap(Trap),
}

/// The registers of a core.
///
/// # Invariants
/// Register 0 is zero between instructions.
#[derive(Clone, Debug)]
pub(crate) struct HartRegisters {
    x: [u32; 32],
    f: [u32; 32],
    pub(crate) cfg0: u32,
    /// How many instructions were executed before the block that is being executed.
    pub(crate) executed: u64,
}

/// One core.
#[derive(Clone, Debug)]
pub struct Hart {
    isa: Isa,
    pc: u32,
    registers: HartRegisters,
    blocks: Blocks,
    code: Map,
}

impl HartRegisters {
    /// An integer register; numbers wrap at 32.
    #[inline(always)]
    pub(crate) fn x(&self, register: u8) -> u32 {
        #[expect(clippy::indexing_slicing, reason = "always less than 32")]
        self.x[usize::from(register & 31)]
    }

    /// Sets an integer register, unless it is the zero.
    #[inline(always)]
    pub(crate) fn set_x(&mut self, register: u8, value: u32) {
        #[expect(clippy::indexing_slicing, reason = "always less than 32")]
        {
            self.x[usize::from(register & 31)] = value;
        }
        self.x[0] = 0;
    }

    /// The bits of a float register; numbers wrap at 32.
    #[inline(always)]
    pub(crate) fn f(&self, register: u8) -> u32 {
        #[expect(clippy::indexing_slicing, reason = "always less than 32")]
        self.f[usize::from(register & 31)]
    }

    /// Sets the bits of a float register.
    #[inline(always)]
    pub(crate) fn set_f(&mut self, register: u8, value: u32) {
        #[expect(clippy::indexing_slicing, reason = "always less than 32")]
        {
            self.f[usize::from(register & 31)] = value;
        }
    }
}

impl Hart {
    /// A core after a reset, with its program counter at `pc`. Registers, which hardware leaves as they are,
    /// are zeros.
    pub fn new(isa: Isa, pc: u32) -> Self {
        let registers = HartRegisters { x: [0; 32], f: [0; 32], cfg0: CFG0_RESET, executed: 0 };
        Self { isa, pc, registers, blocks: Blocks::new(isa), code: Map::default() }
    }

    /// Its instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The address of the next instruction.
    pub fn pc(&self) -> u32 {
        self.pc
    }

    /// Sets the address of the next instruction.
    pub fn set_pc(&mut self, pc: u32) {
        self.pc = pc;
    }

    /// The executed instructions, by class. This adds up the counts of all decoded code; [`Hart::executed`] is
    /// cheap.
    pub fn counts(&self) -> Counts {
        self.blocks.counts()
    }

    /// How many instructions it has executed.
    pub fn executed(&self) -> u64 {
        self.registers.executed
    }

    /// An integer register; numbers wrap at 32.
    pub fn x(&self, register: u8) -> u32 {
        self.registers.x(register)
    }

    /// Sets an integer register, unless it is the zero.
    pub fn set_x(&mut self, register: u8, value: u32) {
        self.registers.set_x(register, value);
    }

    /// The bits of a float register; numbers wrap at 32.
    pub fn f(&self, register: u8) -> u32 {
        self.registers.f(register)
    }

    /// Sets the bits of a float register.
    pub fn set_f(&mut self, register: u8, value: u32) {
        self.registers.set_f(register, value);
    }

    /// Executes at most `budget` instructions. Memory may have changed since the last call.
    pub fn run<B: Bus>(&mut self, bus: &mut B, budget: u64) -> RunOutcome {
        self.blocks.doubt();
        self.resume(bus, budget)
    }

    /// Reports that another agent changed some memory, before the core [resumes](Hart::resume).
    pub fn changed(&mut self, address: u32, length: u32) {
        if self.code.overlaps(address, length) {
            self.blocks.doubt();
        }
    }

    /// Executes at most `budget` instructions. Since the last call, other agents changed only memory that was
    /// [reported](Hart::changed).
    pub fn resume<B: Bus>(&mut self, bus: &mut B, budget: u64) -> RunOutcome {
        let end = self.executed().saturating_add(budget);
        while self.executed() < end {
            if let Err(outcome) = self.run_block(bus, end - self.executed()) {
                return outcome;
            }
        }
        RunOutcome::Budget
    }

    /// Executes at most this many instructions of the next block. An error is the reason why the core stops.
    #[inline(always)]
    fn run_block<B: Bus>(&mut self, bus: &mut B, most: u64) -> Result<(), RunOutcome> {
        let Self { registers, blocks, code, pc, .. } = self;
        let block = match blocks.at(*pc, code, bus) {
            Ok(block) => block,
            Err(cause) => return Err(RunOutcome::Trap(Trap { pc: *pc, cause: *cause })),
        };
        let entries = match usize::try_from(most) {
            Ok(most) => block.entries.get(..most).unwrap_or(&block.entries),
            Err(_) => &block.entries,
        };
        let mut count = 0;
        let mut flow = Ok(Flow::On);
        while let Some(entry) = entries.get(count) {
            flow = registers.execute(entry, bus, code);
            match flow {
                Ok(Flow::On) => count += 1,
                Ok(Flow::Lookup(lookup)) => {
                    let (_, rest) = entries.split_at(count);
                    // At least the jump to it, which was executed.
                    count += registers.look_up(lookup, rest, bus).max(1);
                }
                _ => break,
            }
        }
        let changed = matches!(flow, Ok(Flow::Changed));
        let (done, next, result) = match flow {
            Ok(Flow::On | Flow::Lookup(_)) => (count, block.pc_behind(count), Ok(())),
            Ok(Flow::Jump(target)) => (count + 1, target, Ok(())),
            Err(cause) => not_executed(*cause, block.pc_behind(count), count),
            Ok(Flow::Changed) => (count + 1, block.pc_behind(count + 1), Ok(())),
            Ok(Flow::Stay) => (count, block.pc_behind(count), Err(RunOutcome::Idle)),
            Ok(Flow::Call) => (count + 1, block.pc_behind(count + 1), Err(RunOutcome::Call)),
            Ok(Flow::Break) => (count + 1, block.pc_behind(count + 1), Err(RunOutcome::Break)),
        };
        block.count(done);
        registers.executed += done as u64;
        *pc = next;
        if changed {
            blocks.doubt();
        }
        result
    }
}

/// The end of a block by an instruction that was not executed as usual: how many were executed, the core's
/// address, and the reason to stop.
#[cold]
fn not_executed(cause: Cause, pc: u32, count: usize) -> (usize, u32, Result<(), RunOutcome>) {
    match cause {
        Cause::Store { fault: BusFault::Pause, .. } => {
            (count + 1, pc.wrapping_add(4), Err(RunOutcome::Pause))
        }
        Cause::Store { fault: BusFault::Wait, .. } | Cause::Load { fault: BusFault::Wait, .. } => {
            (count, pc, Err(RunOutcome::Wait))
        }
        cause => (count, pc, Err(RunOutcome::Trap(Trap { pc, cause }))),
    }
}
