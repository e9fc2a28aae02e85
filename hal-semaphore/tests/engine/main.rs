// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The engine's tests, subject by subject.
//!
//! They are one program: to link it is most of what a change of the engine costs. What has an allocator of its own stays outside
//! (`costs.rs`, `steady_state.rs`), and so do the random worlds and the models of the checkers.
#![cfg(not(any(loom, shuttle)))]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]

mod admission;
mod ahead;
mod backlogs;
mod callbacks;
mod choice_of_queue;
mod cleanups;
mod coalesced;
#[path = "../common/mod.rs"]
mod common;
mod completion;
mod covered;
mod dag;
mod defaults;
mod defects;
mod directions;
mod early_ends;
mod ending;
mod foreign_timelines;
mod given_back;
mod inside_submit;
mod least_cost;
mod many_waits;
mod native_waits;
mod nested;
#[path = "../common/noop.rs"]
mod noop;
mod observed;
mod order_of_ends;
mod other_drivers;
mod owned_work;
mod panics;
mod promises;
mod properties;
#[path = "../common/rig.rs"]
mod rig;
mod room;
mod same_values;
mod slow_drivers;
mod statistics;
mod strangers;
mod truth;
mod waiting;
