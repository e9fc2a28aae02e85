// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Ending things early: cancelling, losing a device, shutting down.
//!
//! What has not begun (held, or ordered and not yet issued) ends at once. What a device or the host has is theirs
//! until they say so: a lost device says so for all of its work; a shutdown asks, waits, and in the end lets go of
//! the signals, so that no thread waits for ever, but never of the resources, which the hardware may still touch.
//!
//! All of it goes through a queue a chunk of operations at a time, so that no lock is held for long.

use super::deferred_work::EngineCall;
use super::queue::{OpState, QueueGuard, UnstartedSweep};
use super::{Cancel, Shared};
use crate::backend::{Backend, Completion};
use crate::clock::{Clock, Time};
use crate::engine_events::KeepAlive;
use crate::error::Unfinished;
use crate::failure::{Code, Failure, Origin};
use crate::ids::Ticket;
use crate::mutation::{Mutation, is_mutated};
use crate::slab::Key;
use crate::sync::{Ordering, fence};
use smallvec::SmallVec;
use std::sync::Arc;

pub(super) fn shutdown_failure() -> Failure {
    Failure::with_origin(
        Code::Cancelled,
        Origin::Shutdown,
        "the engine was shut down before the operation ended",
    )
}

impl<B: Backend> QueueGuard<'_, B> {
    /// The device of this queue is gone. The others of its queues hear of it through the agenda.
    pub(super) fn lose_device(&mut self, failure: Failure) {
        let cause = self.device.record_loss(failure);
        self.mark_lost(&cause);
        self.deferred.losses.push((self.queue.id.device(), cause));
    }

    /// The queue's device is gone.
    fn mark_lost(&mut self, failure: &Failure) {
        if self.state.lost.is_none() {
            self.state.lost = Some(failure.clone());
            self.state.window.resume(true);
            self.fail_all_unstarted(failure);
        }
    }

    pub(super) fn fail_all_unstarted(&mut self, failure: &Failure) {
        self.state.unstarted_sweep = Some(UnstartedSweep { failure: failure.clone(), chunk: 0 });
    }

    /// Goes on with ending what has not begun, one chunk of operations.
    pub(super) fn fail_chunk(&mut self) {
        let Some(UnstartedSweep { failure, chunk }) = self.state.unstarted_sweep.take() else { return };
        let Some(keys) = self.state.ops.keys_of_chunk(chunk) else { return };
        let keys: SmallVec<[Key; 64]> = keys.collect();
        for key in keys {
            self.fail_unstarted(key, &failure);
        }
        self.state.unstarted_sweep = Some(UnstartedSweep { failure, chunk: chunk + 1 });
    }

    /// The host is done with an operation.
    pub(super) fn end_host_work(&mut self, ticket: Ticket, result: Result<(), Failure>) {
        let Some(op) = self.state.ops.get(ticket.key).filter(|op| op.state == OpState::Running) else {
            return;
        };
        // What was cleaned up has failed before. A host call that ends well on a device that is lost meanwhile has still lost its device.
        let failure = op.failure.clone().or(result.err()).or(self.state.lost.clone());
        self.end(ticket.key, failure, None);
    }

    fn cancel(&mut self, key: Key, failure: &Failure) -> Cancel {
        match self.state.ops.get(key) {
            None => Cancel::Ended,
            // It is on its way out with another failure.
            Some(op) if op.failure.is_some() => Cancel::TooLate,
            Some(_) if self.has_started(key) && !is_mutated(Mutation::CancelIgnoresState) => Cancel::TooLate,
            Some(_) => {
                self.fail_unstarted(key, failure);
                Cancel::Cancelled
            }
        }
    }

    /// Fails the signals of what has begun in one chunk of operations, and keeps the rest of it. Counts what the device
    /// and the host have; nothing past the last chunk.
    fn fail_unfinished_signals(&mut self, chunk: u32, failure: &Failure) -> Option<Unfinished> {
        let keys: SmallVec<[Key; 64]> = self.state.ops.keys_of_chunk(chunk)?.collect();
        let mut unfinished = Unfinished { in_flight: 0, host: 0 };
        for key in keys {
            let Some(op) = self.state.ops.get_mut(key) else { continue };
            match op.state {
                OpState::Submitted => unfinished.in_flight += 1,
                OpState::Running => unfinished.host += 1,
                OpState::Pending | OpState::Queued => continue,
            }
            let mut signals = std::mem::take(&mut op.signals);
            // What is being cleaned up had failed before.
            let cause = op.failure.clone().unwrap_or_else(|| failure.clone());
            self.make_signals(&mut signals, Some(&cause), None);
        }
        Some(unfinished)
    }
}

impl<B: Backend> Shared<B> {
    pub(super) fn cancel(&self, ticket: Ticket) -> Cancel {
        if ticket.engine != self.id {
            // It names nothing here.
            return Cancel::Ended;
        }
        let failure = Failure::with_origin(Code::Cancelled, Origin::Cancelled, "the operation was cancelled");
        let mut call = EngineCall::submitting(self);
        let mut guard = QueueGuard::lock(self, ticket.queue, call.deferred());
        let outcome = guard.cancel(ticket.key, &failure);
        drop(guard);
        call.deferred().visit_queue(ticket.queue);
        outcome
    }

