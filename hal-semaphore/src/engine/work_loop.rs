// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The two loops that do the engine's work: a thread runs its deferred work, and works for a queue under its
//! lock.
//!
//! The loops feed each other. [`QueueGuard::run`] has a queue's lock. Each round routes runnable operations,
//! retires completed ones, applies releases for this queue, performs effects without the lock and submits a
//! batch, until nothing is left or another thread takes over. [`EngineEvents::run`] has no lock. It runs the
//! deferred work in this order: releases, losses, queues to visit, promises, the rest of timelines with many
//! waits, and what is owed last. The first loop defers the work for other queues; the second one locks those
//! queues.

use super::deferred_work::{DeferredWork, EngineCall, Release};
use super::owed::Owed;
use super::queue::QueueGuard;
use super::timeline_state::{Promise, RELEASE_BATCH, Target, TimelineState};
use super::{Dependency, Shared};
use crate::backend::{Backend, Completion};
use crate::engine_events::EngineEvents;
use crate::error::CompletionError;
use crate::failure::Failure;
use crate::ids::QueueId;
use crate::mutation::{Mutation, is_mutated};
use crate::ring::take_first;
use crate::slab::Key;
use crate::sync::{Ordering, fence};
use crate::timeline::{DueCallbacks, Timeline};
use std::sync::Arc;

/// How many operations are routed in one round.
const ROUTE_BATCH: usize = 64;

impl<B: Backend> QueueGuard<'_, B> {
    /// Works for the queue until nothing is left, or until another thread takes over.
    #[inline]
    pub(super) fn run(self) {
        self.run_after(0);
    }

    /// Works for the queue now, or defers that to the outer calls if this one is deeply nested.
    #[inline(always)]
    pub(super) fn finish(self, nested: bool) {
        if nested {
            self.deferred.visit_queue(self.index);
        } else {
            self.run_after(0);
        }
    }

    /// Works for the queue, which has had `rounds` rounds.
    #[inline(always)]
    pub(super) fn run_after(self, rounds: usize) {
        if self.is_done(rounds) {
            self.leave_idle();
        } else {
            self.run_rounds(rounds);
        }
    }

    /// True if nothing is left to do after `rounds` rounds.
    #[inline(always)]
    fn is_done(&self, rounds: usize) -> bool {
        let has_releases = rounds == 0 && !self.deferred.released.is_empty();
        !has_releases && !self.has_more()
    }

    /// Releases the lock of a queue without work.
    #[inline(always)]
    fn leave_idle(self) {
        let wakes = self.state.ending.is_closing() && self.state.is_idle();
        let shared = self.shared;
        self.unlock();
        if wakes {
            shared.wake_idle_waiters();
        }
    }

    /// Works in rounds until nothing is left. The first round has work.
    #[inline(never)]
    fn run_rounds(mut self, mut round: usize) {
        loop {
            let hands_over = self.has_successor(round);
            if hands_over || (round > 0 && is_mutated(Mutation::LeavesWithoutSuccessor)) {
                return self.unlock();
            }
            if self.has_runnable() {
                self.route_some();
            }
            if self.can_retire() {
                self.retire();
            }
            self.apply_own_releases();
            if self.state.host.has_effects() {
                self = self.perform_unlocked();
            }
            if self.deferred.released.is_empty() && !self.has_runnable() && self.can_submit() {
                // Failures have been applied by now.
                self = self.submit_batch();
            }
            if !self.deferred.released.is_empty() {
                // Other queues wait for the releases: they run first.
                self.deferred.yielding_queue = Some(self.index);
                return self.unlock();
            }
            round += 1;
            if self.is_done(round) {
                return self.leave_idle();
            }
        }
    }

    #[inline(always)]
    fn has_runnable(&self) -> bool {
        self.state.order.has_runnable() || self.state.ending.is_sweeping()
    }

    #[inline(always)]
    fn can_retire(&self) -> bool {
        self.state.is_due() || self.needs_sweep()
    }

    #[inline(always)]
    fn has_more(&self) -> bool {
        self.has_runnable() || self.can_retire() || self.can_submit() || self.state.host.has_effects()
    }

    fn route_some(&mut self) {
        if self.state.ending.is_sweeping() {
            self.fail_chunk();
        }
        for _ in 0..ROUTE_BATCH {
            if !self.state.order.has_runnable() && !self.deferred.released.is_empty() {
                // The previous link of a chain releases the next: their signals are published together.
                self.apply_own_releases();
            }
            let Some(key) = self.state.order.take_runnable() else { break };
            self.route(key);
        }
    }

    /// Applies releases for this queue.
    #[inline]
    fn apply_own_releases(&mut self) {
        while let Some((target, _)) = self.deferred.released.front() {
            if queue_of(*target) != self.index {
                break;
            }
            let Some((target, release)) = take_first(&mut self.deferred.released) else {
                unreachable!("it is there, as was just seen")
            };
            self.apply_release(target, release);
        }
    }

    fn apply_release(&mut self, target: Target, release: Release) {
        match (target, release) {
            (Target::Op { key, wait, .. }, Release::Reached) => self.reach(key, wait),
            (Target::Op { key, wait, .. }, Release::Ordered(dependency)) => {
                self.satisfy(key, wait, dependency, None)
            }
            (Target::Op { key, .. } | Target::OpFailure { key, .. }, Release::Failed(failure)) => {
                self.fail_unstarted(key, &failure);
            }
            (Target::Gate(_), _) => self.state.flight.set_gated(false),
            (Target::FullQueue { asked, .. }, _) => {
                if !self.state.window.resume(asked) && self.state.window.is_full() {
                    self.device.add_full(self.index);
                }
            }
            (Target::OpFailure { .. }, _) => {}
        }
    }

    /// Performs the gathered effects without the lock.
    fn perform_unlocked(mut self) -> Self {
        let index = self.index;
        // Effects that call the program come after the thread's other work.
        let busy = self.deferred.submits
            || !self.deferred.is_empty()
            || self.has_runnable()
            || self.can_retire()
            || self.can_submit();
        let mut effects = self.state.host.begin(busy);
        (self, ()) = self.unlocked(|shared, deferred| shared.perform(index, &mut effects, busy, deferred));
        self.state.host.end(&effects);
        if effects.has_early() {
            for (key, work, done) in effects.take_early() {
                self.finish_early(key, work, done);
            }
        }
        self.state.host.keep(effects);
        self
    }
}

