// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The kernel driver's entry points, and its requests: those that a node has in each state.

use crate::card::Status;
use crate::file::OpenNode;
use crate::injection;
use crate::{Emulator, Machine, Options};
use emulator_core::claim::Claims;
use emulator_core::threads::Running;
use emulator_core::{EmulatedMachine, Errno, OwnProcess, PAGE, Process, accel, drm, identity};
use hal_backend::{Failure, HostRange};
use hal_gaudi_abi::uapi::{Abi, Call};
use hal_kernel::registry::Registry;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// The number of the request after the driver's five: debugging.
const DEBUG: u32 = 5;
/// That request, as the driver has it.
const DEBUG_REQUEST: u32 = 0xc028_6445;

/// The driver's identification.
const DRIVER: drm::Driver = drm::Driver {
    name: "habanalabs",
    date: "20190505",
    description: "Emulated Gaudi cards, in software",
    version: [1, 0, 0],
};

/// The kind of a request.
enum RequestKind {
    Version,
    Driver(Call),
    Debug,
}

impl RequestKind {
    fn of(abi: Abi, control: bool, request: u32) -> Result<Self, Errno> {
        let (kind, number) = (drm::kind(request), drm::number(request));
        let (first, unknown) = match abi {
            Abi::Drm if control => (drm::DRIVER_BASE, Errno::NOTTY),
            Abi::Drm if kind != drm::KIND => return Err(Errno::NOTTY),
            Abi::Drm if number == drm::number(drm::VERSION) => return Ok(RequestKind::Version),
            Abi::Drm => (drm::DRIVER_BASE, Errno::INVAL),
            Abi::Old => (1, Errno::NOTTY),
        };
        let number = number.checked_sub(first).ok_or(unknown)?;
        let call = Call::ALL.into_iter().find(|&call| call as u32 == number);
        match call {
            Some(call) if !control || call == Call::Info => Ok(RequestKind::Driver(call)),
            None if number == DEBUG && !control => Ok(RequestKind::Debug),
            _ => Err(unknown),
        }
    }

    /// The request as the driver declares it, which fixes the size of the argument.
    fn own(&self) -> u32 {
        match self {
            RequestKind::Version => drm::VERSION,
            // Both numbers of a call have the same size and directions.
            RequestKind::Driver(call) => call.request(Abi::Drm),
            RequestKind::Debug => DEBUG_REQUEST,
        }
    }
}

impl Machine {
    /// The node that a file was opened by.
    pub(crate) fn file(&self, file: BorrowedFd<'_>) -> Result<OpenNode, Errno> {
        let identity = identity(file)?;
        self.lock().files.get(identity).copied()
    }

    /// Switches the debugging of a card on and off. No debug data is modelled. rule(debug-mode)
    fn debug(&self, number: usize, argument: &[u8]) -> Result<(), Errno> {
        /// The offsets of the operation and of its switch.
        const OPERATION: usize = 24;
        const ENABLE: usize = 32;
        /// The operation that switches; the ones before it read debug data.
        const SET_MODE: u32 = 7;
        let word = |at: usize| -> Result<u32, Errno> { drm::take(argument.get(at..).unwrap_or_default()) };
        let (operation, enable) = (word(OPERATION)?, word(ENABLE)? != 0);
        let mut state = self.lock();
        let card = &mut state.cards[number];
        card.ready()?;
        match operation {
            0..SET_MODE if !card.debugging => Err(Errno::FAULT),
            SET_MODE if card.debugging != enable => {
                card.debugging = enable;
                Ok(())
            }
            SET_MODE => Err(Errno::FAULT),
            _ => Err(Errno::INVAL),
        }
    }
}

impl EmulatedMachine for Machine {
    type Options = Options;

    fn machines() -> &'static Registry<(u32, Options), Emulator> {
        static MACHINES: Registry<(u32, Options), Emulator> = Registry::new();
        &MACHINES
    }

    fn check_host(options: &Options) -> Result<(), Failure> {
        Claims::new("gaudi", options.execution.machine.clone()).check()
    }

    fn start(options: Options) -> Result<Running<Self>, Failure> {
        let workers = options.execution.workers;
        Running::start("gaudi", Self::new(options), workers, Self::work, Self::tick, Self::stop)
    }

    fn options(&self) -> &Options {
        &self.options
    }

    fn open_node(&self, process: &dyn Process, path: &Path) -> Result<OwnedFd, Errno> {
        let (card, control) = accel::node(path).ok_or(Errno::NOENT)?;
        self.open(process, card, control)
    }

    fn close_file(&self, file: OwnedFd) {
        self.close(file);
    }

    fn answer(
        self: &Arc<Self>,
        process: &dyn Process,
        file: BorrowedFd<'_>,
        request: u32,
        argument: &mut [u8],
    ) -> Result<(), Errno> {
        let OpenNode { card: number, control } = self.file(file)?;
        {
            let mut state = self.lock();
            let card = &mut state.cards[number];
            if !control && card.injections.strikes(injection::UNPLUG) {
                self.unplug(&mut state, number);
            }
            let card = &state.cards[number];
            if card.status == Status::Gone {
                return Err(Errno::NODEV);
            }
        }
        let kind = RequestKind::of(self.options.abi, control, request)?;
        drm::call(request, kind.own(), argument, |argument| match kind {
            RequestKind::Version => DRIVER.answer(process, argument),
            RequestKind::Debug => self.debug(number, argument),
            RequestKind::Driver(Call::Info) => self.info(process, number, control, argument),
            RequestKind::Driver(Call::CommandBuffer) => self.command_buffer(number, argument),
            RequestKind::Driver(Call::Submit) => self.submit(process, number, argument),
            RequestKind::Driver(Call::Wait) => self.wait(process, number, argument),
            RequestKind::Driver(Call::Memory) => self.memory(process, number, argument),
        })
    }

    fn map_memory(
        self: &Arc<Self>,
        file: BorrowedFd<'_>,
        length: usize,
        offset: u64,
    ) -> Result<HostRange, Errno> {
        let OpenNode { card: number, control } = self.file(file)?;
        if control {
            return Err(Errno::NODEV);
        }
        if length == 0 || !offset.is_multiple_of(PAGE) {
            return Err(Errno::INVAL);
        }
        // A mapping ends at a page boundary, whatever length was requested.
        let length = length.checked_next_multiple_of(4096).ok_or(Errno::NOMEM)?;
        let copy = rustix::io::fcntl_dupfd_cloexec(file, 3)?;
        self.see(number, copy, length, offset)
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

    fn holder_of(&self, path: &Path) -> Option<String> {
        let (card, _) = accel::node(path)?;
        self.holder(&OwnProcess, card)
    }
}
