// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The kernel's half: the driver's state for programs, its checks, and its ring elements.
//!
//! Each rule names the function of `drivers/accel/qaic` that it was read in. `emulators/qaic/rules.md` has all
//! of them in a table, with the versions.

pub(crate) mod channel;
pub(crate) mod control;
mod decode;
mod encode;
mod execute;
mod interrupt;
mod manage;
pub(crate) mod object;
mod request;
mod restart;
mod slice;
mod sysfs;
pub(crate) mod uevent;
pub(crate) mod user;
mod wait;
