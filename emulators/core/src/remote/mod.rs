// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Host executables of a process whose cards are emulated in another one.
//!
//! An emulated card computes with IREE's host executables, which are code in the program's own process: a
//! [supervisor](crate::supervised), which emulates the card from outside, cannot run them. It calls the program's process instead, which
//! lends it threads. The two speak through sockets, which the program gets by opening [`NODE`]; no system has such a
//! node but under a supervisor.
//!
//! ```text
//! program                                   supervisor
//!   open(NODE) ── a socket, by descriptor ──  Hello
//!   Role: the session's control, or its n-th worker ──▶
//!   control: Load, Unload ──▶  ◀── number
//!   worker:  ◀── Call, with the files that its bindings are in ── a worker of the machine
//!            Done ──▶
//! ```
//!
//! A call has the work of one worker at one time, so there is one worker's socket for each, and no message waits for
//! another. Bindings arrive as parts of files, which are the device's memory, or as addresses in the program's own memory,
//! where the program has lent some of it to the device: the executable works on the very bytes, and nothing is copied.
//!
//! When the program is gone, its sockets are: what its executables were at fails, and the machine forgets them.

mod client;
mod server;
#[cfg(test)]
mod tests;
mod wire;

pub use client::Remote;
pub use server::Service;

use std::path::Path;

/// What a program opens to have its executables run.
pub const NODE: &str = "/dev/accel/emulator";

/// Whether the cards that this process sees are emulated by another one.
pub fn is_supervised() -> bool {
    rustix::fs::stat(Path::new(NODE)).is_ok()
}
