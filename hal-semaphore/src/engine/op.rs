// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! An operation that has not ended, with its waits and signals.
//!
//! # The states of an operation
//!
//! ```text
//!            submit              last wait reached or satisfied by order
//!              │                            │
//!              ▼                            ▼
//!           Pending ────────────────────► Queued ─────────► Submitted ─────► ended
//!              │                            │   in a batch     │   retired in queue order
//!              │                            │                  └── a device was full: Queued again
//!              ├─► Running ─────────────────┼──────────────────────────────► ended
//!              │     Host actions: all waits reached; until HostTask::finish
//!              ├─► Running ─► Pending       │
//!              │     Early actions: done, and a barrier from here on; or not done, and a Host action
//!              ├────────────────────────────┴──────────────────────────────► ended
//!              │     a wait failed · device lost · shut down (a Cleanup by way of Running)
//!              └───────────────────────────────────────────────────────────► ended
//!                    barriers: all waits reached
//! ```
//!
//! An operation whose queue is idle goes from `Pending` to `Submitted` [at once](super::fast_path). *Ended* is
//! no state: [`QueueGuard::end`](super::queue::QueueGuard::end) removes the record, so it happens once.
//!
//! # The states of a wait
//!
//! ```text
//!   registered ── value reached ──────────────────────────► released
//!       │      ── its producer was queued in this queue, ─► satisfied by order ── value reached ──► forgotten
//!       │         or submitted to a queue that this one          │
//!       │         can wait for natively                          └── timeline failed ──► its operation fails
//!       └──────── timeline failed ──► its operation, host wait or callback fails
//! ```
//!
//! A timepoint is no object of its own, but a [`Target`](super::timeline_state::Target) in an ordered list of a
//! [`TimelineState`]. Each waiting queue has a list there, because order that satisfies a wait of one queue
//! does not satisfy one of another; and the host has one. So a signal looks at nothing that it does not release
//! (rule S7).

use super::deferred_work::Dependency;
use super::timeline_state::TimelineState;
use crate::backend::Backend;
use crate::failure::Failure;
use crate::native_event::EventIndex;
use crate::trace::Trace;
use smallvec::SmallVec;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpState {
    /// Some wait is neither reached nor satisfied by order, or the operation was not routed yet. An operation
    /// that was dequeued to be ended is pending as well, and keeps its epoch.
    Pending,
    /// It has its epoch in its queue. The backend has not seen it.
    Queued,
    /// In flight: the backend has its batch, or it is coalesced with such work. The submission has returned if
    /// its epoch is at most what [`Flight`](super::flight::Flight) has as submitted.
    Submitted,
    /// The host runs it.
    Running,
}

/// The kind of an operation; see [`Action`](super::Action).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ActionKind {
    Queue,
    Host,
    Early,
    Marker,
    Barrier,
}

impl ActionKind {
    /// Its name, for people. A barrier with a cleanup is a barrier.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Queue => "work of the device",
            Self::Host => "work of the host",
            Self::Early => "early work",
            Self::Marker => "marker",
            Self::Barrier => "barrier",
        }
    }
}

/// A wait that was not reached when its operation was submitted.
///
/// # Invariants
///
/// The operation counts exactly the waits in the states `InQueueList` and `InHostList` in
/// [`remaining`](Op::remaining). The event of a dependency is retained for the wait until its operation
/// ends.
#[derive(Clone, Debug)]
pub(super) struct WaitRecord {
    pub(super) timeline: Arc<TimelineState>,
    pub(super) value: u64,
    pub(super) state: WaitState,
    /// The number of its entry in the host's list, while it waits for a failure.
    pub(super) failure_entry: Option<u32>,
}

/// How a wait is going to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitState {
    /// Blocked; the list of the operation's queue has it under this number. A promise may satisfy it by order.
    InQueueList(u32),
    /// Blocked; the host's list has it under this number. Only the value releases it.
    InHostList(u32),
    /// Satisfied by order.
    Dependency(Dependency),
    /// The value is reached.
    Reached,
}

impl WaitRecord {
    /// The work that satisfies it by order.
    pub(super) fn dependency(&self) -> Option<Dependency> {
        if let WaitState::Dependency(dependency) = self.state { Some(dependency) } else { None }
    }

    /// The queue of that work.
    pub(super) fn producer(&self) -> Option<u32> {
        self.dependency().map(|dependency| dependency.queue)
    }
}

#[derive(Clone)]
pub(super) struct SignalRecord<T> {
    pub(super) timeline: T,
    pub(super) value: u64,
}

