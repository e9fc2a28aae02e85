// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The bytes of the habanalabs kernel driver and of Gaudi's command queues.
//!
//! This is what a client of the driver and an emulator of it have in common, and nothing else: numbers, layouts, the
//! encoding of packets. What either does with them is its own. `hal-gaudi` and `emulator-gaudi` both depend on this
//! crate, and the emulator does not depend on the backend, so that the compiler keeps their logic apart.
//!
//! | module | what |
//! |---|---|
//! | [`uapi`] | request numbers, structures and constants of the kernel driver |
//! | [`packet`] | packets of command buffers |
//! | [`generation`] | the generations, and the PCI identities that they have |
//! | [`programs`] | what the driver asks of an emulated card to run host programs |

pub mod generation;
pub mod packet;
pub mod programs;
pub mod uapi;
