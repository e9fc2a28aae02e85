// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What is wrong with an executable, as a program is told.

use super::FORMAT;
use hal_backend::Failure;

pub(super) use hal_containers::{Fault, FaultKind, Name};

/// A fault, when all of its place is known.
pub(super) fn failure(fault: &Fault) -> Failure {
    fault.failure(FORMAT)
}
