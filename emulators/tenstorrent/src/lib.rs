// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An emulator of tt-kmd, Tenstorrent's kernel driver, with simulated Blackhole or Wormhole cards behind it, in this process.
//!
//! It answers as the driver does, by the driver's rules and with its errors (module 2.0 to 2.10), and behind its windows is a
//! [simulated chip](emulator_chip), whose tiles execute on threads of this process. It shares no logic with a backend: it cannot name
//! one. It shows that a program keeps the rules, and nothing about how fast or how sound a real card is.
//!
//! # Parameters
//!
//! | parameter | default | what it does |
//! |---|---|---|
//! | `cards=N` | 1 | how many cards there are, 1 to 8 |
//! | `board=p100a\|p150\|n150` | p150 | what they are |
//! | `columns=MASK`, `rows=MASK`, `banks=MASK` | the last ones are missing | which physical columns of tiles (of an n150: rows) and which DRAM banks there are, a bit each |
//! | `module=2.MINOR` | 2.10 | which module drives them: older ones lack calls |
//! | `report=FILE` | none | a file to which a line for each card is added when the machine ends: what was done and how often |
//! | `fault=…` | none | what goes wrong; may be given several times, see below |
//!
//! How the machine executes has [parameters of its own](emulator_core::options): `workers`, `schedule` and `seed`; `speed` and
//! `machine` do nothing here.
//!
//! # Faults
//!
//! Each card counts by itself, from 1, for as long as the machine lives.
//!
//! | fault | what happens |
//! |---|---|
//! | `windows:N` | another program has all of the smallest windows (2 MiB; of an n150, 1 MiB) but N: `ENOMEM` |
//! | `no-large-windows` | the bridge shows no windows of 4 GiB: `EINVAL`; of an n150, other programs have all but the smallest: `ENOMEM` |
//! | `reset:N` | another program resets the card when the N-th tile is let go: open files and mappings are dead |
//! | `hang:N` | the N-th tile that is let go never executes anything |
//! | `stuck:N` | the N-th tile that is let go cannot be held again: what is written to its reset register is lost |
//! | `harvested:N` | the N-th window that is pointed somewhere shows a tile that is fused off: touching it loses the device |
//! | `flip:N` | in the N-th read of more than four bytes the last bit is not what was there |
//! | `unplug:N` | the card is pulled out at the N-th request: `ENODEV` from there on |
//!
//! # Where things are
//!
//! | file | what is there |
//! |---|---|
//! | `machine.rs` | the cards of a machine; files; resets; the workers that execute tiles |
//! | `request.rs` | requests of open files |
//! | `window.rs` | windows, mapped |
//! | `silicon.rs` | what is behind the driver: a chip in this process, or |
//! | `library.rs`, `protocol.rs` | one in a simulator's library, which another process has loaded |
//! | `fault.rs`, `options.rs` | what a URI asks for |
//!
//! # What is not modelled
//!
//! Memory of the host that the device reaches (`ALLOCATE_DMA_BUF`, `PIN_PAGES`, `MAP_PEER_BAR`), windows as dma-bufs, mappings of whole
//! regions, signals where a mapping was taken back (an access says `ENODEV`), waiting for an exclusive open and for locks (both say
//! `EAGAIN` at once), power and what takes time to come up.

mod emulated;
mod fault;
mod library;
mod machine;
mod options;
pub mod protocol;
mod request;
mod server;
mod silicon;
mod window;

pub use emulated::Emulated;
pub use library::{SERVER, SERVER_VARIABLE};
pub use machine::Counts;
pub use options::{Library, Options};
pub use server::serve;

use emulator_core::threads::Running;
use emulator_core::{DeviceRange, Errno, System};
use hal_backend::{Failure, HostRange};
use hal_kernel::registry::Registry;
use hal_tenstorrent_abi::paths;
use machine::Machine;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// A machine with emulated cards. Its threads end with it.
#[derive(Debug)]
pub struct Emulator {
    machine: Running<Machine>,
}

