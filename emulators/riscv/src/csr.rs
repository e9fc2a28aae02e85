// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The control registers of a Blackhole core.
//!
//! Registers with an undocumented effect, or with an effect on time or on parts of the core that are not
//! modelled, are refused rather than read as zero: among them `fcsr` (the exception flags are not documented)
//! and all of the vector extension.

use crate::hart::HartRegisters;

/// Registers that hold the written value without a visible effect.
#[derive(Clone, Debug)]
pub(crate) struct Scratch {
    /// `cfg0`, 0x7c0: switches for caches and predictors.
    configuration: u32,
    /// `cfg1`, `hwa_mask`, `hwa_cfg`, `vgsrc`, 0x7c3 to 0x7c6: for any use.
    free: [u32; 4],
}

impl Default for Scratch {
    fn default() -> Self {
        // After a reset, the store queue merges for sixteen cycles.
        Self { configuration: 16 << 13, free: [0; 4] }
    }
}

impl Scratch {
    fn slot(&mut self, number: u16) -> Option<&mut u32> {
        match number {
            0x7c0 => Some(&mut self.configuration),
            0x7c3..=0x7c6 => self.free.get_mut(usize::from(number - 0x7c3)),
            _ => None,
        }
    }
}

impl HartRegisters {
    /// The value of a control register.
    pub(crate) fn read_control(&mut self, number: u16) -> Option<u32> {
        let count = self.executed;
        #[expect(clippy::cast_possible_truncation, reason = "a counter is read in two halves")]
        let (low, high) = (count as u32, (count >> 32) as u32);
        match number {
            // One core executes one instruction in one step: a step counts as a cycle.
            0xb00 | 0xb02 | 0xc00 | 0xc02 => Some(low),
            0xb80 | 0xb82 | 0xc80 | 0xc82 => Some(high),
            // Floating-point and vector state, always dirty.
            0x300 => Some(0x8000_6600),
            // RV32IMABFV, of which much is only partly present.
            0x301 => Some(0x4020_1123),
            // Every core reports that it is the first.
            0xf14 => Some(0),
            _ => self.scratch.slot(number).map(|slot| *slot),
        }
    }

    /// Writes a control register; `None` if it is not one to write to.
    pub(crate) fn write_control(&mut self, number: u16, value: u32) -> Option<()> {
        *self.scratch.slot(number)? = value;
        Some(())
    }
}
