// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Mutants: lines of the engine that the model checkers' builds can make wrong.
//!
//! A model that passes proves little unless it would have failed on a wrong engine. Each modelled race has a
//! mutant: the same model with one changed line in the engine, which the checker must catch. The switches exist
//! in no other build.
#![cfg_attr(
    not(any(loom, shuttle)),
    expect(unreachable_pub, reason = "public for the checkers' tests alone")
)]

/// A line that can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mutation {
    /// A wait is registered without a check, under the lock, whether its value is reached.
    RegisterDoesNotCheck = 1,
    /// An operation that has started fails like one that has not.
    FailsStarted = 2,
    /// An operation that waits for a native event does not retain it.
    EventNotHeld = 3,
    /// Shutdown does not wait for the thread that runs callbacks and reclaims.
    ShutdownForgetsCallbacks = 4,
    /// An operation retires without regard to its native dependencies.
    RetireOutOfOrder = 5,
    /// A point can be waited for natively before its submission has returned.
    WaitsForUnsubmitted = 6,
    /// An early action that was not done is registered for its waits without a check whether they are reached
    /// by now.
    EarlyDoesNotCheck = 7,
    /// A queue that has submitted work does not check whether listeners wait for it.
    SubmitDoesNotNotify = 8,
    /// A thread that registers a wait searches for a dependency before queues can see its wait.
    ListenerChecksFirst = 9,
    /// No fence keeps the search for a dependency behind the count of listeners.
    ListenerHasNoFence = 10,
    /// A thread leaves the rest of a queue's work although no other thread is there.
    LeavesWithoutSuccessor = 11,
    /// A full queue does not check again whether something was reported meanwhile.
    FullDoesNotCheckAgain = 12,
    /// A failure reads the value that it leaves behind before it has the lock.
    FailureForgetsValue = 13,
    /// A thread that waits for the engine to be idle checks first what is owed, and then the queues.
    IdleChecksQueuesLast = 14,
    /// The loss of a device ends operations that are being submitted.
    SweepsWhileSubmitting = 15,
    /// An event is released before the promises through which others find it.
    EventReleasedFirst = 16,
    /// No fence keeps the check for full queues behind the return of credits.
    CreditsHaveNoFence = 17,
    /// A full queue checks last whether anything is left on the device.
    FullChecksWorkLast = 18,
    /// Reports begin to be counted without the knowledge of the threads that report.
    CountsUnknown = 19,
    /// A thread delivers to a foreign timeline although another thread is delivering to it.
    DeliveriesOvertake = 20,
    /// A timeline of the engine moves before the deliveries for foreign timelines of the same operation are
    /// posted.
    DeliveriesAreLate = 21,
    /// A submission that finds the engine shut down leaves its queue without the work that another thread has
    /// left to it.
    RefusalLeavesQueue = 22,
    /// Work of an operation with deliveries is reclaimed without regard to them.
    ReclaimsBeforeDelivery = 23,
    /// A future keeps its task's waker without a check, under the lock, whether its wait is over.
    #[cfg(feature = "futures")]
    WakerIsLate = 24,
}

#[cfg(any(loom, shuttle))]
static CURRENT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// Makes the mutation with this number the one of the models that run next in this process; 0 for none.
#[cfg(any(loom, shuttle))]
pub fn set(mutation: u32) {
    CURRENT.store(mutation, std::sync::atomic::Ordering::SeqCst);
}

/// True while this line is changed.
#[cfg(any(loom, shuttle))]
pub(crate) fn is_mutated(mutation: Mutation) -> bool {
    CURRENT.load(std::sync::atomic::Ordering::SeqCst) == mutation as u32
}

#[cfg(not(any(loom, shuttle)))]
pub(crate) const fn is_mutated(_mutation: Mutation) -> bool {
    false
}
