// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The kernel driver's entry points, and its requests (`qaic_drm_ioctls`).

use super::user::UserFile;
use crate::injection;
use crate::machine::{Machine, Status};
use crate::{Emulator, Options};
use emulator_core::threads::Running;
use emulator_core::{EmulatedMachine, Errno, PAGE, Process, accel, drm, identity};
use hal_backend::{Failure, HostRange};
use hal_kernel::registry::Registry;
use hal_qaic_abi::uapi::Call;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// The driver's identification.
const DRIVER: drm::Driver = drm::Driver {
    name: hal_qaic_abi::DRIVER,
    date: "0",
    description: "Emulated Cloud AI 100 cards, in software",
    version: [0, 0, 0],
};

impl Machine {
    /// The user that an open file belongs to.
    pub(crate) fn file(&self, file: BorrowedFd<'_>) -> Result<UserFile, Errno> {
        let identity = identity(file)?;
        self.lock().files.get(identity).copied()
    }

    /// The user of a file whose card was not pulled out (`drm_dev_is_unplugged`).
    pub(crate) fn plugged(&self, file: BorrowedFd<'_>) -> Result<UserFile, Errno> {
        let file = self.file(file)?;
        let state = self.lock();
        let card = &state.cards[file.card];
        if card.status == Status::Gone { Err(Errno::NODEV) } else { Ok(file) }
    }
}

impl EmulatedMachine for Machine {
    type Options = Options;

    fn machines() -> &'static Registry<(u32, Options), Emulator> {
        static MACHINES: Registry<(u32, Options), Emulator> = Registry::new();
        &MACHINES
    }

    fn start(options: Options) -> Result<Running<Self>, Failure> {
        let workers = options.execution.workers;
        Running::start("qaic", Self::new(options), workers, Self::work, Self::tick, Self::stop)
    }

    fn options(&self) -> &Options {
        &self.options
    }

    fn open_node(&self, _: &dyn Process, path: &Path) -> Result<OwnedFd, Errno> {
        match accel::node(path) {
            Some((card, false)) => self.open(card),
            _ => Err(Errno::NOENT),
        }
    }

    fn close_file(&self, file: OwnedFd) {
        self.close(file);
    }

    /// `drm_ioctl`.
    fn answer(
        self: &Arc<Self>,
        process: &dyn Process,
        file: BorrowedFd<'_>,
        request: u32,
        argument: &mut [u8],
    ) -> Result<(), Errno> {
        let UserFile { card, .. } = self.file(file)?;
        {
            let mut state = self.lock();
            let found = &mut state.cards[card];
            if found.injections.strikes(injection::UNPLUG) {
                self.unplug(&mut state, card);
            }
        }
        let UserFile { card, user } = self.plugged(file)?;
        if drm::kind(request) != drm::KIND {
            return Err(Errno::NOTTY);
        }
        let call = Call::of_request(request).ok_or(Errno::INVAL)?;
        drm::call(request, call.request(), argument, |argument| match call {
            Call::Version => DRIVER.answer(process, argument),
            Call::Manage => self.manage(process, card, user, argument),
            Call::CreateBo => self.create(card, user, argument),
            Call::MmapBo => self.mapping(card, user, argument),
            Call::GemClose => self.close_handle(card, user, argument),
            Call::AttachSlice => self.attach(process, card, user, argument),
            Call::DetachSlice => self.detach(card, user, argument),
            Call::Execute => self.execute(process, card, user, argument, false),
            Call::PartialExecute => self.execute(process, card, user, argument, true),
            Call::Wait => self.wait(card, user, argument),
            Call::PerfStats => self.statistics(process, card, user, argument),
            // Memory of other devices is not modelled, and upstream has no partitions.
            Call::HandleToDescriptor | Call::DescriptorToHandle => Err(Errno::OPNOTSUPP),
            Call::PartitionDevice => Err(Errno::INVAL),
        })
    }

    fn map_memory(
        self: &Arc<Self>,
        file: BorrowedFd<'_>,
        length: usize,
        offset: u64,
    ) -> Result<HostRange, Errno> {
        let UserFile { card, user } = self.plugged(file)?;
        if length == 0 || !offset.is_multiple_of(PAGE) {
            return Err(Errno::INVAL);
        }
        // A mapping ends at a page boundary, whatever length was requested.
        let length = (length as u64).checked_next_multiple_of(PAGE).ok_or(Errno::NOMEM)?;
        let copy = rustix::io::fcntl_dupfd_cloexec(file, 3)?;
        self.see(card, user, copy, length, offset)
    }

    fn attribute_text(&self, path: &Path) -> Result<String, Errno> {
        self.attribute(path)
    }

    fn folder_names(&self, path: &Path) -> Result<Vec<String>, Errno> {
        self.folder(path)
    }

    fn card_of(&self, file: BorrowedFd<'_>) -> Option<usize> {
        self.file(file).ok().map(|file| file.card)
    }
}
