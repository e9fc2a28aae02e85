// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The interface of tt-kmd, Tenstorrent's kernel driver, version 2 of its API (module 2.0 to 2.10).
//!
//! [`uapi`] has the bytes, as the kernel's header has them: what a driver and an emulated kernel both need. [`Calls`]
//! makes the calls, through whatever implements [`Ioctl`], and says of each failure what was asked for and what to
//! do.
//!
//! A card is `/dev/tenstorrent/N`. What is known to hold of every call, from the driver's source:
//! - after a reset or a removal every call on a file opened before fails with `ENODEV`, and its mappings with a
//!   signal: the file has to be closed and the card opened anew;
//! - structures with a size in them are filled up to that size, so new fields of newer modules never overflow old
//!   programs;
//! - reserved fields have to be zero, and one that is not may be refused by a later module.

#![forbid(unsafe_code)]

mod calls;
mod error;
pub mod paths;
pub mod uapi;
mod version;

pub use calls::{
    Calls, DeviceInfo, DmaBuffer, Ioctl, Lock, Mapping, NocCleanup, Ordering, Pinned, Pinning, Power, Reset,
    Target, Tlb, Window,
};
pub use error::CallError;
pub use version::{DriverInfo, Feature, Version};

pub use rustix::io::Errno;
