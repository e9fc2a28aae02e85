// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A queue, and the state that its lock protects: all operations of the queue, of every kind, that have not
//! ended.
//!
//! # The lock
//!
//! The module [`engine`](super) has the locking protocol. A thread that finds the lock taken counts itself in
//! `waiting_threads`, so that the thread that works for the queue can leave the rest to it: no thread is kept
//! for the work of others.

use super::deferred_work::{DeferredWork, is_nested, is_submitting};
use super::effects::HostSide;
use super::ending::Ending;
use super::flight::Flight;
use super::flow_window::FlowWindow;
use super::frontier::{Frontier, History};
use super::op::{Op, OpState, SpareLists};
use super::order::Order;
use super::submit::Scratch;
use super::{Counts, Device, Shared};
use crate::backend::Backend;
use crate::engine_events::KeepAlive;
use crate::ids::{Point, QueueId};
use crate::native_event::EventPool;
use crate::slab::{Key, Slab};
use crate::sync::{AtomicU64, FairMutex, Guard, Mutex, Ordering};
use std::sync::Weak;

#[cfg(all(test, not(any(loom, shuttle))))]
mod arrivals;

/// How many rounds a thread that completes something works for a queue before it leaves the rest to another
/// thread. A model has too few operations for more than one.
const ROUNDS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 4 };

/// The part of a queue that its lock protects.
///
/// # Invariants
///
/// - A key in flight names an operation that has not ended: only [`QueueGuard::end`] removes one, after its entry is
///   removed. Keys in the order may name ended ones.
/// - Only the thread that submits takes operations off the queued ones to show them to the backend.
pub(super) struct QueueState<B: Backend> {
    pub(super) ops: Slab<Op<B>>,
    /// Runnable and queued operations.
    pub(super) order: Order,
    /// What is on the device.
    pub(super) flight: Flight,
    /// How much the device accepts.
    pub(super) window: FlowWindow,
    /// For each other queue, the latest epoch that this one waits for natively.
    pub(super) frontier: Frontier,
    /// Effects, and what runs on the host.
    pub(super) host: HostSide<B>,
    /// Why all operations end, if they do.
    pub(super) ending: Ending,
    /// `None` while a thread submits a batch.
    pub(super) scratch: Option<Box<Scratch<B>>>,
    pub(super) spare: SpareLists<B>,
    /// What the waits of its operations have cost; the other counts are not used.
    pub(super) waits: Counts,
}

impl<B: Backend> QueueState<B> {
    fn new() -> Self {
        Self {
            ops: Slab::new(),
            order: Order::default(),
            flight: Flight::default(),
            window: FlowWindow::default(),
            frontier: Frontier::default(),
            host: HostSide::default(),
            ending: Ending::default(),
            scratch: None,
            spare: SpareLists::default(),
            waits: Counts::default(),
        }
    }

    /// True if the oldest operation in flight can retire, by the state of the queue alone.
    #[inline(always)]
    pub(super) fn is_due(&self) -> bool {
        self.flight.is_due(self.ending.is_lost())
    }

    /// True if nothing is under way, and no thread is about to act for the queue.
    pub(super) fn is_idle(&self) -> bool {
        self.ops.len() == 0 && !self.flight.is_submitting() && self.host.is_idle()
    }

    /// Counts a queued operation that has ended, or whose cleanup runs.
    pub(super) fn count_queued_ended(&mut self) {
        let ops = &self.ops;
        self.order.count_ended(|key| ops.get(key).is_some_and(|op| op.state == OpState::Queued));
    }

    pub(super) fn trim(&mut self) {
        self.ops.trim();
        self.order.trim();
        self.flight.trim();
        self.host.trim();
        self.spare = SpareLists::default();
        self.scratch = None;
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
    pub(super) keep_alive: Mutex<Option<Weak<KeepAlive>>>,
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
                && (self.state.host.has_quick() || self.queue.waiting_threads.load(Ordering::Relaxed) > 0)
        } else {
            rounds >= ROUNDS && self.queue.waiting_completers.load(Ordering::Relaxed) > 0
        }
    }

    /// Releases the lock while `step` runs.
    #[inline(always)]
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
