// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Effects: what steps under a queue's lock leave to be done without it, and what the host does for the queue.
//!
//! A step adds an effect under the lock. [`QueueGuard::run`](super::queue::QueueGuard::run) takes all that were
//! gathered, releases the lock and [performs](Shared::perform) them, in the order of the fields of [`Effects`]:
//! timelines are recorded first, and work is reclaimed last (rule S5).

use super::Shared;
use super::deferred_work::DeferredWork;
use super::owed::{Owed, Undelivered};
use super::timeline_state::TimelineState;
use crate::backend::{Backend, Ended, HostTask};
use crate::engine_events::EngineEvents;
use crate::failure::Failure;
use crate::ids::Point;
use crate::mutation::{Mutation, is_mutated};
use crate::slab::Key;
use crate::timeline::{Registration, Subscriber, Timeline};
use crate::trace::TraceSteps;
use std::sync::{Arc, Weak};

/// Actions that run without the lock, in this order.
pub(super) struct Effects<B: Backend> {
    traces: TraceSteps,
    publications: Vec<Publication<B::Timeline>>,
    /// Foreign timelines that have deliveries, by identity, and the work that is reclaimed after these.
    foreign_timelines: Vec<usize>,
    undelivered: Option<Undelivered<B>>,
    subscriptions: Vec<(B::Timeline, u64, Arc<TimelineState>)>,
    /// Host operations to run, and failed ones to clean up.
    runs: Vec<(Key, B::Work, Option<Failure>)>,
    /// Early actions to try, and whether they were done.
    early: Vec<(Key, B::Work, Result<bool, Failure>)>,
    reclaims: Vec<Ended<B::Work>>,
    /// Timelines whose drop may end a subscription.
    garbage: Vec<Arc<TimelineState>>,
    /// The thread that performs them returns to the queue soon.
    is_quick: bool,
}

/// A step of a timeline of this engine, which its waiters may have to be notified of.
pub(super) struct Publication<T> {
    pub(super) timeline: T,
    pub(super) state: Result<u64, Failure>,
    pub(super) by: Option<Point>,
}

impl<B: Backend> Default for Effects<B> {
    fn default() -> Self {
        Self {
            traces: TraceSteps::default(),
            publications: Vec::new(),
            foreign_timelines: Vec::new(),
            undelivered: None,
            subscriptions: Vec::new(),
            runs: Vec::new(),
            early: Vec::new(),
            reclaims: Vec::new(),
            garbage: Vec::new(),
            is_quick: false,
        }
    }
}

impl<B: Backend> Effects<B> {
    /// What a subscriber of `tracing` is told.
    #[inline(always)]
    pub(super) fn traces(&mut self) -> &mut TraceSteps {
        &mut self.traces
    }

    /// A timeline of this engine has made a step.
    #[inline]
    pub(super) fn publish(&mut self, publication: Publication<B::Timeline>) {
        self.publications.push(publication);
    }

    /// A foreign timeline has a delivery. Returns its share of the work that is reclaimed behind it.
    pub(super) fn deliver(&mut self, identity: usize) -> Undelivered<B> {
        if !self.foreign_timelines.contains(&identity) {
            self.foreign_timelines.push(identity);
        }
        self.undelivered.get_or_insert_with(Undelivered::new).share()
    }

    /// The state of a foreign timeline subscribes to it.
    pub(super) fn subscribe(&mut self, timeline: B::Timeline, value: u64, state: Arc<TimelineState>) {
        self.subscriptions.push((timeline, value, state));
    }

    /// A host operation runs, or is cleaned up after this failure.
    pub(super) fn run(&mut self, op: Key, work: B::Work, failure: Option<Failure>) {
        self.runs.push((op, work, failure));
    }

    /// An early action is tried.
    pub(super) fn try_early(&mut self, op: Key, work: B::Work) {
        self.early.push((op, work, Ok(false)));
    }

    /// True if early actions were tried. Checking first is cheaper than draining an empty vector.
    #[inline]
    pub(super) fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// Takes the backend's answers about early actions.
    pub(super) fn take_early(&mut self) -> impl Iterator<Item = (Key, B::Work, Result<bool, Failure>)> {
        self.early.drain(..)
    }

    /// A state is dropped, which may end its subscription.
    pub(super) fn drop_state(&mut self, state: Arc<TimelineState>) {
        self.garbage.push(state);
    }

    /// An operation has ended, and its work is reclaimed, behind its deliveries if it has some (`delivers`).
    #[inline(always)]
    pub(super) fn end(
        &mut self,
        point: Option<Point>,
        work: &mut Option<B::Work>,
        failure: Option<Failure>,
        delivers: bool,
    ) {
        if work.is_some() || delivers || failure.is_some() || !self.extend_last(point) {
            self.push_ended(point, work.take(), failure, delivers);
        }
    }

