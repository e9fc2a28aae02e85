// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A thread's agenda: the effects of a step under a lock (released waits, deliveries, callbacks) that are run after the lock.
//!
//! Nothing in the engine recurses: a step under a lock puts what follows from it on the agenda of its thread, and the
//! thread works the agenda off without a lock ([`Shared::run`](super::Shared)). Foreign code that runs on the way may call
//! the engine again, on the same thread; such a call has an agenda of its own and works it off before it returns, so that
//! the caller sees what it did. Only when calls are nested [`DEPTH`] deep is the agenda left to the call around it,
//! which bounds the stack however long the chain is that a signal sets free.
//!
//! # Who may call a program back
//!
//! A program may hold a lock of its own while it submits, and take the same lock in a callback. So a thread that is inside
//! `submit`, or that cancels or waits, runs no callback (rule S8): [`is_submitting`] says so, and what has become due is
//! [deferred](crate::Backend::defer).

use super::host_wait::CallbackRecord;
use super::slot::{Promise, Slot, Target};
use crate::failure::Failure;
use crate::native_event::EventIndex;
use crate::port::{Callback, EngineEvents};
use crate::sync::local;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

/// How deep calls may be nested before the agenda of the innermost is left to the one around it.
const DEPTH: u32 = 8;

/// How a wait that is not reached can do without the host: wait for `epoch` of `queue` natively.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cover {
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
    Covered(Cover),
}

/// A promise, and the waits that it covers and that were not told yet.
#[derive(Debug)]
pub(crate) struct Covering {
    pub(super) slot: Arc<Slot>,
    pub(super) promise: Promise,
}

/// A callback that is due, and what it is to be told.
pub(super) type Due = (Callback, Result<u64, Failure>);

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Agenda {
    /// Timepoints that were released, in order.
    pub(super) released: VecDeque<(Target, Release)>,
    /// Queues where something may be to do.
    pub(super) queues: VecDeque<u32>,
    /// A queue that lets those go first for which it has released something.
    pub(super) yields: Option<u32>,
    /// Something was left for the end, and this thread may run it.
    pub(super) tells: bool,
    /// Promises that may cover more waits.
    pub(super) covers: VecDeque<Covering>,
    /// Timelines that may release more.
    pub(super) drains: VecDeque<Arc<Slot>>,
    /// Callbacks that are due.
    pub(super) callbacks: VecDeque<(Arc<CallbackRecord>, Release)>,
    /// Devices that are gone, and why.
    pub(super) losses: Vec<(usize, Failure)>,
    /// There are callbacks in what was released, or may be in what is left of a timeline.
    pub(super) calls: bool,
    /// Queues that are not at rest before those callbacks were called.
    pub(super) calling: Vec<u32>,
    /// Callbacks that this thread must not run.
    pub(super) deferred: Vec<Due>,
    /// Its thread is [inside a call](is_submitting) during which it must not call a program back.
    pub(super) submits: bool,
}

impl Agenda {
    pub(super) fn visit(&mut self, queue: u32) {
        if !self.queues.contains(&queue) {
            self.queues.push_back(queue);
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        // One comparison is cheaper than ten.
        let left = self.released.len()
            | self.queues.len()
            | self.covers.len()
            | self.drains.len()
            | self.callbacks.len()
            | self.losses.len()
            | self.calling.len()
            | self.deferred.len();
        left == 0 && self.yields.is_none() && !self.tells
    }

    /// Whether a burst has left so much memory behind that it is not worth keeping.
    fn is_large(&self) -> bool {
        // One of them is, if all of their bits together are: it is a power of two.
        let capacities = self.released.capacity()
            | self.queues.capacity()
            | self.covers.capacity()
            | self.drains.capacity()
            | self.callbacks.capacity();
        capacities >= LARGE
    }
}

/// How many agendas a thread keeps for its next calls.
const SPARE: usize = DEPTH as usize;

/// An agenda that grew past this is not kept.
const LARGE: usize = 1 << 12;

/// What a call that was nested too deep has left, and the engine whose it is.
type Left = (Arc<dyn EngineEvents>, Box<Agenda>);

#[derive(Default)]
struct Local {
    depth: Cell<u32>,
    submitting: Cell<u32>,
    inbox: RefCell<VecDeque<Left>>,
    /// The agenda for the next call, and those for calls inside it.
    next: Cell<Option<Box<Agenda>>>,
    #[expect(clippy::vec_box, reason = "agendas move between here and calls, and are large")]
    spare: RefCell<Vec<Box<Agenda>>>,
}

impl Local {
    /// Keeps an agenda for the next call.
    #[inline(always)]
    fn keep(&self, agenda: Box<Agenda>) {
        if agenda.is_large() {
            drop_large(agenda);
        } else if let Some(inner) = self.next.replace(Some(agenda)) {
            self.keep_spare(inner);
        }
    }

    #[cold]
    fn keep_spare(&self, inner: Box<Agenda>) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE {
            spare.push(inner);
        }
    }
}

