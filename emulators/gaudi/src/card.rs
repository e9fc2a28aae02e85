// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A card: its state, its queues, and the context of the program that has it open.
//!
//! # States
//!
//! ```text
//! Operational ──(error, with an eventfd)──▶ Operational, watchdog armed ──(30 s, or close)──┐
//!      │ └──(error, timeout, or a dirty close)──────────────────────────────────────────────▼
//!      │                                                                                 InReset ─▶ Operational
//!      ├──(clean close, second generation)──▶ Releasing ─(10 ms)─▶ Operational
//!      ├──(two fatal errors, or the file stays open)──▶ Malfunction, for ever
//!      └──(pulled out)──▶ Gone, for ever
//! ```
//!
//! A reset ends every submission with an error and wakes every waiter at once. It continues when no process has
//! the file any more, descriptors, mappings and dma-bufs included. A process that still has it after a second
//! is killed. A card whose file is held for ten more minutes, by a process that was not killed, stays unusable.
//! The reset ends when the hardware has had its time and no worker uses the old context. rule(reset-waits)
//!
//! Everything here is behind the machine's one lock.

use crate::arbiter::ArbiterRequest;
use crate::hardware::Hardware;
use crate::opener::Opener;
use crate::space::Space;
use crate::sync::{Sync, WaitCondition};
use emulator_core::Errno;
use emulator_core::claim::Claim;
use emulator_core::complaints::Complaints;
use emulator_core::injection::Injections;
use hal_backend::{HostRange, TimeLimit};
use hal_gaudi_abi::uapi::{PageFault, TimeoutEvent};
use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// The counts of a card since its machine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Whole resets: after errors, and after a close with work in flight. A correct program causes none.
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
    /// Programs that the kernel kills: they still had the card open a second after a reset began. The emulator
    /// kills another process than its own. A correct program causes none.
    pub kills: u64,
}

/// The state of a card, as in the module's picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Operational,
    InReset,
    Releasing,
    Malfunction,
    Gone,
}

/// Errors since the card was opened last: the first of each kind. rule(errors-captured)
#[derive(Clone, Debug, Default)]
pub(crate) struct CapturedErrors {
    pub(crate) timeout: Option<TimeoutEvent>,
    pub(crate) page_fault: Option<PageFault>,
    /// The mappings at that time: address and length.
    pub(crate) mappings: Vec<(u64, u64)>,
    /// The time of an unknown operation, and its queue.
    pub(crate) undefined: Option<(u64, u32)>,
    /// The time of an engine's error, and the engine.
    pub(crate) engine: Option<(u64, u16)>,
}

/// Why submissions were refused, and how often. rule(cs-counters)
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RefusalCounts {
    pub(crate) memory: u64,
    pub(crate) parsing: u64,
    pub(crate) full: u64,
    pub(crate) in_reset: u64,
    pub(crate) in_flight: u64,
    pub(crate) validation: u64,
}

/// One card.
#[derive(Debug)]
pub(crate) struct Card {
    pub(crate) status: Status,
    /// The end of the current reset or release.
    pub(crate) until: Option<Instant>,
    /// The time at which the card is reset unless the file is closed before.
    pub(crate) watchdog: Option<Instant>,
    /// The next time at which a reset checks for holders of the file, and how often it has.
    pub(crate) next_check: Option<Instant>,
    pub(crate) checks: u32,
    /// When the emulator looks again whether dma-bufs still hold a file that was closed.
    pub(crate) next_release: Option<Instant>,
    pub(crate) injections: Injections,
    pub(crate) counts: Counts,
    /// How many whole resets have ended.
    pub(crate) resets: u32,
    /// The descriptor that has it open, and the process that opened it.
    pub(crate) owner: Option<emulator_core::file::Identity>,
    pub(crate) opener: Opener,
    pub(crate) context: Option<Context>,
    /// The lock that other processes see, while it is open.
    pub(crate) claim: Option<Claim>,
    /// How many workers use the context.
    pub(crate) running: usize,
    pub(crate) opened: Instant,
    /// The time of the last open, on the clock of events.
    pub(crate) opened_at: u64,
    pub(crate) last_period: u64,
    /// How many waits for the first of several are going on.
    pub(crate) multi_waits: usize,
    /// True if no descriptor and no mapping is left; dma-bufs may still hold the file.
    pub(crate) closed: bool,
    /// True if the file is being released while workers still use its context.
    pub(crate) releasing: bool,
    /// True if a reset belongs to the close of the last file, which a kernel ends before the call returns.
    pub(crate) closing: bool,
    /// True if the program that has it open has switched its debugging on.
    pub(crate) debugging: bool,
    /// The address of the word that who debugs the card reads and writes. rule(debugfs)
    pub(crate) debug_address: u64,
    pub(crate) sync: Sync,
    pub(crate) errors: CapturedErrors,
    pub(crate) drops: RefusalCounts,
    /// How often the firmware reported each of its events: since the last reset, and ever.
    pub(crate) events: BTreeMap<u16, [u32; 2]>,
    pub(crate) complaints: Complaints,
}

