// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Submissions: commands on a hardware queue, polled until they have ended.
//!
//! All work of a card goes through a [`Submitter`]. The submitters of one card share a count, which keeps the kernel's
//! limits. The kernel takes a limited number of submissions (64 on Gaudi 2) and remembers as many outcomes: an older
//! one is "gone", with its error. So an [`InFlight`] counts until its outcome has been *seen* ([`Submitter::poll`]) and
//! it is dropped, and no more are made than the kernel remembers. No error is lost.
//!
//! If the card reads commands from memory, the submission owns that memory until it has ended. If the kernel copies
//! them, one buffer serves every submission.

use crate::generation::Capabilities;
use crate::kmd::uapi::cb;
use crate::kmd::{Card, Errno, GONE, LossCause, OPERATIONAL, Progress};
use crate::memory::{Heap, Memory};
use crate::open_card::OpenCard;
use hal_backend::{Code, Failure, HostRange, Origin};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// The most bytes of commands in one submission.
pub(crate) const LARGEST: usize = 256 << 10;

/// The least limit: a step may need a signal and a wait for each of four lanes.
pub(crate) const LEAST: usize = 16;

const _: () = assert!(LARGEST <= cb::MAX_SIZE as usize);

/// Why a submission was not made.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The queues are full now.
    Full,
    /// It cannot be made at all.
    Failed(Failure),
    /// The card is gone, or about to be.
    Lost(Failure),
}

/// The submissions of a card.
pub(crate) struct Submitter {
    card: Arc<Card>,
    host: Arc<Heap>,
    in_flight: Arc<AtomicUsize>,
    limit: usize,
    /// How many seconds a submission has.
    timeout: Option<u32>,
    /// False once the driver has refused a signal.
    signals: AtomicBool,
    /// Command buffers of the kernel that are not being written.
    buffers: Mutex<Vec<KernelBuffer>>,
}

/// A command buffer of the kernel, which copies what is in it.
struct KernelBuffer {
    handle: u64,
    range: HostRange,
}

/// One submission, in flight until it is dropped. Only dropped once it has ended.
pub(crate) struct InFlight {
    sequence: u64,
    queue: u32,
    /// The commands, if the card reads them from memory.
    _commands: Option<Memory>,
    _permit: Permit,
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InFlight({} on {})", self.sequence, self.queue)
    }
}

impl InFlight {
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    pub(crate) fn queue(&self) -> u32 {
        self.queue
    }
}

/// The right to one submission in flight. It counts until it is dropped.
struct Permit(Arc<AtomicUsize>);

impl Permit {
    fn fill(self, sequence: u64, queue: u32, commands: Option<Memory>) -> InFlight {
        InFlight { sequence, queue, _commands: commands, _permit: self }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Submitter {
    pub(crate) fn new(shared: &OpenCard, limit: Option<usize>, timeout: Option<u32>) -> Self {
        let most = shared.card.generation().in_flight();
        Self {
            card: shared.card.clone(),
            host: shared.host.clone(),
            in_flight: shared.in_flight.clone(),
            limit: limit.unwrap_or(most).clamp(LEAST.min(most), most),
            timeout,
            signals: AtomicBool::new(true),
            buffers: Mutex::default(),
        }
    }

    /// How many are in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    /// How many may be.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    fn place(&self) -> Result<Permit, Refused> {
        let free = |count| (count < self.limit).then_some(count + 1);
        match self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Acquire, free) {
            Ok(_) => Ok(Permit(self.in_flight.clone())),
            Err(_) => Err(Refused::Full),
        }
    }

    fn refused(&self, what: &str, errno: Errno) -> Refused {
        match errno {
            Errno::AGAIN => Refused::Full,
            // Not operational any more; or the device was taken out of the machine.
            Errno::BUSY | Errno::NODEV | Errno::IO | Errno::BADF => {
                Refused::Lost(self.ended(LossCause::Refused(errno)))
            }
            errno => Refused::Failed(self.card.failure(what, errno)),
        }
    }

    /// Puts commands on a hardware queue.
    pub(crate) fn submit(&self, queue: u32, commands: &[u8]) -> Result<InFlight, Refused> {
        let place = self.place()?;
        let what = "commands could not be submitted";
        let too_long = || {
            Refused::Failed(Failure::new(Code::OutOfRange, format!("{} bytes of commands", commands.len())))
        };
        let length = u32::try_from(commands.len()).map_err(|_| too_long())?;
        if commands.len() > LARGEST {
            return Err(too_long());
        }
        if self.card.generation().copies_command_buffers() {
            let buffer = self.buffer()?;
            let sequence = if buffer.range.write(0, commands) {
                self.card.submit(queue, buffer.handle, length, self.timeout)
            } else {
                Err(Errno::FAULT)
            };
            self.buffers.lock().push(buffer);
            return Ok(place.fill(sequence.map_err(|errno| self.refused(what, errno))?, queue, None));
        }
        let memory = self.host.allocate(commands.len() as u64).map_err(|failure| match self.loss() {
            Some(loss) => Refused::Lost(loss),
            None => Refused::Failed(failure),
        })?;
        if !memory.host_view().is_some_and(|view| view.write(0, commands)) {
            return Err(Refused::Failed(self.card.failure(what, Errno::FAULT)));
        }
        let sequence = self.card.submit(queue, memory.address(), length, self.timeout);
        Ok(place.fill(sequence.map_err(|errno| self.refused(what, errno))?, queue, Some(memory)))
    }

