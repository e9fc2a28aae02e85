// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Device loss: the first cause wins, and every operation fails with it.
//!
//! A lost device reports everything by being lost: the sweep of its queues retires what it had.

use super::Shared;
use super::deferred_work::DeferredWork;
use super::queue::QueueGuard;
use crate::backend::Backend;
use crate::failure::Failure;

impl<B: Backend> QueueGuard<'_, B> {
    /// Loses the device. The other queues follow through the deferred work.
    pub(super) fn lose_device(&mut self, failure: Failure) {
        let cause = self.device.record_loss(failure);
        self.mark_lost(&cause);
        self.deferred.loss = Some(cause);
    }

    /// Marks the queue as one of a lost device.
    fn mark_lost(&mut self, failure: &Failure) {
        if self.state.ending.lose(failure) {
            self.state.window.resume(true);
            self.state.ending.begin_sweep(failure);
        }
    }
}

impl<B: Backend> Shared<B> {
    /// The device is lost: all operations fail with this failure, and so do later ones.
    pub(super) fn spread_loss(&self, failure: Failure, deferred: &mut DeferredWork) {
        // The first cause counts.
        let failure = self.device.record_loss(failure);
        for index in self.indices() {
            QueueGuard::lock(self, index, deferred).mark_lost(&failure);
            deferred.visit_queue(index);
        }
    }
}
