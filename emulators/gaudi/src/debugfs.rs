// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The driver's files for whoever debugs a card: words at device addresses, a file for the address and one for each
//! size. rule(debugfs)
//!
//! Only the memory of the program that has the card open is there. Registers are not, and what the driver lists of
//! its own objects is not either.

use crate::card::Status;
use crate::machine::{Machine, State};
use crate::packets;
use emulator_core::Errno;
use hal_gaudi_abi::uapi::Abi;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the system has such files.
const ROOT: &str = "/sys/kernel/debug";

/// A file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DebugFile {
    /// The address of the word that the next two are about.
    Address,
    /// The word there, of four or eight bytes.
    Data(usize),
    /// Was for the gating of clocks, and has no effect.
    ClockGate,
}

/// The files by name.
const FILES: [(&str, DebugFile); 4] = [
    ("addr", DebugFile::Address),
    ("data32", DebugFile::Data(4)),
    ("data64", DebugFile::Data(8)),
    ("clk_gate", DebugFile::ClockGate),
];

impl Machine {
    /// The folder of a card.
    fn debug_folder(&self, number: usize) -> PathBuf {
        match self.options.abi {
            Abi::Drm => Path::new(ROOT).join("accel").join(self.bus_address(number)),
            Abi::Old => Path::new(ROOT).join(format!("habanalabs/hl{number}")),
        }
    }

    /// The files of the cards that are there.
    pub(crate) fn debug_files(&self) -> Vec<PathBuf> {
        let folders = self.present().into_iter().map(|number| self.debug_folder(number));
        folders.flat_map(|folder| FILES.map(|(name, _)| folder.join(name))).collect()
    }

    /// The card and the file at a path.
    fn debug_file(&self, path: &Path) -> Option<(usize, DebugFile)> {
        let number = (0..self.options.cards).find(|&number| path.starts_with(self.debug_folder(number)))?;
        let name = path.file_name()?.to_str()?;
        FILES.iter().find(|(known, _)| *known == name).map(|&(_, file)| (number, file))
    }

    /// The text of a file; nothing, if there is none at the path.
    pub(crate) fn read_debug_file(&self, path: &Path) -> Option<Result<String, Errno>> {
        let (number, file) = self.debug_file(path)?;
        let state = self.lock();
        let address = state.cards[number].debug_address;
        Some(match (file, state.cards[number].status) {
            (_, Status::Gone) => Err(Errno::IO),
            (DebugFile::Address, _) => Ok(format!("{address:#018x}\n")),
            (DebugFile::Data(size), Status::Operational | Status::Malfunction) => {
                let mut word = [0; 8];
                let part = word.get_mut(..size).unwrap_or_default();
                load(&state, number, part)
                    .map(|()| format!("{:#0digits$x}\n", u64::from_le_bytes(word), digits = 2 + 2 * size))
            }
            // In a reset there is nothing to read.
            (DebugFile::Data(_) | DebugFile::ClockGate, _) => Ok(String::new()),
        })
    }

    /// Writes to a file. Returns how many bytes are taken.
    pub(crate) fn write_debug_file(&self, path: &Path, bytes: &[u8]) -> Result<usize, Errno> {
        let (number, file) = self.debug_file(path).ok_or(Errno::NOENT)?;
        let mut state = self.lock();
        match (file, state.cards[number].status) {
            (_, Status::Gone) => return Err(Errno::IO),
            (DebugFile::ClockGate, _) => {}
            (DebugFile::Address, _) => state.cards[number].debug_address = parse(bytes, Base::OfPrefix)?,
            (DebugFile::Data(size), Status::Operational | Status::Malfunction) => {
                let word = parse(bytes, Base::Sixteen)?.to_le_bytes();
                let (word, rest) = word.split_at_checked(size).ok_or(Errno::INVAL)?;
                if rest.iter().any(|&byte| byte != 0) {
                    return Err(Errno::RANGE);
                }
                store(&state, number, word)?;
            }
            (DebugFile::Data(_), _) => return Ok(0),
        }
        Ok(bytes.len())
    }
}

/// Reads the word at the address that was written (`hl_access_mem`, `device_va_to_pa`).
fn load(state: &State, number: usize, word: &mut [u8]) -> Result<(), Errno> {
    let card = &state.cards[number];
    let live = card.context.as_ref().map(|context| Arc::clone(&context.live)).ok_or(Errno::INVAL)?;
    packets::fetch(&live, card.debug_address, word).map_err(|_| Errno::INVAL)
}

/// Writes the word at the address that was written.
fn store(state: &State, number: usize, word: &[u8]) -> Result<(), Errno> {
    let card = &state.cards[number];
    let live = card.context.as_ref().map(|context| Arc::clone(&context.live)).ok_or(Errno::INVAL)?;
    packets::store(&live, card.debug_address, word).map_err(|_| Errno::INVAL)
}

/// The base of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    Sixteen,
    /// Sixteen behind `0x`, eight behind `0`, else ten.
    OfPrefix,
}

/// A number as the kernel reads it (`kstrtoull`): up to a zero byte, with one line end at most behind it.
fn parse(bytes: &[u8], base: Base) -> Result<u64, Errno> {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    let text = std::str::from_utf8(text).map_err(|_| Errno::INVAL)?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_prefix('+').unwrap_or(text);
    let behind_prefix = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = match (behind_prefix, base) {
        (Some(digits), _) => (digits, 16),
        (None, Base::Sixteen) => (text, 16),
        (None, Base::OfPrefix) if text.starts_with('0') => (text, 8),
        (None, Base::OfPrefix) => (text, 10),
    };
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return Err(Errno::INVAL);
    }
    u64::from_str_radix(digits, radix).map_err(|_| Errno::RANGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_the_kernel_reads_them() {
        let read = |text: &str, base| parse(text.as_bytes(), base);
        assert_eq!(read("0x1F\0garbage", Base::OfPrefix), Ok(0x1F));
        assert_eq!((read("10\n", Base::OfPrefix), read("10\n", Base::Sixteen)), (Ok(10), Ok(16)));
        assert_eq!((read("010", Base::OfPrefix), read("0", Base::OfPrefix)), (Ok(8), Ok(0)));
        assert_eq!(read("+0Xffffffffffffffff", Base::Sixteen), Ok(u64::MAX));
        assert_eq!(read("0x10000000000000000", Base::Sixteen), Err(Errno::RANGE));
        for wrong in ["", "\n", " 1", "1 ", "1\n\n", "-1", "0x", "0x+1", "word", "++1"] {
            assert_eq!(read(wrong, Base::Sixteen), Err(Errno::INVAL), "{wrong:?}");
        }
    }
}
