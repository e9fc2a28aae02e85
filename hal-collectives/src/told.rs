// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Telling ranks how their operations went.

use crate::{Done, Result};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Tells a rank how its operation went. A callback that panics has said so by the program's panic hook, and is of no concern to the ranks
/// that are told next, nor to the thread that tells them.
pub fn tell(done: Done, outcome: Result) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| done(outcome))) {
        // What was thrown may throw again when it is dropped.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(payload);
        }
    }
}
