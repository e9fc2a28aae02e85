// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The consequences of a step under a lock (released waits, queues to visit, promises), which the thread runs after
//! the lock. What may call the program is [owed](super::owed).
//!
//! Nothing in the engine recurses: a step under a lock puts its consequences into the [`DeferredWork`] of its
//! thread, and the thread runs them without a lock ([`Shared::run`](super::Shared)). Foreign code that runs on
//! the way may call the engine again on the same thread. Such a call has its own `DeferredWork` and runs it
//! before it returns, so that the caller sees its effects. A call that is nested deeper than [`MAX_DEPTH`]
//! leaves its work to the call around it. That bounds the stack, however long the chain is that a signal
//! releases.

use super::timeline_state::{Promise, Target, TimelineState};
use crate::engine_events::EngineEvents;
use crate::failure::Failure;
use crate::native_event::EventIndex;
use crate::sync::local;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

/// Calls that are nested deeper than this leave their work to the call around them.
const MAX_DEPTH: u32 = 8;

/// The work that satisfies a wait without the host: `epoch` of `queue`, by queue order or by a native wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dependency {
    pub(super) queue: u32,
    pub(super) epoch: u64,
    /// The event to wait for. It is retained for the owner of the dependency.
    pub(super) event: Option<EventIndex>,
}

/// Why a timepoint is released.
#[derive(Clone, Debug)]
pub(crate) enum Release {
    /// The value is reached.
    Reached,
    Failed(Failure),
    Ordered(Dependency),
}

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct DeferredWork {
    /// Released timepoints, in order.
    pub(super) released: VecDeque<(Target, Release)>,
    /// Queues that may have work.
    pub(super) queues: VecDeque<u32>,
    /// A queue that has released something for other queues, and runs after them.
    pub(super) yielding_queue: Option<u32>,
    /// Something is [owed](super::owed), and this thread may call the program.
    pub(super) owes: bool,
    /// Promises that may satisfy more waits.
    pub(super) promises_due: VecDeque<(Arc<TimelineState>, Promise)>,
    /// Timelines that may release more.
    pub(super) drains: VecDeque<Arc<TimelineState>>,
    /// Why the device is lost, if that is news.
    pub(super) loss: Option<Failure>,
    /// The thread is [inside a call](is_submitting) that must not call the program.
    pub(super) submits: bool,
}

impl DeferredWork {
    pub(super) fn visit_queue(&mut self, queue: u32) {
        if !self.queues.contains(&queue) {
            self.queues.push_back(queue);
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        // One comparison is cheaper than four.
        let left = self.released.len() | self.queues.len() | self.promises_due.len() | self.drains.len();
        left == 0 && self.yielding_queue.is_none() && self.loss.is_none() && !self.owes
    }

    /// True if a burst has left too much memory to keep.
    fn is_large(&self) -> bool {
        // `LARGE` is a power of two: if one capacity reaches it, so does the union of their bits.
        let capacities = self.released.capacity()
            | self.queues.capacity()
            | self.promises_due.capacity()
            | self.drains.capacity();
        capacities >= LARGE
    }
}

/// How many of them a thread keeps for its next calls.
const SPARE: usize = MAX_DEPTH as usize;

/// One whose capacity reaches this is not kept.
const LARGE: usize = 1 << 12;

/// The work that a deeply nested call has left, and its engine.
type LeftWork = (Arc<dyn EngineEvents>, Box<DeferredWork>);

#[derive(Default)]
struct ThreadState {
    depth: Cell<u32>,
    submitting: Cell<u32>,
    inbox: RefCell<VecDeque<LeftWork>>,
    /// For the next call; `spare` has those for calls nested in it.
    next: Cell<Option<Box<DeferredWork>>>,
    #[expect(clippy::vec_box, reason = "they move between here and calls, and are large")]
    spare: RefCell<Vec<Box<DeferredWork>>>,
}

impl ThreadState {
    /// Keeps one for the next call.
    #[inline(always)]
    fn keep(&self, deferred: Box<DeferredWork>) {
        if deferred.is_large() {
            drop_large(deferred);
        } else if let Some(inner) = self.next.replace(Some(deferred)) {
            self.keep_spare(inner);
        }
    }

    #[cold]
    // Memory alone: a spare more or less.
    #[cfg_attr(mutants, mutants::skip)]
    fn keep_spare(&self, inner: Box<DeferredWork>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE {
            spare.push(inner);
        }
    }
}

// An argument that is not used is dropped too.
#[cfg_attr(mutants, mutants::skip)]
#[cold]
fn drop_large(deferred: Box<DeferredWork>) {
    drop(deferred);
}

local! {
    static THREAD: ThreadState = ThreadState::default();
}

/// `None` on a thread that is exiting, which has no calls around this one.
fn with<R>(use_state: impl FnOnce(&ThreadState) -> R) -> Option<R> {
    THREAD.try_with(use_state).ok()
}

/// True if this thread is inside a call that must not call the program. A thread that is exiting may be.
pub(super) fn is_submitting() -> bool {
    with(|local| local.submitting.get() > 0).unwrap_or(true)
}

/// A guard: while it lives, this thread runs no callback. Callbacks that become due are
/// [deferred](crate::Backend::defer). It is for a thread that waits on behalf of a program and does other
/// threads' work meanwhile: the program may hold a lock while it waits, and take it in a callback.
#[derive(Debug)]
pub struct WithoutCallbacks(std::marker::PhantomData<*const ()>);

impl WithoutCallbacks {
    /// Forbids callbacks on this thread until the guard is dropped.
    pub fn begin() -> Self {
        let _ = with(|local| local.submitting.set(local.submitting.get() + 1));
        Self(std::marker::PhantomData)
    }

