// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Mapped windows and regions, and accesses through them.
//!
//! An access that breaks a rule of the chip is answered as by the bus: a read returns ones, and a write has no
//! effect. The rule is recorded, for people.

use crate::injection;
use crate::machine::{Card, CardHardware, Cards, Machine, Mapped};
use crate::silicon::Silicon;
use emulator_chip::{BarAddress, Family, Tile};
use emulator_core::file::Identity;
use emulator_core::{DeviceRange, Errno, RegisterAccess, identity};
use hal_tenstorrent_abi::paths;
use hal_tenstorrent_abi::uapi::{self, NocTlbConfig};
use std::fmt;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// A mapping in this process.
struct WindowRange {
    machine: Arc<Machine>,
    board: Arc<CardHardware>,
    card: usize,
    owner: Identity,
    /// How often mappings had been revoked when this one was made.
    revoked: u64,
    mapped: Mapped,
    /// The address of its first byte.
    start: BarAddress,
    length: u64,
    /// True if reads are counted for an injection.
    flips: bool,
    /// Keeps the file open, as a mapping does; dropped before closed files are released.
    file: Option<OwnedFd>,
}

/// A part of a window, as an importer of its dma-buf reaches it (`tt_tlb_dmabuf_map`). It lasts as long as the chip,
/// also when the file that had the window is closed.
struct ExportedRange {
    /// For complaints and for tiles that an access starts.
    machine: Weak<Machine>,
    board: Arc<CardHardware>,
    card: usize,
    /// The address of its first byte.
    start: BarAddress,
    length: u64,
}

/// The part of a window that is exported.
pub(crate) fn exported(
    machine: &Arc<Machine>,
    card: &Card,
    window: u32,
    part: Range<u64>,
) -> Result<Arc<dyn DeviceRange>, Errno> {
    let (kind, index) = card.board.chip.family().window(window).ok_or(Errno::INVAL)?;
    let offset = kind.offset + u64::from(index) * kind.size + part.start;
    Ok(Arc::new(ExportedRange {
        machine: Arc::downgrade(machine),
        board: card.board.clone(),
        card: card.number,
        start: BarAddress { bar: kind.bar, offset },
        length: part.end - part.start,
    }))
}

impl ExportedRange {
    fn access(
        &self,
        offset: u64,
        length: usize,
        access: impl FnOnce(CardBus<'_>, BarAddress) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        // `tenstorrent_revoke_tlb_dmabufs`
        if self.board.gone.load(Ordering::Relaxed) {
            return Err(Errno::NODEV);
        }
        let machine = self.machine.upgrade();
        let place = within(self.start, self.length, offset, length)?;
        let bus = CardBus { machine: machine.as_deref(), board: &self.board, card: self.card, flips: false };
        access(bus, place)
    }
}

impl DeviceRange for ExportedRange {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        self.access(offset, bytes.len(), |bus, place| bus.read(place, bytes))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.access(offset, bytes.len(), |bus, place| bus.write(place, bytes))
    }
}

impl fmt::Debug for ExportedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExportedRange({:?}, {} bytes)", self.start, self.length)
    }
}

/// The address of an access to a part of a bus; `EFAULT` if it is not inside.
fn within(start: BarAddress, longest: u64, offset: u64, length: usize) -> Result<BarAddress, Errno> {
    let end = offset.checked_add(length as u64).filter(|&end| end <= longest);
    end.map(|_| BarAddress { offset: start.offset + offset, ..start }).ok_or(Errno::FAULT)
}

