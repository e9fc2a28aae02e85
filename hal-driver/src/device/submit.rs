// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Submissions to the engine: operations with their semaphore lists, their queues and where they run.

use super::DeviceState;
use crate::command::collectives::execution::ExecutionEnd;
use crate::command::record::Record;
use crate::device::profile::{OperationDescription, Trace};
use crate::device::work::{Operation, QueueWork};
use crate::ffi::status::{Result, refused};
use crate::memory::buffer_range::BorrowedRange;
use crate::sync::semaphore::List;
use hal_backend::{Command, Device, Span};
use hal_semaphore::timeline::TimelineValues;
use hal_semaphore::{Action, Affinity, Failure};
use hal_sys as sys;
use std::sync::Arc;

/// The waits and signals of an operation.
pub(super) struct SemaphoreLists<'a> {
    pub(super) waits: List<'a>,
    pub(super) signals: List<'a>,
}

impl<'a> SemaphoreLists<'a> {
    /// # Safety
    ///
    /// Both lists are valid during `'a`.
    #[inline(always)]
    pub(super) unsafe fn new(
        waits: &'a sys::iree_hal_semaphore_list_t,
        signals: &'a sys::iree_hal_semaphore_list_t,
    ) -> Result<Self> {
        // SAFETY: valid during `'a`, as the caller promises.
        unsafe { Ok(Self { waits: List::new(waits)?, signals: List::new(signals)? }) }
    }
}

/// The side on which an operation runs.
#[derive(Clone, Copy)]
pub(super) enum Side {
    /// On the device.
    Queue,
    /// On the host, once its waits are reached.
    Host,
    /// On the host, once its waits are satisfied by order, if it can.
    Early,
    /// In its queue, without work for the device.
    Marker,
}

/// Folds the bits of an affinity into the queues that exist.
#[cold]
fn folded(affinity: sys::iree_hal_queue_affinity_t, queues: u32) -> u64 {
    (0..64_u32.div_ceil(queues)).fold(0, |folded, fold| folded | affinity >> (fold * queues))
}

impl<D: Device> DeviceState<D> {
    /// The queues that an affinity of IREE's names. No bits and all bits both mean any queue.
    ///
    /// Every affinity is legal, as programs do not know how many queues a device has: an affinity says which
    /// operations share a queue. If it names queues of this device, the other bits are ignored; if it names none,
    /// its bits are folded into the existing queues.
    pub(super) fn affinity(&self, affinity: sys::iree_hal_queue_affinity_t) -> Affinity {
        let known = self.queues;
        Affinity(match affinity {
            0 | u64::MAX => known,
            some if some & known != 0 => some & known,
            none => folded(none, known.count_ones()) & known,
        })
    }

    pub(super) fn submit(
        &self,
        affinity: Affinity,
        lists: &SemaphoreLists<'_>,
        side: Side,
        operation: Operation<D>,
    ) -> Result {
        let trace = self.trace(lists, || OperationDescription::of(&operation, affinity.0));
        let work = QueueWork { operation, trace };
        let action = match side {
            Side::Queue => Action::Queue(work),
            Side::Host => Action::Host(work),
            Side::Early => Action::Early(work),
            Side::Marker => Action::Marker(work),
        };
        self.hand_over(affinity, lists, action)
    }

    /// Submits a single transfer or dispatch. If its memory is known already, only that is kept.
    #[inline(always)]
    pub(super) fn submit_record(
        &self,
        affinity: Affinity,
        lists: &SemaphoreLists<'_>,
        record: Record,
    ) -> Result {
        let trace = self.trace(lists, || OperationDescription::of_record(&record, affinity.0));
        if trace.is_none()
            && let Some(command) = record.resolve_static(&self.device)?
        {
            return self.submit_command(affinity, lists, command);
        }
        self.hand_over(
            affinity,
            lists,
            Action::Queue(QueueWork { operation: Operation::Record(record), trace }),
        )
    }

    /// Submits a transfer whose memory is certain: only the memory is kept, and no profile records it.
    #[inline(always)]
    pub(super) fn submit_command(
        &self,
        affinity: Affinity,
        lists: &SemaphoreLists<'_>,
        command: Command<D>,
    ) -> Result {
        let work = QueueWork { operation: Operation::Command(command), trace: None };
        self.hand_over(affinity, lists, Action::Queue(work))
    }

    /// The memory of a transfer's range, if it is certain and no profile records its buffer. An empty range has no
    /// memory.
    #[inline(always)]
    pub(super) fn certain_memory(&self, range: BorrowedRange<'_>) -> Option<Span<D>> {
        if range.length == 0 || self.profiler.may_be_open() {
            return None;
        }
        range.resolve_static(&self.device)
    }

    /// A trace of the operation, if a profile is open.
    #[inline(always)]
    fn trace(
        &self,
        lists: &SemaphoreLists<'_>,
        about: impl FnOnce() -> OperationDescription,
    ) -> Option<Arc<Trace>> {
        self.profiler.trace(|| {
            let mut about = about();
            about.waits = lists.waits.len();
            about.signals = lists.signals.len();
            about
        })
    }

    /// Submits an operation to the engine, which passes it to the device (`EngineBackend::hand_over`) in turn.
    #[inline(always)]
    fn hand_over(
        &self,
        affinity: Affinity,
        lists: &SemaphoreLists<'_>,
        action: Action<QueueWork<D>>,
    ) -> Result {
        self.engine.submit(affinity, &lists.waits, &lists.signals, action).map_err(|refusal| {
            let why = refused(&refusal.error);
            give_up(refusal.action, &why);
            why
        })
    }

    pub(super) fn barrier(&self, affinity: Affinity, lists: &SemaphoreLists<'_>) -> Result {
        self.submit_barrier(affinity, lists, sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_BARRIER, 0)
    }

    /// Submits the barrier at the end of an execution that has parts.
    pub(super) fn ending(
        &self,
        affinity: Affinity,
        lists: &SemaphoreLists<'_>,
        ending: ExecutionEnd,
    ) -> Result {
        self.trace_barrier(affinity, lists, sys::IREE_HAL_PROFILE_QUEUE_EVENT_TYPE_BARRIER, 0);
        let work = QueueWork { operation: Operation::ExecutionEnd(ending), trace: None };
        self.hand_over(affinity, lists, Action::Cleanup(work))
    }

    /// Submits an operation that only waits and signals.
    pub(super) fn submit_barrier(
        &self,
        affinity: Affinity,
        lists: &SemaphoreLists<'_>,
        kind: u32,
        payload: u64,
    ) -> Result {
        self.trace_barrier(affinity, lists, kind, payload);
        self.hand_over(affinity, lists, Action::Barrier)
    }

    fn trace_barrier(&self, affinity: Affinity, lists: &SemaphoreLists<'_>, kind: u32, payload: u64) {
        if let Some(trace) = self.profiler.trace(|| OperationDescription {
            kind,
            payload,
            waits: lists.waits.len(),
            signals: lists.signals.len(),
            affinity: affinity.0,
            ..OperationDescription::default()
        }) {
            trace.ready();
        }
    }
}

/// Withdraws a rank from the groups of a collective that the engine refused.
#[cold]
fn give_up<D: Device>(refused: Action<QueueWork<D>>, why: &Failure) {
    if let Action::Host(QueueWork { operation: Operation::Collectives(collectives), .. }) = refused {
        collectives.give_up(why);
    }
}
