// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Command buffers, executables and collectives.
//!
//! Nothing here submits anything: a command buffer is a list until the device (`device`) carries it out.

pub(crate) mod collectives;
pub(crate) mod command_buffer;
pub(crate) mod executable;
pub(crate) mod host_program;
pub(crate) mod record;
pub(crate) mod update_staging;
