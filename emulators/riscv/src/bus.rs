// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The address space in which a core reads, writes and executes.

use thiserror::Error;

/// The size of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// One.
    Byte,
    /// Two.
    Half,
    /// Four.
    Word,
}

impl Width {
    /// The number of bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Width::Byte => 1,
            Width::Half => 2,
            Width::Word => 4,
        }
    }
}

/// The reason why a bus refuses an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BusFault {
    /// Hardware would wait forever.
    #[error("nothing is mapped there")]
    Unmapped,
    /// Mapped, but not for this kind of access.
    #[error("{0}")]
    Forbidden(&'static str),
    /// Of a store alone: it was done, and its effect on other cores comes before the core's next instruction.
    /// See [`RunOutcome::Pause`].
    ///
    /// [`RunOutcome::Pause`]: crate::RunOutcome::Pause
    #[error("what a store set going comes first")]
    Pause,
    /// Of a load or a store: it was not done, because it waits for something. The core tries it again. See
    /// [`RunOutcome::Wait`].
    ///
    /// [`RunOutcome::Wait`]: crate::RunOutcome::Wait
    #[error("the access waits")]
    Wait,
}

/// The address space of one core.
///
/// Addresses are aligned to the access: the core checks that before. A refused access has no effect, but for a
/// store that returns [`BusFault::Pause`].
pub trait Bus {
    /// An instruction.
    fn fetch(&mut self, address: u32) -> Result<u32, BusFault>;

    /// A value, in the low bytes.
    fn load(&mut self, address: u32, width: Width) -> Result<u32, BusFault>;

    /// Stores the low bytes of `value`.
    fn store(&mut self, address: u32, width: Width, value: u32) -> Result<(), BusFault>;

    /// Replaces a word by the result of `update`, in one step; returns the old one.
    fn update(&mut self, address: u32, update: impl FnOnce(u32) -> u32) -> Result<u32, BusFault>;
}

/// Plain memory that may be read, written and executed, and nothing else.
#[derive(Clone, Debug)]
pub struct Ram {
    base: u32,
    bytes: Vec<u8>,
}

impl Ram {
    /// Zeros.
    ///
    /// # Panics
    /// When the end does not fit in the address space.
    pub fn new(base: u32, length: u32) -> Self {
        assert!(base.checked_add(length).is_some(), "memory ends behind the address space");
        Self { base, bytes: vec![0; length as usize] }
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// All of it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// These bytes, if all are in it.
    pub fn get(&self, address: u32, length: u32) -> Option<&[u8]> {
        let start = address.checked_sub(self.base)? as usize;
        self.bytes.get(start..start.checked_add(length as usize)?)
    }

    /// These bytes, if all are in it.
    pub fn get_mut(&mut self, address: u32, length: u32) -> Option<&mut [u8]> {
        let start = address.checked_sub(self.base)? as usize;
        self.bytes.get_mut(start..start.checked_add(length as usize)?)
    }

    #[inline(always)]
    fn word(&self, address: u32) -> Option<u32> {
        let start = address.wrapping_sub(self.base) as usize;
        Some(u32::from_le_bytes(*self.bytes.get(start..)?.first_chunk()?))
    }
}

impl Bus for Ram {
    #[inline(always)]
    fn fetch(&mut self, address: u32) -> Result<u32, BusFault> {
        self.word(address).ok_or(BusFault::Unmapped)
    }

    #[inline(always)]
    fn load(&mut self, address: u32, width: Width) -> Result<u32, BusFault> {
        let value = match width {
            Width::Byte => {
                self.bytes.get(address.wrapping_sub(self.base) as usize).map(|&byte| u32::from(byte))
            }
            Width::Half => {
                let found = self.get(address, 2).and_then(<[u8]>::first_chunk);
                found.map(|&bytes| u32::from(u16::from_le_bytes(bytes)))
            }
            Width::Word => self.word(address),
        };
        value.ok_or(BusFault::Unmapped)
    }

    #[inline(always)]
    fn store(&mut self, address: u32, width: Width, value: u32) -> Result<(), BusFault> {
        let place = self.get_mut(address, width.bytes()).ok_or(BusFault::Unmapped)?;
        for (byte, value) in place.iter_mut().zip(value.to_le_bytes()) {
            *byte = value;
        }
        Ok(())
    }

    #[inline(always)]
    fn update(&mut self, address: u32, update: impl FnOnce(u32) -> u32) -> Result<u32, BusFault> {
        let old = self.word(address).ok_or(BusFault::Unmapped)?;
        self.store(address, Width::Word, update(old))?;
        Ok(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_outside_is_refused_at_both_ends() {
        let mut ram = Ram::new(0x1000, 8);
        for (address, width) in [
            (0x0fff, Width::Byte),
            (0x0ffe, Width::Half),
            (0x0ffc, Width::Word),
            (0x1008, Width::Byte),
            (0x1007, Width::Half),
            (0x1005, Width::Word),
            (0, Width::Word),
            (u32::MAX, Width::Byte),
        ] {
            assert_eq!(ram.load(address, width), Err(BusFault::Unmapped), "{address:#x}");
            assert_eq!(ram.store(address, width, 1), Err(BusFault::Unmapped), "{address:#x}");
        }
        assert_eq!(ram.fetch(0x1008), Err(BusFault::Unmapped));
        assert_eq!(ram.update(0x0ffc, |old| old + 1), Err(BusFault::Unmapped));
        assert_eq!(ram.bytes(), [0; 8]);
    }

    #[test]
    fn values_are_little_endian() {
        let mut ram = Ram::new(0x1000, 8);
        ram.store(0x1000, Width::Word, 0x0403_0201).unwrap();
        ram.store(0x1004, Width::Half, 0xffff_0605).unwrap();
        ram.store(0x1006, Width::Byte, 0xffff_ff07).unwrap();
        assert_eq!(ram.bytes(), [1, 2, 3, 4, 5, 6, 7, 0]);
        assert_eq!(ram.load(0x1002, Width::Half), Ok(0x0403));
        assert_eq!(ram.load(0x1006, Width::Byte), Ok(7));
        assert_eq!(ram.update(0x1004, |old| old + 1), Ok(0x0007_0605));
        assert_eq!(ram.fetch(0x1004), Ok(0x0007_0606));
    }
}
