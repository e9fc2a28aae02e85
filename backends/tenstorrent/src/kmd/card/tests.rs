// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A card whose mappings the kernel has taken back.

use super::*;
use emulator_tenstorrent::{Emulator, Options};
use hal_backend::{HostRange, Parameters};
use hal_kernel::DeviceRange;
use hal_kernel::cards::CardClass;
use hal_tenstorrent_abi::Reset;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A card of a module that opens it for all, which counts the accesses to mappings that the kernel has taken back:
/// each is a signal that ends the program (`tenstorrent_vma_zap`).
struct Signalling {
    machine: Arc<Emulator>,
    signals: Arc<AtomicUsize>,
}

impl System for Signalling {
    fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.machine.open(path)
    }

    fn open_exclusive(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.machine.open_exclusive(path)
    }

    fn close(&self, file: OwnedFd) {
        self.machine.close(file);
    }

    fn ioctl(&self, file: BorrowedFd<'_>, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        self.machine.ioctl(file, request, argument)
    }

    fn map(&self, file: BorrowedFd<'_>, length: usize, offset: u64) -> Result<HostRange, Errno> {
        self.machine.map(file, length, offset)
    }

    fn map_device(
        &self,
        file: BorrowedFd<'_>,
        length: usize,
        offset: u64,
    ) -> Result<Arc<dyn DeviceRange>, Errno> {
        let range = self.machine.map_device(file, length, offset)?;
        Ok(Arc::new(SignallingRange { range, signals: self.signals.clone() }))
    }

    fn read(&self, path: &Path) -> Result<String, Errno> {
        self.machine.read(path)
    }

    fn list(&self, path: &Path) -> Result<Vec<String>, Errno> {
        self.machine.list(path)
    }

    fn holder(&self, path: &Path) -> Option<String> {
        self.machine.holder(path)
    }
}

#[derive(Debug)]
struct SignallingRange {
    range: Arc<dyn DeviceRange>,
    signals: Arc<AtomicUsize>,
}

impl SignallingRange {
    fn count(&self, result: Result<(), Errno>) -> Result<(), Errno> {
        if result == Err(Errno::NODEV) {
            self.signals.fetch_add(1, Ordering::Relaxed);
        }
        result
    }
}

impl DeviceRange for SignallingRange {
    fn length(&self) -> u64 {
        self.range.length()
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        self.count(self.range.read(offset, bytes))
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.count(self.range.write(offset, bytes))
    }
}

#[test]
fn card_that_was_reset_is_closed_without_a_signal() {
    let options = Options::read(&mut Parameters::new("tenstorrent", [("module", "2.9")])).unwrap();
    let (machine, signals) = (Emulator::new(options).unwrap(), Arc::new(AtomicUsize::new(0)));
    let system = Arc::new(Signalling { machine: machine.clone(), signals: signals.clone() });
    let node = Path::new("/dev/tenstorrent/0");
    let card = Card::open(system, node, Duration::ZERO).unwrap();
    // As after a dispatch on the first tile: a window shows it.
    let first = card.grid().tiles()[0];
    card.write_word(first, SOFT_RESET, ALL_HELD).unwrap();
    let all = CardClass { exclusive: false, ..CARDS };
    let other = Calls::new(CardFile::open(&all, machine, node, Duration::ZERO).unwrap()).unwrap();
    other.reset(Reset::Chip).unwrap();
    drop(card);
    assert_eq!(signals.load(Ordering::Relaxed), 0);
}