/// Every machine of this process.
static MACHINES: Registry<Options, Emulator> = Registry::new();

impl Emulator {
    /// The machine with these options: the one that there is, or a new one.
    pub fn get(options: &Options) -> Result<Arc<Self>, Failure> {
        // A machine that is ending is not given out: the next is made beside it.
        MACHINES.open(options.clone(), None, |_| Self::start(options.clone()))
    }

    /// A machine of the caller's own.
    pub fn new(options: Options) -> Result<Arc<Self>, Failure> {
        Self::start(options).map(|machine| MACHINES.private(machine))
    }

    fn start(options: Options) -> Result<Self, Failure> {
        let workers = options.execution.workers;
        let machine = Machine::new(options)?;
        Running::start("tenstorrent", machine, workers, Machine::work, Machine::tick, Machine::stop)
            .map(|machine| Self { machine })
    }

    /// What it was made with.
    pub fn options(&self) -> &Options {
        &self.machine.options
    }

    /// What became of a card; zeros, if there is none of that number.
    pub fn counts(&self, card: usize) -> Counts {
        self.machine.counts(card)
    }

    /// What became of the cards, a line for each, for people.
    pub fn report(&self) -> String {
        self.machine.report()
    }

    /// A core that does not go on until it is reset, and why.
    pub fn stopped_core(&self, card: usize) -> Option<String> {
        self.machine.stopped(card)
    }

    /// The rule that was broken first, by software on the host, for people.
    pub fn complaint(&self, card: usize) -> Option<String> {
        self.machine.complaint(card)
    }
}

impl System for Emulator {
    /// Says `EAGAIN` where the kernel would wait for a program that has the card for itself.
    fn open(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.machine.open(paths::node(path).ok_or(Errno::NOENT)?, false)
    }

    fn open_exclusive(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.machine.open(paths::node(path).ok_or(Errno::NOENT)?, true)
    }

    fn close(&self, file: OwnedFd) {
        drop(file);
        self.machine.release_closed();
    }

    fn ioctl(&self, file: BorrowedFd<'_>, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        self.machine.request(file, request, argument)
    }

    /// Nothing of this driver is plain memory.
    fn map(&self, _: BorrowedFd<'_>, _: usize, _: u64) -> Result<HostRange, Errno> {
        Err(Errno::INVAL)
    }

    fn map_device(
        &self,
        file: BorrowedFd<'_>,
        length: usize,
        offset: u64,
    ) -> Result<Arc<dyn DeviceRange>, Errno> {
        window::map(&self.machine, file, length, offset)
    }

    fn read(&self, path: &Path) -> Result<String, Errno> {
        let (card, file) = paths::file(path).ok_or(Errno::NOENT)?;
        self.machine.attribute(card, file)
    }

    fn list(&self, path: &Path) -> Result<Vec<String>, Errno> {
        let prefix = match path.to_str() {
            Some(paths::CLASS) => paths::PREFIX,
            Some(paths::NODES) => "",
            _ => return Err(Errno::NOENT),
        };
        Ok(self.machine.present().iter().map(|number| format!("{prefix}{number}")).collect())
    }

    fn cause(&self) -> Option<String> {
        self.machine.ended()
    }

    fn stopped(&self, node: &Path) -> Option<String> {
        self.machine.stopped(paths::node(node)?)
    }

    fn holder(&self, path: &Path) -> Option<String> {
        self.machine.is_open(paths::node(path)?).then(|| format!("process {}", std::process::id()))
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let Some(path) = &self.options().report else { return };
        // Nothing is counted any more.
        self.machine.stop();
        let file = OpenOptions::new().create(true).append(true).open(path);
        let written = file.and_then(|mut file| file.write_all(self.report().as_bytes()));
        if let Err(error) = written {
            eprintln!("tenstorrent://emulated: report={}: {error}", path.display());
        }
    }
}