    /// The device is gone: everything on it ends with this failure, and everything that comes later.
    pub(super) fn spread_loss(&self, device: usize, failure: Failure, deferred: &mut super::DeferredWork) {
        #[expect(clippy::indexing_slicing, reason = "only the loss of a device that exists is taken down")]
        let spec = &self.devices[device];
        // The first cause is the cause of everything.
        let failure = spec.record_loss(failure);
        for index in spec.first_queue..spec.first_queue + spec.queues {
            QueueGuard::lock(self, index, deferred).mark_lost(&failure);
            deferred.visit_queue(index);
        }
    }

    /// Takes no more work and ends everything that has not begun.
    fn stop_taking_work(&self, failure: &Failure) {
        self.closing.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        let mut call = EngineCall::new(self);
        for index in self.indices() {
            let mut guard = QueueGuard::lock(self, index, call.deferred());
            if !guard.state.closing {
                guard.state.closing = true;
                guard.fail_all_unstarted(failure);
            }
            drop(guard);
            call.deferred().visit_queue(index);
            call.flush();
        }
    }

    /// Closes without waiting; what the devices have keeps the engine alive until they have reported it.
    pub(super) fn close(&self, keep_alives: Vec<Arc<dyn KeepAlive>>) {
        let failure = shutdown_failure();
        self.stop_taking_work(&failure);
        self.idle_waiters.lock().keep_alives = keep_alives;
        self.wake_idle_waiters();
        self.abort_outstanding(&failure);
    }

    fn abort_outstanding(&self, failure: &Failure) {
        for (number, device) in self.devices.iter().enumerate() {
            if device.outstanding(&self.queues) == 0 || device.lost().is_some() {
                continue;
            }
            if let Err(panic) = self.foreign(|| self.backend.abort(number, failure)) {
                self.lose_panicked(number, panic);
            }
        }
    }

    pub(super) fn shut_down(&self, clock: &dyn Clock, grace: Time, limit: Time) -> Result<(), Unfinished> {
        let failure = shutdown_failure();
        // Callbacks may take as long as they like: other threads run them, and this one waits for them, until `limit`.
        let without_callbacks = EngineCall::submitting(self);
        self.stop_taking_work(&failure);
        if self.wait_until_idle(clock, grace.min(limit)) {
            return Ok(());
        }
        self.abort_outstanding(&failure);
        if self.wait_until_idle(clock, limit) {
            return Ok(());
        }
        let mut unfinished = Unfinished { in_flight: 0, host: 0 };
        let mut call = EngineCall::new(self);
        for index in self.indices() {
            for chunk in 0.. {
                let mut guard = QueueGuard::lock(self, index, call.deferred());
                let found = guard.fail_unfinished_signals(chunk, &failure);
                drop(guard);
                call.deferred().visit_queue(index);
                call.flush();
                let Some(found) = found else { break };
                unfinished.in_flight += found.in_flight;
                unfinished.host += found.host;
            }
        }
        drop(call);
        drop(without_callbacks);
        self.run_stranded_callbacks();
        if self.is_engine_idle() { Ok(()) } else { Err(unfinished) }
    }

    /// Whether nothing is under way anywhere, and no thread is on its way out with a callback.
    fn is_engine_idle(&self) -> bool {
        let forgets = is_mutated(Mutation::ShutdownForgetsCallbacks);
        let all_called = || forgets || self.callbacks_left.load(Ordering::Acquire) == 0;
        if is_mutated(Mutation::IdleChecksQueuesLast) && !all_called() {
            return false;
        }
        let idle = self.queues.iter().all(|queue| {
            let state = queue.lock();
            state.is_idle() || (forgets && state.ops.len() == 0)
        });
        // What a queue leaves to others is counted before the queue is at rest, so the queues are looked at first.
        idle && (is_mutated(Mutation::IdleChecksQueuesLast) || all_called())
    }

    /// A queue of a closing engine has come to rest, or something deferred has run: threads that wait for that look again.
    pub(super) fn wake_idle_waiters(&self) {
        let mut idle_waiters = self.idle_waiters.lock();
        let waiting = std::mem::take(&mut idle_waiters.waiting);
        let kept = !idle_waiters.keep_alives.is_empty();
        drop(idle_waiters);
        for wakeup in waiting {
            wakeup.raise();
        }
        if kept && self.is_engine_idle() {
            let keep_alives = std::mem::take(&mut self.idle_waiters.lock().keep_alives);
            drop(keep_alives);
        }
    }

    /// Waits until nothing is under way, at most until a moment. Returns whether it got there.
    fn wait_until_idle(&self, clock: &dyn Clock, until: Time) -> bool {
        loop {
            self.poll_and_flush(&mut EngineCall::new(self));
            let wakeup = self.notifications.lock().acquire();
            self.idle_waiters.lock().waiting.push(wakeup.clone());
            let is_idle = self.is_engine_idle();
            let now = clock.now();
            if !is_idle && now < until {
                let polls = self.devices.iter().any(|device| {
                    device.completion != Completion::Callback && device.outstanding(&self.queues) > 0
                });
                clock.sleep(
                    &wakeup,
                    Some(if polls { until.min(now + super::POLL_INTERVAL * 32) } else { until }),
                );
            }
            self.idle_waiters.lock().waiting.retain(|waiting| !waiting.same(&wakeup));
            self.notifications.lock().release(wakeup);
            if is_idle || self.is_engine_idle() {
                return true;
            }
            if clock.now() >= until {
                return false;
            }
        }
    }
}