/// What is at an offset of a card's file, and its address on the bus (`tenstorrent_mmap`).
pub(crate) fn at(family: &Family, offset: u64) -> Result<(Mapped, BarAddress), Errno> {
    let windows = [paths::WINDOWS_UNCACHED, paths::WINDOWS_COMBINING].into_iter();
    let mut within =
        windows.filter_map(|base| offset.checked_sub(base).filter(|&within| within < paths::MAPPABLE));
    if let Some(within) = within.next() {
        let (bar, offset) = match within.checked_sub(family.regions[0]) {
            Some(at) => (4, at),
            None => (0, within),
        };
        let (window, _) = family.window_at(bar, offset).ok_or(Errno::INVAL)?;
        return Ok((Mapped::Window(window), BarAddress { bar, offset }));
    }
    // Each region uncached and combining.
    let bar = match offset / paths::MAPPABLE {
        0 | 1 => 0,
        2 | 3 => 2,
        4 | 5 => 4,
        _ => return Err(Errno::INVAL),
    };
    Ok((Mapped::Region(bar), BarAddress { bar, offset: offset % paths::MAPPABLE }))
}

/// True if no window goes on at an offset of a file.
pub(crate) fn may_split(family: &Family, offset: u64) -> bool {
    let Ok((Mapped::Window(_), BarAddress { bar, offset })) = at(family, offset) else { return true };
    family.window_at(bar, offset).is_none_or(|(_, kind)| (offset - kind.offset).is_multiple_of(kind.size))
}

/// Checks that a file may map so many bytes at an offset, and says what they are (`map_tlb_window`, `map_pci_bar`).
pub(crate) fn mappable(
    card: &Card,
    file: Identity,
    length: u64,
    offset: u64,
) -> Result<(Mapped, BarAddress), Errno> {
    let family = card.board.chip.family();
    let (mapped, start) = at(family, offset)?;
    let end = start.offset.checked_add(length).ok_or(Errno::INVAL)?;
    match mapped {
        Mapped::Window(window) => {
            let (_, kind) = family.window_at(start.bar, start.offset).ok_or(Errno::INVAL)?;
            if !(start.offset - kind.offset).is_multiple_of(kind.size) || length > kind.size || length == 0 {
                return Err(Errno::INVAL);
            }
            card.windows.get(&window).filter(|owned| owned.file == Some(file)).ok_or(Errno::PERM)?;
        }
        Mapped::Region(bar) => {
            let region = family.regions.get(usize::from(bar / 2)).copied().unwrap_or_default();
            if length == 0 || end > region {
                return Err(Errno::INVAL);
            }
        }
    }
    Ok((mapped, start))
}

/// Maps a window or a region into this process.
pub(crate) fn map(
    machine: &Arc<Machine>,
    file: BorrowedFd<'_>,
    length: usize,
    offset: u64,
) -> Result<Arc<dyn DeviceRange>, Errno> {
    let owner = identity(file)?;
    let length = length as u64;
    let mut state = machine.lock();
    let Cards { cards, files, open, .. } = &mut **state;
    files.get(owner)?;
    let open = open.get(&owner).ok_or(Errno::NOTTY)?;
    let card = &mut cards[open.card];
    if card.detached || card.resets != open.resets {
        return Err(Errno::NODEV);
    }
    let (mapped, start) = mappable(card, owner, length, offset)?;
    if let Mapped::Window(window) = mapped
        && let Some(owned) = card.windows.get_mut(&window)
    {
        owned.mappings += 1;
    }
    Ok(Arc::new(WindowRange {
        machine: machine.clone(),
        revoked: card.board.revoked.load(Ordering::Relaxed),
        board: card.board.clone(),
        card: open.card,
        owner,
        mapped,
        start,
        length,
        flips: card.injections.has(injection::FLIP),
        file: Some(file.try_clone_to_owned().map_err(|_| Errno::MFILE)?),
    }))
}

/// Answers an access to a mapping of another process.
pub(crate) fn access(
    machine: &Machine,
    file: Identity,
    offset: u64,
    access: RegisterAccess<'_>,
) -> Result<(), Errno> {
    let state = machine.lock();
    let open = state.open.get(&file).ok_or(Errno::NODEV)?;
    let card = &state.cards[open.card];
    if card.detached || card.resets != open.resets {
        return Err(Errno::NODEV);
    }
    let (mapped, place) = at(card.board.chip.family(), offset)?;
    if open.mapped.get(&mapped) != Some(&card.board.revoked.load(Ordering::Relaxed)) {
        return Err(Errno::NODEV);
    }
    let bus = CardBus {
        machine: Some(machine),
        board: &card.board.clone(),
        card: open.card,
        flips: card.injections.has(injection::FLIP),
    };
    drop(state);
    match access {
        RegisterAccess::Read(bytes) => bus.read(place, bytes),
        RegisterAccess::Write(bytes) => bus.write(place, bytes),
    }
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
    chip.write(own_window(chip, place, address)?, &word.to_le_bytes())
}

