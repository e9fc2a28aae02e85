//! Defects on demand, for the model checkers only.
//!
//! A model that passes proves little unless it would have failed on a wrong engine. Each race that is modelled has a
//! twin: the same model with one line of the engine wrong, which the checker must catch. The wrong lines live behind
//! these switches and exist in no build but the checkers'.

use std::sync::atomic::{AtomicU32, Ordering};

/// A line that can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Defect {
    /// Every line is right.
    None = 0,
    /// A wait decides whether its value is reached before it takes the lock, and not again under it.
    RegisterLooksTooEarly = 1,
    /// Cancelling does not look whether the operation has gone to its device already.
    CancelIgnoresState = 2,
    /// An operation that waits for a native event does not hold it.
    EventNotHeld = 3,
    /// Shutting down does not wait for the thread that calls callbacks and reclaims.
    ShutdownForgetsCallbacks = 4,
}

static CURRENT: AtomicU32 = AtomicU32::new(0);

/// Makes this the defect of the models that run next in this process.
pub fn set(defect: Defect) {
    CURRENT.store(defect as u32, Ordering::SeqCst);
}

pub(crate) fn on(defect: Defect) -> bool {
    CURRENT.load(Ordering::SeqCst) == defect as u32
}