    /// Merges the end of an operation that succeeded and left no work with the last end, if that is one as
    /// well.
    #[inline]
    fn extend_last(&mut self, point: Option<Point>) -> bool {
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
    fn push_ended(
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
        match self.undelivered.as_ref().filter(|_| delivers && !is_mutated(Mutation::ReclaimsBeforeDelivery))
        {
            Some(undelivered) => undelivered.keep(ended),
            None => self.reclaims.push(ended),
        }
    }

    /// True if all of them return soon. The caller says whether work is reclaimed later.
    fn are_quick(&self, reclaims_later: bool) -> bool {
        (reclaims_later || self.reclaims.is_empty())
            && self.subscriptions.is_empty()
            && self.runs.is_empty()
            && self.early.is_empty()
            && self.garbage.is_empty()
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        // One comparison is cheaper than seven.
        let left = self.traces.len()
            | self.publications.len()
            | self.foreign_timelines.len()
            | self.reclaims.len()
            | self.subscriptions.len()
            | self.runs.len()
            | self.early.len()
            | self.garbage.len();
        left == 0
    }
}

/// What the host does for a queue.
pub(super) struct HostSide<B: Backend> {
    /// The effects that the steps under this hold of the lock have added.
    gathered: Box<Effects<B>>,
    /// Memory for the next ones.
    spare: Option<Box<Effects<B>>>,
    /// Threads that perform effects of this queue.
    performing: usize,
    /// The number of them that return to the queue soon.
    quick: usize,
    /// Operations that run on the host.
    running: usize,
}

impl<B: Backend> Default for HostSide<B> {
    fn default() -> Self {
        Self { gathered: Box::default(), spare: None, performing: 0, quick: 0, running: 0 }
    }
}

impl<B: Backend> HostSide<B> {
    /// Effects to be added to.
    #[inline]
    pub(super) fn effects(&mut self) -> &mut Effects<B> {
        &mut self.gathered
    }

    #[inline(always)]
    pub(super) fn has_effects(&self) -> bool {
        !self.gathered.is_empty()
    }

    /// Takes the gathered effects for a thread that performs them. `busy`: it reclaims later.
    #[inline]
    pub(super) fn begin(&mut self, busy: bool) -> Box<Effects<B>> {
        let fresh = self.spare.take().unwrap_or_default();
        let mut effects = std::mem::replace(&mut self.gathered, fresh);
        effects.is_quick = effects.are_quick(busy);
        self.performing += 1;
        self.quick += usize::from(effects.is_quick);
        effects
    }

    /// The effects are performed, and the thread is back.
    #[inline]
    pub(super) fn end(&mut self, effects: &Effects<B>) {
        self.performing -= 1;
        self.quick -= usize::from(effects.is_quick);
    }

    /// Keeps the memory.
    pub(super) fn keep(&mut self, effects: Box<Effects<B>>) {
        self.spare = Some(effects);
    }

    /// True if a thread returns to the queue soon.
    pub(super) fn has_quick(&self) -> bool {
        self.quick > 0
    }

    /// True if no thread performs an effect, and none is gathered.
    pub(super) fn is_idle(&self) -> bool {
        self.performing == 0 && self.gathered.is_empty()
    }

    pub(super) fn begin_run(&mut self) {
        self.running += 1;
    }

    pub(super) fn end_run(&mut self) {
        self.running -= 1;
    }

    /// Operations that run on the host.
    pub(super) fn running(&self) -> usize {
        self.running
    }

    pub(super) fn trim(&mut self) {
        self.spare = None;
        if self.gathered.is_empty() {
            *self.gathered = Effects::default();
        }
    }
}

impl<T: Timeline> Publication<T> {
    /// True if both are values of one timeline.
    fn merges(&self, other: &Self) -> bool {
        let name = |publication: &Self| publication.timeline.registration().map(Registration::name);
        self.state.is_ok() && other.state.is_ok() && name(self).is_some() && name(self) == name(other)
    }

    /// Records the step with the timeline. Returns whether the timeline has waiters of its own.
    fn record(&self) -> bool {
        self.timeline.record_step(self.state.as_ref().copied(), self.by)
    }

