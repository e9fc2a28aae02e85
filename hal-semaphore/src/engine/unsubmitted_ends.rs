// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Ends of operations that are not submitted: one that is pending or queued ends at once if a wait fails, if the
//! [device is lost](super::device_loss) or if the engine [shuts down](super::shutdown).
//!
//! An operation that is on a device or the host ends when those report it. A walk over all operations of a queue
//! goes in chunks, so that no lock is held for long.

use super::op::{OpState, WaitRecord};
use super::queue::QueueGuard;
use super::timeline_state::Target;
use super::wait_lists::ListOwner;
use crate::backend::Backend;
use crate::failure::Failure;
use crate::mutation::{Mutation, is_mutated};
use crate::slab::Key;
use smallvec::SmallVec;

impl<B: Backend> QueueGuard<'_, B> {
    /// Makes an operation end with this failure, unless it is submitted or runs on the host.
    pub(super) fn fail_unstarted(&mut self, key: Key, failure: &Failure) {
        let Some(op) = self.op(key) else { return };
        let started = !matches!(op.state, OpState::Pending | OpState::Queued);
        if started && !is_mutated(Mutation::FailsStarted) {
            return;
        }
        if op.failure.is_none() {
            op.failure = Some(failure.clone());
            self.state.order.push_runnable(key);
        }
    }

    /// Ends a failed operation. If it has a cleanup, the host runs that first and ends it then.
    pub(super) fn end_or_clean_up(&mut self, key: Key, failure: Failure) {
        let all_end = self.state.ending.ends_all();
        let op = self.live(key);
        if op.is_cleaning_up() {
            return;
        }
        if !op.cleans_up(all_end) {
            return self.end(key, Some(failure), None);
        }
        let had_place = op.state == OpState::Queued;
        if let Some(work) = self.start_on_host(key) {
            self.state.host.effects().run(key, work, Some(failure));
        }
        if had_place {
            self.state.count_queued_ended();
        }
    }

    /// Makes the operation fail when a timeline fails on which a wait with such a producer depends.
    pub(super) fn listen_for_failures(&mut self, key: Key, which: impl Fn(u32) -> bool) {
        let count = self.state.ops.get(key).map_or(0, |op| op.waits.len());
        for number in 0..count {
            // The call may end the operation.
            let record = self.state.ops.get(key).and_then(|op| op.waits.get(number));
            if record.and_then(WaitRecord::producer).is_some_and(&which) {
                self.listen_for_failure(key, number);
            }
        }
    }

    /// For one wait.
    pub(super) fn listen_for_failure(&mut self, key: Key, number: usize) {
        let index = self.index;
        let Some(record) = self.op(key).and_then(|op| op.waits.get_mut(number)) else { return };
        if record.failure_entry.is_some() {
            return;
        }
        let mut timeline_state = record.timeline.lock();
        if record.timeline.value() >= record.value {
            return;
        }
        let failure = timeline_state.failure().cloned();
        if failure.is_none() {
            let target = Target::OpFailure { queue: index, key };
            record.failure_entry = Some(record.timeline.add_timepoint(
                &mut timeline_state,
                ListOwner::HOST,
                record.value,
                target,
            ));
        }
        let large = timeline_state.becomes_large().then(|| record.timeline.clone());
        drop(timeline_state);
        if let Some(large) = large {
            self.shared.remember_large(&large);
        }
        if let Some(failure) = failure {
            self.fail_unstarted(key, &failure);
        }
    }

    /// The operation stays queued for a while: failures of waits for other queues must reach it.
    pub(super) fn listen_for_failures_of_other_queues(&mut self, key: Key) {
        let own = self.index;
        self.listen_for_failures(key, |producer| producer != own);
    }

    /// Continues to fail operations that have not started: one chunk.
    pub(super) fn fail_chunk(&mut self) {
        let Some((chunk, failure)) = self.state.ending.next_chunk() else { return };
        let Some(keys) = self.state.ops.keys_of_chunk(chunk) else {
            return self.state.ending.end_sweep();
        };
        let keys: SmallVec<[Key; 64]> = keys.collect();
        for key in keys {
            self.fail_unstarted(key, &failure);
        }
    }

    /// Ends an operation that ran on the host.
    pub(super) fn end_host_work(&mut self, key: Key, result: Result<(), Failure>) {
        let Some(op) = self.state.ops.get(key).filter(|op| op.state == OpState::Running) else {
            return;
        };
        // A cleaned-up operation has its failure. A host call that succeeds on a lost device fails all the
        // same.
        let failure = op.failure.clone().or(result.err()).or(self.state.ending.lost().cloned());
        self.end(key, failure, None);
    }
}
