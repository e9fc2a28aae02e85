// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The engine's tests, subject by subject.
//!
//! They are one program, because linking is most of the cost of a change. Tests with an allocator of their own
//! are apart (`costs.rs`, `steady_state.rs`), and so are the random worlds and the models of the checkers.
#![cfg(not(any(loom, shuttle)))]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test stops where something is not as it should be"
)]

mod admission;
mod backlogs;
mod callbacks;
mod choice_of_queue;
mod cleanups;
mod coalesced;
mod completion;
mod dag;
mod defaults;
mod defects;
#[path = "../common/delays.rs"]
mod delays;
mod directions;
mod early;
#[path = "../common/fake.rs"]
mod fake;
#[path = "../common/fake_timeline.rs"]
mod fake_timeline;
mod foreign_timelines;
mod full_devices;
#[path = "../common/graph.rs"]
mod graph;
mod independent;
mod inside_submit;
mod least_cost;
mod many_waits;
mod native_waits;
mod nested;
#[path = "../common/noop.rs"]
mod noop;
mod order_of_ends;
mod ordered_waits;
mod other_drivers;
mod owned_work;
mod panics;
mod promises;
mod reclaimed;
mod reentry;
mod reentry_worlds;
#[path = "../common/rig.rs"]
mod rig;
mod same_values;
mod shutdown;
mod slow_drivers;
mod stall;
mod statistics;
mod unsubmitted_ends;
mod value_and_failure;
