// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The machine for other processes and for the driver.

use crate::kernel::user::UserFile;
use crate::{Machine, Options, options, programs};
use emulator_core::devices::ShownDevices;
use emulator_core::{
    Errno, HostedMachine, MappedKind, PAGE, Process, ProgramHost, SupervisedMachine, accel, identity, view,
};
use hal_backend::{Failure, Parameter, Parameters};
use hal_qaic_abi::programs::CardPrograms;
use std::fmt::Write;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl SupervisedMachine for Machine {
    fn may_map(
        &self,
        process: &dyn Process,
        file: BorrowedFd<'_>,
        length: u64,
        offset: u64,
    ) -> Result<MappedKind, Errno> {
        let UserFile { card, user } = self.plugged(file)?;
        let length = length.checked_next_multiple_of(PAGE).ok_or(Errno::NOMEM)?;
        self.mappable(card, user, length, offset)?;
        view::seen(process.id(), identity(file)?, offset, length);
        Ok(MappedKind::Memory)
    }

    fn present_cards(&self) -> Vec<usize> {
        self.present()
    }

    fn shown_devices(&self) -> ShownDevices {
        self.shown()
    }

    fn node_of(&self, file: BorrowedFd<'_>) -> Option<PathBuf> {
        let file = self.file(file).ok()?;
        Some(Path::new(accel::NODES).join(format!("accel{}", file.card)))
    }

    fn release_closed_files(&self) -> bool {
        let mut state = self.lock();
        self.reap(&mut state);
        // The user of a closed file stays until the device was notified.
        state.cards.iter().any(|card| !card.users.is_empty())
    }

    fn wake_requests(&self) {
        self.core.wake_all();
    }

    /// The driver kills no process: a reset ends requests, and files stay open.
    fn summary(&self) -> String {
        let mut text = String::new();
        for card in 0..self.options.cards {
            let counts = self.counts(card);
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "card {card}: {} opens, {} messages, {} calls, {} bytes moved, {} resets, {} users left",
                counts.opens, counts.messages, counts.calls, counts.bytes_moved, counts.resets, counts.users
            );
            for line in self.lock().cards[card].complaints.lines() {
                let _ = writeln!(text, "  {line}");
            }
        }
        text
    }
}

impl HostedMachine for Machine {
    const DRIVER: &'static str = "qaic";
    const DEVICE: &'static str = "Cloud AI 100";
    const PARAMETERS: &'static [Parameter] = options::PARAMETERS;

    type Programs = dyn CardPrograms;

    fn read_options(parameters: &mut Parameters<'_>) -> Result<Options, Failure> {
        Options::read(parameters)
    }

    fn cards(options: &Options) -> usize {
        options.cards
    }

    fn card_programs(keeper: Arc<dyn ProgramHost>) -> Arc<dyn CardPrograms> {
        programs::card_programs(keeper)
    }

    fn programs(&self) -> &dyn ProgramHost {
        &self.core
    }
}
