// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An open card: opening, questions, closing. Its calls for memory and for queues are in modules of their own.
//!
//! This is a thin layer: a call here is one request to the kernel, and its caller decides what to do about a busy or
//! lost card. The layer's one state is whether the file is open. The kernel kills a process that holds a card through
//! a reset, so [`Card::close`] closes the file while other threads may still call.

use super::error::{DRIVER, GONE, event_names, failure, state_advice, state_name, state_passes};
use super::holders::{DmabufHolder, DmabufHolders};
use super::loss::{CardLoss, EventFd, LossCause};
use super::nodes::CARDS;
use super::uapi::{Abi, Call, HwIpInfo, InfoIn, TimeoutEvent, info, status};
use super::{Errno, System};
use crate::generation::Generation;
use hal_backend::memory_file::limit_advice;
use hal_backend::{Code, Failure};
use hal_kernel::CardFile;
use hal_kernel::drm::Unidentified;
use hal_kernel::registry::Registration;
use parking_lot::{Mutex, RwLock};
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

mod memory;
mod submission;

pub use submission::Progress;

/// The pause between two questions for the state of a card that is being started or reset.
const PAUSE: Duration = Duration::from_millis(10);

/// An open card.
pub struct Card {
    /// `None` once it is closed.
    file: RwLock<Option<CardFile>>,
    name: String,
    abi: Abi,
    generation: Generation,
    info: HwIpInfo,
    /// `None` if the program that opened the card gets the events itself, or the driver has none.
    driver_events: Option<EventFd>,
    /// The driver's events since the card was opened. The driver reports each once.
    events: Mutex<u64>,
    /// The time of the first submission that took too long before the card was opened here. Older kernels keep it
    /// from one open to the next, and a program may have had one on a card that it has opened itself.
    earlier_timeout: u64,
    /// The holders of dma-bufs of its memory.
    holders: DmabufHolders,
    /// The failure of the first program that failed on it. Only an emulated card reports it.
    note: OnceLock<String>,
    /// True when the programs of an emulated card are to end. Their results are used no more.
    pub(crate) ends_programs: Arc<AtomicBool>,
    loss: CardLoss,
    /// Its place among the cards that this process has open, if it has one. Released after the file.
    registration: Option<Registration>,
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
    /// Opens a card, and waits up to `patience` while it is being started or reset.
    pub fn open(system: Arc<dyn System>, path: &Path, patience: Duration) -> Result<Arc<Self>, Failure> {
        Self::start(None, Instant::now() + patience, |left| {
            CardFile::open(&CARDS, system.clone(), path, left)
        })
    }

    /// Uses a card that the program has opened itself. The program's descriptor stays its own.
    pub fn adopt(system: Arc<dyn System>, file: BorrowedFd<'_>, name: String) -> Result<Arc<Self>, Failure> {
        Self::start(None, Instant::now(), |_| CardFile::adopt(system.clone(), file, name.clone()))
    }

