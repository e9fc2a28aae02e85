// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The memory of a tile's core: plain memory, and memory of its own.

use emulator_riscv::{Bus, BusFault, Ram, Width};
use hal_tenstorrent_loader::veneer::{OWN_MEMORY, OWN_MEMORY_LENGTH};
use std::ops::{Deref, DerefMut};

pub(crate) struct Memory {
    ram: Ram,
    /// As much as veneers may use.
    pub(crate) own: Ram,
}

impl Memory {
    /// Plain memory from address 0 on.
    pub(crate) fn new(length: u32) -> Self {
        Self { ram: Ram::new(0, length), own: Ram::new(OWN_MEMORY, OWN_MEMORY_LENGTH) }
    }
}

impl Deref for Memory {
    type Target = Ram;

    fn deref(&self) -> &Ram {
        &self.ram
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut Ram {
        &mut self.ram
    }
}

impl Bus for Memory {
    fn fetch(&mut self, address: u32) -> Result<u32, BusFault> {
        self.ram.fetch(address)
    }

    fn load(&mut self, address: u32, width: Width) -> Result<u32, BusFault> {
        self.ram.load(address, width).or_else(|_| self.own.load(address, width))
    }

    fn store(&mut self, address: u32, width: Width, value: u32) -> Result<(), BusFault> {
        self.ram.store(address, width, value).or_else(|_| self.own.store(address, width, value))
    }

    fn update(&mut self, address: u32, update: impl FnOnce(u32) -> u32) -> Result<u32, BusFault> {
        self.ram.update(address, update)
    }
}
