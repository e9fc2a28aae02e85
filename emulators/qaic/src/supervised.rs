// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The machine as a supervisor has it, which answers for other processes.

use crate::kernel::user::File;
use crate::{Emulator, Machine};
use emulator_core::supervised::Supervised;
use emulator_core::{Errno, HostPrograms, PAGE, Process, System, accel, identity, view};
use hal_backend::HostProgram;
use std::fmt::Write;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl Machine {
    /// Whether a process may map an object.
    fn may_map(
        &self,
        process: &dyn Process,
        file: BorrowedFd<'_>,
        length: u64,
        offset: u64,
    ) -> Result<(), Errno> {
        let File { card, user } = self.plugged(file)?;
        let length = length.checked_next_multiple_of(PAGE).ok_or(Errno::NOMEM)?;
        self.mappable(card, user, length, offset)?;
        view::seen(process.id(), identity(file)?, offset, length);
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
    fn open_for(&self, _: &dyn Process, path: &Path) -> Result<OwnedFd, Errno> {
        System::open(self, path)
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
        Some(Path::new(accel::NODES).join(format!("accel{}", file.card)))
    }

    fn reap(&self) -> bool {
        let mut state = self.machine.lock();
        self.machine.reap(&mut state);
        // A user whose file is closed is there until the device has been told.
        state.cards.iter().any(|card| !card.users.is_empty())
    }

    fn nudge(&self) {
        // Under the lock, so that a thread that is about to sleep sees its flag, or is woken.
        let state = self.machine.lock();
        for card in 0..state.cards.len() {
            self.machine.core.wake(card);
        }
    }

    /// The driver kills no process: a reset ends requests, and files stay open.
    fn report(&self) -> String {
        let mut text = String::new();
        for card in 0..self.options().cards {
            let counts = self.counts(card);
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "card {card}: {} opens, {} messages, {} calls, {} bytes moved, {} resets, {} users left",
                counts.opens, counts.messages, counts.calls, counts.bytes_moved, counts.resets, counts.users
            );
        }
        text
    }
}
