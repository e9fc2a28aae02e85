//! A card: its state, its queues, and the context of whoever has it open.
//!
//! # States
//!
//! ```text
//! Operational ──(error, with an eventfd)──▶ Operational, watchdog armed ──(30 s, or close)──┐
//!      │ └──(error, timeout, or a dirty close)──────────────────────────────────────────────▼
//!      │                                                                                 InReset ─(1 s)─▶ Operational
//!      ├──(clean close, second generation)──▶ Releasing ─(10 ms)─▶ Operational
//!      ├──(two fatal errors)──▶ Malfunction, for ever
//!      └──(pulled out)──▶ Gone, for ever
//! ```
//!
//! A reset ends every submission with an error and wakes every waiter at once; the card is operational again when its
//! time is over *and* no worker is still at something of before. The file that was open is killed: a
//! kernel would have killed its process. Its requests fail with `EBUSY` until it is closed, but for questions about the
//! card, which have their answers.
//!
//! Everything here is behind the machine's one lock.

use crate::hardware::Hardware;
use crate::space::Space;
use hal_backend::HostRange;
use hal_emulation::Errno;
use hal_emulation::claim::Claim;
use hal_emulation::fault::Faults;
use hal_gaudi_abi::uapi::{PageFault, TimeoutEvent};
use parking_lot::RwLock;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// What became of a card since its machine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Whole resets: after errors, and after a close with work in flight or live command buffers. A program that
    /// is done right causes none.
    pub hard_resets: u64,
    /// Resets of the compute engines after a close.
    pub releases: u64,
    /// How often the card was opened.
    pub opens: u64,
    /// Submissions that were accepted.
    pub submissions: u64,
    /// Transfers that were executed.
    pub transfers: u64,
    /// Dispatches that were executed.
    pub dispatches: u64,
    /// Bytes that transfers have written.
    pub bytes_moved: u64,
    /// Waits that were asked for.
    pub waits: u64,
    /// Submissions that have not ended.
    pub in_flight: u64,
    /// Handles of device memory and command buffers that are live now.
    pub open_handles: u64,
    /// Mappings that are live now.
    pub mapped: u64,
    /// Device memory that is taken now.
    pub allocated_bytes: u64,
    /// Handles and mappings that a close found live.
    pub leaked_at_close: u64,
    /// Handles and mappings that the last close found live.
    pub leaked_at_last_close: u64,
    /// Programs that the kernel would have killed: they still had the card open a second after a reset began.
    pub kills: u64,
}

/// What state a card is in. The module has the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Operational,
    InReset,
    Releasing,
    Malfunction,
    Gone,
}

/// One card.
#[derive(Debug)]
pub(crate) struct Card {
    pub(crate) status: Status,
    /// When the reset or release that is going on is over.
    pub(crate) until: Option<Instant>,
    /// When the card is reset if the file is not closed by then.
    pub(crate) watchdog: Option<Instant>,
    /// When whoever still has the file after a reset is killed.
    pub(crate) kill: Option<Instant>,
    pub(crate) faults: Faults,
    pub(crate) counts: Counts,
    pub(crate) soft_resets: u32,
    /// The descriptor that has it open.
    pub(crate) owner: Option<hal_emulation::file::Identity>,
    pub(crate) context: Option<Context>,
    /// The lock that other processes see, while it is open.
    pub(crate) claim: Option<Claim>,
    /// What workers are at now.
    pub(crate) running: usize,
    pub(crate) opened: Instant,
    pub(crate) last_period: u64,
    /// How many waits for the first of several are going on.
    pub(crate) multi_waits: usize,
    /// Whether a close is going on, or waits for dma-bufs to go.
    pub(crate) releasing: bool,
    /// What was wrong last, for people.
    pub(crate) complaint: Option<String>,
}

impl Card {
    pub(crate) fn new(faults: Faults) -> Self {
        Self {
            status: Status::Operational,
            until: None,
            watchdog: None,
            kill: None,
            faults,
            counts: Counts::default(),
            soft_resets: 0,
            owner: None,
            context: None,
            claim: None,
            running: 0,
            opened: Instant::now(),
            last_period: 0,
            multi_waits: 0,
            releasing: false,
            complaint: None,
        }
    }

