// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Mapped windows, and accesses through them.
//!
//! An access that breaks a rule of the chip is answered as by the bus: a read returns ones, and a write has no
//! effect. The rule is recorded, for people.

use crate::injection;
use crate::machine::{CardHardware, Machine};
use crate::silicon::Silicon;
use emulator_chip::{BarAddress, Family, Tile};
use emulator_core::file::Identity;
use emulator_core::{DeviceRange, Errno, identity};
use hal_tenstorrent_abi::paths;
use hal_tenstorrent_abi::uapi::{self, NocTlbConfig};
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A mapping of a window.
struct WindowRange {
    machine: Arc<Machine>,
    board: Arc<CardHardware>,
    card: usize,
    owner: Identity,
    window: u32,
    /// The address of the window.
    start: BarAddress,
    length: u64,
    /// True if reads are counted for an injection.
    flips: bool,
    /// Keeps the file open, as a mapping does; dropped before closed files are released.
    file: Option<OwnedFd>,
}

/// Maps a window (`tenstorrent_mmap`, `map_tlb_window`).
pub(crate) fn map(
    machine: &Arc<Machine>,
    file: BorrowedFd<'_>,
    length: usize,
    offset: u64,
) -> Result<Arc<dyn DeviceRange>, Errno> {
    let owner = identity(file)?;
    let length = length as u64;
    let mut state = machine.lock();
    state.files.get(owner)?;
    let open = *state.open.get(&owner).ok_or(Errno::NOTTY)?;
    let card = &mut state.cards[open.card];
    if card.detached || card.resets != open.resets {
        return Err(Errno::NODEV);
    }
    let within = [paths::WINDOWS_UNCACHED, paths::WINDOWS_COMBINING]
        .into_iter()
        .find_map(|base| offset.checked_sub(base).filter(|&within| within < paths::MAPPABLE));
    let within = within.ok_or(Errno::INVAL)?;
    let family = card.board.chip.family();
    let (bar, at) = match within.checked_sub(family.regions[0]) {
        Some(at) => (4, at),
        None => (0, within),
    };
    let (window, kind) = family.window_at(bar, at).ok_or(Errno::INVAL)?;
    if !(at - kind.offset).is_multiple_of(kind.size) || length > kind.size || length == 0 {
        return Err(Errno::INVAL);
    }
    let owned = card.windows.get_mut(&window).filter(|owned| owned.file == owner).ok_or(Errno::PERM)?;
    owned.mappings += 1;
    Ok(Arc::new(WindowRange {
        machine: machine.clone(),
        board: card.board.clone(),
        card: open.card,
        owner,
        window,
        start: BarAddress { bar, offset: at },
        length,
        flips: card.injections.has(injection::FLIP),
        file: Some(file.try_clone_to_owned().map_err(|_| Errno::MFILE)?),
    }))
}

/// The window that the kernel keeps for itself: the last one of the first region.
pub(crate) fn kernel(family: &Family) -> u32 {
    family.windows.iter().filter(|kind| kind.bar == 0).map(|kind| kind.count).sum::<u32>() - 1
}

/// Has a window show a place, by the registers of the bridge (`blackhole_configure_tlb`, `wormhole_configure_tlb`).
pub(crate) fn point(chip: &Silicon, window: u32, config: &NocTlbConfig) -> Result<(), String> {
    let family = chip.family();
    let Some((kind, _)) = family.window(window) else { return Err(format!("there is no window {window}")) };
    let field = |value: u128, bits: u32| value & ((1 << bits) - 1);
    let mut setting = 0_u128;
    let mut at = 0;
    for (value, bits) in [
        (u128::from(config.addr / kind.size), family.address_bits - kind.size.trailing_zeros()),
        (config.x_end.into(), 6),
        (config.y_end.into(), 6),
        (config.x_start.into(), 6),
        (config.y_start.into(), 6),
        (config.noc.into(), family.plane_bits),
        (config.mcast.into(), 1),
        (config.ordering.into(), 2),
        (config.linked.into(), 1),
        // `construct_tlb_config` of a Wormhole leaves it out.
        (config.static_vc.into(), u32::from(family.static_channels)),
    ] {
        setting |= field(value, bits) << at;
        at += bits;
    }
    let words = family.setting_words;
    (0..).zip(setting.to_le_bytes().chunks_exact(4).take(words)).try_for_each(|(word, bytes)| {
        let offset = family.configuration + 4 * (words as u64 * u64::from(window) + word);
        chip.write(BarAddress { bar: 0, offset }, bytes)
    })
}

/// Writes a word over the network by the kernel's own window (`noc_write32`).
pub(crate) fn write_word(chip: &Silicon, place: Tile, address: u64, word: u32) -> Result<(), String> {
    let family = chip.family();
    let number = kernel(family);
    let Some((kind, index)) = family.window(number) else {
        return Err(format!("there is no window {number}"));
    };
    let within = address % kind.size;
    let config = NocTlbConfig {
        addr: address - within,
        x_end: place.x.into(),
        y_end: place.y.into(),
        ordering: uapi::ordering::STRICT,
        ..Default::default()
    };
    point(chip, number, &config)?;
    let offset = kind.offset + u64::from(index) * kind.size + within;
    chip.write(BarAddress { bar: kind.bar, offset }, &word.to_le_bytes())
}

impl WindowRange {
    /// The address of an access; `EFAULT` if it is not in the mapping, `ENODEV` if the kernel has revoked the
    /// mapping.
    fn place(&self, offset: u64, length: usize) -> Result<BarAddress, Errno> {
        if self.board.gone.load(Ordering::Relaxed) {
            return Err(Errno::NODEV);
        }
        let end = offset.checked_add(length as u64).filter(|&end| end <= self.length);
        end.map(|_| BarAddress { offset: self.start.offset + offset, ..self.start }).ok_or(Errno::FAULT)
    }

    /// True if an access was done. `ENODEV` if the chip has ended.
    fn report(&self, result: Result<(), String>) -> Result<bool, Errno> {
        if let Err(violation) = &result {
            self.machine.complain(self.card, violation);
        }
        if self.board.chip.ended().is_some() { Err(Errno::NODEV) } else { Ok(result.is_ok()) }
    }

    /// True if this read is one to corrupt.
    fn is_flipped(&self, length: usize) -> bool {
        self.flips && length > 4 && self.machine.lock().cards[self.card].injections.strikes(injection::FLIP)
    }
}

impl DeviceRange for WindowRange {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let place = self.place(offset, bytes.len())?;
        if !self.report(self.board.chip.read(place, bytes))? {
            bytes.fill(0xff);
        }
        if self.is_flipped(bytes.len())
            && let Some(last) = bytes.last_mut()
        {
            *last ^= 0x80;
        }
        self.board.bytes_read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let place = self.place(offset, bytes.len())?;
        self.report(self.board.chip.write(place, bytes))?;
        self.board.bytes_written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if self.board.chip.has_started() {
            self.machine.launch(&mut self.machine.lock(), self.card);
        }
        Ok(())
    }
}

impl Drop for WindowRange {
    fn drop(&mut self) {
        let mut state = self.machine.lock();
        let card = &mut state.cards[self.card];
        if let Some(owned) = card.windows.get_mut(&self.window)
            && owned.file == self.owner
            && Arc::ptr_eq(&card.board, &self.board)
        {
            owned.mappings -= 1;
        }
        drop(state);
        drop(self.file.take());
        self.machine.release_closed();
    }
}

impl fmt::Debug for WindowRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WindowRange({} at {:?}, {} bytes)", self.window, self.start, self.length)
    }
}
