// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The machine for other processes and for the driver.

use crate::card::Status;
use crate::machine::Cards;
use crate::programs::Programs;
use crate::{Machine, Options, options};
use emulator_core::devices::ShownDevices;
use emulator_core::{
    Errno, HostedMachine, MappedKind, PAGE, Process, ProgramHost, SupervisedMachine, accel, identity, view,
};
use hal_backend::{Failure, Parameter, Parameters};
use hal_gaudi_abi::programs::CardPrograms;
use hal_gaudi_abi::uapi::handle;
use std::fmt::Write;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl SupervisedMachine for Machine {
    /// A process maps exactly as much as a handle names, and once (`hl_mem_mgr_mmap`).
    fn may_map(
        &self,
        process: &dyn Process,
        file: BorrowedFd<'_>,
        length: u64,
        offset: u64,
    ) -> Result<MappedKind, Errno> {
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
        view::seen(process.id(), identity, offset);
        Ok(MappedKind::Memory)
    }

    fn present_cards(&self) -> Vec<usize> {
        self.present()
    }

    fn shown_devices(&self) -> ShownDevices {
        self.shown()
    }

    fn write_attribute(&self, path: &Path, bytes: &[u8]) -> Result<usize, Errno> {
        self.write_debug_file(path, bytes)
    }

    fn node_of(&self, file: BorrowedFd<'_>) -> Option<PathBuf> {
        let file = self.file(file).ok()?;
        let name = if file.control { "accel_controlD" } else { "accel" };
        Some(Path::new(accel::NODES).join(format!("{name}{}", file.card)))
    }

    fn release_closed_files(&self) -> bool {
        let mut state = self.lock();
        self.reap(&mut state);
        // A card whose file is closed is held by its dma-bufs.
        !state.files.is_empty() || state.cards.iter().any(|card| card.releasing)
    }

    fn end_closes(&self) {
        self.end_closes();
    }

    fn wake_requests(&self) {
        self.core.wake_all();
    }

    fn summary(&self) -> String {
        let mut text = String::new();
        for card in 0..self.options.cards {
            let counts = self.counts(card);
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "card {card}: {} opens, {} submissions, {} dispatches, {} bytes moved, {} resets, \
                 {} kills, {} left at closes",
                counts.opens,
                counts.submissions,
                counts.dispatches,
                counts.bytes_moved,
                counts.hard_resets,
                counts.kills,
                counts.leaked_at_close
            );
            for line in self.lock().cards[card].complaints.lines() {
                let _ = writeln!(text, "  {line}");
            }
        }
        text
    }
}

impl HostedMachine for Machine {
    const DRIVER: &'static str = "gaudi";
    const DEVICE: &'static str = "Gaudi 2";
    const PARAMETERS: &'static [Parameter] = options::PARAMETERS;

    type Programs = dyn CardPrograms;

    fn read_options(parameters: &mut Parameters<'_>) -> Result<Options, Failure> {
        Options::read(parameters)
    }

    fn cards(options: &Options) -> usize {
        options.cards
    }

    fn card_programs(keeper: Arc<dyn ProgramHost>) -> Arc<dyn CardPrograms> {
        Arc::new(Programs(keeper))
    }

    fn programs(&self) -> &dyn ProgramHost {
        &self.core
    }
}