/// The queue that a release is for.
fn queue_of(target: Target) -> u32 {
    match target {
        Target::Op { queue, .. }
        | Target::OpFailure { queue, .. }
        | Target::Gate(queue)
        | Target::FullQueue { queue, .. } => queue,
    }
}

impl<B: Backend> Shared<B> {
    /// Releases the waits that a promise satisfies now: those of other queues, and those of its own that are left.
    fn apply_promise(&self, timeline_state: Arc<TimelineState>, due: Promise, deferred: &mut DeferredWork) {
        let source = self.queue(due.queue);
        let mut state = timeline_state.lock();
        // The promise is gone if it was fulfilled or the timeline failed, which released everything.
        let Some(promise) = state.find(due.value, due.queue, due.epoch) else { return };
        let accepted = promise.epoch <= source.submitted.load(Ordering::Acquire);
        let mut left = RELEASE_BATCH;
        for waiting in state.waiting(promise.value) {
            let dependency = if waiting == promise.queue {
                Dependency { queue: promise.queue, epoch: promise.epoch, event: None }
            } else if accepted && promise.native_epoch != 0 && self.device.awaitable {
                Dependency { queue: promise.queue, epoch: promise.native_epoch, event: promise.event }
            } else {
                continue;
            };
            while left > 0
                && let Some((_, target)) = state.pop(waiting, promise.value)
            {
                left -= 1;
                if let Some(event) = dependency.event {
                    self.queue(dependency.queue).events.lock().retain(event);
                }
                deferred.released.push_back((target, Release::Ordered(dependency)));
            }
        }
        timeline_state.prune(&mut state);
        drop(state);
        if left == 0 {
            deferred.promises_due.push_back((timeline_state, due));
        }
    }

