// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A queue, and the state that its lock protects: all operations of the queue, of every kind, that have not
//! ended.
//!
//! # The states of an operation
//!
//! ```text
//!            submit              last wait reached or satisfied by order
//!              │                            │
//!              ▼                            ▼
//!           Pending ────────────────────► Queued ─────────► Submitted ─────► ended
//!              │                            │   in a batch     │   retired in queue order
//!              │                            │                  └── a device was full: Queued again
//!              ├─► Running ─────────────────┼──────────────────────────────► ended
//!              │     Host actions: all waits reached; until HostTask::finish
//!              ├─► Running ─► Pending       │
//!              │     Early actions: done, and a barrier from here on; or not done, and a Host action
//!              ├────────────────────────────┴──────────────────────────────► ended
//!              │     a wait failed · device lost · shut down (a Cleanup by way of Running)
//!              └───────────────────────────────────────────────────────────► ended
//!                    barriers: all waits reached
//! ```
//!
//! An operation whose queue is idle goes from `Pending` to `Submitted` [at once](super::fast_path). *Ended* is
//! no state: [`QueueGuard::end`] removes the record, so it happens once.
//!
//! # The states of a wait
//!
//! ```text
//!   registered ── value reached ──────────────────────────► released
//!       │      ── its producer was queued in this queue, ─► satisfied by order ── value reached ──► forgotten
//!       │         or submitted to a queue that this one          │
//!       │         can wait for natively                          └── timeline failed ──► its operation fails
//!       └──────── timeline failed ──► its operation, host wait or callback fails
//! ```
//!
//! A timepoint is no object of its own, but a [`Target`](super::timeline_state::Target) in an ordered list of a
//! [`TimelineState`]. Each waiting queue has a list there, because order that satisfies a wait of one queue
//! does not satisfy one of another; and the host has one. So a signal looks at nothing that it does not release
//! (rule S7).
//!
//! # The lock
//!
//! The module [`engine`](super) has the locking protocol. A thread that finds the lock taken counts itself in
//! `waiting_threads`, so that the thread that works for the queue can leave the rest to it: no thread is kept
//! for the work of others.

use super::deferred_work::{DeferredWork, Dependency, is_nested, is_submitting};
use super::flow_window::FlowWindow;
use super::outbox::PendingDeliveries;
use super::timeline_state::TimelineState;
use super::{Counts, Device, Shared};
use crate::backend::{Backend, BatchItem, Ended, NativeWait};
use crate::engine_events::KeepAlive;
use crate::failure::Failure;
use crate::ids::{Point, QueueId};
use crate::native_event::{EventIndex, EventPool};
use crate::slab::{Key, Slab};
use crate::sync::{AtomicU64, FairMutex, Guard, Mutex, Ordering};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

#[cfg(all(test, not(any(loom, shuttle))))]
mod arrivals;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpState {
    /// Some wait is neither reached nor satisfied by order, or the operation was not routed yet. An operation
    /// that was dequeued to be ended is pending as well, and keeps its epoch.
    Pending,
    /// It has its epoch in its queue. The backend has not seen it.
    Queued,
    /// In flight: the backend has its batch, or it is coalesced with such work. The submission has returned if
    /// its epoch is at most [`QueueState::submitted`].
    Submitted,
    /// The host runs it.
    Running,
}

/// The kind of an operation; see [`Action`](super::Action).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ActionKind {
    Queue,
    Host,
    Early,
    Marker,
    Barrier,
}

/// A wait that was not reached when its operation was submitted.
///
/// # Invariants
///
/// The operation counts exactly the waits in the states `InQueueList` and `InHostList` in
/// [`remaining`](Op::remaining). The event of a dependency is retained for the wait until [`QueueGuard::end`]
/// releases it.
#[derive(Clone, Debug)]
pub(super) struct WaitRecord {
    pub(super) timeline: Arc<TimelineState>,
    pub(super) value: u64,
    pub(super) state: WaitState,
    /// The number of its entry in the host's list, while it waits for a failure.
    pub(super) failure_entry: Option<u32>,
}

/// How a wait is going to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitState {
    /// Blocked; the list of the operation's queue has it under this number. A promise may satisfy it by order.
    InQueueList(u32),
    /// Blocked; the host's list has it under this number. Only the value releases it.
    InHostList(u32),
    /// Satisfied by order.
    Dependency(Dependency),
    /// The value is reached.
    Reached,
}

