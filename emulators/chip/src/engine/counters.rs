// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Counters that make addresses, and go on by themselves: those of unpackers and the packer (`ADCs.md`), and those of
//! the matrix unit (`RWCs.md`). Each thread has its own.
//!
//! Beside each counter is a second one, to which it can return, for loops in loops: the documentation's `_Cr`.

use super::config::ThreadConfig;
use super::error::{EngineError, zero};
use hal_tenstorrent_loader::tensix::registers::blackhole as fields;

/// A counter of so many bits, and the one beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counter<const BITS: u32> {
    value: u32,
    carriage: u32,
}

impl<const BITS: u32> Counter<BITS> {
    const MASK: u32 = (1 << BITS) - 1;

    /// Its value.
    pub(super) const fn get(self) -> u32 {
        self.value
    }

    /// Sets both.
    pub(super) const fn set(&mut self, value: u32) {
        self.value = value & Self::MASK;
        self.carriage = self.value;
    }

    /// Adds to it.
    pub(super) const fn add(&mut self, increment: u32) {
        self.value = (self.value + increment) & Self::MASK;
    }

    /// Adds to the one beside it, and returns to that.
    pub(super) const fn return_and_add(&mut self, increment: u32) {
        self.set(self.carriage + increment);
    }

    /// Adds to it, and lets the one beside it follow.
    pub(super) const fn add_and_keep(&mut self, increment: u32) {
        self.set(self.value + increment);
    }

    /// What an address mode says.
    const fn step(&mut self, increment: u32, returns: bool, clears: bool) {
        if clears {
            self.set(0);
        } else if returns {
            self.return_and_add(increment);
        } else {
            self.add(increment);
        }
    }
}

/// The counters of one side of an unpacker or a packer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Channel {
    pub(super) x: Counter<18>,
    pub(super) y: Counter<13>,
    pub(super) z: Counter<8>,
    pub(super) w: Counter<8>,
}

/// The counters of an unpacker or the packer: of the side that reads, and of the side that writes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Adc {
    pub(super) channels: [Channel; 2],
}

/// The counters of the matrix unit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rwc {
    pub(super) src_a: Counter<6>,
    pub(super) src_b: Counter<6>,
    pub(super) dst: Counter<10>,
    pub(super) fidelity: u32,
}

impl Rwc {
    /// Goes on as an address mode of the thread says (`ApplyAddrMod`).
    #[expect(clippy::indexing_slicing, reason = "three bits of an instruction, and eight modes")]
    pub(super) fn apply(&mut self, config: ThreadConfig<'_>, mode: u32) -> Result<(), EngineError> {
        let mode = (mode & 7) as usize;
        zero("ADDR_MOD_BIAS_BiasIncr", config.get(fields::ADDR_MOD_BIAS_BIAS_INCR[mode]))?;
        self.src_a.step(
            config.get(fields::ADDR_MOD_AB_SRC_A_INCR[mode]),
            config.has(fields::ADDR_MOD_AB_SRC_A_CR[mode]),
            config.has(fields::ADDR_MOD_AB_SRC_A_CLEAR[mode]),
        );
        self.src_b.step(
            config.get(fields::ADDR_MOD_AB_SRC_B_INCR[mode]),
            config.has(fields::ADDR_MOD_AB_SRC_B_CR[mode]),
            config.has(fields::ADDR_MOD_AB_SRC_B_CLEAR[mode]),
        );
        let increment = config.get(fields::ADDR_MOD_DST_DEST_INCR[mode]);
        if !config.has(fields::ADDR_MOD_DST_DEST_CLEAR[mode])
            && config.has(fields::ADDR_MOD_DST_DEST_C_TO_CR[mode])
        {
            self.dst.add_and_keep(increment);
        } else {
            let returns = config.has(fields::ADDR_MOD_DST_DEST_CR[mode]);
            self.dst.step(increment, returns, config.has(fields::ADDR_MOD_DST_DEST_CLEAR[mode]));
        }
        if config.has(fields::ADDR_MOD_DST_FIDELITY_CLEAR[mode]) {
            self.fidelity = 0;
        } else {
            self.fidelity = (self.fidelity + config.get(fields::ADDR_MOD_DST_FIDELITY_INCR[mode])) & 3;
        }
        Ok(())
    }
}

impl Adc {
    /// Goes on as an address mode of the packer says.
    #[expect(clippy::indexing_slicing, reason = "two bits of an instruction, and four modes")]
    pub(super) fn apply_pack(&mut self, config: ThreadConfig<'_>, mode: u32) {
        let mode = (mode & 3) as usize;
        let [from, to] = &mut self.channels;
        from.y.step(
            config.get(fields::ADDR_MOD_PACK_YSRC_INCR[mode]),
            config.has(fields::ADDR_MOD_PACK_YSRC_CR[mode]),
            config.has(fields::ADDR_MOD_PACK_YSRC_CLEAR[mode]),
        );
        to.y.step(
            config.get(fields::ADDR_MOD_PACK_YDST_INCR[mode]),
            config.has(fields::ADDR_MOD_PACK_YDST_CR[mode]),
            config.has(fields::ADDR_MOD_PACK_YDST_CLEAR[mode]),
        );
        from.z.step(
            config.get(fields::ADDR_MOD_PACK_ZSRC_INCR[mode]),
            false,
            config.has(fields::ADDR_MOD_PACK_ZSRC_CLEAR[mode]),
        );
        to.z.step(
            config.get(fields::ADDR_MOD_PACK_ZDST_INCR[mode]),
            false,
            config.has(fields::ADDR_MOD_PACK_ZDST_CLEAR[mode]),
        );
    }
}
