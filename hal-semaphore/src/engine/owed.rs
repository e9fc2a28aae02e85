// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What the engine owes the program: foreign code that may call the program, in one list for each engine.
//!
//! A step under a lock makes signals, releases waits and gathers [effects](super::effects). Once the thread has let
//! go of its locks it performs the effects. What of them may call the program (another driver's timeline, a waiter, a
//! callback, work that calls back when it is reclaimed) it adds to the list as [`Owed`]. There is no other way to the
//! program.
//!
//! # Who works the list off (S8)
//!
//! A program may hold a lock while it submits or waits, and take the same lock in a callback. So:
//!
//! - A thread that completes, signals or fails something works the list off as the last part of its call
//!   ([`EngineEvents::run`](crate::engine_events::EngineEvents)): whatever it has released is under way by then, for a
//!   callback may wait for that.
//! - A thread that [submits or waits](super::deferred_work::is_submitting) hands the list over to another thread
//!   ([`Backend::defer`]), once for each entry. The other threads count on that: if one blocks in an entry, another
//!   one comes for the next.
//! - Deliveries that go with notifications are always handed over: a waiter that is notified may wait for one.
//!
//! Several threads work the list off together and take its entries in order. An entry may begin before the one ahead
//! of it has returned, so none may rely on that.
//!
//! # Order of an end (S5)
//!
//! 1. A report means that the results are visible.
//! 2. Under the queue's lock, the signals move their timelines, or are posted to the [outbox](super::outbox).
//!    A timeline of this engine moves after the operation's deliveries are posted, so that what a thread does after
//!    it has seen the timeline move is behind them.
//! 3. Without the lock, the timelines record their steps. Then the work is reclaimed: at once, or behind the
//!    notifications if it may call the program and the thread is busy. If the operation has deliveries, the last of
//!    them reclaims it ([`Undelivered`]).
//!
//! A notification wakes threads that see a signal already made, so work may be reclaimed before it returns.
//!
//! # Shutdown (S10)
//!
//! `left` counts entries that have not returned. A thread adds its entries while its queue counts it as performing,
//! so a shutdown that checks the queues first and `left` afterwards misses none.

use super::Shared;
use super::deferred_callbacks::DeferredCallbacks;
use super::deferred_work::{DeferredWork, is_submitting};
use super::effects::Publication;
use crate::backend::{Backend, Ended};
use crate::failure::Failure;
use crate::sync::{AtomicU64, Mutex, Ordering, fence};
use crate::timeline::Callback;
use std::collections::VecDeque;
use std::sync::Arc;

/// An entry of the list.
pub(super) enum Owed<B: Backend> {
    /// Makes the deliveries to these foreign timelines. The thread that has gathered them releases its share.
    Deliver(Vec<usize>, Option<Undelivered<B>>),
    /// Wakes a timeline's own waiters.
    Notify(Publication<B::Timeline>),
    CallBack(Callback, Result<u64, Failure>),
    /// Reclaims work that calls the program.
    Reclaim(Ended<B::Work>),
}

/// See the [module documentation](self).
pub(super) struct OwedList<B: Backend> {
    entries: Mutex<VecDeque<Owed<B>>>,
    left: AtomicU64,
}

impl<B: Backend> Default for OwedList<B> {
    fn default() -> Self {
        Self { entries: Mutex::new(VecDeque::new()), left: AtomicU64::new(0) }
    }
}

impl<B: Backend> OwedList<B> {
    fn push(&self, owed: Owed<B>) {
        self.left.fetch_add(1, Ordering::AcqRel);
        self.entries.lock().push_back(owed);
    }

    fn take(&self) -> Option<Owed<B>> {
        self.entries.lock().pop_front()
    }

    fn count_down(&self) {
        self.left.fetch_sub(1, Ordering::AcqRel);
    }

    /// How many entries have not returned.
    pub(super) fn left(&self) -> u64 {
        self.left.load(Ordering::Acquire)
    }

    /// True if every entry has returned.
    pub(super) fn is_done(&self) -> bool {
        self.left() == 0
    }