    /// Wakes the timeline's own waiters. Dropped behind that, it may be the last handle on the timeline.
    pub(super) fn notify(&self) {
        self.timeline.notify(self.state.as_ref().copied());
    }
}

impl<B: Backend> Shared<B> {
    /// Performs effects without a lock. Effects that may call the program come last if this thread is `busy` or
    /// submits; in the second case another thread performs them.
    pub(super) fn perform(
        &self,
        index: u32,
        effects: &mut Effects<B>,
        busy: bool,
        deferred: &mut DeferredWork,
    ) {
        let Effects {
            traces,
            publications,
            foreign_timelines,
            undelivered,
            subscriptions,
            runs,
            early,
            reclaims,
            garbage,
            is_quick: _,
        } = effects;
        traces.tell();
        let notified = self.record_all(publications);
        let late_reclaims = self.take_late_reclaims(reclaims, busy);
        // Fast path: nothing calls the program.
        if let Some(undelivered) = undelivered.take() {
            let deliver = Owed::Deliver(std::mem::take(foreign_timelines), Some(undelivered));
            if notified.is_empty() {
                self.owe(deliver, deferred);
            } else {
                // A waiter that is notified may wait for a delivery.
                self.owe_elsewhere(deliver);
            }
        }
        if !notified.is_empty() || !late_reclaims.is_empty() {
            self.owe_ends(notified, late_reclaims, deferred);
        }
        if !subscriptions.is_empty() {
            for (timeline, value, timeline_state) in subscriptions.drain(..) {
                self.subscribe(&timeline, value, &timeline_state);
                self.drop_foreign(timeline);
                self.drop_foreign(timeline_state);
            }
        }
        for (_, work, done) in early {
            *done = self.foreign(|| self.backend.try_early(work)).flatten();
        }
        if !runs.is_empty() {
            self.run_all(index, runs);
        }
        if reclaims.len() == 1 {
            // Fast path: usually it is one, and popping it is cheaper than draining.
            self.reclaim_all(reclaims.pop());
        } else if !reclaims.is_empty() {
            self.reclaim_all(reclaims.drain(..));
        }
        if !garbage.is_empty() {
            for timeline_state in garbage.drain(..) {
                self.drop_foreign(timeline_state);
            }
        }
    }

    /// Owes the notifications, and the reclaims behind them.
    #[cold]
    fn owe_ends(
        &self,
        notified: Vec<Publication<B::Timeline>>,
        reclaims: Vec<Ended<B::Work>>,
        deferred: &mut DeferredWork,
    ) {
        for publication in notified {
            self.owe(Owed::Notify(publication), deferred);
        }
        for ended in reclaims {
            self.owe(Owed::Reclaim(ended), deferred);
        }
    }

    /// Takes the ends whose work may call the program, if those have to wait.
    #[inline]
    fn take_late_reclaims(&self, reclaims: &mut Vec<Ended<B::Work>>, waits: bool) -> Vec<Ended<B::Work>> {
        if !waits {
            return Vec::new();
        }
        let is_late = |ended: &mut Ended<B::Work>| {
            let work = &mut ended.work;
            work.is_some() && self.foreign(|| self.backend.calls_back(work)).unwrap_or(true)
        };
        // Fast path: usually there are none.
        let Some(first) = reclaims.iter_mut().position(is_late) else { return Vec::new() };
        let mut late = vec![reclaims.remove(first)];
        late.extend(reclaims.extract_if(first.., is_late));
        late
    }

    /// Hands host operations to the backend.
    fn run_all(&self, index: u32, runs: &mut Vec<(Key, B::Work, Option<Failure>)>) {
        let keep_alive = self.queue(index).keep_alive.lock().as_ref().and_then(Weak::upgrade);
        for ((key, work, failure), keep_alive) in runs.drain(..).zip(std::iter::repeat(keep_alive)) {
            // Without it the engine is being dropped, and nothing is left to run.
            if let Some(keep_alive) = keep_alive {
                let task = HostTask::new(keep_alive, index, key);
                let _ = self.foreign(|| match failure {
                    None => self.backend.run(task, work),
                    Some(failure) => self.backend.clean_up(task, work, &failure),
                });
            }
        }
    }

    /// Records steps with their timelines. Returns those whose timelines have waiters that the engine does not
    /// know: they are notified after the engine's own work, since they may take long, and not on a thread that
    /// submits.
    fn record_all(&self, publications: &mut Vec<Publication<B::Timeline>>) -> Vec<Publication<B::Timeline>> {
        let mut deferred = Vec::new();
        if publications.is_empty() {
            return deferred;
        }
        let has_waiters =
            |publication: &Publication<B::Timeline>| self.foreign(|| publication.record()).unwrap_or(true);
        if publications.len() == 1 {
            // Fast path: usually exactly one publication.
            if publications.first().is_some_and(has_waiters) {
                deferred.append(publications);
            } else {
                self.drop_foreign(publications.pop());
            }
            return deferred;
        }
        let mut left = publications.drain(..).peekable();
        while let Some(mut publication) = left.next() {
            // The largest of several values in a row for one timeline is enough.
            while let Some(next) = left.next_if(|next| publication.merges(next)) {
                let is_larger = next.state.as_ref().ok() >= publication.state.as_ref().ok();
                let smaller = if is_larger { std::mem::replace(&mut publication, next) } else { next };
                self.drop_foreign(smaller);
            }
            if has_waiters(&publication) {
                deferred.push(publication);
            } else {
                self.drop_foreign(publication);
            }
        }
        deferred
    }

    /// Subscribes to a foreign timeline on behalf of its state.
    pub(super) fn subscribe(&self, timeline: &B::Timeline, value: u64, timeline_state: &Arc<TimelineState>) {
        let engine: Weak<dyn EngineEvents> = self.this.clone();
        let subscriber = Subscriber::new(engine, timeline_state);
        match self.foreign(|| timeline.subscribe(value, subscriber.clone())) {
            Ok(subscription) => drop(timeline_state.set_subscription(Box::new(subscription))),
            Err(panic) => subscriber.notify(Err(panic)),
        }
    }
}
