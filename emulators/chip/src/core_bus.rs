// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The address space of one core.

use crate::engine::{Access, Engine, EngineSlot};
use crate::noc::{Interface, WriteEffect};
use crate::tensix::{Core, CoreControl, INTERFACE, INTERFACE_BYTES, SOFT_RESET};
use crate::violation::Violation;
use emulator_riscv::{Bus, BusFault, Width};

/// The base address of a core's own memory.
const LOCAL: u32 = 0xffb0_0000;

const NOT_CODE: BusFault = BusFault::Forbidden("instructions are executed from the tile's memory alone");
const NOT_ATOMIC: BusFault = BusFault::Forbidden("atomic operations work on the tile's memory alone");
const NOT_A_WORD: BusFault = BusFault::Forbidden("registers are read and written as words");
const REFUSED: BusFault = BusFault::Forbidden("the network refuses the transfer");
const ENGINE: BusFault = BusFault::Forbidden("the matrix engine does not execute it");
const UNORDERED: BusFault = BusFault::Forbidden("it may overtake an earlier store");

/// The memory that a core reaches, while it executes.
pub(crate) struct CoreBus<'a> {
    pub(crate) core: Core,
    pub(crate) l1: &'a mut [u8],
    pub(crate) local: &'a mut [u8],
    pub(crate) control: &'a mut CoreControl,
    pub(crate) interface: &'a mut Interface,
    /// The matrix engine, if the chip's is modelled.
    pub(crate) engine: &'a mut EngineSlot,
    /// The address of the last store to the tile's memory, until it is loaded back: that the core has stored it does
    /// not say that it is there. A transfer or a core that is set going before may not find it.
    pub(crate) stored: Option<u32>,
    /// The rule that a store to a register broke.
    pub(crate) violation: Option<Violation>,
}

/// The bytes of an access, if it is in this memory, which begins at `base`.
#[inline(always)]
fn within(memory: &mut [u8], base: u32, address: u32, width: Width) -> Option<&mut [u8]> {
    let start = address.checked_sub(base)? as usize;
    memory.get_mut(start..)?.get_mut(..width.bytes() as usize)
}

#[inline(always)]
fn value(bytes: &[u8]) -> u32 {
    match *bytes {
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
        [a, b] => u16::from_le_bytes([a, b]).into(),
        [a] => a.into(),
        _ => unreachable!("an access has one, two or four bytes"),
    }
}

#[inline(always)]
fn put(place: &mut [u8], value: u32) {
    for (byte, value) in place.iter_mut().zip(value.to_le_bytes()) {
        *byte = value;
    }
}

