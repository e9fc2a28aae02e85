// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A core that executes one instruction, replaced as it is loaded.

use super::Parts;
use super::memory::Memory;
use emulator_riscv::{Bus, Hart, Isa, RunOutcome, Width};
use hal_tenstorrent_loader::veneer::OWN_MEMORY;
use hal_tenstorrent_loader::{Cores, Target, load};
use std::cell::RefCell;

pub(crate) const BASE: u32 = 0x8000;
pub(crate) const STACK: u32 = 0x7000;
/// The address of an instruction's load or store, in the second temporary register.
pub(crate) const PLACE: u32 = 0x6000;

pub(crate) fn isa(cores: Cores) -> Isa {
    match cores {
        Cores::Wormhole => Isa::Wormhole,
        Cores::Blackhole => Isa::Blackhole,
    }
}

pub(crate) struct Machine {
    state: RefCell<(Hart, Memory)>,
    cores: Cores,
    query: u32,
    word: u32,
}

/// An instruction's results: the register for its result as an integer's and as a float's, the word in memory, and
/// how many instructions it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) x: u32,
    pub(crate) f: u32,
    pub(crate) stored: u32,
    pub(crate) instructions: u64,
}

impl Machine {
    /// For an instruction that is replaced.
    pub(crate) fn new(word: u32, cores: Cores) -> Self {
        let target = Target { cores, base: BASE, room: 0x8000 };
        let image = load(&Parts::new(&[word, 0x0010_0073]).file(), target).unwrap();
        assert_eq!(image.replaced(), 1);
        let mut memory = Memory::new(0x2_0000);
        memory.get_mut(BASE, image.bytes().len() as u32).unwrap().copy_from_slice(image.bytes());
        let hart = Hart::new(isa(cores), 0);
        Self { state: RefCell::new((hart, memory)), cores, query: image.query(), word }
    }

    /// For an instruction that a Blackhole executes.
    pub(crate) fn executing(word: u32) -> Self {
        let mut memory = Memory::new(0x2_0000);
        memory.store(BASE, Width::Word, word).unwrap();
        memory.store(BASE + 4, Width::Word, 0x0010_0073).unwrap();
        let hart = Hart::new(Isa::Blackhole, 0);
        Self { state: RefCell::new((hart, memory)), cores: Cores::Blackhole, query: BASE, word }
    }

    /// Executes it with these in all integer registers and all float registers; only what it writes may differ
    /// afterwards.
    pub(crate) fn run(&self, integers: [u32; 32], floats: [u32; 32], word: u32) -> Left {
        let (hart, memory) = &mut *self.state.borrow_mut();
        let rd = (self.word >> 7 & 31) as u8;
        let float_at = |register: u8| OWN_MEMORY + 4 * u32::from(register);
        for (register, (x, f)) in (0..).zip(integers.into_iter().zip(floats)) {
            hart.set_x(register, x);
            match self.cores {
                Cores::Blackhole => hart.set_f(register, f),
                Cores::Wormhole => memory.own.store(float_at(register), Width::Word, f).unwrap(),
            }
        }
        // Everything around the stack pointer is in use.
        memory.get_mut(STACK - 256, 512).unwrap().fill(0xa5);
        memory.store(PLACE, Width::Word, word).unwrap();
        hart.set_pc(self.query);
        let before = hart.executed();
        assert_eq!(hart.run(memory, 2000), RunOutcome::Break);
        assert_eq!(hart.pc(), self.query + 8);
        assert!(memory.get(STACK - 256, 512).unwrap().iter().all(|&byte| byte == 0xa5));
        let float = |hart: &Hart, memory: &mut Memory, register: u8| match self.cores {
            Cores::Blackhole => hart.f(register),
            Cores::Wormhole => memory.own.load(float_at(register), Width::Word).unwrap(),
        };
        let (opcode, funct7) = (self.word & 0x7f, self.word >> 25);
        let integer = opcode == 0x53 && matches!(funct7, 0x50 | 0x60 | 0x70);
        let store = opcode == 0x27;
        for (register, (x, f)) in (0..).zip(integers.into_iter().zip(floats)) {
            let is_result = register == rd && !store;
            let kept = matches!(register, 0 | 3 | 4);
            assert!(kept || is_result && integer || hart.x(register) == x, "x{register}");
            let found = float(hart, memory, register);
            assert!(is_result && !integer || found == f, "f{register}: {found:#x} instead of {f:#x}");
        }
        Left {
            x: hart.x(rd),
            f: float(hart, memory, rd),
            stored: memory.load(PLACE, Width::Word).unwrap(),
            instructions: hart.executed() - before,
        }
    }
}
