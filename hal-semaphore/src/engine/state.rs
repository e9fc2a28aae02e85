//! What the engine's one lock protects: operations, timelines' slots, queues and devices.
//!
//! # An operation
//!
//! ```text
//!            submit                     last wait reached or covered
//!              │                                    │
//!              ▼                                    ▼
//!            Held ────────────────────────────► Ordered ───────────► Issued ──────────► ended
//!              │  Host actions: all reached         │   backend took it    retired in queue order
//!              ├──────────────► Running ──────────────────────────────────────────────► ended
//!              │                                    │        HostTask::finish
//!              ├─► Running ──► Held: done ahead, and a barrier from here on; or not, and a Host action
//!              ├────────────────────────────────────┴─────────────────────────────────► ended
//!              │         a wait failed · cancelled · device lost · shut down
//!              └── barrier whose waits are all reached ───────────────────────────────► ended
//! ```
//!
//! *Ended* is not a state but the removal of the record ([`Core::end`](super::Core)), which is why it happens once.
//!
//! # A timepoint
//!
//! ```text
//!   registered ──value reached──────────────────────► released
//!       │      ──an earlier op of the same queue ───► covered ──value reached──► forgotten
//!       │        was ordered, or one of a queue that     │
//!       │        can be waited for natively was issued   └──timeline failed──► its operation fails
//!       └──────timeline failed──► its operation, wait or callback fails
//! ```
//!
//! Timepoints are not objects of their own: they are [`Target`]s in the ordered lists of a [`Slot`], one list for
//! each queue that waits (what can be covered for one queue cannot for another) and one for everything that only the
//! host can release. That is what keeps a signal from looking at anything it does not release (rule S7).

use super::room::Room;
use crate::backend::{Backend, Completion, Ended, Item, NativeWait, NativeWaits, Transition};
use crate::failure::Failure;
use crate::ids::{Point, QueueId};
use crate::native_event::{EventIndex, EventPool};
use crate::notification::{NotificationPool, Pending};
use crate::port::Callback;
use crate::sabotage::{Defect, sabotaged};
use crate::slab::{Key, Slab};
use crate::timeline::Timeline;
use crate::wait_list::WaitList;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

pub(super) type Watch<B> = <<B as Backend>::Timeline as Timeline>::Watch;

/// The list of a slot for what only reaching the value releases.
pub(super) const HOST: u32 = u32::MAX;

/// Instead of a queue's number: the wait was reached, nobody needs to be waited for.
pub(super) const NOBODY: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpState {
    /// Some wait is neither reached nor covered.
    Held,
    /// It has its place in its queue; the backend has not seen it.
    Ordered,
    /// It was handed to the backend, or rides along with something that was.
    Issued,
    /// The host is at it.
    Running,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Runs in its queue.
    Queue,
    /// Runs on the host.
    Host,
    /// Runs on the host, perhaps before its waits are reached.
    Ahead,
    /// Has its place in its queue, where the device has nothing to do.
    Edge,
    /// Does not run: waits, then signals.
    Barrier,
}

/// A wait of an operation that was not reached when it was submitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitRecord {
    pub(super) slot: Key,
    pub(super) value: u64,
    /// The queue whose work reaches the value, once the operation is issued; [`NOBODY`] where it is reached.
    pub(super) via: u32,
    /// The native event of that queue's device that the operation holds.
    pub(super) event: Option<EventIndex>,
}

pub(super) struct SignalRecord<T> {
    pub(super) timeline: T,
    pub(super) value: u64,
    /// Nothing for a foreign timeline.
    pub(super) slot: Option<Key>,
}

pub(super) struct Op<B: Backend> {
    pub(super) state: OpState,
    pub(super) lane: Lane,
    pub(super) queue: u32,
    /// Waits that are neither reached nor covered.
    pub(super) remaining: u32,
    pub(super) epoch: u64,
    /// The event that it records, held until it retires.
    pub(super) event: Option<EventIndex>,
    /// Set when it is to end without running.
    pub(super) doom: Option<Failure>,
    pub(super) waits: SmallVec<[WaitRecord; 2]>,
    pub(super) signals: SmallVec<[SignalRecord<B::Timeline>; 1]>,
    pub(super) work: Option<B::Work>,
}

/// What a timepoint releases.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// One wait of a held operation.
    Op(Key),
    /// A covered wait of an operation that was held when it was covered: only a failure matters to it.
    Covered(Key),
    /// One timeline of a host wait.
    Wait { wait: Key, index: u32 },
    /// A callback.
    Callback(Key),
    /// A queue whose oldest operation has ended on its device before what it waited for has retired here.
    Gate(u32),
}

