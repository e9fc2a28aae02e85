// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Callbacks with the outcomes of operations, and the release of their memory: both are foreign code, which may panic.

use crate::{Done, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls a rank's callback with the outcome of its operation. A callback that panics has said so by the program's panic hook, and is of no concern to the ranks
/// that are told next, nor to the thread that tells them.
pub fn tell(done: Done, outcome: Result) {
    guarded(|| done(outcome));
}

/// Drops something that may have the last reference to memory, whose owner may panic: that is of no concern to ranks that are told next
/// either. Each memory by itself, as a second panic within the first one ends the process.
pub fn let_go<T>(held: T) {
    guarded(|| drop(held));
}

fn guarded(foreign: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(foreign)) {
        // What was thrown may throw again when it is dropped.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(payload);
        }
    }
}