    /// What a request for work or memory says in this state.
    pub(crate) fn ready(&self) -> Result<(), Errno> {
        match self.status {
            Status::Operational => Ok(()),
            Status::Gone => Err(Errno::NODEV),
            _ => Err(Errno::BUSY),
        }
    }

    /// The counts, with what is live now.
    pub(crate) fn counted(&self) -> Counts {
        let mut counts = self.counts;
        if let Some(context) = &self.context {
            counts.in_flight = context.submissions.values().filter(|cs| !cs.done).count() as u64;
            counts.open_handles = (context.memory.len() + context.buffers.len()) as u64;
            counts.mapped = context.live.space.read().mapped() as u64;
            counts.allocated_bytes = context.allocated;
        }
        counts
    }
}

/// What a worker needs of a context, also when the context is gone.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) space: RwLock<Space>,
    /// Set when what is under way shall end.
    pub(crate) abort: Arc<AtomicBool>,
}

/// Device memory with a handle.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pub(crate) file: Arc<OwnedFd>,
    pub(crate) range: HostRange,
    pub(crate) size: u64,
    pub(crate) mapped: u32,
}

/// A command buffer of the kernel.
#[derive(Debug)]
pub(crate) struct CommandBuffer {
    pub(crate) range: HostRange,
    /// Where the device sees it, if it does.
    pub(crate) device_address: Option<u64>,
    /// Whether the process sees it.
    pub(crate) seen: Arc<AtomicBool>,
    /// How many submissions were made of it.
    pub(crate) used: u32,
}

/// What a submission is, beside work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Work,
    Signal { queue: u32, object: usize },
    Wait,
}

/// A submission.
#[derive(Debug)]
pub(crate) struct Submission {
    /// How many of its chunks have not ended.
    pub(crate) remaining: usize,
    pub(crate) done: bool,
    /// Whether waits for it were ended by an error of the card, though it has not ended.
    pub(crate) forsaken: bool,
    pub(crate) error: Option<Errno>,
    pub(crate) role: Role,
    /// Whether the time of its end is told.
    pub(crate) timestamp: bool,
    pub(crate) ended: u64,
    /// Seconds that it may take.
    pub(crate) timeout: u64,
    pub(crate) skip_reset: bool,
    /// Its number among all of the card, and whether it has begun.
    pub(crate) number: u64,
    pub(crate) started: bool,
}

/// What is remembered of a submission that is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) error: Option<Errno>,
    pub(crate) ended: u64,
}

/// What a chunk has a queue do.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    /// Commands that were copied.
    Copied(Arc<[u8]>),
    /// Commands at a device address.
    Address { address: u64, length: u32 },
    /// Nothing: its end is the signal.
    Signal,
    /// Nothing, once this submission has ended.
    Wait { sequence: u64 },
}

/// A chunk in a queue.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) sequence: u64,
    pub(crate) body: Body,
}

/// A hardware queue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) items: VecDeque<Item>,
    /// Whether the first item is under way, and has left `items`.
    pub(crate) running: bool,
    /// Whether the first item will never end.
    pub(crate) stuck: bool,
    /// The two sync objects that its signals take turns with: how often each was signalled.
    pub(crate) objects: [u32; 2],
    /// Which one is used now.
    pub(crate) object: usize,
}

/// A dma-buf that was made.
#[derive(Debug)]
pub(crate) struct Export {
    pub(crate) file: Arc<OwnedFd>,
    /// The mapping that it was made of.
    pub(crate) address: Option<u64>,
}

/// Everything of one open file.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) id: u64,
    pub(crate) live: Arc<Live>,
    /// All device memory, where it has no handles.
    pub(crate) dram: Option<Arc<OwnedFd>>,
    pub(crate) memory: HashMap<u64, DeviceMemory>,
    pub(crate) buffers: HashMap<u64, CommandBuffer>,
    pub(crate) next_handle: u64,
    pub(crate) allocated: u64,
    pub(crate) submissions: BTreeMap<u64, Submission>,
    pub(crate) outcomes: BTreeMap<u64, Outcome>,
    pub(crate) next_sequence: u64,
    /// No submission before this one is still to end.
    pub(crate) unended: u64,
    pub(crate) queues: BTreeMap<u32, Queue>,
    pub(crate) exports: Vec<Export>,
    pub(crate) notify: Option<OwnedFd>,
    pub(crate) events: u64,
    pub(crate) timeout: Option<TimeoutEvent>,
    pub(crate) page_fault: Option<PageFault>,
    /// When an operation that does not exist was met, and on which queue.
    pub(crate) undefined: Option<(u64, u32)>,
    /// The oldest submission, and when it is too late for it.
    pub(crate) oldest: Option<(u64, Instant)>,
    /// Whether a reset has taken everything from it.
    pub(crate) killed: bool,
}

