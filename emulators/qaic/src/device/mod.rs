// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The device's half: its control server, its DMA bridge, its cores.
//!
//! Its behaviour was read in the kernel's documentation of the device (`Documentation/accel/qaic/aic100.rst`)
//! and in the vendor's user-space library. Behaviour that neither describes is left out, or marked as the
//! emulator's own.

pub(crate) mod bridge;
pub(crate) mod control;
mod core;
mod crash;
mod groups;
mod loaded;
mod network;
mod semaphore;
