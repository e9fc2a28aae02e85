// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The rules of the kernel's driver, through the boundary alone.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]

use emulator_core::{DeviceRange, Errno, System};
use emulator_tenstorrent::{Counts, Emulator, Options};
use hal_backend::Parameters;
use hal_tenstorrent_abi::{
    CallError, Calls, Ioctl, Lock, NocCleanup, Ordering, Power, Reset, Target, Tlb, Window, uapi,
};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const SMALL: u64 = 2 << 20;
const LARGE: u64 = 4 << 30;
const SOFT_RESET: u64 = 0xffb1_21b0;
const ALL_HELD: u32 = 0x4_7800;

fn machine(pairs: &[(&'static str, &'static str)]) -> Arc<Emulator> {
    let mut parameters = Parameters::new("tenstorrent", pairs.iter().copied());
    Emulator::new(Options::read(&mut parameters).unwrap()).unwrap()
}

fn node() -> &'static Path {
    Path::new("/dev/tenstorrent/0")
}

/// An open file.
struct File(Arc<Emulator>, OwnedFd);

impl Ioctl for File {
    fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        self.0.ioctl(self.1.as_fd(), request, argument)
    }
}

fn open(machine: &Arc<Emulator>) -> Calls<File> {
    Calls::new(File(machine.clone(), machine.open(node()).unwrap())).unwrap()
}

fn map(calls: &Calls<File>, tlb: Tlb) -> Result<Arc<dyn DeviceRange>, Errno> {
    let File(machine, file) = calls.file();
    machine.map_device(file.as_fd(), usize::try_from(tlb.length).unwrap(), tlb.uncached_offset)
}

fn show(x: u16, y: u16, address: u64) -> Window {
    Window { target: Target::Tile { x, y }, address, noc: 0, ordering: Ordering::Strict }
}

fn errno<T>(result: Result<T, CallError>) -> Option<Errno> {
    match result {
        Err(CallError::Refused { errno, .. }) => Some(errno),
        _ => None,
    }
}

/// Questions about a card that the machine does not have get the answer of no card.
#[test]
fn unknown_card_number_is_refused() {
    let machine = machine(&[]);
    assert_eq!(machine.counts(99), Counts::default());
    assert_eq!((machine.stopped_core(99), machine.complaint(99)), (None, None));
}

#[test]
fn card_reports_its_identity() {
    let machine = machine(&[("module", "2.6")]);
    let calls = open(&machine);
    let device = calls.device().unwrap();
    assert_eq!((device.vendor, device.device), (uapi::VENDOR, uapi::device::BLACKHOLE));
    assert_eq!(device.location, (0, 1, 0, 0));
    assert_eq!(calls.driver().version.to_string(), "2.6.0");
    let mappings = calls.mappings().unwrap();
    assert_eq!(
        mappings.iter().map(|mapping| mapping.length >> 20).collect::<Vec<_>>(),
        [512, 512, 1, 1, 32_768, 32_768]
    );
    let description = machine.read(Path::new("/sys/class/tenstorrent/tenstorrent!0/device/uevent")).unwrap();
    assert!(description.contains("PCI_ID=1E52:B140"), "{description}");
    assert_eq!(machine.list(Path::new("/sys/class/tenstorrent")).unwrap(), ["tenstorrent!0"]);
    assert!(calls.set_power(Power { flags: 7 }).is_ok());
    assert_eq!(machine.ioctl(calls.file().1.as_fd(), 0xfa63, &mut [0; 64]), Err(Errno::INVAL));
    assert_eq!(machine.ioctl(calls.file().1.as_fd(), 0xfa00, &mut [0; 3]), Err(Errno::FAULT));
}

#[test]
fn exclusive_file_is_alone() {
    let machine = machine(&[]);
    let shared = machine.open(node()).unwrap();
    assert_eq!(machine.open_exclusive(node()).unwrap_err(), Errno::AGAIN);
    machine.close(shared);
    let alone = machine.open_exclusive(node()).unwrap();
    assert_eq!(machine.open(node()).unwrap_err(), Errno::AGAIN);
    // Closed behind the emulator's back, as by a program that ends.
    drop(alone);
    assert!(machine.open(node()).is_ok());
    assert_eq!(machine.open(Path::new("/dev/tenstorrent/1")).unwrap_err(), Errno::NOENT);
}