impl Card {
    pub(crate) fn new(number: usize, injections: Injections) -> Self {
        Self {
            status: Status::Operational,
            until: None,
            watchdog: None,
            next_check: None,
            next_release: None,
            checks: 0,
            injections,
            counts: Counts::default(),
            resets: 0,
            owner: None,
            opener: Opener::default(),
            context: None,
            claim: None,
            running: 0,
            opened: Instant::now(),
            opened_at: 0,
            last_period: 0,
            multi_waits: 0,
            closed: false,
            releasing: false,
            closing: false,
            debugging: false,
            debug_address: 0,
            sync: Sync::default(),
            errors: CapturedErrors::default(),
            drops: RefusalCounts::default(),
            events: BTreeMap::new(),
            complaints: Complaints::new(number, include_str!("../rules.md")),
        }
    }

    /// Checks whether the card's state allows work and memory requests.
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

/// The part of a context that a worker needs, also after the context is gone.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) space: RwLock<Space>,
    /// Set to abort the work in flight.
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

/// A buffer of the kernel that a program maps.
#[derive(Debug)]
pub(crate) struct Buffer {
    /// The length as requested, and at least a page.
    pub(crate) size: u64,
    /// Whole pages.
    pub(crate) range: HostRange,
    pub(crate) kind: BufferKind,
    /// True if the process has it mapped.
    pub(crate) seen: Arc<AtomicBool>,
    /// True if the program has released its handle. The buffer stays valid while the process has it mapped.
    pub(crate) destroyed: bool,
}

/// The use of a kernel buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferKind {
    /// Commands, and their device address if they are mapped.
    Commands(Option<u64>),
    /// Times, eight bytes each.
    Times,
}

/// The part of a submission beside its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Work,
    /// A signal sets one of the two objects of a queue to this value.
    Signal(SyncValue),
    Wait,
}

/// A value of one of the two sync objects of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SyncValue {
    pub(crate) queue: u32,
    pub(crate) which: usize,
    pub(crate) value: u32,
}

/// The position among submissions that end together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stage {
    /// The number of the first one.
    pub(crate) first: u64,
    pub(crate) last: bool,
}

/// A submission.
#[derive(Debug)]
pub(crate) struct CommandSubmission {
    /// How many of its reporting chunks have not ended.
    pub(crate) remaining: usize,
    /// The queue of each chunk.
    pub(crate) queues: Vec<u32>,
    pub(crate) done: bool,
    /// True if an error of the card ended the waits for it, though it has not ended.
    pub(crate) waits_failed: bool,
    pub(crate) error: Option<Errno>,
    pub(crate) role: Role,
    /// The sync objects that it uses until it has ended.
    pub(crate) needs: Vec<(u32, usize)>,
    /// The signal reservation that it fulfils or waits for.
    pub(crate) reservation: Option<u32>,
    pub(crate) stage: Option<Stage>,
    /// True if the time of its end is reported.
    pub(crate) timestamp: bool,
    pub(crate) ended: u64,
    /// Its timeout in seconds.
    pub(crate) timeout: u64,
    pub(crate) skip_reset: bool,
    /// Its number among all submissions of the card, and whether it has begun.
    pub(crate) number: u64,
    pub(crate) started: bool,
}

