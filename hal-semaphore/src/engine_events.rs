// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The calls that completers, timelines and host tasks make into the engine.
//!
//! One object-safe trait, so that a semaphore or a backend's completion thread does not carry the engine's
//! type. `engine/work_loop.rs` implements it.

use crate::engine::DeferredWork;
use crate::engine::TimelineState;
use crate::error::CompletionError;
use crate::failure::Failure;
use crate::ids::QueueId;
use crate::slab::Key;
use crate::timeline::DueCallbacks;
use std::sync::Arc;

/// Keeps an engine alive on behalf of one queue. Its reference count shares no cache line with another queue's.
///
/// Completers have weak references to these, one for each queue. A reporting thread holds a strong one during
/// its call; strong references to the engine itself would be counted in one place that all queues share.
#[repr(align(128))]
pub(crate) struct KeepAlive(pub(crate) Arc<dyn EngineEvents>);

pub(crate) trait EngineEvents: Send + Sync {
    /// A strong reference, unless the engine is being dropped.
    fn share(&self) -> Option<Arc<dyn EngineEvents>>;
    /// Runs deferred work and its consequences. Called without a lock.
    fn run(&self, deferred: &mut DeferredWork);
    /// A timeline has lost its registration.
    fn retire_timeline(&self, timeline_state: &Arc<TimelineState>);
    /// Works off what the engine owes the program.
    fn work_off(&self);
    /// Has callbacks of the program run, at the end of this thread's call or on another thread.
    fn call_back(&self, callbacks: DueCallbacks, deferred: &mut DeferredWork);
    fn complete(&self, queue: QueueId, epoch: u64, failure: Option<Failure>) -> Result<(), CompletionError>;
    fn unblock(&self);
    fn lose(&self, failure: Failure);
    /// A host operation has ended. The key of one that ended before names nothing.
    fn host_done(&self, queue: u32, key: Key, result: Result<(), Failure>);
}
