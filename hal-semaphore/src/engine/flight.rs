// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What of a queue is on its device: the operations in flight, how far the backend was shown, has taken and has
//! reported them, and the one submission that is under way.

use crate::error::CompletionError;
use crate::failure::Failure;
use crate::ids::QueueId;
use crate::mutation::{Mutation, is_mutated};
use crate::native_event::EventIndex;
use crate::ring::{take_first, take_last_if};
use crate::slab::Key;
use std::collections::VecDeque;

/// An operation that is on its queue's device, or coalesced with one that is.
pub(super) struct InFlight {
    pub(super) op: Key,
    pub(super) epoch: u64,
    /// The device has it and reports it. A coalesced operation is not on the device, though the backend sees a
    /// marker.
    pub(super) on_device: bool,
    /// The epoch that another queue waits for in order to wait for this one: its own, or the last native one
    /// before a coalesced operation; zero if there is none.
    pub(super) native_epoch: u64,
    pub(super) event: Option<EventIndex>,
    pub(super) failure: Option<Failure>,
}

impl InFlight {
    /// True if it is over, after the device has completed the queue up to `completed`.
    pub(super) fn has_ended(&self, completed: u64) -> bool {
        self.epoch <= completed || self.failure.is_some() || !self.on_device
    }

    /// True if the device has completed it, or something behind it.
    fn is_reported(&self, completed: u64) -> bool {
        self.epoch <= completed
    }
}

/// See the [module documentation](self).
///
/// # Invariants
///
/// - `completed ≤ offered`. Epochs of `entries` ascend.
/// - Each entry names an operation that has not ended: [`QueueGuard::end`](super::queue::QueueGuard::end) ends it
///   after its entry was taken.
/// - Only the thread that [began a submission](Flight::begin_submission) adds entries, or takes refused ones back.
#[derive(Default)]
pub(super) struct Flight {
    entries: VecDeque<InFlight>,
    /// The last epoch that the backend was shown.
    offered: u64,
    /// The last epoch whose submission has returned.
    submitted: u64,
    /// The last epoch that the backend has reported.
    completed: u64,
    /// The last epoch that was work of the device and has retired.
    retired_native: u64,
    /// A batch is with the backend, or being made.
    submitting: bool,
    /// Completion arrived before a dependency of the oldest operation retired; retirement pauses.
    gated: bool,
    /// The queue once ran out of events, and records none from then on.
    eventless: bool,
}

impl Flight {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub(super) fn is_submitting(&self) -> bool {
        self.submitting
    }

    /// This thread alone takes queued operations and shows them to the backend until the submission ends.
    #[inline]
    pub(super) fn begin_submission(&mut self) {
        self.submitting = true;
    }

    #[inline]
    pub(super) fn end_submission(&mut self) {
        self.submitting = false;
    }

    /// Puts an operation in flight.
    #[inline]
    pub(super) fn push(&mut self, entry: InFlight) {
        self.entries.push_back(entry);
    }

    /// The backend is about to see the epochs up to this one.
    #[inline]
    pub(super) fn offer(&mut self, epoch: u64) {
        self.offered = epoch;
    }

    /// The backend did not take the operation at this epoch, nor the ones behind it, which are
    /// [taken back](Flight::take_refused).
    pub(super) fn refuse(&mut self, epoch: u64) {
        self.offered = self.offered.min(epoch - 1);
    }

    /// Takes the last operation in flight if its epoch is `refused` or a later one.
    pub(super) fn take_refused(&mut self, refused: u64) -> Option<InFlight> {
        take_last_if(&mut self.entries, |entry| entry.epoch >= refused)
    }

    /// The submission of this epoch has returned.
    #[inline]
    pub(super) fn set_submitted(&mut self, epoch: u64) {
        self.submitted = epoch;
    }

    /// The submission of everything in flight has returned.
    pub(super) fn set_all_submitted(&mut self) {
        self.submitted = self.newest().map_or(self.submitted, |entry| entry.epoch);
    }

    /// The last epoch whose submission has returned.
    #[inline]
    pub(super) fn submitted(&self) -> u64 {
        self.submitted
    }

    /// The last epoch that the backend has reported.
    pub(super) fn completed(&self) -> u64 {
        self.completed
    }

    /// The oldest operation in flight.
    #[inline]
    pub(super) fn oldest(&self) -> Option<&InFlight> {
        self.entries.front()
    }