    fn buffer(&self) -> Result<KernelBuffer, Refused> {
        if let Some(buffer) = self.buffers.lock().pop() {
            return Ok(buffer);
        }
        let size = u32::try_from(LARGEST).unwrap_or(cb::MAX_SIZE);
        match self.card.create_command_buffer(size) {
            Ok((handle, range)) => Ok(KernelBuffer { handle, range }),
            Err(errno) => Err(self.refused("a command buffer could not be made", errno)),
        }
    }

    /// Makes a hardware queue signal behind everything that it has.
    pub(crate) fn signal(&self, queue: u32) -> Result<InFlight, Refused> {
        let place = self.place()?;
        let sequence = self.card.signal(queue, self.timeout).map_err(|errno| {
            let refused = self.refused("a signal was refused", errno);
            match refused {
                // It is tried once, and the host keeps the order from then on: what was refused can go when it is its
                // turn.
                Refused::Failed(_) => {
                    self.signals.store(false, Ordering::Relaxed);
                    Refused::Full
                }
                refused => refused,
            }
        })?;
        Ok(place.fill(sequence, queue, None))
    }

    /// True if one hardware queue can wait for another.
    pub(crate) fn has_signals(&self) -> bool {
        self.signals.load(Ordering::Relaxed)
    }

    /// Makes a hardware queue wait for a signal; nothing, if that has come.
    pub(crate) fn wait(&self, queue: u32, signal: u64) -> Result<Option<InFlight>, Refused> {
        let place = self.place()?;
        match self.card.wait_for_signal(queue, signal, self.timeout) {
            Ok(Some(sequence)) => Ok(Some(place.fill(sequence, queue, None))),
            Ok(None) => Ok(None),
            Err(errno) => Err(self.refused("a wait for a signal was refused", errno)),
        }
    }

    /// Polls a submission, waiting up to `timeout` for its end.
    pub(crate) fn poll(&self, sequence: u64, timeout: Duration) -> Progress {
        self.card.wait(sequence, timeout)
    }

    /// Waits for any of some submissions, where the kernel can, and otherwise for the first.
    pub(crate) fn wait_any(&self, sequences: &[u64], timeout: Duration) -> Progress {
        match sequences {
            [] => Progress::Busy,
            [one] => self.card.wait(*one, timeout),
            some if self.card.generation().waits_for_any() => match self.card.wait_any(some, timeout) {
                // A kernel without it, or with too many such waits already.
                Progress::Lost(Errno::PERM | Errno::NOMEM | Errno::INVAL) => self.first(some, timeout),
                progress => progress,
            },
            some => self.first(some, timeout),
        }
    }

    fn first(&self, sequences: &[u64], timeout: Duration) -> Progress {
        sequences.first().map_or(Progress::Busy, |&first| self.card.wait(first, timeout))
    }

    /// The failure of a submission; `None` if it has ended well, or not yet.
    pub(crate) fn failure(&self, queue: u32, sequence: u64, progress: &Progress) -> Option<Failure> {
        match progress {
            Progress::Busy | Progress::Done { .. } => None,
            Progress::TimedOut => {
                Some(self.too_late(&format!("submission {sequence} on hardware queue {queue}")))
            }
            Progress::Lost(errno) => Some(self.ended(LossCause::Refused(*errno))),
        }
    }

    fn too_late(&self, what: &str) -> Failure {
        let time = match self.timeout {
            Some(seconds) => format!("{seconds} s"),
            None => "the time that the kernel gives it".to_owned(),
        };
        let message = format!(
            "{}: {what} did not end within {time}; the card is being reset, and its memory is lost",
            self.card.name()
        );
        // Not the code of a deadline, by which a wait for a semaphore reports its own timeout.
        Failure::with_origin(Code::Aborted, Origin::Device, message)
    }

    /// Why the card is lost, if that is known.
    pub(crate) fn loss(&self) -> Option<Failure> {
        self.card.loss_cause().map(|cause| self.ended(cause))
    }

    /// Why the card is lost: the same for all its users, however each of them has found out.
    pub(crate) fn ended(&self, cause: LossCause) -> Failure {
        // Another user that has found out may have closed it.
        let known = self.card.loss_cause().filter(|known| matches!(known, LossCause::Lost(_)));
        let refusal = match known.unwrap_or(cause) {
            LossCause::Lost(failure) => return failure,
            LossCause::Notified => None,
            LossCause::Refused(errno) => Some(errno),
        };
        // The reset that comes of it ends all other work.
        if let Some(sequence) = self.card.timed_out() {
            return self.too_late(&format!("submission {sequence}"));
        }
        let state = self.card.state();
        let (code, state) = match (state, refusal) {
            // The driver refuses waits, and then reports that a reset is to come, half a minute before it does.
            (OPERATIONAL, None | Some(Errno::BUSY | Errno::IO)) => (Code::Aborted, "to be reset"),
            (GONE | OPERATIONAL, _) => (Code::Unavailable, state),
            _ => (Code::Aborted, state),
        };
        let mut why = self.card.events();
        if let Some(errno) = refusal {
            why = format!("{errno}: {why}");
        }
        let message = format!("{} is {state} ({why}); its memory is lost, open it again", self.card.name());
        Failure::with_origin(code, Origin::Device, message)
    }

