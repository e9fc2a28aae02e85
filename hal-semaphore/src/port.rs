//! The engine as seen from below and beside it: what completers, timelines and host tasks may tell it.
//!
//! One object-safe trait, so that a semaphore or a backend's completion thread does not carry the engine's type.

use crate::error::CompletionError;
use crate::failure::Failure;
use crate::ids::{QueueId, Ticket};
use crate::slab::Key;

/// What is called when a timeline gets somewhere, or fails to.
pub(crate) type Callback = Box<dyn FnOnce(Result<u64, Failure>) + Send>;

pub(crate) trait Port: Send + Sync {
    fn advanced(&self, timeline: Key, value: u64);
    fn failed(&self, timeline: Key, failure: &Failure);
    fn dropped(&self, timeline: Key);
    /// See [`Registration::promised`](crate::timeline::Registration::promised).
    fn promised(&self, timeline: Key) -> Option<u64>;
    /// The key of the callback, or nothing where it was called at once.
    fn subscribe(&self, timeline: Key, value: u64, callback: Callback) -> Option<Key>;
    fn unsubscribe(&self, callback: Key);
    fn complete(&self, queue: QueueId, epoch: u64, failure: Option<Failure>) -> Result<(), CompletionError>;
    fn unblock(&self, device: usize) -> Result<(), CompletionError>;
    fn lose(&self, device: usize, failure: Failure) -> Result<(), CompletionError>;
    fn host_done(&self, ticket: Ticket, result: Result<(), Failure>);
}
