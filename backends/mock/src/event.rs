// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Native events, as a device has them that waits for nothing else: signalled or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Signalled from the end of the job that records it until it is given to the next one.
///
/// It knows neither of queues nor of epochs: an event that is reused while a queue still waits for it makes that queue wait
/// for another job.
#[derive(Clone, Debug, Default)]
pub struct MockEvent(Arc<AtomicBool>);

impl MockEvent {
    /// A job that will record it is on its queue.
    pub(crate) fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// That job has ended.
    pub(crate) fn record(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn is_recorded(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
