// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Asynchronous transfers: submitted at once, polled by any thread.
//!
//! A [`Dma`] moves bytes between host memory and a card, or within the card, beside the HAL's queues or without them. A
//! [`Request`] is one transfer. Submitting never waits: transfers without room in the kernel's queues are kept in
//! order, and go when there is room. Any number may be in flight. Polling a request collects the transfers that have
//! ended, submits others, and returns this one's state; it never waits either. Any thread may submit, poll and free,
//! even the same request.
//!
//! Host memory is made known to the card for the time of its transfer, and must stay what it is until then: a caller
//! that passes an address promises that. Transfers that go the same way are done one after the other, in the order in
//! which they were asked for; others overtake each other.
//!
//! Only the kernel's own submissions and waits are used. No request of it is made up.

use crate::generation::{Capabilities, Generation, Lane};
use crate::kmd::{Card, Progress};
use crate::memory::{Heap, Memory, Region};
use crate::open_card::OpenCard;
use crate::packet::{self, pieces};
use crate::submit::{InFlight, LARGEST, Refused, Submitter};
use hal_backend::{Code, Failure, HostRange};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The length of one wait before the next poll.
const SLICE: Duration = Duration::from_millis(100);

/// Transfers of one card.
pub struct Dma {
    shared: Arc<DmaState>,
}

struct DmaState {
    /// The card is open for as long as this is.
    _open: Arc<OpenCard>,
    card: Arc<Card>,
    submitter: Arc<Submitter>,
    pending: Mutex<PendingTransfers>,
    /// Which of a hardware queue's streams.
    stream: usize,
}

/// The transfers that have not ended, by the way they go.
#[derive(Default)]
struct PendingTransfers {
    lanes: [VecDeque<Transfer>; 3],
    lost: Option<Failure>,
}

/// One transfer that has not ended.
struct Transfer {
    /// The packets that are not submitted yet.
    commands: VecDeque<Vec<u8>>,
    submissions: VecDeque<InFlight>,
    failure: Option<Failure>,
    outcome: Arc<OnceLock<Result<(), Failure>>>,
    _retained: Vec<Memory>,
}

/// A transfer. Dropping this does not end the transfer, which runs to its end.
pub struct Request {
    shared: Arc<DmaState>,
    outcome: Arc<OnceLock<Result<(), Failure>>>,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("outcome", &self.outcome.get()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Dma {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dma").field("card", &self.shared.card).finish_non_exhaustive()
    }
}

impl Request {
    /// How it has ended; `None` while it is in flight. Does not wait.
    pub fn poll(&self) -> Option<Result<(), Failure>> {
        if self.outcome.get().is_none() {
            self.shared.progress(Duration::ZERO);
        }
        self.outcome.get().cloned()
    }

    /// Waits for its end.
    pub fn wait(&self) -> Result<(), Failure> {
        loop {
            if let Some(outcome) = self.outcome.get() {
                return outcome.clone();
            }
            self.shared.progress(SLICE);
        }
    }
}

/// Transfers on a card, and memory of the card, without a device.
#[derive(Clone)]
pub struct CardTransfers {
    /// The transfers.
    pub dma: Arc<Dma>,
    heap: Arc<Heap>,
}

impl fmt::Debug for CardTransfers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dma.fmt(f)
    }
}

impl CardTransfers {
    pub(crate) fn of(card: &Arc<OpenCard>) -> Self {
        Self { dma: Arc::new(Dma::of(card)), heap: card.device.clone() }
    }

    /// Takes device memory, until what is returned is dropped.
    pub fn allocate(&self, length: u64) -> Result<Memory, Failure> {
        self.heap.allocate(length)
    }
}

impl Dma {
    pub(crate) fn new(open: &Arc<OpenCard>, submitter: Arc<Submitter>) -> Self {
        let (open, card) = (open.clone(), open.card.clone());
        Self {
            shared: Arc::new(DmaState { _open: open, card, submitter, pending: Mutex::default(), stream: 0 }),
        }
    }

    /// Transfers of an open card.
    pub(crate) fn of(shared: &Arc<OpenCard>) -> Self {
        Self::new(shared, Arc::new(Submitter::new(shared, None, None)))
    }

    /// The card.
    pub fn card(&self) -> &Arc<Card> {
        &self.shared.card
    }