    /// True if no thread is inside an entry. A thread that is continues with the rest.
    fn is_stranded(&self) -> bool {
        let waiting = self.entries.lock().len() as u64;
        self.left() == waiting
    }

    pub(super) fn trim(&self) {
        self.entries.lock().shrink_to_fit();
    }
}

/// Work of operations that ended together and have deliveries. It is shared by the deliveries and by the thread that
/// gathers them; whoever [releases](Shared::release) the last share reclaims it.
pub(super) struct Undelivered<B: Backend>(Arc<Mutex<KeptWork<B>>>);

struct KeptWork<B: Backend> {
    shares: usize,
    ends: Vec<Ended<B::Work>>,
}

impl<B: Backend> Undelivered<B> {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(KeptWork { shares: 1, ends: Vec::new() })))
    }

    /// A share for one delivery.
    pub(super) fn share(&self) -> Self {
        self.0.lock().shares += 1;
        Self(self.0.clone())
    }

    /// Adds work.
    pub(super) fn keep(&self, ended: Ended<B::Work>) {
        self.0.lock().ends.push(ended);
    }

    /// Gives a share back. Returns the work with the last one.
    fn release(self) -> Vec<Ended<B::Work>> {
        let mut kept = self.0.lock();
        kept.shares -= 1;
        if kept.shares == 0 { std::mem::take(&mut kept.ends) } else { Vec::new() }
    }
}

impl<B: Backend> Shared<B> {
    /// Adds an entry. This thread works the list off at the end of its call, or another thread if this one must not.
    #[cold]
    pub(super) fn owe(&self, owed: Owed<B>, deferred: &mut DeferredWork) {
        if deferred.submits {
            self.owe_elsewhere(owed);
        } else {
            self.owed.push(owed);
            deferred.owes = true;
        }
    }

    /// Adds an entry for another thread.
    pub(super) fn owe_elsewhere(&self, owed: Owed<B>) {
        self.owed.push(owed);
        self.hand_over();
    }

    /// Has another thread work the list off.
    pub(super) fn hand_over(&self) {
        let Some(this) = self.this.upgrade() else {
            // The engine is being dropped: no thread can submit any more.
            return self.work_off();
        };
        let _ = self.foreign(|| self.backend.defer(DeferredCallbacks::of(this)));
    }

    /// Works the list off, together with other threads that do.
    pub(super) fn work_off(&self) {
        while let Some(owed) = self.owed.take() {
            let _ = self.foreign(|| self.settle(owed));
            self.owed.count_down();
            // This thread sees that the engine is closing, or the closing thread sees that the entry has returned.
            fence(Ordering::SeqCst);
            if self.is_closing() {
                self.wake_idle_waiters();
            }
        }
    }

    /// Works the list off if no thread does, since there may be none left that would, and if this thread may call the
    /// program. A thread that does may be waiting for something of this thread's.
    pub(super) fn work_off_stranded(&self) {
        if self.owed.is_stranded() && !is_submitting() {
            self.work_off();
        }
    }

    fn settle(&self, owed: Owed<B>) {
        match owed {
            Owed::Deliver(timelines, undelivered) => {
                // The last delivery reclaims: this thread may go on with deliveries of others.
                undelivered.into_iter().for_each(|undelivered| self.release(undelivered));
                self.deliver_all(&timelines);
            }
            Owed::Notify(publication) => publication.notify(),
            Owed::CallBack(callback, state) => callback(state),
            Owed::Reclaim(ended) => self.backend.reclaim(ended),
        }
    }

    /// Releases a share. With the last one, the work is reclaimed.
    pub(super) fn release(&self, undelivered: Undelivered<B>) {
        self.reclaim_all(undelivered.release());
    }

    pub(super) fn reclaim_all(&self, reclaims: impl IntoIterator<Item = Ended<B::Work>>) {
        for ended in reclaims {
            let _ = self.foreign(|| self.backend.reclaim(ended));
        }
    }
}
