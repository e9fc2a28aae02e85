//! Open files: who has a card, and what a close does.
//!
//! An open file is a memory file that stands for it. The program's descriptor is one description of it, with a shared
//! lock; the emulator keeps another, and knows that every descriptor of the program, every copy of one, and every
//! mapping made through one is gone when it gets the lock for itself. So a file is released when a kernel would
//! release it, also where a program has duplicated it, or has closed it behind the emulator's back.
//!
//! A dma-buf is another description of a device memory file, with a shared lock too, and holds its card in the
//! same way: after a close the card is busy until the last dma-buf has gone.

use crate::card::{Context, Status};
use crate::machine::{Guard, Machine, State};
use crate::space::{Space, What};
use hal_backend::HostRange;
use hal_emulation::{Errno, identity, map_shared};
use hal_emulation::{Process, reopen};
use rustix::fs::{FlockOperation, MemfdFlags, Mode, OFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What a descriptor refers to: device and inode number.
pub(crate) type Identity = (u64, u64);

/// An open file.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) card: usize,
    /// Whether it is the control node, which answers questions alone.
    pub(crate) control: bool,
    /// The emulator's own description of it.
    watch: OwnedFd,
}

/// Whether anybody else has a description of this file.
pub(crate) fn is_held(file: BorrowedFd<'_>) -> bool {
    let alone = rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
    if alone {
        // Only to find out: whoever comes next may lock it.
        let _ = rustix::fs::flock(file, FlockOperation::Unlock);
    }
    !alone
}

/// A memory file of some length, of which nothing is there until it is written.
pub(crate) fn memory_file(name: &str, length: u64) -> Result<OwnedFd, Errno> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, length)?;
    Ok(file)
}

/// A memory file, mapped.
pub(crate) fn device_memory(length: u64) -> Result<(Arc<OwnedFd>, HostRange), Errno> {
    let file = memory_file(crate::dmabuf::NAME, length)?;
    let size = usize::try_from(length).map_err(|_| Errno::NOMEM)?;
    let range = map_shared(file.as_fd(), size, 0)?;
    Ok((Arc::new(file), range))
}

impl Machine {
    /// Opens the compute node of a card, or its control node.
    pub(crate) fn open(&self, process: &dyn Process, number: usize, control: bool) -> Result<OwnedFd, Errno> {
        let mut state = self.state.lock();
        self.reap(&mut state);
        let card = state.cards.get_mut(number).ok_or(Errno::NOENT)?;
        if card.status == Status::Gone {
            return Err(Errno::NODEV);
        }
        let mut claim = None;
        if !control {
            card.faults.open()?;
            match card.status {
                Status::Operational => {}
                Status::InReset | Status::Releasing => return Err(Errno::AGAIN),
                Status::Malfunction | Status::Gone => return Err(Errno::PERM),
            }
            if card.owner.is_some() || card.releasing {
                return Err(Errno::BUSY);
            }
            claim = self.claim(process, number)?;
        }
        let watch = memory_file("habanalabs", 0)?;
        let file = reopen(watch.as_fd())?;
        rustix::fs::flock(&file, FlockOperation::LockShared)?;
        let identity = identity(file.as_fd())?;
        if !control {
            let context = self.context(&mut state)?;
            let card = state.cards.get_mut(number).ok_or(Errno::NOENT)?;
            card.context = Some(context);
            card.owner = Some(identity);
            card.claim = claim;
            card.counts.opens += 1;
            card.opened = Instant::now();
        }
        state.files.insert(identity, File { card: number, control, watch });
        Ok(file)
    }

    /// A fresh context, with what has its address from the beginning.
    fn context(&self, state: &mut State) -> Result<Context, Errno> {
        let (hardware, size) = (self.hardware, self.options.dram);
        let device = hardware.dram_base..=hardware.dram_virtual_end(size) - 1;
        let mut space = Space::new(device, hardware.host.clone());
        let (_, sram) = device_memory(hardware.sram_size)?;
        let usable = sram.slice(hardware.sram_reserved, hardware.sram_size - hardware.sram_reserved);
        space.place(hardware.sram_base + hardware.sram_reserved, usable.ok_or(Errno::NOMEM)?, What::Fixed);
        let mut dram = None;
        if !hardware.dram_virtual {
            let (file, range) = device_memory(size)?;
            space.place(hardware.dram_base, range, What::Fixed);
            space.back(hardware.dram_base, &file);
            dram = Some(file);
        }
        let id = state.next_context;
        state.next_context += 1;
        Ok(Context::new(id, space, dram))
    }