impl CommandSubmission {
    /// True if its timeout is watched: of submissions that end together, the first one's is.
    pub(crate) fn is_watched(&self, sequence: u64) -> bool {
        self.stage.is_none_or(|stage| stage.first == sequence)
    }
}

/// The outcome of a submission that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubmissionOutcome {
    pub(crate) error: Option<Errno>,
    pub(crate) ended: u64,
}

/// Signals that a program's packets will make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    pub(crate) queue: u32,
    pub(crate) which: usize,
    /// The object's value before them.
    pub(crate) before: u32,
    pub(crate) count: u32,
    /// The submission that makes them, if there is one.
    pub(crate) sequence: Option<u64>,
    /// How many submissions use it, and its handle.
    pub(crate) needed: u32,
}

/// A command of a chunk to its queue.
#[derive(Clone, Debug)]
pub(crate) enum ChunkCommand {
    /// Commands that were copied.
    Copied(Arc<[u8]>),
    /// Commands at a device address.
    Address { address: u64, length: u32 },
    /// Adds one to a sync object of the driver's.
    Signal { object: u32 },
    /// Waits until a sync object of the driver's reaches a value.
    Wait { object: u32, value: u32 },
}

/// Commands at a device address that other commands execute, and the position in those.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nested {
    pub(crate) address: u64,
    pub(crate) length: u32,
    /// The processor of the queue that executes them.
    pub(crate) upper: bool,
    pub(crate) at: u64,
}

/// The position in the commands of an item, and in those that they execute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) at: u64,
    pub(crate) nested: Vec<Nested>,
}

/// A chunk in a queue.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) sequence: u64,
    pub(crate) body: ChunkCommand,
    /// The position at which it continues.
    pub(crate) from: Position,
    /// True if its submission ends only after it.
    pub(crate) reports_end: bool,
}

/// A hardware queue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) items: VecDeque<Item>,
    /// True if the first item is being executed, and has left `items`.
    pub(crate) running: bool,
    /// True if the first item never ends.
    pub(crate) stuck: bool,
    /// The condition of the first item.
    pub(crate) hold: Option<WaitCondition>,
    /// How many places of the queue belong to submissions that have not ended.
    pub(crate) taken: usize,
}

/// A dma-buf that was made.
#[derive(Debug)]
pub(crate) struct Export {
    pub(crate) file: Arc<OwnedFd>,
    /// The mapping that it exports.
    pub(crate) address: Option<u64>,
}

/// A time to write when a counter reaches a value. rule(timestamp-registration)
#[derive(Debug)]
pub(crate) struct Alarm {
    pub(crate) interrupt: u16,
    /// The buffer and the offset for the time.
    pub(crate) times: (u64, u64),
    /// The buffer and the offset of the counter.
    pub(crate) counter: (u64, u64),
    pub(crate) target: u64,
}