    /// Applies the next release, with those behind it for the same queue.
    fn apply_next_release(&self, target: Target, release: Release, deferred: &mut DeferredWork) {
        let index = queue_of(target);
        deferred.released.push_front((target, release));
        QueueGuard::lock(self, index, deferred).apply_own_releases();
        deferred.visit_queue(index);
    }

    /// Drops a value of a foreign type, whose drop is foreign code.
    pub(super) fn drop_foreign<T>(&self, value: T) {
        let _ = self.foreign(move || drop(value));
    }

    /// Raises a timeline of this engine for an operation that has ended. Returns false if it had failed before. If it
    /// panics when it is shown the value, it fails, and the failure is returned.
    pub(super) fn reach(
        &self,
        timeline_state: &Arc<TimelineState>,
        timeline: &B::Timeline,
        value: u64,
        deferred: &mut DeferredWork,
    ) -> Result<bool, Failure> {
        let mut shown = Ok(());
        let show = || {
            self.foreign(|| timeline.show(Ok(value))).unwrap_or_else(|panic| {
                shown = Err(panic.clone());
                Some(panic)
            })
        };
        let is_step = timeline_state.reach(value, show, deferred);
        shown.map(|()| is_step)
    }

    /// Fails a timeline of this engine, even if it panics when it is shown the failure.
    pub(super) fn fail(
        &self,
        timeline_state: &Arc<TimelineState>,
        timeline: &B::Timeline,
        failure: &Failure,
        deferred: &mut DeferredWork,
    ) {
        let show = |reached| self.foreign(|| timeline.show(Err((reached, failure)))).unwrap_or(None);
        timeline_state.fail(failure, show, deferred);
    }

    /// Runs foreign code. A panic is counted and becomes a failure: the caller decides what that means. Under the
    /// model checkers it panics.
    pub(super) fn foreign<R>(&self, call: impl FnOnce() -> R) -> Result<R, Failure> {
        #[cfg(any(loom, shuttle))]
        return Ok(call());
        #[cfg(not(any(loom, shuttle)))]
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).map_err(|payload| {
            self.panics.fetch_add(1, Ordering::Relaxed);
            Failure::panicked("the backend", payload)
        })
    }

    /// Polls the device, if it has work and does not report by itself.
    pub(super) fn poll_device(&self) {
        if self.device.completion != Completion::Callback
            && self.outstanding() > 0
            && let Err(failure) = self.foreign(|| self.backend.poll())
        {
            // The backend has panicked: the state of its device is unknown.
            self.lose(failure);
        }
    }
}

impl<B: Backend> EngineEvents for Shared<B> {
    fn share(&self) -> Option<Arc<dyn EngineEvents>> {
        self.this.upgrade().map(|this| this as Arc<dyn EngineEvents>)
    }

    fn run(&self, deferred: &mut DeferredWork) {
        loop {
            if let Some((target, release)) = take_first(&mut deferred.released) {
                self.apply_next_release(target, release, deferred);
            } else if let Some(index) = deferred.yielding_queue.take() {
                // Behind the queues for which something was released.
                deferred.visit_queue(index);
            } else if let Some(failure) = deferred.loss.take() {
                self.spread_loss(failure, deferred);
            } else if let Some(index) = take_first(&mut deferred.queues) {
                QueueGuard::lock(self, index, deferred).run();
            } else if let Some((timeline_state, due)) = take_first(&mut deferred.promises_due) {
                self.apply_promise(timeline_state, due, deferred);
            } else if let Some(timeline_state) = take_first(&mut deferred.drains) {
                timeline_state.drain(deferred);
            } else {
                break;
            }
        }
        // Last, because they may take long, or wait for the work before them.
        if std::mem::take(&mut deferred.owes) {
            if deferred.submits {
                self.hand_over();
            } else {
                self.work_off();
            }
        }
    }

