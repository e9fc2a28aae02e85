// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Opening and closing a card.
//!
//! A file is open until its last descriptor, its last mapping and its last dma-buf are gone: a dma-buf holds
//! the file, in whichever process it is. Until then the card is busy, and nothing is released.
//! rule(export-holds-file)
//!
//! Then the file is released: the program's memory and mappings go, and a card that still has work is reset.

use crate::card::{CapturedErrors, Card, Context, Status};
use crate::dmabuf;
use crate::injection;
use crate::machine::{Guard, Machine, State};
use crate::opener::Opener;
use crate::space::{Areas, MappingKind, Space};
use emulator_core::file::{Opened, is_held, mapped_file};
use emulator_core::{Errno, Process, clock};
use hal_backend::HostRange;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often the emulator looks whether dma-bufs still hold a file that was closed.
const HELD: Duration = Duration::from_millis(10);

/// The data of an open file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenNode {
    pub(crate) card: usize,
    /// True if it is the control node, which only answers questions.
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
        self.collect(&mut state);
        let card = state.cards.find_mut(number).ok_or(Errno::NOENT)?;
        if card.status == Status::Gone {
            return Err(Errno::NODEV);
        }
        let mut claim = None;
        // rule(open-control)
        if control && card.status == Status::Malfunction {
            return Err(Errno::PERM);
        }
        if !control {
            card.injections.fail(injection::OPEN)?;
            match card.status {
                Status::Operational => {}
                Status::InReset | Status::Releasing => return Err(Errno::AGAIN),
                Status::Malfunction | Status::Gone => return Err(Errno::PERM),
            }
            // rule(open-release)
            if card.releasing {
                return Err(Errno::AGAIN);
            }
            if card.owner.is_some() {
                return Err(Errno::BUSY);
            }
            claim = self.claims.take(process, number)?;
        }
        let opened = Opened::new("habanalabs")?;
        if !control {
            let opener = Opener::of(process)?;
            let context = self.context(&mut state)?;
            let card = state.cards.find_mut(number).ok_or(Errno::NOENT)?;
            card.context = Some(context);
            card.owner = Some(opened.identity);
            card.claim = claim;
            card.opener = opener;
            (card.closed, card.closing, card.debugging) = (false, false, false);
            card.errors = CapturedErrors::default();
            card.sync.restore(self.hardware);
            card.counts.opens += 1;
            (card.opened, card.opened_at) = (Instant::now(), clock());
        }
        Ok(state.files.insert(opened, OpenNode { card: number, control }))
    }

    /// A new context, with the mappings that every context has.
    fn context(&self, state: &mut State) -> Result<Context, Errno> {
        let (hardware, size) = (self.hardware, self.options.dram);
        let mut space = Space::new(Areas::of(hardware, size));
        let (_, sram) = device_memory(hardware.sram_size)?;
        let usable = sram.slice(hardware.sram_reserved, hardware.sram_size - hardware.sram_reserved);
        space.place(
            hardware.sram_base + hardware.sram_reserved,
            usable.ok_or(Errno::NOMEM)?,
            MappingKind::Fixed,
        );
        let mut dram = None;
        if !hardware.dram_virtual {
            let (file, range) = device_memory(size)?;
            space.place(hardware.dram_base(size), range, MappingKind::Fixed);
            space.back(hardware.dram_base(size), &file);
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

    /// Releases every file without a holder, and waits until no thread works on the memory of its program.
    pub(crate) fn reap(&self, state: &mut Guard<'_>) {
        self.collect(state);
        for number in 0..state.cards.len() {
            // Workers use memory of the program: none of them touches it after the close has returned.
            while state.cards[number].releasing && !state.is_stopping() {
                self.sleep(state, number, None);
            }
        }
    }

    /// Releases every file without a holder, and waits for the resets that belong to that.
    pub(crate) fn end_closes(&self) {
        let mut state = self.lock();
        self.reap(&mut state);
        for number in 0..state.cards.len() {
            let goes_on =
                |card: &Card| card.closing && matches!(card.status, Status::InReset | Status::Releasing);
            while goes_on(&state.cards[number]) && !state.is_stopping() {
                self.sleep(&mut state, number, None);
            }
        }
    }

    /// Begins to release every file without a holder.
    pub(crate) fn collect(&self, state: &mut State) {
        for (identity, file) in state.files.take_closed() {
            let card = &mut state.cards[file.card];
            card.closed |= card.owner == Some(identity);
        }
        for number in 0..state.cards.len() {
            self.begin_release(state, number);
        }
    }

    /// Begins to release a compute file, if no dma-buf holds it.
    pub(crate) fn begin_release(&self, state: &mut State, number: usize) {
        let card = &mut state.cards[number];
        card.next_release = None;
        if !card.closed || card.releasing {
            return;
        }
        let Some(context) = &card.context else { return };
        if context.exports.iter().any(|export| is_held(export.file.as_fd())) {
            // Linux releases the file when the last one goes, of which no process notifies the emulator.
            let at = Instant::now() + HELD;
            card.next_release = Some(at);
            return self.wind(state, at);
        }
        // A context that was reset counts as clean, and so do handles and mappings that are left.
        // rule(close-clean)
        let unclean =
            card.watchdog.is_some() || !context.lost && (context.is_busy() || !context.alarms.is_empty());
        (card.releasing, card.closing) = (true, true);
        card.last_period = u64::try_from(card.opened.elapsed().as_millis()).unwrap_or(u64::MAX);
        card.counts.leaked_at_last_close = context.held();
        card.counts.leaked_at_close += card.counts.leaked_at_last_close;
        context.live.abort.store(true, Ordering::Relaxed);
        if unclean {
            card.complaints
                .add_by_rule("close-clean", "the file was closed with work in flight: the card is reset");
            self.reset(state, number);
        }
        self.end_release(state, number);
    }

    /// Ends a release, when no worker uses the context any more.
    pub(crate) fn end_release(&self, state: &mut State, number: usize) {
        let card = &mut state.cards[number];
        if !card.releasing || card.running > 0 {
            return;
        }
        let lost = card.context.take().is_some_and(|context| context.lost);
        (card.owner, card.claim) = (None, None);
        (card.closed, card.releasing) = (false, false);
        if !lost {
            self.release(state, number);
        }
        self.end_reset_if_over(state, number);
        self.end_interrupt_waits(number);
        self.ended(number);
    }

    /// The process that has a card open.
    pub(crate) fn holder(&self, process: &dyn Process, number: usize) -> Option<String> {
        let mut state = self.lock();
        self.collect(&mut state);
        let owned = state.cards.find(number)?.owner.is_some();
        drop(state);
        self.claims.holder(owned.then_some(process), number)
    }
}
