// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Who waits, who is told, and on which thread: semaphores, frontiers, the proactor, threads for what may block.
//!
//! It knows of no buffer and no command. What another room has to do before a semaphore is signalled, it says here.

pub(crate) mod frontier;
pub(crate) mod host_pool;
pub(crate) mod proactor;
pub(crate) mod semaphore;
pub(crate) mod teardown;
pub(crate) mod watch;
pub(crate) mod write_back;
