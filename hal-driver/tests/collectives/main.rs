// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Channels and collectives as a C program uses them: devices of one process are the ranks.
//!
//! Expected bytes come from plain lists of numbers. `hal-collectives` tests the kinds, types and reductions one by
//! one; these tests cover each kind once, and everything around them: buffers and slots, parts of command buffers,
//! queues, semaphores, channels, failures and ends.
#![allow(clippy::undocumented_unsafe_blocks, reason = "every object here is alive as long as its wrapper")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "a failed expectation ends the test"
)]

#[path = "../common/mod.rs"]
mod common;

mod channels;
mod departures;
mod edges;
mod endings;
mod exhaustion;
mod kinds;
mod pieces;
mod profiles;
mod programs;
mod rig;
mod steps;
mod streams;
mod worlds;