impl WaitRecord {
    /// The work that satisfies it by order.
    pub(super) fn dependency(&self) -> Option<Dependency> {
        if let WaitState::Dependency(dependency) = self.state { Some(dependency) } else { None }
    }

    /// The queue of that work.
    pub(super) fn producer(&self) -> Option<u32> {
        self.dependency().map(|dependency| dependency.queue)
    }
}

pub(super) struct SignalRecord<T> {
    pub(super) timeline: T,
    pub(super) value: u64,
}

/// # Invariants
///
/// - `epoch` is not zero in the states [`Queued`](OpState::Queued) and [`Submitted`](OpState::Submitted), and
///   never changes again.
/// - Every wait of a queued operation is reached or satisfied by order: `remaining` is zero.
/// - A queued operation is in the queue's `queued`, and a submitted one is in `in_flight`, once.
pub(super) struct Op<B: Backend> {
    pub(super) state: OpState,
    pub(super) kind: ActionKind,
    /// Its work was done early.
    pub(super) done: bool,
    /// Waits that are blocked.
    pub(super) remaining: u32,
    pub(super) epoch: u64,
    /// The event that it records, retained until it retires.
    pub(super) event: Option<EventIndex>,
    /// Why it ends without running.
    pub(super) failure: Option<Failure>,
    pub(super) waits: SmallVec<[WaitRecord; 1]>,
    pub(super) signals: SmallVec<[SignalRecord<B::Timeline>; 1]>,
    pub(super) work: Option<B::Work>,
}

impl<B: Backend> Op<B> {
    /// A pending operation. The caller adds its waits, signals and work.
    #[inline(always)]
    pub(super) fn new(kind: ActionKind, failure: Option<Failure>) -> Self {
        Self {
            state: OpState::Pending,
            kind,
            done: false,
            remaining: 0,
            epoch: 0,
            event: None,
            failure,
            waits: SmallVec::new(),
            signals: SmallVec::new(),
            work: None,
        }
    }

    /// The number of the wait that is added next.
    #[expect(clippy::cast_possible_truncation, reason = "2³² waits do not fit into memory")]
    pub(super) fn next_wait(&self) -> u32 {
        self.waits.len() as u32
    }

    /// A wait, by its number.
    #[inline]
    pub(super) fn wait_mut(&mut self, number: u32) -> &mut WaitRecord {
        #[expect(clippy::indexing_slicing, reason = "an operation keeps its waits until it ends")]
        &mut self.waits[number as usize]
    }

    /// Adds a wait that is not reached.
    #[inline(always)]
    pub(super) fn wait_for(&mut self, timeline_state: Arc<TimelineState>, value: u64, state: WaitState) {
        self.waits.push(WaitRecord { timeline: timeline_state, value, state, failure_entry: None });
    }

    /// True if all of its waits are satisfied by the order of `queue`.
    #[inline]
    pub(super) fn waits_for_nothing_but(&self, queue: u32) -> bool {
        self.waits.iter().all(|wait| wait.producer() == Some(queue))
    }

    /// Counts a blocked wait down. Returns whether the operation became runnable.
    #[inline]
    pub(super) fn count_down(&mut self) -> bool {
        debug_assert!(
            self.remaining > 0,
            "only a wait that is coverable or the host's is counted down, and once"
        );
        self.remaining -= 1;
        self.remaining == 0 && self.failure.is_none()
    }

    /// True if cleanup must run before the signals fail. An operation that was done early is only reclaimed. A
    /// queued one fails at once, because later operations of its queue may rely on its signals; unless the
    /// whole queue ends (`all_end`) while the device still works on its dependencies.
    pub(super) fn cleans_up(&self, all_end: bool) -> bool {
        let is_barrier = self.kind == ActionKind::Barrier && !self.done;
        let begins = self.state == OpState::Pending || (all_end && self.state == OpState::Queued);
        is_barrier && begins && self.work.is_some()
    }

    pub(super) fn is_cleaning_up(&self) -> bool {
        self.kind == ActionKind::Barrier && self.state == OpState::Running
    }
}

/// An operation that is on its queue's device, or coalesced with one that is.
pub(super) struct InFlight {
    pub(super) op: Key,
    pub(super) epoch: u64,
    /// The device has it and reports it. A coalesced operation is not on the device, though the backend sees a
    /// marker.
    pub(super) on_device: bool,
    /// The epoch that another queue waits for in order to wait for this one: its own, or the last native one
    /// before a coalesced operation; zero if there is none.
    pub(super) native_epoch: u64,
    pub(super) event: Option<EventIndex>,
    pub(super) failure: Option<Failure>,
}