    /// Copies host memory to a device address.
    pub fn host_to_device(&self, source: &HostRange, target: u64) -> Result<Request, Failure> {
        let retained = self.shared.find(source)?;
        let packets = self.copies(retained.address(), target, retained.length())?;
        self.shared.enqueue(Lane::HostToDevice, packets, vec![retained])
    }

    /// Copies from a device address to host memory.
    pub fn device_to_host(&self, source: u64, target: &HostRange) -> Result<Request, Failure> {
        let retained = self.shared.find(target)?;
        let packets = self.copies(source, retained.address(), retained.length())?;
        self.shared.enqueue(Lane::DeviceToHost, packets, vec![retained])
    }

    /// Copies from one device address to another.
    pub fn device_to_device(&self, source: u64, target: u64, length: u64) -> Result<Request, Failure> {
        self.transfer(Lane::DeviceToDevice, source, target, length)
    }

    /// Copies on a way that the caller chooses: bytes outside of the card count as the host's.
    pub(crate) fn transfer(
        &self,
        lane: Lane,
        source: u64,
        target: u64,
        length: u64,
    ) -> Result<Request, Failure> {
        let packets = self.copies(source, target, length)?;
        self.shared.enqueue(lane, packets, Vec::new())
    }

    /// Repeats four bytes over device memory. The length is a multiple of four.
    pub fn fill(&self, pattern: [u8; 4], target: u64, length: u64) -> Result<Request, Failure> {
        if !length.is_multiple_of(4) {
            let message =
                format!("a fill of {length} bytes with a pattern of 4: the length is no multiple of 4");
            return Err(Failure::new(Code::InvalidArgument, message));
        }
        let generation = self.generation();
        let fill = |(offset, piece)| packet::fill(generation, pattern, target + offset, piece);
        self.shared.enqueue(Lane::DeviceToDevice, pieces(length).map(fill).collect(), Vec::new())
    }

    fn generation(&self) -> Generation {
        self.shared.card.generation()
    }

    fn copies(
        &self,
        source: u64,
        target: u64,
        length: u64,
    ) -> Result<Vec<[u8; packet::TRANSFER_SIZE]>, Failure> {
        let generation = self.generation();
        let fits = |start: u64| start.checked_add(length).is_some();
        if !fits(source) || !fits(target) {
            let message =
                format!("{length} bytes from {source:#x} to {target:#x} are past the end of all addresses");
            return Err(Failure::new(Code::OutOfRange, message));
        }
        let copy = |(offset, piece)| packet::copy(generation, source + offset, target + offset, piece);
        Ok(pieces(length).map(copy).collect())
    }

    /// How many transfers have not ended.
    pub fn pending(&self) -> usize {
        self.shared.pending.lock().lanes.iter().map(VecDeque::len).sum()
    }

    /// Waits for every transfer.
    pub fn finish(&self) {
        while self.pending() > 0 {
            self.shared.progress(SLICE);
        }
    }
}

impl Drop for Dma {
    fn drop(&mut self) {
        // A card that is closed in the middle of a transfer is reset.
        self.finish();
    }
}

/// The transfers of a lane.
fn lane_index(lane: Lane) -> usize {
    match lane {
        Lane::HostToDevice => 0,
        Lane::DeviceToHost => 1,
        Lane::DeviceToDevice | Lane::Compute => 2,
    }
}

const LANES: [Lane; 3] = [Lane::HostToDevice, Lane::DeviceToHost, Lane::DeviceToDevice];

impl DmaState {
    fn find(&self, range: &HostRange) -> Result<Memory, Failure> {
        if range.length() == 0 {
            return Err(Failure::new(Code::InvalidArgument, "a transfer of no bytes"));
        }
        let region = Region::host(&self.card, range.clone()).map_err(|errno| {
            if let Some(loss) = self.submitter.loss() {
                // The card has to be closed now: there may never be another request to it.
                let mut pending = self.pending.lock();
                pending.lost.get_or_insert(loss);
                self.collect_ended(&mut pending);
            }
            let what =
                format!("{} bytes at {:p} could not be made known to it", range.length(), range.address());
            self.card.failure(&what, errno)
        })?;
        Ok(Memory::whole(region))
    }