impl Context {
    pub(crate) fn new(id: u64, space: Space, dram: Option<Arc<OwnedFd>>) -> Self {
        Self {
            id,
            live: Arc::new(Live { space: RwLock::new(space), abort: Arc::default() }),
            dram,
            memory: HashMap::new(),
            buffers: HashMap::new(),
            next_handle: 1,
            allocated: 0,
            submissions: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            next_sequence: 1,
            unended: 1,
            queues: BTreeMap::new(),
            exports: Vec::new(),
            notify: None,
            events: 0,
            timeout: None,
            page_fault: None,
            undefined: None,
            oldest: None,
            killed: false,
        }
    }

    /// Tells the program that something has happened.
    pub(crate) fn notify(&mut self, events: u64) {
        self.events |= events;
        if let Some(file) = &self.notify {
            // A counter that is full has been told.
            let _ = rustix::io::write(file, &1_u64.to_ne_bytes());
        }
    }

    /// Whether some work has not ended.
    pub(crate) fn is_busy(&self) -> bool {
        self.submissions.values().any(|cs| !cs.done)
            || self.queues.values().any(|queue| queue.running || queue.stuck || !queue.items.is_empty())
    }

    /// How many things a program has not given back.
    pub(crate) fn held(&self) -> u64 {
        (self.memory.len() + self.buffers.len() + self.live.space.read().mapped()) as u64
    }

    /// The oldest submission that has not ended.
    pub(crate) fn oldest_unended(&mut self) -> Option<(u64, &Submission)> {
        while self.unended < self.next_sequence {
            if self.submissions.get(&self.unended).is_some_and(|cs| !cs.done) {
                break;
            }
            self.unended += 1;
        }
        self.submissions.get(&self.unended).map(|cs| (self.unended, cs))
    }

    /// Whether a submission has left the window in which its outcome is known.
    pub(crate) fn is_gone(&self, sequence: u64, window: u64) -> bool {
        sequence.saturating_add(window) < self.next_sequence
    }

    /// Whether everything that a queue's first item waits for is there.
    fn may_run(&self, queue: &Queue) -> bool {
        if queue.running || queue.stuck {
            return false;
        }
        match queue.items.front() {
            None => false,
            Some(Item { body: Body::Wait { sequence }, .. }) => {
                self.submissions.get(sequence).is_none_or(|cs| cs.done)
            }
            Some(_) => true,
        }
    }

    /// Whether a queue has something that can begin.
    pub(crate) fn is_runnable(&self, number: u32) -> bool {
        self.queues.get(&number).is_some_and(|queue| self.may_run(queue))
    }

    /// The queues that begin with a wait which has come true.
    pub(crate) fn released(&self) -> Vec<u32> {
        let waits = |queue: &Queue| matches!(queue.items.front(), Some(Item { body: Body::Wait { .. }, .. }));
        let ready = self.queues.iter().filter(|(_, queue)| waits(queue) && self.may_run(queue));
        ready.map(|(&number, _)| number).collect()
    }

    /// Forgets what has left the window. Of submissions whose time is told, the outcome is kept for a while longer.
    pub(crate) fn forget(&mut self, hardware: &Hardware) {
        /// How many outcomes are kept.
        const KEPT: usize = 256;
        while let Some(entry) = self.submissions.first_entry() {
            let sequence = *entry.key();
            if !entry.get().done || sequence.saturating_add(hardware.window) >= self.next_sequence {
                break;
            }
            let cs = entry.remove();
            if cs.timestamp {
                self.outcomes.insert(sequence, Outcome { error: cs.error, ended: cs.ended });
                if self.outcomes.len() > KEPT {
                    self.outcomes.pop_first();
                }
            }
        }
    }
}
