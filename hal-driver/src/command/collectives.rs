// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Collectives: channels to groups of ranks, and the collectives of a command buffer while they run.
//!
//! A command buffer records a collective ([`record`]) on a [`channel`]. The device turns such a command buffer into
//! a chain of steps (`device/collective_steps.rs`), each step starts its collectives ([`running`]), and an
//! [`execution`] ends when none of its parts uses the program's memory any more.

pub(crate) mod channel;
pub(crate) mod execution;
pub(crate) mod record;
pub(crate) mod running;
