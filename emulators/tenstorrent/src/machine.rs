// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cards of a machine behind one lock, their files, and the workers that execute their tiles.
//!
//! The lock guards the driver's state: files, windows, locks. A chip has locks of its own, and an access
//! through a window takes the machine's lock only when it starts a tile. Each running tile is a unit of work,
//! for one [slice of instructions](Silicon::run_slice) at a time, so that tiles run on as many threads as there are
//! workers.

use crate::host_memory::{HostMemory, OutboundRegions};
use crate::injection;
use crate::options::Options;
use crate::silicon::Silicon;
use crate::window;
use emulator_chip::Tile;
use emulator_core::dmabuf::Aperture;
use emulator_core::file::{Identity, OpenFiles, Opened};
use emulator_core::injection::Injections;
use emulator_core::{Errno, OpenMode, Process, interrupt, machine};
use hal_backend::Failure;
use hal_tenstorrent_abi::Feature;
use hal_tenstorrent_abi::uapi::SetNocCleanup;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How many instructions each core of a tile executes before another tile runs.
const SLICE: u64 = 1 << 15;

/// The counts of a card since its machine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How often the card was opened.
    pub opens: u64,
    /// How often it was reset.
    pub resets: u64,
    /// How often a tile was started.
    pub launches: u64,
    /// How many slices of instructions tiles had.
    pub turns: u64,
    /// The counts of its tiles, over all resets.
    pub chip: emulator_chip::ChipCounts,
    /// Bytes that were read through windows.
    pub bytes_read: u64,
    /// Bytes that were written through windows.
    pub bytes_written: u64,
    /// Open files.
    pub files: u64,
    /// Allocated windows.
    pub windows: u64,
    /// Mappings.
    pub mappings: u64,
    /// Cores that are not in reset.
    pub released: u64,
}

/// The hardware behind the mappings of a card: shared by all mappings that were made since the last reset.
#[derive(Debug)]
pub(crate) struct CardHardware {
    pub(crate) chip: Silicon,
    /// Set when the card is reset or pulled out: then accesses fail.
    pub(crate) gone: AtomicBool,
    /// How often all mappings of it were revoked (`tenstorrent_vma_zap`).
    pub(crate) revoked: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
}

/// A window that is not free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnedWindow {
    /// The file that has allocated it, until that frees it: then a dma-buf has it.
    pub(crate) file: Option<Identity>,
    /// How many mappings of it there are in this process.
    pub(crate) mappings: u64,
}

/// A window as a dma-buf, which keeps it from being free (`tenstorrent_tlb_export_get`).
#[derive(Debug)]
pub(crate) struct ExportedWindow {
    pub(crate) window: u32,
    pub(crate) dmabuf: Aperture,
}

/// One card, with the kernel's state for it.
pub(crate) struct Card {
    pub(crate) number: usize,
    pub(crate) board: Arc<CardHardware>,
    pub(crate) windows: BTreeMap<u32, OwnedWindow>,
    pub(crate) exports: Vec<ExportedWindow>,
    pub(crate) locks: BTreeMap<u8, Identity>,
    pub(crate) regions: OutboundRegions,
    pub(crate) injections: Injections,
    counts: Counts,
    complaint: Option<String>,
    /// How often it was reset (`reset_gen`); files from before are dead.
    pub(crate) resets: u64,
    /// True if it was pulled out (`detached`).
    pub(crate) detached: bool,
    /// True from a reset until a program says that it is over (`needs_hw_init`).
    pub(crate) needs_init: bool,
}

/// An open file of a card.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) card: usize,
    /// [`Card::resets`] when it was opened, or when it reset the card itself (`open_reset_gen`).
    pub(crate) resets: u64,
    pub(crate) exclusive: bool,
    pub(crate) cleanup: SetNocCleanup,
    /// The process that opened it.
    pub(crate) process: u32,
    /// How many files were opened before.
    pub(crate) number: u64,
    pub(crate) memory: HostMemory,
    /// What other processes have mapped of it, and how often mappings had been revoked then.
    pub(crate) mapped: BTreeMap<Mapped, u64>,
}

/// What a process maps of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mapped {
    /// A window.
    Window(u32),
    /// A region of the card: 0, 2 or 4.
    Region(u8),
}