    /// Closes a descriptor.
    pub(crate) fn close(&self, file: OwnedFd) {
        drop(file);
        let mut state = self.state.lock();
        self.reap(&mut state);
    }

    /// Releases every file that nobody has any more.
    pub(crate) fn reap(&self, state: &mut Guard<'_>) {
        let gone = |(&identity, file): (&Identity, &File)| (!is_held(file.watch.as_fd())).then_some(identity);
        let gone: Vec<Identity> = state.files.iter().filter_map(gone).collect();
        for identity in gone {
            if let Some(file) = state.files.remove(&identity)
                && !file.control
            {
                self.release_file(state, file.card, identity);
            }
        }
        for number in 0..state.cards.len() {
            self.let_go(state, number);
        }
    }

    /// Nobody has a compute file any more.
    fn release_file(&self, state: &mut Guard<'_>, number: usize, identity: Identity) {
        let Some(card) = state.cards.get_mut(number) else { return };
        if card.owner != Some(identity) {
            return;
        }
        card.releasing = true;
        card.last_period = u64::try_from(card.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        // What was reset already is clean.
        let dirty = |context: &Context| !context.killed && (context.is_busy() || !context.buffers.is_empty());
        let unclean = card.watchdog.is_some() || card.context.as_ref().is_some_and(dirty);
        card.counts.leaked_at_last_close = card.context.as_ref().map_or(0, Context::held);
        card.counts.leaked_at_close += card.counts.leaked_at_last_close;
        if unclean {
            self.reset(state, number);
        }
        self.let_go(state, number);
    }

    /// Ends a release: now, or when the last dma-buf has gone.
    fn let_go(&self, state: &mut Guard<'_>, number: usize) {
        let Some(card) = state.cards.get_mut(number) else { return };
        let Some(context) = card.context.as_ref().filter(|_| card.releasing) else { return };
        if context.exports.iter().any(|export| is_held(export.file.as_fd())) {
            return;
        }
        let id = context.id;
        context.live.abort.store(true, Ordering::Relaxed);
        // What workers are at is memory of the program: when it is told that the file is closed, nobody touches it.
        while state.cards.get(number).is_some_and(|card| card.running > 0) && !state.stopping {
            self.sleep(state, number, None);
        }
        let Some(card) = state.cards.get_mut(number) else { return };
        // Somebody else may have come here meanwhile.
        if card.context.as_ref().is_none_or(|context| context.id != id) {
            return;
        }
        let killed = card.context.take().is_some_and(|context| context.killed);
        card.owner = None;
        if let Some(claim) = card.claim.take() {
            // A name that stays in the file of a card that is free is no harm: its lock is gone.
            let _ = rustix::fs::ftruncate(&claim, 0);
        }
        card.releasing = false;
        if !killed {
            self.release(state, number);
        }
        self.settle(state, number);
        self.ended(number);
    }

    /// Where the lock of a card is that processes share by the machine's name.
    fn claim_path(&self, number: usize) -> Option<PathBuf> {
        let name = self.options.machine.as_ref()?;
        let folder = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let user = rustix::process::getuid().as_raw();
        Some(folder.join(format!("gaudi-emulator-{user}-{name}-accel{number}")))
    }

    /// Takes a card for this process. The lock goes with the process, however that ends.
    fn claim(&self, process: &dyn Process, number: usize) -> Result<Option<OwnedFd>, Errno> {
        let Some(path) = self.claim_path(number) else { return Ok(None) };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| Errno::BUSY)?;
        rustix::fs::ftruncate(&file, 0)?;
        rustix::io::write(&file, process.id().to_string().as_bytes())?;
        Ok(Some(file))
    }

    /// Who has a card open.
    pub(crate) fn holder(&self, process: &dyn Process, number: usize) -> Option<String> {
        let mut state = self.state.lock();
        self.reap(&mut state);
        let owned = state.cards.get(number)?.owner.is_some();
        drop(state);
        let id: String = if owned {
            process.id().to_string()
        } else {
            // Whoever gives a card back empties the file, and whoever dies is gone.
            std::fs::read_to_string(self.claim_path(number)?).ok()?
        };
        let name = std::fs::read_to_string(format!("/proc/{id}/comm")).ok()?;
        Some(format!("process {id} ({})", name.trim()))
    }
}
