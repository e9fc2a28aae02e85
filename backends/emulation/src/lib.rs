//! The kernel boundary of a backend, and what emulators of kernel drivers have in common.
//!
//! A backend reaches its kernel driver through [`Kernel`], at the level of system calls. Behind it stands [`Linux`], or
//! an emulator of the driver and its device in this process.

mod kernel;
mod linux;
mod process;

pub use kernel::{Errno, Kernel, borrow, clock, identity};
pub use linux::{Linux, map_shared};
pub use process::{Own, PAGE, Process, keeping, reopen};
