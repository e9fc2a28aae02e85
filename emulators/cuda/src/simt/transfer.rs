// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Parameters, loads, stores and atomic operations of a warp.
//!
//! Mostly all lanes access one region of the device's memory: then one check is made for all of them. Otherwise each
//! lane's access is checked by itself, so that a fault is the first lane's that has one.

#![expect(clippy::indexing_slicing, reason = "the decoder made the numbers of registers and instructions")]
#![expect(clippy::cast_possible_truncation, reason = "registers hold the lower bits")]

use super::LANES;
use super::access::{Hosts, Place};
use super::block::Context;
use super::warp::{Failed, Warp, lanes};
use crate::ptx::instruction::{Access, Atomic, Class, Inst, Space, Type};
use half::f16;

impl Warp {
    /// Where each lane's bytes are, if all of them are in the region that the instruction accessed last.
    #[inline(always)]
    fn hosts(
        &self,
        context: &Context<'_, '_>,
        access: Access,
        (pc, a): (usize, u32),
        active: u32,
        write: bool,
    ) -> Option<Hosts> {
        if !matches!(access.space, Space::Global | Space::Generic) {
            return None;
        }
        let bytes = u64::from(access.bytes) * u64::from(access.parts);
        // Loops, and no `map` of arrays: that is not compiled for the processor's extensions.
        let mut addresses = self.d[a as usize];
        for address in &mut addresses {
            *address = address.wrapping_add_signed(access.offset);
        }
        context.view.hosts(pc, &addresses, bytes, active, write)
    }

    #[inline(never)]
    pub(super) fn parameter(&mut self, context: &Context<'_, '_>, access: Access, active: u32) {
        for part in 0..usize::from(access.parts) {
            let bytes = usize::from(access.bytes);
            let at = access.offset as usize + part * bytes;
            let mut value = [0; 8];
            value[..bytes].copy_from_slice(&context.parameters[at..at + bytes]);
            let value = extend(u64::from_le_bytes(value), access);
            let slot = context.kernel.lists[access.list as usize + part];
            if slot.class == Class::D {
                self.set64(slot.index, &[value; LANES], active);
            } else {
                self.set32(slot.index, &[value as u32; LANES], active);
            }
        }
    }

    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
    pub(super) fn load(
        &mut self,
        context: &mut Context<'_, '_>,
        access: Access,
        pc: usize,
        a: u32,
        active: u32,
    ) -> Result<(), Failed> {
        let parts = usize::from(access.parts);
        let bytes = usize::from(access.bytes);
        let slots = &context.kernel.lists[access.list as usize..access.list as usize + parts];
        if let Some(hosts) = self.hosts(context, access, (pc, a), active, false) {
            for (part, slot) in slots.iter().enumerate() {
                let behind = part * bytes;
                if slot.class == Class::W && bytes == 4 {
                    // SAFETY: `hosts` checked all bytes of each lane, and the view keeps the region.
                    let values = unsafe { hosts.read_words(behind, active) };
                    self.set32(slot.index, &values, active);
                    continue;
                }
                // SAFETY: as above.
                let values = unsafe { hosts.read(behind, access, active) };
                if slot.class == Class::D {
                    self.set64(slot.index, &values, active);
                } else {
                    let mut words = [0; LANES];
                    for (word, value) in words.iter_mut().zip(values) {
                        *word = value as u32;
                    }
                    self.set32(slot.index, &words, active);
                }
            }
            return Ok(());
        }
        for lane in lanes(active) {
            let address = self.d[a as usize][lane].wrapping_add_signed(access.offset);
            let wanted = (address, (bytes * parts) as u64);
            let place = context.view.place(pc, access.space, wanted, false, lane);
            let place = place.map_err(|fault| (fault, lane, pc))?;
            for (part, slot) in slots.iter().enumerate() {
                let value = context.view.read(&place, part * bytes, access.bytes, &self.local);
                let value = extend(value, access);
                if slot.class == Class::D {
                    self.d[slot.index as usize][lane] = value;
                } else {
                    self.w[slot.index as usize][lane] = value as u32;
                }
            }
        }
        Ok(())
    }

    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt"))]
    pub(super) fn store(
        &mut self,
        context: &mut Context<'_, '_>,
        access: Access,
        pc: usize,
        a: u32,
        active: u32,
    ) -> Result<(), Failed> {
        let parts = usize::from(access.parts);
        let bytes = usize::from(access.bytes);
        let slots = &context.kernel.lists[access.list as usize..access.list as usize + parts];
        if let Some(hosts) = self.hosts(context, access, (pc, a), active, true) {
            for (part, slot) in slots.iter().enumerate() {
                let mut values = self.d.get(slot.index as usize).copied().unwrap_or([0; LANES]);
                if slot.class != Class::D {
                    for (value, word) in values.iter_mut().zip(self.w[slot.index as usize]) {
                        *value = u64::from(word);
                    }
                }
                // SAFETY: as in `load`; the check was for a write.
                unsafe { hosts.write(part * bytes, access, active, &values) };
            }
            return Ok(());
        }
        for lane in lanes(active) {
            let address = self.d[a as usize][lane].wrapping_add_signed(access.offset);
            let wanted = (address, (bytes * parts) as u64);
            let place = context.view.place(pc, access.space, wanted, true, lane);
            let place = place.map_err(|fault| (fault, lane, pc))?;
            for (part, slot) in slots.iter().enumerate() {
                let value = if slot.class == Class::D {
                    self.d[slot.index as usize][lane]
                } else {
                    u64::from(self.w[slot.index as usize][lane])
                };
                context.view.write(&place, part * bytes, access.bytes, value, &mut self.local);
            }
        }
        Ok(())
    }