/// `O_EXCL` came with 2.10.0: before, `tt_cdev_open` admits every file.
#[test]
fn older_modules_open_a_card_for_all() {
    let machine = machine(&[("module", "2.9")]);
    let _alone = machine.open_exclusive(node()).unwrap();
    assert!(machine.open_exclusive(node()).is_ok() && machine.open(node()).is_ok());
}

#[test]
fn windows_are_whose_they_are_and_as_many_as_there_are() {
    let machine = machine(&[("fault", "windows:3")]);
    let (one, other) = (open(&machine), open(&machine));
    let first = one.allocate_window(SMALL).unwrap();
    let second = other.allocate_window(SMALL).unwrap();
    assert_ne!(first.id, second.id);
    assert_eq!(errno(one.point(&second, &show(1, 2, 0))), Some(Errno::PERM));
    assert_eq!(errno(one.free_window(second)), Some(Errno::PERM));
    assert_eq!(map(&one, second).unwrap_err(), Errno::PERM);
    assert_eq!(errno(one.allocate_window(1 << 20)), Some(Errno::INVAL));
    one.allocate_window(SMALL).unwrap();
    assert_eq!(errno(one.allocate_window(SMALL)), Some(Errno::NOMEM));
    let large: Vec<Tlb> = (0..8).map(|_| one.allocate_window(LARGE).unwrap()).collect();
    assert_eq!(errno(one.allocate_window(LARGE)), Some(Errno::NOMEM));
    assert!(large.iter().all(|tlb| tlb.uncached_offset >= (6 << 36) + (512 << 20)));
    let range = map(&one, first).unwrap();
    assert_eq!(errno(one.free_window(first)), Some(Errno::BUSY));
    assert_eq!(range.read(SMALL - 2, &mut [0; 4]), Err(Errno::FAULT));
    drop(range);
    one.free_window(first).unwrap();
    assert_eq!(machine.counts(0).windows, 10);
    drop(other);
    assert_eq!(machine.counts(0).windows, 10, "closed files are not noticed yet");
    machine.close(machine.open(node()).unwrap());
    assert_eq!(machine.counts(0).windows, 9);
}

#[test]
fn access_that_breaks_a_rule_of_the_chip_is_answered_with_ones() {
    let machine = machine(&[]);
    let calls = open(&machine);
    let tlb = calls.allocate_window(SMALL).unwrap();
    let range = map(&calls, tlb).unwrap();
    calls.point(&tlb, &show(1, 2, 0)).unwrap();
    let mut word = [0; 4];
    range.write(0x100, &[1, 2, 3, 4]).unwrap();
    range.read(0x100, &mut word).unwrap();
    assert_eq!(word, [1, 2, 3, 4]);
    // Behind a tile's memory.
    range.read(0x1f_0000, &mut word).unwrap();
    assert_eq!(word, [0xff; 4]);
    assert!(machine.complaint(0).unwrap().contains("not memory"));
}

#[test]
fn reset_ends_every_file_but_the_requesting_one() {
    let machine = machine(&[]);
    let (one, other) = (open(&machine), open(&machine));
    let tlb = other.allocate_window(SMALL).unwrap();
    let range = map(&other, tlb).unwrap();
    one.reset(Reset::Chip).unwrap();
    one.reset(Reset::Post).unwrap();
    assert_eq!(errno(other.device()), Some(Errno::NODEV));
    assert_eq!(map(&other, tlb).unwrap_err(), Errno::NODEV);
    assert_eq!(range.read(0, &mut [0; 4]), Err(Errno::NODEV));
    assert!(one.device().is_ok());
    assert!(open(&machine).device().is_ok());
    assert_eq!((machine.counts(0).resets, machine.counts(0).windows), (1, 0));
}

