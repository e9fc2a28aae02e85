//! Defects on demand, for the model checkers only.
//!
//! A model that passes proves little unless it would have failed on a wrong engine. Each race that is modelled has a
//! twin: the same model with one line of the engine wrong, which the checker must catch. The wrong lines live behind
//! these switches and exist in no build but the checkers'.
#![cfg_attr(
    not(any(loom, shuttle)),
    expect(unreachable_pub, reason = "public for the checkers' tests alone")
)]

/// A line that can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Defect {
    /// A wait is registered without a look, under the lock, whether its value is reached.
    RegisterDoesNotLook = 1,
    /// Cancelling does not look whether the operation has gone to its device already.
    CancelIgnoresState = 2,
    /// An operation that waits for a native event does not hold it.
    EventNotHeld = 3,
    /// Shutting down does not wait for the thread that calls callbacks and reclaims.
    ShutdownForgetsCallbacks = 4,
    /// An operation retires without regard to what it waited for natively.
    RetireOutOfOrder = 5,
    /// A point can be waited for natively while it is still on its way to its device.
    WaitsForUnissued = 6,
    /// What could not be done ahead is registered for its waits without a look whether they are reached meanwhile.
    EarlyDoesNotLook = 7,
}

#[cfg(any(loom, shuttle))]
static CURRENT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// Makes the defect with this number the one of the models that run next in this process; 0 for none.
#[cfg(any(loom, shuttle))]
pub fn set(defect: u32) {
    CURRENT.store(defect, std::sync::atomic::Ordering::SeqCst);
}

/// Whether this line is to be wrong.
#[cfg(any(loom, shuttle))]
pub(crate) fn sabotaged(defect: Defect) -> bool {
    CURRENT.load(std::sync::atomic::Ordering::SeqCst) == defect as u32
}

#[cfg(not(any(loom, shuttle)))]
pub(crate) const fn sabotaged(_defect: Defect) -> bool {
    false
}