/// The state behind the lock.
pub(crate) struct Cards {
    pub(crate) cards: machine::CardList<Card>,
    pub(crate) files: OpenFiles<()>,
    /// The data of each open file.
    pub(crate) open: BTreeMap<Identity, OpenFile>,
    /// How many files were opened.
    opened: u64,
}

/// A running tile of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Unit {
    card: usize,
    tile: usize,
}

/// The held lock.
pub(crate) type Guard<'a> = machine::MachineGuard<'a, Cards, Unit>;

/// Cards behind one lock.
pub struct Machine {
    pub(crate) options: Options,
    core: machine::MachineCore<Cards, Unit>,
}

impl CardHardware {
    fn new(options: &Options, number: usize) -> Result<Arc<Self>, Failure> {
        Ok(Arc::new(Self {
            chip: Silicon::new(options, number)?,
            gone: AtomicBool::new(false),
            revoked: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
        }))
    }
}

impl Card {
    fn new(options: &Options, number: usize) -> Result<Self, Failure> {
        Ok(Self {
            number,
            board: CardHardware::new(options, number)?,
            windows: BTreeMap::new(),
            exports: Vec::new(),
            locks: BTreeMap::new(),
            regions: OutboundRegions::default(),
            injections: Injections::new(&options.injections),
            counts: Counts::default(),
            complaint: None,
            resets: 0,
            detached: false,
            needs_init: false,
        })
    }

    /// Adds the mappings' counts to the card's.
    fn count_board(&mut self) {
        self.counts.bytes_read += self.board.bytes_read.swap(0, Ordering::Relaxed);
        self.counts.bytes_written += self.board.bytes_written.swap(0, Ordering::Relaxed);
    }

    /// True if a dma-buf of a window is alive (`tenstorrent_has_tlb_dmabuf_exports`).
    pub(crate) fn is_exported(&mut self) -> bool {
        self.exports.retain(|export| export.dmabuf.is_held());
        !self.exports.is_empty()
    }

    /// Frees every window that neither a file nor a dma-buf has.
    pub(crate) fn free_windows(&mut self) {
        self.exports.retain(|export| export.dmabuf.is_held());
        let exports = &self.exports;
        let is_exported = |window: u32| exports.iter().any(|export| export.window == window);
        self.windows.retain(|&window, owned| owned.file.is_some() || is_exported(window));
    }

    /// Ends all mappings.
    fn end_board(&mut self) {
        self.count_board();
        self.counts.chip += self.board.chip.counts();
        self.board.gone.store(true, Ordering::Relaxed);
    }
}

impl Machine {
    pub(crate) fn new(options: Options) -> Result<Self, Failure> {
        let cards = (0..options.cards).map(|number| Card::new(&options, number));
        let cards = Cards {
            cards: cards.collect::<Result<_, _>>()?,
            files: OpenFiles::default(),
            open: BTreeMap::new(),
            opened: 0,
        };
        Ok(Self { core: machine::MachineCore::new(options.execution.clone(), options.cards, cards), options })
    }

