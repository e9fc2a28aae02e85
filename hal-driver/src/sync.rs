// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Synchronisation: semaphores, frontiers, the proactor, and the threads for calls that may block.
//!
//! It knows of no buffer and no command. What another module has to do before a semaphore is signalled, it registers here.

pub(crate) mod frontier;
pub(crate) mod host_pool;
pub(crate) mod proactor;
pub(crate) mod semaphore;
pub(crate) mod teardown;
pub(crate) mod watch;
pub(crate) mod write_back;
