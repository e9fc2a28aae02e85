// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The driver's tests: what a C program sees, subject by subject.
//!
//! They are one program, as each would link all of IREE. Tests that must be alone in their process are separate:
//! those that count threads (`polling.rs`), and those with their own machinery (`collectives`, `programs`,
//! `refusals`).
#![allow(clippy::undocumented_unsafe_blocks, reason = "every object is alive as long as its wrapper")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed expectation ends the test")]

mod access;
mod affinities;
mod alloca;
mod allocator;
mod backends;
mod beyond;
mod bounces;
mod cards;
#[path = "../common/mod.rs"]
mod common;
mod completions;
mod contract;
mod dispatches;
mod drivers;
mod errors;
mod exhaustion;
mod external;
mod faults;
mod gaudi;
mod groups;
mod interop;
mod lifetimes;
mod limits;
mod nvidia;
mod odd;
mod orphans;
mod parameters;
mod polled;
mod pools;
mod processes;
mod profiles;
mod qaic;
mod queries;
mod stops;
mod teardown;
mod timepoints;
mod transfers;
mod transient;
mod virtual_memory;
