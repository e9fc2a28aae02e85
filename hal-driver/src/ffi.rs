// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Types for C's conventions: counted objects, out-parameters, statuses, constants, forks, cancelled threads.
//!
//! Every other module uses these, and they use none of them.

pub(crate) mod cancellation;
pub(crate) mod constants;
pub(crate) mod object;
pub(crate) mod process;
pub(crate) mod status;