    fn enqueue(
        self: &Arc<Self>,
        lane: Lane,
        packets: Vec<[u8; packet::TRANSFER_SIZE]>,
        retained: Vec<Memory>,
    ) -> Result<Request, Failure> {
        if packets.is_empty() {
            return Err(Failure::new(Code::InvalidArgument, "a transfer of no bytes"));
        }
        let most = LARGEST / packet::TRANSFER_SIZE;
        let commands = packets.chunks(most).map(<[_]>::concat).collect();
        let outcome = Arc::new(OnceLock::new());
        let transfer = Transfer {
            commands,
            submissions: VecDeque::new(),
            failure: None,
            outcome: outcome.clone(),
            _retained: retained,
        };
        let mut pending = self.pending.lock();
        if let Some(failure) = &pending.lost {
            return Err(failure.clone());
        }
        if let Some(transfers) = pending.lanes.get_mut(lane_index(lane)) {
            transfers.push_back(transfer);
        }
        self.submit(&mut pending);
        self.collect_ended(&mut pending);
        drop(pending);
        // A transfer that could not begin was refused.
        match outcome.get() {
            Some(Err(failure)) => Err(failure.clone()),
            _ => Ok(Request { shared: self.clone(), outcome }),
        }
    }

    /// Submits what there is room for.
    fn submit(&self, pending: &mut PendingTransfers) {
        for (lane, transfers) in LANES.into_iter().zip(&mut pending.lanes) {
            let queue = self.card.generation().hardware_queue(lane, self.stream);
            for transfer in transfers.iter_mut() {
                while let Some(commands) = transfer.commands.front() {
                    match self.submitter.submit(queue, commands) {
                        Ok(submission) => {
                            transfer.commands.pop_front();
                            transfer.submissions.push_back(submission);
                        }
                        Err(Refused::Full) => return,
                        Err(Refused::Failed(failure)) => {
                            transfer.commands.clear();
                            transfer.failure.get_or_insert(failure);
                        }
                        Err(Refused::Lost(failure)) => {
                            pending.lost = Some(failure);
                            return;
                        }
                    }
                }
            }
        }
    }

    /// Takes ended transfers out of the queues, oldest first, with their outcomes.
    fn collect_ended(&self, pending: &mut PendingTransfers) {
        let PendingTransfers { lanes, lost } = pending;
        for transfers in lanes.iter_mut() {
            while let Some(transfer) = transfers.front_mut() {
                while lost.is_none()
                    && let Some(submission) = transfer.submissions.front()
                {
                    let sequence = submission.sequence();
                    match self.submitter.poll(sequence, Duration::ZERO) {
                        Progress::Busy => break,
                        Progress::Done { .. } => {}
                        failed => *lost = self.submitter.failure(submission.queue(), sequence, &failed),
                    }
                    if lost.is_none() {
                        transfer.submissions.pop_front();
                    }
                }
                if lost.is_some() || !transfer.submissions.is_empty() || !transfer.commands.is_empty() {
                    break;
                }
                if let Some(transfer) = transfers.pop_front() {
                    // Its memory is free before its end can be seen.
                    let Transfer { failure, outcome, _retained, .. } = transfer;
                    drop(_retained);
                    let _ = outcome.set(failure.map_or(Ok(()), Err));
                }
            }
        }
        let Some(failure) = lost else { return };
        // The card is lost: it is closed before the memory that it worked on is freed.
        self.submitter.close();
        self.card.lose(failure);
        for transfer in lanes.iter_mut().flat_map(|transfers| transfers.drain(..)) {
            let _ = transfer.outcome.set(Err(failure.clone()));
        }
    }

    /// Looks for what has ended, and submits what can be; with a time, waits for that at most first.
    fn progress(&self, patience: Duration) {
        if !patience.is_zero() {
            let oldest = {
                let pending = self.pending.lock();
                let first =
                    |transfers: &VecDeque<Transfer>| Some(transfers.front()?.submissions.front()?.sequence());
                pending.lanes.iter().find_map(first)
            };
            match oldest {
                Some(sequence) => drop(self.submitter.poll(sequence, patience)),
                // Others take all the room.
                None => std::thread::sleep(Duration::from_micros(100)),
            }
        }
        let mut pending = self.pending.lock();
        self.collect_ended(&mut pending);
        if pending.lost.is_none() {
            self.submit(&mut pending);
        }
        if pending.lost.is_some() {
            self.collect_ended(&mut pending);
        }
    }
}
