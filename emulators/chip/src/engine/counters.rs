// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Counters that make addresses, and go on by themselves: those of unpackers and the packer (`ADCs.md`), and those of
//! the matrix unit (`RWCs.md`). Each thread has its own.
//!
//! Beside each counter is a second one, to which it can return, for loops in loops: the documentation's `_Cr`.

use super::config::ThreadConfig;
use super::error::{EngineError, zero};

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
        let fields = config.fields;
        let base = fields.addr_mod_set_base.map_or(0, |base| config.get(base) << 2);
        let mode = ((mode | base) & 7) as usize;
        zero("ADDR_MOD_BIAS_BiasIncr", config.get(fields.addr_mod_bias_bias_incr[mode]))?;
        self.src_a.step(
            config.get(fields.addr_mod_ab_src_a_incr[mode]),
            config.has(fields.addr_mod_ab_src_a_cr[mode]),
            config.has(fields.addr_mod_ab_src_a_clear[mode]),
        );
        self.src_b.step(
            config.get(fields.addr_mod_ab_src_b_incr[mode]),
            config.has(fields.addr_mod_ab_src_b_cr[mode]),
            config.has(fields.addr_mod_ab_src_b_clear[mode]),
        );
        let increment = config.get(fields.addr_mod_dst_dest_incr[mode]);
        if !config.has(fields.addr_mod_dst_dest_clear[mode])
            && config.has(fields.addr_mod_dst_dest_c_to_cr[mode])
        {
            self.dst.add_and_keep(increment);
        } else {
            let returns = config.has(fields.addr_mod_dst_dest_cr[mode]);
            self.dst.step(increment, returns, config.has(fields.addr_mod_dst_dest_clear[mode]));
        }
        if config.has(fields.addr_mod_dst_fidelity_clear[mode]) {
            self.fidelity = 0;
        } else {
            self.fidelity = (self.fidelity + config.get(fields.addr_mod_dst_fidelity_incr[mode])) & 3;
        }
        Ok(())
    }
}

impl Adc {
    /// Goes on as an address mode of the packer says.
    #[expect(clippy::indexing_slicing, reason = "two bits of an instruction, and four modes")]
    pub(super) fn apply_pack(&mut self, config: ThreadConfig<'_>, mode: u32) {
        let fields = config.fields;
        let mode = (mode & 3) as usize;
        let [from, to] = &mut self.channels;
        from.y.step(
            config.get(fields.addr_mod_pack_ysrc_incr[mode]),
            config.has(fields.addr_mod_pack_ysrc_cr[mode]),
            config.has(fields.addr_mod_pack_ysrc_clear[mode]),
        );
        to.y.step(
            config.get(fields.addr_mod_pack_ydst_incr[mode]),
            config.has(fields.addr_mod_pack_ydst_cr[mode]),
            config.has(fields.addr_mod_pack_ydst_clear[mode]),
        );
        from.z.step(
            config.get(fields.addr_mod_pack_zsrc_incr[mode]),
            false,
            config.has(fields.addr_mod_pack_zsrc_clear[mode]),
        );
        to.z.step(
            config.get(fields.addr_mod_pack_zdst_incr[mode]),
            false,
            config.has(fields.addr_mod_pack_zdst_clear[mode]),
        );
    }
}