/// The state of one open file.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) id: u64,
    pub(crate) live: Arc<Live>,
    /// All device memory, on a generation without handles.
    pub(crate) dram: Option<Arc<OwnedFd>>,
    pub(crate) memory: HashMap<u64, DeviceMemory>,
    /// Buffers by the number of their handle.
    pub(crate) buffers: HashMap<u64, Buffer>,
    /// Those whose handle the program has released.
    pub(crate) destroyed: BTreeSet<u64>,
    pub(crate) next_handle: u64,
    pub(crate) allocated: u64,
    pub(crate) submissions: BTreeMap<u64, CommandSubmission>,
    /// The outcomes of submissions that report their time, in the order of their ends. rule(outcome-store)
    pub(crate) outcomes: VecDeque<(u64, SubmissionOutcome)>,
    pub(crate) reservations: BTreeMap<u32, Reservation>,
    /// How often each interrupt came.
    pub(crate) interrupts: BTreeMap<u16, u64>,
    /// Times to write when interrupts come.
    pub(crate) alarms: Vec<Alarm>,
    /// Blocks of registers that the process has mapped.
    pub(crate) blocks: BTreeMap<u64, HostRange>,
    pub(crate) next_sequence: u64,
    /// Every submission before this one has ended.
    pub(crate) unended: u64,
    pub(crate) queues: BTreeMap<u32, Queue>,
    pub(crate) exports: Vec<Export>,
    pub(crate) notify: Option<OwnedFd>,
    pub(crate) events: u64,
    /// The submission whose timeout is watched, and its time; none, if it may run longer.
    pub(crate) oldest: Option<(u64, Option<TimeLimit>)>,
    /// How many host programs run. Their time is this machine's: no submission's timeout passes.
    pub(crate) computing: usize,
    pub(crate) drops: RefusalCounts,
    /// True if an error of the card ended waits for interrupts.
    pub(crate) interrupted: bool,
    /// True if a reset has emptied it.
    pub(crate) lost: bool,
}

impl Context {
    pub(crate) fn new(id: u64, space: Space, dram: Option<Arc<OwnedFd>>) -> Self {
        Self {
            id,
            live: Arc::new(Live { space: RwLock::new(space), abort: Arc::default() }),
            dram,
            memory: HashMap::new(),
            buffers: HashMap::new(),
            destroyed: BTreeSet::new(),
            next_handle: 1,
            allocated: 0,
            submissions: BTreeMap::new(),
            outcomes: VecDeque::new(),
            reservations: BTreeMap::new(),
            interrupts: BTreeMap::new(),
            alarms: Vec::new(),
            blocks: BTreeMap::new(),
            next_sequence: 1,
            unended: 1,
            queues: BTreeMap::new(),
            exports: Vec::new(),
            notify: None,
            events: 0,
            oldest: None,
            computing: 0,
            drops: RefusalCounts::default(),
            interrupted: false,
            lost: false,
        }
    }

    /// The buffer of a handle, of which only the number counts.
    pub(crate) fn buffer(&self, handle: u64) -> Option<&Buffer> {
        self.buffers.get(&(handle >> 12 & 0xFFFF_FFFF))
    }

    /// Notifies the program of an event.
    pub(crate) fn notify(&mut self, events: u64) {
        self.events |= events;
        if let Some(file) = &self.notify {
            // A counter that is full has notified already.
            let _ = rustix::io::write(file, &1_u64.to_ne_bytes());
        }
    }

    /// True if some work has not ended.
    pub(crate) fn is_busy(&self) -> bool {
        self.submissions.values().any(|cs| !cs.done)
            || self.queues.values().any(|queue| queue.running || queue.stuck || !queue.items.is_empty())
    }

    /// How many handles and mappings a program has not released.
    pub(crate) fn held(&self) -> u64 {
        (self.memory.len() + self.buffers.len() + self.live.space.read().mapped()) as u64
    }

    /// The submission whose timeout passes, and its time.
    pub(crate) fn watched(&mut self) -> Option<(u64, &mut TimeLimit)> {
        let (sequence, limit) = self.oldest.as_mut().filter(|_| self.computing == 0)?;
        Some((*sequence, limit.as_mut()?))
    }

