// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A thread's agenda: the effects of a step under a lock (released waits, deliveries, callbacks) that are run after the lock.
//!
//! Nothing in the engine recurses: a step under a lock puts what follows from it on the agenda of its thread, and the
//! thread works the agenda off without a lock ([`Shared::run`](super::Shared)). Foreign code that runs on the way may call
//! the engine again, on the same thread; such a call has an agenda of its own and works it off before it returns, so that
//! the caller sees what it did. Only when calls are nested [`MAX_DEPTH`] deep is the agenda left to the call around it,
//! which bounds the stack however long the chain is that a signal sets free.
//!
//! # Who may call a program back
//!
//! A program may hold a lock of its own while it submits, and take the same lock in a callback. So a thread that is inside
//! `submit`, or that cancels or waits, runs no callback (rule S8): [`is_submitting`] says so, and what has become due is
//! [deferred](crate::Backend::defer).

use super::host_wait::CallbackRecord;
use super::timeline_state::{Promise, Target, TimelineState};
use crate::engine_events::{Callback, EngineEvents};
use crate::failure::Failure;
use crate::native_event::EventIndex;
use crate::sync::local;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

/// How deep calls may be nested before the agenda of the innermost is left to the one around it.
const MAX_DEPTH: u32 = 8;

/// How a wait that is not reached can do without the host: wait for `epoch` of `queue` natively.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dependency {
    pub(super) queue: u32,
    pub(super) epoch: u64,
    /// Held for the owner of the cover.
    pub(super) event: Option<EventIndex>,
}

/// Why a timepoint is released.
#[derive(Clone, Debug)]
pub(crate) enum Release {
    /// The timeline is at this value.
    Reached(u64),
    Failed(Failure),
    Ordered(Dependency),
}

/// A promise, and the waits that it covers and that were not told yet.
#[derive(Debug)]
pub(crate) struct PromiseUpdate {
    pub(super) timeline_state: Arc<TimelineState>,
    pub(super) promise: Promise,
}

/// A callback that is due, and what it is to be told.
pub(super) type DueCallback = (Callback, Result<u64, Failure>);

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct DeferredWork {
    /// Timepoints that were released, in order.
    pub(super) released: VecDeque<(Target, Release)>,
    /// Queues where something may be to do.
    pub(super) queues: VecDeque<u32>,
    /// A queue that lets those go first for which it has released something.
    pub(super) yielding_queue: Option<u32>,
    /// Something was left for the end, and this thread may run it.
    pub(super) runs_late: bool,
    /// Promises that may cover more waits.
    pub(super) promises_due: VecDeque<PromiseUpdate>,
    /// Timelines that may release more.
    pub(super) drains: VecDeque<Arc<TimelineState>>,
    /// Callbacks that are due.
    pub(super) callbacks: VecDeque<(Arc<CallbackRecord>, Release)>,
    /// Devices that are gone, and why.
    pub(super) losses: Vec<(usize, Failure)>,
    /// There are callbacks in what was released, or may be in what is left of a timeline.
    pub(super) may_call_back: bool,
    /// Queues that are not at rest before those callbacks were called.
    pub(super) calling_queues: Vec<u32>,
    /// Callbacks that this thread must not run.
    pub(super) callbacks_elsewhere: Vec<DueCallback>,
    /// Its thread is [inside a call](is_submitting) during which it must not call a program back.
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
        // One comparison is cheaper than ten.
        let left = self.released.len()
            | self.queues.len()
            | self.promises_due.len()
            | self.drains.len()
            | self.callbacks.len()
            | self.losses.len()
            | self.calling_queues.len()
            | self.callbacks_elsewhere.len();
        left == 0 && self.yielding_queue.is_none() && !self.runs_late
    }

    /// Whether a burst has left so much memory behind that it is not worth keeping.
    fn is_large(&self) -> bool {
        // One of them is, if all of their bits together are: it is a power of two.
        let capacities = self.released.capacity()
            | self.queues.capacity()
            | self.promises_due.capacity()
            | self.drains.capacity()
            | self.callbacks.capacity();
        capacities >= LARGE
    }
}

/// How many agendas a thread keeps for its next calls.
const SPARE: usize = MAX_DEPTH as usize;

/// An agenda that grew past this is not kept.
const LARGE: usize = 1 << 12;

/// What a call that was nested too deep has left, and the engine whose it is.
type LeftWork = (Arc<dyn EngineEvents>, Box<DeferredWork>);

#[derive(Default)]
struct ThreadState {
    depth: Cell<u32>,
    submitting: Cell<u32>,
    inbox: RefCell<VecDeque<LeftWork>>,
    /// The agenda for the next call, and those for calls inside it.
    next: Cell<Option<Box<DeferredWork>>>,
    #[expect(clippy::vec_box, reason = "agendas move between here and calls, and are large")]
    spare: RefCell<Vec<Box<DeferredWork>>>,
}