impl CoreBus<'_> {
    /// Loads from outside the tile's memory. A separate function, so that the result of the common case stays
    /// in a register.
    #[cold]
    #[inline(never)]
    fn load_elsewhere(&mut self, address: u32, width: Width) -> Result<u32, BusFault> {
        if let Some(bytes) = within(self.local, LOCAL, address, width) {
            return Ok(value(bytes));
        }
        if width == Width::Word { self.register(address) } else { Err(NOT_A_WORD) }
    }

    /// Stores outside the tile's memory.
    #[cold]
    #[inline(never)]
    fn store_elsewhere(&mut self, address: u32, width: Width, value: u32) -> Result<(), BusFault> {
        if let Some(place) = within(self.local, LOCAL, address, width) {
            put(place, value);
            return Ok(());
        }
        if width == Width::Word { self.set_register(address, value) } else { Err(NOT_A_WORD) }
    }

    /// An offset of the interface to the network.
    fn interface_offset(address: u32) -> Option<u32> {
        let offset = u64::from(address).checked_sub(INTERFACE)?;
        if offset < INTERFACE_BYTES { u32::try_from(offset).ok() } else { None }
    }

    /// What an access to the matrix engine came to.
    fn engine_result<T>(&mut self, access: Access<T>) -> Result<T, BusFault> {
        match access {
            Access::Done(value) => Ok(value),
            Access::Wait => Err(BusFault::Wait),
            Access::Unmapped => Err(BusFault::Unmapped),
            Access::Broken(violation) => {
                self.violation = Some(violation);
                Err(ENGINE)
            }
        }
    }

    fn register(&mut self, address: u32) -> Result<u32, BusFault> {
        if Engine::has(address) && !self.control.has(address) {
            let loaded = self.engine.get().load(self.core, address);
            return self.engine_result(loaded);
        }
        let found = match Self::interface_offset(address) {
            Some(offset) => self.interface.read(offset),
            None => self.control.read(address.into(), Some(self.core)),
        };
        found.ok_or(BusFault::Unmapped)
    }

    fn set_register(&mut self, address: u32, value: u32) -> Result<(), BusFault> {
        if Engine::has(address) && !self.control.has(address) {
            let stored = self.engine.get().store(self.core, address, value, self.stored, self.l1);
            return self.engine_result(stored);
        }
        if let Some(offset) = Self::interface_offset(address) {
            if self.interface.is_command(offset) {
                self.check_order(address)?;
            }
            let written = self.interface.write(self.core, offset, value).ok_or(BusFault::Unmapped)?;
            return match written {
                Ok(WriteEffect::Register) => Ok(()),
                // The network transfers while the core waits: no turn is lost.
                Ok(WriteEffect::Transfer) => Err(BusFault::Pause),
                Err(violation) => self.refuse(violation, REFUSED),
            };
        }
        if u64::from(address) == SOFT_RESET {
            self.check_order(address)?;
        }
        match self.control.write(address.into(), Some(self.core), value).ok_or(BusFault::Unmapped)? {
            // The write may reset this very core, or start another one.
            Ok(()) => Err(BusFault::Pause),
            Err(violation) => self.refuse(violation, UNORDERED),
        }
    }

    /// Checks that everything the core has stored in the tile's memory is there before it sets something else going.
    fn check_order(&mut self, register: u32) -> Result<(), BusFault> {
        self.stored.map_or(Ok(()), |stored| {
            let violation = Violation::Unordered { stored: stored.into(), register: register.into() };
            self.refuse(violation, UNORDERED)
        })
    }

    fn refuse(&mut self, violation: Violation, fault: BusFault) -> Result<(), BusFault> {
        self.violation = Some(violation);
        Err(fault)
    }
}

impl Bus for CoreBus<'_> {
    #[inline(always)]
    fn fetch(&mut self, address: u32) -> Result<u32, BusFault> {
        let found = self.l1.get(address as usize..).and_then(<[u8]>::first_chunk);
        found.map(|&word| u32::from_le_bytes(word)).ok_or(NOT_CODE)
    }

    #[inline(always)]
    fn load(&mut self, address: u32, width: Width) -> Result<u32, BusFault> {
        match within(self.l1, 0, address, width) {
            Some(bytes) => {
                let found = value(bytes);
                if self.stored == Some(address) {
                    self.stored = None;
                }
                Ok(found)
            }
            None => self.load_elsewhere(address, width),
        }
    }

    #[inline(always)]
    fn store(&mut self, address: u32, width: Width, value: u32) -> Result<(), BusFault> {
        match within(self.l1, 0, address, width) {
            Some(place) => {
                put(place, value);
                self.stored = Some(address);
                Ok(())
            }
            None => self.store_elsewhere(address, width, value),
        }
    }

    fn update(&mut self, address: u32, update: impl FnOnce(u32) -> u32) -> Result<u32, BusFault> {
        let place = within(self.l1, 0, address, Width::Word).ok_or(NOT_ATOMIC)?;
        let old = value(place);
        place.copy_from_slice(&update(old).to_le_bytes());
        // It waits for every earlier store.
        self.stored = None;
        Ok(old)
    }
}
