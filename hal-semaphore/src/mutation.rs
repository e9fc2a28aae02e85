// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Mutants: lines of the engine that can be made wrong, in builds for the model checkers only.
//!
//! A model that passes proves little unless it would have failed on a wrong engine. Each race that is modelled has a
//! mutant: the same model with one line of the engine wrong, which the checker must catch. The wrong lines live behind
//! these switches and exist in no build but the checkers'.
#![cfg_attr(
    not(any(loom, shuttle)),
    expect(unreachable_pub, reason = "public for the checkers' tests alone")
)]

/// A line that can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mutation {
    /// A wait is registered without a look, under the lock, whether its value is reached.
    RegisterDoesNotCheck = 1,
    /// Cancelling does not look whether the operation has gone to its device already.
    CancelIgnoresState = 2,
    /// An operation that waits for a native event does not hold it.
    EventNotHeld = 3,
    /// Shutting down does not wait for the thread that calls callbacks and reclaims.
    ShutdownForgetsCallbacks = 4,
    /// An operation retires without regard to what it waited for natively.
    RetireOutOfOrder = 5,
    /// A point can be waited for natively while it is still on its way to its device.
    WaitsForUnsubmitted = 6,
    /// What could not be done ahead is registered for its waits without a look whether they are reached meanwhile.
    EarlyDoesNotCheck = 7,
    /// A queue that has handed work to its device does not look who waits for it.
    SubmitDoesNotNotify = 8,
    /// A thread that registers a wait looks for what covers it before queues can see that it does.
    ListenerChecksFirst = 9,
    /// Nothing keeps the look for what covers a wait from coming before the count of those who look.
    ListenerHasNoFence = 10,
    /// A thread leaves the rest of a queue's work to others who are not there.
    LeavesWithoutSuccessor = 11,
    /// A queue that found its device full does not look again whether something was reported meanwhile.
    FullDoesNotCheckAgain = 12,
    /// A failure takes the value that it leaves behind before it has the lock.
    FailureForgetsValue = 13,
    /// A thread that waits for the engine to be idle looks for callbacks on their way first, and then at the queues.
    IdleChecksQueuesLast = 14,
    /// The loss of a device ends what is on its way to the device at that moment.
    SweepsWhileSubmitting = 15,
    /// An event is let go before the promises are gone through which others come by it.
    EventReleasedFirst = 16,
    /// Nothing keeps the look for queues that wait for room from coming before the room is given.
    CreditsHaveNoFence = 17,
    /// A queue that found its device full looks last whether anything is left on the device.
    FullChecksWorkLast = 18,
    /// Reports begin to be counted without a word to those that report.
    CountsUnknown = 19,
    /// A thread with a letter for a timeline of another driver tells it although another thread is telling it something.
    DeliveriesOvertake = 20,
    /// A timeline of the engine moves before the other drivers' timelines that its operation signals have their letters.
    DeliveriesAreLate = 21,
    /// A submission that finds the engine shut down leaves its queue without a look at what another thread has left to it.
    RefusalLeavesQueue = 22,
}

#[cfg(any(loom, shuttle))]
static CURRENT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// Makes the mutation with this number the one of the models that run next in this process; 0 for none.
#[cfg(any(loom, shuttle))]
pub fn set(mutation: u32) {
    CURRENT.store(mutation, std::sync::atomic::Ordering::SeqCst);
}

/// Whether this line is to be wrong.
#[cfg(any(loom, shuttle))]
pub(crate) fn is_mutated(mutation: Mutation) -> bool {
    CURRENT.load(std::sync::atomic::Ordering::SeqCst) == mutation as u32
}

#[cfg(not(any(loom, shuttle)))]
pub(crate) const fn is_mutated(_mutation: Mutation) -> bool {
    false
}
