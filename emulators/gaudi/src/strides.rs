// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The registers of transfer engines: those of the first generation, by which programs make transfers that no
//! packet describes; of the second generation only those of the word that a transfer writes at its end.
//! rule(transfer-end)
//!
//! Both ends have an address, and five sizes: the number of contiguous bytes, and the number of repetitions in
//! each of four more dimensions, each with a stride. Writing to the last register begins the transfer. When it
//! ends, it may write a word, most often to a sync object. rule(transfer-registers)

use crate::hardware::Hardware;
use crate::sync::{self, engine_at};

/// Bits of the last register that select the kind of transfer.
pub(crate) const COMPLETION: u32 = 1;
pub(crate) const LINEAR: u32 = 1 << 3;
pub(crate) const MEMSET: u32 = 1 << 4;
/// Transposes, of one or another type, packs, unpacks.
pub(crate) const CONVERTS: u32 = 1 << 1 | 1 << 2 | 1 << 5 | 1 << 6;

/// Offsets of an engine's registers.
const SOURCE: u32 = 0x14;
const TARGET: u32 = 0x1C;
const SOURCE_SIZES: u32 = 0x2C;
const TARGET_SIZES: u32 = 0x54;
const COMMIT: u32 = 0x78;
const COMPLETION_VALUE: u32 = 0x7C;
const COMPLETION_ADDRESS: u32 = 0x80;
const LAST: u32 = COMPLETION_ADDRESS + 4;
/// The number of words up to the last of these.
const WORDS: usize = 0x88 / 4;

/// One end of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransferEnd {
    pub(crate) address: u64,
    /// The number of contiguous bytes.
    pub(crate) bytes: u32,
    /// Repetitions and strides.
    steps: [(u32, u32); 4],
}

impl TransferEnd {
    /// The number of bytes in all; nothing, if it overflows.
    pub(crate) fn total(&self) -> Option<u64> {
        let mut counts = self.steps.iter().map(|&(count, _)| u64::from(count));
        counts.try_fold(u64::from(self.bytes), u64::checked_mul)
    }

    /// The address of a byte, and the number of contiguous bytes from there on.
    pub(crate) fn at(&self, byte: u64) -> (u64, u64) {
        let bytes = u64::from(self.bytes).max(1);
        let (within, mut number) = (byte % bytes, byte / bytes);
        let mut address = self.address.wrapping_add(within);
        for &(count, apart) in &self.steps {
            let count = u64::from(count).max(1);
            address = address.wrapping_add((number % count).wrapping_mul(u64::from(apart)));
            number /= count;
        }
        (address, bytes - within)
    }
}

/// A transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StridedTransfer {
    pub(crate) control: u32,
    pub(crate) source: TransferEnd,
    pub(crate) target: TransferEnd,
}

/// The registers of one engine.
#[derive(Clone, Debug)]
pub(crate) struct TransferRegisters([u32; WORDS]);

/// The register of a transfer engine at an offset: the first queue of its engine, and the register's number here.
/// Of the second generation's there are only those of the word that a transfer writes at its end.
/// rule(transfer-registers), rule(transfer-end)
pub(crate) fn register_at(hardware: &Hardware, offset: u64) -> Option<(u32, u32)> {
    /// The distance between the registers of an engine's transfers and those of its queues. The first generation
    /// has its queues behind its transfers.
    const FIRST: u64 = 0x8000;
    const SECOND: u64 = 0x1000;
    let (engine, within) = if hardware.dram_virtual {
        engine_at(hardware, offset.checked_sub(SECOND)?)?
    } else {
        engine_at(hardware, offset + FIRST)?
    };
    let register = match (hardware.dram_virtual, u32::try_from(within).ok()?) {
        (true, 0x8BC) => COMPLETION_ADDRESS + 4,
        (true, 0x8C0) => COMPLETION_ADDRESS,
        (true, 0x8C4) => COMPLETION_VALUE,
        (false, register @ SOURCE..=LAST) if register % 4 == 0 => register,
        _ => return None,
    };
    hardware.transfers(engine).then_some((engine, register))
}

impl TransferRegisters {
    /// The driver's initial values for the engine with this first queue: on the first generation a transfer
    /// adds one to a sync object of the last manager, on the second it writes nothing.
    pub(crate) fn new(hardware: &Hardware, engine: u32) -> Self {
        if hardware.dram_virtual {
            return Self([0; WORDS]);
        }
        let channel = if engine < 8 { engine / 4 } else { engine.saturating_sub(9) / 4 + 2 };
        let object = sync::short_address(hardware, 1, channel * 4).unwrap_or_default();
        let mut registers = Self([0; WORDS]);
        registers.set(COMPLETION_VALUE, 1 << 31 | 1);
        registers.set(COMPLETION_ADDRESS, u32::try_from(object & 0xFFFF_FFFF).unwrap_or(0));
        registers.set(COMPLETION_ADDRESS + 4, u32::try_from(object >> 32).unwrap_or(0));
        registers
    }

    pub(crate) fn set(&mut self, offset: u32, value: u32) {
        let place = usize::try_from(offset / 4).ok().and_then(|word| self.0.get_mut(word));
        if let Some(place) = place {
            *place = value;
        }
    }

    fn get(&self, offset: u32) -> u32 {
        usize::try_from(offset / 4).ok().and_then(|word| self.0.get(word)).copied().unwrap_or(0)
    }

    fn address(&self, offset: u32) -> u64 {
        u64::from(self.get(offset + 4)) << 32 | u64::from(self.get(offset))
    }

    /// Writes a register. Returns the transfer that this begins, if any.
    pub(crate) fn write(&mut self, offset: u32, value: u32) -> Option<StridedTransfer> {
        self.set(offset, value);
        let end = |address: u32, sizes: u32| TransferEnd {
            address: self.address(address),
            // The first size is in the last register.
            bytes: self.get(sizes + 0x20),
            steps: [0, 8, 16, 24].map(|step| (self.get(sizes + step), self.get(sizes + step + 4))),
        };
        (offset == COMMIT).then(|| StridedTransfer {
            control: value,
            source: end(SOURCE, SOURCE_SIZES),
            target: end(TARGET, TARGET_SIZES),
        })
    }

    /// The word that a transfer writes when it ends, and its address.
    pub(crate) fn completion(&self) -> (u64, u32) {
        (self.address(COMPLETION_ADDRESS), self.get(COMPLETION_VALUE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_where_the_steps_lead() {
        let end = TransferEnd { address: 1000, bytes: 4, steps: [(3, 16), (2, 100), (1, 7), (1, 7)] };
        assert_eq!(end.total(), Some(24));
        let found: Vec<_> = [0, 3, 4, 11, 12, 23].map(|byte| end.at(byte)).into();
        assert_eq!(found, [(1000, 4), (1003, 1), (1016, 4), (1035, 1), (1100, 4), (1135, 1)]);
        let huge = TransferEnd { address: 0, bytes: u32::MAX, steps: [(u32::MAX, 0); 4] };
        assert_eq!((huge.total(), TransferEnd { steps: [(0, 0); 4], ..huge }.total()), (None, Some(0)));
    }
}
