// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Memory: buffers, the allocator, pools, and bounce buffers for memory of other devices.
//!
//! It knows semaphores and threads (`sync`), since memory may have to be waited for, and no command.

pub(crate) mod alloca;
pub(crate) mod allocator;
pub(crate) mod backing;
pub(crate) mod bounce;
pub(crate) mod buffer;
pub(crate) mod buffer_range;
pub(crate) mod heap;
mod import;
pub(crate) mod pools;
pub(crate) mod reservation;
mod resolve;
mod shared_memory;
mod statistics;
pub(crate) mod transient;
mod virtual_addresses;
mod virtual_memory;