    /// When to look at its time.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        let (_, limit) = self.oldest.filter(|_| self.computing == 0)?;
        Some(limit?.next_look())
    }

    /// A host program begins.
    pub(crate) fn begin_program(&mut self) {
        if let Some((_, limit)) = self.watched() {
            limit.look(Instant::now());
        }
        self.computing += 1;
    }

    /// A host program has ended.
    pub(crate) fn end_program(&mut self) {
        self.computing = self.computing.saturating_sub(1);
        if let Some((_, limit)) = self.watched() {
            limit.skip(Instant::now());
        }
    }

    /// The oldest submission that has not ended and whose timeout is watched.
    pub(crate) fn oldest_unended(&mut self) -> Option<(u64, &CommandSubmission)> {
        while self.unended < self.next_sequence {
            let watched = |cs: &CommandSubmission| !cs.done && cs.is_watched(self.unended);
            if self.submissions.get(&self.unended).is_some_and(watched) {
                break;
            }
            self.unended += 1;
        }
        self.submissions.get(&self.unended).map(|cs| (self.unended, cs))
    }

    /// True if a submission has left the window in which its outcome is known.
    pub(crate) fn is_gone(&self, sequence: u64, window: u64) -> bool {
        sequence.saturating_add(window) < self.next_sequence
    }

    /// True if every condition of a queue's first item is satisfied.
    fn may_run(queue: &Queue, sync: &Sync) -> bool {
        if queue.running || queue.stuck || queue.hold.is_some_and(|hold| !sync.is_open(hold)) {
            return false;
        }
        match queue.items.front() {
            None => false,
            Some(&Item { body: ChunkCommand::Wait { object, value }, .. }) => sync.object(object) >= value,
            Some(_) => true,
        }
    }

    /// The other queues of an engine that have work, and are not waiting for a grant.
    pub(crate) fn others_at_work(&self, turn: ArbiterRequest, sync: &Sync) -> Vec<u32> {
        let others =
            self.queues.range(turn.engine..turn.engine + 4).filter(|&(&queue, _)| queue != turn.queue);
        others.filter(|(_, queue)| Self::is_at_work(queue, sync)).map(|(&queue, _)| queue).collect()
    }

    /// True if a queue may still ask for its engine before it waits for anything else.
    fn is_at_work(queue: &Queue, sync: &Sync) -> bool {
        queue.running || !matches!(queue.hold, Some(WaitCondition::Grant(_))) && Self::may_run(queue, sync)
    }

    /// True if a queue has reached its end, or waits.
    pub(crate) fn rests(&self, number: u32, sync: &Sync) -> bool {
        self.queues.get(&number).is_none_or(|queue| !Self::is_at_work(queue, sync))
    }

    /// True if a queue has an item that can begin or continue.
    pub(crate) fn is_runnable(&self, number: u32, sync: &Sync) -> bool {
        self.queues.get(&number).is_some_and(|queue| Self::may_run(queue, sync))
    }

    /// The queues whose first item has waited for a condition that is now satisfied.
    pub(crate) fn released(&self, sync: &Sync) -> Vec<u32> {
        let waits = |queue: &Queue| {
            let first = queue.items.front();
            queue.hold.is_some() || matches!(first, Some(Item { body: ChunkCommand::Wait { .. }, .. }))
        };
        let ready = self.queues.iter().filter(|(_, queue)| waits(queue) && Self::may_run(queue, sync));
        ready.map(|(&number, _)| number).collect()
    }

    /// Ends a submission: records its outcome, and frees its places in queues.
    pub(crate) fn end(&mut self, sequence: u64, at: u64) {
        /// How many outcomes are kept.
        const KEPT: usize = 256;
        let Some(cs) = self.submissions.get_mut(&sequence).filter(|cs| !cs.done) else { return };
        cs.done = true;
        cs.ended = at;
        let queues = std::mem::take(&mut cs.queues);
        if cs.timestamp {
            self.outcomes.push_back((sequence, SubmissionOutcome { error: cs.error, ended: at }));
            if self.outcomes.len() > KEPT {
                self.outcomes.pop_front();
            }
        }
        for queue in queues {
            if let Some(queue) = self.queues.get_mut(&queue) {
                queue.taken = queue.taken.saturating_sub(1);
            }
        }
    }

    /// Removes outcomes that have left the window.
    pub(crate) fn forget(&mut self, hardware: &Hardware) {
        while let Some(entry) = self.submissions.first_entry() {
            let gone = entry.key().saturating_add(hardware.window) < self.next_sequence;
            if !entry.get().done || !gone {
                break;
            }
            entry.remove();
        }
    }
}