impl ThreadState {
    /// Keeps an agenda for the next call.
    #[inline(always)]
    fn keep(&self, deferred: Box<DeferredWork>) {
        if deferred.is_large() {
            drop_large(deferred);
        } else if let Some(inner) = self.next.replace(Some(deferred)) {
            self.keep_spare(inner);
        }
    }

    #[cold]
    fn keep_spare(&self, inner: Box<DeferredWork>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE {
            spare.push(inner);
        }
    }
}

#[cold]
fn drop_large(deferred: Box<DeferredWork>) {
    drop(deferred);
}

local! {
    static THREAD: ThreadState = ThreadState::default();
}

/// Nothing on a thread that is on its way out: it then has no calls around this one.
fn with<R>(look: impl FnOnce(&ThreadState) -> R) -> Option<R> {
    THREAD.try_with(look).ok()
}

/// Whether this thread is inside a call during which it must not call a program back. One that is on its way out may be.
pub(super) fn is_submitting() -> bool {
    with(|local| local.submitting.get() > 0).unwrap_or(true)
}

/// A guard: while it lives, this thread calls no program back, whatever it completes or signals: what becomes due is
/// [deferred](crate::Backend::defer). For a thread that waits for a program and does what others would do meanwhile: a program may
/// hold a lock of its own while it waits, and take it in a callback.
#[derive(Debug)]
pub struct WithoutCallbacks(std::marker::PhantomData<*const ()>);

impl WithoutCallbacks {
    /// Forbids callbacks on this thread until this is dropped.
    pub fn begin() -> Self {
        let _ = with(|local| local.submitting.set(local.submitting.get() + 1));
        Self(std::marker::PhantomData)
    }

    /// Runs what may call a program back: now, or soon on another thread if this one must not.
    pub fn call_back(run: impl FnOnce() + Send + 'static) {
        drop(super::DeferredCallbacks::new(run));
    }

    /// Whether this thread has such a guard, or is in a call that must not call back either.
    pub fn is_active() -> bool {
        is_submitting()
    }
}

impl Drop for WithoutCallbacks {
    fn drop(&mut self) {
        let _ = with(|local| local.submitting.set(local.submitting.get() - 1));
    }
}

/// Whether what this thread's innermost call has to do is left to the calls around it.
pub(super) fn is_nested() -> bool {
    with(|local| local.depth.get() > MAX_DEPTH).unwrap_or(false)
}

/// A call into the engine on this thread. Dropping it works its agenda off.
pub(crate) struct EngineCall<'a> {
    engine: &'a dyn EngineEvents,
    /// Gone only while the call ends.
    deferred: Option<Box<DeferredWork>>,
    /// Calls around this one, and this one.
    depth: u32,
    submits: bool,
}

impl<'a> EngineCall<'a> {
    /// The thread completes or signals something.
    #[inline]
    pub(crate) fn new(engine: &'a dyn EngineEvents) -> Self {
        Self::begin(engine, false)
    }

    /// The thread submits, or merely comes by.
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

    /// Whether what there is to do is left to the call around this one.
    #[inline]
    pub(crate) fn is_nested(&self) -> bool {
        self.depth > MAX_DEPTH
    }

    /// Does what the call has left to do, or leaves it to the call around it. Returns the agenda if that is still its own.
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

    /// Does what there is to do now, whatever the depth: the thread is about to sleep.
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
    /// Ends the call as dropping it does, for callers that end many.
    #[inline(always)]
    pub(crate) fn end(mut self) {
        self.leave();
        // Nothing is left in it.
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

/// While it is there, calls into any engine on this thread make their steps and leave what follows from them, as calls do
/// that are nested too deep. The caller that had it sees to it that [it is done](run_deferred_effects).
pub(super) struct DeferEffects(());

impl DeferEffects {
    pub(super) fn begin() -> Self {
        let _ = with(|local| local.depth.set(local.depth.get() + MAX_DEPTH));
        Self(())
    }
}

impl Drop for DeferEffects {
    fn drop(&mut self) {
        let _ = with(|local| local.depth.set(local.depth.get() - MAX_DEPTH));
    }
}

/// Does what was left beside a [`DeferEffects`], unless this is nested too deep itself: then it is left to the call around
/// this one.
pub(super) fn run_deferred_effects() {
    if is_nested() {
        return;
    }
    let _ = with(|local| local.depth.set(local.depth.get() + 1));
    drain_inbox();
    let _ = with(|local| local.depth.set(local.depth.get() - 1));
}

/// Works off what calls have left that were nested too deep, or beside a [`DeferEffects`].
#[cold]
fn drain_inbox() {
    while let Some((engine, mut deferred)) = with(|local| local.inbox.borrow_mut().pop_front()).flatten() {
        // Some of the calls around which it was left may be over.
        deferred.submits = is_submitting();
        engine.run(&mut deferred);
    }
}