    /// Runs something that may call the program: now, or soon on another thread if this one must not.
    pub fn call_back(run: impl FnOnce() + Send + 'static) {
        drop(super::DeferredCallbacks::new(run));
    }

    /// True if this thread has such a guard, or is inside a call that forbids callbacks.
    pub fn is_active() -> bool {
        is_submitting()
    }
}

impl Drop for WithoutCallbacks {
    fn drop(&mut self) {
        let _ = with(|local| local.submitting.set(local.submitting.get() - 1));
    }
}

/// True if calls on this thread have left work to the calls around them.
#[inline]
pub(crate) fn has_left_work() -> bool {
    with(|local| !local.inbox.borrow().is_empty()).unwrap_or(false)
}

/// True if this thread's innermost call leaves its work to the calls around it.
pub(super) fn is_nested() -> bool {
    with(|local| local.depth.get() > MAX_DEPTH).unwrap_or(false)
}

/// A call into the engine on this thread. Dropping it runs its deferred work.
pub(crate) struct EngineCall<'a> {
    engine: &'a dyn EngineEvents,
    /// `None` only while the call ends.
    deferred: Option<Box<DeferredWork>>,
    /// The number of calls around this one, plus one.
    depth: u32,
    submits: bool,
}

impl<'a> EngineCall<'a> {
    /// A call that completes or signals something.
    #[inline]
    pub(crate) fn new(engine: &'a dyn EngineEvents) -> Self {
        Self::begin(engine, false)
    }

    /// A call that submits, or otherwise must not call the program.
    #[inline(always)]
    pub(crate) fn submitting(engine: &'a dyn EngineEvents) -> Self {
        Self::begin(engine, true)
    }

    #[inline(always)]
    fn begin(engine: &'a dyn EngineEvents, submits: bool) -> Self {
        let started = with(|local| {
            let depth = local.depth.get() + 1;
            local.depth.set(depth);
            let submitting = local.submitting.get() + u32::from(submits);
            local.submitting.set(submitting);
            let deferred = local.next.take().or_else(|| local.spare.borrow_mut().pop());
            (depth, submitting > 0, deferred)
        });
        let (depth, submitting, deferred) = started.unwrap_or((0, true, None));
        let mut deferred = deferred.unwrap_or_default();
        deferred.submits = submitting;
        Self { engine, deferred: Some(deferred), depth, submits }
    }

    #[inline]
    pub(crate) fn deferred(&mut self) -> &mut DeferredWork {
        self.deferred.get_or_insert_default()
    }

    /// True if the call leaves its work to the call around it.
    #[inline]
    pub(crate) fn is_nested(&self) -> bool {
        self.depth > MAX_DEPTH
    }

    /// Runs the rest of the work, or leaves it to the call around this one. Returns the memory in the first
    /// case.
    #[inline(never)]
    fn run_or_leave(&self, mut left: Box<DeferredWork>) -> Option<Box<DeferredWork>> {
        match self.is_nested().then(|| self.engine.share()).flatten() {
            Some(engine) => {
                let _ = with(|local| local.inbox.borrow_mut().push_back((engine, left)));
                None
            }
            None => {
                self.engine.run(&mut left);
                Some(left)
            }
        }
    }

    /// Runs the work now, whatever the depth: the thread is about to sleep.
    pub(crate) fn flush(&mut self) {
        let engine = self.engine;
        engine.run(self.deferred());
        drain_inbox();
    }
}

impl Drop for EngineCall<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl EngineCall<'_> {
    /// Ends the call as `drop` does; inlined for frequent callers.
    #[cfg_attr(mutants, mutants::skip)]
    #[inline(always)]
    pub(crate) fn end(mut self) {
        self.leave();
        // `leave` has emptied it.
        std::mem::forget(self);
    }

    #[inline(always)]
    fn leave(&mut self) {
        let mut deferred = self.deferred.take();
        if let Some(left) = deferred.take_if(|deferred| !deferred.is_empty()) {
            deferred = self.run_or_leave(left);
        }
        let nested = self.is_nested();
        let _ = with(|local| {
            if !nested && !local.inbox.borrow().is_empty() {
                drain_inbox();
            }
            local.depth.set(local.depth.get() - 1);
            local.submitting.set(local.submitting.get() - u32::from(self.submits));
            if let Some(deferred) = deferred {
                local.keep(deferred);
            }
        });
    }
}

/// Runs `step`. Calls into any engine inside it leave their work, as deeply nested calls do; the caller
/// [runs](run_left_work) it later.
pub(super) fn leaving_work(step: impl FnOnce()) {
    let _ = with(|local| local.depth.set(local.depth.get() + MAX_DEPTH));
    step();
    let _ = with(|local| local.depth.set(local.depth.get() - MAX_DEPTH));
}

/// Runs the work that calls have left. If this call is deeply nested itself, the call around it does.
pub(super) fn run_left_work() {
    if is_nested() {
        return;
    }
    let _ = with(|local| local.depth.set(local.depth.get() + 1));
    drain_inbox();
    let _ = with(|local| local.depth.set(local.depth.get() - 1));
}

/// Runs the work that calls on this thread have left.
#[cold]
fn drain_inbox() {
    while let Some((engine, mut deferred)) = with(|local| local.inbox.borrow_mut().pop_front()).flatten() {
        // Some of the calls that were around it may have ended.
        deferred.submits = is_submitting();
        engine.run(&mut deferred);
    }
}
