// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Errors: the calls that the engine refuses, and why. A refused call has changed nothing.

use crate::failure::Failure;
use crate::ids::{MAX_VALUE, QueueId};

/// Why an engine could not be made.
#[derive(Clone, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum EngineError {
    /// A device without queues cannot run anything.
    #[error("the device declares no queue; it needs between 1 and 64")]
    NoQueues,
    /// Affinities are masks of 64 bits.
    #[error("the device declares {queues} queues; it has at most 64")]
    TooManyQueues { queues: usize },
    /// Callbacks need a thread on which nothing is submitted.
    #[error("{failure}")]
    NoThread { failure: Failure },
}

/// Why a submission was refused. No wait was registered and no signal promised.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum SubmitError {
    /// The affinity names queues the device does not have.
    #[error("queue affinity {mask:#x} names queues that the device does not have; it has {known:#x}")]
    UnknownQueue { mask: u64, known: u64 },
    /// The affinity names no queue at all.
    #[error("the queue affinity selects no queue of the device; it has {known:#x}")]
    NoQueue { known: u64 },
    /// The value can never be reached.
    #[error("value {value} is past the largest a timeline can reach, {MAX_VALUE}")]
    ValueTooLarge { value: u64 },
    /// A timeline only grows.
    #[error("the operation would signal {value}, but the timeline is at {current} already")]
    SignalNotAbove { value: u64, current: u64 },
    /// The engine was shut down.
    #[error("the engine is shut down and takes no more work")]
    ShutDown,
}

/// Why a timeline could not be signalled from the host.
#[derive(Clone, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum SignalError {
    /// A timeline only grows.
    #[error("cannot signal {value}: the timeline is at {current} already")]
    NotAbove { value: u64, current: u64 },
    /// The value can never be reached.
    #[error("value {value} is past the largest a timeline can reach, {MAX_VALUE}")]
    ValueTooLarge { value: u64 },
    /// The timeline failed before; it will not move again.
    #[error("cannot signal {value}: the timeline failed: {failure}")]
    Failed { value: u64, failure: Failure },
}

/// Why a host wait ended without its condition.
#[derive(Clone, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum WaitError {
    /// The time is up.
    #[error("the deadline passed before the timeline reached the value")]
    DeadlineExceeded,
    /// The timeline has failed.
    #[error("the timeline failed: {failure}")]
    Failed { failure: Failure },
    /// The value can never be reached.
    #[error("value {value} is past the largest a timeline can reach, {MAX_VALUE}")]
    ValueTooLarge { value: u64 },
}

/// Why a report of a backend was refused: a defect of the backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum CompletionError {
    /// The engine is gone: the report is dropped.
    #[error("the engine is gone")]
    Gone,
    /// No such queue.
    #[error("queue {index} does not exist; the engine has {queues}")]
    UnknownQueue { index: usize, queues: usize },
    /// The engine never handed that epoch to the backend.
    #[error("{queue} reports epoch {epoch}, but only epochs up to {submitted} were submitted to it")]
    NotSubmitted { queue: QueueId, epoch: u64, submitted: u64 },
}

/// Counts of the work that was still running when a shutdown ran out of time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{in_flight} operations on the device and {host} on the host had not ended when the time was up; \
     their signals have failed, their resources stay until they end"
)]
pub struct Unfinished {
    /// Operations that the device had not reported.
    pub in_flight: usize,
    /// Host operations that had not returned.
    pub host: usize,
}
