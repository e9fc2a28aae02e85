// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The engine's events: what completers, timelines and host tasks may report to it.
//!
//! One object-safe trait, so that a semaphore or a backend's completion thread does not carry the engine's type: what they hold of
//! the engine is called its *port*. `engine/work.rs` implements it.

use crate::engine::DeferredWork;
use crate::engine::TimelineState;
use crate::error::CompletionError;
use crate::failure::Failure;
use crate::ids::{QueueId, Ticket};
use std::sync::Arc;

/// A callback that is called when a timeline has reached a value or has failed.
pub(crate) type Callback = Box<dyn FnOnce(Result<u64, Failure>) + Send>;

/// A reference that keeps an engine alive on behalf of one queue.
///
/// Completers have weak references to these, one for each queue: a thread that reports takes a strong one for the length of
/// the call. A reference to the engine itself would be counted in one place that all queues share.
pub(crate) trait KeepAlive: Send + Sync {
    fn engine(&self) -> &dyn EngineEvents;
}

pub(crate) trait EngineEvents: Send + Sync {
    /// A reference to keep, unless the engine is on its way out.
    fn share(&self) -> Option<Arc<dyn EngineEvents>>;
    /// Does what an agenda says, and what follows from it. Called without a lock.
    fn run(&self, deferred: &mut DeferredWork);
    /// A slot has lost its registration.
    fn retire_timeline(&self, timeline_state: &Arc<TimelineState>);
    /// A slot has memory to give back one day.
    fn remember_large(&self, timeline_state: &Arc<TimelineState>);
    /// One callback more or less waits for its timeline.
    fn count_callback(&self, more: bool);
    fn complete(&self, queue: QueueId, epoch: u64, failure: Option<Failure>) -> Result<(), CompletionError>;
    fn unblock(&self, device: usize) -> Result<(), CompletionError>;
    fn lose(&self, device: usize, failure: Failure) -> Result<(), CompletionError>;
    fn host_done(&self, ticket: Ticket, result: Result<(), Failure>);
}