/// Reads a word in the same way (`noc_read32`).
pub(crate) fn read_word(chip: &Silicon, place: Tile, address: u64) -> Result<u32, String> {
    let mut bytes = [0; 4];
    chip.read(own_window(chip, place, address)?, &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

/// Has the kernel's own window show an address, and returns where that is.
fn own_window(chip: &Silicon, place: Tile, address: u64) -> Result<BarAddress, String> {
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
    Ok(BarAddress { bar: kind.bar, offset })
}

/// The bus to a card, as a mapping reaches it.
struct CardBus<'a> {
    /// The machine, unless it has ended: an exported window may outlive it.
    machine: Option<&'a Machine>,
    board: &'a CardHardware,
    card: usize,
    /// True if reads are counted for an injection.
    flips: bool,
}

impl CardBus<'_> {
    /// True if an access was done. `ENODEV` if the chip has ended.
    fn report(&self, result: Result<(), String>) -> Result<bool, Errno> {
        if let Err(violation) = &result {
            self.machine.inspect(|machine| machine.complain(self.card, violation));
        }
        if self.board.chip.ended().is_some() { Err(Errno::NODEV) } else { Ok(result.is_ok()) }
    }

    /// True if this read is one to corrupt.
    fn is_flipped(&self, length: usize) -> bool {
        let strikes = |machine: &Machine| machine.lock().cards[self.card].injections.strikes(injection::FLIP);
        self.flips && length > 4 && self.machine.is_some_and(strikes)
    }

    fn read(&self, place: BarAddress, bytes: &mut [u8]) -> Result<(), Errno> {
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

    fn write(&self, place: BarAddress, bytes: &[u8]) -> Result<(), Errno> {
        self.report(self.board.chip.write(place, bytes))?;
        self.board.bytes_written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        if let Some(machine) = self.machine
            && self.board.chip.has_started()
        {
            machine.launch(&mut machine.lock(), self.card);
        }
        Ok(())
    }
}

impl WindowRange {
    /// The address of an access; `EFAULT` if it is not in the mapping, `ENODEV` if the kernel has revoked the
    /// mapping.
    fn place(&self, offset: u64, length: usize) -> Result<BarAddress, Errno> {
        let gone = self.board.gone.load(Ordering::Relaxed);
        if gone || self.board.revoked.load(Ordering::Relaxed) != self.revoked {
            return Err(Errno::NODEV);
        }
        within(self.start, self.length, offset, length)
    }

    fn bus(&self) -> CardBus<'_> {
        CardBus { machine: Some(&self.machine), board: &self.board, card: self.card, flips: self.flips }
    }
}

impl DeviceRange for WindowRange {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        self.bus().read(self.place(offset, bytes.len())?, bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.bus().write(self.place(offset, bytes.len())?, bytes)
    }
}

impl Drop for WindowRange {
    fn drop(&mut self) {
        let mut state = self.machine.lock();
        let card = &mut state.cards[self.card];
        if let Mapped::Window(window) = self.mapped
            && let Some(owned) = card.windows.get_mut(&window)
            && owned.file == Some(self.owner)
            && Arc::ptr_eq(&card.board, &self.board)
        {
            owned.mappings = owned.mappings.saturating_sub(1);
        }
        drop(state);
        drop(self.file.take());
        self.machine.release_closed();
    }
}

impl fmt::Debug for WindowRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WindowRange({:?} at {:?}, {} bytes)", self.mapped, self.start, self.length)
    }
}
