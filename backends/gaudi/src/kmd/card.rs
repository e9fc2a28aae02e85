// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An open card: how it is opened, asked and closed. Its calls for memory and for queues are in modules of their own.
//!
//! This is a thin layer. A call here is one request of the kernel, no more; what to do when a card is busy or gone is
//! decided above. The one state that it keeps is whether the file is still open: the kernel kills a process that
//! holds a card through a reset, so [`Card::close`] lets go of it while others may still be calling.

use super::error::{DRIVER, cannot_open, event_names, failure, state_advice, state_name};
use super::holders::{Holder, Holders};
use super::notices::{End, Ending, Notices};
use super::uapi::{Abi, Call, HwIpInfo, InfoIn, info, status};
use super::{Errno, System};
use crate::generation::Generation;
use hal_backend::{Code, Failure};
use hal_kernel::registry::Registration;
use hal_kernel::{CardKey, drm};
use parking_lot::RwLock;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

mod memory;
mod submission;

pub use submission::Progress;

/// How long to sleep between two tries to open a card that is being reset.
const RETRY: Duration = Duration::from_millis(10);

/// How long a card that is in use is tried again.
const BRIEF: Duration = Duration::from_millis(100);

/// An open card.
pub struct Card {
    kernel: Arc<dyn System>,
    file: RwLock<Option<File>>,
    name: String,
    abi: Abi,
    generation: Generation,
    info: HwIpInfo,
    /// Nothing where the program that opened the card is told itself, or the driver has no such notices.
    notices: Option<Notices>,
    /// Who has dma-bufs of its memory.
    holders: Holders,
    /// What a program that ran on it failed with, the first of them: only software can say it.
    note: OnceLock<String>,
    /// That it is of no use any more, for threads that sleep.
    end: End,
    /// Among what this process has open, if it is known there. Goes behind the file.
    registration: Option<Registration>,
}

/// The file of a card.
enum File {
    /// Opened here, so closed here.
    Opened(OwnedFd),
    /// A duplicate of one that the program opened, and closes.
    Adopted(OwnedFd),
}

impl File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            File::Opened(file) | File::Adopted(file) => file.as_fd(),
        }
    }
}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Card")
            .field("name", &self.name)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

impl Card {
    /// Opens a card, and waits up to `patience` while it is being reset.
    pub fn open(kernel: Arc<dyn System>, path: &Path, patience: Duration) -> Result<Arc<Self>, Failure> {
        Self::open_at(None, kernel, path, patience)
    }

    /// The same, with a registration among what this process has open.
    pub(crate) fn open_at(
        registration: Option<Registration>,
        kernel: Arc<dyn System>,
        path: &Path,
        patience: Duration,
    ) -> Result<Arc<Self>, Failure> {
        let file = Self::open_file(&*kernel, path, patience)?;
        Self::start(registration, kernel, File::Opened(file), path.display().to_string())
    }

    /// Opens a card's file, and waits up to `patience` while it is being reset.
    pub(crate) fn open_file(
        kernel: &dyn System,
        path: &Path,
        patience: Duration,
    ) -> Result<OwnedFd, Failure> {
        let begin = Instant::now();
        loop {
            match kernel.open(path) {
                Ok(file) => return Ok(file),
                Err(Errno::AGAIN) if begin.elapsed() < patience => std::thread::sleep(RETRY),
                // A process that has just been started holds copies of all files until it has replaced itself.
                Err(Errno::BUSY) if begin.elapsed() < patience.min(BRIEF) => std::thread::sleep(RETRY),
                Err(errno) => return Err(cannot_open(kernel, path, errno, begin.elapsed())),
            }
        }
    }

    /// Uses a card that the program has opened itself. The program's descriptor stays its own.
    pub fn adopt(kernel: Arc<dyn System>, file: BorrowedFd<'_>, name: String) -> Result<Arc<Self>, Failure> {
        Self::adopt_at(None, kernel, file, name)
    }

    /// The same, with a registration among what this process has open.
    pub(crate) fn adopt_at(
        registration: Option<Registration>,
        kernel: Arc<dyn System>,
        file: BorrowedFd<'_>,
        name: String,
    ) -> Result<Arc<Self>, Failure> {
        let copy = file.try_clone_to_owned().map_err(|error| {
            Failure::new(Code::InvalidArgument, format!("{name} is not an open descriptor: {error}"))
        })?;
        Self::start(registration, kernel, File::Adopted(copy), name)
    }

