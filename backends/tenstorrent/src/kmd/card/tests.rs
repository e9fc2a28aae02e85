// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Cards that are reset, in use, or refused: what is left of them in the kernel, and what a program is told.

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

/// The kernel's list names processes of every user. Here both programs are one process.
#[test]
fn card_that_is_in_use_is_refused_with_the_process_that_has_it() {
    for module in ["2.9", "2.10"] {
        let options = Options::read(&mut Parameters::new("tenstorrent", [("module", module)])).unwrap();
        let machine = Emulator::new(options).unwrap();
        let node = Path::new("/dev/tenstorrent/0");
        let card = Card::open(machine.clone(), node, Duration::ZERO).unwrap();
        let refused = Card::open(machine.clone(), node, Duration::ZERO).unwrap_err();
        let process = format!("process {}", std::process::id());
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        assert!(refused.message().contains("in use") && refused.message().contains(&process), "{refused}");
        drop(card);
        drop(Card::open(machine, node, Duration::ZERO).unwrap());
    }
}

/// A system that refuses one of the calls about a card.
#[derive(Debug)]
struct Refusing {
    machine: Arc<Emulator>,
    /// How many calls are made before it.
    before: AtomicUsize,
    errno: Errno,
}

impl Refusing {
    fn pass(&self) -> Result<(), Errno> {
        match self.before.fetch_sub(1, Ordering::Relaxed) {
            0 => Err(self.errno),
            _ => Ok(()),
        }
    }
}

impl System for Refusing {
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
        self.pass()?;
        self.machine.ioctl(file, request, argument)
    }

    fn map_device(
        &self,
        file: BorrowedFd<'_>,
        length: usize,
        offset: u64,
    ) -> Result<Arc<dyn DeviceRange>, Errno> {
        self.pass()?;
        self.machine.map_device(file, length, offset)
    }
}

/// Whatever call fails while a card is opened, lends memory or is closed, its windows are free again for other
/// programs; those that are lent when they are given back.
#[test]
fn windows_are_given_back_whichever_call_fails() {
    let (small, large) = (0x1000, 3 << 20);
    for (board, errno) in [("p100a", Errno::IO), ("p100a", Errno::NOMEM), ("n150", Errno::NODEV)] {
        let options = Options::read(&mut Parameters::new("tenstorrent", [("board", board)])).unwrap();
        let machine = Emulator::new(options).unwrap();
        let node = Path::new("/dev/tenstorrent/0");
        let (mut refused, mut most) = (0, 0);
        for before in 0.. {
            let system = Refusing { machine: machine.clone(), before: AtomicUsize::new(before), errno };
            let system = Arc::new(system);
            let card = Card::open(system.clone(), node, Duration::ZERO);
            let is_opened = card.is_ok();
            let lend = |length| card.as_ref().map(|card| card.lend(card.grid().banks()[1], 16 << 20, length));
            let lent = [small, large].map(lend).into_iter().flatten().filter_map(Result::ok);
            let lent: Vec<OwnedFd> = lent.collect();
            most = machine.counts(0).windows.max(most);
            drop(card);
            let left = || {
                let counts = machine.counts(0);
                (counts.files, counts.mappings, counts.windows)
            };
            assert_eq!(left(), (0, 0, lent.len() as u64), "{board} {errno} {before}");
            refused += usize::from(lent.len() < 2);
            drop(lent);
            assert_eq!(left(), (0, 0, 0), "{board} {errno} {before}");
            if is_opened && system.before.load(Ordering::Relaxed) <= before {
                break;
            }
        }
        assert!(refused > 2 && most > 32, "{board}: {refused} refused, {most} windows at most");
    }
}
