// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The interpreter of PTX: each form of an instruction, each refusal, and what lanes do together.

#![expect(clippy::indexing_slicing, reason = "a test stops where something is not as it should be")]

mod control;
mod forms;
mod generic;
mod memory;
mod refusals;
mod support;
