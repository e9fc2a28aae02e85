//! Ending things early: cancelling, losing a device, shutting down.
//!
//! What nobody has begun (held, or ordered and not yet issued) ends at once. What a device or the host has is theirs
//! until they say so: a lost device says so for all of its work; a shutdown asks, waits, and in the end lets go of
//! the signals, so that nobody waits for ever, but never of the resources, which the hardware may still touch.

use super::state::{Core, OpState, Publication};
use super::{Cancel, Shared};
use crate::backend::Backend;
use crate::clock::{Clock, Time};
use crate::error::Unfinished;
use crate::failure::{Code, Failure, Origin};
use crate::ids::Ticket;
use crate::slab::Key;

impl<B: Backend> Core<B> {
    pub(super) fn cancel(&mut self, ticket: Ticket, failure: &Failure) -> Cancel {
        if !self.ops.contains(ticket.0) {
            Cancel::Ended
        } else if self.doom(ticket.0, failure) {
            Cancel::Cancelled
        } else {
            Cancel::TooLate
        }
    }

    /// The device is gone: everything on it ends with this failure, and everything that comes later.
    pub(super) fn lose(&mut self, device: usize, failure: Failure) {
        let Some(spec) = self.devices.get_mut(device) else { return };
        if spec.lost.is_some() {
            return;
        }
        spec.lost = Some(failure.clone());
        let queues = spec.first_queue..spec.first_queue + spec.queues;
        for index in queues.clone() {
            self.queue(index).room.resume(true);
            self.mark_dirty(index);
        }
        let held: Vec<Key> = self
            .ops
            .keys()
            .filter(|&key| {
                self.ops.get(key).is_some_and(|op| op.state == OpState::Held && queues.contains(&op.queue))
            })
            .collect();
        for key in held {
            self.doom(key, &failure);
        }
    }

    /// Ends everything that a queue of a lost device still has; whoever issues for it right now comes back here.
    pub(super) fn sweep(&mut self, index: u32) {
        let Some(failure) = self.device_of(index).lost.clone() else { return };
        if self.queue(index).issuing {
            return;
        }
        while let Some(entry) = self.queue(index).in_flight.pop_front() {
            let point = self.queue_ref(index).point(entry.epoch);
            if entry.native {
                self.give_room(index, 1);
            }
            let failure = entry.failure.unwrap_or_else(|| failure.clone());
            self.end(entry.op, Some(failure), Some(point), None);
        }
        while let Some(key) = self.queue(index).ready.pop_front() {
            self.doom(key, &failure);
        }
    }

    /// Takes no more work and ends everything that has not begun.
    pub(super) fn close(&mut self, failure: &Failure) {
        self.closing = true;
        let waiting: Vec<Key> = self.ops.keys().collect();
        for key in waiting {
            self.doom(key, failure);
        }
    }

    /// Fails the signals of what has not ended and keeps the rest of it.
    fn forsake(&mut self, failure: &Failure) -> Unfinished {
        let keys: Vec<Key> = self.ops.keys().collect();
        let mut unfinished = Unfinished { in_flight: 0, host: 0 };
        for key in keys {
            let Some(op) = self.op(key) else { continue };
            match op.state {
                OpState::Issued => unfinished.in_flight += 1,
                OpState::Running => unfinished.host += 1,
                OpState::Held | OpState::Ordered => continue,
            }
            for signal in std::mem::take(&mut op.signals) {
                if let Some(slot) = signal.slot {
                    self.fail_slot(slot, failure);
                    self.drop_user(slot);
                }
                let state = Err(failure.clone());
                let foreign = signal.slot.is_none();
                self.effects.publications.push(Publication {
                    timeline: signal.timeline,
                    state,
                    by: None,
                    foreign,
                });
            }
        }
        unfinished
    }
}

pub(super) fn shutdown_failure() -> Failure {
    Failure::with_origin(
        Code::Cancelled,
        Origin::Shutdown,
        "the engine was shut down before the operation ended",
    )
}

impl<B: Backend> Shared<B> {
    /// Closes without waiting; what the devices have keeps the engine alive until they have reported it.
    pub(super) fn close(&self) {
        let mut core = self.core.lock();
        let failure = shutdown_failure();
        core.close(&failure);
        if core.ops.len() > 0
            && let Some(this) = self.this.upgrade()
        {
            core.keepalive = Some(this);
        }
        self.pump(core);
        self.abort_outstanding(&failure);
    }

    fn abort_outstanding(&self, failure: &Failure) {
        let core = self.core.lock();
        let busy: Vec<usize> = core
            .devices
            .iter()
            .enumerate()
            .filter(|(_, device)| device.outstanding > 0 && device.lost.is_none())
            .map(|(device, _)| device)
            .collect();
        drop(core);
        for device in busy {
            if let Err(panic) = self.foreign(|| self.backend.abort(device, failure)) {
                self.lose_panicked(device, panic);
            }
        }
    }

    pub(super) fn shut_down(&self, clock: &dyn Clock, grace: Time, limit: Time) -> Result<(), Unfinished> {
        let failure = shutdown_failure();
        let mut core = self.core.lock();
        core.close(&failure);
        self.pump(core);
        if self.rest(clock, grace.min(limit)) {
            return Ok(());
        }
        self.abort_outstanding(&failure);
        if self.rest(clock, limit) {
            return Ok(());
        }
        let mut core = self.core.lock();
        if core.is_at_rest() {
            return Ok(());
        }
        let unfinished = core.forsake(&failure);
        self.pump(core);
        Err(unfinished)
    }

    /// Waits until nothing is under way, at most until a moment. Says whether it got there.
    fn rest(&self, clock: &dyn Clock, until: Time) -> bool {
        loop {
            self.poll_devices();
            let mut core = self.core.lock();
            if core.is_at_rest() {
                return true;
            }
            let pending = core.notifications.acquire();
            core.resting.push(pending.clone());
            let polled = core.is_polled();
            drop(core);
            let now = clock.now();
            if now < until {
                clock.sleep(
                    &pending,
                    Some(if polled { until.min(now + super::POLL_INTERVAL) } else { until }),
                );
            }
            let mut core = self.core.lock();
            core.resting.retain(|resting| !resting.same(&pending));
            core.notifications.release(pending);
            let at_rest = core.is_at_rest();
            drop(core);
            if at_rest {
                return true;
            }
            if clock.now() >= until {
                return false;
            }
        }
    }
}