#[test]
fn locks_are_between_files_and_end_with_them() {
    let machine = machine(&[]);
    let (one, other) = (open(&machine), open(&machine));
    assert!(one.try_lock(5).unwrap() && !other.try_lock(5).unwrap());
    assert_eq!((one.holder(5).unwrap(), other.holder(5).unwrap()), (Lock::Ours, Lock::Others));
    assert!(!other.unlock(5).unwrap());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| other.wait_lock(5).is_ok());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        drop(one);
        machine.close(machine.open(node()).unwrap());
        assert!(waiting.join().unwrap());
    });
}

#[test]
fn cleanup_of_a_file_is_done_however_it_is_closed() {
    let machine = machine(&[]);
    let calls = open(&machine);
    let tlb = calls.allocate_window(SMALL).unwrap();
    calls.point(&tlb, &show(1, 2, 0xffa0_0000)).unwrap();
    let range = map(&calls, tlb).unwrap();
    let cleanup = NocCleanup { x: 1, y: 2, noc: 0, address: SOFT_RESET, value: ALL_HELD };
    calls.set_cleanup(Some(cleanup)).unwrap();
    range.write(SOFT_RESET - 0xffa0_0000, &(ALL_HELD & !(1 << 11)).to_le_bytes()).unwrap();
    assert_eq!((machine.counts(0).released, machine.counts(0).launches), (1, 1));
    drop(range);
    drop(calls);
    machine.close(machine.open(node()).unwrap());
    assert_eq!(machine.counts(0).released, 0);
    let calls = open(&machine);
    let wrong = NocCleanup { address: SOFT_RESET + 2, ..cleanup };
    assert_eq!(errno(calls.set_cleanup(Some(wrong))), Some(Errno::INVAL));
}

#[test]
fn wormhole_has_windows_of_three_sizes_and_addresses_of_36_bits() {
    const MIB: u64 = 1 << 20;
    let machine = machine(&[("board", "n150")]);
    let calls = open(&machine);
    let device = calls.device().unwrap();
    assert_eq!((device.vendor, device.device), (uapi::VENDOR, uapi::device::WORMHOLE));
    let description = machine.read(Path::new("/sys/class/tenstorrent/tenstorrent!0/device/uevent")).unwrap();
    assert!(description.contains("PCI_ID=1E52:401E"), "{description}");
    let mappings = calls.mappings().unwrap();
    let lengths: Vec<u64> = mappings.iter().map(|mapping| mapping.length >> 20).collect();
    assert_eq!(lengths, [512, 512, 1, 1, 32, 32]);
    // All there are but the kernel's, each at its place in the first region.
    for (size, count, first, start) in [(MIB, 156, 0, 0), (2 * MIB, 10, 156, 156), (16 * MIB, 19, 166, 176)] {
        let windows: Vec<Tlb> = (0..count).map(|_| calls.allocate_window(size).unwrap()).collect();
        assert_eq!(errno(calls.allocate_window(size)), Some(Errno::NOMEM));
        for (index, tlb) in (0..).zip(&windows) {
            assert_eq!(tlb.id, first + index);
            assert_eq!(tlb.uncached_offset, (6 << 36) + start * MIB + u64::from(index) * size);
        }
        let tlb = windows[3];
        let range = map(&calls, tlb).unwrap();
        calls.point(&tlb, &show(18, 18, 0)).unwrap();
        range.write(0x100, &size.to_le_bytes()).unwrap();
        let mut bytes = [0; 8];
        range.read(0x100, &mut bytes).unwrap();
        assert_eq!(bytes, size.to_le_bytes());
        // Within 36 bits.
        assert_eq!(errno(calls.point(&tlb, &show(18, 18, 1 << 36))), Some(Errno::INVAL));
        assert!(calls.point(&tlb, &show(0, 10, (1 << 36) - size)).is_ok());
        windows.into_iter().skip(4).for_each(|tlb| calls.free_window(tlb).unwrap());
    }
    assert_eq!(errno(calls.allocate_window(LARGE)), Some(Errno::INVAL));
    assert_eq!(machine.complaint(0), None);
}

#[test]
fn wormholes_windows_are_taken_by_others_by_size() {
    let machine = machine(&[("board", "n150"), ("fault", "windows:2"), ("fault", "no-large-windows")]);
    let calls = open(&machine);
    for _ in 0..2 {
        calls.allocate_window(1 << 20).unwrap();
    }
    for size in [1 << 20, 2 << 20, 16 << 20] {
        assert_eq!(errno(calls.allocate_window(size)), Some(Errno::NOMEM));
    }
}

