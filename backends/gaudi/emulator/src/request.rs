//! Requests of open files, by the rules of the kernel's core.
//!
//! The core looks at the number alone: the size and the direction in a request say what is copied in and out, and what the
//! driver wants beyond that is zero. What the driver has written comes back also where it says that it failed.

use crate::card::Status;
use crate::machine::Machine;
use hal_emulation::PAGE;
use hal_emulation::Process;
use hal_emulation::{Errno, identity};
use hal_gaudi_abi::uapi::{Abi, Call, DrmVersion};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What a program hands in of a request's argument.
const IN: u32 = 1 << 30;
/// What it gets back.
const OUT: u32 = 2 << 30;
/// The number of the request after the driver's five: debugging, which nobody may here.
const DEBUG: u32 = 5;

/// Reads an argument.
pub(crate) fn take<T: FromBytes>(argument: &[u8]) -> Result<T, Errno> {
    T::read_from_prefix(argument).map(|(value, _)| value).map_err(|_| Errno::FAULT)
}

/// Replaces an argument by what the driver answers: what the answer does not fill is zero.
pub(crate) fn give<T: IntoBytes + Immutable>(argument: &mut [u8], answer: &T) {
    argument.fill(0);
    // Every answer is smaller than the argument that it takes the place of.
    let _ = answer.write_to_prefix(argument);
}

/// What a request asks for.
enum Asked {
    Version,
    Driver(Call),
    Debug,
}

impl Asked {
    fn of(abi: Abi, control: bool, request: u32) -> Result<Self, Errno> {
        let (kind, number) = ((request >> 8) & 0xFF, request & 0xFF);
        let (first, unknown) = match abi {
            Abi::Drm if control => (0x40, Errno::NOTTY),
            Abi::Drm if kind != u32::from(b'd') => return Err(Errno::NOTTY),
            Abi::Drm if number == 0 => return Ok(Asked::Version),
            Abi::Drm => (0x40, Errno::INVAL),
            Abi::Old => (1, Errno::NOTTY),
        };
        let number = number.checked_sub(first).ok_or(unknown)?;
        let call = Call::ALL.into_iter().find(|&call| call as u32 == number);
        match call {
            Some(call) if !control || call == Call::Info => Ok(Asked::Driver(call)),
            None if number == DEBUG && !control => Ok(Asked::Debug),
            _ => Err(unknown),
        }
    }

    /// How large the driver believes the argument to be.
    fn size(&self) -> usize {
        match self {
            Asked::Version => size_of::<DrmVersion>(),
            Asked::Driver(call) => call.size(),
            Asked::Debug => 40,
        }
    }
}

impl Machine {
    /// The card of an open file, and whether it is its control node.
    pub(crate) fn file(&self, file: BorrowedFd<'_>) -> Result<(usize, bool), Errno> {
        let identity = identity(file)?;
        let state = self.state.lock();
        state.files.get(&identity).map(|file| (file.card, file.control)).ok_or(Errno::NOTTY)
    }

    /// Answers a request.
    pub(crate) fn request(
        self: &Arc<Self>,
        process: &dyn Process,
        file: BorrowedFd<'_>,
        request: u32,
        argument: &mut [u8],
    ) -> Result<(), Errno> {
        let (number, control) = self.file(file)?;
        let killed = {
            let mut state = self.state.lock();
            let card = state.cards.get_mut(number).ok_or(Errno::NODEV)?;
            if !control && card.faults.request() {
                self.unplug(&mut state, number);
            }
            let card = state.cards.get(number).ok_or(Errno::NODEV)?;
            if card.status == Status::Gone {
                return Err(Errno::NODEV);
            }
            !control && card.context.as_ref().is_some_and(|context| context.killed)
        };
        let asked = Asked::of(self.options.abi, control, request)?;
        let length = usize::try_from((request >> 16) & 0x3FFF).map_err(|_| Errno::FAULT)?;
        let incoming = if request & IN == 0 { 0 } else { length };
        let outgoing = if request & OUT == 0 { 0 } else { length };
        let mut copy = vec![0; incoming.max(outgoing).max(asked.size())];
        let given = argument.get(..incoming).ok_or(Errno::FAULT)?;
        copy.get_mut(..incoming).ok_or(Errno::FAULT)?.copy_from_slice(given);
        if argument.len() < outgoing {
            return Err(Errno::FAULT);
        }
        let size = asked.size();
        let inner = copy.get_mut(..size).ok_or(Errno::FAULT)?;
        let result = match asked {
            Asked::Version => version(process, inner),
            Asked::Debug => Err(Errno::INVAL),
            Asked::Driver(Call::Info) => self.info(process, number, control, inner),
            // A kernel kills whoever still has the file after a reset; there is nobody to be told.
            Asked::Driver(_) if killed && !self.in_reset(number) => Err(Errno::BUSY),
            Asked::Driver(Call::CommandBuffer) => self.command_buffer(number, inner),
            Asked::Driver(Call::Submit) => self.submit(process, number, inner),
            Asked::Driver(Call::Wait) => self.wait(process, number, inner),
            Asked::Driver(Call::Memory) => self.memory(process, number, inner),
        };
        let answer = copy.get(..outgoing).ok_or(Errno::FAULT)?;
        argument.get_mut(..outgoing).ok_or(Errno::FAULT)?.copy_from_slice(answer);
        result
    }

    fn in_reset(&self, number: usize) -> bool {
        self.state.lock().cards.get(number).is_some_and(|card| card.status == Status::InReset)
    }

    /// Maps what an offset names.
    pub(crate) fn map(
        self: &Arc<Self>,
        file: BorrowedFd<'_>,
        length: usize,
        offset: u64,
    ) -> Result<hal_backend::HostRange, Errno> {
        let (number, control) = self.file(file)?;
        if control {
            return Err(Errno::NODEV);
        }
        if length == 0 || !offset.is_multiple_of(PAGE) {
            return Err(Errno::INVAL);
        }
        // A mapping ends in whole pages, whatever was asked for.
        let length = length.checked_next_multiple_of(4096).ok_or(Errno::NOMEM)?;
        let copy = rustix::io::fcntl_dupfd_cloexec(file, 3)?;
        self.see(number, copy, length, offset)
    }
}

/// Who the driver is: the name and so on go to where the program has room, and their lengths come back.
fn version(process: &dyn Process, argument: &mut [u8]) -> Result<(), Errno> {
    let mut version: DrmVersion = take(argument)?;
    (version.major, version.minor, version.patch) = (1, 0, 0);
    let put = |address: u64, room: &mut u64, text: &str| {
        let length = usize::try_from(*room).unwrap_or(usize::MAX).min(text.len());
        *room = text.len() as u64;
        let bytes = text.as_bytes().get(..length).unwrap_or_default();
        if address == 0 || bytes.is_empty() { Ok(()) } else { process.write(address, bytes) }
    };
    put(version.name, &mut version.name_length, "habanalabs")?;
    put(version.date, &mut version.date_length, "20190505")?;
    put(version.description, &mut version.description_length, "Emulated Gaudi cards, in software")?;
    give(argument, &version);
    Ok(())
}