    #[inline(never)]
    pub(super) fn atomic(
        &mut self,
        context: &mut Context<'_, '_>,
        (op, kind, access): (Atomic, Type, Access),
        inst: Inst,
        pc: usize,
        active: u32,
    ) -> Result<(), Failed> {
        let is_double = kind.class() == Class::D;
        for lane in lanes(active) {
            let value = |warp: &Self, slot: u32| {
                let slot = slot as usize;
                if is_double { warp.d[slot][lane] } else { u64::from(warp.w[slot][lane]) }
            };
            let address = self.d[inst.a as usize][lane].wrapping_add_signed(access.offset);
            let (b, c) = (value(self, inst.b), if op == Atomic::Cas { value(self, inst.c) } else { 0 });
            let bytes = u64::from(access.bytes);
            let place = context.view.place(pc, access.space, (address, bytes), true, lane);
            let place: Place = place.map_err(|fault| (fault, lane, pc))?;
            let old = context
                .view
                .update(&place, access.bytes, &mut self.local, |old| changed(op, kind, old, b, c));
            if is_double {
                self.d[inst.d as usize][lane] = old;
            } else {
                self.w[inst.d as usize][lane] = old as u32;
            }
        }
        Ok(())
    }
}

/// The value of an atomic operation.
fn changed(op: Atomic, kind: Type, old: u64, b: u64, c: u64) -> u64 {
    let signed = |value: u64| if kind == Type::S32 { i64::from(value as i32) } else { value.cast_signed() };
    let pick = |first: bool| if first { old } else { b };
    match op {
        Atomic::Add => old.wrapping_add(b),
        Atomic::AddF => match kind {
            Type::F64 => (f64::from_bits(old) + f64::from_bits(b)).to_bits(),
            Type::F32 => u64::from((f32::from_bits(old as u32) + f32::from_bits(b as u32)).to_bits()),
            Type::F16 => {
                let sum = f16::from_bits(old as u16).to_f32() + f16::from_bits(b as u16).to_f32();
                u64::from(f16::from_f32(sum).to_bits())
            }
            _ => {
                let float = |bits: u64| half::bf16::from_bits(bits as u16).to_f32();
                u64::from(half::bf16::from_f32(float(old) + float(b)).to_bits())
            }
        },
        Atomic::Min if kind.is_signed() => pick(signed(old) < signed(b)),
        Atomic::Max if kind.is_signed() => pick(signed(old) > signed(b)),
        Atomic::Min => old.min(b),
        Atomic::Max => old.max(b),
        Atomic::And => old & b,
        Atomic::Or => old | b,
        Atomic::Xor => old ^ b,
        Atomic::Exch => b,
        Atomic::Cas => {
            if old == b {
                c
            } else {
                old
            }
        }
        Atomic::Inc => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        Atomic::Dec => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
    }
}

/// A value that was loaded, as its register holds it.
#[inline(always)]
fn extend(value: u64, access: Access) -> u64 {
    match (access.signed, access.bytes) {
        (true, 1) => i64::from(value as i8).cast_unsigned(),
        (true, 2) => i64::from(value as i16).cast_unsigned(),
        (true, 4) => i64::from(value as i32).cast_unsigned(),
        _ => value,
    }
}