impl InFlight {
    /// True if it is over, after the device has completed the queue up to `completed`.
    pub(super) fn has_ended(&self, completed: u64) -> bool {
        self.epoch <= completed || self.failure.is_some() || !self.on_device
    }
}

/// Actions that run without the lock, in this order.
pub(super) struct Effects<B: Backend> {
    pub(super) publications: Vec<Publication<B::Timeline>>,
    /// Foreign timelines that have deliveries, by identity. `pending_deliveries` has what is reclaimed after
    /// them.
    pub(super) foreign_timelines: Vec<usize>,
    pub(super) pending_deliveries: Option<Arc<PendingDeliveries<B>>>,
    pub(super) subscriptions: Vec<(B::Timeline, u64, Arc<TimelineState>)>,
    /// Host operations to run, and failed ones to clean up.
    pub(super) runs: Vec<(Key, B::Work, Option<Failure>)>,
    /// Early actions to try, with the backend's answers.
    pub(super) early: Vec<EarlyRun<B>>,
    pub(super) reclaims: Vec<Ended<B::Work>>,
    /// Timelines whose drop may end a subscription.
    pub(super) garbage: Vec<Arc<TimelineState>>,
}

/// A step of a timeline of this engine, which its waiters may have to be notified of.
pub(super) struct Publication<T> {
    pub(super) timeline: T,
    pub(super) state: Result<u64, Failure>,
    pub(super) by: Option<Point>,
}

/// An early action, its work, and whether it was done.
pub(super) struct EarlyRun<B: Backend> {
    pub(super) op: Key,
    pub(super) work: B::Work,
    pub(super) done: Result<bool, Failure>,
}

impl<B: Backend> Default for Effects<B> {
    fn default() -> Self {
        Self {
            publications: Vec::new(),
            foreign_timelines: Vec::new(),
            pending_deliveries: None,
            subscriptions: Vec::new(),
            runs: Vec::new(),
            early: Vec::new(),
            reclaims: Vec::new(),
            garbage: Vec::new(),
        }
    }
}

impl<B: Backend> Effects<B> {
    /// Merges the end of an operation that succeeded and left no work with the last end, if that is one as
    /// well.
    #[inline]
    pub(super) fn extend_last(&mut self, point: Option<Point>) -> bool {
        let Some(point) = point else { return true };
        match self.reclaims.last_mut() {
            Some(Ended { point: Some(last), work: None, outcome: Ok(()) }) => {
                *last = point;
                true
            }
            _ => false,
        }
    }

    /// Adds the end of an operation for [`Backend::reclaim`], unless there is nothing to report. It goes behind
    /// the deliveries if it has some (`delivers`).
    pub(super) fn push_ended(
        &mut self,
        point: Option<Point>,
        work: Option<B::Work>,
        failure: Option<Failure>,
        delivers: bool,
    ) {
        if work.is_none() && point.is_none() {
            return;
        }
        let ended = Ended { point, work, outcome: failure.map_or(Ok(()), Err) };
        match self.pending_deliveries.as_ref().filter(|_| delivers) {
            Some(pending_deliveries) => pending_deliveries.keep(ended),
            None => self.reclaims.push(ended),
        }
    }

    /// True if all of them return soon. The caller says whether work is reclaimed later.
    pub(super) fn are_quick(&self, reclaims_later: bool) -> bool {
        (reclaims_later || self.reclaims.is_empty())
            && self.subscriptions.is_empty()
            && self.runs.is_empty()
            && self.early.is_empty()
            && self.garbage.is_empty()
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        // One comparison is cheaper than seven.
        let left = self.publications.len()
            | self.foreign_timelines.len()
            | self.reclaims.len()
            | self.subscriptions.len()
            | self.runs.len()
            | self.early.len()
            | self.garbage.len();
        left == 0
    }
}

/// The buffers of one submission, reused for the next.
pub(super) struct Scratch<B: Backend> {
    pub(super) items: Vec<BatchItem<B>>,
    pub(super) waits: Vec<NativeWait<B::Event>>,
    /// Retained events for the batch.
    pub(super) events: Vec<(EventIndex, B::Event)>,
}

impl<B: Backend> Default for Scratch<B> {
    fn default() -> Self {
        Self { items: Vec::new(), waits: Vec::new(), events: Vec::new() }
    }
}

