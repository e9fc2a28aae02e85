// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The machine as a supervisor has it, which answers for other processes.

use crate::card::Status;
use crate::machine::Cards;
use crate::{Emulator, Machine};
use emulator_core::supervised::Supervised;
use emulator_core::{Errno, HostPrograms, PAGE, Process, accel, identity, view};
use hal_backend::HostProgram;
use hal_gaudi_abi::uapi::handle;
use std::fmt::Write;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Machine {
    /// Whether a process may map what a handle names: exactly as much as that has, and once (`hl_mem_mgr_mmap`).
    fn may_map(
        &self,
        process: &dyn Process,
        file: BorrowedFd<'_>,
        length: u64,
        offset: u64,
    ) -> Result<(), Errno> {
        let identity = identity(file)?;
        let mut state = self.lock();
        let Cards { cards, files, .. } = &mut **state;
        let (number, control) = {
            let node = files.get(identity)?;
            (node.card, node.control)
        };
        let card = cards.find_mut(number).filter(|_| !control).ok_or(Errno::NODEV)?;
        if card.status == Status::Gone {
            return Err(Errno::NODEV);
        }
        let context = card.context.as_mut().ok_or(Errno::NODEV)?;
        let length = length.checked_next_multiple_of(PAGE).ok_or(Errno::INVAL)?;
        match offset & handle::KIND {
            handle::BLOCK => drop(context.block((self.hardware, files, identity), offset, length)?),
            handle::COMMAND_BUFFER => {
                let buffer = context.buffer(offset).ok_or(Errno::INVAL)?;
                if length != buffer.range.length() || process.has_mapped(identity, offset) {
                    return Err(Errno::INVAL);
                }
            }
            _ => return Err(Errno::INVAL),
        }
        view::seen(process.id(), identity, offset, length);
        Ok(())
    }
}

impl HostPrograms for Emulator {
    fn load(&self, program: Arc<dyn HostProgram>) -> u64 {
        self.machine.core.load(program)
    }

    fn unload(&self, program: u64) {
        self.machine.core.unload(program);
    }

    fn workers(&self) -> usize {
        self.options().execution.workers
    }
}

impl Supervised for Emulator {
    fn open_for(&self, process: &dyn Process, path: &Path) -> Result<OwnedFd, Errno> {
        let (card, control) = accel::node(path).ok_or(Errno::NOENT)?;
        self.machine.open(process, card, control)
    }

    fn request_for(
        &self,
        process: &dyn Process,
        file: BorrowedFd<'_>,
        request: u32,
        argument: &mut [u8],
    ) -> Result<(), Errno> {
        self.machine.request(process, file, request, argument)
    }

    fn may_map(
        &self,
        process: &dyn Process,
        file: BorrowedFd<'_>,
        length: u64,
        offset: u64,
    ) -> Result<(), Errno> {
        self.machine.may_map(process, file, length, offset)
    }

    fn node(&self, file: BorrowedFd<'_>) -> Option<PathBuf> {
        let file = self.machine.file(file).ok()?;
        let name = if file.control { "accel_controlD" } else { "accel" };
        Some(Path::new(accel::NODES).join(format!("{name}{}", file.card)))
    }

    fn reap(&self) -> bool {
        let mut state = self.machine.lock();
        self.machine.reap(&mut state);
        // A card whose file is closed is held by its dma-bufs.
        !state.files.is_empty() || state.cards.iter().any(|card| card.releasing)
    }

    fn nudge(&self) {
        // Under the lock, so that a thread that is about to sleep sees its flag, or is woken.
        let state = self.machine.lock();
        for card in 0..state.cards.len() {
            self.machine.ended(card);
        }
    }

    fn report(&self) -> String {
        let mut text = String::new();
        for card in 0..self.options().cards {
            let counts = self.counts(card);
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "card {card}: {} opens, {} submissions, {} dispatches, {} bytes moved, {} resets, {} kills, {} left at closes",
                counts.opens,
                counts.submissions,
                counts.dispatches,
                counts.bytes_moved,
                counts.hard_resets,
                counts.kills,
                counts.leaked_at_close
            );
        }
        text
    }
}
