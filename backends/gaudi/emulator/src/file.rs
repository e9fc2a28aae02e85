//! Who has a card, and what a close does.
//!
//! A dma-buf holds its card in the same way as an [open file](mod@hal_emulation::file): after a close the card is busy
//! until the last dma-buf has gone.

use crate::card::{Context, Status};
use crate::dmabuf;
use crate::fault;
use crate::machine::{Guard, Machine, State};
use crate::space::{Space, What};
use hal_backend::HostRange;
use hal_emulation::file::{Identity, Opened, is_held, mapped_file};
use hal_emulation::{Errno, Process};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What is kept for an open file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct File {
    pub(crate) card: usize,
    /// Whether it is the control node, which answers questions alone.
    pub(crate) control: bool,
}

/// Device memory: a file, and all of it mapped.
pub(crate) fn device_memory(length: u64) -> Result<(Arc<OwnedFd>, HostRange), Errno> {
    mapped_file(dmabuf::NAME, length)
}

impl Machine {
    /// Opens the compute node of a card, or its control node.
    pub(crate) fn open(&self, process: &dyn Process, number: usize, control: bool) -> Result<OwnedFd, Errno> {
        let mut state = self.lock();
        self.reap(&mut state);
        let card = state.cards.get_mut(number).ok_or(Errno::NOENT)?;
        if card.status == Status::Gone {
            return Err(Errno::NODEV);
        }
        let mut claim = None;
        if !control {
            card.faults.fail(fault::OPEN)?;
            match card.status {
                Status::Operational => {}
                Status::InReset | Status::Releasing => return Err(Errno::AGAIN),
                Status::Malfunction | Status::Gone => return Err(Errno::PERM),
            }
            if card.owner.is_some() || card.releasing {
                return Err(Errno::BUSY);
            }
            claim = self.claims.take(process, number)?;
        }
        let opened = Opened::new("habanalabs")?;
        if !control {
            let context = self.context(&mut state)?;
            let card = state.cards.get_mut(number).ok_or(Errno::NOENT)?;
            card.context = Some(context);
            card.owner = Some(opened.identity);
            card.claim = claim;
            card.counts.opens += 1;
            card.opened = Instant::now();
        }
        Ok(state.files.insert(opened, File { card: number, control }))
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
        let mut state = self.lock();
        self.reap(&mut state);
    }

    /// Releases every file that nobody has any more.
    pub(crate) fn reap(&self, state: &mut Guard<'_>) {
        for (identity, file) in state.files.take_closed() {
            if !file.control {
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
        while state.cards.get(number).is_some_and(|card| card.running > 0) && !state.is_stopping() {
            self.sleep(state, number, None);
        }
        let Some(card) = state.cards.get_mut(number) else { return };
        // Somebody else may have come here meanwhile.
        if card.context.as_ref().is_none_or(|context| context.id != id) {
            return;
        }
        let killed = card.context.take().is_some_and(|context| context.killed);
        card.owner = None;
        card.claim = None;
        card.releasing = false;
        if !killed {
            self.release(state, number);
        }
        self.settle(state, number);
        self.ended(number);
    }

    /// Who has a card open.
    pub(crate) fn holder(&self, process: &dyn Process, number: usize) -> Option<String> {
        let mut state = self.lock();
        self.reap(&mut state);
        let owned = state.cards.get(number)?.owner.is_some();
        drop(state);
        self.claims.holder(owned.then_some(process), number)
    }
}