/// Memory that operations with several waits or signals leave for the next ones.
pub(super) struct SpareMemory<B: Backend> {
    pub(super) waits: Vec<Vec<WaitRecord>>,
    pub(super) signals: Vec<Vec<SignalRecord<B::Timeline>>>,
    pub(super) effects: Option<Box<Effects<B>>>,
}

impl<B: Backend> Default for SpareMemory<B> {
    fn default() -> Self {
        Self { waits: Vec::new(), signals: Vec::new(), effects: None }
    }
}

/// How many rounds a thread that completes something works for a queue before it leaves the rest to another
/// thread. A model has too few operations for more than one.
const ROUNDS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 4 };

/// How many of each kind are kept.
pub(super) const SPARE: usize = 16;

/// A walk over all operations of a queue that fails those that have not started.
pub(super) struct UnstartedSweep {
    pub(super) failure: Failure,
    /// The next chunk of the slab.
    pub(super) chunk: u32,
}

/// The part of a queue that its lock protects.
///
/// # Invariants
///
/// - `completed ≤ offered ≤ last_epoch` and `submitted ≤ last_epoch`. Epochs in `in_flight` ascend, and so do
///   those in `queued`, which are all larger.
/// - A key in `in_flight` names an operation that has not ended: only [`QueueGuard::end`] removes one, after
///   its entry is removed. Keys in `runnable` and `queued` may name ended ones; `queued_ended` counts those in
///   `queued`.
/// - Only the thread that set `submitting` takes operations off `queued` to show them to the backend.
pub(super) struct QueueState<B: Backend> {
    pub(super) ops: Slab<Op<B>>,
    /// Operations without a blocked wait, and those that are to end.
    pub(super) runnable: VecDeque<Key>,
    /// Queued operations, in order. Some may have ended, or their cleanup runs.
    pub(super) queued: VecDeque<Key>,
    /// How many of `queued` have.
    pub(super) queued_ended: usize,
    pub(super) in_flight: VecDeque<InFlight>,
    /// The last epoch given out.
    pub(super) last_epoch: u64,
    /// The last epoch that the backend was shown.
    pub(super) offered: u64,
    /// The last epoch whose submission has returned.
    pub(super) submitted: u64,
    /// The last epoch that the backend has reported.
    pub(super) completed: u64,
    /// The last epoch that is work of the device.
    pub(super) last_native: u64,
    /// For each other queue, the latest epoch that this one waits for natively.
    pub(super) frontier: Frontier,
    /// A batch is with the backend, or being made.
    pub(super) submitting: bool,
    /// Completion arrived before a dependency of the oldest operation retired; retirement pauses.
    pub(super) gated: bool,
    /// The queue once ran out of events, and records none from then on.
    pub(super) eventless: bool,
    pub(super) window: FlowWindow,
    pub(super) closing: bool,
    pub(super) lost: Option<Failure>,
    pub(super) unstarted_sweep: Option<UnstartedSweep>,
    /// Threads that perform effects of this queue.
    pub(super) performing: usize,
    /// The number of them that return to the queue soon.
    pub(super) quick_count: usize,
    /// Operations that run on the host.
    pub(super) running: usize,
    pub(super) effects: Box<Effects<B>>,
    /// `None` while a thread submits a batch.
    pub(super) scratch: Option<Box<Scratch<B>>>,
    pub(super) spare: SpareMemory<B>,
    /// What the waits of its operations have cost; the other counts are not used.
    pub(super) waits: Counts,
}

impl<B: Backend> QueueState<B> {
    pub(super) fn new() -> Self {
        Self {
            ops: Slab::new(),
            runnable: VecDeque::new(),
            queued: VecDeque::new(),
            queued_ended: 0,
            in_flight: VecDeque::new(),
            last_epoch: 0,
            offered: 0,
            submitted: 0,
            completed: 0,
            last_native: 0,
            frontier: Frontier::default(),
            submitting: false,
            gated: false,
            eventless: false,
            window: FlowWindow::default(),
            closing: false,
            lost: None,
            unstarted_sweep: None,
            performing: 0,
            quick_count: 0,
            running: 0,
            effects: Box::default(),
            scratch: None,
            spare: SpareMemory::default(),
            waits: Counts::default(),
        }
    }

