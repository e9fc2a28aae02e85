// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Callbacks with the outcomes of operations, and the release of their memory. Both are foreign code, which may
//! panic.

use crate::{Done, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls a rank's callback with the outcome of its operation. A panic is reported by the panic hook, and affects
/// neither the ranks that are notified next nor this thread.
pub fn notify(done: Done, outcome: Result) {
    guarded(|| done(outcome));
}

/// Drops a value that may hold the last reference to memory, whose owner may panic: that does not affect the ranks
/// that are notified next either. Each value is dropped by itself, as a panic within a panic ends the process.
pub fn release<T>(memory: T) {
    guarded(|| drop(memory));
}

fn guarded(foreign: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(foreign)) {
        // The payload may panic again when it is dropped.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(payload);
        }
    }
}