/// The memory that an importer sees of a dma-buf, with what has to be done around its accesses.
fn importer_reads(buffer: &OwnedFd, length: u64) -> Result<Vec<u8>, Errno> {
    let imported = emulator_core::dmabuf::import(buffer.try_clone().unwrap(), "none", length)?;
    emulator_core::backing::pull(imported.whole());
    let mut bytes = vec![0; usize::try_from(length).unwrap()];
    assert!(imported.read(0, &mut bytes));
    Ok(bytes)
}

fn export(calls: &Calls<File>, tlb: &Tlb, offset: u64, length: u64) -> Result<OwnedFd, CallError> {
    let number = calls.export_window(tlb, offset, length)?;
    // SAFETY: the request made the descriptor, and nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// An importer reads through the window, by what that is pointed at, for as long as it has the dma-buf; and no longer
/// than there is a card.
#[test]
fn importer_reaches_the_chip_through_an_exported_window() {
    let machine = machine(&[("fault", "unplug:12")]);
    let calls = open(&machine);
    let tlb = calls.allocate_window(SMALL).unwrap();
    calls.point(&tlb, &show(1, 2, 0)).unwrap();
    map(&calls, tlb).unwrap().write(0x3000, &[7; 16]).unwrap();
    let buffer = export(&calls, &tlb, 0x2000, 0x2000).unwrap();
    assert_eq!(importer_reads(&buffer, 0x3000), Err(Errno::INVAL), "longer than the part");
    assert_eq!(importer_reads(&buffer, 0x2000).unwrap()[0x1000..0x1010], [7; 16]);
    // The file that had the window is closed.
    drop(calls);
    machine.close(machine.open(node()).unwrap());
    assert_eq!(importer_reads(&buffer, 0x2000).unwrap()[0x1000..0x1010], [7; 16]);
    let other = open(&machine);
    while other.device().is_ok() {}
    assert_eq!(importer_reads(&buffer, 0x2000), Ok(vec![0xff; 0x2000]), "the card is gone");
}

/// `tenstorrent_has_tlb_dmabuf_exports`, `tenstorrent_tlb_export_put`
#[test]
fn exported_window_keeps_its_card_from_resets_and_comes_back_with_the_last_descriptor() {
    let machine = machine(&[("fault", "windows:2"), ("fault", "reset:1")]);
    let (one, other) = (open(&machine), open(&machine));
    let tlb = one.allocate_window(SMALL).unwrap();
    let parts = [0, 0x1000].map(|offset| export(&one, &tlb, offset, 0x1000).unwrap());
    for (offset, length) in [(1, 0x1000), (0, 1), (SMALL, 0), (0, SMALL + 0x1000), (SMALL - 0x1000, 0x2000)] {
        assert_eq!(errno(export(&one, &tlb, offset, length)), Some(Errno::INVAL), "{length} at {offset}");
    }
    assert_eq!(errno(export(&other, &tlb, 0, 0)), Some(Errno::PERM));
    for reset in [Reset::User, Reset::Chip, Reset::ChipAndController] {
        assert_eq!(errno(other.reset(reset)), Some(Errno::BUSY), "{reset:?}");
    }
    other.reset(Reset::Post).unwrap();
    // What starts a tile has another program reset the card, which gets `EBUSY` too.
    let registers = other.allocate_window(SMALL).unwrap();
    other.point(&registers, &show(1, 2, 0xffa0_0000)).unwrap();
    let range = map(&other, registers).unwrap();
    range.write(SOFT_RESET - 0xffa0_0000, &(ALL_HELD & !(1 << 11)).to_le_bytes()).unwrap();
    assert_eq!((machine.counts(0).launches, machine.counts(0).resets), (1, 0));
    one.free_window(tlb).unwrap();
    for part in parts {
        assert_eq!(machine.counts(0).windows, 2);
        assert_eq!(errno(other.allocate_window(SMALL)), Some(Errno::NOMEM));
        drop(part);
    }
    other.allocate_window(SMALL).unwrap();
    other.reset(Reset::Chip).unwrap();
}