    /// True if the oldest operation in flight can retire, by the state of the queue alone.
    #[inline(always)]
    pub(super) fn is_due(&self) -> bool {
        !self.gated
            && self.in_flight.front().is_some_and(|entry| {
                // A lost device has completed what it reported, and nothing else.
                entry.epoch <= self.submitted
                    && entry.has_ended(self.completed)
                    && (self.lost.is_none() || entry.epoch <= self.completed)
            })
    }

    /// True if nothing is under way, and no thread is about to act for the queue.
    pub(super) fn is_idle(&self) -> bool {
        self.ops.len() == 0 && self.performing == 0 && !self.submitting && self.effects.is_empty()
    }

    pub(super) fn trim(&mut self) {
        self.ops.trim();
        self.runnable.shrink_to_fit();
        self.queued.shrink_to_fit();
        self.in_flight.shrink_to_fit();
        self.spare = SpareMemory::default();
        if self.effects.is_empty() {
            *self.effects = Effects::default();
        }
        self.scratch = None;
    }
}

/// The latest epochs of some queues.
#[derive(Clone, Debug, Default)]
pub(super) struct Frontier(SmallVec<[(u32, u64); 4]>);

impl Frontier {
    pub(super) fn get(&self, queue: u32) -> u64 {
        self.0
            .binary_search_by_key(&queue, |&(queue, _)| queue)
            .ok()
            .and_then(|at| self.0.get(at))
            .map_or(0, |&(_, epoch)| epoch)
    }

    /// Returns whether the epoch was news.
    pub(super) fn raise(&mut self, queue: u32, epoch: u64) -> bool {
        match self.0.binary_search_by_key(&queue, |&(queue, _)| queue) {
            Ok(at) => match self.0.get_mut(at) {
                Some((_, known)) if *known < epoch => *known = epoch,
                _ => return false,
            },
            Err(at) => self.0.insert(at, (queue, epoch)),
        }
        true
    }
}

/// The epochs at which a queue's frontier grew: a queue that waits for a later epoch of it inherits that.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<(u64, u32, u64)>);

/// How many of them are remembered. Forgetting one costs a needless native wait and no more.
const HISTORY_LENGTH: usize = 16;

impl History {
    /// From epoch `at` on, the queue has waited for `epoch` of `queue`.
    pub(super) fn add(&mut self, at: u64, queue: u32, epoch: u64) {
        if self.0.len() >= HISTORY_LENGTH {
            self.0.pop_front();
        }
        self.0.push_back((at, queue, epoch));
    }

    pub(super) fn until(&self, at: u64) -> impl Iterator<Item = (u32, u64)> {
        self.0.iter().filter(move |&&(since, ..)| since <= at).map(|&(_, queue, epoch)| (queue, epoch))
    }
}

/// One queue. It shares no cache line with another.
#[repr(align(128))]
pub(super) struct Queue<B: Backend> {
    pub(super) id: QueueId,
    /// Threads that wait for the lock and will work for the queue.
    waiting_threads: AtomicU64,
    /// Those of them that do not submit.
    waiting_completers: AtomicU64,
    /// A copy for threads without the lock.
    pub(super) submitted: AtomicU64,
    /// Operations that have not ended.
    pub(super) load: AtomicU64,
    /// Operations that the backend has and has not reported.
    pub(super) taken: AtomicU64,
    /// Reports since the device was full for the first time.
    pub(super) reports: AtomicU64,
    pub(super) history: Mutex<History>,
    /// The native events that its work records.
    pub(super) events: Mutex<EventPool<B::Event>>,
    /// Keeps the engine alive for work of this queue.
    pub(super) keep_alive: Mutex<Option<Weak<dyn KeepAlive>>>,
    state: FairMutex<QueueState<B>>,
}

impl<B: Backend> Queue<B> {
    pub(super) fn new(id: QueueId) -> Self {
        Self {
            id,
            waiting_threads: AtomicU64::new(0),
            waiting_completers: AtomicU64::new(0),
            submitted: AtomicU64::new(0),
            load: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            reports: AtomicU64::new(0),
            history: Mutex::new(History::default()),
            events: Mutex::new(EventPool::new()),
            keep_alive: Mutex::new(None),
            state: FairMutex::new(QueueState::new()),
        }
    }