    fn retire_timeline(&self, timeline_state: &Arc<TimelineState>) {
        self.timelines.fetch_sub(1, Ordering::Relaxed);
        // The caller drops the last other reference right after this.
        if Arc::strong_count(timeline_state) == 1 {
            let mut spare = self.spare_timelines.lock();
            if spare.len() < super::SPARE_TIMELINES {
                spare.push(timeline_state.clone());
            }
        }
    }

    fn work_off(&self) {
        Shared::work_off(self);
    }

    fn call_back(&self, callbacks: DueCallbacks, deferred: &mut DeferredWork) {
        for (callback, state) in callbacks {
            self.owe(Owed::CallBack(callback, state), deferred);
        }
    }

    fn complete(&self, queue: QueueId, epoch: u64, failure: Option<Failure>) -> Result<(), CompletionError> {
        let known = self.queues.get(queue.index()).is_some_and(|known| known.id == queue);
        if !known {
            return Err(CompletionError::UnknownQueue { index: queue.index(), queues: self.queues.len() });
        }
        let mut failure = failure;
        if let Some(reported) = self.record_inside_submit(queue, epoch, &mut failure) {
            return reported;
        }
        let mut call = EngineCall::new(self);
        let nested = call.is_nested();
        let mut guard = QueueGuard::lock(self, queue.index, call.deferred());
        let reported = guard.report(epoch, failure);
        guard.finish(nested);
        drop(call);
        super::deferred_callbacks::run_stranded();
        reported
    }

    fn unblock(&self) {
        let mut call = EngineCall::new(self);
        self.device.unblocks.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        self.device.wake_full(true, call.deferred());
    }

    fn lose(&self, failure: Failure) {
        let mut call = EngineCall::new(self);
        call.deferred().loss = Some(failure);
    }

    fn host_done(&self, queue: u32, key: Key, result: Result<(), Failure>) {
        let mut call = EngineCall::new(self);
        let mut guard = QueueGuard::lock(self, queue, call.deferred());
        guard.end_host_work(key, result);
        drop(guard);
        call.deferred().visit_queue(queue);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::engine::wait_lists::ListOwner;
    use crate::testing::{SoftBackend, device};
    use smallvec::SmallVec;

    #[test]
    fn promise_satisfies_waits_of_other_queues_one_batch_at_a_time() {
        let engine = crate::engine::Engine::new(SoftBackend::new(device(2))).unwrap();
        let (shared, mut deferred) = (engine.shared(), DeferredWork::default());
        let timeline_state = shared.new_timeline_state(0);
        for wait in (0u32..).take(2 * RELEASE_BATCH + 1) {
            let key = crate::slab::Slab::<()>::new().next_key();
            timeline_state.add_timepoint(
                &mut timeline_state.lock(),
                ListOwner::queue(1),
                1,
                Target::Op { queue: 1, key, wait, has_others: false },
            );
        }
        // The queue has submitted epoch zero, and nothing else.
        let promise = Promise { value: 1, queue: 0, epoch: 0, native_epoch: 1, event: None };
        timeline_state.promise(promise, &mut SmallVec::new(), &mut deferred);
        deferred.promises_due.push_back((timeline_state.clone(), promise));
        for (ordered, left) in [(RELEASE_BATCH, 1), (2 * RELEASE_BATCH, 1), (2 * RELEASE_BATCH + 1, 0)] {
            let (timeline_state, due) = deferred.promises_due.pop_front().unwrap();
            shared.apply_promise(timeline_state, due, &mut deferred);
            assert_eq!((deferred.released.len(), deferred.promises_due.len()), (ordered, left));
        }
        assert!(!timeline_state.has_listeners(), "no wait is left to satisfy");
    }
}