    /// The newest operation in flight.
    #[inline]
    pub(super) fn newest(&self) -> Option<&InFlight> {
        self.entries.back()
    }

    /// The operations in flight by their places, oldest first.
    pub(super) fn get(&self, place: usize) -> Option<&InFlight> {
        self.entries.get(place)
    }

    /// The operation in flight at this epoch.
    pub(super) fn at(&self, epoch: u64) -> Option<&InFlight> {
        let place = self.entries.partition_point(|entry| entry.epoch < epoch);
        self.entries.get(place).filter(|entry| entry.epoch == epoch)
    }

    /// True if nothing in flight is before this epoch.
    pub(super) fn is_oldest(&self, epoch: u64) -> bool {
        self.oldest().is_none_or(|entry| entry.epoch >= epoch)
    }

    /// The place of the first operation behind this epoch. Usually few are.
    pub(super) fn first_behind(&self, epoch: u64) -> usize {
        self.entries.len() - self.entries.iter().rev().take_while(|entry| entry.epoch > epoch).count()
    }

    /// The epoch and the event by which another queue waits for everything that is in flight now. If nothing is,
    /// a bare epoch names the last native work; its event may mean something else by now.
    pub(super) fn native_point(&self, records_events: bool) -> (u64, Option<EventIndex>) {
        match self.newest() {
            Some(before) => (before.native_epoch, before.event),
            None if records_events => (0, None),
            None => (self.retired_native, None),
        }
    }

    #[inline]
    pub(super) fn is_eventless(&self) -> bool {
        self.eventless
    }

    /// The queue has run out of events.
    pub(super) fn run_out_of_events(&mut self) {
        self.eventless = true;
    }

    /// Records a report.
    pub(super) fn record_report(
        &mut self,
        id: QueueId,
        epoch: u64,
        failure: Option<Failure>,
    ) -> Result<(), CompletionError> {
        if epoch > self.offered {
            return Err(CompletionError::NotSubmitted { queue: id, epoch, submitted: self.offered });
        }
        if let Some(failure) = failure {
            self.fail(epoch, failure);
        }
        self.completed = self.completed.max(epoch);
        Ok(())
    }

    /// The operation at this epoch fails when it retires.
    pub(super) fn fail(&mut self, epoch: u64, failure: Failure) {
        let at = self.entries.partition_point(|entry| entry.epoch < epoch);
        if let Some(entry) = self.entries.get_mut(at).filter(|entry| entry.epoch == epoch) {
            entry.failure.get_or_insert(failure);
        }
    }

    /// True if a report of this epoch comes from inside its submission.
    pub(super) fn is_being_submitted(&self, epoch: u64) -> bool {
        self.submitting && epoch > self.submitted
    }

    /// True if the oldest operation in flight can retire, by the state of the queue alone.
    #[inline(always)]
    pub(super) fn is_due(&self, is_lost: bool) -> bool {
        !self.gated
            && self.entries.front().is_some_and(|entry| {
                // A lost device has completed what it reported, and nothing else.
                entry.epoch <= self.submitted
                    && entry.has_ended(self.completed)
                    && (!is_lost || entry.is_reported(self.completed))
            })
    }

    /// Pauses retirement, or continues it.
    pub(super) fn set_gated(&mut self, gated: bool) {
        self.gated = gated;
    }

    /// Takes the oldest operation, to retire it.
    #[inline]
    pub(super) fn take_oldest(&mut self) -> Option<InFlight> {
        let entry = take_first(&mut self.entries)?;
        if entry.on_device {
            self.retired_native = entry.epoch;
        }
        Some(entry)
    }

    /// True if a lost device will not report something in flight. Operations that it was not given end with
    /// those that have not started.
    #[inline(always)]
    pub(super) fn has_unreported(&self) -> bool {
        (!self.submitting || is_mutated(Mutation::SweepsWhileSubmitting))
            && self.entries.back().is_some_and(|entry| !entry.is_reported(self.completed))
    }

    /// Takes an operation that a lost device has not reported. Reported ones retire as usual, once their
    /// dependencies have; the others are behind them.
    pub(super) fn take_unreported(&mut self) -> Option<InFlight> {
        let completed = self.completed;
        if self.entries.front().is_some_and(|first| !first.is_reported(completed)) {
            return take_first(&mut self.entries);
        }
        take_last_if(&mut self.entries, |last| !last.is_reported(completed))
    }

    pub(super) fn trim(&mut self) {
        self.entries.shrink_to_fit();
    }
}
