// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Synchronisation: semaphores, frontiers, the proactor, and the threads for calls that may block.
//!
//! It knows no buffer and no command. Other modules register here what must happen before a semaphore is signalled.

pub(crate) mod frontier;
pub(crate) mod host_pool;
pub(crate) mod live_semaphores;
pub(crate) mod poll_collectives;
pub(crate) mod proactor;
pub(crate) mod running_time;
pub(crate) mod semaphore;
pub(crate) mod teardown;
pub(crate) mod write_back;