    /// For callers that leave no work behind.
    pub(super) fn lock(&self) -> Guard<'_, QueueState<B>> {
        self.state.lock()
    }

    /// For callers that do something else if the lock is taken.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<Guard<'_, QueueState<B>>> {
        self.state.try_lock()
    }

    /// For callers that then work for the queue, at once or through their deferred work.
    #[inline]
    pub(super) fn lock_for_work(&self) -> Guard<'_, QueueState<B>> {
        self.state.try_lock().unwrap_or_else(|| self.lock_contended())
    }

    #[cold]
    fn lock_contended(&self) -> Guard<'_, QueueState<B>> {
        if is_nested() {
            // This call leaves the queue to the calls around it, inside a callback that may take long: it must
            // not be counted.
            return self.state.lock();
        }
        let completes = !is_submitting();
        self.waiting_threads.fetch_add(1, Ordering::Relaxed);
        self.waiting_completers.fetch_add(u64::from(completes), Ordering::Relaxed);
        let state = self.state.lock();
        self.waiting_completers.fetch_sub(u64::from(completes), Ordering::Relaxed);
        self.waiting_threads.fetch_sub(1, Ordering::Relaxed);
        state
    }

    pub(super) fn point(&self, epoch: u64) -> Point {
        Point { queue: self.id, epoch }
    }
}

/// A thread's hold of a queue's lock, and the work that it does there.
pub(super) struct QueueGuard<'a, B: Backend> {
    pub(super) shared: &'a Shared<B>,
    pub(super) index: u32,
    pub(super) queue: &'a Queue<B>,
    pub(super) device: &'a Device,
    pub(super) state: Guard<'a, QueueState<B>>,
    pub(super) deferred: &'a mut DeferredWork,
}

impl<'a, B: Backend> QueueGuard<'a, B> {
    #[inline]
    pub(super) fn lock(shared: &'a Shared<B>, index: u32, deferred: &'a mut DeferredWork) -> Self {
        let queue = shared.queue(index);
        Self { shared, index, queue, device: &shared.device, state: queue.lock_for_work(), deferred }
    }

    /// True if another thread will work for the queue next, so that this one can leave. A thread that submits
    /// leaves after one round, to any thread; a thread that completes something does not leave work to threads
    /// that submit.
    // Decides who does the work, not what is done.
    #[cfg_attr(mutants, mutants::skip)]
    pub(super) fn has_successor(&self, rounds: usize) -> bool {
        if self.deferred.submits {
            rounds >= 1
                && (self.state.quick_count > 0 || self.queue.waiting_threads.load(Ordering::Relaxed) > 0)
        } else {
            rounds >= ROUNDS && self.queue.waiting_completers.load(Ordering::Relaxed) > 0
        }
    }

    /// Releases the lock while `step` runs.
    pub(super) fn unlocked<R>(self, step: impl FnOnce(&Shared<B>, &mut DeferredWork) -> R) -> (Self, R) {
        let Self { shared, index, queue, device, state, deferred } = self;
        queue.state.unlock(state);
        let result = step(shared, deferred);
        (Self { shared, index, queue, device, state: queue.lock_for_work(), deferred }, result)
    }

    /// Releases the lock.
    // A guard that is dropped releases the lock too.
    #[cfg_attr(mutants, mutants::skip)]
    #[inline(always)]
    pub(super) fn unlock(self) {
        self.queue.state.unlock(self.state);
    }

    /// The operation, unless it has ended.
    pub(super) fn op(&mut self, key: Key) -> Option<&mut Op<B>> {
        self.state.ops.get_mut(key)
    }

    /// An operation that has not ended: the caller found it so under this hold of the lock.
    pub(super) fn live(&mut self, key: Key) -> &mut Op<B> {
        self.state.ops.live_mut(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frontier_has_the_latest_epoch_of_each_queue() {
        let mut known = Frontier::default();
        for (queue, epoch, is_news) in
            [(7, 5, true), (7, 3, false), (7, 5, false), (2, 1, true), (7, 6, true)]
        {
            assert_eq!(known.raise(queue, epoch), is_news, "{queue}@{epoch}");
        }
        assert_eq!([2, 7, 8].map(|queue| known.get(queue)), [1, 6, 0]);
    }

    #[test]
    fn history_has_the_latest_steps_up_to_an_epoch() {
        let mut history = History::default();
        let steps = HISTORY_LENGTH as u64 + 3;
        (1..=steps).for_each(|at| history.add(at, 7, 10 * at));
        let until = |at| history.until(at).collect::<Vec<_>>();
        assert_eq!(until(steps), (4..=steps).map(|at| (7, 10 * at)).collect::<Vec<_>>());
        assert_eq!(until(5), [(7, 40), (7, 50)]);
        assert!(until(3).is_empty());
    }
}
