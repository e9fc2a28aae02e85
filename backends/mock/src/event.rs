// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Native events, as a device has them that supports no other waits: signalled or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Signalled from the end of the job that records it until it is reused for another job.
///
/// It knows neither queues nor epochs: reusing an event while a queue still waits for it makes that queue wait for
/// another job.
#[derive(Clone, Debug, Default)]
pub struct MockEvent(Arc<AtomicBool>);

impl MockEvent {
    /// Resets the event, when a job that records it is submitted.
    pub(crate) fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Signals the event, when that job has ended.
    pub(crate) fn record(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn is_recorded(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