/// # Invariants
///
/// - `epoch` is not zero in the states [`Queued`](OpState::Queued) and [`Submitted`](OpState::Submitted), and
///   never changes again.
/// - Every wait of a queued operation is reached or satisfied by order: `remaining` is zero.
/// - A queued operation is in the queue's `queued`, and a submitted one is in `in_flight`, once.
pub(super) struct Op<B: Backend> {
    pub(super) state: OpState,
    pub(super) kind: ActionKind,
    /// Its work was done early.
    pub(super) done: bool,
    /// What its [work](Backend::kind) is, while the host has that.
    pub(super) work_kind: u8,
    /// Waits that are blocked.
    pub(super) remaining: u32,
    pub(super) epoch: u64,
    /// The event that it records, retained until it retires.
    pub(super) event: Option<EventIndex>,
    /// Why it ends without running.
    pub(super) failure: Option<Failure>,
    pub(super) waits: SmallVec<[WaitRecord; 1]>,
    pub(super) signals: SmallVec<[SignalRecord<B::Timeline>; 1]>,
    pub(super) work: Option<B::Work>,
    /// Empty without the feature `tracing`.
    pub(super) trace: Trace,
}

impl<B: Backend> Op<B> {
    /// A pending operation. The caller adds its waits, signals and work.
    #[inline(always)]
    pub(super) fn new(kind: ActionKind, failure: Option<Failure>, trace: Trace) -> Self {
        Self {
            state: OpState::Pending,
            kind,
            done: false,
            work_kind: 0,
            remaining: 0,
            epoch: 0,
            event: None,
            failure,
            waits: SmallVec::new(),
            signals: SmallVec::new(),
            work: None,
            trace,
        }
    }

    /// The number of the wait that is added next.
    #[expect(clippy::cast_possible_truncation, reason = "2³² waits do not fit into memory")]
    pub(super) fn next_wait(&self) -> u32 {
        self.waits.len() as u32
    }

    /// A wait, by its number.
    #[inline]
    pub(super) fn wait_mut(&mut self, number: u32) -> &mut WaitRecord {
        #[expect(clippy::indexing_slicing, reason = "an operation keeps its waits until it ends")]
        &mut self.waits[number as usize]
    }

    /// Adds a wait that is not reached.
    #[inline(always)]
    pub(super) fn wait_for(&mut self, timeline_state: Arc<TimelineState>, value: u64, state: WaitState) {
        self.waits.push(WaitRecord { timeline: timeline_state, value, state, failure_entry: None });
    }

    /// True if all of its waits are satisfied by the order of `queue`.
    #[inline]
    pub(super) fn waits_for_nothing_but(&self, queue: u32) -> bool {
        self.waits.iter().all(|wait| wait.producer() == Some(queue))
    }

    /// Counts a blocked wait down. Returns whether the operation became runnable.
    #[inline]
    pub(super) fn count_down(&mut self) -> bool {
        debug_assert!(
            self.remaining > 0,
            "only a wait that is coverable or the host's is counted down, and once"
        );
        self.remaining -= 1;
        self.remaining == 0 && self.failure.is_none()
    }

    /// True if cleanup must run before the signals fail. An operation that was done early is only reclaimed. A
    /// queued one fails at once, because later operations of its queue may rely on its signals; unless the
    /// whole queue ends (`all_end`) while the device still works on its dependencies.
    pub(super) fn cleans_up(&self, all_end: bool) -> bool {
        let is_barrier = self.kind == ActionKind::Barrier && !self.done;
        let begins = self.state == OpState::Pending || (all_end && self.state == OpState::Queued);
        is_barrier && begins && self.work.is_some()
    }

    pub(super) fn is_cleaning_up(&self) -> bool {
        self.kind == ActionKind::Barrier && self.state == OpState::Running
    }
}

/// Lists that operations with several waits or signals leave for the next ones.
pub(super) struct SpareLists<B: Backend> {
    waits: Vec<Vec<WaitRecord>>,
    signals: Vec<Vec<SignalRecord<B::Timeline>>>,
}

/// How many of each kind are kept.
const SPARE: usize = 16;

impl<B: Backend> Default for SpareLists<B> {
    fn default() -> Self {
        Self { waits: Vec::new(), signals: Vec::new() }
    }
}

impl<B: Backend> SpareLists<B> {
    /// An empty list for several waits.
    #[inline]
    pub(super) fn waits(&mut self) -> SmallVec<[WaitRecord; 1]> {
        self.waits.pop().map_or_else(SmallVec::new, SmallVec::from_vec)
    }

    /// An empty list for several signals.
    #[inline]
    pub(super) fn signals(&mut self) -> SmallVec<[SignalRecord<B::Timeline>; 1]> {
        self.signals.pop().map_or_else(SmallVec::new, SmallVec::from_vec)
    }

    /// Keeps the empty lists of an operation that has ended.
    // Memory alone: a spare more or less.
    #[cfg_attr(mutants, mutants::skip)]
    pub(super) fn keep(
        &mut self,
        waits: SmallVec<[WaitRecord; 1]>,
        signals: SmallVec<[SignalRecord<B::Timeline>; 1]>,
    ) {
        debug_assert!(waits.is_empty() && signals.is_empty(), "the operation has ended");
        if waits.spilled() && self.waits.len() < SPARE {
            self.waits.push(waits.into_vec());
        }
        if signals.spilled() && self.signals.len() < SPARE {
            self.signals.push(signals.into_vec());
        }
    }
}
