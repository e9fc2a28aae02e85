// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The control registers of a Blackhole core: `cfg0` alone, as in the vendor's simulator.
//!
//! Hardware has more. Their effect is on time, on parts of the core that are not modelled or undocumented, so they are
//! refused rather than read as zero: counters, `fcsr` (the exception flags are not documented), and all of the vector
//! extension.

use crate::hart::HartRegisters;

/// `cfg0`: switches for caches and predictors, without a visible effect here.
const CFG0: u16 = 0x7c0;
/// Its value after a reset: the store queue merges for sixteen cycles.
pub(crate) const CFG0_RESET: u32 = 16 << 13;

impl HartRegisters {
    /// The value of a control register.
    pub(crate) fn read_control(&self, number: u16) -> Option<u32> {
        (number == CFG0).then_some(self.cfg0)
    }

    /// Writes a control register; `None` if it is not one to write to.
    pub(crate) fn write_control(&mut self, number: u16, value: u32) -> Option<()> {
        (number == CFG0).then(|| self.cfg0 = value)
    }
}
