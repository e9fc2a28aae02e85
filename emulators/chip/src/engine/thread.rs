// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What each thread has for itself: its instructions on their way, its counters, and registers of the scalar unit.

use super::counters::{Adc, Rwc};
use super::error::{EngineError, zero};
use super::frontend::Frontend;
use hal_tenstorrent_loader::tensix::Chip;
use hal_tenstorrent_loader::tensix::instructions::{
    Incadcxy, Incadczw, Setadc, Setadcxx, Setadcxy, Setadczw, Setdmareg,
};

/// How many registers the scalar unit has for each.
pub(super) const GPRS: usize = 64;

/// What a thread has for itself.
#[derive(Clone, Debug)]
pub(super) struct Thread {
    pub(super) frontend: Frontend,
    /// Of unpacker 0, unpacker 1 and the packer.
    pub(super) adcs: [Adc; 3],
    pub(super) rwc: Rwc,
    pub(super) gprs: [u32; GPRS],
}

impl Thread {
    pub(super) fn new(chip: Chip) -> Self {
        Self {
            frontend: Frontend::new(chip),
            adcs: [Adc::default(); 3],
            rwc: Rwc::default(),
            gprs: [0; GPRS],
        }
    }

    /// The counters that a mask chooses.
    fn chosen(&mut self, mask: u32) -> impl Iterator<Item = &mut Adc> {
        self.adcs
            .iter_mut()
            .enumerate()
            .filter(move |(number, _)| mask >> number & 1 == 1)
            .map(|(_, adc)| adc)
    }

    pub(super) fn set_gpr(&mut self, fields: Setdmareg) {
        let (half, value) = (fields.result_half_reg.get(), fields.new_value.get());
        if let Some(register) = self.gprs.get_mut(half as usize / 2) {
            *register = match half & 1 {
                0 => *register & 0xffff_0000 | value,
                _ => *register & 0xffff | value << 16,
            };
        }
    }

    pub(super) fn set_adc(&mut self, fields: Setadc) -> Result<(), EngineError> {
        let (value, channel) = (fields.new_value.get(), fields.channel.get() as usize);
        zero("SETADC's ThreadOverride", value >> 16)?;
        for adc in self.chosen(fields.counters.get()) {
            let Some(channel) = adc.channels.get_mut(channel) else { continue };
            match fields.xyzw.get() {
                0 => channel.x.set(value),
                1 => channel.y.set(value),
                2 => channel.z.set(value),
                _ => channel.w.set(value),
            }
        }
        Ok(())
    }

    pub(super) fn set_xy(&mut self, fields: Setadcxy) -> Result<(), EngineError> {
        zero("SETADCXY's ThreadOverride", fields.thread_override.get())?;
        for Adc { channels: [from, to] } in self.chosen(fields.counters.get()) {
            if fields.x0.get() == 1 {
                from.x.set(fields.x0_val.get());
            }
            if fields.y0.get() == 1 {
                from.y.set(fields.y0_val.get());
            }
            if fields.x1.get() == 1 {
                to.x.set(fields.x1_val.get());
            }
            if fields.y1.get() == 1 {
                to.y.set(fields.y1_val.get());
            }
        }
        Ok(())
    }

    pub(super) fn add_xy(&mut self, fields: Incadcxy) -> Result<(), EngineError> {
        zero("INCADCXY's ThreadOverride", fields.thread_override.get())?;
        for Adc { channels: [from, to] } in self.chosen(fields.counters.get()) {
            from.x.add(fields.x0_inc.get());
            from.y.add(fields.y0_inc.get());
            to.x.add(fields.x1_inc.get());
            to.y.add(fields.y1_inc.get());
        }
        Ok(())
    }

    pub(super) fn set_zw(&mut self, fields: Setadczw) -> Result<(), EngineError> {
        zero("SETADCZW's ThreadOverride", fields.thread_override.get())?;
        for Adc { channels: [from, to] } in self.chosen(fields.counters.get()) {
            if fields.z0.get() == 1 {
                from.z.set(fields.z0_val.get());
            }
            if fields.w0.get() == 1 {
                from.w.set(fields.w0_val.get());
            }
            if fields.z1.get() == 1 {
                to.z.set(fields.z1_val.get());
            }
            if fields.w1.get() == 1 {
                to.w.set(fields.w1_val.get());
            }
        }
        Ok(())
    }

    pub(super) fn add_zw(&mut self, fields: Incadczw) -> Result<(), EngineError> {
        zero("INCADCZW's ThreadOverride", fields.thread_override.get())?;
        for Adc { channels: [from, to] } in self.chosen(fields.counters.get()) {
            from.z.add(fields.z0_inc.get());
            from.w.add(fields.w0_inc.get());
            to.z.add(fields.z1_inc.get());
            to.w.add(fields.w1_inc.get());
        }
        Ok(())
    }

    pub(super) fn set_xx(&mut self, fields: Setadcxx) {
        for Adc { channels: [from, to] } in self.chosen(fields.counters.get()) {
            from.x.set(fields.x0_val.get());
            to.x.set(fields.x1_val.get());
        }
    }
}