    /// Opens and identifies a file, with its registration among the cards that this process has open. Up to a moment it
    /// waits while the card is being started or reset, and opens it again.
    pub(crate) fn start(
        registration: Option<Registration>,
        end: Instant,
        open: impl Fn(Duration) -> Result<CardFile, Failure>,
    ) -> Result<Arc<Self>, Failure> {
        let open = || open(end.saturating_duration_since(Instant::now()));
        let file = open()?;
        let name = file.name().to_owned();
        let no_eventfd = |errno: Errno| {
            let advice =
                limit_advice(errno).unwrap_or("let the sandbox (seccomp) allow eventfd2 to this process");
            let message = format!("{name} has no descriptor to report its end by: {errno}; {advice}");
            Failure::new(Code::ResourceExhausted, message)
        };
        let loss = CardLoss::new().map_err(no_eventfd)?;
        let mut card = Self {
            file: RwLock::new(Some(file)),
            name,
            abi: Abi::Drm,
            generation: Generation::Gaudi2,
            info: HwIpInfo::new_zeroed(),
            driver_events: None,
            events: Mutex::new(0),
            earlier_timeout: 0,
            holders: DmabufHolders::default(),
            note: OnceLock::new(),
            ends_programs: Arc::default(),
            loss,
            registration,
        };
        loop {
            // Other drivers understand request numbers otherwise: the driver's name comes first.
            card.abi = card.identify()?;
            let state = card.status().map_err(|errno| card.failure("its state", errno))?;
            if state == status::OPERATIONAL {
                break;
            }
            if !state_passes(state) || Instant::now() >= end {
                let message = format!("{} is {}; {}", card.name, state_name(state), state_advice(state));
                return Err(Failure::new(Code::Unavailable, message));
            }
            // A reset waits until the file is closed.
            *card.file.get_mut() = None;
            std::thread::sleep(PAUSE);
            *card.file.get_mut() = Some(open()?);
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
        card.driver_events = card.register_for_events().map_err(|errno| match errno {
            Errno::OPNOTSUPP => {
                let what =
                    "is the control node of a card, which only answers questions; name the card's own node";
                Failure::new(Code::InvalidArgument, format!("{} {what}", card.name))
            }
            errno => card.failure("word of its errors", errno),
        })?;
        card.earlier_timeout = card.first_timeout().map_or(0, |timeout| timeout.timestamp);
        Ok(Arc::new(card))
    }

    /// Registers an eventfd that the driver signals on errors.
    fn register_for_events(&self) -> Result<Option<EventFd>, Errno> {
        let driver_events = EventFd::new()?;
        let counter = u32::try_from(driver_events.as_fd().as_raw_fd()).map_err(|_| Errno::BADF)?;
        let request = InfoIn { op: info::REGISTER_EVENTFD, dcore_id: counter, ..InfoIn::default() };
        match self.call::<_, InfoIn>(Call::Info, &request).1 {
            Ok(()) => Ok(Some(driver_events)),
            // Another descriptor is registered already, or the driver is older than that.
            Err(Errno::INVAL | Errno::NOTTY) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// The eventfd that the driver signals. All devices that share the card poll it.
    pub(super) fn driver_events(&self) -> Option<&EventFd> {
        self.driver_events.as_ref()
    }

    pub(super) fn loss(&self) -> &CardLoss {
        &self.loss
    }

    /// Takes it out of the registry because it is lost: a later open does not get this one.
    pub(super) fn give_up(&self) {
        if let Some(registration) = &self.registration {
            registration.give_up();
        }
    }

    /// Checks that the file is of the right driver, and finds out which request numbers that has.
    fn identify(&self) -> Result<Abi, Failure> {
        let identified = match &*self.file.read() {
            Some(file) => file.identify(DRIVER),
            None => Err(Unidentified::Unanswered(Errno::NODEV)),
        };
        match identified {
            Ok(()) => Ok(Abi::Drm),
            // No DRM device: a card of a kernel before 6.7, if it is a card.
            Err(Unidentified::Unanswered(Errno::NOTTY)) => {
                let mut probe = InfoIn { op: info::DEVICE_STATUS, ..InfoIn::default() };
                let mut state = super::uapi::DeviceStatus::default();
                probe.return_pointer = state.as_mut_bytes().as_mut_ptr() as u64;
                probe.return_size = 8;
                match self.ioctl(Call::Info.request(Abi::Old), probe.as_mut_bytes()) {
                    Ok(()) => Ok(Abi::Old),
                    Err(errno) => Err(Unidentified::Unanswered(errno).failure(&self.name, DRIVER)),
                }
            }
            Err(Unidentified::Unanswered(Errno::NODEV)) => {
                Err(self.failure("its driver's name", Errno::NODEV))
            }
            Err(other) => Err(other.failure(&self.name, DRIVER)),
        }
    }

    /// Closes the file and has each holder release its dma-buf. Every call fails from then on.
    pub fn close(&self) {
        self.release("its device was closed");
    }

    /// Closes a card that is lost, and notifies the holders of its memory and its users of the cause.
    pub(crate) fn lose(&self, why: &Failure) {
        self.loss.report(LossCause::Lost(why.clone()));
        self.release(why.message());
    }

    fn release(&self, why: &str) {
        self.give_up();
        let file = self.file.write().take();
        self.holders.lose(why);
        // Another caller has taken the file, closes it and reports that.
        let Some(file) = file else { return };
        drop(file);
        if let Some(registration) = &self.registration {
            registration.release();
        }
    }

    /// Adds a holder of its memory, by a dma-buf or a mapping, to notify when the card is lost.
    pub(crate) fn is_held_by(&self, holder: Weak<dyn DmabufHolder>) {
        self.holders.add(holder);
    }

    /// True if its file is open.
    pub fn is_open(&self) -> bool {
        self.file.read().is_some()
    }

    /// Its name in messages: the path that it was opened by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its generation.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The kernel's description of its hardware.
    pub fn hardware(&self) -> &HwIpInfo {
        &self.info
    }

    /// The request numbers of its driver.
    pub fn abi(&self) -> Abi {
        self.abi
    }

    fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        let file = self.file.read();
        file.as_ref().ok_or(Errno::NODEV)?.ioctl(request, argument)
    }

    /// Makes a call. The output is valid on success, and for waits also on failure.
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
            self.check_for_loss(call, errno);
        }
        let mut output = O::new_zeroed();
        for (target, &source) in output.as_mut_bytes().iter_mut().zip(argument.iter()) {
            *target = source;
        }
        (output, result)
    }