#[cold]
fn drop_large(agenda: Box<Agenda>) {
    drop(agenda);
}

local! {
    static LOCAL: Local = Local::default();
}

/// Nothing on a thread that is on its way out: it then has no calls around this one.
fn with<R>(look: impl FnOnce(&Local) -> R) -> Option<R> {
    LOCAL.try_with(look).ok()
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
        drop(super::Deferred::new(run));
    }

    /// Whether this thread has such a guard, or is in a call that must not call back either.
    pub fn is_there() -> bool {
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
    with(|local| local.depth.get() > DEPTH).unwrap_or(false)
}

/// A call into the engine on this thread. Dropping it works its agenda off.
pub(crate) struct Entry<'a> {
    port: &'a dyn EngineEvents,
    /// Gone only while the call ends.
    agenda: Option<Box<Agenda>>,
    /// Calls around this one, and this one.
    depth: u32,
    submits: bool,
}

impl<'a> Entry<'a> {
    /// The thread completes or signals something.
    #[inline]
    pub(crate) fn new(port: &'a dyn EngineEvents) -> Self {
        Self::begin(port, false)
    }

    /// The thread submits, or merely comes by.
    #[inline(always)]
    pub(crate) fn submitting(port: &'a dyn EngineEvents) -> Self {
        Self::begin(port, true)
    }

    #[inline(always)]
    fn begin(port: &'a dyn EngineEvents, submits: bool) -> Self {
        let begun = with(|local| {
            let depth = local.depth.get() + 1;
            local.depth.set(depth);
            let submitting = local.submitting.get() + u32::from(submits);
            local.submitting.set(submitting);
            let agenda = local.next.take().or_else(|| local.spare.borrow_mut().pop());
            (depth, submitting > 0, agenda)
        });
        let (depth, submitting, agenda) = begun.unwrap_or((0, true, None));
        let mut agenda = agenda.unwrap_or_default();
        agenda.submits = submitting;
        Self { port, agenda: Some(agenda), depth, submits }
    }

    #[inline]
    pub(crate) fn agenda(&mut self) -> &mut Agenda {
        self.agenda.get_or_insert_default()
    }

    /// Whether what there is to do is left to the call around this one.
    #[inline]
    pub(crate) fn is_nested(&self) -> bool {
        self.depth > DEPTH
    }

    /// Does what the call has left to do, or leaves it to the call around it. Returns the agenda if that is still its own.
    #[inline(never)]
    fn work_off(&self, mut left: Box<Agenda>) -> Option<Box<Agenda>> {
        match self.is_nested().then(|| self.port.share()).flatten() {
            Some(port) => {
                let _ = with(|local| local.inbox.borrow_mut().push_back((port, left)));
                None
            }
            None => {
                self.port.run(&mut left);
                Some(left)
            }
        }
    }

    /// Does what there is to do now, whatever the depth: the thread is about to sleep.
    pub(crate) fn flush(&mut self) {
        let port = self.port;
        port.run(self.agenda());
        drain_inbox();
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Entry<'_> {
    /// Ends the call as dropping it does, for callers that end many.
    #[inline(always)]
    pub(crate) fn end(mut self) {
        self.leave();
        // Nothing is left in it.
        std::mem::forget(self);
    }

    #[inline(always)]
    fn leave(&mut self) {
        let mut agenda = self.agenda.take();
        if let Some(left) = agenda.take_if(|agenda| !agenda.is_empty()) {
            agenda = self.work_off(left);
        }
        let nested = self.is_nested();
        let _ = with(|local| {
            if !nested && !local.inbox.borrow().is_empty() {
                drain_inbox();
            }
            local.depth.set(local.depth.get() - 1);
            local.submitting.set(local.submitting.get() - u32::from(self.submits));
            if let Some(agenda) = agenda {
                local.keep(agenda);
            }
        });
    }
}

/// While it is there, calls into any engine on this thread make their steps and leave what follows from them, as calls do
/// that are nested too deep. The caller that had it sees to it that [it is done](do_what_was_left).
pub(super) struct Leaving(());

impl Leaving {
    pub(super) fn begin() -> Self {
        let _ = with(|local| local.depth.set(local.depth.get() + DEPTH));
        Self(())
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let _ = with(|local| local.depth.set(local.depth.get() - DEPTH));
    }
}

/// Does what was left beside a [`Leaving`], unless this is nested too deep itself: then it is left to the call around
/// this one.
pub(super) fn do_what_was_left() {
    if is_nested() {
        return;
    }
    let _ = with(|local| local.depth.set(local.depth.get() + 1));
    drain_inbox();
    let _ = with(|local| local.depth.set(local.depth.get() - 1));
}

/// Works off what calls have left that were nested too deep, or beside a [`Leaving`].
#[cold]
fn drain_inbox() {
    while let Some((port, mut agenda)) = with(|local| local.inbox.borrow_mut().pop_front()).flatten() {
        // Some of the calls around which it was left may be over.
        agenda.submits = is_submitting();
        port.run(&mut agenda);
    }
}