    fn start(
        registration: Option<Registration>,
        kernel: Arc<dyn System>,
        file: File,
        name: String,
    ) -> Result<Arc<Self>, Failure> {
        let no_bell = |errno: Errno| {
            Failure::new(
                Code::ResourceExhausted,
                format!("{name} has no descriptor to report its end by: {errno}"),
            )
        };
        let end = End::new().map_err(no_bell)?;
        // In a box from the beginning, so that the file is let go of on every path.
        let mut card = Self {
            kernel,
            file: RwLock::new(Some(file)),
            name,
            abi: Abi::Drm,
            generation: Generation::Gaudi2,
            info: HwIpInfo::new_zeroed(),
            notices: None,
            holders: Holders::default(),
            note: OnceLock::new(),
            end,
            registration,
        };
        // Numbers of requests mean something else to other drivers: nothing is sent before the name is known.
        card.abi = card.identify()?;
        let state: super::uapi::DeviceStatus =
            card.info(info::DEVICE_STATUS).map_err(|errno| card.failure("its state", errno))?;
        if state.status != status::OPERATIONAL {
            return Err(Failure::new(
                Code::Unavailable,
                format!("{} is {}; {}", card.name, state_name(state.status), state_advice(state.status)),
            ));
        }
        card.info = card.info(info::HW_IP_INFO).map_err(|errno| card.failure("what it is", errno))?;
        let device = u16::try_from(card.info.device_id).ok();
        card.generation = device.and_then(Generation::of_device).ok_or_else(|| {
            let message = format!(
                "{} is a device {:#06x}, which is neither a Gaudi (0x1000, 0x1010) nor a Gaudi 2 (0x1020)",
                card.name, card.info.device_id
            );
            Failure::new(Code::Unimplemented, message)
        })?;
        card.notices = card.ask_for_notices().map_err(|errno| card.failure("word of its errors", errno))?;
        Ok(Arc::new(card))
    }

