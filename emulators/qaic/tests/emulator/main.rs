// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Tests of the emulator through the kernel boundary alone, which is all that a backend sees: a test for each rule of
//! `emulators/qaic/rules.md`, then the faults, then whole networks.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test stops where something is not as it should be"
)]

mod bridge;
mod common;
mod corners;
mod executions;
mod faults;
mod fuzz;
mod messages;
mod networks;
mod objects;
mod rules;
mod slices;
mod supervised;
mod table;
mod users;
mod waits;