    /// Takes the card out of the registry if a request failed as only a lost card's does. The callers of submissions
    /// and waits report the loss themselves, with the cause.
    fn check_for_loss(&self, call: Call, errno: Errno) {
        let lost = match call {
            Call::Info => errno == Errno::NODEV,
            Call::CommandBuffer | Call::Memory => matches!(errno, Errno::NODEV | Errno::BUSY),
            Call::Submit => matches!(errno, Errno::NODEV | Errno::BUSY | Errno::IO | Errno::BADF),
            Call::Wait => matches!(errno, Errno::NODEV | Errno::BUSY | Errno::IO | Errno::TIMEDOUT),
        };
        if lost {
            self.give_up();
            if !matches!(call, Call::Submit | Call::Wait) {
                self.loss.report(LossCause::Refused(errno));
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

    fn status(&self) -> Result<u32, Errno> {
        self.info::<super::uapi::DeviceStatus>(info::DEVICE_STATUS).map(|state| state.status)
    }

    /// Its state, for people.
    pub fn state(&self) -> &'static str {
        self.status().map_or(GONE, state_name)
    }

    /// Asks whether it is usable, and takes it out of the registry if it is not.
    pub(crate) fn is_usable(&self) -> bool {
        let usable = self.status() == Ok(status::OPERATIONAL);
        if !usable {
            self.give_up();
        }
        usable
    }

    /// The driver's events since the card was opened.
    pub(crate) fn take_events(&self) -> u64 {
        // Under the lock, so that no other thread finds neither the driver with them nor this.
        let mut events = self.events.lock();
        *events |= self.info::<u64>(info::GET_EVENTS).unwrap_or(0);
        *events
    }

    /// The first submission that took too long since the card was opened. The driver has recorded it before it reports
    /// that or refuses anything because of it.
    pub(crate) fn timed_out(&self) -> Option<u64> {
        let timeout = self.first_timeout().filter(|timeout| timeout.timestamp != self.earlier_timeout)?;
        Some(timeout.seq)
    }

    /// The first submission that took too long, if any has.
    fn first_timeout(&self) -> Option<TimeoutEvent> {
        self.info::<TimeoutEvent>(info::CS_TIMEOUT_EVENT).ok().filter(|timeout| timeout.seq != 0)
    }

    /// Records that a program failed on it.
    pub(crate) fn note(&self, failure: &str) {
        let _ = self.note.set(failure.to_owned());
    }

    /// The failure of a program on it, if one failed.
    pub(crate) fn noted(&self) -> Option<&str> {
        self.note.get().map(String::as_str)
    }

    /// The driver's events and the failure of a program on it, for people.
    pub fn events(&self) -> String {
        let events = self.take_events();
        let mut names: Vec<&str> = event_names(events).collect();
        names.extend(self.noted());
        if names.is_empty() { "it does not say why".to_owned() } else { names.join(", ") }
    }

    /// The failure of a call, with what to do.
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