    /// Takes the lock.
    pub(crate) fn lock(&self) -> Guard<'_> {
        self.core.lock()
    }

    /// The numbers of the cards that are there.
    pub(crate) fn present(&self) -> Vec<usize> {
        self.lock().cards.numbers(|card| !card.detached)
    }

    /// Opens a card (`tt_cdev_open`, `admit_chardev_open`). An exclusive open needs a free card, and no other
    /// open succeeds while a file has the card exclusively: they wait, or fail with `EAGAIN`. Modules before 2.10 do
    /// not look at `O_EXCL`.
    pub(crate) fn open(
        &self,
        process: &dyn Process,
        number: usize,
        mode: OpenMode,
    ) -> Result<OwnedFd, Errno> {
        let exclusive = mode.is_exclusive && self.options.module >= Feature::ExclusiveOpen.since();
        let opened = Opened::new("tenstorrent")?;
        self.release_closed();
        let mut state = self.lock();
        loop {
            let mut others = state.open.values().filter(|file| file.card == number);
            let busy = others.any(|file| exclusive || file.exclusive);
            state.cards.find(number).filter(|card| !card.detached).ok_or(Errno::NOENT)?;
            if !busy {
                break;
            }
            if mode.is_nonblocking {
                return Err(Errno::AGAIN);
            }
            self.wait(&mut state, number)?;
        }
        let card = &mut state.cards[number];
        card.counts.opens += 1;
        let resets = card.resets;
        state.opened += 1;
        let file = OpenFile {
            card: number,
            resets,
            exclusive,
            cleanup: SetNocCleanup::default(),
            process: process.id(),
            number: state.opened,
            memory: HostMemory::default(),
            mapped: BTreeMap::new(),
        };
        state.open.insert(opened.identity, file);
        Ok(state.files.insert(opened, ()))
    }

    /// Sleeps until a file of a card is closed, a lock is released, or the card is reset. A signal ends the request,
    /// and the process's thread makes it again unless it has a handler that says otherwise (`ERESTARTSYS`).
    pub(crate) fn wait(&self, state: &mut Guard<'_>, number: usize) -> Result<(), Errno> {
        const RESTART: Errno = Errno::from_raw_os_error(512);
        if interrupt::is_pending() {
            return Err(RESTART);
        }
        if state.is_stopping() {
            return Err(Errno::NODEV);
        }
        self.core.sleep(state, number, None);
        Ok(())
    }

    /// Wakes those that wait for something of a card.
    pub(crate) fn wake(&self, number: usize) {
        self.core.wake(number);
    }

    /// Wakes every request that sleeps.
    pub(crate) fn wake_all(&self) {
        self.core.wake_all();
    }

    /// Releases every file without a descriptor and a mapping (`tt_cdev_release`).
    pub(crate) fn release_closed(&self) {
        let mut state = self.lock();
        let cards: &mut Cards = &mut state;
        for (identity, ()) in cards.files.take_closed() {
            let Some(file) = cards.open.remove(&identity) else { continue };
            self.core.wake(file.card);
            let card = &mut cards.cards[file.card];
            let SetNocCleanup { enabled, x, y, addr, data, .. } = file.cleanup;
            if enabled == 1 && !card.detached {
                // `tt_cdev_release_noc_cleanup`: the lower half is written.
                #[expect(clippy::cast_possible_truncation, reason = "the driver writes the lower half")]
                let word = data as u32;
                let written = window::write_word(&card.board.chip, Tile { x, y }, addr, word);
                if let Err(violation) = written {
                    card.complaint = Some(violation);
                }
            }
            card.locks.retain(|_, owner| *owner != identity);
            card.regions.release(identity);
            for owned in card.windows.values_mut().filter(|owned| owned.file == Some(identity)) {
                owned.file = None;
            }
            card.free_windows();
        }
        self.launch_all(&mut state);
    }

    /// Offers every started tile to the workers.
    fn launch_all(&self, state: &mut machine::MachineState<Cards, Unit>) {
        for number in 0..state.cards.len() {
            self.launch(state, number);
        }
    }

    /// Offers the started tiles of a card to the workers.
    pub(crate) fn launch(&self, state: &mut machine::MachineState<Cards, Unit>, number: usize) {
        let card = &mut state.cards[number];
        let board = card.board.clone();
        for tile in board.chip.take_started() {
            let card = &mut state.cards[number];
            card.counts.launches += 1;
            let hangs = card.injections.strikes(injection::HANG);
            if card.injections.strikes(injection::STUCK) {
                board.chip.stick(tile);
            }
            // With a window exported the other program gets `EBUSY`.
            if card.injections.strikes(injection::RESET) && !card.is_exported() {
                self.reset(card, None);
                self.core.wake(number);
                return;
            }
            if !hangs {
                self.core.offer(state, Unit { card: number, tile });
            }
        }
    }

    /// Resets a card (`ioctl_reset_device`): the chip is as after power-on, mappings are dead, and the windows
    /// of dead files are free. The file that resets lives on.
    pub(crate) fn reset(&self, card: &mut Card, resetting: Option<Identity>) {
        card.end_board();
        match CardHardware::new(&self.options, card.number) {
            Ok(board) => card.board = board,
            // A simulator that started before may fail to start again: then the card does not come back.
            Err(failure) => {
                card.complaint = Some(failure.message().to_owned());
                card.detached = true;
            }
        }
        self.end_files(card, resetting);
        card.counts.resets += 1;
    }

    /// Ends every file of a card but one (`bump_reset_gen`, `tenstorrent_reset_reclaim_tlbs` and `…_iatus`).
    pub(crate) fn end_files(&self, card: &mut Card, but: Option<Identity>) {
        card.board.revoked.fetch_add(1, Ordering::Relaxed);
        card.resets += 1;
        for owned in card.windows.values_mut() {
            owned.mappings = 0;
            owned.file = owned.file.filter(|file| Some(*file) == but);
        }
        card.regions.release_all_but(but);
        card.free_windows();
    }

    /// Pulls a card out (`tenstorrent_pci_remove`).
    pub(crate) fn unplug(card: &mut Card) {
        card.detached = true;
        card.end_board();
    }

    /// A worker's thread.
    pub(crate) fn work(&self, worker: usize) {
        let mut state = self.lock();
        while let Some(unit) = self.core.next(&mut state, worker) {
            let Unit { card: number, tile } = unit;
            let card = &mut state.cards[number];
            card.counts.turns += 1;
            let board = card.board.clone();
            drop(state);
            let runs = board.chip.run_slice(tile, SLICE);
            state = self.lock();
            let card = &state.cards[number];
            if !Arc::ptr_eq(&card.board, &board) {
                continue;
            }
            if runs {
                self.core.offer(&mut state, unit);
            }
            // Tiles that it has started.
            self.launch(&mut state, number);
        }
    }

    /// The clock's thread: this driver has no timed events.
    pub(crate) fn tick(&self) {
        self.core.tick(|_, _| None);
    }

    /// Ends every thread, and appends the report to the file that the options name.
    pub(crate) fn end(&self) {
        self.core.stop();
        let Some(path) = &self.options.report else { return };
        let file = OpenOptions::new().create(true).append(true).open(path);
        let written = file.and_then(|mut file| file.write_all(self.report().as_bytes()));
        if let Err(error) = written {
            eprintln!("tenstorrent://emulated: report={}: {error}", path.display());
        }
    }

    /// The counts of a card; zeros, if there is none of that number.
    pub fn counts(&self, number: usize) -> Counts {
        let mut state = self.lock();
        let files = state.open.values().filter(|file| file.card == number).count() as u64;
        let Some(card) = state.cards.find_mut(number) else { return Counts::default() };
        card.count_board();
        card.free_windows();
        let mut chip = card.counts.chip;
        // A card that was pulled out has added its chip's counts then.
        if !card.detached {
            chip += card.board.chip.counts();
        }
        Counts {
            chip,
            files,
            windows: card.windows.len() as u64,
            mappings: card.windows.values().map(|owned| owned.mappings).sum(),
            released: card.board.chip.released() as u64,
            ..card.counts
        }
    }

    /// A line for each card with what it has done, for people.
    pub fn report(&self) -> String {
        let line = |card| {
            let counts = self.counts(card);
            let chip = counts.chip;
            format!(
                "card {card}: {} opens, {} resets, {} launches, {} instructions, {} engine words, {} packets with \
                 {} bytes read, {} packets with {} bytes written, {} bytes read and {} written by the host\n",
                counts.opens,
                counts.resets,
                counts.launches,
                chip.instructions,
                chip.engine.total(),
                chip.packets_read,
                chip.bytes_read,
                chip.packets_written,
                chip.bytes_written,
                counts.bytes_read,
                counts.bytes_written,
            )
        };
        (0..self.options.cards).map(line).collect()
    }

    /// The reason why nothing answers any more, if a simulator has ended.
    pub(crate) fn ended(&self) -> Option<String> {
        let state = self.lock();
        state.cards.iter().find_map(|card| card.board.chip.ended())
    }

    /// The first rule that software on the host broke, for people.
    pub fn complaint(&self, number: usize) -> Option<String> {
        self.lock().cards.find(number)?.complaint.clone()
    }

    /// A core that has stopped until it is reset, and why.
    pub fn stopped_core(&self, number: usize) -> Option<String> {
        let board = self.lock().cards.find(number)?.board.clone();
        board.chip.stopped()
    }

    /// Keeps the first rule that was broken.
    pub(crate) fn complain(&self, number: usize, violation: &str) {
        self.lock().cards[number].complaint.get_or_insert_with(|| violation.to_owned());
    }
}