    /// Asks the driver for word of errors.
    fn ask_for_notices(&self) -> Result<Option<Notices>, Errno> {
        let notices = Notices::new()?;
        let counter = u32::try_from(notices.counter().as_raw_fd()).map_err(|_| Errno::BADF)?;
        let request = InfoIn { op: info::REGISTER_EVENTFD, dcore_id: counter, ..InfoIn::default() };
        match self.call::<_, InfoIn>(Call::Info, &request).1 {
            Ok(()) => Ok(Some(notices)),
            // Another descriptor is registered already, or the driver is older than that.
            Err(Errno::INVAL | Errno::NOTTY | Errno::OPNOTSUPP) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    pub(super) fn notices(&self) -> Option<&Notices> {
        self.notices.as_ref()
    }

    pub(super) fn end(&self) -> &End {
        &self.end
    }

    /// It is known to be lost: later openings of the card do not get this one.
    pub(super) fn give_up(&self) {
        if let Some(registration) = &self.registration {
            registration.give_up();
        }
    }

    /// Finds out whether the file is of the right driver, and which numbers that listens to.
    fn identify(&self) -> Result<Abi, Failure> {
        let named = match &*self.file.read() {
            Some(file) => drm::driver_name(&*self.kernel, file.as_fd()),
            None => Err(Errno::NODEV),
        };
        match named {
            Ok(name) if name == DRIVER => Ok(Abi::Drm),
            Ok(name) => {
                let message = format!(
                    "{} belongs to the kernel driver {name:?}, not {DRIVER:?}; the device list shows which node is which",
                    self.name
                );
                Err(Failure::new(Code::InvalidArgument, message))
            }
            // Not a DRM device: an older kernel's, if it is one at all.
            Err(Errno::NOTTY) => {
                let mut probe = InfoIn { op: info::DEVICE_STATUS, ..InfoIn::default() };
                let mut state = super::uapi::DeviceStatus::default();
                probe.return_pointer = state.as_mut_bytes().as_mut_ptr() as u64;
                probe.return_size = 8;
                match self.ioctl(Call::Info.request(Abi::Old), probe.as_mut_bytes()) {
                    Ok(()) => Ok(Abi::Old),
                    Err(errno) => {
                        let message = format!("{} is not a {DRIVER} device: {errno}", self.name);
                        Err(Failure::new(Code::InvalidArgument, message))
                    }
                }
            }
            Err(errno) => Err(self.failure("its driver's name", errno)),
        }
    }

    /// Lets go of the file, and has all holders let go of the dma-bufs that hold it. Every call fails from then on.
    pub fn close(&self) {
        self.let_go("its device was closed");
    }

    /// The same, of a card that is lost: holders of its memory are told why, and so are all who use it.
    pub(crate) fn lose(&self, why: &Failure) {
        self.end.come(Ending::Lost(why.clone()));
        self.let_go(why.message());
    }

    fn let_go(&self, why: &str) {
        self.give_up();
        let file = self.file.write().take();
        self.holders.lose(why);
        match file {
            Some(File::Opened(file)) => self.kernel.close(file),
            Some(File::Adopted(file)) => drop(file),
            // The owner of the file closes it.
            None => return,
        }
        if let Some(registration) = &self.registration {
            registration.release();
        }
    }

    /// Enters a holder of its memory, by a dma-buf or a mapping, which is told when the card is lost.
    pub(crate) fn is_held_by(&self, holder: Weak<dyn Holder>) {
        self.holders.add(holder);
    }

    /// Whether its file has not been let go of.
    pub fn is_open(&self) -> bool {
        self.file.read().is_some()
    }

    /// What its file is known by.
    pub(crate) fn key(&self) -> Option<CardKey> {
        self.file.read().as_ref().and_then(|file| CardKey::of_file(file.as_fd()).ok())
    }

    /// What to call it in messages: the path that it was opened by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// What the kernel says of its hardware.
    pub fn hardware(&self) -> &HwIpInfo {
        &self.info
    }

    /// Which numbers its driver listens to.
    pub fn abi(&self) -> Abi {
        self.abi
    }

    fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let file = self.file.read();
        let file = file.as_ref().ok_or(Errno::NODEV)?;
        self.kernel.ioctl(file.as_fd(), request, argument)
    }

    /// Makes a call. What comes back is valid on success, and for waits also on failure.
    fn call<I, O>(&self, call: Call, input: &I) -> (O, Result<(), Errno>)
    where
        I: IntoBytes + Immutable,
        O: FromBytes + IntoBytes,
    {
        let mut bytes = [0_u8; 64];
        let argument = bytes.get_mut(..call.size()).unwrap_or_default();
        for (target, &source) in argument.iter_mut().zip(input.as_bytes()) {
            *target = source;
        }
        let result = self.ioctl(call.request(self.abi), argument);
        if let Err(errno) = result {
            self.look_at(call, errno);
        }
        let mut output = O::new_zeroed();
        for (target, &source) in output.as_mut_bytes().iter_mut().zip(argument.iter()) {
            *target = source;
        }
        (output, result)
    }

    /// What a request failed with may be that the card is lost. It is known from here on; of submissions and waits who makes them
    /// knows which it was, and tells.
    fn look_at(&self, call: Call, errno: Errno) {
        let lost = match call {
            Call::Info => errno == Errno::NODEV,
            Call::CommandBuffer | Call::Memory => matches!(errno, Errno::NODEV | Errno::BUSY),
            Call::Submit => matches!(errno, Errno::NODEV | Errno::BUSY | Errno::IO | Errno::BADF),
            Call::Wait => matches!(errno, Errno::NODEV | Errno::BUSY | Errno::IO | Errno::TIMEDOUT),
        };
        if lost {
            self.give_up();
            if !matches!(call, Call::Submit | Call::Wait) {
                self.end.come(Ending::Refused(errno));
            }
        }
    }

    /// Asks a question.
    pub fn info<T: FromBytes + IntoBytes>(&self, op: u32) -> Result<T, Errno> {
        let mut answer = T::new_zeroed();
        let bytes = answer.as_mut_bytes();
        let question = InfoIn {
            return_pointer: bytes.as_mut_ptr() as u64,
            return_size: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            op,
            ..InfoIn::default()
        };
        let (_, result) = self.call::<_, InfoIn>(Call::Info, &question);
        result.map(|()| answer)
    }

    /// What state it is in, for people.
    pub fn state(&self) -> &'static str {
        match self.info::<super::uapi::DeviceStatus>(info::DEVICE_STATUS) {
            Ok(state) => state_name(state.status),
            Err(_) => "gone",
        }
    }

    /// What its driver says went wrong since the card was opened.
    pub(crate) fn take_events(&self) -> u64 {
        let events = self.info::<u64>(info::GET_EVENTS).unwrap_or(0);
        self.notices().map_or(events, |notices| notices.take_down(events))
    }

    /// A program that ran on it has failed.
    pub(crate) fn note(&self, failure: &str) {
        let _ = self.note.set(failure.to_owned());
    }

    /// What a program that ran on it failed with, if one did.
    pub(crate) fn noted(&self) -> Option<&str> {
        self.note.get().map(String::as_str)
    }

    /// What the driver tells of the card, for people, and what a program that ran on it failed with.
    pub fn events(&self) -> String {
        let events = self.take_events();
        let mut names: Vec<&str> = event_names(events).collect();
        names.extend(self.noted());
        if names.is_empty() { "it does not say why".to_owned() } else { names.join(", ") }
    }

    /// What a failed call means, and what to do.
    pub fn failure(&self, what: &str, errno: Errno) -> Failure {
        failure(&self.name, what, errno)
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