/// Signals of one queue that have not retired: value and epoch, both growing.
pub(super) type UnderWay = VecDeque<(u64, u64)>;

/// The engine's side of one timeline.
pub(super) struct Slot<B: Backend> {
    /// The registration lives. A slot without one stands in for a foreign timeline, or its owner is gone.
    pub(super) owned: bool,
    pub(super) foreign: bool,
    /// The value that retired operations and the host have brought it to.
    pub(super) value: u64,
    pub(super) failure: Option<Failure>,
    /// How many records and timepoints name this slot.
    pub(super) users: u32,
    /// How many entries of the lists may belong to nobody any more.
    pub(super) stale: usize,
    /// Timepoints by waiting queue, and [`HOST`].
    pub(super) lists: SmallVec<[(u32, WaitList<Target>); 1]>,
    /// Signals under way by producing queue.
    pub(super) signals: SmallVec<[(u32, UnderWay); 1]>,
    pub(super) watch: Option<Watch<B>>,
}

impl<B: Backend> Slot<B> {
    pub(super) fn new() -> Self {
        Self {
            owned: false,
            foreign: false,
            value: 0,
            failure: None,
            users: 0,
            stale: 0,
            lists: SmallVec::new(),
            signals: SmallVec::new(),
            watch: None,
        }
    }

    /// Whether reaching or covering `value` releases anything in those lists.
    pub(super) fn releases(&self, value: u64, which: impl Fn(u32) -> bool) -> bool {
        self.lists.iter().any(|(waiting, list)| which(*waiting) && list.releases(value))
    }

    /// Ready for another timeline; the memory of its lists stays.
    pub(super) fn reset(&mut self) {
        self.owned = false;
        self.foreign = false;
        self.value = 0;
        self.failure = None;
        self.users = 0;
        self.stale = 0;
        for (_, list) in &mut self.lists {
            list.clear();
        }
        for (_, signals) in &mut self.signals {
            signals.clear();
        }
    }
}

/// How many empty lists a slot keeps for the next waits; more of them would only be in the way.
pub(super) const KEPT: usize = 2;

/// An operation that its queue's device has, or that rides along with one.
pub(super) struct InFlight {
    pub(super) op: Key,
    pub(super) epoch: u64,
    /// Whether the backend knows of it. A barrier behind earlier work of its queue rides along instead.
    pub(super) native: bool,
    /// What another queue waits for in order to wait for this: its own point, or for a barrier that rides along
    /// the one it follows.
    pub(super) cover: u64,
    pub(super) event: Option<EventIndex>,
    pub(super) failure: Option<Failure>,
}

impl InFlight {
    /// Whether the device is done with it, having completed so much of the queue.
    pub(super) fn has_ended(&self, completed: u64) -> bool {
        self.epoch <= completed || self.failure.is_some() || !self.native
    }
}

/// An operation taken off its queue to be retired.
pub(super) struct Retiring<W> {
    pub(super) op: Key,
    pub(super) point: Point,
    pub(super) native: bool,
    pub(super) work: Option<W>,
    pub(super) failure: Option<Failure>,
}

pub(super) struct Queue<B: Backend> {
    pub(super) id: QueueId,
    /// Ordered, not yet issued.
    pub(super) ready: VecDeque<Key>,
    pub(super) in_flight: VecDeque<InFlight>,
    /// The last epoch given out.
    pub(super) ordered: u64,
    /// The last epoch that the backend was shown.
    pub(super) shown: u64,
    /// The last epoch whose submission has returned.
    pub(super) issued: u64,
    /// The last epoch that the backend has reported.
    pub(super) completed: u64,
    /// The last epoch that has ended here.
    pub(super) retired: u64,
    /// For each queue of the engine, the latest epoch that this one waits for natively.
    pub(super) known: Box<[u64]>,
    /// Which queues of the engine this one can wait for natively.
    pub(super) reach: Box<[bool]>,
    /// Whether any other queue can wait for this one, so that coverage is worth telling and events worth recording.
    pub(super) watched: bool,
    /// Operations that name this queue and have not ended.
    pub(super) load: usize,
    pub(super) issuing: bool,
    pub(super) retiring: bool,
    pub(super) gated: bool,
    pub(super) room: Room,
    pub(super) in_dirty: bool,
    pub(super) in_issuable: bool,
    pub(super) scratch: Scratch<B>,
    pub(super) collected: Vec<Retiring<B::Work>>,
}

/// The buffers of one submission, reused for the next.
pub(super) struct Scratch<B: Backend> {
    pub(super) items: Vec<Item<B>>,
    pub(super) waits: Vec<NativeWait<B::Event>>,
}

