// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Command buffers, executables and collectives.
//!
//! Nothing here submits anything: a command buffer is a list until the device (`device`) carries it out.

pub(crate) mod channel;
pub(crate) mod collective;
pub(crate) mod command_buffer;
pub(crate) mod executable;
pub(crate) mod execution;
pub(crate) mod host_program;
pub(crate) mod launch;
pub(crate) mod record;
pub(crate) mod running_collectives;
pub(crate) mod staging;