    /// Frees the kernel's objects for it.
    pub(crate) fn close(&self) {
        for buffer in self.buffers.lock().drain(..) {
            // The mapping holds the file of the card, so it goes first.
            drop(buffer.range);
            let _ = self.card.destroy_command_buffer(buffer.handle);
        }
    }
}

impl Drop for Submitter {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kmd::uapi::event;
    use emulator_gaudi::{Emulator, Options};
    use hal_backend::Parameters;
    use hal_kernel::System;
    use std::os::fd::{AsFd, OwnedFd};
    use std::path::Path;

    #[test]
    fn place_is_counted_until_it_is_dropped_and_leaves_nothing() {
        let in_flight = Arc::new(AtomicUsize::new(2));
        let (empty, full) = (Permit(in_flight.clone()), Permit(in_flight.clone()).fill(1, 0, None));
        assert_eq!(in_flight.load(Ordering::Relaxed), 2);
        drop(empty);
        assert_eq!(in_flight.load(Ordering::Relaxed), 1);
        drop(full);
        assert_eq!(in_flight.load(Ordering::Relaxed), 0);
        assert_eq!(Arc::strong_count(&in_flight), 1, "references that are not given back");
    }

    /// A card that a program has opened, whose events go to another user of the same file: the driver reports each
    /// once.
    struct WithoutEvents {
        emulator: Arc<Emulator>,
        _file: OwnedFd,
        notified: Arc<Card>,
        open: OpenCard,
    }

    impl WithoutEvents {
        fn new(parameters: &[(&str, &str)]) -> Self {
            let mut parameters = Parameters::new("gaudi", parameters.iter().copied());
            let emulator = Emulator::new(Options::read(&mut parameters).unwrap()).unwrap();
            let file = emulator.open(Path::new("/dev/accel/accel0")).unwrap();
            let adopt = |name: &str| Card::adopt(emulator.clone(), file.as_fd(), name.to_owned()).unwrap();
            let (notified, open) = (adopt("one"), OpenCard::of(adopt("two")));
            Self { emulator, _file: file, notified, open }
        }

        fn until_reset(&self) {
            while self.notified.take_events() & event::DEVICE_RESET == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// The failures of a card that is about to be reset, in each way in which a user of it may find out.
    fn found(submitter: &Submitter) -> [Failure; 4] {
        [
            submitter.failure(0, 1, &Progress::Lost(Errno::IO)).unwrap(),
            submitter.failure(0, 1, &Progress::Lost(Errno::BUSY)).unwrap(),
            submitter.ended(LossCause::Notified),
            submitter.ended(LossCause::Refused(Errno::BUSY)),
        ]
    }

    #[test]
    fn reset_has_aborted_the_work_however_it_is_found_out() {
        let card = WithoutEvents::new(&[]);
        card.emulator.report_error(0);
        card.until_reset();
        for failure in found(&Submitter::new(&card.open, None, None)) {
            assert_eq!(failure.code(), Code::Aborted, "{failure}");
            assert!(failure.message().contains("reset"), "{failure}");
        }
    }

    #[test]
    fn submission_that_timed_out_is_the_cause_however_it_is_found_out() {
        let card = WithoutEvents::new(&[("fault", "hang:1"), ("speed", "100")]);
        let submitter = Submitter::new(&card.open, None, Some(1));
        let _hung = submitter.signal(0).unwrap();
        card.until_reset();
        for failure in found(&submitter) {
            assert_eq!(failure.code(), Code::Aborted, "{failure}");
            assert!(failure.message().contains("submission 1 did not end within 1 s"), "{failure}");
        }
    }

    #[test]
    fn card_that_is_pulled_out_is_gone_however_that_is_found_out() {
        let card = WithoutEvents::new(&[]);
        card.emulator.pull_out(0);
        let submitter = Submitter::new(&card.open, None, None);
        let refused = submitter.ended(LossCause::Refused(Errno::NODEV));
        for failure in found(&submitter).into_iter().chain([refused]) {
            assert_eq!(failure.code(), Code::Unavailable, "{failure}");
            assert!(failure.message().contains("two is gone"), "{failure}");
        }
    }

    #[test]
    fn cause_that_another_user_of_the_card_has_found_is_that_of_all() {
        let card = WithoutEvents::new(&[]);
        let why = Failure::new(Code::DataLoss, "it was on fire");
        card.open.card.lose(&why);
        let submitter = Submitter::new(&card.open, None, None);
        let refused = submitter.ended(LossCause::Refused(Errno::NODEV));
        for failure in found(&submitter).into_iter().chain([refused]) {
            assert_eq!((failure.code(), failure.message()), (why.code(), why.message()));
        }
    }
}