impl<B: Backend> Default for Scratch<B> {
    fn default() -> Self {
        Self { items: Vec::new(), waits: Vec::new() }
    }
}

impl<B: Backend> Queue<B> {
    pub(super) fn in_flight_at(&self, epoch: u64) -> Option<&InFlight> {
        let first = self.in_flight.front()?.epoch;
        let guess = usize::try_from(epoch.checked_sub(first)?).ok()?;
        match self.in_flight.get(guess) {
            Some(entry) if entry.epoch == epoch => Some(entry),
            _ => {
                let at = self.in_flight.partition_point(|entry| entry.epoch < epoch);
                self.in_flight.get(at).filter(|entry| entry.epoch == epoch)
            }
        }
    }

    /// Whether the oldest operation in flight has ended, as far as the queue itself can tell.
    pub(super) fn is_due(&self) -> bool {
        self.in_flight.front().is_some_and(|entry| entry.has_ended(self.completed))
    }

    pub(super) fn point(&self, epoch: u64) -> Point {
        Point { queue: self.id, epoch }
    }
}

pub(super) struct Device<B: Backend> {
    pub(super) first_queue: u32,
    pub(super) queues: u32,
    pub(super) native_waits: NativeWaits,
    pub(super) completion: Completion,
    pub(super) lost: Option<Failure>,
    pub(super) events: EventPool<B::Event>,
    /// The backend could not make an event: from now on none are recorded, and waits across queues are held.
    pub(super) events_exhausted: bool,
    /// Grows with each report, so that "full" can be told from "was full".
    pub(super) reports: u64,
    /// Operations that the backend has and has not reported.
    pub(super) outstanding: usize,
    pub(super) any_full: bool,
}

pub(super) enum HostOutcome {
    Reached(usize),
    Failed(usize, Failure),
}

pub(super) struct HostWait {
    /// How many timelines are still to be reached; any one is enough when `any`.
    pub(super) remaining: usize,
    pub(super) any: bool,
    pub(super) pending: Pending,
    pub(super) outcome: Option<HostOutcome>,
    pub(super) slots: SmallVec<[Key; 4]>,
}

pub(super) struct CallbackRecord {
    pub(super) callback: Callback,
    pub(super) slot: Key,
}

pub(super) struct Publication<T> {
    pub(super) timeline: T,
    pub(super) state: Result<u64, Failure>,
    pub(super) by: Option<Point>,
    pub(super) foreign: bool,
}

impl<T: Timeline> Publication<T> {
    /// Whether both are values of one timeline.
    pub(super) fn merges(&self, other: &Self) -> bool {
        let key = self.timeline.key();
        self.state.is_ok() && other.state.is_ok() && key.is_some() && key == other.timeline.key()
    }
}

/// Something else to be done without the lock, once what was published before it is visible.
pub(super) enum Effect<B: Backend> {
    Observe(Transition),
    Wake(Pending),
    Call(Callback, Result<u64, Failure>),
    Run(Key, B::Work),
    Watch(B::Timeline, u64, Key),
    Unwatch(Watch<B>),
}

/// What is to be done without the lock, in this order.
pub(super) struct Effects<B: Backend> {
    pub(super) publications: Vec<Publication<B::Timeline>>,
    pub(super) others: Vec<Effect<B>>,
    pub(super) reclaims: Vec<Ended<B::Work>>,
    /// What the backend is asked to do ahead, and what it says to that.
    pub(super) ahead: Vec<Ahead<B>>,
}

/// An operation, its work, and whether the work is done ahead.
pub(super) struct Ahead<B: Backend> {
    pub(super) op: Key,
    pub(super) work: B::Work,
    pub(super) done: Result<bool, Failure>,
}

impl<B: Backend> Default for Effects<B> {
    fn default() -> Self {
        Self { publications: Vec::new(), others: Vec::new(), reclaims: Vec::new(), ahead: Vec::new() }
    }
}

impl<B: Backend> Effects<B> {
    pub(super) fn is_empty(&self) -> bool {
        self.publications.is_empty()
            && self.others.is_empty()
            && self.reclaims.is_empty()
            && self.ahead.is_empty()
    }

    pub(super) fn then(&mut self, effect: Effect<B>) {
        self.others.push(effect);
    }
}

/// Memory that wide operations and short-lived timelines leave behind for the next ones.
pub(super) struct Spare<B: Backend> {
    pub(super) waits: Vec<Vec<WaitRecord>>,
    pub(super) signals: Vec<Vec<SignalRecord<B::Timeline>>>,
    pub(super) slots: Vec<Slot<B>>,
    pub(super) lists: Vec<WaitList<Target>>,
    pub(super) under_way: Vec<UnderWay>,
}

