// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Tests of the emulator through the kernel boundary alone, which is all that the backend sees.
//!
//! `validation` has one row for each rule of the driver; it asks for nothing that only the emulator has, so
//! that it can be run against a card. The others ask for faults, and look at what the emulator counts.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::undocumented_unsafe_blocks,
    reason = "a test stops where something is not as it should be"
)]

mod common;
mod completions;
mod engines;
mod execution;
mod faults;
mod fuzz;
mod packets;
mod questions;
mod rules;
mod sharing;
mod states;
mod submissions;
mod synchronisation;
mod validation;
