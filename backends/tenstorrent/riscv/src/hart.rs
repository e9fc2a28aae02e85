// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A core's state, and the loop that steps it.

use crate::bus::{Bus, BusFault};
use crate::csr::Scratch;
use crate::decode::{Class, Instruction, Isa, decode};
use crate::execute::{Flow, Step};
use crate::trap::{Cause, Trap};

/// How many decoded instructions a core remembers: a power of two.
const REMEMBERED: usize = 4096;

/// How many instructions of each class a core has executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; Class::COUNT]);

impl Counts {
    /// Of this class.
    pub fn of(&self, class: Class) -> u64 {
        self.0.get(class as usize).copied().unwrap_or(0)
    }

    /// Of all classes.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    #[inline(always)]
    fn count(&mut self, class: Class) {
        if let Some(count) = self.0.get_mut(class as usize) {
            *count += 1;
        }
    }
}

/// Why [`Hart::run`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As many instructions were executed as were allowed.
    Budget,
    /// A store that set something going on the bus, executed: the program counter is behind it. Whoever owns the bus does that before
    /// the core goes on.
    Pause,
    /// An `ecall`, executed: the program counter is behind it. Hardware pauses until a debugger resumes it.
    Call,
    /// An `ebreak`, executed: the program counter is behind it. Hardware pauses until a debugger resumes it.
    Break,
    /// An instruction that cannot be executed: the program counter is at it.
    Trap(Trap),
}

/// One core.
///
/// # Invariants
/// Register 0 is zero between instructions.
#[derive(Clone, Debug)]
pub struct Hart {
    isa: Isa,
    pc: u32,
    x: [u32; 32],
    f: [u32; 32],
    counts: Counts,
    pub(crate) scratch: Scratch,
    /// Words and what they mean, by where they were last met. What a word means depends on nothing else, so an entry is
    /// right whenever its word is.
    remembered: Box<[(u32, Instruction); REMEMBERED]>,
}

impl Hart {
    /// A core after a reset, about to execute what is at `pc`. Registers, which hardware leaves as they are, are zeros.
    pub fn new(isa: Isa, pc: u32) -> Self {
        // `addi x0, x0, 0`, which every core has.
        const NOTHING: (u32, Instruction) =
            (0x13, Instruction { op: crate::Op::Addi, rd: 0, rs1: 0, rs2: 0, imm: 0 });
        Self {
            isa,
            pc,
            x: [0; 32],
            f: [0; 32],
            counts: Counts::default(),
            scratch: Scratch::default(),
            remembered: Box::new([NOTHING; REMEMBERED]),
        }
    }

    /// Which instructions it has.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Where the next instruction is.
    pub fn pc(&self) -> u32 {
        self.pc
    }

    /// Makes it go on elsewhere.
    pub fn set_pc(&mut self, pc: u32) {
        self.pc = pc;
    }

    /// What it has executed.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// An integer register; numbers wrap at 32.
    #[inline(always)]
    pub fn x(&self, register: u8) -> u32 {
        #[expect(clippy::indexing_slicing, reason = "always less than 32")]
        self.x[usize::from(register & 31)]
    }

    /// Sets an integer register, unless it is the zero.
    #[inline(always)]
    pub fn set_x(&mut self, register: u8, value: u32) {
        #[expect(clippy::indexing_slicing, reason = "always less than 32")]
        {
            self.x[usize::from(register & 31)] = value;
        }
        self.x[0] = 0;
    }

    /// The bits of a float register; numbers wrap at 32.
    #[inline(always)]
    pub fn f(&self, register: u8) -> u32 {
        #[expect(clippy::indexing_slicing, reason = "always less than 32")]
        self.f[usize::from(register & 31)]
    }

    /// Sets the bits of a float register.
    #[inline(always)]
    pub fn set_f(&mut self, register: u8, value: u32) {
        #[expect(clippy::indexing_slicing, reason = "always less than 32")]
        {
            self.f[usize::from(register & 31)] = value;
        }
    }

    /// Executes at most `budget` instructions.
    pub fn run<B: Bus>(&mut self, bus: &mut B, budget: u64) -> Outcome {
        for _ in 0..budget {
            match self.step(bus) {
                Ok(Flow::On) => {}
                Ok(Flow::Call) => return Outcome::Call,
                Ok(Flow::Break) => return Outcome::Break,
                Err(cause) => return self.stop(*cause),
            }
        }
        Outcome::Budget
    }

    /// What an instruction that was not executed, or not only, comes to.
    #[cold]
    fn stop(&mut self, cause: Cause) -> Outcome {
        if let Cause::Store { fault: BusFault::Pause, .. } = cause {
            self.counts.count(Class::Store);
            self.pc = self.pc.wrapping_add(4);
            return Outcome::Pause;
        }
        Outcome::Trap(Trap { pc: self.pc, cause })
    }

    #[inline(always)]
    fn step<B: Bus>(&mut self, bus: &mut B) -> Step<Flow> {
        let word = bus.fetch(self.pc).map_err(|fault| Box::new(Cause::Fetch(fault)))?;
        let index = (self.pc >> 2) as usize % REMEMBERED;
        #[expect(clippy::indexing_slicing, reason = "always less than the length")]
        let (mut known, mut instruction) = self.remembered[index];
        if known != word {
            (known, instruction) = (word, self.decode_anew(word)?);
            #[expect(clippy::indexing_slicing, reason = "always less than the length")]
            {
                self.remembered[index] = (known, instruction);
            }
        }
        let next = self.execute(instruction, bus)?;
        self.counts.count(instruction.op.class());
        Ok(next)
    }

    #[cold]
    fn decode_anew(&self, word: u32) -> Step<Instruction> {
        decode(word, self.isa).map_err(|refusal| Box::new(Cause::Instruction { word, refusal }))
    }
}
