// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Bounce buffers: host memory through which others access bytes that only their own device can use.

pub(crate) mod buffer;
pub(crate) mod mapping;
pub(crate) mod ranges;
