// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Host executables of a process whose cards another process emulates.
//!
//! An emulated card computes with IREE's host executables, which are code in the program's own process. A
//! [supervisor](crate::SupervisedMachine) emulates the card in another process and cannot run them: it calls the
//! program's process, which lends it threads. Both communicate through sockets, which the program gets by
//! opening [`NODE`]; this node exists only under a supervisor.
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
//! One worker makes one call at a time, so each worker has its own socket, and no message waits for another.
//! Bindings arrive as parts of files, which are the device's memory, or as addresses in the program's own
//! memory, if the program has lent it to the device. The executable works on these bytes in place, and nothing
//! is copied.
//!
//! When the program ends, its sockets close: calls of its executables fail, and the machine forgets them.

mod client;
mod server;
#[cfg(test)]
mod tests;
mod wire;

pub use client::Remote;
pub use server::Service;

use std::path::Path;

/// The node that a program opens to have its executables run.
pub const NODE: &str = "/dev/accel/emulator";

/// True if another process emulates the cards that this process sees.
pub fn is_supervised() -> bool {
    rustix::fs::stat(Path::new(NODE)).is_ok()
}
