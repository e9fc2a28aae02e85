// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Shutdown: it ends what has not started, asks the device to stop, waits, and finally fails the signals, so that no
//! thread waits forever. It never releases resources that the hardware may still use.

use super::Shared;
use super::deferred_work::EngineCall;
use super::op::OpState;
use super::queue::QueueGuard;
use crate::backend::{Backend, Completion};
use crate::clock::{Clock, Time};
use crate::engine_events::{EngineEvents, KeepAlive};
use crate::error::Unfinished;
use crate::failure::{Code, Failure, Origin};
use crate::mutation::{Mutation, is_mutated};
use crate::notification::Wakeup;
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
    /// Fails the signals of the started operations in one chunk, and keeps their resources. Returns their
    /// counts; `None` after the last chunk.
    fn fail_unfinished_signals(&mut self, chunk: u32, failure: &Failure) -> Option<Unfinished> {
        let keys: SmallVec<[Key; 64]> = self.state.ops.keys_of_chunk(chunk)?.collect();
        let mut unfinished = Unfinished { in_flight: 0, host: 0 };
        let shared = self.shared;
        for key in keys {
            let Some(op) = self.state.ops.get_mut(key) else { continue };
            match op.state {
                OpState::Submitted => unfinished.in_flight += 1,
                OpState::Running => unfinished.host += 1,
                OpState::Pending | OpState::Queued => continue,
            }
            let mut signals = std::mem::take(&mut op.signals);
            // Those for foreign timelines stay, too: the end of the operation is delivered behind this failure and
            // refused there, and its work is reclaimed after that.
            op.signals = signals
                .iter()
                .filter(|signal| shared.own_state(&signal.timeline).is_none())
                .cloned()
                .collect();
            // A cleanup that runs belongs to an earlier failure.
            let cause = op.failure.clone().unwrap_or_else(|| failure.clone());
            self.make_signals(&mut signals, Some(&cause), None);
        }
        Some(unfinished)
    }
}

impl<B: Backend> Shared<B> {
    /// Takes no more work and fails all operations that have not started.
    fn stop_taking_work(&self, failure: &Failure) {
        self.closing.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        let mut call = EngineCall::new(self);
        for index in self.indices() {
            let mut guard = QueueGuard::lock(self, index, call.deferred());
            if guard.state.ending.close() {
                guard.state.ending.begin_sweep(failure);
            }
            drop(guard);
            call.deferred().visit_queue(index);
        }
    }

    /// Closes without waiting. `keep_alives` keep the engine until its device has reported everything.
    pub(super) fn close(&self, keep_alives: Vec<Arc<KeepAlive>>) {
        let failure = shutdown_failure();
        self.stop_taking_work(&failure);
        self.idle_waiters.lock().keep_alives = keep_alives;
        self.wake_idle_waiters();
        self.abort_outstanding(&failure);
    }

    fn abort_outstanding(&self, failure: &Failure) {
        if self.outstanding() > 0
            && self.device.lost().is_none()
            && let Err(panic) = self.foreign(|| self.backend.abort(failure))
        {
            self.lose(panic);
        }
    }

    pub(super) fn shut_down(&self, clock: &dyn Clock, grace: Time, limit: Time) -> Result<(), Unfinished> {
        let failure = shutdown_failure();
        // Callbacks may take long: other threads run them, and this one waits for them until `limit`.
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
        self.work_off_stranded();
        if self.is_engine_idle() { Ok(()) } else { Err(unfinished) }
    }

    /// True if nothing is under way, and no thread is about to run a callback.
    fn is_engine_idle(&self) -> bool {
        let forgets = is_mutated(Mutation::ShutdownForgetsCallbacks);
        let all_called = || forgets || self.owed.is_done();
        if is_mutated(Mutation::IdleChecksQueuesLast) && !all_called() {
            return false;
        }
        let idle = self.queues.iter().all(|queue| {
            let state = queue.lock();
            state.is_idle() || (forgets && state.ops.len() == 0)
        });
        // What a queue has come to owe is counted before it becomes idle, so the queues are checked first.
        idle && (is_mutated(Mutation::IdleChecksQueuesLast) || all_called())
    }

    /// Wakes the threads that wait for the engine to be idle: a queue of a closing engine has become idle, or an
    /// entry of the owed list has returned.
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

    /// Waits until the engine is idle, until `until` at most. Returns whether it is.
    fn wait_until_idle(&self, clock: &dyn Clock, until: Time) -> bool {
        loop {
            self.poll_device();
            // What calls around this one have deferred may be what the engine is busy with.
            EngineCall::new(self).flush();
            let wakeup = Wakeup::new();
            self.idle_waiters.lock().waiting.push(wakeup.clone());
            let is_idle = self.is_engine_idle();
            let now = clock.now();
            if !is_idle && now < until {
                let polls = self.device.completion != Completion::Callback && self.outstanding() > 0;
                clock.sleep(&wakeup, Some(if polls { until.min(now + super::POLL_INTERVAL) } else { until }));
            }
            self.idle_waiters.lock().waiting.retain(|waiting| !waiting.same(&wakeup));
            if is_idle || self.is_engine_idle() {
                return true;
            }
            if clock.now() >= until {
                return false;
            }
        }
    }
}