impl<B: Backend> Default for Spare<B> {
    fn default() -> Self {
        Self {
            waits: Vec::new(),
            signals: Vec::new(),
            slots: Vec::new(),
            lists: Vec::new(),
            under_way: Vec::new(),
        }
    }
}

/// How many of each kind are kept.
pub(super) const SPARE: usize = 256;

/// Counts since the engine was made. All grow only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Operations accepted.
    pub submitted: u64,
    /// Operations that ended well.
    pub succeeded: u64,
    /// Operations that ended otherwise.
    pub failed: u64,
    /// Waits that were reached when their operation was submitted or issued.
    pub reached: u64,
    /// Waits that queue order took care of.
    pub same_queue: u64,
    /// Waits that an earlier native wait of the queue took care of.
    pub dominated: u64,
    /// Waits left to the device.
    pub native: u64,
    /// Waits left to the device for a point of another device.
    pub peer: u64,
    /// Waits that made their operation wait on the host for a while.
    pub held: u64,
    /// Barriers that ended without their device knowing.
    pub host_barriers: u64,
    /// Batches handed to the backend.
    pub batches: u64,
    /// Times that foreign code panicked.
    pub panics: u64,
}

/// It shares no cache line with the lock's word, which whoever waits for the lock looks at all the time: what did would be
/// slow to write.
#[repr(C, align(64))]
pub(super) struct Core<B: Backend> {
    pub(super) engine: u32,
    pub(super) closing: bool,
    pub(super) devices: Vec<Device<B>>,
    pub(super) notifications: NotificationPool,
    /// Who waits for the engine to come to rest.
    pub(super) resting: Vec<Pending>,
    /// Keeps a closing engine until its devices have reported everything.
    pub(super) keepalive: Option<Arc<dyn crate::port::Port>>,
    pub(super) host_waits: Slab<HostWait>,
    pub(super) callbacks: Slab<CallbackRecord>,
    pub(super) ops: Slab<Op<B>>,
    pub(super) slots: Slab<Slot<B>>,
    pub(super) queues: Vec<Queue<B>>,
    /// Operations with nothing left to wait for, and those that are doomed.
    pub(super) runnable: VecDeque<Key>,
    /// Queues whose oldest operation may have ended.
    pub(super) dirty: VecDeque<u32>,
    /// Queues that may have something to issue.
    pub(super) issuable: VecDeque<u32>,
    /// Threads inside the backend's `submit`.
    pub(super) issuers: usize,
    /// Whether some thread performs effects: one at a time, which keeps publications in order.
    pub(super) publishing: bool,
    pub(super) effects: Box<Effects<B>>,
    pub(super) spare_effects: Option<Box<Effects<B>>>,
    pub(super) stats: Stats,
    pub(super) running: usize,
    pub(super) spare: Spare<B>,
}

impl<B: Backend> Core<B> {
    pub(super) fn op(&mut self, key: Key) -> Option<&mut Op<B>> {
        self.ops.get_mut(key)
    }

    pub(super) fn queue(&mut self, index: u32) -> &mut Queue<B> {
        #[expect(
            clippy::indexing_slicing,
            reason = "queue numbers come from the engine itself and queues never go away"
        )]
        &mut self.queues[index as usize]
    }

    pub(super) fn queue_ref(&self, index: u32) -> &Queue<B> {
        #[expect(
            clippy::indexing_slicing,
            reason = "queue numbers come from the engine itself and queues never go away"
        )]
        &self.queues[index as usize]
    }

    pub(super) fn device_of(&mut self, queue: u32) -> &mut Device<B> {
        let device = self.queue(queue).id.device();
        #[expect(clippy::indexing_slicing, reason = "a queue's device exists")]
        &mut self.devices[device]
    }

    pub(super) fn mark_dirty(&mut self, index: u32) {
        let queue = self.queue(index);
        if !queue.in_dirty {
            queue.in_dirty = true;
            self.dirty.push_back(index);
        }
    }

    pub(super) fn mark_issuable(&mut self, index: u32) {
        let queue = self.queue(index);
        if !queue.in_issuable && !queue.issuing && !queue.room.is_full() {
            queue.in_issuable = true;
            self.issuable.push_back(index);
        }
    }

    /// Nothing is under way, and no thread is on its way out with a callback.
    pub(super) fn is_at_rest(&self) -> bool {
        let quiet = self.effects.is_empty() && !self.publishing && self.issuers == 0;
        self.ops.len() == 0 && (quiet || sabotaged(Defect::ShutdownForgetsCallbacks))
    }
}
